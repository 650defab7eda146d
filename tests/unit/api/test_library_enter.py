"""api.enter, the program of ``wrap``: what it asks of the supervisor, what it passes on, how it ends.

The supervisor's side is played by the test, over a real socket; the program is the installed one's, in a process of
its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.api import enter, wire
from membrane.api.spawning import own_program
from membrane.errors import HostError
from membrane.host.channel import Channel


@pytest.mark.parametrize(
    ("words", "cwd", "environment", "command"),
    [
        (["--", "true"], None, {}, ("true",)),
        (["--cwd", "/x", "--env", "A=b=c", "E=", "--", "a", "--", "b"], "/x", {"A": "b=c", "E": ""}, ("a", "--", "b")),
        (["--cwd", "--", "--", "true"], "--", {}, ("true",)),
        (["--cwd", "--env", "--env", "A=1", "--", "true"], "--env", {"A": "1"}, ("true",)),
        (["--env", "A=--", "--", "--cwd"], None, {"A": "--"}, ("--cwd",)),
    ],
)
def test_words_are_read_by_their_place(
    words: list[str], cwd: str | None, environment: dict[str, str], command: tuple[str, ...]
) -> None:
    assert enter.parse(words) == (cwd, environment, command)


class Door:
    """The socket that the supervisor would listen on."""

    def __init__(self, place: Path) -> None:
        self.path = str(place / "door")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.listener.settimeout(120)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.channels: list[Channel] = []

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        argv = [*own_program("membrane.api.enter"), self.path, *words]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, **options)
        self.processes.append(process)
        return process

    def take(self, *, keep: bool = False) -> tuple[Channel, wire.Run]:
        """What the program asked for; ``keep``: the streams stay open, and are the caller's to close."""
        accepted, _ = self.listener.accept()
        accepted.settimeout(120)
        channel = Channel(accepted, wire.FROM_SUPERVISOR, wire.TO_SUPERVISOR)  # type: ignore[arg-type]
        self.channels.append(channel)
        run = channel.receive()
        assert isinstance(run, wire.Run)
        if not keep:
            for fd in run.streams:
                os.close(fd)
        return channel, run


@pytest.fixture
def door() -> Iterator[Door]:
    with tempfile.TemporaryDirectory() as place:
        made = Door(Path(place))
        yield made
        made.listener.close()
        for channel in made.channels:
            channel.close()
        for process in made.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (signal.SIGTERM, 143), (signal.SIGKILL, 137)])
def test_it_ends_as_the_command_ended(door: Door, status: int, code: int) -> None:
    process = door.start("--cwd", "/x", "--env", "A=1", "--", "prog", "-x", stdout=subprocess.PIPE)
    channel, run = door.take(keep=True)
    assert (run.argv, run.cwd, run.environment, len(run.streams)) == (("prog", "-x"), "/x", {"A": "1"}, 3)
    os.write(run.streams[1], b"out")
    for fd in run.streams:
        os.close(fd)
    assert process.stdout is not None and process.stdout.read() == b"out", "its own end of the pipe is closed"
    channel.send(wire.CommandEnded(enter.NUMBER, status))
    assert process.wait(timeout=60) == code


def test_signals_are_passed_on(door: Door) -> None:
    process = door.start("--", "prog")
    channel, _run = door.take()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process.send_signal(number)
        assert channel.receive() == wire.Signal(enter.NUMBER, number)
    channel.send(wire.CommandEnded(enter.NUMBER, 0))
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one_and_none_of_ours(door: Door, closed: str) -> None:
    argv = [*own_program("membrane.api.enter"), door.path, "--", "prog"]
    process = subprocess.Popen(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *argv], stdout=subprocess.PIPE)
    door.processes.append(process)
    channel, run = door.take(keep=True)
    numbers = {"<": 0, ">": 1, "2": 2}
    for word in closed.split():
        assert os.fstat(run.streams[numbers[word[0]]]).st_rdev == os.stat("/dev/null").st_rdev
    for fd in run.streams:
        os.close(fd)
    channel.send(wire.CommandEnded(enter.NUMBER, 3 << 8))
    assert process.wait(timeout=60) == 3


def test_a_failure_of_the_supervisor_is_told(door: Door) -> None:
    process = door.start("--", "prog")
    channel, _run = door.take()
    failure = wire.error_as_data(HostError("find the program", "no such file", target="prog"))
    channel.send(wire.CommandEnded(enter.NUMBER, failure=failure))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == HostError.exit_code
    assert b"find the program" in errors and b"Traceback" not in errors


def test_the_end_of_the_sandbox_ends_it(door: Door) -> None:
    process = door.start("--", "prog")
    channel, _run = door.take()
    channel.close()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == HostError.exit_code
    assert b"the sandbox was closed" in errors and b"Traceback" not in errors


def test_without_a_sandbox_it_says_so_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "none", tmp_path / "no" / "directory"):
        with pytest.raises(HostError) as refused:
            enter._connected(str(path))
        assert "it works while the sandbox is open" in refused.value.cause and refused.value.target == str(path)
    assert os.listdir("/proc/self/fd") == before


def test_a_current_directory_that_is_gone_is_an_error(door: Door, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = [*own_program("membrane.api.enter"), door.path, "--", "prog"]
    line = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(["/bin/sh", "-c", line, str(gone), *argv], check=False, capture_output=True, timeout=60)
    assert done.returncode == HostError.exit_code
    assert b"use the current directory" in done.stderr and b"Traceback" not in done.stderr
