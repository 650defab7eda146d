"""Where a run's policy comes from (placeholder head; being written)."""

from __future__ import annotations

from .policy.model import Policy
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Options(Value):
    """The options of one run that speak about the policy, as the command line gives them.

    Strings are as typed; ``load_policy`` parses and refuses them.  An empty string or ``None`` means "not given".
    """

    command: tuple[str, ...] = ()  # the wrapped command; its basename chooses an agent profile
    allow: tuple[str, ...] = ()  # -a/--allow: host, host:port, URL, IP, CIDR, wildcard
    deny: tuple[str, ...] = ()  # --deny, the same forms
    ignore: tuple[str, ...] = ()  # -i/--ignore (gitignore patterns)
    readonly: tuple[str, ...] = ()  # -r/--readonly (gitignore patterns)
    mounts: tuple[str, ...] = ()  # --mount SRC[:DST][:ro|rw]
    env: tuple[str, ...] = ()  # --env NAME (pass) or NAME=VALUE (set)
    limits: tuple[str, ...] = ()  # --limit KEY=VALUE
    args: tuple[str, ...] = ()  # --arg (Docker only; never expanded)
    unix_sockets: tuple[str, ...] = ()  # --unix-socket PATH
    expose: tuple[str, ...] = ()  # --expose INSIDE[:OUTSIDE]
    connect: tuple[str, ...] = ()  # --connect OUTSIDE[:INSIDE] (host loopback)
    extra_ca: tuple[str, ...] = ()  # --extra-ca FILE
    dns_resolver: str = ""  # --dns-resolver ADDRESS[:PORT]
    upstream_proxy: str = ""  # --upstream-proxy URL
    ssl_insecure: bool = False
    home: str = ""  # --home workspace|shared|ephemeral
    view: str = ""  # --view project|host
    workspace_mode: str = ""  # --workspace live|cow
    trace: str = ""  # "off" for --no-trace
    profile: str | None = None  # --profile NAME; None: chosen by the basename of command[0]
    no_profile: bool = False
    no_global_config: bool = False
    no_project: bool = False  # do not read .membrane.yaml at all
    trust_workspace: bool = False  # approve .membrane.yaml for this run
    interactive: bool = True  # may ask through /dev/tty


class Widening(Value):
    """A place in a project file that widens what the run may do."""

    key: str  # dotted, such as "allow" or "env.pass"
    line: int
    text: str  # the source line, not escaped


class Loaded(Value):
    """The policy of one run and what has to be said about it."""

    policy: Policy
    warnings: tuple[str, ...] = ()
    widening: tuple[Widening, ...] = ()  # of the project file, approved
    cached: bool = False


def state_home(environ: Mapping[str, str]) -> str:
    """``$MEMBRANE_HOME``, or ``~/.membrane``; absolute."""
    raise NotImplementedError


def load_policy(options: Options, environ: Mapping[str, str], workspace: str, home: str) -> Loaded:
    """Read, check and merge everything that makes this run's policy.

    Args:
        options: what the command line says.
        environ: the caller's environment.
        workspace: absolute path, symlinks resolved.
        home: $MEMBRANE_HOME, absolute (``state_home``); made when absent.

    Raises:
        PolicyError: a file or an option is wrong, or a project file widens and is not approved.
        HostError: a file or the state directory can not be read or written.
    """
    raise NotImplementedError


def trust_project(workspace: str, home: str) -> tuple[Widening, ...]:
    """Approve the project file as it is now, for ``membrane trust``; return what it widens."""
    raise NotImplementedError


def config_path(home: str) -> str:
    """The user's policy file."""
    return f"{home}/config.yaml"


def write_config(home: str) -> bool:
    """Write the commented template unless the file exists; return whether it was written."""
    raise NotImplementedError
