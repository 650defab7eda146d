"""Who may write which trees of the host: sandboxes that run, and applies whose stage is in a workspace.

Theory of operation
-------------------
An apply judges what is in its stage and gives it its name afterwards (``transaction``).  Where the stage has to be in
the workspace, a sandbox that may write there could change it in between, and so have anything put in place under any
name.  So the two exclude each other, by *claims*: a file for each, below ``changes/.writers``, that its owner holds
with flock(2) and that names its trees.

Each first makes its claim and then looks at those of the other kind.  Of two that begin at one moment at least one
sees the other, which is enough: who sees one gives up.  Any number of sandboxes may share a tree, and of two applies
each has a stage of its own.

The kernel drops the lock whatever ends its holder; what the holder leaves counts until it is gone, and the next claim
removes it then.  Of a session that is its last processes, which end a moment later; of an apply its stage, which is
brought to an end by ``--continue`` or ``--abort``: what a sandbox had written to it meanwhile would be put in place as
judged.

Trees are compared by identity (stat(2)), as one directory has several names.  A sandbox is in the way that may write
the workspace or a directory above it: from one below nothing leads to the stage, which is at its top.  A claim that
cannot be read is in everybody's way.  Sessions with another state directory have their claims elsewhere, and are not
found.
"""

from __future__ import annotations

import fcntl
import marshal
import os

from ..errors import HostError
from ..host.private import is_held, make_private
from ..host.writing import write_all
from .store import InUse, started_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Literal, Self, TypeAlias

    Kind: TypeAlias = Literal["session", "apply"]

PLACE = ".writers"  # beside the change sets
LARGEST = 1 << 20  # bytes of a claim
_NEW = ".new-"


class Claim:
    """What one session, or one apply, holds until ``close``.

    Args:
        changes: the directory of the change sets.
        kind: "session" or "apply".
        name: the id of the session, or the name of the change set.
        trees: absolute paths; of directories, or of single files.
        stage: of an apply: its path, which need not be there yet.

    Raises:
        InUse: a tree of the session is, or holds, one of the apply; nothing is left.
        HostError: it cannot be written.
    """

    def __init__(self, changes: str, kind: Kind, name: str, trees: Iterable[str], stage: str = "") -> None:
        self._directory = f"{changes}/{PLACE}"
        self._path = f"{self._directory}/{kind}-{os.path.basename(stage) or name}"
        self._fd = -1
        make_private(self._directory)
        new = f"{self._directory}/{_NEW}{os.urandom(8).hex()}"
        self._trees = tuple(trees)
        self._first = marshal.dumps((name, self._trees, stage))
        try:
            self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            write_all(self._fd, self._first + marshal.dumps(()), 0)
            os.rename(new, self._path)  # with its lock: no process sees one that is not held
        except OSError as error:
            if self._fd >= 0:
                os.close(self._fd)
            _unlink(new)
            raise HostError("write down who writes the workspace", error.strerror or "", target=self._path) from None
        try:
            for other in _others(self._directory, "apply" if kind == "session" else "session"):
                other.refuse(self._trees, name)
            _sweep(self._directory, kind)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_until(self, processes: Iterable[int]) -> None:
        """Whatever ends us, it counts until the end of these processes.

        Raises:
            HostError: that cannot be written down.
        """
        last = tuple((pid, started) for pid in processes if (started := started_at(pid)))
        try:
            write_all(self._fd, marshal.dumps(last), len(self._first))
        except OSError as error:
            raise HostError("write down who writes the workspace", error.strerror or "", target=self._path) from None

    def leave(self) -> None:
        """As if its owner had been killed: what is left counts."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def close(self) -> None:
        """It is over, and nothing of it is left."""
        if self._fd >= 0:
            _unlink(self._path)
            self.leave()


class _Other:
    """A claim that another process has, or had."""

    def __init__(self, kind: str, name: str, trees: tuple[str, ...], held: bool, known: bool) -> None:
        self._kind, self._name, self._trees, self._held, self._known = kind, name, trees, held, known

    def refuse(self, trees: tuple[str, ...], name: str) -> None:
        """Raise ``InUse`` when it is in the way of one that has ``trees``; ``name``: of that one."""
        session = self._kind == "session"
        written, staged = (self._trees, trees) if session else (trees, self._trees)
        where = next((its for its in staged for tree in written if is_above(tree, its)), "")
        if self._known and not where:
            return
        where = where or "the workspace"
        if session:
            raise InUse(
                "make the changes ready",
                f"the session {self._name} can write {where}, which holds what was judged until it is in place",
                fix=(
                    "end that session, then apply again   # membrane ps",
                    "set MEMBRANE_HOME to a directory on the workspace's file system before the review",
                ),
            )
        if self._held:
            cause = f"the change set {self._name} is being put in place in {where}"
            raise InUse("start in the workspace", cause, fix=("wait until that has ended",))
        raise InUse(
            "start in the workspace",
            f"an apply of the change set {self._name} was interrupted, and what it had judged is still in {where}",
            fix=(f"membrane apply --continue {self._name}", f"membrane apply --abort {self._name}"),
        )


def _others(directory: str, kind: Kind) -> Iterator[_Other]:
    """The claims of one kind that count; those that do not are removed."""
    for entry in os.listdir(directory):
        if not entry.startswith(f"{kind}-"):
            continue
        path = f"{directory}/{entry}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            continue  # it has ended meanwhile
        except OSError as error:
            raise HostError("look who writes the workspace", error.strerror or "", target=path) from None
        try:
            held = is_held(fd)
            try:
                name, trees, stage, last = _read(fd)
            except (EOFError, ValueError, TypeError):
                yield _Other(kind, entry.partition("-")[2], (), held, False)
                continue
        finally:
            os.close(fd)
        if held or (os.path.lexists(stage) if stage else any(started_at(pid) == began for pid, began in last)):
            yield _Other(kind, name, trees, held, True)
        else:
            _unlink(path)


def _sweep(directory: str, kind: Kind) -> None:
    """Remove the claims of one kind that do not count any more."""
    try:
        for _one in _others(directory, kind):
            pass  # any number of this kind may be there
    except HostError:
        pass  # one that cannot be opened stays, and the other kind says so


def _read(fd: int) -> tuple[str, tuple[str, ...], str, tuple[tuple[int, str], ...]]:
    import io

    file = io.BytesIO(os.pread(fd, LARGEST, 0))
    name, trees, stage = marshal.load(file)  # noqa: S302 - our own file, in a directory of mode 0700
    return name, trees, stage, marshal.load(file)  # noqa: S302 - the same


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def is_above(upper: str, path: str) -> bool:
    """Is the file ``upper`` itself, or a directory above, ``path``?  By identity."""
    try:
        wanted = os.stat(upper)
    except OSError:
        return False
    place = os.path.realpath(path)
    while True:
        try:
            if os.path.samestat(os.stat(place), wanted):
                return True
        except OSError:
            pass
        parent = os.path.dirname(place)
        if parent == place:
            return False
        place = parent
