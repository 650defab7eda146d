"""A value is known however it is spelled and cut: what a reader decodes of what went on does not hold it.

The spellings are made by Python's own encoders and undone by small decoders of this file, not by those under test.
"""

from __future__ import annotations

import base64
import html
import json
import random
import re
import string
import time
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.gateway.http.credentials import placeholder_for
from membrane.gateway.http.spellings import Scrubber, Spellings

Coding: TypeAlias = tuple[Callable[[bytes, random.Random], bytes], Callable[[bytes], bytes]]

SIGNS = "!#$&'()*+,-./:;<=>?@[]^_`{|}~%\\\""


def usable(value: bytes) -> bool:
    try:
        placeholder_for(value, random.Random(7).randbytes)
    except ValueError:
        return False
    return len(set(value)) > 5


VALUES = (
    st.lists(
        st.one_of(*[st.sampled_from(string.ascii_letters + string.digits)] * 8, st.sampled_from(SIGNS)),
        min_size=10,
        max_size=36,
    )
    .map(lambda chars: "".join(chars).encode())
    .filter(usable)
)
DICE = st.randoms(use_true_random=False)

ESCAPE = re.compile(
    rb"%(?P<p>[0-9a-fA-F]{2})|\\u(?P<u>[0-9a-fA-F]{4})|\\x(?P<x>[0-9a-fA-F]{2})|\\(?P<s>[^ux])"
    rb"|&#[xX](?P<h>[0-9a-fA-F]+);|&#(?P<d>[0-9]+);|&(?P<n>amp|lt|gt|quot|sol|plus);"
)
NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"sol": b"/", b"plus": b"+"}
SHORT = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def mixed(text: bytes, dice: random.Random) -> bytes:
    """Each character in a spelling of its own."""
    out = []
    for octet in text:
        char = bytes((octet,))
        ways = [b"%%%02x" % octet, b"%%%02X" % octet, b"\\u%04x" % octet, b"\\u%04X" % octet, b"\\x%02x" % octet]
        ways += [b"&#%d;" % octet, b"&#0%d;" % octet, b"&#x%x;" % octet, b"&#X%04X;" % octet]
        ways += [b"&%b;" % name for name, shown in NAMED.items() if shown == char]
        if char not in b"%\\&=":
            ways += [char] * 6
        elif char != b"=":
            ways += [b"\\" + char]
        out.append(dice.choice(ways))
    return b"".join(out)


def unmixed(text: bytes) -> bytes:
    def plain(found: re.Match[bytes]) -> bytes:
        if (number := found["p"] or found["u"] or found["x"] or found["h"]) is not None:
            return bytes((int(number, 16) & 0xFF,))
        if found["d"] is not None:
            return bytes((int(found["d"]) & 0xFF,))
        return NAMED[found["n"]] if found["n"] else SHORT.get(found["s"], found["s"])

    return ESCAPE.sub(plain, text)


def noise(dice: random.Random, most: int) -> bytes:
    """What comes before a value in the bytes that are encoded, so that it is aligned in any way."""
    return b'{": ,}'[: dice.randint(0, most)]


def in_lines(text: bytes, dice: random.Random) -> bytes:
    width, end = dice.choice([1, 3, 19, 64, 76]), dice.choice([b"\n", b"\r\n"])
    return end.join(text[at : at + width] for at in range(0, len(text), width))


def unlined(text: bytes) -> bytes:
    return text.translate(None, b"\r\n")


def decode64(text: bytes) -> bytes:
    plain = re.sub(rb"[^A-Za-z0-9+/]", b"", text.translate(bytes.maketrans(b"-_", b"+/")))
    return base64.b64decode(plain + b"=" * (-len(plain) % 4))


def utf(name: str) -> Coding:
    return lambda text, _: text.decode("latin-1").encode(name), lambda text: text.decode(name).encode("latin-1")


CODINGS: dict[str, Coding] = {
    "as it is": (lambda text, _: text, lambda text: text),
    "mixed": (mixed, unmixed),
    "percent": (lambda text, dice: quote(text, safe=dice.choice(["", "/", "!'()*"])).encode(), unquote_to_bytes),
    "all percent": (lambda text, _: b"".join(b"%%%02x" % octet for octet in text), unquote_to_bytes),
    "json": (
        lambda text, _: json.dumps(text.decode("latin-1"))[1:-1].replace("/", "\\/").encode(),
        lambda text: json.loads(b'"' + text + b'"').encode("latin-1"),
    ),
    "html": (
        lambda text, _: html.escape(text.decode("latin-1")).encode("latin-1"),
        lambda text: html.unescape(text.decode("latin-1")).encode("latin-1"),
    ),
    "base64": (lambda text, dice: base64.b64encode(noise(dice, 3) + text + noise(dice, 2)), decode64),
    "base64url": (lambda text, dice: base64.urlsafe_b64encode(noise(dice, 3) + text).rstrip(b"="), decode64),
    "base64 in lines": (lambda text, dice: in_lines(base64.b64encode(noise(dice, 3) + text), dice), decode64),
    "base32": (lambda text, dice: base64.b32encode(noise(dice, 5) + text), base64.b32decode),
    "hex": (lambda text, _: text.hex().encode(), lambda text: bytes.fromhex(text.decode())),
    "HEX": (lambda text, _: text.hex().upper().encode(), lambda text: bytes.fromhex(text.decode())),
    "UTF-16LE": utf("utf-16-le"),
    "UTF-16BE": utf("utf-16-be"),
    "in lines": (in_lines, unlined),
}
OUTERMOST: dict[str, Coding] = {
    "separated hex": (
        lambda text, dice: text.hex(dice.choice(" :-,")).encode(),
        lambda text: bytes.fromhex(re.sub("[ :,-]", "", text.decode())),
    ),
    "upper": (lambda text, _: text.upper(), lambda text: text),
    "lower": (lambda text, _: text.lower(), lambda text: text),
}
NESTED = st.lists(st.sampled_from(sorted(CODINGS)), min_size=1, max_size=2)
EXACT = ("hex", "HEX", "base32", "json", "UTF-16LE", "UTF-16BE")  # their readers take nothing around them


class Alone(random.Random):
    """No ``noise``."""

    def randint(self, a: int, b: int) -> int:
        return a


# What may stand on both sides without becoming a part of the spelling.
AROUND = st.sampled_from([b"", b" ", b'"', b'{"key": "', b'",\n', b"<p>", b"</p>"])


def check(value: bytes, spelled: bytes, undo: Callable[[bytes], bytes], around: bytes, cuts: range) -> None:
    spellings = Spellings([(value, placeholder_for(value, random.Random(7).randbytes))])
    assert value.lower() in undo(spelled).lower()  # positive control
    text = around + spelled + around
    for cut in cuts:
        scrubber = Scrubber(spellings)
        out = scrubber.feed(text[:cut]) + scrubber.feed(text[cut:]) + scrubber.flush()
        assert len(out) == len(text) and out.startswith(around) and out.endswith(around)
        shown = out[len(around) : len(text) - len(around)]
        try:
            told = undo(shown)
        except ValueError:  # nobody can read it any more
            continue
        assert value.lower() not in told.lower(), (cut, spelled)


@given(VALUES, NESTED, DICE, AROUND)
@settings(max_examples=400, deadline=None)
def test_a_value_comes_out_in_no_spelling(value: bytes, names: list[str], dice: random.Random, around: bytes) -> None:
    spelled = value
    for index, name in enumerate(names):
        alone = Alone(0) if index and names[0] in EXACT else dice
        spelled = CODINGS[name][0](spelled, alone)

    def undo(text: bytes) -> bytes:
        for name in reversed(names):
            text = CODINGS[name][1](text)
        return text

    every = range(len(spelled) + 2 * len(around) + 1)
    check(value, spelled, undo, around, every if len(every) < 90 else every[dice.randrange(7) :: len(every) // 40])


@pytest.mark.parametrize("name", [*CODINGS, *OUTERMOST])
@given(VALUES, DICE)
@settings(max_examples=8, deadline=None)
def test_each_spelling_at_each_cut(name: str, value: bytes, dice: random.Random) -> None:
    spell, undo = (CODINGS | OUTERMOST)[name]
    spelled = spell(value, dice)
    check(value, spelled, undo, b'"', range(len(spelled) + 3))


def test_a_part_is_known_only_where_the_stream_was_cut() -> None:
    """Else whoever makes a server show guesses would have fewer of them to try."""
    value, told = b"aB3dE5gH7jK9", b"xY8wV2uT4sR6"
    spellings = Spellings([(value, told)])
    for text in (value[3:], b"x" * 100 + value[3:] + b" " + base64.b64encode(value[3:]), value[:-1]):
        assert spellings.hide(text) == (text, len(text))
    assert spellings.hide(value[3:], late=True)[0] == told[3:]
    assert spellings.hide(b"x" * 100 + b" " + value[3:], late=True)[0].endswith(value[3:])


@given(st.one_of(st.binary(max_size=3000), st.text(max_size=600).map(str.encode)), DICE)
@settings(max_examples=150, deadline=None)
def test_other_text_passes_unchanged_however_it_is_cut(text: bytes, dice: random.Random) -> None:
    scrubber = Scrubber(Spellings([(b"wJalrXUtnFEMI/K7MDENG", b"qBcdeYVuoGFNJ/L8NEFOH")]))
    out, at = b"", 0
    while at < len(text):
        step = dice.choice([1, 2, 7, 100, 3000])
        out += scrubber.feed(text[at : at + step])
        at += step
    assert out + scrubber.flush() == text


HOSTILE = [
    b"VVVV", b"%25", b"%2525252541", b"&amp;", b"\\\\", b"=41", b"AAAA", b"\0", b"\n", b"&#x25;", b"wJ", b"wJal",
    b"d0ph", b"77 ", b"wJalrXUtnFEMI/K7MDEN", b"%77%4a%61",
]  # fmt: skip


def seconds(piece: bytes, octets: int) -> float:
    scrubber = Scrubber(Spellings([(b"wJalrXUtnFEMI/K7MDENG", b"qBcdeYVuoGFNJ/L8NEFOH")]))
    text = piece * (octets // len(piece))
    best = 9.0
    for _ in range(3):
        begun = time.process_time()
        for at in range(0, len(text), 16384):
            scrubber.feed(text[at : at + 16384])
        scrubber.flush()
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize("piece", HOSTILE)
def test_what_can_not_be_read_in_time_does_not_come_out(piece: bytes) -> None:
    """The work that a piece of text may make is bounded; a value behind it is not shown."""
    value = b"wJalrXUtnFEMI/K7MDENG"
    spellings = Spellings([(value, b"qBcdeYVuoGFNJ/L8NEFOH")])
    for spelled in (value, base64.b64encode(value), quote(quote(value, safe=""), safe="").encode()):
        for text in (piece * 5000 + b" " + spelled + b" " + piece * 5000, spelled + piece * 5000):
            shown, hold = spellings.hide(text)
            assert len(shown) == len(text) == hold and spelled not in shown


@pytest.mark.parametrize("piece", HOSTILE)
def test_work_is_linear_in_what_comes(piece: bytes) -> None:
    """Four times the text is about four times the work, and 16 KiB are never long."""
    once, more = seconds(piece, 1 << 15), seconds(piece, 1 << 17)
    assert more < 12 * once + 0.02 and once < 0.4


LAID_OUT = {
    "base64, indented": lambda value: b"\n    ".join(in_pieces(base64.b64encode(b"key: " + value), 20)),
    "base64, indented, in JSON": lambda value: b"\\n\t".join(in_pieces(base64.b64encode(value), 16)),
    "LDIF": lambda value: b"\r\n ".join(in_pieces(value, 10)),
    "YAML, folded": lambda value: b"\\\n  ".join(in_pieces(value, 12)),
    "shell, continued": lambda value: b"\\\n".join(in_pieces(value, 9)),
    "hexadecimal, in groups": lambda value: b" ".join(in_pieces(value.hex().encode(), 8)),
    "hexadecimal, in long groups": lambda value: b"-".join(in_pieces(value.hex().encode(), 24)),
    "JavaScript": lambda value: b"".join(b"\\u{%x}" % octet for octet in value),
    "Perl": lambda value: b"".join(b"\\x{%04x}" % octet for octet in value),
    "C": lambda value: b"".join(b"\\U%08x" % octet for octet in value),
    "HTML, with zeros": lambda value: b"".join(b"&#%020d;" % octet for octet in value),
    "HTML, hexadecimal with zeros": lambda value: b"".join(b"&#x%020x;" % octet for octet in value),
}


def in_pieces(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("layout", LAID_OUT)
def test_a_value_comes_out_in_no_layout(layout: str) -> None:
    value, told = b"npm_AbCdEfGh1234567890ijklMNOPqrstuv", b"npm_Zzzzzzzz0987654321yyyyYYYYxxxxxx"
    text = b"before: " + LAID_OUT[layout](value) + b"\nafter:\n    this\n"
    hidden = b"before: " + LAID_OUT[layout](told) + b"\nafter:\n    this\n"
    assert Spellings([(value, told)]).hide(text)[0].lower() == hidden.lower()
    for cut in range(1, len(text), 7):
        scrubber = Scrubber(Spellings([(value, told)]))
        assert (scrubber.feed(text[:cut]) + scrubber.feed(text[cut:]) + scrubber.flush()).lower() == hidden.lower()


def test_half_an_octet_at_a_cut_hides_nothing() -> None:
    """After two characters of base32 the next byte reads as "%", which would make an escape of what follows it."""
    value, spelled = b'ae0aaaabc"', base64.b32encode(b'ae0aaaabc\\"')
    scrubber = Scrubber(Spellings([(value, b'xk7pqrstu"')]))
    out = scrubber.feed(spelled[:2]) + scrubber.feed(spelled[2:]) + scrubber.flush()
    assert base64.b32decode(out).endswith(b'pqrstu\\"')
