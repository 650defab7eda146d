"""HTTP and SOCKS5 proxies inside, for programs that look for proxy variables.

Theory of operation
-------------------
The proxies are an address of the sandbox that is captured like any other (the resolver's, ports ``PROXY_PORTS``); both
ports take both protocols.  What a client asks for is read exactly, without a byte of what follows, and decided by the
router as a captured connection is.  ``CONNECT`` and SOCKS5 clients then become ordinary connections of the relay.
A plain request (absolute-form) is written anew for its origin and passed through a socket pair to such a connection:
one request for each client connection, so a second one can never reach the first one's origin.

References: RFC 9110 section 9.3.6 (CONNECT), RFC 9112 section 3.2.2 (absolute-form), RFC 1928, RFC 1929.
"""

from __future__ import annotations

from _socket import (
    AF_UNIX,
    MSG_PEEK,
    SHUT_WR,
    SO_LINGER,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    socketpair,
)
from _socket import socket as Socket

from ..plan.model import PROXY_PORTS, RESOLVER_V4
from .connection import RESET, guarded
from .http.heads import Framing, RequestHead
from .http.requests import Flaw
from .reactor import EDGE, ERR, HUP, IN, OUT, RDHUP
from .relay import TcpConnection
from .route import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Client as Peer
    from .http.bodies import Body
    from .relay import Engine
    from .route import Route, Router

LONGEST_HEAD = 65536  # bytes of a request head
GREETING = 30.0  # seconds for a client to say what it wants
LINGER = 20.0  # seconds for a refused client to read the answer
MOST_HELD = 262144  # bytes of one direction of a plain request
MOST_CLIENTS = 1024  # that have not said yet what they want, or wait for a plain answer
_READ = 65536
_WRITTEN_HERE = frozenset([b"transfer-encoding", b"upgrade"])  # or left out
_OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"
_HTTP_PORT = 80
_IPV4, _NAME, _IPV6 = 1, 3, 4  # RFC 1928 section 5
_NOT_ALLOWED, _UNREACHABLE, _BAD_COMMAND, _BAD_ADDRESS = 2, 4, 7, 8  # RFC 1928 section 6


class Replies:
    """How a client of a proxy is answered: over HTTP, or with ``socks`` in replies of RFC 1928."""

    __slots__ = ("opening", "socks")

    def __init__(self, *, socks: bool, silent: bool = False) -> None:
        self.socks = socks
        self.opening = b"" if silent else _reply(0) if socks else _OPEN

    def refused(self, cause: Refusal | str) -> bytes:
        """The answer to a client that is refused, or whose destination cannot be reached (a string)."""
        if self.socks:
            return _reply(_NOT_ALLOWED if isinstance(cause, Refusal) else _UNREACHABLE)
        if isinstance(cause, Refusal):
            event = cause.event
            return answer(403, "Forbidden", f"Connection blocked by network allowlist: {event.reason}", event.hint)
        return answer(502, "Bad Gateway", f"The destination cannot be reached: {cause}", "")


def _reply(code: int) -> bytes:
    return bytes((5, code, 0, _IPV4)) + bytes(6)


def answer(status: int, phrase: str, text: str, hint: str | None) -> bytes:
    """A whole HTTP answer of our own; it closes the connection."""
    body = (f"{text}\n" + (f"{hint}\n" if hint else "")).encode("utf-8", "backslashreplace")
    verdict = "x-proxy-error: blocked-by-allowlist\r\nx-membrane-verdict: deny\r\n" if status == 403 else ""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n{verdict}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def split_authority(text: str, default: int = 0) -> tuple[str, int]:
    """``HOST[:PORT]`` of a request -> host without brackets, port; port 0: it is missing or malformed."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and rest[0] != ":"):
            return "", 0
        port = rest[1:] if rest else str(default)
    else:
        host, colon, port = text.partition(":")
        if not colon:
            port = str(default)
        elif ":" in port:
            return "", 0
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or not 0 < int(port) < 65536 or not host:
        return "", 0
    if any(not 0x20 < ord(char) < 0x7F for char in host):
        return "", 0
    return host, int(port)


def plain_target(target: str) -> tuple[str, int, str]:
    """``http://HOST[:PORT]/PATH?QUERY`` -> host, port, origin-form target; port 0: it is none."""
    scheme, mark, rest = target.partition("://")
    if scheme.lower() != "http" or not mark:
        return "", 0, ""
    end = min((at for at in (rest.find("/"), rest.find("?"), rest.find("#")) if at >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if "@" in authority or "#" in path:
        return "", 0, ""
    host, port = split_authority(authority, _HTTP_PORT)
    return host, port, path if path.startswith("/") else "/" + path


def rewrite(head: RequestHead, framing: Framing, host: str, port: int, path: str) -> bytes:
    """The head as the origin gets it: the authority that was decided, no hop-by-hop field, one request."""
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == _HTTP_PORT else f"{shown}:{port}"
    lines = [b"%b %b HTTP/1.1" % (head.method, path.encode("latin-1")), b"Host: " + authority.encode()]
    for name, raw, value in zip(head.names, head.raw_names, head.values, strict=True):
        if name not in framing.dropped and name not in _WRITTEN_HERE and not name.startswith(b"proxy-"):
            lines.append(raw + b": " + value)
    if framing.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


class Proxies:
    """The proxies of one session."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clients: set[_Client] = set()
        self.greetings = engine.reactor.wait(GREETING, ProxyClient.reset)
        self.linger = engine.reactor.wait(LINGER, _Client.reset)

    def takes(self, client: Socket, address: str, port: int, peer: tuple[str, int]) -> bool:
        """Serve a client that was just accepted, if a proxy is what it dialled."""
        if address != RESOLVER_V4 or port not in PROXY_PORTS:
            return False
        if len(self.clients) >= MOST_CLIENTS:
            client.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
            client.close()
        else:
            clients = self.engine.clients
            ProxyClient(self, client, (peer[1], 0) if clients is None else clients.tcp(peer, (address, port)))
        return True


class _Client:
    """A client of a proxy, until its socket goes on elsewhere or is closed."""

    __slots__ = ("_proxies", "_socket")

    def __init__(self, proxies: Proxies, socket: Socket) -> None:
        self._proxies, self._socket = proxies, socket
        proxies.clients.add(self)

    def failed(self, error: Exception) -> None:
        """Whatever went wrong ends this client, and nothing else."""
        if not isinstance(error, (OSError, Flaw)):
            self._proxies.engine.crashed(error)
        self.reset()

    def reset(self) -> None:
        """Nothing more to say: RST."""
        proxies = self._proxies
        if self in proxies.clients:
            self._leave()
            self._socket.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
            proxies.engine.reactor.close_later(self._socket)

    def _leave(self) -> None:
        self._proxies.clients.discard(self)
        self._proxies.greetings.end(self)
        self._proxies.linger.end(self)

    def _linger(self) -> None:
        """All is said: read on, as closing on unread bytes would reset it away."""
        self._proxies.linger.begin(self)
        self._discard()

    def _discard(self) -> None:
        for _ in range(16):
            data = _receive(self._socket)
            if data is None:
                return
            if not data:
                break
        self.reset()


class ProxyClient(_Client):
    """A client that has not said yet what it wants."""

    __slots__ = ("_answered", "_held", "_peer", "_stage")

    def __init__(self, proxies: Proxies, socket: Socket, peer: Peer) -> None:
        super().__init__(proxies, socket)
        self._peer = peer
        self._stage = ""  # "", "socks auth", "socks request"
        self._answered = False
        self._held = False  # a question is open
        proxies.greetings.begin(self)
        # Edge triggered: what is looked at is not taken, and must not wake us again.
        proxies.engine.reactor.watch(socket.fileno(), IN | RDHUP | EDGE, self._ready)

    @guarded
    def _ready(self, mask: int) -> None:
        if self._answered:
            self._discard()
            return
        while not self._held and self._step():
            pass
        if self in self._proxies.clients and not self._answered and mask & (RDHUP | HUP | ERR):
            self.reset()

    def _step(self) -> bool:
        """Take one message of the client; true when another one may be there already."""
        try:
            data = self._socket.recv(LONGEST_HEAD, MSG_PEEK)
        except BlockingIOError:
            return False
        if not data:
            self.reset()
            return False
        if self._stage or data[0] == 5:
            return self._socks(data)
        return self._http(data)

    def _answer(self, data: bytes) -> None:
        """The last word."""
        self._proxies.greetings.end(self)
        self._answered = True
        whole = self._socket.send(data) == len(data)
        self._socket.shutdown(SHUT_WR)
        if whole:
            self._linger()
        else:
            self.reset()

    def _go(self, host: str, port: int, replies: Replies) -> None:
        """Take the client where it wants to go."""

        def go(route: Route, router: Router) -> None:
            TcpConnection(self._proxies.engine, self._socket, self._peer, replies).go(route, router)

        self._route(host, port, replies, go)

    def _route(self, host: str, port: int, replies: Replies, go: Callable[[Route, Router], None]) -> None:
        """Decide, or ask; then call ``go`` or refuse."""
        engine = self._proxies.engine
        route = engine.router.proxied(host, port)
        question = route.question if isinstance(route, Refusal) else None
        if question is None or engine.approvals is None:
            self._routed(route, engine.router, replies, go)
            return
        assert isinstance(route, Refusal)
        refusal = route

        @guarded
        def answered(self: ProxyClient, router: Router | None) -> None:
            if self in self._proxies.clients:
                self._held = False
                later = refusal if router is None else router.proxied(host, port)
                self._routed(later, router or engine.router, replies, go)

        self._held = True
        self._proxies.greetings.end(self)
        client = {"protocol": "tcp", "port": self._peer[0]}
        engine.approvals.ask(question, refusal.event.hint or "", lambda router: answered(self, router), client)

    def _routed(
        self, route: Route | Refusal, router: Router, replies: Replies, go: Callable[[Route, Router], None]
    ) -> None:
        engine = self._proxies.engine
        if isinstance(route, Refusal):
            engine.refused += 1
            engine.emit(route.event.of(self._peer))
            self._answer(replies.refused(route))
            return
        self._leave()  # the socket goes on elsewhere
        engine.reactor.unwatch(self._socket.fileno())
        go(route, router)

    # ------------------------------------------------------------ SOCKS5

    def _socks(self, data: bytes) -> bool:
        if not self._stage:
            if len(data) < 2 or len(data) < 2 + data[1]:
                return False
            methods = data[2 : 2 + data[1]]
            self._socket.recv(2 + data[1])
            if 0 in methods:
                self._socket.send(b"\5\0")
                self._stage = "socks request"
            elif 2 in methods:
                self._socket.send(b"\5\2")
                self._stage = "socks auth"
            else:
                self._answer(b"\5\xff")
                return False
            return True
        if self._stage == "socks auth":
            if len(data) < 2 or len(data) < 3 + data[1] or len(data) < 3 + data[1] + data[2 + data[1]]:
                return False
            self._socket.recv(3 + data[1] + data[2 + data[1]])
            self._socket.send(b"\1\0")  # only the command is in here
            self._stage = "socks request"
            return True
        return self._socks_request(data)

    def _socks_request(self, data: bytes) -> bool:
        if data[0] != 5:
            self.reset()
            return False
        if len(data) < 5:
            return False
        sizes = {_IPV4: 4, _IPV6: 16, _NAME: 1 + data[4]}
        size = sizes.get(data[3], 0)
        if not size:
            self._socket.recv(len(data))
            self._answer(_reply(_BAD_ADDRESS))
            return False
        if len(data) < 6 + size:
            return False
        raw = self._socket.recv(6 + size)
        if raw[1] != 1:  # BIND and UDP ASSOCIATE
            self._answer(_reply(_BAD_COMMAND))
            return False
        self._go(_socks_host(raw[3], raw[4 : 4 + size]), int.from_bytes(raw[4 + size :], "big"), Replies(socks=True))
        return False

    # ------------------------------------------------------------ HTTP

    def _http(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) >= LONGEST_HEAD or data[:1] == b"\x16":
                self._answer(answer(400, "Bad Request", "This is an HTTP proxy.", ""))
            return False
        self._socket.recv(end + 4)
        head = RequestHead()
        try:
            head.read(data[:end])
            framing = Framing(head)
        except Flaw as flaw:
            self._answer(answer(400, "Bad Request", str(flaw), ""))
            return False
        target = head.target.decode("latin-1")
        if head.method == b"CONNECT":
            host, port = split_authority(target)
            if not port or framing.body:
                self._answer(answer(400, "Bad Request", "CONNECT needs HOST:PORT and no content.", ""))
                return False
            self._go(host, port, Replies(socks=False))
            return False
        host, port, path = plain_target(target)
        if not port:
            self._answer(answer(400, "Bad Request", "A proxy is asked for http://HOST/PATH, or with CONNECT.", ""))
            return False
        body, start = framing.reader(), rewrite(head, framing, host, port, path)

        def go(route: Route, router: Router) -> None:
            PlainRequest(self._proxies, self._socket, self._peer, route, start, body, router)

        self._route(host, port, Replies(socks=False), go)
        return False


def _socks_host(kind: int, raw: bytes) -> str:
    if kind == _NAME:
        return raw[1:].decode("latin-1")
    from _socket import AF_INET, AF_INET6, inet_ntop

    return inet_ntop(AF_INET if kind == _IPV4 else AF_INET6, raw)


class PlainRequest(_Client):
    """One plain request: the client on one side, a connection of the relay behind a socket pair on the other."""

    __slots__ = ("_body", "_down", "_ended", "_engine", "_inner", "_masks", "_sent_end", "_up")

    def __init__(
        self, proxies: Proxies, client: Socket, peer: Peer, route: Route, head: bytes, body: Body, router: Router
    ) -> None:
        pair = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
        super().__init__(proxies, client)
        self._engine, self._body = proxies.engine, body
        self._inner = pair[0]
        self._up, self._down = bytearray(head), bytearray()
        self._ended = self._sent_end = False
        self._masks: dict[int, int] = {}
        for socket in (client, self._inner):
            self._masks[socket.fileno()] = 0
            self._engine.reactor.watch(socket.fileno(), 0, self._ready)
        self._set_masks()
        TcpConnection(self._engine, pair[1], peer, Replies(socks=False, silent=True)).go(route, router)

    @guarded
    def _ready(self, _mask: int) -> None:
        if self._sent_end:
            self._discard()
        else:
            self._move()

    def _move(self) -> None:
        while not self._body.done and len(self._up) < MOST_HELD:
            data = _receive(self._socket)
            if data is None:
                break
            if not data:
                raise OSError("the client ended within its request")
            out: list[bytes] = []
            self._body.feed(data, 0, out)
            self._up += b"".join(out)
        _send(self._inner, self._up)
        while not self._ended and len(self._down) < MOST_HELD:
            data = _receive(self._inner)
            if data is None:
                break
            self._ended = not data
            self._down += data
        _send(self._socket, self._down)
        if self._ended and not self._down:
            self._end()
            return
        self._set_masks()

    def _set_masks(self) -> None:
        wants = {
            self._socket.fileno(): (IN if not self._body.done and len(self._up) < MOST_HELD else 0)
            | (OUT if self._down else 0),
            self._inner.fileno(): (IN if not self._ended and len(self._down) < MOST_HELD else 0)
            | (OUT if self._up else 0),
        }
        for fd, mask in wants.items():
            if self._masks[fd] != mask:
                self._masks[fd] = mask
                self._engine.reactor.change(fd, mask)

    def _end(self) -> None:
        """The answer is complete."""
        self._sent_end = True
        self._socket.shutdown(SHUT_WR)
        self._engine.reactor.close_later(self._inner)
        self._engine.reactor.change(self._socket.fileno(), IN)
        self._linger()

    def _leave(self) -> None:
        super()._leave()
        if not self._sent_end:
            self._engine.reactor.close_later(self._inner)


def _receive(socket: Socket) -> bytes | None:
    try:
        return socket.recv(_READ)
    except BlockingIOError:
        return None


def _send(socket: Socket, data: bytearray) -> None:
    try:
        while data:
            del data[: socket.send(data)]
    except BlockingIOError:
        return
