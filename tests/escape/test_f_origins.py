"""F: what a commit from before the run has may be made inside, and a command of an earlier run makes commits too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from escape_box import MEMBRANE, PYTHON, SECONDS, TOOLS, Box

GIT = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
BACKENDS = pytest.mark.parametrize(
    "backend", ["native", pytest.param("landlock", marks=pytest.mark.needs_kernel("landlock without TCP"))]
)
COMMIT = """
import subprocess
def git(*words, text=""):
    words = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words)
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    return done.stdout.strip() if not done.returncode else "failed"
blob = git("hash-object", "-w", "--stdin", text="evil")
inner = git("mktree", text=f"100644 blob {blob}\\tlaunch.json")
tree = git("mktree", text=f"040000 tree {inner}\\t.vscode")
git("update-ref", "refs/heads/evil", git("commit-tree", tree, "-p", "main", "-m", "m"))
say("commit", git("rev-parse", "--verify", "-q", "evil") != "failed")
"""
CHECK_OUT = """
import subprocess
def check_out(branch):
    return subprocess.run(["git", "checkout", "-q", branch, "--", ".vscode"], capture_output=True).returncode
say("evil", check_out("evil"))
say("there", os.path.exists(".vscode/launch.json"))
say("mine", check_out("mine"))
"""


@pytest.fixture
def mine(box: Box) -> Path:
    """A repository whose owner has a branch with such a name."""
    git(box, "init", "-q")
    git(box, "commit", "-q", "--allow-empty", "-m", "first")
    commit(box, "mine")
    return box.workspace / ".vscode/tasks.json"


def git(box: Box, *words: str) -> None:
    command = ["git", *GIT, *words]
    subprocess.run(command, cwd=box.workspace, env=box.environment, check=True, capture_output=True, timeout=SECONDS)


def commit(box: Box, branch: str) -> None:
    git(box, "checkout", "-q", "-b", branch)
    box.file(".vscode/tasks.json", branch)
    git(box, "add", "-A")
    git(box, "commit", "-q", "-m", branch)
    git(box, "checkout", "-q", "main")


def is_kept_out(box: Box, mine: Path, *options: str) -> None:
    found = box.attack(CHECK_OUT, *options)
    assert found["evil"] != 0 and not found["there"], "it was made by a command"
    assert found["mine"] == 0 and mine.read_text() == "mine", "the control: it is the owner's"
    git(box, "checkout", "-q", "evil", "--", ".vscode")  # the control: outside everything is the owner's
    assert (mine.parent / "launch.json").read_text() == "evil"


@BACKENDS
def test_F54_a_commit_of_an_earlier_run_brings_no_name_that_it_could_not_make(
    box: Box, mine: Path, backend: str
) -> None:
    options = (f"--backend={backend}",)
    assert box.attack(COMMIT, *options)["commit"]
    is_kept_out(box, mine, *options)


def test_F54_nor_one_that_no_ref_led_to_at_the_end_of_that_run(box: Box, mine: Path) -> None:
    """Its name is kept where nobody reads refs, and is a branch again when the next run has begun."""
    hide = (
        "kept = git('rev-parse', 'evil'); open('name', 'w').write(kept)\ngit('update-ref', '-d', 'refs/heads/evil')\n"
    )
    assert box.attack(COMMIT + hide)["commit"]
    again = (
        "import subprocess\nsubprocess.run(['git', 'update-ref', 'refs/heads/evil', open('name').read()], check=True)\n"
    )
    found = box.attack(again + CHECK_OUT)
    assert found["evil"] != 0 and not found["there"] and found["mine"] == 0, found
    mine.unlink()
    mine.parent.rmdir()
    is_kept_out(box, mine)  # what that run has done is a command's as well


def test_F54_also_of_one_in_a_directory_of_the_repository(box: Box, mine: Path) -> None:
    """With a rule that shows the files above and the repository, as the warning there advises."""
    below = box.workspace / "sub"
    below.mkdir()
    box.policy(mounts=[{"path": str(box.workspace)}, {"path": f"{box.workspace}/.git", "mode": "rw"}])
    assert box.attack("os.chdir('..')\n" + COMMIT, workspace=below)["commit"]
    box.policy()
    is_kept_out(box, mine)


def test_F55_nor_does_one_of_a_run_that_was_killed_or_is_still_there(box: Box, mine: Path) -> None:
    run = box.start(PYTHON, "-S", "-c", TOOLS + COMMIT + "\nprint('made', flush=True)\nimport time; time.sleep(600)")
    assert run.stdout and run.stdout.readline() == "made\n"
    try:
        found = box.attack(CHECK_OUT)
        assert found["evil"] != 0 and found["mine"] == 0
        mine.unlink()
        mine.parent.rmdir()
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    is_kept_out(box, mine)


def test_a_run_that_did_not_start_takes_nothing_for_a_commands(box: Box, mine: Path) -> None:
    assert box.run("true").returncode == 0
    shutil.rmtree(box.state / "places", ignore_errors=True)
    (box.state / "places").touch()  # what stops a run late in its start
    stopped = box.run("touch", "released")
    assert stopped.returncode == 125 and not (box.workspace / "released").exists(), stopped
    (box.state / "places").unlink()
    commit(box, "later")
    assert box.attack(CHECK_OUT.replace('check_out("mine")', 'check_out("later")'))["mine"] == 0
    assert mine.read_text() == "later"


@pytest.mark.needs_kernel("overlayfs in a user namespace")
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a linked work tree"])
def test_F56_nor_does_one_that_an_apply_has_brought(box: Box, mine: Path, linked: bool) -> None:
    place = box.workspace
    if linked:
        place = box.workspace.parent / "linked"
        git(box, "worktree", "add", "-q", "-b", "side", str(place))
        assert box.run("true").returncode == 0  # what is there by now is the owner's
    assert box.attack(COMMIT, "--review=set", workspace=place)["commit"]
    command = [*MEMBRANE, "apply", "set"]
    done = subprocess.run(
        command, cwd=place, env=box.environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done
    git(box, "rev-parse", "--verify", "evil")
    is_kept_out(box, mine)


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_F56_nor_does_one_of_a_whole_repository_that_an_apply_has_brought(box: Box) -> None:
    """Below a workspace that has no repository itself; ``.git`` is new then, and made outside."""
    inner, environment = box.workspace / "inner", box.environment
    made = 'import os, subprocess\nos.mkdir("inner"); os.chdir("inner")\n'
    made += f'subprocess.run(["git", *{GIT!r}, "init", "-q"], check=True)\n'
    made += f'subprocess.run(["git", *{GIT!r}, "commit", "-q", "--allow-empty", "-m", "first"], check=True)\n'
    assert box.attack(made + COMMIT, "--review=set")["commit"]
    command = [*MEMBRANE, "apply", "set"]
    done = subprocess.run(
        command, cwd=box.workspace, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0 and (inner / ".git").is_dir(), done
    found = box.attack(CHECK_OUT, workspace=inner)
    assert found["evil"] != 0 and not found["there"], found
    # The control: one that its owner makes after that is his.
    shutil.rmtree(inner)
    inner.mkdir()
    outside = [["init", "-q"], ["checkout", "-q", "-b", "evil"], ["add", "-Af"], ["commit", "-q", "-m", "own"]]
    (inner / ".vscode").mkdir()
    (inner / ".vscode" / "launch.json").write_text("own")
    for words in (*outside, ["rm", "-rq", ".vscode"], ["commit", "-q", "--allow-empty", "-m", "none"]):
        subprocess.run(["git", *GIT, *words], cwd=inner, env=environment, check=True, timeout=SECONDS)
    subprocess.run(["git", *GIT, "branch", "mine", "HEAD~1"], cwd=inner, env=environment, check=True, timeout=SECONDS)
    assert box.attack(CHECK_OUT, workspace=inner)["mine"] == 0
