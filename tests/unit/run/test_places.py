"""run.places: mount points that another run has in its view."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from membrane.errors import HostError
from membrane.host.ready import ready
from membrane.plan.model import Bind, Overlay, Pin, SandboxPlan
from membrane.run import places
from membrane.run.places import Places

if TYPE_CHECKING:
    from membrane.plan.model import MountOp

HOME = "/home/u"


class FakeCell:
    """The mounts of one sandbox; ``deaf``: what it is asked for does not become one."""

    def __init__(self, there: Sequence[str], *, deaf: bool = False) -> None:
        self.there, self.deaf, self.hiding, self.ended = set(there), deaf, False, False

    def mount_points(self) -> frozenset[str]:
        if self.ended:
            raise ProcessLookupError
        return frozenset(self.there)

    def hide(self, ops: Sequence[MountOp]) -> None:
        assert all(isinstance(op, Pin) for op in ops)
        if not self.deaf:
            self.there |= {op.target for op in ops}


class Run:
    """One run with a workspace below the home, in a home that all have."""

    def __init__(self, state: Path, session: str, workspace: str, *, nested: bool = False, **more: Any) -> None:
        operations = (
            Bind(f"{state}/home", HOME, writable=True, own=True, make=True),
            Overlay(f"{HOME}/.cargo", (f"{HOME}/.cargo",), f"{state}/layers/x", make=True, own=True, fallback=True),
            Bind(workspace, workspace, writable=True, own=True, make=True),
        )
        hardening = type("Hardening", (), {"nested": nested})
        plan = cast(SandboxPlan, type("Plan", (), {"mounts": operations, "hardening": hardening}))
        self.places = Places(str(state), session, plan, ())
        self.pins = [op.target for op in self.places.pins()]
        above = [workspace.rpartition("/")[0]]
        self.cell = FakeCell([HOME, workspace, *(path for path in above if path != HOME), *self.pins], **more)
        self.handlers: dict[int, Callable[[], None]] = {}

    def hold(self) -> None:
        self.places.hold(cast(Any, self.cell))
        self.places.watch(self.handlers.__setitem__, self.handlers.__delitem__)

    def serve(self, end: int) -> None:
        while end not in (found := ready((*self.handlers, end))[0]):
            for fd in found:
                self.handlers[fd]()


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
            thread.join(30)
        for run in self.all:
            run.places.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.close()
    assert os.listdir(tmp_path / "places") == []


def test_each_run_has_the_places_of_the_others(runs: Runs) -> None:
    first = runs.begin("a", f"{HOME}/x/one")
    second = runs.begin("b", f"{HOME}/y/two")
    assert first.pins == [] and second.pins == [f"{HOME}/x", f"{HOME}/x/one"], "outer ones first"
    assert {f"{HOME}/y", f"{HOME}/y/two"} <= first.cell.there
    third = runs.begin("c", f"{HOME}/x/one")
    assert third.pins == [f"{HOME}/y", f"{HOME}/y/two"], "its own are mounts of the plan"
    assert f"{HOME}/.cargo" not in second.cell.there, "it was mounted nowhere"


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


def test_records_of_dead_runs_are_removed(runs: Runs) -> None:
    directory = runs.state / "places"
    directory.mkdir(mode=0o700)
    for name in ("dead", "dead.sock"):
        (directory / name).write_bytes(b"")
    assert runs.begin("a", f"{HOME}/x/one").pins == []
    assert sorted(os.listdir(directory)) == ["a", "a.sock"]


def test_a_record_of_another_version_stops_the_run(runs: Runs) -> None:
    directory = runs.state / "places"
    directory.mkdir(mode=0o700)
    with (directory / "other").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="another version"):
            Run(runs.state, "a", f"{HOME}/x/one")
    runs.begin("b", f"{HOME}/x/one")  # the lock is free again, and so is the record
