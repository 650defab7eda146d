"""Id maps of idmapped mounts."""

from __future__ import annotations

import pytest

from membrane.host.trees import id_map

BASE = 1_000_000


def rows(text: str) -> list[tuple[int, int, int]]:
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in text.splitlines())]


@pytest.mark.parametrize("owner", [0, 1, 2, 1000, 65534, 65535, 65536, 100_000, 4_000_000_000])
def test_the_owner_becomes_root_and_no_id_is_mapped_twice(owner: int) -> None:
    mapped = {inside + n: outside + n for inside, outside, count in rows(id_map(owner, BASE)) for n in range(count)}
    assert mapped[owner] == BASE
    assert len(set(mapped.values())) == len(mapped)
    assert all(BASE <= kuid < BASE + 65536 for kuid in mapped.values())
    if owner < 65536:
        assert len(mapped) == 65536
        assert mapped[0] == BASE + owner
