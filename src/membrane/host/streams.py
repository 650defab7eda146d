"""The caller's streams, as far as they are files: no way around the view.

Theory of operation
-------------------
A descriptor carries the mount by which it was opened, and ``/proc/self/fd/N`` opens the same file anew on that mount,
with other access (proc_pid_fd(5)).  So a file of the caller that is the command's stdin, opened for reading, could be
written wherever its mode lets the caller do so: on the mounts of the host nothing is read-only.  Landlock refuses that
outside of the writable trees, but it knows names in a writable tree only as part of it, and does not hold with nested
containers.

So before the command runs, in its own process, a stream that was opened for reading only, and could be opened for
writing,

* stays as it is where the view has the file writable as well;
* is opened anew by its name in the view where that shows it read-only, at the same offset;
* is a copy in memory where the view does not show the file, or something else under its name, and Landlock does not
  refuse to open it.

A directory is no stream: all that is below it could be opened on the mounts of the host.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

LARGEST_COPY = 64 << 20  # bytes of a file that is copied
_PIECE = 1 << 20  # bytes


def keep_to_view() -> None:
    """Make of the three standard streams what the command may have, in a process that Landlock holds as it will it.

    Raises:
        OSError: a stream is a directory, or cannot be copied.
    """
    for fd in (0, 1, 2):
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, f"the stream {fd} is a directory")
        if stat.S_ISREG(status.st_mode) and status.st_nlink and _is_read_only(fd) and _could_be_written(fd):
            _replace(fd, status)


def _is_read_only(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _could_be_written(fd: int) -> bool:
    return os.access(f"/proc/self/fd/{fd}", os.W_OK)


def _replace(fd: int, status: os.stat_result) -> None:
    path = os.readlink(f"/proc/self/fd/{fd}")
    try:
        shown = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        shown = -1
    try:
        if shown >= 0 and os.path.samestat(os.fstat(shown), status):
            if not _could_be_written(shown):
                os.lseek(shown, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
                os.set_blocking(shown, True)
                os.dup2(shown, fd)
            return
    finally:
        if shown >= 0:
            os.close(shown)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return  # by Landlock, which access(2) does not ask
    _copy(fd, status.st_size)


def _copy(fd: int, size: int) -> None:
    if size > LARGEST_COPY:
        cause = f"the stream {fd} is a file of more than {LARGEST_COPY} bytes, which could be written by it"
        raise OSError(errno.EFBIG, f"{cause}: send it through a pipe")
    made = os.memfd_create("stream", os.MFD_CLOEXEC)
    try:
        at = 0
        while at < LARGEST_COPY and (data := os.pread(fd, _PIECE, at)):
            while data:
                done = os.pwrite(made, data, at)
                at, data = at + done, data[done:]
        os.lseek(made, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(made, fd)
    finally:
        os.close(made)
