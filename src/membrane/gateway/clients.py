"""Who is the other end of a connection: the port and the inode of its socket, which join it with the call that made it.

Theory of operation
-------------------
The tracer knows of a connect(2) by notification the process and the inode of its socket; the port comes later.  Here
the address and port of the client are known.  The kernel says which inode that is (``host.sockdiag``).

With ``containers: nested`` the client may be behind the command's own NAT, and no socket of the namespace that was
asked: then the launcher finds it in the namespace of its container (``host.senders``).  It is asked once at a time and
waited for at most ``LONGEST``; while it owes an answer it is not asked, so that a command that keeps it busy does not
hold up the gateway.
"""

from __future__ import annotations

from _socket import IPPROTO_TCP, IPPROTO_UDP
from _socket import socket as Socket

from ..errors import MembraneError
from ..host.ready import ready
from ..host.sockdiag import SocketTable
from ..plan.model import INNER_V4, INNER_V6

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import Client
    from ..host.channel import Channel

LONGEST = 0.1  # seconds that the launcher is waited for


class Clients:
    """Asks who clients are: each answer is a port and an inode, 0 where there is none that can be known.

    Args:
        socket: of NETLINK_SOCK_DIAG, made in the network namespace of the clients.
        senders: the launcher's end for questions about clients behind a NAT in that namespace; None: there is none.
    """

    def __init__(self, socket: Socket, senders: Socket | None = None) -> None:
        self._table = SocketTable(socket)
        self._senders: Channel | None = None
        self._number = 0
        self._owed = False  # an answer
        if senders is not None:
            from ..host.channel import Channel  # here: most gateways have none
            from ..host.messages import FROM_SENDERS, TO_SENDERS

            self._senders = Channel(senders, TO_SENDERS, FROM_SENDERS)
            senders.setblocking(False)

    def tcp(self, client: tuple[str, int], server: tuple[str, int]) -> Client:
        """The TCP socket that is bound to ``client`` and connected to ``server``."""
        return self._find(IPPROTO_TCP, client, server)

    def udp(self, client: tuple[str, int], server: tuple[str, int]) -> Client:
        """The same of UDP; the socket need not be connected."""
        return self._find(IPPROTO_UDP, client, server)

    def _find(self, protocol: int, client: tuple[str, int], server: tuple[str, int]) -> Client:
        inode = self._table.find(protocol, client, server)
        if not inode and self._senders is not None and client[0] in (INNER_V4, INNER_V6):
            return self._behind(self._senders, protocol, client, server)
        return client[1], inode

    def _behind(self, senders: Channel, protocol: int, client: tuple[str, int], server: tuple[str, int]) -> Client:
        from ..host.messages import FindSender, SenderFound

        try:
            if self._owed:
                senders.receive()  # or it is still busy: BlockingIOError
                self._owed = False
            self._number += 1
            senders.send(FindSender(self._number, protocol, *client, *server))
            self._owed = True
            if ready((senders.fileno(),), seconds=LONGEST)[0]:
                found = senders.receive()
                self._owed = False
                if isinstance(found, SenderFound) and found.number == self._number:
                    return found.port, found.inode
        except (OSError, MembraneError):  # the launcher is gone, or busy: as without it
            pass
        return client[1], 0
