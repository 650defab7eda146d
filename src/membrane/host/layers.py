"""Files of our own among those of a host tree, in the view only and without a mount point on the host.

Theory of operation
-------------------
An overlayfs without an upper layer (Documentation/filesystems/overlayfs.rst, "Multiple lower layers") shows our names
before those of the tree.  The kernel makes none where something is mounted below the tree that this namespace may not
uncover (fs/namespace.c, clone_private_mount): in most containers.  There a tmpfs takes the tree's place, and each of
its entries is bound into it, which takes some milliseconds.

What the tree loses or gets outside while the view exists may not be seen in it: the kernel says of a changed lower
layer no more than that it does no harm.
"""

from __future__ import annotations

import errno
import os

from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import Layer

_FLAGS = sc.MS_NOSUID | sc.MS_NODEV
# Of our directories, which are shown as the tree's own.  No process may write there, as outside: else the tracer would
# take what every user is refused for a refusal of ours.
_SHOWN = 0o555


def put(op: Layer, own: str, tree: str, place: int) -> None:
    """Show the names of ``op`` in a mounted tree.

    Args:
        own: where our files are made, in a tmpfs of ours; it does not exist.
        tree: the directory of the tree.
        place: a descriptor of it (O_PATH).
    """
    os.mkdir(own)
    made = [own]
    for name in op.names:
        above = own
        for part in name.split("/")[:-1]:
            above += f"/{part}"
            if not os.path.isdir(above):
                os.mkdir(above)
                made.append(above)
        _make(f"{own}/{name}")
    for directory in made:
        os.chmod(directory, _SHOWN)
    try:
        sc.mount(
            "overlay", f"/proc/self/fd/{place}", "overlay", sc.MS_RDONLY | _FLAGS, f"lowerdir={own}:{tree},userxattr"
        )
        return
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM, errno.ENODEV):
            raise
    scratch = f"{own}-joined"
    os.mkdir(scratch)
    sc.mount("tmpfs", scratch, "tmpfs", _FLAGS, "mode=0755,size=1m")
    _join(own, tree, scratch)
    sc.mount(None, scratch, None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _FLAGS)
    sc.mount(scratch, f"/proc/self/fd/{place}", None, sc.MS_MOVE)


def _make(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))


def _join(own: str, tree: str, target: str) -> None:
    """Show in ``target``, a directory of ours, what ``own`` has, and what ``tree`` has beside it."""
    ours = os.listdir(own)
    for name in {*ours, *(os.listdir(tree) if os.path.isdir(tree) else ())}:
        source, to = f"{tree}/{name}", f"{target}/{name}"
        if name in ours and os.path.isdir(f"{own}/{name}"):
            os.mkdir(to)
            _join(f"{own}/{name}", source, to)
        elif name in ours:
            _make(to)
        elif os.path.islink(source):
            os.symlink(os.readlink(source), to)
        else:
            if os.path.isdir(source):
                os.mkdir(to)
            else:
                _make(to)
            sc.mount(source, to, None, sc.MS_BIND | sc.MS_REC)
    os.chmod(target, _SHOWN)
