"""Ways around the record that the best source there is must see through (rows O03, O06, O09 to O11, O13, O14, O18).

As root that is the kernel's own account (eBPF), as anybody else the command's notifications.  In each test something
is done openly as well: the control.
"""

from __future__ import annotations

import os
from typing import Any

from escape_box import PYTHON, Box

BY_EBPF = os.geteuid() == 0


def rows(box: Box, kind: str) -> list[dict[str, Any]]:
    """What succeeded, once each: beside a test that kills tracers the kernel may tell an event twice."""
    found = {}
    for event in box.record(kind):
        if not event["result"]:
            found.setdefault(str({name: value for name, value in event.items() if name not in ("time", "seq")}), event)
    return list(found.values())


def opened(box: Box) -> dict[str, list[dict[str, Any]]]:
    """Opens that may write, by the name of the file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in rows(box, "FileOpened"):
        if {"wronly", "rdwr"} & set(event["flags"]):
            found.setdefault(os.path.basename(event["path"]), []).append(event)
    return found


def whole(box: Box) -> None:
    last = box.record("SessionEnded")[-1]
    assert last["lost"] == 0 and not box.record("EventsLost")


def test_O11_however_it_is_written_the_open_is_on_the_record(box: Box) -> None:
    """splice, sendfile, copy_file_range, writev, mmap, a copy of the descriptor: all need one that was opened."""
    script = """
import mmap, shutil, socket
payload = b"evil" * 1024
def target(name):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
source = target("control"); os.write(source, payload)
def by_sendfile():
    return os.sendfile(target("by-sendfile"), source, 0, len(payload))
def by_copy():
    return os.copy_file_range(source, target("by-copy"), len(payload), 0, 0)
def by_splice():
    reader, writer = os.pipe()
    os.write(writer, payload)
    return os.splice(reader, target("by-splice"), len(payload))
def by_writev():
    return os.writev(target("by-writev"), [payload, payload])
def by_pwritev2():
    return os.pwritev(target("by-pwritev"), [payload], 0, 0)
def by_mapping():
    fd = target("by-mapping"); os.ftruncate(fd, len(payload))
    with mmap.mmap(fd, len(payload)) as memory:
        os.close(fd)
        memory[:] = payload
def by_duplicate():
    fd = target("by-duplicate"); os.dup2(fd, 77); os.close(fd)
    os.dup2(source, fd)  # the number is another file by now
    return os.write(77, payload)
def by_passing():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        socket.send_fds(theirs, [b"x"], [target("by-passing")])
        os._exit(0)
    fd = socket.recv_fds(ours, 1, 1)[1][0]
    os.wait()
    return os.write(fd, payload)
def by_link():
    fd = os.open("by-link", os.O_RDONLY | os.O_CREAT, 0o644)
    return os.write(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), payload)
def by_unnamed():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
    os.write(fd, payload)
    link_of(fd, "by-unnamed")()
for action in (by_sendfile, by_copy, by_splice, by_writev, by_pwritev2, by_mapping, by_duplicate, by_passing, by_link,
               by_unnamed):
    attempt(action.__name__, action)
"""
    found = box.attack(script)
    assert set(found.values()) == {"ok"}, found
    files = opened(box)
    for name in ("control", "by-sendfile", "by-copy", "by-splice", "by-writev", "by-pwritev", "by-mapping",
                 "by-duplicate", "by-passing", "by-link"):  # fmt: skip
        assert (box.workspace / name).read_bytes()[:4] == b"evil", name
        assert name in files, (name, sorted(files))
        assert files[name][0]["path"] == f"{box.workspace}/{name}"
    assert any("tmpfile" in event["flags"] for events in files.values() for event in events)
    linked = [event for event in rows(box, "FileCreated") if event["type"] == "link"]
    assert [event["path"] for event in linked] == [f"{box.workspace}/by-unnamed"]
    whole(box)


def test_O18_one_file_has_one_path_whatever_it_was_called(box: Box) -> None:
    """By links, by descriptors of directories, through /proc, from elsewhere: what is told is where it is."""
    script = """
os.makedirs("real/sub", exist_ok=True)
os.symlink("real", "alias"); os.symlink(os.getcwd() + "/alias/sub", "/tmp/elsewhere")
here = os.getcwd()
directory = os.open("alias/sub", os.O_PATH)
for number, (name, dir_fd) in enumerate((
    ("alias/sub/f0", None), ("/tmp/elsewhere/f1", None), ("f2", directory), ("../sub/./f3", directory),
    (f"/proc/self/fd/{directory}/f4", None), (f"/proc/self/cwd/real//sub/f5", None),
    (f"/proc/{os.getpid()}/root{here}/alias/sub/f6", None), (f"/proc/self/task/{os.getpid()}/cwd/alias/sub/f7", None),
)):
    attempt(str(number), lambda: os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=dir_fd)))
os.rename("real", "moved"); attempt("8", write("moved/sub/f8"))
for name, number, arguments in (("unshare", (272, 97), (0x10020000,)), ("chroot", (161, 51), (b".",)),
                                ("mount", (165, 40), (b".", b"/tmp", 0, 0x1000, 0))):
    attempt(name, lambda: syscall(number, *arguments))
"""
    found = box.attack(script)
    refused = {"unshare": "EPERM", "chroot": "EPERM", "mount": "EPERM"}
    assert found == {**dict.fromkeys(map(str, range(9)), "ok"), **refused}
    paths = {event["path"] for event in rows(box, "FileOpened") if os.path.basename(event["path"])[:1] == "f"}
    at = f"{box.workspace}/"
    assert {path for path in paths if path.startswith(at)} == {
        *(f"{at}real/sub/f{number}" for number in range(8)), f"{at}moved/sub/f8",
    }  # fmt: skip
    assert [event["to"] for event in rows(box, "FileRenamed")] == [f"{at}moved"]
    whole(box)


def test_O03_a_program_that_removes_itself_keeps_its_name(box: Box) -> None:
    """``(deleted)`` is what /proc says of it then; and a name that ends like that is a name."""
    script = """
import shutil
for name in ("tool", "tool (deleted)"):
    shutil.copy("/bin/sh", name)
    pid = os.fork()
    if pid == 0:
        os.execv("./" + name, [name, "-c", f'rm "{name}"; echo x >"by {name}"'])
    os.waitpid(pid, 0)
attempt("control", write("by-control"))
"""
    assert box.attack(script) == {"control": "ok"}
    files = opened(box)
    assert files["by tool"][0]["process"]["exe"] in (f"{box.workspace}/tool", f"{box.workspace}/tool (deleted)")
    assert files["by tool (deleted)"][0]["process"]["exe"].startswith(f"{box.workspace}/tool (deleted)")
    assert files["by-control"][0]["process"]["exe"] == os.path.realpath(PYTHON)
    started = [event["path"] for event in rows(box, "ProcessStarted") if "/tool" in event["path"]]
    assert started == [f"{box.workspace}/tool", f"{box.workspace}/tool (deleted)"]
    whole(box)


def test_O03_scripts_loaders_and_false_names(box: Box) -> None:
    """A script is told with its own name, and with the interpreter that the kernel started for it as ``exe``."""
    loader = "/lib64/ld-linux-x86-64.so.2" if os.uname().machine == "x86_64" else "/lib/ld-linux-aarch64.so.1"
    script = f"""
def spawn(path, *argv):
    pid = os.fork()
    if pid == 0:
        _libc.prctl(15, b"[kworker/0:1]", 0, 0, 0)
        os.execv(path, argv)
    return os.waitpid(pid, 0)[1]
for name, text in (("one", "#!/bin/sh\\n/bin/mkdir by-script\\n"), ("two", "#! ./one with-one-argument\\n")):
    write(name, text)(); os.chmod(name, 0o755)
say("script", spawn("./one", "sshd"))
say("script of a script", spawn("./two", "sshd"))
say("loader", spawn({loader!r}, "ld", "/bin/mkdir", "by-loader"))
_libc.prctl(15, b"\\x1b[2Jsshd\\n", 0, 0, 0)
attempt("renamed", lambda: os.mkdir("by-comm"))
"""
    found = box.attack(script)
    assert found["script"] == found["loader"] == 0 and found["renamed"] == "ok"
    started = [(os.path.basename(event["path"]), event["argv"][0]) for event in rows(box, "ProcessStarted")]
    assert ("one", "sshd") in started or ("one", "/bin/sh") in started, started
    assert ("two", "sshd") in started or any(name == "two" for name, _argv in started), started
    made = {os.path.basename(event["path"]): event["process"] for event in rows(box, "FileCreated")}
    assert made["by-script"]["exe"].endswith("/mkdir")
    assert os.path.realpath(made["by-loader"]["exe"]) == os.path.realpath(loader)
    assert made["by-comm"]["exe"] == os.path.realpath(PYTHON)
    # The notifications know the name that it had when it was first seen.
    assert made["by-comm"]["name"] == ("\\u{1b}[2Jsshd\\u{a}" if BY_EBPF else os.path.basename(PYTHON))
    whole(box)


def test_O06_what_is_left_running_ends_with_the_command_and_is_told_until_then(box: Box) -> None:
    """Own session, double fork, no descriptor of ours: it works on, is seen, and is gone when the command ends."""
    script = """
import signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3):
        os.close(fd)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    number = 0
    while True:
        os.mkdir(f"orphan-{number}")
        number += 1
        time.sleep(0.001)
os.wait()
say("working", wait_for(lambda: os.path.exists("orphan-20")))
"""
    assert box.attack(script) == {"working": "ok"}
    made = [event for event in rows(box, "FileCreated") if "orphan-" in event["path"]]
    [orphan] = {event["process"]["pid"] for event in made}
    on_disk = {path.name for path in box.workspace.glob("orphan-*")}
    assert {os.path.basename(event["path"]) for event in made} >= on_disk and len(on_disk) > 20
    assert {os.path.basename(event["path"]) for event in made} - on_disk <= {f"orphan-{len(on_disk)}"}  # the last call
    last = box.record()[-1]
    assert last["event"] == "SessionEnded" and all(event["process"]["pid"] == orphan for event in made)
    whole(box)


def test_O14_nothing_that_watches_can_be_reached_from_inside(box: Box) -> None:
    """Signals, ptrace(2), pidfds, bpf(2), the programs' files; and what is refused is seen by who sees calls fail."""
    script = """
import signal
visible = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
say("visible", [pid for pid in visible if pid != os.getpid()])
for name, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP), ("abort", signal.SIGABRT)):
    attempt(name + " 1", lambda: os.kill(1, number))
    attempt(name + " all", lambda: os.kill(-1, number))
    attempt(name + " group", lambda: os.killpg(1, number))
attempt("ptrace", lambda: syscall((101, 117), 16, 1, 0, 0))
attempt("seize", lambda: syscall((101, 117), 0x4206, 1, 0, 0))
attempt("pidfd", lambda: os.close(os.pidfd_open(1)))
attempt("pidfd signal", lambda: signal.pidfd_send_signal(os.pidfd_open(1), signal.SIGKILL))
attempt("getfd", lambda: syscall(438, os.pidfd_open(1), 0, 0))
attempt("memory", lambda: os.open("/proc/1/mem", os.O_RDWR))
attempt("descriptors", lambda: os.listdir("/proc/1/fd") and None)
room = ctypes.create_string_buffer(8)
vector = ctypes.create_string_buffer(ctypes.addressof(room).to_bytes(8, "little") + (8).to_bytes(8, "little"), 16)
attempt("vm", lambda: syscall((310, 270), 1, vector, 1, vector, 1, 0))
attempt("bpf", lambda: syscall((321, 280), 0, 0, 0))
attempt("perf", lambda: syscall((298, 241), 0, 0, -1, -1, 0))
attempt("io_uring", lambda: syscall(425, 8, 0))
attempt("bpffs", lambda: os.listdir("/sys/fs/bpf/membrane"))
attempt("state", lambda: os.listdir("/run/membrane"))
attempt("tracing", lambda: os.listdir("/sys/kernel/tracing/events"))
attempt("after", write("after"))
"""
    found = box.attack(script)
    assert found.pop("visible") == [1] and found.pop("after") == "ok"
    # Pid 1 takes no signal from inside of its namespace (pid_namespaces(7)): the call succeeds and nothing happens.
    for name in [name for name in found if name.split()[0] in ("kill", "stop", "abort") or name == "pidfd signal"]:
        assert found.pop(name) in ("ok", "ESRCH", "EPERM"), name
    assert found.pop("pidfd") in ("ok", "EPERM")
    assert found == {
        **dict.fromkeys(("ptrace", "seize", "getfd", "vm", "bpf", "perf"), "EPERM"), "io_uring": found["io_uring"],
        **dict.fromkeys(("memory", "descriptors"), "EACCES"),
        **dict.fromkeys(("bpffs", "state", "tracing"), "ENOENT"),
    }  # fmt: skip
    assert found["io_uring"] in ("EPERM", "ENOSYS")
    assert "after" in opened(box)
    if BY_EBPF:
        refused = {event["access"]["name"] for event in box.record("AccessDenied") if event["access"]["kind"] == "SystemCall"}  # fmt: skip  # noqa: E501
        assert {"ptrace", "bpf", "perf_event_open", "io_uring_setup"} <= refused, refused
    whole(box)


def test_O14_a_reader_that_never_reads_holds_nobody_up(box: Box) -> None:
    """Pipes that are full, a terminal that is not read: the tracer waits for nothing that the command holds."""
    script = """
import fcntl
ends = []
for number in range(20):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        pass
    ends.append((reader, writer))
    os.mkdir(f"d{number}")
for pid_directory in ("/proc/self/fd", "/proc/1/fd"):
    for name in ("0", "1", "2"):
        try:
            fd = os.open(f"{pid_directory}/{name}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
attempt("last", lambda: os.mkdir("last"))
"""
    assert box.attack(script) == {"last": "ok"}
    names = {os.path.basename(event["path"]) for event in rows(box, "FileCreated")}
    assert {*(f"d{number}" for number in range(20)), "last"} <= names
    whole(box)
