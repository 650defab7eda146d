"""Fixtures of the end-to-end tests: one world per worker, one caller with a home and a workspace per test."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World
from world.box import Box, children, describe, mounts, wait_until_gone

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Orphans of a test become children of this process, where ``box`` finds them.
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    made = World(tmp_path_factory.mktemp("world") / "w")
    yield made
    made.close()


@pytest.fixture
def box(world: World, tmp_path: Path) -> Iterator[Box]:
    """A caller; at the end no process and no mount of the test may be left."""
    before, mounted = children(), mounts(world.pid)
    yield Box(world, tmp_path)
    left = wait_until_gone(before)
    names = [describe(pid) for pid in left]
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes left: {names}"
    assert mounts(world.pid) == mounted, "mounts left in the host's namespace"
