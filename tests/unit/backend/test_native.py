"""The native backend: what the messages of launcher, pid 1 and keepers become, and which of them end a run."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from membrane.backend import Broken, Ended, Exited, Failed, Frozen, Hidden, Job, News, Stopped, Waiting
from membrane.backend.native import NativeCell, NativeCommand, NativeSharedCommand
from membrane.errors import HostError, InternalError
from membrane.host import messages as m
from membrane.host import start
from membrane.host.channel import Channel, named_pair, pair
from membrane.host.launch import Launch
from membrane.messages import Failure, Malformed, Message
from membrane.plan.model import Mask

FAILURE = Failure(errno.EACCES, "enter the workspace", "Permission denied", "/w")


@pytest.fixture
def inside() -> Iterator[tuple[Channel, Channel]]:
    supervisor, other = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
    with contextlib.closing(supervisor), contextlib.closing(other):
        yield supervisor, other


@pytest.fixture
def launch() -> Iterator[tuple[Any, Channel]]:
    """A launch whose launcher is this test."""
    supervisor, launcher = pair(m.TO_LAUNCHER, m.FROM_LAUNCHER)
    made: Any = SimpleNamespace(launcher=supervisor, init=None, masks_pending=0)
    for name in ("mask", "freeze", "wait_masks", "_receive"):
        setattr(made, name, getattr(Launch, name).__get__(made))
    with contextlib.closing(supervisor), contextlib.closing(launcher):
        yield made, launcher


@pytest.mark.parametrize(
    ("message", "news"),
    [
        (m.CommandExited(0x700), Exited(0x700)),
        (m.JobStopped(), Stopped()),
        (FAILURE, Failed(errno.EACCES, "enter the workspace", "Permission denied", "/w")),
    ],
)
def test_what_a_command_tells(inside: tuple[Channel, Channel], message: Message, news: News) -> None:
    supervisor, other = inside
    command, shared = NativeCommand(supervisor), NativeSharedCommand(supervisor, None)  # type: ignore[arg-type]
    for each in (command, shared):
        other.send(message)
        assert each.read() == news
    other.close()
    assert command.read() == shared.read() == Ended()


def test_what_is_said_to_a_command(inside: tuple[Channel, Channel]) -> None:
    supervisor, other = inside
    command, shared = NativeCommand(supervisor), NativeSharedCommand(supervisor, None)  # type: ignore[arg-type]
    command.release()
    command.resume()
    assert command.signal(signal.SIGTERM) and shared.signal(signal.SIGSTOP)
    shared.release(Job(("a",), (("A", "b"),), "/w", 0o22), (0, 1, 2))
    told = [other.receive() for _ in range(5)]
    assert told[:4] == [m.Go(), m.Resume(), m.SendSignal(signal.SIGTERM), m.SendSignal(signal.SIGSTOP)]
    run = told[4]
    assert isinstance(run, m.RunJob) and run.job == start.Job(("a",), (("A", "b"),), "/w", 0o22)
    for fd in (run.stdin, run.stdout, run.stderr):
        os.close(fd)
    other.close()
    command.resume()
    assert not command.signal(signal.SIGTERM), "it is gone"


def test_only_a_command_that_was_not_read_back_may_wait_and_its_pid_is_the_kernels(
    inside: tuple[Channel, Channel],
) -> None:
    supervisor, other = inside
    shared = NativeSharedCommand(supervisor, None)  # type: ignore[arg-type]
    other.send(m.Ready(0, None))
    assert shared.read() == Waiting() and shared._sender == os.getpid()
    shared.ended = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    other.send(m.Ready(0, None))
    with pytest.raises(InternalError, match="unexpected message Ready"):
        shared.read()
    shared.let_go()
    other.send(m.Ready(0, None))
    with pytest.raises(InternalError, match="unexpected message Ready"):
        NativeCommand(supervisor).read()


def test_the_last_status_is_taken_without_waiting(inside: tuple[Channel, Channel]) -> None:
    supervisor, other = inside
    shared = NativeSharedCommand(supervisor, None)  # type: ignore[arg-type]
    assert shared.last_status() is None
    other.send(FAILURE)
    other.send(m.CommandExited(9))
    assert shared.last_status() == 9
    other.socket.send(b"no message")
    assert shared.last_status() is None


def test_nonsense_from_inside_is_refused(inside: tuple[Channel, Channel]) -> None:
    supervisor, other = inside
    for raw in (b"X0", b"\xff", b"\6", b"\x63"):
        other.socket.send(raw)
        with pytest.raises(Malformed):
            NativeCommand(supervisor).read()


def test_a_mask_whose_process_was_killed_is_none(launch: tuple[Any, Channel]) -> None:
    """The run ends: nothing says that the name is hidden."""
    made, launcher = launch
    cell = NativeCell(made, "one")
    late = start.Late((Mask("/w/.env", False),))
    for status, news in ((0, Hidden), (-9, Broken), (1, Broken)):
        cell.hide(late.ops)
        assert cell.hiding and launcher.receive() == m.HideNames(late)
        launcher.send(m.NamesHidden(status))
        assert isinstance(cell.read(made.launcher.fileno()), news) and not cell.hiding
    cell.hide(late.ops)
    launcher.send(m.NamesHidden(-9))
    with pytest.raises(HostError, match="status -9"):
        made.wait_masks()


def test_what_the_launcher_tells(launch: tuple[Any, Channel]) -> None:
    made, launcher = launch
    cell = NativeCell(made, "one")
    launcher.send(m.FileFrozen(0))
    launcher.send(m.FileFrozen(errno.EPERM))
    launcher.send(FAILURE)
    launcher.send(m.UserNamespaceMade())
    at = made.launcher.fileno()
    assert (cell.read(at), cell.read(at)) == (Frozen(True), Frozen(False))
    assert cell.read(at) == Broken("cannot mask a name that appeared: Permission denied")
    with pytest.raises(InternalError, match="unexpected message UserNamespaceMade"):
        cell.read(at)
    launcher.close()
    assert cell.read(at) == Ended()
    cell.hide(())
    assert not cell.hiding and not cell.freeze(0, "config"), "the cell is gone"
