"""Which local port stands for which destination."""

from __future__ import annotations

import socket

from membrane.gateway.destinations import Destinations
from membrane.gateway.reactor import Reactor


def test_a_port_is_known_once_and_the_last_word_counts() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        known = Destinations(Reactor(), ours)
        assert known.take(5) is None
        theirs.send(b"5 192.0.2.1 80")
        theirs.send(b"6 2001:db8::1 443")
        theirs.send(b"5 192.0.2.2 81")
        assert known.take(5) == ("192.0.2.2", 81)
        assert known.take(5) is None
        assert known.take(6) == ("2001:db8::1", 443)


def test_what_comes_is_read_before_a_connection_is_there() -> None:
    """Whoever sends waits for room: a connection that never came must not take it for ever."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        reactor = Reactor()
        known = Destinations(reactor, ours)
        theirs.setblocking(False)
        for port in range(1, 10000):
            try:
                theirs.send(b"%d 192.0.2.1 80" % port)
            except BlockingIOError:
                reactor.turn(0)
                theirs.send(b"%d 192.0.2.1 80" % port)
        assert known.take(1) == known.take(9999) == ("192.0.2.1", 80)


def test_the_end_of_the_sender_is_no_destination() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        reactor = Reactor()
        known = Destinations(reactor, ours)
        theirs.close()
        assert reactor.turn(0)
        assert known.take(1) is None
        assert not reactor.turn(0)  # it is looked at no more
