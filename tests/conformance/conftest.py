"""The conformance suite of ``srt``: a caller with settings in a small world of its own.

``SRT_UNDER_TEST=/path/to/srt`` runs the same cases against another implementation, such as npm's own; what only ours
promises is marked ``ours`` and left out then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from world import World
from world.fixtures import nothing_left, world

sys.path.insert(0, str(Path(__file__).parent))

from srt_box import OTHER, SrtBox

__all__ = ["world"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ours: a promise beyond sandbox-runtime's")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    away = [item for item in items if OTHER and str(item.path).startswith(here) and item.get_closest_marker("ours")]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]


@pytest.fixture
def box(world: World, tmp_path: Path) -> Iterator[SrtBox]:
    """A caller; at the end no process, no mount and no file of ``srt`` may be left."""
    with nothing_left(world, asserted=not OTHER):
        yield SrtBox(world, tmp_path)
