"""Carries connections to unix sockets of the sandbox to the host's sockets that the policy names.

Theory of operation
-------------------
In the view there is a listening socket where outside the host's is; it was made inside and passed out.  For
each connection that is accepted here, the host's socket is opened as it is now: without symbolic links, a socket, of
the owner that it had when the run was planned.  Then bytes are copied through an adapter (``adapters``).  They are
read with recv(2) and written with send(2), so descriptors and credentials in control messages (unix(7)) never cross:
the kernel drops them.

Rules
-----
1. Only bytes that an adapter has put into ``up`` reach the service.
2. A side is read only while little waits to be written: memory is bounded, by what ``memory`` gives each
   and what the adapter holds.
3. Whatever goes wrong in a connection ends that connection only.
"""

from __future__ import annotations

import sys
from _socket import SHUT_WR, SO_PEERCRED, SOL_SOCKET
from errno import EAGAIN

from ..events import ConnectionOpened
from ..policy import reasons
from ..policy.model import Allow, Ask, Deny, SocketAccess
from ..policy.sockets import SERVICES
from ..value import Value
from .adapters import Adapter, Asked, Broken
from .connection import Connection, Connections, guarded
from .event_queue import denial
from .listener import Listener
from .reactor import ERR, HUP, IN, OUT
from .upstream import connect_unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from ..policy.model import SocketRule, Verdict
    from .budgets import Budget
    from .memory import MemoryBudget
    from .reactor import Reactor

CONNECTIONS = 256  # at once, to all sockets
_CHUNK = 1 << 16  # bytes read at once
_AGAIN = 0.05  # seconds until a service whose queue is full is tried again
_ATTEMPTS = 100


class Door(Value):
    """Where the connections to a listening socket of the view lead."""

    rule: SocketRule
    source: str  # the host's socket, without symbolic links
    owner: int  # the uid that it must belong to
    memory: dict[str, Any]  # what the connections to it know together


class Broker(Connections):
    """All connections to unix sockets of one session; ``Connections`` has the other arguments.

    Args:
        decide: the policy.
        budget: what may be sent, shared with the network.
    """

    def __init__(
        self,
        reactor: Reactor,
        decide: Callable[[SocketAccess], Verdict],
        emit: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
        number: Callable[[], int],
        *,
        budget: Budget,
        connections: int = CONNECTIONS,
        memory: MemoryBudget | None = None,
    ) -> None:
        super().__init__(reactor, emit, crashed, connections, number=number, memory=memory)
        self.decide, self.budget = decide, budget
        self.bytes_up = self.bytes_down = 0
        self.again = reactor.wait(_AGAIN, BrokeredConnection.dial)

    def listen(self, listener: Socket, rule: SocketRule, source: str, owner: int) -> None:
        """Serve a listening socket of the view, behind which ``Door`` is."""
        door = Door(rule, source, owner, {})
        Listener(self.reactor, listener, lambda client, _peer: self._arrived(client, door), self.pause.begin).start()

    def _arrived(self, client: Socket, door: Door) -> None:
        self.accepted += 1
        access = SocketAccess(door.rule.path)
        verdict = self.decide(access)
        if isinstance(verdict, Allow) and len(self.connections) >= self.limit:
            verdict = Deny(None, reasons.LIMIT_REACHED, f"{self.limit} connections to unix sockets at once")
        if not isinstance(verdict, Allow):
            self.refuse(access, verdict)
            client.close()
            return
        BrokeredConnection(self, client, door).dial()

    def refuse(self, access: SocketAccess, verdict: Verdict) -> None:
        assert not isinstance(verdict, Allow)
        self.refused += 1
        self.emit(denial(access, verdict))


class BrokeredConnection(Connection):
    """One client inside and the service that it asked for."""

    def __init__(self, broker: Broker, client: Socket, door: Door) -> None:
        super().__init__(broker, client)
        self._broker, self._door = broker, door
        self._adapter = make_adapter(door.rule.adapter, self._judge, door.memory)
        self._attempts = 0
        self._inside, self._outside = _Side(), _Side()
        self._answers: dict[SocketAccess, bool] = {}
        self._waits_in_all = 0  # bytes that wait in memory, as counted

    @guarded
    def dial(self) -> None:
        """Connect to the host's socket; a full queue is tried again."""
        if self.dead:
            return
        try:
            server = connect_unix(self._door.source, self._door.owner)
        except OSError as error:
            self._attempts += 1
            if error.errno == EAGAIN and self._attempts < _ATTEMPTS:
                self._broker.again.begin(self)
                return
            self.finish(error.strerror or "the socket is not there")
            return
        self.upstream = server
        self.emit_opened()
        for socket, handler in ((self.client, self._on_client), (server, self._on_server)):
            self._broker.reactor.watch(socket.fileno(), 0, handler)
        self._flush()

    def on_turn(self) -> None:
        """It needs none: sockets are watched level triggered."""

    def failed(self, error: Exception) -> None:
        if isinstance(error, Broken):
            self.finish(str(error))
        else:
            super().failed(error)

    def _opening(self) -> ConnectionOpened:
        return ConnectionOpened(self.id, "unix", self._door.rule.path, "", 0)

    def _release(self, error: str) -> None:
        broker = self._broker
        broker.again.end(self)
        self._waits_in_all = broker.memory.change(self._waits_in_all, 0)
        broker.failed += bool(error)

    def _judge(self, operation: str, names: tuple[str, ...]) -> bool:
        access = SocketAccess(self._door.rule.path, operation, names)
        if self._answers.pop(access, False):
            return True
        verdict = self._broker.decide(access)
        if isinstance(verdict, Allow):
            return True
        approvals = self._broker.approvals
        if isinstance(verdict, Ask) and approvals is not None:
            client = {"protocol": "unix", "pid": peer(self.client)}
            approvals.ask(access, verdict.hint, lambda router: self._answered(access, router is not None), client)
            if access not in self._answers:
                raise Asked
            del self._answers[access]  # too many questions are open
        if operation != "offer":  # what is left out of a list was not asked for
            self._broker.refuse(access, verdict)
        return False

    @guarded
    def _answered(self, access: SocketAccess, allowed: bool) -> None:
        """The message that waits was answered for, or cannot be asked about."""
        self._answers[access] = allowed
        if not self._adapter.parked or self.dead:
            return
        self._adapter.resume()
        self._flush()

    def _on_client(self, mask: int) -> None:
        self._turn(mask, self.client, client=True)

    def _on_server(self, mask: int) -> None:
        assert self.upstream is not None
        self._turn(mask, self.upstream, client=False)

    @guarded
    def _turn(self, mask: int, socket: Socket, *, client: bool) -> None:
        if self.dead:
            return
        side = self._inside if client else self._outside
        # What a peer that is gone has sent is bounded by the socket's buffer: it is read in any case.
        if not side.ended and (mask & (HUP | ERR) or (mask & IN and self._reads(client))):
            self._read(socket, side, client)
        if mask & (HUP | ERR) and side.ended and not self.dead and not side.gone:
            side.gone = True
            self._broker.reactor.unwatch(socket.fileno())  # else the kernel reports it again and again
        self._flush()

    def _read(self, socket: Socket, side: _Side, client: bool) -> None:
        try:
            data = socket.recv(_CHUNK)
        except BlockingIOError:
            return
        side.ended = not data
        if not data:
            return
        if not client:
            self.bytes_down += len(data)
            self._broker.bytes_down += len(data)
            self._adapter.from_server(data)
            return
        if not self._broker.budget.spend(len(data)):
            access = SocketAccess(self._door.rule.path)
            self._broker.refuse(access, Deny(None, reasons.LIMIT_REACHED, "limits: upload"))
            self.finish("upload limit reached")
            return
        self.bytes_up += len(data)
        self._broker.bytes_up += len(data)
        self._adapter.from_client(data)

    def _reads(self, client: bool) -> bool:
        adapter = self._adapter
        if client and (adapter.over() or adapter.parked):
            return False
        enough = self._broker.memory.each()
        return len(adapter.up) < enough and len(adapter.down) < enough

    def _flush(self) -> None:
        """Write what waits, pass ends on, and wait for what is to come."""
        if self.dead or self.upstream is None:
            return
        adapter, inside, outside = self._adapter, self._inside, self._outside
        _send(self.upstream, adapter.up, outside.gone)
        _send(self.client, adapter.down, inside.gone)
        self._waits_in_all = self._broker.memory.change(self._waits_in_all, len(adapter.up) + len(adapter.down))
        if not adapter.down and (adapter.over() or outside.gone or (outside.ended and inside.passed_on)):
            self.finish()
            return
        if not adapter.up and inside.gone and not adapter.waiting():
            self.finish()
            return
        if inside.ended and not inside.passed_on and not adapter.up and not adapter.waiting() and not adapter.parked:
            inside.passed_on = True
            self.upstream.shutdown(SHUT_WR)
        if outside.ended and not outside.passed_on and not adapter.down:
            outside.passed_on = True
            self.client.shutdown(SHUT_WR)
        for socket, side, client, out in (
            (self.client, inside, True, adapter.down),
            (self.upstream, outside, False, adapter.up),
        ):
            mask = (IN if not side.ended and self._reads(client) else 0) | (OUT if out else 0)
            if mask != side.mask and not side.gone:
                side.mask = mask
                self._broker.reactor.change(socket.fileno(), mask)


class _Side:
    """One end of a connection: it sends no more, that was passed on to the other, it is not there any more."""

    __slots__ = ("ended", "gone", "mask", "passed_on")

    def __init__(self) -> None:
        self.ended = self.passed_on = self.gone = False
        self.mask = 0


def _send(sink: Socket, data: bytearray, gone: bool) -> None:
    if gone:
        data.clear()
    while data:
        try:
            with memoryview(data) as view:
                count = sink.send(view[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it reads no more; what it has said is still delivered
            data.clear()
            return
        del data[:count]


def make_adapter(name: str, judge: Callable[[str, tuple[str, ...]], bool], memory: dict[str, Any]) -> Adapter:
    """The adapter of ``as: name``; each is imported when it is first needed.

    Args:
        memory: what the connections to one socket know together.
    """
    if not name:
        return Adapter(judge)
    if name not in SERVICES:
        raise ValueError(f"no adapter {name!r}")
    from importlib import import_module

    made: Adapter = import_module(f".adapters.{name.replace('-', '_')}", __package__).protocol(judge, memory)
    return made


def peer(client: Socket) -> int:
    """The process that connected, as this pid namespace numbers it (SO_PEERCRED, unix(7)); 0: it has no number here."""
    return int.from_bytes(client.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)[:4], sys.byteorder)
