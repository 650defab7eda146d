"""``membrane diff``, ``review``, ``apply`` and ``undo``: what a reviewed command changed, looked at and put in place.

Theory of operation
-------------------
Each holds the lock of the set, so nothing of the sandbox runs meanwhile.  The first word is the name of a set if there
is such a set; else all words are paths, and the set is the newest of the workspace that holds the current directory:
for ``undo`` the one that was applied last.
Paths are taken from the current directory; one that neither the set nor the workspace has is an error, as the name of a
set that was mistyped looks the same.

On a terminal text is escaped and coloured; into a pipe or a file the patch goes byte for byte.

``review`` shows the set on a full screen (``review_screen``), and puts in place what was chosen there.  As that may be
hours later, the workspace is looked at once more: where something that was to come is not as it was seen, nothing is
put in place, and the screen comes back with what is there now and all other choices.
"""

from __future__ import annotations

import os

from ..changes import diff, review, store, terminal
from ..changes.apply import Report
from ..changes.model import is_asked
from ..errors import Conflict, HostError, InternalError, PolicyError
from ..escaping import escape
from ..run.project import current, here
from . import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..changes.apply import Engine
    from ..changes.choice import Choice
    from ..changes.model import Change
    from ..changes.tree import Copy
    from ..policy.model import PathRule
    from . import review_screen
    from .options import Invocation

REFUSED = 1  # exit status: some of it was not put in place


def main(invocation: Invocation, state: str) -> int:
    """Run one of the subcommands; the exit status: 1 where something was refused or is in conflict.

    Raises:
        ChangeSetError: there is no such set, or it is in use.
        Conflict: the workspace was changed meanwhile; nothing was put in place.
        PolicyError: a path is nowhere.
        HostError: the machine refused a step.
    """
    command = invocation.command.name
    name, words = _chosen(invocation.words, state, here(), undo=command == "undo")
    if command == "review":
        _check_screen(name)
    with _taken(state, name, command) as held:
        only = [_relative(word, held.meta.workspace) for word in words]
        if command == "diff":
            return _diff(invocation, held, only, state)
        if command == "undo":
            return _undo(invocation, held)
        if command == "review":
            return _review(held, only, state)
        return _apply(invocation, held, only, state)


def _taken(state: str, name: str, command: str) -> store.Held:
    """The set, locked; one on which a run goes on can be looked at by a fork.

    Raises:
        ChangeSetError: as of ``store.take``.
    """
    try:
        return store.take(state, name, f"membrane {command}")
    except store.InUse as error:
        fix = ("wait until it ends", f"membrane fork {name} NEW   # a set of its own of what it holds now")
        raise store.InUse(error.tried, error.cause, target=error.target, fix=fix) from None


def _chosen(words: Sequence[str], state: str, here: str, *, undo: bool) -> tuple[str, list[str]]:
    sets = store.list_sets(state)
    if words and any(words[0] == each.name for each in sets):
        return words[0], list(words[1:])
    own = [each for each in sets if here == each.workspace or here.startswith(each.workspace.rstrip("/") + "/")]
    if own and undo:
        own.sort(key=lambda each: _applied(state, each.name))  # of those that never were the newest stays the last
    if own:
        return own[-1].name, list(words)
    if words and store.valid_name(words[0]):
        return words[0], list(words[1:])  # ``store.take`` says that there is none
    current()  # where it is gone, that is why
    raise store.ChangeSetError(
        "find the change set", f"there is no change set of {escape(here)}", fix=("membrane changes   # lists them",)
    )


def _applied(state: str, name: str) -> int:
    """When the apply that an undo would take back ended, ns since the epoch; 0: there is none."""
    try:
        return os.stat(f"{store.place(state, name)}/undo").st_ctime_ns
    except OSError:
        return 0


def _rules(held: store.Held, state: str) -> tuple[PathRule, ...]:
    """What the policy in force hides and keeps read-only in the workspace of a set.

    Raises:
        PolicyError: it cannot be read.
    """
    from ..run import settings

    loaded = settings.load_policy({}, dict(os.environ), held.meta.workspace, state)
    return loaded.policy.paths


def _relative(word: str, workspace: str) -> str:
    """A path that was typed, relative to the workspace; the last name is not followed.

    Raises:
        PolicyError: it is elsewhere, or starts from a current directory that is gone.
    """
    try:
        parent, name = os.path.split(os.path.abspath(word))
    except OSError as error:
        cause = f"{escape(word)} starts from the current directory: {error.strerror}"
        raise PolicyError("choose the changes", cause, fix=("cd into a directory that exists",)) from None
    path = os.path.normpath(os.path.join(os.path.realpath(parent), name))
    if path == workspace:
        return ""
    inner = path.removeprefix(workspace.rstrip("/") + "/")
    if inner == path:
        raise PolicyError("choose the changes", f"{escape(word)} is not in {escape(workspace)}")
    return inner


# ---------------------------------------------------------------- diff


def _diff(invocation: Invocation, held: store.Held, only: Sequence[str], state: str) -> int:
    with review.opened(held, _rules(held, state)) as (engine, copy):
        changes = engine.asked(engine.changes(), only)
        if invocation.has("json"):
            print(show.as_json({"name": held.name, "workspace": held.meta.workspace, "changes": diff.as_json(changes)}))
            return 0
        if invocation.has("html"):
            import sys

            from ..changes import page

            for piece in page.page(copy, held.name, changes):
                sys.stdout.buffer.write(piece)
            return 0
        terminal.page(pieces(invocation, copy, changes), held.meta.workspace)
    return 0


def pieces(invocation: Invocation, copy: Copy, changes: Sequence[Change]) -> Iterable[bytes]:
    """What the options ask for, as bytes."""
    if invocation.has("stat"):
        return (line.encode() + b"\n" for line in diff.stat(copy, changes))
    if invocation.has("name-status"):
        return diff.name_status(changes)
    return diff.patch(copy, changes)


# ---------------------------------------------------------------- review


def _check_screen(name: str) -> None:
    """Can a full screen be shown?

    Raises:
        PolicyError: there is no terminal.
        HostError: Textual is not installed.
    """
    import sys

    others = (f"membrane diff {escape(name)}", f"membrane apply {escape(name)} [PATH ...]")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise PolicyError("review the changes", "a full screen needs a terminal", fix=others)
    try:
        import textual  # noqa: F401
    except ImportError:
        fix = ("pip install 'membrane-sandbox[watch]'", *others)
        raise HostError("review the changes", "a full screen needs Textual", fix=fix) from None


def _review(held: store.Held, only: Sequence[str], state: str) -> int:
    from ..changes.choice import Choice, moved

    with review.opened(held, _rules(held, state)) as (engine, copy):
        found = engine.changes()
        choice = Choice(engine.asked(found, only))
        if not choice.changes:
            print(f"{escape(held.name)} holds no change" + (" there" if only else ""))
            return 0
        note = ""
        while True:
            decision = _decided(held.name, engine, copy, found, choice, note)
            if decision is None:
                print(f"everything is as it was; the change set {escape(held.name)} is kept")
                return 0
            seen, found = found, engine.changes()
            wanted = [change.path for change in decision.report.applied] if decision.report is not None else []
            other = moved(seen, found, wanted)
            lost = choice.renew([change for change in found if is_asked(change, only)])
            if other or lost or decision.report is None:
                note = _again(other or lost)
                continue
            try:
                return _put(held, engine, found, choice, decision)
            except Conflict as error:
                found = engine.changes()
                choice.renew([change for change in found if is_asked(change, only)])
                note = _again([path for path, _ in error.paths])


def _put(
    held: store.Held, engine: Engine, found: list[Change], choice: Choice, decision: review_screen.Decision
) -> int:
    """Put in place what was decided, of changes that are as they were seen.

    Raises:
        Conflict: some are not; nothing was put in place.
    """
    report = engine.apply(choice.only(), red=decision.accepted, hunks=choice.hunks(), exact=True, found=found)
    for line in review.outcome(held.name, report):
        print(line)
    review.applied(held, report, found)
    return REFUSED if report.refused else 0


def _decided(
    name: str, engine: Engine, copy: Copy, found: list[Change], choice: Choice, note: str
) -> review_screen.Decision | None:
    """What the person decides on the screen."""
    import termios

    from ..changes.pane import pane
    from . import review_screen

    termios.tcflush(0, termios.TCIFLUSH)  # what was typed before the screen was there is no answer to it
    screen = review_screen.application(
        name,
        choice,
        lambda change, width, split: pane(copy, change, engine.texts, width, split),
        lambda chosen: _ready(engine, found, chosen),
        note,
    )
    decision = screen.run()
    if screen.return_code:
        raise InternalError("show the changes", "the screen ended by an error; everything is as it was")
    return decision


def _ready(engine: Engine, found: list[Change], choice: Choice) -> Report:
    """What an apply would put in place, judged as it would be there.

    The red ones as well: what is said of them is what the person accepts, or does not.
    """
    return engine.apply(choice.only(), red=True, hunks=choice.hunks(), exact=True, found=found, dry_run=True)


def _again(paths: Sequence[str]) -> str:
    first = escape(paths[0]) if paths else "the workspace"
    many = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"nothing was put in place: {first}{many} changed since you looked; look and choose again"


# ---------------------------------------------------------------- apply, undo


def _apply(invocation: Invocation, held: store.Held, only: Sequence[str], state: str) -> int:
    both = [name for name in ("continue", "abort") if invocation.has(name)]
    if both:
        return _resume(held, forward=both[0] == "continue", rest=invocation.has("rest"), many=len(both) > 1)
    if invocation.has("patch"):
        return _patch(invocation, held, only, state)
    with review.opened(held, _rules(held, state)) as (engine, _copy):
        changes = engine.changes()
        engine.asked(changes, only)
        try:
            report = engine.apply(
                only,
                red=invocation.has("all"),
                rest=invocation.has("rest"),
                merge=invocation.has("merge"),
                dry_run=invocation.has("dry-run"),
                found=changes,
            )
        except Conflict as error:
            if invocation.has("json"):
                print(show.as_json(_answer(invocation, Report(()), error.paths)))
            raise
        if invocation.has("json"):
            print(show.as_json(_answer(invocation, report, [(each.path, each.conflict) for each in report.conflicts])))
        else:
            for line in review.outcome(held.name, report, dry_run=invocation.has("dry-run")):
                print(line)
        if not invocation.has("dry-run"):
            review.applied(held, report, changes)
    return REFUSED if report.refused or report.conflicts else 0


def _answer(invocation: Invocation, report: Report, conflicts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {
        "dry_run": invocation.has("dry-run"),
        "applied": diff.as_json(report.applied),
        "refused": [{"path": change.path, "why": why} for change, why in report.refused],
        "conflicts": [{"path": path, "why": why} for path, why in conflicts],
        "arrived": [{"ref": each.ref, "name": each.name} for each in report.arrived],
    }


def _patch(invocation: Invocation, held: store.Held, only: Sequence[str], state: str) -> int:
    """As ``_review``, with questions line by line."""
    import sys

    from ..changes.choice import Choice, moved
    from ..changes.pane import pane
    from .review_lines import Asker

    others = [name for name in ("all", "rest", "merge", "dry-run", "json") if invocation.has(name)]
    if others:
        raise PolicyError("choose the changes", f"--patch asks about each of them, and --{others[0]} answers for all")
    ask = terminal.asker()
    if ask is None:
        fix = (f"membrane apply {escape(held.name)} [PATH ...]",)
        raise PolicyError("choose the changes", "--patch asks on a terminal, and there is none", fix=fix)
    with review.opened(held, _rules(held, state)) as (engine, copy):
        found = engine.changes()
        choice = Choice(engine.asked(found, only))
        asker = Asker(
            ask,
            lambda line: print(line, flush=True),  # before the question, which goes to standard error
            lambda change, width, split: pane(copy, change, engine.texts, width, split),
            colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        )
        decision = asker.decide(choice, lambda chosen: _ready(engine, found, chosen))
        if decision is None or decision.report is None:
            print(f"everything is as it was; the change set {escape(held.name)} is kept")
            return 0
        fresh = engine.changes()
        lost = moved(found, fresh, [change.path for change in decision.report.applied])
        if lost:
            why = "it was changed since you looked; nothing was put in place"
            error = Conflict("apply the changes", why, target=escape(lost[0]), fix=("look and choose again",))
            error.paths = tuple((path, why) for path in lost)
            raise error
        return _put(held, engine, fresh, choice, decision)


def _resume(held: store.Held, *, forward: bool, rest: bool, many: bool) -> int:
    if many:
        raise PolicyError("bring the apply to an end", "--continue and --abort exclude each other")
    left = review.resume(held, forward=forward, rest=rest)
    return _left(left, "everything is in place" if forward else "everything is as before", rest=rest)


def _undo(invocation: Invocation, held: store.Held) -> int:
    return _left(review.undo(held, rest=invocation.has("rest")), "everything is as before", rest=True)


def _left(left: Sequence[tuple[str, str]], whole: str, *, rest: bool) -> int:
    if not left:
        print(whole)
        return 0
    for path, why in left:
        print(f"  {escape(path)}: {escape(why)}")
    if not rest:
        print("nothing else is missing; again, or with --rest to leave these as they are")
    return REFUSED
