"""What the supervisor and the tracer say to each other.

The tracer is ours and outside of the sandbox, but it reads what the sandbox says: its messages are bounded by a
datagram and hold no record.  It trusts the supervisor, which forked it.
"""

from __future__ import annotations

from ..messages import Failure, Message, Table
from ..value import Layout, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Fd
    from ..workspace.creation import Row


class Watched(Value):
    """What is known only when the sandbox is set up; as the fields of ``process.Scope``."""

    roots: tuple[tuple[str, tuple[Row, ...]], ...]
    awaited: tuple[str, ...]
    tips: tuple[tuple[str, bytes], ...]
    beside: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]


# ---------------------------------------------------------------- to the tracer


class Prepare(Message):
    """Load what is needed."""


class Attach(Message):
    """Begin.

    ``process``: whose descendants are traced.  ``edits``: calls can be passed on (``CallWaits``).  ``listener``: of the
    notifications (seccomp_unotify(2)).  ``root``: the sandbox's root (O_PATH).  ``table``: for
    ``host.unixsockets.Table``.
    """

    watched: Watched
    process: int
    edits: bool
    listener: Fd | None
    root: Fd
    table: Fd | None


class Join(Message):
    """Answer the notifications of a second filter as well: of what joins the sandbox later (``host.spawner``)."""

    listener: Fd


class Follow(Message):
    """Trace ``process``, which waits to be released, and its descendants as well."""

    process: int


class Sync(Message):
    """Answer with ``Synced`` once everything that was seen until now was sent."""

    number: int


class Decide(Message):
    """What to do with a call that waits: 0, ``edits.GO_ON`` or an errno, and why."""

    number: int
    what: int
    why: str


# ---------------------------------------------------------------- from the tracer


class Attached(Message):
    """The sources that are read, best first; why eBPF is not among them."""

    sources: tuple[str, ...]
    why: str


class Lines(Message):
    """Events, one line of JSON each."""

    text: bytes


class CallWaits(Message):
    """A call is passed on (``edits``): until ``deadline``, in microseconds of CLOCK_MONOTONIC; ``mode`` -1: none."""

    number: int
    deadline: int
    mode: int
    path: bytes


class Synced(Message):
    """The answer to ``Sync``."""

    number: int


class Totals(Message):
    """The last one: everything was sent.

    ``counts``: of events, one for each of ``types``.  ``unwritten``: events that found no room on the disk.
    """

    types: tuple[str, ...]
    counts: tuple[int, ...]
    unwritten: int

    def __post_init__(self) -> None:
        self.match(self.types, self.counts)


TO_TRACER = Table(
    "from the supervisor to the tracer",
    *(Prepare, Attach, Join, Follow, Sync, Decide),
    longest=1 << 30,
    Watched=Layout("watched", Watched),
)
FROM_TRACER = Table("from the tracer to the supervisor", Attached, Lines, CallWaits, Synced, Totals, Failure)
