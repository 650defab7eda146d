"""The key store that Java reads, taken apart again as JavaKeyStore does."""

from __future__ import annotations

import base64
import hashlib

from membrane.trust import java_store


def pem(content: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(content) + b"-----END CERTIFICATE-----\n"


def read(store: bytes) -> list[bytes]:
    body, proof = store[:-20], store[-20:]
    password = "changeit".encode("utf-16-be")
    assert hashlib.sha1(password + b"Mighty Aphrodite" + body).digest() == proof
    assert body[:8] == bytes.fromhex("feedfeed00000002")
    at, found = 12, []

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return body[at - count : at]

    for _ in range(int.from_bytes(body[8:12], "big")):
        assert take(4) == b"\0\0\0\x02"  # a trusted certificate
        assert take(int.from_bytes(take(2), "big")).startswith(b"membrane-")
        take(8)
        assert take(int.from_bytes(take(2), "big")) == b"X.509"
        found.append(take(int.from_bytes(take(4), "big")))
    assert at == len(body)
    return found


def test_a_java_store_holds_each_certificate_of_the_bundle_once() -> None:
    first, second = b"0\x82first" * 50, b"0\x82second" * 90
    bundle = b"# a comment\n" + pem(first) + pem(second) + b"\n# another\n" + pem(first)
    assert read(java_store(bundle)) == [first, second]
    assert read(java_store(b"")) == []
