"""Tracing for plain users without a daemon: sets of programs that root loads once and gives away.

Theory of operation
-------------------
A plain user may not load programs or make maps.  He may use those that are pinned in a BPF file system where the file's
owner and mode let him (Linux 6.0; before that ``kernel.unprivileged_bpf_disabled`` refuses every use of bpf(2), and
the user gets EPERM).  So root loads ``EACH`` whole sets for him, rings included, in ``/run/membrane-tracing/UID``.
Every directory stays root's: what root does there later must not go where a user leads it.

What he gets: the programs, to attach them while he traces; the map of the processes to begin with, his rings, his
setting; counters for reading.  What he does not get: the members, the table of calls, the handlers, and ``owner``,
which holds his uid and is frozen.  The programs follow only processes whose uids are the owner's and that have no
capability over the host, and leave one that gains either by exec.  So he sees nothing that ptrace(2) would not show.

All of it is gone after a reboot; ``membrane-tracing.service``, a oneshot unit, makes it again.
"""

from __future__ import annotations

import os
import struct

from ..bpf import programs
from ..host import syscalls as sc
from . import ebpf, permission, pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

EACH: Final = 4  # sandboxes of a user that are traced at the same time
_WRITES: Final = ("slots", "seeds", "control", *ebpf.RINGS)
_READS: Final = ("counted", "seen")


def grant(user: int, *, directory: str = permission.GRANTED, each: int = EACH) -> int:
    """Give a user his sets, unless he has them: how many were made.

    Raises:
        HostError: the programs cannot be loaded.
        OSError: mount(2), bpf(2).
    """
    if user == 0:
        raise ValueError("root needs no permission")
    os.makedirs(directory, 0o755, exist_ok=True)
    if not pins.is_bpffs(directory):
        sc.mount("bpf", directory, "bpf", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC, "mode=0755")
    home = os.path.join(directory, str(user))
    locks = f"{directory}.locks"
    for path in (home, locks):
        os.makedirs(path, 0o755, exist_ok=True)
    identity = ebpf.identity()
    wanted = [f"{identity}-{number}" for number in range(each)]
    for name in os.listdir(home):
        if name not in wanted:
            pins.remove_pins(os.path.join(home, name))  # of another version; who uses it holds it
    made = 0
    for name in wanted:
        target = os.path.join(home, name)
        if not os.path.exists(os.path.join(target, "owner")):
            pins.remove_pins(target)
            lock = os.open(pins.lock_of(target), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchown(lock, user, -1)
            os.close(lock)
            _make(target, user)
            made += 1
    return made


def _make(directory: str, user: int) -> None:
    loaded = ebpf.load_programs()
    try:
        loaded.maps["owner"].set(bytes(4), struct.pack("<I", user))
        loaded.maps["owner"].freeze()
        os.mkdir(directory, 0o755)
        pinned = {name: loaded.programs[name] for name in ebpf.ATTACHED}
        for place, (name, size) in enumerate(zip(ebpf.RINGS, (ebpf.KEEP_OF_MANY, ebpf.BULK_OF_MANY), strict=True)):
            pinned[name] = programs.create_ring(size)
            loaded.maps["rings"].set(struct.pack("<I", place), struct.pack("<I", pinned[name]))
        pinned.update((name, loaded.maps[name].fd) for name in (*_WRITES, *_READS) if name in loaded.maps)
        # The handlers' map empties itself when no name and no descriptor of it is left (kernel/bpf/arraymap.c).
        pinned.update((name, loaded.maps[name].fd) for name in ("handlers", "owner"))  # owner last: the set is whole
        for name, fd in pinned.items():
            path = os.path.join(directory, name)
            programs.pin(fd, path)  # mode 0600, root's
            os.chmod(path, 0o400 if name in _READS else 0o600)
            if name not in ("handlers", "owner"):
                os.chown(path, user, -1)
        for name in ebpf.RINGS:
            os.close(pinned[name])
    finally:
        loaded.close()


def revoke(user: int | None = None, *, directory: str = permission.GRANTED) -> None:
    """Take a user's sets away, or everybody's and the file system; tracers that run keep theirs.

    Raises:
        OSError: they cannot be removed.
    """
    if not pins.is_bpffs(directory):
        return
    for name in os.listdir(directory):
        if name.isdigit() and user in (None, int(name)):
            home = os.path.join(directory, name)
            for entry in os.listdir(home):
                pins.remove_pins(os.path.join(home, entry))
                if os.path.exists(lock := pins.lock_of(os.path.join(home, entry))):
                    os.unlink(lock)
            os.rmdir(home)
    if user is None:
        sc.umount(directory)
        os.rmdir(directory)
        os.rmdir(f"{directory}.locks")
