"""What the host makes in a reviewed workspace while a command runs in it.

Theory of operation
-------------------
The command does not write the workspace, so there is nothing to judge and nothing to take away: what appears there is
made outside.  A name that a rule hides is reported by inotify, as in a live workspace, and so milliseconds after it
is there.  It gets a whiteout, by which it is hidden from then on, and a mask over it for who has looked it up before:
the kernel keeps what it has found.  A name that a rule makes read-only is bound onto itself.

The repository of a workspace that keeps it elsewhere has no layer of masks: what appears there gets the mask alone.
"""

from __future__ import annotations

import os

from ..plan.model import Mask, ReadOnly
from ..workspace import sockets
from ..workspace.watch import Watcher, Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..host.unixsockets import Table
    from ..plan.model import MountOp
    from ..workspace.scan import ScanResult
    from ..workspace.watch import Appeared
    from .cell import Masks

MOST_MASKS = 10_000  # names that are hidden in one run; one more ends it


class Late(Watching):
    """What the host makes in a reviewed workspace while it runs: names that a rule hides or makes read-only.

    It has what ``workspace.guard.Guard`` has for the loop of a run.

    Args:
        result: the scan of the start.
        masks: of the change set; None: this tree has none.
        uppers: its layers: under a name that they have the command has its own file.
        mask: mounts operations inside the sandbox.
        table: the unix sockets of the sandbox; None: those of others are not covered when they appear.
    """

    def __init__(
        self,
        root: str,
        result: ScanResult,
        masks: Masks | None,
        uppers: Sequence[str],
        *,
        mask: Callable[[Sequence[MountOp]], None],
        table: Table | None = None,
    ) -> None:
        self._prefix = root.rstrip("/") + "/"
        self._masks, self._uppers, self._mask = masks, tuple(uppers), mask
        self._root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._watcher = Watcher(result.index)
        self._patterns = result.index.patterns
        self._sockets = sockets.Appeared(self._root_fd, self._prefix, table)
        self._masked = 0
        self.overrun = ""  # why the command must be ended
        self.unfinished = ""
        self.left: list[str] = []  # nothing is left in a workspace that is not written
        self.kept: list[str] = []
        self.moved: list[tuple[str, str]] = []

    def timeout(self) -> float | None:
        """Seconds after which ``on_change`` must be called though nothing is readable; None: no need."""
        waits = [each for each in (self._watcher.timeout(), self._sockets.timeout()) if each is not None]
        return min(waits) if waits else None

    def on_change(self) -> None:
        """Masks for what appeared."""
        ops: list[MountOp] = []
        for name in self._watcher.read():
            target = self._prefix + name.path
            if name.effect == "socket":
                self._sockets.add(name.path)
            elif self._is_hidden(name):
                if self._masks is not None and name.path in self._masks.names:
                    continue  # by name
                self._hide(name.path)
                if not any(os.path.lexists(f"{upper}/{name.path}") for upper in self._uppers):
                    ops.append(Mask(target, name.directory))
            elif name.effect == "readonly":
                ops.append(ReadOnly(target))
        ops += self._sockets.operations()
        if ops:
            self._mask(ops)

    def _is_hidden(self, name: Appeared) -> bool:
        """A name that is protected as well is reported as that, which says nothing in a reviewed workspace."""
        if name.effect == "protect":
            return self._patterns.effect(name.path.rpartition("/")[2], name.path, name.directory, False) == "hide"
        return name.effect == "hide"

    def _hide(self, path: str) -> None:
        self._masked += 1
        try:
            if self._masks is not None:
                self._masks.add(path)
        except OSError as error:
            self.overrun = f"{path} cannot be hidden: {error.strerror}"
        if self._masked > MOST_MASKS:
            self.overrun = f"more than {MOST_MASKS} hidden names were made in the workspace"

    def finish(self) -> None:
        """The last process of the sandbox has ended."""
        self._watcher.close()
        os.close(self._root_fd)
