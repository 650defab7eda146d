"""Carries connections from the host's loopback to servers of the command (``ports: expose``).

Theory of operation
-------------------
A listener of the host is accepted here.  For each connection the launcher, which lives in the sandbox's network
namespace, is asked for a fresh socket of that namespace (``host.launcher._make_socket``); connected here, it reaches
the loopback of the sandbox: 127.0.0.1, and ::1 when no server listens there.  Loopback is steered by no rule of
the namespace.  Where the sandbox has no namespace its keeper is asked instead, which knows the command's servers from
those of others and connects the socket itself (``host.supervised_servers``).  Bytes are copied as they are; the client
outside learns of a server that is not there by a reset.

The direction is the reverse of all others: what the command answers leaves to the program of this machine that
connected.
"""

from __future__ import annotations

import os
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_TCP,
    SO_ERROR,
    SO_LINGER,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
)
from _socket import socket as Socket
from collections import deque
from errno import EINPROGRESS

from ..errors import HostError
from ..events import ConnectionOpened
from .connection import RESET, Connection, Connections, guarded
from .flow import Flow
from .listener import Listener
from .reactor import EDGE, ERR, HUP, IN, OUT, RDHUP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from .memory import MemoryBudget
    from .reactor import Reactor

CONNECTIONS = 512  # at once, to all ports
CONNECT = 10.0  # seconds for a server inside to accept
_FAMILIES = ((AF_INET, "127.0.0.1"), (AF_INET6, "::1"))
_ALL = IN | OUT | RDHUP | EDGE


class Exposed(Connections):
    """All connections from the host to servers of the command; ``Connections`` has the other arguments.

    What goes out is not the command's upload to the network: it goes to a program of this machine that asked.

    Args:
        factory: the launcher's end for requests of sockets; it is made non-blocking.
        dials: it is the keeper's, whose sockets are connected.
    """

    def __init__(
        self,
        reactor: Reactor,
        factory: Socket,
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        number: Callable[[], int],
        *,
        connections: int = CONNECTIONS,
        memory: MemoryBudget | None = None,
        dials: bool = False,
    ) -> None:
        super().__init__(reactor, emit, crashed, connections, number=number, memory=memory)
        self.dials = dials
        self.connect = reactor.wait(CONNECT, lambda connection: connection.abort("the server does not accept"))
        from ..host.channel import Channel  # here: most gateways expose nothing
        from ..host.messages import FROM_FACTORY, TO_FACTORY, TO_SERVERS

        self._factory = Channel(factory, TO_SERVERS if dials else TO_FACTORY, FROM_FACTORY)
        self._asked: deque[ExposedConnection] = deque()
        factory.setblocking(False)
        reactor.watch(factory.fileno(), IN, self._on_factory)

    def listen(self, listener: Socket, port: int) -> None:
        """Serve a listener of the host's loopback; ``port``: of the server inside."""

        def arrived(client: Socket, peer: Any) -> None:
            if len(self.connections) >= self.limit:
                client.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
                client.close()
                return
            self.accepted += 1
            ExposedConnection(self, client, port, peer[1]).begin()

        Listener(self.reactor, listener, arrived, self.pause.begin).start()

    def close(self) -> None:
        for connection in list(self.connections):
            connection.abort("session ended")  # cut short, what a client has must not look whole
        super().close()

    def ask(self, connection: ExposedConnection, family: int) -> None:
        """Ask the launcher for a socket; answers come in the order of the questions."""
        from ..host.messages import DialServer, MakeSocket

        try:
            self._factory.send(DialServer(connection.port) if self.dials else MakeSocket(family))
        except OSError as error:  # its queue is full, or it is gone and the session ends
            connection.abort(error.strerror or "no socket")
            return
        self._asked.append(connection)

    def _on_factory(self, _mask: int) -> None:
        from ..host.messages import SocketMade

        while True:
            try:
                made = self._factory.receive()
            except BlockingIOError:
                return
            except HostError:  # no descriptor is left here
                made = SocketMade(None)
            except OSError:
                made = None
            if not isinstance(made, SocketMade):  # the launcher is gone: the session ends
                self.reactor.unwatch(self._factory.fileno())
                return
            self._asked.popleft().socket_made(-1 if made.socket is None else made.socket)


class ExposedConnection(Connection):
    """One client outside and the server inside that it wants.

    It leads out of the sandbox, seen from there: what the server inside sends goes up.
    """

    def __init__(self, exposed: Exposed, client: Socket, port: int, client_port: int) -> None:
        super().__init__(exposed, client)
        self._exposed, self.port, self._client_port = exposed, port, client_port
        self._tries = list(_FAMILIES[:1] if exposed.dials else _FAMILIES)
        self._address = ""

    def begin(self) -> None:
        """Ask for a socket inside."""
        self._exposed.connect.begin(self)
        self._exposed.ask(self, self._tries[0][0])

    @guarded
    def socket_made(self, fd: int) -> None:
        """Connect a socket of the sandbox's namespace; -1: there is none of this family, or no server."""
        family, address = self._tries.pop(0)
        if self.dead or fd < 0:
            if fd >= 0:
                os.close(fd)
            if not self.dead:
                self._next("no server" if self._exposed.dials else "no socket")
            return
        server = Socket(family, SOCK_STREAM, 0, fd)
        server.setblocking(False)
        server.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        code = EINPROGRESS if self._exposed.dials else server.connect_ex((address, self.port))
        if code not in (0, EINPROGRESS):
            server.close()
            self._next(os.strerror(code))
            return
        self.upstream, self._address = server, address
        self._exposed.reactor.watch(server.fileno(), OUT | EDGE, self._connected)

    @guarded
    def on_turn(self, mask: int = IN) -> None:
        """Copy what can be copied."""
        if self.dead:
            return
        up, down, pump = self._up, self._down, self._exposed.pump
        assert up is not None and down is not None
        more = pump.move(down, False, up.closed)
        more = pump.move(up, True, down.closed) or more
        if up.closed and down.closed:
            self.finish()
        elif more:
            self._exposed.busy(self)
        elif mask & ERR or (mask & HUP and (up.ended and down.ended)):
            self.abort("reset")

    @guarded
    def _connected(self, _mask: int) -> None:
        server = self.upstream
        if server is None or self.dead:
            return
        code = server.getsockopt(SOL_SOCKET, SO_ERROR)
        if code:
            self.drop_upstream()
            self._next(os.strerror(code))
            return
        self._exposed.connect.end(self)
        self.emit_opened()
        self._up, self._down = Flow(server, self.client), Flow(self.client, server)
        reactor = self._exposed.reactor
        reactor.rehandle(server.fileno(), self.on_turn)
        reactor.change(server.fileno(), _ALL)
        reactor.watch(self.client.fileno(), _ALL, self.on_turn)
        self.on_turn()

    def _next(self, error: str) -> None:
        if self._tries:
            self._exposed.ask(self, self._tries[0][0])
        else:
            self.abort(error)

    def _opening(self) -> ConnectionOpened:
        return ConnectionOpened(self.id, "exposed", "localhost", self._address, self.port, "", self._client_port)

    def _release(self, error: str) -> None:
        self._exposed.connect.end(self)
