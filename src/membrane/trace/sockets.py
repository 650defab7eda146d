"""Sockets of other processes: the address that a call names, and the local port that it got.

Theory of operation
-------------------
The local port joins a call with its connection.
While connect(2) waits for its answer the socket has no port yet.  Its inode is known (the link in /proc/PID/fd); a
moment later the kernel's tables of the same network namespace (/proc/PID/net/tcp, proc(5)) have the port that stands
with this inode.  Nothing is done to the socket itself.  One that was closed meanwhile, or stands behind the first
``MOST`` bytes of its table, is not found: its port is 0.
"""

from __future__ import annotations

import _socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 1 << 18  # bytes read of one table
_FAMILIES = {0: "unspec", 1: "unix", 2: "inet", 10: "inet6", 16: "netlink"}
_TABLES = {"inet": ("tcp", "udp"), "inet6": ("tcp6", "udp6")}


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


class Tables:
    """The tables of one sandbox.

    Args:
        nested: its processes may have network namespaces of their own, so nothing is kept open.
    """

    def __init__(self, *, nested: bool) -> None:
        self._nested = nested
        self._open: dict[str, int] = {}

    def ports(self, thread: int, family: str, inodes: Iterable[int]) -> dict[int, int]:
        """Inode and local port of those that were found; ``family``: ``inet`` or ``inet6``."""
        wanted, found = set(inodes), {}
        for name in _TABLES.get(family, ()):
            for line in self._read(thread, name).splitlines()[1:]:
                fields = line.split(None, 10)
                try:
                    inode = int(fields[9])
                    if inode in wanted:
                        found[inode] = int(fields[1].rpartition(b":")[2], 16)
                except (IndexError, ValueError):
                    continue  # the last one is cut
            wanted -= set(found)
            if not wanted:
                break
        return found

    def _read(self, thread: int, name: str) -> bytes:
        fd = self._open.get(name, -1)
        out = b""
        try:
            if fd < 0:
                fd = os.open(f"/proc/{thread}/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
                if not self._nested:
                    self._open[name] = fd
            while len(out) < MOST and (piece := os.pread(fd, 1 << 16, len(out))):
                out += piece
        except OSError:
            pass
        finally:
            if self._nested and fd >= 0:
                os.close(fd)
        return out

    def close(self) -> None:
        """Close what is open."""
        for fd in self._open.values():
            os.close(fd)
        self._open = {}
