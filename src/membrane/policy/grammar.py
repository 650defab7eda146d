"""The grammar of single values: destinations, ports, sizes, durations, mounts, variables.

Theory of operation
-------------------
Each function reads one text completely or raises ``Malformed`` with the cause; the caller that knows where the text was
written adds the place.  Files and command-line options share these functions, so ``-a X`` and ``allow: [X]`` are the
same rule.
"""

from __future__ import annotations

from .hosts import (
    HOST_INTERNAL,
    address_class,
    canonical_host,
    format_address,
    is_public_suffix,
    parse_address,
    parse_network,
)
from .model import (
    IMAGE_PATHS,
    MACHINES,
    EnvRule,
    HostRule,
    HttpRule,
    Malformed,
    MountRule,
    Network,
    Origin,
    PortRange,
    PortRule,
    RuleBudget,
    SecretRule,
)
from .url_paths import END, canonical_path_pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from .model import HostKind, Protocol

_DEFAULT_PORTS = {"http": 80, "https": 443}
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")  # RFC 9110 section 5.6.2, upper case
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATIONS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
PERIODS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_LARGEST = (1 << 63) - 1
_IN_REPOSITORY = dict.fromkeys(map(ord, "-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
MOST_IN_A_PERIOD = 100_000  # of a rate: the time of each is remembered


class Destination:
    """What a rule's text names: a kind, a host or a network, and perhaps ports, a scheme and a path."""

    __slots__ = ("host", "kind", "network", "path", "ports", "raw", "scheme")

    def __init__(
        self,
        kind: HostKind,
        host: str = "",
        network: Network | None = None,
        ports: tuple[PortRange, ...] = (),
        scheme: str = "",
        path: str = "",
    ) -> None:
        self.kind, self.host, self.network = kind, host, network
        self.ports, self.scheme, self.path = ports, scheme, path
        self.raw = False  # written as tcp://HOST:PORT


def parse_destination(text: str) -> Destination:
    """Read ``**``, CIDR, address, URL, ``*.name`` or ``host``, each but CIDR with an optional ``:port``.

    ``tcp://HOST:PORT`` is ``HOST:PORT`` with any protocol.

    Raises:
        Malformed: nothing of these, or a wildcard below a public suffix.
    """
    if not text:
        raise Malformed("it is empty")
    if "://" in text:
        return _parse_url(text)
    left, slash, _ = text.partition("/")
    if _is_address(left if slash else text):
        return Destination("network", network=parse_network(text))
    host, port = _split_port(text)
    kind, name, network = _parse_host(host)
    return Destination(kind, name, network, (parse_port(port),) if port else ())


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except Malformed:
        return False
    return True


def _split_port(text: str) -> tuple[str, str]:
    """``host:port`` or ``[address]:port``; the port is empty when none is given."""
    if text.startswith("["):
        literal, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in literal or (rest and (rest[0] != ":" or len(rest) == 1)):
            raise Malformed("brackets hold an IPv6 address, then perhaps a port: [2001:db8::1]:443")
        parse_address(literal)
        return literal, rest[1:]
    host, colon, port = text.partition(":")
    if ":" in port:
        raise Malformed("it is not an address; with a port, an IPv6 address is written in brackets: [2001:db8::1]:443")
    if colon and not port:
        raise Malformed("the port is missing")
    if "/" in host:
        raise Malformed("a path needs a scheme: https://HOST/PATH")
    return host, port


def _parse_host(text: str) -> tuple[HostKind, str, Network | None]:
    if text in ("**", "*"):
        return "any", "", None
    if _is_address(text):
        return "network", "", parse_network(text)
    if "*" not in text:
        return "host", canonical_host(text), None
    if not text.startswith("*.") or "*" in text[2:]:
        raise Malformed('a wildcard is "*." before a name, or "**" for every host')
    suffix = canonical_host(text[2:])
    if is_public_suffix(suffix):
        raise Malformed(f'"{suffix}" is a public suffix: everybody can register names below it')
    if suffix == HOST_INTERNAL:
        raise Malformed(f"{HOST_INTERNAL} has no subdomains")
    return "wildcard", suffix, None


def _parse_url(text: str) -> Destination:
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme == "tcp":
        to = Destination("any") if "://" in rest else parse_destination(rest)
        if to.scheme or to.path or not to.ports or to.ports[0].protocol != "tcp":
            raise Malformed("tcp:// is followed by HOST:PORT and nothing else")
        to.raw = True
        return to
    if scheme not in _DEFAULT_PORTS:
        raise Malformed(f"the scheme {scheme!r} is not http, https or tcp; for another protocol write HOST:PORT")
    for char, name in (("\\", "a backslash"), ("?", "a query"), ("#", "a fragment")):
        if char in (rest.removesuffix(END) if "/" in rest else rest):
            raise Malformed(f"a URL rule cannot have {name}")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise Malformed("a URL rule cannot have a user name")
    host, port = _split_port(authority)
    kind, name, network = _parse_host(host)
    if kind == "any":
        raise Malformed('a URL rule names a host; for every host write dest: "**" with ports and http')
    ports = parse_port(port) if port else PortRange("tcp", _DEFAULT_PORTS[scheme], _DEFAULT_PORTS[scheme])
    if ports.protocol != "tcp" or ports.first != ports.last:
        raise Malformed("a URL has one TCP port")
    return Destination(kind, name, network, (ports,), scheme, canonical_path_pattern(slash + path) if slash else "/")


def parse_port(text: str) -> PortRange:
    """Read ``N``, ``N-M``, each with an optional ``/tcp`` or ``/udp``; 1..65535.

    Raises:
        Malformed: with the cause.
    """
    numbers, slash, name = text.partition("/")
    if slash and name not in ("tcp", "udp"):
        raise Malformed(f"the protocol of port {text!r} is not tcp or udp")
    protocol: Protocol = "udp" if name == "udp" else "tcp"
    first, dash, last = numbers.partition("-")
    low = parse_port_number(first)
    high = parse_port_number(last) if dash else low
    if high < low:
        raise Malformed(f"the port range {numbers} is empty")
    return PortRange(protocol, low, high)


def parse_port_number(text: str) -> int:
    """Read one port, 1..65535.

    Raises:
        Malformed: with the cause.
    """
    if not (text.isascii() and text.isdigit()) or text[0] == "0" or len(text) > 5 or int(text) > 65535:
        raise Malformed(f"{text!r} is not a port; ports are 1 to 65535")
    return int(text)


def parse_method(text: str) -> str:
    """An HTTP method in upper case (RFC 9110 section 9.1: a token).

    Raises:
        Malformed: not a token.
    """
    method = text.upper()
    if not method or not _TOKEN.issuperset(method):
        raise Malformed(f"{text!r} is not an HTTP method")
    return method


def join_path(base: str, text: str) -> str:
    """A path of an ``http`` item: absolute, or relative to the path of its URL.

    Raises:
        Malformed: not a path that every server reads alike.
    """
    if not text:
        raise Malformed("the path is empty")
    if base[-1:] == END and not text.startswith("/"):
        raise Malformed(f'the URL ends in "{END}": nothing is below it')
    return canonical_path_pattern(text if text.startswith("/") else f"{base.rstrip('/')}/{text}")


def host_rule(
    text: str,
    origin: Origin,
    *,
    deny: bool = False,
    ports: tuple[PortRange, ...] = (),
    http: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] | None = None,
    insecure: bool = False,
    inspect: bool = False,
    budget: RuleBudget | None = None,
    raw: bool = False,
) -> HostRule:
    """Make the rule of one ``allow`` or ``deny`` entry.

    Args:
        text: the destination as written.
        ports: those of the entry's ``ports`` key.
        http: methods and paths (relative or absolute) of each ``http`` item.
        budget: what may go through the entry.
        raw: a connection by name may begin with bytes of no known protocol.

    Raises:
        Malformed: with the cause.
    """
    to = parse_destination(text)
    if to.ports and ports and not to.scheme:
        raise Malformed("the port is given twice: after the host, and in ports")
    every = to.ports + ports
    constraint: tuple[HttpRule, ...] | None = None
    if http is not None:
        constraint = tuple(
            HttpRule(
                tuple(parse_method(method) for method in methods),
                tuple(join_path(to.path or "/", path) for path in paths) or ((to.path,) if to.path > "/" else ()),
            )
            for methods, paths in http
        )
    elif to.path > "/":
        constraint = (HttpRule((), (to.path,)),)
    raw = raw or to.raw
    rule = HostRule(
        *(text, origin, to.kind, to.host, to.network, every, to.scheme, constraint, insecure, inspect, budget, raw)
    )
    if raw and (rule.constrained or rule.scheme):
        raise Malformed("what is judged by request is HTTP: it cannot be raw as well")
    if raw and deny:
        raise Malformed("a deny entry holds for every protocol")
    if rule.constrained and any(port.protocol == "udp" for port in every):
        raise Malformed("HTTP rules are for TCP; a UDP port needs an entry of its own")
    if to.host == HOST_INTERNAL and not every and not deny:
        raise Malformed(f"{HOST_INTERNAL} needs ports, such as {HOST_INTERNAL}:5432")
    return rule


# ---------------------------------------------------------------- numbers


def _number_with_unit(text: str, units: Mapping[str, int], what: str, example: str) -> int:
    digits = text.rstrip("".join(units) or "")
    factor = units.get(text[len(digits) :])
    if factor is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise Malformed(f"{text!r} is not {what}; expected a number such as {example}")
    if int(digits) * factor > _LARGEST:
        raise Malformed(f"{text!r} is too large")
    return int(digits) * factor


def parse_size(text: str) -> int:
    """Bytes: a number with an optional K, M, G or T (powers of 1024), also as KiB or KB.

    Raises:
        Malformed: with the cause.
    """
    short = text.removesuffix("B").removesuffix("i") if text.endswith("B") else text
    try:
        return _number_with_unit(short.upper(), _SIZES, "a size", "512M")
    except Malformed as error:  # about what was written, not about what is left of it
        raise Malformed(str(error).replace(repr(short.upper()), repr(text), 1)) from None


def parse_duration(text: str) -> int:
    """Seconds: a number with an optional s, m, h or d.

    Raises:
        Malformed: with the cause.
    """
    return _number_with_unit(text, _DURATIONS, "a duration", "10m")


def parse_count(text: str) -> int:
    """A number without a unit.

    Raises:
        Malformed: with the cause.
    """
    return _number_with_unit(text, {"": 1}, "a count", "256")


def parse_rate(text: str) -> tuple[int, int]:
    """``NUMBER/PERIOD``: so many in any second (``s``), minute (``min``), hour (``h``) or day (``d``).

    Returns:
        The number and the period in seconds.

    Raises:
        Malformed: with the cause.
    """
    number, slash, period = text.partition("/")
    seconds = PERIODS.get(period)
    if not slash or seconds is None:
        raise Malformed(f"{text!r} is not a rate; expected a number and a period (s, min, h, d), such as 60/min")
    count = parse_count(number)
    if not 0 < count <= MOST_IN_A_PERIOD:
        raise Malformed(f"{number} is not a number of requests from 1 to {MOST_IN_A_PERIOD}")
    return count, seconds


def parse_budget(upload: str = "", requests: str = "", rate: str = "") -> RuleBudget:
    """The ``budget`` of an ``allow`` entry; an empty text is a key that is not there.

    Raises:
        Malformed: with the cause.
    """
    size = parse_size(upload) if upload else 0
    count = parse_count(requests) if requests else 0
    if (upload and not size) or (requests and not count):
        raise Malformed("a budget of 0 admits nothing; remove the entry instead")
    number, period = parse_rate(rate) if rate else (0, 0)
    return RuleBudget(size, count, number, period)


LEAST_MEMORY = 1 << 20  # bytes: the dynamic linker and the C library need a quarter of it
LEAST_FILES = 16  # a shell keeps its own from 10 on


def _parse_memory(text: str) -> int:
    if 0 < (size := parse_size(text)) < LEAST_MEMORY:
        raise Malformed(f"no program starts with {text!r}; at least 1M, or 0 for no limit")
    return size


def _parse_files(text: str) -> int:
    if 0 < (count := parse_count(text)) < LEAST_FILES:
        raise Malformed(f"no program starts with {text} open files; at least {LEAST_FILES}, or 0 for no limit")
    return count


LIMITS = {
    "memory": _parse_memory,
    "pids": parse_count,
    "cpu": parse_duration,
    "time": parse_duration,
    "files": _parse_files,
    "disk": parse_size,
    "upload": parse_size,
}


def parse_limit(text: str) -> tuple[str, int]:
    """Read ``--limit KEY=VALUE``.

    Raises:
        Malformed: with the cause.
    """
    key, equals, value = text.partition("=")
    if key not in LIMITS:
        from .document import closest

        raise Malformed(f"unknown limit {key!r}; known are {', '.join(LIMITS)}{closest(key, LIMITS)}")
    if not equals:
        raise Malformed(f"the limit {key} has no value")
    return key, LIMITS[key](value)


# ---------------------------------------------------------------- options of one word


def check_repository(text: str, shape: str) -> None:
    """Refuse what is not the path of one repository; ``shape`` is ``owner/repo``, or has ``...`` for further groups.

    Raises:
        Malformed: with the cause.
    """
    parts = text.split("/")
    plain = all(part.strip(".") and not part.translate(_IN_REPOSITORY) for part in parts)
    if not plain or len(parts) < 2 or (len(parts) > 2 and "..." not in shape):
        raise Malformed(f"{text!r} is not a repository; expected {shape}")
    if text.endswith(".git"):
        raise Malformed(f"{text!r} is a repository's URL; write {text.removesuffix('.git')}")


def parse_variable(name: str, *, pattern: bool = False) -> str:
    """The name of an environment variable; with ``pattern`` it may end in ``*``.

    Raises:
        Malformed: with the cause.
    """
    bare = name[:-1] if pattern and name.endswith("*") else name
    if not (bare.isascii() and bare.replace("_", "a").isalnum()) or bare[0].isdigit():
        raise Malformed(f"{name!r} is not the name of an environment variable")
    return name


def parse_env(text: str, origin: Origin) -> EnvRule:
    """Read ``--env NAME`` (pass) or ``--env NAME=VALUE`` (set).

    Raises:
        Malformed: with the cause.
    """
    name, equals, value = text.partition("=")
    if "\0" in value:
        raise Malformed(f"the value of {name} contains a NUL")
    return EnvRule(parse_variable(name, pattern=not equals), value if equals else None, origin)


def expand_home(path: str, home: str) -> str:
    """Replace a leading ``~`` by the caller's home directory.

    Raises:
        Malformed: the path is empty or holds a NUL, another user's home, or the home is not known.
    """
    if not path or "\0" in path:
        raise Malformed("a path is empty" if not path else "a path contains a NUL")
    if path[0] != "~":
        return path
    if path != "~" and path[1] != "/":
        raise Malformed(f"{path!r} names another user's home; write it out")
    if not home:
        raise Malformed(f"{path!r} cannot be expanded: HOME is not set")
    return home + path[1:]


def expand_variables(text: str, environ: Mapping[str, str], used: dict[str, str | None]) -> str:
    """Replace ``$NAME`` and ``${NAME}`` from ``environ``; ``$$`` is a dollar.  ``used`` collects what was looked up.

    Raises:
        Malformed: a variable that is not set (an empty value would change the meaning in silence), or a lone dollar.
    """
    out, rest = [], text
    while "$" in rest:
        before, _, rest = rest.partition("$")
        out.append(before)
        if rest.startswith("$"):
            out.append("$")
            rest = rest[1:]
            continue
        if rest.startswith("{"):
            name, brace, rest = rest[1:].partition("}")
            if not brace:
                raise Malformed('"${" is not closed')
        else:
            length = 0
            while length < len(rest) and rest[length].isascii() and (rest[length].isalnum() or rest[length] == "_"):
                length += 1
            name, rest = rest[:length], rest[length:]
        if not name:
            raise Malformed('a "$" without a name; write "$$" for a dollar')
        parse_variable(name)
        value = used[name] = environ.get(name)
        if value is None:
            raise Malformed(f"the variable {name} is not set")
        out.append(value)
    return "".join([*out, rest])


def check_pattern(text: str, home: str) -> None:
    """Refuse a pattern of ``ignore`` or ``readonly`` that was meant as a path of the machine and would match nothing.

    Raises:
        Malformed: with the cause.
    """
    bare = text.removeprefix("!")
    if bare == "~" or bare.startswith("~/") or (home not in ("", "/") and f"{bare}/".startswith(f"{home}/")):
        raise Malformed(
            "it names a path of this machine, and patterns are about the workspace (/x is x at its top); the home is "
            "not in the view, and with view: host, files: {deny_read: [PATH]} hides it"
        )


def is_own_loopback(rule: HostRule) -> bool:
    """Does the rule name what is the sandbox's own loopback inside, and so opens nothing?"""
    if rule.network is not None:
        version, first = rule.network.version, rule.network.base
        last = first | (1 << ((32 if version == 4 else 128) - rule.network.prefix)) - 1
        return all(address_class(version, each) == "loopback" for each in (first, last))
    return rule.kind == "host" and (rule.host == "localhost" or rule.host.endswith(".localhost"))


def mount_rule(path: str, target: str, mode: Literal["ro", "rw"], origin: Origin, home: str) -> MountRule:
    """A further tree; ``path`` is absolute, below ``~``, or relative to the workspace.

    Raises:
        Malformed: with the cause.
    """
    target = expand_home(target, home) if target else ""
    if target and (target[0] != "/" or ".." in target.split("/")):
        raise Malformed(f"the target {target!r} is not an absolute path")
    return MountRule(expand_home(path, home), mode, origin, target=target)


def parse_mount(text: str, origin: Origin, home: str) -> MountRule:
    """Read ``--mount SRC[:DST][:ro|rw]``; read-only unless it says ``rw``.

    Raises:
        Malformed: with the cause.
    """
    parts = text.split(":")
    mode: Literal["ro", "rw"] = "ro"
    if len(parts) > 1 and parts[-1] in ("ro", "rw"):
        mode = "rw" if parts.pop() == "rw" else "ro"
    if len(parts) > 2:
        raise Malformed("expected SRC[:DST][:ro|rw]; a path with a colon goes into a file, under mounts")
    if len(parts) == 2 and not parts[1]:
        raise Malformed("the target is empty")
    return mount_rule(parts[0], parts[1] if len(parts) == 2 else "", mode, origin, home)


def parse_port_pair(text: str, origin: Origin, *, expose: bool) -> PortRule:
    """Read ``SERVICE[:APPEARS]``: the port of the service, then the one under which the other side sees it.

    ``expose``: the service is inside; else it is on the host's loopback.

    Raises:
        Malformed: with the cause.
    """
    service, colon, appears = text.partition(":")
    one = parse_port_number(service)
    two = parse_port_number(appears) if colon else one
    return PortRule(inside=one if expose else two, outside=two if expose else one, origin=origin)


def parse_resolver(text: str) -> str:
    """Read ``ADDRESS`` or ``ADDRESS:PORT``, IPv6 with a port in brackets; return it in canonical form.

    Raises:
        Malformed: with the cause.
    """
    if _is_address(text):
        return format_address(*parse_address(text))
    literal, port = _split_port(text)
    if not _is_address(literal):
        raise Malformed("it is not an address; a resolver is given as ADDRESS or ADDRESS:PORT")
    version, value = parse_address(literal)
    shown = format_address(version, value)
    if not port:
        return shown
    return f"[{shown}]:{parse_port_number(port)}" if version == 6 else f"{shown}:{parse_port_number(port)}"


NO_IMAGE = "host:"  # of --image: this machine's trees, whatever the files say
_ENGINES = ("docker-daemon", "podman")
_LONGEST_IMAGE = 1024


def parse_image(text: str) -> tuple[str, str]:
    """Read ``oci:DIR``, ``tar:FILE``, ``dockerfile:FILE``, ``docker-daemon:NAME``, ``podman:NAME`` or ``NAME``.

    NAME is ``[HOST[:PORT]/]PATH[:TAG][@sha256:DIGITS]`` (distribution-spec, "Pulling manifests"; the length of each
    part is the registry's to judge).

    Returns:
        The kind, empty for a name of a registry, and the rest.

    Raises:
        Malformed: with the cause.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind in IMAGE_PATHS:
        if not rest or "\0" in rest:
            raise Malformed(f"{kind}: needs a path")
        return kind, rest
    if colon and kind in _ENGINES:
        name = rest
    else:
        kind, name = "", text
    bare, at, digest = name.partition("@")
    digits = digest.removeprefix("sha256:")
    if at and (digits == digest or len(digits) != 64 or set(digits) - set("0123456789abcdef")):
        raise Malformed("what follows @ is not sha256: and 64 hexadecimal digits")
    path, mark, tag = bare.rpartition(":")
    if not mark or "/" in tag:
        path, tag = bare, ""
    host, *components = path.split("/")
    if components and ("." in host or ":" in host or host == "localhost"):
        host, mark, port = host.partition(":")
        if mark and not (port.isascii() and port.isdecimal()):
            raise Malformed(f"{port!r} is not a port")
        words = [*host.lower().split("."), *components]
    else:
        words = [host, *components]
    ends = "abcdefghijklmnopqrstuvwxyz0123456789"
    for word in words:
        if not word or set(word) - set(ends + "._-") or word[0] not in ends or word[-1] not in ends or ".." in word:
            raise Malformed("it is not the name of an image: NAME, NAME:TAG, HOST/NAME, oci:DIR, tar:FILE, podman:NAME")
    if bare.endswith(":") or set(tag.lower()) - set(ends + "._-") or tag[:1] in tuple(".-") or len(tag) > 128:
        raise Malformed(f"{tag!r} is not a tag")
    if len(text) > _LONGEST_IMAGE:
        raise Malformed(f"it is longer than {_LONGEST_IMAGE} characters")
    return kind, name


PLAIN_VARIANTS = {"arm64": "v8", "amd64": "v1"}  # that go without saying


def parse_platform(text: str) -> str:
    """Read ``linux/ARCH[/VARIANT]`` (OCI image-spec, image-index.md, "platform"), as images write it.

    Raises:
        Malformed: with the cause.
    """
    system, *words = text.lower().split("/")
    plain = all(word.isascii() and word.replace("_", "").isalnum() for word in words)
    if system != "linux" or not 1 <= len(words) <= 2 or not plain:
        raise Malformed("it is not linux/ARCH or linux/ARCH/VARIANT, such as linux/arm64")
    machine = MACHINES.get(words[0], words[0])
    more = [word for word in words[1:] if word != PLAIN_VARIANTS.get(machine)]
    return "/".join((system, machine, *more))


def parse_proxy(text: str) -> str:
    """Read ``http://HOST:PORT``, ``socks5://HOST:PORT`` or ``env``.

    Raises:
        Malformed: with the cause.
    """
    if text == "env":
        return text
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "socks5"):
        raise Malformed('expected http://HOST:PORT, socks5://HOST:PORT or "env"')
    if "@" in rest:
        raise Malformed('a password does not belong into a policy; set HTTPS_PROXY and write "env"')
    host, port = _split_port(rest.removesuffix("/"))
    if not port:
        raise Malformed("the port is missing")
    number = parse_port_number(port)
    kind, name, network = _parse_host(host)
    if kind == "network" and network is not None:
        name = format_address(network.version, network.base)
        name = f"[{name}]" if network.version == 6 else name
    elif kind != "host":
        raise Malformed("a proxy is one host")
    return f"{scheme}://{name}:{number}"


VALUE_SOURCES = "env:NAME, env, file:PATH, keyring:SERVICE/USER or {command: [PROGRAM, ARGUMENT]}"


def parse_secret_source(text: str, name: str) -> str:
    """Read ``env:NAME``, ``file:PATH`` or ``keyring:SERVICE/USER``; ``env`` alone is the variable of the same ``name``.

    Raises:
        Malformed: with the cause.
    """
    if text == "env":
        return f"env:{name}"
    kind, _, value = text.partition(":")
    if not value or kind not in ("env", "file", "keyring"):
        raise Malformed(f"expected {VALUE_SOURCES}")
    if kind == "env":
        parse_variable(value)
    if "\0" in value or (kind == "keyring" and "/" not in value):
        raise Malformed(f"{value!r} is not usable after {kind}:")
    return text


def secret_destinations(rule: SecretRule) -> tuple[tuple[str, str, int, str], ...]:
    """Where a secret may go: scheme, canonical host or address, port, path prefix.

    A host without a scheme is HTTPS, one without a port its usual one.

    Raises:
        Malformed: a destination is not one host.
    """
    return destinations(rule.to, wildcards=rule.header[0] == "*")


def destinations(texts: Iterable[str], *, wildcards: bool = False) -> tuple[tuple[str, str, int, str], ...]:
    """As ``secret_destinations``; with ``wildcards`` the host may be ``*.NAME``, which is returned as it is.

    Raises:
        Malformed: a destination is not one host.
    """
    found: list[tuple[str, str, int, str]] = []
    for text in texts:
        to = parse_destination(text)
        whole = {4: 32, 6: 128}
        if to.network is not None and to.network.prefix == whole[to.network.version]:
            host = format_address(to.network.version, to.network.base)
        elif to.kind == "host":
            host = to.host
        elif to.kind == "wildcard" and wildcards:
            host = f"*.{to.host}"
        else:
            raise Malformed(f"{text!r} is not one host; a secret goes to hosts that are named")
        scheme = to.scheme or "https"
        ports = [port for span in to.ports for port in range(span.first, span.last + 1)] or [_DEFAULT_PORTS[scheme]]
        found += [(scheme, host, port, to.path or "/") for port in ports]
    return tuple(found)


def parse_header(text: str) -> str:
    """Read ``NAME`` or ``NAME: TEMPLATE`` where ``{}`` stands for the secret; return the second form.

    ``*`` is any field that carries credentials, ``* NAME NAME`` those and these as well.

    Raises:
        Malformed: with the cause.
    """
    if text[:1] == "*":
        star, *names = text.lower().split()
        for each in (star[1:], *names) if star != "*" else names:
            if not _TOKEN.issuperset(each.upper()):
                raise Malformed(f"{each!r} is not a header name")
        if star != "*":
            raise Malformed('further header names come after "*" and a space')
        return " ".join((star, *names))
    name, colon, template = text.partition(":")
    template = template.strip() if colon else "{}"
    if not name or not _TOKEN.issuperset(name.upper()):
        raise Malformed(f"{name!r} is not a header name")
    if template.count("{}") != 1 or not (template.isascii() and template.isprintable()):
        raise Malformed('the template after ":" needs one "{}" for the secret')
    return f"{name.lower()}: {template}"


def parse_parameter(text: str) -> str:
    """Read the name of a query parameter that is a secret; return it with the ``?`` before it.

    Raises:
        Malformed: with the cause.
    """
    if not text or not text.replace("-", "").replace("_", "").replace(".", "").isalnum() or not text.isascii():
        raise Malformed(f"{text!r} is not a parameter name of letters, digits, '-', '_' and '.'")
    return f"?{text}"
