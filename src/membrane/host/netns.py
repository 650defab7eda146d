"""The network of one sandbox: a namespace without an uplink whose every address leads to our sockets.

Theory of operation
-------------------
``configure`` runs inside the new network namespace, with CAP_NET_ADMIN over it, in a launcher that lives for
milliseconds.  Nothing of ours stays behind: the namespace keeps routes and rules, the caller gets the sockets.

* lo gets one address per family that is not a loopback address (source of all connections), and a default route
  that declares every address local (AnyIP).
* Mode ``tproxy``: a TCP packet to a foreign address is handed to our listener on ``OWN:INTERCEPT_PORT``;
  ``getsockname()`` of the accepted socket is the original destination.  No NAT, no conntrack.
* Mode ``dnat``, where the kernel has no TPROXY: the destination is rewritten; SO_ORIGINAL_DST gives the original.
* Mode ``anyip``, without nf_tables: one wildcard listener per port of the plan; ``getsockname()`` is the destination.
* DNS and each allowed UDP port: one wildcard socket per family; IP_PKTINFO gives the destination and sets the
  source of the answer.
* A wildcard socket leaves its port to no other one (EADDRINUSE), and a program may want it, to serve on loopback or to
  be asked on (NTP, multicast DNS).  So those of allowed ports have numbers from 65535 down, and rules rewrite the port
  of what goes to a foreign address, and of the answers, where no socket sees them; what goes to loopback or to the own
  address is the sandbox's own business, as with TCP.  Not so port 53: every address is a resolver.  Without nf_tables
  (``anyip``), and where the command has a namespace of its own, they are at their own numbers.
* Multicast datagrams stay on lo, the one link that there is, and reach sockets of the command that joined the group;
  ours take none (IP_MULTICAST_ALL).  No rule opens a way out for them.
* Everything else is rejected in the OUTPUT hook, where ``sendto`` of an unconnected socket fails at once with EPERM
  (in INPUT it would time out).  A copy of the head of each such packet goes to a socket of ours (nfnetlink_log), so
  that the refusal can be reported (``gateway.refused``); a kernel without that refuses in silence, which the record
  says.

Rules only steer.  If they were flushed the sandbox could reach nothing but our listeners: there is no uplink.

With ``containers: nested`` the command has a network namespace of its own (``host.containers``), and this one is at the
other end of its only way out, a veth(4) pair.  What comes in over it meets the same rules and sockets; from another
address than the one that was given out it is dropped, so whatever the command does in its namespace (other addresses,
bridges, NAT, flushing everything) can only cut itself off.
"""

from __future__ import annotations

import _socket
import errno
import os

from ..errors import HostError
from ..plan.model import INNER_V4, INNER_V6, INTERCEPT_PORT, LINK_V6, OWN_V4, OWN_V6, RESOLVER_V4
from . import netlink as nl
from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias, TypeVar

    from ..plan.model import NetworkPlan

    T = TypeVar("T")
    _Rules: TypeAlias = list[tuple[bytes, str]]

_AF_INET, _AF_INET6 = _socket.AF_INET, _socket.AF_INET6
_LO = 1  # LOOPBACK_IFINDEX (include/net/net_namespace.h): lo is the first interface of every namespace
_BACKLOG = 4096  # what a new namespace allows (net.core.somaxconn)
_DNS = 53
_TABLE = "membrane"
_LOG_GROUP, _LOGGED = 1, 64  # of the namespace's own; bytes of a refused packet that are copied: its headers
_PROC_SYS = "/proc/sys/net/"

# ip(7), ipv6(7), include/uapi/linux/in.h, in6.h
_IP_PKTINFO, _IP_TRANSPARENT, _IP_MULTICAST_ALL = 8, 19, 49
_IPV6_V6ONLY, _IPV6_MULTICAST_ALL, _IPV6_RECVPKTINFO, _IPV6_TRANSPARENT, _IPV6_FREEBIND = 26, 29, 49, 75, 78

# What a kernel answers when it was built, or loaded, without a part of netfilter.
_MISSING = frozenset((errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT))
_NO_IPV6 = frozenset((errno.EOPNOTSUPP, errno.EAFNOSUPPORT))


def configure(
    plan: NetworkPlan, *, notes: list[str] | None = None, inner: int = -1
) -> tuple[str, list[tuple[str, _socket.socket]]]:
    """Set up the current network namespace, which must be new.

    Args:
        plan: the modes are tried from ``plan.mode`` on, in the order tproxy, dnat, anyip.  The next one is taken
            only when the kernel lacks a part of this one.
        notes: gets one line for each thing that was left out without harm to the policy.
        inner: with ``plan.inner`` the command's own network namespace, over which the caller has capabilities.

    Returns:
        The mode, and blocking sockets with their roles: ``tcp4 tcp6`` (tproxy: one each; anyip: one per port),
        ``tcp4-dnat tcp6-dnat``, ``dns4 dns6``, ``udp4:PORT udp6:PORT``.  No role of IPv6 where there is no IPv6.
        ``refused``: where copies of refused packets arrive, where the kernel makes them; it does not block.

    Raises:
        HostError: a step failed for any other reason; the namespace must be thrown away.
    """
    notes = [] if notes is None else notes
    group = os.getegid()  # may open ICMP echo sockets, for its own addresses
    _sysctl("ipv4/ip_unprivileged_port_start", "0", notes)
    _sysctl("ipv4/ping_group_range", f"{group} {group}", notes)
    try:
        families = _add_addresses(plan.ipv6, notes)
        if plan.inner:
            _join(inner, families, notes)
        log = _listen_to_refusals(notes)
        mode, logged = _add_rules(plan, families, notes, log is not None)
        sockets = _open_sockets(plan, mode, families)
        if log is not None and logged:
            sockets.append(("refused", log))
        elif log is not None:
            log.close()
        return mode, sockets
    except OSError as error:
        raise HostError(
            "set up the network namespace",
            error.strerror or str(error),
            fix=("membrane doctor",) if error.errno in (errno.EPERM, errno.EACCES) else (),
        ) from error


def _sysctl(name: str, value: str, notes: list[str]) -> bool:
    """Write one setting of this namespace; a refusal (read-only /proc/sys in a container) is noted."""
    try:
        fd = os.open(_PROC_SYS + name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        notes.append(f"sysctl net/{name}={value}: {error.strerror}")
        return False
    return True


def _add_addresses(ipv6: bool, notes: list[str]) -> tuple[int, ...]:
    """lo up, the own addresses, AnyIP: the families that work."""
    route = nl.Connection(nl.NETLINK_ROUTE)
    try:
        route.transact(
            (nl.link_up(_LO), nl.add_address(_AF_INET, OWN_V4, _LO), nl.add_any_local(_AF_INET, OWN_V4, _LO))
        )
        if not ipv6:
            return (_AF_INET,)
        messages = (nl.add_address(_AF_INET6, OWN_V6, _LO), nl.add_any_local(_AF_INET6, OWN_V6, _LO))
        try:
            route.transact(messages)
        except OSError as error:
            if error.errno in _NO_IPV6:
                notes.append("the kernel has no IPv6")
                return (_AF_INET,)
            if error.errno != errno.EACCES:
                raise
            # EACCES: disable_ipv6 is set (Docker's --network none, a host without IPv6).
            if not (
                _sysctl("ipv6/conf/all/disable_ipv6", "0", notes) and _sysctl("ipv6/conf/lo/disable_ipv6", "0", notes)
            ):
                notes.append("IPv6 is disabled in this namespace: every IPv6 connection fails")
                return (_AF_INET,)
            route.transact(messages)
        return (_AF_INET, _AF_INET6)
    finally:
        route.close()


# ---------------------------------------------------------------- the command's own namespace

_OUTER_END, _INNER_END = "inner", "eth0"  # names of the veth pair
_VETH_V4, _VETH_V6 = (INNER_V4, RESOLVER_V4), (INNER_V6, LINK_V6)  # the command's address, and who it sends to


def _join(inner: int, families: tuple[int, ...], notes: list[str]) -> None:
    """A veth pair between here and the command's own namespace, whose default route it is.

    Here every address is local, so ARP is answered for ``RESOLVER_V4``; neighbour discovery asks for a configured
    address (net/ipv6/ndisc.c, ndisc_recv_ns).
    """
    route = nl.Connection(nl.NETLINK_ROUTE)
    try:
        route.transact((nl.add_veth(_OUTER_END, _INNER_END, inner),))
        index = _socket.if_nametoindex(_OUTER_END)
        # What the command says of routes is not for this end: router advertisements, redirects (ip-sysctl.rst).
        for name in ("ipv6/conf/{}/accept_ra", "ipv6/conf/{}/accept_redirects", "ipv4/conf/{}/accept_redirects"):
            _sysctl(name.format(_OUTER_END), "0", notes)
        messages = [nl.link_up(index), nl.add_route(_AF_INET, INNER_V4, index)]
        if _AF_INET6 in families:
            messages += [nl.add_address(_AF_INET6, LINK_V6, index), nl.add_route(_AF_INET6, INNER_V6, index)]
        route.transact(messages)
    finally:
        route.close()
    inside(inner, lambda: _set_out(families))


def _set_out(families: tuple[int, ...]) -> None:
    """In the command's own namespace: its loopback, its address, its way out."""
    route = nl.Connection(nl.NETLINK_ROUTE)
    try:
        index = _socket.if_nametoindex(_INNER_END)
        messages = [nl.link_up(_LO), nl.link_up(index)]
        for family, (own, via) in ((_AF_INET, _VETH_V4), (_AF_INET6, _VETH_V6)):
            if family not in families:
                continue
            messages.append(nl.add_address(family, own, index))
            if family == _AF_INET:
                messages.append(nl.add_route(family, via, index))
            messages.append(nl.add_route(family, "", index, via=via))
        route.transact(messages)
    finally:
        route.close()


def inside(namespace: int, action: Callable[[], T]) -> T:
    """The result of ``action``, taken in another network namespace; sockets that it made belong there (setns(2)).

    Raises:
        OSError: the namespace cannot be entered.
    """
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        sc.setns(namespace, sc.CLONE_NEWNET)
        try:
            return action()
        finally:
            sc.setns(own, sc.CLONE_NEWNET)
    finally:
        os.close(own)


# ---------------------------------------------------------------- rules

_TCP, _UDP, _ICMPV6 = 6, 17, 58


def _listen_to_refusals(notes: list[str]) -> _socket.socket | None:
    """A socket for the copies of refused packets; None where the kernel makes none."""
    try:
        listener = nl.Connection(nl.NETLINK_NETFILTER)
    except OSError as error:
        notes.append(f"refused packets are not reported: {error.strerror}")
        return None
    try:
        listener.transact((nl.listen_to(_LOG_GROUP, _LOGGED),))
    except OSError as error:
        listener.close()
        notes.append(f"refused packets are not reported: {error.strerror}")
        return None
    return listener.hand_over()


def _add_rules(plan: NetworkPlan, families: tuple[int, ...], notes: list[str], log: bool) -> tuple[str, bool]:
    """Add the table in one transaction: the mode that the kernel took, and whether refused packets are copied."""
    for mode in ("tproxy", "dnat")[("tproxy", "dnat", "anyip").index(plan.mode) :]:
        for logged in (True, False) if log else (False,):
            try:
                netfilter = nl.Connection(nl.NETLINK_NETFILTER)
                try:
                    moved = _moved(plan)
                    messages = ruleset(mode, families, plan.udp_ports, log=logged, inner=plan.inner, moved=moved)
                    netfilter.transact(messages, batch=True)
                finally:
                    netfilter.close()
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                if not logged:
                    notes.append(f"no {mode}: {error.strerror}")
            else:
                if log and not logged:
                    notes.append("refused packets are not reported: the kernel copies none")
                return mode, logged
    return "anyip", False


def _moved(plan: NetworkPlan) -> dict[int, int]:
    """The numbers of our sockets, by the UDP ports that they serve: outside of what the kernel gives out by itself."""
    if plan.inner:
        return {}
    free = (port for port in range(65535, 0, -1) if port not in plan.udp_ports)
    return dict(zip(plan.udp_ports, free, strict=False))


def ruleset(
    mode: str,
    families: tuple[int, ...],
    udp_ports: tuple[int, ...],
    *,
    log: bool = False,
    inner: bool = False,
    moved: Mapping[int, int] | None = None,
) -> list[nl.Message]:
    """The nf_tables messages of mode ``tproxy`` or ``dnat``.

    Args:
        log: a copy of what is refused is made.
        inner: packets come in from the command's own namespace as well.
        moved: of ``udp_ports`` those whose sockets have another number, with that.
    """
    accept = nl.verdict(nl.NF_ACCEPT)
    reject = (nl.log(_LOG_GROUP, _LOGGED) if log else b"") + nl.reject_prohibited()
    tcp, udp = nl.protocol_is(_TCP), nl.protocol_is(_UDP)
    # First: what the sandbox's own bridges carry (neighbour discovery, answers to inner containers) is its own.
    out = [(nl.output_is_not(_LO) + accept, "not lo"), (tcp + accept, "tcp")]
    steer: list[tuple[bytes, str]] = []
    to_ours: list[tuple[bytes, str]] = [(nl.protocol_is_not(_UDP) + accept, "not udp")]
    for family, own, loopback, multicast in (
        (_AF_INET, _inet_pton(OWN_V4), b"\x7f", nl.at_least(b"\xe0")),  # 224.0.0.0/4: what is above is refused before
        (_AF_INET6, _inet_pton(OWN_V6), bytes(15) + b"\1", nl.equal(b"\xff")),  # ff00::/8
    ):
        destination = nl.family_is(family) + nl.load_destination(family)
        out += [
            (destination + nl.equal(loopback) + accept, "loopback"),
            (destination + nl.equal(own) + accept, "own address"),
        ]
        if family == _AF_INET:
            out.append((destination + nl.at_least(b"\xf0") + reject, "broadcast"))  # 240.0.0.0/4, 255.255.255.255
        out.append((udp + destination + multicast + accept, "multicast"))
        if family in families and moved:
            own_business = ((nl.equal(loopback), "loopback"), (nl.equal(own), "own address"), (multicast, "multicast"))
            to_ours += [(destination + which + accept, what) for which, what in own_business]
        if family in families:
            foreign = tcp + destination + nl.not_equal(loopback) + nl.not_equal(own)
            if mode == "tproxy":
                steer.append((foreign + nl.tproxy(family, own, INTERCEPT_PORT) + accept, "tproxy"))
            else:
                steer.append((foreign + nl.dnat(family, own, INTERCEPT_PORT), "dnat"))
    udp_port = udp + nl.load_destination_port()
    out += [(udp_port + nl.equal(port.to_bytes(2, "big")) + accept, f"udp {port}") for port in (_DNS, *udp_ports)]
    out.append((reject, "everything else"))

    chains = [("out", "filter", nl.NF_INET_LOCAL_OUT, 0, nl.NF_DROP, out)]
    if mode == "tproxy":
        chains.append(("steer", "filter", nl.NF_INET_PRE_ROUTING, -150, nl.NF_ACCEPT, steer))
    else:
        # Own connections are rewritten in OUTPUT, those of inner containers in PREROUTING.
        chains.append(("steer-own", "nat", nl.NF_INET_LOCAL_OUT, -100, nl.NF_ACCEPT, steer))
        chains.append(("steer-inner", "nat", nl.NF_INET_PRE_ROUTING, -100, nl.NF_ACCEPT, steer))
    if moved:
        to_ours += [
            (udp_port + nl.equal(port.to_bytes(2, "big")) + nl.set_udp_port(number) + accept, f"to udp {port}")
            for port, number in moved.items()
        ]
        answer = udp + nl.load_source_port()
        answers = [
            (
                answer + nl.equal(number.to_bytes(2, "big")) + nl.set_udp_port(port, source=True) + accept,
                f"of udp {port}",
            )
            for port, number in moved.items()
        ]
        chains.append(("to-ours", "filter", nl.NF_INET_PRE_ROUTING, -140, nl.NF_ACCEPT, to_ours))
        chains.append(("answers", "filter", nl.NF_INET_LOCAL_OUT, 10, nl.NF_ACCEPT, answers))
    if inner:
        chains += _from_inside(udp_ports, reject)
    messages = [nl.add_table(_TABLE)]
    for name, kind, hook, priority, policy, rules in chains:
        messages.append(nl.add_chain(_TABLE, name, kind=kind, hook=hook, priority=priority, policy=policy))
        messages += nl.add_rules(_TABLE, name, rules)
    return messages


def _from_inside(udp_ports: tuple[int, ...], reject: bytes) -> list[tuple[str, str, int, int, int, _Rules]]:
    """What the command's own namespace may send: as its own address, and what ``out`` lets pass."""
    accept, drop, other = nl.verdict(nl.NF_ACCEPT), nl.verdict(nl.NF_DROP), nl.input_is_not(_LO)
    first: _Rules = []
    for family, own in ((_AF_INET, INNER_V4), (_AF_INET6, INNER_V6)):
        source = other + nl.family_is(family) + nl.load_source(family)
        link = nl.equal(b"\xfe\x80") + nl.protocol_is(_ICMPV6)  # neighbour discovery; fe80::/16 of fe80::/10 is in use
        if family == _AF_INET6:
            first.append((source + link + accept, "neighbours"))
        first.append((source + nl.equal(_inet_pton(own)) + accept, "own address"))
    first.append((other + drop, "another address"))
    last: _Rules = [(other + nl.protocol_is(_TCP) + accept, "tcp"), (other + nl.protocol_is(_ICMPV6) + accept, "nd")]
    udp_port = other + nl.protocol_is(_UDP) + nl.load_destination_port()
    last += [(udp_port + nl.equal(port.to_bytes(2, "big")) + accept, f"udp {port}") for port in (_DNS, *udp_ports)]
    last.append((other + reject, "everything else"))
    return [
        ("from-inside", "filter", nl.NF_INET_PRE_ROUTING, -300, nl.NF_ACCEPT, first),
        ("for-inside", "filter", nl.NF_INET_LOCAL_IN, 0, nl.NF_ACCEPT, last),
    ]


def _inet_pton(address: str) -> bytes:
    return _socket.inet_pton(_AF_INET6 if ":" in address else _AF_INET, address)


# ---------------------------------------------------------------- sockets


def _open_sockets(plan: NetworkPlan, mode: str, families: tuple[int, ...]) -> list[tuple[str, _socket.socket]]:
    sockets: list[tuple[str, _socket.socket]] = []
    moved = {} if mode == "anyip" else _moved(plan)
    for family in families:
        own, any_address, version = (OWN_V4, "0.0.0.0", "4") if family == _AF_INET else (OWN_V6, "::", "6")  # noqa: S104
        if mode == "tproxy":
            sockets.append((f"tcp{version}", _listener(family, own, INTERCEPT_PORT, transparent=True)))
        elif mode == "dnat":
            sockets.append((f"tcp{version}-dnat", _listener(family, own, INTERCEPT_PORT)))
        else:
            for port in sorted({_DNS, *plan.tcp_ports}):
                sockets.append((f"tcp{version}", _listener(family, any_address, port)))
        sockets.append((f"dns{version}", _datagram(family, any_address, _DNS)))
        for port in plan.udp_ports:
            sockets.append((f"udp{version}:{port}", _datagram(family, any_address, moved.get(port, port))))
    return sockets


def _bind(opened: _socket.socket, family: int, address: str, port: int) -> None:
    if family == _AF_INET6:
        opened.setsockopt(_socket.IPPROTO_IPV6, _IPV6_V6ONLY, 1)
    try:
        opened.bind((address, port))
    except OSError as error:
        raise OSError(error.errno, f"bind [{address}]:{port}: {error.strerror}") from error


def _listener(family: int, address: str, port: int, *, transparent: bool = False) -> _socket.socket:
    """A listening TCP socket; ``transparent``: it may take connections to foreign addresses from TPROXY."""
    opened = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    if transparent and family == _AF_INET:
        opened.setsockopt(_socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
    elif transparent:
        opened.setsockopt(_socket.IPPROTO_IPV6, _IPV6_TRANSPARENT, 1)
    _bind(opened, family, address, port)
    opened.listen(_BACKLOG)
    return opened


def _datagram(family: int, address: str, port: int) -> _socket.socket:
    """A UDP socket that gives each datagram's destination and may answer from it."""
    opened = _socket.socket(family, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    if family == _AF_INET:
        opened.setsockopt(_socket.IPPROTO_IP, _IP_PKTINFO, 1)
        opened.setsockopt(_socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)  # what the command's groups say to each other
    else:
        opened.setsockopt(_socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        opened.setsockopt(_socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        opened.setsockopt(_socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)  # an AnyIP source is EINVAL without it
    _bind(opened, family, address, port)
    return opened
