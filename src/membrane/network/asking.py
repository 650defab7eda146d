"""``--ask``: connections that no rule decides wait for an answer of somebody outside.

Theory of operation
-------------------
``decide`` stands in front of the policy's decision and turns a refusal that no rule made into ``Ask``.  Names are then
answered, because a fake address tells nobody outside anything; the question is asked when the name is connected to, as
a TCP connection waits longer than a resolver.  The connection is held unread meanwhile, and all others go on.

An answer becomes a rule, for the exact host, port and protocol that was shown, in a policy of its own (``once``: for
the connections that waited for it) or of the session.  So floors, denies and inspection hold for it as for any rule,
also towards the addresses that the name resolves to.  A refusal by a deny rule or by a floor is never asked about.

Bounds: ``OPEN`` questions wait at once and ``HELD`` connections for each; what is more is refused.  A question ends
with "no" after ``seconds``; "no" holds for the session.
"""

from __future__ import annotations

from ..events import AccessAnswered, access_as_data
from ..policy.decide import Decider
from ..policy.model import Allow, Ask, Connect, Deny, NameQuery, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from ..events import Event
    from ..policy.model import Access, Policy, Verdict
    from .dns import Names
    from .reactor import Reactor
    from .route import Router

OPEN = 32
HELD = 64
ANSWERS: tuple[Literal["once", "session", "no", "late"], ...] = ("once", "session", "no", "late")
_UNDECIDED = frozenset(("name not allowed", "address not allowed", "port not allowed"))
_ORIGIN = Origin("command line", "answer to --ask")


class Asking:
    """The questions of one session.

    Args:
        tell: takes ``{"ask": {...}}`` and ``{"withdrawn": NUMBER}`` for the session.
        changed: called when the session's policy has another rule; what was remembered of it is wrong from then on.
        seconds: until a question is answered with "no".
        emit: takes events.
    """

    def __init__(
        self,
        policy: Policy,
        addresses: frozenset[tuple[int, int]],
        names: Names,
        reactor: Reactor,
        tell: Callable[[dict[str, Any]], None],
        changed: Callable[[], None],
        seconds: float,
        emit: Callable[[Event], None],
    ) -> None:
        self._policy, self._addresses, self._names = policy, addresses, names
        self._decider = Decider(policy, addresses)
        self._tell, self._changed, self._emit = tell, changed, emit
        self._refused: set[Connect] = set()
        self._questions: dict[Connect, _Question] = {}
        self._number = 0
        self._late = reactor.wait(seconds, self._too_late)

    def moved(self, addresses: frozenset[tuple[int, int]]) -> None:
        """This machine has other addresses."""
        self._addresses = addresses
        self._decider = Decider(self._policy, addresses)

    def decide(self, access: Access) -> Verdict:
        """The policy's verdict; ``Ask`` where no rule decides and somebody can be asked."""
        verdict = self._decider.decide(access)
        if not isinstance(verdict, Deny) or verdict.rule is not None or verdict.reason not in _UNDECIDED:
            return verdict
        if isinstance(access, NameQuery):
            return Allow(None, "asked about when it is connected to") if verdict.hint else verdict
        if not isinstance(access, Connect) or access.protocol != "tcp" or not verdict.hint:
            return verdict
        if (access.host and access.address) or access in self._refused:
            return verdict  # the address of a name that was asked about before
        return Ask(verdict.reason, verdict.hint)

    def ask(self, access: Connect, hint: str, answered: Callable[[Router | None], None]) -> None:
        """Ask whether ``access`` may be; ``answered`` gets the router that allows it, or none."""
        question = self._questions.get(access)
        if question is None:
            if len(self._questions) >= OPEN:
                answered(None)
                return
            self._number += 1
            question = self._questions[access] = _Question(self._number, access, hint)
            self._late.begin(question)
            self._tell({"ask": {"number": question.number, "access": access_as_data(access), "rule": hint}})
        if len(question.waiting) >= HELD:
            answered(None)
            return
        question.waiting.append(answered)

    def answer(self, number: int, answer: str) -> None:
        """Take the session's answer; one to a question that is over changes nothing."""
        question = next((each for each in self._questions.values() if each.number == number), None)
        if question is None:
            return
        self._late.end(question)
        self._end(question, answer)

    def _too_late(self, question: _Question) -> None:
        self._tell({"withdrawn": question.number})
        self._end(question, "late")

    def _end(self, question: _Question, answer: str) -> None:
        del self._questions[question.access]
        known: Literal["once", "session", "no", "late"] = "no"
        for each in ANSWERS:
            known = each if each == answer else known
        self._emit(AccessAnswered(access_as_data(question.access), known, question.rule))
        router = None
        if answer in ("once", "session"):
            from .route import Router

            policy = self._with_rule(question.access)
            decider = Decider(policy, self._addresses)
            if answer == "session":
                self._policy, self._decider = policy, decider
                self._changed()
            router = Router(self._names, decider.decide)
        else:
            self._refused.add(question.access)
            self._changed()
        for answered in question.waiting:
            answered(router)

    def _with_rule(self, access: Connect) -> Policy:
        from ..policy.grammar import host_rule

        host = access.host or access.address
        text = f"[{host}]:{access.port}" if ":" in host else f"{host}:{access.port}"
        return self._policy.replace(allow=(*self._policy.allow, host_rule(text, _ORIGIN)))


class _Question:
    __slots__ = ("access", "number", "rule", "waiting")

    def __init__(self, number: int, access: Connect, rule: str) -> None:
        self.number, self.access, self.rule = number, access, rule
        self.waiting: list[Callable[[Router | None], None]] = []
