"""Addresses as the command writes them, and which of them are this machine."""

from __future__ import annotations

import socket
import struct

import pytest

from membrane.host import caller


def v4(address: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(address) + bytes(8)


def v6(address: str, port: int) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6, address)
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 0) + packed + bytes(4)


def test_addresses_of_both_families_and_mapped_ones() -> None:
    assert caller.internet(v4("192.0.2.1", 80), socket.AF_INET) == (bytes((192, 0, 2, 1)), 80)
    assert caller.internet(v6("2001:db8::1", 81), socket.AF_INET6)[1] == 81
    assert caller.internet(v6("::ffff:127.0.0.1", 1), socket.AF_INET6) == (bytes((127, 0, 0, 1)), 1)


@pytest.mark.parametrize(
    ("address", "family", "raw"),
    [
        ("192.0.2.1", socket.AF_INET, v4("192.0.2.1", 80)),
        ("192.0.2.1", socket.AF_INET6, v6("::ffff:192.0.2.1", 80)),
        ("2001:db8::1", socket.AF_INET6, v6("2001:db8::1", 80)),
    ],
)
def test_an_address_is_written_as_a_socket_of_its_family_has_it(address: str, family: int, raw: bytes) -> None:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    assert caller.written(packed, 80, family) == raw
    assert caller.internet(raw, family) == (packed, 80)


@pytest.mark.parametrize(
    ("raw", "family"),
    [
        (b"", socket.AF_INET),
        (b"\2", socket.AF_INET),
        (v4("192.0.2.1", 80)[:8], socket.AF_INET),
        (v4("192.0.2.1", 80), socket.AF_INET6),
        (v6("::1", 80), socket.AF_INET),
        (v6("::1", 80)[:20], socket.AF_INET6),
        (struct.pack("=H", socket.AF_UNIX) + b"/run/x".ljust(30, b"\0"), socket.AF_INET),
    ],
)
def test_what_is_no_address_of_the_family_is_refused(raw: bytes, family: int) -> None:
    with pytest.raises(caller.Refused):
        caller.internet(raw, family)


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", True),
        ("198.18.0.2", False),
        ("10.0.0.1", False),
    ],
)
def test_what_means_this_machine(address: str, is_ours: bool) -> None:
    assert caller.is_loopback(socket.inet_aton(address)) == is_ours


@pytest.mark.parametrize(("address", "is_ours"), [("::1", True), ("::", True), ("::2", False), ("fe80::1", False)])
def test_what_means_this_machine_in_ipv6(address: str, is_ours: bool) -> None:
    assert caller.is_loopback(socket.inet_pton(socket.AF_INET6, address)) == is_ours
