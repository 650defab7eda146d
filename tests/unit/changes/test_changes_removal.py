"""Trees of a command are removed whatever it made of them, and nothing outside of them is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.changes.removal import remove_tree

DEEP = 3_000  # more than Python recurses, and far more than PATH_MAX


def nest(path: Path, name: str, depth: int) -> None:
    path.mkdir()
    directory = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)


def test_a_tree_that_is_deeper_than_a_path(tmp_path: Path) -> None:
    nest(tmp_path / "t", "d" * 100, DEEP)
    (tmp_path / "beside").mkdir()
    remove_tree(str(tmp_path / "t"))
    assert os.listdir(tmp_path) == ["beside"]


def test_names_and_modes_of_a_command(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"t.1", b"t.2/t.3", b"closed/deep/deeper", b"work/work"):
        os.makedirs(os.fsencode(tree) + b"/" + name)
        Path(os.fsdecode(os.fsencode(tree) + b"/" + name + b"/file")).write_text("")
    os.mkfifo(tree / "fifo")
    for name in ("closed/deep", "closed", "work/work"):
        os.chmod(tree / name, 0)
    remove_tree(str(tree))
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    tree = tmp_path / "t"
    (tree / "sub").mkdir(parents=True)
    for place in (tree / "link", tree / "sub" / "link"):
        place.symlink_to(outside)
    remove_tree(str(tree))
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "kept").read_text() == "kept"
    (tmp_path / "t").symlink_to(outside)
    remove_tree(str(tmp_path / "t"))
    assert (outside / "kept").read_text() == "kept"
    assert not os.path.lexists(tmp_path / "t")


def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "gone"))
    remove_tree(str(tmp_path / "gone" / "deeper"))


@pytest.mark.as_user
def test_what_cannot_be_removed_stays_and_the_rest_goes() -> None:
    remove_tree("/usr/share/doc/bash")
    assert os.path.isdir("/usr/share/doc/bash")
