"""What the record of real programs says: an agent, git, many runs at once.  As root by eBPF, else by notification."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from test_claude import AGENT_PATIENCE, CLAUDE, CLAUDE_ENVIRONMENT, options, path_with
from world.box import Box


def shown(box: Box, session: str = "@last") -> list[dict[str, Any]]:
    done = box.run("trace", "show", session, "--json")
    assert done.returncode == 0, done.stderr
    assert "incomplete" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def summary(box: Box, session: str = "@last") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(box.run("trace", "summary", session, "--json").stdout)
    return data


@pytest.mark.needs_tool("claude")
def test_the_record_of_an_agent(box: Box) -> None:
    """The tool call's process, the file that it made, the model's API with method and path, and the refused host."""
    box.allow({"dest": "http://messages.test:8787", "http": [{"methods": ["POST"], "paths": ["/v1/messages"]}]})
    environment = {**CLAUDE_ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://messages.test:8787"}
    done = box.run(
        "--no-profile", *options(environment), "--", *CLAUDE, env=path_with("claude"), timeout=AGENT_PATIENCE
    )
    assert done.returncode == 0, done.stderr
    events = shown(box)

    def of(kind: str) -> list[dict[str, Any]]:
        return [event for event in events if event["event"] == kind]

    [made] = {
        event["process"]["pid"]
        for event in of("FileOpened")
        if event["path"].endswith("/made.txt") and "creat" in event["flags"]
    }
    tool = next(
        event
        for event in of("ProcessStarted")
        if event["process"]["pid"] == made and any("made.txt" in word for word in event["argv"])
    )
    agent = next(
        event["process"] for event in of("ProcessStarted") if "--dangerously-skip-permissions" in event["argv"]
    )
    parents = {event["process"]["pid"]: event["parent"] for event in reversed(of("ProcessStarted"))}
    above = [tool["parent"]]
    while above[-1] in parents and len(above) < 20:
        above.append(parents[above[-1]])
    assert agent["pid"] in above, (agent, above)
    requests = [event for event in of("RequestSeen") if event["verdict"] == "allow"]
    assert {(event["method"], event["host"], event["path"]) for event in requests} == {
        ("POST", "messages.test", "/v1/messages")
    }
    assert {event["process"]["pid"] for event in requests if event["process"]} == {agent["pid"]}
    refused = [event for event in of("AccessDenied") if event["access"].get("name") == "example.com"]
    assert refused and {event["process"]["name"] for event in refused} == {"curl"}
    data = summary(box)
    assert not data["gaps"]
    assert any(row["path"].endswith("/made.txt") for row in data["written"])
    assert any(row["target"] == "example.com" for row in data["refused"])
    [connection] = [row for row in data["connections"] if row["host"] == "messages.test"]
    assert connection["bytes_up"] > 1000 and connection["bytes_down"] > 100, connection


def test_the_record_of_git_clone(box: Box) -> None:
    box.allow("git.test")
    done = box.run(*box.tls, "--", "git", "clone", "-q", "https://git.test/hello.git", "hello")
    assert done.returncode == 0, done.stderr
    events = shown(box)
    programs = {os.path.basename(event["path"]) for event in events if event["event"] == "ProcessStarted"}
    assert {"git", "git-remote-http"} <= programs or {"git", "git-remote-https"} <= programs
    opened = [event for event in events if event["event"] == "ConnectionOpened"]
    called = [event for event in events if event["event"] == "SocketCalled" and event["port"] == 443]
    for connection in opened:
        assert connection["host"] == "git.test" and connection["joined"]
        assert connection["process"]["name"].startswith("git-remote")
        # One number joins both: what the data plane saw is what the tracer saw, the port or the socket.
        ours, theirs = (
            ("client_socket", "socket")
            if events[0]["trace_source"].startswith("notify")
            else ("client_port", "local_port")
        )
        assert connection[ours] and connection[ours] in {event[theirs] for event in called}, (connection, called)
    data = summary(box)
    assert not data["gaps"] and f"{box.workspace}/hello/hello.txt" in {row["path"] for row in data["written"]}


SHARED = """
import http.client, os, socket
def request(connection, path):
    connection.settimeout(60)
    client = http.client.HTTPConnection("example.com")
    client.sock = connection
    client.request("GET", path)
    response = client.getresponse()
    response.read()
    assert response.status == 200, response.status
first = socket.create_connection(("example.com", 80), 60)
child = os.fork()
if child == 0:
    request(first, "/by-child-on-the-first")
    second = socket.create_connection(("example.com", 80), 60)
    ours, theirs = socket.socketpair()
    grandchild = os.fork()
    if grandchild == 0:
        request(socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0]), "/by-grandchild-on-the-second")
        os._exit(0)
    socket.send_fds(ours, [b"x"], [second.fileno()])
    os._exit(os.waitpid(grandchild, 0)[1] != 0)
assert os.waitpid(child, 0)[1] == 0
print(os.getpid(), child)
"""


def test_a_connection_is_of_who_made_it_whoever_uses_it(box: Box) -> None:
    """Row O05: no rule depends on a process, and the record names the one that asked the kernel for the connection."""
    box.allow({"dest": "http://example.com/", "http": [{"methods": ["GET"]}]})
    done = box.run("--", "/usr/bin/python3", "-S", "-c", SHARED)
    assert done.returncode == 0, done.stderr
    parent, child = map(int, done.stdout.split())
    events = shown(box)
    opened = {event["id"]: event["process"]["pid"] for event in events if event["event"] == "ConnectionOpened"}
    assert list(opened.values()) == [parent, child]
    requests = [(event["path"], event["process"]["pid"]) for event in events if event["event"] == "RequestSeen"]
    by = {"/by-child-on-the-first": parent, "/by-grandchild-on-the-second": child}
    assert requests == list(by.items())
    assert all(event["joined"] for event in events if event["event"] == "RequestSeen")


BURST = """
import os, socket
begin, go = os.pipe()
for number in range(3):
    if not os.fork():
        os.close(go)
        os.read(begin, 1)
        for _ in range(40):
            with socket.create_connection(("example.com", 80), 60) as connection:
                port = connection.getsockname()[1]
                connection.sendall(b"HEAD / HTTP/1.0\\r\\nHost: example.com\\r\\n\\r\\n")
                while connection.recv(4096):
                    pass
            os.write(1, b"%d %d\\n" % (port, os.getpid()))
        os._exit(0)
os.close(go)
for number in range(3):
    os.wait()
"""


def test_short_connections_to_one_place_are_each_of_who_made_them(box: Box) -> None:
    """Time and place would do for one process: of three at once they name the wrong one, and a port comes too late."""
    box.allow("example.com")
    done = box.run("--", "/usr/bin/python3", "-S", "-c", BURST)
    assert done.returncode == 0, done.stderr
    made = dict(map(int, line.split()) for line in done.stdout.splitlines())
    events = shown(box)
    opened = [event for event in events if event["event"] == "ConnectionOpened" and event["port"] == 80]
    assert {event["client_port"]: event["process"]["pid"] for event in opened} == made
    assert len(opened) == 120 and len(set(made.values())) == 3


REFUSED = """
import os, socket
for child in range(3):
    if not os.fork():
        for number in range(12):
            name = f"n{child}-{number}.example.net"
            try:
                socket.getaddrinfo(name, 443)
            except OSError:
                os.write(1, f"{name} {os.getpid()}\\n".encode())
            address = f"203.0.113.{20 * child + number + 1}"
            with socket.socket() as connection:
                try:  # the reset may be there before any of these calls
                    connection.connect((address, 443))
                    connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass
            os.write(1, f"{address} {os.getpid()}\\n".encode())
        os._exit(0)
for child in range(3):
    os.wait()
"""


def test_refusals_are_each_of_who_was_refused(box: Box) -> None:
    """Three processes at once: who called last is somebody else as often as not."""
    box.allow("example.com")
    done = box.run("--", "/usr/bin/python3", "-S", "-c", REFUSED)
    assert done.returncode == 0, done.stderr
    tried = {target: int(pid) for target, pid in (line.split() for line in done.stdout.splitlines())}
    refused = [event for event in shown(box) if event["event"] == "AccessDenied"]
    told = {
        event["access"].get("name") or event["access"]["address"]: event["process"]["pid"]
        for event in refused
        if event["access"]["kind"] in ("NameQuery", "Connect")
    }
    assert told == tried and len(set(tried.values())) == 3


SWAPPED = """
import os, socket, threading
for _ in range(60):
    decoy, real = socket.socket(), socket.socket()
    hot = os.dup(decoy.fileno())
    done = threading.Event()
    def swap():
        while not done.is_set():
            os.dup2(real.fileno(), hot)
            os.dup2(decoy.fileno(), hot)
    thread = threading.Thread(target=swap)
    thread.start()
    handle = socket.socket(fileno=hot)
    handle.settimeout(None)
    try:
        handle.connect((HOST, 80))
    except OSError:
        pass
    done.set()
    thread.join()
    for each in (decoy, real, handle):
        each.close()
"""


def test_descriptors_that_are_swapped_during_connect_hide_nobody(box: Box) -> None:
    """As the agent: the tracer sees one socket, and the kernel connects another."""
    box.allow("example.com")
    program = "import socket\nHOST = socket.gethostbyname('example.com')\n" + SWAPPED
    for _ in range(10):  # the control is a race that a busy machine may let nobody win in one run
        done = box.run("--", "/usr/bin/python3", "-S", "-c", program)
        assert done.returncode == 0, done.stderr
        events = shown(box)
        opened = [event for event in events if event["event"] == "ConnectionOpened" and event["port"] == 80]
        assert opened and all(event["process"] and event["process"]["name"] == "python3" for event in opened), opened
        if not events[0]["trace_source"].startswith("notify"):
            return
        seen = {event["socket"] for event in events if event["event"] == "SocketCalled"}
        if any(event["client_socket"] not in seen for event in opened):
            return
    pytest.fail("the control: none was connected that the tracer did not see")
