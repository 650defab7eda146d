"""tracer.processes: who a process is, which program it runs, how it ended; with real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from membrane.tracer import processes as module
from membrane.tracer.processes import Processes

LONG = 30  # seconds


class World:
    def __init__(self) -> None:
        self.lost = 0
        scope: Any = SimpleNamespace(shared=True)
        self.processes = Processes(scope, self._lose)
        self.children: list[subprocess.Popen[bytes]] = []

    def _lose(self) -> None:
        self.lost += 1

    def start(self, program: str = "import sys; sys.stdin.read()") -> subprocess.Popen[bytes]:
        """A child that waits for the end of its input and says when it runs."""
        program = f"import sys; sys.stdout.write('x'); sys.stdout.flush(); {program}"
        made = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
        )
        self.children.append(made)
        assert made.stdout is not None and made.stdout.read(1) == b"x"
        return made

    def ended(self) -> list[tuple[int, int | None]]:
        """Waits until some process has ended."""
        with select.epoll() as epoll:
            epoll.register(self.processes.fileno(), select.EPOLLIN)
            assert epoll.poll(LONG), "no end was reported"
        return [(known.number, status) for known, status in self.processes.ended()]

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        self.processes.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def finish(child: subprocess.Popen[bytes]) -> None:
    child.communicate()


def test_a_process_is_met_once_and_known_by_what_it_runs(world: World) -> None:
    child = world.start()
    known = world.processes.of(child.pid)
    assert known is not None and known is world.processes.of(child.pid)
    assert (known.number, known.pid, known.parent) == (child.pid, child.pid, os.getpid())
    world.processes.look_again(known)
    assert known.exe == os.path.realpath(sys.executable) == world.processes.program_of(known) and not known.stale
    assert f'"pid": {child.pid}' in known.shown() and os.path.basename(known.exe) in known.shown()
    assert world.processes.alive() == 1 and world.lost == 0


def test_what_it_becomes_is_shown_from_then_on(world: World) -> None:
    known = world.processes.of(world.start().pid)
    assert known is not None
    before = known.shown()
    known.become("other", "/bin/other", named=False)
    assert known.stale and "/bin/other" in known.shown() != before
    world.processes.look_again(known)  # what was expected did not come: the kernel is asked for both
    assert known.exe == os.path.realpath(sys.executable) and known.name != "other"


@pytest.mark.parametrize(("program", "code"), [("sys.stdin.read()", 0), ("sys.stdin.read(); sys.exit(7)", 7)])
def test_its_end_is_reported_once_and_its_number_is_free(program: str, code: int, world: World) -> None:
    child = world.start(program)
    before = len(os.listdir("/proc/self/fd"))
    assert world.processes.of(child.pid) is not None
    assert list(world.processes.ended()) == []
    finish(child)
    ((number, status),) = world.ended()
    assert len(os.listdir("/proc/self/fd")) == before - 2  # the ends of its pipes are closed, and the pidfd
    assert number == child.pid and (status is None or os.waitstatus_to_exitcode(status) == code)
    assert world.processes.alive() == 0 and list(world.processes.ended()) == []
    assert world.processes.of(child.pid) is None  # nothing has that number now


def test_a_process_that_ends_unseen_is_never_taken_for_another(world: World) -> None:
    first, second = world.start(), world.start()
    one, two = world.processes.of(first.pid), world.processes.of(second.pid)
    finish(first)
    assert [number for number, _status in world.ended()] == [first.pid]
    assert world.processes.of(second.pid) is two is not one


def test_who_is_gone_is_nobody(world: World) -> None:
    child = world.start()
    finish(child)
    assert world.processes.of(child.pid) is None and world.lost == 0


def test_a_childs_parent_is_the_process_inside(world: World) -> None:
    child = world.start(
        "import subprocess as s; p = s.Popen([sys.executable, '-I', '-S', '-c', 'input()']);"
        "print(f' {p.pid} ', flush=True); sys.stdin.read(); p.kill(); p.wait()"
    )
    assert child.stdout is not None
    above = world.processes.of(child.pid)
    below = world.processes.of(int(child.stdout.readline()))
    assert above is not None and below is not None and below.parent == above.pid


UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
THREADS = """
import os, sys, threading
end, beside = threading.Event(), threading.Thread(target=lambda: end.wait())
beside.start()
print(beside.native_id, flush=True)
sys.stdin.readline()
end.set()
beside.join()
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.needs_kernel("user namespaces")
@pytest.mark.parametrize("shared", [False, True])
def test_a_thread_is_its_process_until_it_has_ended(shared: bool, world: World) -> None:
    """In a pid namespace of its own, as the commands of a sandbox are."""
    world.processes._shared = shared
    child = subprocess.Popen(
        [*UNSHARE, sys.executable, "-I", "-S", "-c", THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=True,
    )
    world.children.append(child)
    assert child.stdin is not None and child.stdout is not None
    assert int(child.stdout.readline()) == 2  # inside
    leader = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text())
    (thread,) = (int(name) for name in os.listdir(f"/proc/{leader}/task") if int(name) != leader)
    known = world.processes.of(thread)
    assert known is not None and (known.number, known.pid) == (leader, leader if shared else 1)
    assert known is world.processes.of(thread) is world.processes.of(leader) and known.threads == [leader, thread]
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert int(child.stdout.readline()) == 1  # it was joined, and its number is free
    while os.path.exists(f"/proc/{leader}/task/{thread}"):  # join(2) of pthreads returns a moment before it is gone
        os.sched_yield()
    assert world.processes.of(thread) is None and known.threads == [leader]
    assert world.processes.of(leader) is known


def test_what_is_over_the_bound_is_counted_and_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PROCESSES", 1)
    first, second = world.start(), world.start()
    before = len(os.listdir("/proc/self/fd"))
    assert world.processes.of(first.pid) is not None and world.lost == 0
    for count in (1, 2):  # not kept: its number may be another's tomorrow
        known = world.processes.of(second.pid)
        assert known is not None and known.pidfd == -1 and world.lost == count
    assert world.processes.alive() == 1 and len(os.listdir("/proc/self/fd")) == before + 1


def test_a_program_that_may_not_be_read_keeps_its_name(world: World) -> None:
    child = world.start()
    known = world.processes.of(child.pid)
    assert known is not None
    world.processes.may_close(child.pid, "/bin/closed")
    assert world.processes.program_of(known) == os.path.realpath(sys.executable)  # it can be read after all
    known.number = 1 << 30  # as if /proc showed nothing of it
    world.processes._closed[known.number] = "/bin/closed"
    assert world.processes.program_of(known) == "/bin/closed"


def test_it_leaves_no_descriptor() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    made = World()
    child = made.start()
    assert made.processes.of(child.pid) is not None
    made.close()
    assert child.stdin is not None and child.stdin.closed
    assert sorted(os.listdir("/proc/self/fd")) == before
