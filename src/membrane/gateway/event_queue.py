"""What the gateway sends to the supervisor: events, one line of JSON each, among its other messages.

Theory of operation
-------------------
Events come from traffic, so their number is chosen by the command.  Three bounds keep that harmless:

1. The first of a series of equal refusals is reported at once; its repetitions within ``WINDOW`` seconds are counted
   and reported as one event with ``count``.
2. ``BURST`` different refusals are reported at once, then ``RATE`` in each second: the record is read by people, and
   its disk is the host's.  The others are counted as lost, and reported once in a second.
3. The queue holds ``QUEUE`` events.  What does not fit is counted by kind, and ``EventsLost`` says how many and
   when as soon as there is room again.  Nothing is lost in silence.

When the session writes no events (``verbose`` is false), only refusals and our own defects are sent: two records for
each connection that are not read would cost more than relaying it.

``EventQueue`` has no socket: ``pending`` gives the bytes of messages (``messages``), ``sent`` says how many of them are
gone.
"""

from __future__ import annotations

from collections import deque

from .. import clock
from ..events import AccessDenied, DefectSeen, EventsLost, access_as_data
from ..lines import Lines
from ..policy.model import Deny
from . import messages as m

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from ..messages import Message
    from ..policy.model import Access, Ask, FileRule, HostRule, PathRule
    from .http.redact import Redactor

WINDOW = 10.0  # seconds
QUEUE = 8192  # events
BURST = 4096  # refusals
RATE = 50  # refusals a second
_SERIES = 1024  # refusals that are watched for repetition
DIGITS = 3  # of the fraction of a second
_BATCH = 256  # events encoded at a time


def denial(access: Access, verdict: Deny | Ask) -> AccessDenied:
    """The event of one refusal.  ``Ask`` is a refusal here: no one can be asked."""
    rule = str_of_rule(verdict.rule) if isinstance(verdict, Deny) and verdict.rule is not None else None
    return AccessDenied(access_as_data(access), str(verdict.reason), rule, verdict.hint or None)


def str_of_rule(rule: HostRule | PathRule | FileRule) -> str:
    """The rule as written and where: ``"*.tracker.example (user ~/.membrane/config.yaml:7)"``."""
    return f"{rule.text} ({rule.origin})"


class _Series:
    """Equal refusals: the first one and how many followed it."""

    __slots__ = ("due", "event", "repeated")

    def __init__(self, event: AccessDenied, due: float) -> None:
        self.event, self.due, self.repeated = event, due, 0


class EventQueue:
    """Bounded queue of events, encoded late."""

    def __init__(self, session: str, clock: Callable[[], float] = clock.seconds) -> None:
        self.session = session
        self.verbose = True
        self.mask: Redactor | None = None  # what the session holds is in no event
        self.denied = 0
        self.lost = 0
        self.made = 0  # lines of events
        self._clock = clock
        self._queue: deque[tuple[float, Event]] = deque()
        self._series: dict[Any, _Series] = {}
        self._losses: dict[str, list[Any]] = {}  # kind: [count, first, last]
        self._losses_due = False  # now, and not with the next repetitions
        self._room, self._refilled = float(BURST), 0.0  # for refusals, and when that was so
        self._bytes = bytearray()
        self._lines: Lines | None = None  # from the first event on

    def emit(self, event: Event) -> None:
        """Take one event."""
        if not self.verbose and not isinstance(event, (AccessDenied, DefectSeen)):
            return
        if self.mask is not None:
            event = self.mask.event(event)
        now = self._clock()
        if isinstance(event, AccessDenied):
            self.denied += 1
            # A and AAAA of one name are one refusal: the type is not part of the question.
            key = (event.reason, *(value for name, value in event.access.items() if name != "type"))
            series = self._series.get(key)
            if series is not None:
                series.repeated += 1
                return
            if not self._has_room(now):
                self._lose(now, event)
                return
            if len(self._series) >= _SERIES:
                self._end(next(iter(self._series)), now)
            self._series[key] = _Series(event, now + WINDOW)
        self._put(now, event)

    def send(self, message: Message, *, whole: bool = False) -> None:
        """Take a message that is no event; never dropped, and in order with the events.

        ``whole``: also what is held secret; such a message is for the supervisor alone.
        """
        self._encode(len(self._queue))
        if self.mask is not None and not whole:
            fields = self.mask.value({name: value for name, value in vars(message).items() if name != "kind"})
            message = message.replace(**fields)
        self._bytes += m.FROM_GATEWAY.frame(message)

    def end(self, stats: dict[str, int]) -> None:
        """The last message: nothing was held back, and so many lines of events came before it."""
        self._encode(len(self._queue))
        self.send(m.Ended(self.made, tuple(stats), tuple(stats.values())))

    def report_repetitions(self, everything: bool = False) -> None:
        """Report the counts of the series whose window is over, or of all, and what was lost."""
        now = self._clock()
        self._losses_due = bool(self._losses)
        for key, series in list(self._series.items()):
            if not everything and series.due > now:
                return  # in order of age
            self._end(key, now)

    def pending(self) -> bytearray:
        """The bytes to send next; empty when there is nothing.  Not to be changed."""
        if not self._bytes and (self._queue or self._losses_due):
            self._encode(_BATCH)
        return self._bytes

    def sent(self, count: int) -> None:
        """``count`` bytes of ``pending`` were taken by the session."""
        del self._bytes[:count]

    def counting(self) -> bool:
        """Are repetitions of refusals, or losses, being counted?"""
        return bool(self._series or self._losses)

    def urgent(self) -> bool:
        """Is there so much that it should not wait for company?"""
        return bool(self._bytes) or len(self._queue) >= _BATCH

    def waiting(self) -> bool:
        """Is anything left to send?"""
        return bool(self._bytes or self._queue or self._losses_due)

    def _end(self, key: Any, now: float) -> None:
        series = self._series.pop(key)
        if series.repeated:
            self._put(now, series.event.replace(count=series.repeated))

    def _put(self, now: float, event: Event) -> None:
        if len(self._queue) < QUEUE:
            self._queue.append((now, event))
            return
        self._lose(now, event)
        self._losses_due = True

    def _has_room(self, now: float) -> bool:
        """May one more refusal be reported?  A token bucket."""
        if now > self._refilled:
            self._room = min(float(BURST), self._room + (now - self._refilled) * RATE)
        self._refilled = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def lose(self, kind: str, count: int) -> None:
        """Something of which no event can be made."""
        self._count_loss(self._clock(), kind, count)

    def _lose(self, now: float, event: Event) -> None:
        self._count_loss(now, type(event).__name__, 1)

    def _count_loss(self, now: float, kind: str, count: int) -> None:
        self.lost += count
        loss = self._losses.setdefault(kind, [0, now, now])
        loss[0] += count
        loss[2] = now

    def _begin(self) -> Lines:
        self._lines = Lines(self.session, "network", DIGITS)
        return self._lines

    def _encode(self, most: int) -> None:
        line = (self._lines or self._begin()).line
        out: list[str] = []
        while self._queue and len(out) < most:
            when, event = self._queue.popleft()
            out.append(line(clock.nanoseconds(when), 0, "null", event))
        if self._losses_due and not self._queue:
            now = clock.nanoseconds(self._clock())
            for kind, (count, *ends) in self._losses.items():
                first, last = (clock.iso(clock.nanoseconds(end), DIGITS) for end in ends)
                out.append(line(now, 0, "null", EventsLost(kind, count, first, last, "network")))
            self._losses.clear()
            self._losses_due = False
        self.made += len(out)
        batch, size = list[bytes](), 0
        for text in out:
            data = text.encode() + b"\n"
            if batch and size + len(data) > m.LARGEST_BATCH:
                self._bytes += m.FROM_GATEWAY.frame(m.Lines(b"".join(batch)))
                batch, size = [], 0
            batch.append(data)
            size += len(data)
        if batch:
            self._bytes += m.FROM_GATEWAY.frame(m.Lines(b"".join(batch)))
