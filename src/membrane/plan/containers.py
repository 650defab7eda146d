"""``containers: nested``: what it needs of the machine, what it puts into the view, and what binds it.

Theory of operation
-------------------
Engines (dockerd, podman, buildah) want to be root over namespaces, mounts and a network of their own.  The command gets
that in a user namespace of its own (``host.containers``), below those that own the view and the captured network.  The
barriers that stay are named in the receipt, and so are those that do not: Landlock's file rules forbid every mount, so
only its scopes are left; the kernel's interfaces for namespaces, mounts and netfilter can be reached.

Images hold set-user-ID files, which no process inside can use (no_new_privs) and which are a door for others where they
appear on the host.  They keep the bit only where everything that is written is in our own state, which no other user
can enter: in a reviewed workspace without writable mounts.  Elsewhere they are made without it (``tracer.setids``).

The storage is mounted without nosuid and nodev: BuildKit binds its layers read-only without them, and nobody may clear
what a more privileged mount namespace has set (mount_namespaces(7)).  no_new_privs does what nosuid does, for every
process inside, and no device node can be made in a user namespace (mknod(2)).
"""

from __future__ import annotations

from ..errors import PolicyError
from .model import Bind, File, RuleBinding, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import Policy
    from .model import HostFacts, MountOp

# Where engines keep images and containers by default, each a directory of the store.
PLACES = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/cni")
CACHE = "/var/cache/containers"  # of podman and buildah; it must not be missing
# containers.conf(5): what podman and buildah cannot have here.  There is no cgroup to write to, and no keyring.
SETTINGS = "/run/containers.conf"
_SETTINGS = b"""[containers]
cgroups = "disabled"
keyring = false
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run that asks for containers where they, or other rules beside them, could not hold.

    Raises:
        PolicyError: with the reason and what to do instead.
    """
    if policy.containers == "none":
        return
    if policy.view == "host" or policy.file_rules is not None:
        raise _unbound("has no effect with view: host, whose tree has no place for the storage", "use view: project")
    if policy.user_namespaces:
        raise _unbound("and user_namespaces: allowed exclude each other", "leave user_namespaces out")
    if facts.uid == 0 and not facts.root:
        cause = "needs ids of its own for root: inside, this root would own the machine's settings"
        raise _unbound(cause, "run membrane as an ordinary user", "membrane doctor")
    if not facts.root and (facts.subordinate is None or facts.subordinate.lacking):
        found = facts.subordinate
        cause = found.lacking if found is not None else "they were not looked for"
        raise _unbound(f"needs subordinate ids: {cause}", *((found.fix,) if found is not None else ()))
    if facts.open_cgroup:
        cause = f"would let the command stop and kill what is outside: {facts.open_cgroup} is yours to write"
        fix = "mount -o remount,nsdelegate CGROUP2   # as root, as systemd mounts it"
        raise _unbound(cause, fix, "start membrane in a control group of root's")


def _unbound(cause: str, *fix: str) -> PolicyError:
    return PolicyError("bind a rule", f"containers: nested {cause}", where="policy", fix=fix)


def stores(policy: Policy, facts: HostFacts) -> list[str]:
    """The directories of the engines' storage, which are made before the start."""
    if policy.containers == "none":
        return []
    return [f"{facts.engines}/{path.rpartition('/')[2]}" for path in PLACES]


def operations(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """The storage at the places where engines look."""
    sources = stores(policy, facts)
    if not sources:
        return []
    return [
        *(
            Bind(source, place, writable=True, own=True, make=True, origin="containers", engine=True)
            for source, place in zip(sources, PLACES, strict=True)
        ),
        Tmpfs(CACHE, 0o755, policy.limits.disk),
        File(SETTINGS, _SETTINGS),
    ]


def environment(policy: Policy, given: dict[str, str]) -> dict[str, str]:
    """Variables that the command gets beside ``given``: it is root, and engines look for programs of root's."""
    if policy.containers == "none":
        return {}
    path = given.get("PATH", "").split(":")
    return {
        "CONTAINERS_CONF": given.get("CONTAINERS_CONF", SETTINGS),
        "PATH": ":".join([*path, *(place for place in ("/usr/local/sbin", "/usr/sbin", "/sbin") if place not in path)]),
    }


def set_ids(policy: Policy) -> bool:
    """May files be made set-user-ID?"""
    return policy.workspace == "review" and not any(rule.mode == "rw" for rule in policy.mounts)


def bindings(policy: Policy) -> list[RuleBinding]:
    """What holds with containers, and what is weaker than without."""
    if policy.containers == "none":
        return []
    held = (
        "network namespace of the command's own, captured at its only way out",
        "masks and read-only names: mounts of a more privileged namespace, locked",
        "no_new_privs",
        "seccomp: namespaces, mounts and netfilter of the command's own only",
    )
    weaker = (
        "Landlock: scopes only, as file rules forbid every mount",
        "root inside: owners and modes in writable trees are no wall",
        "a hidden name that appears later, or is replaced from outside, can be uncovered (not replaced ones: --review)",
        "protected names that a container makes where it sees the workspace elsewhere are put aside after the fact",
        "/proc and /sys show counters and devices of the machine",
        "the process of a connection behind NAT is what kernel tables say that the command can write",
        "the storage of containers is mounted without nosuid and nodev",
    )
    if set_ids(policy):
        kept = "set-user-ID files: in our own state only, where no other user can enter"
    else:
        kept = "set-user-ID files: made without the bit where the tracer looks, else refused"
    return [
        RuleBinding("containers: nested", "policy", (*held, kept)),
        RuleBinding("containers: nested, weaker than without", "policy", weaker, "partial"),
    ]
