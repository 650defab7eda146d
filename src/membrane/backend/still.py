"""Every process of a sandbox stopped, so that what it writes can be copied as it is at one moment.

Theory of operation
-------------------
Runs have no control group of their own, so the processes are stopped one by one: SIGSTOP (signal(7)), which a process
can neither catch nor ignore, by pidfd, from the top of the tree downwards, so that no parent sees its child stop.  They
go on in the reverse order.  What was stopped before by another process stays so.

The processes are hostile: they fork while they are looked for, and one that still runs sends SIGCONT to one that does
not.  So they are looked for until nothing changes, and it is verified instead of assumed that nothing runs.  A thread
that has run and stopped again has a higher count of context switches (proc_pid_status(5)).  In two looks with the same
threads, all stopped, with the same counts, each thread was stopped from the first look to the second, so all of them
did at the moment between the two.  ``confirm`` looks again after the work: with the same counts nothing has run in
between.  ``LOOKS`` equal looks are asked for, as one listing of /proc may miss a process that was forked behind its
back; its parent and it would have to do so each time.

Children are read from the kernel's list of each thread (proc_tid_children(5)), not from all of /proc: a machine may
have ten thousand processes, and everything stands still while they are looked through.  The list may miss one while
another leaves it, so what is said of equal looks holds here as well; of stopped processes it is exact.

A parent in vfork(2) cannot be stopped before its child goes on, so what does not come to rest is let go and tried
again.  All of it is bounded in time and number.  io_uring, whose workers would go on, is refused by the filter.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from ..errors import HostError
from . import Still

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    # By thread: the process, whether it is stopped, its context switches.
    Look: TypeAlias = dict[int, tuple[int, bool, str]]
else:
    import _signal

LONGEST = 20  # seconds until all are stopped
LOOKS = 3  # that have to be equal
TRY = 40  # looks of one attempt, before all go on for the next one
PAUSE = 0.002  # seconds between two looks, for who calls ``step``: the kernel reports a stop to the parent only
MOST = 4_000  # processes
LISTED = "/proc/thread-self/children"  # there is one of each thread with ``CONFIG_PROC_CHILDREN``
SIGSTOP, SIGCONT = 19, 18  # signal(7), on all machines of ours
_STOPPED = frozenset("Tt")
_ENDED = frozenset("ZX")


class Stillness(Still):
    """The processes below ``trees``, those themselves among them, and those below ``parents``, without those.

    Args:
        trees: by our pid namespace; hold no process of ours that has work to do meanwhile.
        parents: the same, of processes that go on.
    """

    def __init__(self, trees: Sequence[int], parents: Sequence[int]) -> None:
        self._trees, self._parents = tuple(trees), tuple(parents)
        self._until = 0.0  # it begins with the first step
        self._stopped: dict[int, int] = {}  # by process: its pidfd; in the order in which they were stopped
        self._last: Look = {}
        self._equal = 0
        self._left = TRY

    def step(self) -> bool:
        self._until = self._until or time.monotonic() + LONGEST
        processes = self._processes()
        if len(processes) > MOST:
            self._give_up(f"there are more than {MOST}")
        look = _look(processes)
        moving = {process for process, stopped, _switches in look.values() if not stopped}
        for process in processes:
            if process in moving:  # not one that another process has stopped: it is not ours to let go on
                self._stop(process)
        self._equal = self._equal + 1 if look == self._last and not moving else 0
        self._last = look
        if not moving and self._equal >= LOOKS - 1:
            return True
        if time.monotonic() > self._until:
            self._give_up(f"{len(moving)} of {len(processes)} still run after {LONGEST} s")
        self._left -= 1
        if not self._left:
            self.end()
            self._left = TRY
        return False

    def confirm(self) -> None:
        if _look(self._processes()) != self._last:
            raise HostError("hold the processes of the sandbox", "one of them went on meanwhile", fix=("try it again",))

    def end(self) -> None:
        while self._stopped:
            _process, pidfd = self._stopped.popitem()  # the last one first: what is below goes on before its parent
            try:
                _signal.pidfd_send_signal(pidfd, SIGCONT)
            except OSError:
                pass  # it has ended
            finally:
                os.close(pidfd)
        self._last, self._equal = {}, 0

    def release(self) -> None:
        for process in reversed(self._processes()):
            try:
                pidfd = os.pidfd_open(process)
            except OSError:
                continue
            try:
                _signal.pidfd_send_signal(pidfd, SIGCONT)
            except OSError:
                pass
            finally:
                os.close(pidfd)

    def _give_up(self, cause: str) -> None:
        self.end()
        raise HostError("stop the processes of the sandbox", cause, fix=("try it between two commands",))

    def _stop(self, process: int) -> None:
        try:
            if process not in self._stopped:
                self._stopped[process] = os.pidfd_open(process)
            _signal.pidfd_send_signal(self._stopped[process], SIGSTOP)
        except ProcessLookupError:
            pass  # it has ended, and the next look does not find it
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def _processes(self) -> list[int]:
        """All of them, parents before their children."""
        below = _children if os.path.exists(LISTED) else _by_parent().get
        found = [*self._trees]
        for parent in self._parents:
            found += below(parent) or ()
        at = 0
        while at < len(found) and len(found) <= MOST:
            found += below(found[at]) or ()
            at += 1
        return found


@contextmanager
def standing(still: Still) -> Iterator[None]:
    """Everything is stopped in the block, for a process whose own end does not end the sandbox.

    Whatever ends this process, everything goes on: signals that ask it to end wait until then, and where it is killed,
    a child of it lets everything go on.

    Raises:
        HostError: they do not come to rest.
    """
    asked = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, asked)
    try:
        with _heir(still):
            try:
                while not still.step():
                    time.sleep(PAUSE)
                yield
            finally:
                still.end()
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


@contextmanager
def _heir(still: Still) -> Iterator[None]:
    """A child that lets everything go on when this process ends in the block.

    In a session of its own, before anything is stopped: ``timeout -k`` and shells kill the whole process group.
    """
    ours, theirs = os.pipe()
    ready, apart = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(theirs)
            os.setsid()
            os.close(apart)
            if not os.read(ours, 1):
                still.release()
        finally:
            os._exit(0)
    os.close(ours)
    os.close(apart)
    try:
        os.read(ready, 1)  # its end
        os.close(ready)
        yield
    finally:
        os.write(theirs, b".")
        os.close(theirs)
        os.waitpid(child, 0)


def _children(process: int) -> list[int]:
    """What its threads have forked and not waited for; empty where it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            try:
                with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
            except OSError:
                continue  # the thread has ended, and another one has its children
    except OSError:
        pass
    return found


def _by_parent() -> dict[int, list[int]]:
    """The same of all processes, by a look at each: for a kernel without these lists."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            parent = _parent(name)
            if parent:
                children.setdefault(parent, []).append(int(name))
    return children


def _parent(process: str) -> int:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0  # it has ended


def _look(processes: Sequence[int]) -> Look:
    """Every thread of them that has not ended."""
    found: Look = {}
    for process in processes:
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{process}/task/{thread}/status", encoding="ascii", errors="replace") as file:
                    lines = dict(line.rstrip("\n").partition(":\t")[::2] for line in file)
            except OSError:
                continue
            state = lines.get("State", "")[:1]
            if state not in _ENDED:
                switches = f"{lines.get('voluntary_ctxt_switches')} {lines.get('nonvoluntary_ctxt_switches')}"
                found[int(thread)] = process, state in _STOPPED, switches
    return found
