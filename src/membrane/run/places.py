"""Mount points in directories that several runs have at a time: no run can take another one's away.

Theory of operation
-------------------
A workspace below the home is mounted on a directory of the sandbox's home (``plan.mounts``, rule 1), and so are mounts
of rules and toolchains.  With ``home: shared``, or two runs of one workspace with different rules, another run sees
that directory without the mount.  rmdir(2) and rename(2) refuse a mount point of the caller's own mount namespace
only (fs/namespace.c, is_local_mountpoint); one of another namespace is taken away with its directory (detach_mounts),
or moves with it.

So each run has each *place*, the mount points in our state and the directories above them, as a mount point: its own
are, and a place of another run is bound onto itself (``Pin``).  ``STATE/places`` has a record for each run, locked as
long as it lives (flock(2), as in ``registry``), and beside it the socket that it is asked at.  When its view stands,
and before its command runs, a run

1. writes its record, and only then reads the others': of two that start at a time one at least finds the other;
2. pins their places, and asks them to pin its own (``_Keep``); while it waits it answers those that ask it;
3. finds its own mounts and the pins where they are to be, or ends.

*Firm* are the places of the workspace and of mounts of rules.  A toolchain or an agent's state is asked for as well,
but nothing is protected by being there: a run starts also where another one does not keep it.

What is mounted is read from proc_pid_mountinfo(5) of pid 1, never assumed: a command may have put a link where the
place was.  Only with ``containers: nested`` may a command copy the view, and what is mounted later need not appear in
its copy (mount_namespaces(7)): such a run says no, and the run that asks for a firm place does not start.
"""

from __future__ import annotations

import _socket
import fcntl
import marshal
import os
import sys
import time

from ..backend import Broken, Hidden
from ..errors import HostError, MembraneError
from ..host.channel import Channel
from ..host.private import is_held, make_private
from ..host.ready import ready
from ..host.writing import write_all
from ..messages import Message, Table
from ..plan.model import Bind, Overlay, Pin, Tmpfs
from ..plan.mounts import inside
from .door import accept, listen, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..backend import Cell
    from ..plan.model import MountOp, SandboxPlan

ANSWERS = 20.0  # seconds for all runs that are asked; of one that is stopped none is awaited
_LOOK = 0.5  # seconds between two looks at whether one is
MOST = 512  # places of one run
_FORMAT = 1
_BACKLOG = 256  # runs that ask at a time


class _Keep(Message):
    """Have these paths, of the host, as mount points."""

    paths: tuple[str, ...]


class _Kept(Message):
    """The answer: they are; or ``why`` one of them is none."""

    why: str


_TO_RUN = Table("from a run that starts to another one", _Keep, longest=4 << 20)
_FROM_RUN = Table("from a run to another one that starts", _Kept)


class _Question:
    """What another run was asked for; ``path``: its record; ``firm``: it has to keep that."""

    def __init__(self, session: str, path: str, places: tuple[str, ...], firm: bool, channel: Channel) -> None:
        self.session, self.path, self.places, self.firm, self.channel = session, path, places, firm, channel
        credentials = channel.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        self._pid = int.from_bytes(credentials[:4], sys.byteorder)

    def end(self) -> None:
        """Take its answer.

        Raises:
            HostError: it is no, or none, and the run is still there.
        """
        try:
            message = self.channel.receive()
        except (OSError, MembraneError):
            message = None
        self.channel.close()
        why = message.why if isinstance(message, _Kept) else "it has no answer"
        if why and self.firm and _is_alive(self.path):
            raise _unkept(self.session, self.places, why)

    def is_stopped(self) -> bool:
        """Is its supervisor stopped (proc_pid_stat(5), state)?"""
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
        except OSError:
            return False  # it has ended, which its channel tells


class Places:
    """Those of one run.

    Args:
        state: ``$MEMBRANE_HOME``.
        session: the id of the run.
        plan: of the run.
        operations: what is mounted beside the plan.
    """

    def __init__(self, state: str, session: str, plan: SandboxPlan, operations: Sequence[MountOp]) -> None:
        self._directory, self._session = f"{state}/places", session
        self._stores = _stores(plan.mounts, state)
        self._own, self._firm = _own((*plan.mounts, *operations), self._stores)
        self._trees = [op.target for op in plan.mounts if isinstance(op, (Bind, Overlay, Tmpfs))]
        self._nested = plan.hardening.nested
        self._listening: _socket.socket | None = None
        self._record = -1
        self._callers: dict[int, Channel] = {}
        self._asked: list[tuple[Channel, tuple[str, ...]]] = []  # and where they want mount points
        self._answers: dict[int, _Question] = {}
        self._cell: Cell | None = None

    def hold(self, cell: Cell) -> None:
        """The view of ``cell`` stands, and nothing runs in it: from now on no other run takes a place away.

        Raises:
            HostError: that is not certain.
        """
        if not self._stores:
            return  # nothing of our state can be written in this view
        self._cell = cell
        try:
            there = cell.mount_points()
        except ProcessLookupError:
            raise HostError("keep mount points in place", "the sandbox has ended") from None
        if there is None:
            return  # no kind of cell that mounts anything
        _confirm(self._firm, there)
        own = {path: store for path, store in self._own.items() if path in there}
        if len(own) > MOST:
            raise HostError("keep mount points in place", f"{len(own)} of them are too many", target=self._directory)
        self._publish(tuple(own.values()))
        firm = {store for path, store in own.items() if any(inside(each, path) for each in self._firm)}
        pins = set[str]()
        wanted: list[tuple[str, list[str]]] = []
        for session, stores, places in _others(self._directory, self._session):
            pins |= {path for each in places if (path := self._shown(each, there)) and path not in there}
            lacks = [each for each in own.values() if each not in places and any(inside(each, one) for one in stores)]
            if lacks:
                wanted.append((session, sorted(lacks, key=_depth)))
        if not pins and not wanted:
            return
        if pins:
            cell.hide([Pin(path) for path in sorted(pins, key=_depth)])
        try:
            for session, lacks in wanted:
                self._ask(session, tuple(each for each in lacks if each in firm), firm=True)
                self._ask(session, tuple(each for each in lacks if each not in firm), firm=False)
            self._wait(cell)
        finally:
            for question in self._answers.values():
                question.channel.close()
            self._answers = {}
        kept = [path for path, store in own.items() if store in firm]
        _confirm((*kept, *sorted(pins)), self._there() or frozenset())

    def watch(self, watch: Callable[[int, Callable[[], None]], None], unwatch: Callable[[int], None]) -> None:
        """Answer other runs from now on, in the loop of this one."""
        self._watch, self._unwatch = watch, unwatch
        if self._listening is not None:
            watch(self._listening.fileno(), self._on_caller)
        for channel in self._callers.values():
            watch(channel.fileno(), lambda channel=channel: self._on_asked(channel))  # type: ignore[misc]

    def close(self) -> None:
        """No process of the sandbox is left: it takes nothing away any more."""
        if self._record >= 0:  # first: who finds no answer looks whether this run is still there
            _remove(f"{self._directory}/{self._session}")
            os.close(self._record)
            self._record = -1
        if self._listening is not None:
            self._listening.close()
            self._listening = None
            _remove(f"{self._directory}/{self._session}.sock")
        for channel in (*self._callers.values(), *(channel for channel, _wanted in self._asked)):
            channel.close()
        self._callers, self._asked = {}, []

    # ------------------------------------------------------------ this run starts

    def _publish(self, places: tuple[str, ...]) -> None:
        path = f"{self._directory}/{self._session}"
        make_private(self._directory)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            while True:
                self._record = os.open(path, flags, 0o600)
                fcntl.flock(self._record, fcntl.LOCK_EX)
                if os.fstat(self._record).st_nlink:
                    break
                os.close(self._record)  # another run found it between its creation and our lock
                self._record = -1
            # Not before: who takes the record for a dead one's removes the socket with it.
            self._listening = listen(f"{path}.sock", _BACKLOG)
            stores = tuple(store for store, _target in self._stores)
            write_all(self._record, marshal.dumps((_FORMAT, stores, places)))
        except OSError as error:
            raise HostError("record the places of this run", error.strerror or "", target=path) from None

    def _ask(self, session: str, places: tuple[str, ...], *, firm: bool) -> None:
        if not places:
            return
        path = f"{self._directory}/{session}"
        try:
            channel = Channel(reach(f"{path}.sock"), _TO_RUN, _FROM_RUN)
        except OSError as error:
            if firm and _is_alive(path):
                raise _unkept(session, places, error.strerror or "") from None
            return
        self._answers[channel.fileno()] = _Question(session, path, places, firm, channel)
        try:
            channel.send(_Keep(places))
        except OSError:
            pass  # its end is found by ``_wait``

    def _wait(self, cell: Cell) -> None:
        """Until all have answered and everything is mounted; those that ask meanwhile get their answers."""
        assert self._listening is not None
        until = time.monotonic() + ANSWERS
        self._watch, self._unwatch = _nothing, _nothing
        [news, *_more] = cell.descriptors()
        while self._answers or cell.hiding:
            listening = self._listening.fileno()
            found = ready((*self._answers, *self._callers, listening, news), seconds=_LOOK)[0]
            if news in found:
                what = cell.read(news)
                if not isinstance(what, Hidden):
                    why = what.why if isinstance(what, Broken) else "the sandbox has ended"
                    raise HostError("keep mount points in place", why)
                self.on_mounted()
            for fd in found & self._answers.keys():
                self._answers.pop(fd).end()
            for fd in found & self._callers.keys():
                self._on_asked(self._callers[fd])
            if listening in found:
                self._on_caller()
            for fd, question in list(self._answers.items()):
                if time.monotonic() < until and not question.is_stopped():
                    continue
                if question.firm:
                    raise _unkept(question.session, question.places, "it does not answer; is it stopped?")
                self._answers.pop(fd).channel.close()

    # ------------------------------------------------------------ another run starts

    def _on_caller(self) -> None:
        assert self._listening is not None
        socket = accept(self._listening)
        if socket is None:
            return
        if len(self._callers) + len(self._asked) >= _BACKLOG:
            socket.close()
            return
        socket.setblocking(False)
        channel = Channel(socket, _FROM_RUN, _TO_RUN)
        self._callers[channel.fileno()] = channel
        self._watch(channel.fileno(), lambda: self._on_asked(channel))

    def _on_asked(self, channel: Channel) -> None:
        try:
            message = channel.receive()
        except BlockingIOError:
            return
        except (OSError, MembraneError):
            message = None  # it speaks for itself only
        self._unwatch(channel.fileno())
        del self._callers[channel.fileno()]
        if not isinstance(message, _Keep) or self._cell is None or len(message.paths) > MOST:
            channel.close()
            return
        there = self._there()
        lacking: tuple[str, ...] = ()
        if there is not None:
            wanted = {self._shown(path, there): None for path in message.paths}
            lacking = tuple(path for path in wanted if path and path not in there)
        if not lacking:
            self._answer(channel, "")
        elif self._nested:
            self._answer(channel, "with containers its command has copies of the view")
        else:
            self._asked.append((channel, lacking))
            self._cell.hide([Pin(path) for path in lacking])
            self.on_mounted()  # where the cell is gone nothing will tell

    def on_mounted(self) -> None:
        """The cell has mounted something, perhaps what others have asked for."""
        if not self._asked or self._cell is None:
            return
        there, waits = self._there(), self._cell.hiding
        for asked in list(self._asked):
            channel, wanted = asked
            lost = next((path for path in wanted if path not in there), "") if there is not None else ""
            if lost and waits:
                continue
            self._asked.remove(asked)
            self._answer(channel, f"{lost} is no directory there any more" if lost else "")

    def _there(self) -> frozenset[str] | None:
        """The mount points of this run; None: its command has ended, which takes nothing away any more."""
        assert self._cell is not None
        try:
            return self._cell.mount_points()
        except ProcessLookupError:
            return None

    def _answer(self, channel: Channel, why: str) -> None:
        try:
            channel.send(_Kept(why))
        except OSError:
            pass  # it is gone
        channel.close()

    def _shown(self, path: str, there: frozenset[str]) -> str:
        """Where the view of this run has ``path`` of the host; empty: nowhere, or below another mount."""
        for store, target in self._stores:
            place = target + path[len(store) :]
            if path != store and inside(path, store):
                above = [tree for tree in self._trees if tree != place and tree in there and inside(place, tree)]
                if above[-1:] == [target]:
                    return place
        return ""


def _stores(operations: Iterable[MountOp], state: str) -> tuple[tuple[str, str], ...]:
    """The directories of our state that the command can write, and where the view has them."""
    return tuple(
        (op.source, op.target)
        for op in operations
        if isinstance(op, Bind) and op.writable and not op.engine and inside(op.source, state)
    )


def _own(operations: Sequence[MountOp], stores: Iterable[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """What may be mount points in the stores, with the directories above, and those that are firm.

    By its path in the view, the one of the host.
    """
    places: dict[str, str] = {}
    firm: list[str] = []
    by_target = {target: store for store, target in stores}
    trees = [(number, op) for number, op in enumerate(operations) if isinstance(op, (Bind, Overlay, Tmpfs))]
    for number, op in enumerate(operations):
        holder = next((tree for at, tree in reversed(trees) if at < number and _holds(tree, op)), None)
        if not isinstance(holder, Bind) or by_target.get(holder.target) != holder.source:
            continue
        path = op.target
        if isinstance(op, Bind):
            certain = not op.optional and op.origin != "agent profile"
        else:
            certain = isinstance(op, Overlay) and not op.fallback
        if certain:
            firm.append(path)
        while path != holder.target:
            places.setdefault(path, holder.source + path[len(holder.target) :])
            path = path.rpartition("/")[0]
    return places, firm


def _holds(tree: MountOp, op: MountOp) -> bool:
    return op.target != tree.target and inside(op.target, tree.target)


def _others(directory: str, session: str) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(session, stores, places) of each other run that is there; what dead ones left is removed."""
    for name in os.listdir(directory):
        if name == session or not name.isalnum():
            continue
        path = f"{directory}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if not is_held(fd):
                _remove(path)  # under our lock: who was about to take it sees that it has no name
                _remove(f"{path}.sock")
                continue
            form, stores, places = marshal.loads(os.pread(fd, 4 << 20, 0))  # noqa: S302 - our own file, mode 0600
            if form != _FORMAT:
                raise ValueError(form)
            yield name, stores, places
        except EOFError:
            continue  # not whole yet: that run reads ours after this, pins our places and asks us for its own
        except (ValueError, TypeError):
            cause = f"session {name} was started by another version of membrane"
            raise HostError("keep mount points in place", cause, target=path, fix=("end it: membrane ps",)) from None
        finally:
            os.close(fd)


def _is_alive(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return is_held(fd)
    finally:
        os.close(fd)


def _confirm(places: Iterable[str], there: frozenset[str]) -> None:
    """Raise when one of them is no mount point."""
    for path in places:
        if path not in there:
            cause = "another run that shares this home has moved or removed its directory"
            raise HostError("keep mount points in place", cause, target=path, fix=("try again", "home: workspace"))


def _unkept(session: str, places: tuple[str, ...], why: str) -> HostError:
    return HostError(
        "keep mount points in place",
        f"session {session} shares {places[0]} with this run and does not keep it there: {why}",
        fix=("end that session: membrane ps", "home: workspace (a home for each workspace)"),
    )


def _nothing(*_what: object) -> None:
    """No loop runs yet."""


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _depth(path: str) -> tuple[int, str]:
    """Outer directories first: a bind copies what is mounted below it."""
    return path.count("/"), path
