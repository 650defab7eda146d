"""Names an agent must not write, because something outside the sandbox executes or trusts them later.

Theory of operation
-------------------
Two tables: ``names`` of what tools obey in a work tree, ``gitdir`` of what git writes in its own directory, where
everything else is protected.  A row is found by *where* a name is, not by its path: a walk
carries a context (an ordinary directory, a git directory, the inside of a package tree, ``.claude``, ...), and
``classify`` says for one name in one context whether it is protected, and in which context its children stand.
A git directory is known by its name ``.git``, by its place (``worktrees/NAME``) or by its layout as git itself
tests it (setup.c ``is_git_directory``: ``HEAD`` with ``objects`` and ``refs``, or ``HEAD`` with ``commondir``), so bare
repositories and renamed ones are found too.  Names are compared folded, because the tree may lie on (or be copied
to) a file system that ignores case, normal form or trailing dots.

Names that exist at the start are bound read-only, and every directory between them and the workspace is pinned
(a mount point cannot be renamed): otherwise ``mv .git g; mkdir -p .git/hooks`` goes around the protection.
``existing`` adds what the names point to: symbolic links, and what configuration names (``programs``).

``PROTECTED`` is all rows together, for those who explain a name.  Names that appear during a session are judged by
``workspace.judge`` and put aside by ``workspace.guard``.
"""

from __future__ import annotations

import os
import stat

from ..plan.model import ScanHit
from ..value import Value
from .gitdir import DATA_NAMES as GIT_DATA_NAMES
from .gitdir import NEVER, REFUSED, find
from .names import TREE_ROWS, Protected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_READ = 1 << 16  # bytes of a file that a validator looks at; a larger one is not benign
LARGEST_CONFIG = 1 << 20  # bytes of configuration that is followed at the start
MOST_LINKS = 40  # symbolic links followed in one path, as the kernel (path_resolution(7))
MOST_HOOKS = 4096  # entries of a hooks directory that are looked at


PROTECTED = (
    *TREE_ROWS,
    Protected("hooks", "git", "git", "runs it on the next commit, checkout, merge, push", "githooks(5)"),
    Protected("config", "git", "git", "runs programs named in it", "git-config(1)"),
    Protected("config.worktree", "git", "git", "runs programs named in it", "git-worktree(1)"),
    Protected("info/attributes", "git", "git", "puts files under programs by it", "gitattributes(5)"),
    *(Protected(name, "git", "git", does, "gitrepository-layout(5)") for name, does in NEVER.items()),
    Protected("rebase-merge/git-rebase-todo", "git", "git", "runs exec lines when the rebase goes on", "git-rebase(1)"),
    Protected("rebase-merge/strategy", "git", "git", "runs git-merge-STRATEGY when the rebase goes on", "sequencer.c"),
    Protected("sequencer/opts", "git", "git", "runs git-merge-STRATEGY when the picks go on", "sequencer.c"),
    Protected("rebase-apply/apply-opt", "git", "git", "hands it to git apply when git am goes on", "builtin/am.c"),
)

# Trees that package managers unpack: editor and agent configuration inside is a published package, is not
# read unless that directory itself is opened, and taking it away breaks the installation.  Git names still count.
PACKAGES = frozenset({"node_modules", "bower_components", "site-packages", "dist-packages", "vendor"})

# ---------------------------------------------------------------- names and contexts

# What ``classify`` answers: a context for the children (>= 0), or one of these.
PROTECT = -1  # protected, with everything below
DATA = -2  # objects, refs and logs of a repository: nothing below is protected
CHECKED = -3  # its content decides, and it stays writable: state of a rebase, a pick, a bisect, a choice of tools

TREE, PACKAGE, GIT, GIT_LINKED, GIT_INFO, GIT_MODULES, GIT_WORKTREES, GIT_MERGE, GIT_APPLY, GIT_SEQUENCER = range(10)
GIT_WRITTEN = 10  # logs and the like: git writes to files there by their names, also through links
GIT_OBJECTS = 11  # git packs and removes what is in its directories
FIRST_PARENT = 12  # further contexts: directories of the table that hold protected names
KIND = 0xFF
# Set inside a directory that is *named* ``.git``.  Only there do git's names replace those of the tree, and is what
# git does not write protected: any program can plant HEAD, objects and refs in an ordinary directory, so a repository
# by layout adds the names that git obeys and never takes any away.
NAMED = 0x100

GIT_NAMES = frozenset({".git", "git~1"})  # the second is the 8.3 alias (git path.c is_ntfs_dotgit)
GIT_DIRECTORIES = (GIT, GIT_LINKED)
BY_LAYOUT = frozenset({"hooks", "config", "config.worktree", "commondir", "gitdir", "remotes", "branches"})
_PLACES = {
    "info": GIT_INFO,
    "modules": GIT_MODULES,
    "worktrees": GIT_WORKTREES,
    "rebase-merge": GIT_MERGE,
    "rebase-apply": GIT_APPLY,
    "sequencer": GIT_SEQUENCER,
}
_LINKED = GIT_DATA_NAMES | {"packed-refs"}
# Data in which a link would have git outside write or remove something elsewhere.
_DATA = {
    **dict.fromkeys(("logs", "rr-cache", "notes_merge_worktree", "lint-staged"), GIT_WRITTEN),
    "objects": GIT_OBJECTS,
}
_PLACE_OF = {
    GIT: "git",
    GIT_LINKED: "linked",
    GIT_INFO: "info",
    GIT_MERGE: "rebase-merge",
    GIT_APPLY: "rebase-apply",
    GIT_SEQUENCER: "sequencer",
}
LAYOUT = frozenset({"head", "objects", "refs", "commondir"})


class _Names:
    """The protected names of one kind of directory: exact ones with their codes, and patterns (before, after)."""

    __slots__ = ("ends", "exact", "wild")

    def __init__(self) -> None:
        self.exact: dict[str, int] = {}
        self.wild: list[tuple[str, str]] = []
        self.ends: tuple[str, ...] = ()

    def look(self, key: str) -> int:
        """The code of a folded name; ``TREE`` when it is none of them."""
        code = self.exact.get(key)
        if code is not None:
            return code
        if key.endswith(self.ends):
            for before, after in self.wild:
                if key.startswith(before) and key.endswith(after) and len(key) >= len(before) + len(after):
                    return PROTECT
        return TREE


def _tables() -> tuple[_Names, tuple[_Names, ...]]:
    """The "tree" rows as lookups: of any directory, and of each directory that a row names on the way."""
    first = _Names()
    first.exact.update(dict.fromkeys(PACKAGES, PACKAGE))
    inner: list[_Names] = []
    for row in TREE_ROWS:
        *above, name = row.name.lower().split("/")
        names = first
        for part in above:
            code = names.exact.get(part)
            if code is None:
                code = names.exact[part] = FIRST_PARENT + len(inner)
                inner.append(_Names())
            names = inner[code - FIRST_PARENT]
        before, star, after = name.partition("*")
        if star:
            names.wild.append((before, after))
            names.ends = (*names.ends, after)
        else:
            names.exact[name] = CHECKED if row.check else PROTECT
    return first, tuple(inner)


_TREE, _CHILDREN = _tables()

# Code points that HFS+ and ext4 casefold ignore in names (Unicode Default_Ignorable_Code_Point).
_IGNORED = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip


# The letters whose simple upper or lower form (UnicodeData.txt) is ASCII though their folded one is not.
_SIMPLE = {0x130: "i", 0x131: "i"}


def fold(name: str) -> str:
    """The form in which two names are the same file on some file system that ignores differences.

    Case (all of them, by the lower and by the upper form: to exFAT, by its recommended up-case table, a dotless i is
    an I), Unicode normal form and ignorable code points (HFS+, ext4 casefold), trailing dots and spaces and
    ``:stream`` suffixes (NTFS; git path.c ``is_ntfs_dotgit``).
    """
    if name.isascii():
        key = name.lower()
    else:
        import unicodedata

        shown = [c for c in name if not any(low <= ord(c) <= high for low, high in _IGNORED)]
        whole = "".join(shown).translate(_SIMPLE)
        key = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", whole).casefold())
    if ":" in key:
        key = key.partition(":")[0]
    return key.rstrip(". ")


def classify(context: int, key: str, directory: bool, link: bool) -> int:
    """What a name is: ``PROTECT``, ``DATA``, ``CHECKED``, or the context of its children.

    Args:
        context: of the directory that holds it, settled; below one of the answers it is the same.
        key: its folded name.
        directory: it is a directory itself.
        link: it is a symbolic link.
    """
    if key in GIT_NAMES:
        return GIT | NAMED if directory else PROTECT  # a file or a link that redirects git
    if context == TREE:
        return _in_tree(key, directory, link)
    if context < 0:
        return context
    kind, named = context & KIND, context & NAMED
    if kind in _PLACE_OF:
        if named:
            return _in_git(kind, key, directory, link)
        code = _by_layout(kind, key, directory, link)
        if code != TREE:
            return code
    elif kind in (GIT_WRITTEN, GIT_OBJECTS):
        if link:
            return DATA if REFUSED in key else PROTECT
        return context if directory and kind == GIT_WRITTEN else DATA
    elif kind in (GIT_MODULES, GIT_WORKTREES):
        if REFUSED in key:
            return DATA
        if link or (not named and _TREE.look(key) in (PROTECT, CHECKED)):
            return PROTECT
        if not directory and named and kind == GIT_WORKTREES:
            return PROTECT
        return (GIT_MODULES if kind == GIT_MODULES else GIT_LINKED) | named
    elif kind >= FIRST_PARENT:
        code = _CHILDREN[kind - FIRST_PARENT].look(key)
        if code == PROTECT or (code >= FIRST_PARENT and directory):
            return code
        if code >= FIRST_PARENT:
            return PROTECT  # a link, or a file that says where the directory is, as ``.jj/repo`` may
        if code == CHECKED and not directory:
            return PROTECT if link else CHECKED
    if named:
        return PACKAGE | NAMED
    return PACKAGE if kind == PACKAGE else _in_tree(key, directory, link)


def _in_tree(key: str, directory: bool, link: bool) -> int:
    code = _TREE.look(key)
    if code == CHECKED:
        return TREE if directory else PROTECT if link else CHECKED  # what a link leads to may change unseen
    if code <= TREE or directory:
        return code
    return PROTECT if link and code >= FIRST_PARENT else TREE


def _in_git(kind: int, key: str, directory: bool, link: bool) -> int:
    """In a directory that is named ``.git``, or a part of one: only what git writes (``gitdir``)."""
    if REFUSED in key:
        return DATA  # put aside by the guard: git obeys no such name
    row = find(_PLACE_OF[kind], key)
    if row == "file":
        # HEAD may be a link (git-config(1), core.preferSymlinkRefs): git replaces it and does not write through it.
        plain = not directory and (not link or key == "head")
        return PACKAGE | NAMED if plain else PROTECT
    if row == "data":
        return _DATA[key] | NAMED if key in _DATA and directory else DATA if directory else PROTECT
    if row == "checked":
        return PROTECT if directory or link else CHECKED
    if row == "probe":
        return PROTECT if directory else PACKAGE | NAMED
    if row == "place" and directory:
        return _PLACES[key] | NAMED
    return PROTECT


def _by_layout(kind: int, key: str, directory: bool, link: bool) -> int:
    """In a repository that is one by its layout only: the names that git obeys, and ``TREE`` for all else."""
    if kind in GIT_DIRECTORIES:
        if key in BY_LAYOUT:
            return PROTECT
        if key in _PLACES and (directory or link):
            return PROTECT if link else _PLACES[key]
    elif kind == GIT_INFO and key == "attributes":
        return PROTECT
    return CHECKED if not directory and find(_PLACE_OF[kind], key) == "checked" else TREE


def is_git_config(path: str) -> bool:
    """Is it the ``config`` of a ``.git`` itself, not that of a submodule or of a worktree in it?"""
    parent, _, name = path.rpartition("/")
    return fold(name) == "config" and fold(parent.rpartition("/")[2]) in GIT_NAMES


def is_git_layout(keys: set[str]) -> bool:
    """Would git take a directory with these folded names for a repository (setup.c ``is_git_directory``)?"""
    return "head" in keys and ("commondir" in keys or ("objects" in keys and "refs" in keys))


def root_context(root: str) -> int:
    """The context of a tree that is watched: git's own names hold where it is a git directory, or a part of one.

    The common directory of a linked worktree, or what a rule mounts.  Any other name than ``.git`` must end in it, and
    the directory look like a repository.
    """
    parts = root.split("/")
    for number in range(len(parts) - 1, -1, -1):
        if fold(parts[number]) in GIT_NAMES:
            context = GIT | NAMED
            for at in range(number + 1, len(parts)):
                context = classify(context, fold(parts[at]), True, False)
                if context < 0:
                    return GIT | NAMED  # nothing that git reads a name from; what holds for a repository is stricter
                if context & KIND == GIT_MODULES and os.path.lexists("/".join((*parts[: at + 1], "HEAD"))):
                    context = GIT | NAMED
            return context
    if not fold(parts[-1]).endswith(".git"):
        return TREE
    return GIT | NAMED if all(os.path.lexists(f"{root}/{name}") for name in ("HEAD", "objects", "refs")) else TREE


def settled(context: int, keys: set[str]) -> int:
    """The context of a directory once its own names are known."""
    kind = context & KIND
    if kind in _PLACE_OF or kind in (GIT_WORKTREES, GIT_WRITTEN, GIT_OBJECTS) or not is_git_layout(keys):
        return context
    return GIT | (context & NAMED)


def pins(hits: Iterable[ScanHit], also: Iterable[str] = ()) -> tuple[str, ...]:
    """Directories to bind onto themselves, shallow first, before the hits are bound: the ancestors of the hits, and
    the directories in ``also`` with their ancestors.
    """
    found: set[str] = set()
    closed: set[str] = set()  # bound themselves: below a read-only one nothing can be renamed
    for hit in hits:
        if hit.directory:
            closed.add(hit.path)
        _ancestors(hit.path, found)
    for path in also:
        found.add(path)
        _ancestors(path, found)
    return tuple(sorted(found - closed, key=lambda path: (path.count("/"), path)))


def _ancestors(path: str, into: set[str]) -> None:
    at = path.rfind("/")
    while at > 0:
        parent = path[:at]
        if parent in into:
            return
        into.add(parent)
        at = path.rfind("/", 0, at)


# ---------------------------------------------------------------- what exists at the start


class Existing(Value):
    """What the protected names of the start lead to."""

    hits: tuple[ScanHit, ...]
    missing: tuple[str, ...]  # paths that are named but do not exist: protected when they appear


def existing(root: str, gits: Iterable[str], hits: Iterable[ScanHit]) -> Existing:
    """Follow what is there: links, hook directories, included configuration, programs that configuration names.

    Args:
        root: the workspace, resolved.
        gits: git directories inside it, relative; absolute, as in ``hits``: of a repository that is elsewhere.
        hits: the protected hits of the walk.

    Only paths inside the workspace come out: a link never adds a mount elsewhere.  Configuration that cannot be
    parsed adds nothing; git refuses it as well.
    """
    from .programs import named

    out: dict[str, ScanHit] = {}
    missing: set[str] = set()

    def follow(base: str, target: str, kind: str = "any") -> None:
        path, links = _trace(root, base, target)
        for link in links:
            out[link] = ScanHit(link, "protect", False, True)
        if path is None or path == "":
            return
        try:
            mode = os.lstat(f"{root}/{path}").st_mode
        except OSError:
            if kind != "there":
                missing.add(path)
            return
        if kind != "any" and stat.S_ISDIR(mode):
            return
        out.setdefault(path, ScanHit(path, "protect", stat.S_ISDIR(mode)))

    for hit in hits:
        if hit.link and fold(hit.path.rpartition("/")[2]) in _LINKED and _in_named(hit.path):
            continue  # a git directory of links to another's data, as repo(1) and git-new-workdir make it
        if hit.link and hit.path.startswith("/"):
            target = _readlink(hit.path)
            follow("", os.path.join(_parent(hit.path), target) if target else "")
        elif hit.link:
            follow(_parent(hit.path), _readlink(f"{root}/{hit.path}"))
        elif hit.directory and fold(hit.path.rpartition("/")[2]) == "hooks":
            for name, target in _links_in(f"{root}/{hit.path}"):
                follow(f"{hit.path}/{name}".rpartition("/")[0], target)
    for base, target, kind in named(root, gits):
        follow(base, target, kind)
    return Existing(tuple(out.values()), tuple(sorted(missing)))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _in_named(path: str) -> bool:
    return fold(_parent(path).rpartition("/")[2]) in GIT_NAMES


def _readlink(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _links_in(path: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(path) as listing:
            names = [entry.name for _, entry in zip(range(MOST_HOOKS), listing, strict=False) if entry.is_symlink()]
    except OSError:
        return []
    return [(name, _readlink(f"{path}/{name}")) for name in names]


def _trace(root: str, base: str, target: str) -> tuple[str | None, list[str]]:
    """Follow ``target`` from the directory ``base``: (path inside or None, links passed), all relative to ``root``."""
    links: list[str] = []
    if not target or target.startswith("~") or "\0" in target:
        return None, links
    at = base.split("/") if base else []
    todo = target.split("/")[::-1]
    while todo:
        part = todo.pop()
        if part in ("", "."):
            if part == "" and target.startswith("/"):
                # An absolute target: inside only when it goes through the workspace's own path.
                whole = "/".join(reversed(todo))
                prefix = root.strip("/") + "/"
                if not (whole + "/").startswith(prefix):
                    return _resolved(root, "/" + whole), links
                at, todo, target = [], whole[len(prefix) :].split("/")[::-1], ""
            continue
        if part == "..":
            if not at:
                return _resolved(root, "/".join([root, "..", *reversed(todo)])), links
            at.pop()
            continue
        at.append(part)
        path = "/".join(at)
        try:
            mode = os.lstat(f"{root}/{path}").st_mode
        except OSError:
            return (
                None if ".." in todo else "/".join([*at, *(p for p in reversed(todo) if p not in ("", "."))])
            ), links
        if stat.S_ISLNK(mode):
            links.append(path)
            if len(links) > MOST_LINKS:
                return None, links
            at.pop()
            target = _readlink(f"{root}/{path}")
            todo += target.split("/")[::-1]
    return "/".join(at), links


def _resolved(root: str, path: str) -> str | None:
    real = os.path.realpath(path)
    return real[len(root) + 1 :] if real.startswith(root.rstrip("/") + "/") else None


def read_bounded(fd: int, most: int) -> bytes:
    """At most ``most`` bytes and one more."""
    data = b""
    while len(data) <= most:
        piece = os.read(fd, most + 1 - len(data))
        if not piece:
            break
        data += piece
    return data
