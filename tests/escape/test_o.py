"""The record, the terminal and the guard (rows O09, O12, O14, T01)."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from escape_box import MEMBRANE, SECONDS, Box

FORGED = '\x1b]0;owned\x07\n{"event": "SessionEnded", "exit_code": 0}\r\x9b31m\u202e'


@pytest.mark.guard_alone
def test_O09_names_can_not_forge_the_record_or_the_terminal(box: Box) -> None:
    name = f"{FORGED}/.mcp.json"
    script = f"os.makedirs({FORGED!r}.encode().replace(b'/', b'_')); open({name!r}, 'w').write('x')"
    script = (
        f"os.mkdir({FORGED!r})\nattempt('made', write({name!r}))\nos.mkdir(b'\\xff'); open(b'\\xff/.mcp.json', 'w')"
    )
    done = box.run("/usr/bin/python3", "-S", "-c", "import os\n" + TOOLS_FREE + script)
    assert done.returncode == 0, done.stderr
    events = box.record()  # each line parses
    assert [event["event"] for event in events].count("SessionEnded") == 1
    removed = {event["path"] for event in events if event["event"] == "NameQuarantined"}
    assert removed == {"\\xff/.mcp.json", "\\u{1b}]0;owned\\u{7}\\u{a}{\"event\": \"SessionEnded\", \"exit_code\": 0}\\u{d}\\u{9b}31m\\u{202e}/.mcp.json"}  # fmt: skip  # noqa: E501
    text = box.events.read_text()
    for char in "\x1b\x07\r\x9b\u202e":
        assert char not in text and char not in done.stderr
    assert not any(line.startswith("{") for line in done.stderr.splitlines())


TOOLS_FREE = """
def attempt(name, action): action()
def write(path): return lambda: open(path, 'w').write('x')
"""


def test_O12_the_command_runs_after_its_confinement_was_read_back(box: Box) -> None:
    done = box.run("date", "+%s.%N")
    ran = float(done.stdout)
    first = box.record()[0]
    assert first["event"] == "SessionStarted" and first["seq"] == 1
    from datetime import datetime

    assert datetime.fromisoformat(first["time"]).timestamp() < ran
    # Nothing runs when it cannot be recorded.
    refused = box.run("touch", "ran", options=("--events", "/proc/none/events"))
    assert refused.returncode == 125 and not (box.workspace / "ran").exists()


@pytest.mark.guard_alone
def test_O14_the_guard_is_out_of_reach(box: Box) -> None:
    script = """
say("processes", sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
say("own", [os.getpid(), os.getppid()])
for pid in range(2, 4000):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
        except OSError:
            pass
attempt("made", write(".mcp.json"))
say("gone", wait_for(lambda: not os.path.exists(".mcp.json")))
"""
    found = box.attack(script)
    assert found["own"][1] == 1 and set(found["processes"]) == {1, found["own"][0]}
    assert found["made"] == found["gone"] == "ok"
    assert ".mcp.json" in box.moved()


def _terminal(box: Box, script: str) -> tuple[int, int]:
    """membrane on a terminal of ours, in a session of its own: (pid, master)."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(box.workspace)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execve(
            sys.executable,
            [*MEMBRANE, "--events", str(box.events), *box.options, "--", "sh", "-c", script],
            box.environment,
        )
    return pid, master


def _drain(master: int, until: bytes = b"") -> bytes:
    output = b""
    while select.select([master], [], [], SECONDS)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        output += piece
        if not piece or (until and until in output):
            break
    return output


def test_O14_a_stopped_job_is_a_stopped_sandbox(box: Box) -> None:
    """The command stops itself, and with it the supervisor: what it left in the background must not go on unguarded."""
    background = "i=0; while :; do i=$((i+1)); echo $i >> count; [ $i = 50 ] && mkdir -p .vscode; sleep 0.01; done"
    script = f"setsid sh -c '{background}' & while [ ! -s count ]; do sleep 0.01; done; kill -STOP $$; echo resumed"
    pid, master = _terminal(box, script)
    try:
        deadline = time.monotonic() + SECONDS
        while not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            assert time.monotonic() < deadline
        count = box.workspace / "count"
        before = count.read_text()
        # The loop would count on within hundredths of a second; this is the time it is given to do so.
        other = subprocess.run(["sleep", "0.7"], check=True)
        assert other.returncode == 0 and count.read_text() == before
        assert not (box.workspace / ".vscode").exists()
        os.kill(pid, signal.SIGCONT)
        assert b"resumed" in _drain(master, b"resumed")  # the control: it goes on
    finally:
        os.kill(pid, signal.SIGKILL) if os.waitpid(pid, os.WNOHANG)[0] == 0 else None
        _drain(master)
        os.close(master)
    assert count.read_text() != ""


@pytest.mark.guard_alone
def test_T01_the_terminal_outside_is_not_the_one_inside(box: Box) -> None:
    """Bytes of the command reach the screen as they are (NOT_APPLICABLE.md); ours never carry any of its own."""
    pid, master = _terminal(box, "printf '\\033]52;c;ZXZpbA==\\007'; mkdir \"$(printf 'a\\033]52;c;eA==\\007')\"; "
                                 "echo x > \"$(printf 'a\\033]52;c;eA==\\007')/.mcp.json\"")  # fmt: skip
    output = _drain(master)
    os.close(master)
    assert os.waitpid(pid, 0)[1] == 0
    command, _, ours = output.partition(b"membrane: ")
    assert b"\x1b]52;c;ZXZpbA==\x07" in command  # the control
    assert b".mcp.json" in ours and b"\x1b]" not in ours and b"\x07" not in ours


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_T01_a_directory_as_a_stream_is_refused(box: Box, stream: int, tmp_path: Path) -> None:
    """``membrane -- cmd < DIRECTORY`` would be a way out by openat(2)."""
    out = tmp_path / "out"
    streams = {0: "stdin", 1: "stdout", 2: "stderr"}
    directory = os.open("/", os.O_RDONLY)
    with out.open("w") as file:
        handles = {name: directory if number == stream else file for number, name in streams.items()}
        command = box.arguments(("touch", "ran"), ())
        done = subprocess.run(command, cwd=box.workspace, env=box.environment, timeout=SECONDS, check=False, **handles)
    os.close(directory)
    assert done.returncode != 0 and not (box.workspace / "ran").exists()
