"""Inspected HTTP against mitmproxy: the same clients, the same origin, both in one run.

Theory of operation
-------------------
The origin is nginx on the host's loopback; the clients are h2load, wrk and curl, which cost little, so that on few
processors the proxy is what is measured.  ``mitmdump`` is a reverse proxy that streams; it is installed into a
throw-away environment unless ``MEMBRANE_BENCH_MITMDUMP`` names one.  Debian: ``nginx-light nghttp2-client wrk curl
nodejs``.

Rounds alternate: direct, membrane, mitmproxy.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .http_streams import event_origin, lag, memory, new_connections, upload_origin
from .tools import Interactive, children, cmdline, cpu, membrane, ratios, rss

if TYPE_CHECKING:
    from .__main__ import Bench

ROUNDS = 3
LARGE = 128  # MB
NAME = "host.internal"
NGINX = """
daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; worker_processes 1; {user}
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; http2_max_requests 1000000; http2_max_concurrent_streams 256;
  client_body_temp_path {work}/b; proxy_temp_path {work}/p; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u;
  scgi_temp_path {work}/s;
  server {{
    listen 127.0.0.1:{port} ssl http2;
    ssl_certificate {work}/origin.pem; ssl_certificate_key {work}/origin.pem; root {work}/files;
    location / {{ default_type application/json; return 200 '{{"answer": "{filler}"}}'; }}
    location /large {{ try_files $uri =404; }}
  }}
}}
"""
HOLD = """
import socket, ssl, sys
context = ssl._create_unverified_context()
links = []
for _ in range(100):
    plain = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    link = context.wrap_socket(plain, server_hostname="host.internal")
    link.sendall(b"GET /a HTTP/1.1\\r\\nHost: host.internal:%d\\r\\n\\r\\n" % int(sys.argv[2]))
    assert link.recv(65536).startswith(b"HTTP/1.1 200"), sys.argv
    links.append(link)
print("open", flush=True)
sys.stdin.readline()
"""


def make_certificates(work: Path) -> None:
    """``ca.pem``, and ``origin.pem`` for ``host.internal``, with openssl(1)."""
    (work / "san").write_text(f"subjectAltName=DNS:{NAME},DNS:localhost\n")
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for argv in (
        ["req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=bench", "-days", "2"],
        ["req", *ec, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=bench leaf"],
        ["x509", "-req", "-in", "leaf.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "leaf.pem",
         "-days", "2", "-extfile", "san"],
    ):  # fmt: skip
        subprocess.run(["openssl", *argv], cwd=work, check=True, capture_output=True)
    (work / "origin.pem").write_text((work / "leaf.pem").read_text() + (work / "leaf.key").read_text())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(argv: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it listens."""
    null = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=null, stdout=null, stderr=null) as process:
        try:
            for _ in range(600):
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            else:
                sys.exit(f"bench: {argv[0]} does not listen")
            yield process
        finally:
            process.terminate()


def mitmdump(work: Path) -> str:
    """The program; installed when no variable names one."""
    named = os.environ.get("MEMBRANE_BENCH_MITMDUMP")
    if named:
        return named
    subprocess.run([sys.executable, "-m", "venv", str(work / "mitm")], check=True)
    pip = [str(work / "mitm" / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "mitmproxy"]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    return str(work / "mitm" / "bin" / "mitmdump")


def tool(argv: list[str], pattern: str) -> tuple[str, ...]:
    """What a load generator printed, as far as ``pattern`` is about it."""
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    text = done.stdout.decode(errors="replace")
    found = re.search(pattern, text)
    if not found or re.search("[1-9][0-9]* failed,", text):
        sys.exit(f"bench: {argv}: {text}\n{done.stderr.decode(errors='replace')}")
    return found.groups()


def h2load(prefix: list[str], url: str, *options: str) -> float:
    """Requests a second."""
    pattern = r"finished in [^,]*, ([0-9.]+) req/s"
    return float(tool([*prefix, "h2load", *options, url], pattern)[0])


def megabytes(prefix: list[str], url: str) -> float:
    """MB a second of one large download with curl, without the handshake."""
    options = ["-k", "-sS", "-o", "/dev/null", "-w", "%{size_download} %{time_starttransfer} %{time_total} end"]
    size, begin, end = tool([*prefix, "curl", *options, url], r"(\d+) ([0-9.]+) ([0-9.]+) end")
    return float(size) / 1e6 / (float(end) - float(begin))


def median_ms(prefix: list[str], url: str) -> float:
    """Milliseconds from request to answer on one kept connection."""
    found = tool([*prefix, "wrk", "-t1", "-c1", "-d2s", "--latency", url], r"50%\s+([0-9.]+)(us|ms|s)")
    return float(found[0]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[1]]


def handshakes(prefix: list[str], url: str) -> float:
    """New connections a second, each with one request."""
    argv = [*prefix, "wrk", "-t1", "-c16", "-d3s", "-H", "Connection: close", url]
    return float(tool(argv, r"Requests/sec:\s+([0-9.]+)")[0])


def first_ms(prefix: list[str], url: str) -> float:
    """Milliseconds of the first request of a session, from the client's start to its end."""
    options = ["-k", "-sS", "-o", "/dev/null", "-w", "%{time_total} end"]
    return 1000 * float(tool([*prefix, "curl", *options, url], r"([0-9.]+) end")[0])


def bench_http(bench: Bench, work_name: str) -> None:
    """Requests a second, MB a second, latency, handshakes and memory, against mitmproxy."""
    missing = [name for name in ("nginx", "h2load", "wrk", "curl", "openssl", "node") if not find(name)]
    if missing:
        print(f"http: not run, {', '.join(missing)} not installed")
        return
    work = Path(work_name) / "http"
    (work / "files").mkdir(parents=True)
    make_certificates(work)
    with (work / "files" / "large").open("wb") as file:
        file.truncate(LARGE * 1_000_000)
    port, other = free_port(), free_port()
    user = "" if os.getuid() else "user root;"
    config = work / "nginx.conf"
    config.write_text(NGINX.format(work=work, port=port, user=user, filler="x" * 200))
    policy = Path(os.environ["MEMBRANE_HOME"]) / "config.yaml"
    inside = membrane("--quiet", f"--extra-ca={work}/ca.pem", "--")
    server = [find("nginx"), "-c", str(config), "-p", str(work), "-e", str(work / "nginx.log")]
    proxy = [mitmdump(work), "-q", "--mode", f"reverse:https://127.0.0.1:{port}", "--listen-host", "127.0.0.1",
        "-p", str(other), "--set", "ssl_insecure=true", "--set", "stream_large_bodies=1",
        "--set", f"confdir={work}/mitmconf", "--set", "keep_host_header=true"]  # fmt: skip
    load = os.getloadavg()[0]
    print(f"http: load average {load:.2f} before; nginx, h2load and the proxy share {os.cpu_count()} processors")
    with (
        running(server, port) as nginx,
        running(proxy, other) as mitm,
        event_origin(work) as events,
        upload_origin(work, find("node")) as uploads,
    ):
        rules = [f"  - {{dest: 'https://{NAME}:{each}', inspect: true}}\n" for each in (port, events, uploads)]
        policy.write_text(f"presets: []\nallow:\n{''.join(rules)}")
        ways: list[tuple[list[str], str]] = [
            ([], f"https://localhost:{port}"), (inside, f"https://{NAME}:{port}"), ([], f"https://localhost:{other}"),
        ]  # fmt: skip
        for prefix, url in ways:
            first_ms(prefix, f"{url}/a")

        def rounds(measure: Callable[[list[str], str], float], count: int = ROUNDS) -> list[list[float]]:
            taken = [[measure(prefix, url) for prefix, url in ways] for _ in range(count)]
            return [list(column) for column in zip(*taken, strict=True)]

        def compare(name: str, unit: str, target: str, measure: Callable[[list[str], str], float]) -> None:
            direct, ours, theirs = rounds(measure)
            bench.add(f"{name}", ours, unit, "", "")
            bench.add(f"{name}, direct", direct, unit, "", "")
            bench.add(f"{name}, mitmproxy", theirs, unit, "", "")
            bench.add(f"{name}, ratio", ratios(ours, theirs), "x", "mitmproxy", target)

        def requests(prefix: list[str], url: str, *options: str) -> float:
            count = "500" if url.endswith(str(other)) else "4000"  # it would take a minute for as many
            return h2load(prefix, f"{url}/a", "-n", count, "-t", "1", *options)

        h1, h2 = ("--h1", "-c", "10"), ("-c", "4", "-m", "25")
        compare("requests, HTTP/1.1", "per s", ">= 2", lambda prefix, url: requests(prefix, url, *h1))
        compare("requests, HTTP/2", "per s", ">= 8", lambda prefix, url: requests(prefix, url, *h2))
        compare("one download", "MB/s", ">= 1.5", lambda prefix, url: megabytes(prefix, f"{url}/large"))
        direct, ours, theirs = rounds(lambda prefix, url: median_ms(prefix, f"{url}/a"))
        bench.add("latency added, median", [x - y for x, y in zip(ours, direct, strict=True)], "ms", "direct", "<= 1")
        bench.add("latency added, mitmproxy", [x - y for x, y in zip(theirs, direct, strict=True)], "ms", "direct", "")
        _, ours, theirs = rounds(lambda prefix, url: handshakes(prefix, f"{url}/a"))
        bench.add("TLS handshakes, all sides on this machine", ours, "per s", "", "")
        bench.add("TLS handshakes, all sides, mitmproxy", theirs, "per s", "", "")
        new_connections(bench, inside, work_name, f"https://{NAME}:{port}/a", nginx.pid)
        lag(bench, inside, NAME, events)
        memory(bench, inside, work, work_name, f"https://{NAME}:{port}", f"https://{NAME}:{uploads}")
        first = [first_ms(inside, f"https://{NAME}:{port}/a") for _ in range(5)]
        bench.add("first intercepted request", first, "ms", "", "<= 200")
        # What a request costs the one process that all requests go through, whoever else uses the machine.
        url = f"https://{NAME}:{port}/a"
        told = f"echo ready; while read -r options; do h2load $options {url} >/dev/null 2>&1; echo done; done"
        with Interactive([*inside, "bash", "-c", told], work_name) as run:
            network = [pid for pid in children(run.pid) if b"membrane.gateway" in cmdline(pid)]
            run.say("--h1 -n 20 -c 2")
            for name, options, count in (
                ("HTTP/1.1 request", "--h1 -n 2000 -c 4", 2000),
                ("HTTP/2 request", "-n 4000 -c 1 -m 25", 4000),
            ):
                spent = []
                for _ in range(ROUNDS):
                    before = cpu(network[0])
                    run.say(options)
                    spent.append(1e6 * (cpu(network[0]) - before) / count)
                bench.add(f"gateway, CPU per {name}", spent, "us", "", "")
        hold = ["/usr/bin/python3", "-I", "-c", HOLD]
        with Interactive([*inside, *hold, NAME, str(port)], work_name) as run:
            network = [pid for pid in children(run.pid) if b"membrane.gateway" in cmdline(pid)]
            bench.add("gateway RSS, 100 connections", [rss(network[0])], "MB", "", "<= 60")
        with Interactive([*hold, "127.0.0.1", str(other)], work_name):
            bench.add("mitmproxy RSS, 100 connections", [rss(mitm.pid)], "MB", "", "")
    print(f"http: load average {os.getloadavg()[0]:.2f} after")


def find(name: str) -> str:
    """A program, also of the administrator's."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""
