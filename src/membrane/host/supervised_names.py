"""Names of a sandbox without mounts: made, moved and removed by us where a rule of Landlock would allow too much.

Theory of operation
-------------------
A rule of Landlock holds for all below a directory.  So a directory that holds a hidden or read-only name has none for
writing, and for reading only where nothing in it is hidden (``host.inside``): such a directory is *shared*.  What the
command may do there by name, ``Names`` does: the filter asks before open(2), mkdir(2), rename(2) and their like.

* The path is copied once.  Its directory is opened as the process would (O_PATH; links are followed as the kernel does,
  of those of proc(5) only an open directory of its own), and what that is, and not its name, is judged and used: by its
  path now, which no process of the sandbox can change for a shared directory, as each is a name that a shared one
  holds.
* What is opened is opened once (O_PATH, O_NOFOLLOW), judged by its inode, and that descriptor is opened again for the
  process and handed over (SECCOMP_IOCTL_NOTIF_ADDFD).  A hidden file is refused under whatever name it has.  Of a
  masked one a copy is handed over.
* Where Landlock decides alone, beyond shared directories, the call goes on.  Nothing is gained by changing the path
  after that: what is hidden has no rule there either.

The rights of a new name are those of its inode, and rules cannot be added later.  ``Pool`` has inodes ready, with a
rule each, that get a name when one is made; so what is new in a shared directory can be read, executed and, when it is
a directory, written into as natively.  When the pool is empty, new names have no rule: they are opened here, and
programs among them cannot be executed.

/dev/shm is the container's, so semaphores and shared memory of POSIX (sem_open(3), shm_open(3)) are names of a
directory of ours in its place, which Landlock does not let the command reach by itself.

The keeper has the caller's ids and no capability, so it may what the command might; the umask is the caller's.

One file of over 800 lines: a handler for each call that takes a name, which share how names are found and judged.

Sources: Documentation/userspace-api/landlock.rst, seccomp_unotify(2), openat2(2), security/landlock/fs.c.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ..policy.reasons import GIT_SETTING, HIDDEN, READ_ONLY
from . import syscalls as sc
from .caller import PATH_MAX, leads_on, own_link, text
from .landlock import WRITE
from .pool import hold, identities, identity
from .supervised_edits import Edits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .notify import Call, Listener
    from .pool import Pool, Shared

    class Report(Protocol):
        """Tells of a refusal: absolute path, reason of the policy, operation, what else is to be said."""

        def __call__(self, path: str, reason: str, operation: str = "write", hint: str = "") -> None: ...

    class Judge(Protocol):
        """Says of a name that would be made why it may not be (``workspace.making``)."""

        def __call__(
            self, path: str, kind: str, target: str = "", source: str = "", *, hard: bool = False, fresh: bool = False
        ) -> str: ...

        def standing(self, path: str, *, directory: bool) -> str:
            """The reason for which something that is there is hidden or read-only; empty: it is neither."""

        def edit(self, path: str, old: bytes, new: bytes) -> str:
            """Why a configuration may not change so; empty: it may."""


MOST_LINKS = 40  # namei.h MAXSYMLINKS
MOST_TRIES = 8  # of an open whose name appears and vanishes meanwhile
NATIVE, OURS, CLOSED = "native", "ours", "closed"
_AT_FDCWD, _AT_REMOVEDIR, _AT_SYMLINK_FOLLOW = 0xFFFFFF9C, 0x200, 0x400
_SEALS = 0xF  # F_SEAL_SEAL, SHRINK, GROW, WRITE (linux/fcntl.h)
_TMPFILE = 0o20000000  # __O_TMPFILE
_NOREPLACE, _EXCHANGE = 1, 2
_MEMORY = b"/dev/shm/"  # of glibc and musl
_TO_US = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
_REPOSITORY = frozenset((b".git", b"git~1"))


class Place:
    """Where a path leads: ``parent`` is an open directory, ``name`` in it, "." for itself."""

    __slots__ = ("name", "parent", "path", "slash", "where")

    def __init__(self, parent: int, name: bytes, *, slash: bool) -> None:
        self.parent, self.name, self.slash = parent, name, slash
        self.where = os.readlink(f"/proc/self/fd/{parent}")
        whole = self.where.rstrip("/") + "/" + os.fsdecode(name)
        self.path = self.where if name == b"." else whole

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.parent)

    def open(self) -> int:
        """An O_PATH descriptor of what is there.

        Raises:
            OSError: nothing is.
        """
        return os.open(self.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.parent)


class Names:
    """The calls by name of one sandbox; each method answers a call as those of ``supervised.Sockets``.

    Args:
        granted: what Landlock was told.
        pool: None: nothing is ready.
        listener: of the command's notifications.
        read: bytes of the caller's memory: call, address, size; fewer where it ends.
        judge: of names that would be made; None: all may be.
        report: is given the path of each name that was refused, the reason, and "read" or "write".
        empty: a directory of ours that is empty.
    """

    def __init__(
        self,
        granted: Shared,
        pool: Pool | None,
        listener: Listener,
        read: Callable[[Call, int, int], bytes],
        judge: Judge | None,
        report: Report,
        empty: str,
    ) -> None:
        self._shared, self._denied = granted.shared, granted.denied
        # What a shared directory held at the start is known by its inode: its name may be another's by now.
        named = {path: rights == WRITE for path, rights in granted.rules}
        self._rules = {path: writes for path, writes in named.items() if os.path.dirname(path) not in self._shared}
        self._pool, self._listener, self._read = pool, listener, read
        self._judge, self._report = judge, report
        self._emptied, self._empty, self._copies = granted.emptied, empty, granted.copies
        self._edits = None if judge is None or not granted.editable else Edits(granted.editable, judge.edit)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._memory = granted.memory
        self._in_memory = os.open(self._memory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if self._memory else -1
        self._granted = set(pool.identities) if pool else set()
        self._granted.update(identities(path for path, writes in named.items() if writes and path not in self._rules))
        # An inode has its rule wherever it is; one of these is refused wherever it is.  Each is held, so that its
        # number does not become another's when it is removed outside.
        self._held = hold((*self._shared, *self._denied))
        self._denied_inodes = {identity(os.fstat(fd)) for fd in self._held}
        self._skipped = tuple(
            os.fsencode(prefix)
            for prefix in ("/usr/", "/lib/", "/lib64/", "/bin/", "/etc/", "/proc/", "/sys/", "/dev/")
            if not any(path.startswith(prefix) for path in (*self._shared, *self._copies))
        )

    # ------------------------------------------------------------ whose it is

    def state(self, path: str) -> str:
        """``NATIVE``: Landlock lets the command write there; ``OURS``: only by us; ``CLOSED``: not at all."""
        child = ""
        while True:
            if path in self._denied:
                return CLOSED
            if path == self._memory:
                return OURS
            if path in self._shared:
                return NATIVE if child and self._is_granted(child) else OURS
            writes = self._rules.get(path)
            if writes is not None:
                return NATIVE if writes else CLOSED
            if path in ("/", ""):
                return CLOSED
            child, path = path, path.rpartition("/")[0] or "/"

    def _is_granted(self, path: str) -> bool:
        try:
            return identity(os.lstat(path)) in self._granted
        except OSError:
            return False

    def may_change(self, path: str, status: os.stat_result) -> bool:
        """May the command change a file that it has opened?"""
        if any(writes and copy == path for copy, writes in self._copies.values()):
            return True
        return self.state(path) is not CLOSED and not (
            path not in self._shared and identity(status) in self._denied_inodes
        )

    def may_switch(self, path: str, status: os.stat_result, mode: int) -> bool:
        """May the command give a file, which it may not change, this mode?"""
        return self._edits is not None and self._edits.switches(path, status, mode)

    def stands_for(self, path: str) -> str:
        """The copy that the command has of a file and can write; empty: there is none."""
        copy, writes = self._copies.get(path, ("", False))
        return copy if writes else ""

    def _is_memory(self, path: str) -> bool:
        return bool(self._memory) and f"{path}/".startswith(f"{self._memory}/")

    def _hides(self, path: str) -> bool:
        """Is what is new there unreadable without a rule of its own?"""
        while path not in self._shared:
            if path in ("/", ""):
                return False
            path = path.rpartition("/")[0] or "/"
        return not self._shared[path]

    def _keep(self, path: str, *, directory: bool = False) -> None:
        """Raises PermissionError: a name is not to be changed; OSError: EBUSY, as where a file is bound over it:
        programs go on by writing in place.
        """
        if self.stands_for(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if path in self._denied or path in self._shared:
            raise self._refuse(path)
        if why := self._standing(path, directory):
            raise self._refuse(path, why)

    def _standing(self, path: str, directory: bool) -> str:
        """Why something is closed that was made outside since the start."""
        return "" if self._judge is None else self._judge.standing(path, directory=directory)

    def _refuse(self, path: str, reason: str = "") -> OSError:
        self._report(path, reason or self._denied.get(path) or READ_ONLY)
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _object(
        self,
        place: Place,
        kind: str,
        *,
        target: bytes = b"",
        source: str = "",
        hard: bool = False,
        fresh: bool = False,
    ) -> None:
        """Raises PermissionError: no such name may be made."""
        if self._judge is None:
            return
        why = self._judge(place.path, kind, os.fsdecode(target), source, hard=hard, fresh=fresh)
        if why:
            raise self._refuse(place.path, why)

    # ------------------------------------------------------------ where it is

    def _place(self, call: Call, directory: int, at: int, *, follow: bool, makes: bool = False) -> Place | None:
        """Where a path leads; None: it leads nowhere, or to what a link of proc(5) means: Landlock decides.

        ``makes``: a name may be made there, which is judged in free directories too: no other way may lead to one.

        Raises:
            OSError: with ``makes``, it leads nowhere, or a link of proc(5) is on the way.
        """
        return self._place_of(call, directory, text(self._read, call, at, PATH_MAX), follow, makes)

    def _place_of(self, call: Call, directory: int, path: bytes, follow: bool, makes: bool) -> Place | None:
        memory = path.startswith(_MEMORY) and self._in_memory >= 0 and b"/.." not in path
        if not path or (path.startswith(self._skipped) and not memory and not (makes and leads_on(path))):
            return None
        fds: list[int] = []
        try:
            link, rest = own_link(path)
            if memory:
                base, path = self._in_memory, path[len(_MEMORY) :].lstrip(b"/")
            elif path.startswith(b"/") and not link:
                base = self._root
            else:
                directory &= 0xFFFFFFFF
                name = link or ("cwd" if directory == _AT_FDCWD else f"fd/{directory & 0x7FFFFFFF}")
                try:
                    base = os.open(f"/proc/{call[1]}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
                fds.append(base)
                if not self._listener.valid(call[0]):
                    return None
            place = self._walk(base, rest if link else path, follow, fds)
            if place is not None:
                fds.remove(place.parent)
            return place
        except OSError:
            if makes:  # what is missing for us may be there for the process: /proc/self
                raise
            return None
        finally:
            for fd in fds:
                os.close(fd)

    def _walk(self, base: int, path: bytes, follow: bool, fds: list[int]) -> Place | None:
        flags = os.O_PATH | os.O_DIRECTORY
        for _link in range(MOST_LINKS):
            plain = path.rstrip(b"/")
            head, _, name = plain.rpartition(b"/")
            slash = plain != path
            if path.startswith(b"/"):
                base, head = self._root, head or b"/"
            if name in (b"", b".", b".."):
                parent = sc.openat2(base, path, flags, resolve=sc.RESOLVE_NO_MAGICLINKS)
                fds.append(parent)
                return Place(parent, b".", slash=False)
            parent = sc.openat2(base, head or b".", flags, resolve=sc.RESOLVE_NO_MAGICLINKS)
            fds.append(parent)
            if follow:
                try:
                    path = os.readlink(name, dir_fd=parent) + (b"/" if slash else b"")
                except OSError:
                    return Place(parent, name, slash=slash)
                if os.readlink(f"/proc/self/fd/{parent}").startswith("/proc/"):
                    return None  # it says a path, and is none; what it means is there
                base = parent
                continue
            return Place(parent, name, slash=slash)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    # ------------------------------------------------------------ opening

    def on_openat(self, call: Call) -> int | None:
        return self._open(call, call[3], call[4], call[5], call[6])

    def on_open(self, call: Call) -> int | None:
        return self._open(call, _AT_FDCWD, call[3], call[4], call[5])

    def on_creat(self, call: Call) -> int | None:
        return self._open(call, _AT_FDCWD, call[3], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, call[4])

    def _open(self, call: Call, directory: int, at: int, flags: int, mode: int) -> int | None:
        flags &= 0xFFFFFFFF
        if flags & os.O_PATH:
            return None
        exclusive = bool(flags & os.O_CREAT and flags & os.O_EXCL)
        makes = bool(flags & os.O_CREAT)
        place = self._place(call, directory, at, follow=not (exclusive or flags & os.O_NOFOLLOW), makes=makes)
        if place is None:
            return None
        with place:
            state = self.state(place.path)
            if state is not OURS:
                if state is NATIVE and flags & os.O_CREAT and not os.path.lexists(place.path):
                    self._object(place, "file", fresh=_is_fresh(flags))
                reading = flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) == os.O_RDONLY
                copy, writes = self._copies.get(place.path, ("", False))
                if copy and (reading or writes):
                    return self._inject(call, self._copy(copy, place, flags), flags)
                put = self._edits.shown(place) if reading and self._edits is not None else -1
                if put >= 0 and self._hides(place.where):  # it has no rule
                    return self._inject(call, _again(put, flags), flags)
                if reading and self._denied.get(place.path) == HIDDEN:
                    self._report(place.path, HIDDEN, "read")
                    if place.path in self._emptied:
                        return self._inject(call, self._nothing(place, flags), flags)
                return None
            if flags & _TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))  # programs go on with a name
            for _try in range(MOST_TRIES):
                try:
                    found = place.open()
                except FileNotFoundError:
                    if not flags & os.O_CREAT:
                        raise
                    if place.slash:
                        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
                else:
                    try:
                        if exclusive:
                            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                        return self._hand_over(call, place, found, flags)
                    finally:
                        os.close(found)
                try:
                    made = self._create(call, place, flags, mode)
                except FileExistsError:
                    continue
                if self._edits is not None:
                    self._edits.made(place.path, made)
                return self._inject(call, made, flags)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _copy(self, copy: str, place: Place, flags: int) -> int:
        """What the command has in the place of a file."""
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if flags & os.O_DIRECTORY or place.slash:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return os.open(copy, flags & ~_TO_US | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _nothing(self, place: Place, flags: int) -> int:
        """Something that is empty and can only be read, in the place of what is shown so."""
        if os.path.isdir(place.path):
            return os.open(self._empty, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if flags & os.O_DIRECTORY or place.slash:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        made = os.memfd_create("empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(made, 0o444)
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, _SEALS)  # it could be opened again for writing
            return os.open(f"/proc/self/fd/{made}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(made)

    def _hand_over(self, call: Call, place: Place, found: int, flags: int) -> int | None:
        writes = flags & os.O_ACCMODE != os.O_RDONLY or bool(flags & os.O_TRUNC)
        status = self._judged(place, found, writes=writes)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if identity(status) in self._granted:
            return None  # it has a rule
        if kind == stat.S_IFDIR and (flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_CREAT):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind != stat.S_IFDIR and (place.slash or flags & os.O_DIRECTORY):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            return None  # to open it may take for ever, so not here
        return self._inject(call, _again(found, flags), flags)

    def _judged(self, place: Place, found: int, *, writes: bool) -> os.stat_result:
        """The status of what is open.

        Raises:
            PermissionError: it is hidden or read-only, or somewhere else by now.
        """
        status, path = os.fstat(found), os.readlink(f"/proc/self/fd/{found}")
        directory = path in self._shared and path == place.path
        if self.state(path) is not OURS and identity(status) not in self._granted:
            raise self._refuse(place.path)
        if not directory and (identity(status) in self._denied_inodes or self._is_others_lock(place, status)):
            raise self._refuse(place.path)
        why = self._standing(path, stat.S_ISDIR(status.st_mode))
        if why and (writes or why != READ_ONLY):
            raise self._refuse(place.path, why)
        return status

    def _inject(self, call: Call, fd: int, flags: int) -> int:
        if not flags & os.O_NONBLOCK:
            os.set_blocking(fd, True)  # a lease of the command's own on it is no reason to wait for us
        self._listener.give(call[0], fd, close_on_exec=bool(flags & os.O_CLOEXEC))
        return -1  # answered

    def _create(self, call: Call, place: Place, flags: int, mode: int) -> int:
        """Make a regular file; it is open as the caller wants it.

        Raises:
            FileExistsError: something has the name by now.
        """
        self._object(place, "file", fresh=_is_fresh(flags))
        mode &= 0o1777 & ~self._umask(call)
        plain = flags & ~_TO_US | os.O_NONBLOCK
        opened: list[int] = []
        try:
            if self._from_pool("f", place, mode, lambda path: opened.append(os.open(path, plain))):
                return opened.pop()
        finally:
            for fd in opened:
                os.close(fd)
        old = os.umask(0)
        try:
            return os.open(place.name, plain | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=place.parent)
        finally:
            os.umask(old)

    def _from_pool(
        self, kind: str, place: Place, mode: int, before: Callable[[str], object] = lambda _path: None
    ) -> bool:
        """Give an inode of the pool the name; false: there is none, or it is to be made as always.

        ``before``: is given a path that leads to it, before its mode is set.

        Raises:
            FileExistsError: something has the name by now.
        """
        pool = self._pool
        if pool is None or (kind == "f" and not self._hides(place.where)):
            return False
        if kind == "f" and "/.git/" in f"{place.where}/":
            return False  # git's own files come and go with each command, and nobody executes one
        if place.name in _REPOSITORY:
            return False  # what is made in it is judged here
        if os.fstat(place.parent).st_mode & stat.S_ISGID:
            return False  # what is made there gets its group (inode(7))
        name, found = pool.take(kind)
        if not name:
            return False
        path = f"/proc/self/fd/{found}"
        try:
            before(path)
            os.chmod(path, mode)
            os.utime(path)
            sc.rename_new(pool.fd, name, place.parent, os.fsdecode(place.name))
        except OSError as error:
            pool.give(kind, name)
            if error.errno not in (errno.EXDEV, errno.EINVAL):
                raise
            return False
        finally:
            os.close(found)
        return True

    def _umask(self, call: Call) -> int:
        with open(f"/proc/{call[1]}/status", "rb") as file:
            return int(file.read(4096).partition(b"\nUmask:")[2].split(None, 1)[0], 8)

    def on_truncate(self, call: Call) -> int | None:
        place = self._place(call, _AT_FDCWD, call[3], follow=True)
        if place is None:
            return None
        with place:
            if self.state(place.path) is not OURS:
                return None
            found = place.open()
            try:
                status = self._judged(place, found, writes=True)
                if identity(status) in self._granted or not stat.S_ISREG(status.st_mode):
                    return None
                length = call[4]
                if length >= 1 << 63:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                fd = os.open(f"/proc/self/fd/{found}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.ftruncate(fd, length)
                finally:
                    os.close(fd)
            finally:
                os.close(found)
        return 0

    # ------------------------------------------------------------ making

    def _new(self, call: Call, directory: int, at: int, kind: str, target: bytes = b"") -> Place | None:
        """Where a name is to be made by us; None: the call goes on.

        Raises:
            PermissionError: no such name may be made.
        """
        place = self._place(call, directory, at, follow=False, makes=True)
        if place is None:
            return None
        try:
            state = CLOSED if place.name == b"." else self.state(place.where)
            if state is not CLOSED and not os.path.lexists(place.path):
                self._object(place, kind, target=target)
            if state is OURS and place.slash and kind != "directory":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except BaseException:
            os.close(place.parent)
            raise
        if state is OURS:
            return place
        os.close(place.parent)
        return None

    def on_mkdir(self, call: Call) -> int | None:
        return self._mkdir(call, _AT_FDCWD, call[3], call[4])

    def on_mkdirat(self, call: Call) -> int | None:
        return self._mkdir(call, call[3], call[4], call[5])

    def _mkdir(self, call: Call, directory: int, at: int, mode: int) -> int | None:
        place = self._new(call, directory, at, "directory")
        if place is None:
            return None
        with place:
            mode &= 0o1777 & ~self._umask(call)
            if not self._from_pool("d", place, mode):
                old = os.umask(0)
                try:
                    os.mkdir(place.name, mode, dir_fd=place.parent)
                finally:
                    os.umask(old)
        return 0

    def on_mknod(self, call: Call) -> int | None:
        return self._mknod(call, _AT_FDCWD, call[3], call[4])

    def on_mknodat(self, call: Call) -> int | None:
        return self._mknod(call, call[3], call[4], call[5])

    def _mknod(self, call: Call, directory: int, at: int, mode: int) -> int | None:
        kind = stat.S_IFMT(mode & 0xFFFFFFFF) or stat.S_IFREG
        if kind not in (stat.S_IFREG, stat.S_IFIFO):
            return None  # no devices; a socket is made by bind(2)
        place = self._new(call, directory, at, "fifo" if kind == stat.S_IFIFO else "file")
        if place is None:
            return None
        with place:
            if kind == stat.S_IFREG:
                os.close(self._create(call, place, os.O_WRONLY, mode))
            elif not self._from_pool("p", place, mode & 0o777 & ~self._umask(call)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # nobody could open it
        return 0

    def on_symlink(self, call: Call) -> int | None:
        return self._symlink(call, call[3], _AT_FDCWD, call[4])

    def on_symlinkat(self, call: Call) -> int | None:
        return self._symlink(call, call[3], call[4], call[5])

    def _symlink(self, call: Call, target_at: int, directory: int, at: int) -> int | None:
        target = text(self._read, call, target_at, PATH_MAX)
        place = self._new(call, directory, at, "symlink", target)
        if place is None:
            return None
        with place:
            os.symlink(target, place.name, dir_fd=place.parent)
        return 0

    def bind(self, call: Call, path: bytes, bind: Callable[[bytes], None]) -> bool:
        """Have ``bind`` make a unix socket, by a name in the working directory; false: not ours, the call goes on.

        Raises:
            OSError: no such name may be made, or ``bind`` failed.
        """
        place = self._place_of(call, _AT_FDCWD, path, False, True)
        if place is None:
            return False
        with place:
            state = CLOSED if place.name == b"." else self.state(place.where)
            if state is not CLOSED and not os.path.lexists(place.path):
                self._object(place, "socket")
            if state is not OURS or place.slash:
                return False
            mask = self._umask(call)
            here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            old = os.umask(mask)
            try:
                os.fchdir(place.parent)  # a name alone is short enough (unix(7), sun_path)
                bind(place.name)
            finally:
                os.umask(old)
                os.fchdir(here)
                os.close(here)
        return True

    # ------------------------------------------------------------ removing

    def on_unlink(self, call: Call) -> int | None:
        return self._remove(call, _AT_FDCWD, call[3], directories=False)

    def on_rmdir(self, call: Call) -> int | None:
        return self._remove(call, _AT_FDCWD, call[3], directories=True)

    def on_unlinkat(self, call: Call) -> int | None:
        return self._remove(call, call[3], call[4], directories=bool(call[5] & _AT_REMOVEDIR))

    def _remove(self, call: Call, directory: int, at: int, *, directories: bool) -> int | None:
        place = self._place(call, directory, at, follow=False)
        if place is None:
            return None
        with place:
            if place.name == b"." or self.state(place.where) is not OURS:
                return None
            self._keep(place.path, directory=directories)
            if directories:
                os.rmdir(place.name, dir_fd=place.parent)
            elif place.slash:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                if self._is_others_lock(place):
                    raise self._refuse(place.path)
                os.unlink(place.name, dir_fd=place.parent)
        return 0

    # ------------------------------------------------------------ two names

    def on_link(self, call: Call) -> int | None:
        return self._link(call, (_AT_FDCWD, call[3], _AT_FDCWD, call[4]), 0)

    def on_linkat(self, call: Call) -> int | None:
        return self._link(call, (call[3], call[4], call[5], call[6]), call[7])

    def _link(self, call: Call, where: tuple[int, int, int, int], flags: int) -> int | None:
        source = self._place(call, where[0], where[1], follow=bool(flags & _AT_SYMLINK_FOLLOW), makes=True)
        if source is None:
            return None
        with source:
            target = self._place(call, where[2], where[3], follow=False, makes=True)
            if target is None:
                return None
            with target:
                return self._link_places(source, target)

    def _link_places(self, source: Place, target: Place) -> int | None:
        states = self.state(source.where), self.state(target.where)
        if CLOSED in states or b"." in (source.name, target.name):
            return None
        found = source.open()
        try:
            status = os.fstat(found)
            self._keep(source.path)
            if identity(status) in self._denied_inodes or self._takes_lock(source, target):
                raise self._refuse(source.path)
            if not os.path.lexists(target.path):
                self._object(target, "file", source=source.path, hard=True)
            if OURS not in states:
                return None
            if stat.S_ISDIR(status.st_mode):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            self._bring(source, target, status)
            os.link(f"/proc/self/fd/{found}", target.name, dst_dir_fd=target.parent, follow_symlinks=True)
        finally:
            os.close(found)
        return 0

    def _bring(self, source: Place, target: Place, status: os.stat_result) -> None:
        """May an inode get a name where it has no right by the directory any more?

        Raises:
            OSError: EXDEV, which programs answer by a copy: it could not be executed there, or is as on another mount.
        """
        if self._is_memory(source.where) is not self._is_memory(target.where):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))  # as of a file system of its own
        comes = self.state(source.where) is NATIVE and self.state(target.where) is OURS
        if not comes or identity(status) in self._granted or not self._hides(target.where):
            return
        plain = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o111
        if not plain and not stat.S_ISLNK(status.st_mode):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def on_rename(self, call: Call) -> int | None:
        return self._rename(call, (_AT_FDCWD, call[3], _AT_FDCWD, call[4]), 0)

    def on_renameat(self, call: Call) -> int | None:
        return self._rename(call, (call[3], call[4], call[5], call[6]), 0)

    def on_renameat2(self, call: Call) -> int | None:
        return self._rename(call, (call[3], call[4], call[5], call[6]), call[7] & 0xFFFFFFFF)

    def _rename(self, call: Call, where: tuple[int, int, int, int], flags: int) -> int | None:
        source = self._place(call, where[0], where[1], follow=False, makes=True)
        if source is None:
            return None
        with source:
            target = self._place(call, where[2], where[3], follow=False, makes=True)
            if target is None:
                return None
            with target:
                return self._rename_places(source, target, flags)

    def _rename_places(self, source: Place, target: Place, flags: int) -> int | None:
        states = self.state(source.where), self.state(target.where)
        if CLOSED in states or b"." in (source.name, target.name):
            return None
        if flags & ~(_NOREPLACE | _EXCHANGE) or flags == _NOREPLACE | _EXCHANGE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self._edits is not None and self._edits.takes(source, target, flags):
            if self._is_others_lock(source):
                raise self._refuse(source.path)
            return self._edit(self._edits, source, target)
        if self._takes_lock(source, target):
            raise self._refuse(target.path)
        for place in (target, source):
            self._keep(place.path, directory=os.path.isdir(place.path))
        status = self._movable(source)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "file")
        self._object(target, kind, source=source.path, target=_target(source, kind))
        other = self._movable(target) if flags & _EXCHANGE else None
        if other is not None:
            kind = _KINDS.get(stat.S_IFMT(other.st_mode), "file")
            self._object(source, kind, source=target.path, target=_target(target, kind))
        if OURS not in states:
            return None
        self._bring(source, target, status)
        if other is not None:
            self._bring(target, source, other)
        names = [place.name + (b"/" if place.slash else b"") for place in (source, target)]
        if flags:
            change = sc.exchange if flags & _EXCHANGE else sc.rename_new
            change(source.parent, os.fsdecode(names[0]), target.parent, os.fsdecode(names[1]))
        else:
            os.rename(names[0], names[1], src_dir_fd=source.parent, dst_dir_fd=target.parent)
        return 0

    def _is_others_lock(self, place: Place, status: os.stat_result | None = None) -> bool:
        if self._edits is None or not self._edits.is_lock(place.path):
            return False
        status = status or os.stat(place.name, dir_fd=place.parent, follow_symlinks=False)
        return self._edits.is_others(place.path, status)

    def _takes_lock(self, source: Place, target: Place) -> bool:
        """Would a lock of git's configuration get another name, or something else that of one?"""
        return self._edits is not None and (self._edits.is_lock(source.path) or self._edits.is_lock(target.path))

    def _edit(self, edits: Edits, source: Place, target: Place) -> int:
        """Make git's change of a configuration; the new file is refused as the old one was, wherever it is."""
        last = edits.put.get(target.path)
        before = None if last is None else identity(os.fstat(last))
        self._movable(source)
        if why := edits.carry(source, target):
            self._report(target.path, GIT_SETTING, hint=why)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if before is not None:
            self._denied_inodes.discard(before)
        self._denied_inodes.add(identity(os.fstat(edits.put[target.path])))
        return 0

    def _movable(self, place: Place) -> os.stat_result:
        status = os.stat(place.name, dir_fd=place.parent, follow_symlinks=False)
        if identity(status) in self._denied_inodes:
            raise self._refuse(place.path)
        return status


def _again(found: int, flags: int) -> int:
    """What an O_PATH descriptor is of, opened as a caller wants it."""
    return os.open(f"/proc/self/fd/{found}", flags & ~_TO_US | os.O_NONBLOCK)


def _is_fresh(flags: int) -> bool:
    """Is it opened as git makes a file of the work tree (entry.c, ``create_file``)?"""
    wanted = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return flags & (os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC) == wanted


def _target(place: Place, kind: str) -> bytes:
    return os.readlink(place.name, dir_fd=place.parent) if kind == "symlink" else b""
