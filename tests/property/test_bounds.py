"""Work over input from inside is at most linear, and the input at most so large.

Each row is a parser, a pattern or a loop that reads what the command, a hostile repository or a hostile server chose,
with the shape that is worst for it and the size at its stated bound.  Four times the input may cost four times the
time; sixteen times is the square.  Processor time is compared, not the clock, and the least of a few runs.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from membrane import escaping
from membrane.gateway import sniff
from membrane.gateway.dns import LONGEST_QUERY, Answerer, Names, TcpMessages
from membrane.gateway.http import redact
from membrane.gateway.http.bodies import Chunked
from membrane.gateway.http.credentials import Secret
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.requests import LONGEST_HEAD, Bound, Flaw, Gate
from membrane.gateway.http.spellings import Scrubber, Spellings
from membrane.policy import globs, url_paths
from membrane.policy.decide import Decider
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, HttpRequest
from membrane.record import joining, learn, query, recorded
from membrane.record.formats import html, tracee_json
from membrane.record.recorded import Recorded
from membrane.workspace import gitconfig, protect

AT_MOST = 9.0  # times the work for four times the input: between linear (4) and the square (16)
SMALL = 0.002  # seconds; less than this is noise
LONGEST = 3.0  # seconds of processor time for an input at its bound: several times what is seen


Work = Callable[[], object]


def _repeated(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def _octets(unit: bytes, size: int) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


def _path(unit: str, size: int) -> Work:
    path = "/" + _repeated(unit, size - 1)
    return lambda: redact.redact_path(path)


def _field(unit: str, size: int) -> Work:
    value = _repeated(unit, size).encode("latin-1")
    return lambda: redact.redact_fields([(b"x-a", value)])


_MASK = redact.Redactor([Secret("a", b"sk-aB3dE5gH7jK9mN1p", b"sk-zY8xW6vU4tS2rQ0o", "x-api-key", [])])


def _mask(unit: str, size: int) -> Work:
    text = _repeated(unit, size)
    return lambda: _MASK.text(text)


def _rule(rule: tuple[str, str], size: int) -> Work:
    admits, path = url_paths.path_matcher(rule[0]), "/" + _repeated(rule[1], size - 1)
    return lambda: admits(path)


def _pattern(rule: tuple[str, str], size: int) -> Work:
    patterns, path = globs.compile_patterns([rule[0]]), _repeated(rule[1], size)
    return lambda: patterns.match(path[:255], path, False)


def _canonical(unit: str, size: int) -> Work:
    path = "/" + unit * (size // len(unit))
    return lambda: _quiet(url_paths.canonical_path, path)


def _denied(unit: str, size: int) -> Work:
    decider = Decider(
        load([Source("user", "u", "allow: [h]\ndeny: ['https://h/admin']")], presets={"default": ""}).policy
    )
    request = HttpRequest("h", 443, "https", "GET", "/" + unit * (size // len(unit)))
    return lambda: decider.decide(request)


def _config(text: tuple[str, str], size: int) -> Work:
    config = text[0] + _repeated(text[1], size - len(text[0]))
    return lambda: _quiet(gitconfig.parse, config)


def _name(unit: str, size: int) -> Work:
    name = _repeated(unit, size)
    return lambda: protect.fold(name)


def _query(unit: bytes, size: int) -> Work:
    answerer = Answerer(Names(), lambda _access: Allow(None, ""), lambda _event: None)
    message = b"\0\1\1\0\0\1\0\0\0\0\xff\xff" + b"\1a\0\0\1\0\1"
    message += _octets(unit, size - len(message))
    return lambda: answerer.answer(message)


def _messages(unit: bytes, size: int) -> Work:
    data = _octets(unit, size)
    return lambda: TcpMessages().feed(data)


def _scrubbed(unit: bytes, size: int) -> Work:
    data = _octets(unit, size)

    def scrub() -> None:
        scrubber = Scrubber(Spellings([(b"sk-sk-sk-sk-sk-sk-x", b"sk-ab-cd-ef-gh-ij-y")]))
        for at in range(0, size, 64):
            scrubber.feed(data[at : at + 64])
        scrubber.flush()

    return scrub


def _first(unit: bytes, size: int) -> Work:
    data = _octets(unit, size)
    return lambda: sniff.classify(data)


def _requests(unit: bytes, size: int) -> Work:
    """Fed whole, to a server that nobody reached."""
    data = _octets(unit, size)

    def feed() -> None:
        gate = Gate(Bound("h.test", 80, "http"), lambda _request: Allow(None, ""), lambda _rules, _octets: None)
        core = Http1(gate, lambda: 0.0, connected=True)
        core.client_data(data)

    return feed


def _head_in_pieces(unit: bytes, size: int) -> Work:
    """Sixty-four bytes at a time: what is held is looked at anew for each, so this is bounded and not linear."""
    data = b"GET / HTTP/1.1\r\n" + _octets(unit, size)

    def feed() -> None:
        gate = Gate(Bound("h.test", 80, "http"), lambda _request: Allow(None, ""), lambda _rules, _octets: None)
        core = Http1(gate, lambda: 0.0, connected=True)
        for at in range(0, size, 64):
            core.client_data(data[at : at + 64])

    return feed


def _chunks(unit: bytes, size: int) -> Work:
    data = _octets(unit, size)

    def feed() -> None:
        body, at = Chunked(strict=True), 0
        try:
            while at < size and not body.done:
                at = body.feed(data, at, [])
        except Flaw:
            pass

    return feed


def _escaped(unit: str, size: int) -> Work:
    text = _repeated(unit, size)
    return lambda: escaping.escape(text)


def _learned(unit: str, size: int) -> Work:
    path = _repeated(unit, size)
    return lambda: learn._SECRET.search(path)


def _later(unit: str, size: int) -> Work:
    path = _repeated(unit, size)
    return lambda: [each.fullmatch(path) for each, _ in query.LATER]


def _event(number: int, kind: str, process: int = 1, **fields: Any) -> dict[str, Any]:
    who = {"pid": process, "start": process, "name": "p", "exe": "/bin/p"}
    stamp = f"2026-01-02T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"
    return {"time": stamp, "session": "s", "seq": number, "event": kind, "source": "x", "process": who, **fields}


def _opened(number: int, path: str) -> dict[str, Any]:
    return _event(number, "FileOpened", path=path, flags=["wronly", "creat"], result="")


def _started(number: int, parent: int) -> dict[str, Any]:
    return _event(number, "ProcessStarted", number + 1, parent=parent, argv=["p"], cwd="/w", path="/bin/p", result="")


def _requested(number: int) -> dict[str, Any]:
    about = {"host": "h.example", "port": 443, "path": f"/a/{number}/b{number}", "status": 200, "verdict": "allow"}
    return {**_event(number, "RequestSeen", id=1, method="GET", scheme="https", **about), "number": number}


def _connected(number: int) -> dict[str, Any]:
    where = {"host": f"h{number}.example", "address": "203.0.113.9", "port": 443}
    return _event(number, "ConnectionOpened", id=number, protocol="tls", **where)


def _refused(number: int) -> dict[str, Any]:
    access = {"kind": "NameQuery", "name": f"n{number}.example", "type": "A"}
    return _event(number, "AccessDenied", access=access, reason="name not allowed", rule=None, hint=None, count=1)


RECORDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "paths": lambda number: _opened(number, f"/w/{number}/x"),
    "deep paths": lambda number: _opened(number, "/w/" + "a/" * 40 + str(number)),
    "renames": lambda number: _event(number, "FileRenamed", path=f"/w/{number}", to=f"/w/{number + 1}", result=""),
    "a chain of processes": lambda number: _started(number, number),
    "children of one process": lambda number: _started(number, 1),
    "hosts": _connected,
    "requests": _requested,
    "refusals": _refused,
}


def _read(reader: Callable[[list[Recorded]], object]) -> Callable[[str, int], Work]:
    def make(kind: str, size: int) -> Work:
        first = _event(0, "SessionStarted", command=["p"], workspace="/w", trace_source="ebpf, network")
        events = list(map(recorded.parse, [first, *map(RECORDS[kind], range(1, size))]))
        return lambda: reader(events)

    return make


def _quiet(call: Callable[[str], object], argument: str) -> None:
    try:
        call(argument)
    except ValueError:
        pass


ROWS: dict[str, tuple[int, Callable[[int], Work]]] = {}


def rows(what: str, size: int, make: Callable[[Any, int], Work], shapes: Sequence[Any]) -> None:
    for shape in shapes:
        ROWS[f"{what} {shape!r}"] = (size, partial(make, shape))


VALUE = "[a]\n\tb = "
rows("path recorded", url_paths._LONGEST_PATH, _path, [
    "sk-", "-hf_", "-eyJ", "eyJ-", "eyJaaaaaaaa.", "-eyJaaaaaaaa.a", "github_pat_", "1", "111111:", "bot1",
    "-bot111111:", "/T", "/TAAAAAAA", "/TAAAAAAA/BAAAAAAA", ":/", ":/a", "://", "a:", "a:b", "/a:", "@", "a@", ":", ";",
    ";a=", ";a=b://c?", "%41/", "%73k-", "%2573k-", "%", "%3a//", "A-", "_-", "sk-A", "/sk-", "a/",
])  # fmt: skip
rows("field recorded", LONGEST_HEAD, _field, [
    "://", "b://c?", "?a=b://c", "=://?", "#", "a://b#", " ", "eyJ.", "a ", "&", "=", "a=b&", "\xe9", "://@", "b://c?a=b://",
])  # fmt: skip
rows("text of an event", LONGEST_HEAD, _mask, [
    "%25", "%2525", "%", "s", "sk-", "%73", "%2573k-", "c2st", "sk-aB3dE5gH7jK9mN1",
])  # fmt: skip
rows("path under a rule", url_paths._LONGEST_PATH, _rule, [
    ("/**/a/**/b", "a/"), ("/**/a*a*a*b", "a"), ("/**/a*a*a*b", "a/"), ("/**/a/a/a/a/b", "a/"), ("/*/*/*/b", "a/"),
    ("/**/*/**/*/x", "a/"), ("/a*b*c*d*e", "abcd"), ("/**/x", "/"),
])  # fmt: skip
rows("file under a pattern", 3800, _pattern, [
    ("**/a/**/b", "a/"), ("a*a*a*a*b", "a"), ("/**/a*a*a*b/c", "a/"), ("[a-z]*[a-z]*[a-z]*1", "a"),
    ("**/*/**/*/**/x", "a/"),
])  # fmt: skip
rows("path made canonical", url_paths._LONGEST_PATH, _canonical, [
    "%cc%81%cc%a3", "a%ef%bc%8e", "%ef%b7%ba", "%41", "%3b", ".", "./", ";", "..;/", "a/../", "/", "%",
])  # fmt: skip
rows("path under a deny", url_paths._LONGEST_PATH, _denied, [
    "%CC%81%CC%A3", "%CC%95%CC%96", "%CD%84%CC%96", "%EF%B7%BA", "a%CC%81", "%2541", ";", "a;/", "a/", "%3B", "..a/",
    "a.",
])  # fmt: skip
rows("git configuration", gitconfig.LARGEST_TEXT, _config, [
    (VALUE, "x"), (VALUE, " x"), (VALUE, '"'), (VALUE, '\\"'), (VALUE, "\\\n"), (VALUE, " "), (VALUE, "; "),
    ('[a "', "x"), ('[a "', '\\"'), ("[", "a"), ("[a]\n", "b\n"), ("", "[a]\n"), ("", " "), ("", "#"), ("", "#\n"),
])  # fmt: skip
rows("name of a file", 255, _name, ["\u0301\u0323", "\ufdfa", ".", ":", " ", "\u200b"])  # NAME_MAX (limits.h)
rows("DNS query", LONGEST_QUERY, _query, [b"\0", b"\0\0\1\0\1\0\0\0\0\0\0", b"\1a", b"\xc0"])
rows("DNS over TCP", 65536, _messages, [b"\0\0", b"\0\1a", b"\xff\xff"])
rows("answer of a server", 1 << 18, _scrubbed, [b"sk-", b"s", b"sk-sk-sk-sk-sk-sk-", b"x"])
rows("first bytes", sniff.ENOUGH, _first, [
    b"\x16\x03\x01\x00\x01", b"\x16\x03\x01\x00\x00", b"GET ", b"G", b" ", b"/", b"PRI * HTTP/2.0\r\n",
    b"\x16\x03\x01\x40\x00\x01",
])  # fmt: skip
rows("requests", LONGEST_HEAD, _requests, [
    b"\r\n", b"GET / HTTP/1.1\r\nHost: h.test\r\n\r\n", b"a: b\r\n", b"GET / HTTP/1.1\r\na:", b"\n",
    b"GET /?_method=a&", b"GET /%41", b"GET / HTTP/1.1\r\nConnection: a,",
])  # fmt: skip
rows("head in pieces", LONGEST_HEAD // 2, _head_in_pieces, [b"a: b\r\n", b"\r"])
rows("chunks of a body", 1 << 17, _chunks, [b"1\r\na\r\n", b"1;a\r\na\r\n", b"0\r\na:b\r\n", b"0", b";", b"\r"])
rows("text that is shown", LONGEST_HEAD, _escaped, ["\x1b", "\\", "\u202e", "a", "\ud800"])
rows("path learned", 4096, _learned, [
    "/", ".", "-", "_", "/.key", ".key", "/id_a", "id_", "a.", "/a.pem", "-.", "/aws", ".env",
])  # fmt: skip
rows("path that runs later", 4096, _later, [
    "/.github/workflows", "/bin/", "/.config/", "/cron.", "/cron.a", ".pth", "/.", "/build.gradle", "/package.json",
])  # fmt: skip


EVENTS = 1_000  # of no bound: whoever reads a record waits as long as it is
rows("events summed up", EVENTS, _read(query.summarise), list(RECORDS))
rows("events of a report", EVENTS, _read(lambda events: html.make(events, [])), list(RECORDS))
rows("events learned", EVENTS, _read(lambda events: learn.learn([events])), list(RECORDS))
rows("events joined", EVENTS, _read(lambda events: list(joining.joined(events))), list(RECORDS))
rows("events in Tracee's format", EVENTS, _read(lambda events: list(tracee_json.convert(events))), list(RECORDS))


def _seconds(call: Callable[[], object], often: int) -> float:
    least = 1e9
    for _ in range(often):
        begun = time.process_time()
        call()
        least = min(least, time.process_time() - begun)
    return least


@pytest.mark.parametrize("row", ROWS)
def test_work_is_at_most_linear_in_input(row: str) -> None:
    size, make = ROWS[row]
    whole, quarter = make(size), make(size // 4)
    for _attempt in range(3):
        much = _seconds(whole, 2)
        if much < SMALL or much < AT_MOST * _seconds(quarter, 3):
            break
    else:
        pytest.fail(f"{row}: {much:.4f} s for {size}, {_seconds(quarter, 3):.4f} s for a quarter of it")
    assert much < LONGEST


def test_the_table_of_bounds_says_what_the_code_has() -> None:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    table = text.partition("\n## Bounds\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| [^|]+ \| `([a-z0-9_.]+)\.([A-Z_]+)` \| ([0-9,.]+) \|$", table, re.MULTILINE)
    assert len(told) == table.count("\n| ") - 2 > 20
    for module, name, shown in told:
        bound = getattr(importlib.import_module(f"membrane.{module}"), name)
        assert shown == f"{bound:,}", f"{module}.{name}"
