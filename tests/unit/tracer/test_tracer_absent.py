"""Refusals that wait for the name to be made."""

from __future__ import annotations

import pytest

from membrane.events import AccessDenied, access_as_data
from membrane.policy import reasons
from membrane.policy.model import PathAccess
from membrane.tracer import absent
from membrane.tracer.absent import Absent


def held(waiting: Absent, path: str) -> None:
    event = AccessDenied(
        access_as_data(PathAccess(path, "write")), reasons.NOT_IN_THE_VIEW, None, None, source="notify"
    )
    waiting.hold((path,), path, "null", event)


def left(waiting: Absent, *, everything: bool) -> list[tuple[str, int]]:
    return [(str(event.access["path"]), event.count) for _process, event in waiting.due(everything=everything)]


def test_it_is_none_when_the_name_or_a_directory_on_the_way_is_made() -> None:
    waiting = Absent()
    for path in ("/h/.npm/a/b", "/h/.npm/a", "/h/.npmrc", "/h/.np"):
        held(waiting, path)
    waiting.made("/h/.npm/a")
    assert left(waiting, everything=True) == [("/h/.npmrc", 1), ("/h/.np", 1)]
    held(waiting, "/h/.npm/a/b")
    waiting.made("/h/.npm")
    assert len(waiting) == 0


def test_equal_ones_are_counted_and_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(absent.time, "monotonic", lambda: now)
    waiting = Absent()
    for path in ("/h/a", "/h/b", "/h/a"):
        held(waiting, path)
    assert left(waiting, everything=False) == []
    now += absent.HELD
    assert left(waiting, everything=False) == [("/h/a", 2), ("/h/b", 1)]
    assert len(waiting) == 0
