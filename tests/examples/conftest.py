"""What the tests of the examples share."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_server import ModelServer, Step
from place import PYTHON, Place


@functools.cache
def has(package: str) -> bool:
    """Whether the examples' interpreter has it."""
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([PYTHON, "-c", found], timeout=60, check=False).returncode == 0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_package(name): deselected where the examples' interpreter lacks it")
    # Ray's daemons wait for each other for a fixed time, and die when it is over.
    config.addinivalue_line("markers", "alone: .ci/run runs it in a step of its own, with nothing beside it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI nothing is left out: what is missing there shows as a failure."""
    if os.environ.get("CI") == "true":
        return
    away = [item for item in items if not all(has(mark.args[0]) for mark in item.iter_markers("needs_package"))]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def model() -> Iterator[Callable[..., ModelServer]]:
    """Start a stand-in for the model that plays a script."""
    started: list[ModelServer] = []

    def start(*script: Step) -> ModelServer:
        started.append(ModelServer(script).__enter__())
        return started[-1]

    yield start
    for server in started:
        server.__exit__()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """One for sockets, whose paths have at most 107 bytes (unix(7))."""
    path = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
