"""api.sync: what is handed to the thread of the loop is answered, also when the sandbox is closed meanwhile.

The core is one without a supervisor: ``Sandbox`` only hands coroutines to it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from membrane.api import streams, wire
from membrane.api.model import Allow, Answer, Event
from membrane.api.policy import Policy
from membrane.api.sandbox import AsyncSandbox
from membrane.api.streams import Events
from membrane.api.sync import Sandbox
from membrane.errors import HostError

LONG = 60.0  # seconds: only a wait for ever takes so long


def event(number: int) -> Event:
    return Event("X", "", "session", {"number": number})


class Core:
    """Answers ``stats`` at once, ``update`` never."""

    def __init__(self) -> None:
        self.waits, self.last_step = threading.Event(), lambda: None
        self.closes = 0
        self.cancelled = False
        self.readers: list[Events] = []

    async def open(self) -> None: ...

    async def close(self) -> None:
        self.closes += 1
        await asyncio.sleep(0)
        for reader in self.readers:
            reader.put(None)
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

    def _follow(self, reader: Events) -> None:
        self.readers.append(reader)
        reader.put(event(1))

    def _unfollow(self, reader: Events) -> None:
        self.readers.remove(reader)


class Asked(AsyncSandbox):
    """A sandbox whose supervisor only asks."""

    def __init__(self, on_ask: Any) -> None:
        super().__init__(Policy(), on_ask=on_ask, record=False)
        self.sent: list[Any] = []

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened, self._closed = self._loop.create_future(), self._loop.create_future()
        self._closed.set_result(None)

    def _post(self, message: Any) -> None:
        self.sent.append(message)

    async def question(self) -> None:
        access = {"kind": "connection", "host": "a.example", "port": 443}
        self._take(wire.Question(1, {"number": 1, "kind": "connection", "access": access, "rule": "a.example:443"}))
        await asyncio.gather(*self._tasks)


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
        self.answer = self.answer_of(self.function)

    @staticmethod
    def answer_of(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            return error

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
    events, taken = sandbox.events(), threading.Event()

    def read() -> None:
        for each in events:
            seen.append(each)
            taken.set()

    reader = Caller(read)
    assert taken.wait(LONG)
    sandbox.close()
    assert reader.result() is None and seen == [event(1)]


def test_events_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_EVENTS", 3)
    core = Core()
    sandbox = make(core).open()
    events = sandbox.events()
    for number in range(2, 6):
        core.readers[0].put(event(number))
    sandbox.close()
    found = list(events)
    assert found[:3] == [event(1), event(2), event(3)]
    assert [(each.kind, each.data["count"]) for each in found[3:]] == [("EventsLost", 2)]


def test_a_reader_that_stops_is_told_no_more() -> None:
    core = Core()
    with make(core) as sandbox:
        for _ in sandbox.events():
            break
        assert cast(str, sandbox.stats()) == "membrane"  # what was queued before it is done
        assert core.readers == []


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
        with pytest.raises(HostError, match="it is not open" if when == "before" else "it was closed"):
            use()
    assert sandbox.changes() == ()  # a change set needs no sandbox


def test_a_call_that_takes_too_long_is_ended() -> None:
    core = Core()
    with make(core) as sandbox:
        with pytest.raises(TimeoutError):
            sandbox._call(cast(AsyncSandbox, core).update(cast(Any, None)), 0.0)
        sandbox.stats()
        assert core.cancelled or not core.waits.is_set()


@pytest.mark.parametrize("use", ["close", "stats", "changes", "update"])
def test_a_callback_in_the_sandboxs_thread_does_not_wait_for_itself(use: str) -> None:
    core = Core()
    sandbox = make(core).open()
    calls: dict[str, Callable[[], Any]] = {
        "close": sandbox.close,
        "stats": sandbox.stats,
        "changes": sandbox.changes,
        "update": lambda: sandbox.update(cast(Any, None)),
    }
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sandbox._tell(lambda: answers.put(Caller.answer_of(calls[use])))
    error = answers.get(timeout=LONG)
    assert isinstance(error, HostError) and "would wait" in error.cause
    sandbox._tell(lambda: answers.put(Caller.answer_of(lambda: sandbox._tell(answers.put, "signal"))))
    assert {answers.get(timeout=LONG), answers.get(timeout=LONG)} == {None, "signal"}  # the control: it can signal
    assert cast(str, sandbox.stats()) == "membrane"  # and is used on
    sandbox.close()
    assert core.closes == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_question_that_closes_the_sandbox_is_a_no(asynchronous: bool) -> None:
    """``on_ask`` is called in a thread that the end of the sandbox waits for."""
    errors: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made: list[Sandbox] = []

    def ask(_question: object) -> Answer:
        errors.put(Caller.answer_of(made[0].close))
        return Allow

    async def ask_in_the_loop(question: object) -> Answer:
        return ask(question)

    core = Asked(on_ask=ask_in_the_loop if asynchronous else ask)
    sandbox = Sandbox.__new__(Sandbox)
    sandbox._begin_with(core)
    made.append(sandbox)
    with sandbox:
        sandbox._call(core.question())
        error = errors.get(timeout=LONG)
        assert isinstance(error, HostError) and "would wait" in error.cause
    assert [reply.answer for reply in core.sent] == [Allow.word]  # the control: it was asked, and its answer counts


def test_closing_by_a_question_in_the_same_loop_is_refused() -> None:
    made: list[Asked] = []
    errors: list[Any] = []

    async def ask(_question: object) -> Answer:
        try:
            await made[0].close()
        except HostError as error:
            errors.append(error)
        return Allow

    async def use() -> None:
        made.append(Asked(on_ask=ask))
        await made[0].open()
        await made[0].question()
        await made[0].close()  # the control

    asyncio.run(use())
    assert [error.tried for error in errors] == ["close the sandbox"] and len(made[0].sent) == 1


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
