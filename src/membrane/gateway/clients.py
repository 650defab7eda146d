"""Who is the other end of a connection: the port and the inode of its socket, which join it with the call that made it.

Theory of operation
-------------------
The tracer knows of a connect(2) by notification the process and the inode of its socket; the port comes later.  Here
the address and port of the client are known.  The kernel says which inode that is (``host.sockdiag``).

With ``containers: nested`` the client may be behind the command's own NAT, and no socket of the namespace that was
asked: then the launcher finds it in the namespace of its container (``host.senders``).  It is asked at once, while the
socket is there, and its answer read when an event needs it: most connections are dialled meanwhile, and the gateway
waits for nobody.  It waits at most ``LONGEST`` for an answer; a launcher that was late is asked again when it owes
none, so that a command that keeps it busy does not hold up the gateway.
"""

from __future__ import annotations

import time
from _socket import IPPROTO_TCP, IPPROTO_UDP
from _socket import socket as Socket

from ..errors import MembraneError
from ..host.ready import ready
from ..host.sockdiag import SocketTable
from ..plan.model import INNER_V4, INNER_V6

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Client
    from ..host.channel import Channel

LONGEST = 1.0  # seconds that the launcher is waited for
MOST_ASKED = 64  # questions without an answer: all answers have room in the socket


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
        self._asked: dict[int, Sender] = {}  # by the number of the question
        self._late = False  # an answer did not come in time
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
        if inode or self._senders is None or client[0] not in (INNER_V4, INNER_V6):
            return client[1], inode
        from ..host.messages import FindSender

        self._take()
        if len(self._asked) >= (1 if self._late else MOST_ASKED):
            return client[1], 0
        self._late = False
        self._number += 1
        try:
            self._senders.send(FindSender(self._number, protocol, *client, *server))
        except OSError:  # it is gone
            return client[1], 0
        found = self._asked[self._number] = Sender(self, client[1])
        return found

    def _take(self) -> None:
        """Take the answers that are there."""
        from ..host.messages import SenderFound

        assert self._senders is not None
        while self._asked:
            try:
                answer = self._senders.receive()
            except (OSError, MembraneError):  # there is none now, or the launcher is gone
                return
            if not isinstance(answer, SenderFound):
                return
            asked = self._asked.pop(answer.number, None)
            if asked is not None:
                asked.found = answer.port, answer.inode

    def settle(self, sender: Sender) -> tuple[int, int]:
        """What is known of a sender, after waiting for it."""
        assert self._senders is not None
        until = time.monotonic() + LONGEST
        self._take()
        while sender.found is None and not self._late:
            if not ready((self._senders.fileno(),), seconds=max(0.0, until - time.monotonic()))[0]:
                self._late = True
            before = len(self._asked)
            self._take()
            self._late = self._late or len(self._asked) == before  # the launcher is gone
        return sender.found or (sender.port, 0)


class Sender:
    """A client behind a NAT: its port and its inode, as they are known when they are read."""

    __slots__ = ("_clients", "found", "port")

    def __init__(self, clients: Clients, port: int) -> None:
        self._clients = clients
        self.port = port  # as it arrived
        self.found: tuple[int, int] | None = None

    def __getitem__(self, index: int) -> int:
        return (self.found or self._clients.settle(self))[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.found or self._clients.settle(self))
