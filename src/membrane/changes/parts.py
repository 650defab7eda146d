"""A file of which only some hunks are put in place.

Theory of operation
-------------------
What is put in place is the workspace's own text with the chosen hunks (``hunks.chosen``): made from the frozen copy and
from one reading of the workspace's file, which must be the file that was listed, before and after the reading.  It is
judged like any other, by exactly these bytes, and copied into the stage from them.  Mode, owner and attributes are
those of the workspace's file: what the command did to them comes with the whole file only.

The rest needs no book-keeping: the copy still holds all of it, and differs from the workspace by what was not chosen.
"""

from __future__ import annotations

import os

from ..errors import Conflict, PolicyError
from ..value import Value
from .diff import is_binary, is_gits
from .hunks import LARGEST, Foreign, Hunk, chosen, is_small
from .model import Change, side
from .red import Judge
from .tree import CAPABILITY, Copy, attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MEANWHILE = "it was changed in the workspace meanwhile"


class Whole(PolicyError):
    """This change is put in place only as a whole."""


class Part(Value):
    """``change`` as it is put in place, judged; ``data``: the bytes; ``attributes``: of the workspace's file."""

    change: Change
    data: bytes
    attributes: Mapping[str, bytes]


def texts(copy: Copy, change: Change) -> tuple[bytes, bytes, dict[str, bytes]]:
    """(the workspace's text, the command's, the attributes of the workspace's file).

    Raises:
        Whole: it has no hunks.
        Conflict: the workspace's file is not the one that was listed.
        OSError: one of them cannot be read.
    """
    before, after = change.before, change.after
    name = ascii(change.path)[1:-1]
    if (
        before is None
        or after is None
        or (before.what, after.what) != ("file", "file")
        or change.source
        or not change.content
    ):
        raise Whole("cut the change into hunks", f"{name} comes only as a whole: it is {change.kind}")
    if is_gits(change.path):
        raise Whole("cut the change into hunks", f"{name} comes only as a whole: it is git's")
    if max(before.size, after.size) > LARGEST:
        raise Whole("cut the change into hunks", f"{name} comes only as a whole: it is too large to be compared")
    fd = copy.open(-1, change.path)
    try:
        if side(os.fstat(fd)).identity != before.identity:
            raise _conflict(change.path, _MEANWHILE)
        base = _all(fd)
        kept = {key: value for key, value in attributes(fd).items() if key != CAPABILITY}
        if side(os.fstat(fd)).identity != before.identity:
            raise _conflict(change.path, _MEANWHILE)
    finally:
        os.close(fd)
    fd = copy.open(change.layer, change.path)
    try:
        changed = _all(fd)
    finally:
        os.close(fd)
    if is_binary(base) or is_binary(changed):
        raise Whole("cut the change into hunks", f"{name} comes only as a whole: it is no text")
    if not is_small(base, changed):
        raise Whole("cut the change into hunks", f"{name} comes only as a whole: it has too many lines")
    return base, changed, kept


def made(copy: Copy, root: str, wanted: Iterable[tuple[Change, Iterable[Hunk]]]) -> dict[str, Part]:
    """The parts of these changes by their path; a change of which no hunk is wanted has none.

    Args:
        root: the workspace, resolved.

    Raises:
        Whole, Conflict, OSError: as ``texts``; Conflict also where a hunk is none of this change.
    """
    out: dict[str, Part] = {}
    judge = Judge(copy, root, lambda change: _file(out[change.path].data))
    for change, hunks in wanted:
        hunks = tuple(hunks)
        if not hunks:
            continue
        base, changed, kept = texts(copy, change)
        try:
            data = chosen(base, changed, hunks)
        except Foreign as error:
            raise _conflict(change.path, f"it is not what you have seen: {error}") from None
        before, after = change.before, change.after
        assert before is not None and after is not None
        # Newer than what it replaces, as ``make`` compares; not the mode, which is not a hunk.
        now = before.replace(size=len(data), mtime=max(before.mtime, after.mtime))
        part = change.replace(kind="changed", after=now, attributes=(), red=())
        out[change.path] = Part(part, data, kept)
        out[change.path] = Part(judge.one(part), data, kept)
    return out


def _all(fd: int) -> bytes:
    out = b""
    while len(out) <= LARGEST and (piece := os.pread(fd, LARGEST + 1 - len(out), len(out))):
        out += piece
    return out


def _file(data: bytes) -> int:
    """``data`` as an open file of its own."""
    fd = os.memfd_create("part")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _conflict(path: str, why: str) -> Conflict:
    error = Conflict("apply the hunks", why, target=ascii(path)[1:-1], fix=("look at the changes again",))
    error.paths = ((path, why),)
    return error
