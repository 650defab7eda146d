"""Moves the bytes of captured TCP connections, and of those that a client of a proxy asked for.

Theory of operation
-------------------
Each accepted connection is a small state machine driven by edge-triggered readiness::

    DIALLING -> OPEN -> closed
        \\________\\-----> EXPLAINING -> LINGERING -> closed

``dial`` reaches the server.  Its bytes flow to the client as soon as it is connected, so protocols in which the server
speaks first need no timer.  The client's bytes are *held*: they stay in the kernel (``MSG_PEEK``) until ``route`` has
judged them: towards a name until they are known to be TLS or another protocol (``openings``), unless the server has
spoken first.  What follows a hello that bears a name waits for the server's answer: a second hello that the server asks
for is judged as well, and so is the one behind a request for TLS of PostgreSQL.

Where requests are to be judged, the connection moves nothing itself (INSPECTED): it hands what its sockets report to an
``Inspection``, dials when that asks for it, and gets the client back to explain a refusal or to linger.

Rules
-----
1. Nothing reaches an upstream before ``Router`` has allowed the name, the address and the first bytes.
2. A refused or failed client is answered in its own protocol within ``EXPLAIN`` seconds, or reset.
3. Half-close is passed on in each direction; a reset on one side resets the other; silence may last for ever.
4. From INSPECTED no way leads to OPEN: what is to be judged is never relayed raw.
"""

from __future__ import annotations

import os
from _socket import MSG_PEEK, SHUT_WR, SO_ERROR, SO_LINGER, SOL_SOCKET
from _socket import socket as Socket

from ..errors import InternalError
from ..events import ConnectionOpened
from ..policy import reasons
from ..policy.model import Connect, Deny
from . import openings, sniff
from .connection import RESET, SILENT, UNREPORTED, Connection, Connections, guarded
from .dial import ALL, Dial, Dialler
from .dns import LONGEST_QUERY, TcpMessages
from .event_queue import denial
from .flow import BUFFER, Flow, LimitReached, cut_short
from .listener import Listener, capture, original
from .reactor import ERR, HUP, IN, OUT, PRI, RDHUP
from .route import Refusal, Route, Router, alert, http_answer, refuse_protocol, refuse_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..events import Client, Event
    from .budgets import Ledger
    from .clients import Clients
    from .destinations import Destinations
    from .dns import Answerer
    from .reactor import Reactor
    from .upstream import Upstreams

    class Inspector(Protocol):  # ``intercept.Inspector``
        def inspect(self, connection: TcpConnection) -> Inspection: ...

    class Inspection(Protocol):  # ``intercept.Inspection``: carries the streams of one connection
        def begin(self) -> None: ...
        def on_client(self, mask: int) -> None: ...
        def on_server(self, mask: int) -> None: ...
        def on_turn(self) -> None: ...
        def reached(self, upstream: Socket, rest: bytes) -> None: ...
        def unreached(self, cause: str) -> None: ...
        def end(self, error: str) -> None: ...

    class Proxies(Protocol):  # ``proxy.Proxies``
        def takes(self, client: Socket, address: str, port: int, peer: tuple[str, int]) -> bool: ...

    class Replies(Protocol):  # ``proxy.Replies``
        opening: bytes

        def refused(self, cause: Refusal | str) -> bytes: ...


HELLO = 30.0  # seconds for a TLS hello that has begun
# Seconds that a refused client has to show what it speaks.  On a busy machine a tenth of one passes between its
# connect(2) and its first bytes; only a client that waits for the server to speak has to wait this long.
EXPLAIN = 1.0
LINGER = 20.0  # seconds for a refused client to read the answer
DNS_IDLE = 30.0  # seconds between two messages on a DNS connection
DNS_PORT = 53

_DIALLING, _OPEN, _INSPECTED, _EXPLAINING, _LINGERING, _DNS, _ASKING, _DEAD = range(8)
_DISCARD = 1 << 20  # bytes read from a client that was answered already
_CUT = sniff.First("tls", flaw="ClientHello is not complete")
_ENDED = RDHUP | HUP | ERR
_READABLE = IN | _ENDED
_NOT_FRESH = _ENDED | PRI  # an end follows the bytes, or a read stops at the urgent mark (``Pump.move``)


class Engine(Connections):
    """All TCP connections of one session; ``Connections`` has the arguments that are not here.

    Args:
        ledger: what may still be sent.
        connections: how many may exist at once.
        inspector: takes the connections whose requests are to be judged; without one they are refused.
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
        super().__init__(reactor, emit, crashed, connections, verbose=verbose)
        self.router, self.answerer, self.ledger, self.inspector = router, answerer, ledger, inspector
        self.clients: Clients | None = None  # without one, the inodes of the clients' sockets are not asked for
        self.proxies: Proxies | None = None
        self.dialler = Dialler(reactor, upstreams)
        self.hello = reactor.wait(HELLO, TcpConnection.hello_late)
        self.explain = reactor.wait(EXPLAIN, TcpConnection.reset)
        self.linger = reactor.wait(LINGER, TcpConnection.reset)
        self.dns_idle = reactor.wait(DNS_IDLE, TcpConnection.reset)
        self.waits = (self.hello, self.explain, self.linger, self.dns_idle)

    def hosts(self) -> set[str]:
        """The names that connections are bound to."""
        return {each.host for each in self.connections if isinstance(each, TcpConnection)}

    def listen(self, listener: Socket, *, dnat: bool = False, destinations: Destinations | None = None) -> None:
        """Serve a listening socket.

        Args:
            listener: its accepted sockets carry the original destination as their own address, or,
                with ``dnat``, as ``SO_ORIGINAL_DST``.
            destinations: knows it instead, by the port of the client.
        """

        def arrived(client: Socket, peer: Any) -> None:
            try:
                destination = original(client) if dnat else client.getsockname()
            except OSError:
                client.close()
                return
            if destinations is not None:
                destination = destinations.take(peer[1])
                if destination is None:  # of another process of this machine
                    client.close()
                    return
            self._arrived(client, destination[0], destination[1], peer[:2])

        capture(listener)
        Listener(self.reactor, listener, arrived, self.pause.begin).start()

    def _arrived(self, client: Socket, address: str, port: int, peer: tuple[str, int]) -> None:
        self.accepted += 1
        if self.proxies is not None and self.proxies.takes(client, address, port, peer):
            return
        who = self.clients.tcp(peer, (address, port)) if self.clients is not None else (peer[1], 0)
        TcpConnection(self, client, who).begin(address, port)


class TcpConnection(Connection):
    """One captured or proxied connection.

    Args:
        peer: its client, as events name it.
        replies: how that is answered, if it asked a proxy.
    """

    __slots__ = (
        "_agreed",
        "_asked_for_tls",
        "_client_mask",
        "_dial",
        "_dns",
        "_held",
        "_hello_size",
        "_inspection",
        "_refusal",
        "_replies",
        "_retried",
        "_state",
        "_upstream_ended",
        "address",
        "client_ended",
        "engine",
        "peer",
        "protocol",
        "route",
        "router",
        "sni",
    )

    def __init__(self, engine: Engine, client: Socket, peer: Client, replies: Replies | None = None) -> None:
        super().__init__(engine, client)
        self.engine, self.peer = engine, peer
        self.address = ""  # dialled last
        self.route: Route | None = None
        self.router = engine.router  # another one after an answer that holds for this connection alone
        self.protocol, self.sni = "tcp", ""
        self.client_ended = False  # it sends no more
        self._reported = SILENT  # until it is known where it goes
        self._state = _DIALLING
        self._held = True
        self._client_mask = 0  # what its socket reported before the upstream was connected
        self._upstream_ended = False
        self._hello_size = 0  # bytes of a hello whose answer is awaited
        self._retried = False  # the server asked for a second hello
        self._asked_for_tls = False  # what follows is TLS if the server agrees (PostgreSQL)
        self._agreed = False  # it did
        self._replies = replies  # until it is answered
        self._refusal: Refusal | str | None = None  # a string: the upstream failed
        self._dial: Dial | None = None
        self._inspection: Inspection | None = None
        self._dns: TcpMessages | None = None

    @property
    def host(self) -> str:
        """The name that it is bound to; empty for a literal, or before that is known."""
        return self.route.host if self.route is not None else ""

    # ------------------------------------------------------------ entry points

    @guarded
    def begin(self, address: str, port: int) -> None:
        """Decide about a captured connection to ``address``, and start to dial."""
        engine = self.engine
        if len(engine.connections) > engine.limit:
            engine.refused += 1
            access = Connect("", address, port)
            refused = denial(access, Deny(None, reasons.LIMIT_REACHED, f"{engine.limit} connections at once"))
            engine.emit(refused.of(self.peer))
            self.reset()
            return
        engine.reactor.watch(self.client.fileno(), ALL, self.on_client)
        # A server that a rule opens is that server; every other one is ours.
        if port == DNS_PORT and isinstance(self.router.arrive(address, port), Refusal):
            self._state = _DNS
            self._dns = TcpMessages()
            engine.dns_idle.begin(self)
            return
        self._arrive(address, port)

    @guarded
    def go(self, route: Route, router: Router) -> None:
        """Go where a client of a proxy asked to go, and was allowed to by ``router``."""
        engine = self.engine
        engine.reactor.watch(self.client.fileno(), ALL, self.on_client)
        self.router = router
        if len(engine.connections) > engine.limit:
            self.route = route
            verdict = Deny(None, reasons.LIMIT_REACHED, f"{engine.limit} connections at once")
            self.refuse(engine.router.limit(route, verdict))
        else:
            self._follow(route)

    def on_client(self, mask: int) -> None:
        """The client's socket is ready."""
        try:
            if mask & _ENDED:
                self.client_ended = True
            if self._state != _OPEN:
                self._on_unconnected_client(mask)
                return
            if self._held:
                if mask & (ERR | HUP):
                    raise OSError(self.client.getsockopt(SOL_SOCKET, SO_ERROR), "client reset the connection")
                if mask & _READABLE:
                    self._look()
                    if self._state != _OPEN:
                        return
            assert self._down is not None
            up = bool(mask & _READABLE) and not self._held
            down = bool(mask & OUT) and self._down.pending()
            self._drive(up, down, fresh=up and not down and not mask & _NOT_FRESH)
            if mask & ERR:
                self._check(self.client)
        except Exception as error:
            self.failed(error)

    def on_upstream(self, mask: int) -> None:
        """The upstream socket is ready."""
        try:
            upstream = self.upstream
            if upstream is None:
                return
            if mask & _ENDED:
                self._upstream_ended = True
            if self._state == _OPEN:
                assert self._up is not None
                up, down = bool(mask & OUT) and self._up.pending(), bool(mask & _READABLE)
                self._drive(up, down, fresh=down and not up and not mask & _NOT_FRESH)
                if mask & ERR:
                    self._check(upstream)
            elif self._state == _INSPECTED and self._inspection is not None:
                self._inspection.on_server(mask)
        except Exception as error:
            self.failed(error)

    @guarded
    def on_turn(self) -> None:
        if self._state == _OPEN:
            self._drive(up=True, down=True)
        elif self._state == _INSPECTED and self._inspection is not None:
            self._inspection.on_turn()

    @guarded
    def answered(self, router: Router | None, refusal: Refusal, address: str, port: int) -> None:
        """A question was answered: go on by ``router``, or refuse."""
        if self._state == _ASKING:
            self._state = _DIALLING
            if router is None:
                self.refuse(refusal)
            else:
                self.router = router
                self._arrive(address, port)
            self.engine.reactor.change(self.client.fileno(), ALL)  # what came meanwhile is reported again

    @guarded
    def hello_late(self) -> None:
        """A TLS hello, or what could have become a known protocol, began and did not end."""
        assert self.route is not None
        try:
            hello = sniff.may_be_hello(self.client.recv(1, MSG_PEEK) or b"\0")
        except BlockingIOError:
            hello = True  # the second one
        if not hello and not self._agreed:
            self.refuse(refuse_unknown(self.route))
            return
        refusal = self.engine.router.judge_first(self.route, _CUT)
        assert refusal is not None
        self.refuse(refusal)

    # ------------------------------------------------------------ where to

    def _arrive(self, address: str, port: int) -> None:
        engine, route = self.engine, self.router.arrive(address, port)
        if not isinstance(route, Refusal):
            self._follow(route)
        elif route.question is not None and engine.approvals is not None:
            refusal = route
            self._state = _ASKING
            client = {"protocol": "tcp", "port": self.peer[0]}
            engine.approvals.ask(
                route.question,
                route.event.hint or "",
                lambda router: self.answered(router, refusal, address, port),
                client,
            )
        else:
            self.refuse(route)

    def _follow(self, route: Route) -> None:
        self.route, self._reported = route, UNREPORTED
        inspector = self.engine.inspector
        if not route.inspect:
            self.reach()
        elif inspector is None:
            self.refuse(refuse_protocol(route, "requests cannot be judged on this connection"))
        else:
            self._open_towards_client()  # the inspector meets the client before the server
            self._state = _INSPECTED
            self._inspection = inspector.inspect(self)
            self._inspection.begin()

    def reach(self) -> None:
        """Dial the server of the route; ``reached``, ``unreached`` or ``barred`` is called, perhaps at once."""
        assert self.route is not None
        self._dial = Dial(self.engine.dialler, self, self.route, self.router)
        self._dial.begin()

    def reached(self, upstream: Socket, mask: int, rest: bytes) -> None:
        """The server, or the way through the proxy to it, is connected."""
        engine, route = self.engine, self.route
        assert route is not None
        self.upstream, self._dial = upstream, None
        engine.reactor.rehandle(upstream.fileno(), self.on_upstream)
        if self._inspection is not None:
            self._inspection.reached(upstream, rest)
            return
        if route.inspect:
            raise InternalError("relay a connection", "its requests are to be judged")
        self._open_towards_client()
        self._upstream_ended = bool(mask & _ENDED)
        self._up = Flow(self.client, upstream, engine.ledger.meter(route.budgets))
        self._down = down = Flow(upstream, self.client)
        if rest:
            down.left = memoryview(rest)
            down.moved = len(rest)
            engine.pump.bytes_down += down.moved
        self._state = _OPEN
        up, readable = bool(self._client_mask & _READABLE), bool(mask & _READABLE)
        self._drive(up, readable, fresh=up and not readable and not self._client_mask & _NOT_FRESH)

    def unreached(self, reason: str) -> None:
        """Every address failed: report it, and answer the client."""
        self.engine.failed += 1
        self._dial = None
        if self._inspection is not None:
            self._inspection.unreached(reason)
            return
        self.emit_closed(reason, reached=False)
        self._start_to_explain(reason)

    def barred(self, refusal: Refusal) -> None:
        """No address of the name may be dialled."""
        self._dial = None
        if self._inspection is None:
            self.refuse(refusal)
            return
        self._record(refusal)
        self._inspection.unreached(f"{refusal.event.reason}: the name does not lead where it may")

    def _call_off(self) -> None:
        if self._dial is not None:
            self._dial.end()
            self._dial = None

    def _open_towards_client(self) -> None:
        """Answer a client of a proxy that it may go on."""
        if self._replies is not None:
            opening, self._replies = self._replies.opening, None
            self.client.send(opening)

    # ------------------------------------------------------------ relaying

    def _drive(self, up: bool, down: bool, fresh: bool = False) -> None:
        """Move what can be moved.

        Args:
            up: the client's bytes, down: the server's.
            fresh: one direction only, whose source has just become readable (``Pump.move``).  Not one that goes on
                after it was blocked: the event that announced the end of its source may be long past.
        """
        engine, upward, downward = self.engine, self._up, self._down
        assert upward is not None and downward is not None
        more = False
        if up:
            if self._held:
                self._look()
                if self._state != _OPEN:
                    return
            if not self._held:
                if self._reported == UNREPORTED:
                    self.emit_opened()
                if self._hello_size and upward.quota < 0:
                    upward.quota = self._hello_size
                more = engine.pump.move(upward, True, downward.closed, fresh)
        if down and (not self._hello_size or upward.quota or self._answered()):
            more = engine.pump.move(downward, False, upward.closed, fresh) or more
            if downward.moved and self._reported == UNREPORTED:
                self.emit_opened()
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
        assert self.upstream is not None and self._up is not None
        try:
            answer = self.upstream.recv(sniff.ANSWERED, MSG_PEEK)
        except BlockingIOError:
            return False
        if self._asked_for_tls and answer:
            self._asked_for_tls = False
            self._hello_size, self._up.quota = 0, -1
            self._agreed = answer[:1] == openings.TLS_AGREED
            self._held = self._agreed or answer[:1] == openings.NOTHING_AGREED
            self.engine.busy(self)  # looks, if it is held again
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
            self.engine.busy(self)

    def _on_unconnected_client(self, mask: int) -> None:
        state = self._state
        if state == _DIALLING:
            if mask & (ERR | HUP):
                raise OSError(self.client.getsockopt(SOL_SOCKET, SO_ERROR), "client reset the connection")
            self._client_mask |= mask
            if mask & _READABLE and self._held:
                self._look()
        elif state == _INSPECTED:
            assert self._inspection is not None
            self._inspection.on_client(mask)
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
        assert self.route is not None
        engine = self.engine
        try:
            data = self.client.recv(sniff.ENOUGH, MSG_PEEK)
        except BlockingIOError:
            return
        if self._retried:
            full = len(data) == sniff.ENOUGH
            data = sniff.after_retry(data)
            if not data and self.client_ended and not full:
                self.abort("the client ended in the handshake")
                return
            if not data and not full:
                engine.hello.begin(self)
                return
        first = sniff.classify(data) if data or not self._retried else _CUT
        if first is None and data and sniff.may_be_hello(data) and self.route.host:
            cut = cut_short(self.client, sniff.ENOUGH)
            if not cut and not self.client_ended:
                engine.hello.begin(self)
                return
            if cut or len(data) >= sniff.SHORTEST:
                first = _CUT
        unclear = first is None or first.kind == "other" or (self._agreed and first.kind != "tls")
        if unclear and not self._passes(first, data):
            return
        engine.hello.end(self)
        if first is not None:
            refusal = engine.router.judge_first(self.route, first)
            if refusal is not None:
                self.refuse(refusal)
                return
        self._held = False
        if self._retried:
            self._go_on()
        elif first is not None and first.kind != "other":
            self.protocol, self.sni = first.kind, first.sni
            self._agreed = False
            if first.kind == "tls" and self.route.host:
                self._hello_size = sniff.hello_end(data)
        elif self.route.host and data.startswith(openings.ENCRYPTION_REQUESTS):
            self._asked_for_tls = True
            self._hello_size = len(openings.ENCRYPTION_REQUESTS[0])

    def _passes(self, first: sniff.First | None, data: bytes) -> bool:
        """May what is not TLS, and no request line of HTTP (yet), go on?  If not, it is refused or held."""
        route = self.route
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
        if (more or first is None) and not self.client_ended:
            self.engine.hello.begin(self)
        else:
            self.refuse(refuse_unknown(route))
        return False

    # ------------------------------------------------------------ refusing

    def _record(self, refusal: Refusal) -> None:
        self.engine.refused += 1
        self.engine.emit(refusal.event.of(self.peer))

    def refuse(self, refusal: Refusal) -> None:
        """Record it, then let the client know."""
        self._record(refusal)
        if self.reported:
            self.emit_closed(refusal.event.reason)
        self._reported = SILENT
        self._start_to_explain(refusal)

    def _start_to_explain(self, refusal: Refusal | str) -> None:
        engine = self.engine
        engine.hello.end(self)
        self._call_off()
        self.drop_upstream()
        self._refusal = refusal
        self._state = _EXPLAINING
        try:
            if self._replies is not None:  # it waits for an answer, and says nothing before
                self._answer(self._replies.refused(refusal))
            else:
                engine.explain.begin(self)
                self._explain()
        except OSError:
            self.reset()

    def _explain(self) -> None:
        """Answer in the client's protocol if its first bytes are there."""
        refusal = self._refusal
        assert refusal is not None
        try:
            data = self.client.recv(sniff.ENOUGH, MSG_PEEK)
        except BlockingIOError:
            return
        first = sniff.classify(data)
        if first is None:
            if not data or self.client_ended:
                self.reset()
            return  # the wait is running
        if first.kind == "http/1.1":
            if isinstance(refusal, Refusal):
                event = refusal.event
                answer = http_answer(403, first, refusal.host, event.reason, event.hint or "")
            else:
                host = self.route.host or self.route.address if self.route else ""
                answer = http_answer(502, first, host, refusal, "")
        elif first.kind == "tls" and isinstance(refusal, Refusal):
            answer = alert(refusal.alert)
        else:
            self.reset()
            return
        self.engine.explain.end(self)
        self.client.recv(sniff.ENOUGH)
        self._answer(answer)

    def _answer(self, answer: bytes) -> None:
        """The last word to the client."""
        if self.client.send(answer) != len(answer):
            self.reset()
            return
        self.client.shutdown(SHUT_WR)
        self.linger()

    def linger(self) -> None:
        """Everything was said: wait for the client to read it and go."""
        self.emit_closed("")
        self._state = _LINGERING
        self.engine.linger.begin(self)
        self._discard()

    def _discard(self) -> None:
        """Read what an answered client still sends: closing on unread bytes would reset the answer away."""
        for _ in range(_DISCARD // BUFFER):
            try:
                if not self.client.recv_into(self.engine.pump.scratch):
                    self.finish("")
                    return
            except BlockingIOError:
                return
        self.reset()

    # ------------------------------------------------------------ DNS over TCP

    def _serve_dns(self) -> None:
        assert self._dns is not None
        while True:
            try:
                data = self.client.recv(4096)
            except BlockingIOError:
                return
            if not data:
                self.finish("")
                return
            self.engine.dns_idle.begin(self)
            for query in self._dns.feed(data):
                self.dns_answered(self.engine.answerer.answer(query, self.dns_answered, lambda: self.peer))
                if self._state != _DNS:
                    return
            if self._dns.held() > LONGEST_QUERY:  # each of thousands of connections may hold as much
                self.reset()
                return

    @guarded
    def dns_answered(self, answer: bytes | None) -> None:
        """Send an answer; it is empty while a question is open."""
        if self._state != _DNS or answer == b"":
            return
        framed = len(answer or b"").to_bytes(2, "big") + (answer or b"")
        if answer is None or self.client.send(framed) != len(framed):
            self.reset()  # it asks without reading

    # ------------------------------------------------------------ the life of every connection

    def failed(self, error: Exception) -> None:
        if isinstance(error, LimitReached):  # the session, or a rule, has sent as much as it may
            assert self.route is not None
            self._record(self.engine.router.limit(self.route, error.args[0]))
            self.abort("upload limit reached")
        else:
            super().failed(error)

    def reset(self) -> None:  # nothing more to say: RST
        self.client.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
        self.finish()

    def _opening(self) -> ConnectionOpened:
        route = self.route
        assert route is not None
        return ConnectionOpened(
            self.id,
            self.protocol,
            route.host or route.address,
            self.address,
            route.port,
            self.sni,
            self.peer[0],
            client_socket=self.peer[1],
        )

    def _release(self, error: str) -> None:
        if self._held or self._state != _OPEN:  # what is open and judged waits for nothing
            for wait in self.engine.waits:
                wait.end(self)
        self._state = _DEAD
        if self._dial is not None:
            self._call_off()
        if self._inspection is not None:
            inspection, self._inspection = self._inspection, None  # no cycle is left to be collected
            inspection.end(error)
