"""Writes ``docs/events.schema.json`` from the types of ``membrane.events``: ``python -m scripts.event_schema``.

A JSON schema (draft 2020-12) of one line of ``--events``, ``trace show --json`` and ``trace export --format events``.
Events and fields that it does not know are valid, as docs/events.md says.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from membrane.events import EVENTS, LONGEST, Binding, Process
from membrane.value import Value

FILE = Path(__file__).parents[1] / "docs" / "events.schema.json"
TEXT = {"$ref": "#/$defs/text"}
PLAIN: dict[str, dict[str, Any]] = {
    "str": TEXT,
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str | None": {"anyOf": [TEXT, {"type": "null"}]},
    "tuple[str, ...]": {"type": "array", "items": TEXT},
    "tuple[tuple[str, str], ...]": {
        "type": "array",
        "items": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2},
    },
    "tuple[Binding, ...]": {"type": "array", "items": {"$ref": "#/$defs/Binding"}},
    "dict[str, int]": {"type": "object", "additionalProperties": {"type": "integer"}},
    "dict[str, Any]": {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}},
}


def _of(annotation: str) -> dict[str, Any]:
    if annotation.startswith("Literal"):
        words = ast.literal_eval(annotation.removeprefix("Literal"))
        return {"enum": list(words)}
    return PLAIN[annotation]


def _object(kind: type[Value]) -> dict[str, Any]:
    fields = {name: _of(kind.__annotations__[name]) for name in kind.field_names if name != "source"}
    required = [name for name in fields if kind is not Process or name not in kind._defaults]
    return {"type": "object", "required": required, "properties": fields}


def schema() -> dict[str, Any]:
    """The schema, as JSON can hold it."""
    common = {
        "time": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.(\d{3}|\d{6})Z$"},
        "session": {"type": "string"},
        "seq": {"type": "integer"},
        "event": {"type": "string"},
        "source": {"type": "string"},
        "process": {"anyOf": [{"$ref": "#/$defs/Process"}, {"type": "null"}]},
    }
    cut = {"text": {"type": "string"}, "truncated": {"const": True}, "sha256": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of Membrane (docs/events.md)",
        "type": "object",
        "required": list(common),
        "properties": common,
        "allOf": [
            {"if": {"properties": {"event": {"const": name}}}, "then": _object(kind)} for name, kind in EVENTS.items()
        ],
        "$defs": {
            "text": {
                "description": f"escaped; cut after {LONGEST} characters, then with the SHA-256 of the whole",
                "anyOf": [{"type": "string"}, {"type": "object", "required": list(cut), "properties": cut}],
            },
            "Process": _object(Process),
            "Binding": _object(Binding),
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(schema(), indent=1) + "\n")
