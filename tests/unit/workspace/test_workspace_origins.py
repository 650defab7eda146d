"""Which commits count as their owner's: told by when a ref had them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from membrane.workspace import commits, origins

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")


def git(place: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=place, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def commit(place: Path, name: str, text: str, branch: str = "") -> str:
    if branch:
        git(place, "checkout", "-q", "-b", branch)
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(place, "add", "-f", "-A")
    git(place, "commit", "-q", "-m", text)
    return git(place, "rev-parse", "HEAD")


class Tree:
    def __init__(self, place: Path) -> None:
        self.state, self.root = str(place / "state"), place / "work"
        self.root.mkdir(parents=True)
        git(self.root, "init", "-q")
        commit(self.root, ".envrc", "first")
        commit(self.root, ".envrc", "second")
        self.runs = 0

    def begin(self, *alive: str, root: Path | None = None) -> bytes:
        self.runs += 1
        return origins.begin(self.state, str(root or self.root), f"s{self.runs}", lambda: alive)

    def end(self, number: int = 0, *, root: Path | None = None) -> None:
        origins.note(self.state, str(root or self.root), f"s{number or self.runs}")

    def counts(self, tips: bytes, text: str) -> bool:
        """May ``.envrc`` be made with this content?"""
        if not tips:
            return False
        fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        known = commits.Committed(fd, tips)
        try:
            (self.root / ".envrc").write_text(text)
            return not known.objection(".envrc")
        finally:
            known.close()
            os.close(fd)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_what_a_run_brings_does_not_count_in_the_next_and_what_its_owner_does_counts(tree: Tree) -> None:
    tips = tree.begin()
    assert tree.counts(tips, "first") and tree.counts(tips, "second"), "all that was there at the first run"
    commit(tree.root, ".envrc", "evil", "side")
    tree.end()
    tips = tree.begin()
    assert not tree.counts(tips, "evil") and tree.counts(tips, "first")
    assert tree.counts(commits.encoded(commits.tips(str(tree.root))[0]), "evil"), (
        "the control: it is in a commit that is there"
    )
    tree.end()
    commit(tree.root, ".envrc", "mine", "own")
    tips = tree.begin()
    assert tree.counts(tips, "mine") and tree.counts(tips, "first") and not tree.counts(tips, "evil")
    tree.end()
    assert tree.counts(tree.begin(), "mine"), "also in all later ones"


def test_a_commit_that_is_merged_or_amended_outside_makes_none_behind_it_count(tree: Tree) -> None:
    tree.begin()
    commit(tree.root, ".envrc", "evil", "side")
    commit(tree.root, ".envrc", "second")  # what is seen of the branch is harmless
    tree.end()
    git(tree.root, "commit", "-q", "--amend", "--allow-empty", "-m", "mine")
    git(tree.root, "tag", "-a", "v1", "-m", "mine")
    tips = tree.begin()
    assert tree.counts(tips, "second") and not tree.counts(tips, "evil")


def test_an_owners_own_branch_of_old_still_leads_to_all_behind_it(tree: Tree) -> None:
    tree.begin()
    tree.end()
    git(tree.root, "reset", "-q", "--hard", "HEAD~1")  # the tip is one that lies behind one of the first
    commit(tree.root, "other", "other")
    tips = tree.begin()
    assert tree.counts(tips, "first") and tree.counts(tips, "second")


@pytest.mark.parametrize("how", ["killed", "another is there", "unreadable refs", "too many refs", "damaged record"])
def test_where_it_is_not_known_who_made_it_a_command_did(tree: Tree, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    tree.begin()
    tree.end()
    tree.begin()
    refs, record = tree.root / ".git/refs/heads/deep", next(Path(tree.state, "commits").iterdir())
    commit(tree.root, ".envrc", "evil", "deep/side")
    if how == "another is there":
        assert not tree.counts(tree.begin("s2"), "evil")
        tree.end()
        assert not tree.counts(tree.begin("s2"), "evil"), "it is still there"
        tree.end()
        tree.end(2)
    elif how == "unreadable refs":
        away = refs.rename(tree.root / "away")
        refs.symlink_to(away)
        tree.end()
        refs.unlink()
        away.rename(refs)
    elif how == "too many refs":
        with monkeypatch.context() as patch:
            patch.setattr(commits, "MOST_REFS", 1)
            tree.end()
    elif how == "damaged record":
        record.write_bytes(b"\0")
    tips = tree.begin()
    assert not tree.counts(tips, "evil") and tree.counts(tips, "first") is (how != "damaged record")
    tree.end()
    commit(tree.root, ".envrc", "mine", "own")
    assert tree.counts(tree.begin(), "mine"), "the control: what comes after a whole run is the owner's"


def test_a_repository_that_a_run_made_is_a_commands_and_one_that_is_put_there_outside_is_new(tree: Tree) -> None:
    (tree.root / ".git").rename(tree.root.parent / "away")
    tree.begin()
    git(tree.root, "init", "-q")
    commit(tree.root, ".envrc", "evil")
    tree.end()
    assert not tree.counts(tree.begin(), "evil")
    tree.end()
    (tree.root / ".git").rename(tree.root.parent / "evil")
    (tree.root.parent / "away").rename(tree.root / ".git")
    assert tree.counts(tree.begin(), "first")


def test_a_run_in_a_directory_above_has_the_tree_in_its_view(tree: Tree) -> None:
    above = tree.root.parent
    tree.begin()
    tree.end()
    tree.begin(root=above)
    commit(tree.root, ".envrc", "evil", "side")
    tips = tree.begin("s2")
    assert not tree.counts(tips, "evil") and tree.counts(tips, "first")
    tree.end()
    commit(tree.root, ".envrc", "more", "more")
    other = Tree(above / "other")
    other.state = tree.state
    tree.end(2, root=above)
    tips = tree.begin()
    assert not tree.counts(tips, "more") and tree.counts(tips, "first")
    tree.end()
    commit(tree.root, ".envrc", "mine", "own")
    assert tree.counts(tree.begin(), "mine"), "the control"
    assert not other.counts(other.begin(), "first"), "nobody knows what that run has made there"
    other.end()
    ended = max(each.stat().st_mtime_ns for each in Path(tree.state, origins.NAME).iterdir())
    tick = above / "tick"
    tick.touch()
    while tick.stat().st_mtime_ns <= ended:  # the clock of files goes in steps of milliseconds
        tick.touch()
    newer = Tree(above / "newer")
    newer.state = tree.state
    assert newer.counts(newer.begin(), "first"), "it was made when that run had ended"


def test_a_tree_without_a_repository_has_none(tmp_path: Path) -> None:
    assert origins.begin(str(tmp_path / "state"), str(tmp_path), "s1", tuple) == b""
    origins.note(str(tmp_path / "state"), str(tmp_path), "s1")
    origins.note(str(tmp_path / "state"), str(tmp_path / "never"), "s1")
