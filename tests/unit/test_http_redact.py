"""What a record may hold of queries and header fields."""

from __future__ import annotations

import pytest

from membrane.network.redact import LONGEST_RECORDED, MOST_RECORDED, REDACTED, redact_fields, redact_query

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
