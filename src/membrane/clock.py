"""The time of events: one clock for all of a session, which nobody sets.

Theory of operation
-------------------
The time of day is read once, when this module is loaded; from there it goes on by CLOCK_BOOTTIME (clock_gettime(2)),
which runs through suspends and is never set, and by which the kernel's own events are stamped.  So neither the order
of a record nor a window of time in it depends on who sets the clock of the machine meanwhile.  What is forked inherits
the offset; the network process, an interpreter of its own, is told it.  ``was_set_by`` says at the end how far the
clock of the machine is from this one by then.
"""

from __future__ import annotations

import time

_offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def time_ns() -> int:
    """Nanoseconds since the epoch."""
    return _offset + time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def seconds() -> float:
    """Seconds since the epoch."""
    return time_ns() / 1e9


def offset() -> int:
    """Nanoseconds of the epoch at the boot of the machine, as this clock has it."""
    return _offset


def adopt(offset_ns: int) -> None:
    """Go by the clock of another process of the session: its ``offset``."""
    global _offset
    _offset = offset_ns


def was_set_by() -> int:
    """Nanoseconds by which the time of day is ahead of this clock; negative: behind it."""
    return time.time_ns() - time_ns()
