"""The table of refusals: what is silent is said, in the receipt and in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane import events
from membrane.record import coverage

DOCS = Path(__file__).parents[3] / "docs"


def test_the_documents_have_the_table() -> None:
    assert "\n".join(coverage.table()) in (DOCS / "threat-model.md").read_text()


def test_every_cell_is_an_event_or_says_none() -> None:
    for _what, _by, *cells in coverage.REFUSALS:
        assert len(cells) == len(coverage.COLUMNS)
        for cell in cells:
            assert cell == coverage.SILENT or hasattr(events, cell.split(",")[0].split()[0]), cell


@pytest.mark.parametrize(
    ("source", "reads", "silent"),
    [
        ("network", False, 10),
        ("network", True, 10),  # nobody is there to tell them
        ("notify, network", False, 6),
        ("notify, network", True, 4),
        ("ebpf, notify, network", False, 4),
        ("ebpf, notify, network", True, 3),
        ("ebpf, network", False, 4),
    ],
)
def test_what_is_silent(source: str, reads: bool, silent: int) -> None:
    found = coverage.silent(source, reads=reads)
    assert len(found) == silent
    assert coverage.PACKETS not in found and coverage.PACKETS in coverage.silent(source, reads=reads, copies=False)
    assert not any("; " in what for what in found)  # how the receipt separates them
