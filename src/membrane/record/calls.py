"""Which system calls the tracer looks at, what handles each, and where its arguments are.

Theory of operation
-------------------
The table is data for both ends: ``rows`` fills the map ``calls`` of the programs (``bpf/trace.bpf.c``), ``NAMES``
turns a number of an event back into the call.  Numbers of the 32-bit table are stored 512 higher; inside a sandbox
seccomp refuses them all, and that is seen.  x86_64 only.

The last group are calls that change no file and open no connection; only their refusals are events.
"""

from __future__ import annotations

import struct

from ..host.numbers import I386, NUMBERS, X86_64
from .changes import CHANGES, NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

HANDLERS: Final = {
    1: "do_open",
    2: "do_path",
    3: "do_path2",
    4: "do_socket",
    5: "do_send",
    6: "do_message",
    7: "do_refused",
    8: "do_walk",  # of no call: the end of those that have paths
}
_OPEN, _PATH, _PATH2, _SOCKET, _SEND, _MESSAGE, _REFUSED, _ = HANDLERS
_NO = NO
_FAILED_ONLY, _OPEN_HOW = 1, 2
COMPAT: Final = 512

# name: (handler, directory fd, path, second fd, second path, two further arguments, flags)
_TABLE: Final = {
    "open": (_OPEN, _NO, 0, _NO, _NO, 1, 2, 0),
    "creat": (_OPEN, _NO, 0, _NO, _NO, _NO, 1, 0),
    "openat": (_OPEN, 0, 1, _NO, _NO, 2, 3, 0),
    "openat2": (_OPEN, 0, 1, _NO, _NO, 2, _NO, _OPEN_HOW),
    "execve": (_PATH, _NO, 0, _NO, _NO, _NO, _NO, _FAILED_ONLY),
    "execveat": (_PATH, 0, 1, _NO, _NO, 4, _NO, _FAILED_ONLY),
    "unlink": (_PATH, _NO, 0, _NO, _NO, _NO, _NO, 0),
    "unlinkat": (_PATH, 0, 1, _NO, _NO, 2, _NO, 0),
    "rmdir": (_PATH, _NO, 0, _NO, _NO, _NO, _NO, 0),
    "mkdir": (_PATH, _NO, 0, _NO, _NO, 1, _NO, 0),
    "mkdirat": (_PATH, 0, 1, _NO, _NO, 2, _NO, 0),
    "mknod": (_PATH, _NO, 0, _NO, _NO, 1, 2, 0),
    "mknodat": (_PATH, 0, 1, _NO, _NO, 2, 3, 0),
    "rename": (_PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "renameat": (_PATH2, 0, 1, 2, 3, _NO, _NO, 0),
    "renameat2": (_PATH2, 0, 1, 2, 3, 4, _NO, 0),
    "truncate": (_PATH, _NO, 0, _NO, _NO, 1, _NO, 0),
    **{
        name: (_PATH, row.directory, row.path, _NO, _NO, row.first, row.second, 0)
        if row.what in ("mode", "owner")
        else (_PATH2, row.directory, row.path, _NO, row.first, _NO, _NO, 0)
        for name, row in CHANGES.items()
    },
    "link": (_PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "linkat": (_PATH2, 0, 1, 2, 3, 4, _NO, 0),
    "symlink": (_PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "symlinkat": (_PATH2, _NO, 0, 1, 2, _NO, _NO, 0),
    "connect": (_SOCKET, 0, 1, _NO, _NO, 2, _NO, 0),
    "bind": (_SOCKET, 0, 1, _NO, _NO, 2, _NO, 0),
    "sendto": (_SEND, 0, 1, _NO, 4, 2, 5, 0),
    "sendmsg": (_MESSAGE, 0, 1, _NO, _NO, _NO, _NO, 0),
    "sendmmsg": (_MESSAGE, 0, 1, _NO, _NO, _NO, _NO, 0),
    **dict.fromkeys(
        (
            *("socket", "ptrace", "chroot", "mount", "umount2", "pivot_root", "fsopen", "open_tree", "move_mount"),
            *("unshare", "setns", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup"),
            *("keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module", "kexec_load"),
            *("process_vm_readv", "process_vm_writev", "open_by_handle_at", "swapon", "reboot"),
        ),
        (_REFUSED, _NO, _NO, _NO, _NO, _NO, _NO, 0),
    ),
}

_ROWS: Final = {  # by the number on the wire
    number: (name, row)
    for name, row in _TABLE.items()
    for number in (NUMBERS[name][X86_64], COMPAT + NUMBERS[name][I386])
}
NAMES: Final = {number: name for number, (name, _row) in _ROWS.items()}


def rows() -> list[tuple[bytes, bytes]]:
    """Key and value for each entry of the map."""
    return [(struct.pack("<I", number), struct.pack("8B", *row)) for number, (_name, row) in _ROWS.items()]
