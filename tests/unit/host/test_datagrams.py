"""host.datagrams: one message for each datagram, and what is none."""

from __future__ import annotations

import pytest

from membrane.host.datagrams import ASKED, CARRIED, LONGEST, MOST, TOLD, message, parts


@pytest.mark.parametrize("kind", [TOLD, CARRIED, ASKED])
@pytest.mark.parametrize("address", [b"\x0a\0\0\1", bytes(15) + b"\1"])
@pytest.mark.parametrize("data", [b"", b"x", bytes(LONGEST)])
def test_a_datagram_comes_as_it_was_sent(kind: int, address: bytes, data: bytes) -> None:
    raw = message(kind, 2**32 - 1, address, 65535, data)
    assert parts(raw) == (kind, 2**32 - 1, address, 65535, data) and len(raw) <= MOST


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\1\4\0",
        message(3, 1, bytes(4), 1),
        message(CARRIED, 1, bytes(5), 1),
        message(CARRIED, 1, bytes(16), 1)[:-1],
    ],
)
def test_what_is_no_datagram_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parts(raw)
