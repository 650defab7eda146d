"""A certificate authority of one world: one leaf per server name, made when a client asks for it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


class Authority:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.leaf_key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = (
            _builder("world test CA", "world test CA", self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(*(False,) * 5, True, True, False, False), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        (directory / "ca.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    def context(self, name: str) -> ssl.SSLContext:
        """A server context whose certificate is for ``name``, a host name or an address."""
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self._make(name)
            return self._contexts[name]

    def listener(self, default: str) -> ssl.SSLContext:
        """A context that follows the client's SNI (RFC 6066 section 3); ``default`` without one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])

        def choose(connection: ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self.context(name or default)
            connection.world_sni = name or ""  # type: ignore[attr-defined]  # for the journal

        context.sni_callback = choose
        path = self.directory / "any.pem"
        if not path.exists():
            self.context("any")
        context.load_cert_chain(path)
        return context

    def _make(self, name: str) -> ssl.SSLContext:
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        leaf = (
            _builder(name, "world test CA", self.leaf_key.public_key())
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        path = self.directory / f"{name.replace(':', '_')[:80]}.pem"
        path.write_bytes(
            leaf.public_bytes(serialization.Encoding.PEM)
            + self.leaf_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(path)
        return context
