"""record.export.write_log: the trace log that is made at the end takes the place of a file, and of nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from membrane.record import export


@pytest.fixture
def record(tmp_path: Path) -> str:
    made = tmp_path / "0123456789abcdef"
    made.mkdir()
    return str(made)


def test_a_file_is_replaced_as_a_whole(record: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("half")
    before = log.stat().st_ino
    export.write_log(record, str(log))
    assert log.read_text() == "" and log.stat().st_ino != before and not (tmp_path / "log.new").exists()


def test_what_is_no_file_keeps_its_name(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    renamed: list[object] = []
    monkeypatch.setattr(os, "rename", lambda *names, **_places: renamed.append(names))
    for name in (str(fifo), "/dev/null", "/dev/stderr"):
        export.write_log(record, name)
    assert not renamed and stat.S_ISFIFO(fifo.stat().st_mode) and os.listdir(tmp_path).count("fifo.new") == 0


def test_a_directory_that_was_swapped_gets_nothing(record: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    place = os.open(tmp_path / "out", os.O_PATH | os.O_DIRECTORY)
    try:
        (tmp_path / "out").rename(tmp_path / "was")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out").symlink_to("elsewhere")
        export.write_log(record, str(tmp_path / "out/log"), place)
    finally:
        os.close(place)
    assert os.listdir(tmp_path / "elsewhere") == [] and os.listdir(tmp_path / "was") == ["log"]
