"""run.project: which project file counts for a workspace, and what its relative paths and patterns mean there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.policy.load import Source, load
from membrane.policy.model import Policy
from membrane.run.project import PROJECT_FILE, here, in_workspace, project_place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``a/b/c``, resolved."""
    place = tmp_path.resolve() / "a" / "b" / "c"
    place.mkdir(parents=True)
    return place


def test_the_nearest_file_counts(tree: Path) -> None:
    assert project_place(str(tree)) == (str(tree), "")  # the control: there is none
    for above in (tree.parent.parent, tree.parent, tree):
        (above / PROJECT_FILE).write_text("")
        assert project_place(str(tree)) == (str(above), "")


def test_a_link_that_leads_nowhere_counts(tree: Path) -> None:
    """What it would hide must not be shown because a command has moved it."""
    (tree.parent / PROJECT_FILE).symlink_to("nowhere")
    assert project_place(str(tree)) == (str(tree.parent), "")


def test_no_repository_and_no_directory_ends_the_search(tree: Path) -> None:
    (tree.parent.parent / PROJECT_FILE).write_text("")
    (tree / ".git").mkdir()
    (tree.parent / ".git").mkdir()
    assert project_place(str(tree))[0] == str(tree.parent.parent)


@pytest.mark.as_root
@pytest.mark.parametrize("who", ["file", "directory"])
def test_a_file_above_of_another_user_does_not_count_and_is_said(who: str, tree: Path) -> None:
    file = tree.parent / PROJECT_FILE
    file.write_text("")
    assert project_place(str(tree)) == (str(tree.parent), "")
    os.chown(file if who == "file" else tree.parent, 65534, -1)
    place, warning = project_place(str(tree))
    assert place == str(tree) and str(file) in warning and "another user's" in warning
    os.chown(tree, 65534, -1)  # whose workspace it is, too
    assert project_place(str(tree)) == (str(tree.parent), "")
    os.chown(tree, 0, -1)
    os.chown(file, 65534, -1)
    os.rename(file, tree / PROJECT_FILE)  # in the workspace it counts, whoever wrote it
    assert project_place(str(tree)) == (str(tree), "")


def policy_of(text: str, level: str) -> Policy:
    return load([Source(level, "p.yaml", text, "/")], presets={"default": ""}, home="/h").policy  # type: ignore[arg-type]


def test_relative_paths_start_where_the_file_lies() -> None:
    text = "mounts: [{path: data, mode: ro}]\n"
    ours, users = policy_of(text, "project"), policy_of(text, "user")
    assert [rule.path for rule in in_workspace(ours, "/w/in", "/w").mounts] == ["/w/data"]
    assert [rule.path for rule in in_workspace(ours, "/w/in").mounts] == ["/w/in/data"]
    assert [rule.path for rule in in_workspace(users, "/w/in", "/w").mounts] == ["/w/in/data"]


def test_patterns_are_moved_and_the_policy_is_another() -> None:
    policy = policy_of("hide: [/in/secret, /other/x]\n", "project")
    moved = in_workspace(policy, "/w/in", "/w")
    assert [rule.text for rule in moved.paths] == ["/secret"] and moved.digest != policy.digest
    assert in_workspace(policy, "/w", "/w").paths == policy.paths
    assert in_workspace(policy, "/w/in", "/w").digest != in_workspace(policy, "/w/on", "/w").digest


def test_where_the_caller_is(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tree)
    monkeypatch.chdir(tmp_path / "link")
    assert here() == str(tree)
    tree.rmdir()
    assert here() == "/"
