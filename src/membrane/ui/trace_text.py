"""The record as text: one line per event, and the summary.

Theory of operation
-------------------
Pure: events in, lines out.  Every text that comes from inside is made visible again and cut, although the writer has
escaped it: what lies in a file is not believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..record.query import asked, is_denied, items, number, process_of, program_of, request_url, text
from ..record.summary import shorten, tilde

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDE = 160  # characters of one value before it is cut in the middle
MOST_ROWS = 20  # of one section of a summary
_RED, _DIM, _BOLD, _PLAIN = "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def size(octets: int) -> str:
    """MB with one digit, or the bytes of what is less than that."""
    return f"{octets / 1e6:.1f} MB" if octets >= 50_000 else f"{octets} B"


def _show(value: Any, wide: int = WIDE) -> str:
    return shorten(text(value), wide)


def _endpoint(host: Any, port: Any) -> str:
    name = _show(host)
    return f"[{name}]:{number(port)}" if ":" in name else f"{name}:{number(port)}"


def _argv(event: dict[str, Any], key: str) -> str:
    return shorten(" ".join(text(word) for word in items(event.get(key))), WIDE)


def _started(event: dict[str, Any]) -> str:
    return (
        f"{_argv(event, 'command')}  in {_show(event.get('workspace'))}  traced by {_show(event.get('trace_source'))}"
    )


def _process_started(event: dict[str, Any]) -> str:
    return f"{_argv(event, 'argv') or _show(event.get('path'))}  in {_show(event.get('cwd'))}"


def _ended(event: dict[str, Any]) -> str:
    signal = number(event.get("signal"))
    how = f"signal {signal}" if signal else f"exit {number(event.get('exit_code'))}"
    return f"{how} after {number(event.get('duration_ms'))} ms"


def _opened(event: dict[str, Any]) -> str:
    flags = ",".join(text(flag) for flag in items(event.get("flags")))
    return f"{_show(event.get('path'))}  {shorten(flags, 60)}"


def _created(event: dict[str, Any]) -> str:
    to = f" -> {_show(event.get('to'))}" if event.get("to") else ""
    return f"{_show(event.get('type'))} {_show(event.get('path'))}{to}"


def _moved(event: dict[str, Any]) -> str:
    return f"{_show(event.get('path'))} -> {_show(event.get('to'))}"


def _changed(event: dict[str, Any]) -> str:
    return f"{_show(event.get('path'))}  {_show(event.get('change'))} {_show(event.get('value'))}"


def _called(event: dict[str, Any]) -> str:
    address = _show(event.get("address"))
    if event.get("family") in ("inet", "inet6"):
        address = _endpoint(event.get("address"), event.get("port"))
    name = f"  ({_show(event.get('host'))})" if event.get("host") else ""
    return f"{_show(event.get('call'))} {_show(event.get('family'))} {address}{name}"


def _resolved(event: dict[str, Any]) -> str:
    return f"{_show(event.get('name'))} {_show(event.get('type'))} {_show(event.get('address'))}"


def _connected(event: dict[str, Any]) -> str:
    where = _endpoint(event.get("host") or event.get("address"), event.get("port"))
    return f"#{number(event.get('id'))} {_show(event.get('protocol'))} {where}  {_show(event.get('address'))}"


def _closed(event: dict[str, Any]) -> str:
    where = f" {_endpoint(event.get('host'), event.get('port'))}" if event.get("host") else ""
    error = f"  {_show(event.get('error'))}" if event.get("error") else ""
    up, down = number(event.get("bytes_up")), number(event.get("bytes_down"))
    return f"#{number(event.get('id'))}{where}  up {size(up)}, down {size(down)}{error}"


def _request(event: dict[str, Any]) -> str:
    error = f"  {_show(event.get('error'))}" if event.get("error") else ""
    return (
        f"#{number(event.get('id'))} {_show(event.get('method'))} {shorten(request_url(event), 2 * WIDE)}"
        f"  {number(event.get('status'))}{error}"
    )


def _denied(event: dict[str, Any]) -> str:
    access = event.get("access")
    what = shorten(asked(access), WIDE) if isinstance(access, dict) else ""
    count = number(event.get("count"))
    times = f" ({count} times)" if count > 1 else ""
    hint = f"  {_show(event.get('hint'))}" if event.get("hint") else ""
    rule = f"  {_show(event.get('rule'))}" if event.get("rule") else ""
    return f"{what}{times}  {_show(event.get('reason'))}{hint or rule}"


def _defect(event: dict[str, Any]) -> str:
    where = items(event.get("where"))
    count = number(event.get("count"))
    times = f" ({count} times)" if count > 1 else ""
    return f"{_show(event.get('error'))} at {_show(where[-1] if where else '')}{times}"


def _lost(event: dict[str, Any]) -> str:
    cause = f"  {_show(event.get('cause'))}" if event.get("cause") else ""
    window = f"{_show(event.get('start'))} .. {_show(event.get('end'))}"
    if not number(event.get("count")) and cause:
        return f"perhaps some of {_show(event.get('kind'))}{cause}"
    return f"{number(event.get('count'))} of {_show(event.get('kind'))}  {window}{cause}"


_TEXTS = {
    "SessionStarted": _started,
    "SessionEnded": _ended,
    "ProcessStarted": _process_started,
    "ProcessExited": _ended,
    "FileOpened": _opened,
    "FileCreated": _created,
    "FileRemoved": lambda event: _show(event.get("path")),
    "FileRenamed": _moved,
    "FileChanged": _changed,
    "NameQuarantined": _moved,
    "SocketCalled": _called,
    "NameResolved": _resolved,
    "ConnectionOpened": _connected,
    "ConnectionClosed": _closed,
    "RequestSeen": _request,
    "AccessDenied": _denied,
    "DefectSeen": _defect,
    "EventsLost": _lost,
}


def event_line(event: dict[str, Any], colour: bool = False) -> str:
    """One event as one line: time, who, what."""
    who = process_of(event)
    name = shorten(f"{program_of(event)}[{who[0]}]" if who else text(event.get("source")), 24)
    make = _TEXTS.get(event["event"])
    body = make(event) if make is not None else ""
    result = f"  {_show(event.get('result'))}" if event.get("result") else ""
    asked_only = "  (requested)" if event.get("requested") is True else ""
    at = shorten(text(event.get("time"))[11:23], 12)
    kind = shorten(event["event"], 18)
    line = f"{at:<12}  {name:<18} {kind:<17} {body}{result}{asked_only}"
    if colour:
        if is_denied(event):
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
    return f"  {number(row.get('count'))} times" if number(row.get("count")) > 1 else ""


def _by(row: dict[str, Any]) -> str:
    by = row.get("by")
    names = by if isinstance(by, list) else [by] if by else []
    return f"  by {shorten(', '.join(map(text, names)), 60)}" if names else ""


def summary_lines(data: dict[str, Any], home: str = "", colour: bool = False) -> list[str]:
    """The text of ``membrane trace summary``."""

    def path(value: Any) -> str:
        return shorten(tilde(text(value), home), 100)

    blind = bool(data["not_seen"]) and not data["programs"]
    unseen = "not seen, there was no tracer" if blind else "none"
    command = shorten(" ".join(data["command"]), WIDE)
    how = "not over"
    if data["ended"]:
        how = f"signal {data['signal']}" if data["signal"] else f"exit {data['exit_code']}"
        how += f" after {number(data['duration_ms']) / 1000:.1f} s"
    lines = [
        f"{shorten(text(data['session']), 64)}  {command}",
        f"  {shorten(text(data['started']), 30)}  {how}  in {path(data['workspace'])}"
        f"  traced by {_show(data['trace_source'])}",
    ]
    complete = "complete" if data["complete"] else "INCOMPLETE" if data["gaps"] else "complete for what it can see"
    if colour and data["gaps"]:
        complete = f"{_RED}{complete}{_PLAIN}"
    lines.append(f"record: {complete}")
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
    _rows(lines, "read outside the workspace", read, unseen)
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
            f"{_show(row['method'])} {shorten(request_url(row), 100)}"
            f"  {', '.join(map(str, row['status']))}{_times(row)}" + ("  refused" if row["verdict"] == "deny" else "")
            for row in data["requests"]
        ]
        _rows(lines, "requests", requests)
    refused = [
        f"{path(row['target'])}  {_show(row['reason'])}{_times(row)}{_by(row)}"
        + (f"  {_show(row['allow'])}" if row["allow"] else f"  {_show(row['rule'])}" if row["rule"] else "")
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
        lines += [f"  events may be missing: {shorten(line, 200)}" for line in found.incomplete]
        lines.append(f"  digest {found.digest}")
    return lines
