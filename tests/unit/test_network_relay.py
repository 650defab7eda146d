"""The relay with a policy of the test's own: what goes wrong in one connection, and what never comes.

A listener on loopback stands for the sandbox's; the stub policy says where its connections go.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

import pytest

from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened
from membrane.network import relay as relay_module
from membrane.network.dns import Answerer, Names
from membrane.network.flow import Budget
from membrane.network.reactor import Reactor
from membrane.network.relay import Engine
from membrane.network.route import Relay, Router
from membrane.network.upstream import Answer, Resolver, Upstreams
from membrane.policy.model import Allow, Deny

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

    def arrive(self, address, port, protocol="tcp"):
        if self.failure is not None:
            raise self.failure
        return Relay(self.host, address, port, self.target)


class Rig:
    """An engine that runs in a thread of its own."""

    def __init__(self, **options) -> None:
        self.reactor = Reactor()
        self.router = StubRouter()
        self.events: list = []
        self.crashes: list[BaseException] = []
        self.told = threading.Condition()
        answerer = Answerer(Names(), lambda query: Allow(None, "ok"), self.emit)
        resolver = Resolver(self.reactor, lambda host: Answer(self.router.addresses, "no such name", 60), 10)
        budget = options.pop("budget", Budget())
        self.engine = Engine(
            self.reactor, self.router, answerer, Upstreams(resolver, resolver), self.emit, self.crashes.append,
            budget=budget, **options
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
            assert self.told.wait_for(lambda: len(self.of(kind)) >= count, 10), self.events
            return self.of(kind)

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), timeout=10)

    def close(self) -> None:
        self.reactor.post(lambda: (self.engine.close(), self.reactor.stop()))
        self.thread.join(10)
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
    made.settimeout(10)
    return made


@pytest.fixture
def rig(closing, server):
    made = closing(Rig())
    made.router.target = server.getsockname()[1]
    return made


def accept(server: socket.socket, closing) -> socket.socket:
    accepted, _peer = server.accept()
    accepted.settimeout(10)
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
    assert patched.wait(10)
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
    monkeypatch.setattr(relay_module, "CONNECT", 0.2)
    rig = closing(Rig())
    rig.router.target = server.getsockname()[1]
    client = closing(rig.connect())
    other = accept(server, closing)
    over = threading.Event()
    wait = rig.reactor.wait(0.3, lambda _item: over.set())
    rig.reactor.post(lambda: wait.begin(None))
    assert over.wait(10)
    other.sendall(b"x")
    assert client.recv(10) == b"x"


def test_an_address_that_does_not_answer_is_given_up(closing, server, monkeypatch) -> None:
    """The queue of a listener that nobody accepts from is full: the kernel drops further SYNs."""
    monkeypatch.setattr(relay_module, "ATTEMPT", 0.1)
    monkeypatch.setattr(relay_module, "CONNECT", 0.5)
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
    rig.engine.upstreams.resolver._look_up = lambda host: (gate.wait(10), Answer(("127.0.0.1",)))[1]
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
    thread.join(10)
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
    thread.join(10)
    assert got == data


def test_urgent_data_does_not_stop_the_stream(rig, server, closing) -> None:
    client = closing(rig.connect())
    client.sendall(b"\0before")
    other = accept(server, closing)
    assert other.recv(7, socket.MSG_WAITALL) == b"\0before"
    client.send(b"!", socket.MSG_OOB)
    client.sendall(b"after")
    assert other.recv(5, socket.MSG_WAITALL) == b"after"


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
