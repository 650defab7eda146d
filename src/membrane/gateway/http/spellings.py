"""Known texts (the values of secrets) in other text, however their characters are spelled, and what hides them.

Theory of operation
-------------------
A server echoes a value in a spelling that no list can hold: each character may be escaped or not, in either case, more
than once.  So the text is *decoded* and the value is looked for in what comes out.  A reading of a piece of text gives
the readings that it has in turn:

* without line ends, the blanks that indent a line, and NULs (base64 in lines, UTF-16 and UTF-32);
* with every escape undone at once (percent, quoted-printable, backslash, HTML), up to ``UNESCAPED`` times;
* each run of a base64 alphabet, of hexadecimal or of base32 decoded at every alignment, up to ``DECODED`` times.

Letters match in either case.  What is found is overwritten through the same readings in reverse, so it becomes the
placeholder in the spelling of the value: nothing changes its length, and JSON, HTML and base64 stay what they were.  A
character whose spelling has no room for another one (``\\/``) stays.

Bounds
------
* Only runs that may hold a value are read: at least as many characters of ``_class`` in a row as the shortest value
  has.  In other text that is two passes of the C library over it.
* The readings of one piece have together at most ``WORK`` bytes for each of its own.  What cannot be read within
  that counts as bad: its letters and digits are overwritten.
* In a stream only what may be the beginning of a value is held back, at most ``LONGEST`` bytes for each of the value.
  Within an encoding two characters of the value must have come for that, else every third piece of base64 would be held
  up.  So where a stream was cut the value is known without its first ``_FREE`` characters; nowhere else, or a command
  that makes a server show guesses would have fewer of them to try.

Not recognised: a part of a value, decimal codes of characters in a list, other character sets than those that agree
with ASCII (UTF-16 and UTF-32 aside), and whatever else has to be computed (reversed, compressed, encrypted).

References: RFC 3986 section 2.1, RFC 8259 section 7, HTML "named character references", RFC 2045 sections 6.7 and 6.8,
RFC 4648.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

UNESCAPED = 4  # times
DECODED = 2  # times
WORK = 64  # bytes that are read for each byte of the text
_WORK_AT_LEAST = 8192
LONGEST = 128  # bytes of text for each character of a value
_SHORTEST_TAIL = 3  # characters at the end of a stream that can begin two characters of a value in some encoding
_FREE = 3  # characters at a value's beginning that may have gone before it is recognised
_NEAR = 64  # bytes after the place where a stream was cut, in which the rest of a value begins
_EAGER = 2  # characters of a value that have come when it is held back
_REREAD = 4096  # bytes that are held back and read again with every piece; above it with each eighth more
_CUTS = b"\r\n\0"
_INDENTS = re.compile(rb"\n[ \t]+"), re.compile(rb"\\n[ \t]+")  # each begins with text that is found fast
_HEX_CUTS = b" \t:,;-"  # between two bytes in hexadecimal
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALNUM = _LETTERS + b"0123456789"
_ESCAPES = b"%\\&="
_BASE64 = _ALNUM + b"+/-_"
_HEX = b"0123456789abcdefABCDEF"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_BLANKED = bytes.maketrans(_ALNUM, b"X" * 26 + b"x" * 26 + b"0" * 10)
_BASE32_DIGITS = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHIJKLMNOPQRSTUV")
_BASE32_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_TOKEN = re.compile(
    rb"%(?:[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    rb"|\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|[ux]\{[0-9A-Fa-f]{1,8}\}"
    rb"|[0-7]{2,3}|[^0-9A-Za-z\x80-\xff]|[bfnrt])"
    rb"|&(?:#(?:[0-9]{1,24}|[xX][0-9A-Fa-f]{1,24});?|[A-Za-z]{2,24};|(?:amp|AMP|lt|LT|gt|GT|quot|QUOT))"
)
_QUOTED = re.compile(rb"=(?:[0-9A-Fa-f]{2}|\r?\n)|\\\r?\n")  # and lines that end in a backslash
# What may become one when the text goes on; at most ``_LONGEST_TOKEN`` bytes of it are looked at.
_UNFINISHED = re.compile(
    rb"(?:%(?:[0-9A-Fa-f]|u[0-9A-Fa-f]{0,3})?"
    rb"|=[0-9A-Fa-f\r]?"
    rb"|\\(?:u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7}|x[0-9A-Fa-f]?|[ux]\{[0-9A-Fa-f]{0,8}|[0-7]{1,2})?"
    rb"|&(?:#(?:[0-9]{0,24}|[xX][0-9A-Fa-f]{0,24})|[A-Za-z]{0,24}))\Z"
)
_LONGEST_TOKEN = 32
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class Spellings:
    """Texts that are looked for, and what each becomes.

    Args:
        pairs: a text of visible ASCII, and what of the same length replaces it.
    """

    __slots__ = ("_class", "_hexes", "_left", "_needles", "_run", "_separated", "longest")

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        needles: dict[bytes, bytes] = {}
        for value, shown in pairs:
            needles.setdefault(value, shown)
            # Text is read with all its escapes undone: a value that looks like one is undone as well.
            for _ in range(UNESCAPED):
                shorter, other = _TOKEN.sub(_meaning, value), _TOKEN.sub(_meaning, shown)
                if shorter == value or len(shorter) <= _FREE + _EAGER:
                    break
                value, shown = shorter, other if len(other) == len(shorter) else shorter.translate(_BLANKED)
                needles.setdefault(value, shown)
        for value, shown in list(needles.items()):
            # With what follows it the end of a value can read as an escape: all but that is looked for as well.
            begun = _UNFINISHED.search(value)
            if begun is not None and begun.start() > _FREE + _EAGER:
                needles.setdefault(value[: begun.start()], shown[: begun.start()])
        self._needles = [(value.lower(), value, shown) for value, shown in needles.items()]
        self._needles.sort(key=lambda each: len(each[0]), reverse=True)  # one may be a part of another
        shortest = min(len(value) for value, _, _ in self._needles) - _FREE
        self.longest = LONGEST * max(len(value) for value, _, _ in self._needles)
        signs = b"".join(value for value, _ in needles.items())
        self._class = _classes(_BASE64 + _ESCAPES + _CUTS + b"#;{}" + signs)
        self._run = b"A" * shortest
        self._hexes = _classes(_HEX + _HEX_CUTS + _CUTS + b"xX")
        self._separated = b"A" * (2 * shortest + 1)  # however many bytes are between two separators
        self._left = 0

    def hide(self, text: bytes, *, late: bool = False, more: bool = False) -> tuple[bytes, int]:
        """Overwrite what is found.

        Args:
            late: there was text before, and what begins here may be the rest of a value.
            more: the text goes on.

        Returns:
            The text, and from where on it must be held back because a value may begin there.
        """
        self._left = WORK * len(text) + _WORK_AT_LEAST
        level = text
        for indent in _INDENTS:
            level = indent.sub(_level, level)
        shown, hold = self._text(level, DECODED, late, more, True)
        if level != text:
            shown = text if shown == level else _overwritten(text, level, shown, range(len(text)))
        return shown, hold

    def _text(self, text: bytes, decodes: int, late: bool, more: bool, exact: bool) -> tuple[bytes, int]:
        """The same, for text whose parts have nothing to do with each other."""
        runs = list(_runs(text.translate(self._class), self._run, more))
        hold = size = len(text)
        if more and runs and runs[-1][1] == size:
            start = runs.pop()[0]
            if size - start > 2 * self.longest and not self._shown(text[start:], UNESCAPED, decodes):
                start = size - self.longest  # all that can be held back
            if text[start:].strip(_CUTS):
                shown, at = self._part(text[start:], UNESCAPED, decodes, late and start < _NEAR, True, exact)
                text, hold = text[:start] + shown, start + at
        if runs and self._shown(b" ".join([text[start:end] for start, end in runs]), UNESCAPED, decodes):
            out = bytearray(text)
            for start, end in runs:
                near = late and start < _NEAR
                out[start:end] = self._part(text[start:end], UNESCAPED, decodes, near, False, exact)[0]
            text = bytes(out)
        if decodes:
            for start, end in list(_runs(text.translate(self._hexes), self._separated, more)):
                last = more and end == size
                shown, at = self._separated_hex(text[start:end], decodes, late and start < _NEAR, last)
                text = text[:start] + shown + text[end:]
                hold = min(hold, start + at) if last else hold
        return text, hold

    # ------------------------------------------------------------ is anything there?

    def _shown(self, text: bytes, escapes: int, decodes: int) -> bool:
        """May a value be in one of the readings of a text?  As ``_part``, but of many runs at once, and not where."""
        self._left -= len(text)
        low = text.lower()
        if self._left < 0 or any(value[_FREE:] in low for value, _, _ in self._needles):
            return True
        if escapes and _may_be_quoted(text) and self._shown_plain(text, _QUOTED, escapes, decodes):
            return True
        cut = text.translate(None, _CUTS)
        if len(cut) < len(text):
            return self._shown(cut, escapes, decodes)
        escaped = escapes and (b"%" in text or b"\\" in text or b"&" in text)
        if escaped and self._shown_plain(text, _TOKEN, escapes, decodes):
            return True
        return decodes > 0 and any(self._shown_within(text, decodes, coding) for coding in CODINGS)

    def _shown_plain(self, text: bytes, token: re.Pattern[bytes], escapes: int, decodes: int) -> bool:
        plain = token.sub(_meaning, text)
        return plain != text and self._shown(plain, escapes - 1, decodes)

    def _shown_within(self, text: bytes, decodes: int, coding: Coding) -> bool:
        least = coding.characters(len(self._run))
        if len(text) < least or b"A" * least not in text.translate(coding.classes):
            return False
        # What is between two runs moves the second one: at some alignment each run is in place.
        text = text.translate(None, coding.others)
        for before in range(coding.alignments):
            decoded = coding.known(coding.read(text, before)[0], before)
            self._left -= len(decoded)
            if self._left < 0:
                return True
            classes = decoded.translate(self._class)
            if self._run in classes:
                runs = b" ".join([decoded[start:end] for start, end in _runs(classes, self._run, False)])
                if self._shown(runs, UNESCAPED, decodes - 1):
                    return True
            if decodes > 1 and self._separated in decoded.translate(self._hexes):
                return True
        return False

    # ------------------------------------------------------------ where, and what hides it

    def _part(self, text: bytes, escapes: int, decodes: int, late: bool, more: bool, exact: bool) -> tuple[bytes, int]:
        """The same, for one run of text."""
        size = len(text)
        self._left -= size
        if self._left < 0:
            return text.translate(_BLANKED), size
        text, hold = self._plain(text, late, more, exact)
        if escapes and _may_be_quoted(text):
            text, hold = self._unescaped(text, _QUOTED, hold, escapes, decodes, late, more)
        cut = text.translate(None, _CUTS)
        if len(cut) < size:
            shown, at = self._part(cut, escapes, decodes, late, more, False) if cut else (cut, 0)
            if shown != cut or at < len(cut):
                kept = [at for at, byte in enumerate(text) if byte not in _CUTS]
                text = _overwritten(text, cut, shown, kept)
                hold = min(hold, kept[at] if at < len(cut) else size)
            return text, hold
        if escapes and any(mark in text for mark in (b"%", b"\\", b"&")):
            text, hold = self._unescaped(text, _TOKEN, hold, escapes, decodes, late, more)
        if decodes:
            for coding in CODINGS:
                text, at = self._decoded(text, decodes, late, more, coding)
                hold = min(hold, at)
        return text, hold

    def _unescaped(
        self, text: bytes, token: re.Pattern[bytes], hold: int, escapes: int, decodes: int, late: bool, more: bool
    ) -> tuple[bytes, int]:
        """The same, for what a text says when its escapes are undone."""
        size = len(text)
        plain = token.sub(_meaning, text)
        if plain != text:
            shown, at = self._part(plain, escapes - 1, decodes, late, more, False)
            if shown != plain or at < len(plain):
                starts, ends = _tokens(text, token)
                text = _respelled(text, plain, shown, starts, ends)
                hold = min(hold, starts[at] if at < len(plain) else size)
        begun = _UNFINISHED.search(text, max(0, size - _LONGEST_TOKEN)) if more else None
        if begun is not None:  # what comes before it may be the beginning of a value, whatever it becomes
            before = text[: begun.start()]
            plain = token.sub(_meaning, before)
            _, at = self._part(plain, escapes - 1, decodes, late, more, False)
            if at < len(plain):
                hold = min(hold, _tokens(before, token)[0][at])
        return text, hold

    def _plain(self, text: bytes, late: bool, more: bool, exact: bool) -> tuple[bytes, int]:
        """What is spelled as it is.  ``exact``: the text is that of the stream, so its first character is looked at."""
        low = text.lower()
        hold = size = len(low)
        if more:
            for value, _, _ in self._needles:
                hold = min(hold, size - _beginning(low, value, 1 if exact else _EAGER))
        for value, written, instead in self._needles:
            core = value[_FREE:]
            at = low.find(core)
            while at >= 0:
                end = at + len(core)
                begin = at
                while begin > 0 and end - begin < len(value) and low[begin - 1] == value[begin - 1 - end]:
                    begin -= 1
                known = end - begin == len(value) or (late and begin < _NEAR)
                if known and begin < hold:  # what is held back is read again, and may be a longer value
                    text = (
                        text[:begin]
                        + _in_case(text[begin:end], written[begin - end :], instead[begin - end :])
                        + text[end:]
                    )
                at = low.find(core, end)
            low = text.lower()
        return text, hold

    def _decoded(self, text: bytes, decodes: int, late: bool, more: bool, coding: Coding) -> tuple[bytes, int]:
        """What the runs of an alphabet say, at each alignment."""
        size = hold = len(text)
        least = coding.characters(len(self._run))
        if size < least and not more:
            return text, hold
        for start, end in list(_runs(text.translate(coding.classes), b"A" * least, more)):
            last = more and end == size
            if end - start < _SHORTEST_TAIL:
                continue
            for before in range(coding.alignments):
                whole, again = coding.read(text[start:end], before)
                decoded = coding.known(whole, before)
                self._left -= len(decoded)
                if self._left < 0:
                    return text.translate(_BLANKED), size
                classes = decoded.translate(self._class)
                if not (
                    self._run in classes
                    or (last and classes.endswith(b"A" * _EAGER))
                    or (decodes > 1 and self._separated in decoded.translate(self._hexes))
                ):
                    continue
                shown, at = self._text(decoded, decodes - 1, late and start < _NEAR, last, False)
                if shown != decoded:
                    cut = coding.unknown(before)
                    text = text[:start] + again(whole[:cut] + shown[cut:]) + text[end:]
                if at < len(decoded):
                    hold = min(hold, start + max(0, 8 * at // coding.bits - before))
        return text, hold

    def _separated_hex(self, text: bytes, decodes: int, late: bool, more: bool) -> tuple[bytes, int]:
        """Hexadecimal with something between its bytes: ``6b 65 79``, ``6b:65:79``, ``0x6b, 0x65``."""
        size = len(text)
        if len(text.translate(None, _HEX_CUTS + _CUTS + b"xX")) < (2 * _EAGER if more else 2 * len(self._run)):
            return text, size
        digits = _SEPARATORS.sub(b"", text)
        if len(digits) == size or not digits:
            return text, size  # without any it was read with the rest
        shown, at = self._decoded(digits, decodes, late, more, HEX)
        if shown == digits and at == len(digits):
            return text, size
        kept = _kept(_SEPARATORS, text)
        return _overwritten(text, digits, shown, kept), kept[at] if at < len(digits) else size


_SEPARATORS = re.compile(rb"[ \t:,;\-\r\n\0]+|(?<![0-9A-Fa-f])0[xX]|[xX]")


def _classes(members: bytes) -> bytes:
    """A table that makes "A" of the members and a space of the rest."""
    return bytes(0x41 if byte in members else 0x20 for byte in range(256))


def _runs(classes: bytes, least: bytes, more: bool) -> Iterator[tuple[int, int]]:
    """Where the runs of "A" are: those that hold ``least``, and with ``more`` the one at the end."""
    size = len(classes)
    at = classes.find(least)
    end = 0
    while at >= 0:
        start = classes.rfind(b" ", end, at) + 1 or end
        end = classes.find(b" ", at)
        if end < 0:
            end = size
        yield start, end
        at = classes.find(least, end)
    if more and end < size:
        start = classes.rfind(b" ", end) + 1
        if start < size:
            yield start, size


def _beginning(text: bytes, value: bytes, least: int) -> int:
    """How many bytes at the end of ``text`` are the beginning of ``value``; 0 when fewer than ``least``."""
    at = max(0, len(text) - len(value) + 1)
    first = value[:least]
    while (at := text.find(first, at)) >= 0:
        if value.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0


def _in_case(text: bytes, value: bytes, shown: bytes) -> bytes:
    """``shown`` with letters in the case of ``text``, which is ``value`` in some case."""
    if text == value:
        return shown
    return shown.lower() if text.islower() else shown.upper() if text.isupper() else shown


def _may_be_quoted(text: bytes) -> bool:
    return b"=" in text or b"\\\n" in text or b"\\\r\n" in text


def _level(indent: re.Match[bytes]) -> bytes:
    """Line ends for the blanks at the beginning of a line: lines are read as one, also those of YAML and LDIF."""
    found = indent[0]
    return found.rstrip(b" \t").ljust(len(found), b"\n")


# ---------------------------------------------------------------- escapes


def _entities() -> dict[bytes, bytes]:
    from html.entities import html5

    return {
        name.encode("ascii"): char.encode("ascii")
        for name, char in html5.items()
        if len(char) == 1 and char.isascii()
    }  # fmt: skip


_ENTITIES = _entities()
_MEANINGS: dict[bytes, bytes] = {}  # of tokens that were seen


def _meaning(found: re.Match[bytes]) -> bytes:
    """The byte that an escape writes; itself when that is no byte of ASCII."""
    token = found[0]
    known = _MEANINGS.get(token)
    if known is None:
        known = _undone(token)
        if len(_MEANINGS) < 4096:
            _MEANINGS[token] = known
    return known


def _undone(token: bytes) -> bytes:
    mark, rest = token[:1], token[1:]
    if mark in b"=\\" and rest[-1:] == b"\n":
        return b""
    if mark == b"&" and rest[:1] != b"#":
        return _ENTITIES.get(rest, token)
    if mark == b"\\" and len(rest) == 1:
        return _SHORT.get(rest, rest)
    if mark == b"&":
        text = rest[1:].rstrip(b";")
        number = int(text[1:], 16) if text[:1] in b"xX" else int(text)
    elif mark == b"\\" and rest[:1] not in b"uUx":
        number = int(rest, 8)
    else:
        number = int(rest.strip(b"uUx{}"), 16)
    return bytes((number,)) if number < 0x80 else token


def _tokens(text: bytes, token: re.Pattern[bytes]) -> tuple[list[int], list[int]]:
    """Where each byte of the text without its escapes begins and ends; the last one is the end of both."""
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for found in token.finditer(text):
        start, end = found.span()
        meaning = _meaning(found)
        if meaning == found[0]:
            continue
        starts += range(at, start)
        ends += range(at + 1, start + 1)
        starts += [start] * len(meaning)
        ends += [end] * len(meaning)
        at = end
    starts += range(at, len(text) + 1)
    ends += range(at + 1, len(text) + 2)
    return starts, ends


def _respelled(text: bytes, plain: bytes, shown: bytes, starts: Sequence[int], ends: Sequence[int]) -> bytes:
    """``text`` so that it says ``shown`` instead of ``plain``, each byte in the spelling that it had."""
    if plain == shown:
        return text
    out = bytearray(text)
    for index, byte in enumerate(shown):
        if byte != plain[index]:
            start, end = starts[index], ends[index]
            out[start:end] = _respelling(text[start:end], byte)
    return bytes(out)


def _respelling(token: bytes, byte: int) -> bytes:
    """``byte`` in the spelling of ``token``; ``token`` where there is no room for it."""
    if len(token) == 1:
        return bytes((byte,))
    mark, kind = token[:1], token[1:2]
    if mark == b"&":
        close = token[-1:] == b";"
        if kind == b"#" and token[2:3] in b"xX":
            head, digits = token[:3], b"%x" % byte
        else:
            head, digits = b"&#", b"%d" % byte
        room = len(token) - len(head) - close
        if len(digits) > room and head == b"&#":  # of the letters only a, b and c have two digits
            digits = b"%d" % (97 + byte % 3)
        return head + digits.rjust(room, b"0") + b";" * close if len(digits) <= room else token
    if kind in b"uUx" or mark in b"%=":
        head, tail = (token[:2], b"") if kind in b"uUx" else (token[:1], b"")
        if token[2:3] == b"{":
            head, tail = token[:3], b"}"
        digits = b"%0*x" % (len(token) - len(head) - len(tail), byte)
        if len(head) + len(digits) + len(tail) > len(token):
            return token
        return head + (digits if any(char in token[len(head) :] for char in b"abcdef") else digits.upper()) + tail
    if kind in b"01234567":
        digits = b"%0*o" % (len(token) - 1, byte)
        return b"\\" + digits if len(digits) == len(token) - 1 else token
    return token


def _kept(dropped: re.Pattern[bytes], text: bytes) -> list[int]:
    """Where the bytes are that are left when the matches of a pattern are taken out."""
    out: list[int] = []
    at = 0
    for found in dropped.finditer(text):
        out += range(at, found.start())
        at = found.end()
    out += range(at, len(text))
    return out


def _overwritten(text: bytes, before: bytes, after: bytes, places: Sequence[int]) -> bytes:
    """``text`` with each byte that changed put in its place."""
    if before == after:
        return text
    out = bytearray(text)
    for index, byte in enumerate(after):
        if byte != before[index]:
            out[places[index]] = byte
    return bytes(out)


# ---------------------------------------------------------------- codings


class Coding:
    """An encoding of bytes that has a few bits in each character.

    Args:
        bits: of a character.
        alignments: numbers of characters before a run that put each of its bytes in place for some of them.
        read: a run, and so many characters of zero bits before it: the bytes, and what gives the run with other ones.
    """

    __slots__ = ("alignments", "bits", "classes", "others", "read")

    def __init__(
        self,
        alphabet: bytes,
        bits: int,
        alignments: int,
        read: Callable[[bytes, int], tuple[bytes, Callable[[bytes], bytes]]],
    ) -> None:
        self.classes, self.bits, self.alignments = _classes(alphabet), bits, alignments
        self.others = bytes(byte for byte in range(256) if byte not in alphabet)
        self.read = read

    def characters(self, size: int) -> int:
        """How many hold so many bytes."""
        return -(-8 * size // self.bits)

    def unknown(self, before: int) -> int:
        """How many bytes so many characters before a run have a part in."""
        return -(-before * self.bits // 8)

    def known(self, decoded: bytes, before: int) -> bytes:
        """What was read, with NULs for bytes of which a part is not known: chance would make escapes of them."""
        cut = self.unknown(before)
        return bytes(min(cut, len(decoded))) + decoded[cut:]


def _base64(text: bytes, before: int) -> tuple[bytes, Callable[[bytes], bytes]]:
    used = b"A" * before + text.translate(_STANDARD)
    whole = a2b_base64(used + b"A" * (-len(used) % 4))

    def again(shown: bytes) -> bytes:
        made = b2a_base64(shown + whole[len(shown) :], newline=False)[before:]
        if b"-" in text or b"_" in text:
            made = made.replace(b"+", b"-").replace(b"/", b"_")
        # What does not change keeps the alphabet that it had.
        return bytes(
            was if _STANDARD[was] == _STANDARD[new] else new for was, new in zip(text, made[: len(text)], strict=True)
        )

    return whole[: 6 * len(used) // 8], again


def _hex(text: bytes, before: int) -> tuple[bytes, Callable[[bytes], bytes]]:
    used = b"0" * before + text
    end = len(used) & ~1

    def again(shown: bytes) -> bytes:
        made = shown.hex().encode()
        return (made.upper() if text.isupper() else made)[before:] + used[end:]

    return bytes.fromhex(used[:end].decode("ascii")), again


@lru_cache(maxsize=1)  # the alignments of one run are read one after the other
def _number(text: bytes) -> int:
    return int(text.upper().translate(_BASE32_DIGITS), 32)


def _base32(text: bytes, before: int) -> tuple[bytes, Callable[[bytes], bytes]]:
    number = _number(text)
    bits = 5 * (before + len(text))
    spare = bits % 8

    def again(shown: bytes) -> bytes:
        made = int.from_bytes(shown, "big") << spare | number & ((1 << spare) - 1)
        letters = bytes(_BASE32_LETTERS[made >> 5 * at & 31] for at in range(len(text) - 1, -1, -1))
        return letters.lower() if text.islower() else letters

    return (number >> spare).to_bytes(bits // 8, "big"), again


BASE64 = Coding(_BASE64, 6, 4, _base64)
HEX = Coding(_HEX, 4, 2, _hex)
BASE32 = Coding(_BASE32_LETTERS, 5, 8, _base32)
CODINGS = (BASE64, HEX, BASE32, Coding(_BASE32_LETTERS.lower(), 5, 8, _base32))  # no program mixes the cases of base32


# ---------------------------------------------------------------- a stream


class Scrubber:
    """Overwrites values in one stream of bytes, also where a value is cut.

    It holds back only what may be the beginning of a value, and nothing after ``flush``.
    """

    __slots__ = ("_held", "_late", "_more", "_size", "_spellings")

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._held = b""
        self._late = False  # something was passed on
        self._more: list[bytes] = []  # what came since it was read
        self._size = 0  # of that

    def feed(self, data: bytes) -> bytes:
        """Take bytes; give those that are safe to pass on."""
        if len(self._held) > _REREAD:
            self._more.append(data)
            self._size += len(data)
            if self._size < len(self._held) // 8:
                return b""
            data = b"".join(self._more)
            self._more, self._size = [], 0
        data = self._held + data
        text, hold = self._spellings.hide(data, late=self._late, more=True)
        if hold < len(text) - self._spellings.longest:  # no beginning is as long
            text, _ = self._spellings.hide(data, late=self._late)
            hold = len(text) - self._spellings.longest
        self._late = self._late or hold > 0
        self._held = text[hold:]
        return text[:hold]

    def flush(self) -> bytes:
        """What was held back: the stream has ended, so no longer value begins there."""
        held = b"".join((self._held, *self._more))
        self._held, self._more, self._size = b"", [], 0
        return self._spellings.hide(held, late=self._late)[0] if held else held

    def whole(self, data: bytes) -> bytes:
        """Overwrite in bytes that are complete, such as a header value."""
        return self._spellings.hide(data)[0] if data else data
