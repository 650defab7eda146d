"""Which socket is the other end: asked of the kernel about real sockets."""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Iterator

import pytest

from membrane.host.sockdiag import SOCK_DIAG, SocketTable


@pytest.fixture
def table() -> Iterator[SocketTable]:
    diagnosing = _socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)
    yield SocketTable(diagnosing)
    diagnosing.close()


def inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_client_of_a_tcp_connection(table: SocketTable, host: str) -> None:
    served = "127.0.0.1" if host.startswith("::f") else host
    with socket.create_server((served, 0), family=socket.AF_INET6 if ":" in served else socket.AF_INET) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port)) as client, server.accept()[0] as accepted:
            peer, own = accepted.getpeername()[:2], accepted.getsockname()[:2]
            assert table.find(socket.IPPROTO_TCP, peer, own) == inode(client) != inode(accepted)
            assert table.find(socket.IPPROTO_TCP, own, peer) == inode(accepted)
            assert table.find(socket.IPPROTO_TCP, peer, (served, port ^ 1)) == 0
            client.close()
            assert table.find(socket.IPPROTO_TCP, peer, own) == 0  # nobody has it any more


def test_who_listens_on_the_port_of_a_client_that_is_gone_is_not_it(table: SocketTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = server.getsockname()
        assert table.find(socket.IPPROTO_TCP, own, ("127.0.0.1", own[1] ^ 1)) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("connected", [False, True])
def test_the_client_of_a_datagram(table: SocketTable, host: str, connected: bool) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as server, socket.socket(family, socket.SOCK_DGRAM) as client:
        server.bind((host, 0))
        client.bind((host, 0))
        if connected:
            client.connect(server.getsockname())
        assert table.find(socket.IPPROTO_UDP, client.getsockname()[:2], server.getsockname()[:2]) == inode(client)
        assert table.find(socket.IPPROTO_UDP, (host, 0), server.getsockname()[:2]) == 0


def test_an_answer_that_was_not_read_is_not_the_next_one(table: SocketTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pairs = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(2)]
        try:
            (first, _a), (second, _b) = pairs
            read, table._socket = table._socket, _Deaf(table._socket)  # type: ignore[assignment]
            assert table.find(socket.IPPROTO_TCP, first.getsockname(), server.getsockname()) == 0
            table._socket = read
            assert table.find(socket.IPPROTO_TCP, second.getsockname(), server.getsockname()) == inode(second)
        finally:
            for pair in pairs:
                for each in pair:
                    each.close()


class _Deaf:
    """Sends, and hears nothing."""

    def __init__(self, sock: _socket.socket) -> None:
        self.send = sock.send

    def recv(self, _size: int, _flags: int) -> bytes:
        raise BlockingIOError
