"""Requests that some servers read as others, and answers that would show a secret in parts or in another coding."""

from __future__ import annotations

import hpack
import pytest
from test_http_credentials import BOUND, NAME, PLACEHOLDER, VALUE, decoder, down, frames, http1, http2, up

from membrane.gateway.http import frames as h2
from membrane.gateway.http.requests import Admitted, Bound, Gate, Refused
from membrane.policy.decide import Decider
from membrane.policy.load import Source, load

POLICY = """
presets: []
allow:
  - {dest: "https://a.test", http: [{methods: [GET], paths: [/v1, /admin]}, {methods: [PUT], paths: [/v1]}]}
deny:
  - https://a.test/admin/users
"""
DECIDER = Decider(load([Source("user", "u", POLICY)], presets={}).policy)


def status(target: str, *fields: tuple[str, str], method: str = "GET") -> int:
    gate = Gate(Bound("a.test", 443, "https"), DECIDER.decide)
    names, values = [name.encode() for name, _ in fields], [value.encode() for _, value in fields]
    found = gate.judge(method.encode(), target.encode(), b"a.test", names, values, body=False)
    return found.status if isinstance(found, Refused) else 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-http-method-override", "PUT", 0),
        ("x-http-method-override", "DELETE", 403),
        ("x_http_method_override", "PUT", 0),
        ("x_http_method_override", "DELETE", 403),
        ("x-http_method", "DELETE", 403),
        ("x_method_override", "delete", 403),
        ("x_original_url", "/v2", 403),
        ("x-original-uri", "/v2", 403),
        ("x-override-url", "/v1/x", 0),
        ("x_rewrite_url", "https://b.test/", 400),
        ("x-original-url", "https://b.test/v1/x", 400),
        ("x-original-url", "https://a.test/v1/x", 0),
        ("x-original-url", "https://A.test:443/v1/x", 0),
        ("x-original-url", "https://a.test:444/v1/x", 400),
        ("x_other", "DELETE", 0),
    ],
)
def test_overrides_in_fields(name: str, value: str, expected: int) -> None:
    assert status("/v1/x", (name, value)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("_method=PUT", 0),
        ("_method=DELETE", 403),
        ("%5Fmethod=DELETE", 403),
        ("a=b;_METHOD=DELETE", 403),
        ("$httpMethod=DELETE", 403),
        ("%24httpmethod=DELETE", 403),
        ("X-HTTP-Method-Override=DELETE", 403),
        ("method=DELETE", 0),
        ("payment_method=card", 0),
    ],
)
def test_overrides_in_the_query(query: str, expected: int) -> None:
    assert status(f"/v1/x?{query}") == expected


@pytest.mark.parametrize("path", ["users", "users;x", "users;x=1/1", "%75sers", "users%3Bx", "x/../users", "users/;/"])
def test_a_deny_holds_without_the_parameters_of_segments(path: str) -> None:
    assert status("/admin/user") == status("/admin/user;s") == 0
    assert status(f"/admin/{path}") == 403
    assert status(f"/admin;a=b/{path}") == 403


RESET = (
    b"\r\nRange: bytes=0-5\r\nIf-Range: x\r\nTE: gzip\r\ngrpc-accept-encoding: gzip\r\n"
    b"A-IM: gzip\r\nx-ms-range: bytes=0-5\r\nConnect-Accept-Encoding: gzip\r\n"
    b"Accept_Encoding: gzip\r\nAccept_Charset: utf-7\r\n"
)


def test_http1_asks_for_the_whole_and_in_the_clear() -> None:
    head = b"GET /v1/x HTTP/1.1\r\nHost: %b\r\nx-api-key: %b%b\r\n" % (NAME.encode(), PLACEHOLDER, RESET)
    sent = up(http1().client_data(head)).lower()
    assert VALUE.lower() in sent and b"accept-encoding: identity" in sent
    gone = (b"range:", b"te:", b"grpc-accept", b"a-im", b"connect-accept", b"accept_encoding", b"accept_charset")
    assert all(name not in sent for name in gone), sent


def test_http2_asks_for_the_whole_and_in_the_clear() -> None:
    core, encoder = http2()
    fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", NAME),
        (":path", "/v1/x"),
        ("range", "bytes=0-5"),
    ]
    fields += [("if-range", "x"), ("grpc-accept-encoding", "gzip"), ("accept-encoding", "br"), ("x-plain", "1")]
    fields += [("connect-accept-encoding", "gzip"), ("a-im", "gzip")]
    section = h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, encoder.encode(fields))
    sent = [payload for kind, *_rest, payload in frames(up(core.client_data(section))) if kind == h2.HEADERS]
    names = dict(hpack.Decoder().decode(sent[-1]))
    assert names["accept-encoding"] == "identity" and names["x-plain"] == "1"
    gone = ["range", "if-range", "grpc-accept-encoding", "connect-accept-encoding", "a-im"]
    assert names.keys().isdisjoint(gone)


def test_http1_scrubs_the_reason_and_refuses_a_coded_call() -> None:
    request = b"GET /v1/x HTTP/1.1\r\nHost: %b\r\nx-api-key: %b\r\n\r\n" % (NAME.encode(), PLACEHOLDER)
    core = http1()
    core.client_data(request)
    shown = down(core.upstream_data(b"HTTP/1.1 403 no key %b\r\ncontent-length: 0\r\n\r\n" % VALUE))
    assert shown.startswith(b"HTTP/1.1 403 no key %b\r\n" % PLACEHOLDER)
    for field in (b"grpc-encoding", b"Connect-Content-Encoding", b"IM"):
        core = http1()
        core.client_data(request)
        shown = down(core.upstream_data(b"HTTP/1.1 200 OK\r\n%b: gzip\r\ncontent-length: 3\r\n\r\nabc" % field))
        assert shown.startswith(b"HTTP/1.1 502 "), field


def test_http2_does_not_pass_on_a_coded_call() -> None:
    core, encoder = http2()
    fields = [(":method", "POST"), (":scheme", "https"), (":authority", NAME), (":path", "/v1/x")]
    fields += [("content-type", "application/grpc"), ("x-api-key", PLACEHOLDER.decode())]
    core.client_data(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, encoder.encode(fields)))
    head = hpack.Encoder().encode([(":status", "200"), ("grpc-encoding", "gzip")])
    shown = frames(down(core.upstream_data(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head))))
    told = dict(decoder().decode(next(payload for kind, *_rest, payload in shown if kind == h2.HEADERS)))
    assert told["grpc-status"] == "14"


def test_a_trailer_is_what_a_server_may_read() -> None:
    gate = Gate(BOUND, DECIDER.decide)
    assert not isinstance(gate, Admitted)
    core = http1()
    head = b"POST /v1/x HTTP/1.1\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % NAME.encode()
    sent = up(core.client_data(head + b"0\r\nX_HTTP_Method_Override: DELETE\r\n\r\n"))
    assert b"verride" not in sent and not sent.endswith(b"0\r\n\r\n")
    core = http1()
    assert up(core.client_data(head + b"0\r\nX_Other: 1\r\n\r\n")).endswith(b"0\r\nX_Other: 1\r\n\r\n")
