"""Fuzz of the HTTP cores.  Run as a program: ``fuzz_http.py [SECONDS [SEED]]``.

The invariants, for any bytes from a client and any way to cut them:

1. Cut into single bytes they have the same effect as whole: the same bytes up and down, the same events.
2. What goes up is well-formed, and holds only requests that the policy allows, in canonical form.  For HTTP/1.1 the
   judge is h11, for HTTP/2 the decoder of ``hpack``.
3. Nothing is raised, and a connection that is closed stays silent.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import hpack

from membrane.gateway.http import frames as h2
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE
from membrane.gateway.http.frames import frame
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import Bound, Gate
from membrane.gateway.sniff import PREFACE
from membrane.policy.decide import Decider
from membrane.policy.model import HostRule, HttpRule, Origin, Policy, PortRange
from membrane.policy.url_paths import canonical_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from membrane.gateway.http.exchange import Command

CORPUS = Path(__file__).parent / "corpus" / "http"
NAME = "api.example.com"
METHODS = ("GET", "HEAD", "POST")
RULE = HostRule(
    "r",
    Origin("command line", "-a"),
    "host",
    NAME,
    None,
    (PortRange("tcp", 443, 443),),
    "https",
    (HttpRule(METHODS, ("/v1",)),),
    inspect=True,
)
DECIDE = Decider(Policy(allow=(RULE,))).decide
INTERESTING = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"%2e", b"%2f", b"..", b"//", b"#", b"?", b"\xff",
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Host: evil.example\r\n", b"GET /admin HTTP/1.1\r\n",
    b"\r\n\r\n", b"HTTP/1.0", b"Connection: close, x\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n",
    b"X-HTTP-Method-Override: PUT\r\n",
)  # fmt: skip

Effect = tuple[bytes, bytes, list[tuple[Any, ...]], bool]


def core_for(data: bytes) -> Http1 | Http2:
    gate = Gate(Bound(NAME, 443, "https"), DECIDE)
    if data.startswith(PREFACE[:3]):
        core: Http1 | Http2 = Http2(gate, lambda: 0.0)
        core.upstream_data(frame(h2.SETTINGS, 0, 0))
        return core
    return Http1(gate, lambda: 0.0, connected=True)


def effect(data: bytes, cuts: Iterator[int] | None = None) -> Effect:
    """What a client that sends ``data`` brings about, as far as a server has not answered."""
    core = core_for(data)
    commands: list[Command] = []
    at = 0
    for cut in cuts or iter((len(data),)):
        commands += core.client_data(data[at:cut])
        at = cut
    up = b"".join(each.data for each in commands if isinstance(each, SendUpstream))
    down = b"".join(each.data for each in commands if isinstance(each, SendClient))
    if core.closed:
        assert core.client_data(b"GET /v1 HTTP/1.1\r\n") == core.upstream_data(b"x") == core.upstream_eof() == []
    seen = [
        (each.number, each.request, each.status, each.bytes_up, each.verdict.reason, each.error)
        for each in commands
        if isinstance(each, Seen)
    ]
    return up, down, seen, core.closed


def without_grants(down: bytes) -> bytes:
    """Frames for an HTTP/2 client, the window grants summed up at the end: their grouping depends on the cuts."""
    out, granted, at = [], 0, 0
    while at < len(down):
        length = int.from_bytes(down[at : at + 3], "big")
        whole = down[at : at + 9 + length]
        at += 9 + length
        if whole[3] == h2.WINDOW_UPDATE:
            granted += int.from_bytes(whole[9:], "big")
        else:
            out.append(whole)
    return b"".join(out) + granted.to_bytes(8, "big")


def check(data: bytes) -> None:
    """All three invariants for one input."""
    up, down, seen, closed = effect(data)
    single = effect(data, iter(range(1, len(data) + 1)))
    if data.startswith(PREFACE[:3]):
        # What is dropped is granted again unless the connection has ended by then.
        if not closed:
            assert (up, without_grants(down), seen, closed) == (single[0], without_grants(single[1]), *single[2:])
        else:
            assert (up, seen, closed) == (single[0], *single[2:])
        check_frames(up)
    else:
        assert (up, down, seen, closed) == single
        check_requests(up, closed)


def check_requests(up: bytes, closed: bool) -> None:
    """One request at most goes up before an answer, and h11 reads it as we do."""
    if not up:
        return
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)
    reader.receive_data(up)
    request = reader.next_event()
    assert type(request) is h11.Request
    target = request.target.decode("ascii")
    path = target.partition("?")[0]
    assert request.method.decode() in METHODS and request.http_version == b"1.1"
    assert canonical_path(path) == path and (path == "/v1" or path.startswith("/v1/"))
    names = [name for name, _ in request.headers]
    assert next(value for name, value in request.headers if name == b"host").removesuffix(b":443") == NAME.encode()
    assert not (b"content-length" in names and b"transfer-encoding" in names)
    while True:
        event = reader.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            break
        assert type(event) in (h11.Data, h11.EndOfMessage)
        if type(event) is h11.EndOfMessage:
            assert reader.trailing_data[0] == b""
            break


def check_frames(up: bytes) -> None:
    """Every frame is whole (but for a running DATA), known to the server, and its section is decodable."""
    if not up:
        return
    assert up.startswith(PREFACE)
    at = len(PREFACE)
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    decoder.max_allowed_table_size = LARGEST_TABLE
    opened: set[int] = set()
    block = b""
    while at < len(up):
        length = int.from_bytes(up[at : at + 3], "big")
        kind, flags, stream = up[at + 3], up[at + 4], int.from_bytes(up[at + 5 : at + 9], "big")
        payload = up[at + 9 : at + 9 + length]
        at += 9 + length
        assert len(payload) == length or kind == h2.DATA
        if kind in (h2.HEADERS, h2.CONTINUATION):
            block = payload if kind == h2.HEADERS else block + payload
            if not flags & h2.END_HEADERS:
                continue
            fields = [tuple(each) for each in decoder.decode(block, raw=True)]
            if stream not in opened:
                opened.add(stream)
                check_fields(fields)
        elif kind in (h2.DATA, h2.RST_STREAM) or (kind == h2.WINDOW_UPDATE and stream):
            assert stream in opened
        else:
            assert kind in (h2.SETTINGS, h2.PING, h2.GOAWAY, h2.WINDOW_UPDATE) and not stream


def check_fields(fields: list[tuple[bytes, ...]]) -> None:
    pseudo = dict(fields[:4])
    assert list(pseudo) == [b":method", b":scheme", b":authority", b":path"]
    path = pseudo[b":path"].decode("ascii").partition("?")[0]
    assert pseudo[b":method"].decode() in METHODS
    assert canonical_path(path) == path and (path == "/v1" or path.startswith("/v1/"))
    assert pseudo[b":authority"].removesuffix(b":443") == NAME.encode()
    for name, value in fields[4:]:
        assert name and name == name.lower() and b":" not in name
        assert name not in (b"host", b"connection", b"transfer-encoding", b"upgrade")
        assert not any(char in value for char in (b"\r", b"\n", b"\0"))


def mutated(data: bytes, dice: random.Random, others: list[bytes]) -> bytes:
    """A neighbour of an input."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(out) + 1)
        choice = dice.randrange(7)
        if choice == 0 and out:
            out[at % len(out)] = dice.randrange(256)
        elif choice == 1:
            out[at:at] = dice.choice(INTERESTING)
        elif choice == 2:
            del out[at : at + dice.randint(1, 12)]
        elif choice == 3:
            out[at:at] = out[at : at + dice.randint(1, 40)]
        elif choice == 4 and out:
            out[at % len(out)] ^= 1 << dice.randrange(8)
        elif choice == 5:
            other = dice.choice(others)
            start = dice.randrange(len(other))
            out[at:at] = other[start : start + dice.randint(1, 60)]
        else:
            end = min(len(out), at + dice.randint(1, 8))
            out[at:end] = bytes(dice.randrange(256) for _ in range(end - at))
    return bytes(out[:4096])


def inputs() -> list[bytes]:
    """The corpus."""
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def run(goes_on: Callable[[int], bool], seed: int, report: Callable[[bytes, BaseException], None] | None = None) -> int:
    """Check neighbours of the corpus while ``goes_on`` of their number says so; how many were checked."""
    dice = random.Random(seed)
    corpus = inputs()
    count = 0
    while goes_on(count):
        data = mutated(dice.choice(corpus), dice, corpus)
        try:
            check(data)
        except Exception as error:
            if report is None:
                raise AssertionError(f"seed {seed}, input {count}: {data!r}") from error
            report(data, error)
            raise
        count += 1
    return count


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    end = time.monotonic() + seconds
    print(f"seed {seed}")

    def report(data: bytes, error: BaseException) -> None:
        print(f"found: {data!r}\n{type(error).__name__}: {error}")

    count = run(lambda _: time.monotonic() < end, seed, report)
    print(f"{count} inputs, nothing found")


if __name__ == "__main__":
    main()
