"""Policy + host facts -> the ordered mount operations of one sandbox.

Theory of operation
-------------------
The view is built from nothing: a private tmpfs is the root, and only what is named here appears in it.  Later
operations cover earlier ones, so the order is: system trees, private scratch, home, further mounts, workspace,
sockets, masks over host credentials, and then, inside the workspace, pins, read-only names and masks (masks last:
hide beats read-only, and no later tree uncovers a mask).

Rules
-----
1. A mount point is only ever created in a private tmpfs or in our own home store, never in a host tree: nothing of
   ours may stay in the workspace or on the host, whatever kills us.
2. A tree of the caller's home is visible only when it is a toolchain, and never as a whole.  It is read-only, or what
   is written is in a layer of our own (``Overlay``): the caller's never changes.
3. Everything is nosuid; nodev except the six device nodes of /dev, and those that a rule names (``devices``).  The
   storage of containers is neither (``containers``).
4. The order of the operations does not decide what a mask covers: masks are computed from the scanned tree.
5. PATH and links never show more than the rules: whatever leads to the home, the workspace or our state is left out.
"""

from __future__ import annotations

from ..policy.model import MountRule, Origin
from . import containers, toolchains
from .model import (
    RESOLVER_V4,
    Bind,
    Devices,
    Directory,
    File,
    Keep,
    Layer,
    Listen,
    Mask,
    Overlay,
    Pin,
    Proc,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from .network import inspects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..policy.model import Policy, SocketRule
    from .model import HostFacts, MountOp, ScanHit

# Read-only system trees.  On a merged-/usr system the short ones are symlinks and are recreated as such.
SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
# Databases that everyday tools read; nothing else of /var is visible.
VAR_TREES = ("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/var/lib/ca-certificates", "/var/lib/alternatives")
VAR_LINKS = (("/var/run", "/run"), ("/var/lock", "/run/lock"))  # FHS 3.0, section 5
# Of sysfs only what runtimes ask for to count processors and memory; the rest describes the host.
SYS_TREES = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage")
# Host credentials below /etc: unreadable for most callers anyway, hidden as a second barrier.
ETC_SECRET_FILES = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/security/opasswd",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/krb5.keytab",
    "/etc/ipsec.secrets",
    "/etc/ppp/chap-secrets",
    "/etc/subuid",
    "/etc/subgid",
)
ETC_SECRET_TREES = (
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/docker",
    "/etc/letsencrypt",
)
# Never shown as a whole because PATH names them, and never a workspace: they hold what belongs to other programs and
# users, such as their sockets.
SHARED_PLACES = frozenset(
    (
        *("/", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/lib64", "/proc", "/run", "/run/user"),  # noqa: S108
        *("/sbin", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/run", "/var/tmp"),  # noqa: S108
    )
)
TRUST = "/run/.membrane/certificates.pem"  # the bundle of a session that inspects
KERNEL_TREES = ("/dev", "/proc", "/sys")
RESOLV_CONF = f"nameserver {RESOLVER_V4}\noptions timeout:5 attempts:2\n".encode()
# What distributions call the bundle of trusted certificates (Go, crypto/x509/root_linux.go, has the same list).
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
JAVA_TRUST = "/run/.membrane/certificates.jks"  # the same for Java, which reads no PEM
# What distributions bind the "cacerts" of their JVMs to: Debian, Fedora (twice), Adoptium's packages.
JAVA_STORES = (
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
    "/etc/ssl/certs/adoptium/cacerts",
)
NSS = ".pki/nssdb"  # below the home: what Chromium trusts beside its own list; it writes there
LOGINS = "/run/.membrane-logins"  # copies of log-in files that a program replaces; in a run's own tmpfs
# In the containers of Membrane (the Go program) workspace and home are at these places: scripts and prompts name them.
WORKSPACE_NAME, HOME_NAME = "/workspace", "/home/agent"
# Where agents read by themselves what holds for everybody on a machine, and ours; below /etc.  Codex has a file that
# goes before the user's (codex-rs, core/src/config_loader: managed_config.toml).
INSTRUCTIONS = ("membrane/AGENTS.md", "claude-code/CLAUDE.md")
IN_FORCE = "membrane/config.yaml"
CODEX = "codex/managed_config.toml"
MASK_SOURCE = "/run/.membrane"  # holds the inaccessible file and directory that masks are made of
INSIDE_LOGINS = f"{MASK_SOURCE}/logins"  # the same as LOGINS, where nothing is mounted (``plan.inside``)


def path_trees(path_variable: str, home: str) -> tuple[str, ...]:
    """Directories that a PATH entry needs: the entry, and its prefix where that looks like an installation.

    Returns candidates only; ``mounts`` takes those that exist.
    """
    out: list[str] = []
    for entry in path_variable.split(":"):
        parts = [part for part in entry.split("/") if part]
        if not entry.startswith("/") or not parts or "." in parts or ".." in parts:
            continue
        entry = "/" + "/".join(parts)
        if entry != home and entry not in out:
            out.append(entry)
    return tuple(out)


def prefix_marks(entry: str) -> tuple[str, ...]:
    """Names beside a ``bin`` directory that show its parent to be one installation (a venv, a prefix)."""
    parent, _, name = entry.rpartition("/")
    return (f"{parent}/pyvenv.cfg", f"{parent}/lib") if name in ("bin", "sbin") and parent.count("/") > 1 else ()


def candidates(home: str, path_variable: str) -> tuple[str, ...]:
    """Every host path whose existence the plan asks for."""
    trees = path_trees(path_variable, home)
    return (
        *SYSTEM_TREES,
        *VAR_TREES,
        *SYS_TREES,
        *ETC_SECRET_FILES,
        *ETC_SECRET_TREES,
        *BUNDLES,
        *JAVA_STORES,
        "/etc/resolv.conf",
        "/etc/hosts",
        f"/etc/{CODEX}",
        WORKSPACE_NAME,
        HOME_NAME,
        *(f"{home}/{name}" for name in (*toolchains.NAMES, *toolchains.SECRETS)),
        *trees,
        *{parent for tree in trees if not _in_system(tree) for parent in _ancestors(tree)},
        *(mark for tree in trees for mark in prefix_marks(tree)),
    )


def inside(path: str, tree: str) -> bool:
    """Whether ``path`` is ``tree`` or below it."""
    return path == tree or path.startswith("/" if tree == "/" else tree + "/")


def _in_system(path: str) -> bool:
    return any(inside(path, tree) for tree in SYSTEM_TREES)


def _ancestors(path: str) -> list[str]:
    """The directories above ``path``, the nearest first, without the root."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def absolute(path: str, base: str) -> str:
    """``path`` seen from the directory ``base``, without ``.``, ``..`` and doubled slashes; links are not looked at."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{base}/{path}").split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def places(rule: MountRule, facts: HostFacts) -> tuple[str, str]:
    """Source and target of a mount rule; the source is empty when there is no enclosing repository."""
    source = absolute(rule.path, facts.workspace) if not rule.git_root else facts.git_root
    return source, in_view(absolute(rule.target, "/") if rule.target else source, facts)


def as_found(policy: Policy, facts: HostFacts) -> tuple[Policy, tuple[str, ...]]:
    """``policy`` as this machine makes it, and what to say about that.

    Each git directory that the workspace keeps elsewhere, and no rule names, becomes a mount; under file rules
    (``files``, ``srt``) the lists say what is open, and nothing is added.  In a reviewed workspace they
    are an overlay (``base``).  Optional sockets that cannot be opened go.
    """
    sockets, warnings = _sockets_that_open(policy, facts)
    rules: list[MountRule] = []
    if facts.devices:
        from .devices import warnings as of_devices

        warnings += of_devices(facts)
    if policy.file_rules is None:
        named = {places(rule, facts) for rule in policy.mounts}
        rules += [
            MountRule(path, mode, Origin("built-in", "the repository of the workspace"))
            for path, mode in facts.repository.shown
            if (path, path) not in named and policy.workspace != "review"
        ]
        if facts.repository.warning:
            warnings.append(facts.repository.warning)
    return policy.replace(mounts=(*policy.mounts, *rules), unix_sockets=tuple(sockets)), tuple(warnings)


_CAN_NOT_BE_OPENED = {
    "not a socket": "it is not a socket",
    "forbidden": "this user may not open it",
    "datagram": "it is not a stream socket",
    "far": "the sandbox's root may not search a directory above it",
}


def _sockets_that_open(policy: Policy, facts: HostFacts) -> tuple[list[SocketRule], list[str]]:
    """The rules of sockets without the optional ones that cannot be opened, and why they cannot."""
    kinds = {fact.path: fact.kind for fact in facts.sockets}
    kept: list[SocketRule] = []
    warnings: list[str] = []
    for rule in policy.unix_sockets:
        path = absolute(rule.path, facts.workspace)
        kind = kinds.get(path, "absent")
        private = inside(in_view(path, facts), "/run")
        replaceable = "" if not rule.optional or private else covering(path, policy, facts)
        if replaceable:
            warnings.append(f"{rule.path} is left out: the command can write {replaceable}, and replace it")
        elif not rule.optional or kind == "stream" or (kind == "far" and private):
            kept.append(rule)
        elif kind in _CAN_NOT_BE_OPENED:
            warnings.append(f"{rule.path} is left out: {_CAN_NOT_BE_OPENED[kind]}")
        elif private:
            kept.append(rule)  # ours is in its place, and asks for the service when a program connects
            cause = "no program listens on it" if kind == "dead" else "it does not exist"
            warnings.append(f"{rule.path}: {cause} yet; it opens when its service starts")
        else:
            # A service makes its socket anew when it starts, and what was mounted over the old one is gone then.
            cause = "no program listens on it" if kind == "dead" else "it does not exist"
            warnings.append(f"{rule.path} is left out: {cause}; run again when its service runs")
    return kept, warnings


def covering(path: str, policy: Policy, facts: HostFacts) -> str:
    """The tree, one that the command can write, in which a socket of the host at ``path`` is covered; empty: none."""
    if policy.open_sockets:
        return ""
    if policy.file_rules is not None:
        from .hosttree import guarded

        trees = [tree for tree, _rules in guarded(policy, facts)]
    else:
        at = [places(rule, facts) for rule in policy.mounts if rule.mode == "rw"]
        trees = [facts.workspace, *(source for source, target in at if source == target)]
    return next((tree for tree in trees if tree and inside(path, tree)), "")


def in_view(path: str, facts: HostFacts) -> str:
    """``path`` with the links that the view itself has at its top replaced by what they lead to."""
    links = dict(facts.links)
    for link, to in (
        *VAR_LINKS,
        *_second_names(facts),
        *((tree, links[tree]) for tree in SYSTEM_TREES if tree in links),
    ):
        if inside(path, link):
            return to + path[len(link) :]
    return path


def _second_names(facts: HostFacts) -> list[tuple[str, str]]:
    """Links to workspace and home at the places where Membrane's containers have them, where nothing is there."""
    taken = (facts.home, facts.workspace, facts.state)
    return [
        (name, to)
        for name, to in ((WORKSPACE_NAME, facts.workspace), (HOME_NAME, facts.home))
        if name not in facts.existing and not any(inside(tree, name) or inside(name, tree) for tree in taken)
    ]


def places_of_its_own(policy: Policy, facts: HostFacts) -> tuple[str, ...]:
    """Paths of the view where something else than an image is: none of the image's trees may be above them."""
    layered = policy.system != "read-only"  # over /var, with what has its place there
    out = ["/dev", "/proc", "/sys", "/run", "/tmp", *(() if layered else ("/var/tmp", "/var/run", "/var/lock"))]  # noqa: S108
    out += [WORKSPACE_NAME, HOME_NAME, facts.home, facts.workspace]
    out += [places(rule, facts)[1] for rule in policy.mounts]
    out += [path for path, _how in facts.repository.shown]
    out += [absolute(rule.path, facts.workspace) for rule in policy.unix_sockets]
    out += [*containers.PLACES, containers.CACHE] if policy.containers == "nested" else []
    return tuple(dict.fromkeys(path for path in out if not inside(path, "/etc")))


def _shows_too_much(tree: str, facts: HostFacts) -> bool:
    """Whether a read-only bind of ``tree`` would show what only another rule may show."""
    shared = (*SHARED_PLACES, f"/run/user/{facts.uid}")
    if tree in shared or any(inside(tree, kernel) for kernel in KERNEL_TREES) or inside(tree, facts.state):
        return True
    secrets = (*ETC_SECRET_FILES, *ETC_SECRET_TREES)
    return any(inside(kept, tree) for kept in (facts.home, facts.workspace, facts.state, *secrets))


def _from_path(tree: str, facts: HostFacts) -> bool:
    """Whether PATH may add ``tree``: judged by its name and, with a link in it, by where it leads."""
    links = dict(facts.links)
    leads_to = next((links[path] + tree[len(path) :] for path in (tree, *_ancestors(tree)) if path in links), tree)
    if _shows_too_much(tree, facts) or _shows_too_much(leads_to, facts):
        return False
    if leads_to == tree:
        return True
    # A link may have been made by an agent in an earlier run: it opens no part of the home or the workspace.
    if any(inside(leads_to, f"{facts.home}/{name}") for name in toolchains.NAMES):
        return True
    return not any(inside(leads_to, tree) for tree in (facts.home, facts.workspace, *ETC_SECRET_TREES))


def _installations(facts: HostFacts) -> list[str]:
    """Read-only trees from PATH that no other operation shows."""
    shown = [*SYSTEM_TREES, facts.workspace, *(f"{facts.home}/{name}" for name in toolchains.NAMES)]
    out: list[str] = []
    for entry in path_trees(dict(facts.environ).get("PATH", ""), facts.home):
        if entry not in facts.existing or any(inside(entry, tree) for tree in shown) or not _from_path(entry, facts):
            continue
        tree = entry
        parent = entry.rpartition("/")[0]
        if any(mark in facts.existing for mark in prefix_marks(entry)) and _from_path(parent, facts):
            tree = parent
        if not any(inside(tree, other) for other in out):
            out.append(tree)
    return out


def _home(policy: Policy, facts: HostFacts, store: str) -> list[MountOp]:
    ops: list[MountOp] = []
    if policy.home == "ephemeral":
        ops.append(Tmpfs(facts.home, 0o700, policy.limits.disk))
    else:
        ops.append(Bind(store, facts.home, writable=True, own=True, make=True))
    for name in policy.state_dirs:
        kept = f"{facts.state}/agents/{policy.profiles[0]}/{name}"
        ops.append(Bind(kept, f"{facts.home}/{name}", writable=True, own=True, make=True, origin="agent profile"))
    for name in policy.state_shown:
        tree = f"{facts.home}/{name}"
        ops.append(Bind(tree, tree, own=True, optional=True, make=True, origin="agent profile"))
    taken = [*(places(rule, facts)[1] for rule in policy.mounts), facts.workspace, facts.state]
    taken += [in_view(absolute(rule.path, facts.workspace), facts) for rule in policy.unix_sockets]
    links = dict(facts.links)
    for tree in toolchains.present(facts):
        # An overlay shows no mounts of the tree it is over, and what other rules place there is pinned in a bind only.
        plain = tree not in links and not any(inside(path, tree) for path in (*taken, *facts.mounted))
        if facts.layers and plain:
            layer = f"{facts.layers}/{tree[len(facts.home) + 1 :].replace('/', '-')}"
            # Not masks of their own: what an earlier run left in the layer must not end this one.
            hidden = [path for path in toolchains.secrets(facts) if inside(path, tree)]
            hidden += [path for path in facts.bound if inside(path, tree) and not policy.open_sockets]
            made = Overlay(tree, (tree,), layer, make=True, own=True, origin="toolchain", fallback=True)
            ops.append(made.replace(covered=tuple(hidden)))
        else:
            ops.append(Bind(tree, tree, own=True, optional=True, make=True, origin="toolchain"))
    return ops


def home_store(policy: Policy, facts: HostFacts) -> str:
    """The host directory that is bound over $HOME; empty for an ephemeral home or the host's view."""
    if policy.view == "host" or policy.home == "ephemeral":
        return ""
    if policy.backend == "landlock":  # of its own: links stand in it where the native one has mount points
        name = "shared" if policy.home == "shared" else workspace_key(facts.workspace)
        return f"{facts.state}/homes/{name}.landlock"
    if policy.home == "shared":
        return f"{facts.state}/home"
    return f"{facts.state}/homes/{workspace_key(facts.workspace)}"


def workspace_key(path: str) -> str:
    """A file name for what is kept per workspace: the last component to be readable, a digest to be exact."""
    from _blake2 import blake2b  # hashlib would load OpenSSL: 5 ms

    digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in path.rpartition("/")[2])[:40]
    return f"{readable}-{digest}"


def _instructions(facts: HostFacts) -> list[MountOp]:
    """Files for agents in /etc, which are written once the view is built (``run.brief``)."""
    if "/etc" not in facts.existing or "/etc" in dict(facts.links):
        return []
    return [Layer("/etc", _instruction_names(facts))]


def _instruction_names(facts: HostFacts) -> tuple[str, ...]:
    # Not where the administrator has instructions for Codex on this machine.
    return (*INSTRUCTIONS, IN_FORCE, *(() if f"/etc/{CODEX}" in facts.existing else (CODEX,)))


def _etc(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """The name service files of the sandbox."""
    ops: list[MountOp] = []
    links = dict(facts.links)
    hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {facts.hostname}\n".encode()
    for path, content in (("/etc/resolv.conf", RESOLV_CONF), ("/etc/hosts", hosts)):
        target = links.get(path, path)
        if path not in facts.existing:
            continue  # glibc then asks 127.0.0.1:53, which is answered too
        if target.startswith("/var/run/"):
            target = target.removeprefix("/var")
        # A link into /run or another private place: the file is made there; else it is bound over the real one.
        private = target.startswith(("/run/", "/tmp/")) and not policy.open_files  # noqa: S108
        if policy.view == "project":
            private = not _in_system(target)
        ops.append(File(target, content, bind=not private))
    return ops


def trust(policy: Policy, facts: HostFacts) -> tuple[str, ...]:
    """The bundles that are replaced, ours first; empty when the command needs no further authority."""
    if not inspects(policy) and not policy.extra_ca:
        return ()
    links = dict(facts.links)
    found = [links.get(path, path) for path in BUNDLES if path in facts.existing]
    return (TRUST, *dict.fromkeys(found))


def java_trust(policy: Policy, facts: HostFacts) -> tuple[str, ...]:
    """The key stores of Java that are replaced, ours first; empty when the command needs no further authority."""
    if not trust(policy, facts):
        return ()
    links = dict(facts.links)
    return (JAVA_TRUST, *dict.fromkeys(links.get(path, path) for path in JAVA_STORES if path in facts.existing))


def _shown(facts: HostFacts, binds: Sequence[Bind]) -> list[str]:
    """Where the view shows a bound socket of the host, through the innermost tree at each place."""
    found = []
    for path in facts.bound:
        for number, op in enumerate(binds):
            place = op.target + path[len(op.source) :]
            if inside(path, op.source) and not any(inside(place, later.target) for later in binds[number + 1 :]):
                found.append(place)
    return found


def _etc_secrets(policy: Policy, facts: HostFacts) -> list[str]:
    """Credentials of the host below /etc that no rule names."""
    named = [facts.workspace, *(places(rule, facts)[1] for rule in policy.mounts)]
    return [
        path
        for path in (*ETC_SECRET_FILES, *ETC_SECRET_TREES)
        if path in facts.existing and not any(inside(tree, path) for tree in named)
    ]


def _masks(policy: Policy, facts: HostFacts, ops: Sequence[MountOp] = ()) -> list[MountOp]:
    """Masks over host credentials, except those that a rule names, and over our own state."""
    named = [facts.workspace, *(places(rule, facts)[1] for rule in policy.mounts)]
    links = dict(facts.links)
    masks: list[MountOp] = [
        Mask(links.get(path, path), path in ETC_SECRET_TREES, "host credentials")
        for path in _etc_secrets(policy, facts)
        # Where there is a layer they are hidden in it; but what a rule mounts over that is the host's.
        if not policy.open_files and (policy.system == "read-only" or any(inside(path, tree) for tree in named))
        # What an image has there is no credential of this machine; what a rule mounts over it is.
        if facts.image is None or any(inside(path, tree) for tree in named)
    ]
    bound = [op.target for op in ops if isinstance(op, Bind) and op.origin == "toolchain"]
    masks += [
        Mask(path, path.endswith(toolchains.SECRET_TREES), "host credentials")
        for path in toolchains.secrets(facts)
        if any(inside(path, tree) for tree in bound) and not any(inside(tree, path) for tree in named)
    ]
    # A read-only mount does not keep a program from connecting: what listens in the host's trees now is covered.
    named += [in_view(absolute(rule.path, facts.workspace), facts) for rule in policy.unix_sockets]
    private = ["/dev", "/proc", "/sys", *(() if policy.open_files else ("/run",))]  # other file systems in the view
    if policy.file_rules is None:
        private += ["/tmp", "/var/tmp"]  # noqa: S108
    else:  # the scratch directories are the host's, and only what is listed may be reached, in the workspace as well
        named.remove(facts.workspace)
    if not policy.open_sockets:
        own = (*named, *private, facts.state)
        if policy.view == "host":
            found = [path for path in facts.bound if not any(inside(path, tree) for tree in own)]
        else:
            found = _shown(facts, [op for op in ops if isinstance(op, Bind) and not inside(op.source, facts.state)])
        masks += [Mask(path, False, "socket of the host") for path in dict.fromkeys(found)]
    masks += [Mask(path, True, "another worktree of the repository") for path in facts.repository.hidden]
    if policy.view == "host" or _in_system(facts.state):  # it holds the homes and agent logins of other workspaces
        masks.append(Mask(facts.state, True, "membrane's own state"))
    return masks


def kept(operations: Iterable[MountOp], state: str) -> list[str]:
    """Directories of our state that the command writes and that outlive it: what ``limits.disk`` bounds together."""
    out: list[str] = []
    sources = [
        op.source if isinstance(op, Bind) and op.writable else op.layer if isinstance(op, Overlay) else ""
        for op in operations
    ]
    for source in sorted(sources, key=lambda path: path.count("/")):  # one may be in another
        if inside(source, state) and not any(inside(source, other) for other in out):
            out.append(source)
    return out


def base(policy: Policy, facts: HostFacts) -> tuple[MountOp, ...]:
    """All operations up to the workspace; ``workspace`` gives the rest once the tree is scanned."""
    ops: list[MountOp] = []
    links = dict(facts.links)
    size = policy.limits.disk
    made = None
    layered = policy.system != "read-only"
    if layered:
        from . import system
    if policy.file_rules is not None:
        from .hosttree import layout, state_pins

        made = layout(facts.files)
    if policy.view == "host":
        if made is None or not made.root_hidden:
            ops.append(Bind("/", "/", writable=policy.open_files, own=True))
        ops.append(Tmpfs("/sys", 0o755))
    else:
        agents = _instruction_names(facts)
        if facts.image is not None:
            from . import image

            ops += image.operations(facts.image, facts, agents, layered=layered)
        elif layered:
            ops += system.operations(facts, SYSTEM_TREES, VAR_TREES, _etc_secrets(policy, facts), agents)
        else:
            for tree in SYSTEM_TREES:
                if tree in links:
                    ops.append(Symlink(tree, links[tree]))
                elif tree in facts.existing:
                    ops.append(Bind(tree, tree, make=True))
            ops += [Directory("/var"), Directory("/var/lib"), Directory("/var/cache"), Directory("/var/log")]
            ops += [Bind(tree, tree, make=True, optional=True) for tree in VAR_TREES if tree in facts.existing]
        second = _second_names(facts)
        ops += [] if layered else [Symlink(link, to) for link, to in VAR_LINKS]
        ops += [Directory("/sys"), *([Directory("/home")] if HOME_NAME in dict(second) else [])]
        ops += [Symlink(name, to) for name, to in second]
    nested = policy.containers == "nested"
    # Whole: a user namespace gets a sysfs and a proc of its own only where it sees such ones already.
    trees = ("/sys",) if nested else SYS_TREES
    ops += [Bind(tree, tree, make=True, optional=True) for tree in trees if nested or tree in facts.existing]
    ops += [
        Proc(freeze_settings=(facts.uid == 0 or layered) and not nested, whole=nested),
        Devices(),
        Tmpfs("/dev/shm", 0o1777, size),  # noqa: S108
        *(() if made is not None else (Tmpfs("/tmp", 0o1777, size), Tmpfs("/var/tmp", 0o1777, size))),  # noqa: S108
        *_run(policy, facts),
        Tmpfs(MASK_SOURCE, 0o755),
    ]
    if facts.devices:
        from .devices import operations

        ops += operations(policy, facts)
    if made is not None:
        ops += made.ops
        if not made.root_hidden or any(each.path == "/etc" for each in facts.files):
            ops += _etc(policy, facts)
        ops += state_pins(facts, ("/",) if policy.open_files else made.roots)
        ops += [*_sockets(policy, facts), *_host_sockets(policy, facts), *_masks(policy, facts)]
        return tuple(_only_private_mount_points(ops, "project" if made.root_hidden else "host", facts.state))
    if facts.image is not None:
        ops += image.etc(policy, facts.image, facts, agents)
        ops += image.volumes(facts.image, facts)
    else:
        ops += () if layered else _instructions(facts)
        ops += _etc(policy, facts)
    if policy.view == "project":
        # A workspace below the home needs the home first; a home below the workspace is refused by ``refuse``.
        ops += _home(policy, facts, home_store(policy, facts))
        ops += [Bind(tree, tree, make=True, optional=True, own=True) for tree in _installations(facts)]
        if trust(policy, facts):
            ops.append(Tmpfs(f"{facts.home}/{NSS}", 0o700, size, optional=True))
        if any(mask.replaced for mask in policy.masks):
            ops.append(Tmpfs(LOGINS, 0o700, size))
    if nested:
        ops += containers.operations(policy, facts)
    overlays = _overlays(facts) if policy.workspace == "review" else []
    # Outer trees first: of two rules the innermost decides, as in ``decide``.
    for rule in sorted(policy.mounts, key=lambda rule: places(rule, facts)[1].count("/")):
        source, target = places(rule, facts)
        if len(overlays) > 1 and target.count("/") > overlays[0].target.count("/"):
            ops.append(overlays.pop(0))
        if source != facts.workspace:  # the enclosing repository may be the workspace itself
            direct = all(path != source for path, _link in facts.linked)
            writable, origin = rule.mode == "rw", str(rule.origin)
            ops.append(Bind(source, target, writable, own=True, make=True, origin=origin, direct=direct))
    if policy.workspace == "review":
        ops += overlays
        assert facts.reviewed is not None  # else ``build.refuse`` has stopped it
        if facts.reviewed.repository:
            # What it names is kept apart under that name: it is in no change set.
            pointer = f"{facts.workspace}/.git"
            ops.append(Bind(pointer, pointer, own=True, origin="the repository of the workspace"))
            ops += _pins_above(ops, facts.reviewed.repository)
    else:
        at = facts.workspace
        ops.append(Bind(at, at, writable=True, own=True, make=True, origin="workspace", direct=True))
    ops += _pins_above(ops, facts.workspace)
    for rule in policy.mounts:  # where the tree that holds it can be written: the home, a layer
        ops += _pins_above(ops, places(rule, facts)[1])
    ops += _sockets(policy, facts)
    ops += _host_sockets(policy, facts)
    ops += _masks(policy, facts, ops)
    return tuple(_only_private_mount_points(ops, policy.view, facts.state))


def _overlays(facts: HostFacts) -> list[Overlay]:
    """Of a reviewed workspace: that of its repository, where it is elsewhere, and that of its files."""
    found = facts.reviewed
    assert found is not None  # else ``build.refuse`` has stopped it
    origin = f"change set {found.name}"
    lowers = (*found.lowers, facts.workspace)
    out = [Overlay(facts.workspace, lowers, found.layer, make=True, own=True, origin=origin, direct=True)]
    if found.repository:
        path, lowers = found.repository, (*found.git_lowers, found.repository)
        origin = f"{origin}: its repository"
        out.insert(0, Overlay(path, lowers, found.git_layer, make=True, own=True, origin=origin, direct=True))
    return out


def _run(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """/run: a private one; with open files one that holds what the host's does, and nothing can be added to."""
    size = policy.limits.disk
    if not policy.open_files:
        return [
            Tmpfs("/run", 0o755, size),
            Directory("/run/lock", 0o1777),
            Directory("/run/user"),
            Directory(f"/run/user/{facts.uid}", 0o700),
        ]
    ops: list[MountOp] = [Tmpfs("/run", 0o755, size, sealed=True)]
    for path, to in facts.runtime:
        if to:
            ops.append(Symlink(path, to))
        else:
            ops.append(Bind(path, path, writable=True, optional=True, own=True, make=True))
    return ops


def _host_sockets(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """With open sockets: those that are bound in /run now, of which the view has a private one."""
    if not policy.open_sockets or policy.open_files or policy.view != "host":
        return []
    runtime = f"/run/user/{facts.uid}"
    listed = {in_view(absolute(rule.path, facts.workspace), facts) for rule in policy.unix_sockets}
    ops: dict[str, MountOp] = {}
    for path in facts.bound:
        if not inside(path, "/run") or inside(path, MASK_SOURCE) or path in listed:
            continue
        if inside(path, runtime):
            parents = [parent for parent in reversed(_ancestors(path)) if parent != runtime and inside(parent, runtime)]
            ops.update((parent, Directory(parent, 0o700)) for parent in parents if parent not in ops)
        ops[path] = Bind(path, path, optional=True, own=True, make=True, origin="open sockets")
    return list(ops.values())


def _sockets(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """A listening socket of ours in the place of each socket of the host that a rule names."""
    known = {fact.path: fact for fact in facts.sockets}
    ops: dict[str, MountOp] = {}
    for number, rule in enumerate(policy.unix_sockets):
        path = absolute(rule.path, facts.workspace)
        at = in_view(path, facts)
        fact = known.get(path)
        source, owner = (fact.resolved, fact.uid) if fact else (path, facts.uid)
        if at in ops:
            continue  # what two levels name alike
        runtime = f"/run/user/{facts.uid}"
        if inside(at, runtime) and not any(inside(at, places(mount, facts)[1]) for mount in policy.mounts):
            # Programs use directories there only when no other user may look into them (XDG Base Directory, gpg).
            parents = [path for path in reversed(_ancestors(at)) if path != runtime and inside(path, runtime)]
            ops.update((path, Directory(path, 0o700)) for path in parents if path not in ops)
        ops[at] = Listen(at, source, number, owner, make=True, origin=str(rule.origin))
    return list(ops.values())


def _pins_above(ops: Sequence[MountOp], tree: str) -> list[MountOp]:
    """Pins over the directories above a mount that the command could rename.

    The mount would move along: a mask made later, by path, would not find it, and names in it would not be protected
    before they are made.

    Outer ones first: a pin is a copy of all mounts below it, and of one that holds pins already each is there twice
    afterwards, so the other order doubles the number of mounts with each directory.
    """
    pins: list[MountOp] = []
    for path in reversed(_ancestors(tree)):
        holders = [op for op in ops if isinstance(op, (Bind, Tmpfs, Overlay)) and inside(path, op.target)]
        holders = [op for op in holders if not isinstance(op, Overlay) or op.system]
        writable = bool(holders) and (not isinstance(holders[-1], Bind) or holders[-1].writable)
        if writable and holders[-1].target != path and Pin(path) not in ops:
            pins.append(Pin(path))
    return pins


def _only_private_mount_points(ops: Sequence[MountOp], view: str, state: str) -> Iterable[MountOp]:
    """Take ``make`` away where the mount point would be created in a host tree (rule 1)."""
    covers: list[tuple[str, bool]] = [("/", view == "project")]
    for op in ops:
        if isinstance(op, (Bind, Overlay, Listen)) and op.target != "/":
            private = next(made for tree, made in reversed(covers) if inside(op.target, tree))
            yield op if private else op.replace(make=False)
            if isinstance(op, Listen):
                continue
            if isinstance(op, Overlay):
                covers.append((op.target, op.system))  # what is made there is made in our layer
                continue
            # Our own stores may hold mount points; every other bind is a tree of the host.
            covers.append((op.target, isinstance(op, Bind) and op.writable and inside(op.source, state)))
        else:
            yield op
            if isinstance(op, (Tmpfs, Devices)):
                covers.append((op.target, True))


def writable(policy: Policy, facts: HostFacts) -> list[str]:
    """Trees of the host that the command can write."""
    if policy.file_rules is not None:
        return [each.path for each in facts.files if each.effect == "allow-write"]
    return [facts.workspace, *(places(rule, facts)[0] for rule in policy.mounts if rule.mode == "rw")]


def reviewed(hits: Iterable[ScanHit], pins: Iterable[str]) -> tuple[tuple[ScanHit, ...], tuple[str, ...]]:
    """What of a scan is bound by mounts in a reviewed workspace: all but protected names, with the pins above it.

    What programs outside would obey can be written there, as it is not theirs before it is applied.
    """
    kept = tuple(hit for hit in hits if hit.effect != "protect")
    above = {parent for hit in kept for parent in _ancestors(f"/{hit.path}")}
    return kept, tuple(path for path in pins if f"/{path}" in above)


def frozen(root: str, paths: Iterable[str]) -> tuple[MountOp, ...]:
    """Pins and read-only binds for trees below ``root`` that the command must not change."""
    given = [path for path in paths if path != root and inside(path, root)]
    kept = [path for path in given if not any(inside(path, other) for other in given if other != path)]
    return (*pins([root], kept), *(ReadOnly(path, origin="membrane itself") for path in kept))


def pins(roots: Sequence[str], paths: Iterable[str]) -> list[MountOp]:
    """Pins over the directories above ``paths`` that lie in one of ``roots``, each once.

    The outer ones come first: a bind copies what is mounted below it.
    """
    above = {parent for path in paths for parent in _ancestors(path)}
    inner = {path for path in above if any(path != root and inside(path, root) for root in roots)}
    return [Pin(path) for path in sorted(inner, key=lambda path: (path.count("/"), path))]


def workspace(
    root: str,
    hits: Iterable[ScanHit],
    pins: Iterable[str],
    kept: Iterable[tuple[str, str]] = (),
    empty: frozenset[str] = frozenset(),
) -> tuple[MountOp, ...]:
    """Pins, then read-only names, then masks, for what the scan found below ``root``.

    ``kept``: files, and for each a directory among the read-only names, for a ``Keep``.
    ``empty``: hidden paths that are empty and can be read (``workspace.emptied``).
    """
    prefix = root.rstrip("/") + "/"
    hits = sorted(hits, key=lambda hit: (hit.effect == "hide", hit.path.count("/"), hit.path))
    ops: list[MountOp] = []
    by_parent: dict[str, list[MountOp]] = {}
    for file, directory in kept:
        by_parent.setdefault(file.rpartition("/")[0], []).append(Keep(prefix + directory, prefix + file))
    ops += by_parent.pop("", [])
    for path in pins:
        ops.append(Pin(prefix + path))
        ops += by_parent.pop(path, ())  # shallow pins come first: what is between the two is pinned later
    for hit in hits:
        if hit.effect == "hide":
            # By the ten thousand: see ``Value``.
            ops.append(Mask(prefix + hit.path, hit.directory, "", hit.link, hit.path in empty))
        else:
            ops.append(ReadOnly(prefix + hit.path, hit.link, hit.effect))
    return tuple(ops)
