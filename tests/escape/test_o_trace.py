"""The tracer against a command that knows of it (rows O03, O06, O07, O08, O10, O12, O14, K08, K12, K13, K18).

``control`` of each: the same thing done openly is recorded in the same run.
"""

from __future__ import annotations

import os
from typing import Any

import escape_box
import pytest
from escape_box import PYTHON, Box

NAMES = (".mcp.json", ".vscode/tasks.json", ".git/hooks/pre-commit", "sub/.envrc", ".git/commondir", ".git/remotes/r")


@pytest.fixture(autouse=True)
def _without_ebpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escape_box, "MEMBRANE", escape_box.WITHOUT_EBPF)


def made(box: Box, kind: str = "FileCreated") -> dict[str, dict[str, Any]]:
    return {os.path.basename(event["path"]): event for event in box.record(kind)}


def test_O02_protected_names_do_not_come_into_being(box: Box) -> None:
    """The first line; what holds when it is raced is tested with ``guard_alone`` and below."""
    script = f"""
os.makedirs(".git/hooks", exist_ok=True); os.makedirs("sub", exist_ok=True)
for name in {NAMES!r}:
    attempt(name, lambda: os.makedirs(os.path.dirname(name) or ".", exist_ok=True) or write(name)())
attempt("ordinary", write("sub/envrc"))
"""
    found = box.attack(script)
    assert found == {**dict.fromkeys(NAMES, "EACCES"), "ordinary": "ok"}
    assert set(box.control(script).values()) == {"ok"}
    refused = {event["access"]["path"] for event in box.record("AccessDenied")}
    assert refused == {".mcp.json", ".vscode", ".git/hooks/pre-commit", "sub/.envrc", ".git/commondir", ".git/remotes"}
    assert box.moved() == set()


def test_K08_a_path_that_is_swapped_after_the_look(box: Box) -> None:
    """A second thread writes the name while the call waits: the guard takes away what came of it, and not for long."""
    script = """
import threading, time
name = ctypes.create_string_buffer(b"harmless_", 10)
stop = []
def swap():
    other = (b"harmless_", b".mcp.json")
    while not stop:
        for text in other:
            ctypes.memmove(name, text, 9)
thread = threading.Thread(target=swap); thread.start()
refused = count = 0
until = time.monotonic() + 40
while count < 600 or (not refused and time.monotonic() < until):
    count += 1
    try:
        fd = syscall((257, 56), AT_FDCWD, name, os.O_WRONLY | os.O_CREAT, 0o644)
        os.close(fd)
    except OSError as error:
        refused += error.errno == errno.EACCES
stop.append(1); thread.join()
say("refused", refused)
say("gone", wait_for(lambda: not os.path.exists(".mcp.json")))
"""
    done = box.run(PYTHON, "-S", "-c", escape_box.TOOLS + script + escape_box.REPORT)
    won = done.returncode == 125 and ".mcp.json was made 8 times" in done.stderr
    assert won or (done.returncode == 0 and '"gone": "ok"' in done.stdout), done
    assert not (box.workspace / ".mcp.json").exists() and (box.workspace / "harmless_").exists()
    assert "notify" in {event["source"] for event in box.record("AccessDenied")}
    assert box.refused(".mcp.json")


def test_O06_double_forks_and_own_sessions_are_followed(box: Box) -> None:
    script = """
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2, read_end):
            os.close(fd)
        os.mkdir("orphan")
        os._exit(0)
    os._exit(0)
os.wait()
os.close(write_end)
os.read(read_end, 1)
for name, flags in (("user", 0x10000000), ("pid", 0x30000000)):
    attempt(name, lambda: syscall((272, 97), flags))
os.mkdir("control")
"""
    found = box.attack(script)
    assert found == {"user": "EPERM", "pid": "EPERM"}
    rows = made(box)
    assert rows["orphan"]["process"]["pid"] == rows["control"]["process"]["pid"] + 2
    assert rows["orphan"]["process"]["start"] >= rows["control"]["process"]["start"]


def test_O03_a_false_name_does_not_hide_the_program(box: Box) -> None:
    script = """
_libc.prctl(15, b"sshd", 0, 0, 0)
os.mkdir("by-name")
pid = os.fork()
if pid == 0:
    os.execv("/bin/mkdir", ["[kworker/0:1]", "by-argv"])
os.waitpid(pid, 0)
fd = os.memfd_create("innocent")
os.write(fd, open("/bin/mkdir", "rb").read())
pid = os.fork()
if pid == 0:
    os.execve(fd, ["mkdir", "by-memfd"], {})
os.waitpid(pid, 0)
"""
    box.attack(script)
    rows = made(box)
    assert rows["by-name"]["process"]["exe"] == os.path.realpath(PYTHON)
    assert rows["by-argv"]["process"]["exe"].endswith("/mkdir") and rows["by-argv"]["process"]["name"] == "mkdir"
    assert "memfd:innocent" in rows["by-memfd"]["process"]["exe"]
    started = [event["argv"][0] for event in box.record("ProcessStarted") if "mkdir" in event["path"]]
    assert started == ["[kworker/0:1]"]
    assert [event["argv"] for event in box.record("ProcessStarted") if "memfd" in event["path"]] == [
        ["mkdir", "by-memfd"]
    ]


def test_O10_the_tail_of_a_long_command_is_not_lost(box: Box) -> None:
    import hashlib

    long = "x" * 20_000 + "; evil"
    box.attack(f"os.spawnv(os.P_WAIT, '/bin/true', ['true', {long!r}, 'last'])")
    [argv] = [event["argv"] for event in box.record("ProcessStarted") if event["argv"][0] == "true"]
    assert argv[1]["truncated"] and argv[1]["sha256"] == hashlib.sha256(long.encode()).hexdigest() and argv[2] == "last"


def test_O07_O08_a_flood_loses_nothing_silently(box: Box) -> None:
    script = """
for number in range(1500):
    try:
        os.mkdir(".vscode")
    except OSError:
        pass
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT))
os.mkdir("last")
"""
    box.attack(script)
    opened = sum(event["path"].endswith("/file") for event in box.record("FileOpened"))
    lost = sum(event["count"] for event in box.record("EventsLost"))
    assert opened + lost >= 1500 and (lost or opened == 1500)
    refusals = [event for event in box.record("AccessDenied") if event["access"].get("path") == ".vscode"]
    assert sum(event["count"] for event in refusals) == 1500 and len(refusals) < 500
    assert "last" in made(box) or lost


def test_O14_K12_the_tracer_is_out_of_reach(box: Box) -> None:
    script = """
say("seen", sorted(name for name in os.listdir("/proc") if name.isdigit()))
own = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
say("descriptors", [os.readlink(fd) for fd in own if os.path.lexists(fd)])
attempt("fds of init", lambda: os.listdir("/proc/1/fd") and None)
for number in range(1, 3000):
    if number != os.getpid():
        try:
            os.kill(number, 9)
        except OSError:
            pass
attempt("all", lambda: os.kill(-1, 19))
attempt("own listener", lambda: syscall((317, 277), 1, 8, ctypes.create_string_buffer(16)))
attempt("getfd", lambda: syscall(438, 3, 3, 0))
os.mkdir("after")
"""
    found = box.attack(script)
    assert len(found["seen"]) == 2 and not [fd for fd in found["descriptors"] if "seccomp" in fd]
    assert found["fds of init"] == "EACCES" and found["getfd"] == "EPERM"
    assert found["own listener"] in ("EBUSY", "EFAULT", "EINVAL")
    assert "after" in made(box)  # it is there and reads


def test_K18_a_fork_bomb_under_a_limit_leaves_the_tracer(box: Box) -> None:
    box.policy(limits={"pids": 40})
    script = """
import signal
children = []
refused = 0
for number in range(200):
    try:
        pid = os.fork()
    except OSError:
        refused += 1
        continue
    if pid == 0:
        os.close(os.open(f"f{number}", os.O_WRONLY | os.O_CREAT))
        signal.pause()
    children.append(pid)
def all_there():
    return sum(os.path.exists(f"f{number}") for number in range(200)) == len(children)
say("children", len(children)); say("refused", refused)
say("written", wait_for(all_there, 50))
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
os.mkdir("after")
"""
    found = box.attack(script)
    assert found["written"] == "ok" and found["children"] < 40 and found["refused"] > 0
    by_process = {event["process"]["pid"] for event in box.record("FileOpened") if "/f" in event["path"]}
    assert len(by_process) >= found["children"] and "after" in made(box)


def test_O12_the_first_program_is_on_the_record(box: Box) -> None:
    box.run("/bin/mkdir", "first")
    events = [event["event"] for event in box.record()]
    assert events[:2] == ["SessionStarted", "ProcessStarted"] and "first" in made(box)


def test_O02_a_nested_name_does_not_move_to_the_top(box: Box) -> None:
    """In a new repository below the top it stays, as a clone brings it; from there it must not be carried up."""
    script = """
for name in ("one", "two", "three"):
    os.mkdir(name); os.mkdir(f"{name}/.git")
    os.makedirs(f"{name}/.vscode"); write(f"{name}/.vscode/tasks.json")()
    write(f"{name}/.envrc")()
os.mkdir("plain"); write("file")()
attempt("rename", lambda: os.rename("one/.vscode", ".vscode"))
attempt("control", lambda: os.rename("two/.vscode", "two/plain"))
attempt("link", lambda: os.link("three/.envrc", ".envrc"))
attempt("exchange", exchange("three/.envrc", "file"))
attempt("rename of the exchanged", lambda: os.rename("file", ".envrc"))
os.mkdir("four"); attempt("elsewhere", lambda: os.rename("one/.vscode", "four/.vscode"))
"""
    expected = {"rename": "EACCES", "control": "ok", "link": "EACCES", "exchange": "ok"}
    assert box.attack(script) == {**expected, "rename of the exchanged": "EACCES", "elsewhere": "EACCES"}
    assert (box.workspace / "one/.vscode/tasks.json").exists()
    assert not (box.workspace / ".vscode").exists() and not (box.workspace / ".envrc").exists()


def test_O_every_way_to_make_a_name_is_on_the_record(box: Box) -> None:
    script = """
write("victim")()
os.close(os.open("victim", os.O_RDONLY | os.O_TRUNC))
attempt("truncate", lambda: os.truncate("victim", 0))
attempt("fifo", lambda: os.mkfifo("fifo"))
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
attempt("link of an unnamed file", link_of(unnamed, "linked"))
attempt("rename", lambda: os.rename("linked", "renamed"))
attempt("symlink", lambda: os.symlink("victim", "symlink"))
attempt("openat2", lambda: syscall((437, 437), AT_FDCWD, b"by-openat2", 0, 0))
attempt("by handle", lambda: syscall((304, 265), AT_FDCWD, b"handle", 0))
program = os.memfd_create("program"); os.write(program, open("/usr/bin/true", "rb").read())
if os.fork() == 0:
    os.execve(program, ["from-memory"], {})
say("ended", os.wait()[1])
"""
    found = box.attack(script)
    refused = {"openat2": "ENOSYS", "by handle": "EPERM"}
    names = ("truncate", "fifo", "link of an unnamed file", "rename", "symlink")
    assert found == {**dict.fromkeys(names, "ok"), **refused, "ended": 0}
    opened = [(os.path.basename(event["path"]), event["flags"]) for event in box.record("FileOpened")]
    assert ("victim", ["rdonly", "trunc"]) in opened and ("victim", ["wronly", "trunc"]) in opened
    assert {"fifo", "linked", "symlink"} <= set(made(box))
    assert [os.path.basename(event["to"]) for event in box.record("FileRenamed")] == ["renamed"]
    assert ["from-memory"] in [event["argv"] for event in box.record("ProcessStarted")]
