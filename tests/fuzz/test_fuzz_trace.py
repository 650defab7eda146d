"""A bounded run of the decoder's fuzz target, from a fixed seed."""

from __future__ import annotations

import random

from fuzz_trace import fuzz_decode, seeds
from test_fuzz_network import mutate

ROUNDS = 6000


def test_the_seeds() -> None:
    for data in seeds():
        fuzz_decode(data)


def test_mutations() -> None:
    chance = random.Random(20261128)
    pieces = seeds()
    for _ in range(ROUNDS):
        data = mutate(chance.choice(pieces), chance.choice(pieces), chance)
        try:
            fuzz_decode(data)
        except Exception as error:
            raise AssertionError(f"fuzz_decode(bytes.fromhex({data.hex()!r}))") from error
