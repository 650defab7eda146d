"""Reviewed work trees whose repository is elsewhere: linked ones, of a bare repository, submodules, separate ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from test_review import IDENTITY
from test_review import tree as listing
from test_worktrees import bare, git, linked, separate, submodule
from world.box import Box

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
READS = """
import sys
for line in sys.stdin:
    try:
        print(open(line.strip()).read().strip(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""
COMMIT = "echo 2 > a; git commit -qam in; git branch more; git gc -q"


def review(box: Box, tree: Path, script: str, *options: str, name: str = "one") -> subprocess.CompletedProcess[str]:
    return box.run(*IDENTITY, f"--review={name}", *options, "--", "bash", "-euc", script, cwd=tree)


@pytest.mark.parametrize("layout", [linked, bare, submodule, separate])
def test_work_comes_with_the_repository_and_goes_back(box: Box, layout: Callable[[Box], tuple[Path, Path]]) -> None:
    tree, common = layout(box)
    before = [listing(tree), listing(common)]
    done = review(box, tree, COMMIT + "; git log --oneline | wc -l; git status --short; git fsck")
    assert done.returncode == 0 and done.stdout == "2\n", done
    assert [listing(tree), listing(common)] == before
    for step in ("apply", "undo", "apply"):  # at once, before git outside has looked at the files
        assert box.run(step, "one", cwd=tree).returncode == 0
    assert git(box, tree, "log", "-1", "--format=%s", "more") == "in\n"
    assert git(box, tree, "status", "--porcelain") == "" and (tree / "a").read_text() == "2\n"
    assert git(box, tree, "fsck", "--full", "--no-dangling") == ""
    assert box.run("undo", "one", cwd=tree).returncode == 0
    assert git(box, tree, "log", "-1", "--format=%s") == "1\n" and git(box, tree, "branch", "--list", "more") == ""
    assert git(box, tree, "status", "--porcelain") == ""


def test_only_the_two_trees_are_in_the_view(box: Box) -> None:
    """The main work tree's files and a sibling's are not there; what is written of the sibling's state stays inside."""
    tree, common = linked(box)
    (common.parent / "secret").write_text("x")
    (common / "worktrees/sibling/x.pem").write_text("key")
    (common / "y.pem").write_text("key")
    look = f"ls -A {common.parent}; set +e; ls {box.home}/sibling; cat {common}/y.pem {common}/worktrees/sibling/x.pem"
    done = review(box, tree, f"{look}; echo x > {common}/worktrees/sibling/HEAD", "--ignore=*.pem")
    assert done.returncode == 0 and done.stdout == ".git\n", done
    assert "sibling': No such file" in done.stderr and done.stderr.count("Permission denied") == 2
    head = common / "worktrees/sibling/HEAD"
    assert head.read_text() == "ref: refs/heads/two\n"
    done = box.run("apply", "--all", "one", cwd=tree)
    assert done.returncode == 1 and "it is another work tree's" in done.stdout, done
    assert head.read_text() == "ref: refs/heads/two\n"
    attack = "rm -f .git; mv .git other; echo 'gitdir: /x' > .git; umount .git"
    done = review(
        box, tree, f"for each in 'rm -f .git' 'mv .git x' 'echo > .git'; do eval $each && echo DONE; done; {attack}"
    )
    assert "DONE" not in done.stdout and done.returncode != 0
    assert "Device or resource busy" in done.stderr and "Read-only file system" in done.stderr


@pytest.mark.parametrize("how", ["--review=one", "--live"])
def test_what_the_host_makes_meanwhile_in_the_repository_is_hidden_as_well(box: Box, how: str) -> None:
    tree, common = linked(box)
    (tree / "sub").mkdir()
    run = box.popen(how, "--ignore=*.pem", "--", "python3", "-c", READS, cwd=tree,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    def ask(place: Path) -> str:
        assert run.stdin is not None and run.stdout is not None
        run.stdin.write(f"{place}\n".encode())
        run.stdin.flush()
        return run.stdout.readline().decode().strip()

    assert ask(tree / "a") == "1"  # it runs
    for place in (tree / "sub/x.pem", common / "x.pem", common / "worktrees/sibling/x.pem"):
        plain = place.with_name("ORIG_HEAD")  # nothing that is put aside in a live run
        loses = how == "--live" and common in place.parents
        plain.write_text("plain\n")
        assert ask(plain) == "plain"  # the control: it is in the view
        place.write_text("SECRET\n")
        for _ in range(100_000):
            if (said := ask(place)) != "SECRET" and not (loses and place.exists()):
                break
        assert "Permission denied" in said or "No such file" in said, place
        if loses:
            assert not place.exists()  # git writes no such name there: see F146 of tests/escape
        else:
            assert place.read_text() == "SECRET\n"
    run.communicate(timeout=60)
    assert run.returncode == 0


def test_two_runs_in_two_work_trees_of_one_repository_at_once(box: Box) -> None:
    tree, common = linked(box)
    trees = {"one": tree, "two": box.home / "sibling"}
    script = "echo ready; read _; echo $0 > a; git commit -qam $0; git branch of-$0"
    runs = [
        box.popen(*IDENTITY, f"--review={name}", "--apply=safe", "--", "bash", "-euc", script, name, cwd=place,
                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name, place in trees.items()
    ]  # fmt: skip
    for run in runs:
        assert run.stdout is not None and run.stdout.readline().strip() in ("ready", b"ready")
    for run in runs:
        run.communicate("\n" if run.text_mode else b"\n", timeout=60)  # type: ignore[attr-defined]
        assert run.returncode == 0
    for name, place in trees.items():
        assert git(box, place, "log", "-1", "--format=%s") == f"{name}\n"
        assert git(box, place, "status", "--porcelain") == ""
    assert git(box, tree, "branch", "--format=%(refname:short)").split() == ["main", "of-one", "of-two", "one", "two"]
    assert git(box, tree, "fsck", "--full") == ""
    assert (common / "worktrees/sibling/HEAD").read_text() == "ref: refs/heads/two\n"


def test_checkpoints_forks_and_a_later_run_hold_the_repository_as_well(box: Box) -> None:
    tree, _common = linked(box)
    assert review(box, tree, "git commit -q --allow-empty -m first").returncode == 0
    assert box.run("checkpoint", "one", "then", cwd=tree).returncode == 0
    # Of the layer that a run is writing it is a copy.
    script = "git commit -q --allow-empty -m second; echo ready; read _"
    run = box.popen(*IDENTITY, "--review=one", "--", "bash", "-euc", script, cwd=tree,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert run.stdout is not None and run.stdin is not None
    run.stdout.readline()
    assert box.run("fork", "one", "two", cwd=tree).returncode == 0
    run.communicate(timeout=60)
    assert run.returncode != 0  # the end of its input
    done = review(box, tree, "git log --format=%s; git commit -q --allow-empty -m third", name="two")
    assert done.stdout.split() == ["second", "first", "1"]
    assert box.run("restore", "one", "then", cwd=tree).returncode == 0
    assert review(box, tree, "git log --format=%s").stdout.split() == ["first", "1"]
    assert box.run("apply", "two", cwd=tree).returncode == 0
    assert git(box, tree, "log", "--format=%s").split() == ["third", "second", "first", "1"]
    # The other set is behind by then: its commit arrives beside.
    done = box.run("apply", "one", cwd=tree)
    assert "git merge refs/membrane/one/heads/one" in done.stdout + done.stderr, done


def test_a_work_tree_that_the_host_removes_or_moves_meanwhile(box: Box) -> None:
    tree, common = linked(box)
    assert review(box, tree, "git commit -q --allow-empty -m in").returncode == 0
    pointer = (tree / ".git").read_text()
    (tree / ".git").write_text(f"gitdir: {common}/worktrees/sibling\n")  # another one, which does not lead back
    done = box.run("apply", "one", cwd=tree)
    assert done.returncode != 0 and "does not lead back" in done.stderr, done
    (tree / ".git").write_text(pointer)
    aside = box.home / "aside"
    tree.rename(aside)
    git(box, common.parent, "worktree", "prune")
    aside.rename(tree)
    done = box.run("apply", "one", cwd=tree)
    assert done.returncode != 0 and "does not lead back" in done.stderr, done
    # It has no repository any more, so a run that would go on with the set has another workspace.
    assert review(box, tree, "true").returncode == 78
    assert git(box, common.parent, "log", "-1", "--format=%s", "one") == "1\n"
    shutil.rmtree(tree)
    assert box.run("discard", "one").returncode == 0
    assert json.loads(box.run("changes", "--json").stdout) == {"changes": []}


def test_a_git_file_that_names_a_repository_which_does_not_lead_back_opens_nothing(box: Box) -> None:
    _tree, common = linked(box)
    forged = box.home / "forged"
    forged.mkdir()
    (forged / ".git").write_text(f"gitdir: {common}/worktrees/tree\n")
    done = review(box, forged, f"ls {common} 2>&1 || :; git log 2>&1 || :")
    assert "No such file" in done.stdout and "not a git repository" in done.stdout, done
    assert "does not lead back" in done.stderr


def test_a_repository_on_another_file_system_is_refused(box: Box) -> None:
    tree, _common = separate(box)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        shutil.move(box.home / "apart", f"{other}/apart")
        (tree / ".git").write_text(f"gitdir: {other}/apart\n")
        done = review(box, tree, "true")
        assert done.returncode == 78 and "on another file system, or mount" in done.stderr, done
        live = box.run("--live", "--", "git", "log", "-1", "--format=%s", cwd=tree)
        assert live.stdout == "1\n"  # the control


def test_the_library_reviews_a_linked_work_tree(box: Box) -> None:
    tree, _common = linked(box)
    script = """
from membrane import Sandbox
with Sandbox(workspace=".", review=True) as sandbox:
    sandbox.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "in"])
    paths = [change.path for change in sandbox.changes()]
    assert ".git/refs/heads/one" in paths, paths
    sandbox.apply()
"""
    done = box.outside(sys.executable, "-c", script, cwd=tree)
    assert done.returncode == 0, done
    assert git(box, tree, "log", "-1", "--format=%s") == "in\n"
