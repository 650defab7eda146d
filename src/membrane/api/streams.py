"""Pipes and queues between a sandbox and an event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .model import Event

if TYPE_CHECKING:
    import queue
    from collections.abc import Iterator, Sequence

MOST_EVENTS = 10_000  # that wait for a reader
DEVNULL = subprocess.DEVNULL
PIPE = subprocess.PIPE


class Events:
    """What one reader has yet to take; None is the end.

    Args:
        waiting: where that is, of a kind on which the reader can wait.
    """

    def __init__(self, waiting: asyncio.Queue[Event | None] | queue.SimpleQueue[Event | None]) -> None:
        self.waiting = waiting
        self._missed = 0

    def put(self, event: Event | None) -> None:
        if event is not None and self.waiting.qsize() >= MOST_EVENTS:
            self._missed += 1
            return
        if self._missed:
            data = {"event": "EventsLost", "kind": "event", "count": self._missed, "source": "session"}
            self.waiting.put_nowait(Event("EventsLost", "", "session", data))
            self._missed = 0
        self.waiting.put_nowait(event)


class Pipes:
    """The pipes of ``run``: what is written to one and collected from the others."""

    def __init__(self) -> None:
        self._given: list[int] = []
        self._input = b""
        self._in = -1
        self._outs: list[int] = []
        self._kept: dict[int, bytearray] = {}
        self._most: dict[int, int] = {}
        self._truncated = False

    def writer(self, data: bytes | None) -> int:
        if data is None:
            given = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        else:
            given, self._in = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._in, False)
            self._input = bytes(data)
        self._given.append(given)
        return given

    def reader(self, most: int) -> int:
        mine, given = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(mine, False)
        self._outs.append(mine)
        self._kept[mine], self._most[mine] = bytearray(), most
        self._given.append(given)
        return given

    def own(self, number: int) -> int:
        """This program's own stream."""
        self._given.append(os.dup(number))
        return self._given[-1]

    def give_away(self) -> None:
        """Close the command's ends here."""
        close_all(self._given)
        self._given = []

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        for fd in self._outs:
            loop.add_reader(fd, self._read, loop, fd)
        if self._in >= 0:
            loop.add_writer(self._in, self._write, loop)

    def _read(self, loop: asyncio.AbstractEventLoop, fd: int) -> bool:
        """Take what is there; False at the end or when there is nothing."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            loop.remove_reader(fd)
            return False
        kept = self._kept[fd]
        room = self._most[fd] - len(kept)
        kept += data[: max(0, room)]
        self._truncated = self._truncated or len(data) > room
        return True

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._input:
                self._input = self._input[os.write(self._in, self._input[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            self._input = b""  # it does not read any more
        if not self._input:
            loop.remove_writer(self._in)
            os.close(self._in)
            self._in = -1

    def finish(self, loop: asyncio.AbstractEventLoop) -> tuple[bytes, bytes, bool]:
        """The command has ended: what is in the pipes, and no more, belongs to it."""
        for fd in self._outs:
            for _ in range(1024):
                if not self._read(loop, fd):
                    break
            loop.remove_reader(fd)
        if self._in >= 0:
            loop.remove_writer(self._in)
        kept = [bytes(self._kept[fd]) for fd in self._outs] or [b"", b""]
        self.close()
        return kept[0], kept[1], self._truncated

    def close(self) -> None:
        close_all([*self._given, *self._outs, self._in])
        self._given, self._outs, self._in = [], [], -1


def standard_stream(number: int, wanted: int | None) -> tuple[int, int]:
    """(our end or -1, the command's) of one standard stream; both are the caller's to close."""
    if wanted == PIPE:
        read, write = os.pipe2(os.O_CLOEXEC)
        return (write, read) if number == 0 else (read, write)
    if wanted == DEVNULL:
        return -1, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return -1, os.dup(number if wanted is None else wanted)


@contextmanager
def standard_streams(wanted: Sequence[int | None]) -> Iterator[tuple[list[int], list[int]]]:
    """``standard_stream`` of all three.  The command's are closed at the end; ours only on an error."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for number, each in enumerate(wanted):
            mine, given = standard_stream(number, each)
            ours.append(mine)
            theirs.append(given)
        yield ours, theirs
    except BaseException:
        close_all(ours)
        raise
    finally:
        close_all(theirs)


async def pipe_stream(loop: asyncio.AbstractEventLoop, fd: int, writes: bool) -> Any:
    file = os.fdopen(fd, "wb" if writes else "rb", buffering=0)
    if writes:
        transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop=loop), file)
        return asyncio.StreamWriter(transport, protocol, None, loop)
    reader = asyncio.StreamReader(loop=loop)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), file)
    return reader


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
