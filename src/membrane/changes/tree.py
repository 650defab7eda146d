"""The copy of a workspace, read from its frozen layers, and where it differs from the workspace.

Theory of operation
-------------------
A copy is the workspace with overlayfs layers upon it (Documentation/filesystems/overlayfs.rst): in each directory the
newest layer that has a name decides; a whiteout (a character device 0/0) hides what is below, and so does an opaque
directory (``user.overlay.opaque`` is "y") for all names in it.  Nothing is mounted here: the layers are read as what
they are, directories of the caller, so the work is in proportion to the changes and not to the workspace.

The layers are frozen: the caller holds the lock of the change set, and no process of the sandbox runs.  The workspace
is not: anybody may change it at any time.  So everything is opened by openat2(2) below a descriptor, with
RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_XDEV: neither a link of the sandbox nor one of the host leads
anywhere, and what another file system has mounted there is not the workspace (overlayfs does not show it either).

What the command closed for its owner (mode 000) is opened for the time of the reading, and put back by ``close``.
What another user of the sandbox owns (a subordinate id of the caller's) and has closed cannot be read: it is "closed",
one change that is never put in place, and nothing is known of what is below it.

A hidden name does not exist in the copy.  What the command made there is listed as never to be put in place, and what
the host has there is neither read nor deleted.

One file of over 800 lines: how a name is opened, and what an open name is, must be said once for layers and workspace.
"""

from __future__ import annotations

import errno
import os
import stat
from operator import attrgetter

from ..errors import HostError
from ..host import syscalls
from .grafted import GIT, Grafted, below, is_graft
from .model import CLOSED, Change, Side, side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .model import Kind

MOST_CHANGES = 500_000  # names that differ; with more nothing is listed
DEEPEST = 512  # components of a path
LONGEST = 3_800  # bytes of a path: below PATH_MAX (4096) with room for a name
MOST_COMPARED = 16  # deleted files of the same content whose name is compared with that of an added one
_PIECE = 1 << 20
_ZEROS = bytes(_PIECE)
RESOLVE_NO_XDEV = 0x01  # include/uapi/linux/openat2.h
BELOW = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_path = attrgetter("path")
_OPAQUE = "user.overlay.opaque"
_ORIGIN = "user.overlay.origin"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
CAPABILITY = "security.capability"


class TooMuch(HostError):
    """More was changed than is looked at; nothing was put in place."""


def open_below(root_fd: int, path: str, flags: int) -> int:
    """open(2) of ``path`` below ``root_fd``, through no link and into no other file system.

    Raises:
        OSError: as openat2(2); ELOOP for a link on the way, EXDEV for another file system.
    """
    root_fd, path = below(root_fd, path)
    return syscalls.openat2(root_fd, path or ".", flags | os.O_NOFOLLOW, 0, BELOW)


def open_directory(root_fd: int, path: str) -> int:
    """The directory ``path`` below ``root_fd``, for names in it; as ``open_below``."""
    return open_below(root_fd, path, os.O_RDONLY | os.O_DIRECTORY)


class Parents:
    """The directories of names below ``root_fd``, open one at a time: names in their order are mostly of the same.

    Each is opened as by ``open_directory``; ``close`` lets go of the last one.
    """

    def __init__(self, root_fd: int) -> None:
        self._root_fd, self._path, self._fd = root_fd, "", -1

    def of(self, path: str) -> tuple[int, str]:
        """(the open directory that holds ``path``, its name in there).

        Raises:
            OSError: as ``open_below``.
        """
        if is_graft(self._root_fd, path):
            return below(self._root_fd, path)[0], "."
        parent, _, name = path.rpartition("/")
        if self._fd < 0 or parent != self._path:
            self.close()
            self._fd, self._path = open_directory(self._root_fd, parent), parent
        return self._fd, name

    def is_there(self) -> bool:
        """Does the path of the directory that is open still lead to it?"""
        if self._fd < 0:
            return True
        fd = open_directory(self._root_fd, self._path)
        try:
            return os.path.samestat(os.fstat(fd), os.fstat(self._fd))
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def look(root_fd: int, path: str) -> Side | None:
    """What is at ``path`` below ``root_fd``; None: nothing.

    Raises:
        OSError: it cannot be known, as where a link is on the way.
    """
    root_fd, path = below(root_fd, path)
    parent, _, name = path.rpartition("/")
    try:
        fd = open_below(root_fd, parent, os.O_PATH | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return look_at(fd, name or ".")
    finally:
        os.close(fd)


def look_at(directory: int, name: str) -> Side | None:
    """What is at ``name`` in an open directory; None: nothing."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return side(status, os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else "")
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # the link was replaced between the two calls
        raise


def pieces(fd: int) -> Iterator[bytes]:
    """The content of an open file from its beginning."""
    at = 0
    while piece := os.pread(fd, _PIECE, at):
        at += len(piece)
        yield piece


def digest(fd: int) -> bytes:
    """A hash (32 bytes) of the content of an open file; the work is in proportion to its data, not to its holes.

    It is the BLAKE2b hash of the content; where that has whole pieces of zeros, a hash of all else and of where
    those are: it does not depend on whether they are holes.
    """
    from hashlib import blake2b

    made, zeros = blake2b(digest_size=32), blake2b(digest_size=32)
    sparse = _has_holes(fd)
    at, first, last, some = 0, 0, 0, False
    while True:
        begun = at
        if sparse:
            at += (_next_data(fd, at) - at) // _PIECE * _PIECE
        piece = os.pread(fd, _PIECE, at)
        zero = piece == _ZEROS
        if zero:
            at += len(piece)
        if at > begun:
            if last != begun or not some:
                zeros.update(b"%d %d " % (first, last))
                first, some = begun, True
            last = at
        if zero:
            continue
        if not piece:
            break
        made.update(piece)
        at += len(piece)
    if not some:
        return made.digest()
    zeros.update(b"%d %d " % (first, last))
    return blake2b(made.digest() + zeros.digest(), digest_size=32).digest()


def _has_holes(fd: int) -> bool:
    status = os.fstat(fd)
    return status.st_blocks * 512 < status.st_size


def _next_data(fd: int, at: int) -> int:
    """Where the hole at ``at`` ends; ``at``: there is none, or the file system does not say (lseek(2), SEEK_DATA)."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        return max(at, os.fstat(fd).st_size) if error.errno == errno.ENXIO else at


def attributes(fd: int) -> dict[str, bytes]:
    """The extended attributes of an open file that count: ``user.*``, ACLs and capabilities, not those of overlayfs."""
    out = {}
    try:
        for name in os.listxattr(fd):
            if _counts(name):
                out[name] = os.getxattr(fd, name)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
    return out


def _counts(name: str) -> bool:
    """Is it an extended attribute that counts?"""
    if name.startswith("user."):
        return not name.startswith("user.overlay.")
    return name in _ACLS or name == CAPABILITY


class Copy:
    """A workspace and the frozen layers upon it.

    Args:
        base_fd: the workspace; stays the caller's.
        layers: directories, oldest first; stay the caller's.
        hidden: does a rule hide this path?  Asked with each name on the way as well.
    """

    def __init__(self, base_fd: int, layers: Sequence[int], hidden: Callable[[str], bool] | None = None) -> None:
        self.base_fd = base_fd
        self.layers = tuple(layers)
        self._rule = hidden
        self._uid = os.geteuid()
        self._chains: dict[str, tuple[tuple[int, ...], bool]] = {"": (tuple(reversed(range(len(self.layers)))), True)}
        self._hidden: dict[str, bool] = {"": False}
        self._base = Parents(base_fd)
        self._left = MOST_CHANGES
        self._moved = False  # was a name of the workspace deleted or replaced inside?
        self._closed: dict[tuple[int, int], tuple[int, str, int]] = {}  # (device, inode): layer, path, mode
        self._parents = [Parents(layer) for layer in self.layers]  # for files: nothing in a frozen layer moves
        self._origins: dict[str, bool] = {}  # of new files whose attributes were listed: has it a mark of its origin?

    def close(self) -> None:
        """Put back the modes of what the command had closed for its owner; no descriptor of it is left."""
        for each in self._parents:
            each.close()
        while self._closed:
            _key, (layer, path, mode) = self._closed.popitem()  # what is below first
            handle = open_below(self.layers[layer], path, os.O_PATH)
            try:
                os.chmod(f"/proc/self/fd/{handle}", mode)
            finally:
                os.close(handle)

    # ------------------------------------------------------------ the merged view

    def is_hidden(self, path: str) -> bool:
        """Does a rule hide this name, or one on the way to it?"""
        known = self._hidden.get(path)
        if known is None:
            known = self.is_hidden(path.rpartition("/")[0]) or (self._rule is not None and self._rule(path))
            self._hidden[path] = known
        return known

    def _chain(self, path: str) -> tuple[tuple[int, ...], bool]:
        """(layers that make up the directory ``path``, newest first; do the workspace's names show through?)."""
        known = self._chains.get(path)
        if known is not None:
            return known
        parent = path.rpartition("/")[0]
        above, through = self._chain(parent)
        found: list[int] = []
        for layer in above:
            there = self._layer(layer, path)
            if there is None:
                continue
            if there.what != "directory":
                through = False
                break
            found.append(layer)
            if there.mode & stat.S_IRWXU != stat.S_IRWXU:
                self._open_up(layer, path)
            if self._is_opaque(layer, path):
                self._moved = True
                through = False
                break
        through = through and not self.is_hidden(path)
        self._chains[path] = tuple(found), through
        return self._chains[path]

    def _layer(self, layer: int, path: str) -> Side | None:
        there = look(self.layers[layer], path)
        return None if there is None else self._as_made(layer, path, there)

    def _as_made(self, layer: int, path: str, there: Side) -> Side:
        """With the mode that the command gave it, and "closed" where the caller can neither read nor open it."""
        if there.uid != self._uid != 0 and there.what in ("file", "directory"):
            return there if self._is_readable(layer, path, there) else there.replace(what=CLOSED)
        kept = self._closed.get((there.device, there.inode))
        return there if kept is None else there.replace(mode=kept[2])

    def _is_readable(self, layer: int, path: str, there: Side) -> bool:
        try:
            fd = open_below(self.layers[layer], path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                if there.what == "directory":
                    os.stat(".", dir_fd=fd)  # search permission
            finally:
                os.close(fd)
        except PermissionError:
            return False
        return True

    def _open_up(self, layer: int, path: str) -> None:
        """Let the caller read what the command has closed for its owner, until ``close``; root can as it is, and what
        is another user's is not the caller's to open."""
        if os.geteuid() == 0:
            return
        handle = open_below(self.layers[layer], path, os.O_PATH)
        try:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) in self._closed or status.st_uid != os.geteuid():
                return
            mode = stat.S_IMODE(status.st_mode)
            rights = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR
            os.chmod(f"/proc/self/fd/{handle}", mode | rights)
            self._closed[status.st_dev, status.st_ino] = layer, path, mode
        finally:
            os.close(handle)

    def _is_opaque(self, layer: int, path: str) -> bool:
        fd = open_directory(self.layers[layer], path)
        try:
            value = os.getxattr(fd, _OPAQUE)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return False
            raise
        finally:
            os.close(fd)
        if value != b"y":
            raise HostError(
                "read the changes",
                f"overlayfs marked it {value[:8]!r}, which this version does not know",
                target=ascii(path),
            )
        return True

    def find(self, path: str) -> tuple[int, Side] | None:
        """What the command sees at ``path``: (the layer that holds it or -1 for the workspace, what it is)."""
        parent = path.rpartition("/")[0]
        above, through = self._chain(parent) if path else self._chains[""]
        for layer in above:
            there = self._layer(layer, path)
            if there is not None:
                return None if is_whiteout(there) else (layer, there)
        if not through or self.is_hidden(path):
            return None
        found = look(self.base_fd, path)
        return None if found is None else (-1, found)

    def names(self, path: str) -> dict[str, int]:
        """The names that the command sees in the directory ``path``, with their layers (-1: the workspace)."""
        above, through = self._chain(path)
        out: dict[str, int] = {}
        gone: set[str] = set()
        for layer in above:
            for name, is_gone in self._named(layer, path):
                if name not in out and name not in gone:
                    if is_gone:
                        gone.add(name)
                    else:
                        out[name] = layer
        if through:
            for name in self._base_names(path):
                if name not in out and name not in gone and not self.is_hidden(f"{path}/{name}".lstrip("/")):
                    out[name] = -1
        return out

    def open(self, layer: int, path: str, flags: int = os.O_RDONLY) -> int:
        """A file or directory of a layer, or of the workspace (-1), for reading.

        Raises:
            OSError: as ``open_below``.
        """
        flags |= os.O_NONBLOCK | os.O_NOCTTY
        if layer < 0 or not path:
            return open_below(self.base_fd if layer < 0 else self.layers[layer], path, flags)
        try:
            directory, name = self._parents[layer].of(path)
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except PermissionError:
            self._open_up(layer, path)
            return open_below(self.layers[layer], path, flags)
        except OSError as error:
            error.filename = path
            raise

    def lost_its_origin(self, layer: int, path: str, there: Side) -> bool:
        """Was ``there``, a file of a layer, made from one of the workspace that has gone, so far as can be known?

        overlayfs marks a file that came from below (fs/overlayfs/copy_up.c, ``ovl_set_origin``), and it keeps the mark
        when it is renamed or linked.  So it is known only of the oldest layer, and when ``changes`` has met no name
        that was deleted or replaced inside: from there the file may have come.
        """
        if layer != 0 or self._moved or there.links != 1:
            return False
        return self._has_origin(layer, path)

    def _has_origin(self, layer: int, path: str) -> bool:
        known = self._origins.get(path)
        return _ORIGIN in self._marks(layer, path) if known is None else known

    def _marks(self, layer: int, path: str) -> list[str]:
        """The names of all extended attributes of a file of a layer; [] where it can have none."""
        directory, name = self._parents[layer].of(path)
        try:
            # By its name, which is that of no other file as long as the layer is frozen: opening it costs more.
            return os.listxattr(f"/proc/self/fd/{directory}/{name}", follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return []
            raise

    # ------------------------------------------------------------ the changes

    def changes(self) -> list[Change]:
        """All differences, sorted by path; renames are not paired yet.

        Raises:
            TooMuch: more than ``MOST_CHANGES``, or a path longer or deeper than the bounds.
            OSError: a layer cannot be read.
        """
        self._left = MOST_CHANGES
        self._base = Parents(self.base_fd)
        self._origins.clear()
        try:
            return self._changes()
        finally:
            self._base.close()

    def _changes(self) -> list[Change]:
        out: list[Change] = []
        todo = [("", True)]
        while todo:
            path, compared = todo.pop()
            above, through = self._chain(path)
            seen: dict[str, tuple[int, Side]] = {}
            for layer in above:
                for name, there in self._listed(layer, path):
                    if name not in seen:
                        seen[name] = layer, there
            prefix = f"{path}/" if path else ""
            for name, (layer, there) in seen.items():
                todo += self._differs(out, prefix + name, layer, there, compared)
            if compared and not through and not self.is_hidden(path):
                for name in self._base_names(path):
                    if name not in seen:
                        self._gone(out, prefix + name)
        return in_order(out)

    def _count(self, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuch("list the changes", f"more than {MOST_CHANGES} names differ")
        if len(path) > DEEPEST and (path.count("/") >= DEEPEST or len(os.fsencode(path)) > LONGEST):
            raise TooMuch("list the changes", "a path is longer or deeper than is looked at", target=ascii(path[:200]))

    def _listed(self, layer: int, path: str) -> list[tuple[str, Side]]:
        fd = open_directory(self.layers[layer], path)
        out = []
        prefix = f"{path}/" if path else ""
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    name = entry.name
                    if is_graft(self.layers[layer], prefix + name):
                        continue
                    there = look_at(fd, name)
                    if there is not None:
                        out.append((name, self._as_made(layer, prefix + name, there)))
                    if len(out) > MOST_CHANGES:
                        raise TooMuch("list the changes", f"more than {MOST_CHANGES} names differ")
        finally:
            os.close(fd)
        if not path and isinstance(self.layers[layer], Grafted) and (graft := self._layer(layer, GIT)) is not None:
            out.append((GIT, graft))
        return out

    def _named(self, layer: int, path: str) -> list[tuple[str, bool]]:
        """The names in a directory of a layer, each with whether it is a whiteout."""
        fd = open_directory(self.layers[layer], path)
        out = []
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    # By the kind that the listing gives, without a look at each: a whiteout is a device.
                    gone = False
                    if not path and is_graft(self.layers[layer], entry.name):
                        continue
                    if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                        there = look_at(fd, entry.name)
                        gone = there is not None and is_whiteout(there)
                    out.append((entry.name, gone))
                    if len(out) > MOST_CHANGES:
                        raise TooMuch("list the changes", f"more than {MOST_CHANGES} names differ")
        finally:
            os.close(fd)
        return [*out, (GIT, False)] if not path and isinstance(self.layers[layer], Grafted) else out

    def _base_names(self, path: str) -> list[str]:
        try:
            fd = open_directory(self.base_fd, path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
        if len(names) > MOST_CHANGES:
            raise TooMuch("list the changes", f"a directory holds more than {MOST_CHANGES} names", target=ascii(path))
        return names

    def _differs(self, out: list[Change], path: str, layer: int, there: Side, compared: bool) -> list[tuple[str, bool]]:
        """Add what differs at ``path``; what is to be looked at below it."""
        self._count(path)
        hidden = self.is_hidden(path)
        never: tuple[str, ...] = ("a rule hides this name, and the host's file stays",) if hidden else ()
        before: Side | None = None
        kind: Kind
        if compared and not hidden:
            try:
                before = look_at(*self._base.of(path))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                never = (f"the workspace cannot be looked at there ({os.strerror(error.errno or 0)})",)
        if is_whiteout(there):
            self._moved = True
            if before is not None:
                self._gone(out, path)
            return []
        if there.what == CLOSED:
            self._moved = True
            kind = "added" if before is None else "changed"
            out.append(Change(path, kind, before, there, layer, content=True, never=never))
            return []
        if there.what == "directory":
            both = before is not None and before.what == "directory"
            if before is None:
                out.append(Change(path, "added", None, there, layer, never=never))
            elif not both:
                out.append(Change(path, "type", before, there, layer, content=True, never=never))
            else:
                assert before is not None
                try:
                    names = self._attributes(layer, path)
                except PermissionError:
                    names = ()  # the workspace's is closed to the caller; they are never put in place
                if before.mode != there.mode or names:
                    kind = "mode" if before.mode != there.mode else "attributes"
                    if kind == "attributes":
                        never = (*never, "attributes and access lists of directories are not put in place")
                    out.append(Change(path, kind, before, there, layer, attributes=names, never=never))
            return [(path, both and not hidden)]
        if before is None:
            names = self._attributes(layer, path, new=True) if there.what == "file" else ()
            out.append(Change(path, "added", None, there, layer, content=True, attributes=names, never=never))
        elif before.what != there.what:
            self._moved = True
            if before.what == "directory" and not self._gone(out, path, itself=False):
                never = (*never, "below it are names that a rule hides, and they stay")
            out.append(Change(path, "type", before, there, layer, content=True, never=never))
        elif there.what == "link":
            if before.target != there.target:
                out.append(Change(path, "changed", before, there, layer, content=True, never=never))
        elif there.what == "file":
            self._file(out, path, layer, before, there, never)
        else:
            out.append(Change(path, "changed", before, there, layer, content=True, never=never))
        return []

    def _file(
        self, out: list[Change], path: str, layer: int, before: Side, there: Side, never: tuple[str, ...]
    ) -> None:
        names: tuple[str, ...] = ()
        try:
            self._moved = self._moved or not self._has_origin(layer, path)
            content = before.size != there.size or not self._same(layer, path)
            names = self._attributes(layer, path)
        except OSError as error:
            content = True
            never = (*never, f"it cannot be compared ({os.strerror(error.errno or 0)})")
        if content:
            out.append(Change(path, "changed", before, there, layer, "", True, names, never=never))
        elif before.mode != there.mode:
            out.append(Change(path, "mode", before, there, layer, attributes=names, never=never))
        elif names:
            out.append(Change(path, "attributes", before, there, layer, attributes=names, never=never))

    def _same(self, layer: int, path: str) -> bool:
        mine = self.open(layer, path)
        try:
            other = self.open(-1, path)
            try:
                at, sparse = 0, _has_holes(mine) and _has_holes(other)
                while True:
                    if sparse:
                        at += (min(_next_data(mine, at), _next_data(other, at)) - at) // _PIECE * _PIECE
                    piece = os.pread(mine, _PIECE, at)
                    if piece != os.pread(other, _PIECE, at):
                        return False
                    if not piece:
                        return True
                    at += len(piece)
            finally:
                os.close(other)
        finally:
            os.close(mine)

    def _attributes(self, layer: int, path: str, *, new: bool = False) -> tuple[str, ...]:
        if new:
            marks = self._marks(layer, path)
            self._origins[path] = _ORIGIN in marks
            if not any(_counts(name) for name in marks):
                return ()
        fd = self.open(layer, path)
        try:
            mine = attributes(fd)
        finally:
            os.close(fd)
        other: dict[str, bytes] = {}
        if not new:
            fd = self.open(-1, path)
            try:
                other = attributes(fd)
            finally:
                os.close(fd)
        return tuple(sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name)))

    def _gone(self, out: list[Change], path: str, *, itself: bool = True) -> bool:
        """Add the deletion of a name of the workspace and of all below it; false: hidden names keep it there."""
        self._count(path)
        if self.is_hidden(path):
            return False
        whole, names = True, []
        try:
            before = look(self.base_fd, path)
            if before is None:
                return True
            names = self._base_names(path) if before.what == "directory" else []
        except OSError as error:
            why = f"the workspace cannot be looked at there ({os.strerror(error.errno or 0)})"
            out.append(Change(path, "deleted", None, None, content=True, never=(why,)))
            return False
        for name in names:
            whole = self._gone(out, f"{path}/{name}") and whole
        if whole and itself:
            out.append(Change(path, "deleted", before, None, content=True))
        return whole


def in_order(changes: list[Change]) -> list[Change]:
    """Sorted by the bytes of their paths."""
    if all(change.path.isascii() for change in changes):
        return sorted(changes, key=_path)  # the same order
    return sorted(changes, key=lambda change: os.fsencode(change.path))


def is_whiteout(there: Side) -> bool:
    """Is it the mark of a deleted name?  overlayfs lets no one make such a device through it (``ovl_mknod``)."""
    return there.what == "device" and there.number == 0


def masked(masks_fd: int) -> Callable[[str], bool]:
    """A rule for ``Copy``: the names that a layer of masks hides (``cell.Masks``).

    A whiteout, a file, or an opaque directory; any other directory is on the way to one.
    """

    empty: set[str] = set()  # names that it does not have: nothing is below them

    def hidden(path: str) -> bool:
        if path.rpartition("/")[0] in empty:
            empty.add(path)
            return False
        there = look(masks_fd, path)
        if there is None:
            empty.add(path)
            return False
        if there.what != "directory":
            return True
        fd = open_directory(masks_fd, path)
        try:
            return os.getxattr(fd, _OPAQUE) == b"y"
        except OSError:
            return False
        finally:
            os.close(fd)

    return hidden


def paired(copy: Copy, changes: list[Change]) -> list[Change]:
    """``changes`` with each deleted file and an added one of the same content as one renamed file.

    A name at which something is now, or that is below such a one, is no source.  What cannot be read is not paired.
    """
    gone: dict[int, list[Change]] = {}
    for change in changes:
        if change.kind == "deleted" and change.before is not None and change.what == "file" and change.before.size:
            gone.setdefault(change.before.size, []).append(change)
    if not gone:
        return changes
    known: dict[str, bytes] = {}

    def hashed(layer: int, path: str) -> bytes:
        if path not in known:
            try:
                fd = copy.open(layer, path)
                try:
                    known[path] = digest(fd)
                finally:
                    os.close(fd)
            except OSError:
                known[path] = os.urandom(32)
        return known[path]

    hashes: dict[int, dict[bytes, list[Change]]] = {}
    taken: set[str] = set()
    out: list[Change] = []
    for change in changes:
        rows = gone.get(change.after.size) if change.kind == "added" and change.after is not None else None
        if not rows or change.what != "file":
            out.append(change)
            continue
        assert change.after is not None
        by_hash = hashes.get(change.after.size)
        if by_hash is None:
            by_hash = hashes[change.after.size] = {}
            for row in rows:
                by_hash.setdefault(hashed(-1, row.path), []).append(row)
        same = by_hash.get(hashed(change.layer, change.path))
        if not same:
            out.append(change)
            continue
        name = change.path.rpartition("/")[2]
        few = range(min(len(same), MOST_COMPARED))
        source = same.pop(next((at for at in few if same[at].path.rpartition("/")[2] == name), 0))
        taken.add(source.path)
        out.append(change.replace(kind="renamed", source=source.path, before=source.before, content=False))
    return [change for change in out if change.kind != "deleted" or change.path not in taken]


_FICLONE = 0x40049409  # include/uapi/linux/fs.h


LARGEST_READ = 1 << 16  # bytes of a file that is read at once: it has to be read for its hash in any case


def copy_file(source: int, target: int) -> bytes:
    """All bytes of an open file, a large one by reference where the file system has that; holes stay (SEEK_DATA).

    Returns: the hash of what was written, where it has passed through here without a hole; else nothing.
    """
    import fcntl
    from hashlib import blake2b

    made, at, whole = blake2b(digest_size=32), 0, True
    status = os.fstat(source)
    size = status.st_size
    if size > LARGEST_READ:
        try:
            fcntl.ioctl(target, _FICLONE, source)
            return b""
        except OSError:
            pass
    if status.st_blocks * 512 >= size:
        extents: Iterable[tuple[int, int]] = ((0, size),)  # no hole that would be worth the asking
    else:
        extents = _extents(source, size)
        os.ftruncate(target, size)
    for start, end in extents:
        whole = whole and start == at
        at = start
        while at < end:
            piece = os.pread(source, min(end - at, _PIECE), at)
            if not piece:
                break
            whole = whole and piece != _ZEROS  # which counts otherwise
            made.update(piece)
            view = memoryview(piece)
            while view:
                written = os.pwrite(target, view, at)
                view, at = view[written:], at + written
    return made.digest() if whole and at == size else b""


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            yield at, size
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at
