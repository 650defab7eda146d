"""The time of events: read once, and never again from a clock that somebody may set."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path

import pytest

import membrane
from membrane import clock
from membrane.gateway.event_queue import EventQueue
from membrane.record import reader
from membrane.record import writer as record
from membrane.run import event_log

HOUR = 3_600_000_000_000  # ns
# Who asks for the time of day, and what for: nothing of it is in a record.
TIME_OF_DAY = {
    "clock.py": "once, and at the end",
    "run/boundary.py": "when a run began, for ps",
    "ui/cli.py": "ps: how long ago that was",
    "changes/review.py": "how long ago a change set was made",
    "changes/store.py": "when a change set and its checkpoints were made, for a list of them",
    "ui/changes.py": "how long ago that was",
    "gateway/tls.py": "from when to when a certificate is valid",
    "run/logins.py": "is a log-in over, and by when is a renewed one?",
    "run/settings.py": "is a file older than the cache?",
    "workspace/scan.py": "is a file older than the index?",
    "workspace/guard.py": "did a file change in this tick of the clock?",
}

SPELLED = re.compile(
    r"CLOCK_REALTIME|time_ns|time\s*\.\s*time|from\s+time\s|\.\s*(now|utcnow|today)\b"
)  # what the tree is looked at for


def reads_the_time_of_day(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns"), ("time", "CLOCK_REALTIME")}:
                return True
            if node.value.id in ("datetime", "date") and node.attr in ("now", "utcnow", "today"):
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "time" and {each.name for each in node.names} & {"time", "time_ns"}:  # fmt: skip  # noqa: E501
            return True
    return False


def test_nobody_else_reads_the_time_of_day() -> None:
    root = Path(membrane.__file__).parent
    texts = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    found = {name for name, text in texts.items() if SPELLED.search(text) and reads_the_time_of_day(ast.parse(text))}
    assert found == set(TIME_OF_DAY)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_it_goes_on_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    first = clock.time_ns()
    assert abs(clock.was_set_by()) < HOUR // 60  # the control
    real = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + step)
    monkeypatch.setattr("time.time", lambda: (real() + step) / 1e9)
    second = clock.time_ns()
    assert first <= second < first + HOUR // 2
    assert abs(clock.seconds() - second / 1e9) < 60
    assert abs(clock.was_set_by() - step) < HOUR // 60
    assert event_log.now()[:16] in {clock.iso(at)[:16] for at in (first, clock.time_ns())}
    queue = EventQueue("s")
    assert abs(queue._clock() - second / 1e9) < 60


def test_a_process_of_its_own_goes_by_the_clock_that_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_offset", 0)
    clock.adopt(5_000_000_000)
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before <= clock.time_ns() - 5_000_000_000 <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_the_end_of_a_chain_tells_that_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, step in (("a", 0), ("b", -HOUR), ("c", HOUR)):
        path = record.make(str(tmp_path), name * 16)
        writer = record.Writer(path, "session")
        writer.append(json.dumps({"time": event_log.now(), "event": "NameResolved"}).encode() + b"\n")
        with monkeypatch.context() as patch:
            patch.setattr(clock, "_offset", clock._offset - step)
            writer._clock = lambda: 1
            writer.close()
        found = reader.Record(path)
        assert len(list(found.events())) == 1
        said = [problem.partition(" by ")[0] for problem in found.problems]
        assert said == {"a": [], "b": ["the clock was set back"], "c": ["the clock was set forward"]}[name]
        assert not reader.verify(path).problems


def session(state: Path, name: str, at: int) -> None:
    writer = record.Writer(record.make(str(state), name), "session", clock=lambda: at)
    writer.append(b'{"time": "2026-01-02T03:04:05.000Z", "event": "X"}\n')
    writer.close()


def test_sessions_of_a_time_to_come_are_older_than_all_others(tmp_path: Path) -> None:
    """Else what is recorded after the clock was set back would be the first to go, for as long as it was ahead."""
    now = time.time_ns()
    for name, at in (("future", now + 8760 * HOUR), ("first", now - 3 * HOUR), ("last", now - 2 * HOUR)):
        session(tmp_path, name, at)
    assert [entry.id for entry in reader.sessions(str(tmp_path))] == ["future", "first", "last"]
    assert reader.find(str(tmp_path), "@last").id == "last"
    assert record.prune(str(tmp_path), keep=2) == ["future"]
    assert record.prune(str(tmp_path), keep=1) == ["first"]


@pytest.mark.parametrize(
    ("nanoseconds", "digits", "text"),
    [
        (0, 6, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000_250_999_999, 6, "2023-11-14T22:13:20.250999Z"),
        (1_700_000_000_250_999_999, 3, "2023-11-14T22:13:20.250Z"),
        (1_700_000_000_000_000_999, 9, "2023-11-14T22:13:20.000000999Z"),
        (-1, 6, "1969-12-31T23:59:59.999999Z"),
        (1 << 64, 3, "2554-07-21T23:34:33.709Z"),
        (1 << 200, 6, "1970-01-01T00:00:00.835301Z"),  # a time of no calendar: a record may hold any number
    ],
)
def test_a_time_as_text(nanoseconds: int, digits: int, text: str) -> None:
    assert clock.iso(nanoseconds, digits) == text
    assert clock.iso(nanoseconds, digits) == text  # of the same second
