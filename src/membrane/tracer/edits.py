"""Calls that wait while the supervisor changes a repository's ``config`` in their place (``workspace.gitedit``).

Theory of operation
-------------------
rename(2) of ``config.lock`` over a ``config`` that is bound read-only is passed on, not carried out: the tracer has no
right to write.  ``Edits`` holds the call, bounded in number and time, while the tracer goes on with others.  The
supervisor's word ends it: 0 (it is done: the call returns 0 without the kernel's rename), an errno, or ``GO_ON``.
Without a word the call is refused at its deadline; the supervisor puts nothing in place shortly before that.

In a repository that the command has made, ``config`` is its own file.  There the tracer refuses in advance what the
guard would take away together with the rest of the file (``is_first``).

``git init`` asks whether the file system keeps modes by switching the execute bit of ``config`` to and fro (setup.c
``create_default_files``), and would write down that it does not: chmod(2) is passed on as well.
"""

from __future__ import annotations

import os
import stat
import time

from ..value import Value
from .messages import CallWaits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import FileChanged, FileRenamed
    from ..host.notify import Place
    from .messages import Decide
    from .processes import Known

HELD = -2  # in the place of an errno: the call is answered later
GO_ON = -1  # let the kernel carry it out
MOST_HELD = 16  # calls
LONGEST = 30.0  # seconds, for a supervisor that hangs; one on a busy machine answers
MOST_LOCKS = 64  # locks of the sandbox's own, the newest
_NAMES = (b"config", b".gitmodules")
_CONFIGS = (b"config", b"config.worktree")
_LOCKS = (b"config.lock", b"config.worktree.lock")


class Held(Value):
    """One call; it was made at ``at``, clock.time_ns()."""

    thread: int
    at: int
    known: Known | None
    event: FileRenamed | FileChanged  # as if it were done
    to: Place
    deadline: float  # time.monotonic()
    mode: int = -1  # that is asked for


class Answer(Value):
    """What to do with a call that waited: 0, ``GO_ON`` or an errno, and why."""

    number: int
    held: Held
    what: int
    why: str


class Edits:
    """The calls that wait.

    Args:
        ask: passes a call to the supervisor.
    """

    def __init__(self, ask: Callable[[CallWaits], None]) -> None:
        self._ask = ask
        self._held: dict[int, Held] = {}

    def due(self) -> float:
        """When ``late`` has something to answer, time.monotonic(); 0: nothing waits."""
        return min((held.deadline for held in self._held.values()), default=0.0)

    def begin(self, number: int, held: Held) -> bool:
        """Hold a call and pass it on; false: there is no room, and it is not held."""
        if len(self._held) >= MOST_HELD:
            return False
        self._ask(CallWaits(number, int(held.deadline * 1e6), held.mode, held.to.path))
        self._held[number] = held
        return True

    def decided(self, word: Decide) -> Answer | None:
        """The supervisor's word; None: it came too late."""
        held = self._held.pop(word.number, None)
        return None if held is None else Answer(word.number, held, word.what, word.why)

    def late(self) -> list[Answer]:
        """The calls that have waited too long."""
        import errno

        now = time.monotonic()
        over = [number for number, held in self._held.items() if held.deadline <= now]
        return [Answer(number, self._held.pop(number), errno.EACCES, "it took too long") for number in over]


class OwnLocks:
    """Lock files of git's configuration that processes of the sandbox have made.

    One that git *outside* has made becomes the configuration by its rename: who has it open, or has put another file in
    its place, has written that.  So the command leaves it alone: it may remove a lock of its own, or one whose maker is
    gone, and rename it to what it is the lock of.  (git makes one with O_EXCL, and never opens it again.)  Of a
    repository that the command has made the guard judges each change of the configuration itself.
    """

    def __init__(self) -> None:
        self._made: dict[bytes, int] = {}  # path: the process

    def made(self, path: bytes, process: int) -> None:
        if is_lock(path):
            self._made.pop(path, None)
            if len(self._made) >= MOST_LOCKS:
                del self._made[next(iter(self._made))]
            self._made[path] = process

    def may_remove(self, path: bytes, process: int) -> bool:
        maker = self._made.get(path, 0)
        return maker == process or (maker > 0 and not os.path.exists(f"/proc/{maker}"))


def is_lock(path: bytes) -> bool:
    """Is it git's lock file of a configuration?"""
    name = os.path.basename(path).lower()
    return name == b".gitmodules.lock" or (name in _LOCKS and _is_in_git(path))


def is_config(path: bytes) -> bool:
    """Is it a configuration in a git directory?"""
    return os.path.basename(path).lower() in _CONFIGS and _is_in_git(path)


def _is_in_git(path: bytes) -> bool:
    return any(part.lower().endswith(b".git") for part in path.split(b"/")[:-1])


def is_edit(source: Place, to: Place, flags: int) -> bool:
    """Is a rename that of git's lock file over a configuration, or ``.gitmodules``, that is bound read-only?"""
    return (
        flags == 0
        and to.readonly
        and not source.readonly
        and os.path.basename(to.path) in _NAMES
        and source.path == to.path + b".lock"
        and all(each.status is not None and stat.S_ISREG(each.status.st_mode) for each in (source, to))
    )


def is_first(source: Place, to: Place) -> bool:
    """Is a rename that of git's lock file to the ``config`` of a repository that was made inside?"""
    return (
        not to.readonly
        and os.path.basename(to.path) == b"config"
        and source.path == to.path + b".lock"
        and (b"/.git/" in to.path or to.path.removesuffix(b"/config").endswith(b".git"))
    )


def is_switch(place: Place, what: str, owner: int) -> bool:
    """Is a change by ``owner`` that of the mode of such a file?"""
    return (
        what == "mode"
        and place.readonly
        and os.path.basename(place.path) in _NAMES
        and place.status is not None
        and stat.S_ISREG(place.status.st_mode)
        and place.status.st_uid == owner
    )
