"""Where connections were meant to go, where no namespace captures them.

Theory of operation
-------------------
Without a network namespace the command's connections are made to a listener on the host's loopback by the process that
made its sockets (``host.supervised``).  Before each connection that sends a datagram, ``LOCAL-PORT ADDRESS PORT``, on a
socket that no other process has.  So when a connection is accepted its line is there to be read; one from a port that
no line names is another process's of this machine, and is closed.
"""

from __future__ import annotations

from _socket import MSG_DONTWAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket


class Destinations:
    """What is to come and was not accepted yet.

    Args:
        socket: takes the datagrams.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._known: dict[int, tuple[str, int]] = {}

    def take(self, port: int) -> tuple[str, int] | None:
        """The destination of the connection from a local port, once; None: no line named it."""
        while True:
            try:
                line = self._socket.recv(256, MSG_DONTWAIT)
            except OSError:
                break
            if not line:
                break
            local, address, to = line.decode("ascii").split(" ")
            self._known[int(local)] = address, int(to)  # bounded: a port has 16 bits
        return self._known.pop(port, None)
