"""Programs go on beside a hidden file as if it were empty, git as if it were ignored, and the read is on the record."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from world.box import Box

IDENTITY = tuple(f"--env=GIT_{who}_{what}=agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))
SECRET = "hunter2"
PROGRAMS = {
    "dotenv": "/usr/bin/python3 -c 'from dotenv import load_dotenv; load_dotenv(\".env\")'",
    "source": "set -a; . ./.env; set +a",
    "make": "make",
    "tar": "tar cf /tmp/x.tar .",
    "cp": "cp -a . /tmp/copy",
    "cp from": "cp .env /tmp/other",
    "grep": "grep -r KEY . || test $? = 1",
    "find": "find . -type f -exec cat {} + >/dev/null",
    "ls": "ls keys && cd keys && test -z \"$(ls -A)\"",
}  # fmt: skip
CHANGES = {
    "write": "echo x >.env",
    "append": "echo x >>.env",
    "remove": "rm -f .env",
    "replace": "mv plain .env",
    "open up": "chmod 600 .env",
    "create below": "touch keys/new",
    "link": "ln .env other",
}


def git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=where, check=True, capture_output=True, text=True, env=_environment())
    return done.stdout


def _environment() -> dict[str, str]:
    who = {f"GIT_{who}_{what}": "person" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null"}


@pytest.fixture
def project(box: Box) -> Box:
    box.allow("example.com", ignore=[".env", "keys/"])
    (box.workspace / ".env").write_text(f"KEY={SECRET}\n")
    (box.workspace / "keys").mkdir()
    (box.workspace / "keys" / "one").write_text(SECRET)
    (box.workspace / "plain").write_text("x\n")
    (box.workspace / "Makefile").write_text("include .env\nall:\n\t@true\n")
    git(box.workspace, "init", "-q")
    git(box.workspace, "add", "plain", "Makefile")
    git(box.workspace, "commit", "-qm", "first")
    return box


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_go_on(project: Box, name: str) -> None:
    done = project.run("-q", "--", "sh", "-euc", PROGRAMS[name])
    assert done.returncode == 0, done.stderr


def test_nothing_of_it_is_seen_or_changed(project: Box) -> None:
    before = (project.workspace / ".env").stat()
    script = "; ".join(f"({command}) 2>/dev/null && echo {name}" for name, command in CHANGES.items())
    done = project.run("-q", "--", "sh", "-c", f"{script}; cat .env keys/*; grep -r {SECRET} . /run /tmp")
    assert done.stdout == "", done.stdout
    after = (project.workspace / ".env").stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (before.st_mtime_ns, before.st_mode, before.st_ino)
    assert (project.workspace / ".env").read_text() == f"KEY={SECRET}\n"
    project.allow("example.com")
    for name in ("write", "open up", "link"):  # the control
        assert project.run("-q", "--ignore", "!.env", "--", "sh", "-c", CHANGES[name]).returncode == 0


@pytest.mark.parametrize("add", ["add -A", "add .", "stash -u", "commit -qam x"])
def test_git_goes_on_without_it(project: Box, add: str) -> None:
    script = f"git status --short; echo y > new; echo z >> plain; git {add}; git status --short >&2; git show --stat"
    done = project.run("-q", *IDENTITY, "--", "sh", "-euc", script)
    assert done.returncode == 0, done.stderr
    assert ".env" not in done.stdout + done.stderr and "keys" not in done.stdout + done.stderr
    assert not git(project.workspace, "ls-files", ".env", "keys")
    assert (project.workspace / ".env").read_text() == f"KEY={SECRET}\n"


def test_a_tracked_one_is_never_committed_emptied(project: Box) -> None:
    git(project.workspace, "add", "-f", ".env", "keys/one")
    git(project.workspace, "commit", "-qm", "tracked")
    for command in ("git add -A", "git commit -qam x", "git add .", "git stash"):
        assert project.run("-q", *IDENTITY, "--", "sh", "-c", command).returncode != 0, command
        assert "denied" in project.run("-q", "--", "cat", ".env").stderr
    assert git(project.workspace, "show", "HEAD:.env") == f"KEY={SECRET}\n"
    assert git(project.workspace, "show", "HEAD:keys/one") == SECRET
    assert not git(project.workspace, "diff", "--cached")


def test_a_new_repository_does_not_get_it(box: Box) -> None:
    box.allow("example.com", ignore=[".env"])
    (box.workspace / ".env").write_text(SECRET)
    script = "touch a; git init -q; git add -A; git commit -qm x; git ls-files"
    done = box.run("-q", *IDENTITY, "--", "sh", "-euc", script)
    assert done.returncode == 0 and done.stdout == "a\n", done


def test_the_first_read_is_told_without_a_full_trace(project: Box) -> None:
    (project.workspace / "sub").mkdir()
    (project.workspace / "sub" / ".env").write_text(SECRET)
    done = project.run(f"--events={project.events_path}", "--", "sh", "-c", "cat sub/.env sub/.env; test -e .env")
    told = [each for each in project.events("AccessDenied") if each["reason"] == "hidden"]
    assert [each["access"]["path"] for each in told] == ["sub/.env"] and told[0]["access"]["operation"] == "read"
    assert "sub/.env" in done.stderr and "hidden" in done.stderr
    assert "sub/.env" in project.run("trace", "show", "--denied").stdout


def test_the_system_s_own_configuration_and_the_environment_stay(project: Box) -> None:
    """What names another configuration of the system is the caller's word: then nothing is shown empty."""
    done = project.run("-q", "--env=GIT_CONFIG_NOSYSTEM=1", "--", "cat", ".env")
    assert "denied" in done.stderr


@pytest.mark.parametrize("key", ["path", "pattern"])
def test_names_of_variables_are_shown_where_the_policy_says_so(project: Box, key: str) -> None:
    (project.workspace / ".env").write_text(f"# {SECRET}\nKEY={SECRET}\nexport OTHER='{SECRET}\nx={SECRET}'\n")
    assert project.run("-q", "--", "cat", ".env").stdout == ""
    project.allow("example.com", ignore=[".env", "keys/", {key: ".env", "show": "names"}])
    script = "cat .env; git add -A; git ls-files; echo x >>.env || rm -f .env || chmod 600 .env"
    done = project.run("-q", "--", "sh", "-c", script)
    assert done.returncode != 0 and done.stdout == "KEY=\nexport OTHER=\nMakefile\nplain\n"
    assert SECRET in (project.workspace / ".env").read_text()


def test_names_are_not_shown_of_links_of_what_is_unclear_or_tracked(project: Box, tmp_path: Path) -> None:
    project.allow("example.com", ignore=[{"path": "*.env", "show": "names"}])
    (tmp_path / "outside").write_text("STOLEN=1\n")
    (project.workspace / "link.env").symlink_to(tmp_path / "outside")
    (project.workspace / "odd.env").write_text(f"A=1\n{SECRET}\n")
    (project.workspace / "tracked.env").write_text("TRACKED=1\n")
    git(project.workspace, "add", "tracked.env")
    done = project.run("--", "sh", "-c", "cat .env; cat link.env odd.env tracked.env")
    assert done.stdout == "KEY=\n"
    assert "odd.env: its names are not shown: line 2 is no assignment" in done.stderr and SECRET not in done.stderr
