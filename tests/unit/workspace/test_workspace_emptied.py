"""Which hidden names may be empty: what git has, or may have, is never shown emptied."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from membrane.policy.model import Origin, PathRule
from membrane.workspace import emptied
from membrane.workspace.scan import scan

PATTERNS = (".env", "keys/")


def git(where: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(where)}
    done = subprocess.run(["git", *words], cwd=where, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "tree"
    for name in (".env", "sub/.env", "keys/one", "plain"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("SECRET")
    git(root, "init", "-q")
    return root


def find(root: Path, patterns: tuple[str, ...] = PATTERNS, **more: Any) -> emptied.Emptied:
    found = scan(str(root), tuple(PathRule(text, Origin("test", ""), "hide") for text in patterns))
    return emptied.Finder(str(root), **more).find(found.hits, found.named, patterns)


def test_what_git_does_not_have_is_empty_and_git_is_told(tree: Path) -> None:
    found = find(tree)
    assert found.paths == {".env", "sub/.env", "keys"}
    assert set(found.lines) == {b".env", b"keys/", b"/.env", b"/sub/.env", b"/keys"}


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_what_the_index_has_is_not(tree: Path, version: str) -> None:
    git(tree, "add", "-f", ".env", "keys/one", "plain")
    if version == "3":  # git writes it where an entry needs the extended flags (gitformat-index(5))
        git(tree, "update-index", "--skip-worktree", ".env")
    else:
        git(tree, "update-index", "--index-version", version)
    assert (tree / ".git" / "index").read_bytes()[7] == int(version)
    assert find(tree).paths == ({"sub/.env"} if version != "4" else set())


def test_a_name_that_ends_alike_is_another_one(tree: Path) -> None:
    git(tree, "add", "-f", "sub/.env")
    assert find(tree).paths == {".env", "keys"}


def make_split(root: Path) -> None:
    git(root, "update-index", "--split-index")


def make_damaged(root: Path) -> None:
    (root / ".git" / "index").write_bytes(b"what is this")


def make_excluding(root: Path) -> None:
    git(root, "config", "core.excludesFile", "/nowhere")


def make_including(root: Path) -> None:
    git(root, "config", "include.path", "/nowhere")


def make_fifo(root: Path) -> None:
    (root / ".git" / "index").unlink()
    os.mkfifo(root / ".git" / "index")


def make_other(root: Path) -> None:
    (root / ".hg").mkdir()


@pytest.mark.parametrize(
    "change",
    [make_split, make_damaged, make_excluding, make_including, make_fifo, make_other],
    ids=lambda f: f.__name__,
)
def test_what_can_not_be_judged_counts_as_tracked(tree: Path, change: Any) -> None:
    git(tree, "add", "plain")
    assert find(tree).paths
    change(tree)
    assert not find(tree).paths


def test_beyond_the_bounds_nothing_is_empty(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tree, "add", "plain")
    monkeypatch.setattr(emptied, "MOST_NAMES", 1)
    assert len(find(tree).paths) == 1
    monkeypatch.setattr(emptied, "MOST_NAMES", 1_000)
    monkeypatch.setattr(emptied, "DEEPEST", 1)
    assert find(tree).paths == {".env", "keys"}  # of the other one nobody has looked far enough up
    monkeypatch.setattr(emptied, "MOST_SEARCHED", 10)
    assert not find(tree).paths


def test_configuration_of_the_command_that_would_overrule_ours(tree: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert find(tree, home=str(home)).paths
    assert not find(tree, environment=("GIT_CONFIG_NOSYSTEM",)).paths
    (home / ".gitconfig").write_text("[core]\n\tExcludesFile = ~/x\n")
    assert not find(tree, home=str(home)).paths


def test_each_repository_has_its_own_index(tree: Path) -> None:
    git(tree / "sub", "init", "-q")
    git(tree / "sub", "add", "-f", ".env")
    found = find(tree)
    assert found.paths == {".env", "keys"}
    git(tree / "sub", "rm", "-q", "--cached", ".env")
    assert find(tree).paths == {".env", "keys", "sub/.env"} and b"/.env" in find(tree).lines


def test_a_linked_worktree_has_an_index_elsewhere(tree: Path) -> None:
    git(tree, "add", "-f", ".env")
    git(tree, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x")
    other = tree.parent / "other"
    git(tree, "worktree", "add", "-q", str(other))
    (other / "sub").mkdir()
    (other / "sub" / ".env").write_text("SECRET")
    assert find(other).paths == {"sub/.env"}


def test_links_are_empty_where_what_they_lead_to_is(tree: Path) -> None:
    for name, target in (("a/.env", "../.env"), ("b/.env", "../plain"), ("c/.env", "/etc/hostname")):
        (tree / name).parent.mkdir()
        (tree / name).symlink_to(target)
    other = tree.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "file").write_text("x")
    (tree / "d").mkdir()
    (tree / "d" / ".env").symlink_to(other / "file")
    assert find(tree).paths == {".env", "sub/.env", "keys", "a/.env", "c/.env"}


def test_names_in_a_repository_s_own_directory_are_not(tree: Path) -> None:
    (tree / ".git" / "refs" / "heads" / "x.env").write_text("x")
    (tree / "y.env").write_text("x")
    assert find(tree, ("*.env",)).paths == {".env", "sub/.env", "y.env"}


@pytest.mark.parametrize("name", ["a b.env", "a .env ", "st*r[1]?.env", "back\\slash.env", "#x.env", "!x.env"])
def test_odd_names_are_told_to_git_exactly(tree: Path, name: str) -> None:
    (tree / name).write_text("x")
    found = find(tree, ("/" + name.replace("\\", "\\\\").replace("*", "\\*").replace("[", "\\[").rstrip() + "*",))
    assert found.paths == {name}
    place = tree.parent / "ignore"
    place.write_bytes(b"\n".join(found.lines))
    shown = git(tree, "-c", f"core.excludesFile={place}", "-c", "core.quotePath=false", "ls-files", "-o", "-z",
                "--exclude-standard")  # fmt: skip
    assert name not in shown.split("\0") and "plain" in shown.split("\0")


def test_patterns_that_look_at_parents_are_no_lines(tree: Path) -> None:
    (tree / "conf").mkdir()
    (tree / "conf" / "secret").write_text("x")
    found = find(tree, ("conf/secret", ".env"))
    assert set(found.lines) == {b"/conf/secret", b"/.env", b"/sub/.env"}


def test_patterns_of_the_command_s_home_stay_in_force_and_no_link_is_followed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    place = home / ".config" / "git" / "ignore"
    place.write_bytes(b"mine\n")
    config, patterns = emptied.configuration((b".env",), str(home), "/run/x")
    assert patterns == ("git-ignore", b"mine\n\n.env\n")
    assert config[0] == "gitconfig" and b"\texcludesFile = /run/x/git-ignore\n" in config[1]
    place.unlink()
    (tmp_path / "secret").write_text("SECRET")
    place.symlink_to(tmp_path / "secret")
    assert b"SECRET" not in emptied.configuration((), str(home), "/run/x")[1][1]


def test_many_names_with_one_ending_cost_one_search(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of them those are told apart that the index has, however they are like others; the reference is git."""
    tracked, free = [], []
    for number in range(300):
        place = (
            tree / "abc"[number % 3] / ("x" * (number % 40)) / f"{'y' * (number % 7)}.{'key' if number % 2 else 'k'}"
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.write_text("SECRET")
            (tracked if number % 5 < 2 else free).append(str(place.relative_to(tree)))
    (tree / "long").mkdir()
    for name in ("long/" + "n" * 230 + ".key", "z" * 250 + ".key"):
        (tree / name).write_text("SECRET")
        tracked.append(name)
    git(tree, "add", "-f", *tracked)
    patterns = ("*.key", "*.k")
    assert find(tree, patterns).paths == set(free) and free and tracked
    git(tree, "rm", "-q", "--cached", *tracked)
    git(tree, "add", "-f", "plain")
    index = (tree / ".git/index").stat().st_size
    monkeypatch.setattr(emptied, "MOST_SEARCHED", 3 * index)  # it is read, and searched for each ending
    assert find(tree, patterns).paths == {*free, *tracked}
    monkeypatch.setattr(emptied, "MOST_SEARCHED", 3 * index - 1)  # the control
    found = find(tree, patterns).paths
    assert found and len({name.rpartition(".")[2] for name in found}) == 1


def test_directories_of_which_the_index_has_something_are_not_empty(tree: Path) -> None:
    for name in ("a/keys/x", "b/keys/x", "c/notkeys/x", "keys.d/x"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text("SECRET")
    git(tree, "add", "-f", "a/keys/x", "c/notkeys/x", "keys.d/x")
    assert find(tree, ("keys/",)).paths == {"keys", "b/keys"}


def test_names_without_a_line_are_empty_only_where_the_patterns_say_as_much(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tree, "add", "plain")
    monkeypatch.setattr(emptied, "MOST_LINES", 1)
    for patterns in ((".env", "!x"), (".env", "*.e")):
        found = find(tree, patterns)
        assert found.paths == {".env", "sub/.env"}
        assert [line for line in found.lines if line.startswith(b"/")] == [b"/.env"]
    for patterns in ((".en?",), (".[e]nv",), ("sub/.env", "/.env"), ("\\.env",)):
        found = find(tree, patterns)
        assert len(found.paths) == 1 and len([line for line in found.lines if line.startswith(b"/")]) == 1


def test_a_workspace_below_the_top_of_its_repository(tree: Path) -> None:
    (tree / "sub/in").mkdir()
    for name in ("sub/in/.env", "sub/in/keys"):
        (tree / name).write_text("SECRET")
    git(tree, "add", "-f", "sub/.env")
    assert find(tree / "sub").paths == {"in/.env"}
    git(tree, "rm", "-q", "--cached", "sub/.env")
    git(tree, "add", "-f", "sub/in/.env")
    assert find(tree / "sub").paths == {".env"}


def test_an_index_that_is_made_to_be_searched_for_long_is_not_judged(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may have written it; the control is one with fewer of the same."""
    calls: list[int] = []
    real = emptied._is_entry

    def is_entry(index: bytes, at: int) -> bool:
        calls.append(at)
        return real(index, at)

    monkeypatch.setattr(emptied, "_is_entry", is_entry)
    for count in (100, 1_000_000):
        (tree / ".git" / "index").write_bytes(b"DIRC\0\0\0\2" + b"keys/" * count)
        assert find(tree, ("keys/",)).paths == ({"keys"} if count == 100 else set())
    assert 100 < len(calls) <= 100 + emptied.MOST_SEARCHED // emptied._LEAST
