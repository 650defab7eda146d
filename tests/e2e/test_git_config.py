"""What real git changes in a repository's ``config`` from inside: everyday settings, as outside; others, not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

import membrane

SOURCE = str(Path(membrane.__file__).resolve().parent.parent)
WITHOUT_EBPF = (
    f"import sys; sys.path.insert(0, {SOURCE!r}); import membrane.tracer.ebpf as ebpf; ebpf.OBJECT = '/nowhere'; "
    "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))"
)
IDENTITY = {f"GIT_{who}_{what}": "agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
IDENTITY |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
ENVIRONMENT = tuple(f"--env={name}={value}" for name, value in IDENTITY.items())
FILE = "-c protocol.file.allow=always"  # submodules from a path


@pytest.fixture(params=["as it is", "without eBPF"], autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has two sources of events, a plain user one."""
    if request.param == "without eBPF":
        monkeypatch.setattr("world.box.membrane_argv", lambda: [sys.executable, "-I", "-c", WITHOUT_EBPF])


def git(where: Path, *command: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", **IDENTITY}
    done = subprocess.run(
        ["git", *command], cwd=where, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def settings(repository: Path) -> list[str]:
    return git(repository, "config", "--list", "--local").splitlines()


@pytest.fixture
def repository(box: Box) -> Path:
    """With a commit, a remote in the workspace, a branch that follows it, and a submodule that is not set up yet."""
    top = box.workspace
    git(top, "init", "-q", "--bare", "remote.git")
    git(top, "init", "-q", "-b", "main", "library")
    git(top / "library", "commit", "-q", "--allow-empty", "-m", "one")
    git(top, "init", "-q", "-b", "main", "app")
    app = top / "app"
    git(app, "remote", "add", "origin", "../remote.git")
    git(app, *FILE.split(), "submodule", "--quiet", "add", "../library", "lib")
    git(app, "commit", "-q", "-m", "one")
    git(app, "push", "-q", "-u", "origin", "main")
    git(app, "branch", "-q", "side")
    git(app, "submodule", "--quiet", "deinit", "--all", "--force")
    return app


EVERYDAY = {
    "push -u": "git push -q -u origin side",
    "branch -m": "git checkout -q side && git branch -u origin/main && git branch -m other",
    "branch -d": "git branch -q --track third origin/main && git branch -q -d third",
    "checkout --track": "git checkout -q -b fourth --track origin/main",
    "remote": "git remote add two https://example.org/two.git && git remote rename two three && "
    "git remote set-url three git@example.org:a/b.git && git remote add four ssh://git@example.org/x && "
    "git remote remove four",
    "user": "git config user.name somebody && git config user.email a@example.org && git config --unset user.email",
    "init": "git init -q",
    "submodule init": "git submodule --quiet init",
    "submodule update": f"git {FILE} submodule --quiet update --init",
    "submodule add": f"git {FILE} submodule --quiet add ../library other",
    "sparse": "git sparse-checkout set docs",
    "worktree": "git worktree add -q -b fifth ../five",
    "many": "for i in 1 2 3 4 5 6 7 8 9; do git config branch.b$i.description text$i || exit 1; done",
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_inside_is_as_outside(box: Box, repository: Path, name: str) -> None:
    before = settings(repository)
    outside = box.workspace.parent / "outside"
    shutil.copytree(box.workspace, outside, symlinks=True)
    environment = {"PATH": "/usr/bin:/bin", **IDENTITY}
    subprocess.run(["sh", "-c", EVERYDAY[name]], cwd=outside / "app", env=environment, check=True, timeout=60)
    done = box.run(*ENVIRONMENT, "--", "sh", "-c", f"cd app && {EVERYDAY[name]}")
    assert done.returncode == 0, done.stderr
    assert "git setting" not in done.stderr and "error" not in done.stderr
    after, expected = ([line.replace(str(at), "") for line in settings(at / "app")] for at in (box.workspace, outside))
    assert after == expected
    assert after != before or name in ("branch -d", "init", "worktree", "sparse")
    modules = ".gitmodules"
    assert (repository / modules).read_bytes() == (outside / "app" / modules).read_bytes()
    git(repository, "status")
    left = [path.name for path in (repository / ".git").rglob("*.lock")]
    assert not left
    hooks = {path.name for path in (repository / ".git/hooks").iterdir()}
    assert hooks == {path.name for path in (outside / "app/.git/hooks").iterdir()}
    status, other = os.stat(repository / ".git/config"), os.stat(outside / "app/.git/config")
    assert (status.st_mode, status.st_uid, status.st_gid) == (other.st_mode, other.st_uid, other.st_gid)


REFUSED = {
    "core.hookspath": "git config core.hooksPath .husky/_",
    "core.fsmonitor": "git config core.fsmonitor ./x",
    "filter.lfs.clean": "git config filter.lfs.clean 'git-lfs clean -- %f'",
    "alias.x": "git config alias.x '!./x'",
    "remote.evil.url": "git remote add evil 'ext::sh -c ./x'",
    "remote.origin.uploadpack": "git config remote.origin.uploadpack ./x",
    "include.path": "git config include.path ../x",
}


@pytest.mark.parametrize("key", REFUSED)
def test_other_settings_are_refused_whole(box: Box, repository: Path, key: str) -> None:
    config = repository / ".git/config"
    before, status = config.read_bytes(), os.stat(config)
    done = box.run(f"--events={box.events_path}", *ENVIRONMENT, "--", "sh", "-c", f"cd app && {REFUSED[key]}")
    assert done.returncode not in (0, 125)
    assert "Permission denied" in done.stderr  # git's own words
    assert f"{key} is no everyday setting; git_config: writable allows all" in done.stderr  # the summary
    now = os.stat(config)
    assert config.read_bytes() == before
    assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    assert not list((repository / ".git").glob("*.lock"))
    [denied] = [event for event in box.events("AccessDenied") if event["reason"] == "git setting"]
    assert denied["access"]["path"] == "app/.git/config" and denied["hint"].startswith(key)
    # The control: the policy key allows it.
    done = box.run("--env=HOME=/tmp", *ENVIRONMENT, "--", "sh", "-c", f"cd app && {REFUSED[key]}")
    box.allow(git_config="writable")
    done = box.run(*ENVIRONMENT, "--", "sh", "-c", f"cd app && {REFUSED[key]}")
    assert done.returncode == 0, done.stderr
    assert any(line.startswith(f"{key}=") for line in settings(repository))


def test_a_program_that_the_user_named_stays(box: Box, repository: Path) -> None:
    """The difference is judged: what is there already is nobody's doing inside."""
    git(repository, "config", "core.fsmonitor", "false-program")
    script = "cd app; git -c core.fsmonitor=false config user.name x; echo $?; git config core.fsmonitor other; echo $?"
    done = box.run(*ENVIRONMENT, "--", "sh", "-c", f"{script}; git config --unset core.fsmonitor; echo $?")
    assert done.stdout.split() == ["0", "4", "4"] or done.stdout.split()[0] == "0"
    assert "core.fsmonitor=false-program" in settings(repository) and "user.name=x" in settings(repository)


def test_each_setting_is_told(box: Box, repository: Path) -> None:
    """In quick succession, and with what confuses a terminal."""
    names = ("core.pager", "core.editor", "filter.a\u202eb.clean")
    script = "; ".join(f"git config '{name}' x" for name in names)
    done = box.run(f"--events={box.events_path}", *ENVIRONMENT, "--", "sh", "-c", f"cd app; {script}")
    hints = [event["hint"] for event in box.events("AccessDenied") if event["reason"] == "git setting"]
    assert [hint.split(" is ")[0] for hint in hints] == ["core.pager", "core.editor", "filter.a\\u{202e}b.clean"]
    assert "\u202e" not in done.stderr


def test_without_notifications_it_is_read_only(box: Box, repository: Path) -> None:
    before = (repository / ".git/config").read_bytes()
    done = box.run("--no-trace", *ENVIRONMENT, "--", "sh", "-c", "cd app && git config user.name x")
    assert done.returncode == 4 and "Device or resource busy" in done.stderr
    assert (repository / ".git/config").read_bytes() == before


def test_a_repository_without_hooks_keeps_its_configuration(box: Box) -> None:
    git(box.workspace, "init", "-q", "--template=", ".")
    done = box.run(*ENVIRONMENT, "--", "git", "config", "user.name", "x")
    assert done.returncode == 4 and "Device or resource busy" in done.stderr


def test_the_record_says_what_happened(box: Box, repository: Path) -> None:
    script = "cd app && git config user.name x"
    assert box.run(f"--events={box.events_path}", *ENVIRONMENT, "--", "sh", "-c", script).returncode == 0
    config = f"{repository}/.git/config"
    done: list[dict[str, Any]] = [event for event in box.events("FileRenamed") if event["to"] == config]
    assert [(event["path"], event["result"]) for event in done] == [(f"{config}.lock", "")]
    assert json.dumps(done[0]["process"]).count('"git"') == 1


def test_a_repository_that_is_made_inside_keeps_a_whole_configuration(box: Box) -> None:
    """What would be taken away with the whole file is refused before (``git lfs install --local`` in a new one)."""
    script = """
    git init -q new && cd new && git config lfs.repositoryformatversion 0; echo $?
    git config filter.lfs.clean 'git-lfs clean -- %f'; echo $?
    git config user.name somebody; echo $?
    """
    done = box.run(f"--events={box.events_path}", *ENVIRONMENT, "--", "sh", "-c", script)
    assert done.stdout.split() == ["0", "4", "0"], done.stderr
    now = settings(box.workspace / "new")
    assert {"core.bare=false", "lfs.repositoryformatversion=0", "user.name=somebody"} <= set(now)
    assert not [line for line in now if line.startswith("filter")]
    assert not box.events("NameQuarantined")
    box.allow(git_config="writable")
    done = box.run(*ENVIRONMENT, "--", "git", "-C", "new", "config", "filter.lfs.clean", "x")
    assert done.returncode == 0 and "filter.lfs.clean=x" in settings(box.workspace / "new")


def test_a_linked_worktree_whose_repository_is_mounted(box: Box) -> None:
    main = box.home / "main"
    main.mkdir()
    git(main, "init", "-q", "-b", "main", ".")
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    git(main, "worktree", "add", "-q", str(box.workspace / "tree"))
    script = (
        "cd tree; git config user.name x; echo $?; git branch -m tree other; echo $?; git config core.pager x; echo $?"
    )
    done = box.run(f"--mount={main}/.git:rw", *ENVIRONMENT, "--", "sh", "-c", script)
    assert done.stdout.split() == ["0", "0", "4"], done.stderr
    assert "user.name=x" in settings(main) and "core.pager=x" not in settings(main)
    assert not os.path.lexists(main / ".git/config.lock")
