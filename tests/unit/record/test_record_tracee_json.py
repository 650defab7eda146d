"""Tracee's JSON: the recipe of the first Membrane's README works on it unchanged."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from membrane.record import recorded
from membrane.record.formats import otlp, tracee_json
from membrane.record.recorded import Recorded

# As published, https://noperator.dev/posts/membrane/ (only the file name became stdin).
RECIPE = """
sort_by(.timestamp) |
(map(select(.processName == "gosu")) | last | .timestamp) as $t |
.[] | select(.timestamp > $t) |
if .eventName == "sched_process_exec" then
"exec \\(.processName): \\(.args[] | select(.name == "argv") | .value | join(" "))"
elif .eventName == "net_packet_dns" and ((.args[] | select(.name == "metadata") | .value.direction) == 2) then
"dns \\(.processName) → \\(.args[] | select(.name == "proto_dns") | .value.questions[0] | "\\(.name) \\(.type)")"
elif .eventName == "security_file_open" then
"file \\(.processName): \\(.args[] | select(.name == "flags") | .value) \\(.args[] | select(.name == "pathname") | .value)"
elif .eventName == "security_socket_connect" then
"conn \\(.processName): \\(.args[] | select(.name == "remote_addr") | .value | "\\(.sa_family) \\(.sin_addr // .sin6_addr // .sun_path):\\(.sin_port // .sin6_port // "")")"
else empty end
"""  # noqa: E501
CURL = {"pid": 11, "start": 110, "name": "curl", "exe": "/usr/bin/curl"}
_count = iter(range(1, 10_000))


def event(kind: str, process: Any = CURL, /, **fields: Any) -> Recorded:
    stamp = f"2026-01-02T03:04:05.{next(_count):06}Z"
    head = {"time": stamp, "session": "s", "seq": 1, "event": kind, "source": "ebpf", "process": process}
    return recorded.parse({**head, **fields})


def run_jq(events: list[Recorded]) -> list[str]:
    text = "".join(json.dumps(line) + "\n" for line in tracee_json.convert(events))
    done = subprocess.run(["jq", "-rs", RECIPE], input=text, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


TRACED = event("SessionStarted", None, command=["x"], workspace="/w", trace_source="ebpf, network")


@pytest.mark.needs_tool("jq")
def test_the_recipe_prints_exec_dns_file_and_conn_lines() -> None:
    events = [
        TRACED,
        event("ProcessStarted", parent=1, argv=["curl", "-s", "h.example"], cwd="/w", path="/usr/bin/curl", result=""),
        event("NameResolved", None, name="h.example", type="A", verdict="allow", address="198.18.0.16"),
        event("SocketCalled", call="connect", family="inet", address="198.18.0.16", port=443, result=""),
        event("SocketCalled", call="connect", family="inet6", address="2001:db8::1", port=80, result="EINPROGRESS"),
        event("SocketCalled", call="connect", family="unix", address="/run/x.sock", port=0, result=""),
        event("ConnectionOpened", None, id=1, protocol="tls", host="h.example", address="203.0.113.9", port=443),
        event("FileOpened", path="/w/out.html", flags=["wronly", "creat", "trunc"], result=""),
        event("FileOpened", path="/etc/shadow", flags=["rdonly"], result="EACCES"),
        event("ProcessStarted", parent=1, argv=["nope"], cwd="/w", path="/nope", result="ENOENT"),
        event("FileRemoved", path="/w/out.html", result=""),
    ]
    assert run_jq(events) == [
        "exec curl: curl -s h.example",
        "dns  → h.example A",
        "conn curl: AF_INET 198.18.0.16:443",
        "conn curl: AF_INET6 2001:db8::1:80",
        "conn curl: AF_UNIX /run/x.sock:",
        "file curl: 577 /w/out.html",
    ]


@pytest.mark.needs_tool("jq")
def test_without_a_tracer_it_prints_what_is_known() -> None:
    events = [
        event("SessionStarted", None, command=["/bin/sh", "-c", "x"], workspace="/w", trace_source="network"),
        event("NameResolved", None, name="h.example", type="AAAA", verdict="allow", address="fd00::1"),
        event("ConnectionOpened", None, id=1, protocol="tls", host="h.example", address="203.0.113.9", port=443),
        event("AccessDenied", None, access={"kind": "NameQuery", "name": "no.example", "type": "A"}, reason="x"),
    ]
    assert run_jq(events) == [
        "exec sh: /bin/sh -c x",
        "dns  → h.example AAAA",
        "conn : AF_INET 203.0.113.9:443",
        "dns  → no.example A",
    ]


def converted(*events: Recorded) -> list[dict[str, Any]]:
    return list(tracee_json.convert([TRACED, *events]))


def test_what_was_refused_is_the_system_call_with_its_error() -> None:
    [opened] = converted(event("FileOpened", path="/etc/shadow", flags=["rdonly"], result="EACCES"))
    assert (opened["eventName"], opened["returnValue"], opened["denied"]) == ("openat", -13, True)
    [missing] = converted(event("FileOpened", path="/nope", flags=["rdonly"], result="ENOENT"))
    assert (missing["eventName"], missing["returnValue"]) == ("openat", -2)
    assert "denied" not in missing
    [call] = converted(event("SocketCalled", call="bind", family="inet", address="0.0.0.0", port=80, result="EPERM"))
    assert (call["eventName"], call["returnValue"]) == ("bind", -1)


def test_the_shape_is_tracees() -> None:
    [line] = converted(event("FileRenamed", path="/a", to="/b", result="", requested=True))
    assert line["timestamp"] == recorded.nanoseconds("2026-01-02T03:04:05Z") + (line["timestamp"] % 1_000_000_000)
    assert isinstance(line["eventId"], str)
    assert line["argsNum"] == len(line["args"]) == 2
    assert line["args"][0] == {"name": "old_path", "type": "string", "value": "/a"}
    assert (line["processId"], line["hostProcessId"], line["containerId"]) == (11, 11, "s")
    assert line["requested"] is True
    answers = converted(event("NameResolved", None, name="h", type="A", verdict="allow", address="198.18.0.1"))
    assert [each["args"][4]["value"]["direction"] for each in answers] == [2, 1]


@pytest.mark.parametrize("name", ["make", "exec", "dns", "connect", "_init__", "on_dns", "convert"])
def test_the_name_of_an_event_is_no_name_of_ours(name: str) -> None:
    """A broken process chooses it; ``dns`` ended the export when handlers were found by it alone."""
    assert converted(event(name, path="/x")) == []


def test_ocsf_and_otlp() -> None:
    denied = event(
        "AccessDenied",
        None,
        access={"kind": "Connect", "host": "h", "address": "", "port": 9},
        reason="port not allowed",
    )
    started = event("ProcessStarted", parent=1, argv=["curl", "h"], cwd="/w", path="/usr/bin/curl", result="")
    [refusal, process] = list(otlp.ocsf([denied, started]))
    assert (refusal["class_uid"], refusal["type_uid"], refusal["disposition_id"]) == (4001, 400101, 2)
    assert refusal["dst_endpoint"] == {"hostname": "h", "ip": "", "port": 9}
    assert (process["class_uid"], process["process"]["cmd_line"]) == (1007, "curl h")
    assert process["unmapped"] == started.data
    [log] = list(otlp.otlp([denied]))
    [resource] = log["resourceLogs"]
    [found] = resource["scopeLogs"][0]["logRecords"]
    assert (found["severityText"], json.loads(found["body"]["stringValue"])) == ("WARN", denied.data)
    assert found["timeUnixNano"] == str(recorded.nanoseconds(denied.time))


def test_changed_modes_owners_and_attributes_keep_the_names_of_their_calls() -> None:
    events = [
        event("FileChanged", path="/w/f", change="mode", value="0755", result=""),
        event("FileChanged", path="/w/f", change="owner", value=":13", result="EPERM"),
        event("FileChanged", path="/w/f", change="attribute", value="user.x", result=""),
        event("FileChanged", path="/w/f", change="attribute removed", value="user.x", result=""),
        event("FileChanged", path="/w/f", change="mode", value="\\u{1b}", result=""),
    ]
    lines = list(tracee_json.convert(events))
    assert [(line["eventName"], line["returnValue"], line.get("denied", False)) for line in lines] == [
        ("fchmodat", 0, False),
        ("fchownat", -1, True),
        ("setxattr", 0, False),
        ("removexattr", 0, False),
        ("fchmodat", 0, False),
    ]
    values = [{each["name"]: each["value"] for each in line["args"]} for line in lines]
    assert values[:2] == [{"pathname": "/w/f", "mode": 0o755}, {"pathname": "/w/f", "owner": -1, "group": 13}]
    assert values[2] == {"path": "/w/f", "name": "user.x"}
