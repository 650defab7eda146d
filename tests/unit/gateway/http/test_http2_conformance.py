"""What RFC 9113 asks of a server that gets what it should not, section by section, as its clients see it.

It follows what conformance suites for HTTP/2 servers try (h2spec is one; it is in no registry that the tests may use).
Each case is a connection of its own: a request that is answered first, the positive control, and then the violation.
What is judged by the real server behind the relay (flow control of its own sending, the number of streams) is not here.
"""

from __future__ import annotations

import hpack
import pytest
from test_http2 import Client, answer, connection, down, goaway, pseudo, up

from membrane.gateway.http import frames as h2
from membrane.gateway.http.frames import frame, setting

LARGE = 0x7FFF_FFFF
PRIORITY = b"\0\0\0\1\x10"


def encoded(*fields: tuple[bytes, bytes]) -> bytes:
    return bytes(hpack.Encoder().encode([*pseudo(), *fields]))


REQUEST = encoded()
# On an answered connection: stream 1 is over on both sides, 3 half-closed by the client, 5 open, 7 reset by the client.
CASES: dict[str, tuple[bytes, int]] = {
    "4.2 a frame of a fixed size is too long": (frame(h2.PING, 0, 0, bytes(9)), h2.FRAME_SIZE_ERROR),
    "4.2 SETTINGS is too long for a frame": (frame(h2.SETTINGS, 0, 0, bytes(16386)), h2.FRAME_SIZE_ERROR),
    "4.2 HEADERS is too long for a frame": (frame(h2.HEADERS, 5, 9, bytes(16385)), h2.FRAME_SIZE_ERROR),
    "4.3 a block that does not decode": (frame(h2.HEADERS, 5, 9, b"\xff\xff\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "4.3 PRIORITY within a section": (
        frame(h2.HEADERS, 1, 9, REQUEST) + frame(h2.PRIORITY, 0, 9, PRIORITY),
        h2.PROTOCOL_ERROR,
    ),
    "4.3 HEADERS within a section": (
        frame(h2.HEADERS, 1, 9, REQUEST) + frame(h2.HEADERS, 5, 11, REQUEST),
        h2.PROTOCOL_ERROR,
    ),
    "5.1 idle: DATA": (frame(h2.DATA, 1, 9, b"x"), h2.PROTOCOL_ERROR),
    "5.1 idle: RST_STREAM": (frame(h2.RST_STREAM, 0, 9, bytes(4)), h2.PROTOCOL_ERROR),
    "5.1 idle: WINDOW_UPDATE": (h2.window_update(9, 1), h2.PROTOCOL_ERROR),
    "5.1 idle: CONTINUATION": (frame(h2.CONTINUATION, 4, 9, b""), h2.PROTOCOL_ERROR),
    "5.1 half-closed: DATA": (frame(h2.DATA, 1, 3, b"x"), h2.STREAM_CLOSED),
    "5.1 half-closed: HEADERS": (frame(h2.HEADERS, 5, 3, REQUEST), h2.STREAM_CLOSED),
    "5.1 half-closed: CONTINUATION": (frame(h2.CONTINUATION, 4, 3, b""), h2.PROTOCOL_ERROR),
    "5.1 closed by both: DATA": (frame(h2.DATA, 1, 1, b"x"), h2.STREAM_CLOSED),
    "5.1 closed by both: HEADERS": (frame(h2.HEADERS, 5, 1, REQUEST), h2.STREAM_CLOSED),
    "5.1 closed by both: CONTINUATION": (frame(h2.CONTINUATION, 4, 1, b""), h2.PROTOCOL_ERROR),
    "5.1 closed by a reset: DATA": (frame(h2.DATA, 1, 7, b"x"), h2.STREAM_CLOSED),
    "5.1 closed by a reset: HEADERS": (frame(h2.HEADERS, 5, 7, REQUEST), h2.STREAM_CLOSED),
    "5.1.1 an even number": (frame(h2.HEADERS, 5, 8, REQUEST), h2.PROTOCOL_ERROR),
    "5.1.1 a smaller number": (
        frame(h2.HEADERS, 5, 11, REQUEST) + frame(h2.HEADERS, 5, 9, REQUEST),
        h2.PROTOCOL_ERROR,
    ),
    "6.1 DATA without a stream": (frame(h2.DATA, 1, 0, b"x"), h2.PROTOCOL_ERROR),
    "6.1 DATA, padding": (frame(h2.DATA, 1 | h2.PADDED, 5, b"\5x"), h2.PROTOCOL_ERROR),
    "6.2 HEADERS without a stream": (frame(h2.HEADERS, 5, 0, REQUEST), h2.PROTOCOL_ERROR),
    "6.2 HEADERS, padding": (frame(h2.HEADERS, 5 | h2.PADDED, 9, b"\xff" + REQUEST), h2.PROTOCOL_ERROR),
    "6.3 PRIORITY without a stream": (frame(h2.PRIORITY, 0, 0, PRIORITY), h2.PROTOCOL_ERROR),
    "6.3 PRIORITY, size": (frame(h2.PRIORITY, 0, 5, PRIORITY[:4]), h2.FRAME_SIZE_ERROR),
    "6.4 RST_STREAM without a stream": (frame(h2.RST_STREAM, 0, 0, bytes(4)), h2.PROTOCOL_ERROR),
    "6.4 RST_STREAM, size": (frame(h2.RST_STREAM, 0, 5, bytes(3)), h2.FRAME_SIZE_ERROR),
    "6.5 SETTINGS on a stream": (frame(h2.SETTINGS, 0, 5), h2.PROTOCOL_ERROR),
    "6.5 SETTINGS, size": (frame(h2.SETTINGS, 0, 0, bytes(3)), h2.FRAME_SIZE_ERROR),
    "6.5 SETTINGS, acknowledged with content": (frame(h2.SETTINGS, 1, 0, bytes(6)), h2.FRAME_SIZE_ERROR),
    "6.5.2 ENABLE_PUSH": (frame(h2.SETTINGS, 0, 0, setting(h2.ENABLE_PUSH, 2)), h2.PROTOCOL_ERROR),
    "6.5.2 INITIAL_WINDOW_SIZE": (
        frame(h2.SETTINGS, 0, 0, setting(h2.INITIAL_WINDOW, LARGE + 1)),
        h2.FLOW_CONTROL_ERROR,
    ),
    "6.5.2 MAX_FRAME_SIZE, small": (frame(h2.SETTINGS, 0, 0, setting(h2.MAX_FRAME, 16383)), h2.PROTOCOL_ERROR),
    "6.5.2 MAX_FRAME_SIZE, large": (frame(h2.SETTINGS, 0, 0, setting(h2.MAX_FRAME, 1 << 24)), h2.PROTOCOL_ERROR),
    "6.6 PUSH_PROMISE": (frame(h2.PUSH_PROMISE, 4, 5, b"\0\0\0\2" + REQUEST), h2.PROTOCOL_ERROR),
    "6.7 PING on a stream": (frame(h2.PING, 0, 5, bytes(8)), h2.PROTOCOL_ERROR),
    "6.7 PING, size": (frame(h2.PING, 0, 0, bytes(6)), h2.FRAME_SIZE_ERROR),
    "6.8 GOAWAY on a stream": (frame(h2.GOAWAY, 0, 5, bytes(8)), h2.PROTOCOL_ERROR),
    "6.9 WINDOW_UPDATE of nothing": (h2.window_update(0, 0), h2.PROTOCOL_ERROR),
    "6.9 WINDOW_UPDATE, size": (frame(h2.WINDOW_UPDATE, 0, 0, bytes(3)), h2.FRAME_SIZE_ERROR),
    "6.10 CONTINUATION after the end of a section": (
        frame(h2.HEADERS, 5, 9, REQUEST) + frame(h2.CONTINUATION, 4, 9, b""),
        h2.PROTOCOL_ERROR,
    ),
    "6.10 CONTINUATION after DATA": (
        frame(h2.DATA, 0, 5, b"x") + frame(h2.CONTINUATION, 4, 5, b""),
        h2.PROTOCOL_ERROR,
    ),
    "8.1 a second section that ends nothing": (frame(h2.HEADERS, 4, 5, b"\x00\x01a\x01b"), h2.PROTOCOL_ERROR),
    "8.1 content that is too short": (
        frame(h2.HEADERS, 4, 9, encoded((b"content-length", b"4"))) + frame(h2.DATA, 1, 9, b"abc"),
        h2.PROTOCOL_ERROR,
    ),
    "8.1 content that is too long": (
        frame(h2.HEADERS, 4, 9, encoded((b"content-length", b"1"))) + frame(h2.DATA, 1, 9, b"abc"),
        h2.PROTOCOL_ERROR,
    ),
}


def used() -> tuple[object, Client]:
    core, client = connection()
    post = pseudo(method=b"POST")
    # Positive control: these are all in order, and go up.
    sent = up(core.client_data(client.request(1) + client.request(3) + client.section(5, post, end=False)))
    assert len(sent) > 3 * 9
    assert down(core.upstream_data(answer(1, end=True)))
    assert up(core.client_data(client.section(7, post, end=False) + frame(h2.RST_STREAM, 0, 7, bytes(4))))
    return core, client


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(("data", "code"), CASES.values(), ids=CASES.keys())
def test_a_violation_ends_the_connection_with_its_code(data: bytes, code: int, step: int) -> None:
    core, client = used()
    commands: list[object] = []
    for at in range(0, len(data), step):
        commands = core.client_data(data[at : at + step]) or commands  # type: ignore[attr-defined]
        if core.closed:  # type: ignore[attr-defined]
            break
    assert goaway(commands) == code  # type: ignore[arg-type]
    assert core.client_data(client.request(13)) == []  # type: ignore[attr-defined]


FINE = {
    "4.1 an unknown type": frame(0xEF, 0xFF, 0, b"x" * 40),
    "4.1 unknown flags": frame(h2.PING, 0xFE, 0, bytes(8)),
    "4.1 the reserved bit": frame(h2.WINDOW_UPDATE, 0, 0, b"\x80\0\0\1"),
    "5.1 half-closed: WINDOW_UPDATE": h2.window_update(3, 1),
    "5.1 half-closed: PRIORITY": frame(h2.PRIORITY, 0, 3, PRIORITY),
    "5.1 half-closed: RST_STREAM": frame(h2.RST_STREAM, 0, 3, bytes(4)),
    "5.1 closed: PRIORITY": frame(h2.PRIORITY, 0, 1, PRIORITY),
    "5.1 closed: WINDOW_UPDATE": h2.window_update(1, 1),
    "5.1 closed: RST_STREAM": frame(h2.RST_STREAM, 0, 1, bytes(4)),
    "6.1 DATA with padding": frame(h2.DATA, h2.PADDED, 5, b"\2xy\0\0"),
    "6.5 an unknown setting": frame(h2.SETTINGS, 0, 0, setting(0xFF, 1)),
    "6.5.2 ENABLE_PUSH": frame(h2.SETTINGS, 0, 0, setting(h2.ENABLE_PUSH, 1)),
    "6.10 a section in pieces": frame(h2.HEADERS, 1, 9, REQUEST[:3]) + frame(h2.CONTINUATION, 4, 9, REQUEST[3:]),
    "8.1 a trailer": frame(h2.HEADERS, 5, 5, b"\x00\x01a\x01b"),
}


@pytest.mark.parametrize("data", FINE.values(), ids=FINE.keys())
def test_what_is_in_order_goes_on(data: bytes) -> None:
    core, client = used()
    assert not core.client_data(data)[-1:] or not core.closed  # type: ignore[attr-defined]
    assert up(core.client_data(client.request(13)))  # type: ignore[attr-defined]
