"""What an inspected session trusts: files in PEM, and Java's key store, seen by Java's own tool where there is one."""

from __future__ import annotations

import datetime
import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from membrane.errors import HostError, PolicyError
from membrane.run.trust import key_store, read_authorities, read_authority


def certificate(name: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime(2026, 1, 1)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now)
    return builder.not_valid_after(now + datetime.timedelta(days=9000)).sign(key, hashes.SHA256())


def pem(*certificates: x509.Certificate) -> bytes:
    return b"# a comment\n".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def read(store: bytes) -> dict[str, bytes]:
    """The certificates of a JKS by alias, read as ``JavaKeyStore.engineLoad`` does."""
    seed = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    assert hashlib.sha1(seed + store[:-20], usedforsecurity=False).digest() == store[-20:]
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        assert at <= len(store) - 20
        return store[at - count : at]

    def number(octets: int) -> int:
        return int.from_bytes(take(octets), "big")

    assert (number(4), number(4)) == (0xFEEDFEED, 2)
    found = {}
    for _ in range(number(4)):
        assert number(4) == 2
        alias = take(number(2)).decode()
        take(8)
        assert take(number(2)) == b"X.509"
        found[alias] = take(number(4))
    assert at == len(store) - 20
    return found


def test_a_key_store_holds_every_certificate() -> None:
    certificates = [certificate(name) for name in "abc"]
    found = read(key_store(pem(*certificates)))
    assert list(found.values()) == [each.public_bytes(serialization.Encoding.DER) for each in certificates]
    assert len(found) == 3
    assert read(key_store(b"")) == {}


def test_what_is_no_base64_is_an_error() -> None:
    with pytest.raises(HostError, match="certificates for Java"):
        key_store(b"-----BEGIN CERTIFICATE-----\nQ\n-----END CERTIFICATE-----\n")


@pytest.mark.needs_tool("keytool")
@pytest.mark.parametrize("password", [("-storepass", "changeit"), ()])
def test_keytool_reads_it(tmp_path: Path, password: tuple[str, ...]) -> None:
    """With the password, whose checksum is verified, and without."""
    made = certificate("made for Java")
    (tmp_path / "store").write_bytes(key_store(pem(certificate("other"), made)))
    command = ["keytool", "-J-Xshare:auto", "-list", "-rfc", "-keystore", str(tmp_path / "store"), *password]
    done = subprocess.run(command, input=b"\n", capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert b"".join(pem(made).split()) in b"".join(done.stdout.split())
    assert done.stdout.count(b"BEGIN CERTIFICATE") == 2


def test_authorities_are_read_one_after_the_other(tmp_path: Path) -> None:
    first, second = pem(certificate("a")), pem(certificate("b"))
    (tmp_path / "a").write_bytes(first.rstrip(b"\n"))
    (tmp_path / "b").write_bytes(second)
    assert read_authorities([str(tmp_path / "a"), str(tmp_path / "b")]) == first + second
    assert read_authorities([]) == b""


def test_what_holds_no_certificate_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    os.mkfifo(tmp_path / "fifo")  # without a writer: reading it must not wait
    for name in ("text", "fifo", "none"):
        with pytest.raises(PolicyError, match=f"cannot trust the certificates of {tmp_path / name}: ") as refused:
            read_authorities([str(tmp_path / name)])
        assert refused.value.exit_code == 78, "as of every rule that cannot be bound"


def test_an_authority_has_a_certificate_and_a_key(tmp_path: Path) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    (tmp_path / "c").write_bytes(pem(certificate("c")))
    (tmp_path / "k").write_bytes(key)
    assert read_authority([str(tmp_path / "c"), str(tmp_path / "k")]) == ((tmp_path / "c").read_bytes(), key)
    assert read_authority([]) is None
    with pytest.raises(PolicyError, match="holds no key"):
        read_authority([str(tmp_path / "c"), str(tmp_path / "c")])
