"""Text from inside the sandbox, made safe for a terminal and a log line.

Theory of operation
-------------------
Names, arguments, hosts and URLs come from the confined command.  ``escape`` makes visible everything in them that could
steer a terminal, forge a line or hide what is there (control, bidi and invisible characters, unknown bytes), and is
injective: two texts never look the same.
"""

from __future__ import annotations

# Letters and marks that show nothing (Unicode DerivedCoreProperties.txt, Default_Ignorable_Code_Point), and the two
# symbols that are blanks.  All else that shows nothing, reorders text or is a blank other than the space is not
# printable for ``str.isprintable``.
_INVISIBLE = (
    (0x34F, 0x34F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0x1D159, 0x1D159),
    (0xE0000, 0xE0FFF),
)


def escape(text: str) -> str:
    """Return ``text`` with everything that could steer a terminal or forge a line made visible.

    Surrogate escapes (undecodable bytes of file names) become ``\\xNN``; C0, DEL, C1, bidi, zero-width and all other
    characters that are not printable become ``\\u{HEX}``.  A backslash is doubled, so two texts never give the same
    result; a second ``escape`` only doubles the backslashes again.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    out = []
    for char in text:
        code = ord(char)
        if char == "\\":
            out.append("\\\\")
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif not char.isprintable() or (code > 0x7F and any(first <= code <= last for first, last in _INVISIBLE)):
            out.append(f"\\u{{{code:x}}}")
        else:
            out.append(char)
    return "".join(out)


def unescape(text: str) -> str:
    """The text that ``escape`` gave this result; what no ``escape`` gives stays as it is."""
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        end = text.find("}", at + 3, at + 10)
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] == "\\":
            out.append("\\")
            at += 2
        elif text[at + 1 : at + 3] == "u{" and end > 0 and _is_hex(text[at + 3 : end]):
            out.append(chr(min(int(text[at + 3 : end], 16), 0x10FFFF)))
            at = end + 1
        elif text[at + 1 : at + 2] == "x" and len(text) >= at + 4 and _is_hex(text[at + 2 : at + 4]):
            out.append(chr(0xDC00 + int(text[at + 2 : at + 4], 16)))
            at += 4
        else:
            out.append(text[at])
            at += 1
    return "".join(out)


WIDTH = 100  # characters of a line of ``folded``
_BLANKS = 3  # spaces that are shown as they are
_ALIGNED = 32  # the same, of ``folded``: people align comments, and no text leaves the window by that


def one_line(text: str, most: int = _BLANKS) -> str:
    """As ``escape``; but more than ``most`` spaces together, and spaces at the end, become ``\\{N blanks}``.

    No ``escape`` gives that, so nothing in the text can look like it.
    """
    shown, run = "", 0
    for char in [*escape(text), ""]:
        if char == " ":
            run += 1
            continue
        shown += " " * run if run <= most and char else f"\\{{{run} blanks}}" if run else ""
        shown, run = shown + char, 0
    return shown


def folded(text: str) -> list[str]:
    """All of ``text`` in short lines, for the person who is to agree to it: nothing of it can stand outside of the
    window.

    Its newlines are lines; each as ``one_line``, with room for comments that are aligned, and what is longer than
    ``WIDTH`` goes on behind ``\\>``, which no ``escape`` gives either.
    """
    out: list[str] = []
    for line in (one_line(part, _ALIGNED) for part in text.split("\n")):
        out.append(line[:WIDTH])
        out += [f"\\> {line[at : at + WIDTH]}" for at in range(WIDTH, len(line), WIDTH)]
    return out


def _is_hex(digits: str) -> bool:
    return bool(digits) and all(digit in "0123456789abcdef" for digit in digits)


def visible(text: str) -> str:
    """``text`` that may already be escaped, made safe to print: as ``escape``, but a backslash stays as it is."""
    return "\\".join(map(escape, text.split("\\")))


def readable(text: str) -> str:
    """As ``escape``, and injective too; but a backslash stays as it is where nothing could be taken for an escape.

    For text in which backslashes are common and somebody reads it (a patch).  Backslashes before what ``escape`` makes
    visible, and before what only looks like the result of that, are doubled.
    """
    if "\\" not in text:
        return escape(text)
    if text.isascii() and text.isprintable() and "\\x" not in text and "\\u{" not in text:
        return text
    out, run = [], 0
    for at, char in enumerate(text):
        if char == "\\":
            run += 1
            continue
        safe = escape(char)
        if run:
            out.append("\\" * (run * 2 if safe != char or _looks_escaped(text, at) else run))
            run = 0
        out.append(safe)
    return "".join(out) + "\\" * run


def _looks_escaped(text: str, at: int) -> bool:
    """Is there at ``at`` what ``escape`` puts behind a backslash?"""
    if text[at] == "x":
        code = text[at + 1 : at + 3]
        return len(code) == 2 and _is_hex(code) and code[0] in "89abcdef"
    if not text.startswith("u{", at):
        return False
    end = text.find("}", at + 2, at + 9)
    code = text[at + 2 : end] if end > 0 else ""
    return _is_hex(code) and int(code, 16) <= 0x10FFFF and escape(chr(int(code, 16))) == f"\\{text[at : end + 1]}"
