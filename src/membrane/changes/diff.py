"""Changes as text: a patch that git applies, counts, names, JSON.

Theory of operation
-------------------
A patch has git's own form (git-diff(1), "GENERATING PATCH TEXT WITH -P"; apply.c reads it): modes, new and deleted
files, renames, and contents that are no text as ``GIT binary patch``.  It is made of bytes, exactly as the files have
them; names outside of printable ASCII are quoted as git quotes them.  What git has no words for (directories, other
permission bits, attributes, special files), what it refuses (its own directory) and what was made under a hidden name
is said at the top, in lines that begin with "# ", which ``git apply`` passes over.

For a terminal each line is escaped, so that no content steers it and no two lines look the same (``shown``).

Bounds: what is compared line by line, and what is put into a patch at all, of one file and of all; beyond them a change
is named in the head.  A patch of some names only (``membrane diff NAME PATH``) has the rest.
"""

from __future__ import annotations

import os

from ..escaping import readable
from ..workspace.protect import GIT_NAMES, fold
from .lines import hunks, matches, split
from .model import EXECUTE, Change, Side
from .tree import pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from .tree import Copy

LARGEST_TEXT = 8 << 20  # bytes of a file that is compared line by line
LARGEST = 64 << 20  # bytes of a file that comes into a patch
MOST = 512 << 20  # bytes of all files, before and after, that are read for a patch
_LOOKED_AT = 8000  # bytes in which a NUL makes a content binary (xdiff-interface.c, FIRST_FEW_BYTES)
_LINE = 52  # bytes of a line of a binary patch
_NAMED = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
LETTERS = {
    "added": "A",
    "changed": "M",
    "deleted": "D",
    "renamed": "R100",
    "mode": "M",
    "type": "T",
    "attributes": "M",
}


def is_gits(path: str) -> bool:
    """Is it, or is it in, a git directory by its name?  git's patches do not touch those."""
    return any(fold(part) in GIT_NAMES for part in path.split("/"))


def quoted(path: str, prefix: str = "") -> bytes:
    """A name as git writes it (quote.c): as it is, or in double quotes with escapes."""
    name = prefix.encode() + os.fsencode(path)
    if path.isascii() and path.isprintable() and '"' not in path and "\\" not in path:
        return name
    out = bytearray(b'"')
    for byte in name:
        if byte in _NAMED:
            out += b"\\" + _NAMED[byte]
        elif 0x20 <= byte < 0x7F:
            out.append(byte)
        else:
            out += b"\\%03o" % byte
    return bytes(out + b'"')


# ---------------------------------------------------------------- the patch


def patch(copy: Copy, changes: Iterable[Change]) -> Iterator[bytes]:
    """The patch, in pieces of whole lines."""
    changes = list(changes)
    left, parts = MOST, []
    for change in changes:
        parts.append(_Part(copy, change, left))
        left -= parts[-1].size
    for part in parts:
        for note in part.notes:
            yield b"# " + note + b"\n"
    for part in parts:
        yield from part.text()


class _Part:
    """What one change becomes."""

    def __init__(self, copy: Copy, change: Change, left: int) -> None:
        self._copy, self.change = copy, change
        self.size = 0  # bytes that are read for it, of the ``left`` ones
        self.notes: list[bytes] = []
        before, after = change.before, change.after
        name = quoted(change.path)
        self.left_out = True
        if is_gits(change.path) or is_gits(change.source):
            self.notes.append(b"in git's directory, %s: %s" % (change.kind.encode(), name))
            return
        if copy.is_hidden(change.path):  # what the host has there is not compared: the patch would not fit it
            self.notes.append(b"under a name that a rule hides, never put in place: %s" % name)
            return
        sides = [side for side in (before, after) if side is not None]
        if any(side.what not in ("file", "link", "directory") for side in sides):
            self.notes.append(b"%s, %s: %s" % (change.what.encode(), change.kind.encode(), name))
            return
        if change.never and change.before is None and change.after is None:
            self.notes.append(b"cannot be looked at: %s" % name)
            return
        large = [side for side in sides if side.what == "file" and side.size > LARGEST]
        if large and (change.content or change.kind == "renamed"):
            self.notes.append(b"file of %d bytes, %s: %s" % (large[0].size, change.kind.encode(), name))
            return
        size = sum(side.size for side in sides if side.what == "file") if change.content else 0
        if size > left:
            self.notes.append(
                b"beyond the %d bytes that are read for a patch, %s: %s" % (MOST, change.kind.encode(), name)
            )
            return
        self.size = size
        self.left_out = False
        if after is not None and after.what == "directory":
            if change.kind in ("added", "type"):
                self.notes.append(b"new directory, mode %04o: %s" % (after.mode, name))
            elif before is not None and before.mode != after.mode:
                self.notes.append(b"directory, mode %04o becomes %04o: %s" % (before.mode, after.mode, name))
        elif after is None and before is not None and before.what == "directory":
            self.notes.append(b"deleted directory: %s" % name)
        elif after is not None and after.what == "file":
            was = before.mode if before is not None and before.what == "file" else None
            if (was is None and after.mode not in (0o644, 0o755)) or (was is not None and was != after.mode):
                self.notes.append(b"file, mode %04o: %s" % (after.mode, name))
        if change.attributes:
            self.notes.append(b"extended attributes differ: %s" % name)

    def text(self) -> Iterator[bytes]:
        change, before, after = self.change, self.change.before, self.change.after
        if self.left_out:
            return
        old = _git_mode(before)
        new = _git_mode(after)
        if change.source:
            assert before is not None and after is not None
            yield b"diff --git %s %s\n" % (quoted(change.source, "a/"), quoted(change.path, "b/"))
            if old != new:
                yield b"old mode %s\nnew mode %s\n" % (old, new)
            yield b"similarity index 100%%\nrename from %s\nrename to %s\n" % (
                quoted(change.source),
                quoted(change.path),
            )
        elif old and new and old[:3] != new[:3]:
            yield from self._content(before, None, old, b"")
            yield from self._content(None, after, b"", new)
        elif old or new:
            yield from self._content(before, after, old, new)

    def _content(self, before: Side | None, after: Side | None, old: bytes, new: bytes) -> Iterator[bytes]:
        path = self.change.path
        head = b"diff --git %s %s\n" % (quoted(path, "a/"), quoted(path, "b/"))
        if not old:
            head += b"new file mode %s\n" % new
        elif not new:
            head += b"deleted file mode %s\n" % old
        elif old != new:
            head += b"old mode %s\nnew mode %s\n" % (old, new)
        a = self._read(-1, before) if old else b""
        b = self._read(self.change.layer, after) if new else b""
        if a == b and old and new:
            if old != new:
                yield head
            return
        mode = b" " + new if old == new else b""
        yield head + b"index %s..%s%s\n" % (_blob(a) if old else b"0" * 40, _blob(b) if new else b"0" * 40, mode)
        if a == b:
            return  # an empty file comes or goes
        if is_binary(a) or is_binary(b):
            yield b"GIT binary patch\n"
            yield from _literal(b)
            yield from _literal(a)
            return
        tab = b"\t" if " " in path else b""
        yield b"--- %s%s\n" % (quoted(path, "a/"), tab) if old else b"--- /dev/null\n"
        yield b"+++ %s%s\n" % (quoted(path, "b/"), tab) if new else b"+++ /dev/null\n"
        yield from hunks(split(a), split(b))

    def _read(self, layer: int, side: Side | None) -> bytes:
        assert side is not None
        if side.what == "link":
            return os.fsencode(side.target)
        if side.what != "file":
            return b""
        return content(self._copy, layer, self.change.source if layer < 0 and self.change.source else self.change.path)


def content(copy: Copy, layer: int, path: str) -> bytes:
    """The bytes of a file, at most ``LARGEST``.

    Raises:
        OSError: it cannot be read.
    """
    fd = copy.open(layer, path)
    try:
        out = b""
        for piece in pieces(fd):
            out += piece
            if len(out) > LARGEST:
                break
        return out
    finally:
        os.close(fd)


def is_binary(data: bytes) -> bool:
    """Does git take it for binary?  Also what is too long to be compared line by line."""
    return b"\0" in data[:_LOOKED_AT] or len(data) > LARGEST_TEXT


def _git_mode(side: Side | None) -> bytes:
    if side is None or side.what not in ("file", "link"):
        return b""
    if side.what == "link":
        return b"120000"
    return b"100755" if side.mode & 0o100 else b"100644"


def _blob(data: bytes) -> bytes:
    from hashlib import sha1

    return sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest().encode()


def _literal(data: bytes) -> Iterator[bytes]:
    """A content in full (apply.c, ``parse_binary_hunk``): deflated, in base 85, each line with its length."""
    import zlib
    from base64 import b85encode

    yield b"literal %d\n" % len(data)
    packed = zlib.compress(data)
    for at in range(0, len(packed), _LINE):
        piece = packed[at : at + _LINE]
        length = len(piece)
        letter = chr(ord("A") + length - 1) if length <= 26 else chr(ord("a") + length - 27)
        yield letter.encode() + b85encode(piece, pad=True) + b"\n"
    yield b"\n"


# ---------------------------------------------------------------- shorter forms


def counts(copy: Copy, change: Change) -> tuple[int, int] | None:
    """(lines added, lines deleted); None: it is no text, or cannot be read."""
    before, after = change.before, change.after
    if not change.content or is_gits(change.path):
        return (0, 0) if not change.content else None
    try:
        sides = []
        for layer, side in ((-1, before), (change.layer, after)):
            if side is None or side.what == "directory":
                sides.append(b"")
            elif side.what == "link":
                sides.append(os.fsencode(side.target))
            elif side.what != "file" or side.size > LARGEST_TEXT:
                return None
            else:
                sides.append(content(copy, layer, change.path))
    except OSError:
        return None
    old, new = sides
    if is_binary(old) or is_binary(new):
        return None
    a, b = split(old), split(new)
    same = sum(length for _, _, length in matches(a, b))
    return len(b) - same, len(a) - same


def stat(copy: Copy, changes: Iterable[Change], width: int = 60) -> Iterator[str]:
    """As ``git diff --stat``: each name with its lines added and deleted, and the sums."""
    rows = [(f"{name_of(change)}", counts(copy, change), change) for change in changes]
    rows = [row for row in rows if not (row[2].what == "directory" and row[2].kind in ("added", "deleted"))]
    longest = min(max((len(name) for name, _, _ in rows), default=0), width)
    most = max((sum(count) for _, count, _ in rows if count), default=0)
    plus = minus = 0
    for name, count, change in rows:
        shown = name if len(name) <= width else "..." + name[-(width - 3) :]
        if count is None:
            yield f" {shown:{longest}} | {_sizes(change)}"
            continue
        plus, minus = plus + count[0], minus + count[1]
        scale = min(1.0, 40 / most) if most else 1.0
        bar = "+" * -(-int(count[0] * scale * 100) // 100) + "-" * -(-int(count[1] * scale * 100) // 100)
        yield f" {shown:{longest}} | {sum(count)} {bar}".rstrip()
    many = "file" if len(rows) == 1 else "files"
    yield f" {len(rows)} {many} changed, {plus} insertions(+), {minus} deletions(-)"


def _sizes(change: Change) -> str:
    before = change.before.size if change.before is not None and change.before.what == "file" else 0
    after = change.after.size if change.after is not None and change.after.what == "file" else 0
    return f"Bin {before} -> {after} bytes"


def name_of(change: Change) -> str:
    """The name or names of a change, safe to print: as git quotes them."""
    name = quoted(change.path).decode()
    return f"{quoted(change.source).decode()} => {name}" if change.source else name


def name_status(changes: Iterable[Change]) -> Iterator[bytes]:
    """As ``git diff --name-status``; directories and attributes, of which git says nothing, are there as well."""
    for change in changes:
        row = [LETTERS[change.kind].encode()]
        row += [quoted(path) for path in change.paths]
        yield b"\t".join(row) + b"\n"


def as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Each change as plain data.

    Names that are no UTF-8 have their other bytes as surrogates (PEP 383), which JSON writes as escapes.
    """
    out = []
    for change in changes:
        row: dict[str, Any] = {"path": change.path, "kind": change.kind, "what": change.what}
        if change.source:
            row["source"] = change.source
        for name, side in (("before", change.before), ("after", change.after)):
            if side is not None:
                row[name] = {"what": side.what, "mode": f"{side.mode:04o}", "size": side.size}
                if side.what == "link":
                    row[name]["target"] = side.target
        if change.after is not None and change.after.what == "file":
            before = change.before.mode if change.before is not None and change.before.what == "file" else 0
            row["made_executable"] = bool(change.after.mode & EXECUTE and not before & EXECUTE)
        if change.attributes:
            row["attributes"] = list(change.attributes)
        row["red"], row["never"], row["conflict"] = list(change.red), list(change.never), change.conflict
        out.append(row)
    return out


# ---------------------------------------------------------------- for a terminal

_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m", "#": "\x1b[33m"}


def shown(piece: bytes, *, colour: bool) -> str:
    """A piece of a patch for a terminal: each of its lines escaped, tabs as they are."""
    lines = piece.decode("utf-8", "surrogateescape").split("\n")
    out = []
    for line in lines:
        safe = "\t".join(map(readable, line.split("\t")))
        if colour and safe:
            head = safe.startswith(
                ("diff ", "+++", "---", "index ", "rename ", "similarity ", "old ", "new ", "deleted ")
            )
            code = "\x1b[1m" if head else _COLOURS.get(safe[0], "")
            safe = f"{code}{safe}\x1b[0m" if code else safe
        out.append(safe)
    return "\n".join(out)
