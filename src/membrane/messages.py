"""Messages between our own processes: types with named fields, and the one codec that makes datagrams of them.

Theory of operation
-------------------
A message is a ``Message`` with annotated fields; a ``Table`` lists those that may go one way between two processes.
On the wire it is the number of its type in the table (one byte) and its fields in their order::

    int               8 bytes, signed            bool              1 byte, 0 or 1
    float             8 bytes (IEEE 754)
    str               length, UTF-8; bytes of a file name that is none keep theirs (PEP 383)
    bytes             length, content            tuple[str, ...]   count, each as str
    dict[str, int]    count, each as str and int
    tuple[int, ...]   count, each as int         Json              length, JSON (RFC 8259)
    Fd                nothing: the next descriptor that travels with the datagram (unix(7), SCM_RIGHTS)
    Fd | None         a bool, and the descriptor where it is true        Fds   count, that many descriptors

Lengths and counts are 4 bytes; all numbers are little endian.  Any other annotation is the name of a record, which the
table has a ``Layout`` for: length, and the layout's bytes.  A layout trusts its bytes (``value``), so it stands in
tables of what the supervisor sends only, never in one of what comes from where the command runs.

What is not exactly that is refused with ``Malformed``: an unknown number, a field that is cut short, a byte or a
descriptor too many or too few.  Nothing is read or made beyond the length of the datagram.  This module does no I/O;
``host.channel`` sends and receives.
"""

from __future__ import annotations

import struct

from .errors import InternalError
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    from .value import Layout

    Fd: TypeAlias = int
    Fds: TypeAlias = tuple[int, ...]
    Json: TypeAlias = Any

DATAGRAM = 1 << 16  # bytes of a datagram that is received


class Malformed(InternalError):
    """What came is no message of that table."""


class Message(Value):
    """Base of all messages; a subclass has annotated fields and no subclass of its own."""


class Failure(Message):
    """A step failed in the process that sends this.

    ``errno``: 0 where the system did not refuse it.  ``target``: what the step was done to; perhaps empty.
    """

    errno: int
    step: str
    cause: str
    target: str


class Table:
    """The messages that go one way between two processes.

    Args:
        name: who sends to whom.
        kinds: their types; the order is the number on the wire.
        longest: bytes of a message that are received.  More than ``DATAGRAM`` only from a process that is trusted with
            the memory of the receiver.
        layouts: of the records in them, by the name of their type.
    """

    def __init__(self, name: str, *kinds: type[Message], longest: int = DATAGRAM, **layouts: Layout) -> None:
        self.name, self.kinds, self.longest = name, kinds, longest
        self._layouts = layouts
        self._numbers = {kind: number for number, kind in enumerate(kinds)}

    def encode(self, message: Message) -> tuple[bytes, list[int]]:
        """A message as bytes and descriptors.

        Raises:
            KeyError: it is in no row of this table.
            struct.error: a number is too large for its field.
        """
        out, fds = [bytes((self._numbers[type(message)],))], list[int]()
        fields = message.__dict__
        for name, kind in type(message).__annotations__.items():
            value = fields[name]
            put = _PUT.get(kind)
            if put is not None:
                out.append(put(value))
            elif kind == "Fd":
                fds.append(value)
            elif kind == "Fd | None":
                out.append(b"\0" if value is None else b"\1")
                if value is not None:
                    fds.append(value)
            elif kind == "Fds":
                out.append(_LENGTH.pack(len(value)))
                fds += value
            else:
                out.append(_put_bytes(self._layouts[kind].dump(value)))
        return b"".join(out), fds

    def decode(self, data: bytes, fds: Sequence[int] = ()) -> Message:
        """The message that ``encode`` made these bytes and descriptors of; the descriptors stay the caller's.

        Raises:
            Malformed: they are none.
        """
        body = _Body(data[1:], fds)
        try:
            kind = self.kinds[data[0]]
            values = [self._take(body, field) for field in kind.__annotations__.values()]
            body.end()
            return kind(*values)
        except (ValueError, IndexError, KeyError, TypeError, struct.error, RecursionError) as error:
            raise Malformed("read a message", f"{type(error).__name__}: {error}", target=self.name) from None

    def _take(self, body: _Body, kind: str) -> Any:
        take = _TAKE.get(kind)
        if take is not None:
            return take(body)
        return self._layouts[kind].restore(_take_bytes(body))


_LENGTH, _INT, _FLOAT = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")


class _Body:
    """What is left of a message while it is read."""

    def __init__(self, data: bytes, fds: Sequence[int]) -> None:
        self._data, self._at = data, 0
        self._fds, self._given = fds, 0

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("it is cut short")
        return self._data[start : self._at]

    def length(self) -> int:
        length: int = _LENGTH.unpack(self.take(4))[0]
        return length

    def fds(self, count: int) -> tuple[int, ...]:
        start, self._given = self._given, self._given + count
        if self._given > len(self._fds):
            raise ValueError("a descriptor is missing")
        return tuple(self._fds[start : self._given])

    def end(self) -> None:
        if self._at != len(self._data) or self._given != len(self._fds):
            raise ValueError("something follows it")


def _put_bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _put_str(value: str) -> bytes:
    return _put_bytes(value.encode("utf-8", "surrogateescape"))


def _put_strs(value: tuple[str, ...]) -> bytes:
    return _LENGTH.pack(len(value)) + b"".join([_put_str(each) for each in value])


def _put_counts(value: dict[str, int]) -> bytes:
    return _LENGTH.pack(len(value)) + b"".join([_put_str(name) + _INT.pack(count) for name, count in value.items()])


def _put_json(value: Any) -> bytes:
    import json

    return _put_bytes(json.dumps(value).encode())


def _take_bytes(body: _Body) -> bytes:
    return body.take(body.length())


def _take_bool(body: _Body) -> bool:
    return (False, True)[body.take(1)[0]]


def _take_int(body: _Body) -> int:
    value: int = _INT.unpack(body.take(8))[0]
    return value


def _take_float(body: _Body) -> float:
    value: float = _FLOAT.unpack(body.take(8))[0]
    return value


def _take_str(body: _Body) -> str:
    return _take_bytes(body).decode("utf-8", "surrogateescape")


def _take_json(body: _Body) -> Any:
    import json

    return json.loads(_take_bytes(body))


def _take_ints(body: _Body) -> tuple[int, ...]:
    count = body.length()
    return struct.unpack(f"<{count}q", body.take(8 * count))


def _take_strs(body: _Body) -> tuple[str, ...]:
    return tuple([_take_str(body) for _ in range(body.length())])  # each takes 4 bytes at least, or raises


def _take_counts(body: _Body) -> dict[str, int]:
    return {_take_str(body): _take_int(body) for _ in range(body.length())}


_PUT: dict[str, Callable[[Any], bytes]] = {
    "int": _INT.pack,
    "float": _FLOAT.pack,
    "bool": lambda value: b"\1" if value else b"\0",
    "bytes": _put_bytes,
    "str": _put_str,
    "tuple[int, ...]": lambda value: struct.pack(f"<I{len(value)}q", len(value), *value),
    "tuple[str, ...]": _put_strs,
    "dict[str, int]": _put_counts,
    "Json": _put_json,
}
_TAKE: dict[str, Callable[[_Body], Any]] = {
    "int": _take_int,
    "float": _take_float,
    "bool": _take_bool,
    "bytes": _take_bytes,
    "str": _take_str,
    "tuple[int, ...]": _take_ints,
    "tuple[str, ...]": _take_strs,
    "dict[str, int]": _take_counts,
    "Json": _take_json,
    "Fd": lambda body: body.fds(1)[0],
    "Fd | None": lambda body: body.fds(1)[0] if _take_bool(body) else None,
    "Fds": lambda body: body.fds(body.length()),
}
