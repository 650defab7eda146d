"""The supervisor of one sandbox of the library: a process of its own, so that the caller forks nothing.

Theory of operation
-------------------
The caller spawns ``python -I -c ... FD`` with one end of a socket pair and sends the policy over it (``wire``).  The
supervisor makes the sandbox (``boundary.Boundary``) and then serves: the cell forks processes
(``backend.Cell.fork``), which confine themselves, are read back, and wait for a job; one more than there are jobs is
made, so that the next one need not wait.  When the keeper of a command has ended, so has everything that it started
(``kept``: but what it left in the background).  Before its end is reported, the tracer and the gateway are asked
to send what they hold, and say that they have: its refusals are complete then, however busy the machine is.  Where one
does not say it in ``SYNC`` seconds, the record and the result are incomplete, and say so.

One file of over 800 lines: the states of a command, which messages of its caller, the cell and the sources change.

All commands of a sandbox share its network, its tracer, its record and its file rules.  A refusal is reported with
every command that ran when it happened: the network does not know which of them it was.

Rules
-----
1. The end of the caller, however it comes, is the end of the sandbox: the stream ends, and a pidfd of the caller is
   watched as well, because a child of it may hold the stream open.
2. The caller is never waited for: events that it does not take are dropped and counted.
3. Callers of ``wrap`` come through a socket in a private directory; they can run, signal and kill their own commands
   and nothing else.
"""

from __future__ import annotations

import _socket
import gc
import os
import resource
import select
import sys
import time

from ..backend import Ended, Exited, Failed, Job, Waiting
from ..errors import HostError, InternalError, MembraneError, PolicyError
from ..events import plain
from ..host import view
from ..host.channel import SIGKILL, SIGSTOP, SIGTSTP, Channel, passed
from ..host.inherited import settle
from ..host.ready import ready
from ..plan import mounts
from ..policy.codec import restore
from ..run import door, registry
from ..run.begin import begin
from ..run.boundary import Boundary
from ..run.prepare import RunOptions, RunRequest
from ..run.questions import KINDS
from . import wire
from .holding import Holding

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Collection, Sequence
    from typing import Any

    from ..backend import SharedCommand
    from ..gateway.messages import Asked
    from ..messages import Message
    from ..run.gateway import Gateway
    from ..run.prepare import PreparedRun
    from ..tracer.process import Tracer
else:
    import _signal

MOST_WAITING = 4 << 20  # bytes of events that wait for the caller
MOST_REPORTED = 1000  # refusals, and changed files, of one command
MOST_COMMANDS = 4096  # at once
AT_ONCE = 8  # processes that are made ready for jobs at the same time
MOST_CLIENTS = 1024  # callers of ``wrap`` at once
OBEY = 1.0  # seconds for a keeper to kill its command
SYNC = 60.0  # seconds for the tracer and the gateway to send what they hold; they say when they have
REPORT = 10.0  # seconds in which the caller does not take the last events
UPDATE = 30.0  # seconds for the gateway to say that it decides by other rules
_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_CHANGING = frozenset(("creat", "trunc", "wronly", "rdwr", "append", "tmpfile"))


class _Client:
    """One end that sends messages: the caller itself, or a program that ``wrap`` has started."""

    def __init__(self, channel: Channel, main: bool) -> None:
        channel.setblocking(False)
        self.channel, self.main = channel, main
        self.waiting: list[Message] = []
        self.commands: dict[int, _Command] = {}
        self.gone = False


class _Command:
    """A process that confines itself and waits for its job, then that command.

    ``channel``: the descriptor of its news, by which it is known.
    """

    def __init__(self, process: SharedCommand) -> None:
        self.process = process
        self.channel = process.fileno()
        self.client: _Client | None = None  # until it has a job
        self.number = 0
        self.started = 0.0
        self.assurance: list[list[str]] = []
        self.status: int | None = None
        self.failure: dict[str, Any] | None = None
        self.deadline = 0.0
        self.kill_at = 0.0  # when the keeper is killed, because it did not obey
        self.timed_out = False
        self.denied: list[dict[str, Any]] = []
        self.changes: dict[str, str] = {}
        self.lost = 0


class _Wanted:
    """A job that waits for a process."""

    def __init__(self, client: _Client, number: int, job: Job, streams: Sequence[int]) -> None:
        self.client, self.number, self.job = client, number, job
        self.streams = [os.dup(fd) for fd in streams]

    def close(self) -> None:
        for fd in self.streams:
            os.close(fd)


class Supervisor(Boundary):
    """The sandbox of one caller."""

    shared = True

    def __init__(self, channel: Channel, prepared: PreparedRun, wanted: wire.Open) -> None:
        super().__init__(prepared)
        self._kept = wanted.persistent
        self._ask = wanted.ask
        self._main = _Client(channel, True)
        self._clients = {channel.fileno(): self._main}
        self._commands: dict[int, _Command] = {}  # by channel
        self._wanted: list[_Wanted] = []
        self._ready: list[_Command] = []
        self._making = 0  # processes that are not ready yet
        self._ran = 0
        self._closed = False
        self._caller = -1
        self._parent = wanted.pid
        self._door: _socket.socket | None = None
        self._door_path = ""
        self._wants_events = False
        self._unsent = 0  # bytes of events in the queue
        self._lines: list[str] = []
        self._dropped = 0
        self._questions: set[int] = set()
        # Number: who has yet to answer, then what, until when, and what at that time.
        self._syncs: dict[int, tuple[set[str], Any, float, Any]] = {}
        self._sync_number = 0
        self._holding = Holding(self)
        self._places: frozenset[str] = frozenset()  # that a keeper makes for each command
        self._on_line = self._take_event

    # ------------------------------------------------------------ what a Boundary asks

    def _prepare(self) -> None:
        """The signals were set when this process began."""

    def _begin(self) -> None:
        try:
            self._caller = os.pidfd_open(self._parent)
        except OSError:
            self._closed = True  # it has ended already
            return
        self._watch(self._caller, self._on_caller_end)
        for client in self._clients.values():
            self._watch_client(client)
        self._places = view.places_in_scratch(self.plan.mounts)
        self.gateway.on_synced = lambda number: self._synced(number, "network")
        if self._tracer is not None:
            self._tracer.on_synced = lambda number: self._synced(number, "tracer")
        gc.freeze()  # not collected before: that would write to every page that is shared with the launcher
        gc.enable()
        # For our own descriptors: who runs commands has been forked, with the caller's limits.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._send(self._main, wire.Opened(self.id, self.plan.workspace, self.record.trace_source))
        self._feed()

    def _over(self) -> bool:
        return self._closed

    def _limit(self) -> float:
        return 0.0  # each command has its own

    def _due(self) -> float:
        times = [at for command in self._commands.values() for at in (command.deadline, command.kill_at) if at]
        times += [until for _who, _then, until, _late in self._syncs.values()]
        times += [self._holding.due] if self._holding.due else []
        return min(times, default=0.0)

    def _on_due(self) -> None:
        now = time.monotonic()
        if self._holding.due and now >= self._holding.due:
            self._holding.step()
        for command in list(self._commands.values()):
            if command.deadline and now >= command.deadline:
                command.deadline, command.timed_out = 0.0, True
                self._kill(command)
            if command.kill_at and now >= command.kill_at:
                command.kill_at = 0.0
                command.process.kill()
        self._give_up_syncs(now)

    def _asks(self) -> tuple[float, tuple[str, ...]] | None:
        return (self._ask, KINDS) if self._ask else None

    def _answer_questions(self, gateway: Gateway) -> None:
        gateway.on_question, gateway.on_withdrawn = self._on_question, self._on_withdrawn

    def _after_processes(self) -> None:
        self._holding.end()
        for command in list(self._commands.values()):
            command.status = SIGKILL if command.status is None else command.status
            if command.client is not None:
                self._sync(command)
        self._await_syncs()
        for command in list(self._commands.values()):
            self._ended(command)
        for wanted in self._wanted:
            wanted.close()
            self._send(wanted.client, wire.CommandEnded(wanted.number, SIGKILL))
        if self._door is not None:
            self._door.close()
            try:
                os.unlink(self._door_path)
            except OSError:
                pass

    def _exit_status(self) -> tuple[int, int]:
        return (125, 0) if self.failure else (0, 0)

    def _report(self) -> None:
        channel = self._main.channel
        self._send_lines()  # what finds no room waits: before the socket blocks, for then it would be given up
        try:
            channel.socket.settimeout(REPORT)
            for message in self._main.waiting:
                channel.send(message)
            if self.failure:
                error = InternalError("keep the sandbox", self.failure)
                channel.send(wire.Failed(wire.error_as_data(error)))
            channel.send(wire.Closed(tuple(self._left_behind())))
        except OSError:
            pass  # the caller is gone

    # ------------------------------------------------------------ clients

    def _watch_client(self, client: _Client) -> None:
        self._watch(client.channel.fileno(), lambda: self._on_client(client))

    def _on_caller_end(self) -> None:
        self._closed = True

    def _on_client(self, client: _Client) -> None:
        if client.waiting:
            self._flush(client)
        for _ in range(64):
            message = None
            try:
                message = client.channel.receive()
                if message is not None:
                    self._obey(client, message)
            except BlockingIOError:
                return
            except (ValueError, KeyError, TypeError, MembraneError):
                if client.main:
                    raise
                message = None  # it speaks for itself only
            if message is None:
                self._lose(client)
                return

    def _lose(self, client: _Client) -> None:
        client.gone = True
        self._unwatch(client.channel.fileno())
        self._clients.pop(client.channel.fileno(), None)
        if client.main:
            self._closed = True
            return
        for command in client.commands.values():
            self._kill(command)
        for wanted in [each for each in self._wanted if each.client is client]:
            self._wanted.remove(wanted)
            wanted.close()
        client.channel.close()

    def _obey(self, client: _Client, message: Message) -> None:
        if isinstance(message, wire.Run):
            try:
                self._want_command(client, message)
            finally:
                for fd in message.streams:
                    os.close(fd)
        elif isinstance(message, wire.Signal | wire.Kill):
            command = client.commands.get(message.number)
            if command is None:
                self._forget_job(client, message.number, isinstance(message, wire.Kill))
            elif isinstance(message, wire.Kill):
                self._kill(command)
            else:
                self._signal(command, message.signal)
        elif not client.main:
            raise InternalError("obey a caller", f"it may not send {type(message).__name__}")
        elif isinstance(message, wire.Update):
            self._update(message)
        elif isinstance(message, wire.Reply):
            if message.number in self._questions:
                self._questions.discard(message.number)
                self.gateway.answer(message.number, message.answer)
        elif isinstance(message, wire.Count):
            self._send(client, wire.Counted(message.number, self._stats()))
        elif isinstance(message, wire.Listen):
            self._listen(message.number)
        elif isinstance(message, wire.WantEvents):
            self._wants_events = True
        elif isinstance(message, wire.Hold | wire.Confirm | wire.LetGo | wire.Restored):
            self._holding.obey(message)
        else:
            raise InternalError("obey the caller", f"unexpected message {type(message).__name__}")

    def _forget_job(self, client: _Client, number: int, kill: bool) -> None:
        """A signal for a job that waits for a process, or for a command that has ended."""
        for wanted in [each for each in self._wanted if each.client is client and each.number == number]:
            if kill:
                self._wanted.remove(wanted)
                wanted.close()
                self._send(client, wire.CommandEnded(number, SIGKILL))

    def _send(self, client: _Client, message: Message) -> None:
        if client.gone and not isinstance(message, wire.EventLines):
            return  # it has closed the sandbox, and reads on: what happened is told to the end
        client.waiting.append(message)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        fd = client.channel.fileno()
        try:
            while client.waiting:
                message = client.waiting[0]
                client.channel.send(message)
                client.waiting.pop(0)
                if isinstance(message, wire.EventLines):
                    self._unsent -= sum(map(len, message.lines))
            wanted = select.EPOLLIN
        except BlockingIOError:
            wanted = select.EPOLLIN | select.EPOLLOUT
        except OSError:
            client.waiting.clear()
            return  # the end of the stream comes next
        if fd in self._handlers:
            self._epoll.modify(fd, wanted)

    # ------------------------------------------------------------ commands

    def _want_command(self, client: _Client, run: wire.Run) -> None:
        if len(run.streams) != 3:
            self._not_started(client, run.number, "too many open files")
            return
        given = run.environment
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise InternalError("run a command", "a variable of it is no text")
        if not client.main and (
            run.number in client.commands
            or any(each.client is client for each in self._wanted if each.number == run.number)
        ):
            # Only one of the two would be killed when the client goes.
            raise InternalError("run a command", f"the number {run.number} is taken")
        cwd = os.path.normpath(os.path.join(self.plan.cwd, run.cwd))
        environment = {**dict(self.plan.environment), **given, "PWD": cwd}
        if len(self._commands) + len(self._wanted) >= MOST_COMMANDS:
            self._not_started(client, run.number, f"{MOST_COMMANDS} run already")
            return
        job = Job(run.argv, tuple(environment.items()), cwd, run.umask)
        try:
            self._wanted.append(_Wanted(client, run.number, job, run.streams))
        except OSError as error:
            self._not_started(client, run.number, error.strerror or str(error))
            return
        self._feed()

    def _not_started(self, client: _Client, number: int, cause: str) -> None:
        error = wire.error_as_data(HostError("start a command", cause))
        self._send(client, wire.CommandEnded(number, failure=error))

    def _feed(self) -> None:
        """Give jobs to the processes that wait, and have as many made as will be needed."""
        if self._holding:
            return
        while self._wanted and self._ready:
            wanted, command = self._wanted.pop(0), self._ready.pop(0)
            self._release(command, wanted)
            wanted.close()
        needed = min(len(self._wanted) + (0 if self._kept else 1), AT_ONCE)
        while self._making + len(self._ready) < needed and not self._closed:
            try:
                process = self.cell.fork()
            except HostError:
                return  # the cell reports ``Broken`` next
            except OSError as error:
                self._not_now(error)
                return
            self._making += 1
            command = _Command(process)
            self._commands[command.channel] = command
            self._watch(command.channel, lambda command=command: self._on_news(command))  # type: ignore[misc]

    def _not_now(self, error: OSError) -> None:
        """There is no room for another process: the end of one makes some, and without one jobs are refused."""
        if len(self._commands) > len(self._ready):
            return
        wanted_now, self._wanted = self._wanted, []
        for wanted in wanted_now:
            self._not_started(wanted.client, wanted.number, error.strerror or str(error))
            wanted.close()

    def _release(self, command: _Command, wanted: _Wanted) -> None:
        command.client, command.number = wanted.client, wanted.number
        command.started = time.monotonic()
        if self.policy.limits.time:
            command.deadline = command.started + self.policy.limits.time
        self._ran += 1
        wanted.client.commands[wanted.number] = command
        try:
            command.process.release(wanted.job, wanted.streams)
        except OSError:
            return  # it has ended
        self._send(wanted.client, wire.Started(wanted.number, command.process.pid, command.assurance))

    def _on_news(self, command: _Command) -> None:
        news = command.process.read()
        if isinstance(news, Waiting):
            self._confirm(command)
        elif isinstance(news, Exited):
            command.status = news.status
        elif isinstance(news, Failed):
            command.failure = wire.error_as_data(HostError(news.step, news.cause, target=news.target))
        elif isinstance(news, Ended):
            self._unwatch(command.channel)
            if command.process.ended < 0:
                self._not_made(command)
        else:
            raise InternalError("run a command", f"unexpected news: {type(news).__name__}")

    def _confirm(self, command: _Command) -> None:
        """Read back what the command has set on itself; from now on it can have a job."""
        try:
            assurance = command.process.ready()
        except (OSError, MembraneError) as error:
            failure = HostError("confirm the confinement of a command", str(error))
            command.failure = command.failure or wire.error_as_data(failure)
            command.process.refuse()
            return
        self._making -= 1
        command.assurance = [[each.rule, each.mechanism] for each in assurance]
        self._watch(command.process.ended, lambda: self._on_keeper_end(command))
        self._ready.append(command)
        self._feed()

    def _not_made(self, command: _Command) -> None:
        """It ended before it could have a job; the first that waits for one gets the error."""
        self._making -= 1
        del self._commands[command.channel]
        command.process.close()
        if self._wanted:
            wanted = self._wanted.pop(0)
            error = HostError("start a command", "its process ended early")
            failure = command.failure or wire.error_as_data(error)
            self._send(wanted.client, wire.CommandEnded(wanted.number, failure=failure))
            wanted.close()
            self._feed()

    def _on_keeper_end(self, command: _Command) -> None:
        """The keeper has ended, and in a sandbox that is not kept everything with it."""
        self._unwatch(command.process.ended)
        command.process.let_go()
        if command.channel in self._handlers:
            self._unwatch(command.channel)
            if command.status is None:
                command.status = command.process.last_status()
        self._on_end(command)

    def _on_end(self, command: _Command) -> None:
        if command.status is None:
            command.status = SIGKILL
        command.deadline = command.kill_at = 0.0
        if command in self._ready:
            self._ready.remove(command)
        self._sync(command)

    def _ended(self, command: _Command) -> None:
        if self._commands.pop(command.channel, None) is None:
            return
        self._unwatch(command.channel)
        if command.process.ended >= 0:
            self._unwatch(command.process.ended)
        command.process.close()
        client = command.client
        if client is None:
            self._feed()
            return
        client.commands.pop(command.number, None)
        self._send_lines()
        ended = wire.CommandEnded(
            command.number,
            command.status or 0,
            time.monotonic() - command.started,
            command.timed_out,
            command.lost,
            command.denied,
            command.changes,
            command.failure,
        )
        self._send(client, ended)
        self._feed()

    def _signal(self, command: _Command, number: int) -> None:
        if number == SIGKILL and not self._kept:
            self._kill(command)
            return
        if number == SIGSTOP and self._kept:
            number = SIGTSTP  # SIGSTOP is for all processes of a pid namespace (``host.init``)
        command.process.signal(number)

    def _kill(self, command: _Command) -> None:
        """End the command, and unless the sandbox is kept everything that it started."""
        try:
            if self._kept:
                # Its process group; a process inside may have stopped the keeper.
                if command.process.signal(SIGKILL):
                    command.kill_at = time.monotonic() + OBEY
            else:
                command.process.kill()
        except OSError:
            pass

    # ------------------------------------------------------------ events

    def _take_event(self, line: bytes, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "AccessDenied":
            denied = {
                name: event.get(name) for name in ("access", "reason", "rule", "hint", "count", "process", "time")
            }
            for command in self._running():
                if len(command.denied) < MOST_REPORTED:
                    command.denied.append(denied)
                else:
                    command.lost += 1
        elif kind in ("FileOpened", "FileCreated", "FileRemoved", "FileRenamed") and not event.get("result"):
            for path, change in _changes(kind, event):
                if path in self._places or path.startswith(_NOT_FILES):
                    continue
                for command in self._running():
                    if path in command.changes or len(command.changes) < MOST_REPORTED:
                        command.changes[path] = change
                    else:
                        command.lost += 1
        if not self._wants_events:
            return
        if kind == "SessionEnded":
            if self._dropped:
                self._tell_dropped()  # nothing comes after it
        elif self._unsent + len(line) > MOST_WAITING:
            self._dropped += 1
            return
        self._unsent += len(line)
        self._lines.append(line.decode("utf-8", "replace"))
        if len(self._lines) >= 64:
            self._send_lines()

    def _running(self) -> list[_Command]:
        return [command for command in self._commands.values() if command.client is not None]

    def _tell_dropped(self) -> None:
        import json

        text = json.dumps({"event": "EventsLost", "kind": "event", "count": self._dropped, "source": "session"})
        self._dropped = 0
        self._unsent += len(text)
        self._lines.append(text)

    def _send_lines(self) -> None:
        if self._dropped and self._unsent < MOST_WAITING // 2:
            self._tell_dropped()
        if self._lines:
            lines, self._lines = self._lines, []
            self._send(self._main, wire.EventLines(tuple(lines)))

    def _turn(self) -> None:
        self._send_lines()

    def _sync(self, command: _Command) -> None:
        """Report the end of a command when the tracer and the gateway have sent what they hold."""
        if self.gateway.has_packets():
            self._on_first_packet()  # what arrived last may be told in the same turn as the end, and after it
        self._sync_number += 1
        who = set()
        if self._tracer is not None and self._tracer.sync(self._sync_number):
            who.add("tracer")
        if self.gateway.sync(self._sync_number):
            who.add("network")

        def late() -> None:
            for source in sorted(who):
                why = f"it did not say within {SYNC:g} s that it has sent everything"
                if f"{source}: {why}" not in self._lacking:
                    self._lacks(source, why)
            command.lost += 1
            self._ended(command)

        if who:
            self._syncs[self._sync_number] = who, lambda: self._ended(command), time.monotonic() + SYNC, late
        else:
            self._ended(command)

    def _await_syncs(self) -> None:
        """After the loop: read what the sources send, until nothing more is waited for."""
        sources: dict[str, Gateway | Tracer] = {}
        if self._gateway is not None and self._gateway.pid:  # none where it failed on the way there
            sources["network"] = self._gateway
        if self._tracer is not None:
            sources["tracer"] = self._tracer
        while self._syncs:
            left = min(until for _who, _then, until, _late in self._syncs.values()) - time.monotonic()
            found = ready([source.control for source in sources.values()], seconds=max(0.0, left))[0]
            for name, source in list(sources.items()):
                try:
                    there = source.control not in found or source.read()
                except (MembraneError, OSError):
                    there = False  # the end of the record finds out why
                if not there:
                    del sources[name]
            self._give_up_syncs(time.monotonic(), sources)

    def _give_up_syncs(self, now: float, sources: Collection[str] = ("network", "tracer")) -> None:
        """Of sources that are late, or are not among these: they have ended."""
        for number, (who, _then, until, late) in list(self._syncs.items()):
            if now >= until or not who.issubset(sources):
                del self._syncs[number]
                late()

    def _confirm_update(self, number: int) -> None:
        """Answer an update when the gateway decides by it: what it has answered so far went by the rules of before."""

        def done() -> None:
            self._send(self._main, wire.Updated(number))

        def late() -> None:
            error = HostError(
                "change the policy of an open sandbox",
                f"the gateway did not say within {UPDATE:g} s that it decides by the new rules",
                fix=("close the sandbox: until then those of before may still decide",),
            )
            self._send(self._main, wire.NotDone(number, wire.error_as_data(error)))

        self._sync_number += 1
        if self.gateway.sync(self._sync_number):
            self._syncs[self._sync_number] = {"network"}, done, time.monotonic() + UPDATE, late
        else:
            done()

    def _synced(self, number: int, who: str) -> None:
        found = self._syncs.get(number)
        if found is None:
            return
        found[0].discard(who)
        if not found[0]:
            del self._syncs[number]
            found[1]()

    # ------------------------------------------------------------ the rest

    def _on_question(self, asked: Asked) -> None:
        self._questions.add(asked.number)
        who = self.cell.owner(asked.client)
        process = plain(who) if who is not None else None
        self._send(self._main, wire.Question(asked.number, {**vars(asked), "process": process}))

    def _on_withdrawn(self, number: int) -> None:
        self._questions.discard(number)
        self._send(self._main, wire.Withdrawn(number))

    @property
    def making(self) -> int:
        """How many processes are being made for jobs to come."""
        return self._making

    def answer(self, message: Message) -> None:
        """Send a message to the caller."""
        self._send(self._main, message)

    def go_on(self) -> None:
        """Jobs may have waited for the end of a look at the changes."""
        self._feed()

    def _update(self, update: wire.Update) -> None:
        try:
            policy, _warnings = mounts.as_found(restore(update.policy), self.prepared.facts)
            same = {"allow": (), "deny": (), "levels": (), "digest": ""}
            if policy.replace(**same) != self.policy.replace(**same):
                raise PolicyError(
                    "change the policy of an open sandbox",
                    "something else than its network rules differs",
                    fix=("open another sandbox",),
                )
            self.update_network(policy)
        except MembraneError as error:
            self._send(self._main, wire.NotDone(update.number, wire.error_as_data(error)))
            return
        self._confirm_update(update.number)

    def _stats(self) -> dict[str, Any]:
        log = self.log
        return {
            "commands": self._ran,
            "running": len(self._running()),
            "refused": log.refused,
            "bytes_up": log.bytes_up,
            "bytes_down": log.bytes_down,
            "events": dict(log.counts),
            "lost": log.lost,
        }

    def _listen(self, number: int) -> None:
        if self._door is None:
            path = registry.door_of(self.state, self.id)
            try:
                self._door = door.listen(path, MOST_CLIENTS)
            except OSError as error:
                failure = HostError("listen for wrapped commands", error.strerror or str(error), target=path)
                self._send(self._main, wire.NotDone(number, wire.error_as_data(failure)))
                return
            self._door_path = path
            self._watch(self._door.fileno(), self._on_door)
        self._send(self._main, wire.Listens(number, self._door_path))

    def _on_door(self) -> None:
        assert self._door is not None
        try:
            fd, _address = self._door._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        channel = _socket.socket(fileno=fd)
        os.set_inheritable(fd, False)
        if len(self._clients) >= MOST_CLIENTS or not _is_own(channel):
            channel.close()
            return
        client = _Client(Channel(channel, wire.FROM_SUPERVISOR, wire.TO_SUPERVISOR), False)
        self._clients[fd] = client
        self._watch_client(client)


def _is_own(channel: _socket.socket) -> bool:
    """Is the peer this user (SO_PEERCRED, unix(7))?"""
    credentials = channel.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.geteuid()


def _changes(kind: str, event: dict[str, Any]) -> list[tuple[str, str]]:
    path = event.get("path")
    if not isinstance(path, str):
        return []  # cut: too long to be reported
    if kind == "FileOpened":
        return [(path, "written")] if _CHANGING.intersection(event["flags"]) else []
    if kind == "FileRemoved":
        return [(path, "removed")]
    if kind == "FileRenamed":
        return [(path, "removed"), (str(event["to"]), "written")]
    return [(path, "created")]


def main(argv: list[str]) -> int:
    """The process: ``argv[1]`` is the descriptor of the caller's channel."""
    channel = passed(int(argv[1]), wire.FROM_SUPERVISOR, wire.TO_SUPERVISOR)
    os.set_inheritable(channel.fileno(), False)
    _signal.signal(13, _signal.SIG_IGN)
    _signal.signal(15, _signal.SIG_DFL)
    for number in (1, 2, 3):  # signals of a terminal are the caller's business
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda _number, _frame: None)  # not ignored: commands would inherit that
    wanted = channel.receive()
    if not isinstance(wanted, wire.Open):
        return 1
    try:
        settle()
        try:
            os.chdir(wanted.workspace)
        except OSError as error:
            raise HostError("enter the workspace", error.strerror or "", target=wanted.workspace) from None
        gc.disable()
        # What ``ps`` and the record show as its command.
        command, options = (f"[{wanted.program}]",), RunOptions(quiet=True, no_trace=not wanted.record)
        request = RunRequest(command, restore(wanted.policy), options)
        begun = begin(lambda: request, "kept" if wanted.persistent else "fresh")
        return Supervisor(channel, begun, wanted).run()
    except MembraneError as error:
        failure = wire.error_as_data(error)
    except Exception as error:
        failure = wire.error_as_data(InternalError("make the sandbox", f"{type(error).__name__}: {error}"))
    channel.setblocking(True)
    try:
        channel.send(wire.Failed(failure))
    except OSError:
        pass
    return 1
