"""run.boundary: what every sandbox has in common, over a fake backend: nothing is left, whatever a subclass does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, in_a_child

from membrane.errors import HostError, PolicyError
from membrane.policy.model import Limits, Policy
from membrane.record import reader
from membrane.run import registry
from membrane.run.begin import begin
from membrane.run.boundary import Boundary
from membrane.run.prepare import RunOptions, RunRequest


class Bare(Boundary):
    """A sandbox without a command; ``at``: what happens at which step."""

    def __init__(self, prepared: Any, at: dict[str, Callable[[], object]]) -> None:
        super().__init__(prepared)
        self.at, self.steps = at, list[str]()

    def step(self, name: str) -> Any:
        self.steps.append(name)
        return self.at[name]() if name in self.at else None

    def _prepare(self) -> None:
        self.step("prepare")

    def _begin(self) -> None:
        self.step("begin")

    def _due(self) -> float:
        return 1.0  # long ago: the loop never waits

    def _on_due(self) -> None:
        self.step("due")

    def _turn(self) -> None:
        self.step("turn")

    def _over(self) -> bool:
        return self.steps.count("due") > 2

    def _after_processes(self) -> None:
        self.step("after")

    def _exit_status(self) -> tuple[int, int]:
        return (125 if self.failure else 0), 0

    def _report(self) -> None:
        self.step("report")

    def _asks(self) -> None:
        return None

    def _answer_questions(self, gateway: object) -> None:
        raise AssertionError("there is no gateway")


def run(tmp_path: Path, policy: Policy | None = None, **at: Callable[[], object]) -> dict[str, Any]:
    """What came of one in a child: its status or error, its steps, what it asked of the backend, and what is left."""

    def body() -> dict[str, Any]:
        backend = FakeBackend(tmp_path, lambda _cell: None)
        prepared = begin(lambda: RunRequest(("true",), policy or Policy(), RunOptions()), backend=backend)
        made = Bare(prepared, at)
        status, raised = None, ""
        try:
            status = made.run()
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
        return {
            "status": status,
            "raised": raised,
            "failure": made.failure,
            "steps": made.steps,
            "asked": backend.asked,
            "alive": [each.id for each in registry.list_sessions(backend.state)],
            "record": prepared.id,
            "state": backend.state,
            "late": made.timed_out,
        }

    answer: dict[str, Any] = in_a_child(body)
    return answer


def fail(error: Exception) -> Callable[[], object]:
    def raises() -> object:
        raise error

    return raises


def last(found: dict[str, Any]) -> dict[str, Any]:
    entry = reader.find(found["state"], found["record"])
    assert not entry.running and reader.verify(entry.path).problems == ()
    events = [event.data for event in reader.Record(entry.path).events()]
    return events[-1]


def test_the_steps_of_a_whole_life(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found["steps"] == ["prepare", "begin", *["turn", "due"] * 3, "after", "report"]
    assert found["asked"][-2:] == ["kill", "reap"] and found["alive"] == []
    assert found["status"] == 0 and last(found)["event"] == "SessionEnded"


@pytest.mark.parametrize("error", [PolicyError("bind", "it cannot be bound"), HostError("do it", "it is not there")])
def test_what_fails_before_the_word_starts_nothing_and_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    found = run(tmp_path, prepare=fail(error))
    assert found["raised"] == f"{type(error).__name__}: {error}"
    assert found["steps"] == ["prepare", "after"] and "ready" not in found["asked"]
    assert found["asked"][-2:] == ["kill", "reap"] and found["alive"] == []


@pytest.mark.parametrize("step", ["begin", "turn", "due"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HostError("read it", "it is gone"), "cannot read it: it is gone"),
        (KeyError("x"), "internal error: KeyError: 'x'"),
    ],
)
def test_an_error_while_it_runs_kills_and_is_on_the_record(
    tmp_path: Path, step: str, error: Exception, said: str
) -> None:
    found = run(tmp_path, **{step: fail(error)})
    assert (found["status"], found["failure"]) == (125, said)
    assert found["asked"][-2:] == ["kill", "reap"] and found["steps"][-2:] == ["after", "report"]
    assert (last(found)["event"], last(found)["exit_code"]) == ("SessionEnded", 125)


def test_the_time_limit_ends_it(tmp_path: Path) -> None:
    def never() -> object:
        raise AssertionError("it is over")

    found = run(tmp_path, Policy(limits=Limits(time=0.000001)), due=never)
    assert found["late"] and found["asked"][-2:] == ["kill", "reap"]
