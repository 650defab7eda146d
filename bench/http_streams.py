"""What streams through an inspected connection: how late it is, and what memory it takes.

Theory of operation
-------------------
*Lag.* An origin sends the time of CLOCK_MONOTONIC, which all processes of a machine share, as a server-sent event every
few milliseconds; the client, on one kept connection, takes the time when it has read one.  The same with and without
membrane, so that what the scheduler of a busy machine adds is seen.

*Memory.* A gigabyte each way over HTTP/2, up to an origin of node, which counts and drops it, and down from nginx; the
peak of the gateway's resident set since the transfer began (proc(5), clear_refs).

*New connections.* How many a second a machine can do is what each costs, on all sides of it, in processor time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .tools import Interactive, children, cmdline, cpu, rss

if TYPE_CHECKING:
    from .__main__ import Bench

EVENTS, EVERY = 400, 0.005  # events, seconds
GIGABYTE = 1 << 30
CONNECTIONS = 200
SENDER = """
import socket, ssl, sys, time
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        plain, _ = listener.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with context.wrap_socket(plain, server_side=True) as link:
                link.recv(65536)
                link.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\nconnection: close\\r\\n\\r\\n")
                for _ in range(int(sys.argv[2])):
                    time.sleep(float(sys.argv[3]))
                    link.sendall(b"data: %d\\n\\n" % time.monotonic_ns())
        except OSError:
            continue
"""
RECEIVER = """
import socket, ssl, sys, time
context = ssl._create_unverified_context()
host, port = sys.argv[1], int(sys.argv[2])
link = context.wrap_socket(socket.create_connection((host, port)), server_hostname="host.internal")
link.sendall(b"GET /events HTTP/1.1\\r\\nHost: host.internal:%d\\r\\n\\r\\n" % port)
lags, held = [], b""
while part := link.recv(65536):
    now = time.monotonic_ns()
    *whole, held = (held + part).split(b"\\n\\n")
    for event in whole:
        at = event.rfind(b"data: ")
        if at >= 0:
            lags.append((now - int(event[at + 6 :])) / 1e6)
lags.sort()
print(len(lags), lags[len(lags) // 2], lags[len(lags) * 99 // 100], lags[-1])
"""
COUNTER = """
const fs = require("fs"), pem = fs.readFileSync(process.argv[1]);
const WINDOW = 1 << 24; // else each 64 KB wait for a turn of every process on the way
const settings = { initialWindowSize: WINDOW };
const server = require("http2").createSecureServer({ key: pem, cert: pem, settings });
server.on("session", (session) => session.setLocalWindowSize(WINDOW));
server.on("stream", (stream) => {
  let bytes = 0;
  stream.on("data", (part) => { bytes += part.length; });
  stream.on("end", () => { stream.respond({ ":status": 200 }); stream.end(String(bytes)); });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""
INTERACTIVE = """
TIMEFORMAT='%U %S'
echo ready
while read -r line; do
    { time eval "$line" >/dev/null 2>&1; } 2>&1 | tail -n 1
done
"""


@contextmanager
def origin(argv: list[str]) -> Iterator[int]:
    """A server that says its port."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def event_origin(work: Path) -> Iterator[int]:
    with origin([sys.executable, "-c", SENDER, str(work / "origin.pem"), str(EVENTS), str(EVERY)]) as port:
        yield port


@contextmanager
def upload_origin(work: Path, node: str) -> Iterator[int]:
    with origin([node, "-e", COUNTER, str(work / "origin.pem")]) as port:
        yield port


def lag(bench: Bench, inside: list[str], name: str, port: int) -> None:
    """Milliseconds from a server-sent event's being sent to its being read."""
    script = ["/usr/bin/python3", "-I", "-c", RECEIVER]
    found: dict[str, list[list[float]]] = {"direct": [], "": []}
    for _ in range(3):
        for against, argv in (("direct", [*script, "127.0.0.1", str(port)]), ("", [*inside, *script, name, str(port)])):
            done = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, text=True)
            count, *lags = (float(word) for word in done.stdout.split())
            if count != EVENTS:
                sys.exit(f"bench: {count} of {EVENTS} events arrived")
            found[against].append(lags)
    for index, which in enumerate(("median", "99th percentile")):
        for against, rounds in found.items():
            values = [lags[index] for lags in rounds]
            shown = f"event stream, lag, {which}{', direct' if against else ''}"
            bench.add(shown, values, "ms", "", "" if against else "<= 5")


def network_process(run: Interactive) -> int:
    return next(pid for pid in children(run.pid) if b"membrane.gateway" in cmdline(pid))


def peak(pid: int) -> float:
    """MB: the largest resident set since ``clear_refs`` was written."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def memory(bench: Bench, inside: list[str], work: Path, place: str, down: str, up: str) -> None:
    """MB that a gigabyte takes of the gateway at its peak, each way, over HTTP/2."""
    with (work / "files" / "large-one").open("wb") as file:
        file.truncate(GIGABYTE)
    take = f"curl -ksSf --http2 {down}/large-one | wc -c >bytes"
    give = f"head -c {GIGABYTE} /dev/zero | curl -ksSf --http2 -o bytes -T - {up}/up"
    with Interactive([*inside, "bash", "-c", INTERACTIVE], place) as run:
        pid = network_process(run)
        run.say(f"curl -ksS --http2 -o /dev/null {down}/a")
        for name, command in (("download", take), ("upload", give)):
            before = rss(pid)
            # Only root may: it is not dumpable (proc(5)).  Else the peak is that since its start, which is no less.
            with contextlib.suppress(PermissionError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            run.say(command)
            arrived = Path(place, "bytes").read_text().strip()
            if arrived != str(GIGABYTE):
                sys.exit(f"bench: {arrived or 'no'} bytes arrived: {command}")
            grown = peak(pid) - before
            bench.add(f"1 GB {name} over HTTP/2, RSS before", [before], "MB", "", "")
            bench.add(f"1 GB {name} over HTTP/2, RSS at its peak", [before + grown], "MB", "", "<= before + 8")


def new_connections(bench: Bench, inside: list[str], place: str, url: str, nginx: int) -> None:
    """What a new connection with one request costs on each side, and how many that is on two processors."""
    costs: dict[str, list[float]] = {"gateway": [], "session": [], "nginx": [], "client": []}
    rates = []
    with Interactive([*inside, "bash", "-c", INTERACTIVE], place) as run:
        network = network_process(run)
        run.say(f"h2load --h1 -n 20 -c 2 {url}")
        for _ in range(5):
            workers = {"gateway": [network], "session": [run.pid], "nginx": children(nginx)}
            before = {name: sum(map(cpu, pids)) for name, pids in workers.items()}
            client = run.say(f"h2load --h1 -n {CONNECTIONS} -c {CONNECTIONS} {url}")
            spent = {name: sum(map(cpu, pids)) - before[name] for name, pids in workers.items()}
            spent["client"] = sum(map(float, client.split()))
            for name, seconds in spent.items():
                costs[name].append(1e6 * seconds / CONNECTIONS)
            # Nobody does it faster than the one process through which all goes, nor than both processors together.
            each = sum(spent.values()) / CONNECTIONS
            rates.append(min(CONNECTIONS / spent["gateway"], 2 / each))
    for name, values in costs.items():
        bench.add(f"new connection with a request, CPU of {name}", values, "us", "", "")
    bench.add("TLS handshakes that two processors do", rates, "per s", "by CPU", ">= 500")
