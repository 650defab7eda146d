"""``membrane review``: by Textual's pilot (no terminal) on sets that were made by hand, and on a real terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from test_review import review as reviewed
from world.box import Box

from membrane.changes import store
from membrane.changes.apply import Engine
from membrane.ui import cli, review, review_screen

SECONDS = 60.0
BASE = b"".join(b"line %d\n" % number for number in range(1, 41))
FIRST = BASE.replace(b"line 3\n", b"three\n")
NEAR = FIRST.replace(b"line 6\n", b"six\n")
CHANGED = NEAR.replace(b"line 30\n", b"thirty\r\n").replace(b"line 40\n", b"end")
MARKUP = "a[bold red]x[/]\x1b[2J\n"

Drive = Callable[["Screen"], Awaitable[None]]


class Screen:
    """The screen while it is driven."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    def rows(self, which: str) -> list[str]:
        widget = self.app.screen.query_one(which)
        return [widget._draw(at).text for at in range(widget.count)]

    def state(self) -> str:
        return str(self.app.screen_stack[0].query_one("#state").render())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, done: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not done():
                await self.pilot.pause(0.01)

        await asyncio.wait_for(wait(), SECONDS)

    async def ready(self) -> None:
        await self.until(lambda: bool(self.rows("#list")) and bool(self.rows("#text")))

    async def to(self, name: str) -> None:
        """The cursor of the list on a row."""
        rows = self.rows("#list")
        at = next(at for at, row in enumerate(rows) if row.endswith(name))
        self.app.query_one("#list").go(at)
        await self.pilot.pause()

    async def asked(self) -> list[str]:
        await self.press("q")
        await self.until(lambda: bool(self.app.screen.query("#asked")) and bool(self.rows("#asked")))
        return self.rows("#asked")


class Set:
    """A change set and its workspace, and ``membrane review`` on it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workspace, self.state = place / "ws", str((place / "state").resolve())
        self.workspace.mkdir()
        monkeypatch.setenv("MEMBRANE_HOME", self.state)
        monkeypatch.setenv("HOME", str(place))
        self._monkeypatch = monkeypatch
        self.upper = Path()

    def begin(self) -> Set:
        probe = self.workspace.parent / "probe"
        latest = max(path.lstat().st_ctime_ns for path in (self.workspace, *self.workspace.rglob("*")))
        while True:  # until what the host does now is later than the set by the clock of the file system
            probe.write_text("x")
            if probe.stat().st_ctime_ns > latest + 20_000_000:
                break
        with store.begin(self.state, "one", str(self.workspace), "a run (session 5)", "5") as held:
            self.upper = Path(held.top) / "upper"
        return self

    def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        place = self.upper / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)

    def review(self, *drives: Drive, words: tuple[str, ...] = (), size: tuple[int, int] = (120, 40)) -> int:
        todo = list(drives)
        real = review_screen.application

        class Driven:
            def __init__(self, *args: Any) -> None:
                self._app = real(*args)

            def run(self) -> Any:
                drive = todo.pop(0)

                async def go() -> None:
                    async with self._app.run_test(size=size) as pilot:
                        screen = Screen(self._app, pilot)
                        await screen.ready()
                        await drive(screen)

                asyncio.run(go())
                self.return_code = self._app.return_code
                return self._app.return_value

        with self._monkeypatch.context() as patch:
            patch.setattr(review_screen, "application", Driven)
            patch.setattr(review, "_check_screen", lambda _name: None)
            patch.setattr(termios, "tcflush", lambda _fd, _queue: None)
            status = cli.main(["review", "one", *words])
        assert todo == []
        return status


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Set:
    found = Set(tmp_path, monkeypatch)
    (found.workspace / "text").write_bytes(BASE)
    (found.workspace / "other").write_text("o\n")
    found.begin()
    found.write("text", CHANGED)
    found.write("other", b"p\n")
    found.write("d/new", b"n\n")
    found.write(".vscode/tasks.json", b"{}\n")
    return found


def test_hunks_are_chosen_and_come_alone(made: Set, capsys: pytest.CaptureFixture[str]) -> None:
    async def drive(screen: Screen) -> None:
        await screen.to("text")
        await screen.press("enter", "s", "y", "n", "y")
        assert [row for row in screen.rows("#text") if row[2:3] == "@"] == [
            "x|@@ -1,5 +1,5 @@",
            " |@@ -6,4 +6,4 @@",
            "x|@@ -27,7 +27,7 @@",
            " |@@ -37,4 +37,4 @@",
        ]
        assert "[~] M text" in screen.rows("#list") and "1 of 6 chosen, 1 in part, 0 red" in screen.state()
        asked = await screen.asked()
        assert asked[0] == "To be put in place: 1 changed" and "  M text  (in part)" in asked
        await screen.press("a")

    assert made.review(drive) == 0
    assert (made.workspace / "text").read_bytes() == FIRST.replace(b"line 30\n", b"thirty\r\n")
    assert (made.workspace / "other").read_text() == "o\n" and not (made.workspace / "d").exists()
    assert "only in part: 1" in capsys.readouterr().out
    assert cli.main(["diff", "one", "--name-status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A\t.vscode",
        "A\t.vscode/tasks.json",
        "A\td",
        "A\td/new",
        "M\tother",
        "M\ttext",
    ]
    os.chdir(made.workspace)
    assert cli.main(["diff", "text"]) == 0
    patch = capsys.readouterr().out
    assert "+six" in patch and "+end" in patch and "+three" not in patch and "+thirty" not in patch


def test_space_chooses_files_directories_and_headings(made: Set) -> None:
    async def drive(screen: Screen) -> None:
        await screen.to("A d/")
        await screen.press("space")
        assert "[x] A d/" in screen.rows("#list") and "[x] A d/new" in screen.rows("#list")
        await screen.to("changed (2)")
        await screen.press("space")
        assert "4 of 6 chosen" in screen.state()
        await screen.press("space", "down", "a", "up", "down", "d")
        assert "2 of 6 chosen" in screen.state()
        await screen.press("y", "n", "tab", "escape")
        assert "3 of 6 chosen" in screen.state()
        await screen.asked()
        await screen.press("a")

    assert made.review(drive) == 0
    assert (made.workspace / "d/new").exists() and (made.workspace / "other").read_text() == "p\n"
    assert (made.workspace / "text").read_bytes() == BASE and not (made.workspace / ".vscode").exists()


@pytest.mark.parametrize("key", ["a", "r"])
def test_red_needs_an_answer_of_its_own(made: Set, key: str) -> None:
    async def drive(screen: Screen) -> None:
        assert screen.rows("#list")[:3] == [
            "- RED: run or obeyed outside (2)",
            "[ ] RED A .vscode/",
            "[ ] RED A .vscode/tasks.json",
        ]
        await screen.to("RED A .vscode/tasks.json")
        assert "  RED: VS Code runs tasks and tools named in it" in screen.rows("#text")
        await screen.press("space")
        await screen.to("M other")
        await screen.press("space")
        asked = await screen.asked()
        # The directory that it needs comes with it, and is among what is said.
        assert "  .vscode  (VS Code runs tasks and tools named in it)" in asked
        assert "  .vscode/tasks.json  (VS Code runs tasks and tools named in it)" in asked
        await screen.press(key)

    assert made.review(drive) == (0 if key == "r" else review.REFUSED)
    assert (made.workspace / ".vscode/tasks.json").exists() is (key == "r")
    assert (made.workspace / "other").read_text() == "p\n" and (made.workspace / "text").read_bytes() == BASE


def test_an_answer_that_was_typed_before_the_question_is_none(made: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.events import Key

    async def drive(screen: Screen) -> None:
        real, typed = Engine.apply, []

        def apply(engine: Engine, *args: Any, **options: Any) -> Any:
            if options.get("dry_run"):
                typed.append(screen.app.post_message(Key("r", "r")))  # while what is asked is being found out
            return real(engine, *args, **options)

        monkeypatch.setattr(Engine, "apply", apply)
        await screen.to("M other")
        await screen.press("space", "home", "space")
        assert await screen.asked()
        assert typed == [True] and screen.app.return_value is None
        await screen.press("l")

    assert made.review(drive) == 0
    assert (made.workspace / "other").read_text() == "o\n" and not (made.workspace / ".vscode").exists()


def test_a_screen_that_fails_is_no_decision(
    made: Set, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failed:
        return_code = 1

        def run(self) -> None:
            return None

    monkeypatch.setattr(review_screen, "application", lambda *_args: Failed())
    monkeypatch.setattr(review, "_check_screen", lambda _name: None)
    monkeypatch.setattr(termios, "tcflush", lambda _fd, _queue: None)
    assert cli.main(["review", "one"]) == 125
    assert "the screen ended by an error; everything is as it was" in capsys.readouterr().err


@pytest.mark.parametrize("keys", [("q",), ("space", "q", "l"), ("a", "q", "escape", "q", "l"), ("ctrl+q",)])
def test_everything_can_be_left_as_it_is(made: Set, keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    async def drive(screen: Screen) -> None:
        for key in keys:
            await screen.press(key)

    before = {path: path.read_bytes() for path in made.workspace.rglob("*")}
    assert made.review(drive) == 0
    assert {path: path.read_bytes() for path in made.workspace.rglob("*")} == before
    assert "everything is as it was; the change set one is kept" in capsys.readouterr().out


def test_what_the_host_changes_between_look_and_apply_is_shown_again(made: Set) -> None:
    mine = BASE.replace(b"line 20\n", b"of the host\n")

    async def first(screen: Screen) -> None:
        for name in ("M text", "M other"):
            await screen.to(name)
            await screen.press("space")
        await screen.asked()
        (made.workspace / "text").write_bytes(mine)
        await screen.press("a")

    async def again(screen: Screen) -> None:
        assert "nothing was put in place: text changed since you looked" in screen.state()
        assert (made.workspace / "other").read_text() == "o\n"
        assert "[!] M text" in screen.rows("#list") and "[x] M other" in screen.rows("#list")
        await screen.to("M text")
        await screen.press("space")
        assert "it cannot be put in place" in screen.state()
        await screen.asked()
        await screen.press("a")

    assert made.review(first, again) == 0
    assert (made.workspace / "text").read_bytes() == mine and (made.workspace / "other").read_text() == "p\n"


def test_a_part_of_a_file_that_the_host_changed_is_shown_again(made: Set) -> None:
    async def first(screen: Screen) -> None:
        await screen.to("M text")
        await screen.press("enter", "y")
        (made.workspace / "text").write_bytes(BASE + b"of the host\n")
        await screen.press("q")

    async def again(screen: Screen) -> None:
        assert "text changed since you looked" in screen.state() and "0 of 6" not in screen.state()
        assert "[!] M text" in screen.rows("#list")
        await screen.press("q")

    assert made.review(first, again) == 0
    assert (made.workspace / "text").read_bytes() == BASE + b"of the host\n"


def test_names_and_texts_from_inside_are_no_markup_and_steer_nothing(made: Set) -> None:
    made.write(MARKUP + "n" * 200, MARKUP.encode() * 3 + b"\x1b]0;title\x07\xff\xe2\x80\xae" + b" " * 300 + b"evil\n")

    async def drive(screen: Screen) -> None:
        await screen.to("n" * 20)
        await screen.press("space")
        shown = "".join(row[2:].removeprefix("\\> ") for row in screen.rows("#text"))
        assert "+a[bold red]x[/]\\u{1b}[2J" in shown and "evil" in shown
        asked = await screen.asked()
        rows = [*screen.rows("#asked"), *asked]
        await screen.press("escape")
        rows += [*screen.rows("#list"), *screen.rows("#text")]
        assert all(row.isprintable() for row in rows)
        assert "\x1b" not in screen.app.export_screenshot()
        assert screen.app.query_one("#text").virtual_size.width <= screen.app.size.width
        await screen.press("q", "l")

    assert made.review(drive) == 0


@pytest.mark.parametrize("size", [(20, 6), (40, 10), (80, 24), (200, 60)])
def test_every_size_of_terminal_has_both_sides(made: Set, size: tuple[int, int]) -> None:
    async def drive(screen: Screen) -> None:
        for which in ("#list", "#text"):
            assert screen.app.query_one(which).scrollable_content_region.width >= 4
        await screen.press("question_mark")
        await screen.until(lambda: bool(screen.app.screen.query("#asked")))
        await screen.press("escape", "end", "home", "pagedown", "q")

    assert made.review(drive, size=size) == 0


def test_only_what_was_asked_for_is_there(made: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drive(screen: Screen) -> None:
        assert screen.rows("#list") == ["- added (1)", "[ ] A d/new"]
        await screen.press("space")
        await screen.asked()
        await screen.press("a")

    monkeypatch.chdir(made.workspace)
    assert made.review(drive, words=("d/new",)) == 0
    assert (made.workspace / "d/new").exists() and (made.workspace / "text").read_bytes() == BASE
    (made.workspace / "same").touch()
    assert made.review(words=("same",)) == 0  # it is there, and was not changed
    assert made.review(words=("nothing",)) == 78  # neither the set nor the workspace has it


def test_a_hundred_thousand_files_are_a_list_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from membrane.changes.choice import Choice
    from membrane.changes.model import Change, Side
    from membrane.changes.pane import Pane, Row

    side = Side("file", 0o644, 1, "", 1, 1, 1, 1, 1, 1, 1, 0)
    changes = [Change(f"d/{number:06}", "added", None, side, 0, content=True) for number in range(100_000)]
    choice = Choice(changes)
    looked: list[str] = []

    def look(change: Change, width: int, split: Any) -> Pane:
        looked.append(change.path)
        return Pane((Row("x"),))

    app = review_screen.application("one", choice, look, lambda _choice: pytest.fail("not asked"))

    async def go() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            screen = Screen(app, pilot)
            await screen.ready()
            await screen.press("end", "space", "home", "pagedown")
            assert choice.only() == ["d/099999"]
            await screen.press("home", "space")
            assert choice.counted() == (100_000, 0, 0)

    asyncio.run(go())
    assert len(set(looked)) < 10  # only what the cursor was on was read


def test_without_a_terminal_or_textual_it_says_what_to_do(made: Set, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["review", "one"]) == 78
    assert "a full screen needs a terminal" in capsys.readouterr().err


def test_without_textual_it_says_what_to_install(
    made: Set, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "textual", None)
    assert cli.main(["review", "one"]) == 125
    told = capsys.readouterr().err
    assert "pip install 'membrane-sandbox[watch]'" in told and "membrane apply one [PATH ...]" in told


def test_a_set_that_is_in_use_is_not_reviewed(
    made: Set, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.take(made.state, "one", "a run (session 6)"):
        assert made.review() == 78
    assert "in use by a run (session 6)" in capsys.readouterr().err


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_on_a_real_terminal(box: Box) -> None:
    (box.workspace / "text").write_bytes(BASE)
    assert reviewed(box, "sed -i 's/^line 3$/three/; s/^line 30$/thirty/' text; echo x > new").returncode == 0
    with box.terminal("review", "one", env=box.environment(TERM="xterm-256color")) as terminal:
        terminal.expect(r"0 of 2 chosen")
        # Nothing of the sandbox works on the set meanwhile.
        assert box.run("apply", "one").returncode == 78
        terminal.send("\r")
        terminal.send("y")
        terminal.expect(r"1 of 2 chosen, 1 in part")
        terminal.send("q")
        terminal.expect("pply these 1")
        terminal.send("a")
        terminal.expect("only in part: 1")
        assert terminal.wait() == 0
    assert (box.workspace / "text").read_bytes() == FIRST and not (box.workspace / "new").exists()


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_line_by_line_on_a_real_terminal(box: Box) -> None:
    (box.workspace / "text").write_bytes(BASE)
    assert reviewed(box, "sed -i 's/^line 3$/three/; s/^line 30$/thirty/' text").returncode == 0
    with box.terminal("apply", "one", "--patch") as terminal:
        terminal.expect(r"\(1/2\) Put this hunk in place")
        terminal.send("\x03")
        assert terminal.wait() != 0
    assert (box.workspace / "text").read_bytes() == BASE
    with box.terminal("apply", "one", "--patch") as terminal:
        for question, answer in ((r"\(1/2\).*\? ", "y"), (r"\(2/2\).*\? ", "n"), ("everything as it is: ", "a")):
            terminal.expect(question)
            terminal.send(f"{answer}\r")
        terminal.expect("only in part: 1")
        assert terminal.wait() == 0
    assert (box.workspace / "text").read_bytes() == FIRST
