"""The frames of a WebSocket, one direction at a time (RFC 6455 section 5).

Theory of operation
-------------------
After a 101 the two ends may say anything for ever, so what they say is held to the protocol that they asked for: each
byte belongs to a frame whose header was read and found in order before it goes on.  ``feed`` returns how much of what
came may go on; the bytes of a header wait until it is complete (14 at most), those of a payload never do.  Payloads
are not looked at: neither unmasked nor kept.

What is checked: masked exactly towards the server; known opcodes; control frames short and whole; continuation only
within a message, and no other data frame there; the first reserved bit only on the first frame of a message and only
where permessage-deflate was agreed on (RFC 7692 section 6); lengths in their shortest form and at most ``LONGEST``
(larger ones would be a raw tunnel with one header); nothing after a close frame.
"""

from __future__ import annotations

LONGEST = 1 << 28  # bytes of a frame; messages may have any number of frames
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_LONGEST_CONTROL = 125
PROTOCOL_ERROR = 1002  # RFC 6455 section 7.4.1


class BadFrame(Exception):
    """A frame breaks the protocol; ``args[0]`` says how."""


def close_frame(code: int = PROTOCOL_ERROR, *, masked: bool) -> bytes:
    """A close frame with a status code and no text; with ``masked`` as a client sends it, by a key of zeros."""
    content = code.to_bytes(2, "big")
    return bytes((0x80 | _CLOSE, 0x80 | 2)) + bytes(4) + content if masked else bytes((0x80 | _CLOSE, 2)) + content


class Frames:
    """One direction.

    Args:
        masked: it is the client's.
        deflate: permessage-deflate was agreed on.
    """

    __slots__ = ("_closed", "_deflate", "_head", "_left", "_masked", "_within")

    def __init__(self, *, masked: bool, deflate: bool) -> None:
        self._masked, self._deflate = masked, deflate
        self._head = bytearray()  # of the next frame, while it is not complete
        self._left = 0  # bytes of the payload that are to come
        self._within = False  # a message that is not finished
        self._closed = False

    @property
    def between(self) -> bool:
        """Is everything that went on a number of whole frames?"""
        return not self._left

    @property
    def closed(self) -> bool:
        """Has a close frame gone on?"""
        return self._closed

    def feed(self, data: bytes) -> tuple[bytes, str]:
        """What may go on of ``data`` and what came before; then why nothing more may, or nothing."""
        out: list[bytes] = []
        at, end = 0, len(data)
        view = memoryview(data)
        while at < end:
            if self._left:
                part = min(self._left, end - at)
                out.append(data if part == end else bytes(view[at : at + part]))
                self._left -= part
                at += part
                continue
            head = self._head
            head.append(data[at])
            at += 1
            if len(head) < 2:
                continue
            try:
                if self._complete(head):
                    out.append(bytes(head))
                    head.clear()
            except BadFrame as flaw:
                return b"".join(out), str(flaw)
        return b"".join(out), ""

    def _complete(self, head: bytearray) -> bool:
        """Read the header if it is all there.

        Raises:
            BadFrame: it is not in order.
        """
        first, second = head[0], head[1]
        opcode, short = first & 15, second & 127
        if len(head) == 2:
            self._check(first >= 128, first & 0x70, opcode, second >= 128, short)
        extended = 2 if short == 126 else 8 if short == 127 else 0
        if len(head) < 2 + extended + (4 if self._masked else 0):
            if len(head) == 2 + extended and extended:
                self._length(head, extended)
            return False
        self._left = self._length(head, extended) if extended else short
        if opcode == _CLOSE:
            self._closed = True
        elif opcode < _CLOSE:
            self._within = first < 128
        return True

    def _check(self, final: bool, reserved: int, opcode: int, masked: bool, short: int) -> None:
        if self._closed:
            raise BadFrame("a frame follows a close frame")
        if masked is not self._masked:
            raise BadFrame("a client's frame is not masked" if self._masked else "a server's frame is masked")
        if opcode not in (_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise BadFrame("a frame has an unknown opcode")
        if reserved and not (reserved == 0x40 and self._deflate and opcode in (_TEXT, _BINARY)):
            raise BadFrame("a frame has a reserved bit that no extension gives a meaning")
        if opcode >= _CLOSE:
            if not final or short > _LONGEST_CONTROL:
                raise BadFrame("a control frame is fragmented or too long")
            if opcode == _CLOSE and short == 1:
                raise BadFrame("a close frame has half a status code")
        elif (opcode == _CONTINUATION) is not self._within:
            raise BadFrame("a message begins within another one" if self._within else "a frame continues no message")

    @staticmethod
    def _length(head: bytearray, extended: int) -> int:
        length = int.from_bytes(head[2 : 2 + extended], "big")
        if length < (126 if extended == 2 else 65536):
            raise BadFrame("a frame's length is not in its shortest form")
        if length > LONGEST:
            raise BadFrame("a frame is too long")
        return length


def agreed_on_deflate(offered: list[bytes], agreed: list[bytes]) -> bool | None:
    """Is permessage-deflate in use?  ``None``: the server agreed to something else, or to what was not offered.

    Args:
        offered, agreed: the values of ``Sec-WebSocket-Extensions`` as they went up, and in the answer.
    """
    names = _extensions(agreed)
    if not names:
        return False
    return True if names == [b"permessage-deflate"] and b"permessage-deflate" in _extensions(offered) else None


def _extensions(values: list[bytes]) -> list[bytes]:
    """Names in a list of extensions; a quoted comma (no extension has one) would make two, and then none is known."""
    return [each.partition(b";")[0].strip().lower() for each in b",".join(values).split(b",") if each.strip()]
