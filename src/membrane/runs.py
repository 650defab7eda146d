"""Records of running sessions: ``membrane ps``, ``gc``, and what the next run removes.

Theory of operation
-------------------
Each session holds one file ``$MEMBRANE_HOME/run/ID`` with an exclusive flock(2) for as long as its supervisor lives.
The kernel drops the lock whatever ends the supervisor, so "the lock can be taken" is the one proof that a session
is dead; pids and names prove nothing.  A dead session's record is all that it can leave: mounts, processes and
sockets belong to namespaces that died with it.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os

from .errors import HostError
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1


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


def _directory(state: str) -> str:
    return os.path.join(state, "run")


def make_private(path: str) -> None:
    """Make a directory of our state, mode 0700.

    Raises:
        HostError: it can not be made or belongs to somebody else.
    """
    try:
        missing = path
        while not os.path.lexists(os.path.dirname(missing)):
            missing = os.path.dirname(missing)
        while missing != path:  # os.makedirs would give the directories on the way the mode of the umask
            os.mkdir(missing, 0o700)
            missing = path[: (path + "/").index("/", len(missing) + 1)]
        os.makedirs(path, 0o700, exist_ok=True)
        details = os.stat(path)
    except OSError as error:
        raise HostError(
            "make membrane's state directory",
            error.strerror or "",
            target=path,
            fix=("set MEMBRANE_HOME to a directory that you can write",),
        ) from None
    if details.st_uid != os.geteuid():
        raise HostError(
            "use membrane's state directory",
            f"it belongs to uid {details.st_uid}",
            target=path,
            fix=("set MEMBRANE_HOME to a directory of your own",),
        )


class Run:
    """This session's record, locked until ``close`` or the end of the process."""

    def __init__(self, state: str, record: SessionRecord) -> None:
        make_private(_directory(state))
        self.path = os.path.join(_directory(state), record.id)
        try:
            self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            self.update(record)
        except OSError as error:
            hint = ("free some space",) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ()
            raise HostError("record the session", error.strerror or "", target=self.path, fix=hint) from None

    def update(self, record: SessionRecord) -> None:
        """Replace what ``ps`` shows."""
        data = marshal.dumps((FORMAT, *(getattr(record, name) for name in record.field_names)))
        os.pwrite(self.fd, data, 0)
        os.ftruncate(self.fd, len(data))

    def close(self) -> None:
        """Remove the record."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        os.close(self.fd)


def _read(fd: int) -> SessionRecord | None:
    try:
        fields = marshal.loads(os.pread(fd, 1 << 20, 0))  # noqa: S302 - our own file, mode 0600, owner checked
        return SessionRecord(*fields[1:]) if fields[0] == FORMAT else None
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
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, fd, False
            except BlockingIOError:
                yield path, fd, True
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


def collect_garbage(state: str) -> list[str]:
    """Remove what dead sessions left; return one line for each thing removed."""
    removed = []
    for path, fd, alive in _records(state):
        # A record is locked between its creation and its first write only for microseconds; an empty one that can
        # be locked is dead.
        if alive:
            continue
        record = _read(fd)
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        about = f" ({record.command[0]} in {record.workspace})" if record and record.command else ""
        removed.append(f"session record {os.path.basename(path)}{about}")
    return removed
