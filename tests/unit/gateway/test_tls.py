"""Certificates of the session, tried with the clients and servers of the ``ssl`` module (in memory)."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from membrane.errors import HostError
from membrane.gateway import tls
from membrane.gateway.tls import BACKDATED, LIFETIME, MOST_CONTEXTS, Authority, client_context, explain

NAME = "api.example.com"


def connect(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A handshake without sockets; both ends of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = client.wrap_bio(to_client, to_server, server_hostname=name)
    outside = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (inside, outside):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert inside.version() and outside.version()
    return inside, outside


def trusting(authority: Authority, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def leaf(authority: Authority, name: str) -> x509.Certificate:
    inside, _ = connect(authority.server_context(name), trusting(authority), name)
    der = inside.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize("name", [NAME, "*.example.com", "198.51.100.7", "2001:db8::7", "a" * 63 + ".example"])
def test_a_leaf_is_for_exactly_one_name(name: str) -> None:
    authority = Authority()
    asked = name.replace("*", "wild")
    if "*" in name:
        asked = name = "wild.example.com"
    certificate = leaf(authority, asked)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert len(list(names)) == 1
    assert str(next(iter(names)).value) == name
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(authority.server_context(name), trusting(authority), "other.example.com")


def test_the_chain_satisfies_the_strictest_check() -> None:
    authority = Authority()
    context = trusting(authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    inside, outside = connect(authority.server_context(NAME), context, NAME)
    outside.write(b"hello")
    assert inside.read(5) == b"hello"
    key = leaf(authority, NAME).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def test_another_session_is_not_trusted() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(Authority().server_context(NAME), trusting(Authority()), NAME)


def test_the_client_gets_exactly_the_protocol_that_the_server_chose() -> None:
    authority = Authority()
    both = trusting(authority, ("h2", "http/1.1"))
    for protocol in ("h2", "http/1.1"):
        inside, _ = connect(authority.server_context(NAME, protocol), both, NAME)
        assert inside.selected_alpn_protocol() == protocol
    inside, _ = connect(authority.server_context(NAME), both, NAME)
    assert inside.selected_alpn_protocol() is None


def test_leaves_begin_an_hour_ago_and_are_renewed_at_half_time() -> None:
    now = 1_800_000_000.0
    authority = Authority(lambda: now)
    first = authority.server_context(NAME)
    pem = authority._issue(NAME, now)
    certificate = x509.load_pem_x509_certificates(pem)[0]
    assert certificate.not_valid_before_utc == datetime.fromtimestamp(now - BACKDATED, UTC)
    assert certificate.not_valid_after_utc == datetime.fromtimestamp(now + LIFETIME, UTC)
    now += LIFETIME / 2 - 1
    assert authority.server_context(NAME) is first
    now += 1
    assert authority.server_context(NAME) is not first


def test_contexts_are_bounded() -> None:
    authority = Authority()
    first = authority.server_context("host0.example")
    for number in range(1, MOST_CONTEXTS + 1):
        authority._contexts[f"host{number}.example", ""] = (float("inf"), first)
    authority.server_context("one-more.example")
    assert len(authority._contexts) <= MOST_CONTEXTS + 1
    assert ("host0.example", "") not in authority._contexts


def test_no_key_is_on_disk_and_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    authority = Authority()
    authority.server_context(NAME)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert b"PRIVATE" not in authority.pem and "Private" not in repr(authority)


def test_the_authority_may_sign_leaves_only() -> None:
    certificate = x509.load_pem_x509_certificate(Authority().pem)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 0
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature


@pytest.fixture
def fresh_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_client_contexts", {})


@pytest.mark.usefixtures("fresh_contexts")
def test_servers_are_verified_unless_the_policy_says_otherwise(tmp_path: Path) -> None:
    real = Authority()
    pem = tmp_path / "ca.pem"
    pem.write_bytes(real.pem)
    server = real.server_context(NAME, "h2")
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        connect(server, client_context(("h2",)), NAME)
    assert explain(raised.value).startswith("the server's certificate is not valid: ")
    inside, _ = connect(server, client_context(("h2", "http/1.1"), (str(pem),)), NAME)
    assert inside.selected_alpn_protocol() == "h2"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, client_context((), (str(pem),)), "other.example.com")
    connect(server, client_context(insecure=True), "other.example.com")


@pytest.mark.usefixtures("fresh_contexts")
def test_client_contexts_are_shared_and_bounded() -> None:
    first = client_context(("h2",))
    assert client_context(("h2",)) is first
    for number in range(tls.MOST_CLIENT_CONTEXTS + 5):
        client_context((f"x{number}",), insecure=True)
    assert len(tls._client_contexts) == tls.MOST_CLIENT_CONTEXTS


@pytest.mark.usefixtures("fresh_contexts")
def test_session_keys_are_not_written_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "keys"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    authority = Authority()
    connect(authority.server_context(NAME), client_context(insecure=True), NAME)
    assert not log.exists()
    connect(authority.server_context(NAME), trusting(authority), NAME)  # the positive control
    assert log.exists()


def test_a_missing_file_of_authorities_is_an_error_that_names_it(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for path in (broken, tmp_path / "absent.pem"):
        with pytest.raises(HostError) as raised:
            client_context((), (str(path),))
        assert str(path) in raised.value.headline()


def test_failures_are_told_in_words() -> None:
    assert explain(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"
    error = ssl.SSLError(1, "x")
    error.reason = "WRONG_VERSION_NUMBER"
    assert explain(error) == "the TLS handshake with the server failed: wrong version number"
    assert explain(EOFError()) == "EOFError"


def test_the_certificate_is_pem() -> None:
    key = x509.load_pem_x509_certificate(Authority().pem).public_key()
    assert key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


# ---------------------------------------------------------------- an authority that was given


def made_outside(key: Any, *, authority: bool = True, days: int = 30) -> bytes:
    """A self-signed certificate of somebody else's making, with no more than it needs."""
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "of the user")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)


def pem_of(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate,
    ],
    ids=["ec", "rsa", "ed25519"],
)
def test_an_authority_that_was_given_signs(make: Any) -> None:
    key = make()
    certificate = made_outside(key)
    authority = Authority(given=(certificate, pem_of(key)))
    assert authority.pem == certificate
    inside, outside = connect(authority.server_context(NAME), trusting(authority), NAME)
    outside.write(b"hello")
    assert inside.read(5) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(authority.server_context(NAME), trusting(Authority()), NAME)


def test_what_is_no_authority_is_refused_and_no_key_is_told() -> None:
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    good = made_outside(key)
    for certificate, private, cause in (
        (b"no certificate", pem_of(key), "not one in PEM"),
        (good, b"-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n", "key is not one in PEM"),
        (good, pem_of(other), "not the certificate's"),
        (made_outside(key, authority=False), pem_of(key), "not an authority's"),
        (made_outside(key, days=-1), pem_of(key), "not valid now"),
    ):
        with pytest.raises(HostError, match=cause) as caught:
            Authority(given=(certificate, private))
        assert "PRIVATE" not in str(caught.value) and "secret" not in str(caught.value)
