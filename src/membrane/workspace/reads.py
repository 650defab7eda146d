"""First reads of hidden files that are empty: reported from outside, for nothing fails that the tracer would see.

Theory of operation
-------------------
Pid 1 gives each of the first names a file of its own to be covered with (``host.view.Masks``), watches that inode by
inotify(7) for its first open, and passes the descriptor out.  Opens by any name and any process are reported; who it
was is not.  Each watch reports once (IN_ONESHOT): the sandbox cannot make work for us with it.
"""

from __future__ import annotations

import os
import struct

from ..events import AccessDenied, access_as_data
from ..policy import reasons
from ..policy.model import PathAccess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Event
    from ..policy.decide import Decider
    from ..policy.model import Policy

_EVENT = struct.Struct("iIII")  # inotify(7)
_READ = 65_536  # bytes: more than all watches can report
_IN_OPEN = 0x20


class Reads:
    """Reports until ``close``.

    Args:
        fd: of the watches; taken over.
        paths: by watch, relative to the workspace.
        policy: has the rule that hides them.
        report: takes events.
    """

    def __init__(self, fd: int, paths: dict[int, str], policy: Policy, report: Callable[[Event], None]) -> None:
        self._fd = fd
        self._paths = paths
        self._policy = policy
        self._report = report
        self._decider: Decider | None = None

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Report what is left, and end."""
        self.on_change()
        os.close(self._fd)

    def on_change(self) -> None:
        """Report what was read since the last time."""
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        at = 0
        while at + _EVENT.size <= len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            path = self._paths.pop(watch, None) if mask & _IN_OPEN else None
            if path is not None:
                self._report_read(path)

    def _report_read(self, path: str) -> None:
        if self._decider is None:
            from ..policy.decide import Decider  # 10 ms that most runs never need

            self._decider = Decider(self._policy)
        access = PathAccess(path, "read")
        verdict = self._decider.decide(access)
        found = getattr(verdict, "rule", None)
        rule, hint = (None if found is None else str(found.origin)), getattr(verdict, "hint", "") or None
        self._report(AccessDenied(access_as_data(access), reasons.HIDDEN, rule, hint, source="mount"))
