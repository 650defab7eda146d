"""The tracer with the kernel's events (root), and without them (everybody else)."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

import membrane
from membrane.bpf import programs
from membrane.tracer import ebpf, permission, pins

PYTHON = "/usr/bin/python3"
SOURCE = str(Path(membrane.__file__).resolve().parent.parent)
for_root = pytest.mark.as_root


def shown(box: Box, *arguments: str) -> Any:
    done = box.run("trace", *arguments, "@last", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def record(box: Box, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in shown(box, "show").splitlines()]
    return [event for event in events if event["event"] == kind]


@for_root
def test_the_record_has_processes_files_results_and_refusals(box: Box) -> None:
    (box.workspace / "read-me").write_text("x")
    script = "cat read-me; echo x > file; mkdir /proc/x; mkdir .vscode; umount /tmp; exit 3"
    done = box.run(f"--events={box.events_path}", "--", "sh", "-c", script)
    assert done.returncode == 3, (done.stdout, done.stderr)
    # live, and from the record
    for events in (box.events(), [json.loads(line) for line in shown(box, "show").splitlines()]):
        by: dict[str, list[dict[str, Any]]] = {}
        for event in events:
            by.setdefault(event["event"], []).append(event)
        assert by["SessionStarted"][0]["trace_source"] == "ebpf, notify, network"
        assert {event["source"] for event in by["ProcessStarted"]} == {"ebpf"}
        # By process: beside a test that kills tracers the kernel may tell an event twice (docs/trace-ebpf.md).
        names = {event["process"]["pid"]: os.path.basename(event["path"]) for event in by["ProcessStarted"]}
        assert [*names.values()][1:] == ["cat", "mkdir", "mkdir", "umount"], names
        opened = {event["path"]: event for event in by["FileOpened"]}
        assert opened[f"{box.workspace}/read-me"]["flags"] == ["rdonly"]
        assert "creat" in opened[f"{box.workspace}/file"]["flags"]
        assert not opened[f"{box.workspace}/file"]["requested"]
        results = {event["path"]: event["result"] for event in by["FileCreated"]}
        assert results["/proc/x"] == "ENOENT" and results[f"{box.workspace}/.vscode"] == "EACCES"
        refused = {(event["access"].get("name") or event["access"].get("path")): event for event in by["AccessDenied"]}
        assert refused[".vscode"]["reason"] == "protected name" and refused[".vscode"]["process"]["name"] == "mkdir"
        assert refused["umount2"]["reason"] == "EPERM"
        assert {event["process"]["pid"] for event in by["ProcessExited"]} == set(names) and len(names) == 5
        exe = opened[f"{box.workspace}/read-me"]["process"]["exe"]
        assert os.path.basename(exe) == "cat"
    assert box.events("SessionEnded")[0]["lost"] == 0
    summary = json.loads(shown(box, "summary"))
    assert summary["complete"] and not summary["gaps"] and summary["trace_source"].startswith("ebpf")
    assert box.run("trace", "verify", "@last").returncode == 0
    assert not (box.workspace / ".vscode").exists()


@for_root
def test_what_ebpf_can_not_tell_whole_is_told_by_the_notifications(box: Box) -> None:
    code = (
        "import os, sys\n"
        "fd = os.memfd_create('innocent'); os.write(fd, open('/bin/mkdir', 'rb').read())\n"
        "if os.fork() == 0: os.execve(fd, ['mkdir', 'made'], {})\n"
        "os.wait(); os.execv('/bin/true', ['true', 'x' * 20000, 'last'])\n"
    )
    done = box.run(f"--events={box.events_path}", "--", PYTHON, "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    told = [event for event in box.events("ProcessStarted") if event["source"] == "notify"]
    assert ["memfd:innocent" in event["path"] for event in told] == [True, False]
    assert told[1]["argv"][1]["truncated"] and told[1]["argv"][2] == "last"
    [(path, exe)] = {(event["path"], event["process"]["exe"]) for event in record(box, "FileCreated")}
    assert path.endswith("/made") and exe not in ("", "/")


@for_root
def test_many_at_once_have_their_own_events(box: Box) -> None:
    code = "import os\nfor n in range(20): os.mkdir(os.environ['WHO'] + str(n))\n"
    arguments = [box.argv(f"--env=WHO={who}", "--", PYTHON, "-S", "-c", code) for who in "abcd"]
    done = box.outside("sh", "-c", " & ".join(map(shlex.join, arguments)) + "; wait")
    assert done.returncode == 0, done.stderr
    listed = [json.loads(line) for line in box.run("trace", "list", "--json").stdout.splitlines()]
    found = []
    for entry in listed:
        lines = box.run("trace", "show", entry["id"], "--json").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        found.append({os.path.basename(e["path"]) for e in events if e["event"] == "FileCreated"})
    assert sorted(map(sorted, found)) == [sorted(f"{who}{n}" for n in range(20)) for who in "abcd"]


@for_root
def test_a_tracer_that_is_killed_ends_the_command_and_leaves_nothing(box: Box) -> None:
    run = box.popen("--", "sh", "-c", "echo ready; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with run:
        assert run.stdout is not None and run.stdin is not None and run.stdout.readline() == b"ready\n"
        [tracer] = [pid for pid in children_of(run.pid) if slot_of(pid)]
        slot = slot_of(tracer)
        os.kill(tracer, signal.SIGKILL)
        assert run.wait(60) == 125
    number = struct.pack("<I", int(os.path.basename(slot)))
    with open(slot, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another test's sandbox has it by now, which emptied it first
        assert owner_of(number) == 0  # nobody can take it now
    assert box.run("--", "true").returncode == 0


def owner_of(slot: bytes) -> int:
    """Whose the slot is, as the pinned map says; 0: nobody's."""
    place = pins.SYSTEM_BPFFS if pins.is_bpffs(pins.SYSTEM_BPFFS) else f"{pins.STATE}/bpf"
    directory = os.path.join(place, "membrane" if place == pins.SYSTEM_BPFFS else "", ebpf.identity())
    slots = programs.Map(programs.reuse(f"{directory}/slots"), ebpf._specs()["slots"])
    try:
        value = slots.get(slot)
        assert value is not None
        return int(struct.unpack_from("<Q", value)[0])
    finally:
        os.close(slots.fd)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def slot_of(pid: int) -> str:
    """The slot's file that a tracer holds."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if path.startswith(f"{pins.STATE}/slots/"):
            return path
    return ""


def test_without_ebpf_the_notifications_are_used_and_the_reason_is_told(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); import membrane.tracer.ebpf as ebpf; ebpf.OBJECT = '/nowhere'; "
        "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    monkeypatch.setattr("world.box.membrane_argv", lambda: [sys.executable, "-I", "-c", code])
    for mode in ("auto", "required"):
        box.allow(trace={"mode": mode})
        assert box.run("--", "touch", "file").returncode == 0
        [started] = record(box, "SessionStarted")
        assert started["trace_source"] == "notify, network"
        [why] = [binding["mechanism"] for binding in started["assurance"] if binding["rule"] == "trace"]
        assert ("no tracing programs" if os.geteuid() == 0 else "CAP_BPF") in why
        summary = json.loads(shown(box, "summary"))
        assert not summary["complete"] and why in summary["not_seen"]


@pytest.mark.as_user
def test_a_plain_user_is_told_why(box: Box) -> None:
    assert not os.path.isdir(f"{permission.GRANTED}/{os.geteuid()}"), (
        "root gave eBPF to this user: membrane setup no-tracing"
    )
    assert box.run("--", "true").returncode == 0
    [started] = record(box, "SessionStarted")
    [why] = [binding["mechanism"] for binding in started["assurance"] if binding["rule"] == "trace"]
    assert started["trace_source"] == "notify, network" and ("CAP_BPF" in why or "no tracing programs" in why)
