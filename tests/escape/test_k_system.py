"""K: a layer over the system trees (``system: writable``), attacked by its root."""

from __future__ import annotations

import json
import os
import select
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from escape_box import MEMBRANE, PYTHON, REPORT, SECONDS, TOOLS, Box

from membrane.host.launcher import OURS

pytestmark = [pytest.mark.as_root, pytest.mark.needs_kernel("overlayfs in a user namespace")]
WRITABLE, PERSISTENT = "--system=writable", "--system=persistent"
OTHERS = 4242  # an id of nobody here


def without(box: Box, rule: str, script: str) -> dict[str, Any]:
    """The control: the same with one of our rules switched off by a line of Python, in the process that enforces it."""
    switch = f"import membrane.host.overlay, membrane.host.trees; {rule}; from membrane.ui.cli import main"
    argv = [*MEMBRANE[:-1], MEMBRANE[-1].replace("from membrane.ui.cli import main", switch), WRITABLE, "--"]
    done = subprocess.run(
        [*argv, PYTHON, "-S", "-c", TOOLS + script + REPORT],
        cwd=box.workspace,
        env=box.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory of the host's /etc with a file that only root may read, and a closed directory."""
    place = Path(tempfile.mkdtemp(dir="/etc", prefix="membrane-test-"))
    place.chmod(0o755)
    try:
        (place / "key").write_text("host-secret")
        (place / "key").chmod(0o600)
        (place / "open").write_text("open")
        (place / "open").chmod(0o644)
        (place / "shut").mkdir(mode=0o700)
        (place / "shut" / "key").write_text("host-secret")
        (place / "shut" / "key").chmod(0o644)
        yield place
    finally:
        shutil.rmtree(place)


def test_K80_what_only_root_may_read_on_the_host_stays_closed_to_root_inside(box: Box, closed: Path) -> None:
    """Whatever is done with it: what the layer takes it must have read before."""
    script = f"""
os.chdir({str(closed)!r})
attempt("control", lambda: open("open").read())
attempt("write", write("open", "more"))
attempt("read", lambda: open("key").read())
attempt("in a closed directory", lambda: open("shut/key").read())
attempt("chmod", lambda: os.chmod("key", 0o644))
attempt("chown", lambda: os.chown("key", 7, 7))
attempt("append", lambda: os.close(os.open("key", os.O_WRONLY | os.O_APPEND)))
attempt("link", lambda: os.link("key", "other"))
attempt("rename", lambda: os.rename("key", "other"))
attempt("attribute", lambda: os.setxattr("key", "user.x", b"1"))
attempt("exchange", exchange("key", "open"))
attempt("directory's mode", lambda: os.chmod("shut", 0o777))
attempt("then in it", lambda: open("shut/key").read())
attempt("map", lambda: os.execv("key", ["key"]))
def owner():
    pid = os.fork()
    if not pid:
        os.setgid({OTHERS}); os.setuid({OTHERS})
        try: open("key")
        except OSError as error: os._exit(error.errno)
        os._exit(0)
    raise OSError(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "")
attempt("as its owner", owner)
attempt("remove", lambda: os.unlink("key"))
attempt("new", write("key"))
"""
    os.chown(closed / "key", OTHERS, OTHERS)
    answers = box.attack(script, WRITABLE)
    assert answers.pop("control") == "open" and answers.pop("write") == "ok"
    for name in ("directory's mode", "remove", "new"):  # the layer's own
        assert answers.pop(name) == "ok", name
    assert set(answers.values()) == {"EACCES"}, answers
    assert (closed / "key").read_text() == "host-secret" and (closed / "open").read_text() == "open"
    assert stat.S_IMODE((closed / "shut").stat().st_mode) == 0o700
    outside = "attempt('read', lambda: open('key').read())\nattempt('in', lambda: open('shut/key').read())"
    assert box.control(outside, cwd=closed) == {"read": "host-secret", "in": "host-secret"}
    open_layer = "membrane.host.overlay._close = lambda attached, number: None"
    answers = without(box, open_layer, f"os.chdir({str(closed)!r})\n{outside}")
    assert answers == {"read": "host-secret", "in": "host-secret"}


def test_K81_credentials_of_the_host_are_not_below_the_layer(box: Box) -> None:
    hidden = [
        path for path in ("/etc/shadow-", "/etc/sudoers", "/etc/subuid", "/etc/ssl/private") if os.path.exists(path)
    ]
    assert hidden and os.path.exists("/etc/shadow")
    script = f"""
for path in {hidden!r}:
    attempt(path, lambda: os.stat(path))
say("shadow", open("/etc/shadow").read())
attempt("remove", lambda: os.unlink("/etc/shadow"))
attempt("after it", lambda: open("/etc/shadow").read())
attempt("white-out", lambda: os.mknod("/etc/x", 0o020000, 0))
attempt("mark of overlayfs", lambda: os.setxattr("/etc/apt", "user.overlay.redirect", b"/ssl"))
for path in {hidden!r}:
    attempt("make " + path, lambda: os.mkdir(path))
    attempt("list " + path, lambda: os.listdir(path) or None)
"""
    answers = box.attack(script, WRITABLE)
    lines = answers.pop("shadow").splitlines()
    assert any(line == "root:*:::::::" for line in lines) and all(line.split(":")[1] == "*" for line in lines)
    assert answers.pop("white-out") in ("EPERM", "EACCES")
    mark = answers.pop("mark of overlayfs")
    assert mark in ("ok", "EPERM", "EOPNOTSUPP", "ENOENT")  # "ok": escaped, a mark of nothing (Linux 6.7)
    assert answers.pop("remove") == "ok" and answers.pop("after it") == "ENOENT"
    for path in hidden:
        assert (answers[path], answers[f"make {path}"], answers[f"list {path}"]) == ("ENOENT", "ok", "ok"), answers


CAPABLE = """
attempt("read", lambda: open("others").read())
attempt("list", lambda: str(os.listdir("closed")))
attempt("write", lambda: os.close(os.open("others", os.O_WRONLY)))
attempt("chmod", lambda: os.chmod("others", 0o666))
attempt("take", lambda: os.chown("others", 0, 0))
attempt("remove in", lambda: os.unlink("closed/f"))
attempt("time", lambda: os.utime("others", (1, 1)))
"""


def test_K82_the_capabilities_do_not_hold_over_what_others_own_in_the_workspace(box: Box) -> None:
    """They would over every file whose owner the view's user namespace knows."""
    for name in ("others", "closed/f"):
        box.file(name, "x", 0o600)
        os.chown(box.workspace / name, OTHERS, OTHERS)
    (box.workspace / "closed").chmod(0o700)
    os.chown(box.workspace / "closed", OTHERS, OTHERS)
    box.file("own", "x", 0o400)
    script = (
        CAPABLE
        + f"""
attempt("give away", lambda: os.chown("own", {OTHERS}, {OTHERS}))
say("owner", os.stat("own").st_uid)
attempt("set-user-ID", lambda: os.chmod("own", 0o4755))
say("mode", os.stat("own").st_mode & 0o7777)
attempt("own", write("own"))
attempt("control", lambda: os.chown("/tmp", {OTHERS}, {OTHERS}))
say("given", os.stat("/tmp").st_uid)
"""
    )
    answers = box.attack(script, WRITABLE)
    assert {name: answers.pop(name) for name in ("read", "list", "write", "remove in")} == dict.fromkeys(
        ("read", "list", "write", "remove in"), "EACCES"
    )
    # Of a file of unknown owner nothing is changed (fs/attr.c, notify_change).
    assert {answers.pop(name) for name in ("chmod", "take", "time")} <= {"EPERM", "EOVERFLOW"}
    assert answers == {
        "give away": "ok",  # it succeeds without effect, as without a layer (``tracer.owners``)
        "owner": 0,
        "set-user-ID": "ok",
        "mode": 0o755,
        "own": "ok",
        "control": "ok",
        "given": OTHERS,
    }
    found = (box.workspace / "own").stat()
    assert (found.st_uid, found.st_mode & 0o7000) == (0, 0)
    untraced = box.attack(f"attempt('give away', lambda: os.chown('own', {OTHERS}, 0))", WRITABLE, "--no-trace")
    assert untraced == {"give away": "EOVERFLOW"} and (box.workspace / "own").stat().st_uid == 0
    whole = (
        "maps = membrane.host.trees._maps; membrane.host.trees._maps = lambda op, base, _capable: maps(op, base, False)"
    )
    assert set(without(box, whole, CAPABLE).values()) == {"x", "ok", "['f']"}
    assert (box.workspace / "others").stat().st_uid == 0  # it was taken


def test_K83_no_set_user_id_file_and_no_device_is_in_the_layer(box: Box) -> None:
    script = """
open("/usr/made", "w").close()
attempt("chmod", lambda: os.chmod("/usr/made", 0o6755))
attempt("fchmod", lambda: os.fchmod(os.open("/usr/made", os.O_RDWR), 0o4755))
attempt("open", lambda: os.close(os.open("/usr/opened", os.O_CREAT | os.O_WRONLY, 0o4755)))
attempt("mknod", lambda: os.mknod("/usr/node", 0o104755))
attempt("device", lambda: os.mknod("/usr/device", 0o020666, os.makedev(1, 3)))
attempt("capability", lambda: os.setxattr("/usr/made", "security.capability", bytes.fromhex("01000002" + "0" * 32)))
os.mkdir("/usr/directory")
attempt("directory", lambda: os.chmod("/usr/directory", 0o2775))
"""
    answers = box.attack(script, PERSISTENT)
    assert {answers.pop(name) for name in ("chmod", "fchmod", "open", "directory")} == {"ok"}
    assert set(answers.values()) <= {"EPERM", "EACCES"}
    [layer] = (box.state / "system").glob("*/0")
    assert stat.S_IMODE((box.state / "system").stat().st_mode) == 0o700
    files = [path.lstat() for path in (layer / "usr" / "upper").rglob("*")]
    assert len(files) >= 3 and not [each for each in files if stat.S_ISREG(each.st_mode) and each.st_mode & 0o6000]
    assert not [each for each in files if stat.S_ISBLK(each.st_mode) or (stat.S_ISCHR(each.st_mode) and each.st_rdev)]
    assert stat.S_IMODE((layer / "usr" / "upper" / "directory").stat().st_mode) == 0o2775
    refused = box.attack("attempt('chmod', lambda: os.chmod('/usr/made', 0o4755))", PERSISTENT, "--no-trace")
    assert refused == {"chmod": "EPERM"}


def test_K84_root_of_the_layer_is_root_of_nothing_else(box: Box) -> None:
    box.file(".env", "host-secret")
    script = """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
say("bounded", status["CapBnd"] == status["CapEff"] == "00000000000000eb" and status["NoNewPrivs"] == "1")
attempt("mount", lambda: syscall((165, 40), b"none", b"/tmp", b"tmpfs", 0, 0))
attempt("unmask", lambda: syscall((166, 39), b".env", 2))
attempt("remount", lambda: syscall((165, 40), 0, b"/etc/hosts", 0, 0x1020, 0))
attempt("namespace", lambda: syscall((272, 97), 0x10000000))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("pid 1", lambda: os.open("/proc/1/mem", os.O_RDWR))
attempt("its root", lambda: os.open("/proc/1/root", os.O_RDONLY))
attempt("trace it", lambda: syscall((101, 117), 16, 1, 0, 0))
attempt("setting", lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
attempt("masked", lambda: open(".env").read())
attempt("mode of a mask", lambda: os.chmod(".env", 0o644))
attempt("mount point", lambda: os.unlink("/etc/resolv.conf"))
attempt("masks", lambda: os.open("/run/.membrane/x", os.O_CREAT | os.O_WRONLY))
attempt("by handle", lambda: syscall((304, 265), AT_FDCWD, 0, 0))
attempt("other id", lambda: os.setuid(70000))
attempt("kill", lambda: os.kill(1, 9))
"""
    answers = box.attack(script, WRITABLE)
    assert answers.pop("bounded") is True
    assert answers.pop("masked") == "" and answers.pop("other id") == "EINVAL"
    assert set(answers.values()) <= {"EPERM", "EACCES", "EROFS", "EBUSY", "ENOSYS"}, answers
    assert (box.workspace / ".env").read_text() == "host-secret"


POISON = "import posix\nposix.close(posix.open('/usr/local/ran', posix.O_CREAT | posix.O_WRONLY))\n"


def test_K85_what_is_in_a_kept_layer_is_run_by_the_next_command_and_not_by_us(box: Box) -> None:
    """The interpreter's modules, and what the loader of every program loads, lie in it."""
    script = f"""
import glob, sysconfig
for top in [sysconfig.get_path("stdlib"), *glob.glob("/usr/lib/python3*")]:
    for path in glob.glob(top + "/*.py") + glob.glob(top + "/encodings/*.py"):
        open(path, "w").write({POISON!r})
    for path in glob.glob(top + "/**/__pycache__/*.pyc", recursive=True):
        os.unlink(path)
os.makedirs("/etc/membrane", exist_ok=True)
open("/etc/ld.so.preload", "w").write("/usr/local/evil.so\\n")
for name in ("nsswitch.conf", "hosts.evil", "localtime"):
    try: os.unlink("/etc/" + name)
    except OSError: pass
    os.symlink("/proc/1/root", "/etc/" + name)
"""
    box.attack(script, PERSISTENT)
    [layer] = (box.state / "system").glob("*/0")
    ran = layer / "usr" / "upper" / "local" / "ran"
    for command, status in ((("/bin/true",), 0), (("/bin/sh", "-c", "exit 7"), 7), (("nothing-like-it",), 127)):
        done = box.run(*command, options=(PERSISTENT,))
        assert done.returncode == status, done
        assert "preload" in done.stderr or status == 127, done  # the command itself meets it
        assert not ran.exists(), command
    if not Path("/usr/bin/python3").exists():
        return
    box.run("/usr/bin/python3", "-c", "0", options=(PERSISTENT,))
    assert ran.exists()  # the control
    other = box.file("../other/x").parent
    done = box.run("/bin/sh", "-c", "cat /etc/ld.so.preload", options=(PERSISTENT,), workspace=other)
    assert done.returncode == 1 and "evil" not in done.stderr, done  # of another workspace


def test_K85_a_link_in_a_kept_layer_leads_no_mount_elsewhere(box: Box, tmp_path: Path) -> None:
    """It ends the run, which says what removes it."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("of the host")
    options = (PERSISTENT, f"--mount={tree}:/opt/place/tree")
    read = ("cat", "/opt/place/tree/file")
    done = box.run(*read, options=options)  # the control
    assert (done.returncode, done.stdout) == (0, "of the host"), done
    script = "rm -r /opt/place && ln -s /root /opt/place"
    assert box.run("sh", "-c", script, options=(PERSISTENT,)).returncode == 0
    done = box.run(*read, options=options)
    assert done.returncode == 125 and "ELOOP" in done.stderr and "membrane --reset=d" in done.stderr, done
    assert box.run("ls", "/root/tree", options=(PERSISTENT,)).returncode == 2


def test_K86_the_layer_is_reached_by_its_overlay_only(box: Box) -> None:
    box.policy(presets=[], home="shared")
    script = f"""
attempt("state", lambda: os.listdir({str(box.state)!r}))
say("table", [line.split()[3] for line in open("/proc/self/mountinfo") if " - overlay " in line])
say("paths", [word for line in open("/proc/self/mounts") for word in line.split() if {str(box.state)!r} in word])
"""
    answers = box.attack(script, WRITABLE)
    assert answers["state"] == "ENOENT" and set(answers["table"]) == {"/"}
    assert answers["paths"] == []
    assert os.listdir(box.state / "system" / ".once") == []


def test_K87_a_killed_run_leaves_a_layer_for_the_next_one_to_remove(box: Box) -> None:
    process = box.start("/bin/sh", "-c", "touch /usr/left; echo ready; read x", options=(WRITABLE,))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    [layer] = (box.state / "system" / ".once").iterdir()
    assert (layer / "usr" / "upper" / "left").exists()
    last = [os.pidfd_open(int(line.split()[0])) for line in (layer / ".last").read_text().splitlines()]
    process.kill()
    process.communicate(timeout=60)
    for pidfd in last:
        assert select.select([pidfd], [], [], 60)[0]
        os.close(pidfd)
    done = box.run("/bin/sh", "-c", "ls /usr/left", options=(WRITABLE,))
    assert done.returncode == 2 and not layer.exists()
    assert not os.path.exists("/usr/left")


def test_K88_the_limit_of_processes_holds_for_all_users_together(box: Box) -> None:
    script = """
import select, signal
read, write = os.pipe()
wait, go = os.pipe()  # nobody takes a process before all five users are there
def children():
    for _ in range(100):  # more than there may be: one user alone meets the limit, too
        if not os.fork():
            os.write(write, b"x")
            signal.pause()
for uid in range(1, 6):
    pid = os.fork()
    if not pid:
        os.setuid(uid)
        os.close(go)
        os.read(wait, 1)
        try: children()
        except OSError as error: os.write(write, b"full"[:error.errno == 11])
        signal.pause()
os.close(go)
count = b""
while count.count(b"f") < 5 and select.select([read], [], [], 60)[0]:
    count += os.read(read, 4096)
say("processes", count.count(b"x"))
say("refused", count.count(b"f"))
"""
    answers = box.attack(script, WRITABLE, "--limit", "pids=40")
    assert answers["refused"] == 5 and answers["processes"] + 6 <= 40 + OURS, answers
