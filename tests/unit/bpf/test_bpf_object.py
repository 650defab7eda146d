"""Reading and relocating the tracing programs, without privileges and for kernels that are not here."""

from __future__ import annotations

import os
import random
import re
import struct
import sys
from pathlib import Path

import btf_text
import pytest

from membrane.bpf import btf, programs
from membrane.bpf.programs import ObjectFile
from membrane.record import calls, decode
from membrane.tracer import ebpf

KERNELS = sorted((Path(__file__).parent / "kernel_types").glob("linux-*.txt"))
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def source() -> ObjectFile:
    return ObjectFile(Path(ebpf.OBJECT).read_bytes())


def relocated(source: ObjectFile, kernel: btf.Btf) -> dict[str, bytes]:
    maps = dict.fromkeys(source.maps, 0)
    out = {}
    for name in source.programs:
        code, missing = source.instructions(name, kernel, maps)
        assert missing == [], name
        out[name] = code
    return out


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_every_field_is_found_in_other_kernels(source: ObjectFile, path: Path) -> None:
    kernel, values = btf_text.read(path.read_text())
    wanted = btf_text.relocations(source)
    assert set(wanted) == set(values), "run tests/unit/bpf/btf_text.py for the new fields"
    assert {key: btf.resolve(source.btf, kernel, type_id, key[1], key[2]) for key, type_id in wanted.items()} == values
    code = relocated(source, kernel)
    for program in source.programs.values():
        assert kernel.find(f"btf_trace_{program.tracepoint}", (btf.TYPEDEF,))
        assert len(code[program.name]) == len(program.code)


def test_kernels_differ(source: ObjectFile) -> None:
    assert len(KERNELS) >= 3
    codes = [relocated(source, btf_text.read(path.read_text())[0])["do_open"] for path in KERNELS]
    assert len(set(codes)) == len(codes)


def test_an_unknown_field_poisons_its_instruction(source: ObjectFile) -> None:
    text = "\n".join(line for line in KERNELS[0].read_text().splitlines() if not line.endswith(" f_inode"))
    kernel, _values = btf_text.read(text)
    code, missing = source.instructions("do_open", kernel, dict.fromkeys(source.maps, 0))
    assert set(missing) == {"no field file.f_inode"}
    poison = struct.pack("<BBhi", 0x85, 0, 0, 0xBAD2310)
    found = [at for at in range(0, len(code), 8) if code[at : at + 8] == poison]
    assert len(found) == len(missing)
    assert poison not in [source.programs["do_open"].code[at : at + 8] for at in found]


def test_map_descriptors_are_put_in(source: ObjectFile) -> None:
    kernel, _values = btf_text.read(KERNELS[0].read_text())
    maps = {name: 1000 + number for number, name in enumerate(source.maps)}
    code, _missing = source.instructions("on_exit", kernel, maps)
    used = {}
    for at, name in source.programs["on_exit"].maps:
        opcode, registers, _offset, value = struct.unpack_from("<BBhi", code, at)
        assert (opcode, registers >> 4) == (0x18, 1)  # a 64-bit immediate that is a map's descriptor
        used[name] = value
    assert used == {name: maps[name] for name in used} and "members" in used


def test_access_through_anonymous_members_and_arrays() -> None:
    local, kernel = btf_text.Writer(), btf_text.Writer()
    number, wide = local.integer(4), kernel.integer(4)
    local.structure("thing___old", 8, [("b", number, 0), ("list", local.array(number, 4), 32)])
    inner = kernel.structure("", 8, [("a", wide, 0), ("b", wide, 32)], btf.UNION)
    kernel.structure("thing", 64, [("", inner, 64), ("list", kernel.array(wide, 9), 256)])
    mine, theirs = btf.Btf(local.blob()), btf.Btf(kernel.blob())
    thing = mine.find("thing___old", (btf.STRUCT,))
    assert btf.resolve(mine, theirs, thing, "0:0", btf.FIELD_OFFSET) == 12
    assert btf.resolve(mine, theirs, thing, "0:1:3", btf.FIELD_OFFSET) == 32 + 12
    assert btf.resolve(mine, theirs, thing, "0:1", btf.FIELD_SIZE) == 36
    assert btf.resolve(mine, theirs, thing, "1:0", btf.FIELD_OFFSET) == 64 + 12
    assert btf.resolve(mine, theirs, thing, "0:0", btf.FIELD_EXISTS) == 1
    local.structure("gone", 4, [("x", number, 0)])
    mine = btf.Btf(local.blob())
    gone = mine.find("gone", (btf.STRUCT,))
    assert btf.resolve(mine, theirs, gone, "0:0", btf.FIELD_EXISTS) == 0
    with pytest.raises(btf.NoSuchField, match="no struct gone"):
        btf.resolve(mine, theirs, gone, "0:0", btf.FIELD_OFFSET)


def test_damaged_files_are_refused() -> None:
    data = Path(ebpf.OBJECT).read_bytes()
    for bad in (b"", b"\x7fELF", data[:100], data[: len(data) // 2], b"\x7fELF\x01\x01" + data[6:]):
        with pytest.raises(ValueError):
            ObjectFile(bad)
    for bad in (b"", b"\x9f\xeb", b"\x00" * 64, struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 400, 400, 4)):
        with pytest.raises(ValueError, match="BTF"):
            btf.Btf(bad)


def test_random_damage_never_surprises() -> None:
    """ValueError or a result; the kernel checks the rest."""
    random.seed(5)
    data = Path(ebpf.OBJECT).read_bytes()
    kernel, _values = btf_text.read(KERNELS[0].read_text())
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(20):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            read = ObjectFile(bytes(damaged))
        except ValueError:
            continue
        for name in read.programs:
            try:
                read.instructions(name, kernel, dict.fromkeys(read.maps, 0))
            except (ValueError, KeyError, IndexError, struct.error, RecursionError):
                break


# ---------------------------------------------------------------- what both sides must agree on


def members(source: ObjectFile, name: str) -> list[tuple[str, int, int]]:
    """Name, offset and size in bytes."""
    types = source.btf
    structure = types.find(name, (btf.STRUCT,))
    return [(member, offset // 8, types.size(of)) for member, of, offset in types.members(structure)]


def test_layout_of_events(source: ObjectFile) -> None:
    *fields, text = members(source, "event")
    names = ("type l1 l2 l3", "pid ppid tgid tid uid nr", "time start result a b", "aux count", "comm")
    sizes = [size for size, group in zip((2, 4, 8, 4, 16), names, strict=True) for _ in group.split()]
    assert [(name, size) for name, _offset, size in fields] == list(zip(" ".join(names).split(), sizes, strict=True))
    assert [offset for _name, offset, _size in fields] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert decode.HEADER.format == "<4H4IIiQQqQQII16s"
    assert text[0] == "text" and text[1] == decode.HEADER.size == 96


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("slot", ebpf._SLOT),
        ("place", ebpf._PLACE),
        ("seed", ebpf._SEED),
        ("opened", ebpf._OPENED),
        ("repeats", ebpf._REPEATS),
    ],
)
def test_layout_of_map_values(source: ObjectFile, name: str, packed: struct.Struct) -> None:
    fields = members(source, name)
    assert sum(size for _name, _offset, size in fields) == packed.size
    letters = packed.format.lstrip("<")
    expanded = "".join(letters)
    assert [size for _name, _offset, size in fields] == [struct.calcsize(letter) for letter in expanded]


def test_sizes_of_maps(source: ObjectFile) -> None:
    for name, spec in ebpf._specs().items():
        declared = source.maps[name]
        assert (spec.key_size, spec.value_size, spec.max_entries) == (
            declared.key_size,
            declared.value_size,
            declared.max_entries,
        ), name
    assert source.maps["rings"].inner is not None and source.maps["rings"].inner.type == 27


def test_handlers_and_calls(source: ObjectFile) -> None:
    assert set(calls.HANDLERS.values()) | set(ebpf.ATTACHED) == set(source.programs)
    rows = calls.rows()
    assert len({key for key, _value in rows}) == len(rows)
    assert all(struct.unpack("<I", key)[0] < source.maps["calls"].max_entries for key, _value in rows)
    walker = {number for number, name in calls.HANDLERS.items() if name == "do_walk"}
    assert {value[0] for _key, value in rows} == set(calls.HANDLERS) - walker
    defined = re.search(r"#define DO_WALK (\d+)", (ROOT / "src/membrane/bpf/trace.bpf.c").read_text())
    assert defined and {int(defined[1])} == walker


# ---------------------------------------------------------------- the build


def test_a_rebuild_gives_the_same(source: ObjectFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same instructions, compared for a kernel that is not here; as root also the tags that this kernel gives."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    hook = load_hook()
    output = tmp_path / "again.o"
    assert hook.compile_object(str(ROOT), str(output))
    again = ObjectFile(output.read_bytes())
    kernel, _values = btf_text.read(KERNELS[-1].read_text())
    assert relocated(again, kernel) == relocated(source, kernel)
    assert str(ROOT).encode() not in output.read_bytes()
    if os.geteuid() == 0:
        types = programs.kernel_types()
        tags = []
        for item in (source, again):
            loaded = programs.load(item, types)
            tags.append({name: programs.program_info(fd)[1] for name, fd in loaded.programs.items()})
            loaded.close()
        assert tags[0] == tags[1] and len(tags[0]) == len(source.programs)


class Interface:
    """What hatchling gives to a hook, as far as ours looks at it."""

    root = ""
    target_name = "wheel"

    def __class_getitem__(cls, _item: object) -> type:
        return cls

    @property
    def app(self) -> Interface:
        return self

    def display_warning(self, text: str) -> None:
        self.warnings = [*getattr(self, "warnings", []), text]


def load_hook():  # type: ignore[no-untyped-def]
    import importlib.util
    import types

    # hatchling is the build's, not ours: the hook's base class is all that it takes from there
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        sys.modules.setdefault(name, types.ModuleType(name))
    interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = Interface  # type: ignore[attr-defined]
    sys.modules[interface.__name__] = interface
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_compiler_the_package_is_built_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = load_hook()
    monkeypatch.setattr(hook, "compiler", lambda: None)
    native = tmp_path / "src" / "membrane" / "bpf"
    native.mkdir(parents=True)
    built = hook.CustomBuildHook()
    built.root = str(tmp_path)
    data: dict[str, list[str]] = {"artifacts": []}
    built.initialize("standard", data)
    assert data == {"artifacts": []} and list(native.iterdir()) == []
    assert built.warnings == ["no clang and no ziglang: built without tracing programs"]
