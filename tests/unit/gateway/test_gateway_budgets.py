"""What is left: bytes, requests and rates, of the session and of each rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.requests import Bound, Gate, grpc_answer
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, Connect, Deny, HttpRequest, Origin, Policy, RuleBudget

WHERE = Origin("library", "test")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rule(text: str = "a.test:443", **budget: int) -> Any:
    return host_rule(text, WHERE, budget=RuleBudget(**budget))


def ledger(upload: int = 0, clock: Clock | None = None) -> Ledger:
    return Ledger(Budget(upload), clock or Clock())


def test_octets_count_against_the_session_and_every_rule() -> None:
    small, large, book = rule(upload=100), rule("b.test:443", upload=1000), ledger(150)
    both = book.meter((small, large))
    assert both.limited and both.left == 100
    assert both.spend(60) is None
    refusal = both.spend(41)
    assert refusal is not None and refusal.rule is small and refusal.reason == "limit reached"
    assert "100 bytes" in refusal.hint
    assert both.left == 40, "what is refused costs nothing"
    assert both.spend(40) is None
    other = book.meter((large,))
    assert other.left == 50, "of the session's 150, not of its own 900"
    refusal = other.spend(51)
    assert refusal is not None and (refusal.rule, refusal.hint) == (None, "limits: upload")
    assert other.spend(50) is None
    assert book.meter().spend(1) is not None


def test_without_budgets_nothing_is_limited() -> None:
    meter = ledger().meter()
    assert not meter.limited
    assert meter.spend(1 << 40) is None
    only_requests = ledger().meter((rule(requests=1),))
    assert not only_requests.limited


def test_requests_are_counted_by_rule() -> None:
    book, one, other = ledger(), rule(requests=2), rule("b.test:443", requests=5)
    assert [book.admit((one,), 0) is None for _ in range(3)] == [True, True, False]
    refused = book.admit((other, one), 0)
    assert refused is not None and refused[0].rule is one and refused[1] == 0
    assert [book.admit((other,), 0) is None for _ in range(6)] == [True] * 5 + [False], "the refused one cost nothing"


def test_a_rate_holds_in_every_period() -> None:
    clock = Clock()
    book, one = ledger(clock=clock), rule(rate=3, period=60)
    taken = []
    for second in range(200):
        clock.now = 1000.0 + second
        refused = book.admit((one,), 0)
        if refused is None:
            taken.append(clock.now)
        else:
            assert refused[1] == pytest.approx(taken[-3] + 60 - clock.now)
    assert len(taken) == 12
    assert all(later - earlier >= 60 for earlier, later in zip(taken, taken[3:], strict=False))


def test_a_request_that_announces_too_much_is_refused_before_it_begins() -> None:
    book, one = ledger(), rule(upload=100)
    refused = book.admit((one,), 101)
    assert refused is not None and "100 bytes" in refused[0].hint
    assert book.admit((one,), 100) is None
    assert book.meter((one,)).left == 100, "bytes are taken when they go"


# ---------------------------------------------------------------- which rules

POLICY = Policy(
    allow=(
        host_rule("https://a.test/v1", WHERE, budget=RuleBudget(requests=2)),
        host_rule("https://a.test", WHERE),
        host_rule("raw.test", WHERE, budget=RuleBudget(upload=10)),
        host_rule("10.0.0.0/8", WHERE, budget=RuleBudget(upload=10)),
    )
)


def request(path: str, method: str = "GET") -> HttpRequest:
    return HttpRequest("a.test", 443, "https", method, path)


def test_a_budget_holds_whatever_else_admits_the_request() -> None:
    decider = Decider(POLICY)
    verdict = decider.decide(request("/v1/x"))
    assert isinstance(verdict, Allow) and verdict.budgets == (POLICY.allow[0],)
    verdict = decider.decide(request("/v2"))
    assert isinstance(verdict, Allow) and verdict.budgets == ()


def test_octets_need_the_connection_only_and_requests_need_http() -> None:
    decider = Decider(POLICY)
    for verdict in (decider.decide(Connect("raw.test", "", 22)), decider.decide(Connect("", "10.0.0.1", 22))):
        assert isinstance(verdict, Allow) and not verdict.inspect and len(verdict.budgets) == 1
    counted = Decider(Policy(allow=(rule(requests=1),)))
    verdict = counted.decide(Connect("a.test", "", 443))
    assert isinstance(verdict, Allow) and verdict.inspect


def test_a_network_with_a_budget_opens_no_address_below_a_name() -> None:
    verdict = Decider(POLICY).decide(Connect("raw.test", "10.0.0.1", 80))
    assert isinstance(verdict, Deny) and verdict.reason == "private address"
    free = POLICY.replace(allow=(*POLICY.allow[:3], host_rule("10.0.0.0/8", WHERE)))
    assert isinstance(Decider(free).decide(Connect("raw.test", "10.0.0.1", 80)), Allow)


# ---------------------------------------------------------------- at the front end


def core(policy: Policy, book: Ledger) -> Http1:
    gate = Gate(Bound("a.test", 443, "https"), Decider(policy).decide, book.admit)

    def spend(rules: Any, octets: int) -> Deny | None:
        return book.meter(rules).spend(octets)

    return Http1(gate, lambda: 0.0, connected=True, spend=spend)


GET = b"GET /v1/x HTTP/1.1\r\nHost: a.test\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_the_answer_over_budget_says_which_rule() -> None:
    http = core(POLICY, ledger())
    for _ in range(2):
        assert any(isinstance(each, SendUpstream) for each in http.client_data(GET))
        http.upstream_data(OK)
    commands = http.client_data(GET)
    assert not any(isinstance(each, SendUpstream) for each in commands)
    (sent,) = [each.data for each in commands if isinstance(each, SendClient)]
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"x-membrane-verdict: deny" in head and b"retry-after" not in head
    told = json.loads(body)
    assert (told["error"], told["reason"]) == ("blocked by membrane", "limit reached")
    assert told["rule"] == "https://a.test/v1"
    assert told["hint"] == "budget of https://a.test/v1: 2 requests in a session"
    (seen,) = [each for each in commands if isinstance(each, Seen)]
    assert isinstance(seen.verdict, Deny) and seen.verdict.rule is POLICY.allow[0] and seen.status == 429
    assert any(isinstance(each, SendUpstream) for each in http.client_data(GET.replace(b"/v1/x", b"/v2"))), (
        "what the rule does not admit does not count against it"
    )


def test_a_rate_says_when_to_try_again() -> None:
    policy = Policy(allow=(host_rule("https://a.test", WHERE, budget=RuleBudget(rate=1, period=60)),))
    http = core(policy, ledger())
    http.client_data(GET)
    http.upstream_data(OK)
    (sent,) = [each.data for each in http.client_data(GET) if isinstance(each, SendClient)]
    assert b"\r\nretry-after: 61\r\n" in sent


def test_an_override_counts_as_what_it_may_be_read_as() -> None:
    policy = Policy(
        allow=(
            host_rule("https://a.test", WHERE, http=((("GET",), ()),)),
            host_rule("https://a.test", WHERE, http=((("POST",), ()),), budget=RuleBudget(requests=1)),
        )
    )
    http = core(policy, ledger())
    disguised = GET.replace(b"\r\n\r\n", b"\r\nX-HTTP-Method-Override: POST\r\n\r\n")
    assert any(isinstance(each, SendUpstream) for each in http.client_data(disguised))
    http.upstream_data(OK)
    assert not any(isinstance(each, SendUpstream) for each in http.client_data(disguised))
    assert any(isinstance(each, SendUpstream) for each in http.client_data(GET))


def test_octets_beyond_the_rule_end_the_request() -> None:
    policy = Policy(allow=(host_rule("https://a.test", WHERE, budget=RuleBudget(upload=300)),))
    book = ledger()
    chunked = b"POST /v1/x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    http = core(policy, book)
    assert any(isinstance(each, SendUpstream) for each in http.client_data(chunked))
    assert any(isinstance(each, SendUpstream) for each in http.client_data(b"64\r\n" + b"x" * 100 + b"\r\n"))
    commands = http.client_data(b"c8\r\n" + b"x" * 200 + b"\r\n")
    (seen,) = [each for each in commands if isinstance(each, Seen)]
    assert seen.status == 429 and isinstance(seen.verdict, Deny) and seen.verdict.rule is policy.allow[0]
    assert http.closed
    announced = b"POST /v1/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000\r\n\r\n"
    http = core(policy, ledger())
    (told,) = [each for each in http.client_data(announced) if isinstance(each, Seen)]
    assert told.status == 429
    assert not http.closed, "nothing has gone up, so the connection can go on"


def test_a_grpc_call_over_budget_is_resource_exhausted() -> None:
    policy = Policy(allow=(rule(requests=1),))
    book = ledger()
    gate = Gate(Bound("a.test", 443, "https"), Decider(policy).decide, book.admit)
    judge = lambda: gate.judge(b"POST", b"/s.S/M", b"a.test", [], [], body=True)  # noqa: E731
    judge()
    fields = dict(grpc_answer(judge()))  # type: ignore[arg-type]
    assert fields[b"grpc-status"] == b"8"
    assert b"limit reached" in fields[b"grpc-message"]
