"""Bytes, size and modes between two terminals: both are real ones, made here."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import tty
from collections.abc import Iterator

import pytest

from membrane.host import terminal
from membrane.host.terminal import Relay


class Terminals:
    """The caller's terminal as descriptors 0 to 2 would be, and the sandbox's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, self.caller = pty.openpty()  # what a person types, and what membrane has
        self.master, self.inside = pty.openpty()
        fcntl.ioctl(self.caller, termios.TIOCSWINSZ, struct.pack("4H", 33, 111, 0, 0))
        monkeypatch.setattr(Relay, "in_foreground", lambda _self: True)
        self.relay = Relay.__new__(Relay)

    def start(self) -> Relay:
        relay = self.relay
        relay.master, relay.screen, relay.keyboard = self.master, self.caller, self.caller
        relay.pending, relay.hung_up, relay._cooked = b"", False, None
        os.set_blocking(self.master, False)
        relay.resize()
        relay.enter_raw_mode()
        return relay

    def close(self) -> None:
        for fd in (self.keys, self.caller, self.master, self.inside):
            try:
                os.close(fd)
            except OSError:
                pass


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminals]:
    made = Terminals(monkeypatch)
    yield made
    made.close()


def test_the_size_is_the_caller_s(terminals: Terminals) -> None:
    relay = terminals.start()
    size = struct.unpack("4H", fcntl.ioctl(terminals.inside, termios.TIOCGWINSZ, b"\0" * 8))
    assert size[:2] == (33, 111)
    fcntl.ioctl(terminals.caller, termios.TIOCSWINSZ, struct.pack("4H", 10, 20, 0, 0))
    relay.resize()
    assert struct.unpack("4H", fcntl.ioctl(terminals.inside, termios.TIOCGWINSZ, b"\0" * 8))[:2] == (10, 20)


def test_keys_go_in_and_what_is_printed_comes_out(terminals: Terminals) -> None:
    relay = terminals.start()
    assert relay.reads_keyboard
    tty.setraw(terminals.inside)
    os.write(terminals.keys, b"ls\x03\r")  # raw: the interrupt key is a byte like others
    assert relay.from_keyboard() and relay.pending == b""
    assert os.read(terminals.inside, 100) == b"ls\x03\r"
    os.write(terminals.inside, b"out\n")
    assert relay.to_screen()
    assert os.read(terminals.keys, 100) == b"out\n"


def test_the_caller_s_modes_come_back(terminals: Terminals) -> None:
    before = termios.tcgetattr(terminals.caller)
    relay = terminals.start()
    assert termios.tcgetattr(terminals.caller)[3] & termios.ICANON == 0
    relay.restore()
    relay.restore()
    assert termios.tcgetattr(terminals.caller) == before
    assert not relay.reads_keyboard


def test_the_end_of_the_sandbox_s_terminal_is_seen(terminals: Terminals) -> None:
    relay = terminals.start()
    assert relay.to_screen()  # nothing yet, and not the end
    os.close(terminals.inside)
    assert not relay.to_screen()


def test_a_hang_up_is_no_key(terminals: Terminals) -> None:
    relay = terminals.start()
    os.close(terminals.keys)
    assert not relay.from_keyboard()
    assert relay.hung_up and not relay.reads_keyboard
    relay.restore()  # of a terminal that went away
    relay.enter_raw_mode()
    relay.resize()


def test_a_terminal_that_is_gone_at_the_start_ends_nothing(terminals: Terminals) -> None:
    os.close(terminals.keys)
    assert not terminals.start().from_keyboard()


def test_what_is_typed_ahead_is_bounded(terminals: Terminals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST_PENDING", 10)
    relay = terminals.start()
    relay.pending = b"x" * 10
    assert not relay.reads_keyboard
