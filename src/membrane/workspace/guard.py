"""File rules while the command runs: names that appear are masked, frozen or put aside.

Theory of operation
-------------------
The mounts made at the start bind what existed then.  The kernel drops a mount when a process outside replaces the
file below it (an editor's atomic save), and new names have no mount at all.  The guard watches the workspace from
outside and closes both gaps after the fact, within milliseconds: a hidden name gets a new mask, a read-only one a new
read-only mount, and a protected name that is not what git itself writes loses its name: it is renamed where it is
(``aside.put_aside``), to one that no program obeys.  A name of tools stays as a commit from before the run has it
(``commits``); what was that once and is changed is put aside, and put back as it was.  When no process of the sandbox
is left, what was put aside goes to the quarantine, if it can, and the tree is compared with the index of the start
once more.

No grace: each name is judged as soon as it is seen, and again when it is opened or written.  A file that a process
holds open for writing could be changed through a mapping, which no event reports: it is judged again every few
milliseconds, and goes when that lasts longer than a second.  A name that was put aside and made again, over and over,
ends the run, for each time it is there for some milliseconds.

The guard runs in the supervisor's loop, which also keeps the time limit and signals.  So every turn has a budget:
masks come first, then judgements for a few milliseconds, each of a bounded input; what waits is bounded as well, and
beyond that the run ends.  Nothing is ever forgotten: what cannot be watched is looked at in turns, and more than can
be looked at is not benign.
"""

from __future__ import annotations

import os
import stat
import time

from ..events import AccessDenied, NameQuarantined, access_as_data
from ..plan.model import Mask, ReadOnly
from ..policy import reasons
from ..policy.model import PathAccess
from .aside import open_up, put_aside, put_back, quarantine
from .below import open_file
from .beside import seen
from .effort import Effort
from .judge import (
    LONGEST_PATH,
    UNANSWERED,
    Holder,
    is_only_for_now,
    is_told,
    judge,
    pointer_target,
    tree_row,
)
from .protect import BY_LAYOUT, GIT, GIT_NAMES, KIND, LARGEST_READ, LAYOUT, fold, is_git_layout
from .scan import rescan
from .sockets import Appeared
from .watch import SLICE, Watcher, Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..events import Event
    from ..host.unixsockets import Table
    from ..plan.model import MountOp, ScanHit
    from .addresses import Trees
    from .commits import Committed
    from .scan import Entry, ScanResult

_REALTIME_COARSE = 5  # linux/time.h: what inodes are stamped with
DEEPEST_CLOSED = 64  # closed directories within each other that are opened again at the end
MOST_MOVED = 500  # times that names are taken away in one session before the command is ended
MOST_RETURNS = 8  # times that one name is taken away before the command is ended
MOST_WAITING = 65_536  # names that wait for their judgement before the command is ended
MOST_UNWATCHED = 4_096  # benign names whose writes are not reported; one more is not benign
MOST_KEPT = 1_000  # names of tools in new repositories that are reported at the end
AGAIN = 0.02  # seconds between two looks at names that may be written to unseen
PATIENCE = 5.0  # seconds that a process may hold a protected name open for writing, or git makes a worktree
MOST_UNANSWERED = 64  # worktrees that are being made outside
SETTLED = 100_000_000  # ns after which a change of a file shows in its times
IN_TURNS = 0.05  # share of the time for names that cannot be watched
LONGEST_END = 10.0  # seconds of a processor for the final sweep, and
PATIENCE_END = 60.0  # seconds for it in all; what was not looked at by then is said, and the run fails


class Guard(Holder, Watching):
    """Live file rules of one session.

    Args:
        root: the workspace.
        result: the scan of the start.
        shown: put before a path that is reported; empty for the workspace.
        store: host directory that protected names are moved to at the end; made when it is first needed.
        mask: mounts operations inside the sandbox.
        mounted: the mount points in the sandbox now.  A name that is replaced outside loses its mount by that, so one
            that has it was only listed again; another cover would hide its first read from the record.
        report: takes events.
        table: the unix sockets of the sandbox; None: those of others are not covered when they appear.
        empty: hidden names that were covered by what is empty, and are again when a process outside replaces them.
        tips: the commits that the repository had before the run (``origins.begin``).
    """

    def __init__(
        self,
        root: str,
        result: ScanResult,
        *,
        shown: str,
        store: str,
        mask: Callable[[Sequence[MountOp]], None],
        mounted: Callable[[], frozenset[str]] = frozenset,
        report: Callable[[Event], None],
        table: Table | None = None,
        empty: frozenset[str] = frozenset(),
        tips: bytes = b"",
        places: Trees | None = None,
    ) -> None:
        self._root = root
        self.places = places or Holder.places
        # Configuration of the start; and the clock of ctime(inode(7)), by which a link is one of this session.
        self._configs = [
            hit.path
            for hit in result.hits
            if hit.effect == "protect" and hit.path.rpartition("/")[2] in ("config", "config.worktree", ".gitmodules")
        ]
        self._began = time.clock_gettime(_REALTIME_COARSE)
        self._prefix = root.rstrip("/") + "/"
        self._index = result.index
        self._shown = shown
        self._empty = empty
        self._store = store
        self._mask, self._mounted = mask, mounted
        self._report = report
        self._tips = tips
        self._committed: Committed | None = None
        self._good: dict[str, tuple[bytes, bytes]] = {}  # files of tools: what of a commit they were seen to be last
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._watcher = Watcher(result.index, beside=result.index.beside)
        self._waiting: dict[str, None] = {}  # protected names to judge
        self._beside: dict[str, str] = {}  # names of ``beside`` in new work trees, and what comes before them
        self._judged = ""  # the name that is looked at, and
        self._since = 0.0  # since when it is known to be open for writing
        self._written: dict[str, float] = {}  # benign names that a process has open for writing: since when
        self._unanswered: dict[str, float] = {}  # links to worktrees outside that do not lead back yet: since when
        self._unwatched: dict[str, None] = {}  # benign names whose writes are not reported
        self._again_at = 0.0  # time.monotonic(); 0: nothing is to be looked at again
        self._returns: dict[str, int] = {}  # how often a name was put aside, and
        self._taken = 0  # all of them together
        self._aside: list[tuple[str, str]] = []  # (name, what it is called now; empty: it was removed)
        self._stuck: dict[str, None] = {}  # names that could not be put aside
        self._kept: dict[str, None] = {}
        self._benign: dict[str, tuple[int, int, int, int]] = {}  # large files that were judged, as they were
        self._hidden: frozenset[str] | None = None  # what rules hid at the start
        self._ended = False
        self._last: dict[str, Entry] = {}  # directories as the last walk found them
        self.overrun = ""  # why the command must be ended
        self.unfinished = ""  # why the final sweep is not whole
        self._sockets = Appeared(self._root_fd, self._prefix, table)
        self.left: list[str] = []  # protected names that could not be taken away
        self.kept: list[str] = []  # names of tools that a new repository below the top brought
        self.moved: list[tuple[str, str]] = []  # (path, where it went)

    def timeout(self) -> float | None:
        """Seconds after which ``on_change`` must be called though nothing is readable; None: no need."""
        if self._waiting:
            return 0.0
        wanted, sockets = self._watcher.timeout(), self._sockets.timeout()
        if sockets is not None:
            wanted = sockets if wanted is None else min(wanted, sockets)
        if not self._again_at:
            return wanted
        again = max(0.0, self._again_at - time.monotonic())
        return again if wanted is None else min(wanted, again)

    def on_change(self) -> None:
        """One turn: masks for what appeared, then judgements as far as the budget goes."""
        ops: list[MountOp] = []
        found = self._watcher.read()
        if self._watcher.beside:
            self._waiting.update(dict.fromkeys(self._look_beside(self._watcher.beside)))
            self._watcher.beside = {}
        covered = self._mounted() if any(name.known for name in found) else frozenset[str]()
        for name in found:
            target = self._prefix + name.path
            if name.known and target in covered:
                continue
            if name.effect == "socket":
                self._sockets.add(name.path)
            elif name.effect == "hide":
                ops.append(Mask(target, name.directory, empty=name.path in self._empty))
            elif name.effect == "readonly" or name.known:
                # A known protected name was replaced from outside: inside it was a mount point.
                ops.append(ReadOnly(target))
            else:
                if self._hides(name.path, name.directory):  # whoever made it, nobody inside reads it
                    ops.append(Mask(target, name.directory))
                self._waiting[name.path] = None
        ops += self._sockets.operations()
        if ops:
            self._mask(ops)
        if len(self._waiting) > MOST_WAITING:
            self.overrun = f"more than {MOST_WAITING} protected names waited for a look at them"
        until = time.monotonic() + SLICE
        while self._waiting and time.monotonic() < until:
            path = next(iter(self._waiting))
            del self._waiting[path]
            self._judge(path)
        if self._again_at and time.monotonic() >= self._again_at:
            self._look_again(until)

    # ------------------------------------------------------------ judgement

    def let_go(self, path: str) -> None:
        self._watcher.let_go(path)

    def hold(self, fd: int, path: str) -> str:
        """``judge`` reads a file: is every later write to it reported, and every change of where it leads?"""
        if self._ended:
            return ""
        if fold(path.rpartition("/")[2]) in GIT_NAMES:
            text = os.pread(fd, LONGEST_PATH, 0).decode("utf-8", "surrogateescape")
            target = pointer_target(self._root_fd, path, text)
            if target and not self._watcher.follow(path, target):
                return "there are more pointers than can be followed"
        holding = self._watcher.hold(fd, path, self._judged)
        if holding == "held":
            return ""
        now = time.monotonic()
        self._again_at = self._again_at or now + AGAIN
        watched = self._written if holding == "written" else self._unwatched
        if len(watched) >= MOST_UNWATCHED and self._judged not in watched:
            return "there are more names that are written to unseen than can be looked at"
        if holding == "unknown":
            self._unwatched[self._judged] = None
            return ""
        since = self._written.setdefault(self._judged, self._since or now)
        return "it is held open for writing" if now - since > PATIENCE else ""

    def is_written(self, path: str) -> bool:
        return path in self._written

    def is_same(self, path: str, status: os.stat_result) -> bool:
        watched = path not in self._written and path not in self._unwatched
        return watched and self._benign.get(path) == _identity(status)

    def is_benign(self, path: str, status: os.stat_result) -> None:
        if (
            time.time_ns() - status.st_ctime_ns > SETTLED
        ):  # a second change in the same tick of the clock would not show
            if len(self._benign) >= MOST_KEPT:
                self._benign.clear()
            self._benign[path] = _identity(status)

    def is_hidden(self, path: str) -> bool:
        if self._hidden is None:
            self._hidden = frozenset(
                hit[0] for entry in self._index.entries.values() for hit in entry[6] if hit[1] in "hx"
            )
        at = len(path)
        while at > 0:
            if path[:at] in self._hidden:
                return True
            at = path.rfind("/", 0, at)
        return False

    def _look_again(self, until: float) -> None:
        """At names that may be written unseen: all that are open for writing wait anew, the others take turns."""
        began = time.monotonic()
        self._waiting.update(dict.fromkeys((*self._written, *self._unanswered)))
        for path in list(self._unwatched):
            del self._unwatched[path]  # it comes back as the last one
            self._judge(path)
            if time.monotonic() > until:
                break
        now = time.monotonic()
        self._again_at = 0.0
        if self._written or self._unanswered:
            self._again_at = now + AGAIN
        elif self._unwatched:
            self._again_at = now + max(AGAIN, (now - began) / IN_TURNS)

    def _judge(self, path: str) -> None:
        self._judged = path
        self._since, since = self._written.pop(path, 0.0), self._unanswered.pop(path, 0.0)
        if path in self._beside:
            like = self._is_right_beside(path, self._beside[path])
            if like is None:
                self._waiting[path] = None
            elif not like:
                self._put_aside(path)
            return
        if self._is_kept(path):
            return
        if not self._ended and self._watcher.is_original(path):
            if self._is_held_open(path):
                self._put_aside(path)
            return
        there, row = os.path.lexists(self._prefix + path), tree_row(path)
        # Where the content decides, one that no commit has may be put in the place of a commit's.  It is read once:
        # what is written after that is told again, and a commit may have it.
        why = self._objection(path) if row is None or row.check else ""
        if self._tips and row is not None and (why or not row.check):
            like = self._is_as_committed(path)
            if like is None:
                self._waiting[path] = None  # the rest of the work is done in the next turn
            if like is not False:
                return
        if row is not None and not row.check:
            why = self._objection(path)
        if why is None:
            return
        if not why and self._ended and is_only_for_now(self._root_fd, path):
            why = "it is not needed any more"
        if why == UNANSWERED and self._may_be_answered(path, since):
            return
        if why:
            self._put_aside(path, why if is_told(path) else None)
        elif not there and row is not None and not row.check:
            self._report_refusal(path)  # it was there for a moment, and nothing that it could have held is benign

    def _objection(self, path: str) -> str | None:
        """What its judge says of a name; None: it is gone."""
        try:
            return judge(self._root_fd, path, holder=self)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return "it cannot be looked at"  # and so it is not benign

    def _may_be_answered(self, path: str, since: float) -> bool:
        """Is a worktree outside, of which there is no ``.git`` file yet, waited for?

        Args:
            since: when it was looked at first; 0: now.
        """
        now = time.monotonic()
        if self._ended or len(self._unanswered) >= MOST_UNANSWERED or (since and now - since > PATIENCE):
            return False
        self._unanswered[path] = since or now
        self._again_at = self._again_at or now + AGAIN
        return True

    def _look_beside(self, names: Iterable[str]) -> list[str]:
        """Those of the names that lie in what is a work tree now; they are judged as such from now on."""
        beside, found = self._index.beside, []
        for name in names if beside is not None else ():
            assert beside is not None
            for tree, whole, _way, linked in beside.places(name):
                if whole == name and self._is_work_tree(tree, name, linked):
                    self._beside[name] = f"{tree}/" if tree else ""
                    found.append(name)
                    break
            else:
                self._beside.pop(name, None)
        return found

    def _is_work_tree(self, tree: str, name: str, linked: bool) -> bool:
        first = fold(name[len(tree) :].strip("/").partition("/")[0])
        base = f"{self._prefix}{tree}/" if tree else self._prefix
        if os.path.lexists(f"{base}.git"):
            return not linked or not os.path.isdir(f"{base}.git")
        if linked:
            return False
        # A bare repository: what git obeys in one anyway is judged by rules of its own.
        keys = {each for each in LAYOUT if os.path.lexists(base + (each.upper() if each == "head" else each))}
        return is_git_layout(keys) and first not in BY_LAYOUT

    def _is_right_beside(self, name: str, tree: str) -> bool | None:
        """Is what configuration names in a new work tree as commits from before the run have it there?"""
        if not os.path.lexists(self._prefix + name):
            del self._beside[name]
            return True
        return self._is_as_committed(name, tree) if self._tips else False

    def _is_as_committed(self, path: str, tree: str | None = None) -> bool | None:
        """Is a name of tools, with all below it, as commits from before the run have it?  None: not known yet.

        ``tree``: what comes before the path that it has in the commits, where git's configuration names it.
        """
        from .commits import Committed, Later

        if self._committed is None:
            self._committed = Committed(self._root_fd, self._tips)
        self._committed.until = 0.0 if self._ended else time.monotonic() + SLICE
        stack, left = [path], MOST_KEPT
        try:
            while stack:
                one = stack.pop()
                try:
                    self.let_go(one)
                    fd = open_file(self._root_fd, one)
                except (FileNotFoundError, NotADirectoryError):
                    if one == path:
                        return self._committed.may_be(path, "file") or self._committed.may_be(path, "directory")
                    continue
                try:
                    below = self._below(fd, one, left, tree)
                finally:
                    os.close(fd)
                if below is None:
                    return False
                left -= len(below)
                stack += below
        except Later:
            return None
        except OSError:
            return False
        return True

    def _below(self, fd: int, path: str, most: int, tree: str | None) -> list[str] | None:
        """What else is to be looked at; None: this is not as a commit has it."""
        assert self._committed is not None
        place = path if tree is None else path[len(tree) :]
        mode = os.fstat(fd).st_mode
        if not stat.S_ISDIR(mode):
            if not stat.S_ISREG(mode) or self.hold(fd, path):
                return None
            partly = not self._ended and (self._judged in self._written or self._judged in self._unwatched)
            if not self._committed.differs(fd, place, partly=partly):
                if self._committed.found is not None and len(self._good) < MOST_UNWATCHED:
                    self._good[path] = self._committed.found
                return []
            return [] if self._is_mended(path) else None
        if not self._committed.may_be(place, "directory", named=tree is not None):
            return None
        if not self._ended:
            self._watcher.watch_listing(fd, self._judged)
        with os.scandir(fd) as listing:
            names = [entry.name for _, entry in zip(range(most + 1), listing, strict=False)]
        if len(names) > most:
            return None
        aside = {aside for _path, aside in self._aside}
        return [below for name in names if (below := f"{path}/{name}") not in aside]

    def _is_mended(self, path: str) -> bool:
        """Put a file aside that a commit has otherwise, and back what it was before: git thinks that it is there.

        git merged two of them, say.  It cannot write its index then (``tracer.locks``), and all is as it was.
        """
        assert self._committed is not None
        if path not in self._good and path == self._judged:
            return False
        self._put_aside(path)
        entry = self._good.get(path)
        if entry is not None:
            try:
                put_back(self._root_fd, path, *self._committed.content(entry))
            except OSError:
                pass  # then it is missing, which git shows
        return True

    def _is_held_open(self, path: str) -> bool:
        """A file that is as it was at the start was opened: is it kept open for writing, or mapped?

        What is in it is the caller's own, and is not judged.
        """
        self.let_go(path)
        try:
            fd = open_file(self._root_fd, path)
        except OSError:
            return False  # then it is not there any more, which is reported
        try:
            return bool(self.hold(fd, path))
        finally:
            os.close(fd)

    def _is_kept(self, path: str) -> bool:
        """Is it a name of tools in a repository that the session made below the top?"""
        if path in self._kept:
            return True
        at = path.find("/")
        while at > 0:
            place = path[:at]
            if place not in self._index.entries and os.path.lexists(f"{self._prefix}{place}/.git"):
                row = None if fold(path.rpartition("/")[2]) in GIT_NAMES else tree_row(path)
                if row is None or len(self._kept) >= MOST_KEPT:
                    return False
                self._kept[path] = None
                return True
            at = path.find("/", at + 1)
        return False

    def _report_refusal(self, path: str, hint: str | None = None) -> None:
        shown = self._shown + path
        denied = PathAccess(shown, "write")
        self._report(AccessDenied(access_as_data(denied), reasons.PROTECTED_NAME, rule=None, hint=hint, source="mount"))
        count = self._returns[path] = self._returns.get(path, 0) + 1
        self._taken += 1
        if self._taken > MOST_MOVED:
            self.overrun = f"it made more than {MOST_MOVED} protected names"
        elif count >= MOST_RETURNS:
            self.overrun = f"{shown} was made {count} times, though it is a protected name and was put aside each time"

    def _put_aside(self, path: str, hint: str | None = None) -> None:
        try:
            aside = put_aside(self._root_fd, path)
        except (FileNotFoundError, NotADirectoryError):
            self._report_refusal(path, hint)
            return
        except OSError:
            # It cannot even be renamed: freeze it, and fail the run if it is still there at the end.
            self._report_refusal(path, hint)
            self._stuck[path] = None
            if not self._ended:
                directory = os.path.isdir(self._prefix + path)
                hidden = self._hides(path, directory)
                self._mask([Mask(self._prefix + path, directory) if hidden else ReadOnly(self._prefix + path)])
            return
        self._report_refusal(path, hint)
        self._aside.append((path, aside))

    def _hides(self, path: str, directory: bool) -> bool:
        """Does a rule hide this name itself?"""
        return self._index.patterns.effect(path.rpartition("/")[2], path, directory, False) == "hide"

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """After the last process of the sandbox has ended: what appeared since the start, once more.

        It takes ``LONGEST_END`` at most; ``unfinished`` says when that was not enough.
        """
        effort = Effort(LONGEST_END, PATIENCE_END)
        self._ended = True
        touched = self._watcher.touched()
        self._watcher.close()
        # Masks of a dead sandbox need no mending; only protected names are still a danger.
        paths = dict.fromkeys(hit.path for hit in self._what_appeared(effort) if hit.effect == "protect")
        beside = self._beside_at_end(effort)
        for path in (*beside, *touched, *paths):
            if effort.over():
                self._is_late()
                break
            self._judge(path)
        self._look_at_addresses(effort)
        self.kept = [self._shown + path for path in self._kept if os.path.lexists(self._prefix + path)]
        self.left += [self._shown + path for path in self._stuck if self._is_bad(path)]
        if self._aside:
            self._move_out(effort)
        if self._committed is not None:
            self._committed.close()
        os.close(self._root_fd)

    def _beside_at_end(self, effort: Effort) -> list[str]:
        """What configuration names in the work trees that are there now."""
        beside = self._index.beside
        if beside is None:
            return []
        names: list[str] = []
        for tree, entry in self._last.items():
            below = [path for path, _context in entry[5]] + [hit[0] for hit in entry[6]]
            if entry[4] & KIND != GIT and not any(fold(path.rpartition("/")[2]) in GIT_NAMES for path in below):
                continue
            if effort.over():
                self._is_late()
                break
            names += [there for name in beside.of(tree) if (there := seen(self._prefix, name, len(tree)))]
        return self._look_beside(names)

    def _look_at_addresses(self, effort: Effort) -> None:
        """Put links aside that the session made on the way to where git's configuration of the start leads."""
        from .addresses import links
        from .gitconfig import ConfigError, parse

        for path in self._configs if self.places.open else ():
            if effort.over():
                self._is_late()
                break
            try:
                with open(open_file(self._root_fd, path), "rb") as file:
                    text = file.read(LARGEST_READ).decode("utf-8", "surrogateescape")
                directory = os.path.dirname(self._prefix + path)
                for link in dict.fromkeys(links(parse(text), directory, self.places)):
                    if link.startswith(self._prefix) and os.lstat(link).st_ctime >= self._began:
                        self._put_aside(link[len(self._prefix) :])
            except (OSError, ConfigError):
                continue  # a command changes only what ``parse`` reads

    def _is_bad(self, path: str) -> bool:
        try:
            return bool(judge(self._root_fd, path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def _is_late(self) -> None:
        bounds = f"{LONGEST_END:g} s of a processor, or {PATIENCE_END:g} s in all"
        self.unfinished = f"looking for protected names took longer than {bounds}, and was ended"

    def _move_out(self, effort: Effort) -> None:
        """Out of the workspace, where that is possible; else it stays under the name that no program obeys."""
        directory = -1
        try:
            os.makedirs(self._store, 0o700, exist_ok=True)
            directory = os.open(self._store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            pass
        try:
            for path, aside in self._aside:
                if not aside:
                    self.moved.append((self._shown + path, ""))
                    continue
                where = self._prefix + aside
                try:
                    if directory >= 0 and not effort.over():
                        name = path.rpartition("/")[2]
                        where = os.path.join(self._store, quarantine(self._root_fd, aside, directory, name))
                except (FileNotFoundError, NotADirectoryError):
                    continue  # the command has done something else with it, and that was looked at
                except OSError:
                    pass
                self.moved.append((self._shown + path, where))
                self._report(NameQuarantined(self._shown + path, where))
        finally:
            if directory >= 0:
                os.close(directory)

    def _what_appeared(self, effort: Effort) -> tuple[ScanHit, ...]:
        """New names, also in directories that the command closed to us (chmod 000)."""
        try:
            open_up(self._root_fd, ".")
        except OSError:
            pass  # the workspace is another user's
        if not os.access(f"/proc/self/fd/{self._root_fd}", os.R_OK | os.X_OK, effective_ids=True):
            from .closed import take_back

            take_back(self._root_fd)  # which the command may have given to a subordinate id
        hits: tuple[ScanHit, ...] = ()
        for _round in range(DEEPEST_CLOSED):
            found = rescan(self._index, effort=effort)
            hits = found.hits
            self._last = found.index.entries
            if not found.whole:
                self._is_late()
                break
            closed = [
                hit.path
                for hit in hits
                if hit.directory and not os.access(self._prefix + hit.path, os.R_OK | os.X_OK, follow_symlinks=False)
            ]
            for path in closed:
                try:
                    open_up(self._root_fd, path)
                except OSError:
                    self.left.append(self._shown + path)
            if not closed or self.left:
                break
        return hits


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
