"""Fuzz targets of what reads a record: spans of the kernel, lines of JSON.

``test_fuzz_trace.py`` runs them over mutations of records made here.
"""

from __future__ import annotations

import json
import struct

from event_samples import sample
from membrane import clock
from membrane.events import EVENTS, Process, encode
from membrane.record import decode as d
from membrane.record import export, joining, query, reader, spans


def fuzz_decode(data: bytes) -> None:
    """Nothing is raised, every event can be written down, what is kept is bounded, and torn bytes are told."""
    decoder = d.Decoder()
    number = 0
    for time, event, process in decoder.decode(data):
        number += 1
        assert isinstance(time, int)
        encode(event, time="", session="", seq=number, process=process)
        clock.iso(time)
    assert number <= len(data) // 8
    assert 0 <= decoder.torn <= len(data)
    assert len(decoder._paths) <= 2 * number + 2
    assert len(decoder._processes) <= number + len(data) // 104 + 1


def fuzz_line(data: bytes) -> None:
    """Nothing is raised, fields are of their types, and every form of the event can be written."""
    each = reader.parse(data)
    if each is None:
        return
    right = sample(EVENTS[each.kind]) if each.kind in EVENTS else each.event
    for name in right.field_names:
        value, wanted = getattr(each.event, name), getattr(right, name)
        assert isinstance(value, type(wanted) if wanted is not None else (str, type(None))) or type(wanted) is float, (
            name
        )
    joined = list(joining.joined([each, each]))
    json.dumps(query.summarise(joined).data())
    for form in export.FORMATS:
        list(export.lines(joined, form))


def lines() -> list[bytes]:
    """A line of each event."""
    who = Process(1, 2, "sh", "/bin/sh")
    return [
        json.dumps(encode(sample(kind), time="2026-01-02T03:04:05.678Z", session="s", seq=1, process=who)).encode()
        for kind in EVENTS.values()
    ]


def seeds() -> list[bytes]:
    """One piece with a record of each type."""
    pieces = []
    for kind in range(12):
        text = b"leaf/dir/usr/" + b"arg\0two\0" + b"cwd/" + b"program/bin/"
        header = d.HEADER.pack(kind, 13, 8, 4, 5, 4, 9, 9, 0, 257, 10**9, 10**8, -(kind % 3), kind, 1, 0o1101, 2, b"sh")
        pieces.append(spans.clock_record(10**18) + spans.frame(header + text))
        address = struct.pack("<HH4s", 2, 80, b"\x7f\0\0\1") + bytes(8)
        header = d.HEADER.pack(kind, 16, 0, 0, 5, 4, 9, 9, 0, 42, 10**9, 10**8, -111, 0, 0, 3, 1, b"sh")
        pieces.append(spans.frame(header + bytes(64) + address))
    pieces.append(spans.lost_record(1, 5, 1, 2) + spans.repeated_record(1, 2, 3, 4, 5, 6))
    return [*pieces, b"".join(pieces)]
