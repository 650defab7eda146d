"""The relay with a policy of the test's own: what goes wrong in one connection, and what never comes.

A listener on loopback stands for the sandbox's; the stub policy says where its connections go.

One file of over 800 lines: one stub policy and one listener, and each thing that can go wrong between them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import threading
import time

import pytest

from membrane.errors import InternalError
from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened
from membrane.gateway import dial, flow, memory
from membrane.gateway import relay as relay_module
from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.dns import Answerer, Names
from membrane.gateway.reactor import Reactor
from membrane.gateway.relay import Engine
from membrane.gateway.route import UNRECOGNIZED_NAME, Route, Router, alert
from membrane.gateway.upstream import Resolved, Resolver, Upstreams
from membrane.policy.model import Allow, Deny

SECONDS = 25  # until a test gives up; less than the deadline of a hello
HELLO_START = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class StubRouter(Router):
    """Everything goes to ``target``; ``arrive`` may be replaced by a failure."""

    def __init__(self) -> None:
        super().__init__(
            Names(), lambda access: Allow(None, "ok") if access.address != "192.0.2.1" else Deny(None, "no")
        )
        self.target = 0
        self.addresses: tuple[str, ...] = ("127.0.0.1",)
        self.host = "a.test"
        self.failure: Exception | None = None
        self.raw = True

    def arrive(self, address, port, protocol="tcp"):
        if self.failure is not None:
            raise self.failure
        return Route(self.host, address, port, self.target, raw=self.raw)


class Rig:
    """An engine that runs in a thread of its own."""

    def __init__(self, **options) -> None:
        self.reactor = Reactor()
        self.router = StubRouter()
        self.events: list = []
        self.crashes: list[BaseException] = []
        self.told = threading.Condition()
        answerer = Answerer(Names(), lambda query: Allow(None, "ok"), self.emit)
        resolver = Resolver(self.reactor, lambda host: Resolved(self.router.addresses, "no such name", 60), 10)
        budget = options.pop("budget", Budget())
        self.engine = Engine(
            self.reactor, self.router, answerer, Upstreams(resolver, resolver), self.emit, self.crashes.append,
            ledger=Ledger(budget, lambda: self.reactor.now), **options
        )  # fmt: skip
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.engine.listen(self.listener)
        self.thread = threading.Thread(target=self.reactor.run)
        self.thread.start()

    def emit(self, event) -> None:
        with self.told:
            self.events.append(event)
            self.told.notify()

    def wait_for(self, kind, count: int = 1) -> list:
        with self.told:
            assert self.told.wait_for(lambda: len(self.of(kind)) >= count, SECONDS), self.events
            return self.of(kind)

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), timeout=SECONDS)

    def close(self) -> None:
        self.reactor.post(lambda: (self.engine.close(), self.reactor.stop()))
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        self.reactor.close()
        self.listener.close()


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:

        def keep(thing):
            stack.callback(thing.close)
            return thing

        yield keep


@pytest.fixture
def server(closing):
    """A listening socket outside."""
    made = closing(socket.create_server(("127.0.0.1", 0)))
    made.settimeout(SECONDS)
    return made


@pytest.fixture
def rig(closing, server):
    made = closing(Rig())
    made.router.target = server.getsockname()[1]
    return made


def accept(server: socket.socket, closing) -> socket.socket:
    accepted, _peer = server.accept()
    accepted.settimeout(SECONDS)
    return closing(accepted)


def assert_reset_at_once(rig: Rig) -> None:
    """The reset may come before connect(2) has returned, or after."""
    with pytest.raises(ConnectionResetError), rig.connect() as client:
        assert client.recv(100) == b"never"


def assert_reset(client: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        assert client.recv(100) == b"never"


def test_a_defect_is_one_connections_end(rig, server, closing) -> None:
    first = closing(rig.connect())
    first.sendall(b"\0one")
    other = accept(server, closing)
    assert other.recv(10) == b"\0one"
    rig.router.failure = RuntimeError("a defect")
    assert_reset_at_once(rig)
    rig.router.failure = None
    assert [str(crash) for crash in rig.crashes] == ["a defect"]
    other.sendall(b"still here")
    assert first.recv(100) == b"still here"


def test_a_defect_while_it_relays_resets_both(rig, server, closing, monkeypatch) -> None:
    client = closing(rig.connect())
    client.sendall(b"\0one")
    other = accept(server, closing)
    assert other.recv(10) == b"\0one"

    def broken(*_args, **_named):
        raise ValueError("a defect")

    # Between two turns: a move that is under way would still take what is sent now.
    patched = threading.Event()
    rig.reactor.post(lambda: (monkeypatch.setattr(rig.engine.pump, "move", broken), patched.set()))
    assert patched.wait(SECONDS)
    client.sendall(b"\0two")
    assert_reset(client)
    assert_reset(other)
    assert rig.wait_for(ConnectionClosed)[0].error == "internal error"
    assert len(rig.crashes) == 1


def test_a_hello_that_stops_is_refused(closing, server, monkeypatch) -> None:
    monkeypatch.setattr(relay_module, "HELLO", 0.05)
    rig = closing(Rig())
    rig.router.target = server.getsockname()[1]
    client = closing(rig.connect())
    client.sendall(HELLO_START)
    assert_reset(client)
    denied = rig.wait_for(AccessDenied)[0]
    assert (denied.reason, denied.hint) == ("name differs from SNI", "ClientHello is not complete")
    other = accept(server, closing)
    assert other.recv(10) == b""  # nothing of it ever reached the server


def test_a_hello_that_ends_early_is_refused(rig, server, closing) -> None:
    client = closing(rig.connect())
    client.sendall(HELLO_START)
    client.shutdown(socket.SHUT_WR)
    assert_reset(client)
    assert rig.wait_for(AccessDenied)[0].hint == "ClientHello is not complete"


def test_silence_is_not_a_hello(closing, server, monkeypatch) -> None:
    """A client that says nothing may stay; the waits of a hello and of dialling have long ended."""
    monkeypatch.setattr(relay_module, "HELLO", 0.01)
    monkeypatch.setattr(dial, "CONNECT", 0.2)
    rig = closing(Rig())
    rig.router.target = server.getsockname()[1]
    client = closing(rig.connect())
    other = accept(server, closing)
    over = threading.Event()
    wait = rig.reactor.wait(0.3, lambda _item: over.set())
    rig.reactor.post(lambda: wait.begin(None))
    assert over.wait(SECONDS)
    other.sendall(b"x")
    assert client.recv(10) == b"x"


def test_an_address_that_does_not_answer_is_given_up(closing, server, monkeypatch) -> None:
    """The queue of a listener that nobody accepts from is full: the kernel drops further SYNs."""
    monkeypatch.setattr(dial, "ATTEMPT", 0.1)
    monkeypatch.setattr(dial, "CONNECT", 0.5)
    rig = closing(Rig())
    port = rig.router.target = server.getsockname()[1]
    deaf = closing(socket.create_server(("127.0.0.2", port), backlog=0))
    for _ in range(3):
        waiting = closing(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(deaf.getsockname())
    rig.router.addresses = ("127.0.0.2", "127.0.0.1")
    client = closing(rig.connect())
    other = accept(server, closing)
    client.sendall(b"\0x")
    assert other.recv(10) == b"\0x"
    assert rig.wait_for(ConnectionOpened)[0].address == "127.0.0.1"
    rig.router.addresses, rig.router.host = ("127.0.0.2",), "b.test"
    assert_reset(closing(rig.connect()))
    assert "timed out" in rig.wait_for(ConnectionClosed)[-1].error


def test_no_allowed_address_is_a_refusal(rig, closing) -> None:
    rig.router.addresses = ("192.0.2.1",)
    assert_reset(closing(rig.connect()))
    assert rig.wait_for(AccessDenied)[0].access["address"] == "192.0.2.1"
    assert rig.of(ConnectionOpened) == []


def test_a_client_that_is_gone_before_it_is_connected(rig, server, closing) -> None:
    gate = threading.Event()
    rig.engine.dialler.upstreams.resolver._look_up = lambda host: (gate.wait(SECONDS), Resolved(("127.0.0.1",)))[1]
    client = rig.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert rig.wait_for(ConnectionClosed)[0].error == "client reset the connection"
    gate.set()
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.accept()
    assert rig.crashes == []


def test_a_slow_reader_holds_one_pipe_and_gets_everything(rig, server, closing) -> None:
    data = os.urandom(1 << 20) * 32
    client = closing(rig.connect())
    client.sendall(b"\0")
    other = accept(server, closing)
    assert other.recv(1) == b"\0"

    def send() -> None:
        other.sendall(data)
        other.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    got = bytearray()
    while len(got) < len(data):
        part = client.recv(70_000)
        assert part
        got += part
    assert client.recv(10) == b""
    thread.join(SECONDS)
    assert got == data
    assert rig.engine.pump._made <= 2


def test_without_pipes_it_copies(rig, server, closing, monkeypatch) -> None:
    def no_pipes(_flags):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe2", no_pipes)
    data = os.urandom(1 << 20) * 4
    client = closing(rig.connect())
    client.sendall(b"\0")
    other = accept(server, closing)
    thread = threading.Thread(target=lambda: (other.sendall(data), other.shutdown(socket.SHUT_WR)))
    thread.start()
    got = bytearray()
    while part := client.recv(1 << 18):
        got += part
    thread.join(SECONDS)
    assert got == data


def test_an_end_that_was_announced_while_the_reader_was_full_is_passed_on(rig, server, closing) -> None:
    """The event that told of it is past when the direction goes on."""
    client = closing(socket.socket())
    client.settimeout(SECONDS)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(rig.listener.getsockname())
    client.sendall(b"\0")
    other = accept(server, closing)
    assert other.recv(1) == b"\0"

    def in_the_loop(call) -> None:
        done = threading.Event()
        rig.reactor.post(lambda: (call(), done.set()))
        assert done.wait(SECONDS)

    connection = next(iter(rig.engine.connections))
    set_option = connection.client.setsockopt
    in_the_loop(lambda: set_option(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096))
    data = os.urandom(flow.BUFFER + 10)
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)
    for _ in range(2):  # the turn that sees the end
        in_the_loop(lambda: None)
    assert connection._down.pending()
    in_the_loop(lambda: set_option(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20))  # all of the rest fits at once
    got = bytearray()
    while part := client.recv(1 << 18):
        got += part
    assert got == data


def test_what_waits_in_raw_connections_counts_and_is_given_back(rig, server, closing, monkeypatch) -> None:
    monkeypatch.setattr(memory, "MOST_ALL", 1 << 20)
    rig.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)  # inherited: else the kernel takes it all
    monkeypatch.setattr(flow, "_PIPES", 0)  # copied
    data, many = os.urandom(1 << 20), 30
    pairs = []
    for _ in range(many):
        client = closing(rig.connect())
        client.sendall(b"\0")
        other = accept(server, closing)
        assert other.recv(1) == b"\0"
        pairs.append((client, other))

    def send(other: socket.socket) -> None:
        other.sendall(data)
        other.shutdown(socket.SHUT_WR)

    senders = [threading.Thread(target=send, args=(other,)) for _client, other in pairs]
    for sender in senders:
        sender.start()
    held, deadline = rig.engine.memory, time.monotonic() + SECONDS
    while held.held < memory.MOST_ALL // 4 and time.monotonic() < deadline:
        pass
    assert memory.MOST_ALL // 4 <= held.held <= memory.MOST_ALL + many * memory.LEAST
    for client, _other in pairs:
        assert exactly(client, len(data)) == data
        client.close()
    for sender in senders:
        sender.join(SECONDS)
    while rig.engine.connections and time.monotonic() < deadline:
        pass
    assert held.held == 0


def test_urgent_data_does_not_stop_the_stream(rig, server, closing) -> None:
    client = closing(rig.connect())
    client.sendall(b"\0before")
    other = accept(server, closing)
    assert exactly(other, 7) == b"\0before"
    client.send(b"!", socket.MSG_OOB)
    client.sendall(b"after")
    assert exactly(other, 6) == b"!after"


def test_urgent_data_does_not_stop_a_bulk_stream(rig, server, closing) -> None:
    client = closing(rig.connect())
    data = b"\0" + os.urandom(1 << 22)

    def send() -> None:
        client.sendall(data)
        client.send(b"!", socket.MSG_OOB)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    other = accept(server, closing)
    got = bytearray()
    while part := other.recv(1 << 18):
        got += part
    thread.join(SECONDS)
    assert got == data + b"!" + data


def test_an_urgent_octet_can_not_hide_the_start_of_a_hello(rig, server, closing) -> None:
    """Left out of the stream until the next one is sent, it would be seen by the server and not by us."""
    client = closing(rig.connect())
    hello = records(hello_message(b"other.test"))
    client.send(hello[:1], socket.MSG_OOB)
    client.sendall(hello[1:])
    assert exactly(client, 7) == alert(UNRECOGNIZED_NAME)
    assert [event.access["sni"] for event in rig.wait_for(AccessDenied)] == ["other.test"]


# ---------------------------------------------------------------- a second hello

RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def hello_message(name: bytes) -> bytes:
    entry = b"\0" + len(name).to_bytes(2, "big") + name
    names = len(entry).to_bytes(2, "big") + entry
    extensions = b"\0\0" + len(names).to_bytes(2, "big") + names
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extensions).to_bytes(2, "big") + extensions
    return b"\1" + len(body).to_bytes(3, "big") + body


def records(message: bytes, kind: int = 22) -> bytes:
    return bytes((kind, 3, 3)) + len(message).to_bytes(2, "big") + message


def server_hello(random: bytes) -> bytes:
    body = b"\3\3" + random + b"\0" + b"\x13\1" + b"\0" + b"\0\0"
    return records(b"\2" + len(body).to_bytes(3, "big") + body)


def exactly(sock: socket.socket, size: int) -> bytes:
    """``MSG_WAITALL`` does not wait on a socket with a timeout."""
    data = b""
    while len(data) < size and (part := sock.recv(size - len(data))):
        data += part
    return data


CHANGE_CIPHER = b"\x14\3\3\0\1\1"


def handshake(rig, server, closing, answer: bytes) -> tuple[socket.socket, socket.socket]:
    """A client whose first hello was answered."""
    client = closing(rig.connect())
    first = records(hello_message(b"a.test"))
    client.sendall(first)
    other = accept(server, closing)
    other.settimeout(SECONDS)
    assert exactly(other, len(first)) == first
    other.sendall(answer)
    client.settimeout(SECONDS)
    assert exactly(client, len(answer)) == answer
    return client, other


@pytest.mark.parametrize("before", [b"", CHANGE_CIPHER, CHANGE_CIPHER + records(b"early", 23) * 3])
def test_a_second_hello_bears_the_same_name(rig, server, closing, before) -> None:
    client, other = handshake(rig, server, closing, server_hello(RETRY))
    again = before + records(hello_message(b"a.test"))
    for octet in again:
        client.sendall(bytes((octet,)))
    client.sendall(b"and on")
    assert exactly(other, len(again) + 6) == again + b"and on"
    other.sendall(b"down")
    assert exactly(client, 4) == b"down"


@pytest.mark.parametrize(
    "before", [b"", CHANGE_CIPHER, CHANGE_CIPHER * 9, records(b"\1\x5a", 21), records(b"early" * 99, 23) * 3]
)
def test_a_second_hello_with_another_name_never_arrives(rig, server, closing, before) -> None:
    client, other = handshake(rig, server, closing, server_hello(RETRY))
    client.sendall(before + records(hello_message(b"other.test")))
    if before[:1] == b"\x17":  # not what a TLS client begins with: it is reset, not told
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    else:
        assert exactly(client, 7) == alert(UNRECOGNIZED_NAME)
    assert [event.access["sni"] for event in rig.wait_for(AccessDenied)] == ["other.test"]
    with contextlib.suppress(ConnectionResetError):
        assert other.recv(1) == b""


def test_a_second_hello_behind_too_much_is_refused(rig, server, closing) -> None:
    client, other = handshake(rig, server, closing, server_hello(RETRY))
    with contextlib.suppress(OSError):  # it may be reset before all is sent
        client.sendall(records(bytes(16384), 23) * 2 + records(hello_message(b"other.test")))
        client.shutdown(socket.SHUT_WR)
    assert [event.reason for event in rig.wait_for(AccessDenied)] == ["name differs from SNI"]
    with contextlib.suppress(ConnectionResetError):
        assert other.recv(1) == b""


def test_a_client_that_gives_up_after_the_retry(rig, server, closing) -> None:
    client, other = handshake(rig, server, closing, server_hello(RETRY))
    client.sendall(CHANGE_CIPHER)
    client.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        assert other.recv(1) == b""
    assert [event.error for event in rig.wait_for(ConnectionClosed)] == ["the client ended in the handshake"]
    assert rig.of(AccessDenied) == []


@pytest.mark.parametrize("answer", [server_hello(bytes(32)), b"\x15\3\3\0\2\2\x28", b"220 hello, this is mail\r\n"])
def test_what_follows_a_hello_waits_for_the_answer(rig, server, closing, answer) -> None:
    client = closing(rig.connect())
    first = records(hello_message(b"a.test"))
    client.sendall(first + CHANGE_CIPHER + records(hello_message(b"other.test")))
    other = accept(server, closing)
    other.settimeout(SECONDS)
    assert exactly(other, len(first)) == first
    other.settimeout(0.2)
    with pytest.raises(TimeoutError):
        other.recv(1)
    other.settimeout(SECONDS)
    for octet in answer:
        other.sendall(bytes((octet,)))
    assert exactly(client, len(answer)) == answer
    assert exactly(other, 6) == CHANGE_CIPHER


def test_an_answer_that_ends_early_is_passed_on(rig, server, closing) -> None:
    client = closing(rig.connect())
    first = records(hello_message(b"a.test"))
    client.sendall(first + b"more")
    other = accept(server, closing)
    assert exactly(other, len(first)) == first
    other.sendall(b"\x16\3\3\0")
    other.shutdown(socket.SHUT_WR)
    assert exactly(client, 9) == b"\x16\3\3\0"
    assert exactly(other, 4) == b"more"


@pytest.mark.parametrize("data", [b"\x16", b"\x80", b"\x80\x2e\x01", b"\x15\3\1"])
def test_a_few_octets_and_the_end_are_no_hello(rig, server, closing, data) -> None:
    client = closing(rig.connect())
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    other = accept(server, closing)
    other.settimeout(SECONDS)
    assert exactly(other, len(data)) == data
    assert other.recv(1) == b""


SSL_REQUEST = bytes.fromhex("0000000804d2162f")
GSS_REQUEST = bytes.fromhex("0000000804d21630")


def refused(rig) -> str:
    (event,) = rig.wait_for(AccessDenied)
    return event.reason


def nothing_arrived(server) -> None:
    """Whether or not it was dialled before the client was judged."""
    server.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        other, _peer = server.accept()
        with other:
            other.settimeout(SECONDS)
            assert other.recv(1) == b""


@pytest.fixture
def named(rig):
    """A relay to a name whose rule does not say ``protocol: raw``."""
    rig.router.raw = False
    return rig


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"\5\2\0\2",  # SOCKS 5
        b"\4\1\1\xbb\0\0\0\1x\0evil.test\0",  # SOCKS 4a
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n" + b"\x16\3\1",
        b"PROXY UNKNOWN HTTP/1.1\r\n" + b"\x16\3\1",  # reads like a request line
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0",  # PROXY protocol, version 2
        b"\x17\3\3\0\1x\x16\3\1",
        b"\x16\x10\1\0\0\x16\x10\1\2\0\1\0\1\xfc",  # a hello behind an empty record
        b"GET /\r\n",
        b"CONNECT evil.test:443 HTTP/2\r\n",
        bytes(20),
    ],
)
def test_what_is_no_known_protocol_does_not_reach_a_name(rig, server, closing, data) -> None:
    for raw in (True, False):
        rig.router.raw = raw
        client = closing(rig.connect())
        client.sendall(data)
        if raw:  # the control
            other = accept(server, closing)
            other.settimeout(SECONDS)
            assert exactly(other, len(data)) == data
        else:
            assert refused(rig) == "protocol not known"
            nothing_arrived(server)
            assert rig.of(AccessDenied)[0].hint == f'allow: ["tcp://a.test:{rig.listener.getsockname()[1]}"]'


@pytest.mark.parametrize("data", [b"h", b"PRI * HTTP/2", b"GET / HT", b"SSH-2", b"\x16", b"\x80\x2e\1", b"\x15\3\1"])
def test_what_ends_before_it_is_known_does_not_reach_a_name(named, server, closing, data) -> None:
    client = closing(named.connect())
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    assert refused(named) == "protocol not known"
    nothing_arrived(server)


def test_what_drips_in_and_never_becomes_known_is_refused(named, server, closing, monkeypatch) -> None:
    monkeypatch.setattr(named.engine.hello, "seconds", 0.05, raising=True)
    client = closing(named.connect())
    client.sendall(b"SSH-")
    accept(server, closing)
    assert refused(named) == "protocol not known"


def test_a_known_protocol_may_drip_in(named, server, closing) -> None:
    client = closing(named.connect())
    other = accept(server, closing)
    other.settimeout(SECONDS)
    for octet in b"SSH-2.0-x\r\n":
        client.sendall(bytes([octet]))
    assert exactly(other, 11) == b"SSH-2.0-x\r\n"


@pytest.mark.parametrize("early", [True, False])
def test_where_the_server_speaks_first_the_client_may_say_anything(named, server, closing, early) -> None:
    """SMTP, FTP, IMAP, MySQL; also a client that does not wait for the greeting, if that could be a known opening."""
    client = closing(named.connect())
    if early:
        client.sendall(b"CAP")
    other = accept(server, closing)
    other.settimeout(SECONDS)
    other.sendall(b"220 ready\r\n")
    assert exactly(client, 11) == b"220 ready\r\n"
    client.sendall(b"ABILITY\r\n" if early else b"CAPABILITY\r\n")
    assert exactly(other, 12) == b"CAPABILITY\r\n"


def test_a_hello_after_the_server_spoke_is_judged(named, server, closing) -> None:
    client = closing(named.connect())
    other = accept(server, closing)
    other.sendall(b"220 ready\r\n")
    assert exactly(client, 11) == b"220 ready\r\n"
    client.sendall(records(hello_message(b"other.test")))
    assert refused(named) == "name differs from SNI"


@pytest.mark.parametrize("version", [b"\x10\1", b"\xff\1", b"\x03\xff"])
def test_a_hello_of_any_version_names_the_host(rig, server, closing, version) -> None:
    client = closing(rig.connect())  # also under ``protocol: raw``
    client.sendall(b"\x16" + version + records(hello_message(b"other.test"))[3:])
    assert refused(rig) == "name differs from SNI"
    nothing_arrived(server)


@pytest.mark.parametrize("name", [b"a.test", b"other.test"])
@pytest.mark.parametrize("before", [b"", GSS_REQUEST])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_hello_behind_a_request_for_tls_is_judged(named, server, closing, name, before, at_once) -> None:
    client = closing(named.connect())
    other = accept(server, closing)
    other.settimeout(SECONDS)
    hello = records(hello_message(name))
    if at_once:
        client.sendall(before + SSL_REQUEST + hello)
    if before:
        if not at_once:
            client.sendall(before)
        assert exactly(other, 8) == before
        other.sendall(b"N")
        assert exactly(client, 1) == b"N"
    if not at_once:
        for octet in SSL_REQUEST:
            client.sendall(bytes([octet]))
    assert exactly(other, 8) == SSL_REQUEST
    other.sendall(b"S")
    assert exactly(client, 1) == b"S"
    if not at_once:
        client.sendall(hello)
    if name == b"a.test":
        assert exactly(other, len(hello)) == hello
    else:
        assert refused(named) == "name differs from SNI"
        assert other.recv(1) == b""


def test_a_session_without_tls_goes_on_after_a_no(named, server, closing) -> None:
    client = closing(named.connect())
    other = accept(server, closing)
    other.settimeout(SECONDS)
    client.sendall(SSL_REQUEST)
    assert exactly(other, 8) == SSL_REQUEST
    other.sendall(b"N")
    assert exactly(client, 1) == b"N"
    startup = b"\0\0\0\x20\0\3\0\0user\0"
    client.sendall(startup)
    assert exactly(other, len(startup)) == startup
    other.sendall(b"R")
    assert exactly(client, 1) == b"R"
    client.sendall(b"p anything")
    assert exactly(other, 10) == b"p anything"


def test_after_a_yes_only_a_hello_goes_on(named, server, closing) -> None:
    client = closing(named.connect())
    other = accept(server, closing)
    other.settimeout(SECONDS)
    client.sendall(SSL_REQUEST)
    assert exactly(other, 8) == SSL_REQUEST
    other.sendall(b"S")
    assert exactly(client, 1) == b"S"
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert refused(named) == "protocol not known"
    assert other.recv(1) == b""


def test_an_urgent_octet_can_not_cut_a_hello_short(rig, server, closing) -> None:
    client = closing(rig.connect())
    hello = records(hello_message(b"other.test"))
    client.sendall(hello[:3])
    client.send(hello[3:4], socket.MSG_OOB)
    client.sendall(hello[4:])
    [refused] = rig.wait_for(AccessDenied)  # within SECONDS: the deadline of a hello is thirty
    assert refused.hint == "ClientHello is not complete"
    assert rig.of(ConnectionOpened) == []


def test_nothing_within_the_host_is_paced(rig, server, closing) -> None:
    client = closing(rig.connect())
    client.sendall(b"\0")
    assert accept(server, closing).recv(1) == b"\0"
    connection = next(iter(rig.engine.connections))
    for end in (connection.client, connection.upstream):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_without_a_reader_connections_are_counted_only(server, closing) -> None:
    rig = closing(Rig(verbose=False))
    rig.router.target = server.getsockname()[1]
    with rig.connect() as client:
        client.sendall(b"\0x")
        other = accept(server, closing)
        assert other.recv(10) == b"\0x"
        client.shutdown(socket.SHUT_WR)
        assert other.recv(10) == b""
        other.close()
        assert client.recv(10) == b""
    rig.router.addresses, rig.router.host = ("192.0.2.1",), "b.test"
    assert_reset_at_once(rig)
    assert len(rig.wait_for(AccessDenied)) == 1
    assert [type(event) for event in rig.events] == [AccessDenied]
    assert (rig.engine.accepted, rig.engine.refused, rig.engine.pump.bytes_up) == (2, 1, 2)


def test_connections_end_with_the_engine(server, closing) -> None:
    rig = Rig()
    rig.router.target = server.getsockname()[1]
    client = closing(rig.connect())
    client.sendall(b"\0x")
    other = accept(server, closing)
    assert other.recv(10) == b"\0x"
    rig.close()
    assert client.recv(10) == b""
    closed = rig.of(ConnectionClosed)
    assert [(event.error, event.bytes_up) for event in closed] == [("session ended", 2)]
    assert rig.engine.connections == set()


def test_a_connection_leaves_no_cycle(rig, server, closing) -> None:
    """The process looks for garbage seldom: what a connection holds goes with it, whatever became of it."""

    def left() -> list[object]:
        found: list[object] = []
        done = threading.Event()

        def look() -> None:
            kinds = (relay_module.TcpConnection, dial.Dial, flow.Flow)
            found.extend(each for each in gc.get_objects() if isinstance(each, kinds))
            done.set()

        for call in (lambda: None, look):  # not in the turn in which one ended
            rig.reactor.post(call)
        assert done.wait(SECONDS)
        return found

    gc.collect()
    gc.disable()
    try:
        client = closing(rig.connect())
        client.sendall(b"\0x")
        other = accept(server, closing)
        assert other.recv(10) == b"\0x"
        assert left()  # the control
        client.shutdown(socket.SHUT_WR)
        other.close()
        rig.wait_for(ConnectionClosed)
        rig.router.addresses, rig.router.host = ("192.0.2.1",), "barred.test"
        assert_reset(closing(rig.connect()))
        rig.router.addresses, rig.router.host = (), "unknown.test"
        assert_reset(closing(rig.connect()))
        rig.wait_for(ConnectionClosed, 2)
        deadline = time.monotonic() + SECONDS
        while left() and time.monotonic() < deadline:
            pass
        assert left() == []
    finally:
        gc.enable()


def test_what_is_to_be_judged_is_never_relayed(rig, server, closing) -> None:
    """Also if, by a defect, nobody judges it any more."""
    ours, theirs = (closing(end) for end in socket.socketpair())
    upstream = closing(rig.connect())
    for inspect in (False, True):  # the first is the control
        connection = relay_module.TcpConnection(rig.engine, ours, (1, 0))
        connection.route = Route("a.test", "198.18.0.9", 80, 80, inspect=inspect, raw=True)
        theirs.sendall(b"x")
        if inspect:
            with pytest.raises(InternalError, match="to be judged"):
                connection.reached(upstream, 0, b"")
        else:
            connection.reached(upstream, 0, b"")
        assert (connection._down is None) is inspect
        rig.engine.connections.discard(connection)


def test_without_an_inspector_what_is_to_be_judged_is_refused(rig, server, monkeypatch) -> None:
    route = Route("a.test", "198.18.0.9", 80, rig.router.target, ("127.0.0.1",), inspect=True)
    monkeypatch.setattr(rig.router, "arrive", lambda _address, _port, _protocol="tcp": route)
    with rig.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403 ")
    [denied] = rig.wait_for(AccessDenied)
    assert denied.hint == "requests cannot be judged on this connection"
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.accept()
