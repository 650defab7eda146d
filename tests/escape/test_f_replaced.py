"""F: protected files that a program outside replaces while the command runs, and what is open of them by then."""

from __future__ import annotations

import os
import subprocess

import pytest
from escape_box import Box, inside

# One line, one attempt: the name of it, and the path.
SCRIPT = r"""
held = {}
def answer(line):
    what, path = line.split(" ")
    attempt("it", lambda: do(what, path))
    return _results["it"]

def do(what, path):
    aside = path + ".aside"
    if what == "hold":
        held[path] = os.open(path, os.O_RDONLY)
    elif what == "again":
        os.close(os.open(f"/proc/self/fd/{held[path]}", os.O_WRONLY))
    elif what == "cut":
        os.truncate(f"/proc/self/fd/{held[path]}", 0)
    elif what == "second":
        link_of(held[path], path + ".second")()
    elif what == "third":  # AT_EMPTY_PATH
        syscall((265, 37), held[path], b"", AT_FDCWD, (path + ".third").encode(), 0x1000)
    elif what == "write":
        os.close(os.open(path, os.O_WRONLY))
    elif what == "make":
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    elif what == "truncate":
        os.truncate(path, 0)
    elif what == "link":
        os.link(path, aside)
    elif what == "over":
        os.close(os.open("mine", os.O_WRONLY | os.O_CREAT))
        os.rename("mine", path)
    elif what == "away":
        os.rename(path, aside)
    elif what == "exchange":
        os.close(os.open("mine", os.O_WRONLY | os.O_CREAT))
        exchange("mine", path)()
    elif what == "remove":
        os.unlink(path)
    elif what == "mkdir":
        os.makedirs(path)
    elif what == "rmdir":
        os.rmdir(path)
    elif what == "swap":
        os.rename(path, aside)
        os.mkdir(path)
        os.rename(aside, path)
    elif what == "readonly":
        wait_for(lambda: os.statvfs(path).f_flag & os.ST_RDONLY)
    else:
        raise ValueError(what)
"""
LOCKS = (".git/config.lock", ".git/config.worktree.lock", ".git/modules/m/config.lock", ".gitmodules.lock")


def repository(box: Box) -> None:
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", "."], cwd=box.workspace, env=environment, check=True, timeout=60)


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize(("backend", "locks"), [("native", LOCKS), ("landlock", LOCKS[:1])])
def test_F152_a_lock_of_git_outside_is_left_alone(box: Box, backend: str, locks: tuple[str, ...]) -> None:
    """What the command would write to it, or put in its place, git outside makes the configuration by its rename."""
    repository(box)
    box.file(".git/modules/m/HEAD", "ref: refs/heads/main\n")
    attempts = ("write", "make", "truncate", "over", "exchange", "link", "away", "remove")
    with inside(box, SCRIPT, "--backend", backend) as ask:
        assert ask("make first") == "ok"
        for path in (*locks, "ordinary.lock", "plain/config.lock"):
            expected = "EACCES" if path in locks else "ok"
            for attempt in attempts:
                box.file(path, "made by git outside")
                assert ask(f"{attempt} {path}") == expected, (attempt, path)
            if path in locks:
                assert (box.workspace / path).read_text() == "made by git outside"
                os.unlink(box.workspace / path)
                assert ask(f"write {path}") == "ENOENT"
    assert box.refused(".git/config.lock")


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("way", ["rmdir late/.git,rmdir late", "swap late"])
def test_F152_a_repository_that_you_make_where_the_command_had_one_is_yours(box: Box, way: str) -> None:
    """What a directory was says nothing of another one that has its path: there the lock is left alone as well."""
    repository(box)
    lock = "late/.git/config.lock"
    with inside(box, SCRIPT) as ask:
        assert ask("mkdir late/.git") == "ok"
        assert ask(f"make {lock}") == "ok"  # the control: the command's own repository
        assert ask(f"remove {lock}") == "ok"
        if way.startswith("swap"):
            (box.workspace / "late/.git").rmdir()
        for step in way.split(","):
            assert ask(step) == "ok"
        made = subprocess.run(["git", "init", "-q", "late"], cwd=box.workspace, check=True, timeout=60)
        assert made.returncode == 0
        box.file(lock, "made by git outside")
        for attempt in ("write", "make", "truncate", "over", "away"):
            assert ask(f"{attempt} {lock}") == "EACCES", attempt
    assert (box.workspace / lock).read_text() == "made by git outside"


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("backend", ["native", "landlock"])
def test_F152_the_command_has_locks_of_its_own(box: Box, backend: str) -> None:
    """The control: a ``git config`` inside makes one and removes it, another process removes one that is left."""
    repository(box)
    script = """
git config user.name somebody && test "$(git config user.name)" = somebody || exit 1
git config core.fsmonitor /tmp/evil && exit 2
test ! -e .git/config.lock || exit 3
sh -c 'set -C; : > .git/config.lock' || exit 4
rm .git/config.lock || exit 5
git -c core.hooksPath=/dev/null init -q new && git -C new config alias.x status && exit 6
git -C new config user.name somebody || exit 7
cp new/.git/config new/copy && (set -C; : > new/.git/config.lock) && cat new/copy > new/.git/config.lock || exit 8
echo '[user]' >> new/.git/config.lock && mv new/.git/config.lock new/.git/config || exit 9
"""
    done = box.run("sh", "-c", script, options=("--backend", backend))
    assert done.returncode == 0, done


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("name", [".git/config", ".mcp.json"])
def test_F153_what_was_opened_before_it_became_read_only_is_not_opened_again_for_writing(box: Box, name: str) -> None:
    """git, or an editor, renames a new file over a protected one; the mount comes later, and not to the descriptor."""
    repository(box)
    path = box.file(name, (box.workspace / name).read_text() if name == ".git/config" else "{}")
    with inside(box, SCRIPT) as ask:
        for shown, expected in ((name, "EROFS"), ("ordinary", "ok")):
            new = box.file("new", path.read_text())
            assert ask("hold new") == "ok"
            os.rename(new, box.workspace / shown)
            if shown == name:
                assert ask(f"readonly {shown}") == "ok"
            assert ask("again new") == expected
            assert ask("cut new") == expected
            assert ask("second new") == ("ok" if shown == "ordinary" else "EXDEV")
            assert ask("third new") in (("ok", "ENOENT") if shown == "ordinary" else ("EXDEV",)), "Linux 6.10 lets it"
