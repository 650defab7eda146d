"""git in work trees that keep their git directory elsewhere: linked worktrees, submodules, separate directories."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from world.box import Box

COMMIT = (
    "git status --porcelain -b && echo new > new && git add new && git -c user.name=a -c user.email=a@b commit -qm in"
)


def git(box: Box, where: Path, *words: str) -> str:
    done = box.outside("git", "-c", "protocol.file.allow=always", *words, cwd=where)
    assert done.returncode == 0, done
    return done.stdout


def repository(box: Box) -> Path:
    made = box.home / "main"
    made.mkdir()
    git(box, made, "init", "-q", "-b", "main")
    (made / "a").write_text("1\n")
    git(box, made, "add", "a")
    git(box, made, "commit", "-qm", "1")
    return made


def linked(box: Box) -> tuple[Path, Path]:
    made = repository(box)
    git(box, made, "worktree", "add", "-q", "../tree", "-b", "one")
    git(box, made, "worktree", "add", "-q", "../sibling", "-b", "two")
    return box.home / "tree", made / ".git"


def bare(box: Box) -> tuple[Path, Path]:
    top = box.home / "project"
    git(box, box.home, "clone", "-q", "--bare", str(repository(box)), str(top / ".bare"))
    (top / ".git").write_text("gitdir: ./.bare\n")
    git(box, top, "worktree", "add", "-q", "tree", "-b", "one")
    return top / "tree", top / ".bare"


def submodule(box: Box) -> tuple[Path, Path]:
    made = repository(box)
    top = box.home / "top"
    top.mkdir()
    git(box, top, "init", "-q")
    git(box, top, "submodule", "--quiet", "add", str(made), "sub")
    return top / "sub", top / ".git/modules/sub"


def separate(box: Box) -> tuple[Path, Path]:
    made = repository(box)
    git(box, box.home, "clone", "-q", "--separate-git-dir", "apart", str(made), "tree")
    return box.home / "tree", box.home / "apart"


@pytest.mark.parametrize("layout", [linked, bare, submodule, separate])
def test_git_works_where_the_git_directory_is_elsewhere(box: Box, layout: Callable[[Box], tuple[Path, Path]]) -> None:
    tree, common = layout(box)
    done = box.run("--", "sh", "-euc", COMMIT, cwd=tree)
    assert done.returncode == 0, done
    assert git(box, tree, "log", "-1", "--format=%s") == "in\n"
    assert git(box, tree, "status", "--porcelain") == ""
    plan = box.run("plan", cwd=tree)
    assert f"mount {common} rw" in plan.stdout, plan.stdout

    (common / "ORIG_HEAD").write_text("")  # the control: the directory is the caller's, and in the view
    attack = (
        f"rm {common}/ORIG_HEAD; echo x > {common}/hooks/post-checkout; git config core.fsmonitor evil; "
        f"echo '[core]' >> {common}/config; mv {common}/hooks {common}/h; true"
    )
    before = (common / "config").read_bytes()
    assert box.run("-q", "--", "sh", "-c", attack, cwd=tree).returncode == 0
    assert not (common / "ORIG_HEAD").exists()
    assert (common / "config").read_bytes() == before
    assert not (common / "hooks/post-checkout").exists()


def test_a_linked_worktree_shows_nothing_of_its_siblings(box: Box) -> None:
    tree, common = linked(box)
    sibling = box.home / "sibling"
    assert (sibling / "a").read_text() == "1\n"  # the control
    script = f"cat {sibling}/a; ls {box.home}/main/a; echo x > {common}/worktrees/sibling/HEAD; cat {common}/HEAD"
    done = box.run("-q", "--", "sh", "-c", script, cwd=tree)
    assert done.stdout == "ref: refs/heads/main\n"
    assert done.stderr.count("No such file or directory") == 2
    assert "Read-only file system" in done.stderr
    assert (common / "worktrees/sibling/HEAD").read_text() == "ref: refs/heads/two\n"


def test_one_beside_the_workspace_is_refused_by_git_itself(box: Box) -> None:
    """The place is in the sandbox's home, and writable: git must not end with 0 and have a part of it taken away."""
    made = repository(box)
    script = (
        "git worktree add -q .worktrees/in && git -C .worktrees/in status --porcelain && "
        "git worktree add -q ../beside; "
        "echo $?; ls ../beside; git worktree list | wc -l; ls .git/worktrees"
    )
    done = box.run("--", "sh", "-c", script, cwd=made)
    assert done.stdout == "128\n2\nin\n", done
    assert "fatal: could not open '.git/worktrees/beside/commondir' for writing: Permission denied" in done.stderr
    assert "a work tree beside the workspace is added outside of the sandbox" in done.stderr, done
    assert git(box, made, "worktree", "list").count("\n") == 2
    git(box, made, "worktree", "add", "-q", "../beside", "-b", "later")  # nothing stands in the way


def test_a_person_adds_a_worktree_while_the_command_runs(box: Box) -> None:
    """It is one as any other: nothing of it is taken away, and the next sandbox is in it."""
    made = repository(box)
    script = "touch started; until [ -e ../main/stop ]; do sleep 0.02; done; git worktree list | wc -l; rm started stop"
    with box.popen("--", "sh", "-c", script, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while not (made / "started").exists():
            assert running.poll() is None
            time.sleep(0.01)
        git(box, made, "worktree", "add", "-q", "../beside", "-b", "beside")
        (made / "stop").touch()
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, b"2\n"), err
    assert err == b""
    beside = box.home / "beside"
    assert (made / ".git/worktrees/beside/gitdir").read_text() == f"{beside}/.git\n"
    assert git(box, beside, "status", "--porcelain") == ""
    assert box.run("--", "git", "status", "--porcelain", cwd=beside).stdout == ""


def test_a_worktree_that_was_added_meanwhile_runs_nothing_of_the_command(box: Box) -> None:
    """Its git directory is the command's to write, and git in it outside goes by what is in there."""
    made = repository(box)
    ran = box.home / "ran"
    plant = f"""
cp -r .git/refs .git/objects .git/HEAD evil/; printf '[core]\\n\\tfsmonitor = "touch {ran}; false"\\n' > evil/config
"""
    redirect = "echo ../../../evil > .git/worktrees/beside/commondir"
    attack = f"""
mkdir evil; {plant}
touch started; until [ -e stop ]; do sleep 0.02; done
{redirect}
echo "{box.home}/other/.git" > .git/worktrees/beside/gitdir
cp evil/config .git/worktrees/beside/config; cp evil/config .git/worktrees/beside/config.worktree
mkdir .git/worktrees/beside/hooks; printf '#!/bin/sh\\ntouch {ran}\\n' > .git/worktrees/beside/hooks/post-checkout
chmod +x .git/worktrees/beside/hooks/post-checkout
rm started stop
"""
    with box.popen("-q", "--", "sh", "-c", attack, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        while not (made / "started").exists():
            assert running.poll() is None
            time.sleep(0.01)
        git(box, made, "worktree", "add", "-q", "../beside", "-b", "beside")
        (made / "stop").touch()
        running.communicate(timeout=60)
    beside = box.home / "beside"
    for words in (("status",), ("checkout", "-q", "-b", "new"), ("worktree", "list")):
        box.outside("git", *words, cwd=beside)  # it may have lost its git directory; it must not run anything
        assert not ran.exists(), words
    git(box, made, "worktree", "prune")
    assert not ran.exists()
    # The control: what the command tried works where nobody stops it.
    git(box, made, "worktree", "add", "-q", "--force", "../control", "-b", "control")
    done = box.outside("sh", "-c", redirect.replace("beside", "control"), cwd=made)
    assert done.returncode == 0, done
    box.outside("git", "status", cwd=box.home / "control")
    assert ran.exists()


def test_a_planted_pointer_shows_no_repository(box: Box) -> None:
    """An archive that brings ``.git`` with "gitdir:" of somebody's repository gets nothing of it."""
    made = repository(box)
    (box.workspace / ".git").write_text(f"gitdir: {made}/.git\n")
    assert git(box, box.workspace, "rev-parse", "--git-dir") == f"{made}/.git\n"  # the control: git outside takes it
    done = box.run("--", "ls", f"{made}/.git", cwd=box.workspace)
    assert done.returncode == 2
    assert "does not name this directory as its work tree" in done.stderr


def test_a_directory_of_a_repository_is_told_once_that_git_does_not_work_and_what_helps(box: Box) -> None:
    made = repository(box)
    sub = made / "src"
    sub.mkdir()
    said = f"is a directory of the repository {made}, which is not in the view"

    def status(*options: str, where: Path = sub) -> tuple[int, bool]:
        done = box.run(*options, "--", "git", "status", cwd=where)
        return done.returncode, said in done.stderr

    assert status() == (128, True)
    assert status() == (128, False)
    assert status(where=made) == (0, False)
    other = made / "other"
    other.mkdir()
    box.policy(f"mounts: [{{path: {made}}}, {{path: {made}/.git, mode: rw}}]")  # what it advises
    assert status(where=other) == (0, False)


def test_a_directory_of_a_repository_commits_no_file_that_it_does_not_see_as_deleted(box: Box) -> None:
    made = repository(box)
    sub = made / "src"
    sub.mkdir()
    (sub / "b").write_text("1\n")
    git(box, made, "add", "-A")
    git(box, made, "commit", "-qm", "2")
    commit = f"git status --porcelain; echo 2 > {sub}/b; git status --porcelain; git commit -qam in"
    options = ("--", "sh", "-c", f"export GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a EMAIL=a@b; {commit}")
    # The control: without the other files git takes them for deleted.
    apart = box.home / "apart"
    (apart / "src").mkdir(parents=True)
    git(box, box.home, "clone", "-q", "--bare", str(made), str(apart / ".git"))
    git(box, apart, "config", "core.bare", "false")
    git(box, apart, "reset", "-q")
    assert " D a" in git(box, apart, "status", "--porcelain").splitlines()

    box.policy(f"mounts: [{{path: {made}/.git, mode: rw}}]")
    refused = box.run(*options, cwd=sub)
    assert refused.returncode == 78 and "would take them for deleted" in refused.stderr, refused
    advised = refused.stderr.partition("read-only: ")[2].splitlines()[0]
    box.policy(advised)
    done = box.run(*options, cwd=sub)
    assert done.returncode == 0 and "D a" not in done.stdout, done
    assert git(box, made, "show", "--name-status", "--format=%s").split() == ["in", "M", "src/b"]
    assert git(box, made, "status", "--porcelain") == ""
    written = box.run("--", "sh", "-c", f"echo x > {made}/a", cwd=sub)
    assert written.returncode == 2 and "Read-only file system" in written.stderr


@pytest.mark.parametrize("change", ["changed", "removed", "added"])
def test_git_fails_where_a_file_beside_the_workspace_would_have_to_change(box: Box, change: str) -> None:
    """The other files of the work tree are read-only: git would go on, end with 0, and a commit undo it."""
    made = repository(box)
    sub = made / "src"
    sub.mkdir()
    (sub / "b").write_text("1\n")
    git(box, made, "add", "-A")
    git(box, made, "commit", "-qm", "2")
    git(box, made, "branch", "-m", "main")
    git(box, made, "switch", "-qc", "side")
    if change == "removed":
        git(box, made, "rm", "-q", "a")
    else:
        (made / ("a" if change == "changed" else "new/file")).parent.mkdir(exist_ok=True)
        (made / ("a" if change == "changed" else "new/file")).write_text("side\n")
    git(box, made, "add", "-A")
    git(box, made, "commit", "-qm", "3")
    git(box, made, "switch", "-q", "main")
    box.policy(f"mounts: [{{path: {made}}}, {{path: {made}/.git, mode: rw}}]")
    line = "git switch -q side; echo $?; git rev-parse --abbrev-ref HEAD; git status --porcelain"
    done = box.run("--", "sh", "-c", line, cwd=sub)
    assert done.stdout == "128\nmain\n", done
    assert ("do it outside of the sandbox" if change != "added" else "cannot create directory") in done.stderr
    assert git(box, made, "status", "--porcelain") == ""
    git(box, made, "switch", "-q", "side")  # the control
    assert git(box, made, "status", "--porcelain") == ""


def test_a_hook_may_not_write_beside_the_workspace_and_stops_no_checkout(box: Box) -> None:
    made = repository(box)
    sub = made / "src"
    sub.mkdir()
    hook = made / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho x > {made}/log || echo no\n")
    hook.chmod(0o755)
    box.policy(f"mounts: [{{path: {made}}}, {{path: {made}/.git, mode: rw}}]")
    commit = "echo 2 > b; git add b; git commit -qm in"
    options = ("--", "sh", "-euc", f"export GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a EMAIL=a@b; {commit}")
    done = box.run(*options, cwd=sub)
    assert done.returncode == 0 and "no" in done.stdout + done.stderr, done
    assert git(box, made, "log", "-1", "--format=%s") == "in\n"


def test_a_directory_of_a_sparse_checkout_commits(box: Box) -> None:
    """Its index holds whole directories that are not there (``index.sparse``)."""
    made = repository(box)
    for name in ("src", "left/out"):
        (made / name).mkdir(parents=True)
        (made / name / "b").write_text("1\n")
    git(box, made, "add", "-A")
    git(box, made, "commit", "-qm", "2")
    git(box, made, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(box, made, "sparse-checkout", "set", "src")
    sub = made / "src"
    box.policy(f"mounts: [{{path: {made}}}, {{path: {made}/.git, mode: rw}}]")
    commit = "echo 2 > b; git status --porcelain; git add b; git commit -qm in; git ls-files --sparse -t .."
    options = ("--", "sh", "-euc", f"export GIT_AUTHOR_NAME=a GIT_COMMITTER_NAME=a EMAIL=a@b; {commit}")
    done = box.run(*options, cwd=sub)
    assert done.returncode == 0 and "S ../left/" in done.stdout and " M src/b" in done.stdout, done
    assert git(box, made, "show", "--name-status", "--format=%s").split() == ["in", "M", "src/b"]
    assert git(box, made, "status", "--porcelain") == "" and not (made / "left").exists()


@pytest.mark.parametrize("layout", [linked, bare, submodule, separate])
def test_rules_hold_in_a_git_directory_that_is_elsewhere_as_they_would_in_the_workspaces_own(
    box: Box, layout: Callable[[Box], tuple[Path, Path]]
) -> None:
    tree, common = layout(box)
    git(box, tree, "branch", "keep")
    for name in ("x.pem", "info/y.pem", "a.txt"):
        (common / name).write_text("SECRET\n")
    script = (
        f"cd {common}; cat x.pem info/y.pem a.txt; echo > new.pem; mv x.pem q; ln x.pem q; cat q; echo > ORIG_HEAD; "
        "echo > refs/heads/keep; rm refs/heads/keep; mv refs/heads r; cat refs/heads/keep"
    )
    rules = ("--ignore=*.pem", "--ignore=/.git/a.txt", "--readonly=.git/refs/heads/keep", "--readonly=ORIG_HEAD")
    kept = (common / "refs/heads/keep").read_text()
    assert "SECRET" not in (done := box.run(*rules, "--", "sh", "-c", script, cwd=tree)).stdout
    assert done.stdout.splitlines() == kept.splitlines(), done
    assert (common / "refs/heads/keep").read_text() == kept and (common / "x.pem").read_text() == "SECRET\n"
    # A pattern without .git does not mean git's own files, as in an ordinary workspace.
    assert (common / "ORIG_HEAD").exists() and not (common / "new.pem").exists() and not (common / "q").exists()
    plan = box.run("plan", *rules, cwd=tree).stdout
    assert f"{common}/x.pem" in plan and f"{common}/a.txt" in plan
    control = box.run("--ignore=/x.pem", "--ignore=/info/", "--ignore=/a.txt", "--", "sh", "-c", script, cwd=tree)
    assert control.stdout.count("SECRET") >= 3, control  # the names of the workspace, not those of the repository
    assert (common / "refs/heads/keep").exists() is False


@pytest.mark.parametrize("how", ["--live", "--review=one"])
def test_a_rule_over_the_name_of_the_repository_holds_for_where_it_is(box: Box, how: str) -> None:
    tree, common = linked(box)
    look = f"ls {common}/HEAD; git log -1 --format=%s"
    done = box.run(how, "--", "sh", "-c", look, cwd=tree)
    assert done.stdout == f"{common}/HEAD\n1\n", done  # the control
    for pattern in (".git", "/.git/"):
        done = box.run(how, f"--ignore={pattern}", "--", "sh", "-c", look, cwd=tree)
        assert done.stdout == "" and done.returncode != 0, done
    if how == "--live":
        write = f"git log -1 --format=%s; echo > {common}/refs/heads/two; git branch new; true"
        done = box.run(how, "--readonly=.git", "--", "sh", "-c", write, cwd=tree)
        assert done.stdout == "1\n" and done.stderr.count("Read-only file system") == 2, done
