"""Credentials in files and variables: what is found (vectors of sandbox-runtime), and what stands for what."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.errors import PolicyError
from membrane.gateway.http.credentials import Destination, Secret, Vault
from membrane.gateway.http.requests import Bound
from membrane.gateway.http.spellings import Scrubber, Spellings
from membrane.plan.model import Pin
from membrane.policy import masking
from membrane.policy.model import Deny, HttpRequest, Malformed, MaskRule, Origin, Policy
from membrane.run import masks

HERE = Origin("user", "settings")
ONE, TWO = "ghp_aaaa1111bbbb2222cccc", "ghp_dddd3333eeee4444ffff"


def found(text: str, pattern: str, **more: bool) -> tuple[str | None, list[str]]:
    """The text with ``<n>`` for the n-th value, and the values."""
    values: list[str] = []

    def mint(value: str) -> str:
        values.append(value)
        return f"<{len(values)}>"

    return masking.substitute(text, masking.compiled(pattern), mint, **more), values


@pytest.mark.parametrize(
    ("text", "pattern", "shown", "values"),
    [
        ("key: abc", r"key: (\w+)", "key: <1>", ["abc"]),
        ("key: abc\nkey: def", r"key: (\w+)", "key: <1>\nkey: <2>", ["abc", "def"]),
        ("key: abc\nkey: abc # abc", r"key: (\w+)", "key: <1>\nkey: <1> # abc", ["abc"]),
        ("key: \nkey: def", r"key: (\w*)", "key: \nkey: <1>", ["def"]),
        ("a=abc\nb=abcdef", r"=(\w+)", "a=<1>\nb=<2>", ["abc", "abcdef"]),
        ("nothing", r"key: (\w+)", None, []),
        ("x=1;y=2", r"(?<name>\w)=(?:\d)", "<1>=1;<2>=2", ["x", "y"]),
        ("a a", r"(?<q>a) \k<q>", "<1> a", ["a"]),
        ("tail\n", r"(tail)$", None, []),
        ("cost $5", r"([$]5)", "cost <1>", ["$5"]),
    ],
    ids=[
        "one",
        "many",
        "repeated",
        "empty",
        "substring",
        "none",
        "named group",
        "named back reference",
        "end",
        "in a set",
    ],
)
def test_extract(text: str, pattern: str, shown: str | None, values: list[str]) -> None:
    assert found(text, pattern) == (shown, values)


def test_extract_with_duplicates_takes_the_longer_first() -> None:
    text = "a=abc\nb=abcdef\n# abcdef abc xabcx"
    shown, values = found(text, r"=(\w+)", duplicates=True)
    assert shown == "a=<1>\nb=<2>\n# <2> <1> x<1>x" and values == ["abc", "abcdef"]


def test_extract_refuses_a_match_without_its_group() -> None:
    with pytest.raises(Malformed, match="group 1"):
        found("token: ", r"token:(?: (\S+))?")


@pytest.mark.parametrize("pattern", ["(", "abc", r"(?P<a>x)(?P<a>y)", "[", r"\k<no>(a)"])
def test_extract_is_an_expression_with_a_group(pattern: str) -> None:
    with pytest.raises(Malformed):
        masking.compiled(pattern)


@given(st.text(), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_only_spans_of_values_change(text: str, values: list[str], duplicates: bool) -> None:
    whole = text.join(f"<{value}>" for value in values)
    shown = masking.substitute(whole, masking.compiled("<([abc]+)>"), lambda v: "Z" * len(v), duplicates=duplicates)
    assert shown is not None and len(shown) == len(whole)
    assert all(a == b or b == "Z" for a, b in zip(whole, shown, strict=True))
    assert not any(f"<{value}>" in shown for value in values)


# ---------------------------------------------------------------- tokens


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(claims: dict[str, Any], header: bytes = b'{"alg":"HS256"}') -> str:
    return ".".join((part(header), part(json.dumps(claims).encode()), part(bytes(range(32)))))


def claims_of(token: str) -> dict[str, Any]:
    text = masking.payload_of(token)
    assert text is not None
    out = json.loads(text)
    assert isinstance(out, dict)
    return out


@pytest.mark.parametrize(
    "token",
    [
        "a.b.c",
        "eyJ.eyJ.x",
        jwt({})[:-44],
        jwt({}, b"{}"),
        jwt({}, b"[1]"),
        "eyJhbGciOiJIUzI1NiJ9.WzFd.eHh4",
        "eyJ..",
        "",
    ],
)
def test_what_is_no_token(token: str) -> None:
    assert masking.payload_of(token) is None


@pytest.mark.parametrize("claims", [{}, {"a": 1}, {"sub": "joe", "exp": 17}, {"x": "y" * 500}])
def test_a_fake_token_is_one_of_the_same_length_and_says_nothing(claims: dict[str, Any]) -> None:
    real = jwt(claims)
    fake = masking.fake_token(real, lambda text: "A" * len(text))
    assert len(fake) == len(real) and fake.split(".")[0] == real.split(".")[0]
    assert set(claims_of(fake)) <= {"exp"} and claims_of(fake).get("exp", 4102444800) == 4102444800


def test_claims_are_replaced_in_their_place() -> None:
    real = jwt({"iss": "i", "key": ONE, "n": {"key": "inner"}, "number": 1, "other": TWO})
    made = masking.mask_claims(real, ["key", "number", "absent"], lambda v: "x" * len(v), lambda v: "y" * len(v))
    assert made is not None
    fake, replaced = made
    assert len(fake) == len(real) and replaced == {ONE: "x" * len(ONE)}
    assert claims_of(fake) == {"iss": "i", "key": "x" * len(ONE), "n": {"key": "inner"}, "number": 1, "other": TWO}
    assert masking.mask_claims(real, ["absent", "number"], str, str) is None
    with pytest.raises(ValueError, match="escapes"):
        masking.mask_claims(jwt({"key": 'a"b'}), ["key"], str, str)


# ---------------------------------------------------------------- gathering


def gather(rules: list[MaskRule], environ: dict[str, str] | None = None) -> tuple[masks.Masked, list[list[Any]]]:
    rows: list[list[Any]] = []
    return masks.gather(Policy(masks=tuple(rules)), environ or {}, rows), rows


def rule(path: Path | str, *to: str, **more: Any) -> MaskRule:
    return MaskRule(f"file:{path}", to or ("example.com",), HERE, **more)


def test_one_placeholder_for_one_value_whatever_finds_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{ONE}\n")
    (tmp_path / "b").write_text(f"x = {ONE}; y = {TWO}")
    made, rows = gather(
        [
            rule(tmp_path / "a", "a.test"),
            rule(tmp_path / "b", "b.test", extract=r"= (\w+)"),
            MaskRule("env:C", ("*.c.test",), HERE, r":(\w+)"),
        ],
        {"C": f"u:{TWO}"},
    )
    assert [(row[0], row[1].decode()) for row in rows] == [
        (f"file:{tmp_path}/a#0", ONE),
        (f"file:{tmp_path}/b#1", TWO),
    ]
    one, two = (row[2].decode() for row in rows)
    assert made.copies == {f"{tmp_path}/a": f"{one}\n".encode(), f"{tmp_path}/b": f"x = {one}; y = {two}".encode()}
    assert made.environment == {"C": f"u:{two}"}
    assert [[host for _scheme, host, *_ in row[4]] for row in rows] == [["a.test", "b.test"], ["b.test", "*.c.test"]]


def test_two_rules_about_one_file_both_hold(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(f"one = {ONE}\ntwo = {TWO}\n")
    made, _rows = gather([rule(path, extract=r"one = (\w+)"), rule(path, extract=r"two = (\w+)")])
    assert ONE not in str(made.copies) and TWO not in str(made.copies)


@pytest.mark.parametrize("what", ["deny", "warn", "error"])
def test_nothing_found(tmp_path: Path, what: Any) -> None:
    path = tmp_path / "a"
    path.write_text("nothing")
    rules = [rule(path, extract="key: (x+)", unmatched=what)]
    if what == "error":
        with pytest.raises(PolicyError, match="nothing in it is found"):
            gather(rules)
        return
    made, rows = gather(rules)
    assert made.hidden == ([str(path)] if what == "deny" else []) and made.copies == {} and rows == []


def test_what_does_not_exist_is_held_for_later(tmp_path: Path) -> None:
    made, rows = gather([rule(tmp_path / "absent")])
    assert made.paths == [f"{tmp_path}/absent"] and not rows and not made.operations()


def test_what_is_no_file_or_too_large_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="not a file"):
        gather([rule(tmp_path)])
    (tmp_path / "large").write_bytes(b"x" * (1 << 20) + b"x")
    with pytest.raises(PolicyError, match="larger"):
        gather([rule(tmp_path / "large")])
    (tmp_path / "link").symlink_to("large")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyError, match="not a file"):
        gather([rule(tmp_path / "pipe")])


def test_a_link_that_the_command_can_make_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "real").write_text(ONE)
    (tmp_path / "tree" / "link").symlink_to("../real")
    (tmp_path / "link").symlink_to("real")
    rows: list[list[Any]] = []
    policy = Policy(masks=(rule(tmp_path / "tree" / "link"),))
    assert list(masks.gather(policy, {}, rows).copies) == [f"{tmp_path}/real"]  # nobody inside can make it
    with pytest.raises(PolicyError, match="which the command can make"):
        masks.gather(policy, {}, rows, [f"{tmp_path}/tree"])
    made = masks.gather(Policy(masks=(rule(tmp_path / "link"),)), {}, rows, [f"{tmp_path}/tree"])
    assert list(made.copies) == [f"{tmp_path}/real"]


def test_what_is_above_a_copy_is_pinned_where_the_command_could_move_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "token").write_text(ONE)
    policy = Policy(masks=(rule(tmp_path / "a" / "b" / "token"),))
    for root, pinned in (("", ["a", "a/b"]), ("/a", ["a/b"]), ("/a/b", []), ("/other", [])):
        made = masks.gather(policy, {}, [], [f"{tmp_path}{root}"])
        found = [op.target for op in made.operations() if isinstance(op, Pin)]
        assert found == [f"{tmp_path}/{name}" for name in pinned], root
    assert [type(op).__name__ for op in masks.gather(policy, {}, [], ["/"]).operations()][-1] == "Copy"


def test_octets_that_are_no_text_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xff\xfe key=" + ONE.encode() + b"\x00\xff")
    made, rows = gather([rule(path, extract=r"key=(\w+)")])
    assert made.copies[str(path)] == b"\xff\xfe key=" + rows[0][2] + b"\x00\xff"


def test_a_value_is_in_no_message(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("two words")
    with pytest.raises(PolicyError) as caught:
        gather([rule(path)])
    assert "two words" not in str(caught.value) + "".join(caught.value.lines())


# ---------------------------------------------------------------- in requests

BOUND = Bound("api.example.com", 443, "https")
ASKED = HttpRequest("api.example.com", 443, "https", "GET", "/")
SHOWN, SHOWN_TWO = b"ghp_zzzz9999yyyy8888xxxx", b"ghp_wwww7777vvvv6666uuuu"


def held(value: str, shown: bytes, host: str) -> Secret:
    return Secret("S", value.encode(), shown, "*", [Destination("https", host, 443)])


def test_mixed_headers_swap_individually() -> None:
    vault = Vault([held(ONE, SHOWN, "*.example.com"), held(TWO, SHOWN_TWO, "api.example.com")], BOUND)
    names = [b"x-one-key", b"x_two_token", b"cookie", b"authorization"]
    basic = b"Basic " + base64.b64encode(b"u:" + SHOWN)
    applied = vault.apply([ASKED], b"/", names, [SHOWN, SHOWN_TWO, SHOWN + b" " + SHOWN_TWO, basic])
    one, two = ONE.encode(), TWO.encode()
    wanted = b"Basic " + base64.b64encode(b"u:" + one)
    assert applied == (b"/", [one, two, one + b" " + two, wanted])


@pytest.mark.parametrize("host", ["example.com", "*.other.test", "other.test", "*.api.example.com", "*.xample.com"])
def test_swapped_at_its_hosts_only(host: str) -> None:
    vault = Vault([held(ONE, SHOWN, host)], BOUND)
    refused = vault.apply([ASKED], b"/", [b"x-key"], [SHOWN])
    assert isinstance(refused, Deny) and not vault.scrubs
    assert not isinstance(
        Vault([held(ONE, SHOWN, "*.example.com")], BOUND).apply([ASKED], b"/", [b"x-key"], [SHOWN]), Deny
    )


PUBLISHED = [
    b"user-agent", b"referer", b"x-amz-meta-a", b"x_goog_meta_a", b"content-type", b"content_type", b"user_agent",
    b"cache-control", b"expires", b"content-encoding", b"content-disposition", b"x-amz-website-redirect-location",
    b"x-ms-blob-cache-control", b"x-ms-blob-content-type", b"x-ms-tags", b"x-amz-tagging", b"x-goog-custom-time",
    b"x-amz-meta-api-key", b"x-amz-meta_token", b"x-bz-info-token", b"x.amz.meta.token", b"x-object-meta-key",
    b"surrogate-key", b"idempotency-key", b"sec-websocket-key", b"x-ms-blob-token", b"link", b"origin", b"via", b"x",
    b"x-any",
]  # fmt: skip
CARRYING = [
    b"authorization", b"cookie", b"x-api-key", b"x_api_key", b"api-key", b"private-token", b"x-amz-security-token",
    b"x-vault-token", b"x-goog-api-key", b"x-auth-token", b"ocp-apim-subscription-key", b"x-shopify-access-token",
    b"x-registry-auth", b"x-csrf-token", b"client-secret",
]  # fmt: skip


@pytest.mark.parametrize("name", CARRYING)
def test_a_field_that_carries_credentials_takes_one(name: bytes) -> None:
    vault = Vault([held(ONE, SHOWN, "api.example.com")], BOUND)
    assert vault.apply([ASKED], b"/", [name], [SHOWN]) == (b"/", [ONE.encode()])


def test_a_field_that_the_rule_names_takes_one_as_well() -> None:
    """The refusal says how."""
    refused = Vault([held(ONE, SHOWN, "api.example.com")], BOUND).apply([ASKED], b"/", [b"x-odd"], [SHOWN])
    assert isinstance(refused, Deny) and 'header: "* x-odd" in its rule' in refused.hint
    to = [Destination("https", "api.example.com", 443)]
    vault = Vault([Secret("S", ONE.encode(), SHOWN, "* x-odd", to)], BOUND)
    assert vault.apply([ASKED], b"/", [b"x-odd", b"x-key"], [SHOWN, SHOWN]) == (b"/", [ONE.encode()] * 2)
    refused = vault.apply([ASKED], b"/", [b"expires"], [SHOWN])
    assert isinstance(refused, Deny) and 'header: "* x-odd expires"' in refused.hint


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_field_that_is_published_takes_none(name: bytes) -> None:
    vault = Vault([held(ONE, SHOWN, "api.example.com")], BOUND)
    assert isinstance(vault.apply([ASKED], b"/", [name], [SHOWN]), Deny)
    assert isinstance(vault.apply([ASKED], b"/", [b"x-key", name], [SHOWN, SHOWN]), Deny)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_a_value_within_another_is_scrubbed_with_it(step: int) -> None:
    """Also where the stream is cut behind the shorter one, which the longer one begins with."""
    pairs = [(b"AAAABBBB", b"11112222"), (b"AAAABBBBCCCC", b"333344445555")]
    text = b"x AAAABBBBCCCC AAAABBBB AAAABBBBCC AAAABBBB"
    scrubber = Scrubber(Spellings(pairs))
    out = b"".join(scrubber.feed(text[at : at + step]) for at in range(0, len(text), step)) + scrubber.flush()
    assert out == b"x 333344445555 11112222 11112222CC 11112222"
