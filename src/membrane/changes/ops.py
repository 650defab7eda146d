"""The operations of a journal, and by what is seen whether one was done, and whether somebody was there since.

Theory of operation
-------------------
A *mark* tells a file from all others, and from itself when it was written: device, inode, and of a file or a link its
size and modification time, as another one may have its inode by now.  The change time is not in it: a rename sets that.
An operation has the marks of what is there before and after, so what was put in place is compared with what is there
now, one name at a time.

A directory that is wholly new is staged with all that is in it, and comes and goes by one rename(2): a *tree*.  Its
operation is followed by one for each name in it, with the slot of the tree.  Nothing has to be done for these; they
are what an undo compares, and what it does one by one where the host changed some of the tree since.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import Conflict
from ..value import Value
from .gitentries import entries
from .gitrefs import LARGEST_INDEX
from .tree import open_below, open_directory, pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .model import Side

    Mark = tuple[int, int, int, int]

_LOCK = ".lock"  # in a stage, whose slots are numbers
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Op(Value):
    """One operation of a journal.

    ``do``: "new", "put", "remove" or "mode"; ``slot``: the name in the stage; ``old`` and ``new``: marks of what is
    there before and after, empty for nothing; ``was`` and ``mode``: permission bits before and after; ``lock``: a file
    beside it that git takes as a lock; ``listed``: of an index, the hash of its entries (``gitdata.entries``);
    ``tree``: the slot of the new directory with which it comes, whose own operation is before it; ``slot`` is then
    the name that it gets in the stage when it is undone by itself.
    """

    do: str
    path: str
    slot: str
    old: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    was: int = 0
    mode: int = 0
    lock: str = ""
    listed: str = ""
    tree: str = ""


def mark(side: Side) -> Mark:
    """What sets a file apart from others and from itself when it was written: its change time changes with a rename."""
    return (
        side.device,
        side.inode,
        side.size if side.what != "directory" else 0,
        side.mtime if side.what in ("file", "link") else 0,
    )


def mark_of(status: os.stat_result) -> Mark:
    """``mark`` of what stat(2) has said."""
    kind = stat.S_IFMT(status.st_mode)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size if kind != stat.S_IFDIR else 0,
        status.st_mtime_ns if kind in (stat.S_IFREG, stat.S_IFLNK) else 0,
    )


def may_be_directory(op: Op) -> bool:
    """Could it be a directory that was put in place?  Of one the mark has neither size nor time."""
    return not any(op.new[2:])


def status_at(directory: int, name: str) -> os.stat_result | None:
    """What is at a name in an open directory; None: nothing is."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_ours(op: Op, parent: int, name: str, there: os.stat_result | None) -> bool:
    """Is there still what was put in place?  An index may have been written anew with the same entries."""
    if there is None:
        return False
    is_index = op.listed and stat.S_ISREG(there.st_mode) and there.st_size <= LARGEST_INDEX
    if mark_of(there) == op.new or not is_index:
        return mark_of(there) == op.new
    fd = open_below(parent, name, os.O_RDONLY)
    try:
        data = b"".join(pieces(fd))
    finally:
        os.close(fd)
    return op.listed in (entries(data, 20), entries(data, 32))


def is_as_made(root: Op, members: Iterable[Op], parent: int, name: str) -> bool:
    """Is a tree at ``name`` in an open directory as it was put in place: with these names, all of them ours, and no
    other?

    Raises:
        OSError: it cannot be looked at.
    """
    wanted: dict[str, dict[str, Op]] = {}
    for op in members:
        place, _, last = op.path.rpartition("/")
        wanted.setdefault(place, {})[last] = op
    todo, at = [root.path], len(root.path)
    while todo:
        place = todo.pop()
        inside = wanted.pop(place, {})
        fd = open_directory(parent, name + place[at:])
        try:
            if place == root.path and mark_of(os.fstat(fd)) != root.new:
                return False
            if set(os.listdir(fd)) != inside.keys():
                return False
            for last, op in inside.items():
                there = status_at(fd, last)
                if there is None or not is_ours(op, fd, last, there):
                    return False
                if stat.S_ISDIR(there.st_mode):
                    todo.append(op.path)
        finally:
            os.close(fd)
    return not wanted


class GitLock:
    """A lock file as git makes them (lockfile.c): exclusive creation, removed at the end; "" is none.

    It is a link of one file in the stage, so what a kill has left of it is known by its inode (``left``, ``remove``).
    Where the file system has no links it cannot be known.
    """

    def __init__(self, directory: int, name: str, stage: int) -> None:
        self._directory, self._name, self._stage = directory, name, stage

    def __enter__(self) -> None:
        if not self._name:
            return
        try:
            try:
                self._link()
            except FileNotFoundError:  # the first lock of this stage
                os.close(os.open(_LOCK, _NEW & ~os.O_EXCL, 0o600, dir_fd=self._stage))
                self._link()
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    raise
                os.close(os.open(self._name, _NEW, 0o600, dir_fd=self._directory))
        except FileExistsError:
            cause = f"git holds it: {self._name} is there"
            raise Conflict("apply the changes", cause, fix=("wait until git has ended",)) from None

    def __exit__(self, *_: object) -> None:
        if self._name:
            os.unlink(self._name, dir_fd=self._directory)

    def _link(self) -> None:
        os.link(_LOCK, self._name, src_dir_fd=self._stage, dst_dir_fd=self._directory, follow_symlinks=False)

    @staticmethod
    def left(stage: int) -> os.stat_result | None:
        """The file of which locks were made, where one was left; None: there is none."""
        ours = status_at(stage, _LOCK)
        return ours if ours is not None and ours.st_nlink > 1 else None

    @staticmethod
    def remove(ours: os.stat_result, directory: int, name: str) -> None:
        """Remove a lock that was left: no other one, of git, nor one of another stage."""
        there = status_at(directory, name)
        if there is not None and os.path.samestat(there, ours):
            os.unlink(name, dir_fd=directory)


def conflict(path: str, why: str) -> Conflict:
    """The workspace was changed at ``path``, where something was to be done."""
    error = Conflict("apply the changes", why, target=ascii(path)[1:-1])
    error.paths = ((path, why),)
    return error


def is_empty(parent: int, name: str) -> bool:
    """Is the directory ``name`` in an open one empty?

    Raises:
        OSError: it cannot be looked at.
    """
    fd = open_directory(parent, name)
    try:
        with os.scandir(fd) as listing:
            return next(listing, None) is None
    finally:
        os.close(fd)
