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
CHROOT_FIX = (
    "use pivot_root or a container instead of the chroot; or use what needs no namespace, and binds less: "
    "membrane --backend landlock"
)


def another() -> str | None:
    """The session of the membrane that this process is inside of, as its environment names it; None: of none.

    By the directory that each view has and only root could make outside: a variable can be set by everybody, and left
    out.  What is decided by it is what a person reads; a boundary is neither made nor left out for it.
    """
    return os.environ.get("MEMBRANE_SESSION", "") if _mode() == "2" and os.path.isdir(MASK_SOURCE) else None


def container() -> str:
    """Which kind of container this is; empty when there is no sign of one."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "a pod of Kubernetes"
    for mark, name in (("/.dockerenv", "a container of Docker"), ("/run/.containerenv", "a container of Podman")):
        if os.path.exists(mark):
            return name
    return ""


def _mode() -> str:
    """The seccomp mode of this process (proc_pid_status(5), Seccomp): "0", or "2" for a filter; "" without /proc."""
    try:
        with open("/proc/self/status") as status:
            return next((line.split()[1] for line in status if line.startswith("Seccomp:")), "")
    except OSError:
        return ""


def _changed_root() -> bool:
    """Is this process in a chroot(2)?  Then no mount of its table is its root, and user namespaces are refused."""
    try:
        with open("/proc/self/mountinfo") as table:
            return not any(line.split()[4] == "/" for line in table)
    except OSError:
        return False


def confined(call: str = "unshare") -> tuple[str, str]:
    """Why ``call`` answered EPERM though no sysctl forbids user namespaces, and what to do; empty: nothing is seen."""
    session = another()
    if session is not None:
        which = f", session {escape(session)}" if session else ""
        return f"this is already inside of another membrane{which}", INSIDE_FIX
    if _changed_root():
        return "this is a chroot, where the kernel makes no user namespace", CHROOT_FIX
    where, mode = container(), _mode()
    if call == "unshare" and mode == "0":
        # What is left of create_user_ns() in kernel/user_namespace.c.  Below a mount of its own a chroot looks like any
        # other root, and an engine forbids namespaces by a filter: its mark alone, in a copied tree, is no reason.
        return "no seccomp filter forbids it, so this is a chroot, or a security module does", CHROOT_FIX
    if where or mode == "2":
        return f"{where or 'a seccomp filter'} forbids it", CONTAINER_FIX
    return "", ""
