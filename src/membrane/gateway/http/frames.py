"""HTTP/2 frames and field sections, piece by piece: how they are written, and what is well-formed.

References: RFC 9113 sections 4.1, 6, 8.2, 8.3.
"""

from __future__ import annotations

from .fields import LARGEST_TABLE, NO_TABLE, encode
from .overrides import as_variable
from .requests import (
    BAD_BODY_LENGTH,
    BAD_FIELD,
    BAD_PSEUDO,
    BAD_SCHEME,
    CONNECTION_FIELD,
    FRAMING,
    NO_AUTHORITY,
    OTHER_AUTHORITY,
    TOKEN,
    VALUE,
    Flaw,
    answer,
    content_length,
    grpc_answer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .requests import Refused

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ALTSVC, ORIGIN = 10, 12
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, CANCEL = 0, 1, 3, 5, 6, 8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME, CONNECT_PROTOCOL = 1, 2, 4, 5, 8

SMALLEST_FRAME = 16384  # bytes of a frame that every peer takes (RFC 9113 section 4.2)
LARGEST_WINDOW = (1 << 31) - 1  # bytes (RFC 9113 section 6.9.1)
LARGEST_HELD = 262144  # bytes of a frame that has to be whole before it goes on
_NAME = bytes(byte for byte in TOKEN if not 0x41 <= byte <= 0x5A)
_PSEUDO = frozenset([b":method", b":scheme", b":authority", b":path"])
_HOPS = frozenset([b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"])
_valid_names: set[bytes] = set()


def header(length: int, kind: int, flags: int, stream: int) -> bytes:
    """What a frame begins with (RFC 9113 section 4.1)."""
    return b"%b%c%c%b" % (length.to_bytes(3, "big"), kind, flags, stream.to_bytes(4, "big"))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return header(len(payload), kind, flags, stream) + payload


def window_update(stream: int, size: int) -> bytes:
    """A grant (RFC 9113 section 6.9)."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def head(data: bytes | bytearray, at: int) -> tuple[int, int, int, int]:
    """(length, type, flags, stream) of the frame whose nine bytes of head are at ``at`` (RFC 9113 section 4.1)."""
    stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFF_FFFF
    return data[at] << 16 | data[at + 1] << 8 | data[at + 2], data[at + 3], data[at + 4], stream


def rst_stream(stream: int, code: int) -> bytes:
    """The end of a stream (RFC 9113 section 6.4)."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: int, detail: str = "") -> bytes:
    """The end of a connection (RFC 9113 section 6.8)."""
    shown = detail.encode("ascii", "replace")[:256]
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + shown)


class Broken(Exception):
    """A peer broke the protocol: ``args`` are the error code and the cause."""


# ---------------------------------------------------------------- parts of frames


def setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


def _settings(payload: bytes) -> list[tuple[int, int]]:
    return [
        (int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big"))
        for at in range(0, len(payload), 6)
    ]


def client_settings(payload: bytes, *, first: bool) -> tuple[bytes, dict[int, int]]:
    """The payload of a client's SETTINGS as the server gets it, and what it says.

    No push (its field sections would come unseen), and no table or frame larger than we hold.

    Raises:
        Broken: an impossible value.
    """
    out = [setting(ENABLE_PUSH, 0)] if first else []
    said = {}
    for name, value in _settings(payload):
        if name == ENABLE_PUSH:
            if value > 1:
                raise Broken(PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is out of range")
            continue
        if name == TABLE_SIZE:
            value = min(value, LARGEST_TABLE)
        elif name == INITIAL_WINDOW:
            if value > LARGEST_WINDOW:
                raise Broken(FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is out of range")
        elif name == MAX_FRAME:
            if not SMALLEST_FRAME <= value < 1 << 24:
                raise Broken(PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
            value = min(value, LARGEST_HELD)
        said[name] = value
        out.append(setting(name, value))
    return b"".join(out), said


def server_settings(payload: bytes) -> tuple[bytes, dict[int, int]]:
    """The payload of a server's SETTINGS as the client gets it, and what it says: no tunnels, no larger table."""
    out = []
    said = {}
    for name, value in _settings(payload):
        if name == TABLE_SIZE:
            value = min(value, LARGEST_TABLE)
        elif name == CONNECT_PROTOCOL:
            value = 0
        elif name == MAX_FRAME:
            value = max(SMALLEST_FRAME, value)
        said[name] = value
        out.append(setting(name, value))
    return b"".join(out), said


def answer_frames(stream: int, refused: Refused, *, grpc: bool, room: int, first: bool) -> tuple[bytes, int]:
    """Our own answer to a request, and how many bytes of content it has.

    Args:
        room: bytes of content that the windows admit; an answer with more has its reason in a field instead.
        first: it is the first field section towards this client.
    """
    status, body = b"200", b""
    if grpc:
        fields = grpc_answer(refused)
    else:
        status = b"%d" % refused.status
        fields, body = answer(refused)
        if refused.request.method == "HEAD":
            body = b""
        elif len(body) > min(room, SMALLEST_FRAME):
            body = b""
            fields = [field for field in fields if field[0] != b"content-length"]
            for name, text in (
                (b"x-membrane-reason", refused.verdict.reason),
                (b"x-membrane-hint", refused.verdict.hint),
            ):
                if text:
                    shown = text.encode("ascii", "replace")[:512]
                    fields.append((name, bytes(byte for byte in shown if 0x20 <= byte < 0x7F).strip()))
    block = (NO_TABLE if first else b"") + encode([(b":status", status), *fields])
    out = section(stream, block, not body)
    if body:
        out.append(frame(DATA, END_STREAM, stream, body))
    return b"".join(out), len(body)


def unpadded(flags: int, payload: bytes) -> bytes:
    """The field block fragment of a HEADERS frame."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Broken(FRAME_SIZE_ERROR, "padding is longer than its frame")
        start, end = 1, end - payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start > end:
        raise Broken(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[start:end]


def section(stream: int, block: bytes, ends: bool) -> list[bytes]:
    """HEADERS and CONTINUATION frames of a block."""
    if len(block) <= SMALLEST_FRAME:
        return [frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, block)]
    parts = [block[at : at + SMALLEST_FRAME] for at in range(0, len(block), SMALLEST_FRAME)]
    last = len(parts) - 1
    out = [frame(HEADERS, END_STREAM if ends else 0, stream, parts[0])]
    out += [
        frame(CONTINUATION, END_HEADERS if index == last else 0, stream, part)
        for index, part in enumerate(parts[1:], 1)
    ]
    return out


def contents(stream: int, content: bytes, flags: int, largest: int) -> list[bytes]:
    """DATA frames of a content."""
    parts = [content[at : at + largest] for at in range(0, len(content), largest)] or [b""]
    out = [frame(DATA, 0, stream, part) for part in parts[:-1]]
    out.append(frame(DATA, flags, stream, parts[-1]))
    return out


class RequestSection:
    """The field section of a request, taken apart."""

    __slots__ = ("authority", "expected", "grpc", "method", "names", "path", "scheme", "values")

    def __init__(self) -> None:
        self.method = self.path = self.scheme = self.authority = b""
        self.names: list[bytes] = []  # of the regular fields
        self.values: list[bytes] = []
        self.expected = -1  # bytes of content that are announced, or -1
        self.grpc = False

    def read(self, names: list[bytes], values: list[bytes], scheme: bytes, ends: bool) -> None:
        """Take a decoded section apart.

        Args:
            scheme: of the connection.
            ends: no content follows.

        Raises:
            Flaw: it is malformed (RFC 9113 sections 8.2 and 8.3); what could be read is there.
        """
        pseudo: dict[bytes, bytes] = {}
        count = 0
        for name, value in zip(names, values, strict=True):
            if name[:1] != b":":
                break
            if name not in _PSEUDO or name in pseudo or value.translate(None, VALUE):
                raise Flaw(BAD_PSEUDO)
            pseudo[name] = value
            count += 1
        self.method, self.path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        self.scheme = pseudo.get(b":scheme", b"")
        self.authority = pseudo.get(b":authority", b"")
        self.names, self.values = names, values = names[count:], values[count:]
        if b"content-type" in names:
            self.grpc = values[names.index(b"content-type")].startswith(b"application/grpc")
        check_fields(names, values)
        if b"host" in names:
            host = values[names.index(b"host")]
            if names.count(b"host") > 1:
                raise Flaw(NO_AUTHORITY)
            if self.authority and self.authority.lower() != host.lower():
                raise Flaw(OTHER_AUTHORITY)
            self.authority = host
        if self.method != b"CONNECT":  # has neither scheme nor path, and is refused for what it is
            if not self.method or not self.scheme or not self.path:
                raise Flaw(BAD_PSEUDO)
            if self.scheme != scheme:
                raise Flaw(BAD_SCHEME)
        if not self.authority:
            raise Flaw(NO_AUTHORITY)
        if b"content-length" in names:
            lengths = [value for name, value in zip(names, values, strict=True) if name == b"content-length"]
            self.expected = content_length(lengths)
            if ends and self.expected > 0:
                raise Flaw(BAD_BODY_LENGTH)


def check_fields(names: list[bytes], values: list[bytes]) -> None:
    """Names and values of regular fields (RFC 9113 section 8.2).

    Raises:
        Flaw: one is malformed, or belongs to HTTP/1.1.
    """
    for name, value in zip(names, values, strict=True):
        if name not in _valid_names:
            if name[:1] == b":":
                raise Flaw(BAD_PSEUDO)
            if not name or name.translate(None, _NAME):
                raise Flaw(BAD_FIELD)
            if name in _HOPS:
                raise Flaw(CONNECTION_FIELD)
            if name not in FRAMING and as_variable(name) in FRAMING:
                raise Flaw(BAD_FIELD)
            if len(_valid_names) < 1024 and len(name) <= 64:
                _valid_names.add(name)
        if value.translate(None, VALUE) or value != value.strip(b" \t"):
            raise Flaw(BAD_FIELD)
        if name == b"te" and value != b"trailers":
            raise Flaw(CONNECTION_FIELD)
