"""``dockerfile:PATH``: whether what its build takes from the directory around it is what it was.

Theory of operation
-------------------
A build takes files of its context by COPY, ADD and ``RUN --mount=type=bind`` only, and these name them (Dockerfile
reference).  So of most files few names count, and of one that copies nothing none.  What names them otherwise than by
plain text and patterns of their last part (variables, quotes, here-documents, another escape character, flags and
frontends that are not listed) makes the whole directory count, without what a plain line of ``.dockerignore`` leaves
out: an error is a build too many, which the engine's own cache makes short, and never one too few.

Each start asks for ``stamp``, which opens directories and no file: names, modes, sizes and times.  Only where that has
changed ``content`` reads the files, and nothing is built where names, modes and bytes are the same (a checkout back and
forth).  Commands write this tree: no link is followed, only regular files are read, names, depth and bytes are bounded,
and what is beyond counts as changed.

An image in FROM may have instructions of its own for the build (ONBUILD), which only the engine knows.  Where a build
said that it took files by one (``imagebuild.triggered``), the whole directory counts from then on (``images.ALL``).
"""

from __future__ import annotations

import os
import posixpath
import stat
import time
from _blake2 import blake2b  # hashlib loads OpenSSL besides, which takes longer than all that is done here

from ..host import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MOST_NAMES = 20_000  # of a context that is looked at
MOST_BYTES = 512 << 20  # of its files
MOST_DEPTH = 64
_LARGEST = 1 << 20  # bytes of a Dockerfile, and of a list of what is left out
_CHUNK = 1 << 20
_PLAIN_FLAGS = ("--chown=", "--chmod=", "--link", "--checksum=", "--keep-git-dir")  # they choose no files
_FRONTENDS = ("docker/dockerfile", "docker.io/docker/dockerfile", "docker/dockerfile-upstream")
_OTHER_MOUNTS = ("type=cache", "type=tmpfs", "type=secret", "type=ssh")
_BELOW = sc.RESOLVE_BENEATH | sc.RESOLVE_NO_SYMLINKS


class _Unjudged(Exception):
    """It is beyond a bound, or changes meanwhile."""


class _Whole(Exception):
    """Which names count cannot be said."""


def stamp(path: str, *, whole: bool = False) -> tuple[int, ...]:
    """What tells that neither the Dockerfile ``path`` nor what it copies was touched; like no other where that cannot
    be judged.  ``whole``: the whole directory counts, whatever it copies."""
    found = _digest(path, _touched, whole)
    if found is None:
        return os.getpid(), time.monotonic_ns()
    return tuple(int.from_bytes(found[start : start + 7], "big") for start in range(0, 28, 7))


def content(path: str, *, whole: bool = False) -> str:
    """A digest of the Dockerfile ``path`` and of what it copies: names, modes, bytes; empty: it cannot be judged.
    ``whole``: as of ``stamp``."""
    left = [MOST_BYTES]
    found = _digest(path, lambda above, name, details: _read(above, name, details, left), whole)
    return found.hex() if found is not None else ""


def instructions(path: str) -> list[str] | None:
    """Those of the Dockerfile ``path``, each in one line; None: they cannot be told."""
    try:
        with open(path, "rb") as file:
            return _lines(file.read(_LARGEST).decode())
    except (OSError, ValueError, _Whole):
        return None


def copied(text: str) -> list[str] | None:
    """The names that a Dockerfile takes from its context, perhaps with ``*`` and ``?`` in the last part; None: any."""
    try:
        return [name for line in _lines(text) for name in _taken(line)]
    except _Whole:
        return None


def _lines(text: str) -> list[str]:
    """The instructions, each in one line."""
    if "<<" in text or "\ufeff" in text:  # before the first word some engines leave a byte order mark out
        raise _Whole
    out, pending = [], ""
    for row in text.split("\n"):  # not splitlines(), which knows further ends
        line = row.strip()
        if line.startswith("#"):
            said = line[1:].strip().lower()
            frontend = said.partition("=")[2].strip().partition(":")[0].partition("@")[0]
            if said.startswith("escape") or (said.startswith("syntax") and frontend not in _FRONTENDS):
                raise _Whole
            continue
        if not line:
            continue
        if line.endswith("\\\\") or any(each.isspace() and each not in " \t" for each in line):
            raise _Whole  # ends of lines and of words that not all engines have
        pending += row.rstrip().removesuffix("\\")
        if not line.endswith("\\"):
            out.append(pending.strip())
            pending = ""
    return [*out, pending.strip()] if pending.strip() else out


def _taken(line: str) -> list[str]:
    keyword, *words = line.split()
    if keyword.upper() == "RUN":
        mounts = [word for word in words if word.startswith("--mount")]
        if not all(any(kind in word.partition("=")[2].split(",") for kind in _OTHER_MOUNTS) for word in mounts):
            raise _Whole
    if keyword.upper() not in ("COPY", "ADD"):
        return []
    rest = line[len(keyword) :].strip()
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ") if " " in rest else rest.partition("\t")
        rest = rest.strip()
        if flag.startswith("--from="):
            return []  # of another stage or image
        if not flag.startswith(_PLAIN_FLAGS):
            raise _Whole
    words = rest.split()
    if rest.startswith("["):
        import json

        try:
            words = json.loads(rest)
        except (ValueError, RecursionError):
            raise _Whole from None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _Whole
    elif "'" in rest or '"' in rest:
        raise _Whole
    if len(words) < 2 or any(character in word for word in words[:-1] for character in "$\\["):
        raise _Whole
    return [_name(word) for word in words[:-1]]  # an address is a name that is not there: engines differ in what is one


def _name(word: str) -> str:
    parts = posixpath.normpath(f"/{word}").strip("/").split("/")
    open_ones = (number for number, part in enumerate(parts[:-1]) if "*" in part or "?" in part)
    name = "/".join(parts[: next(open_ones, len(parts))])
    if not name:
        raise _Whole
    return name


def _touched(_above: int, _name: str, details: os.stat_result) -> object:
    return details.st_ino, details.st_size, details.st_mtime_ns, details.st_ctime_ns


def _read(above: int, name: str, details: os.stat_result, left: list[int]) -> object:
    """The digest of a file; ``left``: how many bytes may be read yet."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not os.path.samestat(os.fstat(fd), details):
            raise _Unjudged
        digest = blake2b(digest_size=32)
        while data := file.read(_CHUNK):
            left[0] -= len(data)
            if left[0] < 0:
                raise _Unjudged
            digest.update(data)
    return digest.hexdigest()


def _digest(path: str, told: Callable[[int, str, os.stat_result], object], whole: bool) -> bytes | None:
    """Of the Dockerfile and what it copies; ``told``: what is said of a regular file.  None: it cannot be judged."""
    directory, name = os.path.split(path)
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = _small(root, name)
        others = (".containerignore", f"{name}.dockerignore", f"{name}.containerignore")  # some engines take these
        lists = [_small(root, each, must=False) for each in (".dockerignore", *others)]
        walk = _Walk(told, *_left_out(lists[0] if not any(lists[1:]) else b""))
        walk.add(text, *lists)
        # buildah takes NAME.in through cpp(1), which includes files.
        names = None if whole or name.endswith(".in") else copied(text.decode())
        try:
            for each in names if names is not None else [""]:
                walk.named(root, each)
        except _Whole:
            walk.named(root, "")
        return walk.digest.digest()
    except (OSError, ValueError, _Unjudged):
        return None
    finally:
        os.close(root)


def _small(root: int, name: str, *, must: bool = True) -> bytes:
    """A file of the context, which is no link: what that leads to inside is not known here."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=root)
    except FileNotFoundError:
        if must:
            raise
        return b""
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _Unjudged
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise _Unjudged
    return data


def _left_out(text: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The paths, and the names in any directory, that ``.dockerignore`` leaves out in plain words; none where it takes
    something back (``!``)."""
    paths, anywhere = set[str](), set[str]()
    for row in text.decode("utf-8", "replace").split("\n"):
        line = row.strip()
        if line.startswith("!"):
            return frozenset(), frozenset()
        if not line or line.startswith("#"):
            continue
        path = posixpath.normpath(f"/{line}").strip("/")
        last = path.removeprefix("**/")
        if any(character in last for character in "*?[\\") or not last:
            continue
        if last == path:
            paths.add(path)
        elif "/" not in last:
            anywhere.add(last)
    return frozenset(paths), frozenset(anywhere)


class _Walk:
    def __init__(
        self, told: Callable[[int, str, os.stat_result], object], paths: frozenset[str], anywhere: frozenset[str]
    ) -> None:
        self._told, self._paths, self._anywhere = told, paths, anywhere
        self._names = 0
        self.digest = blake2b(digest_size=32)

    def add(self, *row: object) -> None:
        self.digest.update(f"{row!r}\n".encode("utf-8", "surrogateescape"))

    def named(self, root: int, name: str) -> None:
        """What one name of the Dockerfile stands for; empty: the whole context.

        Raises:
            _Whole: a link is on the way, which engines follow.
        """
        above, _, last = name.rpartition("/")
        self._count()
        try:
            fd = sc.openat2(root, above or ".", os.O_RDONLY | os.O_DIRECTORY, 0, _BELOW)
        except (FileNotFoundError, NotADirectoryError):
            self.add(name, "absent")
            return
        except OSError:
            raise _Whole from None
        try:
            found = self._listed(fd) if not last or "*" in last or "?" in last else [last]
            if last:
                from fnmatch import fnmatchcase

                found = [each for each in found if fnmatchcase(each, last)]
            for each in found:
                self._entry(fd, f"{above}/{each}" if above else each, each, 0, follows=bool(last))
        finally:
            os.close(fd)

    def _entry(self, above: int, path: str, name: str, depth: int, *, follows: bool = False) -> None:
        if path in self._paths or name in self._anywhere:
            return
        if depth > MOST_DEPTH:
            raise _Unjudged
        try:
            details = os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            self.add(path, "absent")
            return
        if stat.S_ISLNK(details.st_mode):
            if follows:
                raise _Whole
            self.add(path, os.readlink(name, dir_fd=above))
            return
        regular = stat.S_ISREG(details.st_mode)
        self.add(path, details.st_mode, self._told(above, name, details) if regular else "")
        if stat.S_ISDIR(details.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=above)
            try:
                for each in self._listed(fd):
                    self._entry(fd, f"{path}/{each}", each, depth + 1)
            finally:
                os.close(fd)

    def _listed(self, fd: int) -> list[str]:
        """The names of a directory, in order."""
        out = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._count()
                out.append(entry.name)
        return sorted(out)

    def _count(self) -> None:
        self._names += 1
        if self._names > MOST_NAMES:
            raise _Unjudged
