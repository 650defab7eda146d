"""Spans of the kernel's ring buffers, decoded into events.

Theory of operation
-------------------
``EbpfSource.drain`` stores records as the kernel wrote them (``bpf/wire.h``); this module reads them, any time
later and anywhere.  It is pure.  A piece of stored data is a row of records; each begins with its length.  Between the
kernel's records stand our own: how to turn the kernel's clock into the time of day (first in every piece, so that each
piece can be read alone), what was lost, and the counts of repeated opens.

Everything in a record comes from inside a sandbox: lengths are bounded by slices, unknown records are passed over, a
torn record at the end stops the reading and is reported by ``Decoder.torn``.

A successful open has the path as the kernel resolved it.  All else has the path that the caller wrote, made absolute
with its base directory; symbolic links in it are not resolved.  Both as the caller's root directory sees them.  One
that begins with ``…/`` is deeper than is walked.

``Decoder`` remembers which program each process runs, from fork and exec; with one decoder over all pieces of a
session in order, ``Process.exe`` is known for every event.
"""

from __future__ import annotations

import errno
import struct

from ..clock import iso
from ..events import (
    AccessDenied,
    EventsLost,
    FileChanged,
    FileCreated,
    FileOpened,
    FileRemoved,
    FileRenamed,
    Process,
    ProcessExited,
    ProcessStarted,
    SocketCalled,
)
from .calls import NAMES
from .changes import CHANGES, new_value
from .contained import served
from .spans import CLOCK, CLOCK_RECORD, LOST, LOST_KINDS, LOST_RECORD, REPEATED, REPEATED_RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from ..events import Event

HEADER: Final = struct.Struct("<4H4IIiQQqQQII16s")
FORK, EXEC, EXIT, OPEN, PATH, PATH2, SOCKET, SEND, EXEC_FAILED, CALL = range(1, 11)

_TICK = 10_000_000  # ns of one clock tick of proc(5): USER_HZ is 100 on x86_64
_MOST_KEPT = 1 << 14  # entries of each cache
_DISCARDED, _BUSY, _LENGTH = 0x40000000, 0x80000000, 0x3FFFFFFF
_SOCKET = struct.Struct("<3H")  # family, port of the other end, own port (struct endpoint)
_ENDPOINT = 64  # where the address of a call begins in SOCKET and SEND
_PEER4, _PEER6 = 12, 20  # in struct endpoint
_CONNECTED = (0, -errno.EINPROGRESS, -errno.EINTR)  # results of connect(2) after which a socket has another end

_ACCESS = ("rdonly", "wronly", "rdwr", "")
# asm-generic/fcntl.h, as x86_64 has it; close-on-exec is the descriptor's and not reported
_FLAGS = (
    (0o100, "creat"),
    (0o200, "excl"),
    (0o1000, "trunc"),
    (0o2000, "append"),
    (0o4000, "nonblock"),
    (0o40000, "direct"),
    (0o200000, "directory"),
    (0o400000, "nofollow"),
    (0o10000000, "path"),
    (0o20000000, "tmpfile"),
)
_FAMILIES = {0: "unspec", 1: "unix", 2: "inet", 10: "inet6", 16: "netlink", 17: "packet", 38: "alg", 40: "vsock"}
_TYPES = {0o010000: "fifo", 0o020000: "device", 0o060000: "device", 0o140000: "socket"}  # S_IFMT
_AT_REMOVEDIR = 0x200
_PLACED = (FileOpened, FileCreated, FileRemoved, FileRenamed, FileChanged)
_CHANGES = 0o1303  # O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC: such an open is reported once per process (trace.bpf.c)
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10


def _by_time(record: tuple[tuple[Any, ...], int, int]) -> int:
    return int(record[0][10])


def decode(data: bytes, decoder: Decoder | None = None) -> Iterator[tuple[int, Event, Process]]:
    """The events of one stored piece: time of day in ns, event, process.  Never raises.

    In the order of time within each draining of the rings.
    """
    return (decoder or Decoder()).decode(data)


class Decoder:
    """Reads the pieces of one session in order.

    Args:
        workspace: paths that are not below it are reported as outside; empty: nothing is.

    Attributes:
        torn: bytes at the end of the last piece that are no whole record.
        unknown: records that were passed over because they are of no known type or too short.
    """

    def __init__(self, workspace: str = "") -> None:
        self._workspace = workspace.rstrip("/") + "/" if workspace else ""
        self.torn = 0
        self.unknown = 0
        self._offset = 0
        self._programs: dict[int, str] = {}  # pid: path
        self._containers: dict[int, str] = {}  # pid: container that it is in, or with "+" the engine's process for
        self._processes: dict[tuple[int, int, bytes], Process] = {}
        self._paths: dict[bytes, str] = {}
        self._flags: dict[int, tuple[str, ...]] = {}
        self._opened: dict[tuple[int, int, int, int], tuple[str, Process]] = {}

    def decode(self, data: bytes) -> Iterator[tuple[int, Event, Process]]:
        """As the function."""
        position, end = 0, len(data)
        length_at, header_at, header_size = struct.Struct("<I").unpack_from, HEADER.unpack_from, HEADER.size
        pending: list[tuple[tuple[Any, ...], int, int]] = []
        self.torn = 0
        while position < end:
            if end - position < 8:
                self.torn = end - position
                break
            (word,) = length_at(data, position)
            length = word & _LENGTH
            start = position + 8
            stop = start + length
            if word & _BUSY or stop > end:
                self.torn = end - position
                break
            position = start + ((length + 7) & ~7)
            if word & _DISCARDED:
                continue
            if length >= header_size:
                pending.append((header_at(data, start), start + header_size, stop))
                continue
            # one of ours: what was drained before it comes first
            yield from self._in_order(data, pending)
            pending = []
            own = self._own(data[start:stop])
            if own is not None:
                yield own
        yield from self._in_order(data, pending)

    def _in_order(
        self, data: bytes, pending: list[tuple[tuple[Any, ...], int, int]]
    ) -> Iterator[tuple[int, Event, Process]]:
        """The records of one draining, which come ring after ring: an exec must be read before the opens after it."""
        pending.sort(key=_by_time)
        processes, paths, all_flags, opened = self._processes, self._paths, self._flags, self._opened
        programs, containers = self._programs, self._containers
        offset, workspace, length = self._offset, self._workspace, len(self._workspace)
        # ``Value`` checks the names of its fields, which is half of the time of an event
        new, template = FileOpened.__new__, FileOpened("", ()).__dict__
        for fields, text, stop in pending:
            kind, l1, l2, l3, pid, ppid, tgid, _tid, _uid, _nr, time, begun, result, a, b, aux, count, comm = fields
            if kind == FORK:
                if len(programs) < _MOST_KEPT:
                    programs[aux] = programs.get(pid, "")
                if pid in containers and len(containers) < _MOST_KEPT:
                    containers[aux] = containers[pid].lstrip("+")
                continue
            key = (pid, begun, comm)
            executed = None
            if kind == EXEC:
                executed = self._executed(l1, l2, l3, bool(a), pid, ppid, data[text:stop])
                process = self._process(key)  # with the program that it has now
            else:
                process = processes.get(key) or self._process(key)
            if kind == OPEN and result >= 0:  # the most frequent one, spelled out
                raw = data[text : min(text + l1, stop)]
                path = paths.get(raw)
                if path is None:
                    path = self._walked(raw)
                flags = all_flags.get(aux)
                if flags is None:
                    flags = self._flag_names(aux)
                if len(opened) >= _MOST_KEPT:
                    opened.clear()
                opened[b & 0xFFFFFFFF, a, aux, tgid if aux & _CHANGES else 0] = (path, process)
                outside = bool(workspace) and path[:length] != workspace and self._is_outside(path)
                found = new(FileOpened)
                found.__dict__.update(template, path=path, flags=flags, count=count, outside_workspace=outside)
                yield time + offset, found, process
                continue
            event = executed or self._event(fields, data[text:stop])
            if workspace and isinstance(event, _PLACED) and self._is_outside(event.path, getattr(event, "to", "")):
                event = event.replace(outside_workspace=True)
            if event is not None:
                yield time + offset, event, process
            if kind == EXIT:
                programs.pop(pid, None)
                containers.pop(pid, None)
                processes.pop(key, None)

    def _is_outside(self, path: str, to: str = "") -> bool:
        """Is one of them known to be outside of the workspace?  A link's target may be relative, and a path cut."""
        return bool(self._workspace) and any(
            each.startswith("/") and not f"{each}/".startswith(self._workspace) for each in (path, to)
        )

    def _process(self, key: tuple[int, int, bytes]) -> Process:
        pid, begun, comm = key
        name = comm.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        container = self._containers.get(pid, "")
        if container[:1] == "+":
            container = ""
        process = Process(pid, begun // _TICK, name, self._programs.get(pid, ""), container)
        if len(self._processes) >= _MOST_KEPT:
            self._processes.clear()
        self._processes[key] = process
        return process

    def _own(self, payload: bytes) -> tuple[int, Event, Process] | None:
        """A record that user space put between the kernel's."""
        kind = struct.unpack_from("<H", payload)[0] if len(payload) >= 2 else 0
        unknown = Process(0, 0, "", "")
        if kind == CLOCK and len(payload) >= CLOCK_RECORD.size:
            self._offset = CLOCK_RECORD.unpack_from(payload)[4]
        elif kind == LOST and len(payload) >= LOST_RECORD.size:
            _type, what, _, _, count, first, last = LOST_RECORD.unpack_from(payload)
            name = LOST_KINDS[what] if what < len(LOST_KINDS) else "unknown"
            times = iso(first + self._offset), iso(last + self._offset)
            return last + self._offset, EventsLost(name, count, *times, source="ebpf"), unknown
        elif kind == REPEATED and len(payload) >= REPEATED_RECORD.size:
            *_, device, flags, inode, count, process, time = REPEATED_RECORD.unpack_from(payload)
            found = self._opened.get((device, inode, flags, process))
            if found:
                path, who = found
                outside = self._is_outside(path)
                event = FileOpened(path, self._flag_names(flags), outside_workspace=outside, count=count)
                return time + self._offset, event, who
        else:
            self.unknown += 1
        return None

    # ------------------------------------------------------------ one event

    def _event(self, fields: tuple[int, ...], text: bytes) -> Event | None:
        kind, l1, l2, l3, _pid, ppid, _tgid, _tid, _uid, nr, time, begun, result, a, b, aux, count, _comm = fields
        if kind == EXIT:
            return ProcessExited(result >> 8 & 0xFF, result & 0x7F, round((time - begun) / 1e6, 3), 0, "ebpf")
        name = NAMES.get(nr, f"call {nr}")
        failed = _errno_name(result)
        if kind in (OPEN, PATH, EXEC_FAILED):
            path = self._argued(text[:l1], text[l1 : l1 + l2])
            if kind == OPEN:
                return FileOpened(path, self._flag_names(aux), failed, count=count)
            if kind == EXEC_FAILED:
                return ProcessStarted(ppid, (), "", path, failed)
            if name in CHANGES:
                what = CHANGES[name].what
                return FileChanged(path, what, new_value(what, a, b), failed)
            return _changed(name, path, a, failed)
        if kind == PATH2:
            second, third = l1 + l2, l1 + l2 + l3
            old, new = text[:l1], text[l1:second]
            to = self._argued(new, text[third:])
            if name.startswith("symlink"):  # the target is text, not a name
                return FileCreated(to, "symlink", _text(old), failed)
            path = self._argued(old, text[second:third])
            if name in CHANGES:
                return FileChanged(path, CHANGES[name].what, _text(new), failed)
            if name.startswith("link"):
                return FileCreated(to, "link", path, failed)
            return FileRenamed(path, to, failed)
        if kind in (SOCKET, SEND):
            family, address, port = _address(text[_ENDPOINT : _ENDPOINT + l1])
            own_family, _peer_port, own_port = _SOCKET.unpack_from(text, 4) if len(text) >= 10 else (0, 0, 0)
            if name == "connect" and result in _CONNECTED and (peer := _peer(text[:_ENDPOINT])):
                family, address, port = peer  # the socket's own: the caller's memory may say something else by now
            if not family and own_family:
                family = _family(own_family)
            local = own_port if own_family in (_AF_INET, _AF_INET6) else 0
            return SocketCalled(name, family, address, port, failed, local_port=local)
        if kind == CALL:
            return AccessDenied({"kind": "SystemCall", "name": name}, failed, None, None, source="ebpf")
        self.unknown += 1
        return None

    def _executed(self, l1: int, l2: int, l3: int, script: bool, pid: int, ppid: int, text: bytes) -> Event:
        second, third = l1 + l2, l1 + l2 + l3
        known, inner, outer = self._paths, text[second:third], text[third:]
        cwd = known.get(inner) or self._walked(inner)
        program = known.get(outer) or self._walked(outer)
        arguments = text[l1:second].split(b"\0")
        if arguments and not arguments[-1]:
            arguments.pop()
        if program == "/":  # of a file without a name (memfd_create(2)): as it was asked for
            program = "/" + _text(text[:l1]).lstrip("/")
        path = program
        if script:
            path = _text(text[:l1])
            if not path.startswith("/"):
                path = join(cwd, path)
        if len(self._programs) < _MOST_KEPT:
            self._programs[pid] = program
        words = tuple([_text(word) for word in arguments])
        if (container := served(words)) and len(self._containers) < _MOST_KEPT:
            self._containers[pid] = f"+{container}"
        return ProcessStarted(ppid, words, cwd, path, "", False, "ebpf")

    def _walked(self, raw: bytes) -> str:
        """Names from the innermost outwards, each followed by a slash, as a path."""
        name, _, outer = raw.partition(b"/")
        if not outer:
            path = "/" + _text(name)
        else:
            above = self._paths.get(outer)
            path = f"{above if above is not None else self._walked_whole(outer)}/{_text(name)}"
        if len(self._paths) >= _MOST_KEPT:
            self._paths.clear()
        self._paths[raw] = path
        return path

    def _walked_whole(self, raw: bytes) -> str:
        names = raw.split(b"/")
        if not names[-1]:
            names.pop()
        names.reverse()
        start = "/"
        if names[:1] == [b"\0"]:  # deeper than the kernel's program walks
            del names[0]
            start = "…/"
        path = start + _text(b"/".join(names))
        self._paths[raw] = path
        return path

    def _argued(self, argument: bytes, base: bytes) -> str:
        """The path that was written, absolute."""
        path = _text(argument)
        if path.startswith("/"):
            return join("/", path)
        if not path and not base:
            return ""
        return join(self._walked(base), path)

    def _flag_names(self, flags: int) -> tuple[str, ...]:
        names = (_ACCESS[flags & 3], *(name for bit, name in _FLAGS if flags & bit))
        out = tuple(name for name in names if name)
        if len(self._flags) < _MOST_KEPT:
            self._flags[flags] = out
        return out


def join(base: str, path: str) -> str:
    """``path`` below ``base``, without empty and ``.`` components.

    ``..`` is resolved at the beginning of a relative path only, where it is exact: ``base`` holds no symbolic link.
    Above a base that is cut (``…/``) the result stays cut.
    """
    out = [part for part in base.split("/") if part]
    start = "" if base.startswith("…") else "/"
    leading = not path.startswith("/")
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and leading:
            if out and (start or len(out) > 1):  # what is above a cut is not known
                out.pop()
            continue
        leading = False
        out.append(part)
    return start + "/".join(out)


def count(data: bytes) -> int:
    """Whole events of the kernel in ``data``, without what they say: 0.2 µs each."""
    position = found = 0
    end, length_at, size = len(data) - 8, struct.Struct("<I").unpack_from, HEADER.size
    while position <= end:
        (word,) = length_at(data, position)
        length = word & _LENGTH
        if word & _BUSY or position + length > end:
            break
        found += not word & _DISCARDED and length >= size
        position += 8 + ((length + 7) & ~7)
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _errno_name(result: int) -> str:
    return "" if result >= 0 else errno.errorcode.get(-result, f"errno {-result}")


def _family(number: int) -> str:
    return _FAMILIES.get(number, str(number))


def _changed(name: str, path: str, a: int, failed: str) -> Event:
    """What unlink(2), rmdir(2), mkdir(2), mknod(2) and their *at forms did, and truncate(2)."""
    if name == "truncate":
        return FileOpened(path, ("wronly", "trunc"), failed)
    if name.startswith("mkdir"):
        return FileCreated(path, "directory", result=failed)
    if name.startswith("mknod"):
        return FileCreated(path, _TYPES.get(a & 0o170000, "file"), result=failed)
    return FileRemoved(path, name == "rmdir" or (name == "unlinkat" and bool(a & _AT_REMOVEDIR)), failed)


def _peer(endpoint: bytes) -> tuple[str, str, int] | None:
    """The other end of a socket (struct endpoint), None when it has none."""
    if len(endpoint) < _PEER6 + 16:
        return None
    family, port = struct.unpack_from("<H", endpoint, 4)[0], endpoint[6:8]
    if port == b"\0\0" or family not in (_AF_INET, _AF_INET6):
        return None
    # As a struct sockaddr of the same family
    head = struct.pack("<H", family) + port
    if family == _AF_INET:
        return _address(head + endpoint[_PEER4 : _PEER4 + 4])
    return _address(head + bytes(4) + endpoint[_PEER6 : _PEER6 + 16])


def _address(raw: bytes) -> tuple[str, str, int]:
    """Family, address and port of a struct sockaddr."""
    if len(raw) < 2:
        return "", "", 0
    number = struct.unpack_from("<H", raw)[0]
    family = _family(number)
    if number == _AF_INET and len(raw) >= 8:
        return family, ".".join(map(str, raw[4:8])), int.from_bytes(raw[2:4])
    if number == _AF_INET6 and len(raw) >= 24:
        import ipaddress

        return family, str(ipaddress.IPv6Address(raw[8:24])), int.from_bytes(raw[2:4])
    if number == _AF_UNIX:
        name = raw[2:]
        if name[:1] == b"\0":
            return family, "@" + _text(name[1:]), 0
        return family, _text(name.split(b"\0", 1)[0]), 0
    return family, "", 0
