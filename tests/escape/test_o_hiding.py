"""Ways to do something without the record: each is done, and stands there with who did it (rows O02, O06, O10, O18)."""

from __future__ import annotations

import os
from typing import Any

from escape_box import PYTHON, Box


def by_name(box: Box, kind: str) -> dict[str, dict[str, Any]]:
    return {os.path.basename(event["path"]): event for event in box.record(kind) if not event["result"]}


def test_O06_programs_started_in_odd_ways_are_on_the_record(box: Box) -> None:
    """vfork(2), execve(2) of a thread, of a descriptor, and while signals interrupt every call."""
    script = """
import signal, threading, time
pid = os.posix_spawn("/bin/mkdir", ["mkdir", "by-vfork"], {})
os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    threading.Thread(target=lambda: os.execv("/bin/mkdir", ["mkdir", "by-thread"])).start()
    while True:
        time.sleep(1)
os.waitpid(pid, 0)
fd = os.open("/bin/mkdir", os.O_RDONLY)
pid = os.fork()
if pid == 0:
    os.execve(fd, ["mkdir", "by-descriptor"], {})
os.waitpid(pid, 0)
hits = []
signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
signal.siginterrupt(signal.SIGALRM, False)  # else a call that waits for the tracer may end with EINTR
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(200):
    os.mkdir(f"signal-{number}")
signal.setitimer(signal.ITIMER_REAL, 0)
say("hits", bool(hits))
os.mkdir("control")
"""
    found = box.attack(script)
    rows = by_name(box, "FileCreated")
    assert {"by-vfork", "by-thread", "by-descriptor", "control"} <= set(rows)
    for name in ("by-vfork", "by-thread", "by-descriptor"):
        assert rows[name]["process"]["exe"].endswith("/mkdir"), rows[name]
    assert rows["control"]["process"]["exe"] == os.path.realpath(PYTHON)
    assert {f"signal-{number}" for number in range(200)} <= set(rows)
    assert found["hits"]


def test_O18_descriptors_of_others_are_opened_on_the_record(box: Box) -> None:
    """Who gets a descriptor by a socket opens nothing; who opened it is there."""
    script = """
import socket
ours, theirs = socket.socketpair()
pid = os.fork()
if pid == 0:
    fd = os.open("passed", os.O_WRONLY | os.O_CREAT)
    socket.send_fds(theirs, [b"x"], [fd])
    os._exit(0)
fds = socket.recv_fds(ours, 1, 1)[1]
os.write(fds[0], b"x")
os.waitpid(pid, 0)
say("opener", pid)
"""
    found = box.attack(script)
    assert by_name(box, "FileOpened")["passed"]["process"]["pid"] == found["opener"]


def test_O10_a_directory_too_deep_for_a_path_hides_nothing(box: Box) -> None:
    """Below more than PATH_MAX bytes the kernel does not tell the working directory (ENAMETOOLONG)."""
    script = """
workspace = os.getcwd()
os.chdir("/tmp")  # of the sandbox's own: in the workspace the guard takes such a tree away
for number in range(24):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
os.mkdir("deep")
up = "../" * 24 + ".." + workspace + "/"
os.mkdir(up + "control")
attempt("protected", lambda: os.mkdir(up + ".vscode"))
attempt("file", write(up + ".mcp.json"))
os.mkdir(up + "name")
os.rename(up + "name", up + "moved")
"""
    found = box.attack(script)
    rows = by_name(box, "FileCreated")
    assert {"deep", "control", "name"} <= set(rows)
    assert {os.path.basename(event["to"]) for event in box.record("FileRenamed") if not event["result"]} == {"moved"}
    assert found == {"protected": "EACCES", "file": "EACCES"}
    # eBPF tells the outer end of so long a path as cut, see docs/trace-ebpf.md.
    assert rows["control"]["path"] in (f"{box.workspace}/control", f"…{box.workspace}/control")
    assert not {".vscode", ".mcp.json"} & set(os.listdir(box.workspace))
