"""Filesystem attacks, first part: hidden and read-only names, mounts, the view (rows F01 to F17, F36 to F50)."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from escape_box import MEMBRANE, SECONDS, SOURCE, Box, inside, until


@pytest.mark.guard_alone
def test_F01_helper_outside_follows_no_link_of_the_workspace(box: Box, tmp_path: Path) -> None:
    """The guard takes names away with the caller's rights: a directory swapped for a link must not lead it out."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".mcp.json").write_text("precious")
    script = f"""
os.mkdir("real"); open("real/.mcp.json", "w").write("x")
say("seen", wait_for(lambda: not os.path.exists("real/.mcp.json")))
for turn in range(5):  # a few more, and the run would be ended
    os.mkdir("d"); open("d/.mcp.json", "w").write("x")
    os.rename("d", f"old{{turn}}")
    os.symlink({str(outside)!r}, "d")
    os.unlink("d")
os.symlink({str(outside)!r}, "d")
"""
    assert box.attack(script) == {"seen": "ok"}
    assert (box.workspace / "d" / ".mcp.json").read_text() == "precious"  # the control: the link does lead there
    assert (outside / ".mcp.json").read_text() == "precious"
    assert not list(box.workspace.glob("old*/.mcp.json"))
    assert "real/.mcp.json" in box.moved()


def test_F02_a_path_that_can_not_be_resolved_starts_nothing(box: Box, tmp_path: Path) -> None:
    assert box.run("touch", "control").returncode == 0
    assert (box.workspace / "control").exists()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    failed = box.run("touch", "ran", environment={"MEMBRANE_HOME": str(loop / "state")})
    assert failed.returncode == 125 and "membrane: " in failed.stderr
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec "$@"'
    failed = subprocess.run(
        ["sh", "-c", script, "sh", *MEMBRANE, "--", "sh", "-c", "echo ran"],
        env=box.environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert failed.returncode == 125 and failed.stdout == ""
    assert not (box.workspace / "ran").exists()


def test_F04_hard_link_to_a_hidden_file(box: Box) -> None:
    box.file(".env", "SECRET")
    box.file("plain", "x")
    script = """
attempt("control", lambda: os.link("plain", "other"))
attempt("hidden", lambda: os.link(".env", "stolen"))
attempt("magic link", link_of(os.open(".env", os.O_PATH), "stolen"))
"""
    found = box.attack(script)
    assert found["control"] == "ok"
    assert found["hidden"] == "EXDEV" and found["magic link"] == "EXDEV"
    assert not (box.workspace / "stolen").exists()
    os.link(box.workspace / ".env", box.workspace / "second")
    box.file("deep/file")
    os.link(box.workspace / ".env", box.workspace / "deep" / "third")
    warned = box.run("true", options=("-q",))
    assert ".env: the hidden file has 3 hard links" in warned.stderr
    assert any("3 hard links" in str(each) for each in box.record("SessionStarted")[-1]["assurance"])
    found = box.attack("for name in ('.env', 'second', 'deep/third', 'deep/file'): attempt(name, read(name))")
    assert found == {".env": "empty", "second": "EACCES", "deep/third": "EACCES", "deep/file": "ok"}


def test_F04_a_policy_may_refuse_hard_links(box: Box) -> None:
    box.file(".env", "SECRET")
    box.policy(hard_links="refuse")
    assert box.run("true").returncode == 0  # the control: one name only
    os.link(box.workspace / ".env", box.workspace.parent / "elsewhere")
    done = box.run("true")
    assert done.returncode == 78 and ".env: the hidden file has 2 hard links" in done.stderr, done
    assert "hard_links: warn" in done.stderr


def test_F04_another_name_of_a_read_only_file_is_read_only(box: Box) -> None:
    box.policy(readonly=["fixed"])
    os.link(box.file("fixed", "x"), box.workspace / "second")
    script = "attempt('fixed', write('fixed')); attempt('second', write('second')); attempt('new', write('new'))"
    assert box.attack(script) == {"fixed": "EROFS", "second": "EROFS", "new": "ok"}


def test_F05_rename_of_a_hidden_file_or_its_parent(box: Box) -> None:
    box.policy(ignore=["key"])
    box.file("conf/secret", "SECRET")
    box.file("keys/key", "SECRET")
    script = """
attempt("control", lambda: os.rename("keys", "moved"))
attempt("still hidden", read("moved/key"))
attempt("file", lambda: os.rename("moved/key", "x"))
"""
    found = box.attack(script)
    assert found.pop("still hidden") in ("empty", "EACCES")  # the latter once it was seen as a new name
    assert found == {"control": "ok", "file": "EBUSY"}
    # A pattern with a directory in it would match no more under another name.
    box.policy(ignore=["/conf/secret"])
    script = """
attempt("parent", lambda: os.rename("conf", "conf2"))
attempt("old name", read("conf/secret"))
"""
    assert box.attack(script) == {"parent": "EBUSY", "old name": "empty"}


def test_F06_mount_points_are_not_replaced(box: Box) -> None:
    box.file(".env", "SECRET")
    box.file("sub/.env", "SECRET")
    script = """
open("mine", "w").write("x"); os.mkdir("dir"); open("dir/.envx", "w").write("x")
attempt("control", exchange("mine", "dir"))
attempt("over", lambda: os.rename("dir", ".env"))
attempt("exchange", exchange("dir", ".env"))
attempt("unlink", lambda: os.unlink(".env"))
attempt("parent", lambda: os.rename("sub", "sub2"))
os.mkdir("sub"); open("sub/decoy", "w")
attempt("moved along", read("sub2/.env"))
"""
    found = box.attack(script)
    assert found.pop("moved along") in ("empty", "EACCES")  # the latter once it was seen as a new name
    assert found == {"control": "ok", "over": "EBUSY", "exchange": "EBUSY", "unlink": "EBUSY", "parent": "ok"}
    # The next start looks where the file is now.
    assert box.attack('attempt("next", read("sub2/.env"))') == {"next": "empty"}


def test_F06_directories_above_the_workspace_stay_put(home_box: Box) -> None:
    """They belong to the sandbox's home: moved away, masks made later by path would miss the workspace."""
    box = home_box
    script = """
attempt("control", lambda: (os.mkdir(os.path.expanduser("~/other")), os.rename(os.path.expanduser("~/other"),
        os.path.expanduser("~/other2")))[1])
attempt("move", lambda: os.rename(os.path.expanduser("~/projects"), os.path.expanduser("~/x")))
attempt("exchange", exchange(os.path.expanduser("~/projects"), os.path.expanduser("~/other2")))
def answer(line):
    return attempt("", read(".env"))
"""
    with inside(box, script) as ask:
        assert ask("before") == "ENOENT"
        (box.workspace / ".env").write_text("SECRET")
        assert until(lambda: ask("after"), "EACCES") == "EACCES"
    assert box.attack(script.partition("def answer")[0]) == {"control": "ok", "move": "EBUSY", "exchange": "EBUSY"}


@pytest.mark.guard_alone
@pytest.mark.parametrize("name", [".mcp.json", ".membrane.yaml", ".git/hooks/post-commit"])
def test_F07_a_protected_name_that_was_missing_can_not_be_made_later(box: Box, name: str) -> None:
    if name.startswith(".git"):
        (box.workspace / ".git" / "objects").mkdir(parents=True)
        box.file(".git/HEAD", "ref: refs/heads/main\n")
    script = f"""
os.makedirs(os.path.dirname({name!r}) or ".", exist_ok=True)
attempt("control", write("ordinary"))
attempt("made", write({name!r}))
say("gone", wait_for(lambda: not os.path.exists({name!r})))
"""
    assert box.attack(script) == {"control": "ok", "made": "ok", "gone": "ok"}
    assert not (box.workspace / name).exists() and (box.workspace / "ordinary").exists()
    taken = os.path.dirname(name) if name.startswith(".git") else name
    assert box.refused(taken) and taken in box.moved()


@pytest.mark.guard_alone
def test_F07_made_in_the_last_moment(box: Box) -> None:
    """The last thing that the last process does: the sweep after its end finds it."""
    # By one rename: whether the guard sees it before or after the end is the machine's affair.
    script = "mkdir -p a/b && echo evil > a/b/tasks.json && echo x > ordinary && mv a/b a/.vscode; kill -9 $$"
    assert box.run("sh", "-c", script).returncode == 137
    assert (box.workspace / "ordinary").exists() and not (box.workspace / "a" / ".vscode").exists()
    assert "a/.vscode" in box.moved()


def test_F08_a_workspace_that_holds_the_home_is_refused(box: Box) -> None:
    assert box.run("true").returncode == 0
    for workspace in (box.home, box.home.parent, Path("/")):
        refused = box.run("touch", "ran", workspace=workspace)
        assert refused.returncode == 78 and "the workspace" in refused.stderr
        assert not (workspace / "ran").exists()


def test_F08_no_later_mount_uncovers_a_mask(box: Box) -> None:
    """A tree that holds the workspace is mounted as well: the hidden name stays hidden under every path."""
    box.file(".env", "SECRET")
    (box.workspace.parent / "beside").write_text("control")
    found = box.attack(
        f'attempt("control", read("../beside"))\nattempt("own path", read({str(box.workspace)!r} + "/.env"))\n'
        'attempt("through parent", read("../workspace/.env"))',
        "--mount",
        f"{box.home.parent}/beside",
    )
    assert found == {"control": "ok", "own path": "empty", "through parent": "empty"}
    for target in (":/mnt/alias:ro", ""):
        refused = box.run("true", options=("--mount", f"{box.workspace}{target}"))
        assert refused.returncode == 78


def test_F09_aliases_of_a_hidden_path(box: Box) -> None:
    box.file(".env", "SECRET")
    box.file("plain", "x")
    os.symlink(".env", box.workspace / "link")
    script = """
here = os.getcwd()
fd = os.open(".", os.O_PATH)
attempt("control", read("/proc/self/root" + here + "/plain"))
for name, path in (("root", "/proc/self/root" + here + "/.env"), ("cwd", "/proc/self/cwd/.env"), ("link", "link"),
                   ("fd", f"/proc/self/fd/{fd}/.env"), ("thread", "/proc/thread-self/cwd/.env"),
                   ("dev fd", f"/dev/fd/{fd}/.env"), ("dots", here + "/../" + os.path.basename(here) + "/.env"),
                   ("O_PATH", f"/proc/self/fd/{os.open('.env', os.O_PATH)}")):
    attempt(name, read(path))
for name in ("root", "cwd", "exe"):
    attempt("pid 1 " + name, lambda: os.readlink("/proc/1/" + name))
"""
    found = box.attack(script)
    assert found.pop("control") == "ok"
    assert {found.pop(f"pid 1 {name}") for name in ("root", "cwd", "exe")} == {"EACCES"}
    assert set(found.values()) == {"empty"}, found


def test_F11_secrets_of_the_caller_are_in_no_process(box: Box) -> None:
    secret = "hunter2-9f3a"  # looked for as bytes: the script itself is an argument
    script = """
seen = []
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for name in ("environ", "auxv", "cmdline", "mem"):
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        except OSError as error:
            if pid == "1":
                say(name, errno.errorcode[error.errno])
            continue
        if name != "mem" and bytes.fromhex("68756e74657232") in os.read(fd, 1 << 20) and pid != str(os.getpid()):
            seen.append(pid + name)
        os.close(fd)
say("seen", seen)
say("own", "API_KEY" in os.environ)
"""
    environment = {"API_KEY": secret}
    plain = box.run("sh", "-c", "env; cat /proc/1/environ /proc/self/environ", environment=environment)
    assert secret not in plain.stdout and "MEMBRANE=1" in plain.stdout
    found = box.attack(script, environment=environment)
    assert found == {"environ": "EACCES", "auxv": "EACCES", "mem": "EACCES", "seen": [], "own": False}
    told = box.attack(script, "--deny", f"{secret}.example")
    assert told["seen"] == []  # the options of membrane are not its command's business
    given = box.attack(script, "--env", "API_KEY", environment=environment)  # the control: it is given by name
    assert given["own"] is True


def test_F13_no_foreign_socket_hands_out_descriptors(box: Box, tmp_path: Path) -> None:
    """A host process that would pass an open directory is reachable from the host only."""
    path, name = str(tmp_path / "s"), f"\0membrane-{os.getpid()}-{tmp_path.name}"
    script = f"""
import socket
for where, address in (("path", {path!r}), ("abstract", {name!r})):
    attempt(where, lambda: socket.socket(socket.AF_UNIX).connect(address))
a, b = socket.socketpair()
attempt("own", lambda: (socket.send_fds(a, [b"x"], [0]), socket.recv_fds(b, 1, 1))[1] and None)
"""
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for server, address in ((one, path), (other, name)):
            server.bind(address)
            server.listen()
        assert box.control(script) == {"path": "ok", "abstract": "ok", "own": "ok"}
        found = box.attack(script)
    assert found["path"] == "ENOENT" and found["abstract"] in ("ECONNREFUSED", "EPERM") and found["own"] == "ok"


OPENS = """
how = (ctypes.c_uint64 * 3)(os.O_RDONLY, 0, 0)
path = NAME.encode()
content = lambda fd: None if os.read(fd, 1) else "empty"
attempt("open", lambda: content(syscall(2, path, 0) if X86 else os.open(NAME, 0)))
attempt("openat", lambda: content(syscall((257, 56), AT_FDCWD, path, 0, 0)))
attempt("openat2", lambda: syscall(437, AT_FDCWD, path, ctypes.byref(how), 24))
attempt("write", lambda: os.open(NAME, os.O_WRONLY))
attempt("append", lambda: os.open(NAME, os.O_WRONLY | os.O_APPEND))
attempt("creat", lambda: syscall(85, path, 0o644) if X86 else os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
attempt("execve", lambda: os.execv(NAME, [NAME]))
"""


def test_F14_every_way_to_open(box: Box) -> None:
    box.file(".env", "SECRET", 0o600)
    box.file("plain", "x", 0o600)
    found = box.attack(OPENS.replace("NAME", "'.env'"))
    assert found.pop("openat2") == "ENOSYS"  # its mode is in memory, where no filter can look
    assert (found.pop("open"), found.pop("openat")) == ("empty", "empty")
    assert set(found.values()) <= {"EACCES", "EROFS"}, found
    allowed = box.attack(OPENS.replace("NAME", "'plain'"))
    assert {v for k, v in allowed.items() if k not in ("execve", "openat2")} == {"ok"}
    handle = """
handle = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132))
mount = ctypes.c_int()
attempt("name_to_handle_at", lambda: syscall((303, 264), AT_FDCWD, b"plain", handle, ctypes.byref(mount), 0))
attempt("open_by_handle_at", lambda: syscall((304, 265), AT_FDCWD, handle, os.O_RDONLY))
"""
    assert box.attack(handle) == {"name_to_handle_at": "ok", "open_by_handle_at": "EPERM"}
    assert (box.workspace / ".env").read_text() == "SECRET"


CHANGES = """
for name, action in {
    "truncate": lambda: os.truncate(NAME, 0),
    "chmod": lambda: os.chmod(NAME, 0o666),
    "fchmodat2": lambda: syscall(452, AT_FDCWD, NAME.encode(), 0o666, 0),
    "chown": lambda: os.chown(NAME, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(NAME, (1, 1)),
    "setxattr": lambda: os.setxattr(NAME, "user.x", b"1"),
    "link": lambda: os.link(NAME, NAME + "-link"),
    "exchange": exchange(NAME, "other"),
    "rename": lambda: os.rename(NAME, NAME + "-new"),
    "over": lambda: os.rename("other", NAME + "-new" if os.path.exists(NAME + "-new") else NAME),
    "unlink": lambda: os.unlink(NAME),
}.items():
    attempt(name, action)
"""


@pytest.mark.parametrize("kind", ["ignore", "readonly"])
def test_F15_every_way_to_change(box: Box, kind: str) -> None:
    box.policy(**{kind: ["target"]})
    for name in ("target", "plain", "other"):
        box.file(name, "SECRET")
    found = box.attack(CHANGES.replace("NAME", "'target'"))
    assert set(found.values()) <= {"EROFS", "EBUSY", "EXDEV", "EACCES", "EPERM"}, found
    path = box.workspace / "target"
    assert path.read_text() == "SECRET" and stat.S_IMODE(path.stat().st_mode) == 0o644 and path.stat().st_mtime > 1
    allowed = box.attack(CHANGES.replace("NAME", "'plain'"))
    assert {v for k, v in allowed.items() if k not in ("unlink", "over", "fchmodat2")} == {"ok"}, allowed


@pytest.mark.guard_alone
def test_F16_exchange_temporary_files_and_races(box: Box) -> None:
    box.file(".git/config", "[core]\n\tbare = false\n")
    box.file(".git/HEAD", "ref: refs/heads/main\n")
    (box.workspace / ".git" / "objects").mkdir()
    script = """
open("evil", "w").write("[core]\\n\\tfsmonitor = /tmp/x\\n"); open("twin", "w")
attempt("control", exchange("evil", "twin")); exchange("evil", "twin")()
attempt("exchange", exchange("evil", ".git/config"))
attempt("exchange parent", (os.mkdir("g"), exchange("g", ".git"))[1])
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
os.write(fd, b"{}")
attempt("O_TMPFILE", link_of(fd, ".mcp.json"))
for turn in range(5):  # a few more, and the run would be ended
    try:
        os.makedirs("r/.git/hooks", exist_ok=True)
        open("r/.git/hooks/post-checkout", "w").write("x")
        os.rename("r/.git/hooks", "r/.git/h2"); os.rename("r/.git/h2", "r/.git/hooks")
    except OSError:
        pass
say("gone", wait_for(lambda: not os.path.exists(".mcp.json") and not os.path.exists("r/.git/hooks/post-checkout")))
"""
    assert box.attack(script) == {
        "control": "ok",
        "exchange": "EXDEV",
        "exchange parent": "EBUSY",
        "O_TMPFILE": "ok",
        "gone": "ok",
    }
    assert "fsmonitor" not in (box.workspace / ".git/config").read_text()
    assert not (box.workspace / ".mcp.json").exists() and not (box.workspace / "r/.git/hooks/post-checkout").exists()
    assert {".mcp.json", "r/.git/hooks"} <= box.moved()


def test_F17_device_nodes(box: Box) -> None:
    script = """
attempt("fifo", lambda: os.mkfifo("fifo"))
for where in (".", "/tmp", "/dev", "/dev/shm", os.environ["HOME"]):
    attempt("whiteout " + where, lambda: os.mknod(where + "/wh", 0o020600, 0))
    attempt("character " + where, lambda: os.mknod(where + "/mem", 0o020600, os.makedev(1, 1)))
    attempt("block " + where, lambda: os.mknod(where + "/disk", 0o060600, os.makedev(254, 0)))
"""
    found = box.attack(script)
    assert found.pop("fifo") == "ok"
    assert set(found.values()) <= {"EPERM", "EACCES"}, found
    # The control: a 0/0 device needs no privilege on the host (Linux 5.8).
    assert box.control('attempt("w", lambda: os.mknod("wh", 0o020600, 0))') == {"w": "ok"}


@pytest.mark.as_root
def test_F17_a_device_of_the_workspace_can_not_be_opened(box: Box) -> None:
    os.mknod(box.workspace / "null", 0o020666, os.makedev(1, 3))
    assert box.control('attempt("open", read("null"))') == {"open": "ok"}
    assert box.attack('attempt("open", read("null"))') == {"open": "EACCES"}


def test_F36_caches_and_toolchains_of_the_home(box: Box) -> None:
    """Shared caches are not visible; what is written to a toolchain lies in a layer of the workspace's own."""
    tool = box.home / ".cargo" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    cache = box.home / ".cargo" / "registry" / "cached"
    cache.parent.mkdir()
    cache.write_text("shared")
    script = """
home = os.environ["HOME"]
attempt("run", lambda: os.spawnv(os.P_WAIT, home + "/.cargo/bin/tool", ["tool"]))
attempt("tool", write(home + "/.cargo/bin/tool"))
attempt("new tool", write(home + "/.cargo/bin/cargo"))
attempt("cache", read(home + "/.cargo/registry/cached"))
attempt("own cache", lambda: (os.makedirs(home + "/.cargo/registry", exist_ok=True),
                              write(home + "/.cargo/registry/cached")())[1])
"""
    found = box.attack(script)
    assert found == {"run": "ok", "tool": "ok", "new tool": "ok", "cache": "ENOENT", "own cache": "ok"}
    assert cache.read_text() == "shared" and tool.read_text() == "#!/bin/sh\necho tool\n"
    assert os.listdir(tool.parent) == ["tool"]
    again = "say('tools', sorted(os.listdir(os.environ['HOME'] + '/.cargo/bin')))"
    assert box.attack(again)["tools"] == ["cargo", "tool"]
    other = box.workspace.parent / "other"
    other.mkdir()
    assert box.attack(again, workspace=other)["tools"] == ["tool"]
    assert box.attack(again, "--home=ephemeral")["tools"] == ["tool"]
    assert list((box.state / "layers" / ".once").iterdir()) == []


LAYER = """
import socket
home = os.environ["HOME"] + "/.local/lib"
attempt("opaque", lambda: os.setxattr(home, "user.overlay.opaque", b"y"))
attempt("redirect", lambda: os.setxattr(home + "/kept", "user.overlay.redirect", b"/../../../secret"))
attempt("metacopy", lambda: os.setxattr(home + "/kept", "user.overlay.metacopy", b""))
attempt("whiteout", lambda: os.mknod(home + "/gone", 0o20000, 0))
attempt("link out", lambda: os.link(home + "/tool", os.environ["HOME"] + "/linked"))
attempt("descriptor", lambda: os.link(f"/proc/self/fd/{os.open(home + '/tool', os.O_RDONLY)}", home + "/../linked"))
attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect(home + "/sock"))
attempt("through a link", lambda: (os.symlink(STATE, home + "/state"), os.listdir(home + "/state/layers")) and None)
attempt("rename", lambda: os.rename(home, home + "2"))
attempt("remove", lambda: os.unlink(home + "/tool"))
attempt("removed", lambda: os.stat(home + "/tool") and None)
"""


def test_F37_a_layer_is_no_way_out_of_its_overlay(home_box: Box) -> None:
    """Marks of overlayfs that a command would like to set, other ways to the same files, sockets of the host."""
    import socket

    box = home_box
    tree = box.home / ".local" / "lib"
    tree.mkdir(parents=True)
    for name in ("tool", "kept"):
        (tree / name).write_text("mine")
    script = LAYER.replace("STATE", repr(str(box.state)))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "sock"))
        listening.listen()
        found = box.attack(script)
        control = box.control(
            f"import socket\nattempt('socket', lambda: socket.socket(socket.AF_UNIX).connect({str(tree / 'sock')!r}))"
        )
    assert control == {"socket": "ok"}
    assert {found.pop(name) for name in ("opaque", "redirect", "metacopy")} <= {"EPERM", "EOPNOTSUPP", "ok"}
    assert found.pop("whiteout") in ("EPERM", "EACCES")
    assert found.pop("socket") in ("ECONNREFUSED", "EACCES")
    assert found.pop("rename") in ("EBUSY", "EXDEV")
    assert found == {
        "link out": "EXDEV",
        "descriptor": "EXDEV",
        "through a link": "ENOENT",
        "remove": "ok",
        "removed": "ENOENT",
    }
    (upper,) = (box.state / "layers").glob("*/0/.local-lib/upper")
    marks = {"user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy"}
    assert not marks & {*os.listxattr(upper), *os.listxattr(upper / "kept")}  # what was set has another name there
    assert (tree / "tool").read_text() == "mine" and sorted(os.listdir(tree)) == ["kept", "sock", "tool"]
    assert sorted(os.listdir(upper)) == ["kept", "state", "tool"]  # a link, and the mark of what was removed


def test_F37_two_runs_at_a_time_never_share_a_layer(box: Box) -> None:
    (box.home / "bin").mkdir()
    first = box.start("sh", "-c", "echo a > ~/bin/a; echo ready; read line; ls ~/bin")
    assert first.stdout is not None and first.stdin is not None
    try:
        assert first.stdout.readline() == "ready\n"
        second = box.run("sh", "-c", "echo b > ~/bin/b; ls ~/bin")
        assert second.stdout.split() == ["b"]
        assert "another run has the layer over your toolchains" in second.stderr
        assert "another run has" not in box.run("true").stderr  # said once
    finally:
        out, _ = first.communicate("go\n", timeout=SECONDS)
    assert out.split() == ["a"]
    assert box.run("sh", "-c", "ls ~/bin").stdout.split() == ["a"]
    assert list((box.home / "bin").iterdir()) == []


def test_F39_the_directory_of_the_command_widens_nothing(box: Box, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    done = box.run("sh", "-c", f"echo x > control; cd {other} || cd /; echo evil > ran; pwd",
                   environment={"PWD": str(other), "OLDPWD": str(other)})  # fmt: skip
    assert (box.workspace / "control").exists()
    assert not (other / "ran").exists() and done.stdout.strip() == "/"
    assert "Read-only file system" in done.stderr


def test_F40_one_rule_that_can_not_be_bound_stops_everything(box: Box) -> None:
    assert box.run("touch", "control", options=("-r", "x")).returncode == 0
    for options in (
        ("--mount", "/"),
        ("--mount", str(box.state)),
        ("--view", "host", "--home", "shared"),
    ):
        refused = box.run("touch", "ran", options=("-r", "x", *options))
        assert refused.returncode == 78, refused.stderr
    assert (box.workspace / "control").exists() and not (box.workspace / "ran").exists()


def _store(box: Box) -> Path:
    [store] = (box.state / "homes").iterdir()
    return store


def test_F42_links_left_in_the_home_move_no_mount_point(home_box: Box, tmp_path: Path) -> None:
    """An earlier run replaced a directory of its home: nothing is made on the host, nothing is mounted there."""
    box = home_box
    victim = tmp_path / "victim"
    victim.mkdir()
    (box.home / ".cargo" / "bin").mkdir(parents=True)
    assert box.run("true").returncode == 0  # the control; it makes the store
    store = _store(box)
    (store / "projects" / "app").rmdir()
    (store / "projects").rmdir()
    script = f"""
attempt("plant", lambda: os.symlink({str(victim)!r}, os.path.expanduser("~/.local")))
"""
    assert box.attack(script) == {"plant": "ok"}
    (box.home / ".local" / "bin").mkdir(parents=True)  # now the host has this toolchain
    assert box.run("true").returncode == 0  # left out, as no link is followed
    assert list(victim.iterdir()) == []
    (store / "projects" / "app").rmdir()
    (store / "projects").rmdir()
    (store / "projects").symlink_to(victim)
    failed = box.run("touch", "ran")
    assert failed.returncode == 125 and "ELOOP" in failed.stderr
    assert list(victim.iterdir()) == [] and not (box.workspace / "ran").exists()


@pytest.mark.guard_alone
def test_F42_links_in_the_workspace_open_nothing(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "hooks").mkdir(parents=True)
    (outside / "secret").write_text("SECRET")
    script = f"""
attempt("control", lambda: os.symlink("/etc/hosts", "fine"))
attempt("git", lambda: os.symlink({str(outside)!r}, ".git"))
attempt("policy", lambda: os.symlink({str(outside)!r}, ".membrane.yaml"))
attempt("path", lambda: os.symlink({str(outside)!r}, "bin"))
"""
    assert set(box.attack(script).values()) == {"ok"}
    assert box.moved() >= {".git", ".membrane.yaml"}  # links that steer host programs are taken away
    for name in (".git", ".membrane.yaml"):
        (box.workspace / name).symlink_to(outside)
    refused = box.run("true")
    assert refused.returncode == 78 and "symbolic link" in refused.stderr
    (box.workspace / ".membrane.yaml").unlink()
    look = f'attempt("secret", read({str(outside / "secret")!r}))\nattempt("git", read(".git/secret"))\n'
    look += 'attempt("bin", read("bin/secret"))'
    path = f"{box.workspace}/bin:{box.environment['PATH']}"
    found = box.attack(look, environment={"PATH": path})
    assert found == {"secret": "ENOENT", "git": "ENOENT", "bin": "ENOENT"}
    assert box.control(look) == {"secret": "ok", "git": "ok", "bin": "ok"}


def test_F43_sandbox_program_settings_and_state(box: Box) -> None:
    import membrane

    package = str(Path(membrane.__file__).parent)
    box.policy()
    script = f"""
for name, path in (("package", {package!r} + "/run/session.py"), ("interpreter", {sys.executable!r}),
                   ("settings", {str(box.state)!r} + "/config.yaml"), ("state", {str(box.state)!r} + "/run"),
                   ("system", "/usr/bin/env"), ("resolver", "/etc/resolv.conf"), ("masks", "/run/.membrane/file")):
    attempt(name, lambda: os.open(path, os.O_WRONLY))
    attempt(name + " directory", lambda: os.mkdir(os.path.dirname(path) + "/evil-name"))
attempt("control", write("own"))
"""
    found = box.attack(script, environment={"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"})
    assert found.pop("control") == "ok"
    assert set(found.values()) <= {"EROFS", "EACCES", "ENOENT"}, found
    for workspace in (box.state, box.state / "homes"):
        assert box.run("true", workspace=workspace).returncode in (78, 125)


def test_F43_a_package_inside_the_workspace_is_not_writable(box: Box) -> None:
    """Membrane installed in a virtual environment of the project: a change would run outside, at the next start."""
    import shutil

    import membrane

    library = box.workspace / "lib" / "site"
    shutil.copytree(Path(membrane.__file__).parent, library / "membrane", ignore=shutil.ignore_patterns("__pycache__"))
    program = MEMBRANE[-1].replace(SOURCE, str(library))
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "--", "sh", "-c", "echo '# evil' >> lib/site/membrane/run/session.py"],
        cwd=box.workspace, env=box.environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert "# evil" not in (library / "membrane" / "run" / "session.py").read_text(), done.stderr


def test_F44_schedulers_and_user_services(box: Box) -> None:
    script = """
home = os.environ["HOME"]
for name in (".config/systemd/user/evil.service", ".config/autostart/evil.desktop", ".bash_profile"):
    os.makedirs(os.path.dirname(home + "/" + name), exist_ok=True)
    attempt(name, write(home + "/" + name))
for name in ("/etc/cron.d/evil", "/etc/systemd/system/evil.service", "/etc/profile.d/evil.sh", "/etc/ld.so.preload"):
    attempt(name, write(name))
for name in ("/var/spool/cron", "/run/systemd/private", f"/run/user/{os.getuid()}/systemd/private", "/run/dbus"):
    attempt(name, lambda: os.stat(name) and None)
"""
    found = box.attack(script)
    assert {name for name, value in found.items() if value == "ok"} == {
        ".config/systemd/user/evil.service",
        ".config/autostart/evil.desktop",
        ".bash_profile",
    }
    assert {value for value in found.values() if value != "ok"} <= {"EROFS", "ENOENT", "EACCES"}
    assert list(box.home.iterdir()) == []  # it was another home


def test_F47_what_is_not_shown_does_not_exist(box: Box, tmp_path: Path) -> None:
    (tmp_path / "present").write_text("x")
    (box.home / ".ssh").mkdir(mode=0o700)
    (box.home / ".ssh" / "id_rsa").write_text("SECRET")
    script = f"""
for name, path in (("present", {str(tmp_path / "present")!r}), ("absent", {str(tmp_path / "absent")!r}),
                   ("key", os.environ["HOME"] + "/.ssh/id_rsa"), ("no key", os.environ["HOME"] + "/.ssh/none"),
                   ("state", {str(box.state)!r}), ("root", "/root/.bashrc"), ("boot", "/boot")):
    attempt(name, lambda: os.stat(path) and None)
text = open("/proc/self/mountinfo").read()
say("other mounts", any(line.split()[4].startswith(("/boot", "/mnt", "/media")) for line in text.splitlines()))
"""
    found = box.attack(script)
    assert found.pop("other mounts") is False
    assert set(found.values()) == {"ENOENT"}, found
    assert box.control('attempt("key", read(os.environ["HOME"] + "/.ssh/id_rsa"))') == {"key": "ok"}


@pytest.mark.parametrize("how", ["created", "renamed over", "in a new directory"])
def test_F48_rules_hold_for_names_that_appear_on_the_host(box: Box, how: str) -> None:
    name = "new/.env" if how == "in a new directory" else ".env"
    if how == "renamed over":
        box.file(".env", "OLD")
    with inside(box, f"def answer(line):\n    return attempt('', read({name!r}))") as ask:
        ask("first")
        target = box.workspace / name
        target.parent.mkdir(exist_ok=True)
        (box.workspace / "fresh").write_text("SECRET")
        (box.workspace / "fresh").rename(target)
        wanted = "empty" if how == "renamed over" else "EACCES"
        assert until(lambda: ask("again"), wanted) == wanted
    assert target.read_text() == "SECRET"


@pytest.mark.guard_alone
def test_F48_a_name_made_inside_is_hidden_as_well(box: Box) -> None:
    script = (
        'attempt("make", write(".env"))\nsay("hidden", wait_for(lambda: attempt("read", read(".env")) == "EACCES"))'
    )
    found = box.attack(script)
    assert found == {"make": "ok", "read": "EACCES", "hidden": "ok"}


@pytest.mark.guard_alone
def test_F50_links_are_moved_as_links(box: Box, tmp_path: Path) -> None:
    """What the guard takes away may hold links: neither followed nor resolved, and nothing is owned anew."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    before = (outside / "file").stat()
    script = f"""
os.mkdir("v"); os.symlink({str(outside)!r}, "v/out"); os.symlink({str(outside / "file")!r}, "v/file")
os.rename("v", ".vscode")
say("gone", wait_for(lambda: not os.path.lexists(".vscode")))
"""
    assert box.attack(script) == {"gone": "ok"}
    [event] = box.record("NameQuarantined")
    assert os.readlink(os.path.join(event["to"], "out")) == str(outside)
    after = (outside / "file").stat()
    assert (after.st_uid, after.st_mode, after.st_ctime_ns) == (before.st_uid, before.st_mode, before.st_ctime_ns)
