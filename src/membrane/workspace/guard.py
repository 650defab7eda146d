"""File rules while the command runs: names that appear are masked, frozen or taken away.

Theory of operation
-------------------
The mounts made at the start bind what existed then.  The kernel drops a mount when somebody outside replaces the
file below it (an editor's atomic save), and new names have no mount at all.  The guard watches the workspace from
outside and closes both gaps after the fact, within milliseconds: a hidden name gets a new mask, a read-only one a new
read-only mount, and a protected name that is not what git itself writes is moved to the quarantine.  One that was
benign is judged again every second or so: inotify(7) tells of no write through a mapping.  At the end
of the session the tree is compared with the index of the start once more, so that nothing slips through between
the last event and the death of the last process.

The guard runs in the supervisor, in small steps; the mounts themselves are made by the launcher.
"""

from __future__ import annotations

import os
import time

from ..events import AccessDenied, NameQuarantined, access_as_data
from ..plan.model import Mask, ReadOnly
from ..policy.model import PathAccess
from .judge import judge, open_up, quarantine
from .scan import rescan
from .sockets import Appeared
from .watch import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..events import Event
    from ..host.unixsockets import Table
    from ..plan.model import MountOp, ScanHit
    from .scan import ScanResult

DEEPEST_CLOSED = 64  # closed directories within each other that are opened again at the end
MOST_MOVED = 2000  # names taken away in one session before the command is ended
SLICE = 0.003  # seconds of one background step
AGAIN = 1.0  # seconds after which benign protected names are judged again
AGAIN_EACH = 0.02  # seconds more for each of them: judging takes about a fiftieth of it
MOST_BENIGN = 4096  # protected names that are judged again


class Guard:
    """Live file rules of one session.

    Args:
        root: the workspace.
        result: the scan of the start.
        shown: put before a path that is reported; empty for the workspace.
        store: host directory that protected names are moved to; made when it is first needed.
        mask: mounts operations inside the sandbox.
        report: takes events.
        table: the unix sockets of the sandbox; None: those of others are not covered when they appear.
    """

    def __init__(
        self,
        root: str,
        result: ScanResult,
        *,
        shown: str,
        store: str,
        mask: Callable[[Sequence[MountOp]], None],
        report: Callable[[Event], None],
        table: Table | None = None,
    ) -> None:
        self._root = root
        self._prefix = root.rstrip("/") + "/"
        self._index = result.index
        self._shown = shown
        self._store = store
        self._mask = mask
        self._report = report
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._watcher = Watcher(result.index)
        self._sockets = Appeared(self._root_fd, self._prefix, table)
        self._benign: dict[str, None] = {}  # protected names that appeared and were let be
        self._judge_at = 0.0  # time.monotonic(); 0: there are none
        self.left: list[str] = []  # protected names that could not be taken away
        self.moved: list[tuple[str, str]] = []  # (path, where it went)

    def look(self) -> None:
        """Deal with what changed since the scan in the places that matter most; before the command is released."""
        self._watcher.look()
        self.on_change()

    def fileno(self) -> int:
        return self._watcher.fileno()

    def step(self) -> bool:
        """Extend the watch by a few milliseconds of work; True when everything is watched."""
        return self._watcher.step(SLICE)

    def warnings(self) -> list[str]:
        """What could not be watched, told once."""
        told, self._watcher.warnings = self._watcher.warnings, []
        return told

    @property
    def overrun(self) -> int:
        """How many names may be taken away, when there were more; else 0."""
        return MOST_MOVED if len(self.moved) > MOST_MOVED else 0

    def timeout(self) -> float | None:
        """Seconds after which ``on_change`` must be called though nothing is readable; None: no need."""
        wanted, sockets = self._watcher.timeout(), self._sockets.timeout()
        if sockets is not None:
            wanted = sockets if wanted is None else min(wanted, sockets)
        if not self._judge_at:
            return wanted
        again = max(0.0, self._judge_at - time.monotonic())
        return again if wanted is None else min(wanted, again)

    def on_change(self) -> None:
        """Deal with what appeared."""
        ops: list[MountOp] = []
        for name in self._watcher.read():
            target = self._prefix + name.path
            if name.effect == "socket":
                self._sockets.add(name.path)
            elif name.effect == "hide":
                ops.append(Mask(target, name.directory))
            elif name.effect == "readonly" or name.known:
                # A known protected name was replaced from outside: inside it was a mount point.
                ops.append(ReadOnly(target))
            else:
                self._judge(name.path, ops)
        ops += self._sockets.operations()
        if self._judge_at and time.monotonic() >= self._judge_at:
            before, self._benign, self._judge_at = self._benign, {}, 0.0
            for path in before:
                self._judge(path, ops)
            if self._benign:
                self._judge_at = time.monotonic() + AGAIN + AGAIN_EACH * len(self._benign)
        if ops:
            self._mask(ops)

    def _judge(self, path: str, ops: list[MountOp]) -> None:
        try:
            if not judge(self._root_fd, path):
                if len(self._benign) < MOST_BENIGN and os.path.lexists(self._prefix + path):
                    self._benign[path] = None
                    self._judge_at = self._judge_at or time.monotonic() + AGAIN  # not put off by the next one
                return
        except FileNotFoundError:
            return
        except PermissionError:
            pass  # what can not be looked at is not benign
        shown = self._shown + path
        self._report(
            AccessDenied(
                access_as_data(PathAccess(shown, "write")), "protected name", rule=None, hint=None, source="mount"
            )
        )
        try:
            os.makedirs(self._store, 0o700, exist_ok=True)
            directory = os.open(self._store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                to = quarantine(self._root_fd, path, directory)
            finally:
                os.close(directory)
        except FileNotFoundError:
            return
        except OSError:
            # It can not be moved: freeze it, and say at the end that it is still there.
            ops.append(ReadOnly(self._prefix + path))
            if shown not in self.left:
                self.left.append(shown)
            return
        self.moved.append((shown, os.path.join(self._store, to)))
        self._report(NameQuarantined(shown, os.path.join(self._store, to)))

    def finish(self) -> None:
        """After the last process of the sandbox has ended: what appeared since the start, once more."""
        self._watcher.close()
        # Masks of a dead sandbox need no mending; only protected names are still a danger.
        for hit in self._what_appeared():
            if hit.effect == "protect":
                self._judge(hit.path, [])
        os.close(self._root_fd)

    def _what_appeared(self) -> tuple[ScanHit, ...]:
        """New names, also in directories that the command closed to us (chmod 000)."""
        try:
            open_up(self._root_fd, ".")
        except OSError:
            pass  # the workspace is somebody else's: the command could not close it either
        hits: tuple[ScanHit, ...] = ()
        for _round in range(DEEPEST_CLOSED):
            hits = rescan(self._index).hits
            closed = [
                hit.path
                for hit in hits
                if hit.directory and not os.access(self._prefix + hit.path, os.R_OK | os.X_OK, follow_symlinks=False)
            ]
            for path in closed:
                try:
                    open_up(self._root_fd, path)
                except OSError:
                    self.left.append(self._shown + path)
            if not closed or self.left:
                break
        return hits
