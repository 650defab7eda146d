"""Agent state that workspaces share: seeded into a new home, kept after the run, never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane import homes


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    home, agent = tmp_path / "home", tmp_path / "agents" / "claude"
    homes.prepare([str(home)], str(home), str(agent), [])
    return home, agent


def test_a_new_home_is_seeded_once(places: tuple[Path, Path]) -> None:
    home, agent = places
    (agent / "deep" / "er").mkdir(parents=True)
    (agent / ".claude.json").write_text("kept")
    (agent / "deep" / "er" / "state").write_text("nested")
    names = [".claude.json", "deep/er/state", "absent"]
    homes.prepare([str(home)], str(home), str(agent), names)
    assert (home / ".claude.json").read_text() == "kept"
    assert (home / "deep/er/state").read_text() == "nested"
    assert (home / ".claude.json").stat().st_mode & 0o777 == 0o600
    (home / ".claude.json").write_text("mine")
    homes.prepare([str(home)], str(home), str(agent), names)
    assert (home / ".claude.json").read_text() == "mine"


def test_what_the_run_changed_is_kept(places: tuple[Path, Path]) -> None:
    home, agent = places
    (home / "deep").mkdir()
    (home / ".claude.json").write_text("new")
    (home / "deep" / "state").write_text("nested")
    homes.keep(str(home), str(agent), [".claude.json", "deep/state"])
    assert (agent / ".claude.json").read_text() == "new"
    assert (agent / "deep" / "state").read_text() == "nested"
    assert sorted(os.listdir(agent)) == [".claude.json", "deep"]  # no temporary file is left


@pytest.mark.parametrize("kind", ["link", "parent", "fifo", "directory", "large"])
def test_nothing_but_a_regular_file_of_the_home_is_kept(places: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    home, agent = places
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "state").write_text("SECRET")
    name = "d/state" if kind == "parent" else "state"
    if kind == "link":
        (home / "state").symlink_to(secret / "state")
    elif kind == "parent":
        (home / "d").symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(home / "state")
    elif kind == "directory":
        (home / "state").mkdir()
    else:
        with (home / "state").open("wb") as file:
            file.truncate(homes.LARGEST + 1)
    homes.keep(str(home), str(agent), [name])
    assert not agent.exists() or not any(path.is_file() for path in agent.rglob("*"))


def test_a_seed_does_not_go_through_a_link_of_the_home(places: tuple[Path, Path], tmp_path: Path) -> None:
    home, agent = places
    target = tmp_path / "target"
    target.mkdir()
    (agent / "d").mkdir(parents=True)
    (agent / "d" / "state").write_text("kept")
    (home / "d").symlink_to(target)
    homes.prepare([str(home)], str(home), str(agent), ["d/state"])
    assert os.listdir(target) == []


def test_without_a_kept_home_nothing_is_copied(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "state").write_text("kept")
    homes.prepare([], "", str(agent), ["state"])
    homes.keep("", str(agent), ["state"])
    assert os.listdir(tmp_path) == ["agent"]
