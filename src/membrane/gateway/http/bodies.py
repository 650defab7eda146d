"""The framing of HTTP/1.1 message bodies, strict and without buffering.

Theory of operation
-------------------
A body takes bytes from a buffer and gives the bytes to forward, as they come.  What is forwarded is written anew
from what was understood: chunk sizes in their shortest form, no chunk extensions, trailers that were checked.  The
output does not depend on how the input was cut.

A ``Scrubber`` may hold bytes back, so with one a chunked body gets chunks of our own size.

What a request's content begins with is looked at (``Opening``): a server that answers without reading the content, and
keeps the connection, takes it for the next request, which nobody has judged.  ``http.server`` of Python is one, and so
were Werkzeug (CVE-2022-29361) and front ends of several clouds ("CL.0", James Kettle, Browser-Powered Desync Attacks).

References: RFC 9112 sections 2.2 (empty lines before a request), 3, 6 and 7.1, RFC 9110 section 6.5.
"""

from __future__ import annotations

import re

from .requests import BAD_CHUNK, BAD_CONTENT, BAD_TRAILER, TOKEN, VALUE, Flaw, no_trailer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Filter(Protocol):
        """What goes over content: a ``spellings.Scrubber``, or what renews a log-in (``logins``)."""

        def feed(self, data: bytes, /) -> bytes: ...

        def flush(self) -> bytes: ...

        def whole(self, data: bytes, /) -> bytes: ...


LONGEST_CHUNK_LINE = 1024  # bytes of a chunk size with its extension
MOST_EXTENSIONS = 16384  # bytes of chunk extensions in one body
LONGEST_TRAILERS = 16384  # bytes
_HEX = b"0123456789ABCDEFabcdef"


# What is blank to str.split() of Python, which reads the request lines of its servers as Latin-1; LF ends them.
_BLANK = rb"\t\v\f\r \x1c-\x1f\x85\xa0"
_SPANS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"[\n\0" + _BLANK + rb"]*",  # before the line
        rb"[" + re.escape(TOKEN) + rb"]*",  # the method
        rb"[" + _BLANK + rb"]*",
        rb"[^\n" + _BLANK + rb"]*",  # the target
        rb"[" + _BLANK + rb"]*",
    )
)
_BEFORE, _METHOD, _GAP, _TARGET, _SECOND_GAP, _VERSION, _DECIDED = range(7)
_HTTP = b"HTTP/"
_LONGEST_METHOD = 64


class Opening:
    """The first line of a request's content, as it comes; nothing of it is kept but a word.

    Any method, target and version are a request, and so are GET and one word (HTTP/0.9 has no version); if that is a
    path, as soon as it begins: the end of the connection would be the end of its line.
    """

    __slots__ = ("_method", "_state", "_version")

    def __init__(self) -> None:
        self._state = _BEFORE
        self._method = self._version = b""

    @property
    def decided(self) -> bool:
        """It is no request, whatever follows."""
        return self._state == _DECIDED

    @property
    def begun(self) -> bool:
        """So far it is the beginning of a line of request, and what the connection carries next would go on with it."""
        return _METHOD < self._state < _DECIDED

    def look(self, data: bytes) -> int:
        """How many of the next bytes may go on: all, or those before the one that makes it a request."""
        at, size = 0, len(data)
        while at < size and self._state != _DECIDED:
            if self._state == _VERSION:
                self._version += data[at : at + 1].upper()
                if self._version == _HTTP:
                    return at
                at += 1
                if not _HTTP.startswith(self._version):
                    self._state = _DECIDED
                continue
            start, span = at, _SPANS[self._state].match(data, at)
            assert span is not None  # each may be empty
            at = span.end()
            if self._state == _METHOD:
                self._method += data[start:at]
                if not 0 < len(self._method) <= _LONGEST_METHOD:
                    self._state = _DECIDED
            if at == size or self._state == _DECIDED:
                return size
            if self._method == b"GET" and (
                (self._state == _GAP and data[at] == 0x2F) or (self._state > _GAP and data[at] == 0x0A)
            ):
                return at
            ends = data[at] == 0x0A or (self._state == _METHOD and data[at] not in _BLANKS)
            self._state = _DECIDED if ends else self._state + 1
        return size


_BLANKS = b"\t\v\f\r \x1c\x1d\x1e\x1f\x85\xa0"


class Body:
    """A body without content; base of the others.

    ``done``: it has ended.  ``size``: of content, so far.  ``opening``: what its content may not begin with, as long as
    that is not decided.
    """

    __slots__ = ("done", "opening", "size")

    def __init__(self) -> None:
        self.done = True
        self.size = 0
        self.opening: Opening | None = None

    def feed(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Take bytes from ``data[at:]``, append what is to be forwarded; the position after what was taken.

        Raises:
            Flaw: the framing is malformed.
        """
        return at

    def end(self, out: list[bytes]) -> bool:
        """The sender has closed; is the body complete?"""
        return self.done

    def _checked(self, piece: bytes) -> tuple[bytes, bool]:
        """What may go on of the content's next bytes, and whether that is all."""
        if self.opening is None:
            return piece, True
        good = self.opening.look(piece)
        if self.opening.decided:
            self.opening = None
        return piece[:good], good == len(piece)


class Sized(Body):
    """Content-Length."""

    __slots__ = ("_left", "_scrubber")

    def __init__(self, length: int, scrubber: Filter | None = None) -> None:
        super().__init__()
        self._left = length
        self._scrubber = scrubber
        self.done = length == 0

    def feed(self, data: bytes, at: int, out: list[bytes]) -> int:
        end = min(at + self._left, len(data))
        if end > at:
            piece = data if at == 0 and end == len(data) else data[at:end]
            self._left -= end - at
            piece, fair = self._checked(piece)
            self.size += len(piece)
            if self._scrubber is not None:
                piece = self._scrubber.feed(piece)
                if not self._left and fair:
                    piece += self._scrubber.flush()
            if piece or fair:
                out.append(piece)
            if not fair:
                raise Flaw(BAD_CONTENT)
            self.done = not self._left
        return end


class UntilClose(Body):
    """An answer that ends when the server closes."""

    __slots__ = ("_scrubber",)

    def __init__(self, scrubber: Filter | None = None) -> None:
        super().__init__()
        self._scrubber = scrubber
        self.done = False

    def feed(self, data: bytes, at: int, out: list[bytes]) -> int:
        piece = data[at:] if at else data
        self.size += len(piece)
        out.append(self._scrubber.feed(piece) if self._scrubber is not None else piece)
        return len(data)

    def end(self, out: list[bytes]) -> bool:
        if self._scrubber is not None:
            out.append(self._scrubber.flush())
        self.done = True
        return True


_SIZE, _DATA, _END, _TRAILERS = range(4)


class Chunked(Body):
    """Transfer-Encoding: chunked.

    Args:
        strict: for requests: no space after the size, and a trailer that is not allowed is a flaw.  Else such a
            space is tolerated (old servers pad), and such a trailer is left out.
        framed: pass the framing on, else only the content (for a client that speaks 1.0).
    """

    __slots__ = ("_extensions", "_fields", "_framed", "_left", "_line", "_scrubber", "_state", "_strict", "_trailers")

    def __init__(self, *, strict: bool, framed: bool = True, scrubber: Filter | None = None) -> None:
        super().__init__()
        self.done = False
        self._strict = strict
        self._framed = framed
        self._scrubber = scrubber
        self._state = _SIZE
        self._left = 0
        self._line = bytearray()  # a line that is not complete
        self._extensions = self._trailers = 0  # bytes
        self._fields: list[bytes] = []

    def feed(self, data: bytes, at: int, out: list[bytes]) -> int:
        size = len(data)
        while at < size and not self.done:
            if self._state == _DATA:
                end = min(at + self._left, size)
                self._content(data[at:end], out)
                self._left -= end - at
                at = end
                if not self._left:
                    self._state = _END
                continue
            found = data.find(b"\n", at)
            self._line += data[at : size if found < 0 else found + 1]
            most = LONGEST_TRAILERS if self._state == _TRAILERS else LONGEST_CHUNK_LINE
            if len(self._line) > most or (self._state == _END and not b"\r\n".startswith(self._line)):
                raise Flaw(BAD_TRAILER if self._state == _TRAILERS else BAD_CHUNK)
            if found < 0:
                return size
            at = found + 1
            if self._line[-2:] != b"\r\n":
                raise Flaw(BAD_CHUNK)
            line = bytes(self._line[:-2])
            self._line.clear()
            if self._state == _SIZE:
                self._begin(line, out)
            elif self._state == _TRAILERS:
                self._trailer(line, out)
            elif line:
                raise Flaw(BAD_CHUNK)
            else:
                if self._framed and self._scrubber is None:
                    out.append(b"\r\n")
                self._state = _SIZE
        return at

    def _begin(self, line: bytes, out: list[bytes]) -> None:
        size, mark, extension = line.partition(b";")
        if not self._strict:
            size = size.rstrip(b" \t")
        if not 0 < len(size) <= 16 or size.translate(None, _HEX) or extension.translate(None, VALUE):
            raise Flaw(BAD_CHUNK)
        self._extensions += len(mark) + len(extension)
        if self._extensions > MOST_EXTENSIONS:
            raise Flaw(BAD_CHUNK)
        self._left = int(size, 16)
        if self._left:
            self._state = _DATA
            if self._framed and self._scrubber is None:
                out.append(b"%x\r\n" % self._left)
            return
        self._state = _TRAILERS
        if self._scrubber is not None:
            self._chunk(self._scrubber.flush(), out)
        if self._framed:
            out.append(b"0\r\n")

    def _content(self, piece: bytes, out: list[bytes]) -> None:
        piece, fair = self._checked(piece)
        self.size += len(piece)
        if self._scrubber is not None:
            self._chunk(self._scrubber.feed(piece), out)
        elif piece or fair:
            out.append(piece)
        if not fair:
            raise Flaw(BAD_CONTENT)

    def _chunk(self, piece: bytes, out: list[bytes]) -> None:
        if piece:
            out.append(b"%x\r\n%b\r\n" % (len(piece), piece) if self._framed else piece)

    def _trailer(self, line: bytes, out: list[bytes]) -> None:
        if not line:
            self.done = True
            if self._framed:
                out += self._fields
                out.append(b"\r\n")
            return
        self._trailers += len(line) + 2
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if (
            self._trailers > LONGEST_TRAILERS
            or not colon
            or not name
            or name.translate(None, TOKEN)
            or value.translate(None, VALUE)
        ):
            raise Flaw(BAD_TRAILER)
        lower = name.lower()
        if self._strict:
            if no_trailer(lower):
                raise Flaw(BAD_TRAILER)
        elif no_trailer(lower) or lower == b"alt-svc":
            return
        elif self._scrubber is not None:
            name, value = self._scrubber.whole(name), self._scrubber.whole(value)
        self._fields.append(b"%b: %b\r\n" % (name, value))
