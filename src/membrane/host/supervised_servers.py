"""Servers of a sandbox without a network namespace: where on loopback they are, and what listens there.

Theory of operation
-------------------
Loopback is the container's, so a server of the command may stand beside others, and a port number alone says nothing.
Each port that was bound is kept with the inode of its socket, and proc_net_tcp(5) says which socket listens: only one
of ours is dialled, whether the command or the gateway (``ports: expose``) asks for it.

An exposed port is bound by the supervisor at 127.0.0.1 for the programs outside, most often under the number that the
server has.  So the server gets it at an address of loopback that is this sandbox's own, which is drawn by chance
(127.0.0.0/8 is all loopback, ip(7)); asked for its name, it is told 127.0.0.1.

Sources: net/ipv4/tcp_ipv4.c ``get_tcp4_sock``, net/ipv6/tcp_ipv6.c ``get_tcp6_sock``.
"""

from __future__ import annotations

import _socket
import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

LOOPBACK = "127.0.0.1"
MOST = 65536  # ports that are kept
_LISTENS = b"0A"  # TCP_LISTEN, in /proc/net/tcp


class Servers:
    """Where the servers of one sandbox are.

    Args:
        exposed: the ports inside that are reached from outside.
        own: the address of loopback at which those are bound.
    """

    def __init__(self, exposed: Collection[int] = (), own: str = LOOPBACK) -> None:
        self._exposed, self._own = frozenset(exposed), own
        self._ports: dict[int, int] = {}  # bound inside: the inode of the socket

    def place(self, port: int) -> str:
        """The address of loopback at which a socket of the command is bound to ``port``."""
        return self._own if port in self._exposed else LOOPBACK

    def hides(self, address: str) -> bool:
        """Is this an address that the command did not ask for, and is told as 127.0.0.1?"""
        return address.removeprefix("::ffff:") == self._own != LOOPBACK

    def bound(self, port: int, inode: int) -> None:
        """A socket of the command is bound to ``port``; ``inode``: of it."""
        if len(self._ports) < MOST:
            self._ports[port] = inode

    def listening(self, port: int) -> str:
        """The address at which a socket of the command listens at ``port``; empty: none does."""
        inode = self._ports.get(port)
        if inode is None:
            return ""
        places = {}
        for address in (self.place(port), LOOPBACK):
            raw = b"%08X" % int.from_bytes(_socket.inet_aton(address), "little")
            places[raw + b":%04X" % port] = address
            places[b"0000000000000000FFFF0000" + raw + b":%04X" % port] = address
        for table in ("tcp", "tcp6"):
            try:
                with open(f"/proc/net/{table}", "rb") as lines:
                    for line in lines:
                        fields = line.split(None, 10)
                        found = len(fields) > 9 and fields[1] in places and fields[3] == _LISTENS
                        if found and int(fields[9]) == inode:
                            return places[fields[1]]
            except OSError:
                continue
        return ""

    def dial(self, port: int) -> int:
        """A socket that is being connected to the command's server at ``port``; -1: none listens there.

        Raises:
            OSError: no socket can be made.
        """
        address = self.listening(port)
        if not address:
            return -1
        made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
        if made.connect_ex((address, port)) in (0, errno.EINPROGRESS):
            return made.detach()
        made.close()
        return -1
