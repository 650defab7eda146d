"""Events as a record gives them back: typed, whatever the file holds.

Theory of operation
-------------------
A line was written by us but made from what a sandbox chose, by a process that a sandbox may have broken.  ``parse`` is
the one place where the types of fields are checked.  They are those of the classes in ``events``: a value of another
type becomes the zero value of its own, a field that is not there (a record of an earlier version) its default.
Readers work on ``Recorded.event``; ``Recorded.data`` is the JSON object that ``show --json`` and the exports print, in
the order of the record, with what this version does not know as it came.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..events import EVENTS, Binding, Event, Process, ProcessStarted
from ..value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    Made = TypeVar("Made", bound=Value)

_LARGEST = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unknown(Value):
    """An event that this version has no class for, with what is asked of any event."""

    path: str = ""
    to: str = ""
    result: str = ""
    verdict: str = ""
    requested: bool = False
    source: str = ""


class Asked(Value):
    """The question of an ``AccessDenied``; what its kind does not have is empty."""

    kind: str = ""
    name: str = ""
    type: str = ""
    host: str = ""
    address: str = ""
    port: int = 0
    scheme: str = ""
    method: str = ""
    path: str = ""
    operation: str = ""
    protocol: str = ""


class Recorded(Value):
    """One event of a record.

    Attributes:
        kind: its name; of a later version when ``event`` is ``Unknown``.
        process: who did it; None where that is not known.
        host, port: of the connection, where ``joining`` found it and the event has none itself.
        container: name and image of the container that the process is in, where ``joining`` found them; its id else.
        request: of a program that two sources report: how it was asked for (``joining.Once``).
        data: the JSON object.
    """

    kind: str
    time: str
    session: str
    seq: int
    source: str
    process: Process | None
    event: Event | Unknown
    data: dict[str, Any]
    host: str = ""
    port: int = 0
    container: str = ""
    request: ProcessStarted | None = None

    def by(self, process: Process | None) -> Recorded:
        """The same, of the process that ``joining`` found, if it did."""
        if process is None:
            return self
        shown = {name: getattr(process, name) for name in process.field_names}
        if not process.container:
            del shown["container"]
        return self.replace(process=process, data={**self.data, "process": shown, "joined": True})

    def towards(self, host: str, port: int | None = None) -> Recorded:
        """The same, of a connection to ``host``."""
        more = {"host": host} if port is None else {"host": host, "port": port}
        return self.replace(**more, data={**self.data, **more})

    def asked_for(self, request: ProcessStarted) -> Recorded:
        """The same, of a program that was asked for like this."""
        shown = {"path": request.path, "argv": list(request.argv)}
        return self.replace(request=request, data={**self.data, "asked": shown})

    # What is asked of any event.

    @property
    def who(self) -> tuple[int, int] | None:
        """Pid and start time of the process: a number that is used again is another one."""
        return (self.process.pid, self.process.start) if self.process is not None and self.process.pid else None

    @property
    def program(self) -> str:
        """The name of the process, empty where it is not known."""
        return "" if self.process is None else self.process.name

    @property
    def path(self) -> str:
        """The path that it has, empty where there is none."""
        return getattr(self.event, "path", "")

    @property
    def to(self) -> str:
        """Where that went, or leads to."""
        return getattr(self.event, "to", "")

    @property
    def result(self) -> str:
        """The name of the errno, empty for success."""
        return getattr(self.event, "result", "")

    @property
    def requested(self) -> bool:
        """Is ``result`` a prediction?"""
        return getattr(self.event, "requested", False)

    @property
    def verdict(self) -> str:
        """``allow`` or ``deny``, empty where nothing was judged."""
        return getattr(self.event, "verdict", "")


def text(value: Any) -> str:
    """A string field, also where it was cut; empty for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"]) + "..."
    return ""


def nanoseconds(stamp: str) -> int:
    """Nanoseconds since the epoch of an ISO 8601 time in UTC, 0 for what is none."""
    try:
        delta = datetime.fromisoformat(stamp) - _EPOCH
    except (ValueError, TypeError):
        return 0
    return ((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000


def asked(access: Mapping[str, Any]) -> Asked:
    """The question, from ``AccessDenied.access``."""
    return _made(Asked, _read(Asked, access)[0])


def parse(data: dict[str, Any]) -> Recorded:
    """A JSON object with ``event`` and ``time``, both strings, as an event."""
    kind: type[Event | Unknown] = EVENTS.get(data["event"], Unknown)
    fields, checked = _read(kind, data)
    common = {name: fields.pop(name) for name in _COMMON}
    event = _made(kind, fields)
    source = fields["source"]
    own = {"kind": data["event"], "time": data["time"], **common, "source": source, "event": event, "data": checked}
    return _made(Recorded, {**Recorded._defaults, **own})


def _made(kind: type[Made], fields: dict[str, Any]) -> Made:
    """What the constructor would make of all fields, in a fraction of the time."""
    record = object.__new__(kind)
    record.__dict__.update(fields)
    return record


def _read(kind: type[Value], data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of ``kind``, and the object as JSON with every one of them of its type."""
    rows, defaults = _ROWS[kind]
    fields, checked = dict(defaults), {}
    for name, value in data.items():
        if name in rows:
            exact, check, read = rows[name]
            if type(value) is exact and (exact is not int or -_LARGEST < data[name] < _LARGEST):
                fields[name] = value
            else:
                value = check(value)
                fields[name] = read(value)
        checked[name] = value
    return fields, checked


# ---------------------------------------------------------------- types of fields


def _as_text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return {"text": value["text"], "truncated": True, "sha256": text(value.get("sha256"))}
    return ""


def _as_number(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        return 0  # also neither infinite nor a NaN
    return value


def _number(value: Any) -> int:
    return int(_as_number(value) or 0)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_access(value: Any) -> Any:
    if not isinstance(value, dict):
        return {}
    return {name: _of_access(name, item) for name, item in value.items()}


def _of_access(name: str, value: Any) -> Any:
    if name == "port":
        return _number(value)
    if isinstance(value, list):
        return [text(item) for item in value]
    return value if isinstance(value, bool) else text(value)


def _object(kind: type[Value], value: Any) -> dict[str, Any] | None:
    """An object with the fields of ``kind`` and no others, none of them missing."""
    return _read(kind, value)[0] if isinstance(value, dict) else None


_NO_CONTAINER = {"container": ""}


def _process(value: Any) -> dict[str, Any] | None:
    """The JSON object of a process, which names a container only where it is in one."""
    found = _object(Process, value)
    if found and not found["container"]:
        del found["container"]
    return found


# By the annotation: the type that needs no look, how another value is checked that stays JSON, what that is as a field.
_Reading = tuple[type | None, "Callable[[Any], Any]", "Callable[[Any], Any]"]
_TYPES: dict[str, _Reading] = {
    "str": (str, _as_text, text),
    "str | None": (str, _as_text, lambda value: None if value is None else text(value)),
    "int": (int, _as_number, _number),
    "float": (None, _as_number, lambda value: value or 0),
    "bool": (bool, lambda _value: False, lambda value: value is True),
    "tuple[str, ...]": (
        None,
        lambda value: [_as_text(item) or "" for item in _items(value)],
        lambda value: tuple([text(item) for item in _items(value)]),
    ),
    "tuple[tuple[str, str], ...]": (
        None,
        lambda value: [[text(each) for each in item] for item in _items(value) if len(_items(item)) == 2],
        lambda value: tuple([tuple(item) for item in _items(value)]),
    ),
    "tuple[Binding, ...]": (
        None,
        lambda value: [_object(Binding, item) for item in _items(value) if isinstance(item, dict)],
        lambda value: tuple([_made(Binding, item) for item in _items(value)]),
    ),
    "dict[str, int]": (
        None,
        lambda value: {name: _number(item) for name, item in value.items()} if isinstance(value, dict) else {},
        lambda value: value or {},
    ),
    "dict[str, Any]": (None, _as_access, lambda value: value or {}),
}
_COMMON: dict[str, _Reading] = {
    "session": _TYPES["str"],
    "seq": _TYPES["int"],
    "process": (
        None,
        _process,
        lambda value: value and _made(Process, {**_NO_CONTAINER, **value}),
    ),
}


def _rows(kind: type[Value], common: dict[str, _Reading]) -> tuple[dict[str, _Reading], dict[str, Any]]:
    """How each field is read, and what it is when it is not there.

    A ``Literal`` is text: a word of a later version stays as it is.
    """
    rows = {**common, **{name: _TYPES.get(kind.__annotations__[name], _TYPES["str"]) for name in kind.field_names}}
    return rows, {name: kind._defaults.get(name, read(None)) for name, (_exact, _check, read) in rows.items()}


_ROWS = {kind: _rows(kind, _COMMON) for kind in (*EVENTS.values(), Unknown)}
_ROWS |= {kind: _rows(kind, {}) for kind in (Asked, Process, Binding)}
