"""The driver of inspected connections between real sockets: what goes wrong at either end, and every deadline.

A listener on loopback stands for the sandbox's.  Deadlines are made short where a test is about one; no test says
how long anything may take.  Where a test shows that something is *not* ended by a deadline, another connection of the
same engine, which is, is its clock.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened, RequestSeen
from membrane.gateway import intercept, memory
from membrane.gateway.budgets import Budget, Ledger
from membrane.gateway.dns import Answerer, Names
from membrane.gateway.intercept import Inspection, Inspector
from membrane.gateway.reactor import Reactor
from membrane.gateway.relay import Engine, TcpConnection
from membrane.gateway.route import Route, Router
from membrane.gateway.stream import Stream
from membrane.gateway.tls import Authority
from membrane.gateway.upstream import Resolved, Resolver, Upstreams
from membrane.policy.model import Allow, Deny
from membrane.policy.reasons import PATH_NOT_ALLOWED

NAME = "a.test"
SHORT = 0.25  # seconds of a deadline that is to pass
LONGER = 1.5  # of one that passes for one connection, and before which a test does its own part for another
LINGER_RESET = struct.pack("ii", 1, 0)
GET = b"GET /ok HTTP/1.1\r\nHost: a.test\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class OneServer(Router):
    """Everything goes to ``target`` on loopback, and its requests are judged."""

    def __init__(self) -> None:
        super().__init__(Names(), lambda _access: Allow(None, "ok"))
        self.target = 0

    def arrive(self, address: str, port: int, protocol: Any = "tcp") -> Route:
        return Route(NAME, address, 443, self.target, ("127.0.0.1",), protocol, inspect=True)


class Rig:
    """An engine that runs in a thread of its own; what it told; a server outside."""

    def __init__(self, extra_ca: str = "", **options: Any) -> None:
        self.events: list[Any] = []
        self.crashes: list[BaseException] = []
        self.told = threading.Condition()
        self.reactor = reactor = Reactor()
        self.authority = Authority()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.server.settimeout(60)
        router = OneServer()
        router.target = self.server.getsockname()[1]
        resolver = Resolver(reactor, lambda _host: Resolved((), "no such name", 60), 10)
        self.inspector = Inspector(
            reactor,
            self.authority,
            lambda asked: Allow(None, "ok") if asked.path.startswith("/ok") else Deny(None, PATH_NOT_ALLOWED),
            extra_ca=[extra_ca] if extra_ca else [],
        )
        self.engine = Engine(
            reactor,
            router,
            Answerer(Names(), lambda _query: Allow(None, "ok"), self.emit),
            Upstreams(resolver, resolver),
            self.emit,
            self.crashes.append,
            ledger=Ledger(options.pop("budget", Budget()), lambda: reactor.now),
            inspector=self.inspector,
            **options,
        )
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.engine.listen(self.listener)
        self.thread = threading.Thread(target=reactor.run)
        self.thread.start()

    def emit(self, event: Any) -> None:
        with self.told:
            self.events.append(event)
            self.told.notify_all()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type, count: int = 1) -> list[Any]:
        with self.told:
            assert self.told.wait_for(lambda: len(self.of(kind)) >= count, 30), (len(self.of(kind)), self.events[-5:])
            return self.of(kind)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), timeout=60)

    def connect_tls(self, *protocols: str) -> ssl.SSLSocket:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # Python hides a cut from its programs
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context.wrap_socket(self.connect(), server_hostname=NAME)

    def accept(self) -> socket.socket:
        accepted, _peer = self.server.accept()
        accepted.settimeout(60)
        return accepted

    def asked(self) -> Any:
        """What the loop's own thread sees, between two of its turns."""
        answer: list[Any] = []
        done = threading.Event()

        def look() -> None:
            waits = (*self.engine.waits, *self.engine.dialler.waits, *self.inspector.waits)
            waiting = {id(item) for wait in waits for item in wait._due}
            answer.extend((len(self.engine.connections), len(waiting)))
            done.set()

        self.reactor.post(look)
        assert done.wait(60)
        return tuple(answer)

    def until_idle(self) -> None:
        """No connection and no wait is left."""
        deadline = time.monotonic() + 60
        while (state := self.asked()) != (0, 0):
            assert time.monotonic() < deadline, state

    def close(self) -> None:
        self.reactor.post(lambda: (self.engine.close(), self.reactor.stop()))
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.reactor.close()
        self.listener.close()
        self.server.close()
        assert not self.crashes, self.crashes


Closing = Callable[[Any], Any]


@pytest.fixture
def closing() -> Iterator[Closing]:
    with contextlib.ExitStack() as stack:

        def keep(thing: Any) -> Any:
            stack.callback(thing.close)
            return thing

        yield keep


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set lengths of deadlines; before the rig is made."""

    def change(**seconds: float) -> None:
        for name, value in seconds.items():
            monkeypatch.setattr(intercept, name, value)

    return change


@pytest.fixture
def rig(closing: Closing) -> Rig:
    made: Rig = closing(Rig())
    return made


def head_of(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        assert part, data
        data += part
    return data


def answer_of(sock: socket.socket) -> tuple[int, bytes]:
    """Status and content of one answer with a length."""
    data = head_of(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        part = sock.recv(65536)
        assert part, data
        body += part
    return int(head.split()[1]), body


def until_closed(sock: socket.socket) -> tuple[bytes, bool]:
    """What still comes, and whether a reset ended it."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        return data, True
    return data, False


# ---------------------------------------------------------------- requests


def test_each_request_of_a_connection_is_judged(rig: Rig, closing: Closing) -> None:
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    assert head_of(server) == GET
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    client.sendall(GET.replace(b"/ok", b"/no"))
    status, body = answer_of(client)
    assert (status, json.loads(body)["reason"]) == (403, "path not allowed")
    client.sendall(GET)
    assert head_of(server) == GET  # and nothing of the refused one came before
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    seen = rig.wait_for(RequestSeen, 3)
    assert [(each.number, each.status, each.verdict) for each in seen] == [
        (1, 200, "allow"), (2, 403, "deny"), (3, 200, "allow"),
    ]  # fmt: skip
    assert len(rig.of(AccessDenied)) == 1


def test_without_readers_only_refusals_are_told(closing: Closing) -> None:
    rig = closing(Rig(verbose=False))
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    client.sendall(GET.replace(b"/ok", b"/no"))
    assert answer_of(client)[0] == 403
    rig.wait_for(AccessDenied)
    assert [type(event) for event in rig.events] == [AccessDenied]
    assert rig.inspector.requests == 2


def test_half_closed_by_the_client_the_answer_still_comes(rig: Rig, closing: Closing) -> None:
    client = closing(rig.connect())
    client.sendall(b"POST /ok HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody")
    client.shutdown(socket.SHUT_WR)
    server = closing(rig.accept())
    assert head_of(server).endswith(b"body")
    server.sendall(OK)
    assert until_closed(client) == (OK, False)


def test_half_closed_by_the_server_the_request_still_ends_there(rig: Rig, closing: Closing) -> None:
    """An answer that ends when its server closes, and a client that goes on after that."""
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    server.sendall(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    server.shutdown(socket.SHUT_WR)
    data, reset = until_closed(client)
    assert (data.endswith(b"until the end"), reset) == (True, False)
    assert rig.wait_for(RequestSeen)[0].error == ""


def test_what_waits_for_clients_that_do_not_read_has_one_budget(
    rig: Rig, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty clients that do not read: together they hold the budget, and each gets its whole answer when it reads."""
    monkeypatch.setattr(memory, "MOST_ALL", 1 << 20)
    rig.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)  # inherited: else the kernel takes it all
    size, many = 1 << 20, 60
    content = os.urandom(size)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    clients = [closing(rig.connect()) for _ in range(many)]
    for client in clients:
        client.sendall(GET)

    def serve(server: socket.socket) -> None:
        with server, contextlib.suppress(OSError):
            head_of(server)
            server.sendall(head + content)

    servers = [threading.Thread(target=serve, args=(rig.accept(),)) for _ in clients]
    for server in servers:
        server.start()
    deadline = time.monotonic() + 60
    while rig.engine.memory.held < memory.MOST_ALL // 4 and time.monotonic() < deadline:
        rig.asked()
    most = max(rig.engine.memory.held for _ in range(50) if rig.asked())
    assert memory.MOST_ALL // 4 <= most <= memory.MOST_ALL + 2 * many * memory.LEAST
    for client in clients:
        assert answer_of(client) == (200, content)
    for server in servers:
        server.join(60)
    for client in clients:
        client.close()
    rig.until_idle()
    assert rig.engine.memory.held == 0


def test_a_head_that_is_larger_than_its_share_is_not_waited_for(rig: Rig, closing: Closing) -> None:
    client = closing(rig.connect())
    client.sendall(GET[:-2] + b"X-A: " + b"a" * (3 * memory.LEAST))
    rig.asked()
    done = threading.Event()
    rig.reactor.post(lambda: (setattr(rig.engine.memory, "held", rig.engine.memory.held + memory.MOST_ALL), done.set()))
    assert done.wait(60)
    client.sendall(b"a")
    assert until_closed(client) == (b"", True)
    [closed] = rig.wait_for(ConnectionClosed)
    assert closed.error == "a request's head is larger than what may wait in memory now"  # and no deadline


@pytest.mark.parametrize("first", [b"\x16\x03\x01\x00\xff\x01\0\0\xfb", b"GET /ok HT"])
def test_an_urgent_octet_in_the_first_bytes_is_refused_and_not_waited_for(
    rig: Rig, closing: Closing, first: bytes
) -> None:
    """A peek ends at the urgent mark, and no event tells what is behind it."""
    client = closing(rig.connect())
    client.sendall(first[:4])
    client.send(first[4:5], socket.MSG_OOB)
    client.sendall(first[5:])
    [refused] = rig.wait_for(AccessDenied)
    assert (refused.reason, refused.hint) == ("not HTTP", "an urgent byte cuts the first message short")
    assert until_closed(client)[0] == b""
    rig.until_idle()


def test_a_first_message_in_pieces_is_waited_for(rig: Rig, closing: Closing) -> None:
    """The control of the urgent byte: a pause in the same place is none of it."""
    client = closing(rig.connect())
    for at in range(0, len(GET), 5):
        client.sendall(GET[at : at + 5])
        rig.asked()  # a turn of the loop has seen it
    server = closing(rig.accept())
    assert head_of(server) == GET
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    assert rig.of(AccessDenied) == []


# ---------------------------------------------------------------- TLS


@pytest.fixture
def outside(tmp_path: Path) -> tuple[Authority, str]:
    """The authority of the server, and the file that makes it trusted."""
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    return authority, str(tmp_path / "ca.pem")


@contextlib.contextmanager
def tls_server(rig: Rig, authority: Authority, protocol: str) -> Iterator[Callable[[], ssl.SSLSocket]]:
    """Shake hands with one connection, in a thread; what is yielded waits for it."""
    got: list[ssl.SSLSocket] = []

    def serve() -> None:
        accepted = rig.accept()
        with contextlib.suppress(OSError):
            got.append(authority.server_context(NAME, protocol).wrap_socket(accepted, server_side=True))

    thread = threading.Thread(target=serve)
    thread.start()

    def shaken() -> ssl.SSLSocket:
        thread.join(60)
        return got[0]

    try:
        yield shaken
    finally:
        thread.join(60)
        for each in got:
            each.close()


@pytest.mark.parametrize("chosen", ["http/1.1", "h2", ""])
def test_the_client_gets_the_protocol_that_the_server_chose(
    closing: Closing, outside: tuple[Authority, str], chosen: str
) -> None:
    rig = closing(Rig(outside[1]))
    with tls_server(rig, outside[0], chosen), rig.connect_tls("h2", "http/1.1") as client:
        assert (client.selected_alpn_protocol() or "") == chosen
        names = client.getpeercert()
        assert names is not None and names["subjectAltName"] == (("DNS", NAME),)


def test_a_server_that_is_not_trusted_is_a_502_with_the_cause(closing: Closing, outside: tuple[Authority, str]) -> None:
    rig = closing(Rig())
    with tls_server(rig, outside[0], "http/1.1"), rig.connect_tls("http/1.1") as client:
        client.sendall(GET)
        status, body = answer_of(client)
    assert status == 502
    assert "certificate" in json.loads(body)["reason"]
    (seen,) = rig.wait_for(RequestSeen)
    assert (seen.status, seen.verdict) == (502, "allow") and "certificate" in seen.error


def test_a_server_is_met_again_with_its_session(closing: Closing, outside: tuple[Authority, str]) -> None:
    """The second handshake is resumed; a server that forgot is verified anew, and so is another one."""
    rig = closing(Rig(outside[1]))
    resumed = []
    for number in range(4):
        if number == 2:  # as a server that was restarted: it knows no ticket
            outside[0]._contexts.clear()
        outside[0].server_context(NAME, "http/1.1").num_tickets = 2
        with tls_server(rig, outside[0], "http/1.1") as shaken, rig.connect_tls("http/1.1") as client:
            client.sendall(GET)
            server = shaken()
            head_of(server)
            server.sendall(OK)
            assert answer_of(client) == (200, b"ok")
            resumed.append(server.session_reused)
    assert resumed == [False, True, False, True]
    with tls_server(rig, Authority(), "http/1.1"), rig.connect_tls("http/1.1") as client:
        client.sendall(GET)
        assert answer_of(client)[0] == 502
    assert rig.inspector._sessions == {}


def test_a_cut_in_tls_reads_as_cut(closing: Closing, outside: tuple[Authority, str]) -> None:
    """Without close_notify the client must not take an answer that ends by closing for complete."""
    rig = closing(Rig(outside[1]))
    with tls_server(rig, outside[0], "http/1.1") as shaken, rig.connect_tls("http/1.1") as client:
        client.sendall(GET)
        server = shaken()
        head_of(server)
        server.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        os.close(server.detach())  # FIN, and no close_notify
        client.suppress_ragged_eofs = False
        with pytest.raises(ssl.SSLError, match=r"(?i)eof"):
            while client.recv(65536):
                pass


# ---------------------------------------------------------------- deadlines


def test_a_server_that_never_answers_is_a_504(closing: Closing, deadlines: Callable[..., None]) -> None:
    deadlines(ANSWER=SHORT)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    status, body = answer_of(client)
    told = json.loads(body)
    assert status == 504
    assert told["error"] == "the server did not answer membrane" and "did not answer within" in told["reason"]
    (seen,) = rig.wait_for(RequestSeen)
    assert (seen.status, seen.verdict) == (504, "allow") and "did not answer" in seen.error
    assert rig.of(AccessDenied) == []
    assert until_closed(server)[1]  # what the server may still say has no reader


def test_an_answer_that_has_begun_may_be_silent(closing: Closing, deadlines: Callable[..., None]) -> None:
    deadlines(ANSWER=LONGER, IDLE=LONGER, HEAD=LONGER, CONTENT=LONGER)
    rig = closing(Rig())
    events = closing(rig.connect())
    events.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    server.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    head_of(events)
    for _ in range(2):  # each takes longer than the deadline
        clock = closing(rig.connect())
        clock.sendall(GET)
        head_of(closing(rig.accept()))
        assert answer_of(clock)[0] == 504
    server.sendall(b"9\r\ndata: x\n\n\r\n")
    assert events.recv(100) == b"9\r\ndata: x\n\n\r\n"


def test_a_client_is_not_blamed_for_a_server_that_does_not_read(
    closing: Closing, deadlines: Callable[..., None]
) -> None:
    deadlines(CONTENT=LONGER)
    rig = closing(Rig())
    size = 32 << 20  # more than all the buffers on the way take
    client = closing(rig.connect())
    client.sendall(b"PUT /ok HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % size)
    sender = threading.Thread(target=client.sendall, args=(bytes(size),))
    sender.start()
    server = closing(rig.accept())
    begun = len(head_of(server).partition(b"\r\n\r\n")[2])
    for _ in range(2):
        clock = closing(rig.connect())
        clock.sendall(b"PUT /ok HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\n")
        assert until_closed(clock)[1]
    while begun < size:
        part = server.recv(1 << 20)
        assert part
        begun += len(part)
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    sender.join(60)


@pytest.mark.parametrize("said", [b"", b"G", GET[:-2], GET[:20]], ids=["nothing", "a letter", "a head", "a field"])
def test_a_server_that_speaks_first_is_not_reached_before_a_request(
    closing: Closing, deadlines: Callable[..., None], said: bytes
) -> None:
    """Behind a rule with methods or paths; a client of such a server (SSH) may wait for it, and is ended."""
    deadlines(HEAD=SHORT)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(said)
    until_closed(client)
    rig.until_idle()
    rig.server.setblocking(False)
    with pytest.raises(BlockingIOError):
        rig.server.accept()


@pytest.mark.parametrize(
    "said",
    [b"", b"G", GET[:-2], GET[:20], b"PUT /ok HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nhalf", b"\x16\x03"],
    ids=["nothing", "a letter", "a head", "a field", "content", "a hello"],
)
def test_a_client_that_does_not_go_on_is_ended(closing: Closing, deadlines: Callable[..., None], said: bytes) -> None:
    deadlines(HEAD=SHORT, CONTENT=SHORT)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(said)
    until_closed(client)
    rig.until_idle()


def test_a_client_that_sends_a_head_octet_by_octet_is_ended(closing: Closing, deadlines: Callable[..., None]) -> None:
    """Slow loris: each byte is progress, and none of them buys time."""
    deadlines(HEAD=SHORT)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(b"GET /ok HTTP/1.1\r\nHost: a.test\r\nX-Slow: ")
    deadline = time.monotonic() + 60
    with pytest.raises(OSError):
        while True:
            assert time.monotonic() < deadline
            client.sendall(b"a")
            time.sleep(SHORT / 50)  # the pace of the attack, not an order of events
    rig.until_idle()
    assert rig.of(RequestSeen) == []


def test_a_kept_connection_is_ended_after_a_while(closing: Closing, deadlines: Callable[..., None]) -> None:
    deadlines(IDLE=SHORT)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")
    assert until_closed(client) == (b"", False)
    assert rig.wait_for(ConnectionClosed)[0].error == ""
    client.close()
    rig.until_idle()


def test_a_client_that_does_not_read_is_ended(closing: Closing, deadlines: Callable[..., None]) -> None:
    deadlines(HEAD=LONGER)
    rig = closing(Rig())
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    with pytest.raises(OSError):
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        for _ in range(1 << 10):
            server.sendall(bytes(1 << 20))
    (seen,) = rig.wait_for(RequestSeen)
    assert seen.error == "the client does not read"
    assert seen.bytes_down < 1 << 26


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_handshake_that_stops_is_ended(closing: Closing, deadlines: Callable[..., None], side: str) -> None:
    deadlines(HANDSHAKE=LONGER)
    rig = closing(Rig())
    context = ssl.create_default_context(cadata=rig.authority.pem.decode())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    client = closing(rig.connect())
    client.sendall(outgoing.read())
    server = closing(rig.accept())
    if side == "server":  # it says nothing; the client is served, and told so
        incoming.write(client.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            hello.do_handshake()
        client.sendall(outgoing.read())
        hello.write(GET)
        client.sendall(outgoing.read())
        data = b""
        while b"took more than" not in data:
            part = client.recv(65536)
            assert part, data
            incoming.write(part)
            with contextlib.suppress(ssl.SSLWantReadError):
                data += hello.read(65536)
        assert data.startswith(b"HTTP/1.1 502 ")
    else:
        server.close()
        until_closed(client)  # our hello comes, and the client does not answer it
    client.close()
    rig.until_idle()


# ---------------------------------------------------------------- cuts


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    sock.close()


def test_a_server_that_resets_in_its_content_cuts_the_client(rig: Rig, closing: Closing) -> None:
    client = closing(rig.connect())
    client.sendall(GET)
    server = rig.accept()
    head_of(server)
    server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    head_of(client)
    reset(server)
    assert until_closed(client)[1]
    (seen,) = rig.wait_for(RequestSeen)
    assert (seen.status, seen.error) == (200, "Connection reset by peer")
    rig.until_idle()


def test_a_server_that_resets_before_its_answer_is_a_502(rig: Rig, closing: Closing) -> None:
    client = closing(rig.connect())
    client.sendall(GET)
    server = rig.accept()
    head_of(server)
    reset(server)
    status, body = answer_of(client)
    assert (status, json.loads(body)["reason"]) == (502, "Connection reset by peer")
    assert rig.wait_for(RequestSeen)[0].error == "Connection reset by peer"


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["request", "answer"])
def test_a_client_that_goes_away_ends_its_server(rig: Rig, closing: Closing, when: str, how: str) -> None:
    client = rig.connect()
    begun = b"PUT /ok HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100\r\n\r\nhalf" if when == "request" else GET
    client.sendall(begun)
    server = closing(rig.accept())
    head_of(server)
    if when == "answer":
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\nhalf")
        head_of(client)
    if how == "reset":
        reset(client)
    else:
        client.close()
    if when == "answer":
        with pytest.raises(OSError):
            for _ in range(1000):
                server.sendall(bytes(100000))
    else:
        until_closed(server)
    (seen,) = rig.wait_for(RequestSeen)
    assert seen.error and seen.bytes_up == (4 if when == "request" else 0)
    rig.until_idle()


# ---------------------------------------------------------------- many


def test_connections_leave_nothing_behind(rig: Rig, closing: Closing) -> None:
    def once(number: int) -> None:
        client = rig.connect()
        client.sendall(GET)
        server = rig.accept()
        head_of(server)
        if number % 3 == 0:
            server.sendall(OK)
            assert answer_of(client) == (200, b"ok")
        elif number % 3 == 1:
            reset(client)
        else:
            reset(server)
        client.close()
        server.close()

    once(0)
    rig.until_idle()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(150):
        once(number)
    rig.until_idle()
    rig.wait_for(RequestSeen, 151)
    deadline = time.monotonic() + 60
    while len(left := os.listdir("/proc/self/fd")) > before:  # the last event comes before the last close(2)
        assert time.monotonic() < deadline, left
    opened, closed = rig.of(ConnectionOpened), rig.of(ConnectionClosed)
    assert sorted(event.id for event in opened) == sorted(event.id for event in closed)


def test_more_connections_than_the_limit_are_refused_and_told(closing: Closing) -> None:
    rig = closing(Rig(connections=8))
    held = [closing(rig.connect()) for _ in range(8)]
    for client in held:
        client.sendall(GET[:20])
    while rig.asked()[0] < 8:
        pass
    for _ in range(4):
        with contextlib.suppress(ConnectionResetError):  # as early as in connect(2), which then reports it
            assert until_closed(closing(rig.connect())) == (b"", True)
    refused = rig.wait_for(AccessDenied, 4)
    assert {event.reason for event in refused} == {"limit reached"}
    for client in held:
        client.close()
    rig.until_idle()
    client = closing(rig.connect())
    client.sendall(GET)
    server = closing(rig.accept())
    head_of(server)
    server.sendall(OK)
    assert answer_of(client) == (200, b"ok")


def test_an_inspection_leaves_no_cycle(rig: Rig, closing: Closing) -> None:
    """The process looks for garbage seldom: the connection and its inspection go with the client."""

    def left() -> list[str]:
        found: list[str] = []
        done = threading.Event()

        def look() -> None:
            kinds = (TcpConnection, Inspection, Stream)
            found.extend(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))
            done.set()

        for call in (lambda: None, look):  # not in the turn in which one ended
            rig.reactor.post(call)
        assert done.wait(60)
        return found

    gc.collect()
    gc.disable()
    try:
        client = closing(rig.connect())
        client.sendall(GET)
        server = closing(rig.accept())
        assert head_of(server).startswith(b"GET /ok ")
        server.sendall(OK)
        assert answer_of(client) == (200, b"ok")
        assert sorted(left()) == ["Inspection", "Stream", "Stream", "TcpConnection"]  # the control
        client.close()
        refused = closing(rig.connect())
        refused.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        until_closed(refused)
        rig.until_idle()
        deadline = time.monotonic() + 60
        while left() and time.monotonic() < deadline:
            pass
        assert left() == []
    finally:
        gc.enable()
