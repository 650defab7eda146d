"""A connection is begun for the command by a process that must not wait: it serves all the others."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host import supervised


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a server whose queue has no room, so that connect(2) waits for ever."""
    monkeypatch.setattr(supervised, "LONGEST_CONNECT", 0.05)
    before = signal.signal(signal.SIGALRM, supervised._late)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(path)
        server.listen(0)
        first.connect(path)
        yield path
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("waits", [False, True])
def test_connect_does_not_wait_whatever_the_command_makes_of_its_socket(full: str, waits: bool) -> None:
    """The open file description is the command's as well: another thread of it may take O_NONBLOCK away."""
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(waits)
        assert supervised._begin(made, full, errno.EAGAIN) == errno.EAGAIN
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_what_does_not_wait_is_not_interrupted(full: str, tmp_path: Path) -> None:
    path = str(tmp_path / "other")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as made:
        server.bind(path)
        server.listen()
        assert supervised._begin(made, path, errno.EAGAIN) == 0
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        assert supervised._begin(made, path, errno.EAGAIN) == errno.EISCONN
