"""The first bytes of clients: real ones, and ones made to be misread."""

from __future__ import annotations

import contextlib
import ssl
import struct

import pytest

from membrane.gateway.sniff import ENOUGH, First, after_retry, asks_again, classify, hello_end, may_be_hello


def real_hello(name: str | None, alpn: tuple[str, ...] = ()) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(list(alpn))
    outgoing = ssl.MemoryBIO()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">H", kind) + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def hello(*extensions: bytes, tail: bytes = b"") -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(1, b"s" * 32) + vector(2, b"\x13\x01") + vector(1, b"\0")
    if extensions:
        body += vector(2, b"".join(extensions))
    return b"\x01" + vector(3, body + tail)


def records(handshake: bytes, size: int = 16384) -> bytes:
    return b"".join(b"\x16\x03\x01" + vector(2, handshake[at : at + size]) for at in range(0, len(handshake), size))


@pytest.mark.parametrize("alpn", [(), ("h2", "http/1.1")])
def test_a_real_hello(alpn) -> None:
    data = real_hello("www.Example.com", alpn)
    assert classify(data) == First("tls", sni="www.example.com", alpn=alpn)
    assert classify(data + b"more") == classify(data)
    assert classify(data[:-1]) is None


def test_a_real_hello_without_a_name() -> None:
    assert classify(real_hello(None)) == First("tls")
    assert classify(real_hello("10.0.0.1")) == First("tls")


@pytest.mark.parametrize("size", [5, 7, 100, 16384])
def test_a_hello_in_many_records(size) -> None:
    handshake = hello(server_name(b"a.test"))
    assert classify(records(handshake, size)) == First("tls", sni="a.test")


def test_a_name_with_a_final_dot_is_the_name() -> None:
    assert classify(records(hello(server_name(b"A.test.")))) == First("tls", sni="a.test")


def test_encrypted_hellos_are_seen() -> None:
    for kind in (0xFE0D, 0xFFCE):
        first = classify(records(hello(server_name(b"public.test"), extension(kind, b"\0" * 40))))
        assert first == First("tls", sni="public.test", ech=True)


@pytest.mark.parametrize(
    "extensions",
    [
        [server_name(b"a.test"), server_name(b"b.test")],
        [server_name(b"a.test", b"b.test")],
        [server_name(b"a.test", kind=1)],
        [server_name(b"")],
        [server_name(b".")],
        [server_name(b"a..test")],
        [server_name(b".a.test")],
        [server_name(b"a.test\0.evil.test")],
        [server_name(b"a.test ")],
        [server_name(b"\xe4.test")],
        [server_name(b"a" * 254)],
        [extension(0, b"")],
        [extension(0, b"\0\0")],
        [extension(0, vector(2, b"\0" + vector(2, b"a.test")) + b"x")],
        [extension(0, b"\0\x09\0" + vector(2, b"a.test")[:-1])],
        [extension(16, b"")],
        [extension(16, vector(2, b"\0"))],
        [extension(16, vector(2, vector(1, b"h2")) + b"x")],
        [extension(43, b"x"), extension(43, b"x")],
        [b"\0\0\0\x09abc"],
        [b"\0"],
    ],
)
def test_hellos_that_a_server_could_read_otherwise_are_flawed(extensions) -> None:
    first = classify(records(hello(*extensions)))
    assert first is not None
    assert (first.kind, first.sni) == ("tls", "")
    assert first.flaw


@pytest.mark.parametrize(
    "data",
    [
        records(b"\x02\0\0\x01x"),  # a ServerHello
        records(hello(server_name(b"a.test"), tail=b"x")),
        records(b"\x01" + vector(3, bytes(34) + b"\x21" + bytes(60))),  # session id of 33 bytes
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\0\x04\x01\xff\xff\xff",
        records(hello(server_name(b"a.test")))[:20] + b"\x17\x03\x03\0\x01x",
        b"\x16\x03\x01\0\x02\x01\0" + b"\x15\x03\x01\0\x02\x02\x28",
        records(hello(server_name(b"a.test")), 1),  # more records than anybody needs
    ],
)
def test_records_that_do_not_hold_a_hello_are_flawed(data) -> None:
    first = classify(data + bytes(20000))
    assert first is not None
    assert first.kind == "tls"
    assert first.flaw


@pytest.mark.parametrize(
    ("data", "method", "target"),
    [
        (b"GET / HTTP/1.1\r\n", "GET", "/"),
        (b"POST /v1/x?y=z HTTP/1.0\n", "POST", "/v1/x?y=z"),
        (b"CONNECT a.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT", "a.test:443"),
        (b"get /\xff HTTP/1.1\r\n", "get", "/\xff"),
        (b"PRI * HTTP/1.1\r\n", "PRI", "*"),
    ],
)
def test_http1(data, method, target) -> None:
    assert classify(data) == First("http/1.1", method=method, target=target)
    assert classify(data[: data.index(b"\n")]) is None


def test_http2() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert classify(preface + b"\0\0\0\4") == First("h2")
    assert classify(preface[:-1]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x08\x04\xd2\x16\x2f",  # PostgreSQL
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"GET /\r\n",
        b"GET / HTTP/2\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET / x HTTP/1.1\r\n",
        b" GET / HTTP/1.1\r\n",
        b"\r\n",
        b"A" * 33,
        b"GET /" + b"a" * 8192,
        b"\x16\x01\0\x01\x85\xa6",  # MySQL, a login of 278 bytes
        b"\x15\x01\0\0\x01\0",  # MongoDB
        b"\x94\0\x01\xa3",  # MessagePack-RPC
        b"\xff\xfb\x01",  # telnet
        b"\x15\3\1\0\2\2",  # a fatal alert
        b"\x17\3\3\0\x10",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    ],
)
def test_everything_else_is_other(data) -> None:
    assert classify(data) == First("other")


@pytest.mark.parametrize("message", [hello(server_name(b"a.test"))])
@pytest.mark.parametrize(
    "before",
    [
        b"\x15\3\1\0\2\1\x5a",  # crypto/tls of Go reads over a warning
        b"\x14\3\3\0\1\1",
    ],
)
def test_a_record_before_the_hello_is_a_flaw(before, message) -> None:
    data = before + records(message)
    found = classify(data)
    assert found is not None
    assert (found.kind, bool(found.flaw), found.sni) == ("tls", True, "")
    for end in range(1, 6):
        assert classify(data[:end]) is None
        assert may_be_hello(data[:end])


@pytest.mark.parametrize("version", [b"\0\0", b"\2\1", b"\4\1", b"\x0f\xff"])
def test_another_record_version_is_a_flaw(version) -> None:
    """GnuTLS takes versions below 3, crypto/tls of Go all below 16."""
    data = b"\x16" + version + records(hello(server_name(b"a.test")))[3:]
    found = classify(data)
    assert found is not None
    assert (found.kind, bool(found.flaw)) == ("tls", True)


@pytest.mark.parametrize("version", [b"\3\1", b"\3\3", b"\0\2"])
def test_the_format_of_ssl_2_is_a_flaw(version) -> None:
    data = b"\x80\x2e\1" + version + bytes(41)
    found = classify(data)
    assert found is not None
    assert (found.kind, bool(found.flaw)) == ("tls", True)
    assert [classify(data[:end]) for end in range(1, 6)] == [None] * 5


def test_a_message_behind_the_hello_in_its_record_is_a_flaw() -> None:
    message = hello(server_name(b"a.test"))
    found = classify(records(message + message))
    assert found is not None
    assert found.flaw
    assert classify(records(message) + records(message)) == First("tls", sni="a.test")


@pytest.mark.parametrize("size", [16384, 50, 1])
def test_where_a_hello_ends(size) -> None:
    data = records(hello(server_name(b"a.test")), max(size, 2))
    assert hello_end(data + b"more") == len(data)


def test_what_asks_for_a_second_hello() -> None:
    random = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
    answer = b"\x16\3\3\0\x58\2\0\0\x54\3\3" + random + bytes(20)
    assert asks_again(answer) is True
    assert asks_again(answer[:-20]) is True
    assert [asks_again(answer[:end]) for end in range(43)] == [None] * 43
    assert asks_again(answer.replace(random, bytes(32))) is False
    assert asks_again(b"\x15\3\3\0\2\2\x28") is False
    assert asks_again(b"HTTP/1.1 400 Bad Request\r\n") is False


def test_what_may_come_before_a_second_hello() -> None:
    second = records(hello(server_name(b"a.test")))
    early = b"\x17\3\3\0\5early"
    assert after_retry(b"\x14\3\3\0\1\1" + early * 3 + second) == second
    assert after_retry(early[:-1]) == b""
    assert after_retry(early[:3]) == b""
    assert after_retry(second) == second


def test_nothing_is_not_enough() -> None:
    assert classify(b"") is None


@pytest.mark.parametrize("data", [b"\x16", b"G", b"\x16\x03\x01\x40\0\x01\0\x3f\xfc"])
def test_enough_is_always_enough(data) -> None:
    padded = data.ljust(ENOUGH, b"A")
    assert classify(padded) is not None
