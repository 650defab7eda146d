"""What the library reports and asks: results, events, questions and answers, as frozen records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..events import Process
from ..run.questions import Question, read_question
from ..value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Allow", "AllowOnce", "AllowSession", "Answer", "Change", "Denied", "Deny", "Event", "Question", "Result"]


class Answer(Value):
    """What ``on_ask`` returns: one of ``Allow``, ``AllowOnce``, ``AllowSession`` and ``Deny``."""

    word: Literal["once", "session", "no"]


AllowOnce = Answer("once")
"""Let through what waits; the next one asks again."""
Allow = AllowOnce
"""The same."""
AllowSession = Answer("session")
"""Let it through, and whatever equals it, until the sandbox is closed."""
Deny = Answer("no")
"""Refuse it, and whatever equals it, until the sandbox is closed."""


class Denied(Value):
    """A refusal.

    Attributes:
        kind: ``Connect``, ``NameQuery``, ``HttpRequest``, ``PathAccess`` or ``SocketAccess``.
        target: what was refused, for a person: ``host:port``, a URL, a path.
        reason: one of ``docs/events.md``'s.
        rule: the rule that refused it and where it was written, or empty.
        hint: the YAML that would allow it, or empty.
        count: how many equal refusals it stands for.
        access: the access as data.
    """

    kind: str
    target: str
    reason: str
    rule: str
    hint: str
    count: int
    access: Mapping[str, Any]


class Change(Value):
    """A file that was created, written or removed: the last of it that was seen.

    Without the rights for eBPF it is what was asked for and predicted to succeed (``docs/trace.md``).
    """

    path: str
    what: Literal["created", "written", "removed"]


class Event(Value):
    """One entry of the record (``docs/events.md``).

    Attributes:
        kind: its type: ``ProcessStarted``, ``ConnectionOpened``, ...
        time: ISO 8601, UTC.
        source: ``ebpf``, ``notify``, ``network``, ``mount`` or ``session``.
        data: all of it, every string escaped.
    """

    kind: str
    time: str
    source: str
    data: Mapping[str, Any]


class Result(Value):
    """How a command ended.

    Attributes:
        argv: what was run.
        exit_code: its exit status; 128+n when signal n ended it; 124 when the time was over.
        signal: that ended it, or 0.
        stdout_bytes, stderr_bytes: what it wrote, where that was captured.
        duration: seconds.
        timed_out: it was ended because its time was over.
        truncated: it wrote more than was kept.
        denied: refusals in the sandbox while it ran, at most 1,000; of other commands as well if they ran meanwhile.
        changes: files that were changed in the sandbox while it ran, at most 1,000.
        assurance: (what, how) was read back from the kernel before it was released.
        complete: nothing was left out of ``denied`` and ``changes`` for their number, and those who see them said in
            time that they have sent everything.
    """

    argv: tuple[str, ...]
    exit_code: int
    signal: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration: float
    timed_out: bool
    truncated: bool
    denied: tuple[Denied, ...]
    changes: tuple[Change, ...]
    assurance: tuple[tuple[str, str], ...]
    complete: bool = True

    @property
    def stdout(self) -> str:
        """Its output as UTF-8; what is none is replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its errors as UTF-8; what is none is replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")


class Stats(Value):
    """What happened in a sandbox so far.

    ``events`` counts the record's by type; ``lost`` are those that could not be kept; bytes are of connections.
    """

    commands: int
    running: int
    refused: int
    bytes_up: int
    bytes_down: int
    lost: int
    events: Mapping[str, int]


def question_of(asked: Mapping[str, Any]) -> Question:
    """A question of the gateway, with who asks."""
    who = asked.get("process")
    return read_question(
        asked, Process(**{name: who[name] for name in Process.field_names if name in who}) if who else None
    )


def denied_of(event: Mapping[str, Any]) -> Denied:
    """A refusal of the record."""
    access = dict(event["access"])
    return Denied(
        str(access.get("kind", "")),
        target_of(access),
        str(event["reason"]),
        str(event.get("rule") or ""),
        str(event.get("hint") or ""),
        int(event.get("count") or 1),
        access,
    )


def target_of(access: Mapping[str, Any]) -> str:
    """What an access is to, for a person."""
    host, port = access.get("host") or access.get("address") or "", access.get("port")
    if access.get("kind") == "HttpRequest":
        usual = {"http": 80, "https": 443}.get(str(access.get("scheme")))
        place = str(host) if port == usual else f"{host}:{port}"
        return f"{access.get('method')} {access.get('scheme')}://{place}{access.get('path', '')}"
    if access.get("kind") == "NameQuery":
        return str(access.get("name", ""))
    if host and port:
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(host or access.get("path", ""))
