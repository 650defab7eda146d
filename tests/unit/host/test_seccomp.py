"""The filter, run by an interpreter of classic BPF written here, against a table of what each call must get."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.errors import HostError
from membrane.host import seccomp
from membrane.host.numbers import COLUMNS, NUMBERS

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_ARCH = {
    "i386": 0x40000003,
    "arm": 0x40000028,
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "riscv64": 0xC00000F3,
}
MACHINES = ("x86_64", "aarch64")
RESULTS = {
    0x7FFF0000: "allow",
    0x7FC00000: "notify",
    0x50001: "EPERM",
    0x50010: "EBUSY",
    0x50026: "ENOSYS",
    0x5005F: "EOPNOTSUPP",
    0x5005D: "EPROTONOSUPPORT",
    0x50061: "EAFNOSUPPORT",
}
ARGUMENTS = 16  # offset in struct seccomp_data


class LoadsArgument(Exception):
    """The kernel's emulation gives up here: the call is not in the bitmap of the always allowed."""


def run(program: bytes, number: int, arguments: tuple[int, ...] = (), arch: int = 0, *, constant: bool = False) -> str:
    """Interpret ``program`` on one struct seccomp_data; ``constant``: as seccomp_is_const_allow of kernel/seccomp.c."""
    values = [value & 0xFFFFFFFFFFFFFFFF for value in arguments] + [0] * (6 - len(arguments))
    data = struct.pack("<iIQ6Q", struct.unpack("<i", struct.pack("<I", number & 0xFFFFFFFF))[0], arch, 0, *values)
    accumulator, counter = 0, 0
    while True:
        code, jump_true, jump_false, k = struct.unpack_from("<HBBI", program, 8 * counter)
        counter += 1
        if code == 0x20:
            if constant and k >= ARGUMENTS:
                raise LoadsArgument
            [accumulator] = struct.unpack_from("<I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            counter += jump_true if accumulator == k else jump_false
        elif code == 0x35:
            counter += jump_true if accumulator >= k else jump_false
        elif code == 0x45:
            counter += jump_true if accumulator & k else jump_false
        elif code == 0x06:
            return RESULTS[k]
        else:
            raise AssertionError(f"instruction {code:#x} is not for seccomp")


# ---------------------------------------------------------------- the table
# name: (x86_64, aarch64), written down apart from the module's own table

NR = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "mmap": (9,
    222), "futex": (202, 98), "execve": (59, 221), "execveat": (322, 281), "exit_group": (231, 94), "wait4": (61,
    260), "connect": (42, 203), "sendmsg": (46, 211), "recvmsg": (47, 212), "bind": (49, 200), "accept4": (288,
    242), "epoll_pwait": (281, 22), "ppoll": (271, 73), "prctl": (157, 167), "seccomp": (317, 277), "memfd_create":
    (319, 279), "memfd_secret": (447, 447), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "close_range": (436, 436), "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446),
    "futex_waitv": (449, 449), "futex_wake": (454, 454), "statx": (332, 291), "cachestat": (451, 451), "mseal":
    (462, 462), "statmount": (457, 457), "listmount": (458, 458), "map_shadow_stack": (453, 453), "process_madvise":
    (440, 440), "rseq": (334, 293), "name_to_handle_at": (303, 264), "inotify_add_watch": (254, 27), "getrandom":
    (318, 278), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "flock": (73, 32), "kill": (62, 129), "adjtimex":
    (159, 171), "arch_prctl": (158, None), "socket": (41, 198), "openat": (257, 56), "open": (2, None),
    "creat": (85, None), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "mknod": (133, None),
    "mknodat": (259, 33), "openat2": (437, 437), "socketpair": (53, 199), "ioctl": (16, 29), "clone":
    (56, 220), "unshare": (272, 97), "personality": (135, 92), "clone3": (435, 435), "setns": (308, 268),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250,
    219), "add_key": (248, 217), "request_key": (249, 218), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount":
    (432, 432), "fspick": (433, 433), "open_tree": (428, 428), "open_tree_attr": (467, 467), "move_mount": (429,
    429), "mount_setattr": (442, 442), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot":
    (161, 51), "sethostname": (170, 161), "setdomainname": (171, 162), "ptrace": (101, 117), "process_vm_readv":
    (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd":
    (323, 282), "kcmp": (312, 272), "pidfd_getfd": (438, 438), "open_by_handle_at": (304, 265), "fanotify_init":
    (300, 262), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module":
    (313, 273), "delete_module": (176, 106), "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None),
    "uselib": (134, None), "_sysctl": (156, None), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "syslog": (103, 116), "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday":
    (164, 170), "clock_settime": (227, 112), "vhangup": (153, 58), "nfsservctl": (180, 42), "lookup_dcookie": (212,
    18), "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam":
    (142, 118), "sched_setscheduler": (144, 119), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip

ALWAYS_ALLOWED = [name for name in NR if list(NR).index(name) < list(NR).index("socket")]
ENOSYS_ALWAYS = ["io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key", "openat2"]
ENOSYS_UNLESS_NESTED = [
    "clone3",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "open_tree_attr",
    "move_mount",
    "mount_setattr",
]
EPERM_UNLESS_NESTED = ["mount", "umount2", "pivot_root", "chroot", "setns", "sethostname", "setdomainname"]
TRACING = ["ptrace", "process_vm_readv", "process_vm_writev"]
EPERM_ALWAYS = [
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "kcmp",
    "pidfd_getfd",
    "open_by_handle_at",
    "fanotify_init",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "modify_ldt",
    "iopl",
    "ioperm",
    "uselib",
    "_sysctl",
    "acct",
    "swapon",
    "swapoff",
    "reboot",
    "syslog",
    "quotactl",
    "quotactl_fd",
    "settimeofday",
    "clock_settime",
    "vhangup",
    "nfsservctl",
    "lookup_dcookie",
]

HIGH = 0xDEADBEEF00000000  # the kernel reads the low 32 bits of an int argument
STREAM, DGRAM, RAW, SEQPACKET, PACKET = 1, 2, 3, 5, 10
CLOEXEC, NONBLOCK = 0x80000, 0x800
NEW_USER, NEW_NET, NEW_NS, NEW_TIME, NEW_PID, NEW_CGROUP = 0x10000000, 0x40000000, 0x20000, 0x80, 0x20000000, 0x2000000

SUID, CREAT, TMPFILE = 0o4000, 0o100, 0o20200000

JUDGED = [
    # files that would run as somebody else on the host
    ("openat", (3, 0, 0, SUID), "allow"),  # without O_CREAT the mode is whatever the register holds
    ("openat", (3, 0, CREAT | 1, 0o644), "allow"),
    ("openat", (3, 0, CREAT | 1, 0o2755), "EPERM"),
    ("openat", (3, 0, CREAT | 1, 0o2644), "EPERM"),  # an access control list could make it executable later
    ("openat", (3, 0, CREAT | 1, SUID | 0o755), "EPERM"),
    ("openat", (3, 0, HIGH | CREAT, HIGH | SUID), "EPERM"),
    ("openat", (3, 0, TMPFILE | 1, SUID | 0o755), "EPERM"),
    ("open", (0, CREAT | 1, SUID | 0o755), "EPERM"),
    ("open", (0, CREAT | 1, 0o755), "allow"),
    ("open", (0, 0, SUID), "allow"),
    *[(name, (0, SUID | 0o755), "EPERM") for name in ("chmod", "fchmod", "creat", "mknod")],
    *[(name, (0, 0o2755), "EPERM") for name in ("creat", "mknod")],
    *[(name, (0, 0o2755), "allow") for name in ("chmod", "fchmod")],  # the listener judges, or ``unwatched_program``
    # pid 1, and whatever it is part of
    *[(name, (1,), "EPERM") for name in seccomp._BY_PID],
    *[(name, (HIGH | 1,), "EPERM") for name in seccomp._BY_PID],
    *[(name, (pid,), "allow") for name in seccomp._BY_PID for pid in (0, 2, 4711)],
    *[("setpriority", (kind, 1), "EPERM") for kind in (0, 1, 2)],
    *[("setpriority", (kind, 0), "allow") for kind in (0, 1)],
    *[("setpriority", (2, who), "EPERM") for who in (0, 1000)],
    *[("ioprio_set", (kind, 1), "EPERM") for kind in (1, 2, 3)],
    *[("ioprio_set", (kind, 7), "allow") for kind in (1, 2)],
    ("ioprio_set", (3, 1000), "EPERM"),
    *[(name, (3, 0, SUID | 0o755), "EPERM") for name in ("fchmodat", "fchmodat2", "mknodat")],
    *[(name, (3, 0, 0o644), "allow") for name in ("fchmodat", "fchmodat2", "mknodat")],
    # sockets
    ("socket", (1, STREAM, 0), "allow"),
    ("socket", (1, SEQPACKET | CLOEXEC, 0), "allow"),
    ("socket", (HIGH | 1, DGRAM, 0), "allow"),
    ("socket", (2, STREAM | CLOEXEC | NONBLOCK, 6), "allow"),
    ("socket", (2, DGRAM, 0), "allow"),
    ("socket", (2, DGRAM, 17), "allow"),
    ("socket", (2, DGRAM, 1), "allow"),
    ("socket", (10, STREAM, 0), "allow"),
    ("socket", (10, DGRAM, 58), "allow"),
    ("socket", (2, RAW, 1), "EPERM"),
    ("socket", (2, RAW | CLOEXEC, 255), "EPERM"),
    ("socket", (HIGH | 10, HIGH | RAW, HIGH | 58), "EPERM"),
    ("socket", (2, PACKET, 0x300), "EPERM"),
    ("socket", (2, STREAM, 132), "EPROTONOSUPPORT"),  # SCTP
    ("socket", (2, STREAM, 262), "EPROTONOSUPPORT"),  # MPTCP
    ("socket", (2, STREAM, HIGH | 262), "EPROTONOSUPPORT"),
    ("socket", (10, DGRAM, 136), "EPROTONOSUPPORT"),  # UDP-Lite
    ("socket", (16, RAW, 0), "allow"),
    ("socket", (16, DGRAM | CLOEXEC, 0), "allow"),
    *[("socket", (16, RAW, protocol), "EAFNOSUPPORT") for protocol in (1, 2, 4, 6, 9, 15, 16, 21)],
    *[
        ("socket", (family, STREAM, 0), "EAFNOSUPPORT")
        for family in (0, 3, 4, 9, 15, 17, 21, 29, 30, 31, 38, 40, 43, 44)
    ],
    *[("socket", (family, DGRAM, 0), "EAFNOSUPPORT") for family in (-1, 45, 0x101, 0x10001)],
    ("socketpair", (1, STREAM, 0), "allow"),
    ("socketpair", (1, SEQPACKET, 0), "allow"),
    ("socketpair", (30, STREAM, 0), "EAFNOSUPPORT"),  # TIPC
    ("socketpair", (2, STREAM, 0), "EAFNOSUPPORT"),
    # terminals
    ("ioctl", (0, 0x5401), "allow"),
    ("ioctl", (0, 0x5413), "allow"),
    ("ioctl", (0, 0x541B), "allow"),
    ("ioctl", (0, 0x5412), "EPERM"),
    ("ioctl", (0, HIGH | 0x5412), "EPERM"),
    ("ioctl", (0, 0x541C), "EPERM"),
    ("ioctl", (0, HIGH | 0x541C), "EPERM"),
    ("ioctl", (0, 0x5423), "EPERM"),
    # personality
    *[("personality", (value,), "allow") for value in (0, 8, 0x20000, 0x20008, 0x40000, 0x40008, 0xFFFFFFFF)],
    ("personality", (0xFFFFFFFFFFFFFFFF,), "allow"),
    ("personality", (0x0400000,), "EPERM"),  # READ_IMPLIES_EXEC
    ("personality", (0x0100000,), "EPERM"),  # MMAP_PAGE_ZERO
    ("personality", (HIGH | 0x0400008,), "EPERM"),
]
NAMESPACES = [
    ("clone", (0x01200011,), "allow", "allow"),  # fork
    ("clone", (0x3D0F00,), "allow", "allow"),  # a thread
    ("socket", (16, RAW, 12), "EAFNOSUPPORT", "allow"),  # netfilter of a network namespace of its own
    ("clone", (0x4111,), "allow", "allow"),  # vfork
    ("clone", (NEW_TIME | 17,), "allow", "allow"),  # part of the exit signal
    *[
        ("clone", (flag | 17,), "EPERM", "allow")
        for flag in (NEW_USER, NEW_NET, NEW_NS, NEW_PID, NEW_CGROUP, 0x4000000, 0x8000000)
    ],
    ("clone", (HIGH | NEW_USER,), "EPERM", "allow"),
    ("unshare", (0x200,), "allow", "allow"),  # CLONE_FS
    ("unshare", (0x400,), "allow", "allow"),  # CLONE_FILES
    *[
        ("unshare", (flag,), "EPERM", "allow")
        for flag in (NEW_USER, NEW_NET, NEW_NS, NEW_TIME, NEW_PID, NEW_CGROUP, NEW_NS | 0x200)
    ],
    ("unshare", (HIGH | NEW_NET,), "EPERM", "allow"),
]


def number_of(name: str, machine: str) -> int | None:
    return NR[name][MACHINES.index(machine)]


def rows(machine: str, *, nested: bool, allow_ptrace: bool) -> list[tuple[str, int, tuple[int, ...], str]]:
    """Every (name, number, arguments, expected result) of a machine and a choice of options."""
    table: list[tuple[str, tuple[int, ...], str]] = list(JUDGED)
    table += [(name, arguments, inside if nested else normal) for name, arguments, normal, inside in NAMESPACES]
    constant = dict.fromkeys(ALWAYS_ALLOWED, "allow")
    constant |= dict.fromkeys(ENOSYS_ALWAYS, "ENOSYS") | dict.fromkeys(EPERM_ALWAYS, "EPERM")
    constant |= dict.fromkeys(ENOSYS_UNLESS_NESTED, "allow" if nested else "ENOSYS")
    constant |= dict.fromkeys(EPERM_UNLESS_NESTED, "allow" if nested else "EPERM")
    constant |= dict.fromkeys(TRACING, "allow" if allow_ptrace else "EPERM")
    for name, expected in constant.items():
        table += [(name, (), expected), (name, (2**64 - 1,) * 6, expected)]
    numbered = [(name, number_of(name, machine), arguments, expected) for name, arguments, expected in table]
    return [row for row in numbered if row[1] is not None]


OPTIONS = [(nested, allow_ptrace) for nested in (False, True) for allow_ptrace in (False, True)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("nested", "allow_ptrace"), OPTIONS)
def test_every_row(machine: str, nested: bool, allow_ptrace: bool) -> None:
    program = seccomp.program(nested=nested, allow_ptrace=allow_ptrace, machine=machine)
    table = rows(machine, nested=nested, allow_ptrace=allow_ptrace)
    assert len(table) > 200
    wrong = [
        (name, arguments, expected, got)
        for name, number, arguments, expected in table
        if (got := run(program, number, arguments, AUDIT_ARCH[machine])) != expected
    ]
    assert not wrong


@pytest.mark.parametrize("machine", MACHINES)
def test_without_a_listener_no_mode_has_a_set_group_id_bit(machine: str) -> None:
    program = seccomp.unwatched_program(machine)
    for name, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        number = number_of(name, machine)
        if number is not None:
            for mode, expected in ((0o2755, "EPERM"), (0o2000, "EPERM"), (HIGH | 0o2755, "EPERM"), (0o755, "allow")):
                arguments = (*(3, 3, 3)[:place], mode)
                assert run(program, number, arguments, AUDIT_ARCH[machine]) == expected
    assert run(program, NR["write"][MACHINES.index(machine)], (0, 0o2755), AUDIT_ARCH[machine]) == "allow"


@pytest.mark.parametrize("machine", MACHINES)
def test_other_abis_and_unknown_numbers_do_not_exist(machine: str) -> None:
    program = seccomp.program(nested=True, machine=machine)
    for name, arch in OTHER_ARCH.items():
        for number in (0, 1, 11, 102, 120, 41, 63, 512, 0x4000003B):
            result = run(program, number, (), arch)
            assert (result == "ENOSYS") or (name == machine and number < 512), (name, number)
    for number in (512, 520, 547, 600, 0x40000000, 0x40000000 | 520, 0x40000000 | 59, 0x7FFFFFFF, 0xFFFFFFFF, -1):
        assert run(program, number, (), AUDIT_ARCH[machine]) == "ENOSYS"
    assert run(program, 511, (), AUDIT_ARCH[machine]) == "allow"


@pytest.mark.parametrize("machine", MACHINES)
def test_without_mounts_what_is_newer_than_the_lists_does_not_exist(machine: str) -> None:
    """No mount stands behind Landlock there: file_setattr(2) of Linux 6.17 changed files of the host."""
    program, arch = seccomp.supervised_program(machine), AUDIT_ARCH[machine]
    for number in (469, 470, 511, 512, 0x40000000 | 41, -1):
        assert run(program, number, (), arch) == "ENOSYS", number
    assert run(program, 468, (), arch) == "allow"  # file_getattr
    ioctl = number_of("ioctl", machine)
    assert ioctl is not None
    for request, expected in ((0x5401, "allow"), (0x40049409, "allow"), (0x80086601, "allow"), (0x541B, "allow")):
        assert run(program, ioctl, (3, request, 0), arch) == expected
    for request in (0x40086602, 0x401C5820, 0x40806685, 0x5000940E, 0x50009417, 0x40047211, 0xF501, HIGH | 0x40086602):
        assert run(program, ioctl, (3, request, 0), arch) == "EPERM", hex(request)


@pytest.mark.parametrize("machine", MACHINES)
def test_sent_messages_are_asked_about_where_a_rule_lets_datagrams_out(machine: str) -> None:
    arch, fast_open = AUDIT_ARCH[machine], 0x20000000
    for datagrams, expected in ((False, "allow"), (True, "notify")):
        program = seccomp.supervised_program(machine, datagrams=datagrams)
        for name, flags in (("sendmsg", 2), ("sendmmsg", 3), ("recvmsg", 2), ("recvmmsg", 3)):
            number = NUMBERS[name][COLUMNS[machine]]
            assert run(program, number, (3, 1, 1, 0), arch) == (expected if name.startswith("send") else "notify"), name
            if name.startswith("send"):
                arguments = [3, 1, 1, 0]
                arguments[flags] = fast_open
                assert run(program, number, tuple(arguments), arch) == "EOPNOTSUPP", name


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_are_always_allowed_are_in_the_kernels_bitmap(machine: str) -> None:
    """Their path through the filter loads no argument, so the kernel runs no filter for them."""
    program = seccomp.program(machine=machine)
    names = "ioctl socket socketpair clone unshare personality "
    names += "openat open creat chmod fchmod fchmodat fchmodat2 mknod mknodat "
    names += "prlimit64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler setpriority ioprio_set"
    judged = {number_of(name, machine) for name in names.split()} - {None}
    for number in range(512):
        if number in judged:
            with pytest.raises(LoadsArgument):
                run(program, number, (), AUDIT_ARCH[machine], constant=True)
        else:
            constant = run(program, number, (), AUDIT_ARCH[machine], constant=True)
            assert constant == run(program, number, (2**64 - 1,) * 6, AUDIT_ARCH[machine])
    for name in ALWAYS_ALLOWED:
        if (number := number_of(name, machine)) is not None:
            assert run(program, number, (), AUDIT_ARCH[machine], constant=True) == "allow"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("nested", "allow_ptrace"), OPTIONS)
def test_the_program_is_one_the_kernel_takes(machine: str, nested: bool, allow_ptrace: bool) -> None:
    """net/core/filter.c bpf_check_classic, kernel/seccomp.c seccomp_check_filter."""
    program = seccomp.program(nested=nested, allow_ptrace=allow_ptrace, machine=machine)
    code = list(struct.iter_unpack("<HBBI", program))
    assert len(code) <= 200
    for index, (operation, jump_true, jump_false, k) in enumerate(code):
        assert operation in (0x20, 0x54, 0x06, 0x15, 0x35, 0x45)
        if operation & 7 == 5:
            assert index + 1 + max(jump_true, jump_false) < len(code)
        else:
            assert jump_true == jump_false == 0
        if operation == 0x20:
            assert k % 4 == 0 and k < 64
    assert code[-1][0] == 0x06
    assert program == seccomp.program(nested=nested, allow_ptrace=allow_ptrace, machine=machine)


@pytest.mark.parametrize("machine", MACHINES)
@given(
    number=st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1)),
    arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 6),
)
def test_nested_and_ptrace_only_ever_widen(machine: str, number: int, arguments: tuple[int, ...]) -> None:
    results = {
        options: run(
            seccomp.program(nested=options[0], allow_ptrace=options[1], machine=machine),
            number,
            arguments,
            AUDIT_ARCH[machine],
        )
        for options in OPTIONS
    }
    if results[False, False] == "allow":
        assert set(results.values()) == {"allow"}
    if results[True, True] != "allow":
        assert set(results.values()) == {results[True, True]}


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(HostError, match="riscv64: its system call numbers are not known"):
        seccomp.program(machine="riscv64")


OPENED = {
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
NEW_MOUNTS, NEW_TIME = 0x00020000, 0x80


@pytest.mark.parametrize("machine", MACHINES)
def test_user_namespaces_open_those_and_chroot_and_nothing_else(machine: str) -> None:
    """A mount namespace of its own would miss the masks that come later: it stays refused, alone or beside others."""
    closed = seccomp.program(machine=machine)
    opened = seccomp.program(user_namespaces=True, machine=machine)
    arch = AUDIT_ARCH[machine]

    def answers(number: int, *arguments: int) -> tuple[str, str]:
        return run(closed, number, arguments, arch), run(opened, number, arguments, arch)

    differ = {number: pair for number in range(600) if len(set(pair := answers(number))) == 2}
    assert differ == {number_of("chroot", machine): ("EPERM", "allow")}
    for name in ("clone", "unshare"):
        number = number_of(name, machine)
        assert number is not None
        for flag in OPENED.values():
            assert answers(number, flag) == ("EPERM", "allow")
            assert answers(number, flag | NEW_MOUNTS) == ("EPERM", "EPERM")
        assert answers(number, NEW_MOUNTS) == ("EPERM", "EPERM")
        assert answers(number, 0) == ("allow", "allow")
    assert answers(number_of("unshare", machine) or 0, NEW_TIME) == ("EPERM", "EPERM")
    assert answers(number_of("clone3", machine) or 0) == ("ENOSYS", "ENOSYS")


@pytest.mark.parametrize("machine", MACHINES)
def test_nested_is_nested_also_with_user_namespaces(machine: str) -> None:
    both = seccomp.program(nested=True, user_namespaces=True, machine=machine)
    assert both == seccomp.program(nested=True, machine=machine)


@pytest.mark.parametrize("machine", MACHINES)
def test_set_user_id_files_are_made_only_where_that_was_said(machine: str) -> None:
    mode, arch = 0o4755, AUDIT_ARCH[machine]
    calls = [("fchmodat", (0, 0, mode)), ("openat", (0, 0, 0o101, mode)), ("mknodat", (0, 0, mode))]
    for options, answer in (
        ({"nested": True}, "EPERM"),
        ({"set_ids": True}, "EPERM"),  # of no effect without namespaces of its own
        ({"nested": True, "set_ids": True}, "allow"),
    ):
        program = seccomp.program(**options, machine=machine)  # type: ignore[arg-type]
        assert [run(program, number_of(name, machine) or 0, a, arch) for name, a in calls] == [answer] * 3
    for nested in (False, True):  # what is left to the reader of notifications, who does not let it through
        program = seccomp.program(nested=nested, ids_are_notified=True, machine=machine)
        answers = [run(program, number_of(name, machine) or 0, a, arch) for name, a in calls]
        assert answers == ["allow", "allow", "EPERM"]
        assert run(program, number_of("openat2", machine) or 0, (), arch) == "ENOSYS"


@pytest.mark.parametrize("machine", MACHINES)
def test_what_the_reader_of_notifications_is_told_of_is_left_to_it(machine: str) -> None:
    """Whatever the first filter leaves out for it the second one tells."""
    mode, arch = 0o4755, AUDIT_ARCH[machine]
    program = seccomp.program(nested=True, ids_are_notified=True, machine=machine)
    told = seccomp.notified_calls(machine).values()
    for name, a in (("fchmodat", (0, 0, mode)), ("openat", (0, 0, 0o101, mode)), ("fchmod", (0, mode))):
        assert run(program, number_of(name, machine) or 0, a, arch) == "allow" and name in told
    assert run(program, number_of("mknodat", machine) or 0, (0, 0, mode), arch) == "EPERM"


@pytest.mark.parametrize("machine", MACHINES)
def test_attributes_that_could_be_file_capabilities_are_not_set(machine: str) -> None:
    names, arch = ("setxattr", "lsetxattr", "fsetxattr", "setxattrat"), AUDIT_ARCH[machine]
    for attributes, answer in ((True, "allow"), (False, "EOPNOTSUPP")):
        program = seccomp.program(nested=True, attributes=attributes, machine=machine)
        assert {run(program, number_of(name, machine) or 0, (), arch) for name in names} == {answer}


@pytest.mark.parametrize("machine", MACHINES)
def test_without_unix_sockets_none_is_made_that_has_a_name(machine: str) -> None:
    """socketpair(2) stays: its ends reach nobody else."""
    number, pair, arch = number_of("socket", machine) or 0, number_of("socketpair", machine) or 0, AUDIT_ARCH[machine]
    for unix, answer in ((True, "allow"), (False, "EPERM")):
        program = seccomp.program(unix=unix, machine=machine)
        assert run(program, number, (1, 1, 0), arch) == answer
        assert run(program, number, (2, 1, 6), arch) == "allow"
        assert run(program, pair, (1, 1, 0), arch) == "allow"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("ids", [(1000, 1001, 1), (0, 0, 1), (0, 0, 65536)])
def test_an_owner_that_is_not_mapped_is_refused_as_for_everybody(machine: str, ids: tuple[int, int, int]) -> None:
    arch, (uid, gid, count) = AUDIT_ARCH[machine], ids
    program, without = seccomp.program(ids=ids, machine=machine), seccomp.program(machine=machine)
    good = {-1, uid, uid + count - 1}, {-1, gid, gid + count - 1}
    bad = ({uid - 1, uid + count, 0xFFFFFFFE, 0x7FFFFFFF} - {-1}, {gid - 1, gid + count, 0xFFFFFFFE} - {-1})
    for name, before in (("chown", 1), ("lchown", 1), ("fchown", 1), ("fchownat", 2)):
        number = NUMBERS[name][COLUMNS[machine]]
        if number < 0:
            continue
        for owner in good[0] | bad[0]:
            for group in good[1] | bad[1]:
                arguments = (*(0,) * before, owner, group)
                allowed = owner in good[0] and group in good[1]
                assert run(program, number, arguments, arch) == ("allow" if allowed else "EPERM"), (name, owner, group)
                assert run(without, number, arguments, arch) == "allow"
        high = (*(0,) * before, uid | 1 << 40, gid | 1 << 40)  # the kernel reads 32 bits (uid_t)
        assert run(program, number, high, arch) == "allow"


def test_with_user_namespaces_of_the_command_owners_are_the_kernels() -> None:
    for options in ({"nested": True}, {"user_namespaces": True}):
        made = seccomp.program(ids=(1000, 1000, 1), machine="x86_64", **options)
        assert made == seccomp.program(machine="x86_64", **options)
