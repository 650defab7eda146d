"""Policy + host facts -> SandboxPlan: the one place where a rule finds its mechanism or stops the run.

Theory of operation
-------------------
Every rule of the policy ends in ``RuleBinding`` with the mechanisms that bind it on this machine.  A rule that no
mechanism binds raises ``PolicyError`` naming it: there is no partial start.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..events import Binding
from ..policy import keys
from ..policy.model import CARRIERS, DeviceRule, PathRule
from ..policy.sockets import SERVICES
from . import containers, hardening, mounts, network
from .model import RuleBinding, SandboxPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from ..policy.model import MountRule, Policy, SocketRule
    from .model import DeviceFact, HostFacts

# First kuid of the private range of root callers.  The range is above the ids of users and services
# (systemd "UIDs and GIDs" document: 524288..1879048191 is the container range) and is never written to a disk:
# every writable host tree is an idmapped mount.
BASE_KUID = 1_610_612_736


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run whose policy names something that cannot be bound.

    Raises:
        PolicyError: with the rule, the reason and what to do instead.
    """
    if policy.file_rules is None:
        _refuse_workspace(facts)
    else:
        from . import hosttree

        hosttree.refuse(policy, facts)
    for rules in (policy.allow, policy.deny):
        for rule in rules:
            if rule.insecure and not rule.constrained:
                raise _unbound(
                    str(rule.origin),
                    f"{rule.text!r} is insecure, but its connections pass through and the command verifies them",
                    "add inspect: true, or name methods or paths",
                )
    for secret in policy.secrets:
        from ..policy.grammar import secret_destinations
        from ..policy.model import Malformed

        try:
            secret_destinations(secret)
        except Malformed as error:
            raise _unbound(str(secret.origin), f"secret {secret.name!r}: {error}") from None
    names = {secret.name for secret in policy.secrets if secret.header[0] == "*"}
    for pair in policy.signing:
        if not {pair.key_id, pair.secret} <= names:
            cause = f"signing: {pair.key_id} and {pair.secret} are not both secrets of any header field"
            raise _unbound(str(pair.origin), cause, 'secrets: [{name: ..., header: "*", ...}]')
    for option in policy.carrier_options if policy.backend not in CARRIERS else ():
        from ..policy.dockerargs import natively

        cause = f"args: {option.text.partition('=')[0]} is for a container, and this run has none"
        raise _unbound(str(option.origin), cause, *natively(option.text))
    for mask in policy.masks:
        from ..policy.grammar import destinations
        from ..policy.masking import compiled
        from ..policy.model import Malformed

        try:
            if mask.extract:
                compiled(mask.extract)
            destinations(mask.to, wildcards=True)
            destinations(mask.renew)
        except Malformed as error:
            raise _unbound(str(mask.origin), f"mask of {mask.source}: {error}") from None
        path = mask.source.removeprefix("file:")
        shown = [facts.workspace, *(mounts.places(rule, facts)[1] for rule in policy.mounts)]
        shown += [f"{facts.home}/{name}" for name in policy.state_dirs] if mask.login else []
        if path != mask.source and policy.view != "host" and not any(mounts.inside(path, tree) for tree in shown):
            raise _unbound(
                str(mask.origin), f"mask of {path}: it is not in the view", "leave it out, or use view: host"
            )
    if policy.view == "host" and policy.home != "workspace":
        raise _unbound("policy", f"home: {policy.home} has no effect with view: host", "use view: project")
    if policy.devices:
        from .devices import refuse as refuse_devices

        refuse_devices(policy, facts)
    if policy.workspace == "review":
        _refuse_review(policy, facts)
    containers.refuse(policy, facts)
    if policy.system != "read-only":
        from . import system

        system.refuse(policy, facts, mounts.SYSTEM_TREES)
    if policy.image or policy.platform:
        from . import image

        image.refuse(policy, facts)
    for socket in policy.unix_sockets:
        _refuse_socket(socket, policy, facts)
    _refuse_two_meanings(policy, facts)
    writable = [facts.workspace, *(mounts.places(rule, facts)[0] for rule in policy.mounts if rule.mode == "rw")]
    for mount in policy.mounts:
        _refuse_mount(mount, facts)
        if policy.view != "host":
            _refuse_part(mount, policy, facts)
        _refuse_link(str(mount.origin), mounts.places(mount, facts)[0], writable, facts)
    for socket in policy.unix_sockets:
        _refuse_link(str(socket.origin), mounts.absolute(socket.path, facts.workspace), writable, facts)


def _refuse_review(policy: Policy, facts: HostFacts) -> None:
    """Stop a reviewed run whose command could write the workspace, or its repository, by another way."""
    live = "use the workspace live: --live"
    if facts.reviewed is None:
        raise _unbound("policy", "workspace: review: there is no change set to keep what is changed", live)
    if policy.file_rules is not None:
        raise _unbound(
            "policy", "workspace: review has no effect with files, which are rules over the host's tree", live
        )
    outside = [path for path, mode in facts.repository.shown if mode == "rw"]
    repository = facts.reviewed.repository
    if outside and any(mounts.inside(path, outside[0]) for path in (facts.home, facts.state)):
        cause = f"workspace: review: the repository of the workspace is {outside[0]}, which holds the home or our state"
        raise _unbound("policy", cause, "move the repository to a directory of its own", live)
    if outside and (len(outside) > 1 or mounts.inside(facts.workspace, outside[0])):
        cause = f"workspace: review: the repository of the workspace is outside of it, in {outside[0]}, and "
        cause += "has more work trees than are kept apart" if len(outside) > 1 else "the workspace lies in it"
        raise _unbound(
            "policy", cause, f"review a clone, and fetch from it: git clone {facts.workspace} ELSEWHERE", live
        )
    if outside != [repository][: bool(repository)]:
        cause = (
            f"workspace: review: the change set {facts.reviewed.name} was made with another repository of the workspace"
        )
        raise _unbound("policy", cause, "use another name: --review=NAME", live)
    for rule in policy.mounts:
        source, _target = mounts.places(rule, facts)
        if rule.mode == "rw" and source and mounts.inside(facts.workspace, source):
            cause = f"workspace: review: the mount of {source} holds the workspace, and is not reviewed"
            raise _unbound(str(rule.origin), cause, "mount it read-only", f"run membrane in {source}", live)
        if rule.mode == "rw" and source and repository and _overlap(source, repository):
            cause = (
                f"workspace: review: the mount of {source} and the repository of the workspace, {repository}, overlap"
            )
            raise _unbound(str(rule.origin), cause, "leave the mount out: the repository is in the view", live)


def _refuse_link(where: str, source: str, writable: list[str], facts: HostFacts) -> None:
    """Refuse a source whose way leads over a link that an agent may have made in an earlier run."""
    for path, link in facts.linked:
        if path == source and any(tree != link and mounts.inside(link, tree) for tree in writable):
            raise _unbound(
                where, f"{source} leads over the symbolic link {link}, which the command can make", "name its target"
            )


def _overlap(one: str, other: str) -> bool:
    return mounts.inside(one, other) or mounts.inside(other, one)


def refuse_overlap(workspace: str, state: str) -> NoReturn:
    """Raise the ``PolicyError`` of a workspace that holds our state, or lies in it."""
    raise PolicyError(
        "use the workspace",
        f"the workspace {workspace} and membrane's own state {state} overlap",
        fix=("run membrane in another directory, or set MEMBRANE_HOME to a directory outside of it",),
    )


def _refuse_workspace(facts: HostFacts) -> None:
    workspace = facts.workspace
    if workspace == "/" or mounts.inside(facts.home, workspace):
        cause = f"the workspace {workspace} holds the home directory {facts.home}: every file of it would be open"
    elif _overlap(facts.state, workspace):
        refuse_overlap(workspace, facts.state)
    elif workspace in mounts.SHARED_PLACES or workspace == f"/run/user/{facts.uid}":
        cause = f"the workspace {workspace} holds files and sockets of other programs: all of them would be open"
    elif not mounts.inside(workspace, "/dev/shm") and any(  # noqa: S108
        mounts.inside(workspace, tree) for tree in mounts.KERNEL_TREES
    ):
        cause = f"the workspace {workspace} is the kernel's: no files are kept there"
    else:
        return
    raise PolicyError("use the workspace", cause, fix=("cd into a project directory and run membrane there",))


def _refuse_socket(rule: SocketRule, policy: Policy, facts: HostFacts) -> None:
    if mounts.absolute(rule.path, facts.workspace) in facts.absent and not rule.optional:
        raise _unbound(str(rule.origin), f"unix_sockets: {rule.path} does not exist", "start the service it belongs to")
    where, path = str(rule.origin), mounts.in_view(mounts.absolute(rule.path, facts.workspace), facts)
    whole = path in mounts.SHARED_PLACES or mounts.inside(facts.home, path) or mounts.inside(facts.workspace, path)
    if whole or _overlap(path, facts.state) or mounts.inside(path, "/proc"):
        raise _unbound(where, f"unix_sockets: {path} is not a socket that may be opened", "name one socket")
    if mounts.inside(path, facts.workspace):
        # Inside, the agent makes the links: the next run would open the socket that one leads to.
        raise _unbound(where, f"unix_sockets: {path} is in the workspace, where the command can replace it")
    if not mounts.inside(path, "/run") and (tree := mounts.covering(path, policy, facts)):
        cause = f"unix_sockets: {path} is in {tree}, which the command can write: it can replace it"
        raise _unbound(where, cause, "have the service listen elsewhere, or mount that directory read-only")
    for fact in facts.sockets:
        if fact.path != mounts.absolute(rule.path, facts.workspace):
            continue
        if fact.kind == "not a socket":
            raise _unbound(where, f"unix_sockets: {path} is not a socket", "name one socket")
        if fact.kind == "dead" and not rule.optional:
            raise _unbound(where, f"unix_sockets: no program listens on {path}", "start the service it belongs to")
        if fact.kind == "forbidden":
            raise _unbound(where, f"unix_sockets: {path} may not be opened by this user", "ask its owner for the right")
        if fact.kind == "datagram":
            raise _unbound(where, f"unix_sockets: {path} is not a stream socket: datagrams are not carried")
        if _overlap(fact.resolved, facts.state) or mounts.inside(fact.resolved, facts.workspace):
            raise _unbound(where, f"unix_sockets: {path} leads to {fact.resolved}, which the command can make")
    service = SERVICES.get(rule.adapter)
    flaw = None if service is None else service.check(rule.allow)
    if flaw is not None:
        raise _unbound(where, f"unix_sockets: {flaw[0]}", flaw[1])


def _refuse_two_meanings(policy: Policy, facts: HostFacts) -> None:
    """One path has one set of rules."""
    seen: dict[str, SocketRule] = {}
    for rule in policy.unix_sockets:
        first = seen.setdefault(mounts.in_view(mounts.absolute(rule.path, facts.workspace), facts), rule)
        if (first.adapter, first.allow) != (rule.adapter, rule.allow):
            cause = f"unix_sockets: {rule.path} is named twice, with other rules in {first.origin}"
            raise _unbound(str(rule.origin), cause, "keep one of the two")


def _refuse_mount(rule: MountRule, facts: HostFacts) -> None:
    where = str(rule.origin)
    source, target = mounts.places(rule, facts)
    if not source:
        raise _unbound(where, "mounts: the workspace is not inside a git repository")
    if source in facts.absent:
        raise _unbound(where, f"mounts: {source} does not exist", "make it, or correct the path")
    if source == "/" or target == "/":
        raise _unbound(where, "mounts: / would open everything", "name the directories that are needed")
    for path in (source, target):
        if _overlap(path, facts.state):
            cause = f"mounts: {path} and membrane's own state {facts.state} overlap"
            raise _unbound(where, cause, "name the directories that are needed")
    for made in (mounts.MASK_SOURCE, "/proc", "/dev"):
        if mounts.inside(made, target) or (made != "/dev" and mounts.inside(target, made)):
            raise _unbound(where, f"mounts: {target} would cover {made}, which the sandbox makes itself")
    if rule.git_root and source == target == facts.workspace:
        return  # in the view already, and writable
    if mounts.inside(source, facts.workspace):
        # Inside, the agent makes the links: the next run would mount what they lead to.
        raise _unbound(
            where,
            f"mounts: {source} is in the workspace and in the view already",
            "use readonly or ignore for names in the workspace",
        )
    if mounts.inside(target, facts.workspace):
        raise _unbound(where, f"mounts: the target {target} is in the workspace, where nothing may be left behind")
    if mounts.inside(facts.workspace, source) and target != source:
        raise _unbound(
            where,
            f"mounts: {source} holds the workspace: at {target} its hidden and read-only names would be open",
            f"mount it at its own path, {source}",
        )


def _refuse_part(rule: MountRule, policy: Policy, facts: HostFacts) -> None:
    """Stop a run in which git would find a repository above the workspace that it can write, and not its files.

    It takes what is not there for deleted, and ``git commit -a`` records that.
    """
    source, target = mounts.places(rule, facts)
    top, _, name = source.rpartition("/")
    above = name == ".git" and source == target and facts.workspace != top and mounts.inside(facts.workspace, top)
    # Where the workspace is the top of a work tree git looks no further; a pointer may lead to what is writable.
    if not above or facts.git_root == facts.workspace or (rule.mode != "rw" and source not in facts.pointers):
        return
    for each in policy.mounts:
        tree, at = mounts.places(each, facts)
        if tree and tree == at and mounts.inside(top, tree):
            return
    raise _unbound(
        str(rule.origin),
        f"mounts: {source} without the files of {top}: git would take them for deleted, and commit that",
        f"show them as well, none hidden, read-only: mounts: [{{path: {top}}}, {{path: {source}, mode: {rule.mode}}}]",
    )


def _unbound(where: str, cause: str, *fix: str) -> PolicyError:
    return PolicyError("bind a rule", cause, where=where, fix=fix)


def bindings(policy: Policy, devices: Sequence[DeviceFact] = (), repository: str = "") -> tuple[RuleBinding, ...]:
    """Each rule with the mechanisms that bind it.

    Args:
        devices: the nodes that were found for its names.
        repository: that of a reviewed workspace which is elsewhere; empty: there is none.
    """
    out: list[RuleBinding] = []
    review = policy.workspace == "review"
    for field in keys.FIELDS:
        if field.bound is not None:
            for rule in keys.items(policy, field):
                text, mechanisms = field.bound(rule)
                if isinstance(rule, DeviceRule) and (
                    nodes := [fact.path for fact in devices if fact.name == rule.name]
                ):
                    text += f": {', '.join(nodes)}"
                if review and isinstance(rule, PathRule):
                    mechanisms = _reviewed(rule)
                origin = getattr(rule, "origin", None)
                out.append(RuleBinding(text, str(origin) if origin is not None else "policy", mechanisms))
    if review:
        kept = "overlayfs: changes are kept in the change set, and the workspace is not written"
        out.append(RuleBinding("workspace: review", "policy", (kept, "protected names are held back by apply")))
        if repository:
            said = "overlayfs: it is in the same change set", "what is of other work trees is never applied"
            out.append(RuleBinding(f"workspace: review: {repository}", "built-in", said))
    return (*out, *containers.bindings(policy))


def _reviewed(rule: PathRule) -> tuple[str, ...]:
    """What binds it in a reviewed workspace: there is no guard there, as nothing is visible outside."""
    if rule.effect == "hide":
        return "empty file below the changes, by name", "mount mask", "mount when the host makes a new name"
    return "read-only mount", "mount when the host makes a new name"


def build(policy: Policy, facts: HostFacts) -> SandboxPlan:
    """The plan of one run.

    Raises:
        PolicyError: a rule cannot be bound on this machine.
    """
    refuse(policy, facts)
    home = facts.home
    store = mounts.home_store(policy, facts)
    stores = [store] if store else []
    trust, java_trust = mounts.trust(policy, facts), mounts.java_trust(policy, facts)
    java = mounts.JAVA_TRUST if len(java_trust) == 1 else ""  # no JVM of the distribution that would find it
    if policy.view == "project":
        stores += [f"{facts.state}/agents/{policy.profiles[0]}/{name}" for name in policy.state_dirs]
    stores += containers.stores(policy, facts)
    of_system: list[RuleBinding] = []
    if policy.system != "read-only":
        from .system import bindings as bindings_of_system

        of_system = bindings_of_system(policy, facts)
    of_image, stop, image_user = list[RuleBinding](), 15, None
    if facts.image is not None:
        from .image import bindings as bindings_of_image
        from .image import stop_signal, user

        of_image, stop = bindings_of_image(policy, facts.image, facts), stop_signal(facts.image) or stop
        image_user = user(policy, facts.image, facts)
    further = policy.containers == "nested" or policy.system != "read-only"
    given = facts.subordinate if further and not facts.root else None
    return SandboxPlan(
        workspace=facts.workspace,
        cwd=facts.workspace,
        mounts=mounts.base(policy, facts),
        network=network.plan_network(policy),
        hardening=hardening.plan_hardening(policy, facts, home),
        environment=hardening.environment(policy, facts, home, mounts.TRUST if trust else "", java),
        base_kuid=BASE_KUID if facts.root else 0,
        uid=facts.uid,
        gid=facts.gid,
        bindings=(
            *bindings(policy, facts.devices, facts.reviewed.repository if facts.reviewed is not None else ""),
            *of_system,
            *of_image,
        ),
        stores=tuple(stores),
        inspect=network.inspects(policy),
        trust=trust,
        stop_signal=stop,
        trust_source=facts.image.bundle if facts.image is not None and trust else "",
        java_trust=java_trust,
        subordinate=(given.uids, given.gids) if given is not None else ((0, 0), (0, 0)),
        image_user=image_user,
    )


def identity(plan: SandboxPlan) -> str:
    """As whom the command runs."""
    if plan.base_kuid:
        return f"uid {plan.ids[0]} as kuid {plan.base_kuid}"
    if plan.mapped or plan.image_user:
        return f"uid {plan.ids[0]} as kuid {plan.uid}"
    # A root whose sandbox has no ids of its own: no CAP_SYS_ADMIN, or a workspace without id maps (overlayfs).
    return f"uid {plan.uid}" if plan.uid else "uid 0 as itself"


def receipt(plan: SandboxPlan) -> tuple[Binding, ...]:
    """Each rule of a plan with what binds it, for the record."""
    return tuple(
        Binding(binding.rule, ", ".join(binding.mechanisms), binding.status, False) for binding in plan.bindings
    )
