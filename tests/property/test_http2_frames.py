"""HTTP/2 conversations of random frames, both sides at once: how they are cut changes nothing, and both ends can read.

The frames are mostly well-formed and often out of place, which octet-level fuzz seldom reaches.
"""

from __future__ import annotations

import random

import hpack
import pytest
from test_http_properties import fuzz

from membrane.gateway.http import frames as h2
from membrane.gateway.http.credentials import Destination, Secret, Vault
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE
from membrane.gateway.http.frames import frame
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import Bound, Gate
from membrane.gateway.sniff import PREFACE

NAME = "api.example.com"
VALUE, PLACEHOLDER = b"sk-REALREALREAL1", b"sk-FAKEFAKEFAKE2"
LENGTH = 60  # frames of one conversation
Piece = tuple[str, bytes]


class Script:
    """What the two ends say, frame by frame."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.client, self.server = hpack.Encoder(), hpack.Encoder()
        self.last = -1
        self.open: list[int] = []  # the client has not ended
        self.known: list[int] = []  # allowed, as far as the script can tell
        self.answered: list[int] = []

    def pieces(self) -> list[Piece]:
        out = [("client", PREFACE), ("client", frame(h2.SETTINGS, 0, 0)), ("server", frame(h2.SETTINGS, 0, 0))]
        if self.dice.random() < 0.8:
            out.append(("client", frame(h2.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big"))))
        for _ in range(LENGTH):
            out += self.of_client() if self.dice.random() < 0.6 else self.of_server()
        return out

    def stream(self, *likely: list[int]) -> int:
        """Mostly one of ``likely``, at times another that was opened, seldom any."""
        chance = self.dice.random()
        for streams in likely:
            if streams and chance < 0.98:
                return self.dice.choice(streams)
        if self.last < 1 or chance > 0.995:
            return self.dice.randrange(0, 12)
        return self.dice.randrange(1, self.last + 1, 2)

    def ends(self, stream: int, chance: float) -> int:
        """END_STREAM of the client, or not."""
        if self.dice.random() > chance:
            return 0
        if stream in self.open:
            self.open.remove(stream)
        return h2.END_STREAM

    def section(self, side: str, stream: int, block: bytes, flags: int) -> list[Piece]:
        """HEADERS, at times padded, with a priority, or continued."""
        if self.dice.random() < 0.2:
            flags |= h2.PADDED
            block = b"\3" + block + bytes(3)
            if self.dice.random() < 0.02:
                block = b"\xff" + block[1:]
        if self.dice.random() < 0.7 or flags & h2.PADDED:
            return [(side, frame(h2.HEADERS, flags | h2.END_HEADERS, stream, block))]
        cut = self.dice.randrange(len(block))
        return [
            (side, frame(h2.HEADERS, flags, stream, block[:cut])),
            (side, frame(h2.CONTINUATION, h2.END_HEADERS, stream, block[cut:])),
        ]

    def of_client(self) -> list[Piece]:
        dice = self.dice
        kind = dice.choices(("request", "data", "grant", "ping", "reset", "other", "settings", "trailer"),
            (30, 25, 12, 6, 4, 8, 3, 3))[0]  # fmt: skip
        if kind in ("data", "trailer") and not self.open and dice.random() < 0.98:
            kind = "request"
        if self.last < 0 and kind in ("data", "trailer", "reset", "grant"):
            kind = "request"
        if kind == "request":
            self.last += 2
            path = dice.choice([b"/v1/a", b"/v1/a", b"/v1/b?q=1", b"/v1/c", b"/v2", b"/v1/../v2"])
            method = dice.choice([b"POST", b"POST", b"POST", b"GET", b"PUT"])
            fields = [(b":method", method), (b":scheme", b"https"),
                (b":authority", NAME.encode()), (b":path", path)]  # fmt: skip
            more = [(b"content-type", b"application/grpc"), (b"authorization", b"Bearer " + PLACEHOLDER),
                (b"x-odd", b"y" * 40), (b"accept-encoding", b"gzip")]  # fmt: skip
            fields += [field for field in more if dice.random() < 0.15]
            fields += [field for field in [(b"content-length", b"5"), (b"cookie", PLACEHOLDER)] if dice.random() < 0.03]
            self.open.append(self.last)
            if path.startswith((b"/v1/a", b"/v1/b", b"/v1/c")) and method != b"PUT":
                self.known.append(self.last)
            ends = self.ends(self.last, 0.5)
            return self.section("client", self.last, self.client.encode(fields), ends)
        if kind == "trailer":
            stream = self.stream(self.open)
            return self.section("client", stream, self.client.encode([(b"x-sum", b"1")]), self.ends(stream, 0.98))
        if kind == "data":
            stream = self.stream(self.open)
            return [("client", self.data(stream, self.ends(stream, 0.3)))]
        if kind == "grant":
            octets = dice.choice([1, 100, 65535]) if dice.random() < 0.995 else 0
            stream = self.stream() if dice.random() < 0.5 else 0
            return [("client", frame(h2.WINDOW_UPDATE, 0, stream, octets.to_bytes(4, "big")))]
        if kind == "ping":
            return [("client", frame(h2.PING, dice.choice([0, h2.ACK]), 0, bytes(8)))]
        if kind == "reset":
            return [("client", frame(h2.RST_STREAM, 0, self.stream(), bytes(4)))]
        if kind == "settings":
            return [("client", frame(h2.SETTINGS, h2.ACK, 0))]
        unknown = dice.choice([h2.PRIORITY, 0x20, 0xEE])
        return [("client", frame(unknown, 0, self.stream(), bytes(5)))]

    def data(self, stream: int, flags: int) -> bytes:
        content = self.dice.choice([b"", b"hello", VALUE, b"x" * 300, b"half " + VALUE[:9]])
        if self.dice.random() < 0.2:
            return frame(h2.DATA, flags | h2.PADDED, stream, b"\2" + content + bytes(2))
        return frame(h2.DATA, flags, stream, content)

    def of_server(self) -> list[Piece]:
        dice = self.dice
        stream = self.stream(self.known)
        kind = dice.choices(("answer", "data", "grant", "ping", "reset", "other", "goaway"), (30, 30, 8, 4, 4, 5, 1))[0]
        if kind == "answer":
            trailers = stream in self.answered
            fields = [(b"grpc-status", b"0")] if trailers else [(b":status", dice.choice([b"200", b"404", b"100"]))]
            if not trailers:
                fields += [field for field in [(b"x-token", VALUE), (b"content-encoding", b"gzip"), (b"x", b"z" * 20)]
                    if dice.random() < 0.2]  # fmt: skip
                self.answered.append(stream)
            ends = h2.END_STREAM if trailers or dice.random() < 0.2 else 0
            return self.section("server", stream, self.server.encode(fields), ends)
        if kind == "data":
            return [("server", self.data(self.stream(self.answered), h2.END_STREAM if dice.random() < 0.3 else 0))]
        if kind == "grant":
            return [("server", frame(h2.WINDOW_UPDATE, 0, dice.choice([0, stream]), (1000).to_bytes(4, "big")))]
        if kind == "ping":
            return [("server", frame(h2.PING, 0, 0, bytes(8)))]
        if kind == "reset":
            return [("server", frame(h2.RST_STREAM, 0, stream, bytes(4)))]
        if kind == "goaway":
            return [("server", frame(h2.GOAWAY, 0, 0, bytes(8)))]
        return [("server", frame(dice.choice([h2.ALTSVC, h2.ORIGIN, 0x20]), 0, 0, bytes(6)))]


def play(pieces: list[Piece], step: int, secret: bool) -> tuple[bytes, bytes, list[Seen], bool]:
    bound = Bound(NAME, 443, "https")
    held = Secret("KEY", VALUE, PLACEHOLDER, "authorization", [Destination("https", NAME, 443)])
    core = Http2(Gate(bound, fuzz.DECIDE), lambda: 0.0, vault=Vault([held], bound) if secret else None)
    commands = []
    for side, data in pieces:
        feed = core.client_data if side == "client" else core.upstream_data
        for at in range(0, len(data), step):
            commands += feed(data[at : at + step])
    up = b"".join(each.data for each in commands if isinstance(each, SendUpstream))
    down = b"".join(each.data for each in commands if isinstance(each, SendClient))
    return up, down, [each for each in commands if isinstance(each, Seen)], core.closed


def read_by_client(down: bytes) -> None:
    """Whole frames, and field sections that one decoder can read from the first to the last."""
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    decoder.max_allowed_table_size = LARGEST_TABLE
    at, block = 0, b""
    while at + 9 <= len(down):
        length, kind, flags = int.from_bytes(down[at : at + 3], "big"), down[at + 3], down[at + 4]
        payload = down[at + 9 : at + 9 + length]
        at += 9 + length
        assert len(payload) == length, "the last frame is cut"
        assert kind not in (h2.ALTSVC, h2.ORIGIN)
        if kind in (h2.HEADERS, h2.CONTINUATION):
            if kind == h2.HEADERS and flags & h2.PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            block = payload if kind == h2.HEADERS else block + payload
            if flags & h2.END_HEADERS:
                decoder.decode(block, raw=True)
    assert at == len(down)


@pytest.mark.parametrize("secret", [False, True], ids=["plain", "with a secret"])
@pytest.mark.parametrize("first", range(0, 90, 15))
def test_conversations_of_frames(first: int, secret: bool) -> None:
    opened = refused = answered = 0
    for seed in range(first, first + 15):
        pieces = Script(seed).pieces()
        up, down, seen, closed = whole = play(pieces, 1 << 20, secret)
        for step in (1, 7):
            cut = play(pieces, step, secret)
            assert (cut[0], cut[2], cut[3]) == (whole[0], whole[2], whole[3]), (seed, step)
            if not closed:  # else what the last read held is not granted again
                assert fuzz.without_grants(cut[1]) == fuzz.without_grants(down), (seed, step)
        fuzz.check_frames(up)
        if not closed:
            read_by_client(down)
        numbers = [each.number for each in seen]
        assert len(numbers) == len(set(numbers)), (seed, numbers)
        if secret:
            assert VALUE not in down, seed
        opened += len(seen)
        refused += sum(each.status in (400, 403) for each in seen)
        answered += sum(each.status in (200, 404) for each in seen)
    assert opened > 40 and refused > 15 and answered > 5, (opened, refused, answered)
