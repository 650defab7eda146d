"""The record on disk, the reading side: sessions, their events in order, and whether anything is missing.

Theory of operation
-------------------
A record may be torn, cut, full of garbage or still being written; whatever can be read is given, and ``problems`` says
what cannot.  Each source is read in its own order, the sources are merged by time, which is that of one clock that
cannot be set (``clock``).  Should a source's times go back all the same, its order is not turned around: an event is
never sorted before one that was written before it.

What is here was written by us but made from what a sandbox chose, by a process that a sandbox may have broken: lines
are bounded, a JSON value that is no event is counted and left out, and nothing is taken as safe to print.
"""

from __future__ import annotations

import heapq
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from ..clock import iso
from ..errors import PolicyError
from ..escaping import unescape
from ..events import EventsLost, SessionEnded, SessionStarted, encode
from ..lines import parsed
from ..value import Value
from . import recorded
from .recorded import Recorded
from .writer import SEGMENT, by_age, digest, directory_of, is_written, started

LONGEST_LINE = 2 << 20  # bytes of one JSON line
LARGEST = 4 * SEGMENT  # bytes of one segment, unpacked
_SEGMENT_NAME = re.compile(r"([a-z][a-z0-9_-]{0,31})-(\d{4,9})\.(jsonl|spans)(\.gz)?")
_ID = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_STEP_BACK = 1.0  # seconds; less is not worth a word


class Entry(Value):
    """One record; ``started`` is nanoseconds since the epoch."""

    id: str
    path: str
    started: int
    running: bool


class Verified(Value):
    """What ``verify`` found.  ``digest`` covers everything that was checked, to be kept elsewhere.

    ``incomplete``: what is missing although every file is as it was written: events that were lost or had to make room,
    or those of a process that never said that it had reported them all.
    """

    segments: int
    removed: int
    lost: int
    closed: bool  # every chain has its end
    running: bool
    problems: tuple[str, ...]
    digest: str
    incomplete: tuple[str, ...] = ()


def sessions(state: str) -> list[Entry]:
    """All records, oldest first."""
    above = directory_of(state)
    try:
        names = os.listdir(above)
    except FileNotFoundError:
        return []
    out = []
    for name in names:
        path = os.path.join(above, name)
        if _ID.fullmatch(name) and os.path.isdir(path) and not os.path.islink(path):
            out.append(Entry(name, path, started(path), is_written(path)))
    return sorted(out, key=lambda entry: (by_age(entry.started), entry.id))


def _of_workspace(found: list[Entry], workspace: str) -> Iterator[Entry]:
    """The records of runs in ``workspace`` or a directory above it, newest first."""
    for entry in reversed(found):
        made = Record(entry.path).workspace()
        if made and f"{workspace}/".startswith(made.rstrip("/") + "/"):
            yield entry


def find(state: str, name: str, workspace: str = "") -> Entry:
    """The record that ``name`` means: an id, the beginning of one, ``@last``, or ``@N`` for the N-th last.

    Args:
        state: ``$MEMBRANE_HOME``.
        name: as above.
        workspace: resolved; ``@last`` and ``@N`` count the runs in it, or in a directory above it.  Empty: all.

    Raises:
        PolicyError: there is none, or several (exit status 78).
    """
    found = sessions(state)
    fix = ("membrane trace list",)
    if not found:
        raise PolicyError(
            "find the record", f"no session was recorded in {directory_of(state)}", fix=("membrane -- true",)
        )
    if name.startswith("@"):
        number = 1 if name == "@last" else int(name[1:]) if name[1:].isdecimal() and len(name) < 10 else 0
        count = 0
        for entry in _of_workspace(found, workspace) if workspace else reversed(found):
            count += 1
            if count == number:
                return entry
        why = f"there are {len(found)} sessions" + (f", {count} of this workspace" if workspace else "")
        if not number:
            why = "write @last, or @2 for the one before"
        raise PolicyError("find the record", f"{name}: {why}", fix=fix)
    matching = [entry for entry in found if entry.id == name] or [entry for entry in found if entry.id.startswith(name)]
    if not name or not matching:
        raise PolicyError("find the record", f"no session is called {name!r}", fix=fix)
    if len(matching) > 1:
        raise PolicyError("find the record", f"{name!r} is the beginning of {len(matching)} ids", fix=fix)
    return matching[0]


class Record:
    """The events of one session; iterate ``events`` once, then ``problems`` is complete.

    Args:
        path: the directory.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.id = os.path.basename(path)
        self.running = is_written(path)
        self.problems: list[str] = []
        self.closed = False
        self._decoders: dict[str, Any] = {}  # of raw spans: what they learned from the segments before

    def sources(self) -> dict[str, list[str]]:
        """The segments of each source, in order; one that was compressed while it was cut off is taken once."""
        found: dict[str, dict[int, str]] = {}
        try:
            names = sorted(os.listdir(self.path))
        except OSError as error:
            self.problems.append(f"the directory cannot be read: {error.strerror}")
            return {}
        for name in names:
            parts = _SEGMENT_NAME.fullmatch(name)
            if parts:  # the packed one sorts behind and is complete: it was renamed when it was
                found.setdefault(parts[1], {})[int(parts[2])] = name
            elif name.endswith(".chain"):
                found.setdefault(name[:-6], {})
        return {source: [by[number] for number in sorted(by)] for source, by in sorted(found.items())}

    def ends(self) -> tuple[SessionStarted | None, SessionEnded | None]:
        """What the session itself said first and last, read without the rest; None where that cannot be read."""
        names = self.sources().get("session", [])
        first = _line_of(self.path, names[0], 0) if names else None
        last = _line_of(self.path, names[-1], -1) if names else None
        return first if isinstance(first, SessionStarted) else None, last if isinstance(last, SessionEnded) else None

    def workspace(self) -> str:
        """The workspace of the session, empty when it is not known; the name as it was, not as events write it."""
        started, _ended = self.ends()
        return unescape(started.workspace) if started is not None else ""

    def events(self) -> Iterator[Recorded]:
        """All events, in order."""
        streams = []
        self.closed = True
        for number, (source, names) in enumerate(self.sources().items()):
            losses, ended, problems = chain_losses(self.path, source)
            self.problems += [problem for problem in problems if problem not in self.problems]
            if not ended and not self.running:
                self.problems.append(f"the writer of {source} was killed: its last events may be missing")
            self.closed = self.closed and ended
            streams.append(self._ordered(number, self._of_source(source, names), source))
            streams.append(self._ordered(number + 1000, iter(losses), ""))
        for _key, _stream, _number, event in heapq.merge(*streams):
            yield event

    def _ordered(
        self, stream: int, events: Iterator[Recorded], source: str
    ) -> Iterator[tuple[str, int, int, Recorded]]:
        latest = ""
        back = 0.0
        for number, event in enumerate(events):
            at = _moment(event)
            if at < latest and source:
                back = max(back, (recorded.nanoseconds(latest + "Z") - recorded.nanoseconds(at + "Z")) / 1e9)
            latest = max(latest, at)
            yield latest, stream, number, event
        if back > _STEP_BACK:
            self.problems.append(f"the clock was set back by {back:.0f} s: times of {source} are not in order")

    def _of_source(self, source: str, names: list[str]) -> Iterator[Recorded]:
        bad = 0
        for index, name in enumerate(names):
            data = self._segment(name)
            if data is None:
                continue
            if ".spans" in name:
                yield from self._spans(source, name, data)
                continue
            torn = not data.endswith(b"\n") and data != b""
            lines = data.split(b"\n")
            last = lines.pop()
            for line in lines:
                event = parse(line)
                if event is None:
                    bad += 1
                else:
                    yield event
            if torn and not (self.running and index == len(names) - 1):
                self.problems.append(f"{name} ends within a line of {len(last)} bytes")
        if bad:
            self.problems.append(f"{bad} lines of {source} are no events")

    def _spans(self, source: str, name: str, data: bytes) -> Iterator[Recorded]:
        try:
            from .decode import Decoder  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            self.problems.append(f"{name} cannot be decoded by this version")
            return
        decoder = self._decoders.get(source)
        if decoder is None:
            decoder = self._decoders[source] = Decoder(self.workspace())
        unknown = decoder.unknown
        try:
            for at, event, process in decoder.decode(data):
                yield recorded.parse(encode(event, time=iso(at), session=self.id, seq=0, process=process))
        except Exception as error:  # a decoder of hostile bytes must not end the reading of all else
            self.problems.append(f"{name} cannot be decoded: {type(error).__name__}: {error}")
            return
        if decoder.torn:
            self.problems.append(f"{name} ends within a record of {decoder.torn} bytes")
        if decoder.unknown > unknown:
            self.problems.append(f"{name} has {decoder.unknown - unknown} records of no known type")

    def torn(self, source: str) -> int:
        """Bytes at the end of what was last read of a source of spans that are no whole record."""
        decoder = self._decoders.get(source)
        return 0 if decoder is None else int(decoder.torn)

    def _segment(self, name: str) -> bytes | None:
        try:
            return read_segment(self.path, name)
        except (OSError, zlib.error, ValueError) as error:
            self.problems.append(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
            return None


def _moment(event: Recorded) -> str:
    """For comparing: the gateway writes milliseconds, and what caused an event is before it."""
    at = event.time.removesuffix("Z")
    return f"{at}999" if at[-4:-3] == "." else at


def _line_of(path: str, name: str, number: int) -> Any:
    """The event in the first (0) or the last line (-1) of a segment, None where there is none that can be read."""
    try:
        event = parse(read_segment(path, name).rstrip(b"\n").split(b"\n")[number])
    except (OSError, zlib.error, ValueError):
        return None
    return event and event.event


def read_segment(path: str, name: str) -> bytes:
    """The content of a segment, unpacked.

    Raises:
        OSError, zlib.error: it cannot be read.
        ValueError: it is larger than any segment.
    """
    data = _read(os.path.join(path, name))
    if not name.endswith(".gz"):
        return data
    unpacker = zlib.decompressobj(31)
    out = unpacker.decompress(data, LARGEST)
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {LARGEST >> 20} MiB")
    if not unpacker.eof:
        raise ValueError("it is cut off")
    return out


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return data


def parse(line: bytes) -> Recorded | None:
    """One line as an event, or None."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        event = parsed(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str) or not isinstance(event.get("time"), str):
        return None
    return recorded.parse(event)


# ---------------------------------------------------------------- chains


def _chain(path: str, source: str) -> tuple[list[dict[str, Any]], list[str], str]:
    """The lines of a chain up to the first that does not fit, what is wrong, and the digest of the last line."""
    problems: list[str] = []
    out: list[dict[str, Any]] = []
    try:
        data = _read(os.path.join(path, f"{source}.chain"))
    except (OSError, ValueError) as error:
        return [], [f"{source}.chain cannot be read: {getattr(error, 'strerror', None) or error}"], ""
    before = ""
    lines = data.split(b"\n")
    if lines.pop():
        problems.append(f"{source}.chain ends within a line")
    for number, line in enumerate(lines, 1):
        try:
            entry = parsed(line)
            fits = isinstance(entry, dict) and entry.get("before") == before
        except ValueError:
            fits = False
        if not fits:
            problems.append(f"{source}.chain, line {number}: it does not follow the line before it")
            break
        out.append(entry)
        before = digest(line)
    return out, problems, before


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def chain_losses(path: str, source: str) -> tuple[list[Recorded], bool, list[str]]:
    """What the chain of a source says was lost, as ``EventsLost``; whether it has its end; what is wrong with it."""
    entries, problems, _digest = _chain(path, source)
    events = []
    for entry in entries:
        for kind in ("lost", "removed"):
            if kind not in entry or entry.get("closed"):
                continue
            count = _number(entry["lost"] if kind == "lost" else entry.get("records"))
            first, last = iso(_number(entry.get("first"))), iso(_number(entry.get("last")))
            cause = str(entry.get("cause", "")) if kind == "lost" else "removed to stay within trace.max_size"
            lost = EventsLost(source, count, first, last, cause=cause)
            events.append(recorded.parse(encode(lost, time=last, session=os.path.basename(path), seq=0)))
    ends = [entry for entry in entries if entry.get("closed") is True]
    if ends and isinstance(ahead := ends[-1].get("clock"), int):
        way = "forward" if ahead > 0 else "back"
        problems.append(f"the clock was set {way} by {abs(ahead) / 1e9:.0f} s: all times are as before that")
    return events, bool(ends), problems


def verify(path: str) -> Verified:
    """Check every segment of a record against its chain."""
    record = Record(path)
    problems: list[str] = []
    segments = removed = lost = 0
    closed = True
    digests = []
    gone: list[str] = []
    sources = record.sources()
    problems += record.problems
    if not sources:
        problems.append("it is empty")
    for source, names in sources.items():
        entries, wrong, last = _chain(path, source)
        problems += wrong
        digests.append(f"{source} {last}\n")
        known: dict[str, dict[str, Any]] = {}
        gone += _gone(source, entries)
        for entry in entries:
            if isinstance(entry.get("segment"), str):
                known[entry["segment"]] = entry
            elif isinstance(entry.get("removed"), str):
                known.pop(entry["removed"], None)
                removed += _number(entry.get("segments", 1))
            elif entry.get("closed") is not True and "lost" in entry:
                lost += _number(entry["lost"])
        ended = any(entry.get("closed") is True for entry in entries)
        closed = closed and ended
        for name, entry in known.items():
            segments += 1
            try:
                data = _read(os.path.join(path, name))
            except (OSError, ValueError) as error:
                problems.append(f"{name} is missing: {getattr(error, 'strerror', None) or error}")
                continue
            if digest(data) != entry.get("sha256"):
                problems.append(f"{name} was changed: its SHA-256 is not that of the chain")
        for name in names:
            if name not in known and (ended or name != names[-1]):
                problems.append(f"{name} is not in the chain")
        if not ended and not record.running:
            problems.append(f"{source}.chain has no end: its writer was killed, or the end was cut off")
    whole = digest("".join(digests).encode())
    if not record.running:
        gone += _unproven(record, sources, lost, told=bool(gone))
    return Verified(segments, removed, lost, closed, record.running, tuple(problems), whole, tuple(gone))


def _gone(source: str, entries: Iterable[dict[str, Any]]) -> list[str]:
    """What a chain says is not in its segments any more, or never came there."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.get("closed") is True:
            continue
        if isinstance(entry.get("removed"), str):
            cause, count = "removed to stay within trace.max_size", _number(entry.get("records"))
        elif "lost" in entry:
            cause, count = f"lost ({entry.get('cause', 'no cause is known')})", _number(entry["lost"])
        else:
            continue
        counts[cause] = counts.get(cause, 0) + count
    return [f"{source}: {count} events were {cause}" for cause, count in counts.items()]


def _unproven(record: Record, sources: dict[str, list[str]], lost: int, *, told: bool) -> tuple[str, ...]:
    """Whose last word is missing, by what the session itself said first and last.

    Args:
        lost: events that are counted as lost; the last one of the session may be among them.
        told: the chains have said what is lost; else the session's own sum is what is known of it.
    """
    started, ended = record.ends()
    watched = started.trace_source.replace(",", " ").split() if started is not None else []
    out = [f"{name}: it has no files" for name in watched if name != "network" and name not in sources]
    if ended is not None:
        out += ended.incomplete
        if ended.lost and not told:
            out.append(f"{ended.lost} events were lost")
    elif not lost:
        out.append("session: its last event is not the end of the session")
    return tuple(out)


# ---------------------------------------------------------------- while it is written


class Follower:
    """New events of a record that is being written: ``poll`` gives those since the last call."""

    def __init__(self, path: str) -> None:
        self.record = Record(path)
        self._seen: dict[str, int] = {}  # bytes taken of each segment, by its name without .gz
        self._done: set[str] = set()  # those that were packed and taken

    def poll(self) -> list[Recorded]:
        """The new events, in order."""
        out: list[Recorded] = []
        for source, names in self.record.sources().items():
            for name in names:
                plain = name.removesuffix(".gz")
                if plain in self._done:
                    continue
                taken = self._seen.get(plain, 0)
                try:
                    if name == plain:
                        with open(os.path.join(self.record.path, name), "rb") as file:
                            file.seek(taken)
                            new = file.read(LARGEST)
                    else:
                        new = read_segment(self.record.path, name)[taken:]
                        self._done.add(plain)
                except (OSError, zlib.error, ValueError):
                    continue  # it was just compressed: the next call finds it
                if not new:
                    continue
                if ".spans" in plain:
                    out += list(self.record._spans(source, name, new))
                else:
                    new = new[: new.rfind(b"\n") + 1]
                    out += [event for line in new.split(b"\n") if line and (event := parse(line)) is not None]
                if ".spans" in plain:  # half a record is written at the moment: it is read again
                    new = new[: len(new) - self.record.torn(source)]
                self._seen[plain] = taken + len(new)
        return sorted(out, key=_moment)

    def ended(self) -> bool:
        """Is it not written to any more?"""
        return not is_written(self.record.path)
