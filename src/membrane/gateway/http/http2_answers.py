"""HTTP/2: what the server says, and what we say in its place.

Theory of operation
-------------------
The half of ``http2`` that writes to the client.  The server's frames pass as they come; its field sections are
decoded for the status, but only with secrets are they, and its content, written anew.  Our own answers wait for the
border of a frame, so they never come within one or within a field section.
"""

from __future__ import annotations

from .credentials import legible
from .exchange import Core, Exchange
from .fields import NO_TABLE, FieldDecoder, Undecodable, encode
from .frames import (
    ACK,
    ALTSVC,
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    LARGEST_HELD,
    MAX_FRAME,
    NO_ERROR,
    ORIGIN,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    SMALLEST_FRAME,
    WINDOW_UPDATE,
    Broken,
    answer_frames,
    contents,
    frame,
    goaway,
    head,
    rst_stream,
    section,
    server_settings,
    unpadded,
    window_update,
)
from .requests import DRAINED, MOST_FIELDS, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...policy.model import HttpRequest, Verdict
    from .bodies import Opening
    from .credentials import Vault
    from .exchange import Command, Spend
    from .requests import Gate
    from .spellings import Scrubber

PATIENCE = 256  # streams that may be reset before they were answered, beyond those that were answered
MOST_STREAMS = 4096  # open at once
MOST_WAITING = 65536  # bytes for the client that wait for the border of a frame
_CODED = "the server's answer is encoded, so a secret in it could not be seen"


class Http2Stream(Exchange):
    """A request that the server knows."""

    __slots__ = ("client_ended", "expected", "grpc", "opening", "scrubber", "server_ended")

    def __init__(
        self, number: int, request: HttpRequest, verdict: Verdict, query: str, started: float, expected: int
    ) -> None:
        super().__init__(number, request, verdict, query, started)
        self.expected = expected  # bytes of content that were announced, or -1
        self.client_ended = self.server_ended = self.grpc = False
        self.scrubber: Scrubber | None = None
        self.opening: Opening | None = None  # of the content, as long as that may begin like a request


class AnswerSide(Core):
    """The half of ``http2.Http2`` that faces the server: streams, what the server sends, answers of our own.

    See ``exchange.Core`` for the arguments.
    """

    protocol = "h2"

    def __init__(
        self,
        gate: Gate,
        clock: Callable[[], float],
        *,
        vault: Vault | None = None,
        spend: Spend | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__(gate, clock, vault=vault, spend=spend, recorded=recorded)
        self._rewrites = vault is not None and vault.scrubs
        self._streams: dict[int, Http2Stream] = {}
        self._refused: dict[int, int] = {}  # answered while the client still sends: bytes that it may send
        self._done: dict[int, None] = {}  # the last streams that the client itself has ended
        self._last = 0  # the highest stream of the client
        self._patience = PATIENCE
        self._alone = ""  # why there is no server: answers are our own
        self._settled = False  # the client's first SETTINGS have come
        self._left = 0  # bytes of the client's running frame that are passed on, or dropped
        self._forwarding = False
        self._largest = SMALLEST_FRAME  # what the server takes
        self._for_server: list[bytes] = []  # waits for the border of a frame
        self._answer_in = bytearray()
        self._answer_settled = False
        self._answer_left = 0
        self._answer_forwarding = False
        self._answer_decoder: FieldDecoder | None = FieldDecoder(LARGEST_HELD, 4 * MOST_FIELDS)
        self._answer_block: bytearray | None = None
        self._answer_block_of = (0, 0)
        self._answered = False  # a field section was sent down
        self._table = -1  # the dynamic table that the client wants, if it is not the default
        self._window = 65535  # of a new stream, towards the client
        self._client_frame = SMALLEST_FRAME  # what the client takes
        self._reserve = 0
        self._credit = 0  # bytes that were dropped and are to be granted again
        self._for_client: list[bytes] = []
        self._waiting_bytes = 0

    def upstream_data(self, data: bytes) -> list[Command]:
        """The server has sent ``data``."""
        if self.closed or self._alone:
            return []
        try:
            if self._answer_left >= len(data) and not self._answer_in:
                self._answer_left -= len(data)
                if self._answer_forwarding:
                    self._down.append(data)
            else:
                self._answer_in += data
                self._read_server()
            self._flush()
        except Broken as broken:
            self._fail(str(broken.args[1]))
        return self._take()

    def upstream_eof(self, cause: str = "") -> list[Command]:
        """The server is gone."""
        if not self.closed and not self._alone:
            self._fail(cause or "the server closed the connection")
        return self._take()

    def _answer(self, number: int, refused: Refused, ended: bool, grpc: bool) -> None:
        room = min(self._reserve, self._window)
        # What an encoder has to say first: here always with secrets, else when the client wants a table of nothing.
        first = not self._answered and (self._rewrites or self._table == 0)
        self._answered = self._answered or self._rewrites
        out, used = answer_frames(number, refused, grpc=grpc, room=room, first=first)
        self._reserve -= used
        if not ended and len(self._refused) < MOST_STREAMS:
            self._refused[number] = DRAINED
        elif not ended:
            out += rst_stream(number, NO_ERROR)
        else:
            self._remember(number)
        self._inject(out)

    def _inject(self, data: bytes) -> None:
        """Write frames of our own to the client, at the next border of a frame."""
        self._for_client.append(data)
        self._waiting_bytes += len(data)
        self._flush()
        if self._waiting_bytes > 4 * MOST_WAITING:
            raise Broken(ENHANCE_YOUR_CALM, "too many requests before the first answer")

    def _flush(self) -> None:
        if (self._for_client or self._credit) and self._at_border():
            self._down += self._for_client
            self._for_client.clear()
            self._waiting_bytes = 0
            if self._credit:
                self._down.append(window_update(0, self._credit))
                self._credit = 0

    def _at_border(self) -> bool:
        return self._answer_settled and not self._answer_left and self._answer_block is None

    def _inject_upstream(self, data: bytes) -> None:
        self._for_server.append(data)
        self._flush_upstream()

    def _flush_upstream(self) -> None:
        if self._for_server and self._settled and not (self._left and self._forwarding):
            self._up += self._for_server
            self._for_server.clear()

    def _over(self, stream: Http2Stream) -> None:
        if stream.client_ended and stream.server_ended:
            self._streams.pop(stream.number, None)
            self._remember(stream.number)

    def _remember(self, number: int) -> None:
        """The client has ended a stream, and may not go on with it (RFC 9113 section 5.1, closed)."""
        if len(self._done) >= MOST_STREAMS:
            del self._done[next(iter(self._done))]
        self._done[number] = None

    def _server_done(self, stream: Http2Stream) -> None:
        """The server's side of a stream has ended well."""
        stream.server_ended = True
        self._patience = min(PATIENCE, self._patience + 1)
        self._record(stream)
        self._over(stream)

    def _fail(self, cause: str, *, late: bool = False) -> None:
        """The server is gone, broke the protocol, or is late: say so where it has not answered."""
        at_border = self._at_border()
        if at_border:
            for stream in self._streams.values():
                if not stream.status and not stream.server_ended:
                    refused = self.gate.unreachable(stream.request, cause, late=late)
                    stream.status = refused.status
                    self._answer(stream.number, refused, stream.client_ended, stream.grpc)
            self._flush()
            self._down.append(goaway(self._last, NO_ERROR))
        self._end(cause, reset=not at_border, reset_upstream=True)

    def _end(self, error: str, *, reset: bool = False, reset_upstream: bool = False) -> None:
        for stream in self._streams.values():
            if not stream.server_ended:
                self._record(stream, error=error)
        self._streams.clear()
        self._close(reset=reset, reset_upstream=reset_upstream)

    # ------------------------------------------------------------ server to client

    def _read_server(self) -> None:
        data = self._answer_in
        at, size = 0, len(data)
        while True:
            if self._answer_left:
                count = min(self._answer_left, size - at)
                if count and self._answer_forwarding:
                    self._down.append(bytes(data[at : at + count]))
                at += count
                self._answer_left -= count
                if self._answer_left:
                    break
            self._flush()
            if size - at < 9:
                break
            length, kind, flags, stream = head(data, at)
            if not self._answer_settled and (kind != SETTINGS or flags & ACK):
                raise Broken(PROTOCOL_ERROR, "the server does not speak HTTP/2")
            if self._answer_block is not None and (kind != CONTINUATION or stream != self._answer_block_of[0]):
                raise Broken(PROTOCOL_ERROR, "the server interrupted a field section")
            if kind == DATA and not self._rewrites:
                self._down.append(bytes(data[at : at + 9]))
                at += 9
                self._answer_left, self._answer_forwarding = length, True
                self._answer_content(flags, stream, length)
                continue
            if kind > CONTINUATION or kind in (PING, WINDOW_UPDATE, PRIORITY):
                # ALTSVC and ORIGIN would send the client to where nothing is decided.
                self._answer_forwarding = kind not in (ALTSVC, ORIGIN)
                if self._answer_forwarding:
                    self._down.append(bytes(data[at : at + 9]))
                self._answer_left = length
                at += 9
                continue
            if size - at < 9 + length:
                if length > LARGEST_HELD:
                    raise Broken(FRAME_SIZE_ERROR, "the server sent a frame that is too large")
                break
            whole = bytes(data[at : at + 9 + length])
            at += 9 + length
            self._answer_frame(kind, flags, stream, whole)
        del data[:at]

    def _answer_content(self, flags: int, stream: int, length: int) -> None:
        known = self._streams.get(stream)
        if known is not None:
            known.down += length
            if flags & END_STREAM and not known.server_ended:
                self._server_done(known)

    def _answer_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> None:
        """A whole frame of the server."""
        payload = whole[9:]
        if kind in (HEADERS, CONTINUATION):
            if kind == HEADERS:
                self._answer_block = bytearray(unpadded(flags, payload))
                self._answer_block_of = stream, flags
            elif self._answer_block is None:
                raise Broken(PROTOCOL_ERROR, "the server continued nothing")
            else:
                self._answer_block += payload
                if len(self._answer_block) > LARGEST_HELD:
                    raise Broken(ENHANCE_YOUR_CALM, "the server sent a field section that is too large")
            if not self._rewrites:
                self._down.append(whole)
            if flags & END_HEADERS:
                self._answered_section()
        elif kind == DATA:
            self._scrubbed_content(flags, stream, payload)
        elif kind == SETTINGS:
            self._down.append(self._server_settings(flags, stream, payload))
        elif kind == RST_STREAM:
            known = self._streams.pop(stream, None)
            if known is not None and not known.server_ended:
                self._record(known, error="the server reset the stream")
            if known is not None or not self._rewrites:
                self._down.append(whole)
        elif kind == GOAWAY:
            self._down.append(whole)
        else:
            raise Broken(PROTOCOL_ERROR, "the server pushes although that is switched off")

    def _server_settings(self, flags: int, stream: int, payload: bytes) -> bytes:
        """The frame as the client gets it: a table that we can hold, and no tunnels."""
        if stream or len(payload) % 6:
            raise Broken(FRAME_SIZE_ERROR, "the server's SETTINGS is malformed")
        if flags & ACK:
            return frame(SETTINGS, ACK, 0)
        self._answer_settled = True
        own, said = server_settings(payload)
        self._largest = said.get(MAX_FRAME, self._largest)
        return frame(SETTINGS, 0, 0, own)

    def _answered_section(self) -> None:
        """A field section of the server is complete."""
        assert self._answer_block is not None
        block, self._answer_block = bytes(self._answer_block), None
        stream, flags = self._answer_block_of
        names: list[bytes] = []
        values: list[bytes] = []
        if self._answer_decoder is not None:
            try:
                names, values = self._answer_decoder.decode(block)
            except Undecodable:
                if self._rewrites:
                    raise Broken(COMPRESSION_ERROR, "the server's answer is malformed") from None
                self._answer_decoder = None  # the client judges for itself; only the status is not known
        known = self._streams.get(stream)
        if known is not None and not known.status and names[:1] == [b":status"]:
            status = values[0]
            if status.isdigit() and len(status) == 3 and status >= b"200":
                known.status = int(status)
                if self._recorded and not self._rewrites:
                    known.answered = tuple(zip(names[1:], values[1:], strict=True))
        ends = bool(flags & END_STREAM)
        if self._rewrites:
            if known is None:
                return
            if not self._rewrite_section(known, ends, names, values):
                return
        self._answered = True
        if ends and known is not None and not known.server_ended:
            self._server_done(known)

    # ------------------------------------------------------------ with secrets

    def _rewrite_section(self, stream: Http2Stream, ends: bool, names: list[bytes], values: list[bytes]) -> bool:
        """Scrub a field section of the server; false when the answer was replaced by our own."""
        assert self._vault is not None
        if stream.scrubber is None:
            stream.scrubber = self._vault.scrubber()
        scrubber = stream.scrubber
        assert scrubber is not None
        fields = [
            (scrubber.whole(name), scrubber.whole(value))
            for name, value in zip(names, values, strict=True)
            if name != b"alt-svc"
        ]
        coded = not all(legible(name, value) for name, value in fields)
        if coded and not ends:
            stream.status = 502
            self._record(stream, error=_CODED)
            self._streams.pop(stream.number)
            self._inject_upstream(rst_stream(stream.number, CANCEL))
            self._answer(stream.number, self.gate.unreachable(stream.request, _CODED), stream.client_ended, stream.grpc)
            return False
        if self._recorded and not stream.answered:
            stream.answered = fields[1:]
        held = scrubber.flush() if names[:1] != [b":status"] else b""
        if held:
            self._down += contents(stream.number, held, 0, self._client_frame)
        block = encode(fields)
        if not self._answered:
            block = NO_TABLE + block
        self._down += section(stream.number, block, ends)
        return True

    def _scrubbed_content(self, flags: int, number: int, payload: bytes) -> None:
        """A whole DATA frame of the server, of which nothing unseen may go on."""
        stream = self._streams.get(number)
        content = payload
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise Broken(PROTOCOL_ERROR, "the server's padding is longer than its frame")
            content = payload[1 : len(payload) - payload[0]]
        # The client never sees what is dropped here, so it does not grant it again.
        dropped = len(payload) if stream is None else len(payload) - len(content)
        if dropped:
            self._inject_upstream(window_update(0, dropped))
            if stream is not None and not flags & END_STREAM:
                self._inject_upstream(window_update(number, dropped))
        if stream is None:
            return
        if stream.scrubber is None:
            raise Broken(PROTOCOL_ERROR, "the server sent content before its answer")
        stream.down += len(content)
        out = stream.scrubber.feed(content)
        ends = flags & END_STREAM
        if ends:
            out += stream.scrubber.flush()
        if out or ends:
            self._down += contents(number, out, ends, self._client_frame)
        if ends and not stream.server_ended:
            self._server_done(stream)
