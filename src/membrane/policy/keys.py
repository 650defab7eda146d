"""The one table of keys: how each is written, read, shown and bound, and what may widen.

Theory of operation
-------------------
``KEYS`` has a row for each key of a policy file, in the order in which a file is read.  ``load`` reads files and
options by it, ``ui.options`` takes its options into ``--help``, completion and the man page, ``ui.show`` prints what a
row fills, ``plan.build`` lists what binds it, ``run.settings`` writes a user's first file from its templates.
``docs/policy.md`` has a table of the same rows, which ``tests/unit/policy/test_policy_keys.py`` compares.

A row names the methods that read it (``reading.Reader._NAME`` a node of a file, ``load._Loader._typed_NAME`` the value
of an option), with the same name the function of ``written`` that writes it again (``write_NAME``), and the field of
``model.Policy`` that holds what was read.  The rest follows from that field: a tuple is the concatenation of the
levels, anything else is taken from the last level that says it.

``shown`` and ``bound`` get one rule of a field at a time.  ``bound`` gives the text of the rule in the receipt and the
mechanisms that bind it.  A field without it names the module that enforces it, ``by``.

What runs on every start imports this: nothing heavy, and no work but making the rows.
"""

from __future__ import annotations

from ..escaping import escape
from ..value import Value
from .model import (
    CarrierOption,
    DeviceRule,
    EnvRule,
    FileRule,
    HostRule,
    Limits,
    MaskRule,
    MountRule,
    PathRule,
    PortRule,
    SecretRule,
    SigningRule,
    SocketRule,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, TypeAlias

    from .model import HttpRule, Policy, PortRange, RuleBudget

    Scope: TypeAlias = Literal["policy", "library", "run", "own", "command"]
    Bound: TypeAlias = tuple[str, tuple[str, ...]]  # the rule's text, what binds it


class Option(Value):
    """One option of the command line (``ui.options`` has those that are no key's)."""

    name: str  # without the dashes
    group: str  # heading in --help
    help: str
    # policy: the command-line level; library: the same, for programs only; run: streams and record of this run;
    # command: of one subcommand
    scope: Scope = "policy"
    short: str = ""
    metavar: str = ""  # empty: a flag
    repeatable: bool = False
    optional: bool = False  # the value may be left out, and is only read after "="
    default: str = ""  # of an optional value
    field: str = ""  # its name in ``settings.Given`` or ``prepare.RunOptions``; empty: the name with underscores
    values: tuple[str, ...] = ()  # closed choice
    completes: Literal["", "file", "host", "env"] = ""
    example: str = ""
    rare: bool = False  # in the man page and completion only
    read: str = ""  # of a key: the method of ``load._Loader`` that reads a value; empty: it changes which levels count

    @property
    def key(self) -> str:
        """The field that takes its value."""
        return self.field or self.name.replace("-", "_")


class Field(Value):
    """What a key fills in ``model.Policy``."""

    name: str
    label: str = ""  # in ``config show``; empty: it is not shown
    shown: Callable[[Any], str] = escape  # one rule on one line, as close as possible to what was written
    bound: Callable[[Any], Bound] | None = None
    kind: type[Value] | None = None  # of the rules of a tuple
    by: str = ""  # without ``bound``: the module that enforces it


class Key(Value):
    """One key of a policy file."""

    name: str
    read: str
    fields: tuple[Field, ...] = ()  # of a choice or a text the first is what it says; none: it becomes other keys
    options: tuple[Option, ...] = ()
    tightens: bool = False  # of a choice: a project's file may only make it tighter, and nobody can approve more
    widens: str = ""  # what of it lets a project's file do more, as docs/policy.md has it; empty: nothing
    template: str = ""  # in the user's first file
    choices: tuple[str, ...] = ()  # of a closed choice, from the tightest to the widest
    parse: str = ""  # of a text: the function of ``grammar``
    others: tuple[str, ...] = ()  # further spellings
    # A template of Membrane's file format has it without a value, which is as if it were not there.  Of any other key
    # an empty value is refused, since it is more likely a line that was lost than a default.
    may_be_empty: bool = False


# ---------------------------------------------------------------- how a rule is shown


def size_text(value: int) -> str:
    """Bytes, as ``512 MB``."""
    return f"{value / 1_000_000:.0f} MB" if value >= 1_000_000 else f"{value} bytes"


def ports_text(ports: Iterable[PortRange]) -> str:
    """``443,22,53/udp,8000-8010``."""
    out = []
    for span in ports:
        numbers = str(span.first) if span.first == span.last else f"{span.first}-{span.last}"
        out.append(numbers if span.protocol == "tcp" else f"{numbers}/{span.protocol}")
    return ",".join(out)


def _http_text(item: HttpRule) -> str:
    methods = f"methods {' '.join(map(escape, item.methods))}" if item.methods else ""
    paths = f"paths {' '.join(map(escape, item.paths))}" if item.paths else ""
    return "  ".join(filter(None, (methods, paths))) or "any request"


def _budget_text(budget: RuleBudget | None) -> str:
    if budget is None:
        return ""
    parts = [f"{size_text(budget.upload)} up"] if budget.upload else []
    parts += [f"{budget.requests} requests"] if budget.requests else []
    parts += [f"{budget.rate} requests in {budget.period} s"] if budget.rate else []
    return f"budget {', '.join(parts)}"


def _show_host(rule: HostRule) -> str:
    parts = [escape(rule.text)]
    if rule.ports and not rule.scheme and not rule.text.endswith(f":{rule.ports[0].first}"):
        parts.append(f"ports {ports_text(rule.ports)}")
    alternatives = rule.http or ()
    if len(alternatives) == 1 and rule.scheme and not alternatives[0].methods and len(alternatives[0].paths) == 1:
        alternatives = ()  # the path of the URL itself
    parts.append("  or  ".join(_http_text(item) for item in alternatives))
    parts.append(_budget_text(rule.budget))
    if rule.raw and not rule.text.startswith("tcp://"):
        parts.append("protocol raw")
    return "  ".join(filter(None, parts))


EFFECTS = {"hide": "ignore", "readonly": "readonly"}  # of a ``PathRule``: the key that says it


def _show_path(rule: PathRule) -> str:
    return f'{EFFECTS[rule.effect]} "{escape(rule.text)}"' + (", names shown" if rule.show_names else "")


def _show_file(rule: FileRule) -> str:
    return f'{rule.effect} "{escape(rule.text)}"'


def _show_mount(rule: MountRule) -> str:
    name = "git-root" if rule.git_root else escape(rule.path)
    return f"mount {name} {rule.mode}" + (f" at {escape(rule.target)}" if rule.target else "")


def _show_socket(rule: SocketRule) -> str:
    return f"unix_sockets {escape(rule.path)}" + (f" as {rule.adapter}" if rule.adapter else "")


def _show_port(rule: PortRule) -> str:
    return f"ports inside {rule.inside}, outside {rule.outside}"


def show_limit(limit: tuple[str, int]) -> str:
    """``memory 512 MB``, ``time 600 s``, ``pids 100``."""
    name, value = limit
    if name in ("memory", "disk", "upload"):
        return f"{name} {size_text(value)}"
    return f"{name} {value} s" if name in ("cpu", "time") else f"{name} {value}"


def _show_open(_value: bool) -> str:
    return "open"


# ---------------------------------------------------------------- what binds a rule


def _bind_hosts(verb: str) -> Callable[[HostRule], Bound]:
    def bound(rule: HostRule) -> Bound:
        host, colon, _ = rule.text.rpartition("]")[2].rpartition(":")
        said = 1 if rule.scheme or (colon and ":" not in host) else 0  # in the text already, and then the first port
        ports = ",".join(
            f"{p.first}{'' if p.first == p.last else f'-{p.last}'}/{p.protocol}" for p in rule.ports[said:]
        )
        names = rule.kind != "network"
        how: tuple[str, ...] = ("DNS name", "address at dial time") if names else ("destination address",)
        if names and (not rule.ports or any(ports.protocol == "tcp" for ports in rule.ports)):
            how = ("DNS name", "TLS server name", "address at dial time")  # of QUIC no name is read
        how = (*how, "destination port")
        if rule.constrained:
            how = (*how, *(() if rule.scheme == "http" else ("TLS interception",)), "HTTP method and path")
        if rule.budget is not None:
            parts = ("bytes up", rule.budget.upload), ("requests", rule.budget.counts_requests)
            how = (*how, *(f"{what} counted in the gateway" for what, given in parts if given))
        return f"{verb} {rule.text}" + (f" ports {ports}" if ports else ""), how

    return bound


def _bind_path(rule: PathRule) -> Bound:
    by = "mount mask" if rule.effect == "hide" else "read-only mount"
    return f"{rule.effect} {rule.text}", (by, "re-mount on replacement")


def _bind_file(rule: FileRule) -> Bound:
    opens = rule.effect.startswith("allow")
    by = ("mount namespace", "Landlock") if opens else ("mount", "re-mount on replacement")
    return f"{rule.effect} {rule.text}", by


def _bind_mount(rule: MountRule) -> Bound:
    name = "git-root" if rule.git_root else rule.path
    return f"mount {name} {rule.mode}", ("mount namespace", "Landlock")


def _show_argument(rule: CarrierOption) -> str:
    return f"argument {escape(rule.text)}"


def _bind_argument(rule: CarrierOption) -> Bound:
    return _show_argument(rule), ("backend: docker",)


def _bind_socket(rule: SocketRule) -> Bound:
    text = f"unix socket {rule.path}" + (f" as {rule.adapter}" if rule.adapter else "")
    text += f" allow {', '.join(rule.allow)}" if rule.allow else ""
    messages = (f"each {rule.adapter} message",) if rule.adapter else ()
    return text, ("mount namespace", "broker in the gateway", *messages)


def _bind_expose(rule: PortRule) -> Bound:
    text = f"expose port {rule.inside} as 127.0.0.1:{rule.outside} and [::1]:{rule.outside}"
    return text, ("listener on the host's loopback",)


def _bind_connect(rule: PortRule) -> Bound:
    text = f"connect host.internal:{rule.inside} to host loopback port {rule.outside}"
    return text, ("DNS name", "destination port")


def _bind_device(rule: DeviceRule) -> Bound:
    return f"device {rule.name}", ("bind mount of each node", "mode of the node")


def _bind_secret(rule: SecretRule) -> Bound:
    return f"secret {rule.name} to {' '.join(rule.to)}", ("placeholder in the environment", "TLS interception")


def _bind_signing(rule: SigningRule) -> Bound:
    return f"requests signed with {rule.key_id} and {rule.secret} are signed again", ("TLS interception",)


def _bind_mask(rule: MaskRule) -> Bound:
    copied = rule.source.startswith("file:")
    where = "read-only copy with placeholders" if copied else "placeholder in the environment"
    return f"mask {rule.source} to {' '.join(rule.to)}", (where, "TLS interception")


LIMITS = {  # what binds each
    "memory": "RLIMIT_DATA per process",
    "pids": "RLIMIT_NPROC in the user namespace",
    "cpu": "RLIMIT_CPU per process",
    "time": "supervisor timer",
    "files": "RLIMIT_NOFILE per process",
    "disk": "size of each private tmpfs, RLIMIT_FSIZE per file, count of what is kept; no quota of the workspace",
    "upload": "byte count in the gateway",
}


def _bind_limit(limit: tuple[str, int]) -> Bound:
    name, value = limit
    return f"limit {name}={value}", (LIMITS[name],)


# ---------------------------------------------------------------- the table

TEMPLATE_HEAD = (
    "# Membrane: what commands may do, for every workspace of this user.\n"
    "# A key that is commented out has the value shown. Docs: membrane config show; docs/policy.md.\n"
    "# Check the effect of a change with: membrane check HOST:PORT, membrane check PATH, membrane plan\n"
)

DEVICES = ("gpu", "kvm", "fuse")
_PATHS = Field("paths", "path", shown=_show_path, bound=_bind_path, kind=PathRule)

# A table: with one argument a line the rows are not seen.
# fmt: off
KEYS: tuple[Key, ...] = (
    Key("presets", "presets",
        options=(Option("preset", "policy", "add a list: python, models, github-push=OWNER/REPO", read="preset",
                    metavar="NAME", repeatable=True, field="presets",
                    example="membrane --no-presets --preset python -- pip download six"),
                 Option("no-presets", "policy", "none of the lists that are built in or named in files",
                    example="membrane --no-presets -a example.com -- curl https://example.com/")),
        widens="yes",
        template="""
# Built-in lists in force. Leave one out to close it; [] for none. Also there: java, ruby, php, dotnet, conda, bedrock;
# judged by request: pypi, npm, cargo, docker-hub, github-read, gitlab-read, {github-push: [owner/repo]}, gitlab-push.
# "default" is: python, node, rust, go, apt, git-hosts, containers, models, and the hidden files (.env, keys, ...).
#presets: [default]
"""),
    Key("allow", "hosts", (Field("allow", "allow", shown=_show_host, bound=_bind_hosts("allow"), kind=HostRule),),
        options=(Option("allow", "network", "let it reach a host, host:port, *.domain, IP, CIDR or URL", read="host",
                    short="a", metavar="HOST", repeatable=True, completes="host",
                    example="membrane -a pypi.org -a files.pythonhosted.org -- pip download six"),),
        widens="yes", may_be_empty=True,
        template="""
# Hosts that may be reached, beside the presets. Nothing else can be.
#allow:
#  - internal.example.com              # any TCP port
#  - registry.example.com:443
#  - dest: db.example.com
#    ports: [5432, 123/udp]
#  - "*.example.com"                   # subdomains, not example.com itself
#  - 192.168.2.0/24
#  - dest: https://api.example.com/v1/ # each request is checked
#    http:
#      - methods: [GET, POST]
#    budget: { requests: 500, rate: 60/min, upload: 10M } # each optional, per session
"""),
    Key("deny", "hosts", (Field("deny", "deny", shown=_show_host, bound=_bind_hosts("deny"), kind=HostRule),),
        options=(Option("deny", "network", "never let it reach HOST, whatever allows it", read="host", metavar="HOST",
                    repeatable=True, completes="host",
                    example="membrane -a '*.example.com' --deny ads.example.com -- curl https://www.example.com/"),),
        may_be_empty=True,
        template="""
# Never, whatever allows it.
#deny:
#  - "*.tracker.example"
"""),
    Key("ignore", "patterns", (_PATHS,),
        options=(Option("ignore", "files", "hide matching files (gitignore pattern)", read="pattern", short="i",
                    metavar="PATTERN", repeatable=True, completes="file",
                    example="membrane -i '*.pem' -i secrets/ -- claude"),
                 Option("sealed", "files", "the same as --ignore, as Membrane calls it", read="pattern", short="s",
                    metavar="PATTERN", repeatable=True, completes="file", rare=True,
                    example="membrane -s secrets/ -- claude")),
        others=("hide", "sealed"), widens="a pattern with `!`; `show: names`", may_be_empty=True,
        template="""
# .gitignore patterns, in the workspace. Hidden files can be neither read nor written; "!.env" shows .env again.
#ignore:
#  - secrets/
"""),
    Key("readonly", "patterns", (_PATHS,),
        options=(Option("readonly", "files", "matching files can be read only", read="pattern", short="r",
                    metavar="PATTERN", repeatable=True, completes="file",
                    example="membrane -r migrations/ -- claude"),),
        widens="a pattern with `!`", may_be_empty=True,
        template="""\
#readonly:
#  - migrations/
"""),
    Key("mounts", "mounts", (Field("mounts", "mount", shown=_show_mount, bound=_bind_mount, kind=MountRule),),
        options=(Option("mount", "files", "show a further tree; read-only unless :rw", read="mount",
                    metavar="SRC[:DST][:rw]", repeatable=True, field="mounts", completes="file",
                    example="membrane --mount ../lib:ro -- make"),),
        widens="yes", may_be_empty=True,
        template="""
# Further trees.
#mounts:
#  - { path: ../lib, mode: ro }
#  - { type: git-root, mode: ro }
"""),
    Key("files", "files",
        (Field("file_rules", "files", shown=_show_file, bound=_bind_file, kind=FileRule),
         Field("open_files", "open_files", shown=_show_open, by="plan/hardening.py")),
        widens="`allow_read`, `allow_write`, `unconfined`"),
    Key("unix_sockets", "sockets",
        (Field("unix_sockets", "socket", shown=_show_socket, bound=_bind_socket, kind=SocketRule),
         Field("open_sockets", "open_sockets", shown=_show_open, by="plan/hardening.py")),
        options=(Option("unix-socket", "files", "let it reach a unix socket of the host", read="socket", metavar="PATH",
                    repeatable=True, field="unix_sockets", completes="file",
                    example='membrane --unix-socket "$SSH_AUTH_SOCK" -- git fetch'),),
        widens="yes",
        template="""
# Unix sockets of this machine.
#unix_sockets: [$SSH_AUTH_SOCK]
"""),
    Key("ports", "ports",
        (Field("expose", "expose", shown=_show_port, bound=_bind_expose, kind=PortRule),
         Field("connect", "connect", shown=_show_port, bound=_bind_connect, kind=PortRule)),
        options=(Option("connect", "network", "host loopback port, inside as host.internal", read="port",
                    metavar="OUTSIDE[:INSIDE]", repeatable=True,
                    example="membrane --connect 5432 -- psql -h host.internal"),
                 Option("expose", "network", "a port of the command on the host's loopback", read="port",
                    metavar="INSIDE[:OUTSIDE]", repeatable=True,
                    example="membrane --expose 8000 -- python3 -m http.server 8000")),
        widens="yes",
        template="""
# Ports: of the command on this machine's loopback; of this machine's loopback inside, as host.internal.
#ports:
#  expose: [8000]
#  connect: [5432]
"""),
    Key("env", "env",
        (Field("env", "env", shown=lambda rule: escape(rule.name) + ("" if rule.value is None else "=(set)"),
             kind=EnvRule, by="plan/hardening.py"),),
        options=(Option("env", "process", "pass or set an environment variable", read="variable",
                    metavar="NAME[=VALUE]", repeatable=True, completes="env",
                    example="membrane --env CI --env MODE=test -- make check"),),
        widens="yes",
        template="""
# Environment variables: a short list (TERM, LANG, PATH, ...) is always passed, nothing else.
#env:
#  pass: [MY_TOKEN]
#  set: { CI: "1" }
"""),
    Key("devices", "devices",
        (Field("devices", "device", shown=lambda rule: rule.name, bound=_bind_device, kind=DeviceRule),),
        options=(Option("device", "files", "show a device: gpu, kvm or fuse", read="device", metavar="NAME",
                    repeatable=True, field="devices", values=DEVICES, rare=True,
                    example="membrane --device gpu -- python train.py"),),
        choices=DEVICES, widens="yes",
        template="""
# Device nodes: gpu, kvm, fuse.
#devices: [gpu]
"""),
    Key("secrets", "secret_rules",
        (Field("secrets", "secret", shown=lambda rule: escape(rule.name), bound=_bind_secret, kind=SecretRule),),
        widens="yes"),
    Key("masks", "masks",
        (Field("masks", "mask", shown=lambda rule: escape(rule.source), bound=_bind_mask, kind=MaskRule),),
        widens="yes"),
    Key("signing", "signing",
        (Field("signing", "signing", shown=lambda rule: escape(f"{rule.key_id} {rule.secret}"), bound=_bind_signing,
             kind=SigningRule),),
        widens="yes"),
    Key("git_config", "choice",
        (Field("open_git_config", "open_git_config", shown=_show_open, by="workspace/scan.py"),),
        choices=("protected", "writable"), widens="towards more"),
    Key("user_namespaces", "choice",
        (Field("user_namespaces", "user_namespaces", shown=_show_open, by="plan/hardening.py"),),
        choices=("refused", "allowed"), widens="towards more"),
    Key("containers", "choice",
        (Field("containers", "containers", by="plan/containers.py"),),
        options=(Option("containers", "process", "engines of containers run inside: docker, podman, buildah",
                    read="containers", rare=True, example="membrane --containers -- docker compose up"),),
        choices=("none", "nested"), tightens=True,
        template="""
#containers: nested   # docker, podman and buildah run inside, each container below the same rules
"""),
    Key("system", "choice", (Field("system", "system", by="plan/system.py"),),
        options=(Option("system", "files", "read-only, or a layer over /usr, /etc, /var: writable, persistent (kept)",
                    read="choice", metavar="MODE", values=("read-only", "writable", "persistent"), rare=True,
                    example="membrane --system=writable -- sh -c 'apt-get update && apt-get install -y jq'"),),
        choices=("read-only", "writable", "persistent"), tightens=True,
        template="""
#system: writable     # root's apt-get install, npm i -g and su work, in a layer that is thrown away (or: persistent)
"""),
    Key("image", "image", (Field("image", "image", by="plan/image.py"),),
        options=(Option("image", "files", "system trees from an image: NAME, oci:DIR, tar:FILE, dockerfile:FILE",
                    read="image", metavar="REF", completes="file", rare=True,
                    example="membrane --image python:3.12 -- pytest"),),
        widens="yes",
        template="""
#image: python:3.12   # /usr, /etc and the like come from an image, not from this machine
"""),
    Key("platform", "text", (Field("platform", "platform", by="run/prepare.py"),),
        options=(Option("platform", "files", "of images that are there for several: linux/ARCH[/VARIANT]", read="text",
                    metavar="PLATFORM", rare=True,
                    example="membrane --platform linux/arm64 --image alpine -- uname -m"),),
        parse="parse_platform", widens="yes"),
    Key("limits", "limit_keys", (Field("limits", "limit", shown=show_limit, bound=_bind_limit),),
        options=(Option("limit", "process", "memory, pids, cpu, time, files, disk, upload", read="limit",
                    metavar="KEY=VALUE", repeatable=True, field="limits",
                    example="membrane --limit memory=4G --limit time=10m -- make"),),
        widens="one above that of the levels before",
        template="""
# Resource limits; not limited by default.
#limits: { memory: 8G, pids: 2000, cpu: 1h, time: 2h, files: 65536, disk: 10G }
"""),
    Key("args", "args",
        (Field("carrier_options", "argument", shown=_show_argument, bound=_bind_argument, kind=CarrierOption),),
        options=(Option("arg", "process", "a word of docker run: -e, -v, -m, --pids-limit", read="args", metavar="WORD",
                    repeatable=True, field="args", rare=True,
                    example="membrane --arg=-e --arg=MODE=test -- make check"),),
        widens="as the key that it becomes; a label, `--ulimit`", may_be_empty=True),
    Key("home", "choice", (Field("home", "home", by="plan/mounts.py"),),
        options=(Option("home", "files", "workspace (kept), shared (kept) or ephemeral", read="choice", metavar="MODE",
                    values=("workspace", "shared", "ephemeral"),
                    example="membrane --home ephemeral -- ./untrusted.sh"),),
        choices=("ephemeral", "workspace", "shared"), widens="towards more",
        template="""
#home: workspace      # or shared, ephemeral
"""),
    Key("view", "choice", (Field("view", "view", by="plan/mounts.py"),),
        options=(Option("view", "files", "project, or host: everything, read-only", read="choice", metavar="MODE",
                    values=("project", "host"), example="membrane --view host -- rg licence /usr/share/doc"),),
        choices=("project", "host"), widens="towards more",
        template="""\
#view: project        # or host: everything readable, writes in the workspace only
"""),
    Key("hard_links", "choice", (Field("hard_links", "hard_links", by="run/boundary.py"),),
        choices=("refuse", "warn"), widens="towards more"),
    Key("dns_resolver", "text", (Field("dns_resolver", "dns_resolver", by="gateway/server.py"),),
        options=(Option("dns-resolver", "network", "ask this resolver for allowed names", read="text",
                    metavar="IP[:PORT]",
                    example="membrane --dns-resolver 9.9.9.9 -a example.com -- curl https://example.com/"),),
        parse="parse_resolver", widens="yes", may_be_empty=True,
        template="""\
#dns_resolver: 9.9.9.9
"""),
    Key("upstream_proxy", "text", (Field("upstream_proxy", "upstream_proxy", by="gateway/server.py"),),
        options=(Option("upstream-proxy", "network", "http://HOST:PORT, socks5://HOST:PORT, or env", read="text",
                    metavar="URL", example="membrane --upstream-proxy http://proxy.corp.example:3128 -- npm install"),),
        parse="parse_proxy", widens="yes",
        template="""\
#upstream_proxy: env
"""),
    Key("extra_ca", "extra_ca", (Field("extra_ca", "extra_ca", by="plan/mounts.py"),),
        options=(Option("extra-ca", "network", "trust this CA for upstream servers (PEM)", read="extra_ca",
                    metavar="FILE", repeatable=True, completes="file", rare=True,
                    example="membrane --extra-ca corp-ca.pem -- npm install"),),
        widens="yes"),
    Key("ssl_insecure", "ssl_insecure",
        (Field("ssl_insecure", "ssl_insecure", shown=lambda _: "true", by="gateway/server.py"),),
        options=(Option("ssl-insecure", "network", "do not verify upstream certificates", read="ssl_insecure",
                    rare=True, example="membrane --ssl-insecure -a https://dev.example.com/v1/ -- ./client"),),
        widens="`true`", may_be_empty=True),
    Key("trace", "trace_keys", (Field("trace", "trace", shown=lambda rule: rule.mode, by="run/prepare.py"),),
        options=(Option("trace", "record", "off: keep no record", "library", metavar="MODE", read="trace"),),
        widens="`mode: auto` and `off`, `max_size`, `keep`, `http: full`"),
    Key("profiles", "wanted", (Field("profiles", by="run/prepare.py"),),
        options=(Option("profile", "process", "use this agent profile (default: by name)", metavar="NAME",
                    example="membrane --profile claude -- ./my-wrapper"),
                 Option("no-profile", "process", "use no agent profile",
                    example="membrane --no-profile -- claude --version")),
        widens="yes"),
    Key("workspace", "choice",
        (Field("workspace", "workspace", by="plan/build.py"), Field("change_set", "change_set", by="changes/cell.py")),
        options=(Option("review", "files", "keep changes apart, in a change set, until applied", read="review",
                    metavar="NAME", optional=True, default=":new", example="membrane --review=fix-login -- claude"),
                 Option("live", "files", "write the workspace itself, whatever files say", read="live", rare=True,
                    example="membrane --live -- make")),
        choices=("review", "live"), tightens=True,
        template="""
#workspace: review    # changes are kept apart until they are applied; without it: live
"""),
    Key("apply", "choice", (Field("apply", "apply", by="run/session.py"),),
        options=(Option("apply", "files", "at the end of --review: ask (on a terminal), safe, all, never",
                    metavar="MODE", read="choice", values=("ask", "safe", "all", "never"), rare=True,
                    example="membrane --review --apply=safe -- make format"),),
        choices=("never", "ask", "safe", "all"), tightens=True,
        template="""\
#apply: ask           # at the end of a reviewed run; or never, safe, all
"""),
    Key("backend", "choice", (Field("backend", "backend", by="run/begin.py"),),
        options=(Option("backend", "process", "native; docker, podman: in a container; landlock; auto",
                    read="choice", metavar="NAME", values=("native", "docker", "podman", "auto", "landlock"), rare=True,
                    example="membrane --backend landlock -a example.com -- curl https://example.com/"),),
        choices=("native", "docker", "podman", "auto", "landlock"), tightens=True),
)

# Options about the levels themselves.
LEVELS: tuple[Option, ...] = (
    Option("no-global-config", "policy", "without config.yaml and the hosts of built-in lists",
        example="membrane --no-global-config -a example.com -- curl https://example.com/"),
    Option("no-project", "policy", "do not read the workspace's .membrane.yaml", rare=True,
        example="membrane --no-project -- make"),
    Option("trust-workspace", "policy", "approve .membrane.yaml for this run only",
        example="membrane --trust-workspace -- make"),
)
# fmt: on

BY_NAME = {key.name: key for key in KEYS}
FIELDS: tuple[Field, ...] = tuple({field.name: field for key in KEYS for field in key.fields}.values())
_GROUPS = ("network", "files", "process", "policy", "record")
# In the order of --help.
OPTIONS: tuple[Option, ...] = (
    *sorted((option for key in KEYS for option in key.options), key=lambda option: _GROUPS.index(option.group)),
    *LEVELS,
)


# Top-level keys of other programs' files, with the program and its name for ``config import``.
ELSEWHERE = {
    **dict.fromkeys(("network", "filesystem", "ignoreViolations"), ("sandbox-runtime", "srt")),
    **dict.fromkeys(("sandbox", "permissions"), ("Claude Code", "claude")),
    **dict.fromkeys(("hostnames", "cidrs", "resolver"), ("cagent", "cagent")),
    **dict.fromkeys(("sandbox_mode", "sandbox_workspace_write"), ("Codex", "codex")),
}


def template() -> str:
    """A user's first file: every common key, commented out, with what it says without one."""
    return TEMPLATE_HEAD + "".join(key.template for key in KEYS)


def items(policy: Policy, field: Field) -> tuple[Any, ...]:
    """What a field holds, one rule at a time; of ``limits`` pairs of name and value.  What is not said is left out."""
    value = getattr(policy, field.name)
    if isinstance(value, tuple):
        return value
    if isinstance(value, Limits):
        return tuple((name, number) for name in value.field_names if (number := getattr(value, name)))
    return (value,) if value else ()


def rule_text(rule: object) -> str:
    """A rule on one line, as close as possible to what was written; empty for anything else."""
    for field in FIELDS:
        if type(rule) is field.kind:
            return field.shown(rule)
    return ""
