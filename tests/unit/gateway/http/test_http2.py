"""Playbooks for HTTP/2: frames in, and the exact commands that come out.

One file of over 800 lines: playbooks of one state machine, read one beside the other.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import hpack
import pytest

from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.http import frames as h2
from membrane.gateway.http import http2_answers
from membrane.gateway.http.exchange import CloseClient, CloseUpstream, Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE
from membrane.gateway.http.frames import frame, setting
from membrane.gateway.http.http2 import MOST_CONTINUATIONS, RESERVE, Http2
from membrane.gateway.http.http2_answers import PATIENCE
from membrane.gateway.http.requests import LONGEST_HEAD, Bound, Gate
from membrane.gateway.sniff import PREFACE
from membrane.policy import reasons
from membrane.policy.decide import Decider
from membrane.policy.model import Deny, HostRule, HttpRule, Origin, Policy, PortRange, RuleBudget
from membrane.policy.reasons import REASONS

if TYPE_CHECKING:
    from membrane.gateway.http.exchange import Command, Spend

NAME = "api.example.com"
PORT = PortRange("tcp", 443, 443)
RULE = HostRule(
    "r",
    Origin("command line", "-a"),
    "host",
    NAME,
    None,
    (PORT,),
    "https",
    (HttpRule(("GET", "HEAD", "POST"), ("/v1", "/pkg.Svc")),),
    inspect=True,
)
SETTINGS = frame(h2.SETTINGS, 0, 0)
GRANT = frame(h2.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))
Fields = list[tuple[bytes, bytes]]


class Client:
    """Encodes what a client says."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()

    def section(self, stream: int, fields: Fields, *, end: bool = True, flags: int = 0) -> bytes:
        block = self.encoder.encode(fields)
        return frame(h2.HEADERS, h2.END_HEADERS | flags | (h2.END_STREAM if end else 0), stream, block)

    def request(
        self, stream: int, path: bytes = b"/v1/x", method: bytes = b"GET", *more: tuple[bytes, bytes], end: bool = True
    ) -> bytes:
        return self.section(stream, [*pseudo(path, method), *more], end=end)


def pseudo(path: bytes = b"/v1/x", method: bytes = b"GET", authority: bytes = NAME.encode()) -> Fields:
    return [(b":method", method), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]


def connection(*, spend: Spend | None = None, start: bool = True, grant: bool = True) -> tuple[Http2, Client]:
    core = Http2(Gate(Bound(NAME, 443, "https"), Decider(Policy(allow=(RULE,))).decide), lambda: 0.0, spend=spend)
    if start:
        core.client_data(PREFACE + SETTINGS + (GRANT if grant else b""))
        core.upstream_data(SETTINGS)
    return core, Client()


class Peer:
    """Reads the frames that one side gets, as a peer would."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder()
        self.decoder.max_allowed_table_size = LARGEST_TABLE

    def read(self, data: bytes) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = []
        at = len(PREFACE) if data.startswith(PREFACE) else 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 3], "big")
            kind, flags, stream = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big")
            payload = data[at + 9 : at + 9 + length]
            assert len(payload) == length, "a frame is cut"
            at += 9 + length
            if kind == h2.HEADERS:
                assert flags & h2.END_HEADERS
                out.append((kind, flags, stream, [tuple(f) for f in self.decoder.decode(payload, raw=True)]))
            else:
                out.append((kind, flags, stream, payload))
        return out


def up(commands: list[Command]) -> bytes:
    return b"".join(each.data for each in commands if isinstance(each, SendUpstream))


def down(commands: list[Command]) -> bytes:
    return b"".join(each.data for each in commands if isinstance(each, SendClient))


def told(commands: list[Command]) -> list[tuple[Any, ...]]:
    return [
        (
            each.number,
            each.request.method,
            each.request.path,
            each.status,
            each.bytes_up,
            each.bytes_down,
            each.verdict.reason if isinstance(each.verdict, Deny) else each.error,
        )
        for each in commands
        if isinstance(each, Seen)
    ]


def answer(
    stream: int, fields: Fields | None = None, *, end: bool = False, encoder: hpack.Encoder | None = None
) -> bytes:
    block = (encoder or hpack.Encoder()).encode(fields or [(b":status", b"200")])
    return frame(h2.HEADERS, h2.END_HEADERS | (h2.END_STREAM if end else 0), stream, block)


def goaway(commands: list[Command]) -> int:
    """Check that the connection was ended with GOAWAY; its error code."""
    assert commands[-2:] == [CloseUpstream(reset=True), CloseClient()]
    kind, _, _, payload = Peer().read(down(commands))[-1]
    assert kind == h2.GOAWAY
    return int.from_bytes(payload[4:8], "big")


# ---------------------------------------------------------------- the plain course


def test_a_connection_begins() -> None:
    core, _ = connection(start=False)
    assert core.client_data(PREFACE[:10]) == []
    sent = core.client_data(PREFACE[10:] + frame(h2.SETTINGS, 0, 0, setting(2, 1) + setting(4, 70000)))
    assert sent == [SendUpstream(PREFACE + frame(h2.SETTINGS, 0, 0, setting(2, 0) + setting(4, 70000)))]
    assert core.upstream_data(SETTINGS) == [SendClient(SETTINGS)]
    ack = frame(h2.SETTINGS, h2.ACK, 0)
    assert core.upstream_data(ack) == [SendClient(ack)]
    assert core.client_data(ack) == [SendUpstream(ack)]


def test_a_request_and_its_answer() -> None:
    core, client = connection()
    fields = [(b"x-a", b"1"), (b"authorization", b"Bearer x"), (b"te", b"trailers"), (b"host", b"API.example.com")]
    sent = core.client_data(client.request(1, b"/v1/a/../b?c", b"POST", *fields, end=False))
    assert Peer().read(up(sent)) == [
        (h2.HEADERS, h2.END_HEADERS, 1, [*pseudo(b"/v1/b?c", b"POST"), *fields[:3]]),
    ]
    body = frame(h2.DATA, h2.END_STREAM, 1, b"hello")
    assert core.client_data(body) == [SendUpstream(body)]
    head = answer(1)
    assert core.upstream_data(head) == [SendClient(head)]
    content = frame(h2.DATA, h2.END_STREAM, 1, b"hi")
    commands = core.upstream_data(content)
    assert down(commands) == content
    assert told(commands) == [(1, "POST", "/v1/b", 200, 5, 2, "")]
    assert core.waiting == "request"


def test_the_first_section_says_that_there_is_no_table() -> None:
    core, client = connection()
    first = up(core.client_data(client.request(1)))
    second = up(core.client_data(client.request(3)))
    assert first[9:10] == b"\x20" and second[9:10] != b"\x20"


def test_each_request_of_a_connection_is_decided_on_its_own() -> None:
    core, client = connection()
    peer = Peer()
    assert up(core.client_data(client.request(1)))
    commands = core.client_data(client.request(3, b"/admin?token=x"))
    assert up(commands) == b""
    (_, flags, stream, fields), (kind, ends, _, body) = peer.read(down(commands))
    assert (flags, stream, kind, ends) == (h2.END_HEADERS, 3, h2.DATA, h2.END_STREAM)
    assert dict(fields) == {
        b":status": b"403",
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
        b"x-membrane-verdict": b"deny",
    }
    assert json.loads(body)["reason"] == "path not allowed"
    assert told(commands) == [(3, "GET", "/admin", 403, 0, 0, "path not allowed")]
    assert up(core.client_data(client.request(5)))


def window(stream: int, octets: int) -> bytes:
    return frame(h2.WINDOW_UPDATE, 0, stream, octets.to_bytes(4, "big"))


def test_a_refused_upload_never_reaches_the_server_and_its_window_is_granted_again() -> None:
    core, client = connection()
    commands = core.client_data(client.request(1, b"/admin", b"POST", end=False))
    assert [each[0] for each in Peer().read(down(commands))] == [h2.HEADERS, h2.DATA]
    upload = frame(h2.DATA, 0, 1, b"x" * 100) + frame(h2.DATA, h2.PADDED, 1, b"\x05hello12345")
    rest = client.section(1, [(b"x-trailer", b"1")]) + frame(h2.RST_STREAM, 0, 1, bytes(4))
    commands = core.client_data(upload + window(1, 7) + rest)
    assert commands == [SendClient(window(1, 100) + window(0, 100) + window(1, 11) + window(0, 11))]
    assert up(core.client_data(client.request(3)))  # and the table is still in step


def test_a_refused_upload_is_told_to_stop_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once would be sooner, but curl and others take a reset for the failure of a request that was answered."""
    monkeypatch.setattr(http2_answers, "DRAINED", 10 * 16384)
    core, client = connection()
    core.client_data(client.request(1, b"/admin", b"POST", end=False))
    data = frame(h2.DATA, 0, 1, b"x" * 16384)
    for _ in range(10):
        assert core.client_data(data) == [SendClient(window(1, 16384) + window(0, 16384))]
    stop = frame(h2.RST_STREAM, 0, 1, h2.NO_ERROR.to_bytes(4, "big"))
    assert core.client_data(data) == [SendClient(stop + window(0, 16384))]
    assert core.client_data(data) == [SendClient(window(0, 16384))]


def test_an_answer_of_ours_waits_for_the_servers_settings() -> None:
    core, client = connection(start=False)
    core.client_data(PREFACE + SETTINGS + GRANT)
    commands = core.client_data(client.request(1, b"/admin"))
    assert told(commands) and down(commands) == b""
    commands = core.upstream_data(SETTINGS)
    assert [each[0] for each in Peer().read(down(commands))] == [h2.SETTINGS, h2.HEADERS, h2.DATA]


def test_an_answer_of_ours_waits_for_the_border_of_a_frame() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    core.upstream_data(answer(1))
    content = frame(h2.DATA, 0, 1, b"x" * 50)
    assert down(core.upstream_data(content[:5])) == b""
    assert down(core.upstream_data(content[5:20])) == content[:20]
    assert down(core.client_data(client.request(3, b"/admin"))) == b""
    commands = down(core.upstream_data(content[20:]))
    assert commands.startswith(content[20:])
    assert [each[0] for each in Peer().read(commands[len(content) - 20 :])] == [h2.HEADERS, h2.DATA]


def test_an_answer_of_ours_waits_for_the_end_of_a_field_section() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    first = frame(h2.HEADERS, 0, 1, b"\x88")
    assert down(core.upstream_data(first)) == first
    assert down(core.client_data(client.request(3, b"/admin"))) == b""
    last = frame(h2.CONTINUATION, h2.END_HEADERS, 1, b"")
    assert down(core.upstream_data(last)).startswith(last)


def test_without_reserve_the_reason_is_in_a_field() -> None:
    core, client = connection(grant=False)
    commands = core.client_data(client.request(1, b"/admin"))
    ((_, flags, _, fields),) = Peer().read(down(commands))
    assert flags == h2.END_HEADERS | h2.END_STREAM
    assert dict(fields)[b"x-membrane-reason"] == b"path not allowed"
    assert b"https://api.example.com/admin" in dict(fields)[b"x-membrane-hint"]
    assert b"content-length" not in dict(fields)


def test_the_reserve_comes_out_of_what_the_client_grants() -> None:
    core, _ = connection(grant=False)
    assert core.client_data(frame(h2.WINDOW_UPDATE, 0, 0, (RESERVE - 1).to_bytes(4, "big"))) == []
    sent = core.client_data(frame(h2.WINDOW_UPDATE, 0, 0, (100).to_bytes(4, "big")))
    assert sent == [SendUpstream(frame(h2.WINDOW_UPDATE, 0, 0, (99).to_bytes(4, "big")))]


def test_the_server_never_has_more_window_than_the_client_granted() -> None:
    """Whatever is refused: granted minus our own content is at least what the server was told."""
    core, client = connection(grant=False)
    granted = passed = ours = 0
    for number in range(1, 400, 2):
        commands = core.client_data(client.request(number, b"/admin"))
        ours += sum(len(each[3]) for each in Peer().read(down(commands)) if each[0] == h2.DATA)
        increment = number * 3
        granted += increment
        sent = core.client_data(frame(h2.WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big")))
        passed += sum(int.from_bytes(each[3], "big") for each in Peer().read(up(sent)))
        assert passed + ours <= granted
    assert ours and passed


def test_a_denied_grpc_call_fails_with_its_status() -> None:
    core, client = connection()
    grpc = (b"content-type", b"application/grpc+proto")
    commands = core.client_data(client.request(1, b"/other.Svc/Call", b"POST", grpc, end=False))
    ((_, flags, _, fields),) = Peer().read(down(commands))
    assert flags == h2.END_HEADERS | h2.END_STREAM
    assert dict(fields)[b":status"] == b"200" and dict(fields)[b"grpc-status"] == b"7"
    assert b"path not allowed" in dict(fields)[b"grpc-message"]
    assert up(core.client_data(client.request(3, b"/pkg.Svc/Call", b"POST", grpc, end=False)))


def test_a_head_request_is_refused_without_content() -> None:
    core, client = connection()
    ((_, flags, _, fields),) = Peer().read(down(core.client_data(client.request(1, b"/admin", b"HEAD"))))
    assert flags & h2.END_STREAM and b"content-length" in dict(fields)


def test_frames_for_the_connection_pass() -> None:
    core, _ = connection()
    ping = frame(h2.PING, 0, 0, b"12345678")
    assert core.client_data(ping) == [SendUpstream(ping)]
    assert core.upstream_data(ping) == [SendClient(ping)]
    away = frame(h2.GOAWAY, 0, 0, bytes(8))
    assert core.client_data(away[:-8] + bytes(8)) == [SendUpstream(away)]
    assert core.upstream_data(away) == [SendClient(away)]


def test_frames_that_have_no_business_here_are_dropped() -> None:
    core, client = connection()
    core.client_data(client.request(1, end=False, method=b"POST"))
    priority = frame(h2.PRIORITY, 0, 1, bytes(5))
    unknown = frame(0x10, 0, 0, b"priority update") + frame(0xFA, 0xFF, 1, b"x" * 50)
    assert core.client_data(priority + unknown) == []
    altsvc = frame(h2.ALTSVC, 0, 0, b"h3") + frame(h2.ORIGIN, 0, 0, b"o")
    assert core.upstream_data(altsvc) == []
    other = frame(0xFA, 0, 0, b"grease")
    assert core.upstream_data(other) == [SendClient(other)]


def test_settings_are_clamped_to_what_can_be_held() -> None:
    core, _ = connection(start=False)
    huge = (1 << 32) - 1
    core.client_data(PREFACE)
    sent = core.client_data(frame(h2.SETTINGS, 0, 0, setting(1, huge) + setting(6, huge)))
    assert sent == [
        SendUpstream(frame(h2.SETTINGS, 0, 0, setting(2, 0) + setting(1, LARGEST_TABLE) + setting(6, huge)))
    ]
    sent = core.upstream_data(frame(h2.SETTINGS, 0, 0, setting(1, huge) + setting(8, 1) + setting(3, 100)))
    assert sent == [SendClient(frame(h2.SETTINGS, 0, 0, setting(1, LARGEST_TABLE) + setting(8, 0) + setting(3, 100)))]


def test_large_sections_are_cut_into_frames() -> None:
    core, client = connection()
    core.upstream_data(frame(h2.SETTINGS, 0, 0, setting(5, 1 << 16)))
    value = bytes(range(0x21, 0x7F)) * 300
    sent = core.client_data(client.request(1, b"/v1/x", b"GET", (b"x-large", value)))
    data = up(sent)
    block = b""
    kinds = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        assert length <= 16384
        kinds.append((data[at + 3], data[at + 4]))
        block += data[at + 9 : at + 9 + length]
        at += 9 + length
    assert kinds == [(h2.HEADERS, h2.END_STREAM), (h2.CONTINUATION, h2.END_HEADERS)]
    assert (b"x-large", value) in [tuple(each) for each in hpack.Decoder().decode(block, raw=True)]


def test_padding_and_priority_of_headers_are_taken_off() -> None:
    core, client = connection()
    block = client.encoder.encode(pseudo())
    flags = h2.END_HEADERS | h2.END_STREAM | h2.PADDED | h2.WITH_PRIORITY
    padded = frame(h2.HEADERS, flags, 1, b"\x03" + b"\x00\x00\x00\x00\x10" + block + b"pad")
    assert Peer().read(up(core.client_data(padded))) == [(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, pseudo())]


def test_trailers_pass_and_end_the_stream() -> None:
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    sent = core.client_data(client.section(1, [(b"x-checksum", b"1")]))
    assert Peer().read(up(sent)) == [(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, [(b"x-checksum", b"1")])]


def test_a_server_may_answer_early() -> None:
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    commands = core.upstream_data(answer(1, [(b":status", b"413")], end=True) + frame(h2.RST_STREAM, 0, 1, bytes(4)))
    assert told(commands) == [(1, "POST", "/v1/x", 413, 0, 0, "")]
    commands = core.client_data(frame(h2.DATA, 0, 1, b"in flight"))
    assert commands == [SendClient(frame(h2.WINDOW_UPDATE, 0, 0, (9).to_bytes(4, "big")))]


def test_the_status_is_read_however_it_is_encoded() -> None:
    core, client = connection()
    encoder = hpack.Encoder()
    for number, status in ((1, b"418"), (3, b"418"), (5, b"301"), (7, b"200")):
        core.client_data(client.request(number))
        interim = answer(number, [(b":status", b"103")], encoder=encoder)
        commands = core.upstream_data(interim + answer(number, [(b":status", status)], end=True, encoder=encoder))
        assert told(commands)[0][3] == int(status)


# ---------------------------------------------------------------- malformed requests

GOOD = pseudo(b"/v1/x", b"POST")
MALFORMED: dict[str, Fields] = {
    "no method": GOOD[1:],
    "no scheme": [GOOD[0], *GOOD[2:]],
    "no path": GOOD[:3],
    "no authority": [*GOOD[:2], GOOD[3]],
    "empty path": [*GOOD[:3], (b":path", b"")],
    "two methods": [GOOD[0], *GOOD],
    "two paths": [*GOOD, (b":path", b"/v1/y")],
    "unknown pseudo-header": [*GOOD, (b":evil", b"1")],
    "answer's pseudo-header": [*GOOD, (b":status", b"200")],
    "extended CONNECT": [*GOOD, (b":protocol", b"websocket")],
    "pseudo-header after a field": [*GOOD[:3], (b"a", b"b"), GOOD[3]],
    "pseudo-header in upper case": [(b":METHOD", b"POST"), *GOOD[1:]],
    "other scheme": [GOOD[0], (b":scheme", b"http"), *GOOD[2:]],
    "name in upper case": [*GOOD, (b"X-A", b"1")],
    "name with a space": [*GOOD, (b"x a", b"1")],
    "name with a colon": [*GOOD, (b"x:a", b"1")],
    "empty name": [*GOOD, (b"", b"1")],
    "CRLF in a value": [*GOOD, (b"x", b"a\r\nhost: evil.example")],
    "LF in a value": [*GOOD, (b"x", b"a\nb")],
    "NUL in a value": [*GOOD, (b"x", b"a\0b")],
    "space before a value": [*GOOD, (b"x", b" a")],
    "space after a value": [*GOOD, (b"x", b"a ")],
    "CRLF in the path": [*GOOD[:3], (b":path", b"/v1/x HTTP/1.1\r\nhost: evil.example")],
    "CRLF in the method": [(b":method", b"GET / HTTP/1.1\r\n"), *GOOD[1:]],
    "CRLF in the authority": [*GOOD[:2], (b":authority", b"api.example.com\r\nx: y"), GOOD[3]],
    "Connection": [*GOOD, (b"connection", b"close")],
    "Keep-Alive": [*GOOD, (b"keep-alive", b"1")],
    "Proxy-Connection": [*GOOD, (b"proxy-connection", b"close")],
    "Transfer-Encoding": [*GOOD, (b"transfer-encoding", b"chunked")],
    "Upgrade": [*GOOD, (b"upgrade", b"h2c")],
    "TE": [*GOOD, (b"te", b"gzip")],
    "other Host": [*GOOD, (b"host", b"evil.example")],
    "two Hosts": [*GOOD, (b"host", NAME.encode()), (b"host", NAME.encode())],
    "two lengths": [*GOOD, (b"content-length", b"0"), (b"content-length", b"0")],
    "bad length": [*GOOD, (b"content-length", b"+0")],
    "length without content": [*GOOD, (b"content-length", b"5")],
    "encoded slash": [*GOOD[:3], (b":path", b"/v1/..%2fadmin")],
    "absolute target": [*GOOD[:3], (b":path", b"https://api.example.com/v1/x")],
    "asterisk": [*GOOD[:3], (b":path", b"*")],
    "lower-case method": [(b":method", b"post"), *GOOD[1:]],
    "authority with user": [*GOOD[:2], (b":authority", b"a@api.example.com"), GOOD[3]],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_answered_on_its_stream(fields: Fields) -> None:
    core, client = connection()
    commands = core.client_data(client.section(1, fields))
    assert up(commands) == b""
    (kind, _, stream, sent), *_ = Peer().read(down(commands))
    assert (kind, stream, dict(sent)[b":status"]) == (h2.HEADERS, 1, b"400")
    assert told(commands)[0][3] == 400 and told(commands)[0][6] == "request malformed"
    assert up(core.client_data(client.request(3)))


REFUSED: dict[str, Fields] = {
    "CONNECT": [(b":method", b"CONNECT"), (b":authority", b"api.example.com:443")],
    "TRACE": [(b":method", b"TRACE"), *GOOD[1:]],
    "other authority": [*GOOD[:2], (b":authority", b"evil.example"), GOOD[3]],
    "other port": [*GOOD[:2], (b":authority", b"api.example.com:8443"), GOOD[3]],
    "only Host, another": [*GOOD[:2], GOOD[3], (b"host", b"evil.example")],
    "override": [*GOOD, (b"x-http-method-override", b"DELETE")],
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED.keys())
def test_a_forbidden_request_is_refused_on_its_stream(fields: Fields) -> None:
    core, client = connection()
    commands = core.client_data(client.section(1, fields))
    assert up(commands) == b""
    assert told(commands)[0][3] == 403


def test_host_may_stand_for_the_authority() -> None:
    core, client = connection()
    sent = core.client_data(client.section(1, [*GOOD[:2], GOOD[3], (b"host", NAME.encode())]))
    ((_, _, _, fields),) = Peer().read(up(sent))
    assert fields == GOOD


@pytest.mark.parametrize(
    ("length", "body", "ends"),
    [(b"5", b"toolong", False), (b"5", b"hi", True), (b"0", b"x", False)],
    ids=["more", "less", "none"],
)
def test_content_has_the_length_that_was_announced(length: bytes, body: bytes, ends: bool) -> None:
    """A server that speaks HTTP/1.1 behind its HTTP/2 front would read the rest as another request."""
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", (b"content-length", length), end=False))
    commands = core.client_data(frame(h2.DATA, h2.END_STREAM if ends else 0, 1, body))
    assert up(commands) == b""
    assert goaway(commands) == h2.PROTOCOL_ERROR
    assert told(commands)[0][6] == "request malformed"
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", (b"content-length", b"5"), end=False))
    padded = frame(h2.DATA, h2.END_STREAM | h2.PADDED, 1, b"\x02hello\0\0")
    assert up(core.client_data(padded)) == padded


@pytest.mark.parametrize(
    "fields",
    [
        [(b":path", b"/admin")],
        [(b"X", b"y")],
        [(b"host", b"evil.example")],
        [(b"content-length", b"1")],
        [(b"connection", b"close")],
        [(b"x", b"a\r\nb")],
    ],
)
def test_a_malformed_trailer_ends_the_connection(fields: Fields) -> None:
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    commands = core.client_data(client.section(1, fields))
    assert up(commands) == b""
    assert goaway(commands) == h2.PROTOCOL_ERROR


def test_headers_in_the_middle_of_a_stream_are_no_trailer() -> None:
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    assert goaway(core.client_data(client.section(1, [(b"x", b"y")], end=False))) == h2.PROTOCOL_ERROR


# ---------------------------------------------------------------- broken connections


def block(data: bytes) -> bytes:
    return frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, data)


BROKEN: dict[str, tuple[bytes, int]] = {
    "interrupted section": (frame(h2.HEADERS, 0, 1, b"\x82") + frame(h2.PING, 0, 0, bytes(8)), h2.PROTOCOL_ERROR),
    "section continued elsewhere": (
        frame(h2.HEADERS, 0, 1, b"\x82") + frame(h2.CONTINUATION, 4, 3, b""),
        h2.PROTOCOL_ERROR,
    ),
    "stray CONTINUATION": (frame(h2.CONTINUATION, 4, 1, b""), h2.PROTOCOL_ERROR),
    "endless CONTINUATION": (
        frame(h2.HEADERS, 0, 1, b"") + frame(h2.CONTINUATION, 0, 1, b"") * (MOST_CONTINUATIONS + 1),
        h2.ENHANCE_YOUR_CALM,
    ),
    "section too long": (
        frame(h2.HEADERS, 0, 1, b"\x82" * 16384) + frame(h2.CONTINUATION, 0, 1, b"\x82" * 16384) * 4,
        h2.ENHANCE_YOUR_CALM,
    ),
    "section that grows": (block(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 60), h2.ENHANCE_YOUR_CALM),
    "too many fields": (block(b"\x90" * 400), h2.ENHANCE_YOUR_CALM),
    "bad index": (block(b"\xff\x20"), h2.COMPRESSION_ERROR),
    "index of nothing": (block(b"\x80"), h2.COMPRESSION_ERROR),
    "endless integer": (block(b"\xff\xff\xff\xff\xff\xff\xff\xff"), h2.COMPRESSION_ERROR),
    "cut block": (block(b"\x00\x05ab"), h2.COMPRESSION_ERROR),
    "bad Huffman code": (block(b"\x00\x81\xff\x01a"), h2.COMPRESSION_ERROR),
    "table too large": (block(b"\x3f\xe1\xff\xff\x07"), h2.COMPRESSION_ERROR),
    "table update after a field": (block(b"\x82\x20"), h2.COMPRESSION_ERROR),
    "even stream": (frame(h2.HEADERS, 5, 2, b"\x82"), h2.PROTOCOL_ERROR),
    "stream 0": (frame(h2.HEADERS, 5, 0, b"\x82"), h2.PROTOCOL_ERROR),
    "padding too long": (frame(h2.HEADERS, 5 | h2.PADDED, 1, b"\x05\x82"), h2.PROTOCOL_ERROR),
    "frame too large": (frame(h2.DATA, 0, 1, bytes(16385)), h2.FRAME_SIZE_ERROR),
    "DATA on an idle stream": (frame(h2.DATA, 0, 1, b"x"), h2.PROTOCOL_ERROR),
    "DATA on stream 0": (frame(h2.DATA, 0, 0, b"x"), h2.PROTOCOL_ERROR),
    "RST on an idle stream": (frame(h2.RST_STREAM, 0, 1, bytes(4)), h2.PROTOCOL_ERROR),
    "RST of the wrong size": (frame(h2.RST_STREAM, 0, 1, bytes(3)), h2.FRAME_SIZE_ERROR),
    "window of nothing": (frame(h2.WINDOW_UPDATE, 0, 0, bytes(4)), h2.PROTOCOL_ERROR),
    "window on an idle stream": (frame(h2.WINDOW_UPDATE, 0, 9, bytes(4)), h2.PROTOCOL_ERROR),
    "window of the wrong size": (frame(h2.WINDOW_UPDATE, 0, 0, bytes(5)), h2.FRAME_SIZE_ERROR),
    "PING of the wrong size": (frame(h2.PING, 0, 0, bytes(7)), h2.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(h2.SETTINGS, 0, 1), h2.PROTOCOL_ERROR),
    "SETTINGS of the wrong size": (frame(h2.SETTINGS, 0, 0, bytes(5)), h2.FRAME_SIZE_ERROR),
    "ACK with content": (frame(h2.SETTINGS, h2.ACK, 0, bytes(6)), h2.FRAME_SIZE_ERROR),
    "impossible frame size": (frame(h2.SETTINGS, 0, 0, setting(5, 1)), h2.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frame(h2.PUSH_PROMISE, 4, 1, bytes(4)), h2.PROTOCOL_ERROR),
    "cut GOAWAY": (frame(h2.GOAWAY, 0, 0, bytes(4)), h2.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN.keys())
def test_a_client_that_breaks_the_protocol_is_cut_off(data: bytes, code: int) -> None:
    core, client = connection()
    assert goaway(core.client_data(data)) == code
    assert core.client_data(client.request(1)) == []


def test_a_client_that_does_not_speak_it_is_cut_off() -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", PREFACE + frame(h2.PING, 0, 0, bytes(8))):
        core, _ = connection(start=False)
        commands = core.client_data(data)
        assert goaway(commands) == h2.PROTOCOL_ERROR
        assert up(commands) in (b"", PREFACE)


def test_data_after_the_end_of_a_stream_ends_the_connection() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    assert goaway(core.client_data(frame(h2.DATA, 0, 1, b"x"))) == h2.STREAM_CLOSED


def test_rapid_reset_is_bounded() -> None:
    core, client = connection()
    stream = 1
    for _ in range(PATIENCE):
        sent = core.client_data(client.request(stream) + frame(h2.RST_STREAM, 0, stream, bytes(4)))
        assert len(told(sent)) == 1
        stream += 2
    assert goaway(core.client_data(client.request(stream) + frame(h2.RST_STREAM, 0, stream, bytes(4)))) == 11


def test_resets_of_answered_streams_are_no_attack() -> None:
    core, client = connection()
    encoder = hpack.Encoder()
    for stream in range(1, 2 * PATIENCE * 3, 2):
        core.client_data(client.request(stream))
        core.upstream_data(answer(stream, encoder=encoder))
        core.client_data(frame(h2.RST_STREAM, 0, stream, bytes(4)))
    assert not core.closed and core.waiting == "request"


def test_answers_before_the_servers_settings_are_bounded() -> None:
    core, client = connection(start=False)
    core.client_data(PREFACE + SETTINGS)
    wanted = 0
    for stream in range(1, 100000, 2):
        commands = core.client_data(client.request(stream, b"/admin"))
        wanted += core.wants_client
        if core.closed:
            assert commands[-1] == CloseClient()
            break
    assert core.closed and 0 < wanted < 3000


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(h2.PING, 0, 0, bytes(8)),
        SETTINGS + frame(h2.PUSH_PROMISE, 4, 1, bytes(4)),
        SETTINGS + frame(h2.HEADERS, 0, 1, b"") + frame(h2.DATA, 0, 1, b""),
        SETTINGS + frame(h2.CONTINUATION, 4, 1, b""),
        SETTINGS + frame(h2.SETTINGS, 0, 0, bytes(5)),
        SETTINGS + b"\xff\xff\xff" + frame(h2.HEADERS, 0, 1)[3:],
    ],
    ids=["HTTP/1.1", "no SETTINGS", "push", "interrupted", "stray", "bad SETTINGS", "huge"],
)
def test_a_server_that_breaks_the_protocol_is_cut_off(data: bytes) -> None:
    core, client = connection(start=False)
    core.client_data(PREFACE + SETTINGS + GRANT + client.request(1))
    commands = core.upstream_data(data)
    assert commands[-2] == CloseUpstream(reset=True) and isinstance(commands[-1], CloseClient)
    assert len(told(commands)) == 1


def test_the_server_closes() -> None:
    core, client = connection()
    core.client_data(client.request(1) + client.request(3))
    core.upstream_data(answer(1))
    commands = core.upstream_eof("connection reset by peer")
    head, content, away = Peer().read(down(commands))
    assert (head[2], dict(head[3])[b":status"], away[0]) == (3, b"502", h2.GOAWAY)
    assert json.loads(content[3])["reason"] == "connection reset by peer"
    assert [each[:4] for each in told(commands)] == [(1, "GET", "/v1/x", 200), (3, "GET", "/v1/x", 502)]
    assert commands[-1] == CloseClient()


def test_the_server_closes_within_a_frame() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    core.upstream_data(answer(1) + frame(h2.DATA, 0, 1, b"x" * 10)[:-3])
    assert core.upstream_eof()[-2:] == [CloseUpstream(reset=True), CloseClient(reset=True)]


def test_the_client_closes() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    commands = core.client_eof()
    assert commands[-2:] == [CloseUpstream(), CloseClient()]
    assert told(commands)[0][6] == "the client closed the connection"


def test_without_a_server_every_request_is_a_502() -> None:
    core, client = connection(start=False)
    assert core.upstream_failed("certificate has expired") == [SendClient(SETTINGS)]
    commands = core.client_data(PREFACE + SETTINGS)
    assert down(commands) == frame(h2.SETTINGS, h2.ACK, 0) and up(commands) == b""
    ping = core.client_data(frame(h2.PING, 0, 0, b"12345678"))
    assert down(ping) == frame(h2.PING, h2.ACK, 0, b"12345678")
    head, content = Peer().read(down(core.client_data(client.request(1))))
    assert dict(head[3])[b":status"] == b"502"
    assert json.loads(content[3]) == {
        "error": "membrane could not connect",
        "host": NAME,
        "method": "GET",
        "path": "/v1/x",
        "reason": "certificate has expired",
        "hint": "",
    }
    refused = Peer().read(down(core.client_data(client.request(3, b"/admin"))))
    assert dict(refused[0][3])[b":status"] == b"403"


def test_the_upload_limit_ends_the_connection() -> None:
    left = 1000

    def spend(_rules: object, octets: int) -> Deny | None:
        nonlocal left
        left -= octets
        return None if left >= 0 else Deny(None, REASONS["limit reached"], "limits: upload")

    core, client = connection(spend=spend)
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    commands = core.client_data(frame(h2.DATA, 0, 1, b"x" * 1000))
    assert up(commands) == b""
    assert goaway(commands) == h2.ENHANCE_YOUR_CALM
    assert told(commands)[0][6] == "limit reached"


def test_streams_over_a_budget_are_answered_each() -> None:
    rule = RULE.replace(budget=RuleBudget(upload=500, requests=3))
    ledger = Ledger(Budget(), lambda: 0.0)
    gate = Gate(Bound(NAME, 443, "https"), Decider(Policy(allow=(rule,))).decide, ledger.admit)
    core = Http2(gate, lambda: 0.0, spend=lambda rules, octets: ledger.meter(rules).spend(octets))
    core.client_data(PREFACE + SETTINGS + GRANT)
    core.upstream_data(SETTINGS)
    client, peer = Client(), Peer()
    grpc = (b"content-type", b"application/grpc")
    assert up(core.client_data(client.request(1)))
    too_long = core.client_data(client.request(3, b"/v1/x", b"POST", (b"content-length", b"5000"), end=False))
    assert not up(too_long)
    assert told(too_long)[0][3:] == (429, 0, 0, "limit reached")
    (head, content) = [entry for entry in peer.read(down(too_long)) if entry[2] == 3]
    assert dict(head[3])[b":status"] == b"429"
    assert json.loads(content[3])["rule"] == "r"
    assert up(core.client_data(client.request(5, b"/pkg.Svc/Call", b"POST", grpc)))
    assert up(core.client_data(client.request(7)))
    (head,) = peer.read(down(core.client_data(client.request(9, b"/pkg.Svc/Call", b"POST", grpc))))
    assert dict(head[3])[b":status"] == b"200" and dict(head[3])[b"grpc-status"] == b"8"
    assert b"3 requests in a session" in dict(head[3])[b"grpc-message"]
    assert not core.closed


def test_grants_wait_for_the_border_of_a_frame_and_are_bounded() -> None:
    core, client = connection()
    core.client_data(client.request(1) + client.request(3, b"/admin", b"POST", end=False))
    core.upstream_data(answer(1) + frame(h2.DATA, 0, 1, b"x" * 10)[:-1])  # the server stalls within a frame
    tiny = frame(h2.DATA, 0, 3, b"y")
    assert core.client_data(tiny * 10) == []
    assert down(core.upstream_data(b"x")) == b"x" + window(3, 1) * 10 + window(0, 10)
    core.upstream_data(frame(h2.DATA, 0, 1, b"x" * 10)[:-1])
    while not core.closed:
        commands = core.client_data(tiny * 1000)
    assert commands[-1] == CloseClient()


def test_a_frame_that_has_begun_is_not_interrupted_by_ours() -> None:
    core, client = connection()
    core.client_data(client.request(1, b"/v1/x", b"POST", end=False))
    data = frame(h2.DATA, 0, 1, b"x" * 1000)
    got = b"".join(up(core.client_data(data[at : at + 7])) for at in range(0, len(data), 7))
    assert got == data


def test_a_head_that_never_ends_is_bounded() -> None:
    core, _ = connection()
    big = frame(h2.SETTINGS, 0, 0, setting(5, 1 << 20))
    core.upstream_data(big)
    header = (LONGEST_HEAD + 1).to_bytes(3, "big") + frame(h2.HEADERS, 0, 1)[3:]
    assert goaway(core.client_data(header)) == h2.ENHANCE_YOUR_CALM


def test_what_a_deadline_runs_for() -> None:
    core, client = connection()
    assert core.waiting == "request"
    core.client_data(client.request(1))
    assert core.waiting == "server"
    core.client_data(client.request(3, b"/pkg.Svc/Watch", b"POST", (b"content-type", b"application/grpc"), end=True))
    assert core.waiting == "nothing"  # a call of gRPC is answered when there is something to say
    core, client = connection()
    core.client_data(client.request(1))
    core.upstream_data(answer(1, end=False))
    assert core.waiting == "nothing"  # an answer that has begun may be silent


def test_a_server_that_is_late_is_a_504() -> None:
    core, client = connection()
    core.client_data(client.request(1))
    commands = core.upstream_failed("the server did not answer", late=True)
    (told,) = [command for command in commands if isinstance(command, Seen)]
    assert (told.status, told.error) == (504, "the server did not answer")
    assert core.closed


def test_what_a_client_puts_into_frames_of_the_connection_is_upload() -> None:
    """PING, SETTINGS, WINDOW_UPDATE and GOAWAY carry a client's bytes to the server as content does."""
    kinds = {
        h2.PING: b"12345678",
        h2.SETTINGS: setting(0x77, 0x12345678),
        h2.WINDOW_UPDATE: (99).to_bytes(4, "big"),
        h2.GOAWAY: bytes(8),
    }
    for kind, payload in kinds.items():
        budget = Budget(1000)

        def spend(_rules: object, size: int, budget: Budget = budget) -> Deny | None:
            return None if budget.spend(size) else Deny(None, reasons.LIMIT_REACHED, "limits: upload")

        core, client = connection(spend=spend)
        core.client_data(client.request(1))
        sent = 0
        commands: list[Command] = []
        for _ in range(100):
            commands = core.client_data(frame(kind, 0, 0, payload)) or commands
            sent += len(up(commands)) if not core.closed else 0
        assert core.closed and 0 < sent < 1000
        assert goaway(commands) == h2.ENHANCE_YOUR_CALM
        assert told(commands)[-1][-1] == "limit reached"
