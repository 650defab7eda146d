"""What the host makes in a reviewed workspace: hidden by a whiteout, and by a mask unless it is the command's own."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.changes import late
from membrane.changes.cell import Masks
from membrane.changes.late import Late
from membrane.plan.model import Mask, ReadOnly
from membrane.policy.model import Origin, PathRule
from membrane.workspace.scan import scan

HERE = Origin("user", "config.yaml", 1)
RULES = (PathRule("*.key", HERE, "hide"), PathRule(".envrc", HERE, "hide"), PathRule("*.ro", HERE, "readonly"))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[], tuple[Late, list[Any], Path]]]:
    for name in ("ws/sub", "masks", "upper"):
        (tmp_path / name).mkdir(parents=True)
    found: list[Late] = []

    def make() -> tuple[Late, list[Any], Path]:
        root, ops = str(tmp_path / "ws"), []
        masks = Masks(str(tmp_path / "masks"), root)
        each = Late(root, scan(root, RULES), masks, (str(tmp_path / "upper"),), mask=ops.extend)
        found.append(each)
        each.look()
        while not each.step():
            pass
        return each, ops, tmp_path

    yield make
    for each in found:
        each.finish()


def settle(each: Late) -> None:
    """Until what was done is told."""
    assert select.select([each.fileno()], [], [], 60)[0]
    while select.select([each.fileno()], [], [], 0)[0] or each.timeout() == 0:
        each.on_change()


def test_names_that_appear(made: Callable[[], tuple[Late, list[Any], Path]]) -> None:
    each, ops, place = made()
    for name in ("a.key", "sub/b.key", "c.ro", "plain"):
        (place / "ws" / name).write_text("x")
    settle(each)
    root = str(place / "ws")
    assert {op.target for op in ops if isinstance(op, Mask)} == {f"{root}/a.key", f"{root}/sub/b.key"}
    assert {op.target for op in ops if isinstance(op, ReadOnly)} == {f"{root}/c.ro"}
    for name in ("a.key", "sub/b.key"):
        assert stat.S_ISCHR(os.lstat(place / "masks" / name).st_mode)
    assert (each.overrun, each.left, each.moved) == ("", [], [])


def test_a_name_of_the_commands_own_is_not_covered(made: Callable[[], tuple[Late, list[Any], Path]]) -> None:
    each, ops, place = made()
    (place / "upper" / "a.key").write_text("mine")
    (place / "ws" / "a.key").write_text("SECRET")
    settle(each)
    assert ops == []
    assert stat.S_ISCHR(os.lstat(place / "masks" / "a.key").st_mode)


def test_protected_names_are_nothing_here(made: Callable[[], tuple[Late, list[Any], Path]]) -> None:
    each, ops, place = made()
    (place / "ws" / ".vscode").mkdir()
    (place / "ws" / ".mcp.json").write_text("{}")
    settle(each)
    assert (ops, os.listdir(place / "masks")) == ([], [])
    assert (place / "ws" / ".vscode").is_dir()


def test_a_name_that_is_hidden_and_protected_is_hidden(made: Callable[[], tuple[Late, list[Any], Path]]) -> None:
    """The watcher reports it as protected, of which a reviewed workspace takes no notice."""
    each, ops, place = made()
    (place / "ws" / ".vscode").mkdir()  # protected, and with all in it
    for name in (".envrc", "sub/.envrc", ".vscode/tasks.json"):
        (place / "ws" / name).write_text("SECRET")
    settle(each)
    assert {op.target for op in ops} == {f"{place}/ws/.envrc", f"{place}/ws/sub/.envrc"}
    assert {str(path.relative_to(place / "masks")) for path in (place / "masks").rglob("*")} == {
        ".envrc", "sub", "sub/.envrc",
    }  # fmt: skip


def test_a_tree_without_masks_gets_mounts_alone(tmp_path: Path) -> None:
    """The repository of a workspace that keeps it elsewhere: what it holds by its layout is protected."""
    root, ops = tmp_path / "bare", list[Any]()
    for name in ("objects", "refs", "hooks"):
        (root / name).mkdir(parents=True)
    (root / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "config").write_text("")
    each = Late(str(root), scan(str(root), RULES), None, (), mask=ops.extend)
    each.look()
    while not each.step():
        pass
    for name in ("a.key", "plain", "hooks/post-commit"):
        (root / name).write_text("SECRET")
    settle(each)
    each.finish()
    assert [op.target for op in ops] == [f"{root}/a.key"] and isinstance(ops[0], Mask)
    assert each.overrun == ""


def test_more_than_can_be_hidden_ends_the_run(
    made: Callable[[], tuple[Late, list[Any], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "MOST_MASKS", 2)
    each, _ops, place = made()
    for number in range(3):
        (place / "ws" / f"{number}.key").write_text("x")
    settle(each)
    assert "more than 2 hidden names" in each.overrun


def test_a_whiteout_that_cannot_be_made_ends_the_run(made: Callable[[], tuple[Late, list[Any], Path]]) -> None:
    each, _ops, place = made()
    (place / "masks").rmdir()
    (place / "ws" / "a.key").write_text("x")
    settle(each)
    assert each.overrun == "a.key cannot be hidden: No such file or directory"
