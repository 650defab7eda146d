"""A bounded run of the fuzz targets: every corpus file, and mutations of them from a fixed seed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz_network import TARGETS, fuzz_one

CORPUS = sorted((Path(__file__).parent / "corpus" / "network").iterdir())
ROUNDS = 4000


def mutate(data: bytes, other: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0 if out:
                out[at % len(out)] = chance.randrange(256)
            case 1:
                del out[at : at + chance.randint(1, 8)]
            case 2:
                out[at:at] = bytes([chance.choice((0, 1, 0x16, 0x3F, 0xC0, 0xFF))] * chance.randint(1, 4))
            case 3 if out:
                out[at % len(out)] ^= 1 << chance.randrange(8)
            case 4:
                start = chance.randrange(len(other) + 1)
                out[at:at] = other[start : start + chance.randint(1, 40)]
            case _:
                del out[at:]
    return bytes(out)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_corpus(path) -> None:
    fuzz_one(path.read_bytes())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_mutations(target) -> None:
    chance = random.Random(20240229)
    seeds = [path.read_bytes() for path in CORPUS]
    assert len(seeds) >= 10
    for _ in range(ROUNDS):
        data = mutate(chance.choice(seeds), chance.choice(seeds), chance)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"{target.__name__}(bytes.fromhex({data.hex()!r}))") from error
