"""Metadata of files of a sandbox without mounts: modes, owners, times and attributes are changed by us, from outside.

Theory of operation
-------------------
Landlock has no right for chmod(2), chown(2), utimensat(2) and setxattr(2) (Documentation/userspace-api/landlock.rst,
"Current limitations"): it refuses none of them, on whichever file the caller owns.  So the command's filter asks, and
``Metadata`` does what was asked: it opens the file as the process would (O_PATH), and what that is, and not its name,
is judged and changed.  The file has to be one that the command may write (``supervised_names.Names``).  Nothing is let
go on, so nothing that changes during the call counts.

The keeper has no capability either (``inside.keeper``), so it may what the command might.
"""

from __future__ import annotations

import errno
import os

from . import syscalls as sc
from .caller import PATH_MAX, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .notify import Call

LARGEST_VALUE = 65536  # bytes of an extended attribute (linux/limits.h, XATTR_SIZE_MAX)
LONGEST_NAME = 256  # bytes of its name, with the NUL
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0xFFFFFF9C, 0x100, 0x1000
_OWN = (b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/")  # as open(2) has them for a descriptor


class Metadata:
    """The calls on metadata of one sandbox; each method takes a call and gives the value that it returns.

    Args:
        may: says of a file's path and status whether the command may change it.
        stands_for: gives for a path the copy that the command has of it and can change; empty: there is none.
        read: bytes of the caller's memory: call, address, size; fewer where it ends.
        may_switch: says of a file's path and status whether the command may give it a mode, where ``may`` says no.
    """

    def __init__(
        self,
        may: Callable[[str, os.stat_result], bool],
        read: Callable[[Call, int, int], bytes],
        stands_for: Callable[[str], str] = lambda _path: "",
        may_switch: Callable[[str, os.stat_result, int], bool] = lambda _path, _status, _mode: False,
    ) -> None:
        self._may, self._may_switch = may, may_switch
        self._read = read
        self._stands_for = stands_for

    def on_chmod(self, call: Call) -> int:
        return self._mode(self._open(call, _AT_FDCWD, call[3], mode=call[4]), call[4])

    def on_fchmod(self, call: Call) -> int:
        return self._mode(self._opened(call, call[3]), call[4])

    def on_fchmodat(self, call: Call) -> int:
        return self._mode(self._open(call, call[3], call[4], mode=call[5]), call[5])

    def on_chown(self, call: Call) -> int:
        return self._owner(self._open(call, _AT_FDCWD, call[3]), call[4], call[5])

    def on_lchown(self, call: Call) -> int:
        return self._owner(self._open(call, _AT_FDCWD, call[3], follow=False), call[4], call[5])

    def on_fchown(self, call: Call) -> int:
        return self._owner(self._opened(call, call[3]), call[4], call[5])

    def on_fchownat(self, call: Call) -> int:
        return self._owner(self._open(call, call[3], call[4], call[7]), call[5], call[6])

    def on_utimensat(self, call: Call) -> int:
        times = self._exactly(call, call[5], 32) if call[5] else None
        place = self._open(call, call[3], call[4], call[6]) if call[4] else self._opened(call, call[3])
        return self._done(place, lambda path: sc.utimensat(path, times))

    def on_setxattr(self, call: Call) -> int:
        return self._attribute(call, self._open(call, _AT_FDCWD, call[3]))

    def on_lsetxattr(self, call: Call) -> int:
        return self._attribute(call, self._open(call, _AT_FDCWD, call[3], follow=False))

    def on_fsetxattr(self, call: Call) -> int:
        return self._attribute(call, self._opened(call, call[3]))

    def on_removexattr(self, call: Call) -> int:
        return self._remove(call, self._open(call, _AT_FDCWD, call[3]))

    def on_lremovexattr(self, call: Call) -> int:
        return self._remove(call, self._open(call, _AT_FDCWD, call[3], follow=False))

    def on_fremovexattr(self, call: Call) -> int:
        return self._remove(call, self._opened(call, call[3]))

    # ------------------------------------------------------------ what is done

    def _mode(self, place: int, mode: int) -> int:
        mode &= 0o1777  # no set-ID bits: the filter has the rule
        return self._done(place, lambda path: os.chmod(path, mode), mode)

    def _owner(self, place: int, uid: int, gid: int) -> int:
        ids = [-1 if each & 0xFFFFFFFF == 0xFFFFFFFF else each & 0xFFFFFFFF for each in (uid, gid)]
        return self._done(place, lambda path: os.chown(path, *ids))

    def _attribute(self, call: Call, place: int) -> int:
        try:
            if call[6] > LARGEST_VALUE:
                raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
            name, value = text(self._read, call, call[4], LONGEST_NAME), self._exactly(call, call[5], call[6])
        except BaseException:
            os.close(place)
            raise
        return self._done(place, lambda path: os.setxattr(path, name, value, call[7] & 0x3))

    def _remove(self, call: Call, place: int) -> int:
        try:
            name = text(self._read, call, call[4], LONGEST_NAME)
        except BaseException:
            os.close(place)
            raise
        return self._done(place, lambda path: os.removexattr(path, name))

    def _done(self, place: int, change: Callable[[str], None], mode: int = -1) -> int:
        """Judge what is open at ``place``, change it, and close; ``mode``: the change is to that one."""
        try:
            path = os.readlink(f"/proc/self/fd/{place}")
            memory = path.startswith("/memfd:") and not os.stat(f"/proc/self/fd/{place}").st_nlink
            if path.startswith("/") and not memory and not self._allows(path, os.fstat(place), mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            change(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
        return 0

    def _allows(self, path: str, status: os.stat_result, mode: int) -> bool:
        return self._may(path, status) or (mode >= 0 and self._may_switch(path, status, mode))

    # ------------------------------------------------------------ what is meant

    def _opened(self, call: Call, number: int) -> int:
        """What a descriptor of the process is open on; one of O_PATH is as good as none (fchmod(2), EBADF)."""
        return os.open(f"/proc/{call[1]}/fd/{number & 0x7FFFFFFF}", os.O_PATH | os.O_CLOEXEC)

    def _open(self, call: Call, directory: int, at: int, flags: int = 0, *, follow: bool = True, mode: int = -1) -> int:
        path = text(self._read, call, at, PATH_MAX)
        directory &= 0xFFFFFFFF
        if not path and flags & _AT_EMPTY_PATH and directory != _AT_FDCWD:
            return self._opened(call, directory)
        above, _, own = path.rpartition(b"/")
        if above + b"/" in _OWN and own.isdigit() and not flags & _AT_SYMLINK_NOFOLLOW and follow:
            return self._opened(call, int(own[:10]))
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        wanted = os.O_PATH
        if not follow or flags & _AT_SYMLINK_NOFOLLOW:
            wanted |= os.O_NOFOLLOW
        # No link of proc(5): it leads where we may look into processes outside, also into other mount namespaces, where
        # a path says nothing of ours.
        if path.startswith(b"/"):
            return self._named(
                sc.openat2(sc.AT_FDCWD, path, wanted, resolve=sc.RESOLVE_NO_MAGICLINKS),
                mode & 0o1777 if mode >= 0 else -1,
            )
        name = "cwd" if directory == _AT_FDCWD else f"fd/{directory & 0x7FFFFFFF}"
        base = os.open(f"/proc/{call[1]}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._named(
                sc.openat2(base, path, wanted, resolve=sc.RESOLVE_NO_MAGICLINKS), mode & 0o1777 if mode >= 0 else -1
            )
        finally:
            os.close(base)

    def _named(self, place: int, mode: int) -> int:
        """What a path led to has to be a file of the view."""
        found = place
        try:
            path = os.readlink(f"/proc/self/fd/{place}")
            if copy := self._stands_for(path):
                return os.open(copy, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            if path.startswith("/") and self._allows(path, os.fstat(place), mode):
                place = -1
                return found
        finally:
            if place >= 0:
                os.close(place)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _exactly(self, call: Call, at: int, size: int) -> bytes:
        return self._read(call, at, size) if size else b""
