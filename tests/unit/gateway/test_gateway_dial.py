"""A dial has exactly one end, judges each address before it is dialled, and is silent once it was called off."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from membrane.gateway.dial import Dial, Dialler
from membrane.gateway.dns import Names
from membrane.gateway.reactor import Reactor
from membrane.gateway.route import Refusal, Route, Router
from membrane.gateway.upstream import Proxy, Resolved, Resolver, Upstreams
from membrane.policy.model import Allow, Connect, Deny

FORBIDDEN = "192.0.2.1"


class Owner:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.address = ""
        self.heard: list[Any] = []
        self.rest = b""
        self.socket: socket.socket | None = None

    def reached(self, upstream: Any, _mask: int, rest: bytes) -> None:
        self.heard.append("reached")
        self.socket, self.rest = upstream, rest

    def unreached(self, reason: str) -> None:
        self.heard.append(f"unreached: {reason}")

    def barred(self, refusal: Refusal) -> None:
        self.heard.append(f"barred: {refusal.event.access['address']}")

    def failed(self, error: Exception) -> None:
        self.heard.append(error)


class Rig:
    def __init__(self) -> None:
        self.reactor = Reactor()
        self.answer = Resolved(("127.0.0.1",))
        self.asked: list[Any] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(60)
        self.port = self.server.getsockname()[1]
        self.proxy: Proxy | None = None

    def decide(self, access: Any) -> Allow | Deny:
        self.asked.append(access)
        return Deny(None, "no") if access.address == FORBIDDEN else Allow(None, "ok")

    def dial(self, *addresses: str) -> tuple[Dial, Owner]:
        owner = Owner()
        resolver = Resolver(self.reactor, lambda _host: self.answer, 10)
        self.dialler = Dialler(self.reactor, Upstreams(resolver, resolver, self.proxy))
        route = Route("a.test", "198.18.0.9", 443, self.port, addresses)
        dial = Dial(self.dialler, owner, route, Router(Names(), self.decide))
        dial.begin()
        return dial, owner

    def until(self, done: Callable[[], object]) -> None:
        for _ in range(1000):
            if done():
                return
            self.reactor.turn(0.01)
        raise AssertionError("it did not come to that")

    def until_heard(self, owner: Owner) -> list[Any]:
        self.until(lambda: owner.heard)
        self.reactor.turn(0)
        return owner.heard


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.reactor.close()
    made.server.close()


def test_the_server_is_reached_by_the_address_that_is_allowed(rig: Rig) -> None:
    rig.answer = Resolved((FORBIDDEN, "127.0.0.1"))
    _dial, owner = rig.dial()
    assert rig.until_heard(owner) == ["reached"]
    assert owner.address == "127.0.0.1"
    assert [access.address for access in rig.asked if isinstance(access, Connect)] == [FORBIDDEN, "127.0.0.1"]
    assert owner.socket is not None
    owner.socket.close()


def test_a_name_of_which_no_address_is_allowed_is_barred_and_nothing_dialled(rig: Rig) -> None:
    rig.answer = Resolved((FORBIDDEN,))
    _dial, owner = rig.dial()
    assert rig.until_heard(owner) == [f"barred: {FORBIDDEN}"]
    assert owner.address == ""
    assert not rig.dialler.connect.waiting()


def test_each_address_that_failed_is_in_the_reason(rig: Rig) -> None:
    rig.server.close()
    rig.answer = Resolved(("127.0.0.1", "127.0.0.2"))
    _dial, owner = rig.dial()
    assert rig.until_heard(owner) == ["unreached: connection refused by 127.0.0.1; connection refused by 127.0.0.2"]


def test_a_name_that_does_not_exist_is_unreached(rig: Rig) -> None:
    rig.answer = Resolved((), "no such name: a.test")
    _dial, owner = rig.dial()
    assert rig.until_heard(owner) == ["unreached: no such name: a.test"]


def test_one_that_was_called_off_is_silent(rig: Rig) -> None:
    dial, owner = rig.dial()
    dial.end()
    dial.end()
    other = rig.dial()[1]  # its control: the same look-up, told
    assert rig.until_heard(other) == ["reached"]
    assert other.socket is not None
    other.socket.close()
    assert owner.heard == []


def test_what_was_called_off_while_it_connects_is_closed(rig: Rig) -> None:
    dial, owner = rig.dial("127.0.0.1", "127.0.0.2")
    assert rig.dialler.connect.has(dial) and rig.dialler.attempt.has(dial)
    dial.end()
    rig.reactor.turn(0)
    server, _peer = rig.server.accept()
    with server:
        server.settimeout(60)
        assert server.recv(1) == b""
    assert not rig.dialler.connect.has(dial) and not rig.dialler.attempt.has(dial)
    assert owner.heard == []


def test_what_follows_a_proxys_answer_belongs_to_the_client(rig: Rig) -> None:
    rig.proxy = Proxy("http", "127.0.0.1", rig.port)
    _dial, owner = rig.dial()
    rig.until(lambda: select.select([rig.server], [], [], 0)[0])
    proxy, _peer = rig.server.accept()
    with proxy:
        proxy.settimeout(60)
        rig.until(lambda: select.select([proxy], [], [], 0)[0])
        assert proxy.recv(1000).startswith(b"CONNECT a.test:%d HTTP/1.1\r\n" % rig.port)
        assert owner.heard == []  # a connection to the proxy is none to the server
        proxy.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
        assert rig.until_heard(owner) == ["reached"]
    assert owner.rest == b"hello"
    assert [access.address for access in rig.asked if isinstance(access, Connect)] == []
    assert owner.socket is not None
    owner.socket.close()


def test_a_defect_in_the_decision_ends_the_connection_that_dials(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_access: Any) -> Allow:
        raise KeyError("planted")

    monkeypatch.setattr(rig, "decide", broken)
    _dial, owner = rig.dial()
    [error] = rig.until_heard(owner)
    assert isinstance(error, KeyError)


def test_a_proxys_socket_that_is_not_there_is_unreached(rig: Rig, tmp_path: Any) -> None:
    rig.proxy = Proxy("http", "", 0, socket=str(tmp_path / "none"), owner=0)
    _dial, owner = rig.dial()
    assert rig.until_heard(owner) == ["unreached: proxy: openat2: No such file or directory"]
