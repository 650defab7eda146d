"""Streams between the two halves of a carried run, over the one pipe of a ``docker exec``.

Theory of operation
-------------------
A unix socket or a port of the caller's loopback is not there in a container, and on macOS it cannot be mounted either.
So each half has a ``Pipe`` with a table of *services* that the other may open by number, and nothing else: outside the
sockets that the policy names, ports of the loopback and files that the caller named; inside the listeners of exposed
ports.  What the command may say to a service was judged before it comes here, by the gateway inside.

A frame is a head of nine bytes (kind, stream, length) and its data.  A stream has a window in each direction, so one
that is not read holds up no other, and what is kept for it is bounded.  The half inside is not trusted by the one
outside: a frame that the other may not send (an unknown kind, service or stream, data over the window, more than
``MOST`` streams) ends the pipe, and with the pipe the run.

Plain poll(2), no thread; it runs on macOS.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct

from ..errors import HostError
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OPEN, DATA, END, RESET, CREDIT = range(1, 6)
HEAD = 9  # bytes: kind 1, stream 4, length 4
PIECE = 1 << 15  # bytes of data in a frame, at most
WINDOW = 1 << 18  # bytes of one stream that are on their way or wait
MOST = 96  # streams at once that one half began: macOS gives a process 256 descriptors
WAITING = 1 << 20  # bytes for the pipe, from which no more is taken from services; twice that: nor from the pipe
BACKLOG = 128
_AT_ONCE = struct.pack("ii", 1, 0)  # struct linger
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Service(Value):
    """What the other half may open."""

    kind: str  # "socket", "port", "file"
    path: str = ""  # of a socket, without links
    owner: int = -1  # who must own it
    port: int = 0  # on the loopback
    fd: int = -1  # of a file


class Broken(HostError):
    """The other half does not keep to what is said above."""

    def __init__(self, cause: str) -> None:
        super().__init__("speak with the other half of the run", cause)


class _Stream:
    """One stream.  ``source``, ``sink``: descriptors; -1: that direction has ended, or is not there yet."""

    def __init__(self, number: int, service: Service | None) -> None:
        self.number, self.service = number, service
        self.socket: socket.socket | None = None
        self.source = self.sink = -1
        self.tried = 0  # addresses of the loopback
        self.connecting = False
        self.credit = WINDOW  # bytes that the other takes
        self.given = WINDOW  # bytes that the other may send
        self.pending = bytearray()  # for the sink
        self.sent_end = self.had_end = False


class Pipe:
    """One half.

    Args:
        reading, writing: of the pipe, or one socket twice; not owned.
        own: which numbers streams have that begin here: 0 even ones (outside), 1 odd ones.
        services: what the other half may open, by number.
    """

    def __init__(self, reading: int, writing: int, own: int, services: Iterable[Service]) -> None:
        self.reading, self.writing = reading, writing
        self.services = tuple(services)
        self.ended = False
        self._own, self._next = own, own
        self._in, self._out = bytearray(), bytearray()
        self._streams: dict[int, _Stream] = {}
        self._listeners: dict[int, tuple[socket.socket, int]] = {}
        for fd in (reading, writing):
            os.set_blocking(fd, False)

    def listen(self, listener: socket.socket, service: int) -> None:
        """Each connection to ``listener`` opens a service of the other half."""
        listener.setblocking(False)
        self._listeners[listener.fileno()] = (listener, service)

    def send(self, source: int, service: int) -> int:
        """Send what can be read of a descriptor to a service, until it has ended; the number of the stream.

        Args:
            source: a regular file, or what does not wait; owned from now on.
        """
        stream = self._begin(service)
        stream.source = source
        return stream.number

    def is_open(self, number: int) -> bool:
        """Whether the other half has not taken all of a stream yet."""
        return number in self._streams and not self.ended

    def close(self) -> None:
        """End everything that is open."""
        self.ended = True
        for stream in list(self._streams.values()):
            self._drop(stream)
        for listener, _service in self._listeners.values():
            listener.close()
        self._listeners.clear()

    # ------------------------------------------------------------ the loop of its user

    def waits(self) -> dict[int, int]:
        """What to wait for: events of poll(2) for each descriptor."""
        if self.ended:
            return {}
        out: dict[int, int] = {}
        if len(self._out) < 2 * WAITING:
            out[self.reading] = select.POLLIN
        if self._out:
            out[self.writing] = out.get(self.writing, 0) | select.POLLOUT
        if len(self._streams) < MOST:
            out.update(dict.fromkeys(self._listeners, select.POLLIN))
        for stream in self._streams.values():
            if self._may_take(stream):
                out[stream.source] = out.get(stream.source, 0) | select.POLLIN
            if stream.sink >= 0 and (stream.pending or stream.connecting):
                out[stream.sink] = out.get(stream.sink, 0) | select.POLLOUT
        return out

    def turn(self, ready: Iterable[tuple[int, int]]) -> None:
        """Do what can be done.

        Args:
            ready: what poll(2) returned.

        Raises:
            Broken: the other half must not be listened to any more.
        """
        events = dict(ready)
        if self.ended:
            return
        for fd in [fd for fd in self._listeners if fd in events]:
            self._accept(*self._listeners[fd])
        if events.get(self.reading, 0) & ~select.POLLOUT:
            self._read()
        for stream in list(self._streams.values()):
            if stream.sink >= 0 and stream.sink in events and (stream.pending or stream.connecting):
                self._write(stream)
            if self._may_take(stream) and events.get(stream.source, 0) & ~select.POLLOUT:
                self._take(stream)
        self._flush()

    # ------------------------------------------------------------ the pipe

    def _frame(self, kind: int, number: int, data: bytes = b"") -> None:
        self._out += bytes((kind,)) + number.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data

    def _flush(self) -> None:
        while self._out:
            try:
                sent = os.write(self.writing, self._out[: 1 << 16])
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            del self._out[:sent]

    def _read(self) -> None:
        try:
            data = os.read(self.reading, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        while len(self._in) >= HEAD:
            size = int.from_bytes(self._in[5:9], "big")
            if size > PIECE:
                raise Broken(f"a frame of {size} bytes")
            if len(self._in) < HEAD + size:
                return
            kind, number = self._in[0], int.from_bytes(self._in[1:5], "big")
            body = bytes(self._in[HEAD : HEAD + size])
            del self._in[: HEAD + size]
            self._on_frame(kind, number, body)

    def _on_frame(self, kind: int, number: int, body: bytes) -> None:
        if kind == OPEN:
            self._on_open(number, body)
            return
        stream = self._streams.get(number)
        if kind not in (DATA, END, RESET, CREDIT):
            raise Broken(f"a frame of kind {kind}")
        if stream is None:
            return  # it was dropped here, and the other half has not seen that yet
        if kind == RESET:
            self._drop(stream)
        elif kind == CREDIT:
            more = int.from_bytes(body, "big")
            if len(body) != 4 or stream.credit + more > WINDOW:
                raise Broken("more credit than was used")
            stream.credit += more
        elif stream.had_end:
            raise Broken("data after the end of a stream")
        elif kind == END:
            stream.had_end = True
            self._write(stream)
        else:
            stream.given -= len(body)
            if stream.given < 0:
                raise Broken("more data than the window of a stream")
            stream.pending += body
            self._write(stream)

    def _on_open(self, number: int, body: bytes) -> None:
        service = int.from_bytes(body, "big")
        if len(body) != 4 or service >= len(self.services):
            raise Broken("a service that it may not open")
        if number % 2 == self._own or number in self._streams or len(self._streams) >= 2 * MOST:
            raise Broken("a stream that it may not begin")
        stream = self._streams[number] = _Stream(number, self.services[service])
        if self.services[service].kind == "file":
            stream.sink = os.dup(self.services[service].fd)
            return
        self._connect(stream)

    # ------------------------------------------------------------ streams

    def _begin(self, service: int) -> _Stream:
        self._next += 2
        number = self._next & 0x7FFFFFFF
        stream = self._streams[number] = _Stream(number, None)
        self._frame(OPEN, number, service.to_bytes(4, "big"))
        return stream

    def _accept(self, listener: socket.socket, service: int) -> None:
        if len(self._streams) >= MOST:
            return
        try:
            connection, _address = listener.accept()
        except OSError:
            return  # it has gone again
        self._attach(self._begin(service), connection)

    @staticmethod
    def _attach(stream: _Stream, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.socket = connection
        stream.source = stream.sink = connection.fileno()

    def _connect(self, stream: _Stream) -> None:
        """Begin to reach its service; at its next address where one was tried."""
        service = stream.service
        assert service is not None
        if stream.socket is not None:
            stream.socket.close()
            stream.socket, stream.source, stream.sink = None, -1, -1
        while stream.tried < (1 if service.kind == "socket" else len(_LOOPBACK)):
            family, address = _LOOPBACK[stream.tried]
            stream.tried += 1
            connection = None
            try:
                if service.kind == "socket":
                    check(service)
                    family = socket.AF_UNIX
                connection = socket.socket(family, socket.SOCK_STREAM)
                connection.setblocking(False)
                connection.connect(service.path if family == socket.AF_UNIX else (address, service.port))
                stream.connecting = False
            except BlockingIOError:
                # EINPROGRESS.  Of a unix socket it is EAGAIN, its queue is full: a refusal (unix(7)).
                assert connection is not None
                if family == socket.AF_UNIX:
                    connection.close()
                    continue
                stream.connecting = True
            except OSError:
                if connection is not None:
                    connection.close()
                continue
            self._attach(stream, connection)
            self._write(stream)
            return
        self._refuse(stream)

    def _refuse(self, stream: _Stream) -> None:
        self._frame(RESET, stream.number)
        self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        self._streams.pop(stream.number, None)
        if stream.socket is not None:
            if stream.socket.family != socket.AF_UNIX and not (stream.had_end and stream.sent_end):
                # The other end sees a reset and no end (socket(7), SO_LINGER): what came is not all.
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            stream.socket.close()
        else:
            for fd in {stream.source, stream.sink} - {-1}:
                os.close(fd)
        stream.socket, stream.source, stream.sink = None, -1, -1

    def _write(self, stream: _Stream) -> None:
        """Bring what waits to the sink."""
        if stream.connecting:
            assert stream.socket is not None
            if not _is_writable(stream.sink):
                return
            if stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._connect(stream)
                return
            stream.connecting = False
        if stream.sink < 0:
            if stream.pending:
                raise Broken("data for what only sends")
            self._end_if_done(stream)
            return
        try:
            while stream.pending:
                if stream.socket is None and not _is_writable(stream.sink):
                    return  # the caller's own descriptor: whether it waits is not ours to change
                most = PIECE if stream.socket is not None else select.PIPE_BUF
                written = os.write(stream.sink, stream.pending[:most])
                del stream.pending[:written]
                stream.given += written
                self._frame(CREDIT, stream.number, written.to_bytes(4, "big"))
        except BlockingIOError:
            return
        except OSError:
            self._refuse(stream)
            return
        if stream.had_end:
            if stream.socket is not None:
                try:
                    stream.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
            else:
                os.close(stream.sink)
                self._frame(END, stream.number)  # the word that all of it was written
                stream.sent_end = True
            stream.sink = -1
            self._end_if_done(stream)

    def _may_take(self, stream: _Stream) -> bool:
        return stream.source >= 0 and bool(stream.credit) and not stream.connecting and len(self._out) < WAITING

    def _take(self, stream: _Stream) -> None:
        """Send what the source has."""
        try:
            data = os.read(stream.source, min(PIECE, stream.credit))
        except BlockingIOError:
            return
        except OSError:
            self._refuse(stream)
            return
        if data:
            stream.credit -= len(data)
            self._frame(DATA, stream.number, data)
            return
        self._frame(END, stream.number)
        stream.sent_end = True
        if stream.socket is None:
            os.close(stream.source)
        stream.source = -1
        self._end_if_done(stream)

    def _end_if_done(self, stream: _Stream) -> None:
        if stream.sent_end and stream.had_end and not stream.pending:
            self._drop(stream)


def check(service: Service) -> None:
    """Whether what has the name is still what was named.

    Raises:
        OSError: it is not there.
        PermissionError: it is no socket, or another user's.
    """
    found = os.lstat(service.path)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != service.owner:
        raise PermissionError("it is not the socket that was named")


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
