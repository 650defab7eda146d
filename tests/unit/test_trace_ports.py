"""How long a look for local ports is put off: who connects waits for it, and what waits with it is not recorded yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.trace.notify import FEW, LOOKS, PUT_OFF, put_off

seconds = st.floats(0, 60)


@pytest.mark.parametrize(
    ("cost", "spent", "connections", "wanted"),
    [
        (0.004, LOOKS, FEW + 1, 0.0),  # within the budget
        (0.004, 2 * LOOKS, FEW, 0.0),  # a few connections are looked for whatever it takes
        (0.004, 2 * LOOKS, FEW + 1, 0.08),
        (4.0, 4.0, 512, PUT_OFF),  # a table read once for each of 512 connections, in namespaces inside
    ],
)
def test_dear_looks_are_put_off(cost: float, spent: float, connections: int, wanted: float) -> None:
    assert put_off(cost, spent, connections) == pytest.approx(wanted)


@given(seconds, seconds, st.integers(0, 10**6))
def test_nothing_waits_longer_than_promised(cost: float, spent: float, connections: int) -> None:
    assert 0 <= put_off(cost, spent, connections) <= PUT_OFF
