"""What a command changed in its copy of the workspace, as data.

Theory of operation
-------------------
A ``Change`` is one name at which the copy differs from the workspace: what was there, what is there now, and why a
person should look at it.  Paths are relative to the workspace, with undecodable bytes as surrogate escapes
(``os.fsdecode``); they are hostile and go through ``escaping`` before a person reads them.

Three answers are kept apart.  ``red``: something outside of the sandbox would execute or obey it; it is put in place
only by those who asked for that.  ``never``: it is not put in place at all.  ``conflict``: the workspace itself was
changed there meanwhile.
"""

from __future__ import annotations

import stat

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from typing import Literal, TypeAlias

    Kind: TypeAlias = Literal["added", "changed", "deleted", "renamed", "mode", "type", "attributes"]

KINDS = ("added", "changed", "deleted", "renamed", "mode", "type", "attributes")
SET_ID = stat.S_ISUID | stat.S_ISGID
EXECUTE = 0o111

_WHAT = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}

CLOSED = "closed"  # a file or directory of another user of the sandbox, who lets the caller not read it


class Side(Value):
    """What is at a name.

    ``what``: "file", "directory", "link", "fifo", "socket", "device" or "closed"; ``mode``: permission bits (12);
    ``size``: bytes; ``target``: of a link; the rest as stat(2) gives it, times in nanoseconds; ``number`` is that of a
    device.
    """

    what: str
    mode: int
    size: int
    target: str
    device: int
    inode: int
    mtime: int
    ctime: int
    uid: int
    gid: int
    links: int
    number: int

    @property
    def identity(self) -> tuple[int, int, int, int, int]:
        """Device, inode, size and both times: while it is the same, so is the content (but for a set clock)."""
        return self.device, self.inode, self.size, self.mtime, self.ctime


def side(status: os.stat_result, target: str = "") -> Side:
    """``status`` as a ``Side``."""
    return Side(
        _WHAT.get(stat.S_IFMT(status.st_mode), "device"),
        stat.S_IMODE(status.st_mode),
        status.st_size,
        target,
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_rdev,
    )


class Change(Value):
    """One name at which the copy differs from the workspace.

    ``before`` and ``after`` are None where nothing is; of a renamed file ``before`` is what is at ``source``.
    ``layer`` is the number of the layer that holds ``after``, -1 for a deleted name.  ``content``: bytes or target
    differ.  ``attributes``: names of extended attributes that differ.
    """

    path: str
    kind: Kind
    before: Side | None
    after: Side | None
    layer: int = -1
    source: str = ""
    content: bool = False
    attributes: tuple[str, ...] = ()
    red: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    conflict: str = ""

    @property
    def what(self) -> str:
        """What is there now; of a deleted name what was there."""
        found = self.after or self.before
        return found.what if found is not None else ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The names that it touches."""
        return (self.source, self.path) if self.source else (self.path,)


def covers(asked: str, path: str) -> bool:
    """Is ``path`` the name ``asked``, or below it?  The empty name is the whole workspace."""
    return not asked or path == asked or path.startswith(asked.rstrip("/") + "/")


def is_asked(change: Change, only: Collection[str]) -> bool:
    """Is one of its names at or below one of ``only``?  Without any, all are."""
    return not only or any(covers(asked, path) for asked in only for path in change.paths)
