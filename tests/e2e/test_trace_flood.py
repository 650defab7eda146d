"""A command that floods the record on purpose: the disk has a bound, and what went is counted."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

from world.box import Box

from membrane.events import EventsLost
from membrane.record import query, reader

PATIENCE = 240.0
PYTHON = "/usr/bin/python3"
CAP = 1 << 20  # bytes
FLOOD = 12_000
# Names that do not compress: what is bounded is what lies on the disk.
CODE = f"""
import os
os.mkdir("first")
for number in range({FLOOD}):
    name = f"/tmp/{{number}}-" + os.urandom(60).hex()
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
    os.unlink(name)
os.mkdir("last")
"""


def taken(directory: Path) -> int:
    total = 0
    for entry in os.scandir(directory):
        try:
            total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            pass  # it was just packed, or made room
    return total


def test_a_flood_stays_below_the_cap_and_says_what_went(box: Box) -> None:
    box.allow(trace={"max_size": "1M"})
    most = looks = 0
    with box.popen("--quiet", "--", PYTHON, "-S", "-c", CODE, stdin=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + PATIENCE
        while run.poll() is None:
            assert time.monotonic() < deadline
            for directory in (box.state / "trace").glob("*"):
                most, looks = max(most, taken(directory)), looks + 1
            select.select([], [], [], 0.005)  # until the next look
        assert run.returncode == 0
    [entry] = reader.sessions(str(box.state))
    most = max(most, taken(Path(entry.path)))
    assert most <= CAP and looks > 3, (most, looks)
    assert most > CAP // 8  # the control: there was something to bound
    record = reader.Record(entry.path)
    events = list(record.events())
    assert record.problems == []
    verified = reader.verify(entry.path)
    assert verified.problems == () and verified.removed > 0
    # Both ends are there, and every event is, or is said to be gone.
    made = [os.path.basename(each.path) for each in events if each.kind == "FileCreated"]
    # The kernel's ring may run over as well, on a machine with much other work: then it says so.
    ran_over = any(each.kind == "EventsLost" and not each.data.get("cause") for each in events)
    assert made[0] == "first" and (made[-1] == "last" or ran_over), made
    kept = sum(each.kind in ("FileOpened", "FileRemoved") and each.path.startswith("/tmp/") for each in events)
    lost = sum(each.event.count for each in events if isinstance(each.event, EventsLost))
    assert 0 < kept < 2 * FLOOD and kept + lost >= 2 * FLOOD, (kept, lost)
    gaps = query.summarise(events).gaps(record.problems)
    assert any("removed to stay within trace.max_size" in gap for gap in gaps), gaps
    assert "INCOMPLETE" in box.run("trace", "summary").stdout
