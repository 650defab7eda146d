"""Somebody sets the clock of the machine while a command runs: the record keeps its order, and says so.

The clock of the test machine stays as it is: what is moved is what the supervisor, the tracer and the readers are told
by time(2).  Other processes take no time of day at all (unit/test_clock.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

import membrane

PATIENCE = 120.0
SOURCE = str(Path(membrane.__file__).resolve().parent.parent)
# What ``step`` holds is what somebody has set the clock by, in seconds.
MOVED = """
import sys, time
sys.path.insert(0, {source!r})
def moved(real=time.time_ns):
    try:
        with open({step!r}) as file:
            return real() + int(file.read() or 0) * 10**9
    except OSError:
        return real()
time.time_ns, time.time = moved, lambda: moved() / 1e9
from membrane.ui.cli import main
sys.exit(main(sys.argv[1:]))
"""
SCRIPT = """
mkdir before && curl -fsS -m 60 -o one http://example.com/ && echo ready && read line
mkdir between && curl -fsS -m 60 -o two http://example.com/ && echo ready && read line
mkdir after && curl -sS -m 20 http://refused.example/; exit 5
"""


@pytest.mark.parametrize("steps", [(-3600, -3600), (7200, 0), (-40, 86400)], ids=str)
def test_a_clock_that_is_set_changes_no_order(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[int, int]
) -> None:
    step = tmp_path / "step"
    code = MOVED.format(source=SOURCE, step=str(step))
    monkeypatch.setattr("world.box.membrane_argv", lambda: [sys.executable, "-I", "-c", code])
    box.allow("example.com:80")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with box.popen("--quiet", "--", "sh", "-c", SCRIPT, **pipes) as run:
        assert run.stdin is not None and run.stdout is not None
        for seconds in steps:
            assert run.stdout.readline() == b"ready\n"
            step.write_text(str(seconds))
            run.stdin.write(b"go\n")
            run.stdin.flush()
        run.communicate(timeout=PATIENCE)
        assert run.returncode == 5
    events = shown(box)
    times = [event["time"] for event in events]
    assert (events[0]["event"], events[-1]["event"]) == ("SessionStarted", "SessionEnded")
    # Sorted by what the events say: in milliseconds, for some tell no more.
    assert [at[:23] for at in times] == sorted(at[:23] for at in times)
    happened: list[str] = []
    for event in events:  # once each: beside a test that kills tracers the kernel may tell an event twice
        if what(event) and happened[-1:] != [what(event)]:
            happened.append(what(event))
    # The refusal, and its repetitions, which are told together.
    assert happened == ["before", "connected", "between", "connected", "after", "refused"]
    by = {event["process"]["name"] for event in events if what(event) == "connected"}
    # A refusal is joined by time alone, which a machine with much other work may stretch beyond what is taken for near.
    refused = {event["process"]["name"] for event in events if what(event) == "refused" and event["process"]}
    assert by == {"curl"} and refused <= {"curl"}
    seqs = [event["seq"] for event in events if event["source"] in ("session", "network")]
    assert seqs == sorted(seqs)
    # What is asked for by time is what came then.
    between = next(event["time"] for event in events if what(event) == "between")
    later = {what(event) for event in shown(box, "--since", between)}
    sooner = {what(event) for event in shown(box, "--until", between)}
    assert {"between", "after"} <= later and "before" not in later
    assert {"before", "between"} <= sooner and "after" not in sooner
    assert box.run("trace", "verify").returncode == 0
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    set_by = steps[1]
    way = "back" if set_by < 0 else "forward"
    said = [f"the clock was set {way} by {abs(set_by)} s: all times are as before that"] if set_by else []
    assert summary["gaps"] == said
    assert 0 < summary["duration_ms"] < PATIENCE * 1000
    # A run that began after the clock was set back is the last one nevertheless.
    assert box.run("--quiet", "--", "touch", "later").returncode == 0
    assert [row["command"][0] for row in listed(box)] == ["sh", "touch"]
    assert json.loads(box.run("trace", "summary", "@last", "--json").stdout)["command"] == ["touch", "later"]
    assert not json.loads(box.run("trace", "summary", "@last", "--json").stdout)["gaps"]  # the control


@pytest.mark.as_root
@pytest.mark.needs_kernel("time namespaces")
@pytest.mark.parametrize("ahead", [-1, 100_000])
def test_in_a_time_namespace_the_kernel_counts_from_elsewhere(box: Box, ahead: int) -> None:
    """time_namespaces(7): its events have the boot of the host, CLOCK_BOOTTIME of ours another one."""
    argv = ["unshare", "--time", f"--boottime={ahead}", "--fork"]
    begin = datetime.now(UTC)
    done = box.outside(*argv, *box.argv("--quiet", "--", "sh", "-c", "mkdir one; rmdir one"))
    assert done.returncode == 0, done.stderr
    events = shown(box)
    assert (events[0]["event"], events[-1]["event"]) == ("SessionStarted", "SessionEnded")
    assert "FileCreated" in [event["event"] for event in events if event["source"] == "ebpf"]
    near = timedelta(milliseconds=1)
    assert all(begin - near <= datetime.fromisoformat(event["time"]) <= datetime.now(UTC) for event in events)


def shown(box: Box, *arguments: str) -> list[dict[str, Any]]:
    done = box.run("trace", "show", "@last", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def listed(box: Box) -> list[dict[str, Any]]:
    return [json.loads(line) for line in box.run("trace", "list", "--json").stdout.splitlines()]


def what(event: dict[str, Any]) -> str:
    if event["event"] == "FileCreated":
        return str(event["path"].rpartition("/")[2])
    return {"ConnectionOpened": "connected", "AccessDenied": "refused"}.get(event["event"], "")
