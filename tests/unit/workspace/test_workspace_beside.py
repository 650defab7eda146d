"""What configuration names in each work tree: which of them a path is or lies in, and seen from where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.workspace.beside import Beside
from membrane.workspace.programs import beside


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("hooks", [("", "hooks", "")]),
        ("a/hooks/x/y", [("a", "a/hooks", "")]),
        ("a/HOOKS./x", [("a", "a/HOOKS.", "")]),
        ("a/tools", [("a", "a/tools", "fsm.sh")]),
        ("a/tools/fsm.sh", [("a", "a/tools/fsm.sh", "")]),
        ("a/tools/other", []),
        ("a/hooks/b/hooks", [("a", "a/hooks", ""), ("a/hooks/b", "a/hooks/b/hooks", "")]),
        ("known/hooks/x", []),
        ("a/own", [("a", "a/own", "")]),
        ("a/.git/hooks/x", []),
        ("a/myhooks", []),
    ],
)
def test_places(path: str, places: list[tuple[str, str, str]]) -> None:
    names = Beside(["hooks", "tools/fsm.sh", ".git/own"], ["own", "hooks"], ["known"])
    assert sorted(names.places(path)) == sorted((*place, path.endswith("own")) for place in places)


def test_of() -> None:
    names = Beside(["hooks", ".git/own"], ["own"], ["known"])
    assert (names.of(""), names.of("a", linked=False)) == (["hooks", "own"], ["a/hooks"])
    assert names.of("known") == names.of("a/.git") == []


def test_what_configuration_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    (root / ".git").mkdir(parents=True)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    (home / ".gitconfig").write_text("[core]\n\thooksPath = ./.mine/\n[alias]\n\tx = !make build\n")
    (root / ".git/config").write_text("[core]\n\thooksPath = ../up\n\tfsmonitor = tools/fsm.sh\n\teditor = ~/x/y\n")
    assert beside(str(root), [".git"]) == ({".mine"}, {"tools/fsm.sh"}, {""})
    assert beside(str(root), []) == ({".mine"}, frozenset(), frozenset())
