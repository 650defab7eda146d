"""UDP flows: their limit, their idle end, the upload limit, and what has to go through a proxy."""

from __future__ import annotations

import contextlib
import select
import socket

import pytest

from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened
from membrane.gateway import udp as udp_module
from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.destinations import Datagrams
from membrane.gateway.dns import Names
from membrane.gateway.reactor import Reactor
from membrane.gateway.route import Route, Router
from membrane.gateway.udp import UdpRelay
from membrane.gateway.upstream import Proxy, Resolved, Resolver, Upstreams
from membrane.host.datagrams import ASKED, CARRIED, message, parts
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, Origin, RuleBudget


class StubRouter(Router):
    """Every flow goes to ``a.test`` at ``target``."""

    target = 0

    budgets: tuple = ()

    def arrive(self, address, port, protocol="tcp"):
        return Route("a.test", address, port, self.target, (), protocol, budgets=self.budgets)


class Rig:
    """A relay driven by the test, turn by turn; loopback sockets on both sides."""

    def __init__(self, *, upload: int = 0, budgets: tuple = (), flows: int = 256, proxy: Proxy | None = None) -> None:
        self.reactor = Reactor()
        self.events: list = []
        self.crashes: list = []
        router = StubRouter(Names(), lambda access: Allow(None, "ok"))
        router.budgets = budgets
        resolver = Resolver(self.reactor, lambda host: Resolved(("127.0.0.1",), ttl=60), 10)
        numbers = iter(range(1, 1000))
        self.relay = UdpRelay(
            self.reactor, router, Upstreams(resolver, resolver, proxy), self.events.append, self.crashes.append,
            lambda: next(numbers), ledger=Ledger(Budget(upload), lambda: 0.0), flows=flows,
        )  # fmt: skip
        self.inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.inner.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        self.inner.bind(("127.0.0.1", 0))
        self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.server.bind(("127.0.0.1", 0))
        self.server.setblocking(False)
        router.target = self.server.getsockname()[1]
        self.relay.listen(self.inner, self.inner.getsockname()[1])
        self.clients: list[socket.socket] = []

    def client(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        made.connect(self.inner.getsockname())
        self.clients.append(made)
        return made

    def until(self, condition) -> None:
        for _ in range(1000):
            if condition():
                return
            self.reactor.turn(0.01)
        raise AssertionError(self.events)

    def received(self, reader: socket.socket) -> bytes:
        got: list[bytes] = []

        def arrived() -> bool:
            with contextlib.suppress(BlockingIOError):
                got.append(reader.recv(100))
            return bool(got)

        self.until(arrived)
        return got[0]

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.relay.close()
        self.reactor.close()
        for each in (self.inner, self.server, *self.clients):
            each.close()


@pytest.fixture
def rig_of():
    with contextlib.ExitStack() as stack:

        def make(**options) -> Rig:
            rig = Rig(**options)
            stack.callback(rig.close)
            return rig

        yield make


def test_datagrams_wait_for_the_look_up_and_arrive_in_order(rig_of) -> None:
    rig = rig_of()
    client = rig.client()
    for number in range(12):
        client.send(b"%d" % number)
    assert [rig.received(rig.server) for _ in range(8)] == [b"%d" % number for number in range(8)]
    client.send(b"last")
    assert rig.received(rig.server) == b"last"  # 8 to 11 were more than may wait
    assert rig.crashes == []


def test_the_limit_of_flows(rig_of) -> None:
    rig = rig_of(flows=2)
    clients = [rig.client() for _ in range(3)]
    for client in clients:
        client.send(b"x")
        rig.reactor.turn(1)
    rig.until(lambda: rig.of(AccessDenied))
    assert rig.of(AccessDenied)[0].reason == "limit reached"
    assert (rig.relay.opened, rig.relay.refused) == (2, 1)
    assert [rig.received(rig.server) for _ in range(2)] == [b"x", b"x"]


def test_a_flow_that_was_answered_gives_way(rig_of) -> None:
    """Most clients ask once from a socket: a resolver's are more in a minute than may be at once."""
    rig = rig_of(flows=2)
    silent = rig.client()
    silent.send(b"silent")
    assert rig.received(rig.server) == b"silent"
    for number in range(6):
        client = rig.client()
        client.send(b"%d" % number)
        data, source = None, None
        while data is None:
            rig.reactor.turn(0.01)
            with contextlib.suppress(BlockingIOError):
                data, source = rig.server.recvfrom(100)
        rig.server.sendto(data, source)
        assert rig.received(client) == b"%d" % number
    assert rig.of(AccessDenied) == []
    assert (rig.relay.opened, len(rig.relay._flows)) == (7, 2)  # the one without an answer has stayed
    silent.send(b"again")
    assert rig.received(rig.server) == b"again"


def test_a_flow_that_was_silent_for_a_while_gives_way(rig_of, monkeypatch) -> None:
    monkeypatch.setattr(udp_module, "GIVES_WAY", 0.0)
    rig = rig_of(flows=1)
    for text in (b"one", b"two"):
        rig.client().send(text)
        assert rig.received(rig.server) == text
    assert rig.of(AccessDenied) == []
    assert [closed.bytes_up for closed in rig.of(ConnectionClosed)] == [3]


def test_an_idle_flow_ends_and_begins_anew(rig_of, monkeypatch) -> None:
    monkeypatch.setattr(udp_module, "IDLE", 0.05)
    rig = rig_of()
    client = rig.client()
    for _ in range(2):
        rig.events.clear()
        client.send(b"one")
        assert rig.received(rig.server) == b"one"
        rig.until(lambda: rig.of(ConnectionClosed))
        closed = rig.of(ConnectionClosed)[0]
        assert (closed.bytes_up, closed.error) == (3, "")
        assert rig.of(ConnectionOpened)[0].id == closed.id
    assert rig.relay._flows == {}


def test_the_budget_of_a_rule_ends_its_flows(rig_of) -> None:
    rule = host_rule("a.test:7/udp", Origin("library", "test"), budget=RuleBudget(upload=5))
    rig = rig_of(budgets=(rule,))
    first, second = rig.client(), rig.client()
    first.send(b"123")
    assert rig.received(rig.server) == b"123"
    second.send(b"456")
    rig.until(lambda: rig.of(ConnectionClosed))
    denied = rig.of(AccessDenied)[0]
    assert (denied.reason, denied.rule) == ("limit reached", "a.test:7/udp (test)")
    assert denied.hint == "budget of a.test:7/udp: 5 bytes upwards in a session"
    assert denied.client_port == second.getsockname()[1]
    first.send(b"45")
    assert rig.received(rig.server) == b"45", "what was refused cost nothing"


def test_the_upload_limit_ends_the_flow(rig_of) -> None:
    rig = rig_of(upload=5)
    client = rig.client()
    client.send(b"12345")
    assert rig.received(rig.server) == b"12345"
    client.send(b"6")
    rig.until(lambda: rig.of(ConnectionClosed))
    assert rig.of(AccessDenied)[0].reason == "limit reached"
    assert rig.of(ConnectionClosed)[0].error == "upload limit reached"
    assert rig.relay.bytes_up == 5


def test_udp_does_not_go_round_a_proxy(rig_of) -> None:
    rig = rig_of(proxy=Proxy("http", "p.test", 1))
    rig.client().send(b"x")
    rig.until(lambda: rig.of(AccessDenied))
    denied = rig.of(AccessDenied)[0]
    assert (denied.reason, denied.hint) == ("port not allowed", "UDP cannot go through upstream_proxy")
    assert rig.relay.opened == 0


class StubAnswerer:
    def answer(self, query: bytes, _send, _asker) -> bytes:
        return b"answer to " + query


@pytest.fixture
def carried(rig_of):
    """A relay that is given datagrams one by one, as where no namespace captures them; ours is the command's end."""
    rig = rig_of()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    more = (rig.relay, StubAnswerer(), rig.crashes.append)
    Datagrams(rig.reactor, theirs, rig.relay._router, rig.events.append, *more)  # type: ignore[arg-type]
    with ours, theirs:
        yield rig, ours


@pytest.mark.parametrize("address", [b"\xc0\0\2\1", b"\x20\1\x0d\xb8" + bytes(11) + b"\1"])
def test_a_carried_datagram_goes_to_its_place_and_the_answer_comes_from_there(carried, address: bytes) -> None:
    rig, ours = carried
    ours.send(message(CARRIED, 7, address, 4433, b"one"))
    ours.send(message(CARRIED, 8, address, 4433, b"two"))
    clients = {}
    for _ in range(2):
        rig.until(lambda: select.select([rig.server], [], [], 0)[0])
        data, clients[data] = rig.server.recvfrom(100)
    assert clients[b"one"] != clients[b"two"], "each socket of the command has a flow of its own"
    rig.server.sendto(b"answer", clients[b"two"])
    assert parts(rig.received(ours)) == (CARRIED, 8, address, 4433, b"answer")
    assert [(each.protocol, each.port) for each in rig.of(ConnectionOpened)] == [("udp", 4433)] * 2
    assert not rig.crashes


def test_a_carried_query_is_answered_and_what_is_no_datagram_is_dropped(carried) -> None:
    rig, ours = carried
    ours.send(b"\xff")
    for kind in (CARRIED, ASKED):
        ours.send(message(kind, 7, b"\x7f\0\0\x35", 53, b"query"))
        assert parts(rig.received(ours)) == (CARRIED, 7, b"\x7f\0\0\x35", 53, b"answer to query")
    assert len(rig.crashes) == 1


def test_the_last_datagrams_of_a_sender_that_has_ended_are_carried(carried) -> None:
    """It had not read an answer: that is said once (ECONNRESET), before what it had sent."""
    rig, ours = carried
    ours.send(message(ASKED, 7, b"\x7f\0\0\x35", 53, b"query"))
    rig.until(lambda: select.select([ours], [], [], 0)[0])
    ours.send(message(CARRIED, 7, b"\xc0\0\2\1", 4433, b"last"))
    ours.close()
    assert rig.received(rig.server) == b"last" and not rig.crashes
