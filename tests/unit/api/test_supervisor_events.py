"""Events for the caller: what it does not take is dropped, counted, and told before the end, which always comes."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.api import supervisor, wire
from membrane.lines import parsed
from membrane.messages import Message


class Told(supervisor.Supervisor):
    """A supervisor whose caller takes nothing, and that does nothing else."""

    def __init__(self) -> None:
        self._main: Any = None
        self._commands = {}
        self._wants_events = True
        self._unsent, self._lines, self._dropped = 0, [], 0
        self.sent: list[dict[str, Any]] = []

    def _send(self, _client: Any, message: Message) -> None:
        assert isinstance(message, wire.EventLines)
        self.sent += [parsed(line) for line in message.lines]

    def happens(self, kind: str) -> None:
        self._take_event(b'{"event": "%s"}' % kind.encode(), {"event": kind})


def test_what_was_dropped_is_told_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MOST_WAITING", 100)
    told = Told()
    for _ in range(10):
        told.happens("FileOpened")
    told.happens("SessionEnded")
    told._turn()
    kinds = [event["event"] for event in told.sent]
    taken = kinds.count("FileOpened")
    assert 0 < taken < 10 and kinds[taken:] == ["EventsLost", "SessionEnded"]
    assert told.sent[taken]["count"] == 10 - taken


def test_nothing_is_said_to_be_lost_where_nothing_was() -> None:
    told = Told()
    told.happens("FileOpened")
    told.happens("SessionEnded")
    told._turn()
    assert [event["event"] for event in told.sent] == ["FileOpened", "SessionEnded"]
