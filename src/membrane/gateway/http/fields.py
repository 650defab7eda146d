"""HTTP/2 field sections (HPACK): a bounded decoder, and an encoder without state.

Theory of operation
-------------------
The decoder keeps the dynamic table of one direction.  Huffman code and static table come from the ``hpack`` package;
the loop is our own because that of ``hpack`` logs and copies for each field, which costs more than all else we do
for a request.  The tests hold both against each other.

The encoder uses the static table and literals only.  Every literal is marked "never indexed", which is what an
intermediary must do for those that came so marked (RFC 7541 section 6.2.3).  Nothing that it writes depends on what
was written before.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST_TABLE = 65536  # bytes of a dynamic table, as RFC 7541 section 4.1 counts them
NO_TABLE = b"\x20"  # a size update to 0: what an encoder without a dynamic table says first
_DEFAULT_TABLE = 4096
_OVERHEAD = 32
_STATIC: tuple[tuple[bytes, bytes], ...] = tuple(HeaderTable.STATIC_TABLE)
_STATIC_LENGTH = len(_STATIC)


class Undecodable(Exception):
    """The block is malformed; the connection cannot be read any further."""


class TooLarge(Undecodable):
    """The block is a bomb, or has more fields than any client needs."""


@lru_cache(maxsize=4096)
def _short_huffman(data: bytes) -> bytes:
    return bytes(decode_huffman(data))


class FieldDecoder:
    """Decodes the blocks of one direction, in order.

    Args:
        most: bytes of one decoded section, with 32 for each field (SETTINGS_MAX_HEADER_LIST_SIZE).
        fields: of one section.
    """

    __slots__ = ("_fields", "_limit", "_most", "_size", "_table")

    def __init__(self, most: int, fields: int) -> None:
        self._most, self._fields = most, fields
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._limit = _DEFAULT_TABLE

    def decode(self, block: bytes) -> tuple[list[bytes], list[bytes]]:
        """Names and values of a complete block.

        Raises:
            TooLarge: over the limits.
            Undecodable: against RFC 7541.
        """
        names: list[bytes] = []
        values: list[bytes] = []
        at, end, total = 0, len(block), 0
        table = self._table
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index = first & 0x7F
                    at += 1
                    # The usual cases of _entry, without the call.
                    if 0 < index <= _STATIC_LENGTH:
                        name, value = _STATIC[index - 1]
                    elif 0 < index - _STATIC_LENGTH <= len(table) and index < 0x7F:
                        name, value = table[index - _STATIC_LENGTH - 1]
                    else:
                        if index == 0x7F:
                            index, at = _integer(block, at, index)
                        name, value = self._entry(index)
                elif first & 0x60 == 0x20:
                    if names:
                        raise Undecodable("a table size update after a field")
                    limit, at = _integer(block, at + 1, 0x1F) if first & 0x1F == 0x1F else (first & 0x1F, at + 1)
                    if limit > LARGEST_TABLE:
                        raise Undecodable("a dynamic table larger than announced")
                    self._limit = limit
                    self._shrink()
                    continue
                else:
                    mask = 0x3F if first & 0x40 else 0x0F
                    index = first & mask
                    at += 1
                    if index == mask:
                        index, at = _integer(block, at, mask)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    if first & 0x40:
                        self._add(name, value)
                total += _OVERHEAD + len(name) + len(value)
                if total > self._most or len(names) >= self._fields:
                    raise TooLarge("the field section is too large")
                names.append(name)
                values.append(value)
        except IndexError:
            raise Undecodable("the block ends within a field") from None
        except HPACKError as error:
            raise Undecodable(str(error)) from None
        return names, values

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= _STATIC_LENGTH:
            return _STATIC[index - 1]
        if not _STATIC_LENGTH < index <= _STATIC_LENGTH + len(self._table):
            raise Undecodable("an index outside of the table")
        return self._table[index - _STATIC_LENGTH - 1]

    def _add(self, name: bytes, value: bytes) -> None:
        self._table.appendleft((name, value))
        self._size += _OVERHEAD + len(name) + len(value)
        if self._size > self._limit:
            self._shrink()

    def _shrink(self) -> None:
        table = self._table
        while self._size > self._limit:
            name, value = table.pop()
            self._size -= _OVERHEAD + len(name) + len(value)


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """RFC 7541 section 5.1, when the prefix is full; at most 32 bits."""
    value, shift = prefix, 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise Undecodable("an integer is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    length = first & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _integer(block, at, length)
    end = at + length
    data = block[at:end]
    if len(data) != length:
        raise Undecodable("the block ends within a field")
    if first & 0x80:
        data = _short_huffman(data) if length <= 128 else bytes(decode_huffman(data))
    return data, end


# ---------------------------------------------------------------- encoding

_WHOLE = {field: bytes([0x80 | index]) for index, field in enumerate(_STATIC, 1) if field[1]}
_NAMES: dict[bytes, bytes] = {}


def _prefixed(value: int, mask: int, pattern: int) -> bytes:
    if value < mask:
        return bytes([pattern | value])
    out = bytearray([pattern | mask])
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


for _index, (_name, _value) in enumerate(_STATIC, 1):
    _NAMES.setdefault(_name, _prefixed(_index, 0x0F, 0x10))


def _literal(name: bytes, value: bytes) -> bytes:
    known = _NAMES.get(name)
    if known is None:
        known = b"\x10" + _prefixed(len(name), 0x7F, 0) + name
    return known + _prefixed(len(value), 0x7F, 0) + value


_usual = lru_cache(maxsize=4096)(_literal)


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """One block, without the dynamic table and without Huffman code."""
    return b"".join(
        [
            _WHOLE.get(field) or (_usual(*field) if len(field[1]) <= 64 and field[0] != b":path" else _literal(*field))
            for field in fields
        ]
    )
