"""``membrane trace watch``: a session while it runs.

Theory of operation
-------------------
On a terminal, and with Textual installed (``pip install 'membrane-sandbox[watch]'``), a full-screen view: what happens,
line by line, beside what it comes to so far.  Anywhere else the same lines as ``trace show``, as they come.  Both read
the record, so both see what will be kept, and a session that is over can be looked at too.  Text is made visible by
``trace_text``; the view never interprets markup in it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from ..record import export, joining, query, reader
from ..record.recorded import Recorded
from ..record.summary import colour as may_colour
from ..record.summary import shorten, size, tilde
from . import trace_text

if TYPE_CHECKING:
    from textual.app import App

REFRESH = 0.3  # seconds
MOST_LINES = 5000  # kept on the screen
WIDE_ENOUGH = 92  # columns for what is beside the events


def watch(entry: reader.Entry, wanted: query.Filter, home: str) -> int:
    """Show the session until it ends or the person leaves; the exit status."""
    if sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        try:
            import textual  # noqa: F401
        except ImportError:
            print("membrane: for a full-screen view: pip install 'membrane-sandbox[watch]'", file=sys.stderr)
        else:
            application(entry, wanted, home).run()
            return 0
    colour = may_colour(sys.stdout, os.environ)
    for event in query.chosen(export.arriving(entry.path), wanted):
        print(trace_text.event_line(event, colour), flush=True)
    return 0


class Arrivals:
    """The events of a growing record, summed up and chosen."""

    def __init__(self, entry: reader.Entry, wanted: query.Filter) -> None:
        self.summary = query.Summary()
        self.total = 0
        self._follower = reader.Follower(entry.path)
        self._joiner = joining.Joiner()
        self._chooser = query.Chooser(wanted)

    def poll(self) -> list[Recorded]:
        """The chosen ones of those that came since the last call."""
        out = []
        for event in self._follower.poll():
            joined = self._joiner.add(event)
            self.summary.add(joined)
            self.total += 1
            if self._chooser.takes(joined):
                out.append(joined)
        return out

    def running(self) -> bool:
        """Is it still written to?"""
        return not self._follower.ended()


def side_lines(arrivals: Arrivals, home: str) -> list[str]:
    """What is beside the events: counts, destinations, refusals, files."""
    data = arrivals.summary.data(running=True)
    lines = [f"{arrivals.total} events", ""]
    workspace = data["workspace"].rstrip("/") + "/" if data["workspace"] else ""

    def path(value: str, wide: int = 42) -> str:
        inside = workspace and value.startswith(workspace)
        return shorten(value[len(workspace) :] if inside else tilde(value, home), wide)

    def section(title: str, rows: list[str]) -> None:
        if not rows:
            return
        lines.append(title)
        lines.extend(f" {row}" for row in rows[:8])
        if len(rows) > 8:
            lines.append(f" ... and {len(rows) - 8} more")
        lines.append("")

    refused = [f"{path(row['target'], 34)} ({row['count']})" for row in data["refused"]]
    section("refused", refused)
    section(
        "connected to",
        [
            f"{shorten(row['host'], 30)}:{row['port']} {size(row['bytes_up'] + row['bytes_down'])}"
            for row in data["connections"]
        ],
    )
    section("may run later", [path(row["path"]) for row in data["left"]])
    section("written", [path(row["path"]) for row in data["written"]])
    section("programs", [f"{path(row['path'], 34)} ({row['count']})" for row in data["programs"]])
    return lines


def application(entry: reader.Entry, wanted: query.Filter, home: str) -> App[None]:
    """The full-screen view; ``run`` it."""
    from rich.text import Text
    from textual.app import App
    from textual.containers import Horizontal
    from textual.events import Resize
    from textual.widgets import Footer, Header, RichLog, Static

    class Watch(App[None]):
        TITLE = "membrane"
        SUB_TITLE = entry.id
        CSS = "#side { width: 46; height: 100%; padding: 0 1; border-left: solid gray; } #events { width: 1fr; }"
        ENABLE_COMMAND_PALETTE = False
        BINDINGS = [("q", "quit", "quit"), ("d", "toggle_denied", "refusals only"), ("p", "toggle_pause", "pause")]

        def __init__(self) -> None:
            super().__init__()
            self._arrivals = Arrivals(entry, wanted)
            self._lines: deque[tuple[bool, str]] = deque(maxlen=MOST_LINES)
            self._denied_only = self._paused = self._over = False

        def compose(self) -> Any:
            yield Header()
            with Horizontal():
                # Text objects only: a string would be read as markup.
                yield RichLog(id="events", max_lines=MOST_LINES, markup=False, highlight=False, wrap=False)
                yield Static(Text(""), id="side", markup=False)
            yield Footer()

        def on_mount(self) -> None:
            self.set_interval(REFRESH, self.look)
            self.look()

        def on_resize(self, event: Resize) -> None:
            """On a narrow terminal the events have all of it."""
            self.query_one("#side", Static).display = event.size.width >= WIDE_ENOUGH

        def look(self) -> None:
            """Take what is new."""
            if self._paused or self._over:
                return
            running = self._arrivals.running()
            log = self.query_one("#events", RichLog)
            for event in self._arrivals.poll():
                row = (query.is_denied(event), trace_text.event_line(event))
                self._lines.append(row)
                self._write(log, row)
            self.query_one("#side", Static).update(Text("\n".join(side_lines(self._arrivals, home))))
            if not running:
                self._over = True
                self.sub_title = f"{entry.id}: the session has ended"

        def _write(self, log: RichLog, row: tuple[bool, str]) -> None:
            denied, line = row
            if denied or not self._denied_only:
                log.write(Text(line, style="red" if denied else ""))

        def action_toggle_denied(self) -> None:
            """Show refusals only, or everything again."""
            self._denied_only = not self._denied_only
            log = self.query_one("#events", RichLog)
            log.clear()
            for row in self._lines:
                self._write(log, row)

        def action_toggle_pause(self) -> None:
            """Stand still, or go on."""
            self._paused = not self._paused
            if not self._over:
                self.sub_title = f"{entry.id}: paused" if self._paused else entry.id

    return Watch()
