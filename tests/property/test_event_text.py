"""Escaping for every text, and the size of an encoded event."""

from __future__ import annotations

import json
import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from membrane import escaping
from membrane.escaping import escape, readable
from membrane.events import LONGEST, AccessDenied, encode

# Everything that a Python string can hold, surrogates too: file names come with surrogate escapes.
ANY = st.text(st.characters(), max_size=200)
NASTY_CHARACTERS = "\\xu{}0a1\n\x1b\x7f\x85\u200b\u202e\u2066\ufeff\ue000\udc80\udcff\ud800 é"
NASTY = st.text(st.sampled_from(NASTY_CHARACTERS), max_size=40)
TEXT = ANY | NASTY


def unescape(shown: str) -> str:
    """The only reading of an escaped text (test oracle)."""
    out, at = [], 0
    while at < len(shown):
        if shown[at] != "\\":
            out.append(shown[at])
            at += 1
        elif shown[at + 1] == "\\":
            out.append("\\")
            at += 2
        elif shown[at + 1] == "x":
            out.append(chr(0xDC00 + int(shown[at + 2 : at + 4], 16)))
            at += 4
        else:
            assert shown[at + 1 : at + 3] == "u{"
            end = shown.index("}", at)
            out.append(chr(int(shown[at + 3 : end], 16)))
            at = end + 1
    return "".join(out)


@given(TEXT)
def test_escape_loses_nothing_and_has_one_reading(text: str) -> None:
    assert unescape(escape(text)) == text
    assert escaping.unescape(escape(text)) == text


@given(TEXT)
def test_what_is_no_escaped_text_is_read_without_fault(text: str) -> None:
    assert isinstance(escaping.unescape(text), str)


@given(TEXT, TEXT)
def test_different_texts_look_different(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


_ESCAPED = re.compile(r"(\\+)(x[89a-f][0-9a-f]|u\{(?:0|[1-9a-f][0-9a-f]*)\})")


def unread(shown: str) -> str:
    """The only reading of a text that ``readable`` gave (test oracle)."""

    def one(found: re.Match[str]) -> str:
        run, word = len(found[1]), found[2]
        if word[0] == "u" and (int(word[2:-1], 16) > 0x10FFFF or escape(chr(int(word[2:-1], 16))) != f"\\{word}"):
            return found[0]
        code = 0xDC00 + int(word[1:], 16) if word[0] == "x" else int(word[2:-1], 16)
        return "\\" * (run // 2) + (chr(code) if run % 2 else word)

    return _ESCAPED.sub(one, shown)


LIKE_ESCAPES = st.lists(
    st.sampled_from(
        ["\\", "x80", "x7f", "u{202e}", "u{61}", "u{0}", "u{0202e}", "u{dc80}", "u{", "}", "\u202e", "\udc80", "a"]
    ),
    max_size=8,
).map("".join)


@given(TEXT | LIKE_ESCAPES)
def test_a_readable_text_has_one_reading_and_keeps_backslashes_that_are_nothing_else(text: str) -> None:
    shown = readable(text)
    assert shown.isprintable() and unread(shown) == text
    if text.isascii() and text.isprintable() and not _ESCAPED.search(text):
        assert shown == text


@given(TEXT)
def test_nothing_that_steers_a_terminal_survives(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown)
    assert not any(unicodedata.bidirectional(char) in _BIDI_CONTROLS for char in shown)
    shown.encode("utf-8")  # strict: no surrogate is left


_BIDI_CONTROLS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN")


@given(TEXT)
def test_a_second_escape_only_doubles_backslashes(text: str) -> None:
    once = escape(text)
    assert escape(once) == once.replace("\\", "\\\\")
    if "\\" not in once:
        assert once == text == escape(once)


@given(TEXT, TEXT)
def test_escape_of_parts_is_the_parts_escaped(one: str, other: str) -> None:
    assert escape(one + other) == escape(one) + escape(other)


@given(st.text(st.sampled_from("a\U000e0001\n"), max_size=30), st.integers(1, 400))
def test_the_encoded_event_is_bounded_whatever_its_strings_are(unit: str, times: int) -> None:
    event = AccessDenied({"kind": "NameQuery", "name": unit * times}, "name malformed", unit * times, None)
    line = json.dumps(encode(event, time="", session="", seq=0))
    # \u{e0001} is 9 characters and its backslash 2 in JSON; two strings and the fixed rest.
    assert len(line) <= 2 * 10 * LONGEST + 1000


@given(TEXT)
def test_encoded_text_is_the_escaped_text(text: str) -> None:
    event = AccessDenied({"kind": "NameQuery", "name": text}, "r", text, None)
    record = encode(event, time="", session="", seq=0)
    assert json.loads(json.dumps(record)) == record
    assert record["rule"] == record["access"]["name"] == escape(text)
