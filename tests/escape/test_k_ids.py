"""K: set-group-ID files, and calls that name pid 1 of the sandbox."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
from escape_box import Box

from membrane.host.view import PROC_FILES

MODES = """
open("f", "w").close(); os.mkdir("d"); os.symlink("f", "l"); os.symlink("d", "ld")
attempt("chmod", lambda: os.chmod("f", 0o2755))
attempt("without execute", lambda: os.chmod("f", 0o2644))
attempt("fchmod", lambda: os.fchmod(os.open("f", os.O_RDWR), 0o2755))
attempt("link", lambda: os.chmod("l", 0o2755))
attempt("proc", lambda: os.chmod(f"/proc/self/fd/{os.open('f', os.O_RDONLY)}", 0o2755))
attempt("open", lambda: os.close(os.open("g", os.O_CREAT | os.O_WRONLY, 0o2755)))
attempt("tmpfile", lambda: os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o2755)))
attempt("mknod", lambda: os.mknod("h", 0o102755))
"""
DIRECTORIES = """
attempt("directory", lambda: os.chmod("d", 0o2775))
attempt("by descriptor", lambda: os.fchmod(os.open("d", os.O_RDONLY), 0o2755))
attempt("by link", lambda: os.chmod("ld", 0o2775))
attempt("missing", lambda: os.chmod("nothing", 0o2755))
attempt("read-only", lambda: os.chmod("/usr/bin", 0o2755))
say("mode", oct(os.stat("d").st_mode))
"""


def _set_group_id(box: Box) -> list[str]:
    return [one.name for one in box.workspace.iterdir() if one.is_file() and one.stat().st_mode & stat.S_ISGID]


def test_K30_no_set_group_id_file_is_made_and_directories_are(box: Box) -> None:
    answers = box.attack(MODES + DIRECTORIES)
    files = ("chmod", "without execute", "fchmod", "link", "proc", "open", "tmpfile", "mknod")
    assert {name: answers.pop(name) for name in files} == dict.fromkeys(files, "EPERM")
    assert answers == {
        "directory": "ok",
        "by descriptor": "ok",
        "by link": "ok",
        "missing": "ENOENT",
        "read-only": "EROFS",
        "mode": "0o42775",
    }
    assert _set_group_id(box) == []
    assert any(event["reason"] == "set-group-ID file" for event in box.record("AccessDenied"))
    subprocess.run(["rm", "-rf", *box.workspace.iterdir()], check=True)
    assert set(box.control(MODES).values()) == {"ok"}
    assert "g" in _set_group_id(box)


def test_K31_without_the_tracer_directories_are_refused_as_well(box: Box) -> None:
    answers = box.attack(MODES + "attempt('directory', lambda: os.chmod('d', 0o2775))\n", "--no-trace")
    assert set(answers.values()) == {"EPERM"}


def test_K32_a_directory_that_is_swapped_for_a_file_gets_no_bit(box: Box) -> None:
    """Names and descriptors change between the judgement and the call: the call is not made by the kernel at all."""
    script = """
import threading, time
os.mkdir("d"); open("f", "w").close()
directory, file = os.open("d", os.O_RDONLY), os.open("f", os.O_RDWR)
place = os.dup(directory)
until, over = time.monotonic() + 3, []
def swap():
    while not over:
        os.dup2(file, place); os.dup2(directory, place)
        try: exchange("d", "f")()
        except OSError: pass
threading.Thread(target=swap).start()
tried = made = 0
while time.monotonic() < until or not made or tried <= 100:
    for action in (lambda: os.fchmod(place, 0o2755), lambda: os.chmod("d", 0o2755)):
        tried += 1
        try: action(); made += 1
        except OSError: pass
over.append(1)
say("bit", bool(os.fstat(file).st_mode & 0o2000))
"""
    assert box.attack(script) == {"bit": False}


PID_1 = """
import resource, subprocess
child = subprocess.Popen(["sleep", "20"])
for name, pid in (("one", 1), ("child", child.pid)):
    attempt(f"prlimit {name}", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (9, 9)) and None)
    attempt(f"nice {name}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt(f"policy {name}", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    attempt(f"processors {name}", lambda: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}))
    attempt(f"io {name}", lambda: syscall((251, 30), 1, pid, 3 << 13))
attempt("nice of all", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("io of all", lambda: syscall((251, 30), 3, os.getuid(), 3 << 13))
child.kill()
"""


def test_K33_pid_1_keeps_its_limits_and_priority(box: Box) -> None:
    answers = box.attack(PID_1)
    assert {name for name, value in answers.items() if value == "ok"} == {
        f"{what} child" for what in ("prlimit", "nice", "policy", "processors", "io")
    }
    assert {value for name, value in answers.items() if not name.endswith(" child")} == {"EPERM"}


@pytest.mark.parametrize("options", [(), ("--no-trace",)])
def test_K34_a_command_does_not_choose_the_status_of_a_failed_sandbox(box: Box, options: tuple[str, ...]) -> None:
    script = "import os, resource\ntry: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))\nexcept OSError: pass\n"
    done = box.run("python3", "-c", script + "os._exit(7)", options=options)
    assert (done.returncode, "cannot" in done.stderr) == (7, False)


PROC = """
def look(name):
    path = f"/proc/{name}"
    return os.listdir(path) and None if os.path.isdir(path) else os.close(os.open(path, os.O_RDONLY))
for name in os.listdir("/proc"):
    if not name.isdecimal():
        attempt(name, lambda: look(name))
"""


@pytest.mark.parametrize("view", ["project", "host"])
def test_K35_proc_tells_of_the_sandbox_and_little_of_the_machine(box: Box, view: str) -> None:
    good = {"cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "mounts", "net", "self", "sys", "filesystems"}
    bad = {"keys", "key-users", "interrupts", "kallsyms", "cmdline", "partitions", "irq", "bus", "diskstats"}
    outside = {name for name, value in box.control(PROC).items() if value == "ok"}
    assert good <= outside and {"keys", "cmdline", "interrupts"} <= outside
    inside_ = box.attack(PROC, f"--view={view}")
    assert {name for name, value in inside_.items() if value == "ok"} >= good
    assert {inside_[name] for name in bad & set(inside_)} == {"EACCES"}
    assert {name for name, value in inside_.items() if value == "ok"} <= PROC_FILES


OWNERS = """
def to(uid, gid):
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.chown("f", uid, gid); os.lchown("f", uid, gid); os.fchown(fd, uid, gid)
attempt("unmapped user", lambda: to(2000000000, -1))
attempt("unmapped group", lambda: to(-1, 2000000000))
attempt("within the range", lambda: to(4242, 4242))
attempt("own", lambda: to(os.getuid(), os.getgid()))
attempt("unchanged", lambda: to(-1, -1))
attempt("hidden", lambda: os.chown("secret", 4242, -1))
attempt("program", lambda: os.chown("/usr/bin/env", 4242, -1))
attempt("foreign", lambda: open("foreign").close())
attempt("of somebody else", lambda: os.chown("foreign", 0, 0))
attempt("missing", lambda: os.chown("nothing", 4242, -1))
"""


@pytest.mark.parametrize("options", [(), ("--no-trace",)])
def test_K36_no_file_gets_another_owner(box: Box, options: tuple[str, ...]) -> None:
    """An id that the user namespace does not map is EINVAL for the kernel, which programs take for their own error.

    For a root caller's own file a change to an id of the range succeeds without effect, where a tracer looks.
    """
    root = os.getuid() == 0
    box.policy(ignore=["secret"])
    for name, mode in (("secret", 0o644), ("foreign", 0o600 if root else 0o000)):
        box.file(name, "x", mode)
    if root:
        os.chown(box.workspace / "foreign", 4242, 4242)
    before = [box.workspace / name for name in ("secret", "foreign")]
    owners = [(path.stat().st_uid, path.stat().st_gid) for path in before]
    found = box.attack(OWNERS, *options)
    assert {found.pop("program"), found.pop("hidden")} <= {"EPERM", "EROFS"}  # the filter, or a read-only mount
    kept = root and not options
    assert found.pop("within the range") == ("ok" if kept else "EPERM")
    told = [event for event in box.record("AccessDenied") if event["reason"] == "owner kept"]
    assert bool(told) == kept and sum(event["count"] for event in told) == 3 * kept  # three forms of the call
    mine = (box.workspace / "f").stat()
    assert (mine.st_uid, mine.st_gid) == (os.getuid(), os.getgid())
    assert found == {
        **dict.fromkeys(("unmapped user", "unmapped group"), "EPERM"),
        **dict.fromkeys(("own", "unchanged"), "ok"),
        "foreign": "EACCES",
        "of somebody else": "EPERM" if root else found["of somebody else"],
        "missing": "ENOENT" if root else "EPERM",  # of a plain user's one id, the filter comes first
    }
    assert [(path.stat().st_uid, path.stat().st_gid) for path in before] == owners
    if root:  # for somebody who may
        control = OWNERS.replace('"/usr/bin/env"', '"f"').replace('"nothing"', '"f"')
        assert set(box.control(control).values()) == {"ok"}
    else:
        outside = box.control(OWNERS)
        assert {name: outside[name] for name in ("unmapped user", "unmapped group", "own", "unchanged")} == {
            name: found[name] for name in ("unmapped user", "unmapped group", "own", "unchanged")
        }


def test_K37_with_user_namespaces_the_kernel_answers(box: Box) -> None:
    """The positive control of the rule: without it the same call is EINVAL."""
    box.policy(user_namespaces="allowed")
    found = box.attack(OWNERS)
    assert found["unmapped user"] == found["unmapped group"] == "EINVAL"
    assert found["own"] == "ok"
