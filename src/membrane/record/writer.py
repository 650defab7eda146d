"""The record on disk, the writing side: segments, their chain, and the bounds that hold whatever is inside.

Theory of operation
-------------------
``$MEMBRANE_HOME/trace/SESSION/`` (mode 0700) holds what each source of events wrote.  A source has one ``Writer`` in
one process and files of its own: ``SOURCE-NNNN.jsonl`` (one JSON object a line) or ``SOURCE-NNNN.spans`` (raw bytes
of the kernel's ring).  A segment is appended to, closed when it is full, compressed when that is worth it, and never
touched again.

``SOURCE.chain`` says what should be there: one JSON object a line, each with ``before``, the SHA-256 of the line
before it.  A line is about a segment that was closed (its size and SHA-256), of one that was removed for room, of
records that could not be written, or of the end.  A changed, missing or invented segment does not fit, and a chain
without its end belongs to a writer that was killed.

Bounds
------
1. A source keeps at most ``limit`` bytes, a quarter of them for its chain.  Half of the rest is for what came first
   and is never given up, the other half holds the newest: what a command did first cannot be flooded away, nor can
   what it did last.  What went is counted in the chain; when the chain is full, everything further is.
2. A disk that is full loses records, counted with the time, and not the record: a partial line is cut off again.
3. ``prune`` removes the oldest sessions that are not written to.  A writer holds a shared lock on the directory.
4. The end of a run of a second and more waits until the disk has everything (fdatasync(2), about 30 ms); for a shorter
   one it would be the longest step, so the writing is only begun.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time

from ..clock import time_ns, was_set_by
from ..errors import HostError
from ..host.writing import write_all
from ..lines import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_SIZE = 512 << 20  # bytes that the record of one session may take, unless ``trace.max_size`` says otherwise
KEEP = 200  # closed sessions that are kept, unless ``trace.keep`` says otherwise
TOTAL = 8  # all records together take at most so many times the size of one
SEGMENT = 8 << 20  # bytes of a segment before it is closed; less when the limit is small
DURABLE_FROM = 1_000_000_000  # nanoseconds that a writer lived before its end waits for the disk
CLOCK_STEP = 1_000_000_000  # nanoseconds that the machine's clock was set by before the end of the chain says so
WORTH_COMPRESSING = 16 << 10  # bytes; below, a file takes a block or two anyway
SPARE = 8  # so many sessions are removed beyond ``keep``, so that not every run has to look at all of them
FORMAT = 1


def directory_of(state: str, session: str = "") -> str:
    """The directory of the record of ``session``, or of all records."""
    return os.path.join(state, "trace", session) if session else os.path.join(state, "trace")


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal, from the interpreter's own module: hashlib loads OpenSSL."""
    global _sha256
    if _sha256 is None:  # once: looking for a module that is not there costs more than the digest
        try:
            if sys.version_info >= (3, 12):
                from _sha2 import sha256
            else:
                from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
        _sha256 = sha256
    text: str = _sha256(data).hexdigest()
    return text


_sha256: Any = None


def share(max_size: int, source: str) -> int:
    """Bytes of a session's record that ``source`` may take: a flood of file events leaves the refusals their room."""
    size = max_size or MAX_SIZE
    return size // 4 if source == "session" else size // 2 if source == "ebpf" else size // 4


def _to_disk(fd: int, wait: bool) -> None:
    try:
        if wait:
            os.fdatasync(fd)
        else:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # begins the writing (mm/fadvise.c)
    except OSError:
        pass  # what cannot be forced may still arrive


def _lock_directory(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise HostError("keep the record", "it belongs to another user", target=path)
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make(state: str, session: str) -> str:
    """Make the directory of a session's record and return it; the caller opens a ``Writer`` there next.

    Raises:
        HostError: it cannot be made, or is not ours.
    """
    above, path = directory_of(state), directory_of(state, session)
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            os.makedirs(above, 0o700, exist_ok=True)
            os.mkdir(path, 0o700)
    except OSError as error:
        raise HostError(
            "keep the record", error.strerror or "", target=path, fix=("run without one: membrane --no-trace ...",)
        ) from None
    return path


class _Segment:
    """One closed segment."""

    __slots__ = ("entry", "first", "last", "latest", "name", "records", "size")

    def __init__(self, entry: dict[str, Any], records: int, latest: int) -> None:
        self.entry = entry  # of the chain
        self.latest = latest  # when its latest event happened, or was written
        self.name, self.size, self.records = str(entry["segment"]), int(entry["size"]), records
        self.first, self.last = int(entry["first"]), int(entry["last"])


def _together(known: dict[str, Any] | None, entry: dict[str, Any], *sums: str) -> dict[str, Any]:
    """Two entries of the chain about the same as one."""
    if known is None:
        return dict(entry)
    first, last = min(known["first"], entry["first"]), max(known["last"], entry["last"])
    return {**known, **{name: known[name] + entry[name] for name in sums}, "first": first, "last": last}


class Writer:
    """Appends the records of one source.

    Args:
        directory: of the session, from ``make``.
        source: ``session``, ``notify``, ``ebpf``: the first part of the file names.
        suffix: ``jsonl`` (each ``append`` ends with a newline) or ``spans``.
        limit: bytes that this source may take on disk.
        clock: nanoseconds since the epoch; for tests.

    Raises:
        HostError: the chain cannot be begun.
    """

    def __init__(
        self,
        directory: str,
        source: str,
        suffix: str = "jsonl",
        *,
        limit: int = MAX_SIZE // 4,
        clock: Callable[[], int] = time_ns,
    ) -> None:
        self.directory, self.source, self.suffix = directory, source, suffix
        self.limit = limit
        self.segment = max(1 << 12, min(SEGMENT, limit // 16))
        self.lost = 0  # records that could not be written
        self.removed = 0  # of segments that had to go
        self._clock = clock
        self._born = time.monotonic_ns()
        self._unsynced: list[str] = []  # of segments that were closed while the writer ran on
        self._fd = -1
        self._number = 0
        self._size = self._records = self._first = self._last = 0
        self._latest = 0  # event of the open segment
        self._closed: list[_Segment] = []
        self._pending_loss: list[Any] = []  # [count, first, last, cause]
        self._before = ""
        self._chained = 0  # bytes of the chain
        self._shorten_at = limit // 8  # of these
        self._gone: dict[str, Any] | None = None  # all segments that had to go, as one entry
        self._losses: dict[str, dict[str, Any]] = {}  # all losses, as one entry for each cause
        self._directory_fd = -1
        try:
            self._directory_fd = _lock_directory(directory)
            chain = os.path.join(directory, f"{source}.chain")
            self._chain = os.open(chain, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if self._directory_fd >= 0:  # else the record counts as being written as long as this process lives
                os.close(self._directory_fd)
            raise HostError("keep the record", error.strerror or "", target=directory) from None
        self._head = {"format": FORMAT, "source": source, "suffix": suffix, "time": clock()}
        self._link(self._head)

    def append(self, data: bytes, records: int = 0) -> None:
        """Write whole records; what cannot be written is counted, never raised.

        Args:
            data: lines with their newlines, or raw spans.
            records: about how many, for spans; lines are counted, and so are the spans of what is lost.
        """
        if not data:
            return
        if self.suffix == "jsonl":
            records = data.count(b"\n")
        elif len(data) > self.segment:  # else the first ones would not fit into the half that is never given up
            from .spans import split

            parts = split(data, self.segment)
            for part, latest in parts:
                self._append(part, records // len(parts), latest)
            return
        self._append(data, records, 0)

    def _append(self, data: bytes, records: int, latest: int) -> None:
        if self._size and self._size + len(data) > self.segment:
            self._close_segment()
        try:
            if self._fd < 0:
                self._open_segment()
            self._write(data)
        except OSError as error:
            self._lose(self._count(data) if self.suffix == "spans" else records, error)
            return
        now = self._clock()
        self._first = self._first or now
        self._last = now
        self._size += len(data)
        self._records += records
        self._latest = max(self._latest, latest or now)
        if self._pending_loss:
            self._report_loss()

    def close(self) -> None:
        """Close the last segment and the chain, and send both to the disk (rule 4).  Later calls do nothing."""
        if self._chain < 0:
            return
        if self._fd >= 0:
            self._close_segment()
        if self._pending_loss:
            self._report_loss()
        end: dict[str, Any] = {"closed": True, "lost": self.lost, "removed": self.removed, "time": self._clock()}
        if abs(ahead := was_set_by()) >= CLOCK_STEP:
            end["clock"] = ahead
        self._link(end)
        durable = time.monotonic_ns() - self._born >= DURABLE_FROM
        for name in self._unsynced:
            try:
                fd = os.open(os.path.join(self.directory, name), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # it had to make room
            _to_disk(fd, durable)
            os.close(fd)
        _to_disk(self._chain, durable)
        os.close(self._chain)
        os.close(self._directory_fd)
        self._chain = self._directory_fd = -1

    @property
    def stored(self) -> int:
        """Bytes in closed segments."""
        return sum(segment.size for segment in self._closed)

    # ------------------------------------------------------------ segments

    def _open_segment(self) -> None:
        if self._chained > self.limit // 4:
            raise OSError(errno.EFBIG, "trace.max_size is used up")
        name = f"{self.source}-{self._number + 1:04}.{self.suffix}"
        path = os.path.join(self.directory, name)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._number += 1
        self._name = name
        self._size = self._records = self._first = self._last = 0
        self._latest = 0

    def _write(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError:
            if done:
                os.ftruncate(self._fd, self._size)
            raise

    def _lose(self, count: int, error: OSError) -> None:
        now = self._clock()
        self.lost += count
        if not self._pending_loss:
            self._pending_loss = [0, now, now, error.strerror or str(error)]
        self._pending_loss[0] += count
        self._pending_loss[2] = now

    def _report_loss(self) -> None:
        count, first, last, cause = self._pending_loss
        loss = {"lost": count, "first": first, "last": last, "cause": cause}
        if self._link(loss):
            self._pending_loss = []
            self._losses[cause] = _together(self._losses.get(cause), loss, "lost")

    def _close_segment(self) -> None:
        name, size = self._name, self._size
        try:
            data = os.pread(self._fd, size, 0)
            if self.suffix == "spans" and self.stored + 2 * self.segment > self._room() // 2:
                self._records = self._count(data)  # it may have to go, and then its records are reported
            stored = self._compress(data) if size >= WORTH_COMPRESSING else None
            if stored is None:
                stored = data
            else:
                name += ".gz"
            entry: dict[str, Any] = {"segment": name, "size": len(stored), "sha256": digest(stored), "bytes": size}
        except OSError as error:
            entry = {"segment": name, "size": size, "sha256": "", "bytes": size, "error": error.strerror or ""}
        os.close(self._fd)
        self._fd = -1
        self._unsynced.append(name)
        entry.update(records=self._records, first=self._first, last=self._last)
        self._link(entry)
        self._closed.append(_Segment(entry, self._records, self._latest))
        self._size = 0
        self._make_room()

    def _compress(self, data: bytes) -> bytes | None:
        """Put the compressed segment in the place of the open one; None when it cannot be written."""
        import zlib

        packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # 31: with a gzip header
        packed = packer.compress(data) + packer.flush()
        path = os.path.join(self.directory, self._name)
        half = f"{path}.new"
        try:
            fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, packed)
                _to_disk(fd, False)
            finally:
                os.close(fd)
            os.rename(half, f"{path}.gz")
            os.unlink(path)
        except OSError:
            try:
                os.unlink(half)
            except OSError:
                pass
            return None
        return packed

    def _room(self) -> int:
        return self.limit * 3 // 4 - 2 * self.segment

    @staticmethod
    def _count(data: bytes) -> int:
        from .decode import count  # where something is lost, and nowhere else

        return count(data)

    def _make_room(self) -> None:
        """Remove from the middle until the closed segments leave room for one that is open and one being packed.

        What happened first goes first.  What was read together is in order of the rings, not of time: the last
        thing that a command did may stand before any amount of opens.
        """
        room = self._room()
        total = self.stored
        while total > room and len(self._closed) > 2:
            kept = index = 0
            while index < len(self._closed) - 2 and kept + self._closed[index].size <= room // 2:
                kept += self._closed[index].size
                index += 1
            middle = range(index, max(index + 1, len(self._closed) - 2))
            victim = self._closed.pop(min(middle, key=lambda place: self._closed[place].latest))
            try:
                os.unlink(os.path.join(self.directory, victim.name))
            except OSError:
                return
            total -= victim.size
            self.removed += victim.records
            gone = {"removed": victim.name, "records": victim.records, "first": victim.first, "last": victim.last}
            self._link(gone)
            self._gone = _together(self._gone, {**gone, "segments": 1}, "records", "segments")

    def _shorten_chain(self) -> None:
        """Write the chain anew, with one line for all that was removed: else a flood would fill it, and end the record.

        What is in force is the same; the old chain stays until the new one is whole.
        """
        entries = [self._head, *self._losses.values(), *([self._gone] if self._gone else [])]
        entries += [segment.entry for segment in self._closed]
        before, out = "", []
        for entry in entries:
            line = json_text({**entry, "before": before}).encode()
            before = digest(line)
            out.append(line + b"\n")
        data = b"".join(out)
        path = os.path.join(self.directory, f"{self.source}.chain")
        half = f"{path}.new"
        fd = -1
        try:
            fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            write_all(fd, data)
            _to_disk(fd, True)  # the name must not come to the disk before the content
            os.rename(half, path)
        except OSError:
            if fd >= 0:
                os.close(fd)
                os.unlink(half)
            self._shorten_at = self._chained * 2
            return
        os.close(self._chain)
        self._chain, self._before, self._chained = fd, before, len(data)
        self._shorten_at = max(self.limit // 8, 2 * len(data))

    def _link(self, entry: dict[str, Any]) -> bool:
        """Add a line to the chain."""
        if self._chained > self._shorten_at and "segment" not in entry:  # then every closed segment is in it
            self._shorten_chain()
        line = json_text({**entry, "before": self._before}).encode()
        try:
            written = os.write(self._chain, line + b"\n")
            if written <= len(line):
                os.ftruncate(self._chain, os.fstat(self._chain).st_size - written)
                return False
        except OSError:
            return False
        self._before = digest(line)
        self._chained += len(line) + 1
        return True


# ---------------------------------------------------------------- all sessions


def is_written(path: str) -> bool:
    """Is the record in this directory being written?"""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def started(path: str) -> int:
    """When the record in this directory was begun, nanoseconds since the epoch, 0 when that is not known."""
    oldest = 0
    try:
        names = [name for name in os.listdir(path) if name.endswith(".chain")]
    except OSError:
        return 0
    for name in names:
        try:
            with open(os.path.join(path, name), "rb") as file:
                head = file.readline(4096)
            at = int(head.partition(b'"time": ')[2].partition(b",")[0])
        except (OSError, ValueError):
            continue
        oldest = min(oldest or at, at)
    if not oldest:
        try:
            oldest = os.stat(path, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0
    return oldest


def by_age(at: int) -> tuple[bool, int]:
    """Sorts times of ``started``, oldest first: one that is yet to come is of before the clock was set back."""
    return at <= time_ns(), at


def prune(state: str, *, keep: int = 0, max_size: int = 0, everything: bool = True) -> list[str]:
    """Remove the oldest closed sessions until at most ``keep`` are left and all take no more than the total.

    Args:
        state: ``$MEMBRANE_HOME``.
        keep: sessions; 0 for the default.
        max_size: bytes of one session; the total is a multiple of it.
        everything: also look at the sizes; else only when there are too many sessions.

    Returns:
        The ids that were removed.
    """
    above = directory_of(state)
    most = keep or KEEP
    try:
        names = os.listdir(above)
        if not everything and len(names) <= most:
            return []
        lock = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return []  # another process is at it
        return _prune(above, names, most, (max_size or MAX_SIZE) * TOTAL)
    finally:
        os.close(lock)


def _prune(above: str, names: list[str], keep: int, total: int) -> list[str]:
    paths = [os.path.join(above, name) for name in names]
    rows = sorted(((started(path), path) for path in paths), key=lambda row: (by_age(row[0]), row[1]))
    sizes = {path: _size(path) for _started, path in rows}
    left, taken = len(rows), sum(sizes.values())
    wanted = keep if left <= keep else max(1, keep - min(SPARE, keep // 8))
    recent = time_ns() - 60_000_000_000
    out = []
    for at, path in rows:
        if left <= wanted and taken <= total:
            break
        # A directory that was just made may not have its writer yet.
        if is_written(path) or (at > recent and not any(name.endswith(".chain") for name in _list(path))):
            continue
        left -= 1  # also when something else is in it: then it is not ours
        if remove(path):
            out.append(os.path.basename(path))
            taken -= sizes[path]
    return out


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _size(path: str) -> int:
    total = 0
    for name in _list(path):
        try:
            total += os.stat(os.path.join(path, name), follow_symlinks=False).st_blocks * 512
        except OSError:
            pass
    return total


def remove(path: str) -> bool:
    """Remove a directory of plain files; with anything else in it, nothing is removed."""
    try:
        with os.scandir(path) as entries:
            names = [(entry.path, entry.is_file(follow_symlinks=False)) for entry in entries]
        if not all(plain for _name, plain in names):
            return False
        for name, _plain in names:
            os.unlink(name)
        os.rmdir(path)
    except OSError:
        return False
    return True
