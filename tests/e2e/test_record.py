"""The record of real runs: kept by default, read by ``membrane trace``, learned from by ``membrane learn``."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

CURL = ["curl", "-fsS", "-m", "60", "-o", "out.txt"]
JQ = '.[] | select(.eventName == "%s") | .args[] | select(.name == "%s") | .value'


def shown(box: Box, *arguments: str) -> list[dict[str, Any]]:
    done = box.run("trace", "show", *arguments, "--json")
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(box: Box, name: str = "@last") -> dict[str, Any]:
    done = box.run("trace", "summary", name, "--json")
    assert done.returncode == 0, done
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def mixed_run(box: Box, *options: str) -> subprocess.CompletedProcess[str]:
    """One host that is allowed, one that is not, one protected name."""
    box.allow("example.com:80")
    script = "curl -fsS -m 20 -o out.txt http://example.com/; curl -m 20 http://refused.example/; mkdir .vscode; exit 3"
    return box.run(*options, "--", "sh", "-c", script)


def test_every_run_is_recorded_and_says_where(box: Box) -> None:
    done = mixed_run(box)
    assert done.returncode == 3
    assert "  full record: membrane trace show @last --denied" in done.stderr.splitlines()
    kinds = [event["event"] for event in shown(box, "@last")]
    assert kinds[0] == "SessionStarted"
    assert kinds[-1] == "SessionEnded"
    assert {"NameResolved", "ConnectionOpened", "ConnectionClosed", "AccessDenied", "ProcessStarted"} <= set(kinds)
    refused = shown(box, "@last", "--denied")
    targets = {event["access"].get("name") or event["access"].get("path") for event in refused if "access" in event}
    assert {"refused.example", ".vscode"} <= targets
    [entry] = list((box.state / "trace").iterdir())
    assert entry.stat().st_mode & 0o777 == 0o700
    assert box.run("trace", "verify").returncode == 0


def test_the_summary_says_where_it_connected_and_what_was_refused(box: Box) -> None:
    mixed_run(box)
    data = summary(box)
    [connection] = data["connections"]
    assert (connection["host"], connection["port"], connection["count"]) == ("example.com", 80, 1)
    assert connection["bytes_down"] > (box.workspace / "out.txt").stat().st_size > 0
    refused = {row["target"]: row for row in data["refused"]}
    assert refused["refused.example"]["allow"] == 'allow: ["refused.example:443"]'
    assert refused[".vscode"]["reason"] == "protected name"
    assert data["exit_code"] == 3
    assert data["gaps"] == []
    text = box.run("trace", "summary").stdout
    assert "example.com:80" in text
    assert "refused.example  name not allowed" in text


def test_sessions_are_listed_and_found_by_place_and_beginning(box: Box) -> None:
    box.allow()
    for word in ("first", "second"):
        assert box.run("--", "echo", word).returncode == 0
    rows = [json.loads(line) for line in box.run("trace", "list", "--json").stdout.splitlines()]
    assert [row["command"] for row in rows] == [["echo", "first"], ["echo", "second"]]
    assert [row["exit_code"] for row in rows] == [0, 0]
    assert summary(box, "@2")["command"] == ["echo", "first"]
    assert summary(box, rows[0]["id"][:10])["command"] == ["echo", "first"]
    missing = box.run("trace", "show", "@7")
    assert missing.returncode == 78
    assert "there are 2 sessions" in missing.stderr


@pytest.mark.parametrize("how", ["option", "policy"])
def test_no_trace_leaves_no_file_and_refusals_are_still_told(box: Box, how: str) -> None:
    box.allow("example.com:80", **({"trace": {"mode": "off"}} if how == "policy" else {}))
    done = box.run(*(["--no-trace"] if how == "option" else []), "--", "curl", "-m", "60", "http://refused.example/")
    assert "refused.example" in done.stderr
    assert "full record" not in done.stderr
    assert not (box.state / "trace").exists()
    both = box.run("--no-trace", "--trace-log", "x.json", "--", "true")
    assert both.returncode == 78
    assert "--trace-log" in both.stderr


@pytest.mark.needs_tool("jq")
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_trace_log_is_tracees_and_packed_only_when_its_name_says_so(box: Box, name: str) -> None:
    done = mixed_run(box, "--trace-log", name)
    assert done.returncode == 3
    data = (box.workspace / name).read_bytes()
    assert data.startswith(b"\x1f\x8b") is name.endswith(".gz")
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert sorted(path.name for path in box.workspace.iterdir() if path.name.startswith("run")) == [name]
    found = {}
    for event, argument in (("net_packet_dns", "proto_dns"), ("security_socket_connect", "remote_addr")):
        jq = subprocess.run(
            ["jq", "-sc", JQ % (event, argument)], input=text, capture_output=True, timeout=60, check=True
        )
        found[event] = [json.loads(line) for line in jq.stdout.splitlines()]
    assert {proto["questions"][0]["name"] for proto in found["net_packet_dns"]} == {"example.com", "refused.example"}
    assert "80" in {address.get("sin_port") or address.get("sin6_port") for address in found["security_socket_connect"]}


def test_a_trace_log_that_can_not_be_written_is_said_and_the_record_is_kept(box: Box) -> None:
    box.allow()
    done = box.run("--trace-log", "no/such/directory/x", "--", "true")
    assert done.returncode == 0
    assert "cannot write no/such/directory/x" in done.stderr
    assert summary(box)["exit_code"] == 0


def test_a_live_trace_log_goes_to_stderr_and_the_status_is_the_commands(box: Box) -> None:
    done = mixed_run(box, "--trace-log=-")
    assert done.returncode == 3
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert {"sched_process_exec", "net_packet_dns"} <= {line["eventName"] for line in lines}


def test_what_was_learned_lets_the_same_command_through(box: Box) -> None:
    box.allow()
    command = [*CURL, "http://example.com:80/"]
    first = box.run("learn", "-o", "learned.yaml", "--", *command)
    assert first.returncode != 0
    learned = (box.workspace / "learned.yaml").read_text()
    assert "example.com:443" in learned
    # The name alone tells no port; the second look learns it.
    box.policy("presets: []\n" + learned)
    second = box.run("learn", "--", *command)
    assert second.returncode != 0
    assert '"example.com:80"' in second.stdout
    box.policy("presets: []\n" + second.stdout)
    third = box.run("--", *command)
    assert third.returncode == 0, third
    assert (box.workspace / "out.txt").stat().st_size > 0
    merged = box.run("learn", "--from", "@last", "--from", "@2")
    assert merged.returncode == 0
    assert "from 2 runs" in merged.stdout
    assert '"example.com:80"' in merged.stdout


def test_observing_sees_methods_and_paths_and_hands_no_secret_in(box: Box) -> None:
    box.allow(env={"pass": ["SECRET_TOKEN"]})
    script = "echo token=$SECRET_TOKEN; cat ~/.ssh/id_rsa; curl -fsS -m 20 -o out.txt http://example.com/some/path?key=hidden"
    control = box.run("--", "sh", "-c", script)
    assert "token=host-secret" in control.stdout
    done = box.run("learn", "--observe", "-o", "learned.yaml", "--", "sh", "-c", script + "; true")
    assert done.returncode == 0
    assert "EVERY host" in done.stderr
    assert "token=\n" in done.stdout
    assert "PRIVATE KEY" not in done.stdout
    learned = (box.workspace / "learned.yaml").read_text()
    assert 'paths: ["/some/path"]' in learned
    assert "methods: [GET]" in learned
    assert "hidden" not in learned


def test_a_supervisor_that_is_killed_leaves_a_record_that_says_so(box: Box) -> None:
    box.allow()
    running = box.popen("--", "sh", "-c", "echo up; exec sleep 60", stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    [row] = [json.loads(line) for line in box.run("trace", "list", "--json").stdout.splitlines()]
    assert row["running"] is True
    assert "the session is still running" in summary(box)["gaps"]
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    data = summary(box)
    assert data["command"][0] == "sh"
    assert "the end of the session is missing" in data["gaps"]
    verified = box.run("trace", "verify")
    assert verified.returncode == 1
    assert "no end" in verified.stdout


def test_text_from_inside_is_plain_everywhere(box: Box) -> None:
    """A protected directory whose name holds escape codes, markup and bidi marks."""
    box.allow()
    evil = ".vscode"
    inner = "\x1b[31m<script>alert(1)</script>\u202e\n"
    script = f"""
import os
os.makedirs({inner!r})
for name in ({evil!r}, {inner!r} + "/.idea"):
    try:
        os.mkdir(name)
    except PermissionError:
        print("refused")
"""
    assert box.run("--", "python3", "-c", script).stdout == "refused\nrefused\n"
    for arguments in (("show",), ("summary",), ("list",), ("show", "--json"), ("export",), ("report", "-o", "-")):
        done = box.run("trace", arguments[0], *(["@last"] if arguments[0] != "list" else []), *arguments[1:])
        assert done.returncode == 0, done
        assert ".vscode" in done.stdout or arguments[0] in ("list", "export")
        for char in ("\x1b", "\u202e"):
            assert char not in done.stdout
    html = box.run("trace", "report", "-o", "-").stdout
    assert "<script" not in html
    assert "default-src 'none'" in html
    box.run("trace", "report", "-o", "r.html")
    assert Path(box.workspace, "r.html").read_text().rstrip().endswith("</html>")


def test_watching_prints_lines_when_it_is_no_terminal(box: Box) -> None:
    box.allow()
    running = box.popen("--", "sh", "-c", "echo up; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    watching = box.popen("trace", "watch", stdout=subprocess.PIPE)
    assert watching.stdout is not None
    assert b"SessionStarted" in watching.stdout.readline()
    running.communicate(b"go\n", timeout=60)
    rest, _ = watching.communicate(timeout=60)
    assert b"SessionEnded" in rest
    assert watching.returncode == 0


def test_old_records_make_room(box: Box) -> None:
    box.allow(trace={"keep": 2})
    for _ in range(4):
        assert box.run("--", "true").returncode == 0
    assert len(list((box.state / "trace").iterdir())) == 2
