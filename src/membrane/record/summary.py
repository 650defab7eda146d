"""The few lines that a person reads at the end of a run.

Theory of operation
-------------------
``refusals`` turns ``AccessDenied`` events into aligned lines: what was refused, why, and the exact YAML to add.
Equal refusals are one line.  Nothing is suggested for a floor (metadata addresses, protected names, malformed names):
the line says why instead, and which address it is that a name leads to.  All text comes from inside the sandbox, so
every string is escaped and cut to a fixed width before it is measured.
"""

from __future__ import annotations

from ..escaping import visible
from ..policy import reasons
from ..policy.hosts import address_class, format_address, parse_address
from ..policy.model import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, TextIO

    from ..events import AccessDenied

_TLS, _PLAIN_HTTP = ':443"]', "  # http:// is :80"
WIDEST = 60  # characters of one column before it is cut in the middle
NAMED = 3  # names in the line about the quarantine

_KINDS = {
    "NameQuery": "host",
    "Connect": "host",
    "HttpRequest": "host",
    "PathAccess": "path",
    "SocketAccess": "socket",
}


def colour(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """May ``stream`` get colour?  Only a terminal, and never with NO_COLOR (https://no-color.org) or TERM=dumb."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or stream is None:
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def shorten(text: str, width: int = WIDEST) -> str:
    """``text`` made safe to print, and cut in the middle so that its start and its end stay readable."""
    text = visible(text)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 3]}...{text[-tail:]}"


def tilde(path: str, home: str) -> str:
    """``path`` with the caller's home directory written as ``~``."""
    if home and home != "/" and (path == home or path.startswith(home + "/")):
        return "~" + path[len(home) :]
    return path


def endpoint(host: str, port: int, protocol: str = "tcp") -> str:
    """``host:port``, an IPv6 literal in brackets (RFC 3986 section 3.2.2), the protocol when it is not TCP."""
    name = f"[{host}]" if ":" in host else host
    if not port and protocol not in ("tcp", "udp"):
        return f"{name}/{protocol}"
    return f"{name}:{port}" + ("" if protocol == "tcp" else f"/{protocol}")


def size(count: int) -> str:
    """MB with one digit, or the bytes of what is less than that."""
    return f"{count / 1e6:.1f} MB" if count >= 50_000 else f"{count} B"


def ending(data: Mapping[str, Any]) -> str:
    """How a session ended, of the data of its summary."""
    if not data["ended"]:
        return "not over"
    how = f"signal {data['signal']}" if data["signal"] else f"exit {data['exit_code']}"
    return f"{how} after {int(data['duration_ms']) / 1000:.1f} s"


def target_of(access: Mapping[str, Any], home: str = "") -> str:
    """The thing that was asked for, from ``AccessDenied.access``; not escaped."""
    kind = access.get("kind")
    if kind in ("NameQuery", "SystemCall"):
        return str(access.get("name", ""))
    if kind == "Connect":
        host = access.get("host") or access.get("address") or ""
        return endpoint(str(host), int(access.get("port", 0)), str(access.get("protocol", "tcp")))
    if kind == "HttpRequest":
        port = access.get("port")
        usual = {"http": 80, "https": 443}.get(str(access.get("scheme")))
        host = str(access.get("host", ""))
        where = endpoint(host, int(port)) if port and port != usual else f"[{host}]" if ":" in host else host
        return f"{access.get('method', '')} {access.get('scheme', '')}://{where}{access.get('path', '')}"
    path = tilde(str(access.get("path", "")), home)
    operation = str(access.get("operation", "")) if kind == "SocketAccess" else ""
    if not operation:
        return path
    names = access.get("names") or ()
    return f"{operation}{f' with {names[0]}' if operation == 'sign' and names else ''} through {path}"


def _private(access: Mapping[str, Any], floor: str) -> str:
    """Which address a name led to, and the rule for it, as of a company's mirror; for this machine's loopback none."""
    text = str(access.get("address", ""))
    try:
        address = parse_address(text)
    except Malformed:
        return floor
    if not access.get("host"):
        return floor
    if address_class(*address) not in ("private", "reserved"):
        return f"{format_address(*address)}: {floor}"
    where = endpoint(format_address(*address), int(access.get("port", 0)), str(access.get("protocol", "tcp")))
    return f'its address is {format_address(*address)}; if that is meant: allow: ["{where}"]'


def _advice(event: AccessDenied) -> str:
    known = reasons.REASONS.get(event.reason)
    if known == reasons.PRIVATE_ADDRESS:
        return _private(event.access, reasons.PRIVATE_ADDRESS.floor)
    if known == reasons.PROTECTED_NAME and event.hint:
        return shorten(event.hint, 2 * WIDEST)
    if known is not None and known.floor:
        return known.floor
    if event.access.get("kind") == "SystemCall":
        if event.access.get("name") in ("clone", "unshare"):
            return "a sandbox inside of this one: run the command without it, it is sandboxed already"
        return "no rule opens this call"
    if event.reason == reasons.DENIED_BY_RULE:
        return f"deny: {shorten(event.rule)}" if event.rule else ""
    # Which port was meant is not known when a name is refused; what is after the mark is a comment of YAML.
    guessed = event.access.get("kind") == "NameQuery" and event.hint and event.hint.endswith(_TLS)
    return shorten(event.hint, 2 * WIDEST) + (_PLAIN_HTTP if guessed else "") if event.hint else ""


def moved(pairs: Sequence[tuple[str, str]], store: str) -> Iterator[str]:
    """Where protected names went.

    Args:
        pairs: (name, where it is now; empty: removed), as ``workspace.guard`` has them.
        store: the directory that they should be in.
    """
    places: dict[str, list[str]] = {}
    for name, where in pairs:
        if where and not where.startswith(store + "/"):
            yield f"{visible(name)} is a protected name: it is now {visible(where)}"
            continue
        out = f"moved out of the workspace, to {visible(where.rsplit('/', 2)[0])}"
        places.setdefault(out if where else "removed: there was no room to rename it", []).append(name)
    for place, names in places.items():
        listed = ", ".join(shorten(name) for name in names[:NAMED])
        if len(names) > NAMED:
            listed += f" and {len(names) - NAMED} more"
        if len(names) == 1:
            yield f"a protected name was {place}: {listed}"
        else:
            yield f"{len(names)} protected names were {place}: {listed}"


def failures(
    failed: Iterable[tuple[str, int, str, str]], limit: int = 3, *, more: bool = False, record: str = ""
) -> list[str]:
    """The lines about hosts that the policy allows and that could not be reached, empty when there were none.

    Args:
        failed: host or address, port, protocol and what the resolver, the kernel or a proxy said, each once.
        limit: at most so many lines of detail, then ``... and N more``.
        more: there were others than ``failed``, which holds the first.
        record: the command that shows all; empty for no such line.
    """
    rows = list(failed)
    if not rows:
        return []
    shown = [(shorten(endpoint(host, port, protocol)), shorten(why, 2 * WIDEST)) for host, port, protocol, why in rows]
    wide = max(len(target) for target, _ in shown[:limit])
    number = f"{len(rows)} or more places" if more else _count(len(rows), "place")
    lines = [f"membrane: {number} that the policy allows could not be reached"]
    lines += [f"  {target:<{wide}}   {why}" for target, why in shown[:limit]]
    if len(rows) > limit:
        lines.append(f"  ... and {len(rows) - limit} more")
    if record:
        lines.append(f"  who asked: {visible(record)}")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def refusals(
    denied: Iterable[AccessDenied],
    limit: int = 3,
    *,
    total: int = 0,
    record: str = "",
    home: str = "",
    colour: bool = False,
) -> list[str]:
    """Return the summary of what was refused, one string per line, empty when nothing was that is told.

    Args:
        denied: the refusals in order; equal ones are shown once.
        limit: at most so many lines of detail, then ``... and N more``.
        total: how many refusals there were when ``denied`` holds only the first of them.
        record: where the full record is: a path or a command; empty for no such line.
        home: the caller's home directory, shown as ``~``.
        colour: mark the count (see ``colour``).
    """
    rows: dict[tuple[str, str], tuple[str, str, str]] = {}
    kinds: dict[str, set[str]] = {}
    seen = 0
    for event in denied:
        known = reasons.REASONS.get(event.reason)
        if known is not None and known.untold:
            continue
        seen += 1
        target = target_of(event.access, home)
        kind = _KINDS.get(str(event.access.get("kind")), "thing")
        thing = event.access.get("host") or event.access.get("address") if kind == "host" else ""
        kinds.setdefault(kind, set()).add(str(thing or target))
        rows.setdefault((target, event.reason), (shorten(target), visible(event.reason), _advice(event)))
    if not rows:
        return []
    parts = [_count(len(kinds[kind]), kind) for kind in ("host", "path", "socket", "thing") if kind in kinds]
    number = f"refused {max(total, seen)}"
    shown = list(rows.values())[:limit]
    wide = max(len(row[0]) for row in shown) if shown else 0
    middle = max(len(row[1]) for row in shown) if shown else 0
    if colour:
        number = f"\x1b[31m{number}\x1b[0m"
    lines = [f"membrane: {number} ({', '.join(parts)})"]
    lines += [f"  {target:<{wide}}   {reason:<{middle}}   {advice}".rstrip() for target, reason, advice in shown]
    if len(rows) > len(shown):
        lines.append(f"  ... and {len(rows) - len(shown)} more")
    if record:
        lines.append(f"  full record: {visible(record)}")
    return lines
