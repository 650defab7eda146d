"""The library: a run in a warm process, many at once, a change of the rules, memory; against sandlock where it is."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from .tools import children

ROUNDS = 200
SANDBOXES = 10
AT_ONCE = 100


def bench_library(bench: Any, work: str) -> None:
    """Rows of issue 5: ``true`` with network rules."""
    from membrane import Policy, Sandbox

    policy = Policy().allow("example.com:443", "10.0.0.0/8")
    with Sandbox(policy, workspace=work) as sandbox:
        ours, bare, theirs = [], [], []
        sandlock = _sandlock()
        for _ in range(ROUNDS):
            ours.append(_milliseconds(lambda: sandbox.run(["true"])))
            bare.append(_milliseconds(lambda: subprocess.run(["true"], check=True, capture_output=True)))
            if sandlock is not None:
                theirs.append(_milliseconds(sandlock))
        bench.add("Sandbox.run(true), warm", ours, "ms", "", "<= 8")
        bench.add("subprocess.run(true)", bare, "ms", "", "")
        if theirs:
            bench.add("sandlock run(true)", theirs, "ms", "", "5")
            medians = [statistics.median(ours) / statistics.median(theirs)]
            bench.add("Sandbox.run / sandlock", medians, "x", "sandlock", "<= 1")
        with Sandbox(policy, workspace=work, persistent=True) as kept:
            times = [_milliseconds(lambda: kept.run(["true"])) for _ in range(ROUNDS)]
        bench.add("persistent Sandbox.run(true)", times, "ms", "", "")
        bench.add("runs, 100 at once", [_many(sandbox) for _ in range(5)], "per s", "", ">= 120")
        bench.add("update(policy)", [_update(sandbox, policy) for _ in range(20)], "ms", "", "<= 10")
    opens = [_milliseconds(lambda: Sandbox(policy, workspace=work).open().close()) for _ in range(7)]
    bench.add("open and close a Sandbox", opens, "ms", "", "")
    made = [Sandbox(policy, workspace=work).open() for _ in range(SANDBOXES)]
    try:
        time.sleep(0.5)  # until nothing is being made ready any more
        sizes = [_private(_supervisor(sandbox)) for sandbox in made]
    finally:
        for sandbox in made:
            sandbox.close()
    if all(sizes):
        bench.add("memory of an idle Sandbox", sizes, "MB", "private", "<= 12")


def _milliseconds(action: Any) -> float:
    begin = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - begin)


def _sandlock() -> Any:
    """One run of sandlock (``pip install sandlock==0.9``) with rules like ours; None where it is not installed."""
    if importlib.util.find_spec("sandlock") is None:
        return None
    import sandlock

    system = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/dev", "/proc") if os.path.exists(path)]
    box = sandlock.Sandbox(
        fs_readable=system, fs_writable=["/tmp"], net_allow=["tcp://10.0.0.0/8:443", "tcp://127.0.0.1:443"]
    )
    return lambda: box.run(["true"])


def _many(sandbox: Any) -> float:
    """Runs a second when so many are asked for at once."""
    threads = [threading.Thread(target=lambda: sandbox.run(["true"])) for _ in range(AT_ONCE)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return AT_ONCE / (time.perf_counter() - begin)


def _update(sandbox: Any, policy: Any) -> float:
    """Until another decision is in force: ``update`` returns when the gateway has confirmed it."""
    return _milliseconds(lambda: sandbox.update(policy.allow("other.example.com")))


def _supervisor(sandbox: Any) -> int:
    return int(sandbox._core._process.pid)


def _private(pid: int) -> float:
    """MB that only these processes have (Private_* of /proc/PID/smaps_rollup), with all below; 0: not readable."""
    total = 0
    todo = [pid]
    while todo:
        one = todo.pop()
        todo += children(one)
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0.0
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return total / 1024
