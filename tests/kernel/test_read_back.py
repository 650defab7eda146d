"""``host/readback.py`` refuses a process that lacks one part of its confinement, whichever that is.

Each case makes a real process that does what a command does before it waits for the word, but for one step, and the
supervisor's check reads it from outside.  The control leaves nothing out, and passes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from children import run, unshare

from membrane.errors import HostError
from membrane.host import seccomp
from membrane.host import syscalls as sc
from membrane.host.readback import read_back
from membrane.plan.build import build
from membrane.plan.model import HostFacts, Overlay, SandboxPlan
from membrane.plan.system import CAPABILITIES
from membrane.policy.model import Policy

NAMESPACES = {
    "mnt": sc.CLONE_NEWNS,
    "pid": sc.CLONE_NEWPID,
    "net": sc.CLONE_NEWNET,
    "ipc": sc.CLONE_NEWIPC,
    "uts": sc.CLONE_NEWUTS,
    "cgroup": sc.CLONE_NEWCGROUP,
}
CAP_SETPCAP, CAP_NET_RAW = 1 << 8, 1 << 13

pytestmark = pytest.mark.needs_kernel("user namespaces")


def plan(uid: int) -> SandboxPlan:
    facts = HostFacts(1000, 1000, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ())
    return build(Policy(), facts).replace(base_kuid=0, uid=uid)


def set_filter() -> None:
    sc.seccomp_set_filter(seccomp.program(nested=False, machine=sc.MACHINE))


def hold(held: int, inherited: int) -> None:
    """capset(2): the permitted and effective sets, and the inheritable one."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(held, held, inherited)) == 0


def confine(missing: str) -> None:
    """As ``host.init`` does it, without ``missing``."""
    if missing == "no_new_privs":  # then the filter needs CAP_SYS_ADMIN
        set_filter()
    sc.drop_capabilities(CAP_NET_RAW if missing == "permitted" else 0, bounding=missing != "bounding")
    if missing == "no_new_privs":
        return
    sc.no_new_privs()
    if missing != "filter":
        set_filter()


def confine_with_inheritable(_missing: str) -> None:
    hold(CAP_SETPCAP, CAP_NET_RAW)
    sc.drop_bounding_set()
    hold(0, CAP_NET_RAW)
    sc.no_new_privs()
    set_filter()


@contextmanager
def process(
    missing: str, step: Callable[[str], None] = confine, before: Callable[[], object] | None = None
) -> Iterator[int]:
    """The pid of a process that confined itself without ``missing`` and waits; it ends with the context."""
    tell, told = os.pipe()
    wait, release = os.pipe()
    middle = os.fork()  # a namespace of pids begins with the next child
    if middle == 0:
        try:
            os.close(release)
            if before is not None:
                before()
            flags = sum(flag for name, flag in NAMESPACES.items() if name != missing)
            if missing == "user":
                sc.unshare(flags)
            else:
                unshare(flags)
            inner = os.fork()
            if inner == 0:
                step(missing)
                os.write(told, b"\0")
                os.read(wait, 1)
                os._exit(0)
            os.write(told, str(inner).encode())
            os.waitpid(inner, 0)
        finally:
            os._exit(0)
    os.close(told)
    os.close(wait)
    try:
        data = b""
        while not (b"\0" in data and len(data) > 1):
            part = os.read(tell, 100)
            assert part, f"it ended early: {missing}"
            data += part
        yield int(data.replace(b"\0", b""))
    finally:
        os.close(release)
        os.close(tell)
        os.waitpid(middle, 0)


def answer(
    missing: str, *, step: Callable[[str], None] = confine, before: Callable[[], object] | None = None, more: int = 0
) -> str:
    """``ok``, or what ``read_back`` says, asked in the namespaces of this process."""
    with process(missing, step, before) as pid:
        try:
            parent, bound = read_back(pid, plan(os.geteuid() + more))
        except HostError as error:
            return str(error).replace(f"pid {pid}", "PID")
    assert parent != pid
    return f"ok {len(bound)}"


def test_a_confined_process_passes() -> None:
    with process("nothing") as pid:
        before = os.listdir("/proc/self/fd")
        parent, bound = read_back(pid, plan(os.geteuid()))
        assert os.listdir("/proc/self/fd") == before
        with open(f"/proc/{pid}/status") as status:
            assert f"PPid:\t{parent}\n" in status.read()
    assert [(each.rule, each.status, each.read_back) for each in bound] == [
        (name, "bound", True)
        for name in (
            *("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
            *(f"{name} namespace" for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")),
        )
    ]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("filter", "Seccomp is '0', not 2"),
        ("no_new_privs", "NoNewPrivs is '0', not 1"),
        ("permitted", "CapPrm is '0000000000002000', not 0000000000000000"),
        *((name, f"the {name} namespace is the host's") for name in NAMESPACES),
    ],
)
def test_a_process_without_one_part_is_refused(missing: str, said: str) -> None:
    text = answer(missing)
    assert text.startswith("cannot confirm the confinement")
    assert said in text
    assert "PID" in text


def test_a_bounding_set_is_refused() -> None:
    text = answer("bounding")
    assert "CapBnd is '0000" in text
    assert "not 0000000000000000" in text


def test_an_inheritable_capability_is_refused() -> None:
    assert "CapInh is '0000000000002000', not" in answer("", step=confine_with_inheritable)


def test_a_process_in_the_caller_s_user_namespace_is_refused() -> None:
    """In a user namespace of the test's own, so that a plain user can make the others in it too."""

    def body() -> str:
        unshare(0)
        return answer("user")

    assert "the user namespace is the host's" in run(body)


def test_a_process_of_another_uid_than_the_plan_s_is_refused() -> None:
    assert f"uids are [{os.geteuid()}]" in answer("nothing", more=1)


@pytest.mark.as_root
@pytest.mark.parametrize("ids", [(5, 0, 0), (0, 0, 5)], ids=["real", "saved"])
def test_one_uid_of_another_is_refused(ids: tuple[int, int, int]) -> None:
    """Real, effective, saved and of the file system: with one of them root's it would be root again."""
    assert "uids are [0, 5]" in answer("nothing", before=lambda: os.setresuid(*ids))


def test_a_process_that_has_ended_is_no_success() -> None:
    with process("nothing") as pid:
        pass
    with pytest.raises(OSError, match=r"No such (file|process)"):
        read_back(pid, plan(os.geteuid()))


def test_a_view_without_its_overlay_is_refused() -> None:
    """Whatever else is mounted there: a command must not write a workspace that is to be reviewed."""
    with process("nothing") as pid:
        for target, kind in (("/nowhere", "nothing"), ("/proc", "proc")):
            op = Overlay(target, ("/srv/app",), "/srv/layer")
            with pytest.raises(HostError, match=f"what is mounted at {target} is {kind}, not an overlay"):
                read_back(pid, plan(os.geteuid()).replace(mounts=(op,)))


def test_a_toolchain_without_its_layer_is_told() -> None:
    """Nothing depends on it, so the run goes on."""
    with process("nothing") as pid:
        ops = tuple(
            Overlay(target, ("/srv/app",), "/srv/layer", origin="toolchain", fallback=True)
            for target in ("/nowhere", "/proc")
        )
        _, bound = read_back(pid, plan(os.geteuid()).replace(mounts=ops))
    told = [each for each in bound if each.rule == "toolchain"]
    assert {each.status for each in told} == {"partial"}
    assert [each.mechanism for each in told] == [
        "/nowhere: left out: something else is there in the sandbox's home",
        "/proc: read-only: the kernel refused an overlay",
    ]


@pytest.mark.parametrize(
    ("permitted", "bounded", "said"),
    [
        (CAPABILITIES, CAPABILITIES, "ok 14"),
        (CAPABILITIES | CAP_NET_RAW, CAPABILITIES, "CapPrm is '00000000000020eb', not 00000000000000eb"),
        (CAPABILITIES, CAPABILITIES | CAP_NET_RAW, "CapBnd is '00000000000020eb', not 00000000000000eb"),
        (0, CAPABILITIES, "CapPrm is '0000000000000000', not 00000000000000eb"),
    ],
)
def test_the_capabilities_over_a_layer_are_those_and_no_others(permitted: int, bounded: int, said: str) -> None:
    """``system: writable``; whoever has one more, or lacks one, is not what the receipt says."""

    def step(_missing: str) -> None:
        sc.drop_bounding_set(bounded)
        sc.drop_capabilities(permitted, bounding=False)
        sc.no_new_privs()
        set_filter()

    with process("nothing", step) as pid:
        made = plan(os.geteuid())
        made = made.replace(hardening=made.hardening.replace(capabilities=CAPABILITIES))
        try:
            found = f"ok {len(read_back(pid, made)[1])}"
        except HostError as error:
            found = str(error)
    assert said in found
