"""Connections from the host to a server of the command, with a launcher of the test's own."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from membrane.events import ConnectionClosed, ConnectionOpened
from membrane.gateway.exposed import Exposed
from membrane.gateway.reactor import Reactor
from membrane.host.channel import Channel
from membrane.host.messages import FROM_FACTORY, TO_FACTORY, TO_SERVERS, DialServer, MakeSocket, SocketMade
from membrane.host.supervised_servers import Servers


class Rig:
    """A listener of the host, a server inside, and the launcher's end, driven turn by turn."""

    def __init__(self, connections: int = 8) -> None:
        self.reactor = Reactor()
        self.events: list[Any] = []
        self.crashes: list[BaseException] = []
        launcher, factory = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.launcher = Channel(launcher, FROM_FACTORY, TO_FACTORY)
        self.launcher.setblocking(False)
        self.factory = factory
        numbers = count(1)
        self.exposed = Exposed(
            self.reactor,
            factory,
            self.events.append,
            self.crashes.append,
            lambda: next(numbers),
            connections=connections,
        )  # type: ignore[arg-type]
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.exposed.listen(self.listener, self.port)
        self.asked: list[int] = []
        self.answers = True  # the launcher has sockets
        self.clients: list[socket.socket] = []

    def turn(self) -> None:
        self.reactor.turn(0.01)
        try:
            wanted = self.launcher.receive()
        except BlockingIOError:
            return
        assert isinstance(wanted, MakeSocket)
        self.asked.append(wanted.family)
        if not self.answers or wanted.family == socket.AF_INET6:
            self.launcher.send(SocketMade(None))
            return
        with socket.socket() as made:
            self.launcher.send(SocketMade(made.fileno()))

    def until(self, done: Callable[[], object]) -> None:
        for _ in range(1000):
            if done():
                return
            self.turn()
        raise AssertionError(self.events)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), timeout=60)
        self.clients.append(client)
        return client

    def carried(self) -> tuple[socket.socket, socket.socket]:
        client, opened = self.connect(), len(self.of(ConnectionOpened))
        self.until(lambda: len(self.of(ConnectionOpened)) > opened)
        server, _peer = self.server.accept()
        server.settimeout(60)
        self.clients.append(server)
        return client, server

    def close(self) -> None:
        self.exposed.close()
        self.reactor.close()
        ends: list[Any] = [*self.clients, self.launcher, self.factory, self.server, self.listener]
        for each in ends:
            each.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def assert_reset(client: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        assert client.recv(1) == b"never"


def test_bytes_are_carried_and_what_the_server_says_goes_up(rig: Rig) -> None:
    client, server = rig.carried()
    client.sendall(b"question")
    rig.turn()
    assert server.recv(100) == b"question"
    server.sendall(b"an answer!")
    server.close()
    client.shutdown(socket.SHUT_WR)
    rig.until(lambda: rig.of(ConnectionClosed))
    assert client.recv(100) + client.recv(100) == b"an answer!"
    [opened], [closed] = rig.of(ConnectionOpened), rig.of(ConnectionClosed)
    assert (opened.protocol, opened.host, opened.address, opened.port) == (
        "exposed",
        "localhost",
        "127.0.0.1",
        rig.port,
    )
    assert opened.client_port == client.getsockname()[1]
    assert (closed.id, closed.bytes_up, closed.bytes_down, closed.error) == (opened.id, 10, 8, "")
    assert rig.exposed.connections == set()


def test_a_server_that_is_not_there_is_tried_over_both_families_and_told_by_a_reset(rig: Rig) -> None:
    rig.server.close()
    client = rig.connect()
    rig.until(lambda: rig.of(ConnectionClosed))
    rig.turn()
    assert_reset(client)
    assert rig.asked == [socket.AF_INET, socket.AF_INET6]
    assert [type(event) for event in rig.events] == [ConnectionOpened, ConnectionClosed]
    assert rig.of(ConnectionClosed)[0].error == "no socket"


def test_a_launcher_without_sockets_ends_the_connection_only(rig: Rig) -> None:
    rig.answers = False
    client = rig.connect()
    rig.until(lambda: rig.of(ConnectionClosed))
    rig.turn()
    assert_reset(client)
    rig.answers = True
    assert rig.carried()
    assert rig.crashes == []


def test_a_reset_on_one_side_resets_the_other(rig: Rig) -> None:
    client, server = rig.carried()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    rig.until(lambda: rig.of(ConnectionClosed))
    rig.turn()
    assert_reset(client)


def test_a_socket_for_a_client_that_is_gone_is_closed(rig: Rig) -> None:
    client = rig.connect()
    rig.until(lambda: rig.exposed.connections)
    for connection in list(rig.exposed.connections):
        connection.abort("gone")
    rig.until(lambda: rig.asked)  # the launcher answers all the same
    rig.turn()
    assert_reset(client)
    assert rig.crashes == []
    assert rig.carried()  # and the order of questions and answers still holds


def test_one_too_many_is_reset_and_not_told() -> None:
    rig = Rig(connections=1)
    rig.carried()
    client = rig.connect()
    rig.turn()
    assert_reset(client)
    assert (len(rig.of(ConnectionOpened)), rig.exposed.accepted) == (1, 1)
    rig.close()


def test_at_the_end_of_the_session_what_is_cut_short_does_not_look_whole(rig: Rig) -> None:
    client, server = rig.carried()
    rig.exposed.close()
    rig.turn()
    assert_reset(client)
    assert_reset(server)
    assert rig.of(ConnectionClosed)[0].error == "session ended"


@pytest.mark.parametrize("whose", ["the command's", "another's"])
def test_the_keeper_dials_the_command_s_servers_and_no_other(whose: str) -> None:
    """Without a namespace: what listens at the port counts, and whose it is."""
    reactor, events = Reactor(), list[Any]()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = Channel(theirs, FROM_FACTORY, TO_SERVERS)
    keeper.setblocking(False)
    numbers = count(1)
    exposed = Exposed(reactor, ours, events.append, pytest.fail, lambda: next(numbers), dials=True)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        port = server.getsockname()[1]
        known = server if whose == "the command's" else listener
        servers = Servers()
        servers.bound(port, os.fstat(known.fileno()).st_ino)
        exposed.listen(listener, port)
        client = socket.create_connection(listener.getsockname(), timeout=60)
        for _ in range(1000):
            reactor.turn(0.01)
            try:
                wanted = keeper.receive()
            except BlockingIOError:
                if events:
                    break
                continue
            assert wanted == DialServer(port)
            made = servers.dial(port)
            keeper.send(SocketMade(None if made < 0 else made))
            if made >= 0:
                os.close(made)
        opened = next(event for event in events if isinstance(event, ConnectionOpened))
        assert (opened.protocol, opened.host, opened.port) == ("exposed", "localhost", port)
        if known is server:
            assert opened.address == "127.0.0.1"
            server.accept()[0].close()
        else:
            assert_reset(client)
        client.close()
    exposed.close()
    reactor.close()
    keeper.close()
    ours.close()
