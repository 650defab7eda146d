"""What the kernel says of a process that has confined itself, before it is released.

Theory of operation
-------------------
The process set its own limits and could have failed to, or lied.  So the supervisor reads them back from proc(5), by
the pid that the launcher's kernel calls gave it, and ends the run when one is missing: a run never reports more
protection than it has.
"""

from __future__ import annotations

import os

from ..errors import HostError
from ..events import Binding
from ..plan.model import Overlay
from .facts import mount_point_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import SandboxPlan

# What became of a toolchain that got no layer of the sandbox's own, as ``Binding.mechanism`` says it after its path.
READ_ONLY = "read-only: the kernel refused an overlay"
LEFT_OUT = "left out: something else is there in the sandbox's home"
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_EMPTY = ("CapInh", "CapAmb")  # whatever the command keeps


def read_back(pid: int, plan: SandboxPlan) -> tuple[int, tuple[Binding, ...]]:
    """Read from /proc what the command process has set on itself; it waits to be released.

    Returns:
        The pid of its parent, and what is in force.

    Raises:
        HostError: something that was set is not in force.
    """
    # Nested ones are those of a user namespace of its own, which is checked below.
    sets = () if plan.hardening.nested else _SETS
    status, out = _status(pid, plan.base_kuid + plan.uid, sets, plan.hardening.capabilities)
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            raise HostError("confirm the confinement", f"the {name} namespace is the host's", target=f"pid {pid}")
        out.append(Binding(f"{name} namespace", f"/proc/PID/ns/{name} differs from the host's", "bound", True))
    if plan.hardening.nested:
        out.append(_apart(pid))
    overlays = [op for op in plan.mounts if isinstance(op, Overlay)]
    mounted = _mounted(pid, {op.target for op in overlays}) if overlays else {}
    for op in overlays:
        kind = mounted.get(op.target, "")
        if op.fallback:
            # The tree read-only instead, or nothing of it: no rule needs it, and it is said.
            if kind != "overlay":
                out.append(Binding(op.origin, f"{op.target}: {READ_ONLY if kind else LEFT_OUT}", "partial", True))
            continue
        if kind != "overlay":
            cause = f"what is mounted at {op.target} is {kind or 'nothing'}, not an overlay"
            raise HostError("confirm the confinement", cause, target=f"pid {pid}")
        said = f"/proc/PID/mountinfo has an overlay at {op.target}"
        out.append(Binding(op.origin or "overlay", said, "bound", True))
    return int(status["PPid"]), tuple(out)


_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702  # ioctl_ns(2)
_DEPTH = 3  # user namespaces below the supervisor's: outer, inner, the command's (``host.containers``)


def _apart(pid: int) -> Binding:
    """That the command's capabilities hold in namespaces of its own, which are neither the view's nor the captured one.

    Raises:
        HostError: its mount or network namespace belongs to another user namespace, or that to too near a one.
    """
    from fcntl import ioctl

    opened: list[int] = []

    def inode(fd: int) -> int:
        opened.append(fd)
        return os.stat(fd).st_ino

    try:
        user, *others = (
            os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("user", "mnt", "net")
        )
        opened += others
        own = inode(user)
        for fd, name in zip(others, ("mnt", "net"), strict=True):
            if inode(ioctl(fd, _NS_GET_USERNS)) != own:
                cause = f"the {name} namespace does not belong to the command's user namespace"
                raise HostError("confirm the confinement", cause, target=f"pid {pid}")
        ours, depth = os.stat("/proc/self/ns/user").st_ino, 0
        while depth < _DEPTH and os.stat(user).st_ino != ours:
            user = ioctl(user, _NS_GET_PARENT)
            opened.append(user)
            depth += 1
        if depth < _DEPTH or os.stat(user).st_ino != ours:
            raise HostError("confirm the confinement", f"its user namespace is not {_DEPTH} deep", target=f"pid {pid}")
    except OSError as error:
        raise HostError("confirm the confinement", error.strerror or "", target=f"pid {pid}") from None
    finally:
        for fd in opened:
            os.close(fd)
    said = "/proc/PID/ns/{user,mnt,net}: owned by the third user namespace below the supervisor's (NS_GET_USERNS)"
    return Binding("capabilities in namespaces of its own", said, "bound", True)


def confined(pid: int, uid: int, said: str) -> tuple[Binding, ...]:
    """The same for a process without namespaces of its own.

    Args:
        uid: as whom it has to run.
        said: what else it has tried itself, as proc(5) does not tell it.

    Raises:
        HostError: something that was set is not in force.
    """
    # A plain user may not empty the bounding set; with NoNewPrivs nothing of it comes back (capabilities(7)).
    _fields, out = _status(pid, uid, tuple(name for name in _SETS if name != "CapBnd" or not uid))
    return (*out, Binding("Landlock", said, "bound", True))


def _status(pid: int, uid: int, sets: tuple[str, ...] = _SETS, kept: int = 0) -> tuple[dict[str, str], list[Binding]]:
    """The fields of proc_pid_status(5), and what of them is in force; ``kept``: capabilities that stay."""
    fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 1 << 16).decode("ascii", "replace")
    finally:
        os.close(fd)
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    wanted = [("NoNewPrivs", "1"), ("Seccomp", "2")]
    wanted += [(name, f"{0 if name in _EMPTY else kept:016x}") for name in sets]
    out = []
    for name, value in wanted:
        if status.get(name, "").strip() != value:
            raise HostError(
                "confirm the confinement", f"{name} is {status.get(name)!r}, not {value}", target=f"pid {pid}"
            )
        out.append(Binding(name, f"/proc/PID/status {name} = {value}", "bound", True))
    uids = {int(word) for word in status["Uid"].split()}
    if uids != {uid}:
        raise HostError("confirm the confinement", f"uids are {sorted(uids)}", target=f"pid {pid}")
    return status, out


def _mounted(pid: int, places: set[str]) -> dict[str, str]:
    """The types of the file systems that were mounted last at ``places``, as the process sees it."""
    kinds = {}
    with open(f"/proc/{pid}/mountinfo", "rb") as table:
        lines = table.read().splitlines()
    # Each start of a command waits for this: fields are compared as they are, in tables of a hundred lines and more.
    wanted = {mount_point_field(place): place for place in places}
    for line in lines:
        place = wanted.get(line.split(b" ", 5)[4])
        if place is not None:
            kinds[place] = line.partition(b" - ")[2].split(b" ", 1)[0].decode("ascii", "replace")
    return kinds
