"""Reviewed workspaces against live ones: starts, everyday work in a tree, checkpoints and forks; in turns."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .tools import membrane, ratios

ROUNDS = 9
FILES = 20_000


class Rows(Protocol):
    def add(self, name: str, values: list[float], unit: str, against: str, target: str) -> None: ...


def bench_review(bench: Rows, work: str) -> None:
    """A start for 10 and for 20,000 files; ``git status`` and ``make`` there; a checkpoint, a fork."""
    small, large = _tree(os.path.join(work, "ten"), 10), _tree(os.path.join(work, "many"), FILES)
    time.sleep(2.5)  # settled, as in ``bench_tree``
    for name, place in (("10 files", small), (f"{FILES:,} files", large)):
        a, b = _turns(place, ["true"])
        more = [1000 * (x - y) for x, y in zip(a, b, strict=True)]
        bench.add(f"review: a start more than live, {name}", more, "ms", "live", "<= 5")
    # What the command itself takes: the start is a part of both.
    for name, script, target in (
        (
            f"git status, {FILES:,} files",
            "git status >/dev/null; for i in 1 2 3; do git status > /dev/null; done",
            "<= 1.2",
        ),
        ("make, 200 files", "make -s -B > /dev/null", "<= 1.1"),
    ):
        a, b = _turns(large, ["bash", "-c", script])
        bench.add(f"review: {name}", ratios(a, b), "x", "live", target)
    for name, target in (("checkpoint", "<= 10"), ("fork", "<= 30")):
        found = []
        for number in range(ROUNDS):
            change = ["bash", "-c", f"echo {number} > changed"]
            subprocess.run(membrane("-q", "--review=bench", "--", *change), cwd=large, check=True)
            found.append(1000 * _operation(name, f"n{number}"))
        bench.add(f"review: {name} of {FILES:,} files", found, "ms", "", target)


def _operation(name: str, label: str) -> float:
    """Seconds of the operation alone: the interpreter's start is that of any program."""
    from membrane.changes import store

    with store.take(os.environ["MEMBRANE_HOME"], "bench", "the bench") as held:
        begin = time.perf_counter()
        held.checkpoint(label) if name == "checkpoint" else held.fork(label)
        return time.perf_counter() - begin


def _turns(place: str, command: list[str]) -> tuple[list[float], list[float]]:
    def once(option: str) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            subprocess.run(membrane("-q", option, "--", *command), cwd=place, check=True, stdin=subprocess.DEVNULL)
            return time.perf_counter() - begin

        return run

    live, review = once("--live"), once("--review=bench" if place.endswith("many") else "--review=small")
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
