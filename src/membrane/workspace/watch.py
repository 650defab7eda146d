"""Names that appear or are replaced in the workspace while a session runs.

Theory of operation
-------------------
inotify(7) watches every directory of the index from outside of the sandbox.  A created or renamed-in name that a rule
matches is returned by ``read``; a new directory is watched first and listed then, so nothing inside is missed.  A
directory is always opened without following links and watched through its descriptor, so a swapped parent cannot
lead the watch elsewhere.  Directories are compared with the index when their watch is added: what changed in
between is found by listing.

Every name is returned at once, and a protected one again whenever it changes.  The judge of one says so by
``hold``: from then on its content is watched, and ``hold`` says what the watch cannot: whether a process can write
to it without an event, through a mapping.  A lease answers that (fcntl(2), F_SETLEASE: F_RDLCK is not granted while
the file is open for writing, and a mapping keeps it open).

A new directory that its own mode closes to everybody (chmod 000) shows nothing to a process inside or outside: it is
looked into as soon as it is opened, which its parent's watch tells.  One that cannot be listed for another reason, and
each where that cannot be told, is hidden whole when anything is hidden.

One thread, small slices: ``look`` compares the places that matter most with the index, once and without a watch;
``step`` watches them and then the rest.  The two are apart because the end of a watch waits for a grace period of
the kernel (fsnotify_destroy_group, synchronize_srcu: about 15 ms), which a command that is over at once should not
pay.  Without inotify (limit of instances or watches reached) the rest is polled and ``warnings`` says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from abc import ABC, abstractmethod

from ..host import syscalls
from ..host.syscalls import (
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_EXCL_UNLINK,
    IN_IGNORED,
    IN_ISDIR,
    IN_MOVED_TO,
    IN_ONLYDIR,
    IN_Q_OVERFLOW,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
)
from ..value import Value
from . import protect
from .beside import seen
from .scan import CLOSED, DATA, EFFECTS, UNREADABLE, appeared, list_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator
    from typing import Literal, TypeAlias

    from .beside import Beside
    from .scan import Effect, Entry, Hit, Index

    Holding: TypeAlias = Literal["held", "written", "unknown"]
else:
    from _collections import deque  # ``collections`` would be loaded for the sake of one name

POLL = 1.0  # seconds between two polls, when directories cannot be watched
POLL_SHARE = 50  # a poll may use one part in so many of the time
BUFFER = 8_192  # bytes of events per read: about 250, 3 ms of work
SLICE = 0.003  # seconds of one background step, and of judgements in one turn
URGENT = 0.002  # seconds that ``read`` spends on new directories
FIRST = 256  # directories looked at before the start, and watched first
MOST_FILES = 65_536  # watches on protected names themselves
MOST_FOLLOWED = 4_096  # names on the way to what pointers lead to
MOST_SEEN = 200_000  # names whose identity is remembered
MOST_CLOSED = 4_096  # closed directories that are waited for

IN_MODIFY, IN_ATTRIB, IN_OPEN, IN_MASK_ADD = 0x2, 0x4, 0x20, 0x20000000
# One inode has one watch; a directory may be watched both for itself and as a protected name.
_DIRECTORY = IN_CREATE | IN_MOVED_TO | IN_ONLYDIR | IN_EXCL_UNLINK | IN_MASK_ADD
_CONTENT = IN_MODIFY | IN_CLOSE_WRITE | IN_OPEN | IN_EXCL_UNLINK | IN_MASK_ADD
_LISTED = IN_CREATE | IN_MOVED_TO | IN_EXCL_UNLINK | IN_MASK_ADD
_NO_LINKS = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
F_SETSIG, SIGURG = 10, 23  # fcntl(2), signal(7); the latter is ignored unless a process asks for it
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)


class Appeared(Value):
    """A name that matches now.

    ``known``: it matched at the start as well, so a process outside replaced it and the kernel dropped its mount
    (inside it was a mount point): bind it again.  No process inside did it, and it must not be quarantined.
    """

    path: str
    effect: Effect
    directory: bool
    link: bool = False
    known: bool = False


class Watcher:
    """Live watch of one workspace.

    Args:
        index: from the scan of the start.
        beside: what configuration names in whatever work tree is made, if that is to be looked for.

    Raises:
        OSError: the workspace cannot be opened.
    """

    def __init__(self, index: Index, beside: Beside | None = None) -> None:
        self.warnings: list[str] = []
        self._index = index
        self._patterns = index.patterns
        self._prefix = index.root.rstrip("/") + "/"
        self._entries: dict[str, Entry] = dict(index.entries)
        self._directories: dict[int, str] = {}  # watch descriptor -> path
        self._contents: dict[int, str] = {}  # watch descriptor of a protected name -> path to report
        self._held: dict[str, int] = {}  # the other way round
        self._followed: dict[str, dict[str, None]] = {}  # a name on the way -> the pointers that lead through it
        self._found: dict[str, Appeared] = {}
        self._closed: dict[str, int] = {}  # new directories that nobody can look into yet: their contexts
        self._seen: dict[str, tuple[int, int]] = {}  # reported hidden and read-only names: inode, ctime
        # Directories to visit: path, context, and whether all below is new (or new under this name).
        self._urgent: deque[tuple[str, int, bool]] = deque()
        self._newest = True  # the next one to visit is the newest of them, then the oldest: no flood puts one off
        self._rest: list[tuple[str, int, bool]] | None = None  # those of the start; None: not laid out yet
        self._begun = False  # directories are watched from the first ``step`` on
        self._known = {hit[0] for entry in index.entries.values() for hit in entry[6] if hit[1] != "s"}
        self._known.update(index.also)
        self._also = frozenset((*index.also, *index.missing))
        # On the way to what is not there yet nothing was a link; one would lead git to what has another name.
        self._ways = {path[:at] for path in index.missing for at in range(len(path)) if path[at] == "/"}
        self._names = beside
        self.beside: dict[str, None] = {}  # where one of them was seen; the caller takes them out
        self._first = self._lay_out_first()
        self._poll_at = 0.0  # 0: everything is watched
        self._poll_began = 0.0
        self._root_fd = os.open(index.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Names whose content decides and that were there at the start: as long as they stand as they stood then.
        self._untouched = {
            hit[0]: self._identity(hit[0]) for entry in index.entries.values() for hit in entry[6] if hit[1] == "s"
        }
        self._watching = False
        try:
            self._fd = syscalls.inotify_init()
            self._watching = True
        except OSError as error:
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # never readable
            self._unwatched(f"inotify is not available ({error.strerror}: fs.inotify.max_user_instances)")

    def fileno(self) -> int:
        """Readable when ``read`` has something to do (besides what ``timeout`` says)."""
        return self._fd

    def close(self) -> None:
        for fd in (self._fd, self._root_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._root_fd = -1

    def look(self) -> None:
        """Compare the workspace itself and the parents of protected names with the index.

        Call before the command is released; what was found is returned by the next ``read``.
        """
        for path in self._first:
            self._visit(path, self._index.entries[path][3], False)

    def step(self, budget_seconds: float) -> bool:
        """Watch more directories for at most about this time; True when all are watched.

        Names that were found on the way are returned by the next ``read``.
        """
        until = time.monotonic() + budget_seconds
        self._begun = True
        if self._rest is None:
            self._rest = self._lay_out()
            for path in self._untouched:
                self._watch_content(path, path, False, IN_OPEN)
                if self.is_touched(path):
                    self._return(path, "protect", False)
        while self._urgent or self._rest:
            self._visit(*(self._next() if self._urgent else self._rest.pop()))
            if time.monotonic() >= until:
                break
        return not self._urgent and not self._rest

    def timeout(self) -> float | None:
        """Seconds after which ``read`` must be called even if ``fileno`` is not readable; None: no need."""
        if self._found or self._urgent or self.beside:
            return 0.0
        return max(0.0, self._poll_at - time.monotonic()) if self._poll_at else None

    def read(self) -> list[Appeared]:
        """Take in events and return the names to act on; never blocks.

        A hidden or read-only name is returned each time it is created or replaced: acting on it twice must be
        harmless.
        """
        if self._watching:
            try:
                data = os.read(self._fd, BUFFER)
            except BlockingIOError:
                data = b""
            for watch, mask, name in _events(data):
                self._take(watch, mask, name)
        now = time.monotonic()
        if self._poll_at and not self._urgent and now >= self._poll_at:
            self._poll_began = now
            self._look_again()
        while self._urgent:
            self._visit(*self._next())
            if time.monotonic() >= now + URGENT:
                break
        if self._poll_began and not self._urgent:
            self._poll_at = time.monotonic() + max(POLL, (time.monotonic() - self._poll_began) * POLL_SHARE)
            self._poll_began = 0.0
        found, self._found = self._found, {}
        return list(found.values())

    # ------------------------------------------------------------ directories

    def _lay_out_first(self) -> dict[str, None]:
        """The places that matter most: the workspace itself and the parents of protected names."""
        index = self._index
        places = dict.fromkeys(("", *index.first, *(path.rpartition("/")[0] for path in self._also)))
        return dict.fromkeys([path for path in places if path in index.entries][:FIRST])

    def _lay_out(self) -> list[tuple[str, int, bool]]:
        """All directories of the start, in the order in which ``pop`` should take them."""
        self._patterns.compiled()  # not while an event waits
        plain: list[tuple[str, int, bool]] = []
        with_hits: list[tuple[str, int, bool]] = []
        for path, entry in self._index.entries.items():
            if path not in self._first and entry[3] != DATA and entry[4] != UNREADABLE:
                (with_hits if entry[6] else plain).append((path, entry[3], False))
        plain.reverse()
        first = [(path, self._index.entries[path][3], False) for path in reversed(self._first)]
        return plain + with_hits + first

    def _next(self) -> tuple[str, int, bool]:
        self._newest = not self._newest
        return self._urgent.popleft() if self._newest else self._urgent.pop()

    def _look_again(self) -> None:
        """Compare every directory with what is known of it."""
        every = reversed(self._entries.items())
        self._urgent.extend((path, entry[3], False) for path, entry in every if entry[3] != DATA)

    def _visit(self, path: str, context: int, deep: bool) -> None:
        """Watch one directory, and list it when it is not as it was."""
        try:
            fd = syscalls.openat2(
                self._root_fd, path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, 0, _NO_LINKS
            )
        except OSError as error:
            self._not_opened(path, context, error)
            return
        try:
            self._add(fd, path)
            status = os.fstat(fd)
            old = self._entries.get(path)
            if (
                old is not None
                and abs(old[2]) == status.st_ctime_ns
                and old[0] == status.st_ino
                and old[1] == status.st_mtime_ns
                and old[3] == context
            ):
                if deep:
                    self._urgent.extend((sub, inner, True) for sub, inner in old[5] if inner != DATA)
                return
            entry, _ = list_directory(fd, path, context, status, self._patterns)
        finally:
            os.close(fd)
        if entry is None:
            return
        self._entries[path] = entry
        start = self._index.entries.get(path)
        for hit in entry[6]:
            self._hit(path, entry, start, hit, event=False)
        below = f"{path}/" if path else ""
        self._look_beside(path)
        for name in self._also:
            if name.startswith(below) and "/" not in name[len(below) :]:
                self._appeared(name, "protect", event=False)
        for sub, inner in entry[5]:
            known = self._entries.get(sub)
            unknown = known is None or known[3] != inner
            if inner != DATA and (deep or unknown):
                self._urgent.append((sub, inner, True))

    def _not_opened(self, path: str, context: int, error: OSError) -> None:
        if error.errno in _GONE:
            self._entries.pop(path, None)
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            self._unwatched(f"{error.strerror}")
        elif self._patterns.hides and path and path not in self._known and not self._waits(path, context):
            # It cannot be looked into, and what is in there could be read by its name: covered whole, as at the start.
            self._appeared(path, "hide", event=False)

    def _waits(self, path: str, context: int) -> bool:
        """Is it a directory that its mode closes whole, and will the watch tell when that changes?"""
        if not self._watching or self._poll_at or len(self._closed) >= MOST_CLOSED or path in self._index.entries:
            return False
        above, _, name = path.rpartition("/")
        try:
            fd = syscalls.openat2(self._root_fd, above or ".", os.O_RDONLY | os.O_DIRECTORY, 0, _NO_LINKS)
        except OSError:
            return False
        try:
            watch = syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _DIRECTORY | IN_ATTRIB)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)  # after the watch: no change between is missed
        except OSError:
            return False
        finally:
            os.close(fd)
        if self._directories.setdefault(watch, above) != above or above not in self._entries or status.st_mode & 0o111:
            return False
        self._closed[path] = context
        return True

    def _add(self, fd: int, path: str) -> None:
        if not self._begun or not self._watching or self._poll_at:
            return
        try:
            watch = syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _DIRECTORY)
        except OSError as error:
            self._unwatched(f"not every directory can be watched ({error.strerror}: fs.inotify.max_user_watches)")
            return
        self._directories[watch] = path

    def _unwatched(self, why: str) -> None:
        if not self._poll_at:
            self.warnings.append(f"{why}: names that appear later are found only every {POLL:g} s or more")
            self._poll_at = time.monotonic() + POLL

    # ------------------------------------------------------------ names

    def _look_beside(self, path: str) -> None:
        """A directory was listed: is it, or does it hold, what configuration names in each work tree?"""
        if self._names is None:
            return
        for _tree, name, way, _linked in self._names.places(path) if path else ():
            if not way:
                self.beside[name] = None
        for name in self._names.of(path):
            there = seen(self._prefix, name, len(path))
            if there:
                self.beside[there] = None

    def _take(self, watch: int, mask: int, raw: bytes) -> None:
        """One event."""
        if mask & IN_Q_OVERFLOW:
            self._look_again()
            for held in dict.fromkeys(self._contents.values()):  # what was written to one of them may be among the lost
                self._return(held, "protect", False)
            return
        if mask & IN_IGNORED:
            self._directories.pop(watch, None)
            if self._contents.pop(watch, None) is not None:
                for name in [name for name, held in self._held.items() if held == watch]:
                    del self._held[name]
            return
        report = self._contents.get(watch)
        if report is not None:
            self._return(report, "protect", False)
        path = self._directories.get(watch)
        entry = None if path is None else self._entries.get(path)
        if path is None or entry is None or not raw or not mask & (IN_CREATE | IN_MOVED_TO | IN_ATTRIB):
            return
        name = os.fsdecode(raw)
        full = f"{path}/{name}" if path else name
        closed = self._closed.pop(full, None)
        if mask & IN_ATTRIB:
            if closed is not None:
                self._urgent.append((full, closed, True))
            return
        key = protect.fold(name)
        directory = bool(mask & IN_ISDIR)
        if self._names is not None:
            for _tree, named, way, _linked in self._names.places(full):
                if not way or os.path.islink(self._prefix + full):
                    self.beside[named] = None
            if key in protect.GIT_NAMES or key in protect.LAYOUT:
                self._look_beside(path)
        if key in protect.LAYOUT and protect.settled(entry[3], set(protect.LAYOUT)) != entry[4]:
            self._urgent.append((path, entry[3], False))  # it may have become a repository
        # A link is distinguished from a file only for names where it matters.
        link = False
        code, child = self._patterns.place(entry[4], name, key, full, directory, not directory)
        if code and not directory:
            try:
                link = stat.S_ISLNK(os.lstat(self._prefix + full).st_mode)
            except OSError:
                pass  # it is gone again, and it was there
            if not link:
                code, child = self._patterns.place(entry[4], name, key, full, False, False)
        if not directory and code in ("", "r") and self._is_socket(full):
            code = "k"
        if code:
            self._hit(path, entry, self._index.entries.get(path), (full, code, directory, link), event=True)
        elif full in self._also or (full in self._ways and os.path.islink(self._prefix + full)):
            self._appeared(full, "protect", event=True)
        for pointer in self._followed.get(full, ()):
            self._return(pointer, "protect", False)
        if directory and child not in (CLOSED, DATA):
            self._urgent.append((full, child, True))

    def _is_socket(self, path: str) -> bool:
        try:
            return stat.S_ISSOCK(os.lstat(self._prefix + path).st_mode)
        except OSError:
            return False

    def _hit(self, path: str, entry: Entry, start: Entry | None, hit: Hit, *, event: bool) -> None:
        if hit[1] == "s":
            if self.is_touched(hit[0]):
                self._return(hit[0], "protect", False, True)
            return
        if hit[0] in self._known:
            self._appeared(hit[0], EFFECTS[hit[1]], event=event)
            return
        new = appeared(path, entry, start, hit)
        if new is not None:
            self._appeared(new.path, new.effect, event=event)
            if new.effect == "protect" and (hit[2] or new.path != hit[0]):
                self._watch_content(hit[0], new.path, hit[2])

    def _appeared(self, path: str, effect: Effect, *, event: bool) -> None:
        if effect == "protect" and path not in self._known:
            self._return(path, effect, False, True)
            return
        try:
            status = os.lstat(self._prefix + path)
        except OSError:
            return
        identity = (status.st_ino, status.st_ctime_ns)
        if not event and self._seen.get(path) == identity:
            return
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen[path] = identity
        self._return(path, effect, path in self._known)

    def _return(self, path: str, effect: Effect, known: bool, even_gone: bool = False) -> None:
        """Have ``read`` return it.  ``even_gone``: it appeared, which counts, though it may be gone again."""
        try:
            mode = os.lstat(self._prefix + path).st_mode
        except OSError:
            if not even_gone:
                return
            mode = 0
        self._found[path] = Appeared(path, effect, stat.S_ISDIR(mode), stat.S_ISLNK(mode), known)

    # ------------------------------------------------------------ the content of protected names

    def _identity(self, path: str) -> tuple[int, int, int]:
        try:
            status = os.lstat(self._prefix + path)
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_ctime_ns, status.st_size

    def is_touched(self, path: str) -> bool:
        """Is it new or changed since the start?  False for what is as it was then."""
        before = self._untouched.get(path)
        return before is None or before != self._identity(path)

    def is_original(self, path: str) -> bool:
        """Does it stand as it stood at the start?"""
        return path in self._untouched and not self.is_touched(path)

    def touched(self) -> list[str]:
        """Names whose content decides, that were there at the start and were changed since."""
        return [path for path in self._untouched if self.is_touched(path)]

    def let_go(self, path: str) -> None:
        """Watch the content of a name no more: its judge opens it, which the watch would report."""
        old = self._held.pop(path, -1)
        if old >= 0:
            self._contents.pop(old, None)
            try:
                syscalls.inotify_rm_watch(self._fd, old)
            except OSError:
                pass  # the file is gone, and its watch with it

    def hold(self, fd: int, path: str, report: str) -> Holding:
        """Watch the content of a protected file from now on; a reader after this misses no write.

        Args:
            fd: it, open for reading; ``let_go`` came before that.
            path: its name.
            report: what ``read`` returns when it is opened or written.

        Returns:
            "held": a write will be reported; "written": a process has it open for writing, and may write unseen;
            "unknown": this file system or a limit leaves that unknown.
        """
        if not self._watching or len(self._contents) >= MOST_FILES:
            return "unknown"
        try:
            watch = syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _CONTENT)
        except OSError:
            return "unknown"
        self._contents[watch] = report
        self._held[path] = watch
        return _writers(fd)

    def watch_listing(self, fd: int, report: str) -> None:
        """Have ``read`` return ``report`` when a name appears in a directory that is open for reading."""
        if not self._watching or len(self._contents) >= MOST_FILES:
            return
        try:
            self._contents[syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _LISTED)] = report
        except OSError:
            return  # the tracer refuses what no commit holds there, and the end looks once more

    def follow(self, pointer: str, target: str) -> bool:
        """Return ``pointer`` again when a name on the way to its target is replaced; False: there are too many."""
        at = 0
        while at >= 0:
            at = target.find("/", at + 1)
            name = target if at < 0 else target[:at]
            if name not in self._followed and len(self._followed) >= MOST_FOLLOWED:
                return False
            pointers = self._followed.setdefault(name, {})
            if len(pointers) >= MOST_FOLLOWED and pointer not in pointers:
                return False
            pointers[pointer] = None
        return True

    def _watch_content(self, path: str, report: str, directory: bool, also: int = 0) -> None:
        """Watch what counts as part of another name: what is in ``hooks``, a file of a repository by its layout."""
        if not self._watching or len(self._contents) >= MOST_FILES:
            return
        try:
            fd = syscalls.openat2(self._root_fd, path, os.O_PATH | os.O_NOFOLLOW, 0, _NO_LINKS)
        except OSError:
            return
        try:
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                mask = _LISTED if directory else IN_MODIFY | IN_CLOSE_WRITE | IN_EXCL_UNLINK | IN_MASK_ADD
                watch = syscalls.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, mask | also)
                self._contents[watch] = report
                if also:
                    self._held[path] = watch
        except OSError:
            return
        finally:
            os.close(fd)


def _writers(fd: int) -> Holding:
    """Can a process write to the regular file behind ``fd``, which is open for reading, without opening it?"""
    try:
        # Should a process open it in the next microsecond, the kernel notifies us by a signal that is ignored.
        fcntl.fcntl(fd, F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return "written" if error.errno in (errno.EAGAIN, errno.EBUSY) else "unknown"
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return "held"


def _events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(watch descriptor, mask, name) of each struct inotify_event (inotify(7))."""
    at = 0
    while at < len(data):
        watch, mask, _cookie, length = struct.unpack_from("=iIII", data, at)
        at += 16
        yield watch, mask, data[at : at + length].rstrip(b"\0")
        at += length


class Watching(ABC):
    """Who follows a ``Watcher``, as the loop of a run asks it."""

    _watcher: Watcher

    @abstractmethod
    def on_change(self) -> None:
        """Deal with what has changed."""

    def look(self) -> None:
        """Deal with what changed since the scan in the places that matter most; before the command is released."""
        self._watcher.look()
        self.on_change()

    def fileno(self) -> int:
        return self._watcher.fileno()

    def step(self) -> bool:
        """Extend the watch by a few milliseconds of work; True when everything is watched."""
        return self._watcher.step(SLICE)

    def warnings(self) -> list[str]:
        """What could not be watched, reported once."""
        found, self._watcher.warnings = self._watcher.warnings, []
        return found
