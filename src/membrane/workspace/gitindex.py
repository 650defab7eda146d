"""What an index and the record of rerere have git outside write and read: only files of the work tree.

Theory of operation
-------------------
git tests a path when it puts it into an index, and trusts the index afterwards: ``git checkout .`` writes
``.git/hooks/post-checkout`` and ``../../.bashrc`` when a file that another user made says so.  Likewise rerere opens
the files that ``MERGE_RR`` names and keeps a copy of them where the command can read it.  So an index may hold what
git itself would put there (read-cache.c, ``verify_path``), and ``MERGE_RR`` files of the work tree.

The paths of an index are read by the lengths that git goes by, and judged by one search.  The work is linear in the
file, which the caller bounds: about 0.2 s for 300,000 paths.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_EXTENSIONS = 64
_MOST_UNPACKED = 64 << 20  # bytes of paths
_DIRECTORY = (0o040000).to_bytes(4, "big")  # S_ISSPARSEDIR
SHORT = "it is an index without an end"
_NO_INDEX = "it is not an index that git writes"
# A component that git takes for a way out of the tree, or for its own directory (path.c, is_ntfs_dotgit).
_BAD = re.compile(rb"/(?:\.{0,2}|(?:\.git|git~1)[ .]*(?::[^/\0]*)?)(?=[/\0\\])", re.IGNORECASE)
_RECORD = re.compile(r"[0-9a-f]{40,64}(?:\.[0-9]{1,9})?\t([^\0]+)\0")


def index(data: bytes, hash_size: int = 20) -> str:
    """Why an index must go.

    Args:
        data: the whole file (gitformat-index(5)).
        hash_size: bytes of the name of an object in this repository.
    """
    if len(data) < 12:
        return SHORT
    if data[:4] != b"DIRC" or data[4:7] != b"\0\0\0" or data[7] not in (2, 3, 4):
        return _NO_INDEX
    count = int.from_bytes(data[8:12], "big")
    places: list[int] = []
    try:
        names = (_packed if data[7] == 4 else _plain)(data, count, hash_size, places)
    except EOFError:
        return SHORT  # git looks for what is not there, and ends
    if names is None or not _is_read_so(data, places, hash_size):
        return _NO_INDEX
    found = _bad(names)
    if found is not None and len(names) == count:  # perhaps a sparse index
        found = _bad([_without_slash(data, at, name) for at, name in zip(places, names, strict=False)])
    if found is None:
        return ""
    return f"git checkout writes outside of the work tree by its {found[0][1:60].decode('ascii', 'replace') or 'path'}"


def _bad(names: list[bytes]) -> re.Match[bytes] | None:
    return _BAD.search(b"\0/" + b"\0/".join(names) + b"\0") if names else None


def _without_slash(data: bytes, at: int, name: bytes) -> bytes:
    """The path of an entry; of a whole directory in a sparse index (mode 040000) without the "/" at its end.

    git makes paths of the files in there by what its tree says, and tests each (sparse-index.c, ``add_path_to_index``);
    it writes nothing for the entry itself (entry.c, ``write_entry``).
    """
    return name[:-1] if name.endswith(b"/") and data[at + 24 : at + 28] == _DIRECTORY else name


def unwatched(data: bytes, hash_size: int = 20) -> frozenset[bytes]:
    """The paths of which git says no more when they change: assume-unchanged, skip-worktree (git-update-index(1)).

    Args:
        data: an index for which ``index`` says nothing.
        hash_size: as there.

    In one that is split, whose other part has the names, that is the empty path.
    """
    places: list[int] = []
    count = int.from_bytes(data[8:12], "big")
    try:
        names = (_packed if data[7] == 4 else _plain)(data, count, hash_size, places) or []
    except (EOFError, IndexError):
        return frozenset((b"",))
    flags = [place + 40 + hash_size for place in places[:-1]]
    marked = [data[at] & 0x80 or (data[at] & 0x40 and data[at + 2] & 0x40) for at in flags]
    if len(names) != count:
        names = [b""] * count
    return frozenset(name for name, is_marked in zip(names, marked, strict=True) if is_marked)


def hash_size(config: str) -> int:
    """Bytes of the name of an object, by the configuration of a repository."""
    from .gitconfig import ConfigError, parse

    try:
        named = [value for key, value in parse(config) if key == "extensions.objectformat"]
    except ConfigError:
        named = []
    return 32 if named and named[-1] == "sha256" else 20


def _is_read_so(data: bytes, places: list[int], hash_size: int) -> bool:
    """Does git read the entries from where they were read here?

    With many entries it starts several threads where the extensions EOIE and IEOT are there.

    Args:
        data: the whole file.
        places: of the entries, and of what comes after them.
        hash_size: bytes of the name of an object.
    """
    trailer = len(data) - hash_size
    last = trailer - hash_size - 12
    if last < 12 or data[last : last + 4] != b"EOIE":
        return True  # then it begins at the beginning
    if int.from_bytes(data[last + 8 : last + 12], "big") != places[-1]:
        return False
    at = places[-1]
    for _ in range(_MOST_EXTENSIONS):
        if at + 8 > trailer:
            return True
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at : at + 4] == b"IEOT":
            number = 0
            for block in range(at + 12, at + 8 + size, 8):
                if number >= len(places) or int.from_bytes(data[block : block + 4], "big") != places[number]:
                    return False
                number += int.from_bytes(data[block + 4 : block + 8], "big")
            return number == len(places) - 1
        at += 8 + size
    return False


def _plain(data: bytes, count: int, hash_size: int, places: list[int]) -> list[bytes] | None:
    """The paths of version 2 or 3; those of a split index that stand in the shared one are empty, and left out.

    Raises:
        EOFError: the file ends before the last of them.
    """
    at, base, end = 12, 40 + hash_size, len(data)
    names = []
    for _ in range(count):
        places.append(at)
        flags = at + base
        if flags + 4 > end:
            raise EOFError
        first = data[flags]
        begin = flags + (4 if first & 0x40 else 2)
        length = (first & 0x0F) << 8 | data[flags + 1]
        stop = begin + length
        if length == 0xFFF:
            stop = data.find(b"\0", begin)
        elif stop >= end:
            raise EOFError
        elif data[stop]:
            return None
        if stop < 0:
            raise EOFError
        if stop > begin:
            names.append(data[begin:stop])
        at += (stop - at + 8) & ~7
    places.append(at)
    joined = b"".join(names)
    return None if b"\0" in joined else names


def _packed(data: bytes, count: int, hash_size: int, places: list[int]) -> list[bytes] | None:
    """The paths of version 4: each gives what it takes from the end of the one before, and what it adds."""
    at, base, end, before, work = 12, 40 + hash_size, len(data), b"", 0
    names = []
    for _ in range(count):
        places.append(at)
        flags = at + base
        if flags + 4 > end:
            raise EOFError
        begin = flags + (4 if data[flags] & 0x40 else 2)
        strip, more = 0, 0x80
        for number in range(6):  # varint.c, decode_varint
            if begin >= end:
                raise EOFError
            strip, more = ((strip + (number > 0)) << 7) | (data[begin] & 0x7F), data[begin] & 0x80
            begin += 1
            if not more:
                break
        stop = data.find(b"\0", begin)
        if more or strip > len(before):
            return None
        if stop < 0:
            raise EOFError
        before = before[: len(before) - strip] + data[begin:stop]
        work += len(before)
        if work > _MOST_UNPACKED:
            return None  # a little file can hold long paths many times
        if before:
            names.append(before)
        at = stop + 1
    places.append(at)
    return names


def rerere(text: str, look: Callable[[str], str]) -> str:
    """Why a ``MERGE_RR`` must go.

    Args:
        text: what it holds (rerere.c, ``read_rr``).
        look: why a path, relative to the work tree, may not be read outside.
    """
    at = 0
    while at < len(text):
        match = _RECORD.match(text, at)
        if match is None:
            return "it is not a record that git writes"
        path = match[1]
        if _BAD.search(f"/{path}\0".encode("utf-8", "surrogateescape")):
            return "git rerere reads and writes outside of the work tree by it"
        why = look(path)
        if why:
            return f"git rerere copies {path[:100]} to where the command can read it: {why}"
        at = match.end()
    return ""
