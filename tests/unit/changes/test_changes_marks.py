"""changes.marks: a checkpoint that another process makes becomes one event, in the order in which they were made."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    marks = Marks(held, seen.append)
    assert select.select([marks.fd], [], [], 0)[0] == [] and seen == []  # the control: nothing was made since
    another(held, "a")
    another(held, "b")
    assert select.select([marks.fd], [], [], 20)[0] == [marks.fd]
    marks.look()
    marks.look()
    assert seen == [CheckpointMade("one", "a"), CheckpointMade("one", "b")]
    marks.close()


def test_one_that_takes_the_place_of_another_is_a_new_one(held: Held) -> None:
    seen: list[Event] = []
    marks = Marks(held, seen.append)
    another(held, "a")
    marks.look()
    another(held, "a", replace=True)
    marks.look()
    assert seen == [CheckpointMade("one", "a")] * 2
    marks.close()


def test_a_set_that_is_gone_says_nothing_and_ends_nothing(held: Held) -> None:
    seen: list[Event] = []
    marks = Marks(held, seen.append)
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


def test_its_descriptor_is_closed_once(held: Held) -> None:
    before = set(os.listdir("/proc/self/fd"))
    marks = Marks(held, print)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 1
    marks.close()
    marks.close()
    assert set(os.listdir("/proc/self/fd")) == before
    held.path = "/nowhere"
    with pytest.raises(FileNotFoundError):
        Marks(held, print)
    assert set(os.listdir("/proc/self/fd")) == before
