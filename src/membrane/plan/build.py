"""Policy + host facts -> SandboxPlan: the one place where a rule finds its mechanism or stops the run.

Theory of operation
-------------------
Every rule of the policy ends in ``RuleBinding`` with the mechanisms that bind it on this machine.  A rule that no
mechanism binds raises ``PolicyError`` naming it: there is no partial start.
"""

from __future__ import annotations

from ..errors import PolicyError
from . import hardening, mounts, network
from .model import RuleBinding, SandboxPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import HostRule, Policy
    from .model import HostFacts

# First kuid of the private range of root callers.  The range is above the ids of users and services
# (systemd "UIDs and GIDs" document: 524288..1879048191 is the container range) and is never written to a disk:
# every writable host tree is an idmapped mount.
BASE_KUID = 1_610_612_736
RANGE = 65_536


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run whose policy names something that can not be bound.

    Raises:
        PolicyError: with the rule, the reason and what to do instead.
    """
    if facts.workspace == "/" or mounts.inside(facts.home, facts.workspace):
        raise PolicyError(
            "use the workspace",
            f"the workspace {facts.workspace} holds the home directory {facts.home}: every file of it would be open",
            fix=("cd into a project directory and run membrane there",),
        )
    if mounts.inside(facts.state, facts.workspace) or mounts.inside(facts.workspace, facts.state):
        raise PolicyError(
            "use the workspace",
            f"the workspace {facts.workspace} and membrane's own state {facts.state} overlap",
            fix=("run membrane in another directory, or set MEMBRANE_HOME to a directory outside of it",),
        )
    for rule in (*policy.allow, *policy.deny):
        if rule.http is not None or rule.inspect or rule.insecure:
            raise _unbound(
                str(rule.origin),
                f"{rule.text!r} needs HTTP inspection, which this version does not have",
                f'allow the host as a whole: "{rule.host}:{rule.ports[0].first if rule.ports else 443}"',
            )
    if policy.secrets:
        first = policy.secrets[0]
        raise _unbound(
            str(first.origin), f"secret {first.name!r} needs HTTP inspection, which this version does not have"
        )
    if policy.ssl_insecure or policy.extra_ca:
        key = "ssl_insecure" if policy.ssl_insecure else "extra_ca"
        raise _unbound("policy", f"{key} has no effect without HTTP inspection, which this version does not have")
    if policy.expose:
        raise _unbound(str(policy.expose[0].origin), "ports.expose is not available in this version")
    if policy.workspace == "cow":
        raise _unbound("policy", "workspace: cow is not available in this version", "use workspace: live")
    if policy.trace.mode in ("full", "required"):
        raise _unbound("policy", f"trace.mode {policy.trace.mode} needs a tracer, which this version does not have")
    for socket in policy.unix_sockets:
        if socket.adapter:
            raise _unbound(
                str(socket.origin),
                f"unix_sockets: the adapter {socket.adapter!r} is not available in this version",
                "name the socket without an adapter to open it as a whole",
            )
    for mount in policy.mounts:
        path = facts.git_root if mount.git_root else mount.path
        if mount.git_root and not path:
            raise _unbound(str(mount.origin), "mounts: the workspace is not inside a git repository")
        target = mount.target or path
        if path == "/" or target == "/" or mounts.inside(facts.state, path):
            raise _unbound(str(mount.origin), f"mounts: {path} would open membrane's own state or everything")
    if policy.limits.upload:
        return  # bound by the network process


def _unbound(where: str, cause: str, *fix: str) -> PolicyError:
    return PolicyError("bind a rule", cause, where=where, fix=fix)


def _rule_text(rule: HostRule, verb: str) -> str:
    ports = ",".join(f"{p.first}{'' if p.first == p.last else f'-{p.last}'}/{p.protocol}" for p in rule.ports)
    return f"{verb} {rule.text}" + (f" ports {ports}" if ports else "")


def bindings(policy: Policy) -> tuple[RuleBinding, ...]:
    """Each rule with the mechanisms that bind it."""
    out: list[RuleBinding] = []
    for verb, rules in (("allow", policy.allow), ("deny", policy.deny)):
        for rule in rules:
            names = rule.kind != "network"
            how = ("DNS name", "TLS server name", "address at dial time") if names else ("destination address",)
            out.append(RuleBinding(_rule_text(rule, verb), str(rule.origin), (*how, "destination port")))
    for path in policy.paths:
        by = "mount mask" if path.effect == "hide" else "read-only mount"
        out.append(RuleBinding(f"{path.effect} {path.text}", str(path.origin), (by, "re-mount on replacement")))
    for mount in policy.mounts:
        out.append(RuleBinding(f"mount {mount.path} {mount.mode}", str(mount.origin), ("mount namespace", "Landlock")))
    for socket in policy.unix_sockets:
        out.append(RuleBinding(f"unix socket {socket.path}", str(socket.origin), ("mount namespace",)))
    limits = policy.limits
    for name, mechanism in (
        ("memory", "RLIMIT_DATA per process"),
        ("pids", "RLIMIT_NPROC in the user namespace"),
        ("cpu", "RLIMIT_CPU per process"),
        ("time", "supervisor timer"),
        ("files", "RLIMIT_NOFILE per process"),
        ("disk", "tmpfs size, RLIMIT_FSIZE"),
        ("upload", "byte count in the network process"),
    ):
        value = getattr(limits, name)
        if value:
            out.append(RuleBinding(f"limit {name}={value}", "policy", (mechanism,)))
    return tuple(out)


def build(policy: Policy, facts: HostFacts) -> SandboxPlan:
    """The plan of one run.

    Raises:
        PolicyError: a rule can not be bound on this machine.
    """
    refuse(policy, facts)
    home = facts.home
    store = mounts.home_store(policy, facts)
    stores = [store] if store else []
    if policy.view == "project":
        stores += [f"{facts.state}/agents/{policy.profiles[0]}/{name}" for name in policy.state_dirs]
    return SandboxPlan(
        workspace=facts.workspace,
        cwd=facts.workspace,
        mounts=mounts.base(policy, facts),
        network=network.plan_network(policy),
        hardening=hardening.plan_hardening(policy, facts, home),
        environment=hardening.environment(policy, facts, home),
        base_kuid=BASE_KUID if facts.root else 0,
        uid=facts.uid,
        gid=facts.gid,
        bindings=bindings(policy),
        stores=tuple(stores),
    )
