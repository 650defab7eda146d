"""``membrane diff``, ``apply`` and ``undo`` by their options, on a set that was made by hand."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from membrane.changes import store
from membrane.changes.base import MARGIN
from membrane.changes.store import ChangeSetError
from membrane.errors import Conflict, HostError, PolicyError
from membrane.ui import review
from membrane.ui.options import parse


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The set ``one`` of ``ws``: ``sub/a`` changed, ``new`` made, and an editor's task, which is red."""
    workspace, place = tmp_path / "ws", str((tmp_path / "state").resolve())
    (workspace / "sub").mkdir(parents=True)
    (workspace / "sub/a").write_text("one\n")
    until = (workspace / "sub/a").stat().st_ctime_ns + MARGIN
    while time.time_ns() <= until:
        os.sched_yield()
    with store.begin(place, "one", str(workspace), "a run", "s") as held:
        upper = Path(held.top, "upper")
        for name, text in (("sub/a", "two\n"), ("new", "new\n"), (".vscode/tasks.json", "{}")):
            (upper / name).parent.mkdir(exist_ok=True)
            (upper / name).write_text(text)
    monkeypatch.setenv("MEMBRANE_HOME", place)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(workspace)
    return place


def run(state: str, *words: str) -> int:
    return review.main(parse(list(words)), state)


def holds() -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(Path().rglob("*")) if path.is_file()}


BEFORE = {"sub/a": "one\n"}


def test_apply_leaves_out_what_is_red_and_says_so_by_its_status(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(state, "apply", "--dry-run") == review.REFUSED
    told = capfd.readouterr().out
    assert told.startswith("would be put in place: ") and "\n  would not be put in place: " in told
    assert "undo" not in told and holds() == BEFORE
    assert run(state, "apply", "--dry-run", ".vscode") == review.REFUSED  # nothing but what is red
    told = capfd.readouterr().out
    assert told.startswith("would be put in place: nothing\n") and "    .vscode/tasks.json  (" in told
    assert run(state, "apply") == review.REFUSED
    assert holds() == {"new": "new\n", "sub/a": "two\n"}
    assert run(state, "undo") == 0
    assert capfd.readouterr().out.endswith("everything is as before\n") and holds() == BEFORE
    assert run(state, "apply", "--all") == 0  # the control
    assert ".vscode/tasks.json" in holds()


def test_names_are_taken_from_the_current_directory(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir("sub")
    assert run(state, "diff", "a") == 0
    assert b"+two\n" in (out := capfdbinary.readouterr().out) and b"new" not in out
    assert run(state, "diff", "one", "../new") == 0
    assert b"+new\n" in (out := capfdbinary.readouterr().out) and b"two" not in out
    assert run(state, "apply", "a") == 0
    monkeypatch.chdir("..")
    assert holds() == {"sub/a": "two\n"}
    for typed in (f"{tmp_path}/elsewhere", "../x"):
        with pytest.raises(PolicyError, match="is not in"):
            run(state, "apply", typed)


def test_a_link_is_what_is_chosen_and_not_where_it_leads(state: str, tmp_path: Path) -> None:
    Path("link").symlink_to(tmp_path)
    with pytest.raises(PolicyError, match="is not in"):
        run(state, "apply", "link/ws2/a")
    assert run(state, "apply", "link", "new") == 0
    assert Path("new").exists()


def test_which_set_is_meant(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChangeSetError):  # a name that no set has, in a place that has none
        monkeypatch.chdir(tmp_path)
        run(state, "diff", "two")
    with pytest.raises(ChangeSetError, match="there is no change set of") as refused:
        run(state, "diff")
    assert refused.value.fix == ("membrane changes   # lists them",)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(state, "diff", "one", "--stat") == 0
    with pytest.raises(PolicyError, match="starts from the current directory"):
        run(state, "diff", "one", "new")


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_a_name_that_is_nowhere_is_an_error(state: str, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A set that was discarded, or a letter that is wrong: "nothing" would pass for an answer."""
    for words in (["two"], ["one", "neww"], ["one", "new", "sub/b"]):
        with pytest.raises(PolicyError, match="neither the change set one nor its workspace has"):
            run(state, command, *words)
    assert holds() == BEFORE and capfd.readouterr().out == ""
    Path("same").write_text("same\n")  # it is there, and nobody changed it
    assert run(state, command, "same") == 0
    assert run(state, command, "sub", "new") == 0  # the control


def test_undo_without_a_name_takes_back_the_last_apply(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    with store.take(state, "one", "a fork") as held:
        held.fork("two")
    assert run(state, "diff", "--json") == 0 and json.loads(capfd.readouterr().out)["name"] == "two"  # the newest
    assert run(state, "apply", "two", "new") == 0
    applied = os.stat(f"{store.place(state, 'two')}/undo").st_ctime_ns
    while Path(state).stat().st_ctime_ns <= applied:  # the file system's clock has gone on
        os.utime(state)
    assert run(state, "apply", "one", "sub/a") == 0
    assert holds() == {"new": "new\n", "sub/a": "two\n"}
    assert run(state, "undo") == 0
    assert holds() == {"new": "new\n", **BEFORE}
    assert run(state, "undo") == 0
    assert holds() == BEFORE
    with pytest.raises(HostError, match="none that can be undone"):
        run(state, "undo")


def test_a_set_on_which_a_run_goes_on_can_be_looked_at_by_a_fork(state: str) -> None:
    with store.take(state, "one", "a run"):
        for words in (["diff"], ["apply", "--dry-run"], ["undo"]):
            with pytest.raises(store.InUse, match="in use by a run") as refused:
                run(state, *words)
            assert any(line.startswith("membrane fork one NEW") for line in refused.value.fix)


def test_the_forms_of_a_diff(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(state, "diff", "--name-status") == 0
    assert "M\tsub/a\n" in capfd.readouterr().out
    assert run(state, "diff", "--stat") == 0
    assert "insertions(+)" in capfd.readouterr().out
    assert run(state, "diff", "--json") == 0
    rows = {row["path"]: row for row in json.loads(capfd.readouterr().out)["changes"]}
    assert rows["sub/a"]["kind"] == "changed" and rows[".vscode/tasks.json"]["red"]
    assert run(state, "diff", "--html") == 0
    page = capfd.readouterr().out
    assert "<html" in page and ".vscode/tasks.json" in page and "<script" not in page


def test_a_conflict_changes_nothing_and_the_rest_can_be_had(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("new").write_text("host\n")
    with pytest.raises(Conflict) as refused:
        run(state, "apply")
    assert holds() == {**BEFORE, "new": "host\n"}
    assert [line.split("   #")[0] for line in refused.value.fix] == [  # the set by its name: there may be a newer one
        "membrane apply --merge one",
        "membrane apply --rest one",
    ]
    assert capfd.readouterr().out == ""
    with pytest.raises(Conflict) as refused:
        run(state, "apply", "--merge", "--json")
    assert [line.split("   #")[0] for line in refused.value.fix] == ["membrane apply --merge --rest one"]
    answer = json.loads(capfd.readouterr().out)
    assert [row["path"] for row in answer["conflicts"]] == ["new"] and answer["applied"] == []
    assert holds() == {**BEFORE, "new": "host\n"}
    assert run(state, "apply", "--rest", "--json") == review.REFUSED
    answer = json.loads(capfd.readouterr().out)
    assert [row["path"] for row in answer["conflicts"]] == ["new"]
    assert holds() == {"new": "host\n", "sub/a": "two\n"}


def test_an_apply_cannot_be_brought_to_both_ends(state: str) -> None:
    with pytest.raises(PolicyError, match="exclude each other"):
        run(state, "apply", "--continue", "--abort")
