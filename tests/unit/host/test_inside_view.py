"""What a view is without mounts: rules of Landlock beside hidden and read-only names; and removing what was ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host import inside, landlock
from membrane.plan.model import Bind, Mask, ReadOnly


def tree(path: Path) -> None:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "hidden").write_text("x")
    (path / "a" / "beside").write_text("x")
    (path / "frozen").mkdir()
    (path / "c").mkdir()
    (path / "link").symlink_to(path / "a" / "hidden")


def test_what_lies_beside_a_hidden_name_is_listed(tmp_path: Path) -> None:
    tree(tmp_path)
    top = str(tmp_path)
    ops = [Bind(top, top, writable=True), Mask(f"{top}/a/hidden", False), ReadOnly(f"{top}/frozen")]
    granted = inside.grants(ops, "/own")
    rules = {path: rights for path, rights in granted.rules if path.startswith(top)}
    assert rules == {
        top: landlock.LIST,
        f"{top}/a": landlock.LIST,
        f"{top}/a/b": landlock.WRITE,
        f"{top}/a/beside": landlock.WRITE,
        f"{top}/c": landlock.WRITE,
        f"{top}/frozen": landlock.READ,
    }
    assert granted.shared == {top: False, f"{top}/a": False} and granted.asks == "reads"
    assert granted.denied == {f"{top}/a/hidden": "hidden", f"{top}/frozen": "read-only"}


def test_a_workspace_that_a_link_has_taken_the_place_of_is_not_shown(tmp_path: Path) -> None:
    """A command of another run, which may write above it, puts it there between the plan and this."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    shown = str(tmp_path / "link")
    rules = dict(inside.grants([Bind(shown, shown, writable=True)], "/own").rules)
    assert rules[str(tmp_path / "real")] == landlock.WRITE  # the control: a tree of a rule may be a link
    with pytest.raises(HostError, match=f"cannot show {shown}: a link was put on the way to it meanwhile"):
        inside.grants([Bind(shown, shown, writable=True, direct=True)], "/own")


def test_names_of_a_hidden_directory_are_not_listed(tmp_path: Path) -> None:
    tree(tmp_path)
    top = str(tmp_path)
    rules = dict(inside.grants([Bind(top, top), Mask(f"{top}/a", True)], "/own").rules)
    assert top not in rules and f"{top}/a" not in rules and f"{top}/a/beside" not in rules
    assert rules[f"{top}/c"] == landlock.READ


def test_an_inner_read_only_tree_stays_so_in_a_writable_one(tmp_path: Path) -> None:
    tree(tmp_path)
    top = str(tmp_path)
    rules = dict(inside.grants([Bind(top, top, writable=True), Bind(f"{top}/a", f"{top}/a")], "/own").rules)
    assert rules[f"{top}/a"] == landlock.READ and rules[top] == landlock.READ and rules[f"{top}/c"] == landlock.WRITE
