"""Waiting for a few descriptors, whatever their numbers are.

Theory of operation
-------------------
select(2) takes no descriptor above 1023, and a caller may have left us more than that; poll(2) takes any.  But poll(2)
fails where fewer descriptors are allowed than it is asked about; where there is no pid namespace the command may set
that limit of our processes (prlimit(2)): then select(2) is asked.
"""

from __future__ import annotations

import errno
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


def ready(
    reading: Collection[int], writing: Collection[int] = (), *, seconds: float | None = None
) -> tuple[set[int], set[int]]:
    """Wait until one of the descriptors can be read, or written, or has ended.

    Args:
        reading: descriptors, those to be read from; the same one may be in both.
        writing: those to be written to.
        seconds: for how long; None: without an end.

    Returns:
        Those of ``reading`` and those of ``writing`` that would not block; both empty when the time is over.

    Raises:
        ValueError: RLIMIT_NOFILE is below their count, and one of them is above 1023.
    """
    asked: dict[int, int] = {}
    for fds, event in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for fd in fds:
            asked[fd] = asked.get(fd, 0) | event
    poll = select.poll()
    for fd, events in asked.items():
        poll.register(fd, events)
    try:
        found = poll.poll(None if seconds is None else seconds * 1000)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        readable, writable, _ = select.select(reading, writing, (), seconds)
        return set(readable), set(writable)
    ended = select.POLLHUP | select.POLLERR | select.POLLNVAL
    return (
        {fd for fd, events in found if asked[fd] & select.POLLIN and events & (select.POLLIN | ended)},
        {fd for fd, events in found if asked[fd] & select.POLLOUT and events & (select.POLLOUT | ended)},
    )
