"""The probes of ``membrane doctor``: what they find, what they say of a missing feature, what they leave behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from children import outcome, run, unshare

from membrane.host import landlock, probe, seccomp
from membrane.host import syscalls as sc
from membrane.tracer.pins import STATE

# Depend on how the machine is set up, not on the kernel that the rest of the suite needs.
OPTIONAL = ("cgroup v2 delegation", "eBPF programs", "BTF", "ring buffer", "no AppArmor restriction")


def answer(body: Callable[[], str], fix: str = "") -> tuple[str, str, str]:
    """State, reason and advice of one probe."""

    def child() -> tuple[str, str, str]:
        support, _ = probe._try(body, fix)
        return support.state, support.why, support.fix

    return run(child)


def all_features() -> list[tuple[str, str, str, str, str]]:
    return run(lambda: [(group, name, s.state, s.why, s.fix) for group, name, s in probe.features()], seconds=60)


def test_every_feature_that_the_suite_needs_is_found() -> None:
    found = all_features()
    names = [name for _, name, _, _, _ in found]
    assert len(set(names)) == len(names)
    for group, name, state, why, _ in found:
        assert group in ("native", "tracing")
        assert state == "yes" or why, name
        if not name.startswith(OPTIONAL):
            assert state == "yes", (name, why)
    assert {"private kuid range", "idmapped mounts"} <= set(names) or os.geteuid() != 0
    assert not {"private kuid range", "idmapped mounts"} & set(names) or os.geteuid() == 0
    assert f"Landlock ABI {landlock.abi()}" in {name.partition(",")[0] for name in names}


def test_the_probes_leave_nothing_behind() -> None:
    def state() -> list[object]:
        mine = f"membrane-probe-{os.getpid()}"
        cgroups = [path for path, _, _ in os.walk("/sys/fs/cgroup") if path.endswith(mine)]
        # But for the one that root's runs keep their tracing programs in.
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {STATE}/" not in line]
        return [mounts, cgroups, os.listdir("/proc/self/fd")]

    def body() -> tuple[list[object], list[object], str]:
        before = state()
        probe.features()
        with contextlib.suppress(OSError, probe.Absent):
            probe._cgroup_delegation()  # in this process, so that the name is known
        return before, state(), outcome(partial(os.waitpid, -1, os.WNOHANG))

    before, after, children = run(body, seconds=60)
    assert before == after
    assert children == "ECHILD"


# ---------------------------------------------------------------- missing features


def test_user_namespaces_used_up() -> None:
    def body() -> tuple[str, str, str]:
        unshare(0)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        support, _ = probe._try(probe._user_namespaces, "")
        return support.state, support.why, support.fix

    assert run(body) == (
        "no",
        f"ENOSPC: unshare: {os.strerror(errno.ENOSPC)}",
        "sudo sysctl user.max_user_namespaces=63000",
    )


def test_inside_a_filter_nothing_that_it_refuses_is_said_to_work() -> None:
    def body() -> dict[str, str]:
        sc.no_new_privs()
        sc.seccomp_set_filter(seccomp.program(machine=sc.MACHINE))
        return {name: support.state for _, name, support in probe.features()}

    states = run(body, seconds=60)
    for name in ("user namespaces", "network namespaces", "TPROXY", "nftables", "DNAT", "AnyIP", "mount_setattr"):
        assert states[name] == "no", name
    assert states["ring buffer"] == "no"
    assert states["seccomp notify"] == "yes"
    assert states["openat2"] == "no"  # its mode is in memory, where the filter cannot look for set-user-ID
    assert states["pidfd"] == "yes"


def test_a_kernel_without_tproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    def transact(_self: object, messages: list[tuple[int, int, bytes, str]], *, batch: bool = False) -> None:
        if batch:
            raise OSError(errno.ENOENT, f"netlink {messages[-1][3]}: No such file or directory")

    monkeypatch.setattr(probe.netlink.Connection, "transact", transact)
    state, why, fix = answer(probe._tproxy, "sudo modprobe nft_tproxy")
    assert state == "no" and fix == "sudo modprobe nft_tproxy"
    assert "No such file or directory" in why


def test_a_kernel_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "restrict", lambda _read_only, _writable: 0)
    state, why, fix = answer(probe._landlock)
    assert state == "no" and "not built into this kernel" in why and "lsm=" in fix


def test_a_restriction_that_does_not_bind_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "restrict", lambda _read_only, _writable: 7)
    assert answer(probe._landlock)[:2] == ("no", "a forbidden file was opened for writing")
    monkeypatch.setattr(seccomp, "program", lambda machine: b"\x06\0\0\0\0\0\xff\x7f")
    assert answer(probe._seccomp_filter)[:2] == ("no", "a forbidden call was made")


# ---------------------------------------------------------------- children that give no answer


def test_a_probe_that_hangs_is_unknown_and_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_DEADLINE", 0.2)

    def body() -> tuple[str, str, bytes]:
        told, tell = os.pipe()

        def hang() -> str:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.fork()
            os.write(tell, b"x")
            while True:
                signal.pause()

        support, _ = probe._try(hang, "")
        os.close(tell)
        seen = b""
        while part := os.read(told, 10):  # the end of file comes when both are gone
            seen += part
        return support.state, support.why, seen

    assert run(body) == ("unknown", "no answer in 0.2 s", b"xx")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_probe_that_dies_is_unknown(number: int) -> None:
    def die() -> str:
        os.kill(os.getpid(), number)
        return ""

    state, why, _ = answer(die)
    assert state == "unknown" and "without an answer" in why


def test_a_defect_of_ours_is_unknown_and_a_refusal_is_no() -> None:
    def raising(error: Exception) -> Callable[[], str]:
        def body() -> str:
            raise error

        return body

    assert answer(raising(KeyError("x"))) == ("unknown", "KeyError: 'x'", "")
    assert answer(raising(OSError(errno.EPERM, "bpf: not permitted")), "fix it") == (
        "no",
        "EPERM: bpf: not permitted",
        "fix it",
    )
    assert answer(raising(probe.Absent("why", "own fix")), "other fix") == ("no", "why", "own fix")
    assert answer(raising(probe.Absent("why")), "other fix") == ("no", "why", "other fix")
