"""The end of the gateway, as the supervisor sees it: proven by its last word, or told why it is not."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

import pytest

from membrane import clock
from membrane.errors import InternalError
from membrane.gateway.messages import FROM_GATEWAY, Lines, Ready, Totals
from membrane.messages import Frames
from membrane.policy.model import Policy
from membrane.run import gateway
from membrane.run.event_log import EventLog


@pytest.fixture
def network() -> Any:
    """A gateway with no sockets, ready."""
    config = {"policy": Policy(), "session": "s", "clock": clock.offset()}
    made = gateway.Gateway([], config, EventLog("s", ""))
    made.start()
    assert select.select([made.control], [], [], 60)[0] and made.read()
    return made


def test_its_last_word_is_a_whole_end(network: gateway.Gateway) -> None:
    assert network.stop() == ""
    assert network.stats["events"] == 0 and network.pid == 0


def test_one_that_was_never_started_has_nothing_to_tell() -> None:
    assert gateway.Gateway([], {}, EventLog("s", "")).stop() == ""


@pytest.mark.parametrize("sent", [b"", b"192.0.2.7 4433"], ids=["nothing", "a line"])
def test_one_is_started_at_the_end_for_what_was_sent_and_not_for_the_end_of_the_sender(sent: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if sent:
        theirs.send(sent)
    theirs.close()
    config = {"policy": Policy(), "session": "s", "clock": clock.offset()}
    made = gateway.Gateway([("datagrams", ours.detach())], config, EventLog("s", ""))
    assert made.stop() == ""
    assert bool(made.stats) is bool(sent)


def test_one_that_is_stopped_is_killed_and_that_is_told(
    network: gateway.Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "END", 2.0)
    pid = network.pid
    os.kill(pid, signal.SIGSTOP)
    at = time.monotonic()
    assert network.stop() == "it did not end within 2 s and was killed"
    assert time.monotonic() - at >= gateway.END
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_one_that_is_killed_is_told(network: gateway.Gateway, number: int) -> None:
    os.kill(network.pid, number)
    assert network.stop() == f"it was killed by signal {int(number)}"


def test_one_that_fails_says_why(network: gateway.Gateway) -> None:
    assert network._socket is not None
    network._socket.send(b"\x01\0\0\0\x09")
    assert "read a message from the supervisor to the gateway: IndexError" in network.stop()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b'{"ready": true}\n', "read a message from the gateway to the supervisor: .* bytes are too many"),
        (b"\1\0\0\0\xff", "read a message from the gateway to the supervisor: IndexError"),
        (FROM_GATEWAY.frame(Ready()) + b"\2\0\0\0\0\0", "something follows it"),
        (FROM_GATEWAY.frame(Lines(b'{"event": "SessionEnded", "source": "session"}\n')), "not an event of its own"),
        (FROM_GATEWAY.frame(Lines(b"")), "read an event of the gateway"),
    ],
)
def test_one_that_sends_something_else_is_an_internal_error(network: gateway.Gateway, sent: bytes, why: str) -> None:
    """As a gateway would that what it parses has taken over."""
    ours, theirs = socket.socketpair()
    real, network._socket = network._socket, ours
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(FROM_GATEWAY.frame(Totals(1, 2)))
        assert network.read() and network._log.bytes_down == 2  # the control
        theirs.sendall(sent)
        with pytest.raises(InternalError, match=why):
            network.read()
    network._socket, network._frames = real, Frames(FROM_GATEWAY)
    assert network.stop() == ""


def test_events_that_did_not_come_are_noticed(network: gateway.Gateway) -> None:
    network._taken += 1
    assert network.stop() == "it sent 0 events, and 1 came"
