"""Look-ups and proxies: caching, sharing, failing; the two handshakes."""

from __future__ import annotations

import threading

import pytest

from membrane.errors import PolicyError
from membrane.gateway.reactor import Reactor
from membrane.gateway.route import Route
from membrane.gateway.upstream import (
    HttpConnect,
    Proxy,
    Resolved,
    Resolver,
    Socks5,
    Upstreams,
    bypasses,
    parse_proxy,
    parse_server,
    proxy_from_environment,
    system_look_up,
)


@pytest.fixture
def reactor():
    made = Reactor()
    yield made
    made.close()


def until(reactor: Reactor, condition) -> None:
    while not condition():
        reactor.turn(reactor._until_next())


def test_equal_questions_share_a_look_up_and_the_answer_is_kept(reactor) -> None:
    asked, got = [], []
    gate = threading.Event()

    def look_up(host: str) -> Resolved:
        gate.wait(10)
        asked.append(host)
        return Resolved(("192.0.2.1",), ttl=60)

    resolver = Resolver(reactor, look_up, 10)
    assert resolver.cached("a.test") is None
    for _ in range(3):
        resolver.resolve("a.test", got.append)
    gate.set()
    until(reactor, lambda: len(got) == 3)
    assert asked == ["a.test"]
    assert resolver.cached("a.test") is got[0] is got[2]
    reactor.now += 61
    assert resolver.cached("a.test") is None


def test_a_late_answer_is_a_failure_now_and_known_later(reactor) -> None:
    gate = threading.Event()
    got = []

    def look_up(_host: str) -> Resolved:
        gate.wait(10)
        return Resolved(("192.0.2.1",), ttl=60)

    resolver = Resolver(reactor, look_up, 0.01)
    resolver.resolve("a.test", got.append)
    until(reactor, lambda: got)
    assert got[0].addresses == ()
    assert "timed out" in got[0].error
    gate.set()
    until(reactor, lambda: resolver.cached("a.test"))
    assert len(got) == 1


def test_a_defect_of_the_library_is_a_failure(reactor) -> None:
    got = []
    resolver = Resolver(reactor, lambda host: Resolved((host * "x",)), 10)  # type: ignore[operator]
    resolver.resolve("a.test", got.append)
    until(reactor, lambda: got)
    assert got == [Resolved((), "look-up failed: TypeError")]


def test_look_ups_are_bounded(reactor) -> None:
    gate = threading.Event()
    running, got = [], []

    def look_up(host: str) -> Resolved:
        running.append(host)
        gate.wait(10)
        return Resolved(("192.0.2.1",))

    resolver = Resolver(reactor, look_up, 10)
    for number in range(1100):
        resolver.resolve(f"n{number}.test", got.append)
    reactor.turn(0)
    assert [answer.error for answer in got] == ["too many look-ups at once"] * 76
    assert len(running) <= 8
    gate.set()
    until(reactor, lambda: len(got) == 1100)
    assert sum(1 for answer in got if answer.addresses) == 1024


def test_the_system_knows_literals_and_localhost() -> None:
    assert system_look_up("192.0.2.7").addresses == ("192.0.2.7",)
    assert "127.0.0.1" in system_look_up("localhost").addresses


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("9.9.9.9", ("9.9.9.9", 53)),
        ("127.0.0.1:5353", ("127.0.0.1", 5353)),
        ("2001:db8::1", ("2001:db8::1", 53)),
        ("[2001:db8::1]", ("2001:db8::1", 53)),
        ("[::1]:5353", ("::1", 5353)),
    ],
)
def test_resolver_addresses(text, server) -> None:
    assert parse_server(text) == server


@pytest.mark.parametrize(
    "text", ["", "dns.test", "9.9.9.9:0", "9.9.9.9:99999", "9.9.9.9:x", "[::1]x", "[::1", "9.9.9", "::1:53:x"]
)
def test_bad_resolver_addresses(text) -> None:
    with pytest.raises(PolicyError, match="dns_resolver"):
        parse_server(text)


# ---------------------------------------------------------------- proxies


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://p.test:3128", Proxy("http", "p.test", 3128)),
        ("http://p.test", Proxy("http", "p.test", 8080)),
        ("p.test:1", Proxy("http", "p.test", 1)),
        ("socks5://[::1]:9050/", Proxy("socks5", "::1", 9050)),
        ("socks5h://u:p%40%3A@p.test", Proxy("socks5", "p.test", 1080, "u", "p@:")),
    ],
)
def test_proxy_urls(url, proxy) -> None:
    assert parse_proxy(url) == proxy


@pytest.mark.parametrize(
    "url",
    [
        "https://p.test",
        "ftp://p.test",
        "http://",
        "http://p.test/path",
        "http://p.test:0",
        "http://p.test:x",
        "http://[::1",
    ],
)
def test_bad_proxy_urls(url) -> None:
    with pytest.raises(PolicyError, match="upstream_proxy"):
        parse_proxy(url)


def test_a_password_is_never_shown() -> None:
    assert "geheim" not in repr(parse_proxy("http://u:geheim@p.test"))
    with pytest.raises(PolicyError) as caught:
        parse_proxy("ftp://u:geheim@p.test")
    assert "geheim" not in str(caught.value)


def test_the_environment_is_read_as_curl_reads_it() -> None:
    proxy, exceptions = proxy_from_environment(
        {"HTTPS_PROXY": "http://upper.test", "https_proxy": "http://lower.test:1", "NO_PROXY": "a.test, .B.test ,"}
    )
    assert proxy == Proxy("http", "lower.test", 1)
    assert exceptions == ("a.test", ".b.test")
    assert proxy_from_environment({"ALL_PROXY": "socks5://s.test"})[0] == Proxy("socks5", "s.test", 1080)
    assert proxy_from_environment({"HTTP_PROXY": "http://x.test"}) == (None, ())


@pytest.mark.parametrize(
    ("entry", "host", "expected"),
    [
        ("*", "a.test", True),
        ("a.test", "a.test", True),
        ("a.test", "x.a.test", True),
        (".a.test", "x.a.test", True),
        ("*.a.test", "x.a.test", True),
        ("a.test", "xa.test", False),
        ("a.test:443", "a.test", True),
        ("a.test:80", "a.test", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("::1", "::1", True),
        ("2001:db8::/32", "2001:db8::5", True),
        ("2.3", "1.2.3.4", False),
        ("4", "1.2.3.4", False),
        ("nonsense/99", "10.0.0.1", False),
    ],
)
def test_no_proxy(entry, host, expected) -> None:
    assert bypasses(host, 443, (entry,)) is expected


def test_what_goes_through_the_proxy(reactor) -> None:
    resolver = Resolver(reactor, system_look_up, 1)
    proxy = Proxy("http", "p.test", 1)
    upstreams = Upstreams(resolver, resolver, proxy, ("near.test",))
    assert upstreams.via(Route("far.test", "198.18.0.16", 443, 443)) is proxy
    assert upstreams.via(Route("", "1.1.1.1", 443, 443, ("1.1.1.1",))) is proxy
    assert upstreams.via(Route("near.test", "198.18.0.17", 443, 443)) is None
    assert upstreams.via(Route("host.internal", "", 5432, 5432, ("127.0.0.1",))) is None
    assert Upstreams(resolver, resolver).via(Route("far.test", "198.18.0.16", 443, 443)) is None


def test_connect_with_and_without_a_user() -> None:
    plain = HttpConnect(Proxy("http", "p", 1), "2001:db8::1", 443)
    assert plain.start() == b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n"
    known = HttpConnect(Proxy("http", "p", 1, "u", "p"), "a.test", 443)
    assert b"\r\nProxy-Authorization: Basic dTpw\r\n" in known.start()
    assert known.feed(b"HTTP/1.1 200 OK\r\n\r\nfirst") == b""
    assert (known.done, known.rest, known.error) == (True, b"first", "")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 403 No way\r\n\r\n", "answered 403 No way"),
        (b"HTTP/1.1 407\r\n\r\n", "answered 407"),
        (b"SSH-2.0\r\n\r\n", "answer is not HTTP"),
        (b"HTTP/1.1 2000 x\r\n\r\n", "answer is not HTTP"),
        (b"x" * 20000, "answer is too long"),
        (b"", "closed the connection"),
    ],
)
def test_a_connect_that_fails(answer, error) -> None:
    handshake = HttpConnect(Proxy("http", "p", 1), "a.test", 443)
    assert handshake.feed(answer) == b""
    assert (handshake.done, handshake.error) == (False, error)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("a.test", b"\x03\x06a.test"),
        ("1.2.3.4", b"\x01\1\2\3\4"),
        ("::1", b"\x04" + bytes(15) + b"\1"),
    ],
)
def test_socks(host, address) -> None:
    handshake = Socks5(Proxy("socks5", "p", 1, "user", "pass"), host, 443)
    assert handshake.start() == b"\x05\x02\x00\x02"
    assert handshake.feed(b"\x05\x02") == b"\x01\x04user\x04pass"
    assert handshake.feed(b"\x01\x00") == b"\x05\x01\x00" + address + b"\x01\xbb"
    assert handshake.feed(b"\x05\x00\x00\x03\x05local\x00\x01first") == b""
    assert (handshake.done, handshake.rest) == (True, b"first")


def test_socks_without_a_user() -> None:
    handshake = Socks5(Proxy("socks5", "p", 1), "a.test", 80)
    assert handshake.start() == b"\x05\x01\x00"
    assert handshake.feed(b"\x05\x00").startswith(b"\x05\x01\x00\x03")
    assert handshake.feed(b"\x05\x00\x00\x04" + bytes(18)) == b""
    assert handshake.done


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b"\x04\x00"], "answer is not SOCKS5"),
        ([b"\x05\xff"], "wants another way to authenticate"),
        ([b"\x05\x02", b"\x01\x01"], "refused user and password"),
        ([b"\x05\x00", b"\x05\x05\x00\x01" + bytes(6)], "answered connection refused"),
        ([b"\x05\x00", b"\x05\x63\x00\x01" + bytes(6)], "answered code 99"),
        ([b"\x05\x00", b"\x05\x00\x00\x09" + bytes(6)], "answer is not SOCKS5"),
        ([b"\x05\x00", b"\x04\x00\x00\x01" + bytes(6)], "answer is not SOCKS5"),
        ([b"\x05", b""], "closed the connection"),
    ],
)
def test_socks_that_fails(answers, error) -> None:
    handshake = Socks5(Proxy("socks5", "p", 1, "u", "p"), "a.test", 80)
    for answer in answers:
        handshake.feed(answer)
    assert (handshake.done, handshake.error) == (False, error)
