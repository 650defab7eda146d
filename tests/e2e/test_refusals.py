"""Each refusal of the network leaves an event that says who: also for a caller without eBPF."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from world import names
from world.box import Box

from membrane.record import coverage

OTHER4, OTHER6 = names.address("echo.test"), names.address("echo.test", 6)
TRIES = """
import json, socket, sys, time
FASTOPEN = 0x20000000
echo4, echo6 = sys.argv[1:3]
told = {}
def attempt(name, call):
    try:
        call()
        told[name] = ""
    except OSError as error:
        told[name] = error.errno
def udp(family=socket.AF_INET, protocol=0):
    return socket.socket(family, socket.SOCK_DGRAM, protocol)
one, two, six, connected, group, fast = udp(), udp(), udp(socket.AF_INET6), udp(), udp(), socket.socket()
attempt("name", lambda: socket.gethostbyname("example.com"))  # the gateway runs from here on
attempt("sendto", lambda: one.sendto(b"x", (echo4, 123)))
attempt("sendmsg", lambda: (two.sendto(b"x", ("127.0.0.1", 9)), two.sendmsg([b"x"], [], 0, (echo4, 124))))
attempt("sendto6", lambda: six.sendto(b"x", (echo6, 125)))
attempt("send", lambda: (connected.connect((echo4, 126)), connected.send(b"x")))
attempt("icmp", lambda: udp(protocol=socket.IPPROTO_ICMP).sendto(b"\\x08" + bytes(7), (echo4, 0)))
attempt("broadcast", lambda: (group.setsockopt(1, 6, 1), group.sendto(b"x", ("255.255.255.255", 5353))))  # SO_BROADCAST
attempt("fast", lambda: fast.sendto(b"x", FASTOPEN, (echo4, 80)))
attempt("name", lambda: socket.gethostbyname("example.com"))  # answered after it has seen what came before
print(json.dumps(told))
"""
PERMISSION = 1  # EPERM


def refused(box: Box) -> dict[tuple[str, int, str], dict[str, Any]]:
    """The network's refusals as ``trace show`` gives them, by address, port and protocol."""
    shown = box.run("trace", "show", "--json", "--kind", "access").stdout.splitlines()
    events = [event for event in map(json.loads, shown) if event["source"] == "network"]
    return {(e["access"]["address"], e["access"]["port"], e["access"]["protocol"]): e for e in events}


def test_every_refused_packet_is_told_with_who_sent_it(box: Box) -> None:
    control = json.loads(box.outside("python3", "-S", "-c", TRIES, OTHER4, OTHER6).stdout)
    assert control["sendto"] == control["sendmsg"] == control["sendto6"] == control["send"] == ""
    box.allow("example.com")
    done = box.run("-q", "--", "python3", "-S", "-c", TRIES, OTHER4, OTHER6)
    told = json.loads(done.stdout)
    kinds = ("sendto", "sendmsg", "sendto6", "send", "icmp", "broadcast")
    assert {name: told[name] for name in kinds} == dict.fromkeys(kinds, PERMISSION), told
    found = refused(box)
    assert set(found) == {
        (OTHER4, 123, "udp"),
        (OTHER4, 124, "udp"),
        (OTHER6, 125, "udp"),
        (OTHER4, 126, "udp"),
        (OTHER4, 0, "icmp"),
        ("255.255.255.255", 5353, "udp"),
        (OTHER4, 80, "tcp"),
    }
    assert {key: event["reason"] for key, event in found.items() if "relayed" in event["reason"]} == {
        (OTHER4, 0, "icmp"): "protocol not relayed",
        ("255.255.255.255", 5353, "udp"): "protocol not relayed",
    }
    nobody = [key for key, event in found.items() if (event["process"] or {}).get("name") != "python3"]
    assert nobody == []
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert summary["gaps"] == []


def test_what_is_carried_leaves_no_refusal(box: Box) -> None:
    """Its own loopback, a group of its own, an opened port, an allowed name: the rules copy only what they reject."""
    box.allow({"dest": "echo.test", "ports": ["5000/udp"]})
    script = """
import socket
inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inside.bind(("127.0.0.1", 0))
inside.sendto(b"x", inside.getsockname())
group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group.bind(("", 5353))
group.settimeout(60)
group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + bytes(4))
inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inside.sendto(b"who is there", ("224.0.0.251", 5353))
print(group.recv(20).decode())
outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
outside.settimeout(60)
outside.sendto(b"hello", (socket.gethostbyname("echo.test"), 5000))
print(outside.recv(9).decode())
"""
    done = box.run("-q", "--", "python3", "-S", "-c", script)
    assert done.stdout == "who is there\nhello\n", done
    assert refused(box) == {}
    shown = box.run("trace", "show", "--json", "--kind", "dns").stdout.splitlines()
    assert {json.loads(line)["process"]["name"] for line in shown} == {"python3"}


@pytest.mark.floods
def test_a_flood_of_refusals_is_counted(box: Box) -> None:
    """Exactly, though copies find no room: the kernel counts what it drops."""
    script = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(20000):
    try:
        sender.sendmsg([b"x"], [], 0, (sys.argv[1], 123))
    except PermissionError:
        pass
    else:
        sys.exit("sent")
"""
    done = box.run("-q", f"--events={box.events_path}", "--", "python3", "-S", "-c", script, OTHER4)
    assert done.returncode == 0, done
    told = sum(event["count"] for event in box.events("AccessDenied") if event["source"] == "network")
    lost = [event["count"] for event in box.events("EventsLost") if event["kind"] == "AccessDenied"]
    assert told + sum(lost) == 20000 and lost, (told, lost)


@pytest.mark.parametrize("how", ["descriptor", "memory"])
def test_a_program_that_is_executed_by_its_descriptor_is_one_program(box: Box, how: str) -> None:
    script = """
import os, sys
if sys.argv[1] == "memory":
    program = os.memfd_create("program")
    os.write(program, open("/bin/true", "rb").read())
else:
    program = os.open("/bin/true", os.O_RDONLY)
os.execve(program, ["true", "mark"], {})
"""
    assert box.run("-q", "--", "python3", "-S", "-c", script, how).returncode == 0
    shown = box.run("trace", "show", "--json", "--kind", "exec").stdout.splitlines()
    assert len([line for line in shown if json.loads(line)["argv"] == ["true", "mark"]]) == 1
    programs = json.loads(box.run("trace", "summary", "--json").stdout)["programs"]
    name = "/usr/bin/true" if how == "descriptor" else "/memfd:program (deleted)"
    assert [row["count"] for row in programs if row["path"] in (name, "/bin/true")] == [1], programs


RAW = """
import socket
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (socket.IPPROTO_ICMP, socket.IPPROTO_UDP, 255):
        try:
            socket.socket(family, socket.SOCK_RAW, protocol)
            print("made")
        except OSError as error:
            print(error.errno)
"""


@pytest.mark.as_root
def test_control_a_raw_socket(box: Box) -> None:
    assert box.outside("python3", "-S", "-c", RAW).stdout.split() == ["made"] * 6


@pytest.mark.parametrize("options", [[], ["--no-trace"]])
def test_a_refused_raw_socket_is_told(box: Box, options: list[str]) -> None:
    """EPERM with and without a tracer; with one the record says who asked."""
    done = box.run("-q", *options, "--", "python3", "-S", "-c", RAW)
    assert done.stdout.split() == [str(PERMISSION)] * 6, done
    if options:
        return
    shown = map(json.loads, box.run("trace", "show", "--json", "--kind", "access").stdout.splitlines())
    told = [e for e in shown if e["access"] == {"kind": "SystemCall", "name": "socket"}]
    assert sum(event["count"] for event in told) == 6
    assert {(event["reason"], event["process"]["name"]) for event in told} == {("EPERM", "python3")}


def test_the_receipt_says_which_walls_are_silent(box: Box) -> None:
    """In ``SessionStarted``, in the summary, and before a run in its plan; without a tracer more of them are."""
    said = {}
    for options in ([], ["--no-trace"]):
        assert box.run("-q", *options, f"--events={box.events_path}", "--", "true").returncode == 0
        started = box.events("SessionStarted")[-1]
        (quiet,) = [each["mechanism"] for each in started["assurance"] if each["rule"] == "refusals without an event"]
        said[bool(options)] = set(quiet.split("; "))
    assert said[False] < said[True] and "raw sockets" in said[True] - said[False]
    assert set(json.loads(box.run("trace", "summary", "--json").stdout)["silent"]) == said[False]
    assert "refusals without an event: " in box.run("trace", "summary").stdout
    assert "no event of a refusal with notify" in box.run("plan", "--", "true").stdout


@pytest.mark.parametrize("full", [False, True])
def test_a_read_of_a_hidden_file_is_told_or_said_to_be_silent(box: Box, full: bool) -> None:
    """What the receipt says holds: for each kind of refused read, an event or its name among the silent ones."""
    box.allow("example.com", ignore=["hidden", "tracked"], trace={"mode": "full" if full else "auto"})
    (box.workspace / "hidden").write_text("x")
    (box.workspace / "tracked").write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=box.workspace, check=True)
    subprocess.run(["git", "add", "tracked"], cwd=box.workspace, check=True)
    absent = box.home / ".ssh" / "id_rsa"
    script = f"cat hidden; cat tracked; cat {absent}; echo x >> {absent}"
    done = box.run("-q", "--", "sh", "-c", script)
    assert "Permission denied" in done.stderr
    silent = json.loads(box.run("trace", "summary", "--json").stdout)["silent"]
    shown = [json.loads(line) for line in box.run("trace", "show", "--json", "--denied").stdout.splitlines()]
    (hidden,) = [e for e in shown if e.get("access", {}).get("path") == "hidden"]
    assert hidden["reason"] == "hidden" and coverage.FIRST_READS not in silent
    tracked = [e for e in shown if (e.get("path") or e["access"].get("path", "")).endswith("tracked")]
    assert bool(tracked) == ("other reads of hidden files and directories" not in silent), (silent, shown)
    reads = [e for e in shown if e.get("access", {}).get("path") == str(absent) and e["access"]["operation"] == "read"]
    assert bool(reads) == ("reads of what is not in the view" not in silent), (silent, shown)
    writes = [
        e for e in shown if e.get("access", {}).get("path") == str(absent) and e["access"]["operation"] == "write"
    ]
    assert writes and "writes to what is not in the view" not in silent


def test_what_fails_outside_as_well_is_no_refusal(box: Box) -> None:
    """A file of the command's own that nobody may execute, in its scratch and its home, and a path that is empty."""
    script = """
import os
def fails(call, *path):
    try:
        call(*path)
    except OSError as error:
        return type(error).__name__
told = []
for place in ("/tmp", os.path.expanduser("~")):
    os.chdir(place)
    with open("closed", "w") as file: os.fchmod(file.fileno(), 0)
    told.append(fails(os.execv, f"{place}/closed", ["x"]))
    for call in (os.unlink, os.mkdir, os.rmdir): told.append(fails(call, ""))
    told += [fails(os.rename, "", "x"), fails(os.execv, "", ["x"]), fails(os.execv, HIDDEN, ["x"])]
print(*told)
"""
    hidden = box.home / "hidden"
    hidden.write_text("x")
    told = box.run("-q", "--", "python3", "-c", f"HIDDEN = {str(hidden)!r}\n{script}").stdout.split()
    expected = ["PermissionError", *["FileNotFoundError"] * 6]
    assert told == [*expected, *expected]
    shown = [json.loads(line) for line in box.run("trace", "show", "--json", "--denied").stdout.splitlines()]
    denied = [event["access"]["path"] for event in shown if event["event"] == "AccessDenied"]
    assert set(denied) == {str(hidden)}, shown  # the control: what the host has is told
