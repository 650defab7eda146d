"""The inode of the socket that has two addresses and two ports, asked of the kernel.

Theory of operation
-------------------
One request over a socket of sock_diag(7), for the one socket with both addresses and both ports in the network
namespace in which that was made; it is answered before sendto(2) returns.  Kernels without that module, and sockets
that were closed, give 0.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, IPPROTO_UDP, MSG_DONTWAIT, inet_pton
from _socket import socket as Socket

SOCK_DIAG = 4  # NETLINK_SOCK_DIAG, the protocol of such a socket (linux/netlink.h)
_BY_FAMILY, _REQUEST = 20, 1  # SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
_LENGTH = 72  # of both messages, which have a struct nlmsghdr of 16 bytes
# struct inet_diag_req_v2 (linux/inet_diag.h): family, protocol, three fields, all states; then a struct
# inet_diag_sockid: ports in network order, two addresses, no interface, no cookie.
_QUESTION = struct.Struct("=IHHIIBBHI2s2s16s16sIII")
_ANSWER = struct.Struct("=IHHII")
_INODE = struct.Struct("=I")
# struct inet_diag_msg, behind the header: family, state (include/net/tcp_states.h), two fields, the sockid of 48
# bytes, then expires, rqueue, wqueue, uid, inode
_STATE_AT, _LISTEN, _INODE_AT = 17, 10, 84
_ANY = 0xFFFFFFFF
_MOST_STALE = 8  # answers to earlier questions that are read away


class SocketTable:
    """Asks for inodes.

    Args:
        socket: of NETLINK_SOCK_DIAG, made in the network namespace that is asked about.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._number = 0

    def find(self, protocol: int, client: tuple[str, int], server: tuple[str, int]) -> int:
        """The inode of the socket that is bound to ``client`` and connected to ``server``; 0: there is none.

        Args:
            protocol: IPPROTO_TCP, or IPPROTO_UDP, whose socket need not be connected.
        """
        if protocol == IPPROTO_UDP:
            client, server = server, client  # net/ipv4/udp_diag.c: "swapped for historical reasons"
        family = AF_INET6 if ":" in client[0] else AF_INET
        self._number = (self._number + 1) & _ANY
        try:
            question = _QUESTION.pack(
                _LENGTH, _BY_FAMILY, _REQUEST, self._number, 0,
                family, protocol, 0, _ANY,
                client[1].to_bytes(2, "big"), server[1].to_bytes(2, "big"),
                inet_pton(family, client[0]), inet_pton(family, server[0]),
                0, _ANY, _ANY,
            )  # fmt: skip
            self._socket.send(question)
            for _ in range(_MOST_STALE):
                answer = self._socket.recv(4096, MSG_DONTWAIT)
                if len(answer) >= _ANSWER.size and _ANSWER.unpack_from(answer)[3] == self._number:
                    break
            else:
                return 0
        except OSError:
            return 0
        if _ANSWER.unpack_from(answer)[1] != _BY_FAMILY or len(answer) < _INODE_AT + _INODE.size:
            return 0  # NLMSG_ERROR
        if answer[_STATE_AT] == _LISTEN:
            return 0  # the client is gone, and a listener has its port
        inode: int = _INODE.unpack_from(answer, _INODE_AT)[0]
        return inode
