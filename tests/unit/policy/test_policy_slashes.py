"""Encoded slashes: one segment to some servers, two to others; they pass where a rule spells them, and nowhere else."""

from __future__ import annotations

import pytest

from membrane.gateway.http.requests import Admitted, Bound, Gate, Refused
from membrane.policy.decide import Decider
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, HttpRequest
from membrane.policy.url_paths import MalformedPath, canonical_path, canonical_path_pattern, path_matcher


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("/@a%2fb", "/@a%2Fb"),
        ("/a%2Fb/c", "/a%2Fb/c"),
        ("//x/../a%2Fb/./c", "/a%2Fb/c"),
        ("/a%2f.git", "/a%2F.git"),
    ],
)
def test_an_encoded_slash_is_kept_where_it_may_be(raw: str, canonical: str) -> None:
    assert canonical_path(raw, slashes=True) == canonical
    assert canonical_path(canonical, slashes=True) == canonical
    with pytest.raises(MalformedPath, match="an encoded slash"):
        canonical_path(raw)


@pytest.mark.parametrize(
    "raw",
    ["/a/..%2fb", "/a%2f..%2fb", "/a%2f%2e%2e/b", "/a%2f.%2fb", "/a%2f/b", "/%2fa", "/a/%2fb", "/a%2f%2fb", "/a%2f",
     "/a%2f..", "/a%252fb", "/a%2f%5cb", "/a%2f%00", "/a%2f\\b"],
)  # fmt: skip
def test_a_slash_that_could_hide_a_dot_segment_or_an_empty_one_is_not(raw: str) -> None:
    with pytest.raises(MalformedPath):
        canonical_path(raw, slashes=True)


@pytest.mark.parametrize(
    ("pattern", "admitted", "refused"),
    [
        ("/@*%2f*", ["/@a%2Fb", "/@a%2Fb/1.0"], ["/@a/b", "/@a%2Fb%2Fc", "/@a", "/x%2Fb", "/@a%2Fb/c%2Fd"]),
        ("/p/g%2Fp", ["/p/g%2Fp", "/p/g%2Fp/x"], ["/p/g/p", "/p/g%2Fp%2Fx", "/p/g%2Fpx", "/p/g%2Fp/x%2Fy"]),
        ("/p", ["/p", "/p/a"], ["/p/a%2Fb", "/p%2Fa"]),
        ("/p/*", ["/p/a"], ["/p/a%2Fb"]),
        ("/**/x", ["/a/b/x"], ["/a%2Fb/x"]),
        ("/", ["/", "/a"], ["/a%2Fb"]),
    ],
)
def test_a_pattern_admits_as_many_as_it_has(pattern: str, admitted: list[str], refused: list[str]) -> None:
    admits = path_matcher(canonical_path_pattern(pattern))
    assert [path for path in admitted + refused if admits(path)] == admitted


POLICY = """
presets: []
allow:
  - {dest: "https://a.test", http: [{methods: [GET]}, {methods: [GET, PUT], paths: ["/@*%2F*"]}]}
  - https://b.test/x/
  - {dest: "https://c.test", inspect: true}
deny:
  - https://a.test/@evil
"""


@pytest.mark.parametrize(
    ("host", "method", "path", "status"),
    [
        ("a.test", "GET", "/any/path", 0),
        ("a.test", "GET", "/@a%2fb", 0),
        ("a.test", "PUT", "/@a%2fb", 0),
        ("a.test", "DELETE", "/@a%2fb", 403),
        ("a.test", "GET", "/a%2fb", 400),
        ("a.test", "GET", "/@evil%2fb", 403),  # the deny holds for what the server may read
        ("b.test", "GET", "/x/y", 0),
        ("b.test", "GET", "/x/y%2fz", 400),
        ("c.test", "GET", "/x", 0),
        ("c.test", "GET", "/x%2fy", 400),
    ],
)
def test_only_a_rule_that_spells_it_lets_it_pass(host: str, method: str, path: str, status: int) -> None:
    decider = Decider(load([Source("user", "u", POLICY)], presets={}).policy)
    gate = Gate(Bound(host, 443, "https"), decider.decide)
    answer = gate.judge(method.encode(), path.encode(), host.encode(), [], [], body=False)
    if status:
        assert isinstance(answer, Refused) and answer.status == status, answer
    else:
        assert isinstance(answer, Admitted)
        assert answer.target == path.replace("%2f", "%2F").encode()
        assert isinstance(decider.decide(HttpRequest(host, 443, "https", method, answer.target.decode())), Allow)


def test_the_hint_is_the_rule_that_spells_it() -> None:
    decider = Decider(load([Source("user", "u", POLICY)], presets={}).policy)
    gate = Gate(Bound("c.test", 443, "https"), decider.decide)
    answer = gate.judge(b"GET", b"/@a%2fb", b"c.test", [], [], body=False)
    assert isinstance(answer, Refused)
    cause, _, rule = answer.verdict.hint.partition("; ")
    assert cause == "path: it contains an encoded slash"
    decider = Decider(load([Source("user", "u", f"presets: []\n{rule}\n")], presets={}).policy)
    assert isinstance(decider.decide(HttpRequest("c.test", 443, "https", "GET", "/@a%2Fb")), Allow)
