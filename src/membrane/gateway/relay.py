"""Moves the bytes of intercepted TCP connections.

Theory of operation
-------------------
Each accepted connection is a small state machine driven by edge-triggered readiness::

    RESOLVING -> CONNECTING -> [GREETING] -> OPEN -> closed
         \\____________\\____________\\_________\\--> EXPLAINING -> LINGERING -> closed

The server's bytes flow to the client as soon as the upstream is connected, so protocols in which the server speaks
first need no timer.  The client's bytes are *held*: they stay in the kernel (``MSG_PEEK``) until ``route`` has
judged them: towards a name until they are known to be TLS or another protocol (``openings``), unless the server has
spoken first.  What follows a hello that bears a name waits for the server's answer: a second hello that the server asks
for is judged as well, and so is the one behind a request for TLS of PostgreSQL.

Rules
-----
1. Nothing reaches an upstream before ``Router`` has allowed the name, the address and the first bytes.
2. A refused or failed client is answered in its own protocol within ``EXPLAIN`` seconds, or reset.
3. Half-close is passed on in each direction; a reset on one side resets the other; silence may last for ever.
4. Whatever goes wrong in a connection ends that connection only, with a reset.

One file of over 800 lines: the states of one machine, which are read together.
"""

from __future__ import annotations

import os
import struct
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    MSG_PEEK,
    SHUT_WR,
    SO_ERROR,
    SO_KEEPALIVE,
    SO_LINGER,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_CONGESTION,
    TCP_NODELAY,
)
from _socket import socket as Socket
from errno import EINPROGRESS

from ..events import ConnectionClosed, ConnectionOpened
from ..policy import reasons
from ..policy.model import Connect, Deny
from . import openings, sniff
from .dns import LONGEST_QUERY, TcpMessages
from .flow import BUFFER, Flow, LimitReached, Pump, cut_short
from .guarded import guarded
from .journal import denial
from .listener import WITHIN_HOST, Listener
from .reactor import EDGE, ERR, HUP, IN, OUT, PRI, RDHUP
from .room import Room
from .route import LOOPBACK, Refusal, Route, Router, alert, http_answer, refuse_protocol, refuse_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Client, Event
    from .asking import Asking
    from .budgets import Ledger
    from .clients import Clients
    from .dns import Answerer
    from .intercept import Inspector
    from .proxy import Front
    from .reactor import Reactor
    from .upstream import Answer, Handshake, Proxy, Upstreams

CONNECT = 20.0  # seconds for all addresses of one name together with the proxy's greeting
ATTEMPT = 5.0  # seconds for one address while there are others
HELLO = 30.0  # seconds for a TLS hello that has begun
EXPLAIN = 0.05  # seconds that a refused client has to show what it speaks
LINGER = 2.0  # seconds for a refused client to read the answer
DNS_IDLE = 30.0  # seconds between two messages on a DNS connection
DNS_PORT = 53

_RESOLVING, _CONNECTING, _GREETING, _OPEN, _EXPLAINING, _LINGERING, _DNS, DEAD, _ASKING = range(9)
_DISCARD = 1 << 20  # bytes read from a client that was answered already
_RESET = struct.pack("ii", 1, 0)
_CUT = sniff.First("tls", flaw="ClientHello is not complete")
_ENDED = RDHUP | HUP | ERR
_READABLE = IN | _ENDED
_NOT_FRESH = _ENDED | PRI  # an end follows the bytes, or a read stops at the urgent mark (``Pump.move``)
ALL = IN | PRI | OUT | RDHUP | EDGE


class Engine:
    """All TCP connections of one session.

    Args:
        ledger: what may still be sent.
        connections: how many may exist at once.
        inspector: takes the connections whose requests are to be judged; without one they are refused.
        emit: takes events.
        verbose: emit ``ConnectionOpened`` and ``ConnectionClosed``; two records for each connection cost as much
            as a quarter of the relaying.
        crashed: takes the exception of a connection that failed for a reason of ours.
    """

    def __init__(
        self,
        reactor: Reactor,
        router: Router,
        answerer: Answerer,
        upstreams: Upstreams,
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        *,
        ledger: Ledger,
        connections: int = 4096,
        verbose: bool = True,
        inspector: Inspector | None = None,
    ) -> None:
        self.asking: Asking | None = None  # without one, what no rule decides is refused
        self.clients: Clients | None = None  # without one, nobody wants to know the inodes of the clients' sockets
        self.reactor, self.router, self.answerer, self.upstreams = reactor, router, answerer, upstreams
        self.emit, self.crashed = emit, crashed
        self.limit = connections
        self.verbose = verbose
        self.inspector = inspector
        self.connections: set[Connection] = set()
        self.accepted = self.refused = self.failed = 0
        self.ledger = ledger
        self.room = Room()  # for what waits in memory
        self.pump = Pump(self.room)
        self.connect = reactor.wait(CONNECT, Connection.too_late)
        self.attempt = reactor.wait(ATTEMPT, Connection.try_next)
        self.hello = reactor.wait(HELLO, Connection.hello_late)
        self.explain = reactor.wait(EXPLAIN, Connection.reset)
        self.linger = reactor.wait(LINGER, Connection.reset)
        self.dns_idle = reactor.wait(DNS_IDLE, Connection.reset)
        self.waits = (self.connect, self.attempt, self.hello, self.explain, self.linger, self.dns_idle)
        self.front: Front | None = None  # serves the proxies that are offered inside
        self._pause = reactor.wait(0.1, Listener.start)
        self._busy: dict[Connection, None] = {}
        self._next_id = 1

    def number(self) -> int:
        """The next connection number."""
        self._next_id += 1
        return self._next_id - 1

    def hosts(self) -> set[str]:
        """The names that connections are bound to."""
        return {each.host for each in self.connections}

    def listen(self, listener: Socket, *, dnat: bool = False) -> None:
        """Serve a listening socket.

        Args:
            listener: its accepted sockets carry the original destination as their own address, or,
                with ``dnat``, as ``SO_ORIGINAL_DST``.
        """
        Listener(self.reactor, listener, dnat, self._arrived, self._pause.begin).start()

    def close(self) -> None:
        """End every connection and give back the pipes; the reactor makes no turn after this."""
        for connection in list(self.connections):
            connection.finish("session ended")
        self.pump.close()

    def _arrived(self, client: Socket, address: str, port: int, peer: tuple[str, int]) -> None:
        self.accepted += 1
        if self.front is not None and self.front.takes(client, address, port, peer):
            return
        connection = Connection(self, client, self.number(), peer[1])
        if self.clients is not None:
            connection.client_socket = self.clients.tcp(peer, (address, port))
        self.connections.add(connection)
        connection.begin(address, port)

    def busy(self, connection: Connection) -> None:
        """Give ``connection`` another turn."""
        if not self._busy:
            self.reactor.soon(self._drive_busy)
        self._busy[connection] = None

    def _drive_busy(self) -> None:
        connections, self._busy = self._busy, {}
        for connection in connections:
            connection.on_turn()


class Connection:
    """One intercepted connection, from accept to close."""

    __slots__ = (
        "_addresses",
        "_agreed",
        "_asked_for_tls",
        "_client",
        "_client_ended",
        "_client_mask",
        "_dial_port",
        "_dns",
        "_down",
        "_engine",
        "_failures",
        "_handshake",
        "_held",
        "_hello_size",
        "_protocol",
        "_refusal",
        "_retried",
        "_route",
        "_router",
        "_sni",
        "_started",
        "_state",
        "_up",
        "_upstream",
        "_upstream_ended",
        "address",
        "client_port",
        "client_socket",
        "id",
        "told",
    )

    def __init__(self, engine: Engine, client: Socket, ident: int, client_port: int) -> None:
        self.id, self.client_port = ident, client_port
        self.client_socket = 0  # its inode
        self.address = ""  # dialled last
        self.told = False  # ConnectionOpened was emitted
        self._engine = engine
        self._client = client
        self._upstream: Socket | None = None
        self._state = _RESOLVING
        self._held = True
        self._client_mask = 0  # what its socket reported before the upstream was connected
        self._client_ended = self._upstream_ended = False
        self._hello_size = 0  # bytes of a hello whose answer is awaited
        self._retried = False  # the server asked for a second hello
        self._asked_for_tls = False  # what follows is TLS if the server agrees (PostgreSQL)
        self._agreed = False  # it did
        self._started = engine.reactor.now
        self._route: Route | None = None
        self._router = engine.router  # another one after an answer that holds for this connection alone
        self._refusal: Refusal | str | None = None  # a string: the upstream failed
        self._addresses: list[str] = []
        self._dial_port = 0
        self._failures: list[str] = []
        self._protocol, self._sni = "tcp", ""
        self._handshake: Handshake | None = None
        self._up: Flow | None = None
        self._down: Flow | None = None
        self._dns: TcpMessages | None = None

    @property
    def host(self) -> str:
        """The name that it is bound to; empty for a literal, or before that is known."""
        return self._route.host if self._route is not None else ""

    def client(self) -> Client:
        """The client, as events name it."""
        return self.client_port, self.client_socket

    # ------------------------------------------------------------ entry points

    def begin(self, address: str, port: int) -> None:
        """Decide and start to dial."""
        try:
            self._begin(address, port)
        except Exception as error:
            self.failed(error)

    def on_client(self, mask: int) -> None:
        """The client's socket is ready."""
        try:
            if mask & _ENDED:
                self._client_ended = True
            if self._state != _OPEN:
                self._on_unconnected_client(mask)
                return
            if self._held:
                if mask & (ERR | HUP):
                    raise OSError(self._client.getsockopt(SOL_SOCKET, SO_ERROR), "client reset the connection")
                if mask & _READABLE:
                    self._look()
                    if self._state != _OPEN:
                        return
            assert self._down is not None
            up = bool(mask & _READABLE) and not self._held
            down = bool(mask & OUT) and self._down.pending()
            self._drive(up, down, fresh=up and not down and not mask & _NOT_FRESH)
            if mask & ERR:
                self._check(self._client)
        except Exception as error:
            self.failed(error)

    def on_upstream(self, mask: int) -> None:
        """The upstream socket is ready."""
        try:
            upstream = self._upstream
            if upstream is None:
                return
            if mask & _ENDED:
                self._upstream_ended = True
            state = self._state
            if state == _OPEN:
                assert self._up is not None
                up, down = bool(mask & OUT) and self._up.pending(), bool(mask & _READABLE)
                self._drive(up, down, fresh=down and not up and not mask & _NOT_FRESH)
                if mask & ERR:
                    self._check(upstream)
            elif state == _CONNECTING:
                if mask & (ERR | HUP) and (code := upstream.getsockopt(SOL_SOCKET, SO_ERROR)):
                    self._engine.attempt.end(self)
                    self._failures.append(f"{self.address}: {os.strerror(code)}")
                    self._drop_upstream()
                    self._dial()
                elif mask & (OUT | ERR | HUP):
                    self._connected(mask)
            elif state == _GREETING:
                self._greet()
        except Exception as error:
            self.failed(error)

    @guarded
    def on_turn(self) -> None:
        """Another turn for a connection that has more to move."""
        if self._state == _OPEN:
            self._drive(up=True, down=True)

    @guarded
    def answered(self, router: Router | None, refusal: Refusal, address: str, port: int) -> None:
        """Somebody was asked: go on by ``router``, or refuse."""
        if self._state == _ASKING:
            self._state = _RESOLVING
            if router is None:
                self._refuse(refusal)
            else:
                self._router = router
                self._arrive(address, port)
            self._engine.reactor.change(self._client.fileno(), ALL)  # what came meanwhile is told again

    @guarded
    def resolved(self, answer: Answer) -> None:
        """The name of the destination, or of the proxy, was looked up."""
        if self._state == _RESOLVING:
            self._resolved(answer)

    @guarded
    def too_late(self) -> None:  # no connection within ``CONNECT`` seconds
        self._failures.append(f"{self.address or 'lookup'}: timed out after {CONNECT:.0f} s")
        self._addresses.clear()
        self._upstream_failed()

    @guarded
    def try_next(self) -> None:
        """This address does not answer and there are others."""
        self._failures.append(f"{self.address}: no answer within {ATTEMPT:.0f} s")
        self._drop_upstream()
        self._dial()

    @guarded
    def hello_late(self) -> None:
        """A TLS hello, or what could have become a known protocol, began and did not end."""
        assert self._route is not None
        try:
            hello = sniff.may_be_hello(self._client.recv(1, MSG_PEEK) or b"\0")
        except BlockingIOError:
            hello = True  # the second one
        if not hello and not self._agreed:
            self._refuse(refuse_unknown(self._route))
            return
        refusal = self._engine.router.judge_first(self._route, _CUT)
        assert refusal is not None
        self._refuse(refusal)

    def reset(self) -> None:  # nothing more to say: RST
        self._client.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        self.finish("")

    def finish(self, error: str) -> None:
        """Close both sides and tell."""
        engine = self._engine
        if self._state == DEAD:
            return
        relayed = self._state <= _OPEN
        waits = self._held or self._state != _OPEN  # what is open and judged waits for nothing
        self._state = DEAD
        engine.connections.discard(self)
        if waits:
            for wait in engine.waits:
                wait.end(self)
        if relayed:
            self._tell_closed(error)
        self._drop_upstream()
        engine.reactor.bury(self._client)

    # ------------------------------------------------------------ dialling

    def _begin(self, address: str, port: int) -> None:
        engine = self._engine
        if len(engine.connections) > engine.limit:
            engine.refused += 1
            access = Connect("", address, port)
            refused = denial(access, Deny(None, reasons.LIMIT_REACHED, f"{engine.limit} connections at once"))
            engine.emit(refused.of(self.client()))
            self._state = _EXPLAINING
            self.reset()
            return
        engine.reactor.watch(self._client.fileno(), ALL, self.on_client)
        # A server that a rule opens is that server; every other one is ours.
        if port == DNS_PORT and isinstance(self._router.arrive(address, port), Refusal):
            self._state = _DNS
            self._dns = TcpMessages()
            engine.dns_idle.begin(self)
            return
        self._arrive(address, port)

    def _arrive(self, address: str, port: int) -> None:
        engine, route = self._engine, self._router.arrive(address, port)
        if isinstance(route, Refusal):
            if route.question is not None and engine.asking is not None:
                self._state = _ASKING
                hint = route.event.hint or ""
                client = {"protocol": "tcp", "port": self.client_port}
                engine.asking.ask(
                    route.question, hint, lambda router: self.answered(router, route, address, port), client
                )
                return
            self._refuse(route)
            return
        self._route = route
        if route.inspect:
            if engine.inspector is None:
                self._refuse(refuse_protocol(route, "requests cannot be judged on this connection"))
                return
            self._state = DEAD  # for this one; the client lives on in its successor
            engine.inspector.take(engine, self, route)
            return
        self._reach(route)

    def _reach(self, route: Route) -> None:
        """Look the destination, or the proxy, up and start to dial."""
        engine = self._engine
        engine.connect.begin(self)
        self._dial_port = route.dial_port
        resolver = engine.upstreams.resolver
        name = route.host
        if (proxy := engine.upstreams.via(route)) is not None:
            self._handshake = engine.upstreams.handshake(proxy, route)
            if proxy.socket:
                self._dial_socket(proxy)
                return
            self._dial_port = proxy.port
            resolver, name = engine.upstreams.proxy_resolver, proxy.host
        elif route.addresses:
            self._addresses = list(route.addresses)
            self._dial()
            return
        answer = resolver.cached(name)
        if answer is None:
            resolver.resolve(name, self.resolved)
        else:
            self._resolved(answer)

    def _resolved(self, answer: Answer) -> None:
        assert self._route is not None
        if not answer.addresses:
            self._failures.append(answer.error)
            self._upstream_failed()
            return
        addresses = answer.addresses
        if self._handshake is None:
            allowed = self._router.candidates(self._route, addresses)
            if isinstance(allowed, Refusal):
                self._refuse_addresses(allowed)
                return
            addresses = allowed
        self._addresses = list(addresses)
        self._dial()

    def _dial(self) -> None:
        """Connect to the next address; the answer comes as an event."""
        engine = self._engine
        while self._addresses:
            self.address = address = self._addresses.pop(0)
            family = AF_INET6 if ":" in address else AF_INET
            try:
                upstream = Socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
            except OSError as error:
                self._failures.append(f"{address}: {error.strerror}")
                continue
            upstream.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            if address in LOOPBACK:
                upstream.setsockopt(IPPROTO_TCP, TCP_CONGESTION, WITHIN_HOST)
            code = upstream.connect_ex((address, self._dial_port))
            if code not in (0, EINPROGRESS):
                self._failures.append(f"{address}: {os.strerror(code)}")
                upstream.close()
                continue
            self._upstream = upstream
            self._state = _CONNECTING
            engine.reactor.watch(upstream.fileno(), ALL, self.on_upstream)
            if self._addresses:
                engine.attempt.begin(self)
            return
        self._upstream_failed()

    def _dial_socket(self, proxy: Proxy) -> None:
        """Connect to a proxy behind a unix socket: that is done at once, or fails."""
        from .broker import connect

        try:
            self._upstream = connect(proxy.socket, proxy.owner)
        except OSError as error:
            self._failures.append(f"proxy: {error.strerror}")
            self._upstream_failed()
            return
        self._state = _CONNECTING
        self._engine.reactor.watch(self._upstream.fileno(), ALL, self.on_upstream)

    def _connected(self, mask: int) -> None:
        engine = self._engine
        upstream = self._upstream
        assert upstream is not None
        if self._addresses:
            engine.attempt.end(self)
        upstream.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        assert self._route is not None
        self._up = Flow(self._client, upstream, engine.ledger.meter(self._route.budgets))
        self._down = Flow(upstream, self._client)
        if self._handshake is not None:
            self._state = _GREETING
            upstream.sendall(self._handshake.start())
            return
        self._opened(bool(mask & _READABLE))

    def _opened(self, readable: bool) -> None:
        self._engine.connect.end(self)
        self._state = _OPEN
        up = bool(self._client_mask & _READABLE)
        self._drive(up, readable, fresh=up and not readable and not self._client_mask & _NOT_FRESH)

    def _greet(self) -> None:
        """Talk to the proxy; what follows its answer belongs to the client already."""
        handshake, upstream, down = self._handshake, self._upstream, self._down
        assert handshake is not None and upstream is not None and down is not None
        while not handshake.done:
            try:
                data = upstream.recv(4096)
            except BlockingIOError:
                return
            reply = handshake.feed(data)
            if reply:
                upstream.sendall(reply)
            if handshake.error:
                self._failures.append(f"proxy {self.address}: {handshake.error}")
                self._addresses.clear()
                self._upstream_failed()
                return
        if handshake.rest:
            down.left = memoryview(handshake.rest)
            down.moved = len(handshake.rest)
            self._engine.pump.bytes_down += down.moved
        self._opened(readable=True)

    def _upstream_failed(self) -> None:
        """Every address failed: tell, and tell the client."""
        if self._state >= _EXPLAINING:
            return
        self._engine.failed += 1
        reason = "; ".join(self._failures)
        self._tell_closed(reason)
        self._start_to_explain(reason)

    # ------------------------------------------------------------ relaying

    def _drive(self, up: bool, down: bool, fresh: bool = False) -> None:
        """Move what can be moved.

        Args:
            up: the client's bytes, down: the server's.
            fresh: one direction only, whose source has just become readable (``Pump.move``).  Not one that goes on
                after it was blocked: the event that announced the end of its source may be long past.
        """
        engine, upward, downward = self._engine, self._up, self._down
        assert upward is not None and downward is not None
        more = False
        if up:
            if self._held:
                self._look()
                if self._state != _OPEN:
                    return
            if not self._held:
                if not self.told:
                    self._tell_opened()
                if self._hello_size and upward.quota < 0:
                    upward.quota = self._hello_size
                more = engine.pump.move(upward, True, downward.closed, fresh)
        if down and (not self._hello_size or upward.quota or self._answered()):
            more = engine.pump.move(downward, False, upward.closed, fresh) or more
            if downward.moved and not self.told:
                self._tell_opened()
            if self._held and downward.moved:  # what waited may have waited for the server to speak first
                self._look()
                more = more or not self._held
        if self._state != _OPEN:
            return
        if upward.closed and downward.closed:
            self.finish("")
        elif more:
            engine.busy(self)

    @staticmethod
    def _check(socket: Socket) -> None:
        """A reset that no read will report, because that direction has ended already."""
        if socket.fileno() >= 0 and (code := socket.getsockopt(SOL_SOCKET, SO_ERROR)):
            raise OSError(code, os.strerror(code))

    def _answered(self) -> bool:
        """Has the server answered the hello?  Let the client go on, or hold it for its second hello."""
        assert self._upstream is not None and self._up is not None
        try:
            answer = self._upstream.recv(sniff.ANSWERED, MSG_PEEK)
        except BlockingIOError:
            return False
        if self._asked_for_tls and answer:
            self._asked_for_tls = False
            self._hello_size, self._up.quota = 0, -1
            self._agreed = answer[:1] == openings.TLS_AGREED
            self._held = self._agreed or answer[:1] == openings.NOTHING_AGREED
            self._engine.busy(self)  # looks, if it is held again
            return True
        again = sniff.asks_again(answer)
        if again is None and answer and not self._upstream_ended:
            return False
        self._hello_size = 0
        if again:
            self._held = self._retried = True
            self._look()
        else:
            self._go_on()
        return self._state == _OPEN

    def _go_on(self) -> None:
        """Nothing more of the client has to be judged."""
        if self._up is not None:
            self._up.quota = -1
            self._engine.busy(self)

    def _on_unconnected_client(self, mask: int) -> None:
        state = self._state
        if state < _OPEN:
            if mask & (ERR | HUP):
                raise OSError(self._client.getsockopt(SOL_SOCKET, SO_ERROR), "client reset the connection")
            self._client_mask |= mask
            if mask & _READABLE and self._held:
                self._look()
        elif state == _ASKING and mask & (ERR | HUP):
            self.finish("")
        elif state == _EXPLAINING:
            self._explain()
        elif state == _LINGERING:
            self._discard()
        elif state == _DNS:
            self._serve_dns()

    def _look(self) -> None:
        """Judge the client's first bytes, or its second hello, without taking them."""
        assert self._route is not None
        engine = self._engine
        try:
            data = self._client.recv(sniff.ENOUGH, MSG_PEEK)
        except BlockingIOError:
            return
        if self._retried:
            full = len(data) == sniff.ENOUGH
            data = sniff.after_retry(data)
            if not data and self._client_ended and not full:
                self.abort("the client ended in the handshake")
                return
            if not data and not full:
                engine.hello.begin(self)
                return
        first = sniff.classify(data) if data or not self._retried else _CUT
        if first is None and data and sniff.may_be_hello(data) and self._route.host:
            cut = cut_short(self._client, sniff.ENOUGH)
            if not cut and not self._client_ended:
                engine.hello.begin(self)
                return
            if cut or len(data) >= sniff.SHORTEST:
                first = _CUT
        unclear = first is None or first.kind == "other" or (self._agreed and first.kind != "tls")
        if unclear and not self._passes(first, data):
            return
        engine.hello.end(self)
        if first is not None:
            refusal = engine.router.judge_first(self._route, first)
            if refusal is not None:
                self._refuse(refusal)
                return
        self._held = False
        if self._retried:
            self._go_on()
        elif first is not None and first.kind != "other":
            self._protocol, self._sni = first.kind, first.sni
            self._agreed = False
            if first.kind == "tls" and self._route.host:
                self._hello_size = sniff.hello_end(data)
        elif self._route.host and data.startswith(openings.ENCRYPTION_REQUESTS):
            self._asked_for_tls = True
            self._hello_size = len(openings.ENCRYPTION_REQUESTS[0])

    def _passes(self, first: sniff.First | None, data: bytes) -> bool:
        """May what is not TLS, and no request line of HTTP (yet), go on?  If not, it is refused or held."""
        route = self._route
        assert route is not None
        if not route.host or not data or (route.raw and not self._agreed):
            return True
        # A request for TLS is answered, and what follows judged, whatever came before it.
        more = any(len(data) < len(each) and each.startswith(data) for each in openings.ENCRYPTION_REQUESTS)
        if not more and not self._agreed:
            spoken = self._down is not None and self._down.moved > 0  # no TLS server speaks first
            known = openings.recognise(data)
            if known or spoken:
                return True
            more = known is None
        if (more or first is None) and not self._client_ended:
            self._engine.hello.begin(self)
        else:
            self._refuse(refuse_unknown(route))
        return False

    # ------------------------------------------------------------ refusing

    def _refuse(self, refusal: Refusal) -> None:
        """Record it, then let the client know."""
        engine = self._engine
        engine.refused += 1
        engine.emit(refusal.event.of(self.client()))
        if self.told:
            self._tell_closed(refusal.event.reason)
        self._start_to_explain(refusal)

    def _refuse_addresses(self, refusal: Refusal) -> None:
        """No address of the name may be dialled."""
        self._refuse(refusal)

    def _start_to_explain(self, refusal: Refusal | str) -> None:
        engine = self._engine
        for wait in (self._engine.connect, self._engine.attempt, self._engine.hello):
            wait.end(self)
        self._drop_upstream()
        self._refusal = refusal
        self._state = _EXPLAINING
        engine.explain.begin(self)
        try:
            self._explain()
        except OSError:
            self.reset()

    def _explain(self) -> None:
        """Answer in the client's protocol if its first bytes are there."""
        refusal = self._refusal
        assert refusal is not None
        try:
            data = self._client.recv(sniff.ENOUGH, MSG_PEEK)
        except BlockingIOError:
            return
        first = sniff.classify(data)
        if first is None:
            if not data or self._client_ended:
                self.reset()
            return  # the wait is running
        if first.kind == "http/1.1":
            if isinstance(refusal, Refusal):
                event = refusal.event
                answer = http_answer(403, first, refusal.host, event.reason, event.hint or "")
            else:
                host = self._route.host or self._route.address if self._route else ""
                answer = http_answer(502, first, host, refusal, "")
        elif first.kind == "tls" and isinstance(refusal, Refusal):
            answer = alert(refusal.alert)
        else:
            self.reset()
            return
        self._engine.explain.end(self)
        self._client.recv(sniff.ENOUGH)
        self._answer(answer)

    def _answer(self, answer: bytes) -> None:
        """The last word to the client."""
        if self._client.send(answer) != len(answer):
            self.reset()
            return
        self._client.shutdown(SHUT_WR)
        self._state = _LINGERING
        self._engine.linger.begin(self)
        self._discard()

    def _discard(self) -> None:
        """Read what an answered client still sends: closing on unread bytes would reset the answer away."""
        for _ in range(_DISCARD // BUFFER):
            try:
                if not self._client.recv_into(self._engine.pump.scratch):
                    self.finish("")
                    return
            except BlockingIOError:
                return
        self.reset()

    def over_limit(self, refusal: Deny) -> None:
        """The session, or a rule, has sent as much as it may."""
        assert self._route is not None
        engine = self._engine
        engine.refused += 1
        engine.emit(engine.router.limit(self._route, refusal).event.of(self.client()))
        self.abort("upload limit reached")

    # ------------------------------------------------------------ DNS over TCP

    def _serve_dns(self) -> None:
        assert self._dns is not None
        while True:
            try:
                data = self._client.recv(4096)
            except BlockingIOError:
                return
            if not data:
                self.finish("")
                return
            self._engine.dns_idle.begin(self)
            for query in self._dns.feed(data):
                self.dns_answered(self._engine.answerer.answer(query, self.dns_answered, self.client))
                if self._state != _DNS:
                    return
            if self._dns.held() > LONGEST_QUERY:  # each of thousands of connections may hold as much
                self.reset()
                return

    @guarded
    def dns_answered(self, answer: bytes | None) -> None:
        """Send an answer; it is empty while somebody is asked."""
        if self._state != _DNS or answer == b"":
            return
        framed = len(answer or b"").to_bytes(2, "big") + (answer or b"")
        if answer is None or self._client.send(framed) != len(framed):
            self.reset()  # it asks without reading

    # ------------------------------------------------------------ ending

    def failed(self, error: Exception) -> None:
        """Whatever went wrong ends this connection, and nothing else."""
        if isinstance(error, LimitReached):
            self.over_limit(error.args[0])
        elif isinstance(error, OSError):
            self.abort(error.strerror or str(error))
        else:  # a defect of ours: count it, and refuse
            self._engine.crashed(error)
            self.abort("internal error")

    def abort(self, error: str) -> None:
        """Reset both sides."""
        for socket in (self._client, self._upstream):
            if socket is not None and socket.fileno() >= 0:
                socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
        self.finish(error)

    def _drop_upstream(self) -> None:
        engine = self._engine
        if self._upstream is not None:
            engine.reactor.bury(self._upstream)
            self._upstream = None
        for flow in (self._up, self._down):
            if flow is not None:
                engine.pump.drop(flow)

    def _tell_opened(self) -> None:
        route = self._route
        if self.told or route is None:
            return
        self.told = True
        if not self._engine.verbose:
            return
        self._engine.emit(
            ConnectionOpened(
                self.id,
                self._protocol,
                route.host or route.address,
                self.address,
                route.port,
                self._sni,
                self.client_port,
                client_socket=self.client_socket,
            )
        )

    def _tell_closed(self, error: str) -> None:
        self._tell_opened()
        if not self.told or not self._engine.verbose:
            return
        up = self._up.moved if self._up is not None else 0
        down = self._down.moved if self._down is not None else 0
        duration = round((self._engine.reactor.now - self._started) * 1000, 3)
        self._engine.emit(ConnectionClosed(self.id, up, down, duration, error, "network"))
