"""The git directories of a work tree that keeps them elsewhere, so that git works in it as usual.

Theory of operation
-------------------
A linked worktree, a submodule and a ``git init --separate-git-dir`` have a *file* ``.git`` with the line
"gitdir: PATH" (gitrepository-layout(5)).  The command needs what it names, and for a linked worktree the common
directory that ``commondir`` there names.  ``find`` says which directories these are.

The file is part of the workspace, so an archive or an earlier run can have made it: alone it opens nothing.  A git
directory is shown only when something *outside* of the workspace names this work tree:

* a linked worktree: ``gitdir`` in its git directory holds the path of this ``.git`` (git-worktree(1), DETAILS);
* a submodule: ``core.worktree`` in its ``config`` (git-submodule(1));
* a separate git directory names no tree.  Its index holds inode number, change time and size of the files that it was
  written for (gitformat-index(5)), which only who has seen this tree knows.

Of the other worktrees of the same repository nothing is shown that can be kept away: their own directories below
``worktrees`` are read-only, their files hidden where they lie in what is shown.

What is shown stands for the ``.git`` that an ordinary workspace has, so the rules of the workspace hold in it as they
would in that: where they hide ``.git`` nothing is shown, where they make it read-only nothing of it can be written, and
a pattern speaks of ``.git/...``.
"""

from __future__ import annotations

import os
import stat

from ..plan.model import Repository
from ..plan.mounts import inside
from ..policy.model import Origin, PathRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

_GIT = ".git"

_LARGEST_POINTER = 4096 + 16  # bytes: "gitdir: ", PATH_MAX, a newline
_LARGEST_CONFIG = 64 << 10  # bytes
_MOST_WORKTREES = 1000  # of one repository; with more, none can be added or removed from inside
_INDEX_PREFIX = 64 << 10  # bytes of an index that are looked at
_INDEX_ENTRIES = 64  # entries that are compared with the work tree
NONE = Repository()


def find(workspace: str) -> Repository:
    """The git directories of ``workspace`` that lie outside of it.

    Args:
        workspace: absolute, without links.

    Returns:
        What is to be shown and hidden, or why it is not shown.  Files that cannot be read name nothing.
    """
    pointer, own = f"{workspace}/.git", named(workspace)
    if not own:
        return NONE
    common = _line(f"{own}/commondir")
    if common:
        return _linked(workspace, own, os.path.realpath(os.path.join(own, common)))
    if _worktree(own) == workspace or _is_index_of(f"{own}/index", workspace):
        return Repository(((own, "rw"),), own=own)
    return Repository(
        warning=f"{pointer} leads to {own}, which does not name this directory as its work tree: git will not find it. "
        f"If it is yours: --mount {own}:rw"
    )


def under(rules: Sequence[PathRule], found: Repository, *, live: bool) -> Repository:
    """``found`` as far as the rules of the workspace show it.

    ``live``: the workspace is not reviewed; there what a rule makes read-only is held back when changes are applied.
    """
    from .scan import Patterns

    if not found.shown or not any(rule.effect in ("hide", "readonly") for rule in rules):
        return found
    patterns = Patterns(rules)
    effects = {patterns.effect(_GIT, _GIT, directory, False) for directory in (False, True)}
    if "hide" in effects:
        return NONE
    if live and "readonly" in effects:
        return found.replace(shown=tuple((path, "ro") for path, _mode in found.shown))
    return found


def rules(rules: Sequence[PathRule], found: Repository, root: str) -> tuple[PathRule, ...]:
    """The rules of the workspace, as they hold in ``root``, which is shown and can be written; else ()."""
    if not any(path == root and mode == "rw" for path, mode in found.shown):
        return ()
    kept = tuple(rule for rule in rules if rule.effect in ("hide", "readonly"))
    if not kept:
        return ()
    place = _GIT + root[len(found.shown[0][0]) :]
    return (*kept, PathRule(place, Origin("built-in", "the repository of the workspace"), "place"))


def named(workspace: str) -> str:
    """The git directory outside of ``workspace`` that its ``.git`` file names, without links; empty: none is there."""
    pointer = f"{workspace}/.git"
    try:
        if not stat.S_ISREG(os.lstat(pointer).st_mode):
            return ""
    except OSError:
        return ""
    line = _line(pointer, "gitdir: ")
    own = os.path.realpath(os.path.join(workspace, line)) if line else ""
    return own if own and not inside(own, workspace) and os.path.isfile(f"{own}/HEAD") else ""


def _linked(workspace: str, own: str, common: str) -> Repository:
    back = _line(f"{own}/gitdir")
    if not back or os.path.realpath(os.path.join(own, back)) != f"{workspace}/.git" or not _is_below(own, common):
        return Repository(
            warning=f"{workspace}/.git leads to {own}, which does not lead back: git will not find the repository. "
            "git worktree repair mends it"
        )
    shown: list[tuple[str, Literal["ro", "rw"]]] = [(common, "rw")]
    hidden: list[str] = []
    holder = os.path.dirname(own)
    names = _names(holder)
    if len(names) > _MOST_WORKTREES:
        return Repository(((common, "rw"), (holder, "ro"), (own, "rw")), own=own)
    for name in names:
        other = f"{holder}/{name}"
        if other == own:
            continue
        place = os.path.dirname(os.path.realpath(os.path.join(other, _line(f"{other}/gitdir") or ".")))
        if inside(place, workspace):
            continue  # made from inside, and part of the workspace
        shown.append((other, "ro"))
        if inside(place, common) and place != other and not inside(workspace, place) and os.path.isdir(place):
            hidden.append(place)
    return Repository(tuple(shown), tuple(hidden), own=own)


def _is_below(own: str, common: str) -> bool:
    """Is ``own`` one of the ``worktrees`` of ``common``, and that a repository?"""
    holder = os.path.dirname(own)
    layout = os.path.isfile(f"{common}/HEAD") and os.path.isdir(f"{common}/objects") and os.path.isdir(f"{common}/refs")
    return layout and holder == f"{common}/worktrees"


def _names(directory: str) -> list[str]:
    """Names of the directories in ``directory``, sorted; at most one more than ``_MOST_WORKTREES``."""
    out: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    out.append(entry.name)
                    if len(out) > _MOST_WORKTREES:
                        break
    except OSError:
        return []
    return sorted(out)


def _worktree(own: str) -> str:
    """The work tree that ``core.worktree`` of a git directory names, resolved; empty when there is none."""
    from .gitconfig import ConfigError, parse

    data = _read(f"{own}/config", _LARGEST_CONFIG)
    try:
        settings = parse(data.decode("utf-8", "surrogateescape"))
    except ConfigError:
        return ""
    named = [value for key, value in settings if key == "core.worktree" and value]
    return os.path.realpath(os.path.join(own, named[-1])) if named else ""


def _is_index_of(path: str, workspace: str) -> bool:
    """Was this index written for files of ``workspace``?  True when an entry has the identity of the file there."""
    data = _read(path, _INDEX_PREFIX, whole=False)
    if data[:4] != b"DIRC" or int.from_bytes(data[4:8], "big") not in (2, 3):
        return False  # version 4 packs its paths; such a repository is shown by a rule
    at = 12
    for _ in range(min(int.from_bytes(data[8:12], "big"), _INDEX_ENTRIES)):
        fields = [int.from_bytes(data[at + 4 * n : at + 4 * n + 4], "big") for n in range(10)]
        seconds, inode, size = fields[0], fields[5], fields[9]
        flags = int.from_bytes(data[at + 60 : at + 62], "big")
        begin = at + (64 if flags & 0x4000 else 62)
        end = data.find(b"\0", begin)
        if end < 0:
            return False
        name = data[begin:end]
        try:
            there = os.lstat(os.path.join(os.fsencode(workspace), name))
        except (OSError, ValueError):
            there = None
        same = there is not None and stat.S_ISREG(there.st_mode) and not name.startswith((b"/", b"../"))
        if same and there is not None and inode:
            wanted = (int(there.st_ctime) & 0xFFFFFFFF, there.st_ino & 0xFFFFFFFF, there.st_size & 0xFFFFFFFF)
            if wanted == (seconds, inode, size):
                return True
        at += (end - at + 8) & ~7
    return False


def _line(path: str, start: str = "") -> str:
    """What a file of one line holds after ``start``; empty for anything else."""
    text = _read(path, _LARGEST_POINTER).decode("utf-8", "surrogateescape").removesuffix("\n")
    if not text.startswith(start) or any(char < " " or char == "\x7f" for char in text):
        return ""
    return text[len(start) :]


def _read(path: str, most: int, *, whole: bool = True) -> bytes:
    """A regular file; empty when it cannot be read or (``whole``) holds more than ``most`` bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        details = os.fstat(fd)
        if not stat.S_ISREG(details.st_mode) or (whole and details.st_size > most):
            return b""
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)
