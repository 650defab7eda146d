"""Which process was it?  Events of the gateway have none of their own.

Theory of operation
-------------------
The command asked the kernel for a connection (``SocketCalled``) to the address that stands for a name
(``NameResolved``, which is of who asked the resolver first), and the data plane opened it (``ConnectionOpened``): the
source port, or the inode of the socket, is the same number on both sides.  Where neither is known, the place, the port
and the time decide, which is a conclusion and no observation.  Requests and the end of the connection follow by its id.
A refusal is joined in the same way, and where nothing is known, with who asked last; its repetitions, told together
later, are of who was first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from .query import MOST, items, number, text

TOGETHER = 11.0  # seconds after a refusal in which its repetitions are told (docs/events.md)
NEAR = 5.0  # seconds between a call and the connection that it made
# Calls whose process is known by port or socket.  More than can be made while one connection is dialled (20 s): else
# a flood of calls that open nothing would hide who made it.
CALLS = 1 << 17
FOLLOWS = 256  # events between a request and what became of it
CONNECTING = ("connect", "sendto", "sendmsg", "sendmmsg")  # calls that may send somewhere


class Joiner:
    """Gives events of the network the process that caused them; ``add`` them in order."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, str, int, dict[str, Any], int]] = deque(maxlen=1024)
        self._names: dict[str, str] = {}  # the address that was answered: its name
        self._connections: dict[int, dict[str, Any]] = {}
        self._refusals: dict[tuple[str, ...], tuple[float, dict[str, Any]]] = {}  # what was refused to whom
        # Local port, or inode of the socket: process, where the tracer saw it.
        self._ports: dict[int, dict[str, Any]] = {}
        self._sockets: dict[int, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event, with ``process`` and ``joined`` where they were found; ``host`` where the connection has one."""
        kind = event["event"]
        process = event.get("process")
        if kind == "NameResolved":
            if len(self._names) < MOST:
                self._names[text(event.get("address"))] = text(event.get("name"))
            if process is None:
                event = self._with(event, self._client(event) or self._asker(_seconds(event), "", 53))
        elif kind == "SocketCalled" and isinstance(process, dict) and event.get("call") in CONNECTING:
            address = text(event.get("address"))
            name = self._names.get(address)
            if name:
                event = {**event, "host": name}
            socket = number(event.get("socket"))
            self._calls.append((_seconds(event), name or address, number(event.get("port")), process, socket))
            _remember(self._ports, number(event.get("local_port")), process)
            _remember(self._sockets, socket, process)
        elif process is None and kind == "ConnectionOpened":
            event = self._with(event, self._opener(event))
            if len(self._connections) < MOST:
                self._connections[number(event.get("id"))] = event
        elif process is None and kind in ("ConnectionClosed", "RequestSeen"):
            opened = self._connections.get(number(event.get("id")))
            if opened is not None:
                event = self._with(event, opened.get("process"))
                if kind == "ConnectionClosed":
                    event = {**event, "host": opened.get("host"), "port": opened.get("port")}
                    del self._connections[number(event.get("id"))]
        elif process is None and kind == "AccessDenied":
            event = self._with(event, self._refused(event))
        return event

    @staticmethod
    def _with(event: dict[str, Any], process: Any) -> dict[str, Any]:
        return {**event, "process": process, "joined": True} if isinstance(process, dict) else event

    def _refused(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Who wanted what was refused.

        Repetitions, which are told together later, are of who was first: the port of that client may be another's
        by then.
        """
        access, at = event.get("access"), _seconds(event)
        if not isinstance(access, dict):
            return self._client(event)
        kind, port = text(access.get("kind")), number(access.get("port"))
        named = kind == "NameQuery"
        target = text(access.get("name" if named else "host")) or text(access.get("address"))
        what = kind, target, str(port), text(access.get("method")), text(access.get("path"))
        key = (*what, str(number(event.get("client_port"))), str(number(event.get("client_socket"))))
        known = self._refusals.get(key)
        if known is not None and 0 <= at - known[0] <= TOGETHER:
            return known[1]
        process = self._client(event)
        if process is None and kind in ("Connect", "NameQuery"):
            process = self._asker(at, "" if named else target, 53 if named else port)
        if process is not None and (known is not None or len(self._refusals) < MOST):
            self._refusals[key] = (at, process)
        return process

    def _client(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """By the socket; it may open several (datagrams).  By the port, which may be another's tomorrow."""
        known = self._sockets.get(number(event.get("client_socket")))
        return known if known is not None else self._ports.get(number(event.get("client_port")))

    def _opener(self, event: dict[str, Any]) -> dict[str, Any] | None:
        if event.get("protocol") == "exposed":
            return None  # its client is no process of the sandbox
        at, port = _seconds(event), number(event.get("port"))
        socket = number(event.get("client_socket"))
        known = self._client(event)
        if known is not None:
            for index, call in enumerate(self._calls):
                if call[2] == port and call[3] is known:
                    del self._calls[index]  # it is used
                    break
            return known
        host, address = text(event.get("host")), text(event.get("address"))
        found = self._caller(at, host, port, socket) or self._caller(at, address, port, socket)
        if found is None and event.get("protocol") != "udp":
            # No TCP connection without a call: the descriptor was another socket's when the kernel took it (dup2(2)).
            found = next((who for target in (host, address) if target and (who := self._asker(at, target, port))), None)
        return found

    def _caller(self, at: float, target: str, port: int, socket: int) -> dict[str, Any] | None:
        """The first call to ``target`` that was not used yet and is not too old, by no other socket; it is used now."""
        for index, (when, where, to, process, own) in enumerate(self._calls):
            if own and socket and own != socket:
                continue
            if to == port and where == target and -0.1 <= at - when <= NEAR:
                del self._calls[index]
                return process
        return None

    def _asker(self, at: float, target: str, port: int) -> dict[str, Any] | None:
        """Who made the last call to ``target`` (any, if empty) before something was refused."""
        process: dict[str, Any]
        for when, where, to, process, _socket in reversed(self._calls):
            if to == port and (where == target or not target) and -0.1 <= at - when <= NEAR:
                return process
        return None


def _remember(known: dict[int, dict[str, Any]], key: int, process: dict[str, Any]) -> None:
    """The newest ``CALLS``: a command can make any number of calls that open nothing."""
    if not key:
        return
    known.pop(key, None)  # the newest stand last
    if len(known) >= CALLS:
        del known[next(iter(known))]
    known[key] = process


def _seconds(event: dict[str, Any]) -> float:
    """Seconds of the day are enough to compare what is close."""
    at = text(event.get("time"))
    try:
        return int(at[11:13]) * 3600 + int(at[14:16]) * 60 + float(at[17:].removesuffix("Z"))
    except ValueError:
        return 0.0


def joined(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """``events`` with the processes that caused them (see ``Joiner``), each program that was executed once."""
    joiner = Joiner()
    return map(joiner.add, once(events))


def once(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """``events``, each program that was executed once (see ``Once``)."""
    programs = Once()
    for event in events:
        yield from programs.add(event)
    yield from programs.rest()


class Once:
    """Both sources tell of a program that eBPF cannot name or whose arguments it cuts: makes one event of them.

    What the kernel did counts (eBPF).  Which file it was, and all arguments, as they were read before the kernel did,
    stand in ``asked``.  A request that nothing follows is given as it is.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, Any], tuple[int, dict[str, Any]]] = {}
        self._kernel = False  # does it tell what happened?
        self._count = 0

    def add(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The next event; those that can be given now, in order."""
        held, kind, process = self._held, event["event"], event.get("process")
        self._count += 1
        if kind == "SessionStarted":
            self._kernel = "ebpf" in text(event.get("trace_source"))
        out = []
        while held and self._count - next(iter(held.values()))[0] > FOLLOWS:  # in order of age
            out.append(held.pop(next(iter(held)))[1])
        if self._kernel and kind == "ProcessStarted" and isinstance(process, dict):
            who = process.get("pid"), process.get("start")
            before = held.pop(who)[1] if who in held else None
            if event.get("source") == "notify" and event.get("requested") is True:
                held[who] = self._count, event
                return [*out, before] if before is not None else out
            if before is not None and event.get("source") == "ebpf" and _is_of(before, event):
                return [*out, _merged(before, event)]
            if before is not None:
                out.append(before)
        return [*out, event]

    def rest(self) -> list[dict[str, Any]]:
        """At the end: the requests that nothing followed."""
        out = [event for _at, event in self._held.values()]
        self._held.clear()
        return out


def _merged(asked: dict[str, Any], done: dict[str, Any]) -> dict[str, Any]:
    return {**done, "asked": {"path": text(asked.get("path")), "argv": items(asked.get("argv"))}}


def _is_of(asked: dict[str, Any], done: dict[str, Any]) -> bool:
    """Is this what became of that request?  Else one of them was lost, and both are given."""
    path, wanted, have = text(done.get("path")), items(asked.get("argv")), items(done.get("argv"))
    if path != text(asked.get("path")) and not path.startswith("/dev/fd/"):
        return False
    last = len(have) - 1  # which may be cut
    return last < 0 or (have[:last] == wanted[:last] and text([*wanted, ""][last]).startswith(text(have[last])))
