"""The certificates of a session as a database of NSS, where Chromium looks for authorities that a user trusts.

Theory of operation
-------------------
Chromium asks no variable and no bundle of the distribution: beside its own list it takes what the user's database,
``~/.pki/nssdb``, trusts.  That is ``cert9.db``, an SQLite file with one row for each PKCS #11 object and one column for
each attribute (lib/softoken/sdb.c of NSS): for an authority a certificate and an object that says what for it is
trusted.  A database without ``key4.db`` has no password, so nothing in it is signed (sftkdb.c,
``sftkdb_isAuthenticatedAttribute``); NSS adds what it misses, for which the directory must be writable.

References: PKCS #11 v2.40 (attributes), lib/util/pkcs11n.h of NSS (its own ones), RFC 5280 section 4.1 (certificates).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "cert9.db"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
# Attributes that a database has columns for (``known_attributes`` of sdb.c): first and last of each run.
_COLUMNS = (
    (0x0, 0x3), (0x10, 0x12), (0x80, 0x8B), (0x90, 0x90), (0x100, 0x10C), (0x110, 0x111), (0x120, 0x129),
    (0x130, 0x134), (0x160, 0x166), (0x170, 0x170), (0x180, 0x181), (0x200, 0x202), (0x210, 0x210), (0x300, 0x302),
    (0x400, 0x406), (0x480, 0x482), (0x500, 0x503), (0x40000211, 0x40000212), (0x80000001, 0x80000001),
    (0xCE534351, 0xCE534358), (0xCE534364, 0xCE534369), (0xCE534373, 0xCE534374), (0xCE536351, 0xCE536360),
    (0xCE5363B4, 0xCE5363B5), (0xD5A0DB00, 0xD5A0DB00),
)  # fmt: skip
_CLASS, _TOKEN, _PRIVATE, _LABEL, _MODIFIABLE = 0x0, 0x1, 0x2, 0x3, 0x170
_VALUE, _TYPE, _ISSUER, _SERIAL, _SUBJECT, _ID = 0x11, 0x80, 0x81, 0x82, 0x101, 0x102
_SERVERS, _CLIENTS, _CODE, _MAIL, _STEP_UP = 0xCE536358, 0xCE536359, 0xCE53635A, 0xCE53635B, 0xCE536360
_SHA1, _MD5 = 0xCE5363B4, 0xCE5363B5  # of the certificate that the trust is about
_CERTIFICATE, _TRUST = 1, 0xCE534353  # classes
_AUTHORITY, _NO_SAY = 0xCE534352, 0xCE53435B  # CKT_NSS_TRUSTED_DELEGATOR, CKT_NSS_MUST_VERIFY_TRUST
_X509 = 0
_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0  # DER tags


def database(pem: bytes) -> bytes:
    """``cert9.db`` that trusts each certificate of ``pem`` as an authority for servers; what is none is left out.

    Empty where this Python has no sqlite3.
    """
    try:
        import sqlite3
    except ImportError:
        return b""
    columns = [_column(number) for first, last in _COLUMNS for number in range(first, last + 1)]
    with sqlite3.connect(":memory:") as db:
        db.execute(f"CREATE TABLE nssPublic (id PRIMARY KEY UNIQUE ON CONFLICT ABORT, {', '.join(columns)})")
        for name, number in (("issuer", _ISSUER), ("subject", _SUBJECT), ("label", _LABEL), ("ckaid", _ID)):
            db.execute(f"CREATE INDEX {name} ON nssPublic ({_column(number)})")
        for index, row in enumerate(row for certificate in dict.fromkeys(_der(pem)) for row in _objects(certificate)):
            names = ", ".join(map(_column, row))
            places = ", ".join("?" * len(row))
            values = [value.to_bytes(4, "big") if isinstance(value, int) else value for value in row.values()]
            db.execute(f"INSERT INTO nssPublic (id, {names}) VALUES (?, {places})", (index + 1, *values))  # noqa: S608
    data: bytes = db.serialize()
    db.close()
    return data


def _column(number: int) -> str:
    return f"a{number:x}"


def _der(pem: bytes) -> Iterator[bytes]:
    import binascii

    for part in pem.split(_BEGIN)[1:]:
        try:
            yield binascii.a2b_base64(part.partition(_END)[0])
        except binascii.Error:
            continue


def _objects(certificate: bytes) -> Iterator[dict[int, int | bytes]]:
    """The certificate and its trust, as attributes; nothing for what cannot be read."""
    from hashlib import md5, sha1

    try:
        serial, issuer, subject = _names(certificate)
    except ValueError:
        return
    digest = sha1(certificate, usedforsecurity=False).digest()
    common = {_TOKEN: b"\1", _PRIVATE: b"\0", _MODIFIABLE: b"\1", _LABEL: b"membrane session"}
    yield {
        _CLASS: _CERTIFICATE, **common, _VALUE: certificate, _TYPE: _X509, _ISSUER: issuer, _SERIAL: serial,
        _SUBJECT: subject, _ID: digest,
    }  # fmt: skip
    yield {
        _CLASS: _TRUST, **common, _ISSUER: issuer, _SERIAL: serial, _SERVERS: _AUTHORITY, _CLIENTS: _NO_SAY,
        _CODE: _NO_SAY, _MAIL: _NO_SAY, _STEP_UP: b"\0", _SHA1: digest,
        _MD5: md5(certificate, usedforsecurity=False).digest(),
    }  # fmt: skip


def _names(certificate: bytes) -> tuple[bytes, bytes, bytes]:
    """Serial number, issuer and subject of a certificate, DER.

    Raises:
        ValueError: it is none.
    """
    _tag, outer, _end = _element(certificate, 0)
    _tag, at, _end = _element(certificate, outer)
    found: list[bytes] = []
    while len(found) < 6:  # version; serialNumber, signature, issuer, validity, subject
        tag, _start, end = _element(certificate, at)
        if not found and tag != _VERSION:
            found.append(b"")  # the first version writes none
        found.append(certificate[at:end])
        at = end
    _version, serial, _signature, issuer, _validity, subject = found[:6]
    if serial[:1] != bytes([_INTEGER]) or issuer[:1] != bytes([_SEQUENCE]) or subject[:1] != bytes([_SEQUENCE]):
        raise ValueError("not a certificate")
    return serial, issuer, subject


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, where the content begins, and where it ends, of the DER element at ``at``."""
    if at + 2 > len(data):
        raise ValueError("the certificate is cut off")
    size, start = data[at + 1], at + 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[at + 2 : start], "big")
    if start + size > len(data):
        raise ValueError("the certificate is cut off")
    return data[at], start, start + size
