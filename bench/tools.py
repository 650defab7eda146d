"""What several benchmarks use: the program under test, a command that talks, what a process costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def membrane(*args: str) -> list[str]:
    program = shutil.which("membrane", path=os.path.dirname(sys.executable)) or shutil.which("membrane")
    if program is None:
        sys.exit("bench: install the package first (pip install .)")
    return [program, *args]


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


class Interactive:
    """A command that says a line when it is ready and one for each line that it is told."""

    def __init__(self, argv: Sequence[str], cwd: str) -> None:
        self._process = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Interactive:
        self._hear()
        return self

    def say(self, line: str) -> str:
        """Tell it a line and wait for the answer."""
        self._input.write(line.encode() + b"\n")
        self._input.flush()
        return self._hear()

    def _hear(self) -> str:
        heard = self._output.readline()
        if not heard:
            sys.exit(f"bench: the command ended, status {self._process.wait()}")
        return heard.decode(errors="replace").strip()

    def __exit__(self, *_exc: object) -> None:
        self._input.close()
        self._process.wait()


def cpu(pid: int) -> float:
    """Seconds on a processor, to the nanosecond (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
