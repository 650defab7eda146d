"""``membrane apply --patch``: the changes of a set one after the other, each with a question, as ``git add -p`` has it.

Theory of operation
-------------------
It needs a terminal and nothing else.  What is asked about is what ``review_screen`` shows, in the same order and as the
same rows (``changes.pane``), so it is escaped and bounded as there; it fills the same ``Choice``, and ends with the
same list of what would be put in place, judged, and the same last question.  Directories that are new come with what is
in them, and are not asked about; what is git's own is one question.
"""

from __future__ import annotations

import shutil

from ..changes.choice import Choice, sections
from ..changes.pane import LEAST_WIDTH
from .review_screen import GIT, Decision, question

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ..changes.apply import Report
    from ..changes.hunks import Hunk
    from ..changes.model import Change
    from ..changes.pane import Pane, Row

MOST_ASKED = 100  # answers that are none, one after the other
HELP = (
    "y  put it in place",
    "n  do not",
    "a  put it in place, and all later hunks of this file",
    "d  do not, nor any later hunk of this file",
    "s  split the hunk into smaller ones",
    "q  no more questions: what was chosen so far is shown, and nothing is in place yet",
    "?  this help",
)
_COLOURS = {"head": "1", "red": "1;31", "note": "33", "at": "36", "add": "32", "del": "31"}


class _Done(Exception):
    """No more questions."""


class Asker:
    """Asks about the changes of a set.

    Args:
        ask: puts a question on the terminal and returns the answer; raises EOFError at its end.
        say: prints a line.
        look: the rows of a change (``review_screen.application``).
    """

    def __init__(
        self,
        ask: Callable[[str], str],
        say: Callable[[str], None],
        look: Callable[[Change, int, Collection[Hunk]], Pane],
        *,
        colour: bool = False,
    ) -> None:
        self._ask, self._say, self._look, self._colour = ask, say, look, colour

    def decide(self, choice: Choice, ready: Callable[[Choice], Report]) -> Decision | None:
        """What the person decides; None: everything stays as it is.

        Raises:
            MembraneError: as ``ready``.
        """
        try:
            self._choose(choice)
            if not choice.only():
                return None
            report = ready(choice)
            self._show(question(choice, report, self._width()))
            red = {change.path: change.red for change in report.applied if change.red}
            words = "[a]pply these, " if not red else "[a]pply these without the red ones, with the [r]ed ones, "
            answer = self._answer(f"{words}[l]eave everything as it is: ", "arl" if red else "al")
        except (EOFError, KeyboardInterrupt):
            return None
        return None if answer == "l" else Decision(red if answer == "r" else {}, report)

    def _choose(self, choice: Choice) -> None:
        try:
            for number, changes in sections(choice.changes):
                can = [change for change in changes if not choice.objection(change.path)]
                if number == GIT and can:
                    if self._answer(f"Put in place what is git's own ({len(can)}) [y,n,q,?]? ", "ynq") == "y":
                        for change in can:
                            choice.take(change.path)
                    continue
                for change in can:
                    if change.what != "directory" or change.kind not in ("added", "type"):
                        self._change(choice, change)
        except _Done:
            pass

    def _change(self, choice: Choice, change: Change) -> None:
        split: frozenset[Hunk] = frozenset()
        pane = self._look(change, self._width(), split)
        if not pane.units:
            self._show(pane.rows)
            if self._answer(f"Put this {change.what} in place [y,n,q,?]? ", "ynq") == "y":
                choice.take(change.path)
            return
        self._show(row for row in pane.rows if row.unit < 0)
        number = 0
        while number < len(pane.units):
            unit = pane.units[number]
            self._show(row for row in pane.rows if row.unit == number)
            keys = "ynads" if len(unit) > 1 else "ynad"
            prompt = f"({number + 1}/{len(pane.units)}) Put this hunk in place [{','.join(keys)},q,?]? "
            answer = self._answer(prompt, f"{keys}q")
            if answer == "s":
                split = split.union(unit)
                pane = self._look(change, self._width(), split)
                continue
            if answer in ("y", "a"):
                later = pane.units[number:] if answer == "a" else (unit,)
                choice.take_hunks(change.path, [hunk for each in later for hunk in each], pane.every)
            if answer in ("a", "d"):
                break
            number += 1
        whole = choice.state(change.path) == "part" and choice.holds(change.path, pane.every)
        if whole and self._answer("Its mode, owner and attributes as well [y,n,q,?]? ", "ynq") == "y":
            choice.take(change.path)

    def _answer(self, prompt: str, keys: str) -> str:
        """One of ``keys``.

        Raises:
            EOFError: the input has ended, or holds no answer.
            _Done: it is "q".
        """
        for _again in range(MOST_ASKED):
            answer = self._ask(prompt).strip().lower()[:1]
            if answer == "q" and "q" in keys:
                raise _Done
            if answer and answer in keys:
                return answer
            for line in HELP if "y" in keys else ():
                self._say(line)
        raise EOFError

    def _show(self, rows: Iterable[Row]) -> None:
        for row in rows:
            code = _COLOURS.get(row.style, "") if self._colour else ""
            self._say(f"\x1b[{code}m{row.text}\x1b[0m" if code else row.text)

    @staticmethod
    def _width() -> int:
        return max(LEAST_WIDTH, shutil.get_terminal_size().columns)
