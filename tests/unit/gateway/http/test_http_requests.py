"""What is decided, what is forwarded, and what a client is told: both protocols share it."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from membrane.gateway.http.requests import (
    BAD_FRAGMENT,
    BAD_PATH,
    FLAWS,
    NO_TRAILERS,
    Admitted,
    Bound,
    Flaw,
    Gate,
    Refused,
    answer,
    content_length,
    grpc_answer,
    no_trailer,
)
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, Ask, Deny, HostRule, HttpRequest, HttpRule, Network, Origin, Policy, PortRange
from membrane.policy.reasons import REASONS, Reason

ORIGIN = Origin("command line", "command line")
NAME = "api.example.com"


def rule(*http: HttpRule, kind: str = "host", host: str = NAME, network: Network | None = None) -> HostRule:
    return HostRule(
        "rule", ORIGIN, kind, host, network, (PortRange("tcp", 443, 443),), "https", http or None, inspect=True
    )  # type: ignore[arg-type]


def gate(*http: HttpRule, bound: Bound | None = None, deny: tuple[HostRule, ...] = ()) -> Gate:
    policy = Policy(allow=(rule(*http),), deny=deny)
    return Gate(bound or Bound(NAME, 443, "https"), Decider(policy).decide)


READ = HttpRule(("GET", "HEAD", "OPTIONS"), ("/v1",))


def ask(
    gate: Gate,
    target: bytes = b"/v1/x",
    *,
    method: bytes = b"GET",
    authority: bytes = NAME.encode(),
    fields: dict[bytes, bytes] | None = None,
    body: bool = False,
    absolute: bool = True,
) -> Admitted | Refused:
    fields = fields or {}
    return gate.judge(method, target, authority, list(fields), list(fields.values()), body=body, absolute=absolute)


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        (b"/v1", b"/v1"),
        (b"/v1/models?beta=true", b"/v1/models?beta=true"),
        (b"/v1/%7euser/%2A?q=%2e%2e/..\\", b"/v1/~user/%2A?q=%2e%2e/..\\"),
        (b"/v1//a/./b/../c/", b"/v1/a/c/"),
        (b"/a/../v1/x?y=/../z", b"/v1/x?y=/../z"),
        (b"https://api.example.com/v1/x", b"/v1/x"),
        (b"HTTPS://API.example.COM:443/v1/x?y", b"/v1/x?y"),
    ],
)
def test_what_is_matched_is_what_is_forwarded(target: bytes, forwarded: bytes) -> None:
    answered = ask(gate(READ), target)
    assert isinstance(answered, Admitted)
    assert answered.target == forwarded
    assert answered.request.path.encode() == forwarded.partition(b"?")[0]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/v10", 403),
        (b"/v1-evil", 403),
        (b"/v1/../admin", 403),
        (b"/v1/%2e%2e/admin", 403),
        (b"/private?x=/../v1/y", 403),
        (b"/v1/%252e%252e/x", 400),
        (b"/v1/..%2fx", 400),
        (b"/v1/..%5cx", 400),
        (b"/v1/..;/x", 400),
        (b"/v1/a\\b", 400),
        (b"/v1/%zz", 400),
        (b"/v1/%00", 400),
        (b"/v1/../../x", 400),
        (b"/v1/x#frag", 400),
        (b"/v1/x?y#/../v1", 400),
        (b"/v1/\xc3\xa9", 400),
        (b"/v1/x?\xff", 400),
        (b"/v1/x? ", 400),
        (b"*", 400),
        (b"v1/x", 400),
        (b"", 400),
        (b"//evil.example/v1/x", 403),
        (b"http://api.example.com/v1/x", 400),
        (b"https://evil.example/v1/x", 400),
        (b"https://api.example.com@evil.example/v1/x", 400),
        (b"https://user@api.example.com/v1/x", 400),
        (b"https://api.example.com:8443/v1/x", 400),
        (b"file:///v1/x", 400),
        (b"https://api.example.com#/v1/x", 400),
    ],
)
def test_a_target_outside_of_the_rule_is_refused(target: bytes, status: int) -> None:
    answered = ask(gate(READ), target)
    assert isinstance(answered, Refused)
    assert answered.status == status
    if b"#" in target and target.startswith(b"/"):
        assert answered.verdict.hint == BAD_FRAGMENT
    if status == 400:
        assert answered.verdict.hint in FLAWS or answered.verdict.hint.startswith(BAD_PATH)


def test_an_absolute_target_is_for_http1_only() -> None:
    answered = ask(gate(READ), b"https://api.example.com/v1/x", absolute=False)
    assert isinstance(answered, Refused) and answered.status == 400


@pytest.mark.parametrize(
    ("authority", "forwarded"),
    [
        (b"api.example.com", b"api.example.com"),
        (b"API.Example.Com", b"api.example.com"),
        (b"api.example.com.", b"api.example.com"),
        (b"api.example.com:443", b"api.example.com:443"),
        (b"api.example.com:0443", b"api.example.com:443"),
    ],
)
def test_the_authority_is_the_bound_name(authority: bytes, forwarded: bytes) -> None:
    answered = ask(gate(READ), authority=authority)
    assert isinstance(answered, Admitted) and answered.authority == forwarded


@pytest.mark.parametrize(
    ("authority", "status"),
    [
        (b"evil.example", 403),
        (b"api.example.com.evil.example", 403),
        (b"xapi.example.com", 403),
        (b"api.example.com:80", 403),
        (b"198.51.100.1", 403),
        (b"[2001:db8::1]", 403),
        (b"", 400),
        (b"api.example.com:", 400),
        (b"api.example.com:99999999", 400),
        (b"user@api.example.com", 400),
        (b"api.example.com/x", 400),
        (b"api.example.com,evil.example", 400),
        (b"api.example.com evil", 400),
        (b"api_example.com\x00", 400),
        (b"127.1", 400),
        (b"\xe2\x80\xa5", 400),
        (b"[::1%25lo]", 400),
    ],
)
def test_another_authority_is_refused(authority: bytes, status: int) -> None:
    answered = ask(gate(READ), authority=authority)
    assert isinstance(answered, Refused)
    assert answered.status == status


def test_a_literal_address_takes_the_names_that_its_connection_allows() -> None:
    network = Network(4, 0xC6336401, 32)
    policy = Policy(allow=(rule(READ, kind="network", host="", network=network),))
    decide = Decider(policy).decide
    with_sni = Gate(Bound("198.51.100.1", 443, "https", authority="shop.example"), decide)
    for authority in (b"198.51.100.1", b"shop.example", b"198.51.100.1:443"):
        answered = ask(with_sni, authority=authority)
        assert isinstance(answered, Admitted) and answered.request.host == "198.51.100.1"
    assert isinstance(ask(with_sni, authority=b"other.example"), Refused)
    without = Gate(Bound("198.51.100.1", 443, "https", any_authority=True), decide)
    assert isinstance(ask(without, authority=b"other.example"), Admitted)
    assert isinstance(ask(without, authority=b"other..example"), Refused)
    six = Gate(Bound("2001:db8::1", 443, "https"), lambda _: Allow(None, "yes"))
    answered = ask(six, authority=b"[2001:0db8:0::1]:443")
    assert isinstance(answered, Admitted) and answered.authority == b"[2001:db8::1]:443"


@pytest.mark.parametrize("method", [b"get", b"Get", b"", b"GE T", b"G\x00T", b"A" * 33, b"\xff"])
def test_methods_are_exact_tokens(method: bytes) -> None:
    answered = ask(gate(), method=method)
    assert isinstance(answered, Refused) and answered.status == 400


@pytest.mark.parametrize("method", [b"CONNECT", b"TRACE", b"TRACK"])
def test_methods_that_tunnel_or_echo_are_refused_even_where_a_rule_names_them(method: bytes) -> None:
    answered = ask(gate(HttpRule((method.decode(),), ())), method=method)
    assert isinstance(answered, Refused)
    assert (answered.status, answered.verdict.reason) == (403, "method not allowed")


@pytest.mark.parametrize("name", [b"x-http-method-override", b"x-http-method", b"x-method-override"])
def test_an_overridden_method_must_be_allowed_too(name: bytes) -> None:
    scoped = gate(HttpRule(("POST",), ("/v1",)))
    assert isinstance(ask(scoped, method=b"POST"), Admitted)
    assert isinstance(ask(scoped, method=b"POST", fields={name: b"post"}), Admitted)
    refused = ask(scoped, method=b"POST", fields={name: b"DELETE"})
    assert isinstance(refused, Refused)
    assert (refused.status, refused.verdict.reason) == (403, "method not allowed")
    malformed = ask(scoped, method=b"POST", fields={name: b"POST, DELETE"})
    assert isinstance(malformed, Refused) and malformed.status == 400
    assert isinstance(ask(gate(), method=b"POST", fields={name: b"DELETE"}), Admitted)


def test_an_overridden_method_must_pass_a_deny_rule_too() -> None:
    no_delete = gate(deny=(rule(HttpRule(("DELETE",), ("/",))),))
    assert isinstance(ask(no_delete, method=b"POST"), Admitted)
    refused = ask(no_delete, method=b"POST", fields={b"x-http-method-override": b"DELETE"})
    assert isinstance(refused, Refused) and refused.verdict.reason == "denied by rule"


@pytest.mark.parametrize(
    "query",
    [b"_method=DELETE", b"a=1&_method=delete", b"a;_method=DELETE", b"_method=POST&_method=PUT", b"%5fmethod=%44ELETE"],
)
def test_a_method_in_the_query_must_be_allowed_too(query: bytes) -> None:
    scoped = gate(HttpRule(("POST",), ("/v1",)))
    assert isinstance(ask(scoped, b"/v1/x?_method=POST&my_method=DELETE", method=b"POST"), Admitted)
    refused = ask(scoped, b"/v1/x?" + query, method=b"POST")
    assert isinstance(refused, Refused) and refused.status == 403


@pytest.mark.parametrize("name", [b"x-original-url", b"x-rewrite-url"])
def test_an_overridden_path_must_be_allowed_too(name: bytes) -> None:
    assert isinstance(ask(gate(READ), fields={name: b"/v1/y?z"}), Admitted)
    for value, status in ((b"/admin", 403), (b"/v1/../admin", 403), (b"/v1/..%2fadmin", 400), (b"admin", 400)):
        refused = ask(gate(READ), fields={name: value})
        assert isinstance(refused, Refused) and refused.status == status


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_a_body_where_none_belongs_is_judged_as_a_post(method: bytes) -> None:
    assert isinstance(ask(gate(READ), method=method), Admitted)
    refused = ask(gate(READ), method=method, body=True)
    assert isinstance(refused, Refused) and refused.verdict.reason == "method not allowed"
    both = gate(READ, HttpRule(("POST",), ("/v1",)))
    assert isinstance(ask(both, method=method, body=True), Admitted)
    assert isinstance(ask(gate(), method=method, body=True), Admitted)


def test_only_allow_is_a_yes() -> None:
    for verdict, status in (
        (Deny(None, REASONS["path not allowed"]), 403),
        (Deny(None, REASONS["request malformed"]), 400),
        (Deny(None, REASONS["limit reached"]), 429),
        (Ask(Reason("nobody knows")), 403),
    ):
        answered = ask(Gate(Bound(NAME, 443, "https"), lambda _, verdict=verdict: verdict))  # type: ignore[misc]
        assert isinstance(answered, Refused) and answered.status == status


def test_an_exception_of_the_policy_is_not_swallowed() -> None:
    def decide(_: HttpRequest) -> Allow:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError):
        ask(Gate(Bound(NAME, 443, "https"), decide))


@pytest.mark.parametrize(
    "values", [[b"5", b"5"], [b"5, 5"], [b"+5"], [b"-1"], [b""], [b"0x5"], [b"05"], [b"5 5"], [b"1" * 19], [b"\xb2"]]
)
def test_a_length_has_one_reading(values: list[bytes]) -> None:
    with pytest.raises(Flaw):
        content_length(values)
    assert (content_length([]), content_length([b"0"]), content_length([b"123"])) == (-1, 0, 123)


def test_the_answer_says_what_was_refused_and_what_would_allow_it() -> None:
    refused = ask(gate(READ), b"/admin?token=1", method=b"POST")
    assert isinstance(refused, Refused)
    fields, body = answer(refused)
    told = json.loads(body)
    hint = told.pop("hint")
    assert told == {
        "error": "blocked by membrane",
        "host": NAME,
        "method": "POST",
        "path": "/admin",
        "reason": "path not allowed",
    }
    assert "https://api.example.com/admin" in hint
    assert dict(fields) == {
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
        b"x-membrane-verdict": b"deny",
    }


def test_a_failure_is_not_called_a_refusal() -> None:
    failed = gate().unreachable(HttpRequest(NAME, 443, "https", "GET", "/"), "certificate has expired")
    fields, body = answer(failed)
    assert json.loads(body)["error"] == "membrane could not connect"
    assert body.endswith(b"}\n")  # what a terminal shows next begins on a line of its own
    assert json.loads(body)["reason"] == "certificate has expired"
    assert b"x-membrane-verdict" not in dict(fields)


@pytest.mark.parametrize(
    ("status", "code"), [(403, b"7"), (429, b"8"), (502, b"14"), (400, b"13")], ids=["denied", "limit", "down", "bad"]
)
def test_a_grpc_call_fails_with_a_status_and_the_reason(status: int, code: bytes) -> None:
    request = HttpRequest(NAME, 443, "https", "POST", "/pkg.Svc/Call")
    fields = dict(grpc_answer(Refused(status, Deny(None, Reason("grund: 100 % ü"), "x\r\ny"), request)))
    assert fields[b"grpc-status"] == code
    assert fields[b"grpc-message"].isascii() and b"\r" not in fields[b"grpc-message"]
    assert "grund: 100 % ü (x\r\ny)" in unquote(fields[b"grpc-message"].decode())


def test_nothing_that_frames_or_routes_may_be_a_trailer() -> None:
    assert {
        b"content-length",
        b"transfer-encoding",
        b"host",
        b"authorization",
    } <= NO_TRAILERS
    assert all(map(no_trailer, [*NO_TRAILERS, b"x-http-method-override", b"x.original_url", b"content.length"]))
    assert not no_trailer(b"grpc-status")


@pytest.mark.parametrize(
    ("target", "admitted"),
    [
        (b"/me/mine.git/info/refs?service=git-receive-pack", True),
        (b"/you/yours.git/info/refs?service=git-upload-pack", True),
        (b"/you/yours.git/info/refs", True),
        (b"/you/yours.git/info/refs?service=git-receive-pack", False),
        (b"/you/yours.git/refs?service=git-receive-pack", True),
    ],
)
def test_the_question_before_a_push_is_judged_as_the_push(target: bytes, admitted: bool) -> None:
    rule = host_rule(
        "https://git.test",
        Origin("library", "test"),
        http=((("GET",), ()), (("POST",), ("me/mine.git/git-receive-pack",))),
    )
    gate = Gate(Bound("git.test", 443, "https"), Decider(Policy(allow=(rule,))).decide)
    judged = gate.judge(b"GET", target, b"git.test", [], [], body=False)
    assert isinstance(judged, Admitted) is admitted
    if isinstance(judged, Refused):
        assert judged.verdict.reason == "method not allowed"
        fields, body = answer(judged)
        assert dict(fields)[b"content-type"] == b"text/plain"
        first, hint, _ = body.decode().split("\n")
        assert first == "blocked by membrane: method not allowed"
        assert hint == 'allow: [{dest: "https://git.test/you/yours.git/git-receive-pack", http: [{methods: ["POST"]}]}]'
