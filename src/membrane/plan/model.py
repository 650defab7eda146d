"""Everything that one run will do, as data.

Theory of operation
-------------------
``Policy`` + ``HostFacts`` -> ``SandboxPlan`` is pure: the same input gives the same plan on every machine, and
``membrane plan`` prints it.  ``host.launcher`` executes it and decides nothing.

Words: *target* paths are as the command will see them; *source* paths are host paths.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from ..policy.model import FileEffect, Limits

RANGE = 65_536  # how many uids and gids a root caller's user namespace maps, from 0
NOBODYS = RANGE - 1  # one of them that owns nothing in a closed tree, whose id map leaves it out (``host.trees``)

# ---------------------------------------------------------------- host facts


class Support(Value):
    """Whether this machine has a feature.  ``unknown`` is never cached and never taken for yes."""

    state: Literal["yes", "no", "unknown"]
    why: str = ""
    fix: str = ""


class SocketFact(Value):
    """What is at a path that ``unix_sockets`` names."""

    path: str  # absolute, as named
    resolved: str  # without symbolic links
    # "far": a stream socket below a directory that root without capabilities over its owner may not search
    kind: Literal["stream", "far", "datagram", "dead", "forbidden", "not a socket"]
    uid: int = 0  # its owner


class DeviceFact(Value):
    """A device node that a name of ``devices`` stands for and that exists."""

    name: str  # of the rule
    path: str
    number: str = ""  # "MAJOR:MINOR"
    sysfs: str = ""  # its directory there, resolved; empty: none
    usable: bool = True  # the caller may open it for reading and writing


class FoundFile(Value):
    """A path that a file rule names and that exists: ``path`` in the view, shown from ``source``, both resolved."""

    effect: FileEffect
    path: str
    source: str
    directory: bool


class Repository(Value):
    """The git directories of a workspace that lie outside of it (``workspace.gitdirs``)."""

    shown: tuple[tuple[str, Literal["ro", "rw"]], ...] = ()  # (directory, how), outer ones first
    hidden: tuple[str, ...] = ()  # other work trees of the same repository that lie in one of them
    own: str = ""  # what ``.git`` names: the first that is shown, or in it
    warning: str = ""  # why what ``.git`` names is not shown


class Subordinate(Value):
    """The ids that the caller may give to a user namespace (subuid(5), subgid(5)): first and number of each kind."""

    uids: tuple[int, int] = (0, 0)
    gids: tuple[int, int] = (0, 0)
    lacking: str = ""  # why there are none, and what to do about it
    fix: str = ""


class SystemLayer(Value):
    """Where changes of the system trees go (``run.layers``)."""

    place: str  # a directory of our state
    mounted: tuple[str, ...] = ()  # mount points below the host's system trees


class Reviewed(Value):
    """The change set of a reviewed workspace (``changes.store``)."""

    name: str
    lowers: tuple[str, ...]  # frozen layers, the newest first, and the layer of whiteouts
    layer: str  # what is changed now
    # Of a workspace whose repository is elsewhere: that, its frozen layers, and what is changed of it.
    repository: str = ""
    git_lowers: tuple[str, ...] = ()
    git_layer: str = ""


class ImageTree(Value):
    """One name of an image's tree, as its layers together show it, which the view shows at the same path.

    ``expanded``: a directory of the view's own, as something else has its place below it; what the image has there are
    further trees.
    """

    path: str
    kind: Literal["directory", "expanded", "file", "link"]
    sources: tuple[str, ...]  # directories of layers, the uppermost first; the file; what the link says
    mode: int = 0o755  # of an expanded one


class ImageFacts(Value):
    """An image whose layers are in our state (``run.images``)."""

    reference: str  # as the policy names it
    digest: str  # of its configuration
    layers: int
    trees: tuple[ImageTree, ...]
    environ: tuple[str, ...] = ()  # NAME=VALUE
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    directory: str = ""  # where its commands begin, as it says
    begins: str = ""  # where its own command begins in the view; empty: there is no such directory
    volumes: tuple[ImageTree, ...] = ()  # directories that are writable in a run
    refused: tuple[str, ...] = ()  # volumes that are not
    stop: str = ""  # the signal that ends its commands
    foreign: str = ""  # its platform, where nothing here executes programs of that
    shell: str = "/bin/sh"
    passwd: bytes = b""  # its own file; empty: there is none
    group: bytes = b""
    bundle: str = ""  # the file in a layer with the authorities that it trusts; empty: none


class HostFacts(Value):
    """What the plan depends on, gathered by ``host.probe.facts``."""

    uid: int
    gid: int
    user: str  # login name
    root: bool  # effective uid 0 in the initial user namespace: private kuid range, idmapped binds
    home: str  # the caller's home directory, resolved
    state: str  # $MEMBRANE_HOME, resolved (default ~/.membrane)
    workspace: str  # resolved
    hostname: str
    environ: tuple[tuple[str, str], ...]
    existing: frozenset[str] = frozenset()  # of the candidate paths, those that exist (lstat)
    absent: frozenset[str] = frozenset()  # of the paths that the policy names, those that do not exist
    pointers: frozenset[str] = frozenset()  # of these, ``.git`` that are files: the git directory is elsewhere
    linked: tuple[tuple[str, str], ...] = ()  # (path that the policy names, symbolic link on its way or at its end)
    links: tuple[tuple[str, str], ...] = ()  # of the candidate paths, symlinks and where they lead (resolved)
    git_root: str = ""  # enclosing repository of the workspace
    groups: tuple[int, ...] = ()
    sockets: tuple[SocketFact, ...] = ()  # those that the policy names and that exist
    bound: tuple[str, ...] = ()  # paths of unix sockets that are bound now
    runtime: tuple[tuple[str, str], ...] = ()  # for open files: what /run holds, and where it leads when it is a link
    files: tuple[FoundFile, ...] = ()  # of the policy's file rules
    file_warnings: tuple[str, ...] = ()  # about those that open nothing
    repository: Repository = Repository()
    layers: str = ""  # where changes of toolchains go (``run.layers``); empty: they are read-only
    engines: str = ""  # where engines of ``containers`` keep what they have, of one run at a time (``run.layers``)
    mounted: frozenset[str] = frozenset()  # mount points below the home
    system: SystemLayer | None = None  # of ``system``; None: it is read-only, or no layer can be had
    devices: tuple[DeviceFact, ...] = ()  # that the policy names and that exist
    subordinate: Subordinate | None = None  # of a plain caller, where further ids are needed; None: not asked for
    open_cgroup: str = ""  # of a plain caller, where containers run inside (``host.facts.open_cgroup``)
    reviewed: Reviewed | None = None  # of ``workspace: review``
    # Of ``image``; then ``existing`` and ``links`` are about the image's paths, but for those of the kernel.
    image: ImageFacts | None = None


class ScanHit(Value):
    """A path of the workspace that a rule matches, found before the start.

    ``path`` is relative to the workspace; ``link``: the name itself is a symbolic link.
    """

    path: str
    effect: Literal["hide", "readonly", "protect", "socket"]
    directory: bool
    link: bool = False


# ---------------------------------------------------------------- mounts
# Executed in order, in the mount namespace of the sandbox, before the pivot.


class Bind(Value):
    """Recursive bind of a host tree; nosuid and nodev, but for ``engine``, and nodev but for a node with ``device``."""

    source: str
    target: str
    writable: bool = False
    optional: bool = False  # skip when the source vanished
    own: bool = False  # idmap for root callers: host uids keep their numbers inside
    make: bool = False  # create the mount point; only in a private tmpfs or our home store
    origin: str = ""  # the rule, for ``membrane plan``
    engine: bool = False  # storage of containers: what is set here is locked for an engine's mounts (``containers``)
    device: bool = False  # a node of /dev, usable; root callers' sandboxes get one of the same number that is theirs
    direct: bool = False  # no link was on the way to ``source``: one that is there when it is bound came meanwhile


class Overlay(Value):
    """Directories of the host as one tree (overlayfs), each in the view by it only; always nosuid and nodev.

    What is mounted below one of them is not seen.
    """

    target: str
    lowers: tuple[str, ...]  # the uppermost first; what is below changes under it like a bind does
    layer: str = ""  # takes the changes: a directory with "upper" and a new "work"; empty: read-only
    fallback: bool = False  # the lowest directory bound read-only where no overlay can be made; nothing over a link
    covered: tuple[str, ...] = ()  # in it: sockets and credentials of the host
    # With ``system``: root inside has capabilities over what is in it, and its ids are all the sandbox's.  ``closed``:
    # what others may not read of the lowest directory stays closed to it.
    system: bool = False
    closed: bool = False
    # Of an uppermost lower directory that is ours and made anew for each run: paths in it that hide what is below,
    # empty files, which are bound over later, and files with their contents.
    hidden: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    contents: tuple[tuple[str, bytes], ...] = ()
    make: bool = False  # as of ``Bind``
    own: bool = False  # the same, by the owner of the lowest directory
    origin: str = ""
    direct: bool = False  # as of ``Bind``, of each of them


class Tmpfs(Value):
    target: str
    mode: int = 0o755
    size: int = 0  # bytes; 0: kernel default
    optional: bool = False  # skip where an earlier run left something that is no directory
    sealed: bool = False  # read-only once everything in it is made


class Directory(Value):
    """Made in a private tmpfs."""

    target: str
    mode: int = 0o755


class File(Value):
    """Made in a private tmpfs, or bound over a read-only file when ``bind``."""

    target: str
    content: bytes
    mode: int = 0o444
    bind: bool = False


class Copy(Value):
    """Bound over a file of the caller's, read-only or not, before the command is released; it is the command's own."""

    target: str
    content: bytes
    writable: bool = False


class Seed(Value):
    """A file of the command's own, made in a private tmpfs of the plan; none where that is not there."""

    target: str
    content: bytes


class Symlink(Value):
    target: str
    to: str


class Layer(Value):
    """Empty files of our own among those of a read-only host tree, in the view only; ``File`` fills them later.

    ``names``: paths below ``target``; the directories above them are made as well.
    """

    target: str
    names: tuple[str, ...]


class Listen(Value):
    """A listening unix socket, made beside the masks and bound over ``target``; who connects is served outside.

    ``source`` is the host's socket that connections are carried to, without symbolic links, and ``owner`` its uid.
    """

    target: str
    source: str
    number: int  # of the policy's rule
    owner: int = 0
    make: bool = False  # as of ``Bind``
    origin: str = ""


class Proc(Value):
    """A proc(5) of the sandbox's own pid namespace.

    ``freeze_settings``: /proc/sys and what else changes the machine is bound read-only.  The root of a user namespace
    owns the settings of its network namespace by file mode, without any capability, and kernel uid 0 owns them all.
    ``whole``: nothing in it is covered.  The kernel gives a user namespace a proc(5) of its own only where one that is
    whole can be seen already (fs/namespace.c, mount_too_revealing).
    """

    target: str = "/proc"
    freeze_settings: bool = False
    whole: bool = False


class Devices(Value):
    """A private /dev: null zero full random urandom tty, new devpts instance, fd links."""

    target: str = "/dev"


class Mask(Value):
    """Nothing below can be read or written: an inaccessible (mode 000) file or directory is bound over it.

    ``link``: the name may be a symbolic link; then what it leads to is covered.
    ``empty``: what is bound over it is empty and can be read (modes 0444 and 0555).
    """

    target: str
    directory: bool
    origin: str = ""
    link: bool = True
    empty: bool = False


class ReadOnly(Value):
    """Bound onto itself read-only.  ``link``: the mount covers the symbolic link itself."""

    target: str
    link: bool = False
    origin: str = ""


class HeldTree(Value):
    """What is held in a writable tree, for a backend that makes names itself.

    ``rows``: effect and pattern of each path rule.  ``awaited``: paths that may not be made.  ``tips``: the commits
    that its repository had before the run (``workspace.commits``).  ``unguarded``: other trees that the command can
    write (``workspace.addresses.Trees.open``).
    """

    root: str
    rows: tuple[tuple[str, str], ...]
    awaited: tuple[str, ...] = ()
    tips: bytes = b""
    unguarded: tuple[str, ...] = ()


class Pin(Value):
    """Bound onto itself, writable: a mount point cannot be renamed or removed (EBUSY)."""

    target: str


class Keep(Value):
    """A directory that later operations cover: the supervisor gets a descriptor of what is below the cover.

    ``file``: what the descriptor is for, an absolute path; the directory is opened in the mount that the file is in.
    """

    target: str
    file: str


if TYPE_CHECKING:
    MountOp: TypeAlias = (
        Bind
        | Overlay
        | Tmpfs
        | Directory
        | File
        | Copy
        | Seed
        | Symlink
        | Layer
        | Listen
        | Proc
        | Devices
        | Mask
        | ReadOnly
        | Pin
        | Keep
    )

# ---------------------------------------------------------------- network

OWN_V4 = "198.18.0.2"  # the sandbox's own addresses, on lo
OWN_V6 = "fd00:6d65:6d62::2"
INNER_V4 = "198.18.0.3"  # those of the command's own network namespace, with ``containers: nested``
INNER_V6 = "fd00:6d65:6d62::3"
LINK_V6 = "fe80::1"  # of our end of the way between the two
RESOLVER_V4 = "198.18.0.1"  # named in resolv.conf; any other address is answered as well
FAKE_V4 = ("198.18.0.0", 15)  # RFC 2544 benchmarking range: one address per allowed name
FAKE_V6 = "fd00:6d65:6d62:1::"  # /96: the same number in the low 32 bits
PROXY_PORTS = (3128, 1080)  # HTTP and SOCKS5 at the resolver's address, where a policy offers proxies
INTERCEPT_PORT = 1  # TCP port of the listeners, on the own addresses only


class NetworkPlan(Value):
    """One network namespace without an uplink, and the sockets that are made in it."""

    mode: Literal["tproxy", "dnat", "anyip"] = "tproxy"
    ipv6: bool = True
    udp_ports: tuple[int, ...] = ()  # 53 is always served
    tcp_ports: tuple[int, ...] = ()  # for mode "anyip": one listener per port
    exposed: tuple[tuple[int, int], ...] = ()  # (port inside, port of the host's loopback)
    inner: bool = False  # the command has a network namespace of its own, whose only way out leads here


# ---------------------------------------------------------------- process


class HardeningPlan(Value):
    """What is applied to the command process, last, and read back."""

    limits: Limits
    landlock_writable: tuple[str, ...]
    landlock: bool = True
    nested: bool = False  # root in a user namespace of its own, for engines of containers
    set_ids: bool = False  # with ``nested``: files may be made set-user-ID, as nothing of them is visible outside
    unix: bool = True  # AF_UNIX sockets may be made
    other_sockets: bool = False  # and those that were made outside be connected to, whichever they are
    user_namespaces: bool = False  # user namespaces may be made, and what they own but mounts
    capabilities: int = 0  # a mask, which the command keeps over ids and files of the view's user namespace

    @property
    def strips(self) -> bool:
        """Are set-user-ID files made without the bit (``tracer.setids``)?"""
        return (self.nested and not self.set_ids) or bool(self.capabilities)


class RuleBinding(Value):
    """A rule and the mechanisms that bind it."""

    rule: str
    origin: str
    mechanisms: tuple[str, ...]
    status: Literal["bound", "partial"] = "bound"


class SandboxPlan(Value):
    """Everything that will be done, in order."""

    workspace: str
    cwd: str
    mounts: tuple[MountOp, ...]  # without those inside the workspace, which need the scanned tree
    network: NetworkPlan
    hardening: HardeningPlan
    environment: tuple[tuple[str, str], ...]
    base_kuid: int  # first kuid of the private range; 0: identity map of the caller
    uid: int  # of the command, counted from ``base_kuid``
    gid: int
    bindings: tuple[RuleBinding, ...]
    inspect: bool = False  # the gateway is there from the start, with a certificate authority of its own
    # Certificate bundles, as the command sees them, over which one with that authority is bound; the first is
    # ours, and the second the system's that it begins with.  Empty: the command sees the system's as they are.
    trust: tuple[str, ...] = ()
    java_trust: tuple[str, ...] = ()  # the same as key stores of Java
    stores: tuple[str, ...] = ()  # our own directories that are made before the start (home, agent state)
    stop_signal: int = 15  # that the command gets for SIGTERM
    trust_source: str = ""  # the host's file that the bundles begin with; empty: the second of ``trust``
    # Of a plain caller, with ``containers: nested`` or ``system``: first and number of the uids, and of the gids, that
    # the command's user namespace maps beside the caller's, which is 0 there.
    subordinate: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    image_user: tuple[int, int] | None = None  # what its user namespace shows them as, where an image names a user

    @property
    def ids(self) -> tuple[int, int]:
        """The uid and gid of the command inside, unless it is root in a namespace of its own (``containers``)."""
        return (0, 0) if self.mapped else self.image_user or (self.uid, self.gid)

    @property
    def mapped(self) -> bool:
        """Is a plain caller 0 inside, with his subordinate ids beside it (``host.subordinate``)?"""
        return not self.base_kuid and bool(self.hardening.capabilities)

    @property
    def owned(self) -> tuple[str, ...] | None:
        """The trees of the host in which a command with capabilities has only what it owns (``host.trees``); None: it
        has no capabilities."""
        if not self.hardening.capabilities:
            return None
        shown = [op for op in self.mounts if isinstance(op, (Bind, Overlay)) and op.own]
        return tuple(op.target for op in shown if isinstance(op, Bind) or not op.system)
