"""A repository that several work trees share: what of it is whose, and which refs another one is on.

Theory of operation
-------------------
git-worktree(1), REFS and DETAILS; gitrepository-layout(5): the work trees of one repository share objects, most refs
and the configuration in its common directory.  What is of one of them only is in that directory itself for the main
one, and in ``worktrees/NAME``, its *seat*, for each linked one; so are the refs below ``refs/bisect``,
``refs/worktree`` and ``refs/rewritten``.  A change set of one work tree changes what is shared, as far as it is listed
here, and what is in its own seat.  What is not listed belongs to the main work tree.  A change set of the main work
tree changes what is in no other's seat; those of linked ones inside of the workspace are not another's.
"""

from __future__ import annotations

import os

from ..workspace.gitconfig import ConfigError, parse
from .gitrefs import LONGEST_REF, content, is_ref, value_of
from .grafted import pointed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tree import Copy

SEATED = ("HEAD", "commondir", "gitdir")  # what makes a directory below ``worktrees`` a work tree's
THEIRS = "it is another work tree's"
ELSEWHERE = "another work tree is on that branch"
_WHERE = "it says where a work tree and its repository are"
_SHARED = frozenset(
    {
        "objects", "refs", "packed-refs", "shallow", "logs", "config", "hooks", "info", "description", "branches",
        "remotes", "rr-cache", "lost-found", "lfs",
    }
)  # fmt: skip
_OWN_REFS = ("bisect", "worktree", "rewritten")  # of each work tree (refs.c, is_per_worktree_ref)
_LONGEST_LINE = 8_192  # bytes of a file that names a path
_MOST_HOPS = 5  # refs.c, SYMREF_MAXDEPTH
_LARGEST_CONFIG = 512 << 10  # bytes


class Seats:
    """What of one repository is another work tree's.

    Args:
        host: the host's view.
        place: the repository, or the common directory.
        seat: that of the workspace, ``worktrees/NAME/``; empty: the workspace is, or holds, the main work tree, and
            what is in it is no other's.

    Raises (of all methods):
        OSError, HostError: ``worktrees`` cannot be read, or holds too much.
    """

    def __init__(self, host: Copy, place: str, seat: str) -> None:
        self._host, self._place, self._seat = host, place, seat
        self._others: tuple[str, ...] | None = None
        self._refs: frozenset[str] | None = None

    def theirs(self, inner: str) -> str:
        """Why what is at ``inner`` in the repository is not for the workspace; empty: it is."""
        parts = inner.split("/")
        if not self._seat:
            of_theirs = parts[0] == "worktrees" and (parts[1] in self._named() if parts[1:] else bool(self._named()))
            return THEIRS if of_theirs else ""
        if inner.startswith(self._seat):
            return _WHERE if inner[len(self._seat) :] in ("commondir", "gitdir", "locked") else ""
        if parts[0] not in _SHARED or parts[:2] in (["info", "sparse-checkout"], ["logs", "HEAD"]):
            return THEIRS
        refs = parts[1:] if parts[0] == "logs" else parts
        return THEIRS if refs[:1] == ["refs"] and refs[1:2] and refs[1] in _OWN_REFS else ""

    def refs(self) -> frozenset[str]:
        """The refs that the others are on, or will go back to at the end of a rebase or a bisect."""
        if self._refs is None:
            self._refs = self._read()
        return self._refs

    def _named(self) -> tuple[str, ...]:
        """The others below ``worktrees``."""
        if self._others is None:
            names = self._host.names(f"{self._place}/worktrees")
            self._others = tuple(name for name in names if self._is_other(name))
        return self._others

    def _is_other(self, name: str) -> bool:
        if self._seat:
            return f"worktrees/{name}/" != self._seat
        path = f"{self._place}/worktrees/{name}/gitdir"
        text = os.fsdecode(content(self._host, path, _LONGEST_LINE))
        return not pointed(self._host.base_fd, path, f"gitdir: {text}")

    def _read(self) -> frozenset[str]:
        host, place = self._host, self._place
        others = [f"{place}/worktrees/{name}/" for name in self._named()]
        if self._seat and not _is_bare(host, place):
            others.append(f"{place}/")
        found = set()
        for other in others:
            for name in ("HEAD", "rebase-merge/head-name", "rebase-apply/head-name"):
                found.add(value_of(content(host, other + name, LONGEST_REF)).removeprefix("ref: "))
            begun = value_of(content(host, f"{other}BISECT_START", LONGEST_REF))
            found.add(f"refs/heads/{begun.removeprefix('refs/heads/')}")
        found = {ref for ref in found if is_ref(ref)}
        for _hop in range(_MOST_HOPS):  # one may be a symbolic ref: who is on it is on what that names
            values = {value_of(content(host, f"{place}/{ref}", LONGEST_REF)) for ref in found}
            found |= {
                ref for value in values if value.startswith("ref: ") and is_ref(ref := value.removeprefix("ref: "))
            }
        return frozenset(found)


def is_their_log(inner: str) -> bool:
    """Is what ``theirs`` refuses a log of another HEAD, which ``git gc`` writes anew in every work tree?"""
    parts = inner.split("/")
    return parts[0] == "logs" or (parts[0] == "worktrees" and parts[2:3] == ["logs"])


def _is_bare(host: Copy, place: str) -> bool:
    """Is there no main work tree, so that HEAD in the common directory is only the branch that clones begin with?

    The configuration alone does not say it: an earlier change set may have brought ``core.bare``.
    """
    if host.find(f"{place}/index") is not None:
        return False
    rows: list[tuple[str, str | None]] = []
    for name in ("config", "config.worktree"):
        text = content(host, f"{place}/{name}", _LARGEST_CONFIG).decode("utf-8", "surrogateescape")
        try:
            rows += parse(text)
        except ConfigError:
            return False
    values = [value for key, value in rows if key == "core.bare"]
    return bool(values) and (values[-1] is None or values[-1].lower() in ("true", "yes", "on", "1"))
