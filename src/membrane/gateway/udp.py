"""UDP: the resolver's sockets, and one relay socket for each port that a rule opens.

Theory of operation
-------------------
The sockets are wildcard sockets inside the sandbox's network namespace, where every address is local.  The
destination of a datagram is in its control message (``IP_PKTINFO``, ``IPV6_RECVPKTINFO``: ip(7), ipv6(7)), and an
answer leaves from that address by the same means, so that connected clients take it.

A *flow* is one client address and one destination.  It is judged once, has one connected socket outside, and ends
after ``IDLE`` seconds of silence in both directions.  Nobody says when a client needs it no more, and most ask once
from a socket and close it.  So where there are as many as may be, the one that was silent for the longest time gives
way to a new one: one that has had an answer, or was silent for ``GIVES_WAY`` seconds.

Datagrams that come while the name is being looked up wait, a few of them, and so do those of a flow that is asked
about; more are dropped, as UDP may.  What is refused is dropped: there is no answer that a client would expect.
"""

from __future__ import annotations

import os
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IP,
    IPPROTO_IPV6,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    inet_ntop,
)
from _socket import socket as Socket

from ..events import ConnectionClosed, ConnectionOpened
from ..policy import reasons
from ..policy.model import Connect, Deny
from .event_queue import denial
from .reactor import IN
from .route import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Client, Event
    from .approvals import Approvals
    from .budgets import Ledger
    from .clients import Clients
    from .dns import Answerer
    from .reactor import Reactor
    from .route import Route, Router
    from .upstream import Resolved, Upstreams

IDLE = 60.0  # seconds
GIVES_WAY = 5.0  # seconds of silence
_BURST = 64  # datagrams taken in one turn
_LARGEST = 65535
_QUEUED = 8  # datagrams that wait for a look-up
_CONTROL = 128  # bytes of control messages
_IP_PKTINFO, _IPV6_PKTINFO = 8, 50
_DNS_PORT = 53


def destination(six: bool, control: list[tuple[int, int, bytes]]) -> bytes | None:
    """The packed address that a datagram was sent to."""
    for level, kind, data in control:
        if six and level == IPPROTO_IPV6 and kind == _IPV6_PKTINFO:
            return data[:16]
        if not six and level == IPPROTO_IP and kind == _IP_PKTINFO:
            return data[8:12]
    return None


def from_address(six: bool, address: bytes) -> list[tuple[int, int, bytes]]:
    """The control message that makes a datagram leave from ``address``."""
    if six:
        return [(IPPROTO_IPV6, _IPV6_PKTINFO, address + bytes(4))]
    return [(IPPROTO_IP, _IP_PKTINFO, bytes(4) + address + bytes(4))]


def serve_dns(
    reactor: Reactor,
    socket: Socket,
    answerer: Answerer,
    crashed: Callable[[BaseException], None],
    udp: UdpRelay,
    before: Callable[[], None],
) -> None:
    """Answer the queries that arrive on ``socket``, each from the address that was asked.

    ``udp`` is offered each datagram first; it takes those to a resolver that a rule opens (``53/udp``).
    ``before`` is called before each answer, after which the client may end.
    """
    socket.setblocking(False)
    six = socket.family == AF_INET6

    def ready(_mask: int) -> None:
        for _ in range(_BURST):
            try:
                query, control, _flags, client = socket.recvmsg(4096, _CONTROL)
            except OSError:
                return
            address = destination(six, control)
            if address is None:
                continue
            try:
                if udp.offer(socket, address, client, query):
                    continue
                before()
                send = sender(socket, six, address, client)
                send(answerer.answer(query, send, udp.asker(socket, address, client)))
            except Exception as error:  # of the policy: no answer is a refusal
                crashed(error)

    reactor.watch(socket.fileno(), IN, ready)


def sender(socket: Socket, six: bool, address: bytes, client: Any) -> Callable[[bytes | None], None]:
    """Sends answers to ``client`` from ``address``."""

    def send(answer: bytes | None) -> None:
        if not answer:
            return
        try:
            socket.sendmsg([answer], from_address(six, address), 0, client)
        except OSError:
            return  # the client is gone, or its buffer is full

    return send


class _Flow:
    """One client address and one destination."""

    __slots__ = (
        "address",
        "client",
        "control",
        "down",
        "id",
        "key",
        "listener",
        "peer",
        "route",
        "router",
        "started",
        "up",
        "upstream",
        "waiting",
    )

    def __init__(
        self, key: Any, ident: int, listener: Socket, client: Any, control: Any, route: Route, router: Router
    ) -> None:
        self.key, self.id, self.listener, self.client, self.control = key, ident, listener, client, control
        self.route, self.router = route, router
        self.peer: Client = (0, 0)
        self.upstream: Socket | None = None
        self.address = ""
        self.waiting: list[bytes] | None = []
        self.up = self.down = 0
        self.started = 0.0


class UdpRelay:
    """All UDP flows of one session.

    Args:
        flows: how many may exist at once.
        number: gives the next connection number, shared with TCP.
    """

    def __init__(
        self,
        reactor: Reactor,
        router: Router,
        upstreams: Upstreams,
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        number: Callable[[], int],
        *,
        ledger: Ledger,
        flows: int = 256,
    ) -> None:
        self.opened = self.refused = self.datagrams = self.bytes_up = self.bytes_down = 0
        self._reactor, self._router, self._upstreams = reactor, router, upstreams
        self._emit, self._crashed, self._number = emit, crashed, number
        self._ledger = ledger
        self._limit = flows
        self._flows: dict[Any, _Flow] = {}
        self._idle = reactor.wait(IDLE, lambda flow: self._end(flow, ""))
        self.approvals: Approvals | None = None  # without one, what no rule decides is refused
        self.clients: Clients | None = None  # as of the engine
        self.opens_dns = False  # a rule may open a resolver
        self._asked: dict[Any, list[bytes]] = {}  # datagrams of flows that are asked about

    def listen(self, socket: Socket, port: int) -> None:
        """Route what arrives on a wildcard socket of ``port``."""
        socket.setblocking(False)
        six = socket.family == AF_INET6

        def ready(_mask: int) -> None:
            for _ in range(_BURST):
                try:
                    data, control, _flags, client = socket.recvmsg(_LARGEST, _CONTROL)
                except OSError:
                    return
                target = destination(six, control)
                if target is None:
                    continue
                try:
                    self.inbound(socket, port, target, client, data)
                except Exception as error:  # of one datagram; it is dropped
                    self._crashed(error)

        self._reactor.watch(socket.fileno(), IN, ready)

    def offer(self, socket: Socket, target: bytes, client: Any, data: bytes) -> bool:
        """Route a datagram to port 53 of ``target`` if a rule opens that; False: it is not ours."""
        if not self.opens_dns:
            return False
        address = inet_ntop(AF_INET6 if socket.family == AF_INET6 else AF_INET, target)
        if isinstance(self._router.arrive(address, _DNS_PORT, "udp"), Refusal):
            return False
        self.inbound(socket, _DNS_PORT, target, client, data)
        return True

    def asker(self, socket: Socket, target: bytes, client: Any) -> Callable[[], Client]:
        """Finds who asked the resolver ``target``: that is not looked at unless it is refused."""
        return lambda: self._client(client, inet_ntop(socket.family, target), _DNS_PORT)

    def pending(self) -> bool:
        """Does a datagram wait for the look-up of its name?"""
        return any(flow.waiting for flow in self._flows.values())

    def hosts(self) -> set[str]:
        """The names that flows are bound to."""
        return {flow.route.host for flow in self._flows.values()}

    def close(self) -> None:
        """End every flow; what could not be sent is reported."""
        for flow in list(self._flows.values()):
            left = len(flow.waiting or ())
            self._end(flow, f"session ended: {left} datagrams were not sent" if left else "session ended")

    def inbound(self, listener: Socket, port: int, target: bytes, client: Any, data: bytes) -> None:
        """Route one datagram.

        Args:
            listener: an answer leaves by its ``sendmsg``; its family is that of ``target``.
            port, target: where it was sent to.
            client: its address; of a listener that is no socket, whatever that takes (``destinations``).
        """
        key = (listener.fileno(), client[0], client[1], target)
        flow = self._flows.get(key)
        if flow is None:
            held = self._asked.get(key)
            if held is not None:
                if len(held) < _QUEUED:
                    held.append(data)
                return
            flow = self._open(key, listener, port, target, client, data)
            if flow is None:
                return
        self._idle.begin(flow)
        if flow.waiting is not None:
            if len(flow.waiting) < _QUEUED:
                flow.waiting.append(data)
            return
        self._send(flow, data)

    def _open(
        self,
        key: Any,
        listener: Socket,
        port: int,
        target: bytes,
        client: Any,
        first: bytes,
        router: Router | None = None,
    ) -> _Flow | None:
        six = listener.family == AF_INET6
        address = inet_ntop(AF_INET6 if six else AF_INET, target)
        route = (router or self._router).arrive(address, port, "udp")
        if isinstance(route, Refusal):
            if route.question is not None and self.approvals is not None and len(self._asked) < self._limit:
                self._ask(route, key, listener, port, target, client, first)
            else:
                self._refuse(route, self._client(client, address, port))
            return None
        if self._upstreams.via(route) is not None:
            verdict = Deny(None, reasons.PORT_NOT_ALLOWED, "UDP cannot go through upstream_proxy")
            self._refuse_access(route, verdict, self._client(client, address, port))
            return None
        if len(self._flows) >= self._limit and not self._make_room():
            verdict = Deny(None, reasons.LIMIT_REACHED, f"{self._limit} UDP flows at once")
            self._refuse_access(route, verdict, self._client(client, address, port))
            return None
        flow = _Flow(key, self._number(), listener, client, from_address(six, target), route, router or self._router)
        flow.started = self._reactor.now
        flow.peer = self._client(client, address, port)
        self._flows[key] = flow
        self.opened += 1
        if route.addresses:
            self._dial(flow, route.addresses)
        else:
            answer = self._upstreams.resolver.cached(route.host)
            if answer is None:
                self._upstreams.resolver.resolve(route.host, lambda answer: self._resolved(flow, answer))
            else:
                self._resolved(flow, answer)
        return flow if self._flows.get(key) is flow else None

    def _make_room(self) -> bool:
        """End a flow that nobody seems to need any more; false: there is none."""
        silent_since = self._reactor.now - GIVES_WAY
        for flow, until in self._idle.in_order():
            if flow.down or until - self._idle.seconds <= silent_since:
                self._end(flow, "")
                return True
        return False

    def _ask(
        self, refusal: Refusal, key: Any, listener: Socket, port: int, target: bytes, client: Any, first: bytes
    ) -> None:
        """Ask about a flow; its datagrams wait."""
        held = self._asked[key] = [first]
        assert self.approvals is not None and refusal.question is not None

        def answered(router: Router | None) -> None:
            del self._asked[key]
            if router is None:
                address = inet_ntop(listener.family, target)
                self._refuse(refusal, self._client(client, address, port))
                return
            try:
                flow = self._open(key, listener, port, target, client, first, router)
                for data in held if flow is not None else ():
                    self.inbound(listener, port, target, client, data)
            except Exception as error:  # of one flow; it is dropped
                self._crashed(error)

        end = {"protocol": "udp", "port": client[1]}
        self.approvals.ask(refusal.question, refusal.event.hint or "", answered, end)

    def _client(self, client: Any, address: str, port: int) -> Client:
        """Who sent a datagram to ``address``, as events name it."""
        return (client[1], 0) if self.clients is None else self.clients.udp(client[:2], (address, port))

    def _refuse(self, refusal: Refusal, client: Client) -> None:
        self.refused += 1
        self._emit(refusal.event.of(client))

    def _refuse_access(self, route: Route, verdict: Deny, client: Client) -> None:
        self.refused += 1
        access = Connect(route.host, route.address, route.port, "udp")
        self._emit(denial(access, verdict).of(client))

    def _resolved(self, flow: _Flow, answer: Resolved) -> None:
        if self._flows.get(flow.key) is not flow:
            return
        try:
            if not answer.addresses:
                self._end(flow, answer.error, reached=False)
                return
            allowed = flow.router.candidates(flow.route, answer.addresses)
            if isinstance(allowed, Refusal):
                self._refuse(allowed, flow.peer)
                self._forget(flow)
                return
            self._dial(flow, allowed)
        except Exception as error:
            self._crashed(error)
            self._end(flow, "internal error")

    def _dial(self, flow: _Flow, addresses: tuple[str, ...]) -> None:
        error = ""
        for address in addresses:
            family = AF_INET6 if ":" in address else AF_INET
            try:
                upstream = Socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
            except OSError as failure:
                error = f"{address}: {failure.strerror}"
                continue
            code = upstream.connect_ex((address, flow.route.dial_port))
            if code:
                upstream.close()
                error = f"{address}: {os.strerror(code)}"
                continue
            flow.upstream, flow.address = upstream, address
            self._reactor.watch(upstream.fileno(), IN, lambda _mask: self._outbound(flow))
            self._emit_opened(flow)
            waiting, flow.waiting = flow.waiting or [], None
            for data in waiting:
                self._send(flow, data)
            return
        self._end(flow, error, reached=False)

    def _send(self, flow: _Flow, data: bytes) -> None:
        refusal = self._ledger.meter(flow.route.budgets).spend(len(data))
        if refusal is not None:
            self._refuse_access(flow.route, refusal, flow.peer)
            self._end(flow, "upload limit reached")
            return
        if flow.upstream is None:
            return
        self.datagrams += 1
        try:
            flow.upstream.send(data)
        except OSError:
            return  # lost, as datagrams may be
        flow.up += len(data)
        self.bytes_up += len(data)

    def _outbound(self, flow: _Flow) -> None:
        upstream = flow.upstream
        if upstream is None:
            return
        for _ in range(_BURST):
            try:
                data = upstream.recv(_LARGEST)
            except OSError:
                return  # nothing more, or an ICMP error, which is reported once
            self._idle.begin(flow)
            flow.down += len(data)
            self.bytes_down += len(data)
            try:
                flow.listener.sendmsg([data], flow.control, 0, flow.client)
            except OSError:
                continue

    def _forget(self, flow: _Flow) -> None:
        self._flows.pop(flow.key, None)
        self._idle.end(flow)
        if flow.upstream is not None:
            self._reactor.close_later(flow.upstream)
            flow.upstream = None

    def _end(self, flow: _Flow, error: str, *, reached: bool = True) -> None:
        if self._flows.get(flow.key) is not flow:
            return
        if not flow.address:
            self._emit_opened(flow)
        duration = round((self._reactor.now - flow.started) * 1000, 3)
        self._emit(ConnectionClosed(flow.id, flow.up, flow.down, duration, error, reached))
        self._forget(flow)

    def _emit_opened(self, flow: _Flow) -> None:
        route = flow.route
        host = route.host or route.address
        self._emit(
            ConnectionOpened(
                flow.id, "udp", host, flow.address, route.port, "", flow.peer[0], client_socket=flow.peer[1]
            )
        )
