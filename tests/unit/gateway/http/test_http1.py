"""Playbooks for HTTP/1.1: what comes in, and the exact commands that come out.

One file of over 800 lines: playbooks of one state machine, read one beside the other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from membrane.gateway.http import http1
from membrane.gateway.http.bodies import MOST_EXTENSIONS
from membrane.gateway.http.exchange import (
    CloseClient,
    CloseUpstream,
    EndClient,
    EndUpstream,
    OpenUpstream,
    Seen,
    SendClient,
    SendUpstream,
)
from membrane.gateway.http.http1 import READ_AHEAD, Http1
from membrane.gateway.http.requests import FLAWS, LONGEST_HEAD, Bound, Gate
from membrane.policy.decide import Decider
from membrane.policy.model import Allow, Deny, HostRule, HttpRule, Origin, Policy, PortRange
from membrane.policy.reasons import REASONS

if TYPE_CHECKING:
    from membrane.gateway.http.exchange import Command, Spend

NAME = "api.example.com"
HOST = b"Host: api.example.com\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def policy(*http: HttpRule) -> Policy:
    rule = HostRule(
        "r", Origin("command line", "-a"), "host", NAME, None, (PortRange("tcp", 443, 443),), "https", http or None
    )
    return Policy(allow=(rule.replace(inspect=True),))


READ_WRITE = HttpRule(("GET", "HEAD", "POST"), ("/v1",))


def connection(*http: HttpRule, connected: bool = True, spend: Spend | None = None) -> Http1:
    gate = Gate(Bound(NAME, 443, "https"), Decider(policy(*(http or (READ_WRITE,)))).decide)
    return Http1(gate, lambda: 0.0, connected=connected, spend=spend)


def seen(number: int, method: str, path: str, status: int, up: int = 0, down: int = 0, **more: Any) -> tuple[Any, ...]:
    return "seen", number, method, path, status, up, down, more.get("error", ""), more.get("deny", "")


def plain(commands: list[Command]) -> list[Any]:
    """Commands as they are, ``Seen`` in short."""
    out: list[Any] = []
    for each in commands:
        if isinstance(each, Seen):
            reason = each.verdict.reason if isinstance(each.verdict, Deny) else ""
            request = each.request
            out.append(
                seen(
                    each.number,
                    request.method,
                    request.path,
                    each.status,
                    each.bytes_up,
                    each.bytes_down,
                    error=each.error,
                    deny=reason,
                )
            )
        else:
            out.append(each)
    return out


def play(core: Http1, *steps: tuple[list[Command], list[Any]]) -> None:
    for number, (got, expected) in enumerate(steps):
        assert plain(got) == expected, f"step {number}"


def split_answer(data: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    return status, dict(line.split(b": ", 1) for line in lines), body  # type: ignore[misc]


def refusal(commands: list[Command], status: int, *, closes: bool) -> dict[str, Any]:
    """Check that the client got our answer and the server nothing; the JSON of it."""
    assert not any(isinstance(each, (SendUpstream, OpenUpstream)) for each in commands)
    sent = [each.data for each in commands if isinstance(each, SendClient)]
    assert len(sent) == 1
    line, fields, body = split_answer(sent[0])
    assert line.split(b" ")[1] == b"%d" % status
    assert int(fields[b"content-length"]) == len(body)
    told = [each for each in commands if isinstance(each, Seen)]
    assert len(told) == 1 and told[0].status == status
    assert (CloseClient() in commands) is closes
    assert (fields.get(b"connection") == b"close") is closes
    answered: dict[str, Any] = json.loads(body)
    return answered


# ---------------------------------------------------------------- the plain course


def test_a_request_and_its_answer() -> None:
    core = connection()
    assert (core.waiting, core.wants_client) == ("request", True)
    play(
        core,
        (
            core.client_data(b"GET /v1/a/../b?c HTTP/1.1\r\n" + HOST + b"X-Case:  kept \r\n\r\n"),
            [SendUpstream(b"GET /v1/b?c HTTP/1.1\r\n" + HOST + b"X-Case: kept\r\n\r\n")],
        ),
        (core.upstream_data(OK), [SendClient(OK.replace(b"hi", b"hi")), seen(1, "GET", "/v1/b", 200, 0, 2)]),
    )
    assert core.waiting == "request"


def test_each_request_of_a_connection_is_decided_on_its_own() -> None:
    core = connection()
    get = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    for number in (1, 3):
        play(
            core,
            (core.client_data(get), [SendUpstream(get)]),
            (core.upstream_data(OK), [SendClient(OK), seen(number, "GET", "/v1/x", 200, 0, 2)]),
        )
        told = refusal(core.client_data(get.replace(b"/v1/x", b"/admin")), 403, closes=False)
        assert told["path"] == "/admin" and told["reason"] == "path not allowed"


def test_a_pipeline_is_served_one_by_one() -> None:
    core = connection()
    first = b"POST /v1/1 HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"
    second = b"GET /admin HTTP/1.1\r\n" + HOST + b"\r\n"
    third = b"GET /v1/3 HTTP/1.1\r\n" + HOST + b"\r\n"
    assert plain(core.client_data(first + second + third)) == [SendUpstream(first)]
    commands = core.upstream_data(OK)
    assert commands[0] == SendUpstream(third)
    answers = b"".join(each.data for each in commands if isinstance(each, SendClient))
    assert answers.startswith(OK + b"HTTP/1.1 403 ")
    assert plain(commands)[2:] == [
        seen(1, "POST", "/v1/1", 200, 3, 2),
        seen(2, "GET", "/admin", 403, deny="path not allowed"),
    ]
    assert plain(core.upstream_data(OK)) == [SendClient(OK), seen(3, "GET", "/v1/3", 200, 0, 2)]


def test_the_server_is_dialled_for_the_first_allowed_request_only() -> None:
    core = connection(connected=False)
    refusal(core.client_data(b"GET /admin HTTP/1.1\r\n" + HOST + b"\r\n"), 403, closes=False)
    head = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n"
    play(
        core,
        (core.client_data(head + b"h"), [OpenUpstream()]),
        (core.client_data(b"i"), []),
        (core.upstream_opened(), [SendUpstream(head + b"hi")]),
        (core.upstream_data(OK), [SendClient(OK), seen(2, "POST", "/v1/x", 200, 2, 2)]),
    )


def test_a_server_that_can_not_be_dialled_is_a_readable_502() -> None:
    core = connection(connected=False)
    post = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nhi"
    for _ in range(2):  # and the next request tries again
        assert core.client_data(post) == [OpenUpstream()]
        commands = core.upstream_failed("certificate has expired")
        told = refusal(commands, 502, closes=False)
        assert told["reason"] == "certificate has expired"
        assert [each.error for each in commands if isinstance(each, Seen)] == ["certificate has expired"]


def test_bodies_stream_without_being_held() -> None:
    core = connection()
    core.client_data(b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Content-Length: 6\r\n\r\n")
    play(
        core,
        (core.client_data(b"ab"), [SendUpstream(b"ab")]),
        (core.upstream_data(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nxy"), [
            SendClient(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nxy")
        ]),
        (core.client_data(b"cd"), [SendUpstream(b"cd")]),
        (core.upstream_data(b"zz"), [SendClient(b"zz")]),
        (core.client_data(b"ef"), [SendUpstream(b"ef"), seen(1, "POST", "/v1/x", 200, 6, 4)]),
    )  # fmt: skip
    assert core.waiting == "request"


def test_chunks_pass_with_their_trailers_and_without_their_extensions() -> None:
    core = connection()
    head = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    play(
        core,
        (core.client_data(head + b"005;a=b\r\nhel"), [SendUpstream(head + b"5\r\nhel")]),
        (core.client_data(b"lo\r\n0\r\nX-Sum: 1\r\n\r\n"), [SendUpstream(b"lo\r\n0\r\nX-Sum: 1\r\n\r\n")]),
        (
            core.upstream_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"),
            [SendClient(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")],
        ),
        (
            core.upstream_data(b"0\r\nX-T: 1\r\nContent-Length: 9\r\n\r\n"),
            [SendClient(b"0\r\nX-T: 1\r\n\r\n"), seen(1, "POST", "/v1/x", 200, 5, 2)],
        ),
    )


def test_continue_is_passed_on() -> None:
    core = connection()
    head = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    play(
        core,
        (core.client_data(head), [SendUpstream(head)]),
        (core.upstream_data(b"HTTP/1.1 100 Continue\r\n\r\n"), [SendClient(b"HTTP/1.1 100 Continue\r\n\r\n")]),
    )
    assert core.waiting == "content"
    play(
        core,
        (core.client_data(b"hi"), [SendUpstream(b"hi")]),
        (core.upstream_data(OK), [SendClient(OK), seen(1, "POST", "/v1/x", 200, 2, 2)]),
    )


def test_an_answer_instead_of_continue_ends_the_connection() -> None:
    """The client may send the body or not: what follows could be read either way."""
    core = connection()
    core.client_data(b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n"
    assert plain(core.upstream_data(answer + b"\r\n")) == [
        SendClient(answer + b"Connection: close\r\n\r\n"),
        seen(1, "POST", "/v1/x", 413),
        CloseUpstream(),
        CloseClient(),
    ]


def test_a_refused_request_that_waits_for_continue_is_answered_at_once() -> None:
    core = connection()
    commands = core.client_data(
        b"POST /admin HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9999\r\n\r\n"
    )
    refusal(commands, 403, closes=True)


@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_of_a_refused_request_is_skipped(chunked: bool) -> None:
    core = connection()
    framing = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 30\r\n\r\n"
    smuggled = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled) if chunked else smuggled[:30]
    refusal(core.client_data(b"POST /admin HTTP/1.1\r\n" + HOST + framing), 403, closes=False)
    get = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    assert core.client_data(body) == []
    assert core.client_data(get) == [SendUpstream(get)]


def test_a_large_body_of_a_refused_request_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "DRAINED", 1000)
    refusal(
        connection().client_data(b"POST /admin HTTP/1.1\r\n" + HOST + b"Content-Length: 1001\r\n\r\n"),
        403,
        closes=True,
    )
    core = connection()
    refusal(
        core.client_data(b"POST /admin HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"), 403, closes=False
    )
    assert core.client_data(b"fffff\r\n" + b"x" * 1000) == []
    assert core.client_data(b"x") == [CloseUpstream(), CloseClient()]


def test_head_and_statuses_without_content() -> None:
    core = connection()
    for status, method in ((200, b"HEAD"), (204, b"GET"), (304, b"GET")):
        core.client_data(method + b" /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
        length = b"" if status == 204 else b"Content-Length: 99\r\n"
        sent = b"HTTP/1.1 %d Y\r\nETag: a\r\n" % status
        commands = core.upstream_data(sent + b"Content-Length: 99\r\n\r\n")
        assert commands[0] == SendClient(sent + length + b"\r\n")
        assert core.waiting == "request"


def test_an_answer_may_end_with_the_connection() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    play(
        core,
        (
            core.upstream_data(b"HTTP/1.0 200 OK\nServer: old\n\ndata"),
            [SendClient(b"HTTP/1.1 200 OK\r\nServer: old\r\nConnection: close\r\n\r\ndata")],
        ),
        (core.upstream_data(b"more"), [SendClient(b"more")]),
        (core.upstream_eof(), [seen(1, "GET", "/v1/x", 200, 0, 8), CloseUpstream(), CloseClient()]),
        (core.client_data(b"GET /v1/x HTTP/1.1\r\n"), []),
    )


def test_an_old_client_gets_the_content_of_chunks() -> None:
    core = connection()
    play(
        core,
        (
            core.client_data(b"GET /v1/x HTTP/1.0\r\n" + HOST + b"\r\n"),
            [SendUpstream(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")],
        ),
        (core.upstream_data(b"HTTP/1.1 103 Early Hints\r\n\r\n"), []),
        (
            core.upstream_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
            [
                SendClient(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi"),
                seen(1, "GET", "/v1/x", 200, 0, 2),
                CloseUpstream(),
                CloseClient(),
            ],
        ),
    )


# ---------------------------------------------------------------- fields for one hop


def test_fields_for_one_hop_end_here() -> None:
    core = connection()
    request = (
        b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: keep-alive, X-Mine, TE, HTTP2-Settings, Upgrade\r\n"
        b"Keep-Alive: 5\r\nX-Mine: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\nProxy-Connection: a\r\n"
        b"Proxy-Authorization: Basic eA==\r\nX-Other: 2\r\n\r\n"
    )
    assert core.client_data(request) == [
        SendUpstream(
            b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: keep-alive, TE\r\nTE: trailers\r\nX-Other: 2\r\n\r\n"
        )
    ]
    answer = (
        b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nConnection: Upgrade, X-Hop\r\nUpgrade: h2c\r\nX-Hop: 1\r\n'
        b"Keep-Alive: timeout=5\r\nX-End: 1\r\nContent-Length: 0\r\n\r\n"
    )
    assert core.upstream_data(answer)[0] == SendClient(b"HTTP/1.1 200 OK\r\nX-End: 1\r\nContent-Length: 0\r\n\r\n")


def test_close_is_kept_on_both_sides() -> None:
    core = connection()
    assert core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: Close\r\n\r\n") == [
        SendUpstream(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    ]
    commands = core.upstream_data(OK)
    assert commands[0] == SendClient(OK.replace(b"2\r\n", b"2\r\nConnection: close\r\n"))
    assert commands[2:] == [CloseUpstream(), CloseClient()]


# ---------------------------------------------------------------- WebSocket

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 section 1.3
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: " + KEY + b"\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + ACCEPT + b"\r\n"
    b"Connection: Upgrade\r\n\r\n"
)


EARLY, FIRST, PONG, BYE = b"\x81\x85keysearly", b"\x81\5first", b"\x8a\0", b"\x88\2\3\xe8"


def test_a_websocket_is_a_pipe_of_frames_after_101() -> None:
    core = connection()
    request = b"\x82\x97keysGET /admin HTTP/1.1\r\n\r\n"
    play(
        core,
        (core.client_data(HANDSHAKE + EARLY), [SendUpstream(HANDSHAKE)]),
        (core.upstream_data(SWITCHED + FIRST), [SendUpstream(EARLY), SendClient(SWITCHED + FIRST)]),
        (core.client_data(request), [SendUpstream(request)]),
        (core.upstream_data(PONG), [SendClient(PONG)]),
        (core.client_eof(), [EndUpstream()]),
        (core.upstream_data(BYE), [SendClient(BYE)]),
        (core.upstream_eof(), [seen(1, "GET", "/v1/ws", 101, 40, 13), CloseUpstream(), CloseClient()]),
    )


TO_CLIENT, TO_SERVER = b"\x88\2\3\xea", b"\x88\x82\0\0\0\0\3\xea"  # 1002


def test_what_is_no_frame_does_not_go_up() -> None:
    core = connection()
    core.client_data(HANDSHAKE)
    core.upstream_data(SWITCHED)
    commands = core.client_data(EARLY + b"GET /admin HTTP/1.1\r\n\r\n")
    assert commands[0] == SendUpstream(EARLY + TO_SERVER), "what was a frame goes on, and the end"
    assert commands[1] == SendClient(TO_CLIENT)
    told = commands[2]
    assert isinstance(told, Seen) and told.protocol == "websocket"
    assert told.verdict == Deny(None, REASONS["request malformed"], "a client's frame is not masked")
    assert commands[3:] == [CloseUpstream(), CloseClient()]
    assert core.client_data(EARLY) == core.upstream_data(PONG) == []


def test_an_early_octet_that_is_no_frame_ends_it_at_once() -> None:
    core = connection()
    core.client_data(HANDSHAKE + b"x" * 30)
    commands = core.upstream_data(SWITCHED + b"\x81\5fi")
    assert commands[0] == SendUpstream(TO_SERVER)
    assert commands[1] == SendClient(SWITCHED + b"\x81\5fi"), "no frame can begin within another one"
    assert commands[-2:] == [CloseUpstream(), CloseClient(reset=True)]


def test_a_server_that_breaks_the_protocol_is_cut_off() -> None:
    core = connection()
    core.client_data(HANDSHAKE + EARLY)
    commands = core.upstream_data(SWITCHED + FIRST + b"HTTP/1.1 200 OK\r\n")
    assert commands[0] == SendUpstream(TO_SERVER) or commands[0] == SendUpstream(EARLY + TO_SERVER)
    assert commands[1] == SendClient(SWITCHED + FIRST + TO_CLIENT)
    (told,) = [each for each in commands if isinstance(each, Seen)]
    assert isinstance(told.verdict, Allow) and told.error.startswith("the server broke the WebSocket protocol: ")


DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"


@pytest.mark.parametrize(
    ("offered", "agreed", "first"),
    [
        (DEFLATE, DEFLATE.replace(b"client_max_window_bits", b"server_no_context_takeover"), b"\xc1"),
        (DEFLATE, b"", b"\x81"),
        (b"", b"", b"\x81"),
        (b"", DEFLATE, b""),
        (DEFLATE, b"Sec-WebSocket-Extensions: x-deflate\r\n", b""),
        (DEFLATE + b"Sec-WebSocket-Extensions: x\r\n", b"Sec-WebSocket-Extensions: permessage-deflate, x\r\n", b""),
    ],
)
def test_an_extension_is_one_that_is_known_and_was_offered(offered: bytes, agreed: bytes, first: bytes) -> None:
    core = connection()
    core.client_data(HANDSHAKE.replace(b"\r\n\r\n", b"\r\n" + offered + b"\r\n"))
    commands = core.upstream_data(SWITCHED.replace(b"\r\n\r\n", b"\r\n" + agreed + b"\r\n"))
    if not first:
        refusal(commands, 502, closes=True)
        return
    for octet in (b"\x81", b"\xc1"):
        core = connection()
        core.client_data(HANDSHAKE.replace(b"\r\n\r\n", b"\r\n" + offered + b"\r\n"))
        core.upstream_data(SWITCHED.replace(b"\r\n\r\n", b"\r\n" + agreed + b"\r\n"))
        passed = core.client_data(octet + b"\x80keys") == [SendUpstream(octet + b"\x80keys")]
        assert passed is (octet == b"\x81" or first == b"\xc1")


def test_a_websocket_may_end_from_the_server_first() -> None:
    core = connection()
    core.client_data(HANDSHAKE)
    core.upstream_data(SWITCHED)
    assert core.upstream_eof() == [EndClient()]
    assert plain(core.client_eof()) == [seen(1, "GET", "/v1/ws", 101), CloseUpstream(), CloseClient()]


@pytest.mark.parametrize(
    "answer",
    [
        SWITCHED.replace(ACCEPT, b"AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        SWITCHED.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        SWITCHED.replace(b"Sec-WebSocket-Accept", b"X"),
    ],
)
def test_a_101_that_proves_nothing_is_no_pipe(answer: bytes) -> None:
    core = connection()
    core.client_data(HANDSHAKE + b"GET /admin HTTP/1.1\r\n" + HOST + b"\r\n")
    refusal(core.upstream_data(answer), 502, closes=True)


@pytest.mark.parametrize(
    "request_head",
    [
        HANDSHAKE.replace(b"GET", b"POST"),
        HANDSHAKE.replace(b"Connection: Upgrade", b"Connection: keep-alive"),
        HANDSHAKE.replace(b"websocket", b"websocket, h2c"),
        HANDSHAKE.replace(b"websocket", b"h2c"),
        HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HANDSHAKE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Key: a\r\n\r\n"),
    ],
)
def test_what_is_not_a_websocket_handshake_is_no_upgrade(request_head: bytes) -> None:
    for accept in (ACCEPT, b"Kfh9QIsMVZcl6xEPYxPHzW8SZ8w="):  # the second proves an empty key
        core = connection()
        (sent,) = core.client_data(request_head)
        assert isinstance(sent, SendUpstream) and b"upgrade" not in sent.data.lower()
        refusal(core.upstream_data(SWITCHED.replace(ACCEPT, accept)), 502, closes=True)


def test_a_websocket_outside_of_the_rule_is_refused() -> None:
    refusal(connection().client_data(HANDSHAKE.replace(b"/v1/ws", b"/ws")), 403, closes=False)
    post_only = connection(HttpRule(("POST",), ("/v1",)))
    refusal(post_only.client_data(HANDSHAKE), 403, closes=False)


def test_a_websocket_that_the_server_declines_stays_http() -> None:
    core = connection()
    core.client_data(HANDSHAKE)
    core.upstream_data(OK)
    refusal(core.client_data(b"GET /admin HTTP/1.1\r\n" + HOST + b"\r\n"), 403, closes=False)


# ---------------------------------------------------------------- smuggling corpus

POST = b"POST /v1/x HTTP/1.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "both lengths": POST + HOST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "both lengths, other order": POST + HOST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "two equal lengths": POST + HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "list of lengths": POST + HOST + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed length": POST + HOST + b"Content-Length: +5\r\n\r\nhello",
    "hexadecimal length": POST + HOST + b"Content-Length: 0x5\r\n\r\nhello",
    "length with a leading zero": POST + HOST + b"Content-Length: 05\r\n\r\nhello",
    "length with an underscore": POST + HOST + b"Content_Length: 5\r\n\r\nhello",
    "length before a space": POST + HOST + b"Content-Length : 5\r\n\r\nhello",
    "length with a control character": POST + HOST + b"Content-Length: \x0b5\r\n\r\nhello",
    "two codings": POST + HOST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "unknown coding": POST + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "list of codings": POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity and chunked": POST + HOST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "quoted coding": POST + HOST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "coding with a control character": POST + HOST + b"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n",
    "coding before a space": POST + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "folded coding": POST + HOST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "coding in 1.0": POST.replace(b"1.1", b"1.0") + HOST + CHUNKED + b"\r\n0\r\n\r\n",
    "length named by Connection": POST + HOST + b"Connection: content-length\r\nContent-Length: 5\r\n\r\nhello",
    "Host named by Connection": POST + HOST + b"Connection: Host\r\n\r\n",
    "folded line": POST + HOST + b"X: a\r\n b\r\n\r\n",
    "line that begins with a space": POST + b" X: a\r\n" + HOST + b"\r\n",
    "LF alone": POST + HOST + b"X: a\nY: b\r\n\r\n",
    "LF alone after the request line": b"POST /v1/x HTTP/1.1\nHost: api.example.com\r\n\r\n",
    "CR alone": POST + HOST + b"X: a\rY: b\r\n\r\n",
    "CR before CRLF": POST + HOST + b"X: a\r\r\n\r\n",
    "NUL": POST + HOST + b"X: a\0b\r\n\r\n",
    "DEL": POST + HOST + b"X: a\x7fb\r\n\r\n",
    "no colon": POST + HOST + b"XY\r\n\r\n",
    "empty name": POST + HOST + b": x\r\n\r\n",
    "name that is no token": POST + HOST + b"X(Y): x\r\n\r\n",
    "name with non-ASCII": POST + HOST + b"X\xe9: x\r\n\r\n",
    "empty line first": b"\r\n" + POST + HOST + b"\r\n",
    "LF first": b"\n" + POST + HOST + b"\r\n",
    "space first": b" " + POST + HOST + b"\r\n",
    "two spaces": b"POST  /v1/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "tab instead of space": b"POST\t/v1/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "space in the target": b"POST /v1/x /v1/y HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"POST /v1/x\r\n" + HOST + b"\r\n",
    "version 2": b"POST /v1/x HTTP/2.0\r\n" + HOST + b"\r\n",
    "version 1.2": b"POST /v1/x HTTP/1.2\r\n" + HOST + b"\r\n",
    "lower-case version": b"POST /v1/x http/1.1\r\n" + HOST + b"\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no Host": POST + b"\r\n",
    "no Host in 1.0": POST.replace(b"1.1", b"1.0") + b"\r\n",
    "two Hosts": POST + HOST + HOST + b"\r\n",
    "empty Host": POST + b"Host: \r\n\r\n",
    "Host with a path": POST + b"Host: api.example.com/x\r\n\r\n",
    "Host with user": POST + b"Host: a@api.example.com\r\n\r\n",
    "other authority in the target": b"POST http://evil.example/v1/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown expectation": POST + HOST + b"Expect: 200-ok\r\nContent-Length: 1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "binary": b"\x00\x01\x02",
    "too many fields": POST + HOST + b"X: y\r\n" * 300 + b"\r\n",
    "lower-case method": b"post /v1/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "long method": b"A" * 40,
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_what_may_be_read_in_two_ways_is_not_forwarded(data: bytes) -> None:
    core = connection()
    commands = core.client_data(data)
    told = refusal(commands, 400, closes=True)
    assert told["reason"] in ("request malformed", "not HTTP")
    assert told["hint"] in FLAWS
    assert core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n") == []


def test_the_same_requests_pass_when_they_are_not_ambiguous() -> None:
    """The positive control of the corpus."""
    for data in (
        POST + HOST + b"Content-Length: 5\r\n\r\nhello",
        POST + HOST + CHUNKED + b"\r\n0\r\n\r\n",
        POST + HOST + b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
        POST + HOST + b"X:a\t\r\nY:  b \xe9 \r\nZ:\r\n\r\n",
        POST.replace(b"1.1", b"1.0") + HOST + b"\r\n",
    ):
        assert isinstance(connection().client_data(data)[0], SendUpstream), data


@pytest.mark.parametrize("size", [LONGEST_HEAD + 4, LONGEST_HEAD + 100])
def test_a_head_is_bounded(size: int) -> None:
    bomb = POST + HOST + b"X: "
    core = connection()
    commands = core.client_data(bomb + b"a" * (size - len(bomb)))
    assert refusal(commands, 400, closes=True)["hint"] == "the request head is too long"


def test_the_longest_head_passes() -> None:
    start = POST + HOST + b"X: "
    head = start + b"a" * (LONGEST_HEAD - len(start))
    (sent,) = connection().client_data(head + b"\r\n\r\n")
    assert isinstance(sent, SendUpstream) and len(sent.data) == LONGEST_HEAD + 4


BAD_BODIES = {
    "no size": b"\r\n",
    "bad size": b"5x\r\nhello\r\n",
    "signed size": b"+5\r\nhello\r\n",
    "prefixed size": b"0x5\r\nhello\r\n",
    "size with an underscore": b"1_0\r\n",
    "space after the size": b"5 \r\nhello\r\n",
    "space before the size": b" 5\r\nhello\r\n",
    "size of 17 digits": b"00000000000000005\r\n",
    "LF after the size": b"5\nhello\r\n",
    "LF in the extension": b"5;a\nhello\r\n",
    "CR in the extension": b"5;a\rb\r\nhello\r\n",
    "long extension": b"5;" + b"a" * 2000,
    "no CRLF after the chunk": b"5\r\nhelloXX",
    "LF after the chunk": b"5\r\nhello\n",
    "endless size": b"0" * 2000,
    "bad trailer": b"0\r\nX\r\n\r\n",
    "folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "LF in the trailer": b"0\r\nX: a\nY: b\r\n\r\n",
    "trailer that frames": b"0\r\nContent-Length: 5\r\n\r\n",
    "trailer that routes": b"0\r\nHost: evil.example\r\n\r\n",
    "trailer that overrides": b"0\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
    "endless trailer": b"0\r\n" + b"X: a\r\n" * 4000,
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_malformed_body_is_cut_off(body: bytes) -> None:
    core = connection()
    core.client_data(POST + HOST + CHUNKED + b"\r\n")
    commands = core.client_data(body)
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient()]
    (told,) = [each for each in commands if isinstance(each, Seen)]
    assert isinstance(told.verdict, Deny) and told.verdict.reason == "request malformed" and told.status == 400
    upward = b"".join(each.data for each in commands if isinstance(each, SendUpstream))
    assert not upward.endswith(b"0\r\n\r\n")


def test_chunk_extensions_are_bounded_together() -> None:
    core = connection()
    core.client_data(POST + HOST + CHUNKED + b"\r\n")
    chunk = b"1;" + b"a" * 500 + b"\r\nx\r\n"
    fitting = MOST_EXTENSIONS // 501
    for _ in range(fitting):
        assert core.client_data(chunk) == [SendUpstream(b"1\r\nx\r\n")]
    assert core.client_data(chunk)[-1] == CloseClient()


def test_a_body_ends_where_its_length_says() -> None:
    core = connection()
    inner = b"a=b\r\nGET /admin HTTP/1.1\r\n" + HOST + b"\r\n"
    head = POST + HOST + b"Content-Length: %d\r\n\r\n" % len(inner)
    assert core.client_data(head + inner + inner) == [SendUpstream(head + inner)]
    commands = core.upstream_data(OK)
    assert not any(isinstance(each, SendUpstream) for each in commands)


# ---------------------------------------------------------------- faults


def test_the_server_closes_without_an_answer() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    core.upstream_data(b"HTTP/1.1 2")
    told = refusal(core.upstream_eof(), 502, closes=True)
    assert told["error"] == "membrane could not connect"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_a_cut_answer_is_not_taken_for_a_whole_one(answer: bytes) -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    core.upstream_data(answer)
    commands = core.upstream_eof("connection reset by peer")
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient(reset=True)]
    assert [each.error for each in commands if isinstance(each, Seen)] == ["connection reset by peer"]


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x01\x00\x02\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * LONGEST_HEAD,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
    ],
)
def test_a_malformed_answer_is_a_502(answer: bytes) -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    commands = core.upstream_data(answer)
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient()]
    assert [each.status for each in commands if isinstance(each, Seen)] == [502]


def test_an_answer_with_both_lengths_goes_on_with_one() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert core.upstream_data(answer)[0] == SendClient(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )


def test_octets_that_nobody_asked_for_end_the_connection() -> None:
    """They could be taken for the answer to the next request."""
    core = connection()
    assert core.upstream_data(OK) == [CloseUpstream(reset=True), CloseClient()]
    core = connection()
    get = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    core.client_data(get + get)
    commands = core.upstream_data(OK + OK)
    assert commands[0] == SendClient(OK)
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient()]
    assert not any(isinstance(each, SendUpstream) for each in commands)


def test_an_early_answer_with_close_ends_the_upload() -> None:
    core = connection()
    core.client_data(POST + HOST + b"Content-Length: 100\r\n\r\nabc")
    answer = b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n"
    assert plain(core.upstream_data(answer + b"Connection: close\r\n\r\n")) == [
        SendClient(answer + b"Connection: close\r\n\r\n"),
        seen(1, "POST", "/v1/x", 413, 3),
        CloseUpstream(),
        CloseClient(),
    ]


def test_an_early_answer_without_close_lets_the_upload_end() -> None:
    core = connection()
    core.client_data(POST + HOST + b"Content-Length: 5\r\n\r\nabc")
    assert plain(core.upstream_data(OK)) == [SendClient(OK)]
    assert plain(core.client_data(b"de")) == [SendUpstream(b"de"), seen(1, "POST", "/v1/x", 200, 5, 2)]
    assert core.waiting == "request"


def test_the_server_leaves_an_idle_connection() -> None:
    assert connection().upstream_eof() == [CloseUpstream(), CloseClient()]


def test_a_client_that_half_closes_gets_its_answers() -> None:
    core = connection()
    get = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n"
    core.client_data(get + get)
    assert core.client_eof() == []
    assert core.upstream_data(OK)[0] == SendUpstream(get)
    assert plain(core.upstream_data(OK)) == [
        SendClient(OK),
        seen(2, "GET", "/v1/x", 200, 0, 2),
        CloseUpstream(),
        CloseClient(),
    ]


def test_a_client_that_leaves_within_its_request_cuts_it_off() -> None:
    core = connection()
    core.client_data(POST + HOST + b"Content-Length: 5\r\n\r\nabc")
    commands = core.client_eof()
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient(reset=True)]
    assert [each.error for each in commands if isinstance(each, Seen)] == [
        "the client closed before the end of its request"
    ]
    assert connection().client_eof() == [CloseUpstream(), CloseClient()]
    core = connection()
    core.client_data(b"GET /v1/x HT")
    assert core.client_eof() == [CloseUpstream(), CloseClient()]


def test_a_deadline_is_an_answer_or_an_end() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert core.waiting == "server"
    told = refusal(core.upstream_failed("no answer within 60 s"), 502, closes=True)
    assert told["reason"] == "no answer within 60 s"
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\nHo")
    assert core.waiting == "head"
    assert core.client_late() == [CloseUpstream(reset=True), CloseClient(reset=True)]


def test_the_upload_limit_is_a_429_or_an_end() -> None:
    left = 100

    def spend(_rules: object, octets: int) -> Deny | None:
        nonlocal left
        left -= octets
        return None if left >= 0 else Deny(None, REASONS["limit reached"], "limits: upload")

    core = connection(spend=spend)
    core.client_data(POST + HOST + b"Content-Length: 1000\r\n\r\n")
    commands = core.client_data(b"x" * 100)
    (told,) = [each for each in commands if isinstance(each, Seen)]
    assert told.status == 429 and isinstance(told.verdict, Deny) and told.verdict.reason == "limit reached"
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient()]
    assert not any(isinstance(each, SendUpstream) for each in commands)
    left = 300
    core = connection(spend=spend)
    core.client_data(HANDSHAKE)
    core.upstream_data(SWITCHED)
    commands = core.client_data(b"\x82\xfe\1\x2ckeys" + b"x" * 300)
    assert commands[-1] == CloseClient(reset=True)


def test_what_waits_is_bounded() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert core.wants_client
    core.client_data(b"x" * READ_AHEAD)
    assert not core.wants_client


def test_an_exception_of_the_policy_sends_nothing() -> None:
    def decide(_: object) -> Allow:
        raise RuntimeError("no answer")

    core = Http1(Gate(Bound(NAME, 443, "https"), decide), lambda: 0.0, connected=True)
    with pytest.raises(RuntimeError):
        core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert not [each for each in core.upstream_eof() if isinstance(each, SendUpstream)]


def test_an_answer_that_has_begun_has_no_deadline() -> None:
    core = connection()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert core.waiting == "server"
    core.upstream_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert core.waiting == "nothing"
    core.upstream_data(b"0\r\n\r\n")
    assert core.waiting == "request"
