"""Real HTTP libraries behind rules about requests: for each, one request that may pass and one that may not.

The origins are nginx (HTTP/2, and a proxy for gRPC), grpcio, and the HTTP/1.1 server of the world.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from world import World, frameworks, names
from world.box import Box
from world.inspected import denied, every, no_crash, requests, run, url_rule, with_packages

NGINX = "https://nginx.test:8447"
STREAM = "https://stream.test:8444"
GRPC = "https://grpc.test:8450"
ORIGINS = [
    pytest.param(STREAM, "http/1.1", id="http1"),
    pytest.param(NGINX, "h2", id="h2", marks=pytest.mark.needs_tool("/usr/sbin/nginx")),
]
OVER_H2 = ORIGINS[1:]


def expect(box: Box, done: Any, protocol: str, *, also: str = "") -> None:
    """GET /v1/a passed, POST /v1/a and GET /v2 did not, and each was told once."""
    assert done.stdout.split() == ["200", "403", "403", *([also] if also else [])], done
    assert sorted(requests(box)) == [
        ("GET", "/v1/a", 200, "allow"),
        ("GET", "/v2", 403, "deny"),
        ("POST", "/v1/a", 403, "deny"),
    ]
    assert sorted(denied(box)) == ["method not allowed", "path not allowed"]
    assert {event["protocol"] for event in box.events("RequestSeen")} == {protocol}
    no_crash(box)


# ---------------------------------------------------------------- Python

HTTPX = """
import httpx, sys
with httpx.Client(http2=True, trust_env=True, timeout=60) as client:
    answers = [client.get(sys.argv[1] + "/v1/a"), client.post(sys.argv[1] + "/v1/a", content=b"x" * 100000),
        client.get(sys.argv[1] + "/v2")]
print(*(answer.status_code for answer in answers))
print(answers[0].http_version, file=sys.stderr)
assert answers[1].json()["reason"] == "method not allowed", answers[1].text
"""
REQUESTS = """
import requests, sys
with requests.Session() as session:
    answers = [session.get(sys.argv[1] + "/v1/a"), session.post(sys.argv[1] + "/v1/a", data=b"x" * 100000),
        session.get(sys.argv[1] + "/v2")]
print(*(answer.status_code for answer in answers))
assert answers[1].json()["reason"] == "method not allowed", answers[1].text
"""
AIOHTTP = """
import asyncio, ssl, sys
import aiohttp
async def main():
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for method, path in (("GET", "/v1/a"), ("POST", "/v1/a"), ("GET", "/v2")):
            data = b"x" * 100000 if method == "POST" else None
            async with session.request(method, sys.argv[1] + path, data=data) as answer:
                await answer.read()
                print(answer.status)
asyncio.run(main())
"""


@pytest.mark.parametrize(("origin", "protocol"), ORIGINS)
def test_httpx(box: Box, origin: str, protocol: str) -> None:
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    expect(box, with_packages(box, HTTPX, origin), protocol)


@pytest.mark.parametrize("script", [pytest.param(REQUESTS, id="requests"), pytest.param(AIOHTTP, id="aiohttp")])
def test_requests_and_aiohttp(box: Box, script: str) -> None:
    box.allow(url_rule(f"{STREAM}/v1/", "GET"))
    expect(box, with_packages(box, script, STREAM), "http/1.1")


@pytest.mark.parametrize("origin", ["wss://stream.test:8444", "ws://stream.test:8080"])
def test_websockets(box: Box, origin: str) -> None:
    script = """
import sys
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
with connect(sys.argv[1] + "/socket", compression=None, open_timeout=60) as link:
    for text in ("one", "two" * 30):
        link.send(text)
        print(link.recv(60))
try:
    connect(sys.argv[1] + "/other", open_timeout=60)
except InvalidStatus as refused:
    print(refused.response.status_code)
"""
    box.allow(url_rule(origin.replace("ws", "http", 1), "GET", paths=["/socket"]))
    done = with_packages(box, script, origin)
    assert done.stdout.split() == ["one", "two" * 30, "403"], done
    seen = {(event["protocol"], event["status"], event["path"]) for event in box.events("RequestSeen")}
    assert seen == {("websocket", 101, "/socket"), ("http/1.1", 403, "/other")}
    no_crash(box)


LINK = f"ws://frameworks.test:{frameworks.WEBSOCKETS_PORT}"
LARGE_MESSAGES = """
import sys, time
from websockets.sync.client import connect
text = "compressed " * 100000
with connect(sys.argv[1] + "/ws", open_timeout=60, max_size=None) as link:  # permessage-deflate
    link.send(text)
    print(link.recv(60) == text, link.ping().wait(60))
with connect(sys.argv[1] + "/ws", compression=None, open_timeout=60, max_size=None) as link:
    data = bytes(range(256)) * 4096
    started = time.monotonic()
    for _ in range(32):
        link.send(data)
        assert link.recv(60) == data
    print(f"{64 / (time.monotonic() - started):.0f} MiB/s", file=sys.stderr)
    link.send(iter(["in ", "parts"]))
    print(link.recv(60))
"""
NO_FRAMES = """
import sys
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
with connect(sys.argv[1] + "/ws", compression=None, open_timeout=60) as link:
    link.send("one")
    print(link.recv(60))
    if sys.argv[2] == "client":
        link.socket.sendall(b"GET /admin HTTP/1.1\\r\\n\\r\\n")
    else:
        link.send("raw")
    try:
        print(link.recv(60))
    except ConnectionClosed as closed:
        print(closed.rcvd and closed.rcvd.code)
"""


def test_large_and_compressed_messages_of_websockets(box: Box) -> None:
    box.allow(url_rule(LINK.replace("ws", "http", 1), "GET", paths=["/ws"]))
    done = with_packages(box, LARGE_MESSAGES, LINK)
    assert done.stdout.split("\n") == ["True True", "in parts", ""], done
    no_crash(box)


@pytest.mark.parametrize("who", ["client", "server"])
def test_what_is_no_frame_ends_a_websocket(box: Box, who: str) -> None:
    box.allow(url_rule(LINK.replace("ws", "http", 1), "GET", paths=["/ws"]))
    done = with_packages(box, NO_FRAMES, LINK, who)
    assert done.stdout.split() == ["one", "1002"], done
    (seen,) = box.events("RequestSeen")
    assert (seen["protocol"], seen["status"]) == ("websocket", 101)
    flaw = "a client's frame is not masked" if who == "client" else "the server broke the WebSocket protocol: "
    if who == "client":
        hints = [event["hint"] for event in box.events("AccessDenied") if event["reason"] == "request malformed"]
        assert hints == [flaw]
    else:
        assert seen["error"].startswith(flaw)
    no_crash(box)


# ---------------------------------------------------------------- gRPC

CALLS = """
import os, sys, threading
import grpc
same = lambda bytes: bytes
target = sys.argv[1].removeprefix("https://")
root = open(os.environ["SSL_CERT_FILE"], "rb").read()
with grpc.secure_channel(target, grpc.ssl_channel_credentials(root)) as channel:
    service = "/demo.Echo/"
    def call(kind, name):
        return getattr(channel, kind)(service + name, same, same)
    answer, made = call("unary_unary", "Unary").with_call(b"abc", timeout=60)
    print(answer.decode(), dict(made.trailing_metadata()).get("x-trailer"))
    print(sum(1 for _ in call("unary_stream", "Down")(b"200", timeout=60)))
    print(call("stream_unary", "Up")(iter([bytes(50000)] * 20), timeout=60).decode())
    # Each answer is awaited before the next message is sent: nothing may be held back.
    turn = threading.Semaphore(1)
    def ask():
        for number in range(20):
            turn.acquire()
            yield b"m%d" % number
    answers = []
    for answer in call("stream_stream", "Both")(ask(), timeout=60):
        answers.append(answer)
        turn.release()
    print(len(answers), answers[-1].decode())
    for name in ("Fail", "Denied"):
        try:
            call("unary_unary", name)(b"x" * 100000, timeout=60)
        except grpc.RpcError as error:
            print(error.code().name, error.details())
    try:
        for _ in call("stream_stream", "Denied")(iter([b"x" * 1000] * 10), timeout=60):
            print("answered")
    except grpc.RpcError as error:
        print(error.code().name)
    print(call("unary_unary", "Unary")(b"still", timeout=60).decode())
"""


@pytest.mark.parametrize(
    "origin", [GRPC, pytest.param(NGINX, id="behind nginx", marks=pytest.mark.needs_tool("/usr/sbin/nginx"))]
)
def test_grpc(box: Box, origin: str) -> None:
    """All four kinds of call, a failure of the server's own, and calls that are denied on the same connection."""
    methods = [f"/demo.Echo/{name}" for name in ("Unary", "Down", "Up", "Both", "Fail")]
    box.allow(url_rule(origin, "POST", paths=methods))
    done = with_packages(box, CALLS, origin)
    lines = done.stdout.splitlines()
    assert lines[:4] == ["cba seen", "200", "1000000", "20 M19"], done
    assert lines[4] == "NOT_FOUND nothing there"
    assert lines[5].startswith("PERMISSION_DENIED blocked by membrane: path not allowed ("), lines[5]
    assert "/demo.Echo/Denied" in done.stdout
    assert lines[-2:] == ["PERMISSION_DENIED", "llits"]
    verdicts = [(event["path"].rpartition("/")[2], event["verdict"]) for event in box.events("RequestSeen")]
    assert sorted(verdicts) == sorted(
        [(name, "allow") for name in ("Unary", "Down", "Up", "Both", "Fail", "Unary")] + [("Denied", "deny")] * 2
    )
    assert len(box.events("ConnectionOpened")) == 1
    no_crash(box)


# ---------------------------------------------------------------- node


@pytest.mark.needs_tool("node")
def test_node_https(box: Box) -> None:
    script = """
    const https = require("https");
    const ask = (method, path) => new Promise((done, fail) => {
      const request = https.request(process.argv[1] + path, { method }, (answer) => {
        answer.resume();
        answer.on("end", () => done(answer.statusCode));
      });
      request.on("error", fail);
      request.end(method === "POST" ? "x".repeat(100000) : undefined);
    });
    (async () => {
      for (const [method, path] of [["GET", "/v1/a"], ["POST", "/v1/a"], ["GET", "/v2"]]) {
        console.log(await ask(method, path));
      }
    })();
    """
    box.allow(url_rule(f"{STREAM}/v1/", "GET"))
    expect(box, run(box, "node", "-e", script, STREAM), "http/1.1")


@pytest.mark.needs_tool("node")
def test_node_fetch(box: Box) -> None:
    """undici, as it is built into node."""
    script = """
    (async () => {
      for (const [method, path] of [["GET", "/v1/a"], ["POST", "/v1/a"], ["GET", "/v2"]]) {
        const body = method === "POST" ? "x".repeat(100000) : undefined;
        const answer = await fetch(process.argv[1] + path, { method, body });
        await answer.text();
        console.log(answer.status);
      }
    })();
    """
    box.allow(url_rule(f"{STREAM}/v1/", "GET"))
    expect(box, run(box, "node", "-e", script, STREAM), "http/1.1")


@pytest.mark.needs_tool("node")
@pytest.mark.parametrize(("origin", "protocol"), OVER_H2)
def test_node_http2(box: Box, origin: str, protocol: str) -> None:
    script = """
    const session = require("http2").connect(process.argv[1]);
    const ask = (method, path) => new Promise((done) => {
      const stream = session.request({ ":method": method, ":path": path });
      let status;
      stream.on("response", (head) => { status = head[":status"]; });
      stream.resume();
      stream.on("end", () => done(status));
      stream.end(method === "POST" ? "x".repeat(100000) : undefined);
    });
    (async () => {
      for (const [method, path] of [["GET", "/v1/a"], ["POST", "/v1/a"], ["GET", "/v2"]]) {
        console.log(await ask(method, path));
      }
      session.close();
    })();
    """
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    expect(box, run(box, "node", "-e", script, origin), protocol)


# ---------------------------------------------------------------- Go and Java

GO = """
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func main() {
	for _, ask := range [][2]string{{"GET", "/v1/a"}, {"POST", "/v1/a"}, {"GET", "/v2"}} {
		var body io.Reader
		if ask[0] == "POST" {
			body = strings.NewReader(strings.Repeat("x", 100000))
		}
		request, _ := http.NewRequest(ask[0], os.Args[1]+ask[1], body)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		fmt.Println(answer.StatusCode)
	}
}
"""
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Ask {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        String[][] asks = {{"GET", "/v1/a"}, {"POST", "/v1/a"}, {"GET", "/v2"}};
        for (String[] ask : asks) {
            var body = ask[0].equals("POST")
                ? HttpRequest.BodyPublishers.ofString("x".repeat(100000)) : HttpRequest.BodyPublishers.noBody();
            var request = HttpRequest.newBuilder(URI.create(args[0] + ask[1])).method(ask[0], body).build();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
        }
    }
}
"""


@pytest.fixture(scope="module")
def go_client(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that uses net/http, built once."""
    place = tmp_path_factory.mktemp("go")
    (place / "ask.go").write_text(GO)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "GOCACHE": str(place / "cache"),
        "CGO_ENABLED": "0", "GO111MODULE": "off",
    }  # fmt: skip
    built = world.run(["go", "build", "-o", "ask", "ask.go"], cwd=place, env=environment, timeout=180)
    assert built.returncode == 0, built
    return place / "ask"


@pytest.mark.needs_tool("go")
@pytest.mark.parametrize(("origin", "protocol"), ORIGINS)
def test_go(box: Box, go_client: Path, origin: str, protocol: str) -> None:
    program = box.workspace / "ask"
    program.write_bytes(go_client.read_bytes())
    program.chmod(0o755)
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    expect(box, run(box, "./ask", origin), protocol)


@pytest.mark.needs_tool("java")
@pytest.mark.parametrize(("origin", "protocol"), ORIGINS)
def test_java(box: Box, origin: str, protocol: str) -> None:
    (box.workspace / "Ask.java").write_text(JAVA)
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    expect(box, run(box, "java", "Ask.java", origin), protocol)


# ---------------------------------------------------------------- what is recorded


@pytest.mark.parametrize(("origin", "protocol"), ORIGINS)
def test_full_records_hold_no_credential(box: Box, origin: str, protocol: str) -> None:
    token = "ghp_" + "A1b2C3d4" * 4
    version = "--http2" if protocol == "h2" else "--http1.1"
    script = f"""
    curl -sS {version} -o /dev/null -H 'Authorization: Bearer {token}' -H 'X-Plain: visible' \
        -H 'X-Odd: {token}' -H 'Cookie: a={token}' '{origin}/v1/a?page=2&access_token={token}&q={token}'
    curl -sS {version} -o /dev/null -H 'Authorization: Bearer {token}' '{origin}/v2?b=3'
    """
    box.allow(url_rule(f"{origin}/v1/", "GET"), trace={"http": "full"})
    run(box, "bash", "-c", script)
    first, second = box.events("RequestSeen")
    assert (first["status"], second["status"]) == (200, 403)
    assert first["query"] == "?page=2&access_token=[redacted]&q=[redacted]"
    assert second["query"] == "?b=3"
    asked = dict(first["request_headers"])
    assert asked["x-plain"] == "visible"
    assert asked["authorization"] == "Bearer [redacted]"
    assert asked["cookie"] == asked["x-odd"] == "[redacted]"
    assert "content-length" in {name for name, _ in first["answer_headers"]}
    assert ["authorization", "Bearer [redacted]"] in second["request_headers"]
    assert token not in json.dumps([first, second, *box.events("AccessDenied")])
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    run(box, "bash", "-c", script)
    assert all(not event["query"] and not event["request_headers"] for event in box.events("RequestSeen")[-2:])


# ---------------------------------------------------------------- DNS servers


def test_a_dns_server_that_a_rule_opens_is_asked_over_tcp(box: Box) -> None:
    """``only-there.test`` is known to every public resolver of the world, and not to the host's."""
    box.allow({"dest": names.PUBLIC_DNS, "ports": ["53/tcp"]})
    ask = ["dig", "+tcp", "+short", "+tries=1", "+time=60", names.SPLIT_NAME]
    done = box.run("--", *ask, f"@{names.PUBLIC_DNS}")
    assert done.stdout.strip() == names.address("example.com"), done
    other = box.run("--", *ask, f"@{names.OTHER_RESOLVER}")  # answered by ours, which asks the host's
    assert other.stdout.strip() == "", other


def test_a_redirect_is_the_client_s_to_follow(box: Box) -> None:
    box.allow(every("https://httpbin.org"))
    url = "https://httpbin.org/redirect-to?url=https%3A%2F%2Fgoogle.com%2F"
    done = run(box, "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", url)
    assert done.stdout == "302 https://google.com/", done
    assert [json.loads(json.dumps(event["host"])) for event in box.events("RequestSeen")] == ["httpbin.org"]
