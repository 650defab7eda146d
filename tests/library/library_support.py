"""What the library's tests look at: processes, and conditions to wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0  # seconds for a condition on a machine under load


def until(condition: object, what: str | Callable[[], str]) -> None:
    """Wait for ``condition()``; ``what`` is told when that was in vain."""
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what() if callable(what) else what}"
        time.sleep(0.01)


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found


def gone(pid: int) -> bool:
    """Has it ended (a zombie counts as ended)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def describe(pid: int) -> str:
    """What a process is and waits for (proc(5)), for whoever reads of a failure."""
    found = []
    for name in ("comm", "cmdline", "wchan", "stat"):
        try:
            found.append(Path(f"/proc/{pid}/{name}").read_bytes()[:200].replace(b"\0", b" ").decode(errors="replace"))
        except OSError as error:
            found.append(error.strerror or "")
    return f"{pid}: {' | '.join(found)}"
