"""Which commits of a repository are its owner's, and which a command of an earlier run has made or fetched.

Theory of operation
-------------------
What a commit from before the run has under a protected name may be made inside (``commits``).  A command of an earlier
run makes commits too, and what it could not make then must not be made now because it is in one.  So of each tree that
runs write our state has a record: the tips of the first run, whose history counts; the tips that were made outside
since, of which each counts by itself (what is behind them may be a command's: a branch is merged, a commit amended);
and those that came while a run was there.  Who made a commit nobody can tell, so the time does: what a ref has at the
end of a run and had not before is a command's, and what it has at the beginning and had not at the last end is the
owner's.  Where the last end is not known (a run was killed, or another one is there, or its refs could not all be
read) it is a command's as well.  ``note`` says the same of what an apply brings.

The record is of the directory ``.git`` that was there, by its inode: another one that was put there outside is new.
A run in a directory above has the tree in its view as well, and makes no record of it: since then nothing is known, but
of a ``.git`` that was made after the last such run had ended.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import stat
from _blake2 import blake2b

from ..errors import HostError
from ..host import syscalls
from ..host.private import make_private
from ..host.writing import write_all
from .commits import MOST_REFS, encoded, tips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

NAME = "commits"  # below our state
_FORMAT = 1
_LARGEST = 4 << 20  # bytes of a record


class _Known:
    """A record."""

    def __init__(self, git: int, first: tuple[bytes, ...]) -> None:
        self.git = git  # the inode of .git; 0: none was there
        self.first = first
        self.owners: tuple[bytes, ...] = ()  # the latest first
        self.commands: tuple[bytes, ...] = ()
        self.runs: tuple[str, ...] = ()  # whose end is not known

    def new(self, now: Collection[bytes]) -> tuple[bytes, ...]:
        """Those of which nothing is known."""
        known = {*self.first, *self.owners, *self.commands}
        return tuple(name for name in now if name not in known)


def begin(state: str, root: str, session: str, alive: Callable[[], Collection[str]] | None = None) -> bytes:
    """The commits of ``root``/.git that count in this run, as ``commits.Committed`` takes them.

    Args:
        state: ``$MEMBRANE_HOME``.
        root: the tree, resolved.
        session: its id, or what else it is that brings commits of a command.
        alive: says which sessions are there; None: that is not known.

    Raises:
        HostError: it cannot be written down.
    """
    try:
        return _begin(state, root, session, alive)
    except OSError as error:
        cause = error.strerror or ""
        raise HostError("write down which commits are yours", cause, target=error.filename or state) from None


def _begin(state: str, root: str, session: str, alive: Callable[[], Collection[str]] | None) -> bytes:
    with _Record(state, root) as record:
        now, whole = tips(root)
        git = _inode(root)
        known = record.read()
        seen_above = record.is_overlooked(root)
        if known is None or (known.git != git and not known.runs):
            known = _Known(git, () if record.damaged or seen_above else tuple(now))
        new = known.new(now)
        if known.runs or not whole or record.damaged or seen_above:
            known.commands = (*(name for name in known.commands if name in now), *new)
        else:
            known.owners = (*new, *known.owners)[:MOST_REFS]
            known.commands = tuple(name for name in known.commands if name in now)
        known.git = git
        there = known.runs if alive is None or not known.runs else alive()
        known.runs = (*(each for each in known.runs if each in there and each != session), session)
        record.write(known)
    return encoded(known.first, known.owners)


def note(state: str, root: str, session: str = "") -> None:
    """What came since the last look is a command's.

    Args:
        session: no process of this run is left.

    Raises:
        HostError, OSError: it cannot be written down; of a run it counts as a command's at the next beginning then.
    """
    with _Record(state, root) as record:
        known = record.read()
        if known is None:
            return
        now, whole = tips(root)
        known.commands = (*known.commands, *known.new(now))
        known.git = _inode(root)
        if whole:
            known.runs = tuple(each for each in known.runs if each != session)
        record.write(known)


def _inode(root: str) -> int:
    try:
        found = os.stat(f"{root}/.git", follow_symlinks=False)
    except OSError:
        return 0
    return found.st_ino if stat.S_ISDIR(found.st_mode) else 0


def _made(root: str) -> int:
    """When the directory ``.git`` was made, in ns; 0: that is not known."""
    try:
        return syscalls.born(f"{root}/.git") if _inode(root) else 0
    except OSError:
        return 0


def _written(path: str) -> int:
    """When, in ns; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0


class _Record:
    """The record of a tree, read and written by one process at a time."""

    def __init__(self, state: str, root: str) -> None:
        self._directory = f"{state}/{NAME}"
        self._path = self._of(root)
        self._lock = -1
        self.damaged = False  # there is one that cannot be read

    def _of(self, root: str) -> str:
        return f"{self._directory}/{blake2b(os.fsencode(root), digest_size=16).hexdigest()}"

    def __enter__(self) -> _Record:
        make_private(self._directory)
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # for the time of one small file
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def is_overlooked(self, root: str) -> bool:
        """Has a run in a directory above been there since this record was written?"""
        own, made = _written(self._path), _made(root)
        while (root := os.path.dirname(root)) != "/":
            path = self._of(root)
            at = _written(path)
            if at and ((above := self.read(path)) is None or above.runs or (at >= own and at >= made)):
                return True
        return False

    def read(self, path: str = "") -> _Known | None:
        try:
            fd = os.open(path or self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            form, git, first, owners, commands, runs = marshal.loads(os.pread(fd, _LARGEST, 0))  # noqa: S302 - our own
            if form != _FORMAT:
                raise ValueError(form)
        except (EOFError, ValueError, TypeError):
            self.damaged = self.damaged or not path
            return None
        finally:
            os.close(fd)
        known = _Known(git, first)
        known.owners, known.commands, known.runs = owners, commands, runs
        return known

    def write(self, known: _Known) -> None:
        data = marshal.dumps((_FORMAT, known.git, known.first, known.owners, known.commands, known.runs))
        made = f"{self._path}.new"
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(made, self._path)
