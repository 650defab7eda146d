"""The full-screen view of a record, driven by Textual's pilot (no terminal)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import RichLog, Static

from membrane.record import query, reader, writer
from membrane.ui import trace_watch

SECONDS = 60.0
SIZE = (140, 40)
SHELL = {"pid": 7, "start": 1, "name": "sh", "exe": "/bin/sh"}


def event(number: int, kind: str, process: Any = SHELL, /, **fields: Any) -> bytes:
    stamp = f"2026-01-02T03:04:05.{number:06}Z"
    common = {"time": stamp, "session": "s", "seq": number, "event": kind, "source": "notify", "process": process}
    return json.dumps({**common, **fields}).encode() + b"\n"


STARTED = event(1, "SessionStarted", None, command=["sh"], workspace="/w", trace_source="notify, network")
OPENED = event(2, "FileOpened", path="/w/Makefile", flags=["wronly"], result="")
REFUSED = event(
    3,
    "AccessDenied",
    access={"kind": "Connect", "host": "[bold]no.example[/]\x1b[31m", "port": 443, "protocol": "tcp"},
    reason="name not allowed",
    rule=None,
    hint=None,
    count=1,
)
ENDED = event(4, "SessionEnded", None, exit_code=0, signal=0, duration_ms=5, counts={}, denied=1, lost=0)


class View:
    """The application over a record that grows."""

    def __init__(self, state: Path) -> None:
        self.writer = writer.Writer(writer.make(str(state), "aa11"), "session")
        self.writer.append(STARTED)
        self.app = trace_watch.application(reader.find(str(state), "@last"), query.Filter(), "/home/u")

    def log(self) -> list[str]:
        return [line.text.rstrip() for line in self.app.query_one("#events", RichLog).lines]

    def side(self) -> str:
        return str(self.app.query_one("#side", Static).render())

    async def until(self, pilot: Any, done: Any) -> None:
        async def wait() -> None:
            while not done():
                await pilot.pause(0.02)

        await asyncio.wait_for(wait(), SECONDS)


def test_events_come_in_and_can_be_narrowed_and_held(tmp_path: Path) -> None:
    view = View(tmp_path)

    async def drive() -> None:
        async with view.app.run_test(size=SIZE) as pilot:
            await view.until(pilot, lambda: len(view.log()) == 1)
            view.writer.append(OPENED + REFUSED)
            await view.until(pilot, lambda: len(view.log()) == 3)
            assert "/w/Makefile  wronly" in view.log()[1] and "AccessDenied" in view.log()[2]
            side = view.side()
            assert side.startswith("3 events")
            assert "may run later\n Makefile" in side and "connected to" not in side
            # Text from inside is no markup and steers nothing.
            assert "[bold]no.example[/]\\u{1b}[31m" in view.log()[2] and "[bold]no.example[/]" in side
            assert "\x1b" not in view.app.export_screenshot()
            await pilot.press("d")
            await view.until(pilot, lambda: len(view.log()) == 1)
            assert "AccessDenied" in view.log()[0]
            await pilot.press("d", "p")
            await view.until(pilot, lambda: len(view.log()) == 3)
            assert view.app.sub_title == "aa11: paused"
            view.writer.append(ENDED)
            view.writer.close()
            await pilot.pause(2 * trace_watch.REFRESH)
            assert len(view.log()) == 3
            await pilot.press("p")
            await view.until(pilot, lambda: len(view.log()) == 4)
            assert view.app.sub_title == "aa11: the session has ended"
            await pilot.press("q")

    asyncio.run(drive())
    assert view.app.return_code == 0


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
def test_every_size_of_terminal_has_the_events(tmp_path: Path, size: tuple[int, int]) -> None:
    view = View(tmp_path)
    view.writer.append(OPENED)
    view.writer.close()

    async def drive() -> None:
        async with view.app.run_test(size=size) as pilot:
            await view.until(pilot, lambda: len(view.log()) == 2)
            log, side = view.app.query_one("#events", RichLog), view.app.query_one("#side", Static)
            assert log.region.width >= size[0] // 2
            assert side.display is (size[0] >= trace_watch.WIDE_ENOUGH)
            await pilot.press("q")

    asyncio.run(drive())
