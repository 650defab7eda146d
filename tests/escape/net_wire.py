"""DNS messages and TLS hellos, byte by byte, as no library would make them.

Its source is also put before the scripts that run inside a sandbox, so it imports the standard library only.
"""

import os

A, NS, CNAME, NULL, PTR, MX, TXT, AAAA, SRV, OPT, HTTPS, AXFR, ANY = (
    *(1, 2, 5, 10, 12, 15, 16, 28, 33, 41, 65, 252, 255),
)
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
X25519, P256 = b"\x00\x1d", b"\x00\x17"
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")  # RFC 8446 section 4.1.3


def vector(size: int, data: bytes) -> bytes:
    """``data`` after its length in ``size`` bytes."""
    return len(data).to_bytes(size, "big") + data


# ---------------------------------------------------------------- DNS (RFC 1035)


def encoded(name: str | bytes) -> bytes:
    """A name on the wire, without compression; labels are not checked."""
    data = name.encode() if isinstance(name, str) else name
    return b"".join(bytes((len(label),)) + label for label in data.split(b".") if label) + b"\0"


def query(
    name: str | bytes, kind: int = A, *, wire: bytes = b"", flags: int = 0x0100, extra: bytes = b"", more: int = 0
) -> bytes:
    """A query; ``wire`` replaces the encoded name, ``extra`` are ``more`` additional records."""
    head = b"\x12\x34" + flags.to_bytes(2, "big") + b"\0\1\0\0\0\0" + more.to_bytes(2, "big")
    return head + (wire or encoded(name)) + kind.to_bytes(2, "big") + b"\0\1" + extra


def edns(options: bytes = b"", version: int = 0) -> bytes:
    """An OPT record (RFC 6891)."""
    return b"\0" + OPT.to_bytes(2, "big") + b"\x10\0" + bytes((0, version, 0, 0)) + vector(2, options)


def code(answer: bytes) -> int:
    """The response code of an answer."""
    return answer[3] & 15


def records(answer: bytes) -> int:
    """How many records the answer section has."""
    return int.from_bytes(answer[6:8], "big")


def address(answer: bytes) -> bytes:
    """The data of the last record, an A or AAAA, when there is one and no additional section."""
    size = int.from_bytes(answer[-6:-4], "big")
    return answer[-4:] if size == 4 else answer[-16:]


# ---------------------------------------------------------------- TLS (RFC 8446)


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, content)


def server_names(*names: str) -> bytes:
    """A server_name extension (RFC 6066 section 3)."""
    return extension(0, vector(2, b"".join(b"\0" + vector(2, name.encode()) for name in names)))


def hello(
    name: str = "",
    *,
    share: tuple[bytes, bytes] | None = None,
    thirteen: bool = False,
    random: bytes = b"",
    session: bytes = b"",
    more: bytes = b"",
    names: bytes = b"",
) -> bytes:
    """A ClientHello message.

    Args:
        name: in the server_name extension; empty for none.  ``names`` replaces the extension.
        share: a group and its key; with ``thirteen`` and none, a server must ask for one (HelloRetryRequest).
        thirteen: TLS 1.3 only, else TLS 1.2, whose server shows its certificate in clear.
        more: further extensions, encoded.
    """
    extensions = names or (server_names(name) if name else b"")
    extensions += extension(10, vector(2, X25519 + P256)) + extension(11, b"\1\0")
    extensions += extension(13, vector(2, bytes.fromhex("0403080408050806040105010601")))
    ciphers = bytes.fromhex("c02bc02cc02fc030")
    if thirteen:
        ciphers = bytes.fromhex("13011302")
        extensions += extension(43, b"\2\3\4")
        extensions += extension(51, vector(2, share[0] + vector(2, share[1]) if share else b""))
    body = b"\3\3" + (random or os.urandom(32)) + vector(1, session) + vector(2, ciphers) + b"\1\0"
    return b"\1" + vector(3, body + vector(2, extensions + more))


def record(data: bytes, kind: int = 22, version: bytes = b"\3\1") -> bytes:
    """A TLS record."""
    return bytes((kind,)) + version + vector(2, data)


def old_hello() -> bytes:
    """A hello in the format of SSL 2.0 that offers TLS 1.2 (RFC 5246 appendix E.2): it has no extensions."""
    ciphers = bytes.fromhex("00c02b00c02c00002f000035")
    body = b"\1\3\3" + len(ciphers).to_bytes(2, "big") + b"\0\0" + b"\0\x10" + ciphers + os.urandom(16)
    return (0x8000 | len(body)).to_bytes(2, "big") + body
