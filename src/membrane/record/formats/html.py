"""The report of a session: one HTML file that needs nothing else.

Theory of operation
-------------------
Pure: events in, text out.  No script and nothing loaded from anywhere: the page forbids both to itself (Content
Security Policy), so whatever a sandbox wrote into a file name stays text.  Every value is made visible first and then
escaped for HTML; there is no other way to put one in (``_cell``).  Sections fold with ``details``; the layout is one
column that a phone shows without zooming, tables scroll by themselves.

The timeline shows at most ``MOST_EVENTS`` events: refusals, programs and connections before single files.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as html_escape
from typing import Any

from ... import events as ev
from ...escaping import visible
from ..query import Summary, host_of, is_denied, request_url
from ..recorded import Recorded, nanoseconds
from ..summary import ending, shorten, size, target_of, tilde

MOST_EVENTS = 2000  # in the timeline
MOST_PROCESSES = 2000  # in the tree
DEEPEST = 60  # levels of the tree; what is below is shown on the last one
MOST_ROWS = 500  # of one table
WIDE = 300  # characters of one value
_FIRST = frozenset(
    {"SessionStarted", "SessionEnded", "ProcessStarted", "ConnectionOpened", "RequestSeen", "EventsLost", "DefectSeen"}
)

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--bad:#c62828;--soft:#7a7a7a}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:12px;max-width:1100px}
h1{font-size:1.25rem;margin:.2em 0;overflow-wrap:anywhere}
h2{font-size:1.05rem;display:inline}
details{border-top:1px solid var(--line);padding:.5em 0}
summary{cursor:pointer}
.n{color:var(--soft);font-weight:normal}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.87rem}
td,th{border-top:1px solid var(--line);padding:3px 8px 3px 0;text-align:left;vertical-align:top}
td{overflow-wrap:break-word}
td.t,td.k{white-space:nowrap}
th{font-weight:600;white-space:nowrap}
.bad,.bad td{color:var(--bad)}
code,.m{font-family:ui-monospace,monospace;font-size:.86rem;overflow-wrap:anywhere}
ul{list-style:none;margin:0;padding-left:1em;border-left:1px solid var(--line)}
.box{border:1px solid var(--line);border-radius:6px;padding:6px 10px;margin:.5em 0}
.bar{position:relative;height:26px;border:1px solid var(--line);border-radius:4px;margin:.6em 0}
.bar i{position:absolute;bottom:0;width:1%;background:#4a90d9}
.bar i.bad{background:var(--bad)}
@media(max-width:600px){
body{font-size:14px;padding:8px}
tr{display:block;border-top:1px solid var(--line);padding:5px 0}
tr:first-child,td:empty{display:none}
td{display:inline;border:0;padding-right:10px}
td:first-child:not(.t){display:block}
td.k{white-space:normal}
td[data-l]:not(:first-child)::before{content:attr(data-l) " ";color:var(--soft)}
}
"""


def _safe(value: Any, wide: int = WIDE) -> str:
    """Any value as text of the page: visible, cut, escaped."""
    return html_escape(shorten(value if isinstance(value, str) else "", wide), quote=True)


def _cell(value: Any, kind: str = "") -> str:
    shown = f"{value}" if isinstance(value, (int, float)) else _safe(value)
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def _table(head: Iterable[str], rows: list[str]) -> str:
    head = [html_escape(title, quote=True) for title in head]
    rows = [_labelled(row, head) for row in rows[:MOST_ROWS]] + rows[MOST_ROWS:]
    titles = "".join(f"<th>{title}</th>" for title in head)
    more = f'<p class="n">... and {len(rows) - MOST_ROWS} more</p>' if len(rows) > MOST_ROWS else ""
    return f'<div class="wide"><table><tr>{titles}</tr>{"".join(rows[:MOST_ROWS])}</table></div>{more}'


def _labelled(row: str, head: list[str]) -> str:
    """The row with the title of its column in each cell, for screens on which the columns do not fit.

    No text holds a ``<`` here, so every ``<td`` is a cell.
    """
    start, *cells = row.split("<td")
    labels = [f' data-l="{title}"' for title in head] + [""] * len(cells)
    return start + "".join(f"<td{label}{cell}" for label, cell in zip(labels, cells, strict=False))


def _section(title: str, count: int, body: str, opened: bool = True) -> str:
    flag = " open" if opened and count else ""
    content = body if count else '<p class="n">none</p>'
    head = f'<h2>{html_escape(title)} <span class="n">{count}</span></h2>'
    return f"<details{flag}><summary>{head}</summary>{content}</details>"


def _about(each: Recorded) -> str:
    """What an event says, in a few words."""
    event = each.event
    if isinstance(event, ev.SessionStarted):
        return " ".join(event.command)
    if isinstance(event, ev.ProcessStarted):
        return " ".join(event.argv) or event.path
    if isinstance(event, ev.SessionEnded | ev.ProcessExited):
        return f"signal {event.signal}" if event.signal else f"exit {event.exit_code}"
    if isinstance(event, ev.AccessDenied):
        return f"{target_of(event.access)}  {event.reason}"
    if isinstance(event, ev.RequestSeen):
        return f"{event.method} {request_url(event.scheme, event.host, event.port, event.path)}  {event.status}"
    if isinstance(event, ev.ConnectionOpened | ev.SocketCalled):
        where = host_of(each) or event.address
        return f"{where}:{event.port}" if event.port else where
    if isinstance(event, ev.ConnectionClosed):
        where = f"{each.host}:{each.port}" if each.port else each.host
        return f"{where}  up {size(event.bytes_up)}, down {size(event.bytes_down)}"
    if isinstance(event, ev.NameResolved):
        return f"{event.name} {event.type} {event.address}"
    if isinstance(event, ev.EventsLost):
        return f"{event.count or 'perhaps some'} of {event.kind}  {event.cause}"
    if isinstance(event, ev.DefectSeen):
        return f"{event.error} at {', '.join(event.where[-1:])}"
    if isinstance(event, ev.FileChanged):
        return f"{event.path}  {event.change} {event.value}"
    if isinstance(event, ev.FileOpened) and event.flags:
        return f"{event.path}  {','.join(event.flags)}"
    return f"{each.path} -> {each.to}" if each.to else each.path


class _Tree:
    """The processes, each below the one that started it."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], dict[str, Any]] = {}
        self._by_pid: dict[int, tuple[int, int]] = {}
        self.beyond = 0

    def add(self, each: Recorded) -> None:
        who, event = each.who, each.event
        if who is None:
            return
        node = self.nodes.get(who)
        if node is None:
            if len(self.nodes) >= MOST_PROCESSES:
                self.beyond += isinstance(event, ev.ProcessStarted)
                return
            node = self.nodes[who] = {"programs": [], "end": "", "parent": None, "denied": 0, "name": each.program}
        if isinstance(event, ev.ProcessStarted):
            if node["parent"] is None:
                node["parent"] = self._by_pid.get(event.parent)
            if len(node["programs"]) < 8:
                node["programs"].append(_about(each) + (f"  {event.result}" if event.result else ""))
        elif isinstance(event, ev.ProcessExited):
            node["end"] = _about(each)
        self._by_pid[who[0]] = who
        node["denied"] += is_denied(each)

    def html(self) -> str:
        children: dict[Any, list[tuple[int, int]]] = {}
        for who, node in self.nodes.items():
            parent = node["parent"]
            children.setdefault(parent if parent != who and parent in self.nodes else None, []).append(who)
        out: list[str] = ["<ul>"]
        drawn: set[tuple[int, int]] = set()
        # No recursion: the depth is chosen by the command.
        stack = [(root, 0) for root in reversed(children.get(None, []))]
        depth = 0
        while stack:
            who, level = stack.pop()
            if who in drawn:
                continue
            drawn.add(who)
            shown = min(level, DEEPEST)
            out.append("<ul>" * max(0, shown - depth) + "</ul>" * max(0, depth - shown))
            depth = shown
            node = self.nodes[who]
            programs = "<br>".join(f'<span class="m">{_safe(each)}</span>' for each in node["programs"])
            programs = programs or f'<span class="m">{_safe(node["name"])}</span>'
            denied = f' <span class="bad">{node["denied"]} refused</span>' if node["denied"] else ""
            end = f'<span class="n">{_safe(node["end"])}</span>'
            out.append(f'<li><span class="n">{who[0]}</span> {programs} {end}{denied}</li>')
            stack += [(child, level + 1) for child in reversed(children.get(who, []))]
        out.append("</ul>" * (depth + 1))
        if self.beyond:
            out.append(f'<p class="n">... and {self.beyond} more</p>')
        return "".join(out)


def _density(times: list[tuple[float, bool]]) -> str:
    """How busy each hundredth of the run was; refusals in red."""
    if not times:
        return ""
    first, last = times[0][0], max(at for at, _denied in times)
    span = max(last - first, 1e-9)
    buckets = [[0, 0] for _ in range(100)]
    for at, refused in times:
        bucket = buckets[max(0, min(99, int((at - first) / span * 100)))]
        bucket[0] += 1
        bucket[1] += refused
    most = max(bucket[0] for bucket in buckets)
    bars = []
    for number_, (count, denied) in enumerate(buckets):
        if count:
            bars.append(f'<i style="left:{number_}%;height:{max(8, count * 100 // most)}%"></i>')
        if denied:
            bars.append(f'<i class="bad" style="left:{number_}%;height:{max(8, denied * 100 // most)}%"></i>')
    return f'<div class="bar" role="img" aria-label="events over time">{"".join(bars)}</div>'


def make(events: Iterable[Recorded], problems: list[str], *, running: bool = False, home: str = "") -> str:
    """The page.

    Args:
        events: of one session, in order, with their processes (``joining``).
        problems: the list that is filled while ``events`` are read; looked at afterwards.
        running: the record is still written to.
        home: the caller's home directory, shown as ``~``.
    """
    summary, tree = Summary(), _Tree()
    first: list[tuple[int, Recorded]] = []
    rest: list[tuple[int, Recorded]] = []
    times: list[tuple[float, bool]] = []
    total = 0
    for each in events:
        total += 1
        summary.add(each)
        tree.add(each)
        denied = is_denied(each)
        kept = first if denied or each.kind in _FIRST else rest
        if len(kept) < MOST_EVENTS:
            kept.append((total, each))
        if len(times) < 50_000:
            times.append((nanoseconds(each.time) / 1e9, denied))
    data = summary.data(problems, running)
    shown = sorted([*first, *rest[: MOST_EVENTS - len(first)]], key=lambda pair: pair[0])
    return _page(data, tree, [each for _number, each in shown], times, total, home)


def _page(
    data: dict[str, Any],
    tree: _Tree,
    events: list[Recorded],
    times: list[tuple[float, bool]],
    total: int,
    home: str,
) -> str:
    def path(value: str) -> str:
        return tilde(value, home)

    command = " ".join(data["command"])
    gaps = [*data["gaps"], *(f"not seen: {gap}" for gap in data["not_seen"])]
    complete = (
        "The record is complete."
        if not gaps
        else "The record is INCOMPLETE."
        if data["gaps"]
        else "Complete for what it can see."
    )
    gap_list = "".join(f"<li>{_safe(gap)}</li>" for gap in gaps[:50])
    refused = [
        f'<tr class="bad">{_cell(path(row["target"]), "m")}{_cell(row["reason"])}{_cell(row["count"])}'
        f"{_cell(row['by'])}{_cell(row['allow'] or row['rule'], 'm')}</tr>"
        for row in data["refused"]
    ]
    connections = [
        f"<tr>{_cell(row['host'] + ':' + str(row['port']), 'm')}{_cell(row['protocol'])}{_cell(row['count'])}"
        f"{_cell(size(row['bytes_up']))}{_cell(size(row['bytes_down']))}{_cell(', '.join(row['by']))}</tr>"
        for row in data["connections"]
    ]
    requests = [
        f"<tr{' class=bad' if row['verdict'] == 'deny' else ''}>{_cell(row['method'])}"
        f"{_cell(request_url(row['scheme'], row['host'], row['port'], row['path']), 'm')}"
        f"{_cell(', '.join(map(str, row['status'])))}{_cell(row['count'])}</tr>"
        for row in data["requests"]
    ]
    written = [
        f"<tr>{_cell(path(row['path']), 'm')}{_cell(', '.join(row['how']))}{_cell(row['count'])}{_cell(row['by'])}</tr>"
        for row in data["written"]
    ]
    read = [
        f"<tr>{_cell(path(row['path']), 'm')}{_cell(row['count'])}{_cell(row['by'])}</tr>"
        for row in data["read_outside"]
    ]
    left = [
        *(
            f'<tr class="bad">{_cell(path(row["path"]), "m")}{_cell(row["why"])}{_cell(row["by"])}</tr>'
            for row in data["left"]
        ),
        *(
            f"<tr>{_cell(path(row['path']), 'm')}{_cell('was moved to ' + path(row['to']))}{_cell('')}</tr>"
            for row in data["moved_away"]
        ),
    ]
    programs = [
        f"<tr>{_cell(path(row['path']), 'm')}{_cell(row['count'])}{_cell(row['failed'])}</tr>"
        for row in data["programs"]
    ]
    timeline = [
        f"<tr{' class=bad' if is_denied(each) else ''}>{_cell(each.time[11:23], 't')}"
        f"{_cell(_who(each), 'k')}{_cell(each.kind, 'k')}"
        f"{_cell(path(_about(each)) + (f'  {each.result}' if each.result else ''), 'm')}</tr>"
        for each in events
    ]
    hidden = f'<p class="n">{total - len(events)} of {total} events are not shown here: membrane trace show</p>'
    rows = "".join(timeline)
    table = f'<div class="wide"><table><tr><th>time</th><th>who</th><th>event</th><th></th></tr>{rows}</table></div>'
    body = [
        f"<h1>{_safe(command) or 'membrane'}</h1>",
        f'<p class="n">{_safe(data["session"])} &middot; {_safe(data["started"])} &middot; {html_escape(ending(data))}'
        f" &middot; {_safe(path(data['workspace']))} &middot; traced by {_safe(data['trace_source'])}</p>",
        f'<div class="box{" bad" if data["gaps"] else ""}">{complete}<ul>{gap_list}</ul></div>',
        _density(times),
        _section("Refused", len(refused), _table(("what", "why", "times", "by", "rule that would allow it"), refused)),
        _section("Left behind that something may run later", len(left), _table(("path", "why", "by"), left)),
        _section(
            "Connections",
            len(connections),
            _table(("host", "protocol", "times", "up", "down", "by"), connections),
        ),
        _section("Requests", len(requests), _table(("method", "URL", "status", "times"), requests)),
        _section(
            "Written outside temporary directories", len(written), _table(("path", "how", "times", "by"), written)
        ),
        _section("Read outside the workspace", len(read), _table(("path", "times", "by"), read)),
        _section("Programs", len(programs), _table(("program", "times", "failed"), programs)),
        _section("Processes", len(tree.nodes), tree.html()),
        _section("Timeline", len(events), table + (hidden if total > len(events) else ""), opened=False),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>membrane: {_safe(command, 80)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _who(each: Recorded) -> str:
    return f"{visible(each.program)}[{each.who[0]}]" if each.who else each.source
