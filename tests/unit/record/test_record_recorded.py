"""Events read back: what was written is what is read, and what is of another type is nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from event_samples import sample
from membrane.events import (
    EVENTS,
    LONGEST,
    AccessDenied,
    Binding,
    FileRenamed,
    Process,
    SessionEnded,
    SessionStarted,
    SocketCalled,
    encode,
    plain,
)
from membrane.record.recorded import Recorded, Unknown, asked, nanoseconds, parse

HOSTILE: list[Any] = [None, True, 0, -1, 1 << 80, 1e308, float("nan"), "x", "", [], [[]], [None, 1], {}, {"text": 1}]
HEAD = {"time": "2026-01-02T03:04:05.933Z", "session": "s", "seq": 3, "source": "network", "process": None}


def written(name: str) -> dict[str, Any]:
    process = Process(7, 8, "a\nb", "/x\\y")
    data = encode(sample(EVENTS[name]), time=HEAD["time"], session="s", seq=3, process=process)
    return dict(json.loads(json.dumps(data)))


def shown(value: Any) -> Any:
    """What a value is after it was written and read: text is escaped, and cut."""
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, Binding):
        return Binding(shown(value.rule), shown(value.mechanism), shown(value.status), value.read_back)
    kept = plain(value)
    return kept["text"] + "..." if isinstance(kept, dict) and "truncated" in kept else kept


@pytest.mark.parametrize("name", EVENTS)
def test_what_was_written_is_read(name: str) -> None:
    data, event = written(name), sample(EVENTS[name])
    each = parse(data)
    assert (each.kind, each.time, each.session, each.seq, each.source) == (name, HEAD["time"], "s", 3, event.source)
    assert (each.process, each.who, each.program) == (Process(7, 8, "a\\u{a}b", "/x\\\\y"), (7, 8), "a\\u{a}b")
    assert type(each.event) is EVENTS[name]
    for field in event.field_names:
        value = shown(getattr(event, field))
        assert getattr(each.event, field) == value, field
    assert json.dumps(each.data) == json.dumps(data)  # as JSON it is what it was, byte for byte


@pytest.mark.parametrize("name", EVENTS)
def test_what_is_not_there_is_its_default_and_what_is_of_another_type_is_nothing(name: str) -> None:
    """A record of an earlier version, and one that a broken process has written."""
    kind = EVENTS[name]
    bare = parse({"event": name, **HEAD}).event
    for field in kind.field_names:
        value = getattr(bare, field)
        if field in kind._defaults and field != "source":
            assert value == kind._defaults[field], field
        else:
            assert not value or field == "source", field
        for bad in HOSTILE:
            found = getattr(parse({"event": name, **HEAD, field: bad}).event, field)
            right = type(getattr(sample(kind), field))
            optional = kind.__annotations__[field] == "str | None"
            # A number that is no whole one stays what it was where a fraction makes sense.
            if kind.__annotations__[field] == "float":
                assert isinstance(found, (int, float)) and not isinstance(found, bool) and found == found
            elif optional:
                assert found is None or isinstance(found, str)
            else:
                assert type(found) is right, (field, bad, found)
            assert isinstance(json.dumps(parse({"event": name, **HEAD, field: bad}).data), str)


@pytest.mark.parametrize("bad", HOSTILE)
def test_what_all_events_have_is_checked(bad: Any) -> None:
    for field in ("session", "seq", "source", "process"):
        each = parse({"event": "FileRemoved", **HEAD, field: bad})
        assert isinstance(each.session, str) and isinstance(each.source, str) and type(each.seq) is int
        assert each.process is None or isinstance(each.process, Process)
    process = {"pid": bad, "start": bad, "name": bad, "exe": bad}
    found = parse({"event": "FileRemoved", **HEAD, "process": process}).process
    assert found is not None and type(found.pid) is type(found.start) is int
    assert isinstance(found.name, str) and isinstance(found.exe, str)


@pytest.mark.parametrize(
    ("value", "shown", "read"),
    [
        (None, None, 0),
        (True, 0, 0),
        (7, 7, 7),
        (-7, -7, -7),
        (7.9, 7.9, 7),
        ((1 << 63) - 1, (1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, 0, 0),
        (1 - (1 << 63), 1 - (1 << 63), 1 - (1 << 63)),
        (-(1 << 63), 0, 0),
        (float(1 << 63), 0, 0),
        (-float(1 << 63), 0, 0),
        (float("inf"), 0, 0),
        (float("nan"), 0, 0),
        ("7", 0, 0),
    ],
)
def test_a_number_is_bounded(value: Any, shown: Any, read: int) -> None:
    each = parse({"event": "SocketCalled", **HEAD, "port": value})
    assert isinstance(each.event, SocketCalled)
    assert (each.data["port"], each.event.port) == (shown, read)
    assert asked({"port": value}).port == read
    counts = parse({"event": "SessionEnded", **HEAD, "counts": {"x": value}}).event
    assert isinstance(counts, SessionEnded) and counts.counts == {"x": read}


@pytest.mark.parametrize("value", [None, [], {}, {"text": 7}, {"truncated": True}, 7, True])
def test_what_is_no_text_is_empty(value: Any) -> None:
    each = parse({"event": "FileRemoved", **HEAD, "path": value})
    assert each.path == "" and each.data["path"] == (None if value is None else "")


def test_who_is_a_process_that_has_a_number() -> None:
    for process in (None, {"pid": 0, "start": 3}, {"pid": "1"}):
        assert parse({"event": "FileRemoved", **HEAD, "process": process}).who is None
    assert parse({"event": "FileRemoved", **HEAD, "process": {"pid": 1}}).who == (1, 0)


def test_times() -> None:
    assert nanoseconds("1970-01-02T00:00:01.000002Z") == 86_401_000_002_000
    assert [nanoseconds(bad) for bad in ("", "x", "2026-01-02T03:04:05")] == [0, 0, 0]


def test_a_question_keeps_what_is_true_and_lists_of_text() -> None:
    access = {
        "kind": "PathAccess",
        "directory": True,
        "names": ["a", 7, {"text": "b"}],
        "path": {"text": 3},
        "more": None,
    }
    event = parse({"event": "AccessDenied", **HEAD, "access": access}).event
    assert isinstance(event, AccessDenied)
    shown = {"kind": "PathAccess", "directory": True, "names": ["a", "", "b..."], "path": "", "more": ""}
    assert event.access == shown


def test_an_event_of_a_later_version_is_shown_and_asked_what_all_are_asked() -> None:
    data = {"event": "FileFrozen", **HEAD, "path": "/w/a", "result": "EPERM", "depth": {"any": [1]}, "requested": True}
    each = parse(data)
    assert isinstance(each.event, Unknown)
    assert (each.kind, each.path, each.result, each.requested, each.to) == ("FileFrozen", "/w/a", "EPERM", True, "")
    assert each.data == data and list(each.data) == list(data)
    more = parse({"event": "FileRenamed", **HEAD, "path": "/a", "to": "/b", "speed": [1]})
    assert (more.data["speed"], more.path, more.to) == ([1], "/a", "/b")


def test_a_text_that_was_cut_keeps_its_digest() -> None:
    long = "/w/" + "x" * LONGEST
    data = json.loads(json.dumps(encode(FileRenamed(long, "/w/b"), time=HEAD["time"], session="s", seq=1)))
    each = parse(data)
    assert each.path == long[:LONGEST] + "..."
    assert each.data == data and data["path"]["truncated"] is True and len(data["path"]["sha256"]) == 64


def test_what_was_found_of_a_connection_stands_in_both_forms() -> None:
    each = parse({"event": "ConnectionClosed", **HEAD, "id": 1}).by(Process(1, 2, "sh", "/bin/sh")).towards("h", 443)
    assert (each.who, each.program, each.host, each.port) == ((1, 2), "sh", "h", 443)
    assert list(each.data)[-4:] == ["id", "joined", "host", "port"]
    assert each.data["process"] == {"pid": 1, "start": 2, "name": "sh", "exe": "/bin/sh"}
    assert each.by(None) is each


def test_a_question_has_the_fields_of_all_kinds() -> None:
    question = asked({"kind": "Connect", "host": 7, "port": "x", "address": "1.2.3.4", "more": 1})
    assert (question.kind, question.host, question.port, question.address, question.path) == (
        "Connect",
        "",
        0,
        "1.2.3.4",
        "",
    )


def test_a_session_s_bindings_are_typed() -> None:
    data = {"event": "SessionStarted", **HEAD, "assurance": [{"rule": "r", "read_back": 1}, "x", {"status": "bound"}]}
    event = parse(data).event
    assert isinstance(event, SessionStarted)
    assert event.assurance == (Binding("r", "", "", False), Binding("", "", "bound", False))  # type: ignore[arg-type]
    assert isinstance(parse(data), Recorded)
