"""How the outside is reached: look-ups and proxies.

Theory of operation
-------------------
A name is looked up when a program connects to it, never before, by the system's resolver or by ``dns_resolver``, in a
few threads because both block.  Answers are kept for their time to live, within bounds; equal questions share one
look-up.  What comes back is only a list of candidates: ``route.Router`` judges each before it is dialled.

With ``upstream_proxy`` the name itself is handed to the proxy and nothing is looked up here but the proxy.  The two
handshakes (HTTP CONNECT, RFC 9110 section 9.3.6; SOCKS5, RFC 1928 and 1929) are sans-I/O: bytes in, bytes out.
"""

from __future__ import annotations

import os
import stat
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM
from _socket import socket as Socket
from abc import ABC, abstractmethod
from errno import ENOTSOCK, EPERM

from ..errors import PolicyError
from ..host import syscalls as sc
from ..policy.hosts import parse_address
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, NoReturn

    from ..policy.model import HostRule
    from .reactor import Reactor
    from .route import Route

WORKERS = 8
SYSTEM_DEADLINE = 15.0  # seconds
RESOLVER_DEADLINE = 5.0  # seconds, both families and all attempts together
_SYSTEM_TTL = 30.0  # seconds; getaddrinfo does not report the real one
_FAILURE_TTL = 5.0
_TTL_BOUNDS = (5.0, 300.0)
_CACHE = 4096  # names
_PENDING = 1024  # look-ups at once
_MOST_ADDRESSES = 16  # of one name that are tried
_HEAD = 16384  # bytes of a proxy's answer


class Resolved(Value):
    """What a look-up gave: addresses in the order to try them, or the error."""

    addresses: tuple[str, ...]
    error: str = ""
    ttl: float = _FAILURE_TTL


class Resolver:
    """Names to addresses, with a cache.

    Args:
        look_up: blocking; runs in a thread of its own and must not raise.
        deadline: seconds after which the question is answered with a failure.
    """

    def __init__(self, reactor: Reactor, look_up: Callable[[str], Resolved], deadline: float) -> None:
        self._reactor = reactor
        self._look_up = look_up
        self._deadline = reactor.wait(deadline, self._late)
        self._cache: dict[str, tuple[float, Resolved]] = {}
        self._waiting: dict[str, list[Callable[[Resolved], None]]] = {}
        self._queue: list[str] = []
        self._workers = 0

    def cached(self, host: str) -> Resolved | None:
        """The answer, if it is known and still good."""
        known = self._cache.get(host)
        if known is None or known[0] < self._reactor.now:
            return None
        return known[1]

    def resolve(self, host: str, done: Callable[[Resolved], None]) -> None:
        """Look ``host`` up; ``done`` is called later, in the reactor's thread, exactly once."""
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(done)
            return
        if len(self._waiting) >= _PENDING:
            self._reactor.soon(lambda: done(Resolved((), "too many look-ups at once")))
            return
        self._waiting[host] = [done]
        self._deadline.begin(host)
        self._queue.append(host)
        self._start()

    def _start(self) -> None:
        import _thread

        while self._queue and self._workers < WORKERS:
            self._workers += 1
            _thread.start_new_thread(self._work, (self._queue.pop(0),))

    def _work(self, host: str) -> None:
        """In a thread: one look-up."""
        try:
            answer = self._look_up(host)
        except Exception as error:  # a resolver library's defect must not leave the question open
            answer = Resolved((), f"look-up failed: {type(error).__name__}")
        self._reactor.post(lambda: self._done(host, answer))

    def _done(self, host: str, answer: Resolved) -> None:
        self._workers -= 1
        self._start()
        if len(self._cache) >= _CACHE:
            self._cache.clear()
        self._cache[host] = (self._reactor.now + answer.ttl, answer)
        self._answer(host, answer)

    def _late(self, host: str) -> None:
        if host in self._queue:
            self._queue.remove(host)
        self._answer(host, Resolved((), f"look-up of {host} timed out"))

    def _answer(self, host: str, answer: Resolved) -> None:
        self._deadline.end(host)
        for done in self._waiting.pop(host, ()):
            done(answer)


def system_look_up(host: str) -> Resolved:
    """getaddrinfo(3): the host's ``/etc/hosts``, resolv.conf and name services."""
    import _socket

    if _is_literal(host):
        return Resolved((host,), ttl=_SYSTEM_TTL)
    try:
        # Bytes: a string would be run through the idna codec, which is slow to import and knows IDNA 2003 only.
        found = _socket.getaddrinfo(host.encode("ascii"), None, 0, _socket.SOCK_STREAM)
    except OSError as error:
        if error.errno in (_socket.EAI_NONAME, getattr(_socket, "EAI_NODATA", _socket.EAI_NONAME)):
            return Resolved((), f"no such name: {host}")
        return Resolved((), f"look-up of {host} failed: {error.strerror}")
    addresses = [entry[4][0] for entry in found if isinstance(entry[4][0], str)]
    return Resolved(tuple(dict.fromkeys(addresses))[:_MOST_ADDRESSES], ttl=_SYSTEM_TTL)


def resolver_look_up(server: str) -> Callable[[str], Resolved]:
    """Look-ups at one DNS server, UDP first and TCP where the answer was cut.

    Args:
        server: ``ADDRESS``, ``ADDRESS:PORT`` or ``[ADDRESS]:PORT``.

    Raises:
        PolicyError: it is not of that form.
    """
    address, port = parse_server(server)

    def look_up(host: str) -> Resolved:
        import time

        import dns.exception
        import dns.message
        import dns.query
        import dns.rcode

        end = time.monotonic() + RESOLVER_DEADLINE - 0.2
        addresses: list[str] = []
        ttl = _TTL_BOUNDS[1]
        problem = ""
        for kind in ("A", "AAAA"):
            for attempt in (2.0, RESOLVER_DEADLINE):
                left = min(attempt, end - time.monotonic())
                if left <= 0:
                    problem = problem or f"look-up of {host} timed out"
                    break
                try:
                    question = dns.message.make_query(host, kind)
                    reply, _by_tcp = dns.query.udp_with_fallback(question, address, left, port)
                    assert isinstance(reply, dns.message.QueryMessage)
                    chain = reply.resolve_chaining() if reply.rcode() == dns.rcode.NOERROR else None
                except dns.exception.Timeout:
                    continue
                except (dns.exception.DNSException, OSError, EOFError) as error:
                    problem = f"look-up of {host} failed: {error}"
                    break
                if chain is None:
                    if reply.rcode() != dns.rcode.NXDOMAIN:
                        problem = f"look-up of {host} failed: {dns.rcode.to_text(reply.rcode())}"
                elif chain.answer is not None:
                    addresses += [record.address for record in chain.answer]
                    ttl = min(ttl, float(chain.minimum_ttl))
                break
            else:
                problem = f"look-up of {host} timed out"
        if not addresses:
            return Resolved((), problem or f"no such name: {host}")
        return Resolved(tuple(addresses[:_MOST_ADDRESSES]), ttl=max(ttl, _TTL_BOUNDS[0]))

    return look_up


def parse_server(server: str) -> tuple[str, int]:
    """``ADDRESS``, ``ADDRESS:PORT`` or ``[ADDRESS]:PORT`` -> address and port (53).

    Raises:
        PolicyError: anything else.
    """
    address, port = server, "53"
    if server.startswith("["):
        address, bracket, rest = server[1:].partition("]")
        port = (rest[1:] if rest[:1] == ":" else "53" if not rest else "") if bracket else ""
    elif server.count(":") == 1:
        address, _, port = server.partition(":")
    if not _is_literal(address) or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise PolicyError("use the DNS resolver", f"dns_resolver {server!r} is not ADDRESS or ADDRESS:PORT")
    return address, int(port)


def _is_literal(text: str) -> bool:
    import _socket

    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            _socket.inet_pton(family, text)
            return True
        except (OSError, ValueError):
            pass
    return False


# ---------------------------------------------------------------- proxies


def connect_unix(path: str, owner: int) -> Socket:
    """Connect to the host's socket at ``path``, whose identity is checked first.

    Raises:
        OSError: ELOOP, a link is on the way; ENOTSOCK, EPERM: it is something else than what was planned; EAGAIN:
            its queue is full; any other of connect(2).
    """
    fd = sc.openat2(sc.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, sc.RESOLVE_NO_SYMLINKS)
    try:
        details = os.stat(fd)
        if not stat.S_ISSOCK(details.st_mode):
            raise OSError(ENOTSOCK, "it is no socket any more")
        if details.st_uid != owner:
            raise OSError(EPERM, f"it belongs to uid {details.st_uid} now")
        server = Socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
        try:
            server.connect(f"/proc/self/fd/{fd}")  # this very inode, however long its path is
        except BaseException:
            server.close()
            raise
        return server
    finally:
        os.close(fd)


class Proxy(Value):
    """One proxy to go through."""

    kind: Literal["http", "socks5"]
    host: str
    port: int
    user: str = ""
    password: str = ""
    socket: str = ""  # the path of the unix socket that it listens on, and who must own that
    owner: int = -1

    def __repr__(self) -> str:
        return f"Proxy({self.kind}://{self.socket or f'{self.host}:{self.port}'})"  # never the password


def parse_proxy(url: str) -> Proxy:
    """``http://[USER:PASSWORD@]HOST:PORT`` or ``socks5://...`` (also ``socks5h``).

    Raises:
        PolicyError: another scheme or form.  The text shows the URL without its user part.
    """
    from urllib.parse import unquote, urlsplit

    def refuse(why: str) -> NoReturn:
        shown = f"{url.partition('://')[0]}://{url.rpartition('@')[2]}" if "@" in url else url
        raise PolicyError("use the upstream proxy", f"upstream_proxy {shown!r}: {why}")

    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        refuse(str(error))
    kinds: dict[str, tuple[Literal["http", "socks5"], int]] = {
        "http": ("http", 8080),
        "socks5": ("socks5", 1080),
        "socks5h": ("socks5", 1080),
    }
    if parts.scheme not in kinds:
        refuse("expected http://HOST:PORT or socks5://HOST:PORT")
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        refuse("expected a host, an optional port and nothing else")
    kind, default = kinds[parts.scheme]
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if len(user.encode()) > 255 or len(password.encode()) > 255:
        refuse("user or password is longer than 255 bytes")
    return Proxy(kind, parts.hostname, port or default, user, password)


def proxy_from_environment(environ: Mapping[str, str]) -> tuple[Proxy | None, tuple[str, ...]]:
    """``HTTPS_PROXY``, else ``ALL_PROXY``, and ``NO_PROXY``; lower case names come first, as curl(1) has it.

    Raises:
        PolicyError: the URL is not understood.
    """

    def value(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name) or ""

    url = value("HTTPS_PROXY") or value("ALL_PROXY")
    exceptions = tuple(entry.strip().lower() for entry in value("NO_PROXY").split(",") if entry.strip())
    return (parse_proxy(url) if url else None), exceptions


def bypasses(host: str, port: int, exceptions: tuple[str, ...]) -> bool:
    """Does ``NO_PROXY`` name this host or literal?  Entries: ``*``, domain, IP, CIDR, with ``:PORT``."""
    for entry in exceptions:
        if entry == "*":
            return True
        name, colon, digits = entry.rpartition(":")
        if colon and ":" not in name and digits.isdigit():
            if int(digits) != port:
                continue
            entry = name
        entry = entry.removeprefix("*").removeprefix(".").strip("[]")
        if host == entry or (host.endswith("." + entry) and not _is_literal(host)):
            return True
        if _is_literal(host) and (_is_literal(entry) or "/" in entry):
            import ipaddress

            try:
                if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                continue
    return False


class Upstreams:
    """Which way a destination is reached.

    Args:
        resolver: for destinations.
        proxy_resolver: for the proxy's own name; always the system's.
        behind: a proxy for the hosts of ``proxied`` alone, before any other.
    """

    def __init__(
        self,
        resolver: Resolver,
        proxy_resolver: Resolver,
        proxy: Proxy | None = None,
        exceptions: tuple[str, ...] = (),
        behind: Proxy | None = None,
        proxied: Sequence[HostRule] = (),
    ) -> None:
        self.resolver, self.proxy_resolver = resolver, proxy_resolver
        self._proxy, self._exceptions = proxy, exceptions
        self._behind, self._proxied = behind, tuple(proxied)

    def via(self, relay: Route) -> Proxy | None:
        """The proxy for a destination, or ``None`` to dial it.  The host's loopback is never asked of a proxy."""
        if relay.host and relay.addresses:
            return None
        if self._behind is not None and any(_names(rule, relay) for rule in self._proxied):
            return self._behind
        if self._proxy is None:
            return None
        if self._exceptions and bypasses(relay.host or relay.address, relay.port, self._exceptions):
            return None
        return self._proxy

    @staticmethod
    def handshake(proxy: Proxy, relay: Route) -> Handshake:
        """A fresh handshake that asks ``proxy`` for the destination, by name where it has one."""
        kind = HttpConnect if proxy.kind == "http" else Socks5
        return kind(proxy, relay.host or relay.addresses[0], relay.dial_port)


def _names(rule: HostRule, relay: Route) -> bool:
    """Does a rule name the destination?"""
    if rule.ports and not any(each.first <= relay.port <= each.last for each in rule.ports):
        return False
    if rule.kind == "wildcard":
        return relay.host.endswith(f".{rule.host}")
    if rule.network is not None:
        return not relay.host and parse_address(relay.address)[1] == rule.network.base
    return relay.host == rule.host


class Handshake(ABC):
    """A proxy's greeting, without I/O.

    ``done``: the tunnel is open and ``rest`` holds its first bytes.  ``error``: it will not open.
    """

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        self.done = False
        self.error = ""
        self.rest = b""
        self._proxy, self._host, self._port = proxy, host, port
        self._held = b""

    @abstractmethod
    def start(self) -> bytes:
        """What to send first."""

    def feed(self, data: bytes) -> bytes:
        """Take what the proxy sent (nothing: it closed); what to send next."""
        if not data:
            self.error = "closed the connection"
            return b""
        self._held += data
        if len(self._held) > _HEAD:
            self.error = "answer is too long"
            return b""
        return self._step()

    @abstractmethod
    def _step(self) -> bytes:
        """What to send after what is held."""

    def _open(self, used: int) -> None:
        self.done, self.rest, self._held = True, self._held[used:], b""


class HttpConnect(Handshake):
    """RFC 9110 section 9.3.6, with the Basic scheme (RFC 7617) where a user is given."""

    def start(self) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        head = f"CONNECT {host}:{self._port} HTTP/1.1\r\nHost: {host}:{self._port}\r\n"
        if self._proxy.user:
            import binascii

            pair = f"{self._proxy.user}:{self._proxy.password}".encode()
            head += f"Proxy-Authorization: Basic {binascii.b2a_base64(pair, newline=False).decode()}\r\n"
        return f"{head}\r\n".encode()

    def _step(self) -> bytes:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return b""
        words = self._held[:end].split(b"\r\n", 1)[0].split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or len(words[1]) != 3 or not words[1].isdigit():
            self.error = "answer is not HTTP"
        elif words[1][:1] != b"2":
            self.error = "answered " + b" ".join(words[1:])[:200].decode("latin-1")
        else:
            self._open(end + 4)
        return b""


class Socks5(Handshake):
    """RFC 1928, with user and password (RFC 1929) where they are given."""

    _REPLIES = (
        "", "general failure", "not allowed", "network unreachable", "host unreachable", "connection refused",
        "TTL expired", "command not supported", "address type not supported",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        super().__init__(proxy, host, port)
        self._next: Callable[[], bytes | None] = self._method

    def start(self) -> bytes:
        return b"\x05\x02\x00\x02" if self._proxy.user else b"\x05\x01\x00"

    def _step(self) -> bytes:
        out = b""
        while not self.done and not self.error:
            reply = self._next()
            if reply is None:
                break
            out += reply
        return out

    def _take(self, count: int) -> bytes | None:
        if len(self._held) < count:
            return None
        part, self._held = self._held[:count], self._held[count:]
        return part

    def _method(self) -> bytes | None:
        part = self._take(2)
        if part is None:
            return None
        if part[0] != 5:
            self.error = "answer is not SOCKS5"
        elif part[1] == 0:
            return self._request()
        elif part[1] == 2 and self._proxy.user:
            self._next = self._authenticated
            user, password = self._proxy.user.encode(), self._proxy.password.encode()
            return b"\x01" + bytes((len(user),)) + user + bytes((len(password),)) + password
        else:
            self.error = "wants another way to authenticate"
        return b""

    def _authenticated(self) -> bytes | None:
        part = self._take(2)
        if part is None:
            return None
        if part[1] != 0:
            self.error = "refused user and password"
            return b""
        return self._request()

    def _request(self) -> bytes:
        import _socket

        self._next = self._connected
        if not _is_literal(self._host):
            host = self._host.encode("ascii")
            address = b"\x03" + bytes((len(host),)) + host
        elif ":" in self._host:
            address = b"\x04" + _socket.inet_pton(_socket.AF_INET6, self._host)
        else:
            address = b"\x01" + _socket.inet_pton(_socket.AF_INET, self._host)
        return b"\x05\x01\x00" + address + self._port.to_bytes(2, "big")

    def _connected(self) -> bytes | None:
        if len(self._held) < 5:
            return None
        version, code, _, kind, length = self._held[:5]
        if version != 5:
            self.error = "answer is not SOCKS5"
            return b""
        if code != 0:
            known = code < len(self._REPLIES)
            self.error = f"answered {self._REPLIES[code] if known else f'code {code}'}"
            return b""
        sizes = {1: 4, 3: 1 + length, 4: 16}
        if kind not in sizes:
            self.error = "answer is not SOCKS5"
            return b""
        end = 4 + sizes[kind] + 2
        if len(self._held) < end:
            return None
        self._open(end)
        return b""
