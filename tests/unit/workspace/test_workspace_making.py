"""Which names may be made, as a backend that makes them asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane.plan.model import HeldTree
from membrane.workspace.making import Making


@pytest.fixture
def making(tmp_path: Path) -> Making:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    rows = (("hide", "*.pem"), ("readonly", "/kept/"))
    return Making((HeldTree(str(tmp_path), rows, (f"{tmp_path}/awaited",)),))


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("plain", "file", ""),
        ("d/plain", "directory", ""),
        ("key.pem", "file", "hidden"),
        ("d/key.pem", "directory", "hidden"),
        ("kept", "directory", "read-only"),
        ("kept/x", "file", "read-only"),
        ("awaited", "file", "protected name"),
        (".envrc", "file", "protected name"),
        (".git/hooks/pre-commit", "file", "protected name"),
        (".git/index.lock", "file", ""),
    ],
)
def test_the_reasons_are_those_of_the_policy(tmp_path: Path, making: Making, name: str, kind: str, reason: str) -> None:
    assert making(f"{tmp_path}/{name}", kind) == reason


def test_what_stands_is_judged_by_the_rules_alone(tmp_path: Path, making: Making) -> None:
    told = [making.standing(f"{tmp_path}/{name}", directory=False) for name in ("a.pem", "kept/x", ".envrc", "plain")]
    assert told == ["hidden", "read-only", "", ""]


def test_what_is_renamed_is_judged_by_what_it_holds(tmp_path: Path, making: Making) -> None:
    (tmp_path / "planted" / "hooks").mkdir(parents=True)
    (tmp_path / "planted" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    (tmp_path / "plain").mkdir()
    to = f"{tmp_path}/sub/.git"
    assert making(to, "directory", source=f"{tmp_path}/planted") == "protected name"
    assert making(f"{tmp_path}/moved", "directory", source=f"{tmp_path}/plain") == ""


def test_names_beyond_the_trees_are_nobodys(tmp_path: Path, making: Making) -> None:
    assert making(f"{tmp_path}-other/key.pem", "file") == ""


def test_a_configuration_changes_in_everyday_settings_unless_another_session_shows_it(
    tmp_path: Path, making: Making
) -> None:
    path, old = f"{tmp_path}/.git/config", b"[core]\n\tbare = false\n"
    everyday, other = b'[branch "a"]\n\tremote = origin\n', b"[core]\n\tfsmonitor = ./x\n"
    assert making.edit(path, old, old + everyday) == ""
    assert making.edit(path, old, old + other).startswith("core.fsmonitor is no everyday setting; git_config: ")
    leads = b'[remote "a"]\n\turl = %s/x.git\n' % bytes(tmp_path.parent / "home")
    assert making.edit(path, old, old + leads) == "", "the control"
    held = HeldTree(str(tmp_path), (), unguarded=(str(tmp_path.parent / "home"),))
    assert "git would run its hooks" in Making((held,)).edit(path, old, old + leads)
    assert Making((held,)).edit(path, old, old + everyday) == ""
    shared = Making((HeldTree(str(tmp_path), (), ()),), lambda asked: asked == path)
    assert shared.edit(path, old, old + everyday) == "another session shows this repository"
    assert shared.edit(f"{tmp_path}/sub/.git/config", old, old + everyday) == ""
