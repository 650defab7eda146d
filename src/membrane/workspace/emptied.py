"""Hidden names that a program may find empty, and what has git not add them.

Theory of operation
-------------------
A hidden file that cannot be opened stops programs that would go on without it: loaders of ``.env``, make's include,
tar, cp.  So a name that ``ignore`` matches is covered by an empty file or directory that can be read.  Where git would
take the emptiness for a change and commit it, the cover stays what cannot be opened (mode 000):

* a name that the index of its repository has (gitformat-index(5)), or something below it;
* what another version control system may know (``OTHERS``), what is in a ``.git``, and a link to any of these;
* when it cannot be judged: an index that is too large, compressed (version 4), shared with another file or sparse;
  configuration that sets ``core.excludesFile``, which would overrule ours.

The index is searched, not parsed: a name is in it as a whole and ends with NUL, its length in the 16 bits of flags
before it.  What a search takes for the name without being it is only one more cover that cannot be opened.  All names
with one ending (``.key``) are searched for at once: where the index has nothing that ends so, which is the rule, ten
thousand of them cost as much as one.

git learns of the others by a system-level configuration of ours, which includes the machine's own and names a file of
patterns: those of the policy where all are good for any repository, and each covered name from the top of its own.  An
untracked name is then ignored, whatever command git runs; nothing is written below ``.git``.  git compares each file
with each line, so there are ``MOST_LINES`` of names; more names are empty only where the patterns say the same to git
as to us.

All is read from the caller's files before the command runs; what has changed by the time of the mount decides only
which of two covers a name gets, never whether.
"""

from __future__ import annotations

import os
import stat

from ..policy.model import PathAccess
from ..value import Value
from .protect import fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..plan.model import ScanHit
    from ..policy.decide import Decider
    from ..policy.model import Policy

MOST_SEARCHED = 128 << 20  # bytes of indexes that are read and searched at a start, over all repositories and names
LARGEST_INDEX = 64 << 20  # bytes
LARGEST_CONFIG = 256 << 10  # bytes of a git configuration, and of patterns that are kept in force
MOST_NAMES = 20_000  # names that are judged; the rest is covered by what cannot be opened
MOST_LINES = 1_000  # of these, names that get a line in git's exclude file; and links that are judged
MOST_SHOWN = 16  # files whose names of variables are shown
LARGEST_SHOWN = 64 << 10  # bytes of such a file
DEEPEST = 128  # directories above a name in which its repository is looked for
OTHERS = (".jj", ".hg", ".svn", ".bzr", "_darcs", ".pijul", ".fslckout", "CVS")
CONFIG, PATTERNS = "gitconfig", "git-ignore"  # names beside the masks
SYSTEM = "/etc/gitconfig"  # git-config(1), FILES
_LEAST = 256  # bytes of an index that are searched while one name is compared
_SPECIAL = frozenset("?[\\# ")  # in a pattern
_OVERRULING = frozenset(("GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"))  # git(1), ENVIRONMENT VARIABLES


class Emptied(Value):
    """``paths``: hidden names that may be empty, relative to the tree.  ``lines``: patterns for git's exclude file."""

    paths: frozenset[str] = frozenset()
    lines: tuple[bytes, ...] = ()


class _Repository:
    """One repository, as far as names in its work tree are concerned.

    Attributes:
        top: its work tree, absolute.
        index: content; empty: nothing is tracked.  None: it cannot be judged.

    Args:
        most: bytes of an index that are read; 0: it is not to be judged.
    """

    def __init__(self, top: str, most: int) -> None:
        self.top = top
        self.index: bytes | None = None
        if most <= 0 or any(os.path.lexists(f"{top}/{name}") for name in OTHERS):
            return
        try:
            directory = _git_directory(top)
            if directory and not any(_sets_excludes(path) for path in _configurations(directory)):
                self.index = _read_index(f"{directory}/index", most)
        except (OSError, ValueError):
            pass

    def untracked(self, names: Iterable[tuple[bytes, bool]], most: int) -> tuple[set[bytes], int]:
        """(those of ``names`` that the index cannot have, nor anything below them; how much was searched).

        Args:
            names: relative to the top, each with whether it is a directory.
            most: bytes that are searched; what is left then may be tracked.
        """
        out: set[bytes] = set()
        if self.index is None:
            return out, 0
        groups: dict[bytes, set[bytes]] = {}
        for name, directory in names:
            groups.setdefault(_ending(name) + (b"/" if directory else b"\0"), set()).add(name)
        left = most
        for ending, group in groups.items():
            left -= len(self.index)
            if left < 0:
                break
            has, left = _names_among(self.index, ending, group, left)
            out |= group - has
        return out, most - left


class Finder:
    """Judges hidden names of one tree.

    Args:
        root: the tree, absolute, links resolved.
        home: what the command has as its home directory, on the host; empty: nothing that is kept.
        environment: names of the command's variables.
    """

    def __init__(self, root: str, home: str = "", environment: Iterable[str] = ()) -> None:
        self._root = root
        self._prefix = root.rstrip("/") + "/"
        self._repositories: dict[str, _Repository | None] = {}  # by directory
        self._left = MOST_SEARCHED
        files = (SYSTEM, *((f"{home}/.gitconfig", f"{home}/.config/git/config") if home else ()))
        self._overruled = not _OVERRULING.isdisjoint(environment) or any(_may_set_excludes(path) for path in files)

    def find(self, hits: Iterable[ScanHit], named: frozenset[str], patterns: Sequence[str]) -> Emptied:
        """Which of ``hits`` may be empty.

        Args:
            hits: of the scan.
            named: those that are there because a hide pattern matches their name.
            patterns: the hide patterns; in force for git as they stand when none of them looks at parent names.
        """
        paths: dict[str, bool] = {}
        lines: list[bytes] = []
        links: list[str] = []
        plain: list[ScanHit] = []
        left = MOST_NAMES
        for hit in hits:
            if hit.effect != "hide" or hit.path not in named:
                continue
            left -= 1
            if left < 0:
                break
            if hit.link:
                links.append(hit.path)
            elif self._is_plain(hit.path):
                plain.append(hit)
        in_force = bool(patterns) and not any("/" in text.rstrip("/") for text in patterns)
        # What a pattern says to git byte by byte it says to us character by character.
        suffices = in_force and _SPECIAL.isdisjoint("".join(patterns))
        free = self._untracked(plain)
        for hit in plain:
            if hit.path in free and (suffices or len(lines) < MOST_LINES):
                paths[hit.path] = True
                if len(lines) < MOST_LINES:
                    lines += self._line(self._of(hit.path), hit.path)
        for path in links[:MOST_LINES]:
            target = os.path.realpath(self._prefix + path)
            inside = target.startswith(self._prefix)
            repository = self._of(path)
            if inside:
                empty = target[len(self._prefix) :] in paths
            else:  # in another tree of the view, perhaps one that can be written
                empty = target != self._root and self._around(os.path.dirname(target)) is None
            if empty and self._is_plain(path):
                paths[path] = True
                lines += self._line(repository, path)
        if paths and in_force:
            lines = [os.fsencode(text) for text in patterns] + lines
        return Emptied(frozenset(paths), tuple(lines))

    @staticmethod
    def _is_plain(path: str) -> bool:
        """Is it outside of every ``.git``, and can a line of patterns name it?"""
        return "\n" not in path and ".git" not in fold(path).split("/")

    def _untracked(self, hits: Iterable[ScanHit]) -> set[str]:
        """The paths of those that no repository can track."""
        out: set[str] = set()
        found: dict[_Repository, dict[bytes, ScanHit]] = {}
        before, repository, own, lead = None, None, {}, ""
        for hit in hits:
            parent, _, name = hit.path.rpartition("/")
            if parent != before:  # mostly many of one directory
                before, repository = parent, self._of(hit.path)
                if repository is not None:
                    own = found.setdefault(repository, {})
                    lead = self._below(repository, hit.path)[: -len(name)]
            if repository is None:
                out.add(hit.path)
            elif not self._overruled:
                own[os.fsencode(lead + name)] = hit
        for repository, names in found.items():
            free, searched = repository.untracked(((name, hit.directory) for name, hit in names.items()), self._left)
            self._left -= searched
            out.update(names[name].path for name in free)
        return out

    def _below(self, repository: _Repository, path: str) -> str:
        return (self._prefix + path)[len(repository.top.rstrip("/")) + 1 :]

    def _line(self, repository: _Repository | None, path: str) -> tuple[bytes, ...]:
        if repository is None:
            return ()
        name = os.fsencode(self._below(repository, path))
        for special in (b"\\", b"*", b"?", b"["):
            name = name.replace(special, b"\\" + special)
        return (b"/" + (name[:-1] + b"\\ " if name.endswith(b" ") else name),)

    def _of(self, path: str) -> _Repository | None:
        """The innermost repository whose work tree has ``path``."""
        return self._around(os.path.dirname(self._prefix + path))

    def _around(self, directory: str) -> _Repository | None:
        """The same of what is in an absolute directory."""
        asked: list[str] = []
        found: _Repository | None = None
        for _ in range(DEEPEST):
            if directory in self._repositories:
                found = self._repositories[directory]
                break
            asked.append(directory)
            if any(os.path.lexists(f"{directory}/{name}") for name in (".git", *OTHERS)):
                found = _Repository(directory, min(LARGEST_INDEX, self._left))
                self._left -= len(found.index or b"")
                break
            if directory == "/":
                break
            directory = os.path.dirname(directory)
        else:
            found = _Repository(directory, 0)
        self._repositories.update(dict.fromkeys(asked, found))
        return found


def configuration(
    lines: Iterable[bytes], home: str, place: str, settings: str = "", patterns: bytes = b""
) -> tuple[tuple[str, bytes], ...]:
    """The two files for git, as (name, content), to be made in the directory ``place`` of the view.

    ``settings`` and ``patterns``: the caller's (``callers.settings``).  ``home``: as for ``Finder``; its
    ``.config/git/ignore`` is what git would read by default, and reads no more (gitignore(5)).  An earlier run may have
    put a link there: none is followed.
    """
    own = b""
    if home and os.path.lexists(f"{home}/.config/git/ignore"):
        from .below import open_file  # most runs need it only while the view is made

        try:
            store = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                own = _content(open_file(store, ".config/git/ignore"), LARGEST_CONFIG)
            finally:
                os.close(store)
        except (OSError, ValueError):
            pass
    text = f"# membrane: hidden names are not added\n[include]\n\tpath = {SYSTEM}\n"
    text += f"{settings}[core]\n\texcludesFile = {place}/{PATTERNS}\n"
    return (CONFIG, text.encode()), (PATTERNS, b"\n".join((*filter(None, (patterns, own)), *lines, b"")))


def shown_names(root: str, policy: Policy, paths: Iterable[str]) -> tuple[list[tuple[str, bytes]], list[str]]:
    """What ``show: names`` shows of files that may be empty, as (path, content), and what is to be said.

    No link is followed: a file that is one somewhere on the way is shown empty.
    """
    from ..policy.decide import Decider
    from .below import open_file
    from .dotenv import Unclear, names_only

    decider = Decider(policy)
    out: list[tuple[str, bytes]] = []
    warnings: list[str] = []
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in sorted(paths):
            if len(out) >= MOST_SHOWN or not _shows_names(decider, path):
                continue
            try:
                out.append((path, names_only(_content(open_file(place, path), LARGEST_SHOWN))))
            except Unclear as error:
                warnings.append(f"{path}: its names are not shown: {error}")
            except (OSError, ValueError):
                continue  # a link, a directory, or larger than such files are
    finally:
        os.close(place)
    return out, warnings


def _shows_names(decider: Decider, path: str) -> bool:
    rule = getattr(decider.decide(PathAccess(path, "read")), "rule", None)
    return bool(getattr(rule, "show_names", False))


def _configurations(directory: str) -> tuple[str, ...]:
    """The configuration files of a git directory (git-config(1), gitrepository-layout(5))."""
    common = directory
    if os.path.lexists(f"{directory}/commondir"):
        common = os.path.join(directory, os.fsdecode(_read(f"{directory}/commondir", 4096).rstrip(b"\n")))
    return f"{common}/config", f"{directory}/config.worktree"


def _git_directory(top: str) -> str:
    """The git directory of a work tree.

    Raises:
        ValueError: ``.git`` is neither a directory nor a file that names one.
    """
    place = f"{top}/.git"
    if stat.S_ISDIR(os.lstat(place).st_mode):
        return place
    text = _read(place, 4096 + 16)
    if not text.startswith(b"gitdir: "):
        raise ValueError(place)
    return os.path.join(top, os.fsdecode(text[8:].rstrip(b"\n")))


def _sets_excludes(path: str) -> bool:
    """Does a configuration overrule ``core.excludesFile``, or include others, which may?"""
    try:
        text = _read(path, LARGEST_CONFIG).lower()
    except FileNotFoundError:
        return False
    return b"excludesfile" in text or b"include" in text


def _may_set_excludes(path: str) -> bool:
    try:
        return _sets_excludes(path)
    except (OSError, ValueError):
        return True


def _read_index(path: str, most: int) -> bytes | None:
    """The index, without a file: empty; None: names may be elsewhere, or not stand as a whole."""
    try:
        data = _read(path, most)
    except FileNotFoundError:
        return b""
    if data[:4] != b"DIRC" or data[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        return None
    if any(name.startswith("sharedindex.") for name in os.listdir(os.path.dirname(path))):
        return None
    # The extension of a sparse index, which is empty; a file of that name costs nothing but the emptiness.
    return None if b"sdir\0\0\0\0" in data else data


def _ending(name: bytes) -> bytes:
    """The last component, from its last dot on."""
    last = name[name.rfind(b"/") + 1 :]
    return last[max(0, last.rfind(b".")) :]


def _names_among(index: bytes, ending: bytes, names: set[bytes], most: int) -> tuple[set[bytes], int]:
    """(those of ``names`` that an entry has, or begins with; what is left of ``most``).

    Args:
        ending: of all of them, with what ends a name: NUL, or a slash for directories.
        most: bytes that may be compared, each time at least ``_LEAST``; when they are used up, all of them count.
    """
    lengths = sorted({len(name) for name in names})
    out: set[bytes] = set()
    at = index.find(ending)
    while at >= 0:
        end = at + len(ending) - 1
        for length in lengths:
            most -= max(length, _LEAST)
            if index[end - length : end] in names and length <= end and _is_entry(index, end - length):
                out.add(index[end - length : end])
        if most < 0:
            return names, most
        at = index.find(ending, at + 1)
    return out, most


def _is_entry(index: bytes, at: int) -> bool:
    """Could the name of an entry begin here?"""
    end = index.find(b"\0", at, at + 0xFFF)
    length = end - at if end >= 0 else 0xFFF  # or longer
    # The flags of an entry, or its flags and the extended ones (version 3) come before the name.
    return any(
        at >= before and int.from_bytes(index[at - before : at - before + 2], "big") & 0xFFF == length
        for before in (2, 4)
    )


def _read(path: str, most: int) -> bytes:
    """A regular file as a whole.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, or larger than ``most`` bytes.
    """
    return _content(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), most)


def _content(fd: int, most: int) -> bytes:
    """``_read`` of a descriptor, which is closed."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise ValueError("not a regular file of this size")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(fd)
    if len(data) > most:
        raise ValueError("it grew")
    return data
