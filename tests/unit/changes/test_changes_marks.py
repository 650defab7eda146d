"""changes.marks: a checkpoint that another process makes becomes one event, in the order in which they were made."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane import clock
from membrane.changes import store
from membrane.changes.marks import Marks
from membrane.changes.store import Held
from membrane.events import CheckpointMade, Event


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    (tmp_path / "ws").mkdir()
    with store.begin(str(tmp_path / "state"), "one", str(tmp_path / "ws"), "a run", "s") as made:
        yield made


def another(held: Held, label: str, *, replace: bool = False) -> None:
    """As a process beside it, which was lent the lock."""
    other = Held(held.state, held.name, os.dup(held.fd))
    other.checkpoint(label, replace=replace)
    other.leave()


def test_each_new_checkpoint_is_reported_once(held: Held) -> None:
    another(held, "before")
    held.look_again()
    seen: list[Event] = []
    marks = Marks(held, lambda event, _at: seen.append(event))
    marks.watch()
    assert select.select([marks.fd], [], [], 0)[0] == [] and seen == []  # the control: nothing was made since
    another(held, "a")
    another(held, "b")
    assert select.select([marks.fd], [], [], 60)[0] == [marks.fd]
    marks.look()
    marks.look()
    assert seen == [CheckpointMade("one", "a"), CheckpointMade("one", "b")]
    marks.close()


@pytest.mark.parametrize("ahead", [0, 3_600_000_000_000, -3_600_000_000_000])
def test_its_time_is_when_it_was_made_and_not_when_it_is_seen(
    held: Held, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Also where the clock of the machine was set before, by which the set is stamped and the record is not."""
    times: list[int] = []
    marks = Marks(held, lambda _event, at: times.append(at))
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + ahead)
    before = clock.time_ns()
    another(held, "a")
    after = clock.time_ns()
    while clock.time_ns() < after + 20_000_000:
        pass  # the supervisor comes late
    marks.look()
    assert before - 1_000_000 <= times[0] <= after + 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: wall() + ahead + 3_600_000_000_000)
    another(held, "b")
    monkeypatch.setattr(time, "time_ns", wall)  # set between the two: the time is unknown, and about now
    before = clock.time_ns()
    marks.look()
    assert before - 1_000_000_000 <= times[1] <= clock.time_ns()
    marks.close()


def test_one_that_takes_the_place_of_another_is_a_new_one(held: Held) -> None:
    seen: list[Event] = []
    marks = Marks(held, lambda event, _at: seen.append(event))
    another(held, "a")
    marks.look()
    another(held, "a", replace=True)
    marks.look()
    assert seen == [CheckpointMade("one", "a")] * 2
    marks.close()


def test_a_set_that_is_gone_says_nothing_and_ends_nothing(held: Held) -> None:
    seen: list[Event] = []
    marks = Marks(held, lambda event, _at: seen.append(event))
    meta = Path(held.path, "meta")
    kept = meta.read_bytes()
    meta.write_bytes(b"no change set")
    marks.look()
    assert seen == []
    meta.write_bytes(kept)
    another(held, "a")
    marks.look()  # the control
    assert seen == [CheckpointMade("one", "a")]
    marks.close()


def test_what_was_made_before_it_is_watched_is_reported_then_or_by_a_look(held: Held) -> None:
    """No watch is begun at the start of a run: the end of one takes longer than all else that a review adds."""
    seen: list[Event] = []
    before = set(os.listdir("/proc/self/fd"))
    marks = Marks(held, lambda event, _at: seen.append(event))
    assert set(os.listdir("/proc/self/fd")) == before
    another(held, "a")
    marks.look()
    another(held, "b")
    assert seen == [CheckpointMade("one", "a")]
    marks.watch()
    assert seen == [CheckpointMade("one", "a"), CheckpointMade("one", "b")]
    marks.close()


def test_its_descriptor_is_closed_once(held: Held) -> None:
    before = set(os.listdir("/proc/self/fd"))
    marks = Marks(held, print)
    marks.watch()
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    marks.close()
    marks.close()
    assert set(os.listdir("/proc/self/fd")) == before
    held.path = "/nowhere"
    with pytest.raises(FileNotFoundError):
        Marks(held, print).watch()
    assert set(os.listdir("/proc/self/fd")) == before
