"""Overlay mounts of the view: directories that are not in it themselves, as one tree.

Theory of operation
-------------------
overlayfs (Documentation/filesystems/overlayfs.rst) may be mounted in a user namespace since Linux 5.11, with its marks
in ``user.overlay.*`` attributes (``userxattr``).  The directories of the plan are cloned like those of ``Bind``
(``clones``); id maps of root callers are those of the clones.
They are attached to a directory of our own, named to the kernel relative to it, and go with the old root when the view
is complete: overlayfs keeps clones of its own (fs/overlayfs/super.c, clone_private_mount).  From then on the overlay is
the only way to them, and the table of mounts shows numbers instead of paths of the host.  To detach each by
itself would cost a grace period of the kernel (fs/namespace.c, namespace_unlock).

What the options are for:

* ``redirect_dir=nofollow``, ``metacopy=off``: what is changed is a full copy, and no attribute in a layer or in the
  workspace, which a command of an earlier run may have set, leads to another file.  A directory of a lower layer cannot
  be renamed (EXDEV): programs copy it.
* ``index=off``: one lower layer may be below several overlays at a time.
* ``volatile``, with a layer that is written: without it each end of an overlay would write out the whole file system
  that the layer is on (syncfs(2)), however much others have to write there.  fsync(2) does nothing inside, and the
  work directory is marked: it has to be a new one for each mount.
* ``xino=auto``: one device number for all files, where inode numbers have room for it.

An overlay is not a bind: what is mounted below a layer is not seen in it, so such a tree is refused here (EINVAL, where
the mounts are locked) or by who asks for the overlay.
"""

from __future__ import annotations

import os

from ..errors import EX_CONFIG, HostError
from ..plan.model import NOBODYS
from . import syscalls as sc
from .channel import OVERLAY, SIGKILL
from .clones import OverlayFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..plan.model import Overlay

OPTIONS = "userxattr,redirect_dir=nofollow,metacopy=off,index=off,xino=auto"


class CannotOverlay(HostError):
    """An overlay that the plan asks for cannot be had here.  Nothing was started: it is a rule that cannot be bound."""

    exit_code = EX_CONFIG


def mount(op: Overlay, trees: Sequence[int], scratch: int, target: int) -> None:
    """Mount ``op``; the current directory is ``scratch`` afterwards.

    Where the caller stood may be closed to the id that this process has by now (root's own, of mode 0700): nothing is
    looked up there.

    Args:
        trees: clones of its directories (``clones.sources``); closed.
        scratch: a directory of ours, below which they are attached; it is in no view.
        target: the mount point (O_PATH).

    Raises:
        OverlayFailed: the kernel refuses it.
    """
    attached: list[str] = []
    flags = sc.MS_NOSUID | sc.MS_NODEV
    try:
        os.fchdir(scratch)
        place = str(len(os.listdir(".")))
        os.mkdir(place, 0o711)  # ``_close`` looks things up below it
        os.chdir(place)
        for number, tree in enumerate(trees):
            if os.fstatvfs(tree).f_flag & os.ST_NOEXEC:
                flags |= sc.MS_NOEXEC  # overlayfs does not ask its layers
            name = str(number)
            os.mkdir(name, 0o711)
            attached.append(name)
            sc.move_mount(tree, name)
        if op.closed:
            _close(attached, len(op.lowers) - 1)
        lowers = ":".join(attached[: len(op.lowers)])
        if op.layer:
            layer = attached[-1]
            data = f"lowerdir={lowers},upperdir={layer}/upper,workdir={layer}/work,{OPTIONS},volatile"
        else:
            data, flags = f"lowerdir={lowers},{OPTIONS}", flags | sc.MS_RDONLY
        sc.mount("overlay", f"/proc/self/fd/{target}", "overlay", flags, data)
    except OSError as error:
        raise OverlayFailed(error.errno, error.strerror, op.target) from None
    finally:
        os.fchdir(scratch)
        for fd in trees:
            os.close(fd)


def _close(attached: list[str], number: int) -> None:
    """Put a read-only overlay over the directory ``attached[number]`` and in its place.

    overlayfs asks twice: the process, by its ids and capabilities, and who mounted it, about the file that is below
    (fs/overlayfs/inode.c, ovl_permission; file.c, ovl_open_realfile; namei.c, ovl_lookup).  Who mounts this one owns
    nothing there, as the id map of the directory (``trees``) leaves its id out, and has no capability over files: so it
    gives what every other user of the host may have.
    """
    name, empty = f"{number}-closed", f"{number}-empty"
    # overlayfs takes no single layer.  Above, as of the lowest one it asks no attributes (namei.c, ovl_lookup_single),
    # which of a directory that is closed would be an error of the whole look-up.
    os.mkdir(empty, 0o755)
    os.mkdir(name, 0o711)
    sc.set_file_ids(NOBODYS, NOBODYS)
    try:
        flags = sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV
        sc.mount("overlay", name, "overlay", flags, f"lowerdir={empty}:{attached[number]},{OPTIONS}")
    finally:
        sc.set_file_ids(0, 0)
        # A change of credentials clears both (prctl(2)).  Should the launcher have ended in between, the supervisor's
        # end of the channel says so.
        sc.set_dumpable(True)
        sc.set_parent_death_signal(SIGKILL)
    attached[number] = name


def why(cause: str, number: int, target: str, layer: str, *, system: bool = False) -> CannotOverlay:
    """The error for a person, with what to change.

    Args:
        cause: what the kernel said, with the errno's name.
        layer: the directory of the host that was to take the changes; empty: none.
        system: it is over a system tree (``plan.system``).
    """
    import errno

    from .facts import file_system

    fix: tuple[str, ...] = ()
    kind = file_system(layer) if layer else ""
    if kind == "overlay":
        cause = f"its changes would be kept on an overlayfs ({layer}), which the kernel does not stack"
        fix = ("set MEMBRANE_HOME to a directory on a disk or tmpfs (in a container: a volume)",)
    elif number == errno.ENODEV:
        cause = f"{cause}: this kernel has no overlayfs"
        fix = ("modprobe overlay   # as root",)
    elif number == errno.EPERM:
        cause = f"{cause}: this kernel does not mount overlayfs in a user namespace (Linux 5.11 and later do)"
    elif number in (errno.EINVAL, errno.EOPNOTSUPP):
        cause = f"{cause} (changes are kept on {kind or 'no file system'}; overlayfs needs one with user extended "
        cause += "attributes, and a workspace below which nothing is mounted)"
        fix = ("set MEMBRANE_HOME to a directory on ext4, xfs, btrfs or tmpfs (tmpfs: Linux 6.6 and later)",)
    instead = "use the workspace live: --live" if layer else "leave --image out"
    if system:
        instead = "leave --system out"
        if number in (errno.EINVAL, errno.EOPNOTSUPP) and kind != "overlay":
            cause += ", and the tree one with id maps (not overlayfs or NFS)"
    return CannotOverlay(OVERLAY, cause, target=target, fix=(*fix, instead))
