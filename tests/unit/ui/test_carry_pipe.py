"""Streams over the pipe of a carried run: whole, bounded, and nothing but what the table of the other half has."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from membrane.ui import pipe as module
from membrane.ui.pipe import Broken, Pipe, Service

SECONDS = 60


def turn(*pipes: Pipe) -> None:
    """Wait for one of them, once."""
    poll = select.poll()
    for each in pipes:
        for fd, events in each.waits().items():
            poll.register(fd, events)
    found = poll.poll(SECONDS * 1000)
    assert found
    for each in pipes:
        each.turn([row for row in found if row[0] in each.waits()])


class Halves:
    """Two halves on a socket pair; ``inside`` is the one that is not trusted."""

    def __init__(self, services: list[Service], inner: list[Service]) -> None:
        self.line = socket.socketpair()
        self.outside = Pipe(self.line[0].fileno(), self.line[0].fileno(), 0, services)
        self.inside = Pipe(self.line[1].fileno(), self.line[1].fileno(), 1, inner)

    def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            turn(self.outside, self.inside)

    def close(self) -> None:
        self.outside.close()
        self.inside.close()
        for each in self.line:
            each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Service]:
    """A service behind a unix socket that answers with the hash of what it got up to its end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "service"))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # its client may go at any time
                told = hashlib.sha256()
                while data := connection.recv(1 << 16):
                    told.update(data)
                connection.sendall(told.hexdigest().encode())

    thread = threading.Thread(target=serve)
    thread.start()
    yield Service("socket", str(tmp_path / "service"), os.geteuid())
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(SECONDS)


def listening(tmp_path: Path, name: str = "inner") -> tuple[socket.socket, Callable[[], socket.socket]]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / name))
    listener.listen()

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(tmp_path / name))
        return client

    return listener, connect


def test_a_stream_is_whole_in_both_directions(tmp_path: Path, server: Service) -> None:
    halves = Halves([server], [])
    listener, connect = listening(tmp_path)
    halves.inside.listen(listener, 0)
    data = os.urandom(3 * module.WINDOW + 17)
    said: list[bytes] = []

    def client() -> None:
        with connect() as own:
            own.sendall(data)
            own.shutdown(socket.SHUT_WR)
            own.settimeout(SECONDS)
            said.append(own.recv(100))
            assert own.recv(1) == b""

    thread = threading.Thread(target=client)
    thread.start()
    halves.until(lambda: bool(halves.inside._streams))
    halves.until(lambda: not halves.inside._streams and not halves.outside._streams)
    thread.join(SECONDS)
    assert said == [hashlib.sha256(data).hexdigest().encode()]
    halves.close()


def test_one_that_is_not_read_holds_up_no_other(tmp_path: Path, server: Service) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    halves = Halves([server, Service("socket", str(tmp_path / "silent"), os.geteuid())], [])
    first, to_server = listening(tmp_path, "first")
    second, to_silent = listening(tmp_path, "second")
    halves.inside.listen(first, 0)
    halves.inside.listen(second, 1)
    with to_silent() as stuck:
        stuck.setblocking(False)
        sent = 0

        def fill() -> bool:
            nonlocal sent
            try:
                while True:
                    sent += stuck.send(bytes(1 << 16))
            except BlockingIOError:
                (stream,) = halves.inside._streams.values()
                return stream.credit == 0

        turn(halves.outside, halves.inside)
        halves.until(fill)
        assert max(len(each.pending) for each in halves.outside._streams.values()) <= module.WINDOW
        own = to_server()
        own.sendall(b"x")
        own.shutdown(socket.SHUT_WR)
        own.setblocking(False)
        halves.until(lambda: bool(select.select([own], [], [], 0)[0]))
        assert own.recv(100) == hashlib.sha256(b"x").hexdigest().encode()
        own.close()
    silent.close()
    halves.close()


def test_a_port_that_nothing_listens_on_is_a_reset() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        halves = Halves([], [Service("port", port=free.getsockname()[1])])
        listener = socket.create_server(("127.0.0.1", 0))
        halves.outside.listen(listener, 0)
        with socket.create_connection(listener.getsockname()) as client:
            client.setblocking(False)
            halves.until(lambda: bool(select.select([client], [], [], 0)[0]))
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        halves.close()


def test_a_file_has_it_all_when_its_stream_is_gone(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    halves = Halves([Service("file", fd=fd)], [])
    data = os.urandom(module.WINDOW * 2)
    (tmp_path / "source").write_bytes(data)
    number = halves.inside.send(os.open(tmp_path / "source", os.O_RDONLY), 0)
    halves.until(lambda: not halves.inside.is_open(number))
    assert (tmp_path / "file").read_bytes() == data
    os.close(fd)
    halves.close()


def frame(kind: int, number: int, data: bytes = b"") -> bytes:
    return bytes((kind,)) + number.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


FIRST = frame(module.OPEN, 3, bytes(4))
HOSTILE = {
    "a kind": frame(9, 3),
    "a length": bytes((module.DATA,)) + (3).to_bytes(4, "big") + (module.PIECE + 1).to_bytes(4, "big"),
    "the longest length": bytes((module.DATA,)) + (3).to_bytes(4, "big") + b"\xff\xff\xff\xff",
    "a service": frame(module.OPEN, 5, (7).to_bytes(4, "big")),
    "a short number of a service": frame(module.OPEN, 5, b"\0"),
    "a path instead of a number": frame(module.OPEN, 5, b"/var/run/docker.sock"),
    "a number of the other half": frame(module.OPEN, 4, bytes(4)),
    "a stream again": FIRST,
    "too many streams": b"".join(frame(module.OPEN, 5 + 2 * n, bytes(4)) for n in range(2 * module.MOST)),
    "data over the window": b"".join(
        frame(module.DATA, 3, bytes(module.PIECE)) for _ in range(2 + 2 * module.WINDOW // module.PIECE)
    ),
    "data after the end": frame(module.END, 3) + frame(module.DATA, 3, b"x"),
    "credit from nowhere": frame(module.CREDIT, 3, (1).to_bytes(4, "big")),
    "credit that is cut": frame(module.CREDIT, 3, b"\0"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_the_half_inside_may_not_say_ends_the_pipe(what: str, tmp_path: Path) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen(1000)
    ours, theirs = socket.socketpair()
    outside = Pipe(ours.fileno(), ours.fileno(), 0, [Service("socket", str(tmp_path / "silent"), os.geteuid())])
    theirs.sendall(FIRST)
    turn(outside)
    assert len(outside._streams) == 1  # the control: so far all was as it may be

    def write() -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what is too much has no reader to its end
            theirs.sendall(HOSTILE[what])

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(Broken):
        while True:
            turn(outside)
    kept = sum(len(each.pending) for each in outside._streams.values()) + len(outside._in)
    assert kept <= module.WINDOW + 2 * module.PIECE + (1 << 16)
    outside.close()
    ours.close()
    writer.join(SECONDS)
    assert not writer.is_alive()
    theirs.close()
    silent.close()


@pytest.mark.parametrize("instead", ["a file", "a link", "another one's"])
def test_what_took_the_place_of_a_socket_is_not_opened(instead: str, tmp_path: Path, server: Service) -> None:
    path = Path(server.path)
    halves = Halves([server.replace(owner=server.owner + (instead == "another one's"))], [])
    if instead != "another one's":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved") if instead == "a link" else path.write_text("")
    listener, connect = listening(tmp_path)
    halves.inside.listen(listener, 0)
    with connect() as client:
        client.setblocking(False)
        halves.until(lambda: bool(select.select([client], [], [], 0)[0]))
        assert client.recv(1) == b""
    halves.close()


def test_the_end_of_the_pipe_ends_what_goes_over_it(tmp_path: Path, server: Service) -> None:
    halves = Halves([server], [])
    listener, connect = listening(tmp_path)
    halves.inside.listen(listener, 0)
    with connect() as client:
        halves.until(lambda: bool(halves.outside._streams))
        halves.line[0].shutdown(socket.SHUT_RDWR)
        halves.until(lambda: halves.inside.ended or halves.outside.ended)
        for each in (halves.outside, halves.inside):
            while not each.ended:
                turn(each)
        assert client.recv(1) == b"" and not halves.inside.waits()
    halves.close()
