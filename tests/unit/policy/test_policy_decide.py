"""The decision function: the vectors of the specification and the holes of other tools.

One file of over 800 lines: the vectors of one function, and the holes that it does not have.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from membrane.policy.decide import Decider, _hint, _literal, _quoted, decide
from membrane.policy.files import anchored
from membrane.policy.hosts import parse_address
from membrane.policy.load import Source, load
from membrane.policy.model import (
    Allow,
    Connect,
    Deny,
    HostRule,
    HttpRequest,
    NameQuery,
    Origin,
    PathAccess,
    Policy,
    SocketAccess,
)
from membrane.policy.reasons import REASONS


def policy(text: str) -> Policy:
    return load([Source("user", "f.yaml", text, "/dir")], presets={"default": ""}, home="/home/u").policy


def ask(text: str, access: Any) -> str:
    """ "allow", "inspect", or the reason of the refusal."""
    verdict = decide(policy(text), access)
    if isinstance(verdict, Allow):
        return "inspect" if verdict.inspect else "allow"
    assert isinstance(verdict, Deny)
    assert verdict.reason in REASONS
    return verdict.reason


def https(method: str, path: str, host: str = "h", port: int = 443, scheme: Any = "https") -> HttpRequest:
    return HttpRequest(host, port, scheme, method, path)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("rule", "name", "answer"),
    [
        ("api.example.com", "API.Example.com.", "allow"),
        ("'*.example.com'", "a.b.example.com", "allow"),
        ("'*.example.com'", "example.com", "name not allowed"),
        ("'*.example.com'", "notexample.com", "name not allowed"),
        ("example.com", "example.com.evil.org", "name not allowed"),
        ("example.com", "evil-example.com", "name not allowed"),
        ("example.com", "a.example.com", "name not allowed"),
        ("münchen.de", "xn--mnchen-3ya.de", "allow"),
        ("'**'", "anything.example", "allow"),
        ("'**'", "127.1", "name malformed"),
        ("'**'", "a..b", "name malformed"),
        ("example.com", "ex\u200bample.com", "name malformed"),
        ("10.0.0.1", "10.0.0.1", "name malformed"),
    ],
)
def test_name(rule: str, name: str, answer: str) -> None:
    assert ask(f"allow: [{rule}]", NameQuery(name)) == answer


@pytest.mark.parametrize("kind", ["TXT", "ANY", "HTTPS", "MX", "TYPE65"])
def test_only_addresses_are_answered(kind: str) -> None:
    assert ask("allow: [a.com]", NameQuery("a.com", kind)) == "query type not answered"
    assert ask("allow: [a.com]", NameQuery("b.com", kind)) == "name not allowed"


def test_denied_name() -> None:
    text = "allow: ['**']\ndeny: ['*.tracker.example', x.com, 'y.com:443', 'https://z.com/a']"
    assert ask(text, NameQuery("a.tracker.example")) == "denied by rule"
    assert ask(text, NameQuery("x.com")) == "denied by rule"
    assert ask(text, NameQuery("y.com")) == "allow", "another port of it may still be used"
    assert ask(text, NameQuery("z.com")) == "allow"


# ---------------------------------------------------------------- connections by name


def test_empty_policy_allows_nothing() -> None:
    for access in (
        NameQuery("a.com"),
        Connect("a.com", "", 443),
        Connect("", "8.8.8.8", 443),
        Connect("", "127.0.0.1", 80),
        Connect("host.internal", "", 80),
        https("GET", "/"),
        SocketAccess("/run/docker.sock"),
        PathAccess("/etc/shadow"),
    ):
        assert isinstance(decide(Policy(), access), Deny)
        assert isinstance(decide(policy("allow: []"), access), Deny)


def test_no_port_is_any_tcp_port_and_no_udp() -> None:
    assert ask("allow: [a.com]", Connect("a.com", "", 1)) == "allow"
    assert ask("allow: [a.com]", Connect("A.COM.", "", 65535)) == "allow"
    assert ask("allow: [a.com]", Connect("a.com", "", 443, "udp")) == "port not allowed"
    assert ask("allow: [a.com]", Connect("a.com", "", 0)) == "port not allowed"
    assert ask("allow: [a.com]", Connect("b.com", "", 1)) == "name not allowed"


def test_ports() -> None:
    text = "allow: [{dest: a.com, ports: [443, 8000-8010, 123/udp]}]"
    assert [ask(text, Connect("a.com", "", port)) for port in (443, 8000, 8010)] == ["allow"] * 3
    assert [ask(text, Connect("a.com", "", port)) for port in (442, 7999, 8011, 123)] == ["port not allowed"] * 4
    assert ask(text, Connect("a.com", "", 123, "udp")) == "allow"
    assert ask(text, Connect("a.com", "", 443, "udp")) == "port not allowed"


@pytest.mark.parametrize(("port", "protocol"), [(0, "tcp"), (-1, "tcp"), (65536, "tcp"), (443, "sctp"), (443, "")])
def test_what_is_no_port_is_refused_whatever_is_allowed(port: int, protocol: Any) -> None:
    text = "allow: ['**', 10.0.0.0/8, {dest: h, ports: [1-65535, 1-65535/udp]}]"
    for access in (Connect("h", "", port, protocol), Connect("", "10.0.0.1", port, protocol)):
        assert ask(text, access) == "port not allowed"
        assert ask(text, access.replace(port=443, protocol="tcp")) == "allow", "the control"


def test_where_values_of_secrets_go_each_request_is_judged() -> None:
    """For exactly these names and ports: elsewhere the connection passes as it is."""
    text = "allow: [a.example, a.a.example, b.example, '*.b.example', 10.0.0.7, 10.0.0.8]\n"
    secret = "secrets: [{name: S, from: 'env:S', to: [a.example, 10.0.0.7]}]\n"
    mask = "masks: [{env: M, to: ['*.b.example']}]\n"

    def judged(*lines: str) -> list[str]:
        decider = Decider(policy(text + "".join(lines)))
        names = ("a.example", "a.a.example", "b.example", "x.b.example", "x.y.b.example")
        accesses = [Connect(name, "", port) for name in names for port in (443, 8443)]
        accesses += [Connect("", address, 443) for address in ("10.0.0.7", "10.0.0.8")]
        verdicts = [(access, decider.decide(access)) for access in accesses]
        assert all(isinstance(verdict, Allow) for _access, verdict in verdicts)
        return [f"{each.host or each.address}:{each.port}" for each, verdict in verdicts if verdict.inspect]  # type: ignore[union-attr]

    below = ["x.b.example:443", "x.y.b.example:443"]
    assert judged() == []
    assert judged(secret) == ["a.example:443", "10.0.0.7:443"]
    assert judged(mask) == below
    assert judged(secret, mask) == ["a.example:443", *below, "10.0.0.7:443"]


@pytest.mark.parametrize("name", ["a..b", ".", "x y", "a.example\0", "a" * 64 + ".example", "ex_ample.\u2024", "a/b"])
def test_a_malformed_name_is_refused_by_each_question(name: str) -> None:
    for access in (
        NameQuery(name),
        Connect(name, "", 443),
        Connect(name, "9.9.9.9", 443),
        https("GET", "/", host=name),
    ):
        assert ask("allow: ['**']", access) == "name malformed"


def test_everything_with_udp_only() -> None:
    text = "allow: [{dest: '**', ports: [53/udp]}]"
    assert ask(text, Connect("", "8.8.8.8", 53, "udp")) == "allow"
    assert ask(text, Connect("a.com", "8.8.8.8", 53, "udp")) == "allow"
    for port in (53, 443):
        assert ask(text, Connect("", "8.8.8.8", port)) == "port not allowed"
        assert ask(text, Connect("a.com", "", port)) == "port not allowed"


def test_deny_wins_whatever_the_order_or_level() -> None:
    sources = [Source("user", "u", "deny: [a.com]"), Source("project", "p", "allow: [a.com, '*.com.example']")]
    result = load(sources, presets={"default": ""}, options={"allow": ("a.com",)}).policy
    verdict = decide(result, Connect("a.com", "", 443))
    assert isinstance(verdict, Deny)
    assert verdict.rule is not None
    assert (verdict.reason, verdict.rule.text, verdict.hint) == ("denied by rule", "a.com", "")


def test_deny_without_ports_is_every_port_and_protocol() -> None:
    text = "allow: [{dest: a.com, ports: [443, 443/udp]}, 8.8.8.8]\ndeny: ['**']"
    for access in (Connect("a.com", "", 443), Connect("a.com", "", 443, "udp"), Connect("", "8.8.8.8", 443)):
        assert ask(text, access) == "denied by rule"


def test_deny_of_a_port() -> None:
    text = "allow: [a.com]\ndeny: [{dest: '*.x.example', ports: [22]}, 'a.com:22']"
    assert ask(text, Connect("a.com", "", 22)) == "denied by rule"
    assert ask(text, Connect("a.com", "", 443)) == "allow"


# ---------------------------------------------------------------- addresses below a name


PRIVATE = ["127.0.0.1", "10.0.0.7", "192.168.1.1", "172.16.0.1", "100.64.0.1", "::1", "fd12::1", "224.0.0.1", "0.0.0.0"]
FLOOR = ["169.254.169.254", "169.254.1.1", "100.100.100.200", "168.63.129.16", "fe80::1", "fd00:ec2::254"]
DISGUISED = ["::ffff:{}", "::{}", "::ffff:0:{}", "64:ff9b::{}"]


@pytest.mark.parametrize("rule", ["a.com", "'*.com.example', a.com", "'**'"])
def test_name_that_resolves_inside_is_refused(rule: str) -> None:
    text = f"allow: [{rule}]"
    assert ask(text, Connect("a.com", "93.184.216.34", 443)) == "allow"
    assert ask(text, Connect("a.com", "2606:4700::1111", 443)) == "allow"
    for address in PRIVATE:
        assert ask(text, Connect("a.com", address, 443)) == "private address"
    for address in FLOOR:
        assert ask(text, Connect("a.com", address, 443)) == "metadata address"


def test_disguised_addresses_are_folded() -> None:
    for form in DISGUISED:
        assert ask("allow: [a.com]", Connect("a.com", form.format("169.254.169.254"), 80)) in (
            "metadata address",
            "private address",
        )
        assert ask("allow: [a.com]", Connect("a.com", form.format("10.0.0.1"), 80)) == "private address"
    assert ask("allow: [a.com]", Connect("a.com", "2002:0a00:0001::1", 80)) == "private address"
    assert ask("allow: [a.com]", Connect("a.com", "64:ff9b::8.8.8.8", 80)) == "allow", "a NAT64 network"
    assert ask("allow: [a.com]\ndeny: [8.8.8.8]", Connect("a.com", "64:ff9b::8.8.8.8", 80)) == "denied by rule"
    assert ask("allow: ['64:ff9b::/96']", Connect("", "64:ff9b::a9fe:a9fe", 80)) == "metadata address"


@pytest.mark.parametrize("address", ["127.1", "0x7f.0.0.1", "fe80::1%eth0", "not an address", "1.2.3.4:80"])
def test_address_that_is_not_canonical_is_refused(address: str) -> None:
    assert ask("allow: ['**', 0.0.0.0/0]", Connect("a.com", address, 80)) == "address not allowed"
    assert ask("allow: ['**', 0.0.0.0/0]", Connect("", address, 80)) == "address not allowed"


def test_network_rule_lifts_the_floor_for_its_ports() -> None:
    text = "allow: [a.com, 10.0.0.0/8, {dest: 192.168.1.1, ports: [443]}]"
    assert ask(text, Connect("a.com", "10.0.0.7", 443)) == "allow"
    assert ask(text, Connect("a.com", "::ffff:10.0.0.7", 443)) == "allow"
    assert ask(text, Connect("a.com", "192.168.1.1", 443)) == "allow"
    assert ask(text, Connect("a.com", "192.168.1.1", 80)) == "private address"
    assert ask(text, Connect("b.com", "10.0.0.7", 443)) == "name not allowed"


def test_a_network_that_holds_public_addresses_too_names_no_private_one() -> None:
    """Else whoever owns a name that is allowed chooses a server of the local network, or of this machine."""
    for rule in ("0.0.0.0/0", "0.0.0.0/1", "8.0.0.0/5", "'::/0'"):
        for address in PRIVATE:
            assert ask(f"allow: [a.com, {rule}]", Connect("a.com", address, 443)) == "private address"
        assert ask(f"allow: [a.com, {rule}]", Connect("a.com", "93.184.216.34", 443)) == "allow"
    assert ask("allow: [a.com, 10.0.0.0/8]", Connect("a.com", "10.1.2.3", 443)) == "allow"
    assert ask("allow: [a.com, 'fc00::/7']", Connect("a.com", "fd12::1", 443)) == "allow"
    assert ask("allow: [0.0.0.0/0]", Connect("", "10.1.2.3", 443)) == "allow", "by address, as the rule says"


def test_an_address_of_this_machine_needs_a_narrow_rule() -> None:
    own = [parse_address("10.0.0.7"), parse_address("93.184.216.34")]
    for rule, address, opens in (
        ("10.0.0.0/8", "10.0.0.7", False),
        ("10.0.0.0/24", "10.0.0.7", True),
        ("93.184.0.0/16", "93.184.216.34", False),
        ("93.184.216.34", "93.184.216.34", True),
        ("10.0.0.0/8", "10.0.0.8", True),
    ):
        decider = Decider(policy(f"allow: [a.com, {rule}]"), own_addresses=own)
        for host in ("a.com", ""):
            assert isinstance(decider.decide(Connect(host, address, 443)), Allow) is opens


def test_a_network_rule_with_a_budget_does_not_lift_the_floor() -> None:
    """What is counted for the literal would not be counted by name."""
    assert ask("allow: [h, 10.0.0.7]", Connect("h", "10.0.0.7", 80)) == "allow", "the control"
    assert ask("allow: [h, {dest: 10.0.0.7, budget: {upload: 1M}}]", Connect("h", "10.0.0.7", 80)) == "private address"


def test_the_rule_that_makes_requests_judged_is_the_one_that_is_named() -> None:
    for text, access in (
        ("allow: [h, {dest: h, http: [{methods: [GET]}]}]", Connect("h", "", 443)),
        ("allow: [10.0.0.7, {dest: 10.0.0.7, http: [{methods: [GET]}]}]", Connect("", "10.0.0.7", 443)),
    ):
        made = policy(text)
        verdict = decide(made, access)
        assert isinstance(verdict, Allow) and verdict.inspect and verdict.rule is made.allow[1]


def test_the_loopback_is_no_address_of_this_machine_from_outside() -> None:
    """Interfaces list it, and a rule for all of it means it."""
    access = Connect("", "127.0.0.1", 80)
    own = [parse_address(text) for text in ("127.0.0.1", "192.168.1.5")]
    decider = Decider(policy("allow: [127.0.0.0/8, 192.168.0.0/16]"), own)
    assert isinstance(decider.decide(access), Allow)
    assert isinstance(decider.decide(access.replace(address="192.168.1.5")), Deny), (
        "the control: a narrow rule is needed"
    )
    assert isinstance(decider.decide(access.replace(address="192.168.1.6")), Allow)


def test_constrained_network_rule_does_not_lift_the_floor() -> None:
    text = "allow: [a.com, {dest: 10.0.0.7, http: [{methods: [GET]}]}]"
    assert ask(text, Connect("a.com", "10.0.0.7", 443)) == "private address"
    assert ask(text, Connect("", "10.0.0.7", 443)) == "inspect"


@pytest.mark.parametrize("name", ["metadata.google.internal", "Metadata.Google.Internal.", "instance-data", "metadata"])
def test_names_of_metadata_services_need_their_own_rule(name) -> None:
    """An upstream proxy looks names up itself: no address is seen here."""
    for broad in ("'**'", "'*.google.internal'", "'*.internal'"):
        assert ask(f"allow: [{broad}]", NameQuery(name)) == "metadata address"
        assert ask(f"allow: [{broad}]", Connect(name, "", 80)) == "metadata address"
    exact = name.lower().rstrip(".")
    assert ask(f"allow: [{exact}]", Connect(name, "", 80)) == "allow"
    assert ask(f"allow: [{exact}]", Connect(name, "169.254.169.254", 80)) == "metadata address"


def test_metadata_needs_a_narrow_rule() -> None:
    for rule, answer in {
        "'**'": "metadata address",
        "0.0.0.0/0": "metadata address",
        "169.254.0.0/16": "metadata address",
        "169.254.168.0/23": "metadata address",
        "169.254.169.0/24": "allow",
        "169.254.169.254": "allow",
    }.items():
        assert ask(f"allow: [{rule}]", Connect("", "169.254.169.254", 80)) == answer
        assert ask(f"allow: [a.com, {rule}]", Connect("a.com", "169.254.169.254", 80)) == answer
    assert ask("allow: ['fe80::/10']", Connect("", "fe80::1", 80)) == "metadata address"
    assert ask("allow: ['fe80::/64']", Connect("", "fe80::1", 80)) == "allow"
    assert ask("allow: [100.64.0.0/10]", Connect("", "100.100.100.200", 80)) == "metadata address"


def test_denied_network_refuses_names_too() -> None:
    text = "allow: [a.com]\ndeny: [93.184.216.0/24, {dest: 1.1.1.1, http: [{methods: [POST]}]}]"
    assert ask(text, Connect("a.com", "93.184.216.34", 443)) == "denied by rule"
    assert ask(text, Connect("a.com", "1.1.1.1", 443)) == "denied by rule"
    assert ask(text, Connect("a.com", "", 443)) == "allow"


def test_addresses_of_this_machine_are_private() -> None:
    decider = Decider(policy("allow: [a.com, '**']"), own_addresses=[parse_address("93.184.216.34")])
    for host in ("a.com", ""):
        assert isinstance(decider.decide(Connect(host, "93.184.216.34", 443)), Deny)
        assert isinstance(decider.decide(Connect(host, "93.184.216.35", 443)), Allow)


# ---------------------------------------------------------------- literal addresses


def test_literal_address_needs_a_network_rule() -> None:
    assert ask("allow: [a.com]", Connect("", "93.184.216.34", 443)) == "address not allowed"
    assert ask("allow: [93.184.216.34]", Connect("", "93.184.216.34", 443)) == "allow"
    assert ask("allow: [93.184.216.34]", Connect("93.184.216.34", "", 443)) == "allow"
    assert ask("allow: ['2001:0db8::0/32']", Connect("", "2001:DB8:0::1", 443)) == "allow"
    assert ask("allow: ['[2001:db8::1]:443']", Connect("[2001:db8::1]", "", 443)) == "allow"
    assert ask("allow: [10.0.0.0/24]", Connect("", "::ffff:10.0.0.1", 443)) == "allow"
    assert ask("allow: [10.0.0.0/24]", Connect("", "10.0.1.0", 443)) == "address not allowed"
    assert ask("allow: ['10.0.0.1:80']", Connect("", "10.0.0.1", 81)) == "port not allowed"


def test_a_name_that_is_a_literal_must_agree_with_the_address() -> None:
    assert ask("allow: [8.8.8.8, 9.9.9.9]", Connect("8.8.8.8", "9.9.9.9", 443)) == "address not allowed"


def test_everything_opens_public_literals_only() -> None:
    text = "allow: ['**']"
    assert ask(text, Connect("", "8.8.8.8", 443)) == "allow"
    for address in PRIVATE:
        assert ask(text, Connect("", address, 443)) == "address not allowed"
    for address in FLOOR:
        assert ask(text, Connect("", address, 443)) == "metadata address"


def test_literal_can_not_bypass_a_denied_name() -> None:
    text = "allow: ['**']\ndeny: ['evil.example:443']"
    assert ask(text, Connect("", "8.8.8.8", 443)) == "address not allowed"
    assert ask(text, Connect("", "8.8.8.8", 80)) == "allow"
    assert ask("allow: ['**', 8.8.8.8]\ndeny: [evil.example]", Connect("", "8.8.8.8", 443)) == "allow"


# ---------------------------------------------------------------- the host's loopback


def test_host_internal() -> None:
    for text in ("allow: ['**']", "allow: ['*.internal']", "allow: [127.0.0.0/8]"):
        assert ask(text, NameQuery("host.internal")) == "name not allowed"
        assert ask(text, Connect("host.internal", "", 80)) == "name not allowed"
    text = "allow: ['host.internal:5432']"
    assert ask(text, NameQuery("Host.Internal.")) == "allow"
    assert ask(text, Connect("host.internal", "", 5432)) == "allow"
    assert ask(text, Connect("host.internal", "127.0.0.1", 5432)) == "allow"
    assert ask(text, Connect("host.internal", "::1", 5432)) == "allow"
    assert ask(text, Connect("host.internal", "127.0.0.2", 5432)) == "private address"
    assert ask(text, Connect("host.internal", "10.0.0.1", 5432)) == "private address"
    assert ask(text, Connect("host.internal", "", 80)) == "port not allowed"
    assert ask(text, Connect("other.internal", "127.0.0.1", 5432)) == "name not allowed"
    assert ask(text + "\ndeny: ['**']", Connect("host.internal", "", 5432)) == "denied by rule"
    assert ask(text + "\ndeny: [127.0.0.0/8]", Connect("host.internal", "127.0.0.1", 5432)) == "denied by rule"


def test_host_internal_by_a_port_rule() -> None:
    text = "ports: {connect: ['5432:15432']}"
    assert ask(text, NameQuery("host.internal")) == "allow"
    verdict = decide(policy(text), Connect("host.internal", "", 15432))
    assert isinstance(verdict, Allow)
    assert verdict.rule == policy(text).connect[0]
    assert ask(text, Connect("host.internal", "", 5432)) == "name not allowed"
    assert ask(text, Connect("host.internal", "", 15432, "udp")) == "name not allowed"


def test_a_rule_that_names_the_loopback_s_port_comes_before_the_port_rule() -> None:
    both = policy("allow: ['host.internal:15432']\nports: {connect: ['5432:15432']}")
    verdict = decide(both, Connect("host.internal", "", 15432))
    assert isinstance(verdict, Allow) and verdict.rule is both.allow[0]


def test_a_port_of_the_loopback_answers_for_no_other_name() -> None:
    text = "ports: {connect: ['5432:15432']}"
    for name in ("evil.example", "internal", "x.host.internal", "metadata.google.internal"):
        assert ask(text, NameQuery(name)) in ("name not allowed", "metadata address")
        assert ask(text, Connect(name, "", 15432)) in ("name not allowed", "metadata address")


def test_a_rule_for_the_loopback_without_ports_opens_nothing() -> None:
    rule = HostRule("host.internal", Origin("library", "x"), "host", "host.internal")
    assert isinstance(decide(Policy(allow=(rule,)), Connect("host.internal", "", 80)), Deny)
    assert isinstance(decide(Policy(allow=(rule,)), NameQuery("host.internal")), Deny)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1", "inspect"),
        ("/v1/", "inspect"),
        ("/v1/models", "inspect"),
        ("/v10", "path not allowed"),
        ("/v1-evil", "path not allowed"),
        ("/admin", "path not allowed"),
        # The caller forwards the canonical path; any other text was not made canonical and is refused.
        ("/v1/../admin", "request malformed"),
        ("/v1/%2e%2e/admin", "request malformed"),
        ("/v1/%252e%252e/x", "request malformed"),
        ("/v1/..%2fx", "request malformed"),
        ("/v1/..;/x", "request malformed"),
        ("/v1/messages?beta=true", "request malformed"),
        ("/v1//x", "request malformed"),
        ("v1", "request malformed"),
        ("", "request malformed"),
    ],
)
def test_path_of_a_request(path: str, answer: str) -> None:
    assert ask("allow: ['https://h/v1/']", https("GET", path)) == answer


def test_methods() -> None:
    text = "allow: [{dest: 'https://h/anything/posts/', http: [{methods: [get]}]}]"
    assert ask(text, https("GET", "/anything/posts")) == "inspect"
    assert ask(text, https("GET", "/anything/posts/on-the-money/")) == "inspect"
    assert ask(text, https("POST", "/anything/posts")) == "method not allowed"
    assert ask(text, https("GET", "/")) == "path not allowed"
    assert ask(text, https("get", "/anything/posts")) == "request malformed"
    assert ask(text, https("GE T", "/anything/posts")) == "request malformed"
    assert ask(text, https("", "/anything/posts")) == "request malformed"


def test_second_rule_for_another_port_does_not_lift_the_constraint() -> None:
    text = "allow: [{dest: 'https://h/', http: [{methods: [GET]}]}, {dest: h, ports: [22/tcp]}]"
    assert ask(text, https("GET", "/")) == "inspect"
    assert ask(text, https("DELETE", "/evil")) == "method not allowed"
    assert ask(text, https("POST", "/")) == "method not allowed"
    assert ask(text, Connect("h", "", 443)) == "inspect", "never raw TCP"
    assert ask(text, Connect("h", "", 22)) == "allow"
    assert ask(text, Connect("h", "", 80)) == "port not allowed"


def test_only_an_unconstrained_rule_with_ports_takes_a_port_from_the_constrained_ones() -> None:
    """As SSH beside HTTP rules of the same host; a port that a constrained rule names stays judged by all of them."""
    ssh = policy("allow: [{dest: h, http: [{methods: [GET]}]}, {dest: h, ports: [22, 8443]}]")
    constrained = policy(
        "allow: [{dest: h, http: [{methods: [GET]}]}, {dest: h, ports: [8443], http: [{methods: [PUT]}]}]"
    )
    for port, inspected in ((22, False), (8443, False), (443, True), (80, True), (9000, True)):
        verdict = decide(ssh, Connect("h", "", port))
        assert isinstance(verdict, Allow) and verdict.inspect == inspected, port
    verdict = decide(constrained, Connect("h", "", 8443))
    assert isinstance(verdict, Allow) and verdict.inspect
    assert verdict.rule is constrained.allow[0]
    for method in ("GET", "PUT"):
        assert isinstance(decide(constrained, https(method, "/", port=8443)), Allow)
    assert isinstance(decide(constrained, https("PUT", "/")), Deny)


def test_rules_for_the_same_port_are_alternatives() -> None:
    text = """
allow:
  - {dest: 'https://h/a', http: [{methods: [GET], paths: [x, /b]}, {methods: [POST], paths: [y]}]}
  - https://h/c
"""
    allowed = [("GET", "/a/x"), ("GET", "/b/z"), ("POST", "/a/y"), ("DELETE", "/c")]
    refused = [("GET", "/a/y"), ("POST", "/a/x"), ("POST", "/b"), ("GET", "/a"), ("GET", "/cc")]
    assert [each for each in allowed if ask(text, https(*each)) != "inspect"] == []
    assert [each for each in refused if ask(text, https(*each)) == "inspect"] == []
    assert ask(text + "  - h:443", https("DELETE", "/x")) == "inspect"
    assert ask(text + "  - h:443", Connect("h", "", 443)) == "inspect", "still read as HTTP"


def test_every_budget_of_what_admits_is_counted() -> None:
    """Also where all rules have one, and of each rule that would have admitted the request alone."""
    one = policy("allow: [{dest: h, budget: {upload: 1M}}]")
    for access in (Connect("h", "", 443), Connect("h", "", 443).replace(address="9.9.9.9"), https("GET", "/")):
        verdict = decide(one, access)
        assert isinstance(verdict, Allow) and verdict.budgets == one.allow
    two = policy(
        "allow: [{dest: 'https://h/a', budget: {upload: 1M}}, {dest: h, ports: [443], budget: {upload: 2M}},"
        " {dest: h, ports: [443]}, {dest: 'https://h/b', budget: {upload: 3M}}]"
    )
    verdict = decide(two, https("GET", "/a/x"))
    assert isinstance(verdict, Allow) and verdict.budgets == two.allow[:2]
    verdict = decide(two, https("GET", "/b"))
    assert isinstance(verdict, Allow) and verdict.budgets == (two.allow[1], two.allow[3])
    network = policy("allow: [{dest: 10.0.0.7, ports: [80], budget: {upload: 1M}}]")
    verdict = decide(network, Connect("", "10.0.0.7", 80))
    assert isinstance(verdict, Allow) and verdict.budgets == network.allow
    free = policy("allow: [h]")
    verdict = decide(free, Connect("h", "", 443))
    assert isinstance(verdict, Allow) and verdict.budgets == ()


def test_scheme_and_port_of_a_request() -> None:
    text = "allow: ['https://h/v1']"
    assert ask(text, https("GET", "/v1", scheme="http")) == "path not allowed"
    assert ask(text, https("GET", "/v1", port=8443)) == "port not allowed"
    assert ask(text, https("GET", "/v1", host="other")) == "name not allowed"


def test_methods_that_echo_or_tunnel_must_be_named() -> None:
    for method in ("TRACE", "TRACK", "CONNECT"):
        assert ask("allow: ['https://h/v1', 'h:443']", https(method, "/v1")) == "method not allowed"
        text = f"allow: [{{dest: 'https://h/v1', http: [{{methods: [{method}]}}]}}]"
        assert ask(text, https(method, "/v1")) == "inspect"


def test_denied_request() -> None:
    text = "allow: ['h:443']\ndeny: [{dest: 'https://h/admin/', http: [{methods: [POST, DELETE]}]}, 'https://h/a!b']"
    assert ask(text, Connect("h", "", 443)) == "inspect"
    assert ask(text, https("POST", "/admin/x")) == "denied by rule"
    assert ask(text, https("GET", "/admin/x")) == "inspect"
    assert ask(text, https("POST", "/adminx")) == "inspect"
    assert ask(text, https("GET", "/a%21b")) == "denied by rule", "most servers decode it"
    assert ask("allow: [h]\ndeny: ['https://h/x']", Connect("h", "", 80)) == "allow"


@pytest.mark.parametrize(
    "path", ["/admin;v=1", "/admin;v=1/x", "/admin%3Bv=1", "/a;b/../admin", "/%61dmin;", "/admin;/x;y"]
)
def test_a_deny_holds_for_a_path_with_parameters_too(path: str) -> None:
    """They are no part of the segment to some servers (RFC 3986 section 3.3)."""
    text = "allow: ['h:443']\ndeny: ['https://h/admin']"
    answer = ask(text, https("GET", path))
    assert answer == ("request malformed" if ".." in path or "%61" in path else "denied by rule")
    for other in ("/administer;v=1", "/x;admin", "/x;/y", "/;admin"):
        assert ask(text, https("GET", other)) == "inspect", other


@pytest.mark.parametrize(
    "path",
    [
        "/%20admin",
        "/admin%20",
        "/admin%E2%80%8B",
        "/%C2%ADadmin",
        "/ad%EF%BB%BFmin/x",
        "/adm%C4%B1n",
        "/%E2%80%83admin",
    ],
)
def test_a_deny_holds_for_a_path_with_what_is_not_seen_or_is_a_letter_in_upper_case(path: str) -> None:
    text = "allow: ['h:443']\ndeny: ['https://h/admin']"
    assert ask(text, https("GET", path)) == "denied by rule"
    assert ask("allow: ['h:443']\ndeny: ['https://h/other']", https("GET", path)) == "inspect", "the control"
    for other in ("/%20x", "/ad%20min", "/admin%E2%80%8Bx", "/%C4%B1admin"):
        assert ask(text, https("GET", other)) == "inspect", other


@pytest.mark.parametrize("code", ["%01", "%09", "%0A", "%0D", "%1F", "%7F", "%C2%80", "%C2%85", "%C2%9F"])
def test_no_control_character_is_in_a_path(code: str) -> None:
    """Django, Flask and Spring take ``/admin%0A`` for ``/admin``; urlsplit(3) of Python takes it out anywhere."""
    for path in (f"/admin{code}", f"/v1/..{code}/admin", f"/v1/x{code}y"):
        assert ask("allow: ['h:443']", https("GET", path)) == "request malformed"
    assert ask("allow: ['h:443']", https("GET", "/v1/x%C2%A9%20y")) == "inspect", "the control"


@pytest.mark.parametrize("mark", ["%CC%81", "%CD%84", "%EF%BE%9F"])
def test_under_a_deny_no_character_has_more_marks_than_any_language(mark: str) -> None:
    text = "allow: ['h:443']\ndeny: ['https://h/admin']"
    assert ask(text, https("GET", f"/e{mark * 30}")) == "inspect"
    assert ask(text, https("GET", f"/e{mark * 31}")) == "request malformed"
    assert ask("allow: ['h:443']", https("GET", f"/e{mark * 31}")) != "request malformed"  # the control
    assert ask(text, https("GET", "/" + "%C3%A9%E3%81%8C%EF%BE%8A%EF%BE%9F" * 40)) == "inspect", "words are let be"


@pytest.mark.parametrize(
    ("method", "port", "denied"), [("POST", 443, True), ("GET", 443, False), ("POST", 8443, False)]
)
def test_a_denied_request_is_of_its_methods_and_ports(method: str, port: int, denied: bool) -> None:
    text = "allow: [h]\ndeny: [{dest: h, ports: [443], http: [{methods: [POST]}]}]"
    assert ask(text, https(method, "/", port=port)) == ("denied by rule" if denied else "inspect")


def test_a_request_on_a_connection_that_is_denied_is_denied() -> None:
    for denied in ("h.example", "'**'", "{dest: h.example, ports: [443]}"):
        text = f"allow: ['*.example']\ndeny: [{denied}]"
        assert ask(text, https("GET", "/", host="h.example")) == "denied by rule"
    assert ask("allow: ['*.example']\ndeny: [{dest: h.example, ports: [80]}]", https("GET", "/", host="h.example")) == (
        "inspect"
    )


@pytest.mark.parametrize("method", ["", "GET /", "G\r\n", "GÉT", "G(T"])
def test_a_method_that_is_no_token_is_refused(method: str) -> None:
    assert ask("allow: [h]", https(method, "/")) == "request malformed"


def test_request_to_a_literal_address() -> None:
    text = "allow: [{dest: 'http://10.0.0.7:8080/v1', http: [{methods: [GET]}]}]"
    assert ask(text, Connect("", "10.0.0.7", 8080)) == "inspect"
    assert ask(text, https("GET", "/v1", host="10.0.0.7", port=8080, scheme="http")) == "inspect"
    assert ask(text, https("POST", "/v1", host="10.0.0.7", port=8080, scheme="http")) == "method not allowed"
    assert ask(text, https("GET", "/v1", host="10.0.0.8", port=8080, scheme="http")) == "address not allowed"
    assert ask("allow: ['**']\ndeny: [evil.example]", https("GET", "/", host="8.8.8.8")) == "address not allowed"


def test_inspect_without_constraint() -> None:
    text = "allow: [{dest: 'h:443', inspect: true}]"
    assert ask(text, Connect("h", "", 443)) == "inspect"
    assert ask(text, https("PUT", "/x")) == "inspect"


# ---------------------------------------------------------------- hints


@pytest.mark.parametrize(
    ("text", "access", "hint"),
    [
        ("", NameQuery("pypi.org"), 'allow: ["pypi.org:443"]'),
        ("", Connect("pypi.org", "", 8080), 'allow: ["pypi.org:8080"]'),
        ("", Connect("", "10.0.0.7", 5432), 'allow: ["10.0.0.7:5432"]'),
        ("", Connect("", "2001:db8::1", 443), 'allow: ["[2001:db8::1]:443"]'),
        ("allow: [8.8.8.8]", Connect("", "8.8.8.8", 53, "udp"), 'allow: ["8.8.8.8:53/udp"]'),
        ("allow: [a.com]", Connect("a.com", "", 53, "udp"), 'allow: ["a.com:53/udp"]'),
        (
            "allow: ['https://h/v1']",
            https("POST", '/v2"x'),
            'allow: [{dest: "https://h/v2\\"x", http: [{methods: ["POST"]}]}]',
        ),
        ("", PathAccess("/home/u/x"), 'mounts: [{path: "/home/u/x", mode: ro}]'),
        ("", PathAccess("/home/u/x", "write"), 'mounts: [{path: "/home/u/x", mode: rw}]'),
        ("", PathAccess("/home/u/x/.git/index.lock", "write"), 'mounts: [{path: "/home/u/x/.git", mode: rw}]'),
        ("", SocketAccess("/run/s"), 'unix_sockets: ["/run/s"]'),
    ],
)
def test_hint_is_the_line_that_allows_it(text: str, access: Any, hint: str) -> None:
    verdict = decide(policy(text), access)
    assert isinstance(verdict, Deny)
    assert verdict.hint == hint
    sources = [Source("user", "a", text), Source("project", "b", hint)]
    assert isinstance(decide(load(sources, presets={"default": ""}).policy, access), Allow)


@pytest.mark.parametrize(
    "text",
    ["a b", 'say "x"', "back\\slash", "\x01\x1b\x7f", "\x80\x9f\xa0\xad\xff", "\u0100\u200b\u202e\ud7ff\ue000\uffff",
     "\U00010000\U0001f600\U000e0001\U0010ffff", "- a: #&*!|>'%@`"],
)  # fmt: skip
def test_what_a_hint_quotes_is_that_text_again_and_printable(text: str) -> None:
    quoted = _quoted(text)
    assert quoted.isprintable()
    assert [scalar.value for scalar in yaml.parse(quoted) if isinstance(scalar, yaml.ScalarEvent)] == [text]


@pytest.mark.parametrize("text", ["\ud800", "a\udbffb", "\udfff"])
def test_what_yaml_can_not_hold_is_not_suggested(text: str) -> None:
    assert _quoted(text) == _hint("allow: [", text, "]") == ""
    assert _hint("allow: [", "h", "]") == 'allow: ["h"]'


@pytest.mark.parametrize(
    "host",
    ["2001:db8::1]", "[2001:db8::1", "[::1", "::1]", "]::1[", "[10.0.0.7]", "10.0.0.7]", "[]", "[", "1.2.3", "a1"],
)
def test_what_is_nearly_a_literal_is_none(host: str) -> None:
    assert _literal(host) is None


def test_a_literal_may_stand_in_brackets() -> None:
    assert _literal("[2001:db8::7]") == _literal("2001:db8::7") == parse_address("2001:db8::7")
    assert _literal("10.0.0.7") == parse_address("10.0.0.7")


def test_nothing_is_suggested_for_floors_and_denials() -> None:
    for text, access in [
        ("allow: [a.com]", Connect("a.com", "169.254.169.254", 80)),
        ("allow: [a.com]", Connect("a.com", "10.0.0.1", 80)),
        ("", Connect("", "169.254.169.254", 80)),
        ("", PathAccess("/", "write")),  # what would be suggested no policy takes
        ("", PathAccess("//.")),
        ("allow: [b.com]\ndeny: ['*.com.example', a.com]", Connect("a.com", "", 80)),
        ("ignore: [x]", PathAccess("x")),
        ("", NameQuery("a..b")),
    ]:
        verdict = decide(policy(text), access)
        assert isinstance(verdict, Deny)
        assert verdict.hint == ""


# ---------------------------------------------------------------- files


def test_hide_beats_readonly() -> None:
    text = "ignore: [secrets/, '*.key', '!pub.key']\nreadonly: [config/, '*.lock', secrets]"
    assert ask(text, PathAccess("a.txt", "write")) == "allow"
    assert ask(text, PathAccess("a.key")) == "hidden"
    assert ask(text, PathAccess("x/y/a.key", "write")) == "hidden"
    assert ask(text, PathAccess("pub.key")) == "allow"
    assert ask(text, PathAccess("secrets", directory=True)) == "hidden"
    assert ask(text, PathAccess("secrets/")) == "hidden"
    assert ask(text, PathAccess("secrets/pub.key")) == "hidden", "below a hidden directory nothing is shown again"
    assert ask(text, PathAccess("config/x")) == "allow"
    assert ask(text, PathAccess("config/x", "write")) == "read-only"
    assert ask(text, PathAccess("config/x.key")) == "hidden"
    assert ask(text, PathAccess("secrets")) == "allow", "a file of that name: the pattern is for directories"
    assert ask(text, PathAccess("secrets", "write")) == "read-only"
    assert ask(text, PathAccess("./a//b.lock", "write")) == "read-only"
    assert ask(text, PathAccess("../x")) == "not in the view"


def test_the_deciding_pattern_is_named() -> None:
    verdict = decide(policy("ignore:\n  - '*.key'\n  - a.key"), PathAccess("d/a.key"))
    assert isinstance(verdict, Deny)
    assert verdict.rule is not None
    assert (verdict.rule.text, str(verdict.rule.origin)) == ("a.key", "user f.yaml:3")


def test_mounts() -> None:
    text = (
        "mounts: [{path: /data}, {path: /data/out, mode: rw}, {path: /lib2, target: /opt/lib}, {path: ~/x, mode: rw}]"
    )
    assert ask(text, PathAccess("/data/a")) == "allow"
    assert ask(text, PathAccess("/data/a", "write")) == "read-only"
    assert ask(text, PathAccess("/data/out/a", "write")) == "allow"
    assert ask(text, PathAccess("/database")) == "not in the view"
    assert ask(text, PathAccess("/opt/lib/x")) == "allow"
    assert ask(text, PathAccess("/lib2/x")) == "not in the view"
    assert ask(text, PathAccess("/home/u/x", "write")) == "allow"
    assert ask(text, PathAccess("/data/../etc")) == "not in the view"


def test_the_innermost_mount_counts_and_of_equals_the_last() -> None:
    text = "mounts: [{path: /d/out, mode: rw}, {path: /d}, {path: /d/out/fixed}, {path: /e}"
    text += ", {path: /x, target: /e, mode: rw}]"
    assert ask(text, PathAccess("/d/a", "write")) == "read-only"
    assert ask(text, PathAccess("/d/out", "write")) == ask(text, PathAccess("/d//out/./a", "write")) == "allow"
    assert ask(text, PathAccess("/d/out/fixed/a", "write")) == "read-only"
    assert ask(text, PathAccess("/e/a", "write")) == "allow"


@pytest.mark.parametrize("path", ["/", "//", "/.", "/d/..", "/d/../d", "/d/a\0", "/dd", "/c"])
def test_what_no_mount_shows_is_not_in_the_view(path: str) -> None:
    text = "mounts: [{path: /d, mode: rw}]"
    for operation in ("read", "write"):
        verdict = decide(policy(text), PathAccess(path, operation))
        assert isinstance(verdict, Deny) and verdict.reason == "not in the view"
        mode = "rw" if operation == "write" else "ro"
        expected = f'mounts: [{{path: "{path}", mode: {mode}}}]' if path in ("/dd", "/c") else ""
        assert verdict.hint == expected, "no line opens the root directory, or a path that climbs"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/..", "a\0b"])
def test_a_path_that_climbs_out_of_the_workspace_is_refused(path: str) -> None:
    assert ask("", PathAccess(path)) == ask("", PathAccess(path, "write")) == "not in the view"
    assert ask("", PathAccess("a/./x", "write")) == "allow"


FILES = """
view: host
files:
  deny_read: [/srv/secret]
  allow_read: [/srv/secret/shown]
  allow_write: [/srv/app, /srv/out]
  deny_write: [/srv/app/fixed]
ignore: ["*.key"]
readonly: [docs/]
"""


@pytest.mark.parametrize(
    ("path", "read", "write"),
    [
        ("/etc/passwd", "allow", "read-only"),
        ("/srv/secret/a", "hidden", "hidden"),
        ("/srv/secret", "hidden", "hidden"),
        ("/srv/secret/shown/a", "allow", "read-only"),
        ("/srv/out/a", "allow", "allow"),
        ("/srv/out/a.key", "allow", "allow"),  # patterns speak of the workspace
        ("/srv/app", "allow", "allow"),
        ("/srv/app/a", "allow", "allow"),
        ("a", "allow", "allow"),
        ("/srv/app/fixed/a", "allow", "read-only"),
        ("fixed", "allow", "read-only"),
        ("/srv/app/a.key", "hidden", "hidden"),
        ("b/a.key", "hidden", "hidden"),
        ("/srv/app/docs/a", "allow", "read-only"),
        ("/srv/application/a.key", "allow", "read-only"),
        ("/", "allow", "read-only"),
        ("/srv/app/../srv/secret/a", "not in the view", "not in the view"),
        ("/srv/app/a\0", "not in the view", "not in the view"),
        ("..", "not in the view", "not in the view"),
    ],
)
def test_rules_over_the_host_s_tree(path: str, read: str, write: str) -> None:
    made = anchored(policy(FILES), "/srv/app")
    for operation, expected in (("read", read), ("write", write)):
        verdict = decide(made, PathAccess(path, operation))  # type: ignore[arg-type]
        assert ("allow" if isinstance(verdict, Allow) else verdict.reason) == expected
        if isinstance(verdict, Deny) and path == "/etc/passwd":
            assert verdict.hint == 'files: {allow_write: ["/etc/passwd"]}'
    without = made.replace(paths=())
    assert isinstance(decide(without, PathAccess("/srv/app/a.key")), Allow), "the control"


def test_sockets() -> None:
    assert ask("unix_sockets: [/run/s]", SocketAccess("/run/s")) == "allow"
    assert ask("unix_sockets: [/run/s]", SocketAccess("/run/s2")) == "socket not allowed"
    assert ask("unix_sockets: [/run/s]", SocketAccess("/run/s", "anything")) == "operation not allowed"
    everything = "view: host\nunix_sockets: all"
    assert ask(everything, SocketAccess("/run/s2")) == "allow"
    assert ask(everything, SocketAccess("/run/s2", "sign", ("key",))) == "socket not allowed", "by no adapter"
    refused = decide(policy(""), SocketAccess("/run/$s"))
    assert isinstance(refused, Deny) and refused.hint == 'unix_sockets: ["/run/$$s"]'


# ---------------------------------------------------------------- the function itself


def test_what_is_no_access_is_an_error_not_an_answer() -> None:
    with pytest.raises(TypeError):
        decide(Policy(), "a.com")  # type: ignore[arg-type]


def test_policies_are_kept_apart() -> None:
    policies = [policy(f"allow: [h{number}.com]") for number in range(20)]
    for _ in range(2):
        for number, each in enumerate(policies):
            assert isinstance(decide(each, NameQuery(f"h{number}.com")), Allow)
            assert isinstance(decide(each, NameQuery(f"h{number + 1}.com")), Deny)


def test_names_are_decided_without_work_that_grows_with_the_policy() -> None:
    big = policy("allow:\n" + "\n".join(f"  - h{number}.example:443" for number in range(5000)))
    small = policy("allow: [h1.example:443]")

    def seconds(each: Policy) -> float:
        decider = Decider(each)
        best = 9.0
        for _ in range(5):
            start = time.process_time()
            for _ in range(2000):
                decider.decide(NameQuery("h1.example"))
            best = min(best, time.process_time() - start)
        return best

    assert seconds(big) < seconds(small) * 5


@pytest.mark.parametrize(
    ("text", "host", "raw"),
    [
        ("allow: ['a.com:9']", "a.com", False),
        ("allow: ['tcp://a.com:9']", "a.com", True),
        ("allow: [{dest: a.com, protocol: raw}]", "a.com", True),
        ("allow: [{dest: '*.com.example', protocol: raw}, 'a.com.example:9']", "a.com.example", True),
        ("allow: ['tcp://a.com:8', a.com]", "a.com", False),
        ("allow: ['**']", "a.com", True),
        ("allow: ['**']\ndeny: [b.com]", "a.com", False),
        ("allow: ['**']\ndeny: ['b.com:443']", "a.com", True),
        ("allow: ['**', 'a.com:9']\ndeny: [b.com]", "a.com", False),
        ("allow: ['host.internal:9']", "host.internal", True),
        ("ports: {connect: [9]}", "host.internal", True),
    ],
)
def test_where_a_client_may_say_anything(text: str, host: str, raw: bool) -> None:
    policy = load([Source("user", "u", f"presets: []\n{text}")], presets={}).policy
    verdict = decide(policy, Connect(host, "", 9))
    assert isinstance(verdict, Allow) and verdict.raw is raw
