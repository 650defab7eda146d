"""The socket of programs that ``Sandbox.wrap`` starts: whoever is not this user is not talked to."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from membrane.api import supervisor, wire
from membrane.host.channel import pair
from membrane.messages import Message


class Taken(supervisor.Supervisor):
    """A supervisor that has a door, and nothing else."""

    def __init__(self, directory: str) -> None:
        self._door = supervisor.door.listen(f"{directory}/door", 8)
        self._clients = {}
        self.watched = 0

    def _watch_client(self, client: supervisor._Client) -> None:
        """Nothing is read."""
        assert self._clients[client.channel.fileno()] is client
        self.watched += 1


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o711)  # the door's own mode decides, and then its peer
        yield Path(directory)


def knock(place: Path, uid: int) -> int:
    """A process of ``uid`` that connects and waits for the end: status 0; 1: it was told something; 2: EACCES."""
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(60)
                try:
                    channel.connect(str(place / "door"))
                    status = 0 if channel.recv(1) == b"" else 1
                except PermissionError:
                    status = 2
        finally:
            os._exit(status)
    return pid


def taken(place: Path, uid: int, mode: int) -> tuple[int, int]:
    """How many clients there are after a process of ``uid`` has knocked, and how that ended."""
    door = Taken(str(place))
    assert door._door is not None
    try:
        assert os.stat(place / "door").st_mode & 0o777 == 0o600
        os.chmod(place / "door", mode)
        pid = knock(place, uid)
        door._door.setblocking(True)
        if mode & 0o002 or uid == os.geteuid():
            door._on_door()
        count = len(door._clients)
        assert door.watched == count
        for client in door._clients.values():
            client.channel.close()
        return count, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        door._door.close()
        os.unlink(place / "door")


def test_a_program_of_this_user_is_taken(place: Path) -> None:
    assert taken(place, os.geteuid(), 0o600) == (1, 0)


@pytest.mark.as_root
def test_a_program_of_another_user_is_not(place: Path) -> None:
    """By the mode of the door; and by who it is, should it have got past that."""
    assert taken(place, 65534, 0o600) == (0, 2)
    assert taken(place, 65534, 0o666) == (0, 0)


def test_there_are_no_more_clients_than_stated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MOST_CLIENTS", 2)
    door = Taken(str(place))
    assert door._door is not None
    programs = []
    for _ in range(3):
        programs.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        programs[-1].connect(str(place / "door"))
        door._on_door()
    assert len(door._clients) == 2
    programs[2].settimeout(60)
    assert programs[2].recv(1) == b"", "its end is closed, and the others' are not"
    with pytest.raises(BlockingIOError):
        programs[0].recv(1, socket.MSG_DONTWAIT)
    door._on_door()  # nobody is there: nothing happens
    assert len(door._clients) == 2
    for program in (*programs, door._door):
        program.close()
    for client in door._clients.values():
        client.channel.close()


class Asked(supervisor.Supervisor):
    """A supervisor that takes jobs and runs none."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(cwd="/work", environment=(("A", "1"),))  # type: ignore[assignment]
        self._commands, self._wanted, self._clients = {}, [], {}
        self.told: list[wire.CommandEnded] = []

    def _feed(self) -> None:
        """No process is made."""

    def _unwatch(self, fd: int) -> None:
        """Nothing is watched."""


@pytest.mark.parametrize(
    "bad",
    [
        wire.Run(1, ("true",), ".", {"A": [[]]}, 0o22, (0, 1, 2)),
        wire.Run(1, ("true",), ".", {"A": None}, 0o22, (0, 1, 2)),
        wire.Run(1, ("true",), ".", ["A"], 0o22, (0, 1, 2)),
        wire.Run(7, ("true",), ".", {}, 0o22, (0, 1, 2)),
        wire.Update(1, b"policy"),
    ],
    ids=["variable", "none", "no variables", "number", "policy"],
)
def test_a_program_that_sends_what_it_may_not_is_lost_and_its_jobs_with_it(bad: Message) -> None:
    """And nothing of it is left: no job, no descriptor."""
    open_before = os.listdir("/proc/self/fd")
    ours, theirs = pair(wire.FROM_SUPERVISOR, wire.TO_SUPERVISOR)
    asked, client = Asked(), supervisor._Client(ours, False)
    asked._clients[ours.fileno()] = client
    theirs.send(wire.Run(7, ("true",), "sub", {"A": "2"}, 0o22, (0, 1, 2)))
    asked._on_client(client)
    (job,) = asked._wanted  # the control
    assert (job.job.cwd, dict(job.job.environment)) == ("/work/sub", {"A": "2", "PWD": "/work/sub"})
    theirs.send(bad)
    asked._on_client(client)
    assert client.gone and not asked._wanted and not asked._clients
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == len(open_before)
