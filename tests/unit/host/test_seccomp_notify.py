"""The second filter, which only tells, run by the interpreter of ``test_seccomp`` on both machines."""

from __future__ import annotations

import os

import pytest
import test_seccomp as bpf

from membrane.errors import HostError
from membrane.host import seccomp

TOLD = 0x7FC00000  # SECCOMP_RET_USER_NOTIF
TMPFILE = 0o20000000
READS = (0, os.O_CLOEXEC, os.O_NONBLOCK, os.O_APPEND, os.O_EXCL)
WRITES = (1, 2, 3, os.O_CREAT, os.O_TRUNC, os.O_APPEND | 1, TMPFILE | 2, os.O_CREAT | os.O_EXCL)
OPENS = {"x86_64": ((257, 2), (2, 1)), "aarch64": ((56, 2),)}
SENDS = {"x86_64": ((44, 3), (46, 2), (307, 3)), "aarch64": ((206, 3), (211, 2), (269, 3))}
FASTOPEN = 0x20000000
SOCKET = {"x86_64": 41, "aarch64": 198}
ALWAYS = {
    "x86_64": (
        *(59, 322, 85, 87, 263, 84, 82, 264, 316, 83, 258, 86, 265, 88, 266, 133, 259, 76, 42, 49),
        *(90, 91, 268, 452, 92, 93, 94, 260, 188, 189, 190, 463, 197, 198, 199, 466),
    ),
    "aarch64": (
        *(221, 281, 35, 38, 276, 34, 37, 36, 33, 45, 203, 200),
        *(52, 53, 452, 54, 55, 5, 6, 7, 463, 14, 15, 16, 466),
    ),
}


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bpf.RESULTS, TOLD, "told")


def ask(machine: str, number: int, *arguments: int, reads: bool = False, arch: str = "") -> str:
    program = seccomp.notify_program(reads=reads, machine=machine)
    return bpf.run(program, number, arguments, bpf.AUDIT_ARCH.get(arch or machine, 0x40000003))


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_opens_are_told_by_their_flags(machine: str) -> None:
    for number, position in OPENS[machine]:
        for flags in WRITES:
            assert ask(machine, number, *[0] * position, flags) == "told", flags
        for flags in READS:
            assert ask(machine, number, *[0] * position, flags) == "allow", flags
            assert ask(machine, number, *[0] * position, flags, reads=True) == "told"
        # Only the low half of the register is the flags: int (open(2)).
        assert ask(machine, number, *[0] * position, 1 << 32) == "allow"


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_sends_are_told_that_name_a_place_or_open_a_connection(machine: str) -> None:
    for number, position in SENDS[machine]:
        assert ask(machine, number, *[1] * position, 0x4000) == "allow"  # MSG_NOSIGNAL
        assert ask(machine, number, *[1] * position, FASTOPEN | 0x4000) == "told"
    sendto = SENDS[machine][0][0]
    assert ask(machine, sendto, 3, 1, 1, 0, 0, 0) == "allow"  # of a connected socket
    for name in (1, 1 << 32, 0x7FFF_0000_0000):  # either half of the pointer
        assert ask(machine, sendto, 3, 1, 1, 0, name, 16) == "told"


NAMESPACES = {"x86_64": {56, 272}, "aarch64": {220, 97}}  # clone, unshare


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_raw_sockets_are_left_to_the_second_filter_where_it_tells_them(machine: str) -> None:
    """And nothing else is: whatever the first one lets pass and did not, the second one tells."""
    strict, lax = (seccomp.program(raw_is_notified=told, machine=machine) for told in (False, True))
    telling, silent = (seccomp.notify_program(raw=told, machine=machine) for told in (True, False))
    arch = bpf.AUDIT_ARCH[machine]
    left = set()
    for family in (*range(48), 0xFFFFFFFF):
        for kind in (*range(12), 3 | os.O_CLOEXEC, 3 | os.O_NONBLOCK, 0x13):
            for protocol in (0, 1, 6, 17, 58, 132, 255, 262):
                arguments = (family | 1 << 40, kind | 1 << 33, protocol)
                before, now = (bpf.run(program, SOCKET[machine], arguments, arch) for program in (strict, lax))
                told = bpf.run(telling, SOCKET[machine], arguments, arch)
                assert bpf.run(silent, SOCKET[machine], arguments, arch) == "allow"
                assert (told == "told") == (before != now), arguments
                if before != now:
                    assert (before, now) == ("EPERM", "allow")
                    left.add((family, kind & 0xF))
    assert left == {(2, 3), (10, 3)}


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_unix_sockets_are_left_to_the_second_filter_where_it_tells_them(machine: str) -> None:
    """And nothing else is; where there is no second filter another one refuses them."""
    strict, lax = (seccomp.program(unix=False, unix_is_notified=told, machine=machine) for told in (False, True))
    telling, silent = (seccomp.notify_program(unix=told, machine=machine) for told in (True, False))
    chmod = {"x86_64": 91, "aarch64": 52}[machine]  # fchmod
    for ids, answer in ((True, "EPERM"), (False, "allow")):
        both = seccomp.unwatched_program(machine, ids=ids, unix=False)
        assert bpf.run(both, chmod, (3, 0o2755), bpf.AUDIT_ARCH[machine]) == answer
    instead, nothing = (seccomp.unwatched_program(machine, ids=False, unix=told) for told in (False, True))
    arch = bpf.AUDIT_ARCH[machine]
    for family in (*range(48), 0xFFFFFFFF):
        for kind in (1, 2, 3, 5, 1 | os.O_CLOEXEC):
            arguments = (family | 1 << 40, kind, 0)
            ask = [bpf.run(program, SOCKET[machine], arguments, arch) for program in (strict, lax, telling, instead)]
            assert bpf.run(silent, SOCKET[machine], arguments, arch) == "allow"
            assert bpf.run(nothing, SOCKET[machine], arguments, arch) == "allow"
            if family == 1:
                assert ask == ["EPERM", "allow", "told", "EPERM"]
            else:
                assert ask[0] == ask[1] and ask[2:] == ["allow", "allow"]
    both = seccomp.notify_program(unix=True, raw=True, machine=machine)
    answers = [bpf.run(both, SOCKET[machine], (family, 3, 0), arch) for family in (1, 2, 10, 16)]
    assert answers == ["told", "told", "told", "allow"]


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_who_has_a_listener_of_ours_gets_none_of_its_own(machine: str) -> None:
    """A newer filter's would be asked in the place of ours once that is gone (kernel/seccomp.c)."""
    program, without = (seccomp.program(listens=ours, machine=machine) for ours in (True, False))
    number, arch = {"x86_64": 317, "aarch64": 277}[machine], bpf.AUDIT_ARCH[machine]
    rows = ((1, 8, "EBUSY"), (1, 0x38, "EBUSY"), (1, 1, "allow"), (0, 8, "allow"), (3, 0, "allow"))
    for operation, flags, answer in rows:
        assert bpf.run(program, number, (operation | 1 << 40, flags | 1 << 40, 0), arch) == answer
        assert bpf.run(without, number, (operation, flags, 0), arch) == "allow"


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_new_namespaces_are_left_to_the_second_filter_where_it_tells_them(machine: str) -> None:
    """And no other process or thread is told."""
    strict, lax = (seccomp.program(namespaces_are_notified=told, machine=machine) for told in (False, True))
    telling, silent = (seccomp.notify_program(namespaces=told, machine=machine) for told in (True, False))
    arch = bpf.AUDIT_ARCH[machine]
    calls = {name: number for number, name in seccomp.notified_calls(machine).items()}
    for name in ("clone", "unshare"):
        left = set()
        for flags in (*(1 << bit for bit in range(32)), 17, 0x3D0F00, 0x10000011, 0x7C020011, 0):
            before, now = (bpf.run(program, calls[name], (flags | 1 << 40,), arch) for program in (strict, lax))
            told = bpf.run(telling, calls[name], (flags | 1 << 40,), arch)
            assert bpf.run(silent, calls[name], (flags,), arch) == "allow"
            assert (told == "told") == (before != now), flags
            if before != now:
                assert (before, now) == ("EPERM", "allow")
                left.add(flags)
        assert {0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x4000000, 0x2000000} <= left
        assert not {17, 0x3D0F00, 0, 0x100, 0x4000} & left
    nested = seccomp.program(user_namespaces=True, machine=machine)
    assert bpf.run(nested, calls["unshare"], (0x20000,), arch) == "EPERM", "what is allowed has its own rule"


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_exactly_the_listed_calls_are_told(machine: str) -> None:
    told = {number for number in range(512) if ask(machine, number) == "told"}
    assert told == set(ALWAYS[machine])
    sends = {number for number, _position in SENDS[machine]}
    opens = {number for number, _position in OPENS[machine]}
    assert set(seccomp.notified_calls(machine)) == told | opens | sends | {SOCKET[machine]} | NAMESPACES[machine]
    other = "aarch64" if machine == "x86_64" else "x86_64"
    for number in (*told, 0x40000000 | 59, 600):
        assert ask(machine, number, arch=other) == "allow"  # the first filter refuses other machines


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_the_common_calls_stay_in_the_bitmap(machine: str) -> None:
    program = seccomp.notify_program(machine=machine)
    for name in ("read", "write", "close", "mmap", "futex"):
        number = bpf.NR[name][0 if machine == "x86_64" else 1]
        assert bpf.run(program, number, (), bpf.AUDIT_ARCH[machine], constant=True) == "allow"
    assert len(program) // 8 < 256


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(HostError):
        seccomp.notify_program(machine="riscv64")
