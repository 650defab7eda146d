"""Reaches the server of one route, or the proxy before it, for the connection that asked.

Theory of operation
-------------------
::

    resolving -> connecting -> [greeting a proxy] -> reached
        \\____________\\_______________\\-----------> unreached, barred

A name is looked up and each of its addresses judged (``Router.candidates``) before any is dialled; they are tried one
after the other within ``CONNECT`` seconds.  Through a proxy the name itself is handed on, and what follows the proxy's
answer belongs to the client already.  The owner hears of exactly one end, and of none after ``end``.
"""

from __future__ import annotations

import os
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_ERROR,
    SO_KEEPALIVE,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_CONGESTION,
    TCP_NODELAY,
)
from _socket import socket as Socket
from errno import ECONNREFUSED, EINPROGRESS

from .connection import guarded
from .listener import WITHIN_HOST
from .reactor import EDGE, ERR, HUP, IN, OUT, PRI, RDHUP
from .route import LOOPBACK, Refusal
from .upstream import connect_unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from .reactor import Reactor
    from .route import Route, Router
    from .upstream import Handshake, Resolved, Upstreams

    class Dialled(Protocol):
        """The connection that wants to get there."""

        address: str  # dialled last

        def reached(self, upstream: Socket, mask: int, rest: bytes) -> None:
            """Connected.  ``mask``: what the socket reported since; ``rest``: what came behind a proxy's answer."""

        def unreached(self, reason: str) -> None:
            """No address led there."""

        def barred(self, refusal: Refusal) -> None:
            """No address of the name may be dialled."""

        def failed(self, error: Exception) -> None: ...


CONNECT = 20.0  # seconds for all addresses of one name together with the proxy's greeting
ATTEMPT = 5.0  # seconds for one address while there are others
ALL = IN | PRI | OUT | RDHUP | EDGE
_RESOLVING, _CONNECTING, _GREETING, _OVER = range(4)


def _why(address: str, code: int) -> str:
    """An errno of connect(2) as the summary and the client of an HTTP request see it."""
    if code == ECONNREFUSED:
        return f"connection refused by {address}"
    return f"{address}: {os.strerror(code)}"


class Dialler:
    """What all dials of one session share."""

    def __init__(self, reactor: Reactor, upstreams: Upstreams) -> None:
        self.reactor, self.upstreams = reactor, upstreams
        self.connect = reactor.wait(CONNECT, Dial.too_late)
        self.attempt = reactor.wait(ATTEMPT, Dial.try_next)
        self.waits = (self.connect, self.attempt)


class Dial:
    """One way to one server.

    Args:
        owner: hears what came of it.
        router: judges the addresses.
    """

    __slots__ = (
        "_addresses",
        "_dialler",
        "_failures",
        "_handshake",
        "_mask",
        "_owner",
        "_port",
        "_route",
        "_router",
        "_socket",
        "_state",
    )

    def __init__(self, dialler: Dialler, owner: Dialled, route: Route, router: Router) -> None:
        self._dialler, self._owner, self._route, self._router = dialler, owner, route, router
        self._state = _RESOLVING
        self._addresses: list[str] = []
        self._port = route.dial_port
        self._failures: list[str] = []
        self._handshake: Handshake | None = None
        self._socket: Socket | None = None
        self._mask = 0

    def begin(self) -> None:
        """Look the destination, or the proxy, up and start to dial; the end may come at once."""
        dialler, route = self._dialler, self._route
        dialler.connect.begin(self)
        upstreams = dialler.upstreams
        resolver, name = upstreams.resolver, route.host
        if (proxy := upstreams.via(route)) is not None:
            self._handshake = upstreams.handshake(proxy, route)
            if proxy.socket:
                try:
                    self._await(connect_unix(proxy.socket, proxy.owner))
                except OSError as error:
                    self._failures.append(f"proxy: {error.strerror}")
                    self._fail()
                return
            self._port = proxy.port
            resolver, name = upstreams.proxy_resolver, proxy.host
        elif route.addresses:
            self._addresses = list(route.addresses)
            self._next()
            return
        answer = resolver.cached(name)
        if answer is None:
            resolver.resolve(name, self.resolved)
        else:
            self._resolved(answer)

    def end(self) -> None:
        """Stop, and report nothing any more."""
        if self._state == _OVER:
            return
        self._state = _OVER
        for wait in self._dialler.waits:
            wait.end(self)
        self._drop()

    def failed(self, error: Exception) -> None:
        """An exception ends the connection that dials."""
        self._owner.failed(error)

    # ------------------------------------------------------------ what comes

    @guarded
    def resolved(self, answer: Resolved) -> None:
        """The name of the destination, or of the proxy, was looked up."""
        if self._state == _RESOLVING:
            self._resolved(answer)

    def on_ready(self, mask: int) -> None:
        """The socket is ready."""
        try:
            socket = self._socket
            if socket is None:
                return
            self._mask |= mask
            if self._state == _GREETING:
                self._greet()
            elif mask & (ERR | HUP) and (code := socket.getsockopt(SOL_SOCKET, SO_ERROR)):
                self._dialler.attempt.end(self)
                self._go_on(_why(self._owner.address, code))
            elif mask & (OUT | ERR | HUP):
                self._connected(socket)
        except Exception as error:
            self.failed(error)

    @guarded
    def too_late(self) -> None:
        """No connection within ``CONNECT`` seconds."""
        self._failures.append(f"{self._owner.address or 'lookup'}: timed out after {CONNECT:.0f} s")
        self._fail()

    @guarded
    def try_next(self) -> None:
        """This address does not answer and there are others."""
        self._go_on(f"{self._owner.address}: no answer within {ATTEMPT:.0f} s")

    # ------------------------------------------------------------ one address after the other

    def _resolved(self, answer: Resolved) -> None:
        if not answer.addresses:
            self._failures.append(answer.error)
            self._fail()
            return
        addresses = answer.addresses
        if self._handshake is None:
            allowed = self._router.candidates(self._route, addresses)
            if isinstance(allowed, Refusal):
                self.end()
                self._owner.barred(allowed)
                return
            addresses = allowed
        self._addresses = list(addresses)
        self._next()

    def _next(self) -> None:
        """Connect to the next address; the answer comes as an event."""
        while self._addresses:
            address = self._owner.address = self._addresses.pop(0)
            family = AF_INET6 if ":" in address else AF_INET
            try:
                socket = Socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
            except OSError as error:
                self._failures.append(f"{address}: {error.strerror}")
                continue
            socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            if address in LOOPBACK:
                socket.setsockopt(IPPROTO_TCP, TCP_CONGESTION, WITHIN_HOST)
            code = socket.connect_ex((address, self._port))
            if code not in (0, EINPROGRESS):
                self._failures.append(_why(address, code))
                socket.close()
                continue
            self._await(socket)
            if self._addresses:
                self._dialler.attempt.begin(self)
            return
        self._fail()

    def _await(self, socket: Socket) -> None:
        self._socket, self._mask, self._state = socket, 0, _CONNECTING
        self._dialler.reactor.watch(socket.fileno(), ALL, self.on_ready)

    def _go_on(self, why: str) -> None:
        """This address leads nowhere: try the next."""
        self._failures.append(why)
        self._drop()
        self._next()

    def _drop(self) -> None:
        if self._socket is not None:
            self._dialler.reactor.close_later(self._socket)
            self._socket = None

    def _fail(self) -> None:
        self.end()
        self._owner.unreached("; ".join(self._failures))

    # ------------------------------------------------------------ connected

    def _connected(self, socket: Socket) -> None:
        if self._addresses:
            self._dialler.attempt.end(self)
        socket.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
        if self._handshake is None:
            self._reach(socket, b"")
            return
        self._state = _GREETING
        socket.sendall(self._handshake.start())

    def _greet(self) -> None:
        """Talk to the proxy."""
        handshake, socket = self._handshake, self._socket
        assert handshake is not None and socket is not None
        while not handshake.done:
            try:
                data = socket.recv(4096)
            except BlockingIOError:
                return
            reply = handshake.feed(data)
            if reply:
                socket.sendall(reply)
            if handshake.error:
                self._failures.append(f"proxy {self._owner.address}: {handshake.error}")
                self._fail()
                return
        self._mask |= IN  # what is behind the answer may have come with it
        self._reach(socket, handshake.rest)

    def _reach(self, socket: Socket, rest: bytes) -> None:
        self._socket, self._state = None, _OVER
        self._dialler.connect.end(self)
        self._owner.reached(socket, self._mask, rest)
