"""For root callers: the id maps of the private kuid range, and the trees of the plan, cloned and idmapped.

Theory of operation
-------------------
Only real root may write these maps and clone mounts of the host, so the supervisor does it, for a launcher that has
made its user namespace and waits.  Writable trees become idmapped mounts (mount_setattr(2)), so nothing on a disk ever
gets a kuid of the range.
"""

from __future__ import annotations

import errno
import os
import stat

from ..plan.model import NOBODYS, RANGE, Bind, Overlay
from . import messages as m
from . import syscalls as sc
from .channel import FDS_PER_MESSAGE, write_file
from .clones import clone_trees, tree_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import SandboxPlan
    from .channel import Channel


def map_range(pid: int, base: int) -> int:
    """Map 0 to 65535 of the user namespace of ``pid`` to ``base`` and above; a descriptor of that namespace.

    Raises:
        OSError: a map cannot be written.
    """
    for name in ("uid_map", "gid_map"):
        write_file(f"/proc/{pid}/{name}", f"0 {base} {RANGE}\n")
    return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def pass_in(channel: Channel, plan: SandboxPlan, userns: int) -> None:
    """Send the launcher clones of the trees of ``plan``, by ``clones.tree_key``.

    Args:
        userns: as ``map_range`` gave it; closed.

    Raises:
        OSError: the kernel refuses idmapped mounts of a tree, or a tree does not exist.
    """
    trees: list[int] = []
    owners = {(id_map(0, plan.base_kuid),) * 2: userns}
    capable = bool(plan.hardening.capabilities)
    try:
        keys: list[int] = []
        for index, op in enumerate(plan.mounts):
            if isinstance(op, Bind) and op.device:
                made = {tree_key(index): _node(op.source, plan.base_kuid)}
            else:
                made = clone_trees(index, op, lambda own: _owner_namespace(own, plan.base_kuid, capable, owners))
            trees += made.values()
            keys += made
        for start in range(0, len(trees), FDS_PER_MESSAGE):
            part = slice(start, start + FDS_PER_MESSAGE)
            channel.send(m.Trees(tuple(keys[part]), tuple(trees[part])))
        channel.send(m.MapsWritten())
    finally:
        for fd in (*trees, *owners.values()):
            os.close(fd)


def _node(path: str, owner: int) -> int:
    """A detached tmpfs with the device node ``path`` of the host, by its last name, owned by ``owner``.

    devtmpfs takes no id maps (drivers/base/devtmpfs.c: no FS_ALLOW_IDMAP), and inside no process is host root.
    """
    try:
        details = os.lstat(path)
        if not stat.S_ISCHR(details.st_mode):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        fd = sc.new_tmpfs(0o755)
        try:
            name = os.path.basename(path)
            os.mknod(name, stat.S_IFCHR | 0o600, details.st_rdev, dir_fd=fd)
            os.chown(name, owner, owner, dir_fd=fd, follow_symlinks=False)
        except OSError:
            os.close(fd)
            raise
    except OSError as error:
        error.filename = path
        raise
    return fd


def id_map(owner: int, base: int) -> str:
    """The id map (user_namespaces(7)) of an idmapped mount whose files of ``owner`` are root's inside.

    Root inside has no capability: in a tree that belongs to another user (a checkout that a CI runner mounts) it
    could write nothing.  Root's own files take the owner's place there; an id outside of the range just replaces 0.
    """
    if owner == 0:
        return f"0 {base} {RANGE}\n"
    if owner >= RANGE:
        return f"{owner} {base} 1\n1 {base + 1} {RANGE - 1}\n"
    rows = [(owner, base, 1), (0, base + owner, 1)]
    if owner > 1:
        rows.append((1, base + 1, owner - 1))
    if owner < RANGE - 1:
        rows.append((owner + 1, base + owner + 1, RANGE - 1 - owner))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in rows)


def _maps(op: Bind | Overlay, base: int, capable: bool) -> tuple[str, str]:
    """The uid and the gid map of ``op``'s own trees.

    Args:
        capable: root inside has capabilities over files whose ids are mapped (``plan.system``).
    """
    if isinstance(op, Bind):
        tree, writable = op.source, op.writable
    else:
        tree, writable = op.lowers[-1], bool(op.layer)  # all layers have the map of the tree that they change
    whole = id_map(0, base)
    if isinstance(op, Overlay) and op.system:
        text = f"0 {base} {NOBODYS}\n" if op.closed else whole
        return text, text
    owner = 0, 0
    if writable:
        try:
            details = os.stat(tree)
            owner = details.st_uid, details.st_gid
        except OSError:
            pass  # clone_tree reports it
    if capable:  # nobody else's files are there for them, nor can any be given away
        return f"{owner[0]} {base} 1\n", f"{owner[1]} {base} 1\n"
    return id_map(owner[0], base), id_map(owner[1], base)


def _owner_namespace(op: Bind | Overlay, base: int, capable: bool, known: dict[tuple[str, str], int]) -> int:
    """A user namespace that carries the id maps for ``op``; it holds no process."""
    maps = _maps(op, base, capable)
    if maps not in known:
        ready, done = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sc.unshare(sc.CLONE_NEWUSER)
                os.write(ready[1], b"x")
                os.close(done[1])
                os.read(done[0], 1)
            finally:
                os._exit(0)
        for fd in (ready[1], done[0]):
            os.close(fd)
        try:
            os.read(ready[0], 1)
            for name, text in zip(("uid_map", "gid_map"), maps, strict=True):
                write_file(f"/proc/{pid}/{name}", text)
            known[maps] = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            for fd in (ready[0], done[1]):
                os.close(fd)
            os.waitpid(pid, 0)
    return known[maps]
