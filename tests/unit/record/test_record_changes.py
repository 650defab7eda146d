"""Changes of what a file may do or whose it is: where the arguments are, and how the new value is shown."""

from __future__ import annotations

import pytest

from membrane.record import calls, changes


@pytest.mark.parametrize(
    ("what", "first", "second", "shown"),
    [
        ("mode", 0o100755, 0, "0755"),
        ("mode", 0o4711, 0, "4711"),
        ("owner", 1000, 1000, "1000:1000"),
        ("owner", 0xFFFFFFFF, 7, ":7"),
        ("owner", 7, -1, "7:"),
    ],
)
def test_the_new_value(what: str, first: int, second: int, shown: str) -> None:
    assert changes.new_value(what, first, second) == shown


def test_each_call_has_a_number_and_places_that_it_has() -> None:
    """A call whose name is misspelt would be seen by neither source."""
    known = set(calls.NAMES.values())
    for name, change in changes.CHANGES.items():
        assert name in known, name
        used = [place for place in (change.directory, change.path, change.first, change.second) if place != changes.NO]
        assert used and len(used) == len(set(used)) and max(used) <= 5, name
        assert change.path != changes.NO or change.directory != changes.NO, name
