"""host.supervised_edits: what is left of an edit that is not made (``tests/kernel/test_inside_git_config.py``: git)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host.supervised_edits import Edits


class Place:
    slash = False

    def __init__(self, directory: Path, name: str) -> None:
        self.parent = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        self.name, self.path = name.encode(), f"{directory}/{name}"

    def open(self) -> int:
        return os.open(self.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.parent)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    (tmp_path / "config").write_text("old")
    (tmp_path / "config.lock").write_text("new")
    made = Place(tmp_path, "config.lock"), Place(tmp_path, "config")
    yield made
    for each in made:
        os.close(each.parent)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_edit_that_is_not_made_leaves_no_name_and_no_descriptor(
    tmp_path: Path, places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = places
    outside = [True]

    def judge(path: str, _old: bytes, _new: bytes) -> str:
        if outside[0]:
            Path(path).write_text("of another program")
        return ""

    edits, before = Edits([target.path], judge), descriptors()
    assert edits.carry(source, target) == "it was changed meanwhile"
    assert descriptors() == before and sorted(os.listdir(tmp_path)) == ["config", "config.lock"]
    outside[0] = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_names, **_more: (_ for _ in ()).throw(OSError(28, "no space")))
        with pytest.raises(OSError, match="no space"):
            edits.carry(source, target)
    assert descriptors() == before and sorted(os.listdir(tmp_path)) == ["config", "config.lock"]
    assert (tmp_path / "config").read_text() == "of another program"
    assert edits.carry(source, target) == ""  # the control
    assert os.listdir(tmp_path) == ["config"] and (tmp_path / "config").read_text() == "new"
    os.close(edits.put[target.path])
