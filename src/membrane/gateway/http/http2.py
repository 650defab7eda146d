"""HTTP/2 between one client and one server: a relay of frames.

Theory of operation
-------------------
Stream numbers, SETTINGS, flow control and everything that the server sends are the same on both sides, so nothing is
buffered and gRPC and server-sent events stream.  Only what the client says about a request is taken apart: its field
sections are decoded, judged by the ``Gate`` and encoded anew without a dynamic table.

A refused request never reaches the server.  Its answer is put between two frames of the server, and what the client
still sends on that stream is dropped and credited, at most ``DRAINED`` bytes before it is stopped with RST_STREAM.

The content of such an answer comes out of the client's window for the connection, of which the server does not know.
So the first ``RESERVE`` bytes of window that the client grants are kept back for it; without reserve the answer has
no content, and its reason is in a field.

While a request waits for an answer nothing more of the client is read: streams must be opened in their order
(RFC 9113 section 5.1.1).  What the server sends goes on.

Rules
-----
1. Nothing is written to the client before the server's SETTINGS, nor within a frame or a field section.
2. A frame goes up only if it belongs to a stream that the server knows.  Unknown types, PRIORITY and PUSH_PROMISE
   never do.
3. A violation on a stream that the server has begun to serve ends the connection: the server's answer may be on
   its way, and the client's decoder cannot do without it.
4. Server push is switched off; a server that pushes all the same is cut off.
5. With secrets for this server its field sections are decoded and encoded anew as well, and its content is scrubbed.

References: RFC 9113 (HTTP/2), RFC 7541 (HPACK), RFC 8441 (extended CONNECT, refused), RFC 7838 (ALTSVC, dropped).
"""

from __future__ import annotations

from ...policy import reasons
from ...policy.model import Deny
from ..sniff import PREFACE
from .bodies import Opening
from .credentials import plainly, unasked
from .exchange import Exchange
from .fields import NO_TABLE, FieldDecoder, TooLarge, Undecodable, encode
from .frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    NO_ERROR,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    TABLE_SIZE,
    WINDOW_UPDATE,
    Broken,
    RequestSection,
    check_fields,
    client_settings,
    frame,
    goaway,
    head,
    header,
    rst_stream,
    section,
    unpadded,
    window_update,
)
from .http2_answers import MOST_STREAMS, MOST_WAITING, AnswerSide, Http2Stream
from .requests import (
    BAD_BODY_LENGTH,
    BAD_CONTENT,
    BAD_TRAILER,
    HOP_BY_HOP,
    LONGEST_HEAD,
    MOST_FIELDS,
    UNANSWERED,
    Flaw,
    Refused,
    Undecided,
    no_trailer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ...policy.model import HostRule
    from .credentials import Vault
    from .exchange import Command, Spend, Waiting
    from .requests import Gate
    from .sigv4 import Signing

RESERVE = 8192  # bytes of the connection's window that are kept back for answers of our own
MOST_CONTINUATIONS = 32  # frames of one field section
_DROPPED = HOP_BY_HOP | frozenset([b"host"])


class Http2(AnswerSide):
    """One HTTP/2 connection; the server's side is open.  See ``exchange.Core`` for the arguments.

    Args:
        budgets: the rules with a budget that admit the connection: its own frames count against them.
    """

    def __init__(
        self,
        gate: Gate,
        clock: Callable[[], float],
        *,
        vault: Vault | None = None,
        spend: Spend | None = None,
        recorded: bool = False,
        budgets: tuple[HostRule, ...] = (),
    ) -> None:
        super().__init__(gate, clock, vault=vault, spend=spend, recorded=recorded)
        self._budgets = budgets
        self._in = bytearray()
        self._greeted = False  # the preface has come
        self._decoder = FieldDecoder(2 * LONGEST_HEAD, MOST_FIELDS)
        self._block: bytearray | None = None  # a field section that is not complete
        self._block_of = (0, 0)  # its stream and flags
        self._parts = 0
        self._spoke = False  # a field section was sent up
        self._asked_about: tuple[int, bool, RequestSection] | None = None
        self._opening: Http2Stream | None = None  # whose DATA frame is running
        self._unread = (0, 0)  # bytes of that frame before content (the length of padding), and of content

    # ------------------------------------------------------------ for the driver

    @property
    def wants_client(self) -> bool:
        return not self.closed and self._question is None and self._waiting_bytes < MOST_WAITING

    @property
    def held(self) -> int:
        """Bytes that came and cannot go on yet."""
        blocks = len(self._block or b"") + len(self._answer_block or b"")
        return len(self._in) + len(self._answer_in) + blocks + self._waiting_bytes

    @property
    def waiting(self) -> Waiting:
        """What a deadline should run for: the next request, an answer, or nothing.

        Only where all that is open are plain requests without an answer: a call of gRPC may be answered when there is
        something to say, and other streams may be silent for ever.
        """
        if self.closed or self._question is not None:
            return "nothing"
        if not self._streams:
            return "request"
        for stream in self._streams.values():
            if stream.status or stream.grpc or not stream.client_ended:
                return "nothing"
        return "server"

    def client_data(self, data: bytes) -> list[Command]:
        """The client has sent ``data``."""
        if self.closed:
            return []
        try:
            if self._left >= len(data) and not self._in:
                self._left -= len(data)
                if self._forwarding:
                    self._pass_on(data)
                self._flush_upstream()
            else:
                self._in += data
                self._read_client()
            self._flush()
        except Broken as broken:
            self._go_away(*broken.args)
        return self._take()

    def client_eof(self) -> list[Command]:
        """The client is gone; there is no half-close in HTTP/2."""
        if not self.closed:
            self._end("the client closed the connection")
        return self._take()

    def client_late(self) -> list[Command]:
        """A deadline for the client has passed."""
        if not self.closed:
            self._go_away(ENHANCE_YOUR_CALM, "too slow")
        return self._take()

    def upstream_failed(self, cause: str, *, late: bool = False) -> list[Command]:
        """The server cannot be reached: said before any data, every request is answered with that.

        ``late``: it has not answered in time.
        """
        if not self.closed and not self._alone:
            if self._answer_settled or self._greeted:
                self._fail(cause, late=late)
            else:
                self._alone = cause
                self._answer_settled = True
                self._reserve = 32768  # the connection's window is ours alone
                self._down.append(frame(SETTINGS, 0, 0))
        return self._take()

    # ------------------------------------------------------------ client to server

    def _send(self, data: bytes) -> None:
        """A frame of the connection itself: what a client may put into it (PING, SETTINGS, ...) counts as upload."""
        if self._alone:
            return
        if self._spend is not None and (refusal := self._spend(self._budgets, len(data))) is not None:
            for stream in self._streams.values():
                self._violated(stream, refusal, ENHANCE_YOUR_CALM)
            raise Broken(ENHANCE_YOUR_CALM, refusal.hint or refusal.reason)
        self._up.append(data)

    def _read_client(self) -> None:
        data = self._in
        at, size = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(bytes(data[: len(PREFACE)])):
                raise Broken(PROTOCOL_ERROR, "not the preface of HTTP/2")
            if size < len(PREFACE):
                return
            self._greeted = True
            at = len(PREFACE)
            self._send(PREFACE)
        while not self.closed and self._question is None:
            if self._left:
                count = min(self._left, size - at)
                if count and self._forwarding:
                    self._pass_on(bytes(data[at : at + count]))
                at += count
                self._left -= count
                if self._left:
                    break
            self._flush_upstream()
            if size - at < 9:
                break
            length, kind, flags, stream = head(data, at)
            if not self._settled and (kind != SETTINGS or flags & ACK):
                raise Broken(PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if length > self._largest:
                raise Broken(FRAME_SIZE_ERROR, "a frame is too large")
            if self._block is not None and (kind != CONTINUATION or stream != self._block_of[0]):
                raise Broken(PROTOCOL_ERROR, "a field section is interrupted")
            if kind == DATA:
                padding = 0
                if flags & PADDED:
                    if size - at < 10 and length:
                        break
                    padding = data[at + 9] + 1 if length else 1
                    if padding > length:
                        raise Broken(PROTOCOL_ERROR, "padding is longer than its frame")
                self._left = length
                self._forwarding = self._content(flags, stream, length, padding)
                at += 9
                continue
            if kind == PRIORITY:
                if not stream:
                    raise Broken(PROTOCOL_ERROR, "PRIORITY without a stream")
                if length != 5:
                    raise Broken(FRAME_SIZE_ERROR, "PRIORITY is malformed")
            if kind == PRIORITY or kind > CONTINUATION:
                self._left, self._forwarding = length, False
                at += 9
                continue
            if size - at < 9 + length:
                if length > LONGEST_HEAD:
                    raise Broken(ENHANCE_YOUR_CALM, "a frame is too large")
                break
            payload = bytes(data[at + 9 : at + 9 + length])
            at += 9 + length
            self._frame(kind, flags, stream, payload)
        del data[:at]

    def _content(self, flags: int, stream: int, length: int, padding: int) -> bool:
        """A DATA frame begins; does it go up?"""
        known = self._streams.get(stream)
        if known is None:
            if stream > self._last or not stream & 1:
                raise Broken(PROTOCOL_ERROR, "DATA on a stream that was not opened")
            if stream in self._done:
                raise Broken(STREAM_CLOSED, "DATA after the end of its stream")
            self._credit += length
            self._drain(stream, length, bool(flags & END_STREAM))
            return False
        if known.client_ended:
            raise Broken(STREAM_CLOSED, "DATA after the end of its stream")
        known.up += length - padding
        ends = bool(flags & END_STREAM)
        if known.expected >= 0 and (known.up > known.expected or (ends and known.up != known.expected)):
            self._violated(known, Deny(None, reasons.REQUEST_MALFORMED, BAD_BODY_LENGTH))
        self._allowance(known, 9 + length)
        self._up.append(header(length, DATA, flags & (END_STREAM | PADDED), stream))
        self._opening, self._unread = known, (1 if flags & PADDED else 0, length - padding)
        if ends:
            known.client_ended = True
            self._over(known)
        return True

    def _pass_on(self, data: bytes) -> None:
        """Bytes of the running frame go up, unless its stream begins like a request (``bodies.Opening``)."""
        stream = self._opening
        if stream is not None and stream.opening is not None:
            skipped = min(self._unread[0], len(data))
            content = data[skipped : skipped + self._unread[1]]
            self._unread = self._unread[0] - skipped, self._unread[1] - len(content)
            good = stream.opening.look(content)
            if good < len(content):
                self._up.append(data[: skipped + good])
                self._violated(stream, Deny(None, reasons.REQUEST_MALFORMED, BAD_CONTENT))
            if stream.opening.decided:
                stream.opening = None
        self._up.append(data)

    def _drain(self, stream: int, length: int, ends: bool) -> None:
        """Let a client that was answered already go on for a while; many take a reset for a failed request."""
        left = self._refused.pop(stream, -1)
        if ends:
            self._remember(stream)
        if ends or left < 0:
            return
        if length > left:
            self._inject(rst_stream(stream, NO_ERROR))
            return
        self._refused[stream] = left - length
        if length:
            self._inject(window_update(stream, length))

    def _violated(self, stream: Http2Stream, verdict: Deny, code: int = PROTOCOL_ERROR) -> NoReturn:
        """Rule 3: always raises ``Broken``."""
        stream.verdict = verdict
        raise Broken(code, verdict.hint or verdict.reason)

    def _allowance(self, stream: Http2Stream, size: int) -> None:
        if (refusal := self._beyond(stream, size)) is not None:
            self._violated(stream, refusal, ENHANCE_YOUR_CALM)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """A whole frame that is not DATA."""
        if kind == HEADERS:
            if not stream & 1:
                raise Broken(PROTOCOL_ERROR, "HEADERS on a stream that is not a client's")
            self._parts = 0
            self._block = bytearray(unpadded(flags, payload))
            self._block_of = stream, flags
            self._section_done(flags)
        elif kind == CONTINUATION:
            if self._block is None:
                raise Broken(PROTOCOL_ERROR, "CONTINUATION without HEADERS")
            self._block += payload
            self._parts += 1
            if len(self._block) > LONGEST_HEAD or self._parts > MOST_CONTINUATIONS:
                raise Broken(ENHANCE_YOUR_CALM, "a field section is too large")
            self._section_done(flags)
        elif kind == SETTINGS:
            self._settings(flags, stream, payload)
        elif kind == WINDOW_UPDATE:
            self._grant(stream, payload)
        elif kind == RST_STREAM:
            if len(payload) != 4:
                raise Broken(FRAME_SIZE_ERROR, "RST_STREAM is malformed")
            if stream > self._last or not stream & 1:
                raise Broken(PROTOCOL_ERROR, "RST_STREAM on a stream that was not opened")
            if stream in self._streams:
                self._send(frame(RST_STREAM, 0, stream, payload))
            self._refused.pop(stream, None)
            self._remember(stream)
            known = self._streams.pop(stream, None)
            if known is not None and not known.server_ended:
                self._record(known, error="the client reset the stream")
                if not known.status:
                    self._patience -= 1
                    if self._patience < 0:
                        raise Broken(ENHANCE_YOUR_CALM, "too many streams were reset")
        elif kind == PING:
            if stream:
                raise Broken(PROTOCOL_ERROR, "PING on a stream")
            if len(payload) != 8:
                raise Broken(FRAME_SIZE_ERROR, "PING is malformed")
            if self._alone and not flags & ACK:
                self._inject(frame(PING, ACK, 0, payload))
            self._send(frame(PING, flags & ACK, 0, payload))
        elif kind == GOAWAY:
            if stream:
                raise Broken(PROTOCOL_ERROR, "GOAWAY on a stream")
            if len(payload) < 8:
                raise Broken(FRAME_SIZE_ERROR, "GOAWAY is malformed")
            self._send(frame(GOAWAY, 0, 0, payload[:8]))
        else:
            raise Broken(PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise Broken(PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & ACK and payload) or len(payload) > 64 * 6:
            raise Broken(FRAME_SIZE_ERROR, "SETTINGS is malformed")
        if flags & ACK:
            self._send(frame(SETTINGS, ACK, 0))
            return
        own, wanted = client_settings(payload, first=not self._settled)
        self._settled = True
        self._table = wanted.get(TABLE_SIZE, self._table)
        self._window = wanted.get(INITIAL_WINDOW, self._window)
        self._client_frame = wanted.get(MAX_FRAME, self._client_frame)
        self._send(frame(SETTINGS, 0, 0, own))
        if self._alone:
            self._inject(frame(SETTINGS, ACK, 0))

    def _grant(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Broken(FRAME_SIZE_ERROR, "WINDOW_UPDATE is malformed")
        if stream:
            if stream > self._last:
                raise Broken(PROTOCOL_ERROR, "WINDOW_UPDATE on a stream that was not opened")
            if stream in self._streams:
                self._send(frame(WINDOW_UPDATE, 0, stream, payload))
            return
        size = int.from_bytes(payload, "big") & 0x7FFF_FFFF
        if not size:
            raise Broken(PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        kept = max(0, min(size, RESERVE - self._reserve))
        self._reserve += kept
        if size > kept:
            self._send(window_update(0, size - kept))

    # ------------------------------------------------------------ requests

    def _section_done(self, flags: int) -> None:
        if not flags & END_HEADERS:
            return
        assert self._block is not None
        block, self._block = bytes(self._block), None
        stream, first_flags = self._block_of
        ends = bool(first_flags & END_STREAM)
        try:
            names, values = self._decoder.decode(block)
        except TooLarge as error:
            raise Broken(ENHANCE_YOUR_CALM, str(error)) from None
        except Undecodable as error:
            raise Broken(COMPRESSION_ERROR, str(error)) from None
        if stream > self._last:
            self._last = stream
            self._request(stream, ends, names, values)
        elif stream in self._streams:
            self._trailer(self._streams[stream], ends, names, values)
        elif stream in self._done:
            raise Broken(STREAM_CLOSED, "HEADERS after the end of its stream")
        elif names and names[0][:1] == b":":  # no trailer of what was answered early, but a request
            raise Broken(PROTOCOL_ERROR, "a stream is opened after a later one")
        else:
            self._refused.pop(stream, None)
            if ends:
                self._remember(stream)

    def _request(self, number: int, ends: bool, names: list[bytes], values: list[bytes]) -> None:
        asked = RequestSection()
        try:
            asked.read(names, values, self.gate.bound.scheme.encode(), ends)
        except Flaw as flaw:
            self._refuse(number, self.gate.malformed(str(flaw), asked.method, asked.path), asked, ends)
            return
        self._answers = {}
        self._judge(number, ends, asked)

    def _go_on(self) -> None:
        assert self._asked_about is not None
        number, ends, asked = self._asked_about
        self._asked_about = None
        try:
            self._judge(number, ends, asked)
            self._read_client()
            self._flush()
        except Broken as broken:
            self._go_away(*broken.args)

    def _judge(self, number: int, ends: bool, asked: RequestSection) -> None:
        names, values = asked.names, asked.values
        verdict = self.gate.judge(
            asked.method, asked.path, asked.authority, names, values, body=not ends, answers=self._answers
        )
        if isinstance(verdict, Undecided):
            self._asked_about = number, ends, asked
            self._wait_for(verdict)
            return
        if isinstance(verdict, Refused):
            self._refuse(number, verdict, asked, ends)
            return
        request, target = verdict.request, verdict.target
        if self._alone:
            self._refuse(number, self.gate.unreachable(request, self._alone), asked, ends)
            return
        if len(self._streams) >= MOST_STREAMS:
            limit = Deny(None, reasons.LIMIT_REACHED, f"{MOST_STREAMS} streams at once")
            self._refuse(number, self.gate.refused(request, limit), asked, ends)
            return
        signing: Signing | None = None
        if self._vault is not None:
            signers = self._vault.signers
            found = signers.recognise(names, values) if signers is not None else None
            if isinstance(found, Deny):
                self._refuse(number, self.gate.refused(request, found), asked, ends)
                return
            signing = found
            applied = self._vault.apply(verdict.readings, target, names, values)
            if isinstance(applied, Deny):
                self._refuse(number, self.gate.refused(request, applied), asked, ends)
                return
            target, values = applied
        fields = [
            (b":method", asked.method),
            (b":scheme", asked.scheme),
            (b":authority", verdict.authority),
            (b":path", target),
        ]
        if self._rewrites:
            values = list(map(plainly, names, values))
            fields.append((b"accept-encoding", b"identity"))
        fields += [
            field
            for field in zip(names, values, strict=True)
            if field[0] not in _DROPPED and not (self._rewrites and unasked(field[0]))
        ]
        if signing is not None:
            unsigned = [field for field in fields if field[0][:1] != b":" and field[0] != b"authorization"]
            refusal = signing.prepare(unsigned, 0 if ends else -1)
            if refusal is not None:
                self._refuse(number, self.gate.refused(request, refusal), asked, ends)
                return
            signed = signing.authorization(asked.method, target, verdict.authority, unsigned)
            fields = [*(field for field in fields if field[0] != b"authorization"), (b"authorization", signed)]
        query = verdict.target[len(request.path) :].decode("ascii")
        stream = Http2Stream(number, request, verdict.verdict, query, self._clock(), asked.expected)
        stream.client_ended, stream.grpc = ends, asked.grpc
        stream.opening = None if ends else Opening()
        if self._recorded:
            stream.asked = tuple(zip(names, asked.values, strict=True))
        self._streams[number] = stream
        self._send_section(stream, fields, ends)

    def _trailer(self, stream: Http2Stream, ends: bool, names: list[bytes], values: list[bytes]) -> None:
        if stream.client_ended:
            self._violated(stream, Deny(None, reasons.REQUEST_MALFORMED, BAD_TRAILER), STREAM_CLOSED)
        try:
            check_fields(names, values)
            malformed = not ends or any(map(no_trailer, names))
        except Flaw:
            malformed = True
        if malformed:
            self._violated(stream, Deny(None, reasons.REQUEST_MALFORMED, BAD_TRAILER))
        if stream.expected >= 0 and stream.up != stream.expected:
            self._violated(stream, Deny(None, reasons.REQUEST_MALFORMED, BAD_BODY_LENGTH))
        stream.client_ended = True
        self._send_section(stream, list(zip(names, values, strict=True)), True)
        self._over(stream)

    def _send_section(self, stream: Http2Stream, fields: list[tuple[bytes, bytes]], ends: bool) -> None:
        block = encode(fields)
        if not self._spoke:
            self._spoke = True
            block = NO_TABLE + block
        self._allowance(stream, 9 + len(block))
        self._up += section(stream.number, block, ends)

    # ------------------------------------------------------------ refusing

    def _refuse(self, number: int, refused: Refused, asked: RequestSection, ended: bool) -> None:
        """Answer a request that does not go up."""
        query = asked.path.partition(b"?")[2].decode("latin-1")
        exchange = Exchange(number, refused.request, refused.verdict, query and f"?{query}", self._clock())
        exchange.status = refused.status
        if self._recorded:
            exchange.asked = tuple(zip(asked.names, asked.values, strict=True))
        self._record(exchange, error=refused.verdict.reason if refused.status in UNANSWERED else "")
        self._answer(number, refused, ended, asked.grpc)

    def _go_away(self, code: int, cause: str) -> None:
        """The client broke the protocol."""
        if not self._answer_settled:
            self._answer_settled = True
            self._down.append(frame(SETTINGS, 0, 0))
        if self._at_border():
            self._flush()
            self._down.append(goaway(self._last, code, cause))
        self._end(cause, reset_upstream=True)
