"""What may be made in the writable trees of a sandbox whose supervisor makes names itself (``backend.landlock``).

Theory of operation
-------------------
The tracer's two questions about a new name, of ``prevent`` and ``creation``, in one object that a backend can call
without knowing them.  It is made in the process that makes the names, when the first one is asked for.  An answer is a
reason of the policy; what cannot be looked at is refused.
"""

from __future__ import annotations

import os

from ..policy import reasons
from .addresses import Trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..plan.model import HeldTree
    from .creation import CreationRules
    from .prevent import Prevention


class Making:
    """Why a name may not be made.

    Args:
        trees: what is to be held in each writable tree.
        shared: does another sandbox show this file?
    """

    def __init__(self, trees: Sequence[HeldTree], shared: Callable[[str], bool] = lambda _path: False) -> None:
        self._shared = shared
        self._trees = [(tree.root.rstrip("/") + "/", tree) for tree in trees]
        unguarded = dict.fromkeys(path for tree in trees for path in tree.unguarded)
        self._places = Trees(tuple(tree.root for tree in trees), tuple(unguarded))
        self._preventions: dict[str, Prevention] = {}
        self._rules: dict[str, CreationRules] = {}

    def __call__(
        self, path: str, kind: str, target: str = "", source: str = "", *, hard: bool = False, fresh: bool = False
    ) -> str:
        """The reason; empty: it may be.

        Args:
            path: canonical and absolute; nothing is there, or something that is replaced.
            kind, target, hard, fresh: as of ``Prevention.objection``.
            source: canonical and absolute: what is renamed or linked.
        """
        for root, tree in self._trees:
            if not path.startswith(root):
                continue
            relative = path[len(root) :]
            if path in tree.awaited:
                return reasons.PROTECTED_NAME
            from_here = source.startswith(root)
            try:
                why = self._prevention(root, tree).objection(
                    relative,
                    kind=kind,
                    target=target,
                    source=source[len(root) :] if from_here else "",
                    hard=hard and from_here,
                    fresh=fresh,
                )
            except OSError:
                why = "it cannot be looked at"
            if why:
                return reasons.PROTECTED_NAME
            if tree.rows and (why := self._creation(root, tree).reason(relative, kind == "directory")):
                return why
        return ""

    def standing(self, path: str, *, directory: bool) -> str:
        """The reason for which something that is there is hidden or read-only; empty: it is neither.

        For what was made outside since the start: what was there then is known by name.
        """
        for root, tree in self._trees:
            if tree.rows and path.startswith(root):
                return self._creation(root, tree).reason(path[len(root) :], directory)
        return ""

    def edit(self, path: str, old: bytes, new: bytes) -> str:
        """Why a configuration may not change so; empty: only everyday settings differ."""
        from .addresses import Judge
        from .gitedit import objection

        try:
            why = objection(old, new, path, local=Judge(os.path.dirname(path), self._places))
            return f"{why}; git_config: writable allows all" if why else self._other(path)
        except OSError:
            return "it cannot be looked at"

    def _other(self, path: str) -> str:
        # A rename would take away the mount that covers the file in another sandbox.
        return "another session shows this repository" if self._shared(path) else ""

    def _prevention(self, root: str, tree: HeldTree) -> Prevention:
        found = self._preventions.get(root)
        if found is None:
            from .prevent import Prevention  # a short run makes no name

            fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            found = self._preventions[root] = Prevention(fd, tree.tips)
        return found

    def _creation(self, root: str, tree: HeldTree) -> CreationRules:
        found = self._rules.get(root)
        if found is None:
            from .creation import CreationRules

            found = self._rules[root] = CreationRules(tree.rows)
        return found
