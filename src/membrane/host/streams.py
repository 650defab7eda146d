"""The caller's streams: as files no way around the view, as sockets no way around the network.

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

A socket stays in the network namespace in which it was made, and that is the host's.  connect(2) with AF_UNSPEC takes a
TCP or UDP socket off its peer, and the next connect(2) leads wherever the host can go (net/ipv4/af_inet.c,
``inet_stream_connect``); a datagram takes an address of its own.  So of sockets those are streams that have one peer
for ever: of AF_UNIX, connected, and not of datagrams (net/unix/af_unix.c, ``unix_stream_connect``: EISCONN).
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import stat

from ..errors import HostError

LARGEST_COPY = 64 << 20  # bytes of a file that is copied
_PIECE = 1 << 20  # bytes


def keep_to_view() -> None:
    """Make of the three standard streams what the command may have, in a process that Landlock holds as it will it.

    Raises:
        HostError: a stream is a socket that leads elsewhere.
        OSError: a stream is a directory, or cannot be copied.
    """
    refuse_sockets(connects=True)
    for fd in (0, 1, 2):
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, f"the stream {fd} is a directory")
        if stat.S_ISREG(status.st_mode) and status.st_nlink and _is_read_only(fd) and _could_be_written(fd):
            _replace(fd, status)


def refuse_sockets(*, connects: bool) -> None:
    """No stream is a socket by which the command could send to others than the caller has connected it with.

    Args:
        connects: connect(2) of the command is its own; else it is judged by who supervises its sockets, and only
            datagrams, whose addresses are in memory, would go past that.

    Raises:
        HostError: one is.
    """
    for fd, name in enumerate(("input", "output", "error")):
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
        except OSError:
            continue  # closed
        stream = _socket.socket(fileno=fd)
        try:
            cause = _leads_elsewhere(stream, connects)
        finally:
            stream.detach()
        if cause:
            fix = ("use a pipe", "</dev/null")
            raise HostError("take", f"it is {cause}: use a pipe", target=f"standard {name}", fix=fix)


def _leads_elsewhere(stream: _socket.socket, connects: bool) -> str:
    """What a socket is by which others can be reached; empty: it is none."""
    kind = stream.getsockopt(_socket.SOL_SOCKET, _socket.SO_TYPE)
    if kind not in (_socket.SOCK_STREAM, _socket.SOCK_SEQPACKET):
        return "a datagram socket, by which the command could send anywhere"
    if not connects:
        return ""
    if stream.family != _socket.AF_UNIX:
        return "a socket of the host's network, which the command could connect to anywhere"
    try:
        stream.getpeername()
    except OSError:
        return "a unix socket without a peer, which the command could connect to any"
    return ""


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
