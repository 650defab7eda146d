"""host.ending: directories that hostile processes have filled (``tests/kernel/test_inside_end.py``: processes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from membrane.host import ending


def test_a_deep_tree_of_any_modes_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "own"
    top.mkdir()
    (tmp_path / "kept").write_text("x")
    os.symlink(tmp_path / "kept", top / "link")
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    (top / "closed").mkdir()
    (top / "closed" / "file").write_text("x")
    (top / "closed").chmod(0)
    assert ending.remove(str(top))
    assert not top.exists() and (tmp_path / "kept").read_text() == "x"


def test_a_wide_directory_is_removed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AT_ONCE", 8)
    (tmp_path / "own" / "d").mkdir(parents=True)
    for number in range(100):
        (tmp_path / "own" / f"f{number}").write_text("x")
        (tmp_path / "own" / "d" / f"f{number}").write_text("x")
    assert ending.remove(str(tmp_path / "own")) and not (tmp_path / "own").exists()
    assert ending.remove(str(tmp_path / "own"))  # there is nothing


def test_what_becomes_a_link_meanwhile_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a directory that is looked at changes into a link before its mode is set."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (tmp_path / "own" / "d").mkdir(parents=True)
    (tmp_path / "own" / "d" / "x").write_text("x")
    chmod = os.chmod

    def swapped(path: str, mode: int) -> None:
        (tmp_path / "own" / "d").rename(tmp_path / "own" / "e")
        (tmp_path / "own" / "d").symlink_to(outside)
        monkeypatch.setattr(os, "chmod", chmod)
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", swapped)
    assert ending.remove(str(tmp_path / "own"))
    assert outside.stat().st_mode & 0o777 == 0o500


def test_names_that_come_faster_than_they_go_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "0").write_text("x")
    unlink, made = os.unlink, [0]

    def one_more(name: str, *, dir_fd: int) -> None:
        made[0] += 1
        (tmp_path / "own" / str(made[0])).write_text("x")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", one_more)
    monkeypatch.setattr(ending, "REMOVE", 0.05)
    assert not ending.remove(str(tmp_path / "own")) and made[0] > 0


CHAIN = """
import os, sys
from membrane.host import ending, syscalls
syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
ready, begun = os.pipe()
if os.fork() == 0:
    while True:  # each is another process, of a session of its own
        if os.fork():
            os._exit(0)
        os.setsid()
        os.write(begun, b"x")
os.close(begun)
os.read(ready, 1)
ending._catch(99)  # the control: it has fewer filters
os.read(ready, 1 << 16)
os.read(ready, 1)
ending.END_ROUNDS = 20  # walks alone take many more
ended = ending.end_all(False)
while os.read(ready, 1 << 16):  # the end: no process has the pipe
    pass
print(ended)
"""


def test_a_chain_of_processes_is_ended_without_a_signal_to_all() -> None:
    done = subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done
