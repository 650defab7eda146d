"""Names that a rule hides or makes read-only, and that are not there yet: may they be made?

Theory of operation
-------------------
A mount binds what exists.  Without more the first write to a name that a rule speaks of would succeed, and the file be
covered or frozen some milliseconds later, under the feet of who has made it.  The tracer asks here before a name is
made.  The patterns are those of the walk (``scan.Patterns``), with the same exception inside of a ``.git``; the answer
for a directory is kept, because many names are made in each.
"""

from __future__ import annotations

from ..policy import reasons
from ..policy.model import Origin, PathRule
from .protect import fold
from .scan import Patterns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Row: TypeAlias = tuple[str, str]  # effect and text of a PathRule

MOST_DIRECTORIES = 4_096
_ORIGIN = Origin("built-in", "")
_REASONS = {"hide": reasons.HIDDEN, "readonly": reasons.READ_ONLY, "": ""}


class CreationRules:
    """The path rules of one tree.

    Args:
        rows: effects and patterns, in order.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        rules = tuple(PathRule(text, _ORIGIN, effect) for effect, text in rows)  # type: ignore[arg-type]
        self._patterns = Patterns(rules)
        self._directories: dict[str, tuple[str, bool]] = {"": ("", False)}  # reason, in a repository

    def reason(self, path: str, directory: bool) -> str:
        """ "hidden" or "read-only" when no such name may be made; else empty.

        Args:
            path: canonical, relative to the tree.
            directory: what would be made is one.
        """
        if not self._patterns.hides and not self._patterns.readonly:
            return ""
        parent, _, name = path.rpartition("/")
        why, in_git = self._below(parent)
        return why or self._one(name, path, directory, in_git)

    def _one(self, name: str, path: str, directory: bool, in_git: bool) -> str:
        return _REASONS[self._patterns.effect(name, path, directory, in_git)]

    def _below(self, path: str) -> tuple[str, bool]:
        """(reason for all that is below a directory, whether it is of a repository)."""
        above: list[str] = []
        while path not in self._directories:
            above.append(path)
            path = path.rpartition("/")[0]
        why, in_git = self._directories[path]
        for path in reversed(above):
            name = path.rpartition("/")[2]
            why = why or self._one(name, path, True, in_git)
            in_git = in_git or fold(name) == ".git"
            if len(self._directories) >= MOST_DIRECTORIES:
                self._directories = {"": ("", False)}
            self._directories[path] = why, in_git
        return why, in_git
