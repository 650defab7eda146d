"""One event of each type, with text that is hard to write down in every field that takes text."""

from __future__ import annotations

import ast
from typing import Any

from membrane.events import LONGEST, Binding, Event

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


def sample(kind: type[Event]) -> Event:
    fields = {}
    for name in kind.field_names:
        annotation = kind.__annotations__[name]
        fields[name] = VALUES[annotation] if annotation in VALUES else _word(annotation)
    return kind(**fields)


def _word(annotation: str) -> str:
    """The first word of a ``Literal``."""
    return "network" if annotation == "Source" else str(ast.literal_eval(annotation.removeprefix("Literal"))[0])
