"""Which socket is behind the command's own NAT: for the record, which names the process that made it.

Theory of operation
-------------------
With ``containers: nested`` engines give each container a network namespace, and what it sends is translated in the
command's own (``host.containers``).  What arrives in ours has the address of that.  The launcher alone may enter them
all: they belong to user namespaces below its own (setns(2)).  Two questions to the kernel find the socket:

1. connection tracking of the command's namespace: which connection became this one (ctnetlink,
   linux/netfilter/nfnetlink_conntrack.h)?  Its source is an address of a container.
2. sock_diag(7) in the namespaces of containers: which socket has that source?

A namespace has no name; it is found by a process in it.  Which one had an address is kept, the lowest pid of it; else
all processes that the kernel lets us look at are listed, which are those of the sandbox (ptrace(2), "Ptrace access mode
checking").  Nothing of a container is held between two questions: its namespace ends with it.

All of it is the sandbox's word.  Who is root there can translate, and keep in its table, what it likes, so the answer
is for the record, and names at most another process of the sandbox.  A command can also make many namespaces, and
connections that are gone when they are asked about: beyond the first guess the search takes at most ``SHARE`` of the
time, one at most ``LONGEST``, and then nothing is found.  Both are counted in time of the processor: on a busy machine
no search is given up because others ran meanwhile.  A second translation (of an engine in a container) is not followed.
"""

from __future__ import annotations

import os
import time
from _socket import AF_INET, AF_INET6, AF_NETLINK, MSG_DONTWAIT, SOCK_CLOEXEC, SOCK_RAW, inet_ntop, inet_pton
from _socket import socket as Socket
from struct import Struct
from struct import error as StructError

from . import netlink
from .netns import inside
from .sockdiag import SOCK_DIAG, SocketTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Place: TypeAlias = tuple[str, int]

SHARE = 0.1  # of the time
LONGEST = 0.05  # seconds of a processor, and at most ten times that by the clock
MOST_KNOWN = 256  # addresses of containers, and namespaces of one search
_GET, _NEW, _REQUEST = 1 << 8 | 1, 1 << 8, 1  # IPCTNL_MSG_CT_GET and NEW of NFNL_SUBSYS_CTNETLINK; NLM_F_REQUEST
_HEADER = Struct("=IHHIIBBH")  # struct nlmsghdr, struct nfgenmsg
_PORT = Struct(">H")
_ORIGINAL, _REPLY = 1, 2  # CTA_TUPLE_*
_IP, _PROTOCOL = 1, 2  # CTA_TUPLE_*, of each
_NUMBER, _FROM, _TO = 1, 2, 3  # CTA_PROTO_*
_ADDRESSES = {AF_INET: (1, 2), AF_INET6: (3, 4)}  # CTA_IP_*: source and destination
_MOST_STALE = 8  # answers to earlier questions that are read away


class Senders:
    """Finds sockets.

    Args:
        namespace: the command's own network namespace.

    Raises:
        OSError: the kernel has no connection tracking that can be asked.
    """

    def __init__(self, namespace: int) -> None:
        kind = SOCK_RAW | SOCK_CLOEXEC
        self._tracked = inside(namespace, lambda: Socket(AF_NETLINK, kind, netlink.NETLINK_NETFILTER))
        # The command may send to a socket of its namespace (it has CAP_NET_ADMIN there); to one that is connected, only
        # its peer can: the kernel (net/netlink/af_netlink.c, netlink_getsockbyportid).
        self._tracked.connect((0, 0))
        # In these no container is: ours, and the command's, which was asked before.
        self._own = os.fstat(namespace).st_ino, os.stat("/proc/self/ns/net").st_ino
        self._number = 0
        self._known: dict[str, int] = {}  # address: a process that is where it is
        self._left, self._at = LONGEST, time.monotonic()  # seconds for searches, then

    def find(self, protocol: int, client: Place, server: Place) -> tuple[int, int]:
        """Port and inode of the socket whose connection came to ``server`` as one of ``client``; inode 0: not known."""
        original = self._original(protocol, client, server)
        if original is None or original[0] == client:
            return client[1], 0
        (address, port), target = original
        now = time.monotonic()
        self._left, self._at = min(LONGEST, self._left + (now - self._at) * SHARE), now
        known = self._known.get(address)
        inode = self._ask(known, protocol, *original) if known is not None else 0
        if inode or self._left <= 0:
            return port, inode
        worked, until = time.thread_time(), time.monotonic() + 10 * LONGEST

        def over() -> bool:
            return time.thread_time() > worked + LONGEST or time.monotonic() > until

        for pid in self._processes(over):
            inode = self._ask(pid, protocol, (address, port), target)
            if inode:
                self._known.pop(address, None)
                if len(self._known) >= MOST_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[address] = pid
            if inode or over():
                break
        self._left -= time.thread_time() - worked
        return port, inode

    def _processes(self, over: Callable[[], bool]) -> list[int]:
        """The lowest pid in each network namespace of the sandbox but ``_own``, the newest namespaces first."""
        found: dict[int, int] = {}
        for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
            try:
                namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
            except OSError:  # another's, or it has ended
                continue
            if namespace in found or (namespace not in self._own and len(found) < MOST_KNOWN):
                found[namespace] = pid
            if over():
                break
        return list(found.values())

    @staticmethod
    def _ask(pid: int, protocol: int, client: Place, server: Place) -> int:
        """The inode of a socket in the namespace of a process; 0: none, or the process has ended."""
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            asked = inside(namespace, lambda: Socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, SOCK_DIAG))
            inode = SocketTable(asked).find(protocol, client, server)
            asked.close()
            return inode
        except OSError:  # the pid is another's by now, whose namespace is not below ours
            return 0
        finally:
            os.close(namespace)

    def _original(self, protocol: int, client: Place, server: Place) -> tuple[Place, Place] | None:
        """Source and destination of the tracked connection whose answers go from ``server`` to ``client``."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        try:
            self._tracked.send(question(self._number, protocol, client, server))
            for _ in range(_MOST_STALE):
                answer = self._tracked.recv(1 << 13, MSG_DONTWAIT)
                if len(answer) >= _HEADER.size and _HEADER.unpack_from(answer)[3] == self._number:
                    return original(answer)
        except OSError:
            pass
        return None


def question(number: int, protocol: int, client: Place, server: Place) -> bytes:
    """The request for the tracked connection whose answers go from ``server`` to ``client``.

    Raises:
        OSError: an address is none.
    """
    family = AF_INET6 if ":" in client[0] else AF_INET
    source, destination = _ADDRESSES[family]
    body = netlink.nested(
        _REPLY,
        netlink.nested(
            _IP,
            netlink.attribute(source, inet_pton(family, server[0])),
            netlink.attribute(destination, inet_pton(family, client[0])),
        ),
        netlink.nested(
            _PROTOCOL,
            netlink.attribute(_NUMBER, bytes((protocol,))),
            netlink.attribute(_FROM, _PORT.pack(server[1])),
            netlink.attribute(_TO, _PORT.pack(client[1])),
        ),
    )
    return _HEADER.pack(_HEADER.size + len(body), _GET, _REQUEST, number, 0, family, 0, 0) + body


def original(answer: bytes) -> tuple[Place, Place] | None:
    """Source and destination as the sender has them, of the answer to a ``question``; None: no such connection."""
    length, kind, _flags, _number, _port, family, _version, _id = _HEADER.unpack_from(answer)
    if kind != _NEW or family not in _ADDRESSES:  # NLMSG_ERROR
        return None
    sent = netlink.attributes(netlink.attributes(answer[_HEADER.size : length]).get(_ORIGINAL, b""))
    addresses, ports = (netlink.attributes(sent.get(part, b"")) for part in (_IP, _PROTOCOL))
    try:
        source, target = (inet_ntop(family, addresses[each]) for each in _ADDRESSES[family])
        from_port, to_port = (_PORT.unpack(ports[each])[0] for each in (_FROM, _TO))
    except (KeyError, ValueError, OSError, StructError):
        return None
    return (source, from_port), (target, to_port)
