"""``membrane trace watch``: what arrives, what is beside it, and the full-screen view, on a record that grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.events import AccessDenied, SessionEnded, SessionStarted, encode
from membrane.record import query, reader, writer
from membrane.ui import trace_watch

SESSION = "a" * 16
ALL = query.Filter()


class Growing:
    """A record that a session writes."""

    def __init__(self, place: Path) -> None:
        self.path = writer.make(str(place), SESSION)
        self._writer, self._number = writer.Writer(self.path, "session"), 0
        self.add(SessionStarted("1", ("make",), "/w", "d", (), (), "network", "u"))

    def add(self, event: Any) -> None:
        line = encode(event, time=f"2026-01-02T03:04:{self._number:02}.000Z", session=SESSION, seq=self._number)
        self._number += 1
        self._writer.append(json.dumps(line).encode() + b"\n")

    def refuse(self, host: str) -> None:
        self.add(AccessDenied({"kind": "Connect", "host": host, "port": 443}, "not-listed", None, None))

    def end(self) -> None:
        self.add(SessionEnded(0, 0, 1.0, {}, 1, 0))
        self.close()

    def close(self) -> None:
        self._writer.close()

    @property
    def entry(self) -> reader.Entry:
        return reader.Entry(SESSION, self.path, 0, True)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Growing]:
    made = Growing(tmp_path)
    yield made
    made.close()


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


def test_each_event_arrives_once_and_only_what_is_chosen(record: Growing) -> None:
    everything, refusals = (
        trace_watch.Arrivals(record.entry, ALL),
        trace_watch.Arrivals(record.entry, query.Filter(denied=True)),
    )
    assert kinds(everything.poll()) == ["SessionStarted"] and everything.poll() == []
    record.refuse("a.example")
    assert kinds(everything.poll()) == ["AccessDenied"] and kinds(refusals.poll()) == ["AccessDenied"]
    assert refusals.total == 2, "what is not chosen counts for the sums"
    assert everything.running()
    record.end()
    assert kinds(everything.poll()) == ["SessionEnded"] and not everything.running()


def test_what_is_beside_is_short_escaped_and_says_what_it_leaves_out(record: Growing) -> None:
    arrivals = trace_watch.Arrivals(record.entry, ALL)
    for number in range(12):
        record.refuse(f"h{number:02}.example")
    record.refuse("x\x1b[2J")
    arrivals.poll()
    lines = trace_watch.side_lines(arrivals, "/home/me")
    at = lines.index("refused")
    assert lines[at + 9] == " ... and 5 more"
    assert all(line.isprintable() for line in lines) and "\x1b" not in "".join(lines)


def test_away_from_a_terminal_it_prints_until_the_end(record: Growing, capfd: pytest.CaptureFixture[str]) -> None:
    record.refuse("a.example")
    record.end()
    assert trace_watch.watch(record.entry, query.Filter(denied=True), "/home/me") == 0
    out = capfd.readouterr().out
    assert len(out.splitlines()) == 1 and "a.example" in out


def test_the_view_shows_hides_stands_and_goes_on(record: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_watch, "REFRESH", 3600)  # it looks when the test says so
    app: Any = trace_watch.application(record.entry, ALL, "/home/me")

    async def use() -> None:
        from textual.widgets import RichLog

        async with app.run_test(size=(140, 30)) as pilot:
            log = app.query_one("#events", RichLog)

            def shown() -> list[str]:
                return [strip.text for strip in log.lines]

            record.refuse("[red]a.example[/red]")
            app.look()
            await pilot.pause()
            assert len(shown()) == 2 and "[red]a.example[/red]" in shown()[1], "no markup"
            assert app.query_one("#side").display
            await pilot.press("d")
            assert len(shown()) == 1 and "a.example" in shown()[0]
            await pilot.press("d")
            assert len(shown()) == 2
            await pilot.press("p")
            record.refuse("b.example")
            app.look()
            assert len(shown()) == 2 and app.sub_title == f"{SESSION}: paused"
            await pilot.press("p")
            record.end()
            app.look()
            await pilot.pause()
            assert len(shown()) == 4 and app.sub_title == f"{SESSION}: the session has ended"
            await pilot.resize_terminal(60, 30)
            await pilot.pause()
            assert not app.query_one("#side").display

    asyncio.run(use())
