"""Events as lines of the record, as ``events.encode`` gives them and in a fraction of the time.

Theory of operation
-------------------
Between two events of a busy sandbox the tracer makes a line of each, so what repeats is kept: the head of a second, the
names of a type's fields, and the texts of values (programs, directories, flags), which are escaped once.
"""

from __future__ import annotations

import time
from _json import encode_basestring_ascii as _quoted

from ..events import LONGEST, plain
from ..record.writer import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import Event

_MOST_KEPT = 4096  # texts of values
_LONGEST_KEPT = 256  # characters of one


class Lines:
    """The lines of one source of one session, numbered; ``counts``: how many of each type."""

    def __init__(self, session: str, source: str) -> None:
        self._between = f'Z", "session": "{session}", "seq": '
        self._source = source
        self._second, self._head = -1, ""
        self._sequence = 0
        self._types: dict[type[Event], tuple[str, str, tuple[tuple[str, str], ...]]] = {}
        self._texts: dict[str | tuple[str, ...], str] = {}
        self.counts: dict[str, int] = {}

    def line(self, now: int, process: str, event: Event) -> bytes:
        """One event at ``now`` (nanoseconds since the epoch); ``process`` is JSON."""
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            parts = time.gmtime(second)
            self._head = (
                f'{{"time": "{parts.tm_year:04}-{parts.tm_mon:02}-{parts.tm_mday:02}'
                f"T{parts.tm_hour:02}:{parts.tm_min:02}:{parts.tm_sec:02}."
            )
            self._second = second
        row = self._types.get(event.__class__)
        if row is None:
            row = self._row(event)
        kind, middle, names = row
        self._sequence += 1
        self.counts[kind] += 1
        fields, texts = event.__dict__, self._texts
        body = ""
        for name, head in names:
            value = fields[name]
            what = value.__class__
            if what is str or what is tuple:
                text = texts.get(value)
                body += head + (text if text is not None else self._kept(value))
            elif what is bool:
                body += head + ("true" if value else "false")
            else:
                body += head + json_text(plain(value))
        return (f"{self._head}{rest // 1000:06}{self._between}{self._sequence}{middle}{process}{body}}}\n").encode(
            "ascii"
        )

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
            return _quoted(value)
    elif type(value) is tuple:
        return "[" + ", ".join([value_text(item) for item in value]) + "]"
    return json_text(plain(value))
