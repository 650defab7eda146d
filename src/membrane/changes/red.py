"""What of the changes outside programs would execute or obey, and what is never put in place.

Theory of operation
-------------------
Every change is looked at by its name, its kind, its mode and, where the content decides, its bytes.  The tables are
those of live workspaces: ``workspace.names`` and ``workspace.gitdir`` (through ``protect.classify``), configuration of
git by allowed settings (``gitedit.objection``), the files of a rebase, an index or a pointer by their validators.
Besides those a change is red when it

* can be executed, or written by everybody or by others of an access list, and could not before, or has the bits
  set-user-id or set-group-id;
* makes a git repository of a directory by its layout (``HEAD``, ``objects``, ``refs``), where something that git obeys
  is already;
* is a link that leads out of the workspace, into a git directory, or to a hidden name, through whatever links the
  command has made on the way or the host has there (a part of the changes may stay behind), or has ``..`` behind a
  name: where that leads is said by what a later set puts under the name;
* is a link in a git directory: git writes and removes through those;
* has a name that a person cannot see for what it is, or one that some file system takes for that of another file.

Of the changes any part may stay behind, by a choice or because it cannot come.  So what surrounds a change, as whether
its directory is a repository, is asked of the copy and of the host, and what either has counts.

The bytes come from ``read``: a caller that puts them in place gives those that it has read itself, so they cannot be
others.  What cannot be read or judged within the bounds is red.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from ..escaping import escape
from ..plan.model import ScanHit
from ..workspace import protect
from ..workspace.gitdir import find
from ..workspace.judge import LARGEST_INDEX, LONGEST_PATH, OBJECTIONS, fold_path, reason, tree_row
from ..workspace.programs import relative
from ..workspace.protect import GIT_NAMES, KIND, NAMED, classify, fold, read_bounded, root_context, settled
from .grafted import GIT, Grafted, below, is_others, place_of, pointed, seat_of
from .model import CLOSED, EXECUTE, SET_ID, Change, Side
from .tree import CAPABILITY, Copy, look, open_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LINKS_TIME = 30.0  # seconds in which all links of a look, or of an apply, are followed; the others are red
MOST_DIRECTORIES = 200_000  # of the host's workspace in which repositories are looked for
MOST_MARKED = 50_000  # new marks of an index whose files are looked for; of more each counts as there
MOST_LINKS = 40  # symbolic links followed in one path, as the kernel (path_resolution(7))
_LAYOUT = ("HEAD", "objects", "refs", "commondir")
# Where git looks for objects: the first two are directories, the others are not there.
_STORE = ("objects", "objects/info", "objects/info/alternates", "objects/info/http-alternates")
_DATA = frozenset({"objects", "refs", "logs", "info"})  # of a repository, which holds no other in them
ACCESS_LIST = "system.posix_acl_access"
_USER, _GROUP, _MASK, _WRITE = 0x02, 0x08, 0x10, 0x02  # include/uapi/linux/posix_acl.h
_OUT = "it leads out of the workspace"
_BEHIND = "it has a .. after a name: it leads out when a link or a directory takes the place of that name"
_SPECIAL = {
    "fifo": "a program that opens it waits for ever",
    "socket": "it leads to no process",
    "device": "it is a device",
    CLOSED: "another user of the sandbox owns it and has closed it",
}


class _Late(Exception):
    """The time for all links is over."""


class Judge:
    """Judges the changes of one copy.

    Args:
        copy: the copy.
        root: the workspace, resolved.
        read: opens the bytes of a change that is in the copy; the caller of it closes them.
    """

    def __init__(self, copy: Copy, root: str, read: Callable[[Change], int] | None = None) -> None:
        self._copy = copy
        self._host = Copy(copy.base_fd, (), copy.is_hidden)
        self._root = root
        self._read = read or (lambda change: copy.open(change.layer, change.path))
        self._contexts: dict[str, int] = {"": self._settle(root_context(root), "")}
        self._folded: dict[str, dict[str, int]] = {}
        self._obeyed: frozenset[str] | None = None
        self._relative: frozenset[str] = frozenset()  # what is obeyed in every work tree
        self._trees: dict[str, bool] = {}  # whether a directory has a ``.git``
        self._until: float | None = None  # when the links must be judged
        self._made: dict[str, str] = {}

    def all(self, changes: Iterable[Change]) -> list[Change]:
        """``changes``, each with what is said against it."""
        return [self.one(change) for change in changes]

    def one(self, change: Change) -> Change:
        """``change`` with what is said against it."""
        red: dict[str, None] = {}
        never = dict.fromkeys(change.never)
        for path in change.paths:
            why = self._named(change, path)
            if why:
                red[why] = None
        if change.after is not None:
            for why in self._kind(change, change.after):
                red[why] = None
            if change.after.what in _SPECIAL:
                never[_SPECIAL[change.after.what]] = None
            if change.kind in ("added", "renamed"):
                for why in self._seen(change.path):
                    red[why] = None
        if not red and len(never) == len(change.never):
            return change
        return change.replace(red=tuple(red), never=tuple(never))

    def again(self, change: Change) -> Change:
        """``change``, which ``one`` has judged, judged by what ``read`` gives now: only the content can be another."""
        red = dict.fromkeys(change.red)
        for path in change.paths:
            why = self._named(change, path)
            if why:
                red[why] = None
        return change if len(red) == len(change.red) else change.replace(red=tuple(red))

    # ------------------------------------------------------------ where it is

    def context(self, path: str) -> int:
        """The context (``protect.classify``) of the directory ``path`` in the copy."""
        known = self._contexts.get(path)
        if known is None:
            parent, _, name = path.rpartition("/")
            known = classify(self.context(parent), fold(name), True, False)
            known = self._contexts[path] = self._settle(known, path) if known >= 0 else known
        return known

    def _settle(self, context: int, path: str) -> int:
        keys = set()
        for name in _LAYOUT:
            if self._is_there(f"{path}/{name}" if path else name):
                keys.add(name.lower())
            elif name == "HEAD":
                break  # git takes no directory without one for a repository
        return settled(context, keys)

    def _is_there(self, path: str) -> bool:
        """Does the copy or the host have this name?"""
        for view in (self._copy, self._host):
            try:
                if view.find(path) is not None:
                    return True
            except OSError as error:
                # What cannot be looked at may be there.  Where the host has a link on the way, or another file
                # system, nothing is put in place below it.
                if view is self._copy or error.errno not in (errno.ELOOP, errno.EXDEV):
                    return True
        return False

    def _named(self, change: Change, path: str) -> str:
        """Why the name itself, or its content under this name, is obeyed."""
        parent, _, name = path.rpartition("/")
        key = fold(name)
        context = self.context(parent)
        found = change.after if path == change.path else change.before
        what = found.what if found is not None else "file"
        code = classify(context, key, what == "directory", what == "link")
        if code == protect.PROTECT:
            first = self._first(path, what)
            return self._held(change, path, first)
        if code == protect.CHECKED:
            return "" if change.after is None else self._checked(change, key, fold(parent.rpartition("/")[2]))
        if key == ".gitmodules" and change.after is not None and context == protect.TREE:
            return self._configuration(change, ".gitmodules")
        return self._programs(path)

    def _first(self, path: str, what: str) -> str:
        """The first name on the way to ``path`` that is protected itself."""
        at = path.find("/")
        while at > 0:
            if self.context(path[:at]) == protect.PROTECT:
                return path[:at]
            at = path.find("/", at + 1)
        return path

    def _held(self, change: Change, path: str, first: str) -> str:
        """Of a protected name: what git writes there itself may be benign by its content."""
        above, _, name = first.rpartition("/")
        key, context = fold(name), self.context(above)
        if key in GIT_NAMES and first == path:
            return self._pointer(change) if change.after is not None else "it is a pointer to a git directory"
        if context < 0 or not context & NAMED:
            return self._content_of_tree(change, first)
        kind = context & KIND
        place = "linked" if kind == protect.GIT_LINKED else "git"
        if change.after is None:
            return reason(first) if find(place, key) not in ("file", "probe", "") else ""
        if change.after.what == "link" or first != path:
            is_sample = key == "hooks" and change.after.what == "file" and path.endswith(".sample")
            return "" if is_sample and path.count("/") == first.count("/") + 1 else reason(first)
        if key == "hooks" and change.after.what == "directory":
            return ""  # what is in it is judged name by name
        if key == "branches" and change.after.what == "directory":
            return ""
        if change.after.what != "file":
            return reason(first)
        if key in ("config", "config.worktree"):
            return self._configuration(change, path)
        text = self._text(change, LONGEST_PATH)
        if text is None:
            return "it cannot be read"
        if key == "commondir" and kind == protect.GIT_LINKED:
            return "" if text in ("../..", "../..\n") else reason(first)
        if key == "gitdir" and kind == protect.GIT_LINKED:
            place = pointed(self._copy.base_fd, path, f"gitdir: {text}")
            return (
                ""
                if place and place.endswith("/.git") and self.context(place.rpartition("/")[0]) >= 0
                else reason(path)
            )
        if key == "attributes" and not text.strip():
            return ""
        return reason(first)

    def _content_of_tree(self, change: Change, first: str) -> str:
        if fold(first.rpartition("/")[2]) == ".gitmodules" and change.after is not None and change.what == "file":
            return self._configuration(change, ".gitmodules")
        return reason(first)

    def _programs(self, path: str) -> str:
        """Does a repository's configuration, or a link of a protected name, on the host lead to it or what holds it?"""
        if self._obeyed is None:
            found = surroundings(self._copy.base_fd, root_context(self._root))
            if found is not None:
                gits = tuple(map(self._host_path, found[0]))
                links = [hit.replace(path=self._host_path(hit.path)) for hit in found[1]]
                there = protect.existing(self._root, gits, links)
                self._obeyed = frozenset((*(hit.path for hit in there.hits), *there.missing))
                self._relative = relative(self._root, gits or (".git",))
            else:
                self._obeyed = frozenset(("",))
        if "" in self._obeyed:
            return "the workspace is too large to find what git's configuration names in it"
        if not self._obeyed and not self._relative:
            return ""
        at = len(path) if self._obeyed else 0
        while at > 0:
            if path[:at] in self._obeyed:
                return "git's configuration names it, or a protected name leads to it: it is run or obeyed"
            at = path.rfind("/", 0, at)
        # Also in a repository, or a linked work tree, that the command has made, for which the same is in force.
        for each in self._relative:
            at = f"/{path}/".find(f"/{each}/")
            while at >= 0:
                top = path[: max(0, at - 1)]
                if self._has_git(top):
                    return "git's configuration names it, and git runs or obeys it in this work tree"
                at = f"/{path}/".find(f"/{each}/", at + 1)
        return ""

    def _host_path(self, path: str) -> str:
        """``path`` itself, absolute where it is in a repository elsewhere."""
        base_fd = self._copy.base_fd
        return path if below(base_fd, path)[0] == base_fd else place_of(base_fd, path)

    def _tree_of(self, path: str) -> str | None:
        """The work tree of a file of git's, by its place in a ``.git`` or in the seat of this one; None: not known."""
        if f"{path.rpartition('/')[0]}/" == f"{GIT}/{seat_of(self._copy.base_fd)}":
            return ""
        tree, _, last = path.rpartition("/")[0].rpartition("/")
        return tree if fold(last) in GIT_NAMES else None

    def _has_git(self, place: str) -> bool:
        known = self._trees.get(place)
        if known is None:
            known = self._trees[place] = self._is_there(f"{place}/.git" if place else ".git")
        return known

    # ------------------------------------------------------------ its content

    def _text(self, change: Change, most: int) -> str | None:
        data = self._data(change, most)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def _data(self, change: Change, most: int) -> bytes | None:
        if change.after is None or change.after.what != "file" or change.after.size > most:
            return None
        try:
            fd = self._read(change)
            try:
                data = read_bounded(fd, most)
            finally:
                os.close(fd)
        except OSError:
            return None
        return None if len(data) > most else data

    def _before(self, change: Change, most: int) -> bytes | None:
        """The first ``most`` bytes of what the host has there; empty: no regular file; None: it cannot be read."""
        if change.before is None or change.before.what != "file":
            return b""
        try:
            fd = self._copy.open(-1, change.path)
            try:
                return read_bounded(fd, most)
            finally:
                os.close(fd)
        except OSError:
            return None

    def _configuration(self, change: Change, path: str) -> str:
        from ..workspace.gitedit import LARGEST, objection

        new = self._data(change, LARGEST)
        if new is None:
            return "it is no regular file, or cannot be judged by its content"
        old = self._before(change, LARGEST)
        if old is None:
            return "what it replaces cannot be read"
        made = change.before is None and fold(path.rpartition("/")[2]) != "config.worktree"
        return objection(old, new, path, made=made, local=self._local(path))

    def _local(self, path: str) -> Callable[[str, str | None], str]:
        """What is said against an address of this machine in the configuration ``path``: here it stays in the tree."""
        from ..workspace import addresses

        directory = os.path.join(self._root, os.path.dirname(path))
        return addresses.Judge(directory, addresses.Trees((self._root,), ("/",)))

    def _checked(self, change: Change, key: str, above: str) -> str:
        from ..workspace import gitindex
        from ..workspace.state import VALIDATORS

        if key == "index" or key.startswith("sharedindex."):
            data = self._data(change, LARGEST_INDEX)
            if data is None:
                return f"it is no regular file of at most {LARGEST_INDEX} bytes"
            sizes = self._hash_sizes(change.path.rpartition("/")[0])
            why = next((why for size in sizes if (why := gitindex.index(data, size))), "")
            return why or next((why for size in sizes if (why := self._unwatched(change, data, size))), "")
        text = self._text(change, protect.LARGEST_READ)
        if text is None:
            return f"it is no regular file of at most {protect.LARGEST_READ} bytes"
        if key == "merge_rr":
            return gitindex.rerere(text, self._rerere(change.path))
        row = tree_row(change.path)
        if row is not None and row.check:
            return OBJECTIONS[key](text)
        check = VALIDATORS.get((above, key)) or VALIDATORS.get(("", key))
        return reason(change.path) if check is None else check(text)

    def _unwatched(self, change: Change, data: bytes, size: int) -> str:
        """Why an index hides from a person what changes.

        Files that are not there, as of a sparse checkout, do not count, where it is known which tree it is of.
        """
        from ..workspace import gitindex

        marked = gitindex.unwatched(data, size)
        old = self._before(change, LARGEST_INDEX) if marked else None
        if old and not gitindex.index(old, size):
            marked -= gitindex.unwatched(old, size)
        tree = self._tree_of(change.path)
        for name in sorted(marked):
            path = os.fsdecode(name)
            try:
                there = (
                    not name
                    or len(marked) > MOST_MARKED
                    or tree is None
                    or self._copy.find(f"{tree}/{path}" if tree else path) is not None
                )
            except (OSError, ValueError):
                there = True
            if there:
                shown = ascii(path)[1:-1] or "some files"
                return f"git status and git diff do not say any more when {shown} is changed"
        return ""

    def _rerere(self, path: str) -> Callable[[str], str]:
        tree = self._tree_of(path)
        if tree is None:  # of a linked work tree or a submodule in the workspace
            tree = path.rpartition("/")[0].rpartition("/")[0]

        def judged(name: str) -> str:
            place = f"{tree}/{name}" if tree else name
            if self._copy.is_hidden(place):
                return "it is hidden"
            for view in (self._copy, self._host):
                try:
                    found = view.find(place)
                except OSError:
                    return "it cannot be looked at"
                if found is not None and found[1].what != "file":
                    return "it is not a regular file"
            return ""

        return judged

    def _hash_sizes(self, place: str) -> set[int]:
        """The bytes of an object's name in the repository ``place``, as the copy and as the host have it."""
        from ..workspace.gitindex import hash_size

        if f"{place}/" == f"{GIT}/{seat_of(self._copy.base_fd)}":
            place = GIT  # the configuration of a linked work tree is that of its repository
        sizes = set()
        for view in (self._copy, self._host):
            try:
                found = view.find(f"{place}/config")
                if found is None:
                    continue
                fd = view.open(found[0], f"{place}/config")
                try:
                    data = read_bounded(fd, protect.LARGEST_READ)
                finally:
                    os.close(fd)
            except OSError:
                continue
            sizes.add(hash_size(data.decode("utf-8", "surrogateescape")))
        return sizes or {hash_size("")}

    def _pointer(self, change: Change) -> str:
        """A ``.git`` file may lead to a git directory of this workspace, below a ``.git``."""
        why = "it is not a pointer to a git directory of this workspace"
        text = self._text(change, LONGEST_PATH)
        place = pointed(self._copy.base_fd, change.path, text) if text is not None else ""
        if not place or is_others(self._copy.base_fd, place):
            return why
        context = self.context(place)
        return "" if context >= 0 and context & NAMED and context & KIND in protect.GIT_DIRECTORIES else why

    # ------------------------------------------------------------ its kind and mode

    def _kind(self, change: Change, after: Side) -> list[str]:
        out = []
        if after.what == "link":
            why = self._link(change.path, after.target)
            if why:
                out.append(why)
        elif after.what == "file":
            before = change.before
            could = before.mode & EXECUTE if before is not None and before.what == "file" else 0
            if after.mode & EXECUTE and not could and not self._is_sample(change.path):
                out.append("it can be executed")
        if after.what in ("file", "directory") and after.mode & SET_ID:
            had = change.before.mode & SET_ID if change.before is not None else 0
            if after.mode & SET_ID & ~had and not (after.what == "directory" and not after.mode & 0o4000):
                out.append("it runs with the rights of its owner or group; these bits are never put in place")
        if after.what in ("file", "directory"):
            had = change.before.mode if change.before is not None and change.before.what == after.what else 0
            sticky = after.what == "directory" and after.mode & stat.S_ISVTX  # it says nothing of a file (inode(7))
            if after.mode & stat.S_IWOTH and not had & stat.S_IWOTH and not sticky:
                out.append("everybody on this machine may write it")
        if change.kind in ("added", "renamed", "type") and fold(change.path.rpartition("/")[2]) in protect.LAYOUT:
            why = self._becomes_repository(change.path.rpartition("/")[0])
            if why:
                out.append(why)
        if ACCESS_LIST in change.attributes and after.what == "file" and self._is_shared(change, after):
            out.append("its access list lets others on this machine write it")
        if CAPABILITY in change.attributes:
            out.append("it has capabilities; they are never put in place")
        if after.what in _SPECIAL:
            out.append(_SPECIAL[after.what])
        return out

    def _is_shared(self, change: Change, after: Side) -> bool:
        """May users or groups write it by its access list (acl(5)) who could not, nor could a file made there?"""
        own = {(_USER, after.uid), (_GROUP, after.gid)}
        try:
            fd = self._copy.open(change.layer, change.path)
            try:
                new = writers(attribute(fd, ACCESS_LIST))
            finally:
                os.close(fd)
            if new is None or new <= own:
                return new is None
            before = change.before
            if before is not None and before.what == "file":
                fd = self._copy.open(-1, change.source or change.path)
                try:
                    own |= writers(attribute(fd, ACCESS_LIST)) or set()
                finally:
                    os.close(fd)
            place = change.path.rpartition("/")[0]
            while not self._is_on_host(place):
                place = place.rpartition("/")[0]
            fd = open_directory(self._copy.base_fd, place)
            try:
                own |= writers(attribute(fd, "system.posix_acl_default")) or set()
            finally:
                os.close(fd)
        except OSError:
            return True
        return not new <= own

    def _becomes_repository(self, place: str) -> str:
        """Why git must not take the directory ``place`` for a repository, which it was not before; empty: it may."""
        known = self._made.get(place)
        if known is None:
            known = self._made[place] = self._judge_made(place)
        return known

    def _judge_made(self, place: str) -> str:
        base = f"{place}/" if place else ""
        if not protect.is_git_layout({name.lower() for name in _LAYOUT if self._is_there(base + name)}):
            return ""
        for view in (self._copy, self._host):
            try:
                why = self._judge_made_of(view, place, base)
            except OSError as error:
                # As in ``_is_there``.
                lost = view is self._copy or error.errno not in (errno.ELOOP, errno.EXDEV)
                why = "what it holds cannot be looked at" if lost else ""
            if why:
                return f"it makes this directory a git repository, and {why}"
        return ""

    def _judge_made_of(self, view: Copy, place: str, base: str) -> str:
        from ..workspace.gitedit import LARGEST, objection

        for name in _STORE:
            found = view.find(base + name)
            if found is not None and (name not in _STORE[:2] or found[1].what != "directory"):
                return f"its {name} leads git to objects elsewhere"
        for name in ("config", "config.worktree", "commondir", "gitdir", "remotes", "info/attributes", "hooks"):
            found = view.find(base + name)
            if found is None or (name in ("commondir", "gitdir") and self.context(place) & NAMED):
                continue
            layer, there = found
            why = ""
            if name == "hooks":
                odd = there.what != "directory" or [
                    each for each in view.names(base + name) if not each.endswith(".sample")
                ]
                why = reason(base + name) if odd else ""
            elif not name.startswith("config"):
                why = reason(base + name) if there.size or there.what != "file" else ""
            elif there.what != "file":
                why = "it is no regular file"
            else:
                fd = view.open(layer, base + name)
                try:
                    why = objection(
                        b"", read_bounded(fd, LARGEST), base + name, made=True, local=self._local(base + name)
                    )
                finally:
                    os.close(fd)
            if why:
                return f"in its {name}: {why}"
        return ""

    def _is_sample(self, path: str) -> bool:
        """git's own sample hooks are executable, and git runs none with such a name."""
        parts = fold_path(path)
        return len(parts) >= 3 and parts[-3] in GIT_NAMES and parts[-2] == "hooks" and path.endswith(".sample")

    def _link(self, path: str, target: str) -> str:
        """Why a link is red: by where it leads in the copy, and on the host, of which some may stay as it is."""
        if self._is_in_git(path):
            return "it is a link in a git directory, and git writes and removes through those"
        if self._until is None:
            self._until = time.monotonic() + LINKS_TIME
        why = self._leading(self._copy, path, target)
        if not why and self._is_on_host(path.rpartition("/")[0]):
            why = self._leading(self._host, path, target)
        names = [part for part in target.split("/") if part not in ("", ".")]
        first = next((at for at, part in enumerate(names) if part != ".."), len(names))
        return why or (_BEHIND if ".." in names[first:] else "")

    def _is_in_git(self, path: str) -> bool:
        at = path.rfind("/")
        while at > 0:
            context = self.context(path[:at])
            if context >= 0 and context & KIND in protect.GIT_DIRECTORIES:
                return True
            at = path.rfind("/", 0, at)
        return self.context("") & KIND in protect.GIT_DIRECTORIES

    def _is_on_host(self, place: str) -> bool:
        try:
            there = look(self._copy.base_fd, place)
        except OSError:
            return False
        return there is not None and there.what == "directory"

    def _leading(self, copy: Copy, path: str, target: str) -> str:
        try:
            place = self._leads(copy, path.rpartition("/")[0], target)
        except _Late:
            return f"where it leads could not be found in {LINKS_TIME:g} seconds for all links"
        if place is None:
            return _OUT
        if self._copy.is_hidden(place):
            return "it leads to a name that a rule hides"
        context = self.context(place.rpartition("/")[0]) if place else 0
        code = classify(context, fold(place.rpartition("/")[2]), False, False) if place else 0
        if context & NAMED or code == protect.PROTECT or fold(place.rpartition("/")[2]) in GIT_NAMES:
            own = self.context(path.rpartition("/")[0])
            return "" if own >= 0 and own & NAMED and code != protect.PROTECT else f"it leads to {ascii(place)[1:-1]}"
        return ""

    def _leads(self, copy: Copy, base: str, target: str) -> str | None:
        """Where ``target`` leads from the directory ``base`` in ``copy``; None: out of it, or in a circle."""
        at = base.split("/") if base else []
        todo = target.split("/")[::-1]
        if target.startswith("/"):
            inside = self._inside(target)
            if inside is None:
                return None
            at, todo = [], inside.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    return None
                at.pop()
                continue
            at.append(part)
            if self._until is not None and time.monotonic() > self._until:
                raise _Late
            if len(at) > 512 or len(todo) > 4096:
                return None
            try:
                found = copy.find("/".join(at))
            except OSError:
                return None
            if found is not None and found[1].what == "link":
                links += 1
                if links > MOST_LINKS:
                    return None
                at.pop()
                further = found[1].target
                if further.startswith("/"):
                    inside = self._inside(further)
                    if inside is None:
                        return None
                    at, further = [], inside
                todo += further.split("/")[::-1]
        return "/".join(at)

    def _inside(self, target: str) -> str | None:
        root = self._root.rstrip("/") + "/"
        return target[len(root) :] if (target + "/").startswith(root) else None

    # ------------------------------------------------------------ whether it can be seen

    def _seen(self, path: str) -> list[str]:
        parent, _, name = path.rpartition("/")
        out = []
        if not is_plain(name):
            out.append("its name holds characters that cannot be seen")
        keys = self._folded.get(parent)
        if keys is None:
            keys = self._folded[parent] = {}
            try:
                for other in self._copy.names(parent):
                    keys[fold(other)] = keys.get(fold(other), 0) + 1
            except OSError:
                pass
        if keys.get(fold(name), 0) > 1:
            out.append("another name here differs in case or form only, and some file systems take it for the same")
        return out


def attribute(fd: int, name: str) -> bytes:
    """An extended attribute of an open file; empty: it has none of this name."""
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return b""
        raise


def writers(data: bytes) -> set[tuple[int, int]] | None:
    """(tag, id) of the users and groups that an access list lets write; None: it is none.

    The form is that of include/uapi/linux/posix_acl_xattr.h, version 2.
    """
    if not data:
        return set()
    if len(data) % 8 != 4 or data[:4] != b"\2\0\0\0":
        return None
    rows = list(struct.iter_unpack("<HHI", data[4:]))
    mask = next((rights for tag, rights, _who in rows if tag == _MASK), 7)
    return {(tag, who) for tag, rights, who in rows if tag in (_USER, _GROUP) and rights & mask & _WRITE}


def is_plain(name: str) -> bool:
    """Does a person see all of this name?  Bytes that are no UTF-8 are shown as such, so they count as seen."""
    if name.isascii() and name.isprintable():
        return name == name.strip()
    shown = "".join(char for char in name if char != "\\" and not 0xDC80 <= ord(char) <= 0xDCFF)
    return escape(shown) == shown and name == name.strip()


def surroundings(base_fd: int, context: int) -> tuple[tuple[str, ...], tuple[ScanHit, ...]] | None:
    """(git directories of a tree, links that have protected names), all relative, wherever they are in it.

    Git directories are named, bare by their layout, or of submodules.  Links are not followed here, and that of a
    ``.git`` itself is left out: where it leads is a git directory by its layout.

    Args:
        context: of its top (``protect.root_context``).

    Returns: None: it has more directories than are looked at.
    """
    gits: list[str] = []
    links: list[ScanHit] = []
    todo, left = [("", context)], MOST_DIRECTORIES
    while todo:
        place, context = todo.pop()
        left -= 1
        if left < 0:
            return None
        try:
            fd = open_directory(base_fd, place)
        except OSError:
            continue  # closed to us, or gone: git of ours does not work in it either
        inner, aside, keys = [], [], set()
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(name)
                    elif entry.is_symlink():
                        aside.append(name)
                    if len(name) <= len("commondir"):  # the longest that says what the directory is
                        keys.add(name.lower())
        except OSError:
            continue
        finally:
            os.close(fd)
        if not place and isinstance(base_fd, Grafted):
            inner.append(GIT)
        is_one = fold(place.rpartition("/")[2]) in GIT_NAMES or protect.is_git_layout(keys)
        if is_one:
            gits.append(place)
        if context >= 0:
            context = settled(context, keys)
        prefix = f"{place}/" if place else ""
        for name in inner:
            key = fold(name)
            if not (is_one and key in _DATA):
                todo.append((prefix + name, classify(context, key, True, False)))
        for name in aside:
            key = fold(name)
            if key not in GIT_NAMES and classify(context, key, False, True) == protect.PROTECT:
                links.append(ScanHit(prefix + name, "protect", False, True))
    return tuple(gits), tuple(links)
