"""A network namespace of our own, for tests of the gateway.

Run as a program (``python network_namespace.py FD``) it makes a user and network namespace in which every address is
local (``local default dev lo``, both families) and then hands out sockets that were made there, one for each request
on FD.  ``Namespace`` is the other end, for the test.  A socket stays in the namespace it was made in, so the test
itself binds, listens and connects "inside" without entering it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
RTM_NEWADDR, RTM_NEWROUTE = 20, 24
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 1, 4, 0x400
OWN = {socket.AF_INET: ("198.18.0.2", 32), socket.AF_INET6: ("fd00:6d65:6d62::2", 128)}


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def netlink(kind: int, body: bytes) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        head = struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE, 1, 0)
        link.send(head + body)
        code = struct.unpack_from("i", link.recv(4096), 16)[0]
        if code:
            raise OSError(-code, f"netlink {kind}: {os.strerror(-code)}")


def set_up() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    lo = socket.if_nametoindex("lo")
    for family, (address, prefix) in OWN.items():
        packed = socket.inet_pton(family, address)
        nodad = 2 if family == socket.AF_INET6 else 0
        netlink(
            RTM_NEWADDR,
            struct.pack("BBBBI", family, prefix, nodad, 0, lo) + attribute(2, packed) + attribute(1, packed),
        )
        # local default dev lo table main src OWN: rtm_type RTN_LOCAL 2, RT_SCOPE_HOST 254, RTPROT_STATIC 4
        route = struct.pack("BBBBBBBBI", family, 0, 0, 0, 254, 4, 254, 2, 0)
        netlink(RTM_NEWROUTE, route + attribute(4, struct.pack("I", lo)) + attribute(7, packed))


def serve(channel: socket.socket) -> None:
    """Each request is "FAMILY TYPE"; each answer carries one socket."""
    while request := channel.recv(64):
        family, kind = map(int, request.split())
        with socket.socket(family, kind) as made:
            socket.send_fds(channel, [b"ok"], [made.fileno()])


class Namespace:
    """Sockets that live in a namespace of their own; close it when done."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__)), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._channel = ours

    def make(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        self._channel.send(f"{int(family)} {int(kind)}".encode())
        answer, fds, _flags, _address = socket.recv_fds(self._channel, 16, 1)
        if answer != b"ok":
            raise RuntimeError("the namespace could not be made; its process wrote why")
        made = socket.socket(family, kind, 0, fds[0])
        made.settimeout(60)
        return made

    def listener(self, port: int, family: int = socket.AF_INET) -> socket.socket:
        """A wildcard TCP listener: it accepts for every address of its family."""
        made = self.make(family)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        made.listen(4096)
        return made

    def datagrams(self, port: int, family: int = socket.AF_INET) -> socket.socket:
        """A wildcard UDP socket that tells, and may choose, the local address of each datagram."""
        made = self.make(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            made.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
        else:
            made.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        return made

    def close(self) -> None:
        self._channel.close()
        self._process.wait(60)


if __name__ == "__main__":
    set_up()
    serve(socket.socket(fileno=int(sys.argv[1])))
