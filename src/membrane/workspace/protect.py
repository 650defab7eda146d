"""Names an agent must not write, because something outside the sandbox executes or trusts them later.

Theory of operation
-------------------
``PROTECTED`` is the table, one reason per row.  A row is found by *where* a name stands, not by its path: a walk
carries a context (an ordinary directory, a git directory, the inside of a package tree, ``.claude``, ...), and
``classify`` says for one name in one context whether it is protected, and in which context its children stand.
A git directory is known by its name ``.git``, by its place (``worktrees/NAME``) or by its layout as git itself
tests it (setup.c ``is_git_directory``: ``HEAD`` with ``objects`` and ``refs``, or ``HEAD`` with ``commondir``), so bare
repositories and renamed ones are found too.  Names are compared folded, because the tree may lie on (or be copied
to) a file system that ignores case, normal form or trailing dots.

Names that exist at the start are bound read-only, and every directory between them and the workspace is pinned
(a mount point can not be renamed): otherwise ``mv .git g; mkdir -p .git/hooks`` goes around the protection.
``existing`` adds what the names point to: symbolic links, and what configuration names (``programs``).

Names that appear during a session are judged and moved out by ``workspace.judge``.
"""

from __future__ import annotations

import os
import stat

from ..plan.model import ScanHit
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

LARGEST_READ = 1 << 20  # bytes of a file that a validator looks at
MOST_LINKS = 40  # symbolic links followed in one path, as the kernel (path_resolution(7))
MOST_HOOKS = 4096  # entries of a hooks directory that are looked at


class Protected(Value):
    """One row: ``name`` in any directory (or, for "git", in any git directory), and why."""

    name: str  # one or two components; one "*" in the last
    where: Literal["tree", "git"]
    reason: str


HOOK = "git runs it on the next commit, checkout, merge, push"
CONFIG = "git runs programs named in it (fsmonitor, hooksPath, sshCommand, pager, filters)"
REDIRECT = "git takes configuration and hooks from where it points"
_EDITOR = "the editor runs tasks and tools named in it"
_AGENT = "the agent runs hooks and servers named in it, outside of the sandbox"
_SHELL = "a shell that starts here or in a home directory runs it"
_TOOLS = "a shell prompt hook chooses or runs programs by it"

PROTECTED = (
    Protected("hooks", "git", HOOK),
    Protected("config", "git", CONFIG),
    Protected("config.worktree", "git", CONFIG),
    Protected("info/attributes", "git", "it puts files under filter, diff and merge programs"),
    Protected("commondir", "git", REDIRECT),
    Protected("gitdir", "git", "git worktree repair and prune trust it"),
    Protected("rebase-merge/git-rebase-todo", "git", "git rebase --continue runs its exec lines"),
    Protected(".gitmodules", "tree", "git clones what it names and checks out where it says"),
    Protected(".gitconfig", "tree", CONFIG),
    Protected(".husky", "tree", HOOK),
    Protected(".bashrc", "tree", _SHELL),
    Protected(".bash_profile", "tree", _SHELL),
    Protected(".bash_login", "tree", _SHELL),
    Protected(".bash_logout", "tree", _SHELL),
    Protected(".bash_aliases", "tree", _SHELL),
    Protected(".profile", "tree", _SHELL),
    Protected(".zshrc", "tree", _SHELL),
    Protected(".zprofile", "tree", _SHELL),
    Protected(".zshenv", "tree", _SHELL),
    Protected(".zlogin", "tree", _SHELL),
    Protected(".zlogout", "tree", _SHELL),
    Protected(".ripgreprc", "tree", "ripgrep runs the preprocessor named in it"),
    Protected(".envrc", "tree", _TOOLS),
    Protected(".tool-versions", "tree", _TOOLS),
    Protected("mise.toml", "tree", _TOOLS),
    Protected("mise.local.toml", "tree", _TOOLS),
    Protected(".mise.toml", "tree", _TOOLS),
    Protected(".mise.local.toml", "tree", _TOOLS),
    Protected(".mise", "tree", _TOOLS),
    Protected(".config/mise", "tree", _TOOLS),
    Protected(".config/mise.toml", "tree", _TOOLS),
    Protected(".vscode", "tree", _EDITOR),
    Protected(".idea", "tree", _EDITOR),
    Protected(".zed", "tree", _EDITOR),
    Protected(".devcontainer", "tree", _EDITOR),
    Protected(".devcontainer.json", "tree", _EDITOR),
    Protected(".exrc", "tree", _EDITOR),
    Protected(".nvimrc", "tree", _EDITOR),
    Protected(".nvim.lua", "tree", _EDITOR),
    Protected(".mcp.json", "tree", _AGENT),
    Protected(".claude/settings*.json", "tree", _AGENT),
    Protected(".claude/commands", "tree", _AGENT),
    Protected(".claude/agents", "tree", _AGENT),
    Protected(".claude/hooks", "tree", _AGENT),
    Protected(".claude/skills", "tree", _AGENT),
    Protected(".claude/plugins", "tree", _AGENT),
    Protected(".codex", "tree", _AGENT),
    Protected(".cursor", "tree", _AGENT),
    Protected(".gemini/settings.json", "tree", _AGENT),
    Protected(".gemini/.env", "tree", _AGENT),
    Protected(".gemini/commands", "tree", _AGENT),
    Protected(".gemini/extensions", "tree", _AGENT),
    Protected(".opencode", "tree", _AGENT),
    Protected("opencode.json", "tree", _AGENT),
    Protected("opencode.jsonc", "tree", _AGENT),
    Protected(".aider.conf.yml", "tree", _AGENT),
    Protected(".amp", "tree", _AGENT),
    Protected(".membrane.yaml", "tree", "it is the policy of the next run"),
)

# Trees that package managers unpack: editor and agent configuration inside is somebody's published package, is not
# read unless that directory itself is opened, and taking it away breaks the installation.  Git names still count.
PACKAGES = frozenset({"node_modules", "bower_components", "site-packages", "dist-packages", "vendor"})

# ---------------------------------------------------------------- names and contexts

# What ``classify`` answers: a context for the children (>= 0), or one of these.
PROTECT = -1  # protected, with everything below
DATA = -2  # objects, refs and logs of a repository: nothing below is protected
SWEEP = -3  # protected, but judged only when the session has ended

TREE, PACKAGE, GIT, GIT_INFO, GIT_MODULES, GIT_WORKTREES, GIT_REBASE = range(7)
FIRST_PARENT = 7  # further contexts: directories of the table that hold protected names
KIND = 0xFF
# Set inside a directory that is *named* ``.git``.  Only there do git's names replace those of the tree: anybody can
# plant HEAD, objects and refs in an ordinary directory, so a repository by layout adds names and never takes any away.
NAMED = 0x100

GIT_NAMES = frozenset({".git", "git~1"})  # the second is the 8.3 alias (git path.c is_ntfs_dotgit)
_GIT_PROTECTED = frozenset({"hooks", "config", "config.worktree", "commondir", "gitdir"})
_GIT_CHILDREN = {
    "info": GIT_INFO,
    "modules": GIT_MODULES,
    "worktrees": GIT_WORKTREES,
    "rebase-merge": GIT_REBASE,
}
_GIT_DATA = frozenset({"objects", "refs", "logs", "lfs", "annex"})
LAYOUT = frozenset({"head", "objects", "refs", "commondir"})


def _tables() -> tuple[dict[str, int], tuple[tuple[frozenset[str], tuple[tuple[str, str], ...]], ...]]:
    """The "tree" rows as lookups: first component -> code, and per parent its exact and wildcard names."""
    first: dict[str, int] = dict.fromkeys(PACKAGES, PACKAGE)
    parents: dict[str, tuple[set[str], list[tuple[str, str]]]] = {}
    for row in PROTECTED:
        if row.where == "tree":
            parent, slash, name = row.name.partition("/")
            if not slash:
                first[parent] = PROTECT
                continue
            exact, wild = parents.setdefault(parent, (set(), []))
            before, star, after = name.partition("*")
            if star:
                wild.append((before, after))
            else:
                exact.add(name)
    children = []
    for number, (parent, (exact, wild)) in enumerate(parents.items()):
        first[parent] = FIRST_PARENT + number
        children.append((frozenset(exact), tuple(wild)))
    return first, tuple(children)


_TREE, _CHILDREN = _tables()

# Code points that HFS+ and ext4 casefold ignore in names (Unicode Default_Ignorable_Code_Point).
_IGNORED = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip


def fold(name: str) -> str:
    """The form in which two names are the same file on some file system that ignores differences.

    Case (all of them), Unicode normal form and ignorable code points (HFS+, ext4 casefold), trailing dots and
    spaces and ``:stream`` suffixes (NTFS; git path.c ``is_ntfs_dotgit``).
    """
    if name.isascii():
        key = name.lower()
    else:
        import unicodedata

        shown = [c for c in name if not any(low <= ord(c) <= high for low, high in _IGNORED)]
        key = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", "".join(shown)).casefold())
    if ":" in key:
        key = key.partition(":")[0]
    return key.rstrip(". ")


def classify(context: int, key: str, directory: bool, link: bool) -> int:
    """What a name is: ``PROTECT``, ``DATA``, ``SWEEP``, or the context of its children.

    Args:
        context: of the directory that holds it, settled.
        key: its folded name.
        directory: it is a directory itself.
        link: it is a symbolic link.
    """
    if key in GIT_NAMES:
        return GIT | NAMED if directory else PROTECT  # a file or a link that redirects git
    if context == TREE:
        return _in_tree(key, directory, link)
    kind, named = context & KIND, context & NAMED
    if kind == GIT:
        if key in _GIT_PROTECTED:
            return PROTECT
        if key in _GIT_CHILDREN and (directory or link):
            return PROTECT if link else _GIT_CHILDREN[key] | named
        if named and key in _GIT_DATA:
            return DATA
    elif kind == GIT_INFO and key == "attributes":
        return PROTECT
    elif kind in (GIT_MODULES, GIT_WORKTREES):
        if link or (not named and _TREE.get(key) == PROTECT):
            return PROTECT
        return (GIT_MODULES if kind == GIT_MODULES else GIT) | named
    elif kind == GIT_REBASE and key == "git-rebase-todo":
        return SWEEP
    elif kind >= FIRST_PARENT:
        exact, wild = _CHILDREN[kind - FIRST_PARENT]
        if key in exact or any(key.startswith(before) and key.endswith(after) for before, after in wild):
            return PROTECT
    if named:
        return PACKAGE | NAMED
    return PACKAGE if kind == PACKAGE else _in_tree(key, directory, link)


def _in_tree(key: str, directory: bool, link: bool) -> int:
    code = _TREE.get(key, TREE)
    if code <= TREE or directory:
        return code
    return PROTECT if link and code >= FIRST_PARENT else TREE


def is_git_config(path: str) -> bool:
    """Is it the ``config`` of a ``.git`` itself, not that of a submodule or of a worktree in it?"""
    parent, _, name = path.rpartition("/")
    return fold(name) == "config" and fold(parent.rpartition("/")[2]) in GIT_NAMES


def is_git_layout(keys: set[str]) -> bool:
    """Would git take a directory with these folded names for a repository (setup.c ``is_git_directory``)?"""
    return "head" in keys and ("commondir" in keys or ("objects" in keys and "refs" in keys))


def settled(context: int, keys: set[str]) -> int:
    """The context of a directory once its own names are known."""
    kind = context & KIND
    if kind in (GIT, GIT_INFO, GIT_WORKTREES, GIT_REBASE) or not is_git_layout(keys):
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
        gits: git directories inside it, relative.
        hits: the protected hits of the walk.

    Only paths inside the workspace come out: a link never adds a mount elsewhere.  Configuration that can not be
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
        if hit.link:
            follow(_parent(hit.path), _readlink(f"{root}/{hit.path}"))
        elif hit.directory and fold(hit.path.rpartition("/")[2]) == "hooks":
            for name, target in _links_in(f"{root}/{hit.path}"):
                follow(f"{hit.path}/{name}".rpartition("/")[0], target)
    for base, target, kind in named(root, gits):
        follow(base, target, kind)
    return Existing(tuple(out.values()), tuple(sorted(missing)))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


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


def read_bounded(fd: int) -> bytes:
    """At most ``LARGEST_READ`` bytes and one more."""
    data = b""
    while len(data) <= LARGEST_READ:
        piece = os.read(fd, LARGEST_READ + 1 - len(data))
        if not piece:
            break
        data += piece
    return data
