"""Sockets of other processes: the address that a call names, and which socket it is.

While connect(2) waits for its answer the socket has no port yet.  Its inode is known (the link in /proc/PID/fd), and
joins the call with its connection (``gateway.clients``).  Nothing is done to the socket itself.
"""

from __future__ import annotations

import _socket
import os
import struct

_FAMILIES = {0: "unspec", 1: "unix", 2: "inet", 10: "inet6", 16: "netlink"}


def address_of(data: bytes) -> tuple[str, str, int]:
    """(family, address, port) of a struct sockaddr (ip(7), ipv6(7), unix(7))."""
    if len(data) < 2:
        return "", "", 0
    (number,) = struct.unpack_from("=H", data)
    family = _FAMILIES.get(number, str(number))
    if number == 2 and len(data) >= 8:
        return family, ".".join(str(byte) for byte in data[4:8]), int.from_bytes(data[2:4], "big")
    if number == 10 and len(data) >= 24:
        return family, _socket.inet_ntop(_socket.AF_INET6, data[8:24]), int.from_bytes(data[2:4], "big")
    if number == 1:
        path = data[2:]
        shown = b"@" + path[1:] if path[:1] == b"\0" and len(path) > 1 else path.split(b"\0")[0]
        return family, os.fsdecode(shown), 0
    return family, "", 0


def inode_of(thread: int, descriptor: int) -> int:
    """The inode of the socket behind a descriptor of another process, 0 when it is none."""
    try:
        link = os.readlink(b"/proc/%d/fd/%d" % (thread, descriptor & 0x7FFFFFFF))
        return int(link[8:-1]) if link[:8] == b"socket:[" else 0
    except (OSError, ValueError):
        return 0
