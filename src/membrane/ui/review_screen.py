"""``membrane review``: a change set on a full screen, where files and hunks are chosen.

Theory of operation
-------------------
On the left are the changes by kind, red ones first, on the right is the text of one; both are lists of rows, of which
only those in the window are drawn, so a set of 100,000 files is as quick as one of ten.  What is chosen is a
``Choice``; the screen puts nothing in place: it ends with what the person has decided, and its caller does that
(``ui/review.py``).  Before the decision everything that would be put in place is judged as it would be put there
(``ready``), and what is red of it is listed and needs an answer of its own.

All texts have passed ``escaping`` (``changes.pane``).  Rows are drawn as segments, and no string is given to a widget
that would read markup in it.

The keys are those of ``git add -p`` (y n a d j k s q ?) and of lazygit (space, arrows).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..changes.choice import SECTIONS, sections
from ..changes.diff import LETTERS
from ..changes.model import covers
from ..changes.pane import Row, columns, folded, shown
from ..changes.review import counted
from ..errors import Conflict, MembraneError
from ..escaping import escape
from ..value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from textual.app import App

    from ..changes.apply import Report
    from ..changes.choice import Choice
    from ..changes.hunks import Hunk
    from ..changes.model import Change
    from ..changes.pane import Pane

MOST_LISTED = 1000  # rows of one list of the last question
_STYLES = {
    "": "",
    "head": "bold",
    "red": "bold red",
    "note": "yellow",
    "at": "cyan",
    "add": "green",
    "del": "red",
}
_BOXES = {"": "[ ]", "part": "[~]", "whole": "[x]"}
GIT = 7  # the section of git
HELP = (
    "up down pgup pgdn home end   move",
    "enter or right               the text of the file; on a heading: fold it, or show it",
    "esc or left                  back to the list",
    "tab                          the other side",
    "space                        choose, or leave, what the cursor is on: a hunk, a file, a directory, a heading",
    "y  n                         choose it, leave it, and go to the next",
    "a  d                         choose, leave, this and all later ones: of the file, or of the list's heading",
    "j  k                         the next one, the one before",
    "s                            split the hunk into smaller ones",
    "q                            done: apply what is chosen, or leave everything as it is",
    "?                            this help",
    "",
    "[x] all of it is chosen  [~] some hunks are  [ ] nothing is  [!] it cannot be put in place",
)


class Decision(Value):
    """Apply what is chosen.

    ``accepted``: of the red ones these reasons, by path; ``report``: what was shown to the person as what would be put
    in place; None: it was not, as the workspace has to be looked at once more.
    """

    accepted: Mapping[str, tuple[str, ...]]
    report: Report | None


class Line(Value):
    """A row of the list: a heading (without ``change``) or a change of its section."""

    section: int
    change: Change | None = None


def lines_of(choice: Choice, hidden: Collection[int]) -> list[Line]:
    """The rows of the list; those of ``hidden`` sections are only headings."""
    out = []
    for number, changes in sections(choice.changes):
        out.append(Line(number))
        if number not in hidden:
            out += [Line(number, change) for change in changes]
    return out


def row_of(choice: Choice, line: Line, counts: Mapping[int, int], hidden: Collection[int], width: int) -> Row:
    """How a row of the list reads; of a name that is too long the end is there, and all of it is beside the text."""
    change = line.change
    if change is None:
        sign = "+" if line.section in hidden else "-"
        return Row(f"{sign} {SECTIONS[line.section]} ({counts[line.section]})", "red" if line.section < 2 else "head")
    box = "[!]" if choice.objection(change.path) else _BOXES[choice.state(change.path)]
    name = f"{escape(change.source)} => {escape(change.path)}" if change.source else escape(change.path)
    slash = "/" if change.what == "directory" else ""
    word = "RED " if change.red else ""
    style = "red" if change.red or change.conflict else "note" if change.never else ""
    head, name = f"{box} {word}{LETTERS[change.kind][0]} ", name + slash
    if len(head) + columns(name) > width:
        left = max(0, width - len(head) - 3)
        while columns(name) > left:
            name = name[max(1, (columns(name) - left) // 2) :]
        name = f"...{name}"
    return Row(head + name, style)  # type: ignore[arg-type]


def question(choice: Choice, report: Report, width: int) -> list[Row]:
    """What is asked before anything is put in place: what would be, what of it is red, and what stays out."""
    partly = frozenset(report.partly)
    red = [change for change in report.applied if change.red]
    rows: list[tuple[str, str]] = [(f"To be put in place: {counted(report.applied)}", "head")]

    def listed(heading: str, texts: Sequence[str], style: str) -> None:
        if texts:
            rows.append((heading, style))
            rows.extend((f"  {text}", style) for text in texts[:MOST_LISTED])
            if len(texts) > MOST_LISTED:
                rows.append((f"  and {len(texts) - MOST_LISTED} more", style))

    listed(
        f"RED, outside programs would execute or obey these {len(red)}:",
        [f"{escape(change.path)}  ({escape('; '.join(change.red))})" for change in red],
        "red",
    )
    listed(
        f"Not put in place, though chosen: {len(report.refused)}",
        [f"{escape(change.path)}  ({escape(why)})" for change, why in report.refused],
        "note",
    )
    listed(
        "The others:",
        [
            f"{LETTERS[change.kind][0]} {escape(change.path)}{'  (in part)' if change.path in partly else ''}"
            for change in report.applied
            if not change.red
        ],
        "",
    )
    rest = len(choice.changes) - len(report.applied) + len(partly)
    if rest:
        rows.append((f"In the change set stay {rest}, with what was not chosen of them.", ""))
    return [Row(part, style) for text, style in rows for part in folded(text, width)]  # type: ignore[arg-type]


def application(
    name: str,
    choice: Choice,
    look: Callable[[Change, int, Collection[Hunk]], Pane],
    ready: Callable[[Choice], Report],
    note: str = "",
) -> App[Decision | None]:
    """The screen; ``run`` it: what was decided, None to leave everything as it is.

    Args:
        name: of the set.
        choice: what is chosen already; it is changed.
        look: the rows of a change, for so many columns, with these hunks by themselves.
        ready: what an apply of the choice would put in place, judged; raises MembraneError where it cannot be.
        note: what the person should know at first.
    """
    from rich.segment import Segment
    from rich.style import Style
    from rich.text import Text
    from textual.app import App
    from textual.binding import Binding
    from textual.containers import Horizontal
    from textual.geometry import Size
    from textual.screen import ModalScreen
    from textual.scroll_view import ScrollView
    from textual.strip import Strip
    from textual.widgets import Static

    styles = {key: Style.parse(value) for key, value in _STYLES.items()}
    reverse = Style.parse("reverse")

    class Rows(ScrollView, can_focus=True):
        """A list of rows with a cursor, of which what is in the window is drawn."""

        BINDINGS = [
            Binding("up", "move(-1)", show=False),
            Binding("down", "move(1)", show=False),
            Binding("pageup", "page(-1)", show=False),
            Binding("pagedown", "page(1)", show=False),
            Binding("home", "end(-1)", show=False),
            Binding("end", "end(1)", show=False),
        ]

        def __init__(self, draw: Callable[[int], Row], moved: Callable[[], None], **options: Any) -> None:
            super().__init__(**options)
            self._draw, self._moved, self.count, self.cursor = draw, moved, 0, 0

        def hold(self, count: int, cursor: int) -> None:
            """It has so many rows now."""
            self.count = count
            self.virtual_size = Size(self.scrollable_content_region.width, count)
            self.go(cursor)

        def go(self, row: int, end: int = 0) -> None:
            """Put the cursor on a row; of those up to ``end`` as many as can be are in the window as well."""
            self.cursor = max(0, min(row, self.count - 1))
            height = max(1, self.scrollable_content_region.height)
            top = max(self.scroll_offset.y, min(end, self.count - 1) - height + 1, self.cursor - height + 1)
            self.scroll_to(y=min(top, self.cursor), animate=False, force=True)
            self.refresh()
            self._moved()  # at once: the next key, which may be here already, is for what is there now

        def action_move(self, by: int) -> None:
            """One row up or down."""
            self.go(self.cursor + by)

        def action_page(self, by: int) -> None:
            """One window up or down."""
            self.go(self.cursor + by * max(1, self.scrollable_content_region.height - 1))

        def action_end(self, by: int) -> None:
            """The first or the last row."""
            self.go(0 if by < 0 else self.count - 1)

        def on_click(self, event: Any) -> None:
            """A click is a move of the cursor."""
            place = event.get_content_offset(self)
            if place is not None:
                self.go(place.y + self.scroll_offset.y)

        def render_line(self, y: int) -> Strip:
            """One row of the window."""
            width, at = self.scrollable_content_region.width, y + self.scroll_offset.y
            if not 0 <= at < self.count:
                return Strip.blank(width)
            row = self._draw(at)
            style = styles[row.style]
            if at == self.cursor and self.has_focus:
                style += reverse
            return Strip([Segment(row.text, style)]).adjust_cell_length(width, style)

    class Asking(ModalScreen[str]):
        """Rows to read, and one key as the answer."""

        CSS = "Asking { align: center middle; } Asking #asked { width: 100%; height: 1fr; } #keys { height: auto; }"

        def __init__(self, rows: Sequence[Row], keys: Sequence[str], prompt: str) -> None:
            super().__init__()
            self._rows, self._keys, self._prompt = rows, keys, prompt
            self._is_shown = False

        def compose(self) -> Any:
            yield Rows(lambda at: self._rows[at], lambda: None, id="asked")
            yield Static(Text(""), id="keys", markup=False)

        def on_mount(self) -> None:
            self.query_one("#asked", Rows).focus()
            self.call_after_refresh(self._show)

        def _show(self) -> None:
            self.query_one("#asked", Rows).hold(len(self._rows), 0)
            self.query_one("#keys", Static).update(Text(self._prompt, style="bold"))
            self._is_shown = True

        def on_key(self, event: Any) -> None:
            """An answer; any other key is none, nor is one that was typed before the question was there."""
            if event.key in self._keys and self._is_shown:
                event.stop()
                self.dismiss(event.key)

    class Review(App[Decision | None]):
        TITLE = "membrane review"
        CSS = (
            "Rows { overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1; }"
            "#list { width: 2fr; border: solid gray; } #text { width: 3fr; border: solid gray; }"
            "#list:focus, #text:focus { border: heavy green; } #state { height: 1; }"
        )
        ENABLE_COMMAND_PALETTE = False
        BINDINGS = [
            Binding("space", "choose", show=False),
            Binding("y", "decide(True)", show=False),
            Binding("n", "decide(False)", show=False),
            Binding("a", "decide_later(True)", show=False),
            Binding("d", "decide_later(False)", show=False),
            Binding("j", "next(1)", show=False),
            Binding("k", "next(-1)", show=False),
            Binding("s", "split", show=False),
            Binding("enter,right,l", "open", show=False),
            Binding("escape,left,h", "to_list", show=False),
            Binding("tab,shift+tab", "other", show=False, priority=True),
            Binding("q", "done", show=False),
            Binding("question_mark", "help", show=False),
        ]

        def __init__(self) -> None:
            super().__init__()
            self._counts = {number: len(changes) for number, changes in sections(choice.changes)}
            self._hidden = {GIT}  # its objects say little to a person
            self._lines = lines_of(choice, self._hidden)
            self._pane: Pane | None = None
            self._shown: tuple[str, int] = ("", 0)
            self._split: dict[str, frozenset[Hunk]] = {}
            self._note = note
            self._list = Rows(self._list_row, self._show, id="list")
            self._text = Rows(self._text_row, lambda: None, id="text")
            self._state = Static(Text(""), id="state", markup=False)

        # ---------------------------------------------------- what is drawn

        def compose(self) -> Any:
            with Horizontal():
                yield self._list
                yield self._text
            yield self._state

        def _list_row(self, at: int) -> Row:
            width = self._list.scrollable_content_region.width
            return row_of(choice, self._lines[at], self._counts, self._hidden, width)

        def _text_row(self, at: int) -> Row:
            assert self._pane is not None
            row, path = self._pane.rows[at], self._shown[0]
            if row.unit >= 0:
                box = "x" if choice.holds(path, self._pane.units[row.unit]) else " "
                return Row(f"{box}|{row.text}", row.style)
            return Row(f"  {row.text}", row.style)

        def on_mount(self) -> None:
            self.screen.set_focus(self._list)
            self.call_after_refresh(self._first)

        def _first(self) -> None:
            self._list.hold(len(self._lines), next((at for at, line in enumerate(self._lines) if line.change), 0))

        def on_resize(self) -> None:
            """The rows of the text are as wide as its window."""
            self.call_after_refresh(self._show)

        @property
        def _in_text(self) -> bool:
            return self.focused is self._text

        @property
        def _line(self) -> Line:
            return self._lines[self._list.cursor]

        def _show(self, *, again: bool = False) -> None:
            """The text of the change under the cursor, if it is not there already."""
            change, width = self._line.change, self._text.scrollable_content_region.width - 2
            wanted = (change.path if change is not None else "", width)
            if wanted != self._shown or again or self._pane is None:
                at = self._text.cursor if wanted[0] == self._shown[0] else 0
                self._shown = wanted
                self._pane = look(change, width, self._split.get(change.path, ())) if change is not None else None
                self._text.hold(len(self._pane.rows) if self._pane is not None else 0, at)
            self._say()

        def _say(self) -> None:
            chosen, partly, red = choice.counted()
            words = f" {escape(name)}: {chosen} of {len(choice.changes)} chosen, {partly} in part, {red} red"
            self._state.update(
                Text(f" {self._note}", style="bold red", no_wrap=True)
                if self._note
                else Text(f"{words}   space: choose   q: apply or leave   ?: help", style="bold", no_wrap=True)
            )
            self._list.refresh()
            self._text.refresh()

        def on_key(self) -> None:
            """What was said was read."""
            self._note = ""

        # ---------------------------------------------------- moving

        def action_other(self) -> None:
            """The other side."""
            if self._in_text:
                self.screen.set_focus(self._list)
            else:
                self.action_open()

        def action_open(self) -> None:
            """The text of a change; a heading is folded or shown."""
            if self._in_text:
                return
            if self._line.change is None:
                self._fold(self._line.section)
            elif self._pane is not None:
                self.screen.set_focus(self._text)  # at once
                if not self._unit_at(self._text.cursor):
                    self._to_unit(0)

        def _fold(self, section: int) -> None:
            self._hidden ^= {section}
            self._lines = lines_of(choice, self._hidden)
            at = next(at for at, line in enumerate(self._lines) if line == Line(section))
            self._list.hold(len(self._lines), at)

        def action_to_list(self) -> None:
            """The list; in it the heading."""
            if self._in_text:
                self.screen.set_focus(self._list)
            elif self._line.change is not None:
                self._list.go(self._lines.index(Line(self._line.section)))

        def _unit_at(self, row: int) -> tuple[Hunk, ...]:
            unit = self._pane.rows[row].unit if self._pane is not None else -1
            return self._pane.units[unit] if self._pane is not None and unit >= 0 else ()

        def _to_unit(self, number: int) -> bool:
            rows = self._pane.rows if self._pane is not None else ()
            at = next((at for at, row in enumerate(rows) if row.unit == number), -1)
            if at >= 0:
                self._text.go(at, max(place for place, row in enumerate(rows) if row.unit == number))
            return at >= 0

        def action_next(self, by: int) -> None:
            """The next hunk, or file, or the one before."""
            if not self._in_text or self._pane is None:
                self._list.action_move(by)
            elif self._pane.units:
                now = self._pane.rows[self._text.cursor].unit
                self._to_unit(max(0, now + by) if now >= 0 or by > 0 else 0)

        # ---------------------------------------------------- choosing

        def _under(self, *, later: bool = False) -> list[Change]:
            """The changes that the cursor of the list is on, and those behind them in their section."""
            line, at = self._line, self._list.cursor
            inside = [change for number, each in sections(choice.changes) if number == line.section for change in each]
            if line.change is None:
                return inside
            if later:
                return [each.change for each in self._lines[at:] if each.section == line.section and each.change]
            if line.change.what == "directory":
                return [change for change in inside if covers(line.change.path, change.path)]
            return [line.change]

        def _decide(self, changes: Sequence[Change], take: bool) -> None:
            for change in changes:
                if take:
                    choice.take(change.path)
                else:
                    choice.leave(change.path)
            if take and len(changes) == 1:
                self._note = choice.objection(changes[0].path) and "it cannot be put in place; the text says why"
            self._say()

        def _decide_units(self, units: Sequence[tuple[Hunk, ...]], take: bool) -> None:
            path, every = self._shown[0], self._pane.every if self._pane is not None else ()
            for unit in units:
                (choice.take_hunks if take else choice.leave_hunks)(path, unit, every)
            if take and choice.objection(path):
                self._note = "it cannot be put in place; the text says why"
            self._say()

        def action_choose(self) -> None:
            """Choose what the cursor is on, or leave it where all of it is chosen."""
            unit = self._unit_at(self._text.cursor) if self._in_text else ()
            if unit:
                self._decide_units([unit], not choice.holds(self._shown[0], unit))
                return
            changes = self._one() if self._in_text else self._under()
            can = [change for change in changes if not choice.objection(change.path)]
            self._decide(changes, not can or any(choice.state(change.path) != "whole" for change in can))

        def _one(self) -> list[Change]:
            return [self._line.change] if self._line.change is not None else []

        def action_decide(self, take: bool) -> None:
            """Choose, or leave, and go to the next."""
            unit = self._unit_at(self._text.cursor) if self._in_text else ()
            if unit:
                self._decide_units([unit], take)
                self.action_next(1)
            elif self._in_text:
                self._decide(self._one(), take)
            else:
                self._decide(self._under(), take)
                self.action_next(1)

        def action_decide_later(self, take: bool) -> None:
            """Choose, or leave, this one and all behind it."""
            if self._in_text and self._pane is not None and self._pane.units:
                number = max(0, self._pane.rows[self._text.cursor].unit)
                self._decide_units(self._pane.units[number:], take)
            else:
                self._decide(self._one() if self._in_text else self._under(later=True), take)

        def action_split(self) -> None:
            """Show the hunks that stand together one by one."""
            unit = self._unit_at(self._text.cursor) if self._in_text else ()
            if len(unit) < 2:
                self._note = "this hunk cannot be split" if self._in_text else "s splits a hunk: enter shows the text"
                self._say()
                return
            path = self._shown[0]
            self._split[path] = self._split.get(path, frozenset()).union(unit)
            number = self._pane.rows[self._text.cursor].unit if self._pane is not None else 0
            self._show(again=True)
            self._to_unit(number)

        # ---------------------------------------------------- the end

        def action_help(self) -> None:
            """The keys."""
            keys = ("q", "escape", "enter", "question_mark")
            self.push_screen(Asking([Row(text) for text in HELP], keys, " Esc: back"))

        def action_done(self) -> None:
            """What is to be put in place, and the last question; without a choice there is none."""
            if not choice.only():
                self.exit(None)
                return
            try:
                report = ready(choice)
            except Conflict:
                self.exit(Decision({}, None))
                return
            except MembraneError as error:
                rows = [Row(part, "red") for line in error.lines() for part in folded(shown(line), self.size.width)]
                self.push_screen(
                    Asking(rows, ("l", "escape", "q"), " [l]eave everything as it is   Esc: back"), self._left
                )
                return
            red = {change.path: change.red for change in report.applied if change.red}
            safe = len(report.applied) - len(red)
            keys, prompt = ["l", "escape", "q"], " [l]eave everything as it is   Esc: back"
            if red:
                keys, prompt = ["r", *keys], f" [r] apply with the {len(red)} red ones  {prompt}"
            if safe:
                words = f"[a]pply the {safe} without the red ones" if red else f"[a]pply these {safe}"
                keys, prompt = ["a", *keys], f" {words}  {prompt}"

            def answered(key: str | None) -> None:
                if key in ("a", "r"):
                    self.exit(Decision(red if key == "r" else {}, report))
                else:
                    self._left(key)

            self.push_screen(Asking(question(choice, report, self.size.width - 2), keys, prompt), answered)

        def _left(self, key: str | None) -> None:
            if key == "l":
                self.exit(None)

    return Review()
