"""What this process is confined by that would explain why the kernel refuses it namespaces.

Theory of operation
-------------------
unshare(2) and clone(2) say EPERM for several reasons and name none.  Asked only after such a refusal, so nothing here
is on the start-up path, and nothing is decided by it: it says what a person can do.
"""

from __future__ import annotations

import os

from ..escaping import escape
from ..plan.mounts import MASK_SOURCE

INSIDE_FIX = "run the command without it: here it is sandboxed already; or run this outside"
CONTAINER_FIX = (
    "start the container with two more options: membrane setup container docker (or podman, kubernetes, ...); "
    "or use what needs none, and binds less: membrane --backend landlock"
)


def another() -> str | None:
    """The session of the membrane that this process is inside of, as its environment names it; None: of none.

    By the directory that each view has and only root could make outside: a variable can be set by everybody, and left
    out.  What is decided by it is what a person reads; a boundary is neither made nor left out for it.
    """
    return os.environ.get("MEMBRANE_SESSION", "") if _filtered() and os.path.isdir(MASK_SOURCE) else None


def container() -> str:
    """Which kind of container this is; empty when there is no sign of one."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "a pod of Kubernetes"
    for mark, name in (("/.dockerenv", "a container of Docker"), ("/run/.containerenv", "a container of Podman")):
        if os.path.exists(mark):
            return name
    return ""


def _filtered() -> bool:
    """Is a seccomp filter in force for this process (proc_pid_status(5), Seccomp)?"""
    try:
        with open("/proc/self/status") as status:
            return any(line.split() == ["Seccomp:", "2"] for line in status)
    except OSError:
        return False


def _changed_root() -> bool:
    """Is this process in a chroot(2)?  Then no mount of its table is its root, and user namespaces are refused."""
    try:
        with open("/proc/self/mountinfo") as table:
            return not any(line.split()[4] == "/" for line in table)
    except OSError:
        return False


def confined() -> tuple[str, str]:
    """Why this process is refused namespaces, as far as it can be seen, and what to do; empty when nothing is seen."""
    session = another()
    if session is not None:
        which = f", session {escape(session)}" if session else ""
        return f"this is already inside of another membrane{which}", INSIDE_FIX
    if _changed_root():
        return "this is a chroot, where the kernel makes no user namespace", "use pivot_root or a container instead"
    where = container()
    if where or _filtered():
        return f"{where or 'a seccomp filter'} forbids it", CONTAINER_FIX
    return "", ""
