"""Rules about requests, seen by ordinary clients: what passes, what is refused and how, and that nothing is held up."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from world import names
from world.box import Box
from world.inspected import denied, every, no_crash, python, requests, run, url_rule

H2 = "https://h2.test:8445"
STREAM = "https://stream.test:8444"
PLAIN = "http://stream.test:8080"
NODE = pytest.mark.needs_tool("node")  # it serves HTTP/2 here


# ---------------------------------------------------------------- clients


@NODE
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl_speaks_what_the_server_chose(box: Box, version: str) -> None:
    box.allow(url_rule(f"{H2}/v1/", "GET"))
    script = f"""
    curl -sS {version} {H2}/v1/x?a=b
    echo
    curl -sS {version} -D- {H2}/v2
    curl -sS {version} -o /dev/null -w '%{{http_code}}' -d a=b {H2}/v1/x
    """
    done = run(box, "bash", "-c", script)
    lines = done.stdout.replace("\r", "").splitlines()
    seen = json.loads(lines[0])
    assert seen == {"method": "GET", "path": "/v1/x?a=b", "version": version[6:] + ".0" * (version == "--http2"),
                    "bytes": 0}, done  # fmt: skip
    assert lines[1].split()[1] == "403"
    assert "x-membrane-verdict: deny" in lines
    body = json.loads(lines[-2])
    assert (body["error"], body["path"], body["reason"]) == ("blocked by membrane", "/v2", "path not allowed")
    assert "https://h2.test:8445/v2" in body["hint"]
    assert lines[-1] == "403"
    assert requests(box) == [
        ("GET", "/v1/x", 200, "allow"),
        ("GET", "/v2", 403, "deny"),
        ("POST", "/v1/x", 403, "deny"),
    ]
    assert denied(box) == ["path not allowed", "method not allowed"]
    protocol = "h2" if version == "--http2" else "http/1.1"
    assert {event["protocol"] for event in box.events("RequestSeen")} == {protocol}
    assert {event["protocol"] for event in box.events("ConnectionOpened")} == {protocol}
    assert all(event["query"] == "" for event in box.events("RequestSeen"))
    no_crash(box)


@NODE
def test_streams_of_one_http2_connection_are_judged_each(box: Box) -> None:
    script = """
    const session = require("http2").connect(process.argv[1]);
    const paths = ["/ok/1", "/no/1", "/ok/2", "/no/2", "/ok/bytes", "/ok/3"];
    let left = paths.length;
    const seen = {};
    for (const path of paths) {
      const stream = session.request({ ":path": path, ":method": "GET" });
      stream.on("response", (head) => { seen[path] = head[":status"]; });
      stream.resume();
      stream.on("end", () => { if (!--left) { console.log(JSON.stringify(seen)); session.close(); } });
      stream.end();
    }
    """
    box.allow(url_rule(f"{H2}/ok/"))
    done = run(box, "node", "-e", script, H2)
    seen = json.loads(done.stdout)
    assert seen == {path: 200 if path.startswith("/ok") else 403 for path in seen}, done
    assert len(seen) == 6
    assert len(box.events("ConnectionOpened")) == 1
    no_crash(box)


def test_python_keeps_a_connection_on_which_each_request_is_judged(box: Box) -> None:
    script = """
import http.client, sys
link = http.client.HTTPSConnection("stream.test", 8444)
for method, path in (("GET", "/a"), ("GET", "/b"), ("POST", "/a"), ("GET", "/a")):
    link.request(method, path, b"body" if method == "POST" else None)
    answer = link.getresponse()
    answer.read()
    print(answer.status, end=" ")
"""
    box.allow(url_rule(f"{STREAM}/a", "GET"))
    done = python(box, script)
    assert done.stdout.split() == ["200", "403", "403", "200"], done
    assert len(box.events("ConnectionOpened")) == 1
    no_crash(box)


def test_urllib_and_a_program_without_our_environment(box: Box) -> None:
    """The bundle of the system itself has the session's authority, for programs that look nowhere else."""
    script = f"import urllib.request; print(urllib.request.urlopen('{STREAM}/a').status)"
    box.allow(url_rule(STREAM, "GET"))
    assert python(box, script).stdout.strip() == "200"
    bare = run(box, "env", "-i", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"{STREAM}/a")
    assert bare.stdout == "200", bare


@NODE
def test_node_https_and_fetch(box: Box) -> None:
    script = """
    require("https").get(process.argv[1] + "/a", (answer) => {
      answer.resume();
      fetch(process.argv[1] + "/b", { method: "POST", body: "x" }).then((second) => {
        console.log(answer.statusCode, second.status);
        process.exit(0);
      });
    });
    """
    box.allow(url_rule(f"{STREAM}/", "GET"))
    done = run(box, "node", "-e", script, STREAM)
    assert done.stdout.split() == ["200", "403"], done


def test_git_clones_and_may_not_push(box: Box) -> None:
    box.allow(
        url_rule("https://git.test/hello.git/", "GET", paths=["info/refs"]),
        url_rule("https://git.test/hello.git/", "POST", paths=["git-upload-pack"]),
    )
    script = """
    git clone -q https://git.test/hello.git there && cat there/hello.txt && cd there &&
    git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git push -q
    status=$?
    curl -sS -o /dev/null -d '' https://git.test/hello.git/git-receive-pack
    exit $status
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout == "hello from git\n", done
    assert done.returncode != 0
    assert ("GET", "/hello.git/info/refs", 403, "deny") in requests(box), "the question before the push"
    assert "remote: blocked by membrane" in done.stderr
    assert ("POST", "/hello.git/git-receive-pack", 403, "deny") in requests(box), requests(box)


# ---------------------------------------------------------------- streaming


def test_events_are_not_held_up(box: Box) -> None:
    """The source sends an event when the one before it has been heard: one that waits for more to come ends it all."""
    script = """
import sys, time, urllib.request
name = str(time.monotonic_ns())
for line in urllib.request.urlopen(sys.argv[1] + "/events?" + name):
    if line.startswith(b"data: "):
        print(int(line[6:]))
        urllib.request.urlopen(sys.argv[1] + "/heard?" + name).read()
"""
    box.allow(every(STREAM))
    done = python(box, script, STREAM)
    assert done.stdout.split() == [str(number) for number in range(40)], done


@pytest.mark.parametrize("origin", [STREAM, PLAIN])
def test_a_websocket_goes_both_ways(box: Box, origin: str) -> None:
    script = """
import os, socket, ssl, sys
secure = sys.argv[1].startswith("https")
link = socket.create_connection(("stream.test", 8444 if secure else 8080))
if secure:
    link = ssl.create_default_context().wrap_socket(link, server_hostname="stream.test")
def ask(path):
    lines = [f"GET {path} HTTP/1.1", f"Host: stream.test:{8444 if secure else 8080}", "Upgrade: websocket",
        "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
    link.sendall("\\r\\n".join([*lines, "", ""]).encode())
def head():
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        data += link.recv(1)
    return data
ask("/other")
answer = head()
print(answer.split()[1].decode())
size = int(answer.lower().split(b"content-length:")[1].split()[0])
while size:
    size -= len(link.recv(size))
ask("/socket")
print(head().split()[1].decode())
for text in (b"one", b"two" * 30):
    link.sendall(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
    back = b""
    while len(back) < 2 + len(text):
        back += link.recv(200)
    print(back[2:].decode())
link.sendall(bytes((0x88, 0x80, 0, 0, 0, 0)))
link.recv(10)
"""
    box.allow(url_rule(origin, "GET", paths=["/socket"]))
    done = python(box, script, origin)
    assert done.stdout.split() == ["403", "101", "one", "two" * 30], done
    assert [(e["protocol"], e["status"]) for e in box.events("RequestSeen")] == [("http/1.1", 403), ("websocket", 101)]
    no_crash(box)


def test_expect_100_continue(box: Box) -> None:
    box.allow(url_rule(STREAM, "PUT", paths=["/a"]))
    script = f"""
    for path in a b; do
        head -c 100000 /dev/zero |
            curl -sS -T - -H 'Expect: 100-continue' -o /dev/null -w '%{{http_code}} ' {STREAM}/$path
    done
    """
    assert run(box, "bash", "-c", script).stdout.split() == ["200", "403"]


# ---------------------------------------------------------------- what is refused

RAW = """
import socket, ssl, sys, time
target, port, host = sys.argv[1], int(sys.argv[2]), sys.argv[3]
link = socket.create_connection((target, port), timeout=60)
if host:
    link = ssl.create_default_context().wrap_socket(link, server_hostname=host)
for part in sys.argv[4:]:
    link.sendall(part.encode().decode("unicode_escape").encode("latin-1"))
    time.sleep(0.05)
data = b""
try:
    while part := link.recv(65536):
        data += part
except OSError as error:
    print(type(error).__name__)
sys.stdout.buffer.write(data)
"""


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        (["G", "ET /a HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nConnection: close\\r\\n\\r\\n"], "200"),
        (["G", "ET /b HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nConnection: close\\r\\n\\r\\n"], "403"),
        (["GET /a HTTP/1.1\\r\\nHost: stream.te", "st:8444\\r\\nConnection: close\\r\\n\\r", "\\n"], "200"),
        (["\\r\\nGET /a HTTP/1.1\\r\\nHost: stream.test:8444\\r\\n\\r\\n"], "400"),
        (["GET /a/../b HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nConnection: close\\r\\n\\r\\n"], "403"),
        (["GET /a%2fb HTTP/1.1\\r\\nHost: stream.test:8444\\r\\n\\r\\n"], "400"),
        (["GET /a HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n"], "403"),
        (["GET https://other.test/a HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nConnection: close\\r\\n\\r\\n"], "400"),
        (
            [
                "POST /a HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nContent-Length: 3\\r\\n",
                "Transfer-Encoding: chunked\\r\\n\\r\\n",
            ],
            "400",
        ),
        (["CONNECT other.test:443 HTTP/1.1\\r\\nHost: other.test:443\\r\\nConnection: close\\r\\n\\r\\n"], "403"),
        (["SSH-2.0-Client\\r\\n"], "400"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("secure", [True, False])
def test_raw_requests(box: Box, parts: list[str], status: str, secure: bool) -> None:
    port, host = ("8444", "stream.test") if secure else ("8080", "")
    parts = [part.replace("8444", port).replace("https:", "https:" if secure else "http:") for part in parts]
    box.allow(url_rule(STREAM if secure else PLAIN, "GET", "POST", paths=["/a"]))
    done = python(box, RAW, "stream.test", port, host, *parts)
    assert done.stdout.split()[1] == status, done
    events = requests(box)
    assert [(seen, verdict) for _, _, seen, verdict in events] == [
        (int(status), "allow" if status == "200" else "deny")
    ]
    assert len(denied(box)) == (status != "200")
    no_crash(box)


def test_another_name_in_tls_is_refused(box: Box) -> None:
    box.allow(every(STREAM), every(H2))
    done = run(box, "curl", "-sS", "--connect-to", "h2.test:8444:stream.test:8444", "https://h2.test:8444/")
    assert done.returncode == 35, done
    assert "name differs from SNI" in denied(box)


def test_plain_http2_is_refused(box: Box) -> None:
    box.allow(every(PLAIN))
    upgrade = run(box, "curl", "-sS", "--http2", "-w", "%{http_version} %{http_code}", "-o", "/dev/null", f"{PLAIN}/a")
    assert upgrade.stdout.split()[0] == "1.1", upgrade
    prior = run(box, "curl", "-sS", "--http2-prior-knowledge", f"{PLAIN}/a")
    assert prior.returncode != 0
    assert "not HTTP" in denied(box)


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("https://stream.test:8446/", "certificate is not valid: hostname mismatch"),
        ("https://unreachable.test/", "unreachable.test"),
        ("https://private.test/", "private address"),
        ("https://stream.test:8080/", "TLS handshake with the server failed"),
        ("http://unreachable.test/", "unreachable.test"),
    ],
)
def test_a_server_that_can_not_be_asked_is_a_502_with_the_cause(box: Box, url: str, cause: str) -> None:
    box.allow(every(url))
    done = run(box, "curl", "-sS", "-w", " %{http_code}", url)
    assert done.stdout.endswith(" 502"), done
    answer = json.loads(done.stdout[:-4])
    assert answer["error"] == "membrane could not connect"
    if cause == "unreachable.test":
        assert names.UNREACHABLE4 in answer["reason"] or "oute" in answer["reason"], answer
    else:
        assert cause.lower() in answer["reason"].lower(), answer
    assert [event["status"] for event in box.events("RequestSeen")] == [502]
    no_crash(box)


@pytest.mark.parametrize("judged", [False, True])
def test_what_could_not_be_reached_is_told_at_the_end(box: Box, judged: bool) -> None:
    """Also where nothing is opened, and the client sees a reset connection only."""
    box.allow(every("https://missing.test/") if judged else "missing.test")
    done = box.run("--", "curl", "-sS", "https://missing.test/")
    assert "no such name: missing.test" in done.stderr and "missing.test:443 " in done.stderr, done
    assert "could not be reached" in done.stderr and "refused" not in done.stderr, done
    assert "could not be reached" not in box.run("-q", "--", "curl", "-sS", "https://missing.test/").stderr
    assert "could not be reached" not in box.run("--", "true").stderr


def test_without_our_trust_the_server_is_not_believed(box: Box) -> None:
    """The origin's authority is not the system's: without ``extra_ca`` nothing is forwarded."""
    box.allow(every(STREAM))
    done = box.run("--", "curl", "-sS", "-w", " %{http_code}", f"{STREAM}/")
    assert done.stdout.endswith(" 502"), done
    box.allow(every(STREAM, insecure=True))
    assert box.run("--", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"{STREAM}/a").stdout == "200"


def test_a_slow_head_does_not_stop_others(box: Box) -> None:
    script = """
import socket, sys, urllib.request
slow = [socket.create_connection(("stream.test", 8080)) for _ in range(50)]
for link in slow:
    link.sendall(b"GET /a HTTP/1.1\\r\\nX:")
print(urllib.request.urlopen("http://stream.test:8080/a").status)
"""
    box.allow(every(PLAIN))
    done = python(box, script)
    assert done.stdout.strip() == "200", done


# ---------------------------------------------------------------- trust


def test_the_session_s_authority_is_new_and_stays_inside(box: Box) -> None:
    box.allow(every(STREAM))
    script = 'cat "$SSL_CERT_FILE"; echo; echo x >> "$SSL_CERT_FILE"'
    bundles = [run(box, "bash", "-c", script, env={"SSL_CERT_FILE": "/nonexistent"}) for _ in range(2)]
    authorities = [done.stdout.strip().split("-----BEGIN CERTIFICATE-----")[-1] for done in bundles]
    assert authorities[0] != authorities[1]
    assert all("Read-only file system" in done.stderr or "Permission denied" in done.stderr for done in bundles)
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    assert system.read_text() in bundles[0].stdout
    assert authorities[0].split("-----")[0].strip() not in system.read_text()
    assert not [path for path in box.state.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def test_a_bad_extra_ca_stops_the_run(box: Box) -> None:
    box.allow(every(STREAM))
    bad = box.home / "bad.pem"
    bad.write_text("-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n")
    done = box.run(f"--extra-ca={bad}", "--", "true")
    assert done.returncode == 125, done
    assert "certificates" in done.stderr
    assert os.listdir(box.workspace) == []


# ---------------------------------------------------------------- secrets

TOKEN = "sk-ant-REALa1b2c3d4e5f6g7h8i9"


@NODE
@pytest.mark.parametrize("origin", [STREAM, H2])
@pytest.mark.parametrize("source", ["env:REAL_KEY", "file", {"command": ["printf", "%s", TOKEN]}])
def test_a_secret_is_used_and_never_seen(box: Box, origin: str, source: Any) -> None:
    if source == "file":
        (box.home / "key").write_text(TOKEN + "\n")
        source = f"file:{box.home}/key"
    secret = {"name": "API_KEY", "from": source, "to": [f"{origin}/v1/"], "header": "authorization: Bearer {}"}
    box.allow(origin, PLAIN, secrets=[secret])
    script = f"""
    echo "$API_KEY"
    curl -sS -H "authorization: Bearer $API_KEY" {origin}/v1/x; echo
    curl -sS -o /dev/null -w '%{{http_code}}\\n' -H "authorization: Bearer $API_KEY" {origin}/v2
    curl -sS -o /dev/null -w '%{{http_code}}\\n' "{origin}/v1/x?key=$API_KEY"
    env; cat /proc/self/environ /proc/1/environ 2>/dev/null
    """
    done = run(box, "bash", "-c", script, env={"REAL_KEY": TOKEN})
    lines = done.stdout.splitlines()
    placeholder = lines[0]
    assert placeholder.startswith("sk-ant-"), done
    assert len(placeholder) == len(TOKEN) and placeholder != TOKEN
    answer = json.loads(lines[1])
    assert answer["proof"] == hashlib.sha256(f"Bearer {TOKEN}".encode()).hexdigest()
    assert f"Bearer {placeholder}" in lines[1]  # the origin's echo, scrubbed
    assert lines[2:4] == ["403", "403"]
    assert TOKEN not in done.stdout + done.stderr + box.events_path.read_text()
    assert denied(box) == ["secret not for this place", "secret not for this place"]
    assert "API_KEY may not go to this destination" in str(box.events("AccessDenied")[0]["hint"])
    no_crash(box)


def test_a_secret_that_is_not_there_stops_the_run(box: Box) -> None:
    box.allow(STREAM, secrets=[{"name": "API_KEY", "from": "env:NOWHERE", "to": [STREAM]}])
    done = run(box, "true")
    assert done.returncode == 78, done
    assert "NOWHERE is not set" in done.stderr
    box.allow("*.test", secrets=[{"name": "API_KEY", "from": "env:X", "to": ["*.test"]}])
    done = run(box, "true", env={"X": TOKEN})
    assert done.returncode == 78, done


def test_the_upload_limit_counts_what_is_inspected(box: Box) -> None:
    box.allow(every(STREAM), limits={"upload": "100K"})
    script = f"""
    for size in 1000 200000 1000; do
        head -c $size /dev/zero | curl -sS -o /dev/null -w '%{{http_code}} ' --data-binary @- {STREAM}/count
    done
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split()[0] == "200", done
    assert done.stdout.split()[1] in ("429", "000"), done
    assert "limit reached" in denied(box), box.events("RequestSeen")


# ---------------------------------------------------------------- presets


def test_github_read_clones_and_may_not_push(box: Box) -> None:
    box.policy("presets: [github-read]\n")
    control = box.outside(
        "git", "clone", "-q", "https://github.com/hello.git", "o", env={"GIT_SSL_CAINFO": str(box.world.ca)}
    )
    assert control.returncode == 0, control
    script = """
    git clone -q https://github.com/any/hello.git there; git clone -q https://github.com/hello.git here
    curl -sS -o /dev/null -w '%{http_code} ' https://api.github.com/user/repos
    curl -sS -o /dev/null -w '%{http_code} ' -d '{}' https://api.github.com/user/repos
    curl -sS -o /dev/null -w '%{http_code} ' -d '' https://github.com/any/hello.git/git-receive-pack
    curl -sS -o /dev/null -w '%{http_code} ' -d '' https://github.com/any/git-upload-pack/settings
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == ["200", "403", "403", "403"], done
    assert ("POST", "/any/hello.git/git-receive-pack", 403, "deny") in requests(box)
    assert ("GET", "/any/hello.git/info/refs", 404, "allow") in requests(box) or (
        "POST", "/any/hello.git/git-upload-pack", 200, "allow") in requests(box)  # fmt: skip


def test_the_indexes_are_read_only(box: Box) -> None:
    box.policy("presets: [pypi, npm]\n")
    script = """
    python3 -m pip download -q --no-deps --disable-pip-version-check -d out demo-pkg && ls out
    curl -sS -o /dev/null -w '%{http_code} ' -X PUT -d '{}' https://registry.npmjs.org/demo-pkg
    curl -sS -o /dev/null -w '%{http_code} ' https://registry.npmjs.org/demo-pkg
    curl -sS -o /dev/null -w '%{http_code} ' -d a=b https://pypi.org/legacy/
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split()[-3:] == ["403", "200", "403"], done


# ---------------------------------------------------------------- ways to the server


@pytest.mark.parametrize("proxy", ["http://proxy.test:3128", "socks5://proxy.test:1080"])
def test_through_an_upstream_proxy(box: Box, proxy: str) -> None:
    box.allow(url_rule(STREAM, "GET", paths=["/a"]), url_rule(PLAIN, "GET", paths=["/a"]), upstream_proxy=proxy)
    urls = f"{STREAM}/a {STREAM}/b {PLAIN}/a {PLAIN}/b"
    script = f"for url in {urls}; do curl -sS -o /dev/null -w '%{{http_code}} ' $url; done"
    assert run(box, "bash", "-c", script).stdout.split() == ["200", "403", "200", "403"]
    assert {entry["port"] for entry in box.world.proxied(host="stream.test")} == {8444, 8080}
    no_crash(box)


def test_the_host_s_loopback_by_request(box: Box) -> None:
    box.allow(url_rule(f"http://host.internal:{names.DEV_PORT}", "GET", paths=["/"]))
    url = f"http://host.internal:{names.DEV_PORT}/"
    done = run(box, "bash", "-c", f"curl -sS {url}; curl -sS -o /dev/null -w '%{{http_code}}' -d a=b {url}")
    assert done.stdout == names.DEV_BODY + "403", done


@pytest.mark.parametrize("address", [names.address("stream.test"), f"[{names.address('stream.test', 6)}]"])
def test_an_address_by_request(box: Box, address: str) -> None:
    box.allow({"dest": address.strip("[]"), "ports": [8080], "http": [{"methods": ["GET"], "paths": ["/a"]}]})
    url = f"http://{address}:8080"
    done = run(box, "bash", "-c", f"for path in a b; do curl -sS -o /dev/null -w '%{{http_code}} ' {url}/$path; done")
    assert done.stdout.split() == ["200", "403"], done
