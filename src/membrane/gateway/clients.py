"""Which socket of the sandbox is the other end of a connection: its inode, which joins it with the call that made it.

Theory of operation
-------------------
The tracer knows of a connect(2) by notification the process and the inode of its socket; the port comes later.  Here
the address and port of the client are known.  The kernel says which inode that is: one request over a socket of
sock_diag(7) that was made in the sandbox's network namespace, for the one socket with both addresses and both ports,
answered before sendto(2) returns.  Kernels without that module, and clients that have closed, give 0.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, MSG_DONTWAIT, inet_pton
from _socket import socket as Socket

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


class Clients:
    """Asks for inodes.

    Args:
        socket: of NETLINK_SOCK_DIAG, made in the network namespace of the clients.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._number = 0

    def tcp(self, client: tuple[str, int], server: tuple[str, int]) -> int:
        """The inode of the TCP socket that is bound to ``client`` and connected to ``server``; 0: it is gone."""
        return self._ask(IPPROTO_TCP, client, server)

    def udp(self, client: tuple[str, int], server: tuple[str, int]) -> int:
        """The same of UDP; the socket need not be connected."""
        return self._ask(IPPROTO_UDP, server, client)  # net/ipv4/udp_diag.c: "swapped for historical reasons"

    def _ask(self, protocol: int, source: tuple[str, int], destination: tuple[str, int]) -> int:
        family = AF_INET6 if ":" in source[0] else AF_INET
        self._number = (self._number + 1) & _ANY
        try:
            question = _QUESTION.pack(
                _LENGTH, _BY_FAMILY, _REQUEST, self._number, 0,
                family, protocol, 0, _ANY,
                source[1].to_bytes(2, "big"), destination[1].to_bytes(2, "big"),
                inet_pton(family, source[0]), inet_pton(family, destination[0]),
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
