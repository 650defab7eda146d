"""Which local port stands for which destination."""

from __future__ import annotations

import socket

from membrane.gateway.destinations import Destinations


def test_a_port_is_known_once_and_the_last_word_counts() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        known = Destinations(ours)
        assert known.take(5) is None
        theirs.send(b"5 192.0.2.1 80")
        theirs.send(b"6 2001:db8::1 443")
        theirs.send(b"5 192.0.2.2 81")
        assert known.take(5) == ("192.0.2.2", 81)
        assert known.take(5) is None
        assert known.take(6) == ("2001:db8::1", 443)


def test_the_end_of_the_sender_is_no_destination() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        theirs.close()
        assert Destinations(ours).take(1) is None
