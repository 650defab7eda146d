"""The tracer: one process per session that reads the sources of events and writes them down.

Theory of operation
-------------------
The supervisor forks it beside the launcher, before it holds a secret.  It keeps what the fork gave it (the policy,
the loaded code) and nothing else: no other descriptor, no environment, no right to gain any; it is outside of every
namespace of the sandbox, so the command can neither see nor signal nor stop it.  It may not look for a process outside
of the sandbox either: it is given what it reads by descriptor.

One loop serves the sources and the control socket (``messages``), whose end asks it to finish and to exit.

Two sources: eBPF (``ebpf``) where the caller may have it, which is found out while the sandbox is made, and the
command's notifications (``notify``).  With both, events come from eBPF and refusals from the notifications, which
alone can refuse; without eBPF everything comes from them.

Nothing in the loop waits for the supervisor: what it does not take stays in a bounded buffer, refusals in one of
their own, and what does not fit is counted and reported as ``EventsLost``.  While the tracer is slow the command waits;
when the tracer is dead its calls fail with ENOSYS, and the supervisor kills it.

``Tracer`` is the supervisor's side, ``Source`` what the loop reads.
"""

from __future__ import annotations

import _socket
import gc
import os
import resource
import select
import sys
import time

from .. import clock
from ..errors import HostError, InternalError, MembraneError
from ..events import EventsLost, encode
from ..host import syscalls as sc
from ..host.channel import HELD_DURING_FORK, SIGKILL, default_signals, die_with, failure, pair
from ..host.confine import give_up_privileges
from ..host.facts import effective_capabilities
from ..host.ready import ready
from ..lines import json_text
from ..messages import Failure
from ..value import Value
from . import messages as m
from .edits import Edits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn, Protocol

    from ..host.channel import Channel
    from ..policy.model import Policy
    from ..record.decode import Decoder
    from ..workspace.creation import Row
    from .ebpf import EbpfSource
    from .notify import Notifications

    class Source(Protocol):
        """Something that makes events."""

        def fileno(self) -> int:
            """Readable when ``drain`` has something to do."""

        def drain(self, write: Callable[[bytes], None]) -> int:
            """Take what is there, within bounds, and write it down; how much there was."""

        def losses(self) -> dict[str, int]:
            """What was lost since the last question, by type of event."""

        def close(self) -> None: ...

    class Store(Protocol):
        """Where the record goes."""

        lost: int  # records that could not be written

        def append(self, data: bytes, records: int = 0) -> None: ...

        def close(self) -> None: ...
else:
    import _signal

LIVE_ROOM = 1 << 20  # bytes of events that wait for the supervisor
REFUSED_ROOM = 1 << 18  # bytes of refusals that do
LARGEST_BATCH = 48 << 10  # bytes of one message; a longer line is in the record only
LARGEST_WRITE = 64 << 10  # bytes of lines that are written to the record at once
END = 30.0  # seconds for the tracer to write its last events, and to take a word, on a busy machine
ATTACH = 60.0  # seconds for it to take the listener, on a busy machine
CAP_DAC_READ_SEARCH = 1 << 2
CAP_BPF = 1 << 39


class Scope(Value):
    """What the source must know about one session."""

    session: str
    policy: Policy
    workspace: str
    # Trees in which protected names may not be made, the workspace among them, and the path rules of each (``Row``).
    roots: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    uid: int  # kernel ids of the command's processes
    gid: int
    groups: tuple[int, ...]
    nested: bool
    # Several commands, each perhaps with a pid namespace and a view of its own: processes go by the host's numbers.
    shared: bool = False
    reads: bool = False  # opens for reading and look-ups of programs are wanted
    awaited: tuple[str, ...] = ()  # paths that may not be made
    set_ids: bool = False  # the command may make set-group-ID files
    strips: bool = False  # set-user-ID files are made without the bit (``setids``)
    # Of a command with capabilities over files and ids (``plan.system``): the trees of the host in which only one owner
    # is known, so that chown(2) can change nothing.  None: it has none.
    owned: tuple[str, ...] | None = None
    ids: tuple[int, int] = (0, 0)  # uid and gid as the command's user namespace shows them
    tips: tuple[tuple[str, bytes], ...] = ()  # tree, commits that its repository had (``workspace.commits``)
    # Tree, and what ``workspace.beside.Beside`` takes for it.
    beside: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = ()


class Tracer:
    """The tracer of one session, as its supervisor sees it; made before the launch.

    Args:
        scope: the session; ``roots`` come with ``attach``.
        live: send every event, not only refusals.
        store: makes the place of the record of a source, in the tracer; None: no record is kept.
        take: is given each line.
    """

    def __init__(
        self, scope: Scope, *, live: bool, store: Callable[[str], Store] | None, take: Callable[[bytes], object]
    ) -> None:
        ours, theirs = pair(m.TO_TRACER, m.FROM_TRACER)
        self._channel = ours
        self._take = take
        self.control = ours.fileno()
        self.counts: dict[str, int] = {}
        self.sources: tuple[str, ...] = ()  # that it reads, best first
        self.unwritten = 0  # events that found no room on the disk
        self.error = ""
        self._finished = False  # it has written everything
        self._ending = False  # it was asked for that, and had ``END`` for it
        self.on_synced: Callable[[int], None] | None = None
        self.awaited: tuple[str, ...] = ()  # paths that may not be made, as configuration outside names them
        self.tips: tuple[tuple[str, bytes], ...] = ()  # as ``Scope`` has them
        self.beside: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = ()  # as well
        self.on_edit: Callable[[m.CallWaits], None] | None = None
        supervisor = os.getpid()
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, HELD_DURING_FORK)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _child(theirs, supervisor, scope, live, store)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def prepare(self) -> None:
        """Let it load what it needs: until now the processors were the launcher's.  ``attach`` does it else."""
        try:
            self._channel.send(m.Prepare())
        except OSError:
            pass  # ``attach`` reports it

    def attach(
        self, process: int, listener: int, root: int, roots: tuple[tuple[str, tuple[Row, ...]], ...], table: int = -1
    ) -> tuple[tuple[str, ...], str]:
        """Give it the command's process, the listener (-1: there is none) and the sandbox's root, and wait for it.

        ``table``: a socket for ``host.unixsockets.Table``; -1: connect(2) to the sockets of others is not refused here.

        The descriptors are closed here.

        Returns:
            The sources that it reads, best first, perhaps none; why eBPF is not among them.

        Raises:
            HostError: it failed.
        """
        optional = [None if fd < 0 else fd for fd in (listener, table)]
        watched = m.Watched(roots, self.awaited, self.tips, self.beside)
        try:
            self._channel.send(m.Attach(watched, process, self.on_edit is not None, optional[0], root, optional[1]))
        except OSError:
            pass  # reported below
        finally:
            for fd in (listener, root, table):
                if fd >= 0:
                    os.close(fd)
        message = self._channel.receive() if ready((self._channel.fileno(),), seconds=ATTACH)[0] else None
        if not isinstance(message, m.Attached):
            cause = message.cause if isinstance(message, Failure) else "it ended early"
            raise HostError("attach the tracer", cause)
        self._channel.setblocking(False)
        self.sources = message.sources
        return message.sources, message.why

    def read(self) -> bool:
        """Take what it sent; False when it has ended."""
        try:
            message = self._channel.receive()
        except BlockingIOError:
            return True
        if isinstance(message, m.Lines):
            for line in message.text.split(b"\n"):
                if line:
                    self._take(line)
        elif isinstance(message, m.Totals):
            self.counts = dict(zip(message.types, message.counts, strict=True))
            self.unwritten = message.unwritten
            self._finished = True
        elif isinstance(message, m.CallWaits):
            if self.on_edit is not None:
                self.on_edit(message)
        elif isinstance(message, m.Synced):
            if self.on_synced is not None:
                self.on_synced(message.number)
        elif isinstance(message, Failure):
            self.error = message.cause
        elif message is not None:
            raise InternalError("read the tracer", f"unexpected message {type(message).__name__}")
        return message is not None

    def sync(self, number: int) -> bool:
        """Ask for ``on_synced(number)`` once everything that was seen until now was sent; False when it has ended."""
        try:
            try:
                self._channel.send(m.Sync(number))
            except BlockingIOError:  # many ask, and it reads slowly
                ready((), (self._channel.fileno(),), seconds=END)
                self._channel.send(m.Sync(number))
        except OSError:
            return False
        return True

    def join(self, listener: int) -> None:
        """Give it the listener of a second filter, before a process has that which may run; closed here.

        Raises:
            HostError: it has ended.
        """
        try:
            self._channel.send(m.Join(listener))
        except OSError as error:
            raise HostError("trace what joins the sandbox", error.strerror or "the tracer has ended") from None
        finally:
            os.close(listener)

    def follow(self, process: int) -> None:
        """Trace a process that joins the sandbox, and its descendants; ``sync`` tells when that is so."""
        try:
            self._channel.send(m.Follow(process))
        except OSError:
            pass  # its end is reported

    def decide(self, number: int, what: int, why: str) -> None:
        """What to do with a call that waits: 0, an errno or ``edits.GO_ON``.  Without a word it is refused in time."""
        try:
            self._channel.send(m.Decide(number, what, why[:400]))
        except OSError:
            pass

    def finish(self) -> bool:
        """After the last process of the sandbox: let it write what it holds, for at most ``END``.  False: it did not.

        It then lets go of the kernel's programs, which takes a while; ``stop`` waits for that.
        """
        if not self.pid or self._ending:
            return self._finished
        self._ending = True  # one that did not answer, or sent what it may not, is not waited for again
        deadline = time.monotonic() + END
        try:
            self._channel.socket.shutdown(_socket.SHUT_WR)
            self._channel.setblocking(False)
            while (left := deadline - time.monotonic()) > 0:
                if ready((self._channel.fileno(),), seconds=left)[0] and not self.read():
                    break
        except OSError:
            pass
        return self._finished

    def stop(self) -> bool:
        """End it, and wait for its end.  False when it had to be killed, or failed.  May be called again."""
        if not self.pid:
            return True
        if not self._finished:
            self.finish()
        ended = bool(ready((self.pidfd,), seconds=END if self._finished else 0.0)[0])
        if not ended:
            os.kill(self.pid, SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.pidfd)
        self._channel.close()
        self.pid, self.pidfd, self.control = 0, -1, -1
        return ended and status == 0


# ---------------------------------------------------------------- the process


def _child(
    channel: Channel, supervisor: int, scope: Scope, live: bool, store: Callable[[str], Store] | None
) -> NoReturn:
    status = 1
    try:
        os.setsid()  # signals and stops of the caller's terminal and job are the supervisor's
        die_with(supervisor)
        from .permission import why_not

        why = why_not()
        if why:  # there is little to do, and time for it until ``attach``: the processors are the launcher's
            ready((channel.fileno(),))
        default_signals()
        _only(channel.fileno())
        sc.erase_environment()
        os.umask(0o077)
        sys.dont_write_bytecode = True  # with this mask no other user could read what is cached
        os.chdir("/")
        # A descriptor for each process of the sandbox that is alive.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        kernel = why or _kernel_events()  # the supervisor goes on meanwhile
        # A root caller's sandbox has files that only another uid may look at; the tracer of any other caller needs
        # none.
        keep = 0 if os.geteuid() else CAP_DAC_READ_SEARCH
        if not isinstance(kernel, str) and kernel.needs_capability:
            keep |= CAP_BPF
        # The root of a container may lack some: it keeps what it has, and its own processes need none.
        give_up_privileges(keep & effective_capabilities())
        gc.freeze()
        gc.set_threshold(20_000)  # events wait in a queue: with the usual 700 it would be gone through again and again
        gc.enable()
        from .notify import Notifications

        loop = _Loop(Notifications, kernel, channel, scope, live, store)
        loop.run()
        channel.close()  # the supervisor need not wait for the rest
        loop.detach()
        status = 0
    except BaseException as error:
        try:
            channel.send(failure("trace", error))
        except OSError:
            pass
    finally:
        os._exit(status)


def _kernel_events() -> EbpfSource | str:
    """The source with its slot and rings, or why there is none: whatever fails, there are the notifications."""
    try:
        from . import ebpf

        source = ebpf.best_source()
        if not isinstance(source, str):
            source.reserve()
        return source
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return error.headline() if isinstance(error, MembraneError) else f"{type(error).__name__}: {error}"


def _only(channel: int) -> None:
    """Keep the control socket and the standard error; nothing is read and nothing said elsewhere."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(null, fd, inheritable=False)
    first = 3
    if channel > first:
        sc.close_range(first, channel - 1)
    sc.close_range(channel + 1)


class _Loop:
    def __init__(
        self,
        notifications: type[Notifications],
        kernel: EbpfSource | str,
        channel: Channel,
        scope: Scope,
        live: bool,
        store: Callable[[str], Store] | None,
    ) -> None:
        self._notifications = notifications
        self._kernel = None if isinstance(kernel, str) else kernel
        self._why = kernel if isinstance(kernel, str) else ""  # there is no eBPF
        self._channel = channel
        self._scope = scope
        self._live = live
        self._make_store = store
        self._store: Store | None = None  # of the notifications, and of what the tracer itself has to say
        self._spans: Store | None = None
        self._stored = 0  # events of the kernel that are written down
        self._decoder: Decoder | None = None
        self._source: Notifications | None = None
        self._joined: list[Notifications] = []  # of filters of what joined later; they end with the sandbox
        self._beside: Callable[[int], Notifications] | None = None  # makes one
        self._unwritten: list[bytes] = []  # lines for the record, until the end of the turn
        self._unwritten_size = 0
        self._lines: list[bytes] = []  # to the supervisor
        self._refusals: list[bytes] = []
        self._room, self._refused_room = LIVE_ROOM, REFUSED_ROOM
        self._lost: dict[str, int] = {}  # not sent
        self._lost_since = 0
        self._fitted = False  # the last line was sent with the others
        self._poll = select.poll()
        self._ends: dict[Notifications, int] = {}  # what tells ends of processes, while it is waited for
        self._wants_write = False
        self._totals: dict[str, int] = {}
        self._edits: list[m.CallWaits] = []  # not sent
        self._asked: list[int] = []  # numbers of ``Sync``, to be answered after what is held

    def run(self) -> None:
        channel = self._channel
        self._poll.register(channel.fileno(), select.POLLIN)
        finishing = False
        while not finishing:
            source = self._source
            due = None
            if source is not None:
                due = source.timeout()
                self._watch_ends(source, source.ends())
            for each in self._joined:
                self._watch_ends(each, each.ends())
                wanted = each.timeout()
                due = wanted if due is None else due if wanted is None else min(due, wanted)
            kernel = -1 if self._kernel is None or self._spans is None else self._kernel.fileno()
            kernel_is_ready = False
            for fd, event in self._poll.poll(None if due is None else 1000 * due):
                if fd == channel.fileno() and event & (select.POLLIN | select.POLLHUP):
                    finishing = not self._control()
                elif fd == kernel:
                    kernel_is_ready = True
            if source is not None:  # first: a call waits for an answer
                source.drain(self._write)
                if source.ended:
                    self._watch_ends(source, -1)
                    self._poll.unregister(source.fileno())
                    self._finish(source)
                    source = None
            for each in tuple(self._joined):
                each.drain(self._write)
                if each.ended:
                    self._joined.remove(each)
                    self._watch_ends(each, -1)
                    self._poll.unregister(each.fileno())
                    self._finish_joined(each)
            if kernel_is_ready and self._kernel is not None:
                self._kernel.drain(self._write_spans)
            if self._asked:
                self._report_held()
            if self._unwritten:
                self._record()
            if self._lines or self._refusals or self._asked or self._edits or self._lost or self._wants_write:
                self._flush()
        for each in self._joined:
            while each.drain(self._write):
                pass
            self._finish_joined(each)
        if self._source is not None:
            # The supervisor is done with the sandbox; processes that it could not end are on their own now.
            while self._source.drain(self._write):
                pass
            self._finish(self._source)
        if self._kernel is not None and self._spans is not None:
            self._kernel.finish(self._write_spans)
        self._channel.setblocking(True)
        self._channel.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _PATIENCE)
        if self._lost:
            self._report_losses({})
        for store in (self._store, self._spans):
            if store is not None:
                store.close()
        unwritten = sum(store.lost for store in (self._store, self._spans) if store is not None)
        try:
            while self._lines or self._refusals:
                self._send_batch()
            channel.send(m.Totals(tuple(self._totals), tuple(self._totals.values()), unwritten))
        except OSError:
            pass  # the supervisor is gone; the record is not

    def _watch_ends(self, source: Notifications, fd: int) -> None:
        watched = self._ends.get(source, -1)
        if fd != watched:
            if watched >= 0:
                self._poll.unregister(watched)
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
            self._ends[source] = fd

    def detach(self) -> None:
        """Let go of the kernel's programs."""
        if self._kernel is not None:
            self._kernel.close()

    def _control(self) -> bool:
        """One message; False at the end of the stream."""
        message = self._channel.receive()
        if isinstance(message, m.Sync):
            self._asked.append(message.number)
        elif isinstance(message, m.Decide):
            for source in self._all():
                source.decided(message)  # who does not know the number takes no notice
        elif isinstance(message, m.Attach):
            self._attach(message)
        elif isinstance(message, m.Join):
            self._join(message.listener)
        elif isinstance(message, m.Follow):
            if self._kernel is not None and self._spans is not None:
                self._kernel.follow(message.process)
        elif not isinstance(message, m.Prepare):
            return False
        return True

    def _attach(self, attach: m.Attach) -> None:
        sources = []
        if self._kernel is not None and self._follow(self._kernel, attach.process):
            sources.append("ebpf")
        if attach.listener is not None:
            sources.append("notify")
            watched = attach.watched
            scope = self._scope.replace(
                roots=watched.roots, awaited=watched.awaited, tips=watched.tips, beside=watched.beside
            )
            quiet = self._spans is not None
            table = None
            if attach.table is not None:
                from ..host.unixsockets import Table

                table = Table(attach.table)
            first: Notifications | None = None

            def beside(listener: int) -> Notifications:
                return self._notifications(
                    scope,
                    listener,
                    attach.root if first is None else os.dup(root),
                    self._refused,
                    refusals_only=quiet,
                    edits=Edits(self._ask) if attach.edits else None,
                    table=table,
                    first=first,
                )

            root = attach.root
            first = self._source = beside(attach.listener)
            self._beside = beside
            self._poll.register(self._source.fileno(), select.POLLIN)
            if self._make_store is not None:
                self._store = self._make_store("notify")
        else:
            os.close(attach.root)
        self._channel.send(m.Attached(tuple(sources), self._why[:4096]))
        self._channel.setblocking(False)

    def _join(self, listener: int) -> None:
        if self._beside is None:
            os.close(listener)  # nothing would answer: its calls fail with ENOSYS
            return
        source = self._beside(listener)
        self._joined.append(source)
        self._poll.register(source.fileno(), select.POLLIN)

    def _all(self) -> list[Notifications]:
        return [*((self._source,) if self._source is not None else ()), *self._joined]

    def _ask(self, message: m.CallWaits) -> None:
        self._edits.append(message)  # ``Edits`` bounds their number

    def _follow(self, kernel: EbpfSource, process: int) -> bool:
        """Begin with eBPF; False when that fails, for which there is a second source."""
        from . import ebpf

        try:
            full = self._scope.reads
            kernel.open(ebpf.Scope(process, noise=full, repeats=full))
        except Exception as error:
            self._why = _reason(error)
            kernel.close()
            self._kernel = None
            return False
        self._spans = self._make_store("ebpf") if self._make_store is not None else _Nowhere()
        self._poll.register(kernel.fileno(), select.POLLIN)
        return True

    def _finish(self, source: Notifications) -> None:
        source.finish(self._write)
        self._record()
        self._report_losses(source.losses())
        self._totals = dict(source.counts)
        source.close()
        self._source = None

    def _finish_joined(self, source: Notifications) -> None:
        source.finish(self._write)
        self._record()
        self._report_losses(source.losses())
        if self._source is None:
            self._totals = dict(source.counts)  # which all count together
        source.close()

    def _write_spans(self, piece: bytes) -> None:
        """Raw records of the kernel; they are read here only if they are waited for."""
        assert self._kernel is not None and self._spans is not None
        written = self._kernel.written
        self._spans.append(piece, max(1, written - self._stored))
        self._stored = written
        if not self._live:
            return
        from ..record.decode import Decoder

        self._decoder = self._decoder or Decoder(self._scope.workspace)
        for at, event, process in self._decoder.decode(piece):
            record = encode(event, time=clock.iso(at), session=self._scope.session, seq=0, process=process)
            line = (json_text(record) + "\n").encode("ascii")
            if len(line) <= min(self._room, LARGEST_BATCH):
                self._room -= len(line)
                self._lines.append(line)
            else:
                self._not_sent("event")

    # ------------------------------------------------------------ lines

    def _write(self, line: bytes) -> None:
        if self._store is not None:
            self._unwritten.append(line)
            self._unwritten_size += len(line)
            if self._unwritten_size >= LARGEST_WRITE:
                self._record()
        self._fitted = self._live and len(line) <= min(self._room, LARGEST_BATCH)
        if self._fitted:
            self._room -= len(line)
            self._lines.append(line)
        elif self._live:
            self._not_sent("event")

    def _record(self) -> None:
        """Write down the lines of this turn; one at a time would be a system call for each event."""
        if self._unwritten and self._store is not None:
            self._store.append(b"".join(self._unwritten))
        self._unwritten, self._unwritten_size = [], 0

    def _refused(self, line: bytes) -> None:
        """A refusal, written just now: it is sent also when a flood has left no room for events."""
        if self._fitted:
            return
        if len(line) <= min(self._refused_room, LARGEST_BATCH):
            self._refused_room -= len(line)
            self._refusals.append(line)
            if self._live:
                self._lost["event"] -= 1  # as which ``_write`` has just counted it
        elif not self._live:
            self._not_sent("AccessDenied")

    def _not_sent(self, kind: str) -> None:
        self._lost[kind] = self._lost.get(kind, 0) + 1
        self._lost_since = self._lost_since or clock.time_ns()

    def _report_held(self) -> None:
        for source in self._all():
            while source.drain(self._write):
                pass
            source.report_repetitions(self._write)
        if self._kernel is not None and self._spans is not None:
            self._kernel.drain(self._write_spans)

    def _flush(self) -> None:
        """Send what the supervisor takes now."""
        try:
            while self._edits:  # first: a call waits
                self._channel.send(self._edits[0])
                del self._edits[0]
            while self._lines or self._refusals:
                self._send_batch()
            while self._asked:
                self._channel.send(m.Synced(self._asked[0]))
                del self._asked[0]
        except BlockingIOError:
            pass
        except OSError:
            self._lines, self._refusals = [], []  # the end of the stream comes next
        if self._lost and self._room > LIVE_ROOM // 2:
            self._report_losses({})
        waits = bool(self._lines or self._refusals or self._asked or self._edits)
        if waits != self._wants_write:
            self._wants_write = waits
            self._poll.modify(self._channel.fileno(), select.POLLIN | (select.POLLOUT if waits else 0))

    def _send_batch(self) -> None:
        lines = self._refusals or self._lines
        size = count = 0
        while count < len(lines) and size + len(lines[count]) <= LARGEST_BATCH:
            size += len(lines[count])
            count += 1
        self._channel.send(m.Lines(b"".join(lines[:count])))
        del lines[:count]
        if lines is self._refusals:
            self._refused_room += size
        else:
            self._room += size

    def _report_losses(self, more: dict[str, int]) -> None:
        now = clock.time_ns()
        for kind, count in (*self._lost.items(), *more.items()):
            if not count:
                continue
            start = clock.iso(self._lost_since or now)
            event = EventsLost(kind, count, start, clock.iso(now), source="notify")
            record = encode(event, time=clock.iso(now), session=self._scope.session, seq=0)
            line = (json_text(record) + "\n").encode("ascii")
            if self._store is not None:
                self._record()  # before it: the record is in order
                self._store.append(line)
            self._refusals.append(line)
        self._lost, self._lost_since = {}, 0


class _Nowhere:
    """The record of a session that keeps none."""

    lost = 0

    def append(self, data: bytes, records: int = 0) -> None:
        pass

    def close(self) -> None:
        pass


_PATIENCE = (20).to_bytes(8, "little") + bytes(8)  # seconds in which the supervisor does not read: a struct timeval
