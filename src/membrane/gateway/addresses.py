"""The addresses of this machine's interfaces, and word of every change.

Theory of operation
-------------------
No name may lead to an address of this machine (``policy.decide``), and interfaces come and go while a session runs: a
VPN, a container's bridge, another wireless network.  rtnetlink(7) notifies its groups of every change; then the whole
list is read anew.  What the kernel could not report for want of room (ENOBUFS) is a change as well.
"""

from __future__ import annotations

from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_RAW
from _socket import socket as Socket

from .reactor import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .reactor import Reactor

_NETLINK_ROUTE = 0
_GROUPS = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_MOST = 1000  # messages taken in one turn; the rest is reported in the next
_READ = 32768  # NLMSG_GOODSIZE is less


def own_addresses() -> frozenset[tuple[int, int]]:
    """The addresses of this machine's interfaces, as (version, integer); what /proc/net shows (proc(5))."""
    found: set[tuple[int, int]] = set()
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            found.update((6, int(line[:32], 16)) for line in table)
    except OSError:
        pass  # no IPv6
    try:
        with open("/proc/net/fib_trie", encoding="ascii") as table:
            address = ""
            for line in table:
                if "|--" in line:
                    address = line.rpartition(" ")[2].strip()
                elif "/32 host LOCAL" in line:
                    found.add((4, int.from_bytes(bytes(int(part) for part in address.split(".")), "big")))
    except OSError:
        pass  # not mounted; private addresses are refused anyway
    return frozenset(found)


class OwnAddresses:
    """The addresses as they are now.

    Args:
        changed: called when they have become others.

    Raises:
        OSError: rtnetlink is not there.
    """

    def __init__(self, reactor: Reactor, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._socket = Socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._socket.bind((0, _GROUPS))
        self.current = own_addresses()  # after the subscription: no change falls between
        reactor.watch(self._socket.fileno(), IN, self._ready)

    def close(self) -> None:
        self._socket.close()

    def _ready(self, _mask: int) -> None:
        for _ in range(_MOST):
            try:
                self._socket.recv(_READ)  # what it says is not looked at
            except BlockingIOError:
                break
            except OSError:
                continue  # ENOBUFS: some did not fit
        found = own_addresses()
        if found != self.current:
            self.current = found
            self._changed()
