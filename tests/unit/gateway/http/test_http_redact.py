"""What a record may hold of queries and header fields."""

from __future__ import annotations

import base64
import re
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membrane.events import AccessDenied
from membrane.gateway.event_queue import EventQueue
from membrane.gateway.http.credentials import PUBLIC_PREFIXES, Secret
from membrane.gateway.http.redact import (
    LONGEST_RECORDED,
    MOST_RECORDED,
    REDACTED,
    Redactor,
    redact_fields,
    redact_path,
    redact_query,
)
from membrane.gateway.messages import Failed

TOKEN = "ghp_" + "A1b2" * 9
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXRoYXQtaXMtbG9uZw"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ""),
        ("?", "?"),
        ("?page=2&sort=name", "?page=2&sort=name"),
        ("?access_token=x&page=2", f"?access_token={REDACTED}&page=2"),
        ("?page=2;API-Key=x", f"?page=2;API-Key={REDACTED}"),
        ("?X-Amz-Signature=abc&X-Amz-Date=1", f"?X-Amz-Signature={REDACTED}&X-Amz-Date=1"),
        ("?p%61ssword=x", f"?p%61ssword={REDACTED}"),
        ("?code=abc&state=def", f"?code={REDACTED}&state={REDACTED}"),
        (f"?q={TOKEN}", f"?q={REDACTED}"),
        (f"?q=%67hp_{TOKEN[4:]}", f"?q={REDACTED}"),
        (f"?q={JWT}", f"?q={REDACTED}"),
        (f"?{TOKEN}", f"?{REDACTED}"),
        ("?next=https%3A%2F%2Fu%3Ap%40h%2F", f"?next={REDACTED}"),
        ("?next=https%3A%2F%2Fh%2Fa", "?next=https%3A%2F%2Fh%2Fa"),
        ("?keyboard=us&monkey=1", "?keyboard=us&monkey=1"),
    ],
)
def test_queries(query: str, shown: str) -> None:
    assert redact_query(query) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("Accept", "text/html, */*;q=0.8", "text/html, */*;q=0.8"),
        ("Authorization", "Bearer abc", f"Bearer {REDACTED}"),
        ("authorization", "abc def", REDACTED),
        ("Proxy-Authorization", "Basic abc", f"Basic {REDACTED}"),
        ("Cookie", "a=b; c=d", REDACTED),
        ("set-cookie", "a=b; Path=/", REDACTED),
        ("x-api-key", "abc", REDACTED),
        ("X-Goog-Api-Key", "abc", REDACTED),
        ("PRIVATE-TOKEN", "abc", REDACTED),
        ("x-csrf", "abc", REDACTED),
        ("www-authenticate", 'Bearer realm="x"', 'Bearer realm="x"'),
        ("x-odd", f"use {TOKEN}, please", f"use {REDACTED} please"),
        ("x-odd", JWT, REDACTED),
        ("Location", "https://u:p@h/a?token=x&b=1", f"https://{REDACTED}@h/a?token={REDACTED}&b=1"),
        ("Referer", "https://h/a#access_token=x", f"https://h/a#access_token={REDACTED}"),
        ("user-agent", "curl/8.0", "curl/8.0"),
    ],
)
def test_fields(name: str, value: str, shown: str) -> None:
    assert redact_fields([(name.encode(), value.encode())]) == ((name.lower(), shown),)


def test_what_is_recorded_is_bounded() -> None:
    fields = redact_fields([(b"x-%d" % number, b"v" * 5000) for number in range(MOST_RECORDED + 3)])
    assert len(fields) == MOST_RECORDED + 1 and fields[-1] == ("...", "3 more")
    assert all(len(value) <= LONGEST_RECORDED + 3 for _, value in fields)
    assert len(redact_query("?" + "a=b&" * 5000)) < 3000
    assert redact_query(f"?{'a' * 2000}&q={JWT}") == f"?{'a' * 2000}&..."


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "/"),
        ("/v1/messages", "/v1/messages"),
        ("/@scope/pkg/-/pkg-1.0.0.tgz", "/@scope/pkg/-/pkg-1.0.0.tgz"),
        ("/react@18.2.0/index.js", "/react@18.2.0/index.js"),
        ("/v2/library/debian/blobs/sha256:" + "0a" * 32, "/v2/library/debian/blobs/sha256:" + "0a" * 32),
        ("/simple/pypi-attestations/", "/simple/pypi-attestations/"),
        ("/simple/sk-learn-something-long-indeed/", "/simple/sk-learn-something-long-indeed/"),
        (f"/a/{TOKEN}", f"/a/{REDACTED}"),
        (f"/a/{TOKEN}.git/info/refs", f"/a/{REDACTED}.git/info/refs"),
        (f"/a/%67hp_{TOKEN[4:]}/b", f"/a/{REDACTED}/b"),
        (f"/a/{JWT}/b", f"/a/{REDACTED}/b"),
        ("/bot123456:" + "Ab1-" * 9 + "/getMe", f"/{REDACTED}/getMe"),
        ("/services/T0000000A/B0000000A/" + "x" * 24, f"/services/{REDACTED}"),
        ("/proxy/https:/u:p@h/x", f"/proxy/https:/{REDACTED}@h/x"),
        ("/proxy/https:/token@h/x", f"/proxy/https:/{REDACTED}@h/x"),
        ("u:p@h:443", f"{REDACTED}@h:443"),
        ("/proxy/https%3A%2F%2Fu%3Ap%40h", f"/proxy/{REDACTED}"),
        ("/a;jsessionid=x;v=1/b", f"/a;jsessionid={REDACTED};v=1/b"),
    ],
)
def test_paths(path: str, shown: str) -> None:
    assert redact_path(path) == shown


VALUE, PLACEHOLDER = b"sk-ant-REALa1b2c3d4e5/f6g7h8i9", b"sk-ant-FAKEz9y8x7w6v5/u4t3s2r1"
MASK = Redactor([Secret("KEY", VALUE, PLACEHOLDER, "x-key", [])])


@pytest.mark.parametrize("held", [VALUE.decode(), PLACEHOLDER.decode()])
def test_held_secrets_are_known_in_every_form(held: str) -> None:
    escaped = "".join(f"%{ord(char):02x}" for char in held)
    b64 = base64.b64encode(b"user:" + held.encode()).decode()
    for form in (held, held.upper(), held.lower(), escaped, escaped.replace("%", "%25"), f"%73{held[1:]}", quote(held)):
        assert MASK.text(f"a {form} b {form}") == f"a {REDACTED} b {REDACTED}", form
    assert held[8:20] not in base64.b64decode(MASK.text(b64).replace(REDACTED, "====") + "====").decode("latin-1")
    assert MASK.text(f"/a/{held[:20]}") == f"/a/{REDACTED}"  # cut
    for plain in ("", "a", "/a/sk-b", held[1:], f"{held[:20]} and more"):
        assert MASK.text(plain) is plain


def test_held_secrets_leave_every_field_of_an_event() -> None:
    text = VALUE.decode()
    access = {"kind": "HttpRequest", "host": f"{text}.test", "port": 1, "names": (text,)}
    event = AccessDenied(access, "path not allowed", None, f"allow: [{text}]")
    assert text not in repr(MASK.event(event))
    masked = MASK.event(event)
    assert isinstance(masked, AccessDenied)
    assert masked.access == {
        "kind": "HttpRequest", "host": f"{REDACTED}.test", "port": 1, "names": (REDACTED,),
    }  # fmt: skip
    other = AccessDenied({"kind": "Connect", "host": "a.test"}, "name not allowed", None, None)
    assert MASK.event(other) is other
    queue = EventQueue("s")
    queue.mask = MASK
    queue.emit(event)
    queue.send(Failed(f"it failed on {text}"))
    assert text.encode() not in bytes(queue.pending()) and REDACTED.encode() in bytes(queue.pending())
    assert "REAL" not in repr(MASK)


# One pattern, as it once was: what it took out is taken out by the linear search too.
_ONE_PATTERN = re.compile(
    rf"(?<![A-Za-z0-9])(?:{'|'.join(re.escape(each.decode()) for each in PUBLIC_PREFIXES)})"
    r"(?=[a-z_-]*[A-Z0-9])[A-Za-z0-9_-]{20,}"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]*"
    r"|(?<![A-Za-z0-9])(?:bot)?[0-9]{6,}:[A-Za-z0-9_-]{30,}"
    r"|(?<=/)T[A-Z0-9]{7,}/B[A-Z0-9]{7,}/[A-Za-z0-9]{20,}"
)
_PIECES = st.sampled_from(
    [each.decode() for each in PUBLIC_PREFIXES]
    + ["eyJ", ".", "-", "_", "/", "a", "Z", "7", "abcdefgh", "abcdefghijklmnopqrst", "A1b2C3d4E5f6G7h8I9j0", "bot", ":"]
    + ["123456", "TABCDEFGH", "BABCDEFGH", "x" * 30]
)


def _places(text: str, part: str) -> int:
    """How many times ``part`` stands in ``text``, also where it overlaps itself."""
    return sum(text.startswith(part, at) for at in range(len(text)))


@settings(max_examples=500, deadline=None)
@given(st.lists(_PIECES, max_size=12).map("".join))
@example("/sk-ant-api03-abcdefghijklmnopqrs")  # too short after the longer beginning
@example("/sk-abc.eyJabcdefgh.a.b")
@example(f"/a{TOKEN}/{TOKEN}")  # the same text where no token begins: that one stays
@example(f"/{TOKEN}/{TOKEN}")
def test_what_has_the_form_of_a_token_is_taken_out(path: str) -> None:
    shown = redact_path(path)
    tokens = [found[0] for found in _ONE_PATTERN.finditer(path)]
    for token in tokens:
        # All of it, or all but a beginning that had its own form: never its last characters.  The same text may stand
        # elsewhere and be none there, so places are counted.
        for part in (token, token[-12:]):
            assert _places(shown, part) <= _places(path, part) - sum(each.endswith(part) for each in tokens)
    if not tokens and "@" not in path:
        assert shown == path


@pytest.mark.parametrize("unit", ["=://?", "a=b://c?", "a=b://c#"])
def test_addresses_within_addresses_are_looked_into_a_few_levels_deep(unit: str) -> None:
    assert redact_query("?" + unit * 200).startswith(f"?{unit.partition('=')[0]}={REDACTED}")
    assert redact_query("?a=b%3A//c%3Fd%3De") == "?a=b%3A//c%3Fd%3De"  # the control


def test_parameters_of_a_path_are_looked_at_up_to_a_bound() -> None:
    assert redact_path("/a" + ";token=x" * 3) == "/a" + f";token={REDACTED}" * 3
    shown = redact_path("/a" + ";b=c" * 8000 + ";token=x")
    assert shown.count(";") == 257 and shown.endswith(";...")
