"""Entries of sandbox-runtime's ``allowedDomains`` and ``deniedDomains`` -> rules of a policy.

Theory of operation
-------------------
An entry is a domain, ``*.`` and a domain, ``localhost``, or an address, perhaps with a port; an IPv6 address is in
brackets.  It is read once, into the kind and the canonical name of a rule; what the grammar does not have is refused.
"""

from __future__ import annotations

from ..policy.hosts import HOST_INTERNAL, canonical_host, parse_address
from ..policy.literals import canonical_address
from ..policy.model import HostRule, Malformed, Network, PortRange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import HostKind, Origin

ENTIRE = 65535  # the last port


def parse_domain(text: str, *, deny: bool = False) -> tuple[HostKind, str, tuple[PortRange, ...]]:
    """One entry of ``allowedDomains`` or ``deniedDomains``: kind, canonical name or address, port.

    Raises:
        Malformed: the grammar of sandbox-runtime does not have it.
    """
    host, port = text, ""
    if text.startswith("["):
        literal, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and rest[0] != ":") or (rest and len(rest) == 1):
            raise Malformed("brackets hold an IPv6 address, then perhaps a port")
        host, port = literal, rest[1:]
        if ":" not in host or not canonical_address(host):
            raise Malformed("the brackets hold no IPv6 address")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not port:
            raise Malformed("the port is missing")
    elif ":" in text:
        raise Malformed("an IPv6 address is written in brackets")
    ports: tuple[PortRange, ...] = ()
    if port:
        if not (port.isascii() and port.isdigit()) or port[0] == "0" or int(port) > 65535:
            raise Malformed(f"{port!r} is not a port; ports are 1 to 65535")
        ports = (PortRange("tcp", int(port), int(port)),)
    if host == "*":
        if not deny:
            raise Malformed("a bare * is for deniedDomains only")
        return "any", "", ports
    if any(char in host for char in "/\\@%?#") or host != host.strip() or not host:
        raise Malformed("it has a scheme, a path, or nothing")
    if address := canonical_address(host):
        return "network", address, ports
    if host.startswith("*."):
        name = canonical_host(host[2:])
        if "." not in name or "*" in name:
            raise Malformed("a wildcard needs two labels below it: *.example.com")
        return "wildcard", name, ports
    if "*" in host:
        raise Malformed('a wildcard is "*." before a domain')
    if host.lower() == "localhost":
        return "host", "localhost", ports
    name = canonical_host(host)
    if "." not in name:
        raise Malformed("a name of one label is not a domain")
    return "host", name, ports


def _whole(address: str) -> Network:
    version, value = parse_address(address)
    return Network(version, value, 32 if version == 4 else 128)


def domain_rule(text: str, origin: Origin, *, deny: bool = False) -> HostRule:
    """The rule of one entry; ``localhost`` is the host's loopback, which is ``host.internal`` in a policy.

    Raises:
        Malformed: see ``parse_domain``.
    """
    kind, name, ports = parse_domain(text, deny=deny)
    if kind == "network":
        return HostRule(text, origin, kind, "", _whole(name), ports)
    if name == "localhost":
        return HostRule(text, origin, "host", HOST_INTERNAL, None, ports or (PortRange("tcp", 1, ENTIRE),))
    return HostRule(text, origin, kind, name, None, ports)
