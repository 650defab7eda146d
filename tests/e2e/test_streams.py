"""Streams, exit statuses and signals when nothing is a terminal; and that nothing is left, however a run ends."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from world import PATIENCE
from world.box import Box, children, wait_until_gone

READY = "echo ready; "


def wait_ready(process: subprocess.Popen[bytes], patience: float = PATIENCE) -> None:
    """Until the command has said "ready": it runs, and has set its traps."""
    assert process.stdout
    assert select.select([process.stdout], [], [], patience)[0], "the command did not start"
    assert os.read(process.stdout.fileno(), 6) == b"ready\n"


def start(box: Box, script: str, *options: str) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = box.popen(*options, "--", "bash", "-c", script, **pipes)
    wait_ready(process)
    return process


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 37"], 37),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["no-such-program-anywhere"], 127),
        (["./not-executable"], 126),
        (["./"], 126),
    ],
)
def test_exit_status_of_the_command(box: Box, command: list[str], status: int) -> None:
    (box.workspace / "not-executable").write_text("#!/bin/sh\n")
    done = box.run("--", *command)
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    if status in (126, 127):
        assert command[0].strip("./") in done.stderr


def test_script_without_interpreter_line_is_as_execvp(box: Box) -> None:
    script = box.workspace / "bad-interpreter"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert box.run("--", "./bad-interpreter").returncode in (126, 127)


def test_first_word_that_is_no_option_ends_the_options(box: Box) -> None:
    done = box.run("python3", "-c", "import sys; print(sys.argv[1:])", "--quiet", "-a", "x")
    assert done.stdout == "['--quiet', '-a', 'x']\n", done


def test_pipes_on_both_sides(box: Box) -> None:
    assert box.run("--", "cat", input="x\n").stdout == "x\n"
    done = box.run("--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_megabytes_pass_unchanged(box: Box) -> None:
    data = os.urandom(3 << 20)
    source, sink = box.workspace / "in", box.workspace / "out"
    source.write_bytes(data)
    with source.open("rb") as stdin, sink.open("wb") as stdout:
        assert box.run("--", "cat", stdin=stdin, stdout=stdout).returncode == 0
    assert sink.read_bytes() == data


def test_stdin_is_the_callers_own_file(box: Box) -> None:
    """One open file description: the offset that the command leaves is where the caller goes on."""
    (box.workspace / "lines").write_text("one\ntwo\nthree\n")
    inner = shlex.join(box.argv("--", "sh", "-c", "read line; echo inside $line"))
    done = box.outside("bash", "-c", f"{{ read a; {inner}; read b; echo $a $b; }} < lines")
    assert done.stdout == "inside two\none three\n", done


def test_a_reader_that_goes_away_ends_the_command(box: Box) -> None:
    script = f"set -o pipefail; {shlex.join(box.argv('--', 'yes'))} | head -n1; echo ${{PIPESTATUS[0]}}"
    assert box.outside("bash", "-c", script).stdout.split() == ["y", str(128 + signal.SIGPIPE)]


def test_stdin_nobody_reads_does_not_hold_the_run(box: Box) -> None:
    done = box.outside("bash", "-c", f"yes | {shlex.join(box.argv('--', 'head', '-n1'))}")
    assert done.stdout == "y\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(box: Box, closed: str) -> None:
    """No descriptor of ours may take the place of a closed stream."""
    script = f"{shlex.join(box.argv('--', 'sh', '-c', 'echo secret; echo oops >&2; exit 9'))} {closed}"
    assert box.outside("bash", "-c", script).returncode in (1, 2, 9)
    assert sorted(p.name for p in box.workspace.iterdir()) == []


def test_no_other_descriptor_reaches_the_command(box: Box, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.write_text("host-secret\n")
    script = f"exec 7< {secret}; cat <&7 >/dev/null && exec {shlex.join(box.argv('--', 'ls', '/proc/self/fd'))}"
    assert box.outside("bash", "-c", script).stdout.split() == ["0", "1", "2", "3"]  # 3 is ls's own


def test_twenty_at_once(box: Box) -> None:
    job = box.workspace / "job"
    job.write_text(
        f"#!/bin/sh\necho $1 | {shlex.join(box.argv('--', 'sh', '-c', 'cat; exit $0'))} $1\necho status $?\n"
    )
    job.chmod(0o755)
    done = box.outside("bash", "-c", "seq 20 | parallel -j20 --keep-order ./job")
    assert done.stdout.split() == [word for n in range(1, 21) for word in (str(n), "status", str(n))], done


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_signals_reach_the_command(box: Box, number: signal.Signals) -> None:
    # Not of bash, which ignores SIGQUIT until it has executed something else.
    process = start(box, f"exec sh -c '{READY} exec sleep 1000'")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_command_may_answer_a_signal(box: Box, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    process = start(box, f"trap 'echo caught; exit 5' {name}; {READY} while :; do sleep 0.1; done")
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert out == b"caught\n"
    assert process.returncode in (5, 128 + number)
    # Membrane is not what it ended: the record has its end.
    assert "  ok  " in box.run("trace", "verify").stdout


def test_a_signal_of_the_commands_own_ends_nothing_that_lives_on(box: Box) -> None:
    """SIGUSR1 of a server (reopen the logs) and of dd(1) is no wish for its end: its own status is that of the run."""
    process = start(box, f"trap 'caught=1' USR1; {READY} until [ $caught ]; do sleep 0.1; done; echo went on; exit 6")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (out, process.returncode) == (b"went on\n", 6)


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        ([""], 127, "'': command not found"),
        (["./no-interpreter"], 127, "./no-interpreter: it is there, and the interpreter that it names is not"),
        (["no-interpreter"], 127, "no-interpreter: it is there, and the interpreter that it names is not"),
        (["./absent"], 127, "./absent: no such file"),
        (["absent"], 127, "absent: command not found"),
    ],
)
def test_what_is_not_found_is_named(box: Box, argv: list[str], status: int, said: str) -> None:
    (box.workspace / "no-interpreter").write_text("#!/nowhere\n")
    (box.workspace / "no-interpreter").chmod(0o755)
    done = box.run("--", *argv, env={"PATH": f"{box.workspace}:/usr/bin:/bin"})
    assert done.returncode == status and f"membrane: {said}\n" in done.stderr, done


def test_a_command_that_ignores_the_signal_is_killed(box: Box) -> None:
    process = start(box, f"trap '' TERM INT HUP; {READY} while :; do sleep 0.1; done")
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode in (128 + signal.SIGKILL, 128 + signal.SIGTERM)


def test_background_processes_end_with_the_command(box: Box) -> None:
    """Also one in a session of its own: the pid namespace ends."""
    done = box.run("--", "bash", "-c", "setsid sleep 1000 >/dev/null 2>&1 & sleep 1000 & echo done")
    assert done.stdout == "done\n"


@pytest.mark.parametrize("network", [False, True], ids=["offline", "online"])
def test_after_sigkill_nothing_is_left(box: Box, network: bool) -> None:
    box.allow("tcp://echo.test:7")
    (box.workspace / "kept").write_text("x")
    before, names = children(), sorted(os.listdir(box.workspace))
    connect = "exec 9<>/dev/tcp/echo.test/7; echo hello >&9; read -u9 answer; " if network else ""
    process = start(box, f"{connect}{READY} sleep 1000", "--ignore=later.env", "--readonly=also-later")
    if network:
        assert box.world.connections(service="echo")
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert wait_until_gone(before) == set()
    assert sorted(os.listdir(box.workspace)) == names
    # The next run works, and gc then finds nothing alive and leaves nothing behind.
    assert box.run("--", "echo", "again").stdout == "again\n"
    assert box.run("gc").returncode == 0
    runs = box.state / "run"
    assert not runs.exists() or [entry for entry in runs.iterdir() if entry.is_dir()] == []


def test_sigkill_of_any_helper_ends_the_command(box: Box) -> None:
    """Fail closed: whichever process of the run dies first, the command does not go on alone."""
    box.allow("tcp://echo.test:7")
    script = f"exec 9<>/dev/tcp/echo.test/7; echo hello >&9; read -u9 answer; {READY} sleep 1000"
    victims = 0
    for index in range(8):
        before = children()
        process = start(box, script)
        family = descendants(process.pid)
        if index >= len(family):
            process.kill()
            process.communicate(timeout=PATIENCE)
            break
        os.kill(family[index], signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        assert wait_until_gone(before) == set()
        victims += 1
    assert victims >= 2  # at least the gateway and the command itself


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, nearest first."""
    found, frontier = [], [pid]
    while frontier:
        current = frontier.pop(0)
        try:
            text = Path(f"/proc/{current}/task/{current}/children").read_text()
        except OSError:
            continue
        frontier += [int(word) for word in text.split()]
        found += [int(word) for word in text.split()]
    return found


def test_wall_time_limit(box: Box) -> None:
    done = box.run("--limit=time=1s", "--", "sleep", "1000")
    assert done.returncode != 0
    assert "time" in done.stderr


def test_process_limit_binds(box: Box) -> None:
    """One that forks meets EAGAIN; the control forks as many without the limit."""
    script = """
import os, signal
forked, end = 0, "none"
try:
    for _ in range(60):
        if not os.fork(): signal.pause()
        forked += 1
except BlockingIOError:
    end = "EAGAIN"
print(forked, end)
"""
    assert box.run("--", "/usr/bin/python3", "-S", "-c", script).stdout == "60 none\n"
    limited = box.run("--limit=pids=20", "--", "/usr/bin/python3", "-S", "-c", script)
    count, end = limited.stdout.split()
    assert end == "EAGAIN" and 5 < int(count) < 20, limited


def test_memory_limit_binds(box: Box) -> None:
    script = "x = bytearray(600 << 20); print(len(x))"
    assert box.run("--", "python3", "-c", script).stdout.strip() == str(600 << 20)
    assert "MemoryError" in box.run("--limit=memory=300M", "--", "python3", "-c", script).stderr


def test_no_core_file(box: Box) -> None:
    done = box.run("--", "bash", "-c", "ulimit -c; ulimit -Hc")
    assert done.stdout.split() == ["0", "0"]
