"""Messages between our own processes: types with named fields, and the one codec that makes datagrams of them.

Theory of operation
-------------------
A message is a ``Message`` with annotated fields; a ``Table`` lists those that may go one way between two processes.
On the wire it is the number of its type in the table (one byte) and its fields in their order::

    int            length (1 byte), signed         float       8 bytes (IEEE 754)
    bool           1 byte, 0 or 1                  bytes       length, content
    str            length, UTF-8; bytes of a file name that are none keep their value (PEP 383)
    tuple[T, ...]  count, each as T (int, str)     Json        length, JSON (RFC 8259)
    Fd             nothing: the next descriptor that travels with the datagram (unix(7), SCM_RIGHTS)
    Fd | None      a bool, and the descriptor where it is true         Fds   count, that many descriptors

Lengths and counts are 4 bytes where nothing else is said; all numbers are little endian.  An int has at most 16 bytes:
the kernel's cookies have 64 bits without a sign (seccomp_unotify(2)).  Any other annotation is the name of a record,
which the table has a ``Layout`` for: length, and the layout's bytes.  A layout trusts its bytes (``value``), so it
stands in tables of what the supervisor sends only, never in one of what comes from where the command runs.

What is not exactly that is refused with ``Malformed``: an unknown number, a field that is cut short, a byte or a
descriptor too many or too few.  Nothing is read or made beyond the length of the message.  This module does no I/O;
``host.channel`` sends and receives datagrams.

Between the supervisor and the gateway the messages are in a byte stream, each behind its length (4 bytes,
``Table.frame`` and ``Frames``): what the gateway has to send is limited by what the supervisor takes, so it is sent
piece by piece, and one event may be longer than a datagram.
"""

from __future__ import annotations

import struct

from .errors import InternalError
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TypeAlias

    from .value import Layout

    Fd: TypeAlias = int
    Fds: TypeAlias = tuple[int, ...]
    Json: TypeAlias = Any
    _Form: TypeAlias = tuple[Callable[[Any], bytes], Callable[["_Body"], Any]]

DATAGRAM = 1 << 16  # bytes of a datagram that is received


class Malformed(InternalError):
    """What came is no message of that table."""


class Message(Value):
    """Base of all messages; a subclass has annotated fields and no subclass of its own."""

    @staticmethod
    def match(one: Sequence[object], other: Sequence[object]) -> None:
        """For ``__post_init__`` of a message with two fields that belong together, item by item.

        Raises:
            ValueError: they have not the same length.
        """
        if len(one) != len(other):
            raise ValueError(f"{len(one)} and {len(other)} do not match")


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
        longest: bytes of a message that are received.  In a datagram more than ``DATAGRAM`` only from a process that
            is trusted with the memory of the receiver.
        layouts: of the records in them, by the name of their type.
    """

    def __init__(self, name: str, *kinds: type[Message], longest: int = DATAGRAM, **layouts: Layout) -> None:
        self.name, self.kinds, self.longest, self.layouts = name, kinds, longest, layouts
        self._numbers = {kind: number for number, kind in enumerate(kinds)}

    def encode(self, message: Message) -> tuple[bytes, list[int]]:
        """A message as bytes and descriptors.

        Raises:
            KeyError: it is in no row of this table.
            ValueError: a number is too large for its field.
        """
        out, fds = [bytes((self._numbers[type(message)],))], list[int]()
        fields = message.__dict__
        for name, kind in type(message).__annotations__.items():
            value = fields[name]
            if kind in _FORMS:
                out.append(_FORMS[kind][0](value))
            elif kind == "Fd":
                fds.append(value)
            elif kind == "Fd | None":
                out.append(b"\0" if value is None else b"\1")
                fds += [] if value is None else [value]
            elif kind == "Fds":
                out.append(_LENGTH.pack(len(value)))
                fds += value
            else:
                out.append(_put_bytes(self.layouts[kind].dump(value)))
        return b"".join(out), fds

    def frame(self, message: Message) -> bytes:
        """A message without descriptors for a stream: its length, and what ``encode`` gives.

        Raises:
            KeyError, ValueError: see ``encode``; it has descriptors, or is longer than ``longest``.
        """
        data, fds = self.encode(message)
        if fds or len(data) > self.longest:
            raise ValueError(f"{len(data)} bytes and {len(fds)} descriptors do not fit in a frame {self.name}")
        return _put_bytes(data)

    def decode(self, data: bytes, fds: Sequence[int] = ()) -> Message:
        """The message that ``encode`` made these bytes and descriptors of; the descriptors stay the caller's.

        Raises:
            Malformed: they are none.
        """
        body = _Body(data[1:], fds)
        try:
            kind = self.kinds[data[0]]
            values = [self._take(field, body) for field in kind.__annotations__.values()]
            body.end()
            return kind(*values)
        except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
            raise Malformed("read a message", f"{type(error).__name__}: {error}", target=self.name) from None

    def _take(self, kind: str, body: _Body) -> Any:
        if kind in _FORMS:
            return _FORMS[kind][1](body)
        if kind == "Fd":
            return body.fds(1)[0]
        if kind == "Fd | None":
            return body.fds(1)[0] if _take_bool(body) else None
        if kind == "Fds":
            return body.fds(_take_length(body))
        return self.layouts[kind].restore(_take_bytes(body))


class Frames:
    """The messages of a stream, whose bytes arrive in pieces.

    Args:
        takes: the messages that may come.
    """

    def __init__(self, takes: Table) -> None:
        self._takes, self._data = takes, bytearray()

    @property
    def missing(self) -> int:
        """How many bytes end what the next message has begun with: its length, then its content.

        Raises:
            Malformed: the length is more than the table allows.
        """
        if len(self._data) < _LENGTH.size:
            return _LENGTH.size - len(self._data)
        return _LENGTH.size + self._length(0) - len(self._data)

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole now; at most one that is not is kept.

        Raises:
            Malformed: what came is no message that may come here; nothing after it is read.
        """
        self._data += data
        at = 0
        try:
            while len(self._data) - at >= _LENGTH.size:
                start = at + _LENGTH.size
                end = start + self._length(at)
                if end > len(self._data):
                    return
                at = end
                yield self._takes.decode(bytes(self._data[start:end]))
        finally:
            del self._data[:at]

    def _length(self, at: int) -> int:
        length: int = _LENGTH.unpack_from(self._data, at)[0]
        if length > self._takes.longest:
            raise Malformed("read a message", f"{length} bytes are too many", target=self._takes.name)
        return length


_LENGTH, _FLOAT = struct.Struct("<I"), struct.Struct("<d")
_LONGEST_INT = 16  # bytes


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

    def fds(self, count: int) -> tuple[int, ...]:
        start, self._given = self._given, self._given + count
        if self._given > len(self._fds):
            raise ValueError("a descriptor is missing")
        return tuple(self._fds[start : self._given])

    def end(self) -> None:
        if self._at != len(self._data) or self._given != len(self._fds):
            raise ValueError("something follows it")


def _put_int(value: int) -> bytes:
    length = value.bit_length() // 8 + 1
    if length > _LONGEST_INT:
        raise ValueError(f"{value} is too large")
    return bytes((length,)) + value.to_bytes(length, "little", signed=True)


def _take_int(body: _Body) -> int:
    length = body.take(1)[0]
    if not 1 <= length <= _LONGEST_INT:
        raise ValueError("no number has that length")
    return int.from_bytes(body.take(length), "little", signed=True)


def _put_bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _take_length(body: _Body) -> int:
    return int.from_bytes(body.take(4), "little")


def _take_bytes(body: _Body) -> bytes:
    return body.take(_take_length(body))


def _take_bool(body: _Body) -> bool:
    return (False, True)[body.take(1)[0]]


def _put_json(value: Any) -> bytes:
    import json

    return _put_bytes(json.dumps(value).encode())


def _take_json(body: _Body) -> Any:
    import json

    return json.loads(_take_bytes(body))


def _many(put: Callable[[Any], bytes], take: Callable[[_Body], Any]) -> _Form:
    """A count and as many values, each of which has a byte at least."""
    return (
        lambda value: _LENGTH.pack(len(value)) + b"".join([put(each) for each in value]),
        lambda body: tuple([take(body) for _ in range(_take_length(body))]),
    )


_INT: _Form = _put_int, _take_int
_STR: _Form = (
    lambda value: _put_bytes(value.encode("utf-8", "surrogateescape")),
    lambda body: _take_bytes(body).decode("utf-8", "surrogateescape"),
)
_FORMS: dict[str, _Form] = {
    "int": _INT,
    "str": _STR,
    "bytes": (_put_bytes, _take_bytes),
    "bool": (lambda value: b"\1" if value else b"\0", _take_bool),
    "float": (_FLOAT.pack, lambda body: _FLOAT.unpack(body.take(8))[0]),
    "tuple[int, ...]": _many(*_INT),
    "tuple[str, ...]": _many(*_STR),
    "Json": (_put_json, _take_json),
}
