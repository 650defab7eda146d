"""Reviewed workspaces against live ones, in turns: starts, everyday work, checkpoints, forks, diff, apply, undo.

What a machine's other work disturbs least is the smallest of many rounds; the figures of ``git status`` are of the
first one in a run, which asks for every name anew (overlayfs has nothing cached then), and of those after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .tools import membrane, ratios

ROUNDS = 9
FILES = 20_000
APPLIED = 8_000  # files that a command makes in an empty workspace
COMPARED = 100_000  # files of a workspace of which a command changes every hundredth
MASKED = 10_000  # hidden files in a workspace of ``FILES``
CREATE = """
import os
for number in range({files}):
    if number % 20 == 0:
        os.mkdir(f"d{{number // 20}}")
    with open(f"d{{number // 20}}/f{{number}}", "w") as file:
        file.write(f"{{number}}\\n" * 50)
"""
CHANGE = """
for number in range(0, {files}, 100):
    with open(f"d{{number // 20}}/f{{number}}", "a") as file:
        file.write("more\\n")
"""


_TIMED = 'a=$EPOCHREALTIME; {} > /dev/null; b=$EPOCHREALTIME; awk "BEGIN {{ print $b - $a }}"'


class Rows(Protocol):
    def add(self, name: str, values: list[float], unit: str, against: str, target: str) -> None: ...


def bench_review(bench: Rows, work: str) -> None:
    """Starts for 10 to 100,000 files and with many masks; git and make; a checkpoint, a fork; apply, undo, diff."""
    small, large = _tree(os.path.join(work, "ten"), 10), _tree(os.path.join(work, "many"), FILES)
    time.sleep(2.5)  # settled, as in ``bench_tree``
    for name, place in (("10 files", small), (f"{FILES:,} files", large)):
        _bench_start(bench, name, place)
    for name, script, target in (
        (f"git status, {FILES:,} files, the first", _TIMED.format("git status"), "<= 1.2"),
        (f"git status, {FILES:,} files, the next", "git status > /dev/null; " + _TIMED.format("git status"), "<= 1.2"),
        ("make, 200 files", _TIMED.format("make -s -B"), "<= 1.1"),
    ):
        a, b = _turns(large, ["bash", "-c", script], inside=True)
        bench.add(f"review: {name}", ratios(a, b), "x", "live", target)
    for name, target in (("checkpoint", "<= 10"), ("fork", "<= 30")):
        found = []
        for number in range(ROUNDS):
            change = ["bash", "-c", f"echo {number} > changed"]
            subprocess.run(membrane("-q", "--review=bench", "--", *change), cwd=large, check=True)
            found.append(1000 * _operation(name, f"n{number}"))
        bench.add(f"review: {name} of {FILES:,} files", found, "ms", "", target)
    for number in range(MASKED):
        Path(large, f"d{number // 20}", f"{number}.hidden").touch()
    Path(large, ".membrane.yaml").write_text('ignore: ["*.hidden"]\n')
    time.sleep(2.5)
    _bench_start(bench, f"{MASKED:,} hidden names", large)
    _bench_apply(bench, work)
    _bench_diff(bench, work)


def _bench_start(bench: Rows, name: str, place: str) -> None:
    a, b = _turns(place, ["true"])
    more = [1000 * (x - y) for x, y in zip(a, b, strict=True)]
    bench.add(f"review: a start more than live, {name}", more, "ms", "live", "<= 5")


def _bench_apply(bench: Rows, work: str) -> None:
    """The whole program against ``cp -a`` of the same layer, and what takes it back against ``apply``.

    Nothing is removed before both were measured: ext4 without a journal does not give the inodes of the last seconds
    out again, and looks at each of them for every new file.
    """
    found, back = [], []
    for number in range(3):
        place = os.path.join(work, f"apply{number}")
        os.mkdir(place)
        _made(place, f"apply{number}", CREATE.format(files=APPLIED))
        upper = _upper(f"apply{number}")
        found.append((_seconds(membrane("apply", f"apply{number}"), place), _seconds(["cp", "-a", upper, "to"], place)))
    for number in range(3):
        back.append(
            (_seconds(membrane("undo", f"apply{number}"), os.path.join(work, f"apply{number}")), found[number][0])
        )
    bench.add(f"review: apply, {APPLIED:,} files", ratios(*zip(*found, strict=True)), "x", "cp -a", "<= 2")
    bench.add(f"review: undo, {APPLIED:,} files", ratios(*zip(*back, strict=True)), "x", "apply", "<= 1")


def _bench_diff(bench: Rows, work: str) -> None:
    place = os.path.join(work, "large")
    os.mkdir(place)
    subprocess.run([sys.executable, "-c", CREATE.format(files=COMPARED)], cwd=place, check=True)
    time.sleep(2.5)  # settled, as above
    _bench_start(bench, f"{COMPARED:,} files", place)
    _made(place, "diff", CHANGE.format(files=COMPARED))
    found = [_seconds(membrane("diff", "diff"), place) for _ in range(ROUNDS)]
    bench.add(f"review: diff, {COMPARED // 100:,} changed files of {COMPARED:,}", found, "s", "", "<= 0.5")


def _made(place: str, name: str, script: str) -> None:
    command = membrane("-q", f"--review={name}", "--", "python3", "-c", script)
    subprocess.run(command, cwd=place, check=True, stdin=subprocess.DEVNULL)


def _upper(name: str) -> str:
    from membrane.changes import store

    state = os.environ["MEMBRANE_HOME"]
    return store.uppers(state, store.read(state, name).layers)[-1]


def _seconds(command: list[str], place: str) -> float:
    os.sync()
    begin = time.perf_counter()
    subprocess.run(command, cwd=place, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _operation(name: str, label: str) -> float:
    """Seconds of the operation alone: the interpreter's start is that of any program."""
    from membrane.changes import store

    with store.take(os.environ["MEMBRANE_HOME"], "bench", "the bench") as held:
        begin = time.perf_counter()
        held.checkpoint(label) if name == "checkpoint" else held.fork(label)
        return time.perf_counter() - begin


def _turns(place: str, command: list[str], *, inside: bool = False) -> tuple[list[float], list[float]]:
    """Seconds of runs; ``inside``: what the command says that it took."""

    def once(option: str) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            line = membrane("-q", option, "--", *command)
            done = subprocess.run(line, cwd=place, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            return float(done.stdout) if inside else time.perf_counter() - begin

        return run

    live, review = once("--live"), once(f"--review=of-{os.path.basename(place)}")
    live(), review()
    pairs = [(review(), live()) for _ in range(ROUNDS)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _tree(place: str, files: int) -> str:
    """A repository of ``files`` files in directories of 20, and a Makefile of 200 targets."""
    for number in range(files):
        path = Path(place, f"d{number // 20}", f"f{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    targets = [f"d{number // 20}/f{number}.out" for number in range(min(files, 200))]
    rules = "".join(f"{name}: {name[:-4]}.txt\n\tcp $< $@\n" for name in targets)
    Path(place, "Makefile").write_text(f"all: {' '.join(targets)}\n{rules}")
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], cwd=place, check=True)
    return place
