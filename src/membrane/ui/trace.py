"""``membrane trace``: what was recorded, for a person and for a script.

Theory of operation
-------------------
Finds the record, reads it once, and prints.  ``show`` and ``export`` are streams: the first line comes before the last
event was read.  What could not be read is said on stderr, and by ``summary`` in its answer.

Exit status: 0; ``verify`` 1 when something does not fit or it is not known whether it is all; ``show`` 0 also when
nothing was chosen.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import clock
from ..errors import HostError
from ..escaping import escape
from ..events import EVENTS, CheckpointMade, CheckpointRestored
from ..record import export, joining, query, reader
from ..record.recorded import Recorded
from ..record.summary import colour as may_colour
from ..record.summary import shorten, size, tilde
from ..run.project import beside
from . import trace_text
from .options import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from .options import Invocation

# Which options an action reads; the others are refused, so that none is silently without effect.
_CHOOSE = frozenset({"kind", "denied", "pid", "program", "path", "host", "since", "until"})
_READS: dict[str, frozenset[str]] = {
    "list": frozenset({"json"}),
    "show": _CHOOSE | {"json", "follow"},
    "summary": frozenset({"json"}),
    "report": frozenset({"output"}),
    "watch": _CHOOSE,
    "verify": frozenset({"json"}),
    "export": _CHOOSE | {"format", "follow", "output"},
}
_TIME = re.compile(r"[0-9]{4}(-|\Z)")  # the beginning of one, as ISO 8601 writes it
_COMMON = frozenset({"debug", "help", "version"})


def main(invocation: Invocation, state: str, home: str) -> int:
    """Run ``membrane trace ACTION``; the exit status."""
    action = invocation.words[0]
    for name in invocation.given:
        if name not in _READS[action] | _COMMON:
            raise UsageError("parse the command line", f"membrane trace {action} does not take --{name}")
    if action == "list":
        if len(invocation.words) > 1:
            raise UsageError("parse the command line", f"membrane trace list does not take {invocation.words[1]!r}")
        return _list(invocation, state, home)
    name = invocation.words[1] if len(invocation.words) > 1 else "@last"
    entry = reader.find(state, name, beside(name))
    return _ACTIONS[action](invocation, entry, home)


def note(problems: list[str]) -> None:
    """Say on stderr what is missing."""
    for problem in problems:
        print(f"membrane: the record is incomplete: {shorten(problem, 200)}", file=sys.stderr)


def wanted(invocation: Invocation) -> query.Filter:
    """What the options choose.

    Raises:
        UsageError: ``--pid`` is no number, ``--kind`` the beginning of no event's name.
    """
    pid = invocation.last("pid", "0")
    if not pid.isdecimal() or len(pid) > 9:
        raise UsageError("parse the command line", f"--pid is a number, not {pid!r}")
    for kind in invocation.given.get("kind", ()):
        if not query.is_kind(kind):
            known = ", ".join((*query.SHORT_KINDS, *sorted(EVENTS)))
            cause = f"--kind {escape(kind)}: no kind of event; known are {known}"
            raise UsageError("choose events", cause)
    return query.Filter(
        kinds=invocation.given.get("kind", ()),
        pid=int(pid),
        path=invocation.last("path"),
        host=invocation.last("host"),
        program=invocation.last("program"),
        denied=invocation.has("denied"),
        since=invocation.last("since"),
        until=invocation.last("until"),
    )


def _bounded(chosen: query.Filter, path: str) -> query.Filter:
    """With the times of the checkpoints that ``--since`` and ``--until`` name.

    Raises:
        UsageError: the record has no such checkpoint, and it is no time.
    """
    labels = {"since": chosen.since, "until": chosen.until}
    labels = {name: text for name, text in labels.items() if text and not _TIME.match(text)}
    if not labels:
        return chosen
    times = {
        each.event.checkpoint: each.time
        for each in reader.Record(path).events()
        if isinstance(each.event, CheckpointMade | CheckpointRestored)
    }
    for name, label in labels.items():
        if label not in times:
            known = f"; its checkpoints are {', '.join(map(escape, times))}" if times else ""
            raise UsageError(
                "choose events", f"--{name} {escape(label)}: no time, and no checkpoint of the record{known}"
            )
    return chosen.replace(**{name: times[label] for name, label in labels.items()})


def _list(invocation: Invocation, state: str, home: str) -> int:
    rows = [row for row in map(_row, reader.sessions(state)) if row is not None]
    if invocation.has("json"):
        for row in rows:
            print(json.dumps(row))
        return 0
    if not rows:
        print("nothing was recorded yet")
    for row in rows:
        status = "running" if row["running"] else "killed" if row["exit_code"] is None else f"exit {row['exit_code']}"
        refused = f"{row['denied']} refusal{'s' if row['denied'] > 1 else ''}" if row["denied"] else ""
        print(
            f"{row['id']}  {row['started'][:19]}  {status:<8} {refused:<12} {size(row['bytes']):>9}  "
            f"{shorten(tilde(row['workspace'], home), 40)}  {shorten(' '.join(row['command']), 60)}"
        )
    return 0


def _row(entry: reader.Entry) -> dict[str, Any] | None:
    """What the list says of a record; None: it was removed since it was listed, or cannot be read."""
    try:
        names = os.listdir(entry.path)
    except FileNotFoundError:
        return None
    except OSError as error:  # root's, in a state directory that both have used: the others are listed all the same
        print(f"membrane: cannot read the record {escape(entry.path)}: {error.strerror}", file=sys.stderr)
        return None
    started, ended = reader.Record(entry.path).ends()
    taken = 0
    for name in names:
        try:
            taken += os.stat(os.path.join(entry.path, name), follow_symlinks=False).st_size
        except FileNotFoundError:  # of a running session: its writer packed a segment, or made room
            if not entry.running or not os.path.isdir(entry.path):
                return None
    return {
        "id": entry.id,
        "started": clock.iso(entry.started),
        "running": entry.running,
        "command": list(started.command) if started else [],
        "workspace": started.workspace if started else "",
        "trace_source": started.trace_source if started else "",
        "exit_code": ended.exit_code if ended else None,
        "denied": ended.denied if ended else 0,
        "lost": ended.lost if ended else 0,
        "bytes": taken,
    }


def _show(invocation: Invocation, entry: reader.Entry, _home: str) -> int:
    chosen = _bounded(wanted(invocation), entry.path)
    colour = may_colour(sys.stdout, os.environ)

    def line(each: Recorded) -> str:
        return json.dumps(each.data) if invocation.has("json") else trace_text.event_line(each, colour)

    if invocation.has("follow"):
        for event in query.chosen(export.arriving(entry.path), chosen):
            print(line(event), flush=True)
        return 0
    record = reader.Record(entry.path)
    for event in query.chosen(joining.joined(record.events()), chosen):
        print(line(event))
    sys.stdout.flush()
    note(record.problems)
    return 0


def _summary(invocation: Invocation, entry: reader.Entry, home: str) -> int:
    record = reader.Record(entry.path)
    summary = query.summarise(joining.joined(record.events()))
    data = summary.data(record.problems, record.running)
    data["session"] = data["session"] or entry.id
    if invocation.has("json"):
        print(json.dumps(data))
    else:
        print("\n".join(trace_text.summary_lines(data, home, may_colour(sys.stdout, os.environ))))
    return 0


def _report(invocation: Invocation, entry: reader.Entry, home: str) -> int:
    from ..record.formats import html as page

    record = reader.Record(entry.path)
    html = page.make(joining.joined(record.events()), record.problems, running=record.running, home=home)
    destination = invocation.last("output", f"membrane-{entry.id}.html")
    with _destination(destination) as stream:
        stream.write(html.encode("utf-8", "backslashreplace"))
    if destination != "-":
        print(f"wrote {shorten(destination, 200)}")
    return 0


def _verify(invocation: Invocation, entry: reader.Entry, _home: str) -> int:
    found = reader.verify(entry.path)
    if invocation.has("json"):
        print(
            json.dumps(
                {"session": entry.id, **{name: getattr(found, name) for name in found.field_names}}, default=list
            )
        )
    else:
        print("\n".join(trace_text.verified_lines([(entry.id, found)])))
    return 1 if found.problems or found.incomplete else 0


def _export(invocation: Invocation, entry: reader.Entry, _home: str) -> int:
    form = invocation.last("format", "tracee")
    chosen = _bounded(wanted(invocation), entry.path)
    with _destination(invocation.last("output", "-")) as stream:
        if invocation.has("follow"):
            for line in export.lines(query.chosen(export.arriving(entry.path), chosen), form):
                stream.write(line.encode() + b"\n")
                stream.flush()
            return 0
        record = reader.Record(entry.path)
        for line in export.lines(query.chosen(joining.joined(record.events()), chosen), form):
            stream.write(line.encode() + b"\n")
    note(record.problems)
    return 0


@contextmanager
def _destination(path: str) -> Iterator[BinaryIO]:
    """Where the output goes; "-": standard output.

    Raises:
        HostError: it cannot be opened, or is a symbolic link, or not all of it can be written.
    """
    from ..run.event_log import open_for_caller  # also the name of a report that nobody chose can be a command's link

    place = "standard output" if path == "-" else escape(path)
    try:
        with os.fdopen(os.dup(1) if path == "-" else open_for_caller(path, os.O_TRUNC, 0o600), "wb") as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename not in (None, path):  # of the record, which is read meanwhile
            raise
        raise HostError("write", error.strerror or "", target=place, fix=("-o FILE",)) from None


def _watch(invocation: Invocation, entry: reader.Entry, home: str) -> int:
    from . import trace_watch

    return trace_watch.watch(entry, _bounded(wanted(invocation), entry.path), home)


_ACTIONS: dict[str, Callable[[Invocation, reader.Entry, str], int]] = {
    "show": _show,
    "summary": _summary,
    "report": _report,
    "watch": _watch,
    "verify": _verify,
    "export": _export,
}
