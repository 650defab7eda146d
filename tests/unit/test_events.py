"""The JSON form of events, and text from inside made harmless."""

from __future__ import annotations

import hashlib
import json

import pytest

from membrane import events
from membrane.events import (
    LONGEST,
    AccessDenied,
    Binding,
    ConnectionClosed,
    ConnectionOpened,
    EventsLost,
    NameQuarantined,
    NameResolved,
    Process,
    SessionEnded,
    SessionStarted,
    access_as_data,
    encode,
    escape,
)
from membrane.policy.model import Connect, NameQuery, PathAccess

COMMON = ["time", "session", "seq", "event", "source", "process"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text_1.é日本", "plain text_1.é日本"),
        ("", ""),
        ("a\nb", "a\\u{a}b"),
        ("\x1b[2J", "\\u{1b}[2J"),
        ("\x00\x7f\x80\x9b", "\\u{0}\\u{7f}\\u{80}\\u{9b}"),
        ("back\\slash", "back\\\\slash"),
        ("\\u{1b}", "\\\\u{1b}"),  # not to be taken for an escaped character
        ("\udcff\udc80", "\\xff\\x80"),  # undecodable bytes of a name
        ("\ud800", "\\u{d800}"),
        ("a\u202eb", "a\\u{202e}b"),  # right-to-left override
        ("a\u2066b\u2069", "a\\u{2066}b\\u{2069}"),  # isolates
        ("pay\u200bpal", "pay\\u{200b}pal"),
        ("\ufeff\u00ad\u2060\u180e", "\\u{feff}\\u{ad}\\u{2060}\\u{180e}"),
        ("a\u2028b\u2029c", "a\\u{2028}b\\u{2029}c"),
        ("x\u00a0y", "x\\u{a0}y"),  # a blank that is not the space
        ("a\U000e0041\ufe0f\U000e0101", "a\\u{e0041}\\u{fe0f}\\u{e0101}"),  # tags and variation selectors carry data
        ("\u3164\u115f", "\\u{3164}\\u{115f}"),  # letters that show nothing
        ("\u2800\U0001d159", "\\u{2800}\\u{1d159}"),  # symbols that are blanks
    ],
)
def test_escape(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_encode_puts_the_common_fields_first_and_the_event_s_own_after_them() -> None:
    event = ConnectionOpened(7, "tls", "pypi.org", "151.101.0.223", 443, sni="pypi.org", client_port=4711)
    record = encode(event, time="2026-01-02T03:04:05.678901Z", session="abc", seq=17)
    assert list(record)[: len(COMMON)] == COMMON
    assert record == {
        "time": "2026-01-02T03:04:05.678901Z",
        "session": "abc",
        "seq": 17,
        "event": "ConnectionOpened",
        "source": "network",
        "process": None,
        "id": 7,
        "protocol": "tls",
        "host": "pypi.org",
        "address": "151.101.0.223",
        "port": 443,
        "sni": "pypi.org",
        "client_port": 4711,
        "client_socket": 0,
    }


def test_encode_shows_the_process() -> None:
    event = NameResolved("a.example", "A", "allow", "198.18.0.16")
    record = encode(event, time="", session="", seq=0, process=Process(12, 34, "cu\nrl", "/usr/bin/curl"))
    assert record["process"] == {"pid": 12, "start": 34, "name": "cu\\u{a}rl", "exe": "/usr/bin/curl"}


@pytest.mark.parametrize(
    "event",
    [
        SessionStarted(
            "0.1.0", ("sh", "-c", "\x1b]0;x\a"), "/w", "d", ("a",), (Binding("r", "m", "bound", True),), "network", "u"
        ),
        NameResolved("a", "A", "deny", ""),
        ConnectionOpened(1, "tcp", "h", "1.2.3.4", 1),
        ConnectionClosed(1, 2, 3, 4.5),
        AccessDenied(access_as_data(Connect("h\r\n", "", 1)), "name not allowed", None, None),
        NameQuarantined("a\udcff", "b"),
        EventsLost("AccessDenied", 3, "s", "e"),
        SessionEnded(0, 0, 1.0, {"AccessDenied": 1}, 1, 0, ("left\n",)),
    ],
)
def test_every_event_is_one_line_of_json_with_nothing_hidden(event: events.Event) -> None:
    line = json.dumps(encode(event, time="t", session="s", seq=1), ensure_ascii=False)
    assert line.isprintable()
    decoded = json.loads(line)
    assert decoded["event"] == type(event).__name__
    assert decoded["source"] == event.source
    assert set(decoded) == set(COMMON) | (set(event.field_names) - {"source"})


def test_a_long_string_is_cut_and_carries_the_digest_of_its_bytes() -> None:
    text = "x" * LONGEST + "tail\udcff"
    shown = encode(NameQuarantined(text, ""), time="", session="", seq=0)["path"]
    assert shown == {
        "text": "x" * LONGEST,
        "truncated": True,
        "sha256": hashlib.sha256(b"x" * LONGEST + b"tail\xff").hexdigest(),
    }
    assert encode(NameQuarantined("x" * LONGEST, ""), time="", session="", seq=0)["path"] == "x" * LONGEST


def test_a_long_string_that_is_no_file_name_has_a_digest_too() -> None:
    shown = encode(NameQuarantined("\ud800" * (LONGEST + 1), ""), time="", session="", seq=0)["path"]
    assert shown["truncated"] and len(shown["sha256"]) == 64


def test_access_is_the_question_as_data() -> None:
    assert access_as_data(NameQuery("a.example", "AAAA")) == {"kind": "NameQuery", "name": "a.example", "type": "AAAA"}
    assert access_as_data(PathAccess("x", "write")) == {
        "kind": "PathAccess",
        "path": "x",
        "operation": "write",
        "directory": False,
    }


def test_escaped_text_is_found_in_nested_values_and_in_keys() -> None:
    event = AccessDenied({"k\n": ["a\x1b", ("b\u202e",)]}, "r", "rule\r", None)
    record = encode(event, time="", session="", seq=0)
    assert record["access"] == {"k\\u{a}": ["a\\u{1b}", ["b\\u{202e}"]]}
    assert record["rule"] == "rule\\u{d}"
