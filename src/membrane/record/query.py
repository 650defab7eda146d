"""Questions to a record: which events, who did it, and what the run comes to.

Theory of operation
-------------------
Events come in order and typed (``recorded``); every function takes an iterable and keeps a bounded amount of it.  A
process is its pid with its start time, never the pid alone.  Everything in an event is text from inside the sandbox or
a number that it chose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .. import events as ev
from ..value import Value
from ..workspace.names import Protected
from ..workspace.protect import PROTECTED, fold
from . import coverage
from .recorded import Recorded, asked
from .summary import target_of

MOST = 10_000  # different things of one kind that a summary keeps apart
DENIED_RESULTS = frozenset({"EACCES", "EPERM", "EROFS"})
READS = "files that were only read (trace: {mode: full} records them)"
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


def is_denied(each: Recorded) -> bool:
    """Was something refused, by the policy or by the kernel in its name?"""
    if isinstance(each.event, ev.AccessDenied | ev.NameQuarantined):
        return True
    return each.verdict == "deny" or each.result in DENIED_RESULTS


def path_of(each: Recorded) -> str:
    """The path that it is about, empty where there is none."""
    event = each.event
    if isinstance(event, ev.AccessDenied):
        access = asked(event.access)
        return "" if access.kind == "HttpRequest" else access.path
    return "" if isinstance(event, ev.RequestSeen) else each.path


def request_url(scheme: str, host: str, port: int, path: str) -> str:
    """The URL of a request, with the port where it is not the scheme's own."""
    host = f"[{host}]" if ":" in host else host
    place = host if port in (0, {"http": 80, "https": 443}.get(scheme)) else f"{host}:{port}"
    return f"{scheme}://{place}{path}"


def host_of(each: Recorded) -> str:
    """The host that it is about: a name or an address."""
    event = each.event
    if isinstance(event, ev.AccessDenied):
        access = asked(event.access)
        return access.host or access.name or access.address
    if isinstance(event, ev.NameResolved):
        return event.name or event.address
    if isinstance(event, ev.ConnectionOpened):
        return event.host or event.address
    if isinstance(event, ev.RequestSeen):
        return event.host
    if isinstance(event, ev.SocketCalled) and event.family in ("inet", "inet6"):
        return each.host or event.address
    return each.host if isinstance(event, ev.ConnectionClosed) else ""


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

    def takes(self, each: Recorded) -> bool:
        """Is this one of those that are wanted?"""
        wanted = self._wanted
        if wanted.pid and not self._in_tree(each):
            return False
        if self._kinds and not any(_is_kind(each.kind, kind) for kind in self._kinds):
            return False
        if wanted.denied and not is_denied(each):
            return False
        if wanted.program and each.program != wanted.program:
            return False
        if self._host and not _is_host(host_of(each).lower(), self._host):
            return False
        if self._path is not None and not any(path and self._path.matches(path) for path in (path_of(each), each.to)):
            return False
        at = each.time.removesuffix("Z")
        if self._since and at < self._since:
            return False
        return not self._until or at <= self._until or at.startswith(self._until)

    def _in_tree(self, each: Recorded) -> bool:
        who, event = each.who, each.event
        if who is None:
            return False
        if isinstance(event, ev.ProcessStarted) and event.parent in self._tree:
            self._tree.add(who[0])
        if who[0] not in self._tree:
            return False
        if isinstance(event, ev.ProcessExited) and who[0] != self._wanted.pid:
            self._tree.discard(who[0])  # the number may be given to a stranger
        return True


def chosen(events: Iterable[Recorded], wanted: Filter) -> Iterator[Recorded]:
    """Those of ``events`` that ``wanted`` asks for."""
    return filter(Chooser(wanted).takes, events)


SHORT_KINDS = {"exec": "processstarted", "exit": "processexited", "dns": "nameresolved"}


def _is_kind(event: str, kind: str) -> bool:
    name = event.lower()
    return name.startswith(kind) or SHORT_KINDS.get(kind) == name


def is_kind(kind: str) -> bool:
    """Is there an event that ``Filter.kinds`` would choose by this word?"""
    return any(_is_kind(name, kind.lower()) for name in ev.EVENTS)


def _is_host(host: str, wanted: str) -> bool:
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


class Glob:
    """A path glob: ``*`` and ``?`` stay within a component, ``**`` is any number of them.

    Without a slash it is about the last component.  No backtracking over the whole: a path is chosen inside, and may
    be as long and as repetitive as its author likes.
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

    def row(self, key: Any, **new: Any) -> dict[str, Any]:
        """The row of ``key``, which is ``new`` when there is none yet."""
        if key in self.rows:
            return self.rows[key]
        if len(self.rows) >= MOST:
            self.beyond += 1
            return new
        return self.rows.setdefault(key, new)


def runs_later(path: str) -> str:
    """Why something outside may run or obey ``path`` later; empty for an ordinary file."""
    parts = fold(path).strip("/").split("/")
    if parts[-2:-1] == ["hooks"] and parts[-1].endswith(".sample"):
        return ""  # git runs hooks by their exact names; a sample that gets one is reported then
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
        self.started: tuple[Recorded, ev.SessionStarted] | None = None
        self.ended: tuple[Recorded, ev.SessionEnded] | None = None
        self.first = ""
        self.sources: set[str] = set()
        self.counts: dict[str, int] = {}
        self.defects = 0  # failures by a defect of ours
        self._programs, self._written, self._read = _Counted(), _Counted(), _Counted()
        self._connections, self._requests, self._refused = _Counted(), _Counted(), _Counted()
        self._later, self._lost, self._moved = _Counted(), _Counted(), _Counted()
        self._open: dict[int, dict[str, Any]] = {}
        self._workspace = ""
        self._directories: set[str] = set()  # that were made: their mode bits make nothing executable

    def add(self, each: Recorded) -> None:
        """Take one event."""
        self.first = self.first or each.time
        self.sources.add(each.source)
        self.counts[each.kind] = self.counts.get(each.kind, 0) + 1
        handler = getattr(self, f"_on_{each.kind}", None)
        if handler is not None:
            handler(each, each.event)

    def _on_SessionStarted(self, each: Recorded, event: ev.SessionStarted) -> None:
        if self.started is None:
            self.started = each, event
            self._workspace = event.workspace

    def _on_SessionEnded(self, each: Recorded, event: ev.SessionEnded) -> None:
        self.ended = each, event

    def _on_ProcessStarted(self, each: Recorded, event: ev.ProcessStarted) -> None:
        path = event.path
        if path.startswith("/dev/fd/") and each.request is not None:
            path = each.request.path or path  # a program that was executed by its descriptor
        row = self._programs.row(path, path=path, count=0, failed=0, first=list(event.argv))
        row["count" if not event.result else "failed"] += 1

    def _wrote(self, each: Recorded, how: str, path: str, why: str = "") -> None:
        """``why``: something may run it later, whatever its name is."""
        if each.result:
            if each.result in DENIED_RESULTS:
                self._kernel_refused(each, path, "write")
            return
        if self._is_temporary(path) or not path:
            return
        row = self._written.row(path, path=path, how=[], count=0, by=each.program)
        row["count"] += 1
        if how not in row["how"] and len(row["how"]) < 8:
            row["how"].append(how)
        if getattr(each.event, "outside_workspace", False):
            row["outside_workspace"] = True
        if how == "removed":
            self._later.rows.pop(path, None)
        elif why := why or runs_later(path):
            self._later.row(path, path=path, why=why, by=each.program)

    def _is_temporary(self, path: str) -> bool:
        """A workspace below /tmp is none."""
        inside = bool(self._workspace) and f"{path}/".startswith(self._workspace.rstrip("/") + "/")
        return is_temporary(path) and not inside

    def _on_FileOpened(self, each: Recorded, event: ev.FileOpened) -> None:
        path = event.path
        if WRITING.intersection(event.flags):
            self._wrote(each, "written", path)
        elif event.result:
            if event.result in DENIED_RESULTS:
                self._kernel_refused(each, path, "read")
        elif event.outside_workspace and not self._is_temporary(path):
            top = next((prefix for prefix in SYSTEM if path.startswith(prefix)), "")
            key = f"{top}**" if top else path
            row = self._read.row(key, path=key, count=0, by=each.program)
            row["count"] += 1

    def _on_FileCreated(self, each: Recorded, event: ev.FileCreated) -> None:
        if event.type == "directory" and len(self._directories) < MOST:
            self._directories.add(event.path)
        self._wrote(each, f"created {event.type}".strip(), event.path)

    def _on_FileChanged(self, each: Recorded, event: ev.FileChanged) -> None:
        path = event.path
        if event.change == "mode" and path not in self._directories:
            if _executable(event.value):
                self._wrote(each, f"mode {event.value}", path, _MADE_EXECUTABLE)
                return
            if not event.result and self._later.rows.get(path, {}).get("why") == _MADE_EXECUTABLE:
                del self._later.rows[path]
        self._wrote(each, f"{event.change} {event.value}", path)

    def _on_FileRemoved(self, each: Recorded, event: ev.FileRemoved) -> None:
        self._wrote(each, "removed", event.path)

    def _on_FileRenamed(self, each: Recorded, event: ev.FileRenamed) -> None:
        why = self._later.rows.get(event.path, {}).get("why")
        self._wrote(each, "removed", event.path)
        self._wrote(each, "renamed", event.to, _MADE_EXECUTABLE if why == _MADE_EXECUTABLE else "")

    def _on_NameQuarantined(self, _each: Recorded, event: ev.NameQuarantined) -> None:
        self._moved.row(event.path, path=event.path, to=event.to)

    def _on_ConnectionOpened(self, each: Recorded, event: ev.ConnectionOpened) -> None:
        host, port, protocol = event.host or event.address, event.port, event.protocol
        place, nothing = (host, port, protocol == "udp"), {"count": 0, "bytes_up": 0, "bytes_down": 0, "errors": 0}
        row = self._connections.row(place, host=host, port=port, protocol=protocol, **nothing, by=[])
        row["count"] += 1
        name = each.program
        if name and name not in row["by"] and len(row["by"]) < 8:
            row["by"].append(name)
        if len(self._open) < MOST:
            self._open[event.id] = row

    def _on_ConnectionClosed(self, _each: Recorded, event: ev.ConnectionClosed) -> None:
        row = self._open.pop(event.id, None)
        if row is not None:
            row["bytes_up"] += event.bytes_up
            row["bytes_down"] += event.bytes_down
            row["errors"] += bool(event.error)

    def _on_RequestSeen(self, _each: Recorded, event: ev.RequestSeen) -> None:
        key = {name: getattr(event, name) for name in ("method", "scheme", "host", "path", "verdict", "port")}
        row = self._requests.row(tuple(key.values()), **key, count=0, status=[])
        row["count"] += 1
        if event.status not in row["status"] and len(row["status"]) < 8:
            row["status"].append(event.status)

    def _on_AccessDenied(self, each: Recorded, event: ev.AccessDenied) -> None:
        target, reason = target_of(event.access), event.reason
        self._refuse(each, (target, reason), target, reason, max(1, event.count), event.hint, event.rule)

    def _kernel_refused(self, each: Recorded, path: str, operation: str) -> None:
        self._refuse(each, (path, each.result, operation), path, f"{operation}: {each.result}", 1, None, None)

    def _refuse(
        self, each: Recorded, key: object, target: str, reason: str, count: int, allow: str | None, rule: str | None
    ) -> None:
        row = self._refused.row(key, target=target, reason=reason, count=0, allow=allow, rule=rule, by=each.program)
        row["count"] += count

    def _fold_refusals(self) -> None:
        """A refused write is told by the policy, with its reason, and by the call, with its errno: one refusal."""
        told = {key[0] for key in self._refused.rows if len(key) == 2}
        for key in [key for key in self._refused.rows if len(key) == 3]:
            path = key[0]
            inside = path[len(self._workspace) + 1 :] if path.startswith(f"{self._workspace}/") else path
            if key[2] == "write" and not told.isdisjoint((path, inside)):
                del self._refused.rows[key]

    def _on_DefectSeen(self, _each: Recorded, event: ev.DefectSeen) -> None:
        self.defects += max(1, event.count)

    def _on_EventsLost(self, each: Recorded, event: ev.EventsLost) -> None:
        key = each.source, event.kind, event.cause
        row = self._lost.row(key, kind=event.kind, cause=event.cause, count=0, start=event.start)
        row["count"] += event.count
        row["end"] = event.end

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
        # Of these the number is not known.
        ends = [f"{row['kind']}: {row['cause']}" for row in self._lost.rows.values() if not row["count"]]
        if self.ended is not None:
            ends += [line for line in self.ended[1].incomplete if line not in ends]
        out += [f"events may be missing: {line}" for line in ends]
        if self.defects and not self.ended:
            out.append(f"events may be missing: network: {self.defects} failures by a defect")
        out += list(problems)
        if self.started is None:
            out.append("the beginning of the session is missing")
        if not self.ended:
            out.append("the session is still running" if running else "the end of the session is missing")
        out += [
            f"{table.beyond} more than {MOST} {what} are not distinguished"
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
        source = "" if self.started is None else self.started[1].trace_source
        if "ebpf" in source or "ebpf" in self.sources:
            return []
        if "notify" in source or "notify" in self.sources:
            return [
                "results of calls are predictions (source: notify)",
                *(() if self._reads() else (READS,)),
                *(binding.mechanism for binding in self._assurance("trace")),
            ]
        return ["programs and files were not watched: there was no tracer (only protected names are seen)"]

    def _reads(self) -> bool:
        """Are opens for reading on the record?  The session said which refusals of them leave no event."""
        silent = self.silent()
        return bool(silent) and coverage.READS_OUTSIDE not in silent

    def silent(self) -> list[str]:
        """The refusals of which this record has no event, as the session said when it began."""
        return [refusal for binding in self._assurance(coverage.RULE) for refusal in binding.mechanism.split("; ")]

    def _assurance(self, rule: str) -> list[ev.Binding]:
        return [] if self.started is None else [each for each in self.started[1].assurance if each.rule == rule]

    def data(self, problems: Iterable[str] = (), running: bool = False) -> dict[str, Any]:
        """The whole answer, as JSON can hold it.

        Args:
            problems: what could not be read of the record.
            running: it is still written to.
        """
        gaps = self.gaps(problems, running)
        blind = self.blind()
        self._fold_refusals()
        started, ended = self.started, self.ended
        session = started or ended
        left = list(self._later.rows.values())
        known = {row["path"] for row in left}
        left += [
            {"path": path, "why": "a protected name that could not be moved away", "by": ""}
            for path in (ended[1].left_behind if ended else ())
            if path not in known
        ]
        return {
            "session": session[0].session if session else "",
            "command": list(started[1].command) if started else [],
            "workspace": self._workspace,
            "trace_source": started[1].trace_source if started else "",
            "started": started[0].time if started else self.first,
            "ended": ended[0].time if ended else None,
            "exit_code": ended[1].exit_code if ended else None,
            "signal": ended[1].signal if ended else None,
            "duration_ms": ended[1].duration_ms if ended else None,
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


def summarise(events: Iterable[Recorded]) -> Summary:
    """All of ``events`` in one summary."""
    summary = Summary()
    for each in events:
        summary.add(each)
    return summary
