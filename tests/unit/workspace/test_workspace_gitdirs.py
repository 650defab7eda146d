"""Which git directories outside of a workspace are shown with it: made with real git, and planted by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from membrane.plan.model import Repository
from membrane.workspace.gitdirs import NONE, find, named

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(where: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words], cwd=where, env=ENVIRONMENT, check=True, capture_output=True
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit."""
    made = tmp_path.resolve() / "repo"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "a").write_text("1\n")
    git(made, "add", "a")
    git(made, "commit", "-qm", "1")
    return made


def test_a_directory_of_its_own_needs_nothing(repo: Path) -> None:
    assert find(str(repo)) == NONE
    assert find(str(repo.parent)) == NONE


def test_a_linked_worktree_shows_the_common_directory_and_freezes_its_siblings(repo: Path) -> None:
    git(repo, "worktree", "add", "-q", "../wt", "-b", "one")
    git(repo, "worktree", "add", "-q", "../other", "-b", "two")
    common = f"{repo}/.git"
    assert find(str(repo.parent / "wt")) == Repository(
        ((common, "rw"), (f"{common}/worktrees/other", "ro")), own=f"{common}/worktrees/wt"
    )


def test_worktrees_inside_of_a_bare_repository_are_hidden_from_each_other(repo: Path) -> None:
    bare = repo.parent / "bare"
    git(repo, "clone", "-q", "--bare", ".", str(bare))
    git(bare, "worktree", "add", "-q", "one")
    git(bare, "worktree", "add", "-q", "two")
    assert find(str(bare / "one")) == Repository(
        ((str(bare), "rw"), (f"{bare}/worktrees/two", "ro")), (str(bare / "two"),), f"{bare}/worktrees/one"
    )


def test_a_worktree_that_was_made_inside_stays_the_commands_own(repo: Path) -> None:
    git(repo, "worktree", "add", "-q", "../wt", "-b", "one")
    git(repo.parent / "wt", "worktree", "add", "-q", "inner", "-b", "two")
    own = f"{repo}/.git/worktrees/wt"
    assert find(str(repo.parent / "wt")) == Repository(((f"{repo}/.git", "rw"),), own=own)


def test_a_submodule_is_named_by_its_configuration(repo: Path) -> None:
    top = repo.parent / "top"
    top.mkdir()
    git(top, "init", "-q")
    git(top, "submodule", "--quiet", "add", str(repo), "sub")
    own = f"{top}/.git/modules/sub"
    assert find(str(top / "sub")) == Repository(((own, "rw"),), own=own)


def test_a_separate_git_directory_is_known_by_its_index(repo: Path) -> None:
    apart, work = repo.parent / "apart", repo.parent / "work"
    git(repo.parent, "clone", "-q", "--separate-git-dir", str(apart), str(repo), str(work))
    assert find(str(work)) == Repository(((str(apart), "rw"),), own=str(apart))
    os.utime(work / "a", (0, 0))  # another change time: it is not the file of the index any more
    shutil.copy(work / "a", work / "b")
    os.replace(work / "b", work / "a")
    assert not find(str(work)).shown and named(str(work)) == str(apart)


def planted(repo: Path, text: str) -> Repository:
    work = repo.parent / "hostile"
    work.mkdir()
    (work / "a").write_text("1\n")
    (work / ".git").write_text(text)
    return find(str(work))


@pytest.mark.parametrize("text", ["gitdir: ../repo/.git\n", "gitdir: {repo}/.git"])
def test_a_planted_pointer_opens_nothing(repo: Path, text: str) -> None:
    found = planted(repo, text.format(repo=repo))
    assert not found.shown
    assert "does not name this directory as its work tree" in found.warning


def test_a_planted_pointer_to_the_place_of_another_worktree_opens_nothing(repo: Path) -> None:
    git(repo, "worktree", "add", "-q", "../wt", "-b", "one")
    found = planted(repo, "gitdir: ../repo/.git/worktrees/wt\n")
    assert not found.shown
    assert "does not lead back" in found.warning


def test_a_git_directory_that_the_workspace_brings_opens_nothing(repo: Path) -> None:
    """Whoever makes ``.git`` makes ``gitdir``, ``commondir`` and ``config`` as well, but only in the workspace."""
    work = repo.parent / "hostile"
    (work / "g/worktrees/x").mkdir(parents=True)
    (work / "g/worktrees/x/HEAD").write_text("ref: refs/heads/main\n")
    (work / "g/worktrees/x/commondir").write_text(f"{repo}/.git\n")
    (work / "g/worktrees/x/gitdir").write_text(f"{work}/.git\n")
    (work / ".git").write_text("gitdir: g/worktrees/x\n")
    assert find(str(work)) == NONE


@pytest.mark.parametrize("text", ["", "gitdir: \n", "gitdir: x\ngitdir: y\n", "gitdir: " + "a/" * 4000, "gitdir: a\0b"])
def test_what_is_no_pointer_names_nothing(repo: Path, text: str) -> None:
    assert planted(repo, text) == NONE


def test_a_pointer_that_can_not_be_read_names_nothing(repo: Path) -> None:
    work = repo.parent / "hostile"
    work.mkdir()
    os.mkfifo(work / ".git")
    assert find(str(work)) == NONE
    (work / ".git").unlink()
    (work / ".git").symlink_to(repo / ".git")
    assert find(str(work)) == NONE
