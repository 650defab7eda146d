"""``membrane exec``: which session is meant by what a person types, with sessions that live and that have ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.changes import store
from membrane.errors import HostError, PolicyError
from membrane.run.registry import Run, SessionRecord
from membrane.ui import exec as joining

FIRST, SECOND, THIRD = "aaaa1111" * 2, "aaaa2222" * 2, "bbbb3333" * 2


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    place = str(tmp_path / "state")
    runs = []
    for number, (name, workspace) in enumerate(((FIRST, "one"), (SECOND, "two"), (THIRD, "two"))):
        (tmp_path / workspace).mkdir(exist_ok=True)
        made = SessionRecord(name, os.getpid(), float(number), str(tmp_path / workspace), ("sh",), "network", 0, 0, 0)
        runs.append(Run(place, made))
    with store.begin(place, "set", str(tmp_path / "one"), "a run", FIRST):
        pass
    with store.begin(place, "old", str(tmp_path / "one"), "a run", "cccc4444" * 2):
        pass
    yield place
    for run in runs:
        run.close()


@pytest.mark.parametrize(
    ("typed", "found"), [(FIRST, FIRST), ("aaaa2", SECOND), ("bbbb", THIRD), ("@last", THIRD), ("set", FIRST)]
)
def test_a_session_is_found_by_its_id_its_beginning_and_its_set(state: str, typed: str, found: str) -> None:
    assert joining.find(typed, state).id == found


def test_a_directory_means_its_workspace(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining.find(f"{tmp_path}/two/../one", state).id == FIRST
    (tmp_path / "link").symlink_to("one")
    assert joining.find(f"{tmp_path}/link", state).id == FIRST
    monkeypatch.chdir(tmp_path / "one")
    assert joining.find(".", state).id == FIRST
    with pytest.raises(PolicyError, match="means several"):
        joining.find(f"{tmp_path}/two", state)


@pytest.mark.parametrize(
    ("typed", "cause"),
    [
        ("aaaa", f"means several: {FIRST[:12]}, {SECOND[:12]}"),
        ("aaa", "no session that runs is 'aaa'"),  # too short to be meant
        ("nothing", "no session that runs is 'nothing'"),
        ("", "no session that runs is ''"),
        ("x\x1b[2J", r"no session that runs is 'x\u{1b}[2J'"),
        ("./none", "no session that runs is './none'"),
    ],
)
def test_what_means_none_or_several_is_refused(state: str, typed: str, cause: str) -> None:
    with pytest.raises(PolicyError) as refused:
        joining.find(typed, state)
    assert cause in refused.value.cause and refused.value.fix == ("membrane ps",)


def test_a_set_on_which_nothing_runs_says_how_it_is_used(state: str) -> None:
    with pytest.raises(store.ChangeSetError, match="no session works on the change set 'old'") as refused:
        joining.find("old", state)
    assert refused.value.fix == ("membrane --review=old -- COMMAND",)


def test_a_session_that_has_ended_is_none(state: str, tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:  # its lock goes with it
        try:
            Run(state, SessionRecord("dddd5555" * 2, os.getpid(), 9.0, str(tmp_path), ("sh",), "network", 0, 0, 0))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.exists(f"{state}/run/{'dddd5555' * 2}")  # the control: its record is there
    with pytest.raises(PolicyError, match="no session that runs"):
        joining.find("dddd", state)
    assert joining.find("@last", state).id == THIRD


def test_a_session_whose_door_is_gone_is_an_error_of_the_machine(state: str) -> None:
    with pytest.raises(HostError):
        joining.main(FIRST, ("true",), state)
