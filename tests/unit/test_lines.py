"""The fast encoder of events says what ``json.dumps`` of their objects says."""

from __future__ import annotations

import json

import pytest

from event_samples import NASTY, sample
from membrane import clock
from membrane.events import EVENTS, LONGEST, ConnectionClosed, Event, FileOpened, NameQuarantined, encode
from membrane.lines import _MOST_KEPT, Lines, json_text, parsed

AT = 1_700_000_000_250_999_999


@pytest.mark.parametrize("kind", EVENTS.values())
@pytest.mark.parametrize("digits", [3, 6])
def test_a_line_of_every_event(kind: type[Event], digits: int) -> None:
    event = sample(kind)
    lines = Lines(NASTY, "network", digits)
    for number in (0, 7):
        record = encode(event, time=clock.iso(AT, digits), session=NASTY, seq=number)
        record["source"] = "network"
        line = lines.line(AT, number, "null", event)
        assert line == json.dumps(record)
        assert line.isascii() and line.isprintable()
    assert lines.counts == {kind.__name__: 2}


def test_numbers_and_truths_that_are_equal_are_not_mixed_up() -> None:
    lines = Lines("s", "ebpf")
    for value in (1, True, 1.0, False, 0):
        record = json.loads(lines.line(AT, 1, "null", ConnectionClosed(value, 0, 0, 0.0)))
        assert record["id"] == value and type(record["id"]) is type(value)
    for flags in ((1,), (True,), ("1",)):
        assert json.loads(lines.line(AT, 1, "null", FileOpened("p", flags)))["flags"] == list(flags)  # type: ignore[arg-type]


def test_what_is_kept_is_bounded() -> None:
    lines = Lines("s", "ebpf")
    for number in range(2 * _MOST_KEPT):
        lines.line(AT, 1, "null", NameQuarantined(f"/w/{number}", "x" * LONGEST))
    assert 0 < len(lines._texts) <= _MOST_KEPT


def test_json_text_is_what_json_gives() -> None:
    value = {"a": ['x\n"\\\u202e', 1, -2.5, True, None, {}], "b": {"ü": []}, "big": 1 << 70}
    assert json_text(value) == json.dumps(value)
    for bad in (float("nan"), float("inf"), b"x", object()):
        with pytest.raises(TypeError):
            json_text(bad)


@pytest.mark.parametrize(
    "line", ["NaN", '{"a": [Infinity]}', "-Infinity", "1e400", "-1e400", "[" * 100_000, "", "{} {}", "9" * 5000]
)
def test_what_is_no_json_is_one_error(line: str) -> None:
    for each in (line, line.encode()):
        with pytest.raises(ValueError):
            parsed(each)
    with pytest.raises(ValueError):
        parsed(b'"\xff"')


@pytest.mark.parametrize("value", [1, -1.5, 1e308, "\ud800", None, [True, {"a": []}], 1 << 70])
def test_what_is_json_is_its_value(value: object) -> None:
    assert parsed(json.dumps(value)) == parsed(json.dumps(value).encode()) == value
