"""Other rules for an open sandbox: an update is done when the gateway has said so, and never before."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.api import supervisor, wire
from membrane.messages import Message


class Gateway:
    """One that takes what it is asked, or was not started yet."""

    def __init__(self, started: bool) -> None:
        self.started = started

    def sync(self, _number: int) -> bool:
        return self.started


class Asked(supervisor.Supervisor):
    """A supervisor that waits for a gateway, and does nothing else."""

    gateway: Any = None

    def __init__(self, *, started: bool = True) -> None:
        self.gateway = Gateway(started)
        self._main: Any = None
        self._syncs, self._sync_number, self._commands = {}, 0, {}
        self._holding: Any = type("Holding", (), {"due": 0.0})
        self.sent: list[Message] = []

    def _send(self, _client: Any, message: Message) -> None:
        self.sent.append(message)


def test_an_update_is_done_when_the_gateway_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    asked._confirm_update(7)
    now = asked._due() - supervisor.UPDATE
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now + 5)  # longer than a command's end waits for it
    asked._on_due()
    assert asked.sent == []
    asked._synced(asked._sync_number, "network")
    assert asked.sent == [wire.Updated(7)] and asked._due() == 0.0


def test_one_that_is_not_confirmed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    asked._confirm_update(7)
    due = asked._due()
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: due)
    asked._on_due()
    (answer,) = asked.sent
    assert isinstance(answer, wire.NotDone) and answer.number == 7
    assert "did not say within 30 s that it decides by the new rules" in str(answer.error)
    asked._synced(asked._sync_number, "network")  # too late
    assert len(asked.sent) == 1


def test_a_gateway_that_was_not_started_begins_with_the_new_rules() -> None:
    asked = Asked(started=False)
    asked._confirm_update(7)
    assert asked.sent == [wire.Updated(7)]
