"""A record whose last file is torn, at every byte: what comes before the tear is read, and the tear is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from membrane.record import decode, export, joining, query, reader, spans
from membrane.record import writer as record
from membrane.record.formats import html

LINES = 8
PADDING = -(decode.HEADER.size + len(b"f08/w/")) % 8


def line(number: int) -> bytes:
    head = {"time": f"2026-01-02T03:04:05.{number:06}Z", "session": "s", "seq": number, "event": "NameResolved"}
    return json.dumps({**head, "source": "network", "process": None, "name": f"h{number}.example"}).encode() + b"\n"


def span(number: int) -> bytes:
    walked = b"f%02d/w/" % number
    fields = (decode.OPEN, len(walked), 0, 0, 7, 3, 1, 1, 0, 257, 10**9 + number, 1, 3, 0, 0, 1, 1, b"sh")
    return spans.frame(decode.HEADER.pack(*fields) + walked)


def made(state: Path, kind: str) -> tuple[Path, Path, list[int]]:
    """A record, its last file, and where each piece of that ends; a segment before it is whole."""
    path = Path(record.make(str(state), "aa11"))
    suffix = "spans" if "spans" in kind else "jsonl"
    writer = record.Writer(str(path), "ebpf" if suffix == "spans" else "session", suffix)
    pieces = [span(number) if suffix == "spans" else line(number) for number in range(2 * LINES)]
    if suffix == "spans":  # the first record of each piece that a tracer stores
        pieces[0] = spans.clock_record(10**18) + pieces[0]
    for piece in pieces[:LINES]:
        writer.append(piece, 1)
    writer._close_segment()
    for piece in pieces[LINES:]:
        writer.append(piece, 1)
    if "open" in kind:
        there = path.with_name("bb22")
        shutil.copytree(path, there)  # as after a loss of power: nobody writes there
        writer.close()
        path = there
    else:
        if "packed" in kind:
            record.WORTH_COMPRESSING, before = 1, record.WORTH_COMPRESSING
            try:
                writer.close()
            finally:
                record.WORTH_COMPRESSING = before
        writer.close()
    last = path / f"{writer.source}.chain" if "chain" in kind else max(path.glob(f"*-0002.{suffix}*"))
    ends = [0]
    for piece in pieces[LINES:]:
        ends.append(ends[-1] + len(piece))
    return path, last, ends


def names(path: Path) -> tuple[list[str], reader.Record]:
    found = reader.Record(str(path))
    events = list(found.events())
    assert all(isinstance(event.kind, str) for event in events)
    kinds = ("NameResolved", "FileOpened")
    return [getattr(event.event, "name", event.path) for event in events if event.kind in kinds], found


@pytest.mark.parametrize("kind", ["open lines", "open spans", "closed lines", "closed spans", "packed lines", "chain"])
def test_at_every_octet(tmp_path: Path, kind: str) -> None:
    path, last, ends = made(tmp_path, kind)
    whole = last.read_bytes()
    everything, record_before = names(path)
    assert len(everything) == 2 * LINES
    # The control: nothing is torn.  A writer that was cut off is told as such.
    expected = ["the writer of session was killed: its last events may be missing"] if kind == "open lines" else []
    if kind == "open spans":
        expected = ["the writer of ebpf was killed: its last events may be missing"]
    assert record_before.problems == expected
    assert bool(reader.verify(str(path)).problems) == ("open" in kind)
    for length in range(len(whole)):
        last.write_bytes(whole[:length])
        got, found = names(path)
        if kind == "chain":
            assert got == everything, length  # the events do not need it
        elif "packed" in kind:
            assert got == everything[:LINES], length
        else:
            # A record of the kernel is whole without what fills it up to 8 bytes.
            filled = 7 if "spans" in kind and any(end - PADDING <= length <= end for end in ends[1:]) else 0
            complete = sum(end <= length + filled for end in ends[1:])
            assert got == everything[: LINES + complete], length
            if length not in ends and not filled:
                assert any("ends within a" in problem for problem in found.problems), (length, found.problems)
        assert reader.verify(str(path)).problems, length  # never taken for whole
        if kind in ("open lines", "open spans", "packed lines", "chain"):
            assert found.problems, length
        if length % 50 == 0:  # the other readers come to their end as well
            read_by_all(path)


def read_by_all(path: Path) -> None:
    events = list(joining.joined(reader.Record(str(path)).events()))
    data: dict[str, Any] = query.summarise(events).data(["torn"])
    assert not data["complete"]
    assert html.make(events, ["torn"]).endswith("</html>\n")
    for form in export.FORMATS:
        list(export.lines(events, form))
    reader.Follower(str(path)).poll()
