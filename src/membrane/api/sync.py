"""``Sandbox``: ``AsyncSandbox`` for programs without an event loop.

Theory of operation
-------------------
The sandbox has an event loop in a thread of its own; every method hands a coroutine to it and waits.  So a sandbox may
be used from any number of threads at once, and from within a running loop as well (where it blocks that loop).
Callbacks are called in that thread (``on_event``) or in a worker thread (``on_ask``).  The thread ends with the
sandbox; it is a daemon, so a program that forgets to close a sandbox still ends, and the sandbox with it.

What is handed over is queued under the lock under which the end of the loop is queued: so it comes before that end,
which cancels what has not finished then, or it is refused.  No caller waits for ever: HostError.  So ``on_event``,
whose thread is the one that would do it, can signal a process and can call nothing that waits; ``on_ask`` cannot close.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from ..errors import HostError
from .sandbox import AsyncSandbox, answering, refuse_fork, waits_for_itself
from .streams import Events, standard_streams

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Literal

    from .changesets import Hunk, Report, ReviewedChange
    from .model import Event, Result, Stats
    from .policy import Policy
    from .sandbox import Command, OnAsk, OnEvent

T = TypeVar("T")


class Process:
    """A command that runs; made by ``Sandbox.popen``.

    Attributes:
        argv: what runs.
        pid: its process id on the host, for looking at; signals go through ``send_signal``.
        stdin, stdout, stderr: the unbuffered ends of the pipes that were asked for, else None; the caller's to close.
    """

    def __init__(self, sandbox: Sandbox, command: Command, ours: Sequence[int]) -> None:
        self._sandbox, self._command = sandbox, command
        self.argv = command.argv
        files: list[IO[bytes] | None] = [
            os.fdopen(fd, "wb" if number == 0 else "rb", buffering=0) if fd >= 0 else None
            for number, fd in enumerate(ours)
        ]
        self.stdin, self.stdout, self.stderr = files

    @property
    def pid(self) -> int:
        return self._command.pid

    def poll(self) -> int | None:
        """Its exit status as in ``Result``; None while it runs."""
        return self._command.returncode

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for its end.

        Raises:
            TimeoutError: it still runs after so many seconds.
            HostError: it could not be started or confined.
        """
        return self._sandbox._call(self._command.result(), timeout)

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group; SIGKILL ends everything that it started (not in a persistent sandbox)."""
        self._sandbox._tell(self._command.send_signal, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(15)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(9)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        if self.poll() is None:
            self.kill()
        self.wait()


class Sandbox:
    """A place where commands run behind the boundary; open it with ``with``.

    Arguments and methods are those of ``AsyncSandbox``.  Thread-safe.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        workspace: str | os.PathLike[str] = ".",
        persistent: bool = False,
        on_ask: OnAsk | None = None,
        ask_timeout: float = 120.0,
        on_event: OnEvent | None = None,
        environ: Mapping[str, str] | None = None,
        record: bool = True,
        review: bool | str = False,
    ) -> None:
        self._begin_with(
            AsyncSandbox(
                policy,
                workspace=workspace,
                persistent=persistent,
                on_ask=on_ask,
                ask_timeout=ask_timeout,
                on_event=on_event,
                environ=environ,
                record=record,
                review=review,
            )
        )

    def _begin_with(self, core: AsyncSandbox) -> None:
        core.caught = (
            BaseException  # its thread is no place to end the program from: who waits for it would wait for ever
        )
        self._core = core
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._owner = 0  # the process that opened it

    @property
    def id(self) -> str:
        """Of its record: ``membrane trace show ID``."""
        return self._core.id

    @property
    def workspace(self) -> str:
        return self._core.workspace

    @property
    def policy(self) -> Policy:
        return self._core.policy

    @property
    def left_behind(self) -> tuple[str, ...]:
        """After ``close``: protected names that a command made and that could not be moved away."""
        return self._core.left_behind

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def open(self) -> Self:
        """Make the sandbox.

        Raises:
            PolicyError: a rule cannot be bound.
            HostError: this machine lacks or refuses something; ``membrane doctor`` says what.
        """
        refuse_fork(self._owner)
        with self._lock:
            self._owner = os.getpid()
            first = self._thread is None
            if first:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="membrane", daemon=True)
                self._thread.start()
        try:
            self._call(self._core.open())
        except BaseException:
            if first:
                self._stop()
            raise
        return self

    def close(self) -> None:
        """End every command and the sandbox; may be called again.  In a fork of the process that opened it: nothing.

        Raises:
            HostError: by ``on_event`` or ``on_ask``, whose end it would wait for.
        """
        if self._thread is None or self._owner != os.getpid():
            return
        if answering.get() is self._core:
            raise waits_for_itself("close the sandbox", "on_ask")
        closing = self._core.close()
        future = self._queue(closing)
        if future is None:
            closing.close()  # another thread has closed it
            return
        try:
            future.result()
        except CancelledError:
            pass  # by another thread's close, which came to its end first
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join()

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        input: bytes | str | None = None,
        timeout: float | None = None,
        capture: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
        **options: Any,
    ) -> Result:
        """Run a command to its end (``AsyncSandbox.run``)."""
        return self._call(
            self._core.run(
                argv,
                input=input,
                timeout=timeout,
                capture=capture,
                env=env,
                cwd=cwd,
                on_event=on_event,
                **options,
            )
        )

    def shell(self, line: str, **options: Any) -> Result:
        """Run a line of shell (``/bin/sh -c``); options as ``run``."""
        return self.run(["/bin/sh", "-c", line], **options)

    def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
    ) -> Process:
        """Start a command and return when it runs (``AsyncSandbox.popen``); pipes are plain binary files."""
        with standard_streams((stdin, stdout, stderr)) as (ours, theirs):
            command = self._call(self._core.start(argv, theirs, env, cwd, on_event))
        return Process(self, command, ours)

    def wrap(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """An argv that runs ``argv`` in this sandbox, for a program that spawns it itself (``AsyncSandbox.wrap``)."""
        return self._call(self._core.wrap(argv, env=env, cwd=cwd))

    def events(self) -> Iterator[Event]:
        """The events from now on, until the sandbox is closed; the iterator blocks."""
        waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        reader = Events(waiting)
        self._call(_follow(self._core, reader))
        return self._read_events(reader, waiting)

    def _read_events(self, reader: Events, waiting: queue.SimpleQueue[Event | None]) -> Iterator[Event]:
        try:
            while (event := waiting.get()) is not None:
                yield event
        finally:
            loop = self._loop  # without the lock: the collector may be here, in a thread that holds it
            if loop is not None:
                with suppress(RuntimeError):  # closed meanwhile
                    loop.call_soon_threadsafe(self._core._unfollow, reader)

    def update(self, policy: Policy) -> None:
        """Decide by the network rules of ``policy`` from now on (``AsyncSandbox.update``)."""
        self._call(self._core.update(policy))

    def stats(self) -> Stats:
        """What happened so far."""
        return self._call(self._core.stats())

    # ------------------------------------------------------------ changes of a reviewed workspace

    @property
    def change_set(self) -> str:
        """The name of its change set; empty: the workspace is live, and the methods below raise PolicyError."""
        return self._core.change_set

    def changes(self) -> tuple[ReviewedChange, ...]:
        """What differs from the workspace, sorted by path (``ChangeSet.changes``)."""
        return self._work(self._core.changes())

    def diff(self, only: Iterable[str] = ()) -> bytes:
        """A patch that ``git apply`` takes (``ChangeSet.diff``)."""
        return self._work(self._core.diff(only))

    def hunks(self, path: str) -> tuple[Hunk, ...]:
        """The differences of one changed text, each of which ``apply`` takes by itself (``ChangeSet.hunks``).

        Raises:
            PolicyError: nothing was changed there, or it comes only as a whole.
            Conflict: the host changed it while it was read.
        """
        return self._work(self._core.hunks(path))

    def apply(
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
        return self._work(self._core.apply(only, refuse=refuse, rest=rest, merge=merge, hunks=hunks))

    def undo(self, *, rest: bool = False) -> tuple[tuple[str, str], ...]:
        """Bring the workspace back to what it was before the last apply (``ChangeSet.undo``).

        Raises:
            Conflict: some of it was changed since, and ``rest`` is false.
        """
        return self._work(self._core.undo(rest=rest))

    def checkpoints(self) -> tuple[str, ...]:
        """The labels of its checkpoints, in the order in which they were made."""
        return self._work(self._core.checkpoints())

    def checkpoint(self, label: str, *, replace: bool = False) -> None:
        """Keep what was changed so far under ``label`` (``AsyncSandbox.checkpoint``)."""
        self._work(self._core.checkpoint(label, replace=replace))

    def restore(self, label: str) -> None:
        """Go back to a checkpoint; an open sandbox is made anew (``AsyncSandbox.restore``)."""
        self._work(self._core.restore(label))

    def fork(self, name: str = "") -> Sandbox:
        """A sandbox that begins with what this one holds now, to be opened (``AsyncSandbox.fork``)."""
        made = Sandbox.__new__(type(self))
        made._begin_with(self._work(self._core.fork(name)))
        return made

    def discard(self) -> None:
        """Throw all changes away; an open sandbox is made anew (``AsyncSandbox.discard``)."""
        self._work(self._core.discard())

    def _work(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As ``_call``, also when it is closed."""
        future = self._queue(coroutine)
        if future is not None:
            return _answer(future)
        with ThreadPoolExecutor(1) as pool:  # this thread may have a loop
            return pool.submit(asyncio.run, coroutine).result()

    def _queue(self, coroutine: Coroutine[Any, Any, T]) -> Future[T] | None:
        """Hand it to the loop; None: the sandbox is not open, and the coroutine is still the caller's."""
        try:
            refuse_fork(self._owner)  # before the lock, which a thread may have held that is not in the fork
            if threading.current_thread() is self._thread:
                raise waits_for_itself("use the sandbox", "a callback in its thread")
            with self._lock:
                return None if self._loop is None else asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise

    def _queued(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        future = self._queue(coroutine)
        if future is None:
            coroutine.close()
            raise self._not_open()
        return future

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return _answer(self._queued(coroutine), timeout)

    def _not_open(self) -> HostError:
        if self._owner:
            return HostError(
                "use the sandbox", "it was closed", fix=("make another one: with Sandbox(...) as sandbox:",)
            )
        return HostError("use the sandbox", "it is not open", fix=("with Sandbox(...) as sandbox:",))

    def _tell(self, function: Any, *arguments: Any) -> None:
        refuse_fork(self._owner)
        with self._lock:
            if self._loop is None:
                raise self._not_open()
            self._loop.call_soon_threadsafe(function, *arguments)


def _answer(future: Future[T], timeout: float | None = None) -> T:
    try:
        return future.result(timeout)
    except CancelledError:
        raise HostError("use the sandbox", "it was closed before this came to its end") from None
    except BaseException:  # KeyboardInterrupt as well: what waits is ended
        future.cancel()
        raise


async def _follow(core: AsyncSandbox, reader: Events) -> None:
    """``events`` counts from here, not from the first look."""
    core._follow(reader)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
