"""The mode of a directory, set in the place of the command: nothing but a directory, and nothing that was swapped."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from membrane.host.notify import DONE
from membrane.tracer.modes import set_mode


def asked(path: Path, mode: int) -> int:
    """As the tracer asks; the descriptor must be closed afterwards."""
    opened = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    answer = set_mode(opened, mode, str(path), [])
    try:
        os.fstat(opened)
    except OSError:
        return answer
    raise AssertionError("it is still open")


def test_a_directory_gets_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "d"
    place.mkdir()
    for mode in (0o2755, 0o700, 0o3777):
        assert asked(place, mode) == DONE
        assert stat.S_IMODE(place.stat().st_mode) == mode


def test_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    (tmp_path / "link").symlink_to(".")
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("file", "link", "fifo"):
        assert asked(tmp_path / name, 0o2777) == errno.EPERM
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) != 0o2777


def test_what_belongs_to_somebody_else_keeps_its_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """chmod(2) says so; the same name outside is asked only where trees have the same names."""

    def refuse(*_words: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refuse)
    assert asked(tmp_path, 0o777) == errno.EPERM
