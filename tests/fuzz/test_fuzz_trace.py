"""A bounded run of the fuzz targets of a record, from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fuzz_trace import fuzz_decode, fuzz_line, lines, seeds
from test_fuzz_network import mutate

TARGETS = pytest.mark.parametrize(
    ("target", "pieces", "rounds"), [(fuzz_decode, seeds(), 6000), (fuzz_line, lines(), 3000)]
)


@TARGETS
def test_the_seeds(target: Callable[[bytes], None], pieces: list[bytes], rounds: int) -> None:
    for data in pieces:
        target(data)


@TARGETS
def test_mutations(target: Callable[[bytes], None], pieces: list[bytes], rounds: int) -> None:
    chance = random.Random(20261128)
    for _ in range(rounds):
        data = mutate(chance.choice(pieces), chance.choice(pieces), chance)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"{target.__name__}(bytes.fromhex({data.hex()!r}))") from error
