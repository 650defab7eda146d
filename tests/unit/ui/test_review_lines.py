"""``membrane apply --patch`` without a terminal: the answers of a list, on a set that was made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane.changes import store, terminal
from membrane.ui import cli, review_lines

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))
NEAR = BASE.replace(b"line 3\n", b"three\n").replace(b"line 6\n", b"six\n")
CHANGED = NEAR.replace(b"line 30\n", b"thirty\r\n")

Answer = Callable[..., int]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "ws"
    place.mkdir()
    (place / "text").write_bytes(BASE)
    (place / "other").write_text("o\n")
    monkeypatch.setenv("MEMBRANE_HOME", str((tmp_path / "state").resolve()))
    monkeypatch.setenv("HOME", str(tmp_path))
    probe = tmp_path / "probe"
    while True:  # until the set is later than the files by the clock of the file system
        probe.write_text("x")
        if probe.stat().st_ctime_ns > (place / "other").stat().st_ctime_ns + 20_000_000:
            break
    with store.begin(os.environ["MEMBRANE_HOME"], "one", str(place), "a run (session 5)", "5") as held:
        upper = Path(held.top) / "upper"
    (upper / "text").write_bytes(CHANGED)
    (upper / "other").write_text("p\n")
    (upper / ".vscode").mkdir()
    (upper / ".vscode/tasks.json").write_text("{}\n")
    for path in upper.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place


@pytest.fixture
def answered(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    def run(answers: str, *words: str, at_end: Callable[[], None] = lambda: None) -> int:
        todo = list(answers)

        def ask(question: str) -> str:
            print(question)
            if not todo:
                raise EOFError
            if len(todo) == 1:
                at_end()
            return todo.pop(0) + "\n"

        monkeypatch.setattr(terminal, "asker", lambda: ask)
        status = cli.main(["apply", "one", "--patch", *words])
        assert todo == []
        return status

    return run


def test_each_hunk_and_each_file_is_asked_about(
    workspace: Path, answered: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    # .vscode/tasks.json: n; other: n; text: split, the second of the two, not the third; apply.
    assert answered("nnsnyna") == 0
    assert (workspace / "text").read_bytes() == BASE.replace(b"line 6\n", b"six\n")
    assert (workspace / "other").read_text() == "o\n" and not (workspace / ".vscode").exists()
    told = capsys.readouterr().out
    assert (
        "(1/2) Put this hunk in place [y,n,a,d,s,q,?]?" in told
        and "(2/3) Put this hunk in place [y,n,a,d,q,?]?" in told
    )
    assert told.index("RED: VS Code") < told.index("changed file: text") and "only in part: 1" in told


@pytest.mark.parametrize(("answer", "status"), [("a", 1), ("r", 0)])
def test_red_needs_an_answer_of_its_own(
    workspace: Path, answered: Answer, answer: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(f"yya{answer}") == status
    assert (workspace / ".vscode/tasks.json").exists() is (answer == "r")
    assert (workspace / "text").read_bytes() == CHANGED and (workspace / "other").read_text() == "p\n"
    assert "RED, outside programs would execute or obey these 2:" in capsys.readouterr().out


@pytest.mark.parametrize("answers", ["", "yy", "yyyy", "yyal", "nnd", "?q", "x" * 100])
def test_everything_stays_as_it_is_without_the_last_answer(workspace: Path, answered: Answer, answers: str) -> None:
    assert answered(answers) == 0
    assert (workspace / "text").read_bytes() == BASE and (workspace / "other").read_text() == "o\n"


def test_no_more_questions_is_what_was_chosen_so_far(workspace: Path, answered: Answer) -> None:
    assert answered("nyqa") == 0
    assert (workspace / "other").read_text() == "p\n" and (workspace / "text").read_bytes() == BASE


def test_another_mode_is_a_question_of_its_own(workspace: Path, answered: Answer) -> None:
    upper = next(Path(os.environ["MEMBRANE_HOME"], "changes", ".layers").glob("*/upper"))
    (upper / "text").chmod(0o600)
    assert answered("nnana") == 0
    assert (workspace / "text").stat().st_mode & 0o777 != 0o600 and (workspace / "text").read_bytes() == CHANGED
    assert cli.main(["undo", "one"]) == 0
    assert answered("nnaya") == 0
    assert (workspace / "text").stat().st_mode & 0o777 == 0o600


def test_what_the_host_changed_meanwhile_is_not_touched(
    workspace: Path, answered: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit() -> None:
        (workspace / "text").write_bytes(BASE + b"of the host\n")

    assert answered("nyaa", at_end=edit) == 125
    assert "it was changed since you looked; nothing was put in place" in capsys.readouterr().err
    assert (workspace / "text").read_bytes() == BASE + b"of the host\n" and (workspace / "other").read_text() == "o\n"


@pytest.mark.parametrize("option", ["--all", "--rest", "--merge", "--dry-run", "--json"])
def test_it_asks_itself(workspace: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["apply", "one", "--patch", option]) == 78
    assert f"--patch asks about each of them, and {option} answers for all" in capsys.readouterr().err


def test_without_a_terminal_it_says_so(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["apply", "one", "-p"]) == 78
    assert "--patch asks on a terminal, and there is none" in capsys.readouterr().err


def test_textual_is_not_imported() -> None:
    code = f"import sys, {review_lines.__name__}; sys.exit('textual' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
