"""Spans to events, from records made here; that the kernel's look like these is for kernel/test_bpf.py."""

from __future__ import annotations

import struct

import pytest

from membrane.events import (
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
from membrane.record import decode as d
from membrane.record import spans
from membrane.record.calls import COMPAT, NAMES

NUMBERS = {name: number for number, name in NAMES.items() if number < COMPAT}
OFFSET = 1_700_000_000_000_000_000


def record(
    kind,
    *parts,
    pid=7,
    ppid=3,
    tgid=1007,
    nr=-1,
    time=5_000,
    start=40_000_000,
    result=0,
    a=0,
    b=0,
    aux=0,
    count=1,
    comm=b"sh",
):
    lengths = [len(part) for part in parts[:3]] + [0] * (3 - len(parts[:3]))
    header = d.HEADER.pack(kind, *lengths, pid, ppid, tgid, tgid, 0, nr, time, start, result, a, b, aux, count, comm)
    return spans.frame(header + b"".join(parts))


def events(*records, decoder=None):
    return [event for _at, event, _who in d.decode(spans.clock_record(OFFSET) + b"".join(records), decoder)]


def test_time_process_and_path_of_an_open() -> None:
    data = spans.clock_record(OFFSET) + record(
        d.OPEN, b"leaf/dir/", nr=257, result=3, aux=0o2101, a=9, b=1 | 0o100644 << 32
    )
    assert list(d.decode(data)) == [
        (OFFSET + 5_000, FileOpened("/dir/leaf", ("wronly", "creat", "append")), Process(7, 4, "sh", ""))
    ]


def test_the_root_directory_itself() -> None:
    assert events(record(d.OPEN, b"", result=3)) == [FileOpened("/", ("rdonly",))]


@pytest.mark.parametrize(
    ("argument", "base", "path"),
    [
        (b"/a//b/./c/", b"", "/a/b/c"),
        (b"../../x/../y", b"c/b/a/", "/a/x/../y"),
        (b"../../../../x", b"a/", "/x"),
        (b"x\xff\n", b"", "/x\udcff\n"),
        (b".", b"b/a/", "/a/b"),
        (b"", b"", ""),
    ],
)
def test_paths_that_were_written(argument, base, path) -> None:
    assert events(record(d.OPEN, argument, base, result=-13)) == [FileOpened(path, ("rdonly",), "EACCES")]


def test_a_cut_path_never_looks_absolute() -> None:
    assert events(
        record(d.OPEN, b"passwd/etc/\0/", result=3, time=1),
        record(d.PATH, b"x", b"d/\0/", nr=NUMBERS["unlink"], time=2),
    ) == [FileOpened("…/etc/passwd", ("rdonly",)), FileRemoved("…/d/x")]


def test_changes() -> None:
    def call(name, kind, *parts, **fields):
        return record(kind, *parts, nr=NUMBERS[name], **fields)

    assert events(
        call("unlink", d.PATH, b"/f", time=1),
        call("unlinkat", d.PATH, b"/d", a=0x200, time=2),
        call("rmdir", d.PATH, b"/d", result=-39, time=3),
        call("mkdir", d.PATH, b"n", b"w/", time=4),
        call("mknod", d.PATH, b"/p", a=0o010644, time=5),
        call("mknod", d.PATH, b"/r", a=0o100644, time=6),
        call("rename", d.PATH2, b"a", b"b", b"w/", b"w/", time=7),
        call("linkat", d.PATH2, b"/a", b"b", b"", b"w/", time=8),
        call("symlink", d.PATH2, b"to", b"s", b"w/", b"w/", time=9),
    ) == [
        FileRemoved("/f"),
        FileRemoved("/d", True),
        FileRemoved("/d", True, "ENOTEMPTY"),
        FileCreated("/w/n", "directory"),
        FileCreated("/p", "fifo"),
        FileCreated("/r", "file"),
        FileRenamed("/w/a", "/w/b"),
        FileCreated("/w/b", "link", "/a"),
        FileCreated("/w/s", "symlink", "to"),
    ]


def test_the_32_bit_table_and_unknown_calls() -> None:
    assert events(record(d.CALL, nr=COMPAT + 21, result=-38), record(d.CALL, nr=400, result=-1)) == [
        AccessDenied({"kind": "SystemCall", "name": "mount"}, "ENOSYS", None, None, source="ebpf"),
        AccessDenied({"kind": "SystemCall", "name": "call 400"}, "EPERM", None, None, source="ebpf"),
    ]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (struct.pack("<H", 2) + bytes([0, 80, 192, 0, 2, 1]) + bytes(8), ("inet", "192.0.2.1", 80)),
        (struct.pack("<H", 10) + bytes([1, 187]) + bytes(4) + bytes(15) + b"\1" + bytes(4), ("inet6", "::1", 443)),
        (struct.pack("<H", 1) + b"/run/x\0junk", ("unix", "/run/x", 0)),
        (struct.pack("<H", 1) + b"\0abs\0tract", ("unix", "@abs\0tract", 0)),
        (struct.pack("<H", 16) + bytes(10), ("netlink", "", 0)),
        (struct.pack("<H", 2) + b"\0", ("inet", "", 0)),
        (b"", ("unix", "", 0)),
    ],
)
def test_sockets(address, told) -> None:
    endpoint = struct.pack("<6H", 1, 0, 1, 0, 0, 0).ljust(64, b"\0")
    header = d.HEADER.pack(d.SOCKET, len(address), 0, 0, 7, 3, 1, 1, 0, 42, 1, 1, -111, 0, 0, 0, 1, b"sh")
    assert events(spans.frame(header + endpoint + address)) == [SocketCalled("connect", *told, result="ECONNREFUSED")]


@pytest.mark.parametrize(
    ("result", "port", "told"),
    [
        (0, 443, ("198.51.100.7", 443)),
        (-115, 443, ("198.51.100.7", 443)),  # EINPROGRESS
        (-4, 443, ("198.51.100.7", 443)),  # EINTR: the connection goes on
        (0, 0, ("192.0.2.1", 80)),  # the socket has no other end
        (-106, 443, ("192.0.2.1", 80)),  # EISCONN: the end that it has is not the one that was asked for
    ],
)
@pytest.mark.parametrize("family", [2, 10])
def test_where_a_socket_is_connected_is_told_by_the_socket(result, port, told, family) -> None:
    """The memory of the call may have been written anew before it is read."""
    own = struct.pack("<3H", 1, 6, family) + port.to_bytes(2) + struct.pack("<2H", 40000, 0)
    own += bytes([198, 51, 100, 7]) + bytes(4) + bytes(10) + b"\xff\xff" + bytes([198, 51, 100, 7])
    memory = struct.pack("<H", 2) + bytes([0, 80, 192, 0, 2, 1]) + bytes(8)
    header = d.HEADER.pack(d.SOCKET, len(memory), 0, 0, 7, 3, 1, 1, 0, 42, 1, 1, result, 0, 0, 0, 1, b"sh")
    [called] = events(spans.frame(header + own.ljust(64, b"\0") + memory))
    address = called.address.replace("::ffff:c633:6407", "198.51.100.7").removeprefix("::ffff:")
    assert (address, called.port, called.local_port) == (*told, 40000)
    assert called.family == ("inet6" if family == 10 and told[1] == 443 else "inet")


def test_which_program_a_process_runs() -> None:
    """Also when the rings were emptied in the other order, across pieces, and after the number was used again."""
    decoder = d.Decoder()
    program = b"bash/bin/usr/"
    first = [
        record(d.OPEN, b"late/", result=3, time=30),
        record(d.EXEC, b"/bin/sh", b"sh\0-c\0x y\0", b"w/", program, time=10),
        record(d.FORK, aux=8, time=20),
        record(d.OPEN, b"f/", pid=8, ppid=7, start=60_000_000, result=3, time=25),
    ]
    data = spans.clock_record(OFFSET) + b"".join(first)
    got = [(event, who.pid, who.exe) for _at, event, who in decoder.decode(data)]
    assert got == [
        (ProcessStarted(3, ("sh", "-c", "x y"), "/w", "/usr/bin/bash"), 7, "/usr/bin/bash"),
        (FileOpened("/f", ("rdonly",)), 8, "/usr/bin/bash"),
        (FileOpened("/late", ("rdonly",)), 7, "/usr/bin/bash"),
    ]
    script = record(d.EXEC, b"./s", b"/bin/sh\0./s\0", b"w/", program, a=1, pid=8, ppid=7, start=60_000_000, time=40)
    end = record(d.EXIT, pid=8, start=60_000_000, result=0x0300, time=100_000_000)
    killed = record(d.EXIT, result=9, time=200_000_000)
    again = record(d.OPEN, b"f/", start=300_000_000, result=3, time=400_000_000)
    data = spans.clock_record(OFFSET) + script + end + killed + again
    assert [(event, who.pid, who.exe) for _at, event, who in decoder.decode(data)] == [
        (ProcessStarted(7, ("/bin/sh", "./s"), "/w", "/w/s"), 8, "/usr/bin/bash"),
        (ProcessExited(3, 0, 40.0), 8, "/usr/bin/bash"),
        (ProcessExited(0, 9, 160.0), 7, "/usr/bin/bash"),
        (FileOpened("/f", ("rdonly",)), 7, ""),
    ]


def test_losses_and_repeats() -> None:
    told = record(d.OPEN, b"f/", nr=257, result=3, aux=0o1101, a=9, b=1 | 0o100644 << 32)
    read = record(d.OPEN, b"g/", nr=257, result=3, aux=0, a=10, b=1 | 0o100644 << 32, time=6_000)
    assert events(
        told,
        read,
        spans.lost_record(1, 12, 1_000_000, 2_000_000),
        spans.repeated_record(1, 9, 0o1101, 1007, 4, 3_000_000),
        spans.repeated_record(1, 10, 0, 0, 5, 3_000_000),
        spans.repeated_record(1, 77, 0, 0, 5, 3_000_000),  # never told: nothing to repeat
    ) == [
        FileOpened("/f", ("wronly", "creat", "trunc")),
        FileOpened("/g", ("rdonly",)),
        EventsLost("file", 12, "2023-11-14T22:13:20.001000Z", "2023-11-14T22:13:20.002000Z", source="ebpf"),
        FileOpened("/f", ("wronly", "creat", "trunc"), count=4),
        FileOpened("/g", ("rdonly",), count=5),
    ]


def test_torn_discarded_and_unknown_records() -> None:
    good = record(d.OPEN, b"f/", result=3)
    decoder = d.Decoder()
    opened = FileOpened("/f", ("rdonly",))
    for cut in range(1, len(good) - 6):  # the last 6 bytes are padding
        assert events(good, good[:cut], decoder=decoder) == [opened]
        assert decoder.torn == cut
    busy = struct.pack("<II", 1 << 31 | 8, 0) + bytes(8)
    assert events(good, busy, good, decoder=decoder) == [opened]
    discarded = struct.pack("<II", 1 << 30 | len(good) - 8, 0) + good[8:]
    assert events(discarded, good, decoder=decoder) == [opened]
    assert decoder.unknown == 0
    assert events(record(77), spans.frame(b"xx"), spans.frame(b""), good, decoder=decoder) == [opened]
    assert decoder.unknown == 3


def test_caches_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(d, "_MOST_KEPT", 50)
    decoder = d.Decoder()
    for number in range(500):
        events(
            record(d.OPEN, b"%d/%d/" % (number, number), pid=number, a=number, aux=number << 12, result=3),
            record(d.FORK, aux=number),
            decoder=decoder,
        )
    kept = (decoder._paths, decoder._processes, decoder._opened, decoder._flags, decoder._programs)
    assert all(len(cache) <= 51 for cache in kept)


def test_what_lies_outside_of_the_workspace_is_told() -> None:
    def outside(workspace: str, *records: bytes) -> list[bool]:
        return [event.outside_workspace for event in events(*records, decoder=d.Decoder(workspace))]

    def opened(path: str) -> bytes:
        walked = "".join(name + "/" for name in reversed(path.strip("/").split("/")))
        return record(d.OPEN, walked.encode(), nr=257, result=3)

    paths = [opened(path) for path in ("/w/s/f", "/w/sf", "/w/s", "/etc/passwd")]
    assert outside("/w/s", *paths) == [False, True, False, True]
    assert outside("/w/s/", *paths) == [False, True, False, True]
    assert outside("/", *paths) == [False] * 4
    assert outside("", *paths) == [False] * 4  # it is not known
    renamed = [record(d.PATH2, b"/w/s/a", to, nr=NUMBERS["rename"]) for to in (b"/w/s/b", b"/tmp/b")]
    removed = [record(d.PATH, path, nr=NUMBERS["unlink"]) for path in (b"/w/s/a", b"/w/a")]
    modes = [record(d.PATH, path, nr=NUMBERS["chmod"], a=0o755) for path in (b"/w/s/a", b"/w/a")]
    assert outside("/w/s", *renamed, *removed, *modes) == [False, True] * 3
    cut = record(d.OPEN, b"leaf/\0/", nr=257, result=3)
    assert outside("/w/s", cut) == [False]


def test_changed_files_and_local_ports() -> None:
    endpoint = struct.pack("<5HH", 1, 6, 2, 0, 40001, 0) + bytes(d._ENDPOINT - 12)
    address = struct.pack("<H", 2) + b"\x01\xbb" + bytes([198, 18, 0, 16])
    unix = struct.pack("<5HH", 1, 0, 1, 0, 777, 0) + bytes(d._ENDPOINT - 12)
    header = lambda text, length: spans.frame(  # noqa: E731
        d.HEADER.pack(d.SOCKET, length, 0, 0, 7, 3, 1, 1, 0, NUMBERS["connect"], 5_000, 1, -115, 0, 0, 0, 1, b"sh")
        + text
    )
    assert events(
        record(d.PATH, b"f", b"d/", nr=NUMBERS["fchmodat"], a=0o100755),
        record(d.PATH, b"", b"f/d/", nr=NUMBERS["fchmod"], a=0o600),
        record(d.PATH, b"/f", nr=NUMBERS["lchown"], a=0xFFFFFFFF, b=13, result=-1),
        record(d.PATH2, b"/f", b"user.x", nr=NUMBERS["setxattr"]),
        record(d.PATH2, b"", b"user.x", b"f/", nr=NUMBERS["fremovexattr"]),
        record(d.PATH, b"/f", nr=NUMBERS["truncate"]),
        header(endpoint + address, len(address)),
        header(unix, 0),
    ) == [
        FileChanged("/d/f", "mode", "0755"),
        FileChanged("/d/f", "mode", "0600"),
        FileChanged("/f", "owner", ":13", "EPERM"),
        FileChanged("/f", "attribute", "user.x"),
        FileChanged("/f", "attribute removed", "user.x"),
        FileOpened("/f", ("wronly", "trunc")),
        SocketCalled("connect", "inet", "198.18.0.16", 443, "EINPROGRESS", local_port=40001),
        SocketCalled("connect", "unix", "", 0, "EINPROGRESS"),
    ]


def test_above_a_cut_a_path_stays_cut() -> None:
    assert d.join("…/a/b", "../c") == "…/a/c"
    assert d.join("…/a/b", "../../../../tmp/c") == "…/tmp/c"
    assert d.join("/a/b", "../../../../tmp/c") == "/tmp/c"
    assert d.join("/…/a", "../../c") == "/c"
