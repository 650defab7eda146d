"""Trace one command in the kernel and give its events back; waits for conditions, never for time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from membrane.host import syscalls as sc
from membrane.record.decode import Decoder
from membrane.tracer.ebpf import EbpfSource, Scope

DEADLINE = 60.0  # seconds: far more than anything here takes
if TYPE_CHECKING:
    from membrane.events import Event, Process

    Seen = tuple[Event, Process]


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # beside pytest-xdist's threads; the child only execs
        return os.fork()


@contextlib.contextmanager
def waiting(body: Callable[[], object]) -> Iterator[tuple[int, Callable[[], None]]]:
    """A child that does ``body`` when it is released: its pid and what releases it.  Killed at the end."""
    hold, release = os.pipe()
    pid = fork()
    if pid == 0:
        status = 99
        try:
            os.close(release)
            os.setsid()
            os.read(hold, 1)
            os.close(hold)
            body()
            status = 0
        finally:
            os._exit(status)
    os.close(hold)
    released = False

    def go() -> None:
        nonlocal released
        released = True
        os.write(release, b"x")  # not its end alone: children of others may have inherited that
        os.close(release)

    try:
        yield pid, go
    finally:
        if not released:
            os.close(release)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def execute(*argv: str, cwd: str = "/") -> Callable[[], object]:
    """A body that becomes a program with an environment of its own and nothing on its streams."""

    def body() -> object:
        os.chdir(cwd)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        return os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin", "LC_ALL": "C"})

    return body


def python(code: str, *arguments: str, cwd: str = "/") -> Callable[[], object]:
    return execute(sys.executable, "-I", "-S", "-c", code, *arguments, cwd=cwd)


def system_python(code: str) -> Callable[[], object]:
    """With the interpreter that every user can reach."""
    return execute(os.path.realpath("/usr/bin/python3"), "-I", "-S", "-c", code)


def follow(source: EbpfSource, pieces: list[bytes], done: Callable[[], bool]) -> None:
    """Drain until ``done``, then once more."""
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, "the traced processes did not end"
        select.select([source.fileno()], [], [], 0.05)
        source.drain(pieces.append)
    source.finish(pieces.append)


def ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def events_of(pieces: list[bytes]) -> list[Seen]:
    decoder = Decoder()
    out = [(event, process) for piece in pieces for _time, event, process in decoder.decode(piece)]
    assert (decoder.torn, decoder.unknown) == (0, 0)
    return out


def trace(body: Callable[[], object], source: EbpfSource | None = None, **scope: Any) -> list[Seen]:
    """All events of ``body`` and what it started."""
    mine = source or EbpfSource()
    try:
        with waiting(body) as (pid, go):
            mine.open(Scope(pid, **scope))
            pieces: list[bytes] = []
            go()
            follow(mine, pieces, lambda: ended(pid) and not mine.alive())
        return events_of(pieces)
    finally:
        mine.close()


def private_mounts() -> None:
    """A mount namespace whose mounts nobody else sees; they end with the last process in it."""
    sc.unshare(sc.CLONE_NEWNS)
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)


def of_type(seen: list[Seen], *types: type) -> list[Event]:
    return [event for event, _process in seen if isinstance(event, types)]


def below(seen: list[Seen], directory: str) -> list[Event]:
    """File events whose path is in ``directory``, in order."""
    return [event for event, _process in seen if str(getattr(event, "path", "")).startswith(directory + "/")]
