"""``python -m bench.trace_flood [--gigabytes N]``: a flood of events against the cap of a record's size.

Theory of operation
-------------------
One session with the writers that it has in a real run: the session's, the notifications' (JSON lines) and eBPF's (raw
spans), each in a process of its own, with shares of one ``trace.max_size``.  The events are made up once, so that they
compress as real ones do (``--noise``: hardly at all), and are written round and round until the sum is reached.  What
the directory takes is looked at every ``LOOK`` seconds meanwhile, and the most is a row.  Then the record is verified,
read, and asked for its first and its last events and for what it says was dropped.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from membrane.events import EventsLost
from membrane.lines import json_text
from membrane.record import decode
from membrane.record import reader as reading
from membrane.record import spans as raw
from membrane.record import writer as record

from . import __main__ as bench

LOOK = 0.02
PIECE = 48 << 10  # bytes of one ``append``, as the tracer makes them
POOL = 256  # different pieces
# Which part of the sum a source writes: a flood is of files, whoever sees it.
PARTS = {"ebpf": 0.6, "notify": 0.39, "session": 0.01}


def lines(dice: random.Random, noise: bool, source: str) -> tuple[bytes, int]:
    out, size = [], 0
    while size < PIECE:
        name = dice.randbytes(40).hex() if noise else f"src/module{dice.randrange(400)}/file{dice.randrange(10000)}.py"
        head = {"time": f"2026-01-02T03:04:05.{dice.randrange(10**6):06}Z", "session": "f" * 16, "seq": 0}
        process = {
            "pid": dice.randrange(2, 30000),
            "start": dice.randrange(10**7),
            "name": "make",
            "exe": "/usr/bin/make",
        }
        what = {"event": "FileOpened", "source": source, "process": process, "path": f"/project/{name}"}
        rest = {"flags": ["wronly", "creat"], "result": "", "requested": True, "outside_workspace": False, "count": 1}
        out.append(json_text({**head, **what, **rest}).encode() + b"\n")
        size += len(out[-1])
    return b"".join(out), len(out)


def spans(dice: random.Random, noise: bool, _source: str) -> tuple[bytes, int]:
    out, size, count = [raw.clock_record(10**18)], 0, 0
    while size < PIECE:
        name = dice.randbytes(40).hex() if noise else f"file{dice.randrange(10000)}.py"
        walked = f"{name}/module{dice.randrange(400)}/src/project/".encode()
        pid = dice.randrange(2, 30000)
        at = 10**12 + count
        fields = (decode.OPEN, len(walked), 0, 0, pid, 2, pid, pid, 0, 257, at, pid, 3, 0, 0, 0o101, 1, b"make")
        out.append(raw.frame(decode.HEADER.pack(*fields) + walked))
        size += len(out[-1])
        count += 1
    return b"".join(out), count


def flood(path: str, source: str, total: int, limit: int, noise: bool) -> int:
    """Write ``total`` bytes; how many records that were."""
    dice = random.Random(source)
    make: Callable[[random.Random, bool, str], tuple[bytes, int]] = spans if source == "ebpf" else lines
    pool = [make(dice, noise, source) for _ in range(POOL)]
    writer = record.Writer(path, source, "spans" if source == "ebpf" else "jsonl", limit=limit)
    done = count = 0
    while done < total:
        piece, records = pool[dice.randrange(POOL)]
        writer.append(piece, records)
        done += len(piece)
        count += records
    writer.close()
    return count


def taken(path: str) -> tuple[int, int]:
    """Bytes of the files of a directory, and of the blocks that they take."""
    sizes = blocks = 0
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it has just made room, or was packed
            sizes, blocks = sizes + status.st_size, blocks + status.st_blocks * 512
    return sizes, blocks


def measure(rows: bench.Bench, state: str, gigabytes: float, max_size: int, noise: bool) -> bool:
    """The flood and what became of it; whether the cap held and nothing was lost in silence."""
    path = record.make(state, "f" * 16)
    total = int(gigabytes * 10**9)
    begin = time.perf_counter()
    children = {}
    for source, part in PARTS.items():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                count = flood(path, source, int(total * part), record.share(max_size, source), noise)
                os.write(writer, str(count).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        children[pid] = (source, reader)
    most = most_blocks = looks = 0
    written: dict[str, int] = {}
    failed = False
    while children:
        sizes, blocks = taken(path)
        most, most_blocks, looks = max(most, sizes), max(most_blocks, blocks), looks + 1
        time.sleep(LOOK)
        for pid, (source, reader) in list(children.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                failed = os.waitpid(pid, 0)[1] != 0 or failed
                written[source] = int(os.read(reader, 64) or b"0")
                os.close(reader)
                del children[pid]
    took = time.perf_counter() - begin
    cap = max_size or record.MAX_SIZE
    label = f"flood of {gigabytes:g} GB"
    rows.add(f"{label}: time", [took], "s", "", "")
    rows.add(f"{label}: rate", [total / took / 1e6], "MB/s", "", "")
    rows.add(f"{label}: most on disk, {looks} looks", [most / cap], "x", f"cap of {cap >> 20} MiB", "<= 1")
    rows.add(f"{label}: most in blocks", [most_blocks / cap], "x", "the cap", "<= 1")
    begin = time.perf_counter()
    verified = reading.verify(path)
    rows.add(f"{label}: verify", [time.perf_counter() - begin], "s", "", "")
    begin = time.perf_counter()
    found = reading.Record(path)
    kept: dict[str, int] = {}
    lost: dict[str, int] = {}
    causes: set[str] = set()
    for each in found.events():
        event = each.event
        if isinstance(event, EventsLost):
            lost[event.kind] = lost.get(event.kind, 0) + event.count
            causes.add(event.cause)
        else:
            kept[each.source] = kept.get(each.source, 0) + 1
    took = time.perf_counter() - begin
    rows.add(f"{label}: read what is left", [took], "s", "", "")
    rows.add(
        f"{label}: the reader's memory", [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024], "MiB", "", ""
    )
    told = sum(kept.values()) + sum(lost.values())
    rows.add(f"{label}: kept or said to be lost", [told / sum(written.values())], "x", "what was written", "1")
    print(f"written {written}, kept {kept}, lost {lost}, because {sorted(causes)}; problems {found.problems}")
    print(f"verify: {verified.segments} segments, {verified.removed} removed, {list(verified.problems)}")
    return not failed and most <= cap and told == sum(written.values()) and not verified.problems


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trace_flood", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--cap", type=int, default=0, metavar="MIB", help="trace.max_size; default: that of a run")
    parser.add_argument("--noise", action="store_true", help="names that do not compress")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="membrane-flood-") as state:
        held = measure(bench.Bench(), str(Path(state)), options.gigabytes, options.cap << 20, options.noise)
    sys.exit(not held)


if __name__ == "__main__":
    main()
