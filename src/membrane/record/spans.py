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

LAYOUT: Final = 1  # bpf/wire.h
CLOCK, LOST, REPEATED = 128, 129, 130
_HEADER, _TIME = 96, 32  # bpf/wire.h: bytes of struct event before its text, and the offset of its time
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


def split(piece: bytes, most: int) -> list[tuple[bytes, int]]:
    """``piece``, which the clock's record begins, as pieces of at most ``most`` bytes, or of one record of the kernel.

    What has no end, which no ``drain`` gives, stays in the last one.

    Returns:
        Each with the time of its latest event, ns since the epoch; 0: it has none.
    """
    head = piece[: 8 + CLOCK_RECORD.size]
    offset = CLOCK_RECORD.unpack_from(head, 8)[4]
    out, begin, position, last, latest = [], len(head), len(head), len(piece) - 8, 0
    while position <= last:
        length = int.from_bytes(piece[position : position + 4], "little") & 0x3FFFFFFF  # BUSY and DISCARD are above
        after = position + 8 + ((length + 7) & ~7)
        if after - begin + len(head) > most and position > begin:
            out.append((head + piece[begin:position], latest and latest + offset))
            begin, latest = position, 0
        if length >= _HEADER:  # what user space puts in between is shorter
            at = position + 8 + _TIME
            latest = max(latest, int.from_bytes(piece[at : at + 8], "little"))
        position = after
    out.append((head + piece[begin:], latest and latest + offset))
    return out


def lost_record(kind: int, count: int, start: int, end: int) -> bytes:
    """``count`` events of a kind were lost between two moments (ns since boot)."""
    return frame(LOST_RECORD.pack(LOST, kind, 0, 0, count, start, end))


def repeated_record(device: int, inode: int, flags: int, process: int, count: int, time: int) -> bytes:
    """A reported open was repeated ``count`` times since; ``process``: 0, or the kernel's number of the one."""
    # framed at once: a session ends with thousands
    return _FRAMED_REPEATED.pack(REPEATED_RECORD.size, 0, REPEATED, 0, 0, 0, device, flags, inode, count, process, time)
