"""The one decision function.

Theory of operation
-------------------
``Decider`` indexes a policy once: exact names in a dictionary, wildcards by their suffix, networks by prefix length.
A question is made canonical (``hosts``, ``url_paths``), the deny rules are asked, then the allow rules.  Nothing is
allowed unless a rule is found; every path that is not an ``Allow`` ends in a ``Deny`` with its reason.

* A deny rule without ports refuses every port and protocol; an allow rule without ports is any TCP port.
* A destination with an HTTP rule, or one that a secret goes to, is *constrained*: ``Allow.inspect`` is set on that
  port whatever else admits it, and each request is asked again as ``HttpRequest``.  (An HTTP rule without ports leaves
  a port to the unconstrained rule that names it, except 80 and 443.)
* ``Connect`` with a name is asked without an address, then with each resolved address: the *floor* below a name refuses
  addresses that are not public, unless a network rule names the address for that port.
* ``Connect`` without a name is decided by network rules, and by ``**`` where no deny rule names hosts (the literal
  could be one of them).
* ``host.internal`` is the host's loopback: only a rule with its name and a port, or ``ports: connect``, opens it.
* The names of cloud metadata services are opened by their exact name only.
"""

from __future__ import annotations

from . import reasons
from .hosts import (
    HOST_INTERNAL,
    METADATA_NAMES,
    WIDE,
    address_class,
    canonical_host,
    format_address,
    judged_forms,
    parse_address,
    wildcard_suffixes,
)
from .model import (
    Allow,
    Connect,
    Deny,
    HostRule,
    HttpRequest,
    HttpRule,
    Malformed,
    MountRule,
    NameQuery,
    PathAccess,
    PathRule,
    Policy,
    SocketAccess,
)
from .sockets import admits_operation, line_for
from .url_paths import ENCODED_SLASH, END, SLASH, canonical_path, path_matcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .files import Covering
    from .globs import Pattern
    from .hosts import Address, AddressClass
    from .model import Access, Verdict

_LOOPBACK = ((4, 0x7F00_0001), (6, 1))
# Prefix lengths from which a CIDR may open link-local and metadata addresses, and those of this machine.
_NARROW = {4: 24, 6: 64}
_HTTP_PORTS = (80, 443)
_UNASKED_METHODS = frozenset(["TRACE", "TRACK", "CONNECT"])  # only where a rule names them: they echo or tunnel
_METHOD_BYTES = frozenset("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")  # RFC 9110 token, upper case


_MOST_MARKS = 30  # combining characters in a row (UAX #15)
_MOST_DECODED = 3  # times that a path is decoded to see what a deny names in it
_EVERY = HttpRule((), ())


class _Index:
    """The rules of one list, by what they name."""

    __slots__ = ("any", "hosts", "networks", "wildcards")

    def __init__(self, rules: Iterable[HostRule]) -> None:
        self.any: list[HostRule] = []
        self.hosts: dict[str, list[HostRule]] = {}
        self.wildcards: dict[str, list[HostRule]] = {}
        self.networks: dict[tuple[int, int], dict[int, list[HostRule]]] = {}  # (version, shift): base >> shift
        for rule in rules:
            if rule.kind == "any":
                self.any.append(rule)
            elif rule.kind == "host":
                self.hosts.setdefault(rule.host, []).append(rule)
            elif rule.kind == "wildcard":
                self.wildcards.setdefault(rule.host, []).append(rule)
            elif rule.network is not None:
                block = rule.network
                shift = (32 if block.version == 4 else 128) - block.prefix
                blocks = self.networks.setdefault((block.version, shift), {})
                blocks.setdefault(block.base >> shift, []).append(rule)

    def named(self, name: str) -> list[HostRule]:
        """Rules that match a canonical name, the most specific first."""
        found = list(self.hosts.get(name, ()))
        if self.wildcards:
            for suffix in wildcard_suffixes(name):
                found += self.wildcards.get(suffix, ())
        return found + self.any

    def addressed(self, address: Address) -> list[HostRule]:
        """Rules of kind "network" that name an address."""
        version, value = address
        found: list[HostRule] = []
        for (family, shift), blocks in self.networks.items():
            if family == version:
                found += blocks.get(value >> shift, ())
        return found


def _admits(rule: HostRule, port: int, protocol: str) -> bool:
    """Does an allow rule cover the port?"""
    if not rule.ports:
        return protocol == "tcp"
    return any(each.protocol == protocol and each.first <= port <= each.last for each in rule.ports)


def _refuses(rule: HostRule, port: int, protocol: str) -> bool:
    """Does a deny rule cover the port?  Without ports it covers everything."""
    return not rule.ports or _admits(rule, port, protocol)


def _constraints(admitting: Sequence[HostRule], port: int) -> list[HostRule]:
    """Those of the admitting rules that make a connection to this port one of judged requests.

    One without ports does not hold for a port that an unconstrained rule names, as for SSH beside HTTP rules of the
    same host; it always does for the ports of HTTP.
    """
    found = [rule for rule in admitting if rule.constrained]
    if found and port not in _HTTP_PORTS and any(rule.ports and not rule.constrained for rule in admitting):
        found = [rule for rule in found if rule.ports]
    return found


def _quoted(text: str) -> str:
    """YAML's double-quoted form, printable whatever is inside; empty for what YAML cannot hold."""
    out = []
    for char in text:
        code = ord(char)
        if 0xD800 <= code <= 0xDFFF:
            return ""
        if char in '"\\':
            out.append("\\" + char)
        elif char.isprintable():
            out.append(char)
        else:
            out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(out)}"'


def _hint(before: str, text: str, after: str) -> str:
    quoted = _quoted(text)
    return f"{before}{quoted}{after}" if quoted else ""


def _destination(host: str, port: int, protocol: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}/udp" if protocol == "udp" else f"{shown}:{port}"


def _allow_hint(host: str, port: int, protocol: str = "tcp") -> str:
    return _hint("allow: [", _destination(host, port, protocol), "]")


def _literal(host: str) -> Address | None:
    """The address that ``host`` is a literal of, with or without brackets."""
    if not host or (":" not in host and not host[-1].isdigit()):
        return None
    try:
        return parse_address(host[1:-1] if host[0] == "[" and host[-1] == "]" and ":" in host else host)
    except Malformed:
        return None


class Decider:
    """A policy, indexed.

    Args:
        policy: the rules.
        own_addresses: addresses of this machine's interfaces; judged as private addresses.
    """

    def __init__(self, policy: Policy, own_addresses: Iterable[Address] = ()) -> None:
        self.policy = policy
        self._own = frozenset(own_addresses)
        self._allow = _Index(policy.allow)
        self._deny = _Index(policy.deny)
        self._loopback = [rule for rule in self._allow.hosts.get(HOST_INTERNAL, ()) if rule.ports]
        self._named_denies = [rule for rule in policy.deny if rule.kind in ("host", "wildcard")]
        self._loopback_ports = {rule.inside: rule for rule in policy.connect}
        self._held: frozenset[tuple[str, int]] = frozenset()  # where secrets go: each request is looked at
        self._held_below: frozenset[tuple[str, int]] = frozenset()  # the same for wildcards
        if policy.secrets or policy.masks:
            from .grammar import destinations, secret_destinations

            rows = [row for rule in policy.secrets for row in secret_destinations(rule)]
            rows += [row for mask in policy.masks for row in destinations(mask.to, wildcards=True)]
            self._held = frozenset((host, port) for _scheme, host, port, _path in rows if host[0] != "*")
            self._held_below = frozenset((host[2:], port) for _scheme, host, port, _path in rows if host[0] == "*")
        self._counts = any(rule.budget is not None for rule in policy.allow)
        self._answers = {id(rule): Allow(rule, "name allowed") for rule in policy.allow}
        self._paths: dict[str, list[tuple[PathRule, Pattern]]] = {}
        self._matchers: dict[str, Callable[[str], bool]] = {}
        self._covering: Covering | None = None

    def decide(self, access: Access) -> Verdict:
        """May this be done?  The only place where this is answered."""
        if isinstance(access, NameQuery):
            return self._name(access)
        if isinstance(access, Connect):
            return self._connect(access)
        if isinstance(access, HttpRequest):
            return self._request(access)
        if isinstance(access, PathAccess):
            return self._path(access)
        if isinstance(access, SocketAccess):
            return self._socket(access)
        raise TypeError(f"not an access: {type(access).__name__}")

    # ------------------------------------------------------------ names

    def _allowing(self, name: str) -> list[HostRule]:
        """Allow rules for a canonical name; some names are never opened by a wildcard, or without a port."""
        if name == HOST_INTERNAL:
            return self._loopback
        if name in METADATA_NAMES:
            return self._allow.hosts.get(name, [])
        return self._allow.named(name)

    def _name(self, access: NameQuery) -> Verdict:
        try:
            name = canonical_host(access.name)
        except Malformed:
            return Deny(None, reasons.NAME_MALFORMED)
        for rule in self._deny.named(name):
            if not rule.ports and rule.http is None:
                return Deny(rule, reasons.DENIED_BY_RULE)
        rules = self._allowing(name)
        if rules:
            answer = self._answers[id(rules[0])]
        elif name == HOST_INTERNAL and self._loopback_ports:
            answer = Allow(next(iter(self._loopback_ports.values())), "name allowed")
        elif name in METADATA_NAMES:
            return Deny(None, reasons.METADATA_ADDRESS)
        else:
            # The port is not known yet; 443 is the narrowest line that helps the usual client.
            hint = _allow_hint(name, 443) if access.type in ("A", "AAAA") else ""
            return Deny(None, reasons.NAME_NOT_ALLOWED, hint)
        if access.type not in ("A", "AAAA"):
            return Deny(None, reasons.QUERY_TYPE_NOT_ANSWERED)
        return answer

    # ------------------------------------------------------------ connections

    def _connect(self, access: Connect) -> Verdict:
        port, protocol = access.port, access.protocol
        if not 0 < port < 65536 or protocol not in ("tcp", "udp"):
            return Deny(None, reasons.PORT_NOT_ALLOWED)
        literal = _literal(access.host)
        if not access.host or literal is not None:
            try:
                address = parse_address(access.address) if access.address else literal
            except Malformed:
                address = None
            if address is None or (literal is not None and address != literal):
                return Deny(None, reasons.ADDRESS_NOT_ALLOWED)
            return self._connect_literal(address, port, protocol)
        try:
            name = canonical_host(access.host)
        except Malformed:
            return Deny(None, reasons.NAME_MALFORMED)
        verdict = self._connect_name(name, port, protocol)
        if not access.address or isinstance(verdict, Deny):
            return verdict
        refusal = self._below_name(name, access.address, port, protocol)
        return refusal or verdict

    def _connect_name(self, name: str, port: int, protocol: str) -> Allow | Deny:
        inspect = (name, port) in self._held
        if self._held_below:
            inspect = inspect or any((suffix, port) in self._held_below for suffix in wildcard_suffixes(name))
        for rule in self._deny.named(name):
            if _refuses(rule, port, protocol):
                if rule.http is None:
                    return Deny(rule, reasons.DENIED_BY_RULE)
                inspect = True
        named = self._allowing(name)
        admitting = [rule for rule in named if _admits(rule, port, protocol)]
        if not admitting and name == HOST_INTERNAL and protocol == "tcp" and port in self._loopback_ports:
            return Allow(self._loopback_ports[port], "port of the host's loopback", inspect, raw=True)
        if name in METADATA_NAMES and not named:
            return Deny(None, reasons.METADATA_ADDRESS)
        if not admitting:
            reason = reasons.PORT_NOT_ALLOWED if named else reasons.NAME_NOT_ALLOWED
            return Deny(None, reason, _allow_hint(name, port, protocol))
        constrained = _constraints(admitting, port)
        rule = (constrained or admitting)[0]
        inspect = inspect or bool(constrained)
        raw = self._raw(name, port, protocol, admitting)
        return Allow(rule, "name and port allowed", inspect, self._budgets(admitting), raw)

    def _raw(self, name: str, port: int, protocol: str, admitting: Sequence[HostRule]) -> bool:
        """May it begin with bytes of no known protocol?  Not where they could hide which name is meant.

        A port of the host's loopback is one service, and ``**`` means every name unless a deny names some.
        """
        if name == HOST_INTERNAL or any(rule.raw for rule in admitting):
            return True
        every = any(rule.kind == "any" for rule in admitting)
        return every and not any(_refuses(rule, port, protocol) for rule in self._named_denies)

    def _below_name(self, name: str, text: str, port: int, protocol: str) -> Deny | None:
        """The floor: is this resolved address one that a name may stand for?"""
        try:
            address = parse_address(text)
        except Malformed:
            return Deny(None, reasons.ADDRESS_NOT_ALLOWED)
        forms = judged_forms(*address)
        for form in forms:
            for rule in self._deny.addressed(form):
                # An HTTP constraint of a network cannot be applied to requests by name: it refuses.
                if _refuses(rule, port, protocol):
                    return Deny(rule, reasons.DENIED_BY_RULE)
        if name == HOST_INTERNAL:
            return None if address in _LOOPBACK else Deny(None, reasons.PRIVATE_ADDRESS)
        for form in forms:
            refusal = self._floor(form, port, protocol)
            if refusal is not None:
                return refusal
        return None

    def _class(self, address: Address) -> tuple[AddressClass, bool]:
        """What kind of address it is, and whether it leads to this machine from outside of it."""
        kind = address_class(*address)
        if address not in self._own or kind == "loopback":
            return kind, False
        return "private", True

    def _floor(self, form: Address, port: int, protocol: str) -> Deny | None:
        kind, own = self._class(form)
        if kind == "public":
            return None
        # What is counted or judged by request is so for connections to the literal only: it opens nothing here.
        rules = [
            rule
            for rule in self._allow.addressed(form)
            if _admits(rule, port, protocol) and not rule.constrained and rule.budget is None
        ]
        narrow = own or kind in ("link-local", "metadata")
        least = (_NARROW if narrow else WIDE)[form[0]]
        if any(rule.network is not None and rule.network.prefix >= least for rule in rules):
            return None
        return Deny(None, reasons.METADATA_ADDRESS if kind in ("link-local", "metadata") else reasons.PRIVATE_ADDRESS)

    def _allowing_literal(self, address: Address, port: int, protocol: str) -> list[HostRule]:
        """Allow rules for an address that was made for no name."""
        rules = self._allow.addressed(address)
        kind, own = self._class(address)
        if own or kind in ("link-local", "metadata"):
            narrow = _NARROW[address[0]]
            return [rule for rule in rules if rule.network is not None and rule.network.prefix >= narrow]
        if kind == "public" and not any(_refuses(rule, port, protocol) for rule in self._named_denies):
            return rules + self._allow.any
        return rules

    def _denying_literal(self, address: Address) -> list[HostRule]:
        return [rule for form in judged_forms(*address) for rule in self._deny.addressed(form)] + self._deny.any

    def _connect_literal(self, address: Address, port: int, protocol: str) -> Allow | Deny:
        inspect = bool(self._held) and (format_address(*address), port) in self._held
        for rule in self._denying_literal(address):
            if _refuses(rule, port, protocol):
                if rule.http is None:
                    return Deny(rule, reasons.DENIED_BY_RULE)
                inspect = True
        for form in judged_forms(*address)[1:]:  # an IPv4 address inside: it must pass on its own
            refusal = self._floor(form, port, protocol)
            if refusal is not None:
                return refusal
        allowing = self._allowing_literal(address, port, protocol)
        admitting = [rule for rule in allowing if _admits(rule, port, protocol)]
        if not admitting:
            if address_class(*address) in ("link-local", "metadata") and not allowing:
                return Deny(None, reasons.METADATA_ADDRESS)
            reason = reasons.PORT_NOT_ALLOWED if allowing else reasons.ADDRESS_NOT_ALLOWED
            return Deny(None, reason, _allow_hint(format_address(*address), port, protocol))
        constrained = _constraints(admitting, port)
        rule = (constrained or admitting)[0]
        return Allow(rule, "address and port allowed", inspect or bool(constrained), self._budgets(admitting))

    def _budgets(self, admitting: Sequence[HostRule]) -> tuple[HostRule, ...]:
        """Those whose budget what they admit counts against."""
        return tuple(rule for rule in admitting if rule.budget is not None) if self._counts else ()

    # ------------------------------------------------------------ requests

    def _request(self, access: HttpRequest) -> Verdict:
        port = access.port
        literal = _literal(access.host)
        if literal is not None:
            verdict = self._connect_literal(literal, port, "tcp")
            denies, allows = self._denying_literal(literal), self._allowing_literal(literal, port, "tcp")
            host = format_address(*literal)
        else:
            try:
                host = canonical_host(access.host)
            except Malformed:
                return Deny(None, reasons.NAME_MALFORMED)
            verdict = self._connect_name(host, port, "tcp")
            denies, allows = self._deny.named(host), self._allowing(host)
        refusal = self._refuse_request(access, denies)
        if isinstance(verdict, Deny):
            # The hint would open the connection; where that does not let the request through, it is none.
            return verdict if refusal is None else verdict.replace(hint="")
        return refusal or self._admit_request(access, host, allows, verdict)

    def _refuse_request(self, access: HttpRequest, denies: Sequence[HostRule]) -> Deny | None:
        """The refusal of a request that no allow rule can admit."""
        method, path = access.method, access.path
        if not method or not _METHOD_BYTES.issuperset(method) or not _is_canonical(path):
            return Deny(None, reasons.REQUEST_MALFORMED)
        forms: frozenset[str] = frozenset()
        for rule in denies:
            if rule.http is not None and _refuses(rule, access.port, "tcp"):
                try:
                    forms = forms or _read_as(path)
                    for item in rule.http:
                        if (not item.methods or method in item.methods) and self._touches(item, path, forms):
                            return Deny(rule, reasons.DENIED_BY_RULE)
                except Malformed:
                    return Deny(rule, reasons.REQUEST_MALFORMED)
        return None

    def _touches(self, item: HttpRule, path: str, forms: frozenset[str]) -> bool:
        """Could a server find what a deny names at ``path``?  ``forms``: the path as servers may read it."""
        if self._covers(item, path):
            return True
        for pattern in item.paths:
            key = f"~{pattern}"  # no pattern begins like this
            matcher = self._matchers.get(key)
            if matcher is None:
                end = END if pattern[-1:] == END else ""
                matcher = self._matchers[key] = path_matcher(_folded(pattern.removesuffix(end)) + end)
            if any(map(matcher, forms)):
                return True
        return False

    def _admit_request(self, access: HttpRequest, host: str, allows: Sequence[HostRule], connect: Verdict) -> Verdict:
        method, path, port = access.method, access.path, access.port
        path_seen = False
        admitting: list[HostRule] = []
        for rule in allows:
            if not _admits(rule, port, "tcp") or (rule.scheme and rule.scheme != access.scheme):
                continue
            for item in (_EVERY,) if rule.http is None else rule.http:
                if self._covers(item, path) and (item.paths or SLASH not in path):
                    path_seen = True
                    if method in item.methods or not (item.methods or method in _UNASKED_METHODS):
                        admitting.append(rule)
                        break
            if admitting and not self._counts:
                break
        if admitting:
            reason = "every request is allowed" if admitting[0].http is None else "method and path allowed"
            return Allow(admitting[0], reason, True, self._budgets(admitting))
        encoded = SLASH in path  # one segment to some servers, two to others: a rule must spell it
        unasked = encoded or method in _UNASKED_METHODS
        if isinstance(connect, Allow) and not isinstance(connect.rule, HostRule) and not unasked:
            return Allow(connect.rule, "every request is allowed", True)  # ports: connect
        reason = reasons.METHOD_NOT_ALLOWED if path_seen else reasons.PATH_NOT_ALLOWED
        default = 443 if access.scheme == "https" else 80
        authority = _destination(host, port, "tcp") if port != default else f"[{host}]" if ":" in host else host
        url = f"{access.scheme}://{authority}{path}"
        # A star in a rule is a wildcard: no line would allow just this path.
        hint = "" if "*" in path else f"allow: [{{dest: {_quoted(url)}, http: [{{methods: [{_quoted(method)}]}}]}}]"
        if encoded and not path_seen:
            return Deny(None, reasons.REQUEST_MALFORMED, f"path: {ENCODED_SLASH}{hint and '; ' + hint}")
        return Deny(None, reason, hint)

    def _covers(self, item: HttpRule, path: str) -> bool:
        if not item.paths:
            return True
        for pattern in item.paths:
            matcher = self._matchers.get(pattern)
            if matcher is None:
                matcher = self._matchers[pattern] = path_matcher(pattern)
            if matcher(path):
                return True
        return False

    # ------------------------------------------------------------ files and sockets

    def _path(self, access: PathAccess) -> Verdict:
        path = access.path
        if self.policy.file_rules is not None:
            return self._host_file(path, access)
        if path.startswith("/"):
            return self._outside(path, access)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in path:
            return Deny(None, reasons.NOT_IN_THE_VIEW)
        return self._in_workspace(parts, access) or Allow(None, "in the workspace")

    def _in_workspace(self, parts: list[str], access: PathAccess) -> Deny | None:
        """What ``ignore`` and ``readonly`` say about a path relative to the workspace."""
        directory = access.directory or access.path.endswith("/")
        if not self._paths:
            from .globs import Pattern  # the gateway is asked for no file

            for effect in ("hide", "readonly"):
                rules = [rule for rule in reversed(self.policy.paths) if rule.effect == effect]
                self._paths[effect] = [(rule, Pattern(rule.text)) for rule in rules]
        hidden = self._match_path("hide", parts, directory)
        if hidden is not None:
            return Deny(hidden, reasons.HIDDEN)
        if access.operation == "write":
            fixed = self._match_path("readonly", parts, directory)
            if fixed is not None:
                return Deny(fixed, reasons.READ_ONLY)
        return None

    def _host_file(self, path: str, access: PathAccess) -> Verdict:
        """A path of the host's tree, under ``files``."""
        from .files import Covering, components

        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in path:
            return Deny(None, reasons.NOT_IN_THE_VIEW)
        if self._covering is None:
            self._covering = Covering(self.policy.file_rules or ())
        whole = path if path.startswith("/") else f"{self.policy.file_base}/{path}"
        read, write, rule = self._covering.access(whole)
        if not read:
            return Deny(rule, reasons.HIDDEN)
        if access.operation == "write" and not write:
            return Deny(rule, reasons.READ_ONLY, _hint("files: {allow_write: [", whole, "]}"))
        base = components(self.policy.file_base)
        whole_parts = components(whole)
        if self.policy.paths and len(whole_parts) > len(base) and whole_parts[: len(base)] == base:
            refusal = self._in_workspace(whole_parts[len(base) :], access)
            if refusal is not None:
                return refusal
        return Allow(rule, "file rules")

    def _match_path(self, effect: str, parts: list[str], directory: bool) -> PathRule | None:
        """The rule that decides for the path or for the first of its parents that a rule matches."""
        for depth, name in enumerate(parts, 1):
            relpath = "/".join(parts[:depth])
            is_dir = directory or depth < len(parts)
            for rule, pattern in self._paths[effect]:  # the last one written comes first
                if pattern.matches(name, relpath, is_dir):
                    if not pattern.negated:
                        return rule
                    break
        return None

    def _outside(self, path: str, access: PathAccess) -> Verdict:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        clean = "/" + "/".join(parts)
        if ".." in parts or "\0" in path:
            return Deny(None, reasons.NOT_IN_THE_VIEW)
        covering: list[tuple[int, MountRule]] = []
        for rule in self.policy.mounts:
            root = (rule.target or rule.path).rstrip("/")
            if root.startswith("/") and (clean == root or clean.startswith(f"{root}/")):
                covering.append((len(root), rule))
        if not covering:
            if not parts:  # no rule opens the root directory: it would open everything
                return Deny(None, reasons.NOT_IN_THE_VIEW)
            # Of a git directory a part is of no use, and what git makes there does not exist.
            whole = clean[: clean.index("/.git/") + 5] if "/.git/" in clean else clean
            return Deny(None, reasons.NOT_IN_THE_VIEW, _hint("mounts: [{path: ", whole, f", mode: {_mode(access)}}}]"))
        rule = max(reversed(covering), key=lambda each: each[0])[1]  # the innermost; of equals, the last one mounted
        if access.operation == "write" and rule.mode != "rw":
            return Deny(None, reasons.READ_ONLY, _hint("mounts: [{path: ", rule.path, ", mode: rw}]"))
        return Allow(rule, "mounted")

    def _socket(self, access: SocketAccess) -> Verdict:
        for rule in self.policy.unix_sockets:
            if rule.path == access.path:
                if not access.operation:
                    return Allow(rule, "socket allowed")
                if admits_operation(rule, access.operation, access.names):
                    return Allow(rule, "operation allowed")
                wanted = line_for(rule, access.operation, access.names)
                hint = _hint("allow: [", wanted, "]") if wanted else ""
                return Deny(None, reasons.OPERATION_NOT_ALLOWED, hint)
        if self.policy.open_sockets and not access.operation:
            return Allow(None, "every socket is open")
        return Deny(None, reasons.SOCKET_NOT_ALLOWED, _hint("unix_sockets: [", access.path.replace("$", "$$"), "]"))


def _mode(access: PathAccess) -> str:
    return "rw" if access.operation == "write" else "ro"


def _is_canonical(path: str) -> bool:
    try:
        return canonical_path(path, slashes=True) == path
    except Malformed:
        return False


def _folded(path: str) -> str:
    """Decoded as often as it changes (a path is refused that holds "%25" twice), and without letter case.

    What is encoded as a slash stays so: it is one only where a rule spells it.

    Raises:
        Malformed: a character has more marks than any language (UAX #15, "Stream-Safe Text Format"); to put them in
            order costs the square of their number.
    """
    from urllib.parse import unquote

    parts = path.split(SLASH)
    for _ in range(_MOST_DECODED):
        parts = [unquote(part, errors="surrogateescape") for part in parts]
    if not all(map(str.isascii, parts)):
        import unicodedata

        marks = 0
        for char in "".join(parts):
            marks = marks + 1 if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) else 0
            if marks > _MOST_MARKS:
                raise Malformed("it has too many marks on one character")
        parts = [unicodedata.normalize("NFKC", part) for part in parts]
    return SLASH.join(part.upper().casefold() for part in parts)  # dotless i is "I" in upper case


def _read_as(path: str) -> frozenset[str]:
    """The path as servers may read it that decode again, fold letter case, or leave out what is no part of a name.

    A deny holds for all of them: parameters of a segment (RFC 3986 section 3.3), a query or fragment that was encoded,
    dots at the end of a segment, blanks at both, the stream of a file (Windows), an empty segment, an encoded slash,
    characters that are not seen (of the categories Cc and Cf of Unicode).
    """
    whole = _folded(path)
    if not whole.isprintable():
        import unicodedata

        whole = "".join(char for char in whole if unicodedata.category(char) not in ("Cc", "Cf"))
    forms = {path, whole}
    forms |= {form.replace(SLASH, "/") for form in forms}
    for mark in "?#":
        forms |= {form.partition(mark)[0] for form in forms}
    forms |= {"/".join(segment.partition(";")[0] for segment in form.split("/")) for form in forms}
    forms |= {
        "/".join(segment.partition("::")[0].rstrip(". ").lstrip(" ") for segment in form.split("/")) for form in forms
    }
    return frozenset("/" + "/".join(filter(None, form.split("/"))) for form in forms)


_deciders: dict[int, Decider] = {}
_MOST_DECIDERS = 8


def decide(policy: Policy, access: Access) -> Verdict:
    """May this be done under this policy?

    The index of the last few policies is kept; a caller that asks often about one policy keeps a ``Decider``.
    """
    decider = _deciders.get(id(policy))
    if decider is None or decider.policy is not policy:
        if len(_deciders) >= _MOST_DECIDERS:
            _deciders.clear()
        decider = _deciders[id(policy)] = Decider(policy)
    return decider.decide(access)
