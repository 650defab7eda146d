"""The four system calls a world needs, through ctypes; imported by the stand-alone scripts beside it."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000  # <linux/sched.h>
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000  # <sys/mount.h>
PR_SET_PDEATHSIG, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 47, 2  # <linux/prctl.h>
LINUX_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), f"mount({target})")


def die_with_parent(signal_number: int) -> None:
    """Arrange for ``signal_number`` when the thread that forked this process ends (prctl(2))."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def keep_capabilities_over_exec() -> None:
    """Make every permitted capability ambient, so that ``ip`` started by a plain user in its own namespace works."""
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, data), "capget")
    data[2], data[5] = data[1], data[4]  # inheritable := permitted
    _check(_libc.capset(header, data), "capset")
    permitted = data[1] | data[4] << 32
    for capability in range(64):
        if permitted >> capability & 1:
            _check(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT)")
