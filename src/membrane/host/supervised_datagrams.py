"""UDP of a sandbox without a network namespace: the command has stand-ins, and the gateway carries what they send.

Theory of operation
-------------------
A datagram socket of the command is one end of a pair of SOCK_SEQPACKET, which takes no addresses: no datagram of the
command exists, and it can receive none.  What is sent on it comes here, with our copy of the address, and goes to the
gateway as one message (``datagrams``), by a socket that no other process has.  The gateway decides as about any
captured datagram, and sends it from a socket of its own that is connected to the peer: datagrams of others do not come
back.  An answer comes with its place, so a connected stand-in gets those of its peer only.

Only datagrams to a port that some rule opens, and to resolvers, go that way; of others each place is told once.  None
goes to loopback, which is the container's (a resolver there is ours), and none to a group: no rule lets those out.

Where an answer comes from is not in the pair.  ``StandIn.sources`` has it, in order, for calls that ask; what was
received without asking is passed over by its hash.

Sources: udp(7), recvmsg(2), sendmmsg(2), net/unix/af_unix.c.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import struct
from collections import deque

from . import datagrams
from . import syscalls as sc
from .caller import Refused, internet, is_loopback, written
from .datagrams import ASKED, CARRIED, LONGEST, TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .caller import Caller
    from .notify import Call, Listener

    Put = Callable[[bytes, bytes], int]  # gives the caller data and the address it came from; what the call returns
    Watch = Callable[[int, Callable[[int], None], int], None]

MOST_TOLD = 1024  # places of datagrams
MOST_SOURCES = 1024  # datagrams that wait in a pair
AT_ONCE = 16  # messages of sendmmsg(2), and answers that are read before other calls get their turn
_MOST_PIECES = 1024  # UIO_MAXIOV, <linux/uio.h>
_DNS = 53
_MSG_PEEK, _MSG_TRUNC, _MSG_DONTWAIT, _MSG_ERRQUEUE = 0x2, 0x20, 0x40, 0x2000
_IN = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_ENDED = select.EPOLLHUP | select.EPOLLRDHUP
_HEADER = struct.Struct("=QIIQQQQiI")  # struct msghdr; struct mmsghdr has 8 bytes more
_NAME_LENGTH_AT, _CONTROL_LENGTH_AT, _FLAGS_AT = 8, 40, 48


class StandIn:
    """What stands for a datagram socket of the command.

    Attributes:
        theirs: a duplicate of the command's end.
        peer: the address that it was connected to, as the command wrote it; empty: it is not connected.
        waiting: the calls that wait for a datagram; one duplicate waits for all of them (``watched``).
    """

    __slots__ = ("family", "number", "ours", "peer", "sources", "theirs", "waiting", "watched")

    def __init__(self, family: int, number: int) -> None:
        self.family, self.number = family, number
        self.ours, self.theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        sc.take_no_descriptors(self.ours)
        self.peer = b""
        self.sources: deque[tuple[int, bytes]] = deque(maxlen=MOST_SOURCES)
        self.waiting: list[tuple[Call, int, Put]] = []
        self.watched = False


class Datagrams:
    """The stand-ins of one sandbox; ``on_...`` answers a call as those of ``supervised.Sockets``.

    Args:
        gateway: takes and gives messages.
        ports: to which some rule lets datagrams go.
        find: the stand-in that the first argument of a call names; None: it names none.
        watch, unwatch: of epoll, as ``supervised.Sockets`` has them.
    """

    def __init__(
        self,
        gateway: _socket.socket,
        ports: Collection[int],
        caller: Caller,
        listener: Listener,
        find: Callable[[Call], StandIn | None],
        watch: Watch,
        unwatch: Callable[[int], None],
    ) -> None:
        self._gateway, self._ports = gateway, frozenset(ports)
        self._caller, self._listener, self._find = caller, listener, find
        self._watch, self._unwatch = watch, unwatch
        self._stand_ins: dict[int, StandIn] = {}
        self._number = 0
        self._told = set[tuple[bytes, int]]()
        gateway.setblocking(False)
        watch(gateway.fileno(), lambda _events: self._answers(), _IN)

    def make(self, family: int, ended: Callable[[], None]) -> StandIn:
        """A new one; ``ended`` is called when no process has it any more."""
        self._number = self._number % 0xFFFFFFFF + 1
        made = self._stand_ins[self._number] = StandIn(family, self._number)
        self._watch(made.ours.fileno(), lambda events: self._sent(made, events, ended), _IN | select.EPOLLRDHUP)
        return made

    def end(self, stand_in: StandIn) -> None:
        if self._stand_ins.pop(stand_in.number, None) is not None:
            self._unwatch(stand_in.ours.fileno())
            stand_in.ours.close()

    # ------------------------------------------------------------ sending

    def send(self, stand_in: StandIn, data: bytes, raw: bytes = b"") -> None:
        """Pass a datagram on; ``raw``: the address that it has beside it.  What cannot be passed is lost."""
        if len(data) > LONGEST:
            raise Refused(errno.EMSGSIZE)
        try:
            address, port = internet(raw or stand_in.peer, stand_in.family)
        except Refused:
            return
        own, kind = is_loopback(address), TOLD
        if port == _DNS:
            kind = ASKED if own else CARRIED
        elif port in self._ports and not own and not _is_group(address):
            kind = CARRIED
        if kind == TOLD:
            if (address, port) in self._told or len(self._told) >= MOST_TOLD:
                return
            self._told.add((address, port))
            data = b""
        try:
            self._gateway.send(datagrams.message(kind, stand_in.number, address, port, data))
        except OSError:
            pass  # more at once than the gateway reads

    def _sent(self, stand_in: StandIn, events: int, ended: Callable[[], None]) -> None:
        """A datagram that the command sent without an address."""
        try:
            data = stand_in.ours.recv(LONGEST + 1)
        except BlockingIOError:
            return
        except OSError:
            data, events = b"", _ENDED
        if not data and events & _ENDED:  # the command has closed it, or will send no more
            ended()
        elif len(data) <= LONGEST:
            self.send(stand_in, data)

    def on_sendmsg(self, call: Call) -> int | None:
        stand_in = self._find(call)
        return None if stand_in is None else self._send_message(call, stand_in, call[4])

    def on_sendmmsg(self, call: Call) -> int | None:
        stand_in = self._find(call)
        if stand_in is None:
            return None
        count = min(call[5] & 0xFFFFFFFF, AT_ONCE)
        for number in range(count):
            at = call[4] + number * (_HEADER.size + 8)
            try:
                size = self._send_message(call, stand_in, at)
            except Refused:
                if number:
                    return number
                raise
            self._caller.write(call, at + _HEADER.size, struct.pack("=I", size))
        return count

    def _send_message(self, call: Call, stand_in: StandIn, at: int) -> int:
        name, name_size, _pad, pieces, count, *_rest = _HEADER.unpack(self._caller.read(call, at, _HEADER.size))
        raw = self._caller.address(call, name, name_size) if name and name_size else b""
        data = b""
        for place, size in self._pieces(call, pieces, count):
            if len(data) + size > LONGEST:
                raise Refused(errno.EMSGSIZE)
            data += self._caller.read(call, place, size) if size else b""
        self.send(stand_in, data, raw)
        return len(data)

    def _pieces(self, call: Call, at: int, count: int) -> list[tuple[int, int]]:
        if count > _MOST_PIECES:
            raise Refused(errno.EMSGSIZE)
        return list(struct.iter_unpack("=QQ", self._caller.read(call, at, 16 * count))) if count else []

    # ------------------------------------------------------------ receiving

    def _answers(self) -> None:
        for _ in range(AT_ONCE):
            try:
                raw = self._gateway.recv(datagrams.MOST)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw:
                self._unwatch(self._gateway.fileno())
                return
            _kind, number, address, port, data = datagrams.parts(raw)
            stand_in = self._stand_ins.get(number)
            if stand_in is not None:
                self._answered(stand_in, address, port, data)

    def _answered(self, stand_in: StandIn, address: bytes, port: int, data: bytes) -> None:
        try:
            if stand_in.peer and internet(stand_in.peer, stand_in.family) != (address, port):
                return  # of a peer that it had before
            stand_in.ours.send(data)
        except (OSError, Refused):
            return  # more at once than the command reads
        stand_in.sources.append((hash(data), written(address, port, stand_in.family)))

    def on_recvfrom(self, call: Call) -> int | None:
        _number, _thread, _call, _fd, buffer, size, flags, at, length_at = call

        def put(data: bytes, source: bytes) -> int:
            self._caller.write(call, buffer, data[:size])
            if at:
                self._caller.put_address(call, source, at, length_at)
            return len(data) if flags & _MSG_TRUNC else min(len(data), size)

        return self._receive(call, flags, put)

    def on_recvmsg(self, call: Call) -> int | None:
        return self._receive(
            call, call[5], lambda data, source: self._put_message(call, call[4], call[5], data, source)
        )

    def on_recvmmsg(self, call: Call) -> int | None:
        """One message, which recvmmsg(2) may give; its time is looked at after a message only, as in the kernel."""
        at, flags = call[4], call[6]

        def put(data: bytes, source: bytes) -> int:
            size = self._put_message(call, at, flags, data, source)
            self._caller.write(call, at + _HEADER.size, struct.pack("=I", size))
            return 1

        return self._receive(call, flags, put) if call[5] & 0xFFFFFFFF else None

    def _put_message(self, call: Call, at: int, flags: int, data: bytes, source: bytes) -> int:
        name, name_size, _pad, pieces, count, *_rest = _HEADER.unpack(self._caller.read(call, at, _HEADER.size))
        done = 0
        for place, size in self._pieces(call, pieces, count):
            if done == len(data):
                break
            self._caller.write(call, place, data[done : done + size])
            done += min(size, len(data) - done)
        if name:
            self._caller.write(call, name, source[:name_size])
            self._caller.write(call, at + _NAME_LENGTH_AT, struct.pack("=I", len(source)))
        self._caller.write(call, at + _CONTROL_LENGTH_AT, bytes(8))
        self._caller.write(call, at + _FLAGS_AT, struct.pack("=I", _MSG_TRUNC if done < len(data) else 0))
        return len(data) if flags & _MSG_TRUNC else done

    def _receive(self, call: Call, flags: int, put: Put) -> int | None:
        stand_in = self._find(call)
        if stand_in is not None and flags & _MSG_ERRQUEUE:
            raise Refused(errno.EAGAIN)  # no error comes here, and a datagram is none
        return None if stand_in is None else self._take(stand_in, call, flags, put)

    def _take(self, stand_in: StandIn, call: Call, flags: int, put: Put) -> int:
        try:
            data = stand_in.theirs.recv(LONGEST, _MSG_DONTWAIT | flags & _MSG_PEEK)
        except BlockingIOError:
            if flags & _MSG_DONTWAIT or not os.get_blocking(stand_in.theirs.fileno()):
                raise
            # Those whose process was killed are dropped, so that no more wait than there are processes.
            stand_in.waiting = [each for each in stand_in.waiting if self._listener.valid(each[0][0])]
            stand_in.waiting.append((call, flags, put))
            self._await(stand_in)
            return -1
        return put(data, self._source(stand_in, data, keep=bool(flags & _MSG_PEEK)))

    def _source(self, stand_in: StandIn, data: bytes, *, keep: bool) -> bytes:
        """Where a datagram came from; those before it were received by calls that did not ask."""
        sources, own = stand_in.sources, hash(data)
        while sources:
            digest, raw = sources[0] if keep and sources[0][0] == own else sources.popleft()
            if digest == own:
                return raw
        return stand_in.peer or written(b"\x7f\0\0\1", 0, stand_in.family)

    def _await(self, stand_in: StandIn) -> None:
        if stand_in.watched:
            return
        fd = os.dup(stand_in.theirs.fileno())
        stand_in.watched = True

        def readable(_events: int) -> None:
            self._unwatch(fd)
            os.close(fd)
            stand_in.watched = False
            calls, stand_in.waiting = stand_in.waiting, []
            for call, flags, put in calls:
                self._received(stand_in, call, flags, put)

        self._watch(fd, readable, _IN)

    def _received(self, stand_in: StandIn, call: Call, flags: int, put: Put) -> None:
        if not self._listener.valid(call[0]):
            return  # it takes no datagram from those that still wait
        try:
            value = self._take(stand_in, call, flags, put)
            if value >= 0:
                self._listener.finish(call[0], value)
        except Refused as refused:
            self._listener.answer(call[0], refused.number)
        except OSError as error:
            self._listener.answer(call[0], error.errno or errno.EACCES)


def _is_group(address: bytes) -> bool:
    """A multicast or broadcast address (RFC 5771, RFC 919, RFC 4291 section 2.7), and what is reserved beside them."""
    return address[0] >= 224 if len(address) == 4 else address[0] == 0xFF
