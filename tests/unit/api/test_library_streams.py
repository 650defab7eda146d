"""Pipes of a run and queues of events: bounded, and closed whatever happens."""

from __future__ import annotations

import asyncio
import os

import pytest

from membrane.api import streams
from membrane.api.model import Event
from membrane.api.streams import DEVNULL, PIPE, Events, Pipes, standard_stream


def event(number: int) -> Event:
    return Event("X", "", "session", {"number": number})


def test_what_no_reader_takes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_EVENTS", 3)

    async def play() -> list[Event | None]:
        waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        reader = Events(waiting)
        for number in range(5):
            reader.put(event(number))
        reader.put(None)
        return [await waiting.get() for _ in range(5)]

    found = asyncio.run(play())
    assert [each.data["number"] for each in found[:3] if each] == [0, 1, 2]
    lost, end = found[3:]
    assert lost is not None and (lost.kind, lost.data["count"]) == ("EventsLost", 2) and end is None


def through(data: bytes | None, out: bytes, most: int) -> tuple[bytes, bytes, bool, bytes]:
    """What ``Pipes`` collects of a command that reads all of its input and writes ``out``."""

    async def play() -> tuple[bytes, bytes, bool, bytes]:
        pipes, loop = Pipes(), asyncio.get_running_loop()
        before = len(os.listdir("/proc/self/fd"))
        given = os.dup(pipes.writer(data))
        theirs, errors = os.dup(pipes.reader(most)), os.dup(pipes.reader(most))
        pipes.give_away()
        pipes.begin(loop)

        def command() -> bytes:
            read = b""
            while part := os.read(given, 1 << 16):
                read += part
            sent = 0
            while sent < len(out):
                sent += os.write(theirs, out[sent:])
            for fd in (given, theirs, errors):
                os.close(fd)
            return read

        read = await asyncio.to_thread(command)
        found = pipes.finish(loop)
        assert len(os.listdir("/proc/self/fd")) == before
        return (*found, read)

    return asyncio.run(play())


def test_what_goes_in_and_what_comes_out() -> None:
    data = os.urandom(300_000)  # more than a pipe has room for
    assert through(data, data, 1 << 20) == (data, b"", False, data)
    assert through(None, b"x", 1 << 20) == (b"x", b"", False, b"")
    assert through(b"", b"", 1 << 20) == (b"", b"", False, b"")


def test_more_than_is_kept_is_read_and_said() -> None:
    kept, _errors, cut, _read = through(None, b"y" * 200_000, 1000)
    assert (kept, cut) == (b"y" * 1000, True)


def test_standard_streams() -> None:
    for number in (0, 1):
        mine, theirs = standard_stream(number, PIPE)
        write, read = (mine, theirs) if number == 0 else (theirs, mine)
        os.write(write, b"x")
        assert os.read(read, 10) == b"x"
        streams.close_all((mine, theirs))
    mine, theirs = standard_stream(1, DEVNULL)
    assert mine == -1 and os.path.samestat(os.fstat(theirs), os.stat(os.devnull))
    streams.close_all((mine, theirs))
