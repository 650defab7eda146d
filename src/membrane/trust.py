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
_BEGIN = b"-----BEGIN CERTIFICATE-----"


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
    system = _read(plan.trust[1]) if len(plan.trust) > 1 else b""
    content = system + authorities + certificate
    return [File(target, content, bind=target != plan.trust[0]) for target in plan.trust]
