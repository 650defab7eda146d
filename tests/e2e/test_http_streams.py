"""What inspection may not do to a stream: hold it up, hold it in memory, lose its end, or outlive it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from world.box import Box
from world.inspected import denied, every, network_process, no_crash, python, requests, url_rule, with_packages

NGINX = "https://nginx.test:8447"
STREAM = "https://stream.test:8444"
NEEDS_NGINX = pytest.mark.needs_tool("/usr/sbin/nginx")
LARGE = int(os.environ.get("MEMBRANE_TEST_LARGE", "256000000"))  # bytes; a gigabyte takes some seconds more
MOST_MEMORY = 80_000  # kB, of the whole process at its peak


def memory(process: subprocess.Popen[bytes], which: str) -> int:
    """kB, of the gateway of a run (proc(5), status)."""
    status = Path(f"/proc/{network_process(process.pid)}/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0])


@contextmanager
def inside(box: Box, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command inside that says a line, and ends when it is told a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    arguments = (f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--", *command)
    with box.popen(*arguments, **pipes) as process:
        assert process.stdin and process.stdout
        yield process
        process.stdin.close()
    assert process.returncode == 0


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_large_body_needs_no_memory(box: Box, way: str) -> None:
    script = f"""
import http.client, json, sys
link = http.client.HTTPSConnection("stream.test", 8444)
if "{way}" == "up":
    block = bytes(1000000)
    link.request("PUT", "/count", (block for _ in range({LARGE} // 1000000)), {{"Content-Length": "{LARGE}"}})
    print(json.loads(link.getresponse().read())["bytes"], flush=True)
else:
    link.request("GET", "/bytes/{LARGE}")
    answer, total = link.getresponse(), 0
    while part := answer.read(1 << 16):
        total += len(part)
    print(total, flush=True)
sys.stdin.readline()
"""
    box.allow(every(STREAM))
    started = time.monotonic()
    with inside(box, "python3", "-c", script) as process:
        assert process.stdout and process.stdout.readline() == b"%d\n" % LARGE
        peak = memory(process, "VmHWM")
        print(f"{way}: {LARGE / (time.monotonic() - started) / 1e6:.0f} MB/s with the start, {peak} kB")
    assert peak < MOST_MEMORY, f"{peak} kB"
    (seen,) = box.events("RequestSeen")
    assert (seen["bytes_up"] if way == "up" else seen["bytes_down"]) == LARGE


@NEEDS_NGINX
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_large_body_over_http2_needs_no_memory(box: Box, way: str) -> None:
    size = LARGE // 2
    send = f"head -c {size} /dev/zero | curl -sS --http2 -T - {NGINX}/count | grep -o '\"bytes\": [0-9]*'"
    fetch = f"curl -sS --http2 -r 0-{size - 1} {NGINX}/bytes/large | wc -c"
    box.allow(every(NGINX))
    with inside(box, "bash", "-c", f"{send if way == 'up' else fetch}; read line; true") as process:
        assert process.stdout
        assert process.stdout.readline().split()[-1] == b"%d" % size
        peak = memory(process, "VmHWM")
    assert peak < MOST_MEMORY, f"{peak} kB"
    (seen,) = box.events("RequestSeen")
    assert seen["protocol"] == "h2"
    assert (seen["bytes_up"] if way == "up" else seen["bytes_down"]) == size


# ---------------------------------------------------------------- events

HTTPX_EVENTS = """
import httpx, sys, time
name = str(time.monotonic_ns())
with httpx.Client(http2=True, timeout=60) as client, client.stream("GET", sys.argv[1] + "/events?" + name) as answer:
    assert answer.http_version == "HTTP/2", answer.http_version
    for line in answer.iter_lines():
        if line.startswith("data: "):
            print(int(line[6:]))
            assert client.get(sys.argv[1] + "/heard?" + name).status_code == 200
"""


@NEEDS_NGINX
def test_events_over_http2_are_not_held_up(box: Box) -> None:
    """As over HTTP/1.1; what is heard is said in another stream of the same connection."""
    box.allow(every(NGINX))
    done = with_packages(box, HTTPX_EVENTS, NGINX)
    assert done.stdout.split() == [str(number) for number in range(40)], done


def test_chunks_and_trailers_go_both_ways_as_they_come(box: Box) -> None:
    """The client sends a chunk when the last one has come back: whoever held one back would hold up all."""
    script = """
import socket, ssl
link = ssl.create_default_context().wrap_socket(
    socket.create_connection(("stream.test", 8444), timeout=60), server_hostname="stream.test")
link.sendall(b"POST /chunks HTTP/1.1\\r\\nHost: stream.test:8444\\r\\nTransfer-Encoding: chunked\\r\\n"
    b"Trailer: x-sum\\r\\n\\r\\n")
file = link.makefile("rb")
while file.readline() != b"\\r\\n":
    pass
for number in range(30):
    piece = b"piece %d" % number * (number * 500 + 1)
    link.sendall(b"%x;extension=1\\r\\n%b\\r\\n" % (len(piece), piece))
    size = int(file.readline(), 16)
    assert file.read(size) == piece
    file.readline()
link.sendall(b"0\\r\\nX-Sum: 42\\r\\n\\r\\n")
print(file.readline().strip().decode(), file.readline().strip().decode(), file.readline().strip().decode(), sep="|")
link.sendall(b"GET /a HTTP/1.1\\r\\nHost: stream.test:8444\\r\\n\\r\\n")
print(file.readline().split()[1].decode())
"""
    box.allow(every(STREAM))
    done = python(box, script)
    assert done.stdout.split() == ["0|x-seen:", "X-Sum:", "42|", "200"], done
    no_crash(box)


# ---------------------------------------------------------------- many


def test_ten_thousand_connections_are_bounded_and_leave_nothing(box: Box) -> None:
    """Each holds a head that never ends.  What is over the limit is refused and told; others are served after that."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = min(4096, max(16, (hard - 256) // 2))  # as ``server`` computes it
    script = """
import json, resource, select, socket, sys, time, urllib.request
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
count = min(10000, hard - 100)
def fetch():
    return urllib.request.urlopen("http://stream.test:8080/a", timeout=240).status
print(fetch(), flush=True)
sys.stdin.readline()
address = socket.getaddrinfo("stream.test", 8080, socket.AF_INET)[0][4]
links, refused = [], 0
poll = select.poll()
for _ in range(count):
    link = socket.socket()
    try:
        link.connect(address)
        link.send(b"GET /a HTTP/1.1\\r\\nX: ")
    except OSError:
        refused += 1
        continue
    links.append(link)
    poll.register(link, select.POLLRDHUP)
print(count, flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 240
cut = set()
while refused + len(cut) < count - int(sys.argv[1]) and time.monotonic() < deadline:
    for fd, _ in poll.poll(1000):
        cut.add(fd)
        poll.unregister(fd)
refused += len(cut)
print(count - refused, refused, flush=True)
sys.stdin.readline()
for link in links:
    link.close()
print("closed", flush=True)
sys.stdin.readline()
while True:  # until the first of those that were closed has been seen to be
    try:
        print(fetch(), flush=True)
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
sys.stdin.readline()
"""
    box.allow(every("http://stream.test:8080"))
    with inside(box, "python3", "-c", script, str(limit)) as process:
        assert process.stdin and process.stdout

        def next_line() -> list[bytes]:
            assert process.stdout
            return process.stdout.readline().split()

        def go_on() -> list[bytes]:
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
            return next_line()

        assert next_line() == [b"200"]
        descriptors = Path(f"/proc/{network_process(process.pid)}/fd")
        may_look = os.getuid() == 0  # the process is not dumpable
        before, started_with = len(os.listdir(descriptors)) if may_look else 0, memory(process, "VmRSS")
        (count,) = map(int, go_on())
        accepted, refused = map(int, go_on())
        assert accepted + refused == count
        assert accepted == min(count, limit)
        assert go_on() == [b"closed"]
        deadline = time.monotonic() + 240
        while may_look and len(os.listdir(descriptors)) > before + 2:
            assert time.monotonic() < deadline, os.listdir(descriptors)
        assert go_on() == [b"200"]
        assert memory(process, "VmRSS") - started_with < 80_000
    if count > limit:
        assert set(denied(box)) == {"limit reached"}
        assert sum(event["count"] for event in box.events("AccessDenied")) == refused
    assert [status for _, _, status, _ in requests(box)] == [200, 200]
    no_crash(box)


def test_a_denied_upload_of_any_size_is_answered(box: Box) -> None:
    """The answer comes although the client is still sending; what it sends is dropped."""
    script = """
import http.client, json
link = http.client.HTTPSConnection("stream.test", 8444, timeout=60)
block = bytes(1000000)
link.request("PUT", "/no", (block for _ in range(40)), {"Content-Length": str(40 * len(block))})
answer = link.getresponse()
print(answer.status, json.loads(answer.read())["reason"].replace(" ", "-"))
link.request("GET", "/a")
print(link.getresponse().status)
"""
    box.allow(url_rule(f"{STREAM}/a", "GET"))
    done = python(box, script)
    assert done.stdout.split() == ["403", "path-not-allowed", "200"], done
    assert len(box.events("ConnectionOpened")) == 1
    assert json.loads(box.events_path.read_text().splitlines()[-1])["event"] == "SessionEnded"
