"""Objects of a git repository, each proven by its name.

Theory of operation
-------------------
A repository is in a directory that the command may write, so nothing that is read there is believed: ``Objects``
takes a name that the caller knows to be good, reads what the files offer for it, and gives it back only when its hash
(SHA-1, or SHA-256 for names of 32 bytes) is that name (gitformat-pack(5), gitrepository-layout(5)).  Refs, grafts,
``refs/replace`` and alternates are not looked at, and no program is run.

Files are opened below the repository without following links and without waiting, and read by pread(2) (a mapping
of a file that is cut short would end us).  Sizes, depths and numbers are bounded; what is beyond them, damaged or not
there is ``None``.
"""

from __future__ import annotations

import os
import stat
import zlib

from .below import open_file, stat_below

LARGEST = 4 << 20  # bytes of one object
LARGEST_FILE = 8 << 20  # bytes of a loose one, compressed
MOST_PACKS = 64
MOST_BASES = 8 << 20  # bytes of bases of deltas that are kept
DEEPEST = 256  # deltas upon each other; git makes 50 (git-config(1), pack.depth)
_PIECE = 8192
_TYPES = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFFSET, _REFERENCE = 6, 7  # types of deltas


class Objects:
    """The objects of one repository.

    Args:
        root_fd: a directory; stays the caller's.
        place: the git directory, relative to it.
        width: bytes of a name: 20 or 32.
    """

    def __init__(self, root_fd: int, place: str, width: int) -> None:
        self._root_fd = root_fd
        self._width = width
        self._place = f"{place}/objects"
        self._packs: list[_Pack] | None = None
        self._listed = (0, 0)  # inode and change time of the directory of the packs

    def close(self) -> None:
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def read(self, name: bytes) -> tuple[bytes, bytes] | None:
        """(type, content) of the object with this name; None: nothing here proves to be it."""
        for found in (self._loose(name), self._packed(name)):
            if found is not None and named(*found, self._width) == name:
                return found
        return None

    def _loose(self, name: bytes) -> tuple[bytes, bytes] | None:
        text = name.hex()
        try:
            data = _whole(self._root_fd, f"{self._place}/{text[:2]}/{text[2:]}")
            unpacked = zlib.decompressobj().decompress(data, LARGEST + 64)
        except (OSError, zlib.error):
            return None
        head, _, content = unpacked.partition(b"\0")
        kind, _, _size = head.partition(b" ")
        return (kind, content) if len(content) <= LARGEST else None

    def _packed(self, name: bytes) -> tuple[bytes, bytes] | None:
        for pack in self._all():
            try:
                offset = pack.find(name)
                found = pack.read(offset) if offset else None
            except (OSError, zlib.error, IndexError):
                continue
            if found is not None:
                return found
        return None

    def _all(self) -> list[_Pack]:
        place = f"{self._place}/pack"
        try:
            status = stat_below(self._root_fd, place)
        except OSError:
            return []
        listed = (status.st_ino, status.st_ctime_ns)
        if self._packs is not None and listed == self._listed:
            return self._packs
        self.close()
        self._listed = listed
        packs: list[_Pack] = []
        self._packs = packs
        try:
            fd = open_file(self._root_fd, place)
            try:
                with os.scandir(fd) as listing:
                    few = zip(range(MOST_PACKS * 8), listing, strict=False)
                    names = sorted(entry.name[:-4] for _, entry in few if entry.name.endswith(".idx"))
            finally:
                os.close(fd)
        except OSError:
            return packs
        for each in names[:MOST_PACKS]:
            try:
                packs.append(_Pack(self._root_fd, f"{place}/{each}", self._width))
            except OSError:
                continue
        return packs


class _Pack:
    """One pack with its index of version 2."""

    def __init__(self, root_fd: int, path: str, width: int) -> None:
        self._width = width
        self._index = open_file(root_fd, f"{path}.idx")
        self._data = -1
        try:
            self._data = open_file(root_fd, f"{path}.pack")
            for fd in (self._index, self._data):
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError("it is not a regular file")
            head = os.pread(self._index, 8 + 1024, 0)
            if head[:8] != b"\xfftOc\x00\x00\x00\x02" or len(head) != 8 + 1024:
                raise OSError("it is not an index that is known")
        except OSError:
            self.close()
            raise
        self._fan = [int.from_bytes(head[at : at + 4], "big") for at in range(8, 8 + 1024, 4)]
        self._bases: dict[int, tuple[bytes, bytes]] = {}
        self._kept = 0

    def close(self) -> None:
        os.close(self._index)
        if self._data >= 0:
            os.close(self._data)

    def find(self, name: bytes) -> int:
        """The offset of an object; 0: it is not in this pack."""
        size, total = len(name), self._fan[255]
        low, high = self._fan[name[0] - 1] if name[0] else 0, self._fan[name[0]]
        while low < high:
            middle = (low + high) // 2
            there = os.pread(self._index, size, 1032 + middle * size)
            if there == name:
                at = 1032 + total * (size + 4) + middle * 4
                offset = int.from_bytes(os.pread(self._index, 4, at), "big")
                if offset >> 31:
                    at = 1032 + total * (size + 8) + (offset & 0x7FFFFFFF) * 8
                    offset = int.from_bytes(os.pread(self._index, 8, at), "big")
                return offset if offset < 1 << 62 else 0
            if there < name:
                low = middle + 1
            else:
                high = middle
        return 0

    def read(self, offset: int) -> tuple[bytes, bytes] | None:
        deltas: list[tuple[int, bytes]] = []
        while True:
            known = self._bases.get(offset)
            if known is not None:
                kind, content = known
                break
            head = os.pread(self._data, 64, offset)
            at, code, size = _header(head)
            if code == _OFFSET:
                at, back = _distance(head, at)
                base = offset - back
            elif code == _REFERENCE:
                base = self.find(head[at : at + self._width])
                at += self._width
            else:
                base = 0
            if size > LARGEST or (base and len(deltas) >= DEEPEST):
                return None
            content = self._inflate(offset + at, size)
            if len(content) != size:
                return None
            if code in _TYPES:
                kind = _TYPES[code]
                self._keep(offset, kind, content)
                break
            if base <= 0 or (code == _OFFSET and base >= offset):
                return None
            deltas.append((offset, content))
            offset = base
        while deltas:
            at, delta = deltas.pop()
            made = _apply(content, delta)
            if made is None:
                return None
            content = made
            self._keep(at, kind, content)
        return kind, content

    def _keep(self, offset: int, kind: bytes, content: bytes) -> None:
        self._kept += len(content)
        if self._kept > MOST_BASES:
            self._bases.clear()
            self._kept = len(content)
        self._bases[offset] = (kind, content)

    def _inflate(self, at: int, size: int) -> bytes:
        stream, out = zlib.decompressobj(), b""
        while len(out) <= size and not stream.eof:
            piece = os.pread(self._data, min(_PIECE + size, 1 << 20), at)
            if not piece:
                break
            out += stream.decompress(piece, size + 1 - len(out))
            at += len(piece)
            if stream.unconsumed_tail:
                break  # it is longer than it says
        return out


def _header(data: bytes) -> tuple[int, int, int]:
    """(length of the header, type, size) of an entry of a pack."""
    byte, at, shift = data[0], 1, 4
    code, size = byte >> 4 & 7, byte & 15
    while byte & 128:
        byte = data[at]
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    return at, code, size


def _distance(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    back = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        back = (back + 1) << 7 | byte & 127
    return at + 1, back


def _size(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if not byte & 128:
            return at, size
        if shift > 63:
            raise IndexError


def _apply(base: bytes, delta: bytes) -> bytes | None:
    """What a delta makes of its base; None: it is damaged."""
    at, before = _size(delta, 0)
    at, size = _size(delta, at)
    if before != len(base) or size > LARGEST:
        return None
    pieces, made = [], 0
    while at < len(delta):
        code = delta[at]
        at += 1
        if code & 128:
            offset = count = 0
            for bit in range(4):
                if code >> bit & 1:
                    offset |= delta[at] << 8 * bit
                    at += 1
            for bit in range(3):
                if code >> 4 + bit & 1:
                    count |= delta[at] << 8 * bit
                    at += 1
            count = count or 0x10000
            piece = base[offset : offset + count]
        else:
            count = code
            piece = delta[at : at + count]
            at += count
        made += count
        if not count or len(piece) != count or made > size:
            return None
        pieces.append(piece)
    return b"".join(pieces) if made == size else None


def named(kind: bytes, content: bytes, width: int) -> bytes:
    """The name of an object: the hash of ``width`` bytes over its header and content."""
    from hashlib import sha1, sha256

    make = sha1(usedforsecurity=False) if width == 20 else sha256()
    make.update(b"%s %d\0" % (kind, len(content)))
    make.update(content)
    return make.digest()


def _whole(root_fd: int, path: str) -> bytes:
    fd = open_file(root_fd, path)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise OSError("it is not such a file")
        data = b""
        while len(data) <= LARGEST_FILE and (piece := os.read(fd, 1 << 20)):
            data += piece
        return data
    finally:
        os.close(fd)
