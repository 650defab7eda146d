"""The database in which Chromium finds the authority of a session."""

from __future__ import annotations

import sqlite3

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from membrane.gateway.tls import Authority
from membrane.run import nss


def rows(data: bytes) -> list[dict[str, bytes]]:
    db = sqlite3.connect(":memory:")
    db.deserialize(data)
    db.row_factory = sqlite3.Row
    found = [dict(row) for row in db.execute("SELECT * FROM nssPublic ORDER BY id")]
    db.close()
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def test_each_authority_is_there_with_its_trust() -> None:
    authorities = [Authority(), Authority()]
    found = rows(nss.database(b"".join(each.pem for each in authorities) + authorities[0].pem))
    assert len(found) == 4
    for authority, certificate, trust in zip(authorities, found[::2], found[1::2], strict=True):
        read = x509.load_pem_x509_certificate(authority.pem)
        assert certificate["a11"] == read.public_bytes(Encoding.DER)
        assert certificate["a81"] == certificate["a101"] == trust["a81"] == read.subject.public_bytes()
        assert int.from_bytes(certificate["a82"][2:], "big") == read.serial_number
        assert trust["a82"] == certificate["a82"]
        assert trust["ace536358"].hex() == "ce534352"  # for servers, and for nothing else
        assert {trust[name].hex() for name in ("ace536359", "ace53635a", "ace53635b")} == {"ce53435b"}


def test_what_is_no_certificate_is_left_out() -> None:
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n"
    for content in (b"", b"!!!", b"AAAA", b"MIIBAA==", b"MIGAMA=="):
        assert rows(nss.database(begin + content + end)) == []
    assert rows(nss.database(b"")) == []


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_certificate_that_is_cut_off(cut: int) -> None:
    import base64

    read = x509.load_pem_x509_certificate(Authority().pem).public_bytes(Encoding.DER)
    text = base64.b64encode(read[: min(cut, len(read) - 1)])
    assert rows(nss.database(b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n")) == []
