"""Where the tracing programs and maps of a machine are kept between runs: a BPF file system, and who may use it when.

Theory of operation
-------------------
What is pinned stays in the kernel without a process.  It is in a directory that only root can enter:
``/sys/fs/bpf/membrane`` where systemd has mounted a BPF file system, else in one of our own on ``/run/membrane/bpf``.
A file in ``/run/membrane`` is the lock for loading, attaching and counting seeds.
"""

from __future__ import annotations

import fcntl
import os

from ..errors import HostError
from ..host import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

SYSTEM_BPFFS: Final = "/sys/fs/bpf"
STATE: Final = "/run/membrane"
PREFIX: Final = "trace-"  # of a directory of pins; the object's digest follows


class Lock:
    """``state/lock``, held by who loads, attaches or counts seeds."""

    def __init__(self, state: str) -> None:
        os.makedirs(state, 0o700, exist_ok=True)
        status = os.stat(state, follow_symlinks=False)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise HostError("use the tracer's state", "another user can write to it", target=state)
        self._fd = os.open(os.path.join(state, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)


class Unlocked:
    """A private set is not shared."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass


def remove(state: str = STATE, system: str = SYSTEM_BPFFS) -> None:
    """Take the pinned programs and maps away; tracers that run keep theirs.

    Raises:
        OSError: they cannot be removed.
    """
    place = place_of(state, system)
    with Lock(state):
        for name in os.listdir(place) if is_bpffs(os.path.dirname(place)) or is_bpffs(place) else ():
            if name.startswith(PREFIX):
                remove_pins(os.path.join(place, name))
        if place == os.path.join(state, "bpf"):
            if is_bpffs(place):
                sc.umount(place)
        elif os.path.isdir(place):
            os.rmdir(place)


def place_of(state: str, system: str) -> str:
    """The directory of the sets, there or not; the arguments as of ``bpffs``."""
    return os.path.join(system, "membrane") if is_bpffs(system) else os.path.join(state, "bpf")


def bpffs(state: str, system: str) -> str:
    """A directory of a BPF file system that only we can enter, made if it is not there.

    Args:
        state: of ours, which takes a file system of our own where ``system`` is none.
        system: where the machine's BPF file system would be.

    Raises:
        HostError: it belongs to another user.
        OSError: mount(2), mkdir(2).
    """
    place = place_of(state, system)
    if place == os.path.join(state, "bpf") and not is_bpffs(place):
        os.makedirs(place, 0o700, exist_ok=True)
        sc.mount("bpf", place, "bpf", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC, "mode=0700")
    else:
        os.makedirs(place, 0o700, exist_ok=True)
    status = os.stat(place, follow_symlinks=False)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise HostError("use the pinned tracing programs", "others can enter the directory", target=place)
    return place


def is_bpffs(path: str) -> bool:
    """proc(5), mountinfo: the fields after the dash are type, source, options."""
    with open("/proc/self/mountinfo", opener=cloexec) as file:
        lines = [line.split() for line in file]
    return any(line[4] == path and line[line.index("-") + 1] == "bpf" for line in lines)


def lock_of(directory: str) -> str:
    """The file that a tracer holds while it uses a granted set; it cannot be in a BPF file system."""
    home, number = os.path.split(directory)
    granted, user = os.path.split(home)
    return os.path.join(f"{granted}.locks", f"{user}-{number}")


def remove_pins(directory: str) -> None:
    """Take away one set, if it is there."""
    if os.path.isdir(directory):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def cloexec(path: str, flags: int) -> int:
    """An opener for open(): no program that is executed inherits the file."""
    return os.open(path, flags | os.O_CLOEXEC)
