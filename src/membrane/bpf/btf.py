"""BPF type format: what a kernel's structures look like, and where a program's fields are in them.

Theory of operation
-------------------
A compiled program says of each access to a kernel structure which field it meant, in the types of its own object file
(CO-RE: "compile once, run everywhere").  ``resolve`` finds the field of the same name in the types of the running
kernel and returns the number to put into the instruction: an offset, a size, or whether it exists.  Anonymous members
are looked into on both sides; a structure ``name___flavour`` stands for ``name``.

The kernel's own blob has over a hundred thousand types and is read once per boot: ``Btf`` only notes where each type
begins, all else is looked up when asked.  Nothing here touches the kernel.  Format: kernel documentation,
``Documentation/bpf/btf.rst`` and ``llvm_reloc.rst``.
"""

from __future__ import annotations

import struct
import sys
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INT, POINTER, ARRAY, STRUCT, UNION, ENUM, FORWARD, TYPEDEF, VOLATILE, CONST, RESTRICT = range(1, 12)
FUNCTION, PROTOTYPE, VARIABLE, SECTION, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(12, 20)
_MODIFIERS = (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG)
# words that follow a type: a fixed number, and a number per element
_FIXED = {INT: 1, ARRAY: 3, VARIABLE: 1, DECL_TAG: 1}
_EACH = {STRUCT: 3, UNION: 3, ENUM: 2, PROTOTYPE: 2, SECTION: 3, ENUM64: 3}

FIELD_OFFSET, FIELD_SIZE, FIELD_EXISTS = 0, 1, 2  # enum bpf_core_relo_kind


class NoSuchField(ValueError):
    """These types have no such structure or field."""


class Btf:
    """The types of one blob, by number; 0 is void.

    Raises:
        ValueError: it is not BTF, or is cut off.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < 24:
            raise ValueError("BTF: cut off")
        magic, _version, _flags, header, types_at, types_length, strings_at, strings_length = struct.unpack_from(
            "<HBBIIIII", data
        )
        if magic != 0xEB9F:
            raise ValueError("BTF: bad magic")
        start = header + types_at
        if max(start + types_length, header + strings_at + strings_length) > len(data) or types_length % 4 or start % 4:
            raise ValueError("BTF: cut off")
        self._strings = data[header + strings_at : header + strings_at + strings_length]
        self.words: Sequence[int] = memoryview(data)[start : start + types_length].cast("I")
        self._names = b""  # of each type, as an offset in four bytes
        self._found: dict[tuple[str, tuple[int, ...]], int] = {}
        self._members: dict[tuple[int, str], tuple[int, int] | None] = {}
        self.followed: dict[tuple[Btf, int, str], tuple[int, int]] = {}  # by ``resolve``
        fixed = [3 + _FIXED.get(kind, 0) for kind in range(32)]
        each = [_EACH.get(kind, 0) for kind in range(32)]
        words, position, end = self.words, 0, types_length // 4
        starts = [0]
        note = starts.append
        while position < end:
            note(position)
            information = words[position + 1]
            kind = information >> 24 & 31
            position += fixed[kind] + each[kind] * (information & 0xFFFF)
        if position != end:
            raise ValueError("BTF: cut off")
        self._starts = starts

    def string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def at(self, type_id: int) -> int:
        """Where the type begins in ``words``."""
        return self._starts[type_id]

    def name(self, type_id: int) -> str:
        return self.string(self.words[self.at(type_id)]) if type_id else "void"

    def kind(self, type_id: int) -> int:
        return self.words[self.at(type_id) + 1] >> 24 & 31 if type_id else 0

    def target(self, type_id: int) -> int:
        """What a pointer, a variable or a modifier is about."""
        return self.words[self.at(type_id) + 2]

    def strip(self, type_id: int) -> int:
        """The type without typedefs and qualifiers."""
        while self.kind(type_id) in _MODIFIERS:
            type_id = self.target(type_id)
        return type_id

    def array(self, type_id: int) -> tuple[int, int]:
        """Element type and count of an array."""
        at = self.at(type_id)
        return self.words[at + 3], self.words[at + 5]

    def find(self, name: str, kinds: tuple[int, ...]) -> int:
        """The first type of one of the kinds with this name, or 0."""
        known = self._found.get((name, kinds))
        if known is not None:
            return known
        if not self._names:
            words = self.words
            self._names = array("I", (words[at] for at in self._starts)).tobytes()
        wanted = b"\0" + name.encode() + b"\0"
        at = self._strings.find(wanted)
        found = 0
        while at >= 0 and not found:
            found = self._named(at + 1, kinds)
            at = self._strings.find(wanted, at + 1)
        self._found[name, kinds] = found
        return found

    def _named(self, offset: int, kinds: tuple[int, ...]) -> int:
        wanted = offset.to_bytes(4, sys.byteorder)
        at = self._names.find(wanted, 4)  # in C, once per name: faster than an index of all names
        while at >= 0:
            if at % 4 == 0 and self.kind(at // 4) in kinds:
                return at // 4
            at = self._names.find(wanted, at + 1)
        return 0

    def members(self, type_id: int) -> Iterator[tuple[str, int, int]]:
        """Name, type and offset in bits of each member of a structure or union."""
        at, words = self.at(type_id), self.words
        information = words[at + 1]
        for place in range(at + 3, at + 3 + 3 * (information & 0xFFFF), 3):
            offset = words[place + 2]
            yield self.string(words[place]), words[place + 1], offset & 0xFFFFFF if information >> 31 else offset

    def size(self, type_id: int) -> int:
        """In bytes; pointers are 64 bits wide on every machine we know."""
        type_id = self.strip(type_id)
        kind = self.kind(type_id)
        if kind == POINTER:
            return 8
        if kind == ARRAY:
            element, count = self.array(type_id)
            return self.size(element) * count
        return self.target(type_id)  # the same word holds the size

    def member(self, type_id: int, name: str) -> tuple[int, int] | None:
        """Type and offset in bits of a member, also of anonymous members."""
        key = type_id, name
        if key not in self._members:
            self._members[key] = self._member(type_id, name)
        return self._members[key]

    def _member(self, type_id: int, name: str) -> tuple[int, int] | None:
        for found, member_type, offset in self.members(type_id):
            if found == name:
                return member_type, offset
            if not found:
                inner = self.strip(member_type)
                deeper = self.member(inner, name) if self.kind(inner) in (STRUCT, UNION) else None
                if deeper:
                    return deeper[0], offset + deeper[1]
        return None


def resolve(local: Btf, kernel: Btf, type_id: int, access: str, kind: int) -> int:
    """The number that one relocation asks for.

    Args:
        type_id: the structure, in ``local``.
        access: indexes of members, ``0:3:1``; the first one counts whole structures.
        kind: ``FIELD_OFFSET`` and ``FIELD_SIZE`` in bytes, or ``FIELD_EXISTS`` (0 or 1).

    Raises:
        NoSuchField: the kernel has no such field, or the kind is another one.
    """
    try:
        key = local, type_id, access
        if key not in kernel.followed:
            kernel.followed[key] = _follow(local, kernel, type_id, [int(index) for index in access.split(":")])
        offset, found = kernel.followed[key]
    except NoSuchField:
        if kind == FIELD_EXISTS:
            return 0
        raise
    if kind == FIELD_OFFSET:
        return offset // 8
    if kind == FIELD_SIZE:
        return kernel.size(found)
    if kind == FIELD_EXISTS:
        return 1
    raise NoSuchField(f"relocation of kind {kind}")


def _follow(local: Btf, kernel: Btf, type_id: int, path: list[int]) -> tuple[int, int]:
    here = local.strip(type_id)
    name = local.name(here).split("___")[0]
    there = kernel.find(name, (STRUCT, UNION)) if local.kind(here) in (STRUCT, UNION) else 0
    if not there:
        # ``typedef struct { } name``: the structure itself has none
        typedef = kernel.find(local.name(type_id), (TYPEDEF,)) if local.kind(type_id) == TYPEDEF else 0
        there = kernel.strip(typedef)
        if not there:
            raise NoSuchField(f"no struct {name or local.name(type_id)}")
    offset = path[0] * kernel.size(there) * 8
    for index in path[1:]:
        here = local.strip(here)
        if local.kind(here) == ARRAY:
            there = kernel.strip(there)
            if kernel.kind(there) != ARRAY:
                raise NoSuchField(f"{name}: not an array")
            there = kernel.array(there)[0]
            offset += 8 * index * kernel.size(there)
            here = local.array(here)[0]
            continue
        member, here, _offset = list(local.members(here))[index]
        if not member:
            continue  # anonymous in our declaration: the name comes further down
        found = kernel.member(kernel.strip(there), member)
        if found is None:
            raise NoSuchField(f"no field {name}.{member}")
        there, offset = found[0], offset + found[1]
    return offset, there
