"""F: a repository's ``config``, which is changed inside by our own copy: attacks on the moment of the change."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from escape_box import Box

EDITS = 250
LINES = 60

# Opens whatever may be the new, the present or the old file for writing, as fast as it can.
RACER = r"""
import mmap
def race(counts):
    hooks = os.open(".git/hooks", os.O_RDONLY | os.O_DIRECTORY)
    git = os.open(".git", os.O_RDONLY | os.O_DIRECTORY)
    while True:
        counts[0] = (counts[0] + 1) % 250
        places = [(None, ".git/config"), (git, "config"), (git, "hooks/../config")]
        if counts[0] % 5 == 0:
            places += [(hooks, name) for name in os.listdir(hooks) if name.startswith("config")]
        for directory, name in places:
            for flags in (os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                try:
                    fd = os.open(name, flags, dir_fd=directory)
                except OSError as error:
                    if error.errno not in (errno.EROFS, errno.ENOENT): counts[2] = 1
                    continue
                counts[1] = 1
                os.close(fd)
                if name != ".git/config": counts[3] = 1
counts = [mmap.mmap(-1, 8) for _ in range(2)]
racers = []
for each in counts:
    pid = os.fork()
    if pid == 0:
        race(each)
    racers.append(pid)
"""


def repository(box: Box) -> Path:
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", "init", "-q", "."], cwd=box.workspace, env=environment, check=True, timeout=60)
    return box.workspace / ".git/config"


class Reader(threading.Thread):
    """Somebody outside who reads the configuration all the time, and finds each state whole."""

    def __init__(self, config: Path) -> None:
        super().__init__(daemon=True)
        self.config, self.read, self.torn, self.over = config, 0, "", False

    def run(self) -> None:
        while not self.over:
            lines = self.config.read_text().splitlines()
            values = {line for line in lines if line.startswith("\tdescription")}
            if self.read and (len(values) > 1 or "[core]" not in lines or len(lines) < 4):
                self.torn = "\n".join(lines)
            self.read += 1


def test_F39_no_moment_of_a_change_can_be_used(box: Box) -> None:
    """Changes under two processes that try to open the file; a reader outside sees whole files.

    ``tests/kernel/test_exchange.py`` races a thousand, with nothing that slows the racers.
    """
    config = repository(box)
    reader = Reader(config)
    reader.start()
    script = (
        RACER
        + f"""
old = open(".git/config").read()
done = 0
for number in range({EDITS}):
    with open(".git/config.lock", "x") as file:
        file.write(old)
        file.write('[branch "b"]\\n')
        file.write("\\tdescription = %d\\n" % number * {LINES})
    os.rename(".git/config.lock", ".git/config")
    done += 1
for pid in racers:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
say("done", done)
say("opened", sum(each[1] + each[3] for each in counts))
say("other errors", sum(each[2] for each in counts))
say("alive", all(each[0] for each in counts))
"""
    )
    try:
        found = box.attack(script)
    finally:
        reader.over = True
        reader.join()
    assert found == {"done": EDITS, "opened": 0, "other errors": 0, "alive": True}
    assert not reader.torn and reader.read > 100
    assert config.read_text().endswith(f"\tdescription = {EDITS - 1}\n" * LINES)
    assert [name for name in os.listdir(config.parent / "hooks") if not name.endswith(".sample")] == []


def test_F39_control_a_plain_rename_opens_it(box: Box) -> None:
    """Replaced by a rename over it, as everybody does, the file has such moments: the racers find them."""
    config = repository(box)
    over = threading.Event()

    def replace() -> None:
        text, other = config.read_bytes(), box.home / "other"
        until = time.monotonic() + 40
        while not (box.workspace / "ready").exists() and not over.is_set():
            over.wait(0.005)
        while not over.is_set() and time.monotonic() < until:
            other.write_bytes(text)
            os.rename(other, config)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        found = box.attack(RACER + 'write("ready")(); say("opened", wait_for(lambda: any(each[1] for each in counts)))')
    finally:
        over.set()
        thread.join()
    assert found == {"opened": "ok"}


def test_F40_what_is_judged_is_what_is_put_in_place(box: Box) -> None:
    """A lock file that another thread rewrites all the time."""
    config = repository(box)
    script = r"""
old = open(".git/config").read()
good = (old + "[user]\n\tname = " + "a" * 40 + "\n").encode()
evil = (old + "[core]\n\tfsmonitor = ./evil-program-of-it\n").encode()
evil += b"#" * (len(good) - len(evil) - 1) + b"\n"
import threading
fds, over = [], threading.Event()
def rewrite():
    while not over.is_set():
        for fd in fds[-1:]:
            for number in range(50):
                os.pwrite(fd, evil, 0)
                os.pwrite(fd, good, 0)
writer = threading.Thread(target=rewrite)
writer.start()
results = set()
for number in range(300):
    fds.append(os.open(".git/config.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.pwrite(fds[-1], good, 0)
    try:
        os.rename(".git/config.lock", ".git/config")
        results.add("ok")
    except OSError as error:
        results.add(errno.errorcode[error.errno])
        os.unlink(".git/config.lock")
    if "fsmonitor" in open(".git/config").read(): results.add("evil")
over.set()
writer.join()
say("results", sorted(results))
"""
    found = box.attack(script)
    assert set(found["results"]) <= {"ok", "EACCES"} and "ok" in found["results"]
    assert "fsmonitor" not in config.read_text()


def test_F41_other_ways_to_the_name(box: Box) -> None:
    config = repository(box)
    before = config.read_bytes()
    outside = box.home / "outside"
    outside.write_bytes(before + b"[user]\n\tname = x\n")
    script = r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
good = open(".git/config").read() + "[user]\n\tname = x\n"
def rename(flags=0, source=".git/config.lock", to=".git/config"):
    if libc.renameat2(-100, source.encode(), -100, to.encode(), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
def lock(make):
    if os.path.lexists(".git/config.lock"):
        (os.rmdir if os.path.isdir(".git/config.lock") else os.unlink)(".git/config.lock")
    try: make()
    except PermissionError: pass  # not even made
LOCK = ".git/config.lock"
def fresh(text):
    def action():
        fd = os.open(LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, text.encode())
        os.close(fd)
    return action
write("good", good)()
lock(lambda: os.symlink("../good", LOCK)); attempt("symbolic link", rename)
lock(lambda: os.mkfifo(LOCK)); attempt("fifo", rename)
lock(lambda: os.mkdir(LOCK)); attempt("directory", rename)
lock(fresh(good + "#" * (64 << 10))); attempt("large", rename)
lock(fresh(good)); attempt("exchange", lambda: rename(2)); attempt("noreplace", lambda: rename(1))
write(".git/COMMIT_EDITMSG", good)()
attempt("another name", lambda: rename(0, ".git/COMMIT_EDITMSG"))
attempt("another spelling", lambda: os.rename(".git/config.lock", ".git/CONFIG/../config"))
attempt("hard link", lambda: os.link(LOCK, ".git/config"))
attempt("unlink", lambda: os.unlink(".git/config"))
attempt("hook", write(".git/hooks/config", "x"))
attempt("mode", lambda: os.chmod(".git/config", 0o666))
attempt("x", lambda: os.chmod(".git/config", 0o744)); say("x is set", os.stat(".git/config").st_mode & 0o777)
attempt("not x", lambda: os.chmod(".git/config", 0o644))
"""
    found = box.attack(script)
    assert {found.pop(name) for name in ("symbolic link", "fifo", "directory")} <= {"EBUSY", "ENOTDIR", "ENOENT"}
    assert found == {
        "large": "EACCES",
        "exchange": "EACCES",
        "noreplace": "EACCES",
        "another name": "EBUSY",
        "another spelling": "EACCES",
        "hard link": "EACCES",
        "unlink": "EBUSY",
        "hook": "EROFS",
        "mode": "EROFS",
        "x": "ok",
        "x is set": 0o744,
        "not x": "ok",
    }
    assert config.read_bytes() == before and config.stat().st_mode & 0o777 == 0o644


def test_F42_many_changes_hold_nothing_up(box: Box) -> None:
    """Changes of all processes together may use a part of the supervisor's time only: its time limit holds."""
    config = repository(box)
    script = (
        RACER
        + r"""
old = open(".git/config").read()
for number in range(8):
    if os.fork() == 0: break
while True:
    try:
        with open(".git/config.lock", "x") as file: file.write(old + "[user]\n\tname = %s\n" % ("x" * 30000))
        os.rename(".git/config.lock", ".git/config")
    except OSError: pass
"""
    )
    from escape_box import PYTHON, TOOLS

    done = box.run(PYTHON, "-S", "-c", TOOLS + script, options=("--limit=time=3s",))
    assert done.returncode == 124, (done.returncode, done.stderr)
    subprocess.run(
        ["git", "config", "-l", "--local"], cwd=box.workspace, check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    assert [name for name in os.listdir(config.parent / "hooks") if not name.endswith(".sample")] == []


def test_F47_two_sandboxes_in_one_tree(box: Box) -> None:
    """The other one has no cover over the new file: nothing is changed while it is there."""
    from escape_box import inside

    config = repository(box)
    before = config.read_bytes()
    change = "git config user.name x; echo $?"
    with inside(box, "def answer(line): return line") as ask:
        assert ask("ready") == "ready"
        done = box.run("sh", "-c", change)
        assert done.stdout == "4\n" and "another session shows this repository" in done.stderr
        assert config.read_bytes() == before
    assert box.run("sh", "-c", change).stdout == "0\n"  # the control
    assert config.read_bytes() != before


@pytest.mark.parametrize("where", ["moved away", "replaced"])
def test_F43_a_hooks_directory_that_is_not_the_covered_one(box: Box, where: str) -> None:
    """The new file is made nowhere but where the command cannot write."""
    from escape_box import inside

    config = repository(box)
    before = config.read_bytes()
    script = r"""
def answer(line):
    if line == "look": return line
    with open(".git/config.lock", "x") as file: file.write(open(".git/config").read() + "[user]\n\tname = x\n")
    try:
        os.rename(".git/config.lock", ".git/config")
        return "ok"
    except OSError as error:
        os.unlink(".git/config.lock")
        return errno.errorcode[error.errno]
"""
    with inside(box, script) as ask:
        assert ask("look") == "look"
        hooks = config.parent / "hooks"
        hooks.rename(box.home / "old")
        if where == "replaced":
            hooks.mkdir()
        assert ask("change") == "EACCES"
        assert config.read_bytes() == before
        if where == "replaced":
            assert list(hooks.iterdir()) == []
            hooks.rmdir()
        (box.home / "old").rename(hooks)
        assert ask("change") == "ok"  # the control
    assert config.read_bytes() != before
