"""Which process was it?  Events of the gateway have none of their own.

Theory of operation
-------------------
The command asked the kernel for a connection (``SocketCalled``) to the address that was made for a name
(``NameResolved``, which is of who asked the resolver first), and the data plane opened it (``ConnectionOpened``): the
source port, or the inode of the socket, is the same number on both sides.  Where neither is known, the place, the port
and the time decide, which is a conclusion and no observation.  Requests and the end of the connection follow by its id.
A refusal is joined in the same way, and where nothing is known, with who asked last; its repetitions, reported together
later, are of who was first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from .. import events as ev
from .query import MOST
from .recorded import Recorded, asked

TOGETHER = 11.0  # seconds after a refusal in which its repetitions are reported (docs/events.md)
NEAR = 5.0  # seconds between a call and the connection that it made
# Calls whose process is known by port or socket.  More than can be made while one connection is dialled (20 s): else
# a flood of calls that open nothing would hide who made it.
CALLS = 1 << 17
FOLLOWS = 256  # events between a request and what became of it
CONNECTING = ("connect", "sendto", "sendmsg", "sendmmsg")  # calls that may send somewhere


class Joiner:
    """Gives events of the network the process that caused them; ``add`` them in order."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, str, int, ev.Process, int]] = deque(maxlen=1024)
        self._names: dict[str, str] = {}  # the address that was answered: its name
        self._connections: dict[int, tuple[ev.ConnectionOpened, ev.Process | None]] = {}
        self._refusals: dict[tuple[str, ...], tuple[float, ev.Process]] = {}  # what was refused to whom
        # Local port, or inode of the socket: process, where the tracer saw it.
        self._ports: dict[int, ev.Process] = {}
        self._containers: dict[str, str] = {}  # id: name and image
        self._sockets: dict[int, ev.Process] = {}

    def add(self, each: Recorded) -> Recorded:
        """The event, with its process where that was found, the container of that, and the host of its connection."""
        if isinstance(each.event, ev.ContainerSeen) and len(self._containers) < MOST:
            self._containers[each.event.container] = f"{each.event.name}, image {each.event.image}"
        found = self._caused(each)
        inside = found.process.container if found.process is not None else ""
        return found.replace(container=self._containers.get(inside, inside)) if inside else found

    def _caused(self, each: Recorded) -> Recorded:
        event, process = each.event, each.process
        if isinstance(event, ev.NameResolved):
            if len(self._names) < MOST:
                self._names[event.address] = event.name
            if process is None:
                return each.by(self._client(event) or self._asker(_seconds(each), "", 53))
        elif isinstance(event, ev.SocketCalled):
            if process is not None and event.call in CONNECTING:
                name = self._names.get(event.address)
                self._calls.append((_seconds(each), name or event.address, event.port, process, event.socket))
                _remember(self._ports, event.local_port, process)
                _remember(self._sockets, event.socket, process)
                return each.towards(name) if name else each
        elif process is not None:
            return each
        elif isinstance(event, ev.ConnectionOpened):
            each = each.by(self._opener(_seconds(each), event))
            if len(self._connections) < MOST:
                self._connections[event.id] = event, each.process
        elif isinstance(event, ev.RequestSeen):
            if event.id in self._connections:
                return each.by(self._connections[event.id][1])
        elif isinstance(event, ev.ConnectionClosed):
            if event.id in self._connections:
                opened, process = self._connections.pop(event.id)
                return each.by(process).towards(opened.host, opened.port)
        elif isinstance(event, ev.AccessDenied):
            return each.by(self._refused(_seconds(each), event))
        return each

    def _refused(self, at: float, event: ev.AccessDenied) -> ev.Process | None:
        """Who wanted what was refused.

        Repetitions, which are reported together later, are of who was first: the port of that client may be another's
        by then.
        """
        access = asked(event.access)
        named = access.kind == "NameQuery"
        target = (access.name if named else access.host) or access.address
        what = access.kind, target, str(access.port), access.method, access.path
        key = (*what, str(event.client_port), str(event.client_socket))
        known = self._refusals.get(key)
        if known is not None and 0 <= at - known[0] <= TOGETHER:
            return known[1]
        process = self._client(event)
        if process is None and access.kind in ("Connect", "NameQuery"):
            process = self._asker(at, "" if named else target, 53 if named else access.port)
        if process is not None and (known is not None or len(self._refusals) < MOST):
            self._refusals[key] = (at, process)
        return process

    def _client(self, event: ev.NameResolved | ev.ConnectionOpened | ev.AccessDenied) -> ev.Process | None:
        """By the socket; it may open several (datagrams).  By the port, which may be another's tomorrow."""
        known = self._sockets.get(event.client_socket)
        return known if known is not None else self._ports.get(event.client_port)

    def _opener(self, at: float, event: ev.ConnectionOpened) -> ev.Process | None:
        if event.protocol == "exposed":
            return None  # its client is no process of the sandbox
        known = self._client(event)
        if known is not None:
            for index, call in enumerate(self._calls):
                if call[2] == event.port and call[3] is known:
                    del self._calls[index]  # it is used
                    break
            return known
        places = event.host, event.address
        for target in places:
            found = self._caller(at, target, event.port, event.client_socket)
            if found is not None:
                return found
        if event.protocol != "udp":
            # No TCP connection without a call: the descriptor was another socket's when the kernel took it (dup2(2)).
            for target in filter(None, places):
                found = self._asker(at, target, event.port)
                if found is not None:
                    return found
        return None

    def _caller(self, at: float, target: str, port: int, socket: int) -> ev.Process | None:
        """The first call to ``target`` that was not used yet and is not too old, by no other socket; it is used now."""
        for index, (when, where, to, process, own) in enumerate(self._calls):
            if own and socket and own != socket:
                continue
            if to == port and where == target and -0.1 <= at - when <= NEAR:
                del self._calls[index]
                return process
        return None

    def _asker(self, at: float, target: str, port: int) -> ev.Process | None:
        """Who made the last call to ``target`` (any, if empty) before something was refused."""
        for when, where, to, process, _socket in reversed(self._calls):
            if to == port and (where == target or not target) and -0.1 <= at - when <= NEAR:
                return process
        return None


def _remember(known: dict[int, ev.Process], key: int, process: ev.Process) -> None:
    """The newest ``CALLS``: a command can make any number of calls that open nothing."""
    if not key:
        return
    known.pop(key, None)  # the newest stand last
    if len(known) >= CALLS:
        del known[next(iter(known))]
    known[key] = process


def _seconds(event: Recorded) -> float:
    """Seconds of the day are enough to compare what is close."""
    at = event.time
    try:
        return int(at[11:13]) * 3600 + int(at[14:16]) * 60 + float(at[17:].removesuffix("Z"))
    except ValueError:
        return 0.0


def joined(events: Iterable[Recorded]) -> Iterator[Recorded]:
    """``events`` with the processes that caused them (see ``Joiner``), each program that was executed once."""
    joiner = Joiner()
    return map(joiner.add, once(events))


def once(events: Iterable[Recorded]) -> Iterator[Recorded]:
    """``events``, each program that was executed once (see ``Once``)."""
    programs = Once()
    for event in events:
        yield from programs.add(event)
    yield from programs.rest()


class Once:
    """Both sources report a program that eBPF cannot name or whose arguments it cuts: makes one event of them.

    What the kernel did counts (eBPF).  Which file it was, and all arguments, as they were read before the kernel did,
    stand in ``asked``.  A request that nothing follows is given as it is.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], tuple[int, Recorded]] = {}
        self._kernel = False  # does it report what happened?
        self._count = 0

    def add(self, each: Recorded) -> list[Recorded]:
        """The next event; those that can be given now, in order."""
        held, event, process = self._held, each.event, each.process
        self._count += 1
        if isinstance(event, ev.SessionStarted):
            self._kernel = "ebpf" in event.trace_source
        out = []
        while held and self._count - next(iter(held.values()))[0] > FOLLOWS:  # in order of age
            out.append(held.pop(next(iter(held)))[1])
        if self._kernel and isinstance(event, ev.ProcessStarted) and process is not None:
            who = process.pid, process.start
            before = held.pop(who)[1] if who in held else None
            if each.source == "notify" and event.requested:
                held[who] = self._count, each
                return [*out, before] if before is not None else out
            if before is not None:
                asked_for = before.event
                if isinstance(asked_for, ev.ProcessStarted) and each.source == "ebpf" and _is_of(asked_for, event):
                    return [*out, each.asked_for(asked_for)]
                out.append(before)
        return [*out, each]

    def rest(self) -> list[Recorded]:
        """At the end: the requests that nothing followed."""
        out = [event for _at, event in self._held.values()]
        self._held.clear()
        return out


def _is_of(asked: ev.ProcessStarted, done: ev.ProcessStarted) -> bool:
    """Is this what became of that request?  Else one of them was lost, and both are given."""
    wanted, have = asked.argv, done.argv
    if done.path != asked.path and not done.path.startswith("/dev/fd/"):
        return False
    last = len(have) - 1  # which may be cut
    return last < 0 or (have[:last] == wanted[:last] and [*wanted, ""][last].startswith(have[last]))
