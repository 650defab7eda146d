"""What the commits that a repository had before the run hold under a protected name.

Theory of operation
-------------------
A branch that tracks ``.vscode`` or ``.mcp.json`` is checked out inside as outside: a name that a commit from before
the run holds may be made there, with exactly the bytes and the right to be executed that it has in such a commit.

``tips`` reads the names of the commits from the refs before the command begins; the command can change the refs, and
not what was read.  ``origins`` says which of them count.  ``Committed`` goes from there to parents and trees, lazily,
and believes an object only when its hash is the name by which it was reached (``objects``).  Everything is bounded:
what is not found in time is not committed.  Time is that of a processor: what is let through does not depend on what
else the machine does.

Symbolic links are never let through: what they lead to could be the command's.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .below import open_below, open_file
from .judge import tree_row
from .protect import GIT_NAMES, LAYOUT, fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .objects import Objects

MOST_REFS = 1_024
LARGEST_REFS = 256 << 10  # bytes of packed-refs that are read
MOST_COMMITS = 20_000
MOST_BLOBS = 512  # different contents of one path that are compared with a file
MOST_PATHS = 4_096
LONGEST = 2.0  # seconds of a processor in one session: an honest checkout on a busy machine needs no more of them
PATIENCE = 120.0  # seconds of that by the clock, for a disk that does not answer
_NOT_THERE = frozenset((errno.ENOENT, errno.ENOTDIR))
DIRECTORY, FILE, EXECUTABLE = b"40000", b"100644", b"100755"
_HEX = frozenset(b"0123456789abcdef")
_PLACES = ("refs/heads", "refs/remotes", "refs/tags")


def encoded(whole: Iterable[bytes], alone: Iterable[bytes] = ()) -> bytes:
    """Names of commits: a byte with their size (20 or 32), then one after another; empty: there are none.

    Args:
        whole: of these all that is behind them counts.
        alone: of these it does not; they come after a name of zeros, which no object has.
    """
    whole, alone = tuple(whole), tuple(alone)
    width = len(next(iter((*alone, *whole)), b""))
    if not width:
        return b""
    lists = [b"".join(name for name in names if len(name) == width) for names in (whole, alone)]
    return bytes((width,)) + lists[0] + (bytes(width) + lists[1] if lists[1] else b"")


def tips(root: str) -> tuple[dict[bytes, None], bool]:
    """The names of the commits of the refs of ``root``/.git, and whether these are all."""
    refs = _Refs()
    try:
        fd = os.open(f"{root}/.git", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return {}, error.errno in _NOT_THERE
    try:
        refs.read(fd)
    finally:
        os.close(fd)
    return refs.found, refs.whole


class _Refs:
    """Those of one repository, as far as they are read."""

    def __init__(self) -> None:
        self.found: dict[bytes, None] = {}
        self.whole = True

    def read(self, fd: int) -> None:
        for name in ("HEAD", "ORIG_HEAD", "refs/stash"):
            self._take(self._content(fd, name, 128))
        for place in _PLACES:
            self._loose(fd, place)
        packed = self._content(fd, "packed-refs", LARGEST_REFS)
        self.whole = self.whole and len(packed) < LARGEST_REFS
        for line in packed.split(b"\n") if packed else ():
            if line[:1] not in (b"#", b"^"):
                self._take(line.partition(b" ")[0])

    def _loose(self, fd: int, place: str) -> None:
        stack = [place]
        while stack:
            at = stack.pop()
            try:
                directory = open_below(fd, at, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                self._lost(error)
                continue
            try:
                with os.scandir(directory) as listing:
                    for number, entry in enumerate(listing):
                        if number >= MOST_REFS or len(stack) > MOST_REFS or len(self.found) >= MOST_REFS:
                            self.whole = False
                            return
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(f"{at}/{entry.name}")
                        else:
                            self._take(self._content(fd, f"{at}/{entry.name}", 128))
            except OSError as error:
                self._lost(error)
            finally:
                os.close(directory)

    def _content(self, fd: int, name: str, most: int) -> bytes:
        try:
            opened = open_file(fd, name)
        except OSError as error:
            self._lost(error)
            return b""
        try:
            return os.read(opened, most) if stat.S_ISREG(os.fstat(opened).st_mode) else b""
        except OSError as error:
            self._lost(error)
            return b""
        finally:
            os.close(opened)

    def _lost(self, error: OSError) -> None:
        self.whole = self.whole and error.errno in _NOT_THERE

    def _take(self, text: bytes) -> None:
        text = text.strip()
        if len(text) in (40, 64) and _HEX.issuperset(text):
            if len(self.found) >= MOST_REFS:
                self.whole = False
            else:
                self.found[bytes.fromhex(text.decode("ascii"))] = None


class Later(Exception):
    """There is no answer yet."""


class Committed:
    """What may stand under protected names of one tree.

    Args:
        root_fd: the tree; stays the caller's.
        tips: as ``encoded``, not empty.

    ``until``: time.monotonic() after which ``Later`` is raised; the work goes on where it was at the next question.
    """

    def __init__(self, root_fd: int, tips: bytes) -> None:
        from .objects import Objects

        width = tips[0]

        self._root_fd = root_fd
        self._objects: Objects = Objects(root_fd, ".git", width)
        names = [tips[at : at + width] for at in range(1, len(tips), width)]
        end = names.index(bytes(width)) if bytes(width) in names else len(names)
        self._alone = set(names[end + 1 :]).difference(names[:end])  # what is behind them does not count
        self._todo = [*names[:end], *names[end + 1 :]][::-1]
        self._seen = set(self._todo)
        self._later: list[bytes] = []
        self._roots: dict[bytes, None] = {}  # trees of commits, in the order in which they were found
        self._order: list[bytes] = []
        self._trees: dict[bytes, dict[bytes, tuple[bytes, bytes]] | None] = {}
        self._paths: dict[str, tuple[int, dict[tuple[bytes, bytes], None]]] = {}  # how far, and what it is there
        self._width = width
        self._left, self._patience = LONGEST, PATIENCE
        self.found: tuple[bytes, bytes] | None = None  # mode and name of what ``differs`` has found a file to be
        self.until = 0.0  # 0: it is not divided

    def close(self) -> None:
        self._objects.close()

    def may_be(self, path: str, kind: str, *, named: bool = False) -> bool:
        """Does a commit hold this path as a "file" or a "directory"?

        ``named``: git's configuration names it, so it need not be of the table of tools.
        """
        wanted = (DIRECTORY,) if kind == "directory" else (FILE, EXECUTABLE)
        counts = _is_plain(path) if named else is_tool(path)
        return counts and any(mode in wanted for mode, _name in self._at(path))

    def objection(self, path: str, *, partly: bool = False, place: str = "") -> str:
        """Why the regular file at ``path`` is not as a commit has it; empty: it is.

        ``partly``: it is being written, and may be the beginning of one.  ``place``: where commits have it, when git's
        configuration names it and it lies in another work tree.

        Raises:
            OSError: it cannot be looked at.
        """
        if not (_is_plain(place) if place else is_tool(path)):
            return "no commit from before this run counts here"
        fd = open_file(self._root_fd, path)
        try:
            return self.differs(fd, place or path, partly=partly)
        finally:
            os.close(fd)

    def differs(self, fd: int, path: str, *, partly: bool) -> str:
        """As ``objection``, of a file that is open for reading."""
        from .objects import LARGEST, named

        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        if status.st_size > LARGEST:
            return f"it is larger than {LARGEST} bytes"
        data = b""
        while len(data) <= LARGEST and (piece := os.pread(fd, 1 << 20, len(data))):
            data += piece
        name = named(b"blob", data, self._width)
        executable = bool(status.st_mode & 0o111)
        self.found = None
        count = 0
        for mode, blob in self._at(path):
            if mode not in (FILE, EXECUTABLE) or (executable and mode != EXECUTABLE):
                continue
            if blob == name:
                self.found = (mode, blob)
                return ""
            count += 1
            if count > MOST_BLOBS:
                break
            if partly:
                if not data:
                    return ""
                if 0 < self.until < time.monotonic():
                    raise Later
                found = self._objects.read(blob)
                if found is not None and found[1].startswith(data):
                    return ""
        return "no commit from before this run has it so"

    def content(self, entry: tuple[bytes, bytes]) -> tuple[bytes, int]:
        """(bytes, permission bits) of a file that was found.

        Raises:
            OSError: its object is not there any more.
        """
        found = self._objects.read(entry[1])
        if found is None:
            raise OSError("its object is not there any more")
        return found[1], 0o777 if entry[0] == EXECUTABLE else 0o666

    # ------------------------------------------------------------ the walk

    def _at(self, path: str) -> Iterator[tuple[bytes, bytes]]:
        """(mode, name) of what is at ``path`` in the commits, each once; what was found before comes first."""
        if path not in self._paths and len(self._paths) >= MOST_PATHS:
            return
        at, found = self._paths.get(path, (0, {}))
        yield from tuple(found)
        parts = [os.fsencode(part) for part in path.split("/")]
        while True:
            began, worked = time.monotonic(), time.thread_time()
            if 0 < self.until < began:
                raise Later
            if min(self._left, self._patience) <= 0 or (at >= len(self._order) and not self._next_commit()):
                break
            entry = None
            if at < len(self._order):
                entry = self._entry(self._order[at], parts)
                at += 1
            self._left -= time.thread_time() - worked
            self._patience -= time.monotonic() - began
            new = entry is not None and entry not in found
            if new and entry is not None:
                found[entry] = None
            self._paths[path] = (at, found)
            if new and entry is not None:
                yield entry
        self._paths[path] = (at, found)

    def _next_commit(self) -> bool:
        """Look at one commit more; False: there is none."""
        if not self._todo:
            self._todo, self._later = self._later[::-1], []
        if not self._todo:
            return False
        at = self._todo.pop()
        alone = at in self._alone
        found = self._objects.read(at)
        if found is None:
            return True
        kind, text = found
        for line in text.partition(b"\n\n")[0].split(b"\n"):
            key, _, value = line.partition(b" ")
            if kind == b"commit" and key not in (b"tree", b"parent"):
                break  # they are the first ones (gitformat-commit(5))
            if kind == b"tag" and key != b"object":
                break
            if len(value) != 2 * self._width or not _HEX.issuperset(value):
                continue
            name = bytes.fromhex(value.decode("ascii"))
            if key == b"tree":
                if name not in self._roots:
                    self._roots[name] = None
                    self._order.append(name)
            elif alone and key == b"parent":
                continue
            elif (name not in self._seen or (not alone and name in self._alone)) and len(self._seen) < MOST_COMMITS:
                (self._alone.add if alone else self._alone.discard)(name)
                self._seen.add(name)
                self._later.append(name)
        return True

    def _entry(self, tree: bytes, parts: list[bytes]) -> tuple[bytes, bytes] | None:
        for part in parts[:-1]:
            entry = self._tree(tree).get(part)
            if entry is None or entry[0] != DIRECTORY:
                return None
            tree = entry[1]
        return self._tree(tree).get(parts[-1])

    def _tree(self, name: bytes) -> dict[bytes, tuple[bytes, bytes]]:
        known = self._trees.get(name)
        if known is not None:
            return known
        found = self._objects.read(name)
        entries: dict[bytes, tuple[bytes, bytes]] = {}
        if found is not None and found[0] == b"tree":
            data, at = found[1], 0
            while at < len(data):
                end = data.find(b"\0", at)
                if end < 0:
                    break
                mode, _, label = data[at:end].partition(b" ")
                at = end + 1 + self._width
                entries[label] = (mode, data[end + 1 : at])
        if len(self._trees) >= 1024:
            self._trees.clear()
        self._trees[name] = entries
        return entries


def is_tool(path: str) -> bool:
    """Is it, or is it below, a name of tools, and no part of it git's own?"""
    parts = path.split("/")
    return _is_plain(path) and any(tree_row("/".join(parts[:count])) is not None for count in range(1, len(parts) + 1))


def _is_plain(path: str) -> bool:
    """No part of it is git's own."""
    return not any(fold(part) in GIT_NAMES or fold(part) in LAYOUT for part in path.split("/"))
