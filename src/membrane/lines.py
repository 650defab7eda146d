"""Events as lines of JSON, as ``json.dumps(events.encode(...))`` gives them and in a fraction of the time.

Theory of operation
-------------------
The one encoder of the tracer and of the gateway, which write one line after the other between two events of a busy
sandbox; so what repeats is kept: the names of a type's fields, and the texts of values (programs, directories, flags),
which are escaped once.  The json package costs more than the start of a run may.
"""

from __future__ import annotations

from . import clock
from .events import LONGEST, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import JSONDecoder
    from typing import Any, NoReturn

    from .events import Event

_MOST_KEPT = 4096  # texts of values
_LONGEST_KEPT = 256  # characters of one


class Lines:
    """The lines of one source of one session.

    Args:
        session: its id.
        source: of all events, whatever they say.
        digits: of the fraction of a second.

    Attributes:
        counts: how many of each type.
    """

    def __init__(self, session: str, source: str, digits: int = 6) -> None:
        self._between = f'", "session": {quoted(session)}, "seq": '
        self._source, self._digits = source, digits
        self._types: dict[type[Event], tuple[str, str, tuple[tuple[str, str], ...]]] = {}
        self._texts: dict[str | tuple[str, ...], str] = {}
        self.counts: dict[str, int] = {}

    def line(self, now: int, sequence: int, process: str, event: Event) -> str:
        """One event at ``now`` (nanoseconds since the epoch), in ASCII and without a newline; ``process`` is JSON."""
        row = self._types.get(event.__class__)
        if row is None:
            row = self._row(event)
        kind, middle, names = row
        self.counts[kind] += 1
        fields, texts = event.__dict__, self._texts
        body = ""
        for name, head in names:
            value = fields[name]
            what = value.__class__
            if what is str or what is tuple:
                text = texts.get(value)
                body += head + (text if text is not None else self._kept(value))
            elif what is int:
                body += f"{head}{value}"
            elif what is bool:
                body += head + ("true" if value else "false")
            else:
                body += head + json_text(plain(value))
        return f'{{"time": "{clock.iso(now, self._digits)}{self._between}{sequence}{middle}{process}{body}}}'

    def _row(self, event: Event) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        kind = type(event).__name__
        names = tuple((name, f', "{name}": ') for name in event.field_names if name != "source")
        row = kind, f', "event": "{kind}", "source": "{self._source}", "process": ', names
        self._types[type(event)] = row
        self.counts[kind] = 0
        return row

    def _kept(self, value: Any) -> str:
        text = value_text(value)
        # A tuple of other things may be equal to one of another type: (1,) == (True,).
        if len(text) <= _LONGEST_KEPT and (type(value) is str or all(type(item) is str for item in value)):
            if len(self._texts) >= _MOST_KEPT:
                self._texts.clear()
            self._texts[value] = text
        return text


def value_text(value: Any) -> str:
    """``json_text(plain(value))``."""
    if type(value) is str:
        if len(value) <= LONGEST and value.isascii() and value.isprintable() and "\\" not in value:
            return quoted(value)
    elif type(value) is tuple:
        return "[" + ", ".join([value_text(item) for item in value]) + "]"
    return json_text(plain(value))


def json_text(value: Any) -> str:
    """``json.dumps(value)`` for plain values.

    Raises:
        TypeError: a value that JSON has no form for, NaN included.
    """
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float) and value - value == 0:
        return float.__repr__(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{quoted(str(key))}: {json_text(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([json_text(item) for item in value]) + "]"
    raise TypeError(f"not plain: {type(value).__name__}")


def quoted(text: str) -> str:
    """A string as JSON, in ASCII."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    from _json import encode_basestring_ascii  # a library to load, which most short runs need not

    return encode_basestring_ascii(text)


_decoder: list[JSONDecoder] = []


def parsed(line: str | bytes) -> Any:
    """The JSON value (RFC 8259) of a line that a broken process may have written.

    Unlike ``json.loads`` it takes no NaN and no Infinity, also none that is written as a number (1e400): they are no
    JSON, and what prints the value again would print none.

    Raises:
        ValueError: it is not JSON, or is nested deeper than Python reads.
    """
    if not _decoder:
        from json import JSONDecoder

        _decoder.append(JSONDecoder(parse_constant=_no_number, parse_float=_finite))
    try:
        return _decoder[0].decode(line if isinstance(line, str) else line.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value - value:  # infinite: the difference is a NaN
        raise ValueError("a number is larger than a float holds")
    return value
