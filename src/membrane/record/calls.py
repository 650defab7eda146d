"""Which system calls the tracer looks at, what handles each, and where its arguments are.

Theory of operation
-------------------
The table is data for both ends: ``rows`` fills the map ``calls`` of the programs (``bpf/trace.bpf.c``), ``NAMES``
turns a number of an event back into the call.  Numbers of the 32-bit table are stored 512 higher; inside a sandbox
seccomp refuses them all, and that is seen.  x86_64 only: arch/x86/entry/syscalls/syscall_64.tbl and syscall_32.tbl.

The last group are calls that change no file and open no connection; only their refusals are events.
"""

from __future__ import annotations

import struct

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

# name: (x86_64, i386, handler, directory fd, path, second fd, second path, two further arguments, flags)
_TABLE: Final = {
    "open": (2, 5, _OPEN, _NO, 0, _NO, _NO, 1, 2, 0),
    "creat": (85, 8, _OPEN, _NO, 0, _NO, _NO, _NO, 1, 0),
    "openat": (257, 295, _OPEN, 0, 1, _NO, _NO, 2, 3, 0),
    "openat2": (437, 437, _OPEN, 0, 1, _NO, _NO, 2, _NO, _OPEN_HOW),
    "execve": (59, 11, _PATH, _NO, 0, _NO, _NO, _NO, _NO, _FAILED_ONLY),
    "execveat": (322, 358, _PATH, 0, 1, _NO, _NO, 4, _NO, _FAILED_ONLY),
    "unlink": (87, 10, _PATH, _NO, 0, _NO, _NO, _NO, _NO, 0),
    "unlinkat": (263, 301, _PATH, 0, 1, _NO, _NO, 2, _NO, 0),
    "rmdir": (84, 40, _PATH, _NO, 0, _NO, _NO, _NO, _NO, 0),
    "mkdir": (83, 39, _PATH, _NO, 0, _NO, _NO, 1, _NO, 0),
    "mkdirat": (258, 296, _PATH, 0, 1, _NO, _NO, 2, _NO, 0),
    "mknod": (133, 14, _PATH, _NO, 0, _NO, _NO, 1, 2, 0),
    "mknodat": (259, 297, _PATH, 0, 1, _NO, _NO, 2, 3, 0),
    "rename": (82, 38, _PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "renameat": (264, 302, _PATH2, 0, 1, 2, 3, _NO, _NO, 0),
    "renameat2": (316, 353, _PATH2, 0, 1, 2, 3, 4, _NO, 0),
    "truncate": (76, 92, _PATH, _NO, 0, _NO, _NO, 1, _NO, 0),
    **{
        name: (native, compat, _PATH, row.directory, row.path, _NO, _NO, row.first, row.second, 0)
        if row.what in ("mode", "owner")
        else (native, compat, _PATH2, row.directory, row.path, _NO, row.first, _NO, _NO, 0)
        for name, native, compat in (
            ("chmod", 90, 15),
            ("fchmod", 91, 94),
            ("fchmodat", 268, 306),
            ("fchmodat2", 452, 452),
            ("chown", 92, 212),
            ("fchown", 93, 207),
            ("lchown", 94, 198),
            ("fchownat", 260, 298),
            ("setxattr", 188, 226),
            ("lsetxattr", 189, 227),
            ("fsetxattr", 190, 228),
            ("setxattrat", 463, 463),
            ("removexattr", 197, 235),
            ("lremovexattr", 198, 236),
            ("fremovexattr", 199, 237),
            ("removexattrat", 466, 466),
        )
        for row in (CHANGES[name],)
    },
    "link": (86, 9, _PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "linkat": (265, 303, _PATH2, 0, 1, 2, 3, 4, _NO, 0),
    "symlink": (88, 83, _PATH2, _NO, 0, _NO, 1, _NO, _NO, 0),
    "symlinkat": (266, 304, _PATH2, _NO, 0, 1, 2, _NO, _NO, 0),
    "connect": (42, 362, _SOCKET, 0, 1, _NO, _NO, 2, _NO, 0),
    "bind": (49, 361, _SOCKET, 0, 1, _NO, _NO, 2, _NO, 0),
    "sendto": (44, 369, _SEND, 0, 1, _NO, 4, 2, 5, 0),
    "sendmsg": (46, 370, _MESSAGE, 0, 1, _NO, _NO, _NO, _NO, 0),
    "sendmmsg": (307, 345, _MESSAGE, 0, 1, _NO, _NO, _NO, _NO, 0),
    **{
        name: (native, compat, _REFUSED, _NO, _NO, _NO, _NO, _NO, _NO, 0)
        for name, native, compat in (
            ("socket", 41, 359),
            ("ptrace", 101, 26),
            ("chroot", 161, 61),
            ("mount", 165, 21),
            ("umount2", 166, 52),
            ("pivot_root", 155, 217),
            ("fsopen", 430, 430),
            ("open_tree", 428, 428),
            ("move_mount", 429, 429),
            ("unshare", 272, 310),
            ("setns", 308, 346),
            ("bpf", 321, 357),
            ("perf_event_open", 298, 336),
            ("userfaultfd", 323, 374),
            ("io_uring_setup", 425, 425),
            ("keyctl", 250, 288),
            ("add_key", 248, 286),
            ("request_key", 249, 287),
            ("init_module", 175, 128),
            ("finit_module", 313, 350),
            ("delete_module", 176, 129),
            ("kexec_load", 246, 283),
            ("process_vm_readv", 310, 347),
            ("process_vm_writev", 311, 348),
            ("open_by_handle_at", 304, 342),
            ("swapon", 167, 87),
            ("reboot", 169, 88),
        )
    },
}

NAMES: Final = {
    **{row[0]: name for name, row in _TABLE.items()},
    **{COMPAT + row[1]: name for name, row in _TABLE.items()},
}


def rows() -> list[tuple[bytes, bytes]]:
    """Key and value for each entry of the map."""
    out = []
    for row in _TABLE.values():
        value = struct.pack("8B", *row[2:])
        out.append((struct.pack("<I", row[0]), value))
        out.append((struct.pack("<I", COMPAT + row[1]), value))
    return out
