"""run.joined: callers that lie, leave or ask twice cost the session nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from membrane.errors import HostError
from membrane.host.channel import Channel
from membrane.messages import Failure
from membrane.run import door, joined


class Command:
    """A command that confines itself for ever."""

    terminal = -1

    def __init__(self) -> None:
        self.news, self._other = os.pipe()
        self.said: list[str] = []

    def fileno(self) -> int:
        return self.news

    def refuse(self) -> None:
        self.said.append("refused")

    def close(self) -> None:
        os.close(self.news)
        os.close(self._other)


class Session:
    """What ``Door`` takes of a session."""

    def __init__(self, path: str) -> None:
        self.handlers: dict[int, Callable[[], None]] = {}
        self.commands: list[Command] = []
        self.listening = door.listen(path, 8)
        self.can_join = True
        plan = SimpleNamespace(workspace="/w", cwd="/w", environment=())
        tools: Any = (self.handlers.__setitem__, self.handlers.pop, lambda _fd: None)
        self.door = joined.Door(self.listening, self, None, plan, *tools, lambda: None)  # type: ignore[arg-type, call-arg]

    def join(self) -> tuple[int, int]:
        if not self.can_join:
            raise HostError("join the sandbox", "it cannot be")
        return -1, 0

    def descriptors(self) -> tuple[int, ...]:
        return (0,)

    def fork(self, terminal: tuple[int, ...]) -> Command:
        assert terminal == ()
        self.commands.append(Command())
        return self.commands[-1]

    def turn(self) -> None:
        for handler in list(self.handlers.values()):
            handler()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(f"{tmp_path}/door")
    yield made
    made.door.close()
    made.listening.close()


def asked(count: int = 3) -> joined.Enter:
    return joined.Enter(("true",), "/", 0o22, tuple(os.open("/dev/null", os.O_RDWR) for _ in range(count)))


def send(channel: Channel, message: joined.Enter) -> None:
    channel.send(message)
    for fd in message.streams:
        os.close(fd)


def called(session: Session, tmp_path: Path) -> Channel:
    channel = joined.connect(f"{tmp_path}/door")
    session.door.on_caller()
    return channel


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_it_takes_three_streams(session: Session, tmp_path: Path, count: int) -> None:
    before = descriptors()
    channel = called(session, tmp_path)
    send(channel, asked(count))
    session.turn()
    told = channel.receive()
    assert isinstance(told, Failure) and "three streams" in told.cause and channel.receive() is None
    channel.close()
    assert descriptors() == before and session.commands == [] and session.handlers == {}


def test_where_it_cannot_be_joined_the_caller_is_told_and_the_next_one_tries_again(
    session: Session, tmp_path: Path
) -> None:
    before = descriptors()
    session.can_join = False
    channel = called(session, tmp_path)
    send(channel, asked())
    session.turn()
    told = channel.receive()
    assert isinstance(told, Failure) and told.cause == "it cannot be"
    channel.close()
    session.can_join = True
    channel = called(session, tmp_path)
    send(channel, asked())
    session.handlers[max(session.handlers)]()
    assert len(session.commands) == 1
    channel.close()
    next(iter(session.handlers.values()))()  # its end
    assert session.commands[0].said == ["refused"]
    assert descriptors() == before and session.handlers == {}


def test_who_asks_twice_or_talks_rubbish_is_dropped(session: Session, tmp_path: Path) -> None:
    before = descriptors()
    channel = called(session, tmp_path)
    send(channel, asked())
    guest = next(iter(session.handlers.values()))
    guest()
    send(channel, asked())
    guest()
    assert channel.receive() is None and session.commands[0].said == ["refused"]
    channel.close()
    assert descriptors() == before
    channel = called(session, tmp_path)
    channel.socket.send(b"\xff" * 99)
    session.turn()
    assert channel.socket.recv(1) == b""
    channel.close()
    assert descriptors() == before and session.handlers == {}


def test_there_is_a_bound(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST", 1)
    first, second = called(session, tmp_path), called(session, tmp_path)
    assert second.receive() is None
    send(first, asked())
    session.turn()
    assert len(session.commands) == 1
    first.close()
    second.close()
