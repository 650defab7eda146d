"""What Landlock is told of a view, and inodes with a rule that wait for their names (``supervised_names``).

Theory of operation
-------------------
Rules cannot be added to a domain that is in force, and each is of an inode.  So inodes are made before the command is,
each gets a rule, and rename(2) gives them their names later: files, directories and FIFOs.
"""

from __future__ import annotations

import os
import stat

from . import syscalls as sc
from .landlock import WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]  # device, inode

MOST_HELD = 16_384  # hidden and read-only names
POOL_DIRECTORIES, POOL_FILES, POOL_FIFOS = 24, 32, 2  # each costs a start some 100 µs


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


class Shared:
    """What Landlock is told of a view, and which directories it leaves to us.

    Attributes:
        rules: path and rights of each rule.
        shared: directories of writable trees in which names are made here; whether Landlock lets them be read.
        denied: hidden and read-only names, each with the reason.
        emptied: those of them that are shown empty, as files and directories that can be read.
        copies: those that are shown as a copy, a file of ours, and whether that can be written.
        editable: read-only files of which git's everyday changes are made here (``supervised_edits``).
        memory: a directory of ours that is /dev/shm to the command; empty: it has none.
    """

    __slots__ = ("copies", "denied", "editable", "emptied", "memory", "rules", "shared")

    def __init__(
        self,
        rules: list[tuple[str, int]],
        shared: dict[str, bool],
        denied: dict[str, str],
        emptied: frozenset[str] = frozenset(),
        copies: dict[str, tuple[str, bool]] | None = None,
        editable: frozenset[str] = frozenset(),
        memory: str = "",
    ) -> None:
        self.editable, self.memory = editable, memory
        self.rules, self.shared, self.denied, self.emptied = rules, shared, denied, emptied
        self.copies = copies or {}

    @property
    def asks(self) -> str:
        """Which opens are to be notified (``seccomp.supervised_program``)."""
        if self.copies:
            return "reads"
        return "writes" if all(self.shared.values()) else "reads"


class Pool:
    """Inodes without a use yet, each with a rule of its own, which get their names by rename(2).

    Args:
        directory: of our own, on the mount of the shared directories.
        files: as many regular files.
    """

    def __init__(self, directory: str, files: int) -> None:
        os.mkdir(directory, 0o700)
        self.directory = directory
        self.fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._left: dict[str, list[str]] = {"d": [], "f": [], "p": []}
        self.identities: set[Identity] = set()
        for kind, count in (("d", POOL_DIRECTORIES), ("f", files), ("p", POOL_FIFOS)):
            for number in range(count):
                name = f"{kind}{number}"
                if kind == "d":
                    os.mkdir(name, 0o700, dir_fd=self.fd)
                else:
                    os.mknod(name, 0o600 | (stat.S_IFREG if kind == "f" else stat.S_IFIFO), dir_fd=self.fd)
                self.identities.add(identity(os.stat(name, dir_fd=self.fd, follow_symlinks=False)))
                self._left[kind].append(name)

    def paths(self) -> list[str]:
        return [f"{self.directory}/{name}" for names in self._left.values() for name in names]

    def take(self, kind: str) -> tuple[str, int]:
        """The name in ``fd`` of one that is as it was made, and an O_PATH descriptor of it; ("", -1): there is none.

        The pool may lie where the command can write, so what is there is looked at again.
        """
        while self._left[kind]:
            name = self._left[kind].pop()
            try:
                place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            except OSError:
                continue
            try:
                status = os.fstat(place)
                used = _holds(f"/proc/self/fd/{place}") if kind == "d" else status.st_size > 0
                if identity(status) in self.identities and not used:
                    return name, place
            except OSError:
                pass
            os.close(place)
        return "", -1

    def give(self, kind: str, name: str) -> None:
        """It was not used."""
        self._left[kind].append(name)


def make(granted: Shared, directory: str) -> Pool | None:
    """Inodes with a rule, for what is made in shared directories; None: nothing is, or no place for them is found.

    They have to lie on the mount of those directories: in our own directory, or with a repository's objects, of which
    git looks at none that it did not name.
    """
    files = 0 if all(granted.shared.values()) else POOL_FILES
    name = os.path.basename(directory).removeprefix(".")
    for shared in sorted(granted.shared):
        for place in (f"{directory}/pool", f"{shared}/.git/objects/{name}", f"{shared}/objects/{name}"):
            try:
                above = os.path.dirname(place)
                if os.path.realpath(above) != above or os.stat(above).st_dev != os.stat(shared).st_dev:
                    continue
                made = Pool(place, files)
            except OSError:
                continue
            granted.rules += [(path, WRITE) for path in made.paths()]
            return made
    return None


def _holds(directory: str) -> bool:
    """Whether there is a name in it; no more than one is looked at."""
    with os.scandir(directory) as entries:
        return next(entries, None) is not None


def hold(paths: Iterable[str]) -> list[int]:
    """O_PATH descriptors of what is there, of ``MOST_HELD`` at most: beyond that, the path alone is refused."""
    out: list[int] = []
    most = min(MOST_HELD, sc.open_files() // 4)
    for path in paths:
        if len(out) >= most:
            break
        try:
            out.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError:
            continue
    return out


def identities(paths: Iterable[str]) -> set[Identity]:
    """Of those that are there."""
    out = set()
    for path in paths:
        try:
            out.add(identity(os.lstat(path)))
        except OSError:
            continue
    return out
