"""api.changesets: sets that were made by hand, looked at, put in place and taken back without a sandbox."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from membrane.api.changesets import ChangeSet, OpenSet, SandboxSet
from membrane.changes import store
from membrane.changes.base import MARGIN
from membrane.errors import Conflict, HostError, Poisoned, PolicyError
from membrane.policy.model import Origin, PathRule


class Place:
    """A workspace, and the set ``one`` of it: ``a`` changed, ``new`` made, and a git hook."""

    def __init__(self, tmp_path: Path) -> None:
        self.workspace, self.state = tmp_path / "ws", tmp_path / "state"
        self.workspace.mkdir()
        (self.workspace / "a").write_text("one\n")
        until = (self.workspace / "a").stat().st_ctime_ns + MARGIN
        while time.time_ns() <= until:  # what was changed just before the start counts as the host's
            os.sched_yield()
        self.environ = {"MEMBRANE_HOME": str(self.state), "HOME": str(tmp_path)}
        with store.begin(str(self.state), "one", str(self.workspace), "a run", "s") as held:
            upper = Path(held.top, "upper")
            (upper / "a").write_text("two\n")
            (upper / "new").write_text("new\n")
            (upper / ".git/hooks").mkdir(parents=True)
            (upper / ".git/hooks/post-checkout").write_text("#!/bin/sh\n")

    def set(self, name: str = "one") -> ChangeSet:
        return ChangeSet(name, environ=self.environ)

    def holds(self) -> dict[str, str]:
        return {each.name: each.read_text() for each in self.workspace.iterdir() if each.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


BEFORE, AFTER = {"a": "one\n"}, {"a": "two\n", "new": "new\n"}


def test_it_is_looked_at_put_in_place_and_taken_back(place: Place) -> None:
    found = place.set()
    kinds = {each.path: (each.kind, bool(each.red or each.never)) for each in found.changes()}
    assert kinds["a"] == ("changed", False) and kinds["new"] == ("added", False)
    assert any(path.startswith(".git") and bad for path, (_kind, bad) in kinds.items())
    patch = found.diff(["a"])
    assert b"-one\n+two\n" in patch and b"new" not in patch
    assert place.holds() == BEFORE  # the control: to look changes nothing
    report = found.apply()
    assert place.holds() == AFTER and not (place.workspace / ".git/hooks/post-checkout").exists()
    assert {"a", "new"} <= {each.path for each in report.applied}
    assert any(change.path.startswith(".git") for change, _why in report.refused)
    assert found.undo() == ()
    assert place.holds() == BEFORE


def test_a_poisoned_set_is_put_in_place_whole_or_not_at_all(place: Place) -> None:
    with pytest.raises(Poisoned) as raised:
        place.set().apply(refuse="all")
    assert any(path.startswith(".git") for path, _why in raised.value.paths)
    assert place.holds() == BEFORE
    place.set().apply(["new"], refuse="all")  # the control: nothing of it was chosen
    assert place.holds() == {"a": "one\n", "new": "new\n"}


def test_what_the_host_changed_is_a_conflict(place: Place) -> None:
    (place.workspace / "a").write_text("host\n")
    with pytest.raises(Conflict) as raised:
        place.set().apply()
    assert [path for path, _why in raised.value.paths] == ["a"] and place.holds() == {"a": "host\n"}
    place.set().apply(rest=True)
    assert place.holds() == {"a": "host\n", "new": "new\n"}


def test_checkpoints_restore_and_fork(place: Place) -> None:
    found = place.set()
    found.checkpoint("first")
    with pytest.raises(PolicyError):
        found.checkpoint("first")
    found.checkpoint("first", replace=True)
    other = found.fork("two")
    assert found.checkpoints() == ("first",)
    with store.take(str(place.state), "one", "a test") as held:
        Path(held.top, "upper", "later").write_text("later\n")
    assert "later" in {each.path for each in found.changes()} - {each.path for each in other.changes()}
    found.restore("first")
    assert "later" not in {each.path for each in found.changes()}
    assert found.checkpoints() == ("first", "before-restore")


def test_a_set_that_is_used_or_gone_is_an_error_of_its_own(place: Place) -> None:
    with store.take(str(place.state), "one", "a run (session 7)"), pytest.raises(PolicyError, match="session 7"):
        place.set().changes()
    place.set().discard()
    for call in (place.set().changes, place.set().checkpoints, place.set().discard):
        with pytest.raises(PolicyError, match="one"):
            call()


def test_the_rules_of_the_policy_in_force_hold(place: Place) -> None:
    hidden = (PathRule("new", Origin("command line", "test"), "hide"),)
    SandboxSet("one", place.environ, hidden).apply()
    assert place.holds() == {"a": "two\n"}


def test_the_set_of_an_open_sandbox_works_on_a_lent_lock_and_asks_before_it_copies(place: Place) -> None:
    moved = False

    def confirm() -> None:
        if moved:
            raise HostError("hold the processes", "one has run")

    with store.take(str(place.state), "one", "a sandbox") as held:
        lent = OpenSet("one", place.environ, (), held.fd, confirm)
        with pytest.raises(PolicyError, match="in use"):
            place.set().changes()  # the control
        lent.checkpoint("first")
        moved = True
        with pytest.raises(HostError, match="one has run"):
            lent.checkpoint("second")
        assert lent.checkpoints() == ("first",)
        lent.apply(["a"])
        assert not lent.whole and place.holds() == {"a": "two\n"}
        lent.apply(refuse="nothing")
        assert lent.whole
        os.fstat(held.fd)  # the lender's
        assert store.in_use(str(place.state), "one") == "a sandbox"
