"""Attacks found while this suite was written, beyond the rows of the corpus (X01 to X12)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from escape_box import MEMBRANE, PYTHON, SECONDS, TOOLS, Box, inside, until

from membrane.tracer.pins import STATE

AS_USER = os.getuid() != 0


def test_X01_a_mask_can_not_be_opened_up(box: Box) -> None:
    """The mask belongs to the command's uid: only its read-only mount keeps the mode, at the start and later."""
    box.file(".env", "SECRET")
    box.file("plain", "x", 0o000)
    script = """
attempt("control", lambda: os.chmod("plain", 0o600))
for name in (".env", "/etc/shadow"):
    if os.path.exists(name):
        attempt(name, lambda: os.chmod(name, 0o666))
        attempt(name + " attribute", lambda: os.setxattr(name, "user.x", b"1"))
def answer(line):
    return attempt("", read(line)) + " " + attempt("", lambda: os.chmod(line, 0o666))
"""
    found = box.attack(script)
    assert found.pop("control") == "ok"
    assert set(found.values()) <= {"EROFS", "EACCES", "EPERM"}, found
    with inside(box, script) as ask:
        assert ask("later/.env") == "ENOENT ENOENT"
        box.file("later/.env", "SECRET")
        assert until(lambda: ask("later/.env"), "EACCES EROFS") == "EACCES EROFS"
    assert (box.workspace / "later" / ".env").read_text() == "SECRET"


def test_X02_descriptors_of_the_caller_are_closed(box: Box) -> None:
    """A directory that the caller has open, inheritable, would be a way out."""
    directory = os.open("/", os.O_RDONLY)
    try:
        os.set_inheritable(directory, True)
        done = box.run(PYTHON, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))", pass_fds=(directory,))
        control = subprocess.run(
            ["ls", "/proc/self/fd"], pass_fds=(directory,), capture_output=True, text=True, check=True
        )
    finally:
        os.close(directory)
    assert str(directory) in control.stdout.split()
    assert done.stdout == "['0', '1', '2', '3']\n"  # 3 is the listing itself


def test_X03_streams_give_no_more_than_they_are(box: Box, tmp_path: Path) -> None:
    """A file on stdin, opened for reading, cannot be opened again for writing through /proc."""
    given = tmp_path / "given"
    given.write_text("text")
    script = """
attempt("write", lambda: os.open("/proc/self/fd/0", os.O_RDWR))
attempt("truncate", lambda: os.truncate("/proc/self/fd/0", 0))
attempt("link", link_of(0, "stolen"))
attempt("parent", lambda: os.open("/proc/self/fd/0/..", os.O_RDONLY))
say("text", os.read(0, 10).decode())
"""
    with given.open() as file:
        found = box.attack(script, stdin=file)
    assert found.pop("text") == "text"
    assert found == {"write": "EACCES", "truncate": "EACCES", "link": "EXDEV", "parent": "ENOTDIR"}
    assert given.read_text() == "text"


@pytest.mark.guard_alone
@pytest.mark.parametrize("where", ["name", "parent"])
def test_X04_a_directory_without_write_permission_is_taken_away(box: Box, where: str) -> None:
    closes = {"name": "sub/v", "parent": "sub"}[where]
    script = f"""
os.makedirs("sub/v"); open("sub/v/tasks.json", "w").write("evil")
if {where!r} == "name": attempt("mode", lambda: os.chmod({closes!r}, 0o555))
os.rename("sub/v", "sub/.vscode")
if {where!r} == "parent": attempt("mode", lambda: os.chmod({closes!r}, 0o555))
"""
    try:
        assert box.attack(script) == {"mode": "ok"}
        assert not (box.workspace / "sub" / ".vscode").exists()
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(box.workspace)], check=True)


@pytest.mark.guard_alone
@pytest.mark.parametrize("place", ["sub", "."])
def test_X05_a_directory_without_read_permission_hides_nothing(box: Box, place: str) -> None:
    """Neither taken away nor said: the worst case, because nobody is told."""
    script = f"""
os.makedirs("sub/v"); open("sub/v/tasks.json", "w").write("evil")
os.rename("sub/v", "sub/.vscode"); os.chmod({place!r}, 0o000)
"""
    done = box.run(PYTHON, "-S", "-c", "import os\n" + script)
    subprocess.run(["chmod", "-R", "u+rwx", str(box.workspace)], check=True)
    assert not (box.workspace / "sub" / ".vscode").exists() or ".vscode" in done.stderr


@pytest.mark.parametrize("stage", ["node_modules", "vendor"])
def test_X06_a_directory_that_replaces_a_known_one(box: Box, stage: str) -> None:
    """Built where editor configuration is a package's business, then put in the place of a directory of the start."""
    box.file("src/sub/file", "x")
    script = f"""
os.makedirs({stage!r} + "/x/sub/.vscode"); open({stage!r} + "/x/sub/.vscode/tasks.json", "w").write("evil")
say("made", os.path.exists({stage!r} + "/x/sub/.vscode"))
os.rename("src", "old"); os.rename({stage!r} + "/x", "src")
say("gone", wait_for(lambda: not os.path.exists("src/sub/.vscode")))
"""
    assert box.attack(script) == {"made": True, "gone": "ok"}
    assert "src/sub/.vscode" in box.moved()


@pytest.mark.guard_alone
def test_X07_a_storm_of_names_ends(box: Box) -> None:
    """Protected names in a row end the run: all are gone, in bounded time, and the summary stays short."""
    script = "for i in range(20000):\n    os.mkdir(f'd{i}'); open(f'd{i}/.mcp.json', 'w').write('x')\n"
    done = box.run(PYTHON, "-S", "-c", "import os\n" + script)
    assert done.returncode == 125, done
    assert "it made more than 500 protected names" in done.stderr
    assert not list(box.workspace.glob("d*/.mcp.json"))
    assert len(done.stderr.splitlines()) < 20


@pytest.mark.guard_alone
def test_X08_what_was_taken_away_can_not_be_brought_back(box: Box) -> None:
    """Who holds the directory open gives it its name back: it loses it again, each time, and is gone at the end."""
    script = """
os.mkdir("v"); top = os.open(".", os.O_RDONLY); os.chdir("v"); fd = os.open(".", os.O_RDONLY)
open("tasks.json", "w").write("evil")
attempt("name", lambda: os.rename("../v", "../.vscode"))
for turn in range(3):
    say(f"gone {turn}", wait_for(lambda: ".vscode" not in os.listdir(top)))
    now = os.path.basename(os.readlink("/proc/self/fd/%d" % fd))
    say("aside", now.startswith(".vscode.membrane-refused-"))
    attempt(f"back {turn}", lambda: os.rename("../" + now, "../.vscode"))
attempt("far up", lambda: os.stat("../../../../config.yaml") and None)
"""
    found = box.attack(script)
    turns = {f"{what} {turn}": "ok" for what in ("gone", "back") for turn in range(3)}
    assert found == {"name": "ok", "aside": True, **turns, "far up": "ENOENT"}
    assert not list(box.workspace.glob(".vscode*"))
    assert ".vscode" in box.moved() and not (box.workspace / ".vscode").exists()


def test_X09_state_and_homes_of_other_workspaces(box: Box, tmp_path: Path) -> None:
    """Each workspace has its own home; neither it nor the state directory can be seen from another, in any view."""
    assert box.attack('attempt("token", write(os.environ["HOME"] + "/token", "SECRET"))') == {"token": "ok"}
    [store] = (box.state / "homes").iterdir()
    assert (store / "token").read_text() == "SECRET"
    assert box.attack('attempt("own", read(os.environ["HOME"] + "/token"))') == {"own": "ok"}  # the control
    other = tmp_path / "other"
    other.mkdir()
    script = f"""
attempt("home", read(os.environ["HOME"] + "/token"))
attempt("store", read({str(store)!r} + "/token"))
attempt("state", lambda: os.listdir({str(box.state)!r}) and None)
"""
    assert set(box.attack(script, workspace=other).values()) == {"ENOENT"}
    found = box.attack(script, "--view", "host", workspace=other)
    assert set(found.values()) <= {"ENOENT", "EACCES"}, found


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _all_below(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        try:
            found += _children(each)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def _identity(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # start time


def _mounts() -> list[str]:
    """Those of this process, but for the one that root's runs keep their tracing programs in."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {STATE}/" not in line]


@pytest.mark.parametrize("role", ["supervisor", "tracer", "launcher", "init", "network"])
def test_X10_after_sigkill_nothing_stays(box: Box, role: str) -> None:
    """Killed at random moments: no process, no mount, no file of ours, and gc removes the record."""
    chance = random.Random(role)
    before = _mounts()
    look_up = "import socket\\ntry: socket.getaddrinfo('example.org', 80)\\nexcept OSError: pass"
    script = f'while :; do {PYTHON} -S -c "$(printf "{look_up}")"; echo x > file; done'
    for turn in range(5):
        process = subprocess.Popen(
            box.arguments(("sh", "-c", script), ("--quiet",)), cwd=box.workspace, env=box.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        members: dict[int, str] = {}
        victim = 0
        deadline = time.monotonic() + SECONDS
        moment = time.monotonic() + chance.random() * 0.4
        try:
            while not victim or time.monotonic() < moment:
                assert time.monotonic() < deadline and process.poll() is None, (role, turn)
                pids = _all_below(process.pid)
                members.update({pid: _identity(pid) for pid in pids})
                victim = _find(process.pid, role) or victim
            os.kill(victim, signal.SIGKILL)
            status = process.wait(SECONDS)
        finally:
            process.kill()  # whatever failed: it runs for ever
            process.wait()
        assert status == -9 if role == "supervisor" else status in (125, 137), (role, status)
        while left := [pid for pid, start in members.items() if start and _identity(pid) == start]:
            assert time.monotonic() < deadline, (role, left)
    deadline = time.monotonic() + SECONDS
    while more := set(_mounts()) - set(before):  # what another process of the machine mounts for a moment goes again
        assert time.monotonic() < deadline, more
    assert sorted(os.listdir(box.workspace)) in ([], ["file"])
    assert role == "supervisor" or _records(box) == []
    subprocess.run([*MEMBRANE, "gc"], cwd=box.workspace, env=box.environment, check=True, timeout=SECONDS, stdout=-3)
    assert _records(box) == []
    assert box.run("true").returncode == 0


@pytest.mark.parametrize("moment", ["the network is not made yet", "the plan is carried out"])
def test_X10_a_launcher_that_ends_before_pid_1_dies_with_it(box: Box, moment: str) -> None:
    """On a busy machine pid 1 may run for the first time when the launcher is gone."""
    where = "configure" if moment.startswith("the network") else "_serve"
    slow = f"""
import os, membrane.host.launcher as launcher
def clone(flags, real=launcher.sc.clone):
    alive = os.pipe()
    pid = real(flags)
    if pid == 0:
        os.close(alive[1])
        launcher.init = lambda *rest, init=launcher.init: (os.read(alive[0], 1), init(*rest))
    return pid
launcher.sc.clone, launcher.{where} = clone, lambda *_, **__: os.kill(os.getpid(), 9)
"""
    arguments = box.arguments(("sleep", "1000"), ("--quiet",))
    at = next(number for number, word in enumerate(arguments) if "membrane.ui.cli" in word)
    arguments[at] = arguments[at].replace("from membrane.ui", f"exec({slow!r}); from membrane.ui")
    refused = subprocess.run(
        arguments, cwd=box.workspace, env=box.environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert refused.returncode == 125 and "the launcher ended before the command was ready" in refused.stderr
    assert _records(box) == []


def _records(box: Box) -> list[str]:
    return [path.name for path in (box.state / "run").glob("*")]


def _find(supervisor: int, role: str) -> int:
    if role == "supervisor":
        return supervisor
    try:
        children = _children(supervisor)
        order = ("launcher", "tracer", "network")  # in which they are started
        if role in order:
            return children[order.index(role)] if len(children) > order.index(role) else 0
        return next(iter(_children(children[0])), 0) if children else 0
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_X12_a_second_session_in_the_same_workspace(box: Box) -> None:
    """One command swaps directories for links while others start: a start that loses the race is an error or is caught
    up with by the guard, never a mask in another place, and afterwards everything is hidden again."""
    for number in range(20):
        box.file(f"d{number}/.env", "SECRET")
    swap = """
import threading
stop = []
def swapping():
    while not stop:
        for number in range(20):
            try:
                os.rename(f"d{number}", f"e{number}"); os.symlink(f"e{number}", f"d{number}")
                os.unlink(f"d{number}"); os.rename(f"e{number}", f"d{number}")
            except OSError:
                pass
thread = threading.Thread(target=swapping)
thread.start()
def answer(line):
    if line == "stop": stop.append(1); thread.join()
    return "ok"
"""
    look = """
import glob
def readable():
    return [path for path in glob.glob("[de]*/.env") if attempt("", read(path)) == "ok"]
first = wait_for(lambda: not readable())
later = sum(len(readable()) for _ in range(100))
print(first, later)
"""
    with inside(box, swap) as ask:
        assert ask("ready") == "ok"
        runs = [box.run(PYTHON, "-S", "-c", TOOLS + look) for _ in range(5)]
        assert ask("stop") == "ok"
    runs.append(box.run(PYTHON, "-S", "-c", TOOLS + look))
    ended = [(run.returncode, run.stdout, run.stderr) for run in runs]
    assert all(code in (0, 125) and text[:3] in ("ok ", "") for code, text, _ in ended), ended
    assert ended[-1][:2] == (0, "ok 0\n"), ended
