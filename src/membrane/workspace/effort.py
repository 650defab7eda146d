"""So much work and no more, whatever else the machine does.

Theory of operation
-------------------
What is not found in time counts as not found, or fails a run.  Measured by the clock, a machine that is busy with
something else would decide about that.  So what is bounded is the time of a processor that this thread has used; a
much longer time by the clock is for a disk or a network file system that does not answer.
"""

from __future__ import annotations

import time


class Effort:
    """A bound of work that begins now.

    Args:
        seconds: of a processor, by this thread.
        patience: seconds by the clock.
    """

    __slots__ = ("_until", "_worked")

    def __init__(self, seconds: float, patience: float) -> None:
        self._worked = time.thread_time() + seconds
        self._until = time.monotonic() + patience

    def over(self) -> bool:
        """Was it all used?"""
        return time.thread_time() >= self._worked or time.monotonic() >= self._until
