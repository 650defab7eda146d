"""The events of one session: numbered, put on the record and where asked, the refusals kept for the summary.

Events of the network process come as JSON lines that are already escaped; they get their number here, so that one
order joins all sources.  A line is read to know what it is and then passed on as it came, with its number put in.
Nothing is made that nobody reads: without a record and a file the network process tells its refusals and totals only.
"""

from __future__ import annotations

import os
import time

from . import clock
from .errors import HostError, InternalError
from .events import AccessDenied, encode, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .events import Event
    from .trace.record import Writer

MOST_KEPT = 256  # distinct refusals kept for the summary


def say(text: str) -> None:
    """One line on stderr in our name; lines of several are separate calls."""
    try:
        os.write(2, f"membrane: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def now() -> str:
    """The time of the session as ISO 8601 with microseconds, UTC."""
    nanoseconds = clock.time_ns()
    parts = time.gmtime(nanoseconds // 1_000_000_000)
    return (
        f"{parts.tm_year:04}-{parts.tm_mon:02}-{parts.tm_mday:02}T{parts.tm_hour:02}:{parts.tm_min:02}:"
        f"{parts.tm_sec:02}.{nanoseconds // 1000 % 1_000_000:06}Z"
    )


class Journal:
    """Numbers the events of one session, writes them where asked, keeps the refusals for the summary.

    Args:
        session: its id.
        destination: a file to append to, ``-`` for stderr, or nothing.
        record: the session's part of the record; closed with the journal.

    Raises:
        HostError: the file can not be opened.
    """

    def __init__(self, session: str, destination: str, record: Writer | None = None) -> None:
        self.session = session
        self.record = record
        self.sequence = 0
        self.counts: dict[str, int] = {}
        self.denied: dict[tuple[str, str], AccessDenied] = {}
        self.refused = 0
        self.lost = 0
        self.bytes_up = self.bytes_down = 0  # of closed connections, or of all so far where that is more
        self.on_refusal: Callable[[AccessDenied], None] | None = None
        self.on_line: Callable[[bytes, dict[str, Any]], None] | None = None  # takes each line, and what it says
        self._closed_up = self._closed_down = 0
        self._unwritten: list[bytes] = []
        self._unrecorded: list[bytes] = []
        self._unnumbered = f'"session": "{session}", "seq": 0, "event": "'.encode()
        self._fd = -1
        if destination == "-":
            self._fd = 2
        elif destination:
            try:
                self._fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise HostError("open the events file", error.strerror or "", target=destination) from None

    @property
    def wants_all(self) -> bool:
        """Does somebody keep the events that are no refusals?"""
        return self.record is not None or self._fd >= 0 or self.on_line is not None

    def add(self, event: Event) -> None:
        """An event of the session itself."""
        if isinstance(event, AccessDenied):
            # Kept as the lines of the network process are: escaped once.
            self._keep(event.replace(access=plain(event.access)))
        self._count(type(event).__name__)
        if self.wants_all:
            from .trace.record import json_text

            data = encode(event, time=now(), session=self.session, seq=self.sequence)
            self._take(json_text(data).encode() + b"\n", data, False)
            self.flush()

    def add_line(self, line: bytes, recorded: bool = False) -> dict[str, Any] | None:
        """One JSON line of the network process or the tracer; returns it when it is not an event.

        ``flush`` writes it.

        Args:
            line: without its newline.
            recorded: whoever sends it has put it on the record already, in a source of its own.

        Raises:
            InternalError: it is not what the network process sends.
        """
        import json

        try:
            record = json.loads(line)
            kind = record.get("event")
            if kind is None:
                if "totals" in record:
                    self.bytes_up = max(self._closed_up, int(record["totals"]["bytes_up"]))
                    self.bytes_down = max(self._closed_down, int(record["totals"]["bytes_down"]))
                return dict(record)
            if kind == "AccessDenied":
                self._keep(AccessDenied(dict(record["access"]), record["reason"], record["rule"], record["hint"]))
                self.refused += max(0, int(record.get("count", 1)) - 1)
            elif kind == "EventsLost":
                self.lost += int(record["count"])
            elif kind == "ConnectionClosed":
                self._closed_up += int(record["bytes_up"])
                self._closed_down += int(record["bytes_down"])
                self.bytes_up = max(self.bytes_up, self._closed_up)
                self.bytes_down = max(self.bytes_down, self._closed_down)
            self._count(str(kind))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InternalError("read an event of the network process", f"{type(error).__name__}: {error}") from None
        if self.wants_all:
            # As it came, with its number; made anew only where the head is not the usual one.
            head, found, rest = line.partition(self._unnumbered)
            if found and len(head) < 64 and b"\n" not in rest:
                number = b'"session": "%s", "seq": %d, "event": "' % (self.session.encode(), self.sequence)
                self._take(head + number + rest + b"\n", record, recorded)
            else:
                record.update(session=self.session, seq=self.sequence)
                self._take(json.dumps(record, ensure_ascii=True).encode() + b"\n", record, recorded)
        return None

    def _take(self, line: bytes, data: dict[str, Any], recorded: bool) -> None:
        if self.on_line is not None:
            self.on_line(line, data)
        if self._fd >= 0:
            self._unwritten.append(line)
        if self.record is not None and not recorded:
            self._unrecorded.append(line)

    def flush(self) -> None:
        """Write what was added since the last time."""
        if self._unrecorded and self.record is not None:
            self.record.append(b"".join(self._unrecorded))
            self._unrecorded.clear()
        if self._unwritten:
            data = b"".join(self._unwritten)
            self._unwritten.clear()
            if self._fd >= 0:
                self._write(data)

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

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.lost += 1
            if self._fd > 2:
                os.close(self._fd)
            self._fd = -1
            say(f"cannot write an event: {error.strerror}; further events are not written")

    def close(self) -> None:
        """Write what is left and close the file and the record."""
        self.flush()
        if self.record is not None:
            self.record.close()
        if self._fd > 2:
            os.close(self._fd)
        self._fd = -1

    def give_up(self) -> None:
        """Close after a run that did not come about: an empty record is no record."""
        self.close()
        if self.record is not None and not self.sequence:
            from .trace.record import remove

            remove(self.record.directory)
