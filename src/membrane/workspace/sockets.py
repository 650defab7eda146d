"""Sockets in a writable tree that a process outside listens on: covered.

Theory of operation
-------------------
Before the command runs every socket that a process has is the host's: ``covered`` says which the start covers.
Later ``Appeared`` takes each socket that appears, asks whose it is (``host.unixsockets``) and returns what to cover.
The name of a socket is there a moment before the socket is (unix_bind_bsd: mknod, then the socket's own place), so
one that no process has is asked again after each of ``AGAIN``.  What the queue has no room for is covered unseen.
"""

from __future__ import annotations

import os
import stat
import time

from ..host import syscalls, unixsockets
from ..host.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS
from ..plan.model import Mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.unixsockets import Table

AGAIN = (0.002, 0.01, 0.05, 0.25, 1.0)  # seconds after which a socket that no process has yet is asked again
MOST = 1_024  # sockets that are asked again


def covered(path: str) -> bool:
    """Whether the start covers what is at ``path``: a socket, unless no process has it."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISSOCK(os.fstat(place).st_mode) and unixsockets.bound(place) is not False
    finally:
        os.close(place)


class Appeared:
    """Sockets that appear while commands run.

    Args:
        root: an O_PATH descriptor of the tree.
        prefix: its path, with a slash at the end.
        table: the sockets of the sandbox; None: they cannot be distinguished from others, and none is covered.
    """

    def __init__(self, root: int, prefix: str, table: Table | None) -> None:
        self._root = root
        self._prefix = prefix
        self._table = table
        self._again: dict[str, tuple[float, int]] = {}  # path: when it is asked, for the how-manieth time

    def add(self, path: str) -> None:
        """``path``, relative to the tree, is a socket now."""
        if self._table is not None:
            self._again[path] = (0.0, 0)

    def timeout(self) -> float | None:
        """Seconds until ``operations`` has something to do; None: nothing."""
        if not self._again:
            return None
        return max(0.0, min(at for at, _count in self._again.values()) - time.monotonic())

    def operations(self) -> list[Mask]:
        """What is to be covered now."""
        now = time.monotonic()
        out = []
        for path, (at, count) in list(self._again.items()):
            if at > now:
                continue
            del self._again[path]
            verdict = self._judge(path)
            if verdict is None and count < len(AGAIN):
                if len(self._again) < MOST:
                    self._again[path] = (now + AGAIN[count], count + 1)
                    continue
                verdict = True
            if verdict:
                out.append(Mask(self._prefix + path, False))
        return out

    def _judge(self, path: str) -> bool | None:
        """Whether it is to be covered; None: it is a socket that no process has."""
        try:
            place = syscalls.openat2(
                self._root, path, os.O_PATH | os.O_NOFOLLOW, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
            )
        except OSError:
            return False  # gone, or behind a link: it is reported under its own name
        try:
            if not stat.S_ISSOCK(os.fstat(place).st_mode):
                return False
            if unixsockets.bound(place) is False:
                return None
            return self._table is not None and unixsockets.is_foreign(place, self._table)
        finally:
            os.close(place)
