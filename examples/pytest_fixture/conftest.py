"""pytest: a fixture ``sandbox``, in which a test runs what it does not trust.

    python -m pytest examples/pytest_fixture

The sandbox works in the test's ``tmp_path`` and reaches no host.  A test that needs one marks it:
``@pytest.mark.allow("pypi.org")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane import Policy, Sandbox


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "allow(host, ...): what the sandbox of this test may reach")


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sandbox]:
    hosts = [host for mark in request.node.iter_markers("allow") for host in mark.args]
    with Sandbox(Policy().allow(*hosts), workspace=tmp_path, record=False) as opened:
        yield opened
