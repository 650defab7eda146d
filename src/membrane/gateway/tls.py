"""Certificates of the session, and TLS contexts for both sides of an intercepted connection.

Theory of operation
-------------------
A session that intercepts has a certificate authority of its own.  Its key is made when the gateway needs it
and exists in the memory of that process only.  A leaf is issued for exactly one name or address, when a client asks
for it; all leaves share one key.  ``ssl`` reads certificates from files only, so a leaf passes through an anonymous
file in memory (memfd_create(2)).

Leaves are valid from an hour ago (clocks differ) for ``LIFETIME`` and are issued anew when half of it is over, so a
session may last for days.  The authority cannot be renewed, because its certificate is in the sandbox's trust
bundle already; it is valid for a year.

Servers are verified against the system's authorities and those that the policy adds, by name, always, unless the
policy says ``insecure``.

References: RFC 5280, RFC 6125, RFC 7301 (ALPN).  ``ssl`` and ``cryptography`` are imported when they are needed.
"""

from __future__ import annotations

import os
import time

from ..errors import HostError
from ..host.writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
    from cryptography.x509 import Certificate, ExtensionType, Name

LIFETIME = 48 * 3600  # seconds of a leaf
BACKDATED = 3600  # seconds
AUTHORITY_LIFETIME = 365 * 86400  # seconds
MOST_CONTEXTS = 1024  # of servers that we pretend to be
MOST_CLIENT_CONTEXTS = 64


class Authority:
    """The certificate authority of one session.

    Args:
        clock: seconds since the epoch.
        given: certificate and key (PEM) of an authority that exists; else one is made.

    Raises:
        HostError: what is given is no authority that is valid now, or the key is another's.
    """

    def __init__(self, clock: Callable[[], float] = time.time, given: tuple[bytes, bytes] | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._clock = clock
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._key: CertificateIssuerPrivateKeyTypes
        if given is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._self_signed()
        else:
            self._certificate, self._key = _read_authority(*given, clock())
        self._contexts: dict[tuple[str, str], tuple[float, ssl.SSLContext]] = {}

    def __repr__(self) -> str:
        return "Authority()"

    @property
    def pem(self) -> bytes:
        """The certificate, for the sandbox's trust bundle."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._certificate.public_bytes(Encoding.PEM)

    def server_context(self, name: str, protocol: str = "") -> ssl.SSLContext:
        """What a client of ``name`` is served with.

        Args:
            name: a canonical name or the canonical text of an address.
            protocol: the one ALPN name that is offered (the one the real server chose); empty: none.
        """
        key = name, protocol
        now = self._clock()
        found = self._contexts.get(key)
        if found is not None and now < found[0]:
            return found[1]
        if found is None and len(self._contexts) >= MOST_CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        context = self._context(name, protocol, now)
        self._contexts[key] = now + LIFETIME / 2, context
        return context

    def _context(self, name: str, protocol: str, now: float) -> ssl.SSLContext:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0  # they cost a sixth of a handshake; few clients come back with one
        if protocol:
            context.set_alpn_protocols([protocol])
        _load(context, self._issue(name, now))
        return context

    def _issue(self, name: str, now: float) -> bytes:
        """Key and chain of a new leaf, PEM."""
        from ipaddress import ip_address

        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID

        subject: x509.GeneralName
        try:
            subject = x509.IPAddress(ip_address(name))
        except ValueError:
            subject = x509.DNSName(name)
        try:
            key_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        leaf = self._sign(
            (x509.Name([]), self._certificate.subject),
            self._leaf_key,
            now - BACKDATED,
            now + LIFETIME,
            [
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (x509.SubjectAlternativeName([subject]), True),  # critical: the subject is empty (RFC 5280 4.2.1.6)
                (_usage(digital_signature=True), True),
                (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
                (x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), False),
                (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), False),
            ],
        )
        key = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + leaf.public_bytes(Encoding.PEM) + self.pem

    def _self_signed(self) -> Certificate:
        from cryptography import x509

        now = self._clock()
        return self._sign(
            (_authority_name(), _authority_name()),
            self._key,
            now - BACKDATED,
            now + AUTHORITY_LIFETIME,
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_usage(key_cert_sign=True), True),
                (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
            ],
        )

    def _sign(
        self,
        names: tuple[Name, Name],
        key: CertificateIssuerPrivateKeyTypes,
        start: float,
        end: float,
        extensions: Sequence[tuple[ExtensionType, bool]],
    ) -> Certificate:
        from datetime import UTC, datetime

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ed448, ed25519

        builder = (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(int(start), UTC))
            .not_valid_after(datetime.fromtimestamp(int(end), UTC))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        whole = isinstance(self._key, (ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey))  # they take no digest
        return builder.sign(self._key, None if whole else hashes.SHA256())


def _read_authority(certificate: bytes, key: bytes, now: float) -> tuple[Certificate, CertificateIssuerPrivateKeyTypes]:
    """An authority that was given; the key is never part of an error.

    Raises:
        HostError: see ``Authority``.
    """
    from typing import cast

    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    def refuse(cause: str) -> HostError:
        return HostError("inspect with the authority that was given", cause)

    try:
        read = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise refuse("the certificate is not one in PEM") from None
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        raise refuse("the key is not one in PEM without a passphrase") from None
    forms = [
        each.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for each in (read.public_key(), private.public_key())
    ]
    if forms[0] != forms[1]:
        raise refuse("the key is not the certificate's")
    try:
        if not read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise refuse("the certificate is not an authority's (basicConstraints)")
    except x509.ExtensionNotFound:
        raise refuse("the certificate is not an authority's (basicConstraints)") from None
    if not read.not_valid_before_utc.timestamp() <= now < read.not_valid_after_utc.timestamp():
        raise refuse("the certificate is not valid now")
    return read, cast("CertificateIssuerPrivateKeyTypes", private)


def _authority_name() -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Membrane session authority")])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> ExtensionType:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Give a context its key and chain without a file on a disk.

    Raises:
        HostError: no anonymous file can be made.
    """
    try:
        fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
    except OSError as error:
        raise HostError("make an anonymous file", error.strerror or str(error), target="memfd_create") from error
    try:
        write_all(fd, pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


# ---------------------------------------------------------------- towards servers

_client_contexts: dict[tuple[tuple[str, ...], tuple[str, ...], bool], ssl.SSLContext] = {}


def client_context(
    protocols: Sequence[str] = (), extra_ca: Sequence[str] = (), *, insecure: bool = False
) -> ssl.SSLContext:
    """How a server is spoken to.  Contexts are shared: loading the system's authorities takes tens of milliseconds.

    Args:
        protocols: ALPN names, preferred first.
        extra_ca: paths of PEM files whose certificates are trusted as well.
        insecure: do not verify; only where the policy says so.

    Raises:
        HostError: a file of ``extra_ca`` cannot be read as certificates.
    """
    import ssl

    key = tuple(protocols), tuple(extra_ca), insecure
    context = _client_contexts.get(key)
    if context is not None:
        return context
    # Not ssl.create_default_context: it would write the session's keys to where SSLKEYLOGFILE says.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An answer may end with its connection, and must not be taken for whole when it was cut.  Python asks OpenSSL 3 to
    # take an end without close_notify for a good one.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        for path in extra_ca:
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError) as error:
                cause = error.strerror or str(error)
                raise HostError("read the certificates of", cause, target=path) from error
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if len(_client_contexts) >= MOST_CLIENT_CONTEXTS:
        del _client_contexts[next(iter(_client_contexts))]
    _client_contexts[key] = context
    return context


def explain(error: BaseException) -> str:
    """Why a handshake with a server failed, in words for the client's 502.

    Text from a certificate is hostile; it is cut, and the caller's JSON escapes it.
    """
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not valid: {error.verify_message}"[:300]
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "protocol error").replace("_", " ").lower()
        return f"the TLS handshake with the server failed: {reason}"[:300]
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return type(error).__name__
