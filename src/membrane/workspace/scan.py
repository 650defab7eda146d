"""What the rules match in a workspace, before the start and after the end of a session.

Theory of operation
-------------------
One walk without following links finds, per directory, the names that a ``hide`` or ``readonly`` pattern matches and
the names of ``protect``.  A hidden directory is not walked (it is masked whole); a read-only one is walked for hidden
names only.  A directory that cannot be read is hidden whole when anything is hidden.

The walk is incremental.  Per directory the index keeps inode, mtime and ctime (ctime, because the agent can set
mtime back), its subdirectories and its matches; the next walk costs one lstat(2) per directory and lists only what
changed, or changed less than ``RACY`` before it was listed (a second change in the same clock tick would not show).
Patterns are compiled only when a directory must be listed.  The index is kept between runs as a marshal file with
a checksum, readable and owned by the caller alone; anything else in its place is ignored.

``rescan`` compares with the index of the start and returns what appeared since.

Paths are relative to the workspace, with undecodable bytes as surrogate escapes.  The walk trusts names only as names:
what mounts or moves something opens it by ``openat2`` without following links.
"""

from __future__ import annotations

import binascii
import marshal
import os
import stat
import sys
import time

from ..errors import HostError
from ..plan.model import ScanHit
from ..value import Value
from . import protect, sockets
from .beside import Beside, seen
from .gitdir import LONGEST_KEPT, REFUSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal, TypeAlias

    from ..policy.globs import PatternSet
    from ..policy.model import PathRule
    from .effort import Effort

    Effect: TypeAlias = Literal["hide", "readonly", "protect", "socket"]
    # path, code, directory, link.  Codes: h hide, x hide what is protected as well, r readonly, p protect,
    # g protect because the directory has the layout of a repository, s its content decides and it stays writable,
    # k socket
    Hit: TypeAlias = tuple[str, str, bool, bool]
    # inode, mtime, ctime (negative: racy, list again), context given, context settled,
    # (path, context) of subdirectories, hits
    Entry: TypeAlias = tuple[int, int, int, int, int, tuple[tuple[str, int], ...], tuple[Hit, ...]]

RACY = 2_000_000_000  # ns: the coarsest time stamp of a file system in use (FAT)
LONGEST_PATH = 3_800  # bytes: below PATH_MAX (4096) with room for one name
LARGEST_INDEX = 512 << 20  # bytes
MOST_LINKS_ASKED = 2_000  # hidden files whose link count is read at each start (2 µs each)
MOST_NAMES_ASKED = 500_000  # names that are looked at for further links of those
_SHOWN = 3  # directories that one line names
PROGRESS_AFTER = 1.0  # seconds
PROGRESS_EVERY = 64  # directories between two looks at the clock

# Contexts above those of protect: only hidden names are looked for.
READ_ONLY = 0x1000  # below a read-only directory
DATA = 0x1001  # objects, refs and logs of a repository; not watched either
CLOSED = -1  # not walked
HELD_DATA = 0x1003  # the same where a rule makes names in a ``.git`` read-only: these as well, and watched
UNREADABLE = 0x1002  # settled context of a directory that could not be listed

EFFECTS: dict[str, Effect] = {
    "h": "hide",
    "x": "hide",
    "r": "readonly",
    "p": "protect",
    "g": "protect",
    "s": "protect",
    "k": "socket",
}
_FORMAT = ("membrane scan", 5, sys.implementation.cache_tag, tuple(row.name for row in protect.PROTECTED))


class Patterns:
    """The two pattern lists, compiled on first use (importing ``re`` costs 5 ms)."""

    __slots__ = ("_compiled", "_in_data", "_lead", "hides", "open_git_config", "readonly")

    def __init__(self, rules: Iterable[PathRule]) -> None:
        self.hides = tuple(rule.text for rule in rules if rule.effect == "hide")
        self.readonly = tuple(rule.text for rule in rules if rule.effect == "readonly")
        self.open_git_config = any(rule.effect == "git-config" for rule in rules)
        self._in_data = any(".git/" in text.rstrip("/") for text in self.readonly)  # may they name a ref, an object?
        # Before a path of the tree, for the patterns: what they are relative to may be another directory.
        self._lead = "".join(f"{rule.text}/" for rule in rules if rule.effect == "place")
        self._compiled: tuple[PatternSet | None, PatternSet | None, PatternSet | None] | None = None

    @property
    def key(self) -> tuple[tuple[str, ...], ...]:
        more = ("git-config",) if self.open_git_config else ()
        return (self.hides, self.readonly, more, (self._lead,))

    @property
    def anchored(self) -> bool:
        """Some hide pattern looks at parent names: what is below a renamed parent would match no more."""
        for text in self.hides:
            text = text.removeprefix("!").rstrip("/").removeprefix("/")
            while text.startswith("**/"):
                text = text[3:]
            if "/" in text:
                return True
        return False

    def place(self, context: int, name: str, key: str, path: str, directory: bool, link: bool) -> tuple[str, int]:
        """What one name is: (code of the hit or "", context of what is below or ``CLOSED``).

        Args:
            context: settled, of the directory that holds it.
            name: as listed; ``key``: folded; ``path``: relative to the workspace.
        """
        hides, readonly, readonly_in_git = self._compiled or self.compiled()
        whole = path
        if REFUSED in path:
            name, whole, cut = former(path)
            if cut and hides is not None:
                return "h", CLOSED
        if self._lead:
            whole, readonly = self._lead + whole, readonly_in_git
        if hides is not None and hides.match(name, whole, directory):
            guarded = context < READ_ONLY and protect.classify(context, key, directory, link) == protect.PROTECT
            return "x" if guarded else "h", CLOSED
        below = READ_ONLY if hides is not None else CLOSED
        if context >= READ_ONLY:
            if context == HELD_DATA and readonly_in_git is not None and readonly_in_git.match(name, whole, directory):
                return "r", below
            return "", context
        locked = readonly_in_git if context & protect.NAMED else readonly
        if locked is not None and locked.match(name, whole, directory):
            return "r", below
        child = protect.classify(context, key, directory, link)
        if child >= 0:
            return "", child
        if child == protect.PROTECT and self.open_git_config and protect.is_git_config(path) and not link:
            return "", CLOSED
        if child == protect.DATA:
            if self._in_data:
                return "", HELD_DATA
            if REFUSED in key and hides is not None:
                return "", READ_ONLY  # it was put aside: watched, for what it may hold
            return "", DATA if hides is not None else CLOSED
        if child == protect.CHECKED:
            return "s", CLOSED
        if protect.PACKAGE < context < protect.FIRST_PARENT:  # repository names outside of a ``.git``
            anyway = protect.classify(protect.TREE, key, directory, link) == protect.PROTECT
            return "p" if anyway else "g", below
        return "p", below

    def effect(self, name: str, path: str, directory: bool, in_git: bool) -> Literal["hide", "readonly", ""]:
        """What a rule says of this one name; what is above it is not looked at.

        Args:
            name: as listed; ``path``: relative to the tree.
            in_git: it is below a ``.git`` of the tree.
        """
        hides, readonly, readonly_in_git = self._compiled or self.compiled()
        if REFUSED in path:
            name, path, cut = former(path)
            if cut and hides is not None:
                return "hide"
        if self._lead:
            path, in_git = self._lead + path, True
        if hides is not None and hides.match(name, path, directory):
            return "hide"
        locked = readonly_in_git if in_git else readonly
        return "readonly" if locked is not None and locked.match(name, path, directory) else ""

    def compiled(self) -> tuple[PatternSet | None, PatternSet | None, PatternSet | None]:
        """Hide, read-only, and read-only inside of a ``.git``.

        There only patterns that name ``.git`` make something read-only, as in gitignore(5): ``*.lock`` means lock
        files of packages, and would stop git from replacing its own.  Hidden stays hidden everywhere.
        """
        if self._compiled is None:
            in_git = tuple(text for text in self.readonly if ".git" in text)
            self._compiled = (_compile(self.hides), _compile(self.readonly), _compile(in_git))
        return self._compiled


def former(path: str) -> tuple[str, str, bool]:
    """The last name and the path that had what was put aside (``judge.put_aside``): for rules it has its name still.

    And whether of a name only the beginning was kept, so that it may have been any.
    """
    parts = [part.partition(REFUSED)[0] or part for part in path.split("/")]
    cut = any(len(os.fsencode(part)) >= LONGEST_KEPT for part in parts if f"/{part}{REFUSED}" in f"/{path}")
    return parts[-1], "/".join(parts), cut


def _compile(texts: tuple[str, ...]) -> PatternSet | None:
    if not texts:
        return None
    from ..policy.globs import compile_patterns

    return compile_patterns(texts)


class Index:
    """What one walk saw; the base of the next one, of ``rescan`` and of the watcher."""

    __slots__ = ("also", "beside", "entries", "first", "missing", "patterns", "root")

    def __init__(
        self,
        root: str,
        patterns: Patterns,
        entries: dict[str, Entry],
        also: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        first: tuple[str, ...] = (),
        beside: Beside | None = None,
    ) -> None:
        self.root = root
        self.patterns = patterns
        self.entries = entries
        self.first = first  # directories with protected names, and those of repositories: to be watched first
        self.also = also  # protected because configuration or a link names it
        self.missing = missing  # named in the same way, but not there: protected when it appears
        self.beside = beside  # named in whatever work tree is made; None: nothing is


class ScanResult(Value):
    """``hits``: parents before children.  ``pins``: directories to bind onto themselves first, shallow first.

    ``linked``: what is said of files that have other names (link(2)), for which a rule may not hold.
    """

    hits: tuple[ScanHit, ...]
    warnings: tuple[str, ...]
    index: Index
    pins: tuple[str, ...] = ()
    whole: bool = True
    linked: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()  # hits whose own name a hide pattern matches


def scan(
    root: str,
    rules: tuple[PathRule, ...],
    cache_file: str | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    open_sockets: bool = False,
    subordinate: bool = False,
) -> ScanResult:
    """Find everything that the start must hide, bind read-only or pin.

    Args:
        root: the workspace, absolute, symbolic links resolved.
        rules: the path rules of the policy, in order.
        cache_file: where the index is kept between runs; None: nowhere.
        progress: called with the number of names listed so far, once for each further second that the walk takes.
        open_sockets: those of others may be reached (``unix_sockets: all``).
        subordinate: the command is root over the caller's subordinate ids; see ``closed``.

    Raises:
        HostError: the workspace itself cannot be listed.
        PatternError: a pattern can never match (policy.globs).
    """
    patterns = Patterns(rules)
    old = _load(cache_file, root, patterns) if cache_file else {}
    entries, changed = walk(root, old, patterns, progress)
    if cache_file and (changed or len(old) != len(entries)):
        _save(cache_file, root, patterns, entries)
    closed = [path for path, entry in entries.items() if entry[4] == UNREADABLE] if subordinate else []
    plain: frozenset[str] = frozenset()
    if closed:
        from .closed import harmless

        plain = harmless(root, patterns, closed)
        entries |= {path: (*entries[path][:6], ()) for path in plain}
    hits: list[ScanHit] = []
    gits: list[str] = []
    unread: list[tuple[str, Entry]] = []
    first: list[str] = []
    named: list[str] = []
    for path, entry in entries.items():
        kind = entry[4] & protect.KIND
        data = kind in (protect.GIT_WRITTEN, protect.GIT_OBJECTS)
        special = kind > protect.PACKAGE and not data and entry[4] < READ_ONLY
        for hit, code, directory, link in entry[6]:
            if code == "k":
                if not open_sockets and sockets.covered(f"{root}/{hit}"):
                    hits.append(ScanHit(hit, "hide", False))
            elif code != "s":
                hits.append(ScanHit(hit, EFFECTS[code], directory, link))
                if code == "h" and hit != path:  # not a directory that cannot be read
                    named.append(hit)
                special = special or code in "pg"
        if special:
            first.append(path)
        if entry[4] & protect.KIND == protect.GIT and entry[4] < READ_ONLY:
            gits.append(path)
        if entry[4] == UNREADABLE and path not in plain:
            unread.append((path, entry))
    protected = [hit for hit in hits if hit.effect == "protect"]
    found = protect.existing(root, gits, protected)
    also: list[ScanHit] = []
    if found.hits:
        known = {hit.path for hit in hits}
        also = [hit for hit in found.hits if hit.path not in known]
        hits += also
    linked, reported = _hard_links(root, hits)
    if linked:
        hits += _other_names(root, entries, linked)
    pinned = hits if patterns.anchored else [hit for hit in hits if hit.effect != "hide"]
    return ScanResult(
        tuple(hits),
        _unreadable(root, unread),
        Index(
            root, patterns, entries, tuple(hit.path for hit in also), found.missing, tuple(first), _beside(root, gits)
        ),
        protect.pins(pinned, [path for path in gits if path]),
        linked=tuple(reported),
        named=frozenset(named),
    )


def _beside(root: str, gits: list[str]) -> Beside | None:
    from .programs import beside

    names, linked, trees = beside(root, gits)
    if not names and not linked:
        return None
    return Beside(names, linked, trees)


def rescan(index: Index, *, effort: Effort | None = None) -> ScanResult:
    """What appeared since ``index``: names that match now and did not exist then.

    Args:
        effort: when it is used up the walk ends, and is not ``whole``; None: never.

    The hits are names to judge (``protect.judge``) or to report; the new index has the old start as no memory, so
    ask again with the old one.
    """
    entries, _ = walk(index.root, index.entries, index.patterns, None, effort, index.entries[""][3])
    hits: dict[str, ScanHit] = {}
    unread: list[tuple[str, Entry]] = []
    for path, entry in entries.items():
        old = index.entries.get(path)
        if old is entry:
            continue
        known = {hit[0] for hit in old[6]} if old else ()
        if entry[4] == UNREADABLE:
            unread.append((path, entry))
            if path not in known and _is_ours(f"{index.root}/{path}"):
                hits[path] = ScanHit(path, "protect", True)  # whatever it holds, it can be opened again later
            continue
        for hit in entry[6]:
            if hit[0] not in known and hit[1] != "k":
                new = appeared(path, entry, old, hit)
                if new is not None:
                    hits.setdefault(new.path, new)
    for name in index.missing:
        path = seen(f"{index.root}/", name)
        if not path:
            continue
        try:
            mode = os.lstat(f"{index.root}/{path}").st_mode
        except OSError:
            continue
        hits.setdefault(path, ScanHit(path, "protect", stat.S_ISDIR(mode), stat.S_ISLNK(mode)))
    return ScanResult(
        tuple(hits.values()),
        _unreadable(index.root, unread),
        Index(index.root, index.patterns, entries, index.also, index.missing),
        whole=effort is None or not effort.over(),
    )


def _is_ours(place: str) -> bool:
    """The command can have made it; a directory of another user can only come from outside."""
    try:
        return os.lstat(place).st_uid == os.geteuid()
    except OSError:
        return False


def appeared(path: str, entry: Entry, old: Entry | None, hit: Hit) -> ScanHit | None:
    """How a new hit in the directory ``path`` is reported, given its entry of the start; None: it is not.

    Where a directory became a repository by its layout, the names in it may have been there before and mean
    something else, so ``HEAD`` is reported: it is judged with all of them, and without it there is no repository.
    """
    name, code, directory, link = hit
    if code == "g" and (old is None or old[4] != entry[4]):
        if entry[4] & protect.KIND != protect.GIT:
            return None if old is not None else ScanHit(name, "protect", directory, link)
        return ScanHit(f"{path}/HEAD" if path else "HEAD", "protect", False)
    # Hidden and protected: inside, the mask does; outside, programs would still obey what the command made.
    return ScanHit(name, "protect" if code == "x" else EFFECTS[code], directory, link)


# ---------------------------------------------------------------- the walk


def walk(
    root: str,
    old: dict[str, Entry],
    patterns: Patterns,
    progress: Callable[[int], None] | None,
    effort: Effort | None = None,
    context: int | None = None,
) -> tuple[dict[str, Entry], bool]:
    """All entries, parents before children, and whether any differs from ``old``.

    ``context``: of the tree, as it was at the start; None: this is the start.
    """
    entries: dict[str, Entry] = {}
    changed = False
    stack: list[tuple[str, int]] = [("", protect.root_context(root) if context is None else context)]
    prefix = root.rstrip("/") + "/"
    lstat, get, pop = os.lstat, old.get, stack.pop
    listed = 0
    look_at = PROGRESS_EVERY
    since = time.monotonic()
    while stack:
        path, context = pop()
        if effort is not None and not len(entries) % PROGRESS_EVERY and effort.over():
            break
        try:
            status = lstat(prefix + path)
        except OSError as error:
            if path == "":
                raise HostError("scan the workspace", str(error.strerror), target=root) from error
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                entries[path] = _closed(path, context, patterns, None)
                changed = changed or entries[path] != get(path)
            continue
        entry = get(path)
        if (
            entry is None
            or entry[2] != status.st_ctime_ns
            or entry[0] != status.st_ino
            or entry[1] != status.st_mtime_ns
            or entry[3] != context
        ):
            if not stat.S_ISDIR(status.st_mode):
                continue  # replaced since its parent was listed
            try:
                fresh, names = list_directory(prefix + path, path, context, status, patterns)
            except HostError as error:
                raise HostError("scan the workspace", error.cause, target=root) from error
            if fresh is None:
                continue
            changed = changed or fresh != entry
            entry = fresh
            listed += names
            if progress is not None:
                look_at -= 1
                if look_at <= 0:
                    look_at = PROGRESS_EVERY
                    if time.monotonic() - since > PROGRESS_AFTER:
                        progress(listed)
                        since = time.monotonic()
        entries[path] = entry
        if entry[5]:
            stack += entry[5]
    return entries, changed


def list_directory(
    place: str | int, path: str, context: int, status: os.stat_result, patterns: Patterns
) -> tuple[Entry | None, int]:
    """List one directory; (None, 0) when it vanished.

    Args:
        place: its absolute path, or a descriptor of it.
        path: relative to the workspace.
        context: in which it is, not settled.
        status: taken before the listing.

    Raises:
        HostError: it is the workspace itself and cannot be listed.
    """
    shown = place if isinstance(place, str) else path
    if len(shown) > LONGEST_PATH // 4 and len(os.fsencode(shown)) > LONGEST_PATH:
        return _closed(path, context, patterns, status), 0
    names: list[tuple[str, str, bool, bool]] = []  # name, folded, directory, link
    bound: set[str] = set()  # those of sockets
    keys: set[str] = set()
    fold, layout = protect.fold, protect.LAYOUT
    try:
        with os.scandir(place) as listing:
            for item in listing:
                name = item.name
                key = fold(name)
                if key in layout:
                    keys.add(key)
                directory = item.is_dir(follow_symlinks=False)
                link = False if directory else item.is_symlink()
                names.append((name, key, directory, link))
                if not directory and not link and not item.is_file(follow_symlinks=False) and _is_socket(item):
                    bound.add(name)
        searchable = status.st_mode & 0o111 == 0o111 or not names or _searchable(place, names[0][0])
    except (FileNotFoundError, NotADirectoryError):
        return None, 0
    except OSError as error:
        if path == "":
            raise HostError("list", str(error.strerror)) from error
        return _closed(path, context, patterns, status), 0
    if not searchable:
        return _closed(path, context, patterns, status), 0
    names.sort()
    below = f"{path}/" if path else ""
    settled = context if context >= READ_ONLY else protect.settled(context, keys)
    subs: list[tuple[str, int]] = []
    hits: list[Hit] = []
    place_of = patterns.place
    for name, key, directory, link in names:
        full = below + name
        code, child = place_of(settled, name, key, full, directory, link)
        if name in bound and code in ("", "r"):
            code = "k"
        if code:
            hits.append((full, code, directory, link))
        if directory and child != CLOSED:
            subs.append((full, child))
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    stable = time.time_ns() - changed > RACY
    return (
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns if stable else -status.st_ctime_ns,
        context,
        settled,
        tuple(subs),
        tuple(hits),
    ), len(names)


def _is_socket(item: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISSOCK(item.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _searchable(place: str | int, name: str) -> bool:
    """Can the names of a listed directory be reached (it has search permission)?"""
    try:
        if isinstance(place, int):
            os.stat(name, dir_fd=place, follow_symlinks=False)
        else:
            os.lstat(f"{place}/{name}")
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    return True


def _closed(path: str, context: int, patterns: Patterns, status: os.stat_result | None) -> Entry:
    """The entry of a directory that cannot be looked into: covered whole."""
    code = "h" if patterns.hides else "p"
    hits: tuple[Hit, ...] = ()
    if context < READ_ONLY or patterns.hides:
        hits = ((path, code, True, False),)
    inode = status.st_ino if status else 0
    return (inode, -1, -1, context, UNREADABLE, (), hits)


def _unreadable(root: str, closed: Iterable[tuple[str, Entry]]) -> tuple[str, ...]:
    """What is said of directories that cannot be looked into: one line for each way in which they are covered."""
    by_how: dict[str, list[str]] = {}
    for path, entry in closed:
        how = "hidden" if entry[6] and entry[6][0][1] == "h" else "read-only"
        by_how.setdefault(how, []).append(f"{root.rstrip('/')}/{path}")
    out = []
    for how, paths in by_how.items():
        if len(paths) == 1:
            out.append(f"{paths[0]}: this directory cannot be read here, so it is {how} as a whole")
            continue
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        said = f"{', '.join(paths[:_SHOWN])}{more}"
        out.append(f"{said}: these directories cannot be read here, so each is {how} as a whole")
    return tuple(out)


def _hard_links(root: str, hits: Iterable[ScanHit]) -> tuple[dict[tuple[int, int], ScanHit], list[str]]:
    """Files that a rule covers and that have a second name: a mount binds one name, not the file.

    A link made elsewhere does not show in the directory, so each file is asked, up to ``MOST_LINKS_ASKED``.

    Returns:
        The files by device and inode, and what is to be said.
    """
    out = []
    linked: dict[tuple[int, int], ScanHit] = {}
    left = MOST_LINKS_ASKED
    for hit in hits:
        if not hit.directory and not hit.link:
            left -= 1
            if left < 0:
                break
            try:
                status = os.lstat(f"{root}/{hit.path}")
            except OSError:
                continue
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                linked[(status.st_dev, status.st_ino)] = hit
                what, how = ("hidden", "show") if hit.effect == "hide" else ("read-only", "can be written, and change")
                where = "those outside of this tree"
                if hit.effect != "protect":  # those are linked by installers, by the thousand
                    out.append(f"{hit.path}: the {what} file has {status.st_nlink} hard links; {where} {how} it")
    if left < 0:
        out.append(f"only {MOST_LINKS_ASKED} of the files that are covered were checked for hard links")
    return linked, out


def _other_names(root: str, entries: dict[str, Entry], linked: dict[tuple[int, int], ScanHit]) -> Iterator[ScanHit]:
    """The other names of these files in the tree, covered like the first; up to ``MOST_NAMES_ASKED`` are looked at."""
    inodes = {inode for _device, inode in linked}
    known = {hit.path for hit in linked.values()}
    left = MOST_NAMES_ASKED
    for path in entries:
        try:
            with os.scandir(f"{root}/{path}" if path else root) as listing:
                for item in listing:
                    left -= 1
                    if item.inode() not in inodes:
                        continue
                    status = item.stat(follow_symlinks=False)
                    first = linked.get((status.st_dev, status.st_ino))
                    name = f"{path}/{item.name}" if path else item.name
                    if first is not None and name not in known:
                        yield ScanHit(name, first.effect, False)
        except OSError:
            continue
        if left <= 0:
            return


# ---------------------------------------------------------------- the index between runs


def _load(cache_file: str, root: str, patterns: Patterns) -> dict[str, Entry]:
    """The entries of the last run, or nothing when the file is not ours, damaged, or of other rules."""
    try:
        fd = os.open(cache_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        status = os.fstat(fd)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
            or status.st_size > LARGEST_INDEX
        ):
            return {}
        with open(fd, "rb", closefd=False) as file:
            data = file.read()
    except OSError:
        return {}
    finally:
        os.close(fd)
    if len(data) < 4 or binascii.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        return {}
    try:
        key, entries = marshal.loads(data[4:])  # noqa: S302  the file is ours and whole
    except (ValueError, EOFError, TypeError):
        return {}
    if key != (_FORMAT, root, patterns.key) or type(entries) is not dict:
        return {}
    return entries


def _save(cache_file: str, root: str, patterns: Patterns, entries: dict[str, Entry]) -> None:
    """Write the index beside and rename it in place; without it the next start is slower, nothing else."""
    data = marshal.dumps(((_FORMAT, root, patterns.key), entries))
    temporary = f"{cache_file}.{os.getpid()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        with open(fd, "wb") as file:
            file.write(binascii.crc32(data).to_bytes(4, "big"))
            file.write(data)
        os.rename(temporary, cache_file)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
