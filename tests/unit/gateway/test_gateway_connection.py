"""The life that all kinds of connections share: ended once, told once, and a defect ends one of them only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from membrane.events import ConnectionClosed, ConnectionOpened
from membrane.gateway.connection import SILENT, Connection, Connections, guarded
from membrane.gateway.reactor import Reactor


class Kind(Connection):
    """A connection that does nothing but live."""

    defect: Exception | None = None
    turns = released = 0

    def on_turn(self) -> None:
        self.turns += 1

    def _opening(self) -> ConnectionOpened:
        return ConnectionOpened(self.id, "test", "a.test", "", 1)

    def _release(self, error: str) -> None:
        self.released += 1
        if self.defect is not None:
            raise self.defect

    @guarded
    def do(self, call: Callable[[], Any]) -> None:
        call()

    def silence(self) -> None:
        self._reported = SILENT


class Rig:
    def __init__(self, **options: Any) -> None:
        self.reactor = Reactor()
        self.events: list[Any] = []
        self.crashes: list[BaseException] = []
        self.all = Connections(self.reactor, self.events.append, self.crashes.append, 2, **options)
        self.ends: list[socket.socket] = []

    def connection(self) -> tuple[Kind, socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.settimeout(60)
        self.ends += (ours, theirs)
        return Kind(self.all, ours), theirs

    def told(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def close(self) -> None:
        self.reactor.close()
        for end in self.ends:
            end.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_an_end_counts_once_and_closes_both_sides(rig: Rig) -> None:
    connection, client = rig.connection()
    connection.upstream, server = socket.socketpair()
    rig.ends.append(server)
    connection.emit_opened()
    connection.emit_opened()
    for error in ("first", "second"):
        connection.finish(error)
    connection.abort("third")
    rig.reactor.turn(0)
    assert (client.recv(1), server.recv(1)) == (b"", b"")
    assert rig.told() == ["ConnectionOpened", "ConnectionClosed"]
    assert (rig.events[1].error, connection.released, rig.all.connections) == ("first", 1, set())


def test_what_ends_untold_is_told_as_opened_first(rig: Rig) -> None:
    rig.connection()[0].finish("it was not reached")
    assert rig.told() == ["ConnectionOpened", "ConnectionClosed"]
    assert rig.events[0].id == rig.events[1].id


def test_what_has_the_event_of_its_refusal_is_not_told(rig: Rig) -> None:
    connection, _client = rig.connection()
    connection.silence()
    connection.emit_opened()
    connection.finish("refused")
    assert rig.told() == []


def test_nobody_reads_what_is_not_told() -> None:
    rig = Rig(verbose=False)
    connection, _client = rig.connection()
    connection.emit_opened()
    assert connection.reported
    connection.finish()
    assert not connection.reported
    assert rig.told() == []
    rig.close()


@pytest.mark.parametrize(
    ("error", "said", "defects"),
    [(BrokenPipeError(32, "Broken pipe"), "Broken pipe", 0), (KeyError(1), "internal error", 1)],
)
def test_an_exception_ends_its_connection_only(rig: Rig, error: Exception, said: str, defects: int) -> None:
    connection, _client = rig.connection()
    other, _its_client = rig.connection()

    def fail() -> None:
        raise error

    connection.do(fail)
    closed = [event for event in rig.events if isinstance(event, ConnectionClosed)]
    assert [(event.id, event.error) for event in closed] == [(connection.id, said)]
    assert (connection.dead, other.dead, len(rig.crashes)) == (True, False, defects)


def test_a_defect_at_the_end_leaves_no_socket_open(rig: Rig) -> None:
    connection, client = rig.connection()
    connection.defect = KeyError("planted")
    connection.do(connection.finish)
    rig.reactor.turn(0)
    assert client.recv(1) == b""
    assert (len(rig.crashes), rig.all.connections) == (1, set())


def test_a_busy_connection_gets_one_turn_for_all_that_it_asked_for(rig: Rig) -> None:
    connection, _client = rig.connection()
    other, _its_client = rig.connection()
    for each in (connection, other, connection):
        rig.all.busy(each)
    rig.reactor.turn(0)
    rig.reactor.turn(0)
    assert (connection.turns, other.turns) == (1, 1)


def test_all_end_with_their_owner(rig: Rig) -> None:
    for _ in range(3):
        rig.connection()
    rig.all.close()
    closed = [event for event in rig.events if isinstance(event, ConnectionClosed)]
    assert [(event.id, event.error) for event in sorted(closed, key=lambda event: event.id)] == [
        (number, "session ended") for number in (1, 2, 3)
    ]
