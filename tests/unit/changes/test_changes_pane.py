"""changes.pane: the rows of a screen are bounded, escaped, and hide nothing beyond the margin."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest
from copies import Workspace, engine
from hypothesis import given
from hypothesis import strategies as st

from membrane.changes import hunks, pane
from membrane.changes.hunks import Hunk
from membrane.changes.pane import Pane, columns, folded, shown

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "text").write_bytes(BASE)
    workspace.begin()
    return workspace


def rows(made: Workspace, path: str, width: int = 60, split: Collection[Hunk] = ()) -> Pane:
    with engine(made) as each, made.copy() as copy:
        found = next(change for change in each.changes() if change.path == path)
        return pane.pane(copy, found, each.texts, width, split)


def text(found: Pane) -> list[str]:
    return [row.text for row in found.rows]


def test_each_row_knows_its_hunk_and_near_ones_can_be_split(made: Workspace) -> None:
    changed = BASE.replace(b"line 3\n", b"three\n").replace(b"line 6\n", b"six\n").replace(b"line 40\n", b"end")
    made.write("text", changed)
    found = rows(made, "text")
    assert text(found)[0] == "changed file: text" and found.rows[0].unit == -1
    assert [len(unit) for unit in found.units] == [2, 1] and found.every == hunks.cut(BASE, changed)
    assert [row.text for row in found.rows if row.unit == 1] == [
        "@@ -37,4 +37,4 @@",
        " line 37",
        " line 38",
        " line 39",
        "-line 40",
        "+end",
        "\\ No newline at end of file",
    ]
    assert {row.style for row in found.rows if row.unit == 1} == {"at", "", "del", "add"}
    apart = rows(made, "text", split=found.every[:1])
    assert [len(unit) for unit in apart.units] == [1, 1, 1]


def test_nothing_steers_the_terminal_and_nothing_is_beyond_the_margin(made: Workspace) -> None:
    hostile = b"\x1b[2J\x1b]0;x\x07 [red]markup[/] \xe2\x80\xae\xff\r\n\t" + b" " * 500 + b"evil\n"
    made.write("text", hostile + BASE)
    made.write("a\x1b[2J\n" + "n" * 150, hostile, 0o777)
    (made.layer / "link").symlink_to("\x1b[2J/" + "x" * 300)
    for path in ("text", "a\x1b[2J\n" + "n" * 150, "link"):
        found = rows(made, path, 50)
        for row in found.rows:
            assert row.text.isprintable() and len(row.text) <= 50
    joined = "".join(row.text.removeprefix("\\> ") for row in found.rows)
    assert "\\u{1b}[2J/" + "x" * 300 in joined
    joined = "".join(row.text.removeprefix("\\> ") for row in rows(made, "text", 50).rows)
    assert "[red]markup[/]" in joined and "evil" in joined and "\\u{202e}\\xff\\u{d}" in joined


def test_what_is_said_against_a_change_is_at_its_head(made: Workspace) -> None:
    made.write(".vscode/tasks.json", "{}")
    made.write("text", BASE + b"more\n", 0o755)
    assert "RED: VS Code runs tasks and tools named in it" in text(rows(made, ".vscode/tasks.json"))
    found = text(rows(made, "text", 100))
    assert "RED: it can be executed" in found and "mode 0644 becomes 0755" in found
    assert "mode, owner and attributes come with the whole file only, not with its hunks" in found


def test_what_has_no_hunks_is_shown_all_the_same(made: Workspace) -> None:
    made.write("new", "n\n")
    made.write(".git/config", "[core]\n")
    made.write("binary", b"\0\1")
    (made.layer / "directory").mkdir()
    (made.layer / "link").symlink_to("a")
    assert text(rows(made, "new"))[-2:] == ["@@ -0,0 +1 @@", "+n"] and rows(made, "new").units == ()
    assert "+[core]" in text(rows(made, ".git/config"))
    assert text(rows(made, "binary"))[-1] == "not shown: 0 bytes become 2 bytes"
    assert text(rows(made, "link"))[-2] == "+-> a"
    assert text(rows(made, "directory"))[0] == "added directory: directory"
    made.delete("text")
    assert "-line 1" in text(rows(made, "text"))


def test_what_cannot_be_read_says_why(made: Workspace) -> None:
    made.write("text", b"x\n")
    with engine(made) as each, made.copy() as copy:
        found = next(change for change in each.changes() if change.path == "text")
        os.unlink(made.layer / "text")
        last = pane.pane(copy, found, each.texts, 60).rows[-1]
    assert last.text == "cannot be read: No such file or directory"


def test_rows_are_bounded_and_a_hunk_that_is_cut_cannot_be_chosen(
    made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write("text", BASE.replace(b"line 1\n", b"one\n").replace(b"line 30\n", b"x\n" * 100))
    made.write("new", "x\n" * 100)
    monkeypatch.setattr(pane, "MOST_ROWS", 40)
    found = rows(made, "text", 200)
    assert len(found.units) == 1 and len(found.every) == 2 and len(found.rows) == 41
    assert found.rows[-1].text.startswith("CUT:") and all(row.unit <= 0 for row in found.rows)
    found = rows(made, "new", 200)
    assert len(found.rows) == 43 and found.rows[-1].text.startswith("CUT:")  # the head and 40 of the text
    monkeypatch.setattr(hunks, "LARGEST", 100)
    assert text(rows(made, "new"))[-1].startswith("not shown: 0 bytes become 200 bytes")


@given(st.text(max_size=80), st.integers(pane.LEAST_WIDTH, 40))
def test_folding_loses_nothing_and_is_no_wider(line: str, width: int) -> None:
    safe = shown(line.replace("\n", ""))
    parts = list(folded(safe, width))
    assert all(columns(part) <= width for part in parts)
    assert parts[0] + "".join(part[3:] for part in parts[1:]) == safe
    assert all(part.startswith("\\> ") for part in parts[1:])


def test_a_window_without_room_is_no_endless_one(made: Workspace) -> None:
    made.write("text", b"\xe4\xb8\xad" * 20 + BASE)
    for width in (-5, 0, 1):
        assert len(text(rows(made, "text", width))) > 3


def test_tabs_are_blanks_up_to_the_next_stop() -> None:
    assert shown("+\ta\tb") == "+        a       b"
