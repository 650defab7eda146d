"""A second copy of the layer that a command writes, made while its processes are stopped.

Theory of operation
-------------------
A layer below a mounted overlay cannot be frozen: the kernel goes on writing it.  So a checkpoint of a running sandbox
copies it, with what overlayfs keeps in it (whiteouts, ``user.overlay.*``), hard links, holes, modes, owners and times.
The content of a file is shared where the file system can (FICLONE, ioctl_ficlonerange(2)) and copied elsewhere, so the
time is in proportion to what was changed, not to the workspace.

The names in the layer are hostile, and no process can change them meanwhile (``run.still``).  Every directory is opened
below the layer all the same, through no link.  What the command closed for its owner is opened for the time of the
copy and closed again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ..errors import HostError
from .tree import DEEPEST, LONGEST, MOST_CHANGES, TooMuch, open_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FICLONE = 0x40049409  # linux/fs.h
_PIECE = 1 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSHARED = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS)


def duplicate(source: str, target: str) -> int:
    """Copy the layer ``source`` to ``target``, an empty directory on the same file system; how many names it has.

    Raises:
        TooMuch: more names, or longer paths, than a change set may have.
        OSError: a part of it cannot be copied; what was made is the caller's to remove.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    ends: list[int] = []
    try:
        for path in (source, target):
            ends.append(os.open(path, flags))
        copying = _Copying(*ends)
        try:
            return copying.all()
        finally:
            copying.close()
    finally:
        for fd in ends:
            os.close(fd)


class _Copying:
    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._links: dict[tuple[int, int], str] = {}  # of files with more than one name: where the first copy is
        self._closed: list[tuple[str, int]] = []  # what is open for us only now, with its own mode
        self._count = 0

    def close(self) -> None:
        """Put back the modes of what the command had closed; what is below first."""
        while self._closed:
            path, mode = self._closed.pop()
            self._chmod(path, mode)

    def all(self) -> int:
        """Copy everything; the number of names."""
        todo, done = [""], []
        while todo:
            path = todo.pop()
            inner, status = self._directory(path)
            todo += inner
            done.append((path, status))
        for path, status in reversed(done):  # a directory's time and mode last when nothing more is made in it
            fd = open_below(self._target, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _dress(fd, status)
            finally:
                os.close(fd)
        return self._count

    def _directory(self, path: str) -> tuple[list[str], os.stat_result]:
        """Copy the names of one directory; the directories in it, which are empty yet."""
        if path.count("/") >= DEEPEST or len(os.fsencode(path)) > LONGEST:
            raise TooMuch("copy the changes", "a path is longer or deeper than is looked at", target=ascii(path[:80]))
        source, status = self._open(path, os.O_DIRECTORY)
        target = -1
        try:
            target = open_below(self._target, path, os.O_RDONLY | os.O_DIRECTORY)
            _attributes(source, target)
            inner = []
            prefix = f"{path}/" if path else ""
            with os.scandir(source) as entries:
                for entry in entries:
                    self._count += 1
                    if self._count > MOST_CHANGES:
                        raise TooMuch("copy the changes", f"the layer has more than {MOST_CHANGES} names")
                    if self._name(source, target, entry.name, prefix + entry.name):
                        inner.append(prefix + entry.name)
            return inner, status
        finally:
            os.close(source)
            if target >= 0:
                os.close(target)

    def _name(self, source: int, target: int, name: str, path: str) -> bool:
        """Copy one name; True: it is a directory."""
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            return True
        key = status.st_dev, status.st_ino
        first = self._links.get(key)
        if first is not None:
            os.link(first, name, src_dir_fd=self._target, dst_dir_fd=target, follow_symlinks=False)
            return False
        if stat.S_ISREG(status.st_mode):
            self._file(target, name, path)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            _own(status, name, target)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)
        else:  # whiteouts (character devices 0/0, which anybody may make), fifos and sockets
            os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
            _own(status, name, target)
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=target)
            try:
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode))
            finally:
                os.close(handle)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)
        if status.st_nlink > 1:
            self._links[key] = path
        return False

    def _file(self, target: int, name: str, path: str) -> None:
        source, status = self._open(path, 0)
        made = -1
        try:
            made = os.open(name, _NEW, 0o600, dir_fd=target)
            try:
                fcntl.ioctl(made, FICLONE, source)
            except OSError as error:
                if error.errno not in _UNSHARED:
                    raise
                _content(source, made, status.st_size)
            _attributes(source, made)
            _dress(made, status)
        finally:
            os.close(source)
            if made >= 0:
                os.close(made)

    def _open(self, path: str, flags: int) -> tuple[int, os.stat_result]:
        """A file or directory of the layer for reading, and what it was before that."""
        handle = open_below(self._source, path, os.O_PATH)
        try:
            status = os.fstat(handle)
        finally:
            os.close(handle)
        wanted = stat.S_IRWXU if flags & os.O_DIRECTORY else stat.S_IRUSR
        mode = stat.S_IMODE(status.st_mode)
        if mode & wanted != wanted and os.geteuid() and status.st_uid == os.geteuid():
            self._chmod(path, mode | wanted)
            self._closed.append((path, mode))
        return open_below(self._source, path, _READ | flags), status

    def _chmod(self, path: str, mode: int) -> None:
        handle = open_below(self._source, path, os.O_PATH)
        try:
            os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)


def _content(source: int, target: int, size: int) -> None:
    """Copy the bytes of a file, holes as holes."""
    for start, end in _pieces(source, size):
        at = start
        while at < end:
            moved = os.copy_file_range(source, target, min(end - at, _PIECE), at, at)
            if not moved:
                break
            at += moved
    os.ftruncate(target, size)


def _pieces(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the file has content (lseek(2), SEEK_DATA)."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole from here
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def _attributes(source: int, target: int) -> None:
    """Extended attributes, those of overlayfs among them."""
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return
        raise
    for name in names:
        if name.startswith(("user.", "system.posix_acl_")):  # security.* is never put in place
            os.setxattr(target, name, os.getxattr(source, name))


def _own(status: os.stat_result, name: str, directory: int) -> None:
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(name, status.st_uid, status.st_gid, dir_fd=directory, follow_symlinks=False)


def _dress(fd: int, status: os.stat_result) -> None:
    """Owner, then mode (which chown(2) may take bits from), then times."""
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        except PermissionError as error:
            raise HostError("copy the changes", f"a file belongs to uid {status.st_uid}: {error.strerror}") from None
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
