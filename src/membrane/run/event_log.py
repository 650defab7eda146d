"""The events of one session: numbered, put on the record and where asked, the refusals kept for the summary.

Events of the gateway come as JSON lines that are already escaped; they get their number here, so that one
order joins all sources.  A line is read to know what it is and then passed on as it came, with its number put in.
Nothing is made that is not read: without a record and a file the gateway sends its refusals and totals only.
Who sends an event may send events of its own kinds only (``Event.senders``): a broken gateway does not write
that the session ended.

Nothing here waits for who reads the events file.  It is opened without waiting, and so is a FIFO whose reader comes
later; what it does not take is kept in ``ROOM`` bytes, what does not fit is counted, and reported in its place.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from .. import clock
from ..errors import HostError, InternalError
from ..escaping import escape
from ..events import EVENTS, AccessDenied, EventsLost, encode, plain
from ..host.ready import ready
from ..lines import json_text, parsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import Event
    from ..record.writer import Writer

MOST_KEPT = 256  # distinct refusals kept for the summary
MOST_OPEN = 4096  # connections whose failure can be in the summary; that of others is on the record
LONGEST_WHY = 400  # characters
ROOM = 4 << 20  # bytes of events that wait for a slow reader of the events file
LARGEST_WRITE = 64 << 10  # bytes
PIECE = 4096  # bytes that a pipe takes at once or not at all (PIPE_BUF, pipe(7))
AGAIN = 0.1  # seconds from one offer to a slow reader to the next
LAST_OFFER = 5.0  # seconds in which such a reader takes nothing at the end, and
LAST_OFFERS = 20.0  # seconds for all that is left
SOURCES = {"network": ("network",), "tracer": ("ebpf", "notify")}


def say(text: str) -> None:
    """One line on stderr in our name; lines of several are separate calls."""
    show(f"membrane: {text}")


def show(line: str) -> None:
    """One line on stderr as it is.  What cannot be written there (a full disk, a reader that has ended) is not an
    error: the status is the command's, and the record has it all.

    A reader that is slow is waited for, also where the command, whose stderr it is as well, has made that not wait
    (node leaves a pipe so)."""
    rest = memoryview((line + "\n").encode("utf-8", "backslashreplace"))
    try:
        while rest:
            try:
                rest = rest[os.write(2, rest) :]
            except BlockingIOError:
                ready((), (2,))
    except OSError:
        pass


def place_for_caller(path: str) -> int | None:
    """The directory of such a file as it is before a command runs, which may put a link in its place; None: no matter.

    Raises:
        OSError: as of open(2).
    """
    if path == "-" or path.startswith(("/dev/", "/proc/")):
        return None
    return os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_for_caller(path: str, flags: int, mode: int, place: int | None = None) -> int:
    """Open a file that the caller named for what a run writes, for writing; it is made if it is not there.

    The last component may not be a symbolic link, unless it is the system's (``/dev/stderr``): an earlier command may
    have left one in the workspace, and what is written came from inside.

    Args:
        place: its directory (``place_for_caller``), where a command has run since the caller named it.

    Raises:
        OSError: ELOOP for such a link, else as of open(2).
    """
    follow = 0 if path.startswith(("/dev/", "/proc/")) else os.O_NOFOLLOW
    try:
        flags |= follow | os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        return os.open(path if place is None else os.path.basename(path), flags, mode, dir_fd=place)
    except OSError as error:
        if error.errno == errno.ELOOP and follow:
            raise OSError(errno.ELOOP, "it is a symbolic link, which a command may have left there") from None
        raise


def now() -> str:
    """The time of the session as ISO 8601 with microseconds, UTC."""
    return clock.iso(clock.time_ns())


class EventLog:
    """Numbers the events of one session, writes them where asked, keeps the refusals for the summary.

    Args:
        session: its id.
        destination: a file to append to, ``fd:N`` for a descriptor that the caller opened, ``stderr`` for the stream
            that the command has as well, or nothing.
        record: the session's part of the record; closed with this.

    Raises:
        HostError: the file cannot be opened.
    """

    def __init__(self, session: str, destination: str, record: Writer | None = None) -> None:
        self.session = session
        self.record = record
        self.sequence = 0
        self.counts: dict[str, int] = {}
        self.denied: dict[tuple[str, str], AccessDenied] = {}
        self.failed: dict[tuple[str, int, str, str], None] = {}  # (host, port, protocol, why): see ``_keep_failure``
        self.more_failed = False  # than were kept
        self._open: dict[
            int, tuple[str, int, str]
        ] = {}  # connections that were reported as opened: (host, port, protocol)
        self.refused = 0
        self.lost = 0
        self.defects = 0  # failures of the gateway by a defect of ours
        self.bytes_up = self.bytes_down = 0  # of closed connections, or of all so far where that is more
        self.on_refusal: Callable[[AccessDenied], None] | None = None
        self.on_line: Callable[[bytes, dict[str, Any]], None] | None = None  # takes each line, and what it says
        self._closed_up = self._closed_down = 0
        self._unrecorded: list[bytes] = []
        self._unnumbered = f'"session": "{session}", "seq": 0, "event": "'.encode()
        self._stream = Stream(destination, session) if destination else None

    @property
    def wants_all(self) -> bool:
        """Is there a reader of the events that are no refusals?"""
        return self.record is not None or self._stream is not None or self.on_line is not None

    @property
    def waits(self) -> bool:
        """Is the events file read slower than they come?  ``flush`` is to be called again then."""
        return self._stream is not None and self._stream.waits

    def add(self, event: Event, at: int = 0) -> None:
        """An event of the session itself; ``at``: when it was, in ns since the epoch by ``clock``; 0: now."""
        if isinstance(event, AccessDenied):
            # Kept as the lines of the gateway are: escaped once.
            self._keep(event.replace(access=plain(event.access)))
        self._count(type(event).__name__)
        if self.wants_all:
            data = encode(event, time=clock.iso(at) if at else now(), session=self.session, seq=self.sequence)
            self._take(json_text(data).encode() + b"\n", data, False)
            self.flush()

    def add_totals(self, up: int, down: int) -> None:
        """Bytes of all connections of the gateway so far, also of those that are open."""
        self.bytes_up, self.bytes_down = max(self._closed_up, up), max(self._closed_down, down)

    def add_line(self, line: bytes, sender: str, recorded: bool = False) -> None:
        """One event of the gateway or the tracer, as a line of JSON; ``flush`` writes it.

        Args:
            line: without its newline.
            sender: ``network`` or ``tracer``.
            recorded: its sender has put it on the record already, in a source of its own.

        Raises:
            InternalError: it is not what that process sends.
        """
        try:
            record = parsed(line)
            kind = record["event"]
            if kind not in EVENTS or sender not in EVENTS[kind].senders or record["source"] not in SOURCES[sender]:
                raise ValueError("not an event of its own")
            if kind == "AccessDenied":
                self._keep(AccessDenied(dict(record["access"]), record["reason"], record["rule"], record["hint"]))
                self.refused += max(0, int(record.get("count", 1)) - 1)
            elif kind == "EventsLost":
                self.lost += int(record["count"])
            elif kind == "ConnectionOpened":
                if len(self._open) < MOST_OPEN:
                    protocol = "udp" if record["protocol"] == "udp" else "tcp"
                    self._open[int(record["id"])] = (str(record["host"]), int(record["port"]), protocol)
            elif kind == "RequestSeen":
                if record["status"] == 502 and record["verdict"] == "allow" and record["error"]:
                    self._keep_failure(str(record["host"]), int(record["port"]), "tcp", str(record["error"]))
            elif kind == "ConnectionClosed":
                self._closed_up += int(record["bytes_up"])
                self._closed_down += int(record["bytes_down"])
                self.bytes_up = max(self.bytes_up, self._closed_up)
                self.bytes_down = max(self.bytes_down, self._closed_down)
                place = self._open.pop(int(record.get("id", 0)), None)
                if place and record.get("reached") is False:
                    self._keep_failure(*place, str(record.get("error", "")))
            elif kind == "DefectSeen":
                self._report_defect(record)
            self._count(str(kind))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            whose = "gateway" if sender == "network" else sender
            raise InternalError(f"read an event of the {whose}", f"{type(error).__name__}: {error}") from None
        if self.wants_all:
            # As it came, with its number; made anew only where the head is not the usual one.
            head, found, rest = line.partition(self._unnumbered)
            if found and len(head) < 64 and b"\n" not in rest:
                number = b'"session": "%s", "seq": %d, "event": "' % (self.session.encode(), self.sequence)
                self._take(head + number + rest + b"\n", record, recorded)
            else:
                record.update(session=self.session, seq=self.sequence)
                import json

                self._take(json.dumps(record, ensure_ascii=True).encode() + b"\n", record, recorded)

    def _take(self, line: bytes, data: dict[str, Any], recorded: bool) -> None:
        if self.on_line is not None:
            self.on_line(line, data)
        if self._stream is not None:
            self._stream.add(line, self.sequence)
        if self.record is not None and not recorded:
            self._unrecorded.append(line)

    def flush(self) -> None:
        """Write what was added since the last time."""
        if self._unrecorded and self.record is not None:
            self.record.append(b"".join(self._unrecorded))
            self._unrecorded.clear()
        if self._stream is not None:
            self._stream.offer()

    def _report_defect(self, record: dict[str, Any]) -> None:
        """The first few one by one; at the end the gateway sends the rest in one event."""
        count, where = int(record["count"]), [str(frame) for frame in record["where"]]
        self.defects += count
        times = f" ({count} more times)" if count > 1 else ""
        place = where[-1] if where else "an unknown place"
        what = escape(f"{record['error']} at {place}")
        say(f"a defect in membrane's gateway{times}: {what}; what it was about was refused")

    def _count(self, kind: str) -> None:
        self.sequence += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _keep(self, event: AccessDenied) -> None:
        self.refused += 1
        if self.on_refusal is not None:
            self.on_refusal(event)
        # The A and the AAAA query of one look-up are one refusal to a person.
        key = (repr(sorted(item for item in event.access.items() if item[0] != "type")), event.reason)
        if len(self.denied) < MOST_KEPT:
            self.denied.setdefault(key, event)

    def _keep_failure(self, host: str, port: int, protocol: str, why: str) -> None:
        """An allowed host that could not be reached: no refusal of ours, and a program often shows less of it."""
        if port == 0:  # a host's socket, which the broker's own refusals are about
            return
        key = (host, port, protocol, why[:LONGEST_WHY])
        if len(self.failed) < MOST_KEPT:
            self.failed.setdefault(key)
        elif key not in self.failed:
            self.more_failed = True

    def close(self) -> None:
        """Write what is left and close the file and the record."""
        self.flush()
        if self.record is not None:
            self.record.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def give_up(self) -> None:
        """Close after a run that did not come about: an empty record is no record."""
        self.close()
        if self.record is not None and not self.sequence:
            from ..record.writer import remove

            remove(self.record.directory)


class Stream:
    """The events file: never waited for.

    Args:
        destination: as of ``EventLog``.
        session: its id.

    Raises:
        HostError: it cannot be opened.
    """

    def __init__(self, destination: str, session: str) -> None:
        self._session = session
        self._path = destination
        self._buffer = bytearray()  # what was not taken yet
        self._lost, self._since, self._last = (
            0,
            "",
            0,
        )  # events that found no room: how many, since when, the last's seq
        self._unread = 0  # all of them
        self._fd = -1
        self._fifo = -1  # that had no reader when it was opened
        self._polled = False  # the descriptor may block: it is asked before each piece
        self._failed = False
        try:
            self._open()
        except OSError as error:
            raise HostError("open the events file", error.strerror or "", target=destination) from None

    @property
    def waits(self) -> bool:
        """Is something left that was not taken?"""
        return bool(self._buffer or self._lost) and not self._failed

    def add(self, line: bytes, number: int) -> None:
        """Take one line, which has this number; ``offer`` hands it over."""
        if self._failed:
            return
        if self._lost or len(self._buffer) + len(line) > ROOM:
            # Also when there is room again: what was lost is reported before it.
            self._since = self._since or now()
            self._lost += 1
            self._last = number
            return
        self._buffer += line

    def offer(self) -> bool:
        """Hand over what is taken now; was anything?"""
        if self._failed or not self.waits:
            return False
        taken = 0
        try:
            if self._fd < 0:
                self._open()
            while self._fd >= 0 and self._buffer and (done := self._write()):
                taken += done
                del self._buffer[:done]
        except OSError as error:
            self._fail(error.strerror or str(error))
        if self._lost and len(self._buffer) < ROOM // 2:
            self._report_loss()
        return taken > 0

    def close(self) -> None:
        """Offer what is left for a short while, report what was not read, and close."""
        import select

        end = time.monotonic() + LAST_OFFERS
        patience = time.monotonic() + LAST_OFFER
        while self.waits and time.monotonic() < min(end, patience):
            if self.offer():
                patience = time.monotonic() + LAST_OFFER
            elif self._fd >= 0:
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(1000 * max(0.0, min(end, patience) - time.monotonic()))
            else:
                break  # a FIFO without a reader
        left = self._unread + self._lost + self._buffer.count(b"\n")
        if left and not self._failed:
            say(f"{left} events were not read from {escape(self._path)} and are not in it")
        for fd in (self._fd, self._fifo):
            if fd > 2:
                os.close(fd)
        self._fd, self._failed = -1, True

    def _open(self) -> None:
        if self._path == "stderr" or self._path.startswith("fd:"):
            self._fd = 2 if self._path == "stderr" else int(self._path[3:])
            # Whether it waits belongs to everybody who has it: it is not changed, but asked before each piece.
            self._polled = not stat.S_ISREG(os.fstat(self._fd).st_mode)
            return
        try:
            if self._fifo >= 0:  # by descriptor: what has its name now may be the command's
                self._fd = os.open(f"/proc/self/fd/{self._fifo}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            else:
                self._fd = open_for_caller(self._path, os.O_APPEND | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if self._fifo < 0:
                self._fifo = os.open(self._path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
                if not stat.S_ISFIFO(os.fstat(self._fifo).st_mode):
                    raise
            # The FIFO has no reader yet (fifo(7)): it is tried again.

    def _write(self) -> int:
        """How much is taken now."""
        most = LARGEST_WRITE
        if self._polled:
            if not ready((), (self._fd,), seconds=0)[1]:
                return 0
            most = PIECE
        try:
            return os.write(self._fd, self._buffer[:most])
        except BlockingIOError:
            return 0

    def _report_loss(self) -> None:
        """In the place of what is not there; only here, for the record has it."""
        cause = "who reads the events file was too slow"
        at = now()
        lost = EventsLost("events file", self._lost, self._since, at, "session", cause)
        line = json_text(encode(lost, time=at, session=self._session, seq=self._last)).encode() + b"\n"
        self._buffer += line
        self._unread += self._lost
        self._lost, self._since = 0, ""

    def _fail(self, why: str) -> None:
        self._failed = True
        # The caller's descriptor has another number here (``ui.cli.events_place``).
        place = "the descriptor of --events" if self._path.startswith("fd:") else escape(self._path)
        say(f"cannot write an event: {why}; further events are not written to {place}")
