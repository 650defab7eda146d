"""One end of an inspected connection, against a plain socket or against another end, both without blocking."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest

from membrane.gateway.flow import BUFFER
from membrane.gateway.stream import Stream, guarded_read
from membrane.gateway.tls import Authority

NAME = "api.example.com"


@pytest.fixture
def ends() -> Iterator[tuple[Stream, socket.socket]]:
    """A stream, and the blocking socket at its other end."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    theirs.settimeout(60)
    with mine, theirs:
        yield Stream(mine), theirs


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def pair(authority: Authority) -> Iterator[tuple[Stream, Stream]]:
    """A client and a server that have shaken hands."""
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        client, server = Stream(left), Stream(right)
        context = ssl.create_default_context(cadata=authority.pem.decode())
        context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # as ``client_context``
        client.start_tls(context, name=NAME)
        server.start_tls(authority.server_context(NAME, "http/1.1"))
        done = [False, False]
        for _ in range(10):
            for number, end in enumerate((client, server)):
                end.readable = True
                done[number] = done[number] or end.shake()
        assert done == [True, True]
        yield client, server


def everything(stream: Stream) -> bytes:
    """What can be read until the end or until nothing is there."""
    out = b""
    stream.readable = True
    while data := stream.read():
        out += data
    return out


# ---------------------------------------------------------------- without TLS


def test_octets_that_were_read_already_come_first(ends: tuple[Stream, socket.socket]) -> None:
    stream, peer = ends
    begun = Stream(stream.socket, b"first")
    peer.sendall(b"second")
    assert (begun.read(), begun.read(), begun.read()) == (b"first", b"second", None)
    assert not begun.readable
    assert begun.received == len(b"second")  # the others were counted by who read them
    assert (begun.protocol, begun.waiting) == ("", 0)


def test_what_a_full_socket_does_not_take_waits_in_order(ends: tuple[Stream, socket.socket]) -> None:
    stream, peer = ends
    block = bytes(range(256)) * 4096
    stream.write(block)
    stream.write(b"more")
    assert stream.waiting > 0 and not stream.flush()
    got = b""
    while len(got) < len(block) + 4:
        got += peer.recv(1 << 16)
        stream.flush()
    assert got == block + b"more"
    assert (stream.waiting, stream.sent) == (0, len(got))


def test_an_end_follows_what_is_queued_and_the_other_way_stays_open(ends: tuple[Stream, socket.socket]) -> None:
    stream, peer = ends
    block = bytes(1 << 20)
    stream.write(block)
    stream.end()
    assert stream.waiting
    got = 0
    while part := peer.recv(1 << 16):
        got += len(part)
        stream.flush()
    assert got == len(block)
    peer.sendall(b"late")
    peer.shutdown(socket.SHUT_WR)
    assert (stream.read(), stream.read(), stream.ended) == (b"late", b"", True)
    assert stream.read() is None


def test_after_a_failed_write_what_had_come_is_still_read(ends: tuple[Stream, socket.socket]) -> None:
    stream, peer = ends
    peer.sendall(b"answer")
    peer.close()
    with pytest.raises(OSError):
        for _ in range(3):
            stream.write(b"x")
            stream.flush()
    stream.break_off()
    stream.write(b"to nobody")
    assert stream.flush() and stream.waiting == 0
    assert stream.read() == b"answer"


def test_a_failure_of_the_socket_is_told_once() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as mine:
        theirs, _ = listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()
        mine.setblocking(False)
        stream, told = Stream(mine), []
        assert guarded_read(stream, told.append) is None
        assert told == ["Connection reset by peer"]
        assert guarded_read(stream, told.append) is None
        assert len(told) == 1 and stream.ended


# ---------------------------------------------------------------- with TLS


def test_tls_both_ways(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    client.write(b"question")
    assert everything(server) == b"question"
    server.write(b"answer")
    assert everything(client) == b"answer"
    assert server.protocol == "" and client.waiting == server.waiting == 0


def test_a_read_is_bounded_and_nothing_is_lost(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    block = bytes(range(256)) * 8192  # 2 MB, more than any socket buffer here takes
    client.write(block)
    got = b""
    while len(got) < len(block):
        server.readable = True
        data = server.read()
        if data is not None:
            assert 0 < len(data) <= BUFFER + 16384
            got += data
        client.flush()
    assert got == block
    assert client.waiting == 0 and client.sent > len(block)
    assert server.received == client.sent


def test_an_end_in_tls_is_said_and_the_other_way_stays_open(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    client.write(b"last")
    client.end()
    assert server.read() == b"last"
    assert server.read() == b""
    assert not server.ragged
    server.write(b"answer after the end")
    server.end()
    assert everything(client) == b"answer after the end"
    assert client.ended and not client.ragged


def test_an_end_that_was_not_said_in_tls_is_ragged(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    server.write(b"cut o")
    server.socket.shutdown(socket.SHUT_WR)
    assert client.read() == b"cut o"
    assert (client.read(), client.ragged) == (b"", True)


def test_what_was_cut_off_is_passed_on_as_cut_off(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    server.ragged = True  # as the driver says when the other end was
    server.write(b"half")
    server.end()
    assert everything(client) == b"half"
    assert client.ended and client.ragged


def test_octets_that_are_no_record_fail_the_stream(pair: tuple[Stream, Stream]) -> None:
    client, server = pair
    client.socket.send(b"GET / HTTP/1.1\r\n\r\n" * 4)
    told: list[str] = []
    assert guarded_read(server, told.append) is None
    assert len(told) == 1 and told[0].startswith("TLS failed: "), told
    assert server.ended and server.read() is None


def test_a_handshake_that_fails_sends_its_alert(authority: Authority) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    with left, right:
        client, server = Stream(left), Stream(right)
        client.start_tls(ssl.create_default_context(), name=NAME)  # does not know the authority
        server.start_tls(authority.server_context(NAME))
        assert not client.shake()
        server.shake()
        with pytest.raises(ssl.SSLCertVerificationError):
            client.shake()
        with pytest.raises(ssl.SSLError) as raised:
            server.shake()
        assert "UNKNOWN_CA" in str(raised.value)


def test_a_peer_that_goes_away_in_the_handshake_fails_it(authority: Authority) -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    with left:
        stream = Stream(left)
        stream.start_tls(authority.server_context(NAME))
        assert not stream.shake()
        right.close()
        with pytest.raises(OSError):
            stream.shake()
