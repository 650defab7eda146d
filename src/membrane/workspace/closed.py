"""Directories of the workspace that are closed to the caller, and belong to his subordinate ids: what is in them?

Theory of operation
-------------------
The data directory of a database in a container (``-v ./data:/var/lib/postgresql/data``) is one of another id, mode
0700.  A walk with the caller's rights cannot say whether a hidden or protected name is in it, so it is covered whole,
and the container of the next run would find it empty or read-only.  With ``containers: nested`` a child that is root
over the caller's ids (``host.subordinate``) walks as well.  A directory in which no rule finds anything stays as it is;
in any other case, and where the walk takes too long, it is covered as without this.

The workspace itself must not be one: no process of the caller could look at what is in it, nor begin in it again.  At
the end of a run it is the caller's again (``take_back``).

Who opens such a directory again (only a run with containers can) makes it one like those that were never closed: what
is then in it is looked at by the guard.
"""

from __future__ import annotations

import os
import stat

from . import protect
from .effort import Effort
from .scan import READ_ONLY, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scan import Entry, Patterns

SECONDS = 5.0  # of a processor for the second walk, and
PATIENCE = 60.0  # seconds of it by the clock
_LARGEST = 1 << 20  # bytes of the answer


def harmless(root: str, patterns: Patterns, closed: Sequence[str]) -> frozenset[str]:
    """Those of ``closed`` that belong to subordinate ids with all below them, and in which no rule finds a name.

    Args:
        root: as of ``scan.scan``.
        closed: directories, relative to it, that cannot be listed.
    """
    from ..host.subordinate import as_root_of_them

    answer = os.memfd_create("closed", os.MFD_CLOEXEC)
    try:

        def look() -> None:
            effort = Effort(SECONDS, PATIENCE)
            entries, _changed = walk(root, {}, patterns, None, effort)
            if not effort.over():
                found = b"\0".join(os.fsencode(path) for path in closed if _is_plain(path, entries))
                os.write(answer, found[:_LARGEST])

        if not as_root_of_them(look):
            return frozenset()
        names = os.pread(answer, _LARGEST, 0)
    finally:
        os.close(answer)
    return frozenset(os.fsdecode(names).split("\0")) & frozenset(closed)


def take_back(root: int) -> None:
    """Give the caller a workspace that the command gave to a subordinate id of his and closed; what is in it stays.

    One that is another's stays as it is.

    Args:
        root: a descriptor of it.
    """
    from ..host.subordinate import as_root_of_them

    place = f"/proc/self/fd/{root}"

    def take() -> None:
        os.chown(place, 0, 0)  # root over the caller's ids: the caller, and his group
        os.chmod(place, stat.S_IMODE(os.stat(place).st_mode) | stat.S_IRWXU)

    as_root_of_them(take)


def _is_plain(path: str, entries: dict[str, Entry]) -> bool:
    if path not in entries:
        return False
    below = f"{path}/"
    return all(
        not entry[6] and entry[4] < READ_ONLY and entry[4] & protect.KIND <= protect.PACKAGE
        for name, entry in entries.items()
        if name == path or name.startswith(below)
    )
