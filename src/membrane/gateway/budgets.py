"""What a session may still send: bytes in all, and through each rule that has a budget.

Theory of operation
-------------------
A verdict names the rules with a budget that admit a connection or a request (``Allow.budgets``).  Bytes count against
the session and against each of them; requests against each of them.  Nothing is taken unless every one has enough, so
what is refused costs nothing.

A rate is a *sliding window*: the times of the last ``rate`` requests are kept, and one more is refused while the oldest
of them is younger than the period.  So there are never more than ``rate`` in any period, whereas a bucket that refills
would let twice as many through.

``Ledger`` has no clock of its own and does no I/O.
"""

from __future__ import annotations

from collections import deque

from ..policy import reasons
from ..policy.model import Deny

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..policy.model import HostRule, RuleBudget

_SESSION = Deny(None, reasons.LIMIT_REACHED, "limits: upload")


class Budget:
    """Bytes that may still be sent to the network, TCP and UDP together; 0: no limit."""

    __slots__ = ("left", "limited")

    def __init__(self, limit: int = 0) -> None:
        self.limited = limit > 0
        self.left = limit

    def spend(self, count: int) -> bool:
        """Take ``count`` bytes; false, and nothing taken, when there are not as many."""
        if not self.limited:
            return True
        if count > self.left:
            return False
        self.left -= count
        return True


class Tally:
    """What is left of one rule's budget."""

    __slots__ = ("requests", "rule", "times", "upload")

    def __init__(self, rule: HostRule, budget: RuleBudget) -> None:
        self.rule = rule
        self.upload = Budget(budget.upload)
        self.requests = budget.requests
        self.times: deque[float] = deque(maxlen=budget.rate or None)

    def refusal(self, what: str) -> Deny:
        """The refusal of what goes beyond ``what``, a part of the budget."""
        return Deny(self.rule, reasons.LIMIT_REACHED, f"budget of {self.rule.text}: {what}")


class Meter:
    """The budgets that the bytes of one connection count against."""

    __slots__ = ("_budgets", "_session", "_tallies")

    def __init__(self, session: Budget, tallies: Sequence[Tally]) -> None:
        self._session = session
        self._tallies = [tally for tally in tallies if tally.upload.limited]
        self._budgets = [each for each in (session, *(tally.upload for tally in self._tallies)) if each.limited]

    @property
    def limited(self) -> bool:
        return bool(self._budgets)

    @property
    def left(self) -> int:
        """Bytes that may still be sent; only of use where ``limited``."""
        return min((each.left for each in self._budgets), default=0)

    def take(self, count: int) -> None:
        """Note bytes that were sent; there were as many."""
        for each in self._budgets:
            each.left -= count

    def over(self, count: int) -> Deny | None:
        """The refusal of ``count`` more bytes, if they are too many."""
        if self._session.limited and count > self._session.left:
            return _SESSION
        for tally in self._tallies:
            if count > tally.upload.left:
                assert tally.rule.budget is not None
                return tally.refusal(f"{tally.rule.budget.upload} bytes upwards in a session")
        return None

    def spend(self, count: int) -> Deny | None:
        """Take ``count`` bytes; the refusal, and nothing taken, when there are not as many."""
        refusal = self.over(count)
        if refusal is None:
            self.take(count)
        return refusal


class Ledger:
    """All budgets of one session.

    Args:
        session: bytes of the session.
        clock: seconds, monotonic.
    """

    def __init__(self, session: Budget, clock: Callable[[], float]) -> None:
        self.session = session
        self._clock = clock
        self._tallies: dict[HostRule, Tally] = {}
        self._meters: dict[tuple[HostRule, ...], Meter] = {(): Meter(session, ())}

    def _tally(self, rule: HostRule) -> Tally:
        tally = self._tallies.get(rule)
        if tally is None:
            assert rule.budget is not None
            tally = self._tallies[rule] = Tally(rule, rule.budget)
        return tally

    def meter(self, rules: tuple[HostRule, ...] = ()) -> Meter:
        """What the bytes of a connection, or of a request, that ``rules`` admit count against."""
        meter = self._meters.get(rules)
        if meter is None:  # as many as there are sets of rules that admit something together
            meter = self._meters[rules] = Meter(self.session, [self._tally(rule) for rule in rules])
        return meter

    def admit(self, rules: tuple[HostRule, ...], size: int) -> tuple[Deny, float] | None:
        """Count one request against ``rules``.

        Args:
            bytes: that it will send at least; none of them is taken here.

        Returns:
            Nothing when it may go on; else the refusal, and the seconds after which it may be tried again, 0 for
            never.
        """
        refusal = self.meter(rules).over(size)
        if refusal is not None:
            return refusal, 0.0
        now = self._clock()
        tallies = [self._tally(rule) for rule in rules]
        for tally in tallies:
            budget = tally.rule.budget
            assert budget is not None
            if budget.requests and not tally.requests:
                return tally.refusal(f"{budget.requests} requests in a session"), 0.0
            if budget.rate and len(tally.times) == budget.rate and now - tally.times[0] < budget.period:
                what = f"{budget.rate} requests in {budget.period} s"
                return tally.refusal(what), tally.times[0] + budget.period - now
        for tally in tallies:
            budget = tally.rule.budget
            assert budget is not None
            tally.requests -= budget.requests > 0
            if budget.rate:
                tally.times.append(now)
        return None
