"""What the record of real programs says, asked as a reader would: pip, a C project of Debian, a fork bomb, many runs.

As root the kernel's own events (eBPF), as anybody else the command's notifications.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

from membrane.record import joining, query, reader

PATIENCE = 300.0  # seconds: two compilers' worth of processes on a machine with other work
PYTHON = "/usr/bin/python3"
DEBIAN_SOURCE = os.environ.get("MEMBRANE_DEBIAN_SOURCE", "")  # an unpacked source package, from .ci/run


def record(box: Box, session: str = "@last", *chosen: str) -> list[dict[str, Any]]:
    done = box.run("trace", "show", session, "--json", *chosen, timeout=PATIENCE)
    assert done.returncode == 0 and "incomplete" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def whole_summary(box: Box, session: str = "@last") -> dict[str, Any]:
    """The summary of a record of which nothing is missing."""
    done = box.run("trace", "summary", session, "--json", timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    assert not data["gaps"], data["gaps"]
    assert data["complete"] == data["trace_source"].startswith("ebpf"), data["not_seen"]
    assert box.run("trace", "verify", session).returncode == 0
    return data


def programs(events: list[dict[str, Any]]) -> Counter[str]:
    """How many processes executed each program: beside a test that kills tracers an event may be told twice."""
    ran = {
        (event["process"]["pid"], event["process"]["start"], os.path.basename(event["path"]))
        for event in events
        if event["event"] == "ProcessStarted" and not event["result"]
    }
    return Counter(name for _pid, _start, name in ran)


def written(box: Box, data: dict[str, Any]) -> set[str]:
    """Names below the workspace that are there for having been written, made or renamed to."""
    at = f"{box.workspace}/"
    rows = (row for row in data["written"] if row["path"].startswith(at) and row["how"] != ["removed"])
    return {row["path"].removeprefix(at) for row in rows}


def test_pip_install_from_a_registry(box: Box) -> None:
    # pip as venv(1) brings it, run from its wheel: unpacking it takes most of a minute on a busy machine.
    [pip, *_others] = Path("/usr/share/python-wheels").glob("pip-*.whl")  # python3-venv depends on it
    assert box.outside(PYTHON, "-m", "venv", "--without-pip", "venv").returncode == 0
    install = ("venv/bin/python", f"{pip}/pip", "install", "--isolated", "-q", "--no-compile", "demo-pkg")
    done = box.run(*box.tls, "--env=PIP_DISABLE_PIP_VERSION_CHECK=1", "--", *install, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    data = whole_summary(box)
    assert data["exit_code"] == 0 and data["command"][:2] == list(install[:2])
    assert any(name.startswith("python3") for name in programs(record(box)))
    [site] = (box.workspace / "venv" / "lib").glob("python3*/site-packages")
    installed = {str(path.relative_to(box.workspace)) for path in site.rglob("*") if path.is_file()}
    assert {os.path.basename(name) for name in installed} == {"demo_pkg.py", "METADATA", "WHEEL", "RECORD", "INSTALLER", "REQUESTED"}  # fmt: skip  # noqa: E501
    assert installed <= written(box, data)
    connections = {(row["host"], row["port"]): row for row in data["connections"]}
    assert set(connections) == {("pypi.org", 443), ("files.pythonhosted.org", 443)}
    for row in connections.values():
        assert row["count"] >= 1 and row["bytes_up"] > 200 and row["bytes_down"] > 1000 and not row["errors"], row
        assert [name.startswith("python") for name in row["by"]] == [True], row
    assert not data["refused"]


@pytest.mark.needs_tool(f"{DEBIAN_SOURCE}/debian/rules")
def test_make_of_a_source_package_of_debian(box: Box) -> None:
    """Which compiler ran how often, what was made from which file, and what the build left that runs later."""
    project = box.workspace / "project"
    shutil.copytree(DEBIAN_SOURCE, project, symlinks=True)
    sources = {path.stem for path in project.glob("*.c")}
    before = {str(path.relative_to(box.workspace)) for path in project.rglob("*")}
    done = box.run("--", "make", "-s", "-j2", "-C", "project", timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    made = {str(path.relative_to(box.workspace)) for path in project.rglob("*") if path.is_file()} - before
    objects = {f"project/{name}.o" for name in sources} & made
    [program] = [name for name in made - objects if os.access(box.workspace / name, os.X_OK)]
    assert len(objects) > 5
    data = whole_summary(box)
    ran = programs(record(box))
    # One compiler and one assembler for each object, one linker for the program; gcc-12, x86_64-linux-gnu-as and so on.
    kinds = Counter({kind: sum(n for name, n in ran.items() if name.rpartition("-")[2] in names)
                     for kind, names in (("compiler", {"cc1"}), ("assembler", {"as"}), ("linker", {"collect2"}))})  # fmt: skip  # noqa: E501
    assert kinds["assembler"] == len(objects) <= kinds["compiler"] and kinds["linker"] >= 1 and ran["make"] >= 1, ran
    assert made <= written(box, data)
    events = record(box, "@last", "--kind", "exec")
    arguments = {event["process"]["pid"]: event["argv"] for event in events if not event["result"]}
    for name in objects:
        source = f"{Path(name).stem}.c"
        assert any(source in argv and any(word.endswith("cc1") for word in argv[:1]) for argv in arguments.values()), source  # fmt: skip  # noqa: E501
    opened = record(box, "@last", "--path", f"{box.workspace}/{program}")
    assert {event["process"]["name"] for event in opened} & {"ld", "collect2", "x86_64-linux-gn"}, opened
    assert not data["connections"] and not data["refused"]


def test_a_fork_bomb_under_a_limit(box: Box) -> None:
    """All that it came to is on the record: which processes there were, what each did, and the forks' end."""
    box.allow(limits={"pids": 40})
    code = """
import os, signal, sys
children, refused = [], 0
for number in range(120):
    try:
        pid = os.fork()
    except OSError as error:
        assert error.errno == 11, error  # EAGAIN
        refused += 1
        continue
    if pid == 0:
        os.close(os.open(f"f{number}", os.O_WRONLY | os.O_CREAT))
        signal.pause()
    children.append(pid)
while len([name for name in os.listdir(".") if name.startswith("f")]) < len(children):
    pass
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
os.mkdir("after")
print(refused, *children)
"""
    done = box.run("--", PYTHON, "-S", "-c", code, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    refused, *children = map(int, done.stdout.split())
    assert 10 < len(children) < 40 and refused == 120 - len(children)
    data = whole_summary(box)
    assert {f"f{number}" for number in range(len(children))} | {"after"} <= written(box, data)
    events = record(box)
    opened = {e["process"]["pid"] for e in events if e["event"] == "FileOpened" and os.path.dirname(e["path"]) == str(box.workspace)}  # fmt: skip  # noqa: E501
    assert opened == set(children)
    ended = {e["process"]["pid"]: e["signal"] for e in events if e["event"] == "ProcessExited"}
    if data["trace_source"].startswith("ebpf"):
        assert {ended[pid] for pid in children} == {9}
    assert set(children) <= set(ended)


RUNS, AT_ONCE = 100, 8
SCRIPT = """
mkdir "d$1"; echo x >"f$1"; mv "f$1" "m$1"
if [ $(($1 % 10)) = 0 ]; then curl -fsS -m 60 -o "c$1" "http://example.com/?n=$1"; fi
exit $(($1 % 7))
"""


def test_a_hundred_short_runs_at_once_have_a_whole_record_each_and_nothing_of_another(box: Box) -> None:
    """Eight at a time, in one workspace, a tenth of them with a connection."""
    box.allow("example.com:80")
    one = shlex.join(box.argv("--quiet", "--", "sh", "-c", SCRIPT, "sh"))
    numbers = " ".join(map(str, range(RUNS)))
    everything = f"printf '%s\\n' {numbers} | xargs -P {AT_ONCE} -I N {one} N"
    done = box.outside("sh", "-c", everything, timeout=PATIENCE)
    assert done.returncode in (0, 123), done  # xargs(1): 123 when a command ended with 1 to 125
    found = {}
    for entry in reader.sessions(str(box.state)):
        record = reader.Record(entry.path)
        typed = list(record.events())
        events, problems = [event.data for event in typed], record.problems
        first, last = events[0], events[-1]
        assert (first["event"], last["event"], problems, entry.running) == ("SessionStarted", "SessionEnded", [], False)
        number = int(first["command"][-1])
        found[number] = entry.id
        assert {event["session"] for event in events} == {entry.id}
        assert (last["exit_code"], last["lost"]) == (number % 7, 0)
        verified = reader.verify(entry.path)
        assert verified.closed and not verified.problems and not verified.lost, (number, verified)
        summary = query.summarise(joining.joined(typed)).data(problems)
        assert not summary["gaps"], summary["gaps"]
        wanted = {f"d{number}", f"f{number}", f"m{number}"} | ({f"c{number}"} if number % 10 == 0 else set())
        assert written(box, summary) | {f"f{number}"} == wanted, number
        ran = programs(events)
        assert ran["mkdir"] == ran["mv"] == 1 and ran["curl"] == (number % 10 == 0) and sum(ran.values()) < 6, ran
        connected = [(row["host"], row["count"], row["by"]) for row in summary["connections"]]
        assert connected == ([("example.com", 1, ["curl"])] if number % 10 == 0 else []), connected
        assert all(row["bytes_up"] and row["bytes_down"] for row in summary["connections"])
        ids = {event["process"]["pid"] for event in events if event["process"]}
        assert max(ids) < 32, ids  # numbers of this run's own pid namespace
    assert set(found) == set(range(RUNS)) and len(set(found.values())) == RUNS
    # As a person would look at one of them.
    done = box.run("trace", "verify", found[RUNS - 1])
    assert done.returncode == 0 and found[RUNS - 1] in done.stdout
