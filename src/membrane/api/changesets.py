"""Change sets of reviewed workspaces for programs: looked at, put in place, taken back.

Theory of operation
-------------------
A ``ChangeSet`` is a name; each call takes the lock of the set for as long as it works, so it fails while a sandbox
runs on it (``changes.store``), and reads what is there then.  The rules of the policy in force hold, as for the command
line.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from ..changes import review, store
from ..errors import Poisoned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Literal

    from ..changes.apply import Engine, Report
    from ..changes.model import Change
    from ..changes.tree import Copy
    from ..policy.model import PathRule


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

    def changes(self) -> tuple[Change, ...]:
        """What differs from the workspace, sorted by path; each with what is said against it."""
        with self._opened() as (engine, _copy):
            return tuple(engine.changes())

    def diff(self, only: Iterable[str] = ()) -> bytes:
        """A patch that ``git apply`` takes.

        Args:
            only: names, relative to the workspace, below which is shown; empty: everything.
        """
        from ..changes import diff
        from ..changes.model import covers

        only = tuple(only)
        with self._opened() as (engine, copy):
            chosen = [
                change
                for change in engine.changes()
                if not only or any(covers(asked, path) for asked in only for path in change.paths)
            ]
            return b"".join(diff.patch(copy, chosen))

    def apply(
        self,
        only: Iterable[str] = (),
        *,
        refuse: Literal["red", "nothing", "all"] = "red",
        rest: bool = False,
        merge: bool = False,
    ) -> Report:
        """Put changes in place, all that are chosen or none.

        Args:
            only: names, relative to the workspace, below which is chosen; empty: everything.
            refuse: "red" leaves out what outside programs would execute or obey; "nothing" puts it in place as well;
                "all" puts nothing in place when there is any of it among what was chosen.
            rest: where the host changed some names meanwhile, the others all the same.
            merge: files that both changed are merged in three ways, by git.

        Raises:
            Conflict: the host changed a chosen name meanwhile; ``paths`` says which.
            Poisoned: with ``refuse="all"``; ``paths`` says which.
        """
        only = tuple(only)
        with store.take(self._state, self.name, "a program") as held:
            with review.opened(held, self._rules(held)) as (engine, _copy):
                found = engine.changes()
                bad = review.poisoned(found, only) if refuse == "all" else ()
                if bad:
                    error = Poisoned("apply the changes", bad[0][1], target=ascii(bad[0][0])[1:-1])
                    error.paths = bad
                    raise error
                report = engine.apply(only, red=refuse == "nothing", rest=rest, merge=merge, found=found)
            review.applied(held, report, found)
            return report

    def undo(self, *, rest: bool = False) -> tuple[tuple[str, str], ...]:
        """Bring the workspace back to what it was before the last apply.

        Returns: (path, why) of what was not; only with ``rest``.

        Raises:
            Conflict: some of it was changed since, and ``rest`` is false.
        """
        with store.take(self._state, self.name, "a program") as held:
            with review.opened(held) as (engine, _copy):
                left = engine.undo(rest=rest)
            review.undone(held)
            return tuple(left)

    def discard(self) -> None:
        """Remove the set with all that was changed in it."""
        store.discard(self._state, self.name, "a program")

    @contextmanager
    def _opened(self) -> Iterator[tuple[Engine, Copy]]:
        with store.take(self._state, self.name, "a program") as held, review.opened(held, self._rules(held)) as both:
            yield both

    def _rules(self, held: store.Held) -> tuple[PathRule, ...]:
        from ..run import settings

        loaded = settings.load_policy({}, self._environ, held.meta.workspace, self._state, interactive=False)
        return loaded.policy.paths
