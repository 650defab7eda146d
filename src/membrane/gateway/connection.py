"""The skeleton of every connection that the gateway carries: accepted, dialled, carried, ended once.

Theory of operation
-------------------
There are five kinds: captured and proxied ones (``relay.TcpConnection``), those from the host to exposed ports
(``exposed``), those to unix sockets of the host (``broker``), and inspected ones, which are captured or proxied and
hand their streams to an ``intercept.Inspection``.  They share one life::

    accepted -> dialling -> carrying -> ended

``Connections`` is what those of one kind have together: how many there may be, who has more to move, their counts.
``Connection`` is one of them; a kind adds how it dials and carries, and gives back in ``_release`` what it holds.

Rules
-----
1. ``finish`` counts once, from whatever side it is called; nothing is moved after it.
2. ``ConnectionOpened`` is emitted once, and ``ConnectionClosed`` once after it.  A connection that is refused before
   that has the event of its refusal only.
3. Whatever goes wrong in a connection ends that connection and nothing else; a defect of ours is counted besides.
"""

from __future__ import annotations

import struct
from _socket import SO_LINGER, SOL_SOCKET
from abc import ABC, abstractmethod
from itertools import count

from ..events import ConnectionClosed
from .flow import Pump
from .listener import Listener
from .memory import MemoryBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Concatenate, ParamSpec, Protocol, TypeVar

    from ..events import ConnectionOpened, Event
    from .approvals import Approvals
    from .flow import Flow
    from .reactor import Reactor

    class Guarded(Protocol):
        """What an exception can end."""

        def failed(self, error: Exception) -> None: ...

    P = ParamSpec("P")
    G = TypeVar("G", bound=Guarded)

RESET = struct.pack("ii", 1, 0)  # struct linger: close(2) sends RST (socket(7), tcp(7))
UNREPORTED, REPORTED, SILENT = range(3)  # which events were emitted; ``SILENT``: no more will be, or none yet
_PATIENCE = 0.1  # seconds without accepting when no descriptor is left


def guarded(call: Callable[Concatenate[G, P], None]) -> Callable[Concatenate[G, P], None]:
    """Whatever goes wrong in ``call`` ends its connection, and nothing else."""

    def guard(self: G, /, *args: P.args, **named: P.kwargs) -> None:
        try:
            call(self, *args, **named)
        except Exception as error:
            self.failed(error)

    return guard


class Connections:
    """All connections of one kind.

    Args:
        emit: takes events.
        crashed: takes the exception of a connection that failed for a reason of ours.
        limit: how many may exist at once.
        number: gives the next connection number, shared with other kinds; without it they are counted here.
        memory: what may wait in memory, shared with others.
        verbose: emit ``ConnectionOpened`` and ``ConnectionClosed``; two records for each connection cost as much
            as a quarter of the relaying.
    """

    def __init__(
        self,
        reactor: Reactor,
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        limit: int,
        *,
        number: Callable[[], int] | None = None,
        memory: MemoryBudget | None = None,
        verbose: bool = True,
    ) -> None:
        self.reactor, self.emit, self.crashed, self.limit, self.verbose = reactor, emit, crashed, limit, verbose
        self.number = number or count(1).__next__
        self.memory = memory or MemoryBudget()
        self.pump = Pump(self.memory)
        self.approvals: Approvals | None = None  # without one, what no rule decides is refused
        self.accepted = self.refused = self.failed = 0
        self.connections: set[Connection] = set()
        self.pause = reactor.wait(_PATIENCE, Listener.start)
        self._busy: dict[Connection, None] = {}

    def close(self) -> None:
        """End every connection and give back the pipes; the reactor makes no turn after this."""
        for connection in list(self.connections):
            connection.finish("session ended")
        self.pump.close()

    def busy(self, connection: Connection) -> None:
        """Give ``connection`` another turn."""
        if not self._busy:
            self.reactor.soon(self._drive_busy)
        self._busy[connection] = None

    def _drive_busy(self) -> None:
        connections, self._busy = self._busy, {}
        for connection in connections:
            connection.on_turn()


class Connection(ABC):
    """One connection, from accept to close.

    Args:
        client: its socket; the side that connected.
    """

    __slots__ = (
        "_down",
        "_owner",
        "_reported",
        "_started",
        "_up",
        "bytes_down",
        "bytes_up",
        "client",
        "dead",
        "id",
        "upstream",
    )

    def __init__(self, owner: Connections, client: Socket) -> None:
        self._owner = owner
        self.id = owner.number()
        self.client = client
        self.upstream: Socket | None = None  # the side that was dialled
        self._up: Flow | None = None  # what the pump moves out of the sandbox, and
        self._down: Flow | None = None  # into it; without a pump:
        self.bytes_up = self.bytes_down = 0
        self.dead = False
        self._reported = UNREPORTED
        self._started = owner.reactor.now
        owner.connections.add(self)

    # ------------------------------------------------------------ what a kind is

    @abstractmethod
    def _opening(self) -> ConnectionOpened:
        """The event that it is there."""

    @abstractmethod
    def on_turn(self) -> None:
        """Another turn for a connection that has more to move."""

    @abstractmethod
    def _release(self, error: str) -> None:
        """It ends: end its waits, and give back what it holds beside its sockets."""

    # ------------------------------------------------------------ its end

    def finish(self, error: str = "") -> None:
        """End both sides and emit what is still to be emitted; only the first call counts."""
        if self.dead:
            return
        self.dead = True
        owner = self._owner
        owner.connections.discard(self)
        try:
            self._release(error)
            self.emit_closed(error)
        finally:  # also after a defect
            self.drop_upstream()
            owner.reactor.close_later(self.client)

    def abort(self, error: str) -> None:
        """Reset both sides."""
        for socket in (self.client, self.upstream):
            if socket is not None and socket.fileno() >= 0:
                socket.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
        self.finish(error)

    def failed(self, error: Exception) -> None:
        """Whatever went wrong ends this connection, and nothing else."""
        if isinstance(error, OSError):
            self.abort(error.strerror or str(error))
        else:  # a defect of ours: count it, and refuse
            self._owner.crashed(error)
            self.abort("internal error")

    def drop_upstream(self) -> None:
        """Close the side that was dialled, if there is one."""
        if self.upstream is not None:
            self._owner.reactor.close_later(self.upstream)
            self.upstream = None
        for flow in (self._up, self._down):
            if flow is not None:
                self._owner.pump.drop(flow)

    # ------------------------------------------------------------ its events

    @property
    def reported(self) -> bool:
        """It was reported as opened, and not yet as closed."""
        return self._reported == REPORTED

    def emit_opened(self) -> None:
        """Report that it is there; once."""
        if self._reported == UNREPORTED:
            self._reported = REPORTED
            if self._owner.verbose:
                self._owner.emit(self._opening())

    def emit_closed(self, error: str, *, reached: bool = True) -> None:
        """Report that it has ended, and before that, if it was not, that it was there; once."""
        self.emit_opened()
        if self._reported != REPORTED:
            return
        self._reported = SILENT
        owner = self._owner
        if owner.verbose:
            up = self._up.moved if self._up is not None else self.bytes_up
            down = self._down.moved if self._down is not None else self.bytes_down
            duration = round((owner.reactor.now - self._started) * 1000, 3)
            owner.emit(ConnectionClosed(self.id, up, down, duration, error, reached))
