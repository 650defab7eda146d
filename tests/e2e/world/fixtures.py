"""What every suite with a world shares: one world per worker and suite, and nothing left behind by a test."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import pytest

from . import World
from .box import children, describe, mounts, wait_for_no_more_mounts, wait_until_gone

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A host and an Internet; conftest.py of a suite imports it."""
    # Orphans of a test become children of this process, where ``nothing_left`` finds them.
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    made = World(tmp_path_factory.mktemp("world") / "w")
    yield made
    made.close()


@contextlib.contextmanager
def nothing_left(world: World, *, asserted: bool = True) -> Iterator[None]:
    """At the end no process and no mount of what ran in between may be left; processes are killed in any case."""
    before, mounted = children(), mounts(world.pid)
    yield
    left = wait_until_gone(before)
    names = [describe(pid) for pid in left]
    for pid in left:
        os.kill(pid, 9)
    if asserted:
        assert not left, f"processes left: {names}"
        assert not wait_for_no_more_mounts(world.pid, mounted), "mounts left in the host's namespace"
