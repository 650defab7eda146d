"""What holds for every request, every cut and every body."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membrane.gateway.http.bodies import Chunked, Sized
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE, FieldDecoder, Undecodable, encode
from membrane.gateway.http.frames import DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import Admitted, Bound, Gate
from membrane.gateway.http.spellings import Scrubber, Spellings
from membrane.gateway.sniff import PREFACE
from membrane.policy.model import Allow
from membrane.policy.url_paths import canonical_path

if TYPE_CHECKING:
    from membrane.gateway.http.exchange import Command


def _load_fuzz() -> Any:
    path = Path(__file__).parent.parent / "fuzz" / "fuzz_http.py"
    spec = importlib.util.spec_from_file_location("fuzz_http", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz = _load_fuzz()
CORPUS = {path.name: path.read_bytes() for path in sorted(fuzz.CORPUS.iterdir())}

# ---------------------------------------------------------------- clients


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
def test_every_cut_of_a_request_has_the_effect_of_the_whole(data: bytes) -> None:
    fuzz.check(data)
    whole = fuzz.effect(data)
    two = data.startswith(PREFACE[:3])
    for cut in range(1, len(data)):
        up, down, seen, closed = fuzz.effect(data, iter((cut, len(data))))
        assert (up, seen, closed) == (whole[0], *whole[2:]), cut
        assert down == whole[1] or (two and fuzz.without_grants(down) == fuzz.without_grants(whole[1])), cut


def test_the_corpus_holds_allowed_and_refused_requests_of_both_protocols() -> None:
    """Else the test above could hold for nothing."""
    for kind in ("h1", "h2"):
        effects = [fuzz.effect(data) for name, data in CORPUS.items() if name.startswith(kind)]
        assert sum(b"/v1/" in up for up, *_ in effects) >= 5
        assert sum(any(each[2] == 403 for each in seen) for _, _, seen, _ in effects) >= 2
        assert sum(any(each[2] == 400 for each in seen) for _, _, seen, _ in effects) >= 1


@pytest.mark.parametrize("seed", range(8))
def test_neighbours_of_the_corpus(seed: int) -> None:
    assert fuzz.run(lambda count: count < 250, seed) == 250


# ---------------------------------------------------------------- paths

PARTS = st.sampled_from(
    [
        "/",
        "//",
        "a",
        "B",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "%7e",
        "%2f",
        "%5c",
        "%25",
        "%",
        ";",
        "*",
        "~",
        "é",
        "%c3%a9",
        " ",
        "\\",
    ]
)


@given(st.lists(PARTS, min_size=1, max_size=12).map("".join))
@example("/v1/..;/x")
@example("/a/%2e%2e/%2e/b%2Fc")
@settings(max_examples=300, deadline=None)
def test_the_forwarded_path_is_canonical_and_stays_so(path: str) -> None:
    decided = []

    def decide(request: Any) -> Allow:
        decided.append(request.path)
        return Allow(None, "yes")

    gate = Gate(Bound("a.example", 443, "https"), decide)
    target = path.encode("latin-1") + b"?q=/../" + b"x"
    answered = gate.judge(b"GET", target, b"a.example", [], [], body=False)
    if isinstance(answered, Admitted):
        assert decided == [answered.request.path]
        assert answered.target == answered.request.path.encode() + b"?q=/../x"
        assert canonical_path(answered.request.path, slashes=True) == answered.request.path
        again = gate.judge(b"GET", answered.target, b"a.example", [], [], body=False)
        assert again == answered
    else:
        assert answered.status == 400 and decided == []


# ---------------------------------------------------------------- servers

ANSWERS = {
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
    "empty": b"HTTP/1.1 204 No Content\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n3 \r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 2\nX: a\n b\n\nhi",
    "both lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "until close": b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello",
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    "malformed": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
    "too much": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\n",
}


def served(data: bytes, step: int) -> tuple[bytes, list[Any]]:
    """What the client gets of an answer that comes in pieces."""
    core = fuzz.core_for(b"GET")
    core.client_data(b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
    commands: list[Command] = []
    for at in range(0, len(data), step):
        commands += core.upstream_data(data[at : at + step])
    commands += core.upstream_eof()
    down = b"".join(each.data for each in commands if isinstance(each, SendClient))
    return down, [each for each in commands if not isinstance(each, SendClient)]


@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS.keys())
def test_every_cut_of_an_answer_has_the_effect_of_the_whole(data: bytes) -> None:
    whole = served(data, len(data))
    for step in range(1, len(data)):
        assert served(data, step) == whole


@pytest.mark.parametrize(
    "data", [ANSWERS[name] for name in ("sized", "empty", "chunked", "interim", "bare LF", "both lengths")]
)
def test_h11_reads_what_the_client_gets(data: bytes) -> None:
    down, _ = served(data, 3)
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/v1/x", headers=[("Host", "api.example.com")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(down)
    events = []
    while (event := reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        events.append(event)
        if type(event) is h11.EndOfMessage:
            break
    assert type(events[-1]) is h11.EndOfMessage and reader.trailing_data[0] == b""
    content = b"".join(bytes(each.data) for each in events if type(each) is h11.Data)
    assert content in (b"hello", b"", b"helloabc", b"hi")


# ---------------------------------------------------------------- bodies

DICE = st.randoms(use_true_random=False)


def cuts(data: bytes, dice: random.Random) -> list[bytes]:
    out = []
    while data:
        size = dice.randint(1, 9)
        out.append(data[:size])
        data = data[size:]
    return out


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(max_size=9), st.randoms(use_true_random=False)
)
@settings(max_examples=200, deadline=None)
def test_chunks_keep_their_content_and_end_where_they_end(
    chunks: list[bytes], after: bytes, dice: random.Random
) -> None:
    wire = b"".join(b"%x;e\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nA: b\r\n\r\n"
    expected = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nA: b\r\n\r\n"
    body, out, rest = Chunked(strict=True), [], b""  # type: ignore[var-annotated]
    for piece in cuts(wire + after, dice):
        rest += piece[body.feed(piece, 0, out) :]
    assert body.done and b"".join(out) == expected and rest == after
    assert body.size == sum(map(len, chunks))


@given(st.binary(max_size=80), st.binary(max_size=9), DICE)
@settings(max_examples=100, deadline=None)
def test_a_sized_body_takes_what_is_its_own(content: bytes, after: bytes, dice: random.Random) -> None:
    body, out, rest = Sized(len(content)), [], b""  # type: ignore[var-annotated]
    for piece in cuts(content + after, dice):
        rest += piece[body.feed(piece, 0, out) :]
    assert (body.done, b"".join(out), rest) == (True, content, after)


# ---------------------------------------------------------------- scrubbing

SHOWN, TOLD = b"ab1ab2ab3", b"xy4xy5xy6"


@given(
    st.lists(st.sampled_from([SHOWN, b"ab1", b"ab1ab2", b"a", b"2ab3", b"\0", b"zz"]), max_size=12).map(b"".join),
    DICE,
)
@settings(max_examples=300, deadline=None)
def test_a_value_is_replaced_however_it_is_cut(text: bytes, dice: random.Random) -> None:
    scrubber = Scrubber(Spellings([(SHOWN, TOLD)]))
    out = b"".join(scrubber.feed(piece) for piece in cuts(text, dice)) + scrubber.flush()
    assert out == text.replace(SHOWN, TOLD)


# ---------------------------------------------------------------- HPACK

NAMES = st.sampled_from([b":method", b":path", b"accept", b"x-a", b"cookie", b"x-" + b"long" * 30])
FIELDS = st.lists(
    st.tuples(NAMES, st.one_of(st.binary(max_size=30), st.just(b"GET"), st.just(b"v" * 300))), max_size=12
)


@given(st.lists(FIELDS, min_size=1, max_size=5), st.sampled_from([0, 64, 4096, LARGEST_TABLE]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_our_decoder_reads_what_hpack_writes(
    blocks: list[list[tuple[bytes, bytes]]], table: int, huffman: bool
) -> None:
    encoder, decoder = hpack.Encoder(), FieldDecoder(1 << 20, 1000)
    encoder.header_table_size = table
    for fields in blocks:
        names, values = decoder.decode(encoder.encode(fields, huffman=huffman))
        assert list(zip(names, values, strict=True)) == fields


@given(FIELDS)
@settings(max_examples=200, deadline=None)
def test_hpack_reads_what_our_encoder_writes(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder()
    for _ in range(2):
        assert [tuple(each) for each in decoder.decode(encode(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


PIECES = st.sampled_from([b"\x82", b"\x40\x01a\x01b", b"\xbe", b"\x00\x81\x1f", b"\x3f\xe1\x1f"])
OCTETS = st.lists(st.one_of(st.binary(min_size=1, max_size=4), PIECES), max_size=10).map(b"".join)


@given(st.lists(OCTETS, min_size=1, max_size=4))
@example([b"\x40\x81"])
@settings(max_examples=500, deadline=None)
def test_both_decoders_agree_about_any_octets(blocks: list[bytes]) -> None:
    ours, theirs = FieldDecoder(1 << 20, 1000), hpack.Decoder(max_header_list_size=1 << 20)
    theirs.max_allowed_table_size = LARGEST_TABLE
    for block in blocks:
        try:
            expected = [tuple(each) for each in theirs.decode(block, raw=True)]
        except (hpack.HPACKError, IndexError):
            with pytest.raises(Undecodable):
                ours.decode(block)
            return
        names, values = ours.decode(block)
        assert list(zip(names, values, strict=True)) == expected


# ---------------------------------------------------------------- HTTP/2 with a server


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_what_the_client_of_http2_gets_is_well_formed_whatever_is_refused_in_between(seed: int, step: int) -> None:
    """Frames of the server keep their order and content; ours stand between them, never within."""
    dice = random.Random(seed)
    core = Http2(Gate(Bound(fuzz.NAME, 443, "https"), fuzz.DECIDE), lambda: 0.0)
    client, server = hpack.Encoder(), hpack.Encoder()
    down = b""

    def take(commands: list[Command]) -> None:
        nonlocal down
        down += b"".join(each.data for each in commands if isinstance(each, SendClient))

    take(core.client_data(PREFACE + frame(SETTINGS, 0, 0) + frame(8, 0, 0, (1 << 24).to_bytes(4, "big"))))
    stream, pending, sent, refused = 1, frame(SETTINGS, 0, 0), [], 0
    for _ in range(60):
        allowed = dice.random() < 0.5
        path = b"/v1/x" if allowed else b"/admin"
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", fuzz.NAME.encode()), (b":path", path)]
        commands = core.client_data(frame(HEADERS, END_HEADERS | END_STREAM, stream, client.encode(fields)))
        take(commands)
        assert any(isinstance(each, SendUpstream) for each in commands) is allowed
        if allowed:
            status = dice.choice([b"200", b"404", b"418"])
            block = server.encode([(b":status", status), (b"x-n", b"%d" % stream)])
            body = dice.randbytes(dice.randrange(40))
            pending += frame(HEADERS, 0, stream, block[:2]) + frame(9, END_HEADERS, stream, block[2:])
            pending += frame(DATA, END_STREAM, stream, body)
            sent.append((stream, status, body))
        else:
            refused += 1
        stream += 2
        take(core.upstream_data(pending[:step]) if pending else [])
        pending = pending[step:]
    while pending:
        take(core.upstream_data(pending[:step]))
        pending = pending[step:]
    reader = hpack.Decoder()
    got, block, statuses = [], b"", {}
    while down:
        length = int.from_bytes(down[:3], "big")
        kind, flags, number, payload = down[3], down[4], int.from_bytes(down[5:9], "big"), down[9 : 9 + length]
        assert len(payload) == length
        down = down[9 + length :]
        if kind in (HEADERS, 9):
            block += payload
            if flags & END_HEADERS:
                statuses[number] = dict(reader.decode(block, raw=True))[b":status"]
                block = b""
        elif kind == DATA and statuses[number] != b"403":
            got.append((number, statuses[number], payload))
    assert got == sent
    assert sum(status == b"403" for status in statuses.values()) == refused


def test_events_name_each_request_once() -> None:
    core = Http1(Gate(Bound(fuzz.NAME, 443, "https"), fuzz.DECIDE), lambda: 0.0, connected=True)
    numbers: list[int] = []
    get = b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
    for _ in range(20):
        commands = core.client_data(get + get.replace(b"/v1", b"/v2"))
        commands += core.upstream_data(ANSWERS["sized"])
        numbers += [each.number for each in commands if isinstance(each, Seen)]
    assert numbers == list(range(1, 41))
