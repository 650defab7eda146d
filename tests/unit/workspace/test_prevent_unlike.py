"""Prevention.unlike: what the guard puts aside is told of once, also between its two steps."""

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
