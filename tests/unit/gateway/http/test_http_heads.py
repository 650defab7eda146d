"""Heads of HTTP/1.1 messages: a request is exactly the grammar, an answer is what its length says."""

from __future__ import annotations

import pytest

from membrane.gateway.http.heads import AnswerHead, Framing, RequestHead, end_of_head
from membrane.gateway.http.requests import Flaw


def request(*lines: bytes) -> RequestHead:
    head = RequestHead()
    head.read(b"\r\n".join(lines))
    return head


def framing(*fields: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> Framing:
    return Framing(request(b"%b / %b" % (method, version), b"Host: h", *fields))


def test_a_request() -> None:
    head = request(b"POST /a?b HTTP/1.1", b"HOST:h", b"X-Y: \t v w \t")
    assert (head.method, head.target, head.version) == (b"POST", b"/a?b", b"HTTP/1.1")
    assert head.names == [b"host", b"x-y"] and head.raw_names == [b"HOST", b"X-Y"] and head.values == [b"h", b"v w"]


@pytest.mark.parametrize(
    "lines",
    [
        (b"GET  / HTTP/1.1",),
        (b"GET / HTTP/1.1 ",),
        (b"GET / HTTP/2.0",),
        (b"GET  HTTP/1.1",),
        (b"GET / HTTP/1.1", b"Host : h"),
        (b"GET / HTTP/1.1", b" folded"),
        (b"GET / HTTP/1.1", b"no colon"),
        (b"GET / HTTP/1.1", b": empty"),
        (b"GET / HTTP/1.1", b"A: b\rC: d"),
        (b"GET / HTTP/1.1", b"A: b\nC: d"),
        (b"GET / HTTP/1.1", b"A: b\0"),
    ],
)
def test_what_is_not_the_grammar_is_a_flaw(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(Flaw):
        request(*lines)


def test_how_long_a_body_is() -> None:
    assert not framing().body
    assert framing(b"Content-Length: 3").length == 3
    assert framing(b"Transfer-Encoding: Chunked").chunked


@pytest.mark.parametrize(
    "fields",
    [
        (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 3", b"Content-Length: 4"),
        (b"Content-Length: +3",),
        (b"Content-Length: 3, 4",),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Connection: content-length",),
        (b"Content_Length: 3",),
        (b"Expect: 200-ok",),
    ],
)
def test_a_body_that_may_be_read_in_two_ways_is_a_flaw(fields: tuple[bytes, ...]) -> None:
    with pytest.raises(Flaw):
        framing(*fields)


def test_a_chunked_body_of_an_old_client_is_a_flaw() -> None:
    with pytest.raises(Flaw):
        framing(b"Transfer-Encoding: chunked", version=b"HTTP/1.0")


def test_what_is_of_this_hop_is_dropped() -> None:
    found = framing(b"Connection: x-mine, close", b"X-Mine: 1", b"TE: trailers")
    assert found.close and {b"x-mine", b"host", b"connection"} <= found.dropped and b"te" not in found.dropped
    assert framing(version=b"HTTP/1.0").close
    upgraded = (b"Connection: upgrade", b"Upgrade: WebSocket", b"Sec-WebSocket-Key: k")
    assert framing(*upgraded).websocket_key == b"k"
    assert framing(b"Connection: upgrade", b"Upgrade: h2c").websocket_key == b""
    assert framing(*upgraded, b"Content-Length: 1").websocket_key == b""


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"A\r\n\r\nB", (1, 5)),
        (b"A\n\nB", (1, 3)),
        (b"A\n\r\nB", (1, 4)),
        (b"A\r\nB\r\n", (-1, -1)),
        (b"A\n\nB\r\n\r\n", (1, 3)),
    ],
)
def test_where_an_answer_s_head_ends(data: bytes, end: tuple[int, int]) -> None:
    assert end_of_head(bytearray(data)) == end


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 099 x",
        b"HTTP/1.1 2x0 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nA: \0",
        b"HTTP/1.1 200 OK\r\nA: b\rC: d",
    ],
)
def test_an_answer_that_is_none(head: bytes) -> None:
    with pytest.raises(Flaw):
        AnswerHead(head)


def test_an_answer_is_written_anew() -> None:
    head = AnswerHead(b"HTTP/1.1 200 Fine\nContent-Length: 5, 5\nConnection: x-hop\nX-Hop: 1\nAlt-Svc: h3\nX-A: b\n c")
    assert head.status == 200
    written = head.write(b"close", None)
    assert written == b"HTTP/1.1 200 Fine\r\nX-A: b  c\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
    assert b"Content-Length" not in AnswerHead(b"HTTP/1.1 204 x\nContent-Length: 5").write(b"", None)
