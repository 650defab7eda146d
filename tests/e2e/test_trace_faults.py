"""The record when something around it fails: the disk is full, the tracer dies at any moment, another one was first."""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_trace_notify import OUTER, PYTHON, _tracer
from world.box import Box

from membrane.record import query, reader

PATIENCE = 120.0
FILL = "import os\nfor n in range(3000): os.close(os.open('/tmp/' + 'x' * 200 + str(n), os.O_CREAT | os.O_WRONLY))\n"


def shown(box: Box, *arguments: str) -> list[dict[str, Any]]:
    done = box.run("trace", "show", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.as_root
def test_a_full_disk_loses_events_and_not_the_run(box: Box) -> None:
    """``$MEMBRANE_HOME`` on a file system of 260 KiB."""
    box.state.mkdir(mode=0o700)
    command = ["sh", "-c", f"{PYTHON} -S -c {shlex.quote(FILL)}; mkdir done; exit 7"]
    script = "; ".join(
        [
            f"mount -t tmpfs -o mode=700,size=260k none {shlex.quote(str(box.state))} || exit 99",
            f"{shlex.join(box.argv('--quiet', '--', *command))}; echo $?",
            shlex.join(box.argv("trace", "summary", "--json")),
            f"{shlex.join(box.argv('trace', 'verify'))} >&2; echo $?",
        ]
    )
    done = box.outside("unshare", "--mount", "sh", "-c", script, timeout=PATIENCE)
    status, text, verified = done.stdout.splitlines()
    assert (status, verified) == ("7", "1"), done
    summary = json.loads(text)
    assert not summary["complete"]
    assert any("No space left on device" in gap for gap in summary["gaps"]), summary["gaps"]
    assert any(row["path"].endswith("dash") or row["path"].endswith("sh") for row in summary["programs"])
    assert (box.workspace / "done").is_dir()
    assert "membrane: warning: the record is incomplete" in done.stderr, done.stderr  # also of the tracer's own files


@pytest.mark.as_root
def test_on_a_read_only_file_system_nothing_is_called_protected(box: Box) -> None:
    """No rule of ours refuses the name, and none would open it: the call is on the record with its errno."""
    place = shlex.quote(str(box.workspace))
    command = ["sh", "-c", "echo x > made; cat there"]
    script = "; ".join(
        [
            f"mount -t tmpfs none {place} || exit 99",
            f"echo read > {place}/there; mkdir {place}/.vscode",
            f"cd {place} && {shlex.join(box.argv('--', 'mkdir', '.vscode/x'))}",  # the control
            "echo === >&2; mount -o remount,ro . || exit 99",
            shlex.join(box.argv("--", *command)),
            shlex.join(box.argv("trace", "show", "--json", "--path", "made")),
        ]
    )
    done = box.outside("unshare", "--mount", "sh", "-c", script, timeout=PATIENCE)
    control, told = done.stderr.split("===\n")
    assert "protected name" in control, done
    read, *lines = done.stdout.splitlines()
    assert read == "read" and "refused" not in told, done
    events = [json.loads(line) for line in lines]
    assert [(each["event"], each["result"]) for each in events] == [("FileOpened", "EROFS")], events


@pytest.mark.as_root
def test_below_another_tracer_ebpf_tells_what_happens(box: Box) -> None:
    """The kernel allows no second listener: EBUSY."""
    argv = [sys.executable, "-c", OUTER, *box.argv(f"--events={box.events_path}")]
    done = box.outside(*argv, "--", "sh", "-c", "mkdir .vscode made; echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n") and "EBUSY" in done.stderr, done
    assert box.events()[0]["trace_source"] == "ebpf, network"
    created = {
        os.path.basename(event["path"]): event["result"] for event in shown(box) if event["event"] == "FileCreated"
    }
    assert created == {".vscode": "", "made": ""}
    assert not (box.workspace / ".vscode").exists()  # the guard holds


@pytest.mark.parametrize("seed", range(3))
def test_a_tracer_that_dies_at_any_moment_leaves_a_record_that_says_so(box: Box, seed: int) -> None:
    """After so many lines of the command, while it makes events all the time."""
    lines = random.Random(seed).randrange(1, 400)
    code = "import os\nn = 0\nwhile True:\n    n += 1; os.mkdir(f'd{n}'); os.rmdir(f'd{n}'); print(n, flush=True)\n"
    with box.popen("--", PYTHON, "-S", "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        for _ in range(lines):
            assert select.select([run.stdout], [], [], PATIENCE)[0]
            assert run.stdout.readline()
        os.kill(_tracer(run.pid), signal.SIGKILL)
        _out, err = run.communicate(timeout=PATIENCE)
        # The command may have ended by itself: without an answer its calls fail with ENOSYS.
        said = (b"the tracer died; the command was killed", b"the end of the record could not be written")
        assert run.returncode == 125 and any(text in err for text in said), err
    events = shown(box)
    assert events[0]["event"] == "SessionStarted" and events[-1]["event"] == "SessionEnded"
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert any("was killed: its last events may be missing" in gap for gap in summary["gaps"]), summary["gaps"]
    assert box.run("trace", "verify").returncode == 1


BUSY = """
import os, sys
n = 0
while n < int(sys.argv[1]):
    n += 1; os.mkdir(f"d{n}"); os.rmdir(f"d{n}"); os.close(os.open("f", os.O_WRONLY | os.O_CREAT))
"""


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_whenever_the_tracer_dies_the_run_ends_and_its_record_can_be_read(box: Box, mode: str) -> None:
    """At ten moments: from when the tracer is there, and from when the command is at work."""
    box.allow(trace={"mode": mode})
    dice = random.Random(mode)
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    recorded = 0
    for number in range(10):
        starting, moment = number < 4, dice.uniform(0.0, 0.2)
        with box.popen("--", PYTHON, "-S", "-c", BUSY, "1000000000", **pipes) as run:
            deadline = time.monotonic() + PATIENCE
            while not (tracer := tracer_of(run.pid)) or not (starting or (box.workspace / "f").exists()):
                assert time.monotonic() < deadline and run.poll() is None
            select.select([], [], [], moment)  # which is the time of the fault, and waits for nothing
            os.kill(tracer, signal.SIGKILL)
            _out, err = run.communicate(timeout=PATIENCE)
        assert run.returncode == 125, (moment, err)
        said = ("the tracer died; the command was killed", "the end of the record could not be written", "attach the tracer")  # fmt: skip  # noqa: E501
        assert any(text in err.decode() for text in said), (moment, err)
        entries = reader.sessions(str(box.state))
        for entry in entries:
            record = reader.Record(entry.path)
            events = list(record.events())
            assert not record.running and (events[0].kind, events[-1].kind) == ("SessionStarted", "SessionEnded")  # fmt: skip  # noqa: E501
            # Who did it is told, and that it is not all: nothing here is taken for whole.
            gaps = query.summarise(events).gaps(record.problems)
            assert any("was killed: its last events may be missing" in gap for gap in gaps), (moment, gaps)
            assert reader.verify(entry.path).problems
            assert next(each.seq for each in events if each.source == "session") == 1
        assert entries or starting  # a run that did not come about has no record
        recorded += len(entries)
        shutil.rmtree(box.state / "trace")
        (box.workspace / "f").unlink(missing_ok=True)
        for directory in box.workspace.iterdir():
            directory.rmdir()
    assert recorded >= 6
    # The control: left alone, the same command has a record of which nothing is missing.
    assert box.run("--quiet", "--", PYTHON, "-S", "-c", BUSY, "100").returncode == 0
    [entry] = reader.sessions(str(box.state))
    record = reader.Record(entry.path)
    assert len(list(record.events())) > 10 and not record.problems and not reader.verify(entry.path).problems


def tracer_of(pid: int) -> int:
    """The second that a run forks, after the launcher; 0: not yet."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(words[1]) if len(words) > 1 else 0


PATIENT_COMMAND = """
import os, select, sys
n = 0
while not select.select([0], [], [], 0)[0]:
    n += 1; os.mkdir(f"d{n}"); os.rmdir(f"d{n}"); print(n, flush=True)
"""


def test_while_the_tracer_is_stopped_the_command_waits_and_nothing_is_lost(box: Box) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with box.popen("--", PYTHON, "-S", "-c", PATIENT_COMMAND, **pipes) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"1\n"
        tracer = tracer_of(run.pid)
        os.kill(tracer, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + PATIENCE
            while select.select([run.stdout], [], [], 0.5)[0]:  # what was under way, and then no line any more
                assert os.read(run.stdout.fileno(), 65536) and time.monotonic() < deadline
        finally:
            os.kill(tracer, signal.SIGCONT)
        assert select.select([run.stdout], [], [], PATIENCE)[0]
        _out, err = run.communicate(b"\n", timeout=PATIENCE)
        assert run.returncode == 0, err
    [entry] = reader.sessions(str(box.state))
    record = reader.Record(entry.path)
    events = list(record.events())
    assert not query.summarise(events).gaps(record.problems)
    # Once each: beside a test that kills tracers the kernel may tell an event twice (docs/trace-ebpf.md).
    made, removed = (
        list(dict.fromkeys(each.path for each in events if each.kind == kind))
        for kind in ("FileCreated", "FileRemoved")
    )
    assert made == removed == [f"{box.workspace}/d{number}" for number in range(1, len(made) + 1)] and len(made) > 1
