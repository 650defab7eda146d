"""No test of a change set takes the power away: what is written is there for the next process, on the disk or not."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)
