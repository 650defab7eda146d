"""Names that git obeys beside the ``.git`` of whatever work tree it is in: also of one that the command makes.

Theory of operation
-------------------
``core.hooksPath = hooks`` of the caller holds in each repository, and that of a repository in each work tree that is
linked to it: a relative name begins at the top of the work tree that git is in (git-config(1), core.hooksPath).  What
was a work tree at the start is covered there (``programs.named``).  ``Beside`` knows the names and those trees, and
says of a path which name it is or is in, seen from each directory above it.  Whether that directory is a work tree
is asked when it matters, for it can become one later: a ``.git`` in it, or the layout of a bare repository.

Lexical, and folded as all protected names.  Names with a part that is a ``.git`` are left out: in there only what git
writes is made (``gitdir``).  So are those that lead up out of the work tree.
"""

from __future__ import annotations

import os

from .protect import GIT_NAMES, fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REASON = "git's configuration names it, and git runs or obeys it in this work tree"


class Beside:
    """The relative names of one workspace.

    Args:
        names: relative to a work tree, normal (os.path.normpath).
        linked: more of them, of a repository's own configuration: in force where ``.git`` is no directory, and so may
            lead to that.  A repository that is made has a configuration of its own, which is judged.
        trees: what was a work tree at the start, relative to the workspace.
    """

    __slots__ = ("_keys", "linked", "names", "trees")

    def __init__(self, names: Iterable[str], linked: Iterable[str], trees: Iterable[str]) -> None:
        names = frozenset(names)
        keys = {name: tuple(fold(part) for part in name.split("/")) for name in (*names, *linked)}
        self._keys = {name: key for name, key in keys.items() if not GIT_NAMES.intersection(key)}
        self.names = tuple(name for name in self._keys if name in names)
        self.linked = tuple(name for name in self._keys if name not in names)
        self.trees = frozenset(trees)

    def places(self, path: str) -> Iterator[tuple[str, str, str, bool]]:
        """(work tree that it may be, the protected name, what is left of the way to it from ``path``, of ``linked``).

        The way is empty where ``path`` is that name or is below it.
        """
        if not self._keys:
            return
        parts = path.split("/")
        folded = [fold(part) for part in parts]
        for name, key in self._keys.items():
            for at, part in enumerate(folded):
                if part != key[0] or folded[at : at + len(key)] != list(key[: len(folded) - at]):
                    continue
                tree = "/".join(parts[:at])
                if tree not in self.trees and not GIT_NAMES.intersection(folded[:at]):
                    way = "/".join(key[len(folded) - at :])
                    yield tree, "/".join(parts[: at + len(key)]), way, name in self.linked

    def of(self, tree: str, *, linked: bool = True) -> list[str]:
        """The protected names of a directory, were it a work tree; with those of ``linked`` or without."""
        if tree in self.trees or any(fold(part) in GIT_NAMES for part in tree.split("/")):
            return []
        return [f"{tree}/{name}" if tree else name for name in (*self.names, *(self.linked if linked else ()))]


def seen(prefix: str, name: str, start: int = 0) -> str:
    """A symbolic link on the way to ``name``, or else that; empty: nothing is there.

    Args:
        prefix: the tree, with a slash at its end.
        start: characters of ``name`` that are a directory, known not to be a link.
    """
    at = name.find("/", start + 1)
    while at > 0:
        if os.path.islink(prefix + name[:at]):
            return name[:at]
        at = name.find("/", at + 1)
    return name if os.path.lexists(prefix + name) else ""
