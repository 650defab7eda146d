"""Readers of the record: whatever lies in a file, they end, stay bounded, and print nothing that steers a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membrane.events import EVENTS
from membrane.policy.load import Source, load
from membrane.record import joining, query, reader, recorded
from membrane.record import writer as record
from membrane.record.formats import html as page
from membrane.record.formats import otlp, tracee_json
from membrane.record.learn import learn
from membrane.ui import trace_text

KINDS = [*EVENTS, "Odd"]
FIELDS = [*dict.fromkeys(name for kind in EVENTS.values() for name in kind.field_names if name != "access")]
SPICE = [
    "\x1b[31m",
    "\u202e",
    "\n",
    "\r",
    "<script>alert(1)</script>",
    '"',
    "'",
    "&",
    "\\",
    "\u200b",
    "\0",
    "/../",
    "# x",
]
TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [*SPICE, "allow: ['**']", "h.example", "/w/x", "EACCES", "GET", "https", "tcp", "A", "name not allowed"]
    ),
    st.lists(st.sampled_from([*SPICE, "a", "h.example"]), max_size=4).map("".join),
)
SCALAR = st.one_of(TEXT, st.none(), st.booleans(), st.integers(-5, 1 << 65), st.floats(allow_nan=False))
VALUE = st.one_of(
    SCALAR,
    st.lists(SCALAR, max_size=3),
    st.fixed_dictionaries({"text": TEXT, "truncated": st.just(True), "sha256": TEXT}),
)
ACCESS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["NameQuery", "Connect", "HttpRequest", "PathAccess", "SocketAccess", "Odd"])},
    optional=dict.fromkeys(("name", "host", "address", "port", "protocol", "scheme", "method", "path", "type"), VALUE),
)
PROCESS = st.one_of(
    st.none(), SCALAR, st.fixed_dictionaries({}, optional=dict.fromkeys(("pid", "start", "name", "exe"), VALUE))
)
EVENT = st.builds(
    lambda head, rest, process, access: {**rest, **head, "process": process, "access": access},
    st.fixed_dictionaries(
        {
            "event": st.one_of(st.sampled_from(KINDS), TEXT),
            "time": st.one_of(st.sampled_from(["2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z"]), TEXT),
        }
    ),
    st.dictionaries(st.sampled_from(FIELDS), VALUE, max_size=8),
    PROCESS,
    st.one_of(ACCESS, VALUE),
)
EVENTS = st.lists(EVENT, max_size=8)
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]*")


def clean(line: str) -> bool:
    return PRINTABLE.fullmatch(line) is not None and "\x1b" not in line


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_whatever_an_event_holds_every_view_of_it_is_plain_text(events: list[dict[str, Any]]) -> None:
    read = [recorded.parse(event) for event in events]
    joined = list(joining.joined(read))
    assert len(joined) == len(read)
    for event in joined:
        assert clean(trace_text.event_line(event))
        for wanted in (query.Filter(denied=True), query.Filter(path="**"), query.Filter(host="h.example", pid=3)):
            assert list(query.chosen([event], wanted)) in ([], [event])
    data = query.summarise(joined).data(["problem"])
    assert json.loads(json.dumps(data)) is not None
    assert all(clean(line) for line in trace_text.summary_lines(data, "/home/u"))
    html = page.make(joined, [])
    assert "<script" not in html.lower()
    assert "\x1b" not in html
    assert "\u202e" not in html
    # Nothing but our own tags: every < begins one of these.
    assert set(re.findall(r"<(/?[a-zA-Z0-9!]*)", html)) <= OUR_TAGS
    for form in (tracee_json.convert, otlp.ocsf, otlp.otlp):
        for item in form(read):
            json.dumps(item)


OUR_TAGS = {
    f"{slash}{tag}"
    for tag in [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "div",
        "i",
        "details",
        "summary",
        "span",
        "table",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "code",
        "br",
    ]
    for slash in ("", "/")
} | {"!DOCTYPE"}


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=3))
def test_whatever_was_tried_the_policy_can_be_read_and_opens_no_more_than_hosts(
    runs: list[list[dict[str, Any]]],
) -> None:
    text = learn([[recorded.parse(event) for event in events] for events in runs])
    policy = load([Source("user", "learned.yaml", text, "/w")], presets={"default": ""}, home="/home/u").policy
    assert all(rule.kind in ("host", "network") for rule in policy.allow)
    assert not policy.secrets
    assert not policy.deny
    assert policy.env == ()
    assert all(rule.mode == "ro" for rule in policy.mounts)


SEGMENT = st.one_of(
    st.binary(max_size=200),
    st.lists(st.one_of(EVENT.map(lambda event: json.dumps(event).encode()), st.binary(max_size=20)), max_size=5).map(
        b"\n".join
    ),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    segments=st.lists(SEGMENT, max_size=3), chain=st.one_of(st.none(), st.binary(max_size=200)), packed=st.booleans()
)
def test_a_directory_of_garbage_is_read_to_its_end(
    tmp_path: Path, segments: list[bytes], chain: bytes | None, packed: bool
) -> None:
    path = tmp_path / "trace" / "aa"
    path.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(segments, 1):
        (path / f"session-{number:04}.jsonl{'.gz' if packed else ''}").write_bytes(data)
    if chain is not None:
        (path / "session.chain").write_bytes(chain)
    found = reader.Record(str(path))
    for event in found.events():
        assert isinstance(event.kind, str) and event.data["event"] == event.kind
    assert all(isinstance(problem, str) for problem in found.problems)
    reader.verify(str(path))
    reader.Follower(str(path)).poll()
    assert record.remove(str(path))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2000), st.integers(0, 255))
def test_one_changed_byte_is_found(noise: bytes, place: int, value: int) -> None:
    """The chain covers every byte of a segment and of itself."""
    import tempfile

    with tempfile.TemporaryDirectory() as state:
        writer = record.Writer(record.make(state, "aa"), "session", clock=lambda: 1)
        writer.append(json.dumps({"time": "2026-01-02T03:04:05Z", "event": "X", "n": noise.hex()}).encode() + b"\n")
        writer.close()
        kept = reader.verify(writer.directory)
        assert kept.problems == ()
        for name in ("session-0001.jsonl", "session.chain"):
            file = Path(writer.directory, name)
            data = bytearray(file.read_bytes())
            at = place % len(data)
            if data[at] == value:
                continue
            before, data[at] = bytes(data), value
            file.write_bytes(data)
            after = reader.verify(writer.directory)
            assert after.problems or after.digest != kept.digest
            file.write_bytes(before)


def test_a_glob_takes_no_time() -> None:
    """A path is chosen inside: no search that grows with a power of its length."""
    assert not query.Glob("**/a*a*a*a*a*a*a*b").matches("/" + "a" * 3000)
    assert query.Glob("**/x/**/y/**/z").matches("/" + "x/y/" * 500 + "z")


GLOB_PART = st.sampled_from(["**", "*", "?", "a", "b", "a*", "*b", "a?b", "ab"])


@settings(max_examples=200, deadline=None)
@given(st.lists(GLOB_PART, min_size=1, max_size=4), st.lists(st.text("ab", max_size=3), min_size=1, max_size=4))
def test_a_glob_means_what_the_expression_means(parts: list[str], names: list[str]) -> None:
    pattern, path = "/" + "/".join(parts), "/" + "/".join(names)
    options = {"*": "[^/]*", "?": "[^/]"}
    expression = "".join(
        "(?:/[^/]*)*" if part == "**" else "/" + "".join(options.get(char, char) for char in part) for part in parts
    )
    assert query.Glob(pattern).matches(path) == bool(re.fullmatch(expression, path))
