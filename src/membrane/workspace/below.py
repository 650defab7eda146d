"""Names below a directory whose tree the command may be changing meanwhile.

Nothing is opened by a path that a link could redirect: ``openat2`` with ``RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS``.
"""

from __future__ import annotations

import os

from ..host import syscalls


def open_below(root_fd: int, path: str, flags: int) -> int:
    """open(2) below ``root_fd`` without following any symbolic link."""
    return syscalls.openat2(
        root_fd, path, flags | os.O_NOFOLLOW, 0, syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    )


def open_file(root_fd: int, path: str) -> int:
    """A regular file or a fifo below ``root_fd``, for reading, without waiting for its writer.

    Raises:
        OSError: it is not there, or a link is on the way.
    """
    return open_below(root_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)


def stat_below(root_fd: int, path: str) -> os.stat_result:
    """lstat(2) below ``root_fd`` without following any symbolic link on the way."""
    parent, _, name = path.rpartition("/")
    fd = open_below(root_fd, parent or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    finally:
        os.close(fd)


def path_of(fd: int) -> str:
    """The path of an open file or directory, as the kernel has it now (proc(5))."""
    return os.readlink(f"/proc/self/fd/{fd}")
