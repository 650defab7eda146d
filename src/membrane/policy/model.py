"""What a policy is, and what can be asked of it.

Theory of operation
-------------------
A ``Policy`` is one immutable value made by ``policy.load`` from presets, files and options.  Everything that
enforces asks ``policy.decide.decide(policy, access)`` and obeys the ``Verdict``.  Values here are plain
(strings, ints, tuples), so that a policy can be cached with ``marshal`` and sent to the gateway.

Numbers: ports are 0..65535, addresses are ``(version, integer)``; sizes are bytes, durations seconds.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from .reasons import Reason

    Level: TypeAlias = Literal["built-in", "user", "project", "command line", "library"]
    Protocol: TypeAlias = Literal["tcp", "udp"]
    HostKind: TypeAlias = Literal["any", "network", "host", "wildcard"]
    PathEffect: TypeAlias = Literal["hide", "readonly", "git-config", "place"]
    FileEffect: TypeAlias = Literal["deny-read", "allow-read", "allow-write", "deny-write"]


class Malformed(ValueError):
    """Text that has no single meaning; ``str()`` is the cause, to be put after a colon."""


class Origin(Value):
    """Where a rule was written."""

    level: Level
    file: str  # path of the file, "preset NAME", or "command line"
    line: int = 0  # 1-based; 0 where the source has no lines

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return place if self.level in ("command line", "library") else f"{self.level} {place}"


class PortRange(Value):
    """``first``..``last`` inclusive, of one transport protocol."""

    protocol: Protocol
    first: int
    last: int


class Network(Value):
    """A CIDR block (RFC 4632): ``base`` is the address as an integer with host bits zero."""

    version: int  # 4 or 6
    base: int
    prefix: int


class HttpRule(Value):
    """One ``http`` item: a request must match a method and a path of the same item."""

    methods: tuple[str, ...]  # upper case; empty: any method
    paths: tuple[str, ...]  # canonical absolute patterns; empty: any path


class RuleBudget(Value):
    """How much may go through one ``allow`` entry in a session; 0 means "not limited by it"."""

    upload: int = 0  # bytes sent upwards
    requests: int = 0
    rate: int = 0  # requests in any ``period`` seconds
    period: int = 0

    @property
    def counts_requests(self) -> bool:
        """Does it need each request to be seen?  (Bytes are counted on the connection.)"""
        return bool(self.requests or self.rate)


class HostRule(Value):
    """One entry of ``allow`` or ``deny``."""

    text: str  # as written
    origin: Origin
    kind: HostKind
    host: str = ""  # canonical A-label name; for a wildcard the part after "*."
    network: Network | None = None  # for kind "network"
    ports: tuple[PortRange, ...] = ()  # empty: any TCP port, no UDP
    scheme: str = ""  # "http" or "https" when written as a URL
    http: tuple[HttpRule, ...] | None = None  # None: the connection is not inspected
    insecure: bool = False  # do not verify the upstream certificate
    inspect: bool = False  # inspect although nothing else asks for it
    budget: RuleBudget | None = None  # holds for all that the rule admits, whatever other rule admits it too
    raw: bool = False  # a connection by name may begin with bytes of no known protocol

    @property
    def constrained(self) -> bool:
        """Can the rule only be bound by reading the connection as HTTP?"""
        return self.http is not None or self.inspect or (self.budget is not None and self.budget.counts_requests)


class PathRule(Value):
    """One gitignore(5) pattern of ``ignore``/``hide`` or ``readonly``, relative to the workspace.

    The effect "git-config" has no pattern: the ``config`` of each ``.git`` is not protected.  Nor has "place": the
    tree of these rules is no workspace but what a workspace has as the directory ``text``, and elsewhere.
    ``show_names``: what is hidden shows the names of its variables (``workspace.dotenv``).
    """

    text: str
    origin: Origin
    effect: PathEffect
    best_effort: bool = False
    show_names: bool = False


class FileRule(Value):
    """One entry of ``files``: what may be read and written on the host, as ``policy.files`` understands it."""

    effect: FileEffect
    path: str  # absolute, without a trailing slash
    text: str  # as written
    origin: Origin
    glob: bool = False


class MountRule(Value):
    """A further tree in the view."""

    path: str  # absolute, or relative to the workspace; "" with git_root
    mode: Literal["ro", "rw"]
    origin: Origin
    git_root: bool = False  # the enclosing repository of the workspace
    target: str = ""  # where it appears; empty: at its own path


class SocketRule(Value):
    """A unix socket of the host that the command may reach."""

    path: str
    origin: Origin
    adapter: str = ""  # a name of ``sockets.SERVICES``; empty: its messages are not read
    allow: tuple[str, ...] = ()
    optional: bool = False  # one that cannot be opened is left out with a warning: settings of sandbox-runtime


class DeviceRule(Value):
    """Device nodes of the host by what they are."""

    name: Literal["gpu", "kvm", "fuse"]
    origin: Origin


class PortRule(Value):
    """``ports: expose`` (inside to host loopback) or ``ports: connect`` (host loopback to inside)."""

    inside: int
    outside: int
    origin: Origin


class EnvRule(Value):
    """One environment variable: passed from the caller (``value`` None) or set."""

    name: str  # may end in "*" when passed
    value: str | None
    origin: Origin


class SecretRule(Value):
    """A secret that the gateway puts into requests; its value is never part of a policy."""

    name: str
    source: str  # "env:NAME", "file:PATH", "command:ARGV0\0ARGV1...", "keyring:SERVICE/USER"
    to: tuple[str, ...]
    # "name: TEMPLATE" where "{}" stands for the value, "?NAME": a parameter of the query, "*": any header field that
    # carries credentials, with further names after it
    header: str
    origin: Origin


class SigningRule(Value):
    """Two secrets that are one AWS access key: requests signed with their placeholders are signed again."""

    key_id: str  # names of secrets
    secret: str
    origin: Origin


CARRIERS = ("docker", "podman")  # values of ``Policy.backend`` with which a container carries the whole run


class CarrierOption(Value):
    """A word of ``docker run`` for the container that carries the run (``dockerargs.carrier``)."""

    text: str  # "--OPTION=VALUE"
    origin: Origin


class MaskRule(Value):
    """Credentials in a file or a variable: the command sees placeholders, the gateway puts the values in."""

    source: str  # "file:PATH" or "env:NAME"
    to: tuple[str, ...]
    origin: Origin
    extract: str = ""  # a regular expression whose group 1 is a credential; empty: all of it is one
    decode: Literal["", "jwt"] = ""
    claims: tuple[str, ...] = ()  # of the token that is decoded; empty: the token itself is the credential
    duplicates: bool = False  # the same text elsewhere in the source is replaced as well
    unmatched: Literal["error", "deny", "warn"] = "error"  # when there is no credential: stop, hide it, or show it
    header: str = "*"  # as in ``SecretRule``, always with "*"
    # The file is a log-in: shown where the sandbox has none of its own, as a copy that the command can write.
    login: bool = False
    renew: tuple[str, ...] = ()  # URLs where it is renewed (RFC 6749 section 6); then it is written outside as well
    replaced: bool = False  # the program renames a new file over the log-in: its copy is no mount point


class Limits(Value):
    """Resource limits; 0 means "not limited by the policy"."""

    memory: int = 0  # bytes per process (RLIMIT_DATA)
    pids: int = 0  # processes and threads of the sandbox
    cpu: int = 0  # seconds of CPU time per process (RLIMIT_CPU)
    time: int = 0  # seconds of wall time
    files: int = 0  # open files per process
    disk: int = 0  # bytes per private tmpfs, largest file (RLIMIT_FSIZE), and of what is kept
    upload: int = 0  # bytes sent to the network per session


class TraceRule(Value):
    """How the run is recorded."""

    mode: Literal["auto", "off", "full", "required"] = "auto"
    max_size: int = 0
    keep: int = 0
    http: Literal["path", "full"] = "path"


IMAGE_PATHS = ("oci", "tar", "dockerfile")  # kinds of ``image`` that are named by a path
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as uname(2) has them, and as images do


class Policy(Value):
    """What one run may do.  Everything absent is refused."""

    allow: tuple[HostRule, ...] = ()
    deny: tuple[HostRule, ...] = ()
    paths: tuple[PathRule, ...] = ()  # in order; the last match of an effect decides, hide beats readonly
    mounts: tuple[MountRule, ...] = ()
    unix_sockets: tuple[SocketRule, ...] = ()
    expose: tuple[PortRule, ...] = ()
    connect: tuple[PortRule, ...] = ()
    env: tuple[EnvRule, ...] = ()
    devices: tuple[DeviceRule, ...] = ()
    secrets: tuple[SecretRule, ...] = ()
    masks: tuple[MaskRule, ...] = ()
    signing: tuple[SigningRule, ...] = ()
    carrier_options: tuple[CarrierOption, ...] = ()
    limits: Limits = Limits()
    trace: TraceRule = TraceRule()
    profiles: tuple[str, ...] = ()  # agent profiles in force
    state_dirs: tuple[str, ...] = ()  # home-relative directories kept under $MEMBRANE_HOME/agents/NAME (from profiles)
    state_files: tuple[str, ...] = ()  # the same for single files
    state_shown: tuple[str, ...] = ()  # home-relative paths that are shown read-only where they exist (from profiles)
    dns_resolver: str = ""  # "ADDRESS" or "ADDRESS:PORT"; empty: the system's
    upstream_proxy: str = ""  # "http://HOST:PORT", "socks5://HOST:PORT", "env"; empty: none
    socket_proxy: str = ""  # path of a unix socket with an HTTP proxy behind it, for the hosts of ``socket_proxied``
    socket_proxied: tuple[HostRule, ...] = ()
    extra_ca: tuple[str, ...] = ()
    authority: tuple[str, ...] = ()  # paths of the certificate and the key (PEM) to inspect with; empty: made anew
    ssl_insecure: bool = False
    home: Literal["workspace", "shared", "ephemeral"] = "workspace"
    view: Literal["project", "host"] = "project"
    workspace: Literal["review", "live"] = "live"  # "review": changes are kept apart until they are applied
    change_set: str = ""  # where they are kept; empty: in a new one, named by the session
    apply: Literal["never", "ask", "safe", "all"] = "ask"  # what is done with them at the end of a run
    # Rules over the whole host tree (view: host); None: the workspace is writable, the rest of the tree is not.
    file_rules: tuple[FileRule, ...] | None = None
    file_base: str = ""  # the directory that relative questions start from, when there are file rules
    # Beside a rule that opens the root for writing: only the caller's own rights hold, and no name is protected.
    open_files: bool = False
    open_git_config: bool = False  # the ``config`` of each ``.git`` may be written
    open_sockets: bool = False  # every unix socket that the view shows may be reached
    hard_links: Literal["refuse", "warn"] = "warn"  # what is done about covered files that have names elsewhere
    user_namespaces: bool = False  # the command may make user namespaces, and what they own but mounts
    containers: Literal["none", "nested"] = "none"  # "nested": engines of containers run inside, as root there
    # What the command may do to the system trees: nothing, or write into a layer of the sandbox's own, that is thrown
    # away or kept for the workspace.
    system: Literal["read-only", "writable", "persistent"] = "read-only"
    image: str = ""  # the system trees of the view come from it (``grammar.parse_image``); empty: the host's
    platform: str = ""  # of ``image`` (``grammar.parse_platform``); empty: this machine's
    backend: Literal["native", "docker", "podman", "auto", "landlock"] = "native"  # what makes the sandbox
    offer_proxy: bool = False  # proxy variables inside, for programs that look for them
    levels: tuple[str, ...] = ()  # the files that were read, in order
    digest: str = ""  # SHA-256 over all that was read, hex


# ---------------------------------------------------------------- questions


class NameQuery(Value):
    """May this name be answered?  ``name`` is raw wire text; ``decide`` makes it canonical."""

    name: str
    type: str = "A"


class Connect(Value):
    """May this connection be made?

    ``host`` is the name that the destination address stands for, or empty when the command dialled a literal
    address.  ``address`` is the literal or the resolved address, or empty when the name is not resolved yet:
    a connection by name is asked twice, before it is resolved and for each address that is to be dialled.
    """

    host: str
    address: str
    port: int
    protocol: Protocol = "tcp"


class HttpRequest(Value):
    """May this request be sent?  ``path`` is canonical (``url_paths.canonical_path``) and has no query."""

    host: str
    port: int
    scheme: Literal["http", "https"]
    method: str
    path: str


class PathAccess(Value):
    """May this path be used?  ``path`` is relative to the workspace, or absolute outside of it."""

    path: str
    operation: Literal["read", "write"] = "read"
    directory: bool = False


class SocketAccess(Value):
    """May this unix socket of the host be reached, and may this be asked of the service behind it?

    ``operation`` is empty for the connection itself; else what an adapter read from a message, such as ``sign`` or
    ``POST /containers/create``.  ``names`` are all names of the thing that it is about: the fingerprint and the
    comment of a key.
    """

    path: str
    operation: str = ""
    names: tuple[str, ...] = ()


if TYPE_CHECKING:
    Access: TypeAlias = NameQuery | Connect | HttpRequest | PathAccess | SocketAccess


# ---------------------------------------------------------------- answers


class Allow(Value):
    """Go ahead.

    ``rule`` is the rule that admits it.  ``inspect``: the connection must be read as HTTP and each request
    asked again; it must never become raw bytes.  ``budgets``: the rules with a budget that admit it as well; each of
    them must have something left.  ``raw``: the connection may begin with bytes of no known protocol.
    """

    rule: HostRule | PathRule | FileRule | MountRule | SocketRule | PortRule | None
    reason: str
    inspect: bool = False
    budgets: tuple[HostRule, ...] = ()
    raw: bool = False


class Deny(Value):
    """Refuse.  ``reason`` is one of ``reasons.REASONS``; ``hint`` is the YAML that would allow it, or empty."""

    rule: HostRule | PathRule | FileRule | None
    reason: Reason
    hint: str = ""


class Ask(Value):
    """No rule decides; a person may be asked.  Where no one can be, it is a refusal."""

    reason: Reason
    hint: str = ""


if TYPE_CHECKING:
    Verdict: TypeAlias = Allow | Deny | Ask
