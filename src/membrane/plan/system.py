"""``system``: a layer of the sandbox's own over the system trees of the view, in which the command is root.

Theory of operation
-------------------
A root caller's command is uid 0 of its user namespace, without a capability.  With ``system: writable`` it keeps those
over owners, modes and ids (``CAPABILITIES``), in the namespace that owns the view, and none over mounts, namespaces,
networks or other processes' memory.  A capability holds over a file only where both of its ids are mapped
(capable_wrt_inode_uidgid), so the mounts say where:

* Each system tree is an overlay, whose changes go to a directory of our state, in which all ids of the sandbox are
  mapped (``Overlay.system``).
* The trees of the host below them are shown with their owners as well, but through an overlay that was mounted by an id
  that owns nothing (``Overlay.closed``, ``host.overlay``): what others may not read of them stays closed, whenever it
  is made.
* Of everything else of the host's that is root's inside (workspace, home, mounts, toolchains) only the owner is mapped
  (``host.trees``): the files of others are nobody's, and nothing can be given to others.

What hides a name in these trees is no mount, as a mount point cannot be replaced: the uppermost of the lower layers is
a directory of ours, made for each run, with white-outs (``Overlay.hidden``), and with what the tools have to find.
/var has nothing of the host's but the databases that every view shows.
"""

from __future__ import annotations

from ..errors import PolicyError
from .model import Bind, Overlay, RuleBinding, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..policy.model import Policy
    from .model import HostFacts, MountOp

# linux/capability.h: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID
CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7
VAR = "/var"
# Directories of /var that are there before the first package (FHS 3.0, section 5; what apt and debconf do not make).
VAR_DIRECTORIES = (
    *("backups", "cache", "lib", "local", "log", "mail", "opt", "spool", "tmp"),
    *("cache/apt/archives/partial", "cache/debconf", "cache/man", "lib/apt/lists/partial", "lib/misc", "log/apt"),
    *("lib/systemd", "lib/ucf"),
)
VAR_LINKS = (("run", "/run"), ("lock", "/run/lock"))
# Files that package managers and passwd(5) tools open, which only root may read on the host; ours are empty, but for
# shadow(5), in which each user of passwd(5) has a line without a password.
OWN_FILES = {
    "/etc": ("shadow", "gshadow", ".pwd.lock"),
    "/var/lib/dpkg": ("lock", "lock-frontend", "triggers/Lock", "triggers/Unincorp"),
}
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # dpkg(1) refuses to run without the programs there
SHADOW = "shadow"


def refuse(policy: Policy, facts: HostFacts, trees: Iterable[str]) -> None:
    """Stop a run whose layer cannot be had, or would not hold.

    Args:
        trees: the system trees of any view.

    Raises:
        PolicyError: with the reason and what to do instead.
    """
    if policy.view == "host" or policy.file_rules is not None:
        raise _unbound(policy, "has no effect with view: host, whose tree is one mount", "use view: project")
    for name, open_ in (
        ("containers: nested", policy.containers == "nested"),
        ("user_namespaces: allowed", policy.user_namespaces),
    ):
        if open_:
            raise _unbound(policy, f"and {name} exclude each other", f"leave {name} out")
    if facts.uid and not policy.image:
        cause = "needs root outside: only root can show this machine's files with their owners in a user namespace"
        raise _unbound(policy, cause, "sudo membrane --system=writable", "use an image: --image", "--containers")
    found = facts.subordinate
    if facts.uid and (found is None or found.lacking):
        cause = found.lacking if found is not None else "they were not looked for"
        raise _unbound(policy, f"needs subordinate ids: {cause}", *((found.fix,) if found is not None else ()))
    if not facts.uid and not facts.root:
        cause = "needs ids of its own for root: no CAP_SYS_ADMIN, or a file system without id maps (overlayfs, NFS)"
        raise _unbound(policy, cause, "membrane doctor")
    if facts.system is None:
        cause = f"needs a place for its layer, and {facts.state} is on a file system that takes none"
        raise _unbound(policy, cause, "set MEMBRANE_HOME to a directory on a disk")
    for tree in (*trees, VAR):
        if facts.state == tree or facts.state.startswith(f"{tree}/"):
            raise _unbound(policy, f"would have its own layer inside: {facts.state} is in {tree}", "set MEMBRANE_HOME")


def _unbound(policy: Policy, cause: str, *fix: str) -> PolicyError:
    return PolicyError("bind a rule", f"system: {policy.system} {cause}", where="policy", fix=fix)


def operations(
    facts: HostFacts,
    trees: Iterable[str],
    databases: Iterable[str],
    hidden: Sequence[str],
    names: tuple[str, ...],
) -> list[MountOp]:
    """The system trees of this machine, each below a layer.

    Args:
        trees: where they may be; what is a link there is one in the view.
        databases: the same below /var.
        hidden: paths that the view does not show.
        names: empty files of ours in /etc, which are bound over later.
    """
    links = dict(facts.links)
    ops: list[MountOp] = []
    for path in trees:
        if path in links:
            ops.append(Symlink(path, links[path]))
        elif path in facts.existing:
            ops += tree(path, facts, hidden, names if path == "/etc" else ())
    ops.append(var(facts))
    return [*ops, *(op for path in databases if path in facts.existing for op in tree(path, facts))]


def tree(path: str, facts: HostFacts, hidden: Iterable[str] = (), names: tuple[str, ...] = ()) -> list[MountOp]:
    """The layer over one tree of the host, and what is mounted below the tree there, read-only.

    Args:
        hidden: absolute paths that the view does not show; those of other trees do not count.
        names: empty files of ours in it, which are bound over later.
    """
    assert facts.system is not None  # else ``refuse`` has stopped it
    name = path[1:].replace("/", "-")
    place = facts.system.place
    covered = tuple(each for each in facts.bound if each.startswith(f"{path}/"))
    below = tuple(each[len(path) + 1 :] for each in hidden if each.startswith(f"{path}/"))
    made = Overlay(path, (f"{place}/own/{name}", path), f"{place}/{name}", covered=covered, make=True, own=True)
    made = made.replace(system=True, closed=True, hidden=below, names=names, origin="system")
    mounted = [each for each in facts.system.mounted if each.startswith(f"{path}/")]
    return [made, *(Bind(each, each, optional=True, origin="system") for each in mounted)]


def image_tree(
    path: str,
    sources: tuple[str, ...],
    facts: HostFacts,
    names: tuple[str, ...] = (),
    contents: tuple[tuple[str, bytes], ...] = (),
) -> Overlay:
    """The layer over one tree of an image, in which nothing is a secret of the host.

    Args:
        sources: its directories in the layers of the image, the uppermost first; none: it has no such tree.
        names, contents: files of ours in it (``Overlay``).
    """
    assert facts.system is not None
    name, place = path[1:].replace("/", "-"), facts.system.place
    made = Overlay(path, (f"{place}/own/{name}", *sources), f"{place}/{name}", make=True, own=True, system=True)
    return made.replace(names=names, contents=contents, origin="system")


def var(facts: HostFacts) -> Overlay:
    """/var, which is ours from the ground up."""
    assert facts.system is not None
    place = facts.system.place
    return Overlay(VAR, (f"{place}/own/var",), f"{place}/var", make=True, own=True, system=True, origin="system")


def environment(given: dict[str, str]) -> dict[str, str]:
    """Variables that the command gets beside ``given``: it is root, and looks for programs of root's."""
    path = given.get("PATH", "").split(":")
    out = {"PATH": ":".join([*path, *(place for place in SBIN if place not in path)])}
    out.update((name, "root") for name in ("USER", "LOGNAME") if name in given)
    return out


def bindings(policy: Policy, facts: HostFacts) -> list[RuleBinding]:
    """What holds with a layer, and what is weaker than without."""
    kept = "kept for this workspace" if policy.system == "persistent" else "thrown away at the end"
    held = [f"overlays over the system trees, their changes in our state, {kept}"]
    if not policy.image:
        held += [
            "what only root may read on the host stays closed: a layer between, mounted by an id that owns nothing",
            "credentials of the host in /etc: white-outs",
        ]
    held += [
        "capabilities: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, over nobody else's file outside of the layer",
        "no_new_privs, Landlock, seccomp",
        "set-user-ID files: made without the bit where the tracer looks, else refused",
    ]
    weaker = [
        "the command changes every program and setting that it runs with, and may become any user of the view",
        "services that a package starts run in the sandbox",
    ]
    if not facts.root:
        weaker.append("no id map in the workspace: other users of the sandbox may leave files of subordinate ids there")
    rule = f"system: {policy.system}"
    return [
        RuleBinding(rule, "policy", tuple(held)),
        RuleBinding(f"{rule}, weaker than without", "policy", tuple(weaker), "partial"),
    ]
