"""gateway.proxy: what a client asks for is read exactly, decided, answered; hostile bytes end one client.

Real sockets over loopback; the test accepts in place of the sandbox's listener.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from membrane.events import AccessDenied
from membrane.gateway import proxy
from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.dns import Answerer, Names
from membrane.gateway.http.heads import Framing, RequestHead
from membrane.gateway.reactor import Reactor
from membrane.gateway.relay import Engine
from membrane.gateway.route import Router
from membrane.gateway.upstream import Resolved, Resolver, Upstreams
from membrane.plan.model import PROXY_PORTS, RESOLVER_V4
from membrane.policy.model import Allow, Deny

LONG = 10  # seconds
REQUEST = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.test:443", ("a.test", 443)),
        ("[::1]:8080", ("::1", 8080)),
        ("a.test", ("a.test", 80)),
        ("[::1]", ("::1", 80)),
        ("a.test:65535", ("a.test", 65535)),
    ]
    + [
        (text, ("", 0))
        for text in (
            *("", ":1", "a:", "a:0", "a:65536", "a:-1", "a:+1", "a: 1", "a:1x", "a:\u0661", "a:000001", "a:1:2"),
            *("[::1", "[::1]x:1", "[]:1", "[a]:1", "a b:1", "a\x7f:1", "a\r\n:1", "\xe4:1", "::1"),
        )
    ],
)
def test_an_authority(text: str, found: tuple[str, int]) -> None:
    assert proxy.split_authority(text, 80) == found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("http://a.test", ("a.test", 80, "/")),
        ("HTTP://a.test:81/x?y", ("a.test", 81, "/x?y")),
        ("http://a.test?y", ("a.test", 80, "/?y")),
    ]
    + [
        (target, ("", 0, ""))
        for target in ("/x", "*", "a.test:80", "https://a.test/", "ftp://a", "http://u@a.test/", "http://a/#f")
    ],
)
def test_the_target_of_a_plain_request(target: str, found: tuple[str, int, str]) -> None:
    host, port, path = proxy.plain_target(target)
    assert (host, port, path) == found or (port == 0 == found[1])


def test_a_head_is_written_anew_for_the_authority_that_was_decided() -> None:
    head = RequestHead()
    fields = b"Host: other.test\r\nProxy-Authorization: Basic eA==\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\n"
    fields += b"Upgrade: websocket\r\nX-Mine: 2\r\nTransfer-Encoding: chunked"
    head.read(b"POST http://a.test/x HTTP/1.1\r\n" + fields)
    out = proxy.rewrite(head, Framing(head), "2001:db8::1", 8080, "/x")
    assert out.split(b"\r\n") == [
        b"POST /x HTTP/1.1",
        b"Host: [2001:db8::1]:8080",
        b"X-Mine: 2",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"",
        b"",
    ]


# ---------------------------------------------------------------- clients


class Rig:
    """The proxies of an engine that runs in a thread of its own; ``a.test`` is allowed and lies on loopback."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.events: list[Any] = []
        self.crashes: list[BaseException] = []

        def decide(access: Any) -> Allow | Deny:
            host = getattr(access, "host", "") or getattr(access, "name", "")
            if host == "defect.test":
                raise ValueError("a defect")
            return Allow(None, "ok") if host == "a.test" else Deny(None, "not-listed")

        resolver = Resolver(self.reactor, lambda host: Resolved(("127.0.0.1",), "no such name", 60), 10)
        self.engine = Engine(
            self.reactor,
            Router(Names(), decide),
            Answerer(Names(), decide, self.events.append),
            Upstreams(resolver, resolver),
            self.events.append,
            self.crashes.append,
            ledger=Ledger(Budget(), lambda: self.reactor.now),
        )
        self.engine.proxies = self.proxies = proxy.Proxies(self.engine)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LONG)
        self.thread = threading.Thread(target=self.reactor.run)
        self.thread.start()

    def connect(self, port: int = PROXY_PORTS[0]) -> socket.socket:
        from _socket import socket as Socket

        client = socket.create_connection(self.listener.getsockname(), timeout=LONG)
        accepted, peer = self.listener.accept()
        accepted.setblocking(False)
        theirs = Socket(fileno=accepted.detach())
        self.call(lambda: self.proxies.takes(theirs, RESOLVER_V4, port, peer))
        return client

    def call(self, function: Any) -> None:
        """In the reactor's thread, to its end."""
        done = threading.Event()
        self.reactor.post(lambda: (function(), done.set()))
        assert done.wait(LONG)

    def close(self) -> None:
        self.reactor.post(lambda: (self.engine.close(), self.reactor.stop()))
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        self.reactor.close()
        self.listener.close()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def rig(stack: contextlib.ExitStack) -> Rig:
    made = Rig()
    stack.callback(made.close)
    return made


@pytest.fixture
def server(stack: contextlib.ExitStack) -> socket.socket:
    made = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    made.settimeout(LONG)
    return made


def accept(server: socket.socket, stack: contextlib.ExitStack) -> socket.socket:
    accepted, _peer = server.accept()
    accepted.settimeout(LONG)
    return stack.enter_context(accepted)


def exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := client.recv(count - len(data))):
        data += part
    return data


def to_the_end(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(4096):
        data += part
    return data


@pytest.mark.parametrize("port", PROXY_PORTS)
def test_connect_carries_what_comes_behind_the_head(
    port: int, rig: Rig, server: socket.socket, stack: contextlib.ExitStack
) -> None:
    client = stack.enter_context(rig.connect(port))
    client.sendall(b"CONNECT a.test:%d HTTP/1.1\r\n\r\n" % server.getsockname()[1] + REQUEST)
    other = accept(server, stack)
    assert exactly(client, len(proxy._OPEN)) == proxy._OPEN
    assert exactly(other, len(REQUEST)) == REQUEST
    other.sendall(b"answer")
    assert exactly(client, 6) == b"answer"


@pytest.mark.parametrize("method", [0, 2])
def test_socks_byte_by_byte(method: int, rig: Rig, server: socket.socket, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())

    def say(data: bytes, answer: bytes) -> None:
        for byte in data:
            client.sendall(bytes((byte,)))
        assert exactly(client, len(answer)) == answer

    say(bytes((5, 1, method)), bytes((5, method)))
    if method:
        say(b"\1\4user\0", b"\1\0")
    port = server.getsockname()[1].to_bytes(2, "big")
    for byte in b"\5\1\0\3\6a.test" + port:
        client.sendall(bytes((byte,)))
    other = accept(server, stack)
    assert exactly(client, 10) == proxy._reply(0)
    client.sendall(REQUEST)
    assert exactly(other, len(REQUEST)) == REQUEST


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"\3\x09evil.test\1\xbb", 2),
        (b"\1\x7f\0\0\1\0\x50", 2),
        (b"\4" + bytes(15) + b"\1\0\x50", 2),
        (b"\3\0\0\x50", 2),
        (b"\7xxxx", 8),
    ],
)
def test_socks_refusals(request_: bytes, answer: int, rig: Rig, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    client.sendall(b"\5\1\0\5\1\0" + request_)
    assert to_the_end(client) == b"\5\0" + proxy._reply(answer)


@pytest.mark.parametrize("command", [2, 3])
def test_socks_knows_one_command(command: int, rig: Rig, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    client.sendall(b"\5\1\0" + bytes((5, command, 0)) + b"\3\6a.test\0\x50")
    assert to_the_end(client) == b"\5\0" + proxy._reply(7)


def test_socks_without_a_method_of_ours(rig: Rig, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    client.sendall(b"\5\1\1")
    assert to_the_end(client) == b"\5\xff"


def test_a_refusal_is_answered_and_one_event(rig: Rig, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    client.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
    answer = to_the_end(client)
    assert answer.startswith(b"HTTP/1.1 403 ") and b"\r\nx-proxy-error: blocked-by-allowlist\r\n" in answer
    (event,) = rig.events
    assert isinstance(event, AccessDenied) and event.access["host"] == "evil.test"
    assert event.client_port == client.getsockname()[1]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\0",
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"CONNECT a.test HTTP/1.1\r\n\r\n",
        b"CONNECT a.test:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\n folded: x\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"G" * proxy.LONGEST_HEAD,
    ],
)
def test_hostile_bytes_are_a_bad_request(data: bytes, rig: Rig, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    client.sendall(data)
    assert to_the_end(client).startswith(b"HTTP/1.1 400 ")
    assert rig.events == [] == rig.crashes


def test_one_request_for_each_client(rig: Rig, server: socket.socket, stack: contextlib.ExitStack) -> None:
    client = stack.enter_context(rig.connect())
    port = server.getsockname()[1]
    head = b"POST http://a.test:%d/x HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 4\r\n\r\n" % port
    client.sendall(head + b"body" + b"GET http://evil.test/ HTTP/1.1\r\n\r\n")
    other = accept(server, stack)
    expected = b"POST /x HTTP/1.1\r\nHost: a.test:%d\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody" % port
    assert exactly(other, len(expected)) == expected
    other.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
    other.shutdown(socket.SHUT_WR)
    assert to_the_end(client) == b"HTTP/1.1 204 No Content\r\n\r\n"
    with contextlib.suppress(ConnectionResetError):
        assert to_the_end(other) == b""  # the second request reached nobody


def test_what_cannot_be_reached_is_said(rig: Rig, stack: contextlib.ExitStack) -> None:
    silent = stack.enter_context(socket.socket())
    silent.bind(("127.0.0.1", 0))  # so that nothing else listens there meanwhile
    port = silent.getsockname()[1]
    client = stack.enter_context(rig.connect())
    client.sendall(b"CONNECT a.test:%d HTTP/1.1\r\n\r\n" % port)
    assert to_the_end(client).startswith(b"HTTP/1.1 502 ")


def test_a_defect_is_one_clients_end(rig: Rig, stack: contextlib.ExitStack) -> None:
    first, second = (stack.enter_context(rig.connect()) for _ in range(2))
    first.sendall(b"CONNECT defect.test:1 HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        first.recv(1)
    assert [str(crash) for crash in rig.crashes] == ["a defect"]
    second.sendall(b"CONNECT evil.test:1 HTTP/1.1\r\n\r\n")
    assert to_the_end(second).startswith(b"HTTP/1.1 403 ")


def test_who_goes_away_or_says_nothing_is_forgotten(
    rig: Rig, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = rig.connect()
    early.sendall(b"CONNECT a.te")
    early.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        early.recv(1)
    early.close()
    monkeypatch.setattr(proxy, "GREETING", 0.01)
    rig.call(lambda: setattr(rig, "proxies", proxy.Proxies(rig.engine)))
    silent = stack.enter_context(rig.connect())
    with pytest.raises(ConnectionResetError):
        silent.recv(1)
    rig.call(lambda: None)
    assert rig.proxies.clients == set()


def test_too_many_are_reset(rig: Rig, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_CLIENTS", 1)
    first, second = (stack.enter_context(rig.connect()) for _ in range(2))
    with pytest.raises(ConnectionResetError):
        second.recv(1)
    first.sendall(b"\5\1\0")
    assert exactly(first, 2) == b"\5\0"


@pytest.mark.parametrize(("address", "port"), [("198.18.0.2", PROXY_PORTS[0]), (RESOLVER_V4, 80)])
def test_other_destinations_are_not_the_proxies(address: str, port: int, rig: Rig) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not rig.proxies.takes(theirs, address, port, ("127.0.0.1", 1))
