"""The records that user space puts between the kernel's: the time, what was lost, what was repeated.

Theory of operation
-------------------
``EbpfSource.drain`` writes them, ``decode`` reads them.  They are here because who writes needs nothing of the decoder.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LAYOUT: Final = 1  # native/wire.h
CLOCK, LOST, REPEATED = 128, 129, 130
_OPEN, _RESULT_SIGN = 4, 55  # native/wire.h: a type, and the octet of ``result`` that holds its sign
CLOCK_RECORD = struct.Struct("<4Hq")  # type, layout, -, -, time of day minus time since boot in ns
LOST_RECORD = struct.Struct("<4HQQQ")  # type, kind, -, -, number, first and last moment in ns since boot
REPEATED_RECORD = struct.Struct("<4HIIQIIQ")  # type, -, -, -, device, flags, inode, number, process, moment
_FRAMED_REPEATED = struct.Struct("<II" + REPEATED_RECORD.format[1:])

# What can be lost, by number (wire.h, LOST_*)
LOST_KINDS: Final = ("process", "file", "change", "socket", "call", "nested", "scope", "unknown")


def frame(payload: bytes) -> bytes:
    """``payload`` as a record, framed as the kernel frames its own (kernel/bpf/ringbuf.c)."""
    return struct.pack("<II", len(payload), 0) + payload + bytes(-len(payload) % 8)


def clock_record(offset: int) -> bytes:
    """What must stand first in each stored piece; ``offset``: time of day minus time since boot, ns."""
    return frame(CLOCK_RECORD.pack(CLOCK, LAYOUT, 0, 0, offset))


def split(piece: bytes, most: int) -> list[bytes]:
    """``piece``, which the clock's record begins, as pieces of at most ``most`` bytes, or of one record of the kernel.

    Each holds what must be kept, or the bulk (``is_bulk``), in the order of ``piece``.  What has no end, which no
    ``drain`` gives, stays in the last one.
    """
    head = piece[: 8 + CLOCK_RECORD.size]
    out, begin, position, last, bulk = [], len(head), len(head), len(piece) - 8, False
    while position <= last:
        length = _length(piece, position)
        after = position + 8 + ((length + 7) & ~7)
        before, bulk = bulk, _opened(piece, position)
        if (after - begin + len(head) > most or bulk != before) and position > begin:
            out.append(head + piece[begin:position])
            begin = position
        position = after
    out.append(head + piece[begin:])
    return out


def is_bulk(part: bytes) -> bool:
    """Does this part of a ``split`` hold opens that succeeded, and nothing else?"""
    return _opened(part, 8 + CLOCK_RECORD.size)


def _length(piece: bytes, position: int) -> int:
    return int.from_bytes(piece[position : position + 4], "little") & 0x3FFFFFFF  # BUSY and DISCARD are above


def _opened(piece: bytes, position: int) -> bool:
    begin = position + 8
    return (
        _RESULT_SIGN < _length(piece, position) <= len(piece) - begin
        and piece[begin] == _OPEN
        and piece[begin + _RESULT_SIGN] < 0x80
    )


def lost_record(kind: int, count: int, start: int, end: int) -> bytes:
    """``count`` events of a kind were lost between two moments (ns since boot)."""
    return frame(LOST_RECORD.pack(LOST, kind, 0, 0, count, start, end))


def repeated_record(device: int, inode: int, flags: int, process: int, count: int, time: int) -> bytes:
    """An open that was told was repeated ``count`` times since; ``process``: 0, or the kernel's number of the one."""
    # framed at once: a session ends with thousands
    return _FRAMED_REPEATED.pack(REPEATED_RECORD.size, 0, REPEATED, 0, 0, 0, device, flags, inode, count, process, time)
