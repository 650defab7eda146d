"""The record on disk: what is written can be read, what is missing is said, and the bounds hold."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import HostError, PolicyError
from membrane.record import decode, reader, spans
from membrane.record import writer as record
from membrane.record.spans import clock_record, frame
from membrane.run.event_log import EventLog

SPARE_TIME = 60  # seconds; a child on a busy machine


def line(number: int, at: str = "", **fields: Any) -> bytes:
    stamp = at or f"2026-01-02T03:04:{number // 1000 % 60:02}.{number % 1000:03}Z"
    head = {"time": stamp, "session": "s", "seq": number, "event": "NameResolved", "source": "network"}
    return json.dumps({**head, "process": None, **fields}).encode() + b"\n"


def events_of(path: str) -> tuple[list[dict[str, Any]], list[str]]:
    found = reader.Record(path)
    return [event.data for event in found.events()], found.problems


def written(state: Path, count: int = 10, session: str = "0123456789abcdef", **options: Any) -> str:
    path = record.make(str(state), session)
    writer = record.Writer(path, "session", **options)
    for number in range(count):
        writer.append(line(number))
    writer.close()
    return path


def test_what_is_written_can_be_read_in_order_and_is_private(tmp_path: Path) -> None:
    path = written(tmp_path)
    events, problems = events_of(path)
    assert [event["seq"] for event in events] == list(range(10))
    assert problems == []
    assert reader.Record(path).running is False
    for name in [path, os.path.dirname(path)]:
        assert os.stat(name).st_mode & 0o777 == 0o700
    for name in os.listdir(path):
        assert os.stat(os.path.join(path, name)).st_mode & 0o777 == 0o600
    found = reader.verify(path)
    assert (found.problems, found.closed, found.segments, found.lost) == ((), True, 1, 0)


def test_large_segments_are_compressed_and_small_ones_are_not(tmp_path: Path) -> None:
    small = written(tmp_path, 10, "a" * 16)
    large = written(tmp_path, 1000, "b" * 16)
    assert sorted(os.listdir(small)) == ["session-0001.jsonl", "session.chain"]
    assert sorted(os.listdir(large)) == ["session-0001.jsonl.gz", "session.chain"]
    assert len(events_of(large)[0]) == 1000
    assert os.path.getsize(os.path.join(large, "session-0001.jsonl.gz")) < 1000 * 40


# ---------------------------------------------------------------- bounds


def test_the_limit_holds_and_the_beginning_and_the_end_survive(tmp_path: Path) -> None:
    """Ten times what fits: what came first and what came last are there, the middle is counted."""
    limit = 1 << 19
    path = record.make(str(tmp_path), "f" * 16)
    writer = record.Writer(path, "session", limit=limit)
    total = 10_000
    largest = 0
    for number in range(total):
        # Random text does not compress: the limit is about what lies on the disk.
        writer.append(line(number, noise=os.urandom(250).hex()))
        if number % 500 == 0:
            largest = max(largest, sum(entry.stat().st_size for entry in os.scandir(path)))
    writer.close()
    assert total * 500 > 9 * limit
    assert largest <= limit
    assert sum(entry.stat().st_size for entry in os.scandir(path)) <= limit
    events, problems = events_of(path)
    numbers = [event["seq"] for event in events if event["event"] == "NameResolved"]
    losses = [event for event in events if event["event"] == "EventsLost"]
    assert numbers[0] == 0
    assert numbers[-1] == total - 1
    assert sum(event["count"] for event in losses) + len(numbers) == total
    assert all("max_size" in event["cause"] for event in losses)
    assert problems == []
    found = reader.verify(path)
    assert found.problems == ()
    assert found.removed >= len(losses) > 0  # those of before the chain was shortened are told together
    gone = sum(event["count"] for event in losses)
    assert found.incomplete[0] == f"session: {gone} events were removed to stay within trace.max_size"


def test_when_the_chain_is_full_everything_further_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it cannot be shortened."""
    monkeypatch.setattr(record.os, "rename", _no_space)
    path = record.make(str(tmp_path), "f" * 16)
    writer = record.Writer(path, "session", limit=1 << 16)
    total = 3000
    for number in range(total):
        writer.append(line(number, noise=os.urandom(250).hex()))
    writer.close()
    assert sum(entry.stat().st_size for entry in os.scandir(path)) <= 1 << 16
    assert writer.lost > 0
    events, problems = events_of(path)
    losses = [event for event in events if event["event"] == "EventsLost"]
    assert any(event["cause"] == "trace.max_size is used up" for event in losses)
    assert sum(event["count"] for event in losses) + len(events) - len(losses) == total
    assert problems == []
    assert reader.verify(path).problems == ()


def _no_space(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_old_sessions_go_and_a_running_one_stays(tmp_path: Path) -> None:
    running = record.Writer(record.make(str(tmp_path), "0" * 16), "session", clock=lambda: 1)
    for number in range(1, 6):
        written(tmp_path, 1, f"{number:016}", clock=lambda number=number: number)
    gone = record.prune(str(tmp_path), keep=3)
    left = [entry.id for entry in reader.sessions(str(tmp_path))]
    assert gone == [f"{number:016}" for number in (1, 2, 3)]
    assert left == ["0" * 16, f"{4:016}", f"{5:016}"]
    assert [entry.running for entry in reader.sessions(str(tmp_path))] == [True, False, False]
    running.close()
    assert record.prune(str(tmp_path), keep=2) == ["0" * 16]
    assert record.prune(str(tmp_path), keep=2) == []


def test_all_records_together_are_bounded(tmp_path: Path) -> None:
    for number in range(1, 5):
        written(tmp_path, 2000, f"{number:016}", clock=lambda number=number: number)
    size = sum(entry.stat().st_blocks * 512 for entry in os.scandir(record.directory_of(str(tmp_path), f"{1:016}")))
    gone = record.prune(str(tmp_path), max_size=max(1, size * 2 // record.TOTAL))
    assert len(gone) == 2
    assert gone[0] == f"{1:016}"


def test_a_directory_with_something_else_in_it_is_not_removed(tmp_path: Path) -> None:
    for number in range(1, 4):
        written(tmp_path, 1, f"{number:016}", clock=lambda number=number: number)
    odd = Path(record.directory_of(str(tmp_path), f"{1:016}")) / "directory"
    odd.mkdir()
    assert record.prune(str(tmp_path), keep=1) == [f"{2:016}"]
    assert odd.is_dir()
    assert len(os.listdir(odd.parent)) == 3


# ---------------------------------------------------------------- faults

FULL = """
import resource, sys
from membrane.record import writer as record
path = record.make(sys.argv[1], "e" * 16)
writer = record.Writer(path, "session")
line = b'{"time": "2026-01-02T03:04:05.000Z", "event": "NameResolved", "seq": %d, "pad": "' + b"x" * 900 + b'"}\\n'
for number in range(10):
    writer.append(line % number)
resource.setrlimit(resource.RLIMIT_FSIZE, (10500, resource.RLIM_INFINITY))
for number in range(10, 20):
    writer.append(line % number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(20, 30):
    writer.append(line % number)
writer.close()
print(writer.lost)
"""


def test_a_source_has_one_writer_in_a_directory_that_is_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    for directory, source, why in ((path, "session", "File exists"), (path + "x", "session", "No such file")):
        with pytest.raises(HostError, match=f"keep the record .*{why}"):
            record.Writer(directory, source)
    assert not record.is_written(path)
    writer = record.Writer(path, "network")
    assert record.is_written(path)  # the control
    writer.close()


def test_a_record_ends_once(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "f" * 16)
    writer = record.Writer(path, "session")
    writer.append(b"")
    writer.append(line(1))
    for _ in range(2):
        writer.close()
    head, segment, end = [json.loads(each) for each in Path(path, "session.chain").read_bytes().splitlines()]
    assert head["source"] == "session"
    assert segment["records"] == 1
    assert (end["closed"], end["lost"], end["removed"]) == (True, 0, 0)


def test_a_writer_leaves_no_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    path = written(tmp_path, 200, limit=1 << 16)
    assert len(list(Path(path).glob("session-*"))) > 3
    assert os.listdir("/proc/self/fd") == before


def test_what_can_not_be_written_is_counted_and_the_rest_stays_readable(tmp_path: Path) -> None:
    """A file that cannot grow (RLIMIT_FSIZE: EFBIG, as ENOSPC comes in the middle of a line)."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=SPARE_TIME, check=True
    )
    lost = int(done.stdout)
    assert lost == 10
    path = record.directory_of(str(tmp_path), "e" * 16)
    events, problems = events_of(path)
    assert [event["seq"] for event in events if event["event"] == "NameResolved"] == [*range(10), *range(20, 30)]
    [loss] = [event for event in events if event["event"] == "EventsLost"]
    assert (loss["count"], loss["cause"]) == (10, "File too large")
    assert problems == []
    assert reader.verify(path).problems == ()
    assert reader.verify(path).lost == 10
    assert reader.verify(path).incomplete[0] == "session: 10 events were lost (File too large)", (
        "as the summary says it"
    )


KILLED = """
import os, signal, sys
from membrane.record import writer as record
writer = record.Writer(record.make(sys.argv[1], "d" * 16), "session")
for number in range(100):
    writer.append(b'{"time": "2026-01-02T03:04:05.000Z", "event": "NameResolved", "seq": %d}\\n' % number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_was_killed_leaves_everything_it_had_appended(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=SPARE_TIME, check=False)
    assert done.returncode == -9
    path = record.directory_of(str(tmp_path), "d" * 16)
    events, problems = events_of(path)
    assert len(events) == 100
    assert problems == ["the writer of session was killed: its last events may be missing"]
    assert not reader.Record(path).running
    found = reader.verify(path)
    assert not found.closed
    assert any("no end" in problem for problem in found.problems)


def test_a_torn_last_line_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    segment = Path(path, "session-0001.jsonl")
    segment.write_bytes(segment.read_bytes()[:-7])
    events, problems = events_of(path)
    assert [event["seq"] for event in events] == [0, 1, 2, 3]
    assert len(problems) == 1
    assert "ends within a line" in problems[0]


def test_garbage_in_a_segment_is_counted(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    segment = Path(path, "session-0001.jsonl")
    deep = b"[" * 100_000 + b"\n"
    no_json = b'{"event": "Later", "time": "", "n": NaN}\n{"event": "Later", "time": "", "n": [-1e999]}\n'
    segment.write_bytes(segment.read_bytes() + b"\xff\xfe\n[]\n{}\nnull\n" + deep + no_json + line(3))
    events, problems = events_of(path)
    assert [event["seq"] for event in events] == [0, 1, 2, 3]
    assert problems == ["7 lines of session are no events"]


def test_a_segment_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    import gzip

    path = written(tmp_path, 3)
    packed = gzip.compress(b"\0" * reader.LARGEST)
    for data, said in (
        (gzip.compress(b"\0" * (reader.LARGEST + 1)), "it unpacks to more than"),
        (packed[:-1], "it is cut off"),
        (gzip.compress(line(9))[:-9], "it is cut off"),
    ):
        Path(path, "session-0002.jsonl.gz").write_bytes(data)
        events, problems = events_of(path)
        assert len(events) == 3
        assert len(problems) == 1
        assert said in problems[0]
    Path(path, "session-0002.jsonl.gz").write_bytes(packed)
    assert len(reader.read_segment(path, "session-0002.jsonl.gz")) == reader.LARGEST, "the control"
    Path(path, "session-0003.jsonl").write_bytes(b"\n" * (reader.LARGEST + 1))
    with pytest.raises(ValueError, match="it is larger than"):
        reader.read_segment(path, "session-0003.jsonl")


def test_a_clock_that_is_set_back_changes_no_order_and_is_said(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "c" * 16)
    session, notify = record.Writer(path, "session"), record.Writer(path, "notify")
    for number, at in enumerate(("10:00:00.100Z", "10:00:05.000Z", "09:00:00.000Z", "10:00:09.000Z")):
        session.append(line(number, f"2026-01-02T{at}"))
    notify.append(line(100, "2026-01-02T10:00:01.000000Z"))
    session.close()
    notify.close()
    events, problems = events_of(path)
    assert [event["seq"] for event in events] == [0, 100, 1, 2, 3]
    assert problems == ["the clock was set back by 3605 s: times of session are not in order"]


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (999_999_999, []),
        (1_000_000_000, ["the clock was set forward by 1 s: all times are as before that"]),
        (-7_000_000_000, ["the clock was set back by 7 s: all times are as before that"]),
    ],
)
def test_a_clock_of_the_machine_that_was_set_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int, said: list[str]
) -> None:
    monkeypatch.setattr(record, "was_set_by", lambda: by)
    assert reader.chain_losses(written(tmp_path), "session") == ([], True, said)


def test_two_sources_are_merged_by_time(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "b" * 16)
    writers = [record.Writer(path, "session"), record.Writer(path, "notify")]
    for number in range(20):
        writers[number % 2].append(line(number))
    for writer in writers:
        writer.close()
    assert [event["seq"] for event in events_of(path)[0]] == list(range(20))


def test_a_flood_neither_fills_the_disk_nor_hides_the_end(tmp_path: Path) -> None:
    """Of twenty times its share a source keeps the beginning and the end, and counts the rest."""
    limit, count, width = 1 << 16, 1_500, 900
    path = Path(record.make(str(tmp_path), "e" * 16))
    writer = record.Writer(str(path), "session", limit=limit)
    most = 0
    for number in range(count):
        writer.append(line(number).replace(b'"seq"', b'"pad": "' + b"x" * width + b'", "seq"'))
        if number % 50 == 0:
            most = max(most, sum(entry.stat().st_size for entry in os.scandir(path)))
    writer.close()
    assert count * width > 20 * limit
    assert most <= limit
    events, problems = events_of(str(path))
    numbers = [event["seq"] for event in events if event["event"] == "NameResolved"]
    assert problems == []
    assert (numbers[0], numbers[-1]) == (0, count - 1)
    lost = [event for event in events if event["event"] == "EventsLost"]
    assert sum(event["count"] for event in lost) + len(numbers) == count
    assert {event["cause"] for event in lost} == {"removed to stay within trace.max_size"}
    found = reader.verify(str(path))
    assert found.problems == () and found.closed
    assert found.removed > 100  # more than the chain has room for


def test_a_piece_that_is_larger_than_a_segment_is_cut_between_records() -> None:
    clock, records = clock_record(7), [frame(bytes([number]) * (number * 3)) for number in range(1, 60)]
    piece = clock + b"".join(records)
    for most in (1, 40, 200, 1000, len(piece)):
        parts = [part for part, _latest in spans.split(piece, most)]
        assert all(part.startswith(clock) and len(part) > len(clock) for part in parts)
        assert b"".join(part[len(clock) :] for part in parts) == b"".join(records)
        assert all(len(part) <= max(most, len(clock) + len(records[-1])) for part in parts)
        assert all([again for again, _latest in spans.split(part, most)] == [part] for part in parts)
    assert len(spans.split(piece, 1)) == len(records)
    assert [part for part, _latest in spans.split(piece, len(piece))] == [piece]


def test_what_came_first_survives_a_flood_in_one_piece(tmp_path: Path) -> None:
    """A ring that is drained late gives as much at once as the whole record may hold."""
    path = record.make(str(tmp_path), "0123456789abcdef")
    writer = record.Writer(path, "ebpf", "spans", limit=1 << 17)
    # The time stands at byte 32 of an event: what happened first goes first.
    flood = [os.urandom(32) + number.to_bytes(8, "little") + os.urandom(960) for number in range(300)]
    writer.append(clock_record(0) + frame(b"first" + bytes(60)) + b"".join(map(frame, flood)), 301)
    writer.append(clock_record(0) + frame(b"last" + bytes(60)), 1)
    writer.close()
    kept = b"".join(reader.read_segment(path, name) for name in sorted(os.listdir(path)) if ".spans" in name)
    assert b"first" in kept and b"last" in kept and flood[150] not in kept
    assert sum(os.stat(f"{path}/{name}").st_size for name in os.listdir(path)) <= 1 << 17


def span(kind: int, time: int, name: bytes) -> bytes:
    """An event of the kernel with a name that does not compress."""
    head = kind.to_bytes(8, "little") + bytes(24) + time.to_bytes(8, "little") + bytes(56)
    return frame(head + name + b";" + os.urandom(300))


def kept_of(directory: Path, *pieces: bytes) -> bytes:
    """What a record of 128 KiB keeps of these pieces."""
    path = record.make(str(directory), "0123456789abcdef")
    now = iter(range(10_000, 10_000_000))
    writer = record.Writer(path, "ebpf", "spans", limit=1 << 17, clock=lambda: next(now))
    for piece in pieces:
        writer.append(clock_record(0) + piece, 1)
    writer.close()
    assert sum(os.stat(f"{path}/{name}").st_size for name in os.listdir(path)) <= 1 << 17
    return b"".join(reader.read_segment(path, name) for name in sorted(os.listdir(path)) if ".spans" in name)


def test_what_happened_last_survives_the_opens_that_were_read_with_it(tmp_path: Path) -> None:
    """A piece holds the opens behind everything else, whichever came last."""
    opens = [span(4, 1 + number, b"open%d" % number) for number in range(900)]
    others = [span(5, 1 + 6 * number, b"call%d" % number) for number in range(150)]
    found = kept_of(tmp_path, span(5, 0, b"first") + b"".join((*others, span(5, 901, b"last"), *opens)))
    assert b"first;" in found and b"last;" in found and b"open899;" in found and b"open450;" not in found


def test_a_write_among_many_opens_is_not_pushed_out_by_what_came_before_it(tmp_path: Path) -> None:
    """As the agent: fill the record with calls, open the file in a crowd, and let a little more follow."""
    calls = b"".join(span(5, 1 + number, b"call%d" % number) for number in range(900))
    crowd = [span(4, 1001 + number, b"open%d" % number) for number in range(30)]
    crowd.insert(25, span(4, 1026, b"the-write"))
    after = b"".join(span(5, 2001 + number, b"after%d" % number) for number in range(60))
    assert b"the-write;" in kept_of(tmp_path, calls, b"".join(crowd), after)


def test_two_events_that_are_larger_than_the_room_leave_one(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "0123456789abcdef")
    writer = record.Writer(path, "ebpf", "spans", limit=1 << 16)
    for number in range(4):
        writer.append(clock_record(0) + frame(b"big%d;" % number + os.urandom(20_000)), 1)
    writer.close()
    found = b"".join(reader.read_segment(path, name) for name in sorted(os.listdir(path)) if ".spans" in name)
    assert b"big3;" in found and reader.verify(str(path)).problems == ()


def test_the_parts_of_a_piece_say_when_their_latest_event_was() -> None:
    piece = clock_record(7) + span(5, 20, b"a") + span(4, 10, b"b") + spans.lost_record(1, 2, 3, 4)
    assert [latest for _part, latest in spans.split(piece, 1)] == [27, 17, 0]
    assert [latest for _part, latest in spans.split(piece, len(piece))] == [27]


def test_spans_that_went_are_counted_although_nobody_said_how_many_they_were(tmp_path: Path) -> None:
    """The kernel's counters are not looked at for every piece (``tracer.ebpf``)."""
    path = record.make(str(tmp_path), "e" * 16)
    writer = record.Writer(path, "ebpf", "spans", limit=1 << 17)
    total = 0
    for number in range(400):
        walked = os.urandom(120).hex().encode() + b"/w/"
        fields = (decode.OPEN, len(walked), 0, 0, 7, 3, 1, 1, 0, 257, 10**9 + number, 1, 3, 0, 0, 1, 1, b"sh")
        some = number % 7 + 1
        piece = clock_record(10**18) + some * frame(decode.HEADER.pack(*fields) + walked)
        assert decode.count(piece) == some and decode.count(piece[:-200]) == some - 1
        writer.append(piece, 1)
        total += some
    writer.close()
    events, problems = events_of(path)
    kept = sum(event["event"] == "FileOpened" for event in events)
    lost = sum(event["count"] for event in events if event["event"] == "EventsLost")
    assert (kept + lost, problems) == (total, []) and 0 < kept < total


# ---------------------------------------------------------------- tampering


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("changed", "was changed: its SHA-256 is not that of the chain"),
        ("removed", "is missing: No such file or directory"),
        ("added", "session-9000.jsonl is not in the chain"),
        ("cut chain", "session.chain has no end: its writer was killed, or the end was cut off"),
        ("torn chain", "session.chain ends within a line"),
        ("changed chain", ": it does not follow the line before it"),
        ("chain without its first line", "session.chain, line 1: it does not follow the line before it"),
        ("chain of something else", "session.chain, line 1: it does not follow the line before it"),
        ("garbage chain", "session.chain, line 1: it does not follow the line before it"),
        ("removed chain", "session.chain cannot be read: No such file or directory"),
        ("swapped", "was changed: its SHA-256 is not that of the chain"),
    ],
)
def test_tampering_is_found(tmp_path: Path, how: str, said: str) -> None:
    limit = 1 << 19
    path = Path(written(tmp_path, 1500, limit=limit))
    segments = sorted(path.glob("*.jsonl*"))
    chain = path / "session.chain"
    assert len(segments) > 3
    before = reader.verify(str(path))
    assert before.problems == ()
    if how == "changed":
        _flip(segments[1])
    elif how == "removed":
        segments[1].unlink()
    elif how == "added":
        (path / "session-9000.jsonl").write_bytes(line(1))
    elif how == "cut chain":
        lines = chain.read_bytes().splitlines(keepends=True)
        chain.write_bytes(b"".join(lines[:-2]))
    elif how == "torn chain":
        chain.write_bytes(chain.read_bytes()[:-3])
    elif how == "chain without its first line":
        chain.write_bytes(chain.read_bytes().partition(b"\n")[2])
    elif how == "chain of something else":
        chain.write_bytes(b"[1]\n" + chain.read_bytes())
    elif how == "garbage chain":
        chain.write_bytes(b"{\n" + chain.read_bytes())
    elif how == "removed chain":
        chain.unlink()
    elif how == "changed chain":
        chain.write_bytes(chain.read_bytes().replace(b'"records": ', b'"records": 1', 1))
    else:
        first, second = segments[0].read_bytes(), segments[1].read_bytes()
        segments[0].write_bytes(second)
        segments[1].write_bytes(first)
    after = reader.verify(str(path))
    assert any(said in problem for problem in after.problems), after.problems
    assert reader.chain_losses(str(path), "session")[2] == [
        each for each in after.problems if ".chain" in each[:14] and "no end" not in each
    ]
    if "chain" in how:
        assert after.digest != before.digest


def test_an_empty_record_is_not_a_whole_one(tmp_path: Path) -> None:
    assert reader.verify(record.make(str(tmp_path), "e" * 16)).problems == ("it is empty",)


def chained(path: str, source: str, *entries: dict[str, Any]) -> None:
    """A chain of these lines."""
    before, data = "", b""
    for entry in entries:
        text = json.dumps({**entry, "before": before}).encode()
        before, data = record.digest(text), data + text + b"\n"
    Path(path, f"{source}.chain").write_bytes(data)


def test_what_a_chain_counts_is_told_once(tmp_path: Path) -> None:
    """The last line has the sums of those before it."""
    path = record.make(str(tmp_path), "e" * 16)
    losses = {"lost": 3, "cause": "no space"}, {"lost": 4}, {"lost": -1}, {"lost": "many"}
    gone = {"removed": "session-0001.jsonl", "records": 5}, {"removed": "session-0002.jsonl", "segments": 2}
    chained(path, "session", *losses, *gone, {"closed": True, "lost": 7, "removed": 5})
    found = reader.verify(path)
    assert (found.lost, found.removed, found.closed, found.problems) == (7, 3, True, ())
    events, closed, problems = reader.chain_losses(path, "session")
    assert [(each.data["count"], each.data["cause"]) for each in events] == [
        *((3, "no space"), (4, ""), (0, ""), (0, "")),
        *((count, "removed to stay within trace.max_size") for count in (5, 0)),
    ]
    assert (closed, problems) == (True, [])


@pytest.mark.parametrize("open_one", ["network", "session"])
def test_a_record_is_whole_when_each_of_its_sources_is(tmp_path: Path, open_one: str) -> None:
    path = record.make(str(tmp_path), "e" * 16)
    for source in ("network", "session"):
        chained(path, source, {"lost": 0}, *([] if source == open_one else [{"closed": True}]))
    found = reader.verify(path)
    assert not found.closed
    assert found.problems == (f"{open_one}.chain has no end: its writer was killed, or the end was cut off",)
    chained(path, open_one, {"closed": True})
    assert reader.verify(path).closed and reader.verify(path).problems == ()


def test_a_rewritten_chain_has_another_digest(tmp_path: Path) -> None:
    """Who rewrites everything is found by the digest that was kept elsewhere."""
    first = reader.verify(written(tmp_path, 3, "1" * 16, clock=lambda: 5))
    same = reader.verify(written(tmp_path, 3, "2" * 16, clock=lambda: 5))
    other = reader.verify(written(tmp_path, 4, "3" * 16, clock=lambda: 5))
    assert first.digest == same.digest
    assert first.digest != other.digest


# ---------------------------------------------------------------- names


def test_sessions_are_found_by_id_beginning_and_place(tmp_path: Path) -> None:
    for number, name in enumerate(("aa11", "aa22", "bb33"), 1):
        written(tmp_path, 1, name, clock=lambda number=number: number)
    state = str(tmp_path)
    assert [entry.id for entry in reader.sessions(state)] == ["aa11", "aa22", "bb33"]
    for name, wanted in (("aa11", "aa11"), ("b", "bb33"), ("@last", "bb33"), ("@1", "bb33"), ("@3", "aa11")):
        assert reader.find(state, name).id == wanted
    for name in ("aa", "zz", "", "@0", "@4", "@x", "../aa11", "@" + "9" * 20):
        with pytest.raises(PolicyError):
            reader.find(state, name)


def test_the_last_one_is_that_of_the_workspace_one_stands_in(tmp_path: Path) -> None:
    places = ("/srv/a", "/srv/a/sub", "/srv/ab", "/srv/a")
    for number, place in enumerate(places, 1):
        path = record.make(str(tmp_path), f"{number:016x}")
        writer = record.Writer(path, "session", clock=lambda number=number: number)
        writer.append(json.dumps({"event": "SessionStarted", "time": "", "workspace": place}).encode() + b"\n")
        writer.close()
    written(tmp_path, 1, "f" * 16, clock=lambda: 9)  # one that does not say where it ran
    state = str(tmp_path)

    def found(name: str, workspace: str) -> int:
        return int(reader.find(state, name, workspace).id, 16)

    assert reader.find(state, "@last").id == "f" * 16
    assert [found("@last", place) for place in ("/srv/a", "/srv/a/sub", "/srv/ab", "/srv/a/other")] == [4, 4, 3, 4]
    assert [found(f"@{number}", "/srv/a/sub") for number in (1, 2, 3)] == [4, 2, 1]
    assert found("1".zfill(16), "/srv/ab") == 1  # an id is of any workspace
    with pytest.raises(PolicyError, match="there are 5 sessions, 2 of this workspace"):
        found("@3", "/srv/a")
    with pytest.raises(PolicyError, match="0 of this workspace"):
        found("@last", "/srv")


def test_a_name_that_is_no_record_is_not_read(tmp_path: Path) -> None:
    written(tmp_path, 1, "aa11")
    above = Path(record.directory_of(str(tmp_path)))
    (above / "link").symlink_to("aa11")
    (above / "file").write_text("x")
    (above / "bad name").mkdir()
    assert [entry.id for entry in reader.sessions(str(tmp_path))] == ["aa11"]
    target = above / "aa11" / "session-0001.jsonl"
    target.unlink()
    target.symlink_to("/etc/passwd")
    events, problems = events_of(str(above / "aa11"))
    assert events == []
    assert len(problems) == 1


def test_a_second_session_of_the_same_id_is_refused(tmp_path: Path) -> None:
    record.make(str(tmp_path), "aa11")
    with pytest.raises(HostError):
        record.make(str(tmp_path), "aa11")


# ---------------------------------------------------------------- while it is written


def test_a_follower_sees_every_event_once(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "aa11")
    writer = record.Writer(path, "session", limit=1 << 18)
    follower = reader.Follower(path)
    seen: list[int] = []
    for number in range(600):
        writer.append(line(number))
        if number % 37 == 0:
            seen += [event.seq for event in follower.poll()]
            assert not follower.ended()
    writer.close()
    assert follower.ended()
    seen += [event.seq for event in follower.poll()]
    assert seen == list(range(600))
    assert follower.poll() == []


def test_a_follower_of_spans_waits_for_the_rest_of_a_record(tmp_path: Path) -> None:
    """A piece is seen while it is being written: in every part of a record."""
    path = Path(record.make(str(tmp_path), "aa11"))
    session, spans = record.Writer(str(path), "session"), record.Writer(str(path), "ebpf", "spans")
    started = {"time": "2026-01-02T03:04:05.000Z", "event": "SessionStarted", "workspace": "/w\\\\x"}
    session.append(json.dumps(started).encode() + b"\n")
    records = [clock_record(10**18)]
    for walked in (b"f1/w\\x/", b"f1/etc/", b"f2/w\\x/", b"f2/etc/"):
        fields = (decode.OPEN, len(walked), 0, 0, 7, 3, 1, 1, 0, 257, 10**9, 1, 3, 0, 0, 1, 1, b"sh")
        records.append(frame(decode.HEADER.pack(*fields) + walked))
    data = b"".join(records)
    follower = reader.Follower(str(path))
    seen = follower.poll()
    for at in range(0, len(data), 7):
        spans.append(data[at : at + 7], 1)
        seen += follower.poll()
    opened = [(event.path, event.data["outside_workspace"]) for event in seen if event.kind == "FileOpened"]
    assert opened == [("/w\\\\x/f1", False), ("/etc/f1", True), ("/w\\\\x/f2", False), ("/etc/f2", True)]
    spans.close()
    session.close()
    events, problems = events_of(str(path))
    assert problems == []
    assert [(event["path"], event["outside_workspace"]) for event in events if "path" in event] == opened


# ---------------------------------------------------------------- with the log


def test_the_journal_puts_every_event_on_the_record_with_its_number(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "aa11")
    log = EventLog("aa11", "", record.Writer(path, "session"))
    assert log.wants_all
    head = b'{"time": "2026-01-02T03:04:05.000Z", "session": "aa11", "seq": 0, '
    usual = head + b'"event": "NameResolved", "source": "network", "name": "h"}'
    other = (
        b'{"event": "NameResolved", "source": "network", "time": "2026-01-02T03:04:05.001Z", "name": "x \\"seq\\": 0"}'
    )
    log.add_line(usual, "network")
    log.add_line(other, "network")
    log.add_line(usual.replace(b"05.000", b"06.000"), "network", recorded=True)
    log.add_line(usual.replace(b"05.000", b"07.000"), "network")
    log.close()
    events, problems = events_of(path)
    assert [(event["seq"], event["session"]) for event in events] == [(1, "aa11"), (2, "aa11"), (4, "aa11")]
    assert events[0]["name"] == "h"
    assert events[1]["name"] == 'x "seq": 0'
    assert problems == []


def test_a_run_that_did_not_come_about_leaves_no_record(tmp_path: Path) -> None:
    path = record.make(str(tmp_path), "aa11")
    log = EventLog("aa11", "", record.Writer(path, "session"))
    log.give_up()
    assert not os.path.exists(path)


def test_a_writer_is_cheap(tmp_path: Path) -> None:
    """No json, no OpenSSL, no zlib for a short session; the time is measured in ``bench``."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "from membrane.lines import json_text; from membrane.record import writer as record\n"
        f"writer = record.Writer(record.make({str(tmp_path)!r}, 'aa11'), 'session')\n"
        "writer.append(json_text({'event': 'x'}).encode() + b'\\n'); writer.close()\n"
        "print(sorted({'json', 're', 'hashlib', 'zlib', 'gzip', 'typing', 'enum'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SPARE_TIME, check=True
    )
    assert done.stdout == "[]\n"
    assert time.time_ns() > record.started(record.directory_of(str(tmp_path), "aa11")) > 0
