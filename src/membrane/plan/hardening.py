"""Policy + host facts -> limits, Landlock paths and the environment of the command.

Theory of operation
-------------------
The environment is built from nothing: a short list of names is passed, the policy may add more, and variables
that name proxies or CA bundles of the host, or that inject code into every program, are never inherited.
"""

from __future__ import annotations

from .containers import environment as of_containers
from .containers import set_ids
from .model import PROXY_PORTS, RESOLVER_V4, HardeningPlan
from .mounts import SYSTEM_TREES, absolute, in_view, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import Policy
    from .model import HostFacts

# Names that describe the terminal, the language and the user; a trailing "*" is a prefix.
PASSED = (
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "COLORTERM",
    "NO_COLOR",
    "FORCE_COLOR",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "COLUMNS",
    "LINES",
)
# Never inherited by a pattern, only by their exact name: they point programs at the host's proxies and CA
# bundles, or load code before main().
NEVER_BY_PATTERN = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
)
# Programs that bring their own list of authorities, or let one be named: OpenSSL, Go, Python, curl, Node.js, git, pip,
# cargo, the AWS tools, Deno.
TRUST_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
)
# GNU tar of uid 0 gives files the owners of the archive (tar(1), --same-owner), which root inside cannot: it has no
# CAP_CHOWN.  See ``tracer.owners``; this holds without the tracer as well, and in a container.
ROOT_TAR_OPTIONS = "--no-same-owner"
# Home and workspace are two mounts, so a hard link from one to the other is EXDEV (link(2)).  npm, pnpm, yarn, bun,
# deno and cargo copy then without a word; uv warns at each install where it is not asked to copy.
UV_COPIES = ("UV_LINK_MODE", "copy")
PLACEHOLDER = "(a placeholder that is made for each run)"
WRITABLE_SCRATCH = ("/tmp", "/var/tmp", "/run", "/dev", "/proc")  # noqa: S108


def _selected(name: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1]) and name not in NEVER_BY_PATTERN
    return name == pattern


def environment(
    policy: Policy, facts: HostFacts, home: str, trust: str = "", java_store: str = ""
) -> tuple[tuple[str, str], ...]:
    """The complete environment of the command, without the session id.

    Args:
        trust: the bundle that programs are pointed at, whatever else would name one; empty: the system's.
        java_store: the key store that Java is pointed at.  Each JVM then says so on stderr, so it is empty where the
            store that it looks into by itself is replaced.
    """
    out = {
        name: value
        for name, value in facts.environ
        if any(_selected(name, pattern) for pattern in PASSED)
        or any(rule.value is None and _selected(name, rule.name) for rule in policy.env)
    }
    if facts.image is not None:
        from .image import environment as of_image

        out = of_image(policy, facts, out)
    out.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    out.update(HOME=home, PWD=facts.workspace, MEMBRANE="1")
    if facts.user:
        out.setdefault("USER", facts.user)
        out.setdefault("LOGNAME", facts.user)
    out.update(_socket_variables(policy, facts))
    if facts.uid == 0 or policy.system != "read-only":
        out.setdefault("TAR_OPTIONS", ROOT_TAR_OPTIONS)
    if policy.view != "host":
        out.setdefault(*UV_COPIES)
    out.update(of_containers(policy, out))
    if policy.system != "read-only":
        from .system import environment as of_system

        out.update(of_system(out))
    for rule in policy.env:
        if rule.value is not None:
            out[rule.name] = rule.value
    if policy.offer_proxy:
        out.update(proxy_variables())
    out.update((secret.name, PLACEHOLDER) for secret in policy.secrets)
    for mask in policy.masks:
        name = mask.source.removeprefix("env:")
        if name != mask.source:
            out.pop(name, None)  # it is there when the copy with placeholders was made
    if trust:
        out.update(dict.fromkeys(TRUST_VARIABLES, trust))
    if java_store:  # of two options of one name the later holds
        option = f"-Djavax.net.ssl.trustStore={java_store}"
        out["JAVA_TOOL_OPTIONS"] = f"{out.get('JAVA_TOOL_OPTIONS', '')} {option}".lstrip()
    return tuple(out.items())


def _socket_variables(policy: Policy, facts: HostFacts) -> dict[str, str]:
    """What programs find the sockets of the rules by."""
    out: dict[str, str] = {}
    own = dict(facts.environ).get("SSH_AUTH_SOCK", "")
    for rule in policy.unix_sockets:
        path = absolute(rule.path, facts.workspace)
        if rule.adapter == "ssh-agent" or (not rule.adapter and own == path):
            out.setdefault("SSH_AUTH_SOCK", path)
        elif rule.adapter == "docker":
            out.setdefault("DOCKER_HOST", f"unix://{path}")
    return out


def proxy_variables() -> dict[str, str]:
    """What points programs at the proxies inside; connections that ignore them are captured anyway."""
    http, socks = (f"{RESOLVER_V4}:{port}" for port in PROXY_PORTS)
    found = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY", "ALL_PROXY"), f"http://{http}")
    found["FTP_PROXY"] = f"socks5h://{socks}"
    found["NO_PROXY"] = "localhost,127.0.0.1,::1,169.254.0.0/16,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
    found.update({name.lower(): value for name, value in found.items()})
    found["RSYNC_PROXY"] = socks
    return found


def plan_hardening(policy: Policy, facts: HostFacts, home: str) -> HardeningPlan:
    """Limits and Landlock paths; everything that Landlock does not list is read-only."""
    if policy.file_rules is not None:
        from .hosttree import layout

        made = layout(facts.files)
        scratch = [path for path in WRITABLE_SCRATCH if path not in ("/tmp", "/var/tmp")]  # noqa: S108
        sockets = [in_view(absolute(rule.path, facts.workspace), facts) for rule in policy.unix_sockets]
        listed = (*scratch, *made.roots, *made.files, *sockets)
        if policy.open_files:
            listed = ("/",)
        # The host's tree is in the view, and with it the sockets of its services: mounts do not stop a connect.
        unix = bool(policy.unix_sockets) or policy.open_sockets
        return HardeningPlan(
            policy.limits,
            listed,
            unix=unix,
            other_sockets=policy.open_sockets,
            user_namespaces=policy.user_namespaces,
        )
    writable = [*WRITABLE_SCRATCH, facts.workspace]
    if policy.workspace == "review" and facts.reviewed is not None and facts.reviewed.repository:
        writable.append(facts.reviewed.repository)
    if policy.view == "project":
        writable.append(home)
    writable += [places(rule, facts)[1] for rule in policy.mounts if rule.mode == "rw"]
    if facts.image is not None and (facts.layers or facts.system is not None):
        writable += [each.path for each in facts.image.volumes]
    writable += [in_view(absolute(rule.path, facts.workspace), facts) for rule in policy.unix_sockets]
    capabilities = 0
    if policy.system != "read-only":
        from .system import CAPABILITIES, VAR

        capabilities = CAPABILITIES
        trees = SYSTEM_TREES if facts.image is None else [tree.path for tree in facts.image.trees]
        writable += [*trees, *(tree for tree in ("/etc", VAR) if tree not in trees)]
    return HardeningPlan(
        policy.limits,
        tuple(writable),
        capabilities=capabilities,
        nested=policy.containers == "nested",
        set_ids=policy.containers == "nested" and set_ids(policy),
        other_sockets=policy.open_sockets,
        user_namespaces=policy.user_namespaces,
    )
