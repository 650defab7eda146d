"""One line for each event: who, what, and how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from event_samples import sample
from membrane.events import EVENTS, encode
from membrane.record.recorded import parse
from membrane.ui.trace_text import event_line

SHELL = {"pid": 10, "start": 100, "name": "sh", "exe": "/bin/sh"}
HEAD = {"time": "2026-01-02T03:04:05.678901Z", "session": "s", "seq": 1, "source": "network", "process": None}

KEY = {"path": "~/.s", "operation": "sign", "names": ["me@host"]}
DNS = {"host": "h", "port": 53, "protocol": "udp"}


def line(name: str, process: Any = None, **fields: Any) -> str:
    return event_line(parse({"event": name, **HEAD, "process": process, **fields}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            line("ProcessStarted", SHELL, argv=["sh", "-c", "x"], cwd="/w", path="/bin/sh", requested=True),
            "03:04:05.678  sh[10]             ProcessStarted    sh -c x  in /w  (requested)",
        ),
        (
            line("ProcessExited", SHELL, exit_code=3, signal=0, duration_ms=20.9),
            "03:04:05.678  sh[10]             ProcessExited     exit 3 after 20 ms",
        ),
        (
            line("FileOpened", SHELL, path="/etc/shadow", flags=["rdonly", "nofollow"], result="EACCES"),
            "03:04:05.678  sh[10]             FileOpened        /etc/shadow  rdonly,nofollow  EACCES",
        ),
        (
            line("FileCreated", SHELL, path="/w/l", type="symlink", to="/etc"),
            "03:04:05.678  sh[10]             FileCreated       symlink /w/l -> /etc",
        ),
        (
            line("SocketCalled", SHELL, call="connect", family="inet6", address="2001:db8::1", port=80),
            "03:04:05.678  sh[10]             SocketCalled      connect inet6 [2001:db8::1]:80",
        ),
        (
            line("SocketCalled", SHELL, call="connect", family="unix", address="/run/x.sock"),
            "03:04:05.678  sh[10]             SocketCalled      connect unix /run/x.sock",
        ),
        (
            line("ConnectionClosed", id=7, bytes_up=1, bytes_down=2_500_000, error="reset"),
            "03:04:05.678  network            ConnectionClosed  #7  up 1 B, down 2.5 MB  reset",
        ),
        (
            line("AccessDenied", access={**DNS, "kind": "Connect"}, reason="no", hint="y", count=3),
            "03:04:05.678  network            AccessDenied      h:53/udp (3 times)  no  y",
        ),
        (
            line("AccessDenied", access={"kind": "SocketAccess", **KEY}, reason="refused", rule="r"),
            "03:04:05.678  network            AccessDenied      sign with me@host through ~/.s  refused  r",
        ),
        (
            line("AccessAnswered", access={"kind": "NameQuery", "name": "h"}, answer="once"),
            "03:04:05.678  network            AccessAnswered    h  once",
        ),
        (
            line("EventsLost", kind="network", count=0, start="a", end="b", cause="it was killed"),
            "03:04:05.678  network            EventsLost        perhaps some of network  it was killed",
        ),
        (
            line("EventsLost", kind="file", count=2, start="a", end="b"),
            "03:04:05.678  network            EventsLost        2 of file  a .. b",
        ),
        (line("FileFrozen", path="/w", result="EPERM"), "03:04:05.678  network            FileFrozen          EPERM"),
    ],
)  # fmt: skip
def test_what_a_line_says(text: str, shown: str) -> None:
    assert text == shown


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_has_a_line_that_steers_nothing(name: str) -> None:
    data = encode(sample(EVENTS[name]), time=HEAD["time"], session="s", seq=1)
    text = event_line(parse(data))
    assert text.isprintable() and text.startswith("03:04:05.678  ") and name[:18] in text
    assert len(text) > 60
    assert event_line(parse(data), colour=True).startswith("\x1b[")
