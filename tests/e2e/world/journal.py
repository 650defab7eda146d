"""Append-only JSON lines: what a server of the world saw, for tests to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def writer(path: Path) -> Callable[..., None]:
    """A function that appends its keyword arguments as one line; one write(2), so that threads do not mix."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(**fields: Any) -> None:
        os.write(fd, json.dumps(fields).encode() + b"\n")

    return write


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
