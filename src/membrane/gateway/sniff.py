"""What are the first bytes of a client?

Theory of operation
-------------------
``classify`` looks at everything that a client has sent so far and says what it is, or ``None`` while more bytes
could change the answer.  It is a pure function of a prefix, and stable: once it answers, no further byte changes
the answer.  So a hello that drips in byte by byte, or is cut into many TLS records, reads as the whole one.

Whatever starts as a TLS handshake is ``tls``, also when it is malformed: then ``flaw`` says what is wrong, and a
connection that is bound to a name is refused.  A server may be more lenient than this parser; passing a hello
that was not understood would let a name through that was not seen.  So are the openings that some servers read
over before the hello: a warning alert, another record version, the record format of SSL 2.0.

A TLS 1.3 server may ask for a second hello (HelloRetryRequest), and some then serve the name in that one.
``asks_again`` recognises the question, ``after_retry`` finds the second hello behind what may precede it.

References: RFC 8446 sections 4.1.2 to 4.1.4, 4.2, 5.1 (ClientHello, retry, records), RFC 6066 section 3 (server_name),
RFC 5246 appendix E.2 (SSL 2.0 format),
RFC 7301 section 3.1 (ALPN), RFC 9849 section 5 (ECH), RFC 9112 section 3 (request line), RFC 9113 section 3.4.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    Kind: TypeAlias = Literal["tls", "http/1.1", "h2", "other"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HANDSHAKE = 0x16  # TLS record type
_CHANGE_CIPHER, _ALERT, _APPLICATION = 0x14, 0x15, 0x17  # further record types
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")  # RFC 8446 section 4.1.3
SHORTEST = 6  # bytes with which it is known what may be a hello
ANSWERED = 43  # bytes of a server's first record with which ``asks_again`` is decided
MOST_RECORDS = 64  # that one hello may be cut into
LONGEST_HELLO = 16384  # bytes
LONGEST_LINE = 8192  # bytes of an HTTP/1 request line
LONGEST_METHOD = 32
ENOUGH = LONGEST_HELLO + 4 + 5 * MOST_RECORDS  # bytes that always give an answer
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_SERVER_NAME, _ALPN, _ECH, _ESNI = 0, 16, 0xFE0D, 0xFFCE


class First(Value):
    """What a client said first.

    ``sni`` is lower case, without a trailing dot, and empty when the hello has none.  ``ech``: the hello carries
    an encrypted one (or the padding that looks like it), which may hold another name.  ``flaw``: why a hello
    cannot be trusted.  ``method`` and ``target`` are those of an HTTP/1 request line, as sent.
    """

    kind: Kind
    sni: str = ""
    alpn: tuple[str, ...] = ()
    ech: bool = False
    flaw: str = ""
    method: str = ""
    target: str = ""


_OTHER = First("other")
_H2 = First("h2")
_HIDDEN = First("tls", flaw="ClientHello in an old format, or behind another record")


class _Malformed(Exception):
    """The text is the flaw."""


def classify(data: bytes) -> First | None:
    """What the client's first bytes are; ``None`` while more of them are needed.

    Never raises, and never returns ``None`` for ``ENOUGH`` bytes or more.
    """
    if not data:
        return None
    if data[0] == HANDSHAKE and data[1:2] in (b"", b"\3"):
        try:
            return _tls(data)[0]
        except _Malformed as flaw:
            return First("tls", flaw=str(flaw))
    if may_be_hello(data):
        return _HIDDEN if len(data) >= SHORTEST else None
    head = data[:24]
    if PREFACE.startswith(head):
        return _H2 if len(head) == 24 else None
    return _http1(data)


def may_be_hello(data: bytes) -> bool:
    """Do the first bytes fit a TLS client?  Also one whose hello would be read by some server, but not here."""
    kind = data[0]
    if kind & 0xC0 == 0x80:  # SSL 2.0: length with the top bit, CLIENT-HELLO, version
        version = data[3:5]
        return data[2:3] in (b"", b"\1") and (version[:1] == b"\3" or b"\0\2".startswith(version))
    # Whatever version: s2n-tls takes any in the first record (tls/s2n_record_read.c), Go all below 16.
    if kind == HANDSHAKE:
        return data[5:6] in (b"", b"\1")
    # Whole records only: one byte of change_cipher_spec, two of a warning.
    whole = {_CHANGE_CIPHER: b"\0\1\1", _ALERT: b"\0\2\1"}.get(kind)
    return whole is not None and whole.startswith(data[3:6])


def asks_again(answer: bytes) -> bool | None:
    """Do a server's first bytes ask for a second hello?  ``None`` while fewer than ``ANSWERED`` leave it open."""
    if answer[:1] not in (b"", b"\x16") or answer[5:6] not in (b"", b"\2"):
        return False
    return None if len(answer) < ANSWERED else answer[11:ANSWERED] == _RETRY


def after_retry(data: bytes) -> bytes:
    """What a client sent, without the records that may come before its second hello."""
    while data and data[0] in (_CHANGE_CIPHER, _ALERT, _APPLICATION):
        if len(data) < 5:
            return b""
        data = data[5 + int.from_bytes(data[3:5], "big") :]
    return data


def hello_end(data: bytes) -> int:
    """Bytes of the records that hold the hello at the start of ``data``, which ``classify`` has found in order."""
    return _tls(data)[1]


def _http1(data: bytes) -> First | None:
    end = data.find(b"\n")
    line = data if end < 0 else data[:end]
    space = line.find(b" ")
    method = line[: LONGEST_METHOD + 1] if space < 0 else line[:space]
    if not method or len(method) > LONGEST_METHOD or not _TOKEN.issuperset(method):
        return _OTHER
    if end > LONGEST_LINE or (end < 0 and len(data) > LONGEST_LINE):
        return _OTHER
    if end < 0:
        return None
    words = line.removesuffix(b"\r").split(b" ")
    if len(words) != 3 or not words[1] or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        return _OTHER
    # "PROXY UNKNOWN" and any other text is a whole header of the PROXY protocol, version 1: TLS follows, unseen.
    if words[0].upper() == b"PROXY":
        return _OTHER
    return First("http/1.1", "", (), False, "", method.decode("ascii"), words[1].decode("latin-1"))


def _tls(data: bytes) -> tuple[First | None, int]:
    """Join the handshake bytes of the records and read the ClientHello in them; where the last record ends."""
    hello = bytearray()
    at = announced = 0
    for _ in range(MOST_RECORDS):
        record = data[at : at + 5]
        if (record and record[0] != HANDSHAKE) or (len(record) > 1 and record[1] != 3):
            raise _Malformed("ClientHello is interrupted by another record")
        if len(record) < 5:
            return None, at
        length = int.from_bytes(record[3:], "big")
        if not 0 < length <= 16384:
            raise _Malformed("TLS record has an impossible length")
        part = data[at + 5 : at + 5 + length]
        hello += part
        announced += length
        at += 5 + length
        if hello and hello[0] != 1:
            raise _Malformed("first handshake message is not a ClientHello")
        if len(hello) >= 4:
            need = 4 + int.from_bytes(hello[1:4], "big")
            if need > 4 + LONGEST_HELLO:
                raise _Malformed("ClientHello is too long")
            if announced > need:
                raise _Malformed("ClientHello shares a record with another message")
            if len(hello) >= need:
                return _hello(bytes(hello[4:need])), at
        if len(part) < length:
            return None, at
    raise _Malformed("ClientHello is cut into too many records")


class _Cursor:
    """Reads length-prefixed vectors (RFC 8446 section 3.4) and fails when one is longer than what holds it."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise _Malformed("ClientHello is malformed")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    def more(self) -> bool:
        return self.at < len(self.data)


def _hello(body: bytes) -> First:
    cursor = _Cursor(body)
    cursor.take(34)  # legacy_version, random
    if len(cursor.vector(1)) > 32:  # legacy_session_id
        raise _Malformed("ClientHello is malformed")
    cursor.vector(2)  # cipher_suites
    cursor.vector(1)  # legacy_compression_methods
    if not cursor.more():
        return First("tls")
    extensions = _Cursor(cursor.vector(2))
    if cursor.more():
        raise _Malformed("ClientHello is malformed")
    sni = ""
    alpn: tuple[str, ...] = ()
    ech = False
    seen: set[int] = set()
    while extensions.more():
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise _Malformed("ClientHello repeats an extension")
        seen.add(kind)
        if kind == _SERVER_NAME:
            sni = _server_name(content)
        elif kind == _ALPN:
            alpn = _protocols(content)
        elif kind in (_ECH, _ESNI):
            ech = True
    return First("tls", sni=sni, alpn=alpn, ech=ech)


def _server_name(content: bytes) -> str:
    outer = _Cursor(content)
    entries = _Cursor(outer.vector(2))
    if entries.number(1) != 0:
        raise _Malformed("server_name has an unknown type")
    name = entries.vector(2).lower()
    if entries.more() or outer.more():
        raise _Malformed("server_name has several names")
    name = name.removesuffix(b".")
    if not 0 < len(name) <= 253 or not _NAME.issuperset(name) or b".." in name or name.startswith(b"."):
        raise _Malformed("server_name is malformed")
    return name.decode("ascii")


def _protocols(content: bytes) -> tuple[str, ...]:
    outer = _Cursor(content)
    entries = _Cursor(outer.vector(2))
    if outer.more():
        raise _Malformed("ALPN is malformed")
    out = []
    while entries.more():
        name = entries.vector(1)
        if not name:
            raise _Malformed("ALPN is malformed")
        out.append(name.decode("latin-1"))
    return tuple(out)
