"""The second barrier: file rights that the kernel binds to the process, whatever the mounts say.

Theory of operation
-------------------
Landlock (Documentation/userspace-api/landlock.rst) refuses everything of the kinds a ruleset names, except beneath
the paths it lists.  The kinds are those of the running kernel's ABI, so an older kernel gets a weaker one, and the
caller records the number.  From ABI 6 the process can no more signal processes outside, nor connect to abstract
UNIX sockets made outside; from ABI 9 (Linux 7.1) nor to those with a path, but the ones that are listed, also when they
are bound later.  TCP is left to the network namespace.

It is applied last, after no_new_privs and before the seccomp filter: a process under Landlock cannot mount.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from ..errors import HostError
from . import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

# include/uapi/linux/landlock.h: LANDLOCK_ACCESS_FS_*
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
_RESOLVE_UNIX = 1 << 16  # connect(2) and sendmsg(2) to a socket with a path that was made outside (ABI 9)
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI: how many rights it knows (2: REFER, 3: TRUNCATE, 5: IOCTL_DEV)
_RIGHTS_NOW = 16
_TCP = 0b11  # LANDLOCK_ACCESS_NET_BIND_TCP, CONNECT_TCP (ABI 4)
_SCOPES, _SIGNALS = 0b11, 0b10  # abstract UNIX sockets, signals (ABI 6)

_ABSENT = frozenset((errno.ENOSYS, errno.EOPNOTSUPP))  # not built in; switched off at boot
_UNREACHABLE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP))


def abi() -> int:
    """The kernel's Landlock ABI, 0 without Landlock.

    Raises:
        OSError: any other answer than a number or "not there".
    """
    try:
        return syscalls.landlock_create_ruleset(None, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise


def restrict(read_only: Sequence[str], writable: Sequence[str], *, other_sockets: bool = False) -> int:
    """Restrict this thread and its children for ever; no_new_privs must be set.

    Args:
        read_only: paths below which files may be read, executed and listed.
        writable: paths below which everything is allowed except making device nodes and connecting to sockets that
            were made outside; this is where /dev and /proc belong as well.  A socket that is listed itself may be
            connected to.  A path that is not there, or not reachable, grants nothing.
        other_sockets: sockets with a path may be connected to whichever process made them.

    Returns:
        The ABI that was applied; 0: the kernel has no Landlock and nothing was done.

    Raises:
        HostError: the kernel has Landlock and refused.
    """
    try:
        version = abi()
        if version == 0:
            return 0
        handled = (1 << _RIGHTS.get(version, _RIGHTS_NOW)) - 1
        if version >= 9 and not other_sockets:
            handled |= _RESOLVE_UNIX
        # struct landlock_ruleset_attr: file rights, network rights (ABI 4), scopes (ABI 6)
        attributes = struct.pack("=QQQ", handled, 0, _SCOPES) if version >= 6 else struct.pack("=Q", handled)
        ruleset = syscalls.landlock_create_ruleset(attributes)
        try:
            for path in read_only:
                _allow(ruleset, path, handled & _READ)
            for path in writable:
                _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))
            syscalls.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise HostError(
            "apply Landlock", error.strerror or str(error), target=str(error.filename or ""), fix=("membrane doctor",)
        ) from error
    return version


def restrict_scopes(*, signals_only: bool = False) -> int:
    """As ``restrict``, but by the scopes alone: a domain with file rights forbids every mount (``hook_sb_mount``).

    Args:
        signals_only: abstract sockets of others can be connected to, and a domain that begins inside may rename and
            link from one directory to another, at the price of mounts.  A layer that does not speak of that right
            refuses it as soon as another one has file rights (Documentation/userspace-api/landlock.rst, "File renaming
            and linking": it is denied by default).

    Returns:
        The ABI that was applied; 0: the kernel has no scopes (ABI 6) and nothing was done.

    Raises:
        HostError: the kernel has them and refused.
    """
    try:
        version = abi()
        if version < 6:
            return 0
        attributes = (_REFER, 0, _SIGNALS) if signals_only else (0, 0, _SCOPES)
        ruleset = syscalls.landlock_create_ruleset(struct.pack("=QQQ", *attributes))
        try:
            if signals_only:
                _allow(ruleset, "/", _REFER)
            syscalls.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise HostError("apply Landlock", error.strerror or str(error), fix=("membrane doctor",)) from error
    return version


LIST = _READ_DIR
READ = _READ
WRITE = -1  # everything but device nodes
DEVICE = _READ_FILE | _WRITE_FILE | _IOCTL_DEV
SUPERVISED = 4  # the ABI from which TCP can be refused (Linux 6.7)


def confine(grants: Sequence[tuple[str, int]]) -> int:
    """Restrict this thread and its children for ever, with no other wall in front: no file but those listed, no TCP
    connection and no TCP port of their own; no_new_privs must be set.

    Args:
        grants: paths, each with ``LIST``, ``READ``, ``WRITE`` or ``DEVICE``, which hold for all below it; a path that
            is not there, or not reachable, grants nothing, nor does one with a link on the way: that came meanwhile.

    Returns:
        The ABI that was applied.

    Raises:
        HostError: the kernel cannot refuse TCP (``SUPERVISED``), or has refused.
    """
    version = abi()
    if version < SUPERVISED:
        raise HostError(
            "apply Landlock",
            f"the kernel has ABI {version}; without namespaces the network is bound from ABI {SUPERVISED} on",
            fix=("run on Linux 6.7 or newer, with landlock among its security modules (lsm=)",),
        )
    handled = (1 << _RIGHTS.get(version, _RIGHTS_NOW)) - 1
    handled |= _RESOLVE_UNIX if version >= 9 else 0
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)[: 24 if version >= 6 else 16]
    try:
        ruleset = syscalls.landlock_create_ruleset(attributes)
        try:
            for path, rights in grants:
                _allow(ruleset, path, handled & (rights & ~(_MAKE_CHAR | _MAKE_BLOCK)), syscalls.RESOLVE_NO_SYMLINKS)
            syscalls.landlock_restrict_self(ruleset)
        finally:
            os.close(ruleset)
    except OSError as error:
        raise HostError("apply Landlock", error.strerror or str(error), target=str(error.filename or "")) from error
    return version


def _allow(ruleset: int, path: str, rights: int, resolve: int = 0) -> None:
    """Add a rule for ``path``; struct landlock_path_beneath_attr is packed."""
    try:
        fd = (
            syscalls.openat2(syscalls.AT_FDCWD, path, os.O_PATH, 0, resolve)
            if resolve
            else os.open(path, os.O_PATH | os.O_CLOEXEC)
        )
    except OSError as error:
        if error.errno in _UNREACHABLE:
            return
        raise
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISDIR(mode):
            rights &= _OF_A_FILE  # EINVAL otherwise
        if not stat.S_ISSOCK(mode):
            rights &= ~_RESOLVE_UNIX
        syscalls.landlock_add_rule(ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd))
    finally:
        os.close(fd)
