"""Id maps of idmapped mounts, and how trees travel to the launcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.changes.store import MOST_LAYERS
from membrane.host import messages as m
from membrane.host import trees
from membrane.host.clones import instead_key, sources, tree_key
from membrane.host.trees import id_map
from membrane.plan.model import NOBODYS, RANGE, Bind, Overlay

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


def test_the_keys_of_an_overlay_with_as_many_layers_as_there_are_travel() -> None:
    op = Overlay("/t", tuple(f"/{number}" for number in range(MOST_LAYERS)), "/layer", fallback=True)
    last = 100_000  # operations of a plan
    keys = (*(tree_key(last, part) for part in range(len(sources(op)))), instead_key(last, op), tree_key(last))
    sent = m.Trees(keys, tuple(range(3, 3 + len(keys))))
    assert m.TO_LAUNCHER.decode(*m.TO_LAUNCHER.encode(sent)) == sent
    assert len(set(keys)) == len(keys) - 1  # the first source and a bind have the same key


def test_root_with_capabilities_knows_one_owner_but_in_its_layer(tmp_path: Path) -> None:
    """A capability holds over a file whose ids are both mapped (capable_wrt_inode_uidgid)."""
    own = os.getuid(), os.getgid()
    work = Bind(str(tmp_path), "/w", writable=True, own=True)
    tool = Overlay("/t", (str(tmp_path),), "/layer", own=True)
    for op in (work, tool):
        assert trees._maps(op, BASE, True) == (f"{own[0]} {BASE} 1\n", f"{own[1]} {BASE} 1\n")
        assert trees._maps(op, BASE, False) == (id_map(own[0], BASE), id_map(own[1], BASE))
    assert trees._maps(Bind("/x", "/x", own=True), BASE, True) == (f"0 {BASE} 1\n",) * 2
    layer = Overlay("/usr", ("/own", "/usr"), "/layer", own=True, system=True)
    assert trees._maps(layer, BASE, True) == (f"0 {BASE} 65536\n",) * 2
    # Without the id that mounts what is between the layer and the host's tree (``overlay``).
    assert trees._maps(layer.replace(closed=True), BASE, True) == (f"0 {BASE} {NOBODYS}\n",) * 2
    assert NOBODYS == RANGE - 1
