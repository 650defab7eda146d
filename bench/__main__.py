"""``python -m bench [--json FILE] [NAME ...]``: run the benchmarks, print a table, optionally write JSON.

Theory of operation
-------------------
Every figure is a ratio against something measured in the same run, alternating A B A B, so that a slow or busy
machine moves both.  The median of the rounds is printed with the smallest and the largest.  ``target`` is what the
project aims for; a miss is shown, never hidden, and never fails a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .http import bench_http
from .images import bench_images
from .inside import bench_inside
from .library import bench_library
from .review import bench_review
from .tools import Interactive, children, cmdline, cpu, membrane, ratios, rss

LOAD = Path(__file__).with_name("load.py")
ROUNDS = 15


class Bench:
    """Collects rows: name, value, unit, what it is compared with, target."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, name: str, values: Sequence[float], unit: str, against: str, target: str) -> None:
        ordered = sorted(values)
        row = {
            "name": name,
            "median": ordered[len(ordered) // 2],
            "min": ordered[0],
            "max": ordered[-1],
            "unit": unit,
            "against": against,
            "target": target,
        }
        self.rows.append(row)
        print(
            f"{name:<44} {row['median']:>10.3f} {unit:<8} ({row['min']:.3f} to {row['max']:.3f})"
            f"  {against}  [{target}]",
            flush=True,
        )


def seconds(argv: Sequence[str], cwd: str) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - begin


def alternate(a: Callable[[], float], b: Callable[[], float], rounds: int = ROUNDS) -> tuple[list[float], list[float]]:
    a()
    b()
    pairs = [(a(), b()) for _ in range(rounds)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def bench_start(bench: Bench, work: str) -> None:
    """A whole run of ``true`` with the network armed, against the bare interpreter."""
    run = membrane("--quiet", "-a", "example.com", "--", "true")
    base = [sys.executable, "-c", "pass"]
    a, b = alternate(lambda: seconds(run, work), lambda: seconds(base, work))
    bench.add("membrane -- true", [1000 * x for x in a], "ms", "", "")
    bench.add("membrane -- true / python -c pass", ratios(a, b), "x", "bare interpreter", "<= 3")
    ours = shutil.which("srt", path=os.path.dirname(sys.executable))
    if ours:
        a, b = alternate(lambda: seconds([ours, "true"], work), lambda: seconds(run, work))
        bench.add("srt true / membrane -- true", ratios(a, b), "x", "membrane", "<= 1.2")
    original = sandbox_runtime()
    if original:
        a, b = alternate(lambda: seconds(run, work), lambda: seconds([original, "true"], work), 5)
        bench.add("membrane -- true / srt true of npm", ratios(a, b), "x", "sandbox-runtime", "<= 0.15")


def sandbox_runtime() -> str:
    """The path of npm's ``srt``: ``$SANDBOX_RUNTIME``, or the first one in PATH that is Node's; empty without one."""
    for path in (os.environ.get("SANDBOX_RUNTIME", ""), *(f"{d}/srt" for d in os.environ["PATH"].split(":"))):
        if os.access(path, os.X_OK) and b"node" in Path(path).read_bytes()[:80]:
            return path
    return ""


def bench_tree(bench: Bench, work: str) -> None:
    """What a workspace of 6,000 files with 10 patterns, and 10,000 masks, add to a start."""
    tree, masked = os.path.join(work, "tree"), os.path.join(work, "masked")
    for number in range(6000):
        path = os.path.join(tree, f"d{number // 20}", f"f{number}.txt")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    for number in range(10_000):
        path = os.path.join(masked, f"d{number // 100}", f"s{number}.secret")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    old = time.time() - 60  # settled: not within the granularity of a time stamp
    for root in (tree, masked):
        for directory, _names, _files in os.walk(root):
            os.utime(directory, (old, old))
    time.sleep(2.5)  # ctime cannot be set back: a tree younger than 2 s is listed again at each start
    empty = os.path.join(work, "empty")
    os.makedirs(empty, exist_ok=True)
    plain = membrane("--quiet", "--", "true")
    patterns = [f"-i=*.x{n}" for n in range(8)] + ["-i=secrets/", "-r=*.pem"]
    a, b = alternate(lambda: seconds(membrane("--quiet", *patterns, "--", "true"), tree), lambda: seconds(plain, empty))
    bench.add("6,000 files, 10 patterns", [1000 * (x - y) for x, y in zip(a, b, strict=True)], "ms more", "", "<= 10")
    a, b = alternate(
        lambda: seconds(membrane("--quiet", "-i=*.secret", "--", "true"), masked), lambda: seconds(plain, empty), 7
    )
    bench.add("10,000 masks", [1000 * (x - y) for x, y in zip(a, b, strict=True)], "ms more", "", "<= 100")


class Server:
    """``load.py serve`` on host loopback."""

    def __enter__(self) -> int:
        read, write = os.pipe()
        self.process = subprocess.Popen([sys.executable, str(LOAD), "serve", str(write)], pass_fds=(write,))
        os.close(write)
        with os.fdopen(read) as pipe:
            return int(pipe.readline())

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()


def load(*args: str) -> list[str]:
    """The load generator with an interpreter that is visible in every sandbox."""
    return ["/usr/bin/python3", "-I", "-S", "load.py", *args]


def measure(argv: Sequence[str], cwd: str) -> dict[str, float]:
    out = subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
    return dict(json.loads(out))


def bench_network(bench: Bench, work: str) -> None:
    """One stream, new connections, latency and DNS, inside against direct loopback."""
    shutil.copy(LOAD, os.path.join(work, "load.py"))
    with Server() as port:
        allow = f"-a=host.internal:{port}"

        def inside(*args: str) -> dict[str, float]:
            return measure(membrane("--quiet", allow, "--", *load(*args)), work)

        def direct(*args: str) -> dict[str, float]:
            return measure(load(*args), work)

        p = str(port)
        up, down = [], []
        for _ in range(5):
            a, b = inside("stream", "host.internal", p, "1024"), direct("stream", "127.0.0.1", p, "1024")
            up.append(a["up"] / b["up"])
            down.append(a["down"] / b["down"])
        bench.add("one stream, up", up, "x", "direct loopback", ">= 0.7")
        bench.add("one stream, down", down, "x", "direct loopback", ">= 0.7")
        rate, ratio = [], []
        for _ in range(5):
            a, b = inside("connections", "host.internal", p, "2"), direct("connections", "127.0.0.1", p, "2")
            rate.append(a["per_second"])
            ratio.append(a["per_second"] / b["per_second"])
        bench.add("new connections", rate, "per s", "", ">= 3000")
        bench.add("new connections, ratio", ratio, "x", "direct loopback", ">= 0.3")
        added = []
        for _ in range(5):
            a, b = inside("latency", "host.internal", p, "500"), direct("latency", "127.0.0.1", p, "500")
            added.append(a["median_ms"] - b["median_ms"])
        bench.add("latency added per connection", added, "ms", "direct loopback", "<= 0.5")
        answers = [inside("dns", "198.18.0.1", "host.internal", "2")["per_second"] for _ in range(3)]
        bench.add("DNS answers", answers, "per s", "", ">= 20000")
        with Interactive(membrane("--quiet", allow, "--", *load("counted", "host.internal", p, "500")), work) as run:
            network = [pid for pid in children(run.pid) if b"membrane.gateway" in cmdline(pid)]
            spent: dict[int, list[float]] = {run.pid: [], network[0]: []}
            for _ in range(ROUNDS):
                before = {pid: cpu(pid) for pid in spent}
                run.say("go")
                for pid, times in spent.items():
                    times.append(1e6 * (cpu(pid) - before[pid]) / 1000)
            bench.add("gateway, CPU per connection", spent[network[0]], "us", "", "")
            bench.add("supervisor, CPU per connection", spent[run.pid], "us", "", "")
            bench.add("supervisor RSS", [rss(run.pid)], "MB", "", "<= 20")
            bench.add("gateway RSS", [rss(network[0])], "MB", "", "<= 45")


def bench_landlock(bench: Bench, work: str) -> None:
    """The backend without namespaces."""
    bench_inside(bench, work, Server, load, LOAD)


def bench_many(bench: Bench, work: str) -> None:
    """200 sandboxes at once."""
    begin = time.perf_counter()
    runs = [
        subprocess.Popen(membrane("--quiet", "--", "sh", "-c", "read line; exit 7"), cwd=work, stdin=subprocess.PIPE)
        for _ in range(200)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.close()
    wrong = sum(run.wait() != 7 for run in runs)
    bench.add("200 sandboxes at once", [time.perf_counter() - begin], "s", "", "no error")
    bench.add("200 sandboxes at once, errors", [wrong], "", "", "0")


def bench_nested(bench: Bench, work: str) -> None:
    """Engines of containers inside."""
    from bench import containers

    containers.bench_containers(bench, work, Server(), load())


def bench_ebpf(bench: Bench, work: str) -> None:
    """The eBPF source of events."""
    from bench import trace

    trace.ebpf(bench, work)


BENCHES = {
    "start": bench_start,
    "tree": bench_tree,
    "review": bench_review,
    "images": bench_images,
    "network": bench_network,
    "inside": bench_landlock,
    "many": bench_many,
    "http": bench_http,
    "library": bench_library,
    "containers": bench_nested,
    "ebpf": bench_ebpf,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help=f"of {', '.join(BENCHES)}; default all")
    parser.add_argument("--json", metavar="FILE", help="write the rows there as well")
    options = parser.parse_args()
    bench = Bench()
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors, uid {os.geteuid()}")
    with tempfile.TemporaryDirectory(prefix="membrane-bench-") as work, tempfile.TemporaryDirectory() as home:
        os.environ["MEMBRANE_HOME"] = home
        for name in options.names or BENCHES:
            BENCHES[name](bench, work)
    if options.json:
        Path(options.json).write_text(json.dumps(bench.rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
