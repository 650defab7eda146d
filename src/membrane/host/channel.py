"""Messages between the supervisor, the launcher and pid 1, and how a child reports that it failed.

Each message is one SOCK_SEQPACKET datagram: a kind of one byte, a payload, and descriptors (unix(7), SCM_RIGHTS).
The kinds are listed in ``host.launcher``.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from ..errors import HostError
from .syscalls import set_parent_death_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence
    from typing import NoReturn
else:
    import _signal  # the module behind ``signal``, without the 6 ms of its enums

MESSAGE = 1 << 16  # longest message; longer data goes through a memfd
FDS_PER_MESSAGE = 200  # SCM_MAX_FD is 253
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGCHLD, SIGCONT, SIGSTOP = 1, 2, 3, 9, 15, 17, 18, 19
SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH = 20, 21, 22, 28
HELD_DURING_FORK = (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCONT, SIGTSTP, SIGWINCH)


class LaunchFailed(Exception):
    """A step failed in a child and was reported."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Two ends of a channel."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)


def send(channel: _socket.socket, kind: bytes, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
    """One message with descriptors.

    Raises:
        OSError: EMFILE, also where the kernel says ETOOMANYREFS.
    """
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    try:
        channel.sendmsg([kind + payload], rights)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        # Descriptors that a user has sent and nobody has received yet count together against the limit of one
        # process (unix(7)): other runs of the same user can use it up for a moment.
        raise OSError(errno.EMFILE, "Too many open files of this user are being sent (RLIMIT_NOFILE)") from None


def send_data(channel: _socket.socket, kind: bytes, data: bytes, fds: Sequence[int] = ()) -> None:
    """One message whose first descriptor is a file in memory (memfd_create(2)) that holds ``data`` of any length."""
    memory = os.memfd_create("data", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(memory, rest) :]
        send(channel, kind, b"", (memory, *fds))
    finally:
        os.close(memory)


def take_data(memory: int) -> bytes:
    """What ``send_data`` wrote; the descriptor is closed.  From our own processes only: its length is not bounded."""
    try:
        return os.pread(memory, os.fstat(memory).st_size, 0)
    finally:
        os.close(memory)


def receive(channel: _socket.socket) -> tuple[bytes, bytes, list[int]]:
    """One message: kind, payload, descriptors.  Kind is empty at the end of the stream."""
    room = _socket.CMSG_SPACE(4 * FDS_PER_MESSAGE) + _socket.CMSG_SPACE(12)
    try:
        data, ancillary, flags, _address = channel.recvmsg(MESSAGE, room, _socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The peer ended with something of ours unread.  That is told once and before what it had sent (unix(7),
        # net/unix/af_unix.c unix_release_sock), and its last message is the one that matters.
        data, ancillary, flags, _address = channel.recvmsg(MESSAGE, room, _socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, value in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(value) // 4}i", value[: len(value) // 4 * 4])
    if flags & _socket.MSG_CTRUNC:
        _refuse_part(fds)
    return data[:1], data[1:], fds


def receive_with_sender(channel: _socket.socket) -> tuple[bytes, bytes, list[int], int]:
    """One message with at most one descriptor, on a socket with SO_PASSCRED, and its sender's pid.

    The kernel translates the pid into our pid namespace (unix(7)).  Kind is empty at the end of the stream.
    """
    room = _socket.CMSG_SPACE(4) + _socket.CMSG_SPACE(12)
    try:
        data, ancillary, flags, _address = channel.recvmsg(MESSAGE, room, _socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # it ended with something of ours unread
        data, ancillary, flags = b"", [], 0
    fds: list[int] = []
    pid = 0
    for level, what, value in ancillary:
        if level == _socket.SOL_SOCKET and what == _socket.SCM_RIGHTS:
            fds += struct.unpack("i", value[:4])
        elif level == _socket.SOL_SOCKET and what == _socket.SCM_CREDENTIALS:
            pid = struct.unpack("i", value[:4])[0]
    if flags & _socket.MSG_CTRUNC:
        _refuse_part(fds)
    return data[:1], data[1:], fds, pid


def _refuse_part(fds: list[int]) -> NoReturn:
    """The kernel passes as many descriptors as there is room for, and says that with MSG_CTRUNC only (unix(7))."""
    for fd in fds:
        os.close(fd)
    raise HostError(
        "take the descriptors of the sandbox",
        "too many open files (RLIMIT_NOFILE)",
        fix=("raise the limit: ulimit -n 1024",),
    )


def report(channel: _socket.socket, step: str, error: BaseException) -> None:
    number = error.errno or 0 if isinstance(error, OSError) else 0
    target = str(error.filename or "") if isinstance(error, OSError) else ""
    cause = (error.strerror or "") if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    text = "\0".join((str(number), step, cause, target))
    try:
        send(channel, b"E", text.encode("utf-8", "surrogateescape")[: MESSAGE - 1])
    except OSError:
        os.write(2, f"membrane: {step}: {cause}\n".encode())


def run_child(body: Callable[[], None], channel: _socket.socket) -> NoReturn:
    """Run ``body`` and leave by _exit(2) whatever happens: no exception may unwind into the supervisor's code."""
    status = 1
    try:
        body()
        status = 0
    except LaunchFailed:
        pass
    except BaseException as error:
        report(channel, "start the sandbox", error)
    finally:
        os._exit(status)


def write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


OVERLAY = "mount an overlay"  # a step whose failure is a rule that cannot be bound (``overlay.CannotOverlay``)


class Step:
    """Names the step for the report: ``with Step(channel, "mount proc"): ...``"""

    def __init__(self, channel: _socket.socket, name: str) -> None:
        self.channel, self.name = channel, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, LaunchFailed):
            report(self.channel, getattr(error, "step", self.name), error)
            raise LaunchFailed from None


def die_with(parent: int) -> None:
    set_parent_death_signal(SIGKILL)
    if os.getppid() != parent:  # it died before the signal was armed
        os._exit(1)


def default_signals() -> None:
    """Undo what the interpreter changed: it ignores SIGPIPE and SIGXFSZ and handles SIGINT."""
    _signal.set_wakeup_fd(-1)
    for number in range(1, 32):
        if number not in (SIGKILL, 19) and _signal.getsignal(number) is not _signal.SIG_DFL:
            if number in (1, 3) and _signal.getsignal(number) == _signal.SIG_IGN:
                continue  # nohup(1): the caller's wish
            _signal.signal(number, _signal.SIG_DFL)
    # The supervisor blocks these around the fork, so that its handlers never run here.  What was sent to its process
    # group before we left that is its business; SIG_IGN discards what is pending (signal(7), POSIX 2.4.3).
    for number in _signal.sigpending().intersection(HELD_DURING_FORK):
        before = _signal.signal(number, _signal.SIG_IGN)
        _signal.signal(number, before)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, HELD_DURING_FORK)
