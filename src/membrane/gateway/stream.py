"""One end of an inspected connection: a socket, with TLS or without, read and written without blocking.

Theory of operation
-------------------
TLS runs over two memory buffers (``ssl.MemoryBIO``), so the reactor sees plain sockets only.  ``read`` takes what
the peer has sent, decrypted; ``write`` queues, ``flush`` sends what the socket takes.  ``waiting`` says how much is
queued: the caller stops reading the other end while that is too much, so a slow reader slows its writer and nothing
grows.

Readiness is edge triggered: ``readable`` stays set until a read would have blocked, so a caller that stopped reading
can go on later without a new event.

References: ssl(3), RFC 8446 section 6.1 (close_notify).
"""

from __future__ import annotations

import ssl
from _socket import SHUT_WR
from _socket import socket as Socket

from .flow import BUFFER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_RECORD = 16384  # bytes of a TLS record (RFC 8446 section 5.1)


class Stream:
    """One end.

    Args:
        socket: connected and not blocking.
        first: bytes that were read from the socket already.
    """

    __slots__ = (
        "_broken",
        "_first",
        "_incoming",
        "_out",
        "_outgoing",
        "_said_goodbye",
        "_sent_end",
        "_tls",
        "ended",
        "ending",
        "ragged",
        "readable",
        "received",
        "sent",
        "socket",
    )

    def __init__(self, socket: Socket, first: bytes = b"") -> None:
        self.socket = socket
        self.readable = True  # a read may give something
        self.ended = False  # the peer sends no more
        self.ragged = False  # and did not say so in TLS
        self.ending = False  # we send no more once all is flushed
        self.received = self.sent = 0  # bytes on the wire
        self._broken = self._sent_end = self._said_goodbye = False
        self._first = first
        self._out = bytearray()
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO | None = None
        self._outgoing: ssl.MemoryBIO | None = None

    def start_tls(self, context: ssl.SSLContext, *, name: str = "", session: ssl.SSLSession | None = None) -> None:
        """Speak TLS from here on: as the client of ``name``, or as the server.

        Args:
            session: one of the same context and the same server, to be resumed if the server likes.

        Raises:
            ValueError: the name cannot be asked for.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not name, server_hostname=name or None, session=session
        )

    def shake(self) -> bool:
        """Go on with the handshake; true when it is complete.

        Raises:
            ssl.SSLError: it failed; an alert was sent if there is one.
            OSError: the socket failed, or the peer closed.
        """
        assert self._tls is not None
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
            except ssl.SSLError:
                self._try_flush()
                raise
            else:
                self.flush()
                return True
            if not self._fill():
                return False

    @property
    def protocol(self) -> str:
        """The ALPN name that was agreed on; empty without one."""
        return (self._tls.selected_alpn_protocol() or "") if self._tls is not None else ""

    @property
    def resumed(self) -> bool:
        """The handshake resumed a session."""
        return bool(self._tls is not None and self._tls.session_reused)

    def session(self) -> ssl.SSLSession | None:
        """What the next connection to the same server may resume; ``None`` when the server gave no ticket.

        In TLS 1.3 it comes with the first bytes after the handshake (RFC 8446 section 4.6.1).
        """
        session = self._tls.session if self._tls is not None else None
        return session if session is not None and session.has_ticket else None

    @property
    def waiting(self) -> int:
        """Bytes that the socket did not take yet."""
        return len(self._out) + (self._outgoing.pending if self._outgoing is not None else 0)

    @property
    def held(self) -> int:
        """Bytes of both directions that wait here."""
        return self.waiting + (self._incoming.pending if self._incoming is not None else 0)

    def _receive(self, most: int) -> bytes | None:
        if self._first:
            data, self._first = self._first, b""
            return data
        try:
            data = self.socket.recv(most)
        except BlockingIOError:
            self.readable = False
            return None
        self.received += len(data)
        return data

    def _fill(self, most: int = BUFFER) -> bool:
        """Give TLS what the socket has, ``most`` bytes of it; false when it has nothing."""
        assert self._incoming is not None
        data = self._receive(most)
        if data is None:
            return False
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return True

    def read(self, most: int = BUFFER) -> bytes | None:
        """What the peer has sent, about ``most`` bytes; empty at the end, ``None`` if nothing is there.

        Raises:
            ssl.SSLError: the peer broke TLS.
            OSError: the socket failed.
        """
        if self.ended:
            self.readable = False
            return None
        if self._tls is None:
            data = self._receive(most)
            self.ended = data == b""
            return data
        parts: list[bytes] = []
        size = 0
        while size < most:
            try:
                part = self._tls.read(min(_RECORD, most - size))
            except ssl.SSLWantReadError:
                if parts or not self._fill(most):
                    break
                continue
            except ssl.SSLZeroReturnError:
                part = b""
            except ssl.SSLError as error:
                if not isinstance(error, ssl.SSLEOFError) and error.reason != "UNEXPECTED_EOF_WHILE_READING":
                    raise
                self.ragged = True
                part = b""
            if not part:
                if not parts:
                    self.ended = True
                    return b""
                break
            parts.append(part)
            size += len(part)
        self.flush()  # a key update may ask for an answer
        return b"".join(parts) if parts else None

    def write(self, data: bytes) -> None:
        """Queue ``data`` and send what the socket takes.

        Raises:
            OSError: the socket failed.
        """
        if self._tls is None:
            if not self._out:
                data = data[self._send(data) :]
            self._out += data
            return
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self.flush()

    def end(self) -> None:
        """Send no more than what is queued, and say so to the peer."""
        self.ending = True
        self.flush()

    def flush(self) -> bool:
        """Send what is queued; true when nothing is left.

        Raises:
            OSError: the socket failed.
        """
        if self._outgoing is not None and self._outgoing.pending:
            self._out += self._outgoing.read()
        if self._out:
            del self._out[: self._send(self._out)]
        if self._out:
            return False
        if self.ending and not self._sent_end:
            if self._tls is not None and not self._said_goodbye:
                self._say_goodbye()
                if self._out:
                    return False
            self._sent_end = True
            try:
                self.socket.shutdown(SHUT_WR)
            except OSError:
                pass  # the peer is gone, and needs no end
        return True

    def _say_goodbye(self) -> None:
        """close_notify; what the peer still has to say is read by ``read`` as before."""
        assert self._tls is not None and self._outgoing is not None
        self._said_goodbye = True
        if self.ragged:
            return  # what was cut off reads as cut off
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError, OSError):
            pass  # it waits for the peer's, or the handshake is not complete
        self._out += self._outgoing.read()
        if self._out:
            del self._out[: self._send(self._out)]

    def break_off(self) -> None:
        """A write failed: what the peer had sent before may still be read, then the error."""
        self._out.clear()
        self._broken = self.readable = True

    def _try_flush(self) -> None:
        try:
            self.flush()
        except OSError:
            pass  # the peer is gone, and with it the one to answer

    def _send(self, data: bytes | bytearray) -> int:
        if self._broken:
            return len(data)
        try:
            count = self.socket.send(data)
        except BlockingIOError:
            return 0
        self.sent += count
        return count


def guarded_read(stream: Stream, failed: Callable[[str], None], most: int = BUFFER) -> bytes | None:
    """``stream.read``; ``failed`` gets a failure, which reads as nothing."""
    try:
        return stream.read(most)
    except ssl.SSLError as error:
        failed(f"TLS failed: {(error.reason or 'protocol error').replace('_', ' ').lower()}")
    except OSError as error:
        failed(error.strerror or str(error))
    stream.ended = True
    stream.readable = False
    return None
