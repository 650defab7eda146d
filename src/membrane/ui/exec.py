"""``membrane exec``: a command in the sandbox of a session that runs, as if it were that command.

Theory of operation
-------------------
The session is named as a person knows it: by its id or the beginning of it, by the change set that it works on, by its
workspace, or as ``@last``.  Its supervisor forks the command (``run.joined``); this process passes its streams and its
signals on, copies between its terminal and the command's, waits, and ends as the command ended.  When it is killed its
stream ends, and with it the command.  Where a container carries the session this goes on in there (``carry.join``).
"""

from __future__ import annotations

import os

from ..changes import store
from ..errors import HostError, InternalError, PolicyError
from ..escaping import escape
from ..host.channel import (
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGQUIT,
    SIGSTOP,
    SIGTERM,
    SIGTSTP,
    SIGUSR1,
    SIGUSR2,
    SIGWINCH,
)
from ..host.ready import ready
from ..host.terminal import Relay
from ..messages import Failure
from ..run import joined, registry
from ..run.project import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence

    from ..host.channel import Channel
else:
    import _signal

FORWARDED = (SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM)
SHORTEST = 4  # characters of the beginning of an id


def main(named: str, command: Sequence[str], state: str) -> int:
    """Run ``command`` in the session that ``named`` means; the exit status.

    Raises:
        PolicyError: there is no such session.
        HostError: it cannot be joined.
    """
    found = find(named, state)
    door = registry.door_of(state, found.id)
    if found.container:
        door = registry.CARRIED_DOOR
        if not os.path.exists(door):
            from . import carry

            return carry.join(found, command, state)
    if not os.path.exists(door):
        cause = "it takes no further command: it is just beginning or ending"
        raise HostError("join the session", cause, target=found.id, fix=("membrane ps",))
    umask = os.umask(0o077)
    os.umask(umask)
    channel = joined.connect(door)
    return _Caller(channel).run(joined.Enter(tuple(command), here(), umask, (0, 1, 2)))


def find(named: str, state: str) -> registry.SessionRecord:
    """The session.

    Raises:
        ChangeSetError: a change set has the name, and nothing runs on it.
        PolicyError: none that runs is meant, or several are.
    """
    alive = [each for each in registry.list_sessions(state) if each.alive]
    if named == "@last":
        found = alive[-1:]
    elif "/" in named or named in (".", ".."):
        found = [each for each in alive if each.workspace == os.path.realpath(named)]
    else:
        found = [each for each in alive if len(named) >= SHORTEST and each.id.startswith(named)]
        if not found and store.valid_name(named):
            try:
                last = store.read(state, named).session
            except store.NotThere:
                last = ""
            found = [each for each in alive if last and each.id == last]
            if last and not found:
                cause = f"no session works on the change set {named!r} now"
                raise store.ChangeSetError("join the session", cause, fix=(f"membrane --review={named} -- COMMAND",))
    if len(found) > 1:
        known = ", ".join(each.id[:12] for each in found)
        raise PolicyError("join the session", f"'{escape(named)}' means several: {known}", fix=("membrane ps",))
    if not found:
        raise PolicyError("join the session", f"no session that runs is '{escape(named)}'", fix=("membrane ps",))
    return found[0]


class _Caller:
    """This process while the command runs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._relay: Relay | None = None
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*FORWARDED, SIGWINCH, SIGTSTP, SIGCONT):
            if number in (SIGHUP, SIGINT, SIGQUIT) and _signal.getsignal(number) == _signal.SIG_IGN:
                continue  # nohup(1), or a background job of a shell without job control
            _signal.signal(number, lambda _number, _frame: None)
        _signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def run(self, asked: joined.Enter) -> int:
        """Ask, and serve until it has ended; the exit status."""
        own = (os.isatty(0), os.isatty(1), os.isatty(2))
        self._channel.send(asked)
        try:
            while True:
                message = self._served()
                if isinstance(message, joined.Began):
                    self._begin(message, own)
                elif isinstance(message, joined.Halted):
                    self._suspend()
                    self._channel.send(joined.GoOn())
                elif isinstance(message, joined.Done):
                    code = os.waitstatus_to_exitcode(message.status)
                    return code if code >= 0 else 128 - code
                elif isinstance(message, Failure):
                    raise HostError(message.step, message.cause, target=message.target)
                elif message is None:
                    raise HostError("run the command", "the session has ended")
                else:
                    raise InternalError("run the command", f"unexpected message {type(message).__name__}")
        finally:
            if self._relay is not None:
                while self._relay.to_screen() and self._printed():
                    pass
                self._relay.restore()

    def _printed(self) -> bool:
        assert self._relay is not None
        return bool(ready((self._relay.master,), seconds=0)[0])

    def _begin(self, message: joined.Began, own: tuple[bool, bool, bool]) -> None:
        if message.master is not None:
            self._relay = Relay(message.master, own)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1):  # of pipes the other ends are to see the end of the command, not ours
            if not own[fd] and not (self._relay and fd in (self._relay.screen, self._relay.keyboard)):
                os.dup2(null, fd)
        os.close(null)

    def _served(self) -> object:
        """Copy and forward until a message comes."""
        ended = False  # the command's side of the terminal
        while True:
            relay = self._relay
            reading = [self._channel.fileno(), self._wake]
            writing = []
            if relay is not None:
                reading += [] if ended else [relay.master]
                reading += [relay.keyboard] if relay.reads_keyboard else []
                writing = [relay.master] if relay.pending else []
            readable, writable = ready(reading, writing)
            if self._wake in readable:
                for number in os.read(self._wake, 64):
                    self._on_signal(number)
            if relay is not None:
                if relay.master in writable:
                    relay.flush()
                if relay.keyboard in readable and not relay.from_keyboard():
                    self._channel.send(joined.Signal(SIGHUP))
                if relay.master in readable:
                    ended = not relay.to_screen()
            if self._channel.fileno() in readable:
                return self._channel.receive()

    def _on_signal(self, number: int) -> None:
        if number == SIGWINCH and self._relay is not None:
            self._relay.resize()
        elif number == SIGTSTP:
            self._channel.send(joined.Signal(SIGTSTP))
            self._suspend()
            self._channel.send(joined.Signal(SIGCONT))
        elif number == SIGCONT and self._relay is not None:
            self._relay.enter_raw_mode()
            self._relay.resize()
        elif number in FORWARDED:
            self._channel.send(joined.Signal(number))

    def _suspend(self) -> None:
        """Stop like any job; what follows runs when the shell continues us."""
        if self._relay is not None:
            self._relay.restore()
        os.kill(os.getpid(), SIGSTOP)
        if self._relay is not None:
            self._relay.enter_raw_mode()
            self._relay.resize()
