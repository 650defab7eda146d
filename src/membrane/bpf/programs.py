"""Loading tracing programs: object file, maps, relocation, bpf(2), ring buffers.

Theory of operation
-------------------
``ObjectFile`` reads what the compiler wrote (ELF, BTF-defined maps, CO-RE records) and gives the instructions of a
program for one kernel and one set of maps.  It needs no privileges.  ``load`` makes the maps and programs of an object
in the running kernel; ``pin`` and ``reuse`` keep them in a BPF file system between runs, which saves the verifier's
time.  All descriptors are close-on-exec: the kernel makes every BPF descriptor so.

An instruction whose field this kernel lacks becomes a call that the verifier refuses when it can be reached (as libbpf
does it), so programs can ask whether a field exists.

``Ring`` maps a ring buffer.  Page 0 holds the reader's position, page 1 the writer's, then the data, mapped twice in a
row, so that no record wraps.  A record is a word of length with two flag bits, a word for the kernel, and the payload,
rounded up to 8.  ``span`` gives all finished records as one piece of memory; reading them is for later and others.

Format: bpf(2), uapi/linux/bpf.h, kernel/bpf/ringbuf.c.
"""

from __future__ import annotations

import _thread
import errno
import mmap
import os
import struct

from ..errors import HostError
from ..host import ffi as ctypes
from ..host import syscalls as sc
from . import btf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

VMLINUX = "/sys/kernel/btf/vmlinux"

# enum bpf_cmd
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT_KEY, _PROG_LOAD, _OBJ_PIN, _OBJ_GET = range(8)
_OBJ_INFO, _RAW_TRACEPOINT_OPEN, _LINK_BY_ID = 15, 17, 30
_MAP_FREEZE, _MAP_LOOKUP_BATCH, _MAP_UPDATE_BATCH, _MAP_DELETE_BATCH = 22, 24, 26, 27
_READ_ONLY = 1 << 3  # BPF_F_RDONLY
_TRACING, _TRACE_RAW_TP = 26, 23  # BPF_PROG_TYPE_TRACING, attach type BPF_TRACE_RAW_TP
_MAP_OF_MAPS = (12, 13)
_NAME_LENGTH = 15
_ENOTSUPP = 524  # include/linux/errno.h: this type of map has no batches
_LOG_LENGTH = 1 << 20

_POISON = struct.pack("<BBhi", 0x85, 0, 0, 0xBAD2310)  # a call of a helper that does not exist
_LOAD_64 = 0x18  # BPF_LD | BPF_IMM | BPF_DW: takes two slots
_PSEUDO_MAP_FD = 1


class MapSpec:
    """A map as the object declares it."""

    def __init__(self, name: str, fields: dict[str, int], inner: MapSpec | None) -> None:
        self.name, self.inner = name, inner
        self.type = fields.get("type", 0)
        self.key_size = fields.get("key_size", 0)
        self.value_size = fields.get("value_size", 0)
        self.max_entries = fields.get("max_entries", 0)
        self.flags = fields.get("map_flags", 0)


class ProgramSpec:
    """A program as the compiler wrote it, before relocation."""

    def __init__(self, name: str, section: str, code: bytes) -> None:
        self.name, self.section, self.code = name, section, code
        self.maps: list[tuple[int, str]] = []  # byte offset of the instruction, map
        self.fields: list[tuple[int, int, str, int]] = []  # byte offset, type, access, kind

    @property
    def tracepoint(self) -> str:
        """What it is attached to; empty for another kind of program."""
        return self.section[len("tp_btf/") :] if self.section.startswith("tp_btf/") else ""


class ObjectFile:
    """A compiled object.

    Raises:
        ValueError: it is not what clang makes for the target bpf.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._read(data)
        except (struct.error, IndexError, StopIteration, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"not a BPF object file: {error!r}") from None

    def _read(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a BPF object file: no 64-bit little-endian ELF")
        (table,) = struct.unpack_from("<Q", data, 40)
        entry, count, names_in = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + number * entry) for number in range(count)]

        def text(at: int) -> str:
            return data[at : data.index(b"\0", at)].decode()

        def body(number: int) -> bytes:
            return data[headers[number][4] : headers[number][4] + headers[number][5]]

        names = [text(headers[names_in][4] + header[0]) for header in headers]
        symbol_table = next(number for number, header in enumerate(headers) if header[1] == 2)  # SHT_SYMTAB
        strings = headers[headers[symbol_table][6]][4]
        symbols = [
            (text(strings + name), information, section, value, size)
            for name, information, _other, section, value, size in struct.iter_unpack("<IBBHQQ", body(symbol_table))
        ]
        self.license = body(names.index("license")).split(b"\0")[0] + b"\0"
        self.btf = btf.Btf(body(names.index(".BTF")))
        self.maps = {spec.name: spec for spec in self._map_specs()}
        fields = self._field_records(body(names.index(".BTF.ext")))
        maps = {
            header[7]: [
                (at, symbols[information >> 32][0]) for at, information in struct.iter_unpack("<QQ", body(number))
            ]
            for number, header in enumerate(headers)
            if header[1] == 9  # SHT_REL
        }
        self.programs: dict[str, ProgramSpec] = {}
        for name, information, section, start, size in symbols:
            if information & 15 != 2 or section >= count or not headers[section][2] & 4:  # STT_FUNC in SHF_EXECINSTR
                continue
            program = ProgramSpec(name, names[section], body(section)[start : start + size])
            program.maps = [(at - start, target) for at, target in maps.get(section, ()) if start <= at < start + size]
            program.fields = [
                (at - start, type_id, access, kind)
                for at, type_id, access, kind in fields.get(names[section], ())
                if start <= at < start + size
            ]
            self.programs[name] = program

    def _map_specs(self) -> Iterator[MapSpec]:
        types = self.btf
        section = types.find(".maps", (btf.SECTION,))
        at = types.at(section)
        for number in range(types.words[at + 1] & 0xFFFF):
            variable = types.words[at + 3 + 3 * number]
            yield self._map_spec(types.name(variable), types.strip(types.target(variable)))

    def _map_spec(self, name: str, structure: int) -> MapSpec:
        types = self.btf
        fields: dict[str, int] = {}
        inner = None
        for field, member, _offset in types.members(structure):
            target = types.strip(types.target(types.strip(member)))
            if field in ("key", "value"):
                fields[field + "_size"] = types.size(target)
            elif field == "values":  # an array of pointers to the declaration of the inner map
                pointer = types.array(types.strip(member))[0]
                inner = self._map_spec(name, types.strip(types.target(types.strip(pointer))))
            else:
                fields[field] = types.array(target)[1]
        return MapSpec(name, fields, inner)

    def _field_records(self, data: bytes) -> dict[str, list[tuple[int, int, str, int]]]:
        """CO-RE records by section: .BTF.ext, struct btf_ext_header and bpf_core_relo."""
        (header,) = struct.unpack_from("<I", data, 4)
        if header < 32:
            return {}
        offset, length = struct.unpack_from("<II", data, 24)
        position, end = header + offset, header + offset + length
        out: dict[str, list[tuple[int, int, str, int]]] = {}
        if not length:
            return out
        (record,) = struct.unpack_from("<I", data, position)
        position += 4
        while position < end:
            section, number = struct.unpack_from("<II", data, position)
            position += 8
            records = out.setdefault(self.btf.string(section), [])
            for _ in range(number):
                at, type_id, access, kind = struct.unpack_from("<IIII", data, position)
                records.append((at, type_id, self.btf.string(access), kind))
                position += record
        return out

    def instructions(self, name: str, kernel: btf.Btf, maps: Mapping[str, int]) -> tuple[bytes, list[str]]:
        """The program for one kernel, and the fields that this kernel lacks.

        Args:
            maps: descriptor of each map by name.
        """
        program = self.programs[name]
        code = bytearray(program.code)
        missing = []
        for at, target in program.maps:
            code[at + 1] = code[at + 1] & 15 | _PSEUDO_MAP_FD << 4
            struct.pack_into("<I", code, at + 4, maps[target])
        for at, type_id, access, kind in program.fields:
            try:
                value = btf.resolve(self.btf, kernel, type_id, access, kind)
            except btf.NoSuchField as error:
                missing.append(str(error))
                code[at : at + 8] = _POISON
                continue
            kind_of = code[at] & 7
            if code[at] == _LOAD_64 or kind_of in (4, 7):  # an immediate value: BPF_ALU, BPF_ALU64
                struct.pack_into("<i", code, at + 4, value)
            elif kind_of in (1, 2, 3):  # an offset: BPF_LDX, BPF_ST, BPF_STX
                struct.pack_into("<h", code, at + 2, value)
            else:
                raise ValueError(f"{name}: a relocation of instruction {code[at]:#x}")
        return bytes(code), missing


# ---------------------------------------------------------------- the kernel's side


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, max(1, len(data)))


def _create_map(spec: MapSpec, inner: int = 0) -> int:
    attributes = struct.pack(
        "<7I16sI",
        spec.type,
        spec.key_size,
        spec.value_size,
        spec.max_entries,
        spec.flags,
        inner,
        0,
        spec.name.encode()[:_NAME_LENGTH],
        0,
    )
    return sc.bpf(_MAP_CREATE, attributes)


class Map:
    """A map of the running kernel; it owns its descriptor."""

    def __init__(self, fd: int, spec: MapSpec) -> None:
        self.fd, self.spec = fd, spec

    @classmethod
    def create(cls, spec: MapSpec) -> Self:
        """BPF_MAP_CREATE.

        Raises:
            OSError: as bpf(2).
        """
        if spec.type not in _MAP_OF_MAPS or spec.inner is None:
            return cls(_create_map(spec), spec)
        inner = _create_map(spec.inner)
        try:
            return cls(_create_map(spec, inner), spec)
        finally:
            os.close(inner)

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None = None) -> None:
        keys = _buffer(key)
        address = ctypes.addressof(value) if value is not None else 0
        sc.bpf(command, struct.pack("<IIQQQ", self.fd, 0, ctypes.addressof(keys), address, 0))

    def set(self, key: bytes, value: bytes) -> None:
        """BPF_MAP_UPDATE_ELEM.

        Raises:
            OSError: as bpf(2).
        """
        self._element(_MAP_UPDATE, key, _buffer(value))

    def get(self, key: bytes, size: int = 0) -> bytes | None:
        """BPF_MAP_LOOKUP_ELEM: the value, ``size`` bytes of it if it is one per processor; None: no such key."""
        value = _buffer(bytes(size or self.spec.value_size))
        try:
            self._element(_MAP_LOOKUP, key, value)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def delete(self, key: bytes) -> bool:
        """BPF_MAP_DELETE_ELEM: whether there was one."""
        try:
            self._element(_MAP_DELETE, key)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def set_many(self, items: list[tuple[bytes, bytes]]) -> None:
        """BPF_MAP_UPDATE_BATCH (Linux 5.6); one by one where this type of map has none.

        Changing a map of maps waits until no running program can see the old one; a batch waits once.

        Raises:
            OSError: as bpf(2).
        """
        values = _buffer(b"".join(value for _, value in items))
        if not self._batch(_MAP_UPDATE_BATCH, [key for key, _ in items], ctypes.addressof(values)):
            for key, value in items:
                self.set(key, value)

    def delete_many(self, keys: list[bytes]) -> None:
        """BPF_MAP_DELETE_BATCH of keys that are there (Linux 5.6), or one by one.

        Raises:
            OSError: as bpf(2).
        """
        if not self._batch(_MAP_DELETE_BATCH, keys, 0):
            for key in keys:
                self.delete(key)

    def _batch(self, command: int, keys: list[bytes], values: int) -> bool:
        names = _buffer(b"".join(keys))
        attributes = struct.pack("<QQQQIIQQ", 0, 0, ctypes.addressof(names), values, len(keys), self.fd, 0, 0)
        try:
            sc.bpf(command, attributes)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, _ENOTSUPP):
                return False
            raise
        return True

    def contents(self) -> tuple[bytes, bytes]:
        """BPF_MAP_LOOKUP_BATCH (Linux 5.6): what is in a hash map now, all keys and all values in the same order.

        Raises:
            OSError: as bpf(2).
        """
        spec = self.spec
        count = spec.max_entries
        keys, values = _buffer(bytes(count * spec.key_size)), _buffer(bytes(count * spec.value_size))
        place = _buffer(bytes(8))
        attributes = struct.pack(
            "<QQQQIIQQ",
            0,
            ctypes.addressof(place),
            ctypes.addressof(keys),
            ctypes.addressof(values),
            count,
            self.fd,
            0,
            0,
        )
        data = _buffer(attributes)
        try:
            sc.bpf_in_place(_MAP_LOOKUP_BATCH, data)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: that was all
                raise
        (found,) = struct.unpack_from("<I", data.raw, 32)
        return keys.raw[: found * spec.key_size], values.raw[: found * spec.value_size]

    def keys(self) -> Iterator[bytes]:
        """BPF_MAP_GET_NEXT_KEY; at most as many as the map can hold, whatever happens to it meanwhile."""
        key: bytes | None = None
        for _ in range(self.spec.max_entries):
            found = _buffer(bytes(self.spec.key_size))
            before = _buffer(key) if key is not None else None
            address = ctypes.addressof(before) if before is not None else 0
            try:
                sc.bpf(_MAP_NEXT_KEY, struct.pack("<IIQQ", self.fd, 0, address, ctypes.addressof(found)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            key = found.raw
            yield key

    def freeze(self) -> None:
        """BPF_MAP_FREEZE: user space cannot change it any more, whichever process holds it."""
        sc.bpf(_MAP_FREEZE, struct.pack("<I", self.fd))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_ring(size: int) -> int:
    """A ring buffer of ``size`` bytes, a power of two of at least a page: its descriptor.

    Raises:
        OSError: as bpf(2).
    """
    return _create_map(MapSpec("ring", {"type": 27, "max_entries": size}, None))


def _load_program(spec: ProgramSpec, code: bytes, license_name: bytes, target: int, log: bool) -> int:
    instructions, license_text = _buffer(code), _buffer(license_name)
    text = _buffer(bytes(_LOG_LENGTH if log else 0))
    attributes = struct.pack(
        "<IIQQIIQII16sIIIIQIIQII",
        _TRACING,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(license_text),
        int(log),
        _LOG_LENGTH if log else 0,
        ctypes.addressof(text) if log else 0,
        0,
        0,
        spec.name.encode()[:_NAME_LENGTH],
        0,
        _TRACE_RAW_TP,
        *(0,) * 7,
        target,
    )
    try:
        return sc.bpf_long(_PROG_LOAD, attributes)
    except OSError as error:
        if log:
            words = text.value.decode(errors="replace").strip().splitlines()
            raise OSError(error.errno, " | ".join(words[-3:])[-400:] or os.strerror(error.errno or 0)) from None
        if error.errno in (errno.EINVAL, errno.EACCES):
            return _load_program(spec, code, license_name, target, True)
        raise


class Loaded:
    """Maps and programs in the kernel; owns their descriptors."""

    def __init__(self) -> None:
        self.maps: dict[str, Map] = {}
        self.programs: dict[str, int] = {}

    def close(self) -> None:
        for item in self.maps.values():
            item.close()
        for fd in self.programs.values():
            os.close(fd)
        self.maps, self.programs = {}, {}


def kernel_types(path: str = VMLINUX) -> btf.Btf:
    """The types of the running kernel.

    Raises:
        HostError: it publishes none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return btf.Btf(file.read())
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise HostError(
            "read the kernel's types",
            cause or "",
            target=path,
            fix=("use a kernel built with CONFIG_DEBUG_INFO_BTF, as the distributions' are",),
        ) from None


def load(source: ObjectFile, kernel: btf.Btf) -> Loaded:
    """Make all maps and programs of an object.

    The verifier works on one processor for one program: so each has a thread, the largest first.

    Raises:
        HostError: the kernel refused one; says which, and the verifier's last lines.
    """
    out = Loaded()
    what = ""
    attempts: list[_Attempt] = []
    try:
        for name, spec in source.maps.items():
            what = f"the map {name}"
            out.maps[name] = Map.create(spec)
        descriptors = {name: item.fd for name, item in out.maps.items()}
        for name, program in sorted(source.programs.items(), key=lambda item: -len(item[1].code)):
            what = f"the program {name}"
            target = kernel.find("btf_trace_" + program.tracepoint, (btf.TYPEDEF,)) if program.tracepoint else 0
            if not target:
                raise OSError(errno.ENOENT, f"this kernel has no tracepoint {program.section}")
            code, missing = source.instructions(name, kernel, descriptors)
            attempts.append(_Attempt(program, code, source.license, target, missing))
        for attempt in attempts:
            what = f"the program {attempt.name}"
            out.programs[attempt.name] = attempt.result()
    except OSError as error:
        for attempt in attempts:
            attempt.give_up(out.programs)
        out.close()
        raise refused(f"load {what} into the kernel", error) from None
    return out


class _Attempt:
    """One program that is being loaded."""

    def __init__(self, spec: ProgramSpec, code: bytes, license_name: bytes, target: int, missing: list[str]) -> None:
        self.name, self._missing = spec.name, missing
        self._fd = -1
        self._error: OSError | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._load, (spec, code, license_name, target))

    def _load(self, spec: ProgramSpec, code: bytes, license_name: bytes, target: int) -> None:
        try:
            self._fd = _load_program(spec, code, license_name, target, False)
        except OSError as error:
            self._error = error
        except BaseException as error:  # it would be lost else
            self._error = OSError(errno.EINVAL, repr(error))
        finally:
            self._done.release()

    def result(self) -> int:
        """Wait for it: the descriptor.

        Raises:
            OSError: as bpf(2), with the fields that this kernel lacks.
        """
        with self._done:
            error = self._error
        if error is None:
            return self._fd
        if self._missing:
            raise OSError(error.errno, f"{error.strerror} ({', '.join(sorted(set(self._missing)))})")
        raise error

    def give_up(self, taken: dict[str, int]) -> None:
        with self._done:
            if self._fd >= 0 and self.name not in taken:
                os.close(self._fd)


def refused(tried: str, error: OSError, target: str = "") -> HostError:
    """``error`` of bpf(2) as a ``HostError`` with what can be done about it."""
    fix: tuple[str, ...] = ()
    if error.errno in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        fix = ("run as root, or with CAP_BPF and CAP_PERFMON", "sudo membrane setup tracing")
    elif error.errno == errno.ENOSYS:
        fix = ("use a kernel with CONFIG_BPF_SYSCALL",)
    cause = (error.strerror or os.strerror(error.errno or 0)).removeprefix("bpf: ")
    return HostError(tried, cause, target=target, fix=fix)


def attach(program: int) -> int:
    """BPF_RAW_TRACEPOINT_OPEN of a program that knows its tracepoint: the link's descriptor.

    Raises:
        OSError: as bpf(2).
    """
    return sc.bpf(_RAW_TRACEPOINT_OPEN, struct.pack("<QII", 0, program, 0))


def link_by_id(number: int) -> int:
    """BPF_LINK_GET_FD_BY_ID (CAP_SYS_ADMIN): a descriptor of a link that another process holds.

    Raises:
        OSError: ENOENT: no process holds it any more.
    """
    return sc.bpf(_LINK_BY_ID, struct.pack("<III", number, 0, 0))


def link_info(link: int) -> tuple[int, int]:
    """BPF_OBJ_GET_INFO_BY_FD of a link: its number and its program's number."""
    info = _buffer(bytes(64))
    sc.bpf(_OBJ_INFO, struct.pack("<IIQ", link, 64, ctypes.addressof(info)))
    _type, number, program = struct.unpack_from("<III", info.raw)
    return number, program


def program_info(program: int) -> tuple[int, str]:
    """BPF_OBJ_GET_INFO_BY_FD of a program: its number and the tag that the kernel computed over its instructions."""
    info = _buffer(bytes(64))
    sc.bpf(_OBJ_INFO, struct.pack("<IIQ", program, 64, ctypes.addressof(info)))
    _type, number, tag = struct.unpack_from("<II8s", info.raw)
    return number, tag.hex()


def map_number(fd: int) -> int:
    """BPF_OBJ_GET_INFO_BY_FD of a map: its number, which a map of maps answers with."""
    info = _buffer(bytes(64))
    sc.bpf(_OBJ_INFO, struct.pack("<IIQ", fd, 64, ctypes.addressof(info)))
    return int(struct.unpack_from("<I", info.raw, 4)[0])


def pin(fd: int, path: str) -> None:
    """BPF_OBJ_PIN: a name in a BPF file system keeps the object.

    Raises:
        OSError: as bpf(2).
    """
    name = _buffer(os.fsencode(path) + b"\0")
    sc.bpf(_OBJ_PIN, struct.pack("<QII", ctypes.addressof(name), fd, 0))


def reuse(path: str, *, read_only: bool = False) -> int:
    """BPF_OBJ_GET: a descriptor of what was pinned; only maps can be had ``read_only``.

    Raises:
        OSError: as bpf(2).
    """
    name = _buffer(os.fsencode(path) + b"\0")
    return sc.bpf(_OBJ_GET, struct.pack("<QII", ctypes.addressof(name), 0, _READ_ONLY if read_only else 0))


# ---------------------------------------------------------------- ring buffers

_BUSY, _LENGTH = 0x80000000, 0x3FFFFFFF
_TRIES = 8  # to find a moment at which no record is half written; one takes a writer about a microsecond


class Words:
    """An array map of 64-bit words that can be mapped, read without a system call.

    Raises:
        OSError: mmap(2).
    """

    def __init__(self, fd: int, length: int) -> None:
        self._memory = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ)
        self._view = memoryview(self._memory).cast("Q")

    def __getitem__(self, index: int) -> int:
        return self._view[index]

    def close(self) -> None:
        self._view.release()
        self._memory.close()


class Ring:
    """The reader of one ring buffer.  ``size``: as it was made.

    Raises:
        OSError: mmap(2).
    """

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self.fd, self.size = fd, size
        self._reader_page = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._writer_page = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._read_to = memoryview(self._reader_page).cast("Q")
        self._memory = memoryview(self._writer_page)
        self._written_to = self._memory[:page].cast("Q")
        self._data = self._memory[page:]
        self._words = self._data.cast("I")

    @property
    def written(self) -> int:
        """The writer's position: bytes since the ring was made, of half written records as well."""
        return self._written_to[0]

    def ready(self, finished: Callable[[], int] | None = None) -> memoryview:
        """All finished records that were not released yet, as they are; call ``release`` with its length after use.

        Args:
            finished: how much was finished at the moment, in the writer's positions.  What was counted as finished and
                is, a moment later, all that was ever begun has no gap: then no record has to be looked at.
        """
        begin = self._read_to[0]
        base = begin % self.size
        if finished is not None:
            for _ in range(_TRIES):
                done = finished()
                if self._written_to[0] == done:
                    return self._data[base : base + (done - begin)]
        end = self._written_to[0]
        # in words of 4 bytes; the data is mapped twice, so that nothing wraps
        at, limit, words = base >> 2, base + (end - begin) >> 2, self._words
        while at < limit:
            length = words[at]
            if length > _LENGTH:
                if length & _BUSY:
                    break
                length &= _LENGTH  # discarded
            at += (length + 15 >> 3) << 1
        position = at << 2
        return self._data[base:position]

    def release(self, length: int) -> None:
        """Give the first ``length`` bytes back to the kernel."""
        self._read_to[0] += length

    def close(self) -> None:
        """Unmap it and close the descriptor."""
        for view in (self._words, self._data, self._written_to, self._memory, self._read_to):
            view.release()
        self._writer_page.close()
        self._reader_page.close()
        os.close(self.fd)
