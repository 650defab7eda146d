"""git repositories of the workspace: objects are added, refs are moved from what they were, nothing is copied over.

Theory of operation
-------------------
The files of a git directory are not independent, and the host's git works on them as well.  So what a command did in a
repository that the workspace has is not applied file by file:

* *Objects* only come.  Each loose one must be what its name says; of a pack the index is made anew by
  ``git index-pack`` from the copy that is put in place, which reads every object in it.  What git derives from them
  (bitmaps, graphs) stays behind.
* *Refs* are compared as values, whether they are files or lines of ``packed-refs`` (gitrepository-layout(5)), and each
  is moved as git does it: under its ``.lock``, from the value that it had.  Where the host moved it meanwhile, the
  commits made inside arrive as ``refs/membrane/NAME/...``, to be merged by a person.
* *HEAD, the index, logs and the state* of a merge or a rebase come only where the host's HEAD did not move; else they
  would describe another history.  An index is compared by its entries: ``git status`` outside writes it anew.

A repository that is elsewhere (``grafted``) is shared with other work trees: what is theirs does not come, and a ref
that one of them is on is not moved (``gitseats``).  HEAD and the index are those of the *seat* of this one.

Nothing of this is a ``Conflict``: what cannot come is refused with its reason, and the rest comes.
A repository that the command made is a directory like any other; its objects are checked as well.

One file of over 800 lines: objects, refs and state of a repository are chosen together or not at all.
"""

from __future__ import annotations

import os
import time

from ..value import Value
from ..workspace.gitindex import hash_size
from ..workspace.protect import fold
from .base import Row
from .gitentries import entries, indexed
from .gitrefs import HEX, LARGEST_INDEX, LONGEST_REF, MOST_REFS, Refs, content, is_ref, is_value, value_of
from .gitseats import ELSEWHERE, SEATED, THEIRS, Seats, is_their_log
from .grafted import GIT, below, is_graft, pointed, seat_of
from .model import Change, Side
from .tree import Copy, look, open_directory, pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Literal, TypeAlias

    from .base import Base
    from .model import Kind

    Fate: TypeAlias = Literal["comes", "goes", "stays"]

PACK_TIME = 600  # seconds for the check of one pack
OBJECTS_TIME = 600  # seconds for the check of all loose objects of one apply
_OTHER = "it is not the object that its name says"
_TYPES = (b"blob", b"tree", b"commit", b"tag")
_LONGEST_HEAD = 32  # bytes before the content of a loose object (object-file.c, MAX_HEADER_LEN)
_DERIVED = (".rev", ".bitmap", ".mtimes", ".keep", ".promisor", ".lock")
_LOCKED = frozenset({"HEAD", "index", "packed-refs", "config", "config.worktree"})
# What makes a directory a repository (setup.c, is_git_directory).
_NEEDED = (("HEAD", ("file", "link")), ("objects", ("directory",)), ("refs", ("directory",)))
# What says nothing of where HEAD is: settings, and other repositories.
_APART = frozenset({"config", "config.worktree", "hooks", "info", "description", "branches", "modules", "worktrees"})
_SHARED = frozenset({"objects", "refs", "packed-refs"})
_ALTERNATES = frozenset({"alternates", "http-alternates"})  # gitrepository-layout(5), in objects/info
_REPLACED = "git shows another object in place of the one that it names"  # git-replace(1)
_MOVED = "HEAD or its branch was moved in the workspace meanwhile"


class Arrived(Value):
    """Commits that could not be put under their own name: the ``ref`` that the command moved, and the new name."""

    repository: str  # the directory above ``.git``, relative to the workspace
    ref: str
    name: str

    @property
    def command(self) -> str:
        """What a person types to have them, quoted for a shell: git takes ``;`` and ``$`` in the name of a branch."""
        import shlex

        where = f"-C {shlex.quote(self.repository)} " if self.repository else ""
        return f"git {where}{'merge' if self.ref.startswith('refs/heads/') else 'show'} {shlex.quote(self.name)}"


def lock_of(repository: str, path: str) -> str:
    """The lock file that git takes before it writes ``path``; empty: it takes none."""
    inner = _seat(path[len(repository) + 1 :])[1]
    return f"{path.rpartition('/')[2]}.lock" if inner in _LOCKED or inner.startswith("refs/") else ""


def rank(repository: str, change: Change) -> int:
    """In which order things come: objects before the refs that lead to them, HEAD and the index at last."""
    inner = change.path[len(repository) + 1 :]
    if change.after is not None and change.after.what == "directory":
        return 0
    if inner.startswith("objects/"):
        return 1 if inner.endswith(".pack") or "/pack/" not in inner else 2
    return 4 if inner.startswith("refs/") or inner == "packed-refs" else 5


class Repositories:
    """Rewrites the changes of git directories.

    Args:
        copy: the copy.
        base: what the workspace held.
        name: of the change set.
    """

    def __init__(self, copy: Copy, base: Base, name: str) -> None:
        self._copy, self._base, self._name = copy, base, name
        self._host = Copy(copy.base_fd, ())
        self._seat = seat_of(copy.base_fd)  # of the workspace's own repository, ``.git``
        self._known: dict[str, bool] = {}
        self._above: dict[str, str] = {}  # the repository of what is in a directory
        self._shared: dict[str, Seats] = {}
        self.data: dict[str, bytes] = {}  # contents of ours, by path
        self.owner: dict[str, str] = {}  # the repository of each changed path that is in one
        self.values: dict[str, Row] = {}  # rows of refs, when they are put in place
        self.arrived: dict[str, Arrived] = {}  # by the path of the ref
        self._until: float | None = None  # when the check of loose objects must have ended

    def repository(self, path: str) -> str:
        """The git directory of the workspace that holds ``path``; empty: none."""
        above = path.rpartition("/")[0]
        known = self._above.get(above)
        if known is None:
            known = self._above[above] = self._innermost(above)
        return known

    def _innermost(self, place: str) -> str:
        while place:
            if self._is_one(place):
                return place
            place = place.rpartition("/")[0]
        return ""

    def _is_one(self, place: str) -> bool:
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = all(self._what(f"{place}/{name}") in what for name, what in _NEEDED)
        return known

    def _what(self, path: str) -> str:
        try:
            there = look(self._copy.base_fd, path)
        except OSError:
            return ""
        return "" if there is None else there.what

    def is_object(self, path: str) -> bool:
        """Is it the name of an object, or of a pack, of a repository of the workspace?"""
        place = self.repository(path)
        inner = path[len(place) + 1 :]
        return bool(place) and bool(loose_name(inner) or pack_name(inner))

    def keeps(self, path: str, new: Collection[str]) -> bool:
        """Is it among the objects of a repository that was there before the names ``new`` came?"""
        place = self.repository(path)
        return bool(place) and f"{place}/HEAD" not in new and path[len(place) + 1 :].startswith("objects/")

    def rewritten(self, changes: Iterable[Change]) -> list[Change]:
        """The changes, with those of git directories as they may be put in place, sorted by path."""
        out: list[Change] = []
        parts: dict[str, list[Change]] = {}
        for change in changes:
            place = self.repository(change.path)
            if place:
                parts.setdefault(place, []).append(change)
            else:
                out.append(change)
        for place, rows in parts.items():
            out += self._of(place, rows)
        out.sort(key=lambda change: os.fsencode(change.path))
        return out

    def _seat_in(self, place: str) -> str:
        """The part of a repository that is this work tree's, with its slash; empty: it is not shared with others."""
        return self._seat if place == GIT else ""

    def made_inside(self, change: Change) -> Change:
        """A change that is in no repository of the workspace, perhaps in one that the command made."""
        if is_graft(self._copy.base_fd, change.path):
            return _never(change, "it is the repository itself, which is outside of the workspace")
        if any(below(self._copy.base_fd, path)[0] != self._copy.base_fd for path in change.paths):
            return _never(change, "the repository of the workspace lacks, or links, what makes it one")
        # By its name, wherever it is: a link may be what makes it the list of a repository.
        if change.after is not None and fold(change.path.rpartition("/")[2]) in _ALTERNATES:
            return _never(change, "git takes objects from where it points")
        return change

    def _of(self, place: str, changes: list[Change]) -> list[Change]:
        seat, seats = self._seat_in(place), self._seats(place)
        if self._seat and place.startswith(f"{GIT}/") and self._seats(GIT).theirs(place[len(GIT) + 1 :]):
            return [_never(change, THEIRS) for change in changes]  # a submodule of the main work tree
        for name, what in (*_NEEDED, *((seat + name, ("file",)) for name in SEATED if seat)):
            there = self._copy.find(f"{place}/{name}")
            if there is None or there[1].what not in what:
                first = next((change for change in changes if change.path == f"{place}/{name}"), changes[0])
                return [_never(first, "a repository of the workspace is not taken away")]
        out: list[Change] = []
        refs = False
        rest: list[Change] = []
        for change in changes:
            inner = change.path[len(place) + 1 :]
            if why := seats.theirs(inner):
                out += [] if is_their_log(inner) else [_never(change, why)]
            elif inner == "objects" or inner.startswith("objects/"):
                out += self._object(inner, change)
            elif inner == "packed-refs" or inner.startswith("refs/"):
                refs = True
            elif inner.startswith("reftable"):
                out.append(_never(change, "refs in a reftable are not put in place"))
            else:
                rest.append(change)
        moved = self._has_moved(place)
        fate: dict[str, Fate] = {}
        if refs:
            out += self._refs(place, moved, fate)
            rest += self._logs(place, rest, fate)
        for change in rest:
            inner = change.path[len(place) + 1 :]
            kept = self._log(place, change, fate) if inner.startswith("logs/refs/") else None
            if kept is None:
                kept = self._plain(place, change, moved)
            if kept is not None:
                out.append(kept)
        for change in out:
            self.owner[change.path] = place
        return out

    # ------------------------------------------------------------ objects

    def _object(self, inner: str, change: Change) -> list[Change]:
        name = inner.rpartition("/")[2]
        if change.after is None or name.endswith(_DERIVED) or inner.startswith("objects/info/commit-graph"):
            return []
        if inner in ("objects/info/packs", "objects/info/commit-graphs", "objects/pack/multi-pack-index"):
            return []
        if change.kind in ("mode", "attributes"):
            return []
        if change.after.what == "directory":
            known = inner in ("objects/pack", "objects/info") or _is_hex(inner.removeprefix("objects/"), 2)
            return [change if known else _never(change, "git writes no such name among its objects")]
        if change.kind != "added":
            return [_never(change, "an object never changes")]
        if change.after.what != "file" or not (loose_name(inner) or pack_name(inner)):
            return [_never(change, "git writes no such name among its objects")]
        # Read-only, as git writes them: an object that can be executed is none.
        return [change.replace(after=change.after.replace(mode=0o444))]

    # ------------------------------------------------------------ refs

    def _refs(self, place: str, moved: bool, fate: dict[str, Fate]) -> list[Change]:
        """The changes of refs; ``fate`` gets what happens to each of these."""
        seat = self._seat_in(place)
        head = value_of(content(self._host, f"{place}/{seat}HEAD", LONGEST_REF)).removeprefix("ref: ") if moved else ""
        checked_out, seats = self._checked_out(place), self._seats(place)
        elsewhere = seats.refs()
        inside, host = Refs(self._copy, place), Refs(self._host, place)
        if inside.broken or host.broken:
            why = "the refs cannot be read, or are more than are looked at"
            return [Change(f"{place}/refs", "changed", None, None, never=(why,))]
        out: list[Change] = []
        gone: list[str] = []
        for ref in sorted({*inside.values, *host.values}):
            new, old = inside.values.get(ref, ""), host.values.get(ref, "")
            key = f"{place}//{ref}"
            row = self._base.rows.get(key)
            if new == old or (row is not None and row.content == new):
                continue
            path = f"{place}/{ref}"
            if why := seats.theirs(ref):
                out.append(Change(path, "changed", None, None, never=(why,)))
                continue
            if not is_ref(ref):
                out.append(Change(path, "changed", None, None, never=("git takes no such name for a ref",)))
                continue
            if row is None and not (old and self._is_new(host, place, ref)):
                row = Row("ref", 0, old)
                self._base.rows[key] = row
            if not new and (ref in checked_out or ref in elsewhere):
                why = ELSEWHERE if ref in elsewhere else "it is checked out in the workspace"
                out.append(Change(path, "changed", None, None, never=(why,)))
                continue
            # Where the host's HEAD has moved, neither does the branch that it is on now, under its files.
            if row is None or row.content != old or ref == head or ref in elsewhere:
                out += self._arrives(place, ref, new)
                fate[ref] = "stays"
                continue
            if new and not is_value(new, ref):
                out.append(Change(path, "changed", None, None, never=("it holds no name of an object",)))
                continue
            self.values[path] = Row("ref", 0, new)
            if not new:
                gone.append(ref)
            if new:
                written = self._written(path, host.loose.get(ref), new)
                out.append(written.replace(red=(_REPLACED,)) if ref.startswith("refs/replace/") else written)
            elif ref in host.loose:
                out.append(Change(path, "deleted", host.loose[ref], None, content=True))
        packed = [ref for ref in gone if ref in host.packed]
        if packed:
            out.append(self._unpacked(place, packed, host))
        out = self._placed(place, out, frozenset(host.values).difference(gone))
        fate.update(dict.fromkeys(gone, "goes"))
        for change in out:
            if change.never or (change.what == "file" and change.after and change.path != f"{place}/packed-refs"):
                fate[change.path[len(place) + 1 :]] = "stays" if change.never else "comes"
        return out

    def _seats(self, place: str) -> Seats:
        """What of a repository is another work tree's."""
        return self._shared.setdefault(place, Seats(self._host, place, self._seat_in(place)))

    def occupied(self, ops: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Refs that may not be taken from under a work tree that is on them by now; each with the reason.

        Args:
            ops: what was done at which path, as ``transaction.Op`` has it.
        """
        done = {path: do for do, path in ops}
        known: dict[str, tuple[frozenset[str], str]] = {}
        out = []
        for path, do in done.items():
            place = self.repository(path)
            ref = path[len(place) + 1 :]
            if not place or not ref.startswith("refs/"):
                continue
            if place not in known:
                head = f"{self._seat_in(place)}HEAD"
                own, row = value_of(content(self._host, f"{place}/{head}")), self._base.rows.get(f"{place}//{head}")
                if f"{place}/{head}" in done or (row is not None and row.content == own):
                    own = ""  # it goes back as well, or was there before: on a branch without a commit
                known[place] = Seats(self._host, place, self._seat_in(place)).refs(), own.removeprefix("ref: ")
            elsewhere, own = known[place]
            if ref in elsewhere or (do == "new" and ref == own):
                out.append((path, ELSEWHERE if ref in elsewhere else "HEAD is on that branch by now"))
        return out

    def _checked_out(self, place: str) -> frozenset[str]:
        """The refs that the HEAD of a work tree names, on the host and in the copy alike."""
        heads = ["HEAD", *(f"worktrees/{name}/HEAD" for name in self._host.names(f"{place}/worktrees"))]
        found = set()
        for head in heads:
            values = {value_of(content(view, f"{place}/{head}", LONGEST_REF)) for view in (self._host, self._copy)}
            found |= values if len(values) == 1 else set()
        return frozenset(value.removeprefix("ref: ") for value in found)

    def _logs(self, place: str, changes: list[Change], fate: dict[str, Fate]) -> list[Change]:
        """The logs of deleted refs that the command has left: git cannot log a ref below such a name (git gc fails)."""
        known = {change.path for change in changes}
        out = []
        for ref, what in fate.items():
            path = f"{place}/logs/{ref}"
            there = look(self._copy.base_fd, path) if what == "goes" and path not in known else None
            if there is not None and there.what == "file":
                out.append(Change(path, "deleted", there, None, content=True))
        return out

    def _log(self, place: str, change: Change, fate: dict[str, Fate]) -> Change | None:
        """A log, or a directory of logs, goes with its ref; None: as all else."""
        ref = change.path[len(place) + len("/logs/") :]
        what = fate.get(ref)
        if change.never or change.red:
            return None
        if change.what == "directory":
            return change if change.kind != "type" or what == "goes" else None
        if what == "goes" and change.after is None:
            return change
        if what == "goes" and change.before is not None and change.before.what == "file":
            return Change(change.path, "deleted", change.before, None, content=True)  # whatever the command left there
        if what in ("stays", "goes"):
            return _never(change, "its ref stays as it is")
        if what is None:
            return None
        why = "" if change.kind == "type" else self._base.conflict(self._copy, change)
        return _never(change, why) if why else change

    def _is_new(self, host: Refs, place: str, ref: str) -> bool:
        """May the host have moved a ref that it has since the set was made?"""
        there = host.loose.get(ref) or look(self._copy.base_fd, f"{place}/packed-refs")
        return there is not None and self._base.is_new(there)

    def _arrives(self, place: str, ref: str, new: str) -> list[Change]:
        if not new or not is_value(new, ref) or not ref.startswith(("refs/heads/", "refs/tags/")):
            why = "it was moved in the workspace meanwhile"
            return [Change(f"{place}/{ref}", "changed", None, None, never=(why,))]
        name = f"refs/membrane/{self._name}/{ref.removeprefix('refs/')}"
        path = f"{place}/{name}"
        there = look(self._copy.base_fd, path)
        repository = place.rpartition("/")[0]
        self.arrived[path] = Arrived(repository, ref, name)
        if there is not None and value_of(content(self._host, path)) == new:
            return []
        return [self._written(path, there, new)]

    def _written(self, path: str, there: Side | None, value: str) -> Change:
        data = f"{value}\n".encode()
        self.data[path] = data
        after = Side("file", 0o644, len(data), "", 0, 0, 0, 0, 0, 0, 1, 0)
        return Change(path, "changed" if there is not None else "added", there, after, -2, content=True)

    def _unpacked(self, place: str, refs: list[str], host: Refs) -> Change:
        """``packed-refs`` without some lines, and without what git says of each below it."""
        gone = {os.fsencode(ref) for ref in refs}
        out, skip = [], False
        for line in host.text.splitlines(keepends=True):
            skip = skip if line.startswith(b"^") else line.rstrip(b"\n").partition(b" ")[2] in gone
            if not skip:
                out.append(line)
        path = f"{place}/packed-refs"
        self.data[path] = b"".join(out)
        before = look(self._copy.base_fd, path)
        after = Side("file", 0o644, len(self.data[path]), "", 0, 0, 0, 0, 0, 0, 1, 0)
        return Change(path, "changed", before, after, -2, content=True)

    def _placed(self, place: str, changes: list[Change], staying: Collection[str]) -> list[Change]:
        """``changes`` of refs with the directories that they need, and without those that are in their way.

        A ref may have the name of what was a directory of refs, and the other way round (git branch -m a a/b).

        Args:
            staying: the host's refs that are not deleted.
        """
        above = {ref[:at] for ref in staying for at, char in enumerate(ref) if char == "/"}
        gone = {change.path for change in changes if change.after is None and not change.never}
        out = {change.path: change for change in changes}
        for change in changes:
            if change.after is None or change.path == f"{place}/packed-refs":
                continue
            ref = change.path[len(place) + 1 :]
            if any(ref[:at] in staying for at, char in enumerate(ref) if char == "/"):
                out[change.path] = _never(change, "a ref of the workspace has the name of its directory")
                continue
            there = look(self._copy.base_fd, change.path)
            is_one = there is not None and there.what == "directory"
            if ref in above or (is_one and any(path not in gone for path in self._files(change.path))):
                out[change.path] = _never(change, "the workspace has refs below this name")
                continue
            if is_one:
                out[change.path] = change.replace(kind="type", before=there)
                for path, side in self._directories(change.path):
                    out[path] = Change(path, "deleted", side, None, content=True)
            parent = change.path.rpartition("/")[0]
            while len(parent) > len(place):
                there = look(self._copy.base_fd, parent)
                if there is not None and there.what == "directory":
                    break
                if there is not None and parent not in gone:
                    out[change.path] = _never(change, "a ref of the workspace has the name of its directory")
                    break
                after = Side("directory", 0o755, 0, "", 0, 0, 0, 0, *_owner(self._copy.base_fd, place), 1, 0)
                kind: Kind = "added" if there is None else "type"
                out[parent] = Change(parent, kind, there, after, -2, content=there is not None)
                parent = parent.rpartition("/")[0]
        return list(out.values())

    def _directories(self, place: str) -> list[tuple[str, Side]]:
        """The host's directories below a directory."""
        out, todo = [], [place]
        while todo:
            here = todo.pop()
            for name in self._host.names(here):
                path = f"{here}/{name}"
                there = look(self._copy.base_fd, path)
                if there is not None and there.what == "directory":
                    out.append((path, there))
                    todo.append(path)
        return out

    # ------------------------------------------------------------ all else

    def _has_moved(self, place: str) -> bool:
        """Did the host's HEAD, or the branch that it names, move since the set was made, so far as can be known?"""
        head = f"{self._seat_in(place)}HEAD"
        path = f"{place}/{head}"
        there = look(self._copy.base_fd, path)
        if there is None:
            return True
        text = value_of(content(self._host, path))
        key = f"{place}//{head}"
        row = self._base.rows.get(key)
        if row is None:
            if self._base.is_new(there):
                return True
            row = self._base.rows[key] = Row("ref", 0, text)
        if row.content != text:
            return True
        ref = text.removeprefix("ref: ") if text.startswith("ref: ") else ""
        if not ref:
            return False
        host = Refs(self._host, place)
        value = host.values.get(ref, "")
        known = self._base.rows.get(f"{place}//{ref}")
        if known is None:
            if self._is_new(host, place, ref):
                return True
            known = self._base.rows[f"{place}//{ref}"] = Row("ref", 0, value)
        return known.content != value

    def _plain(self, place: str, change: Change, moved: bool) -> Change | None:
        """HEAD, index, logs, state, configuration: a file that comes as it is, or not at all."""
        inner = change.path[len(place) + 1 :]
        inner = inner.removeprefix(self._seat_in(place))  # what else is in ``worktrees`` does not get here then
        if change.never:
            return change
        if inner.endswith(".lock"):
            return _never(change, "a lock that git has left")
        if inner == "shallow":
            change = change.replace(red=(*change.red, "git takes the history for cut off where it says"))
        if inner == "index":
            return self._index(place, change, moved)
        if moved and inner.partition("/")[0] not in _APART:
            return _never(change, _MOVED)
        if inner == "HEAD" and change.after is not None:
            value = value_of(content(self._copy, change.path, LONGEST_REF))
            if not is_value(value, "refs/remotes/x/HEAD"):  # the form of a symbolic ref, or of a commit
                return _never(change, "it names no ref and no commit")
            if value.removeprefix("ref: ") in self._seats(place).refs():
                return _never(change, ELSEWHERE)
            self.values[change.path] = Row("ref", 0, value)
        why = self._base.conflict(self._copy, change)
        return _never(change, why) if why else change

    def _index(self, place: str, change: Change, moved: bool) -> Change | None:
        if change.before is None or change.after is None:
            return _never(change, _MOVED) if moved else change
        width = self._width(place)
        mine = entries(content(self._copy, change.path), width)
        theirs = entries(content(self._host, change.path), width)
        if moved:
            return None if mine == theirs else _never(change, _MOVED)
        key = f"{place}//{self._seat_in(place)}index"
        row = self._base.rows.get(key)
        if row is None and not self._base.is_new(change.before):
            row = self._base.rows[key] = Row("index", 0, theirs)
        if mine == theirs or (row is not None and row.content == mine):
            return None  # only what it remembers of the files differs, or only the host changed it
        if row is None or row.content != theirs:
            return _never(change, "the index was changed in the workspace meanwhile")
        self.values[change.path] = Row("index", 0, mine)
        return change

    def _width(self, place: str) -> int:
        return hash_size(content(self._host, f"{place}/config").decode("utf-8", "surrogateescape"))

    # ------------------------------------------------------------ the check of what is in the stage

    def objection(self, change: Change, read: Callable[[], int]) -> str:
        """Why a loose object is not what its name says; empty: it is."""
        if "objects/" not in change.path:
            return ""
        place = self.owner.get(change.path, "")
        inner = change.path[len(place) + 1 :] if place else _inner(change.path)
        name = loose_name(inner)
        if not name or change.after is None:
            return ""
        fd = read()
        try:
            if self._until is None:
                self._until = time.monotonic() + OBJECTS_TIME
            return _objection_to(fd, name, self._until)
        finally:
            os.close(fd)

    def lacking(self, chosen: Iterable[Change], slots: dict[str, str], stage: str) -> dict[str, str]:
        """Which of the chosen changes lead to objects that will not be there, with the reason.

        Args:
            slots: the file in the ``stage`` of each path.
        """
        parts: dict[str, list[Change]] = {}
        for change in (chosen := tuple(chosen)):
            place = self.owner.get(change.path, "")
            if place:
                parts.setdefault(place, []).append(change)
        out: dict[str, str] = {}
        for place, changes in parts.items():
            out |= self._lacking(place, changes, slots, stage)
        out |= self._unpointed({change.path: change for change in chosen if change.path not in out}, slots, stage)
        return out

    def _unpointed(self, coming: dict[str, Change], slots: dict[str, str], stage: str) -> dict[str, str]:
        """What would leave a ``.git`` file that points to no git directory: git fails there, and often above it."""
        gone = {
            path for change in coming.values() for path in change.paths if path == change.source or not change.after
        }
        out: dict[str, str] = {}
        for path, change in coming.items():
            if change.what != "file" or path not in slots or fold(path.rpartition("/")[2]) != ".git":
                continue
            text = os.fsdecode(_whole(stage, slots[path]))
            place = pointed(self._copy.base_fd, path, text)
            head = f"{place}/HEAD"
            there = head not in gone and (head in coming or self._what(head) != "")
            if place and not there:
                out[path] = "the git directory that it points to does not come"
        seats = {}
        for path in gone:
            place = self.owner.get(path, "")
            seat = _seat(path[len(place) + 1 :])[0] if place else ""
            if seat:
                seats[f"{place}/{seat[:-1]}"] = place
        for seat in seats:
            if self._copy.find(f"{seat}/HEAD") is not None:
                continue  # it does not go: what does is the state of a merge, or the like
            pointer = pointed(
                self._copy.base_fd, f"{seat}/gitdir", "gitdir: " + os.fsdecode(content(self._host, f"{seat}/gitdir"))
            )
            stays = pointer and pointer not in gone and self._what(pointer) == "file"
            if stays or any(path not in gone for path in self._files(seat)):
                why = "the linked work tree goes as a whole, with its .git file, and some of that stays"
                out |= dict.fromkeys((path for path in gone & coming.keys() if path.startswith(f"{seat}/")), why)
        return out

    def _files(self, place: str) -> list[str]:
        """All of the host's names below a directory that are no directories."""
        out: list[str] = []
        todo = [place]
        while todo and len(out) <= MOST_REFS:
            here = todo.pop()
            try:
                names = [f"{here}/{name}" for name in self._host.names(here)]
            except OSError:
                return [here]
            for path in names:
                (todo if self._what(path) == "directory" else out).append(path)
        return [place] if todo else out

    def _lacking(self, place: str, changes: list[Change], slots: dict[str, str], stage: str) -> dict[str, str]:
        from .connected import lacking

        coming, tips, lists = {}, {}, {}
        width = self._width(place)
        seats = {""}
        for change in changes:
            slot, inner = slots.get(change.path), change.path[len(place) + 1 :]
            if slot is None or change.after is None or change.after.what != "file":
                continue
            if loose_name(inner) or pack_name(inner):
                coming[inner.removeprefix("objects/")] = slot
                continue
            seat, inner = _seat(inner)
            seats.add(seat)
            if inner == "HEAD" or inner.startswith("refs/"):
                name = value_of(_whole(stage, slot))
                if not name.startswith("ref: "):
                    tips[change.path] = name
            elif inner.startswith("logs/"):
                lists[change.path] = _logged(_whole(stage, slot)) - _logged(content(self._host, change.path))
            elif inner == "index" or inner.startswith("sharedindex."):
                mine = indexed(_whole(stage, slot), width)
                lists[change.path] = mine - indexed(content(self._host, change.path), width)
        known = [name for name in Refs(self._host, place).values.values() if is_value(name, "")]
        shallow = content(self._host, f"{place}/shallow")
        host = open_directory(self._host.base_fd, f"{place}/objects")
        root = os.readlink(f"/proc/self/fd/{self._host.base_fd}")
        try:
            found = lacking(stage, coming, host, known, tips, lists, width, shallow, root=root)
        finally:
            os.close(host)
        for seat in seats:
            self._follow(place, seat, changes, found)
        return found

    def _follow(self, place: str, seat: str, changes: list[Change], found: dict[str, str]) -> None:
        """What says where the HEAD of a work tree is describes a history that does not come."""
        head = value_of(content(self._copy, f"{place}/{seat}HEAD", LONGEST_REF))
        if not found.keys() & {f"{place}/{seat}HEAD", f"{place}/{head.removeprefix('ref: ')}"}:
            return
        for change in changes:
            inner = f"{change.path[len(place) + 1 :]}/"
            first = inner.partition("/")[0]
            if inner.startswith(seat) if seat else first not in _APART and first not in _SHARED:
                found.setdefault(change.path, "the commits that it is about do not come: objects are not there")

    def rows_of(self, paths: Iterable[str]) -> dict[str, Row]:
        """Rows of refs and indexes that were put in place."""
        out = {}
        for path in paths:
            row = self.values.get(path)
            if row is not None:
                place = self.owner[path]
                out[f"{place}//{path[len(place) + 1 :]}"] = row
        return out


def _seat(inner: str) -> tuple[str, str]:
    """(the part of a repository that is a linked work tree's, with its slash, or nothing; the name in it)."""
    parts = inner.split("/", 2)
    return (f"{parts[0]}/{parts[1]}/", parts[2]) if parts[0] == "worktrees" and len(parts) == 3 else ("", inner)


def _never(change: Change, why: str) -> Change:
    return change.replace(never=(*change.never, why))


def _inner(path: str) -> str:
    """The path below the git directory, of a repository that the command made."""
    before, found, after = f"/{path}".rpartition("/objects/")
    return f"objects/{after}" if found and before else ""


def loose_name(inner: str) -> str:
    """The name of a loose object by its path in the git directory; empty: it is none."""
    parts = inner.split("/")
    if len(parts) != 3 or parts[0] != "objects" or not _is_hex(parts[1], 2):
        return ""
    return parts[1] + parts[2] if len(parts[2]) in (38, 62) and _is_hex(parts[2], len(parts[2])) else ""


def pack_name(inner: str) -> str:
    """The name of a pack, of its data or its index, without the ending; empty: it is none."""
    name = inner.removeprefix("objects/pack/")
    stem, _, ending = name.partition(".")
    known = ending in ("pack", "idx") and stem.startswith("pack-") and name != inner
    return stem if known and _is_hex(stem[5:], len(stem) - 5) and len(stem) in (45, 69) else ""


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and length > 0 and HEX.issuperset(text)


def _objection_to(fd: int, name: str, until: float) -> str:
    """Why the deflated content of a file is not the object of this name; whatever its size, in bounded memory.

    A little that is deflated may be a thousand times as much (RFC 1951): so the time is bounded as well.
    """
    import zlib
    from hashlib import sha1, sha256

    made = sha1(usedforsecurity=False) if len(name) == 40 else sha256()
    stream = zlib.decompressobj()
    head, size = b"", 0
    try:
        for piece in pieces(fd):
            while piece:
                if time.monotonic() > until:
                    return f"the objects took more than {OBJECTS_TIME} seconds to read"
                part = stream.decompress(piece, 1 << 20)
                made.update(part)
                head += part[: _LONGEST_HEAD - len(head)]
                size += len(part)
                piece = stream.unconsumed_tail
            if stream.eof:
                break
        part = stream.flush()
        made.update(part)
        head, size = head + part[: _LONGEST_HEAD - len(head)], size + len(part)
    except zlib.error:
        return _OTHER
    is_whole = stream.eof and not stream.unused_data and made.hexdigest() == name
    return "" if is_whole and _is_object(head, size) else _OTHER


def _is_object(head: bytes, size: int) -> bool:
    """Does what begins so, and has so many bytes, have the form of an object (object-file.c, parse_loose_header)?"""
    words, nul, _content = head.partition(b"\0")
    kind, _, length = words.partition(b" ")
    return bool(nul) and kind in _TYPES and length == b"%d" % (size - len(words) - 1)


def index_pack(stage: str, pack: str, idx: str, width: int, *, root: str) -> str:
    """Make the index of a pack anew, which reads and hashes every object in it; why that failed, or empty.

    Args:
        stage: a directory of ours.
        pack: the name of the pack in it.
        idx: the name that the index gets.
        width: bytes of the name of an object.
        root: as of ``connected.lacking``.
    """
    import subprocess

    from .connected import bounded
    from .outside import program, search_path

    git = program("git", root)
    if git is None:
        return "there is no git here that could check it"
    environment = {
        "PATH": search_path(root),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_DIR": f"{stage}/.none",
        "LC_ALL": "C",
    }
    form = "sha256" if width == 32 else "sha1"
    # git names the ending: it takes no pack without.
    os.link(f"{stage}/{pack}", f"{stage}/{pack}.pack")
    try:
        done = subprocess.run(
            bounded((git, "-c", "pack.writeReverseIndex=false", "index-pack", f"--object-format={form}", "-o",
                     f"{stage}/{idx}.idx", f"{stage}/{pack}.pack")),
            cwd=stage, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=PACK_TIME, check=False,
        )  # fmt: skip
        if done.returncode:
            return "git index-pack does not take it for a pack, or needs too much memory for it"
        os.rename(f"{stage}/{idx}.idx", f"{stage}/{idx}")
    except subprocess.TimeoutExpired:
        return f"git index-pack took more than {PACK_TIME} seconds"
    finally:
        os.unlink(f"{stage}/{pack}.pack")
    return ""


def _whole(stage: str, slot: str) -> bytes:
    with open(f"{stage}/{slot}", "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
        return file.read(LARGEST_INDEX)


def _logged(data: bytes) -> frozenset[str]:
    """The objects that a reflog names (git-reflog(1): the old and the new one lead each line)."""
    names = {word.decode("ascii", "replace") for line in data.splitlines() for word in line.split(b" ", 2)[:2]}
    return frozenset(name for name in names if len(name) in (40, 64) and HEX.issuperset(name) and name.strip("0"))


def _owner(base_fd: int, place: str) -> tuple[int, int]:
    fd = open_directory(base_fd, place)
    try:
        details = os.fstat(fd)
        return details.st_uid, details.st_gid
    finally:
        os.close(fd)
