"""What the command trusts in a session that inspects: the system's certificates, the policy's, the session's.

Read once, before the command is released: later changes of a file, perhaps by the command, change nothing.

Java reads no PEM.  It gets the same certificates as a key store of its old form "JKS" (JavaKeyStore.java of OpenJDK,
``engineLoad``): of the forms that every version reads, it is the one whose certificates are not encrypted, so that
they are found without a password too.  Chromium reads neither: ``nss``.
"""

from __future__ import annotations

import os

from ..errors import HostError, PolicyError
from ..plan.model import File, Seed, Tmpfs
from ..plan.mounts import NSS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.model import MountOp, SandboxPlan

_LARGEST = 16 << 20  # bytes of one file
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_JKS = b"\xfe\xed\xfe\xed" + (2).to_bytes(4, "big")  # magic and version
_TRUSTED = (2).to_bytes(4, "big")  # tag of an entry that is a certificate without a key
_PASSWORD = "changeit"  # noqa: S105  what every cacerts has; it keys a checksum


def read_authorities(paths: Sequence[str]) -> bytes:
    """The certificates of the files, PEM, one after the other.

    Raises:
        PolicyError: a file cannot be read, or holds no certificate in PEM.
    """
    return b"".join(_read(path) for path in paths)


def _read(path: str, begin: bytes = _BEGIN) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = b""
            while len(data) <= _LARGEST and (part := os.read(fd, 1 << 20)):
                data += part
        finally:
            os.close(fd)
    except OSError as error:
        raise _unbound(path, error.strerror or "it cannot be read") from None
    if begin not in data or len(data) > _LARGEST:
        what = "certificate" if begin == _BEGIN else "key"
        raise _unbound(path, f"it holds no {what} in PEM form")
    return data if data.endswith(b"\n") else data + b"\n"


def _unbound(path: str, why: str) -> PolicyError:
    cause = f"cannot trust the certificates of {path}: {why}"
    return PolicyError("trust an authority", cause, fix=("name a file in PEM form (extra_ca, --extra-ca)",))


def read_authority(paths: Sequence[str]) -> tuple[bytes, bytes] | None:
    """Certificate and key, PEM, of the authority that the policy names; none: one is made for the session.

    Raises:
        PolicyError: a file cannot be read; what is in them is looked at where they are used.
    """
    if not paths:
        return None
    certificate, key = paths
    return _read(certificate), _read(key, b"PRIVATE KEY-----")


def operations(plan: SandboxPlan, authorities: bytes, certificate: bytes) -> list[MountOp]:
    """The files that put ``certificate`` and ``authorities`` beside what the system trusts.

    Raises:
        PolicyError: the system's bundle cannot be read.
    """
    source = plan.trust_source or "".join(plan.trust[1:2])
    system = _read(source) if source else b""
    content = system + authorities + certificate
    store = key_store(content)
    ops: list[MountOp] = [
        *(File(target, content, bind=target != plan.trust[0]) for target in plan.trust),
        *(File(target, store, bind=target != plan.java_trust[0]) for target in plan.java_trust),
    ]
    if databases := [op.target for op in plan.mounts if isinstance(op, Tmpfs) and op.target.endswith(f"/{NSS}")]:
        from . import nss

        # The system's own are not needed: Chromium has a list.
        if database := nss.database(authorities + certificate):
            ops += [Seed(f"{target}/{nss.NAME}", database) for target in databases]
    return ops


def key_store(pem: bytes) -> bytes:
    """The certificates of ``pem`` as a key store of Java (JKS).

    Raises:
        HostError: something between the marks of a certificate is not base64.
    """
    import binascii
    import hashlib

    entries: list[bytes] = []
    for part in pem.split(_BEGIN)[1:]:
        try:
            certificate = binascii.a2b_base64(part.partition(_END)[0])
        except binascii.Error as error:
            raise HostError("read the certificates for Java", str(error)) from None
        alias = b"membrane-%d" % len(entries)
        entries.append(
            _TRUSTED
            + _counted(alias, 2)
            + bytes(8)  # when it was made, milliseconds since the epoch
            + _counted(b"X.509", 2)
            + _counted(certificate, 4)
        )
    data = _JKS + len(entries).to_bytes(4, "big") + b"".join(entries)
    seed = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return data + hashlib.sha1(seed + data, usedforsecurity=False).digest()


def _counted(data: bytes, size: int) -> bytes:
    """``data`` after its length in so many bytes."""
    return len(data).to_bytes(size, "big") + data
