"""Records of running sessions: ``membrane ps``, ``gc``, and what the next run removes.

Theory of operation
-------------------
Each session holds one file ``$MEMBRANE_HOME/run/ID`` with an exclusive flock(2) for as long as its supervisor lives.
The kernel drops the lock whatever ends the supervisor, so "the lock can be taken" is the one proof that a session
is dead; pids and names prove nothing.  Readers test with a shared lock: two of them must not take each other for the
session.  A dead session's record is all that it can leave: mounts, processes and sockets belong to namespaces that
died with it.  Without namespaces it may leave directories as well (``backend.landlock``).
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import stat

from ..errors import HostError
from ..host.private import is_held, make_private
from ..host.writing import write_all
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 3
CARRIED_DOOR = "/run/membrane-exec"  # in a container that carries one session: its private tmpfs


class SessionRecord(Value):
    """One session as ``ps`` shows it; ``started`` is Unix time in seconds."""

    id: str
    pid: int
    started: float
    workspace: str
    command: tuple[str, ...]
    trace_source: str
    refused: int
    bytes_up: int
    bytes_down: int
    alive: bool = True
    ports: tuple[str, ...] = ()  # "OUTSIDE:INSIDE" of each exposed port, or one number for both
    container: str = ""  # "ENGINE:NAME" of the one that carries it


def _directory(state: str) -> str:
    return os.path.join(state, "run")


def first_time(state: str, text: str) -> bool:
    """Was ``text`` never said before?  It has been from now on; where that cannot be noted, it is said again.

    What is said is of a place, so it is noted by a digest, in ``STATE/told``.
    """
    from _blake2 import blake2b  # hashlib would load OpenSSL: 5 ms

    directory = f"{state}/told"
    make_private(directory)
    name = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    try:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


class Run:
    """This session's record, locked until ``close`` or the end of the process.

    Raises:
        HostError: the record cannot be written; nothing is left of it.
    """

    def __init__(self, state: str, record: SessionRecord) -> None:
        make_private(_directory(state))
        self.path = os.path.join(_directory(state), record.id)
        self.fd = -1
        try:
            while True:
                self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                fcntl.flock(self.fd, fcntl.LOCK_EX)
                if os.fstat(self.fd).st_nlink:
                    break
                os.close(self.fd)  # collect_garbage found it between its creation and our lock
                self.fd = -1
            self.update(record)
        except OSError as error:
            if self.fd >= 0:
                self.close()
            hint = ("free some space",) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ()
            raise HostError("record the session", error.strerror or "", target=self.path, fix=hint) from None

    def update(self, record: SessionRecord) -> None:
        """Replace what ``ps`` shows."""
        data = marshal.dumps((FORMAT, *(getattr(record, name) for name in record.field_names)))
        # A reader takes the first value and no notice of what follows it.
        write_all(self.fd, data, 0)
        os.ftruncate(self.fd, len(data))

    def close(self) -> None:
        """Remove the record."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self.fd)


_TYPES: tuple[type | tuple[type, ...], ...] = (str, int, (int, float), str, tuple, str, int, int, int, bool, tuple, str)


def _read(fd: int) -> SessionRecord | None:
    try:
        fields = marshal.loads(os.pread(fd, 1 << 20, 0))  # noqa: S302 - our own file, mode 0600, owner checked
        typed = all(isinstance(value, kind) for value, kind in zip(fields[1:], _TYPES, strict=True))
        if fields[0] != FORMAT or not typed:
            return None
        return SessionRecord(*fields[1:])
    except (EOFError, ValueError, TypeError, IndexError, KeyError):
        return None


def _records(state: str) -> Iterator[tuple[str, int, bool]]:
    """(path, descriptor, alive) of each record; the descriptor is closed after the turn."""
    directory = _directory(state)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(directory, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            details = os.fstat(fd)
            if details.st_uid != os.geteuid() or not stat.S_ISREG(details.st_mode):
                continue
            yield path, fd, is_held(fd)
        finally:
            os.close(fd)


def list_sessions(state: str) -> list[SessionRecord]:
    """All recorded sessions, oldest first; dead ones have ``alive`` False."""
    out = []
    for _path, fd, alive in _records(state):
        record = _read(fd)
        if record is not None:
            out.append(record.replace(alive=alive))
    return sorted(out, key=lambda record: record.started)


def door_of(state: str, session: str) -> str:
    """Path of the socket at which a sandbox of the library listens for wrapped commands."""
    return os.path.join(state, "api", f"{session}.sock")


def collect_garbage(state: str) -> list[str]:
    """Remove what dead sessions left; return one line for each thing removed (none while another process does it)."""
    try:
        directory = os.open(_directory(state), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        # One collector at a time: a second one could unlink the new record that took the name of the one it looked at.
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return list(_collect(state))
    except BlockingIOError:
        return []
    finally:
        os.close(directory)


def collect_dead(state: str) -> None:
    """At the end of a run: what sessions left whose supervisor was killed, if there is anything but our own.

    It never fails: what cannot be looked at now is looked at by the next run.
    """
    try:
        if os.listdir(_directory(state)):
            collect_garbage(state)
    except OSError:
        pass


def collect_traces() -> int:
    """Empty the slots of eBPF tracers that were killed: how many there were.  Nothing for callers other than root."""
    if os.geteuid():
        return 0
    from ..tracer import ebpf

    try:
        return ebpf.collect()
    except (OSError, HostError):
        return 0  # the next tracer tries again


def _collect(state: str) -> Iterator[str]:
    for path, fd, alive in _records(state):
        if alive:
            continue
        record = _read(fd)
        try:
            os.unlink(path)  # under our lock: a session that was about to take it sees that it has no name
        except FileNotFoundError:
            continue
        try:
            os.unlink(door_of(state, os.path.basename(path)))
        except FileNotFoundError:
            pass  # it listened to no one
        yield from (f"directory {place}" for place in _left(os.path.basename(path), record))
        about = f" ({record.command[0]} in {record.workspace})" if record and record.command else ""
        yield f"session record {os.path.basename(path)}{about}"


def _left(session: str, record: SessionRecord | None) -> list[str]:
    """Remove the directories of a session that had no namespaces; those that were removed."""
    if not session.isalnum() or not os.path.lexists(f"/tmp/.membrane-{session}"):  # noqa: S108
        return []
    from ..backend.landlock import collect

    return collect(session, record.workspace if record else "")
