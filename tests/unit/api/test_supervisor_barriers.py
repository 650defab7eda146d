"""What was refused to a command of the library is in its result, however late it is told: a fact is waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from membrane.api import supervisor, wire
from membrane.messages import Message


class Source:
    """What the supervisor knows of the tracer or of the gateway; it says what a test has it say."""

    def __init__(self) -> None:
        self.pid, self.asked = 1, 0
        self.ours, self.theirs = socket.socketpair()
        self.control = self.ours.fileno()
        self.on_synced: Any = None
        self.packets = False
        self.words: list[Any] = []  # what follows when ``read`` is called, one after the other

    def sync(self, number: int) -> bool:
        self.asked = number
        return bool(self.pid)

    def has_packets(self) -> bool:
        return self.packets

    def read(self) -> bool:
        if not self.ours.recv(1):
            return False
        self.words.pop(0)()
        return True

    def say(self, *words: Any) -> None:
        self.words += words
        self.theirs.send(b"x" * len(words))


class Process:
    def __init__(self) -> None:
        self.ended = -1

    def fileno(self) -> int:
        return 77

    def close(self) -> None:
        pass


class Asked(supervisor.Supervisor):
    """A supervisor of one command that has ended, and of two sources."""

    gateway: Any = None

    def __init__(self) -> None:
        self.gateway, tracer = Source(), Source()
        self._gateway = self.gateway
        self._tracer: Any = tracer
        self._main: Any = None
        self._syncs, self._sync_number, self._commands = {}, 0, {}
        self._holding: Any = type("Holding", (), {"due": 0.0, "end": lambda _self: None})()
        self._handlers, self._lacking, self._lines, self._dropped = {}, [], [], 0
        self._wants_events, self._wanted, self._ready, self._door = False, [], [], None
        self.sent: list[Message] = []
        self.lacks: list[str] = []
        self.started = 0
        process: Any = Process()
        self.command: Any = supervisor._Command(process)
        client: Any = type("Client", (), {"commands": {}, "gone": False})()
        self.command.client = client
        self._commands[self.command.channel] = self.command

    def _send(self, _client: Any, message: Message) -> None:
        self.sent.append(message)

    def _unwatch(self, fd: int) -> None:
        pass

    def _feed(self) -> None:
        pass

    def _lacks(self, source: str, why: str) -> None:
        self._lacking.append(f"{source}: {why}")
        self.lacks.append(source)

    def _on_first_packet(self) -> None:
        self.started += 1
        self.gateway.pid = 1

    def refusal(self, path: str = "/x") -> None:
        event = {"event": "AccessDenied", "access": {"path": path}, "reason": "", "time": "", "count": 1}
        self._take_event(b"", event)

    @property
    def ended(self) -> wire.CommandEnded:
        (message,) = self.sent
        assert isinstance(message, wire.CommandEnded)
        return message


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    with made.gateway.ours, made.gateway.theirs, made._tracer.ours, made._tracer.theirs:
        yield made


@pytest.mark.parametrize("order", [("network", "tracer"), ("tracer", "network")])
def test_the_end_is_told_when_each_source_has_said_that_it_sent_all(
    asked: Asked, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked._on_end(asked.command)
    later = asked._due() - 1.0  # as long as that other programs had the processors
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: later)
    asked._on_due()
    for who in order:
        assert asked.sent == []
        asked.refusal(who)
        asked._synced(asked._sync_number, who)
    assert [each["access"]["path"] for each in asked.ended.denied] == list(order)
    assert asked.ended.lost == 0 and asked.lacks == []


def test_one_that_says_nothing_is_not_waited_for_without_an_end_and_that_is_told(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked._on_end(asked.command)
    asked._synced(asked._sync_number, "tracer")
    due = asked._due()
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: due)
    asked._on_due()
    assert asked.ended.lost == 1 and asked.lacks == ["network"]
    assert "did not say within 60 s that it has sent everything" in asked._lacking[0]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_gateway_that_was_not_started_is_for_what_has_arrived(asked: Asked, arrived: bool) -> None:
    asked.gateway.pid, asked.gateway.packets, asked._tracer.pid = 0, arrived, 0
    asked._on_end(asked.command)
    assert asked.started == arrived and bool(asked.sent) is not arrived
    if arrived:
        asked.refusal()
        asked._synced(asked._sync_number, "network")
    assert len(asked.ended.denied) == arrived


def test_also_the_end_of_a_sandbox_waits_for_what_was_refused(asked: Asked) -> None:
    number = asked._sync_number + 1
    asked.gateway.say(asked.refusal, lambda: asked._synced(number, "network"))
    asked._tracer.say(lambda: asked._synced(number, "tracer"))
    asked._after_processes()
    assert len(asked.ended.denied) == 1 and asked.ended.lost == 0
    assert os.WTERMSIG(asked.ended.status) == 9


def test_one_that_has_ended_is_not_waited_for_and_that_is_told(asked: Asked) -> None:
    number = asked._sync_number + 1
    asked._tracer.say(lambda: asked._synced(number, "tracer"))
    asked.gateway.theirs.close()
    asked._after_processes()
    assert asked.ended.lost == 1 and asked.lacks == ["network"]
