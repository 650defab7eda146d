"""Questions to a record: which events, who did it, and what the run comes to.

Theory of operation
-------------------
Events are the JSON objects of ``docs/events.md``, in order; every function takes an iterable and keeps a bounded
amount of it.  A process is its pid with its start time, never the pid alone.

Everything in an event is text from inside the sandbox or a number that it chose.  ``typed`` is the one place where the
types of fields are checked: ``reading`` gives nothing that did not pass it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..value import Value
from ..workspace.names import Protected
from ..workspace.protect import PROTECTED, fold
from . import walls
from .summary import target_of

MOST = 10_000  # different things of one kind that a summary keeps apart
DENIED_RESULTS = frozenset({"EACCES", "EPERM", "EROFS"})
WRITING = frozenset({"wronly", "rdwr", "creat", "trunc", "append", "tmpfile"})
TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/", "/run/")  # noqa: S108 - named, not used
SYSTEM = ("/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/etc/", "/opt/", "/nix/")

# Beside the protected names: what a tool of the developer runs later.  Path suffix patterns, folded.
_LATER = (
    (r".*/\.github/workflows/.*", "CI runs it"),
    (r".*/\.(gitlab-ci|circleci|drone|travis)(\.yml|/.*)", "CI runs it"),
    (
        r".*/(jenkinsfile|azure-pipelines\.yml|bitbucket-pipelines\.yml|\.pre-commit-config\.yaml)",
        "CI or git runs it",
    ),
    (
        r".*/(package\.json|setup\.py|conftest\.py|build\.rs|gradlew|build\.gradle(\.kts)?)",
        "a package tool runs it",
    ),
    (r".*/(makefile|gnumakefile|justfile|rakefile|taskfile\.yml|noxfile\.py|tox\.ini)", "the build tool runs it"),
    (
        r".*/(\.config/(systemd|autostart|fish)/.*|\.local/bin/.*|bin/[^/]+)",
        "it is started, or found by PATH",
    ),
    (r".*/(\.crontab|cron\.[a-z]+/.*)", "cron runs it"),
    (r".*\.pth", "every start of Python runs it"),
)
_MADE_EXECUTABLE = "it was made executable"
LATER = tuple((re.compile(pattern), why) for pattern, why in _LATER)


def text(value: Any) -> str:
    """A string field, also where it was cut; empty for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"]) + "..."
    return ""


def number(value: Any) -> int:
    """A count, 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return int(value) if isinstance(value, int) or value - value == 0 else 0  # neither infinite nor a NaN


def items(value: Any) -> list[Any]:
    """A list field."""
    return value if isinstance(value, list) else []


_WORDS = [
    "source",
    "result",
    "verdict",
    "family",
    "call",
    "protocol",
    "type",
    "kind",
    "cause",
    "reason",
    "method",
    "scheme",
    "error",
    "sni",
    "rule",
    "hint",
    "session",
    "query",
    "trace_source",
    "change",
    "value",
    "version",
    "identity",
    "policy_digest",
    "start",
    "end",
]
_TEXTS = ["path", "to", "cwd", "workspace", "host", "name", "address"]
_NUMBERS = [
    "seq",
    "port",
    "id",
    "number",
    "count",
    "bytes_up",
    "bytes_down",
    "exit_code",
    "signal",
    "parent",
    "client_port",
    "client_socket",
    "local_port",
    "socket",
    "status",
    "denied",
    "lost",
    "duration_ms",
    "max_rss_kb",
]
_LISTS = ["argv", "command", "flags", "left_behind", "levels", "incomplete", "where"]
_LARGEST = 1 << 63


def _as_text(value: Any) -> Any:
    return value if isinstance(value, str) or value is None else {"text": text(value)} if text(value) else ""


def _as_number(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        return 0
    return value


def _as_process(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    numbers = {name: number(_as_number(value.get(name))) for name in ("pid", "start")}
    return {**numbers, "name": text(value.get("name")), "exe": text(value.get("exe"))}


def _as_access(value: Any) -> Any:
    if not isinstance(value, dict):
        return {}
    return {
        name: number(_as_number(item)) if name == "port" else item if isinstance(item, bool) else text(item)
        for name, item in value.items()
    }


_TYPES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_WORDS, lambda value: None if value is None else text(value)),
    **dict.fromkeys(_TEXTS, _as_text),
    **dict.fromkeys(_NUMBERS, _as_number),
    **dict.fromkeys(_LISTS, lambda value: [text(item) for item in items(value)]),
    "process": _as_process,
    "access": _as_access,
}


def typed(event: dict[str, Any]) -> dict[str, Any]:
    """The event with every known field of its type, and null or empty where it was of another."""
    types = _TYPES
    return {name: types[name](value) if name in types else value for name, value in event.items()}


def process_of(event: dict[str, Any]) -> tuple[int, int] | None:
    """Who did it: pid and start time."""
    process = event.get("process")
    if not isinstance(process, dict) or not number(process.get("pid")):
        return None
    return number(process["pid"]), number(process.get("start"))


def program_of(event: dict[str, Any]) -> str:
    """The name of the process, empty where it is not known."""
    process = event.get("process")
    return text(process.get("name")) if isinstance(process, dict) else ""


def is_denied(event: dict[str, Any]) -> bool:
    """Was something refused, by the policy or by the kernel in its name?"""
    kind = event["event"]
    if kind in ("AccessDenied", "NameQuarantined"):
        return True
    return event.get("verdict") == "deny" or event.get("result") in DENIED_RESULTS


def path_of(event: dict[str, Any]) -> str:
    """The path that it is about, empty where there is none."""
    if event["event"] == "AccessDenied":
        access = event.get("access")
        return text(access.get("path")) if isinstance(access, dict) and access.get("kind") != "HttpRequest" else ""
    if event["event"] == "RequestSeen":
        return ""
    return text(event.get("path"))


def request_url(event: dict[str, Any]) -> str:
    """The URL of a request, with the port where it is not the scheme's own."""
    scheme, host, port = text(event.get("scheme")), text(event.get("host")), number(event.get("port"))
    host = f"[{host}]" if ":" in host else host
    place = host if port in (0, {"http": 80, "https": 443}.get(scheme)) else f"{host}:{port}"
    return f"{scheme}://{place}{text(event.get('path'))}"


def host_of(event: dict[str, Any]) -> str:
    """The host that it is about: a name or an address."""
    source = event
    if event["event"] == "AccessDenied":
        access = event.get("access")
        source = access if isinstance(access, dict) else {}
    elif (event["event"] == "SocketCalled" and event.get("family") not in ("inet", "inet6")) or event["event"] not in (
        "NameResolved",
        "ConnectionOpened",
        "ConnectionClosed",
        "RequestSeen",
        "SocketCalled",
    ):
        return ""
    return text(source.get("host")) or text(source.get("name")) or text(source.get("address"))


# ---------------------------------------------------------------- choosing


class Filter(Value):
    """Which events; everything that is given must hold."""

    kinds: tuple[str, ...] = ()  # names of events, or their beginnings in lower case: file, process, conn
    pid: int = 0  # of the root of a process tree
    path: str = ""  # a glob: ``*`` within a component, ``**`` over several
    host: str = ""  # a name, ``*.name``, or an address
    program: str = ""
    denied: bool = False
    since: str = ""  # ISO 8601, or its beginning
    until: str = ""


class Chooser:
    """Decides event by event, in order: a process tree grows while it is read."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._tree = {wanted.pid}
        self._path = Glob(wanted.path) if wanted.path else None
        self._kinds = tuple(kind.lower() for kind in wanted.kinds)
        self._host = wanted.host.lower().rstrip(".")
        self._since, self._until = wanted.since.removesuffix("Z"), wanted.until.removesuffix("Z")

    def takes(self, event: dict[str, Any]) -> bool:
        """Is this one of those that are wanted?"""
        wanted = self._wanted
        if wanted.pid and not self._in_tree(event):
            return False
        if self._kinds and not any(_is_kind(event["event"], kind) for kind in self._kinds):
            return False
        if wanted.denied and not is_denied(event):
            return False
        if wanted.program and program_of(event) != wanted.program:
            return False
        if self._host and not _is_host(host_of(event).lower(), self._host):
            return False
        if self._path is not None:
            paths = (path_of(event), text(event.get("to")))
            if not any(each and self._path.matches(each) for each in paths):
                return False
        at = text(event.get("time")).removesuffix("Z")
        if self._since and at < self._since:
            return False
        return not self._until or at <= self._until or at.startswith(self._until)

    def _in_tree(self, event: dict[str, Any]) -> bool:
        who = process_of(event)
        if who is None:
            return False
        if event["event"] == "ProcessStarted" and number(event.get("parent")) in self._tree:
            self._tree.add(who[0])
        if who[0] not in self._tree:
            return False
        if event["event"] == "ProcessExited" and who[0] != self._wanted.pid:
            self._tree.discard(who[0])  # the number may be given to a stranger
        return True


def chosen(events: Iterable[dict[str, Any]], wanted: Filter) -> Iterator[dict[str, Any]]:
    """Those of ``events`` that ``wanted`` asks for."""
    return filter(Chooser(wanted).takes, events)


def _is_kind(event: str, kind: str) -> bool:
    name = event.lower()
    return (
        name.startswith(kind)
        or {"exec": "processstarted", "exit": "processexited", "dns": "nameresolved"}.get(kind) == name
    )


def _is_host(host: str, wanted: str) -> bool:
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


class Glob:
    """A path glob: ``*`` and ``?`` stay within a component, ``**`` stands for any number of them.

    Without a slash it is about the last component.  No backtracking over the whole: a path is chosen inside, and may
    be as long and as repetitive as somebody likes.
    """

    def __init__(self, pattern: str) -> None:
        self._parts = (pattern if "/" in pattern else "**/" + pattern).split("/")

    def matches(self, path: str) -> bool:
        """Does the whole of ``path`` match?"""
        return _match(self._parts, path.split("/"), "**", _component)


def _component(pattern: str, name: str) -> bool:
    return _match(pattern, name, "*", lambda char, have: char in ("?", have))


def _match(pattern: Sequence[str], have: Sequence[str], star: str, same: Callable[[str, str], bool]) -> bool:
    """Match with stars in at most length times length steps: only the last star is ever tried again."""
    at = index = 0
    last, mark = -1, 0
    while index < len(have):
        if at < len(pattern) and pattern[at] == star:
            last, mark = at, index
            at += 1
        elif at < len(pattern) and same(pattern[at], have[index]):
            at += 1
            index += 1
        elif last >= 0:
            mark += 1
            at, index = last + 1, mark
        else:
            return False
    return all(part == star for part in pattern[at:])


# ---------------------------------------------------------------- summary


class _Counted:
    """A bounded table of things seen."""

    def __init__(self) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.beyond = 0

    def row(self, key: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MOST:
                self.beyond += 1
                return make()
            row = self.rows[key] = make()
        return row


def runs_later(path: str) -> str:
    """Why something outside may run or obey ``path`` later; empty for an ordinary file."""
    parts = fold(path).strip("/").split("/")
    if parts[-2:-1] == ["hooks"] and parts[-1].endswith(".sample"):
        return ""  # git runs hooks by their exact names; a sample that gets one is told then
    git = parts.index(".git") if ".git" in parts[:-1] else len(parts)
    # Rows by the first component, so that a path costs its length and not that times the table.
    found = [
        (number, row)
        for at, part in enumerate(parts)
        for number, wanted, row in (*_EXACT.get(part, ()), *_STARRED)
        if (row.where == "tree" or git < at)
        and len(parts) - at >= len(wanted)
        and all(_same(have, want) for have, want in zip(parts[at:], wanted, strict=False))
    ]
    if found:
        first: Protected = min(found, key=lambda each: each[0])[1]
        return first.reason
    folded = "/" + "/".join(parts)
    for pattern, why in LATER:
        if pattern.fullmatch(folded):
            return why
    return ""


_Row = tuple[int, list[str], Protected]  # place in the table, components of the name


def _rows_by_first() -> tuple[dict[str, list[_Row]], list[_Row]]:
    """(rows of ``PROTECTED`` by the first component of their name, those whose first component has a star)."""
    exact: dict[str, list[_Row]] = {}
    starred: list[_Row] = []
    for number, row in enumerate(PROTECTED):
        wanted = row.name.split("/")
        (starred if "*" in wanted[0] else exact.setdefault(wanted[0], [])).append((number, wanted, row))
    return exact, starred


_EXACT, _STARRED = _rows_by_first()


def _same(have: str, want: str) -> bool:
    before, star, after = want.partition("*")
    return have == want if not star else have.startswith(before) and have.endswith(after)


def _executable(mode: str) -> bool:
    try:
        return bool(int(mode, 8) & 0o111)
    except ValueError:
        return False


def is_temporary(path: str) -> bool:
    """Is it in a place that the sandbox has for itself and that ends with it?"""
    return path.startswith(TEMPORARY) or path in ("/tmp", "/dev")  # noqa: S108


class Summary:
    """What a run comes to; ``add`` its events in order, then ask ``data``."""

    def __init__(self) -> None:
        self.session: dict[str, Any] = {}
        self.ended: dict[str, Any] = {}
        self.first = self.last = ""
        self.sources: set[str] = set()
        self.counts: dict[str, int] = {}
        self.defects = 0  # failures by a defect of ours
        self._programs, self._written, self._read = _Counted(), _Counted(), _Counted()
        self._connections, self._requests, self._refused = _Counted(), _Counted(), _Counted()
        self._later, self._lost, self._moved = _Counted(), _Counted(), _Counted()
        self._open: dict[int, dict[str, Any]] = {}
        self._workspace = ""
        self._directories: set[str] = set()  # that were made: their mode bits make nothing executable
        self._requested = False

    def add(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind = event["event"]
        at = text(event["time"])
        self.first = self.first or at
        self.last = max(self.last, at)
        self.sources.add(text(event.get("source")))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._requested = self._requested or event.get("requested") is True
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(event)

    def _on_SessionStarted(self, event: dict[str, Any]) -> None:
        self.session = self.session or event
        self._workspace = text(self.session.get("workspace"))

    def _on_SessionEnded(self, event: dict[str, Any]) -> None:
        self.ended = event

    def _on_ProcessStarted(self, event: dict[str, Any]) -> None:
        path, asked = text(event.get("path")), event.get("asked")
        if path.startswith("/dev/fd/") and isinstance(asked, dict):
            path = text(asked.get("path")) or path  # a program that was executed by its descriptor
        row = self._programs.row(path, lambda: {"path": path, "count": 0, "failed": 0, "first": event.get("argv")})
        row["count" if not event.get("result") else "failed"] += 1

    def _wrote(self, event: dict[str, Any], how: str, path: str, why: str = "") -> None:
        """``why``: something may run it later, whatever its name is."""
        if event.get("result"):
            if event.get("result") in DENIED_RESULTS:
                self._kernel_refused(event, path, "write")
            return
        if self._is_temporary(path) or not path:
            return
        row = self._written.row(path, lambda: {"path": path, "how": [], "count": 0, "by": program_of(event)})
        row["count"] += 1
        if how not in row["how"] and len(row["how"]) < 8:
            row["how"].append(how)
        if event.get("outside_workspace"):
            row["outside_workspace"] = True
        if how == "removed":
            self._later.rows.pop(path, None)
        elif why := why or runs_later(path):
            self._later.row(path, lambda: {"path": path, "why": why, "by": program_of(event)})

    def _is_temporary(self, path: str) -> bool:
        """A workspace below /tmp is none."""
        inside = bool(self._workspace) and f"{path}/".startswith(self._workspace.rstrip("/") + "/")
        return is_temporary(path) and not inside

    def _on_FileOpened(self, event: dict[str, Any]) -> None:
        path = text(event.get("path"))
        if WRITING & {flag for flag in items(event.get("flags")) if isinstance(flag, str)}:
            self._wrote(event, "written", path)
        elif event.get("result"):
            if event.get("result") in DENIED_RESULTS:
                self._kernel_refused(event, path, "read")
        elif event.get("outside_workspace") and not self._is_temporary(path):
            top = next((prefix for prefix in SYSTEM if path.startswith(prefix)), "")
            key = f"{top}**" if top else path
            row = self._read.row(key, lambda: {"path": key, "count": 0, "by": program_of(event)})
            row["count"] += 1

    def _on_FileCreated(self, event: dict[str, Any]) -> None:
        path, kind = text(event.get("path")), text(event.get("type"))
        if kind == "directory" and len(self._directories) < MOST:
            self._directories.add(path)
        self._wrote(event, f"created {kind}".strip(), path)

    def _on_FileChanged(self, event: dict[str, Any]) -> None:
        path, change, value = (text(event.get(name)) for name in ("path", "change", "value"))
        if change == "mode" and path not in self._directories:
            if _executable(value):
                self._wrote(event, f"mode {value}", path, _MADE_EXECUTABLE)
                return
            if not event.get("result") and self._later.rows.get(path, {}).get("why") == _MADE_EXECUTABLE:
                del self._later.rows[path]
        self._wrote(event, f"{change} {value}", path)

    def _on_FileRemoved(self, event: dict[str, Any]) -> None:
        self._wrote(event, "removed", text(event.get("path")))

    def _on_FileRenamed(self, event: dict[str, Any]) -> None:
        path = text(event.get("path"))
        why = text(self._later.rows.get(path, {}).get("why"))
        self._wrote(event, "removed", path)
        self._wrote(event, "renamed", text(event.get("to")), why if why == _MADE_EXECUTABLE else "")

    def _on_NameQuarantined(self, event: dict[str, Any]) -> None:
        path = text(event.get("path"))
        self._moved.row(path, lambda: {"path": path, "to": text(event.get("to"))})

    def _on_ConnectionOpened(self, event: dict[str, Any]) -> None:
        host, port = text(event.get("host")) or text(event.get("address")), number(event.get("port"))
        protocol = text(event.get("protocol"))
        row = self._connections.row(
            (host, port, protocol == "udp"),
            lambda: {
                "host": host,
                "port": port,
                "protocol": protocol,
                "count": 0,
                "bytes_up": 0,
                "bytes_down": 0,
                "errors": 0,
                "by": [],
            },
        )
        row["count"] += 1
        name = program_of(event)
        if name and name not in row["by"] and len(row["by"]) < 8:
            row["by"].append(name)
        if len(self._open) < MOST:
            self._open[number(event.get("id"))] = row

    def _on_ConnectionClosed(self, event: dict[str, Any]) -> None:
        row = self._open.pop(number(event.get("id")), None)
        if row is not None:
            row["bytes_up"] += number(event.get("bytes_up"))
            row["bytes_down"] += number(event.get("bytes_down"))
            row["errors"] += bool(event.get("error"))

    def _on_RequestSeen(self, event: dict[str, Any]) -> None:
        key = tuple(text(event.get(name)) for name in ("method", "scheme", "host", "path", "verdict"))
        row = self._requests.row(
            (*key, number(event.get("port"))),
            lambda: {
                **dict(zip(("method", "scheme", "host", "path", "verdict"), key, strict=True)),
                "port": number(event.get("port")),
                "count": 0,
                "status": [],
            },
        )
        row["count"] += 1
        status = number(event.get("status"))
        if status not in row["status"] and len(row["status"]) < 8:
            row["status"].append(status)

    def _on_AccessDenied(self, event: dict[str, Any]) -> None:
        access = event.get("access")
        if not isinstance(access, dict):
            return
        target, reason = asked(access), text(event.get("reason"))
        row = self._refused.row(
            (target, reason),
            lambda: {
                "target": target,
                "reason": reason,
                "count": 0,
                "allow": event.get("hint"),
                "rule": event.get("rule"),
                "by": program_of(event),
            },
        )
        row["count"] += max(1, number(event.get("count")))

    def _kernel_refused(self, event: dict[str, Any], path: str, operation: str) -> None:
        result = text(event.get("result"))
        row = self._refused.row(
            (path, result, operation),
            lambda: {
                "target": path,
                "reason": f"{operation}: {result}",
                "count": 0,
                "allow": None,
                "rule": None,
                "by": program_of(event),
            },
        )
        row["count"] += 1

    def _on_DefectSeen(self, event: dict[str, Any]) -> None:
        self.defects += max(1, number(event.get("count")))

    def _on_EventsLost(self, event: dict[str, Any]) -> None:
        key = (text(event.get("source")), text(event.get("kind")), text(event.get("cause")))
        row = self._lost.row(
            key,
            lambda: {
                "kind": text(event.get("kind")),
                "cause": text(event.get("cause")),
                "count": 0,
                "start": text(event.get("start")),
            },
        )
        row["count"] += number(event.get("count"))
        row["end"] = text(event.get("end"))

    # ------------------------------------------------------------ answer

    def gaps(self, problems: Iterable[str] = (), running: bool = False) -> list[str]:
        """Why the record does not hold everything; empty when it does."""
        out = [
            f"{row['count']} events of {row['kind']} were lost"
            + (f" ({row['cause']})" if row["cause"] else "")
            + f" between {row['start']} and {row['end']}"
            for row in self._lost.rows.values()
            if row["count"] or not row["cause"]
        ]
        # Of these nobody knows how many there are.
        ends = [f"{row['kind']}: {row['cause']}" for row in self._lost.rows.values() if not row["count"]]
        ends += [line for line in map(text, items(self.ended.get("incomplete"))) if line not in ends]
        out += [f"events may be missing: {line}" for line in ends]
        if self.defects and not self.ended:
            out.append(f"events may be missing: network: {self.defects} failures by a defect")
        out += list(problems)
        if not self.session:
            out.append("the beginning of the session is missing")
        if not self.ended:
            out.append("the session is still running" if running else "the end of the session is missing")
        out += [
            f"{table.beyond} more than {MOST} {what} are not told apart"
            for table, what in (
                (self._programs, "programs"),
                (self._written, "written files"),
                (self._read, "read files"),
                (self._connections, "destinations"),
                (self._requests, "requests"),
                (self._refused, "refusals"),
            )
            if table.beyond
        ]
        return out

    def blind(self) -> list[str]:
        """What the sources of this record cannot see at all."""
        source = text(self.session.get("trace_source"))
        if "ebpf" in source or "ebpf" in self.sources:
            return []
        if "notify" in source or "notify" in self.sources:
            return [
                "results of calls are predictions (source: notify)",
                "files that were only read, unless trace: full",
                *(
                    text(binding.get("mechanism"))
                    for binding in items(self.session.get("assurance"))
                    if isinstance(binding, dict) and binding.get("rule") == "trace"
                ),
            ]
        return ["programs and files were not watched: there was no tracer (only protected names are seen)"]

    def silent(self) -> list[str]:
        """The walls of whose refusals this record has no event, as the session said when it began."""
        bindings = [each for each in items(self.session.get("assurance")) if isinstance(each, dict)]
        told = [text(each.get("mechanism")) for each in bindings if each.get("rule") == walls.RULE]
        return [wall for line in told for wall in line.split("; ")]

    def data(self, problems: Iterable[str] = (), running: bool = False) -> dict[str, Any]:
        """The whole answer, as JSON can hold it.

        Args:
            problems: what could not be read of the record.
            running: somebody still writes to it.
        """
        gaps = self.gaps(problems, running)
        blind = self.blind()
        ended = self.ended
        left = list(self._later.rows.values())
        known = {row["path"] for row in left}
        left += [
            {"path": path, "why": "a protected name that could not be moved away", "by": ""}
            for path in map(text, items(ended.get("left_behind")))
            if path not in known
        ]
        return {
            "session": text(self.session.get("session")) or text(ended.get("session")),
            "command": [text(word) for word in items(self.session.get("command"))],
            "workspace": text(self.session.get("workspace")),
            "trace_source": text(self.session.get("trace_source")),
            "started": text(self.session.get("time")) or self.first,
            "ended": text(ended.get("time")) or None,
            "exit_code": ended.get("exit_code"),
            "signal": ended.get("signal"),
            "duration_ms": ended.get("duration_ms"),
            "events": self.counts,
            "programs": sorted(self._programs.rows.values(), key=lambda row: -row["count"]),
            "written": list(self._written.rows.values()),
            "read_outside": sorted(self._read.rows.values(), key=lambda row: row["path"]),
            "connections": sorted(
                self._connections.rows.values(), key=lambda row: -row["bytes_up"] - row["bytes_down"]
            ),
            "requests": list(self._requests.rows.values()),
            "refused": sorted(self._refused.rows.values(), key=lambda row: -row["count"]),
            "left": left,
            "moved_away": list(self._moved.rows.values()),
            "silent": self.silent(),
            "complete": not gaps and not blind,
            "gaps": gaps,
            "not_seen": blind,
        }


def asked(access: dict[str, Any]) -> str:
    """What was asked for in an ``AccessDenied``."""
    plain = {name: text(value) if isinstance(value, (str, dict)) else value for name, value in access.items()}
    plain["port"] = number(access.get("port"))
    return target_of(plain)


def summarise(events: Iterable[dict[str, Any]]) -> Summary:
    """All of ``events`` in one summary."""
    summary = Summary()
    for event in events:
        summary.add(event)
    return summary
