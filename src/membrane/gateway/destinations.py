"""Where connections were meant to go, where no namespace captures them.

Theory of operation
-------------------
Without a network namespace the command's connections are made to a listener on the host's loopback by the process that
made its sockets (``host.supervised``).  Before each connection that sends a datagram, ``LOCAL-PORT ADDRESS PORT``, on a
socket that no other process has.  So when a connection is accepted its line is there to be read; one from a port that
no line names is another process's of this machine, and is closed.

Datagrams come one by one on a socket of their own (``host.datagrams``), and answers go back on it.  ``Datagrams``
gives them to the relay and to the answerer as if a namespace had captured them.  Of those that no rule could let out
only the place comes, which is reported as what the same datagram would be natively.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, MSG_DONTWAIT, inet_ntop

from ..host.datagrams import ASKED, CARRIED, MOST, TOLD, message, parts
from .reactor import IN
from .route import Refusal
from .udp import sender

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from .dns import Answerer
    from .reactor import Reactor
    from .route import Router
    from .udp import UdpRelay

_DNS_PORT = 53

_BURST = 64  # lines that are read before others get their turn


class Destinations:
    """What is to come and was not accepted yet.

    It is read as it comes: who connects waits where there is no room for more (``supervised.Sockets``).

    Args:
        socket: takes the datagrams.
    """

    def __init__(self, reactor: Reactor, socket: Socket) -> None:
        self._reactor, self._socket = reactor, socket
        self._known: dict[int, tuple[str, int]] = {}
        self._watched = True
        reactor.watch(socket.fileno(), IN, lambda _mask: self._read())

    def take(self, port: int) -> tuple[str, int] | None:
        """The destination of the connection from a local port, once; None: no line named it."""
        self._read()
        return self._known.pop(port, None)

    def _read(self) -> None:
        while True:
            try:
                line = self._socket.recv(256, MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                line = b""
            if not line:  # the command's sockets have no keeper any more
                if self._watched:
                    self._watched = False
                    self._reactor.unwatch(self._socket.fileno())
                return
            local, address, to = line.decode("ascii").split(" ")
            self._known[int(local)] = address, int(to)  # bounded: a port has 16 bits


class _Family:
    """The command's sockets of one family, as the relay sees a wildcard socket in a namespace.

    A client is ``"NUMBER PORT"`` and 0: the number of its socket, and the port that it has sent to.
    """

    def __init__(self, socket: Socket, family: int) -> None:
        self._socket, self.family = socket, family
        self.fileno = socket.fileno

    def sendmsg(
        self, pieces: list[bytes], control: list[tuple[int, int, bytes]], _flags: int, client: tuple[str, int]
    ) -> int:
        """Give the command a datagram from the address in ``control`` (``udp.from_address``).

        Raises:
            OSError: there is no room.
        """
        number, _, port = client[0].partition(" ")
        source = control[0][2]
        address = source[:16] if self.family == AF_INET6 else source[4:8]
        return self._socket.send(message(CARRIED, int(number), address, int(port), pieces[0]), MSG_DONTWAIT)


class Datagrams:
    """The datagrams of the command.

    Args:
        socket: only the process that made the command's sockets has its other end.
        crashed: is told of a defect of ours; the datagram is dropped.
    """

    def __init__(
        self,
        reactor: Reactor,
        socket: Socket,
        router: Router,
        emit: Callable[[Event], None],
        udp: UdpRelay,
        answerer: Answerer,
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._reactor, self._socket, self._router, self._emit = reactor, socket, router, emit
        self._udp, self._answerer, self._crashed = udp, answerer, crashed
        self._families: dict[int, Any] = {4: _Family(socket, AF_INET), 16: _Family(socket, AF_INET6)}
        socket.setblocking(False)
        reactor.watch(socket.fileno(), IN, lambda _mask: self._read())

    def _read(self) -> None:
        for _ in range(_BURST):
            try:
                raw = self._socket.recv(MOST)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it has ended, and had not read all answers: said once (unix(7))
            if not raw:
                self._reactor.unwatch(self._socket.fileno())
                return
            try:
                self._take(raw)
            except Exception as error:  # of one datagram
                self._crashed(error)

    def _take(self, raw: bytes) -> None:
        kind, number, target, port, data = parts(raw)
        listener = self._families[len(target)]
        if kind == TOLD:
            route = self._router.arrive(inet_ntop(listener.family, target), port, "udp")
            if isinstance(route, Refusal):
                self._emit(route.event)
            return
        client = f"{number} {port}", 0
        if port != _DNS_PORT:
            self._udp.inbound(listener, port, target, client, data)
        elif kind == ASKED or not self._udp.offer(listener, target, client, data):
            send = sender(listener, listener.family == AF_INET6, target, client)
            send(self._answerer.answer(data, send, self._udp.asker(listener, target, client)))
