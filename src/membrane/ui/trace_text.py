"""The record as text: one line per event, and the summary.

Theory of operation
-------------------
Pure: events in, lines out.  Every text that comes from inside is made visible again and cut, although the writer has
escaped it: what a file holds is not believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..record.query import READS, is_denied, request_url
from ..record.summary import ending, shorten, size, target_of, tilde

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .. import events as ev
    from ..record.recorded import Recorded

WIDE = 160  # characters of one value before it is cut in the middle
MOST_ROWS = 20  # of one section of a summary
_RED, _DIM, _BOLD, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def _show(value: str, wide: int = WIDE) -> str:
    return shorten(value, wide)


def _endpoint(host: str, port: int) -> str:
    name = _show(host)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _more(value: str | None) -> str:
    """What is said only where there is something to say."""
    return f"  {_show(value)}" if value else ""


def _repeated(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _started(_each: Recorded, event: ev.SessionStarted) -> str:
    words = _show(" ".join(event.command))
    return f"{words}  in {_show(event.workspace)}  traced by {_show(event.trace_source)}"


def _process_started(_each: Recorded, event: ev.ProcessStarted) -> str:
    return f"{_show(' '.join(event.argv)) or _show(event.path)}  in {_show(event.cwd)}"


def _ended(_each: Recorded, event: ev.SessionEnded | ev.ProcessExited) -> str:
    how = f"signal {event.signal}" if event.signal else f"exit {event.exit_code}"
    return f"{how} after {int(event.duration_ms)} ms"


def _checkpoint(_each: Recorded, event: ev.CheckpointMade | ev.CheckpointRestored) -> str:
    return f"{_show(event.checkpoint)} of {_show(event.change_set)}"


def _opened(_each: Recorded, event: ev.FileOpened) -> str:
    return f"{_show(event.path)}  {_show(','.join(event.flags), 60)}"


def _created(_each: Recorded, event: ev.FileCreated) -> str:
    to = f" -> {_show(event.to)}" if event.to else ""
    return f"{_show(event.type)} {_show(event.path)}{to}"


def _moved(_each: Recorded, event: ev.FileRenamed | ev.NameQuarantined) -> str:
    return f"{_show(event.path)} -> {_show(event.to)}"


def _changed(_each: Recorded, event: ev.FileChanged) -> str:
    return f"{_show(event.path)}  {_show(event.change)} {_show(event.value)}"


def _called(each: Recorded, event: ev.SocketCalled) -> str:
    address = _endpoint(event.address, event.port) if event.family in ("inet", "inet6") else _show(event.address)
    name = f"  ({_show(each.host)})" if each.host else ""
    return f"{_show(event.call)} {_show(event.family)} {address}{name}"


def _resolved(_each: Recorded, event: ev.NameResolved) -> str:
    return f"{_show(event.name)} {_show(event.type)} {_show(event.address)}"


def _connected(_each: Recorded, event: ev.ConnectionOpened) -> str:
    where = _endpoint(event.host or event.address, event.port)
    return f"#{event.id} {_show(event.protocol)} {where}  {_show(event.address)}"


def _closed(each: Recorded, event: ev.ConnectionClosed) -> str:
    where = f" {_endpoint(each.host, each.port)}" if each.host else ""
    return f"#{event.id}{where}  up {size(event.bytes_up)}, down {size(event.bytes_down)}{_more(event.error)}"


def _request(_each: Recorded, event: ev.RequestSeen) -> str:
    url = shorten(request_url(event.scheme, event.host, event.port, event.path), 2 * WIDE)
    return f"#{event.id} {_show(event.method)} {url}  {event.status}{_more(event.error)}"


def _denied(_each: Recorded, event: ev.AccessDenied) -> str:
    what = _show(target_of(event.access))
    return f"{what}{_repeated(event.count)}  {_show(event.reason)}{_more(event.hint or event.rule)}"


def _answered(_each: Recorded, event: ev.AccessAnswered) -> str:
    return f"{_show(target_of(event.access))}  {_show(event.answer)}"


def _defect(_each: Recorded, event: ev.DefectSeen) -> str:
    return f"{_show(event.error)} at {_show(event.where[-1] if event.where else '')}{_repeated(event.count)}"


def _lost(_each: Recorded, event: ev.EventsLost) -> str:
    if not event.count and event.cause:
        return f"perhaps some of {_show(event.kind)}{_more(event.cause)}"
    return f"{event.count} of {_show(event.kind)}  {_show(event.start)} .. {_show(event.end)}{_more(event.cause)}"


_TEXTS: dict[str, Callable[[Recorded, Any], str]] = {
    "SessionStarted": _started,
    "SessionEnded": _ended,
    "CheckpointMade": _checkpoint,
    "CheckpointRestored": _checkpoint,
    "ContainerSeen": lambda _each, event: (
        f"{_show(event.container, 12)} {_show(event.name)}, image {_show(event.image)}"
    ),
    "ProcessStarted": _process_started,
    "ProcessExited": _ended,
    "FileOpened": _opened,
    "FileCreated": _created,
    "FileRemoved": lambda _each, event: _show(event.path),
    "FileRenamed": _moved,
    "FileChanged": _changed,
    "NameQuarantined": _moved,
    "SocketCalled": _called,
    "NameResolved": _resolved,
    "ConnectionOpened": _connected,
    "ConnectionClosed": _closed,
    "RequestSeen": _request,
    "AccessDenied": _denied,
    "AccessAnswered": _answered,
    "DefectSeen": _defect,
    "EventsLost": _lost,
}


def event_line(each: Recorded, colour: bool = False) -> str:
    """One event as one line: time, who, what."""
    name = shorten(f"{each.program}[{each.who[0]}]" if each.who else each.source, 24)
    if each.container:
        name += f" ({_show(each.container, 80)})"
    make = _TEXTS.get(each.kind)
    body = make(each, each.event) if make is not None else ""
    asked_only = "  (requested)" if each.requested else ""
    at, kind = shorten(each.time[11:23], 12), shorten(each.kind, 18)
    line = f"{at:<12}  {name:<18} {kind:<17} {body}{_more(each.result)}{asked_only}"
    if colour:
        if is_denied(each):
            return f"{_RED}{line}{_PLAIN}"
        return f"{_DIM}{line[:12]}{_PLAIN}{line[12:]}"
    return line


# ---------------------------------------------------------------- summary


def _rows(lines: list[str], title: str, rows: list[str], empty: str = "none") -> None:
    lines.append(title if rows else f"{title}: {empty}")
    lines += [f"  {row}" for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"  ... and {len(rows) - MOST_ROWS} more")


def _times(row: dict[str, Any]) -> str:
    return f"  {row['count']} times" if row["count"] > 1 else ""


def _by(row: dict[str, Any]) -> str:
    by = row["by"]
    names = by if isinstance(by, list) else [by] if by else []
    return f"  by {shorten(', '.join(names), 60)}" if names else ""


def _url(row: dict[str, Any]) -> str:
    return request_url(row["scheme"], row["host"], row["port"], row["path"])


def summary_lines(data: dict[str, Any], home: str = "", colour: bool = False) -> list[str]:
    """The text of ``membrane trace summary``."""

    def path(value: str) -> str:
        return shorten(tilde(value, home), 100)

    blind = bool(data["not_seen"]) and not data["programs"]
    traced = any(source in data["trace_source"] for source in ("notify", "ebpf"))
    if blind and traced:  # something ran
        unseen = "not known, the events are missing"
    else:
        unseen = "not seen, there was no tracer" if blind else "none"
    unread = "not recorded" if READS in data["not_seen"] and not blind else unseen
    command = shorten(" ".join(data["command"]), WIDE)
    lines = [
        f"{shorten(data['session'], 64)}  {command}",
        f"  {shorten(data['started'], 30)}  {ending(data)}  in {path(data['workspace'])}"
        f"  traced by {_show(data['trace_source'])}",
    ]
    complete = "complete" if data["complete"] else "INCOMPLETE" if data["gaps"] else "complete for what it can see"
    if colour and data["gaps"]:
        complete = f"{_RED}{complete}{_PLAIN}"
    lines.append(f"record: {complete}" + ("; numbers are of what is left" if data["gaps"] else ""))
    lines += [f"  {shorten(gap, 200)}" for gap in data["gaps"][:MOST_ROWS]]
    lines += [f"  not seen: {shorten(gap, 200)}" for gap in data["not_seen"]]
    if data["silent"]:
        lines.append(f"  refusals without an event: {shorten('; '.join(data['silent']), 400)}")
    programs = [
        f"{path(row['path'])}{_times(row)}" + (f"  {row['failed']} failed" if row["failed"] else "")
        for row in data["programs"]
    ]
    _rows(lines, "programs that ran", programs, unseen)
    written = [f"{path(row['path'])}  {shorten(', '.join(row['how']), 60)}{_by(row)}" for row in data["written"]]
    _rows(lines, "written outside temporary directories", written, unseen)
    read = [f"{path(row['path'])}{_times(row)}{_by(row)}" for row in data["read_outside"]]
    _rows(lines, "read outside the workspace", read, unread)
    connections = [
        f"{_endpoint(row['host'], row['port'])}  {_show(row['protocol'])}{_times(row)}  "
        f"up {size(row['bytes_up'])}, down {size(row['bytes_down'])}"
        + (f"  {row['errors']} failed" if row["errors"] else "")
        + _by(row)
        for row in data["connections"]
    ]
    _rows(lines, "connected to", connections)
    if data["requests"]:
        requests = [
            f"{_show(row['method'])} {shorten(_url(row), 100)}"
            f"  {', '.join(map(str, row['status']))}{_times(row)}" + ("  refused" if row["verdict"] == "deny" else "")
            for row in data["requests"]
        ]
        _rows(lines, "requests", requests)
    refused = [
        f"{path(row['target'])}  {_show(row['reason'])}{_times(row)}{_by(row)}" + _more(row["allow"] or row["rule"])
        for row in data["refused"]
    ]
    _rows(lines, "refused", refused)
    left = [f"{path(row['path'])}  {_show(row['why'])}{_by(row)}" for row in data["left"]]
    _rows(lines, "left behind that something may run later", left, unseen if blind else "nothing")
    if data["moved_away"]:
        moved = [f"{path(row['path'])}  to {path(row['to'])}" for row in data["moved_away"]]
        _rows(lines, "protected names that were moved away", moved)
    if colour:
        lines = [line if line.startswith((" ", "\x1b")) else f"{_BOLD}{line}{_PLAIN}" for line in lines]
    return lines


def verified_lines(entries: Iterable[tuple[str, Any]]) -> list[str]:
    """The text of ``membrane trace verify``."""
    lines = []
    for name, found in entries:
        words = "NOT OK" if found.problems else "INCOMPLETE" if found.incomplete else "ok"
        state = "still written" if found.running else "closed" if found.closed else "without an end"
        lines.append(
            f"{shorten(name)}  {words}  {found.segments} segments, {state}"
            + (f", {found.removed} removed for room" if found.removed else "")
            + (f", {found.lost} events lost" if found.lost else "")
        )
        lines += [f"  {shorten(problem, 200)}" for problem in found.problems]
        lines += [f"  missing: {shorten(line, 200)}" for line in found.incomplete]
        lines.append(f"  digest {found.digest}")
    return lines
