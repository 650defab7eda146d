"""Names, addresses and paths in one canonical form, and what matches them.

Theory of operation
-------------------
A rule and the traffic it is compared with go through the same canonicaliser, once; everything after that compares
canonical values.  What is not in canonical form and has no single meaning is refused with a ``Malformed`` error
whose text is the cause: nothing is guessed, because the program that reads it next may guess otherwise.

* hosts: IDNA2008 A-labels in lower case without the trailing dot (RFC 5890, UTS 46 non-transitional);
* addresses: ``(version, integer)``; IPv6 forms that carry an IPv4 address are judged as that address too;
* paths: RFC 3986 section 6.2.2 normal form; the canonical path is what is matched and what is forwarded;
* file patterns: gitignore(5).

``re``, ``ipaddress``, ``idna`` and the public suffix list are imported where they are first needed.

One file of over 800 lines: hosts, paths and file patterns, which share their errors and their strictness.
"""

from __future__ import annotations

from .model import Network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal, TypeAlias

    from publicsuffixlist import PublicSuffixList

    Address: TypeAlias = tuple[int, int]  # version (4 or 6), value
    AddressClass: TypeAlias = Literal[
        "public", "private", "loopback", "link-local", "multicast", "metadata", "reserved"
    ]


class Malformed(ValueError):
    """Text that has no single meaning; ``str()`` is the cause, to be put after a colon."""


class MalformedHost(Malformed):
    """Not a host name."""


class MalformedAddress(Malformed):
    """Not an IP address or network in canonical form."""


class MalformedPath(Malformed):
    """Not an HTTP path that every server reads alike."""


class PatternError(Malformed):
    """A gitignore pattern that can never mean what it says."""


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
        raise MalformedHost(f"character {rest[:1].decode()!r} is not allowed in a host name")
    if len(name) > _LONGEST_LABEL:
        if len(name) > _LONGEST_NAME:
            raise MalformedHost(f"the name is longer than {_LONGEST_NAME} characters")
        if any(len(label) > _LONGEST_LABEL for label in name.split(".")):
            raise MalformedHost(f"a label is longer than {_LONGEST_LABEL} characters")
    if ".." in name or name[0] == "." or name[-1] == ".":
        raise MalformedHost("a label is empty")
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
# Names of the same services: behind an upstream proxy nobody sees what they resolve to.
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


# ---------------------------------------------------------------- HTTP paths

_LONGEST_PATH = 32768
_HEX = frozenset("0123456789abcdefABCDEF")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Visible ASCII without what readers disagree about: "#" and "?" end a path, "\" is a slash to some.
_PATH_BYTES = bytes(code for code in range(0x21, 0x7F) if code not in b"\\#?")
ENCODED_SLASH = "it contains an encoded slash"
_REFUSED_ESCAPES = {"2F": "an encoded slash", "5C": "an encoded backslash", "00": "an encoded NUL"}
SLASH = "%2F"  # in a canonical path: only where a rule's path has it too
END = "#"  # last in a pattern: the path ends here (no path holds one, so no pattern needs to quote it)
_TWICE = ("%252E", "%252F", "%255C", "%2500", "%2525")


def split_query(target: str) -> tuple[str, str]:
    """Split an origin-form request target (RFC 9112 section 3.2.1) into the path and the query with its ``?``."""
    path, mark, query = target.partition("?")
    return path, mark + query


def canonical_path(raw: str, *, slashes: bool = False) -> str:
    """Return the one path that is matched and forwarded; idempotent.

    Escapes of unreserved characters are decoded, others written in upper case (RFC 3986 section 6.2.2), runs of
    slashes collapsed, dot segments resolved.  The query must be split off before (``split_query``).

    Args:
        slashes: encoded slashes may stay, within what is one segment to some servers and several to others, if it
            has no dot segment and no empty one to either.

    Raises:
        MalformedPath: text that servers read in different ways.
    """
    if raw[:1] != "/":
        raise MalformedPath('it does not begin with "/"')
    if len(raw) > _LONGEST_PATH:
        raise MalformedPath(f"it is longer than {_LONGEST_PATH} characters")
    if not raw.isascii():
        raise MalformedPath("it contains a byte outside of ASCII")
    rest = raw.encode().translate(None, _PATH_BYTES)
    if rest:
        raise MalformedPath(f"it contains {rest[:1].decode()!r}")
    path = _decode_unreserved(raw, slashes) if "%" in raw else raw
    if "//" in path or "/." in path:
        path = _resolve(path)
    if slashes and SLASH in path:
        parts = path.replace(SLASH, "/")
        if _resolve(parts) != parts or path.endswith(SLASH):
            raise MalformedPath(ENCODED_SLASH)
    return path


def _decode_unreserved(raw: str, slashes: bool) -> str:
    head, *parts = raw.split("%")
    out = [head]
    octets = bytearray()  # the escapes that stay, decoded, to see whether they are UTF-8
    for part in parts:
        code = part[:2].upper()
        if len(code) != 2 or not _HEX.issuperset(code):
            raise MalformedPath('a "%" is not followed by two hexadecimal digits')
        if code in _REFUSED_ESCAPES and not (slashes and code == "2F"):
            raise MalformedPath(f"it contains {_REFUSED_ESCAPES[code]}")
        char = chr(int(code, 16))
        if char in _UNRESERVED:
            out.append(char + part[2:])
            octets += char.encode()
        else:
            out.append(f"%{code}{part[2:]}")
            octets.append(int(code, 16))
        octets += part[2:].encode()
    path = "".join(out)
    upper = path.upper()
    if any(twice in upper for twice in _TWICE):
        raise MalformedPath("it contains a doubly encoded separator or dot")
    if not octets.isascii():
        _check_unicode(bytes(octets))
    return path


def _check_unicode(octets: bytes) -> None:
    """Refuse overlong or broken UTF-8 and characters that compatibility normalisation turns into a separator."""
    import unicodedata

    try:
        text = octets.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedPath("its escapes are not UTF-8") from None
    # Character by character: neither a separator nor a dot comes of putting others together, and to put thousands of
    # combining characters in order costs the square of their number.
    folded = text if text.isascii() else "".join([unicodedata.normalize("NFKC", char) for char in text])
    if folded.count("/") != text.count("/") or "\\" in folded:
        raise MalformedPath("it contains a character that may be read as a slash")
    for before, after in zip(text.split("/"), folded.split("/"), strict=True):
        if after != before and after in (".", ".."):
            raise MalformedPath("it contains characters that may be read as a dot segment")


def _resolve(path: str) -> str:
    out: list[str] = []
    segments = [segment for segment in path.split("/") if segment]
    for segment in segments:
        if segment == "..":
            if not out:
                raise MalformedPath('".." leads above the root')
            out.pop()
        elif segment != ".":
            name, parameter, _ = segment.replace("%3B", ";").partition(";")
            if parameter and name in (".", ".."):
                raise MalformedPath("a dot segment has a parameter")
            out.append(segment)
    directory = path[-1] == "/" or segments[-1] in (".", "..")
    return "/" + "/".join(out) + ("/" if directory and out else "")


def canonical_path_pattern(raw: str) -> str:
    """The canonical form of a path in a rule: as ``canonical_path``, without the trailing slash.

    ``*`` stands for any part of one segment, a segment ``**`` for any number of segments; neither for ``%2F``.  A
    ``#`` at the end stays: it says that nothing below is meant.

    Raises:
        MalformedPath: as ``canonical_path``, or ``**`` that is not a whole segment.
    """
    end = raw[-1:] == END
    path = canonical_path(raw[:-1] if end else raw, slashes=True)
    segments = path.split("/")
    if any("**" in segment and segment != "**" for segment in segments):
        raise MalformedPath('"**" is not a whole segment')
    if end and segments[-1] == "**":
        raise MalformedPath('"**" has no end: what is below it is meant as well')
    return (path.rstrip("/") or "/") + (END if end else "")


def path_matcher(pattern: str) -> Callable[[str], bool]:
    """Compile a canonical path pattern; the result tells whether it admits a canonical path.

    A pattern admits the path itself and everything below it, at a ``/`` boundary; one with the end mark the path
    itself only, without a slash at its end.  A path with encoded slashes is admitted only by a pattern with as many.
    """
    if SLASH in pattern:
        admits, slashes = _plain_matcher(pattern), pattern.count(SLASH)
        return lambda path: path.count(SLASH) == slashes and admits(path)
    plain = _plain_matcher(pattern)
    return lambda path: SLASH not in path and plain(path)


def _plain_matcher(pattern: str) -> Callable[[str], bool]:
    end = pattern[-1:] == END
    if end:
        pattern = pattern[:-1]
        if "*" not in pattern:
            return lambda path: path == pattern
    if pattern == "/":
        return lambda path: path[:1] == "/"
    if "*" not in pattern:
        below = pattern + "/"
        return lambda path: path == pattern or path.startswith(below)
    import re

    runs: list[str] = [""]
    for segment in pattern[1:].split("/"):
        if segment == "**":
            runs.append("")
        elif segment == "*":
            runs[-1] += "/[^/]+(?=/|\\Z)"
        else:
            head, *rest = [re.escape(part) for part in segment.split("*")]
            middle = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
            runs[-1] += "/" + head + (f"{middle}[^/]*{rest[-1]}" if rest else "") + "(?=/|\\Z)"
    # As in ``Pattern``: all but the last run take the leftmost fit, so hostile patterns stay linear.
    regex = runs[0]
    if len(runs) > 1:
        regex += "".join(f"(?>(?:/[^/]*)*?{run})" for run in runs[1:-1] if run) + f"(?:/[^/]*)*?{runs[-1]}"
    match = re.compile(regex + ("\\Z" if end else "(?:/|\\Z)"), re.S).match
    return lambda path: match(path) is not None


# ---------------------------------------------------------------- gitignore patterns

_CLASSES = {  # POSIX character classes of gitignore brackets (git wildmatch.c), ASCII as in the C locale
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-\\/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_LONGEST_PATTERN = 4096  # characters; PATH_MAX
# Patterns of a policy that are more than a name or a name with one star: each is tried with each name of the workspace,
# at a third of a microsecond.
MOST_EXPRESSIONS = 2000


def _literal(char: str) -> str:
    return char if char.isalnum() or char == "_" else f"\\{char}" if char.isascii() else char


def _bracket(text: str, at: int) -> tuple[str, int]:
    """Translate the bracket expression whose ``[`` is at ``at``; return its regex and the index after it.

    The grammar is that of git's wildmatch.c: ``]`` first is literal, ``!`` and ``^`` negate, a backslash quotes.
    """
    index = at + 1
    negated = text[index : index + 1] in ("!", "^")
    index += negated
    items: list[str] = []
    previous = ""
    first = True
    while True:
        if index >= len(text):
            raise PatternError("a bracket is not closed")
        char = text[index]
        if char == "]" and not first:
            break
        first = False
        if char == "-" and previous and text[index + 1 : index + 2] not in ("", "]"):
            index += 1
            last = text[index]
            if last == "\\":
                index += 1
                last = text[index : index + 1]
                if not last:
                    raise PatternError("a bracket is not closed")
            if last < previous:
                raise PatternError(f"the range {previous}-{last} in a bracket is empty")
            items[-1] = f"{_literal(previous)}-{_literal(last)}"
            previous = ""
        elif char == "[" and text[index + 1 : index + 2] == ":":
            end = text.find(":]", index + 2)
            name = text[index + 2 : end] if end > 0 else ""
            if name not in _CLASSES:
                raise PatternError(f"unknown character class [:{name}:]")
            items.append(_CLASSES[name])
            index = end + 1
            previous = ""
        else:
            if char == "\\":
                index += 1
                char = text[index : index + 1]
                if not char:
                    raise PatternError("a bracket is not closed")
            items.append(_literal(char))
            previous = char
        index += 1
    body = "".join(items)
    return (f"[^/{body}]" if negated else f"[{body}]"), index + 1


def _segment(text: str) -> tuple[str, str | None]:
    """Translate one path segment; return its regex and, when it has no wildcard, the literal it stands for.

    Every star but the last becomes an atomic group that takes the leftmost fit: what follows a star has a fixed
    length, so an earlier fit is never worse, and matching stays linear for hostile patterns.
    """
    fixed = [""]
    literal: list[str] | None = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char == "*":
            literal = None
            if index < 2 or text[index - 2] != "*" or fixed[-1]:
                fixed.append("")
        elif char == "?":
            literal = None
            fixed[-1] += "[^/]"
        elif char == "[":
            literal = None
            part, index = _bracket(text, index - 1)
            fixed[-1] += part
        else:
            if char == "\\":
                char = text[index : index + 1]
                index += 1
                if not char:
                    raise PatternError("it ends in a lone backslash")
            fixed[-1] += _literal(char)
            if literal is not None:
                literal.append(char)
    head, *rest = fixed
    regex = head
    if rest:
        regex += "".join(f"(?>[^/]*?{part})" for part in rest[:-1]) + "[^/]*" + rest[-1]
    return regex, None if literal is None else "".join(literal)


def _split_pattern(text: str) -> list[str]:
    """Split at the slashes; one inside a bracket or after a backslash cannot match anything (wildmatch.c)."""
    segments = [""]
    index = 0
    while index < len(text):
        char = text[index]
        if char == "/":
            segments.append("")
            index += 1
            continue
        end = index + 1
        if char == "[":
            end = _bracket(text, index)[1]
        elif char == "\\":
            end = index + 2
        if "/" in text[index:end]:
            raise PatternError("a slash is quoted or inside a bracket")
        segments[-1] += text[index:end]
        index = end
    return segments


class Pattern:
    """One gitignore(5) pattern, translated.

    ``by_name``: it is matched against the last component at any depth, else against the whole relative path.
    ``literal``: the name it stands for when it has no wildcard; ``ends``: what stands before and after its only one,
    a star.  Such patterns need no ``re``, which takes 8 ms to load.
    """

    __slots__ = ("_compiled", "by_name", "directories_only", "ends", "literal", "negated", "regex")

    def __init__(self, text: str) -> None:
        """Translate ``text``.

        Raises:
            PatternError: the pattern can never match, or means nothing to git.
        """
        if len(text) > _LONGEST_PATTERN:
            raise PatternError(f"it is longer than {_LONGEST_PATTERN} characters")
        if "\0" in text:
            raise PatternError("it contains a NUL")
        while text.endswith(" ") and not text.endswith("\\ "):
            text = text[:-1]
        if text.startswith("#"):
            raise PatternError('it is a comment; write "\\#" for a name that starts with "#"')
        self.negated = text.startswith("!")
        if self.negated:
            text = text[1:]
        self.directories_only = text.endswith("/")
        if self.directories_only:
            text = text[:-1]
        if not text.strip("/"):
            raise PatternError("it is empty")
        anchored = "/" in text
        segments = _split_pattern(text)
        if anchored and not segments[0]:
            segments = segments[1:]
        if "" in segments:
            raise PatternError("it has an empty path segment")
        if "." in segments or ".." in segments:
            raise PatternError('it has a "." or ".." segment, which never matches')
        while len(segments) > 1 and segments[0] == segments[1] == "**":
            del segments[0]
        if len(segments) == 2 and segments[0] == "**":
            segments, anchored = segments[1:], False
        self.literal: str | None = None
        self.ends: tuple[str, str] | None = None
        self.by_name = not anchored
        if self.by_name:
            self.regex, self.literal = _segment(segments[0])
            before, star, after = segments[0].partition("*")
            if star and not any(char in before + after for char in "*?[\\"):
                self.ends = before, after
        else:
            self.regex = self._path(segments)
        self._compiled: Callable[[str], object] | None = None

    @property
    def is_expression(self) -> bool:
        """Does it take a regular expression to match it?"""
        return self.literal is None and self.ends is None

    def matches(self, name: str, relpath: str, is_dir: bool) -> bool:
        """Does the pattern match this one entry, its ``!`` left aside?  Arguments as ``PatternSet.match``."""
        if self.directories_only and not is_dir:
            return False
        if self._compiled is None:
            import re

            self._compiled = re.compile(self.regex, re.S).fullmatch
        return self._compiled(name if self.by_name else relpath) is not None

    @staticmethod
    def _path(segments: list[str]) -> str:
        """``**`` between slashes is any number of directories; all but the last take the leftmost fit."""
        runs: list[list[str]] = [[]]
        for segment in segments[:-1]:
            if segment == "**":
                runs.append([])
            else:
                runs[-1].append(_segment(segment)[0] + "/")
        runs[-1].append("(?s:.+)" if segments[-1] == "**" else _segment(segments[-1])[0])
        head, *rest = ["".join(run) for run in runs]
        if not rest:
            return head
        middle = "".join(f"(?>(?:[^/]+/)*?{run})" for run in rest[:-1] if run)
        return f"{head}{middle}(?:[^/]+/)*{rest[-1]}"


class _Group:
    """Consecutive patterns of one sign, matched as a set of names, their ends and two regexes."""

    __slots__ = ("ends", "names", "negated", "path", "prefixes", "regex", "suffixes")

    def __init__(self, patterns: Iterable[Pattern], negated: bool) -> None:
        names, by_name, by_path = set(), [], []
        ends: list[tuple[str, str]] = []
        for pattern in patterns:
            if not pattern.by_name:
                by_path.append(pattern.regex)
            elif pattern.literal is not None:
                names.add(pattern.literal)
            elif pattern.ends is not None:
                ends.append(pattern.ends)
            else:
                by_name.append(pattern.regex)

        def combined(parts: list[str]) -> Callable[[str], object] | None:
            if not parts:
                return None
            import re

            return re.compile("|".join(f"(?:{part})" for part in parts), re.S).fullmatch

        self.negated = negated
        self.names = frozenset(names)
        self.prefixes = tuple(before for before, after in ends if not after)
        self.suffixes = tuple(after for before, after in ends if after and not before)
        self.ends = tuple(pair for pair in ends if all(pair))
        self.regex = combined(by_name)
        self.path = combined(by_path)

    def match(self, name: str, relpath: str) -> bool:
        return (
            name in self.names
            or name.endswith(self.suffixes)
            or name.startswith(self.prefixes)
            or (bool(self.ends) and self._has_ends(name))
            or (self.regex is not None and self.regex(name) is not None)
            or (self.path is not None and self.path(relpath) is not None)
        )

    def _has_ends(self, name: str) -> bool:
        length = len(name)
        return any(
            length >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
            for before, after in self.ends
        )


class PatternSet:
    """A list of gitignore(5) patterns; the last one that matches decides.

    ``by_name``: no pattern looks at the path, so ``relpath`` may be left empty.
    """

    __slots__ = ("_directories", "_files", "by_name")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.by_name = all(pattern.by_name for pattern in patterns)
        self._files = self._groups([pattern for pattern in patterns if not pattern.directories_only])
        self._directories = self._groups(patterns)

    @staticmethod
    def _groups(patterns: Sequence[Pattern]) -> tuple[_Group, ...]:
        """Runs of one sign, last first: the first group that matches holds the last matching pattern."""
        runs: list[list[Pattern]] = []
        for pattern in patterns:
            if runs and runs[-1][0].negated == pattern.negated:
                runs[-1].append(pattern)
            else:
                runs.append([pattern])
        if runs and runs[0][0].negated:
            del runs[0]  # nothing before it that it could take back
        return tuple(_Group(run, run[0].negated) for run in reversed(runs))

    def match(self, name: str, relpath: str, is_dir: bool) -> bool:
        """Does the set match this one entry?

        Args:
            name: the last component, undecodable bytes as surrogate escapes.
            relpath: the path relative to the root of the patterns, without a leading slash.
            is_dir: it is a directory itself (a symbolic link is not, as in git).

        What lies below a matching directory is not looked at here: the caller prunes or walks the parents.
        """
        for group in self._directories if is_dir else self._files:
            if group.match(name, relpath):
                return not group.negated
        return False


def compile_patterns(patterns: Sequence[str]) -> PatternSet:
    """Compile gitignore(5) patterns: ``!``, anchoring, ``**``, trailing ``/``, brackets, escapes.

    One wildcard character stands for one character of the decoded name (git counts bytes).

    Raises:
        PatternError: a pattern that can never match (git would ignore it in silence).
    """
    return PatternSet([Pattern(text) for text in patterns])
