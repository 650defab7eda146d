"""Trees of the host as detached mounts, with the attributes of the plan.

Theory of operation
-------------------
open_tree(2) clones a tree before anything is done to the view, so nothing done later can change what its path means.
Who has the rights of the paths clones them: pid 1 of the sandbox, or for root callers the supervisor (``trees``).
"""

from __future__ import annotations

import errno
import os

from ..plan.model import Bind, Overlay
from . import syscalls as sc
from .channel import OVERLAY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..plan.model import MountOp


# Of a mount that shows a device node.  The node is the host's, and whose uid is its owner's may change its mode, but
# not here; what is written to the device does not ask the mount (fs/namei.c, sb_permission; fs/open.c, do_dentry_open).
DEVICE = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_RDONLY


class OverlayFailed(OSError):
    """The kernel does not make the overlay; ``step`` is what the report says of it."""

    step = OVERLAY


def sources(op: Overlay) -> tuple[str, ...]:
    """The directories of the host that are cloned for ``op``, in the order in which ``mount`` takes them."""
    return (*op.lowers, op.layer) if op.layer else op.lowers


def tree_key(index: int, part: int = 0) -> int:
    """The key of a detached tree: of the operation ``index`` of a plan, and of an overlay its source ``part``."""
    return part << 32 | index


def clone_trees(index: int, op: MountOp, userns: Callable[[Bind | Overlay], int]) -> dict[int, int]:
    """The detached trees of one operation, by ``tree_key``.

    Args:
        userns: a user namespace with the id map for an operation's own trees.
    """
    if isinstance(op, Bind):
        fd = clone_tree(op, userns(op) if op.own else 0)
        return {} if fd is None else {tree_key(index): fd}
    made: dict[int, int] = {}
    if isinstance(op, Overlay):
        own = userns(op) if op.own else 0
        if op.fallback:
            fd = clone_tree(Bind(op.lowers[-1], op.target, optional=True), own)
            if fd is None:
                return {}  # gone since it was looked at
            made[instead_key(index, op)] = fd
        try:
            for part, path in enumerate(sources(op)):
                writable = part >= len(op.lowers)
                made[tree_key(index, part)] = clone_layer(path, writable=writable, userns=own, direct=op.direct)
        except BaseException as error:
            kept = instead_key(index, op) if op.fallback and isinstance(error, OverlayFailed) else -1
            for key, fd in made.items():
                if key != kept:
                    os.close(fd)
            if kept < 0:
                raise
            return {kept: made[kept]}
    return made


def instead_key(index: int, op: Overlay) -> int:
    """The key of what is bound where the overlay ``op`` cannot be made (``Overlay.fallback``)."""
    return tree_key(index, len(sources(op)))


def clone_tree(op: Bind, userns: int) -> int | None:
    """A detached recursive copy of ``op.source`` with the attributes of the plan."""
    try:
        fd = _clone(op.source, sc.OPEN_TREE_CLONE | sc.AT_RECURSIVE, direct=op.direct)
    except FileNotFoundError:
        if op.optional:
            return None
        raise
    if op.device:
        flags = DEVICE | sc.MOUNT_ATTR_NOEXEC
    else:
        flags = 0 if op.engine else sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
        flags |= 0 if op.writable else sc.MOUNT_ATTR_RDONLY
    try:
        if userns:
            try:
                sc.mount_setattr(fd, sc.MOUNT_ATTR_IDMAP, userns_fd=userns)
            except OSError as error:
                # A mount below the tree may not support it (proc, sysfs, a FUSE mount): it then shows its files
                # as no user's, which opens nothing.  The tree itself must have it.
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
                sc.mount_setattr(fd, sc.MOUNT_ATTR_IDMAP, recursive=False, userns_fd=userns)
        if flags:
            sc.mount_setattr(fd, flags)
    except OSError as error:
        os.close(fd)
        error.filename = op.source
        raise
    return fd


def _clone(path: str, flags: int, *, direct: bool) -> int:
    """open_tree(2).  ``direct``: over no link, as a command of another run may turn a name on the way by now."""
    if not direct:
        return sc.open_tree(path, flags)
    try:
        fd = sc.openat2(sc.AT_FDCWD, path, os.O_PATH, 0, sc.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ESTALE, "a link was put on the way to it meanwhile", path) from None
    try:
        return sc.open_tree(b"", flags | sc.AT_EMPTY_PATH, fd)
    finally:
        os.close(fd)


def clone_layer(path: str, *, writable: bool, userns: int, direct: bool = False) -> int:
    """A detached copy of one directory of an overlay, without what is mounted below it.

    Args:
        userns: whose id map the copy gets; 0: none.

    Raises:
        OverlayFailed: it is not there, something is mounted below it and must stay, or it takes no id map.
    """
    fd = -1
    try:
        fd = _clone(path, sc.OPEN_TREE_CLONE, direct=direct)
        flags = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV | (0 if writable else sc.MOUNT_ATTR_RDONLY)
        sc.mount_setattr(fd, flags | (sc.MOUNT_ATTR_IDMAP if userns else 0), recursive=False, userns_fd=userns)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise OverlayFailed(error.errno, error.strerror, path) from None
    return fd
