"""Names that appeared during a session: benign, or why they must go.

Theory of operation
-------------------
``judge`` says why a protected name must go (``aside`` says how).  Benign is only what git itself writes; editor, agent
and shell configuration never is.  There is a validator for each name of the tables.

It runs outside of the sandbox, with the rights of the caller, on a tree that the command may be changing: names are
opened by ``below``, and nothing is read without a bound.
"""

from __future__ import annotations

import os
import stat

from .addresses import Trees
from .below import open_below, open_file, path_of, stat_below
from .gitdir import NEVER, checked, find, fits
from .names import HOOK, TREE_ROWS, VERSION_FILES
from .protect import (
    DATA,
    GIT_DIRECTORIES,
    GIT_LINKED,
    GIT_MODULES,
    GIT_NAMES,
    KIND,
    LARGEST_READ,
    LAYOUT,
    MOST_HOOKS,
    NAMED,
    PACKAGE,
    TREE,
    classify,
    fold,
    read_bounded,
    root_context,
    settled,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .names import Protected

LARGEST_INDEX = 32 << 20  # bytes of an index (0.5 s)
LONGEST_PART = 255  # characters of one component of a path that a pointer names: NAME_MAX (limits.h)
DEEPEST_TARGET = 128  # components of it, as seen from the workspace
LONGEST_PATH = 4096  # bytes: PATH_MAX
# Of a worktree that lies outside: refused; and so for now, as git makes its ``.git`` file a moment later.
LEADS_OUT = "it leads to something else than a worktree of this repository"
UNANSWERED = "the worktree that it leads to does not lead back"
MOST_LISTED = 2_000  # names of a directory that are compared with those of a repository
MOST_UNMADE = 16  # components of a pointer's target that need not be there yet

REDIRECT = "git " + NEVER["commondir"]
_STATES = ("rebase-merge", "rebase-apply", "sequencer")
_STATE_NAMES = frozenset(fold(name) for place in ("git", *_STATES) for name in checked(place))
# Rows of tools whose new files can be benign; where they are there at the start they are read-only like any other.
_BY_CONTENT = frozenset({".gitmodules", ".jj/repo/store/git_target"})
_TREE_PARTS = tuple((row.name.lower().split("/"), row) for row in TREE_ROWS)
# What git obeys in a repository that is one by its layout.
_OBEYED = (
    *("config", "config.worktree", "commondir", "gitdir", "hooks", "remotes", "branches", "info/attributes"),
    *sorted(checked("git")),
    *(f"{place}/{name}" for place in _STATES for name in sorted(checked(place))),
)


class Holder:
    """Who keeps an eye on the content of what was judged; this one does not."""

    places = Trees()  # where addresses of git on this machine may lead

    def let_go(self, path: str) -> None:
        """The file will be opened."""

    def hold(self, fd: int, path: str) -> str:
        """It is open for reading, and will be read; what is said against it counts."""
        return ""

    def is_written(self, path: str) -> bool:
        """Is it open for writing?"""
        return False

    def is_same(self, path: str, status: os.stat_result) -> bool:
        """Was this file, which was not changed since, judged benign before?"""
        return False

    def is_benign(self, path: str, status: os.stat_result) -> None:
        """It was judged so."""

    def is_hidden(self, path: str) -> bool:
        """Does a rule hide this file of the work tree?"""
        return False


_NOBODY = Holder()


def judge(root_fd: int, path: str, source: str = "", holder: Holder = _NOBODY) -> str:
    """Why a protected name that appeared during the session must go; empty when it is benign.

    Args:
        root_fd: the workspace.
        path: relative to it, as the scan or the watcher reported it.
        source: where the file is now, when it is not there yet; ``path`` is the name that it would get.
        holder: gets each file before it is opened and before it is read.

    Benign is only what git itself writes in its directories.  A name that vanished is benign.  Whatever cannot be
    read is not.  Never follows a symbolic link, never blocks on a fifo, reads at most ``LARGEST_READ`` bytes,
    of an index ``LARGEST_INDEX``.
    """
    parent, _, name = path.rpartition("/")
    key, above = fold(name), fold(parent.rpartition("/")[2])
    real = source or path
    try:
        mode = stat_below(root_fd, real).st_mode
    except OSError as error:
        return "" if _is_gone(root_fd, real) else f"it cannot be looked at ({error.strerror})"
    row = tree_row(path)
    if stat.S_ISLNK(mode):
        return "" if row is None and _is_probe(root_fd, real, key) else "it is a symbolic link"
    if row is not None and not row.check:
        return row.reason
    if stat.S_ISDIR(mode):
        if key in GIT_NAMES or row is not None:
            return ""  # its contents are judged name by name
        if key == "hooks":
            return _judge_names(root_fd, real, _judge_hook)
        if key == "branches":
            return _judge_names(root_fd, real, _judge_empty)
    validator = _validator(key, above, row)
    if validator is None:
        return reason(path)
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    holder.let_go(path)
    try:
        fd = open_file(root_fd, real)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return "" if _is_gone(root_fd, real) else f"it cannot be read ({error.strerror})"
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        why = holder.hold(fd, path)
        if why:
            return why
        is_index = validator is _VALIDATORS["index"]
        if is_index and holder.is_same(path, status):
            return ""
        most = LARGEST_INDEX if is_index else LARGEST_READ
        if status.st_size > most:
            return f"it is larger than {most} bytes"
        data = read_bounded(fd, most)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    finally:
        os.close(fd)
    if len(data) > most:
        return f"it is larger than {most} bytes"
    if not data:
        return ""  # created and not written yet: the write is reported again
    if is_index:
        from .gitindex import SHORT, index

        why = index(data, _hash_size(root_fd, parent))
        if why == SHORT and holder.is_written(path):
            return ""  # some write it where it is, as go-git does; it is judged again, and not for long
        if not why:
            holder.is_benign(path, status)
        return why
    text = data.decode("utf-8", "surrogateescape")
    if key == "merge_rr":
        return _judge_rerere(root_fd, path, text, holder)
    if key == "head":
        return judge_repository(root_fd, parent, holder)
    why = validator(root_fd, path, text)
    if why or key not in ("config", "config.worktree", ".gitmodules") or not holder.places.open:
        return why
    return _judge_addresses(f"{path_of(root_fd)}/{parent}".rstrip("/"), text, holder.places)


def _hash_size(root_fd: int, parent: str) -> int:
    """Bytes of the name of an object in a repository."""
    from .gitindex import hash_size

    parts = parent.split("/")
    if len(parts) > 1 and fold(parts[-2]) == "worktrees":
        parent = "/".join(parts[:-2])
    try:
        fd = open_file(root_fd, f"{parent}/config".lstrip("/"))
        with open(fd, "rb") as file:
            return hash_size(file.read(LARGEST_READ).decode("utf-8", "surrogateescape"))
    except OSError:
        return hash_size("")


def _judge_rerere(root_fd: int, path: str, text: str, holder: Holder) -> str:
    """``MERGE_RR``: git outside opens what it names, through links and past the masks of the sandbox."""
    from .gitindex import rerere

    place = _parent(path)
    if fold(place.rpartition("/")[2]) not in GIT_NAMES:
        return "its work tree is somewhere else"
    base = f"{_parent(place)}/" if _parent(place) else ""

    def look(name: str) -> str:
        try:
            status = stat_below(root_fd, base + name)
            above = stat_below(root_fd, _parent(base + name) or ".")
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"it cannot be looked at ({error.strerror})"
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        # In the sandbox's view: a mask of mode 000, or one that is empty and can be read, from the view's own tmpfs.
        masked = not stat.S_IMODE(status.st_mode)
        masked = masked or (status.st_dev != above.st_dev and stat.S_IMODE(status.st_mode) == 0o444)
        return "it is hidden" if masked or holder.is_hidden(base + name) else ""

    return rerere(text, look)


def _is_gone(root_fd: int, path: str) -> bool:
    """Is the name not there any more?  A file may have taken the place of a directory above it, as when git makes a
    repository a submodule; what is made there later is reported again."""
    try:
        stat_below(root_fd, path)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return not _leads_through_a_link(root_fd, path)
    except OSError:
        pass
    return False


def _leads_through_a_link(root_fd: int, path: str) -> bool:
    at = path.find("/")
    while at > 0:
        try:
            if stat.S_ISLNK(stat_below(root_fd, path[:at]).st_mode):
                return True
        except OSError:
            return False
        at = path.find("/", at + 1)
    return False


def _validator(key: str, above: str, row: Protected | None) -> Callable[[int, str, str], str] | None:
    """What looks into a regular file of this folded name in a directory of the folded name ``above``."""
    if key == "attributes" and above != "info":
        return None
    if row is not None:
        objection = OBJECTIONS[key]
        return lambda _root_fd, _path, text: objection(text)
    known = _VALIDATORS.get(key)
    if known is not None:
        return known
    if key.startswith("sharedindex."):
        return _VALIDATORS["index"]
    if key not in _STATE_NAMES:
        return None  # the patterns of ``state`` take time to load, and most sessions never need them
    from .state import VALIDATORS

    check = VALIDATORS.get((above, key)) or VALIDATORS.get(("", key))
    return None if check is None else lambda _root_fd, _path, text: check(text)


def judged_by_content(key: str, above: str, row: Protected | None) -> bool:
    """Whether a regular file of this folded name, in a directory of the folded name ``above``, can be benign.

    ``row``: of the table of tools, one whose content decides.
    """
    return _validator(key, above, row) is not None


def is_told(path: str) -> bool:
    """May what ``judge`` says of this name be reported?  What git's configuration holds, as a password, may not."""
    row, key = tree_row(path), fold(path.rpartition("/")[2])
    return key in _STATE_NAMES or key == "commondir" if row is None else bool(row.check)


def tree_row(path: str) -> Protected | None:
    """The row of the table of tools that the end of ``path`` fits: without a ``check`` nothing there can be benign."""
    parts = fold_path(path)
    for names, row in _TREE_PARTS:
        if (
            len(names) <= len(parts)
            and fits(names[-1], parts[-1])
            and names[:-1] == parts[len(parts) - len(names) : -1]
        ):
            return row if row.name not in _BY_CONTENT else None
    return None


def fold_path(path: str) -> list[str]:
    """The folded names of the last four components."""
    return [fold(part) for part in path.rsplit("/", 4)[-4:]]


def reason(path: str) -> str:
    """Why a protected name must go that is never benign."""
    row = tree_row(path)
    if row is not None:
        return row.reason
    key = fold(path.rpartition("/")[2])
    if any(fold(part) in GIT_NAMES for part in path.split("/")[:-1]):
        return f"git {NEVER[key]}" if key in NEVER else "git writes no such name in its directory"
    return "something outside of the sandbox uses it, or it cannot be looked into"


def _is_probe(root_fd: int, path: str, key: str) -> bool:
    """The link by which git learns whether the file system has links (setup.c, create_default_files).

    It leads nowhere but to ``testing`` beside it, which is judged in its own right if it is made.
    """
    if not any(fits(pattern, key) for pattern in ("t??????", "_git2_??????")):
        return False
    parent, _, name = path.rpartition("/")
    try:
        fd = open_below(root_fd, parent or ".", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return is_probe_target(os.readlink(name, dir_fd=fd))
    except OSError:
        return False
    finally:
        os.close(fd)


def is_probe_target(target: str) -> bool:
    """What the link of git's probe holds."""
    return target == "testing"


def _judge_empty(name: os.DirEntry[str]) -> str:
    return f"git takes {name.name} for the address of a remote"


def _judge_hook(name: os.DirEntry[str]) -> str:
    harmless = name.name.endswith(".sample") and name.is_file(follow_symlinks=False)
    return "" if harmless else f"{HOOK}: {name.name}"


def _judge_names(root_fd: int, path: str, judge_one: Callable[[os.DirEntry[str]], str]) -> str:
    """The first objection to a name in a directory, of which ``MOST_HOOKS`` are looked at."""
    try:
        fd = open_below(root_fd, path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return "" if _is_gone(root_fd, path) else f"it cannot be read ({error.strerror})"
    try:
        with os.scandir(fd) as listing:
            for number, name in enumerate(listing):
                if number >= MOST_HOOKS:
                    return "it holds too many names"
                if why := judge_one(name):
                    return why
    finally:
        os.close(fd)
    return ""


def _judge_config(root_fd: int, path: str, text: str) -> str:
    from .gitconfig import ConfigError, objection, parse
    from .gitedit import stays

    try:
        settings = parse(text)
    except ConfigError as error:
        return f"it is not plain git configuration ({error})"
    beside = fold(path.rpartition("/")[2]) == "config.worktree"  # of a repository that has a config, which it overrides
    for key, value in settings:
        if key == "core.worktree":
            # A submodule's configuration points from .git/modules/NAME back to its work tree.
            place = _normal(_parent(path), value or "", path_of(root_fd))
            if "modules" not in map(fold, path.split("/")) or not place or not _is_tree(place):
                return f"core.worktree = {value} leads out of its submodule"
            continue
        why = objection(key, value)
        if not why and beside and stays(key, value):
            why = f"{key[:100]} is no everyday setting"
        if why:
            return why
    return ""


def _judge_addresses(directory: str, text: str, places: Trees) -> str:
    from .addresses import Judge
    from .gitconfig import parse

    said = Judge(directory, places)
    return next((why for key, value in parse(text) if (why := said(key, value))), "")


def _judge_modules(root_fd: int, path: str, text: str) -> str:
    from .gitconfig import ConfigError, module_objection, parse

    try:
        settings = parse(text)
    except ConfigError as error:
        return f"it is not plain git configuration ({error})"
    return next((why for why in (module_objection(key, value) for key, value in settings) if why), "")


def judge_repository(root_fd: int, place: str, holder: Holder = _NOBODY) -> str:
    """Why a directory must not be a git repository; empty when all that git obeys in it is benign.

    ``HEAD`` stands for a directory that became a repository by its layout: taking that away unmakes the repository.
    What else is in it may be a user's files with the same names, so they are judged but not moved.
    """
    base = f"{place}/" if place else ""
    for name in _OBEYED:
        try:
            mode = stat_below(root_fd, base + name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{name} cannot be looked at ({error.strerror})"
        if name == "hooks" and not stat.S_ISDIR(mode):
            return f"{name} is not a directory"
        why = judge(root_fd, base + name, holder=holder)
        if why:
            return f"it makes this directory a git repository, and in its {name}: {why}"
    return ""


def _judge_commondir(root_fd: int, path: str, text: str) -> str:
    parts = path.split("/")
    # git writes the one, libgit2 the other (src/libgit2/worktree.c, git_worktree_add).
    holder = "/".join((path_of(root_fd).rstrip("/"), *parts[:-3]))
    if (
        len(parts) >= 3
        and fold(parts[-3]) == "worktrees"
        and text.removesuffix("\n") in ("../..", holder, f"{holder}/")
    ):
        return "" if _context_at(root_fd, parts[:-1]) & KIND == GIT_LINKED else REDIRECT
    return REDIRECT


def _judge_backlink(root_fd: int, path: str, text: str) -> str:
    """``worktrees/NAME/gitdir``: the ``.git`` file of the worktree, in this workspace, or one that leads back here."""
    parts = path.split("/")
    target = text.removesuffix("\n")
    place = _normal(_parent(path), target, path_of(root_fd))
    if len(parts) < 4 or fold(parts[-3]) != "worktrees":
        return "it leads to something else than a worktree of this workspace"
    if not place:
        return _judge_outer_worktree(path_of(root_fd).rstrip("/"), _parent(path), target)
    if place.rpartition("/")[2] != ".git":
        return "it leads to something else than a worktree of this workspace"
    return "" if _is_tree(_parent(place)) else "it leads into a git directory"


def _judge_outer_worktree(top: str, directory: str, target: str) -> str:
    """The ``.git`` file of a worktree that the person adds beside the workspace while the command runs.

    It says by itself that it belongs to ``directory`` (gitrepository-layout(5), "gitdir: PATH").  The command cannot
    make that file: git outside then does no more with it than with any other worktree of this repository.

    Args:
        top: the workspace, absolute.
        directory: ``worktrees/NAME``, relative to it.
    """
    own = f"{top}/{directory}"
    if len(target) > LONGEST_PATH or "\n" in target or "\0" in target:
        return LEADS_OUT
    place = os.path.normpath(target if target.startswith("/") else f"{own}/{target}")
    if not place.endswith("/.git") or place.startswith(f"{top}/"):
        return LEADS_OUT
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(stat_below(root, place[1:].removesuffix("/.git") or ".").st_mode):
            return LEADS_OUT
        try:
            fd = open_file(root, place[1:])
        except FileNotFoundError:
            return UNANSWERED
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return LEADS_OUT
            line = read_bounded(fd, LONGEST_PATH + 16).decode("utf-8", "surrogateescape").removesuffix("\n")
        finally:
            os.close(fd)
    except OSError:
        return LEADS_OUT
    finally:
        os.close(root)
    if not line:
        return UNANSWERED  # it is being written
    back = line.removeprefix("gitdir: ")
    if back == line or os.path.normpath(back if back.startswith("/") else f"{_parent(place)}/{back}") != own:
        return LEADS_OUT
    return ""


def _judge_pointer(root_fd: int, path: str, text: str) -> str:
    """A ``.git`` file: "gitdir: PATH" (gitrepository-layout(5)) to where the scan and the guard look.

    git writes the pointer first, so there may be nothing yet, or a directory that is no repository yet.  What comes to
    be there is judged when it does, and the pointer again when a name on the way is replaced.
    """
    place = pointer_target(root_fd, path, text)
    if not place:
        return "it is not a pointer to a git directory of this workspace"
    return "" if _is_looked_at(root_fd, place) else "it points to something else than a git directory of this workspace"


def is_only_for_now(root_fd: int, path: str) -> bool:
    """Is it benign while git works only: a probe, a ``.git`` file that points to where no repository is yet?"""
    try:
        if stat.S_ISLNK(stat_below(root_fd, path).st_mode):
            return True
        if fold(path.rpartition("/")[2]) not in GIT_NAMES:
            return False
        fd = open_file(root_fd, path)
    except OSError:
        return False
    try:
        text = read_bounded(fd, LONGEST_PATH).decode("utf-8", "surrogateescape")
    except OSError:
        return False
    finally:
        os.close(fd)
    place = pointer_target(root_fd, path, text)
    context = _context_at(root_fd, place.split("/")) if place else DATA
    return context < 0 or context & KIND not in GIT_DIRECTORIES


def pointer_target(root_fd: int, path: str, text: str) -> str:
    """Where a ``.git`` file leads, relative to the workspace; empty: nowhere in it."""
    line = text.removesuffix("\n")
    if len(line) > LONGEST_PATH or not line.startswith("gitdir: ") or "\n" in line:
        return ""
    return _normal(_parent(path), line[len("gitdir: ") :], path_of(root_fd))


def _is_looked_at(root_fd: int, place: str) -> bool:
    """Would a repository at this place be judged, through whatever is made on the way?"""
    context, there, unmade = root_context(path_of(root_fd)), "", 0
    for part in place.split("/"):
        if not unmade:
            context = settled(context, _layout_keys(root_fd, there))
        elif context & KIND == GIT_MODULES and find("git", fold(part)) == "data":
            return False  # the directory above may become a repository, and this one its objects
        context = classify(context, fold(part), True, False)
        if context < 0:
            return False
        there = f"{there}/{part}" if there else part
        if not unmade:
            try:
                if stat.S_ISDIR(stat_below(root_fd, there).st_mode):
                    continue
                return False
            except FileNotFoundError:
                pass
            except OSError:
                return False
        unmade += 1
        if unmade > MOST_UNMADE:
            return False
    kind = context & KIND
    return kind in (GIT_MODULES, *GIT_DIRECTORIES) or (not context & NAMED and kind in (TREE, PACKAGE))


def _toolchain(text: str) -> str:
    from .rustup import objection

    return objection(text)


def _versions(text: str) -> str:
    from .choices import versions

    return versions(text)


def _npmrc(text: str) -> str:
    from .choices import npmrc

    return npmrc(text)


def _pnpm_workspace(text: str) -> str:
    from .choices import pnpm_workspace

    return pnpm_workspace(text)


def _pickled(text: str) -> str:
    from .choices import pickled

    return pickled(text)


def _backups(text: str) -> str:
    from .choices import backups

    return backups(text)


def _histedit(text: str) -> str:
    return "" if text.startswith("v1\n") else "Mercurial would run what is pickled in it"  # hgext/histedit.py


def _judge_git_target(root_fd: int, path: str, text: str) -> str:
    """The ``.git`` beside ``.jj``, which is no link; ``git``, in jj's own store, can be one that leads anywhere."""
    return "" if text == "../../../.git" else "jj would run git on a repository elsewhere"


def _judge_attributes(root_fd: int, path: str, text: str) -> str:
    return "" if not text.strip() else "it puts files under filter, diff and merge programs"


# Of the rows of tools with a ``check``: why what is in the file is refused.
OBJECTIONS: dict[str, Callable[[str], str]] = {
    "rust-toolchain": _toolchain,
    "rust-toolchain.toml": _toolchain,
    **dict.fromkeys(VERSION_FILES, _versions),
    ".npmrc": _npmrc,
    "pnpm-workspace.yaml": _pnpm_workspace,
    "histedit-state": _histedit,
    "history": _pickled,
    "journal.backupfiles": _backups,
    "undo.backupfiles": _backups,
}

_VALIDATORS: dict[str, Callable[[int, str, str], str]] = {
    ".git": _judge_pointer,
    "git~1": _judge_pointer,
    "config": _judge_config,
    "config.worktree": _judge_config,
    "head": lambda _root_fd, _path, _text: "",  # ``judge_repository``
    "index": lambda _root_fd, _path, _text: "",  # ``gitindex.index``: bytes
    "merge_rr": lambda _root_fd, _path, _text: "",  # ``_judge_rerere``
    ".gitmodules": _judge_modules,
    "git_target": _judge_git_target,
    "commondir": _judge_commondir,
    "gitdir": _judge_backlink,
    "attributes": _judge_attributes,
}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _normal(base: str, target: str, root: str) -> str:
    """``target`` seen from the directory ``base``, without "." and "..", relative to ``root``; empty: outside.

    Lexical: the caller opens the result without following links, so a link on the way is refused, not resolved.
    """
    if not target or len(target) > LONGEST_PATH or any(ord(char) < 0x20 or char == "\x7f" for char in target):
        return ""
    if target.startswith("/"):
        if not target.startswith(root.rstrip("/") + "/"):
            return ""
        parts: list[str] = []
        target = target[len(root.rstrip("/")) :]
    else:
        parts = base.split("/") if base else []
    for part in target.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif len(part) > LONGEST_PART:
            return ""  # it is not there, and folding it costs the square of its length
        else:
            parts.append(part)
    return "/".join(parts) if len(parts) <= DEEPEST_TARGET else ""


def _is_tree(path: str) -> bool:
    """No component names a git directory."""
    return not any(fold(part) in GIT_NAMES for part in path.split("/"))


def _context_at(root_fd: int, parts: list[str]) -> int:
    """The context in which the scan meets the directory ``parts``; ``DATA`` when it does not go there."""
    context, path = root_context(path_of(root_fd)), ""
    for part in parts:
        context = settled(context, _layout_keys(root_fd, path))
        context = classify(context, fold(part), True, False)
        if context < 0:
            return DATA
        path = f"{path}/{part}" if path else part
        try:
            if not stat.S_ISDIR(stat_below(root_fd, path).st_mode):
                return DATA
        except OSError:
            return DATA
    return settled(context, _layout_keys(root_fd, path))


def _layout_keys(root_fd: int, path: str) -> set[str]:
    """Which names of ``LAYOUT`` a directory holds; a directory that cannot be read holds none."""
    try:
        fd = open_below(root_fd, path or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return set()
    try:
        with os.scandir(fd) as listing:
            few = zip(range(MOST_LISTED), listing, strict=False)
            found = {fold(entry.name) for _, entry in few if 4 <= len(entry.name) <= 12} & LAYOUT
        for name in ("HEAD", "objects", "refs", "commondir"):  # whatever the directory is filled up with
            if name.lower() not in found:
                try:
                    os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    continue
                found.add(name.lower())
        return found
    except OSError:
        return set()
    finally:
        os.close(fd)
