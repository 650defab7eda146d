"""The end of a sandbox without a pid namespace: every descendant is killed and reaped, and its directories removed.

Theory of operation
-------------------
Who ends is a subreaper (PR_SET_CHILD_SUBREAPER): whose parent ends becomes its child, so without a child it has no
descendant.  From Landlock ABI 6 on it is in a domain of its own: its signals reach what it has started and nothing
else, so one kill(2) of -1 ends all of that at one moment, however fast it forks.  On older kernels ``end_all`` walks,
kills by pidfd and reaps until the kernel says that there is no child.

A walk over all processes takes milliseconds.  A chain of processes, each of which forks the next one and ends, is
another one by then; but each in its turn becomes our child.  So where no signal reaches all, those that became it last
are killed first, one look after another (``_catch``).

Sources: proc_pid_stat(5), proc_tid_children(5), kernel/signal.c (kill_something_info), kernel/fork.c (copy_process),
kernel/exit.c (reparent_leader), wait(2).
"""

from __future__ import annotations

import os
import time

from . import syscalls as sc
from .channel import SIGKILL, SIGSTOP
from .ready import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
else:
    import _signal

KEEPER_ENDS = 10.0  # seconds for a keeper whose warden was killed
REMOVE = 60.0  # seconds for a directory to be removed
AT_ONCE = 4096  # names of a directory that are looked at together
END_ROUNDS = 2000  # walks over the processes at most, until none is left
MOST_STOPPED = 8192  # processes that are held before they are killed
DYING = 0.1  # seconds of one of them for the first of those that were killed to end
CATCHES = 200  # looks at our newest children between two walks at most
NEWEST = 8  # children of each of our threads that one look takes
_WALL = 0x40000000  # wait(2), __WALL: children that were made without SIGCHLD as well


def _fields(pid: int | str) -> list[bytes]:
    """State, parent, process group, session and more of a process (proc_pid_stat(5)); none: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []


def _parents_now() -> dict[int, int]:
    """The parent of each living process that can be seen."""
    out = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _fields(name)
            if fields and (fields[0] not in (b"Z", b"X") or len(_threads(name)) > 1):
                out[int(name)] = int(fields[1])
    return out


def _children() -> list[int]:
    """The children of this process, also those that have ended and are not reaped."""
    me = b"%d" % os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _fields(name)[1:2] == [me]]


def _threads(pid: int | str) -> list[str]:
    """The threads of a process that are left; its first one stays in the list, also when it has ended before others
    (exit(2) of one thread), and then the process is shown as a zombie and lives (pthread_exit(3)).
    """
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def below(root: int) -> list[int]:
    """The living descendants of a process."""
    return _below(root, _parents_now())[1:]


def _below(root: int, parents: dict[int, int]) -> list[int]:
    """A process and its descendants, given the parent of each process."""
    out = [root]
    for pid, at in parents.items():
        steps = 0
        while at != root and at in parents and steps < 4096:
            at, steps = parents[at], steps + 1
        if at == root:
            out.append(pid)
    return out


def end_all(apart: bool) -> bool:
    """Kill the descendants of this process, a subreaper, until it has no child; false: some are left after
    ``END_ROUNDS`` walks, as they fork faster than we kill.

    ``apart``: signals of this process reach its descendants only.  Then all get theirs while none can fork
    (kernel/signal.c, kill_something_info, holds tasklist_lock; copy_process gives up with one pending).
    """
    walk = _Walks()
    for _round in range(END_ROUNDS):
        if not _has_children():
            return True
        if apart:
            try:
                os.kill(-1, SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # what is left has ended, and is reaped next
        else:
            _catch(0)
        walk.kill(below(os.getpid()))
    return False


def _catch(filters: int) -> None:
    """Kill and reap children of this process with so many filters at least, the newest first, until a look finds none
    among its ``NEWEST``."""
    me = os.getpid()
    for _look in range(CATCHES):
        found = [pid for pid in _newest() if _filters(pid) >= filters]
        for pid in found:
            if (handle := _signalled(pid, me, SIGKILL)) >= 0:
                os.close(handle)
            try:
                os.waitpid(pid, os.WNOHANG | _WALL)
            except ChildProcessError:
                pass  # it is reaped
        if not found:
            return


def _newest() -> list[int]:
    """The children that this process got last, those first; none on a kernel without CONFIG_PROC_CHILDREN."""
    out = []
    for thread in _threads("self"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                out += [int(pid) for pid in file.read().split()[: -NEWEST - 1 : -1]]
        except OSError:
            continue
    return out


class _Walks:
    """Kills descendants of this process by one walk after another.

    Those that are left after the first walk may fork: they are stopped first, until a walk finds no other one.  What is
    stopped makes no room for a new process, as what is killed does.
    """

    def __init__(self) -> None:
        self._held, self._first = dict[int, int](), True
        self._most = min(MOST_STOPPED, sc.open_files() // 2)

    def kill(self, found: Sequence[int]) -> None:
        """Kill what a walk has found, or stop it and wait for the next walk."""
        held, first, self._first = self._held, self._first, False
        fresh = [pid for pid in found if pid not in held]
        for pid in fresh:
            if (handle := _signalled(pid, os.getpid(), SIGKILL if first else SIGSTOP)) >= 0:
                held[pid] = handle
        if fresh and not first and len(held) < self._most:
            return
        for handle in held.values():
            try:
                _signal.pidfd_send_signal(handle, SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        ready(held.values(), seconds=DYING)  # to free much memory takes time
        for handle in held.values():
            os.close(handle)
        held.clear()


def is_out_of_reach(process: int) -> bool:
    """Does the kernel refuse to have a process of our user signalled by this one?"""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def _signalled(pid: int, root: int, number: int) -> int:
    """A pidfd of a descendant that got a signal; -1: it is none (any more), as a number may become another's."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return -1
    try:
        if _is_below(pid, root):
            _signal.pidfd_send_signal(handle, number)
            return handle
    except OSError:
        pass
    os.close(handle)
    return -1


def _has_children() -> bool:
    """Whether a child of this process is left, when those that have ended are reaped."""
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG | _WALL)[0]:
                return True
        except ChildProcessError:
            return False


def _is_below(pid: int, root: int) -> bool:
    for _step in range(4096):
        fields = _fields(pid)
        if not fields:
            return False
        pid = int(fields[1])
        if pid == root:
            return True
        if pid <= 1:
            return False
    return False


FILTERS = 3  # that the command installs


def _filters(pid: int | str) -> int:
    """How many filters a process has (proc_pid_status(5), Seccomp_filters); no thread gets rid of one."""
    most = 0
    for thread in _threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                most = max(most, int(file.read(1 << 16).partition(b"\nSeccomp_filters:")[2].split(None, 1)[0]))
        except (OSError, ValueError, IndexError):
            continue
    return most


def end_orphans(session: int) -> bool:
    """Kill what a warden that was killed has left to this process, its subreaper.

    The keeper ends what it has; it is awaited.  If it was killed as well, this kills and reaps the children of this
    process with filters that we have not, and what is below them.

    Args:
        session: the pid of the warden, which is that of the keeper's session (setsid(2)) and so of no new process.

    Returns:
        False: some are left after ``END_ROUNDS`` walks.
    """
    for pid in _children():
        if _fields(pid)[3:4] == [b"%d" % session] and _await_keeper(pid):
            return True
    own, quiet, walk = _filters("self") + FILTERS, 0, _Walks()
    for _round in range(END_ROUNDS):
        _catch(own)
        tops = [pid for pid in _children() if _filters(pid) >= own]
        for pid in tops:
            try:
                os.waitpid(pid, os.WNOHANG | _WALL)
            except ChildProcessError:
                pass  # it is reaped: by another thread, or as SIGCHLD is ignored
        parents = _parents_now()
        walk.kill([pid for top in tops for pid in _below(top, parents)])
        quiet = 0 if tops else quiet + 1
        if quiet == 2:
            return True
    return False


def _await_keeper(pid: int) -> bool:
    """Whether a keeper, a child of this process, has ended all that it kept."""
    handle = os.pidfd_open(pid)
    try:
        if not ready((handle,), seconds=KEEPER_ENDS)[0]:
            _signal.pidfd_send_signal(handle, SIGKILL)
        return os.waitpid(pid, 0)[1] == 0
    except (ChildProcessError, ProcessLookupError):
        return False
    finally:
        os.close(handle)


def remove(path: str) -> bool:
    """Remove a directory of ours and all below it, of any modes and depth.

    What a directory in it holds is moved up, so that no path grows long.  No link is followed, also where a process
    that is left changes names meanwhile; after ``REMOVE`` seconds it is left as it is then.

    Returns:
        Nothing is there any more.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        top = os.open(path, flags)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    end, number, failed = time.monotonic() + REMOVE, 0, 0
    try:
        while time.monotonic() < end and failed < len(names := _some(top)):
            failed = 0
            for name in names:
                number += 1
                if not _remove_one(top, name, number):
                    failed += 1
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(top)
    return True


def _some(directory: int) -> list[str]:
    """Names in it, ``AT_ONCE`` at most: it may hold any number."""
    with os.scandir(directory) as entries:
        return [entry.name for entry, _ in zip(entries, range(AT_ONCE), strict=False)]


def _remove_one(top: int, name: str, number: int) -> bool:
    """Remove a name in ``top``; of a directory that holds something, that is moved up.  False: nothing was done."""
    try:
        os.unlink(name, dir_fd=top)
        return True
    except OSError:
        pass
    try:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except OSError:
        return False
    moved = False
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # what is open, and not what has the name by now
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for count, below_it in enumerate(_some(fd)):
                try:
                    os.unlink(below_it, dir_fd=fd)
                except OSError:  # a directory
                    os.rename(below_it, f".{number}.{count}.removed", src_dir_fd=fd, dst_dir_fd=top)
                moved = True
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return moved
    finally:
        os.close(place)
    return True
