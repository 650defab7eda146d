"""Prevention while the guard works: what that puts aside is told of once, also between its two steps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.workspace import prevent
from membrane.workspace.commits import encoded, tips
from membrane.workspace.gitdir import REFUSED

NAME = ".mcp.json"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text("committed\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def asked(tree: Path) -> Iterator[prevent.Prevention]:
    """A merge has written something else under the name, was told of it, and the guard puts that aside."""
    made = prevent.Prevention(os.open(tree, os.O_PATH | os.O_DIRECTORY), encoded(tips(str(tree))[0]))
    try:
        (tree / NAME).unlink()
        assert not made.objection(NAME, fresh=True)
        (tree / NAME).write_text("a conflict\n")
        assert made.unlike() == NAME
        (tree / NAME).rename(tree / f"{NAME}{REFUSED}1")
        yield made
    finally:
        made.close()


def test_the_guard_is_waited_for_that_puts_the_content_of_a_commit_back(
    tree: Path, asked: prevent.Prevention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prevent.time, "sleep", lambda _seconds: (tree / NAME).write_text("committed\n"))
    assert asked.unlike() == ""


def test_what_does_not_come_back_is_told_of(asked: prevent.Prevention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prevent, "LONGEST_BACK", 0.01)
    assert asked.unlike() == NAME


def test_what_comes_back_as_something_else_is_told_of(
    tree: Path, asked: prevent.Prevention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prevent.time, "sleep", lambda _seconds: (tree / NAME).write_text("another\n"))
    assert asked.unlike() == NAME


@pytest.mark.parametrize("when", ["never", "before", "meanwhile"])
def test_a_worktree_beside_the_workspace_is_refused_whenever_the_guard_takes_its_link(
    tree: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """git goes on to ``commondir`` while the guard puts ``gitdir`` aside, which is then neither judged nor there."""
    made = prevent.Prevention(os.open(tree, os.O_PATH | os.O_DIRECTORY))
    place = tree / ".git/worktrees/w"
    place.mkdir(parents=True)
    link, real = place / "gitdir", prevent.judge

    def judge(root_fd: int, path: str) -> str:
        if when == "meanwhile":
            link.rename(f"{link}{REFUSED}1")
        return real(root_fd, path)

    try:
        link.write_text(f"{tree}/w/.git\n")
        assert made.objection(".git/worktrees/w/commondir") == "", "the control: one in the workspace"
        link.write_text("/elsewhere/w/.git\n")
        if when == "before":
            link.rename(f"{link}{REFUSED}1")
        monkeypatch.setattr(prevent, "judge", judge)
        assert "is added outside of the sandbox" in made.objection(".git/worktrees/w/commondir")
    finally:
        made.close()
