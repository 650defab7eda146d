"""Checkpoints that are made of a change set while a run goes on, for the run's record.

Theory of operation
-------------------
A checkpoint is made by the process that asks for it: the program that the sandbox belongs to, or ``membrane
checkpoint`` beside a run (``store.beside``).  Both replace the set's file by a rename, which inotify(7) reports to the
supervisor; what is new in it becomes an event.  Its time is that of the checkpoint: the processes of the sandbox go on
as soon as that is made, and may have done something before the supervisor gets to it.

The end of a watch waits for a grace period of the kernel (fsnotify_destroy_group: about 8 ms), so it begins a moment
after the command has (``watch``), as that of a workspace does (``workspace.watch``): a command that is over at once
does not pay it.  ``look`` needs none.
"""

from __future__ import annotations

import os

from .. import clock
from ..errors import MembraneError
from ..events import CheckpointMade
from ..host.syscalls import inotify_add_watch, inotify_init

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Event
    from .store import Held

_IN_MOVED_TO = 0x80  # inotify(7)
_READ = 1 << 16
_LATEST = 60_000_000_000  # ns that a report may be late; more says that the clock of the machine was set meanwhile


class Marks:
    """Of one set.

    Args:
        held: the set, locked.
        report: is called with each event and its time, in ns since the epoch by ``clock``.
    """

    def __init__(self, held: Held, report: Callable[[Event, int], object]) -> None:
        self._held, self._report = held, report
        self._known = {(each.label, each.made) for each in held.meta.checkpoints}
        self.fd = -1

    def watch(self) -> None:
        """From now on ``fd`` is readable when there may be new ones, and ``look`` is to be called; they are looked at.

        Raises:
            OSError: there is no inotify(7) instance left.
        """
        fd = inotify_init()
        try:
            inotify_add_watch(fd, os.fsencode(self._held.path), _IN_MOVED_TO)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self.look()

    def look(self) -> None:
        """Report what is new."""
        if self.fd >= 0:
            try:
                os.read(self.fd, _READ)  # what happened is in the file; more than this comes again
            except BlockingIOError:
                pass
        try:
            self._held.look_again()
        except MembraneError:
            return  # discarded, or it cannot be read: who uses it says so
        for each in self._held.meta.checkpoints:
            if (each.label, each.made) not in self._known:
                self._known.add((each.label, each.made))
                now, made = clock.time_ns(), each.made - clock.was_set_by()
                at = made if now - _LATEST <= made <= now else now
                self._report(CheckpointMade(self._held.name, each.label), at)

    def close(self) -> None:
        """Stop; it may be called again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
