"""Attacks below and beside TCP and names: datagrams, other families, the namespace itself, other ways out
(rows N44-N60)."""

from __future__ import annotations

import base64
import json
import stat
import subprocess

import pytest
from net_world import BACKENDS, QUICK, Net, names

from started import Started

EXAMPLE4, EXAMPLE6 = names.address("example.com"), names.address("example.com", 6)
ECHO4, ECHO6 = names.address("echo.test"), names.address("echo.test", 6)


# ---------------------------------------------------------------- datagrams


def test_datagrams_go_nowhere(net: Net) -> None:
    """To every kind of address and port: refused by the kernel at once, and nothing arrives."""
    script = f"""
targets = ["{ECHO4}", "{ECHO6}", "10.77.0.2", "10.77.0.1", "169.254.169.254", "198.18.0.16", "fd00:6d65:6d62:1::10",
           "8.8.8.8", "1.1.1.1", "2001:db8::1"]
started = time.monotonic()
for host in targets:
    for port in (123, 5000, 443, 5353, 1900, 67, 65535):
        attempt(f"{{host}} {{port}}", lambda: udp(host, port))
say("took", time.monotonic() - started)
"""
    control = net.control(f"attempt('4', lambda: udp('{ECHO4}', 5000)); attempt('6', lambda: udp('{ECHO6}', 123))")
    assert control == {"4": "hello", "6": "hello"}
    before = len(net.connections(service="udp"))
    net.allow("**", "echo.test", ECHO4)
    found = net.attack(script)
    assert found.pop("took") < QUICK
    assert set(found.values()) == {"EPERM"}, {k: v for k, v in found.items() if v != "EPERM"}
    assert len(net.connections(service="udp")) == before


GROUPS = ("224.0.0.1", "224.0.0.251", "239.255.255.250", "ff02::1", "ff02::fb", "ff05::c", "ff0e::1")
SEND = """
import socket, struct, sys
from_inside = sys.argv[1] == "inside"
for group in %r:
    six = ":" in group
    family, level = (socket.AF_INET6, socket.IPPROTO_IPV6) if six else (socket.AF_INET, socket.IPPROTO_IP)
    name = socket.inet_pton(family, group)
    if from_inside:
        member = socket.socket(family, socket.SOCK_DGRAM)
        member.settimeout(60)
        member.setsockopt(level, 20 if six else 35, name + bytes(4))  # IPV6_JOIN_GROUP, IP_ADD_MEMBERSHIP
        member.bind(("", 5000))
    for port in (5000, 5001):
        for index in range(2 if from_inside else 1):
            sender = socket.socket(family, socket.SOCK_DGRAM)
            if six:
                sender.setsockopt(level, socket.IPV6_MULTICAST_HOPS, 255)
                sender.setsockopt(level, socket.IPV6_MULTICAST_IF, index)
            else:
                sender.setsockopt(level, socket.IP_MULTICAST_TTL, 255)
                sender.setsockopt(level, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), index))
            sender.sendto(sys.argv[1].encode(), (group, port))
    print(member.recv(10).decode() if from_inside else "outside")
"""
LISTEN = """
import json, select, socket, struct
members = {}
for group in %r:
    six = ":" in group
    family, level = (socket.AF_INET6, socket.IPPROTO_IPV6) if six else (socket.AF_INET, socket.IPPROTO_IP)
    member = socket.socket(family, socket.SOCK_DGRAM)
    index = struct.pack("I", socket.if_nametoindex("eth0"))
    place = socket.inet_pton(family, group) + (index if six else bytes(4) + index)
    member.setsockopt(level, 20 if six else 35, place)  # IPV6_JOIN_GROUP, IP_ADD_MEMBERSHIP (struct ip_mreqn)
    member.setsockopt(level, 29 if six else 49, 0)  # IPV6_MULTICAST_ALL, IP_MULTICAST_ALL: of this group only
    member.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    member.bind(("", 5000))
    members[member] = group
print("ready", flush=True)
first = {}
while members and (ready := select.select(list(members), [], [], 180)[0]):
    for member in ready:
        first[members.pop(member)] = member.recv(10).decode()
print(json.dumps(first))
"""


def test_multicast_stays_inside(net: Net) -> None:
    """A member inside gets it; one outside gets what is sent outside, first and only, whatever the policy allows."""
    net.allow("**", "224.0.0.0/4", "ff00::/8", {"dest": "**", "ports": ["5001/udp"]})
    command = net.world.argv(["python3", "-S", "-c", LISTEN % (GROUPS,)])
    with Started(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout and listener.stdout.readline() == "ready\n"
        before = len(net.connections(service="udp"))
        done = net.run(f"--events={net.events_path}", "-q", "--", "python3", "-S", "-c", SEND % (GROUPS,), "inside")
        assert (done.returncode, done.stdout.split()) == (0, ["inside"] * len(GROUPS)), done
        assert len(net.connections(service="udp")) == before and net.denied() == []
        assert net.outside("python3", "-S", "-c", SEND % (GROUPS,), "outside").returncode == 0
        assert json.loads(listener.stdout.read()) == dict.fromkeys(GROUPS, "outside")


@pytest.mark.parametrize("option", ["connected", "broadcast", "multicast interface", "segmented", "cork", "to port 0"])
def test_datagrams_by_other_means(net: Net, option: str) -> None:
    net.allow({"dest": "echo.test", "ports": ["5000/udp"]})
    script = f"""
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(2)
def attack(kind, address):
    if kind == "connected":
        sock.connect((address, 123))
        sock.send(b"x")
    elif kind == "broadcast":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(b"x", ("255.255.255.255", 5000))
    elif kind == "multicast interface":
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("198.18.0.2"))
        sock.sendto(b"x", ("224.0.0.1", 5000))
    elif kind == "segmented":
        sock.setsockopt(socket.IPPROTO_UDP, 103, 4)
        sock.sendto(b"x" * 64, (address, 123))
    elif kind == "cork":
        sock.connect((address, 123))
        sock.send(b"x", socket.MSG_MORE)
        sock.send(b"y")
    else:
        sock.sendto(b"x", (address, 0))
    return sock.recv(10)
attempt("attack", lambda: attack({option!r}, "{ECHO4}"))
attempt("control", lambda: udp(socket.getaddrinfo("echo.test", 5000, socket.AF_INET)[0][4][0], 5000))
"""
    found = net.attack(script)
    assert found["control"] == "hello"
    refusals = ("EPERM", "EINVAL", "ECONNREFUSED") if option != "multicast interface" else ("timeout",)  # sent to lo
    assert found["attack"] in refusals, found


def test_a_datagram_rule_is_for_its_host_and_port(net: Net) -> None:
    """Refused where our own relay socket hears it: dropped, and on the record."""
    net.allow({"dest": "echo.test", "ports": ["5000/udp"]}, "google.com")
    script = f"""
def fake(name):
    return socket.getaddrinfo(name, 80, socket.AF_INET)[0][4][0]
refused = {{
    "another host": fake("google.com"), "its address": "{ECHO4}", "its address, v6": "{ECHO6}",
    "an address that no name has": "198.18.9.9", "metadata": "169.254.169.254",
}}
sent = {{name: socket.socket(family(address), socket.SOCK_DGRAM) for name, address in refused.items()}}
for name, sock in sent.items(): sock.sendto(b"evil", (refused[name], 5000))
attempt("allowed", lambda: udp(fake("echo.test"), 5000))  # behind them: when it is answered they were dropped
for name, sock in sent.items(): attempt(name, lambda: sock.recv(10, socket.MSG_DONTWAIT))
attempt("another port", lambda: udp(fake("echo.test"), 123))
attempt("tcp", lambda: echo("echo.test", 7))
"""
    found = net.attack(script)
    assert found.pop("allowed") == "hello"
    assert found.pop("another port") == "EPERM"
    assert found.pop("tcp") == "ECONNRESET"
    assert len(found) == 5 and set(found.values()) == {"EAGAIN"}
    assert len(net.connections(service="udp")) == 1
    assert net.denied("port not allowed", host="google.com", port=5000, protocol="udp")
    assert {event["access"]["address"] for event in net.denied(protocol="udp") if not event["access"]["host"]} == {
        ECHO4, ECHO6, "198.18.9.9", "169.254.169.254",
    }  # fmt: skip


def test_as_many_datagram_ports_as_there_may_be(net: Net) -> None:
    net.allow({"dest": "echo.test", "ports": ["5000-5255/udp"]})
    script = """
def fake():
    return socket.getaddrinfo("echo.test", 5000, socket.AF_INET)[0][4][0]
attempt("inside", lambda: udp(fake(), 5000))
attempt("outside", lambda: udp(fake(), 5256))
"""
    assert net.attack(script) == {"inside": "hello", "outside": "EPERM"}
    net.allow({"dest": "echo.test", "ports": ["5000-5256/udp"]})
    assert net.inside("pass").returncode == 78


def test_what_is_promised_for_datagrams(net: Net) -> None:
    """No name is read in QUIC, so none is said to be checked: such a rule is bound by the address of its host."""
    net.allow({"dest": "echo.test", "ports": ["443/udp"]}, {"dest": "example.com", "ports": [443]})
    assert net.inside("pass").returncode == 0
    bound = {binding["rule"]: binding["mechanism"] for binding in net.events("SessionStarted")[0]["assurance"]}
    assert "TLS server name" not in bound["allow echo.test ports 443/udp"]
    assert "TLS server name" in bound["allow example.com ports 443/tcp"]


def test_n58_a_resolver_that_a_rule_opens(net: Net) -> None:
    """``53/udp`` for one address is for that address; all others are still answered by us."""
    net.allow({"dest": "9.9.9.9", "ports": ["53/udp"]})
    script = """
for server in ("9.9.9.9", "8.8.8.8", "127.0.0.53", "10.77.0.1"):
    attempt(server, lambda: code(ask(query("only-there.test"), server)))
"""
    assert net.attack(script) == {"9.9.9.9": 0, "8.8.8.8": 3, "127.0.0.53": 3, "10.77.0.1": 3}
    assert {entry["local"] for entry in net.questions("only-there.test")} <= {"9.9.9.9"}


# ---------------------------------------------------------------- N50: other families, raw, ICMP

FAMILIES = {
    "AF_VSOCK": "socket.socket(40, socket.SOCK_STREAM)",
    "AF_PACKET": "socket.socket(17, socket.SOCK_RAW, 0x0300)",
    "AF_PACKET dgram": "socket.socket(17, socket.SOCK_DGRAM, 0x0300)",
    "AF_ALG": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "AF_NETLINK netfilter": "socket.socket(16, socket.SOCK_RAW, 12)",
    "AF_NETLINK audit": "socket.socket(16, socket.SOCK_RAW, 9)",
    "AF_NETLINK uevent": "socket.socket(16, socket.SOCK_RAW, 15)",
    "AF_NETLINK sock_diag": "socket.socket(16, socket.SOCK_RAW, 4)",
    "AF_NETLINK xfrm": "socket.socket(16, socket.SOCK_RAW, 6)",
    "AF_NETLINK generic": "socket.socket(16, socket.SOCK_RAW, 16)",
    "AF_BLUETOOTH": "socket.socket(31, socket.SOCK_RAW)",
    "AF_CAN": "socket.socket(29, socket.SOCK_RAW, 1)",
    "AF_TIPC": "socket.socket(30, socket.SOCK_RDM)",
    "AF_RDS": "socket.socket(21, socket.SOCK_SEQPACKET)",
    "AF_XDP": "socket.socket(44, socket.SOCK_RAW)",
    "AF_KCM": "socket.socket(41, socket.SOCK_DGRAM)",
    "AF_SMC": "socket.socket(43, socket.SOCK_STREAM)",
    "AF_PPPOX": "socket.socket(24, socket.SOCK_DGRAM)",
    "AF_KEY": "socket.socket(15, socket.SOCK_RAW, 2)",
    "AF_QIPCRTR": "socket.socket(42, socket.SOCK_DGRAM)",
    "raw ICMP": "socket.socket(2, socket.SOCK_RAW, 1)",
    "raw TCP": "socket.socket(2, socket.SOCK_RAW, 6)",
    "raw IP": "socket.socket(2, socket.SOCK_RAW, 255)",
    "raw ICMPv6": "socket.socket(10, socket.SOCK_RAW, 58)",
    "SOCK_PACKET": "socket.socket(2, 10, 0x0300)",
    "SCTP": "socket.socket(2, socket.SOCK_STREAM, 132)",
    "SCTP seqpacket": "socket.socket(2, socket.SOCK_SEQPACKET, 132)",
    "DCCP": "socket.socket(2, 6, 33)",
    "UDP-Lite": "socket.socket(2, socket.SOCK_DGRAM, 136)",
    "MPTCP": "socket.socket(2, socket.SOCK_STREAM, 262)",
    "GRE": "socket.socket(2, socket.SOCK_RAW, 47)",
    "socketpair INET": "socket.socketpair(2, socket.SOCK_STREAM)",
}


@BACKENDS
def test_n50_families(net: Net) -> None:
    net.allow("**")
    script = "\n".join(f"attempt({name!r}, lambda: ({call}).close())" for name, call in FAMILIES.items())
    script += "\nattempt('control', lambda: socket.socket(16, socket.SOCK_RAW, 0).close())"
    found = net.attack(script)
    assert found.pop("control") == "ok"
    refused = {"EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT"}
    assert {name: value for name, value in found.items() if value not in refused} == {}


def test_icmp(net: Net) -> None:
    """Echo to the sandbox's own addresses; to any other it is refused where UDP is."""
    net.allow("**")
    script = f"""
def ping(address):
    six = ":" in address
    with socket.socket(family(address), socket.SOCK_DGRAM, 58 if six else 1) as sock:
        sock.settimeout(2 if address == "{EXAMPLE6}" else 60)
        sock.sendto((b"\\x80" if six else b"\\x08") + bytes(7) + b"data", (address, 0))
        return sock.recv(100)[-4:]
for address in ("127.0.0.1", "198.18.0.2", "::1", "{EXAMPLE4}", "{EXAMPLE6}", "10.77.0.1", "198.18.0.16", "224.0.0.1"):
    attempt(address, lambda: ping(address))
"""
    found = net.attack(script)
    own = [found.pop(address) for address in ("127.0.0.1", "198.18.0.2", "::1")]
    assert own == ["data"] * 3
    assert found.pop(EXAMPLE6) == "timeout"  # net/ipv6/ping.c does not tell the caller what the rule said
    assert set(found.values()) == {"EPERM"}


# ---------------------------------------------------------------- N52, N53: races, and calls that skip checks


@BACKENDS
def test_n52_the_address_changes_while_it_is_read(net: Net) -> None:
    """A thread flips the sockaddr between an allowed and a refused port: the packet is judged, not the memory."""
    net.allow("example.com:80")
    script = """
import ctypes, random, threading
libc = ctypes.CDLL(None, use_errno=True)
fake = socket.getaddrinfo("example.com", 80, socket.AF_INET)[0][4][0]
memory = ctypes.create_string_buffer(b"\\2\\0" + (80).to_bytes(2, "big") + socket.inet_aton(fake) + bytes(8), 16)
stop = False
sys.setswitchinterval(1e-4)  # who has come back from a call does not wait long for the one that flips
def flip():
    while not stop:
        memory[2:4] = random.choice((b"\\x1f\\x40", b"\\0\\x50"))
thread = threading.Thread(target=flip, daemon=True)
thread.start()
ports = []
for n in range(20_000):
    if n >= 300 and (80, "200") in ports:
        break
    with socket.socket() as sock:
        sock.settimeout(5)
        sock.setblocking(True)
        if libc.connect(sock.fileno(), memory, 16) == 0:
            port = 0
            try:
                port = sock.getpeername()[1]  # ENOTCONN where it was reset meanwhile
                sock.sendall(b"GET /race HTTP/1.0\\r\\nHost: example.com\\r\\n\\r\\n")
                ports.append((port, sock.recv(12)[9:12].decode()))
            except OSError:
                ports.append((port, "reset"))
stop = True
thread.join()
say("seen", sorted({f"{port} {status}" for port, status in ports}))
"""
    found = net.attack(script)
    assert "80 200" in found["seen"]
    assert not {"8000 200", "80 403"} & set(found["seen"]), found
    assert net.requests(path="/race", port=8000) == []


@BACKENDS
def test_racing_connects_to_one_name(net: Net) -> None:
    """200 connects at once, half of them refused: each gets the answer that its own address and port get."""
    net.allow("example.com:80")
    script = """
import threading
out, lock = [], threading.Lock()
def one(port):
    try:
        status = get("example.com", port)
    except OSError as error:
        status = errno.errorcode[error.errno]
    with lock:
        out.append(f"{port} {status}")
threads = [threading.Thread(target=one, args=(port,)) for port in (80, 8000) * 100]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("seen", {item: out.count(item) for item in sorted(set(out))})
"""
    assert net.attack(script) == {"seen": {"80 200": 100, "8000 403": 100}}


@BACKENDS
def test_n53_io_uring(net: Net) -> None:
    net.allow("**")
    script = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def setup():
    if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "")
attempt("io_uring_setup", setup)
"""
    assert net.attack(script) == {"io_uring_setup": "ENOSYS"}


# ---------------------------------------------------------------- the namespace

TRICKS = """
import ctypes, fcntl, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def netlink(kind, flags, body, protocol=0):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(5)
        sock.send(struct.pack("IHHII", 16 + len(body), kind, 5 | flags, 1, 0) + body)
        code = struct.unpack_from("i", sock.recv(4096), 16)[0]
        if code:
            raise OSError(-code, "")
def option(level, name, value, kind=socket.SOCK_STREAM, fam=socket.AF_INET):
    with socket.socket(fam, kind) as sock:
        sock.setsockopt(level, name, value)
lo = socket.if_nametoindex("lo")
one = struct.pack("HHI", 8, 4, lo)
"""
# name: what is tried.  Whoever could do one of these could still reach nothing but our listeners; nobody can.
OWN_NETWORK = {
    "add a route": "netlink(24, 0x400, struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 4, 0, 1, 0) + one)",
    "delete the route": "netlink(25, 0, struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 4, 254, 2, 0) + one)",
    "add an address": "netlink(20, 0x400, struct.pack('BBBBIHH4s', 2, 8, 0, 0, lo, 8, 2, bytes([10, 1, 1, 1])))",
    "add a rule": "netlink(32, 0x400, struct.pack('BBBBBBBBI', 2, 0, 0, 0, 254, 0, 0, 1, 0))",
    "set lo down": "netlink(16, 0, struct.pack('=BxHiII', 0, 0, lo, 0, 1))",
    "make a veth": "netlink(16, 0x600, struct.pack('=BxHiIIHHHH8s', 0, 0, 0, 0, 0, 16, 18, 12, 1, b'veth'))",
    "make a bridge": "fcntl.ioctl(socket.socket(), 0x89a0, b'br0\\0')",
    "interface down": "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0))",
    "promiscuous": "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0x101))",
    "arp": "fcntl.ioctl(socket.socket(), 0x8955, bytes(68))",
    "transparent": "option(0, 19, 1)",
    "transparent v6": "option(41, 75, 1, fam=socket.AF_INET6)",
    "mark": "option(1, 36, 7)",
    "priority": "option(1, 12, 7)",
    "force buffers": "option(1, 33, 1 << 20)",
    "repair": "option(6, 19, 1)",
    "iptables": "option(0, 64, bytes(1024))",
    "ip6tables": "option(41, 64, bytes(1024), fam=socket.AF_INET6)",
    "multicast routing": "option(0, 200, 1, kind=socket.SOCK_DGRAM)",
    "hop-by-hop": "option(41, 54, bytes(8), kind=socket.SOCK_DGRAM, fam=socket.AF_INET6)",
    "unshare": "call(272, 0x40000000)",
    "unshare user": "call(272, 0x10000000 | 0x40000000)",
    "setns": "call(308, os.open('/proc/self/ns/net', os.O_RDONLY), 0)",
    "setns of pid 1": "call(308, os.open('/proc/1/ns/net', os.O_RDONLY), 0)",
    "clone3": "call(435, ctypes.create_string_buffer(88), 88)",
    "bpf": "call(321, 0, ctypes.create_string_buffer(72), 72)",
    "TUN": "os.open('/dev/net/tun', os.O_RDWR)",
    "TUN node": "os.mknod('/tmp/tun', 0o020600, os.makedev(10, 200))",
    "vhost": "os.open('/dev/vhost-net', os.O_RDWR)",
    "sysctl forward": "os.open('/proc/sys/net/ipv4/ip_forward', os.O_WRONLY)",
    "sysctl route": "os.open('/proc/sys/net/ipv4/conf/all/route_localnet', os.O_WRONLY)",
    "host's namespace": "os.open('/run/netns', os.O_RDONLY)",
}
REFUSED = {
    "EPERM",
    "EACCES",
    "ENOSYS",
    "EROFS",
    "ENOENT",
    "ENOPROTOOPT",
    "EAFNOSUPPORT",
    "EOPNOTSUPP",
    "ENOTSUP",
    "ENOTTY",
}


@pytest.mark.parametrize("rule", ["example.com", "**"])
def test_own_network_can_not_be_changed(net: Net, rule: str) -> None:
    """Routes, addresses, rules, devices, namespaces; and afterwards everything is filtered as before."""
    net.allow(rule, deny=["google.com"])
    script = TRICKS + "\n".join(f"attempt({name!r}, lambda: ({call}, None)[1])" for name, call in OWN_NETWORK.items())
    script += "\nattempt('then', lambda: get('example.com')); attempt('denied', lambda: get('google.com'))"
    found = net.attack(script)
    assert [found.pop("then"), found.pop("denied")] == ["200", "EAI_NONAME"]
    assert {name: value for name, value in found.items() if value not in REFUSED} == {}


def test_binding_and_routing_options_open_nothing(net: Net) -> None:
    """What an ordinary user may set: the device, the source address, source routes, TTL; the same answer each time."""
    net.allow("example.com")
    script = f"""
def reach(prepare, address="{ECHO4}", port=7):
    with socket.socket(family(address)) as sock:
        sock.settimeout(60)
        prepare(sock)
        sock.connect((address, port))
        sock.sendall(b"\\0")
        return sock.recv(10)
ip = socket.IPPROTO_IP
attempt("device", lambda: reach(lambda s: s.setsockopt(1, 25, b"lo")))
attempt("freebind", lambda: reach(lambda s: (s.setsockopt(ip, 15, 1), s.bind(("10.77.0.2", 0)))))
attempt("as the target", lambda: reach(lambda s: (s.setsockopt(ip, 15, 1), s.bind(("{ECHO4}", 0)))))
attempt("as the resolver", lambda: reach(lambda s: s.bind(("9.9.9.9", 53))))
route = b"\\x83\\x07\\x04" + socket.inet_aton("10.77.0.1") + b"\\0"
attempt("loose source route", lambda: reach(lambda s: s.setsockopt(ip, 4, route)))
attempt("TTL 1", lambda: reach(lambda s: s.setsockopt(ip, 2, 1)))
attempt("don't route", lambda: reach(lambda s: s.setsockopt(1, 5, 1)))
header = b"\\0\\2\\2\\1" + bytes(4) + socket.inet_pton(10, "{EXAMPLE6}")
attempt("v6 routing header", lambda: reach(lambda s: s.setsockopt(41, 57, header), "{ECHO6}"))
attempt("control", lambda: get("example.com"))
"""
    before = len(net.connections(service="echo"))
    found = net.attack(script)
    assert found.pop("control") == "200"
    allowed = {"ECONNRESET", "timeout", "EPERM", "EINVAL", "EADDRNOTAVAIL", "ENETUNREACH", "EHOSTUNREACH", "EADDRINUSE"}
    assert set(found.values()) <= allowed, found
    assert len(net.connections(service="echo")) == before
    assert net.denied("address not allowed", address=ECHO4, port=7)


# ---------------------------------------------------------------- N45, N47: our listeners, the operator's proxy


def test_n45_nothing_listens_on_the_host(net: Net) -> None:
    """No port, no abstract socket: another process of the host has nothing to connect to.

    Except two, which only the caller can: that of ``membrane exec`` (tests/e2e/test_exec.py), and the one at which runs
    that share a home ask each other (tests/unit/run/test_places.py).
    """
    script = """
lines = lambda name: [line.split() for line in open("/proc/net/" + name).read().splitlines()[1:]]
internet = [line for name in ("tcp", "tcp6", "udp", "udp6") for line in lines(name)]
say("ports", sorted(line[1] for line in internet if line[3] in ("0A", "07")))
say("unix", sorted(line[-1] for line in lines("unix") if line[3] == "00010000"))
"""
    before = net.control(script)
    net.allow("example.com")
    with net.talking("def answer(line): return get('example.com')") as (_, ask):
        assert ask("go") == "200"
        during = net.control(script)
        made = [path for name in ("api", "places") for path in (net.state / name).glob("*.sock")]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in made}
        above = {stat.S_IMODE(path.parent.stat().st_mode) for path in made}
    new = [place.rpartition("/")[2] for place in set(during["unix"]) - set(before["unix"])]
    assert new == [path.name for path in made] and len(new) == 2
    assert modes == {0o600} and above == {0o700}
    assert during["ports"] == before["ports"] and len(during["unix"]) == len(before["unix"]) + 2


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_n47_the_command_chooses_no_proxy(net: Net, variable: str) -> None:
    """Its own variables are its own business: the proxy is a host like any other, and not an allowed one."""
    net.allow("example.com")
    curl = f"{variable}=http://proxy.test:3128 curl -p -s -m 8 -o /dev/null -w '%{{http_code}}' http://google.com/"
    assert net.outside("sh", "-c", curl).stdout == "200"
    before = len(net.proxied())
    done = net.run(f"--events={net.events_path}", "--", "sh", "-c", curl)
    assert done.stdout == "000", done
    assert len(net.proxied()) == before
    assert net.denied("name not allowed", kind="NameQuery")


def test_n47_a_project_file_chooses_no_proxy(net: Net) -> None:
    net.allow("example.com")
    (net.workspace / ".membrane.yaml").write_text("upstream_proxy: http://proxy.test:3128\n")
    assert net.inside("attempt('x', lambda: get('example.com'))").returncode == 78
    assert net.proxied(host="example.com") == []


PROXY = "http://operator:proxy-password-93@proxy.test:3128"


def test_n47_a_policy_holds_no_password(net: Net) -> None:
    """In a file whoever reads that would read it, on a command line everybody; the error does not show it."""
    net.allow("example.com")
    option = net.inside("pass", f"--upstream-proxy={PROXY}")
    net.allow("example.com", upstream_proxy=PROXY)
    for done in (option, net.inside("pass"), net.run("plan"), net.run("config", "show")):
        assert done.returncode == 78
        assert "password-93" not in done.stdout + done.stderr


def test_n47_the_proxys_password_stays_outside(net: Net) -> None:
    """Not in the environment inside, not in any file inside, not in the events or the summary."""
    net.allow("example.com", upstream_proxy="env")
    script = """
attempt("through", lambda: get("example.com"))
attempt("refused", lambda: get("google.com"))
found = []
def look(path):
    try:
        if b"password-" + b"93" in open(path, "rb").read(1 << 20):
            found.append(path)
    except OSError:
        pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps", "status"):
        look(f"/proc/{pid}/{name}")
for top in (os.path.expanduser("~"), "/etc", "/run", "/tmp", "/dev/shm"):
    for directory, _, files in os.walk(top):
        for name in files:
            look(os.path.join(directory, name))
say("found", found)
say("environment", [name for name in os.environ if "proxy" in name.lower()])
"""
    done = net.inside(script, env={"HTTPS_PROXY": PROXY})
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {"through": "200", "refused": "EAI_NONAME", "found": [], "environment": []}
    assert net.proxied(host="example.com")
    encoded = base64.b64encode(b"operator:proxy-password-93").decode()
    for text in (net.events_path.read_text(), done.stderr):
        assert "password-93" not in text
        assert encoded not in text


# ---------------------------------------------------------------- N54, N57


def test_n54_listening_is_no_way_out(net: Net) -> None:
    """A server inside is reached from inside only; binding any port opens none to the outside."""
    net.allow("example.com")
    script = """
import threading
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(41, 26, 0)
listener.bind(("::", 8123))
listener.listen()
def answer(line):
    if line == "own":
        with dial("127.0.0.1", 8123) as sock:
            listener.accept()[0].sendall(b"x")
            return sock.recv(1).decode()
    listener.settimeout(float(line))
    try:
        return str(listener.accept()[1])
    except OSError as error:
        return type(error).__name__
"""
    with net.talking(script) as (_, ask):
        assert ask("own") == "x"
        outside = net.control(f"for h in ('127.0.0.1', '::1', '{names.HOST4}'): attempt(h, lambda: dial(h, 8123, 2))")
        assert set(outside.values()) == {"ECONNREFUSED"}
        assert ask("0.2") == "TimeoutError"


def test_n54_a_foreign_address_is_not_the_own_server(net: Net) -> None:
    """A server on all addresses does not answer for the ones outside: no connection is taken from the policy."""
    net.allow("example.com")
    script = f"""
listener = socket.create_server(("0.0.0.0", 80))
attempt("by name", lambda: get("example.com"))
attempt("by address", lambda: get("{EXAMPLE4}"))
listener.settimeout(0.2)
attempt("taken", lambda: listener.accept() and "yes")
"""
    assert net.attack(script) == {"by name": "200", "by address": "403", "taken": "timeout"}


@pytest.mark.parametrize("host", ["10.77.0.1", names.HOST4, "localhost", "mail.test", EXAMPLE4])
def test_n57_mail(net: Net, host: str) -> None:
    """No mail leaves by SMTP, to no relay, and by no local transfer agent: that runs inside as well."""
    net.allow("example.com")
    script = f"""
from concurrent.futures import ThreadPoolExecutor
def mail(port): attempt(str(port), lambda: first("{host}", port, b"EHLO x\\r\\n"))
with ThreadPoolExecutor(4) as pool: list(pool.map(mail, (25, 465, 587, 24)))
"""
    found = net.attack(script)
    assert len(found) == 4 and set(found.values()) <= {"ECONNRESET", "ECONNREFUSED", "EAI_NONAME"}, found
    script = """
import shutil, subprocess
agent = shutil.which("sendmail") or "/usr/sbin/sendmail"
try:
    subprocess.run([agent, "-t"], input=b"To: a@example.com\\n\\nx", timeout=8, capture_output=True)
except (OSError, subprocess.TimeoutExpired):
    pass
say("spool", [f for d in ("/var/spool/mail", "/var/mail", "/var/spool/postfix/maildrop", "/var/spool/exim4/input")
              if os.access(d, os.W_OK) for f in [d]])
"""
    assert net.attack(script) == {"spool": []}


# ---------------------------------------------------------------- N44


def test_n44_a_forge_on_its_port(net: Net) -> None:
    """A rule without paths opens all operations of a host, on its port; reading only is a preset of HTTP rules."""
    net.allow("git.test:80")
    script = "git -c protocol.version=2 ls-remote http://git.test/hello.git 2>&1; "
    script += "git ls-remote git://git.test/hello.git 2>&1; true"
    done = net.run(f"--events={net.events_path}", "--", "sh", "-c", script)
    assert done.stdout.count("refs/heads/main") == 1, done
    assert net.denied("port not allowed", host="git.test", port=9418)
