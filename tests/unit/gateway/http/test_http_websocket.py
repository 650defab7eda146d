"""Frames of a WebSocket: what goes on, what ends it, and that nothing is kept."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.gateway.http.websocket import LONGEST, Frames, close_frame


def frame(first: int, payload: bytes = b"", *, masked: bool = True, size: int = 0) -> bytes:
    """A frame as RFC 6455 section 5.2 draws it; ``size``: bytes of the extended length, 0 for the shortest form."""
    length = len(payload)
    size = size or (0 if length < 126 else 2 if length < 65536 else 8)
    second = {0: length, 2: 126, 8: 127}[size] | (128 if masked else 0)
    extended = length.to_bytes(size, "big") if size else b""
    return bytes((first, second)) + extended + b"keys" * masked + payload


def end(data: bytes, *, masked: bool = True, deflate: bool = False) -> str:
    return Frames(masked=masked, deflate=deflate).feed(data)[1]


TEXT, BINARY, MORE, LAST, PING, CLOSE = 0x81, 0x82, 0x00, 0x80, 0x89, 0x88
GOOD = [
    [frame(TEXT), frame(BINARY, b"x"), frame(PING, b"p" * 125), frame(0x8A)],
    [frame(0x01, b"a"), frame(MORE, b"b"), frame(PING), frame(LAST, b"c"), frame(TEXT, b"d")],
    [frame(BINARY, b"x" * 126), frame(BINARY, b"x" * 65535), frame(BINARY, b"x" * 65536), frame(CLOSE, b"\3\xe8")],
    [frame(CLOSE)],
]
BAD = [
    (b"GET / HTTP/1.1\r\n\r\n", "not masked"),
    (b"\x16\3\1\2\0\1", "not masked"),
    (frame(TEXT, masked=False), "not masked"),
    *((frame(0x80 | opcode), "unknown opcode") for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
    *((frame(0x81 | bits), "reserved bit") for bits in (0x10, 0x20, 0x40, 0x70)),
    (frame(0x09), "control frame"),
    (frame(PING, b"x" * 126), "control frame"),
    (frame(CLOSE, b"x"), "half a status code"),
    (frame(CLOSE) + frame(TEXT), "follows a close frame"),
    (frame(CLOSE) + b"anything at all", "follows a close frame"),
    (frame(MORE), "continues no message"),
    (frame(LAST), "continues no message"),
    (frame(0x01) + frame(TEXT), "within another one"),
    (frame(0x01) + frame(LAST) + frame(LAST), "continues no message"),
    (frame(TEXT, b"x", size=2), "shortest form"),
    (frame(TEXT, b"x" * 200, size=8), "shortest form"),
    (b"\x82\xff" + bytes(8), "shortest form"),
    (b"\x82\xff\x80" + bytes(7), "too long"),
    (b"\x82\xff" + (LONGEST + 1).to_bytes(8, "big"), "too long"),
]


def unmasked(each: bytes) -> bytes:
    plain = bytearray(each.replace(b"keys", b"", 1))
    plain[1] &= 127
    return bytes(plain)


@pytest.mark.parametrize("frames", GOOD)
@pytest.mark.parametrize("masked", [True, False])
def test_frames_in_order_go_on_as_they_are(frames: list[bytes], masked: bool) -> None:
    data = b"".join(frames if masked else map(unmasked, frames))
    assert Frames(masked=masked, deflate=False).feed(data) == (data, "")
    alone = Frames(masked=masked, deflate=False)
    passed = [alone.feed(data[at : at + 7]) for at in range(0, len(data), 7)]
    assert b"".join(part for part, _flaw in passed) == data
    assert not any(flaw for _part, flaw in passed) and alone.between


@pytest.mark.parametrize(("data", "flaw"), BAD)
def test_what_breaks_the_protocol_goes_no_further(data: bytes, flaw: str) -> None:
    went, said = Frames(masked=True, deflate=False).feed(data)
    assert flaw in said
    assert data.startswith(went)
    again = Frames(masked=True, deflate=False)
    alone = b""
    for at in range(len(data)):
        passed, said = again.feed(data[at : at + 1])
        alone += passed
        if said:
            break
    assert (alone, flaw in said) == (went, True), "byte by byte it is the same"


def test_a_server_does_not_mask() -> None:
    assert "is masked" in end(frame(TEXT), masked=False)
    assert end(frame(TEXT, masked=False), masked=False) == ""


def test_the_first_bit_is_for_compressed_messages() -> None:
    assert end(frame(0xC1, b"x") + frame(0x41, b"x") + frame(PING) + frame(LAST), deflate=True) == ""
    for data in (frame(0xC9), frame(0x41) + frame(0x40), frame(0x41) + frame(0xC0), frame(0xA1)):
        assert "reserved bit" in end(data, deflate=True)


def test_our_own_close_frames_are_frames() -> None:
    assert Frames(masked=True, deflate=False).feed(close_frame(masked=True)) == (b"\x88\x82\0\0\0\0\3\xea", "")
    assert Frames(masked=False, deflate=False).feed(close_frame(masked=False)) == (b"\x88\2\3\xea", "")


@given(st.binary(max_size=200), st.lists(st.integers(1, 60), max_size=8), st.booleans(), st.booleans())
def test_cuts_change_nothing(data: bytes, cuts: list[int], masked: bool, deflate: bool) -> None:
    whole, flaw = Frames(masked=masked, deflate=deflate).feed(data)
    assert data.startswith(whole)
    frames, out, at, said = Frames(masked=masked, deflate=deflate), b"", 0, ""
    for size in [*cuts, len(data)]:
        part, said = frames.feed(data[at : at + size])
        out += part
        at += size
        if said:
            break
    assert (out, said) == (whole, flaw)


def test_a_long_frame_streams_through_and_is_not_kept() -> None:
    frames = Frames(masked=True, deflate=False)
    frames.feed(b"\x82\xff" + (64 << 20).to_bytes(8, "big") + b"keys")
    part = bytes(65536)
    tracemalloc.start()
    start = time.process_time()
    for _ in range(1024):
        assert frames.feed(part)[0] is part
    spent = time.process_time() - start
    kept = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert frames.between and kept < 1 << 17
    assert spent < 1, "64 MiB cost next to nothing: a payload is not looked at"
