"""Fuzz targets of the data plane's parsers.

Each ``fuzz_*`` takes bytes and states its invariant; ``fuzz_one`` runs them all.  ``test_fuzz_network.py`` runs it for
a bounded time over mutations of ``corpus/network``; a coverage-guided fuzzer (atheris, pythonfuzz) can call it as is.
"""

from __future__ import annotations

from membrane.gateway.dns import Answerer, Names, TcpMessages
from membrane.gateway.route import Route, Router, http_answer
from membrane.gateway.sniff import ENOUGH, First, classify
from membrane.gateway.upstream import HttpConnect, Proxy, Socks5
from membrane.policy.decide import Decider
from membrane.policy.model import HostRule, Origin, Policy

_ORIGIN = Origin("library", "fuzz")
_POLICY = Policy(allow=(HostRule("*.ok.test", _ORIGIN, "wildcard", host="ok.test"),))
_DECIDE = Decider(_POLICY).decide


def fuzz_dns(data: bytes) -> None:
    """Every datagram gets a response to its own question, or nothing; only names below ok.test get an address."""
    names = Names(4)
    events: list[object] = []
    reply = Answerer(names, _DECIDE, events.append).answer(data)
    if reply is None:
        assert len(data) < 12 or data[2] & 0x80
        return
    assert reply[:2] == data[:2]
    assert reply[2] & 0x80
    assert len(reply) <= max(512, len(data) + 512)
    if reply[6:8] != b"\0\0":
        assert len(names) <= 1
        for number in range(16, 16 + len(names)):
            name = names.name(names.v4(number))
            assert name is not None
            assert name.endswith(".ok.test")


def fuzz_dns_stream(data: bytes) -> None:
    """Cutting a stream differently gives the same messages, and never more bytes than came."""
    whole = TcpMessages().feed(data)
    drip = TcpMessages()
    assert [message for at in range(len(data)) for message in drip.feed(data[at : at + 1])] == whole
    assert sum(map(len, whole)) <= len(data)


def fuzz_first_bytes(data: bytes) -> None:
    """An answer on a prefix is the answer on the whole, and only the bound name passes a connection by name."""
    whole = classify(data)
    for end in (1, len(data) // 2, len(data) - 1):
        part = classify(data[:end]) if end > 0 else None
        assert part is None or part == whole
    assert classify(data.ljust(ENOUGH, b"\0")) is not None
    if whole is None:
        return
    refusal = Router.judge_first(Route("a.ok.test", "198.18.0.16", 443, 443), whole)
    if whole.kind == "tls":
        assert (refusal is None) == (whole.sni == "a.ok.test" and not whole.flaw and not whole.ech)
    else:
        assert refusal is None


def fuzz_answer(data: bytes) -> None:
    """A refusal is one well-formed HTTP message, whatever the client called its method and path."""
    first = classify(data)
    if first is None or first.kind != "http/1.1":
        first = First("http/1.1", method="GET", target=data.decode("latin-1"))
    answer = http_answer(403, first, "a.test", "reason", "hint")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.count(b"\r\n") == 4
    assert f"content-length: {len(body)}".encode() in head or first.method == "HEAD"
    assert body.isascii()


def fuzz_proxy(data: bytes) -> None:
    """A proxy's answer opens the tunnel or fails; what it sends after opening is kept, byte for byte."""
    for kind in (HttpConnect, Socks5):
        handshake = kind(Proxy("http", "p.test", 1, "u", "p"), "a.test", 443)
        handshake.start()
        handshake.feed(data)
        assert not (handshake.done and handshake.error)
        if handshake.done:
            assert data.endswith(handshake.rest)
        else:
            assert handshake.rest == b""


TARGETS = (fuzz_dns, fuzz_dns_stream, fuzz_first_bytes, fuzz_answer, fuzz_proxy)


def fuzz_one(data: bytes) -> None:
    """Run every target."""
    for target in TARGETS:
        target(data)
