"""pytest: a fixture ``tree``, in which a test may do to the project whatever it likes, and the project stays as it is.

    python -m pytest examples/pytest_clean_tree

``prepared`` is made once for all tests: what takes long (a build, ``npm ci``) is done there.  Each test has a fork of
it, which costs about as much as a start, and neither sees what another has done.  Nothing of it is ever applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane import Policy, Sandbox

PREPARE = "mkdir -p build && echo built > build/result"


@pytest.fixture(scope="session")
def prepared() -> Iterator[Sandbox]:
    with Sandbox(Policy(), workspace=Path.cwd(), review=True, record=False) as base:
        assert base.shell(PREPARE, timeout=600).exit_code == 0
        yield base
    base.discard()


@pytest.fixture
def tree(prepared: Sandbox) -> Iterator[Sandbox]:
    fork = prepared.fork()
    with fork:
        yield fork
    fork.discard()
