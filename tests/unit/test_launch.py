"""The supervisor's side of a launch, and how its messages travel."""

from __future__ import annotations

import contextlib
import errno
import os
import select

import pytest

from membrane.host import channel
from membrane.host.launch import Launch


def has_ended(launch: Launch, seconds: float) -> bool:
    pidfd = os.pidfd_open(launch.pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def test_an_error_before_the_plan_leaves_no_launcher() -> None:
    with pytest.raises(KeyError), Launch() as launch:
        assert not has_ended(launch, 0)
        raise KeyError
    with pytest.raises(ChildProcessError):
        os.waitpid(launch.pid, os.WNOHANG)
    assert launch.launcher.fileno() == launch.init.fileno() == -1


def test_a_launcher_without_a_plan_ends_silently_with_its_channel(capfd: pytest.CaptureFixture[str]) -> None:
    launch = Launch()
    launch.launcher.close()
    assert has_ended(launch, 20)
    assert os.waitstatus_to_exitcode(os.waitpid(launch.pid, 0)[1]) == 1
    launch.init.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [0, 5, 1 << 20])
def test_data_of_any_length_travels_as_a_file(size: int) -> None:
    ours, theirs = channel.pair()
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with contextlib.closing(ours), contextlib.closing(theirs), open(os.devnull, "rb") as null:
        channel.send_data(ours, b"W", data, (null.fileno(),))
        kind, payload, (memory, other) = channel.receive(theirs)
        assert (kind, payload) == (b"W", b"")
        assert channel.take_data(memory) == data
        assert os.path.samestat(os.fstat(other), os.fstat(null.fileno()))
        os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor") as failed:
        os.fstat(memory)
    assert failed.value.errno == errno.EBADF
