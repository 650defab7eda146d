"""The end of a record is proven, not assumed: whoever sees events says that all were told, else the record says so.

Each attempt has its control: the same run with a whole end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_trace_notify import _tracer
from world import PATIENCE, names
from world.box import Box
from world.inspected import network_process

import membrane
from membrane.run import gateway
from membrane.tracer import process as tracer

SCRIPT = """
import socket, sys
client = socket.create_connection(("example.com", 80), 20)
client.sendall(b"GET /first HTTP/1.0\\r\\nHost: example.com\\r\\n\\r\\n")
while client.recv(65536):
    pass
print("up", flush=True)
sys.stdin.readline()
sys.exit(int(sys.argv[1]))
"""
SOON = 1.0  # seconds that are waited for a process which was stopped, and so never comes to its end
NO_END = f"it did not end within {SOON:g} s and was killed"
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def changed(directory: Path, module: str, before: str, after: str) -> list[str]:
    """A copy of the package in which one place reads differently; what runs it."""
    shutil.copytree(Path(membrane.__file__).parent, directory / "membrane")
    path = directory / "membrane" / module
    text = path.read_text()
    assert text.count(before) == 1, text.count(before)
    path.write_text(text.replace(before, after))
    # The gateway takes its interpreter from here: that of the virtual environment would find the original.
    program = (
        f"import os, sys; sys.path.insert(0, {str(directory)!r}); sys.executable = os.path.realpath(sys.executable); "
    )
    program += "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", program]


def soon(directory: Path, module: str, bound: float) -> list[str]:
    """The program, but that it waits ``SOON`` where ``END`` of ``module`` is a bound for slow machines."""
    return changed(directory, module, f"\nEND = {bound}  # seconds", f"\nEND = {SOON}  # seconds")


@pytest.fixture(scope="module")
def soon_for_gateway(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return soon(tmp_path_factory.mktemp("copy"), "run/gateway.py", gateway.END)


def started(box: Box, argv: list[str], *command: str) -> subprocess.Popen[bytes]:
    """``argv`` runs ``command``, which says ``up`` and reads a line."""
    run = box.world.popen(
        [*argv, f"--events={box.events_path}", "--", *command],
        cwd=box.workspace,
        env=box.environment(),
        **PIPES,
    )
    assert run.stdout
    assert run.stdout.readline() == b"up\n"
    return run


def ended(
    box: Box, argv: list[str], mode: str = "auto", *, status: int, stopped: bool
) -> tuple[subprocess.Popen[bytes], str]:
    """A run by ``argv`` whose gateway is stopped, or not, when its command ends: the run and its stderr."""
    box.allow("example.com:80", trace={"mode": mode})
    run = started(box, argv, "python3", "-c", SCRIPT, str(status))
    if stopped:
        os.kill(network_process(run.pid), signal.SIGSTOP)
    _out, errors = run.communicate(b"\n", timeout=PATIENCE)
    return run, errors.decode()


def last(box: Box) -> dict[str, Any]:
    return box.events()[-1]


def test_a_network_process_that_does_not_come_to_its_end_is_told(box: Box, soon_for_gateway: list[str]) -> None:
    """``run.gateway`` waits, kills, and says it: on stderr, in an event, in the summary, by ``verify``, in the end."""
    run, errors = ended(box, soon_for_gateway, status=3, stopped=True)
    assert run.returncode == 3
    assert f"the record is incomplete: network: {NO_END}" in errors
    (lost,) = [event for event in box.events("EventsLost") if event["cause"]]
    assert (lost["kind"], lost["count"], lost["source"]) == ("network", 0, "session")
    assert last(box)["event"] == "SessionEnded" and last(box)["exit_code"] == 3
    assert last(box)["incomplete"] == [f"network: {NO_END}"]
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert not summary["complete"]
    assert summary["gaps"] == [f"events may be missing: network: {NO_END}"]
    assert "record: INCOMPLETE" in box.run("trace", "summary").stdout
    verified = box.run("trace", "verify")
    assert verified.returncode == 1
    assert "INCOMPLETE" in verified.stdout and "missing: network: it did not end" in verified.stdout


def test_control_a_whole_end(box: Box) -> None:
    run, errors = ended(box, box.argv(), status=3, stopped=False)
    assert run.returncode == 3 and "incomplete" not in errors
    assert not box.events("EventsLost") and last(box)["incomplete"] == []
    assert len(box.events("ConnectionClosed")) == 1
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert summary["gaps"] == []
    verified = box.run("trace", "verify")
    assert (verified.returncode, verified.stdout.split()[1]) == (0, "ok")


@pytest.mark.parametrize("status", [0, 3])
def test_where_the_record_is_required_the_exit_status_says_so(
    box: Box, soon_for_gateway: list[str], status: int
) -> None:
    """Also when the command failed by itself: its status is on stderr."""
    run, errors = ended(box, soon_for_gateway, "required", status=status, stopped=True)
    assert run.returncode == 125
    assert f"trace.mode is required and the record is incomplete; the command's status was {status}" in errors
    assert last(box)["exit_code"] == 125
    run, errors = ended(box, box.argv(), "required", status=status, stopped=False)
    assert run.returncode == status and "incomplete" not in errors


def test_a_record_of_which_the_last_event_is_missing_is_not_called_whole(box: Box) -> None:
    """Files that fit their chains prove only that they are what was written."""
    assert box.run("--", "true").returncode == 0
    assert box.run("trace", "verify").returncode == 0
    (trace,) = (box.state / "trace").iterdir()
    tracer = next(path for path in trace.iterdir() if path.name in ("notify.chain", "ebpf.chain"))
    for path in trace.glob(f"{tracer.stem}*"):
        path.unlink()
    verified = box.run("trace", "verify")
    assert verified.returncode == 1 and f"{tracer.stem}: it has no files" in verified.stdout


CONNECT = """
import socket, sys
for port in map(int, sys.argv[1:]):
    try:
        with socket.create_connection(("example.com", port), 20) as client:
            client.sendall(b"GET / HTTP/1.0\\r\\nHost: example.com\\r\\n\\r\\n")
            print(client.recv(12).decode() or "closed")
    except OSError as error:
        print(type(error).__name__)
"""


def test_a_defect_in_the_network_process_is_told(box: Box, tmp_path: Path) -> None:
    """The connection is reset, the others go on; one line on stderr and one event for each."""
    box.allow("example.com:80", "example.com:443")
    head = '        """Decide about a captured connection to ``address``, and start to dial."""\n'
    line = "        if port == 443:\n            raise RuntimeError('planted: a secret of somebody')\n"
    argv = changed(tmp_path / "copy", "gateway/relay.py", head, head + line)
    command = [f"--events={box.events_path}", "--", "python3", "-c", CONNECT, "443", "80"]
    done = box.outside(*argv, *command, timeout=PATIENCE)
    assert done.returncode == 0, done
    assert done.stdout.splitlines() == ["ConnectionResetError", "HTTP/1.1 200"]
    told = [line for line in done.stderr.splitlines() if "a defect in membrane's gateway" in line]
    # A reset that is there before connect(2) was looked at makes create_connection try the other address as well.
    assert len(told) in (1, 2) and all("RuntimeError at relay.py:" in line for line in told), done.stderr
    assert "planted" not in done.stderr  # its text may quote what somebody sent
    events = box.events("DefectSeen")
    assert len(events) == len(told)
    event = events[0]
    assert (event["error"], event["count"], event["source"]) == ("RuntimeError", 1, "network")
    assert event["where"][-1].startswith("relay.py:") and event["where"][-1].endswith(" begin")
    assert len(last(box)["incomplete"]) == 1
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert any("by a defect" in gap for gap in summary["gaps"])
    box.allow("example.com:80", "example.com:443", trace={"mode": "required"})
    required = box.outside(*argv, *command, timeout=PATIENCE)
    assert required.returncode == 125 and "the command's status was 0" in required.stderr
    control = box.run(*command)
    assert control.stdout.splitlines()[1] == "HTTP/1.1 200" and "defect" not in control.stderr


def test_what_a_killed_supervisor_left_is_collected_by_the_next_run(box: Box) -> None:
    """The entries of those that live stay."""
    first, second = (box.popen("--", "sh", "-c", "echo up; read line", **PIPES) for _ in range(2))
    try:
        for run in (first, second):
            assert run.stdout
            assert run.stdout.readline() == b"up\n"
        entries = box.state / "run"
        assert len(list(entries.iterdir())) == 2
        first.kill()
        first.wait(PATIENCE)
        assert len(list(entries.iterdir())) == 2  # nobody was there to take it away
        assert box.run("--", "true").returncode == 0
        assert len(list(entries.iterdir())) == 1
        (living,) = json.loads(box.run("ps", "--json").stdout)["sessions"]
        assert living["pid"] == second.pid
        _out, errors = second.communicate(b"\n", timeout=PATIENCE)
        assert second.returncode == 0, errors
        assert not list(entries.iterdir())
    finally:
        for run in (first, second):
            run.kill()
            run.communicate()


def test_with_too_few_descriptors_a_run_says_that(box: Box) -> None:
    """A message whose descriptors found no room is cut by the kernel (MSG_CTRUNC): that is no defect of ours."""
    seen = set()
    for limit in range(6, 64):
        argv = ("prlimit", f"--nofile={limit}:{limit}", *box.argv("-q", "--", "true"))
        done = box.outside(*argv, timeout=PATIENCE)
        if done.returncode:
            assert done.returncode == 125 and "oo many open files" in done.stderr, (limit, done)
            assert "internal error" not in done.stderr and "Traceback" not in done.stderr, (limit, done)
        seen.add(done.returncode)
    assert seen == {0, 125}


LAST_ACT = """
import os, socket, sys
family, _type, _protocol, _name, address = socket.getaddrinfo(sys.argv[1], 5000, type=socket.SOCK_DGRAM)[0]
sender = socket.socket(family, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    sender.sendto(b"last act %d" % number, address)
os._exit(0)
"""


@pytest.mark.parametrize("host", ["echo.test", names.address("echo.test"), names.address("echo.test", 6)])
def test_a_datagram_as_the_last_act_arrives(box: Box, host: str) -> None:
    """Also where the gateway was not started yet, and where the name has to be looked up first."""
    box.allow({"dest": host, "ports": ["5000/udp"]})
    before = len(box.world.connections(service="udp"))
    done = box.run(f"--events={box.events_path}", "--", "python3", "-S", "-c", LAST_ACT, host, "3")
    assert done.returncode == 0, done
    (closed,) = box.events("ConnectionClosed")
    assert (closed["bytes_up"], closed["error"]) == (30, "session ended"), closed
    deadline = time.monotonic() + PATIENCE
    while len(box.world.connections(service="udp")) < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the deadline decides: the origin writes its journal when it gets to it


def test_a_refused_datagram_as_the_last_act_is_told(box: Box) -> None:
    box.allow({"dest": "echo.test", "ports": ["5000/udp"]})
    other = names.address("example.com")
    done = box.run(f"--events={box.events_path}", "--", "python3", "-S", "-c", LAST_ACT, other, "3")
    assert done.returncode == 0, done
    refused = [event for event in box.events("AccessDenied") if event["source"] == "network"]
    assert sum(event["count"] for event in refused) == 3
    assert {event["access"]["address"] for event in refused} == {other}


def test_a_network_process_that_is_killed_in_the_middle_leaves_no_whole_record(box: Box) -> None:
    box.allow("example.com:80")
    run = started(box, box.argv(), "python3", "-c", SCRIPT, "0")
    os.kill(network_process(run.pid), signal.SIGKILL)
    run.wait(timeout=PATIENCE)  # before stdin is closed, at which the command ends by itself
    _out, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 125 and b"the gateway died" in errors
    assert last(box)["incomplete"] == ["network: it was killed by signal 9"]
    assert box.run("trace", "verify").returncode == 1


def test_a_tracer_that_does_not_come_to_its_end_is_told(box: Box, tmp_path: Path) -> None:
    """It is stopped when the command ends, which makes no call that it is asked about any more."""
    argv = soon(tmp_path / "copy", "tracer/process.py", tracer.END)
    run = started(box, argv, "sh", "-c", "echo up; read line")
    os.kill(_tracer(run.pid), signal.SIGSTOP)
    _out, errors = run.communicate(b"\n", timeout=PATIENCE)
    assert run.returncode == 125 and b"the tracer ended without its last word" in errors
    (lost,) = [event for event in box.events("EventsLost") if event["cause"]]
    assert "notify" in lost["kind"] and lost["count"] == 0
    assert last(box)["incomplete"] == [f"{lost['kind']}: {lost['cause']}"]
    summary = json.loads(box.run("trace", "summary", "--json").stdout)
    assert f"events may be missing: {last(box)['incomplete'][0]}" in summary["gaps"]
    assert box.run("trace", "verify").returncode == 1
