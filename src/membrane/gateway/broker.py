"""Carries connections to unix sockets of the sandbox to the host's sockets that the policy names.

Theory of operation
-------------------
A listening socket stands in the view where the host's socket stands outside; it was made inside and passed out.  For
each connection that is accepted here, the host's socket is opened as it is now: without symbolic links, a socket, of
the owner that it had when the run was planned.  Then bytes are copied through an adapter (``adapters``).  They are
read with recv(2) and written with send(2), so descriptors and credentials in control messages (unix(7)) never cross:
the kernel drops them.

Rules
-----
1. Only bytes that an adapter has put into ``up`` reach the service.
2. A side is read only while little waits to be written: memory is bounded, by what ``room`` gives each
   and what the adapter holds.
3. Whatever goes wrong in a connection ends that connection only.
"""

from __future__ import annotations

import os
import stat
import sys
from _socket import AF_UNIX, SHUT_WR, SO_PEERCRED, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket
from errno import EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM

from ..events import ConnectionClosed, ConnectionOpened
from ..host import syscalls as sc
from ..policy import reasons
from ..policy.model import Allow, Ask, Deny, SocketAccess
from ..policy.sockets import SERVICES
from .adapters import Adapter, Asked, Broken
from .journal import denial
from .reactor import ERR, HUP, IN, OUT
from .room import Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from ..policy.model import SocketRule, Verdict
    from .asking import Asking
    from .budgets import Budget
    from .reactor import Reactor

CONNECTIONS = 256  # at once, to all sockets
_CHUNK = 1 << 16  # bytes read at once
_MOST = 64  # accepted in one turn
_AGAIN = 0.05  # seconds until a service whose queue is full is tried again
_ATTEMPTS = 100
_PATIENCE = 0.1  # seconds without accepting when no descriptor is left


class Broker:
    """All connections to unix sockets of one session.

    Args:
        decide: the policy.
        number: gives the next connection number, shared with TCP.
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
        room: Room | None = None,
    ) -> None:
        self.room = room or Room()
        self.reactor, self.decide, self.emit, self.crashed = reactor, decide, emit, crashed
        self.number, self.budget = number, budget
        self.accepted = self.refused = self.failed = self.bytes_up = self.bytes_down = 0
        self.asking: Asking | None = None  # without one, what no rule decides is refused
        self.connections: set[Connection] = set()
        self._limit = connections
        self._pause = reactor.wait(_PATIENCE, _Door.start)
        self.again = reactor.wait(_AGAIN, Connection.dial)

    def listen(self, listener: Socket, rule: SocketRule, source: str, owner: int) -> None:
        """Serve a listening socket of the view.

        Args:
            source: the host's socket, without symbolic links.
            owner: the uid that it must belong to.
        """
        listener.setblocking(False)
        _Door(self, listener, rule, source, owner, self._pause.begin).start()

    def close(self) -> None:
        """End every connection."""
        for connection in list(self.connections):
            connection.finish("session ended")

    def arrived(self, client: Socket, door: _Door) -> None:
        self.accepted += 1
        access = SocketAccess(door.rule.path)
        verdict = self.decide(access)
        if isinstance(verdict, Allow) and len(self.connections) >= self._limit:
            verdict = Deny(None, reasons.LIMIT_REACHED, f"{self._limit} connections to unix sockets at once")
        if not isinstance(verdict, Allow):
            self.refuse(access, verdict)
            client.close()
            return
        connection = Connection(self, client, door)
        self.connections.add(connection)
        connection.dial()

    def refuse(self, access: SocketAccess, verdict: Verdict) -> None:
        assert not isinstance(verdict, Allow)
        self.refused += 1
        self.emit(denial(access, verdict))


class _Door:
    """A listening socket of the view and where its connections lead."""

    __slots__ = ("_broker", "_exhausted", "_listener", "memory", "owner", "rule", "source")

    def __init__(
        self,
        broker: Broker,
        listener: Socket,
        rule: SocketRule,
        source: str,
        owner: int,
        exhausted: Callable[[_Door], None],
    ) -> None:
        self._broker, self._listener, self._exhausted = broker, listener, exhausted
        self.rule, self.source, self.owner = rule, source, owner
        self.memory: dict[str, Any] = {}

    def start(self) -> None:
        self._broker.reactor.watch(self._listener.fileno(), IN, self._ready)

    def _ready(self, _mask: int) -> None:
        for _ in range(_MOST):
            try:
                fd, _peer = self._listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    self._broker.reactor.unwatch(self._listener.fileno())
                    self._exhausted(self)
                    return
                continue
            client = Socket(AF_UNIX, SOCK_STREAM, 0, fd)
            client.setblocking(False)
            self._broker.arrived(client, self)


class Connection:
    """One client inside and the service that it asked for."""

    def __init__(self, broker: Broker, client: Socket, door: _Door) -> None:
        self._broker, self._client, self._door = broker, client, door
        self._id = broker.number()
        self._server: Socket | None = None
        self._adapter = make_adapter(door.rule.adapter, self._judge, door.memory)
        self._attempts = 0
        self._started = broker.reactor.now
        self._inside, self._outside = _Side(), _Side()
        self._opened = self._dead = False
        self._up = self._down = 0
        self._answers: dict[SocketAccess, bool] = {}
        self._held = 0  # bytes that wait, as counted

    def dial(self) -> None:
        """Connect to the host's socket; a full queue is tried again."""
        if self._dead:
            return
        try:
            server = connect(self._door.source, self._door.owner)
        except OSError as error:
            self._attempts += 1
            if error.errno == EAGAIN and self._attempts < _ATTEMPTS:
                self._broker.again.begin(self)
                return
            self.finish(error.strerror or "the socket is not there")
            return
        self._server = server
        self._tell_opened()
        for socket, handler in ((self._client, self._on_client), (server, self._on_server)):
            self._broker.reactor.watch(socket.fileno(), 0, handler)
        self._flush()

    def finish(self, error: str = "") -> None:
        """End both sides."""
        if self._dead:
            return
        self._dead = True
        broker = self._broker
        broker.again.end(self)
        broker.connections.discard(self)
        self._held = broker.room.change(self._held, 0)
        broker.failed += bool(error)
        self._tell_opened()
        duration = round((broker.reactor.now - self._started) * 1000, 3)
        broker.emit(ConnectionClosed(self._id, self._up, self._down, duration, error))
        broker.reactor.bury(self._client)
        if self._server is not None:
            broker.reactor.bury(self._server)

    def _tell_opened(self) -> None:
        if not self._opened:
            self._opened = True
            self._broker.emit(ConnectionOpened(self._id, "unix", self._door.rule.path, "", 0))

    def _judge(self, operation: str, names: tuple[str, ...]) -> bool:
        access = SocketAccess(self._door.rule.path, operation, names)
        if self._answers.pop(access, False):
            return True
        verdict = self._broker.decide(access)
        if isinstance(verdict, Allow):
            return True
        asking = self._broker.asking
        if isinstance(verdict, Ask) and asking is not None:
            client = {"protocol": "unix", "pid": peer(self._client)}
            asking.ask(access, verdict.hint, lambda router: self._answered(access, router is not None), client)
            if access not in self._answers:
                raise Asked
            del self._answers[access]  # too many questions are open
        if operation != "offer":  # what is left out of a list was not asked for
            self._broker.refuse(access, verdict)
        return False

    def _answered(self, access: SocketAccess, allowed: bool) -> None:
        """Somebody was asked about the message that waits, or cannot be."""
        self._answers[access] = allowed
        if not self._adapter.parked or self._dead:
            return
        try:
            self._adapter.resume()
            self._flush()
        except Broken as error:
            self.finish(str(error))
        except OSError as error:
            self.finish(error.strerror or str(error))
        except Exception as error:
            self._broker.crashed(error)
            self.finish("internal error")

    def _on_client(self, mask: int) -> None:
        self._turn(mask, self._client, client=True)

    def _on_server(self, mask: int) -> None:
        assert self._server is not None
        self._turn(mask, self._server, client=False)

    def _turn(self, mask: int, socket: Socket, *, client: bool) -> None:
        if self._dead:
            return
        side = self._inside if client else self._outside
        try:
            # What a peer that is gone has sent is bounded by the socket's buffer: it is read in any case.
            if not side.ended and (mask & (HUP | ERR) or (mask & IN and self._reads(client))):
                self._read(socket, side, client)
            if mask & (HUP | ERR) and side.ended and not self._dead and not side.gone:
                side.gone = True
                self._broker.reactor.unwatch(socket.fileno())  # else the kernel tells so again and again
            self._flush()
        except Broken as error:
            self.finish(str(error))
        except OSError as error:
            self.finish(error.strerror or str(error))
        except Exception as error:
            self._broker.crashed(error)
            self.finish("internal error")

    def _read(self, socket: Socket, side: _Side, client: bool) -> None:
        try:
            data = socket.recv(_CHUNK)
        except BlockingIOError:
            return
        side.ended = not data
        if not data:
            return
        if not client:
            self._down += len(data)
            self._broker.bytes_down += len(data)
            self._adapter.from_server(data)
            return
        if not self._broker.budget.spend(len(data)):
            access = SocketAccess(self._door.rule.path)
            self._broker.refuse(access, Deny(None, reasons.LIMIT_REACHED, "limits: upload"))
            self.finish("upload limit reached")
            return
        self._up += len(data)
        self._broker.bytes_up += len(data)
        self._adapter.from_client(data)

    def _reads(self, client: bool) -> bool:
        adapter = self._adapter
        if client and (adapter.over() or adapter.parked):
            return False
        enough = self._broker.room.each()
        return len(adapter.up) < enough and len(adapter.down) < enough

    def _flush(self) -> None:
        """Write what waits, pass ends on, and wait for what is to come."""
        if self._dead or self._server is None:
            return
        adapter, inside, outside = self._adapter, self._inside, self._outside
        _send(self._server, adapter.up, outside.gone)
        _send(self._client, adapter.down, inside.gone)
        self._held = self._broker.room.change(self._held, len(adapter.up) + len(adapter.down))
        if not adapter.down and (adapter.over() or outside.gone or (outside.ended and inside.told)):
            self.finish()
            return
        if not adapter.up and inside.gone and not adapter.waiting():
            self.finish()
            return
        if inside.ended and not inside.told and not adapter.up and not adapter.waiting() and not adapter.parked:
            inside.told = True
            self._server.shutdown(SHUT_WR)
        if outside.ended and not outside.told and not adapter.down:
            outside.told = True
            self._client.shutdown(SHUT_WR)
        for socket, side, client, out in (
            (self._client, inside, True, adapter.down),
            (self._server, outside, False, adapter.up),
        ):
            mask = (IN if not side.ended and self._reads(client) else 0) | (OUT if out else 0)
            if mask != side.mask and not side.gone:
                side.mask = mask
                self._broker.reactor.change(socket.fileno(), mask)


class _Side:
    """One end of a connection: it has no more to say, the other was told so, it is not there any more."""

    __slots__ = ("ended", "gone", "mask", "told")

    def __init__(self) -> None:
        self.ended = self.told = self.gone = False
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


def connect(path: str, owner: int) -> Socket:
    """Connect to the host's socket at ``path``, whose identity is checked first.

    Raises:
        OSError: ELOOP, a link stands on the way; ENOTSOCK, EPERM: it is something else than what was planned; EAGAIN:
            its queue is full; any other of connect(2).
    """
    import errno

    fd = sc.openat2(sc.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, sc.RESOLVE_NO_SYMLINKS)
    try:
        details = os.stat(fd)
        if not stat.S_ISSOCK(details.st_mode):
            raise OSError(errno.ENOTSOCK, "it is no socket any more")
        if details.st_uid != owner:
            raise OSError(errno.EPERM, f"it belongs to uid {details.st_uid} now")
        server = Socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
        try:
            server.connect(f"/proc/self/fd/{fd}")  # this very inode, however long its path is
        except BaseException:
            server.close()
            raise
        return server
    finally:
        os.close(fd)
