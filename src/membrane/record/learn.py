"""The smallest policy that admits what a run tried.

Theory of operation
-------------------
Pure: events in, YAML out.  What was reached and what was refused for want of a rule both become entries; what a rule
refused by name, a floor (metadata and private addresses, malformed names and requests) or a limit does not, and is
counted in a comment instead.  A private address that was tried as itself, for which there is no floor, is named in one:
who wrote what the command read may want the network around the machine to be opened, and a person decides that.  One
entry per destination; where requests were seen it has their methods and paths, and a path component that looks like an
id, a number or a token becomes ``*``: a policy is kept in repositories, so nothing that could be a secret goes into it.
Queries and arguments are never looked at.

Files in the workspace need no rule.  A path outside it becomes a read-only mount only where it is no person's own:
what is in a home directory, or is named like something with secrets in it, is counted and not named.

What is printed is what ``policy.load`` reads; the tests ask ``decide`` about every attempt afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .. import events as ev
from ..escaping import visible
from ..policy.hosts import address_class, canonical_host, judged_forms, parse_address
from ..policy.model import Malformed
from ..policy.reasons import REASONS
from .query import DENIED_RESULTS, MOST, WRITING
from .recorded import Asked, Recorded, asked

# Refusals that mean "no rule yet"; all others are a decision of a person or a floor.
LEARNED_REASONS = frozenset(reason for reason in REASONS.values() if reason.learned)
MOST_PATHS = 24  # of one method before they are taken together
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_TOKEN = re.compile(r"(?=.*\d)[A-Za-z0-9_=+.~-]{16,}|[0-9a-fA-F]{8,}|\d+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")
_LONG = 32  # characters; no component of an API is longer, but keys are
_PLAIN = re.compile(r"[A-Za-z0-9._~@:+-]+")
_HOMES = ("/home/", "/root/", "/Users/", "/var/lib/")
_SECRET = re.compile(
    r"(^|[/._-])(\.?ssh|\.?aws|\.?gnupg|\.?kube|\.?docker|credentials?|secrets?|passwords?|passwd|shadow|tokens?|id_[a-z0-9]+"
    r"|netrc|pgpass|keyring|wallet)([/._-]|$)|\.(pem|key|p12|pfx|kdbx|env)([/._-]|$)|/\.env",
    re.IGNORECASE,
)


def quoted(value: str) -> str:
    """YAML's double-quoted form of printable text."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def component(part: str) -> str:
    """A path component as a pattern: itself, or ``*`` when it could be an id or a secret."""
    if not part:
        return part
    if len(part) > _LONG or _TOKEN.fullmatch(part) or not _PLAIN.fullmatch(part):
        return "*"
    return part


def path_pattern(path: str) -> str:
    """A request path as the pattern of a rule."""
    return "/".join(component(part) for part in path.split("/")) if path.startswith("/") else ""


class _Destination:
    """What was tried towards one host."""

    def __init__(self) -> None:
        self.ports: dict[tuple[str, int], int] = {}  # protocol and port: how often
        self.assumed = True  # only the name was asked for: the port is a guess
        self.requests: dict[tuple[int, str], dict[tuple[str, str], int]] = {}  # port, scheme: method, path: how often
        self.uninspected: set[int] = set()  # ports with connections whose requests were not seen
        self.by: dict[str, None] = {}
        self.asked = 0
        self.refused = 0

    def add(self, name: str) -> None:
        """``name``: of the process that tried."""
        if name and len(self.by) < 4 and re.fullmatch(r"[\w.+-]{1,15}", name):
            self.by[name] = None


class Learner:
    """Collects what runs tried; ``add`` their events in order, ``begin`` before each run.

    Args:
        home: of who reads, beside the usual places of homes.
    """

    def __init__(self, home: str = "") -> None:
        self.runs = 0
        self.incomplete = False  # set by who reads the records: some events are missing
        self._homes = (*_HOMES, f"{home.rstrip('/')}/") if home.strip("/") else _HOMES
        self._hosts: dict[str, _Destination] = {}
        self._paths: dict[str, list[Any]] = {}  # path: [how often, write, by]
        self._sockets: dict[str, list[Any]] = {}
        self._private: dict[str, _Destination] = {}  # ADDRESS:PORT as a rule has it
        self._left_out: dict[str, int] = {}
        self._connections: dict[int, tuple[str, int, str]] = {}
        self._requests_of: set[int] = set()
        self._workspace = ""

    def begin(self) -> None:
        """A further run: ids of connections begin anew."""
        self.runs += 1
        self._connections.clear()
        self._requests_of.clear()

    def add(self, each: Recorded) -> None:
        """Take one event."""
        handler = getattr(self, f"_on_{each.kind}", None)
        if handler is not None:
            handler(each.program, each.event)

    # ------------------------------------------------------------ collecting

    def _leave_out(self, why: str, count: int = 1) -> None:
        self._left_out[why] = self._left_out.get(why, 0) + count

    def _host(self, name: str) -> _Destination | None:
        try:
            canonical = canonical_host(name)
        except Malformed:
            try:
                parse_address(name)
                canonical = name
            except Malformed:
                self._leave_out("malformed names or addresses")
                return None
        if canonical not in self._hosts and len(self._hosts) >= MOST:
            self._leave_out("further hosts")
            return None
        return self._hosts.setdefault(canonical, _Destination())

    def _on_SessionStarted(self, _by: str, event: ev.SessionStarted) -> None:
        self._workspace = event.workspace

    def _on_NameResolved(self, by: str, event: ev.NameResolved) -> None:
        found = self._host(event.name)
        if found is not None:
            found.asked += 1
            found.add(by)

    def _on_ConnectionOpened(self, by: str, event: ev.ConnectionOpened) -> None:
        host = event.host or event.address
        self._connect(by, host, event.port, event.protocol)
        if len(self._connections) < MOST:
            self._connections[event.id] = host, event.port, event.protocol

    def _connect(self, by: str, host: str, port: int, protocol: str) -> _Destination | None:
        found = self._host(host)
        if found is None or not 0 < port < 65536:
            return None
        key = ("udp" if protocol == "udp" else "tcp", port)
        found.ports[key] = found.ports.get(key, 0) + 1
        found.assumed = False
        found.add(by)
        return found

    def _on_ConnectionClosed(self, _by: str, event: ev.ConnectionClosed) -> None:
        opened = self._connections.pop(event.id, None)
        if opened is not None and event.id not in self._requests_of:
            host, port, protocol = opened
            found = self._host(host)
            if found is not None and protocol not in ("http/1.1", "h2"):
                found.uninspected.add(port)
        self._requests_of.discard(event.id)

    def _on_RequestSeen(self, by: str, event: ev.RequestSeen) -> None:
        if event.verdict == "allow":
            if len(self._requests_of) < MOST:
                self._requests_of.add(event.id)
            self._request(by, event, 1)

    def _connect_private(self, by: str, access: Asked, count: int) -> None:
        where = _at(access.address, access.port, access.protocol)
        if where not in self._private and len(self._private) >= MOST:
            self._leave_out("further private addresses", count)
            return
        found = self._private.setdefault(where, _Destination())
        found.refused += count
        found.add(by)

    def _request(self, by: str, request: ev.RequestSeen | Asked, count: int) -> None:
        found = self._host(request.host)
        method, path, port, scheme = request.method, path_pattern(request.path), request.port, request.scheme
        if found is None:
            return
        if not _METHOD.fullmatch(method) or not path or scheme not in ("http", "https") or not 0 < port < 65536:
            self._leave_out("malformed requests")
            return
        found.add(by)
        found.assumed = False
        seen = found.requests.setdefault((port, scheme), {})
        if (method, path) in seen or len(seen) < MOST:
            seen[method, path] = seen.get((method, path), 0) + count

    def _on_AccessDenied(self, by: str, event: ev.AccessDenied) -> None:
        access, reason, count = asked(event.access), event.reason, max(1, event.count)
        if reason not in LEARNED_REASONS:
            self._leave_out(f"refused as {reason}" if re.fullmatch(r"[A-Za-z -]{1,40}", reason) else "refused", count)
        elif access.kind == "NameQuery":
            found = self._host(access.name)
            if found is not None:
                found.refused += count
                found.add(by)
        elif access.kind == "Connect" and not access.host and _is_private(access.address):
            self._connect_private(by, access, count)
        elif access.kind == "Connect":
            found = self._connect(by, access.host or access.address, access.port, access.protocol)
            if found is not None:
                found.refused += count
                found.uninspected.add(access.port)
        elif access.kind == "HttpRequest":
            self._request(by, access, count)
        elif access.kind == "SocketAccess":
            self._personal(self._sockets, by, access.path, count, False)
        elif access.kind == "PathAccess" and access.path.startswith("/"):
            self._personal(self._paths, by, access.path, count, access.operation == "write")

    def _on_FileOpened(self, by: str, event: ev.FileOpened) -> None:
        if event.result not in DENIED_RESULTS:
            return
        if self._workspace and (event.path + "/").startswith(self._workspace + "/"):
            self._leave_out("refused files of the workspace")
            return
        self._personal(self._paths, by, event.path, 1, not WRITING.isdisjoint(event.flags))

    def _personal(self, table: dict[str, list[Any]], by: str, path: str, count: int, write: bool) -> None:
        if not path.startswith("/") or not path.isprintable() or "\\" in path or "/../" in path + "/":
            self._leave_out("paths that cannot be written down", count)
            return
        path = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
        if f"{path}/".startswith(self._homes):
            self._leave_out("paths in a home directory", count)
        elif any(home.startswith(f"{path}/".replace("//", "/")) for home in self._homes):
            self._leave_out("directories with homes in them", count)
        elif _SECRET.search(path):
            self._leave_out("paths named like secrets", count)
        elif path in table or len(table) < 256:
            row = table.setdefault(path, [0, False, by])
            row[0] += count
            row[1] = row[1] or write

    # ------------------------------------------------------------ writing

    def yaml(self, is_there: Callable[[str], bool] = lambda _path: True) -> str:
        """The policy.

        Args:
            is_there: of a path that was asked for; a rule for one that is not would stop the next run.
        """
        lines = [
            f"# Learned by membrane from {self.runs} run{'' if self.runs == 1 else 's'}. Read it before you use it."
        ]
        for why, count in sorted(self._left_out.items()):
            lines.append(f"# Left out: {visible(why)} ({_often(count)}).")
        for where, found in sorted(self._private.items()):
            tried = f"{_often(found.refused)}{self._who(found)}"
            lines.append(f"# Not opened, as it is a private address: {quoted(where)} ({tried}).")
        paths, sockets = ({path: row for path, row in table.items() if is_there(path)} for table in self._tables())
        for path, row in sorted(pair for table in self._tables() for pair in table.items()):
            if not is_there(path):
                lines.append(f"# Not there, so that no rule can show it: {quoted(path)} ({_often(row[0])}).")
        if self.incomplete:
            lines.append("# The record is INCOMPLETE: what was tried and is not on it is not here either.")
        comments = len(lines)
        entries = []
        for host, found in sorted(self._hosts.items()):
            entries += self._entries(host, found)
        if entries:
            lines += ["allow:", *entries]
        if sockets:
            lines.append("unix_sockets:")
            lines += [f"  - {quoted(path)} # {_often(row[0])}" for path, row in sorted(sockets.items())]
        if paths:
            lines.append("mounts:")
            for path, row in sorted(paths.items()):
                tried = "; it tried to write: mode: rw" if row[1] else ""
                lines.append(f"  - {{path: {quoted(path)}, mode: ro}} # {_often(row[0])}{tried}")
        if len(lines) == comments:
            lines.append(f"# Nothing {'on it' if self.incomplete else 'was tried that'} needs a rule.\n{{}}")
        return "\n".join(lines) + "\n"

    def _tables(self) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return self._paths, self._sockets

    @staticmethod
    def _who(found: _Destination) -> str:
        return f" by {', '.join(found.by)}" if found.by else ""

    def _entries(self, host: str, found: _Destination) -> list[str]:
        who = self._who(found)
        if found.assumed:
            if not found.asked and not found.refused:
                return []
            how = f"refused {_often(found.refused)}" if found.refused else f"asked for {_often(found.asked)}"
            return [f"  - {quoted(_at(host, 443))} # only the name, {how}{who}; 443 is a guess"]
        out = []
        limited: set[int] = set()
        for (port, scheme), seen in sorted(found.requests.items()):
            if port in found.uninspected:
                continue  # something else than HTTP went there too
            limited.add(port)
            usual = {"http": 80, "https": 443}[scheme]
            place = f"[{host}]" if ":" in host else host
            url = f"{scheme}://{place}" + ("" if port == usual else f":{port}")
            total = sum(seen.values())
            out.append(f"  - dest: {quoted(url)} # {total} request{'' if total == 1 else 's'}{who}")
            out.append("    http:")
            methods: dict[str, list[str]] = {}
            for method, path in sorted(seen):
                methods.setdefault(method, []).append(path)
            for method, paths in methods.items():
                shown = paths if len(paths) <= MOST_PATHS else _common(paths)
                listed = ", ".join(quoted(path) for path in shown)
                out.append(f"      - {{methods: [{method}], paths: [{listed}]}}")
        for (protocol, port), count in sorted(found.ports.items()):
            if protocol == "tcp" and port in limited:
                continue
            out.append(f"  - {quoted(_at(host, port, protocol))} # {_often(count)}{who}")
        return out


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _is_private(address: str) -> bool:
    try:
        forms = judged_forms(*parse_address(address))
    except Malformed:
        return False  # it is left out as that
    return any(address_class(*form) in ("private", "link-local", "metadata") for form in forms)


def _at(host: str, port: int, protocol: str = "tcp") -> str:
    place = f"[{host}]" if ":" in host else host
    return f"{place}:{port}" + ("/udp" if protocol == "udp" else "")


def _common(paths: list[str]) -> list[str]:
    """Many paths as the directories that they share: their first two components."""
    return sorted({"/".join(path.split("/")[:3]) or "/" for path in paths})[:MOST_PATHS] if paths else ["/"]


def learn(runs: Iterable[Iterable[Recorded]]) -> str:
    """The policy that admits what all ``runs`` tried."""
    learner = Learner()
    for events in runs:
        learner.begin()
        for event in events:
            learner.add(event)
    return learner.yaml()
