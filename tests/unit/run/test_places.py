"""run.places: mount points that another run has in its view."""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from membrane.backend import Hidden
from membrane.errors import HostError
from membrane.host.ready import ready
from membrane.plan.model import Bind, Overlay, Pin, SandboxPlan
from membrane.run import door, places
from membrane.run.places import Places

if TYPE_CHECKING:
    from membrane.backend import News
    from membrane.plan.model import MountOp

HOME = "/home/u"


class FakeCell:
    """The mounts of one sandbox; ``deaf``: what it is asked for does not become one."""

    def __init__(self, there: Sequence[str], *, deaf: bool = False) -> None:
        self.there, self.deaf, self.ended = set(there), deaf, False
        self._news, self._told = os.pipe()
        self.pinned: list[str] = []
        self._hiding = 0

    @property
    def hiding(self) -> bool:
        return self._hiding > 0

    def descriptors(self) -> tuple[int, ...]:
        return (self._news,)

    def read(self, descriptor: int) -> News:
        assert os.read(descriptor, 1) == b"h"
        self._hiding -= 1
        return Hidden()

    def close(self) -> None:
        os.close(self._news)
        os.close(self._told)

    def mount_points(self) -> frozenset[str]:
        if self.ended:
            raise ProcessLookupError
        return frozenset(self.there)

    def hide(self, ops: Sequence[MountOp]) -> None:
        assert all(isinstance(op, Pin) for op in ops)
        self.pinned += [op.target for op in ops]
        if not self.deaf:
            self.there |= {op.target for op in ops}
        self._hiding += 1
        os.write(self._told, b"h")


class Run:
    """One run with a workspace below the home, in a home that all have."""

    def __init__(
        self,
        state: Path,
        session: str,
        workspace: str,
        *,
        nested: bool = False,
        over: str = "",
        toolchain: bool = False,
        **more: Any,
    ) -> None:
        operations = (
            Bind(f"{state}/home", HOME, writable=True, own=True, make=True),
            Overlay(f"{HOME}/.cargo", (f"{HOME}/.cargo",), f"{state}/layers/x", make=True, own=True, fallback=True),
            *([Bind("/srv/tree", over, own=True, make=True)] if over else []),
            Bind(workspace, workspace, writable=True, own=True, make=True),
        )
        self.session = session
        hardening = type("Hardening", (), {"nested": nested})
        plan = cast(SandboxPlan, type("Plan", (), {"mounts": operations, "hardening": hardening}))
        self.places = Places(str(state), session, plan, ())
        own = [HOME, workspace, workspace.rpartition("/")[0], *([over] if over else [])]
        self.cell = FakeCell([*own, *([f"{HOME}/.cargo"] if toolchain else [])], **more)
        self.handlers: dict[int, Callable[[], None]] = {}

    def hold(self) -> None:
        self.places.hold(cast(Any, self.cell))
        self.places.watch(self.handlers.__setitem__, self.handlers.__delitem__)

    def serve(self, end: int) -> None:
        [news] = self.cell.descriptors()
        while end not in (found := ready((*self.handlers, end, news))[0]):
            for fd in found - {news}:
                self.handlers[fd]()
            if news in found:
                self.cell.read(news)
                self.places.on_mounted()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)  # between two looks at a condition
    raise TimeoutError


class Runs:
    """Runs in one state; those that answer do so in threads."""

    def __init__(self, state: Path) -> None:
        self.state, self.all = state, list[Run]()
        self._ends: list[tuple[threading.Thread, int]] = []

    def begin(self, session: str, workspace: str, *, answers: bool = True, **more: Any) -> Run:
        run = Run(self.state, session, workspace, **more)
        self.all.append(run)
        run.hold()
        if answers:
            theirs, ours = os.pipe()
            thread = threading.Thread(target=run.serve, args=(theirs,))
            thread.start()
            self._ends.append((thread, ours))
        return run

    def close(self) -> None:
        for thread, end in self._ends:
            os.close(end)
            thread.join(60)
        for run in self.all:
            run.places.close()
            run.cell.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.close()
    assert os.listdir(tmp_path / "places") == []


def test_each_run_has_the_places_of_the_others(runs: Runs) -> None:
    first = runs.begin("a", f"{HOME}/x/one")
    second = runs.begin("b", f"{HOME}/y/two")
    assert first.cell.pinned == [f"{HOME}/y", f"{HOME}/y/two"], "outer ones first"
    assert second.cell.pinned == [f"{HOME}/x", f"{HOME}/x/one"]
    third = runs.begin("c", f"{HOME}/x/one")
    assert third.cell.pinned == [f"{HOME}/y", f"{HOME}/y/two"], "its own are mounts of the plan"
    assert len(first.cell.pinned) == len(second.cell.pinned) == 2, "they have them"
    assert f"{HOME}/.cargo" not in second.cell.there, "it was mounted nowhere"


@pytest.mark.parametrize("options", [{"deaf": True}, {"nested": True}, {}])
def test_a_toolchain_is_kept_where_it_can_be(runs: Runs, options: dict[str, bool]) -> None:
    """Nothing is protected by its being there."""
    first = runs.begin("a", f"{HOME}/x/one", **options)
    runs.begin("b", f"{HOME}/x/one", toolchain=True)
    assert first.cell.pinned == ([] if options.get("nested") else [f"{HOME}/.cargo"])
    assert (f"{HOME}/.cargo" in first.cell.there) == (not options)


def test_what_another_mount_covers_is_out_of_reach(runs: Runs) -> None:
    first = runs.begin("a", f"{HOME}/w", over=f"{HOME}/x")
    runs.begin("b", f"{HOME}/x/one")
    assert first.cell.pinned == []
    runs.begin("c", f"{HOME}/y/one")
    assert first.cell.pinned == [f"{HOME}/y", f"{HOME}/y/one"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"deaf": True}, "no directory there any more"),  # the command has put something else there
        ({"nested": True}, "copies of the view"),
        ({"answers": False}, "does not answer"),
    ],
)
def test_a_run_does_not_start_beside_one_that_keeps_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], why: str
) -> None:
    if options.get("answers") is False:
        monkeypatch.setattr(places, "ANSWERS", 0.05)
    runs.begin("a", f"{HOME}/x/one", **options)
    with pytest.raises(HostError, match=why) as refused:
        runs.begin("b", f"{HOME}/y/two")
    assert "session a" in str(refused.value)
    runs.all[-1].places.close()
    runs.begin("c", f"{HOME}/x/one")  # it has nothing that the first one has not


def test_a_run_that_is_stopped_is_not_waited_for(runs: Runs) -> None:
    """Here it is a process that listens for another one."""
    pid = os.fork()
    if pid == 0:
        try:
            Run(runs.state, "a", f"{HOME}/x/one").hold()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        with pytest.raises(HostError, match="is it stopped"):
            runs.begin("b", f"{HOME}/y/two")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    runs.all[-1].places.close()
    runs.begin("c", f"{HOME}/y/two")  # the record of a run that was killed is no run


def test_runs_that_start_at_a_time_find_each_other(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them asks: who waits for an answer answers itself."""
    listen, one = places.listen, threading.Lock()

    def listen_alone(path: str, backlog: int) -> socket.socket:
        with one:  # the umask is the whole process's; a run is a process of its own
            return listen(path, backlog)

    monkeypatch.setattr(places, "listen", listen_alone)
    both = [Run(runs.state, name, f"{HOME}/{name}/w") for name in ("a", "b")]
    runs.all += both
    end, ours = os.pipe()

    def live(run: Run) -> None:
        run.hold()
        run.serve(end)

    threads = [threading.Thread(target=live, args=(run,)) for run in both]
    try:
        for thread in threads:
            thread.start()
        for run, other in (both, both[::-1]):
            until(lambda run=run, other=other: f"{HOME}/{other.session}/w" in run.cell.there)  # type: ignore[misc]
    finally:
        os.close(ours)
        for thread in threads:
            thread.join(60)
        os.close(end)


def test_a_run_whose_command_has_ended_is_in_no_ones_way(runs: Runs) -> None:
    runs.begin("a", f"{HOME}/x/one").cell.ended = True
    runs.begin("b", f"{HOME}/y/two")


def test_what_was_taken_away_meanwhile_is_noticed(runs: Runs) -> None:
    """Between its own mount and the answer of the others."""
    first = runs.begin("a", f"{HOME}/x/one")
    second = Run(runs.state, "b", f"{HOME}/y/two")
    runs.all.append(second)
    hide = first.cell.hide

    def race(ops: Sequence[MountOp]) -> None:
        second.cell.there.discard(f"{HOME}/y/two")
        hide(ops)

    first.cell.hide = race  # type: ignore[method-assign]
    with pytest.raises(HostError, match="moved or removed"):
        second.hold()


def test_what_is_gone_before_the_first_look_is_noticed(runs: Runs) -> None:
    run = Run(runs.state, "a", f"{HOME}/x/one")
    runs.all.append(run)
    run.cell.there.discard(f"{HOME}/x/one")
    with pytest.raises(HostError, match="moved or removed"):
        run.hold()
    other = Run(runs.state, "b", f"{HOME}/x/one")
    runs.all.append(other)
    other.cell.ended = True
    with pytest.raises(HostError, match="has ended"):
        other.hold()
    runs.begin("c", f"{HOME}/x/one")  # the control, and there is a record now


def test_more_places_than_another_run_takes_stop_the_start(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST", 2)
    runs.begin("a", f"{HOME}/x/one")
    monkeypatch.setattr(places, "MOST", 1)
    with pytest.raises(HostError, match="2 of them are too many"):
        runs.begin("b", f"{HOME}/x/one")


def test_what_is_no_question_gets_no_answer(runs: Runs) -> None:
    run = runs.begin("a", f"{HOME}/x/one")
    channel = door.reach(f"{runs.state}/places/a.sock")
    try:
        channel.settimeout(60)
        channel.send(b"\xff")
        assert channel.recv(10) == b""
    finally:
        channel.close()
    runs.begin("b", f"{HOME}/x/one")  # it goes on
    assert run.cell.pinned == []


def test_records_of_dead_runs_are_removed(runs: Runs) -> None:
    directory = runs.state / "places"
    directory.mkdir(mode=0o700)
    for name in ("dead", "dead.sock"):
        (directory / name).write_bytes(b"")
    assert runs.begin("a", f"{HOME}/x/one").cell.pinned == []
    assert sorted(os.listdir(directory)) == ["a", "a.sock"]


def test_a_record_that_is_taken_for_a_dead_ones_is_made_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run looks between the creation of a record and its lock: the socket must be there afterwards."""
    looks = list[list[str]]()

    class Locks:
        LOCK_EX, LOCK_SH, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB

        @staticmethod
        def flock(fd: int, how: int) -> None:
            if how == fcntl.LOCK_EX and not looks:
                looks.append(os.listdir(runs.state / "places"))
                assert not list(places._others(f"{runs.state}/places", "b"))
                looks.append(os.listdir(runs.state / "places"))
            fcntl.flock(fd, how)

    monkeypatch.setattr(places, "fcntl", Locks)
    first = runs.begin("a", f"{HOME}/x/one")
    assert "a" in looks[0] and looks[1] == [], "it was removed"
    runs.begin("b", f"{HOME}/y/two")
    assert f"{HOME}/y/two" in first.cell.there


def test_a_record_of_another_version_stops_the_run(runs: Runs) -> None:
    directory = runs.state / "places"
    directory.mkdir(mode=0o700)
    with (directory / "other").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        runs.begin("a", f"{HOME}/x/one")  # one that is not written yet: that run will find this one
        file.write(marshal.dumps((0, (), ())))
        file.flush()
        with pytest.raises(HostError, match="another version"):
            runs.begin("b", f"{HOME}/x/one")
    runs.begin("c", f"{HOME}/x/one")  # it is a dead run's now
