"""What a person has chosen of the changes of a set, and in which order the changes are looked at.

Theory of operation
-------------------
A change is chosen whole, by some of its hunks, or not at all; at the beginning nothing is.  What cannot be put in place
cannot be chosen.  Choosing each hunk of a file is choosing the file, unless its mode, its owner or an attribute was
changed as well: that was not shown as a hunk, so it comes only with the file as such.

A choice is one of what was seen.  After another look at the workspace (``renew``) it holds for those changes that are
as they were, with all that is said of them; of the others it is dropped.
"""

from __future__ import annotations

from .diff import is_gits
from .model import Change, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal, TypeAlias

    from .hunks import Hunk

    State: TypeAlias = Literal["", "part", "whole"]

SECTIONS = (
    "RED: run or obeyed outside",
    "conflicts: also changed by you",
    "changed",
    "added",
    "renamed",
    "deleted",
    "mode, attributes or kind",
    "git's own",
    "never put in place",
)
_BY_KIND = {"changed": 2, "added": 3, "renamed": 4, "deleted": 5}


def section(change: Change) -> int:
    """Which of ``SECTIONS`` it belongs to."""
    if change.never:
        return 8
    if change.conflict:
        return 1
    if change.red:
        return 0
    return 7 if is_gits(change.path) else _BY_KIND.get(change.kind, 6)


def sections(changes: Iterable[Change]) -> list[tuple[int, list[Change]]]:
    """The sections that hold something, each with its changes in their order."""
    found: dict[int, list[Change]] = {}
    for change in changes:
        found.setdefault(section(change), []).append(change)
    return sorted(found.items())


def seen(change: Change) -> tuple[object, ...]:
    """What a person has decided about: two changes for which it is the same need no new decision."""
    return (
        change.path,
        change.kind,
        change.source,
        _seen(change.before),
        _seen(change.after, frozen=True),
        change.content,
        change.attributes,
        change.red,
        change.never,
        change.conflict,
    )


def _seen(side: Side | None, *, frozen: bool = False) -> tuple[object, ...] | None:
    """``frozen``: it is in a layer, where the change time is ours, as what the command has closed is opened to look."""
    if side is None:
        return None
    what = side.what, side.mode, side.uid, side.gid, side.target
    if side.what == "directory":
        return (*what, side.device, side.inode)
    return (*what, *side.identity[:-1]) if frozen else (*what, *side.identity)


class Choice:
    """What is chosen of ``changes``; in the beginning nothing."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.changes = changes
        self._by_path = {change.path: change for change in changes}
        self._whole: set[str] = set()
        self._parts: dict[str, frozenset[Hunk]] = {}

    def renew(self, changes: Sequence[Change]) -> list[str]:
        """The changes as they are by now; the chosen names of which that is something else, and not chosen any more."""
        lost = moved(self.changes, changes, [*self._whole, *self._parts])
        self.changes = changes
        self._by_path = {change.path: change for change in changes}
        for path in lost:
            self.leave(path)
        return lost

    def objection(self, path: str) -> str:
        """Why it cannot be chosen; empty: it can."""
        change = self._by_path[path]
        return change.never[0] if change.never else change.conflict

    def state(self, path: str) -> State:
        """How much of it is chosen."""
        return "whole" if path in self._whole else "part" if path in self._parts else ""

    def take(self, path: str) -> None:
        """Choose all of it, where that can be."""
        if not self.objection(path):
            self._parts.pop(path, None)
            self._whole.add(path)

    def leave(self, path: str) -> None:
        """Choose nothing of it."""
        self._whole.discard(path)
        self._parts.pop(path, None)

    def holds(self, path: str, hunks: Iterable[Hunk]) -> bool:
        """Are all of these hunks chosen?"""
        return path in self._whole or self._parts.get(path, frozenset()).issuperset(hunks)

    def take_hunks(self, path: str, hunks: Iterable[Hunk], every: Iterable[Hunk]) -> None:
        """Choose these as well, of ``every`` hunk of the file."""
        if self.objection(path) or path in self._whole:
            return
        self._set(path, self._parts.get(path, frozenset()).union(hunks), every)

    def leave_hunks(self, path: str, hunks: Iterable[Hunk], every: Iterable[Hunk]) -> None:
        """These are not chosen any more."""
        now = frozenset(every) if path in self._whole else self._parts.get(path, frozenset())
        self.leave(path)
        self._set(path, now.difference(hunks), every)

    def _set(self, path: str, hunks: frozenset[Hunk], every: Iterable[Hunk]) -> None:
        self._parts.pop(path, None)
        if hunks and hunks.issuperset(every) and not more_than_text(self._by_path[path]):
            self._whole.add(path)
        elif hunks:
            self._parts[path] = hunks

    def only(self) -> list[str]:
        """The chosen names (``apply.choose``, ``exact``)."""
        return [change.path for change in self.changes if self.state(change.path)]

    def hunks(self) -> dict[str, frozenset[Hunk]]:
        """Of these only these hunks."""
        return dict(self._parts)

    def counted(self) -> tuple[int, int, int]:
        """(chosen, of them in part, of them red by what is said of the whole)."""
        red = sum(bool(self._by_path[path].red) for path in (*self._whole, *self._parts))
        return len(self._whole) + len(self._parts), len(self._parts), red


def more_than_text(change: Change) -> bool:
    """Is the mode, the owner or an attribute another one as well?"""
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    same = (before.mode, before.uid, before.gid) == (after.mode, after.uid, after.gid)
    return bool(change.attributes) or not same


def moved(before: Iterable[Change], after: Iterable[Change], paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` of which the two looks say something else."""
    old, new = ({change.path: change for change in each} for each in (before, after))
    return sorted(path for path in paths if path not in new or path not in old or seen(old[path]) != seen(new[path]))
