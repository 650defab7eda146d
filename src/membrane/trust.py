"""What the command trusts in a session that inspects: the system's certificates, the policy's, the session's.

Read once, before the command is released: later changes of a file, perhaps by the command, change nothing.
"""

from __future__ import annotations

import os

from .errors import HostError
from .plan.model import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan.model import MountOp, SandboxPlan

_LARGEST = 16 << 20  # octets of one file
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def read_authorities(paths: Sequence[str]) -> bytes:
    """The certificates of the files, PEM, one after the other.

    Raises:
        HostError: a file can not be read, or holds no certificate in PEM.
    """
    return b"".join(_read(path) for path in paths)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = b""
            while len(data) <= _LARGEST and (part := os.read(fd, 1 << 20)):
                data += part
        finally:
            os.close(fd)
    except OSError as error:
        raise HostError("read the certificates of", error.strerror or "", target=path) from None
    if _BEGIN not in data or len(data) > _LARGEST:
        raise HostError("read the certificates of", "it holds no certificate in PEM form", target=path)
    return data if data.endswith(b"\n") else data + b"\n"


def operations(plan: SandboxPlan, authorities: bytes, certificate: bytes) -> list[MountOp]:
    """The files that put ``certificate`` and ``authorities`` beside what the system trusts.

    Raises:
        HostError: the system's bundle can not be read.
    """
    ours, *theirs = plan.trust
    bundles = [target for target in theirs if not _is_java(target)]
    content = (_read(bundles[0]) if bundles else b"") + authorities + certificate
    made: list[MountOp] = [File(ours, content), *(File(target, content, bind=True) for target in bundles)]
    if stores := [target for target in theirs if _is_java(target)]:
        store = java_store(content)
        made += [File(target, store, bind=True) for target in stores]
    return made


def _is_java(target: str) -> bool:
    return target.endswith("/cacerts")


def java_store(bundle: bytes) -> bytes:
    """The certificates of a PEM bundle as a JKS key store (sun.security.provider.JavaKeyStore, version 2).

    Its password is ``changeit``, as for every cacerts; it guards nothing but the integrity, and Java asks for none.
    """
    import hashlib
    from binascii import Error, a2b_base64

    entries: dict[bytes, None] = {}
    for part in bundle.split(_BEGIN)[1:]:
        try:
            entries[a2b_base64(part.partition(_END)[0])] = None
        except Error:
            continue  # OpenSSL would not read it either
    out = [b"\xfe\xed\xfe\xed\0\0\0\x02", len(entries).to_bytes(4, "big")]
    for number, certificate in enumerate(entries):
        alias = b"membrane-%d" % number
        out += [b"\0\0\0\x02", len(alias).to_bytes(2, "big"), alias, bytes(8), b"\0\x05X.509"]
        out += [len(certificate).to_bytes(4, "big"), certificate]
    store = b"".join(out)
    proof = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + store, usedforsecurity=False)
    return store + proof.digest()
