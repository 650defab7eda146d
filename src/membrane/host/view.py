"""Mount operations, executed: the view of one sandbox, built in its own mount namespace.

Theory of operation
-------------------
Host trees are first cloned as detached mounts (open_tree(2)), so that nothing done later in the namespace can
change what a source path means.  A tmpfs becomes the new root, the operations are applied in order, and
pivot_root(2) makes it the only root there is.  Operations inside the workspace come after the pivot, when every
path means what the command will see; links on the way are refused, never followed.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat

from ..errors import InternalError
from ..plan.model import Bind, Devices, Directory, File, Mask, Pin, Proc, ReadOnly, Symlink, Tmpfs
from ..plan.mounts import MASK_SOURCE
from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..plan.model import MountOp

NEW_ROOT = "/tmp"  # noqa: S108 - covered by the new root in a private mount namespace, never written to
DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")


def build(mounts: Sequence[MountOp], trees: dict[int, int], *, clone: bool) -> None:
    """Build the view and pivot into it.

    Args:
        mounts: the operations of the plan.
        trees: detached trees by index, passed in by the supervisor.
        clone: clone the sources here (the caller has the rights of the paths it names).
    """
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    for index, op in enumerate(mounts):
        if clone and isinstance(op, Bind):
            fd = clone_tree(op, 0)
            if fd is not None:
                trees[index] = fd
    devices = [(name, sc.open_tree(f"/dev/{name}", sc.OPEN_TREE_CLONE)) for name in DEVICE_NODES]
    sc.mount("tmpfs", NEW_ROOT, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=0755,size=16m")
    for index, op in enumerate(mounts):
        _operation(op, trees.get(index), devices)
    os.chdir(NEW_ROOT)
    sc.pivot_root(".", ".")
    sc.umount(".", sc.MNT_DETACH)
    os.chdir("/")


def seal(mounts: Sequence[MountOp]) -> None:
    """Make our own tmpfs read-only: the command's uid owns them, and must not change them."""
    _seal(MASK_SOURCE)
    if not any(isinstance(op, Bind) and op.target == "/" for op in mounts):
        _seal("/")


def clone_tree(op: Bind, userns: int) -> int | None:
    """A detached recursive copy of ``op.source`` with the attributes of the plan."""
    try:
        fd = sc.open_tree(op.source, sc.OPEN_TREE_CLONE | sc.AT_RECURSIVE)
    except FileNotFoundError:
        if op.optional:
            return None
        raise
    flags = sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV | (0 if op.writable else sc.MOUNT_ATTR_RDONLY)
    try:
        if userns:
            try:
                sc.mount_setattr(fd, sc.MOUNT_ATTR_IDMAP, userns_fd=userns)
            except OSError as error:
                # A mount below the tree may not support it (proc, sysfs, a FUSE mount): it then shows its files
                # as nobody's, which opens nothing.  The tree itself must have it.
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
                sc.mount_setattr(fd, sc.MOUNT_ATTR_IDMAP, recursive=False, userns_fd=userns)
        sc.mount_setattr(fd, flags)
    except OSError as error:
        os.close(fd)
        error.filename = op.source
        raise
    return fd


def _operation(op: MountOp, tree: int | None, devices: Iterable[tuple[str, int]]) -> None:
    target = NEW_ROOT + op.target.rstrip("/") if op.target != "/" else NEW_ROOT
    if isinstance(op, Bind):
        if tree is None:
            return
        if op.target == "/":
            # The host's root covers our tmpfs; NEW_ROOT then names it.
            sc.move_mount(tree, target, follow=True)
        else:
            if op.make:
                _make_mount_point(target, directory=os.stat(tree).st_mode & 0o170000 == 0o040000)
            sc.move_mount(tree, target, follow=True)
        os.close(tree)
    elif isinstance(op, Tmpfs):
        _make_mount_point(target, directory=True)
        size = f",size={op.size}" if op.size else ""
        sc.mount("tmpfs", target, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"mode={op.mode:o}{size}")
        if op.target == MASK_SOURCE:
            os.close(os.open(f"{target}/file", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o000))
            os.mkdir(f"{target}/directory", 0o000)
    elif isinstance(op, Directory):
        _make_mount_point(target, directory=True)
        os.chmod(target, op.mode)
    elif isinstance(op, Symlink):
        os.symlink(op.to, target)
    elif isinstance(op, File):
        _file(op, target)
    elif isinstance(op, Mask):
        _bind_over(f"{NEW_ROOT}{MASK_SOURCE}/{'directory' if op.directory else 'file'}", target)
    elif isinstance(op, Proc):
        _make_mount_point(target, directory=True)
        flags = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC
        sc.mount("proc", target, "proc", flags)
        if op.freeze_settings:
            sc.mount(f"{target}/sys", f"{target}/sys", None, sc.MS_BIND)
            sc.mount(None, f"{target}/sys", None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | flags)
    elif isinstance(op, Devices):
        _devices(target, devices)
    elif isinstance(op, (ReadOnly, Pin)):
        raise InternalError("build the view", f"{op!r} stands before the pivot")


def _bind_over(source: str, target: str) -> None:
    try:
        sc.mount(source, target, None, sc.MS_BIND)
    except FileNotFoundError:
        pass  # it vanished since it was looked at: there is nothing to hide
    except OSError as error:
        if error.errno != errno.ENOTDIR:
            raise
        # The other kind than its name says.
        other = (
            source.replace("/file", "/directory") if source.endswith("/file") else source.replace("/directory", "/file")
        )
        sc.mount(other, target, None, sc.MS_BIND)


def _make_mount_point(path: str, *, directory: bool) -> None:
    parent = path.rpartition("/")[0]
    try:
        if directory:
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        pass
    except FileNotFoundError:
        if len(parent) <= len(NEW_ROOT):
            raise
        _make_mount_point(parent, directory=True)
        _make_mount_point(path, directory=directory)


def _file(op: File, target: str) -> None:
    path = target
    if op.bind:
        path = f"{NEW_ROOT}{MASK_SOURCE}/{op.target.strip('/').replace('/', '-')}"
    else:
        _make_mount_point(target.rpartition("/")[0], directory=True)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, op.mode)
    try:
        os.write(fd, op.content)
    finally:
        os.close(fd)
    if op.bind:
        _bind_over(path, target)


def _devices(target: str, devices: Iterable[tuple[str, int]]) -> None:
    _make_mount_point(target, directory=True)
    sc.mount("tmpfs", target, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=0755,size=1m")
    for name, tree in devices:
        _make_mount_point(f"{target}/{name}", directory=False)
        sc.move_mount(tree, f"{target}/{name}")
        os.close(tree)
    os.mkdir(f"{target}/pts")
    sc.mount("devpts", f"{target}/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.mkdir(f"{target}/shm")
    sc.mount("tmpfs", f"{target}/shm", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=1777")
    for link, to in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(to, f"{target}/{link}")


def _seal(path: str) -> None:
    """Remount one of our tmpfs read-only: the command, whose uid owns it, must not change it."""
    sc.mount(None, path, None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV)


def read_rows(fd: int) -> list[tuple[str, str]]:
    """The (kind, target) rows of workspace operations, from a memfd of the supervisor."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    rows: list[tuple[str, str]] = marshal.loads(data)  # noqa: S302 - from our own supervisor
    return rows


def workspace_operation(kind: str, target: str) -> None:
    """One Pin, ReadOnly or Mask below the workspace, after the pivot: no link on the way is followed.

    The last name may be a link made by the repository: a masked link hides what it leads to; a read-only link is
    bound onto itself, so that it can not be replaced, and what it leads to becomes read-only as well.
    """
    try:
        if kind == "Mask":
            fd = _open_final(target)
            try:
                source = f"{MASK_SOURCE}/{'directory' if stat.S_ISDIR(os.stat(fd).st_mode) else 'file'}"
                sc.mount(source, f"/proc/self/fd/{fd}", None, sc.MS_BIND)
            finally:
                os.close(fd)
            return
        # With O_PATH and O_NOFOLLOW a final link is opened itself (openat2(2)).
        fd = sc.openat2(sc.AT_FDCWD, target, os.O_PATH | os.O_NOFOLLOW, 0, sc.RESOLVE_NO_SYMLINKS)
        link = stat.S_ISLNK(os.stat(fd).st_mode)
        _bind_onto_itself(fd, read_only=kind == "ReadOnly")
        if link and kind == "ReadOnly":
            _bind_onto_itself(_open_final(target), read_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return  # gone since the scan, or a dangling link: nothing to bind


def _bind_onto_itself(fd: int, *, read_only: bool) -> None:
    """Cover an O_PATH descriptor's object with a bind of itself; the descriptor is closed."""
    try:
        tree = sc.open_tree(b"", sc.OPEN_TREE_CLONE | sc.AT_EMPTY_PATH | sc.AT_RECURSIVE, dirfd=fd)
        try:
            if read_only:
                sc.mount_setattr(tree, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
            sc.move_mount(tree, b"", dirfd=fd)
        finally:
            os.close(tree)
    finally:
        os.close(fd)


def _open_final(path: str) -> int:
    """An O_PATH descriptor of ``path``, following only a final link, never one on the way."""
    parent, _, name = path.rpartition("/")
    directory = sc.openat2(sc.AT_FDCWD, parent, os.O_PATH | os.O_DIRECTORY, 0, sc.RESOLVE_NO_SYMLINKS)
    try:
        return sc.openat2(directory, name, os.O_PATH, 0, sc.RESOLVE_NO_MAGICLINKS)
    finally:
        os.close(directory)
