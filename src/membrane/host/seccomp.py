"""The system call filter, assembled here: no libseccomp, no compiler.

Theory of operation
-------------------
``program`` returns classic BPF (struct sock_filter, seccomp(2)).  The order of the instructions is:

1. Calls of another ABI (int 0x80 on x86_64, 32-bit ARM) and numbers from 512 up (x32 and its alias range, calls that
   this file has not judged) fail with ENOSYS, as on a kernel without them.
2. Calls whose arguments matter: ioctl, socket, socketpair, clone, unshare, personality.  Only arguments passed by
   value are looked at; memory could change after the check.
3. Calls that always fail, one comparison each, all sharing the return instructions at the end.
4. Everything else is allowed.

The kernel emulates the filter once per number and keeps a bitmap of those that are allowed whatever the arguments
(kernel/seccomp.c, ``seccomp_is_const_allow``).  It gives up at the first load of an argument; so nothing loads one
before its call is known, and the common calls cost a bit test.

A refusal is ENOSYS where programs have a fall-back for old kernels (io_uring, clone3, keyrings, the new mount
calls), else EPERM; an address family is EAFNOSUPPORT.  The filter narrows the kernel surface; files and network are
bound by the namespaces.  ptrace is allowed: a tracer cannot skip the filter (it runs after the tracer, Linux 4.8).

``notify_program`` is a filter of its own, for the record (``host.notify``).  It refuses nothing, with one exception: a
refusal of this filter is told to nobody (ERRNO comes before USER_NOTIF), so with ``raw_is_told`` the raw sockets of
IPv4 and IPv6 are left to the second one, whose reader always refuses them.  Should it not, the kernel does: that
takes CAP_NET_RAW over the network namespace, which no process of the sandbox can have.
"""

from __future__ import annotations

import struct

from ..errors import HostError

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
    "ENOSYS": _ERRNO | 38,
    "EPROTONOSUPPORT": _ERRNO | 93,
    "EAFNOSUPPORT": _ERRNO | 97,
}

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_FIRST_UNKNOWN = 512  # 512-547 were a second way to the x32 calls before Linux 5.4

# name: (x86_64, aarch64); -1: no such call.  syscall_64.tbl, asm-generic/unistd.h
_NUMBERS = {
    "_sysctl": (156, -1),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, -1),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, -1),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "nfsservctl": (180, 42),
    "open": (2, -1),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, -1),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

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

# The calls that the tracer is told of; in the order in which it wants them fast.  Opens are told by their flags.
_NOTIFIED = {
    "execve": (59, 221),
    "unlink": (87, -1),
    "unlinkat": (263, 35),
    "rename": (82, -1),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, -1),
    "mkdirat": (258, 34),
    "rmdir": (84, -1),
    "connect": (42, 203),
    "creat": (85, -1),
    "link": (86, -1),
    "linkat": (265, 37),
    "symlink": (88, -1),
    "symlinkat": (266, 36),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "truncate": (76, 45),
    "bind": (49, 200),
    "execveat": (322, 281),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
}
_OPENS = {"openat": 2, "open": 1}  # the argument that holds the flags
# Calls that name a place in their own arguments, and those that may open a connection (MSG_FASTOPEN), by the argument
# that holds the flags.  A datagram by sendmsg(2) names its place in memory: it is not told.
_SENDS = {"sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269)}
_SEND_FLAGS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_SENDTO_NAME = 4
_MSG_FASTOPEN = 0x20000000
_WRITES = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_ACCMODE, O_CREAT, O_TRUNC, __O_TMPFILE: the same on both machines

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_TYPE_MASK = 1, 2, 3, 0xF
_PROTOCOLS = (0, 6, 17, 1, 58)  # default, TCP, UDP, ICMP and ICMPv6 echo
_NETLINK_ROUTE = 0
_S_ISUID, _S_ISGID, _CREATES = 0o4000, 0o2000, 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE
_CHMOD = (("fchmodat", 2), ("chmod", 1), ("fchmod", 1), ("fchmodat2", 2))  # the argument that holds the mode
_CHOWN = (("fchownat", 2), ("chown", 1), ("fchown", 1), ("lchown", 1))  # the argument that holds the uid; then the gid
_UNCHANGED = 0xFFFFFFFF  # chown(2): -1
# Told which process first.  Pid 1 has the command's uid, and the kernel asks for no more (sched(7), prlimit(2)).
_BY_PID = ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler")
_BY_KIND = (("setpriority", 2), ("ioprio_set", 3))  # kind and number; the kind that is all processes of a user
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
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
    raw_is_told: bool = False,
    namespaces_are_told: bool = False,
    ids: tuple[int, int, int] | None = None,
    machine: str,
) -> bytes:
    """Assemble the filter for seccomp(2) SECCOMP_SET_MODE_FILTER.

    Args:
        nested: allow namespaces and mounts, for containers inside the sandbox.
        user_namespaces: allow user namespaces, those that they own but mount namespaces, and chroot(2).
        allow_ptrace: allow ptrace(2) and process_vm_readv(2), which the pid namespace confines.
        unix: allow socket(2) of AF_UNIX; socketpair(2) always is.
        raw_is_told: leave raw sockets to ``notify_program`` with the same word; not with namespaces of its own.
        namespaces_are_told: the same for new namespaces; only where the kernel would refuse them as well
            (``init.wall_off``).
        ids: (first uid, first gid, how many of each) that the user namespace maps.  chown(2) to another one is EPERM,
            as for everybody without CAP_CHOWN; the kernel says EINVAL (fs/open.c, chown_common), which programs take
            for an error of theirs.  It has no effect with user namespaces of the command, whose ids are others.
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
    judged = _judged(nested, user_namespaces, unix, raw_is_told, namespaces_are_told)
    if ids is not None and not nested and not user_namespaces:
        judged += [(name, _mapped(name, argument, ids)) for name, argument in _CHOWN]
    for name, body in judged:
        number = (_NUMBERS.get(name) or _NOTIFIED[name])[column]
        if number < 0:
            continue
        # The body ends every path, so what follows is reached by a false comparison only.
        code.append((_EQUAL, number, "", f"after {name}"))
        for label, instruction in body:
            if label:
                labels[label] = len(code)
            code.append(instruction)
        labels[f"after {name}"] = len(code)
    for result, names in _refused(nested, user_namespaces, allow_ptrace):
        code += [(_EQUAL, _NUMBERS[name][column], result, "") for name in names if _NUMBERS[name][column] >= 0]
    for result, value in _RESULTS.items():  # "allow" comes first: what no comparison caught falls into it
        labels[result] = len(code)
        code.append((_RETURN, value, "", ""))

    return _packed(code, labels)


def notify_program(*, reads: bool = False, raw: bool = False, namespaces: bool = False, machine: str) -> bytes:
    """Assemble the second filter: the calls that the listener of user notifications is asked about.

    Of several filters the strictest answer counts (seccomp(2): ERRNO before USER_NOTIF before
    ALLOW), so what ``program`` refuses stays refused and is not told.

    Args:
        reads: every open, not only those that may write or create.
        raw: raw sockets, which are to be refused (``program`` with ``raw_is_told``).
        namespaces: new namespaces, the same (``namespaces_are_told``).
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
    opens = [(name, argument) for name, argument in _OPENS.items() if _NUMBERS[name][column] >= 0]
    for name, _argument in opens:
        code.append((_EQUAL, _NUMBERS[name][column], "notify" if reads else name, ""))
    code += [(_EQUAL, pair[column], "notify", "") for pair in _NOTIFIED.values() if pair[column] >= 0]
    code += [(_EQUAL, pair[column], name, "") for name, pair in _SENDS.items()]
    if raw:
        code.append((_EQUAL, _NUMBERS["socket"][column], "socket", ""))
    if namespaces:
        code += [(_EQUAL, _NUMBERS[name][column], name, "") for name in _NAMESPACES]
    labels["allow"] = len(code)
    code.append((_RETURN, _ALLOW, "", ""))
    if not reads:
        for name, argument in opens:
            labels[name] = len(code)
            code += [_load(argument)[1], (_ANY_BIT, _WRITES, "notify", ""), (_RETURN, _ALLOW, "", "")]
    for name, argument in _SEND_FLAGS.items():
        labels[name] = len(code)
        if name == "sendto":
            for half in (0, 4):  # of the pointer
                code += [(_LOAD, 16 + 8 * _SENDTO_NAME + half, "", ""), (_EQUAL, 0, "", "notify")]
        code += [_load(argument)[1], (_ANY_BIT, _MSG_FASTOPEN, "notify", ""), (_RETURN, _ALLOW, "", "")]
    if raw:
        labels["socket"] = len(code)
        code += [_load(0)[1], (_EQUAL, _AF_INET, "type", ""), (_EQUAL, _AF_INET6, "type", "")]
        code.append((_RETURN, _ALLOW, "", ""))
        labels["type"] = len(code)
        code += [_load(1)[1], (_AND, _SOCK_TYPE_MASK, "", ""), (_EQUAL, _SOCK_RAW, "notify", "")]
        code.append((_RETURN, _ALLOW, "", ""))
    for name, flags in _NAMESPACES.items() if namespaces else ():
        labels[name] = len(code)
        code += [_load(0)[1], (_ANY_BIT, flags, "notify", ""), (_RETURN, _ALLOW, "", "")]
    labels["notify"] = len(code)
    code.append((_RETURN, _USER_NOTIF, "", ""))
    return _packed(code, labels)


def group_program(machine: str) -> bytes:
    """Assemble a filter for where nobody listens: chmod(2) and its kin with a set-group-ID bit fail with EPERM.

    Args:
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
    calls = [(name, mode) for name, mode in _CHMOD if _NUMBERS[name][column] >= 0]
    code += [(_EQUAL, _NUMBERS[name][column], name, "") for name, _mode in calls]
    labels = {"allow": len(code)}
    code.append((_RETURN, _ALLOW, "", ""))
    for name, mode in calls:
        labels[name] = len(code)
        code += [_load(mode)[1], (_ANY_BIT, _S_ISGID, "EPERM", ""), (_RETURN, _ALLOW, "", "")]
    labels["EPERM"] = len(code)
    code.append((_RETURN, _RESULTS["EPERM"], "", ""))
    return _packed(code, labels)


def notified_calls(machine: str) -> dict[int, str]:
    """Number and name of every call that ``notify_program`` may tell of."""
    column = _column(machine)
    pairs = {**{name: _NUMBERS[name] for name in (*_OPENS, "socket", *_NAMESPACES)}, **_NOTIFIED, **_SENDS}
    return {pair[column]: name for name, pair in pairs.items() if pair[column] >= 0}


def _column(machine: str) -> int:
    if machine not in _ARCHITECTURES:
        raise HostError("assemble the system call filter", "its system call numbers are not known", target=machine)
    return 0 if machine == "x86_64" else 1


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
    nested: bool, user_namespaces: bool, unix: bool, raw_is_told: bool, namespaces_are_told: bool
) -> list[tuple[str, list[tuple[str, Instruction]]]]:
    """Calls that are judged by their arguments: name and labelled instructions, the most frequent call first."""
    # On the host a set-user-ID file of the workspace works for everybody (inside, mounts are nosuid): none is made.
    # A set-group-ID file would make everybody a member of the caller's group.  On a directory the bit is harmless, and
    # a mode does not say which it is: the listener tells (``tracer.modes``), or ``group_program`` refuses both.
    set_user_id = ("", (_ANY_BIT, _S_ISUID, "EPERM", "allow"))
    set_any_id = ("", (_ANY_BIT, _S_ISUID | _S_ISGID, "EPERM", "allow"))
    calls = [
        (name, [_load(mode - 1), ("", (_ANY_BIT, _CREATES, "", "allow")), _load(mode), set_any_id])
        for name, mode in (("openat", 3), ("open", 2))
    ]
    calls += [
        ("ioctl", _one_of(1, _TERMINAL_REQUESTS, "EPERM", "allow")),
        ("socket", _socket(unix, raw_is_told)),
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
    if not nested and not namespaces_are_told:
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


def _socket(unix: bool, raw_is_told: bool) -> list[tuple[str, Instruction]]:
    """UNIX; NETLINK_ROUTE; TCP, UDP and ICMP echo of INET and INET6."""
    raw = [("", (_EQUAL, _SOCK_RAW, "allow", ""))] if raw_is_told else []
    return [
        _load(0),
        ("", (_EQUAL, _AF_UNIX, "allow" if unix else "EPERM", "")),
        ("", (_EQUAL, _AF_INET, "inet", "")),
        ("", (_EQUAL, _AF_INET6, "inet", "")),
        ("", (_EQUAL, _AF_NETLINK, "", "EAFNOSUPPORT")),
        _load(2),
        ("", (_EQUAL, _NETLINK_ROUTE, "allow", "EAFNOSUPPORT")),
        ("inet", _load(1)[1]),
        ("", (_AND, _SOCK_TYPE_MASK, "", "")),
        ("", (_EQUAL, _SOCK_STREAM, "protocol", "")),
        *raw,
        ("", (_EQUAL, _SOCK_DGRAM, "protocol", "EPERM")),
        ("protocol", _load(2)[1]),
        *_one_of(2, _PROTOCOLS, "allow", "EPROTONOSUPPORT")[1:],
    ]


def describe(*, nested: bool = False, user_namespaces: bool = False, allow_ptrace: bool = True) -> list[str]:
    """What the filter refuses, one line per kind, for ``membrane plan``."""
    lines = [
        f"other ABIs (32-bit, x32) and calls from {_FIRST_UNKNOWN} up: ENOSYS",
        "socket: UNIX, NETLINK_ROUTE, TCP, UDP and ICMP echo over IPv4 and IPv6 only; "
        "raw: EPERM, other protocols: EPROTONOSUPPORT, other families: EAFNOSUPPORT",
        "socketpair: UNIX only, else EAFNOSUPPORT",
        "ioctl TIOCSTI, TIOCLINUX, TIOCSETD: EPERM",
        "set-user-ID and set-group-ID files: chmod, open, creat, mknod with mode 04000 or 02000: EPERM "
        "(chmod of a directory with 02000: allowed where the tracer looks)",
        f"{', '.join((*_BY_PID, *(name for name, _everybody in _BY_KIND)))} of pid 1 or all of a user: EPERM",
        "personality: Linux without or with fixed addresses only, else EPERM",
    ]
    if not nested:
        if not user_namespaces:
            lines.append("chown, fchown, lchown, fchownat to an id that the sandbox does not have: EPERM")
        kind = "a new mount namespace" if user_namespaces else "new namespaces"
        lines.append(f"clone, unshare with {kind}: EPERM")
    refused = _refused(nested, user_namespaces, allow_ptrace)
    return lines + [f"{' '.join(names)}: {result}" for result, names in refused]
