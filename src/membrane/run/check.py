"""``membrane check`` and ``Policy.decide``: what was typed -> the questions to ask -> one answer.

Theory of operation
-------------------
A target becomes the same ``Access`` values that the sandbox asks while a command runs, in the same order: the name,
then the connection, then the request.  The first answer that is not ``Allow`` is the answer.  A path outside the
workspace is looked up in the planned mounts, because the view, not a rule, decides about it.
"""

from __future__ import annotations

import os
import re
import stat

from ..errors import PolicyError
from ..policy import grammar, hosts, reasons, url_paths
from ..policy.decide import decide
from ..policy.model import Allow, Connect, Deny, HttpRequest, Malformed, NameQuery, PathAccess, SocketAccess
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..plan.model import HostFacts
    from ..policy.model import Access, Policy, Verdict

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22, "git": 9418, "ftp": 21, "postgres": 5432}
PORTS |= {"postgresql": 5432, "redis": 6379, "mysql": 3306, "mongodb": 27017, "amqp": 5672, "ldap": 389, "ldaps": 636}


# A repository as git and scp(1) write it for ssh: USER@HOST:PATH.
_OVER_SSH = re.compile(r"[\w.-]+@([\w.-]+):(?![0-9]+$).+")


class TargetError(PolicyError):
    """What was asked about cannot be understood; exit status 2 as getopt programs use it."""

    exit_code = 2


class Answer(Value):
    """What ``check`` found."""

    target: str  # as typed
    access: Access  # the question that decided
    verdict: Verdict
    bound_by: tuple[str, ...]
    write: Answer | None = None  # for a readable path: the answer about writing, where it differs


def _cannot(target: str, cause: str, *fix: str) -> TargetError:
    return TargetError("check", f"{target!r} {cause}", fix=fix)


def _ip(text: str) -> str:
    """The canonical form of an IP literal, brackets allowed; empty when it is none."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        return hosts.format_address(*hosts.parse_address(text))
    except Malformed:
        return ""


def _split_port(text: str, target: str) -> tuple[str, int, str]:
    """``HOST[:PORT[/udp|/tcp]]``, an IPv6 literal with a port in brackets -> host, port (0: none), protocol."""
    if _ip(text):
        return text, 0, "tcp"
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, 0, "tcp"
    port, _, protocol = port.partition("/")
    if protocol not in ("", "tcp", "udp"):
        raise _cannot(target, f"has the protocol {protocol!r}; it is tcp or udp")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise _cannot(target, f"has the port {port!r}; a port is 1 to 65535")
    return host, int(port), protocol or "tcp"


# ---------------------------------------------------------------- hosts


def _first_port(policy: Policy, host: str) -> int:
    """A port to ask about when none was typed: the first TCP port of the rule that admits the name, else 443."""
    verdict = decide(policy, NameQuery(host))
    rule = verdict.rule if isinstance(verdict, Allow) else None
    for ports in getattr(rule, "ports", ()):
        if ports.protocol == "tcp":
            return int(ports.first)
    return 443


def _host(policy: Policy, host: str, port: int, protocol: str) -> tuple[Access, Verdict]:
    """Ask about the name, then about the connection; ``port`` 0: it was not typed."""
    address = _ip(host)
    if _is_own_loopback(host):
        own = Connect("" if address else host, address, port or 443, "udp" if protocol == "udp" else "tcp")
        return own, Allow(None, "the sandbox's own loopback")
    query = NameQuery(host)
    name = None if address else decide(policy, query)
    if not port and name is not None and not isinstance(name, Allow):
        return query, name
    port = port or _first_port(policy, host)
    connect = Connect("" if address else host, address, port, "udp" if protocol == "udp" else "tcp")
    verdict = decide(policy, connect)
    if name is not None and not isinstance(name, Allow) and isinstance(verdict, Allow):
        return query, name
    return connect, verdict


def _url(policy: Policy, target: str, method: str) -> tuple[Access, Verdict]:
    scheme, _, rest = target.partition("://")
    scheme = scheme.lower()
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise _cannot(target, "holds a user name; a rule never looks at it", "leave out what is before the @")
    host, port, _ = _split_port(authority, target)
    host = _ip(host) or host
    port = port or PORTS.get(scheme, 0)
    if not host:
        raise _cannot(target, "has no host")
    if not port:
        raise _cannot(target, f"has the scheme {scheme!r}, whose port is not known", "name the port: HOST:PORT")
    access, verdict = _host(policy, host, port, "tcp")
    if not isinstance(verdict, Allow) or scheme not in ("http", "https", "ws", "wss"):
        return access, verdict
    path = (slash + path).partition("#")[0].partition("?")[0] or "/"
    secure: Literal["http", "https"] = "https" if scheme in ("https", "wss") else "http"
    try:
        request = HttpRequest(host, port, secure, method, url_paths.canonical_path(path, slashes=True))
    except url_paths.MalformedPath:
        request, malformed = HttpRequest(host, port, secure, method, path), Deny(None, reasons.REQUEST_MALFORMED)
        return request, malformed if verdict.inspect else verdict
    return request, decide(policy, request) if verdict.inspect else verdict


# ---------------------------------------------------------------- paths


def _mounted(path: str, operation: str, policy: Policy, facts: HostFacts) -> Verdict:
    """Is this host path, outside the workspace, in the view, and writable there?"""
    from ..plan import mounts
    from ..plan.model import Bind, Mask, Overlay, Pin, ReadOnly
    from ..policy.model import MountRule, Origin

    built_in = Origin("built-in", "view")
    for op in reversed(mounts.base(policy, facts)):
        if not mounts.inside(path, op.target):
            continue
        if isinstance(op, Pin):
            continue  # it is its own tree
        if isinstance(op, ReadOnly):
            if operation == "write":
                return Deny(None, reasons.READ_ONLY)
            continue
        if isinstance(op, Overlay):  # what is written is in a layer: the caller's stays
            return Allow(MountRule(op.target, "rw" if op.layer else "ro", built_in), "in the view")
        if isinstance(op, Mask):  # a rule that mounts it would not uncover it
            return Deny(None, reasons.HIDDEN)
        if not isinstance(op, Bind):
            break
        if op.source.rstrip("/") + path[len(op.target.rstrip("/")) :] != path:
            break  # another tree is shown at this place
        if operation == "write" and not op.writable:
            return Deny(None, reasons.READ_ONLY)
        for rule in policy.mounts:
            if str(rule.origin) == op.origin:
                return Allow(rule, "mounted")
        return Allow(MountRule(op.target, "rw" if op.writable else "ro", built_in), "in the view")
    hint = f"mounts: [{{path: {_yaml(path)}, mode: {'rw' if operation == 'write' else 'ro'}}}]"
    return Deny(None, reasons.NOT_IN_THE_VIEW, hint)


def _yaml(text: str) -> str:
    """A flow scalar; quoted (JSON is YAML) unless plainly safe."""
    if text.isascii() and all(c.isalnum() or c in "/._-~+" for c in text) and text[:1] in ("/", "."):
        return text
    import json

    return json.dumps(text)


def _protected(root: str, relative: str, open_git_config: bool) -> bool:
    """Is it, or does it lie below, a name that is read-only because something outside would obey it?"""
    from ..workspace import protect

    context, path = protect.TREE, root
    parts = relative.split("/")
    for number, part in enumerate(parts):
        context = protect.settled(context, _layout_keys(path))
        path = f"{path}/{part}"
        link = os.path.islink(path)
        directory = not link and (number + 1 < len(parts) or os.path.isdir(path))
        context = protect.classify(context, protect.fold(part), directory, link)
        if context == protect.PROTECT and open_git_config and protect.is_git_config(path) and not link:
            return False
        if context < 0:
            break
    return context == protect.PROTECT


def _layout_keys(path: str) -> set[str]:
    from ..workspace import protect

    try:
        return {protect.fold(name) for name in os.listdir(path)} & protect.LAYOUT
    except OSError:
        return set()


def _one_path(path: str, operation: str, directory: bool, policy: Policy, facts: HostFacts) -> tuple[Access, Verdict]:
    root = facts.workspace
    write = operation == "write"
    if policy.file_rules is not None:
        named = PathAccess(path, "write" if write else "read", directory)
        answer = decide(policy, named)
        below = path[len(root.rstrip("/")) + 1 :] if path.startswith(root.rstrip("/") + "/") else ""
        guarded = write and below and not policy.open_files
        if guarded and isinstance(answer, Allow) and _protected(root, below, policy.open_git_config):
            answer = Deny(None, reasons.PROTECTED_NAME)
        return named, answer
    if path != root and not path.startswith(root.rstrip("/") + "/"):
        access = PathAccess(path, "write" if write else "read", directory)
        return access, _mounted(path, operation, policy, facts)
    relative = path[len(root.rstrip("/")) + 1 :]
    access = PathAccess(relative or ".", "write" if write else "read", directory)
    verdict = decide(policy, access) if relative else Allow(None, "in the view")
    if policy.workspace == "review":
        return access, verdict  # no program obeys it before it is applied
    if write and relative and isinstance(verdict, Allow) and _protected(root, relative, policy.open_git_config):
        verdict = Deny(None, reasons.PROTECTED_NAME)
    return access, verdict


def _path(target: str, operation: str, policy: Policy, facts: HostFacts) -> tuple[Access, Verdict]:
    """Ask about the name, and about what it leads to where it is a symbolic link: both must be allowed."""
    typed = os.path.expanduser(target)
    parent, name = os.path.split(os.path.normpath(os.path.join(facts.workspace, typed)))
    path = os.path.join(os.path.realpath(parent), name) if name else parent
    access, verdict = _one_path(path, operation, os.path.isdir(path) or target.endswith("/"), policy, facts)
    real = os.path.realpath(path)
    if isinstance(verdict, Allow) and real != path:
        return _one_path(real, operation, os.path.isdir(real), policy, facts)
    return access, verdict


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def is_path(target: str, workspace: str) -> bool:
    """Does the target name a path rather than a host?  ``./NAME`` always does."""
    return (
        target.startswith(("/", ".", "~"))
        or os.path.lexists(os.path.join(workspace, target))
        or ("/" in target and not target.endswith(("/tcp", "/udp")))
    )


# ---------------------------------------------------------------- the answer


def bound_by(access: Access, verdict: Verdict) -> tuple[str, ...]:
    """The mechanisms that make the answer true while a command runs."""
    if isinstance(access, Connect | HttpRequest) and _is_own_loopback(access.host or getattr(access, "address", "")):
        return ("own loopback, which leads to the sandbox's own servers only (this machine's are host.internal:PORT)",)
    if isinstance(access, HttpRequest) and isinstance(verdict, Allow) and not verdict.inspect and verdict.rule:
        return _bound_host(access.host, getattr(verdict.rule, "http", None) is not None)
    if isinstance(access, HttpRequest):
        return _bound_host(access.host, True)
    if isinstance(access, NameQuery):
        return ("DNS name",)
    if isinstance(access, Connect):
        return _bound_host(access.host, isinstance(verdict, Allow) and verdict.inspect)
    if isinstance(access, SocketAccess) or verdict.reason == reasons.NOT_IN_THE_VIEW:
        return ("mount namespace",)
    if isinstance(verdict, Deny) and verdict.reason == reasons.HIDDEN:
        return ("mount mask (live)", "re-mask on replacement")
    if isinstance(verdict, Deny):
        return ("read-only mount (live)", "re-mount on replacement")
    return ("mount namespace",)


def _is_own_loopback(host: str) -> bool:
    """Does a command that asks for it stay in the sandbox, where no rule is asked?  RFC 6761, RFC 1122, RFC 4291."""
    name = host.rstrip(".").lower()
    return name in ("localhost", "::1") or (bool(_ip(host)) and name.startswith("127."))


def _bound_host(host: str, inspected: bool) -> tuple[str, ...]:
    if not host or _ip(host):
        names: tuple[str, ...] = ("destination address", "destination port")
    else:
        names = ("DNS name", "destination port")
    if inspected:
        return (*names, "TLS interception", "HTTP method and path")
    return names if names[0] == "destination address" else (*names, "TLS server name", "address at dial time")


def check(target: str, method: str, policy: Policy, facts: HostFacts) -> Answer:
    """Answer one question.

    Args:
        target: a host, host:port, URL, IP literal, path or unix socket.
        method: of HTTP for a URL, ``read`` or ``write`` for a path; empty for the usual one.

    Raises:
        TargetError: the target is none of these, or the method does not fit it.
    """
    from ..plan.mounts import as_found

    policy, _warnings = as_found(policy, facts)
    if not target:
        raise _cannot(target, "names nothing", "membrane check HOST, HOST:PORT, URL or PATH")
    is_socket = target.startswith("unix:/")
    target = target.removeprefix("unix:") if is_socket else target
    operations = ("read", "write")
    if "://" in target:
        if method in operations:
            raise _cannot(target, f"is a URL; {method} is for paths")
        try:
            method = grammar.parse_method(method or "GET")
        except Malformed as error:
            raise TargetError("check", str(error)) from None
        access, verdict = _url(policy, target, method)
        return Answer(target, access, verdict, bound_by(access, verdict))
    network = _network(target)
    if network and not os.path.lexists(target):
        raise _cannot(target, "is a whole network", f"ask about one address: membrane check {network}")
    if _ip(target) or not is_path(target, facts.workspace):
        if method:
            raise _cannot(target, f"is a host; {method} needs a URL or a path", f"membrane check https://{target}/")
        host, port, protocol = _split_port(target, target)
        host = _ip(host) or host
        access, verdict = _host(policy, host, port, protocol)
        return Answer(target, access, verdict, bound_by(access, verdict))
    if (place := _OVER_SSH.fullmatch(target)) and not os.path.lexists(os.path.join(facts.workspace, target)):
        raise _cannot(target, "is a repository over ssh", f"membrane check {place[1]}:22")
    if method not in ("", *operations):
        raise _cannot(target, f"is a path; -X is read or write for it, not {method!r}")
    path = os.path.normpath(os.path.join(facts.workspace, os.path.expanduser(target)))
    if (is_socket or _is_socket(path)) and not path.startswith(facts.workspace.rstrip("/") + "/"):
        asked = SocketAccess(path)
        verdict = decide(policy, asked)
        return Answer(target, asked, verdict, bound_by(asked, verdict))
    access, verdict = _path(target, method or "read", policy, facts)
    write = None
    if not method and isinstance(verdict, Allow):
        other, refusal = _path(target, "write", policy, facts)
        if not isinstance(refusal, Allow):
            write = Answer(target, other, refusal, bound_by(other, refusal))
    return Answer(target, access, verdict, bound_by(access, verdict), write)


def _network(target: str) -> str:
    """The first usable address of a CIDR block, or an empty string."""
    if "/" not in target:
        return ""
    try:
        block = hosts.parse_network(target)
    except Malformed:
        return ""
    host_bits = (32 if block.version == 4 else 128) - block.prefix
    return hosts.format_address(block.version, block.base + (1 if host_bits else 0))
