"""A fresh sandbox per test; the suite needs user namespaces and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from escape_box import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def home_box(tmp_path: Path) -> Box:
    """The workspace lies below the home directory, as it usually does."""
    return Box(tmp_path, below_home=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.needs_kernel("user namespaces"))
            item.add_marker(pytest.mark.needs_kernel("network namespaces"))
