"""``AsyncSandbox``: the library's core, on asyncio; ``sync`` has the same for programs without a loop.

Theory of operation
-------------------
A sandbox is a process of its own (``supervisor``), spawned with one end of a socket pair; nothing is forked here and no
signal handler is set.  The loop reads its messages; a command is a message with three descriptors, whose other ends
are pipes that the loop reads and writes, or whatever the caller gave.  Everything that is open belongs to the object;
when this program ends in whatever way, the stream ends, and the sandbox with it.

Rules
-----
1. What comes from the sandbox is data: it is parsed as JSON, never evaluated, and every string in it is escaped.
2. ``on_ask`` is called in a thread, or awaited when it is a coroutine function: it never holds up anything but its own
   question.  An exception, an answer of another type and a late answer are "no".
3. Output is bounded; a command that writes more is not stopped, what is more is dropped.
"""

from __future__ import annotations

import _socket
import asyncio
import inspect
import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from ..errors import HostError, InternalError, MembraneError, PolicyError
from ..host.channel import Channel, pair
from ..lines import parsed
from ..policy.codec import dump
from . import wire
from .model import Answer, Change, Deny, Event, Question, Result, Stats, denied_of, question_of
from .policy import Policy
from .reviewed import AsyncReviewed, named, whole
from .spawning import argv_of, directory_of, own_program, spawn, umask, variables_of
from .streams import Events, Pipes, close_all, pipe_stream, standard_streams

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from typing import TypeAlias

    from ..messages import Message

    OnAsk: TypeAlias = Callable[[Question], Answer | Awaitable[Answer]]
    OnEvent: TypeAlias = Callable[[Event], object]

__all__ = ["AsyncProcess", "AsyncSandbox"]

MOST_OUTPUT = 64 << 20  # bytes of each stream that ``run`` keeps, unless the call says otherwise
OPEN = 120.0  # seconds for the supervisor to make the sandbox, on a busy machine
CLOSE = 300.0  # seconds for it to end everything and write the record; each part of that has a bound of its own
SIGTERM, SIGKILL = 15, 9
TIMED_OUT = 124  # exit status, as timeout(1)
# How many is not known, nor whether any (docs/events.md).
_LOST = {"event": "EventsLost", "kind": "event", "count": 0, "source": "session"}

# The sandbox whose ``on_ask`` is called in this context.
answering: ContextVar[AsyncSandbox | None] = ContextVar("answering", default=None)


class Command:
    """A command that was asked for."""

    def __init__(
        self, sandbox: AsyncSandbox, loop: asyncio.AbstractEventLoop, number: int, argv: tuple[str, ...]
    ) -> None:
        self._sandbox = sandbox
        self.number, self.argv = number, argv
        self.pid = 0
        self.assurance: tuple[tuple[str, str], ...] = ()
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[wire.CommandEnded] = loop.create_future()
        self.on_event: OnEvent | None = None

    @property
    def returncode(self) -> int | None:
        """The exit status as in ``Result``; None while it runs."""
        ended = self.ended
        return _exit_of(ended.result())[0] if ended.done() and not ended.exception() else None

    async def result(self) -> Result:
        """Wait for its end; what it wrote is for another reader."""
        return _result(self, await asyncio.shield(self.ended), b"", b"", False)

    def send_signal(self, number: int) -> None:
        """A signal to its process group."""
        if number == SIGKILL:
            self._sandbox._post(wire.Kill(self.number))
        else:
            self._sandbox._post(wire.Signal(self.number, int(number)))


class AsyncProcess:
    """A command that runs; made by ``AsyncSandbox.popen``.

    Attributes:
        argv: what runs.
        pid: its process id on the host, for looking at; signals go through ``send_signal``.
        stdin, stdout, stderr: the pipes that were asked for, else None.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self.argv = command.argv
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def pid(self) -> int:
        return self._command.pid

    @property
    def returncode(self) -> int | None:
        """The exit status as in ``Result``; None while it runs."""
        return self._command.returncode

    async def wait(self) -> Result:
        """Wait for its end.

        Raises:
            HostError: it could not be started or confined.
        """
        return await self._command.result()

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group; SIGKILL ends everything that it started (not in a persistent sandbox)."""
        self._command.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(SIGKILL)


class AsyncSandbox(AsyncReviewed):
    """A place where commands run behind the boundary; open it with ``async with``.

    Args:
        policy: what they may do; None: ``Policy.load(workspace)``.
        workspace: the directory that they work in, at its own path.
        persistent: keep ``/tmp`` and background processes from one command to the next; else each command has a
            private ``/tmp`` and process namespace, and what it leaves running ends with it.
        on_ask: is asked about accesses that no rule decides; without it they are refused.
        ask_timeout: seconds after which no answer is a "no".
        on_event: is called with every event, in the loop; must be quick.
        environ: variables that the policy may pass on and take secrets from; None: ``os.environ``.
        record: keep the record that ``membrane trace`` reads.
        review: keep what commands change apart from the workspace, in a change set, which a text names; False: as the
            policy says.

    All commands share one network, one record and the file rules.  Sandboxes share nothing.
    """

    # What a callback may raise and nothing ends: in the caller's loop, not what ends the program (``sys.exit()``).
    caught: type[BaseException] = Exception

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
        self._made: dict[str, Any] = {
            "workspace": workspace,
            "persistent": persistent,
            "on_ask": on_ask,
            "ask_timeout": ask_timeout,
            "on_event": on_event,
            "environ": environ,
            "record": record,
        }
        self.workspace = os.path.realpath(os.fspath(workspace))
        self.environ = dict(os.environ if environ is None else environ)
        given = Policy.load(self.workspace, environ=self.environ) if policy is None else policy
        self.policy, self.change_set = named(given, review)
        self.persistent = persistent
        self.id = ""
        self._on_ask, self._ask_timeout = on_ask, ask_timeout
        self._on_event = on_event
        self._record = record
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that opened it
        self._channel: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._number = 0
        self._ran = 0  # commands that were started, as far as they come from here
        self._wrapped = False  # others may have been
        self._was_open = self._renewing = False
        self._whole = -1
        self._looking = asyncio.Lock()
        self._commands: dict[int, Command] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}  # by number
        self._outbox: list[Message] = []
        self._readers: list[Events] = []
        self._wants_events = False
        self._told_all = False  # the supervisor has said that nothing more comes
        self._ending = False  # a callback has ended the program: none is called while the loop closes what is open
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: dict[int, asyncio.Task[None]] = {}
        self.left_behind: tuple[str, ...] = ()

    # ------------------------------------------------------------ open and close

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Make the sandbox.

        Raises:
            PolicyError: a rule cannot be bound.
            HostError: this machine lacks or refuses something; ``membrane doctor`` says what.
        """
        if self._channel is not None or self._closed is not None:
            raise HostError("open a sandbox", "it was opened before", fix=("make another one: AsyncSandbox(...)",))
        self._owner = os.getpid()
        await self._begin()
        self._was_open = True
        return self

    async def _begin(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._opened, self._closed = loop.create_future(), loop.create_future()
        self._told_all = False
        ours, theirs = pair(wire.TO_SUPERVISOR, wire.FROM_SUPERVISOR)
        try:
            try:
                self._process = spawn(theirs.fileno(), self.environ)
            finally:
                theirs.close()
            ask = self._ask_timeout if self._on_ask is not None else 0
            program = os.path.basename(sys.argv[0]) or "python"
            policy = dump(self.policy.rules)
            ours.send(wire.Open(policy, self.workspace, self.persistent, self._record, ask, os.getpid(), program))
        except OSError as error:
            ours.close()
            self._channel = None
            raise HostError("start the supervisor", error.strerror or str(error), target=sys.executable) from None
        ours.setblocking(False)
        self._channel = ours
        loop.add_reader(ours.fileno(), self._on_readable)
        if self._on_event is not None:
            self._want_events()
        try:
            async with asyncio.timeout(OPEN):
                await self._opened
        except TimeoutError:
            await self._shut()
            raise HostError("make the sandbox", f"it was not there within {OPEN:.0f} s") from None
        except BaseException:
            await self._shut()
            raise

    async def close(self) -> None:
        """End every command and the sandbox; may be called again.  In a fork of the process that opened it: nothing.

        Raises:
            HostError: by ``on_ask``, whose end it would wait for.
        """
        if self._owner != os.getpid() or self._closed is None:
            return
        if asyncio.current_task() in self._questions.values():
            raise waits_for_itself("close the sandbox", "on_ask")
        if self._channel is not None:
            self._refuse_loop("close the sandbox")
        await self._shut()
        if self._whole >= 0 and self._whole == self._ran_so_far():
            self._whole = -1
            await whole(asyncio.to_thread(self._set().mark_applied))

    async def _shut(self) -> None:
        assert self._closed is not None
        channel, process = self._channel, self._process
        if channel is not None:
            try:
                channel.socket.shutdown(_socket.SHUT_WR)
            except OSError:
                pass
            try:
                async with asyncio.timeout(CLOSE):
                    await asyncio.shield(self._closed)
            except TimeoutError:
                if process is not None:
                    process.kill()
        self._forget(None)
        for task in self._tasks:
            task.cancel()
        if process is not None:
            await asyncio.get_running_loop().run_in_executor(None, process.wait)
            self._process = None

    def _forget(self, failure: Exception | None) -> None:
        """The stream has ended, or is not wanted any more."""
        if self._channel is None:
            return
        assert self._loop is not None and self._opened is not None and self._closed is not None
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        self._channel = None
        early = not self._opened.done()
        ended = failure or HostError(
            *("make the sandbox", "its supervisor ended early") if early else ("use the sandbox", "it is closed")
        )
        self._failure = self._failure or ended
        if not self._opened.done():
            self._opened.set_exception(ended)
            self._opened.exception()  # seen, also when nothing waits
        for future in (*self._replies.values(), *(command.ended for command in self._commands.values())):
            if not future.done():
                future.set_exception(self._failure)
                future.exception()
        for command in self._commands.values():
            if not command.started.done():
                command.started.set_exception(self._failure)
                command.started.exception()
        self._commands.clear()
        self._replies.clear()
        self._outbox.clear()
        try:
            if self._wants_events and not early and not self._told_all:
                cause = "the sandbox ended, or was not listened to, before it had told everything"
                self._tell(Event("EventsLost", "", "session", {**_LOST, "cause": cause}))
        finally:
            if not self._renewing:
                for reader in self._readers:
                    reader.put(None)
            if not self._closed.done():
                self._closed.set_result(None)

    # ------------------------------------------------------------ what changes need (``reviewed``)

    async def _renew(self, work: Callable[[], None]) -> None:
        """End the sandbox, do ``work``, and make it anew.

        Raises:
            PolicyError: commands run.
        """
        running = max(len(self._commands), (await self.stats()).running)
        if running:
            raise PolicyError("make the sandbox anew", f"{running} commands run", fix=("wait for them, or kill them",))
        wanted, self._wants_events = self._wants_events, False
        self._renewing = True
        try:
            await self._shut()
            try:
                await whole(asyncio.to_thread(work))
            finally:
                self._failure = None
                await self._begin()
        except BaseException:
            if self._channel is None:
                for reader in self._readers:
                    reader.put(None)
            raise
        finally:
            self._renewing = False
            if wanted:
                self._want_events()

    def _ran_so_far(self) -> int:
        """How many commands were started; -1: it is not known, or some of it still runs."""
        return -1 if self.persistent or self._wrapped or self._commands else self._ran

    def _another(self, name: str) -> Self:
        return type(self)(self.policy, review=name, **self._made)

    # ------------------------------------------------------------ commands

    async def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        input: bytes | str | None = None,
        timeout: float | None = None,
        capture: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
        max_output: int = MOST_OUTPUT,
    ) -> Result:
        """Run a command to its end.

        Args:
            argv: the program, looked up in the sandbox's PATH, and its arguments; no shell.
            input: for its standard input; None: there is none (``/dev/null``).
            timeout: seconds after which it is killed; the result says ``timed_out``.
            capture: keep its output; else it goes to this program's own.
            env: further variables.
            cwd: where it starts, in the view, relative to the workspace.
            on_event: is called with the events while it runs.
            max_output: bytes of each stream that are kept.

        Raises:
            HostError: it could not be started or confined; a program that is not found is exit status 127.
        """
        pipes = Pipes()
        try:
            stdin = pipes.writer(input.encode() if isinstance(input, str) else input)
            stdout = pipes.reader(max_output) if capture else pipes.own(1)
            stderr = pipes.reader(max_output) if capture else pipes.own(2)
            command = self._start(argv, (stdin, stdout, stderr), env, cwd, on_event)
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.give_away()
        assert self._loop is not None
        pipes.begin(self._loop)
        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout):
                    ended = await asyncio.shield(command.ended)
            except TimeoutError:
                timed_out = True
                self._post(wire.Kill(command.number))
                ended = await asyncio.shield(command.ended)
        except BaseException:
            self._post(wire.Kill(command.number))
            raise
        finally:
            out, err, truncated = pipes.finish(self._loop)
        return _result(command, ended, out, err, truncated, timed_out)

    async def shell(self, line: str, **options: Any) -> Result:
        """Run a line of shell (``/bin/sh -c``); options as ``run``."""
        return await self.run(["/bin/sh", "-c", line], **options)

    async def popen(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        on_event: OnEvent | None = None,
    ) -> AsyncProcess:
        """Start a command and return when it runs.

        Args:
            stdin, stdout, stderr: ``PIPE``, ``DEVNULL``, a descriptor, or None for this program's own.

        Raises:
            HostError: it could not be started or confined.
        """
        with standard_streams((stdin, stdout, stderr)) as (ours, theirs):
            command = self._start(argv, theirs, env, cwd, on_event)
        process = AsyncProcess(command)
        try:
            assert self._loop is not None
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                if ours[number] >= 0:
                    fd, ours[number] = ours[number], -1
                    setattr(process, name, await pipe_stream(self._loop, fd, number == 0))
            await asyncio.shield(command.started)
        except BaseException:
            close_all(ours)
            process.kill()
            raise
        return process

    def _start(
        self,
        argv: Sequence[str | os.PathLike[str]],
        fds: Sequence[int],
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        on_event: OnEvent | None,
    ) -> Command:
        """Ask for a command; its streams may be closed when this returns."""
        self._check_open()
        assert self._loop is not None
        words = argv_of(argv)
        variables, directory = variables_of(env), directory_of(cwd)
        self._number += 1
        self._ran += 1
        command = Command(self, self._loop, self._number, words)
        command.on_event = on_event
        if on_event is not None:
            self._want_events()
        self._commands[self._number] = command
        self._post(wire.Run(self._number, words, directory, variables, umask(), tuple(fds)))
        return command

    async def start(
        self,
        argv: Sequence[str | os.PathLike[str]],
        fds: Sequence[int],
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        on_event: OnEvent | None,
    ) -> Command:
        """Start a command on three descriptors and return when it runs; ``popen`` without streams of the loop."""
        command = self._start(argv, fds, env, cwd, on_event)
        await asyncio.shield(command.started)
        return command

    async def wrap(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """An argv that runs ``argv`` in this sandbox, for a program that spawns processes itself.

        Its streams become the command's, signals are passed on, and it ends with the command's exit status.  It works
        while the sandbox is open, for this user.

        Raises:
            HostError: the socket for it cannot be made.
        """
        given, variables, directory = argv_of(argv), variables_of(env), directory_of(cwd)
        self._wrapped = True
        listens: wire.Listens = await self._ask_supervisor(wire.Listen)
        words = ["--env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
        place = ["--cwd", directory] if directory else []
        return [*own_program("membrane.api.enter"), listens.path, *place, *words, "--", *given]

    # ------------------------------------------------------------ the rest

    def events(self) -> AsyncIterator[Event]:
        """The events from now on, until the sandbox is closed.

        A reader that does not keep up learns what it missed from an event ``EventsLost``.
        """
        waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        reader = Events(waiting)
        self._follow(reader)
        return self._read_events(reader, waiting)

    async def _read_events(self, reader: Events, waiting: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
        try:
            while (event := await waiting.get()) is not None:
                yield event
        finally:
            self._unfollow(reader)

    def _follow(self, reader: Events) -> None:
        """Tell ``reader`` the events from now on, in the loop."""
        self._check_open()
        self._readers.append(reader)
        self._want_events()

    def _unfollow(self, reader: Events) -> None:
        """It takes no more."""
        if reader in self._readers:
            self._readers.remove(reader)

    async def update(self, policy: Policy) -> None:
        """Decide by the network rules of ``policy`` from now on; open connections stay.

        Raises:
            PolicyError: it needs what the sandbox was not made with: another rule than ``allow`` and ``deny`` differs,
                or it needs inspection or UDP ports.
            HostError: the gateway did not confirm it in 30 seconds; until it does, the rules of before may decide.
        """
        policy, _name = named(policy, self.change_set)
        await self._ask_supervisor(lambda number: wire.Update(number, dump(policy.rules)))
        self.policy = policy

    async def stats(self) -> Stats:
        """What happened so far."""
        counted: wire.Counted = await self._ask_supervisor(wire.Count)
        return Stats(**{name: counted.stats[name] for name in Stats.field_names})

    def _check_open(self) -> None:
        refuse_fork(self._owner)
        if self._channel is None:
            raise self._failure or HostError("use the sandbox", "it is not open", fix=("async with AsyncSandbox(...)",))
        self._refuse_loop("use the sandbox")

    def _refuse_loop(self, tried: str) -> None:
        """Raise HostError in another event loop than that which opened it: what comes is read there, or never."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            cause = "another event loop opened it, and what it says is read there"
            raise HostError(tried, cause, fix=("one asyncio.run() around open, use and close", "Sandbox, for threads"))

    def _want_events(self) -> None:
        if not self._wants_events:
            self._wants_events = True
            self._post(wire.WantEvents())

    async def _ask_supervisor(self, request: Callable[[int], Message]) -> Any:
        """The message that answers ``request``, which is given its number."""
        self._check_open()
        assert self._loop is not None
        self._number += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._replies[self._number] = future
        self._post(request(self._number))
        return await future

    def _post(self, message: Message) -> None:
        """Send a message, now or as soon as there is room."""
        if self._channel is None or self._loop is None or self._owner != os.getpid():
            return
        if not self._outbox:
            try:
                self._channel.send(message)
                return
            except BlockingIOError:
                self._loop.add_writer(self._channel.fileno(), self._on_writable)
            except OSError:
                return  # the end of the stream comes next
        if isinstance(message, wire.Run):  # its streams may be closed before it is sent
            message = message.replace(streams=tuple(os.dup(fd) for fd in message.streams))
        self._outbox.append(message)

    def _on_writable(self) -> None:
        assert self._channel is not None and self._loop is not None
        try:
            while self._outbox:
                message = self._outbox[0]
                self._channel.send(message)
                if isinstance(message, wire.Run):
                    close_all(message.streams)
                self._outbox.pop(0)
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.remove_writer(self._channel.fileno())

    def _on_readable(self) -> None:
        for _ in range(256):
            if self._channel is None:
                return
            try:
                message = self._channel.receive()
            except BlockingIOError:
                return
            except (OSError, MembraneError) as error:
                self._forget(InternalError("read the supervisor", f"{type(error).__name__}: {error}"))
                return
            if message is None:
                self._forget(None if self._failure is None else self._failure)
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        assert self._opened is not None
        if isinstance(message, wire.EventLines):
            for line in message.lines:
                self._take_event(line)
        elif isinstance(message, wire.Started):
            command = self._commands[message.number]
            command.pid = message.pid
            command.assurance = tuple((str(what), str(how)) for what, how in message.assurance)
            if not command.started.done():
                command.started.set_result(None)
        elif isinstance(message, wire.CommandEnded):
            self._end(self._commands.pop(message.number), message)
        elif isinstance(message, wire.Updated | wire.Counted | wire.Listens | wire.Holding | wire.Done):
            future = self._replies.pop(message.number, None)
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, wire.NotDone):
            future = self._replies.pop(message.number, None)
            if future is not None and not future.done():
                future.set_exception(wire.error_of(message.error))
        elif isinstance(message, wire.Question):
            task = self._spawn_task(self._answer(message.number, question_of(message.asked)))
            self._questions[message.number] = task
        elif isinstance(message, wire.Withdrawn):
            withdrawn = self._questions.pop(message.number, None)
            if withdrawn is not None:
                withdrawn.cancel()
        elif isinstance(message, wire.Opened):
            self.id = message.id
            if not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(message, wire.Failed):
            self._failure = wire.error_of(message.error)
        elif isinstance(message, wire.Closed):
            self.left_behind = message.left
            self._told_all = True

    @staticmethod
    def _end(command: Command, ended: wire.CommandEnded) -> None:
        if ended.failure is not None:
            error = wire.error_of(ended.failure)
            for future in (command.started, command.ended):
                if not future.done():
                    future.set_exception(error)
                    future.exception()
            return
        if not command.started.done():
            command.started.set_result(None)
        if not command.ended.done():
            command.ended.set_result(ended)

    def _spawn_task(self, coroutine: Any) -> asyncio.Task[None]:
        assert self._loop is not None
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, number: int, question: Question) -> None:
        """Ask the caller; whatever goes wrong is a "no"."""
        answer: object = Deny
        answering.set(self)
        try:
            assert self._on_ask is not None and self._loop is not None
            if inspect.iscoroutinefunction(self._on_ask):
                answer = await self._on_ask(question)
            else:
                answer = await asyncio.to_thread(self._on_ask, question)
                if inspect.isawaitable(answer):
                    answer = await answer
        except asyncio.CancelledError:
            raise
        except self.caught as error:
            self._report("on_ask", error)
        finally:
            self._questions.pop(number, None)
        word = answer.word if isinstance(answer, Answer) else "no"
        self._post(wire.Reply(number, word))

    def _take_event(self, line: str) -> None:
        try:
            data = parsed(line)
        except ValueError:
            return
        self._tell(Event(str(data.get("event")), str(data.get("time", "")), str(data.get("source", "")), data))

    def _tell(self, event: Event) -> None:
        callbacks = [command.on_event for command in self._commands.values()] if self._commands else []
        for callback in (self._on_event, *callbacks):
            if callback is None or self._ending:
                continue
            try:
                callback(event)
            except self.caught as error:
                self._report("on_event", error)
            except BaseException:
                self._ending = True
                raise
        for reader in self._readers:
            reader.put(event)

    def _report(self, what: str, error: BaseException) -> None:
        assert self._loop is not None
        context = {"message": f"membrane: {what} raised {type(error).__name__}", "exception": error}
        self._loop.call_exception_handler(context)


def _result(
    command: Command, ended: wire.CommandEnded, out: bytes, err: bytes, truncated: bool, timed_out: bool = False
) -> Result:
    code, signal = _exit_of(ended)
    over = timed_out or ended.timed_out
    return Result(
        command.argv,
        TIMED_OUT if over else code,
        signal,
        out,
        err,
        ended.duration,
        over,
        truncated,
        tuple(denied_of(each) for each in ended.denied),
        tuple(Change(str(path), what) for path, what in (ended.changes or {}).items()),
        command.assurance,
        not ended.lost,
    )


def _exit_of(ended: wire.CommandEnded) -> tuple[int, int]:
    """(exit status, signal) of what the supervisor reported."""
    if ended.timed_out:
        return TIMED_OUT, SIGKILL
    code = os.waitstatus_to_exitcode(ended.status)
    return (code, 0) if code >= 0 else (128 - code, -code)


def waits_for_itself(what: str, callback: str) -> HostError:
    """For a caller whose own end is what the call would wait for."""
    cause = f"this is {callback}, and it would wait until {callback} returns"
    return HostError(what, cause, fix=(f"in another thread or task, after {callback} has returned",))


def refuse_fork(owner: int) -> None:
    """Raise HostError where a fork of the process ``owner`` uses what that has opened: it would never get an answer.

    The loop's thread does not exist there, and both would read from one stream.
    """
    if owner not in (0, os.getpid()):
        cause = f"process {owner} opened it, and this is a fork of that"
        raise HostError("use the sandbox", cause, fix=("open another one after the fork",))
