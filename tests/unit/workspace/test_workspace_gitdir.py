"""workspace.gitdir, names, state: the tables, and what may stand in the state of a rebase that stopped."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from membrane.workspace import gitdir, protect, state
from membrane.workspace.judge import OBJECTIONS, tree_row
from membrane.workspace.names import TREE_ROWS
from membrane.workspace.prevent import Prevention
from membrane.workspace.protect import (
    CHECKED,
    DATA,
    GIT,
    GIT_INFO,
    GIT_LINKED,
    GIT_MERGE,
    GIT_WRITTEN,
    NAMED,
    PROTECT,
    classify,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import protected_names


def test_the_page_says_what_the_tables_say() -> None:
    assert protected_names.PLACE.read_text() == protected_names.render(), "run python tests/golden/protected_names.py"


def test_every_row_says_who_what_and_where_that_is_written() -> None:
    assert all(row.tool and row.does and row.source for row in TREE_ROWS)
    assert all(row.writer and row.source for row in gitdir.ROWS)
    assert all(bool(row.check) is (row.kind in ("checked", "held")) for row in gitdir.ROWS)
    assert {row.name.rpartition("/")[2] for row in TREE_ROWS if row.check} == set(OBJECTIONS)
    names = [row.name.lower() for row in TREE_ROWS]
    assert len(names) == len(set(names)) >= 110
    assert all(len(name.split("/")) <= 4 and name.count("*") <= 1 for name in names)
    assert all("*" not in name.rpartition("/")[0] for name in names)


@pytest.mark.parametrize("row", TREE_ROWS, ids=lambda row: row.name)
def test_the_row_of_a_path_is_found(row: protect.Protected) -> None:
    name = row.name.replace("*", "x")
    for path in (name, f"a/b/{name}", f"a/{name.upper()}"):
        found = tree_row(path)
        assert (found is None) is (name in (".gitmodules", ".jj/repo/store/git_target"))  # judged by content
        assert found is None or found is row or row.name.endswith("/" + found.name)  # the name alone is one already
    assert tree_row(f"{name}.membrane-refused-0a1b") is None  # what the guard calls it is obeyed by nobody


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (GIT, "HEAD", "free"), (GIT, "index.lock", "free"), (GIT, "refs", DATA), (GIT, "config", PROTECT),
        (GIT, "config.lock", "free"), (GIT, "commondir", PROTECT), (GIT_LINKED, "commondir", PROTECT),
        (GIT, "locked", PROTECT), (GIT_LINKED, "locked", "free"), (GIT, "remotes", PROTECT), (GIT, "foo", PROTECT),
        (GIT, "BISECT_NAMES", CHECKED), (GIT, "tAb1Xyz", "free"), (GIT, "hooks.membrane-refused-1", DATA),
        (GIT, ".COMMIT_EDITMSG.swp", "free"), (GIT, "lost+found", PROTECT), (GIT_LINKED, "hooks", PROTECT),
        (GIT, "git-interpret-trailers-aB3xYz", "free"), (GIT_LINKED, "lint-staged_unstaged.patch", "free"),
        (GIT, "COMMIT_EDITMSG.tmp.0a1b-2", "free"), (GIT_MERGE, "git-rebase-todo.bak", "free"),
        (GIT_MERGE, "XXa1B2c3", "free"), (GIT_MERGE, "git-rebase-todo", CHECKED),
        (GIT_LINKED, "CLAUDE_BASE", "free"), (GIT, "CLAUDE_BASE", PROTECT),
        # These are applied to the tree by the next run of who writes them, also when somebody else has made them.
        (GIT_INFO, "lefthook-unstaged.patch", PROTECT), (GIT, "nano-staged.patch", PROTECT),
    ],
)  # fmt: skip
def test_in_a_git_directory_what_git_does_not_write_is_protected(kind: int, name: str, expected: object) -> None:
    code = classify(kind | NAMED, protect.fold(name), name in ("refs", "remotes"), False)
    assert (code >= 0) if expected == "free" else code == expected


def test_what_lint_staged_keeps_may_be_there_and_no_link_leads_out_of_it() -> None:
    """It takes changes that are not staged out of the tree and into that; the next run outside writes there as well."""
    inner = classify(GIT | NAMED, "lint-staged", True, False)
    assert inner == GIT_WRITTEN | NAMED and classify(GIT | NAMED, "lint-staged", False, True) == PROTECT
    assert classify(inner, "0a1b", True, False) >= 0 and classify(inner, "0a1b", False, True) == PROTECT


def test_in_a_repository_by_its_layout_names_of_others_stay_free() -> None:
    assert all(classify(GIT, name, False, False) == protect.TREE for name in ("readme.md", "foo", "locked"))
    assert classify(GIT, "remotes", True, False) == classify(GIT, "hooks", True, False) == PROTECT


GOOD = [
    (state.todo, "pick 123 exec x\n# exec x\nmerge -C 1 a # b\n\nupdate-ref refs/heads/a\nlabel onto\nf -C 1\npi"),
    (state.strategy, "ort\n"),
    (state.strategy_options, " --ours --find-renames=40%"),
    (state.strategy_options, "'--theirs' \"--subtree=a/b\""),
    (state.signing, "-SA1B2 C3 <a@example.test>\n"),
    (state.author, "GIT_AUTHOR_NAME='A O'\\''B'\nGIT_AUTHOR_EMAIL='a@b'\nGIT_AUTHOR_DATE='@1 +0000'\n"),
    (state.apply_options, " '-C3' '-p1' '--whitespace=fix' '--directory=a/..b'"),
    (state.options, "[options]\n\tsignoff = true\n\tstrategy = ort\n\tstrategy-option = theirs\n\tmainline = 1\n"),
    (state.paths, " 'a b' 'c'\\''d'\n"),
    (state.bisect_log, "git bisect start\n# good: [1] x\ngit bisect good '1a'\ngit bisect start 'HEAD' -- 'a;b'\n"),
    (state.name, "refs/heads/main\n"),
    (state.terms, "bad\ngood\n"),
]
BAD = [
    (state.todo, "exec touch x\n"),
    (state.todo, "pick 1\n \tx touch x\n"),
    (state.todo, "run x\n"),
    (state.strategy, "x/../evil\n"),
    (state.strategy, "octopus evil\n"),
    (state.strategy_options, " --upload-pack=x"),
    (state.strategy_options, " --ours;x"),
    (state.signing, "--program=x"),
    (state.author, "GIT_AUTHOR_NAME='a'; touch x\n"),
    (state.author, "GIT_AUTHOR_NAME=$(touch x)\n"),
    (state.author, "PATH='x'\n"),
    (state.apply_options, " '--unsafe-paths'"),
    (state.apply_options, " '--directory=../x'"),
    (state.apply_options, " '--directory=/etc'"),
    (state.options, "[options]\n\tstrategy = x/../evil\n"),
    (state.options, "[options]\n\tstrategy-option = upload-pack=x\n"),
    (state.options, "[core]\n\tfsmonitor = x\n"),
    (state.paths, " 'a'; touch x"),
    (state.paths, " $(touch x)"),
    (state.bisect_log, "touch x\n"),
    (state.bisect_log, "git bisect good 1; touch x\n"),
    (state.name, "--upload-pack=x\n"),
    (state.terms, "bad\n--x\n"),
]


@pytest.mark.parametrize(("check", "text"), GOOD)
def test_what_git_writes_for_itself_is_benign(check: object, text: str) -> None:
    assert check(text) == ""  # type: ignore[operator]


@pytest.mark.parametrize(("check", "text"), BAD)
def test_what_git_would_run_or_obey_is_not(check: object, text: str) -> None:
    assert check(text)  # type: ignore[operator]


@pytest.mark.parametrize("check", [getattr(state, name) for name in (
    "todo", "strategy", "strategy_options", "apply_options", "signing", "author", "name", "terms", "paths",
    "bisect_log",
)])  # fmt: skip
@pytest.mark.parametrize(
    "unit", ["'", "'\\''", "'a' ", " ", "a", "GIT_AUTHOR_NAME='a'\n", "git bisect good 'a'\n", "--ours "]
)
def test_the_work_is_linear_in_the_text(check: object, unit: str) -> None:
    """At most 64 KiB are given to them; the time for four times as much is not sixteen times as long."""
    text = unit * (protect.LARGEST_READ // len(unit))
    began = time.process_time()
    check(text + "\x00")  # type: ignore[operator]
    assert time.process_time() - began < 1.0


def test_the_depth_of_a_path_is_no_matter(tmp_path: Path) -> None:
    prevention = Prevention(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    try:
        deep = "/".join(["d"] * 2000)
        assert prevention.objection(f"{deep}/.git/hooks", kind="symlink", target="/tmp")
        assert prevention.objection(f"{deep}/.git/modules/{deep}/x", kind="symlink", target="/tmp")
        assert not prevention.objection(f"{deep}/.git/HEAD")
        for number in range(10_000):  # more than are remembered
            assert not prevention.objection(f"d{number}/x", kind="directory")
        assert prevention.objection("n/.vscode", kind="directory")
        assert not prevention.objection("n", kind="directory") and not prevention.objection("n/.git", kind="directory")
        assert not prevention.objection("n/.vscode", kind="directory")
        assert prevention.objection(".vscode", kind="directory") and prevention.objection("m/.vscode", kind="directory")
    finally:
        prevention.close()
