"""Content that a server takes for the next request ("CL.0"): a real server that does not read it, and what goes there.

The server is ``http.server`` of Python as its documentation shows it, with connections that stay.
"""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_http2 import PREFACE, goaway, told
from test_http2 import connection as connection2
from test_http2 import up as up2

from membrane.gateway.http import frames as h2
from membrane.gateway.http.bodies import Chunked, Opening, Sized
from membrane.gateway.http.exchange import CloseClient, CloseUpstream, Seen, SendClient, SendUpstream
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.requests import BAD_CONTENT, Bound, Flaw, Gate
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Deny, Origin, Policy

RULE = host_rule("https://api.example.com/v1/", Origin("library", "t"), http=((("GET", "POST"), ()),))
HEAD = b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\n"
SECOND = b"DELETE /admin HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"
CONTENTS = {
    "a request": SECOND,
    "without a version": b"GET /admin\r\n",
    "without the end of a line": b"GET /admin",
    "with CR between the words": SECOND.replace(b" ", b"\r", 2),
    "with blanks of Python": SECOND.replace(b" ", b"\xa0\t", 2),
}
# Taken by other servers, or when the connection were closed within the line and not reset.
OTHERS = {
    "a word without a version": b"GET admin\n",
    "an empty line": b"\r\n" + SECOND,
    "blanks": b" \t\r\n\0" + SECOND,
    "a preface": PREFACE,
}
FAIR = [
    b'{"text": "GET /admin HTTP/1.1"}', b"a=b&c=GET /admin HTTP/1.1", b"see /etc/passwd\n", b"GET the key\n", b"",
    b"0098want 74730d410fcb6603ace96f1dc55ea6196122532d multi_ack HTTP/1.1", b"\x1f\x8b\x08\0GET / HTTP/1.1", b"GET",
    b"--boundary\r\nContent-Type: text/plain\r\n\r\nGET / HTTP/1.1\r\n", b"hello\r\nGET / HTTP/1.1\r\n\r\n",
    b"GET \r\n/admin HTTP/1.1\r\n", b"get /admin\n", b"POST /a b HTTP/1.1\r\n", b"x" * 65+b" / HTTP/1.1\r\n",
    b"a /b HTT", b"GET of all\n", b"POST all\n",
]  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: list[str]

    def do_POST(self) -> None:
        self.served.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_DELETE = do_POST

    def log_message(self, *_args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and what it has served."""

    class Handler(_Handler):
        served: list[str] = []

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made.server_port, Handler.served
        made.shutdown()
        thread.join()


def sent_to(port: int, data: bytes) -> None:
    """Send, and wait until the server has ended the connection: all is served."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def core() -> Http1:
    return Http1(
        Gate(Bound("api.example.com", 443, "https"), Decider(Policy(allow=(RULE,))).decide), lambda: 0.0, connected=True
    )


def framed(content: bytes, chunked: bool) -> bytes:
    if chunked:
        return HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


def goes_up(data: bytes, size: int) -> tuple[bytes, list[Seen], bytes]:
    """What a client's bytes, in pieces, lead to: bytes for the server, events, bytes for the client."""
    one = core()
    commands = [each for at in range(0, len(data), size) for each in one.client_data(data[at : at + size])]
    return (
        b"".join(each.data for each in commands if isinstance(each, SendUpstream)),
        [each for each in commands if isinstance(each, Seen)],
        b"".join(each.data for each in commands if isinstance(each, SendClient)),
    )


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_server_that_does_not_read_content_serves_nothing_unjudged(
    server: tuple[int, list[str]], content: bytes, size: int
) -> None:
    port, served = server
    sent_to(port, framed(content, chunked=False))
    second = content.decode("latin-1").split()
    assert served == ["POST /v1/x", " ".join(second[:2])], "the control: it is one of those"
    served.clear()
    sent, seen, answer = goes_up(framed(content, chunked=False), size)
    assert answer.startswith(b"HTTP/1.1 400 ") and BAD_CONTENT.encode() in answer
    assert [(each.request.path, each.verdict.hint) for each in seen if isinstance(each.verdict, Deny)] == [
        ("/v1/x", BAD_CONTENT)
    ]
    sent_to(port, sent)  # all that went up, and an end: what was begun of a line is no request either
    assert served == ["POST /v1/x"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("content", [*CONTENTS.values(), *OTHERS.values()], ids=[*CONTENTS, *OTHERS])
def test_however_it_is_framed_and_cut(content: bytes, chunked: bool) -> None:
    data = framed(content, chunked)
    found = {size: goes_up(data, size)[0] for size in (1, 2, 3, len(data))}
    assert len(set(found.values())) == 1, "what goes up does not depend on how it came"
    assert not found[1].endswith(b"0\r\n\r\n")
    assert b"HTTP/1.1 400 " in goes_up(data, 5)[2]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("content", FAIR)
def test_other_content_goes_on(content: bytes, chunked: bool) -> None:
    if not content and chunked:
        data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    else:
        data = framed(content, chunked)
    for size in (1, len(data)):
        sent, _, answer = goes_up(data, size)
        assert answer == b"" and sent == data


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("content", [b"DELETE /admin?", b"DELETE ", b"x /admin HTT"])
def test_the_next_request_does_not_go_on_with_the_line(content: bytes, chunked: bool) -> None:
    """Servers that take blanks for a part of the target would read "DELETE /admin?GET /v1/x HTTP/1.1"."""

    def then(content: bytes) -> list[Any]:
        one = core()
        one.client_data(framed(content, chunked) + b"GET /v1/y HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        return one.upstream_data(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    commands = then(content)
    assert commands[-2:] == [CloseUpstream(), CloseClient()]
    assert not any(isinstance(each, SendUpstream) for each in commands)
    for other in (b"DELETE", b"DELETE /admin\n", b"{}"):
        assert any(isinstance(each, SendUpstream) for each in then(other)), other


@given(
    st.binary(max_size=40)
    | st.from_regex(rb"[ \r\n]{0,2}(GET|x)[ \r\n]{0,2}/?a?[ \r\n]{0,2}(HTTP/1.1|x)?", fullmatch=True)
)
def test_what_is_found_does_not_depend_on_how_it_is_cut(content: bytes) -> None:
    def passed(size: int) -> tuple[bytes, bool]:
        body: Sized | Chunked = Sized(len(content))
        body.opening = Opening()
        out: list[bytes] = []
        try:
            for at in range(0, len(content), size):
                body.feed(content[at : at + size], 0, out)
        except Flaw:
            return b"".join(out), False
        return b"".join(out), True

    assert passed(1) == passed(3) == passed(64)


def h2_request(*payloads: tuple[int, bytes]) -> tuple[bytes, list[Any], int]:
    """What goes up of a POST with these DATA frames (flags, payload); then events, and the code of GOAWAY, or -1."""
    one, client = connection2()
    commands = one.client_data(client.request(1, method=b"POST", end=False))
    for flags, payload in payloads:
        commands += one.client_data(h2.frame(h2.DATA, flags, 1, payload))
    return up2(commands), told(commands), goaway(commands) if one.closed else -1


def padded(content: bytes) -> bytes:
    return b"\x05" + content + bytes(5)


@pytest.mark.parametrize(
    "payloads",
    [
        [(h2.END_STREAM, SECOND)],
        [(0, SECOND[:9]), (0, b""), (0, SECOND[9:20]), (h2.END_STREAM, SECOND[20:])],
        [(h2.PADDED, padded(SECOND[:6])), (h2.PADDED | h2.END_STREAM, padded(SECOND[6:]))],
        [(h2.END_STREAM, b"GET /admin")],
        [(0, b"GET "), (0, b""), (h2.PADDED, b"\0/admin")],
        [(0, b"\r\n"), (0, b"GET /admin\n")],
    ],
)
def test_nor_behind_a_front_end_that_speaks_http_2(payloads: list[tuple[int, bytes]]) -> None:
    """The server behind it may be such a one."""
    sent, events, code = h2_request(*payloads)
    assert code == h2.PROTOCOL_ERROR and events[-1][-1] == "request malformed"
    assert b"HTTP/" not in sent and b"GET /" not in sent


def test_over_http_2_it_does_not_matter_how_it_is_cut() -> None:
    data = h2.frame(h2.DATA, h2.PADDED, 1, padded(SECOND[:4])) + h2.frame(h2.DATA, 0, 1, SECOND[4:])
    found = set()
    for size in (1, 3, len(data)):
        one, client = connection2()
        sent = up2(one.client_data(client.request(1, method=b"POST", end=False)))
        for at in range(0, len(data), size):
            sent += up2(one.client_data(data[at : at + size]))
        assert one.closed
        found.add(sent)
    assert len(found) == 1


def test_other_content_goes_on_over_http_2() -> None:
    for content in FAIR:
        assert h2_request((h2.PADDED, padded(content[:3])), (h2.END_STREAM, content[3:]))[2] == -1
