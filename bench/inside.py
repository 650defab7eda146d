"""``--backend landlock`` against the native one, in turns: a start with and without hidden names, and a connection.

Wall time moves with what else the machine does; processor time hardly, so each start has both.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .tools import membrane, ratios

ROUNDS = 15
CONNECTIONS = 300  # of a round


class Rows(Protocol):
    def add(self, name: str, values: list[float], unit: str, against: str, target: str) -> None: ...


def bench_inside(
    bench: Rows,
    work: str,
    server: Callable[[], AbstractContextManager[int]],
    load: Callable[..., list[str]],
    source: Path,
) -> None:
    """``server``, ``load``, ``source``: of the network's bench, and the file of the load generator."""
    plain, hidden = os.path.join(work, "plain"), os.path.join(work, "hidden")
    for place in (plain, hidden):
        os.makedirs(os.path.join(place, ".git", "objects"), exist_ok=True)
    Path(hidden, ".env").write_text("KEY=hidden\n")
    for name, place in (("", plain), (", hidden names", hidden)):
        walls, processors = _starts(place)
        bench.add(f"landlock: a start{name}, wall", walls, "x", "native", "<= 1.2")
        bench.add(f"landlock: a start{name}, processor", processors, "x", "native", "<= 1.2")
    with server() as port:
        shutil.copy(source, plain)
        words = load("latency", "host.internal", str(port), str(CONNECTIONS))
        allow = f"-a=host.internal:{port}"
        a, b = [], []
        for _round in range(ROUNDS):
            for backend, times in (("landlock", a), ("native", b)):
                said = subprocess.run(
                    membrane("--quiet", "--backend", backend, "--no-trace", allow, "--", *words),
                    cwd=plain,
                    check=True,
                    stdout=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                )
                times.append(json.loads(said.stdout)["median_ms"])
        bench.add("landlock: a connection", a, "ms", "", "")
        bench.add("landlock: a connection, ratio", ratios(a, b), "x", "native", "<= 3")


_TURNS = ("landlock", "native")


def _starts(place: str) -> tuple[list[float], list[float]]:
    """Ratios of wall and of processor time of one start after the other; the first round warms the caches."""
    pairs = []
    for _round in range(ROUNDS + 1):
        ours, native = (_start(membrane("--quiet", "--backend", each, "--", "true"), place) for each in _TURNS)
        pairs.append((ours[0] / native[0], ours[1] / native[1]))
    walls, processors = zip(*pairs[1:], strict=True)
    return list(walls), list(processors)


def _start(argv: Sequence[str], place: str) -> tuple[float, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, cwd=place, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
