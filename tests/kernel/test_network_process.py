"""The real gateway, end to end.

The sandbox's side is a network namespace of our own in which every address is local; the outside is servers on the
host's loopback, named by a DNS server of our own.  The rules name 127.0.0.0/8, so what the floor refuses elsewhere
(names that resolve to loopback) is open here, and is refused in the tests that leave the rule out.

One file of over 800 lines: one world of servers and resolvers, which every test here asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_namespace import Namespace

import membrane
from free_ports import free_port
from membrane.gateway.messages import (
    FROM_GATEWAY,
    TO_GATEWAY,
    Begin,
    Ended,
    Failed,
    Lines,
    Ready,
    Setup,
    Stop,
    Totals,
)
from membrane.messages import Frames, Message
from membrane.policy.model import HostRule, Limits, Network, Origin, Policy, PortRange, PortRule

ORIGIN = Origin("library", "test")
LOOPBACK = HostRule("127.0.0.0/8", ORIGIN, "network", network=Network(4, 127 << 24, 8))
LOOPBACK6 = HostRule("::1", ORIGIN, "network", network=Network(6, 1, 128))
RESOLVER = "9.9.9.9"  # any address is answered
# As ``python -I -m membrane.gateway.server`` does it, for a package that need not be installed.
PROGRAM = (
    sys.executable,
    "-I",
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(membrane.__file__).parent.parent)!r}); "
    "from membrane.gateway.server import serve; serve(sys.argv)",
)


def host(name: str, *ports: PortRange, **more: object) -> HostRule:
    kind = "wildcard" if name.startswith("*.") else "host"
    # The servers of most tests speak no known protocol; what is judged by request cannot be raw.
    more.setdefault("raw", not {"http", "inspect"} & more.keys())
    return HostRule(name, ORIGIN, kind, host=name.removeprefix("*."), ports=ports, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the outside


class Server:
    """A TCP server on loopback; ``serve`` gets each connection in a thread of its own."""

    def __init__(self, serve, address: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=4096)
        self.port = self._listener.getsockname()[1]
        self._serve = serve
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            client, _peer = self._listener.accept()
            if self._closing:
                client.close()
                return
            client.settimeout(60)
            thread = threading.Thread(target=self._one, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _one(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            self._serve(client)

    def close(self) -> None:
        self._closing = True
        with socket.create_connection(self._listener.getsockname()[:2]):
            pass
        self._thread.join(60)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()


def echo(client: socket.socket) -> None:
    while data := client.recv(65536):
        client.sendall(data)
    client.shutdown(socket.SHUT_WR)


class DnsServer:
    """Answers A and AAAA on UDP and TCP from a table; cuts UDP answers of names that start with "big"."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self._table = table
        self.asked: list[str] = []
        while True:  # one port for both protocols
            self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._udp.bind(("127.0.0.1", 0))
            self.port = self._udp.getsockname()[1]
            try:
                self._tcp = Server(self._over_tcp, port=self.port)
                break
            except OSError:
                self._udp.close()
        self._thread = threading.Thread(target=self._over_udp)
        self._thread.start()

    def answer(self, query: bytes, cut: bool) -> bytes:
        import dns.flags
        import dns.message
        import dns.rcode
        import dns.rdatatype
        import dns.rrset

        question = dns.message.from_wire(query)
        reply = dns.message.make_response(question)
        entry = question.question[0]
        name = entry.name.to_text(omit_final_dot=True)
        self.asked.append(name)
        if name not in self._table:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif cut and name.startswith("big"):
            reply.flags |= dns.flags.TC
        else:
            six = entry.rdtype == dns.rdatatype.AAAA
            found = [address for address in self._table[name] if (":" in address) == six]
            if found:
                reply.answer.append(
                    dns.rrset.from_text(entry.name, 30, "IN", dns.rdatatype.to_text(entry.rdtype), *found)
                )
        return reply.to_wire()

    def _over_udp(self) -> None:
        while True:
            query, client = self._udp.recvfrom(4096)
            if not query:
                return
            self._udp.sendto(self.answer(query, cut=True), client)

    def _over_tcp(self, client: socket.socket) -> None:
        size = int.from_bytes(client.recv(2), "big")
        if size:
            answer = self.answer(client.recv(size), cut=False)
            client.sendall(len(answer).to_bytes(2, "big") + answer)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(60)
        self._udp.close()
        self._tcp.close()


# ---------------------------------------------------------------- the process


def received(control: socket.socket) -> Iterator[Message]:
    """What a gateway sends, until its end."""
    frames = Frames(FROM_GATEWAY)
    while True:
        try:
            data = control.recv(1 << 16)
        except ConnectionResetError:  # it has ended with something unread; the kernel says that first (unix(7))
            data = control.recv(1 << 16)
        if not data:
            return
        yield from frames.feed(data)


class NetworkProcess:
    """One gateway and the namespace that it serves."""

    def __init__(
        self, policy: Policy, ports, *, udp=(), limits=None, environ=None, six: bool = True, verbose: bool = True
    ) -> None:
        self.inside = Namespace()
        families = [("4", socket.AF_INET)] + ([("6", socket.AF_INET6)] if six else [])
        sockets = []
        for digit, family in families:
            sockets += [(f"tcp{digit}", self.inside.listener(port, family)) for port in (53, *ports)]
            sockets.append((f"dns{digit}", self.inside.datagrams(53, family)))
            sockets += [(f"udp{digit}:{port}", self.inside.datagrams(port, family)) for port in udp]
        self.control, theirs = socket.socketpair()
        self.control.settimeout(60)
        fds = [theirs.fileno(), *(each.fileno() for _role, each in sockets)]
        self.process = subprocess.Popen(
            [*PROGRAM, str(theirs.fileno())], pass_fds=fds, env={}, stdin=subprocess.DEVNULL
        )
        theirs.close()
        setup = Setup(
            policy,
            "test",
            tuple((role, each.fileno()) for role, each in sockets),
            environ=tuple((environ or {}).items()),
            verbose=verbose,
            totals=not verbose,
            **(limits or {}),
        )
        self.send(Begin(setup))
        for _role, each in sockets:
            each.close()
        self._received = received(self.control)
        self._lines: list[bytes] = []
        self.seen: list[dict] = []
        assert self.next() == Ready()

    def send(self, message: Message) -> None:
        self.control.sendall(TO_GATEWAY.frame(message))

    def next(self) -> dict | Message | None:
        """The next event, or another message; None at the end."""
        while not self._lines:
            message = next(self._received, None)
            if not isinstance(message, Lines):
                return message
            self._lines += message.text.splitlines()
        return json.loads(self._lines.pop(0))

    def event(self, kind: str, **fields: object) -> dict:
        """The next event of a kind whose fields have these values; what comes before is kept in ``seen``."""
        while True:
            event = self.next()
            assert isinstance(event, dict), f"{event}: no {kind} {fields} in {self.seen}"
            self.seen.append(event)
            if event["event"] == kind and all(event[name] == value for name, value in fields.items()):
                return event

    def stop(self) -> dict:
        """Stop it; the totals.  Every event that was not read is in ``seen``."""
        self.send(Stop())
        return self.rest()

    def rest(self) -> dict:
        """Every message until the end; the totals."""
        last: Message | None = None
        while (item := self.next()) is not None:
            if isinstance(item, dict):
                self.seen.append(item)
            else:
                last = item
        assert isinstance(last, Ended) and self.process.wait(60) == 0, last
        assert last.events == len(self.seen)
        return dict(zip(last.kinds, last.counts, strict=True))

    def close(self) -> None:
        self.control.close()
        try:
            assert self.process.wait(60) == 0
        finally:
            self.inside.close()

    # ---- what a command inside would do

    def lookup(self, name: str, kind: str = "A", server: str = RESOLVER) -> tuple[int, list[str]]:
        """Ask over UDP, as a connected client: the response code and the addresses."""
        import dns.message

        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        with self.inside.make(family, socket.SOCK_DGRAM) as client:
            client.connect((server, 53))
            query = dns.message.make_query(name, kind)
            client.send(query.to_wire())
            reply = dns.message.from_wire(client.recv(4096))
        assert reply.id == query.id
        return int(reply.rcode()), [record.to_text() for rrset in reply.answer for record in rrset]

    def connect(self, name: str, port: int) -> socket.socket:
        """Look ``name`` up (unless it is a literal) and connect."""
        address = name
        if not name.replace(".", "").isdigit() and ":" not in name:
            code, found = self.lookup(name)
            assert code == 0 and len(found) == 1, (name, code, found)
            address = found[0]
        client = self.inside.make(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            client.connect((address, port))
        except OSError:
            client.close()
            raise
        return client


@pytest.fixture
def outside():
    """Starts things that are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(thing):
            stack.callback(thing.close)
            return thing

        yield start


def assert_reset(client: socket.socket) -> None:
    with client, pytest.raises(ConnectionResetError):
        assert client.recv(100) == b"never"


def hello(name: str | None) -> bytes:
    """The ClientHello that OpenSSL sends for ``name``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def policy(server: DnsServer, *rules: HostRule, **more: object) -> Policy:
    return Policy(allow=rules, dns_resolver=f"127.0.0.1:{server.port}", **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- names


def test_allowed_names_get_addresses_and_others_do_not_exist(outside) -> None:
    upstream = outside(DnsServer({}))
    net = outside(NetworkProcess(policy(upstream, host("ok.test"), host("*.wild.test")), [80]))
    code, first = net.lookup("ok.test")
    assert (code, first) == (0, ["198.18.0.16"])
    assert net.lookup("OK.test", server="127.0.0.53") == (0, first)
    assert net.lookup("ok.test", server="2001:db8::53") == (0, first)
    assert net.lookup("ok.test", "AAAA") == (0, ["fd00:6d65:6d62:1::10"])
    assert net.lookup("a.wild.test") == (0, ["198.18.0.17"])
    assert net.lookup("ok.test", "TXT") == (0, [])
    assert net.lookup("ok.test", "HTTPS") == (0, [])
    assert net.lookup("wild.test") == (3, [])
    assert net.lookup("c2VjcmV0.evil.test") == (3, [])
    denied = net.event("AccessDenied", reason="name not allowed")
    assert denied["access"]["name"] == "wild.test"
    assert net.event("AccessDenied", reason="name not allowed")["access"]["name"] == "c2vjcmv0.evil.test"
    assert upstream.asked == []
    assert net.stop()["names"] == 2


def test_names_over_tcp(outside) -> None:
    import dns.message

    net = outside(NetworkProcess(policy(outside(DnsServer({})), host("ok.test")), []))
    with net.connect("9.9.9.9", 53) as client:
        for name, code in (("ok.test", 0), ("no.test", 3)):
            query = dns.message.make_query(name, "A").to_wire()
            framed = len(query).to_bytes(2, "big") + query
            client.send(framed[:1])
            client.send(framed[1:])
            size = int.from_bytes(client.recv(2, socket.MSG_WAITALL), "big")
            assert dns.message.from_wire(client.recv(size, socket.MSG_WAITALL)).rcode() == code


# ---------------------------------------------------------------- relaying


@pytest.fixture
def tcp(outside):
    """An echo server, a DNS server that names it ok.test, and a gateway for both."""
    server = outside(Server(echo))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"], "big.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), host("big.test"), LOOPBACK), [server.port, 80]))
    net.port = server.port  # type: ignore[attr-defined]
    net.names = names  # type: ignore[attr-defined]
    return net


def test_a_connection_by_name_and_its_record(tcp) -> None:
    with tcp.connect("ok.test", tcp.port) as client:
        inside_port = client.getsockname()[1]
        client.sendall(b"\x00ping")
        assert client.recv(100) == b"\x00ping"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    opened = tcp.event("ConnectionOpened")
    assert (opened["host"], opened["address"], opened["port"]) == ("ok.test", "127.0.0.1", tcp.port)
    assert (opened["protocol"], opened["client_port"]) == ("tcp", inside_port)
    closed = tcp.event("ConnectionClosed", id=opened["id"])
    assert (closed["bytes_up"], closed["bytes_down"], closed["error"]) == (5, 5, "")
    stats = tcp.stop()
    assert (stats["connections"], stats["bytes_up"], stats["crashes"]) == (1, 5, 0)


def test_loopback_inside_is_no_way_to_loopback_outside(tcp) -> None:
    """127.0.0.1 is the sandbox's own, where this listener happens to be (mode anyip); a rule names it all the same."""
    with pytest.raises(ConnectionResetError), tcp.connect("127.0.0.1", tcp.port) as client:  # in any of the calls
        client.sendall(b"\x01x")
        client.recv(10)
    assert tcp.event("AccessDenied")["reason"] == "address not allowed"


def test_a_connection_by_ipv6(tcp) -> None:
    code, found = tcp.lookup("ok.test", "AAAA")
    with tcp.connect(found[0], tcp.port) as client:
        client.sendall(b"\x01six")
        assert client.recv(10) == b"\x01six"
    assert code == 0


def test_cut_answers_are_asked_again_over_tcp(tcp) -> None:
    with tcp.connect("big.test", tcp.port) as client:
        client.sendall(b"\x01")
        assert client.recv(10) == b"\x01"


def test_a_server_that_speaks_first_needs_no_timer(outside) -> None:
    def banner(client: socket.socket) -> None:
        client.sendall(b"SSH-2.0-test\r\n")
        client.sendall(b"you said " + client.recv(100))

    server = outside(Server(banner))
    names = outside(DnsServer({"ssh.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ssh.test"), LOOPBACK), [server.port]))
    with net.connect("ssh.test", server.port) as client:
        assert client.recv(100) == b"SSH-2.0-test\r\n"
        client.sendall(b"S")  # one byte that could be the start of an HTTP method is not held back
        assert client.recv(100) == b"you said S"


@pytest.mark.parametrize("size", [0, 1, 65536, 8_000_000])
def test_half_close_passes_each_way(size, outside) -> None:
    """The client ends its direction first; the server answers with a digest of all it got, then ends its own."""

    def digest(client: socket.socket) -> None:
        total = hashlib.sha256()
        while data := client.recv(1 << 18):
            total.update(data)
        client.sendall(total.digest())

    server = outside(Server(digest))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), LOOPBACK), [server.port]))
    data = os.urandom(size)
    with net.connect("ok.test", server.port) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100, socket.MSG_WAITALL) == hashlib.sha256(data).digest()
    assert net.event("ConnectionClosed")["bytes_up"] == size


def test_a_big_transfer_both_ways_at_once(tcp) -> None:
    data = os.urandom(1 << 20) * 24
    with tcp.connect("ok.test", tcp.port) as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        total, size = hashlib.sha256(), 0
        while part := client.recv(1 << 18):
            total.update(part)
            size += len(part)
        thread.join(60)
    assert size == len(data)
    assert total.digest() == hashlib.sha256(data).digest()
    closed = tcp.event("ConnectionClosed")
    assert (closed["bytes_up"], closed["bytes_down"]) == (len(data), len(data))


def test_a_reset_of_the_client_resets_the_server(outside) -> None:
    got: list[object] = []
    done = threading.Event()

    def wait(client: socket.socket) -> None:
        client.sendall(b"hi")
        try:
            got.append(client.recv(100))
        except OSError as error:
            got.append(type(error))
        done.set()

    server = outside(Server(wait))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), LOOPBACK), [server.port]))
    client = outside(net.connect("ok.test", server.port))
    assert client.recv(10) == b"hi"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert done.wait(60)
    assert got == [ConnectionResetError]
    assert net.event("ConnectionClosed")["error"]


def test_a_reset_of_the_server_resets_the_client(outside) -> None:
    def reset(client: socket.socket) -> None:
        client.recv(100)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    server = outside(Server(reset))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), LOOPBACK), [server.port]))
    client = net.connect("ok.test", server.port)
    client.sendall(b"\x01")
    assert_reset(client)


def test_five_hundred_connections_at_once_and_no_descriptor_stays(tcp) -> None:
    """Three rounds with room for the descriptors of one: what stays open would be missing in the next."""
    address = tcp.lookup("ok.test")[1][0]
    resource.prlimit(tcp.process.pid, resource.RLIMIT_NOFILE, (1150, 1150))
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            clients = []
            for _ in range(500):
                client = stack.enter_context(tcp.inside.make())
                client.connect((address, tcp.port))
                clients.append(client)
            for number, client in enumerate(clients):
                client.sendall(b"\x00%d" % number)
            for number, client in enumerate(clients):
                expected = b"\x00%d" % number
                assert client.recv(len(expected), socket.MSG_WAITALL) == expected
        for _ in clients:
            tcp.event("ConnectionClosed", error="")
    assert tcp.stop()["crashes"] == 0


def test_the_process_is_hardened(tcp) -> None:
    status = Path(f"/proc/{tcp.process.pid}/status").read_text()
    assert "\nNoNewPrivs:\t1\n" in status
    limits = Path(f"/proc/{tcp.process.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 +0 ", limits)
    descriptors = re.search(r"Max open files +(\d+) +(\d+) ", limits)
    assert descriptors is not None
    assert descriptors[1] == descriptors[2]
    assert os.stat(f"/proc/{tcp.process.pid}/mem").st_uid == 0  # not dumpable: proc(5)


def test_memory_stays_small(tcp) -> None:
    with tcp.connect("ok.test", tcp.port) as client:
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"
        status = Path(f"/proc/{tcp.process.pid}/status").read_text()
    resident = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))
    assert resident <= 45 * 1024  # KiB


def test_host_internal_is_the_loopback_of_the_host(outside) -> None:
    server = outside(Server(echo))
    refused = outside(Server(echo))
    rules = Policy(connect=(PortRule(5432, server.port, ORIGIN),))
    net = outside(NetworkProcess(rules, [5432, refused.port]))
    with net.connect("host.internal", 5432) as client:
        client.sendall(b"\x01")
        assert client.recv(10) == b"\x01"
    assert_reset(net.connect("host.internal", refused.port))
    assert net.event("AccessDenied")["access"]["host"] == "host.internal"


# ---------------------------------------------------------------- TLS names


def test_a_hello_for_the_name_passes_and_drips(tcp) -> None:
    data = hello("ok.test")
    with tcp.connect("ok.test", tcp.port) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            client.send(data[at : at + 1])
        assert client.recv(len(data), socket.MSG_WAITALL) == data
    opened = tcp.event("ConnectionOpened")
    assert (opened["protocol"], opened["sni"]) == ("tls", "ok.test")


@pytest.mark.parametrize(
    ("sni", "description", "reason"),
    [("evil.test", 112, "name differs from SNI"), (None, 49, "TLS without SNI")],
)
def test_a_hello_for_another_name_does_not(sni, description, reason, tcp) -> None:
    with tcp.connect("ok.test", tcp.port) as client:
        client.sendall(hello(sni))
        assert client.recv(100) == b"\x15\x03\x03\x00\x02\x02" + bytes([description])
        assert client.recv(100) == b""
    denied = tcp.event("AccessDenied")
    assert denied["reason"] == reason
    assert (denied["access"]["host"], denied["access"]["sni"]) == ("ok.test", sni or "")
    assert tcp.stop()["bytes_up"] == 0


# ---------------------------------------------------------------- refusing


def test_refused_connections_are_told_in_their_protocol(tcp) -> None:
    with tcp.connect("10.1.2.3", 80) as client:
        client.sendall(b"POST /v1/x?secret=1 HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        answer = b""
        while part := client.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"\r\nx-membrane-verdict: deny" in head
    assert b"\r\ncontent-type: application/json" in head
    told = json.loads(body)
    assert told["error"] == "blocked by membrane"
    assert (told["host"], told["method"], told["path"]) == ("10.1.2.3", "POST", "/v1/x")
    assert told["reason"] == "address not allowed"
    assert set(told) == {"error", "host", "method", "path", "reason", "hint"}
    said = hello("evil.test")
    with tcp.connect("10.1.2.3", 80) as client:
        client.sendall(said)
        assert client.recv(100) == b"\x15\x03\x03\x00\x02\x02\x31"
        assert client.recv(100) == b""
    assert_reset(tcp.connect("10.1.2.3", 80))  # says nothing
    with pytest.raises(ConnectionResetError), tcp.connect("10.1.2.3", 80) as client:  # in any of the calls
        client.sendall(b"\x00\x01")
        client.recv(100)
    assert_reset(tcp.connect("198.18.9.9", 80))  # a fake address that stands for no name
    assert_reset(tcp.connect("fd00:6d65:6d62::2", 80))
    stats = tcp.stop()
    denied = [event for event in tcp.seen if event.get("event") == "AccessDenied"]
    assert sum(event["count"] for event in denied) == 6 == stats["denied"]
    assert stats["connections_refused"] == 6


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "127.0.0.1"])
def test_a_name_for_an_inner_address_is_refused(address, outside) -> None:
    server = outside(Server(echo))
    names = outside(DnsServer({"trap.test": [address]}))
    net = outside(NetworkProcess(policy(names, host("trap.test")), [server.port]))
    client = net.connect("trap.test", server.port)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with client:
        assert client.recv(4096).startswith(b"HTTP/1.1 403 ")
    denied = net.event("AccessDenied")
    assert denied["access"]["address"] == address
    assert denied["reason"] in ("private address", "metadata address")


def test_a_constrained_name_never_becomes_raw(outside) -> None:
    from membrane.policy.model import HttpRule

    server = outside(Server(echo))
    names = outside(DnsServer({"api.test": ["127.0.0.1"]}))
    rule = host("api.test", http=(HttpRule(("GET",), ("/v1",)),))
    net = outside(NetworkProcess(policy(names, rule, LOOPBACK), [server.port]))
    assert_reset(net.connect("api.test", server.port))
    assert net.event("AccessDenied")["reason"] == "not HTTP"
    assert names.asked == []


@pytest.mark.parametrize("kind", ["refused", "unknown"])
def test_a_failed_upstream_is_a_reset_or_a_502(kind, outside) -> None:
    port = free_port()
    table = {"down.test": ["127.0.0.1"]} if kind == "refused" else {}
    names = outside(DnsServer(table))
    net = outside(NetworkProcess(policy(names, host("down.test"), LOOPBACK), [port]))
    with net.connect("down.test", port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert_reset(net.connect("down.test", port))
    net.event("ConnectionOpened", host="down.test")
    closed = net.event("ConnectionClosed")
    error = closed["error"]
    assert closed["reached"] is False
    assert ("refused" if kind == "refused" else "no such name") in error


def test_the_next_address_is_tried(outside) -> None:
    server = outside(Server(echo, "127.0.0.2"))
    names = outside(DnsServer({"two.test": ["127.0.0.3", "127.0.0.2"]}))
    net = outside(NetworkProcess(policy(names, host("two.test"), LOOPBACK), [server.port]))
    with net.connect("two.test", server.port) as client:
        client.sendall(b"\x01")
        assert client.recv(10) == b"\x01"
    assert net.event("ConnectionOpened")["address"] == "127.0.0.2"


# ---------------------------------------------------------------- limits


def test_the_upload_limit_ends_the_connection(outside) -> None:
    server = outside(Server(echo))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    rules = policy(names, host("ok.test"), LOOPBACK, limits=Limits(upload=100_000))
    net = outside(NetworkProcess(rules, [server.port]))
    with net.connect("ok.test", server.port) as client:
        client.sendall(bytes(60_000))
        assert len(client.recv(60_000, socket.MSG_WAITALL)) == 60_000
    net.event("ConnectionClosed", bytes_up=60_000)
    client = net.connect("ok.test", server.port)
    with client, pytest.raises(OSError):  # reset, or a broken pipe when it came while sending
        client.sendall(bytes(60_000))
        assert len(client.recv(60_000, socket.MSG_WAITALL)) < 60_000
        client.recv(1)
    assert net.event("AccessDenied")["reason"] == "limit reached"
    assert net.stop()["bytes_up"] == 100_000


def test_the_connection_limit_resets_what_is_too_much(outside) -> None:
    server = outside(Server(echo))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), LOOPBACK), [server.port], limits={"connections": 2}))
    held = [outside(net.connect("ok.test", server.port)) for _ in range(2)]
    for client in held:
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"
    with pytest.raises(ConnectionResetError), net.connect("ok.test", server.port) as client:  # in connect, or after
        assert client.recv(100) == b"never"
    assert net.event("AccessDenied")["reason"] == "limit reached"
    held[0].close()
    net.event("ConnectionClosed")
    with net.connect("ok.test", server.port) as client:
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"
    held[1].close()


def test_a_name_over_the_limit_takes_the_place_of_the_oldest_and_no_address_is_used_twice(outside) -> None:
    net = outside(NetworkProcess(policy(outside(DnsServer({})), host("*.w.test")), [], limits={"names": 2}))
    answers = [net.lookup(f"n{number}.w.test") for number in (0, 1, 2, 0)]
    assert [code for code, _addresses in answers] == [0, 0, 0, 0]
    assert len({address for _code, addresses in answers for address in addresses}) == 4


def test_repeated_refusals_are_one_event_with_a_count(outside) -> None:
    net = outside(NetworkProcess(policy(outside(DnsServer({}))), []))
    for _ in range(50):
        assert net.lookup("no.test")[0] == 3
    net.stop()
    denied = [event for event in net.seen if event.get("event") == "AccessDenied"]
    assert [event["count"] for event in denied] == [1, 49]


def test_without_a_reader_refusals_and_totals_are_told(outside) -> None:
    """What is told is all that the session shows when no events are written."""
    server = outside(Server(echo))
    names = outside(DnsServer({"ok.test": ["127.0.0.1"]}))
    net = outside(NetworkProcess(policy(names, host("ok.test"), LOOPBACK), [server.port], verbose=False))
    with net.connect("ok.test", server.port) as client:
        client.sendall(b"\x00ping")
        assert client.recv(100) == b"\x00ping"
        assert net.next() == Totals(5, 5)  # also of connections that are still open
        assert net.lookup("no.test")[0] == 3
        assert net.event("AccessDenied")["access"]["name"] == "no.test"
    stats = net.stop()
    assert (stats["connections"], stats["bytes_up"], stats["denied"]) == (1, 5, 1)
    assert {event["event"] for event in net.seen} == {"AccessDenied"}


def test_lost_events_are_counted_and_said(outside) -> None:
    """Nobody reads the control socket while far more happens than the queue holds."""
    net = outside(NetworkProcess(policy(outside(DnsServer({}))), []))
    import dns.message

    total = 30_000
    with net.inside.make(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((RESOLVER, 53))
        template = dns.message.make_query("aaaaaaaa.test", "A").to_wire()
        for start in range(0, total, 50):
            for number in range(start, start + 50):
                client.send(template.replace(b"aaaaaaaa", b"%08d" % number))
            for _ in range(50):
                client.recv(512)
    stats = net.stop()
    told = sum(event["count"] for event in net.seen if event.get("event") == "AccessDenied")
    lost = sum(event["count"] for event in net.seen if event.get("event") == "EventsLost")
    assert stats["denied"] == total
    assert lost == stats["events_lost"] > 0
    assert told + lost == total


# ---------------------------------------------------------------- UDP


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_udp_is_relayed_per_flow(family, outside) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)
        port = server.getsockname()[1]
        names = outside(DnsServer({"udp.test": ["127.0.0.1"], "shut.test": ["127.0.0.1"]}))
        rule = host("udp.test", PortRange("udp", port, port))
        net = outside(
            NetworkProcess(
                policy(
                    names,
                    rule,
                    host("shut.test"),
                    HostRule("127.0.0.0/8", ORIGIN, "network", network=Network4, ports=(PortRange("udp", 1, 65535),)),
                ),
                [],
                udp=[port],
            )
        )
        kind = "AAAA" if family == socket.AF_INET6 else "A"
        address = net.lookup("udp.test", kind)[1][0]
        for connected in (True, False):
            with net.inside.make(family, socket.SOCK_DGRAM) as client:
                if connected:
                    client.connect((address, port))
                    client.send(b"question")
                else:
                    client.sendto(b"question", (address, port))
                data, peer = server.recvfrom(100)
                assert data == b"question"
                server.sendto(b"answer", peer)
                answer, origin = client.recvfrom(100)
                assert (answer, origin[:2]) == (b"answer", (address, port))
        shut = net.lookup("shut.test", kind)[1][0]
        with net.inside.make(family, socket.SOCK_DGRAM) as client:
            client.sendto(b"no", (shut, port))
        assert net.event("AccessDenied")["reason"] == "port not allowed"
        stats = net.stop()
        assert (stats["udp_flows"], stats["udp_datagrams"], stats["udp_refused"]) == (2, 2, 1)
        opened = [event for event in net.seen if event.get("event") == "ConnectionOpened"]
        assert [event["protocol"] for event in opened] == ["udp", "udp"]
        assert [event["host"] for event in opened] == ["udp.test", "udp.test"]


def test_what_lies_in_the_sockets_at_the_end_is_taken(outside) -> None:
    """The process is stopped while a command does its last acts, and told to end before it goes on: more datagrams
    than are taken in one turn, one whose name must be looked up, and a connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        names = outside(DnsServer({"udp.test": ["127.0.0.1"]}))
        net = outside(
            NetworkProcess(
                policy(
                    names,
                    host("udp.test", PortRange("udp", port, port)),
                    HostRule("127.0.0.0/8", ORIGIN, "network", network=Network4, ports=(PortRange("udp", 1, 65535),)),
                ),
                [8080],
                udp=[port],
            )
        )
        address = net.lookup("udp.test")[1][0]
        net.process.send_signal(signal.SIGSTOP)
        with net.inside.make(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(100):
                client.sendto(b"no", ("198.51.100.7", port))
            client.sendto(b"yes", (address, port))
            for _ in range(100):
                client.sendto(b"no", ("198.51.100.7", port))
        last = net.connect("198.51.100.8", 8080)
        last.close()
        net.send(Stop())
        net.process.send_signal(signal.SIGCONT)
        net.rest()
        server.settimeout(0)
        try:
            arrived = server.recv(100)
        except BlockingIOError:
            arrived = b""  # on a busy machine the look-up of its name may take too long: then it is counted
        denied = [event for event in net.seen if event.get("event") == "AccessDenied"]
        assert sum(event["count"] for event in denied if event["access"]["address"] == "198.51.100.7") == 200
        assert [event["count"] for event in denied if event["access"]["address"] == "198.51.100.8"] == [1]
        (closed,) = [event for event in net.seen if event.get("event") == "ConnectionClosed"]
        assert closed["reached"] is True
        told = (arrived, closed["bytes_up"], closed["error"])
        assert told in ((b"yes", 3, "session ended"), (b"", 0, "session ended: 1 datagrams were not sent")), told


def test_what_is_left_after_that_is_counted(outside) -> None:
    """More than the process takes in its time: each datagram and each connection is told, or counted as lost."""
    port = 5000
    names = outside(DnsServer({}))
    net = outside(NetworkProcess(policy(names, host("udp.test", PortRange("udp", port, port))), [8080], udp=[port]))
    net.process.send_signal(signal.SIGSTOP)
    sent = 0
    for _ in range(20):
        with net.inside.make(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(10):
                client.sendto(b"no", ("198.51.100.7", port))
                sent += 1
    clients = []
    for number in range(200):
        clients.append(net.connect(f"198.51.101.{number}", 8080))
    net.send(Stop())
    net.process.send_signal(signal.SIGCONT)
    net.rest()
    for client in clients:
        client.close()
    told = {"udp": 0, "tcp": 0}
    for event in net.seen:
        if event.get("event") == "AccessDenied":
            told[event["access"]["protocol"]] += event["count"]
    lost = {event["kind"]: event["count"] for event in net.seen if event.get("event") == "EventsLost"}
    assert told["udp"] + lost.get("datagram", 0) == sent
    assert told["tcp"] + lost.get("connection", 0) == len(clients)


Network4 = LOOPBACK.network


# ---------------------------------------------------------------- proxies


def connect_proxy(asked: list[bytes]):
    def serve(client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        asked.append(head)
        if b"Basic dTpwOnc=" not in head:  # u:p:w
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        client.sendall(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nbanner")
        echo(client)

    return serve


def socks_proxy(asked: list[bytes]):
    def serve(client: socket.socket) -> None:
        greeting = client.recv(3 if not asked else 4)
        asked.append(greeting)
        client.sendall(b"\x05\x00")
        asked.append(client.recv(300))
        for octet in b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00":
            client.send(bytes([octet]))
        client.sendall(b"banner")
        echo(client)

    return serve


def test_connect_proxy_gets_the_name(outside) -> None:
    asked: list[bytes] = []
    proxy = outside(Server(connect_proxy(asked)))
    rules = Policy(allow=(host("far.test"),), upstream_proxy=f"http://u:p%3Aw@127.0.0.1:{proxy.port}")
    net = outside(NetworkProcess(rules, [7777]))
    with net.connect("far.test", 7777) as client:
        assert client.recv(6, socket.MSG_WAITALL) == b"banner"
        client.sendall(b"\x01x")
        assert client.recv(10) == b"\x01x"
    assert asked[0].startswith(b"CONNECT far.test:7777 HTTP/1.1\r\nHost: far.test:7777\r\n")
    assert net.event("ConnectionClosed")["bytes_down"] == 8


def test_a_proxy_that_refuses_is_a_failed_upstream(outside) -> None:
    proxy = outside(Server(connect_proxy([])))
    rules = Policy(allow=(host("far.test"),), upstream_proxy="env")
    environ = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": "near.test"}
    net = outside(NetworkProcess(rules, [7777], environ=environ))
    assert_reset(net.connect("far.test", 7777))
    assert "407" in net.event("ConnectionClosed")["error"]


def test_socks_proxy_gets_the_name(outside) -> None:
    asked: list[bytes] = []
    proxy = outside(Server(socks_proxy(asked)))
    rules = Policy(allow=(host("far.test"),), upstream_proxy=f"socks5://127.0.0.1:{proxy.port}")
    net = outside(NetworkProcess(rules, [7777]))
    with net.connect("far.test", 7777) as client:
        assert client.recv(6, socket.MSG_WAITALL) == b"banner"
        client.sendall(b"\x01x")
        assert client.recv(10) == b"\x01x"
    assert asked == [b"\x05\x01\x00", b"\x05\x01\x00\x03\x08far.test" + (7777).to_bytes(2, "big")]


# ---------------------------------------------------------------- the process


def test_it_ends_when_the_session_does(outside) -> None:
    net = outside(NetworkProcess(policy(outside(DnsServer({}))), []))
    net.control.shutdown(socket.SHUT_WR)
    assert net.process.wait(60) == 0


FIRST = Setup(Policy(), "test")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (TO_GATEWAY.frame(Begin(FIRST.replace(policy=Policy(upstream_proxy="ftp://x")))), "upstream_proxy 'ftp://x'"),
        (TO_GATEWAY.frame(Stop()), "Stop came first"),
        (b"\xff" * 4, "4294967295 bytes are too many"),
        (b'{"command": "stop"}\n', "bytes are too many"),
        (b"\x02\0\0\0\0\0", "read a message from the supervisor to the gateway"),
        (TO_GATEWAY.frame(Begin(FIRST)) + TO_GATEWAY.frame(Begin(FIRST)), "Begin came again"),
        (TO_GATEWAY.frame(Begin(FIRST)) + b"\x01\0\0\0\x09", "read a message from the supervisor to the gateway"),
    ],
)
def test_what_it_cannot_follow_ends_it_and_it_says_why(said: bytes, why: str) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours:
        with theirs:
            process = subprocess.Popen([*PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()], env={})
        ours.sendall(said)
        *_before, last = received(ours)
        assert isinstance(last, Failed) and why in last.text
        assert process.wait(60) == 1
