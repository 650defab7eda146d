"""The local port of a socket that another process connects, found after the call: what joins it with its connection.

Theory of operation
-------------------
While connect(2) waits for its answer the socket has no port yet.  Its inode is known (the link in /proc/PID/fd); a
moment later the kernel's tables of the same network namespace (/proc/PID/net/tcp, proc(5)) have the port that stands
with this inode.  Nothing is done to the socket itself.  One that was closed meanwhile, or stands behind the first
``MOST`` bytes of its table, is not found: its port is 0.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 1 << 18  # bytes read of one table
_TABLES = {"inet": ("tcp", "udp"), "inet6": ("tcp6", "udp6")}


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
