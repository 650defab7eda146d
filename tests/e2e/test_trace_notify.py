"""What the tracer tells of real programs, and what happens when there is none, or no longer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

import membrane

PYTHON = "/usr/bin/python3"
PATIENT = 240.0  # seconds for pip on a machine with ten other jobs
IDENTITY = tuple(f"--env=GIT_{who}_{what}=agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))


SOURCE = str(Path(membrane.__file__).resolve().parent.parent)
WITHOUT_EBPF = (
    f"import sys; sys.path.insert(0, {SOURCE!r}); import membrane.tracer.ebpf as ebpf; ebpf.OBJECT = '/nowhere'; "
    "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(autouse=True)
def _without_ebpf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root would get the better source (test_trace_ebpf.py)."""
    monkeypatch.setattr("world.box.membrane_argv", lambda: [sys.executable, "-I", "-c", WITHOUT_EBPF])


def run(box: Box, *command: str, options: tuple[str, ...] = (), status: int = 0, **more: Any) -> Any:
    done = box.run(f"--events={box.events_path}", *options, "--", *command, **more)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def programs(box: Box) -> list[str]:
    return [os.path.basename(event["path"]) for event in box.events("ProcessStarted") if not event["result"]]


def written(box: Box) -> set[str]:
    """Names below the workspace that were opened for writing, made or were the target of a rename."""
    at = f"{box.workspace}/"
    found = {event["path"] for event in box.events("FileOpened") if "rdonly" not in event["flags"]}
    found |= {event["path"] for event in box.events("FileCreated")}
    found |= {event["to"] for event in box.events("FileRenamed")}
    return {path.removeprefix(at) for path in found if path.startswith(at)}


def test_the_source_is_named_and_the_record_is_whole(box: Box) -> None:
    run(box, "sh", "-c", "echo x > file; rm file; exit 3", status=3)
    first, *_middle, last = box.events()
    assert first["event"] == "SessionStarted" and first["trace_source"] == "notify, network"
    assert last["event"] == "SessionEnded" and last["lost"] == 0
    assert [event["seq"] for event in box.events()] == list(range(1, len(box.events()) + 1))
    assert programs(box) == ["dash", "rm"] or programs(box) == ["bash", "rm"]
    assert written(box) == {"file"}
    assert [event["path"] for event in box.events("FileRemoved")] == [f"{box.workspace}/file"]
    notified = [event for event in box.events() if event["source"] == "notify" and event["event"] != "ProcessExited"]
    assert all(event.get("requested", True) for event in notified)
    started = {event["process"]["pid"]: event["parent"] for event in box.events("ProcessStarted")}
    assert started == {2: 1, 3: 2}


def test_without_a_tracer_nothing_is_told_and_the_boundary_holds(box: Box) -> None:
    (box.workspace / ".env").write_text("hidden")
    for options, policy in ((("--no-trace",), {}), ((), {"trace": {"mode": "off"}})):
        box.allow(**policy)
        box.events_path.unlink(missing_ok=True)
        run(box, "sh", "-c", "echo x > file; mkdir .vscode", options=options)
        assert box.events()[0]["trace_source"] == "network"
        assert not [event for event in box.events() if event["source"] == "notify"]
        assert not (box.workspace / ".vscode").exists()  # the guard took it away
        assert [event["path"] for event in box.events("NameQuarantined")] == [".vscode"]


@pytest.mark.parametrize("mode", ["required", "full"])
def test_a_tracer_that_must_be_there(box: Box, mode: str) -> None:
    box.allow(trace={"mode": mode})
    (box.workspace / "read-me").write_text("x")
    run(box, "cat", "read-me")
    reads = [event["path"] for event in box.events("FileOpened") if event["flags"] == ["rdonly"]]
    assert (f"{box.workspace}/read-me" in reads) == (mode == "full")


def test_git(box: Box) -> None:
    script = "git init -q . && echo x > file && git add file && git commit -qm first && git clone -q . copy"
    run(box, "sh", "-c", script, options=IDENTITY)
    assert {"git"} <= set(programs(box))
    assert {".git/index.lock", ".git/HEAD.lock", "copy/.git/config", "file", "copy/file"} <= written(box)
    assert not box.events("AccessDenied") and not box.events("NameQuarantined")
    assert box.outside("git", "-C", "copy", "log", "--format=%s").stdout == "first\n"


def test_make(box: Box) -> None:
    for name in ("one", "two"):
        (box.workspace / f"{name}.c").write_text(f"int {name}(void) {{ return 0; }}\n")
    (box.workspace / "main.c").write_text("int main(void) { return 0; }\n")
    (box.workspace / "Makefile").write_text("prog: main.o one.o two.o\n\tcc -o prog main.o one.o two.o\n")
    run(box, "make", "-j2")
    assert {"make", "cc1", "as"} <= {name.rpartition("-")[2] for name in programs(box)}
    assert {"main.o", "one.o", "two.o", "prog"} <= written(box)
    assert len({event["process"]["pid"] for event in box.events("ProcessStarted")}) >= 8


def test_pip_installs_a_local_wheel(box: Box) -> None:
    wheel = box.workspace / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "answer = 42\n")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    # pip as venv(1) brings it, run from its wheel: unpacking it takes most of a minute on a busy machine.
    [pip, *_others] = Path("/usr/share/python-wheels").glob("pip-*.whl")  # python3-venv depends on it
    assert box.outside(PYTHON, "-m", "venv", "--without-pip", "venv").returncode == 0
    install = f"venv/bin/python {pip}/pip install -q --no-index {wheel.name}"
    run(box, "sh", "-c", f"{install} && venv/bin/python -c 'import thing'", timeout=PATIENT)
    assert any(path.endswith("site-packages/thing.py") for path in written(box))
    assert not box.events("AccessDenied")


@pytest.mark.needs_tool("npm")
def test_npm_runs_a_script(box: Box) -> None:
    (box.workspace / "package.json").write_text(json.dumps({"scripts": {"go": "echo done > done"}}))
    run(box, "npm", "run", "go")
    assert "done" in written(box)


def test_names_with_newlines_and_escape_codes(box: Box) -> None:
    odd = 'x\n{"event": "SessionEnded"}\x1b]0;owned\x07\u202e'
    script = box.workspace / odd.replace("/", "_")
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    assert run(box, f"./{script.name}").stdout == "ran\n"
    text = box.events_path.read_text()
    assert not set("\x1b\x07\u202e") & set(text) and len(box.events("SessionEnded")) == 1
    [started] = [event for event in box.events("ProcessStarted") if not event["result"]]
    assert started["path"].endswith('/x\\u{a}{"event": "SessionEnded"}\\u{1b}]0;owned\\u{7}\\u{202e}')


def test_refusals_of_the_view_are_told(box: Box) -> None:
    (box.workspace / "fixed.txt").write_text("x")
    (box.workspace / "secret.txt").write_text("x")
    tool = box.home / "tools" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    script = f"echo x > fixed.txt; echo x > secret.txt; {tool}; echo x > {box.home}/.ssh/config; true"
    done = run(box, "sh", "-c", script, options=("-r=fixed.txt", "-i=secret.txt"))
    denied = {(event["access"]["path"], event["reason"]) for event in box.events("AccessDenied")}
    assert denied == {
        ("fixed.txt", "read-only"),
        ("secret.txt", "hidden"),
        (str(tool), "not in the view"),
        (f"{box.home}/.ssh/config", "not in the view"),
    }
    assert all(event["source"] == "notify" for event in box.events("AccessDenied"))
    assert "refused 4" in done.stderr
    assert box.outside("sh", "-c", script).returncode == 0  # the control
    box.events_path.unlink()
    run(box, "sh", "-c", "echo x > /nowhere/x; echo x > /etc/x; rm nothing; mkdir sub; mkdir sub; true")
    assert not box.events("AccessDenied")  # what anybody would be refused is no refusal of ours


def test_what_a_program_makes_itself_in_its_own_home_is_no_refusal(box: Box) -> None:
    """The caller has these directories, the sandbox has not until the program makes them, as package managers do."""
    (box.home / ".npm/_cacache/tmp").mkdir(parents=True)
    (box.home / ".cache/x/y").mkdir(parents=True)
    ask = f"mkdir {box.home}/.npm/_cacache; mkdir {box.home}/.npm/_cacache/tmp"
    script = f"{ask}; mkdir {box.home}/.npm; {ask}; rm -f {box.home}/.cache/x; "
    if os.getuid():
        script += "echo x > /x; echo x > /home/x; "  # what the caller may not outside either
    script += "true"
    done = run(box, "sh", "-c", script, options=("--home=ephemeral",))
    assert not box.events("AccessDenied") and "refused" not in done.stderr, done
    box.events_path.unlink()
    # The control: it goes without, and makes something else once that is reported.
    argv = (f"--events={box.events_path}", "--home=ephemeral", "--", "sh", "-c", f"{ask}; touch a; read x; touch b")
    going = box.popen(*argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENT
    while not (box.events_path.exists() and b"AccessDenied" in box.events_path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    _, said = going.communicate(b"on\n", timeout=PATIENT)
    assert going.returncode == 0 and b"incomplete" not in said, said
    denied = {(event["access"]["path"], event["reason"]) for event in box.events("AccessDenied")}
    assert denied == {(f"{box.home}/.npm/_cacache{end}", "not in the view") for end in ("", "/tmp")}


def test_refusals_are_told_without_an_events_file(box: Box) -> None:
    done = box.run("--", "sh", "-c", "mkdir .vscode .idea; true")
    assert "refused 2 (2 paths)" in done.stderr and ".vscode" in done.stderr


def _tracer(supervisor: int) -> int:
    """Of the supervisor's children the one without children: the launcher has pid 1 of the sandbox."""

    def children(pid: int) -> list[int]:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    [found] = [pid for pid in children(supervisor) if not children(pid)]
    return found


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


OUTER = """
import os, sys
from membrane.host import syscalls as sc
# A filter with a listener, as a tracer around us has it; it asks about a call that nobody makes (acct(2)).
number = 163 if sc.MACHINE == "x86_64" else 89
import struct
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000))
sc.no_new_privs()
listener = sc.seccomp_set_filter(b"".join(struct.pack("<HBBI", *row) for row in rows), 8)
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_below_another_tracer_the_run_goes_on_and_says_what_it_lacks(box: Box) -> None:
    argv = [sys.executable, "-c", OUTER, *box.argv(f"--events={box.events_path}")]
    done = box.outside(*argv, "--", "sh", "-c", "mkdir .vscode; echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n") and "EBUSY" in done.stderr
    assert box.events()[0]["trace_source"] == "network"
    assert not (box.workspace / ".vscode").exists()  # the guard holds
    box.allow(trace={"mode": "required"})
    done = box.outside(*argv, "--", "touch", "ran")
    assert done.returncode == 78 and "EBUSY" in done.stderr and not (box.workspace / "ran").exists()


def test_a_command_that_wants_notifications_itself_goes_on(box: Box) -> None:
    """EBUSY, which container tools know as a kernel without the feature."""
    code = (
        "import ctypes, errno, struct, os\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "p = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))\n"
        "f = struct.pack('<HxxxxxxQ', 1, ctypes.addressof(p))\n"
        "n = 317 if os.uname().machine == 'x86_64' else 277\n"
        "assert c.prctl(38, 1, 0, 0, 0) == 0\n"
        "print(c.syscall(n, 1, 8, f), errno.errorcode[ctypes.get_errno()])\n"
        "print(c.syscall(n, 1, 0, f))\n"
    )
    assert run(box, PYTHON, "-c", code).stdout == "-1 EBUSY\n0\n"


def test_a_program_that_only_may_be_executed_is_seen(box: Box) -> None:
    shutil.copy("/bin/mkdir", box.workspace / "tool")
    os.chmod(box.workspace / "tool", 0o111)
    run(box, "./tool", "made")
    assert "made" in written(box)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_dead_tracer_ends_the_command(box: Box, number: int) -> None:
    process = box.popen("--", "sh", "-c", "echo x > ready; while :; do :; done", stderr=subprocess.PIPE)
    try:
        _wait_for(box.workspace / "ready")
        os.kill(_tracer(process.pid), number)
        _out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 125
    assert b"the tracer died; the command was killed" in err


CHROOT = """
import os
for where in ("before", "after"):
    for name in (f"{where}-plain", ".vscode"):
        try:
            os.mkdir(("" if where == "before" else "/") + name)
            print(where, name, "made", flush=True)
        except OSError as error:
            print(where, name, error.strerror, flush=True)
    if where == "before":
        os.chroot(".")
"""


@pytest.mark.as_user
def test_a_root_of_its_own_hides_no_path(box: Box) -> None:
    """With namespaces of users a command may call chroot(2): what it names then is judged and told as what it is."""
    box.allow(user_namespaces="allowed")
    done = box.run(f"--events={box.events_path}", "-q", "--", "unshare", "-r", "/usr/bin/python3", "-S", "-c", CHROOT)
    assert done.stdout.splitlines() == [
        "before before-plain made",  # the control
        "before .vscode Permission denied",
        "after after-plain made",
        "after .vscode Permission denied",
    ], done
    made = {event["path"]: event["result"] for event in box.events("FileCreated")}
    assert made[f"{box.workspace}/before-plain"] == made[f"{box.workspace}/after-plain"] == ""
    assert made[f"{box.workspace}/.vscode"] == "EACCES"
    assert not any(path.startswith(("/after", "/.vscode")) for path in made)


LOOKUP = "import pwd\ntry: pwd.getpwnam('nobody-of-that-name')\nexcept KeyError: print('none')"
# The same arguments as glibc's, from the program itself.
OWN = (
    "import socket\ntry: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)\n"
    "except OSError as error: print(error.errno)"
)


@pytest.mark.needs_kernel("x86_64, on whose stack callers are found")
def test_the_socket_for_nscd_is_on_the_record_and_not_in_the_summary(box: Box) -> None:
    box.allow(view="host", files={"allow_write": ["."]})
    done = run(box, PYTHON, "-c", LOOKUP)
    assert done.stdout == "none\n" and "refused" not in done.stderr, done.stderr
    told = {event["reason"] for event in box.events("AccessDenied")}
    assert told == {"name service cache"}, told


@pytest.mark.needs_kernel("x86_64, on whose stack callers are found")
def test_a_program_that_wants_such_a_socket_is_in_the_summary(box: Box) -> None:
    box.allow(view="host", files={"allow_write": ["."]})
    done = run(box, PYTHON, "-c", f"{LOOKUP}\n{OWN}")
    assert done.stdout == "none\n1\n" and "socket   EPERM" in done.stderr, done.stderr
    told = [event["reason"] for event in box.events("AccessDenied")]  # the library asks more than once
    assert set(told) == {"name service cache", "EPERM"} and told.count("EPERM") == 1, told
