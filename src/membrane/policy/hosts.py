"""Host names and addresses in one canonical form.

Theory of operation
-------------------
A rule and the traffic it is compared with go through the same canonicaliser, once; everything after that compares
canonical values.  What is not in canonical form and has no single meaning is refused with a ``Malformed`` error
whose text is the cause: nothing is guessed, because the program that reads it next may guess otherwise.

* hosts: IDNA2008 A-labels in lower case without the trailing dot (RFC 5890, UTS 46 non-transitional);
* addresses: ``(version, integer)``; IPv6 forms that carry an IPv4 address are judged as that address too.

What kind an address is says a table in code, first match first: IANA's registries and the metadata services of clouds.

``ipaddress``, ``idna`` and the public suffix list are imported where they are first needed.
"""

from __future__ import annotations

from .model import Malformed, Network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal, TypeAlias

    from publicsuffixlist import PublicSuffixList

    Address: TypeAlias = tuple[int, int]  # version (4 or 6), value
    AddressClass: TypeAlias = Literal[
        "public", "private", "loopback", "link-local", "multicast", "metadata", "reserved"
    ]


class MalformedHost(Malformed):
    """Not a host name."""


class MalformedAddress(Malformed):
    """Not an IP address or network in canonical form."""


# ---------------------------------------------------------------- hosts

HOST_INTERNAL = "host.internal"  # the host's loopback; never matched by a wildcard
_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789-_."
_LONGEST_NAME = 253  # RFC 1035 section 2.3.4, without the root label
_LONGEST_LABEL = 63
# Names that are never delegated, so a wildcard below them is no wildcard below a public suffix
# (RFC 6761, RFC 6762, ICANN resolution 2024.07.29.06, and RFC 6762 appendix G).
_PRIVATE_TLDS = frozenset(
    ["internal", "local", "localhost", "test", "example", "invalid", "lan", "home", "corp", "intranet", "private"]
)


def canonical_host(raw: str) -> str:
    """Return the canonical form of a host name: A-labels, lower case, no trailing dot.

    Idempotent.  An address literal is not a host name (``parse_address`` reads those), nor is anything that
    inet_aton(3) or a browser would read as an address: a last label that is a number (WHATWG URL, "ends in a number").
    ``_`` is accepted, as in many DNS names.

    Raises:
        MalformedHost: with the cause.
    """
    name = raw.lower() if raw.isascii() else _to_ascii(raw)
    if name[-1:] == ".":
        name = name[:-1]
    if not name:
        raise MalformedHost("the name is empty")
    rest = name.encode().translate(None, _NAME_BYTES)
    if rest:
        several = "; each host is an entry of its own" if rest[:1] in (b",", b" ") else ""
        raise MalformedHost(f"character {rest[:1].decode()!r} is not allowed in a host name{several}")
    if len(name) > _LONGEST_LABEL:
        if len(name) > _LONGEST_NAME:
            raise MalformedHost(f"the name is longer than {_LONGEST_NAME} characters")
        if any(len(label) > _LONGEST_LABEL for label in name.split(".")):
            raise MalformedHost(f"a label is longer than {_LONGEST_LABEL} characters")
    if ".." in name or name[0] == "." or name[-1] == ".":
        below = f'; names below it are "*{name}"' if name[0] == "." and ".." not in name else ""
        raise MalformedHost(f"a label is empty{below}")
    if name[0] == "-" or name[-1] == "-" or ".-" in name or "-." in name:
        raise MalformedHost("a label begins or ends with a hyphen")
    last = name[name.rfind(".") + 1 :]
    if last[0] <= "9" and (last.isdigit() or _is_hexadecimal(last)):
        raise MalformedHost("it ends in a number, but is not an address in canonical form")
    return name


def _is_hexadecimal(label: str) -> bool:
    return label.startswith("0x") and all(char in "0123456789abcdef" for char in label[2:])


def _to_ascii(raw: str) -> str:
    """UTS 46 to A-labels; text that the mapping changes by more than case is refused (it looks like another name)."""
    import unicodedata

    import idna

    if len(raw) > _LONGEST_NAME + 1:
        raise MalformedHost(f"the name is longer than {_LONGEST_NAME} characters")
    try:
        mapped = idna.uts46_remap(raw, std3_rules=False, transitional=False)
        if mapped != unicodedata.normalize("NFC", raw.lower()):
            raise MalformedHost(f"it is written in a misleading way; it would be read as {mapped!r}")
        return idna.encode(mapped.removesuffix(".")).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError) as error:
        if isinstance(error, Malformed):
            raise
        raise MalformedHost(f"it is not an internationalised name: {error}") from None


def wildcard_suffixes(name: str) -> Iterator[str]:
    """The names whose wildcard ``*.NAME`` matches ``name``: every parent at a label boundary, longest first."""
    at = name.find(".")
    while at >= 0:
        yield name[at + 1 :]
        at = name.find(".", at + 1)


def wildcard_matches(suffix: str, name: str) -> bool:
    """Does ``*.suffix`` match?  One or more labels before it; ``suffix`` itself does not match."""
    return len(name) > len(suffix) + 1 and name.endswith(suffix) and name[-len(suffix) - 1] == "."


def is_public_suffix(name: str) -> bool:
    """Do unrelated people register names directly below ``name``?  ICANN part of the Public Suffix List.

    A single label that the list does not know counts as one, unless it is reserved for private use.
    """
    global _suffixes
    if _suffixes is None:
        from publicsuffixlist import PublicSuffixList

        _suffixes = PublicSuffixList(only_icann=True, accept_unknown=False)
    if "." not in name:
        return name not in _PRIVATE_TLDS
    return bool(_suffixes.is_public(name))


_suffixes: PublicSuffixList | None = None

# ---------------------------------------------------------------- addresses

V4, V6 = 4, 6
_MASK_32 = 0xFFFF_FFFF


def parse_address(text: str) -> Address:
    """Read an address literal: four decimal bytes without leading zeros, or RFC 4291 text without a zone.

    IPv4-mapped IPv6 is the IPv4 address itself (RFC 4291 section 2.5.5.2): the kernel sends it as IPv4.

    Raises:
        MalformedAddress: anything else, among them what inet_aton(3) would accept (``127.1``, octal, hexadecimal).
    """
    from ipaddress import AddressValueError, IPv4Address, IPv6Address

    try:
        if ":" not in text:
            return V4, int(IPv4Address(text))
        if "%" in text:
            raise MalformedAddress("a zone index is not allowed")
        value = int(IPv6Address(text))
    except AddressValueError:
        raise MalformedAddress("it is not an address in canonical form") from None
    return (V4, value & _MASK_32) if value >> 32 == 0xFFFF else (V6, value)


def format_address(version: int, value: int) -> str:
    """The canonical text of an address (RFC 5952 for IPv6)."""
    if version == V4:
        return f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
    from ipaddress import IPv6Address

    return str(IPv6Address(value))


def parse_network(text: str) -> Network:
    """Read ``ADDRESS/PREFIX`` (RFC 4632) or a single address.

    Raises:
        MalformedAddress: bad address or prefix, or host bits that are not zero.
    """
    literal, slash, length = text.partition("/")
    version, value = parse_address(literal)
    bits = 32 if version == V4 else 128
    if not slash:
        return Network(version, value, bits)
    if not (length.isascii() and length.isdigit()) or (len(length) > 1 and length[0] == "0"):
        raise MalformedAddress(f"the prefix length {length!r} is not a number")
    prefix = int(length)
    if version == V4 and ":" in literal:
        prefix -= 96  # written as IPv4-mapped IPv6
    if not 0 <= prefix <= bits:
        raise MalformedAddress(f"the prefix length {length} is out of range")
    base = value >> (bits - prefix) << (bits - prefix)
    if base != value:
        raise MalformedAddress(f"host bits are set; the network is {format_address(version, base)}/{prefix}")
    return Network(version, base, prefix)


def _table(*rows: tuple[str, AddressClass]) -> tuple[tuple[int, int, int, AddressClass], ...]:
    """(version, shift, base >> shift, class) of each block, built at the first question."""
    out = []
    for text, kind in rows:
        network = parse_network(text)
        shift = (32 if network.version == V4 else 128) - network.prefix
        out.append((network.version, shift, network.base >> shift, kind))
    return tuple(out)


# First match decides.  IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890), as of 2025; cloud metadata
# addresses from the providers' manuals (AWS, ECS and EKS, GCP, Azure wire server, Alibaba, Oracle).
_SPECIAL: tuple[tuple[str, AddressClass], ...] = (
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("169.254.170.23", "metadata"),
    ("100.100.100.200", "metadata"),
    ("168.63.129.16", "metadata"),
    ("192.0.0.192", "metadata"),
    ("0.0.0.0/8", "reserved"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "private"),  # carrier NAT, RFC 6598
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "reserved"),  # documentation, RFC 5737
    ("192.88.99.0/24", "reserved"),  # 6to4 relays, RFC 7526
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved"),  # benchmarking, RFC 2544; our fake addresses
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("fd00:ec2::254", "metadata"),
    ("fd00:ec2::23", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("::1", "loopback"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),  # site-local, RFC 3879
    ("ff00::/8", "multicast"),
    ("64:ff9b::/96", "public"),  # NAT64: judged by the address it carries, RFC 6052
    ("2001::/23", "reserved"),  # IETF protocol assignments, Teredo, ORCHID
    ("2001:db8::/32", "reserved"),
    ("2002::/16", "public"),  # 6to4: judged by the address it carries
    ("3fff::/20", "reserved"),  # documentation, RFC 9637
    ("2000::/3", "public"),
    ("::/0", "reserved"),  # everything outside of the global unicast space
)
WIDE = {4: 8, 6: 7}  # a network with a shorter prefix holds private ranges beside public ones: it names neither
_special: tuple[tuple[int, int, int, AddressClass], ...] = ()
# Names of the same services: behind an upstream proxy it is not seen what they resolve to.
METADATA_NAMES = frozenset(
    [
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "metadata.packet.net",
        "instance-data",
        "instance-data.ec2.internal",
    ]
)


def address_class(version: int, value: int) -> AddressClass:
    """What kind of address this is, without regard to an IPv4 address inside it (see ``judged_forms``)."""
    global _special
    if not _special:
        _special = _table(*_SPECIAL)
    for family, shift, base, kind in _special:
        if family == version and value >> shift == base:
            return kind
    return "public"


def embedded_ipv4(value: int) -> int | None:
    """The IPv4 address that an IPv6 address carries, or ``None``.

    IPv4-compatible (RFC 4291 2.5.5.1), IPv4-translated (RFC 2765), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056),
    Teredo (RFC 4380, the client's address) and ISATAP interface identifiers (RFC 5214).
    """
    top = value >> 32
    if top in (0, 0xFFFF, 0xFFFF_0000, 0x64_FF9B << 64):
        return value & _MASK_32 if value > 1 else None
    if value >> 80 == 0x64_FF9B_0001:
        return value & _MASK_32
    if value >> 112 == 0x2002:
        return value >> 80 & _MASK_32
    if value >> 96 == 0x2001_0000:
        return ~value & _MASK_32
    if top & 0xFCFF_FFFF == 0x5EFE:
        return value & _MASK_32
    return None


def judged_forms(version: int, value: int) -> tuple[Address, ...]:
    """The address, then the IPv4 address it carries; every form must pass."""
    if version == V4:
        return ((V4, value),)
    inner = embedded_ipv4(value)
    if inner is None:
        return ((V6, value),)
    return ((V4, inner),) if value >> 32 == 0xFFFF else ((V6, value), (V4, inner))
