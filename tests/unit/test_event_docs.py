"""``docs/events.md`` and ``docs/events.schema.json`` say what the types of events say."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from event_samples import NASTY, sample
from membrane.events import EVENTS, Process, encode

ROOT = Path(__file__).parents[2]
TYPES = {
    "str": "string",
    "str | None": "string or null",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "tuple[str, ...]": "list of strings",
    "tuple[tuple[str, str], ...]": "list of `[name, value]`",
    "tuple[Binding, ...]": "list of objects",
    "dict[str, int]": "object",
    "dict[str, Any]": "object",
}


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("event_schema", ROOT / "scripts/event_schema.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented(text: str) -> dict[str, list[tuple[str, str]]]:
    """The rows of the table of fields of each section: name and type."""
    out: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title not in EVENTS and not re.fullmatch(r"[A-Z][a-z]+[A-Z][A-Za-z]+", title):
            continue
        rows = re.search(r"^\| field \| type \| meaning \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", body, re.MULTILINE)
        out[title] = []
        for row in (rows[1] if rows else "").splitlines():
            names, kind = (cell.strip() for cell in row.split("|")[1:3])
            out[title] += [(name.strip("` "), kind) for name in names.split(",")]
    return out


def typed() -> dict[str, list[tuple[str, str]]]:
    return {
        name: [
            (field, TYPES.get(kind.__annotations__[field], "string")) for field in kind.field_names if field != "source"
        ]
        for name, kind in EVENTS.items()
    }


def test_every_field_is_documented_with_its_type_in_its_place() -> None:
    text = (ROOT / "docs/events.md").read_text()
    assert documented(text) == typed()
    # The control: a row less, a type changed, a section renamed.
    for before, after in (
        ("| `sni` | string | server name of the TLS hello |\n", ""),
        ("| `cwd` | string |", "| `cwd` | integer |"),
        ("## FileRenamed\n", "## FileRenumbered\n"),
    ):
        assert before in text
        assert documented(text.replace(before, after, 1)) != typed()


def test_the_schema_is_that_of_the_types() -> None:
    made = _loaded()
    assert json.loads(made.FILE.read_text()) == made.schema(), "python -m scripts.event_schema writes it again"


@pytest.mark.parametrize("name", EVENTS)
def test_what_is_written_is_valid_by_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/events.schema.json").read_text()))
    written: dict[str, Any] = json.loads(
        json.dumps(
            encode(
                sample(EVENTS[name]),
                time="2026-01-02T03:04:05.933Z",
                session="s",
                seq=1,
                process=Process(1, 2, NASTY, "/x"),
            )
        )
    )
    validator.validate(written)
    validator.validate({**written, "event": "Later", "more": 1})
    for field in EVENTS[name].field_names:
        if field != "source":
            assert not validator.is_valid({**written, field: {}}) or isinstance(written[field], dict), field
            assert not validator.is_valid({key: value for key, value in written.items() if key != field}), field
