"""What a record may hold of queries and header fields."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from membrane.events import AccessDenied
from membrane.network.credentials import Secret
from membrane.network.journal import Journal
from membrane.network.redact import (
    LONGEST_RECORDED,
    MOST_RECORDED,
    REDACTED,
    Mask,
    redact_fields,
    redact_path,
    redact_query,
)

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
MASK = Mask([Secret("KEY", VALUE, PLACEHOLDER, "x-key", [])])


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
    assert MASK.event(event).access == {
        "kind": "HttpRequest", "host": f"{REDACTED}.test", "port": 1, "names": (REDACTED,),
    }  # fmt: skip
    other = AccessDenied({"kind": "Connect", "host": "a.test"}, "name not allowed", None, None)
    assert MASK.event(other) is other
    journal = Journal("s")
    journal.mask = MASK
    journal.emit(event)
    journal.note({"error": f"it failed on {text}"})
    assert text.encode() not in bytes(journal.pending()) and REDACTED.encode() in bytes(journal.pending())
    assert "REAL" not in repr(MASK)
