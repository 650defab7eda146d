"""Before an answer stands what the client did before it asked: once answered, it may be gone."""

from __future__ import annotations

import socket
import time

from membrane.gateway.reactor import Reactor
from membrane.gateway.udp import serve_dns


class _Nobody:
    """A relay that takes no datagram."""

    def offer(self, *_args: object) -> bool:
        return False

    def asker(self, *_args: object) -> tuple[int, int]:
        return 0, 0


def test_what_was_refused_is_looked_at_before_each_answer_of_one_burst() -> None:
    order: list[str] = []

    class Answerer:
        def answer(self, query: bytes, _send: object, _asker: object) -> bytes:
            order.append(query.decode())
            return b"answer"

    reactor = Reactor()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        server.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        server.bind(("127.0.0.1", 0))
        client.settimeout(60)
        client.connect(server.getsockname())
        serve_dns(
            reactor,
            server,
            Answerer(),
            lambda error: order.append(repr(error)),
            _Nobody(),
            lambda: order.append("refused"),
        )  # type: ignore[arg-type]
        client.send(b"one")
        client.send(b"two")
        end = time.monotonic() + 60
        while len(order) < 4 and time.monotonic() < end:  # on a busy machine a datagram may come in a later turn
            reactor.turn(5)
        assert [client.recv(16), client.recv(16)] == [b"answer"] * 2
        reactor.unwatch(server.fileno())
    reactor.close()
    assert order == ["refused", "one", "refused", "two"]
