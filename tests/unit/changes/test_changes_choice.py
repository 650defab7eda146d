"""changes.choice: what a person chooses is exactly what was seen, and nothing at first."""

from __future__ import annotations

from pathlib import Path

import pytest
from copies import Workspace, engine

from membrane.changes import choice, hunks
from membrane.changes.choice import Choice, moved, section, sections
from membrane.changes.model import Change

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))
CHANGED = BASE.replace(b"line 3\n", b"three\n").replace(b"line 20\n", b"twenty\n")
EVERY = hunks.cut(BASE, CHANGED)


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    for name in ("text", "mode", "gone", "from"):
        (workspace.base / name).write_bytes(BASE + name.encode())
    workspace.begin()
    workspace.write("text", CHANGED + b"text")
    workspace.write("mode", CHANGED + b"mode", 0o600)
    workspace.delete("gone")
    workspace.delete("from")
    workspace.write("to", BASE + b"from")
    workspace.write(".vscode/tasks.json", "{}")
    workspace.write(".git/objects/x", "x")
    return workspace


def changes(made: Workspace) -> list[Change]:
    with engine(made) as each:
        return each.changes()


def test_sections_are_by_kind_and_what_is_red_is_first(made: Workspace) -> None:
    found = changes(made)
    one = found[0].replace(path="x", conflict="c", red=("r",))
    rows = {choice.SECTIONS[number]: [change.path for change in each] for number, each in sections([*found, one])}
    assert list(rows)[:2] == ["RED: run or obeyed outside", "conflicts: also changed by you"]
    assert rows["RED: run or obeyed outside"] == [".vscode", ".vscode/tasks.json"]
    assert (rows["changed"], rows["renamed"], rows["deleted"]) == (["mode", "text"], ["to"], ["gone"])
    assert section(one.replace(never=("n",))) == choice.SECTIONS.index("never put in place")
    assert sum(map(len, rows.values())) == len(found) + 1


def test_nothing_is_chosen_at_first_and_hunks_add_up_to_the_file(made: Workspace) -> None:
    chosen = Choice(changes(made))
    assert chosen.only() == [] and chosen.hunks() == {} and chosen.counted() == (0, 0, 0)
    first, second = EVERY
    chosen.take_hunks("text", [first], EVERY)
    assert (chosen.state("text"), chosen.only(), chosen.hunks()) == ("part", ["text"], {"text": frozenset([first])})
    assert chosen.holds("text", [first]) and not chosen.holds("text", EVERY)
    chosen.take_hunks("text", [second], EVERY)
    assert chosen.state("text") == "whole" and chosen.hunks() == {} and chosen.holds("text", EVERY)
    chosen.leave_hunks("text", [first], EVERY)
    assert chosen.hunks() == {"text": frozenset([second])} and chosen.counted() == (1, 1, 0)
    chosen.leave_hunks("text", [second], EVERY)
    assert chosen.state("text") == "" and chosen.only() == []


def test_another_mode_comes_only_with_the_file_as_such(made: Workspace) -> None:
    chosen = Choice(changes(made))
    chosen.take_hunks("mode", EVERY, EVERY)
    assert chosen.state("mode") == "part" and chosen.hunks() == {"mode": frozenset(EVERY)}
    chosen.take("mode")
    assert chosen.state("mode") == "whole" and chosen.hunks() == {}
    chosen.take_hunks("mode", EVERY[:1], EVERY)  # it is chosen already
    assert chosen.state("mode") == "whole" and chosen.hunks() == {}
    chosen.leave_hunks("mode", EVERY[:1], EVERY)
    chosen.leave("mode")
    assert chosen.state("mode") == "" and not chosen.holds("mode", EVERY[1:])


def test_what_is_more_than_its_text(made: Workspace) -> None:
    found = {change.path: change for change in changes(made)}
    text = found["text"]
    assert not choice.more_than_text(text) and choice.more_than_text(found["mode"])
    assert choice.more_than_text(text.replace(attributes=("user.x",)))
    assert choice.more_than_text(text.replace(before=None)) and choice.more_than_text(found["gone"])
    assert text.after is not None and choice.more_than_text(text.replace(after=text.after.replace(uid=12345)))


@pytest.mark.parametrize("field", [{"never": ("no",)}, {"conflict": "of the host"}])
def test_what_cannot_be_put_in_place_cannot_be_chosen(made: Workspace, field: dict[str, object]) -> None:
    chosen = Choice([change.replace(**field) for change in changes(made)])
    assert chosen.objection("text") in ("no", "of the host")
    chosen.take("text")
    chosen.take_hunks("text", EVERY[:1], EVERY)
    assert chosen.only() == []


def test_a_choice_holds_for_what_is_as_it_was_seen(made: Workspace) -> None:
    found = changes(made)
    chosen = Choice(found)
    for path in ("text", "gone", ".vscode"):
        chosen.take(path)
    assert chosen.renew(changes(made)) == [] and len(chosen.only()) == 3
    (made.base / "text").write_bytes(BASE)
    (made.base / "mode").touch()
    (made.base / "gone").unlink()
    (made.base / "a name beside them").touch()
    later = changes(made)
    assert moved(found, later, ["text", "mode", "gone", ".vscode"]) == ["gone", "mode", "text"]
    assert chosen.renew(later) == ["gone", "text"]
    assert chosen.only() == [".vscode"] and chosen.counted() == (1, 0, 1)
    assert chosen.changes is later and chosen.objection("text")


def test_what_has_become_red_has_to_be_chosen_again(made: Workspace) -> None:
    found = changes(made)
    chosen = Choice(found)
    chosen.take("text")
    later = [change.replace(red=("now",)) if change.path == "text" else change for change in found]
    assert chosen.renew(later) == ["text"] and chosen.only() == []
