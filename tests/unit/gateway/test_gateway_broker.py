"""Connections to a unix socket of the host: what is judged, when both sides end, and what is told of it."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened
from membrane.gateway.adapters import Asked
from membrane.gateway.broker import Broker
from membrane.gateway.budgets import Budget
from membrane.gateway.memory import MemoryBudget
from membrane.gateway.reactor import Reactor
from membrane.policy import reasons
from membrane.policy.model import Allow, Ask, Deny, Origin, SocketAccess, SocketRule

RULE = SocketRule("/run/service.sock", Origin("command line", "test"))


class Approvals:
    """Keeps questions."""

    def __init__(self) -> None:
        self.questions: list[Callable[[Any], None]] = []

    def ask(self, _access: Any, _hint: str, done: Callable[[Any], None], _client: Any) -> None:
        self.questions.append(done)


class Rig:
    """A service of the host and the listener of the view, driven turn by turn."""

    def __init__(self, place: Path, *, upload: int = 0, connections: int = 8, owner: int | None = None) -> None:
        self.reactor, self.memory = Reactor(), MemoryBudget()
        self.events: list[Any] = []
        self.crashes: list[BaseException] = []
        self.verdict: Allow | Deny | Ask = Allow(None, "ok")
        numbers = count(1)
        self.broker = Broker(
            self.reactor, lambda _access: self.verdict, self.events.append, self.crashes.append, lambda: next(numbers),
            budget=Budget(upload), connections=connections, memory=self.memory,
        )  # fmt: skip
        self.ends: list[socket.socket] = []
        self.service, self.view = self._listen(place / "service"), self._listen(place / "view")
        self.path = str(place / "service")
        self.broker.listen(self.view, RULE, self.path, os.getuid() if owner is None else owner)

    def _listen(self, path: Path) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(path))
        made.listen()
        made.settimeout(60)
        self.ends.append(made)
        return made

    def until(self, done: Callable[[], object]) -> None:
        for _ in range(1000):
            if done():
                return
            self.reactor.turn(0.01)
        raise AssertionError(self.events)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(self.view.getsockname())
        self.ends.append(client)
        return client

    def carried(self) -> tuple[socket.socket, socket.socket]:
        client, opened = self.connect(), len(self.of(ConnectionOpened))
        self.until(lambda: len(self.of(ConnectionOpened)) > opened)
        server, _peer = self.service.accept()
        server.settimeout(60)
        self.ends.append(server)
        return client, server

    def ended(self) -> Any:
        self.until(lambda: self.of(ConnectionClosed))
        self.reactor.turn(0)
        return self.of(ConnectionClosed)[0]

    def close(self) -> None:
        self.broker.close()
        self.reactor.close()
        for end in self.ends:
            end.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_bytes_are_carried_and_each_end_is_passed_on(rig: Rig) -> None:
    client, server = rig.carried()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    rig.until(lambda: rig.broker.bytes_up)
    rig.reactor.turn(0.01)
    assert server.recv(100) + server.recv(100) == b"question"
    server.sendall(b"an answer!")
    server.close()
    closed = rig.ended()
    assert client.recv(100) + client.recv(100) == b"an answer!"
    assert (closed.bytes_up, closed.bytes_down, closed.error) == (8, 10, "")
    [opened] = rig.of(ConnectionOpened)
    assert (opened.id, opened.protocol, opened.host) == (closed.id, "unix", RULE.path)
    assert (rig.memory.held, rig.broker.connections, rig.crashes) == (0, set(), [])


def test_what_the_policy_denies_never_reaches_the_service(rig: Rig) -> None:
    rig.verdict = Deny(None, reasons.SOCKET_NOT_ALLOWED)
    client = rig.connect()
    rig.until(lambda: rig.of(AccessDenied))
    assert client.recv(1) == b""
    assert rig.of(ConnectionOpened) == []
    rig.service.settimeout(0)
    with pytest.raises(BlockingIOError):
        rig.service.accept()


def test_one_too_many_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, connections=1)
    rig.carried()
    client = rig.connect()
    rig.until(lambda: rig.of(AccessDenied))
    assert client.recv(1) == b""
    assert rig.of(AccessDenied)[0].reason == reasons.LIMIT_REACHED
    rig.close()


def test_a_socket_of_another_owner_is_not_the_one_of_the_plan(tmp_path: Path) -> None:
    rig = Rig(tmp_path, owner=os.getuid() + 1)
    client = rig.connect()
    assert rig.ended().error == f"it belongs to uid {os.getuid()} now"
    assert client.recv(1) == b""
    assert rig.broker.failed == 1
    rig.close()


def test_a_link_in_its_place_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    os.rename(rig.path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", rig.path)
    client = rig.connect()
    assert rig.ended().error == "it is no socket any more"
    assert client.recv(1) == b""


def test_a_service_that_is_not_there_leaves_no_descriptor_open(rig: Rig) -> None:
    rig.service.close()  # its name stays
    connections = 3
    gc.collect()  # what other tests left is not closed in the middle of this one
    before = len(os.listdir("/proc/self/fd"))
    clients = [rig.connect() for _ in range(connections)]
    rig.until(lambda: len(rig.of(ConnectionClosed)) == connections)
    rig.reactor.turn(0)
    assert {event.error for event in rig.of(ConnectionClosed)} == {"Connection refused"}
    assert len(os.listdir("/proc/self/fd")) == before + len(clients)


def test_more_than_the_budget_does_not_go_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path, upload=4)
    client, server = rig.carried()
    client.sendall(b"12345")
    assert rig.ended().error == "upload limit reached"
    assert rig.of(AccessDenied)[0].reason == reasons.LIMIT_REACHED
    assert server.recv(10) == b""
    rig.close()


def test_a_defect_of_an_adapter_ends_its_connection_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _server = rig.carried()
    second, server = rig.carried()
    [connection] = [each for each in rig.broker.connections if each.id == 1]

    def broken(_data: bytes) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(connection, "_adapter", type("Broken", (), {
        "from_client": staticmethod(broken), "over": staticmethod(lambda: False), "parked": False,
        "up": bytearray(), "down": bytearray(), "waiting": staticmethod(lambda: False),
    }))  # fmt: skip
    first.sendall(b"x")
    assert rig.ended().error == "internal error"
    assert len(rig.crashes) == 1
    second.sendall(b"y")
    rig.until(lambda: rig.broker.bytes_up > 1)
    rig.reactor.turn(0.01)
    assert server.recv(10) == b"y"


def test_a_question_is_asked_with_the_operation_and_no_is_a_refusal(rig: Rig) -> None:
    client, _server = rig.carried()
    rig.broker.approvals = approvals = Approvals()  # type: ignore[assignment]
    rig.verdict = Ask(reasons.SOCKET_NOT_ALLOWED, "unix_sockets: [...]")
    [connection] = rig.broker.connections
    with pytest.raises(Asked):
        connection._judge("sign", ("key",))  # type: ignore[attr-defined]
    assert len(approvals.questions) == 1
    assert rig.of(AccessDenied) == []
    rig.verdict = Deny(None, reasons.SOCKET_NOT_ALLOWED)  # as it is decided from then on
    approvals.questions[0](None)
    assert not connection._judge("sign", ("key",))  # type: ignore[attr-defined]
    denied = rig.of(AccessDenied)[0]
    assert (denied.access["operation"], denied.reason) == ("sign", reasons.SOCKET_NOT_ALLOWED)
    assert client.fileno() >= 0
    assert SocketAccess(RULE.path, "sign", ("key",)) not in connection._answers  # type: ignore[attr-defined]
