"""One request and its answer, and what a protocol core has its driver do about them.

Theory of operation
-------------------
The protocol cores are ``http1.Http1`` and ``http2.Http2``: bytes in, commands out, no sockets and no clock of their
own.  ``Core`` is what they have in common towards the driver (``intercept``), which carries the commands out in order.
A core collects what there is to do while it reads, and hands it out as one list: first what goes up, then what goes
down, then what is to be recorded, then the ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...policy.model import Allow
from ...value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeAlias

    from ...policy.model import Deny, HostRule, HttpRequest, Verdict
    from .credentials import Vault
    from .requests import Answers, Gate, Undecided

    Spend: TypeAlias = Callable[[tuple[HostRule, ...], int], Deny | None]
    Waiting: TypeAlias = Literal["request", "head", "content", "server", "nothing"]


class SendUpstream(Value):
    """Write to the server."""

    data: bytes

    def __init__(self, data: bytes) -> None:  # the two commands of which there are many: half the cost
        self.__dict__["data"] = data


class SendClient(Value):
    """Write to the client."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        self.__dict__["data"] = data


class AskFirst(Value):
    """Ask a person whether the request may go on, then call ``answered``."""

    question: Undecided


class OpenUpstream(Value):
    """Dial the server that the connection is bound to, then call ``upstream_opened`` or ``upstream_failed``."""


class EndUpstream(Value):
    """Nothing more will be written to the server; go on reading from it."""


class EndClient(Value):
    """Nothing more will be written to the client; go on reading from it."""


class CloseUpstream(Value):
    """Close the server's side after what was written; at once and with a reset if ``reset``."""

    reset: bool = False


class CloseClient(Value):
    """Close the client's side after what was written; at once and with a reset if ``reset``.

    A client may still be sending: read and drop for a moment before closing, else the kernel resets and the
    answer is lost.
    """

    reset: bool = False


class Seen(Value):
    """One request is over.  Exactly one for each request, refused ones included.

    ``status`` is that of the answer which the client got, 0 without one.  ``bytes_up`` and ``bytes_down`` are
    bytes of content.  ``number`` counts the requests of an HTTP/1.1 connection, and is the stream in HTTP/2.
    """

    number: int
    protocol: Literal["http/1.1", "h2", "websocket"]
    request: HttpRequest
    query: str  # with its "?"; may hold credentials
    verdict: Verdict
    status: int
    bytes_up: int
    bytes_down: int
    seconds: float
    error: str = ""
    asked: Sequence[tuple[bytes, bytes]] = ()  # header fields, where they are recorded; may hold credentials
    answered: Sequence[tuple[bytes, bytes]] = ()


if TYPE_CHECKING:
    Command: TypeAlias = (
        SendUpstream
        | SendClient
        | AskFirst
        | OpenUpstream
        | EndUpstream
        | EndClient
        | CloseUpstream
        | CloseClient
        | Seen
    )


class Exchange:
    """One request and its answer, while it lasts."""

    __slots__ = (
        "answered",
        "asked",
        "budgets",
        "down",
        "number",
        "query",
        "request",
        "started",
        "status",
        "up",
        "verdict",
    )

    def __init__(self, number: int, request: HttpRequest, verdict: Verdict, query: str, started: float) -> None:
        self.number, self.request, self.verdict, self.query, self.started = number, request, verdict, query, started
        self.status = self.up = self.down = 0
        self.budgets = verdict.budgets if isinstance(verdict, Allow) else ()  # that its bytes count against
        self.asked: Sequence[tuple[bytes, bytes]] = ()
        self.answered: Sequence[tuple[bytes, bytes]] = ()


class Core(ABC):
    """What both protocol cores are towards their driver.

    The driver calls ``client_data``, ``client_eof``, ``upstream_data``, ``upstream_eof``, ``upstream_opened``,
    ``upstream_failed`` and ``answered``, each of which returns the commands to carry out in order.  After
    ``CloseClient`` every call returns nothing.

    Args:
        gate: judges requests.
        clock: seconds, monotonic.
        vault: the secrets of the session as far as they concern this connection.
        spend: asked before bytes of a request that these rules admit go to the server; a refusal ends it.
        recorded: ``Seen`` carries the header fields.
    """

    protocol: Literal["http/1.1", "h2"]

    def __init__(
        self,
        gate: Gate,
        clock: Callable[[], float],
        *,
        vault: Vault | None = None,
        spend: Spend | None = None,
        recorded: bool = False,
    ) -> None:
        self.gate = gate
        self._recorded = recorded
        self.closed = False
        self._clock = clock
        self._vault = vault
        self._spend = spend
        self._up: list[bytes] = []
        self._down: list[bytes] = []
        self._seen: list[Seen] = []
        self._open = self._end_up = self._end_down = False
        self._question: Undecided | None = None  # about the request that waits for its answer
        self._answers: Answers = {}  # about that request
        self._asking = False  # the question is still to be handed out
        self._close_up: CloseUpstream | None = None
        self._close_down: CloseClient | None = None

    def _beyond(self, exchange: Exchange, size: int) -> Deny | None:
        """Take ``size`` bytes that are about to go to the server; the refusal, and nothing taken, at a limit."""
        return None if self._spend is None else self._spend(exchange.budgets, size)

    @property
    @abstractmethod
    def wants_client(self) -> bool:
        """May the driver read from the client?  (It must also have room towards the server.)"""

    @property
    @abstractmethod
    def held(self) -> int:
        """Bytes that came and cannot go on yet."""

    def upstream_opened(self) -> list[Command]:
        """``OpenUpstream`` is done."""
        return self._take()

    def answered(self, decide: Callable[[HttpRequest], Verdict] | None) -> list[Command]:
        """``AskFirst`` is done: ``decide`` allows the request, ``None`` refuses it."""
        question, self._question = self._question, None
        if self.closed or question is None:
            return []
        self._answers[question.request] = decide or (lambda _request: question.refusal)
        self._go_on()
        return self._take()

    @abstractmethod
    def _go_on(self) -> None:
        """Judge the request that waited again, with ``_answers``."""

    def _wait_for(self, question: Undecided) -> None:
        self._question = question
        self._asking = True

    def _take(self) -> list[Command]:
        """The commands that were collected, in an order that a driver can follow one by one."""
        out: list[Command] = []
        if self._open:
            self._open = False
            out.append(OpenUpstream())
        if self._up:
            out.append(SendUpstream(b"".join(self._up)))
            self._up.clear()
        if self._down:
            out.append(SendClient(b"".join(self._down)))
            self._down.clear()
        if self._seen:
            out += self._seen
            self._seen.clear()
        if self._end_up:
            self._end_up = False
            out.append(EndUpstream())
        if self._end_down:
            self._end_down = False
            out.append(EndClient())
        if self._close_up is not None:
            out.append(self._close_up)
            self._close_up = None
        if self._close_down is not None:
            out.append(self._close_down)
            self._close_down = None
        if self._asking:
            self._asking = False
            if self._question is not None and not self.closed:
                out.append(AskFirst(self._question))
        return out

    def _close(self, *, reset: bool = False, reset_upstream: bool = False) -> None:
        """End both sides; nothing is done after this."""
        if not self.closed:
            self.closed = True
            self._close_up = CloseUpstream(reset_upstream)
            self._close_down = CloseClient(reset)

    def _record(self, exchange: Exchange, *, protocol: Literal["websocket", ""] = "", error: str = "") -> None:
        self._seen.append(
            Seen(
                exchange.number,
                protocol or self.protocol,
                exchange.request,
                exchange.query,
                exchange.verdict,
                exchange.status,
                exchange.up,
                exchange.down,
                self._clock() - exchange.started,
                error,
                exchange.asked,
                exchange.answered,
            )
        )
