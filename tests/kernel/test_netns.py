"""The network namespace as the command sees it: every address leads to our sockets, or is refused at once.

One file of over 800 lines: one namespace, and what becomes of each kind of packet in it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from children import ChildFailed, in_network, outcome, run, timed, unshare

from membrane.errors import HostError
from membrane.gateway import refused
from membrane.host import netlink, netns
from membrane.host import syscalls as sc
from membrane.plan.model import INNER_V4, INNER_V6, INTERCEPT_PORT, OWN_V4, OWN_V6, NetworkPlan

T = TypeVar("T")
SO_ORIGINAL_DST = 80
IPPROTO_UDPLITE = 136
FOREIGN_V4 = ("203.0.113.9", "169.254.169.254", "10.1.2.3", "198.18.0.7", "100.100.100.200")
FOREIGN_V6 = ("2001:db8::7", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "fd00:6d65:6d62:1::5", "fe80::1%lo")
GROUPS = ("224.0.0.1", "224.0.0.251", "239.1.2.3", "ff02::1%lo", "ff02::fb%lo", "ff0e::1")

# Received packets wait in one queue for each processor of the machine (netdev_max_backlog): a flood loses all others.
pytestmark = pytest.mark.not_beside_floods

PATIENCE = 60  # seconds of a call that succeeds at once, on a machine that is busy with something else


class Network:
    """A configured namespace, the client's and the proxy's side in one process."""

    living: ClassVar[list[Network]] = []  # the sockets stay open until the child ends

    def __init__(self, mode: str = "tproxy", **fields: object) -> None:
        self.notes: list[str] = []
        self.mode, self.sockets = netns.configure(NetworkPlan(mode=mode, **fields), notes=self.notes)
        self.living.append(self)

    def role(self, role: str) -> socket.socket:
        """A listener or datagram socket of this role, with a deadline."""
        found = next(opened for name, opened in self.sockets if name == role)
        wrapped = socket.socket(fileno=os.dup(found.fileno()))
        wrapped.settimeout(PATIENCE)
        return wrapped

    def roles(self) -> list[str]:
        return [name for name, _ in self.sockets]

    def close(self) -> None:
        for _, opened in self.sockets:
            opened.close()


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def connect(address: str, port: int) -> socket.socket:
    client = socket.socket(family_of(address))
    client.settimeout(PATIENCE)
    client.connect(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4])
    return client


def wait_for_own_addresses() -> None:
    """The kernel makes an IPv6 address usable from a work queue (net/ipv6/addrconf.c, addrconf_dad_work), which lags
    where other tests make and remove many namespaces: until then nothing answers from it."""
    for _ in range(100 * 60):
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        if rows and not any(int(row[4], 16) & 0x40 for row in rows):  # IFA_F_TENTATIVE, <linux/if_addr.h>
            return
        time.sleep(0.01)  # between two looks at a condition
    raise TimeoutError(rows)


def again(attempt: Callable[[], object], answer: Callable[[], T]) -> T:
    """``answer()`` after ``attempt()``, which is made again where nothing came for half a second.

    Loopback of every network namespace goes through one queue for each processor (net.core.netdev_max_backlog), which
    a test beside this one can fill: a datagram may be lost, as any may.
    """
    for _ in range(2 * PATIENCE - 1):
        attempt()
        try:
            return answer()
        except TimeoutError:
            pass
    attempt()
    return answer()


def send_udp(address: str, port: int, *, protocol: int = 0, broadcast: bool = False) -> socket.socket:
    client = socket.socket(family_of(address), socket.SOCK_DGRAM, protocol)
    client.settimeout(PATIENCE)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, broadcast)
    client.sendto(b"question", socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][4])
    return client


def original_destination(accepted: socket.socket, role: str) -> tuple[str, int]:
    if not role.endswith("-dnat"):
        address, port = accepted.getsockname()[:2]
        return address, port
    if accepted.family == socket.AF_INET:
        _, port, raw = struct.unpack("!HH4s8x", accepted.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    else:
        _, port, raw = struct.unpack("!HH4x16s4x", accepted.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28))
    return socket.inet_ntop(accepted.family, raw), port


# ---------------------------------------------------------------- TCP


def arrivals(mode: str, ports: tuple[int, ...]) -> list[tuple[str, int, str, int, str]]:
    """Connect everywhere; (asked address, port, address and port the proxy saw, source address)."""
    network = Network(mode, tcp_ports=ports)
    suffix = "-dnat" if mode == "dnat" else ""
    seen = []
    for address in (*FOREIGN_V4, *FOREIGN_V6, "::ffff:203.0.113.9"):
        for port in ports:
            client = connect(address, port)
            role = f"tcp{6 if ':' in address and '::ffff' not in address else 4}{suffix}"
            candidates = [opened for name, opened in network.sockets if name == role]
            if mode == "anyip":
                candidates = [opened for opened in candidates if opened.getsockname()[1] == port]
            listener = socket.socket(fileno=os.dup(candidates[0].fileno()))
            listener.settimeout(PATIENCE)
            accepted, source = listener.accept()
            accepted.sendall(b"x")
            assert client.recv(1) == b"x"
            seen.append((address, port, *original_destination(accepted, role), source[0]))
    assert network.mode == mode
    return seen


@pytest.mark.parametrize("mode", ["tproxy", "dnat", "anyip"])
def test_tcp_to_any_address_arrives_with_the_exact_destination(mode: str) -> None:
    seen = in_network(lambda: arrivals(mode, (443, 1, 65535) if mode != "anyip" else (443, 80, 65535)))
    assert len(seen) == 3 * (len(FOREIGN_V4) + len(FOREIGN_V6) + 1)
    for address, port, got_address, got_port, source in seen:
        assert (got_address, got_port) == (address.removeprefix("::ffff:").removesuffix("%lo"), port)
        assert source.startswith("fe80::") or source in (OWN_V4, OWN_V6)


def from_inside(mode: str) -> list[tuple[str, str]]:
    """From a namespace at the other end of the veth pair: what each attempt comes to, and where it arrives."""

    def namespace() -> int:
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    own = namespace()
    sc.unshare(sc.CLONE_NEWNET)
    inner = namespace()
    sc.setns(own, sc.CLONE_NEWNET)
    made, sockets = netns.configure(NetworkPlan(mode=mode, inner=True, udp_ports=(123,)), inner=inner)
    assert made == mode
    roles = {role: socket.socket(fileno=os.dup(opened.fileno())) for role, opened in sockets}
    suffix = "-dnat" if mode == "dnat" else ""
    seen = []
    for address in (FOREIGN_V4[0], FOREIGN_V4[3], FOREIGN_V6[0]):
        role = f"tcp{6 if ':' in address else 4}{suffix}"
        roles[role].settimeout(PATIENCE)
        client = netns.inside(inner, partial(connect, address, 443))
        accepted, source = roles[role].accept()
        accepted.sendall(b"x")
        assert client.recv(1) == b"x"
        seen.append((f"{original_destination(accepted, role)}", source[0]))
    for port, role in ((53, "dns4"), (123, "udp4:123")):
        roles[role].settimeout(PATIENCE)
        client = netns.inside(inner, partial(send_udp, "198.18.0.1", port))
        question, source = roles[role].recvfrom(64)
        roles[role].sendto(b"answer", source)
        assert (question, client.recv(64) if port == 53 else b"answer") == (b"question", b"answer")
        seen.append((f"udp {port}", source[0]))
    client = netns.inside(inner, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    client.settimeout(PATIENCE)
    client.connect(("198.18.0.1", 124))
    client.send(b"question")
    seen.append(("udp 124", outcome(lambda: client.recv(64))))
    return seen


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_what_comes_from_a_namespace_of_the_command_arrives_as_its_own(mode: str) -> None:
    seen = in_network(lambda: from_inside(mode))
    tcp = [(f"('{address}', 443)", source) for address, source in (
        (FOREIGN_V4[0], INNER_V4), (FOREIGN_V4[3], INNER_V4), (FOREIGN_V6[0], INNER_V6)
    )]  # fmt: skip
    assert seen[:5] == [*tcp, ("udp 53", INNER_V4), ("udp 123", INNER_V4)]
    assert seen[5] == ("udp 124", "EHOSTUNREACH")  # administratively prohibited, and at once


def test_anyip_refuses_a_port_that_is_not_in_the_plan() -> None:
    def body() -> list[tuple[str, bool]]:
        Network("anyip", tcp_ports=(443,))
        # In the first milliseconds of a namespace the kernel may have no route for an answer over IPv6
        # (Ip6OutNoRoutes), and TCP asks again after a second: the times below are about ports, not about that.
        connect("2001:db8::7", 443)
        return [
            timed(partial(connect, address, port))
            for address in ("203.0.113.9", "2001:db8::7")
            for port in (443, 53, 444)
        ]

    refused = ("ECONNREFUSED", True)
    assert in_network(body) == [("ok", True), ("ok", True), refused] * 2


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_own_servers_are_left_alone_and_do_not_catch_foreign_addresses(mode: str) -> None:
    def body() -> dict[str, str]:
        network = Network(mode)
        served, reached = {}, {}
        for address in ("127.0.0.1", "::1", OWN_V4, OWN_V6):
            served[address] = socket.create_server((address, 8080), family=family_of(address))
        wildcard = socket.create_server(("0.0.0.0", 9090))
        for address, server in served.items():
            server.settimeout(PATIENCE)
            client = connect(address, 8080)
            accepted, _ = server.accept()
            reached[address] = accepted.getsockname()[0]
            client.close()
        # A foreign address on the same port goes to the proxy.
        connect("203.0.113.9", 9090)
        accepted, _ = network.role("tcp4" if mode == "tproxy" else "tcp4-dnat").accept()
        reached["foreign"] = original_destination(accepted, "" if mode == "tproxy" else "x-dnat")[0]
        wildcard.setblocking(False)
        reached["wildcard"] = outcome(wildcard.accept)
        # 0.0.0.0 as a destination is the own loopback
        connect("0.0.0.0", 9090)
        wildcard.settimeout(PATIENCE)
        reached["zero"] = outcome(wildcard.accept)
        return reached

    own = {address: address for address in ("127.0.0.1", "::1", OWN_V4, OWN_V6)}
    assert in_network(body) == {**own, "foreign": "203.0.113.9", "wildcard": "EAGAIN", "zero": "ok"}


def test_our_ipv6_address_is_reached_before_the_kernel_has_its_local_route() -> None:
    """A prefix route would send a SYN of the first moment to the device, where nothing takes it for an own address."""

    def sent_out(address: str) -> bool:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        rows = [line.split() for line in Path("/proc/net/ipv6_route").read_text().splitlines()]
        return any(
            row[0] == wanted and not int(row[8], 16) & 0x80000000 for row in rows
        )  # RTF_LOCAL, <linux/ipv6_route.h>

    def body() -> list[bool]:
        Network()
        other = "fd00:6d65:6d62::99"  # the control: without the flags, which are the last attribute
        kind, flags, attributes, what = netlink.add_address(socket.AF_INET6, other, 1)
        route = netlink.Connection(netlink.NETLINK_ROUTE)
        route.transact(((kind, flags, attributes[:-8], what),))
        route.close()
        return [sent_out(OWN_V6), sent_out(other)]

    assert in_network(body) == [False, True]


def test_the_command_can_not_take_over_our_addresses() -> None:
    def body() -> list[str]:
        Network(udp_ports=(443,))

        def bind(kind: int, address: str, port: int) -> None:
            taken = socket.socket(family_of(address), kind)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            taken.bind((address, port))
            if kind == socket.SOCK_STREAM:
                taken.listen()

        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        return [
            outcome(lambda: bind(stream, OWN_V4, INTERCEPT_PORT)),
            outcome(lambda: bind(stream, OWN_V6, INTERCEPT_PORT)),
            outcome(lambda: bind(datagram, "127.0.0.1", 53)),
            outcome(lambda: bind(datagram, "203.0.113.9", 53)),
            outcome(lambda: bind(datagram, "::1", 53)),
            outcome(lambda: bind(datagram, "::1", 65535)),  # of the socket for port 443
            outcome(lambda: bind(stream, "127.0.0.1", 80)),  # control: privileged ports are free
            outcome(lambda: bind(datagram, "::1", 80)),
        ]

    assert in_network(body) == ["EADDRINUSE"] * 6 + ["ok"] * 2


# ---------------------------------------------------------------- UDP and DNS


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_udp_to_a_port_that_is_not_allowed_fails_at_once(mode: str) -> None:
    def body() -> dict[str, tuple[str, bool]]:
        Network(mode, udp_ports=(443,))
        rows = {}
        for address in ("203.0.113.9", "169.254.169.254", "2001:db8::7", "fd00:ec2::254", "::ffff:203.0.113.9"):
            for port in (443, 53, 123, 444, 65535):
                rows[f"{address} {port}"] = timed(partial(send_udp, address, port))
        return rows

    for row, result in in_network(body).items():
        assert result == ("ok" if row.endswith((" 443", " 53")) else "EPERM", True), row


@pytest.mark.parametrize("mode", ["tproxy", "dnat", "anyip"])
def test_dns_to_any_resolver_is_answered_from_the_address_that_was_asked(mode: str) -> None:
    def body() -> list[tuple[str, str]]:
        network = Network(mode, udp_ports=(443,))
        rows = []
        for address in ("198.18.0.1", "8.8.8.8", "127.0.0.53", "2001:4860:4860::8888", "::1", "::ffff:8.8.4.4"):
            for port, kind in ((53, "dns"), (443, "udp")):
                if port == 443 and mode != "anyip" and address in ("127.0.0.53", "::1"):
                    continue  # the sandbox's own
                six = ":" in address and "::ffff" not in address
                role = f"{kind}{6 if six else 4}" + ("" if kind == "dns" else f":{port}")
                server = network.role(role)
                client = socket.socket(family_of(address), socket.SOCK_DGRAM)
                server.settimeout(0.5)
                client.settimeout(0.5)
                place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][4]
                client.bind(("", 0))
                number, own = bytes((len(rows),)), client.getsockname()[1]
                ask, take = partial(client.sendto, number, place), partial(server.recvmsg, 100, 200)
                data, ancillary, _, source = again(ask, take)
                while data != number:  # asked again, and answered, in the row before
                    data, ancillary, _, source = take()
                assert source[1] == own
                level, option, value = ancillary[0]
                # in_pktinfo, in6_pktinfo: the answer leaves from the address that was asked
                value = struct.pack("16sI", value[:16], 0) if six else struct.pack("I4s4s", 0, value[8:12], bytes(4))
                answer, (peer, peer_port, *_) = again(
                    partial(server.sendmsg, [b"answer"], [(level, option, value)], 0, source),
                    partial(client.recvfrom, 100),
                )
                assert (answer, peer_port) == (b"answer", port)
                rows.append((address, peer))
        return rows

    for asked, answered in in_network(body):
        assert asked == answered


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
@pytest.mark.parametrize("port", [443, 65535])
def test_a_udp_port_that_a_rule_opens_can_be_bound_and_served_inside(mode: str, port: int) -> None:
    """With a socket of the command on the port, also one that asks from it, each gets what is meant for it.

    The control: without rules in netfilter the port is ours alone.
    """

    def body() -> list[tuple[str, bytes, bytes, tuple[str, int]]]:
        network = Network(mode, udp_ports=(port, 65534))
        rows = []
        for version, address, loopback in (("4", "203.0.113.9", "127.0.0.1"), ("6", "2001:db8::9", "::1")):
            own = socket.socket(family_of(address), socket.SOCK_DGRAM)
            own.settimeout(0.5)
            if version == "6":
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            own.bind(("", port))
            ours = network.role(f"udp{version}:{port}")
            ours.settimeout(0.5)
            inside, _peer = again(partial(send_udp, loopback, port), partial(own.recvfrom, 100))
            asked, control, _flags, client = again(
                partial(own.sendto, b"out", (address, port)), partial(ours.recvmsg, 100, 200)
            )
            level, option, value = control[0]
            value = value[:16] + bytes(4) if version == "6" else bytes(4) + value[8:12] + bytes(4)
            answer, peer = again(
                partial(ours.sendmsg, [b"answer"], [(level, option, value)], 0, client), partial(own.recvfrom, 100)
            )
            assert client[1] == port and asked == b"out"
            rows.append((address, inside, answer, peer[:2]))
            own.close()
        return rows

    for address, inside, answer, peer in in_network(body):
        assert (inside, answer, peer) == (b"question", b"answer", (address, port))

    def alone() -> str:
        Network("anyip", udp_ports=(port,))
        return outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("", port)))

    assert in_network(alone) == "EADDRINUSE"


def joined(address: str, port: int) -> socket.socket:
    """A socket of the command that is in the group."""
    member = socket.socket(family_of(address), socket.SOCK_DGRAM)
    member.settimeout(0.5)
    member.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    group, _, _ = address.partition("%")
    raw = socket.inet_pton(family_of(address), group)
    if family_of(address) == socket.AF_INET:
        member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, raw + bytes(4))
    else:
        member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, raw + struct.pack("I", 0))
    member.bind(("", port))
    return member


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_multicast_stays_in_the_namespace(mode: str) -> None:
    """A member of a group gets what is sent to it; none of our sockets does, on its own port either."""

    def body() -> list[tuple[str, bytes, str]]:
        network = Network(mode, udp_ports=(5353,))
        rows = []
        for address in GROUPS:
            member = joined(address, 1900)
            data, peer = again(partial(send_udp, address, 1900), partial(member.recvfrom, 100))
            rows.append((address, data, peer[0]))
            for port in (53, 5353):  # ours, on any address
                send_udp(address, port)
        assert socket.if_nameindex() == [(1, "lo")]
        for role in ("dns4", "dns6", "udp4:5353", "udp6:5353"):
            server = network.role(role)
            server.setblocking(False)
            assert outcome(partial(server.recv, 10)) == "EAGAIN", role
        send_udp("203.0.113.9", 5353)  # control
        assert network.role("udp4:5353").recv(10) == b"question"
        return rows

    rows = in_network(body)
    assert len(rows) == len(GROUPS)
    for address, data, peer in rows:
        assert (data, peer) == (b"question", OWN_V6 if ":" in address else OWN_V4), address


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_broadcast_and_what_else_goes_to_groups_is_refused(mode: str) -> None:
    def body() -> dict[str, tuple[str, bool]]:
        network = Network(mode, udp_ports=(5353,))
        rows = {}
        for address in ("240.0.0.1", "255.255.255.255"):
            for port in (53, 5353, 9):
                rows[f"udp {address} {port}"] = timed(partial(send_udp, address, port, broadcast=True))
        members = [joined(address, 80) for address in GROUPS]
        for address in (*GROUPS, "255.255.255.255"):
            rows[f"tcp {address}"] = timed(partial(connect, address, 80))
            udplite = partial(send_udp, address, 80, protocol=IPPROTO_UDPLITE, broadcast=True)
            rows[f"udplite {address}"] = timed(udplite)
        for role in ("dns4", "dns6", "udp4:5353", "udp6:5353", "tcp4", "tcp6", "tcp4-dnat", "tcp6-dnat"):
            if role in network.roles():
                server = network.role(role)
                server.setblocking(False)
                take = server.accept if role.startswith("tcp") else lambda server=server: server.recv(10)
                assert outcome(take) == "EAGAIN", role
        del members
        send_udp("203.0.113.9", 5353)  # control
        assert network.role("udp4:5353").recv(10) == b"question"
        return rows

    refusals = {"EPERM", "ENETUNREACH", "EACCES", "EADDRNOTAVAIL", "EINVAL", "EPROTONOSUPPORT"}
    for row, (result, fast) in in_network(body).items():
        assert fast and result in refusals, (row, result)


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_other_protocols_are_refused(mode: str) -> None:
    """Sent by the owner of the namespace, who may open raw sockets: the rules refuse, not the capability."""

    def body() -> dict[str, tuple[str, bool]]:
        Network(mode)
        wait_for_own_addresses()
        rows = {}

        def raw(address: str, protocol: int, packet: bytes) -> None:
            opened = socket.socket(family_of(address), socket.SOCK_RAW, protocol)
            opened.sendto(packet, (address, 0))

        def ping(address: str) -> None:
            protocol = socket.IPPROTO_ICMPV6 if ":" in address else socket.IPPROTO_ICMP
            opened = socket.socket(family_of(address), socket.SOCK_DGRAM, protocol)
            opened.settimeout(0.5)
            # Connected: Linux does not tell an unconnected ICMPv6 echo socket about any failed send.
            opened.connect((address, 0))
            packet = struct.pack("!BBHHH", 128 if ":" in address else 8, 0, 0, 0, 1)
            again(partial(opened.send, packet), partial(opened.recv, 100))

        for address in ("127.0.0.1", "::1", OWN_V4, OWN_V6, "203.0.113.9", "2001:db8::7"):
            for protocol in (47, 50, 132, 136):  # GRE, ESP, SCTP, UDP-Lite
                rows[f"{protocol} to {address}"] = timed(partial(raw, address, protocol, bytes(32)))
            rows[f"ping {address}"] = timed(partial(ping, address))
        return rows

    for row, result in in_network(body).items():
        if "203.0.113.9" in row or "2001:db8::7" in row:
            assert result == ("EACCES" if row == "ping 2001:db8::7" else "EPERM", True), row
        else:
            assert result == ("ok", True), row


# ---------------------------------------------------------------- inner containers


def make_veth(pid: int) -> None:
    """A pair: ``b0`` here, ``c0`` in the network namespace of ``pid``."""
    info = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    name = partial(netlink.attribute, 3)
    peer = info + name(b"c0\0") + netlink.attribute(19, struct.pack("=I", pid))  # IFLA_NET_NS_PID
    data = netlink.nested(2, netlink.attribute(1, peer))
    body = info + name(b"b0\0") + netlink.nested(18, netlink.attribute(1, b"veth\0"), data)
    flags = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
    netlink.Connection(netlink.NETLINK_ROUTE).transact([(16, flags, body, "add veth")])


def set_up_veth(name: str, own: tuple[str, str], gateways: tuple[str, ...]) -> None:
    """Addresses (a /16 and a /64) and default routes of one end."""
    index = socket.if_nametoindex(name)
    flags = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
    messages = [netlink.link_up(index)]
    for address, prefix in zip(own, (16, 64), strict=True):
        raw = socket.inet_pton(family_of(address), address)
        body = struct.pack("=BBBBI", family_of(address), prefix, 2, 0, index)
        body += netlink.attribute(2, raw) + netlink.attribute(1, raw)
        messages.append((20, flags, body, f"add {address}"))
    for gateway in gateways:
        body = struct.pack("=BBBBBBBBI", family_of(gateway), 0, 0, 0, 254, 4, 0, 1, 0)
        raw = socket.inet_pton(family_of(gateway), gateway)
        body += netlink.attribute(5, raw) + netlink.attribute(4, struct.pack("=i", index))
        messages.append((24, flags, body, f"add default via {gateway}"))
    netlink.Connection(netlink.NETLINK_ROUTE).transact(messages)


@pytest.mark.parametrize("mode", ["tproxy", "dnat"])
def test_a_container_inside_behind_a_bridge_is_caught_as_well(mode: str) -> None:
    def body() -> list[tuple[str, str]]:
        network = Network(mode)
        told, tell = os.pipe()
        wait, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sc.unshare(sc.CLONE_NEWNET)
                os.write(tell, b"x")
                os.read(wait, 1)
                set_up_veth("c0", ("172.17.0.2", "fd99::2"), ("172.17.0.1", "fd99::1"))
                for address in ("203.0.113.9", "2001:db8::7"):
                    connect(address, 443).sendall(b"tcp")
                    send_udp(address, 53)
            finally:
                os._exit(0)
        assert os.read(told, 1) == b"x"
        make_veth(pid)
        set_up_veth("b0", ("172.17.0.1", "fd99::1"), ())
        os.write(go, b"x")
        seen = []
        for version in ("4", "6"):
            role = f"tcp{version}" + ("-dnat" if mode == "dnat" else "")
            accepted, source = network.role(role).accept()
            assert accepted.recv(3) == b"tcp"
            seen.append((original_destination(accepted, role)[0], source[0]))
            question, source = network.role(f"dns{version}").recvfrom(100)
            seen.append((question.decode(), source[0]))
        return seen

    assert in_network(body) == [
        ("203.0.113.9", "172.17.0.2"),
        ("question", "172.17.0.2"),
        ("2001:db8::7", "fd99::2"),
        ("question", "fd99::2"),
    ]


# ---------------------------------------------------------------- who may change it


def attacks() -> dict[str, Callable[[], object]]:
    """What would undo the steering."""

    def nft_delete() -> None:
        connection = netlink.Connection(netlink.NETLINK_NETFILTER)
        # NFT_MSG_DELTABLE of family inet
        body = struct.pack(">BBH", 1, 0, 0) + netlink.attribute(1, b"membrane\0")
        connection.transact([(10 << 8 | 2, 0, body, "delete table")], batch=True)

    def nft_accept_all() -> None:
        connection = netlink.Connection(netlink.NETLINK_NETFILTER)
        chain = netlink.add_chain(
            "mine", "out", kind="filter", hook=netlink.NF_INET_LOCAL_OUT, priority=-300, policy=netlink.NF_ACCEPT
        )
        connection.transact([netlink.add_table("mine"), chain], batch=True)

    def route(message: netlink.Message) -> None:
        netlink.Connection(netlink.NETLINK_ROUTE).transact([message])

    def delete_route() -> None:
        kind, _, body, what = netlink.add_any_local(socket.AF_INET, OWN_V4, 1)
        route((kind + 1, 0, body, what))  # RTM_DELROUTE

    def option(family: int, level: int, name: int) -> None:
        socket.socket(family).setsockopt(level, name, 1)

    def sysctl() -> None:
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
            file.write("1024")

    return {
        "raw v4": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw v6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
        "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0),
        "SO_MARK": lambda: option(socket.AF_INET, socket.SOL_SOCKET, 36),
        "IP_TRANSPARENT": lambda: option(socket.AF_INET, socket.SOL_IP, 19),
        "IPV6_TRANSPARENT": lambda: option(socket.AF_INET6, socket.IPPROTO_IPV6, 75),
        "sysctl": sysctl,
        "add chain": nft_accept_all,
        "add address": lambda: route(netlink.add_address(socket.AF_INET, "192.0.2.9", 1)),
        "add route": lambda: route(netlink.add_any_local(socket.AF_INET6, "::1", 1)),
        "delete table": nft_delete,
        "delete route": delete_route,
        "link down": lambda: route((16, 0, struct.pack("=BxHiII", 0, 0, 1, 0, 1), "set lo down")),
    }


# By their mode root may write the files of /proc/sys, whatever its capabilities; they steer nothing out.
SYSCTL_REFUSED = ("ok",) if os.geteuid() == 0 else ("EACCES", "EPERM")


def test_attacks_by_the_owner_succeed() -> None:
    """The control of the two tests below: each attack works where it may."""

    def body() -> dict[str, str]:
        Network()
        return {name: outcome(attack) for name, attack in attacks().items()}

    results = in_network(body)
    assert results.pop("add route") == "EEXIST"  # ours is in its place: allowed, but nothing to add
    assert set(results.values()) == {"ok"}, results


def test_nothing_inside_may_change_it_with_every_capability_of_an_inner_user_namespace() -> None:
    def body() -> tuple[dict[str, str], str]:
        network = Network()

        def inner() -> dict[str, str]:
            unshare(sc.CLONE_NEWNS)
            with open("/proc/self/status") as file:
                effective = next(line.split()[1] for line in file if line.startswith("CapEff"))
            assert int(effective, 16).bit_count() > 30
            return {name: outcome(attack) for name, attack in attacks().items()}

        results = run(inner)
        connect("203.0.113.9", 443)
        return results, network.role("tcp4").accept()[0].getsockname()[0]

    results, destination = in_network(body)
    assert results.pop("sysctl") in SYSCTL_REFUSED
    assert set(results.values()) == {"EPERM"}, results
    assert destination == "203.0.113.9"


def test_nothing_inside_may_change_it_without_capabilities() -> None:
    def body() -> dict[str, str]:
        Network()
        sc.drop_capabilities()
        return {name: outcome(attack) for name, attack in attacks().items()}

    results = in_network(body)
    assert results.pop("sysctl") in SYSCTL_REFUSED
    assert set(results.values()) == {"EPERM"}, results


def test_a_network_namespace_made_inside_leads_nowhere() -> None:
    def body() -> list[str]:
        Network()

        def inner() -> list[str]:
            unshare(sc.CLONE_NEWNET)
            return [outcome(partial(connect, address, 443)) for address in ("203.0.113.9", "2001:db8::7")]

        return run(inner)

    v4, v6 = in_network(body)
    assert v4 == "ENETUNREACH" and v6 in ("ENETUNREACH", "EADDRNOTAVAIL")


# ---------------------------------------------------------------- fail closed


@pytest.mark.parametrize("mode", ["tproxy", "dnat", "anyip"])
def test_without_listeners_every_connection_is_refused(mode: str) -> None:
    def body() -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
        network = Network(mode, tcp_ports=(443,), udp_ports=(443,))

        def is_moved(port: int) -> bool:
            """The error names the number of our socket, so it is nobody's: no answer comes."""
            return mode != "anyip" and port != 53

        def ask(address: str, port: int) -> None:
            client = send_udp(address, port)
            client.settimeout(0.3 if is_moved(port) else PATIENCE)
            client.connect((address, port))
            client.send(b"again")
            client.send(b"an ICMP error of the datagram before is reported here")
            client.recv(10)

        def try_all() -> list[tuple[str, bool]]:
            return [timed(partial(connect, address, 443)) for address in ("203.0.113.9", "2001:db8::7")]

        control = try_all()
        network.close()
        closed = try_all()
        for address in ("198.18.0.1", "2001:db8::53"):
            closed += [timed(partial(ask, address, port)) for port in (53, 443)]
        return control, closed

    control, closed = in_network(body)
    assert [answer for answer, _soon in control] == ["ok"] * 2
    datagrams = [("ECONNREFUSED", True), ("ECONNREFUSED" if mode == "anyip" else "timed out", True)]
    assert closed == [("ECONNREFUSED", True)] * 2 + datagrams * 2


def test_without_the_rules_there_is_still_no_way_out() -> None:
    def body() -> tuple[str, list[tuple[str, bool]]]:
        Network()
        connected = outcome(lambda: connect("203.0.113.9", 443))
        attacks()["delete table"]()
        return connected, [timed(partial(connect, address, 443)) for address in ("203.0.113.9", "2001:db8::7")]

    assert in_network(body) == ("ok", [("ECONNREFUSED", True)] * 2)


# ---------------------------------------------------------------- modes and their errors


def roles_when(missing: dict[str, int], mode: str = "tproxy") -> tuple[str, list[str], list[str]]:
    """Configure while the kernel seems to lack parts: {"tproxy", "dnat" or "log": errno}."""

    def body() -> tuple[str, list[str], list[str]]:
        real = netlink.Connection.transact

        def transact(self: netlink.Connection, messages: list[netlink.Message], *, batch: bool = False) -> None:
            for _, _, data, what in messages:
                for part, number in missing.items():
                    if batch and (what.endswith(f": {part}") or (part == "log" and b"log\0" in data)):
                        raise OSError(number, f"netlink {what}: {os.strerror(number)}")
            real(self, messages, batch=batch)

        netlink.Connection.transact = transact  # type: ignore[method-assign]
        network = Network(mode, udp_ports=(443,), tcp_ports=(443,))
        return network.mode, network.roles(), network.notes

    return in_network(body)


def test_roles() -> None:
    mode, roles, notes = roles_when({})
    assert (mode, notes) == ("tproxy", [])
    assert roles == ["tcp4", "dns4", "udp4:443", "tcp6", "dns6", "udp6:443", "refused"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT])
def test_the_next_mode_is_taken_when_the_kernel_lacks_a_part(number: int) -> None:
    mode, roles, notes = roles_when({"tproxy": number})
    assert mode == "dnat" and len(notes) == 1 and notes[0].startswith("no tproxy: netlink add rule")
    assert roles == ["tcp4-dnat", "dns4", "udp4:443", "tcp6-dnat", "dns6", "udp6:443", "refused"]
    mode, roles, notes = roles_when({"tproxy": number, "dnat": number})
    assert mode == "anyip" and len(notes) == 2
    assert roles == ["tcp4", "tcp4", "dns4", "udp4:443", "tcp6", "tcp6", "dns6", "udp6:443"]  # 53 and 443


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.EBUSY, errno.ENOMEM])
def test_any_other_error_stops_the_start(number: int) -> None:
    with pytest.raises(ChildFailed, match=r"HostError: cannot set up .*: netlink add rule membrane/steer"):
        roles_when({"tproxy": number})


def test_without_copies_of_what_is_refused_the_rules_are_the_same() -> None:
    """A kernel without nfnetlink_log, or without the expression, refuses in silence, and says so."""
    mode, roles, notes = roles_when({"log": errno.ENOENT})
    assert (mode, roles[-1]) == ("tproxy", "udp6:443")
    assert notes == ["refused packets are not reported: the kernel copies none"]


def test_any_refused_packet_is_copied_and_no_other() -> None:
    """The head of it, with whose it is; what is carried or the sandbox's own is not copied."""

    def body() -> list[tuple[int, str, str, int]]:
        network = Network(udp_ports=(443,))
        copies = network.role("refused")
        copies.settimeout(0)
        inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        inside.bind(("127.0.0.1", 0))
        send_udp("127.0.0.1", inside.getsockname()[1])
        for address in ("203.0.113.9", "2001:db8::7"):
            send_udp(address, 443)
            send_udp(address, 53)
            connect(address, 80)
        for address in GROUPS:
            send_udp(address, 5353)
        with pytest.raises(BlockingIOError):
            copies.recv(65536)
        for address, port, protocol in (
            ("203.0.113.9", 444, 0),
            ("2001:db8::7", 123, 0),
            ("255.255.255.255", 5353, 0),
            ("203.0.113.9", 0, socket.IPPROTO_ICMP),
            ("224.0.0.251", 0, socket.IPPROTO_ICMP),
        ):
            with pytest.raises(PermissionError):
                send_udp(address, port, broadcast=True) if not protocol else ping(address)
        seen = []
        for _ in range(5):
            found = refused.attributes(copies.recv(65536))
            assert 11 in found
            head = refused.heading(found[9])
            assert head is not None
            seen.append((head[0], head[3], head[1], head[4]))
        with pytest.raises(BlockingIOError):
            copies.recv(65536)
        return seen

    assert in_network(body) == [
        (17, "203.0.113.9", "198.18.0.2", 444),
        (17, "2001:db8::7", "fd00:6d65:6d62::2", 123),
        (17, "255.255.255.255", "198.18.0.2", 5353),
        (1, "203.0.113.9", "198.18.0.2", 0),
        (1, "224.0.0.251", "198.18.0.2", 0),
    ]


def ping(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as client:
        client.sendto(b"\x08" + bytes(7), (address, 0))


def test_without_rights_the_step_is_named() -> None:
    def body() -> str:
        sc.drop_capabilities()
        try:
            netns.configure(NetworkPlan())
        except HostError as error:
            return error.headline()
        return "configured"

    assert in_network(body) == "cannot set up the network namespace: netlink set lo up: Operation not permitted"


def test_a_second_set_up_of_the_same_namespace_is_refused() -> None:
    def body() -> str:
        Network()
        try:
            Network()
        except HostError as error:
            return error.headline()
        return "configured"

    assert in_network(body) == "cannot set up the network namespace: netlink add address 198.18.0.2: File exists"


# ---------------------------------------------------------------- IPv6 switched off, settings


def test_ipv6_is_switched_on_where_it_is_off() -> None:
    def body() -> tuple[list[str], str]:
        for name in ("all", "default"):
            with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as file:
                file.write("1")
        network = Network()
        connect("2001:db8::7", 443)
        return network.notes, network.role("tcp6").accept()[0].getsockname()[0]

    assert in_network(body) == ([], "2001:db8::7")


def test_ipv6_that_stays_off_leads_nowhere_and_is_noted() -> None:
    def body() -> tuple[list[str], list[str], str]:
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        real = netns._sysctl  # as with a read-only /proc/sys
        netns._sysctl = lambda name, value, notes: "disable_ipv6" not in name and real(name, value, notes)
        network = Network()
        return network.notes, network.roles(), outcome(partial(connect, "2001:db8::7", 443))

    notes, roles, connected = in_network(body)
    assert notes == ["IPv6 is disabled in this namespace: every IPv6 connection fails"]
    assert roles == ["tcp4", "dns4", "refused"]
    assert connected in ("ENETUNREACH", "EADDRNOTAVAIL")


def test_without_ipv6_in_the_plan_ipv6_leads_nowhere() -> None:
    def body() -> tuple[list[str], list[tuple[str, bool]]]:
        network = Network(ipv6=False)
        tries = [timed(lambda: connect("2001:db8::7", 443)), timed(lambda: send_udp("2001:db8::7", 53))]
        return network.roles(), [*tries, timed(lambda: connect("203.0.113.9", 443))]

    roles, tries = in_network(body)
    assert roles == ["tcp4", "dns4", "refused"]
    assert tries == [("ENETUNREACH", True), ("ENETUNREACH", True), ("ok", True)]


def test_settings_of_the_namespace() -> None:
    def body() -> list[str]:
        Network()
        values = []
        for name in ("ip_unprivileged_port_start", "ping_group_range"):
            with open(f"/proc/sys/net/ipv4/{name}") as file:
                values.append(file.read().split())
        return values

    gid = str(os.getegid())
    assert in_network(body) == [["0"], [gid, gid]]


def test_a_full_accept_queue_holds_a_burst() -> None:
    """1,000 connections before anybody accepts: the proxy is started by the first one."""

    def body() -> int:
        network = Network()
        clients = [connect("203.0.113.9", 443) for _ in range(1000)]
        listener = network.role("tcp4")
        return len({listener.accept()[1] for _ in clients})

    assert in_network(body) == 1000
