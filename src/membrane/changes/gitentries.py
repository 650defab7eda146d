"""What an index of git lists (gitformat-index(5)), read from bytes that may be anything.

Theory of operation
-------------------
Whether an index may come at all is judged elsewhere (``workspace.gitindex``).  Here two are compared by what they list,
as ``git status`` writes one anew without changing that; and the objects are named that have to be there.
"""

from __future__ import annotations


def indexed(data: bytes, width: int) -> frozenset[str]:
    """The objects that an index lists, but for commits of submodules; of one that is damaged none is known."""
    rows = _entries_4(data, width) if data[4:8] == b"\0\0\0\4" else _entries(data, width)
    return frozenset(name.hex() for _start, mode, name, _end in rows or () if mode[2] >> 4 != 0o16)


def entries(data: bytes, width: int) -> str:
    """A hash of what an index lists (gitformat-index(5)), without what it remembers of the files and its extensions.

    Of version 4, whose names are packed, and of what is damaged, a hash of all of it.
    """
    from hashlib import blake2b

    made = blake2b(digest_size=16)
    rows = _entries(data, width)
    if rows is None:
        made.update(data)
        return made.hexdigest()
    for start, mode, name, end in rows:
        flags = data[start + 40 + width : start + 42 + width]
        first = start + 42 + width
        more = b""
        if flags and flags[0] & 0x40:
            more = data[first : first + 2]
            first += 2
        made.update(b"\0".join((mode, name, flags, more, data[first:end])) + b"\n")
    return made.hexdigest()


def _entries(data: bytes, width: int) -> list[tuple[int, bytes, bytes, int]] | None:
    """(where it begins, mode, object, where its name ends) of each entry; None: another version, or damaged."""
    at, count = 12, int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or data[4:8] not in (b"\0\0\0\2", b"\0\0\0\3") or count > len(data) // (42 + width):
        return None
    out = []
    for _ in range(count):
        flags = data[at + 40 + width : at + 42 + width]
        start = at + 42 + width + (2 if flags and flags[0] & 0x40 else 0)
        end = data.find(b"\0", start)
        if end < 0:
            return None
        out.append((at, data[at + 24 : at + 28], data[at + 40 : at + 40 + width], end))
        at += (end - at + 8) // 8 * 8
    return out


def _entries_4(data: bytes, width: int) -> list[tuple[int, bytes, bytes, int]] | None:
    """As ``_entries``, of version 4, whose names lack what they share with the one before."""
    at, count = 12, int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or count > len(data) // (43 + width):
        return None
    out = []
    for _ in range(count):
        flags = data[at + 40 + width : at + 42 + width]
        start = at + 42 + width + (2 if flags and flags[0] & 0x40 else 0)
        while data[start : start + 1] >= b"\x80":  # how much they share: a number of several bytes
            start += 1
        end = data.find(b"\0", start + 1)
        if end < 0:
            return None
        out.append((at, data[at + 24 : at + 28], data[at + 40 : at + 40 + width], end))
        at = end + 1
    return out
