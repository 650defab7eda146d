"""What the supervisor and the gateway say to each other, in a stream (``messages.Frames``).

The gateway is ours and outside of the sandbox, but it reads what the sandbox and foreign servers send: its messages are
bounded, hold no record, and what is of no fixed form in one is checked when it is decoded.  It trusts the supervisor,
which started it.

Order: ``Begin`` comes first and once.  The gateway answers ``Ready``, with ``inspect`` then ``Certificate``; its last
message is ``Ended``, or ``Failed`` before an end that is not clean.  Without one of them the record is incomplete.
"""

from __future__ import annotations

from ..messages import Message, Table
from ..policy.codec import KINDS
from ..policy.model import Policy
from ..value import Layout, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ..messages import Json

    Destinations: TypeAlias = tuple[tuple[str, str, int, str], ...]  # scheme, host, port, path


class SecretRow(Value):
    """One secret; the fields of ``http.credentials.Secret``."""

    name: str
    value: bytes
    placeholder: bytes
    place: str
    destinations: Destinations


class LoginRow(Value):
    """A log-in file: the fields of ``http.logins.Login``, its secrets by their names."""

    names: tuple[str, ...]
    endpoints: Destinations
    destinations: Destinations
    place: str


class Setup(Value):
    """What one gateway serves, and how.

    ``sockets``: role (``server``) and descriptor.  ``clock``: ``clock.offset``; None: the gateway's own.
    ``verbose``: events are read; else refusals only are sent.  ``totals``: sums are sent while it runs.
    ``inspect``: some rule needs requests to be judged.  ``authority``: certificate and key, PEM; None: one is made.
    ``authorities``: PEM, trusted beside the system's.  ``environ``: the host's, for ``upstream_proxy: env``.
    ``ask``: seconds and kinds of questions (``approvals``); None: nothing is asked.  ``doors``: for the policy's N-th
    unix socket (N, path of the host's socket, uid of its owner).  ``names``, ``connections``, ``udp_flows``: how many
    at a time; 0: as many as usual.
    """

    policy: Policy
    session: str
    sockets: tuple[tuple[str, int], ...] = ()
    clock: int | None = None
    verbose: bool = True
    totals: bool = False
    inspect: bool = False
    authority: tuple[bytes, bytes] | None = None
    authorities: bytes = b""
    environ: tuple[tuple[str, str], ...] = ()
    ask: tuple[float, tuple[str, ...]] | None = None
    doors: tuple[tuple[int, str, int], ...] = ()
    secrets: tuple[SecretRow, ...] = ()
    logins: tuple[LoginRow, ...] = ()
    names: int = 0
    connections: int = 0
    udp_flows: int = 0


# ---------------------------------------------------------------- to the gateway


class Begin(Message):
    """The first one."""

    setup: Setup


class Follow(Message):
    """Decide by these rules from now on."""

    policy: Policy


class Answer(Message):
    """To the question of this number: "once", "session" or "no"; any other word is "no"."""

    number: int
    answer: str


class Sync(Message):
    """Send what is held back, then ``Synced``."""

    number: int


class Stop(Message):
    """Send what is left, and end with status 0; the end of the stream says the same."""


# ---------------------------------------------------------------- from the gateway


class Ready(Message):
    """The sockets are served."""


class Certificate(Message):
    """Of the authority that inspected connections are served with; PEM."""

    pem: bytes


class Lines(Message):
    """Events, one line of JSON each; ``seq`` is 0: the supervisor numbers them."""

    text: bytes


class Totals(Message):
    """Bytes of all connections so far."""

    bytes_up: int
    bytes_down: int


class Asked(Message):
    """A question (``approvals``).

    ``access``: the access as data (``events.access_as_data``).  ``rule``: the YAML that would allow it.
    ``lasting``: that is an entry that a policy file can get by itself.  ``client``: the end inside that asked first,
    ``{"protocol", "port"}`` of its socket in the sandbox's network namespace, or ``{"protocol": "unix", "pid"}``
    (SO_PEERCRED, in the gateway's pid namespace); None: not known.  ``seconds``: until it is withdrawn.
    """

    number: int
    kind: str
    access: Json
    rule: str
    lasting: bool
    client: Json
    seconds: float

    def __post_init__(self) -> None:
        if self.kind not in QUESTIONS:
            raise ValueError(f"{self.kind!r} is no kind of question")
        _plain("access", self.access)
        if self.client is not None:
            _plain("client", self.client)


class Withdrawn(Message):
    """There was no answer to this question in time: it is refused."""

    number: int


class Renewed(Message):
    """A log-in has new tokens (RFC 6749 section 5.1).

    ``login``: the secret that the refresh token was.  For each member of the answer the name of its new secret, and its
    value.  ``expires_in``: seconds; 0: unknown.
    """

    login: str
    members: tuple[str, ...]
    names: tuple[str, ...]
    values: tuple[str, ...]
    expires_in: int

    def __post_init__(self) -> None:
        self.match(self.members, self.names)
        self.match(self.names, self.values)


class Synced(Message):
    """The answer to ``Sync``."""

    number: int


class Failed(Message):
    """The last one of a gateway that ends with status 1, and why."""

    text: str


class Ended(Message):
    """The last one: everything was sent.  ``counts``: one for each of ``kinds``; ``events``: lines in ``Lines``."""

    events: int
    kinds: tuple[str, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        self.match(self.kinds, self.counts)


QUESTIONS = ("name", "connection", "datagram", "request", "socket")
LARGEST_BATCH = 1 << 16  # bytes of ``Lines``, unless one line is longer
LAYOUT = Layout("gateway", *KINDS, SecretRow, LoginRow, Setup)
TO_GATEWAY = Table(
    "from the supervisor to the gateway",
    *(Begin, Follow, Answer, Sync, Stop),
    longest=64 << 20,
    Setup=LAYOUT,
    Policy=Layout("policy", *KINDS),
)
FROM_GATEWAY = Table(
    "from the gateway to the supervisor",
    *(Ready, Certificate, Lines, Totals, Asked, Withdrawn, Renewed, Synced, Failed, Ended),
    longest=1 << 20,
)


def _plain(name: str, data: Any) -> None:
    """Is it what a question holds: an object of texts, numbers and lists of texts?

    Raises:
        ValueError: it is not.
    """
    if type(data) is not dict or type(data.get("port", 0)) is not int or type(data.get("pid", 0)) is not int:
        raise ValueError(f"{name} has another form")
    if type(data.get("names", [])) is not list:
        raise ValueError(f"names of {name} are no list")
    for value in data.values():
        if type(value) not in (str, int) and not (type(value) is list and all(type(each) is str for each in value)):
            raise ValueError(f"{name} has another form")
