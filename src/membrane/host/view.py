"""Mount operations, executed: the view of one sandbox, built in its own mount namespace.

Theory of operation
-------------------
Host trees are first cloned as detached mounts (open_tree(2)), so that nothing done later in the namespace can
change what a source path means.  A tmpfs becomes the new root, the operations are applied in order, and
pivot_root(2) makes it the only root there is.  Operations inside the workspace come after the pivot, when every
path means what the command will see; links on the way are refused, never followed.

Before the pivot a path of the plan is looked up below the new root (openat2(2), RESOLVE_IN_ROOT): a link is never
resolved against the host's root.  The home store keeps what a command of an earlier run has made, so a link in a tree
that the command can write is not followed at all: it would choose where the next run mounts, or makes a directory.

One file of over 800 lines: what is mounted before the pivot and after it finds its places in the same way, and a start
loads one module less.
"""

from __future__ import annotations

import _socket
import errno
import os
import stat

from ..errors import InternalError
from ..plan.model import (
    Bind,
    Devices,
    Directory,
    File,
    Layer,
    Listen,
    Mask,
    Overlay,
    Pin,
    Proc,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from ..plan.mounts import MASK_SOURCE
from . import layers, overlay
from . import syscalls as sc
from .channel import PROC
from .clones import DEVICE, OverlayFailed, clone_trees, instead_key, sources, tree_key
from .writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Literal

    from ..plan.model import MountOp

_BACKLOG = 128  # connections to one unix socket that are not accepted yet
NEW_ROOT = "/tmp"  # noqa: S108 - covered by the new root in a private mount namespace, never written to
_PTS = "newinstance,ptmxmode=0666,mode=620"
# Of proc(5) what ordinary programs read, the namespaces' own, and counters of the whole machine that runtimes size
# themselves by (gVisor offers no more).  The rest describes the host: its keys, locks, interrupts (whose counts show
# key strokes), devices, disks, modules, kernel configuration and boot parameters.
PROC_FILES = frozenset(
    (
        *("cgroups", "cpuinfo", "devices", "filesystems", "loadavg", "meminfo", "mounts", "net", "pressure", "self"),
        *("stat", "swaps", "sys", "sysvipc", "thread-self", "tty", "uptime", "version", "vmstat"),
    )
)
MOST_WATCHED = 32  # hidden files whose first read is reported: each costs 30 µs of the start
_IN_OPEN, _IN_ONESHOT = 0x20, 0x80000000  # inotify(7)
DEVICE_NODES = ("null", "zero", "full", "random", "urandom", "tty")


def _device(name: str) -> int:
    """A device node as a detached mount; -1: it is not here either (a small container may have no tty)."""
    try:
        return sc.open_tree(f"/dev/{name}", sc.OPEN_TREE_CLONE)
    except FileNotFoundError:
        if name == "null":  # the streams of a command that has none
            raise
        return -1


def build(mounts: Sequence[MountOp], trees: dict[int, int], *, clone: bool) -> list[_socket.socket]:
    """Build the view and pivot into it.

    Args:
        mounts: the operations of the plan.
        trees: detached trees by ``tree_key``, passed in by the supervisor.
        clone: clone the sources here (the caller has the rights of the paths it names).

    Returns:
        The listening sockets, in the order of their operations.
    """
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    for index, op in enumerate(mounts):
        if clone:
            trees.update(clone_trees(index, op, lambda _op: 0))
    devices = [(name, tree) for name in DEVICE_NODES if (tree := _device(name)) >= 0]
    scratch = -1
    if any(isinstance(op, Overlay) for op in mounts):
        # Below the new root, so it goes with the old one.
        sc.mount("tmpfs", NEW_ROOT, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=0700,size=1m")
        scratch = os.open(NEW_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for _name, tree in devices:
        sc.mount_setattr(tree, DEVICE)
    sc.mount("tmpfs", NEW_ROOT, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=0755,size=16m")
    root = _Root()
    listening: list[_socket.socket] = []
    for index, op in enumerate(mounts):
        if isinstance(op, Listen):
            listening.append(_listen(op, root))
        elif isinstance(op, Overlay):
            _overlay(
                op,
                [trees[key] for part in range(len(sources(op))) if (key := tree_key(index, part)) in trees],
                trees.get(instead_key(index, op), -1),
                scratch,
                root,
            )
        else:
            _operation(op, trees.get(index), devices, root)
    root.close()
    if scratch >= 0:
        os.close(scratch)
    for op in mounts:
        if isinstance(op, Proc) and not op.whole:
            _hide_the_host(NEW_ROOT, op)
    os.chdir(NEW_ROOT)
    sc.pivot_root(".", ".")
    sc.umount(".", sc.MNT_DETACH)
    os.chdir("/")
    return listening


# Of the view, private to each command; the first is where the others are made.
_PROC = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC
# What container runtimes make read-only as well (runtime-spec, "readonlyPaths"), and what is like it.
SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr", "acpi", "scsi", "asound")
SCRATCH = ("/dev/shm", "/tmp", "/var/tmp", "/run")  # noqa: S108


def refresh(mounts: Sequence[MountOp]) -> None:
    """In a mount and pid namespace of one command, copied from the sandbox's: its own scratch, proc(5) and terminals.

    Whatever the plan has below a scratch directory is there again; what earlier commands made is not.
    """
    # Mounts made here stay here; a mask made in the sandbox's namespace arrives (mount_namespaces(7), MS_SLAVE).
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_SLAVE)
    for op in mounts:
        if isinstance(op, Tmpfs) and op.target in SCRATCH:
            _renew(op, [each for each in mounts if each.target.startswith(op.target + "/")])
        elif isinstance(op, Proc):
            sc.mount("proc", op.target, "proc", _PROC)
            if op.freeze_settings:
                _freeze_settings(op.target)
            _hide_the_host("", op)
        elif isinstance(op, Devices):
            sc.mount("devpts", f"{op.target}/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, _PTS)
            _seal(op.target)  # all commands share it: none may put another link in the place of /dev/stdin


def _freeze_settings(proc: str) -> None:
    """Make what changes the machine read-only: uid 0 owns these files, and most ask for no capability besides."""
    for name in SETTINGS:
        path = f"{proc}/{name}"
        if os.path.lexists(path):
            sc.mount(path, path, None, sc.MS_BIND)
            sc.mount(None, path, None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | _PROC)


def _hide_the_host(root: str, op: Proc) -> None:
    """Cover what a new proc(5) has beside processes and ``PROC_FILES``.

    ``open_files`` of a policy changes nothing here: this is the kernel's, not a file of the caller.
    """
    masks = Masks(root)
    place = os.open(f"{root}{op.target}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(place):
            if not name.isdecimal() and name not in PROC_FILES:
                masks.cover(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place))
    finally:
        os.close(place)
        masks.close()


def places_in_scratch(mounts: Sequence[MountOp]) -> frozenset[str]:
    """Paths that ``refresh`` makes: what the plan has below a scratch directory, and the directories above it."""
    places: set[str] = set()
    for op in mounts:
        for scratch in SCRATCH:
            path = op.target
            while path.startswith(scratch + "/"):
                places.add(_aside(scratch) + path[len(scratch) :])
                path = os.path.dirname(path)
    return frozenset(places)


def _aside(scratch: str) -> str:
    """A directory of the view, out of the reach of earlier commands, where a new ``scratch`` is made."""
    return f"{MASK_SOURCE}/directory" if scratch == SCRATCH[0] else SCRATCH[0]


def _renew(scratch: Tmpfs, below: Sequence[MountOp]) -> None:
    """A new file system in the place of a scratch directory, with what the plan has below it.

    It is made aside and moved: a tree that is bound stays attached all the time, for a mask that comes meanwhile passes
    by a tree that is detached (fs/pnode.h, IS_MNT_NEW).
    """
    size = f",size={scratch.size}" if scratch.size else ""
    aside = _aside(scratch.target)
    sc.mount("tmpfs", aside, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"mode={scratch.mode:o}{size}")
    bound: list[str] = []
    for op in below:
        if any(op.target.startswith(tree + "/") for tree in bound):
            continue  # it came with the tree
        place = aside + op.target[len(scratch.target) :]
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        if isinstance(op, Directory):
            os.makedirs(place, exist_ok=True)
            os.chmod(place, op.mode)  # whatever our mask is
        elif isinstance(op, Symlink):
            os.symlink(op.to, place)
        elif isinstance(op, File) and not op.bind:
            fd = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, op.mode)
            write_all(fd, op.content)
            os.close(fd)
        elif isinstance(op, Pin):
            sc.mount(place, place, None, sc.MS_BIND | sc.MS_REC)
        else:
            try:
                directory = stat.S_ISDIR(os.stat(op.target).st_mode)
            except FileNotFoundError:
                continue  # optional, and not there
            if directory:
                os.makedirs(place, 0o755, exist_ok=True)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            sc.mount(op.target, place, None, sc.MS_BIND | sc.MS_REC)
            bound.append(op.target)
    sc.mount(aside, scratch.target, None, sc.MS_MOVE)


def seal(mounts: Sequence[MountOp]) -> None:
    """Make our own tmpfs read-only: the command's uid owns them, and must not change them."""
    _seal(MASK_SOURCE)
    for op in mounts:
        if isinstance(op, Tmpfs) and op.sealed:
            _seal(op.target)
    if not any(isinstance(op, Bind) and op.target == "/" for op in mounts):
        _seal("/")


def _overlay(op: Overlay, trees: Sequence[int], instead: int, scratch: int, root: _Root) -> None:
    """Mount it, or with ``Overlay.fallback`` bind ``instead``, which is -1 without; the trees are closed."""
    if op.fallback and instead < 0:
        return
    try:
        place = root.place(op.target, "directory" if op.make else "")
    except (_Obstructed, NotADirectoryError):
        if not op.fallback:
            raise
        for fd in (*trees, instead):
            os.close(fd)
        return
    try:
        made = len(trees) == len(sources(op))
        if made:
            try:
                overlay.mount(op, trees, scratch, place)
            except OverlayFailed:
                if instead < 0:
                    raise
                made = False
        if not made:
            sc.move_mount(instead, b"", dirfd=place)
        for path in op.covered:
            try:
                _cover(path, root)
            except (_Obstructed, NotADirectoryError):
                if not made:
                    raise
                # Something else is there in the layer, and what is below it cannot be reached.
    finally:
        os.close(place)
        if instead >= 0:
            os.close(instead)


def _cover(target: str, root: _Root) -> None:
    try:
        fd = root.place(target)
    except FileNotFoundError:
        return  # it vanished since it was looked at: there is nothing to hide
    masks = Masks(NEW_ROOT)
    try:
        masks.cover(fd)
    finally:
        masks.close()


class _Obstructed(OSError):
    """A link that may have been made inside is where the plan has a directory."""


class _Root:
    """The root of the view that is being built: the place below which paths of the plan are looked up."""

    def __init__(self) -> None:
        self._fd = os.open(NEW_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.stat(self._fd).st_dev

    def close(self) -> None:
        os.close(self._fd)

    def covered(self) -> None:
        """A host tree was mounted over the whole; none of its links is ours."""
        os.close(self._fd)
        self._fd = os.open(NEW_ROOT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = -1

    def place(self, target: str, make: Literal["", "directory", "file"] = "") -> int:
        """An O_PATH descriptor of ``target``.

        Links in our own root or in a read-only tree are followed; a link in a tree that the command can write is
        refused.

        Args:
            make: what to make when it is missing; empty: nothing.

        Raises:
            _Obstructed: such a link is on the way.
            OSError: it is not there or cannot be made.
        """
        try:
            return self._open(target, sc.RESOLVE_NO_SYMLINKS)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        fd = os.dup(self._fd)
        path = ""
        parts = [part for part in target.split("/") if part]
        try:
            for part in parts:
                path = f"{path}/{part}"
                inner = self._step(fd, part, path, make and (make if path == target else "directory"))
                os.close(fd)
                fd = inner
        except OSError as error:
            os.close(fd)
            error.filename = target
            raise
        return fd

    def _open(self, path: str, resolve: int) -> int:
        return sc.openat2(self._fd, path, os.O_PATH, 0, sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS | resolve)

    def _step(self, directory: int, name: str, path: str, make: str) -> int:
        """Open or make ``name`` in ``directory``; ``path`` is the same seen from the root."""
        try:
            if make == "directory":
                os.mkdir(name, 0o755, dir_fd=directory)
            elif make == "file":
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(name, flags, 0o644, dir_fd=directory))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.EROFS):  # EROFS: what is there is opened, or missing below
                raise
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        if not stat.S_ISLNK(os.stat(fd).st_mode):
            return fd
        os.close(fd)
        if os.stat(directory).st_dev == self._device or os.fstatvfs(directory).f_flag & os.ST_RDONLY:
            return self._open(path, 0)
        raise _Obstructed(errno.ELOOP, "a link that may have been made inside is on the way")


def _operation(op: MountOp, tree: int | None, devices: Iterable[tuple[str, int]], root: _Root) -> None:
    """One operation before the pivot."""
    if isinstance(op, Bind):
        if tree is not None and op.device and stat.S_ISDIR(os.stat(tree).st_mode):
            _bind_made(op, tree, root)
        elif tree is not None:
            _bind(op, tree, root)
    elif isinstance(op, Tmpfs):
        size = f",size={op.size}" if op.size else ""
        try:
            _mount("tmpfs", op.target, root, sc.MS_NOSUID | sc.MS_NODEV, f"mode={op.mode:o}{size}")
        except (_Obstructed, NotADirectoryError):
            if not op.optional:
                raise
        if op.target == MASK_SOURCE:
            os.close(os.open(f"{NEW_ROOT}{MASK_SOURCE}/file", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o000))
            os.mkdir(f"{NEW_ROOT}{MASK_SOURCE}/directory", 0o000)
            for kind, mode in (("empty-file", 0o444), ("empty-directory", 0o555)):
                place = f"{NEW_ROOT}{MASK_SOURCE}/{kind}"
                if kind == "empty-file":
                    os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, mode))
                else:
                    os.mkdir(place)
                os.chmod(place, mode)  # whatever our mask is
            # Each its own read-only mount: a clone of it is read-only from the start.  The command's uid owns the
            # masks and could change their modes.
            for kind in ("file", "directory", "empty-file", "empty-directory"):
                fd = os.open(f"{NEW_ROOT}{MASK_SOURCE}/{kind}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                _bind_onto_itself(fd, read_only=True)
    elif isinstance(op, Directory):
        fd = root.place(op.target, "directory")
        try:
            os.chmod(f"/proc/self/fd/{fd}", op.mode)
        finally:
            os.close(fd)
    elif isinstance(op, Symlink):
        os.symlink(op.to, NEW_ROOT + op.target)
    elif isinstance(op, File):
        _file(op, root)
    elif isinstance(op, Layer):
        _layer(op, root)
    elif isinstance(op, Mask):
        _cover(op.target, root)
    elif isinstance(op, Proc):
        try:
            _mount("proc", op.target, root, _PROC)
        except OSError as error:
            raise CannotMountProc(error.errno, error.strerror, error.filename) from None
        if op.freeze_settings:
            _freeze_settings(NEW_ROOT + op.target)
    elif isinstance(op, Devices):
        _devices(op.target, devices, root)
    elif isinstance(op, Pin):
        _bind_onto_itself(root.place(op.target), read_only=False)
    elif isinstance(op, ReadOnly):
        raise InternalError("build the view", f"{op!r} comes before the pivot")


def _bind(op: Bind, tree: int, root: _Root) -> None:
    try:
        if op.target == "/":
            # The host's root covers our tmpfs; NEW_ROOT then names it.
            sc.move_mount(tree, NEW_ROOT)
            root.covered()
            return
        kind: Literal["directory", "file"] = "directory" if stat.S_ISDIR(os.stat(tree).st_mode) else "file"
        try:
            place = root.place(op.target, kind if op.make else "")
            try:
                sc.move_mount(tree, b"", dirfd=place)
            finally:
                os.close(place)
        except OSError as error:
            # What an earlier run left in the home must not end every later run for the sake of a toolchain.
            if not (op.optional and isinstance(error, (_Obstructed, NotADirectoryError))):
                error.filename = op.target
                raise
    finally:
        os.close(tree)


def _bind_made(op: Bind, tree: int, root: _Root) -> None:
    """A node that the supervisor made in a file system of its own (``trees``): of that nothing else is in the view.

    Of a detached mount nothing can be cloned before Linux 6.15, so it is attached for the moment.
    """
    aside = root.place(f"{MASK_SOURCE}/directory")
    try:
        sc.move_mount(tree, b"", dirfd=aside)
        _bind(op, sc.open_tree(os.path.basename(op.source), sc.OPEN_TREE_CLONE, dirfd=tree), root)
        sc.umount(f"{NEW_ROOT}{MASK_SOURCE}/directory", sc.MNT_DETACH)
    finally:
        os.close(aside)
        os.close(tree)


class CannotMountProc(OSError):
    """As where parts of the caller's proc(5) are covered (fs/namespace.c, mount_too_revealing)."""

    step = PROC


def _mount(kind: str, target: str, root: _Root, flags: int, data: str | None = None) -> None:
    """A new file system at ``target``, whose directory is made when it is missing."""
    fd = root.place(target, "directory")
    try:
        sc.mount(kind, f"/proc/self/fd/{fd}", kind, flags, data)
    finally:
        os.close(fd)


class Masks:
    """Covers objects with an inaccessible or an empty file or directory; what it opens for one is kept for the next.

    An empty one can be read (modes 0444 and 0555): programs go on as without the file that it covers.

    By descriptor and not by ``/proc/self/fd``: a helper that enters the namespaces later is in no process list there.
    """

    def __init__(self, root: str = "", *, late: bool = False) -> None:
        """``root``: of the view.  ``late``: commands run in it."""
        self._root = root
        self.late = late
        self._sources: dict[str, tuple[bytes, int]] = {}  # by name: path, descriptor
        self._watch = -1  # inotify(7)
        self.watched: dict[int, int] = {}  # watches: of which call of ``cover_file`` the first read is reported
        self._files = 0  # its calls
        self._directory = False  # what the last one was
        self._parent = ""
        self._parent_fd = -1

    def close(self) -> None:
        for _path, fd in self._sources.values():
            os.close(fd)
        self._sources.clear()
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
            os.chdir("/")
        self._parent, self._parent_fd = "", -1

    def cover(self, fd: int, *, empty: bool = False) -> None:
        """Cover an O_PATH descriptor's object, unless it is this mask already; the descriptor is closed."""
        try:
            # A mask goes with the directory that is renamed, so a name that appears may be one (host.launcher).
            if not (self.late and self._is_covered(fd, empty)):
                self._like_the_last(lambda directory: self._move(fd, directory, empty))
        finally:
            os.close(fd)

    def cover_name(self, path: str, *, empty: bool = False) -> None:
        """Cover ``path``, which was no link when it was looked at, by one system call instead of five.

        No link on the way is followed.  One that has taken the last name's place since then is, as mount(2) does.
        """
        name = self._enter(path)
        try:
            self._like_the_last(lambda directory: sc.mount(self._source(directory, empty)[0], name, None, sc.MS_BIND))
        except (FileNotFoundError, NotADirectoryError):
            self._confirm_sources()  # the callers take that for a name that is gone
            raise

    def cover_file(self, path: str) -> None:
        """Cover ``path``, a file when it was looked at, by an empty one of its own, whose first open is reported."""
        self._files += 1
        if len(self.watched) >= MOST_WATCHED or self.late or not self._can_watch():
            self.cover_name(path, empty=True)
            return
        name = self._enter(path)
        place = sc.openat2(self._parent_fd, name, os.O_PATH, 0, sc.RESOLVE_NO_MAGICLINKS)
        try:
            if stat.S_ISDIR(os.stat(place).st_mode):
                self._like_the_last(lambda directory: self._move(place, directory, True))
                return
            source = f"{self._root}{MASK_SOURCE}/empty-{len(self.watched)}"
            fd = os.open(source, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444)
            os.fchmod(fd, 0o444)  # whatever our mask is
            os.close(fd)
            tree = sc.open_tree(source, sc.OPEN_TREE_CLONE)
            try:
                sc.mount_setattr(tree, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
                sc.move_mount(tree, b"", dirfd=place)
            finally:
                os.close(tree)
        finally:
            os.close(place)
        self.watched[sc.inotify_add_watch(self._watch, os.fsencode(source), _IN_OPEN | _IN_ONESHOT)] = self._files - 1

    def _can_watch(self) -> bool:
        if self._watch < 0:
            try:
                self._watch = sc.inotify_init()
            except OSError:
                return False  # the limit of instances is reached: nothing is reported, which the receipt says
        return True

    def take_watch(self) -> int:
        """The descriptor that reports first reads, once; -1: nothing is watched."""
        fd, self._watch = self._watch, -1
        return fd

    def open_final(self, path: str) -> int:
        """An O_PATH descriptor of ``path``, following only a final link, never one on the way.

        A link is the command's or a repository's, and chooses what is covered.  One to a directory through which later
        mounts find their place is opened itself.  While commands run that may be any directory: a command that is in
        it would go on below the cover, and no mask could follow it there.
        """
        name = self._enter(path)
        fd = sc.openat2(self._parent_fd, name, os.O_PATH, 0, sc.RESOLVE_NO_MAGICLINKS)
        found = os.stat(fd)
        if stat.S_ISDIR(found.st_mode) and (self.late or self._is_on_the_way(found)):
            os.close(fd)
            fd = sc.openat2(self._parent_fd, name, os.O_PATH | os.O_NOFOLLOW, 0, sc.RESOLVE_NO_SYMLINKS)
        return fd

    def _is_on_the_way(self, found: os.stat_result) -> bool:
        """Is it a directory above the masks, or one above the name that was entered last?"""
        for path in (MASK_SOURCE, self._parent):
            while path:
                if os.path.samestat(os.stat(path), found):
                    return True
                path = path.rpartition("/")[0]
        return os.path.samestat(os.stat("/"), found)

    def _confirm_sources(self) -> None:
        """Raise when a mask is not where it was."""
        for path, fd in self._sources.values():
            try:
                same = os.path.samestat(os.stat(path), os.stat(fd))
            except OSError:
                same = False
            if not same:
                raise OSError(errno.EIO, "the mask was covered", os.fsdecode(path))

    def _like_the_last(self, mount: Callable[[bool], None]) -> None:
        """Cover by a directory or a file.

        The kernel covers a directory by a directory only and a file by a file only (fs/namespace.c do_move_mount,
        graft_tree); one is like the one before it, so it is not looked up what it is.
        """
        try:
            mount(self._directory)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTDIR):
                raise
            mount(not self._directory)
            self._directory = not self._directory

    def _is_covered(self, fd: int, empty: bool) -> bool:
        there = os.stat(fd)
        source = os.stat(self._source(stat.S_ISDIR(there.st_mode), empty)[1])
        return (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)

    def _move(self, fd: int, directory: bool, empty: bool) -> None:
        tree = sc.open_tree(b"", sc.OPEN_TREE_CLONE | sc.AT_EMPTY_PATH, dirfd=self._source(directory, empty)[1])
        try:
            sc.move_mount(tree, b"", dirfd=fd)
        finally:
            os.close(tree)

    def _source(self, directory: bool, empty: bool) -> tuple[bytes, int]:
        kind = ("empty-" if empty else "") + ("directory" if directory else "file")
        source = self._sources.get(kind)
        if source is None:
            path = f"{self._root}{MASK_SOURCE}/{kind}"
            try:
                fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError as error:  # the callers take ENOENT for a name that is gone
                raise OSError(errno.EIO, f"no mask: {error.strerror}", error.filename) from None
            source = self._sources[kind] = os.fsencode(path), fd
        return source

    def _enter(self, path: str) -> str:
        """Make the directory above ``path`` the current one; the last name."""
        parent, _, name = path.rpartition("/")
        if self._parent_fd < 0 or parent != self._parent:
            directory = sc.openat2(sc.AT_FDCWD, parent, os.O_PATH | os.O_DIRECTORY, 0, sc.RESOLVE_NO_SYMLINKS)
            os.fchdir(directory)
            if self._parent_fd >= 0:
                os.close(self._parent_fd)
            self._parent, self._parent_fd = parent, directory
        return name


def _layer(op: Layer, root: _Root) -> None:
    place = root.place(op.target)
    try:
        layers.put(op, f"{NEW_ROOT}{MASK_SOURCE}/layer", NEW_ROOT + op.target, place)
    finally:
        os.close(place)


def _file(op: File, root: _Root) -> None:
    path = NEW_ROOT + op.target
    if op.bind:
        path = f"{NEW_ROOT}{MASK_SOURCE}/{op.target.strip('/').replace('/', '-')}"
    else:
        os.close(root.place(op.target.rpartition("/")[0], "directory"))
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, op.mode)
    try:
        write_all(fd, op.content)
    finally:
        os.close(fd)
    if op.bind:
        _bind_file(path, op.target, "", root)


def _bind_file(path: str, target: str, make: Literal["", "file"], root: _Root) -> None:
    """Bind a file of ours over ``target``, read-only."""
    tree = sc.open_tree(path, sc.OPEN_TREE_CLONE)
    try:
        sc.mount_setattr(tree, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
        place = root.place(target, make)
        try:
            sc.move_mount(tree, b"", dirfd=place)
        finally:
            os.close(place)
    finally:
        os.close(tree)


def _listen(op: Listen, root: _Root) -> _socket.socket:
    """A listening socket beside the masks, bound over the target; the command cannot remove it.

    connect(2) asks for the right to write the socket's inode, which a read-only mount does not take away.
    """
    path = f"{NEW_ROOT}{MASK_SOURCE}/socket-{op.number}"
    opened = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    sc.take_no_descriptors(opened)
    opened.bind(path)
    os.chmod(path, 0o666)  # noqa: S103 - for every uid of the sandbox; no other user sees it
    opened.listen(_BACKLOG)
    _bind_file(path, op.target, "file" if op.make else "", root)
    return opened


def _devices(target: str, devices: Iterable[tuple[str, int]], root: _Root) -> None:
    _mount("tmpfs", target, root, sc.MS_NOSUID | sc.MS_NODEV, "mode=0755,size=1m")
    for name, tree in devices:
        place = root.place(f"{target}/{name}", "file")
        sc.move_mount(tree, b"", dirfd=place)
        os.close(place)
        os.close(tree)
    _mount("devpts", f"{target}/pts", root, sc.MS_NOSUID | sc.MS_NOEXEC, _PTS)
    for link, to in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(to, f"{NEW_ROOT}{target}/{link}")


def _seal(path: str) -> None:
    """Remount one of our tmpfs read-only: the command, whose uid owns it, must not change it."""
    sc.mount(None, path, None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV)


def workspace_operation(masks: Masks, kind: str, target: str, content: bytes = b"") -> None:
    """One operation below the workspace, after the pivot: no link on the way is followed.

    ``kind``: Pin, ReadOnly, File, Copy, OwnCopy (which the command can write), Seed, Mask, or MaskName for a Mask whose
    name was no link; Empty and EmptyName are the same with what is empty and can be read, EmptyFile is EmptyName for a
    file whose first read is reported.

    The last name may be a link made by the repository: a masked link hides what it leads to; a read-only link is
    bound onto itself, so that it cannot be replaced, and what it leads to becomes read-only as well
    (``Masks.open_final`` says which links are not followed).

    A File is made beside the masks, which the command cannot write; elsewhere it is bound over ``target``.
    """
    if kind in ("File", "Copy", "OwnCopy"):
        _late_file(target, content, {"File": 0o444, "Copy": 0o400}.get(kind, 0o600), writable=kind == "OwnCopy")
        return
    if kind == "Seed":
        _seed(target, content)
        return
    try:
        if kind == "EmptyFile":
            masks.cover_file(target)
            return
        if kind in ("MaskName", "EmptyName"):
            masks.cover_name(target, empty=kind == "EmptyName")
            return
        if kind in ("Mask", "Empty"):
            fd = masks.open_final(target)
        else:
            # With O_PATH and O_NOFOLLOW a final link is opened itself (openat2(2)).
            fd = sc.openat2(sc.AT_FDCWD, target, os.O_PATH | os.O_NOFOLLOW, 0, sc.RESOLVE_NO_SYMLINKS)
    except (FileNotFoundError, NotADirectoryError):
        return  # gone since the scan, or a dangling link: nothing to bind
    except OSError as error:
        if error.errno == errno.ELOOP and kind in ("Mask", "Empty") and _is_link(target):
            return  # to itself, or in a circle: there is nothing behind it to hide
        raise OSError(error.errno, error.strerror, target) from error
    if kind in ("Mask", "Empty"):
        masks.cover(fd, empty=kind == "Empty")
        return
    link = stat.S_ISLNK(os.stat(fd).st_mode)
    _bind_onto_itself(fd, read_only=kind == "ReadOnly", apart=kind == "Pin" and masks.late)
    if link and kind == "ReadOnly":
        try:
            fd = masks.open_final(target)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno == errno.ELOOP:
                return  # to itself, or in a circle: it leads nowhere, and the link cannot be replaced
            raise
        if stat.S_ISLNK(os.stat(fd).st_mode):
            os.close(fd)  # it leads to where it must not be followed
        else:
            _bind_onto_itself(fd, read_only=True)


def keep(target: str) -> int:
    """A descriptor (O_PATH) of a directory of the workspace that is about to be covered; -1: it is gone.

    It is the directory in the mount below the cover, where no process of the sandbox can go any more.
    """
    try:
        return sc.openat2(sc.AT_FDCWD, target, os.O_PATH | os.O_DIRECTORY, 0, sc.RESOLVE_NO_SYMLINKS)
    except (FileNotFoundError, NotADirectoryError):
        return -1


def freeze(directory: int, name: str) -> None:
    """Bind ``name``, in a directory that ``keep`` gave, onto itself read-only.

    The mount belongs to the name's dentry and to the mount that the directory is in: when a process outside moves the
    file within that mount, the cover moves with it (fs/dcache.c __d_move; fs/namespace.c __lookup_mnt).
    """
    _bind_onto_itself(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), read_only=True)


def _is_link(target: str) -> bool:
    """Is the last name a link, and none on the way?"""
    try:
        fd = sc.openat2(sc.AT_FDCWD, target, os.O_PATH | os.O_NOFOLLOW, 0, sc.RESOLVE_NO_SYMLINKS)
    except OSError:
        return False
    try:
        return stat.S_ISLNK(os.stat(fd).st_mode)
    finally:
        os.close(fd)


def _late_file(target: str, content: bytes, mode: int, *, writable: bool) -> None:
    ours = target.startswith(MASK_SOURCE + "/")
    path = target if ours else f"{MASK_SOURCE}/late-{len(os.listdir(MASK_SOURCE))}"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)
    if path == target:
        return
    try:
        place = sc.openat2(sc.AT_FDCWD, target, os.O_PATH | os.O_NOFOLLOW, 0, sc.RESOLVE_NO_SYMLINKS)
    except (FileNotFoundError, NotADirectoryError):
        return  # not in the view
    try:
        tree = sc.open_tree(path, sc.OPEN_TREE_CLONE)
        try:
            read_only = 0 if writable else sc.MOUNT_ATTR_RDONLY
            sc.mount_setattr(tree, read_only | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
            sc.move_mount(tree, b"", dirfd=place)
        finally:
            os.close(tree)
    finally:
        os.close(place)


def _seed(target: str, content: bytes) -> None:
    """A file in a tmpfs of the plan; in no other file system is anything written."""
    parent, _, name = target.rpartition("/")
    flags = os.O_PATH | os.O_DIRECTORY
    try:
        directory = sc.openat2(sc.AT_FDCWD, parent, flags, 0, sc.RESOLVE_NO_SYMLINKS)
    except OSError:
        return  # an earlier run left something else there
    try:
        if os.stat(directory).st_dev == os.stat("..", dir_fd=directory).st_dev:
            return  # no mount, so not ours
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            write_all(fd, content)
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def _bind_onto_itself(fd: int, *, read_only: bool, apart: bool = False) -> None:
    """Cover an O_PATH descriptor's object with a bind of itself; the descriptor is closed.

    ``apart``: it is no peer of the mount that it covers, and so what is mounted in it comes once, not in both: with
    peers each pin below another would double the number of mounts (mount_namespaces(7)).
    """
    try:
        tree = sc.open_tree(b"", sc.OPEN_TREE_CLONE | sc.AT_EMPTY_PATH | sc.AT_RECURSIVE, dirfd=fd)
        try:
            if apart:
                sc.mount_setattr(tree, 0, recursive=False, propagation=sc.MS_PRIVATE)
            if read_only:
                sc.mount_setattr(tree, sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV)
            sc.move_mount(tree, b"", dirfd=fd)
        finally:
            os.close(tree)
    finally:
        os.close(fd)
