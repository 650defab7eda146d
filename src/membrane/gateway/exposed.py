"""Carries connections from the host's loopback to servers of the command (``ports: expose``).

Theory of operation
-------------------
A listener of the host is accepted here.  For each connection the launcher, which lives in the sandbox's network
namespace, is asked for a fresh socket of that namespace (``host.launcher._make_socket``); connected here, it reaches
the sandbox's loopback: 127.0.0.1, and ::1 when nobody listens there.  Loopback destinations are steered by no rule of
the namespace.  Bytes are copied as they are; the client outside learns of a server that is not there by a reset.

The direction is the reverse of all others: what the command answers leaves to whoever connected, on this machine.
"""

from __future__ import annotations

import os
import struct
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
from errno import EINPROGRESS, EMFILE, ENFILE, ENOBUFS, ENOMEM

from ..errors import HostError
from ..events import ConnectionClosed, ConnectionOpened
from .flow import Flow, Pump
from .reactor import EDGE, ERR, HUP, IN, OUT, RDHUP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Event
    from .reactor import Reactor
    from .room import Room

CONNECTIONS = 512  # at once, to all ports
CONNECT = 10.0  # seconds for a server inside to accept
_MOST = 64  # accepted in one turn
_PATIENCE = 0.1  # seconds without accepting when no descriptor is left
_FAMILIES = ((AF_INET, "127.0.0.1"), (AF_INET6, "::1"))
_RESET = struct.pack("ii", 1, 0)
_ALL = IN | OUT | RDHUP | EDGE


class Exposed:
    """All connections from the host to servers of the command.

    Args:
        mint: the launcher's end for requests of sockets; it is made non-blocking.
        number: gives the next connection number.
        room: what may wait in memory, shared with others.
    """

    def __init__(
        self,
        reactor: Reactor,
        mint: Socket,
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        number: Callable[[], int],
        *,
        connections: int = CONNECTIONS,
        room: Room | None = None,
    ) -> None:
        self.reactor, self.emit, self.crashed, self.number = reactor, emit, crashed, number
        self.accepted = 0
        # What is sent is not the command's upload to the network: it goes to a program of this machine that asked.
        self.pump = Pump(room)
        self.connections: set[Connection] = set()
        self.connect = reactor.wait(CONNECT, lambda connection: connection.finish("the server does not accept"))
        from ..host.channel import Channel  # here: most gateways expose nothing
        from ..host.messages import FROM_FACTORY, TO_FACTORY

        self._mint = Channel(mint, TO_FACTORY, FROM_FACTORY)
        self._asked: deque[Connection] = deque()
        self._limit = connections
        self._pause = reactor.wait(_PATIENCE, lambda start: start())
        self._busy: dict[Connection, None] = {}
        mint.setblocking(False)
        reactor.watch(mint.fileno(), IN, self._minted)

    def listen(self, listener: Socket, port: int) -> None:
        """Serve a listener of the host's loopback; ``port``: of the server inside."""
        listener.setblocking(False)

        def ready(_mask: int) -> None:
            for _ in range(_MOST):
                try:
                    fd, peer = listener._accept()  # type: ignore[attr-defined]
                except BlockingIOError:
                    return
                except OSError as error:
                    if error.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                        self.reactor.unwatch(listener.fileno())
                        self._pause.begin(start)
                        return
                    continue
                self._arrived(Socket(listener.family, SOCK_STREAM, 0, fd), port, peer[1])

        def start() -> None:
            self.reactor.watch(listener.fileno(), IN, ready)

        start()

    def close(self) -> None:
        """End every connection."""
        for connection in list(self.connections):
            connection.finish("session ended")
        self.pump.close()

    def ask(self, connection: Connection, family: int) -> None:
        """Ask the launcher for a socket; answers come in the order of the questions."""
        from ..host.messages import MakeSocket

        try:
            self._mint.send(MakeSocket(family))
        except OSError as error:  # its queue is full, or it is gone and the session ends
            connection.finish(error.strerror or "no socket")
            return
        self._asked.append(connection)

    def busy(self, connection: Connection) -> None:
        """Give ``connection`` another turn."""
        if not self._busy:
            self.reactor.soon(self._drive_busy)
        self._busy[connection] = None

    def _drive_busy(self) -> None:
        connections, self._busy = self._busy, {}
        for connection in connections:
            connection.move()

    def _arrived(self, client: Socket, port: int, client_port: int) -> None:
        client.setblocking(False)
        if len(self.connections) >= self._limit:
            client.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            client.close()
            return
        self.accepted += 1
        connection = Connection(self, client, port, client_port)
        self.connections.add(connection)
        connection.begin()

    def _minted(self, _mask: int) -> None:
        from ..host.messages import SocketMade

        while True:
            try:
                made = self._mint.receive()
            except BlockingIOError:
                return
            except HostError:  # no descriptor is left here
                made = SocketMade(None)
            except OSError:
                made = None
            if not isinstance(made, SocketMade):  # the launcher is gone: the session ends
                self.reactor.unwatch(self._mint.fileno())
                return
            self._asked.popleft().minted(-1 if made.socket is None else made.socket)


class Connection:
    """One client outside and the server inside that it wants."""

    def __init__(self, owner: Exposed, client: Socket, port: int, client_port: int) -> None:
        self._owner, self._client, self._port, self._client_port = owner, client, port, client_port
        self._id = owner.number()
        self._server: Socket | None = None
        self._tries = list(_FAMILIES)
        self._address = ""
        self._up: Flow | None = None
        self._down: Flow | None = None
        self._started = owner.reactor.now
        self._dead = False

    def begin(self) -> None:
        self._owner.connect.begin(self)
        self._owner.ask(self, self._tries[0][0])

    def minted(self, fd: int) -> None:
        """Connect a socket of the sandbox's namespace; -1: there is none of this family."""
        family, address = self._tries.pop(0)
        if self._dead or fd < 0:
            if fd >= 0:
                os.close(fd)
            if not self._dead:
                self._next("no socket")
            return
        server = Socket(family, SOCK_STREAM, 0, fd)
        server.setblocking(False)
        server.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        code = server.connect_ex((address, self._port))
        if code not in (0, EINPROGRESS):
            server.close()
            self._next(os.strerror(code))
            return
        self._server, self._address = server, address
        self._owner.reactor.watch(server.fileno(), OUT | EDGE, self._connected)

    def finish(self, error: str = "") -> None:
        """End both sides, with a reset after an error."""
        if self._dead:
            return
        self._dead = True
        owner = self._owner
        owner.connect.end(self)
        owner.connections.discard(self)
        if self._up is None:
            self._tell_opened()
        up, down = (flow.moved if flow else 0 for flow in (self._up, self._down))
        for flow in (self._up, self._down):
            if flow is not None:
                owner.pump.drop(flow)
        duration = round((owner.reactor.now - self._started) * 1000, 3)
        # Seen from the sandbox: what the server inside sends goes up.
        owner.emit(ConnectionClosed(self._id, down, up, duration, error))
        for socket in (self._client, self._server):
            if socket is not None:
                if error:
                    socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
                owner.reactor.bury(socket)

    def move(self, mask: int = IN) -> None:
        """Copy what can be copied."""
        if self._dead:
            return
        up, down, pump = self._up, self._down, self._owner.pump
        assert up is not None and down is not None
        try:
            more = pump.move(up, True, down.closed)
            more = pump.move(down, False, up.closed) or more
        except OSError as error:
            self.finish(error.strerror or str(error))
            return
        except Exception as error:
            self._owner.crashed(error)
            self.finish("internal error")
            return
        if up.closed and down.closed:
            self.finish()
        elif more:
            self._owner.busy(self)
        elif mask & ERR or (mask & HUP and (up.ended and down.ended)):
            self.finish("reset")

    def _connected(self, mask: int) -> None:
        server = self._server
        assert server is not None
        if self._dead:
            return
        code = server.getsockopt(SOL_SOCKET, SO_ERROR)
        if code:
            self._owner.reactor.bury(server)
            self._server = None
            self._next(os.strerror(code))
            return
        self._owner.connect.end(self)
        self._tell_opened()
        self._up, self._down = Flow(self._client, server), Flow(server, self._client)
        reactor = self._owner.reactor
        reactor.rehandle(server.fileno(), self.move)
        reactor.change(server.fileno(), _ALL)
        reactor.watch(self._client.fileno(), _ALL, self.move)
        self.move()

    def _next(self, error: str) -> None:
        if self._tries:
            self._owner.ask(self, self._tries[0][0])
        else:
            self.finish(error)

    def _tell_opened(self) -> None:
        self._owner.emit(
            ConnectionOpened(self._id, "exposed", "localhost", self._address, self._port, "", self._client_port)
        )
