"""Waiting for a few descriptors, whatever their numbers are.

Theory of operation
-------------------
select(2) takes no descriptor above 1023, and a caller may have left us more than that; poll(2) takes any.
"""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def ready(
    reading: Iterable[int], writing: Iterable[int] = (), *, seconds: float | None = None
) -> tuple[set[int], set[int]]:
    """Wait until one of the descriptors can be read, or written, or has ended.

    Args:
        reading: descriptors, those to be read from; the same one may be in both.
        writing: those to be written to.
        seconds: for how long; None: without an end.

    Returns:
        Those of ``reading`` and those of ``writing`` that would not block; both empty when the time is over.

    Raises:
        OSError: more descriptors than RLIMIT_NOFILE are asked about (EINVAL, poll(2)).
    """
    asked: dict[int, int] = {}
    for fds, event in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for fd in fds:
            asked[fd] = asked.get(fd, 0) | event
    poll = select.poll()
    for fd, events in asked.items():
        poll.register(fd, events)
    found = poll.poll(None if seconds is None else seconds * 1000)
    ended = select.POLLHUP | select.POLLERR | select.POLLNVAL
    readable = {fd for fd, events in found if asked[fd] & select.POLLIN and events & (select.POLLIN | ended)}
    writable = {fd for fd, events in found if asked[fd] & select.POLLOUT and events & (select.POLLOUT | ended)}
    return readable, writable
