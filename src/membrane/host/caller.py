"""The memory of a process that waits in a call, and the addresses of sockets and the paths in it.

Theory of operation
-------------------
What is judged is our copy: the process may change what it has written at any time.  A copy is the caller's own when its
call is still pending after the copy was made (seccomp_unotify(2), SECCOMP_IOCTL_NOTIF_ID_VALID).
"""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .notify import Call, Listener

AF_INET, AF_INET6 = 2, 10
MAPPED = bytes(10) + b"\xff\xff"  # of ::ffff:0:0/96
PATH_MAX = 4096  # bytes of a path with its NUL (linux/limits.h)
_LONGEST_ADDRESS = 128  # bytes: struct sockaddr_storage


class Refused(Exception):
    """The answer to a call is an errno."""

    def __init__(self, number: int) -> None:
        self.number = number


class Caller:
    """Reads and writes the memory of the processes whose calls a listener gets; all raise ``Refused`` (EFAULT)."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def read(self, call: Call, address: int, size: int) -> bytes:
        fd = os.open(f"/proc/{call[1]}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size, address) if address < 1 << 63 else b""
        except OSError:
            raise Refused(errno.EFAULT) from None
        finally:
            os.close(fd)
        if not self._listener.valid(call[0]) or len(data) < size:
            raise Refused(errno.EFAULT)
        return data

    def write(self, call: Call, address: int, data: bytes) -> None:
        fd = os.open(f"/proc/{call[1]}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            if not self._listener.valid(call[0]) or address >= 1 << 63:
                raise Refused(errno.EFAULT)
            os.pwrite(fd, data, address)
        except OSError:
            raise Refused(errno.EFAULT) from None
        finally:
            os.close(fd)

    def address(self, call: Call, at: int, size: int) -> bytes:
        """A struct sockaddr.

        Raises:
            Refused: EINVAL, it is none by its size.
        """
        size &= 0xFFFFFFFF
        if size > _LONGEST_ADDRESS or size < 2:
            raise Refused(errno.EINVAL)
        return self.read(call, at, size)

    def put_address(self, call: Call, raw: bytes, at: int, length_at: int) -> None:
        """What getpeername(2) and its like write: as much as there is room for, and the whole length."""
        room = struct.unpack("=i", self.read(call, length_at, 4))[0]
        if room < 0:
            raise Refused(errno.EINVAL)
        self.write(call, at, raw[:room])
        self.write(call, length_at, struct.pack("=i", len(raw)))


def internet(raw: bytes, family: int) -> tuple[bytes, int]:
    """Address (4 or 16 bytes) and port of a struct sockaddr_in or sockaddr_in6 (ip(7), ipv6(7)).

    Raises:
        Refused: it is none, or none for a socket of this family.
    """
    kind = struct.unpack_from("=H", raw)[0] if len(raw) >= 2 else 0
    if kind == AF_INET and len(raw) >= 16 and family == AF_INET:
        return raw[4:8], int.from_bytes(raw[2:4], "big")
    if kind == AF_INET6 and len(raw) >= 24 and family == AF_INET6:
        address = raw[8:24]
        return (address[12:] if address.startswith(MAPPED) else address), int.from_bytes(raw[2:4], "big")
    raise Refused(errno.EAFNOSUPPORT)


def written(address: bytes, port: int, family: int) -> bytes:
    """The struct sockaddr_in or sockaddr_in6 that a socket of this family has for an address of 4 or 16 bytes."""
    number = port.to_bytes(2, "big")
    if family == AF_INET:
        return struct.pack("=H", AF_INET) + number + address + bytes(8)
    return struct.pack("=H", AF_INET6) + number + bytes(4) + (MAPPED + address)[-16:] + bytes(4)


def is_loopback(address: bytes) -> bool:
    """127.0.0.0/8, ::1, and the addresses that mean this machine (0.0.0.0, ::)."""
    if len(address) == 4:
        return address[0] == 127 or not any(address)
    return not any(address[:15]) and address[15] in (0, 1)


def text(read: Callable[[Call, int, int], bytes], call: Call, at: int, longest: int) -> bytes:
    """A string of the caller's memory, without its NUL; ``read``: as of ``supervised_names.Names``.

    Raises:
        OSError: ENAMETOOLONG, or as ``read``.
    """
    out = b""
    while len(out) < longest:  # a page that is not there must not spoil the one before
        piece = read(call, at + len(out), min(longest - len(out), 4096 - (at + len(out)) % 4096))
        end = piece.find(b"\0")
        if end >= 0:
            return out + piece[:end]
        out += piece
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def leads_on(path: bytes) -> bool:
    """May a path below a directory of the system that the command cannot write lead out of it again?"""
    return b"/.." in path or (path.startswith((b"/proc/", b"/dev/")) and path.count(b"/") > 2)


def own_link(path: bytes) -> tuple[str, bytes]:
    """Of a path below a directory that the process has open, or is in: which link of /proc/PID that is, and the rest;
    empty: it is none of these."""
    path = path.replace(b"/dev/fd/", b"/proc/self/fd/", 1) if path.startswith(b"/dev/fd/") else path
    for own in (b"/proc/self/", b"/proc/thread-self/"):
        if path.startswith(own):
            link, _, rest = path[len(own) :].partition(b"/")
            if link == b"fd":
                number, _, rest = rest.partition(b"/")
                link = b"fd/" + number if number.isdigit() and len(number) < 10 else b""
            elif link != b"cwd":
                link = b""
            rest = rest.lstrip(b"/")
            return (link.decode("ascii"), rest) if link and rest else ("", b"")
    return "", b""
