"""Names in a dotenv file, without their values: what ``show: names`` lets a command see.

Theory of operation
-------------------
Only ``NAME=`` and ``export NAME=`` at the beginning of a line come through; nothing else of the file, not a comment.
A line is taken for an assignment only where every reader would take it for one: part of a value that goes over several
lines looks like an assignment as well (the last line of a key in base64 ends in ``=``).  So quoted values are followed
to their end, and a file with anything that shells and dotenv libraries read differently shows nothing at all.  A name
that has both cases is left out: it is more likely a value.
"""

from __future__ import annotations

LONGEST_NAME = 100  # characters
MOST_NAMES = 1_000
_DIGITS = frozenset("0123456789")
_LETTERS = (frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), frozenset("abcdefghijklmnopqrstuvwxyz_"))


class Unclear(ValueError):
    """Readers disagree about the file; ``str()`` names the line."""


def names_only(content: bytes) -> bytes:
    """The assignments of a dotenv file with empty values, linear in its size.

    Raises:
        Unclear: it is not clear what are names and what are values.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unclear("it is not UTF-8") from None
    out: dict[str, None] = {}
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].strip(" \t")
        first = at
        at += 1
        if not line or line[0] == "#":
            continue
        left, equals, value = line.partition("=")
        words = left.split()
        export = len(words) == 2 and words[0] == "export"
        if not equals or not (len(words) == 1 or export) or not _is_name(words[-1]):
            raise Unclear(f"line {first + 1} is no assignment")
        at = _end(lines, at, value.strip(" \t"), first)
        if _is_of_one_case(words[-1]) and len(out) < MOST_NAMES:
            out[("export " if export else "") + words[-1]] = None
    return b"".join(b"%s=\n" % name.encode("ascii") for name in out)


def _end(lines: list[str], at: int, value: str, first: int) -> int:
    """The line after a value that begins on the one before ``at``."""
    quote = value[:1]
    if quote not in ("'", '"', "`") or not quote:
        plain = value.partition(" #")[0]
        if plain[:1] == "=" or plain.endswith("\\") or any(char in plain for char in "'\"`") or "$(" in plain:
            raise Unclear(f"line {first + 1} has a value that may go on")
        return at
    rest = value[1:]
    while True:
        close = _closing(rest, quote, first)
        if close >= 0:
            after = rest[close + 1 :].strip(" \t")
            if after and after[0] != "#":
                raise Unclear(f"line {first + 1} has something behind its value")
            return at
        if at >= len(lines):
            raise Unclear(f"line {first + 1} has a value without an end")
        rest = lines[at]
        at += 1


def _closing(text: str, quote: str, first: int) -> int:
    """Where the quote ends in this line; -1: not in it."""
    at = 0
    while at < len(text):
        if text[at] == "\\":
            if quote != '"' and text[at + 1 : at + 2] == quote:
                raise Unclear(f"line {first + 1} has a quote that may be escaped")
            at += 2 if quote == '"' else 1
            continue
        if text[at] == quote:
            return at
        at += 1
    return -1


def _is_name(word: str) -> bool:
    """A name of the shell (POSIX.1-2017, 3.235)."""
    letters = _LETTERS[0] | _LETTERS[1]
    return 0 < len(word) <= LONGEST_NAME and word[0] in letters and not set(word) - letters - _DIGITS


def _is_of_one_case(word: str) -> bool:
    return any(not set(word) - letters - _DIGITS for letters in _LETTERS)
