"""Kernel types as text and back: a few hundred lines instead of megabytes of BTF, to load programs for other kernels.

``python tests/unit/bpf/btf_text.py OBJECT BTF > tests/unit/bpf/kernel_types/VERSION.txt`` writes what the object's
relocations reach in the types of one kernel, and the value of each relocation as computed from all of them.  Lines:

    struct NAME SIZE            then its members, indented:  OFFSET-IN-BITS TYPE [NAME]
    typedef NAME TYPE
    value STRUCT ACCESS KIND NUMBER

A type is ``intN`` (bytes), ``ptr``, ``array COUNT TYPE``, ``struct NAME``, or ``anonymous N``: the N-th anonymous one.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from membrane.bpf import btf
from membrane.bpf.programs import ObjectFile


class Writer:
    """Builds a blob of BTF."""

    def __init__(self) -> None:
        self.strings = b"\0"
        self.types: list[bytes] = []

    def string(self, text: str) -> int:
        if not text:
            return 0
        wanted = text.encode() + b"\0"
        found = self.strings.find(b"\0" + wanted)
        if found >= 0:
            return found + 1
        self.strings += wanted
        return len(self.strings) - len(wanted)

    def add(self, name: str, kind: int, size: int, extra: bytes = b"", count: int = 0, flag: int = 0) -> int:
        self.types.append(struct.pack("<III", self.string(name), flag << 31 | kind << 24 | count, size) + extra)
        return len(self.types)

    def integer(self, size: int) -> int:
        return self.add(f"int{size}", btf.INT, size, struct.pack("<I", size * 8))

    def pointer(self, target: int = 0) -> int:
        return self.add("", btf.POINTER, target)

    def array(self, element: int, count: int) -> int:
        return self.add("", btf.ARRAY, 0, struct.pack("<III", element, element, count))

    def structure(self, name: str, size: int, members: list[tuple[str, int, int]], kind: int = btf.STRUCT) -> int:
        extra = b"".join(struct.pack("<III", self.string(member), of, at) for member, of, at in members)
        return self.add(name, kind, size, extra, len(members))

    def blob(self) -> bytes:
        types = b"".join(self.types)
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self.strings))
        return header + types + self.strings


def read(text: str) -> tuple[btf.Btf, dict[tuple[str, str, int], int]]:
    """The types, and the expected value of each relocation."""
    blocks: dict[str, tuple[int, list[str]]] = {}
    typedefs: list[tuple[str, str]] = []
    values: dict[tuple[str, str, int], int] = {}
    current: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith(" "):
            current.append(line.strip())
        elif words[0] in ("struct", "anonymous"):
            current = []
            blocks[" ".join(words[:2])] = int(words[2]), current
        elif words[0] == "typedef":
            typedefs.append((words[1], " ".join(words[2:])))
        else:
            values[words[1], words[2], int(words[3])] = int(words[4])
    writer = Writer()
    made: dict[str, int] = {}

    def of(words: list[str]) -> int:
        key = " ".join(words)
        if key not in made:
            if words[0].startswith("int"):
                made[key] = writer.integer(int(words[0][3:]))
            elif words[0] == "ptr":
                made[key] = writer.pointer()
            elif words[0] == "array":
                made[key] = writer.array(of(words[2:]), int(words[1]))
            else:
                size, lines = blocks[key]
                members = []
                for line in lines:
                    at, *rest = line.split()
                    length = {"array": 2 + (2 if rest[2:3] and rest[2] in ("struct", "anonymous") else 1)}.get(
                        rest[0], 2 if rest[0] in ("struct", "anonymous") else 1
                    )
                    members.append((rest[length] if len(rest) > length else "", of(rest[:length]), int(at)))
                made[key] = writer.structure(words[1] if words[0] == "struct" else "", size, members)
        return made[key]

    for key in blocks:
        of(key.split())
    for name, target in typedefs:
        writer.add(name, btf.TYPEDEF, of(target.split()))
    return btf.Btf(writer.blob()), values


def relocations(source: ObjectFile) -> dict[tuple[str, str, int], int]:
    """Each relocation once: (structure, access, kind) to the number of the local type."""
    types = source.btf
    return {
        (types.name(types.strip(type_id)) or types.name(type_id), access, kind): type_id
        for program in source.programs.values()
        for _at, type_id, access, kind in program.fields
    }


def write(source: ObjectFile, kernel: btf.Btf) -> str:
    """What the relocations reach, as text."""
    local = source.btf
    wanted: dict[int, set[str]] = {}  # structure of the kernel: members to keep
    blocks: dict[int, str] = {}

    def keep(there: int, path: str) -> int:
        """The type of the member, all structures on the way noted."""
        for name, member, _offset in kernel.members(there):
            if name == path:
                wanted.setdefault(there, set()).add(name)
                return member
        for name, member, _offset in kernel.members(there):
            inner = kernel.strip(member)
            if not name and kernel.kind(inner) in (btf.STRUCT, btf.UNION) and kernel.member(inner, path):
                wanted.setdefault(there, set()).add(f"anonymous {inner}")
                return keep(inner, path)
        raise LookupError(path)

    values = []
    typedefs = {}
    for (name, access, kind), type_id in sorted(relocations(source).items()):
        values.append(f"value {name} {access} {kind} {btf.resolve(local, kernel, type_id, access, kind)}")
        here = local.strip(type_id)
        there = kernel.find(local.name(here), (btf.STRUCT,)) if local.name(here) else 0
        if not there:
            there = kernel.strip(kernel.find(name, (btf.TYPEDEF,)))
            typedefs[name] = there
        wanted.setdefault(there, set())
        for index in map(int, access.split(":")[1:]):
            here = local.strip(here)
            if local.kind(here) == btf.ARRAY:
                here, there = local.array(here)[0], kernel.strip(kernel.array(kernel.strip(there))[0])
                continue
            member, here, _offset = list(local.members(here))[index]
            if member:
                there = kernel.strip(keep(kernel.strip(there), member))

    def shown(type_id: int) -> str:
        type_id = kernel.strip(type_id)
        kind = kernel.kind(type_id)
        if kind == btf.POINTER:
            return "ptr"
        if kind == btf.ARRAY:
            element, count = kernel.array(type_id)
            return f"array {count} {shown(element)}"
        if type_id in wanted:
            block(type_id)
            return f"struct {kernel.name(type_id)}" if kernel.name(type_id) else f"anonymous {type_id}"
        return f"int{kernel.size(type_id)}"

    def block(type_id: int) -> None:
        if type_id in blocks:
            return
        blocks[type_id] = ""
        title = f"struct {kernel.name(type_id)}" if kernel.name(type_id) else f"anonymous {type_id}"
        lines = [f"{title} {kernel.size(type_id)}"]
        for name, member, offset in kernel.members(type_id):
            inner = kernel.strip(member)
            if name in wanted[type_id] or (not name and f"anonymous {inner}" in wanted[type_id]):
                lines.append(f"  {offset} {shown(member)} {name}".rstrip())
        blocks[type_id] = "\n".join(lines)

    for type_id in sorted(wanted):
        block(type_id)
    names = [f"typedef {name} {shown(target)}" for name, target in typedefs.items()]
    tracepoints = sorted({program.tracepoint for program in source.programs.values()})
    names += [
        f"typedef btf_trace_{name} ptr" for name in tracepoints if kernel.find(f"btf_trace_{name}", (btf.TYPEDEF,))
    ]
    return "\n".join([*blocks.values(), *names, *values]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write(ObjectFile(Path(sys.argv[1]).read_bytes()), btf.Btf(Path(sys.argv[2]).read_bytes())))
