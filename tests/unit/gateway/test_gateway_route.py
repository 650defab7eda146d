"""Where a connection may go: names, literals, resolved addresses, first bytes."""

from __future__ import annotations

import json

import pytest

from membrane.gateway.dns import Names
from membrane.gateway.route import Refusal, Route, Router, alert, http_answer, refuse_protocol
from membrane.gateway.sniff import First
from membrane.policy.model import Allow, Ask, Connect, Deny, HostRule, Origin, PortRange, PortRule

ORIGIN = Origin("user", "config.yaml", 3)
RULE = HostRule("a.test", ORIGIN, "host", host="a.test")


class Policy:
    """Answers from a table by (host, address, port, protocol); everything else is refused."""

    def __init__(self, table) -> None:
        self.table = table
        self.asked: list[Connect] = []

    def decide(self, access: Connect):
        self.asked.append(access)
        key = (access.host, access.address, access.port, access.protocol)
        return self.table.get(key, Deny(None, "address not allowed", "allow: [x]"))


def router(table) -> tuple[Router, Policy, Names]:
    names, policy = Names(), Policy(table)
    names.assign("a.test")
    names.assign("host.internal")
    return Router(names, policy.decide), policy, names


def test_a_fake_address_is_the_name() -> None:
    route, policy, names = router({("a.test", "", 443, "tcp"): Allow(RULE, "ok")})
    four, six = names.v4(16), names.v6(16)
    assert route.arrive(four, 443) == Route("a.test", four, 443, 443)
    assert route.arrive(six, 443) == Route("a.test", six, 443, 443)
    assert policy.asked == [Connect("a.test", "", 443)] * 2


@pytest.mark.parametrize(
    ("dialled", "judged"),
    [
        ("93.184.216.34", "93.184.216.34"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%lo", "fe80::1"),
        ("::ffff:1", "::ffff:1"),
    ],
)
def test_a_literal_is_itself(dialled, judged) -> None:
    route, policy, _ = router({("", judged, 80, "tcp"): Allow(RULE, "ok")})
    assert route.arrive(dialled, 80) == Route("", judged, 80, 80, (judged,))
    assert policy.asked == [Connect("", judged, 80)]
    refused = route.arrive(dialled, 81)
    assert isinstance(refused, Refusal)
    assert refused.event.access["address"] == judged
    assert (refused.event.reason, refused.event.hint) == ("address not allowed", "allow: [x]")


@pytest.mark.parametrize("address", ["198.18.0.2", "198.18.0.99", "fd00:6d65:6d62::2", "fd00:6d65:6d62:1::99"])
def test_our_ranges_are_never_dialled(address) -> None:
    route, policy, names = router({("", address, 80, "tcp"): Allow(RULE, "a rule for everything")})
    assert isinstance(route.arrive(address, 80), Refusal)
    assert policy.asked == []
    while names.name(address) is None and len(names) < 200:
        names.assign(f"n{len(names)}.test")
    if names.name(address):  # it stands for a name now: the refusal was not remembered
        route.arrive(address, 80)
        assert policy.asked[-1].host == names.name(address)


def test_the_address_of_a_name_that_was_forgotten_is_refused_though_it_was_remembered() -> None:
    names, policy = Names(2), Policy({("a.test", "", 80, "tcp"): Allow(RULE, "ok")})
    route = Router(names, policy.decide)
    address = names.v4(names.assign("a.test") or 0)
    assert isinstance(route.arrive(address, 80), Route) and isinstance(route.arrive(address, 80), Route)
    names.assign("b.test")
    names.assign("c.test")
    refused = route.arrive(address, 80)
    assert isinstance(refused, Refusal) and refused.event.reason == "address not allowed"


@pytest.mark.parametrize("verdict", [Deny(RULE, "denied by rule"), Ask("ask")])
def test_only_allow_lets_pass(verdict) -> None:
    route, _, names = router({("a.test", "", 80, "tcp"): verdict})
    refused = route.arrive(names.v4(16), 80)
    assert isinstance(refused, Refusal)
    assert refused.event.reason == verdict.reason
    assert refused.host == "a.test"


def test_a_constrained_connection_is_marked_and_never_udp() -> None:
    verdict = Allow(RULE.replace(insecure=True), "ok", inspect=True)
    route, _, names = router({("a.test", "", 443, "tcp"): verdict, ("a.test", "", 443, "udp"): verdict})
    relay = route.arrive(names.v4(16), 443)
    assert isinstance(relay, Route)
    assert (relay.inspect, relay.insecure) == (True, True)
    refused = route.arrive(names.v4(16), 443, "udp")
    assert isinstance(refused, Refusal)
    assert refused.event.reason == "not HTTP"


def test_the_address_of_a_raw_relay_may_not_be_a_constrained_one() -> None:
    constrained = Allow(RULE, "ok", inspect=True)
    route, _, _ = router({("a.test", "1.1.1.1", 443, "tcp"): constrained})
    raw = Route("a.test", "198.18.0.16", 443, 443)
    assert isinstance(route.candidates(raw, ("1.1.1.1",)), Refusal)
    assert route.candidates(raw.replace(inspect=True), ("1.1.1.1",)) == ("1.1.1.1",)


def test_decisions_are_remembered_and_bounded() -> None:
    route, policy, _ = router({("", "1.1.1.1", port, "tcp"): Allow(RULE, "ok") for port in range(1, 6000)})
    for port in range(1, 6000):
        route.arrive("1.1.1.1", port)
        route.arrive("1.1.1.1", port)
        assert len(route._arrivals) <= 4096
    assert len(policy.asked) == 5999


def test_protocols_are_told_apart() -> None:
    route, _, names = router({("a.test", "", 53, "udp"): Allow(RULE, "ok")})
    assert isinstance(route.arrive(names.v4(16), 53, "udp"), Route)
    assert isinstance(route.arrive(names.v4(16), 53, "tcp"), Refusal)


def test_a_changed_policy_is_asked_again() -> None:
    """What the old one allowed is not remembered, neither for connections nor for resolved addresses."""
    route, policy, names = router(
        {("a.test", "", 80, "tcp"): Allow(RULE, "ok"), ("a.test", "1.1.1.1", 80, "tcp"): Allow(RULE, "ok")}
    )
    dialled, addresses = names.v4(16), ("1.1.1.1",)
    relay = route.arrive(dialled, 80)
    assert isinstance(relay, Route)
    assert route.candidates(relay, addresses) == addresses
    policy.table.clear()
    assert route.arrive(dialled, 80) == relay, "the control: until it is told"
    assert route.candidates(relay, addresses) == addresses
    route.forget()
    assert isinstance(route.arrive(dialled, 80), Refusal)
    assert isinstance(route.candidates(relay, addresses), Refusal)


def test_refusals_of_addresses_are_remembered_and_those_of_names_to_come_are_not() -> None:
    route, policy, names = router({("a.test", "", 80, "tcp"): Allow(RULE, "ok")})
    for _ in range(2):
        assert isinstance(route.arrive("10.0.0.1", 80), Refusal)
        assert isinstance(route.arrive(names.v4(16), 80), Route)
    assert len(policy.asked) == 2
    assert set(route._arrivals) == {("10.0.0.1", 80, "tcp"), (names.v4(16), 80, "tcp")}
    route.arrive("198.18.0.99", 80)
    assert len(route._arrivals) == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_the_sandbox_s_loopback_is_no_way_to_the_host_s(address) -> None:
    route, policy, _ = router({("", address.removeprefix("::ffff:"), 53, "udp"): Allow(RULE, "a rule for everything")})
    refused = route.arrive(address, 53, "udp")
    assert isinstance(refused, Refusal)
    assert (refused.event.reason, refused.host) == ("address not allowed", address.removeprefix("::ffff:"))
    assert policy.asked == []


@pytest.mark.parametrize(("verdict", "asks"), [(Deny(RULE, "denied by rule"), False), (Ask("ask"), True)])
def test_only_what_is_open_is_a_question(verdict, asks) -> None:
    route, _, names = router({("a.test", "", 80, "tcp"): verdict, ("", "9.9.9.9", 80, "tcp"): verdict})
    for address, host in ((names.v4(16), "a.test"), ("9.9.9.9", "9.9.9.9")):
        refused = route.arrive(address, 80)
        assert isinstance(refused, Refusal)
        assert (refused.question is not None) == asks
        assert refused.host == host


@pytest.mark.parametrize("address", ["198.18.0.16", "9.9.9.9"])
def test_a_constrained_rule_carries_no_udp(address) -> None:
    verdict = Allow(RULE, "ok", inspect=True)
    route, _, _ = router({("a.test", "", 443, "udp"): verdict, ("", "9.9.9.9", 443, "udp"): verdict})
    refused = route.arrive(address, 443, "udp")
    assert isinstance(refused, Refusal)
    assert refused.host == ("a.test" if address[:3] == "198" else address)


@pytest.mark.parametrize("rule", [None, PortRule(1, 2, ORIGIN)])
def test_only_a_rule_of_hosts_can_be_insecure(rule) -> None:
    route, _, names = router({("a.test", "", 443, "tcp"): Allow(rule, "ok")})
    relay = route.arrive(names.v4(16), 443)
    assert isinstance(relay, Route) and not relay.insecure


# ---------------------------------------------------------------- what a client asks a proxy for


@pytest.mark.parametrize(
    ("asked", "judged", "relay"),
    [
        ("b.test", Connect("b.test", "", 80), Route("b.test", "", 80, 80)),
        ("B.Test.", Connect("B.Test.", "", 80), Route("b.test", "", 80, 80)),
        ("9.9.9.9", Connect("", "9.9.9.9", 80), Route("", "9.9.9.9", 80, 80, ("9.9.9.9",))),
        ("[2001:db8::1]", Connect("", "2001:db8::1", 80), Route("", "2001:db8::1", 80, 80, ("2001:db8::1",))),
        ("127.0.0.1", Connect("", "127.0.0.1", 80), Route("", "127.0.0.1", 80, 80, ("127.0.0.1",))),
    ],
)  # fmt: skip
def test_a_proxy_s_target_is_judged_as_what_it_is(asked, judged, relay) -> None:
    """Also the loopback: a proxy stands outside, so it is the host's, and the policy's floors decide."""
    key = (judged.host, judged.address, 80, "tcp")
    route, policy, _ = router({key: Allow(RULE, "ok")})
    assert route.proxied(asked, 80) == relay
    assert policy.asked == [judged]
    policy.table.clear()
    assert isinstance(route.proxied(asked, 80), Refusal), "nothing of it is remembered"


@pytest.mark.parametrize("asked", ["localhost", "LocalHost", "localhost.", "a.localhost", "A.LOCALHOST."])
def test_a_proxy_s_localhost_is_the_host_s(asked) -> None:
    route, policy, _ = router({("host.internal", "", 5432, "tcp"): Allow(PortRule(5432, 15432, ORIGIN), "ok")})
    assert route.proxied(asked, 5432) == Route("host.internal", "", 5432, 15432, ("127.0.0.1", "::1"))
    assert policy.asked == [Connect("host.internal", "", 5432)]
    policy.table.clear()
    assert isinstance(route.proxied(asked, 5432), Refusal)


@pytest.mark.parametrize("asked", ["localhost.test", "notlocalhost"])
def test_another_name_is_not_localhost(asked) -> None:
    route, policy, _ = router({("host.internal", "", 80, "tcp"): Allow(PortRule(80, 8080, ORIGIN), "ok")})
    assert isinstance(route.proxied(asked, 80), Refusal)
    assert policy.asked == [Connect(asked, "", 80)]


def test_an_address_that_stands_for_a_name_is_that_name_at_a_proxy_too() -> None:
    route, policy, names = router({("a.test", "", 80, "tcp"): Allow(RULE, "ok")})
    assert route.proxied(names.v4(16), 80) == Route("a.test", names.v4(16), 80, 80)
    assert isinstance(route.proxied("198.18.0.99", 80), Refusal)
    assert policy.asked == [Connect("a.test", "", 80)]


# ---------------------------------------------------------------- resolved addresses


def test_only_allowed_addresses_are_candidates() -> None:
    allowed = Allow(RULE, "ok")
    route, policy, _ = router({("a.test", "1.1.1.1", 443, "tcp"): allowed, ("a.test", "::5", 443, "tcp"): allowed})
    relay = Route("a.test", "198.18.0.16", 443, 443)
    addresses = ("10.0.0.1", "1.1.1.1", "169.254.169.254", "::5")
    assert route.candidates(relay, addresses) == ("1.1.1.1", "::5")
    assert route.candidates(relay, addresses) == ("1.1.1.1", "::5")
    assert len(policy.asked) == 4


def test_other_addresses_of_a_name_are_judged_again() -> None:
    """What was found for one answer of the resolver says nothing about the next."""
    route, _, _ = router({("a.test", "1.1.1.1", 443, "tcp"): Allow(RULE, "ok")})
    relay = Route("a.test", "198.18.0.16", 443, 443)
    assert route.candidates(relay, ("1.1.1.1",)) == ("1.1.1.1",)
    assert isinstance(route.candidates(relay, ("10.0.0.1",)), Refusal)
    assert route.candidates(relay, ("1.1.1.1",)) == ("1.1.1.1",)


def test_no_allowed_address_is_a_refusal_with_the_first_reason() -> None:
    route, _, _ = router({("a.test", "10.0.0.1", 443, "tcp"): Deny(None, "private address")})
    refused = route.candidates(Route("a.test", "198.18.0.16", 443, 443), ("10.0.0.1", "1.2.3.4"))
    assert isinstance(refused, Refusal)
    assert (refused.event.reason, refused.event.access["address"]) == ("private address", "10.0.0.1")
    assert isinstance(route.candidates(Route("a.test", "198.18.0.16", 443, 443), ()), Refusal)


def test_an_inspected_address_is_no_candidate() -> None:
    route, _, _ = router({("a.test", "1.1.1.1", 443, "tcp"): Allow(RULE, "ok", inspect=True)})
    assert isinstance(route.candidates(Route("a.test", "198.18.0.16", 443, 443), ("1.1.1.1",)), Refusal)


# ---------------------------------------------------------------- the host's loopback


def test_host_internal_by_ports_connect_is_the_outer_port() -> None:
    verdict = Allow(PortRule(5432, 15432, ORIGIN), "ok")
    route, policy, names = router({("host.internal", "", 5432, "tcp"): verdict})
    relay = route.arrive(names.v4(17), 5432)
    assert relay == Route("host.internal", "", 5432, 15432, ("127.0.0.1", "::1"))
    assert len(policy.asked) == 1


@pytest.mark.parametrize("insecure", [False, True])
def test_host_internal_is_insecure_as_its_rule_says(insecure) -> None:
    route, _, names = router({("host.internal", "", 5, "tcp"): Allow(internal(insecure=insecure), "ok")})
    relay = route.arrive(names.v4(17), 5)
    assert isinstance(relay, Route) and relay.insecure == insecure


def internal(**fields) -> HostRule:
    return HostRule(
        "x", ORIGIN, **{"kind": "host", "host": "host.internal", "ports": (PortRange("tcp", 1, 9),), **fields}
    )


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        (internal(), True),
        (internal(ports=()), False),
        (internal(kind="any", host=""), False),
        (internal(kind="wildcard", host="internal"), False),
        (internal(kind="wildcard"), False),
        (internal(host="a.test"), False),
        (None, False),
    ],
)
def test_host_internal_needs_its_name_and_port(rule, passes) -> None:
    route, _, names = router({("host.internal", "", 5, "tcp"): Allow(rule, "whatever the policy says")})
    result = route.arrive(names.v4(17), 5)
    assert isinstance(result, Route) == passes
    if isinstance(result, Refusal):
        assert result.event.reason == "port not allowed"


# ---------------------------------------------------------------- first bytes

NAMED = Route("a.test", "198.18.0.16", 443, 443)
LITERAL = Route("", "1.1.1.1", 443, 443, ("1.1.1.1",))


@pytest.mark.parametrize("first", [First("tls", sni="a.test"), First("other"), First("http/1.1"), First("h2")])
def test_the_right_name_and_other_protocols_pass(first) -> None:
    assert Router.judge_first(NAMED, first) is None


@pytest.mark.parametrize(
    ("first", "reason", "code"),
    [
        (First("tls", sni="b.test"), "name differs from SNI", 112),
        (First("tls", sni="x.a.test"), "name differs from SNI", 112),
        (First("tls"), "TLS without SNI", 49),
        (First("tls", sni="a.test", ech=True), "name differs from SNI", 49),
        (First("tls", sni="a.test", flaw="odd"), "name differs from SNI", 49),
    ],
)
def test_other_names_do_not(first, reason, code) -> None:
    refused = Router.judge_first(NAMED, first)
    assert refused is not None
    assert (refused.event.reason, refused.alert) == (reason, code)
    assert refused.event.access["host"] == "a.test"
    assert refused.event.access["sni"] == ("" if first.flaw else first.sni)
    assert Router.judge_first(LITERAL, first) is None


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(("relay", "host"), [(NAMED, "a.test"), (LITERAL, "1.1.1.1")])
def test_a_later_refusal_names_what_was_asked_for(relay, host) -> None:
    limit = Router.limit(relay, Deny(None, "limit reached"))
    assert (limit.host, limit.event.reason, limit.event.access["port"]) == (host, "limit reached", 443)
    protocol = refuse_protocol(relay, "use HTTP")
    assert (protocol.host, protocol.event.reason, protocol.event.hint) == (host, "not HTTP", "use HTTP")


def test_alerts_are_fatal_records() -> None:
    assert alert(112) == bytes.fromhex("15030300020270")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/x?q=1", "/v1/x"),
        ("http://evil.test/a/b?q", "/a/b"),
        ("http://evil.test", "/"),
        ("*", "*"),
        ("/" + "a" * 5000, "/" + "a" * 1023),
        ('/"\xff\x1b', '/"\xff\x1b'),
    ],
)
def test_http_answers(target, path) -> None:
    answer = http_answer(403, First("http/1.1", method="POST", target=target), "a.test", "port not allowed", "allow: x")
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("ascii").split("\r\n")
    assert lines[0] == "HTTP/1.1 403 Forbidden"
    assert {"content-type: application/json", "x-membrane-verdict: deny", "connection: close"} < set(lines)
    assert f"content-length: {len(body)}" in lines
    assert json.loads(body) == {
        "error": "blocked by membrane",
        "host": "a.test",
        "method": "POST",
        "path": path,
        "reason": "port not allowed",
        "hint": "allow: x",
    }


def test_a_failure_is_not_called_a_refusal() -> None:
    answer = http_answer(502, First("http/1.1", method="GET", target="/"), "a.test", "no such name", "")
    assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b"x-membrane-verdict" not in answer


def test_head_has_no_body() -> None:
    answer = http_answer(403, First("http/1.1", method="HEAD", target="/"), "a.test", "r", "")
    assert answer.endswith(b"\r\n\r\n")
    assert b"content-length: " in answer
