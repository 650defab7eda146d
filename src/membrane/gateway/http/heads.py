"""The heads of HTTP/1.1 messages: what a request is, how its body is framed, what an answer is.

Theory of operation
-------------------
Request heads come from inside and are parsed by a strict subset of RFC 9112: lines end in CRLF, no line is folded, no
byte is a control character, one length at most.  Answer heads come from a server that the policy admits, and are
written anew before the client reads them; so lines may end in LF and be folded, as old servers do.

References: RFC 9112 sections 2.2, 3, 5, 6.3, 7.1; RFC 9110 sections 7.6.1 (Connection), 7.8 (Upgrade),
10.1.1 (Expect); RFC 6455 section 4.1.
"""

from __future__ import annotations

from .bodies import Body, Chunked, Sized, UntilClose
from .credentials import CODINGS, legible
from .overrides import as_variable
from .requests import (
    BAD_CONNECTION,
    BAD_EXPECTATION,
    BAD_FIELD,
    BAD_LINE,
    BAD_TRANSFER_CODING,
    BAD_VERSION,
    BOTH_LENGTHS,
    FRAMING,
    HOP_BY_HOP,
    MOST_FIELDS,
    RAW_LINE_END,
    TOKEN,
    TOO_MANY_FIELDS,
    VALUE,
    Flaw,
    content_length,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .bodies import Filter
    from .spellings import Scrubber

NOT_HTTP = "the server's answer is malformed"
_CRLF2 = b"\r\n\r\n"
_HOST = frozenset([b"host"])
_HOP_TOKENS = frozenset([b"close", b"keep-alive", b"te", b"upgrade"])
_SPECIAL = HOP_BY_HOP | frozenset(
    [b"content-length", b"expect", b"sec-websocket-key", b"te", b"transfer-encoding", b"upgrade"]
)
_DROPPED = HOP_BY_HOP | frozenset([b"te", b"upgrade", b"host"])
_ANSWER_HOPS = HOP_BY_HOP | frozenset([b"alt-svc", b"content-length", b"transfer-encoding", b"upgrade"])
_ANSWER_TELLS = CODINGS | {b"content-type"}  # how content is to be read
_ANSWER_SPECIAL = _ANSWER_HOPS | _ANSWER_TELLS
_known: dict[bytes, bytes] = {}  # field name as written: in lower case
_MOST_KNOWN = 1024


def _lower(name: bytes) -> bytes:
    """A field name in lower case.

    Raises:
        Flaw: it is not a token.
    """
    lower = _known.get(name)
    if lower is None:
        if not name or name.translate(None, TOKEN):
            raise Flaw(BAD_FIELD)
        lower = name.lower()
        if len(_known) < _MOST_KNOWN and len(name) <= 64:
            _known[name] = lower
    return lower


class RequestHead:
    """A parsed request head."""

    __slots__ = ("method", "names", "raw_names", "target", "values", "version")

    def __init__(self) -> None:
        self.method = self.target = self.version = b""
        self.names: list[bytes] = []
        self.raw_names: list[bytes] = []
        self.values: list[bytes] = []

    def read(self, head: bytes) -> None:
        """Parse everything before the empty line.

        Raises:
            Flaw: it is not exactly the grammar of RFC 9112; ``method`` and ``target`` are what could be read.
        """
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) == 3:
            self.method, self.target, self.version = words
        if first.translate(None, VALUE) or b"".join(lines).translate(None, VALUE):
            raise Flaw(RAW_LINE_END)
        if len(words) != 3 or not self.target:
            raise Flaw(BAD_LINE)
        if self.version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise Flaw(BAD_VERSION)
        if len(lines) > MOST_FIELDS:
            raise Flaw(TOO_MANY_FIELDS)
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise Flaw(BAD_FIELD)
            self.names.append(_lower(name))
            self.raw_names.append(name)
            self.values.append(value.strip(b" \t"))


def _tokens(values: Sequence[bytes]) -> set[bytes]:
    """The members of a comma-separated list, in lower case."""
    return {token.strip(b" \t").lower() for value in values for token in value.split(b",")}


class Framing:
    """What the fields of a request head say about its body and its hop."""

    __slots__ = ("chunked", "close", "dropped", "expects", "hop", "length", "modern", "websocket_key")

    def __init__(self, head: RequestHead) -> None:
        """Read them.

        Raises:
            Flaw: they contradict each other, or may be read in two ways.
        """
        self.length, self.chunked, self.expects = -1, False, False
        self.websocket_key = b""
        self.hop: list[bytes] = []  # what goes into our own Connection field
        self.dropped = _HOST
        self.modern = modern = head.version == b"HTTP/1.1"
        self.close = not modern
        special: dict[bytes, list[bytes]] = {}
        for name, value in zip(head.names, head.values, strict=True):
            if name in _SPECIAL:
                special.setdefault(name, []).append(value)
            elif name not in FRAMING and as_variable(name) in FRAMING:
                raise Flaw(BAD_FIELD)
        if special:
            self._read(special, head.method)

    def _read(self, special: dict[bytes, list[bytes]], method: bytes) -> None:
        self.length = content_length(special.get(b"content-length", ()))
        if b"transfer-encoding" in special:
            codings = special[b"transfer-encoding"]
            if len(codings) > 1 or codings[0].lower() != b"chunked" or not self.modern:
                raise Flaw(BAD_TRANSFER_CODING)
            if self.length >= 0:
                raise Flaw(BOTH_LENGTHS)
            self.chunked = True
        tokens = _tokens(special.get(b"connection", ()))
        if not tokens.isdisjoint(FRAMING):
            raise Flaw(BAD_CONNECTION)
        dropped = (tokens - _HOP_TOKENS) | _DROPPED
        if b"close" in tokens:
            self.close = True
        elif b"keep-alive" in tokens and self.modern:
            self.hop.append(b"keep-alive")
        if special.get(b"te") == [b"trailers"]:
            self.hop.append(b"TE")
            dropped -= {b"te"}
        if b"expect" in special:
            expectations = special[b"expect"]
            if len(expectations) > 1 or expectations[0].lower() != b"100-continue":
                raise Flaw(BAD_EXPECTATION)
            self.expects = self.modern and self.body
            if not self.expects:
                dropped |= {b"expect"}
        if b"upgrade" in special and method == b"GET" and self._asks_for_websocket(special, tokens):
            self.hop = [b"Upgrade"]
            dropped -= {b"upgrade"}
        self.dropped = frozenset(dropped)

    def _asks_for_websocket(self, special: dict[bytes, list[bytes]], tokens: set[bytes]) -> bool:
        """A WebSocket handshake goes on as one; any other upgrade is not passed on, and so not taken."""
        upgrades, keys = special[b"upgrade"], special.get(b"sec-websocket-key", [])
        if (
            len(upgrades) == 1
            and upgrades[0].lower() == b"websocket"
            and b"upgrade" in tokens
            and len(keys) == 1
            and self.modern
            and not self.body
        ):
            self.websocket_key = keys[0]
        return bool(self.websocket_key)

    @property
    def body(self) -> bool:
        return self.chunked or self.length > 0

    def reader(self, scrubber: Filter | None = None) -> Body:
        """What reads the content; ``scrubber``: what goes over it."""
        return Chunked(strict=True, scrubber=scrubber) if self.chunked else Sized(max(self.length, 0), scrubber)


def end_of_head(data: bytearray) -> tuple[int, int]:
    """Where an answer's head ends and what follows begins; lines may end in LF alone (RFC 9112 section 2.2)."""
    strict = data.find(_CRLF2)
    loose = data.find(b"\n\n")
    mixed = data.find(b"\n\r\n")
    ends = [(at, at + size) for at, size in ((strict, 4), (loose, 2), (mixed, 3)) if at >= 0]
    return min(ends, default=(-1, -1))


class AnswerHead:
    """A parsed answer head.  Read more leniently than a request: it is written anew, for the client alone."""

    __slots__ = ("_chunked", "_fields", "_length", "close", "coded", "folded", "reason", "status")

    def __init__(self, head: bytes) -> None:
        """Parse everything before the empty line.

        Raises:
            Flaw: it is not an HTTP/1 answer, or its length is ambiguous.
        """
        if b"\r" in head:
            head = head.replace(b"\r\n", b"\n")
        self.folded = b"\n " in head or b"\n\t" in head
        if self.folded:
            head = head.replace(b"\n ", b"  ").replace(b"\n\t", b"  ")  # a folded line is one line
        if b"\r" in head or b"\0" in head:
            raise Flaw(NOT_HTTP)
        first, *lines = head.split(b"\n")
        version, _, rest = first.partition(b" ")
        code, _, reason = rest.partition(b" ")
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit() or code < b"100":
            raise Flaw(NOT_HTTP)
        if len(lines) > 4 * MOST_FIELDS:
            raise Flaw(NOT_HTTP)
        self.status = int(code)
        self.reason = reason.strip()
        self._fields: list[tuple[bytes, bytes, bytes]] = []
        special: dict[bytes, list[bytes]] = {}
        for line in lines:
            raw, colon, value = line.partition(b":")
            value = value.strip()
            if not colon:
                raise Flaw(NOT_HTTP)
            name = _known.get(raw)
            if name is None:
                try:
                    name = _lower(raw)
                except Flaw:
                    raise Flaw(NOT_HTTP) from None
            self._fields.append((raw, name, value))
            if name in _ANSWER_SPECIAL:
                special.setdefault(name, []).append(value)
        self._frame(special, version == b"HTTP/1.0")

    def _frame(self, special: dict[bytes, list[bytes]], old: bool) -> None:
        """Find the length, and take away what is for this hop alone."""
        tokens = _tokens(special.get(b"connection", ()))
        self.close = old or b"close" in tokens
        self.coded = not all(legible(name, value) for name in _ANSWER_TELLS for value in special.get(name, ()))
        codings = special.get(b"transfer-encoding", ())
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked" or old):
            raise Flaw(NOT_HTTP)
        lengths = {length.strip() for value in special.get(b"content-length", ()) for length in value.split(b",")}
        if len(lengths) > 1 or any(not length.isdigit() or len(length) > 18 for length in lengths):
            raise Flaw(NOT_HTTP)
        self._chunked = bool(codings)
        self._length = -1 if codings or not lengths else int(min(lengths))
        if special:
            gone = (tokens - FRAMING - _HOP_TOKENS) | _ANSWER_HOPS
            if self.status == 101:
                gone -= {b"upgrade"}
            fields = [field for field in self._fields if field[1] not in gone]
            # The length is written once, after all else.
            if self._length >= 0 and self.status >= 200 and self.status != 204:
                fields.append((b"Content-Length", b"content-length", b"%d" % self._length))
            elif self._chunked and self.status >= 200 and self.status not in (204, 304):
                fields.append((b"Transfer-Encoding", b"transfer-encoding", b"chunked"))
            self._fields = fields

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field."""
        return [value for _, each, value in self._fields if each == name]

    def reader(self, bodiless: bool, scrubber: Filter | None, *, modern: bool) -> tuple[Body, bool]:
        """What reads the content, and whether a close ends it (RFC 9112 section 6.3).

        Args:
            modern: the client speaks 1.1; an older one gets the content of chunks without their framing.
        """
        if bodiless:
            return Body(), False
        if self._chunked:
            if not modern:
                self._fields = [field for field in self._fields if field[1] != b"transfer-encoding"]
            return Chunked(strict=False, framed=modern, scrubber=scrubber), not modern
        if self._length >= 0:
            return Sized(self._length, scrubber), False
        return UntilClose(scrubber), True

    def shown(self, scrubber: Scrubber | None) -> tuple[tuple[bytes, bytes], ...]:
        """Name and value of each field, as the client gets it."""
        if scrubber is None:
            return tuple((name, value) for _, name, value in self._fields)
        return tuple((scrubber.whole(name), scrubber.whole(value)) for _, name, value in self._fields)

    def write(self, connection: bytes, scrubber: Scrubber | None) -> bytes:
        """The head as the client gets it."""
        reason = self.reason if scrubber is None else scrubber.whole(self.reason)
        out = [b"HTTP/1.1 %d %b\r\n" % (self.status, reason)]
        if scrubber is None:
            out += [b"%b: %b\r\n" % (raw, value) for raw, _, value in self._fields]
        else:
            out += [b"%b: %b\r\n" % (scrubber.whole(raw), scrubber.whole(value)) for raw, _, value in self._fields]
        out.append(b"Connection: %b\r\n\r\n" % connection if connection else b"\r\n")
        return b"".join(out)
