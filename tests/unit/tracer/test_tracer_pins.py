"""Where tracing programs are pinned, and who may be there: directories and locks, without a BPF file system."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.tracer import pins


def test_the_lock_is_held_once(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with pins.Lock(state):
        other = os.open(f"{state}/lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back
    os.close(other)
    assert os.stat(state).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_state_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(HostError, match="another user can write to it"):
        pins.Lock(str(state))


def test_a_state_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "state").symlink_to("real")
    os.chmod(tmp_path / "real", 0o700)
    with pytest.raises((HostError, OSError)):
        pins.Lock(str(tmp_path / "state"))


def test_without_a_bpf_file_system_the_place_is_our_own(tmp_path: Path) -> None:
    assert not pins.is_bpffs(str(tmp_path))
    assert pins.place_of("/run/x", str(tmp_path)) == "/run/x/bpf"


def test_one_set_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "trace-1"
    directory.mkdir()
    for name in ("program", "map"):
        (directory / name).touch()
    pins.remove_pins(str(directory))
    pins.remove_pins(str(directory))  # it is gone
    assert not directory.exists()


def test_nothing_to_remove(tmp_path: Path) -> None:
    pins.remove(str(tmp_path / "state"), str(tmp_path / "none"))
    assert sorted(os.listdir(tmp_path / "state")) == ["lock"]


def test_the_lock_of_a_granted_set() -> None:
    assert pins.lock_of("/run/m/1000/3") == "/run/m.locks/1000-3"
