"""The record in other forms: written to a file at the end of a run, or to any stream.

Theory of operation
-------------------
Reads with ``reader``, joins with ``joining``, converts with the pure modules of ``formats``, writes lines.
A file appears under its name when it is whole.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from . import joining
from .formats import otlp, tracee_json
from .reader import Follower, Record
from .recorded import Recorded

FORMATS: dict[str, Callable[[Iterable[Recorded]], Iterable[dict[str, Any]]]] = {
    "tracee": tracee_json.convert,
    "events": lambda events: (each.data for each in events),
    "ocsf": otlp.ocsf,
    "otlp": otlp.otlp,
}
POLL = 0.2  # seconds between two looks at a record that is written


def lines(events: Iterable[Recorded], form: str) -> Iterator[str]:
    """``events`` in the format ``form``, one line each.

    Raises:
        KeyError: there is no such format.
    """
    for item in FORMATS[form](events):
        yield json.dumps(item)


def write(path: str, stream: BinaryIO, form: str) -> list[str]:
    """The whole record in the directory ``path``; what could not be read of it."""
    record = Record(path)
    for line in lines(joining.joined(record.events()), form):
        stream.write(line.encode() + b"\n")
    return record.problems


def write_log(path: str, destination: str, place: int | None = None) -> None:
    """The record as Tracee's JSON lines in the file ``destination``; compressed when its name ends in ``.gz``.

    Args:
        path: of the record.
        place: the directory of ``destination``, where that may be another one by now.

    Raises:
        OSError: it cannot be written; nothing is left under the name.
    """
    if place is not None:
        destination = os.path.basename(destination)
    if destination.startswith(("/dev/", "/proc/")):
        return  # a device, or a stream of ours: it has had the lines as they came, and nothing takes its name away
    try:
        mode = os.stat(destination, dir_fd=place, follow_symlinks=False).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        return  # a FIFO: the same
    half = f"{destination}.new"
    fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=place)
    try:
        with open(fd, "wb") as file:
            if destination.endswith(".gz"):
                import gzip

                with gzip.GzipFile("", "wb", 6, file) as packed:
                    write(path, packed, "tracee")  # type: ignore[arg-type, unused-ignore]
            else:
                write(path, file, "tracee")
        os.rename(half, destination, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        os.unlink(half, dir_fd=place)
        raise


def arriving(path: str) -> Iterator[Recorded]:
    """The events of a record as they are written, with their processes, until it is not written to any more."""
    follower = Follower(path)
    joiner, programs = joining.Joiner(), joining.Once()
    while True:
        ended = follower.ended()  # asked first: what was written before the end is taken below
        for event in follower.poll():
            yield from map(joiner.add, programs.add(event))
        if ended:
            yield from map(joiner.add, programs.rest())
            return
        time.sleep(POLL)
