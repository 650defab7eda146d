"""``--reset``: what goes, what stays, who is asked."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import membrane
from membrane.errors import HostError
from membrane.ui.options import UsageError
from membrane.ui.reset import CACHES, OWN, PRECIOUS, check_letters, removal, remove, reset


@pytest.fixture
def state(tmp_path: Path) -> Path:
    home = tmp_path / "state"
    for name in ("run", "cache", "trace", "homes/p-1/.cache", "agents/claude", "my-notes"):
        (home / name).mkdir(parents=True)
    (home / "config.yaml").write_text("allow: []\n")
    (home / "cache" / "policy").write_text("x")
    (home / "agents" / "claude" / "token").write_text("secret")
    return home


class Person:
    """Answers in turn and remembers the questions."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.heard: list[str] = []

    def ask(self, question: str) -> bool:
        self.asked.append(question)
        return self.answers.pop(0)


def run(letters: str, state: Path, person: Person, *, yes: bool = False, alive: tuple[str, ...] = ()) -> int:
    return reset(
        letters,
        str(state),
        yes=yes,
        alive=list(alive),
        collect=lambda: ["session record 1"],
        ask=person.ask,
        say=person.heard.append,
    )


def names(state: Path) -> set[str]:
    return {path.name for path in state.iterdir()}


def test_no_changes_nothing(state: Path) -> None:
    person = Person(False)
    before = names(state)
    assert run("cid", state, person) == 1
    assert names(state) == before
    assert person.heard[-1] == "nothing was removed"


def test_caches_only(state: Path) -> None:
    assert run("i", state, Person(True)) == 0
    assert names(state) == {"run", "trace", "homes", "agents", "my-notes", "config.yaml"}


def test_dead_sessions_only(state: Path) -> None:
    person = Person(True)
    before = names(state)
    assert run("c", state, person, alive=("abc",)) == 0
    assert names(state) == before
    assert "removed session record 1" in person.heard


def test_what_can_not_be_brought_back_needs_a_second_yes(state: Path) -> None:
    person = Person(True, False)
    assert run("cid", state, person) == 0
    assert names(state) == {"homes", "agents", "my-notes", "config.yaml"}
    assert len(person.asked) == 2


def test_two_times_yes_leaves_only_what_is_not_ours(state: Path) -> None:
    person = Person(True, True)
    assert run("cid", state, person) == 0
    assert names(state) == {"my-notes"}
    assert f"left alone, not made by membrane: {state}/my-notes" in person.heard


def test_the_option_yes_answers_only_the_first_question(state: Path) -> None:
    person = Person(False)
    assert run("d", state, person, yes=True) == 0
    assert person.asked == ["remove these too? They cannot be brought back"]
    assert {"config.yaml", "agents", "homes"} <= names(state)


def test_a_living_session_stops_it(state: Path) -> None:
    before = names(state)
    with pytest.raises(HostError, match="session abc is running"):
        run("cid", state, Person(True, True), alive=("abc",))
    assert names(state) == before


def test_an_absent_state_directory_is_nothing_to_do(tmp_path: Path) -> None:
    assert run("cid", tmp_path / "none", Person(True)) == 0


def test_a_link_is_removed_and_not_followed(state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    (state / "cache" / "link").symlink_to(outside)
    (state / "images").symlink_to(outside)
    assert run("i", state, Person(True)) == 0
    assert (outside / "keep").exists()
    assert not (state / "images").is_symlink()


def test_what_a_command_left_in_its_home_does_not_stop_it(state: Path) -> None:
    """Directories that their owner may not list, and more of them in one another than Python recurses."""
    closed = state / "homes" / "closed" / "inner"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    for path in (closed, closed.parent):
        path.chmod(0)
    deep = [os.open(state / "homes", os.O_RDONLY)]
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=deep[-1])
        deep.append(os.open("d", os.O_RDONLY, dir_fd=deep[-1]))
        os.close(deep.pop(0))
    os.close(deep.pop())
    with pytest.raises((RecursionError, OSError)):  # the control
        shutil.rmtree(state / "homes")
    assert run("d", state, Person(True, True)) == 0
    assert not (state / "homes").exists() and not list(state.glob("homes*"))


def test_a_failure_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        remove(str(tmp_path / "gone"))
    assert caught.value.headline() == f"cannot remove {tmp_path}/gone: No such file or directory"


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="Not a directory"):
        removal("cid", str(tmp_path / "file"))


@pytest.mark.parametrize("letters", ["x", "cix", "C", "c i"])
def test_unknown_letters(letters: str) -> None:
    with pytest.raises(UsageError, match="does not know"):
        check_letters(letters)


def test_no_letter_takes_a_persons_own_things_at_once() -> None:
    assert check_letters("dic") == "dic"
    assert not set(PRECIOUS) & {"cache", "images", "run", "trace"}


def test_each_name_that_is_made_in_the_state_is_known() -> None:
    """As the source spells them; what is not there is said to be a person's own, and stays for ever."""
    package = Path(membrane.__file__).parent
    written = re.compile(r"""state\}/([a-z][\w.]*)|join\([\w.]*state, "([a-z][\w.]*)\"""")
    rooms = ("api", "changes", "plan", "record", "run", "srt", "ui")
    texts = [path.read_text() for room in rooms for path in (package / room).rglob("*.py")]
    made = {name for text in texts for pair in written.findall(text) for name in pair if name}
    assert {"api", "places", "quarantine", "homes"} <= made
    assert made <= {*CACHES, *OWN, *PRECIOUS}


def test_what_was_put_aside_is_a_persons_own(state: Path) -> None:
    (state / "quarantine").mkdir()
    assert f"{state}/quarantine" in removal("d", str(state)).paths
    (state / "quarantine" / "s").mkdir()
    found = removal("d", str(state))
    assert f"{state}/quarantine" in found.precious and f"{state}/quarantine" not in found.paths


def test_only_change_sets_are_a_persons_own(state: Path) -> None:
    (state / "changes" / ".writers").mkdir(parents=True)
    found = removal("d", str(state))
    assert f"{state}/changes" in found.paths and f"{state}/changes" not in found.precious
    (state / "changes" / "one").mkdir()
    found = removal("d", str(state))
    assert f"{state}/changes" in found.precious and f"{state}/changes" not in found.paths


def test_the_page_on_the_architecture_names_all_that_is_kept() -> None:
    text = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text()
    (listed,) = re.findall(r"^State, below .*?\n\n", text, re.MULTILINE | re.DOTALL)
    older = {"logs", "tmp", "sessions"}  # of versions before 0.1
    kept = {*CACHES, *OWN, *PRECIOUS} - older
    assert not [name for name in kept if f"`{name}`" not in listed and f"`{name}/" not in listed]
