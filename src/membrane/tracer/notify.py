"""Events from seccomp user notification, for callers without the rights for eBPF: what the command asked for.

Theory of operation
-------------------
``Notifications`` answers one call at a time: read the arguments, find the canonical names, predict what the kernel
will say, answer, and only then write the event down.  The prediction is made from outside (the mount, the mode bits,
what is there); every event carries ``requested``.  What the kernel did is not seen.

Two things are more than a record.  A name of the workspace that must not be made (``workspace.prevent``) is refused
with EACCES before it exists.  A caller whose memory cannot be read is refused with EPERM: it would act unseen.  A
refusal also spoils the ``index.lock`` of git that met it (``locks``). Everything else goes on and is decided by the
kernel, but for git's own way of changing a ``config`` that is bound read-only: that call waits for the supervisor's
answer (``edits``).

Where eBPF reports what happened (``refusals_only``) these two and the refusals of the boundary are all that is written,
and what eBPF cannot report whole: programs without a name, arguments that it cuts.

Events wait in a short queue and are made lines of together: beside a call that waits, the work of one costs several
times as much, for the caches are the command's.  Refusals are grouped: the first of its kind is reported at once,
repetitions of the next second together.

Known limits: opens for reading are seen with ``reads`` only, and datagrams by sendmsg(2) not at all; of datagrams from
one socket to one place the first is reported; a process is known from its first call that is reported here, so a
fork(2) without one is not seen; names are as of the call, and another thread can change the memory they were read from
until the kernel reads it.

One file of over 800 lines: a handler for each call of the table, which share how names are found and judged.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import time

from .. import clock
from ..errors import HostError
from ..events import (
    AccessDenied,
    EventsLost,
    FileChanged,
    FileCreated,
    FileOpened,
    FileRemoved,
    FileRenamed,
    ProcessExited,
    ProcessStarted,
    SocketCalled,
    access_as_data,
)
from ..host import notify, seccomp, syscalls, unixsockets
from ..host.ready import ready
from ..lines import Lines
from ..plan.mounts import SYSTEM_TREES
from ..policy import reasons
from ..policy.model import Deny, PathAccess, SocketAccess
from ..record.changes import AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, CHANGES, NO, Change, new_value
from ..record.contained import served
from . import setids
from .absent import Absent
from .edits import GO_ON, HELD, LONGEST, Answer, Edits, Held, OwnLocks, is_config, is_edit, is_first, is_lock, is_switch
from .locks import INDEX, LOCK, Locks, process_of
from .lookups import Lookups
from .owners import keeps_owner
from .processes import Known, Processes
from .sockets import address_of, inode_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    from ..events import Event
    from ..policy.model import Verdict
    from ..workspace.creation import CreationRules
    from ..workspace.prevent import Prevention
    from .messages import Decide
    from .process import Scope

    Operation: TypeAlias = Literal["read", "write"]

LONG_ARGUMENTS = 4095  # bytes of arguments after which eBPF cuts (bpf/wire.h)
MOST_QUEUED = 512  # events not yet written down
SOON = 0.001  # seconds without a call before refusals are written down
IDLE = 0.02  # and before all else is
LATEST = 0.05  # seconds after which it is, however many calls there are
MOST_REFUSALS = 512  # kinds of refusals of one second
REPEAT = 1.0  # seconds in which equal refusals are one event
LAST_EXITS = 1.0  # seconds in which the ends of the last processes are waited for, on a busy machine

_O_TMPFILE = 0o20000000
_FLAGS = (
    (os.O_CREAT, "creat"),
    (os.O_EXCL, "excl"),
    (os.O_TRUNC, "trunc"),
    (os.O_APPEND, "append"),
    (os.O_DIRECTORY, "directory"),
    (os.O_NOFOLLOW, "nofollow"),
    (os.O_PATH, "path"),
    (_O_TMPFILE, "tmpfile"),
)
_MODES = ("rdonly", "wronly", "rdwr", "rdwr")
_KINDS = {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
_RENAME_EXCHANGE = 2  # rename(2)
_AT_REMOVEDIR, _AT_SYMLINK_FOLLOW = 0x200, 0x400
_ATTRIBUTE = 256  # xattr(7): bytes of a name, with its NUL
_REFUSED = frozenset({"socket", "clone", "unshare"})  # calls that are notified only to be refused
_MSG_FASTOPEN = 0x20000000  # a connection is opened by sending (tcp(7), TCP_FASTOPEN)
_MESSAGE_NAME = struct.Struct("=QI")  # the beginning of struct msghdr: address and length of the name
_CWD = 0xFFFFFF9C  # AT_FDCWD
_PRIVATE = ("/proc/", "/dev/", "/sys/", "/run/")  # the sandbox's own: that the host has such a name means nothing
_SEARCH = ("ENOENT", "ENOTDIR")


class Notifications:
    """The source (``tracer.process.Source``).

    Args:
        scope: the session.
        listener: descriptor of the filter's listener; owned from now on.
        root: O_PATH descriptor of the sandbox's root; owned from now on.
        refused: takes each refusal, as it would be written.
        refusals_only: another source reports the events; here only what is refused is written down.
        edits: calls that wait for the supervisor; None: nothing is passed on to it.
        table: the unix sockets of the sandbox; None: connect(2) to those of others is not refused here.
        first: the one whose lines these are counted with.
    """

    name = "notify"

    def __init__(
        self,
        scope: Scope,
        listener: int,
        root: int,
        refused: Callable[[bytes], None],
        *,
        refusals_only: bool = False,
        edits: Edits | None = None,
        table: unixsockets.Table | None = None,
        first: Notifications | None = None,
    ) -> None:
        self._scope = scope
        self._first = first or self
        # What is made in a reviewed workspace is not visible outside; of it only the path rules hold.
        reviewed = scope.workspace if scope.policy.workspace == "review" else ""
        self._guarded = tuple(root for root, _rows in scope.roots if root != reviewed)
        self._table = table
        self._quiet = refusals_only
        self._edits = edits
        self._to: tuple[notify.Place, int] | None = None  # of a call that is to be held, and the mode that it asks for
        self._thread = 0  # whose call is looked at
        self._reports = True  # the event of this call
        self._listener = notify.Listener(listener)
        self._root = root
        self._number = 0  # of the call that is being answered
        self._private = _PRIVATE if scope.owned is None else (*_PRIVATE, "/var/")
        # Where the view has nothing of the host: what an image lacks it lacks everywhere.
        self._of_image = tuple(f"{tree}/" for tree in (*SYSTEM_TREES, "/var")) if scope.policy.image else ()
        self._view = notify.View(root, nested=scope.nested or scope.shared)
        self._processes = Processes(scope, lambda: self._lose("ProcessExited"))
        self._refused = refused
        self._names = seccomp.notified_calls(syscalls.MACHINE)
        self._handlers: dict[int, Callable[..., Any]] = {  # as ``_on_openat``
            number: self._changing(CHANGES[name]) if name in CHANGES else getattr(self, f"_on_{name}")
            for number, name in self._names.items()
        }
        self._executes = frozenset(n for n, name in self._names.items() if name in ("execve", "execveat"))
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._queue: list[tuple[int, str, Event]] = []
        self._lost: dict[str, int] = {}
        self._repeated: dict[tuple[str, ...], tuple[AccessDenied, str, int]] = {}
        self._reported_at = 0.0
        self._absent = Absent()
        self._lookups = Lookups()
        self._now = 0  # when the call that is looked at was received
        self._held_since = self._due = 0.0  # 0: nothing is held
        self._urgent = False  # a refusal is
        self._asked = b""  # the path that it named last
        self._flows: set[tuple[int, int, int, str, int]] = (
            set()
        )  # datagrams that were reported, by who, socket and place
        self._flags: dict[int, tuple[str, ...]] = {}  # names of flags of open(2)
        self._lines: Lines = first._lines if first is not None else Lines(scope.session, self.name)
        self._sequence = 0
        self.counts = self._lines.counts
        self._decider: Any = None
        self._preventions: dict[str, Prevention] = {}  # by the tree
        self._creation: list[tuple[str, CreationRules]] | None = None
        self._locks = Locks()
        self._own_locks = OwnLocks()
        self.ended = False

    # ------------------------------------------------------------ the Source protocol

    def fileno(self) -> int:
        """Readable when a call waits.

        The listener itself: who sleeps in poll(2) on it is woken on the processor of the caller (``SYNC_WAKE_UP``),
        through an epoll in an epoll it is not.
        """
        return self._listener.fd

    def ends(self) -> int:
        """Readable when a process has ended; -1: that is looked at in time, and no wake-up is needed for it."""
        return -1 if self._due else self._processes.fileno()

    def timeout(self) -> float | None:
        """Seconds after which ``drain`` must be called though nothing is readable; None: no need."""
        due = self._due
        late = self._edits.due() if self._edits is not None else 0.0
        if late and (not due or late < due):
            due = late
        if due:
            return max(0.0, due - time.monotonic())
        return REPEAT if self._repeated or self._absent else None

    def drain(self, write: Callable[[bytes], None]) -> int:
        """Answer a call that waits; write events down when it is time to.  The number of calls answered."""
        ready = self._poll.poll(0)
        if ready and not ready[0][1] & select.POLLIN:  # POLLHUP: no process has the filter any more
            self.ended, ready = True, []
        if ready and (call := self._listener.receive()) is not None:
            self._answer(call)
        now = time.monotonic()
        if self._edits is not None and 0 < self._edits.due() <= now:
            for late in self._edits.late():
                self._end(late)
        if not ready and not self._due:
            self._reap()
            if self._repeated or self._absent:
                self._write_down(write)
        elif now >= self._due > 0 or len(self._queue) >= MOST_QUEUED:
            self._reap()
            self._write_down(write)
            self._held_since = self._due = 0.0
            self._urgent = False
        if ready or (self._queue and not self._due):
            self._held_since = self._held_since or now
            self._due = min(now + (SOON if self._urgent else IDLE), self._held_since + LATEST)
        return len(ready)

    def report_repetitions(self, write: Callable[[bytes], None]) -> None:
        """Write down what is held back, refusals that were counted as well; the next one is reported anew."""
        if self._repeated:
            self._reported_at = -REPEAT
        self._report_absent(everything=True)
        self._write_down(write)

    def finish(self, write: Callable[[bytes], None]) -> None:
        """No process of the sandbox is left, or the record ends here: write down what is known."""
        self.ended = True
        deadline = time.monotonic() + LAST_EXITS
        while self._processes.alive() and time.monotonic() < deadline:
            self._reap()  # the kernel takes the namespace down while we look
            if self._processes.alive():
                ready((self._processes.fileno(),), seconds=0.002)
        self._write_down(write)

    def losses(self) -> dict[str, int]:
        """Events that were not made, by type; since the last question."""
        lost, self._lost = self._lost, {}
        return lost

    def close(self) -> None:
        """Let go of the listener: from now on the calls of the sandbox fail with ENOSYS."""
        self._processes.close()
        for prevention in self._preventions.values():
            prevention.close()
        os.close(self._listener.fd)
        os.close(self._root)

    # ------------------------------------------------------------ one call

    def _answer(self, call: notify.Call) -> None:
        number, thread, what, *arguments = call
        self._number = number
        now = self._now = clock.time_ns()
        self._thread, self._reports = thread, not self._quiet
        known = None
        try:
            if not self._quiet:
                known = self._processes.of(thread)
            event, error = self._handlers[what](thread, arguments, known)
            if error == HELD:
                if self._hold(number, thread, known, event):
                    return
                event, error = event.replace(result="EACCES"), errno.EACCES
            if self._reports and known is None:
                known = self._processes.of(thread)
            executes = what in self._executes and not event.result
            if known is not None and known.stale and self._reports and not executes:
                self._processes.look_again(known)
        except OSError as failed:
            unreadable = failed.errno in (errno.EPERM, errno.EACCES)
            # Else a bad address, which the kernel finds as well.
            error = errno.EPERM if unreadable or self._names[what] in _REFUSED else 0
            if self._listener.answer(number, error) and unreadable:
                # It has made itself unreadable: what it does could not be recorded.
                known = self._processes.of(thread)
                program = self._processes.program_of(known) if known else ""
                self._deny(known, PathAccess(program), reasons.CALLER_UNREADABLE)
            return
        if not self._listener.answer(number, error) or not self._reports:
            return
        if executes and known is not None:
            # As which it goes on, unless the kernel finds a fault: so the kernel is asked at the next call.
            name = os.fsdecode(self._asked.rpartition(b"/")[2][:15])  # fs/exec.c, bprm_execve
            known.become(name or os.path.basename(event.path)[:15], event.path, named=bool(name))
        self._queue.append((now, known.shown() if known else "null", event))

    def _hold(self, number: int, thread: int, known: Known | None, event: FileRenamed | FileChanged) -> bool:
        """Pass the call on to the supervisor; false when it cannot wait."""
        assert self._edits is not None and self._to is not None
        known = known or self._processes.of(thread)
        to, mode = self._to
        held = Held(thread, self._now, known, event, to, time.monotonic() + LONGEST, mode)
        return self._edits.begin(number, held)

    def decided(self, word: Decide) -> None:
        """The supervisor's word about a call that waits."""
        answer = self._edits.decided(word) if self._edits is not None else None
        if answer is not None:
            self._end(answer)

    def _end(self, answer: Answer) -> None:
        """Answer a call that waited, and write down what came of it."""
        held, number = answer.held, answer.number
        if answer.what == 0:
            there = self._listener.finish(number)
        else:
            there = self._listener.answer(number, 0 if answer.what == GO_ON else answer.what)
        if not there and answer.what:
            return
        self._thread, self._now = held.thread, held.at
        event = held.event
        if answer.what == GO_ON:
            event = event.replace(result="EBUSY" if held.mode < 0 else "EROFS")  # it is a mount point inside
            self._report_refusal(held.known, held.to, "EROFS", "write")
        elif answer.what:
            event = event.replace(result=_name(answer.what))
            self._refuse_setting(held.known, held.to.path, answer.why)
        if not self._quiet:
            self._queue.append((held.at, held.known.shown() if held.known else "null", event))
            self._due = self._due or time.monotonic() + SOON

    def _reap(self) -> None:
        for known, status in self._processes.ended():
            if self._quiet:
                continue
            if status is None:
                self._lose("ProcessExited")
                continue
            lasted = round((time.monotonic_ns() - known.started) / 1e6, 3)
            ended = ProcessExited((status >> 8) & 0xFF, status & 0x7F, lasted, 0, "notify")
            self._queue.append((clock.time_ns(), known.shown(), ended))

    def _lose(self, kind: str) -> None:
        self._lost[kind] = self._lost.get(kind, 0) + 1

    # ------------------------------------------------------------ the calls

    def _place(self, thread: int, directory: int, address: int, *, follow: bool) -> notify.Place:
        return self._place_of(thread, directory, notify.read_text(thread, address), follow=follow)

    def _place_of(self, thread: int, directory: int, path: bytes, *, follow: bool) -> notify.Place:
        self._asked = path
        base = b""
        if path[:1] != b"/":
            try:
                base = self._view.base(thread, directory)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG and path:
                    return self._view.resolve_below(thread, directory, path)
                return notify.Place(path, errno.EBADF if error.errno == errno.ENOENT else error.errno or 0)
            if not path:
                return notify.Place(base, errno.ENOENT)
        return self._view.resolve(thread, base, path, follow=follow)

    def _on_openat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._open(thread, known, a[0], a[1], a[2], a[3])

    def _on_open(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._open(thread, known, _CWD, a[0], a[1], a[2])

    def _on_creat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._open(thread, known, _CWD, a[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)

    def _open(
        self, thread: int, known: Known | None, directory: int, address: int, flags: int, mode: int = 0
    ) -> tuple[Event, int]:
        exclusive = flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        place = self._place(thread, directory, address, follow=not (flags & os.O_NOFOLLOW or exclusive))
        creates = bool(flags & os.O_CREAT)
        writes = flags & 3 or flags & (os.O_CREAT | os.O_TRUNC)
        error = 0
        if writes and not exclusive and self._is_others(place):
            result, error = self._refuse_others(known, place, there=creates or place.status is not None)
        elif creates and place.status is None:
            fresh = exclusive and flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_WRONLY
            result, error = self._creates(place, known, fresh=fresh)
            if not result and place.path.endswith(LOCK):
                self._locks.made(place.path, thread)
            if exclusive:
                self._own_locks.made(place.path, process_of(thread))
        elif writes and not exclusive and self._is_passed(place):
            result, error = "EACCES", self._refuse_change(known, place)
        else:
            result = self._opens(place, bool(writes), exclusive, flags)
            if not result and not writes and not flags & os.O_PATH:
                self._report_empty(known, place)
            self._report_refusal(known, place, result, "write" if writes else "read")
            if result == "EROFS" and self._is_guarded(place.path):
                error = errno.EROFS  # also of a descriptor that was opened before the mount came (/proc/self/fd/N)
        if self._scope.strips and mode & setids.BITS and flags & (os.O_CREAT | _O_TMPFILE & ~os.O_DIRECTORY):
            error = error or self._make_without(thread, place, flags & 0xFFFFFFFF, mode)
            result = result or _name(max(error, 0))
        names = self._flags.get(flags)
        if names is None:
            names = (_MODES[flags & 3], *(name for bit, name in _FLAGS if flags & bit == bit))
            if len(self._flags) < MOST_QUEUED:
                self._flags[flags] = names
        path = os.fsdecode(place.path)
        return FileOpened(path, names, result, True, self._outside(path), "notify", 1), error

    def _make_without(self, thread: int, place: notify.Place, flags: int, mode: int) -> int:
        """The errno of an open(2) that may make a set-user-ID file, or ``SENT`` (``tracer.setids``)."""
        if place.error or place.link:
            return place.error or errno.EPERM
        try:
            where = self._view.open_above(thread, place)
        except OSError as error:
            return error.errno or errno.EPERM
        return setids.make(self._listener.fd, self._number, thread, self._scope.uid, where, flags, mode)

    def _opens(self, place: notify.Place, writes: bool, exclusive: bool, flags: int) -> str:
        if place.error:
            return "" if self._is_unknown(place) else _name(place.error)
        status = place.status
        if status is None:
            return "ENOENT"
        if exclusive:
            return "EEXIST"
        if stat.S_ISLNK(status.st_mode):
            return "" if flags & os.O_PATH else "ELOOP"
        if stat.S_ISDIR(status.st_mode):
            if flags & _O_TMPFILE == _O_TMPFILE:
                return "EROFS" if place.readonly else "" if self._may(status, 3) else "EACCES"
            if writes:
                return "EISDIR"
        if not self._may(status, (2 if writes else 0) | (4 if flags & 3 != 1 else 0)):
            return "EACCES"
        return "EROFS" if writes and place.readonly and stat.S_ISREG(status.st_mode) else ""

    def _on_truncate(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        place = self._place(thread, _CWD, a[0], follow=True)
        result, error = self._opens(place, True, False, 1), 0
        if self._is_others(place):
            result, error = self._refuse_others(known, place)
        elif self._is_passed(place):
            result, error = "EACCES", self._refuse_change(known, place)
        elif result == "EROFS" and self._is_guarded(place.path):
            error = errno.EROFS
        self._report_refusal(known, place, result if error in (0, errno.EROFS) else "", "write")
        path = os.fsdecode(place.path)
        return FileOpened(path, ("wronly", "trunc"), result, True, self._outside(path), "notify", 1), error

    def _on_unlink(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._remove(thread, known, _CWD, a[0], directory=False)

    def _on_rmdir(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._remove(thread, known, _CWD, a[0], directory=True)

    def _on_unlinkat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._remove(thread, known, a[0], a[1], directory=bool(a[2] & _AT_REMOVEDIR))

    def _remove(
        self, thread: int, known: Known | None, where: int, address: int, *, directory: bool
    ) -> tuple[Event, int]:
        place = self._place(thread, where, address, follow=False)
        result = self._removes(place)
        if not result and place.status is not None:
            is_directory = stat.S_ISDIR(place.status.st_mode)
            if is_directory != directory:
                result = "ENOTDIR" if directory else "EISDIR"
        error = 0
        if self._is_others(place) and not self._own_locks.may_remove(place.path, process_of(thread)):
            result, error = self._refuse_others(known, place)
        else:
            self._report_refusal(known, place, result, "write")
        self._spoil(place, result)
        if not result:
            self._removed(place.path)
        if directory:
            self._replaced(place.path, below=False)
        path = os.fsdecode(place.path)
        return FileRemoved(path, directory, result, True, self._outside(path), "notify"), error

    def _removes(self, place: notify.Place) -> str:
        if place.error:
            return "" if self._is_unknown(place) else _name(place.error)
        if place.status is None:
            return "ENOENT"
        return "EROFS" if place.readonly else ""

    def _on_rename(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._rename(thread, known, (_CWD, a[0], _CWD, a[1]), 0)

    def _on_renameat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._rename(thread, known, (a[0], a[1], a[2], a[3]), 0)

    def _on_renameat2(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._rename(thread, known, (a[0], a[1], a[2], a[3]), a[4] & 0xFFFFFFFF)

    def _rename(
        self, thread: int, known: Known | None, where: tuple[int, int, int, int], flags: int
    ) -> tuple[Event, int]:
        source = self._place(thread, where[0], where[1], follow=False)
        to = self._place(thread, where[2], where[3], follow=False)
        result, error = self._removes(source), 0
        if any(map(self._is_unseen, (source, to))):
            error = self._refuse_unseen(source.path) or self._refuse_unseen(to.path)
            result = _name(error)
        elif self._takes_lock(source, to, flags):
            result, error = self._refuse_others(known, source if is_lock(source.path) else to)
        elif result:
            self._report_refusal(known, source, result, "write")
        elif to.error:
            result = _name(to.error)
        elif self._edits is not None and is_edit(source, to, flags) and self._may_replace(thread, to.path):
            self._to, error = (to, -1), HELD
        elif to.readonly:
            result = "EROFS"
            self._report_refusal(known, to, result, "write")
        elif is_first(source, to) and (why := self._first_config(thread, source.path, to.path)):
            result, error = "EACCES", errno.EACCES
            self._refuse_setting(known, to.path, why)
        elif source.status is not None:  # also in the place of what is there: that was judged, and this was not
            error = self._refuse_foreign(thread, known, source) or self._refuse_index(known, source.path, to.path)
            error = error or self._prevent(known, to.path, _kind(source.status), source=source.path)
            if not error and flags & _RENAME_EXCHANGE and to.status is not None:
                error = self._prevent(known, source.path, _kind(to.status), source=to.path)
            result = _name(error)
            if not error:
                self._removed(source.path)
        if any(each.status is not None and stat.S_ISDIR(each.status.st_mode) for each in (source, to)):
            self._replaced(source.path)
            self._replaced(to.path)
        path, target = os.fsdecode(source.path), os.fsdecode(to.path)
        outside = self._outside(path) or self._outside(target)
        return FileRenamed(path, target, result, True, outside, "notify"), error

    def _first_config(self, thread: int, source: bytes, path: bytes) -> str:
        """Why the ``config`` of a repository that was made inside may not become this; empty: it may."""
        name = os.fsdecode(path)
        inside = any(name.startswith(root + "/") for root in self._guarded)
        if self._scope.policy.open_git_config or not inside:
            return ""
        from ..workspace.gitedit import LARGEST, objection

        try:
            old, new = (self._view.read(thread, each, LARGEST + 1) for each in (path, source))
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        return objection(old, new, name, made=True)

    def _refuse_setting(self, known: Known | None, path: bytes, why: str) -> None:
        hint = f"{why}; git_config: writable allows all"
        self._deny(known, PathAccess(self._shown(os.fsdecode(path)), "write"), reasons.GIT_SETTING, None, hint)

    def _may_replace(self, thread: int, path: bytes) -> bool:
        """Could the caller rename something to this name, were there no mount?"""
        place = self._view.resolve(thread, b"", path.rpartition(b"/")[0], follow=False)
        return place.status is not None and not place.readonly and self._may(place.status, 3)

    def _on_mkdir(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, _CWD, a[0], "directory")

    def _on_mkdirat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, a[0], a[1], "directory")

    def _on_mknod(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, _CWD, a[0], _KINDS.get(stat.S_IFMT(a[1]), "file"))

    def _on_mknodat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, a[0], a[1], _KINDS.get(stat.S_IFMT(a[2]), "file"))

    def _on_symlink(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, _CWD, a[1], "symlink", notify.read_text(thread, a[0]))

    def _on_symlinkat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._make(thread, known, a[1], a[2], "symlink", notify.read_text(thread, a[0]))

    def _on_link(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._link(thread, known, (_CWD, a[0], _CWD, a[1]), 0)

    def _on_linkat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._link(thread, known, (a[0], a[1], a[2], a[3]), a[4])

    def _link(
        self, thread: int, known: Known | None, where: tuple[int, int, int, int], flags: int
    ) -> tuple[Event, int]:
        if flags & AT_EMPTY_PATH and not notify.read_text(thread, where[1]):
            source = self._view.resolve(thread, b"", self._view.base(thread, where[0]), follow=False)
        else:
            source = self._place(thread, where[0], where[1], follow=bool(flags & _AT_SYMLINK_FOLLOW))
        error = self._refuse_foreign(thread, known, source)
        if not error and (self._is_passed(source) or self._is_others(source)):
            error = self._refuse_change(known, source)
        if source.readonly and self._is_guarded(source.path):
            error = error or errno.EXDEV  # by its name it would be, by a descriptor from before the mount not
        if error:
            path = os.fsdecode(source.path)
            return FileCreated(path, "link", path, _name(error), True, self._outside(path), "notify"), error
        return self._make(thread, known, where[2], where[3], "link", source.path)

    def _make(
        self, thread: int, known: Known | None, where: int, address: int, kind: str, to: bytes = b""
    ) -> tuple[Event, int]:
        place = self._place(thread, where, address, follow=False)
        result, error = self._creates(place, known, kind, to)
        path = os.fsdecode(place.path)
        return FileCreated(path, kind, os.fsdecode(to), result, True, self._outside(path), "notify"), error

    def _creates(
        self, place: notify.Place, known: Known | None, kind: str = "file", to: bytes = b"", *, fresh: bool = False
    ) -> tuple[str, int]:
        """(result, errno to refuse with) of making a name."""
        if self._is_unseen(place):
            error = self._refuse_unseen(place.path)
            return _name(error), error
        if place.error:
            result = "" if self._is_unknown(place) else _name(place.error)
        elif place.status is not None:
            return "EEXIST", 0
        elif place.readonly:
            result = "EROFS"
        elif place.above is not None and not self._may(place.above, 3):
            return "EACCES", 0
        else:
            error = self._prevent(known, place.path, kind, to, fresh=fresh)
            if not error:
                self._absent.made(os.fsdecode(place.path))
            return _name(error), error
        self._report_refusal(known, place, result, "write")
        self._spoil(place, result)
        return result, 0

    def _changing(self, row: Change) -> Callable[..., tuple[Event, int]]:
        return lambda thread, a, known: self._change(row, thread, a, known)

    def _change(self, row: Change, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        directory = _CWD if row.directory == NO else a[row.directory]
        flags = 0 if row.flags == NO else a[row.flags]
        if row.path == NO or (flags & AT_EMPTY_PATH and not notify.read_text(thread, a[row.path])):
            place = self._open_file(thread, directory)
        else:
            follow = row.follow if row.flags == NO else not flags & AT_SYMLINK_NOFOLLOW
            place = self._place(thread, directory, a[row.path], follow=follow)
        result, error = self._removes(place), 0  # it must be there, and its mount writable
        if not result and place.status is not None and row.what in ("mode", "owner"):
            own = place.status.st_uid == self._scope.uid or self._scope.owned is not None
            result = "" if own else "EPERM"
        elif self._edits is not None and is_switch(place, row.what, self._scope.uid):
            result, error, self._to = "", HELD, (place, a[row.first] & 0o7777)
        if row.what == "owner" and not result and keeps_owner(self._scope, place, a[row.first], a[row.second]):
            error, self._reports = notify.DONE, False
            call = {"kind": "SystemCall", "name": "chown"}
            self._refuse(known, ("chown", "", ""), AccessDenied(call, reasons.OWNER_KEPT, None, None, source="notify"))
        self._report_refusal(known, place, result, "write")
        if row.what == "mode" and a[row.first] & 0o111 and self._is_passed(place):
            result, error = "EACCES", self._refuse_change(known, place)
        elif (
            row.what == "mode"
            and a[row.first] & (setids.BITS if self._scope.strips else stat.S_ISGID)
            and (not self._scope.set_ids)
        ):
            error = self._set_group_id(thread, row, a, place)
            result = _name(max(error, 0))
            if error == errno.EPERM:
                self._deny(known, PathAccess(self._shown(os.fsdecode(place.path)), "write"), reasons.SET_GROUP_ID)
        if row.what in ("mode", "owner"):
            value = new_value(row.what, a[row.first], 0 if row.second == NO else a[row.second])
        else:
            value = os.fsdecode(notify.read_text(thread, a[row.first], _ATTRIBUTE))
        path = os.fsdecode(place.path)
        return FileChanged(path, row.what, value, result, True, self._outside(path), "notify"), error

    def _set_group_id(self, thread: int, row: Change, a: list[int], place: notify.Place) -> int:
        """The errno of a chmod(2) with a set-group-ID bit, or ``DONE`` (``tracer.modes``)."""
        by_name = row.path != NO and (place.status is not None or bool(place.link))
        try:
            if by_name:
                opened = self._view.open(thread, place)
            elif row.path == NO:
                opened = os.open(b"/proc/%d/fd/%d" % (thread, a[row.directory] & 0x7FFFFFFF), os.O_PATH | os.O_CLOEXEC)
            else:
                return place.error or errno.ENOENT
        except OSError as error:
            return error.errno or errno.EBADF
        if self._scope.strips:
            return setids.change(thread, self._scope.uid, opened, a[row.first])
        from .modes import set_mode

        return set_mode(opened, a[row.first] & 0o7777, os.fsdecode(place.path), [root for root, _ in self._scope.roots])

    def _open_file(self, thread: int, descriptor: int) -> notify.Place:
        """What a descriptor is open on, perhaps without a name."""
        try:
            path = self._view.base(thread, descriptor)
        except OSError as error:
            return notify.Place(b"", errno.EBADF if error.errno == errno.ENOENT else error.errno or 0)
        return self._view.resolve(thread, b"", path, follow=False) if path[:1] == b"/" else notify.Place(path)

    def _on_execve(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._execute(thread, known, self._place(thread, _CWD, a[0], follow=True), a[1])

    def _on_execveat(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        if a[4] & AT_EMPTY_PATH and not notify.read_text(thread, a[1]):
            place, self._asked = notify.Place(self._view.base(thread, a[0])), b""  # a file, perhaps without a name
            return self._execute(thread, known, place, a[2], by_name=False)
        place = self._place(thread, a[0], a[1], follow=not a[4] & AT_SYMLINK_NOFOLLOW)
        return self._execute(thread, known, place, a[2])

    def _execute(
        self, thread: int, known: Known | None, place: notify.Place, argv: int, *, by_name: bool = True
    ) -> tuple[Event, int]:
        status = place.status
        result = ""
        if place.error:
            result = _name(place.error)
        elif by_name:
            if status is None:
                result = "ENOENT"
            elif not stat.S_ISREG(status.st_mode) or place.noexec or not self._may(status, 1):
                result = "EACCES"
            elif not self._may(status, 4):
                self._processes.may_close(thread, os.fsdecode(place.path))
        self._report_refusal(known, place, result, "read")
        if result in _SEARCH and not self._scope.reads:
            self._reports = False  # every shell looks for every program in every directory of PATH
            return ProcessStarted(0, (), "", "", result, True, "notify"), 0
        raw = notify.read_arguments(thread, argv)
        if self._quiet:
            # What eBPF cannot report whole is reported here as well.
            self._reports = not by_name or sum(map(len, raw)) + len(raw) > LONG_ARGUMENTS
        arguments = tuple(os.fsdecode(one) for one in raw)
        try:
            cwd = os.fsdecode(os.readlink(b"/proc/%d/cwd" % thread))
        except OSError:
            cwd = ""
        if known is not None and (container := served(arguments)):
            self._processes.serves(known, container)
        parent = known.parent if known else 0
        return ProcessStarted(parent, arguments, cwd, os.fsdecode(place.path), result, True, "notify"), 0

    def _on_connect(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._socket(thread, "connect", a, known)

    def _on_bind(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._socket(thread, "bind", a, known)

    def _on_socket(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        """A raw socket, or one of AF_UNIX: the first filter leaves its refusal to us (``host.seccomp``)."""
        self._reports = False
        if not self._quiet:  # else eBPF sees the result
            reason = reasons.NAME_SERVICE_CACHE if self._lookups.is_one(thread, a[0], a[1], a[2]) else "EPERM"
            call = {"kind": "SystemCall", "name": "socket"}
            self._refuse(known, ("socket", reason, ""), AccessDenied(call, str(reason), None, None, source="notify"))
        return SocketCalled("socket", "", "", 0, "EPERM", True, "notify"), errno.EPERM

    def _on_clone(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._namespaces("clone", known)

    def _on_unshare(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._namespaces("unshare", known)

    def _namespaces(self, name: str, known: Known | None) -> tuple[Event, int]:
        """A sandbox inside of this one: the same as for a raw socket."""
        self._reports = False
        refused = AccessDenied({"kind": "SystemCall", "name": name}, "EPERM", None, None, source="notify")
        if not self._quiet or name == "clone":  # eBPF reports the other
            self._refuse(known, (name, "", ""), refused)
        return refused, errno.EPERM

    def _on_sendto(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._send(thread, known, "sendto", a[0], a[3], a[4], a[5])

    def _on_sendmsg(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._message(thread, known, "sendmsg", a[0], a[1], a[2])

    def _on_sendmmsg(self, thread: int, a: list[int], known: Known | None) -> tuple[Event, int]:
        return self._message(thread, known, "sendmmsg", a[0], a[1], a[3])  # the first one speaks for all

    def _message(
        self, thread: int, known: Known | None, call: str, descriptor: int, address: int, flags: int
    ) -> tuple[Event, int]:
        name, length = _MESSAGE_NAME.unpack(notify.read_memory(thread, address, _MESSAGE_NAME.size))
        return self._send(thread, known, call, descriptor, flags, name, length)

    def _send(
        self, thread: int, known: Known | None, call: str, descriptor: int, flags: int, name: int, length: int
    ) -> tuple[Event, int]:
        """Datagrams are eBPF's where that is; a connection that is opened by sending is not reported by it (bpf/)."""
        self._reports = not self._quiet or bool(flags & _MSG_FASTOPEN)
        wanted = min(length & 0xFFFFFFFF, 128)
        data = notify.read_memory(thread, name, wanted) if name and wanted and self._reports else b""
        family, address, port = address_of(data)
        self._reports = self._reports and family in ("inet", "inet6")  # not netlink: every look-up of a name sends one
        inode = inode_of(thread, descriptor) if self._reports else 0
        if self._reports and known is not None:
            flow = (known.number, known.start, inode, address, port)
            if flow in self._flows:
                self._reports = False  # a datagram of many to one place
            elif len(self._flows) >= MOST_QUEUED:
                self._flows.clear()
            self._flows.add(flow)
        return SocketCalled(call, family, address, port, "", True, "notify", 0, inode), 0

    def _socket(self, thread: int, call: str, a: list[int], known: Known | None) -> tuple[Event, int]:
        wanted = min(a[2] & 0xFFFFFFFF, 128)
        looks = not self._quiet or (self._table is not None and call == "connect")
        data = notify.read_memory(thread, a[1], wanted) if wanted and looks else b""
        family, address, port = address_of(data)
        connects = call == "connect" and family in ("inet", "inet6")
        inode = inode_of(thread, a[0]) if connects else 0
        error = 0
        if call == "connect" and family == "unix" and address and data[2] and self._table is not None:
            path = data[2:110].split(b"\0", 1)[0]  # unix(7): as far as the kernel reads
            place = self._place_of(thread, _CWD, path, follow=True)
            error = self._refuse_foreign(thread, known, place)
            if place.status is not None and stat.S_ISREG(place.status.st_mode) and not place.status.st_mode & 0o777:
                self._deny(known, SocketAccess(os.fsdecode(place.path)), reasons.SOCKET_NOT_ALLOWED)  # what covers one
        return SocketCalled(call, family, address, port, _name(error), True, "notify", 0, inode), error

    def _refuse_foreign(self, thread: int, known: Known | None, place: notify.Place) -> int:
        """EACCES when a socket of the host is at ``place``, else 0; that and what covers one is reported."""
        status = place.status
        if self._table is None or (status is None and not place.link):
            return 0
        if not place.link and status is not None and not stat.S_ISSOCK(status.st_mode):
            return 0
        try:
            opened = self._view.open(thread, place)
        except OSError:
            return 0  # the kernel does not find it either
        try:
            foreign = unixsockets.is_foreign(opened, self._table, thread, nested=self._scope.nested)
        finally:
            os.close(opened)
        if foreign:
            self._deny(known, SocketAccess(os.fsdecode(place.path)), reasons.SOCKET_NOT_ALLOWED)
        return errno.EACCES if foreign else 0

    # ------------------------------------------------------------ judgement

    def _is_unseen(self, place: notify.Place) -> bool:
        """Is it below a directory that a command with capabilities may search, and this process may not?  Of a plain
        caller such a directory belongs to a subordinate id."""
        return place.error == errno.EACCES and self._scope.owned is not None

    def _is_unknown(self, place: notify.Place) -> bool:
        """Is it below a directory that a command with capabilities may search, and this process may not?  Engines of
        containers are root in a user namespace, and make directories without the right to search; of proc(5) this
        process is told what they are."""
        closed = place.error == errno.EACCES and self._scope.nested and not place.path.startswith(b"/proc/")
        return closed or self._is_unseen(place)

    def _refuse_unseen(self, path: bytes) -> int:
        """EACCES for a name below such a directory in a guarded tree: what it is cannot be judged."""
        name = os.fsdecode(path)
        return errno.EACCES if any(name.startswith(f"{root}/") for root in self._guarded) else 0

    def _may(self, status: os.stat_result, wanted: int) -> bool:
        """Do the mode bits admit it to a process without capabilities?  Access control lists are not looked at.

        Of a process that may have some it is only known that nobody may execute what has no bit for it.  In a user
        namespace of its own it has them over files of ids that are there, which those of the machine's root are not.
        """
        scope = self._scope
        if scope.owned is not None or (scope.nested and status.st_uid and status.st_gid):
            return wanted != 1 or bool(status.st_mode & 0o111)
        if status.st_uid == scope.uid:
            bits = status.st_mode >> 6
        elif status.st_gid == scope.gid or status.st_gid in scope.groups:
            bits = status.st_mode >> 3
        else:
            bits = status.st_mode
        return bits & wanted == wanted

    def _outside(self, path: str) -> bool:
        workspace = self._scope.workspace
        return not (path == workspace or path.startswith(workspace + "/"))

    def _prevent(
        self,
        known: Known | None,
        name: bytes,
        kind: str,
        to: bytes = b"",
        source: bytes = b"",
        *,
        fresh: bool = False,
    ) -> int:
        """The errno with which making or renaming a name is refused; 0: it goes on.

        ``to``: what a link would lead to; ``source``: what is renamed; ``fresh``: as ``objection``.
        """
        path = os.fsdecode(name)
        if path in self._scope.awaited or (kind in ("directory", "symlink") and self._leads(path, kind, source)):
            self._deny(known, PathAccess(self._shown(path), "write"), reasons.PROTECTED_NAME)
            return errno.EACCES
        for root in self._guarded:
            if not path.startswith(root + "/") or (kind == "file" and self._opened(path[len(root) + 1 :])):
                continue
            prevention = self._preventions.get(root)
            if prevention is None:
                prevention = self._preventions[root] = self._prevention(root)
            shown = os.fsdecode(source)
            if source and not shown.startswith(root + "/"):
                continue  # from another tree, which is another mount: EXDEV
            try:
                why = prevention.objection(
                    path[len(root) + 1 :],
                    kind="file" if kind == "link" else kind,
                    target=os.fsdecode(to),
                    source=shown[len(root) + 1 :],
                    hard=kind == "link",
                    fresh=fresh,
                )
            except OSError as failed:
                why = f"it cannot be looked at ({failed.strerror})"
            if why:
                from ..workspace.judge import is_told

                access, hint = PathAccess(self._shown(path), "write"), why if is_told(path) else None
                self._deny(known, access, reasons.PROTECTED_NAME, None, hint)
                self._locks.spoil(self._thread, self._shown(path))
                return errno.EACCES
        for root, rules in self._rules():
            reason = rules.reason(path[len(root) :], kind == "directory") if path.startswith(root) else ""
            if reason:
                access = PathAccess(self._shown(path), "write", kind == "directory")
                verdict = self._decide(access)
                rule = verdict.rule if isinstance(verdict, Deny) else None
                self._deny(known, access, reason, None if rule is None else str(rule.origin))
                self._locks.spoil(self._thread, self._shown(path))
                return errno.EACCES
        return 0

    def _leads(self, path: str, kind: str, source: bytes) -> bool:
        """Would there be what may not be made, by a directory that is renamed or a link on the way to it?"""
        below = [awaited[len(path) :] for awaited in self._scope.awaited if awaited.startswith(path + "/")]
        if kind == "symlink":
            return bool(below)
        places = (self._view.resolve(self._thread, b"", source + os.fsencode(rest), follow=False) for rest in below)
        return bool(source) and any(place.status is not None for place in places)

    def _is_passed(self, place: notify.Place) -> bool:
        """Is it a file of tools that was let be made as a commit has it?"""
        if place.status is None or not stat.S_ISREG(place.status.st_mode):
            return False
        return any(
            prevention.passed and os.fsdecode(place.path[len(os.fsencode(root)) + 1 :]) in prevention.passed
            for root, prevention in self._preventions.items()
            if place.path.startswith(os.fsencode(root) + b"/")
        )

    def _is_others(self, place: notify.Place) -> bool:
        """Is it a configuration of git that was there at the start, or a lock of one: not for the command to open?

        Of a new file, which a program outside has just put there, the mount that makes it read-only comes a moment
        later; what was opened before that could be written then.  A lock counts before it is there as well: it may be
        in the moment in which the kernel looks.

        In a repository of this session the guard judges each write, and programs do there what they do (JGit opens a
        lock once more, to write it).
        """
        if self._scope.policy.open_git_config or not self._is_guarded(place.path):
            return False
        new = place.status is not None and not place.readonly and is_config(place.path)
        return (new or (not place.error and is_lock(place.path))) and not self._is_made(place.path)

    def _refuse_others(self, known: Known | None, place: notify.Place, *, there: bool = False) -> tuple[str, int]:
        if not there and place.status is None:
            return "ENOENT", errno.ENOENT
        error = self._refuse_change(known, place)
        return _name(error), error

    def _is_guarded(self, path: bytes) -> bool:
        name = os.fsdecode(path)
        return any(name.startswith(f"{root}/") for root in self._guarded)

    def _is_made(self, path: bytes) -> bool:
        """Does it lie in a git directory that was made in this session?"""
        name = os.fsdecode(path)
        return any(
            prevention.is_made(name[len(root) + 1 :])
            for root, prevention in self._preventions.items()
            if name.startswith(f"{root}/")
        )

    def _takes_lock(self, source: notify.Place, to: notify.Place, flags: int) -> bool:
        """Would a rename put something in the place of a lock of git's configuration, or take one to elsewhere?"""
        if self._scope.policy.open_git_config or not (self._is_guarded(source.path) or self._is_guarded(to.path)):
            return False
        elsewhere = flags != 0 or to.path + b".lock" != source.path or source.status is None
        onto, away = is_lock(to.path), is_lock(source.path) and elsewhere
        return (onto and not self._is_made(to.path)) or (away and not self._is_made(source.path))

    def _removed(self, path: bytes) -> None:
        for root, prevention in self._preventions.items():
            if prevention.passed:
                prevention.removed(os.fsdecode(path)[len(root) + 1 :])

    def _replaced(self, path: bytes, *, below: bool = True) -> None:
        name = os.fsdecode(path)
        for root, prevention in self._preventions.items():
            if name.startswith(f"{root}/"):
                prevention.replaced(name[len(root) + 1 :], below=below)

    def _refuse_change(self, known: Known | None, place: notify.Place) -> int:
        self._deny(known, PathAccess(self._shown(os.fsdecode(place.path)), "write"), reasons.PROTECTED_NAME)
        return errno.EACCES

    def _spoil(self, place: notify.Place, result: str) -> None:
        """A name that is read-only was to be made or removed: git goes on after that (``locks``)."""
        if result == "EROFS":
            path = os.fsdecode(place.path)
            self._locks.spoil(self._thread, self._shown(path), alone=self._outside(path))

    def _refuse_index(self, known: Known | None, source: bytes, to: bytes) -> int:
        """The errno for git's end of a checkout in which something was refused, or is not as it should be."""
        if not source.endswith(LOCK):
            return 0
        name = self._locks.taken(source)
        if not to.endswith(INDEX):
            return 0
        if not name:
            name = next((unlike for one in self._preventions.values() if (unlike := one.unlike())), "")
        if not name:
            return 0
        hint = f"{name} cannot be made, changed or removed in here as this needs it: do it outside of the sandbox"
        self._deny(known, PathAccess(self._shown(os.fsdecode(to)), "write"), reasons.PROTECTED_NAME, None, hint)
        return errno.EACCES

    def _opened(self, path: str) -> bool:
        """Did the policy take this name out of the protected ones (``git_config: writable``)?"""
        if not self._scope.policy.open_git_config:
            return False
        from ..workspace.protect import is_git_config

        return is_git_config(path)

    def _prevention(self, root: str) -> Prevention:
        from ..workspace.beside import Beside
        from ..workspace.prevent import Prevention  # a short run makes no name

        fd = notify.sc_openat2(self._root, os.fsencode(root), False)
        if fd < 0:
            raise HostError("look into the workspace", os.strerror(-fd), target=root)  # the command is killed
        beside = next((Beside(*rest) for tree, *rest in self._scope.beside if tree == root), None)
        return Prevention(fd, dict(self._scope.tips).get(root, b""), beside)

    def _rules(self) -> list[tuple[str, CreationRules]]:
        """The path rules of each tree, by the beginning of its paths."""
        if self._creation is None:
            from ..workspace.creation import CreationRules

            self._creation = [(root.rstrip("/") + "/", CreationRules(rows)) for root, rows in self._scope.roots if rows]
        return self._creation

    def _decide(self, access: PathAccess) -> Verdict:
        if self._decider is None:
            from ..policy.decide import Decider  # 10 ms that most runs never need

            self._decider = Decider(self._scope.policy)
        verdict: Verdict = self._decider.decide(access)
        return verdict

    def _shown(self, path: str) -> str:
        return path if self._outside(path) else path[len(self._scope.workspace) + 1 :] or "."

    def _report_refusal(self, known: Known | None, place: notify.Place, result: str, operation: Operation) -> None:
        """Report what the boundary will refuse; what the command's own rights do not admit is no refusal of ours."""
        if result not in ("EROFS", "EACCES", "ENOENT") or place.path[:1] != b"/":
            return
        path, awaited = os.fsdecode(place.path), False
        if result == "EROFS":
            if not self._outside(path) and _is_read_only(self._scope.workspace):
                return  # the host's file system is: no rule of ours, and none that opens it
            there = place.status or place.above
            # Python tries to cache each module that it imports, and goes on without: that is no refusal to the program.
            ours = there is not None and "/__pycache__/" not in path and (self._may(there, 2) or _is_mask(there))
            if ours and place.status is None and self._outside(path):
                # A directory of ours, such as "/": the caller may not write to the host's either.
                ours = os.access(os.path.dirname(path), os.W_OK)
        elif result == "EACCES":
            # In the sandbox's own trees a file of mode 000 is the command's: no cover can be written.
            covered = place.readonly or not self._outside(path)
            ours = place.status is not None and covered and _is_mask(place.status)
        elif not self._outside(path) or path.startswith((*self._private, *self._of_image)):
            ours = False
        elif operation == "read":
            ours = os.path.lexists(place.path)  # not in the view, but on the host
        else:
            # The file, or the directory for it, is on the host.
            ours = os.path.lexists(place.path) or (place.above is None and os.path.isdir(os.path.dirname(place.path)))
            awaited = ours and self._can_be_made(path)
            if awaited and "/.cache/" in path:  # of the sandbox's own: nothing that a cache lacks is missed
                return
        if ours and result == "ENOENT":
            # An empty path: the directory that it would have begun at is there.
            ours = self._view.resolve(self._thread, b"", place.path, follow=False).status is None
        if ours:
            self._judge(known, path, result, operation, place.status, awaited=awaited)

    def _can_be_made(self, path: str) -> bool:
        """May the command make this name, which is not there, or the directories on the way to it?"""
        above = path
        while above != "/":
            above = os.path.dirname(above)
            place = self._view.resolve(self._thread, b"", os.fsencode(above), follow=False)
            if place.status is not None:
                return not place.readonly and self._may(place.status, 3)
        return False

    def _report_empty(self, known: Known | None, place: notify.Place) -> None:
        """A hidden file that is opened for reading and is empty: nothing fails, and it is a refusal all the same."""
        path = os.fsdecode(place.path)
        if place.readonly and place.status is not None and _is_mask(place.status) and not self._outside(path):
            verdict = self._decide(PathAccess(self._shown(path), "read", stat.S_ISDIR(place.status.st_mode)))
            if isinstance(verdict, Deny) and verdict.reason == reasons.HIDDEN:
                self._judge(known, path, "", "read", place.status)

    def _judge(
        self,
        known: Known | None,
        path: str,
        result: str,
        operation: Operation,
        status: os.stat_result | None,
        *,
        awaited: bool = False,
    ) -> None:
        """``awaited``: it is no refusal if the command makes this name (``absent``)."""
        shown = self._shown(path)
        directory = status is not None and stat.S_ISDIR(status.st_mode)
        verdict = self._decide(PathAccess(shown, operation, directory))
        if isinstance(verdict, Deny):
            reason = (
                reasons.READ_ONLY if result == "EROFS" and verdict.reason == reasons.NOT_IN_THE_VIEW else verdict.reason
            )
            rule = str(verdict.rule.origin) if verdict.rule is not None else None
            # No rule opens what the sandbox makes itself.
            hint = None if path.startswith(self._private) else verdict.hint
            self._deny(known, PathAccess(shown, operation), reason, rule, hint, awaited=path if awaited else "")
        elif result == "EROFS" and not self._outside(path):
            self._deny(known, PathAccess(shown, operation), reasons.PROTECTED_NAME)

    def _deny(
        self,
        known: Known | None,
        access: PathAccess | SocketAccess,
        reason: str,
        rule: str | None = None,
        hint: str | None = None,
        *,
        awaited: str = "",
    ) -> None:
        if self._quiet:
            known = self._processes.of(self._thread)
            if known is not None:
                self._processes.look_again(known)
        event = AccessDenied(access_as_data(access), str(reason), rule, hint, source="notify")
        # Two settings of one file are two refusals.
        key = (access.path, reason, access.operation, hint or "")
        if awaited and len(self._absent) < MOST_REFUSALS:
            self._absent.hold(key, awaited, known.shown() if known else "null", event)
        else:
            self._refuse(known, key, event)

    def _report_absent(self, *, everything: bool) -> None:
        for process, event in self._absent.due(everything=everything):
            self._queue.append((clock.time_ns(), process, event))

    def _refuse(self, known: Known | None, key: tuple[str, ...], event: AccessDenied) -> None:
        """Report a refusal; equal ones of the next second together."""
        process = known.shown() if known else "null"
        held = self._repeated.get(key)
        if held is not None:
            self._repeated[key] = (held[0], process, held[2] + 1)
            return
        if len(self._repeated) >= MOST_REFUSALS:
            self._lose("AccessDenied")
            return
        self._repeated[key] = (event, process, 0)
        self._reported_at = self._reported_at or time.monotonic()
        self._queue.append((self._now, process, event))
        self._urgent = True

    # ------------------------------------------------------------ writing down

    def _write_down(self, write: Callable[[bytes], None]) -> None:
        self._report_absent(everything=self.ended)
        if self._repeated and (self.ended or time.monotonic() - self._reported_at >= REPEAT):
            for refusal, process, count in self._repeated.values():
                if count:
                    self._queue.append((clock.time_ns(), process, refusal.replace(count=count)))
            self._repeated.clear()
            self._reported_at = 0.0
        queue, self._queue = self._queue, []
        for now, process, event in queue:
            self._first._sequence += 1
            line = self._lines.line(now, self._first._sequence, process, event).encode() + b"\n"
            write(line)
            if isinstance(event, (AccessDenied, EventsLost)):
                self._refused(line)


def _is_read_only(path: str) -> bool:
    """Is the file system of this directory of the host mounted read-only there?"""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _is_mask(status: os.stat_result) -> bool:
    """Does it look like what covers a hidden name (``host.view.Masks``)?"""
    mode = status.st_mode
    return not mode & 0o777 or (stat.S_IMODE(mode) == (0o555 if stat.S_ISDIR(mode) else 0o444) and _is_empty(status))


def _is_empty(status: os.stat_result) -> bool:
    """No byte, no directory in it."""
    return status.st_nlink == 2 if stat.S_ISDIR(status.st_mode) else not status.st_size


def _kind(status: os.stat_result) -> str:
    """What ``Prevention`` calls a type of file."""
    form = stat.S_IFMT(status.st_mode)
    if form == stat.S_IFDIR:
        return "directory"
    return "symlink" if form == stat.S_IFLNK else _KINDS.get(form, "file")


def _name(error: int) -> str:
    return errno.errorcode.get(error, str(error)) if error else ""
