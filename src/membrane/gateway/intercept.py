"""Connections whose requests are judged one by one: the driver between two sockets and an HTTP core.

Theory of operation
-------------------
``relay.TcpConnection`` hands its streams over when its destination is constrained.  From then on::

    HELLO -> (TLS) dial the server -> its handshake -> the client's handshake -> HTTP -> over
       \\---> (HTTP without TLS) -----------------------------------------------> HTTP, dials when a request may go on

The connection stays what it is: it accepts, dials, refuses, lingers and is reported as any other.  An ``Inspection``
gets what its sockets report, moves the bytes between them, and gives the client back when it is over.

The first bytes are looked at without being taken, as for every connection: TLS must carry the name that the
connection is bound to.  The server is reached first, with what the client offers in ALPN, so that the client gets
exactly the protocol which the server chose; a server that cannot be reached is explained in a 502.

The cores (``http1``, ``http2``) turn bytes into commands; here they are carried out.  Each end has a queue, and
the other end is not read while it is full: how much that is depends on what all connections hold (``memory``).  A
client whose unfinished message alone is more than its share is not waited for.

Rules
-----
1. Nothing of the client ever goes up but what a core returned: there is no way from here to a raw relay.
2. A server is verified by the name that the connection is bound to, unless the policy says ``insecure``.
3. Every wait has an end: for the first bytes, a head, a handshake, an answer, a reader that does not read.
4. Whatever goes wrong ends this connection only; each request that it had is reported.
"""

from __future__ import annotations

import ssl
from _socket import MSG_PEEK, SO_LINGER, SOL_SOCKET

from ..events import RequestSeen
from ..policy.model import Allow, Ask, Deny, HostRule
from . import sniff
from .connection import RESET, guarded
from .event_queue import denial, str_of_rule
from .flow import BUFFER, cut_short
from .http.credentials import Vault
from .http.exchange import (
    AskFirst,
    CloseClient,
    CloseUpstream,
    EndClient,
    EndUpstream,
    OpenUpstream,
    Seen,
    SendClient,
    SendUpstream,
)
from .http.http1 import Http1
from .http.http2 import Http2
from .http.redact import redact_fields, redact_path, redact_query
from .http.requests import UNANSWERED, Bound, Gate
from .memory import LEAST
from .reactor import ERR, HUP, IN, RDHUP
from .route import refuse_protocol
from .stream import Stream, guarded_read
from .tls import client_context, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable, Sequence

    from ..policy.model import HttpRequest, Verdict
    from .http.credentials import Secret
    from .http.exchange import Command
    from .http.logins import Logins
    from .http.requests import Undecided
    from .http.sigv4 import Signers
    from .reactor import Reactor, Wait
    from .relay import TcpConnection
    from .route import Refusal, Router
    from .sniff import First
    from .tls import Authority

HEAD = 30.0  # seconds for a request's head, and for a client to read what waits for it
RESUMED = 3600.0  # seconds for which a server is not asked for its certificate again
MOST_SESSIONS = 256  # of TLS with servers
CONTENT = 300.0  # seconds for each piece of a request's body
HANDSHAKE = 15.0  # seconds, each side
IDLE = 300.0  # seconds between two requests
ANSWER = 900.0  # seconds of silence from a server that owes an answer over HTTP/1.1
_ROUNDS = 16  # reads of each end in one turn: fairness
_PROTOCOLS = ("h2", "http/1.1")  # ALPN names that are understood

_HELLO, _DIAL, _SHAKE_UP, _SHAKE_DOWN, _HTTP, _CLOSING, _OVER = range(7)


class Inspector:
    """What all inspected connections of one session share.

    Args:
        authority: issues the certificates that clients see.
        decide: the policy.
        extra_ca: paths of further authorities for servers.
        insecure: no server is verified.
        full: events carry query strings and header fields, without what looks like a credential.
        secrets: what is put in for placeholders.
        signers: sign requests again whose key is one of them.
        logins: which of the secrets are renewed; new ones are appended to ``secrets``.
    """

    def __init__(
        self,
        reactor: Reactor,
        authority: Authority,
        decide: Callable[[HttpRequest], Verdict],
        *,
        extra_ca: Sequence[str] = (),
        insecure: bool = False,
        full: bool = False,
        secrets: Sequence[Secret] = (),
        signers: Signers | None = None,
        logins: Logins | None = None,
    ) -> None:
        self.authority, self.decide, self.full = authority, decide, full
        self._extra_ca, self._insecure = tuple(extra_ca), insecure
        self.secrets = secrets
        self.logins = logins
        self.signers = signers
        self.requests = 0
        self._sessions: dict[tuple[str, int, bool], tuple[float, ssl.SSLSession]] = {}
        self.late = reactor.wait(HEAD, Inspection.client_late)
        self.content = reactor.wait(CONTENT, Inspection.client_late)
        self.unread = reactor.wait(HEAD, Inspection.reader_late)
        self.handshake = reactor.wait(HANDSHAKE, Inspection.handshake_late)
        self.idle = reactor.wait(IDLE, Inspection.idle_late)
        self.answer = reactor.wait(ANSWER, Inspection.answer_late)
        if extra_ca:
            self.towards_server(_PROTOCOLS)  # an error in them stops the run before it has begun

    def inspect(self, connection: TcpConnection) -> Inspection:
        """What judges the requests of ``connection``, and carries its streams, from now on."""
        return Inspection(self, connection)

    def warm_up(self) -> None:
        """Do what takes time the first time, before a client waits for it: read authorities, issue a certificate."""
        self.towards_server(_PROTOCOLS)
        self.authority.server_context("warm-up.invalid")

    def towards_server(self, protocols: Sequence[str], *, insecure: bool = False) -> ssl.SSLContext:
        """How the next server is spoken to; valid until it is asked for again.

        One context for all: reading the authorities takes tens of milliseconds, and a connection takes its ALPN names
        from the context when it is made (SSL_new(3)).
        """
        context = client_context((), self._extra_ca, insecure=insecure or self._insecure)
        context.set_alpn_protocols(list(protocols))
        return context

    def session(self, server: tuple[str, int, bool], now: float) -> ssl.SSLSession | None:
        """A TLS session to resume: its handshake costs half, and no certificate has to be verified again.

        Args:
            server: name and port, and whether its certificate is not verified.
        """
        due, session = self._sessions.get(server, (0.0, None))
        return session if now < due else None

    def keep_session(self, server: tuple[str, int, bool], session: ssl.SSLSession | None, now: float) -> None:
        """Remember what a whole handshake led to; ``None``: a handshake failed."""
        self._sessions.pop(server, None)
        if session is not None:
            if len(self._sessions) >= MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[server] = now + RESUMED, session

    @property
    def waits(self) -> tuple[Wait, ...]:
        return self.late, self.content, self.unread, self.handshake, self.idle, self.answer


class Inspection:
    """The requests of one connection.

    Args:
        connection: accepts, dials, refuses and ends; its streams are carried here.
    """

    __slots__ = (
        "_connection",
        "_core",
        "_counted",
        "_engine",
        "_first",
        "_inspector",
        "_offered",
        "_phase",
        "_route",
        "_server",
        "_stream",
        "_unkept",
        "_unmet",
        "_waits_in_all",
    )

    def __init__(self, inspector: Inspector, connection: TcpConnection) -> None:
        assert connection.route is not None
        self._inspector, self._connection = inspector, connection
        self._engine, self._route = connection.engine, connection.route
        self._phase = _HELLO
        self._stream = Stream(connection.client)
        self._server: Stream | None = None
        self._core: Http1 | Http2 | None = None
        self._first: First | None = None
        self._offered: tuple[str, ...] = ()  # ALPN names that both the client and we know
        self._unmet = ""  # why there is no server
        self._waits_in_all = 0  # that wait in memory, as counted
        self._unkept = False  # the TLS session with the server may be worth keeping
        self._counted = (0, 0)  # bytes up and down of this server, as counted

    # ------------------------------------------------------------ what the connection says

    def begin(self) -> None:
        """Wait for the first bytes."""
        self._inspector.late.begin(self)
        self._look_first()

    def on_client(self, mask: int) -> None:
        """The client's socket is ready."""
        if mask & (ERR | HUP) and not self._stream.ending:
            self._connection.abort("the client reset the connection")
            return
        if mask & (IN | RDHUP | HUP):
            self._stream.readable = True
        if self._phase == _HELLO:
            self._look_first()
        elif self._phase == _SHAKE_DOWN:
            self._shake_down()
        elif self._phase >= _HTTP:
            self._run()

    def on_server(self, mask: int) -> None:
        """The server's socket is ready."""
        server = self._server
        if server is None:
            return
        if mask & (IN | RDHUP | HUP | ERR):
            server.readable = True
        if self._phase == _SHAKE_UP:
            self._shake_up()
        elif self._phase >= _HTTP:
            self._run()

    def on_turn(self) -> None:
        """Another turn for a connection that has more to move."""
        if self._phase >= _HTTP:
            self._run()

    def end(self, error: str) -> None:
        """The connection ends: report what has no answer yet, and give back what is held."""
        self._end_waits()
        core = self._core
        if self._server is not None:
            self._count(self._server)
        if core is not None and not core.closed:
            for command in core.upstream_failed(error or "the connection was closed"):
                if isinstance(command, Seen):  # the answer that goes with it has no reader any more
                    unanswered = command.status in UNANSWERED
                    self._emit_request(command.replace(status=0, error=error) if unanswered else command)
        self._server = None
        self._waits_in_all = self._engine.memory.change(self._waits_in_all, 0)

    def failed(self, error: Exception) -> None:
        """An exception ends the connection."""
        self._connection.failed(error)

    def _end_waits(self) -> None:
        self._phase = _OVER
        for wait in self._inspector.waits:
            wait.end(self)

    def _refuse(self, refusal: Refusal) -> None:
        self._end_waits()
        self._connection.refuse(refusal)

    # ------------------------------------------------------------ what comes too late

    @guarded
    def client_late(self) -> None:
        """A client that had begun to say something does not go on, or says nothing at all."""
        if self._core is not None:
            self._carry_out(self._core.client_late())
        else:
            self._connection.abort("the client said nothing that was understood in time")

    @guarded
    def reader_late(self) -> None:
        """A client does not read what waits for it."""
        self._connection.abort("the client does not read")

    @guarded
    def handshake_late(self) -> None:
        """A handshake takes too long."""
        if self._phase == _SHAKE_UP:
            self.unreached(f"the TLS handshake with the server took more than {HANDSHAKE:.0f} s")
        else:
            self._connection.abort("the client did not complete the TLS handshake")

    @guarded
    def idle_late(self) -> None:
        """No request comes any more."""
        if self._core is not None:
            self._carry_out(self._core.client_eof())

    @guarded
    def answer_late(self) -> None:
        """The server owes an answer."""
        if self._core is not None:
            self._carry_out(self._core.upstream_failed(f"the server did not answer within {ANSWER:.0f} s", late=True))

    # ------------------------------------------------------------ the first bytes

    def _look_first(self) -> None:
        """Judge the client's first bytes without taking them."""
        try:
            data = self._connection.client.recv(sniff.ENOUGH, MSG_PEEK)
        except BlockingIOError:
            return
        if not data:
            self._connection.abort("the client closed without a word")
            return
        first = sniff.classify(data)
        if first is None:
            if self._connection.client_ended:
                self._connection.abort("the client closed before the end of its first message")
            elif cut_short(self._connection.client, sniff.ENOUGH):  # no later event would show what is behind the mark
                self._refuse(refuse_protocol(self._route, "an urgent byte cuts the first message short"))
            return
        self._first = first
        self._inspector.late.end(self)
        if first.kind == "h2":
            self._refuse(refuse_protocol(self._route, "HTTP/2 without TLS is not inspected: use HTTP/1.1 or TLS"))
        elif first.kind == "tls":
            self._meet_tls(first)
        else:  # what is not HTTP is answered by the core as a malformed request
            self._begin_http("http", Http1)

    def _meet_tls(self, first: First) -> None:
        route, engine = self._route, self._engine
        # An inner hello (ECH) is for who has its key.  The handshake is ours: what is served is the outer name's, and a
        # browser, which sends the extension always, goes on with that (RFC 9849 section 6.2, GREASE).
        refusal = engine.router.judge_first(route, first.replace(ech=False))
        if refusal is None and first.flaw:  # towards an address no name is judged, but it is read here
            refusal = refuse_protocol(route, first.flaw)
        # Where a log-in is renewed, content is held and changed: over one connection, in the order of HTTP/1.1.
        renewed = self._inspector.logins is not None and self._inspector.logins.is_renewed_at(route.host)
        known = _PROTOCOLS[1:] if renewed else _PROTOCOLS
        self._offered = tuple(name for name in known if name in first.alpn)
        if refusal is None and first.alpn and not self._offered:
            refusal = refuse_protocol(route, "the client offers neither h2 nor http/1.1 in its TLS handshake")
        if refusal is not None:
            self._refuse(refusal)
            return
        self._connection.sni = first.sni
        self._phase = _DIAL
        self._connection.reach()

    @property
    def _name(self) -> str:
        """The name that certificates are for, on both sides."""
        return self._route.host or self._connection.sni or self._route.address

    # ------------------------------------------------------------ the server

    @property
    def _session_key(self) -> tuple[str, int, bool]:
        return self._name, self._route.port, self._route.insecure

    def reached(self, upstream: Socket, rest: bytes) -> None:
        """The server, or the way through the proxy to it, is connected."""
        self._server, self._counted = Stream(upstream, rest), (0, 0)
        if self._core is not None:  # HTTP without TLS: a request waits for it
            self._phase = _HTTP
            self._connection.emit_opened()
            self._carry_out(self._core.upstream_opened())
            self._run()
            return
        self._phase = _SHAKE_UP
        try:
            context = self._inspector.towards_server(self._offered, insecure=self._route.insecure)
            session = self._inspector.session(self._session_key, self._engine.reactor.now)
            self._server.start_tls(context, name=self._name, session=session)
        except (ValueError, UnicodeError) as error:
            self.unreached(f"the server's name cannot be asked for: {error}"[:300])
            return
        self._inspector.handshake.begin(self)
        self._shake_up()

    def _shake_up(self) -> None:
        assert self._server is not None
        try:
            done = self._server.shake()
        except OSError as error:  # ssl.SSLError is one
            self._inspector.keep_session(self._session_key, None, self._engine.reactor.now)
            self.unreached(explain(error))
            return
        if done:
            self._inspector.handshake.end(self)
            self._unkept = not self._server.resumed
            self._welcome(self._server.protocol)

    def unreached(self, cause: str) -> None:
        """There is no server: whatever the client asks for is answered with the cause."""
        self._inspector.handshake.end(self)
        self._server = None
        self._connection.drop_upstream()
        if self._core is not None:
            self._phase = _HTTP
            self._carry_out(self._core.upstream_failed(cause))
            self._run()
            return
        self._unmet = cause
        # Any protocol will do for an answer of our own; HTTP/1.1 is understood by most.
        self._welcome("http/1.1" if "http/1.1" in self._offered else self._offered[0] if self._offered else "")

    # ------------------------------------------------------------ the client

    def _welcome(self, protocol: str) -> None:
        """Serve the client with the protocol that the server chose."""
        self._phase = _SHAKE_DOWN
        self._stream.start_tls(self._inspector.authority.server_context(self._name, protocol))
        self._inspector.handshake.begin(self)
        self._shake_down()

    def _shake_down(self) -> None:
        try:
            done = self._stream.shake()
        except ssl.SSLError as error:
            reason = (error.reason or "protocol error").replace("_", " ").lower()
            self._connection.abort(f"the client ended the TLS handshake: {reason}")
            return
        if not done:
            return
        self._inspector.handshake.end(self)
        self._begin_http("https", Http2 if self._stream.protocol == "h2" else Http1)

    def _begin_http(self, scheme: str, kind: type[Http1] | type[Http2]) -> None:
        route, engine, inspector = self._route, self._engine, self._inspector
        secure = scheme == "https"
        literal = not route.host
        bound = Bound(
            route.host or route.address,
            route.port,
            "https" if secure else "http",
            self._connection.sni if literal else "",
            literal and not self._connection.sni,
        )
        ledger = engine.ledger
        # An answer that holds for this connection alone decides about its requests as well.
        own = self._connection.router is not engine.router
        asks = engine.approvals is not None and not own
        gate = Gate(bound, self._connection.router.decide if own else inspector.decide, ledger.admit, asks=asks)

        limited = ledger.meter().limited

        def spend(rules: tuple[HostRule, ...], size: int) -> Deny | None:
            return ledger.meter(rules).spend(size) if rules or limited else None

        vault = Vault(inspector.secrets, bound, inspector.signers, inspector.logins) if inspector.secrets else None
        recorded = inspector.full and engine.verbose

        def clock() -> float:
            return engine.reactor.now

        if kind is Http2:
            self._core = Http2(gate, clock, vault=vault, spend=spend, recorded=recorded, budgets=route.budgets)
        else:
            connected = secure and not self._unmet
            self._core = Http1(gate, clock, connected=connected, vault=vault, spend=spend, recorded=recorded)
        self._connection.protocol = self._core.protocol
        self._phase = _HTTP
        if secure:
            self._connection.emit_opened()
        inspector.late.begin(self)
        if self._unmet and kind is Http2:
            self._carry_out(self._core.upstream_failed(self._unmet))
        self._run()

    # ------------------------------------------------------------ moving

    def _run(self) -> None:
        """Read both ends as far as the other one takes it."""
        core, client, memory = self._core, self._stream, self._engine.memory
        assert core is not None
        busy = True
        for _ in range(_ROUNDS):
            if self._phase == _OVER:
                return
            client.flush()
            server = self._server
            if server is not None:
                self._flush_server(server)
            moved = False
            if core.closed:
                self._close_when_flushed()
                return
            server = self._server
            full = memory.each()
            if server is not None and server.readable and client.waiting < full:
                moved = self._read_server(server, min(BUFFER, full - client.waiting))
            server = self._server
            waiting = client.waiting if server is None else max(client.waiting, server.waiting)
            if (
                self._phase == _HTTP
                and not core.closed
                and client.readable
                and core.wants_client
                and waiting < full
            ):  # fmt: skip
                if core.waiting == "head" and core.held >= full:
                    self._connection.abort("a request's head is larger than what may wait in memory now")
                    return
                moved = self._read_client(min(BUFFER, full - waiting)) or moved
            self._count_held()
            if not moved:
                busy = False
                break
        if self._phase == _OVER:
            return
        if core.closed:
            self._close_when_flushed()
        elif busy:
            self._engine.busy(self._connection)
        self._set_waits()

    @staticmethod
    def _flush_server(server: Stream) -> None:
        try:
            server.flush()
        except OSError:
            server.break_off()

    def _count_held(self) -> None:
        if self._phase == _OVER:
            return  # nothing is counted of what has ended
        core, server = self._core, self._server
        held = self._stream.held + (server.held if server is not None else 0) + (core.held if core is not None else 0)
        self._waits_in_all = self._engine.memory.change(self._waits_in_all, held)

    def _read_server(self, server: Stream, most: int) -> bool:
        core = self._core
        assert core is not None
        data = guarded_read(server, self._server_failed, most)
        if data is None:
            return False
        self._inspector.answer.end(self)  # it goes on; ``_set_waits`` begins anew
        if data:
            if self._unkept:
                self._unkept = False
                self._inspector.keep_session(self._session_key, server.session(), self._engine.reactor.now)
            self._carry_out(core.upstream_data(data))
        else:
            self._client_cut(server)
            self._carry_out(core.upstream_eof())
        return True

    def _client_cut(self, server: Stream) -> None:
        if server.ragged:  # the client must see that the server did not say that this was all
            self._stream.ragged = True

    def _server_failed(self, cause: str) -> None:
        core, server = self._core, self._server
        self._server = None
        if server is not None:
            self._count(server)
        self._connection.drop_upstream()
        if core is not None and not core.closed:
            self._carry_out(core.upstream_eof(cause))

    def _read_client(self, most: int) -> bool:
        core = self._core
        assert core is not None
        failures: list[str] = []
        data = guarded_read(self._stream, failures.append, most)
        if failures:
            self._connection.abort(f"the client's side failed: {failures[0]}")
            return False
        if data is None:
            return False
        commands = core.client_data(data) if data else core.client_eof()
        if any(isinstance(command, SendUpstream) for command in commands):
            self._inspector.late.end(self)  # it goes on; ``_set_waits`` begins anew
            self._inspector.content.end(self)
        self._carry_out(commands)
        return True

    def _set_waits(self) -> None:
        """For whom does a deadline run?"""
        core, inspector = self._core, self._inspector
        if core is None or self._phase == _OVER:
            return
        if self._stream.waiting:
            if not inspector.unread.has(self):
                inspector.unread.begin(self)
        else:
            inspector.unread.end(self)
        waiting = core.waiting
        if waiting == "content" and self._server is not None and self._server.waiting >= LEAST:
            waiting = "server"  # the client is held back because the server does not read
        for name, wait in (
            ("head", inspector.late),
            ("content", inspector.content),
            ("request", inspector.idle),
            ("server", inspector.answer),
        ):
            if name != waiting:
                wait.end(self)
            elif not wait.has(self):
                wait.begin(self)

    def _count(self, server: Stream) -> None:
        """Keep the totals: bytes on the server's wire."""
        up, down = server.sent - self._counted[0], server.received - self._counted[1]
        self._counted = server.sent, server.received
        for total in (self._connection, self._engine.pump):
            total.bytes_up += up
            total.bytes_down += down

    # ------------------------------------------------------------ commands

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for at, command in enumerate(commands):
            if isinstance(command, SendUpstream):
                if self._server is not None:
                    try:
                        self._server.write(command.data)
                    except OSError:
                        self._server.break_off()
            elif isinstance(command, SendClient):
                try:
                    self._stream.write(command.data)
                except OSError:  # the client is gone; what it asked for is reported all the same
                    for later in commands[at + 1 :]:
                        if isinstance(later, Seen):
                            self._emit_request(later)
                    raise
            elif isinstance(command, Seen):
                self._emit_request(command)
            elif isinstance(command, AskFirst):
                self._ask(command.question)
            elif isinstance(command, OpenUpstream):
                self._open_upstream()
            elif isinstance(command, EndUpstream):
                if self._server is not None:
                    self._server.end()
            elif isinstance(command, EndClient):
                self._stream.end()
            elif isinstance(command, CloseUpstream):
                self._close_server(reset=command.reset)
            elif isinstance(command, CloseClient):
                if command.reset:
                    self._connection.abort("the connection was cut off")
                    return
                self._phase = _CLOSING
                try:
                    self._stream.end()
                except OSError:
                    self._connection.finish("")  # the client did not wait for it
                    return
                self._close_when_flushed()

    def _ask(self, question: Undecided) -> None:
        """Ask about a request, which waits."""
        approvals = self._engine.approvals
        assert approvals is not None
        client = {"protocol": "tcp", "port": self._connection.peer[0]}
        approvals.ask(question.request, question.verdict.hint, self.request_answered, client)

    @guarded
    def request_answered(self, router: Router | None) -> None:
        """The question about the request that waits was answered."""
        if self._phase == _OVER or self._core is None:
            return
        self._carry_out(self._core.answered(router.decide if router is not None else None))
        self._run()

    def _open_upstream(self) -> None:
        """A request without TLS may go on: reach its server."""
        if self._unmet:
            self.unreached(self._unmet)
            return
        self._phase = _DIAL
        self._connection.reach()

    def _close_server(self, *, reset: bool) -> None:
        server = self._server
        if server is None:
            return
        self._count(server)
        try:
            if reset:
                server.socket.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
            else:
                server.end()
        except OSError:
            pass  # it is gone already
        self._server = None
        self._connection.drop_upstream()

    def _close_when_flushed(self) -> None:
        """Let the client read what there is, then go."""
        if self._phase == _OVER:
            return
        if not self._stream.flush():
            if not self._inspector.unread.has(self):
                self._inspector.unread.begin(self)
            return
        if self._server is not None:
            self._close_server(reset=False)
        self._end_waits()
        self._connection.linger()

    # ------------------------------------------------------------ events

    def _emit_request(self, seen: Seen) -> None:
        """One event for each request, and a denial for each that was refused."""
        verdict, request = seen.verdict, seen.request
        path = redact_path(request.path)
        if path != request.path or not isinstance(verdict, Allow):
            if not isinstance(verdict, Allow):  # its hint is a rule for this path
                verdict = verdict.replace(hint=redact_path(verdict.hint.replace(request.path, path)))
            request = request.replace(path=path)
            seen = seen.replace(request=request, verdict=verdict)
        inspector, engine = self._inspector, self._engine
        inspector.requests += 1
        self._connection.emit_opened()
        refused = not isinstance(verdict, Allow) and seen.status not in UNANSWERED
        if engine.verbose:
            self._emit_seen(seen, refused)
        if isinstance(verdict, Deny | Ask) and refused:
            engine.refused += 1
            engine.emit(denial(request, verdict).of(self._connection.peer))

    def _emit_seen(self, seen: Seen, refused: bool) -> None:
        verdict, request = seen.verdict, seen.request
        rule = verdict.rule if isinstance(verdict, (Allow, Deny)) else None
        query = ""
        asked: tuple[tuple[str, str], ...] = ()
        answered: tuple[tuple[str, str], ...] = ()
        if self._inspector.full:
            query, asked, answered = redact_query(seen.query), redact_fields(seen.asked), redact_fields(seen.answered)
        self._engine.emit(
            RequestSeen(
                self._connection.id,
                seen.number,
                seen.protocol,
                request.method,
                request.scheme,
                request.host,
                request.port,
                request.path,
                query,
                seen.status,
                seen.bytes_up,
                seen.bytes_down,
                round(seen.seconds * 1000, 3),
                "deny" if refused else "allow",
                str_of_rule(rule) if isinstance(rule, HostRule) else None,
                seen.error or (verdict.reason if seen.status in UNANSWERED and isinstance(verdict, Deny) else ""),
                asked,
                answered,
                "network",
            )
        )
