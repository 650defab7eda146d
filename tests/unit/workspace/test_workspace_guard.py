"""workspace.guard: what bounds its work, and what becomes of what cannot be done."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.events import AccessDenied, NameQuarantined
from membrane.plan.model import Mask, ReadOnly
from membrane.policy.model import Origin, PathRule
from membrane.workspace import aside, effort
from membrane.workspace import guard as guard_module
from membrane.workspace.commits import encoded, tips
from membrane.workspace.guard import Guard
from membrane.workspace.scan import scan

RULES = (PathRule("*.pem", Origin("library", "test"), "hide"),)
EVIL = "[core]\n\tfsmonitor = x\n"
FINE = "[core]\n\tbare = false\n"
PATIENCE = 60.0  # seconds until a test gives up


class World:
    """A workspace and its guard, with what the guard asked for."""

    def __init__(self, place: Path) -> None:
        self.root, self.store = place / "ws", place / "quarantine"
        (self.root / "n" / ".git").mkdir(parents=True)
        self.masked: list[Any] = []
        self.events: list[Any] = []
        self.guard: Guard = None  # type: ignore[assignment]

    def start(self, tips: bytes = b"") -> Guard:
        self.guard = Guard(
            str(self.root), scan(str(self.root), RULES), shown="", store=str(self.store), tips=tips,
            mask=self.masked.extend, report=self.events.append,
        )  # fmt: skip
        self.guard.look()
        while not self.guard.step():
            pass
        return self.guard

    def serve(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < end
            timeout = self.guard.timeout()
            select.select([self.guard.fileno()], [], [], 0.2 if timeout is None else min(0.2, timeout))
            self.guard.on_change()

    def refused(self) -> list[str]:
        return [event.access["path"] for event in self.events if isinstance(event, AccessDenied)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.guard is not None and made.guard._root_fd >= 0 and not made.guard._ended:
        made.guard.finish()


def test_a_bad_name_is_put_aside_at_once_and_moved_out_at_the_end(world: World) -> None:
    guard = world.start()
    config = world.root / "n" / ".git" / "config"
    config.write_text(EVIL)
    world.serve(lambda: not config.exists())
    [aside] = config.parent.iterdir()
    assert aside.name.startswith("config.membrane-refused-") and aside.read_text() == EVIL
    assert guard.moved == [] and world.refused() == ["n/.git/config"]
    guard.finish()
    [(path, where)] = guard.moved
    assert path == "n/.git/config" and Path(where).read_text() == EVIL and Path(where).name == "config"
    assert [event for event in world.events if isinstance(event, NameQuarantined)] == [NameQuarantined(path, where)]
    assert list(config.parent.iterdir()) == [] and guard.left == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_worktree_that_is_made_outside_is_waited_for(
    world: World, tmp_path: Path, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git(1) writes the link to it first, and the file that leads back a moment later."""
    if answered:
        monkeypatch.setattr(guard_module, "PATIENCE", 60.0)
    outside = tmp_path / "tree"
    outside.mkdir()
    world.start()
    own = world.root / "n" / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "gitdir").write_text(f"{outside}/.git\n")
    world.serve(lambda: bool(world.guard._unanswered))
    assert (own / "gitdir").exists() and world.guard.timeout() is not None
    if answered:
        (outside / ".git").write_text(f"gitdir: {own}\n")
    world.serve(lambda: not world.guard._unanswered and world.guard.timeout() is None)
    assert (own / "gitdir").exists() is answered
    assert world.refused() == ([] if answered else ["n/.git/worktrees/w/gitdir"])
    world.guard.finish()
    assert bool(world.guard.moved) is not answered


def test_what_is_benign_stays_until_it_is_written(world: World) -> None:
    world.start()
    config = world.root / "n" / ".git" / "config"
    config.write_text(FINE)
    world.serve(lambda: world.guard.timeout() is None)
    assert config.exists() and world.refused() == []
    with config.open("a") as file:
        file.write(EVIL)
    world.serve(lambda: not config.exists())


def _fail(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in names:
        monkeypatch.setattr(aside.os, name, refuse)


def test_what_can_not_be_renamed_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = world.start()
    with monkeypatch.context() as patch:
        _fail(patch, "rename")
        (world.root / ".mcp.json").write_text("x")
        world.serve(lambda: not (world.root / ".mcp.json").exists())
    guard.finish()
    assert guard.moved == [(".mcp.json", "")] and guard.left == []


def test_what_can_not_even_be_removed_is_frozen_and_fails_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = world.start()
    with monkeypatch.context() as patch:
        _fail(patch, "rename", "unlink")
        (world.root / ".mcp.json").write_text("x")
        world.serve(lambda: bool(world.masked))
        assert world.masked == [ReadOnly(f"{world.root}/.mcp.json")]
        guard.finish()
    assert guard.left == [".mcp.json"]


def test_a_name_that_returns_ends_the_run(world: World) -> None:
    guard = world.start()
    name = world.root / ".mcp.json"
    for _ in range(guard_module.MOST_RETURNS):
        assert not guard.overrun
        name.write_text("x")
        world.serve(lambda: not name.exists())
    assert guard.overrun.startswith(".mcp.json was made 8 times")
    assert world.refused() == [".mcp.json"] * guard_module.MOST_RETURNS


def test_masks_come_before_every_judgement(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()
    monkeypatch.setattr(guard_module, "judge", lambda *_a, **_k: time.sleep(0.05) or "")
    for number in range(100):
        (world.root / f"d{number}").mkdir()
        (world.root / f"d{number}" / ".gitmodules").write_text("x")
    world.serve(lambda: bool(world.guard._waiting))
    (world.root / "late.pem").write_text("x")
    world.serve(lambda: any(isinstance(op, Mask) for op in world.masked))
    assert world.guard._waiting, "judgements still wait"


def test_more_than_can_wait_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = world.start()
    monkeypatch.setattr(guard_module, "MOST_WAITING", 20)
    monkeypatch.setattr(guard_module, "SLICE", 0.0)
    for number in range(40):
        (world.root / f"d{number}").mkdir()
        (world.root / f"d{number}" / ".gitmodules").write_text("")
    world.serve(lambda: bool(guard.overrun))
    monkeypatch.undo()
    guard.finish()


def test_what_can_not_be_watched_is_looked_at_in_turns_and_more_is_not_benign(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = world.start()
    monkeypatch.setattr(guard_module, "MOST_UNWATCHED", 10)
    monkeypatch.setattr(guard._watcher, "hold", lambda *_args: "unknown")
    configs = []
    for number in range(12):
        (world.root / f"d{number}" / ".git").mkdir(parents=True)
        configs.append(world.root / f"d{number}" / ".git" / "config")
        configs[-1].write_text(FINE)
    world.serve(lambda: len(world.refused()) == 2)
    there = [config for config in configs if config.exists()]
    assert len(there) == 10
    there[0].write_text(EVIL)
    world.serve(lambda: not there[0].exists())


def test_a_sweep_that_takes_too_long_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = world.start()
    for number in range(200):
        (world.root / f"d{number}").mkdir()
    monkeypatch.setattr(guard_module, "LONGEST_END", 0.0)
    guard.finish()
    assert "took longer than 0 s of a processor" in guard.unfinished


@pytest.mark.parametrize(("clock", "late"), [(0.5, False), (50.0, True)], ids=["busy machine", "a disk that hangs"])
def test_the_time_of_a_sweep_is_its_own_and_not_the_machines(
    world: World, monkeypatch: pytest.MonkeyPatch, clock: float, late: bool
) -> None:
    """Each look at the clock finds it that many seconds later, as when other programs run in between."""
    guard = world.start()
    for number in range(50):
        (world.root / f"d{number}" / ".git").mkdir(parents=True)
        (world.root / f"d{number}" / ".git" / "config").write_text(EVIL)
    ticks = itertools.count(time.monotonic(), clock)
    monkeypatch.setattr(effort.time, "monotonic", lambda: next(ticks))
    guard.finish()
    assert bool(guard.unfinished) is late
    left = [number for number in range(50) if (world.root / f"d{number}" / ".git" / "config").exists()]
    assert bool(left) is late, left


def test_the_sweep_finds_what_no_event_told(world: World) -> None:
    """Written after the last event was read, as by the last act of a command."""
    (world.root / ".git" / "rebase-merge").mkdir(parents=True)
    strategy = world.root / ".git" / "rebase-merge" / "strategy"
    todo = world.root / ".git" / "rebase-merge" / "git-rebase-todo"
    strategy.write_text("ort\n")
    todo.write_text("exec make test\n")  # the user's own
    guard = world.start()
    strategy.write_text("x/../evil\n")
    (world.root / "n" / ".git" / "config").write_text(EVIL)
    (world.root / ".mcp.json").write_text("x")
    guard.finish()
    assert {path for path, _where in guard.moved} == {".mcp.json", "n/.git/config", ".git/rebase-merge/strategy"}
    assert todo.exists(), "what stood there at the start is not the command's doing"


def test_a_new_repository_below_the_top_keeps_the_names_of_tools(world: World) -> None:
    guard = world.start()
    (world.root / "new" / ".git").mkdir(parents=True)
    (world.root / "new" / ".vscode").mkdir()
    (world.root / "new" / ".git" / "config").write_text(EVIL)
    (world.root / "n" / ".vscode").mkdir()  # this one was there before
    world.serve(lambda: len(world.refused()) == 2)
    assert (world.root / "new" / ".vscode").exists() and not (world.root / "n" / ".vscode").exists()
    guard.finish()
    assert guard.kept == ["new/.vscode"] and guard.left == []


def test_many_names_that_are_open_for_writing_hold_nothing_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = world.start()
    calls: list[str] = []

    def slow(*_args: object, holder: Any, **_more: object) -> str:
        calls.append("")
        time.sleep(0.02)
        return str(holder.hold(-1, "x"))

    monkeypatch.setattr(guard_module, "judge", slow)
    monkeypatch.setattr(guard._watcher, "hold", lambda *_args: "written")
    for number in range(50):
        (world.root / f"d{number}").mkdir()
        (world.root / f"d{number}" / ".gitmodules").write_text("x")
    most = 0
    while not world.refused():  # patience ends
        before = len(calls)
        guard.on_change()
        most = max(most, len(calls) - before)
    assert len(calls) > 20 and most <= guard_module.SLICE / 0.02 + 1
    monkeypatch.undo()


def test_state_that_was_there_at_the_start_is_the_callers_until_it_is_written(world: World) -> None:
    state = world.root / ".git" / "rebase-merge"
    state.mkdir(parents=True)
    todo, strategy, options = state / "git-rebase-todo", state / "strategy", state / "strategy_opts"
    todo.write_text("exec make test\n")
    strategy.write_text("ort\n")
    options.write_text("x" * 100)
    world.start()
    assert todo.read_text()  # which is told, and does no harm
    with strategy.open("r+") as file:  # in place: no name appears
        file.write("x/../evil\n")
        file.flush()
        world.serve(lambda: not strategy.exists())
    with options.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    world.serve(lambda: not options.exists())  # nothing was written yet, and nobody would be told
    mapping.close()
    assert todo.exists() and world.refused() == [".git/rebase-merge/strategy", ".git/rebase-merge/strategy_opts"]


def test_what_git_writes_between_two_looks_is_compared_with_the_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the file and writes into it a moment later, so the guard may find it empty, which is benign."""
    own, other = '[toolchain]\npath = "mine"\n', '[toolchain]\npath = "other"\n'
    chosen = world.root / "rust-toolchain.toml"
    chosen.write_text(own)
    identity = ("-c", "user.name=u", "-c", "user.email=u@x.test", "-c", "init.defaultBranch=main")
    for words in (("init", "-q"), ("add", chosen.name), ("commit", "-qm", "1")):
        subprocess.run(["git", *identity, *words], cwd=world.root, check=True)
    chosen.unlink()
    guard = world.start(encoded(tips(str(world.root))[0]))
    seen, judged = [own], guard_module.judge

    def slow(root_fd: int, path: str, **more: Any) -> str:
        said = judged(root_fd, path, **more)
        if path == chosen.name and seen:
            chosen.write_text(seen.pop())
        return said

    monkeypatch.setattr(guard_module, "judge", slow)
    chosen.touch()
    world.serve(lambda: not seen)
    assert chosen.read_text() == own
    monkeypatch.setattr(guard_module, "judge", judged)
    chosen.write_text(other)  # the control: what no commit has goes
    world.serve(lambda: not chosen.exists())
    guard.finish()
    assert world.refused() == [chosen.name]


@pytest.mark.parametrize("covered", [True, False])
def test_a_name_of_the_start_that_is_only_listed_again_is_not_covered_again(world: World, covered: bool) -> None:
    """What is changed beside it before the watch begins has its directory listed."""
    name = world.root / "key.pem"
    name.write_text("x")
    found = scan(str(world.root), RULES)
    guard = world.guard = Guard(
        str(world.root), found, shown="", store=str(world.store), mask=world.masked.extend,
        mounted=lambda: frozenset((str(name),) if covered else ()), report=world.events.append,
    )  # fmt: skip
    (world.root / "beside").write_text("x")
    guard.look()
    guard.on_change()
    assert world.masked == ([] if covered else [Mask(str(name), False)])
