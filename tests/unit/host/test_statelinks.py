"""Links in a home that a command has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host import statelinks


def test_a_link_is_made_once_and_what_stood_there_is_moved_beside(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    (home / ".empty").mkdir(parents=True)
    (home / ".full").mkdir()
    (home / ".full" / "mine").write_text("mine")
    (home / ".other").symlink_to("/etc")
    for name in (".empty", ".full", ".other", ".new", ".local/share/deep"):
        for _again in range(2):
            statelinks.put(str(home), name, str(kept))
        assert os.readlink(home / name) == str(kept)
    [beside] = [each for each in home.iterdir() if each.name.startswith(".full.")]
    assert (beside / "mine").read_text() == "mine"
    assert {each.name for each in home.iterdir()} == {".empty", ".full", ".other", ".new", ".local", beside.name}


@pytest.mark.parametrize("made", ["link", "file"])
def test_nothing_that_was_made_inside_is_followed(tmp_path: Path, made: str) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    (outside / "share").mkdir(parents=True)
    if made == "link":
        (home / ".local").symlink_to(outside)
    else:
        (home / ".local").write_text("")
    with pytest.raises(HostError, match="made inside"):
        statelinks.put(str(home), ".local/share/deep", "/kept")
    assert not list((outside / "share").iterdir())
    (outside / "share" / "deep").symlink_to("/kept")  # the control: it could be made there
