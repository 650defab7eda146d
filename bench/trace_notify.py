"""``python -m bench.trace_notify``: what the tracer costs, each figure paired with the same run under ``--no-trace``.

The rows are printed as those of ``python -m bench``; the targets are those of the design.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import __main__ as bench

EXECS = "i=0; while [ $i -lt 5000 ]; do /bin/true; i=$((i+1)); done"
FILES = "import os\nfor i in range(5000):\n    open(f'f{i}', 'w').close()\n    os.unlink(f'f{i}')\n"
SOURCES = 200


def _pair(
    command: Sequence[str], work: str, rounds: int, options: Sequence[str] = ()
) -> tuple[list[float], list[float]]:
    traced = bench.membrane("--quiet", *options, "--", *command)
    untraced = bench.membrane("--quiet", "--no-trace", "--", *command)
    return bench.alternate(lambda: bench.seconds(traced, work), lambda: bench.seconds(untraced, work), rounds)


def measure(rows: bench.Bench, work: str) -> None:
    """Start, many programs, a build, many files."""
    a, b = _pair(["true"], work, 25)
    rows.add("trace notify: true", [1000 * (x - y) for x, y in zip(a, b, strict=True)], "ms more", "--no-trace", "<= 8")
    a, b = _pair(["sh", "-c", EXECS], work, 3)
    rows.add("trace notify: 5,000 programs", bench.ratios(a, b), "x", "--no-trace", "<= 1.5")
    for number in range(SOURCES):
        Path(work, f"f{number}.c").write_text(f"int f{number}(void) {{ return {number}; }}\n")
    Path(work, "Makefile").write_text(
        f"all: {' '.join(f'f{number}.o' for number in range(SOURCES))}\nclean:\n\trm -f *.o\n"
    )
    a, b = _pair(["sh", "-c", "make -s -j2 all && make -s clean"], work, 3)
    rows.add(f"trace notify: make of {SOURCES} C files", bench.ratios(a, b), "x", "--no-trace", "<= 1.5")
    a, b = _pair(["python3", "-S", "-c", FILES], work, 3)
    per_event = [1e6 * (x - y) / 10_000 for x, y in zip(a, b, strict=True)]
    rows.add("trace notify: open to write, unlink", per_event, "us each", "--no-trace", "")
    events = os.path.join(work, "events.jsonl")
    a, b = _pair(["python3", "-S", "-c", FILES], work, 3, ["--events", events])
    per_event = [1e6 * (x - y) / 10_000 for x, y in zip(a, b, strict=True)]
    rows.add("trace notify: the same with --events", per_event, "us each", "--no-trace", "")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        work = os.path.join(directory, "work")
        os.mkdir(work)
        os.environ["MEMBRANE_HOME"] = os.path.join(directory, "home")
        measure(bench.Bench(), work)
