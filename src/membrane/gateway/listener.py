"""Accepts connections; where captured ones were meant to go.

Theory of operation
-------------------
Sockets of captured connections were made, and listen, inside the sandbox's network namespace, where every destination
is routed to them.  What such a socket accepts carries the original destination as its own address (a TPROXY or local
route), or, where netfilter translated it, as ``SO_ORIGINAL_DST``.

A listener is watched level triggered: what is not accepted in one turn is reported in the next.  So a turn tries as
many as the last one got, and one more, and seldom ends in ``EAGAIN``, which costs as much as accepting.
"""

from __future__ import annotations

from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    SO_OOBINLINE,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_CONGESTION,
    TCP_NODELAY,
    inet_ntop,
)
from _socket import socket as Socket
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

from .reactor import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .reactor import Reactor

# Congestion control where no network is between the two ends; every kernel has it (tcp(7)).  The host's own may pace
# what it sends (BBR), which costs a timer for every few segments and half of the rate.
WITHIN_HOST = b"reno"
_MOST = 64  # accepted in one turn
_SO_ORIGINAL_DST = 80  # also IP6T_SO_ORIGINAL_DST


class Listener:
    """A listening socket.

    Args:
        arrived: takes an accepted, non-blocking socket and the address of its client.
        exhausted: takes the listener when no descriptor or memory is left; it has stopped until ``start``.
    """

    __slots__ = ("_arrived", "_exhausted", "_reactor", "_socket", "_tries")

    def __init__(
        self,
        reactor: Reactor,
        socket: Socket,
        arrived: Callable[[Socket, Any], None],
        exhausted: Callable[[Listener], None],
    ) -> None:
        self._reactor, self._socket, self._arrived, self._exhausted = reactor, socket, arrived, exhausted
        self._tries = 1
        socket.setblocking(False)

    def start(self) -> None:
        """Accept from now on."""
        self._reactor.watch(self._socket.fileno(), IN, self._ready)

    def _ready(self, _mask: int) -> None:
        listener = self._socket
        for count in range(self._tries):
            try:
                fd, peer = listener._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                self._tries = max(1, count)
                return
            except OSError as error:
                if error.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    self._reactor.unwatch(listener.fileno())
                    self._exhausted(self)
                    return
                continue  # the client was gone before it was accepted
            client = Socket(listener.family, SOCK_STREAM, 0, fd)
            client.setblocking(False)
            self._arrived(client, peer)
        self._tries = min(self._tries + 1, _MOST)


def capture(socket: Socket) -> None:
    """Prepare a listening socket of captured connections; what it accepts inherits this."""
    socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    socket.setsockopt(IPPROTO_TCP, TCP_CONGESTION, WITHIN_HOST)
    # Else an urgent byte is left out until the next one is sent: what is relayed would not be what was judged.
    socket.setsockopt(SOL_SOCKET, SO_OOBINLINE, 1)


def original(client: Socket) -> tuple[str, int]:
    """The destination before DNAT (netfilter ``SO_ORIGINAL_DST``, a sockaddr).

    Raises:
        OSError: ENOENT, the connection was not translated: its client dialled the listener itself.
    """
    six = client.family == AF_INET6
    data = client.getsockopt(IPPROTO_IPV6 if six else IPPROTO_IP, _SO_ORIGINAL_DST, 28)
    port = int.from_bytes(data[2:4], "big")
    return (inet_ntop(AF_INET6, data[8:24]) if six else inet_ntop(AF_INET, data[4:8])), port
