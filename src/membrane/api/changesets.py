"""Change sets of reviewed workspaces for programs: looked at, put in place, taken back.

Theory of operation
-------------------
A ``ChangeSet`` is a name; each call takes the lock of the set for as long as it works, so it fails while a sandbox
runs on it (``changes.store``), and reads what is there then.  The rules of the policy in force hold, as for the command
line.

``OpenSet`` is the set of a sandbox that is open, whose processes are stopped for the call (``holding``): it has the
lock from there.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from ..changes import review, store
from ..changes.apply import Report
from ..changes.hunks import Hunk
from ..changes.model import Change as ReviewedChange
from ..errors import MembraneError, Poisoned, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Literal

    from ..changes.apply import Engine
    from ..changes.tree import Copy
    from ..policy.model import PathRule

__all__ = ["ChangeSet", "Hunk", "Report", "ReviewedChange"]


class ChangeSet:
    """One change set, by its name (``--review=NAME``; ``workspace: review`` names it by the session).

    Args:
        name: of the set.
        environ: instead of ``os.environ``: where our state is (``MEMBRANE_HOME``).

    Every call raises ``PolicyError`` where there is no such set or it is in use, ``HostError`` where the machine
    refuses a step, and then has changed nothing.
    """

    def __init__(self, name: str, *, environ: Mapping[str, str] | None = None) -> None:
        from ..run import settings

        self._environ = dict(os.environ if environ is None else environ)
        self._state = os.path.realpath(settings.state_home(self._environ))
        self.name = name

    def changes(self) -> tuple[ReviewedChange, ...]:
        """What differs from the workspace, sorted by path; each with what is said against it."""
        with self._opened() as (engine, _copy):
            return tuple(engine.changes())

    def diff(self, only: Iterable[str] = ()) -> bytes:
        """A patch that ``git apply`` takes.

        Args:
            only: names, relative to the workspace, below which is shown; empty: everything.

        Raises:
            PolicyError: neither the set nor the workspace has one of them.
        """
        from ..changes import diff

        with self._opened() as (engine, copy):
            return b"".join(diff.patch(copy, engine.asked(engine.changes(), tuple(only))))

    def hunks(self, path: str) -> tuple[Hunk, ...]:
        """The differences of one changed text, each of which can be put in place by itself (``apply``).

        Args:
            path: relative to the workspace.

        Raises:
            PolicyError: nothing was changed there, or it comes only as a whole: it is new, git's, no text or too large.
            Conflict: the host changed it while it was read.
        """
        from ..changes import hunks

        with self._opened() as (engine, _copy):
            found = [change for change in engine.changes() if change.path == path]
            if not found:
                raise PolicyError("find the change", f"nothing was changed at {ascii(path)[1:-1]}")
            return hunks.cut(*engine.texts(found[0]))

    def apply(
        self,
        only: Iterable[str] = (),
        *,
        refuse: Literal["red", "nothing", "all"] = "red",
        rest: bool = False,
        merge: bool = False,
        hunks: Mapping[str, Iterable[Hunk]] | None = None,
    ) -> Report:
        """Put changes in place, all that are chosen or none.

        Args:
            only: names, relative to the workspace, below which is chosen; empty: everything.
            refuse: "red" leaves out what outside programs would execute or obey; "nothing" puts it in place as well;
                "all" puts nothing in place when there is any of it among what was chosen.
            rest: where the host changed some names meanwhile, the others all the same.
            merge: files that both changed are merged in three ways, by git.
            hunks: by path, of these files only these (of ``hunks``): the workspace's text with them, its mode and its
                attributes.  What is red is judged by that.  The rest stays in the set.

        Raises:
            Conflict: the host changed a chosen name meanwhile, or a hunk is not there any more; ``paths`` says which.
            PolicyError: a name of ``only`` is neither in the set nor there; a file in ``hunks`` comes only as a whole.
            Poisoned: with ``refuse="all"``; ``paths`` says which.
        """
        only = tuple(only)
        hunks = {path: tuple(each) for path, each in (hunks or {}).items()}
        with self._taken() as held:
            with review.opened(held, self._rules(held)) as (engine, _copy):
                found = engine.changes()
                engine.asked(found, only)
                asked = engine.parted(found, hunks) if hunks and refuse == "all" else found
                bad = review.poisoned(asked, only) if refuse == "all" else ()
                if bad:
                    error = Poisoned("apply the changes", bad[0][1], target=ascii(bad[0][0])[1:-1])
                    error.paths = bad
                    raise error
                report = engine.apply(
                    only,
                    red=refuse == "nothing",
                    rest=rest,
                    merge=merge,
                    found=found,
                    hunks=hunks,
                    strict=refuse == "all",
                )
            self._applied(held, report, found)
            return report

    def undo(self, *, rest: bool = False) -> tuple[tuple[str, str], ...]:
        """Bring the workspace back to what it was before the last apply.

        Returns: (path, why) of what was not; only with ``rest``.

        Raises:
            Conflict: some of it was changed since, and ``rest`` is false.
        """
        with self._taken() as held:
            return tuple(review.undo(held, rest=rest))

    def discard(self) -> None:
        """Remove the set with all that was changed in it."""
        store.discard(self._state, self.name, "a program")

    def checkpoints(self) -> tuple[str, ...]:
        """The labels of its checkpoints, in the order in which they were made."""
        return tuple(each.label for each in store.read(self._state, self.name).checkpoints)

    def checkpoint(self, label: str, *, replace: bool = False) -> None:
        """Keep what the set holds now, for ``restore``.

        Args:
            label: letters, digits and ``._-``, the first no sign, at most 64.
            replace: an earlier checkpoint of that label is given up; else it is refused.
        """
        with self._taken() as held:
            held.checkpoint(label, replace=replace, mounted=self._confirm)

    def restore(self, label: str) -> None:
        """Go back to a checkpoint; what was changed since is kept as the checkpoint ``before-restore``."""
        with self._taken() as held:
            held.restore(label)

    def fork(self, name: str) -> ChangeSet:
        """A second set that begins with what this one holds now; neither sees the other's changes afterwards."""
        with self._taken() as held:
            held.fork(name, mounted=self._confirm)
        return ChangeSet(name, environ=self._environ)

    # ------------------------------------------------------------ what the set of an open sandbox has otherwise

    _confirm: Callable[[], None] | None = None

    @contextmanager
    def _taken(self) -> Iterator[store.Held]:
        with store.take(self._state, self.name, "a program") as held:
            yield held

    def _rules(self, held: store.Held) -> tuple[PathRule, ...]:
        from ..run import settings

        loaded = settings.load_policy({}, self._environ, held.meta.workspace, self._state, interactive=False)
        return loaded.policy.paths

    def _applied(self, held: store.Held, report: Report, found: list[ReviewedChange]) -> None:
        review.applied(held, report, found)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Engine, Copy]]:
        with self._taken() as held, review.opened(held, self._rules(held)) as both:
            yield both


class SandboxSet(ChangeSet):
    """The set of a sandbox, with the rules of that one's policy.

    Args:
        paths: those rules.
    """

    def __init__(self, name: str, environ: Mapping[str, str], paths: tuple[PathRule, ...]) -> None:
        super().__init__(name, environ=environ)
        self._paths = paths

    def _rules(self, held: store.Held) -> tuple[PathRule, ...]:
        return self._paths

    def check(self, label: str) -> None:
        """Raise PolicyError where it has no such checkpoint."""
        store.checkpoint_of(store.read(self._state, self.name), label)

    def mark_applied(self) -> None:
        """All of it was put in place, and nothing ran on it since: the next run on it begins anew.

        Where that cannot be written down, the next run goes on with the same changes, of which none is left to apply.
        """
        try:
            with self._taken() as held:
                review.mark_applied(held)
        except (MembraneError, OSError):
            pass


class OpenSet(SandboxSet):
    """The set of a sandbox that is open, for as long as its processes are stopped.

    Args:
        lock: a descriptor of the set's lock; it is the caller's.
        confirm: raises where something has run.

    Attributes:
        whole: all of it was put in place.
    """

    def __init__(
        self, name: str, environ: Mapping[str, str], paths: tuple[PathRule, ...], lock: int, confirm: Callable[[], None]
    ) -> None:
        super().__init__(name, environ, paths)
        self._lock, self._confirm = lock, confirm
        self.whole = False

    @contextmanager
    def _taken(self) -> Iterator[store.Held]:
        held = store.Held(self._state, self.name, os.dup(self._lock))
        try:
            yield held
        finally:
            held.leave()

    def _applied(self, held: store.Held, report: Report, found: list[ReviewedChange]) -> None:
        # Not marked: what the sandbox changes from now on would be thrown away with it.
        self.whole = review.is_whole(report, found)
