"""One datagram between the process that makes the command's sockets and the gateway, where no namespace captures them.

Each is one message of a SOCK_SEQPACKET socket that no other process has: what is meant by it, the number of the
command's socket, the address and the port of the other end, and the data.
"""

from __future__ import annotations

import struct

TOLD = 0  # it goes nowhere: only its place is said
CARRIED = 1  # it is to go there, or comes from there
ASKED = 2  # it is for our answerer, whichever rule there is
LONGEST = 65507  # bytes of data: UDP over IPv4
_HEAD = struct.Struct("=BBHI")
MOST = _HEAD.size + 16 + LONGEST  # bytes of a message


def message(kind: int, number: int, address: bytes, port: int, data: bytes = b"") -> bytes:
    """Args: ``number``: of the socket, 32 bits; ``address``: 4 or 16 bytes."""
    return _HEAD.pack(kind, len(address), port, number) + address + data


def parts(raw: bytes) -> tuple[int, int, bytes, int, bytes]:
    """What ``message`` was made of.

    Raises:
        ValueError: it is none.
    """
    if len(raw) < _HEAD.size:
        raise ValueError("too short")
    kind, size, port, number = _HEAD.unpack_from(raw)
    end = _HEAD.size + size
    if kind not in (TOLD, CARRIED, ASKED) or size not in (4, 16) or len(raw) < end:
        raise ValueError("no datagram")
    return kind, number, raw[_HEAD.size : end], port, raw[end:]
