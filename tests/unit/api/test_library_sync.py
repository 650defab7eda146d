"""api.sync: what is handed to the thread of the loop is answered, also when the sandbox is closed meanwhile.

The core is one without a supervisor: ``Sandbox`` only hands coroutines to it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from membrane.api.sandbox import AsyncSandbox
from membrane.api.sync import Sandbox
from membrane.errors import HostError

LONG = 60.0  # seconds: only a wait for ever takes so long


class Core:
    """Answers ``stats`` at once, ``update`` never."""

    def __init__(self) -> None:
        self.waits, self.last_step = threading.Event(), lambda: None
        self.closes = 0
        self.cancelled = False

    async def open(self) -> None: ...

    async def close(self) -> None:
        self.closes += 1
        await asyncio.sleep(0)
        self.last_step()

    async def stats(self) -> str:
        return threading.current_thread().name

    async def update(self, _policy: object) -> None:
        self.waits.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def changes(self) -> tuple[()]:
        return ()

    async def events(self) -> AsyncIterator[int]:
        yield 1
        self.waits.set()
        await asyncio.get_running_loop().create_future()


def make(core: Core) -> Sandbox:
    made = Sandbox.__new__(Sandbox)
    made._begin_with(cast(AsyncSandbox, core))
    return made


class Caller(threading.Thread):
    """A thread that calls, and keeps the answer or the error."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.function, self.answer = function, None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.function()
        except Exception as error:
            self.answer = error

    def result(self) -> Any:
        self.join(LONG)
        assert not self.is_alive(), "it waits for ever"
        return self.answer


def test_a_call_runs_in_the_loop_of_the_sandbox() -> None:
    with make(Core()) as sandbox:
        assert cast(str, sandbox.stats()) == "membrane"
        thread = sandbox._thread
    assert thread is not None and not thread.is_alive()


def test_what_waits_when_the_sandbox_is_closed_gets_an_answer() -> None:
    core = Core()
    sandbox = make(core).open()
    caller = Caller(lambda: sandbox.update(cast(Any, None)))
    assert core.waits.wait(LONG)
    sandbox.close()
    error = caller.result()
    assert isinstance(error, HostError) and "closed before" in error.cause
    assert core.cancelled


def test_what_comes_while_it_is_closed_is_answered_or_refused() -> None:
    """Calls begin at every moment between the last step of ``close`` and the end of the thread, and after it."""
    for _ in range(20):
        core = Core()
        sandbox = make(core).open()
        callers: list[Caller] = []
        core.last_step = lambda callers=callers, sandbox=sandbox: callers.extend(  # type: ignore[misc]
            Caller(lambda: sandbox.update(cast(Any, None))) for _ in range(4)
        )
        sandbox.close()
        for caller in callers:
            error = caller.result()
            assert isinstance(error, HostError) and error.tried == "use the sandbox"
        assert len(callers) == 4


def test_events_end_with_the_sandbox() -> None:
    core = Core()
    sandbox = make(core).open()
    seen: list[object] = []
    events = sandbox.events()
    reader = Caller(lambda: seen.extend(events))
    assert core.waits.wait(LONG)
    sandbox.close()
    assert reader.result() is None and seen == [1]


def test_two_threads_may_close_it_and_again() -> None:
    core = Core()
    sandbox = make(core).open()
    callers: list[Caller] = []
    core.last_step = lambda: callers.append(Caller(sandbox.close)) if not callers else None
    sandbox.close()
    assert callers[0].result() is None
    sandbox.close()
    assert core.closes in (1, 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sandbox_that_is_not_open_says_so(when: str) -> None:
    sandbox = make(Core())
    if when == "after":
        sandbox.open().close()
    for use in (sandbox.stats, sandbox.events, lambda: sandbox._tell(print)):
        with pytest.raises(HostError, match="it is not open"):
            use()
    assert sandbox.changes() == ()  # a change set needs no sandbox


def test_a_call_that_takes_too_long_is_ended() -> None:
    core = Core()
    with make(core) as sandbox:
        with pytest.raises(TimeoutError):
            sandbox._call(cast(AsyncSandbox, core).update(cast(Any, None)), 0.0)
        sandbox.stats()
        assert core.cancelled or not core.waits.is_set()


def test_a_fork_is_refused_also_while_a_thread_holds_the_lock() -> None:
    with make(Core()) as sandbox:
        with sandbox._lock:
            pid = os.fork()
            if not pid:
                try:
                    sandbox.stats()
                except HostError as error:
                    os._exit(7 if "is a fork" in error.cause else 1)
                finally:
                    os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
