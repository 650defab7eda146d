"""The fast encoder of events says what ``json.dumps`` of their objects says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from membrane import clock, events
from membrane.events import LONGEST, Binding, ConnectionClosed, FileOpened, NameQuarantined, encode
from membrane.lines import _MOST_KEPT, Lines, json_text
from membrane.value import Value

AT = 1_700_000_000_250_999_999
NASTY = 'a"\\\x1b\u202e\n\xe9\udcff'
# A value for each type of a field.
VALUES: dict[str, Any] = {
    "str": NASTY,
    "str | None": None,
    "int": 1 << 40,
    "float": 0.001,
    "bool": True,
    "tuple[str, ...]": (NASTY, "x" * (LONGEST + 1), ""),
    "tuple[tuple[str, str], ...]": ((NASTY, "1"), ("True", "b")),
    "tuple[Binding, ...]": (Binding(NASTY, "m", "bound", True),),
    "dict[str, int]": {NASTY: 1},
    "dict[str, Any]": {"kind": "Connect", "host": NASTY, "port": 1, "names": (NASTY,)},
}
KINDS = [
    each for each in vars(events).values() if isinstance(each, type) and "source" in getattr(each, "field_names", ())
]


def sample(kind: type[Value]) -> Any:
    types = kind.__annotations__
    return kind(**{name: VALUES.get(types[name], "deny") for name in kind.field_names})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digits", [3, 6])
def test_a_line_of_every_event(kind: type[Value], digits: int) -> None:
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
