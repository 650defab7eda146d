"""What the workspace held when a command changed its copy: by it a change of the host meanwhile is found.

Theory of operation
-------------------
A walk of the whole workspace at every start would cost more than the start itself, so nothing is recorded then but the
time.  What the kernel keeps says the rest: a file whose change time (stat(2), ``st_ctime``; no program can set it) is
older than the change set has not been written, replaced, renamed or deleted since.  When a command has ended, and
whenever the changes are looked at, ``keep`` writes down for each changed name what is there in the workspace, with
a hash of its content, if it still is what it was at the start.  From then on the content decides and not the time: what
was only touched is no conflict, and what was changed and changed back is none either.

What cannot be known is a conflict: a file that was changed or touched after the set was made and before the first look.
The time is compared with a margin, since files get the time of the last tick of the kernel's clock.

Of files of up to ``LARGEST_COPY`` bytes a copy is kept beside, so that a conflict can be merged in three ways.

What this does not find: a directory of older files that the host moved to a name where a command made a directory as
well (the files in it are then taken for those of the start); and a file that a command changed and the host deleted
before anybody looked, where the command also deleted or renamed others (it is then taken for a new one).  An apply
keeps what it replaces (``membrane undo``).
"""

from __future__ import annotations

import os

from ..errors import HostError
from ..value import Value
from .model import Change, Side
from .tree import Copy, digest, pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MARGIN = 10_000_000  # ns: a tick of the slowest kernel (CONFIG_HZ=100)
LARGEST_COPY = 1 << 20  # bytes of a file of which a copy is kept
MOST_COPIED = 64 << 20  # bytes of all of them
_FORMAT = 1


class Row(Value):
    """What was at a name: ``what`` is empty for nothing; ``content``: the hash of a file, or the target of a link."""

    what: str
    mode: int
    content: str
    identity: tuple[int, ...] = ()


ABSENT = Row("", 0, "")


def _plain(row: Row) -> list[Any]:
    return [row.what, row.mode, row.content, list(row.identity)]


class Base:
    """The rows of one change set.

    Args:
        place: the directory of the change set.
        begun: when it was made, ns since the epoch.
    """

    def __init__(self, place: str, begun: int) -> None:
        self._place = f"{place}/base"
        self._before = begun - MARGIN
        self.rows = self._load()

    def _load(self) -> dict[str, Row]:
        import json

        try:
            with open(f"{self._place}/rows.json", "rb") as file:
                stored = json.load(file)
            if stored["format"] != _FORMAT:
                raise ValueError("another format")
            return {path: Row(what, mode, content, tuple(ids)) for path, what, mode, content, ids in stored["rows"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HostError(
                "read what the workspace held", str(error), target=f"{self._place}/rows.json", fix=("discard the set",)
            ) from None

    def save(self) -> None:
        """Write the rows down, in one step."""
        import json

        os.makedirs(f"{self._place}/copies", 0o700, exist_ok=True)
        rows = self.stored(self.rows)
        temporary = f"{self._place}/rows.json.new"
        with open(temporary, "wb") as file:
            file.write(json.dumps({"format": _FORMAT, "rows": rows}, ensure_ascii=True).encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, f"{self._place}/rows.json")

    # ------------------------------------------------------------ writing down

    def keep(self, copy: Copy, changes: Iterable[Change]) -> None:
        """Write down what is in the workspace at each changed name, where it is what it was at the start."""
        os.makedirs(f"{self._place}/copies", 0o700, exist_ok=True)
        left = MOST_COPIED - sum(entry.stat().st_size for entry in os.scandir(f"{self._place}/copies"))
        new = False
        for change in changes:
            for path in change.paths:
                before = change.before if path == (change.source or change.path) else None
                if path in self.rows or (before is not None and before.what == "directory"):
                    continue
                row = self._row(copy, change, path, before)
                if row is None:
                    continue
                self.rows[path], new = row, True
                if row.what == "file" and before is not None and before.size <= min(LARGEST_COPY, left):
                    left -= self._copied(copy, path, row)
        if new:
            self.save()

    def _row(self, copy: Copy, change: Change, path: str, before: Side | None) -> Row | None:
        if before is None:
            return None if self._was_deleted(copy, change, path) else ABSENT
        if before.ctime >= self._before:
            return None
        try:
            return now(copy, path, before)
        except OSError:
            return None

    def _was_deleted(self, copy: Copy, change: Change, path: str) -> bool:
        if path != change.path or change.after is None or change.after.what != "file":
            return False
        try:
            return copy.lost_its_origin(change.layer, path, change.after)
        except OSError:
            return True

    def _copied(self, copy: Copy, path: str, row: Row) -> int:
        try:
            fd = copy.open(-1, path)
        except OSError:
            return 0
        try:
            if digest(fd).hex() != row.content:
                return 0
            data = b"".join(pieces(fd))
        finally:
            os.close(fd)
        self.copied(data)
        return len(data)

    def copied(self, data: bytes) -> str:
        """Keep a content as a base of later merges; its hash, as a row has it."""
        from hashlib import blake2b

        content = blake2b(data, digest_size=32).hexdigest()
        place = f"{self._place}/copies/{content}"
        with open(f"{place}.new", "wb") as file:
            file.write(data)
        os.rename(f"{place}.new", place)
        return content

    def copy_of(self, path: str) -> str:
        """The path of the copy of what was at a name at the start; empty: none is kept."""
        row = self.rows.get(path)
        place = f"{self._place}/copies/{row.content}" if row is not None and row.what == "file" else ""
        return place if place and os.path.exists(place) else ""

    def put(self, rows: dict[str, Row]) -> None:
        """These were put in place: from now on they are what the workspace held, and what comes later is the host's."""
        if rows:
            self.rows.update(rows)
            self.save()

    def stored(self, paths: Iterable[str]) -> list[list[Any]]:
        """The rows of these names, as plain lists; of a name without a row only the name."""
        return [[path, *_plain(self.rows[path])] if path in self.rows else [path] for path in paths]

    @staticmethod
    def to_store(rows: dict[str, Row]) -> list[list[Any]]:
        """These rows, as plain lists, for ``restore``."""
        return [[path, *_plain(row)] for path, row in rows.items()]

    def restore(self, stored: list[list[Any]], without: set[str]) -> None:
        """Rows as ``stored`` gave them are those that hold again, but for some names."""
        for path, *row in stored:
            if path.replace("//", "/") in without:  # a ref's has the repository before "//"
                continue
            if row:
                what, mode, content, ids = row
                self.rows[path] = Row(what, mode, content, tuple(ids))
            else:
                self.rows.pop(path, None)
        self.save()

    # ------------------------------------------------------------ asking

    def is_new(self, there: Side) -> bool:
        """May what is there have been changed, or made, since the change set was made?"""
        return there.ctime >= self._before

    def is_same(self, copy: Copy, change: Change) -> bool:
        """Does the copy hold what was there at the start, so that the difference is the host's doing?"""
        row = self.rows.get(change.path)
        if row is None:
            return False
        after = change.after
        if after is None:
            return not row.what
        if after.what == "link":
            return (row.what, row.content) == ("link", after.target)
        if after.what != "file" or (row.what, row.mode) != ("file", after.mode) or change.attributes:
            return False
        try:
            fd = copy.open(change.layer, change.path)
            try:
                return digest(fd).hex() == row.content
            finally:
                os.close(fd)
        except OSError:
            return False

    def conflict(self, copy: Copy, change: Change) -> str:
        """What the host did meanwhile at the names of ``change``; empty: nothing."""
        for path in change.paths:
            before = change.before if path == (change.source or change.path) else None
            why = self._conflict(copy, change, path, before)
            if why:
                return why
        return ""

    def _conflict(self, copy: Copy, change: Change, path: str, before: Side | None) -> str:
        row = self.rows.get(path)
        if before is None:
            if (row is not None and row.what) or (row is None and self._was_deleted(copy, change, path)):
                return "it was deleted in the workspace meanwhile"
            return ""
        if before.what == "directory":
            return "" if row is None or row.what == "directory" else "a directory was made there meanwhile"
        if row is None:
            changed = before.ctime >= self._before
            return "it was changed or touched in the workspace since the change set was made" if changed else ""
        if row.what == "":
            return "it was made in the workspace meanwhile"
        if row.identity == before.identity:
            return ""
        try:
            same = now(copy, path, before)
        except OSError as error:
            return f"it cannot be compared with what it was ({os.strerror(error.errno or 0)})"
        if (same.what, same.content) != (row.what, row.content):
            return "it was changed in the workspace meanwhile"
        return "" if same.mode == row.mode else "its mode was changed in the workspace meanwhile"


def now(copy: Copy, path: str, before: Side) -> Row:
    """The row of what is in the workspace at ``path``.

    Raises:
        OSError: it cannot be read, or it is something else by now.
    """
    if before.what == "link":
        return Row("link", 0, before.target, before.identity)
    if before.what != "file":
        return Row(before.what, before.mode, "", before.identity)
    fd = copy.open(-1, path)
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (before.device, before.inode):
            raise OSError(11, os.strerror(11), path)
        return Row("file", before.mode, digest(fd).hex(), before.identity)
    finally:
        os.close(fd)
