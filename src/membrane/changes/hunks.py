"""The differences of one text as values that can be chosen one by one.

Theory of operation
-------------------
A ``Hunk`` is the smallest part of a change: a run of lines that became another run, with what was there and what is
there now.  At least one line that stays is between two of them, so any selection, in any order, gives one text
(``chosen``): the lines of the base, with the chosen runs in the place of theirs.  All of them give the changed text and
none gives the base, byte for byte; lines are cut behind each newline and never changed, so carriage returns, bytes that
are no UTF-8 and a missing newline at the end stay as they are.  (A line without a newline is the last one of its text;
where it is not the same in both it is in the last hunk, so no line is ever joined with another.)

A hunk says all that a person saw of it.  It is taken only where both texts have exactly this hunk at this place.

``blocks`` puts near ones together, as a unified diff shows them.
"""

from __future__ import annotations

from ..value import Value
from .lines import CONTEXT, edits, near, split, unified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LARGEST = 2 << 20  # bytes of each text that is cut into hunks
MOST_LINES = 50_000  # of each of them; comparing two takes a few seconds at the worst (``lines.WORK``)


class Hunk(Value):
    """``removed`` became ``added``: whole lines with their newlines, behind so many lines of the base and of the
    changed text (``old``, ``new``)."""

    old: int
    new: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]

    @property
    def end(self) -> int:
        """The line of the base behind it."""
        return self.old + len(self.removed)


class Foreign(ValueError):
    """A hunk that these two texts do not have."""


def is_small(*texts: bytes) -> bool:
    """Are these cut into hunks at all?"""
    return all(len(text) <= LARGEST and text.count(b"\n") < MOST_LINES for text in texts)


def cut(base: bytes, changed: bytes) -> tuple[Hunk, ...]:
    """All hunks, in their order."""
    old, new = split(base), split(changed)
    return tuple(Hunk(a0, b0, tuple(old[a0:a1]), tuple(new[b0:b1])) for a0, a1, b0, b1 in edits(old, new))


def chosen(base: bytes, changed: bytes, hunks: Iterable[Hunk]) -> bytes:
    """``base`` with these of the hunks that lead to ``changed``.

    Raises:
        Foreign: one of them is none of these two texts.
    """
    known = {(hunk.old, hunk.new): hunk for hunk in cut(base, changed)}
    old, at, out = split(base), 0, []
    for hunk in sorted(set(hunks), key=lambda each: each.old):
        if known.get((hunk.old, hunk.new)) != hunk:
            raise Foreign(f"there is no such hunk at line {hunk.old + 1}")
        out += [*old[at : hunk.old], *hunk.added]
        at = hunk.end
    return b"".join([*out, *old[at:]])


def together(hunks: Sequence[Hunk]) -> list[tuple[Hunk, ...]]:
    """In groups, as a unified diff shows them."""
    by_place = {hunk.old: hunk for hunk in hunks}
    return [tuple(by_place[edit[0]] for edit in group) for group in near([_edit(hunk) for hunk in hunks])]


def blocks(base: bytes, changed: bytes, groups: Sequence[Sequence[Hunk]]) -> list[list[bytes]]:
    """Each group as the lines of a unified diff, the first is its head; a line of context is shown once."""
    old, new = split(base), split(changed)
    out, shown = [], 0
    for at, group in enumerate(groups):
        after = groups[at + 1][0].old if at + 1 < len(groups) else len(old)
        start, end = max(shown, group[0].old - CONTEXT, 0), min(group[-1].end + CONTEXT, after)
        out.append(list(unified(old, new, [_edit(hunk) for hunk in group], start, end)))
        shown = end
    return out


def _edit(hunk: Hunk) -> tuple[int, int, int, int]:
    return hunk.old, hunk.end, hunk.new, hunk.new + len(hunk.added)
