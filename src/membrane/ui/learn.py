"""``membrane learn``: run a command and print the policy that would admit what it tried.

Theory of operation
-------------------
The command runs as always: confined, by the policy in force, and no one is asked.  Its record is read afterwards and
``record.learn`` makes the policy.  ``--observe`` is the exception that has to be asked for: every host is allowed and
requests are looked at, so that one run shows everything; the environment then has no secrets and no variable beyond
the usual ones, and files stay as confined as ever.

The policy goes to stdout after the command has ended, or to ``--output``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ..errors import HostError, PolicyError
from ..record import joining, learn, query, reader
from ..run.project import beside, here
from .options import UsageError
from .trace import note

if TYPE_CHECKING:
    from ..backend import Backend
    from ..policy.model import Policy
    from ..run.settings import Loaded
    from .options import Invocation


def from_records(invocation: Invocation, state: str) -> int:
    """Learn from sessions that were recorded; the exit status."""
    if invocation.has("observe"):
        raise UsageError("parse the command line", "--observe goes with a command, not with --from")
    entries = [reader.find(state, name, beside(name)) for name in (*invocation.given["from"], *invocation.words)]
    return _print(invocation, entries, 0, 1)


def from_run(invocation: Invocation, loaded: Loaded | None, state: str, backend: Backend | None = None) -> int:
    """Run the command and learn from its record; the exit status of the command.

    Args:
        loaded: None: no command was given.
        backend: None: the one that the policy names.
    """
    if loaded is None:
        raise UsageError("parse the command line", "membrane learn needs a command, or --from SESSION")
    from ..run import begin, prepare, session

    policy = loaded.policy
    if policy.trace.mode == "off":
        raise PolicyError(
            "learn", "trace.mode is off: there is no record to learn from", fix=("leave --no-trace away",)
        )
    if invocation.has("observe"):
        policy = observing(policy)
        for line in (
            "membrane: warning: --observe: the command can reach EVERY host; its requests are decrypted and recorded",
            "  it sees no secret and no variable that the policy passes; files are confined as always",
        ):
            print(line, file=sys.stderr)
    from ..run.event_log import place_for_caller

    destination = invocation.last("output", "-")
    try:
        place = place_for_caller(destination)
    except OSError as error:
        raise HostError("write the policy", error.strerror or "", target=destination) from None
    try:
        stdout = os.dup(1)  # a run lets go of its own
    except OSError:
        stdout = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    from .cli import events_place

    fields: dict[str, Any] = {**invocation.fields("run"), "events": events_place(invocation.last("events"))}
    options = prepare.RunOptions(debug=invocation.has("debug"), **fields)
    run = session.Session(begin.begin(lambda: prepare.RunRequest(invocation.words, policy, options), backend=backend))
    status = run.run()
    return _print(invocation, [reader.find(state, run.id, here())], status, stdout, place)


def observing(policy: Policy) -> Policy:
    """``policy`` with every host allowed, requests to the ports of HTTP looked at, and nothing secret handed in."""
    from ..policy import grammar
    from ..policy.model import HostRule, Origin, PortRange

    origin = Origin("command line", "--observe")
    everything: HostRule = grammar.host_rule("**", origin)
    web = everything.replace(
        ports=(PortRange("tcp", 80, 80), PortRange("tcp", 443, 443)), inspect=True, text="** (inspected)"
    )
    return policy.replace(
        allow=(*policy.allow, web, everything),
        secrets=(),
        env=tuple(rule for rule in policy.env if rule.value is not None and _harmless(rule.name)),
        digest=f"{policy.digest}-observe",
    )


def _harmless(name: str) -> bool:
    return name in ("TERM", "LANG", "TZ", "CI", "NO_COLOR", "COLORTERM") or name.startswith("LC_")


def _print(
    invocation: Invocation, entries: list[reader.Entry], status: int, stdout: int, place: int | None = None
) -> int:
    from ..run.event_log import open_for_caller

    learner = learn.Learner(os.path.expanduser("~"))
    gaps = []
    for entry in entries:
        record, summary = reader.Record(entry.path), query.Summary()
        learner.begin()
        for event in joining.joined(record.events()):
            learner.add(event)
            summary.add(event)
        gaps += summary.gaps(record.problems, record.running)
    note(gaps)
    learner.incomplete = bool(gaps)
    text = learner.yaml(os.path.lexists)
    destination = invocation.last("output", "-")
    try:
        fd = stdout
        if destination != "-":
            fd = open_for_caller(destination, os.O_TRUNC, 0o600, place)  # the command may have left a link there
        with open(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=fd != 1) as file:
            file.write(text)
    except OSError as error:
        raise HostError("write the policy", error.strerror or "", target=destination) from None
    return status
