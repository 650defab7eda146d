"""Names that the host has and a writable tree of the sandbox's own has not yet: its home, its scratch directories.

Theory of operation
-------------------
A program that writes to ``~/.npm/_cacache/tmp`` asks for it, is told ENOENT, makes the directories and goes on.  The
caller has that directory, the sandbox has not: at the first call it looks like a refusal ("not in the view"), and at
the next it is none.  So such a refusal is held for ``HELD`` seconds.  When the name, or a directory on the way to it,
is made by then, nothing was refused; else it is reported, with the time of that: the times of a source are in order.

What is held is bounded by the caller of ``hold``: what finds no room is reported at once.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import AccessDenied

HELD = 3.0  # seconds


class Absent:
    """The refusals that wait, by path and what was tried."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, ...], tuple[float, str, AccessDenied, str]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: tuple[str, ...], path: str, process: str, event: AccessDenied) -> None:
        """Hold a refusal.

        Args:
            key: of equal ones, of which the first waits and the others count.
            path: canonical name inside.
            process: as JSON.
        """
        held = self._held.get(key)
        if held is None:
            self._held[key] = time.monotonic() + HELD, process, event, path
        else:
            self._held[key] = (*held[:2], held[2].replace(count=held[2].count + 1), path)

    def made(self, path: str) -> None:
        """A name was made: what waited for it, or for what is below it, was not refused."""
        if self._held:
            below = path + "/"
            for key in [key for key, held in self._held.items() if held[3] == path or held[3].startswith(below)]:
                del self._held[key]

    def due(self, *, everything: bool) -> Iterator[tuple[str, AccessDenied]]:
        """Take those that waited long enough, or all: process, event."""
        until = time.monotonic()
        for key in [key for key, held in self._held.items() if everything or held[0] <= until]:
            yield self._held.pop(key)[1:3]
