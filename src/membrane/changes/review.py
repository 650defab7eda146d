"""A change set opened for a look or an apply, and the screen at the end of a run.

Theory of operation
-------------------
``opened`` gives the engine of a set whose lock the caller holds: the workspace and the layers as descriptors, and what
is hidden by the masks of its last run.  ``screen`` makes the lines that a person reads, from changes alone.  ``finish``
decides what happens at the end of a run: by the policy's word, or on a terminal by what the person answers.  Without a
terminal nothing is put in place unless the policy says so.

A set of which everything was put in place is marked; the next run on it begins with nothing (``fresh``), and sees the
workspace as it then is.  Until then ``membrane undo`` brings the workspace back, and the set still holds all changes.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from ..errors import HostError, MembraneError
from ..escaping import escape
from ..workspace import gitdirs
from ..workspace.protect import GIT_NAMES, fold
from ..workspace.scan import Patterns
from .apply import Engine, Report, above, choose
from .choice import moved
from .gitdata import Arrived
from .grafted import Grafted, place_of
from .model import KINDS, Change
from .store import APPLIED, APPLYING, JOURNAL, MASKS
from .transaction import nothing
from .tree import Copy, masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal, TypeAlias

    from ..policy.model import PathRule
    from .store import ChangeSet, Held

    Mode: TypeAlias = Literal["ask", "safe", "all", "never"]

MOST_SHOWN = 20  # rows of one list of the screen
MOST_AT_END = 20_000  # names in the layers that are judged at the end of a run that applies nothing: some seconds
_PLURALS = {"added": "added", "changed": "changed", "deleted": "deleted", "renamed": "renamed"}
_ANSWERS = {"a": "all", "s": "safe", "l": "look", "k": "keep", "d": "discard"}
PROMPT = "[a]pply all, apply the [s]afe ones without the red, [l]ook, [k]eep for later, [d]iscard: "
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


@contextmanager
def opened(
    held: Held, paths: Iterable[PathRule] = (), step: Callable[[str], None] = nothing
) -> Iterator[tuple[Engine, Copy]]:
    """The engine of a set, and its copy.

    Args:
        held: the set, locked.
        paths: the rules of the policy; what was hidden in the last run is so as well.

    Raises:
        HostError: the workspace is gone, or another directory has its name.
    """
    meta = held.meta
    fds: list[int] = []
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fds.append(os.open(meta.workspace, flags | os.O_NOFOLLOW))
        except OSError as error:
            raise HostError("open the workspace", error.strerror or "", target=escape(meta.workspace)) from None
        if os.fstat(fds[0]).st_ino != meta.inode or os.readlink(f"/proc/self/fd/{fds[0]}") != meta.workspace:
            cause = "another directory has its name by now"
            raise HostError("open the workspace", cause, target=escape(meta.workspace))
        fds += [os.open(upper, flags) for upper in held.uppers]
        trees = fds.copy()
        if meta.repository:
            gits = [_repository(meta, flags)]
            fds += gits
            for upper in held.git_uppers:
                gits.append(os.open(upper, flags))
                fds.append(gits[-1])
            trees = [Grafted(fd, git, meta.seat) for fd, git in zip(trees, gits, strict=True)]
        hidden, locked = bound(paths)
        if os.path.isdir(f"{held.path}/{MASKS}"):
            fds.append(os.open(f"{held.path}/{MASKS}", flags))
            by_rule, by_mask = hidden, masked(fds[-1])

            def hidden(path: str) -> bool:
                return by_rule(path) or by_mask(path)

        copy = Copy(trees[0], trees[1:], hidden)
        try:
            yield Engine(held.path, copy, meta.workspace, meta.made, step, locked), copy
        finally:
            copy.close()
    finally:
        for fd in fds:
            os.close(fd)


def _repository(meta: ChangeSet, flags: int) -> int:
    """The repository of a workspace that keeps it elsewhere, open.

    Raises:
        HostError: ``.git`` leads to another one by now, or that does not lead back.
    """
    cause = "the .git file of the workspace leads to another one by now, or that does not lead back"
    # That it is this work tree's was asked when the set was made.  Of a seat it can be another's by now; of a separate
    # directory only the index says it, which an apply has replaced together with the files.
    own = gitdirs.find(meta.workspace).own if meta.seat else gitdirs.named(meta.workspace)
    if own == (f"{meta.repository}/{meta.seat}" if meta.seat else meta.repository):
        try:
            fd = os.open(meta.repository, flags | os.O_NOFOLLOW)
        except OSError as error:
            cause = error.strerror or ""
        else:
            if os.fstat(fd).st_ino == meta.repository_inode and place_of(fd, "") == meta.repository:
                return fd
            os.close(fd)
    raise HostError(
        "open the repository of the workspace",
        cause,
        target=escape(meta.repository),
        fix=("git worktree repair", f"membrane discard {meta.name}   # gives the changes up"),
    )


def bound(paths: Iterable[PathRule]) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """(is this name hidden?, is it, or what it is in, read-only?), by the rules of a policy.

    A name of which a rule speaks as a directory only counts whatever it is: what is there can be replaced.
    """
    hides, readonly, readonly_in_git = Patterns(paths).compiled()

    def hidden(path: str) -> bool:
        return hides is not None and hides.match_either(path.rpartition("/")[2], path)

    def locked(path: str) -> bool:
        if readonly is None and readonly_in_git is None:
            return False
        for each in (path, *above(path)):
            name = each.rpartition("/")[2]
            rules = readonly_in_git if any(fold(part) in GIT_NAMES for part in each.split("/")[:-1]) else readonly
            if rules is not None and rules.match_either(name, each):
                return True
        return False

    return hidden, locked


def applied(held: Held, report: Report, changes: Sequence[Change]) -> None:
    """Mark a set of which everything was put in place."""
    if is_whole(report, changes):
        mark_applied(held)


def is_whole(report: Report, changes: Sequence[Change]) -> bool:
    """Was everything put in place?"""
    return len(report.applied) == len(changes) and not (report.refused or report.conflicts or report.partly)


def mark_applied(held: Held) -> None:
    """The next run on the set begins anew (``fresh``)."""
    os.close(os.open(f"{held.path}/{APPLIED}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def undo(held: Held, *, rest: bool = False) -> list[tuple[str, str]]:
    """Bring the workspace of a set back to what it was before the last apply (``Engine.undo``).

    Before anything is brought back the set is not taken any more for one that is in place: if we are killed, the next
    run would throw away what it holds.
    """
    was = os.path.exists(f"{held.path}/{APPLIED}")
    held.mark_changed()
    with opened(held) as (engine, _copy):
        try:
            return engine.undo(rest=rest)
        except MembraneError:  # nothing was brought back
            if was:
                mark_applied(held)
            raise


def resume(held: Held, *, forward: bool, rest: bool = False) -> list[tuple[str, str]]:
    """Bring an apply, or an undo, that ended in its middle to an end (``Engine.resume``)."""
    if os.path.exists(f"{held.path}/{APPLYING}/{JOURNAL}"):
        held.mark_changed()
    with opened(held) as (engine, _copy):
        left = engine.resume(forward=forward, rest=rest)
        if forward and not left and not engine.changes():
            mark_applied(held)
    return left


def fresh(held: Held) -> None:
    """At the start of a run: a set of which everything was put in place begins anew.

    Raises:
        HostError: it cannot be emptied; it is as before.
    """
    if not os.path.exists(f"{held.path}/{APPLIED}"):
        return
    import shutil

    held.empty()
    held.update(made=time.time_ns())
    for name in ("base", "undo"):
        shutil.rmtree(f"{held.path}/{name}", ignore_errors=True)
    held.mark_changed()


# ---------------------------------------------------------------- the screen


def counted(changes: Iterable[Change]) -> str:
    """How many of each kind: "3 added, 1 deleted"."""
    numbers: dict[str, int] = {}
    for change in changes:
        kind = change.kind if change.kind in _PLURALS else "changed"
        numbers[kind] = numbers.get(kind, 0) + 1
    return ", ".join(f"{numbers[kind]} {_PLURALS[kind]}" for kind in KINDS if kind in numbers) or "nothing changed"


def screen(name: str, changes: Sequence[Change], *, colour: bool = False, mode: Mode = "ask") -> list[str]:
    """What a person reads at the end of a run: counts, what is red, what cannot come, and what to type after ``mode``.

    Every name is escaped; a list is cut after ``MOST_SHOWN`` rows and says so.
    """
    lines = [f"the workspace is as it was; the change set {escape(name)} holds: {counted(changes)}"]
    red = [(change, "; ".join(change.red)) for change in changes if change.red and not change.never]
    never = [(change, change.never[0]) for change in changes if change.never]
    conflicts = [(change, change.conflict) for change in changes if change.conflict and not change.never]
    for rows, heading, paint in (
        (red, "red: programs outside of the sandbox would execute or obey these", colour),
        (never, "not put in place", False),
        (conflicts, "conflicts", colour),
    ):
        if rows:
            lines += _listing(rows, heading, colour=paint)
    if mode in ("ask", "never"):
        lines.append(f"  look: membrane diff {escape(name)}    put in place: membrane apply {escape(name)}")
    if red and mode != "all":
        lines.append(f"  with the red ones: membrane apply --all {escape(name)}")
    return lines


def _listing(rows: Sequence[tuple[Change, str]], heading: str, *, colour: bool) -> list[str]:
    lines = [f"  {heading}:"]
    for change, why in rows[:MOST_SHOWN]:
        path = escape(change.path)
        shown = f"{_RED}{path}{_PLAIN}" if colour else path
        lines.append(f"    {shown}  ({change.kind}; {escape(why)})")
    if len(rows) > MOST_SHOWN:
        lines.append(f"    and {len(rows) - MOST_SHOWN} more")
    return lines


def outcome(name: str, report: Report, *, dry_run: bool = False) -> list[str]:
    """What an apply did, or would do, for a person."""
    put, not_put = ("would be", "would not be") if dry_run else ("", "not")
    lines = [f"{put} put in place: {counted(report.applied) if report.applied else 'nothing'}".lstrip()]
    if report.partly:
        partly = frozenset(report.partly)
        rows = [
            (change, "the rest of it stays in the change set") for change in report.applied if change.path in partly
        ]
        lines += _listing(rows, f"only in part: {len(rows)}", colour=False)
    if report.refused:
        lines += _listing(report.refused, f"{not_put} put in place: {len(report.refused)}", colour=False)
    lines += [f"  {line}" for line in arrivals(report.arrived)]
    if report.applied and not dry_run:
        lines.append(f"  undo: membrane undo {escape(name)}")
    return lines


def arrivals(arrived: Iterable[Arrived]) -> list[str]:
    """The lines by which a person has the commits that arrived under a name of their own."""
    return [
        f"{escape(each.ref)} was moved in the workspace meanwhile; its commits: {escape(each.command)}"
        for each in arrived
    ]


# ---------------------------------------------------------------- the end of a run


def finish(
    held: Held,
    mode: Mode,
    *,
    say: Callable[[str], None],
    ask: Callable[[str], str] | None = None,
    look: Callable[[Copy, Sequence[Change]], None] | None = None,
    paths: Iterable[PathRule] = (),
    colour: bool = False,
) -> str:
    """Show what a run changed and do with it what the policy, or the person, says.

    Args:
        held: the set, locked; no process of the run is left.
        mode: "never" keeps it; "safe" and "all" put it in place, without and with what is red; "ask" asks where there
            is a terminal, and keeps it where there is none.
        ask: puts a question on the terminal and returns the answer; raises EOFError at its end.  None: there is none.
        look: shows the changes.
        paths: the rules of the policy.

    Returns: "nothing", "kept", "applied" or "discarded".
    """
    if mode in ("ask", "never") and _is_large((*held.uppers, *held.git_uppers)):
        say(f"the workspace is as it was; the change set {escape(held.name)} holds more than {MOST_AT_END} names")
        say(f"  look: membrane diff --stat {escape(held.name)}    put in place: membrane apply {escape(held.name)}")
        return "kept"
    with opened(held, paths) as (engine, copy):
        changes = engine.changes()
        if not changes:
            return "nothing"
        for line in screen(held.name, changes, colour=colour, mode=mode):
            say(line)
        answer = {"safe": "safe", "all": "all"}.get(mode, "keep")
        while mode == "ask" and ask is not None:
            answer = _asked(copy, changes, ask, look)
            if answer not in ("safe", "all"):
                break
            # A person takes their time: what is put in place is what was shown, in the workspace as it was shown.
            was, changes = changes, engine.changes()
            other = moved(was, changes, {change.path for change in (*was, *changes)})
            if not other:
                break
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            say(f"nothing was put in place: {escape(other[0])}{more} changed since you looked")
            if not changes:
                return "nothing"
            for line in screen(held.name, changes, colour=colour, mode=mode):
                say(line)
        if answer == "keep":
            return "kept"
        if answer in ("safe", "all"):
            try:
                report = engine.apply(red=answer == "all", found=changes)
            except MembraneError as error:
                for line in error.lines():
                    say(line)
                return "kept"
            applied(held, report, changes)
            for line in outcome(held.name, report):
                say(line)
            return "applied"
    held.discard()
    say(f"discarded {escape(held.name)}")
    return "discarded"


def _is_large(uppers: Iterable[str]) -> bool:
    """Do the layers hold more names than are judged before a person has asked for it?"""
    left = MOST_AT_END
    for upper in uppers:
        todo = [upper]
        while todo:
            try:
                with os.scandir(todo.pop()) as listing:
                    for entry in listing:
                        left -= 1
                        if left < 0:
                            return True
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
            except OSError:
                continue  # closed by the command: what is in it is counted when it is judged
    return False


def _asked(
    copy: Copy,
    changes: Sequence[Change],
    ask: Callable[[str], str],
    look: Callable[[Copy, Sequence[Change]], None] | None,
) -> str:
    """What the person wants: "all", "safe", "keep" or "discard".  The end of input and an interrupt keep it."""
    for _again in range(100):
        try:
            answer = _ANSWERS.get(ask(PROMPT).strip().lower()[:1], "")
        except (EOFError, KeyboardInterrupt):
            return "keep"
        if answer == "look" and look is not None:
            look(copy, changes)
        elif answer:
            return answer
    return "keep"


def poisoned(changes: Sequence[Change], only: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
    """The red ones among those that are asked for, each with the reason."""
    chosen, _ = choose(changes, only, red=True)
    return tuple((change.path, change.red[0]) for change in chosen if change.red)
