"""git must not believe that something is there which was refused.

Theory of operation
-------------------
When git cannot make or remove a file in a checkout, a switch or a merge it says so, goes on, writes the new index,
and ends with 0 (unpack-trees.c ``check_updates``: its callers look for -1 and get -2).  What is missing then counts
as deleted, and the next ``git commit -a`` deletes it for everybody.

While it works git holds ``index.lock``, and renames it to ``index`` when it is done.  ``Locks`` remembers who made
such a lock; a refusal of that process, or of one that it started, spoils the lock, and the tracer refuses its rename:
git stops with an error, and HEAD and index stay as they were.

The workspace may be a directory of the work tree, whose other files a rule shows read-only: what git itself cannot make
or remove there spoils the lock as well.  A child of it may want to write anywhere outside of the workspace, as a hook
does: that is no file of the checkout.

What lies in a ``.git`` is in no index (read-cache.c ``verify_path``): a child of git that may not install a hook there
(``git-lfs clean``, as a filter, tries to each time and goes on) spoils nothing.
"""

from __future__ import annotations

LOCK, INDEX = b"/index.lock", b"/index"
MOST = 64  # locks that are remembered, the newest
_DEEPEST = 16  # processes between the one that was refused and the one that holds the lock


class Locks:
    """The ``index.lock`` files of the sandbox's processes."""

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[int, str]] = {}  # path: who made it, and the name that spoiled it

    def made(self, path: bytes, thread: int) -> None:
        """A process makes a lock."""
        self._made.pop(path, None)
        if len(self._made) >= MOST:
            del self._made[next(iter(self._made))]
        self._made[path] = (_look(thread, b"Tgid:"), "")

    def spoil(self, thread: int, name: str, *, alone: bool = False) -> None:
        """Something was refused to this thread.

        Args:
            name: absolute, or below the workspace.
            alone: only a lock of the thread's own process is spoiled, none of a parent's.
        """
        if not self._made or ".git" in name.split("/")[:-1]:
            return
        holders = {process for process, _name in self._made.values()}
        process = _look(thread, b"Tgid:")
        for _ in range(_DEEPEST):
            if process <= 1:
                return
            if process in holders:
                break
            if alone:
                return
            process = _look(process, b"PPid:")
        for path, (holder, spoiled) in self._made.items():
            if holder == process:
                self._made[path] = (holder, spoiled or name)

    def taken(self, path: bytes) -> str:
        """The lock gets another name: the refused name that spoiled it; empty: none did.  It is forgotten."""
        return self._made.pop(path, (0, ""))[1]


def process_of(thread: int) -> int:
    """The process of a thread; 0: it is gone."""
    return _look(thread, b"Tgid:")


def _look(process: int, key: bytes) -> int:
    """A number of proc_pid_status(5); 0: it is gone."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            for line in file:
                if line.startswith(key):
                    return int(line[len(key) :])
    except (OSError, ValueError):
        pass
    return 0
