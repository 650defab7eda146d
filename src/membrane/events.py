"""The closed vocabulary of what happened.

Theory of operation
-------------------
Each event is a frozen record, a subclass of ``Event``; ``EVENTS`` has them all.  ``encode`` gives the JSON object of
``--events``, ``trace show --json`` and the library; its field names are stable and documented in ``docs/events.md``.
The gateway sends the same objects up its control socket; the session fills in ``time``, ``session`` and ``seq``.

Text in events comes from inside the sandbox: ``encode`` applies ``escape`` to every string (``escaping``).
"""

from __future__ import annotations

from .escaping import escape
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar, Literal, Protocol, TypeAlias

    class Client(Protocol):
        """Of the network: its port, and the inode of its socket or 0; a pair."""

        def __getitem__(self, index: int, /) -> int: ...
        def __iter__(self) -> Iterator[int]: ...

    Source: TypeAlias = Literal["ebpf", "notify", "network", "mount", "session"]

LONGEST = 4096  # characters of one string before it is cut and digested


class Process(Value):
    """Who did it.  ``start`` is the start time in clock ticks since boot (proc(5) stat field 22).

    ``container``: the short id of the container that it is in (``ContainerSeen`` has its name); not in JSON when empty.
    """

    pid: int
    start: int
    name: str
    exe: str
    container: str = ""


class Binding(Value):
    """Which mechanism binds a rule, and whether it was read back from the kernel."""

    rule: str
    mechanism: str
    status: Literal["bound", "partial"]
    read_back: bool


EVENTS: dict[str, type[Event]] = {}  # by name


class Event(Value):
    """Something that happened: a subclass is the one description of an event.

    Its fields, with their types and in their order, are those of the JSON object: ``lines`` writes them,
    ``record.recorded`` reads them, and the tables of ``docs/events.md`` are checked against them.

    Args:
        by: the processes that may send it to the supervisor (``run.event_log``); none: it is the supervisor's own.
    """

    if TYPE_CHECKING:
        senders: ClassVar[tuple[str, ...]]

        @property
        def source(self) -> Source: ...

    def __init_subclass__(cls, by: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls.senders = by
        EVENTS[cls.__name__] = cls


class SessionStarted(Event):
    """``change_set``: of a reviewed workspace; empty: the workspace is written."""

    version: str
    command: tuple[str, ...]
    workspace: str
    policy_digest: str
    levels: tuple[str, ...]
    assurance: tuple[Binding, ...]
    trace_source: str
    identity: str
    source: Source = "session"
    change_set: str = ""


class CheckpointMade(Event):
    """What ``change_set`` held at this moment can be gone back to; no process of the sandbox ran meanwhile."""

    change_set: str
    checkpoint: str
    source: Source = "session"


class CheckpointRestored(Event):
    """The sandbox begins with what ``change_set`` held at ``checkpoint``."""

    change_set: str
    checkpoint: str
    source: Source = "session"


class NameResolved(Event, by=("network",)):
    """``client_port`` and ``client_socket``: of who asked first, as of ``ConnectionOpened``."""

    name: str
    type: str
    verdict: Literal["allow", "deny"]
    address: str
    source: Source = "network"
    client_port: int = 0
    client_socket: int = 0


class ConnectionOpened(Event, by=("network",)):
    """``id`` joins it with ``ConnectionClosed``; ``address`` is the one that was dialled.

    ``client_port`` and ``client_socket`` are of the client: its port, and where ``SocketCalled`` names it, the inode of
    its socket (else 0).
    """

    id: int
    protocol: str  # tcp, udp, tls, http/1.1, h2
    host: str
    address: str
    port: int
    sni: str = ""
    client_port: int = 0
    source: Source = "network"
    client_socket: int = 0


class ConnectionClosed(Event, by=("network",)):
    id: int
    bytes_up: int
    bytes_down: int
    duration_ms: float
    error: str = ""
    reached: bool = True
    source: Source = "network"


class RequestSeen(Event, by=("network",)):
    """One request of an inspected connection, reported when its answer is over.

    ``id`` is the connection's; ``number`` counts the requests of an HTTP/1.1 connection and is the stream in HTTP/2.
    ``query``, ``request_headers`` and ``answer_headers`` only with ``trace: {http: full}``; what looks like a
    credential in them is ``[redacted]``.  ``status`` is what the client got: 0 for none, 502 with ``error`` when the
    server could not be asked, 504 when it did not answer.  ``bytes_up`` and ``bytes_down`` are bytes of content.
    """

    id: int
    number: int
    protocol: str  # http/1.1, h2, websocket
    method: str
    scheme: str
    host: str
    port: int
    path: str  # canonical: what was matched and forwarded
    query: str
    status: int
    bytes_up: int
    bytes_down: int
    duration_ms: float
    verdict: Literal["allow", "deny"]
    rule: str | None  # the rule that decided, and where it was written
    error: str = ""
    request_headers: tuple[tuple[str, str], ...] = ()
    answer_headers: tuple[tuple[str, str], ...] = ()
    source: Source = "network"


class AccessDenied(Event, by=("network", "tracer")):
    """``access`` is the question as data: ``{"kind": "Connect", "host": ...}``.

    ``count``: identical refusals that this event stands for; the first of a series is reported at once, the
    repetitions of the next seconds together.  ``client_port`` and ``client_socket`` as of ``ConnectionOpened``, of who
    was first; 0 where no client of the network was refused.
    """

    access: dict[str, Any]
    reason: str
    rule: str | None
    hint: str | None
    source: Source = "network"
    count: int = 1
    client_port: int = 0
    client_socket: int = 0

    def of(self, client: Client) -> AccessDenied:
        """The same, by this client."""
        return self.replace(client_port=client[0], client_socket=client[1])


class AccessAnswered(Event, by=("network",)):
    """A person was asked about an access that no rule decides (``--ask``); ``rule`` is what was proposed."""

    access: dict[str, Any]
    answer: Literal["once", "session", "no", "late"]
    rule: str
    source: Source = "network"


class NameQuarantined(Event):
    """A name that must not appear was taken away (protected names), ``to`` is where it went."""

    path: str
    to: str
    source: Source = "mount"


class ContainerSeen(Event):
    """A container that an engine inside keeps (``containers: nested``): what the engine says of it."""

    container: str  # the short id, as of ``Process``
    name: str
    image: str
    engine: str
    source: Source = "session"


class ProcessStarted(Event, by=("tracer",)):
    """A program was executed (execve(2)), or asked for; ``process`` of the event is the process that became it.

    In this and the following events ``result`` is empty for success, else the name of the errno.  ``requested``: what
    was seen is the call, before the kernel carried it out (seccomp notification), so ``result`` is a prediction.
    """

    parent: int
    argv: tuple[str, ...]
    cwd: str
    path: str  # of the program, as the kernel resolved it
    result: str = ""
    requested: bool = False
    source: Source = "ebpf"


class ProcessExited(Event, by=("tracer",)):
    exit_code: int
    signal: int
    duration_ms: float
    max_rss_kb: int = 0
    source: Source = "ebpf"


class FileOpened(Event, by=("tracer",)):
    """``flags``: names without ``O_`` in lower case (open(2)): rdonly, wronly, rdwr, creat, trunc, append, ...

    ``count``: equal opens that this event stands for, its own included; repetitions are reported together.
    """

    path: str
    flags: tuple[str, ...]
    result: str = ""
    requested: bool = False
    outside_workspace: bool = False
    source: Source = "ebpf"
    count: int = 1


class FileCreated(Event, by=("tracer",)):
    """A name made by another call than open(2); ``type``: directory, link, symlink, fifo, socket, device.

    ``to``: what a link or a symbolic link leads to.
    """

    path: str
    type: str
    to: str = ""
    result: str = ""
    requested: bool = False
    outside_workspace: bool = False
    source: Source = "ebpf"


class FileRemoved(Event, by=("tracer",)):
    path: str
    directory: bool = False
    result: str = ""
    requested: bool = False
    outside_workspace: bool = False
    source: Source = "ebpf"


class FileRenamed(Event, by=("tracer",)):
    path: str
    to: str
    result: str = ""
    requested: bool = False
    outside_workspace: bool = False
    source: Source = "ebpf"


class FileChanged(Event, by=("tracer",)):
    """chmod(2), chown(2), setxattr(2) and their forms: what a file may do or whose it is, not what it holds.

    ``change``: ``mode``, ``owner``, ``attribute``, ``attribute removed``.  ``value``: the mode in octal, ``uid:gid`` as
    the command counts them with nothing for one that stays, or the name of the attribute.
    """

    path: str
    change: str
    value: str
    result: str = ""
    requested: bool = False
    outside_workspace: bool = False
    source: Source = "ebpf"


class SocketCalled(Event, by=("tracer",)):
    """connect(2), bind(2) or a datagram: what the command asked for, before the data plane saw it.

    ``family``: inet, inet6, unix, netlink, ...; ``address`` is a path for unix, a leading ``@`` for an abstract name.
    ``local_port``: of the socket after the call, which is ``client_port`` of its connection (eBPF); ``socket``: its
    inode, which is ``client_socket`` (notification: the call is not over).  0 where it is not known.
    """

    call: str  # connect, bind, sendto
    family: str
    address: str
    port: int
    result: str = ""
    requested: bool = False
    source: Source = "ebpf"
    local_port: int = 0
    socket: int = 0


class DefectSeen(Event, by=("network",)):
    """A part of Membrane failed by a defect of ours; what it was about (a connection, a datagram) was refused.

    ``where``: ``module:line function`` of the frames of our own code, the innermost last.  ``count``: how many such
    failures this event stands for; those after the first few are reported together at the end.
    """

    error: str
    where: tuple[str, ...]
    count: int = 1
    source: Source = "network"


class EventsLost(Event, by=("network", "tracer")):
    """``count`` 0 with a ``cause``: it is not known how many; the source did not say that it had sent them all."""

    kind: str
    count: int
    start: str  # ISO 8601
    end: str
    source: Source = "session"
    cause: str = ""


class SessionEnded(Event):
    """``incomplete``: why the record may lack events whose number is not known; empty when every end is proven."""

    exit_code: int
    signal: int
    duration_ms: float
    counts: dict[str, int]
    denied: int
    lost: int
    left_behind: tuple[str, ...] = ()
    source: Source = "session"
    incomplete: tuple[str, ...] = ()


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it, every string escaped, long ones cut with their digest."""
    if isinstance(value, str):
        if len(value) > LONGEST:
            import hashlib

            try:
                data = value.encode("utf-8", "surrogateescape")  # the bytes of a file name
            except UnicodeEncodeError:
                data = value.encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(data).hexdigest()
            return {"text": escape(value[:LONGEST]), "truncated": True, "sha256": digest}
        return escape(value)
    if isinstance(value, Value):
        out = {name: plain(getattr(value, name)) for name in value.field_names}
        if type(value) is Process and not value.container:
            del out["container"]
        return out
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {escape(str(key)): plain(item) for key, item in value.items()}
    return value


def access_as_data(access: Value) -> dict[str, Any]:
    """The question as a JSON object: its type under ``kind``, then its fields."""
    return {"kind": type(access).__name__, **{n: getattr(access, n) for n in access.field_names}}


def encode(event: Event, *, time: str, session: str, seq: int, process: Process | None = None) -> dict[str, Any]:
    """The JSON object of one event, common fields first, every string escaped."""
    out: dict[str, Any] = {
        "time": time,
        "session": session,
        "seq": seq,
        "event": type(event).__name__,
        "source": event.source,
        "process": plain(process) if process else None,
    }
    for name in event.field_names:
        if name != "source":
            out[name] = plain(getattr(event, name))
    return out
