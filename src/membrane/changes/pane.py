"""One change as the rows of a screen.

Theory of operation
-------------------
At the head is what is said of the change, then its text as a unified diff, in which each row knows its hunk.  Both are
from inside: each line is escaped (``escaping.visible``), so that nothing in it steers the terminal, tabs become spaces,
and what is wider than the window goes on in the next row, behind ``\\>``: nothing hides beyond the right margin.
No markup is made and none is read.

The bytes that are read and the rows that are made are bounded.  A hunk of which not every row is there cannot be chosen
by itself.
"""

from __future__ import annotations

import os
from unicodedata import combining, east_asian_width

from ..errors import Conflict
from ..escaping import escape, visible
from ..value import Value
from . import diff, hunks, lines
from .choice import more_than_text
from .model import Change, Side
from .parts import Whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Literal, TypeAlias

    from .hunks import Hunk
    from .tree import Copy

    Style: TypeAlias = Literal["", "head", "red", "note", "at", "add", "del"]

MOST_ROWS = 20_000
LEAST_WIDTH = 10  # columns
TAB = 8
_STYLES: dict[bytes, Style] = {b"+": "add", b"-": "del", b"@": "at"}
_CUT = "CUT: the rest is not shown, and cannot be chosen by itself: membrane diff NAME PATH shows it"


class Row(Value):
    """One row: safe to print, no wider than asked for; ``unit`` is the number of its hunk, -1 for none."""

    text: str
    style: Style = ""
    unit: int = -1


class Pane(Value):
    """``rows``; ``units``: what can be chosen by itself, each as its hunks; ``every``: all hunks of the file."""

    rows: tuple[Row, ...]
    units: tuple[tuple[Hunk, ...], ...] = ()
    every: tuple[Hunk, ...] = ()


def pane(
    copy: Copy,
    change: Change,
    texts: Callable[[Change], tuple[bytes, bytes]],
    width: int,
    split: Collection[Hunk] = (),
) -> Pane:
    """The rows of a change.

    Args:
        texts: both texts of a change that has hunks; raises ``Whole`` for another (``Engine.texts``).
        width: columns.
        split: hunks that are shown, and chosen, by themselves.
    """
    width = max(width, LEAST_WIDTH)
    rows = list(_head(change, width))
    try:
        texts_of = texts(change)
    except (Whole, Conflict, OSError):
        rows += _whole(copy, change, width)
        return Pane(tuple(rows))
    every = hunks.cut(*texts_of)
    groups = _groups(every, frozenset(split))
    units = []
    for at, block in enumerate(hunks.blocks(*texts_of, groups)):
        if not _add(rows, block, width, at):
            break
        units.append(groups[at])
    return Pane(tuple(rows), tuple(units), every)


def _groups(every: tuple[Hunk, ...], split: frozenset[Hunk]) -> list[tuple[Hunk, ...]]:
    out: list[tuple[Hunk, ...]] = []
    for group in hunks.together(every):
        out += [(hunk,) for hunk in group] if split.intersection(group) else [group]
    return out


def _head(change: Change, width: int) -> Iterator[Row]:
    before, after = change.before, change.after
    notes: list[tuple[str, Style]] = [(f"{change.kind} {change.what}: {diff.name_of(change)}", "head")]
    notes += [(f"RED: {escape(why)}", "red") for why in change.red]
    notes += [(f"NEVER PUT IN PLACE: {escape(why)}", "red") for why in change.never]
    if change.conflict:
        fix = "membrane apply --merge merges it, where that works"
        notes.append((f"CONFLICT: {escape(change.conflict)}; {fix}", "red"))
    if after is not None and (before is None or before.mode != after.mode) and after.what != "link":
        was = f"{before.mode:04o} becomes " if before is not None else ""
        notes.append((f"mode {was}{after.mode:04o}", "note"))
    if change.attributes:
        notes.append((f"extended attributes differ: {escape(' '.join(change.attributes))}", "note"))
    if change.kind == "changed" and change.what == "file" and more_than_text(change):
        notes.append(("mode, owner and attributes come with the whole file only, not with its hunks", "note"))
    for text, style in notes:
        yield from (Row(row, style) for row in folded(text, width))


def _whole(copy: Copy, change: Change, width: int) -> list[Row]:
    """The text of a change without hunks that can be chosen."""
    if change.kind == "renamed" or not change.content:
        return []
    try:
        old, new = _read(copy, -1, change.path, change.before), _read(copy, change.layer, change.path, change.after)
    except OSError as error:
        return [Row(row, "note") for row in folded(f"cannot be read: {escape(error.strerror or str(error))}", width)]
    if old is None or new is None or diff.is_binary(old) or diff.is_binary(new) or not hunks.is_small(old, new):
        sizes = [side.size if side is not None else 0 for side in (change.before, change.after)]
        return [Row(row, "note") for row in folded(f"not shown: {sizes[0]} bytes become {sizes[1]} bytes", width)]
    rows: list[Row] = []
    _add(rows, lines.hunks(lines.split(old), lines.split(new)), width, -1)
    return rows


def _add(rows: list[Row], block: Iterable[bytes], width: int, unit: int) -> bool:
    """Add the rows of a hunk; false: only some of them, as there are too many."""
    for line in block:
        for text, style in _line(line, width):
            if len(rows) >= MOST_ROWS:
                rows[:] = [row.replace(unit=-1) if row.unit == unit else row for row in rows]
                rows += [Row(row, "note") for row in folded(_CUT, width)]
                return False
            rows.append(Row(text, style, unit))
    return True


def _read(copy: Copy, layer: int, path: str, side: Side | None) -> bytes | None:
    """What is there as a text; None: it is none, or too large."""
    if side is None or side.what == "directory":
        return b""
    if side.what == "link":
        return b"-> " + os.fsencode(side.target)
    return diff.content(copy, layer, path) if side.what == "file" and side.size <= hunks.LARGEST else None


def _line(line: bytes, width: int) -> Iterator[tuple[str, Style]]:
    """The rows of a line of a patch (with "\\ No newline at end of file" behind the last one)."""
    style = _STYLES.get(line[:1], "")
    for part in line.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
        yield from ((row, style) for row in folded(shown(part), width))


def shown(text: str) -> str:
    """A line of a text, safe to print; a tab as spaces up to the next stop behind the sign of the diff."""
    out = ""
    for at, part in enumerate(text.split("\t")):
        if at:
            out += " " * (TAB - (len(out) - 1) % TAB)
        out += visible(part)
    return out


def folded(text: str, width: int) -> Iterator[str]:
    """``text``, which is escaped, in rows of at most ``width`` columns."""
    if len(text) <= width and text.isascii():
        yield text
        return
    if text.isascii():
        yield text[:width]
        yield from ("\\> " + text[at : at + width - 3] for at in range(width, len(text), width - 3))
        return
    row, used = "", 0
    for char in text:
        taken = columns(char)
        if used + taken > width:
            yield row
            row, used = "\\> ", 3
        row, used = row + char, used + taken
    yield row


def columns(text: str) -> int:
    """The columns of an escaped text on a terminal, at the most.

    A mark that is put over the character before it counts as well: else a row could hold as many of those as there are.
    """
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" or combining(char) else 1 for char in text)
