"""The system call filter, assembled here: no libseccomp, no compiler.

Theory of operation
-------------------
``program`` returns classic BPF (struct sock_filter, seccomp(2)).  The order of the instructions is:

1. Calls of another ABI (int 0x80 on x86_64, 32-bit ARM) and numbers from 512 up (x32 and its alias range, calls that
   this file has not judged) fail with ENOSYS, as on a kernel without them.
2. Calls whose arguments matter: ioctl, socket, socketpair, clone, unshare, personality, seccomp.  Only arguments passed
   by value are looked at; memory could change after the check.
3. Calls that always fail, one comparison each, all sharing the return instructions at the end.
4. Everything else is allowed.

The kernel emulates the filter once per number and keeps a bitmap of those that are allowed whatever the arguments
(kernel/seccomp.c, ``seccomp_is_const_allow``).  It gives up at the first load of an argument; so nothing loads one
before its call is known, and the common calls cost a bit test.

A refusal is ENOSYS where programs have a fall-back for old kernels (io_uring, clone3, keyrings, the new mount
calls), else EPERM; an address family is EAFNOSUPPORT.  The filter narrows the kernel surface; files and network are
bound by the namespaces.  ptrace is allowed: a tracer cannot skip the filter (it runs after the tracer, Linux 4.8).

``notify_program`` is a filter of its own, for the record (``host.notify``).  It refuses nothing, with one exception: a
refusal of this filter is notified to no process (ERRNO comes before USER_NOTIF), so with ``raw_is_notified`` the raw
sockets of IPv4 and IPv6 are left to the second one, whose reader always refuses them.  Should it not, the kernel does:
that takes CAP_NET_RAW over the network namespace, which no process of the sandbox can have.
With ``unix_is_notified`` sockets of AF_UNIX are left to it as well, and behind that reader is no other refusal of the
kernel.  It is as sure without: when no process holds the listener any more the call fails with ENOSYS (seccomp(2)), and
the one way to change that, a newer filter with a listener of its own, which would be asked instead, is closed
(``listens``): the kernel would admit one as soon as ours is gone (kernel/seccomp.c, has_duplicate_listener).
"""

from __future__ import annotations

import struct

from ..errors import HostError
from .numbers import COLUMNS, NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    # operation, constant, label when true, label when false ("": the next instruction)
    Instruction: TypeAlias = tuple[int, int, str, str]

# include/uapi/linux/bpf_common.h
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_RET|K
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45  # BPF_JMP|K with JEQ, JGE, JSET

_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000  # SECCOMP_RET_*
_RESULTS = {  # label: value; asm-generic/errno.h
    "allow": _ALLOW,
    "EPERM": _ERRNO | 1,
    "EBUSY": _ERRNO | 16,
    "ENOSYS": _ERRNO | 38,
    "EPROTONOSUPPORT": _ERRNO | 93,
    "EOPNOTSUPP": _ERRNO | 95,
    "EAFNOSUPPORT": _ERRNO | 97,
}

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_FIRST_UNKNOWN = 512  # 512-547 were a second way to the x32 calls before Linux 5.4

_NEVER = {
    # openat2 has its mode in memory, where a set-user-ID bit cannot be seen; programs go on with openat.
    "ENOSYS": ("io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key", "openat2"),
    "EPERM": (
        *("bpf", "perf_event_open", "userfaultfd", "kcmp", "pidfd_getfd", "open_by_handle_at", "fanotify_init"),
        *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "modify_ldt", "iopl"),
        *("ioperm", "acct", "swapon", "swapoff", "reboot", "syslog", "quotactl", "quotactl_fd", "settimeofday"),
        *("clock_settime", "vhangup", "uselib", "nfsservctl", "lookup_dcookie", "_sysctl"),
    ),
}
# What a nested container needs; its namespaces are its own, and none of them owns the sandbox's network.
_NESTED_ONLY = {
    "ENOSYS": (
        # clone3 has its flags in memory; glibc and Go go on with clone.
        *("clone3", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "move_mount"),
        "mount_setattr",
    ),
    "EPERM": ("mount", "umount2", "pivot_root", "chroot", "setns", "sethostname", "setdomainname"),
}
_TRACING: dict[str, tuple[str, ...]] = {"EPERM": ("ptrace", "process_vm_readv", "process_vm_writev")}

# The calls that the tracer is notified of; in the order in which it wants them fast.  Opens are chosen by their flags.
_NOTIFIED = (
    *(
        "execve",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
        "mkdir",
        "mkdirat",
        "rmdir",
        "connect",
        "creat",
    ),
    *("link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "truncate", "bind", "execveat"),
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
_OPENS = {"openat": 2, "open": 1}  # the argument that holds the flags
# Calls that name a place in their own arguments, and those that may open a connection (MSG_FASTOPEN), by the argument
# that holds the flags.  A datagram by sendmsg(2) names its place in memory: it is not notified.
_SENDS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_SENDTO_NAME = 4
_RECEIVES = ("recvmsg", "recvmmsg")  # musl looks whether an answer of DNS comes from the server that it has asked
_MSG_FASTOPEN = 0x20000000
_WRITES = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_ACCMODE, O_CREAT, O_TRUNC, __O_TMPFILE: the same on both machines

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_TYPE_MASK = 1, 2, 3, 0xF
_PROTOCOLS = (0, 6, 17, 1, 58)  # default, TCP, UDP, ICMP and ICMPv6 echo
_NETLINK_ROUTE, _NETLINK_NETFILTER = 0, 12
_SET_MODE_FILTER, _NEW_LISTENER = 1, 0x8  # seccomp(2): the operation, and one of its flags
_S_ISUID, _S_ISGID, _CREATES = 0o4000, 0o2000, 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE
_CHMOD = (("fchmodat", 2), ("chmod", 1), ("fchmod", 1), ("fchmodat2", 2))  # the argument that holds the mode
_NOTIFIED_MODES = frozenset(("openat", "open", *(name for name, _mode in _CHMOD)))
_SETS_MODES = _NOTIFIED_MODES | {"creat", "mknod", "mknodat"}
_SET_ATTRIBUTES = ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")
_CHOWN = (("fchownat", 2), ("chown", 1), ("fchown", 1), ("lchown", 1))  # the argument that holds the uid; then the gid
_UNCHANGED = 0xFFFFFFFF  # chown(2): -1
# With the process as first argument.  Pid 1 has the command's uid, and the kernel asks for no more (sched(7),
# prlimit(2)).
_BY_PID = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
_BY_KIND = (("setpriority", 2), ("ioprio_set", 3))  # kind and number; the kind that is all processes of a user
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
# A snapshot has every file below under other names than those that the mounts cover; on kernels that take any directory
# for its source, all of the subvolume, outside of the view as well.  A subvolume gets its name past the tracer, and is
# removed with what is mounted on it.  BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE, SNAP_DESTROY, their second versions and
# SUBVOL_SETFLAGS (include/uapi/linux/btrfs.h); all of bcachefs (fs/bcachefs/bcachefs_ioctl.h).
_VOLUME_REQUESTS = (0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x5000943F, 0x4008941A)
_BCACHEFS = 0xBC00
# CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; CLONE_NEWTIME shares its bit with clone's exit signal, which wins there.
_CLONE_NEW, _CLONE_NEWTIME = 0x7E020000, 0x80
_NAMESPACES = {"clone": _CLONE_NEW, "unshare": _CLONE_NEW | _CLONE_NEWTIME}
# What stays refused where user namespaces are allowed: a mount namespace of its own would miss masks that come later.
_CLONE_NEWNS = 0x00020000
# PER_LINUX, PER_LINUX32, each with UNAME26 or ADDR_NO_RANDOMIZE (gdb, setarch -R), and the question 0xffffffff
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0x40008, 0xFFFFFFFF)


def program(
    *,
    nested: bool = False,
    user_namespaces: bool = False,
    allow_ptrace: bool = True,
    unix: bool = True,
    raw_is_notified: bool = False,
    unix_is_notified: bool = False,
    listens: bool = False,
    namespaces_are_notified: bool = False,
    ids: tuple[int, int, int] | None = None,
    set_ids: bool = False,
    ids_are_notified: bool = False,
    attributes: bool = True,
    machine: str,
) -> bytes:
    """Assemble the filter for seccomp(2) SECCOMP_SET_MODE_FILTER.

    Args:
        nested: allow namespaces, mounts and netfilter's netlink, for containers inside the sandbox: the command must be
            in a network namespace of its own.
        user_namespaces: allow user namespaces, those that they own but mount namespaces, and chroot(2).
        allow_ptrace: allow ptrace(2) and process_vm_readv(2), which the pid namespace confines.
        unix: allow socket(2) of AF_UNIX; socketpair(2) always is.
        raw_is_notified: leave raw sockets to ``notify_program`` with the same word; not with namespaces of its own.
        unix_is_notified: without ``unix``, leave sockets of AF_UNIX to ``notify_program`` with the same word; with
            ``listens``, and only where that filter is installed for certain.
        listens: the command has a listener of ours; it gets EBUSY for one of its own, as from the kernel while ours is
            there.
        namespaces_are_notified: as ``raw_is_notified`` for new namespaces; only where the kernel would refuse them as
            well (``init.forbid_namespaces``).
        ids: (first uid, first gid, how many of each) that the user namespace maps.  chown(2) to another one is EPERM,
            as for everybody without CAP_CHOWN; the kernel says EINVAL (fs/open.c, chown_common), which programs take
            for an error of theirs.  It has no effect with user namespaces of the command, whose ids are others.
        set_ids: with ``nested``, allow files to be made set-user-ID and set-group-ID.
        ids_are_notified: leave open(2) and chmod(2) with such a mode to ``notify_program``, whose
            reader never lets them through.
        attributes: allow extended attributes to be set.  A root caller's writable trees keep ids as the host has them,
            and so would file capabilities (capabilities(7), "namespaced file capabilities").
        machine: ``uname -m``: x86_64 or aarch64.

    Raises:
        HostError: no call numbers for this machine.
    """
    column = _column(machine)
    code: list[Instruction] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _ARCHITECTURES[machine], "", "ENOSYS"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _FIRST_UNKNOWN, "ENOSYS", ""),
    ]
    labels: dict[str, int] = {}
    judged = _judged(nested, user_namespaces, unix or unix_is_notified, raw_is_notified, namespaces_are_notified)
    if listens:
        new = [
            ("", (_EQUAL, _SET_MODE_FILTER, "", "allow")),
            _load(1),
            ("", (_ANY_BIT, _NEW_LISTENER, "EBUSY", "allow")),
        ]
        judged.append(("seccomp", [_load(0), *new]))
    if (nested and set_ids) or ids_are_notified:
        left = _SETS_MODES if nested and set_ids else _NOTIFIED_MODES
        judged = [each for each in judged if each[0] not in left]
    if ids is not None and not nested and not user_namespaces:
        judged += [(name, _mapped(name, argument, ids)) for name, argument in _CHOWN]
    for name, body in judged:
        number = NUMBERS[name][column]
        if number < 0:
            continue
        # The body ends every path, so what follows is reached by a false comparison only.
        code.append((_EQUAL, number, "", f"after {name}"))
        for label, instruction in body:
            if label:
                labels[label] = len(code)
            code.append(instruction)
        labels[f"after {name}"] = len(code)
    refused = _refused(nested, user_namespaces, allow_ptrace)
    if not attributes:
        refused.append(("EOPNOTSUPP", _SET_ATTRIBUTES))
    for result, names in refused:
        code += [(_EQUAL, NUMBERS[name][column], result, "") for name in names if NUMBERS[name][column] >= 0]
    for result, value in _RESULTS.items():  # "allow" comes first: what no comparison caught falls into it
        labels[result] = len(code)
        code.append((_RETURN, value, "", ""))

    return _packed(code, labels)


def notify_program(
    *, reads: bool = False, raw: bool = False, unix: bool = False, namespaces: bool = False, machine: str
) -> bytes:
    """Assemble the second filter: the calls that the listener of user notifications is asked about.

    Of several filters the strictest answer counts (seccomp(2): ERRNO before USER_NOTIF before
    ALLOW), so what ``program`` refuses stays refused and is not notified.

    Args:
        reads: every open, not only those that may write or create.
        raw: raw sockets, which are to be refused (``program`` with ``raw_is_notified``).
        unix: sockets of AF_UNIX, the same (``unix_is_notified``).
        namespaces: new namespaces, the same (``namespaces_are_notified``).
        machine: ``uname -m``: x86_64 or aarch64.

    Raises:
        HostError: no call numbers for this machine.
    """
    column = _column(machine)
    code: list[Instruction] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _ARCHITECTURES[machine], "", "allow"),
        (_LOAD, _NUMBER, "", ""),
    ]
    labels: dict[str, int] = {}
    opens = [(name, argument) for name, argument in _OPENS.items() if NUMBERS[name][column] >= 0]
    for name, _argument in opens:
        code.append((_EQUAL, NUMBERS[name][column], "notify" if reads else name, ""))
    code += [(_EQUAL, NUMBERS[name][column], "notify", "") for name in _NOTIFIED if NUMBERS[name][column] >= 0]
    code += [(_EQUAL, NUMBERS[name][column], name, "") for name in _SENDS]
    if raw or unix:
        code.append((_EQUAL, NUMBERS["socket"][column], "socket", ""))
    if namespaces:
        code += [(_EQUAL, NUMBERS[name][column], name, "") for name in _NAMESPACES]
    labels["allow"] = len(code)
    code.append((_RETURN, _ALLOW, "", ""))
    if not reads:
        for name, argument in opens:
            labels[name] = len(code)
            code += [_load(argument)[1], (_ANY_BIT, _WRITES, "notify", ""), (_RETURN, _ALLOW, "", "")]
    for name, argument in _SENDS.items():
        labels[name] = len(code)
        if name == "sendto":
            for half in (0, 4):  # of the pointer
                code += [(_LOAD, 16 + 8 * _SENDTO_NAME + half, "", ""), (_EQUAL, 0, "", "notify")]
        code += [_load(argument)[1], (_ANY_BIT, _MSG_FASTOPEN, "notify", ""), (_RETURN, _ALLOW, "", "")]
    if raw or unix:
        labels["socket"] = len(code)
        code.append(_load(0)[1])
        code += [(_EQUAL, _AF_UNIX, "notify", "")] if unix else []
        code += [(_EQUAL, _AF_INET, "type", ""), (_EQUAL, _AF_INET6, "type", "")] if raw else []
        code.append((_RETURN, _ALLOW, "", ""))
    if raw:
        labels["type"] = len(code)
        code += [_load(1)[1], (_AND, _SOCK_TYPE_MASK, "", ""), (_EQUAL, _SOCK_RAW, "notify", "")]
        code.append((_RETURN, _ALLOW, "", ""))
    for name, flags in _NAMESPACES.items() if namespaces else ():
        labels[name] = len(code)
        code += [_load(0)[1], (_ANY_BIT, flags, "notify", ""), (_RETURN, _ALLOW, "", "")]
    labels["notify"] = len(code)
    code.append((_RETURN, _USER_NOTIF, "", ""))
    return _packed(code, labels)


_SUPERVISED = ("connect", "bind", "listen", "getsockname", "getpeername")
# Seen by every process of a container, and not by Landlock: System V IPC and POSIX message queues.
_SHARED_IPC = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
# Landlock refuses none of these: who listens does them (``host.supervised_files``).
_METADATA = (
    *("chmod", "fchmod", "fchmodat", "chown", "lchown", "fchown", "fchownat", "utimensat"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
)
# The same by another name; libraries go on with the ones above.
_OTHER_METADATA = ("fchmodat2", "utime", "utimes", "futimesat", "setxattrat", "removexattrat", "file_setattr")
# Requests of file systems change what is open for reading only: flags, versions, policies, snapshots (FS_IOC_SETFLAGS,
# FS_IOC_ENABLE_VERITY, BTRFS_IOC_SUBVOL_CREATE, FAT_IOCTL_SET_ATTRIBUTES).  So of the groups that are theirs
# (Documentation/userspace-api/ioctl/ioctl-number.rst: f, X, v, r, btrfs, f2fs, ceph, cifs; bcachefs) only these pass:
# FS_IOC_GETFLAGS (twice), FIEMAP, FSGETXATTR, GETVERSION, GETFSLABEL; FICLONE, FICLONERANGE, FIDEDUPERANGE.
_FILE_GROUPS = (0x6600, 0x5800, 0x7600, 0x7200, 0x9400, 0xF500, 0x9700, 0xCF00, _BCACHEFS)
_FILE_REQUESTS = (
    *(0x80086601, 0x80046601, 0xC020660B, 0x801C581F, 0x80087601, 0x81009431),
    *(0x40049409, 0x4020940D, 0xC0189436),
)
_GROUP = 0xFF00  # of a request (_IOC_TYPE)
# No mount stands behind Landlock here, so a call that came after these lists is one that nothing judges: programs take
# ENOSYS for an older kernel.  file_setattr (469, Linux 6.17) was one.
_FIRST_UNJUDGED = 470
_SO_LEVELS_OF_IP = (0, 41, 17)  # IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP
_SOL_SOCKET = 1
# SO_REUSEPORT shares a port with a server outside, whose connections then come in here and ours there;
# SO_BINDTODEVICE and SO_BINDTOIFINDEX send what is meant for loopback out of another interface.
_SHARED_OPTIONS = (15, 25, 62)
_TIOCGPTPEER = 0x5441


# Names in directories that Landlock leaves to the listener (``host.supervised_names``).
_BY_NAME = (
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat"),
    *("symlink", "symlinkat", "mknod", "mknodat", "creat", "truncate"),
)


def supervised_program(machine: str, names: str = "", *, datagrams: bool = False) -> bytes:
    """Assemble the second filter of a sandbox without namespaces: who makes a socket, and what is done with its
    addresses, is the business of the listener (``host.supervised``); what belongs to the whole container is refused.

    Args:
        machine: ``uname -m``: x86_64 or aarch64.
        names: "writes": the listener is asked for names that are made, moved and removed, and opens that may write;
            "reads": for every open as well; empty: for neither.
        datagrams: it is asked for each message that is sent on a socket, whose address is in memory.

    Raises:
        HostError: no call numbers for this machine.
    """
    column = _column(machine)
    code: list[Instruction] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _ARCHITECTURES[machine], "", "ENOSYS"),
        (_LOAD, _NUMBER, "", ""),
    ]
    code.append((_AT_LEAST, _FIRST_UNJUDGED, "ENOSYS", ""))
    wanted = [
        "socket",
        *_SUPERVISED,
        *_RECEIVES,
        *_METADATA,
        *(_BY_NAME if names else ()),
        *(_OPENS if names == "reads" else ()),
    ]
    asked = [name for name in wanted if NUMBERS[name][column] >= 0]
    opens = [name for name in _OPENS if NUMBERS[name][column] >= 0 and names == "writes"]
    code += [(_EQUAL, NUMBERS[name][column], name, "") for name in opens]
    code += [(_EQUAL, NUMBERS[name][column], "notify", "") for name in asked]
    never = [name for name in (*_SHARED_IPC, *_OTHER_METADATA) if NUMBERS[name][column] >= 0]
    code += [(_EQUAL, NUMBERS[name][column], "ENOSYS", "") for name in never]
    judged = ("ioctl", "socketpair", "sendto", "recvfrom", "setsockopt", "sendmsg", "sendmmsg", *_BY_PID)
    code += [(_EQUAL, NUMBERS[name][column], name, "") for name in judged]
    code += [(_EQUAL, NUMBERS[name][column], name, "") for name, _everybody in _BY_KIND]
    labels = {"allow": len(code)}
    code.append((_RETURN, _ALLOW, "", ""))
    for name in opens:
        labels[name] = len(code)
        code += [_load(_OPENS[name])[1], (_ANY_BIT, _WRITES, "notify", ""), (_RETURN, _ALLOW, "", "")]
    labels["ioctl"] = len(code)
    code.append(_load(1)[1])
    code.append((_EQUAL, _TIOCGPTPEER, "notify", ""))
    code.append((_AND, _GROUP, "", ""))
    code += [(_EQUAL, group, "request of a file", "") for group in _FILE_GROUPS]
    code.append((_RETURN, _ALLOW, "", ""))
    labels["request of a file"] = len(code)
    code.append(_load(1)[1])
    code += [(_EQUAL, request, "allow of a file", "") for request in _FILE_REQUESTS]
    code.append((_RETURN, _RESULTS["EPERM"], "", ""))
    labels["allow of a file"] = len(code)
    code.append((_RETURN, _ALLOW, "", ""))
    # A datagram socket of a pair takes another address with each datagram: by a path to a service of the container.
    labels["socketpair"] = len(code)
    code += [_load(1)[1], (_AND, _SOCK_TYPE_MASK, "", ""), (_EQUAL, _SOCK_DGRAM, "EPROTONOSUPPORT", "")]
    code.append((_RETURN, _ALLOW, "", ""))
    for name, argument in (("sendto", _SENDTO_NAME), ("recvfrom", _SENDTO_NAME)):
        labels[name] = len(code)
        for half in (0, 4):  # of the pointer
            code += [(_LOAD, 16 + 8 * argument + half, "", ""), (_EQUAL, 0, "", "notify")]
        if name == "sendto":
            code += [_load(_SENDS[name])[1], (_ANY_BIT, _MSG_FASTOPEN, "EOPNOTSUPP", "")]
        code.append((_RETURN, _ALLOW, "", ""))
    labels["setsockopt"] = len(code)
    code.append(_load(1)[1])
    code += [(_EQUAL, level, "notify", "") for level in _SO_LEVELS_OF_IP]
    code += [(_EQUAL, _SOL_SOCKET, "option", ""), (_RETURN, _ALLOW, "", "")]
    labels["option"] = len(code)
    code.append(_load(2)[1])
    code += [(_EQUAL, option, "notify", "") for option in _SHARED_OPTIONS]
    code.append((_RETURN, _ALLOW, "", ""))
    for name in ("sendmsg", "sendmmsg"):
        labels[name] = len(code)
        code += [_load(_SENDS[name])[1], (_ANY_BIT, _MSG_FASTOPEN, "EOPNOTSUPP", "notify" if datagrams else "")]
        code.append((_RETURN, _ALLOW, "", ""))
    for name in _BY_PID:  # processes of the same user outside: their limits, processors and order
        labels[name] = len(code)
        code += [_load(0)[1], (_EQUAL, 0, "allow of a process", "EPERM")]
    for name, _everybody in _BY_KIND:
        labels[name] = len(code)
        code += [_load(1)[1], (_EQUAL, 0, "allow of a process", "EPERM")]
    labels["allow of a process"] = len(code)
    code.append((_RETURN, _ALLOW, "", ""))
    labels["notify"] = len(code)
    code.append((_RETURN, _USER_NOTIF, "", ""))
    for result in ("EPERM", "ENOSYS", "EPROTONOSUPPORT", "EOPNOTSUPP"):
        labels[result] = len(code)
        code.append((_RETURN, _RESULTS[result], "", ""))
    return _packed(code, labels)


def supervised_calls(machine: str) -> dict[int, str]:
    """Number and name of every call that ``supervised_program`` may tell of."""
    column = _column(machine)
    names = ("socket", *_SUPERVISED, *_METADATA, *_SENDS, "recvfrom", *_RECEIVES, "setsockopt", "ioctl")
    names += (*_BY_NAME, *_OPENS)
    return {NUMBERS[name][column]: name for name in names if NUMBERS[name][column] >= 0}


def unwatched_program(machine: str, *, ids: bool = True, unix: bool = True) -> bytes:
    """Assemble a filter for where no tracer listens, of what is left to it elsewhere: it fails with EPERM.

    Args:
        machine: ``uname -m``: x86_64 or aarch64.
        ids: refuse chmod(2) and its kin with a set-group-ID bit.
        unix: allow socket(2) of AF_UNIX.

    Raises:
        HostError: no call numbers for this machine.
    """
    column = _column(machine)
    code: list[Instruction] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, _ARCHITECTURES[machine], "", "allow"),
        (_LOAD, _NUMBER, "", ""),
    ]
    calls = [(name, mode) for name, mode in _CHMOD if NUMBERS[name][column] >= 0 and ids]
    code += [(_EQUAL, NUMBERS[name][column], name, "") for name, _mode in calls]
    code += [] if unix else [(_EQUAL, NUMBERS["socket"][column], "socket", "")]
    labels = {"allow": len(code)}
    code.append((_RETURN, _ALLOW, "", ""))
    for name, mode in calls:
        labels[name] = len(code)
        code += [_load(mode)[1], (_ANY_BIT, _S_ISGID, "EPERM", ""), (_RETURN, _ALLOW, "", "")]
    labels["socket"] = len(code)
    code += [] if unix else [_load(0)[1], (_EQUAL, _AF_UNIX, "EPERM", ""), (_RETURN, _ALLOW, "", "")]
    labels["EPERM"] = len(code)
    code.append((_RETURN, _RESULTS["EPERM"], "", ""))
    return _packed(code, labels)


def notified_calls(machine: str) -> dict[int, str]:
    """Number and name of every call that ``notify_program`` may notify."""
    column = _column(machine)
    names = (*_OPENS, "socket", *_NAMESPACES, *_NOTIFIED, *_SENDS)
    return {NUMBERS[name][column]: name for name in names if NUMBERS[name][column] >= 0}


def _column(machine: str) -> int:
    if machine not in COLUMNS:
        raise HostError("assemble the system call filter", "its system call numbers are not known", target=machine)
    return COLUMNS[machine]


def _packed(code: list[Instruction], labels: dict[str, int]) -> bytes:
    packed = []
    for index, (operation, constant, true, false) in enumerate(code):
        jump_true = labels[true] - index - 1 if true else 0
        jump_false = labels[false] - index - 1 if false else 0
        packed.append(struct.pack("<HBBI", operation, jump_true, jump_false, constant))
    return b"".join(packed)


def _refused(nested: bool, user_namespaces: bool, allow_ptrace: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Calls that always fail, as (result, names)."""
    groups = [_NEVER] if nested else [_NEVER, _NESTED_ONLY]
    if user_namespaces and not nested:
        groups[1] = {
            result: tuple(name for name in names if name != "chroot") for result, names in _NESTED_ONLY.items()
        }
    if not allow_ptrace:
        groups.append(_TRACING)
    return [(result, names) for group in groups for result, names in group.items()]


def _judged(
    nested: bool, user_namespaces: bool, unix: bool, raw_is_notified: bool, namespaces_are_notified: bool
) -> list[tuple[str, list[tuple[str, Instruction]]]]:
    """Calls that are judged by their arguments: name and labelled instructions, the most frequent call first."""
    # On the host a set-user-ID file of the workspace works for everybody (inside, mounts are nosuid): none is made.
    # A set-group-ID file would make everybody a member of the caller's group.  On a directory the bit is harmless, and
    # a mode does not say which it is: the listener decides (``tracer.modes``), or ``unwatched_program`` refuses both.
    set_user_id = ("", (_ANY_BIT, _S_ISUID, "EPERM", "allow"))
    set_any_id = ("", (_ANY_BIT, _S_ISUID | _S_ISGID, "EPERM", "allow"))
    calls = [
        (name, [_load(mode - 1), ("", (_ANY_BIT, _CREATES, "", "allow")), _load(mode), set_any_id])
        for name, mode in (("openat", 3), ("open", 2))
    ]
    calls += [
        (
            "ioctl",
            [
                *_one_of(1, (*_TERMINAL_REQUESTS, *_VOLUME_REQUESTS), "EPERM", ""),
                ("", (_AND, _GROUP, "", "")),
                ("", (_EQUAL, _BCACHEFS, "EPERM", "allow")),
            ],
        ),
        ("socket", _socket(unix, raw_is_notified, nested)),
        ("socketpair", _one_of(0, (_AF_UNIX,), "allow", "EAFNOSUPPORT")),
        ("personality", _one_of(0, _PERSONALITIES, "allow", "EPERM")),
    ]
    calls += [(name, [_load(mode), set_user_id]) for name, mode in _CHMOD]
    calls += [(name, [_load(mode), set_any_id]) for name, mode in (("creat", 1), ("mknod", 1), ("mknodat", 2))]
    calls += [(name, _one_of(0, (1,), "EPERM", "allow")) for name in _BY_PID]
    calls += [
        (name, [_load(0), ("", (_EQUAL, everybody, "EPERM", "")), *_one_of(1, (1,), "EPERM", "allow")])
        for name, everybody in _BY_KIND
    ]
    if not nested and not namespaces_are_notified:
        refused = _CLONE_NEWNS if user_namespaces else _CLONE_NEW
        calls.insert(3, ("clone", [_load(0), ("", (_ANY_BIT, refused, "EPERM", "allow"))]))
        calls.append(("unshare", [_load(0), ("", (_ANY_BIT, refused | _CLONE_NEWTIME, "EPERM", "allow"))]))
    return calls


def _load(argument: int) -> tuple[str, Instruction]:
    """Load the low 32 bits of an argument: all that the kernel reads of an int (both machines are little endian)."""
    return "", (_LOAD, 16 + 8 * argument, "", "")


def _one_of(argument: int, values: tuple[int, ...], listed: str, other: str) -> list[tuple[str, Instruction]]:
    body = [_load(argument)]
    body += [("", (_EQUAL, value, listed, "")) for value in values[:-1]]
    body.append(("", (_EQUAL, values[-1], listed, other)))
    return body


def _mapped(name: str, argument: int, ids: tuple[int, int, int]) -> list[tuple[str, Instruction]]:
    """Both ids of a chown(2) are mapped or -1: allow; else EPERM."""
    *firsts, count = ids
    body: list[tuple[str, Instruction]] = []
    for number, first in enumerate(firsts):
        good = f"{name} gid" if number == 0 else "allow"  # labels are the whole program's
        label = "" if number == 0 else f"{name} gid"
        body += [(label, _load(argument + number)[1]), ("", (_EQUAL, _UNCHANGED, good, ""))]
        if first:
            body.append(("", (_AT_LEAST, first, "", "EPERM")))
        body.append(("", (_AT_LEAST, first + count, "EPERM", good)))
    return body


def _socket(unix: bool, raw_is_notified: bool, nested: bool) -> list[tuple[str, Instruction]]:
    """UNIX; NETLINK_ROUTE; TCP, UDP and ICMP echo of INET and INET6; nested netfilter as well."""
    netfilter = [("", (_EQUAL, _NETLINK_NETFILTER, "allow", ""))] if nested else []
    raw = [("", (_EQUAL, _SOCK_RAW, "allow", ""))] if raw_is_notified else []
    return [
        _load(0),
        ("", (_EQUAL, _AF_UNIX, "allow" if unix else "EPERM", "")),
        ("", (_EQUAL, _AF_INET, "inet", "")),
        ("", (_EQUAL, _AF_INET6, "inet", "")),
        ("", (_EQUAL, _AF_NETLINK, "", "EAFNOSUPPORT")),
        _load(2),
        *netfilter,
        ("", (_EQUAL, _NETLINK_ROUTE, "allow", "EAFNOSUPPORT")),
        ("inet", _load(1)[1]),
        ("", (_AND, _SOCK_TYPE_MASK, "", "")),
        ("", (_EQUAL, _SOCK_STREAM, "protocol", "")),
        *raw,
        ("", (_EQUAL, _SOCK_DGRAM, "protocol", "EPERM")),
        ("protocol", _load(2)[1]),
        *_one_of(2, _PROTOCOLS, "allow", "EPROTONOSUPPORT")[1:],
    ]
