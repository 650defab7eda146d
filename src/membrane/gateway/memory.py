"""How much may wait in memory: one budget for the queues of all connections.

Theory of operation
-------------------
A queue that its reader does not empty stops the reading of its writer, so no queue grows for ever; but four thousand of
them together may be large.  So how much one may hold depends on how much is free: a fixed part of that (the dynamic
threshold of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
Transactions on Networking 6(2), 1998).  Alone a queue gets ``MOST_ONE``; the more is held, the less everybody gets, the
late ones as much as the early ones; and something is always left for the next.  Each holder says how much it holds
whenever that has changed.

A queue may always have ``LEAST``, so that every connection goes on whatever the others hold.
"""

from __future__ import annotations

MOST_ALL = 64 << 20  # bytes that wait in all queues together, beside the ``LEAST`` of each
MOST_ONE = 262144  # bytes that wait in one
LEAST = 4096  # bytes that may wait in any
_PART = 64  # a queue may hold one part in so many of what is free


class MemoryBudget:
    """The budget of one process."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0  # bytes, of all queues

    def each(self) -> int:
        """Bytes that one queue may hold now."""
        free = (MOST_ALL - self.held) // _PART
        return MOST_ONE if free >= MOST_ONE else max(free, LEAST)

    def change(self, before: int, now: int) -> int:
        """Note that a queue holds ``now`` bytes where it held ``before``; returns ``now``."""
        self.held += now - before
        return now
