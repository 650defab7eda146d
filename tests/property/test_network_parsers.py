"""Parsers of the data plane against everything: they never raise, and how the bytes are cut makes no difference."""

from __future__ import annotations

import struct

import dns.message
import dns.rcode
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membrane.gateway.dns import Answerer, Names, TcpMessages, is_fake
from membrane.gateway.sniff import ENOUGH, classify
from membrane.gateway.upstream import HttpConnect, Proxy, Socks5
from membrane.policy.model import Allow, Deny

# No database: the tree may belong to somebody else.  No deadline: the machine is shared.
anywhere = settings(database=None, deadline=None)


# ---------------------------------------------------------------- first bytes


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


names = st.one_of(
    st.from_regex(rb"[a-zA-Z0-9_-]{1,10}(\.[a-z0-9]{1,5}){0,3}\.?", fullmatch=True), st.binary(max_size=20)
)
server_names = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), names).map(lambda pair: bytes([pair[0]]) + vector(2, pair[1])), max_size=2
).map(lambda entries: vector(2, b"".join(entries)))
extensions = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.one_of(server_names, st.binary(max_size=12))),
        st.tuples(st.just(16), st.one_of(st.just(b"\0\3\2h2"), st.binary(max_size=12))),
        st.tuples(st.sampled_from([43, 51, 0xFE0D, 0xFFCE, 0x0A0A]), st.binary(max_size=30)),
    ).map(lambda pair: struct.pack(">H", pair[0]) + vector(2, pair[1])),
    max_size=5,
)


@st.composite
def hellos(draw) -> bytes:
    """ClientHellos, whole or damaged, cut into records."""
    body = b"\x03\x03" + bytes(32) + vector(1, draw(st.binary(max_size=33))) + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, b"".join(draw(extensions))) + draw(st.sampled_from([b"", b"", b"", b"x"]))
    handshake = b"\x01" + vector(3, body)
    out = b""
    while handshake:
        size = draw(st.integers(1, max(1, len(handshake))))
        out += b"\x16\x03\x01" + vector(2, handshake[:size])
        handshake = handshake[size:]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(out) - 1))
        out = out[:at] + draw(st.binary(max_size=3)) + out[at + 1 :]
    return out


http = st.tuples(
    st.sampled_from([b"GET", b"POST", b"PRI", b"x" * 31, b"M-SEARCH", b"a b", b""]),
    st.binary(max_size=20),
    st.sampled_from([b"HTTP/1.1\r\n", b"HTTP/1.0\n", b"HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n"]),
).map(b" ".join)
anything = st.one_of(hellos(), http, st.just(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), st.binary(max_size=60))


@anywhere
@given(anything, st.binary(max_size=5))
@example(b"\x16\x03\x01\x00\x02\x01\x00", b"\x15")
def test_byte_by_byte_is_the_whole(data, more) -> None:
    """The first answer on any prefix is the answer on every longer one."""
    decided = None
    for end in range(len(data) + 1):
        first = classify(data[:end])
        assert decided is None or first == decided
        decided = first
    if decided is not None:
        assert classify(data + more) == decided
    assert classify(data.ljust(ENOUGH, b"\0")) is not None


@anywhere
@given(hellos())
def test_a_name_is_only_seen_where_it_is_plain(data) -> None:
    first = classify(data)
    if first is not None and first.sni:
        assert first.kind == "tls"
        assert not first.flaw
        assert set(first.sni) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
        assert not first.sni.endswith(".")


# ---------------------------------------------------------------- names


def answerer() -> tuple[Answerer, list]:
    events: list = []
    made = Answerer(
        Names(8), lambda query: Allow(None, "") if query.name.endswith("ok.test") else Deny(None, "no"), events.append
    )
    return made, events


@anywhere
@given(st.binary(max_size=80))
@example(b"\0" * 12)
def test_no_datagram_raises(data) -> None:
    made, _ = answerer()
    reply = made.answer(data)
    if reply is None:
        assert len(data) < 12 or data[2] & 0x80
        return
    assert reply[:2] == data[:2]
    assert reply[2] & 0x80
    dns.message.from_wire(reply)


labels = st.one_of(
    st.sampled_from([b"ok", b"test", b"OK", b"TEST", b"in-addr", b"arpa"]), st.binary(min_size=1, max_size=63)
)


@anywhere
@given(st.lists(labels, max_size=5), st.integers(0, 300), st.sampled_from([1, 1, 1, 3, 255]), st.booleans())
def test_every_answer_is_one_that_others_can_read(parts, kind, family, edns) -> None:
    made, _events = answerer()
    question = b"".join(vector(1, part) for part in parts) + b"\0" + struct.pack(">HH", kind, family)
    opt = b"\0\0\x29\x10\0\0\0\0\0\0\0" if edns else b""
    reply = made.answer(struct.pack(">6H", 5, 0x0100, 1, 0, 0, len(opt) and 1) + question + opt)
    assert reply is not None
    assert len(reply) <= 512
    if len(question) - 4 <= 255:
        assert reply[12 : 12 + len(question)] == question
        code = dns.rcode.Rcode(reply[3] & 15)
        assert code in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.REFUSED)
        if code != dns.rcode.NOERROR:
            assert reply[6:8] == b"\0\0"
    if reply[6:8] == b"\0\1" and kind == 1:
        assert len(made.names) == 1
        name = b".".join(parts).decode().lower()
        assert name.endswith("ok.test")
        address = dns.message.from_wire(reply).answer[0][0].to_text()
        assert made.names.name(address) == name
        assert is_fake(address)


@anywhere
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_how_a_stream_of_messages_is_cut_makes_no_difference(messages, data) -> None:
    stream = b"".join(vector(2, message) for message in messages)
    reader, got = TcpMessages(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += reader.feed(stream[:size])
        stream = stream[size:]
    assert got == messages


# ---------------------------------------------------------------- proxies

proxy_answers = st.one_of(
    st.just(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nrest"),
    st.just(b"HTTP/1.0 407 no\r\n\r\n"),
    st.just(b"\x05\x00\x05\x00\x00\x03\x03abc\x00\x50rest"),
    st.just(b"\x05\x02\x01\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50rest"),
    st.binary(max_size=40),
)


@anywhere
@given(proxy_answers, st.sampled_from([HttpConnect, Socks5]))
def test_how_a_proxy_cuts_its_answer_makes_no_difference(answer, kind) -> None:
    def outcome(cuts: list[bytes]) -> tuple[bool, str, bytes, bytes]:
        handshake = kind(Proxy("http", "p", 1, "u", "p"), "a.test", 80)
        handshake.start()
        sent, rest = b"", b""
        for part in cuts:
            if handshake.done:
                rest += part
            elif not handshake.error:
                sent += handshake.feed(part)
        return handshake.done, handshake.error, sent, handshake.rest + rest

    if answer:
        assert outcome([answer[at : at + 1] for at in range(len(answer))]) == outcome([answer])
