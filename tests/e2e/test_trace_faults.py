"""The record when something around it fails: the disk is full, the tracer dies at any moment, another one was first."""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest
from test_trace_notify import OUTER, PYTHON, _tracer
from world.box import Box

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
    assert (status, verified) == ("7", "0"), done
    summary = json.loads(text)
    assert not summary["complete"]
    assert any("No space left on device" in gap for gap in summary["gaps"]), summary["gaps"]
    assert any(row["path"].endswith("dash") or row["path"].endswith("sh") for row in summary["programs"])
    assert (box.workspace / "done").is_dir()


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
