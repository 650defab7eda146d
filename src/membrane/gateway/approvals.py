"""What no rule decides waits for a person's answer (``--ask``, the library's ``on_ask``).

Theory of operation
-------------------
``decide`` comes before the policy's decision and turns a refusal that no rule made into ``Ask``.  The
enforcer holds the access - a connection unread, a datagram, a request's head, a message to a service, a resolver's
query - and all others go on.  Where look-ups are not asked about, names are answered, because a fake address shows
nothing to any server, and the question is asked when the name is connected to: a connection waits longer than a
resolver.

An answer becomes the rule that was shown, in a policy of its own (``once``: for what waited for it) or of the
session.  So floors, denies and inspection hold for it as for any rule, also towards the addresses that the name
resolves to.  What a deny rule or a floor (private and metadata addresses, malformed requests, what an adapter knows to
be harmful) refuses is never asked about.

Bounds: ``OPEN`` questions wait at once and ``HELD`` accesses for each; what is more is refused.  A question ends
with "no" after ``seconds``; "no" holds for the session, for the last ``REMEMBERED`` of them.

Messages
--------
With ``ask`` in ``messages.Setup`` the gateway sends ``Asked`` and perhaps ``Withdrawn``, and gets ``Answer`` once for
each number.

========== ===================== ==================================================================================
``kind``   ``access.kind``       fields of ``access`` (``policy.model``)
========== ===================== ==================================================================================
name       NameQuery             name, type ("A": the type is not part of the question)
connection Connect               host ("" for a literal), address ("" for a name), port, protocol "tcp"
datagram   Connect               the same, protocol "udp": the first datagram of a flow
request    HttpRequest           host, port, scheme, method, path (canonical, without the query)
socket     SocketAccess          path (of the rule), operation, names (fingerprint and comment of the key)
========== ===================== ==================================================================================

Any other answer than "once" and "session" is "no"; one to an unknown number is ignored.  Strings come from inside: they
are to be escaped before a terminal sees them.  "always" is the supervisor's business: it answers "session" and writes
the rule into a file.
"""

from __future__ import annotations

from ..events import AccessAnswered, access_as_data
from ..policy import reasons
from ..policy.decide import Decider
from ..policy.model import Allow, Ask, Connect, Deny, HttpRequest, NameQuery, Origin, SocketAccess
from . import messages as m

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, TypeAlias

    from ..events import Event
    from ..messages import Message
    from ..policy.model import Access, HostRule, Policy, Verdict
    from .dns import Names
    from .reactor import Reactor
    from .route import Router

    Kind: TypeAlias = Literal["name", "connection", "datagram", "request", "socket"]
    Client: TypeAlias = dict[str, Any]

OPEN = 32
HELD = 64
REMEMBERED = 4096
USUAL: tuple[Kind, ...] = ("connection", "datagram", "request", "socket")
ANSWERS: tuple[Literal["once", "session", "no", "late"], ...] = ("once", "session", "no", "late")
_OF_REQUESTS = frozenset((reasons.METHOD_NOT_ALLOWED, reasons.PATH_NOT_ALLOWED))
_ORIGIN = Origin("command line", "answer to --ask")


def kind_of(access: Access) -> Kind | None:
    """What sort of question this is; ``None``: such a thing is not asked about."""
    if isinstance(access, Connect):
        return "connection" if access.protocol == "tcp" else "datagram"
    if isinstance(access, HttpRequest):
        return "request"
    if isinstance(access, SocketAccess):
        return "socket"
    return "name" if isinstance(access, NameQuery) else None


class Approvals:
    """The questions of one session.

    Args:
        send: takes ``Asked`` and ``Withdrawn`` for the supervisor.
        changed: called when the session's policy has another rule; what was remembered of it is wrong from then on.
        seconds: until a question is answered with "no".
        emit: takes events.
        kinds: what is asked about; the rest is refused as without questions.
    """

    def __init__(
        self,
        policy: Policy,
        addresses: frozenset[tuple[int, int]],
        names: Names,
        reactor: Reactor,
        send: Callable[[Message], None],
        changed: Callable[[], None],
        seconds: float,
        emit: Callable[[Event], None],
        kinds: Iterable[str] = USUAL,
    ) -> None:
        self._addresses, self._names = addresses, names
        self._given: list[Access] = []  # what was allowed for the session
        self._policy = policy
        self._decider = Decider(policy, addresses)
        self._send, self._changed, self._emit = send, changed, emit
        self._kinds = frozenset(kinds)
        self._refused: dict[Access, None] = {}
        self._questions: dict[Access, _Question] = {}
        self._number = 0
        self._seconds = seconds
        self._late = reactor.wait(seconds, self._too_late)

    def follow(self, policy: Policy) -> None:
        """Other rules from now on; what was allowed for the session stays allowed unless they deny it."""
        for access in self._given:
            policy = with_rule(policy, access)
        self._policy, self._decider = policy, Decider(policy, self._addresses)
        self._refused.clear()
        self._changed()

    def moved(self, addresses: frozenset[tuple[int, int]]) -> None:
        """This machine has other addresses."""
        self._addresses = addresses
        self._decider = Decider(self._policy, addresses)

    def decide(self, access: Access) -> Verdict:
        """The policy's verdict; ``Ask`` where no rule decides and a person can be asked."""
        verdict = self._decider.decide(access)
        if not isinstance(verdict, Deny) or verdict.rule is not None or not verdict.reason.askable:
            return verdict
        kind = kind_of(access)
        if isinstance(access, SocketAccess) and access.operation == "offer" and "socket" in self._kinds:
            return Allow(None, "asked about when it is used")  # a key in a list
        if not verdict.hint:
            return verdict
        if isinstance(access, NameQuery):
            if kind not in self._kinds:
                return Allow(None, "asked about when it is connected to") if "connection" in self._kinds else verdict
            access = NameQuery(access.name)  # whatever its type is
        if kind not in self._kinds or access in self._refused:
            return verdict
        if isinstance(access, HttpRequest) and verdict.reason not in _OF_REQUESTS:
            return verdict  # there would be no connection for it
        if isinstance(access, Connect) and access.host and access.address:
            return verdict  # the address of a name that was asked about before
        return Ask(verdict.reason, verdict.hint)

    def ask(
        self,
        access: Access,
        hint: str,
        answered: Callable[[Router | None], None],
        client: Client | None = None,
    ) -> None:
        """Ask whether ``access`` may be; ``answered`` gets the router that allows it, or none."""
        question = self._questions.get(access)
        if question is None:
            if len(self._questions) >= OPEN:
                answered(None)
                return
            self._number += 1
            question = self._questions[access] = _Question(self._number, access, hint)
            self._late.begin(question)
            kind, lasting = kind_of(access), not isinstance(access, SocketAccess)
            assert kind is not None
            data = {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in access_as_data(access).items()
            }
            self._send(m.Asked(question.number, kind, data, hint, lasting, client, self._seconds))
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
        self._send(m.Withdrawn(question.number))
        self._end(question, "late")

    def _end(self, question: _Question, answer: str) -> None:
        access = question.access
        del self._questions[access]
        known: Literal["once", "session", "no", "late"] = "no"
        for each in ANSWERS:
            known = each if each == answer else known
        self._emit(AccessAnswered(access_as_data(access), known, question.rule))
        router = None
        if known in ("once", "session"):
            from .route import Router

            policy = with_rule(self._policy, access)
            decider = Decider(policy, self._addresses)
            if known == "session":
                self._given.append(access)
                self._policy, self._decider = policy, decider
                self._changed()
            router = Router(self._names, decider.decide)
        else:
            if len(self._refused) >= REMEMBERED:
                del self._refused[next(iter(self._refused))]
            self._refused[access] = None
            self._changed()
        for answered in question.waiting:
            answered(router)


def with_rule(policy: Policy, access: Access) -> Policy:
    """``policy`` and the rule that a yes to ``access`` means: what its hint says, and nothing else."""
    if isinstance(access, SocketAccess):
        wanted = access.names[0] if access.operation == "sign" else access.operation
        return policy.replace(
            unix_sockets=tuple(
                rule.replace(allow=(*rule.allow, wanted)) if rule.path == access.path else rule
                for rule in policy.unix_sockets
            )
        )
    return policy.replace(allow=(*policy.allow, _host_rule(access)))


def _host_rule(access: Access) -> HostRule:
    from ..policy.grammar import host_rule

    if isinstance(access, HttpRequest):
        usual = {"http": 80, "https": 443}[access.scheme]
        host = f"[{access.host}]" if ":" in access.host else access.host
        where = host if access.port == usual else f"{host}:{access.port}"
        return host_rule(f"{access.scheme}://{where}{access.path}", _ORIGIN, http=(((access.method,), ()),))
    if isinstance(access, NameQuery):
        return host_rule(f"{access.name}:443", _ORIGIN)
    assert isinstance(access, Connect)
    host = access.host or access.address
    text = f"[{host}]:{access.port}" if ":" in host else f"{host}:{access.port}"
    return host_rule(f"{text}/udp" if access.protocol == "udp" else text, _ORIGIN)


class _Question:
    __slots__ = ("access", "number", "rule", "waiting")

    def __init__(self, number: int, access: Access, rule: str) -> None:
        self.number, self.access, self.rule = number, access, rule
        self.waiting: list[Callable[[Router | None], None]] = []
