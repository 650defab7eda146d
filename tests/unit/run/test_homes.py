"""Agent state that workspaces share: seeded into a new home, kept after the run, never through a link."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane.run import homes


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    home, agent = tmp_path / "home", tmp_path / "agents" / "claude"
    homes.prepare([str(home)], str(home), str(agent), [])
    return home, agent


def test_a_new_home_is_seeded(places: tuple[Path, Path]) -> None:
    home, agent = places
    (agent / "deep" / "er").mkdir(parents=True)
    (agent / ".claude.json").write_text("kept")
    (agent / "deep" / "er" / "state").write_text("nested")
    names = [".claude.json", "deep/er/state", "absent"]
    homes.prepare([str(home)], str(home), str(agent), names)
    assert (home / ".claude.json").read_text() == "kept"
    assert (home / "deep/er/state").read_text() == "nested"
    assert (home / ".claude.json").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(home)) == [".claude.json", "deep"]  # no temporary file is left


def test_what_the_run_changed_is_kept(places: tuple[Path, Path]) -> None:
    home, agent = places
    (home / "deep").mkdir()
    (home / ".claude.json").write_text("new")
    (home / "deep" / "state").write_text("nested")
    homes.keep(str(home), str(agent), [".claude.json", "deep/state"])
    assert (agent / ".claude.json").read_text() == "new"
    assert (agent / "deep" / "state").read_text() == "nested"
    assert sorted(os.listdir(agent)) == [".base", ".claude.json", "deep"]


class Agent:
    """The shared state of one agent and the homes of some workspaces, with runs in them."""

    NAME = ".claude.json"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared = directory / "agents/claude"
        self.clock = 10**9

    def begin(self, workspace: str) -> Path:
        home = self.directory / "homes" / workspace
        homes.prepare([str(home)], str(home), str(self.shared), [self.NAME])
        return home / self.NAME

    def end(self, workspace: str) -> None:
        homes.keep(str(self.directory / "homes" / workspace), str(self.shared), [self.NAME])

    def write(self, path: Path, text: str) -> None:
        """Each write is a second later than the one before."""
        path.write_text(text)
        self.clock += 10**9
        os.utime(path, ns=(self.clock, self.clock))

    def read(self) -> str:
        return (self.shared / self.NAME).read_text()

    def replaced(self) -> list[str]:
        directory = self.shared / ".replaced"
        return [path.read_text() for path in directory.iterdir()] if directory.is_dir() else []


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_a_run_that_only_reads_restores_nothing(agent: Agent) -> None:
    agent.write(agent.begin("a"), "A")
    agent.end("a")
    agent.write(agent.begin("b"), "B")
    agent.end("b")
    assert agent.begin("a").read_text() == "B"
    agent.end("a")
    assert agent.read() == "B"
    assert agent.replaced() == []


def test_an_edit_by_hand_reaches_every_home(agent: Agent) -> None:
    agent.write(agent.begin("a"), "A")
    agent.end("a")
    agent.write(agent.shared / agent.NAME, "by hand")
    assert agent.begin("a").read_text() == "by hand"


def test_a_killed_run_is_brought_together_by_the_next(agent: Agent) -> None:
    agent.write(agent.begin("a"), '{"login": 1}')
    agent.end("a")
    agent.write(agent.begin("a"), '{"login": 2}')  # killed: no end
    assert agent.begin("a").read_text() == '{"login": 2}'
    assert agent.read() == '{"login": 2}'


def test_interleaved_runs_keep_what_each_changed(agent: Agent) -> None:
    agent.write(agent.begin("a"), '{"projects": {}, "theme": "dark"}')
    agent.end("a")
    one, two = agent.begin("a"), agent.begin("b")
    agent.write(one, '{"projects": {"a": {"trusted": true}}, "theme": "dark"}')
    agent.write(two, '{"projects": {"b": {"trusted": true}}, "theme": "light"}')
    agent.end("b")
    agent.end("a")
    merged = {"projects": {"a": {"trusted": True}, "b": {"trusted": True}}, "theme": "light"}
    assert json.loads(agent.read()) == merged
    assert agent.replaced() == []
    assert json.loads(agent.begin("b").read_text()) == merged


def test_a_key_that_both_changed_is_the_later_ones_and_the_other_file_is_kept(agent: Agent) -> None:
    agent.write(agent.begin("a"), '{"login": "none", "old": 1}')
    agent.end("a")
    one, two = agent.begin("a"), agent.begin("b")
    agent.write(two, '{"login": "b"}')
    agent.write(one, '{"login": "a", "old": 1}')
    agent.end("a")
    agent.end("b")
    assert json.loads(agent.read()) == {"login": "a"}
    assert agent.replaced() == ['{"login": "b"}']


@pytest.mark.parametrize("text", ["[1]", "not json", "[" * 100_000])
def test_what_is_no_object_is_the_later_ones_and_the_other_is_kept(agent: Agent, text: str) -> None:
    agent.write(agent.begin("a"), "base")
    agent.end("a")
    one, two = agent.begin("a"), agent.begin("b")
    agent.write(one, text)
    agent.write(two, "later")
    agent.end("b")
    agent.end("a")
    assert agent.read() == "later"
    assert agent.replaced() == [text]


def test_what_was_replaced_is_bounded(agent: Agent) -> None:
    for number in range(homes.MOST_REPLACED + 5):
        homes._set_aside(str(agent.shared), agent.NAME, str(number).encode())
    assert sorted(map(int, agent.replaced())) == list(range(5, homes.MOST_REPLACED + 5))


def test_a_log_in_that_was_removed_inside_comes_back(agent: Agent) -> None:
    agent.write(agent.begin("a"), "login")
    agent.end("a")
    agent.begin("a").unlink()
    agent.end("a")
    assert agent.read() == "login"


def dying_after(writes: int) -> Callable[[str, str, bytes], None]:
    real, left = homes._write, [writes]

    def write(root: str, name: str, data: bytes) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(root, name, data)

    return write


def test_whoever_is_killed_between_the_writes_loses_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three writes is where it ends; the next run finds the same state."""
    for stop_after in range(4):
        workspace = f"w{stop_after}"
        agent.write(agent.begin(workspace), '{"n": 0}')
        agent.end(workspace)
        agent.write(agent.begin(workspace), f'{{"n": 1, "by": {stop_after}}}')
        with monkeypatch.context() as patch:
            patch.setattr(homes, "_write", dying_after(stop_after))
            try:
                agent.end(workspace)
            except KeyboardInterrupt:
                pass
        assert json.loads(agent.begin(workspace).read_text()) == {"n": 1, "by": stop_after}
        assert json.loads(agent.read()) == {"n": 1, "by": stop_after}


def test_a_planted_fifo_holds_nobody(agent: Agent) -> None:
    home = agent.begin("a").parent
    agent.shared.mkdir(parents=True)
    (agent.shared / agent.NAME).write_text("S")
    os.mkfifo(home / agent.NAME)
    agent.end("a")
    assert (home / agent.NAME).read_text() == "S"


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


def test_a_planted_state_file_costs_little(agent: Agent) -> None:
    """Blanks a thousand times what they stand before, and comparisons of all that is below at each level."""

    def planted(leaf: str, depth: int, wide: int) -> str:
        return '{"a":' * depth + "[" * 400 + ",".join(["1"] * wide) + "]" * 400 + f',"z":{leaf}' + "}" * depth

    for depth, wide in ((1, 500_000), (400, 400_000), (1, 3_000_000)):
        for name, leaf in (("one", "1"), ("two", "2")):
            agent.begin(name).write_text(planted(leaf, depth, wide))
        began = time.process_time()
        agent.end("one")
        agent.end("two")
        assert time.process_time() - began < 5
        assert agent.shared.joinpath(agent.NAME).stat().st_size <= homes.LARGEST
