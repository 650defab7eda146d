"""The trace log on stderr: a follower that does not come to its end is ended, and that is said."""

from __future__ import annotations

import os
import sys

import pytest

from membrane.record import live


def follower(program: str) -> live.LiveLog:
    made = live.LiveLog.__new__(live.LiveLog)
    made._pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", program], {})
    return made


def test_one_that_has_written_everything() -> None:
    assert follower("").wait() == ""


def test_one_whose_reader_takes_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "END", 0.2)
    stuck = follower("import time; time.sleep(60)")
    assert stuck.wait() == "who reads it did not take the rest within 0.2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(stuck._pid, 0)


def test_one_that_fails() -> None:
    assert follower("raise SystemExit(3)").wait() == "what writes it ended with status 3"
