"""Raw system calls, one wrapper each.

Theory of operation
-------------------
Only the package ``membrane.host`` imports ctypes.  Each function is one system call with the kernel's names and
constants; it raises ``OSError`` with the call and its object in the text, and never interprets the result.
``PyDLL`` keeps the interpreter lock during the call: these calls do not block (but for ``syncfs``, which gives it
back), and ``clone`` must return in the child with the lock held.  A machine that has no column in ``numbers`` is
refused at import, because a wrong number would be another system call.
"""

from __future__ import annotations

import errno
import os
import struct

from . import ffi as ctypes
from .numbers import COLUMNS, NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Final

MACHINE: Final = os.uname().machine
_libc = ctypes.PyDLL()
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_mount = _libc.mount
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)

if MACHINE not in COLUMNS:
    raise ImportError(f"membrane has no system call numbers for {MACHINE}")
_NR = {name: row[COLUMNS[MACHINE]] for name, row in NUMBERS.items()}
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2 = _NR["open_tree"], _NR["move_mount"], _NR["openat2"]
_RENAMEAT2 = _NR["renameat2"]

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_SLAVE, MS_SHARED = 4096, 8192, 16384, 1 << 18, 1 << 19, 1 << 20
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE, AT_SYMLINK_NOFOLLOW = 0x1000, 0x8000, 0x100
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_SYMLINKS, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x10, 0x40
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 1, 1, 6  # <linux/mount.h>
MOUNT_ATTR_IDMAP = 0x00100000

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x02, 0x04
RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x08, 0x10

_SOL_SOCKET, _SO_PASSRIGHTS = 1, 83  # asm-generic/socket.h

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


def _check(result: int, call: str, target: object = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        shown = os.fsdecode(target) if isinstance(target, bytes) else str(target)
        raise OSError(number, f"{call}: {os.strerror(number)}", shown)
    return result


def _bytes(path: str | bytes | None) -> bytes | None:
    return path if path is None or isinstance(path, bytes) else os.fsencode(path)


# ---------------------------------------------------------------- processes and namespaces


def clone(flags: int) -> int:
    """clone(2) as fork(2) with namespace flags: 0 in the child.  Only for single-threaded processes."""
    sigchld = 17
    return _check(_syscall(_NR["clone"], ctypes.c_ulong(flags | sigchld), 0, 0, 0, 0), "clone")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare", hex(flags))


def setns(fd: int, kind: int) -> None:
    """setns(2)."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns", hex(kind))


def set_file_ids(uid: int, gid: int) -> None:
    """setfsuid(2), setfsgid(2) of this thread: from 0 to another uid the effective capabilities over files go, and come
    back from the permitted ones with 0.

    Raises:
        OSError: an id is not mapped, or CAP_SETUID or CAP_SETGID is lacking (EPERM); neither call says so itself.
    """
    for call, number in (("setfsgid", gid), ("setfsuid", uid)):
        function = getattr(_libc, call)
        function(ctypes.c_uint(number))
        if function(ctypes.c_uint(0xFFFFFFFF)) != number:  # which changes nothing
            raise OSError(1, "Operation not permitted", call)


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """prctl(2) with integer arguments."""
    return _check(_prctl(option, a, b, c, d), "prctl", option)


def set_parent_death_signal(number: int) -> None:
    """PR_SET_PDEATHSIG; cleared by the kernel when credentials change, so set it last."""
    prctl(PR_SET_PDEATHSIG, number)


def set_name(name: bytes) -> None:
    """PR_SET_NAME: what ps(1) and pkill(1) know this thread by, at most 15 bytes."""
    text = ctypes.create_string_buffer(name, 16)  # TASK_COMM_LEN
    prctl(PR_SET_NAME, ctypes.addressof(text))


def set_dumpable(dumpable: bool) -> None:
    """PR_SET_DUMPABLE: 0 hides /proc/PID/{mem,environ,fd} and forbids ptrace(2) by equals."""
    prctl(PR_SET_DUMPABLE, int(dumpable))


def no_new_privs() -> None:
    """PR_SET_NO_NEW_PRIVS."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(keep: int = 0, *, bounding: bool = True) -> None:
    """Empty the ambient, bounding and inheritable sets, and the permitted and effective ones but for the mask ``keep``.

    Capabilities that are kept must be held (capabilities(7)); only numbers below 32.  ``bounding``: false where that
    set is empty already.
    """
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    if bounding:
        drop_bounding_set()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    _check(_syscall(_NR["capset"], header, (ctypes.c_uint32 * 6)(keep, keep)), "capset")


def drop_bounding_set(keep: int = 0) -> None:
    """Empty the bounding set but for the mask ``keep`` (PR_CAPBSET_DROP)."""
    capability, result = 0, 0
    while keep >> capability & 1 or (result := _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)) == 0:
        capability += 1
    # EINVAL: past the kernel's last capability.  EPERM, at the first: without CAP_SETPCAP the set cannot grow either.
    if ctypes.get_errno() != 22 and (capability or ctypes.get_errno() != 1):
        _check(result, "prctl", f"PR_CAPBSET_DROP {capability}")


def close_range(first: int, last: int = 0xFFFFFFFF) -> None:
    """close_range(2) without flags."""
    u = ctypes.c_uint
    _check(_syscall(_NR["close_range"], u(first), u(last), 0), "close_range")


def erase_environment(title: bytes = b"membrane") -> None:
    """Zero the initial environment and arguments, which /proc/PID/environ and cmdline show (proc(5), stat 48 to 51).

    The arguments are readable by every process that sees this one, dumpable or not, and name hosts, paths and proxy
    passwords of the caller; the program's name stays, as ``title`` says it.
    """
    for name in os.environ:  # not clear(): it makes a list of the names for each of them
        del os.environ[name]
    fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    finally:
        os.close(fd)
    arguments, arguments_end, start, end = (int(field) for field in fields[45:49])
    if 0 < start < end:
        _libc.memset(ctypes.c_void_p(start), 0, ctypes.c_size_t(end - start))
    if 0 < arguments < arguments_end:
        _libc.memset(ctypes.c_void_p(arguments), 0, ctypes.c_size_t(arguments_end - arguments))
        title = title[: arguments_end - arguments - 1]
        _libc.memcpy(ctypes.c_void_p(arguments), title, ctypes.c_size_t(len(title)))


# ---------------------------------------------------------------- mounts


def mount(
    source: str | bytes | None, target: str | bytes, fstype: str | None, flags: int, data: str | None = None
) -> None:
    """mount(2)."""
    if _mount(_bytes(source), _bytes(target), _bytes(fstype), flags, None if data is None else data.encode()) < 0:
        _check(-1, f"mount {fstype or 'bind'}", target)


def umount(target: str | bytes, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(_bytes(target), ctypes.c_int(flags)), "umount2", target)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2); with "." for both, the old root is stacked on the new one."""
    _check(_syscall(_NR["pivot_root"], _bytes(new_root), _bytes(put_old)), "pivot_root", new_root)


def new_tmpfs(mode: int) -> int:
    """A detached tmpfs (fsopen(2), fsmount(2)), nosuid and noexec; device nodes in it can be opened."""
    context = _check(_syscall(_NR["fsopen"], b"tmpfs", ctypes.c_uint(_FSOPEN_CLOEXEC)), "fsopen", "tmpfs")
    try:
        option = f"{mode:o}".encode("ascii")
        _check(_syscall(_NR["fsconfig"], context, _FSCONFIG_SET_STRING, b"mode", option, 0), "fsconfig", "mode")
        _check(_syscall(_NR["fsconfig"], context, _FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig", "tmpfs")
        flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC
        return _check(_syscall(_NR["fsmount"], context, _FSMOUNT_CLOEXEC, ctypes.c_uint(flags)), "fsmount", "tmpfs")
    finally:
        os.close(context)


def open_tree(path: str | bytes, flags: int, dirfd: int = AT_FDCWD) -> int:
    """open_tree(2); O_CLOEXEC is always set."""
    # Small numbers are C ints for ctypes, which libffi widens: wrapping them would cost as much as the call.
    return _check(_syscall(_OPEN_TREE, dirfd, _bytes(path), flags | os.O_CLOEXEC), "open_tree", path)


def mount_setattr(
    fd: int, set_flags: int, *, recursive: bool = True, clear: int = 0, propagation: int = 0, userns_fd: int = 0
) -> None:
    """mount_setattr(2) on an open tree; ``propagation``: MS_PRIVATE and its like."""
    attributes = struct.pack("=4Q", set_flags, clear, propagation, userns_fd)  # struct mount_attr
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    value = _syscall(_NR["mount_setattr"], ctypes.c_int(fd), b"", ctypes.c_uint(flags), attributes, len(attributes))
    _check(value, "mount_setattr", fd)


def move_mount(fd: int, target: str | bytes, *, dirfd: int = AT_FDCWD, follow: bool = False) -> None:
    """move_mount(2) of an open tree onto ``target``; without ``follow`` a final symlink itself is covered."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (MOVE_MOUNT_T_SYMLINKS if follow else 0)
    if not target:
        flags |= MOVE_MOUNT_T_EMPTY_PATH
    _check(_syscall(_MOVE_MOUNT, fd, b"", dirfd, _bytes(target), flags), "move_mount", target)


_MOST_TRIES = 256
_hows: dict[tuple[int, int, int], bytes] = {}  # a handful: the arguments are ours, never a file's


def openat2(dirfd: int, path: str | bytes, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """openat2(2); O_CLOEXEC is always set.

    Below a directory that is not to be left the kernel does not follow ".." (of a link as well) while anything is
    renamed or mounted, anywhere: EAGAIN, to be tried again.  Who renames without an end gets that error in the end.
    """
    key = flags, mode, resolve
    how = _hows.get(key)
    if how is None:
        how = _hows[key] = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, resolve)  # struct open_how
    name, value = _bytes(path), -1
    for _try in range(_MOST_TRIES if resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT) else 1):
        value = _syscall(_OPENAT2, dirfd, name, how, 24)
        if value >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return _check(value, "openat2", path)


def syncfs(fd: int) -> None:
    """syncfs(2): all that was written to the file system of ``fd`` is on the disk.  Other threads run meanwhile.

    Raises:
        OSError: some of it could not be written since ``fd`` was opened (EIO, ENOSPC, EDQUOT); sync(2) says nothing.
    """
    _check(_libc.long("syncfs")(ctypes.c_int(fd)), "syncfs")


def write_back(fd: int) -> None:
    """As ``syncfs``, as a beginning: what could not be written is said by a later ``syncfs`` of another descriptor that
    was open before (struct file, ``f_sb_err``).
    """
    _libc.long("syncfs")(ctypes.c_int(fd))


def born(path: str) -> int:
    """When what is at a path, not followed, was made, in ns since the epoch (statx(2), ``stx_btime``, which nobody can
    set); 0: the file system does not say.

    Raises:
        OSError: it cannot be looked at.
    """
    found = ctypes.create_string_buffer(b"", 256)
    words = (ctypes.c_int(AT_FDCWD), _bytes(path), ctypes.c_int(_AT_SYMLINK_NOFOLLOW), ctypes.c_uint(_STATX_BTIME))
    _check(_libc.long("statx")(*words, found), "statx", path)
    if not struct.unpack_from("=I", found)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = struct.unpack_from("=qI", found, 80)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800

_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def rename_new(directory: int, name: str, other_directory: int, other_name: str) -> None:
    """renameat2(2) RENAME_NOREPLACE: give a file another name, which nothing has yet.

    Raises:
        FileExistsError: something has it.
        OSError: EINVAL where the file system cannot do that; EXDEV between two mounts.
    """
    result = _syscall(_RENAMEAT2, directory, _bytes(name), other_directory, _bytes(other_name), _RENAME_NOREPLACE)
    _check(result, "renameat2", name)


def one_mount(one: int, other: int) -> bool:
    """Does rename(2) lead from one directory to another?  Asked with names that cannot be moved, so nothing is."""
    try:
        rename_new(one, ".", other, ".")
    except OSError as error:
        return error.errno != errno.EXDEV
    return True


def exchange(directory: int, name: str, other_directory: int, other_name: str) -> None:
    """renameat2(2) RENAME_EXCHANGE: two names of one mount change places in one step.

    Raises:
        OSError: EINVAL where the file system cannot do that; EXDEV between two mounts.
    """
    result = _syscall(_RENAMEAT2, directory, _bytes(name), other_directory, _bytes(other_name), _RENAME_EXCHANGE)
    _check(result, "renameat2", name)


def utimensat(path: str, times: bytes | None) -> None:
    """utimensat(2); ``times``: two struct timespec as they are in memory, None for now."""
    _check(_libc.utimensat(AT_FDCWD, _bytes(path), times, 0), "utimensat", path)


# ---------------------------------------------------------------- inotify

IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE = 0x8, 0x80, 0x100
IN_Q_OVERFLOW, IN_IGNORED = 0x4000, 0x8000
IN_ONLYDIR, IN_EXCL_UNLINK, IN_ISDIR = 0x01000000, 0x04000000, 0x40000000


def inotify_init() -> int:
    """inotify_init1(2) with IN_NONBLOCK and IN_CLOEXEC."""
    return _check(_libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)), "inotify_init1")


def inotify_add_watch(fd: int, path: bytes, mask: int) -> int:
    """inotify_add_watch(2): the watch descriptor."""
    return _check(_libc.inotify_add_watch(ctypes.c_int(fd), path, ctypes.c_uint32(mask)), "inotify_add_watch", path)


def inotify_rm_watch(fd: int, watch: int) -> None:
    """inotify_rm_watch(2)."""
    _check(_libc.inotify_rm_watch(ctypes.c_int(fd), ctypes.c_int(watch)), "inotify_rm_watch", watch)


# ---------------------------------------------------------------- limits

# asm-generic/resource.h; the module ``resource`` is a file of its own to load
RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA, RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_NOFILE = 0, 1, 2, 4, 6, 7


def limit(kind: int, value: int) -> None:
    """Make ``value`` the soft and the hard limit of this process, or the hard limit it has if that is lower."""
    limits = (ctypes.c_uint64 * 2)()  # struct rlimit: soft, hard
    _check(_libc.prlimit(0, ctypes.c_int(kind), None, limits), "prlimit", kind)
    limits[:] = [min(value, limits[1])] * 2
    _check(_libc.prlimit(0, ctypes.c_int(kind), limits, None), "prlimit", kind)


def soft_limit(kind: int, value: int) -> int:
    """Make ``value`` the soft limit of this process, at most the hard one; what it was."""
    limits = (ctypes.c_uint64 * 2)()
    _check(_libc.prlimit(0, ctypes.c_int(kind), None, limits), "prlimit", kind)
    before = int(limits[0])
    limits[0] = min(value, limits[1])
    _check(_libc.prlimit(0, ctypes.c_int(kind), limits, None), "prlimit", kind)
    return before


def open_files(number: int = 0) -> int:
    """The soft limit of open files of this process; ``number``: the one to set first (getrlimit(2)).

    At most the hard limit, which is kept.
    """
    limits = (ctypes.c_uint64 * 2)()
    _check(_libc.prlimit(0, ctypes.c_int(RLIMIT_NOFILE), None, limits), "prlimit", RLIMIT_NOFILE)
    if number:
        limits[0] = min(number, limits[1])
        _check(_libc.prlimit(0, ctypes.c_int(RLIMIT_NOFILE), limits, None), "prlimit", RLIMIT_NOFILE)
    return min(limits[0], 1 << 20)


# ---------------------------------------------------------------- seccomp and Landlock

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 0x08, 0x20


def seccomp_set_filter(program: bytes, flags: int = 0) -> int:
    """seccomp(2) SECCOMP_SET_MODE_FILTER; ``program`` is an array of struct sock_filter (8 bytes each)."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    value = _syscall(_NR["seccomp"], ctypes.c_uint(SECCOMP_SET_MODE_FILTER), ctypes.c_uint(flags), fprog)
    return _check(value, "seccomp")


def seccomp_listen(program: bytes) -> int:
    """Install a filter that asks; its listener (seccomp_unotify(2)), close-on-exec.

    Raises:
        OSError: EBUSY when a filter of this process has a listener already (a tracer around this one).
    """
    try:
        # Once a call was received only a fatal signal ends it: Go interrupts its threads all the time.
        flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
        return seccomp_set_filter(program, flags)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 5.19
            raise
    return seccomp_set_filter(program, SECCOMP_FILTER_FLAG_NEW_LISTENER)


def landlock_create_ruleset(attributes: bytes | None, flags: int = 0) -> int:
    """landlock_create_ruleset(2); with ``None`` and flag 1 (VERSION) the ABI number."""
    size = len(attributes) if attributes is not None else 0
    value = _syscall(_NR["landlock_create_ruleset"], attributes, ctypes.c_size_t(size), ctypes.c_uint32(flags))
    return _check(value, "landlock_create_ruleset")


def landlock_add_rule(ruleset: int, kind: int, attributes: bytes) -> None:
    """landlock_add_rule(2); ``kind`` 1 is PATH_BENEATH, 2 is NET_PORT."""
    value = _syscall(_NR["landlock_add_rule"], ctypes.c_int(ruleset), ctypes.c_int(kind), attributes, 0)
    _check(value, "landlock_add_rule")


def landlock_restrict_self(ruleset: int) -> None:
    """landlock_restrict_self(2)."""
    _check(_syscall(_NR["landlock_restrict_self"], ctypes.c_int(ruleset), 0), "landlock_restrict_self")


# ---------------------------------------------------------------- timers


def take_no_descriptors(socket: _socket.socket) -> None:
    """setsockopt(2) of SO_PASSRIGHTS, unix(7): sendmsg(2) of descriptors to this socket, or to one that it accepts,
    fails with EPERM.

    One that came would be closed by us who read, and close(2) of a socket waits for as long as its sender has said
    (socket(7), SO_LINGER).  Before Linux 6.16 there is no such option, and nothing is done.
    """
    try:
        socket.setsockopt(_SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


def timerfd_create() -> int:
    """timerfd_create(2) on the monotonic clock, non-blocking, close-on-exec."""
    clock_monotonic = 1
    flags = ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)
    return _check(_libc.timerfd_create(ctypes.c_int(clock_monotonic), flags), "timerfd_create")


def timerfd_settime(fd: int, nanoseconds: int) -> None:
    """timerfd_settime(2): readable once, this long from now (less than a second); 0 disarms."""
    value = struct.pack("@4l", 0, 0, 0, nanoseconds)  # struct itimerspec: not again, and after this
    _check(_libc.timerfd_settime(ctypes.c_int(fd), 0, value, None), "timerfd_settime")


# ---------------------------------------------------------------- bpf


def bpf(command: int, attributes: bytes) -> int:
    """bpf(2); ``attributes`` is the union bpf_attr of the command, as far as it is used."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _check(_syscall(_NR["bpf"], ctypes.c_int(command), buffer, ctypes.c_uint(len(attributes))), "bpf", command)


def bpf_long(command: int, attributes: bytes) -> int:
    """As ``bpf``; other threads go on meanwhile."""
    call = _libc.long("syscall")
    call.restype = ctypes.c_long
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _check(call(_NR["bpf"], ctypes.c_int(command), buffer, ctypes.c_uint(len(attributes))), "bpf", command)


def bpf_in_place(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """bpf(2) for a command that writes its answer into the union bpf_attr."""
    return _check(
        _syscall(_NR["bpf"], ctypes.c_int(command), attributes, ctypes.c_uint(len(attributes))), "bpf", command
    )
