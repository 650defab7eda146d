"""A fresh sandbox per test, or a caller in a world; the suite needs user namespaces and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from escape_box import Box
from net_world import Net
from world import World
from world.fixtures import nothing_left, world

__all__ = ["world"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "guard_alone: without the tracer, which refuses at once: what must hold when it is raced"
    )


def _options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return ("--no-trace",) if request.node.get_closest_marker("guard_alone") else ()


@pytest.fixture
def box(tmp_path: Path, request: pytest.FixtureRequest) -> Box:
    return Box(tmp_path, options=_options(request))


@pytest.fixture
def home_box(tmp_path: Path, request: pytest.FixtureRequest) -> Box:
    """The workspace lies below the home directory, as it usually does."""
    return Box(tmp_path, below_home=True, options=_options(request))


@pytest.fixture
def net(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Net]:
    """A caller in the world of the end-to-end tests; its parameter is a backend (``net_world.BACKENDS``)."""
    with nothing_left(world):
        yield Net(world, tmp_path, getattr(request, "param", "native"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.needs_kernel("user namespaces"))
            item.add_marker(pytest.mark.needs_kernel("network namespaces"))
