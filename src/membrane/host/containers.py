"""The command's own user and network namespace, in which it is root, for engines of containers.

Theory of operation
-------------------
With ``containers: nested`` there are three user namespaces, each the parent of the next::

    outer     of the launcher: owns the network namespace in which everything is captured (``netns``)
    inner     of pid 1: owns the view and its masks, the pid namespace
    command   made here: owns a network namespace with one way out (``netns._join``), and from its start (``enter``) a
              copy of the view, ipc, uts and cgroup namespaces

Every mount that comes from a more privileged mount namespace is locked in the copy: what is below a mask cannot be
uncovered, a read-only mount not made writable, and a tree not bound without what covers it (mount_namespaces(7),
"Restrictions on mount namespaces").  The copy is a slave of the view: what the launcher hides later arrives as well.
That is no barrier: of a tree that arrives by propagation the root is not locked (fs/namespace.c, lock_mnt_tree), and a
mount namespace that the command makes private does not get it at all.

The namespaces exist from before the network is set up; who made them ends at once, their descriptors keep them.
"""

from __future__ import annotations

import os
import select

from ..plan.model import RANGE
from ..value import Value
from . import syscalls as sc
from .channel import SIGKILL, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import SandboxPlan

_SYSFS = sc.MS_RDONLY | sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC


class Inner(Value):
    """Descriptors of the command's namespaces."""

    user: int
    network: int


def outer_maps(uid: int, gid: int, plan: SandboxPlan) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For a plain caller: the rows of the uid and of the gid map of the outer and the inner namespace, where each id
    has its own number, but with ``system``, where the command is 0 in the inner one: (inside, outside, count).
    """
    if plan.mapped:
        return tuple(
            ((0, own, 1), (1, first, min(count, RANGE - 1)))
            for own, (first, count) in zip((uid, gid), plan.subordinate, strict=True)
        )
    return tuple(
        ((own, own, 1), (first, first, count)) if count else ((own, own, 1),)
        for own, (first, count) in zip((uid, gid), plan.subordinate, strict=True)
    )


def inner_maps(plan: SandboxPlan) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """The same for the inner namespace alone, as the outer one has the ids; a row is within one of its rows."""
    if plan.mapped:
        return tuple(((0, 0, 1), (1, 1, min(count, RANGE - 1))) for _first, count in plan.subordinate)
    return outer_maps(plan.uid, plan.gid, plan)


def _own_maps(plan: SandboxPlan) -> tuple[str, str]:
    """Of the command's namespace: 0 is the caller, and the subordinate ids follow."""
    if plan.base_kuid:
        return f"0 0 {RANGE}\n", f"0 0 {RANGE}\n"
    uids, gids = (
        f"0 {own} 1\n1 {first} {min(count, RANGE - 1)}\n"
        for own, (first, count) in zip((plan.uid, plan.gid), plan.subordinate, strict=True)
    )
    return uids, gids


def make(plan: SandboxPlan) -> Inner:
    """In pid 1, once the view's proc(5) is that of its pid namespace: the namespaces.

    Raises:
        OSError: the kernel refuses a namespace or a map.
    """
    ready, made = os.pipe()
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            sc.set_parent_death_signal(SIGKILL)
            sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNET)
        except OSError as error:
            number = error.errno or 255
        try:
            os.write(made, bytes((number,)))
            select.select([], [], [])  # until it is killed
        finally:
            os._exit(1)
    try:
        os.close(made)
        answer = os.read(ready, 1)
        if answer != b"\0":
            number = answer[0] if answer else 0
            raise OSError(number, os.strerror(number) if number else "the process that makes them has ended")
        for name, rows in zip(("uid_map", "gid_map"), _own_maps(plan), strict=True):
            write_file(f"/proc/{pid}/{name}", rows)
        return Inner(*(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("user", "net")))
    finally:
        os.close(ready)
        os.kill(pid, SIGKILL)
        os.waitpid(pid, 0)


def enter(inner: Inner) -> None:
    """In the process that becomes the command: root in its own namespaces, with a locked copy of the view.

    The signal for the end of the parent is cleared by this (prctl(2)) and has to be asked for again.

    Raises:
        OSError: the kernel refuses a namespace.
    """
    sc.setns(inner.user, sc.CLONE_NEWUSER)
    sc.setns(inner.network, sc.CLONE_NEWNET)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP)
    sc.set_dumpable(True)  # else its own /proc/self belongs to another user
    # A sysfs of its own network namespace over the host's.  Engines find cgroups there; they work without, too.
    for kind, place, flags in (("sysfs", "/sys", _SYSFS), ("cgroup2", "/sys/fs/cgroup", _SYSFS & ~sc.MS_RDONLY)):
        try:
            sc.mount(kind, place, kind, flags)
        except OSError:
            break  # in a container whose /sys is covered
