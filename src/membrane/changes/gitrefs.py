"""The refs of a git repository in one view, whether they are files or lines of ``packed-refs``.

Theory of operation
-------------------
gitrepository-layout(5): a ref is a file below ``refs`` with the name of an object, or a line of ``packed-refs``; of
both the file counts.  What a view holds is hostile: sizes and numbers are bounded, and what is more is ``broken``.
"""

from __future__ import annotations

import os
import stat

from ..errors import HostError
from .tree import Copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .model import Side

MOST_REFS = 100_000
LARGEST_PACKED = 32 << 20  # bytes of packed-refs
LONGEST_REF = 1_024  # bytes of the content of one
LARGEST_INDEX = 32 << 20  # bytes of an index whose entries are compared
HEX = frozenset("0123456789abcdef")


class Refs:
    """The refs of one repository in one view: ``values``, by name; where they are."""

    def __init__(self, copy: Copy, place: str) -> None:
        self._copy = copy
        self.values: dict[str, str] = {}
        self.loose: dict[str, Side] = {}
        self.packed: dict[str, str] = {}
        self.text = b""
        self.broken = False
        try:
            self._read_packed(f"{place}/packed-refs")
            self._read_loose(place, "refs")
        except (OSError, HostError, RecursionError):
            self.broken = True
        self.values = {**self.packed, **self.values}

    def _read_packed(self, path: str) -> None:
        self.text = content(self._copy, path, LARGEST_PACKED)
        for line in self.text.splitlines():
            value, _, name = line.partition(b" ")
            if name and not line.startswith((b"#", b"^")):
                self.packed[os.fsdecode(name)] = value.decode("ascii", "replace")
        if len(self.packed) > MOST_REFS or len(self.text) > LARGEST_PACKED:
            self.broken = True

    def _read_loose(self, place: str, ref: str) -> None:
        todo = [ref]
        while todo:
            ref = todo.pop()
            for name in self._copy.names(f"{place}/{ref}"):
                path, inner = f"{place}/{ref}/{name}", f"{ref}/{name}"
                found = self._copy.find(path)
                if found is None or name.endswith(".lock"):
                    continue
                if found[1].what == "directory":
                    todo.append(inner)
                elif found[1].what == "file":
                    self.values[inner] = value_of(content(self._copy, path, LONGEST_REF))
                    self.loose[inner] = found[1]
                else:
                    self.values[inner] = "not a file"
            if len(self.values) + len(todo) > MOST_REFS:
                self.broken = True
                return


def content(copy: Copy, path: str, most: int = LARGEST_INDEX) -> bytes:
    """What a file of a view holds, at most ``most`` bytes and one more; empty: there is none, or it cannot be read."""
    try:
        found = copy.find(path)
        if found is None or found[1].what != "file":
            return b""
        fd = copy.open(found[0], path)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        out = b""
        while len(out) <= most and (piece := os.read(fd, most + 1 - len(out))):
            out += piece
        return out
    finally:
        os.close(fd)


def value_of(data: bytes) -> str:
    if len(data) > LONGEST_REF:
        return "longer than a ref"  # which none has for its value: what is cut off would decide
    return data.decode("utf-8", "surrogateescape").removesuffix("\n")


def is_value(value: str, ref: str) -> bool:
    if value.startswith("ref: refs/"):
        return ref.startswith("refs/remotes/") and ref.endswith("/HEAD") and is_ref(value.removeprefix("ref: "))
    return len(value) in (40, 64) and HEX.issuperset(value)


def is_ref(ref: str) -> bool:
    """git-check-ref-format(1)."""
    parts = ref.split("/")
    if len(parts) < 2 or parts[0] != "refs" or "@{" in ref or ".." in ref or ref.endswith("."):
        return False
    if any(char < " " or char in '\x7f ~^:?*[\\"' for char in ref):
        return False
    return all(part and not part.startswith((".", "-")) and not part.endswith(".lock") for part in parts)
