"""Which protected names may not even be made: the guard's judgement, before the fact.

Theory of operation
-------------------
``Prevention`` is asked about each name that a command wants to make, rename or link in one writable tree.  Where git
writes a closed set of names (``gitdir``) every other is refused; for editor, agent and shell configuration nothing
that it could hold is benign.  What a rename brings is there already, so it is judged before it is let through: the
content of a file that would get the name of a configuration, what a directory holds that would become ``hooks``,
``rebase-merge`` or ``.git``, and what a directory holds that a last name would make a repository.

A file that is opened to be made has no content yet: ``config``, a ``.git`` that points elsewhere, the state of a rebase
are let through then, and the guard judges each write.

What a commit from before the run holds under a name of tools may be made (``commits``), and is remembered as passed:
``unlike`` says of one whether it has become something else.

What git's configuration names in whatever work tree it is in (``beside``) is made in one of this session only as a
commit from before the run has it at that place; and nothing becomes a work tree where such a name is there already.

In a repository that was made below the top in this session the names of tools stay: a clone brings them, and taking
them away would have the next ``git commit -a`` delete them.  They are reported at the end.

The answer is as of now.  Another thread can change what is judged until the kernel has done what it was asked for;
what gets past that is put aside by the guard.  All work is bounded; what is beyond is refused.
"""

from __future__ import annotations

import os
import stat
import time
from itertools import islice

from .below import open_below, path_of, stat_below
from .beside import REASON
from .gitdir import LONGEST_KEPT, REFUSED
from .judge import is_probe_target, judge, judge_repository, judged_by_content, reason, tree_row
from .names import HOOK
from .protect import (
    BY_LAYOUT,
    CHECKED,
    DATA,
    GIT,
    GIT_LINKED,
    GIT_MODULES,
    GIT_NAMES,
    KIND,
    LAYOUT,
    NAMED,
    PACKAGE,
    PROTECT,
    TREE,
    classify,
    fold,
    is_git_layout,
    root_context,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .beside import Beside
    from .commits import Committed

LONGEST_BACK = 2.0  # seconds, in one look, for the guard to put a commit's content where something else was
_MOST_CONTEXTS = 4096
_MOST_PASSED = 4096
_MOST_LISTED = 65_536  # names of a directory in which something may have been put aside
_MOST_MADE = 16_384  # directories of this session that are remembered
_MOST_WALKED = 4096  # names of a directory that is renamed into another kind of place
_HOOKS = -10  # context of a directory where git looks for hooks: only samples are made
_EMPTY = -11  # context of a directory in which nothing is made
_OUTER_WORKTREE = "a work tree beside the workspace is added outside of the sandbox, one in it (.worktrees/NAME) inside"
_OBEYED_WHOLE = frozenset({"hooks", "remotes", "branches"})  # directories in which git obeys every file
_ADDRESS = "git takes what is in it for the address of a remote"
_BY_RENAME = frozenset({"config.worktree", "attributes"})  # git never makes them where it has been before


class Prevention:
    """What may not be made in one tree.

    Args:
        root_fd: O_PATH descriptor of it, as the command sees it; owned from now on.
        tips: the commits that its repository had before the run (``origins.begin``).
        beside: what configuration names in each work tree that is made.
    """

    def __init__(self, root_fd: int, tips: bytes = b"", beside: Beside | None = None) -> None:
        self._root_fd = root_fd
        self._tips = tips
        self._beside = beside
        self._committed: Committed | None = None
        # Names that were let be made since a commit holds them: where it does, if that is another place.
        self.passed: dict[str, str] = {}
        self._told: dict[str, bool] = {}  # names that were told of before the guard put them aside: False
        self._aside: set[str] = set()  # what it has put aside, as far as it was seen
        self._top = (root_context(path_of(root_fd)), "", "")
        self._contexts: dict[str, tuple[int, str, str]] = {"": self._top}
        self._made: dict[str, None] = {}  # directories that were let be made in this session, the oldest first
        self._repositories: dict[str, None] = {}  # those with a .git that was made as well: clones, worktrees, modules

    def close(self) -> None:
        if self._committed is not None:
            self._committed.close()
        os.close(self._root_fd)

    def removed(self, path: str) -> None:
        """The command removes or renames it."""
        if self.passed:
            below = f"{path}/"
            for one in [one for one in self.passed if one == path or one.startswith(below)]:
                del self.passed[one]

    def unlike(self) -> str:
        """A name that was let be made and is not as a commit has it; empty: there is none.

        One that the guard has put aside is told of once, though a commit's content is back in its place by now.
        """
        if self._committed is None:
            return ""
        listings: dict[str, list[str]] = {}
        first, until = "", 0.0
        for path, place in self.passed.items():
            aside = self._was_put_aside(path, listings)
            if aside and self._told.pop(path, True):
                first = first or path
                continue
            try:
                if aside or path in self._told:
                    # It was told of before, and the guard may be about to put what a commit has in its place.
                    until = until or time.monotonic() + LONGEST_BACK
                    self._await(path, until)
                directory = stat.S_ISDIR(stat_below(self._root_fd, path).st_mode)
                if directory or not self._committed.objection(path, place=place):
                    continue
                if len(self._told) < _MOST_PASSED:
                    self._told[path] = False  # the guard is about to put it aside
            except OSError:
                pass  # not removed by the command: the guard has put it aside
            first = first or path
        return first

    def _await(self, path: str, until: float) -> None:
        """Wait until something is there, to ``until`` at most (time.monotonic()); the guard is another process."""
        while time.monotonic() < until:
            try:
                stat_below(self._root_fd, path)
                return
            except OSError:
                time.sleep(0.002)

    def _was_put_aside(self, path: str, listings: dict[str, list[str]]) -> bool:
        """Is there something that was put aside from this name, which was not seen before?

        ``listings``: what was put aside in a directory.  Of a larger one than ``_MOST_LISTED`` the rest is not seen.
        """
        parent, _, name = path.rpartition("/")
        found = listings.get(parent)
        if found is None:
            found = listings[parent] = []
            try:
                fd = open_below(self._root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                return False
            try:
                with os.scandir(fd) as listing:
                    found += [each.name for each in islice(listing, _MOST_LISTED) if REFUSED in each.name]
            except OSError:
                return False
            finally:
                os.close(fd)
        begin = os.fsdecode(os.fsencode(name)[:LONGEST_KEPT]) + REFUSED
        new = {f"{parent}/{each}" for each in found if each.startswith(begin)} - self._aside
        self._aside |= new
        return bool(new)

    def _is_committed(self, path: str, kind: str, place: str = "") -> bool:
        """``place``: where a commit would have it, if it is in another work tree."""
        if self._committed is None:
            from .commits import Committed  # most sessions never need it

            self._committed = Committed(self._root_fd, self._tips)
        if not self._committed.may_be(place or path, kind, named=bool(place)):
            return False
        if len(self.passed) >= _MOST_PASSED and path not in self.passed:
            return False
        self.passed[path] = place
        return True

    def objection(
        self,
        path: str,
        *,
        kind: str = "file",
        target: str = "",
        source: str = "",
        hard: bool = False,
        fresh: bool = False,
    ) -> str:
        """Why ``path`` may not be made; empty when nothing is known against it.

        Args:
            path: canonical and relative to the tree.
            kind: of what would be there: "file", "directory", "symlink", or another type of file.
            target: what a symbolic link would hold.
            source: what is renamed or linked, relative to the tree; empty: it is made.
            hard: a hard link is made of ``source``.
            fresh: it is opened as git makes a file of the work tree: new, for writing only (entry.c, ``create_file``).
        """
        parent, _, name = path.rpartition("/")
        key = fold(name)
        directory, link = kind == "directory", kind == "symlink"
        if self._beside is not None:
            likely = not source and not hard and (fresh or directory)
            why = self._named(self._beside, path, kind, source, likely=likely)
            if why:
                return why
        context, above, why = self._context(parent)
        why = why or self._name(path, context, above, key, kind, target, source, hard)
        if why and self._tips and not source and not hard and (fresh or kind == "directory"):
            return "" if self._is_committed(path, kind) else why
        if why or context < 0:
            return why
        if (key in LAYOUT and not context & NAMED) or context & KIND == GIT_MODULES:
            why = self._completes(parent, key)
        if why:
            return why
        if source:
            return self._moved(path, source, classify(context, key, True, link)) if directory else ""
        if directory or key in GIT_NAMES:
            self._note(path, parent, key, directory)
        return ""

    # ------------------------------------------------------------ what configuration names in a work tree

    def _named(self, beside: Beside, path: str, kind: str, source: str, *, likely: bool) -> str:
        """``likely``: it is made as git makes a file or a directory of a work tree."""
        for tree, name, way, linked in beside.places(path):
            rest = path[len(tree) + 1 :] if tree else path
            if not self._is_work_tree(tree, rest, linked):
                continue
            if way:
                if kind == "symlink" or (source and self._is_there(f"{source}/{way}")):
                    return f"{name}: {REASON}"
            elif not (likely and self._tips and self._is_committed(path, kind, rest)):
                return REASON
        parent, _, name = path.rpartition("/")
        key = fold(name)
        layout = key in LAYOUT and is_git_layout({*self._layout(parent), key})
        if key in GIT_NAMES or layout:
            for there in beside.of(parent, linked=not layout and kind != "directory"):
                own = layout and fold(there[len(parent) :].strip("/").partition("/")[0]) in BY_LAYOUT
                if not own and self._is_there(there):
                    return f"it would become a work tree with {there}: {REASON}"
        return ""

    def _is_work_tree(self, tree: str, rest: str, linked: bool) -> bool:
        git = f"{tree}/.git" if tree else ".git"
        if self._is_there(git):
            return not linked or not stat.S_ISDIR(stat_below(self._root_fd, git).st_mode)
        if linked:
            return False
        # What git obeys in a bare repository anyway has rules of its own.
        return fold(rest.partition("/")[0]) not in BY_LAYOUT and is_git_layout(self._layout(tree))

    # ------------------------------------------------------------ one name

    def _name(
        self, path: str, context: int, above: str, key: str, kind: str, target: str, source: str, hard: bool
    ) -> str:
        directory, link = kind == "directory", kind == "symlink"
        parent, _, name = path.rpartition("/")
        if context == _HOOKS:
            sample = kind == "file" and key.endswith(".sample")
            return "" if sample or REFUSED in key else f"{HOOK}: {name}"
        if context == _EMPTY:
            return _ADDRESS
        if kind == "fifo" and (context == DATA or (context >= 0 and context & NAMED)):
            return "git outside would wait until its other end is opened"
        if context < 0:
            away = link and context == DATA and "annex" not in map(fold, path.split("/"))  # git-annex(1) makes links
            return "it is a symbolic link, and git outside would write or remove what it leads to" if away else ""
        if context & KIND in (TREE, PACKAGE) and not context & NAMED:  # what holds in a repository by its layout
            obeyed = above in _OBEYED_WHOLE and not (kind == "file" and key.endswith(".sample"))
            if obeyed and is_git_layout(self._layout(parent.rpartition("/")[0])):
                return f"{HOOK}: {name}" if above == "hooks" else _ADDRESS
            if key in BY_LAYOUT and is_git_layout(self._layout(parent)):
                context = GIT
        code = classify(context, key, directory, link)
        if code not in (PROTECT, CHECKED):
            return ""
        row = tree_row(path)
        if row is not None and self._is_new(path) and key not in GIT_NAMES:
            return ""
        if row is not None and not row.check:
            return row.reason
        if link:
            probe = context & KIND == GIT_MODULES and is_probe_target(target) and len(key) == 7 and key[0] == "t"
            return "" if probe else "it is a symbolic link"
        if hard or kind not in ("file", "directory"):
            return "git makes no such thing there" if row is None else row.reason
        if source:
            return judge(self._root_fd, path, source)
        if directory:
            return "" if key in GIT_NAMES or (key in ("hooks", "branches") and not row) else reason(path)
        if key == "config.worktree" and context & KIND == GIT_LINKED and context & NAMED and parent in self._made:
            return ""  # git worktree add copies that of the main worktree (builtin/worktree.c); each write is judged
        if key in _BY_RENAME or not judged_by_content(key, above, row):
            return reason(path)
        if key in ("commondir", "gitdir") and context & KIND == GIT:
            return reason(path)
        if key == "commondir" and context & KIND == GIT_LINKED:
            return self._leads_out(f"{parent}/gitdir")
        return ""

    def _leads_out(self, backlink: str) -> str:
        """Is a work tree being added that is none of this workspace?

        git worktree add has written ``gitdir`` by then and makes ``commondir`` next (builtin/worktree.c): refused here
        it fails, and removes what it has made.  Later it would have ended with 0 beside a repository that is not whole.
        """
        why = judge(self._root_fd, backlink)
        if not why and self._was_put_aside(backlink, {}):  # last: the guard may be doing that
            why = "it was put aside"
        return f"{_OUTER_WORKTREE}: {why}" if why else ""

    def _is_new(self, path: str) -> bool:
        """Does it lie in a repository that was made below the top in this session?"""
        return _is_below(self._repositories, path)

    def is_made(self, path: str) -> bool:
        """Does it lie in a directory that was let be made in this session?"""
        return _is_below(self._made, path)

    def replaced(self, path: str, *, below: bool = True) -> None:
        """The command removes a directory, or renames one from or to this path: what comes to be there is not its own.

        ``below``: directories in it may go along; one that is removed has none any more.
        """
        for known in (self._made, self._repositories):
            known.pop(path, None)
            for one in [one for one in known if one.startswith(f"{path}/")] if below else ():
                del known[one]

    def _note(self, path: str, parent: str, key: str, directory: bool) -> None:
        if directory:
            if len(self._made) >= _MOST_MADE:
                del self._made[next(iter(self._made))]
            self._made[path] = None
        if key in GIT_NAMES and parent in self._made:
            if len(self._repositories) >= _MOST_MADE:
                del self._repositories[next(iter(self._repositories))]
            self._repositories[parent] = None
            self._contexts.clear()
            self._contexts[""] = self._top

    # ------------------------------------------------------------ where it is

    def _context(self, path: str) -> tuple[int, str, str]:
        """(context of the children, folded name, why nothing may be made below)."""
        known = self._contexts.get(path)
        if known is not None:
            return known
        at = path.rfind("/")
        while at > 0 and path[:at] not in self._contexts:  # no recursion: a path has up to 2,000 names
            at = path.rfind("/", 0, at)
        found = self._contexts[path[: max(at, 0)]]
        while True:
            end = path.find("/", at + 1)
            place = path if end < 0 else path[:end]
            found = self._below(found, place)
            # What is below ``modules`` may become a repository.
            if f"/{place}/".find("/modules/") < 0:
                if len(self._contexts) >= _MOST_CONTEXTS:
                    self._contexts.clear()
                    self._contexts[""] = self._top
                self._contexts[place] = found
            if end < 0:
                return found
            at = end

    def _below(self, above: tuple[int, str, str], path: str) -> tuple[int, str, str]:
        """What ``_context`` says of ``path``, given what it says of the directory that holds it."""
        context, _above, why = above
        name = path.rpartition("/")[2]
        key = fold(name)
        if context in (_HOOKS, _EMPTY):
            return context, key, f"{HOOK}: {name}"  # git makes no directories there
        if why or context < 0:
            return context, key, why
        code = classify(context, key, True, False)
        if code >= 0 and code & KIND == GIT_MODULES and self._is_there(f"{path}/HEAD"):
            code = GIT | NAMED  # not a group of modules but one
        if code == PROTECT:
            if context & NAMED and context & KIND == GIT and key in ("hooks", "branches"):
                code = _HOOKS if key == "hooks" else _EMPTY
            elif not self._is_new(path):
                why = reason(path)
        return code, key, why

    def _is_there(self, path: str) -> bool:
        try:
            stat_below(self._root_fd, path)
        except OSError:
            return False
        return True

    def _layout(self, place: str) -> set[str]:
        base = f"{place}/" if place else ""
        return {name.lower() for name in ("HEAD", "objects", "refs", "commondir") if self._is_there(base + name)}

    def _completes(self, parent: str, key: str) -> str:
        """Why a directory must not become a repository by its layout through this name."""
        keys = self._layout(parent)
        if is_git_layout(keys) or not is_git_layout({*keys, key}):
            return ""
        return judge_repository(self._root_fd, parent)

    # ------------------------------------------------------------ a directory that is renamed

    def _moved(self, path: str, source: str, context: int) -> str:
        before = self._context(source)[0]
        plain = (TREE, PACKAGE)
        if context < 0 or context == before or (before >= 0 and context in plain):
            return ""
        left = _MOST_WALKED
        stack = [(source, path, context)]
        while stack:
            real, place, context = stack.pop()
            try:
                names = self._list(real, left)
            except OSError as error:
                return f"it cannot be looked at ({error.strerror})"
            left -= len(names)
            if left < 0:
                return f"it holds more than {_MOST_WALKED} names, too many to look at"
            keys = {key for _name, key, _directory, _link in names}
            if context & KIND == GIT_MODULES and "head" in keys:
                context = GIT | NAMED
            elif not context & NAMED and is_git_layout(keys):
                why = judge_repository(self._root_fd, real)
                if why:
                    return why
            for name, key, directory, link in names:
                code = classify(context, key, directory, link)
                if code in (PROTECT, CHECKED):
                    why = judge(self._root_fd, f"{place}/{name}", f"{real}/{name}")
                    if why:
                        return f"{place}/{name}: {why}"
                elif directory and code >= 0:
                    stack.append((f"{real}/{name}", f"{place}/{name}", code))
        return ""

    def _list(self, path: str, most: int) -> list[tuple[str, str, bool, bool]]:
        """(name, folded, directory, link) of what a directory holds, at most one more than ``most``."""
        fd = open_below(self._root_fd, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as listing:
                return [
                    (entry.name, fold(entry.name), entry.is_dir(follow_symlinks=False), entry.is_symlink())
                    for _, entry in zip(range(most + 1), listing, strict=False)
                ]
        finally:
            os.close(fd)


def _is_below(known: dict[str, None], path: str) -> bool:
    at = path.find("/")
    while at > 0:
        if path[:at] in known:
            return True
        at = path.find("/", at + 1)
    return False
