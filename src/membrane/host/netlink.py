"""rtnetlink and nf_tables requests without ``ip`` or ``nft``.

Theory of operation
-------------------
A request is a list of messages that goes to the kernel in ONE datagram.  The kernel works it off inside
``send``; then one answer per message (struct nlmsgerr, netlink(7)) is waiting.  Every answer is read.  The first
refusal is raised as ``OSError`` and names the message.  For nf_tables the messages stand between a batch begin and
a batch end: all of them take effect, or none (net/netfilter/nfnetlink.c, ``nfnetlink_rcv_batch``).  A refused message
is answered always, and of the others of a batch only the last one is: a batch may have a thousand.

Rules are built from the virtual machine's own instructions (include/uapi/linux/netfilter/nf_tables.h): load from the
packet into a register, compare, act.  A comparison that fails ends the rule.
"""

from __future__ import annotations

import _socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    # message type, flags beside REQUEST and ACK, body, what it does (for the error text)
    Message: TypeAlias = tuple[int, int, bytes, str]

NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
AF_INET, AF_INET6 = _socket.AF_INET, _socket.AF_INET6

_NLM_F_REQUEST, _NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
_NLMSG_ERROR = 2
_NLA_F_NESTED = 0x8000
_ANSWERS = 1 << 20  # bytes; the kernel takes at most net.core.rmem_max, and doubles it (socket(7))
_REQUEST = 1 << 19  # bytes; the same with net.core.wmem_max, which is 212,992 unless it was changed
_SMALL = 1 << 17  # bytes of a request that the default has room for
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ANSWER = struct.Struct("=IHHIIi")  # struct nlmsghdr, then the error of struct nlmsgerr
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


class Connection:
    """One netlink socket of the current network namespace.

    Args:
        protocol: ``NETLINK_ROUTE`` or ``NETLINK_NETFILTER``.

    Raises:
        OSError: EPROTONOSUPPORT when the kernel has no such netlink protocol.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)
        # Refusals wait here, each with a socket buffer of its own: 256 of them do not fit the default.
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, _ANSWERS)
        # The answers are there when send returns; a kernel that leaves one out must not hang the start.
        self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("@ll", 5, 0))

    def hand_over(self) -> _socket.socket:
        """The socket itself, for who reads what comes later; it does not wait any more."""
        self._socket.setblocking(False)
        return self._socket

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def transact(self, messages: Sequence[Message], *, batch: bool = False) -> None:
        """Send ``messages`` in one datagram and read every answer.

        Args:
            batch: put them between the begin and end of an nf_tables transaction.

        Raises:
            OSError: the errno of the first refused message, whose description is in the text.
        """
        parts: list[bytes] = []
        names: dict[int, str] = {}
        waiting: set[int] = set()
        for sequence, (kind, flags, body, what) in enumerate(messages, 1):
            if not batch or sequence == len(messages):
                flags |= _NLM_F_ACK
                waiting.add(sequence)
            parts += (_HEADER.pack(16 + len(body), kind, flags | _NLM_F_REQUEST, sequence, 0), body)
            names[sequence] = what
        if batch:
            # The borders are not acknowledged.  Sequence 0: a refusal of the batch as a whole carries it.
            parts.insert(0, _BATCH_BEGIN)
            parts.append(_BATCH_END)
        request = b"".join(parts)
        if len(request) > _SMALL:
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _REQUEST)  # else EMSGSIZE
        self._socket.send(request)
        refused: OSError | None = None
        while waiting:
            data, offset = self._socket.recv(65536), 0
            while offset + _ANSWER.size <= len(data):
                length, kind, _flags, sequence, _port, error = _ANSWER.unpack_from(data, offset)
                if kind == _NLMSG_ERROR:
                    waiting.discard(sequence)
                    if error and refused is None:
                        refused = OSError(-error, f"netlink {names.get(sequence, 'batch')}: {os.strerror(-error)}")
                    if error and sequence == 0:
                        waiting.clear()  # refused as a whole: no message of it is answered
                offset += max(_HEADER.size, (length + 3) & ~3)
        if refused is not None:
            raise refused


def attribute(kind: int, value: bytes) -> bytes:
    """struct nlattr with its value, padded to 4 bytes."""
    length = len(value)
    return _ATTRIBUTE.pack(length + 4, kind) + value + _PADDING[length & 3]


def nested(kind: int, *attributes: bytes) -> bytes:
    """struct nlattr that holds attributes."""
    value = b"".join(attributes)
    return _ATTRIBUTE.pack(len(value) + 4, kind | _NLA_F_NESTED) + value


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes that ``data`` begins with, by their types; of what is no attribute, none."""
    out: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4 or at + length > len(data):
            break
        out[kind & 0x3FFF] = data[at + 4 : at + length]  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
        at += (length + 3) & ~3
    return out


# ---------------------------------------------------------------- rtnetlink(7)

_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 20, 24
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_F_NODAD, _IFA_F_NOPREFIXROUTE = 2, 0x200
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_RT_TABLE_MAIN, _RTPROT_STATIC, _RTN_UNICAST, _RTN_LOCAL = 254, 4, 1, 2
_RT_SCOPE_UNIVERSE, _RT_SCOPE_LINK, _RT_SCOPE_HOST = 0, 253, 254


def link_up(index: int) -> Message:
    """Set the interface up."""
    return _RTM_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP), "set lo up"


def add_address(family: int, address: str, index: int) -> Message:
    """Add one host address (/32 or /128); IPv6 without duplicate address detection, so it is usable at once.

    The kernel makes the local route of an IPv6 address a moment later (net/ipv6/addrconf.c, addrconf_dad_work).  Until
    then a prefix route would send to the device what is for the address itself, and a connect(2) would wait for a
    second and fail; without one ``add_any_local`` holds for it as for all others.
    """
    raw = _socket.inet_pton(family, address)
    body = struct.pack("=BBBBI", family, 8 * len(raw), 0, 0, index)
    body += attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw)
    body += attribute(_IFA_FLAGS, struct.pack("=I", _IFA_F_NODAD | _IFA_F_NOPREFIXROUTE))
    return _RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body, f"add address {address}"


def add_any_local(family: int, source: str, index: int) -> Message:
    """Add ``local default dev lo src SOURCE``: every address is this host's own (AnyIP).

    In table main, not local: the connected routes of the sandbox's own bridges must win over it.
    """
    scope = _RT_SCOPE_HOST if family == AF_INET else _RT_SCOPE_UNIVERSE
    body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, scope, _RTN_LOCAL, 0)
    body += attribute(_RTA_OIF, struct.pack("=i", index)) + attribute(_RTA_PREFSRC, _socket.inet_pton(family, source))
    return _RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, body, f"add route local default src {source}"


def add_veth(name: str, peer: str, namespace: int) -> Message:
    """Make a veth(4) pair: ``name`` here, ``peer`` in the network namespace of this descriptor."""
    link = bytes(16)  # struct ifinfomsg
    other = link + attribute(_IFLA_NET_NS_FD, struct.pack("=I", namespace)) + _name(_IFLA_IFNAME, peer)
    data = nested(_IFLA_INFO_DATA, nested(_VETH_INFO_PEER, other))
    body = link + _name(_IFLA_IFNAME, name) + nested(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, b"veth"), data)
    return _RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"add veth {name}"


def add_route(family: int, to: str, index: int, *, via: str = "") -> Message:
    """Add a route to one host address, or with an empty ``to`` the default route, over an interface."""
    raw = _socket.inet_pton(family, to) if to else b""
    scope = _RT_SCOPE_LINK if family == AF_INET and not via else _RT_SCOPE_UNIVERSE
    body = struct.pack("=BBBBBBBBI", family, 8 * len(raw), 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, scope, _RTN_UNICAST, 0)
    body += attribute(_RTA_DST, raw) if raw else b""
    body += attribute(_RTA_GATEWAY, _socket.inet_pton(family, via)) if via else b""
    body += attribute(_RTA_OIF, struct.pack("=i", index))
    return _RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, body, f"add route to {to or 'everything'}"


# ---------------------------------------------------------------- nf_tables: table, chain, rule

_NFNL_SUBSYS_NFTABLES = 10
_NFT_MSG_NEWTABLE, _NFT_MSG_NEWCHAIN, _NFT_MSG_NEWRULE = (_NFNL_SUBSYS_NFTABLES << 8 | n for n in (0, 3, 6))
_NFPROTO_INET = 1
_NFGENMSG = struct.pack(">BBH", _NFPROTO_INET, 0, 0)  # struct nfgenmsg
_BORDER = struct.pack(">BBH", 0, 0, _NFNL_SUBSYS_NFTABLES)
_BATCH_BEGIN = _HEADER.pack(20, 0x10, _NLM_F_REQUEST, 0, 0) + _BORDER
_BATCH_END = _HEADER.pack(20, 0x11, _NLM_F_REQUEST, 0, 0) + _BORDER

NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT = 0, 1, 3
NF_DROP, NF_ACCEPT = 0, 1


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _name(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode("ascii") + b"\0")


def add_table(table: str) -> Message:
    """Add a table of family inet; refused when it exists."""
    body = _NFGENMSG + _name(1, table) + attribute(2, b"\0\0\0\0")
    return _NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, body, f"add table inet {table}"


def add_chain(table: str, chain: str, *, kind: str, hook: int, priority: int, policy: int) -> Message:
    """Add a base chain.

    Args:
        kind: ``filter`` or ``nat``.
        hook: ``NF_INET_*``.
        policy: ``NF_ACCEPT`` or ``NF_DROP`` for a packet that no rule decides.
    """
    where = nested(4, attribute(1, _u32(hook)), attribute(2, struct.pack(">i", priority)))
    body = _NFGENMSG + _name(1, table) + _name(3, chain) + where + attribute(5, _u32(policy)) + _name(7, kind)
    return _NFT_MSG_NEWCHAIN, NLM_F_CREATE, body, f"add {kind} chain {table}/{chain}"


_NFULNL_MSG_CONFIG = 4 << 8 | 1  # NFNL_SUBSYS_ULOG
_NFULNL_COPY_PACKET = 2
_LOG_BUFFER = 256  # bytes of one message: with the default, a page, a hundred of them fill the socket


def listen_to(group: int, length: int) -> Message:
    """Get what rules with ``log`` of this group copy (linux/netfilter/nfnetlink_log.h)."""
    body = struct.pack(">BBH", 0, 0, group)
    body += attribute(1, b"\1")  # NFULA_CFG_CMD: NFULNL_CFG_CMD_BIND
    body += attribute(2, struct.pack(">IBx", length, _NFULNL_COPY_PACKET))  # NFULA_CFG_MODE
    body += attribute(3, _u32(_LOG_BUFFER))  # NFULA_CFG_NLBUFSIZ
    return _NFULNL_MSG_CONFIG, 0, body, f"listen to log group {group}"


def add_rules(table: str, chain: str, rules: Sequence[tuple[bytes, str]]) -> list[Message]:
    """Append rules: each a concatenation of the expressions below, and what it is about."""
    head = _NFGENMSG + _name(1, table) + _name(2, chain)
    flags = NLM_F_CREATE | NLM_F_APPEND
    return [
        (_NFT_MSG_NEWRULE, flags, head + nested(4, expressions), f"add rule {table}/{chain}: {what}")
        for expressions, what in rules
    ]


# ---------------------------------------------------------------- nf_tables: expressions

_NFTA_LIST_ELEM = 1
_REGISTER_VERDICT, _REGISTER_1, _REGISTER_2 = b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2"  # 16 bytes each
_EQ, _NEQ, _GTE = 0, 1, 5  # enum nft_cmp_ops; values compare as byte strings, so in network order
_META_IIF, _META_OIF, _META_NFPROTO, _META_L4PROTO = 4, 5, 15, 16
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(_NFTA_LIST_ELEM, _name(1, name), nested(2, *attributes))


def _meta(key: int) -> bytes:
    return _expression("meta", attribute(2, _u32(key)), attribute(1, _REGISTER_1))


def _payload(base: int, offset: int, length: int) -> bytes:
    return _expression(
        "payload",
        attribute(1, _REGISTER_1),
        attribute(2, _u32(base)),
        attribute(3, _u32(offset)),
        attribute(4, _u32(length)),
    )


def _compare(operator: int, value: bytes) -> bytes:
    return _expression("cmp", attribute(1, _REGISTER_1), attribute(2, _u32(operator)), nested(3, attribute(1, value)))


def _immediate(register: bytes, data: bytes) -> bytes:
    return _expression("immediate", attribute(1, register), nested(2, data))


def equal(value: bytes) -> bytes:
    """The first bytes of the loaded value are these."""
    return _compare(_EQ, value)


def not_equal(value: bytes) -> bytes:
    """The first bytes of the loaded value are not these."""
    return _compare(_NEQ, value)


def at_least(value: bytes) -> bytes:
    """The first bytes of the loaded value are these or higher."""
    return _compare(_GTE, value)


def family_is(family: int) -> bytes:
    """IPv4 or IPv6 packet."""
    return _meta(_META_NFPROTO) + equal(bytes((family,)))  # NFPROTO_IPV4 and _IPV6 are AF_INET and AF_INET6


def protocol_is(number: int) -> bytes:
    """Transport protocol: 6 TCP, 17 UDP."""
    return _meta(_META_L4PROTO) + equal(bytes((number,)))


def protocol_is_not(number: int) -> bytes:
    """Another transport protocol."""
    return _meta(_META_L4PROTO) + not_equal(bytes((number,)))


def output_is_not(index: int) -> bytes:
    """The packet leaves by another interface."""
    return _meta(_META_OIF) + not_equal(struct.pack("=I", index))


def input_is_not(index: int) -> bytes:
    """The packet came in by another interface."""
    return _meta(_META_IIF) + not_equal(struct.pack("=I", index))


def load_source(family: int) -> bytes:
    """Load the source address, whose family must have been compared."""
    return _payload(_NETWORK_HEADER, 12, 4) if family == AF_INET else _payload(_NETWORK_HEADER, 8, 16)


def load_destination(family: int) -> bytes:
    """Load the destination address, whose family must have been compared."""
    return _payload(_NETWORK_HEADER, 16, 4) if family == AF_INET else _payload(_NETWORK_HEADER, 24, 16)


def load_destination_port() -> bytes:
    """Load the TCP or UDP destination port; the protocol must have been compared."""
    return _payload(_TRANSPORT_HEADER, 2, 2)


def load_source_port() -> bytes:
    """Load the TCP or UDP source port; the protocol must have been compared."""
    return _payload(_TRANSPORT_HEADER, 0, 2)


def set_udp_port(port: int, *, source: bool = False) -> bytes:
    """Write another destination or source port, and the checksum, into a UDP packet (net/netfilter/nft_payload.c)."""
    write = _expression(
        "payload",
        attribute(5, _REGISTER_1),  # NFTA_PAYLOAD_SREG
        attribute(2, _u32(_TRANSPORT_HEADER)),
        attribute(3, _u32(0 if source else 2)),
        attribute(4, _u32(2)),
        attribute(6, _u32(1)),  # NFTA_PAYLOAD_CSUM_TYPE: NFT_PAYLOAD_CSUM_INET
        attribute(7, _u32(6)),  # NFTA_PAYLOAD_CSUM_OFFSET
    )
    return _immediate(_REGISTER_1, attribute(1, port.to_bytes(2, "big"))) + write


def verdict(code: int) -> bytes:
    """End with ``NF_ACCEPT`` or ``NF_DROP``."""
    return _immediate(_REGISTER_VERDICT, nested(2, attribute(1, _u32(code))))


def reject_prohibited() -> bytes:
    """Refuse with the ICMP or ICMPv6 error "administratively prohibited"."""
    # NFT_REJECT_ICMPX_UNREACH, NFT_REJECT_ICMPX_ADMIN_PROHIBITED
    return _expression("reject", attribute(1, _u32(2)), attribute(2, b"\3"))


def log(group: int, length: int) -> bytes:
    """Copy the first ``length`` bytes of the packet to who listens to this group (nfnetlink_log), at once."""
    # NFTA_LOG_GROUP, NFTA_LOG_SNAPLEN, NFTA_LOG_QTHRESHOLD
    return _expression("log", attribute(1, group.to_bytes(2, "big")), attribute(3, _u32(length)), attribute(4, b"\0\1"))


def tproxy(family: int, address: bytes, port: int) -> bytes:
    """Hand the packet to the transparent socket that listens on ``address``, ``port``."""
    action = _expression("tproxy", attribute(1, _u32(family)), attribute(2, _REGISTER_1), attribute(3, _REGISTER_2))
    return _load_target(address, port) + action


def dnat(family: int, address: bytes, port: int) -> bytes:
    """Rewrite the destination (NFT_NAT_DNAT)."""
    action = _expression(
        "nat", attribute(1, _u32(1)), attribute(2, _u32(family)), attribute(3, _REGISTER_1), attribute(5, _REGISTER_2)
    )
    return _load_target(address, port) + action


def _load_target(address: bytes, port: int) -> bytes:
    return _immediate(_REGISTER_1, attribute(1, address)) + _immediate(
        _REGISTER_2, attribute(1, port.to_bytes(2, "big"))
    )
