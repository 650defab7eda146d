"""The filter under the running kernel: each refused call gives its errno, and gave another answer without it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pty
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from functools import partial

import pytest
from children import ChildFailed, outcome, run, unshare

from membrane.host import seccomp
from membrane.host import syscalls as sc
from membrane.host.numbers import NUMBERS

COLUMN = 0 if sc.MACHINE == "x86_64" else 1
INVALID = 2**32 - 1  # no descriptor, no flag set: every call fails on its own, with another errno than the filter's


def call(name: str, *arguments: int) -> None:
    """A system call by number."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {**NUMBERS, "getpid": (39, 172)}
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, *[0] * (6 - len(arguments)))]
    if libc.syscall(ctypes.c_long(numbers[name][COLUMN]), *padded) < 0:
        raise OSError(ctypes.get_errno(), name)


def clone(flags: int) -> None:
    pid = sc.clone(flags)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def inject(request: int) -> None:
    """Push a byte into the input queue of the controlling terminal."""
    _, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(slave, ctypes.c_ulong(request), ctypes.c_char_p(b"x")) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


Attempt = tuple[Callable[[], object], str]

# name: (attempt, errno under the filter); tried with every capability of an own user namespace
REFUSED: dict[str, Attempt] = {
    "mount": (partial(call, "mount", 0, 0, 0, 0, 0), "EPERM"),
    "umount2": (partial(call, "umount2", 0, 0), "EPERM"),
    "pivot_root": (partial(call, "pivot_root", 0, 0), "EPERM"),
    "chroot": (partial(call, "chroot", 0), "EPERM"),
    "setns": (partial(call, "setns", INVALID, 0), "EPERM"),
    "sethostname": (partial(call, "sethostname", 0, 2**20), "EPERM"),
    "pidfd_getfd": (partial(call, "pidfd_getfd", INVALID, 0, 0), "EPERM"),
    "fanotify_init": (partial(call, "fanotify_init", 0x200, 0), "EPERM"),
    "unshare user": (partial(sc.unshare, sc.CLONE_NEWUSER), "EPERM"),
    "unshare net": (partial(sc.unshare, sc.CLONE_NEWNET), "EPERM"),
    "unshare time": (partial(sc.unshare, sc.CLONE_NEWTIME), "EPERM"),
    "clone user": (partial(clone, sc.CLONE_NEWUSER), "EPERM"),
    "clone mount and net": (partial(clone, sc.CLONE_NEWNS | sc.CLONE_NEWNET), "EPERM"),
    "clone3": (partial(call, "clone3", 0, 0), "ENOSYS"),
    "fsopen": (partial(call, "fsopen", 0, 0), "ENOSYS"),
    "open_tree": (partial(call, "open_tree", INVALID, 0, INVALID), "ENOSYS"),
    "move_mount": (partial(call, "move_mount", INVALID, 0, INVALID, 0, INVALID), "ENOSYS"),
    "mount_setattr": (partial(call, "mount_setattr", INVALID, 0, INVALID, 0, 0), "ENOSYS"),
    "io_uring_setup": (partial(call, "io_uring_setup", 1, 0), "ENOSYS"),
    "packet socket": (partial(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0), "EAFNOSUPPORT"),
    "netfilter socket": (partial(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 12), "EAFNOSUPPORT"),
    "raw socket": (partial(socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), "EPERM"),
    "raw v6 socket": (partial(socket.socket, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6), "EPERM"),
    "socketpair": (partial(socket.socketpair, socket.AF_INET, socket.SOCK_STREAM), "EAFNOSUPPORT"),
    "TIOCSTI": (partial(inject, termios.TIOCSTI), "EPERM"),
    "TIOCSTI, high bits": (partial(inject, 1 << 32 | termios.TIOCSTI), "EPERM"),
    "TIOCSETD": (partial(fcntl.ioctl, 0, termios.TIOCSETD, b"\0\0\0\0"), "EPERM"),
    "personality": (partial(call, "personality", 0x0400000), "EPERM"),
    "snapshot of btrfs": (partial(fcntl.ioctl, 0, 0x50009417, bytearray(4096)), "EPERM"),
    "snapshot of btrfs, first version": (partial(fcntl.ioctl, 0, 0x50009401, bytearray(4096)), "EPERM"),
    "subvolume of btrfs": (partial(fcntl.ioctl, 0, 0x5000940E, bytearray(4096)), "EPERM"),
    "removal of a subvolume": (partial(fcntl.ioctl, 0, 0x5000943F, bytearray(4096)), "EPERM"),
    "snapshot of bcachefs": (partial(fcntl.ioctl, 0, 0x4020BC10, bytearray(32)), "EPERM"),
}
# Refused without the filter as well, by the lack of a capability over the whole machine or of the kernel part.
MAY_BE_REFUSED_ALREADY: dict[str, Attempt] = {
    "bpf": (partial(call, "bpf", 0, 0, 0), "EPERM"),
    "perf_event_open": (partial(call, "perf_event_open", 0, 0, 0, 0, 0), "EPERM"),
    "userfaultfd": (partial(call, "userfaultfd", 0), "EPERM"),
    "open_by_handle_at": (partial(call, "open_by_handle_at", INVALID, 0, 0), "EPERM"),
    "kcmp": (partial(call, "kcmp", os.getpid(), os.getpid(), 0, 0, 0), "EPERM"),
    "init_module": (partial(call, "init_module", 0, 0, 0), "EPERM"),
    "kexec_load": (partial(call, "kexec_load", 0, 0, 0, 0), "EPERM"),
    "syslog": (partial(call, "syslog", 3, 0, 0), "EPERM"),
    "keyctl": (partial(call, "keyctl", 0, 0), "ENOSYS"),
    "add_key": (partial(call, "add_key", 0, 0, 0, 0, 0), "ENOSYS"),
    "vsock": (partial(socket.socket, 40, socket.SOCK_STREAM, 0), "EAFNOSUPPORT"),
    "alg": (partial(socket.socket, 38, socket.SOCK_SEQPACKET, 0), "EAFNOSUPPORT"),
    "mptcp": (partial(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 262), "EPROTONOSUPPORT"),
    "sctp": (partial(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 132), "EPROTONOSUPPORT"),
}


def results(
    attempts: dict[str, tuple[Callable[[], object], str]], *, filtered: bool, nested: bool = False
) -> dict[str, str]:
    """Each attempt in a child of its own with all capabilities over the namespaces that all of them share."""

    def one(attempt: Callable[[], object]) -> str:
        if filtered:
            install(nested=nested)
        return outcome(attempt)

    def body() -> dict[str, str]:
        unshare(sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWUTS)
        return {name: run(partial(one, attempt)) for name, (attempt, _) in attempts.items()}

    return run(body)


def install(*, nested: bool = False) -> None:
    sc.no_new_privs()
    sc.seccomp_set_filter(seccomp.program(nested=nested, machine=sc.MACHINE))


def test_refused_calls() -> None:
    expected = {name: result for name, (_, result) in REFUSED.items()}
    assert results(REFUSED, filtered=True) == expected
    control = results(REFUSED, filtered=False)
    assert not [name for name in REFUSED if control[name] == expected[name]], control


def test_calls_that_need_more_than_this_kernel_may_give() -> None:
    expected = {name: result for name, (_, result) in MAY_BE_REFUSED_ALREADY.items()}
    assert results(MAY_BE_REFUSED_ALREADY, filtered=True) == expected


def test_nested_allows_namespaces_mounts_and_netfilter_only() -> None:
    opened = {
        name: REFUSED[name]
        for name in (
            "mount",
            "umount2",
            "chroot",
            "setns",
            "unshare user",
            "clone user",
            "clone3",
            "fsopen",
            "open_tree",
            "netfilter socket",
        )
    }
    assert results(opened, filtered=True, nested=True) == results(opened, filtered=False)
    closed = {name: row for name, row in REFUSED.items() if name not in opened}
    for name in ("pivot_root", "move_mount", "mount_setattr", "sethostname", "unshare net", "unshare time"):
        del closed[name]
    del closed["clone mount and net"]
    assert results(closed, filtered=True, nested=True) == {name: result for name, (_, result) in closed.items()}


def test_what_programs_need_works() -> None:
    def body() -> list[str]:
        install()
        done = []
        for family, kind, protocol in (
            (socket.AF_INET, socket.SOCK_STREAM, 0),
            (socket.AF_INET6, socket.SOCK_DGRAM, 17),
            (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0),
            (socket.AF_NETLINK, socket.SOCK_RAW, 0),
        ):
            done.append(outcome(partial(socket.socket, family, kind, protocol)))
        socket.socketpair()[0].close()
        thread = threading.Thread(target=done.append, args=("thread",))
        thread.start()
        thread.join()
        program = "import os, sys; os.memfd_create('x'); sys.stdout.write('child')"
        done.append(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.decode())
        master, slave = pty.openpty()
        done.append(outcome(partial(fcntl.ioctl, slave, termios.TIOCGWINSZ, bytes(8))))
        os.close(master)
        return done

    assert run(body) == ["ok"] * 4 + ["thread", "child", "ok"]


def test_the_filter_can_not_be_taken_off() -> None:
    def body() -> list[str]:
        install()
        libc = ctypes.CDLL(None, use_errno=True)
        disabled = libc.prctl(22, 0, 0, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_DISABLED
        # A second filter that allows everything: the strictest result counts.
        sc.seccomp_set_filter(b"\x06\0\0\0\0\0\xff\x7f")
        return [str(disabled), outcome(partial(call, "mount", 0, 0, 0, 0, 0))]

    assert run(body) == ["-1", "EPERM"]


def test_unknown_numbers_and_x32_do_not_exist() -> None:
    def body() -> list[int]:
        install()
        libc = ctypes.CDLL(None, use_errno=True)
        errors = []
        for number in (512, 600, 0x40000000 | 39, 0x40000000 | 520):
            assert libc.syscall(ctypes.c_long(number), 0, 0, 0) == -1
            errors.append(ctypes.get_errno())
        return errors

    assert run(body) == [errno.ENOSYS] * 4


if sc.MACHINE == "x86_64":

    def test_the_32_bit_entry_is_closed() -> None:
        def getpid_by_int80() -> int:
            code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20 (getpid of i386); int 0x80; ret
            address = ctypes.addressof(ctypes.c_char.from_buffer(code))
            return ctypes.CFUNCTYPE(ctypes.c_int)(address)()

        def filtered() -> int:
            install()
            return getpid_by_int80()

        try:
            assert run(lambda: getpid_by_int80() == os.getpid())
        except ChildFailed:  # a kernel without 32-bit entry kills the process
            with pytest.raises(ChildFailed):
                run(filtered)
        else:
            assert run(filtered) == -errno.ENOSYS


@pytest.mark.parametrize("listens", [True, False])
def test_without_the_reader_of_notifications_no_unix_socket_is_made(listens: bool) -> None:
    """What is left to it fails, and no listener of the command's own takes its place; else the kernel admits one."""

    def body() -> list[str]:
        sc.no_new_privs()
        listener = sc.seccomp_listen(seccomp.notify_program(unix=True, machine=sc.MACHINE))
        lax = seccomp.program(unix=False, unix_is_notified=True, listens=listens, machine=sc.MACHINE)
        sc.seccomp_set_filter(lax)
        own = seccomp.notify_program(unix=True, machine=sc.MACHINE)
        said = [outcome(lambda: sc.seccomp_listen(own))]
        os.close(listener)  # as at the reader's end
        said.append(outcome(lambda: socket.socket(socket.AF_UNIX)))
        said.append(outcome(lambda: sc.seccomp_set_filter(own)))  # a filter without a listener may be added
        said.append(outcome(lambda: socket.socket(socket.AF_UNIX)))
        said.append(outcome(lambda: sc.seccomp_listen(own)))
        return said

    assert run(body) == ["EBUSY", "ENOSYS", "ok", "ENOSYS", "EBUSY" if listens else "ok"]
