"""What a run tells of a held secret, wherever in a request the command puts its placeholder: nothing."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from world.box import Box
from world.inspected import denied, network_process, no_crash, requests, run

STREAM = "https://stream.test:8444"
PLAIN = "http://stream.test:8080"
TOKEN = "sk-ant-REALa1b2c3d4e5f6g7h8i9"

# The interpreter reads the placeholder from its environment: no argument vector of the script has it.
ASK = """
import base64, os, re, socket, ssl, sys
from urllib.parse import quote

key = os.environ["API_KEY"]
escaped = "".join("%%%02X" % byte for byte in key.encode())
host, port = "stream.test:8444", 8444

def ask(head, name="stream.test", port=8444):
    link = ssl.create_default_context().wrap_socket(socket.create_connection((name, port)), server_hostname=name)
    with link:
        link.sendall(f"{head}\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        answer = b""
        while part := link.recv(65536):
            answer += part
    print(answer.split()[1].decode())

ask("GET /v1/plain HTTP/1.1")
for path in (
    f"/v1/{key}", f"/v1/{key.upper()}/x", f"/v1/{escaped}", f"/v1/{escaped.replace('%', '%25')}", f"/v2/{key}",
    f"/v1/{base64.b64encode(key.encode()).decode()}", f"/v1/https://user:{key}@other.test/x", f"/v1/x;sid={key}",
    f"/v1/" + "a" * 1000 + key, f"https://{key}:{key}@{host}/v1/x", f"https://{key}.test/v1/x", f"/v1/x?{key}",
    f"/v1/../../{key}",
):
    ask(f"GET {path} HTTP/1.1")
ask(f"{key} /v1/x HTTP/1.1")
ask(f"GET /v1/x HTTP/1.1\\r\\n{key}: {key}")
ask(f"GET /v1/x HTTP/1.1\\r\\nx-other: {escaped}")
for name in (f"{key}.test", f"{key}.stream.test", f"a-{key.lower()}.example.com"):
    try:
        socket.getaddrinfo(name, 443)
    except OSError:
        print("no name")
"""


@pytest.mark.parametrize("full", [False, True])
def test_a_held_secret_is_in_no_event(box: Box, full: bool) -> None:
    secret = {"name": "API_KEY", "from": "env:REAL", "to": [f"{STREAM}/v1/"], "header": "x-api-key"}
    rule = {"dest": f"{STREAM}/v1/", "http": [{"methods": ["GET"]}]}
    box.allow(rule, secrets=[secret], **({"trace": {"http": "full"}} if full else {}))
    shown = run(box, "printenv", "API_KEY", env={"REAL": TOKEN})
    done = run(box, "python3", "-c", "import os; print(os.environ['API_KEY'])\n" + ASK, env={"REAL": TOKEN})
    placeholder, first, *others = done.stdout.split("\n")
    assert shown.stdout.startswith("sk-ant-") and placeholder.startswith("sk-ant-"), done
    assert first == "200" and others.count("403") > 5, done  # what is not quite the placeholder may pass
    assert others.count("no name") == 3, done
    told = box.events_path.read_text() + done.stderr + shown.stderr
    told += "".join(path.read_text(errors="replace") for path in box.state.rglob("*") if path.is_file())
    for text in (placeholder, TOKEN):
        assert text.lower() not in told.lower()
        assert text.lower().encode().hex("%") not in told.lower()
    assert "[redacted]" in told and "secret not for this place" in denied(box)
    assert ("GET", "/v1/plain", 200, "allow") in requests(box)  # positive control: what is no secret is told
    assert ("GET", "/v1/[redacted]", 403, "deny") in requests(box)
    assert any("[redacted].example.com" in str(event["access"]) for event in box.events("AccessDenied"))
    no_crash(box)


def test_tokens_in_paths_are_not_told(box: Box) -> None:
    """Also those of nobody's rule: a bot's token, a web hook, the password of a URL."""
    bot, user = "bot123456789:" + "Aa1_" * 9, "joe:hunter2"
    box.allow({"dest": f"{PLAIN}/", "http": [{"methods": ["GET"], "paths": ["/a/**"]}]})
    script = f"for path in /a/{bot}/x /b/{bot}/x /a/http://{user}@h/ /a/ghp_{'A1b2' * 9} /a/bottom:1; do\n"
    script += f"curl -sS -o /dev/null -w '%{{http_code}} ' {PLAIN}$path; done"
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == ["200", "403", "200", "200", "200"], done
    seen = [path for _method, path, _status, _verdict in requests(box)]
    redacted = "[redacted]"
    assert seen == [f"/a/{redacted}/x", f"/b/{redacted}/x", f"/a/http:/{redacted}@h/", f"/a/{redacted}", "/a/bottom:1"]
    (refused,) = box.events("AccessDenied")
    assert refused["access"]["path"] == f"/b/{redacted}/x"
    for text in (bot, "hunter2", "ghp_A1b2"):
        network = [event for event in box.events() if event["source"] in ("network", "session")]
        assert text not in str([event for event in network if event["event"] != "SessionStarted"]) + done.stderr


def _descendants(pid: int) -> dict[int, str]:
    """pid: name, of the processes below ``pid``."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found[child] = Path(f"/proc/{child}/comm").read_text().strip()
            found.update(_descendants(child))
    return found


def _holds(pid: int, text: bytes) -> bool | int:
    """Is ``text`` in the writable memory of a process; the errno where that may not be read."""
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for row in maps:
                place, mode, *_rest = row.split()
                if mode.startswith("rw"):
                    first, last = (int(number, 16) for number in place.split("-"))
                    memory.seek(first)
                    if text in memory.read(last - first):
                        return True
    except OSError as error:
        return error.errno or 0
    return False


def test_no_process_of_the_sandbox_has_ever_held_the_value(box: Box, tmp_path: Path) -> None:
    """They are forked before it is read; the command's own program is another one."""
    (tmp_path / "token").write_text(TOKEN)
    secret = {"name": "API_KEY", "from": f"file:{tmp_path}/token", "to": [f"{STREAM}/v1/"], "header": "x-api-key"}
    box.allow({"dest": f"{STREAM}/v1/", "http": [{"methods": ["GET"]}]}, secrets=[secret])
    script = "echo ${#API_KEY}; read line"
    with box.popen("--", "sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"%d\n" % len(TOKEN)
        holder = network_process(process.pid)
        found = {pid: _holds(pid, TOKEN.encode()) for pid in _descendants(process.pid)}
        process.communicate(b"\n")
    assert len(found) >= 5, found  # launcher, pid 1, shell, tracer and the gateway
    if os.geteuid() == 0:
        assert found.pop(holder) is True  # positive control
        assert set(found.values()) == {False}, found
    else:
        assert found[holder] == errno.EACCES  # nobody but root looks into it
        assert [pid for pid, holds in found.items() if holds is True] == [], found
