"""Questions and answers: whoever answers late, twice, wrongly or not at all opens nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from membrane.errors import MembraneError, PolicyError
from membrane.gateway.approvals import HELD, OPEN, Approvals
from membrane.gateway.dns import Names
from membrane.gateway.messages import FROM_GATEWAY, Asked, Withdrawn
from membrane.gateway.reactor import Reactor
from membrane.gateway.route import Router
from membrane.messages import Frames, Malformed
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, Ask, Connect, Deny, HttpRequest, NameQuery, Origin, Policy, SocketAccess
from membrane.run.amend import add, with_entry
from membrane.run.questions import Question, Questions
from membrane.run.settings import read_alone

HERE = Origin("user", "config.yaml", 1)


REACTORS: list[Reactor] = []


@pytest.fixture(autouse=True)
def _closes_its_reactors() -> Iterator[None]:
    yield
    while REACTORS:
        REACTORS.pop().close()


class Inside:
    """The gateway's side."""

    def __init__(self, *allow: str, deny: tuple[str, ...] = ()) -> None:
        self.policy = Policy(
            allow=tuple(host_rule(text, HERE) for text in allow),
            deny=tuple(host_rule(text, HERE, deny=True) for text in deny),
        )
        self.sent: list[Any] = []
        self.events: list[Any] = []
        self.changes = 0
        self.reactor = Reactor()
        REACTORS.append(self.reactor)
        self.names = Names(100)
        self.approvals = Approvals(
            self.policy, frozenset(), self.names, self.reactor, self.sent.append, self._change, 1.0, self.events.append
        )

    def _change(self) -> None:
        self.changes += 1

    def ask(self, access: Connect) -> list[Router | None]:
        got: list[Router | None] = []
        self.approvals.ask(access, "allow: [x]", got.append)
        return got

    def pass_time(self) -> None:
        self.reactor.now += 2.0
        self.approvals._late.expire(self.reactor.now)


WANTED = Connect("a.example", "", 443)


def test_what_no_rule_decides_is_asked_and_nothing_else() -> None:
    inside = Inside("b.example:443", deny=("c.example", "*.d.example"))
    decide = inside.approvals.decide
    assert isinstance(decide(WANTED), Ask)
    assert isinstance(decide(Connect("b.example", "", 8443)), Ask)
    assert isinstance(decide(Connect("", "93.184.216.34", 443)), Ask)
    assert isinstance(decide(Connect("a.example", "", 443, "udp")), Ask)
    assert isinstance(decide(Connect("b.example", "", 443)), Allow)
    for access in (
        Connect("c.example", "", 443),
        Connect("x.d.example", "", 443),
        Connect("", "169.254.169.254", 80),
        Connect("metadata.google.internal", "", 80),
        Connect("a.example", "93.184.216.34", 443, "udp"),
        Connect("a.example", "93.184.216.34", 443),  # resolved: the name was asked about before
        Connect("b.example", "10.0.0.1", 443),
        HttpRequest("a.example", 443, "https", "GET", "/"),
        SocketAccess("/run/x"),
    ):
        assert isinstance(decide(access), Deny), access
    assert isinstance(decide(NameQuery("a.example")), Allow)  # a fake address; the connection is asked about
    assert isinstance(decide(NameQuery("c.example")), Deny)
    assert isinstance(decide(NameQuery("a..example")), Deny)


def test_once_is_a_policy_of_its_own_and_floors_hold_in_it() -> None:
    inside = Inside()
    got = inside.ask(WANTED)
    assert got == []
    inside.approvals.answer(1, "once")
    (router,) = got
    assert router is not None
    assert isinstance(router.decide(WANTED), Allow)
    assert isinstance(router.decide(Connect("a.example", "", 80)), Deny)
    refused = router.decide(Connect("a.example", "10.0.0.1", 443))
    assert isinstance(refused, Deny)
    assert refused.reason == "private address"
    assert isinstance(inside.approvals.decide(WANTED), Ask)  # the next one is asked again
    assert inside.changes == 0


def test_session_and_no_are_remembered_for_exactly_what_was_shown() -> None:
    inside = Inside()
    inside.ask(WANTED)
    inside.approvals.answer(1, "session")
    assert isinstance(inside.approvals.decide(WANTED), Allow)
    other = Connect("a.example", "", 80)
    assert isinstance(inside.approvals.decide(other), Ask)
    got = inside.ask(other)
    inside.approvals.answer(2, "no")
    assert got == [None]
    assert isinstance(inside.approvals.decide(other), Deny)
    assert [event.answer for event in inside.events] == ["session", "no"]


@pytest.mark.parametrize("answer", ["yes", "", "Once", "always", "no"])
def test_any_other_word_is_no(answer: str) -> None:
    inside = Inside()
    got = inside.ask(WANTED)
    inside.approvals.answer(1, answer)
    assert got == [None]


def test_a_late_answer_changes_nothing() -> None:
    inside = Inside()
    got = inside.ask(WANTED)
    inside.pass_time()
    assert got == [None]
    assert inside.sent[-1] == Withdrawn(1)
    inside.approvals.answer(1, "session")
    assert isinstance(inside.approvals.decide(WANTED), Deny)
    assert [event.answer for event in inside.events] == ["late"]


def test_questions_and_those_who_wait_are_bounded() -> None:
    inside = Inside()
    got = [inside.ask(WANTED) for _ in range(HELD + 1)]
    assert len(inside.sent) == 1
    assert (got[-1], got[0]) == ([None], [])
    for port in range(1, OPEN):
        assert inside.ask(Connect("a.example", "", port)) == []
    assert inside.ask(Connect("a.example", "", 9999)) == [None]
    inside.approvals.answer(1, "once")
    assert all(len(each) == 1 for each in got)


# ---------------------------------------------------------------- the supervisor's side


def asked(number: int) -> Asked:
    return Asked(number, "connection", {"kind": "Connect", "host": "a"}, "r", True, None, 1.0)


def test_a_question_whose_names_are_no_list_is_no_message() -> None:
    """It would end the supervisor where it is shown."""
    frame = FROM_GATEWAY.frame(asked(1).replace(access={"names": ["a"]}))
    assert [*Frames(FROM_GATEWAY).feed(frame)]  # the control
    short = frame.replace(b'["a"]', b"12345")
    assert short != frame
    with pytest.raises(Malformed, match="names of access are no list"):
        [*Frames(FROM_GATEWAY).feed(short)]


class Outside:
    def __init__(self) -> None:
        self.shown: list[tuple[Question, Any]] = []
        self.sent: list[tuple[int, str]] = []
        self.ended = 0
        self.questions = Questions(self._begin, self._end, lambda number, answer: self.sent.append((number, answer)))

    def _begin(self, question: Question, answer: Any) -> None:
        self.shown.append((question, answer))

    def _end(self, _question: Question) -> None:
        self.ended += 1


def test_one_question_at_a_time_each_answered_once() -> None:
    outside = Outside()
    outside.questions.take(asked(1))
    outside.questions.take(asked(2))
    assert len(outside.shown) == 1
    outside.shown[0][1]("once")
    outside.shown[0][1]("session")  # a second answer
    outside.shown[1][1]("everything")
    assert outside.sent == [(1, "once"), (2, "no")]


def test_a_withdrawn_question_leaves_and_its_answer_is_not_another_s() -> None:
    outside = Outside()
    for number in (1, 2, 3):
        outside.questions.take(asked(number))
    outside.questions.withdraw(2)
    outside.questions.withdraw(1)
    assert outside.ended == 1
    outside.shown[0][1]("session")
    assert outside.sent == []
    outside.shown[1][1]("once")
    assert outside.sent == [(3, "once")]


def test_who_raises_says_no() -> None:
    sent: list[tuple[int, str]] = []

    def broken(_question: Question, _answer: Any) -> None:
        raise RuntimeError

    questions = Questions(broken, lambda _question: None, lambda number, answer: sent.append((number, answer)))
    questions.take(asked(1))
    questions.take(asked(2))
    assert sent == [(1, "no"), (2, "no")]


# ---------------------------------------------------------------- "always"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'allow:\n  - "h:1"\n'),
        ("home: shared", 'home: shared\nallow:\n  - "h:1"\n'),
        ("allow: [a.example]\n", 'allow: [a.example, "h:1"]\n'),
        ("allow: []  # none\n", 'allow: ["h:1"]  # none\n'),
        ("allow:\n- a.example\n- b.example\n", 'allow:\n- "h:1"\n- a.example\n- b.example\n'),
        (
            "allow:  # mine\n    # first\n    - a.example\nhome: shared\n",
            'allow:  # mine\n    - "h:1"\n    # first\n    - a.example\nhome: shared\n',
        ),
    ],
)
def test_an_entry_is_added_by_text(before: str, after: str) -> None:
    assert with_entry(before, '"h:1"') == after


def test_a_file_that_is_not_understood_is_left_alone(tmp_path: Any) -> None:
    for number, text in enumerate(
        ("allow: &a [x.example]\n", "allow: [x.example, 'a]b.example']\n", "{allow: [a.example]}\n")
    ):
        path = tmp_path / str(number)
        path.write_text(text)
        with pytest.raises(MembraneError):
            add(str(path), 'allow: ["h.example:1"]', lambda text: read_alone("user", "f", text))
        assert path.read_text() == text
        assert sorted(each.name for each in tmp_path.iterdir()) == [str(n) for n in range(number + 1)]


def test_the_file_keeps_its_mode_and_gets_the_rule(tmp_path: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("presets: []\nallow:\n  - a.example\n")
    path.chmod(0o640)
    add(str(path), 'allow: ["[2001:db8::1]:443"]', lambda text: read_alone("user", str(path), text))
    policy = read_alone("user", str(path), path.read_text())
    assert [rule.text for rule in policy.allow] == ["[2001:db8::1]:443", "a.example"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert isinstance(Decider(policy).decide(Connect("", "2001:db8::1", 443)), Allow | Deny)
    with pytest.raises(PolicyError):
        add(str(path), 'allow: ["not a host:443"]', lambda text: read_alone("user", str(path), text))
