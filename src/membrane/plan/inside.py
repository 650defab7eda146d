"""Policy + host facts -> the plan of a sandbox without namespaces (``backend.landlock``).

Theory of operation
-------------------
It is the native plan (``build``) less what takes a mount: every tree is at its own place, and what has another
content or another place in the native view is either reached by a variable (home, scratch, certificates), by a link in
the home (the state of an agent), or refused.
``MASK_SOURCE`` in the environment and in files stands for the sandbox's own directory, whose name is known only when it
is made.  A rule that nothing binds here ends the run with exit status 78; what is weaker than natively each binding
says, and ``WEAKER`` for the whole.
"""

from __future__ import annotations

from ..errors import PolicyError
from . import hardening, mounts
from .build import build as build_native
from .model import Bind, Listen, Mask, Overlay, RuleBinding, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import Policy
    from .model import HostFacts, MountOp, SandboxPlan

HOME = f"{mounts.MASK_SOURCE}/home"  # an ephemeral home
SCRATCH = f"{mounts.MASK_SOURCE}/tmp"  # noqa: S108 - it stands for a directory of our own

WEAKER = (
    ("loopback", "shared with the container: other processes of it can reach servers of the command, on 127.0.0.1"),
    ("processes", "names and command lines of the container's other processes are visible in /proc"),
    ("signals", "Landlock scope from ABI 6 on; below it processes of the same user outside can be signalled"),
    (
        "scratch",
        "TMPDIR is private, and so are semaphores and shared memory of POSIX; /tmp, /var/tmp, /run and what else is in "
        "/dev/shm are closed",
    ),
    ("home", "by HOME only: programs that ask passwd(5) for it find the real one closed"),
    ("names", "size, times and owner of hidden files can be asked for (stat(2)); contents cannot be read"),
    ("terminals", "of /dev/pts only its own; more by openpty(3) of glibc, not by their names"),
    (
        "sockets",
        "no SO_REUSEPORT, SO_BINDTODEVICE, IP options or multicast; no datagram socket as standard input or output",
    ),
    (
        "watches",
        "inotify(7) on directories outside of the view tells the names that change in them, not their contents",
    ),
    (
        "udp",
        "by rule, and DNS, which is answered here; other datagrams go nowhere, with one event for each place, "
        "also those to the command's own sockets: no server, no multicast",
    ),
    ("record", "of the network and the session; not of files and programs"),
)
_PARTIAL = {
    "hide": "Landlock: only what lies beside it is listed, and names beside it are made and opened by the supervisor; "
    "names that appear later elsewhere are not hidden",
    "readonly": "Landlock: listed read-only, and names beside it are made by the supervisor; names that appear later "
    "elsewhere are moved away, not refused",
}


def build(policy: Policy, facts: HostFacts) -> SandboxPlan:
    """The plan of one run.

    Raises:
        PolicyError: a rule cannot be bound, natively or here.
    """
    _refuse(policy, facts)
    plan = build_native(policy, facts)
    store = mounts.home_store(policy, facts)
    trust, java = plan.trust, plan.java_trust
    environment = dict(
        hardening.environment(policy, facts, facts.home, trust[0] if trust else "", java[0] if java else "")
    )
    environment.update(HOME=store or HOME, TMPDIR=SCRATCH)
    bindings = [_binding(rule) for rule in plan.bindings]
    bindings += [RuleBinding(name, "backend: landlock", (said,), "partial") for name, said in WEAKER]
    if policy.state_shown:
        said = f"not shown: {', '.join(policy.state_shown)} of your home"
        bindings.append(RuleBinding("agent profile", "backend: landlock", (said,), "partial"))
    return plan.replace(
        mounts=tuple(_operations(policy, plan, store, facts)),
        environment=tuple(environment.items()),
        base_kuid=0,
        trust=trust[:2],
        java_trust=java[:1],
        bindings=tuple(bindings),
    )


def _operations(policy: Policy, plan: SandboxPlan, store: str, facts: HostFacts) -> list[MountOp]:
    out: list[MountOp] = []
    shown = {f"{facts.home}/{name}" for name in policy.state_shown}
    kept = {f"{facts.state}/agents/{policy.profiles[0]}/{name}": name for name in policy.state_dirs}
    for op in plan.mounts:
        if isinstance(op, Bind) and op.source == op.target:
            if op.source not in shown:  # it would stand in the agent's state
                out.append(op)
        elif isinstance(op, Bind) and op.source in kept:
            out += [op.replace(target=op.source), Symlink(f"{store or HOME}/{kept[op.source]}", op.source)]
        elif isinstance(op, Bind) and op.source == store:
            out.append(op.replace(target=store))
        elif isinstance(op, Overlay):
            out += [Bind(lower, lower, origin=op.origin) for lower in op.lowers]
            out += [Mask(path, False, "host credentials") for path in op.covered]
        elif isinstance(op, (Mask, Listen)):
            out.append(op)
    if any(isinstance(op, Bind) and mounts.inside(facts.state, op.target) for op in out):
        # Landlock has no exception to make for the home in it.
        cause = f"backend landlock cannot hide membrane's own state {facts.state} in a tree that is shown"
        raise PolicyError("bind a rule", cause, fix=("set MEMBRANE_HOME to a directory outside of it",))
    return out


def _binding(rule: RuleBinding) -> RuleBinding:
    words = rule.rule.split(" ", 1)[0]
    if words in ("hide", "readonly", "protect") and "mount" in " ".join(rule.mechanisms):
        return rule.replace(mechanisms=(_PARTIAL.get(words, _PARTIAL["readonly"]),), status="partial")
    if rule.rule.startswith("mask file:"):
        copied = "Landlock; the supervisor opens a copy with placeholders; stat(2) tells of the file itself"
        return rule.replace(mechanisms=(copied, *rule.mechanisms[1:]), status="partial")
    if words == "limit" and "disk=" in rule.rule:
        return rule.replace(mechanisms=("RLIMIT_FSIZE per file, count of what is kept",), status="partial")
    changed = tuple({"mount namespace": "Landlock"}.get(each, each) for each in rule.mechanisms)
    return rule.replace(mechanisms=tuple(dict.fromkeys(changed)))


def _refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run with a rule that only a mount, a namespace or the tracer binds."""
    native = "use the native backend"
    wanted = (
        (policy.view == "host", "view: host", "the view has its own trees at their places only"),
        (policy.file_rules is not None, "files", "rules over the host's tree take mounts"),
        (policy.workspace == "review", "workspace: review", "changes are kept apart by an overlay"),
        (policy.system != "read-only", f"system: {policy.system}", "a layer over the system trees is a mount"),
        (bool(policy.image), "image", "its trees take the places of the container's by mounts"),
        (bool(policy.devices), "devices", "the private /dev is a mount"),
        (policy.containers == "nested", "containers: nested", "its namespaces and mounts would be the container's"),
        (policy.user_namespaces, "user namespaces", "they would be the container's"),
        (policy.trace.mode in ("required", "full"), f"trace: {policy.trace.mode}", "nothing here traces the command"),
    )
    for is_there, what, why in wanted:
        if is_there:
            raise PolicyError("bind a rule", f"backend landlock does not bind {what}: {why}", fix=(native,))
    for mount in policy.mounts:
        source, target = mounts.places(mount, facts)
        if source and source != target:
            cause = f"backend landlock shows {source} at its own place only, not at {target}"
            raise PolicyError("bind a rule", cause, where=str(mount.origin), fix=("leave the target out", native))
