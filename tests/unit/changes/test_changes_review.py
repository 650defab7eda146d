"""changes.review and membrane diff, apply, undo: the screen, the answers, the commands."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from copies import tree
from test_changes_apply import child

from membrane.changes import diff, review, store
from membrane.changes.choice import moved
from membrane.changes.model import Change
from membrane.policy.model import Origin, PathRule
from membrane.ui import cli


class Session:
    """A change set with something in it."""

    def __init__(self, place: Path) -> None:
        self.workspace = place / "project"
        self.state = str(place / "state")
        os.mkdir(self.state, 0o700)
        self.workspace.mkdir()
        (self.workspace / "a").write_text("one\n")
        self.held = store.begin(self.state, "work", str(self.workspace), "a test", "s")
        self.held.update(made=self.held.meta.made + 10**9)  # what stands there now is the base
        self.layer = Path(self.held.uppers[-1])
        (self.layer / "a").write_text("two\n")
        (self.layer / "run.sh").write_text("x")
        (self.layer / "run.sh").chmod(0o755)

    def finish(self, mode: review.Mode, answers: Sequence[str] = ()) -> tuple[str, list[str]]:
        said: list[str] = []
        left = list(answers)

        def ask(_question: str) -> str:
            if not left:
                raise EOFError
            return left.pop(0)

        with self.held as held:
            return review.finish(held, mode, say=said.append, ask=ask if answers else None), said


@pytest.fixture
def made(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_the_screen_counts_and_says_what_is_red(made: Session) -> None:
    (made.layer / "x\x1b[2J").write_text("x")
    outcome, said = made.finish("never")
    assert outcome == "kept"
    assert said == [
        "the workspace is as it was; the change set work holds: 2 added, 1 changed",
        "  red: programs outside of the sandbox would execute or obey these:",
        "    run.sh  (added; it can be executed)",
        "    x\\u{1b}[2J  (added; its name holds characters that cannot be seen)",
        "  look: membrane diff work    put in place: membrane apply work",
        "  with the red ones: membrane apply --all work",
    ]
    assert (made.workspace / "a").read_text() == "one\n"


def test_what_is_put_in_place_at_once_gets_no_advice_to_do_it(made: Session) -> None:
    _, said = made.finish("safe")
    assert not any("put in place: membrane" in line for line in said)
    assert "  with the red ones: membrane apply --all work" in said and "put in place: 1 changed" in said
    _, said = made.finish("all")
    assert not any("membrane apply" in line for line in said) and said[-1] == "  undo: membrane undo work"


def test_a_long_list_is_cut(made: Session) -> None:
    for number in range(30):
        (made.layer / f"s{number:02}").write_text("x")
        (made.layer / f"s{number:02}").chmod(0o755)
    _, said = made.finish("never")
    assert "    and 11 more" in said and len(said) < 30


def test_a_set_with_very_many_names_does_not_delay_the_end(made: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "MOST_AT_END", 1)
    outcome, said = made.finish("ask", ("a",))
    assert outcome == "kept" and "holds more than 1 names" in said[0] and len(said) == 2


@pytest.mark.parametrize(
    ("mode", "answers", "outcome", "text", "script"),
    [
        ("safe", (), "applied", "two\n", False),
        ("all", (), "applied", "two\n", True),
        ("never", ("a",), "kept", "one\n", False),
        ("ask", (), "kept", "one\n", False),
        ("ask", ("s",), "applied", "two\n", False),
        ("ask", ("nonsense", "", "A"), "applied", "two\n", True),
        ("ask", ("what?",), "kept", "one\n", False),
        ("ask", ("k",), "kept", "one\n", False),
        ("ask", ("d",), "discarded", "one\n", False),
    ],
)
def test_what_is_done_at_the_end(
    made: Session, mode: review.Mode, answers: tuple[str, ...], outcome: str, text: str, script: bool
) -> None:
    got, _ = made.finish(mode, answers)
    assert got == outcome
    assert (made.workspace / "a").read_text() == text
    assert (made.workspace / "run.sh").exists() == script
    assert [each.name for each in store.list_sets(made.state)] == ([] if outcome == "discarded" else ["work"])


def test_looking_comes_back_to_the_question(made: Session) -> None:
    looked: list[Sequence[Change]] = []
    answers = ["l", "k"]
    with made.held as held:
        review.finish(
            held,
            "ask",
            say=lambda _line: None,
            ask=lambda _question: answers.pop(0),
            look=lambda _copy, changes: looked.append(changes),
        )
    assert len(looked) == 1 and not answers


def test_what_changes_while_the_question_stands_is_asked_about_again(made: Session) -> None:
    said: list[str] = []
    asked: list[int] = []

    def ask(_question: str) -> str:
        asked.append(len(said))
        if len(asked) == 1:  # an editor outside, before the answer
            (made.workspace / "run.sh").write_text("mine\n")
        return "a"

    with made.held as held:
        outcome = review.finish(held, "ask", say=said.append, ask=ask)
    assert said[asked[0]] == "nothing was put in place: run.sh changed since you looked"
    assert len(asked) == 2 and outcome == "kept"  # and then it is a conflict, which was shown before the second answer
    assert any("run.sh" in line and "meanwhile" in line for line in said[asked[0] : asked[1]])
    assert (made.workspace / "run.sh").read_text() == "mine\n" and (made.workspace / "a").read_text() == "one\n"


@pytest.mark.as_user
def test_what_the_command_closed_is_what_was_seen_when_it_was_opened_for_a_look(made: Session) -> None:
    """Opening it changes its change time, and nothing else."""
    (made.layer / "closed").write_text("c\n")
    (made.layer / "closed").chmod(0o200)
    with made.held as held, review.opened(held) as (engine, copy):
        first = engine.changes()
        page = b"".join(diff.patch(copy, first))
        again = engine.changes()
    assert b"+c\n" in page
    assert moved(first, again, [change.path for change in first]) == []


def test_a_conflict_keeps_the_set(made: Session) -> None:
    made.held.update(made=1)
    outcome, said = made.finish("all")
    assert outcome == "kept" and any("changed or touched" in line for line in said)
    assert (made.workspace / "a").read_text() == "one\n"


def test_a_set_that_was_put_in_place_begins_anew(made: Session) -> None:
    assert made.finish("all")[0] == "applied"
    with store.take(made.state, "work", "a test") as held:
        assert len(held.uppers) == 1 and os.listdir(held.uppers[0])
        review.fresh(held)
        assert os.listdir(held.uppers[0]) == []
        assert not os.path.exists(f"{held.path}/undo")


def test_a_set_that_was_put_in_place_in_part_goes_on(made: Session) -> None:
    assert made.finish("safe")[0] == "applied"
    with store.take(made.state, "work", "a test") as held:
        review.fresh(held)
        assert sorted(os.listdir(held.uppers[0])) == ["a", "run.sh"]


def test_another_directory_in_the_place_of_the_workspace(made: Session) -> None:
    made.workspace.rename(made.workspace.with_name("moved"))
    made.workspace.mkdir()
    with pytest.raises(Exception, match="another directory"):
        made.finish("all")


# ---------------------------------------------------------------- the commands


@pytest.fixture
def typed(made: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made.held.close()
    monkeypatch.setenv("MEMBRANE_HOME", made.state)
    monkeypatch.chdir(made.workspace)
    yield made


def test_diff_apply_and_undo_as_they_are_typed(typed: Session, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    before = tree(typed.workspace)
    assert cli.main(["diff"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"diff --git a/a b/a\n")
    assert cli.main(["diff", "work", "a", "--name-status"]) == 0
    assert capfdbinary.readouterr().out == b"M\ta\n"
    assert cli.main(["diff", "--stat", "a"]) == 0
    assert b" a | 2 +-" in capfdbinary.readouterr().out
    assert cli.main(["diff", "--html"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"<!DOCTYPE html>")
    assert cli.main(["apply", "--dry-run"]) == 1
    assert b"would be put in place: 1 changed" in capfdbinary.readouterr().out
    assert tree(typed.workspace) == before
    assert cli.main(["apply"]) == 1
    assert (typed.workspace / "a").read_text() == "two\n"
    assert cli.main(["apply", "--all"]) == 0
    assert (typed.workspace / "run.sh").exists()
    assert cli.main(["undo"]) == 0
    assert not (typed.workspace / "run.sh").exists()
    assert cli.main(["undo"]) == 125
    assert cli.main(["apply", "--continue"]) == 125


def killed(at: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is killed at the first step of this name."""

    def work() -> None:
        def step(name: str) -> None:
            if name == at:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(review, "nothing", step)
        made = review.opened
        monkeypatch.setattr(review, "opened", lambda held, paths=(): made(held, paths, step))
        cli.main(words)

    assert child(work) == -signal.SIGKILL


def next_run(session: Session) -> list[str]:
    """What the set still holds when the next run on it has begun."""
    with store.take(session.state, "work", "a test") as held:
        review.fresh(held)
        return sorted({name for upper in held.uppers for name in os.listdir(upper)})


def test_a_set_that_was_put_in_place_is_begun_anew_but_not_one_that_was_restored(typed: Session) -> None:
    assert cli.main(["checkpoint", "work", "first"]) == 0
    with store.take(typed.state, "work", "a test") as held:
        (Path(held.uppers[-1]) / "more").write_text("m")
    assert cli.main(["apply", "--all"]) == 0
    assert cli.main(["restore", "work", "first"]) == 0
    assert next_run(typed) == ["a", "run.sh"]
    with store.take(typed.state, "work", "a test") as held:
        assert [each.label for each in held.meta.checkpoints] == ["first", "before-restore"]
    assert cli.main(["apply", "--all"]) == 0
    assert next_run(typed) == []  # the control


@pytest.mark.parametrize("at", ["take undo", "undo put", "drop", "remove stage"])
def test_a_set_whose_undo_was_killed_holds_its_changes_in_the_next_run(
    typed: Session, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    assert cli.main(["apply", "--all"]) == 0
    killed(at, ["undo"], monkeypatch)
    cli.main(["apply", "--abort"])
    assert next_run(typed) == ["a", "run.sh"]


def test_an_undo_that_is_refused_leaves_the_set_in_place(typed: Session) -> None:
    assert cli.main(["apply", "--all"]) == 0
    (typed.workspace / "a").write_text("mine\n")
    assert cli.main(["undo"]) == 125 and cli.main(["apply", "--continue"]) == 125
    assert next_run(typed) == []


def test_an_apply_that_was_brought_to_its_end_is_one(typed: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("finish", ["apply", "--all"], monkeypatch)
    assert cli.main(["apply", "--continue"]) == 0
    assert next_run(typed) == []


def test_a_set_whose_apply_ended_in_its_middle_is_not_thrown_away(
    typed: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the only copy of what was replaced."""
    killed("finish", ["apply", "--all"], monkeypatch)
    assert (typed.workspace / "a").read_text() == "two\n"
    assert cli.main(["discard", "work"]) == 125
    assert "membrane apply --abort work" in capsys.readouterr().err
    assert cli.main(["apply", "--abort"]) == 0
    assert (typed.workspace / "a").read_text() == "one\n"
    assert cli.main(["discard", "work"]) == 0


def test_where_nothing_can_be_brought_back_it_is_discarded(
    typed: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed("finish", ["apply", "--all"], monkeypatch)
    monkeypatch.chdir(tmp_path)
    typed.workspace.rename(tmp_path / "moved")
    assert cli.main(["discard", "work"]) == 0


def test_json(typed: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["path"], row["kind"], bool(row["red"])) for row in told["changes"]] == [
        ("a", "changed", False),
        ("run.sh", "added", True),
    ]
    assert cli.main(["apply", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["refused"] == [{"path": "run.sh", "why": "it can be executed"}]


def test_paths_are_of_the_current_directory(typed: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    (typed.layer / "d").mkdir()
    (typed.layer / "d/x").write_text("x")
    (typed.workspace / "d").mkdir()
    monkeypatch.chdir(typed.workspace / "d")
    assert cli.main(["apply", "x"]) == 0
    assert (typed.workspace / "d/x").exists() and (typed.workspace / "a").read_text() == "one\n"
    assert cli.main(["apply", "/etc/passwd"]) == 78


def test_a_set_in_use_is_not_touched(typed: Session) -> None:
    with store.take(typed.state, "work", "a test"):
        assert cli.main(["apply"]) == 78
    assert (typed.workspace / "a").read_text() == "one\n"


def test_a_conflict_is_told_and_nothing_is_done(typed: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with store.take(typed.state, "work", "a test") as held:
        held.update(made=1)
    assert cli.main(["apply", "--all"]) == 125
    assert "changed or touched" in capsys.readouterr().err
    assert not (typed.workspace / "run.sh").exists()
    assert cli.main(["apply", "--all", "--rest"]) == 1
    assert (typed.workspace / "run.sh").exists() and (typed.workspace / "a").read_text() == "one\n"


def test_rules_of_the_policy_hold_at_apply(typed: Session) -> None:
    (typed.workspace / ".membrane.yaml").write_text("ignore: [secret, '*.key']\nreadonly: [kept/, fixed]\n")
    for path in ("secret", "d/x.key", "kept/x", "fixed", "d/plain"):
        (typed.layer / path).parent.mkdir(exist_ok=True)
        (typed.layer / path).write_text("x")
    assert cli.main(["apply", "--all"]) == 1
    assert (typed.workspace / "d/plain").exists()
    for path in ("secret", "d/x.key", "kept", "fixed"):
        assert not (typed.workspace / path).exists()


def test_git_writes_its_locks_though_a_rule_keeps_lock_files() -> None:
    hidden, locked = review.bound((PathRule("*.lock", Origin("test", "a file"), "readonly"),))
    assert (
        locked("yarn.lock") and locked("yarn.lock/x") and not locked(".git/refs/heads/x.lock") and not hidden("x.lock")
    )


def test_a_current_directory_that_is_gone(
    made: Session, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A set that is named is shown, and so is an absolute path; only what starts from there cannot be found."""
    made.held.close()
    monkeypatch.setenv("MEMBRANE_HOME", made.state)
    gone = made.workspace / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert cli.main(["diff", "--name-status", "../a"]) == 0  # the control: a word that is in the workspace
    gone.rmdir()
    capfd.readouterr()
    assert cli.main(["diff", "--name-status", "work", str(made.workspace / "a")]) == 0
    assert capfd.readouterr().out == "M\ta\n"
    assert cli.main(["diff", "work", "a"]) == 78
    assert capfd.readouterr().err == (
        "membrane: a starts from the current directory: No such file or directory\n"
        "  try: cd into a directory that exists\n"
    )
    assert cli.main(["diff"]) == 125
    assert "use the current directory as the workspace: No such file or directory\n" in capfd.readouterr().err
