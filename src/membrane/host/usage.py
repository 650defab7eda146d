"""What the command may keep below our state is bounded: a process of its own measures it, and says when it is too much.

Theory of operation
-------------------
Homes, layers of toolchains, change sets and the storage of containers outlive a run, and no kernel gives a plain user
a quota: project quotas need CAP_SYS_ADMIN over the file system (quotactl(2)), a file system in a file needs a mount in
the first user namespace, and a tmpfs keeps nothing.  So the blocks are counted (``st_blocks``, as du(1) does): at the
start, when the file system has lost so much free space that it could be too much, and else from time to time.  Between
two looks more may be written than the limit says; that ends the run all the same, and what is there stays.

The process is root in a user namespace of the caller's ids, also of the subordinate ones, so no mode that a command
chose keeps it out; it opens directories only, follows no link and leaves no tree.  What it cannot look at counts as
too much, and so do more entries than it counts.  It never runs in the supervisor, whose signals and limits wait for
nothing.  What is not counted: files that have no name any more and are still open.
"""

from __future__ import annotations

import os
import resource
import select
import signal as _signal
import stat
import time

from . import syscalls as sc
from .channel import HELD_DURING_FORK, SIGKILL, default_signals, die_with, write_file
from .ready import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

MOST_ENTRIES = 2_000_000  # files and directories that are counted
LOOK_EVERY = 1.0  # seconds between two looks at the free space
MEASURE_EVERY = 30.0  # seconds between two counts where the free space says nothing; and so many times what one takes:
_SHARE, _SHARE_WHEN_URGENT = 20, 4
_SAID = "limits.disk ended the command"
_PATIENCE = 30.0  # seconds for its end; it looks for the word at each directory
_BLOCK = 512  # of st_blocks, whatever st_blksize says (stat(2))
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unmeasured(Exception):
    """A tree has something that cannot be counted; the text says what."""


class _Count:
    """Bytes and entries so far."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self.bytes = self._entries = 0
        self.stopped = stopped
        self._linked: set[tuple[int, int]] = set()  # files with several names

    def add(self, details: os.stat_result, name: str) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise Unmeasured(f"more than {MOST_ENTRIES} files: {name}")
        if details.st_nlink > 1 and not stat.S_ISDIR(details.st_mode):
            file = details.st_dev, details.st_ino
            if file in self._linked:
                return
            self._linked.add(file)
        self.bytes += details.st_blocks * _BLOCK

    def enter(self, name: str, above: int | None) -> tuple[int, list[str]] | None:
        """A directory, open, and the directories in it; None: it is gone."""
        try:
            fd = os.open(name, _OPEN, dir_fd=above)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unmeasured(f"{error.strerror}: {name}") from None
        try:
            below = []
            with os.scandir(fd) as listing:
                for entry in listing:
                    try:
                        details = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    self.add(details, entry.name)
                    if stat.S_ISDIR(details.st_mode):
                        below.append(entry.name)
        except OSError as error:
            os.close(fd)
            raise Unmeasured(f"{error.strerror}: {name}") from None
        except Unmeasured:
            os.close(fd)
            raise
        return fd, below


def measure(directories: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> int:
    """The bytes that these trees take on their disk; each file once, however many names it has.

    Args:
        directories: one that is missing takes nothing.
        stopped: asked for each directory; true ends the count early.

    Raises:
        Unmeasured: too many entries, or a directory that cannot be opened.
    """
    count = _Count(stopped)
    for directory in directories:
        levels = [found] if (found := count.enter(directory, None)) else []
        try:
            while levels and not stopped():
                fd, waiting = levels[-1]
                if not waiting:
                    levels.pop()
                    os.close(fd)
                elif found := count.enter(waiting.pop(), fd):
                    levels.append(found)
        finally:
            for fd, _waiting in levels:
                os.close(fd)
    return count.bytes


class Usage:
    """The process that measures.

    Attributes:
        fd: readable when it has said that it is too much, or has ended.

    Args:
        state: our state, on whose file system they are.
        directories: trees below it.
        limit: bytes that they may take together.
        subordinate: files of the caller's subordinate ids may be in them.
    """

    def __init__(self, state: str, directories: Sequence[str], limit: int, *, subordinate: bool) -> None:
        self.fd, said = os.pipe2(os.O_CLOEXEC)
        stop, self._stop = os.pipe2(os.O_CLOEXEC)
        supervisor = os.getpid()
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, HELD_DURING_FORK)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _child(supervisor, said, stop, lambda: _watch(state, directories, limit, said, stop), subordinate)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        os.close(said)
        os.close(stop)

    def cause(self) -> str:
        """Once ``fd`` is readable: why the run must end."""
        said = os.read(self.fd, 4096).decode("utf-8", "replace")
        return said or "the process that measures limits.disk died; the command was killed"

    def close(self) -> None:
        """End it."""
        os.close(self._stop)
        os.close(self.fd)
        pidfd = os.pidfd_open(self._pid)
        if not ready((pidfd,), seconds=_PATIENCE)[0]:
            os.kill(self._pid, SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(pidfd)


def _child(supervisor: int, said: int, stop: int, action: Callable[[], None], subordinate: bool) -> NoReturn:
    try:
        os.setsid()  # signals of the caller's terminal are the supervisor's
        die_with(supervisor)
        default_signals()
        kept = sorted((said, stop))
        for first, last in ((3, kept[0] - 1), (kept[0] + 1, kept[1] - 1), (kept[1] + 1, 0xFFFFFFFF)):
            if first <= last:
                sc.close_range(first, last)
        os.chdir("/")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # one descriptor for each level of a tree
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        os.nice(10)
        _as_owner_of_all(action, subordinate)
    finally:
        os._exit(0)


def _as_owner_of_all(action: Callable[[], None], subordinate: bool) -> None:
    """``action`` with the right to read every directory of the caller's ids, and no other."""
    uid, gid = os.geteuid(), os.getegid()
    if uid and subordinate:
        from .subordinate import as_root_of_them

        keeper = os.getpid()

        def kept() -> None:
            die_with(keeper)
            action()

        if as_root_of_them(kept):
            return
    if uid:
        try:
            sc.unshare(sc.CLONE_NEWUSER)
            write_file("/proc/self/setgroups", "deny")
            write_file("/proc/self/uid_map", f"0 {uid} 1\n")
            write_file("/proc/self/gid_map", f"0 {gid} 1\n")
        except OSError:
            pass  # what is closed to us counts as too much
    action()


def _watch(state: str, directories: Sequence[str], limit: int, said: int, stop: int) -> None:
    """Until the other end of ``stop`` is closed, or it is too much."""
    poll = select.poll()
    poll.register(stop, 0)  # POLLHUP is always reported
    while True:
        start, before = time.monotonic(), _taken(state)
        try:
            used = measure(directories, lambda: bool(poll.poll(0)))
        except Unmeasured as error:
            os.write(said, f"{_SAID}: what is kept below {state} cannot be measured: {error}".encode())
            return
        took = time.monotonic() - start
        if used > limit:
            fix = "Remove directories of it that membrane plan names (docs/containers.md), or set a higher limit"
            os.write(said, f"{_SAID}: {used} of {limit} bytes are kept for it below {state}. {fix}".encode())
            return
        while True:
            if poll.poll(LOOK_EVERY * 1000):
                return
            urgent = used + _taken(state) - before > limit
            wait = took * _SHARE_WHEN_URGENT if urgent else max(MEASURE_EVERY, took * _SHARE)
            if time.monotonic() - start > wait:
                break


def _taken(path: str) -> int:
    """Bytes of its file system that are not free."""
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
