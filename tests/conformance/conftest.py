"""The conformance suite of ``srt``: a caller with settings in a small world of its own.

``SRT_UNDER_TEST=/path/to/srt`` runs the same cases against another implementation, such as npm's own; what only ours
promises is marked ``ours`` and left out then.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from world import World
from world.box import children, describe, mounts, wait_until_gone

sys.path.insert(0, str(Path(__file__).parent))

from srt_box import OTHER, SrtBox

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ours: a promise beyond sandbox-runtime's")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    away = [item for item in items if OTHER and str(item.path).startswith(here) and item.get_closest_marker("ours")]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    made = World(tmp_path_factory.mktemp("world") / "w")
    yield made
    made.close()


@pytest.fixture
def box(world: World, tmp_path: Path) -> Iterator[SrtBox]:
    """A caller; at the end no process, no mount and no file of ``srt`` may be left."""
    before, mounted = children(), mounts(world.pid)
    made = SrtBox(world, tmp_path)
    yield made
    left = wait_until_gone(before)
    names = [describe(pid) for pid in left]
    for pid in left:
        os.kill(pid, 9)
    if not OTHER:
        assert not left, f"processes left: {names}"
        assert mounts(world.pid) == mounted, "mounts left in the host's namespace"
