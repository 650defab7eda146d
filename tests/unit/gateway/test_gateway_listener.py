"""Accepting: each client arrives with its addresses, and without descriptors it stops and says so."""

from __future__ import annotations

import _socket
import errno
import socket
from typing import Any

import pytest

from membrane.gateway import listener as module
from membrane.gateway.listener import Listener, capture, original


class Turn:
    """A reactor that runs when it is told to."""

    def __init__(self) -> None:
        self.ready: Any = None
        self.unwatched = 0

    def watch(self, _fd: int, _mask: int, call: Any) -> None:
        self.ready = call

    def unwatch(self, _fd: int) -> None:
        self.unwatched += 1


class Place:
    def __init__(self, family: int = socket.AF_INET) -> None:
        self.reactor = Turn()
        self.socket = _socket.socket(family, socket.SOCK_STREAM)
        self.socket.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        self.socket.listen(200)
        self.arrived: list[tuple[str, int]] = []
        self.clients: list[Any] = []
        self.exhausted = 0
        capture(self.socket)
        self.listener = Listener(self.reactor, self.socket, self._arrive, self._stop)  # type: ignore[arg-type]
        self.listener.start()

    def _arrive(self, client: Any, peer: Any) -> None:
        assert client.getblocking() is False
        self.clients.append(client)
        self.arrived.append(peer[:2])

    def _stop(self, _listener: Listener) -> None:
        self.exhausted += 1

    def close(self) -> None:
        for each in (*self.clients, self.socket):
            each.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_client_arrives_with_both_addresses(family: int) -> None:
    place = Place(family)
    host, port = place.socket.getsockname()[:2]
    with socket.create_connection((host, port)) as client:
        place.reactor.ready(1)
        assert place.arrived == [client.getsockname()[:2]]
        assert place.clients[0].getsockname()[:2] == (host, port)  # where it was meant to go (TPROXY)
        assert place.clients[0].getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE) == 1
    place.close()


def test_a_turn_takes_more_when_more_came() -> None:
    place = Place()
    held = [socket.create_connection(place.socket.getsockname()) for _ in range(10)]
    taken = []
    while len(place.arrived) < 10:
        before = len(place.arrived)
        place.reactor.ready(1)
        taken.append(len(place.arrived) - before)
    assert taken == [1, 2, 3, 4]
    for each in held:
        each.close()
    place.close()


def test_who_dialled_the_listener_itself_has_no_other_destination() -> None:
    place = Place()
    with socket.create_connection(place.socket.getsockname()) as client, pytest.raises(OSError):
        original(client)
    place.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_it_stops_until_it_is_started(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()

    class Full:
        family = socket.AF_INET

        def fileno(self) -> int:
            return place.socket.fileno()

        def _accept(self) -> Any:
            raise OSError(number, "no room")

    monkeypatch.setattr(place.listener, "_socket", Full())
    place.reactor.ready(1)
    assert (place.exhausted, place.reactor.unwatched) == (1, 1)
    place.close()


def test_a_client_that_is_gone_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    answers = iter([OSError(errno.ECONNABORTED, "gone"), BlockingIOError()])

    class Going:
        family = socket.AF_INET

        def fileno(self) -> int:
            return place.socket.fileno()

        def _accept(self) -> Any:
            raise next(answers)

    monkeypatch.setattr(place.listener, "_socket", Going())
    monkeypatch.setattr(place.listener, "_tries", module._MOST)
    place.reactor.ready(1)
    assert place.exhausted == 0 and next(answers, None) is None
    place.close()
