"""Three texts merged by git: only where nothing is in the way, and without anything of the caller's git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.changes import merge

BASE = b"".join(b"line %d\n" % number for number in range(20))
HOST = BASE.replace(b"line 2\n", b"of the host\n")
INSIDE = BASE.replace(b"line 15\n", b"of the command\n")

pytestmark = pytest.mark.needs_tool("git")


def test_changes_in_different_places_are_both_there() -> None:
    both = merge.merged(BASE, HOST, INSIDE, root="/nonexistent")
    assert both == HOST.replace(b"line 15\n", b"of the command\n")
    assert merge.merged(BASE, HOST, HOST, root="/nonexistent") == HOST
    assert merge.merged(BASE, BASE, INSIDE, root="/nonexistent") == INSIDE


def test_a_conflict_gives_nothing_and_no_markers() -> None:
    assert merge.merged(BASE, HOST, BASE.replace(b"line 2\n", b"else\n"), root="/nonexistent") is None


def test_what_is_no_text_or_too_large_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merge.merged(BASE, HOST, INSIDE + b"\0", root="/nonexistent") is None
    monkeypatch.setattr(merge, "LARGEST", len(BASE))
    assert merge.merged(BASE, HOST + b"more\n" * 100, INSIDE, root="/nonexistent") is None


def test_without_git_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert merge.merged(BASE, HOST, INSIDE, root="/nonexistent") is None


def test_configuration_of_the_caller_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tattributesFile = /nowhere\n[broken\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "x")
    before = set(os.listdir(tmp_path))
    assert merge.merged(BASE, HOST, INSIDE, root="/nonexistent") is not None
    assert set(os.listdir(tmp_path)) == before
