"""One direction of a relayed connection: from one socket to another.

Theory of operation
-------------------
A direction starts by copying through one shared buffer: two system calls for a small message.  When it proves to be
bulk it is spliced through a pipe (splice(2)): the bytes stay in the kernel.  The pipe is taken from a bounded pool
for as long as bytes are in it, so a connection that waits holds neither a pipe nor a buffer.  Without a free pipe a
bulk direction copies on.

What the sink does not take at once is at most one buffer (copied) or one pipe (spliced); nothing more is read until
it is gone: back-pressure goes to the source through the kernel's own window.  All copies together have a budget
(``memory``): when much of it is held, less is read at a time.
"""

from __future__ import annotations

import os
from _socket import MSG_PEEK, SHUT_WR
from _socket import socket as Socket

from .memory import MemoryBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .budgets import Meter

BUFFER = 65536  # bytes copied at a time
_BULK = 2  # large reads in a row that make a direction bulk
_LARGE = 32768  # bytes; one segment of loopback is a little less than a buffer
_PIPE = 1 << 20  # bytes of one pipe
_PIPES = 64  # at most; 64 MiB is what an unprivileged user may have in pipes (pipe(7))
_ROUNDS = 16  # of one direction in one turn: fairness
_F_SETPIPE_SZ = 1031
_FIONREAD = 0x541B  # ioctl_tcp(2), SIOCINQ
_SPLICE = 1 | 2  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK


class LimitReached(Exception):
    """More came than a budget has left; ``args[0]`` is the refusal."""


class Flow:
    """One direction of a connection.

    Args:
        meter: what its bytes count against; without one they are not counted.
    """

    __slots__ = (
        "bulk",
        "closed",
        "ended",
        "held",
        "large",
        "left",
        "meter",
        "moved",
        "pipe",
        "piped",
        "quota",
        "sink",
        "source",
    )

    def __init__(self, source: Socket, sink: Socket, meter: Meter | None = None) -> None:
        self.source, self.sink = source, sink
        self.meter = meter if meter is not None and meter.limited else None
        self.left: memoryview | None = None  # copied, not yet written
        self.held = 0  # bytes of it that are counted
        self.pipe: tuple[int, int] | None = None
        self.piped = 0  # bytes in the pipe
        self.large = 0  # large reads in a row
        self.bulk = False
        self.ended = False  # the source has no more
        self.closed = False  # and the sink was shut down
        self.moved = 0  # bytes taken from the source
        self.quota = -1  # bytes that may be taken before more is known; negative: all

    def pending(self) -> bool:
        return self.left is not None or self.piped > 0


class Pump:
    """Moves the bytes of all directions; owns the buffer, the pipes and the totals.

    Args:
        memory: what may wait in memory, shared with others.
    """

    def __init__(self, memory: MemoryBudget | None = None) -> None:
        self.bytes_up = self.bytes_down = 0
        self.memory = memory or MemoryBudget()
        self.scratch = memoryview(bytearray(BUFFER))
        self._pipes: list[tuple[int, int]] = []
        self._made = 0  # pipes that exist

    def close(self) -> None:
        """Close the pipes that are not in use."""
        for pipe in self._pipes:
            os.close(pipe[0])
            os.close(pipe[1])
        self._made -= len(self._pipes)
        self._pipes.clear()

    def move(self, flow: Flow, upward: bool, last: bool, fresh: bool = False) -> bool:
        """Move bytes until one end would block; true when there is more to do at once.

        Args:
            flow: the direction.
            upward: it is the client's.
            last: the other direction has ended, so closing will say to the sink what shutdown(2) would.
            fresh: the source has just become readable and announced neither an end nor urgent data, so a read that
                does not fill the buffer has emptied it: what comes later is a new edge (epoll(7), question 9).

        Raises:
            OSError: one end failed.
            LimitReached: a budget is spent.
        """
        sink, scratch = flow.sink, self.scratch
        meter = flow.meter
        limited = flow.quota >= 0 or meter is not None
        for _ in range(_ROUNDS):
            if flow.left is not None:
                flow.left = _send(sink, flow.left)
                self._count(flow)
                if flow.left is not None:
                    return False
            elif flow.piped:
                assert flow.pipe is not None
                try:
                    flow.piped -= os.splice(flow.pipe[0], sink.fileno(), flow.piped, flags=_SPLICE)
                except BlockingIOError:
                    return False
                if flow.piped:
                    continue
                self._give_pipe(flow)
            if flow.ended:
                if not flow.closed:
                    flow.closed = True
                    if not last:
                        sink.shutdown(SHUT_WR)
                return False
            try:
                most = self._most(flow) if limited else _PIPE
                count = 0
                if flow.bulk and most and self._take_pipe(flow):
                    count = self._splice(flow, most)
                    if fresh and not count:
                        return False
                if not count:
                    most = min(most, BUFFER, self.memory.each())
                    count = flow.source.recv_into(scratch, most) if most else 0
            except BlockingIOError:
                return False
            if count == 0:
                flow.ended = True
                continue
            if not flow.piped:
                rest = _send(sink, scratch[:count])
                if rest is not None:
                    flow.left = memoryview(bytes(rest))
                    self._count(flow)
                flow.large = flow.large + 1 if count >= _LARGE else 0
                flow.bulk = flow.bulk or flow.large >= _BULK
            flow.moved += count
            if flow.quota > 0:
                flow.quota -= count
            if meter is not None:
                meter.take(count)
            if upward:
                self.bytes_up += count
            else:
                self.bytes_down += count
            if fresh and count < most and flow.left is None and not flow.piped:
                return False
        return True

    def _count(self, flow: Flow) -> None:
        flow.held = self.memory.change(flow.held, len(flow.left) if flow.left is not None else 0)

    @staticmethod
    def _most(flow: Flow) -> int:
        """How many bytes a direction may take that is limited; 0: its end came, where nothing more may.

        Raises:
            BlockingIOError: nothing before more is known.
            LimitReached: more than the budget came.
        """
        most = _PIPE
        if flow.quota >= 0:
            if not flow.quota:
                raise BlockingIOError
            most = min(most, flow.quota)
        if flow.meter is not None:
            most = min(most, flow.meter.left)
            if most <= 0:
                if flow.source.recv(1, MSG_PEEK):
                    raise LimitReached(flow.meter.over(1))
                return 0
        return most

    def _splice(self, flow: Flow, most: int) -> int:
        """Take at most ``most`` bytes into the pipe; 0: recv(2) knows why.

        Nothing may be there, or the end, or an urgent byte, which splice(2) does not come by.
        """
        assert flow.pipe is not None
        try:
            flow.piped = os.splice(flow.source.fileno(), flow.pipe[1], most, flags=_SPLICE)
        except BlockingIOError:
            pass
        finally:
            if not flow.piped:
                self._give_pipe(flow)
        return flow.piped

    def _take_pipe(self, flow: Flow) -> bool:
        if self._pipes:
            flow.pipe = self._pipes.pop()
            return True
        if self._made >= _PIPES:
            return False
        try:
            pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        from fcntl import fcntl

        try:
            fcntl(pipe[1], _F_SETPIPE_SZ, _PIPE)
        except OSError:
            pass  # over the user's share of pipe memory: a small pipe works as well
        self._made += 1
        flow.pipe = pipe
        return True

    def _give_pipe(self, flow: Flow) -> None:
        if flow.pipe is not None:
            self._pipes.append(flow.pipe)
            flow.pipe = None

    def drop(self, flow: Flow) -> None:
        """Give back what a direction that ends holds; a pipe that is not empty cannot be used again."""
        flow.held = self.memory.change(flow.held, 0)
        if flow.pipe is not None and flow.piped:
            os.close(flow.pipe[0])
            os.close(flow.pipe[1])
            self._made -= 1
            flow.pipe = None
        self._give_pipe(flow)


def _send(sink: Socket, data: memoryview) -> memoryview | None:
    """Send what the sink takes; the rest, or ``None``."""
    try:
        count = sink.send(data)
    except BlockingIOError:
        return data
    return data[count:] if count < len(data) else None


def unread(source: Socket) -> int:
    """Bytes that a TCP socket has received and that were not taken."""
    from fcntl import ioctl

    return int.from_bytes(ioctl(source.fileno(), _FIONREAD, bytes(4)), "little")


def cut_short(source: Socket, most: int) -> bool:
    """Does an urgent byte end a peek at ``most`` bytes before the end of what has come?

    A read that has something stops at the urgent mark (``tcp_recvmsg``, net/ipv4/tcp.c), so a peek never gets past it.
    What comes between the two questions only makes the second answer longer.

    Raises:
        OSError: the socket failed.
    """
    come = min(unread(source), most)
    try:
        return len(source.recv(most, MSG_PEEK)) < come
    except BlockingIOError:
        return False
