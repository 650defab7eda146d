"""The time of events: one clock for all of a session, which is never set.

Theory of operation
-------------------
The time of day is read once, when this module is loaded; from there it goes on by CLOCK_BOOTTIME (clock_gettime(2)),
which runs through suspends and is never set, and by which the kernel's own events are stamped.  So neither the order
of a record nor a window of time in it depends on who sets the clock of the machine meanwhile.  What is forked inherits
the offset; the gateway, an interpreter of its own, gets it.  ``was_set_by`` says at the end how far the
clock of the machine is from this one by then.
"""

from __future__ import annotations

import time

_shift: int | None = None
_written = (-1, "")  # the second that was written last, and how
_offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def time_ns() -> int:
    """Nanoseconds since the epoch."""
    return _offset + time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def seconds() -> float:
    """Seconds since the epoch."""
    return time_ns() / 1e9


def nanoseconds(seconds: float) -> int:
    """Seconds since the epoch in nanoseconds; a product of both would lose what a float holds of the fraction."""
    whole = int(seconds)
    return whole * 1_000_000_000 + int((seconds - whole) * 1e9)


def offset() -> int:
    """Nanoseconds of the epoch at the boot of the machine, as this clock has it."""
    return _offset


def since_boot() -> int:
    """Nanoseconds since boot, as the kernel counts for itself (bpf_ktime_get_boot_ns): of no time namespace."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - _time_namespace()


def offset_of_the_kernel() -> int:
    """What makes a time of ``since_boot`` one of this clock."""
    return _offset + _time_namespace()


def _time_namespace() -> int:
    """Nanoseconds by which CLOCK_BOOTTIME is ahead of the kernel's in our time namespace (time_namespaces(7))."""
    global _shift
    if _shift is None:
        _shift = 0
        try:
            with open("/proc/self/timens_offsets") as file:
                for clock, seconds_ahead, nanoseconds in map(str.split, file):
                    if clock in ("boottime", "7"):  # the number, before Linux 5.7
                        _shift = int(seconds_ahead) * 1_000_000_000 + int(nanoseconds)
        except (OSError, ValueError):
            pass  # a kernel without time namespaces
    return _shift


def iso(nanoseconds: int, digits: int = 6) -> str:
    """ISO 8601 in UTC of nanoseconds since the epoch; the epoch for a time that the C library has no date for.

    Args:
        digits: of the fraction of a second, at least one; what is beyond is cut off.
    """
    global _written
    second, rest = divmod(nanoseconds, 1_000_000_000)
    if second != _written[0]:
        try:
            parts = time.gmtime(second)
        except (ValueError, OverflowError, OSError):
            parts = time.gmtime(0)
        date = f"{parts.tm_year:04}-{parts.tm_mon:02}-{parts.tm_mday:02}"
        _written = second, f"{date}T{parts.tm_hour:02}:{parts.tm_min:02}:{parts.tm_sec:02}."
    return f"{_written[1]}{rest // 10 ** (9 - digits):0{digits}}Z"


def adopt(offset_ns: int) -> None:
    """Go by the clock of another process of the session: its ``offset``."""
    global _offset
    _offset = offset_ns


def was_set_by() -> int:
    """Nanoseconds by which the time of day is ahead of this clock; negative: behind it."""
    return time.time_ns() - time_ns()
