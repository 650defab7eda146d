"""Fixtures of the end-to-end tests: one world per worker, one caller with a home and a workspace per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World
from world.box import Box
from world.fixtures import nothing_left, world

__all__ = ["world"]


@pytest.fixture
def box(world: World, tmp_path: Path) -> Iterator[Box]:
    """A caller; at the end no process and no mount of the test may be left."""
    with nothing_left(world):
        yield Box(world, tmp_path)
