"""Everyday changes of a repository's ``config`` where no mount covers it: judged, and our own copy put in place.

Theory of operation
-------------------
git writes ``config.lock`` and renames it over ``config`` (lockfile.c).  Both names are in a shared directory
(``supervised_names``), so the call is ours to do.  The lock file is read once, what was read is judged against what is
there now (``workspace.gitedit`` natively has the same judgement), and written to a new file beside it, which gets the
name by rename(2).  No rule of Landlock lets the command write that file, and no other call of the command is answered
meanwhile; so what is put in place is what was judged, and a reader outside sees the whole old or the whole new file.

A lock that git outside has made is left alone: its rename makes the configuration of what is in it then.  Those of the
command are known by their inodes, which are held, so that no other file gets the number.

The execute bit of such a file may be switched: ``git init`` does that to learn whether the file system keeps modes.
"""

from __future__ import annotations

import os
import stat

from .writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol

    class Place(Protocol):
        """As of ``supervised_names``."""

        parent: int
        name: bytes
        path: str
        slash: bool

        def open(self) -> int: ...

    Judgement = Callable[[str, bytes, bytes], str]  # absolute path, what is there, what would be; why not

MOST_READ = (64 << 10) + 1  # bytes of a configuration: one more than is judged (``workspace.gitedit.LARGEST``)


class Edits:
    """The configurations of one sandbox that may change.

    Args:
        files: absolute paths.
        judge: says why a change may not be; empty: it may.

    Attributes:
        put: by path, an O_PATH descriptor of the file that was put there last.
    """

    def __init__(self, files: Collection[str], judge: Judgement) -> None:
        self._files, self._judge = frozenset(files), judge
        self.put: dict[str, int] = {}
        self._locks = frozenset(f"{path}.lock" for path in files)
        self._made: dict[str, int] = {}  # by path, an O_PATH descriptor of the command's own lock

    def made(self, path: str, fd: int) -> None:
        """The command has made this file."""
        if path in self._locks:
            if (last := self._made.get(path)) is not None:
                os.close(last)
            self._made[path] = os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)

    def is_lock(self, path: str) -> bool:
        return path in self._locks

    def is_others(self, path: str, status: os.stat_result) -> bool:
        """Is it a lock that the command has not made?"""
        own = self._made.get(path)
        return path in self._locks and (own is None or not os.path.samestat(os.fstat(own), status))

    def takes(self, source: Place, target: Place, flags: int) -> bool:
        """Is a rename git's own of a lock file over such a file?"""
        plain = not flags and not source.slash and not target.slash
        return plain and target.path in self._files and source.path == target.path + ".lock"

    def carry(self, source: Place, target: Place) -> str:
        """Do it; the answer is why it was not done, empty: it was.

        Raises:
            OSError: a name is not there, or the file system refused.
        """
        new, lock = _read(source)
        old, before = _read(target)
        if why := self._judge(target.path, old, new):
            return why
        name = b"%s.%s.lock" % (target.name, os.urandom(8).hex().encode())
        made = self._write(target.parent, name, new, stat.S_IMODE(before.st_mode) & 0o777)
        carried = False
        try:
            if _same(target, before):
                os.rename(name, target.name, src_dir_fd=target.parent, dst_dir_fd=target.parent)
                carried = True
        finally:
            if not carried:
                os.close(made)
                os.unlink(name, dir_fd=target.parent)
        if not carried:
            return "it was changed meanwhile"
        if (last := self.put.get(target.path)) is not None:
            os.close(last)
        self.put[target.path] = made
        if _same(source, lock):
            os.unlink(source.name, dir_fd=source.parent)
        return ""

    def shown(self, place: Place) -> int:
        """The descriptor of ``put``, if that file is what is there; -1: it is not."""
        found = self.put.get(place.path, -1)
        return found if found >= 0 and _same(place, os.fstat(found)) else -1

    def switches(self, path: str, status: os.stat_result, mode: int) -> bool:
        """Is a change to ``mode`` that of execute bits of such a file?"""
        return (
            path in self._files and stat.S_ISREG(status.st_mode) and not (stat.S_IMODE(status.st_mode) ^ mode) & ~0o111
        )

    @staticmethod
    def _write(directory: int, name: bytes, content: bytes, mode: int) -> int:
        """An O_PATH descriptor of a new file on the disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            write_all(fd, content)
            os.fchmod(fd, mode)
            os.fdatasync(fd)  # no crash leaves an empty configuration
            return os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
        except BaseException:
            os.unlink(name, dir_fd=directory)
            raise
        finally:
            os.close(fd)


def _read(place: Place) -> tuple[bytes, os.stat_result]:
    """A regular file, read once; of anything else more than is judged."""
    found = place.open()
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            return bytes(MOST_READ), status
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = b""
            while len(data) < MOST_READ and (piece := os.read(fd, MOST_READ - len(data))):
                data += piece
        finally:
            os.close(fd)
        return data, status
    finally:
        os.close(found)


def _same(place: Place, status: os.stat_result) -> bool:
    """Is what was read still there, and unchanged?"""
    try:
        now = os.stat(place.name, dir_fd=place.parent, follow_symlinks=False)
    except OSError:
        return False
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return all(getattr(now, field) == getattr(status, field) for field in fields)
