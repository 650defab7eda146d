"""Addresses as calls carry them, and which socket a descriptor of another process is."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from membrane.tracer.sockets import address_of, inode_of


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (
            struct.pack("=H", 2) + (443).to_bytes(2, "big") + bytes((192, 0, 2, 1)) + bytes(8),
            ("inet", "192.0.2.1", 443),
        ),
        (
            struct.pack("=H", 10)
            + (53).to_bytes(2, "big")
            + bytes(4)
            + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
            + bytes(4),
            ("inet6", "2001:db8::1", 53),
        ),
        (struct.pack("=H", 1) + b"/run/x\0rest", ("unix", "/run/x", 0)),
        (struct.pack("=H", 1) + b"\0abstract\0name", ("unix", "@abstract\0name", 0)),
        (struct.pack("=H", 1) + b"/\xff", ("unix", "/\udcff", 0)),
        (struct.pack("=H", 1), ("unix", "", 0)),
        (struct.pack("=H", 0), ("unspec", "", 0)),
        (struct.pack("=H", 16) + bytes(10), ("netlink", "", 0)),
        (struct.pack("=H", 77) + bytes(10), ("77", "", 0)),
        (struct.pack("=H", 2) + bytes(3), ("inet", "", 0)),  # cut
        (struct.pack("=H", 10) + bytes(21), ("inet6", "", 0)),
        (b"\2", ("", "", 0)),
        (b"", ("", "", 0)),
    ],
)
def test_an_address(data: bytes, found: tuple[str, str, int]) -> None:
    assert address_of(data) == found


def test_the_inode_of_a_socket() -> None:
    ours = os.getpid()
    with socket.socket() as made:
        assert inode_of(ours, made.fileno()) == os.fstat(made.fileno()).st_ino
        assert inode_of(ours, made.fileno() | 1 << 32) == inode_of(ours, made.fileno())  # an int in a register
    with open(os.devnull) as file:
        assert inode_of(ours, file.fileno()) == 0
    assert inode_of(ours, 1 << 20) == 0 and inode_of(1 << 30, 0) == 0
