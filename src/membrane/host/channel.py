"""One end of a conversation between two of our processes, and how a child reports that it failed.

Each message (``membrane.messages``) is one SOCK_SEQPACKET datagram with its descriptors (unix(7), SCM_RIGHTS).  One
that is too long for that travels in a file in memory (memfd_create(2)), the first descriptor then; it is taken only
where the table of the receiver allows that length.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from ..errors import HostError, MembraneError
from ..messages import DATAGRAM, Failure, Malformed
from .syscalls import set_parent_death_signal
from .writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import NoReturn

    from ..messages import Message, Table
else:
    import _signal  # the module behind ``signal``, without the 6 ms of its enums

INLINE = DATAGRAM // 2  # bytes of a message that are sent in the datagram itself, where both ways are open
FDS_PER_MESSAGE = 200  # SCM_MAX_FD is 253
_IN_MEMORY = b"\xff"  # in the place of a message: no table is that long
_ROOM = _socket.CMSG_SPACE(4 * FDS_PER_MESSAGE) + _socket.CMSG_SPACE(12)  # and struct ucred
_FLAGS = _socket.MSG_CMSG_CLOEXEC
_TEXT = 8192  # characters, each at most 4 bytes
SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGCHLD, SIGCONT, SIGSTOP = 1, 2, 3, 9, 15, 17, 18, 19
SIGUSR1, SIGUSR2, SIGTSTP, SIGTTOU, SIGWINCH = 10, 12, 20, 22, 28
HELD_DURING_FORK = (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCONT, SIGTSTP, SIGWINCH)


class LaunchFailed(Exception):
    """A step failed in a child and was reported."""


class Channel:
    """One end.

    Args:
        socket: SOCK_SEQPACKET.
        sends: the messages that go from here to the other end.
        takes: those that come from there.

    Attributes:
        sender: the pid of who sent the last message, in our pid namespace, on a socket with SO_PASSCRED (unix(7)); else
            0.
    """

    def __init__(self, socket: _socket.socket, sends: Table, takes: Table) -> None:
        self.socket, self._sends, self._takes = socket, sends, takes
        self.sender = 0
        self.fileno, self.close, self.setblocking = socket.fileno, socket.close, socket.setblocking

    def send(self, message: Message) -> None:
        """Send one message; its descriptors stay open here.

        Raises:
            BlockingIOError: there is no room now, on a socket that does not block.
            OSError: the other end is gone; EMFILE, also where the kernel says ETOOMANYREFS.
        """
        data, fds = self._sends.encode(message)
        if len(data) <= (INLINE if self._sends.longest > DATAGRAM else DATAGRAM):
            return self._send(data, fds)
        if len(data) > self._sends.longest:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE), self._sends.name)
        memory = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            write_all(memory, data)
            return self._send(_IN_MEMORY, [memory, *fds])
        finally:
            os.close(memory)

    def _send(self, data: bytes, fds: list[int]) -> None:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        try:
            self.socket.sendmsg([data], rights)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            # Descriptors that a user has sent and that are not received yet count together against the limit of one
            # process (unix(7)): other runs of the same user can use it up for a moment.
            raise OSError(errno.EMFILE, "Too many open files of this user are being sent (RLIMIT_NOFILE)") from None

    def receive(self) -> Message | None:
        """One message; None at the end of the stream.

        Raises:
            BlockingIOError: nothing is there, on a socket that does not block.
            HostError: no descriptor is left for those that came.
            Malformed: what came is no message that may come here.
        """
        try:
            try:
                data, ancillary, flags, _address = self.socket.recvmsg(DATAGRAM, _ROOM, _FLAGS)
            except ConnectionResetError:
                # The peer ended with something of ours unread.  That is reported once and before what it had sent
                # (unix(7), net/unix/af_unix.c unix_release_sock), and its last message is the one that matters.
                data, ancillary, flags, _address = self.socket.recvmsg(DATAGRAM, _ROOM, _FLAGS)
        except ConnectionError:
            return None
        fds: list[int] = []
        self.sender = 0
        for level, kind, value in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += struct.unpack(f"{len(value) // 4}i", value[: len(value) // 4 * 4])
            elif level == _socket.SOL_SOCKET and kind == _socket.SCM_CREDENTIALS:
                self.sender = struct.unpack("i", value[:4])[0]
        if flags & _socket.MSG_CTRUNC:
            _refuse_part(fds)
        if not data:
            _close(fds)
            return None
        try:
            if flags & _socket.MSG_TRUNC:
                raise Malformed("read a message", "it is longer than a datagram", target=self._takes.name)
            if data == _IN_MEMORY and fds and self._takes.longest > DATAGRAM:
                data = _content(fds.pop(0), self._takes)
            return self._takes.decode(data, fds)
        except Malformed:
            _close(fds)
            raise


def pair(sends: Table, takes: Table) -> tuple[Channel, Channel]:
    """Two ends; the first one sends ``sends``."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    return Channel(ours, sends, takes), Channel(theirs, takes, sends)


def named_pair(sends: Table, takes: Table) -> tuple[Channel, Channel]:
    """As ``pair``; the kernel says who sent what comes to the first end (``Channel.sender``)."""
    ours, theirs = pair(sends, takes)
    ours.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    return ours, theirs


def passed(fd: int, sends: Table, takes: Table) -> Channel:
    """The end that came as a descriptor."""
    return Channel(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd), sends, takes)


def _content(memory: int, takes: Table) -> bytes:
    """What a file in memory holds; it is closed.  One read: the sender may change it."""
    try:
        size = os.fstat(memory).st_size
        if size <= takes.longest:
            return os.pread(memory, size, 0)
    except OSError as error:
        raise Malformed("read a message", error.strerror or "", target=takes.name) from None
    finally:
        os.close(memory)
    raise Malformed("read a message", f"{size} bytes are too many", target=takes.name)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _refuse_part(fds: list[int]) -> NoReturn:
    """The kernel passes as many descriptors as there is room for, and says that with MSG_CTRUNC only (unix(7))."""
    _close(fds)
    raise HostError(
        "take the descriptors of the sandbox",
        "too many open files (RLIMIT_NOFILE)",
        fix=("raise the limit: ulimit -n 1024",),
    )


def failure(step: str, error: BaseException) -> Failure:
    """What a child says when a step failed; each text is cut to what a datagram has room for."""
    if isinstance(error, OSError):
        return Failure(error.errno or 0, step, (error.strerror or "")[:_TEXT], str(error.filename or "")[:_TEXT])
    if isinstance(error, MembraneError):
        return Failure(0, error.tried, error.cause[:_TEXT], error.target[:_TEXT])
    return Failure(0, step, f"{type(error).__name__}: {error}"[:_TEXT], "")


def report(channel: Channel, step: str, error: BaseException) -> None:
    failed = failure(step, error)
    try:
        channel.send(failed)
    except OSError:
        os.write(2, f"membrane: {step}: {failed.cause}\n".encode())


def run_child(body: Callable[[], None], channel: Channel) -> NoReturn:
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
    """Set a file of proc(5), in one call.

    Raises:
        OSError: with the path, also where the kernel refuses the content.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


# Steps whose failure has a meaning of its own (``launch``).
OVERLAY = "mount an overlay"  # a rule that cannot be bound (``overlay.CannotOverlay``)
USER_NAMESPACE = "make a user namespace"
TREE = "show a tree in the sandbox"
PROC = "mount proc"


class Step:
    """Names the step for the report: ``with Step(channel, "make a pid namespace"): ...``"""

    def __init__(self, channel: Channel, name: str) -> None:
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
