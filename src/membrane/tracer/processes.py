"""The processes of one sandbox, by the numbers that their calls carry: who they are, what they run, how they end.

Theory of operation
-------------------
A process is met at its first call.  Until it is answered the caller cannot go away, so what is read by its number is
its own.  From then on a pidfd refers to it: its number is given again only after it was waited for, and
then the descriptor reports that, and the exit status where the kernel has it (PIDFD_GET_INFO, Linux 6.15).

Who executes a program is taken to run it from then on; at the next call that is reported the kernel is asked.
"""

from __future__ import annotations

import os
import select
import time

from ..events import Process, plain
from ..host import notify
from ..lines import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .process import Scope

MOST_PROCESSES = 8192  # known at a time
MOST_PARENTS = 32  # that are looked through for one that is known


class Known:
    """A process, by the number that its calls carry."""

    __slots__ = (
        "_shown",
        "container",
        "exe",
        "name",
        "named",
        "number",
        "parent",
        "pid",
        "pidfd",
        "serves",
        "stale",
        "start",
        "started",
        "threads",
    )

    def __init__(self, number: int, pid: int, parent: int, start: int, started: int) -> None:
        self.number, self.pid, self.parent, self.start, self.started = number, pid, parent, start, started
        self.pidfd = -1
        self.name = self.exe = self._shown = ""
        self.container = self.serves = ""  # that it is in, and that it is the engine's process for
        self.stale = True  # what it runs is to be looked at again
        self.named = True  # and its name is right if that is the program that was expected
        self.threads = [number]

    def become(self, name: str, exe: str, *, named: bool = True) -> None:
        self.name, self.exe, self.stale, self.named, self._shown = name, exe, True, named, ""

    def shown(self) -> str:
        """The process of an event, as JSON."""
        if not self._shown:
            self._shown = json_text(plain(Process(self.pid, self.start, self.name, self.exe, self.container)))
        return self._shown


class Processes:
    """See above.

    Args:
        scope: the session.
        lost: takes each process whose end will not be seen.
    """

    def __init__(self, scope: Scope, lost: Callable[[], None]) -> None:
        self._shared = scope.shared
        self._lost = lost
        self._numbers = notify.Numbers()
        self._threads: dict[int, Known] = {}
        self._exits: dict[int, Known] = {}  # by pidfd
        self._contains = False  # has an engine started a container?
        self._closed: dict[int, str] = {}  # process: program that it may execute and not read
        self._epoll = select.epoll()
        # Reported is then only that it was waited for (EPOLLHUP); an older kernel reports that it ended, and not how.
        self._events = select.EPOLLET if notify.reports_exits() else select.EPOLLIN | select.EPOLLET

    def fileno(self) -> int:
        """Readable when a process has ended."""
        return self._epoll.fileno()

    def alive(self) -> int:
        """How many have not ended, as far as that was looked at."""
        return len(self._exits)

    def ended(self) -> Iterator[tuple[Known, int | None]]:
        """Those that have ended and were waited for, with their wait status; None: it is not known."""
        for fd, _event in self._epoll.poll(0, 256):
            known = self._exits.pop(fd, None)
            if known is not None:
                status = notify.exit_status(fd)
                self._closed.pop(known.number, None)
                for thread in known.threads:
                    self._threads.pop(thread, None)
                os.close(fd)
                yield known, status

    def may_close(self, thread: int, program: str) -> None:
        """It executes what it may not read: the kernel may close it to us (fs/exec.c, would_dump), its name too."""
        if len(self._closed) < MOST_PROCESSES:
            numbers = notify.process_status(thread)
            self._closed[numbers[0] if numbers else thread] = program

    def close(self) -> None:
        self._epoll.close()
        self._numbers.close()
        for fd in self._exits:
            os.close(fd)

    def of(self, thread: int) -> Known | None:
        """The process of a thread that waits for an answer; None: it is gone."""
        known = self._threads.get(thread)
        if (
            known is not None
            and thread != known.number
            and not os.path.exists(b"/proc/%d/task/%d" % (known.number, thread))
        ):
            del self._threads[thread]  # the thread ended, and its number is another's
            known.threads.remove(thread)
            known = None
        if known is not None:
            return known
        try:
            pidfd = os.pidfd_open(thread)
        except OSError:  # it does not lead its process, or descriptors are used up
            return self._of_thread(thread)
        start = notify.start_time(thread)
        inside = thread if self._shared else self._numbers.of(thread, pidfd)
        if start is None or inside is None:
            os.close(pidfd)
            return None
        return self._meet(thread, pidfd, inside, start)

    def _of_thread(self, thread: int) -> Known | None:
        numbers = notify.process_status(thread)
        if numbers is None:
            return None
        process, inside, _inside_thread, _parent = numbers
        if self._shared:
            inside = process
        known = self._threads.get(process)
        if known is None:
            start = notify.start_time(process)
            if start is None:
                return None
            try:
                pidfd = os.pidfd_open(process)
            except OSError:
                pidfd = -1
            known = self._meet(process, pidfd, inside, start)
        if thread != process and known.pidfd >= 0 and len(known.threads) < MOST_PROCESSES:
            known.threads.append(thread)
            self._threads[thread] = known
        return known

    def _meet(self, process: int, pidfd: int, inside: int, start: tuple[str, int, int]) -> Known:
        """A process that is not known yet; its descriptor (-1: there is none) is kept until its end was seen."""
        name, ticks, parent = start
        above = self._threads.get(parent)
        if above is not None:
            parent = above.pid
        elif not self._shared:
            of_parent = notify.process_status(parent) if parent else None
            parent = of_parent[1] if of_parent else 0
        known = Known(process, inside, parent, ticks, time.monotonic_ns())
        known.name = name
        if self._contains:
            known.container = self._container_of(above, start[2])
        if pidfd >= 0:
            try:
                if len(self._exits) >= MOST_PROCESSES:
                    raise OSError
                self._epoll.register(pidfd, self._events)
                known.pidfd = pidfd
            except OSError:
                os.close(pidfd)
        if known.pidfd < 0:
            self._lost()
            return known  # its end will not be seen, and its number may be another's tomorrow
        self._exits[pidfd] = known
        self._threads[process] = known
        return known

    def serves(self, known: Known, container: str) -> None:
        """It is the engine's process for a container now; who descends from it is in that (``record.contained``)."""
        known.serves, known.container = container, ""
        self._contains = True

    def _container_of(self, known: Known | None, parent: int) -> str:
        """The container of a child of ``known``, or else of ``parent``: who made no call is not known."""
        for _ in range(MOST_PARENTS):
            if known is not None:
                return known.container or known.serves
            status = notify.process_status(parent) if parent > 1 else None
            if status is None:
                break
            parent = status[3]
            known = self._threads.get(parent)
        return ""

    def program_of(self, known: Known) -> str:
        """The path of what it runs, empty when that is not known."""
        return known.exe or notify.program_of(known.number) or self._closed.get(known.number, "")

    def look_again(self, known: Known) -> None:
        """Which program it runs now, and under which name."""
        exe = notify.program_of(known.number) or self._closed.get(known.number, "")
        if exe != known.exe or not known.named:
            start = notify.start_time(known.number) if known.exe else None  # else it was read just now
            known.become(start[0] if start else known.name, exe)
        known.stale = False
