"""Where connections were meant to go, where no namespace captures them.

Theory of operation
-------------------
Without a network namespace the command's connections are made to a listener on the host's loopback by the process that
made its sockets (``host.supervised``).  Before each connection that sends a datagram, ``LOCAL-PORT ADDRESS PORT``, on a
socket that no other process has.  So when a connection is accepted its line is there to be read; one from a port that
no line names is another process's of this machine, and is closed.

Datagrams go nowhere there.  ``RefusedDatagrams`` gets a line for each destination of one, ``ADDRESS PORT``, and reports
it as what the same datagram would be natively.
"""

from __future__ import annotations

from _socket import MSG_DONTWAIT

from .reactor import IN
from .route import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable

    from ..events import Event
    from .reactor import Reactor
    from .route import Router

_BURST = 64  # lines that are read before others get their turn


class Destinations:
    """What is to come and was not accepted yet.

    Args:
        socket: takes the datagrams.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._known: dict[int, tuple[str, int]] = {}

    def take(self, port: int) -> tuple[str, int] | None:
        """The destination of the connection from a local port, once; None: no line named it."""
        while True:
            try:
                line = self._socket.recv(256, MSG_DONTWAIT)
            except OSError:
                break
            if not line:
                break
            local, address, to = line.decode("ascii").split(" ")
            self._known[int(local)] = address, int(to)  # bounded: a port has 16 bits
        return self._known.pop(port, None)


class RefusedDatagrams:
    """Reports where datagrams of the command were meant to go.

    Args:
        socket: takes the lines; only the process that made the command's sockets has its other end.
    """

    def __init__(self, reactor: Reactor, socket: Socket, router: Router, emit: Callable[[Event], None]) -> None:
        self._reactor, self._socket, self._router, self._emit = reactor, socket, router, emit
        socket.setblocking(False)
        reactor.watch(socket.fileno(), IN, lambda _mask: self._read())

    def _read(self) -> None:
        for _ in range(_BURST):
            try:
                line = self._socket.recv(256)
            except BlockingIOError:
                return
            if not line:
                self._reactor.unwatch(self._socket.fileno())
                return
            address, port = line.decode("ascii").split(" ")
            route = self._router.arrive(address, int(port), "udp")
            if isinstance(route, Refusal):
                self._emit(route.event)
