"""Packets that the sandbox's own namespace refused: reported here, decided there.

Theory of operation
-------------------
The OUTPUT rules of the namespace (``host.netns``) reject what is not relayed: datagrams to a port that no rule opens,
ICMP, broadcasts.  The sender gets EPERM from the kernel, whatever happens here.  Of each such packet the kernel copies
the headers to a socket of ours (nfnetlink_log), which costs a command nothing and cannot be raced: what is read is
what was refused.  Only packets of a socket with a file are a program's (``NFULA_UID``): the kernel's own, such as
neighbour discovery, are no program's refusal.

A flood finds no room.  The kernel counts what it drops at the socket (``SK_MEMINFO_DROPS``), so those are reported as
lost.
"""

from __future__ import annotations

import errno
import struct
from _socket import AF_INET, AF_INET6, SOL_SOCKET, inet_ntop
from _socket import socket as Socket

from ..events import AccessDenied
from ..host import netlink
from ..policy import reasons
from .reactor import IN
from .route import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Event
    from .clients import Clients
    from .reactor import Reactor
    from .route import Router

_BURST = 64  # packets taken in one turn
_LARGEST = 65536
_MESSAGE = 4 << 8  # NFULNL_MSG_PACKET of NFNL_SUBSYS_ULOG (linux/netfilter/nfnetlink_log.h)
_HEADER, _GENERIC = 16, 4  # bytes of struct nlmsghdr and struct nfgenmsg
_PAYLOAD, _UID = 9, 11  # NFULA_*
_SO_MEMINFO, _DROPS = 55, 8  # asm-generic/socket.h; SK_MEMINFO_DROPS (linux/sock_diag.h): the ninth number
_UDP = 17
_PROTOCOLS = {1: "icmp", _UDP: "udp", 58: "icmp"}
_ALL = 0xFFFFFFFF


def attributes(message: bytes) -> dict[int, bytes]:
    """The attributes of one message of the kernel's; none of what is another message."""
    if len(message) < _HEADER + _GENERIC or struct.unpack_from("=H", message, 4)[0] != _MESSAGE:
        return {}
    return netlink.attributes(message[_HEADER + _GENERIC : struct.unpack_from("=I", message)[0]])


def heading(packet: bytes) -> tuple[int, str, int, str, int] | None:
    """(protocol, source, its port, destination, its port) of the head of an IP packet; ports 0 where there are none."""
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        start, number = 4 * (packet[0] & 15), packet[9]
        source, target = inet_ntop(AF_INET, packet[12:16]), inet_ntop(AF_INET, packet[16:20])
    elif version == 6 and len(packet) >= 40:
        start, number = 40, packet[6]
        source, target = inet_ntop(AF_INET6, packet[8:24]), inet_ntop(AF_INET6, packet[24:40])
    else:
        return None
    ports = (0, 0)
    if number == _UDP and len(packet) >= start + 4:
        ports = struct.unpack_from(">HH", packet, start)
    return number, source, ports[0], target, ports[1]


def _is_broadcast(address: str) -> bool:
    """Is it reserved (240.0.0.0/4), as the address of broadcasts is?  No rule opens it."""
    return ":" not in address and int(address.partition(".")[0]) >= 240


class RefusedPackets:
    """Reports what the namespace refused.

    Args:
        lose: takes how many refusals found no room.
    """

    def __init__(
        self,
        reactor: Reactor,
        socket: Socket,
        router: Router,
        emit: Callable[[Event], None],
        lose: Callable[[str, int], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.packets = 0
        self.clients: Clients | None = None  # as of the engine
        self._socket, self._router, self._emit, self._lose, self._crashed = socket, router, emit, lose, crashed
        self._dropped = 0  # copies that found no room, and are counted
        socket.setblocking(False)
        reactor.watch(socket.fileno(), IN, lambda _mask: self.take())

    def close(self) -> None:
        """No copy comes any more."""
        self._count_drops()

    def take(self) -> None:
        """Report what was refused by now.

        Who waits for an answer of ours is still there, and its socket is found by its port (``clients``).  So this is
        called before an answer: the order in which descriptors are ready is not that in which packets were sent.
        """
        for _ in range(_BURST):
            try:
                message = self._socket.recv(_LARGEST)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return
                self._count_drops()
                continue
            try:
                self._take(attributes(message))
            except Exception as error:  # of one packet, which was refused already
                self._crashed(error)

    def _count_drops(self) -> None:
        (drops,) = struct.unpack_from("=I", self._socket.getsockopt(SOL_SOCKET, _SO_MEMINFO, 36), 4 * _DROPS)
        if drops != self._dropped:
            self._lose("AccessDenied", (drops - self._dropped) & _ALL)
            self._dropped = drops

    def _take(self, found: dict[int, bytes]) -> None:
        head = heading(found.get(_PAYLOAD, b""))
        if head is None or _UID not in found:
            return
        self.packets += 1
        number, source, from_port, target, to_port = head
        if number == _UDP and not _is_broadcast(target):
            route = self._router.arrive(target, to_port, "udp")
            if isinstance(route, Refusal):
                known = self.clients
                client = (source, from_port), (target, to_port)
                self._emit(route.event.of((from_port, 0) if known is None else known.udp(*client)))
                return
        access = {"kind": "Connect", "host": "", "address": target, "port": to_port}
        protocol = _PROTOCOLS.get(number, f"protocol {number}")
        self._emit(
            AccessDenied({**access, "protocol": protocol}, reasons.NOT_RELAYED, None, None, client_port=from_port)
        )
