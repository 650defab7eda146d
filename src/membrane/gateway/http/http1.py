"""HTTP/1.1 between one client and one server, each request decided on its own.

Theory of operation
-------------------
The request head is collected (at most ``LONGEST_HEAD`` bytes), parsed by a strict subset of RFC 9112, judged by the
``Gate``, and written anew; bodies pass through ``bodies`` as they come.  One request is in flight at a time, later
ones of a pipeline wait in the buffer::

    client:  HEAD -> [ASK] -> [DIAL] -> BODY -> WAIT -> HEAD        answer:  NONE -> START -> CONTENT -> DONE
               \\-> DISCARD -> HEAD (refused)      WAIT -> PIPE (WebSocket)
             [ASK] -> COLLECT -> [DIAL] (content whose digest is signed)

Rules
-----
1. Nothing of a request goes up before the whole head was allowed.
2. Anything that two readers may frame differently is answered with 400, and the connection ends: CR or LF alone,
   folded lines, empty lines before the request, two lengths.
3. Fields for one hop (``Connection`` and what it names, ``Upgrade`` to anything but a WebSocket) end here.
4. Bytes from the server that no request asked for end both connections: they could be taken for another answer.
5. A WebSocket becomes a pipe only after a 101 that proves that the server speaks it (RFC 6455 section 4.1), and what
   goes through the pipe is frames (``websocket``): one that breaks the protocol ends it with 1002.

The grammar is a subset of what h11 accepts; the tests hold both against each other.  h11 itself is not used: it
also accepts what rule 2 refuses, and costs eight times as much per request.
"""

from __future__ import annotations

from ...policy import reasons
from ...policy.model import Deny
from .bodies import Body, Opening, Sized
from .credentials import CODINGS, plainly, unasked
from .exchange import Core, Exchange
from .heads import NOT_HTTP, AnswerHead, Framing, RequestHead, end_of_head
from .overrides import LONGEST_METHOD
from .requests import (
    BAD_LINE,
    DRAINED,
    HEAD_TOO_LONG,
    LONGEST_HEAD,
    NO_AUTHORITY,
    PHRASES,
    RAW_LINE_END,
    TOKEN,
    UNANSWERED,
    Admitted,
    Flaw,
    Refused,
    Undecided,
    answer,
)
from .websocket import Frames, agreed_on_deflate, close_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .credentials import Vault
    from .exchange import Command, Spend, Waiting
    from .logins import Trade
    from .requests import Fields, Gate
    from .sigv4 import Signing
    from .spellings import Scrubber

READ_AHEAD = 65536  # bytes that are taken from a client whose turn has not come
MOST_INTERIM = 16  # 1xx answers before the real one

_HEAD, _DIAL, _BODY, _WAIT, _DISCARD, _PIPE, _ASK, _COLLECT = range(8)
_SIGNED_ANEW = frozenset([b"authorization"])
_ASKED_LATER = frozenset([b"expect"])
_NONE, _START, _CONTENT, _DONE = range(4)
_CR = 13
_CRLF2 = b"\r\n\r\n"
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_NO_ANSWER = "the server closed the connection without an answer"
_GONE = "the server closed the connection while the request waited for an answer"
_CODED = "the server's answer is encoded, so a secret in it could not be seen"


class Http1(Core):
    """One HTTP/1.1 connection.  See ``exchange.Core`` for the arguments.

    Args:
        connected: the server's side is open already; else ``OpenUpstream`` comes with the first allowed request.
    """

    protocol = "http/1.1"

    def __init__(
        self,
        gate: Gate,
        clock: Callable[[], float],
        *,
        connected: bool,
        vault: Vault | None = None,
        spend: Spend | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__(gate, clock, vault=vault, spend=spend, recorded=recorded)
        self._connected = connected
        self._in = bytearray()  # from the client, not yet looked at
        self._searched = 0  # bytes of it known to hold no end of head
        self._state = _HEAD
        self._count = 0
        self._client_ended = self._server_ended = False
        self._exchange: Exchange | None = None
        self._pending = b""  # the head to send once the server is connected
        self._close_after = False
        self._body = Body()
        self._modern = True  # the client speaks 1.1
        self._waits_for_100 = False
        self._websocket_key = b""
        self._answer_in = bytearray()
        self._answer_state = _NONE
        self._answer_body = Body()
        self._interim = 0
        self._scrubber: Scrubber | None = None  # of a pipe
        self._trade: Trade | None = None  # the exchange is with a token endpoint
        self._extensions: list[bytes] = []  # of a WebSocket, as they went up
        self._frames_up = Frames(masked=True, deflate=False)
        self._frames_down = Frames(masked=False, deflate=False)
        self._asked_about: tuple[RequestHead, Framing] | None = None
        # What a signature is made of when the content has come, and the content.
        self._unsigned: tuple[Signing, bytes, bytes, bytes, Fields] | None = None
        self._collected: list[bytes] = []

    # ------------------------------------------------------------ for the driver

    @property
    def wants_client(self) -> bool:
        return not self.closed and not self._client_ended and len(self._in) < READ_AHEAD

    @property
    def held(self) -> int:
        """Bytes that came and cannot go on yet; content that waits for its digest has a bound of its own."""
        return len(self._in) + len(self._answer_in) + len(self._pending)

    @property
    def waiting(self) -> Waiting:
        """What a deadline should run for: the next request, the rest of its head, its content, an answer, or nothing.

        An answer that has begun may be silent for ever: server-sent events are.
        """
        if self.closed or self._state in (_PIPE, _ASK):
            return "nothing"
        if self._state == _HEAD:
            return "head" if self._in else "request"
        if self._state in (_DISCARD, _COLLECT):
            return "content"
        if self._answer_state == _CONTENT:
            return "nothing"
        return "content" if self._state == _BODY and not self._waits_for_100 else "server"

    def client_data(self, data: bytes) -> list[Command]:
        """The client has sent ``data``."""
        if self.closed:
            return []
        if self._state == _PIPE:
            self._pipe_up(data)
        elif self._state == _BODY and not self._in:
            rest = self._take_body(data, 0)
            if rest < len(data):
                self._in += data[rest:] if rest else data
            self._run()
        else:
            self._in += data
            self._run()
        return self._take()

    def client_eof(self) -> list[Command]:
        """The client sends no more (half-close); it may still read."""
        if self.closed or self._client_ended:
            return []
        self._client_ended = True
        if self._state == _PIPE:
            self._end_up = True
            if self._server_ended:
                self._end_pipe()
        elif self._state == _HEAD:
            self._close()
        elif self._state in (_BODY, _DISCARD, _COLLECT) and not self._body.done:
            self._abort("the client closed before the end of its request")
        return self._take()

    def client_late(self) -> list[Command]:
        """A deadline for the client has passed."""
        if not self.closed:
            self._abort("the client was too slow")
        return self._take()

    def upstream_opened(self) -> list[Command]:
        """``OpenUpstream`` is done."""
        if self._state == _DIAL and not self.closed:
            self._connected = True
            self._send_head()
            self._run()
        return self._take()

    def upstream_failed(self, cause: str, *, late: bool = False) -> list[Command]:
        """The server cannot be reached, or (``late``) has not answered in time; the client gets ``cause``."""
        if not self.closed:
            if self._state == _PIPE:
                self._end_pipe(cause)
            elif self._exchange is None:
                self._close()
            else:
                self._fail(cause, late=late)
                self._run()
        return self._take()

    def upstream_data(self, data: bytes) -> list[Command]:
        """The server has sent ``data``."""
        if self.closed:
            return []
        if self._state == _PIPE:
            self._pipe_down(data)
        elif self._answer_state == _CONTENT:
            self._take_answer(data)
            self._run()
        elif self._answer_state == _START:
            self._answer_in += data
            self._read_answer()
            self._run()
        else:
            self._unasked()
        return self._take()

    def upstream_eof(self, cause: str = "") -> list[Command]:
        """The server sends no more, or its connection failed for ``cause``."""
        if self.closed or self._server_ended or not self._connected:
            return []
        self._server_ended = True
        self._connected = False
        if self._state == _PIPE:
            self._end_down = True
            if self._client_ended or cause:
                self._end_pipe(cause)
        elif self._answer_state == _START:
            self._fail(cause or _NO_ANSWER)
            self._run()
        elif self._answer_state == _CONTENT:
            out: list[bytes] = []
            if not cause and self._answer_body.end(out):
                self._down += out
                self._close_after = True
                self._answered()
                self._run()
            else:
                self._abort(cause or "the server closed before the end of its answer")
        elif self._state == _DISCARD:
            self._close_after = True
        elif self._state not in (_ASK, _COLLECT):
            self._finish_early()
        return self._take()

    # ------------------------------------------------------------ requests

    def _run(self) -> None:
        """Go on with what the buffer holds."""
        while not self.closed:
            if self._state == _HEAD:
                if not self._read_head():
                    if self._client_ended:
                        self._close()
                    return
            elif self._state in (_BODY, _DISCARD, _COLLECT):
                if self._in:
                    data = bytes(self._in)
                    self._in.clear()
                    self._in += data[self._take_body(data, 0) :]
                if self.closed or not self._body.done:
                    return
                self._body_done()
            else:
                return

    def _read_head(self) -> bool:
        """Parse, judge and forward one head; false when it is not complete."""
        data = self._in
        if not data:
            return False
        if self._searched <= LONGEST_METHOD and (flaw := _bad_start(data)):
            self._refuse_flaw(flaw, not_http=flaw == BAD_LINE)
            return True
        end = data.find(_CRLF2, max(0, self._searched - 3))
        # A line that ends in LF alone is looked for at once: its sender may wait for an answer to what it takes for
        # a whole head.
        start = self._searched - (self._searched > 0 and data[self._searched - 1] == _CR)
        lines = data[start : end if end >= 0 else len(data)]
        if lines.count(b"\n") != lines.count(b"\r\n"):
            self._refuse_flaw(RAW_LINE_END)
            return True
        if end < 0 or end > LONGEST_HEAD:
            if len(data) > LONGEST_HEAD + 3:
                self._refuse_flaw(HEAD_TOO_LONG)
                return True
            self._searched = len(data)
            return False
        head = bytes(data[:end])
        del data[: end + 4]
        self._searched = 0
        self._request(head)
        return True

    def _request(self, head: bytes) -> None:
        parsed = RequestHead()
        try:
            parsed.read(head)
            framing = Framing(parsed)
            if parsed.names.count(b"host") != 1:
                raise Flaw(NO_AUTHORITY)
        except Flaw as flaw:
            self._refuse_flaw(str(flaw), method=parsed.method, target=parsed.target)
            return
        self._answers = {}
        self._judge(parsed, framing)

    def _judge(self, head: RequestHead, framing: Framing) -> None:
        host = head.values[head.names.index(b"host")]
        verdict = self.gate.judge(
            head.method,
            head.target,
            host,
            head.names,
            head.values,
            body=framing.body,
            absolute=True,
            answers=self._answers,
        )
        if isinstance(verdict, Undecided):
            self._state = _ASK
            self._asked_about = head, framing
            self._wait_for(verdict)
        elif isinstance(verdict, Refused):
            self._refuse(verdict, head, framing)
        else:
            self._forward(head, framing, verdict)

    def _go_on(self) -> None:
        assert self._asked_about is not None
        head, framing = self._asked_about
        self._asked_about = None
        self._state = _HEAD
        self._judge(head, framing)
        self._run()

    def _forward(self, head: RequestHead, framing: Framing, admitted: Admitted) -> None:
        target, values = admitted.target, head.values
        vault = self._vault
        signing: Signing | None = None
        if vault is not None:
            found = vault.signers.recognise(head.names, values) if vault.signers is not None else None
            if isinstance(found, Deny):
                self._refuse(self.gate.refused(admitted.request, found), head, framing)
                return
            signing = found
            applied = vault.apply(admitted.readings, target, head.names, values)
            if isinstance(applied, Deny):
                self._refuse(self.gate.refused(admitted.request, applied), head, framing)
                return
            target, values = applied
        out = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (head.method, target, admitted.authority)]
        dropped = framing.dropped
        hop = list(framing.hop)
        if framing.close:
            hop.insert(0, b"close")
        if hop:
            out.append(b"Connection: %b\r\n" % b", ".join(hop))
        if vault is not None and vault.scrubs:
            dropped |= frozenset(filter(unasked, head.names))
            values = list(map(plainly, head.names, values))
            out.append(b"Accept-Encoding: identity\r\n")
        if signing is not None:
            dropped |= _SIGNED_ANEW
            if not signing.knows(head.names, framing.body):
                dropped |= _ASKED_LATER
        fields = [row for row in zip(head.names, head.raw_names, values, strict=True) if row[0] not in dropped]
        out += [b"%b: %b\r\n" % (raw, value) for _name, raw, value in fields]
        if signing is not None:
            sent = [(name, value) for name, _raw, value in fields]
            if vault is not None and vault.scrubs:
                sent.append((b"accept-encoding", b"identity"))
            refusal = signing.prepare(sent, 0 if not framing.body else -1 if framing.chunked else framing.length)
            if refusal is not None:
                self._refuse(self.gate.refused(admitted.request, refusal), head, framing)
                return
            if signing.digest:
                signed = signing.authorization(head.method, target, admitted.authority, sent)
                out.append(b"Authorization: %b\r\n" % signed)
            else:
                self._unsigned = signing, head.method, target, admitted.authority, sent
        out.append(b"\r\n")
        query = admitted.target[len(admitted.request.path) :].decode("ascii")
        self._begin(Exchange(self._count + 1, admitted.request, admitted.verdict, query, self._clock()), head)
        self._pending = b"".join(out)
        self._close_after = framing.close
        self._trade = None
        if vault is not None and vault.logins is not None and framing.body:
            kinds = [value for name, value in zip(head.names, head.values, strict=True) if name == b"content-type"]
            coded = any(name in CODINGS for name in head.names)
            self._trade = None if coded else vault.logins.trade(admitted.readings, target, kinds)
        self._body = framing.reader(self._trade)
        self._body.opening = Opening()
        self._modern = framing.modern
        self._waits_for_100 = framing.expects
        self._websocket_key = framing.websocket_key
        self._extensions = [value for name, _raw, value in fields if name == b"sec-websocket-extensions"]
        if self._unsigned is not None:
            self._collect(framing)
            return
        self._go_up()

    def _collect(self, framing: Framing) -> None:
        """Hold the request until the digest of its content is known."""
        self._state = _COLLECT
        self._collected = []
        if framing.expects:  # the server is asked when the content is there
            self._waits_for_100 = False
            self._down.append(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _sign(self) -> None:
        """The content is complete: the request goes up, signed."""
        assert self._unsigned is not None
        signing, method, target, authority, fields = self._unsigned
        content = b"".join(self._collected)
        signing.take(content)
        signed = signing.authorization(method, target, authority, fields)
        self._pending = b"%bAuthorization: %b\r\n\r\n%b" % (self._pending[:-2], signed, content)
        self._unsigned, self._collected = None, []
        self._go_up()

    def _go_up(self) -> None:
        """Send the head that waits, as soon as there is a server."""
        if self._server_ended:
            self._fail(_GONE)
        elif self._connected:
            self._send_head()
        else:
            self._state = _DIAL
            self._open = True

    def _begin(self, exchange: Exchange, head: RequestHead | None = None) -> None:
        if self._recorded and head is not None:
            exchange.asked = tuple(zip(head.names, head.values, strict=True))
        self._count += 1
        self._exchange = exchange
        self._answer_state = _NONE
        self._interim = 0

    def _send_head(self) -> None:
        head, self._pending = self._pending, b""
        self._state = _BODY
        self._answer_state = _START
        if self._allowance(len(head)):
            self._up.append(head)

    def _take_body(self, data: bytes, at: int) -> int:
        """Take bytes of the request's body; the position after them."""
        out: list[bytes] = []
        before = self._body.size
        flaw = ""
        try:
            end = self._body.feed(data, at, out)
        except Flaw as found:
            flaw, end = str(found), len(data)
        if self._state == _DISCARD:
            if flaw or self._body.size > DRAINED:
                self._close()
            return end
        if self._state == _COLLECT and not flaw:
            self._collected += out
            return end
        assert self._exchange is not None
        self._exchange.up += self._body.size - before
        if out and self._state != _COLLECT:
            self._waits_for_100 = False
            if not self._allowance(sum(map(len, out))):
                return end
            self._up += out
        if flaw:
            # What came before the flaw goes up whether or not it came with it; the end of the body never does.
            self._exchange.verdict = Deny(None, reasons.REQUEST_MALFORMED, flaw)
            self._stop(Refused(400, self._exchange.verdict, self._exchange.request))
        return end

    def _body_done(self) -> None:
        if self._body.opening is not None and self._body.opening.begun:
            self._close_after = True  # the next request would go on with this line
        if self._state == _COLLECT:
            if self._exchange is not None:
                self._exchange.up += self._body.size
            self._sign()
            return
        discarded = self._state == _DISCARD
        self._state = _WAIT
        if discarded:
            self._over()
        elif self._answer_state == _DONE:
            self._next()

    def _allowance(self, size: int) -> bool:
        """May so many bytes go to the server?  If not, the request ends here."""
        exchange = self._exchange
        assert exchange is not None
        refusal = self._beyond(exchange, size)
        if refusal is None:
            return True
        exchange.verdict = refusal
        self._stop(Refused(429, refusal, exchange.request))
        return False

    # ------------------------------------------------------------ refusing

    def _refuse_flaw(self, flaw: str, *, method: bytes = b"", target: bytes = b"", not_http: bool = False) -> None:
        """400, and the end of the connection."""
        refused = self.gate.malformed(flaw, method, target, reasons.NOT_HTTP if not_http else None)
        self._begin(Exchange(self._count + 1, refused.request, refused.verdict, "", self._clock()))
        self._answer_ourselves(refused, close=True)
        self._close(reset_upstream=False)

    def _refuse(self, refused: Refused, head: RequestHead, framing: Framing) -> None:
        """Answer a request that does not go up; the connection goes on if its body can be skipped."""
        query = head.target.partition(b"?")[2].decode("latin-1")
        exchange = Exchange(self._count + 1, refused.request, refused.verdict, query and f"?{query}", self._clock())
        self._begin(exchange, head)
        close = framing.close or refused.status == 400 or framing.expects or framing.length > DRAINED
        self._answer_ourselves(refused, close=close)
        if close:
            self._close()
            return
        self._close_after = False
        self._body = framing.reader()
        self._state = _DISCARD

    def _answer_ourselves(self, refused: Refused, *, close: bool) -> None:
        """Write our own answer to the running exchange and report it."""
        exchange = self._exchange
        assert exchange is not None
        fields, body = answer(refused)
        exchange.status = refused.status
        head = [b"HTTP/1.1 %d %b\r\n" % (refused.status, PHRASES[refused.status])]
        head += [b"%b: %b\r\n" % field for field in fields]
        if close:
            head.append(b"connection: close\r\n")
        head.append(b"\r\n")
        if refused.request.method != "HEAD":
            head.append(body)
        self._down += head
        self._record(exchange, error=refused.verdict.reason if refused.status in UNANSWERED else "")
        self._exchange = None
        self._answer_state = _DONE

    def _stop(self, refused: Refused) -> None:
        """End a request that has begun to go up: with an answer if none has begun."""
        if self._answer_state in (_NONE, _START):
            self._answer_ourselves(refused, close=True)
            self._close(reset_upstream=True)
        else:
            self._abort(refused.verdict.reason)

    def _fail(self, cause: str, *, late: bool = False) -> None:
        """The server did not answer."""
        exchange = self._exchange
        if exchange is None or self._answer_state == _CONTENT:
            self._abort(cause)
            return
        keep = self._state == _DIAL and isinstance(self._body, Sized) and not self._waits_for_100
        refused = self.gate.unreachable(exchange.request, cause, late=late)
        self._answer_ourselves(refused, close=self._close_after or not keep)
        if self._close_after or not keep:
            self._close(reset_upstream=True)
        else:
            self._state = _DISCARD

    def _abort(self, error: str) -> None:
        """End both sides in the middle of a message; the client must not take it for complete."""
        if self._exchange is not None:
            self._record(self._exchange, error=error)
            self._exchange = None
        self._close(reset=True, reset_upstream=True)

    # ------------------------------------------------------------ answers

    def _read_answer(self) -> None:
        """Parse the answer's head, also 1xx ones before it."""
        while self._answer_state == _START and not self.closed:
            data = self._answer_in
            end, after = end_of_head(data)
            if end < 0:
                if len(data) > LONGEST_HEAD:
                    self._fail(NOT_HTTP)
                return
            head = bytes(data[:end])
            rest = bytes(data[after:])
            data.clear()
            try:
                answered = AnswerHead(head)
                if answered.folded and self._scrub_for_head() is not None:
                    raise Flaw(_CODED)  # a secret that is cut by the fold; RFC 9112 section 5.2 lets a gateway refuse
                if answered.status == 101:
                    self._switch(answered, rest)
                    return
                if answered.status < 200:
                    data += rest
                    self._interim_answer(answered)
                    continue
                self._begin_answer(answered)
            except Flaw as flaw:
                self._fail(str(flaw))
                return
            if self._answer_state == _CONTENT:
                self._take_answer(rest)
            elif rest:
                self._unasked()

    def _interim_answer(self, answered: AnswerHead) -> None:
        self._interim += 1
        if self._interim > MOST_INTERIM:
            raise Flaw(NOT_HTTP)
        if answered.status == 100:
            self._waits_for_100 = False
        if self._modern:
            self._down.append(answered.write(b"", self._scrub_for_head()))

    def _scrub_for_head(self) -> Scrubber | None:
        return self._vault.scrubber() if self._vault is not None else None

    def _begin_answer(self, answered: AnswerHead) -> None:
        exchange = self._exchange
        assert exchange is not None
        scrubber = self._scrub_for_head()
        bodiless = exchange.request.method == "HEAD" or answered.status in (204, 304)
        if scrubber is not None and answered.coded and not bodiless:
            raise Flaw(_CODED)
        filtered = scrubber if self._trade is None else self._trade.down(answered.status, scrubber)
        self._answer_body, until_close = answered.reader(bodiless, filtered, modern=self._modern)
        # A client that was answered instead of being asked for its body may or may not send it.
        self._close_after = self._close_after or answered.close or until_close or self._waits_for_100
        exchange.status = answered.status
        if self._recorded:
            exchange.answered = answered.shown(scrubber)
        self._down.append(answered.write(b"close" if self._close_after else b"", scrubber))
        self._answer_state = _CONTENT
        if self._answer_body.done:
            self._answered()

    def _take_answer(self, data: bytes) -> None:
        out: list[bytes] = []
        exchange = self._exchange
        assert exchange is not None
        body = self._answer_body
        before = body.size
        try:
            end = body.feed(data, 0, out)
        except Flaw:
            self._down += out
            self._abort(NOT_HTTP)
            return
        exchange.down += body.size - before
        self._down += out
        if body.done:
            self._answered()
            if end < len(data):
                self._unasked()

    def _answered(self) -> None:
        """The answer is complete."""
        self._answer_state = _DONE
        if self._state == _WAIT or self._close_after:
            self._next()

    def _next(self) -> None:
        """The exchange is over: request and answer are complete, or nothing more of the request is wanted."""
        assert self._exchange is not None
        self._record(self._exchange)
        self._exchange = None
        self._over()

    def _over(self) -> None:
        """The connection is between two requests."""
        if self._close_after or self._server_ended or (self._client_ended and not self._in):
            self._close()
            return
        self._state = _HEAD
        self._searched = 0

    def _finish_early(self) -> None:
        """The server is gone while no answer was due; what it would have got of a request has no reader."""
        if self._exchange is not None:
            self._record(self._exchange)
            self._exchange = None
        self._close()

    def _unasked(self) -> None:
        """Bytes that belong to no answer: the client keeps the answer it has, and nothing is asked after that."""
        if self._exchange is not None:
            self._record(self._exchange, error=NOT_HTTP)
            self._exchange = None
        self._close(reset_upstream=True)

    # ------------------------------------------------------------ WebSocket

    def _switch(self, answered: AnswerHead, rest: bytes) -> None:
        """101: a pipe from here on, if it is the WebSocket that was asked for.

        Raises:
            Flaw: it is not.
        """
        import base64
        import hashlib

        exchange = self._exchange
        assert exchange is not None
        key, self._websocket_key = self._websocket_key, b""
        proof = base64.b64encode(hashlib.sha1(key + _WEBSOCKET, usedforsecurity=False).digest())
        if (
            not key
            or answered.all(b"sec-websocket-accept") != [proof]
            or [value.lower() for value in answered.all(b"upgrade")] != [b"websocket"]
        ):
            raise Flaw("the server switched to a protocol that was not asked for")
        deflate = agreed_on_deflate(self._extensions, answered.all(b"sec-websocket-extensions"))
        if deflate is None:
            raise Flaw("the server wants a WebSocket extension that was not offered or is not known")
        self._frames_up = Frames(masked=True, deflate=deflate)
        self._frames_down = Frames(masked=False, deflate=deflate)
        exchange.status = 101
        self._scrubber = self._scrub_for_head()
        if self._recorded:
            exchange.answered = answered.shown(self._scrubber)
        self._down.append(answered.write(b"Upgrade", self._scrubber))
        self._state = _PIPE
        self._answer_state = _DONE
        if rest:
            self._pipe_down(rest)
        if self.closed:
            return
        if self._in:
            early = bytes(self._in)
            self._in.clear()
            self._pipe_up(early)
        if self._client_ended and not self.closed:
            self._end_up = True

    def _pipe_up(self, data: bytes) -> None:
        assert self._exchange is not None
        data, flaw = self._frames_up.feed(data)
        refusal = self._beyond(self._exchange, len(data))
        if refusal is not None:
            self._exchange.verdict = refusal
            self._end_pipe(refusal.reason)
            return
        self._exchange.up += len(data)
        if data:
            self._up.append(data)
        if flaw:
            self._exchange.verdict = Deny(None, reasons.REQUEST_MALFORMED, flaw)
            self._break_off(flaw)

    def _pipe_down(self, data: bytes) -> None:
        assert self._exchange is not None
        data, flaw = self._frames_down.feed(data)
        self._exchange.down += len(data)
        if data:
            self._down.append(self._scrubber.feed(data) if self._scrubber is not None else data)
        if flaw:
            self._break_off(f"the server broke the WebSocket protocol: {flaw}")

    def _break_off(self, error: str) -> None:
        """A frame broke the protocol: both ends are closed with 1002, as far as a frame can be begun there."""
        up, down = self._frames_up, self._frames_down
        if up.between and not up.closed:
            self._up.append(close_frame(masked=True))
        last = close_frame(masked=False) if down.between and not down.closed else b""
        self._end_pipe(error, last=last, reset=False)

    def _end_pipe(self, error: str = "", *, last: bytes = b"", reset: bool = True) -> None:
        if self._exchange is not None:
            self._record(self._exchange, protocol="websocket", error=error)
            self._exchange = None
        if self._scrubber is not None:
            self._down.append(self._scrubber.flush())
        if last:
            self._down.append(last)
        self._end_up = self._end_down = False
        reset = reset and bool(error)
        self._close(reset=reset or not self._frames_down.between, reset_upstream=reset or not self._frames_up.between)


def _bad_start(data: bytearray) -> str:
    """The flaw of something that cannot become a request line; the same answer for every longer prefix."""
    if data[0] in b"\r\n":
        return RAW_LINE_END
    word = bytes(data[: LONGEST_METHOD + 1]).partition(b" ")[0]
    return BAD_LINE if not word or len(word) > LONGEST_METHOD or word.translate(None, TOKEN) else ""
