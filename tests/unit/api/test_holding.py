"""api.holding: everything stops before the lock is lent, and goes on whatever happens; over a fake cell."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.api import wire
from membrane.api.holding import Holding
from membrane.backend import Still
from membrane.errors import HostError
from membrane.events import CheckpointRestored


class FakeStill(Still):
    def __init__(self, steps: int, fails: str = "") -> None:
        self.steps, self.fails, self.ran, self.ended = steps, fails, False, 0

    def step(self) -> bool:
        if self.fails:
            self.ended += 1
            raise HostError("stop the processes", self.fails)
        self.steps -= 1
        return self.steps < 0

    def confirm(self) -> None:
        if self.ran:
            raise HostError("hold the processes", "one has run")

    def end(self) -> None:
        self.ended += 1

    def release(self) -> None:
        raise AssertionError("for who takes over only")


class Changes:
    fd, name = 99, "one"


class Looks:
    def __init__(self, error: bool = False) -> None:
        self.error, self.looked = error, 0

    def look(self) -> None:
        self.looked += 1
        if self.error:
            raise OSError("the set cannot be read")


class FakeSandbox:
    """What ``holding.Sandbox`` asks for; ``said``: the answers, and when everything went on."""

    def __init__(self, still: FakeStill, *, live: bool = False) -> None:
        self.still, self.said, self.making = still, list[Any](), 0
        self.cell = self.prepared = self.log = self
        self.changes = None if live else Changes()
        self.marks: Looks | None = Looks()

    def stand_still(self) -> FakeStill:
        return self.still

    def add(self, event: object) -> None:
        self.said.append(event)

    def answer(self, message: object) -> None:
        self.said.append(message)

    def go_on(self) -> None:
        self.said.append("go on")


def holding(steps: int = 0, fails: str = "", *, live: bool = False) -> tuple[Holding, FakeSandbox]:
    sandbox = FakeSandbox(FakeStill(steps, fails), live=live)
    return Holding(sandbox), sandbox  # type: ignore[arg-type]


def test_the_lock_is_lent_once_all_stand_still() -> None:
    held, sandbox = holding(steps=2)
    assert not held
    held.obey(wire.Hold(7))
    assert held and held.due > 0 and sandbox.said == []
    held.step()
    assert sandbox.said == []
    held.step()
    assert sandbox.said == [wire.Holding(7, 99)] and held.due == 0.0
    held.obey(wire.LetGo(8))
    assert sandbox.said[1:] == [wire.Done(8), "go on"] and sandbox.still.ended == 1 and not held
    assert sandbox.marks is not None and sandbox.marks.looked == 1


def test_no_command_is_being_made_meanwhile() -> None:
    held, sandbox = holding()
    sandbox.making = 1
    held.obey(wire.Hold(7))
    assert sandbox.said == [] and held.due > 0
    sandbox.making = 0
    held.step()
    assert sandbox.said == [wire.Holding(7, 99)]


def error_of(message: object) -> str:
    assert isinstance(message, wire.NotDone)
    return str(wire.error_of(message.error))


def test_what_does_not_stop_goes_on_and_the_caller_is_answered() -> None:
    held, sandbox = holding(fails="they do not stop")
    held.obey(wire.Hold(7))
    assert "they do not stop" in error_of(sandbox.said[0]) and sandbox.said[1:] == ["go on"] and not held
    held.obey(wire.Confirm(8))
    assert "are not held" in error_of(sandbox.said[2])


def test_a_copy_is_worth_something_only_if_nothing_has_run() -> None:
    held, sandbox = holding()
    held.obey(wire.Hold(1))
    held.obey(wire.Confirm(2))
    sandbox.still.ran = True
    held.obey(wire.Confirm(3))
    assert sandbox.said[1] == wire.Done(2) and "one has run" in error_of(sandbox.said[2])
    assert held, "who looks ends it"


def test_only_one_looks_at_a_time_and_only_at_changes_that_there_are() -> None:
    held, sandbox = holding(steps=9)
    held.obey(wire.Hold(1))
    held.obey(wire.Hold(2))
    assert [error_of(each) for each in sandbox.said] == ["cannot look at the changes: somebody looks at them already"]
    held.obey(wire.LetGo(3))  # it is not held yet
    assert "are not held" in error_of(sandbox.said[1]) and held
    held, sandbox = holding(live=True)
    held.obey(wire.Hold(1))
    assert "the workspace is live" in error_of(sandbox.said[0]) and not held


def test_everything_goes_on_also_where_the_set_cannot_be_read() -> None:
    held, sandbox = holding()
    held.obey(wire.Hold(1))
    sandbox.marks = Looks(error=True)
    with pytest.raises(OSError):
        held.obey(wire.LetGo(2))
    assert sandbox.still.ended == 1 and not held
    held.end()
    assert sandbox.still.ended == 1


def test_a_checkpoint_that_was_gone_back_to_is_on_the_record() -> None:
    held, sandbox = holding()
    held.obey(wire.Restored(4, "first"))
    assert sandbox.said == [CheckpointRestored("one", "first"), wire.Done(4)]
