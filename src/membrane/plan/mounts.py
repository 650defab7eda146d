"""Policy + host facts -> the ordered mount operations of one sandbox.

Theory of operation
-------------------
The view is built from nothing: a private tmpfs is the root, and only what is named here appears in it.  Later
operations cover earlier ones, so the order is: system trees, private scratch, home, further mounts, workspace,
and then, inside the workspace, pins, read-only names and masks (masks last: hide beats read-only).

Rules
-----
1. A mount point is only ever created in a private tmpfs or in our own home store, never in a host tree: nothing of
   ours may stay in the workspace or on the host, whatever kills us.
2. A tree of the caller's home is visible only when it is a toolchain, read-only, and never as a whole.
3. Everything is nosuid; nodev except the six device nodes of /dev.
4. The order of the operations does not decide what a mask covers: masks are computed from the scanned tree.
"""

from __future__ import annotations

from .model import (
    RESOLVER_V4,
    Bind,
    Devices,
    Directory,
    File,
    Mask,
    Pin,
    Proc,
    ReadOnly,
    Symlink,
    Tmpfs,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..policy.model import Policy
    from .model import HostFacts, MountOp, ScanHit

# Read-only system trees.  On a merged-/usr system the short ones are symlinks and are recreated as such.
SYSTEM_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu")
# Databases that everyday tools read; nothing else of /var is visible.
VAR_TREES = ("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/var/lib/ca-certificates", "/var/lib/alternatives")
# Of sysfs only what runtimes ask for to count processors and memory; the rest describes the host.
SYS_TREES = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage")
# Host credentials below /etc: unreadable for most callers anyway, hidden as a second wall.
ETC_SECRETS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/security/opasswd",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/docker",
    "/etc/letsencrypt",
    "/etc/ipsec.secrets",
    "/etc/ppp/chap-secrets",
    "/etc/subuid",
    "/etc/subgid",
)
# Toolchains below the home directory: programs and libraries, never credentials or caches.
TOOLCHAINS = (
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/claude",
    ".local/share/pipx",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/share/mise/installs",
    ".local/share/mise/shims",
    ".local/share/fnm",
    ".local/share/pnpm",
    ".local/share/rtx",
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".rustup",
    ".deno/bin",
    ".dotnet",
    ".fnm",
    ".ghcup/bin",
    ".ghcup/ghc",
    ".jenv",
    ".juliaup",
    ".linuxbrew",
    ".n",
    ".nodenv",
    ".npm-global",
    ".nvm",
    ".opam",
    ".opencode/bin",
    ".pyenv",
    ".rbenv",
    ".rye/shims",
    ".rye/py",
    ".rye/tools",
    ".sdkman/candidates",
    ".volta",
    "anaconda3",
    "bin",
    "go/bin",
    "miniconda3",
    "miniforge3",
    "sdk",
)
RESOLV_CONF = f"nameserver {RESOLVER_V4}\noptions timeout:5 attempts:2\n".encode()
MASK_SOURCE = "/run/.membrane"  # holds the inaccessible file and directory that masks are made of


def path_trees(path_variable: str, home: str) -> tuple[str, ...]:
    """Directories that a PATH entry needs: the entry, and its prefix where that looks like an installation.

    Returns candidates only; ``mounts`` takes those that exist.
    """
    out: list[str] = []
    for entry in path_variable.split(":"):
        entry = entry.rstrip("/")
        if not entry.startswith("/") or entry == home or "/../" in entry + "/" or "/./" in entry + "/":
            continue
        if entry not in out:
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
        *ETC_SECRETS,
        "/etc/resolv.conf",
        "/etc/hosts",
        *(f"{home}/{name}" for name in TOOLCHAINS),
        *trees,
        *(mark for tree in trees for mark in prefix_marks(tree)),
    )


def inside(path: str, tree: str) -> bool:
    """Whether ``path`` is ``tree`` or below it."""
    return path == tree or path.startswith("/" if tree == "/" else tree + "/")


def _installations(policy: Policy, facts: HostFacts) -> list[str]:
    """Read-only trees from PATH that no other operation shows."""
    shown = [*SYSTEM_TREES, facts.workspace, *(f"{facts.home}/{name}" for name in TOOLCHAINS)]
    out: list[str] = []
    for entry in path_trees(dict(facts.environ).get("PATH", ""), facts.home):
        if entry not in facts.existing or any(inside(entry, tree) for tree in shown):
            continue
        tree = entry
        parent = entry.rpartition("/")[0]
        marks = any(mark in facts.existing for mark in prefix_marks(entry))
        # Never widen to the home itself, to something above the workspace or the state, or to a top-level directory.
        if marks and not any(inside(kept, parent) for kept in (facts.home, facts.workspace, facts.state)):
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
    for name in TOOLCHAINS:
        tree = f"{facts.home}/{name}"
        if tree in facts.existing:
            ops.append(Bind(tree, tree, own=True, optional=True, make=True, origin="toolchain"))
    return ops


def home_store(policy: Policy, facts: HostFacts) -> str:
    """The host directory that is bound over $HOME; empty for an ephemeral home or the host's view."""
    if policy.view == "host" or policy.home == "ephemeral":
        return ""
    if policy.home == "shared":
        return f"{facts.state}/home"
    import hashlib

    # The name is kept readable; the digest makes it exact.
    digest = hashlib.sha256(facts.workspace.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    readable = "".join(c if c.isalnum() or c in "-_." else "_" for c in facts.workspace.rpartition("/")[2])[:40]
    return f"{facts.state}/homes/{readable}-{digest}"


def _etc(facts: HostFacts) -> list[MountOp]:
    ops: list[MountOp] = [
        Mask(path, path.endswith((".d", "/private", "connections", "wireguard", "kubernetes", "rancher", "docker")))
        for path in ETC_SECRETS
        if path in facts.existing
    ]
    links = dict(facts.links)
    hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {facts.hostname}\n".encode()
    for path, content in (("/etc/resolv.conf", RESOLV_CONF), ("/etc/hosts", hosts)):
        target = links.get(path, path)
        if path not in facts.existing:
            continue  # glibc then asks 127.0.0.1:53, which is answered too
        # A link into /run or another private place: the file is made there; else it is bound over the real one.
        private = target.startswith(("/run/", "/var/run/", "/tmp/"))  # noqa: S108
        ops.append(File(target.replace("/var/run/", "/run/"), content, bind=not private))
    return ops


def base(policy: Policy, facts: HostFacts) -> tuple[MountOp, ...]:
    """All operations up to the workspace; ``workspace`` gives the rest once the tree is scanned."""
    ops: list[MountOp] = []
    links = dict(facts.links)
    size = policy.limits.disk
    if policy.view == "host":
        ops.append(Bind("/", "/", own=True))
        ops.append(Tmpfs("/sys", 0o755))
    else:
        for tree in SYSTEM_TREES:
            if tree in links:
                ops.append(Symlink(tree, links[tree]))
            elif tree in facts.existing:
                ops.append(Bind(tree, tree, make=True))
        ops += [Directory("/var"), Directory("/var/lib"), Directory("/var/cache"), Directory("/var/log")]
        ops += [Bind(tree, tree, make=True, optional=True) for tree in VAR_TREES if tree in facts.existing]
        ops += [Symlink("/var/run", "/run"), Symlink("/var/lock", "/run/lock"), Directory("/sys")]
    ops += [Bind(tree, tree, make=True, optional=True) for tree in SYS_TREES if tree in facts.existing]
    ops += [
        Proc(),
        Devices(),
        Tmpfs("/tmp", 0o1777, size),  # noqa: S108
        Tmpfs("/var/tmp", 0o1777, size),  # noqa: S108
        Tmpfs("/run", 0o755),
        Directory("/run/lock", 0o1777),
        Directory("/run/user"),
        Directory(f"/run/user/{facts.uid}", 0o700),
        Tmpfs(MASK_SOURCE, 0o755),
    ]
    ops += _etc(facts)
    if policy.view == "project":
        # A workspace below the home needs the home first; a home below the workspace is refused by ``refuse``.
        ops += _home(policy, facts, home_store(policy, facts))
        ops += [Bind(tree, tree, make=True, optional=True, own=True) for tree in _installations(policy, facts)]
    for rule in policy.mounts:
        source = facts.git_root if rule.git_root else rule.path
        target = rule.target or source
        ops.append(Bind(source, target, writable=rule.mode == "rw", own=True, make=True, origin=str(rule.origin)))
    ops.append(Bind(facts.workspace, facts.workspace, writable=True, own=True, make=True, origin="workspace"))
    for socket in policy.unix_sockets:
        ops.append(Bind(socket.path, socket.path, writable=True, own=True, make=True, origin=str(socket.origin)))
    return tuple(_only_private_mount_points(ops, policy.view))


def _only_private_mount_points(ops: Sequence[MountOp], view: str) -> Iterable[MountOp]:
    """Take ``make`` away where the mount point would be created in a host tree (rule 1)."""
    covers: list[tuple[str, bool]] = [("/", view == "project")]
    for op in ops:
        if isinstance(op, Bind) and op.target != "/":
            private = next(made for tree, made in reversed(covers) if inside(op.target, tree))
            yield op if private else op.replace(make=False)
            # Our home store may hold mount points; every other bind is somebody's tree.
            covers.append((op.target, op.writable and op.own and not op.origin))
        else:
            yield op
            if isinstance(op, (Tmpfs, Devices)):
                covers.append((op.target, True))


def workspace(root: str, hits: Iterable[ScanHit], pins: Iterable[str]) -> tuple[MountOp, ...]:
    """Pins, then read-only names, then masks, for what the scan found below ``root``."""
    prefix = root.rstrip("/") + "/"
    hits = sorted(hits, key=lambda hit: (hit.effect == "hide", hit.path.count("/"), hit.path))
    ops: list[MountOp] = [Pin(prefix + path) for path in pins]
    for hit in hits:
        if hit.effect == "hide":
            ops.append(Mask(prefix + hit.path, hit.directory))
        else:
            ops.append(ReadOnly(prefix + hit.path, hit.link, hit.effect))
    return tuple(ops)
