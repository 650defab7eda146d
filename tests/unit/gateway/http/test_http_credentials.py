"""Secrets: put in where they belong, refused elsewhere, and never seen in an answer."""

from __future__ import annotations

import base64
import gzip
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import hpack
import pytest

from membrane.gateway.http import frames as h2
from membrane.gateway.http.credentials import Destination, Secret, Vault, echoes, placeholder_for
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE
from membrane.gateway.http.frames import frame
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import Bound, Gate
from membrane.gateway.http.spellings import Scrubber, Spellings
from membrane.gateway.sniff import PREFACE
from membrane.policy.model import Allow, Deny, HttpRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from membrane.gateway.http.exchange import Command

NAME = "api.example.com"
BOUND = Bound(NAME, 443, "https")
VALUE = b"sk-ant-api03-Zk7_Qw9-rT2/uV8+xY4=aB6cD0eF"
PLACEHOLDER = b"sk-ant-api03-Aa1_Bb2-cC3/dD4+eE5=fF6gG7hH"
HOST = b"Host: api.example.com\r\n"


def secret(place: str = "x-api-key", path: str = "/v1", **more: object) -> Secret:
    destination = Destination("https", NAME, 443, path)
    return Secret("KEY", VALUE, PLACEHOLDER, place, [destination], **more)  # type: ignore[arg-type]


def vault(place: str = "x-api-key", bound: Bound = BOUND) -> Vault:
    return Vault([secret(place)], bound)


def request(path: str = "/v1/x", host: str = NAME, port: int = 443, scheme: str = "https") -> HttpRequest:
    return HttpRequest(host, port, scheme, "GET", path)  # type: ignore[arg-type]


# ---------------------------------------------------------------- placeholders


@pytest.mark.parametrize(
    "value", [VALUE, b"ghp_" + b"a1B2" * 9, b"0123456789abcdef", b"AKIA" + b"Z" * 16, b"xoxb-1234567890-abcdefghij"]
)
def test_a_placeholder_has_the_shape_of_its_secret(value: bytes) -> None:
    placeholder = placeholder_for(value, os.urandom)
    assert len(placeholder) == len(value) and placeholder != value
    for real, shown in zip(value.decode(), placeholder.decode(), strict=True):
        assert real.isdigit() == shown.isdigit()
        assert real.isupper() == shown.isupper() and real.islower() == shown.islower()
    assert placeholder_for(value, os.urandom) != placeholder
    for prefix in (b"sk-ant-api03-", b"ghp_", b"AKIA", b"xoxb-"):
        assert value.startswith(prefix) == placeholder.startswith(prefix)


@pytest.mark.parametrize(
    "value", [b"", b"short", b"a b c d e f g h", b"secret\r\nx: y", b"\xff" * 20, b"x" * 9000, b"-" * 20]
)
def test_what_can_not_be_held_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="secret"):
        placeholder_for(value, os.urandom)


def test_a_secret_does_not_show_itself() -> None:
    held = secret()
    assert VALUE.decode() not in repr(held) and VALUE.decode() not in str([held, vault()])
    with pytest.raises(ValueError, match="placeholder"):
        Secret("KEY", VALUE, VALUE, "x-api-key", [])
    with pytest.raises(ValueError, match="placeholder"):
        Secret("KEY", VALUE, PLACEHOLDER[1:], "x-api-key", [])


# ---------------------------------------------------------------- putting in


def test_the_value_goes_into_its_field() -> None:
    names, values = [b"x-api-key", b"x-other"], [PLACEHOLDER, b"1"]
    assert vault().apply([request()], b"/v1/x", names, values) == (b"/v1/x", [VALUE, b"1"])
    assert values == [PLACEHOLDER, b"1"]


def test_the_value_goes_into_bearer_and_basic_authorization() -> None:
    held = vault("authorization")
    bearer = held.apply([request()], b"/v1/x", [b"authorization"], [b"Bearer " + PLACEHOLDER])
    assert bearer == (b"/v1/x", [b"Bearer " + VALUE])
    for scheme in (b"Basic ", b"basic "):
        basic = scheme + base64.b64encode(b"user:" + PLACEHOLDER)
        applied = held.apply([request()], b"/v1/x", [b"authorization"], [basic])
        assert applied == (b"/v1/x", [scheme + base64.b64encode(b"user:" + VALUE)])


def test_the_value_goes_into_its_query_parameter() -> None:
    held = vault("query:key")
    target = b"/v1/x?a=1&key=" + quote(PLACEHOLDER, safe="").encode() + b"&b=2"
    expected = b"/v1/x?a=1&key=" + quote(VALUE, safe="").encode() + b"&b=2"
    assert held.apply([request()], target, [], []) == (expected, [])
    assert isinstance(held.apply([request()], target.replace(b"key=", b"other="), [], []), Deny)


@pytest.mark.parametrize(
    ("asked", "target", "names", "values"),
    [
        (request("/v2/x"), b"/v2/x", [b"x-api-key"], [PLACEHOLDER]),
        (request(host="evil.example"), b"/v1/x", [b"x-api-key"], [PLACEHOLDER]),
        (request(port=8443), b"/v1/x", [b"x-api-key"], [PLACEHOLDER]),
        (request(scheme="http"), b"/v1/x", [b"x-api-key"], [PLACEHOLDER]),
        (request(), b"/v1/x", [b"x-other"], [PLACEHOLDER]),
        (request(), b"/v1/x", [b"x-api-key", b"x-other"], [PLACEHOLDER, b"a" + PLACEHOLDER]),
        (request(), b"/v1/x", [b"authorization"], [b"BASIC " + base64.b64encode(b"u:" + PLACEHOLDER)]),
        (request(), b"/v1/x?" + PLACEHOLDER, [b"x-api-key"], [PLACEHOLDER]),
        (request(), b"/v1/x?k=" + quote(PLACEHOLDER, safe="").encode(), [], []),
        (request(), b"/v1/x?k=" + b"".join(b"%%%02X" % char for char in PLACEHOLDER), [], []),
        (request(), b"/v1/" + PLACEHOLDER, [], []),
    ],
    ids=[
        "path",
        "host",
        "port",
        "scheme",
        "field",
        "two fields",
        "basic",
        "query",
        "escaped",
        "all escaped",
        "in path",
    ],
)
def test_a_placeholder_anywhere_else_is_refused(
    asked: HttpRequest, target: bytes, names: list[bytes], values: list[bytes]
) -> None:
    refused = vault().apply([asked], target, names, values)
    assert isinstance(refused, Deny)
    assert "KEY" in refused.hint and VALUE.decode() not in refused.hint + refused.reason
    assert vault().apply([asked], b"/v1/x", names, [b"harmless"] * len(names)) == (b"/v1/x", [b"harmless"] * len(names))


def test_a_vault_without_business_here_still_refuses_placeholders() -> None:
    elsewhere = vault(bound=Bound("evil.example", 443, "https"))
    assert not elsewhere.scrubs and elsewhere.scrubber() is None
    asked = request(host="evil.example")
    assert isinstance(elsewhere.apply([asked], b"/v1/x", [b"x-api-key"], [PLACEHOLDER]), Deny)


# ---------------------------------------------------------------- scrubbing


def test_every_echo_has_the_length_of_what_it_becomes() -> None:
    pairs = echoes(VALUE, PLACEHOLDER)
    assert (VALUE, PLACEHOLDER) in pairs
    assert all(len(shown) == len(told) for shown, told in pairs)


@pytest.mark.parametrize(
    "shown",
    [
        VALUE,
        quote(VALUE, safe="").encode(),
        VALUE.replace(b"/", b"\\/"),
        base64.b64encode(b"user:" + VALUE),
        base64.b64encode(b"u" + VALUE + b"x"),
        base64.b64encode(VALUE),
        base64.urlsafe_b64encode(b"us" + VALUE),
    ],
)
def test_an_echo_is_scrubbed_at_every_cut(shown: bytes) -> None:
    text = b"before " + shown + b" after"
    for cut in range(len(text) + 1):
        scrubber = vault().scrubber()
        assert scrubber is not None
        out = scrubber.feed(text[:cut]) + scrubber.feed(text[cut:]) + scrubber.flush()
        assert len(out) == len(text)
        assert out.startswith(b"before ") and out.endswith(b" after")
        assert VALUE not in out and VALUE[13:] not in base64.b64decode(out[7:-6] + b"==", altchars=b"-_")


def test_nothing_is_held_back_without_need() -> None:
    scrubber = vault().scrubber()
    assert scrubber is not None
    event = b'data: {"text": "hello"}\n\n'
    numbers = b'{"rows": [' + b"12, 34, 56, 78, 9a:bc:de " * 40 + b'], "id": "0123456789abcdef0123456789abcdef"}\n\n'
    encoded = b'data: {"audio": "' + base64.b64encode(bytes(range(256)) * 9) + b'", "a": "%20\\u0020&amp;"}\r\n\r\n'
    for each in (event, numbers, encoded):
        assert scrubber.feed(each) == each
    assert scrubber.feed(b"sk-an") == b""
    assert scrubber.feed(b"d more") == b"sk-and more"
    assert scrubber.feed(VALUE[:-1]) == b""
    assert scrubber.flush() == VALUE[:-1]


def test_many_values_at_once() -> None:
    pairs = [(b"AAAABBBB", b"xxxxyyyy"), (b"AAAACCCC", b"zzzzwwww")]
    text = b"AAAAAAAABBBBAAAACCCCAAAA"
    for step in (1, 2, 3, 5, 24):
        scrubber = Scrubber(Spellings(pairs))
        parts = [scrubber.feed(text[at : at + step]) for at in range(0, len(text), step)]
        assert b"".join(parts) + scrubber.flush() == b"AAAAxxxxyyyyzzzzwwwwAAAA"


# ---------------------------------------------------------------- within HTTP/1.1


def http1(place: str = "x-api-key") -> Http1:
    gate = Gate(BOUND, lambda _: Allow(None, "yes"))
    return Http1(gate, lambda: 0.0, connected=True, vault=vault(place))


def up(commands: list[Command]) -> bytes:
    return b"".join(each.data for each in commands if isinstance(each, SendUpstream))


def down(commands: list[Command]) -> bytes:
    return b"".join(each.data for each in commands if isinstance(each, SendClient))


def test_http1_puts_the_value_in_and_asks_for_what_can_be_read() -> None:
    core = http1()
    head = b"GET /v1/x HTTP/1.1\r\n" + HOST + b"X-Api-Key: " + PLACEHOLDER + b"\r\nAccept-Encoding: gzip\r\n\r\n"
    assert up(core.client_data(head)) == (
        b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Accept-Encoding: identity\r\nX-Api-Key: " + VALUE + b"\r\n\r\n"
    )


def test_http1_refuses_a_placeholder_with_an_event_that_does_not_hold_the_value() -> None:
    core = http1()
    commands = core.client_data(b"GET /v2/x HTTP/1.1\r\n" + HOST + b"X-Api-Key: " + PLACEHOLDER + b"\r\n\r\n")
    assert up(commands) == b"" and b" 403 " in down(commands)
    (told,) = [each for each in commands if isinstance(each, Seen)]
    assert isinstance(told.verdict, Deny) and VALUE.decode() not in repr(told)


@pytest.mark.parametrize("framing", ["sized", "chunked", "until close"])
@pytest.mark.parametrize("step", [1, 7, 10000])
def test_http1_scrubs_answers(framing: str, step: int) -> None:
    core = http1("query:key")
    target = b"/v1/x?key=" + quote(PLACEHOLDER, safe="").encode()
    commands = core.client_data(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert quote(VALUE, safe="").encode() in up(commands)
    body = b"you sent " + VALUE + b"!"
    name = VALUE.replace(b"/", b"%2f").replace(b"=", b"%3D")  # within a name only signs of a token may be
    head = b"HTTP/1.1 200 OK\r\nX-Echo: " + VALUE + b"\r\nX-" + name + b": 1\r\n"
    if framing == "sized":
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif framing == "chunked":
        chunks = b"".join(b"5\r\n%b\r\n" % body[at : at + 5] for at in range(0, len(body), 5) if at + 5 <= len(body))
        rest = body[len(body) // 5 * 5 :]
        chunks += b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b""
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-T: " + VALUE + b"\r\n\r\n"
    else:
        data = head + b"\r\n" + body
    every: list[Command] = []
    for at in range(0, len(data), step):
        every += core.upstream_data(data[at : at + step])
    every += core.upstream_eof()
    out = down(every)
    (told,) = [each for each in every if isinstance(each, Seen)]
    assert told.query == target.partition(b"/v1/x")[2].decode()
    assert VALUE not in out and b"X-Echo: " + PLACEHOLDER in out
    assert name not in out and b"X-" + PLACEHOLDER.replace(b"/", b"%2f").replace(b"=", b"%3D") + b": 1" in out
    if framing != "chunked":
        assert out.endswith(b"you sent " + PLACEHOLDER + b"!")
    else:
        decoded, rest = b"", out.partition(b"\r\n\r\n")[2]
        while not rest.startswith(b"0\r\n"):
            size, _, rest = rest.partition(b"\r\n")
            decoded, rest = decoded + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert decoded == b"you sent " + PLACEHOLDER + b"!"
        assert b"X-T: " + PLACEHOLDER in rest


def test_http1_does_not_pass_on_what_it_can_not_read() -> None:
    core = http1()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    body = gzip.compress(VALUE)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    out = down(core.upstream_data(head + body))
    assert out.startswith(b"HTTP/1.1 502 ") and body not in out


@pytest.mark.parametrize("status", ["200 OK", "103 Early Hints", "204 No Content", "101 Switching Protocols"])
def test_http1_passes_on_no_folded_head_in_which_a_value_may_be_cut(status: str) -> None:
    head = f"HTTP/1.1 {status}\r\nX: ".encode()
    for fold in (b"\r\n ", b"\n\t", b"\r\n    "):
        core = http1()
        core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
        out = down(core.upstream_data(head + VALUE[:9] + fold + VALUE[9:] + b"\r\n\r\n"))
        assert out.startswith(b"HTTP/1.1 502 ") and VALUE[9:] not in out
    core = Http1(
        Gate(BOUND, lambda _: Allow(None, "yes")), lambda: 0.0, connected=True
    )  # the control: where no secret goes it is one line
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert status.startswith("101") or b"X: a  b" in down(core.upstream_data(head + b"a\r\n b\r\n\r\n"))


def test_http1_scrubs_a_websocket() -> None:
    core = http1()
    core.client_data(
        b"GET /v1/x HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    core.upstream_data(
        b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )
    text = b"\x81\x40" + VALUE + b"."
    out = down(core.upstream_data(text[:20])) + down(core.upstream_data(text[20:]))
    assert out == text.replace(VALUE, PLACEHOLDER)


@pytest.mark.parametrize("kind", ["utf-7", "IBM037", "iso-2022-jp", "x-unknown"])
def test_http1_does_not_pass_on_characters_that_it_can_not_read(kind: str) -> None:
    core = http1()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    head = b'HTTP/1.1 200 OK\r\nContent-Type: text/plain; Charset="%b"\r\nContent-Length: 1\r\n\r\nx'
    assert down(core.upstream_data(head % kind.encode())).startswith(b"HTTP/1.1 502 ")
    core = http1()
    core.client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + b"\r\n")
    assert down(core.upstream_data(head % b"UTF-8")).endswith(b"\r\n\r\nx")


def test_http1_does_not_ask_for_a_character_set() -> None:
    asked = b"Accept: text/html;charset=utf-16;q=0.9, text/*; charset=utf-7\r\nAccept-Charset: utf-16\r\n"
    sent = up(http1().client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + asked + b"\r\n"))
    assert b"charset" not in sent.lower() and b"Accept: text/html;q=0.9, text/*\r\n" in sent


# What a server may take for the path or the method of a request, where the policy allows everything.
READ_OTHERWISE = [(b"x-original-url", b"/public/log"), (b"x-rewrite-url", b"/v1x"), (b"x-original-uri", b"/")]


@pytest.mark.parametrize(("name", "path"), READ_OTHERWISE)
def test_the_value_goes_up_only_when_every_reading_is_at_its_destination(name: bytes, path: bytes) -> None:
    key = b"x-api-key: " + PLACEHOLDER + b"\r\n"

    def sent(field: bytes) -> bytes:
        return up(http1().client_data(b"GET /v1/x HTTP/1.1\r\n" + HOST + key + field + b"\r\n"))

    assert VALUE in sent(b"") and VALUE in sent(name + b": /v1/y\r\n")  # positive control
    for spelled in (name, name.upper(), name.replace(b"-", b"_")):
        assert sent(spelled + b": " + path + b"\r\n") == b""


# ---------------------------------------------------------------- within HTTP/2


def http2() -> tuple[Http2, hpack.Encoder]:
    core = Http2(Gate(BOUND, lambda _: Allow(None, "yes")), lambda: 0.0, vault=vault())
    core.client_data(PREFACE + frame(h2.SETTINGS, 0, 0) + frame(h2.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    core.upstream_data(frame(h2.SETTINGS, 0, 0))
    return core, hpack.Encoder()


def ask(
    core: Http2,
    encoder: hpack.Encoder,
    stream: int,
    value: bytes = PLACEHOLDER,
    more: Sequence[tuple[bytes, bytes]] = (),
) -> list[Command]:
    fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", b"/v1/x")]
    block = encoder.encode([*fields, (b"x-api-key", value), (b"accept-encoding", b"br"), *more])
    return core.client_data(frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, block))


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    out = []
    while data:
        length = int.from_bytes(data[:3], "big")
        out.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
        data = data[9 + length :]
    return out


def decoder() -> hpack.Decoder:
    out = hpack.Decoder()
    out.max_allowed_table_size = LARGEST_TABLE
    return out


def test_http2_puts_the_value_in() -> None:
    core, encoder = http2()
    ((_, _, _, block),) = frames(up(ask(core, encoder, 1)))
    fields = dict(tuple(each) for each in decoder().decode(block, raw=True))
    assert fields[b"x-api-key"] == VALUE and fields[b"accept-encoding"] == b"identity"


@pytest.mark.parametrize(("name", "path"), READ_OTHERWISE)
def test_http2_puts_the_value_in_only_when_every_reading_is_at_its_destination(name: bytes, path: bytes) -> None:
    for asked, wanted in ((b"/v1/y", True), (path, False)):
        core, encoder = http2()
        sent = up(ask(core, encoder, 1, more=[(name, asked), (b"accept", b"a/b;charset=utf-16")]))
        assert (VALUE in sent) == wanted and b"charset" not in sent


@pytest.mark.parametrize("step", [1, 13, 100000])
@pytest.mark.parametrize("trailers", [False, True])
def test_http2_scrubs_sections_and_content(step: int, trailers: bool) -> None:
    core, encoder = http2()
    ask(core, encoder, 1)
    server = hpack.Encoder()
    body = b"you sent " + VALUE + b" and " + VALUE[:9]
    cut = 25
    end = 0 if trailers else h2.END_STREAM
    data = frame(h2.HEADERS, h2.END_HEADERS, 1, server.encode([(b":status", b"200"), (b"x-echo", VALUE)]))
    data += frame(h2.DATA, 0, 1, body[:cut]) + frame(h2.DATA, end | h2.PADDED, 1, b"\x02" + body[cut:] + b"\0\0")
    if trailers:
        flags = h2.END_HEADERS | h2.END_STREAM
        data += frame(h2.HEADERS, flags, 1, server.encode([(b"x-trailer", VALUE), (b"alt-svc", b"h3")]))
    out, granted, seen = b"", 0, []
    for at in range(0, len(data), step):
        commands = core.upstream_data(data[at : at + step])
        out += down(commands)
        granted += sum(int.from_bytes(each[3], "big") for each in frames(up(commands)) if each[2] == 0)
        seen += [each for each in commands if isinstance(each, Seen)]
    got = frames(out)
    assert b"".join(each[3] for each in got if each[0] == h2.DATA) == body.replace(VALUE, PLACEHOLDER)
    assert granted == 3  # the padding that the client never saw
    reader = decoder()
    sections = [[tuple(field) for field in reader.decode(each[3], raw=True)] for each in got if each[0] == h2.HEADERS]
    assert sections[0] == [(b":status", b"200"), (b"x-echo", PLACEHOLDER)]
    assert sections[1:] == ([[(b"x-trailer", PLACEHOLDER)]] if trailers else [])
    assert got[-1][1] & h2.END_STREAM
    assert [(each.status, each.bytes_down) for each in seen] == [(200, len(body))]


def test_http2_does_not_pass_on_what_it_can_not_read() -> None:
    core, encoder = http2()
    ask(core, encoder, 1)
    server = hpack.Encoder()
    block = server.encode([(b":status", b"200"), (b"content-encoding", b"gzip")])
    commands = core.upstream_data(frame(h2.HEADERS, h2.END_HEADERS, 1, block))
    assert up(commands) == frame(h2.RST_STREAM, 0, 1, h2.CANCEL.to_bytes(4, "big"))
    head, content = frames(down(commands))
    assert (b":status", b"502") in [tuple(each) for each in decoder().decode(head[3], raw=True)]
    assert content[1] == h2.END_STREAM
    late = core.upstream_data(frame(h2.DATA, h2.END_STREAM, 1, gzip.compress(VALUE)))
    assert down(late) == b""
    assert frames(up(late))[0][0] == h2.WINDOW_UPDATE
    assert up(ask(core, encoder, 3))


def test_http2_keeps_what_comes_on_a_stream_that_the_client_has_left() -> None:
    core, encoder = http2()
    ask(core, encoder, 1)
    core.client_data(frame(h2.RST_STREAM, 0, 1, h2.CANCEL.to_bytes(4, "big")))
    server = hpack.Encoder()
    data = frame(h2.HEADERS, h2.END_HEADERS, 1, server.encode([(b":status", b"200"), (b"x-echo", VALUE)]))
    commands = core.upstream_data(data + frame(h2.DATA, 0, 1, VALUE))
    assert down(commands) == b""
    assert up(commands) == frame(h2.WINDOW_UPDATE, 0, 0, len(VALUE).to_bytes(4, "big"))
