"""Further commands in the sandbox of one command: ``membrane exec``.

Theory of operation
-------------------
``Door`` listens at a socket of the state directory (``registry.door_of``, mode 0600) while the command of the session
runs.  ``membrane exec`` connects and asks for a command; the cell forks it as it does the commands of a sandbox of the
library that is kept (``backend.Cell.join``, ``host.spawner``).  So it is in the same namespaces, under the same policy
and its own copy of the same filters; it is read back before it runs, and the tracer has its listener before that.

Rules
-----
1. Only a process of our own user that is in no sandbox is served: by SO_PEERCRED (unix(7)), and by its user namespace.
   What it asks for gets nothing that the sandbox has not: arguments, a directory of the view, a umask.  It chooses
   neither environment nor policy.
2. Of its descriptors the command gets the three streams; a stream that is a terminal is replaced by one of the sandbox,
   whose master goes to the caller.  Which ones are terminals is looked at here.
3. The end of the caller's stream ends its command.  The end of the session ends everything.
4. Nothing waits for a caller: one that does not read is dropped.

Processes of two such commands are in two domains of Landlock: neither may signal or trace the other's (landlock(7)).
"""

from __future__ import annotations

import os

from ..backend import Ended, Exited, Failed, HasTerminal, Job, Stopped, Waiting
from ..errors import HostError, MembraneError
from ..host.channel import SIGKILL, SIGSTOP, SIGTSTP, Channel
from ..messages import Failure, Message, Table
from ..plan import mounts
from .door import accept, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from ..backend import Cell, SharedCommand
    from ..messages import Fd, Fds
    from ..plan.model import SandboxPlan
    from ..tracer.process import Tracer

MOST = 64  # callers at once
LONGEST = 4 << 20  # bytes of arguments


# ---------------------------------------------------------------- messages


class Enter(Message):
    """Run a command; ``cwd``: of the caller, used where it is in the workspace; ``streams``: stdin, stdout, stderr."""

    argv: tuple[str, ...]
    cwd: str
    umask: int
    streams: Fds


class Signal(Message):
    """Signal its process group."""

    number: int


class GoOn(Message):
    """Let it go on after ``Halted``."""


class Began(Message):
    """It runs; ``master``: of its terminal, where one of its streams is one."""

    master: Fd | None


class Halted(Message):
    """It was stopped from its terminal."""


class Done(Message):
    """It has ended; ``status``: as wait(2) reports it.  Instead of it ``Failure``: it was not started."""

    status: int


TO_DOOR = Table("from a caller to a session", Enter, Signal, GoOn, longest=LONGEST)
FROM_DOOR = Table("from a session to a caller", Began, Halted, Done, Failure)


# ---------------------------------------------------------------- the session's side


class _Guest:
    """One caller, with its command."""

    def __init__(self, channel: Channel) -> None:
        channel.setblocking(False)
        self.channel = channel
        self.asked: Enter | None = None
        self.command: SharedCommand | None = None
        self.released = False
        self.status: int | None = None


class Door:
    """Serves callers for one session.

    Args:
        door: the socket that listens.
        cell: of the session.
        tracer: of the session, if it has one.
        plan: what the view is, with the environment of the command.
        watch, unwatch: of the session's loop; on_cell: what it does with news of the cell.
        write_last: writes down the last processes of the cell, by which a checkpoint finds all that may write.
    """

    def __init__(
        self,
        door: _socket.socket,
        cell: Cell,
        tracer: Tracer | None,
        plan: SandboxPlan,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        on_cell: Callable[[int], None],
        write_last: Callable[[], None],
    ) -> None:
        self._cell, self._tracer, self._plan = cell, tracer, plan
        self._watch, self._unwatch, self._on_cell = watch, unwatch, on_cell
        self._write_last = write_last
        self._guests: dict[int, _Guest] = {}
        self._joined = False
        self._syncs: dict[int, _Guest] = {}
        self._count = 0
        self._door = door
        if tracer is not None:
            tracer.on_synced = self._synced

    def close(self) -> None:
        """No process of the sandbox is left."""
        for guest in list(self._guests.values()):
            if guest.status is None:
                guest.status = SIGKILL
            self._leave(guest, Done(guest.status))

    # ------------------------------------------------------------ callers

    def on_caller(self) -> None:
        """A process may have connected."""
        socket = accept(self._door)
        if socket is None:
            return
        if len(self._guests) >= MOST:
            socket.close()
            return
        guest = _Guest(Channel(socket, FROM_DOOR, TO_DOOR))
        self._guests[guest.channel.fileno()] = guest
        self._watch(guest.channel.fileno(), lambda: self._on_guest(guest))

    def _on_guest(self, guest: _Guest) -> None:
        try:
            message = guest.channel.receive()
        except BlockingIOError:
            return
        except (OSError, MembraneError):
            message = None  # it speaks for itself only
        if isinstance(message, Enter) and guest.asked is None:
            guest.asked = message
            try:
                self._start(guest, message)
            except (OSError, MembraneError) as error:
                cause = error.cause if isinstance(error, MembraneError) else os.strerror(error.errno or 0)
                self._leave(guest, Failure(0, "join the session", cause, ""))
        elif isinstance(message, Signal) and guest.released and guest.command is not None:
            guest.command.signal(SIGTSTP if message.number == SIGSTOP else message.number)
        elif isinstance(message, GoOn) and guest.released and guest.command is not None:
            guest.command.resume()
        elif not isinstance(message, Signal | GoOn):
            for fd in message.streams if isinstance(message, Enter) else ():
                os.close(fd)
            self._leave(guest)

    def _send(self, guest: _Guest, message: Message) -> None:
        try:
            guest.channel.send(message)
        except OSError:
            pass  # gone, or it does not read: its end comes next

    def _leave(self, guest: _Guest, word: Message | None = None) -> None:
        """Its command has ended, or ends with it."""
        if self._guests.pop(guest.channel.fileno(), None) is None:
            return
        if word is not None:
            self._send(guest, word)
        self._unwatch(guest.channel.fileno())
        guest.channel.close()
        for fd in guest.asked.streams if guest.asked is not None else ():
            os.close(fd)
        command = guest.command
        if command is not None:
            if guest.status is None:
                command.signal(SIGKILL) if guest.released else command.refuse()
            self._unwatch(command.fileno())
            if command.terminal >= 0:
                os.close(command.terminal)
            command.close()

    # ------------------------------------------------------------ commands

    def _start(self, guest: _Guest, asked: Enter) -> None:
        if len(asked.streams) != 3 or not asked.argv:
            raise HostError("join the session", "it takes a command and three streams")
        if not self._joined:
            self._join()
        self._write_last()  # before there is a command: a checkpoint stops what is below them
        terminal = tuple(number for number, fd in enumerate(asked.streams) if os.isatty(fd))
        command = guest.command = self._cell.fork(terminal)
        self._watch(command.fileno(), lambda: self._on_news(guest, command))

    def _join(self) -> None:
        listener, error = self._cell.join()
        self._joined = True
        for descriptor in self._cell.descriptors()[1:]:
            self._watch(descriptor, lambda descriptor=descriptor: self._on_cell(descriptor))  # type: ignore[misc]
        if listener >= 0:
            if self._tracer is None:
                os.close(listener)
            else:
                self._tracer.join(listener)
        elif self._tracer is not None and "notify" in self._tracer.sources:
            self._joined = False
            raise HostError("join the session", f"what it does could not be traced: {os.strerror(error)}")

    def _on_news(self, guest: _Guest, command: SharedCommand) -> None:
        news = command.read()
        if isinstance(news, Waiting):
            try:
                command.ready()
            except (OSError, MembraneError) as error:
                self._leave(guest, Failure(0, "confirm the confinement of a command", str(error), ""))
                return
            self._count += 1
            self._syncs[self._count] = guest
            if self._tracer is None:
                self._synced(self._count)
                return
            self._tracer.follow(command.pid)
            self._tracer.sync(self._count)  # where that fails the session ends, and this with it
        elif isinstance(news, HasTerminal):
            pass
        elif isinstance(news, Stopped):
            self._send(guest, Halted())
        elif isinstance(news, Exited):
            guest.status = news.status
            self._leave(guest, Done(news.status))
        elif isinstance(news, Failed):
            self._leave(guest, Failure(news.errno, news.step, news.cause, news.target))
        elif isinstance(news, Ended):
            guest.status = SIGKILL
            self._leave(guest, Done(SIGKILL))

    def _synced(self, number: int) -> None:
        """The tracer follows a command: it may run."""
        guest = self._syncs.pop(number, None)
        if guest is None or guest.command is None or guest.channel.fileno() not in self._guests:
            return
        asked, command = guest.asked, guest.command
        assert asked is not None
        plan = self._plan
        cwd = os.path.normpath(asked.cwd)
        job = Job(asked.argv, plan.environment, cwd if mounts.inside(cwd, plan.workspace) else plan.cwd, asked.umask)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            command.release(job, [null if os.isatty(fd) else fd for fd in asked.streams])
        except OSError:
            return  # it has ended, which it reports
        finally:
            os.close(null)
            for fd in asked.streams:  # their other ends are to see the end of the command
                os.close(fd)
            guest.asked = asked.replace(streams=())
        guest.released = True
        self._send(guest, Began(None if command.terminal < 0 else command.terminal))


def connect(path: str) -> Channel:
    """The channel of a caller.

    Raises:
        HostError: the session does not listen.
    """
    try:
        channel = reach(path)
    except OSError as error:
        cause = f"{error.strerror}: it is ending, or it is a sandbox of a program (Sandbox.wrap joins those)"
        raise HostError("join the session", cause, target=path, fix=("membrane ps",)) from None
    return Channel(channel, TO_DOOR, FROM_DOOR)
