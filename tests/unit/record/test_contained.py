"""Processes of containers are known by the engine's processes for them, whichever source reports them."""

from __future__ import annotations

import pytest

from membrane.record import decode as d
from membrane.record import joining, spans
from membrane.record.contained import is_id, served
from membrane.record.recorded import Recorded, parse
from membrane.ui.trace_text import event_line

ID = "f37f4d093c40287326938e3e8f65ff9d67b4137e087ecac88e34879cc64d60b5"
HEAD = {"time": "2026-01-02T03:04:05.000000Z", "session": "s", "seq": 1, "source": "notify"}


@pytest.mark.parametrize(
    ("arguments", "container"),
    [
        (("/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", ID, "-address", "/s"), ID[:12]),
        (("runc", "--root", "/r", "create", "--bundle", f"/b/{ID}", ID), ID[:12]),
        (("/usr/bin/conmon", "--api-version", "1", "-c", ID, "-u", ID, "-n", "pod"), ID[:12]),
        (("crun", "start", ID), ID[:12]),
        (("runc", "init"), ""),
        (("runc", "--version"), ""),
        (("cat", ID), ""),
        (("crun", "start", ID.upper()), ""),
        (("crun", "start", ID[1:]), ""),
        ((), ""),
    ],
)
def test_which_container_an_engine_s_process_serves(arguments: tuple[str, ...], container: str) -> None:
    assert served(arguments) == container


def test_an_id() -> None:
    assert is_id(ID) and not is_id("../" + ID[3:]) and not is_id("")


def record(kind: int, *parts: bytes, pid: int, ppid: int = 1, time: int, aux: int = 0, result: int = 0) -> bytes:
    lengths = ([len(part) for part in parts] + [0] * 3)[:3]
    start = pid * 10_000_000
    header = d.HEADER.pack(kind, *lengths, pid, ppid, pid, pid, 0, -1, time, start, result, 0, 0, aux, 1, b"x")
    return spans.frame(header + b"".join(parts))


def test_ebpf_follows_forks_from_the_shim() -> None:
    shim = b"\0".join((b"containerd-shim-runc-v2", b"-id", ID.encode(), b""))
    data = spans.clock_record(0) + b"".join(
        [
            record(d.EXEC, b"/s", shim, b"", b"s/", pid=7, time=10),
            record(d.FORK, pid=7, aux=8, time=20),
            record(d.EXEC, b"/w", b"worker\0", b"", b"w/", pid=8, ppid=7, time=30),
            record(d.FORK, pid=8, aux=9, time=40),
            record(d.OPEN, b"f/", pid=9, ppid=8, time=50, result=3),
            record(d.OPEN, b"f/", pid=7, time=60, result=3),
            record(d.EXIT, pid=9, ppid=8, time=70),
            record(d.OPEN, b"f/", pid=9, time=80, result=3),
        ]
    )
    found = [(type(event).__name__, who.pid, who.container) for _at, event, who in d.Decoder().decode(data)]
    inside = ID[:12]
    assert found == [
        ("ProcessStarted", 7, ""),
        ("ProcessStarted", 8, inside),
        ("FileOpened", 9, inside),
        ("FileOpened", 7, ""),
        ("ProcessExited", 9, inside),
        ("FileOpened", 9, ""),
    ]


def seen(name: str, image: str) -> Recorded:
    fields = {"container": ID[:12], "name": name, "image": image, "engine": "docker"}
    return parse({"event": "ContainerSeen", **HEAD, "process": None, **fields})


def opened(container: str = "") -> Recorded:
    process = {"pid": 5, "start": 6, "name": "postgres", "exe": "/usr/bin/postgres", "container": container}
    return parse({"event": "FileOpened", **HEAD, "process": process, "path": "/x", "flags": []})


def test_its_name_and_image_are_shown() -> None:
    inside, unknown, outside = opened(ID[:12]), opened("abcdefabcdef"), opened()
    lines = [event_line(each) for each in joining.joined([seen("app_db_1", "x"), inside, unknown, outside])]
    assert f"{ID[:12]} app_db_1, image x" in lines[0]
    assert "postgres[5] (app_db_1, image x) FileOpened" in lines[1]
    assert "postgres[5] (abcdefabcdef) FileOpened" in lines[2]
    assert "(" not in lines[3]
    assert inside.data["process"]["container"] == ID[:12] and "container" not in outside.data["process"]


def test_a_name_from_inside_is_escaped_and_cut() -> None:
    for line in map(event_line, joining.joined([seen("\x1b[2Jx" * 90, "\n"), opened(ID[:12])])):
        assert "\x1b" not in line and "\n" not in line and len(line) < 500
