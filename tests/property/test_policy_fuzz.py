"""The policy fuzz targets on their corpus and on a fixed number of seeded mutations."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "fuzz"
CORPUS = sorted((FUZZ / "corpus" / "policy").iterdir())
_spec = importlib.util.spec_from_file_location("fuzz_policy", FUZZ / "fuzz_policy.py")
assert _spec is not None
assert _spec.loader is not None
fuzz_policy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_policy)
INTERESTING = [
    b"\0",
    b"%",
    b"%2e",
    b"%25",
    b"/",
    b"..",
    b"*",
    b"**",
    b"[",
    b"]",
    b"\\",
    b":",
    b"- ",
    b"{",
    b"'",
    b"\xff",
    b"\n",
    b"!",
]


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(1, len(out)) if len(out) > 1 else len(out)
        kind = chance.randrange(4)
        if kind == 0:
            out[at:at] = chance.choice(INTERESTING)
        elif kind == 1:
            del out[at : at + chance.randint(1, 4)]
        elif kind == 2:
            out[at : at + 1] = bytes([chance.randrange(256)])
        else:
            start = chance.randint(1, max(1, len(out) - 1))
            out[at:at] = out[start : start + chance.randint(1, 16)]
    return bytes(out[:4096])


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus(path: Path) -> None:
    fuzz_policy.fuzz_one(path.read_bytes())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_mutations(path: Path) -> None:
    chance = random.Random(path.name)
    data = path.read_bytes()
    for _ in range(150):
        mutant = mutate(data, chance)
        try:
            fuzz_policy.fuzz_one(mutant)
        except Exception as error:
            raise AssertionError(f"{mutant!r}") from error


def test_the_targets_are_all_in_the_corpus() -> None:
    chosen = {path.read_bytes()[0] % len(fuzz_policy.TARGETS) for path in CORPUS}
    assert chosen == set(range(len(fuzz_policy.TARGETS)))


def test_a_defect_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_policy, "canonical_path", lambda text: text + "/")
    with pytest.raises(AssertionError):
        fuzz_policy.fuzz_path(b"/v1")
