"""Hidden files outside of the workspace: what replaces one is masked, by whichever directory on the way it came."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from membrane.plan.model import Mask
from membrane.workspace import held
from membrane.workspace.held import Held

if TYPE_CHECKING:
    from membrane.plan.model import MountOp

SECONDS = 10


class Masked:
    """Takes the operations that a ``Held`` asks for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.ops: list[MountOp] = []
        self.held = Held(map(str, paths), self.ops.extend)

    def after(self) -> list[tuple[str, bool]]:
        """What was masked since the last time; waits for the kernel to say something."""
        assert select.select([self.held], [], [], SECONDS)[0]
        self.held.on_change()
        found = [(op.target, op.directory) for op in self.ops if isinstance(op, Mask)]
        assert len(found) == len(self.ops)
        self.ops.clear()
        return found

    def is_quiet(self) -> bool:
        return not select.select([self.held], [], [], 0)[0]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "keys" / "key"
    path.parent.mkdir(parents=True)
    path.write_text("SECRET")
    return path


@pytest.fixture
def masked(key: Path) -> Iterator[Masked]:
    made = Masked([key])
    yield made
    made.held.close()
    made.held.close()  # a second time does nothing


def test_an_atomic_save_is_masked_again(masked: Masked, key: Path) -> None:
    (key.parent / "new").write_text("SECRET 2")
    os.rename(key.parent / "new", key)
    assert masked.after() == [(str(key), False)]


def test_other_names_of_the_directory_are_nobody_s_affair(masked: Masked, key: Path) -> None:
    (key.parent / "other").write_text("x")
    (key.parent / "keys").write_text("x")  # a name that is on the way, elsewhere
    if not masked.is_quiet():
        assert masked.after() == []


def test_a_directory_on_the_way_that_is_replaced(masked: Masked, key: Path) -> None:
    fresh = key.parent.parent / "fresh"
    fresh.mkdir()
    (fresh / "key").write_text("SECRET 3")
    os.rename(key.parent, key.parent.parent / "old")
    os.rename(fresh, key.parent)
    assert masked.after() == [(str(key), False)]
    # The new directory is watched as the old one was.
    (key.parent / "new").write_text("SECRET 4")
    os.rename(key.parent / "new", key)
    assert masked.after() == [(str(key), False)]


def test_what_was_not_there_is_masked_when_it_appears(tmp_path: Path) -> None:
    path = tmp_path / "later" / "key"
    made = Masked([path])
    try:
        (tmp_path / "later").mkdir()
        made.after()  # the directory; nothing to mask yet
        path.mkdir()
        assert (str(path), True) in made.after()
    finally:
        made.held.close()


def test_what_is_gone_again_needs_no_mask(masked: Masked, key: Path) -> None:
    key.unlink()
    key.write_text("x")
    key.unlink()
    assert masked.after() == []


@pytest.mark.as_user
def test_below_a_directory_that_may_be_searched_and_not_listed(key: Path) -> None:
    """Mode 0711, as many a /home: what is below it is watched, and it is no loss that it is not."""
    key.parent.parent.chmod(0o111)
    made = Masked([key])
    try:
        (key.parent / "new").write_text("SECRET 2")
        os.rename(key.parent / "new", key)
        assert made.after() == [(str(key), False)] and made.held.unwatched == {}
    finally:
        made.held.close()
        key.parent.parent.chmod(0o700)


@pytest.mark.as_user
def test_a_directory_that_may_be_changed_and_not_listed_is_named(key: Path) -> None:
    key.parent.chmod(0o311)
    made = Masked([key])
    try:
        assert made.held.unwatched == {str(key.parent): "Permission denied"}
    finally:
        made.held.close()
        key.parent.chmod(0o700)


def test_more_directories_than_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_MOST_WATCHED", 3)
    made = Masked([tmp_path / "key"])
    assert list(made.held.unwatched.values()) == ["3 directories are watched already"]
    made.held.close()
