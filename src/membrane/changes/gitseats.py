"""A repository that several work trees share: what of it is whose, and which refs another one is on.

Theory of operation
-------------------
git-worktree(1), REFS and DETAILS; gitrepository-layout(5): the work trees of one repository share objects, most refs
and the configuration in its common directory.  What is of one of them only is in that directory itself for the main
one, and in ``worktrees/NAME``, its *seat*, for each linked one; so are the refs below ``refs/bisect``,
``refs/worktree`` and ``refs/rewritten``.  A change set of one work tree changes what is shared, as far as it is listed
here, and what is in its own seat.  What is not listed belongs to the main work tree.
"""

from __future__ import annotations

from ..workspace.gitconfig import ConfigError, parse
from .gitrefs import LONGEST_REF, content, is_ref, value_of

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
_MOST_HOPS = 5  # refs.c, SYMREF_MAXDEPTH
_LARGEST_CONFIG = 512 << 10  # bytes


def theirs(inner: str, seat: str) -> str:
    """Why what is at ``inner`` in a common directory is not for the work tree of ``seat``; empty: it is.

    Args:
        seat: ``worktrees/NAME/``.
    """
    if inner.startswith(seat):
        return _WHERE if inner[len(seat) :] in ("commondir", "gitdir", "locked") else ""
    parts = inner.split("/")
    if parts[0] not in _SHARED or parts[:2] in (["info", "sparse-checkout"], ["logs", "HEAD"]):
        return THEIRS
    refs = parts[1:] if parts[0] == "logs" else parts
    return THEIRS if refs[:1] == ["refs"] and refs[1:2] and refs[1] in _OWN_REFS else ""


def is_their_log(inner: str) -> bool:
    """Is what ``theirs`` refuses a log of another HEAD, which ``git gc`` writes anew in every work tree?"""
    parts = inner.split("/")
    return parts[0] == "logs" or (parts[0] == "worktrees" and parts[2:3] == ["logs"])


def checked_out(host: Copy, place: str, seat: str) -> frozenset[str]:
    """The refs that the other work trees of a repository are on, or will go back to at the end of a rebase or a bisect.

    Args:
        host: the host's view.
        place: the common directory.

    Raises:
        OSError, HostError: ``worktrees`` cannot be read, or holds too much.
    """
    others = [f"{place}/worktrees/{name}/" for name in host.names(f"{place}/worktrees")]
    others = [each for each in others if each != f"{place}/{seat}"]
    if not _is_bare(host, place):
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
        found |= {ref for value in values if value.startswith("ref: ") and is_ref(ref := value.removeprefix("ref: "))}
    return frozenset(found)


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
