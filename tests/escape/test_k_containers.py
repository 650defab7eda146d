"""The walls of ``containers: nested`` (rows K60 to K69): the command is root in namespaces of its own, and no further.

Each attempt has a control beside it: the same call, on something that is the command's own, succeeds.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import urllib.request
from pathlib import Path

import pytest
from escape_box import MEMBRANE, PYTHON, Box, inside

from free_ports import free_port
from membrane.changes.removal import remove_tree

MOUNTS = r"""
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 1, 32, 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
def _check(result, name):
    if result:
        raise OSError(ctypes.get_errno(), name)
def mount(source, target, kind="none", flags=0, data=None):
    encode = lambda text: None if text is None else text.encode()
    _check(_libc.mount(encode(source), encode(target), encode(kind), flags, encode(data)), "mount")
def umount(target, flags=0):
    _check(_libc.umount2(target.encode(), flags), "umount")
def unshare(flags):
    _check(_libc.unshare(flags), "unshare")
def child(action):
    "What ``action`` comes to in a process of its own: it may change namespaces and roots."
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, (str(action() or "ok")).encode())
        except OSError as error:
            os.write(writer, errno.errorcode.get(error.errno, "?").encode())
        finally:
            os._exit(0)
    os.close(writer)
    value = os.read(reader, 4096).decode()
    os.waitpid(pid, 0)
    return value
def got(name, action):
    _results[name] = child(action)
for name in ("own", "one", "two", "up", "work"):
    os.makedirs("/tmp/" + name, exist_ok=True)
mount("t", "/tmp/own", "tmpfs")
open("/tmp/own/file", "w").write("mine")
mount("/tmp/own", "/tmp/own", flags=MS_BIND | MS_REC)
HERE = os.getcwd()
"""


@pytest.fixture
def containers(box: Box) -> Box:
    box.file(".env", "TOKEN=hidden")
    box.file("lib/kept.txt", "kept")
    box.file("open.txt", "open")
    box.policy(containers="nested", ignore=[".env"], readonly=["lib/kept.txt"])
    return box


def test_K60_a_mask_and_a_read_only_name_are_locked(containers: Box) -> None:
    found = containers.attack(
        MOUNTS
        + r"""
def text(path): return open(path).read()
got("own umount", lambda: umount("/tmp/own"))
got("mask umount", lambda: umount(".env"))
got("mask detach", lambda: umount(".env", MNT_DETACH))
got("kept umount", lambda: umount("lib/kept.txt"))
got("own move", lambda: mount("/tmp/own", "/tmp/one", flags=MS_MOVE))
mount("/tmp/one", "/tmp/own", flags=MS_MOVE)
got("mask move", lambda: mount(".env", "/tmp/own/file", flags=MS_MOVE))
got("kept remount", lambda: mount(None, "lib/kept.txt", flags=MS_REMOUNT | MS_BIND))
got("own remount", lambda: mount(None, "/tmp/own", flags=MS_REMOUNT | MS_BIND | MS_RDONLY))
got("root remount", lambda: mount(None, "/usr", flags=MS_REMOUNT | MS_BIND))
mount(None, "/tmp/own", flags=MS_REMOUNT | MS_BIND)
got("own write", lambda: open("/tmp/own/file", "w").close())
got("own bind", lambda: mount("/tmp/own", "/tmp/one", flags=MS_BIND))
got("workspace bind", lambda: mount(HERE, "/tmp/one", flags=MS_BIND))
def whole():
    mount(HERE, "/tmp/one", flags=MS_BIND | MS_REC)
    return text("/tmp/one/open.txt") + repr(text("/tmp/one/.env"))
got("workspace bind whole", whole)
def kept():
    mount(HERE, "/tmp/one", flags=MS_BIND | MS_REC)
    open("/tmp/one/lib/kept.txt", "w")
got("kept by a bind", kept)
def stacked(lower):
    mount("t", "/tmp/two", "tmpfs")
    for name in ("up", "work", "at"): os.mkdir("/tmp/two/" + name)
    mount("o", "/tmp/two/at", "overlay", data=f"lowerdir={lower},upperdir=/tmp/two/up,workdir=/tmp/two/work")
    return "".join(sorted(os.listdir("/tmp/two/at")))
got("own overlay", lambda: stacked("/tmp/own"))
got("workspace overlay", lambda: stacked(HERE))
got("mask write", lambda: open(".env", "w").close())
got("mask read", lambda: repr(text(".env")))
got("mask remove", lambda: os.unlink(".env"))
got("mask rename", lambda: os.rename(".env", "env"))
got("kept write", lambda: open("lib/kept.txt", "w").close())
def unlocked(name):
    def action():
        unshare(0x10000000 | 0x20000)
        umount(name)
    return action
got("umount in a further namespace", unlocked(".env"))
got("umount of its own in a further namespace", unlocked("/tmp/own"))
def pivot():
    unshare(0x20000)
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    os.mkdir("/tmp/own/old")
    os.chdir("/tmp/own")
    syscall((155, 41), b".", b"old")
    got = os.listdir("/old" + HERE)
    try:
        umount("/old" + HERE + "/.env")
    except OSError as error:
        return "pivoted " + errno.errorcode[error.errno]
    return "umount"
got("pivot_root", pivot)
"""
    )
    own = ("own umount", "own move", "own remount", "own bind", "own write")
    assert {name: found[name] for name in own} == dict.fromkeys(own, "ok")
    assert found["own overlay"] == "file"
    assert found["mask umount"] == found["mask detach"] == found["kept umount"] == "EINVAL"
    assert found["mask move"] == "EINVAL"
    assert found["kept remount"] == found["root remount"] == "EPERM"
    assert found["workspace bind"] == found["workspace overlay"] == "EINVAL"
    assert found["workspace bind whole"] == "open''"
    assert found["kept by a bind"] == found["kept write"] == found["mask write"] == "EROFS"
    assert found["mask read"] == "''"
    assert found["mask remove"] == found["mask rename"] == "EBUSY"
    assert found["umount in a further namespace"] == "EINVAL"
    assert found["umount of its own in a further namespace"] == "EINVAL"  # locked again, by the same rule
    assert found["pivot_root"] == "pivoted EINVAL"
    assert (containers.workspace / ".env").read_text() == "TOKEN=hidden"
    assert (containers.workspace / "lib/kept.txt").read_text() == "kept"


def test_K61_the_machine_stays_out_of_reach(containers: Box) -> None:
    found = containers.attack(
        MOUNTS
        + r"""
import stat
got("own node", lambda: os.mknod("/tmp/own/fifo", stat.S_IFIFO | 0o600))
got("device node", lambda: os.mknod("/tmp/own/null", stat.S_IFCHR | 0o600, os.makedev(1, 3)))
got("disk node", lambda: os.mknod("/tmp/own/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)))
def put(path, value="evil"):
    def action():
        fd = os.open(path, os.O_WRONLY)
        try: os.write(fd, value.encode())
        finally: os.close(fd)
    return action
got("own setting", put("/proc/sys/net/ipv4/ip_forward", "1"))
got("core_pattern", put("/proc/sys/kernel/core_pattern", "|/tmp/evil"))
got("modprobe", put("/proc/sys/kernel/modprobe"))
got("sysrq", put("/proc/sysrq-trigger", "h"))
got("uevent_helper", put("/sys/kernel/uevent_helper"))
def fresh():
    "A proc(5) of its own, as containers mount one."
    pid = os.fork()
    unshare(0x20000000 | 0x20000)
    return "ok"
def new_proc():
    unshare(0x20000000 | 0x20000)
    pid = os.fork()
    if pid == 0:
        try:
            mount("proc", "/tmp/one", "proc")
            put("/tmp/one/sys/kernel/core_pattern", "|/tmp/evil")()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "ok")
got("core_pattern by a proc of its own", new_proc)
def groups():
    mount("c", "/tmp/one", "cgroup2")
    os.mkdir("/tmp/one/evil")
got("cgroup2", groups)
def released(kind):
    mount("c", "/tmp/one", "cgroup", data=kind)
    put("/tmp/one/release_agent", "/tmp/evil")()
for kind in ("memory", "rdma", "pids", "none,name=evil"):
    got("release_agent " + kind, lambda: released(kind))
BPF, PERF, KEYCTL, ADD_KEY = (321, 280), (298, 241), (250, 219), (248, 217)
INIT_MODULE, IO_URING, KEXEC, REBOOT, HANDLE = (175, 105), 425, (246, 104), (169, 142), (304, 265)
for name, number in (("bpf", BPF), ("perf", PERF), ("keyctl", KEYCTL), ("add_key", ADD_KEY), ("module", INIT_MODULE),
                     ("io_uring", IO_URING), ("kexec", KEXEC), ("reboot", REBOOT), ("by handle", HANDLE)):
    got(name, lambda: syscall(number, 0, 0, 0, 0, 0))
def setns(name):
    def action():
        fd = os.open("/proc/1/ns/" + name, os.O_RDONLY)
        syscall((308, 268), fd, 0)
    return action
for name in ("user", "mnt", "net", "pid"):
    got("setns " + name, setns(name))
got("kill init", lambda: os.kill(1, 9))
got("root of init", lambda: os.listdir("/proc/1/root"))
got("chroot", lambda: os.chroot("/tmp/own"))
got("trace init", lambda: syscall((101, 117), 16, 1, 0, 0))
"""
    )
    assert found["own node"] == found["own setting"] == found["chroot"] == "ok"
    assert found["device node"] == found["disk node"] == "EPERM"
    assert {found[name] for name in ("core_pattern", "core_pattern by a proc of its own")} <= {"EACCES", "EPERM"}
    assert found["modprobe"] in ("EACCES", "EPERM", "ENOENT")  # a kernel without modules has none
    assert found["sysrq"] in ("EACCES", "ENOENT")
    assert found["uevent_helper"] in ("EROFS", "EACCES", "ENOENT")
    assert found["cgroup2"] in ("EACCES", "EPERM")
    assert {value for name, value in found.items() if name.startswith("release_agent")} <= {
        *("EPERM", "EACCES", "EINVAL", "EBUSY", "ENOENT", "ENODEV"),
    }
    assert {found[name] for name in ("bpf", "perf", "module", "kexec", "reboot", "by handle")} == {"EPERM"}
    assert {found[name] for name in ("keyctl", "add_key", "io_uring")} == {"ENOSYS"}
    assert {found[f"setns {name}"] for name in ("user", "mnt", "net", "pid")} <= {"EACCES", "EPERM"}
    assert found["root of init"] == "EACCES" and found["trace init"] == "EPERM"


SET_IDS = (
    MOUNTS
    + r"""
open("tool", "w").close()
open("group", "w").close()
os.mkdir("directory")
got("own chmod", lambda: os.chmod("tool", 0o711))
got("owner", lambda: os.chown("tool", 5, 5))
got("chmod", lambda: os.chmod("tool", 0o4755))
got("group", lambda: os.chmod("group", 0o2755))
got("directory", lambda: os.chmod("directory", 0o6755))
def create():
    fd = os.open("made", os.O_CREAT | os.O_WRONLY, 0o6755)
    os.write(fd, b"written")
    os.close(fd)
got("create", create)
os.mkfifo("pipe")
os.symlink("elsewhere", "link")
got("pipe", lambda: os.open("pipe", os.O_CREAT | os.O_RDONLY, 0o4755))
got("link", lambda: os.open("link", os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o4755))
got("mask", lambda: os.open(".env", os.O_CREAT | os.O_WRONLY, 0o4755))
got("read-only name", lambda: os.chmod("lib/kept.txt", 0o4755))
got("node", lambda: os.mknod("node", 0o100000 | 0o4755))
def lowered(action):
    def run():
        os.setresuid(7, 7, 7)
        action()
    return run
got("as another", lowered(lambda: os.chmod("made", 0o4755)))
def capability():
    os.setxattr("tool", "security.capability", bytes.fromhex("0000000380000000000000000000000000000000") + bytes(4))
got("capability", capability)
"""
)


@pytest.mark.parametrize("traced", [True, False])
def test_K62_nothing_that_is_set_user_id_is_left_in_the_workspace(containers: Box, traced: bool) -> None:
    """With the tracer it is made without the bit, so that images can be unpacked; without, it is refused."""
    found = containers.attack(SET_IDS, *(() if traced else ("--no-trace",)))
    assert found["own chmod"] == found["owner"] == "ok"
    assert {found[name] for name in ("chmod", "create", "directory")} == {"ok" if traced else "EPERM"}
    assert found["node"] == found["as another"] == "EPERM"
    assert found["pipe"] == "EPERM" and found["link"] == ("ELOOP" if traced else "EPERM")
    assert found["mask"] in ("EROFS", "EPERM", "EACCES") and found["read-only name"] in ("EROFS", "EPERM")
    tool, directory = (containers.workspace / name for name in ("tool", "directory"))
    assert tool.stat().st_mode & 0o7777 == (0o755 if traced else 0o711) and tool.stat().st_uid != os.getuid()
    assert directory.stat().st_mode & 0o6000 in (0, 0o2000)
    if traced:
        assert (containers.workspace / "made").read_text() == "written"
        assert (containers.workspace / "made").stat().st_mode & 0o7777 == 0o755
    for path in containers.workspace.rglob("*"):
        assert not path.lstat().st_mode & (0o4000 if path.is_dir() else 0o6000), path
    # A plain caller's has effect in his own namespaces only: its root is he.  Of a root caller it would be the host's.
    assert (found["capability"] == "ENOTSUP") is (os.getuid() == 0)


def test_K62_in_a_reviewed_workspace_images_may_hold_them_and_the_workspace_has_none(containers: Box) -> None:
    found = containers.attack(
        MOUNTS
        + r"""
open("tool", "w").close()
got("chmod", lambda: os.chmod("tool", 0o4755))
got("storage", lambda: os.close(os.open("/var/lib/docker/tool", os.O_CREAT | os.O_WRONLY, 0o4755)))
import shutil, subprocess
shutil.copy("/usr/bin/id", "/var/lib/docker/id")
os.chown("/var/lib/docker/id", 7, 7)
os.chmod("/var/lib/docker/id", 0o6755)
say("set-user-ID", subprocess.check_output(["/var/lib/docker/id", "-u"], text=True).strip())
got("node", lambda: os.mknod("/var/lib/docker/null", 0o020666, os.makedev(1, 3)))
""",
        *("--review", "--apply=all"),
    )
    # Its mount takes set-user-ID bits and device nodes: no process gets the other id, and no node can be made.
    assert found == {"chmod": "ok", "storage": "ok", "set-user-ID": "0", "node": "EPERM"}
    made = containers.workspace / "tool"
    assert not made.exists() or not made.stat().st_mode & 0o6000
    [storage] = (containers.state / "containers").iterdir()
    assert storage.stat().st_mode & 0o077 == 0  # nobody else comes to what is in it, whatever modes the command sets


def test_K69_names_of_containers_that_are_no_longer_read_are_lacking_from_the_record(containers: Box) -> None:
    """Who floods the storage hides no container in silence."""
    script = "mkdir -p /var/lib/docker/containers; seq -f /var/lib/docker/containers/%064.0f {} | xargs mkdir -p"
    try:
        done = containers.run("sh", "-c", script.format(10))  # the control
        assert done.returncode == 0 and "incomplete" not in done.stderr, done
        assert containers.record("SessionEnded")[-1]["incomplete"] == []
        with containers.start("sh", "-c", f"{script.format(1100)}; cat") as process:
            assert process.stderr is not None
            said = ""
            while "the record is incomplete: names of containers: " not in said:
                said = process.stderr.readline()
                assert said
            process.communicate(timeout=60)  # which ends cat(1)
        [why] = containers.record("SessionEnded")[-1]["incomplete"]
        assert why.startswith("names of containers: ")
    finally:
        remove_tree(str(containers.state / "containers"))


@pytest.mark.as_user
def test_K62_what_another_user_of_the_sandbox_closes_spoils_no_change_set(containers: Box) -> None:
    """A plain caller may not read what a subordinate id has closed: it is never put in place, and the rest can be."""
    for name in ("mine/kept", "mine/shut", "mine/tree/inner"):
        containers.file(name, "of the host")
    script = """
    cd mine; mkdir data open; echo x > data/x; echo x > open/x; rm tree/inner; echo new > fine; echo new > kept
    chown 5:6 data open open/x shut tree; chmod 700 data tree; chmod 600 shut; chmod 755 open; chmod 644 open/x
    """
    try:
        done = containers.run("sh", "-c", script, options=("--review", "--apply=all"))
    finally:
        remove_tree(str(containers.state / "changes"))
    assert done.returncode == 0, done
    for name in ("data", "shut", "tree"):
        assert f"    mine/{name}  (" in done.stderr and "another user of the sandbox owns it" in done.stderr, done
    top = containers.workspace / "mine"
    texts = {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}
    host = dict.fromkeys(("shut", "tree/inner"), "of the host")
    assert texts == {"fine": "new\n", "kept": "new\n", "open/x": "x\n"} | host


@pytest.mark.as_user
def test_K62_what_another_user_of_the_sandbox_closes_is_removed_as_the_documents_say(containers: Box) -> None:
    """In a sandbox a directory that nothing is known of is covered."""
    make = "mkdir plain ruled; touch plain/f ruled/.env; chown -R 5:6 plain ruled; chmod 700 plain ruled"
    as_root_of_them = ["unshare", "--map-root-user", "--map-auto"]
    subprocess.run([*as_root_of_them, "sh", "-c", make], cwd=containers.workspace, check=True)
    try:
        inside = containers.run("rm", "-r", "plain", "ruled")
        assert inside.returncode == 1 and "'ruled': Device or resource busy" in inside.stderr, inside
        assert not (containers.workspace / "plain").exists()
        with pytest.raises(PermissionError):
            os.listdir(containers.workspace / "ruled")
    finally:
        text = (Path(__file__).parents[2] / "docs" / "containers.md").read_text()
        [advised] = re.findall(r"`(unshare [^`]*) DIR` removes them", text)
        subprocess.run([*advised.split(), "ruled"], cwd=containers.workspace, check=True)
    assert not (containers.workspace / "ruled").exists()


def test_K62_no_run_can_make_the_next_one_impossible(containers: Box) -> None:
    """What is kept for the command has tops that it owns: given away and closed, they are taken back at the start."""
    give = "for d in ~ /var/lib/docker /var/lib/containers; do touch $d/kept; chown 7:7 $d; chmod 0 $d; done; echo done"
    look = "for d in ~ /var/lib/docker /var/lib/containers; do stat -c %u%a $d; ls $d; done"
    try:
        for _ in range(2):
            done = containers.run("sh", "-c", give)
            assert (done.returncode, done.stdout) == (0, "done\n"), done
            given = [path for path in containers.state.rglob("*") if path.lstat().st_uid != os.getuid()]
            assert len(given) == 3, given  # the control: they were another's, and closed
        done = containers.run("sh", "-c", look)
        assert done.stdout.split() == ["0700", "kept"] * 3, done
    finally:
        remove_tree(str(containers.state / "containers"))


@pytest.mark.parametrize("close", ["chown 7:7 . && chmod 700 .", "chown 7 . && chmod 0 .", "chmod 0 ."])
def test_K62_a_workspace_that_the_command_closed_is_open_again_at_the_end(containers: Box, close: str) -> None:
    """And it was looked at: a subordinate id's directory hides no protected name."""
    # Where the tracer does not know the name, and in one step: it is put aside as soon as it is seen.
    evil = "mkdir /tmp/w /tmp/d && mount --rbind . /tmp/w && mkdir /tmp/d/hooks && touch /tmp/d/hooks/pre-commit"
    done = containers.run("sh", "-c", f"{evil} && {close} && stat -c %u-%a . && cp -r /tmp/d /tmp/w/.git")
    closed = {"chown 7:7 . && chmod 700 .": "7-700", "chown 7 . && chmod 0 .": "7-0", "chmod 0 .": "0-0"}[close]
    assert (done.returncode, done.stdout.split()) == (0, [closed]), done
    if os.getuid():  # root can look into it whoever owns it
        left = containers.workspace.stat()
        assert (left.st_uid, left.st_gid, left.st_mode & 0o700) == (os.getuid(), os.getgid(), 0o700)
    assert not (containers.workspace / ".git/hooks/pre-commit").exists()
    done = containers.run("cat", "open.txt")
    assert (done.returncode, done.stdout) == (0, "open"), done


@pytest.mark.as_user
def test_K62_who_begins_in_a_workspace_that_a_killed_run_left_closed_reads_how_to_open_it(containers: Box) -> None:
    def later() -> subprocess.Popen[str]:
        """The directory cannot be entered any more: a shell that is there already starts a run when it gets a line."""
        argv = ["sh", "-c", f"read line; exec {shlex.join([*MEMBRANE, '--quiet', '--', 'cat', 'open.txt'])}"]
        return subprocess.Popen(
            argv, cwd=containers.workspace, env=containers.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    with later() as closed, later() as opened:
        with containers.start("sh", "-c", "chown 7:7 . && chmod 0 . && echo closed; cat") as process:
            assert process.stdout and process.stdout.readline() == "closed\n"
            process.kill()
            process.communicate()
        _, said = closed.communicate("\n", timeout=60)
        advice = said.partition("try: ")[2].strip()
        assert closed.returncode == 125 and "EACCES" in said and advice, said
        subprocess.run(["sh", "-c", advice], check=True, timeout=60)
        assert opened.communicate("\n", timeout=60)[0] == "open"


CLOSE = """
mkdir -p data/base mixed deep/a/b; echo one > data/base/file; echo late > mixed/kept.key; echo late > deep/a/b/kept.key
for name in data mixed deep/a; do chown -R 7:7 $name; chmod 700 $name; done
"""
USE = """
echo two >> data/base/file; cat data/base/file; cat mixed/kept.key deep/a/b/kept.key | grep late || echo hidden
"""
OPEN = "mkdir -p data/.git/hooks && echo evil > data/.git/hooks/pre-commit; chmod -R 755 data; ls data"


def test_K62_a_directory_of_another_id_stays_writable_unless_a_rule_finds_something_in_it(containers: Box) -> None:
    """As the data of a database is.  What is opened again is looked at like any other."""
    containers.policy(containers="nested")
    try:
        done = containers.run("sh", "-ec", CLOSE)
        assert done.returncode == 0, done
        assert os.access(containers.workspace / "data", os.R_OK) is (os.getuid() == 0)  # closed to a plain caller
        containers.policy(containers="nested", ignore=["kept.key"])
        done = containers.run("sh", "-c", USE)
        assert done.stdout.split() == ["one", "two", "hidden"], done
        assert "data: this directory cannot be read" not in done.stderr, done
        done = containers.run("sh", "-c", OPEN)
        assert done.stdout.split() == ["base"] and "data" in done.stderr, done
        assert not (containers.workspace / "data/.git/hooks/pre-commit").exists()
    finally:
        remove_tree(str(containers.workspace))


LINKS = r"""
import subprocess
def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    return "ok" if not done.returncode else done.stderr.strip().splitlines()[-1]
say("own link", ip("link", "add", "own0", "type", "veth", "peer", "name", "own1"))
say("peer in ours", ip("link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", "1"))
say("new in ours", ip("link", "add", "d0", "netns", "1", "type", "bridge"))
say("moved to ours", ip("link", "set", "own0", "netns", "1"))
say("the way out moved to ours", ip("link", "set", "eth0", "netns", "1"))
say("mtu", [ip("link", "set", "eth0", "mtu", mtu) for mtu in ("68", "65535", "1500")])
say("address", ip("link", "set", "eth0", "address", "02:00:00:00:00:99"))
say("names of ours", [line.split(":")[1].strip() for line in subprocess.run(
    ["ip", "-o", "link", "show"], capture_output=True, text=True).stdout.splitlines()])
say("delete", ip("link", "delete", "eth0"))
"""


def test_K63_no_link_of_the_command_gets_into_the_captured_namespace(containers: Box) -> None:
    """Pid 1 is in it, so its number names it; without the way out the run goes on and ends as usual."""
    found = containers.attack(LINKS)
    assert found["own link"] == found["address"] == found["delete"] == "ok"  # the controls: its own namespace
    assert found["mtu"][::2] == ["ok", "ok"]
    refused = ("peer in ours", "new in ours", "moved to ours", "the way out moved to ours")
    assert {found[name] for name in refused} == {"RTNETLINK answers: Operation not permitted"}
    assert {name.partition("@")[0] for name in found["names of ours"]} == {"lo", "eth0", "own0", "own1"}


FILL = """
mkdir /var/lib/docker/kept /tmp/x; for i in 1 2 3 4 5 6; do head -c 1M /dev/urandom > /var/lib/docker/kept/$i; done
chown -R 7:7 /var/lib/docker/kept; chmod 0 /var/lib/docker/kept; ln -s / /var/lib/docker/host
if test "$1" = wait; then exec sleep 1000; fi; echo written
"""


def test_K62_what_is_kept_for_the_command_is_bounded_whoever_owns_it(containers: Box) -> None:
    """Counted with what belongs to subordinate ids and is closed; a link to the whole disk counts for nothing."""
    limited = [("sh", "-c", FILL, "sh"), ("sleep", "1000"), ("sh", "-c", FILL, "sh", "wait")]
    try:
        done = containers.run(*limited[0], options=("--limit", "disk=64M"))  # control
        assert (done.returncode, done.stdout) == (0, "written\n"), done
        for number in (1, 2):  # of an earlier run, and of this one
            done = containers.run(*limited[number], options=("--limit", "disk=5M"))
            assert done.returncode == 125 and "limits.disk ended the command: " in done.stderr, done
            remove_tree(str(containers.state / "containers"))
    finally:
        remove_tree(str(containers.state / "containers"))


def test_K63_flushing_and_forging_only_cuts_itself_off(containers: Box) -> None:
    found = containers.attack(
        MOUNTS
        + r"""
import socket, subprocess
def asked(address="198.18.0.1", source=None):
    query = bytes.fromhex("123401000001000000000000") + b"\x04nope\x07example\0" + bytes.fromhex("00010001")
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if source: s.bind((source, 0))
    s.sendto(query, (address, 53))
    return s
def ask(seconds=60, **how):
    with asked(**how) as s:
        s.settimeout(seconds)
        try: return "answered %d" % (s.recv(512)[3] & 15)
        except TimeoutError: return "nothing"
def forged(source):
    "What has come of a question of another source once one of our own, which was asked later, is answered."
    with asked(source=source) as s:
        if ask() != "answered 3": return "no control"
        try: return s.recv(512, socket.MSG_DONTWAIT).hex()
        except BlockingIOError: return "nothing"
def reach(port):
    with socket.socket() as s:
        s.settimeout(60)
        s.connect(("192.0.2.1", port))
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        data = s.recv(4096)
        return "refused by us" if b"membrane" in data or not data else "out"
def ip(*words):
    return subprocess.run(["ip", *words], stderr=subprocess.DEVNULL).returncode and "failed" or "ok"
attempt("before", ask)
attempt("tcp", lambda: reach(80))
attempt("any server is ours", lambda: ask(address="192.0.2.53"))
attempt("add address", lambda: ip("address", "add", "198.18.0.77/32", "dev", "eth0"))
attempt("from another address", lambda: forged("198.18.0.77"))
attempt("another subnet", lambda: ip("address", "add", "10.9.8.7/24", "dev", "eth0"))
attempt("from another subnet", lambda: forged("10.9.8.7"))
attempt("as our own", lambda: (ip("address", "add", "198.18.0.2/32", "dev", "lo"), forged("198.18.0.2"))[1])
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300).close())
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).close())
attempt("flush", lambda: ip("route", "flush", "table", "all"))
attempt("after", lambda: ask(seconds=1))
"""
    )
    assert found["before"] == "answered 3"  # NXDOMAIN (RFC 1035): the gateway has decided
    assert found["tcp"] == "refused by us"
    assert found["any server is ours"] == "answered 3"
    assert found["add address"] == found["another subnet"] == "ok"  # its namespace is its own
    assert found["from another address"] == found["from another subnet"] == found["as our own"] == "nothing"
    assert found["packet"] == "EAFNOSUPPORT" and found["raw"] == "EPERM"
    assert found["after"] in ("ENETUNREACH", "nothing")


def test_K63_a_port_of_its_own_namespace_is_exposed(containers: Box) -> None:
    port = free_port()
    script = r"""
import http.server, threading
served = http.server.HTTPServer(("127.0.0.1", 8127), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=served.serve_forever, daemon=True).start()
def answer(line):
    return line
"""
    with inside(containers, script, f"--expose=8127:{port}") as ask:
        assert ask("up") == "up"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/open.txt", timeout=30) as answer:
            assert answer.read() == b"open"


def test_K64_a_name_that_appears_is_hidden_in_the_command_s_copy_of_the_view(containers: Box) -> None:
    """The mask is made in the view and arrives where the command is.  That it can be taken away is said in the receipt
    and the threat model: the kernel locks what is below the root of a tree that arrives, and not the root."""
    script = (
        MOUNTS
        + r"""
def answer(line):
    if line == "wait":
        return wait_for(lambda: os.path.exists("late.env") and not os.path.getsize("late.env"))
    return child(lambda: open("late.env").read() or "empty") if line == "read" else child(lambda: umount("late.env"))
"""
    )
    containers.policy(containers="nested", ignore=["late.env"])
    with inside(containers, script) as ask:
        assert ask("read") == "ENOENT"
        new = containers.workspace / "late.env.new"
        new.write_text("TOKEN=late")
        new.rename(containers.workspace / "late.env")
        assert [ask("wait"), ask("read"), ask("umount")] == ["ok", "empty", "ok"]


def test_K64_in_a_reviewed_workspace_a_hidden_name_that_is_replaced_stays_hidden(containers: Box) -> None:
    script = (
        MOUNTS
        + r"""
def answer(line):
    if line == "umount":
        return child(lambda: umount(".env"))
    return child(lambda: open(line).read() or "empty")
"""
    )
    with inside(containers, script, "--review", "--apply=never") as ask:
        assert ask(".env") == "empty"
        for name, text in ((".env", "TOKEN=new"), ("open.txt", "new")):
            new = containers.workspace / f"{name}.new"
            new.write_text(text)
            new.rename(containers.workspace / name)
        assert ask("open.txt") == "new"
        ask("umount")
        assert ask(".env") == "empty"


@pytest.mark.parametrize("nested", [True, False])
def test_K64_no_further_command_joins_namespaces_between_the_walls(box: Box, nested: bool) -> None:
    """``membrane exec`` would be in those of the view, not the command's; without containers (the control) it runs."""
    if nested:
        box.policy(containers="nested")
    with box.start("sh", "-c", "echo up; read line") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        done = subprocess.run(
            [*MEMBRANE, "exec", "@last", "--", "touch", "made"],
            cwd=box.workspace, env=box.environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        process.stdin.write("\n")
        process.stdin.flush()
        process.communicate(timeout=60)
    made = (box.workspace / "made").exists()
    if nested:
        assert done.returncode == 125 and not made, done
        assert "cannot join the session: with --containers" in done.stderr and "docker exec" in done.stderr
    else:
        assert done.returncode == 0 and made, done


MEMORY = r"""
import time
_libc.ptrace.argtypes = [ctypes.c_long] * 4
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
def look(pid):
    "What can be had of a process."
    def seize():
        if _libc.ptrace(PTRACE_SEIZE, pid, 0, 0):
            raise OSError(ctypes.get_errno(), "ptrace")
        _libc.ptrace(PTRACE_DETACH, pid, 0, 0)
    for name, action in (
        ("maps", lambda: open(f"/proc/{pid}/maps").read(1)),
        ("mem", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))),
        ("environ", lambda: open(f"/proc/{pid}/environ").read(1)),
        ("fd", lambda: str(os.listdir(f"/proc/{pid}/fd"))),
        ("seize", seize),
    ):
        attempt(f"{pid} {name}", action)
own = os.fork()
if own == 0:
    time.sleep(1000)
names = {pid: open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()}
for pid in names:
    if int(pid) != os.getpid():
        look(int(pid))
say("names", names)
say("own", str(own))
os.kill(own, 9)
"""


@pytest.mark.needs_tool("dockerd")
def test_K61_who_waits_at_docker_s_socket_shows_no_memory_of_ours(containers: Box) -> None:
    """A copy of pid 1 shows where the memory of the tracer and the supervisor is.  A shell that waits shows a shell."""
    found = containers.attack(MEMORY)
    names, own = found.pop("names"), found.pop("own")
    ours = [pid for pid, name in names.items() if name == names["1"]]
    shells = [pid for pid, name in names.items() if name == "sh"]
    assert len(ours) == 2, names
    looks = ("maps", "mem", "environ", "fd", "seize")
    assert {found[f"{pid} {look}"] for pid in ours for look in looks} <= {"EACCES", "EPERM"}, found
    for pid in (own, *shells):  # the controls
        assert not {found[f"{pid} {look}"] for look in looks} & {"EACCES", "EPERM"}, found
    assert len(shells) == 1, names


@pytest.mark.parametrize("lines", [(), ("#!/proc/self/exe",), ("#! ./0 x", "#!\t/proc/thread-self/exe -I")])
def test_K61_the_program_that_runs_membrane_is_no_program_of_the_sandbox(
    containers: Box, lines: tuple[str, ...]
) -> None:
    """It is in no view, and what it runs could change its mode and owner where it is the caller's."""
    program = "/proc/self/exe"
    for number, line in enumerate(lines):
        containers.file(str(len(lines) - 1 - number), f"{line}\nprint('ran')\n", 0o755)
        program = f"./{len(lines) - 1}"
    refused = containers.run(program, "-c", "print('ran')")
    said = f"membrane: {program}: it leads to a program outside of the sandbox\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (126, "", said), refused
    containers.file("own", f"#!{PYTHON}\nprint('ran')\n", 0o755)
    for command in (("./own",), (PYTHON, "-c", "print('ran')"), ("sh", "-c", '"$0" -c true', "/proc/self/exe")):
        done = containers.run(*command)  # the controls: the view's own, by whatever name
        assert done.returncode == 0 and done.stdout in ("ran\n", ""), done
