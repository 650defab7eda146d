"""Processes stopped all at one moment, whatever they do about it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from membrane.backend import still
from membrane.backend.still import Stillness
from membrane.errors import HostError
from started import Started

PATIENCE = 60.0
# Processes that fork, that let each other go on, and that wait in vfork.
HOSTILE = """
import os, signal, subprocess, sys, threading, time
def forks():
    while True:
        child = os.fork()
        if not child:
            os.write(1, b"x")
            for each in range(max(2, os.getpid() - 5), os.getpid()):
                if os.path.exists(f"/proc/{each}") and os.stat(f"/proc/{each}").st_uid == os.getuid():
                    try:
                        if os.getpgid(each) == os.getpgid(0):
                            os.kill(each, signal.SIGCONT)
                    except OSError:
                        pass
            os._exit(0)
        os.waitpid(child, 0)
def spins():
    while True:
        os.write(1, b"x")
def spawns():
    while True:
        subprocess.run(["true"])
for what in (forks, forks, spawns):
    if not os.fork():
        what()
threading.Thread(target=spins).start()
spins()
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    written = tmp_path / "written"
    with written.open("wb") as file:
        process = subprocess.Popen(["python3", "-c", HOSTILE], stdout=file, start_new_session=True)
    _until(lambda: written.stat().st_size > 1000)
    yield process, written
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _stop(stillness: Stillness) -> None:
    while not stillness.step():
        time.sleep(still.PAUSE)


@pytest.mark.parametrize("listed", [still.LISTED, "/proc/none"], ids=["by the kernel's lists", "without them"])
def test_all_stand_still_and_go_on(
    hostile: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    monkeypatch.setattr(still, "LONGEST", PATIENCE)
    monkeypatch.setattr(still, "LISTED", listed)
    process, written = hostile
    for _again in range(3):
        stillness = Stillness((process.pid,), ())
        _stop(stillness)
        size = written.stat().st_size
        for _look in range(20):
            stillness.confirm()
        assert written.stat().st_size == size
        stillness.end()
        _until(lambda size=size: written.stat().st_size > size)
        with pytest.raises(HostError, match="went on"):
            stillness.confirm()


# A child of the first thread, one of a second thread that has ended since, and one of that.
FAMILY = """
import subprocess, sys, threading
first = subprocess.Popen(["sleep", "1000"])
thread = threading.Thread(target=lambda: subprocess.Popen(["sh", "-c", "sleep 1000; :"]))
thread.start()
thread.join()
waits = threading.Thread(target=subprocess.run, args=[["sleep", "1000"]])
waits.start()
print(flush=True)
waits.join()
"""


@pytest.mark.needs_kernel("lists of children")
def test_children_of_each_thread_are_found_without_a_look_at_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of ten thousand processes a look at each of them took longer than all may stand still."""
    command = ["python3", "-c", FAMILY]
    with Started(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            stillness = Stillness((process.pid,), ())
            expected = 5  # the program, three sleeps and a shell
            _until(lambda: len(stillness._processes()) == expected)
            with monkeypatch.context() as without:
                without.setattr(still, "LISTED", "/proc/none")
                every = set(stillness._processes())
            monkeypatch.setattr(still, "_by_parent", lambda: pytest.fail("it looked at every process"))
            assert set(stillness._processes()) == every and len(every) == expected
            assert stillness._processes()[0] == process.pid  # parents first
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_one_that_was_let_go_on_is_noticed(hostile: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, written = hostile
    stillness = Stillness((), (os.getpid(),))  # the parent itself, which is this test, goes on
    _stop(stillness)
    size = written.stat().st_size
    os.kill(process.pid, signal.SIGCONT)
    _until(lambda: written.stat().st_size > size)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(HostError, match="went on"):
        stillness.confirm()
    stillness.end()


def test_what_somebody_else_has_stopped_stays_so() -> None:
    with Started(["sleep", "1000"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stillness = Stillness((process.pid,), ())
        _stop(stillness)
        stillness.end()
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        process.kill()


def test_it_takes_so_long_only_and_leaves_nothing_stopped(
    hostile: tuple[subprocess.Popen[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, written = hostile
    monkeypatch.setattr(still, "LONGEST", 0.0)
    stillness = Stillness((process.pid,), ())
    with pytest.raises(HostError, match="still run after"):
        _stop(stillness)
    size = written.stat().st_size
    _until(lambda: written.stat().st_size > size)
    monkeypatch.setattr(still, "MOST", 2)
    with pytest.raises(HostError, match="more than 2"):
        Stillness((process.pid,), ()).step()


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_who_stops_them_may_be_killed(
    hostile: tuple[subprocess.Popen[bytes], Path], kill: Callable[[int, int], None]
) -> None:
    """Alone, or with its process group, as ``timeout -k`` does it."""
    process, written = hostile
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            with still.standing(Stillness((process.pid,), ())):
                os.write(theirs, b".")
                while True:
                    signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    assert os.read(ours, 1) == b"."
    os.close(ours)
    size = written.stat().st_size
    os.kill(child, signal.SIGTERM)  # it waits until the work is done
    assert written.stat().st_size == size
    kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    _until(lambda: written.stat().st_size > size)
