"""What a sandbox on a reviewed workspace can do with its changes: ``AsyncSandbox`` and ``Sandbox`` inherit it.

Theory of operation
-------------------
Each call works on the change set (``changesets``) in a thread.  While the sandbox is open its supervisor holds the set,
so it is asked to stop everything for the call and lends the lock (``holding``); when it is closed, or not open yet, the
call takes the lock as anybody does.  A checkpoint of an open sandbox copies the layer that is being written, by shared
blocks where the file system has them; one of a closed sandbox takes constant time.

An overlay that is mounted cannot be given other layers.  So ``restore`` and ``discard`` end the sandbox and make it
anew: what runs in the background, a kept ``/tmp`` and the record end with it, and they are refused while commands run.

One call at a time works on a set; others wait for it.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from ..changes import store
from ..errors import PolicyError
from . import wire
from .changesets import OpenSet, Report, SandboxSet
from .policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Literal, Self

    from ..messages import Message
    from .changesets import Hunk, ReviewedChange

T = TypeVar("T")


class Missing:
    """There is no such answer."""


MISSING = Missing()
NAME_BYTES = 6  # of the name of a set that was given none, as hexadecimal digits


def named(policy: Policy, review: bool | str) -> tuple[Policy, str]:
    """The policy with its change set named, and that name; empty: the workspace is live.

    Args:
        review: turn it on; a text is the name of the set.

    Raises:
        PolicyError: no set can be called that; it is no policy.
    """
    if not isinstance(policy, Policy):
        cause = f"a policy is a membrane.Policy, not {type(policy).__name__}"
        raise PolicyError("use the policy", cause, fix=("Policy.from_dict(DATA)", "Policy.load(WORKSPACE)"))
    rules = policy.rules
    if not review and rules.workspace != "review":
        return policy, ""
    name = review if isinstance(review, str) else rules.change_set
    name = name or os.urandom(NAME_BYTES).hex()
    if not store.valid_name(name):
        raise PolicyError(
            "review the workspace",
            f"{name!r} cannot name a change set",
            fix=("letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 64",),
        )
    return Policy._of(rules.replace(workspace="review", change_set=name), policy.warnings), name


def options(
    only: Iterable[str],
    refuse: Literal["red", "nothing", "all"],
    rest: bool,
    merge: bool,
    hunks: Mapping[str, Iterable[Hunk]] | None,
) -> Callable[[SandboxSet], Report]:
    """``ChangeSet.apply`` with these arguments."""
    chosen = tuple(only)
    parts = {path: tuple(each) for path, each in (hunks or {}).items()}
    return lambda found: found.apply(chosen, refuse=refuse, rest=rest, merge=merge, hunks=parts)


def forking(name: str) -> Callable[[SandboxSet], None]:
    """``ChangeSet.fork``."""

    def fork(found: SandboxSet) -> None:
        found.fork(name)

    return fork


class AsyncReviewed:
    """The part of ``AsyncSandbox`` that is about changes.

    Attributes:
        change_set: the name of the set; empty: the workspace is live, and every method raises PolicyError.
    """

    change_set: str
    policy: Policy
    environ: dict[str, str]
    _channel: Any
    _was_open: bool
    _looking: asyncio.Lock
    _whole: int  # after an apply of everything: how many commands there had been; -1: there was none

    @abstractmethod
    def _ran_so_far(self) -> int: ...

    @abstractmethod
    async def _ask_supervisor(self, request: Callable[[int], Message]) -> Any: ...

    @abstractmethod
    async def _renew(self, work: Callable[[], None]) -> None: ...

    @abstractmethod
    def _another(self, name: str) -> Self: ...

    async def changes(self) -> tuple[ReviewedChange, ...]:
        """What differs from the workspace, sorted by path (``ChangeSet.changes``)."""
        return await self._on_set(lambda found: found.changes(), ())

    async def diff(self, only: Iterable[str] = ()) -> bytes:
        """A patch that ``git apply`` takes (``ChangeSet.diff``)."""
        chosen = tuple(only)
        return await self._on_set(lambda found: found.diff(chosen), b"")

    async def hunks(self, path: str) -> tuple[Hunk, ...]:
        """The differences of one changed text, each of which ``apply`` takes by itself (``ChangeSet.hunks``).

        Raises:
            PolicyError: nothing was changed there, or it comes only as a whole.
            Conflict: the host changed it while it was read.
        """
        return await self._on_set(lambda found: found.hunks(path))

    async def apply(
        self,
        only: Iterable[str] = (),
        *,
        refuse: Literal["red", "nothing", "all"] = "red",
        rest: bool = False,
        merge: bool = False,
        hunks: Mapping[str, Iterable[Hunk]] | None = None,
    ) -> Report:
        """Put changes in place, all that are chosen or none (``ChangeSet.apply``).

        Raises:
            Conflict: the host changed a chosen name meanwhile, or a hunk is not there any more; ``paths`` says which.
            PolicyError: a file in ``hunks`` comes only as a whole.
            Poisoned: with ``refuse="all"``; ``paths`` says which.
        """
        return await self._on_set(options(only, refuse, rest, merge, hunks), Report(()))

    async def undo(self, *, rest: bool = False) -> tuple[tuple[str, str], ...]:
        """Bring the workspace back to what it was before the last apply (``ChangeSet.undo``).

        Raises:
            Conflict: some of it was changed since, and ``rest`` is false.
        """
        self._whole = -1
        return await self._on_set(lambda found: found.undo(rest=rest))

    async def checkpoints(self) -> tuple[str, ...]:
        """The labels of its checkpoints, in the order in which they were made."""
        found = self._set()
        return await asyncio.to_thread(without_set(found.checkpoints, self._was_open, ()))

    async def checkpoint(self, label: str, *, replace: bool = False) -> None:
        """Keep what was changed so far under ``label``; commands that run are stopped meanwhile.

        Raises:
            PolicyError: the label cannot be one, or is taken and ``replace`` is false.
            HostError: the processes could not be stopped, or the changes not be copied; nothing was made.
        """
        await self._on_set(lambda found: found.checkpoint(label, replace=replace))

    async def fork(self, name: str = "") -> Self:
        """A sandbox that begins with what this one holds now, to be opened; all else is as this one was made.

        It has a network, a record and changes of its own.

        Args:
            name: of its change set; empty: one is made up.

        Raises:
            PolicyError: the name cannot be one, or is taken.
            HostError: as of ``checkpoint``.
        """
        name = name or os.urandom(NAME_BYTES).hex()
        await self._on_set(forking(name), None)
        return self._another(name)

    async def restore(self, label: str) -> None:
        """Go back to a checkpoint; what was changed since is kept as the checkpoint ``before-restore``.

        An open sandbox is made anew, with another ``id`` and record.

        Raises:
            PolicyError: there is no such checkpoint, or commands run.
        """
        found = self._set()
        await asyncio.to_thread(found.check, label)
        self._whole = -1
        await self._over(lambda: found.restore(label))
        if self._channel is not None:
            await self._ask_supervisor(lambda number: wire.Restored(number, label))

    async def discard(self) -> None:
        """Throw all changes away, with the checkpoints.  An open sandbox is made anew, with another ``id`` and record.

        Raises:
            PolicyError: commands run.
        """
        found = self._set()
        self._whole = -1
        await self._over(without_set(found.discard, self._was_open, None))

    # ------------------------------------------------------------ how

    def _set(self) -> SandboxSet:
        if not self.change_set:
            raise PolicyError("look at the changes", "the workspace is live", fix=("Sandbox(..., review=True)",))
        return SandboxSet(self.change_set, self.environ, self.policy.rules.paths)

    async def _on_set(self, work: Callable[[SandboxSet], T], empty: T | Missing = MISSING) -> T:
        """Do ``work`` on the set.

        Args:
            empty: the answer where there is no set any more, as nothing was changed; else that is an error.
        """
        closed = self._set()
        if self._channel is None:
            return await asyncio.to_thread(without_set(lambda: work(closed), self._was_open, empty))
        async with self._looking:
            holding: wire.Holding | None = None
            try:
                asked = asyncio.ensure_future(self._ask_supervisor(wire.Hold))
                try:
                    holding = await asyncio.shield(asked)
                except asyncio.CancelledError:  # it is held all the same, and has to be let go
                    await ended(asked)
                    holding = None if asked.exception() else asked.result()
                    raise
                assert holding is not None
                loop = asyncio.get_running_loop()

                def confirm() -> None:
                    asyncio.run_coroutine_threadsafe(self._ask_supervisor(wire.Confirm), loop).result()

                found = OpenSet(self.change_set, self.environ, self.policy.rules.paths, holding.lock, confirm)
                result: T = await whole(asyncio.to_thread(work, found))
                if found.whole:
                    self._whole = self._ran_so_far()
                return result
            finally:
                if holding is not None:
                    os.close(holding.lock)
                    if self._channel is not None:
                        await asyncio.shield(self._ask_supervisor(wire.LetGo))

    async def _over(self, work: Callable[[], None]) -> None:
        """Do what no overlay may be mounted for."""
        if self._channel is None:
            await asyncio.to_thread(work)
            return
        async with self._looking:
            await self._renew(work)


async def whole(work: Any) -> Any:
    """Await ``work``, which cannot be broken off: a cancellation waits for its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await ended(task)
        raise


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait for the end of ``task``, however often we are cancelled meanwhile."""
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            continue


def without_set(work: Callable[[], T], was_open: bool, empty: T | Missing) -> Callable[[], T]:
    """``work``; where there is no set, since the sandbox that was open changed nothing, ``empty``."""

    def done() -> T:
        try:
            return work()
        except store.NotThere:
            if not was_open or isinstance(empty, Missing):
                raise
            return empty

    return done
