"""``membrane changes`` and its siblings, on sets that were made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from membrane.changes import store
from membrane.ui import changes, cli


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place = str((tmp_path / "state").resolve())
    monkeypatch.setenv("MEMBRANE_HOME", place)
    monkeypatch.setenv("HOME", "/home/nobody")
    (tmp_path / "ws").mkdir()
    with store.begin(place, "one", str(tmp_path / "ws"), "a run (session 5)", "5") as held:
        (Path(held.top) / "upper" / "file").write_text("x" * 5000)
    return place


def test_the_list(state: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["changes"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "AGE", "FILES", "SIZE", "STATE", "CHECKPOINTS", "WORKSPACE"]
    assert row.split()[0] == "one"
    assert row.split()[2:] == ["1", "8.2", "kB", "kept", "-", str(tmp_path / "ws")]
    with store.take(state, "one", "a run (session 6)"):
        assert cli.main(["changes", "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)["changes"]
    assert (data["name"], data["files"], data["state"]) == ("one", 1, "a run (session 6)")


def test_what_lies_on_the_terminal_is_escaped(state: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = tmp_path / "w\x1b[31m\n"
    hostile.mkdir()
    store.begin(state, "two", str(hostile), "\x1b]0;x\x07").close()
    assert cli.main(["changes"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_checkpoint_fork_restore_discard(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["checkpoint", "one", "a"], ["fork", "one", "two"], ["restore", "one", "a"], ["discard", "two"]):
        assert cli.main(words) == 0, words
    assert [each.name for each in store.list_sets(state)] == ["one"]
    capsys.readouterr()
    assert cli.main(["discard", "two"]) == 78
    assert "there is no change set 'two'" in capsys.readouterr().err
    with store.take(state, "one", "a run (session 6)"):
        for words in (["checkpoint", "one", "b"], ["fork", "one", "two"], ["discard", "one"]):
            assert cli.main(words) == 78
            assert "in use by a run (session 6)" in capsys.readouterr().err
        assert cli.main(["restore", "one", "a"]) == 78
        said = capsys.readouterr().err
        assert "in use by a run (session 6)" in said and "nothing was restored" in said
        assert "try: end the command (membrane ps), then: membrane restore one a" in said


@pytest.mark.parametrize("words", [["discard"], ["fork", "one"], ["restore", "one", "a", "b"], ["changes", "one"]])
def test_wrong_words(state: str, words: list[str]) -> None:
    assert cli.main(words) == 2


def test_a_count_that_was_not_finished_says_so(
    state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_COUNTED", 0)
    assert cli.main(["changes"]) == 0
    assert " >0 " in capsys.readouterr().out


def test_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MEMBRANE_HOME", str(tmp_path / "none"))
    assert cli.main(["changes"]) == 0
    assert "there is no change set" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
