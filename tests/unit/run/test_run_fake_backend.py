"""A whole run over a backend that makes nothing: what ``membrane.run`` asks of the seam, when, and what it says.

Nothing here needs a namespace, a mount, a filter or a right; what a backend makes of it is ``tests/kernel``'s.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fake_backend import FakeBackend, FakeCell, Outcome, session

from membrane.backend import Refused
from membrane.errors import PolicyError
from membrane.policy.model import Limits, Origin, PathRule, Policy, TraceRule
from membrane.record import reader
from membrane.run import session as session_module
from membrane.run.begin import begin

HERE = Origin("command line", "test")
MADE = ["begin", "facts", "plan", "start true"]
ENDED = ["kill", "reap"]


def ends(status: int = 0) -> object:
    return lambda cell: cell.command.exit(status)


def run(place: Path, script: object, policy: Policy | None = None, **how: object) -> Outcome:
    return session(FakeBackend(place, script, **how), policy or Policy(), "true")  # type: ignore[arg-type]


def events(place: Path, outcome: Outcome) -> list[dict[str, object]]:
    entry = reader.find(str(place / "state"), outcome.session)
    assert reader.verify(entry.path).problems == ()
    return [event.data for event in reader.Record(entry.path).events()]


def test_a_run_asks_in_this_order_and_returns_the_status(tmp_path: Path) -> None:
    outcome = run(tmp_path, ends(7))
    assert outcome.status == 7, outcome
    assert outcome.asked == [*MADE, "grant", "fill ", "sockets", "built", "ready", "release", *ENDED]


def test_the_record_says_what_was_read_back_and_verifies(tmp_path: Path) -> None:
    outcome = run(tmp_path, ends(3))
    started, *_rest, ended = events(tmp_path, outcome)
    assert (started["event"], started["command"], started["trace_source"]) == ("SessionStarted", ["true"], "network")
    bindings = started["assurance"]
    assert isinstance(bindings, list)
    assert {"rule": "everything", "mechanism": "read back", "status": "bound", "read_back": True} in bindings
    assert (ended["event"], ended["exit_code"]) == ("SessionEnded", 3)


def test_nothing_is_released_that_cannot_be_confirmed(tmp_path: Path) -> None:
    outcome = run(tmp_path, ends(), confined=False)
    assert outcome.raised.startswith("HostError: cannot confirm the confinement")
    assert outcome.asked[-3:] == ["ready", *ENDED]
    assert "release" not in outcome.asked


def test_a_rule_that_a_backend_cannot_bind_starts_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, ends(), refuses="this machine has no such thing")
    assert outcome.raised == "PolicyError: this machine has no such thing"
    assert outcome.asked == ["begin", "facts", "plan", "give up"]


def test_an_error_of_the_policy_gives_up_what_had_begun(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path, lambda _cell: None)

    def request() -> object:
        assert backend.asked == ["begin"], "the backend begins before the policy is read"
        raise PolicyError("read the policy", "it is none")

    with pytest.raises(PolicyError):
        begin(request, backend=backend)  # type: ignore[arg-type]
    assert backend.asked == ["begin", "give up"]


@pytest.mark.parametrize("mode", ["full", "required"])
def test_a_record_that_is_required_is_not_left_to_a_backend_without_a_tracer(tmp_path: Path, mode: str) -> None:
    outcome = run(tmp_path, ends(), Policy(trace=TraceRule(mode)))  # type: ignore[arg-type]
    assert "needs a tracer" in outcome.raised
    assert outcome.asked == [*MADE, *ENDED]


def test_without_a_tracer_that_is_said(tmp_path: Path) -> None:
    assert "what the command does is not traced" in run(tmp_path, ends()).said


def test_a_name_that_appears_is_asked_to_be_hidden(tmp_path: Path) -> None:
    def script(cell: FakeCell) -> None:
        cell.on_hide = lambda: cell.command.exit(0)
        (tmp_path / "home" / "work" / "key.pem").write_text("secret")

    policy = Policy(paths=(PathRule("*.pem", HERE, "hide"),), limits=Limits(time=20))
    outcome = run(tmp_path, script, policy)
    assert outcome.status == 0, outcome
    assert outcome.hidden == [f"{tmp_path}/home/work/key.pem"]


def test_a_name_that_is_there_is_hidden_before_the_word(tmp_path: Path) -> None:
    (tmp_path / "home" / "work").mkdir(parents=True)
    (tmp_path / "home" / "work" / "key.pem").write_text("secret")
    outcome = run(tmp_path, ends(), Policy(paths=(PathRule("*.pem", HERE, "hide"),)))
    assert f"fill {tmp_path}/home/work/key.pem" in outcome.asked
    assert outcome.hidden == []


def test_a_protected_name_that_was_made_is_in_the_summary(tmp_path: Path) -> None:
    def script(cell: FakeCell) -> None:
        hooks = tmp_path / "home" / "work" / ".git" / "hooks"
        hooks.mkdir(parents=True)
        (hooks / "post-checkout").write_text("#!/bin/sh\n")
        cell.command.exit(0)

    outcome = run(tmp_path, script)
    assert outcome.status == 0, outcome
    assert not (tmp_path / "home" / "work" / ".git" / "hooks" / "post-checkout").exists()
    assert "refused 1" in outcome.said, outcome.said
    assert "moved out of the workspace" in outcome.said
    assert "NameQuarantined" in [event["event"] for event in events(tmp_path, outcome)]


def test_the_time_limit_ends_a_command_that_does_not(tmp_path: Path) -> None:
    outcome = run(tmp_path, lambda _cell: None, Policy(limits=Limits(time=1)))
    assert outcome.status == 124
    assert "the time limit of 1 s ended the command" in outcome.said
    assert outcome.asked[-2:] == ENDED


def test_the_end_of_the_cell_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says nothing any more, however long its news are waited for."""
    monkeypatch.setattr(session_module, "LAST_NEWS", 0.1)
    outcome = run(tmp_path, lambda cell: cell.said.end())
    assert outcome.status == 125
    assert "the command was killed" in outcome.said
    assert outcome.asked[-2:] == ENDED


def test_the_end_of_the_cell_after_the_command_s_is_none(tmp_path: Path) -> None:
    def script(cell: FakeCell) -> None:
        cell.said.end()
        cell.command.exit(5)

    assert run(tmp_path, script).status == 5


def test_what_was_refused_before_the_end_of_the_command_does_not_hide_that_end(tmp_path: Path) -> None:
    """The end of the cell may be seen before all that it said."""

    def script(cell: FakeCell) -> None:
        cell.said.end()
        for name in ("one.pem", "two.pem"):
            cell.command.said.say(Refused(f"{tmp_path}/home/work/{name}", "hidden", "write"))
        cell.command.exit(5)

    outcome = run(tmp_path, script)
    assert outcome.status == 5, outcome
    assert [event["event"] for event in events(tmp_path, outcome)].count("AccessDenied") == 2


def test_the_end_of_what_keeps_the_command_is_a_kill(tmp_path: Path) -> None:
    assert run(tmp_path, lambda cell: cell.command.said.end()).status == 128 + signal.SIGKILL


def test_a_cell_that_breaks_its_promise_ends_the_run(tmp_path: Path) -> None:
    outcome = run(tmp_path, lambda cell: cell.breaks("the walls came down"))
    assert outcome.status == 125
    assert "the walls came down" in outcome.said
    assert outcome.asked[-2:] == ENDED


def test_signals_of_the_caller_are_the_command_s(tmp_path: Path) -> None:
    outcome = run(tmp_path, lambda _cell: os.kill(os.getpid(), signal.SIGTERM))
    assert outcome.status == 128 + signal.SIGTERM
    assert "signal 15" in outcome.asked
