"""The lifetime of one run: one command in a sandbox of its own, with the caller's streams, terminal and signals.

Theory of operation
-------------------
``Session`` is a ``boundary.Boundary`` that ends with its command.  It watches the command, the terminal and the signals
of the caller, releases the command, and reports what was refused.

Rules
-----
1. The exit status is the command's; 128+n for a signal; 124 when the time limit ended it; 125 when we failed.
2. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the command's process group, then escalated; SIGUSR1 and
   SIGUSR2 are passed on.
"""

from __future__ import annotations

import gc
import os
import select
import time

from ..backend import Broken, Ended, Exited, Failed, Refused, Stopped
from ..errors import HostError, MembraneError
from ..escaping import escape
from ..events import AccessDenied
from ..host.channel import (
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGQUIT,
    SIGSTOP,
    SIGTERM,
    SIGTSTP,
    SIGUSR1,
    SIGUSR2,
    SIGWINCH,
)
from ..host.ready import ready
from ..host.writing import write_all
from ..policy.model import CARRIERS
from . import registry
from .boundary import Boundary
from .event_log import open_for_caller, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal

    from ..host.terminal import Relay
    from .gateway import Gateway
    from .joined import Door
    from .prepare import PreparedRun
    from .prompt import Prompts
else:
    import _signal

FORWARDED = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
PASSED_ON = (SIGUSR1, SIGUSR2)  # mean what the command says that they mean; ours would be to die of them
LAST_NEWS = 30.0  # seconds for pid 1 to end with the launcher, on a busy machine
GRACE = 5.0  # seconds between a forwarded SIGTERM or SIGHUP and SIGKILL
IMPATIENT = (3, 2.0)  # so many SIGINTs within so many seconds kill
PRINTED_BEFORE = 16  # reads of what the command printed before a question is shown
MOST_CALLERS = 64  # of ``membrane exec`` that wait for an answer
TIMED_OUT = 124  # exit status, as timeout(1)


class Hooks:
    """What a caller of ``Session`` takes part in; the methods do nothing here."""

    fd = -1  # watched while the command runs

    def started(self, session: Session) -> None:
        """The command was released."""

    def readable(self, session: Session) -> None:
        """``fd`` can be read."""

    def refused(self, event: AccessDenied) -> None:
        """An access was refused; what it holds is escaped."""


class Session(Boundary):
    """One run; ``run`` may be called once."""

    def __init__(self, prepared: PreparedRun, hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        super().__init__(prepared)
        self.asked_to_end: int = 0  # the last signal that asked us to end
        self.wait_status: int | None = None
        self._interrupts: list[float] = []
        self._kill_at = 0.0
        self._prompts: Prompts | None = None  # where questions are answered
        self._relay: Relay | None = None
        self._listening: _socket.socket | None = None  # for ``membrane exec``
        self._door: Door | None = None  # from the first caller on

    def _prepare(self) -> None:
        if type(self.hooks) is not Hooks:
            self.log.on_refusal = self.hooks.refused
        self._write_session_id()
        self._wake = self._install_signals()

    def _begin(self) -> None:
        cell = self.cell
        self._watch(self._wake, self._on_signals)
        self._watch(cell.command.fileno(), self._on_command)
        if self.hooks.fd >= 0:
            self._watch(self.hooks.fd, self._on_hook)
        if cell.terminal >= 0:
            from ..host.terminal import Relay

            self._relay = Relay(cell.terminal, self.prepared.terminal)
            self._watch(cell.terminal, self._on_terminal)
            self._watch_terminal()
        cell.command.release()
        self._listen()
        gc.freeze()  # the first collection would look at everything that was loaded
        gc.enable()  # the script switched it off for the start
        self._let_go_of_streams(self.prepared.terminal)
        self.hooks.started(self)

    def _listen(self) -> None:
        """Take callers of ``membrane exec``; the command runs already."""
        if self.policy.backend in CARRIERS and not self.options.container:
            return  # it is part of another subcommand
        from . import door

        try:
            self._listening = door.listen(self._place(), MOST_CALLERS)
        except (OSError, MembraneError) as error:
            self._warn(f"membrane exec cannot join this session: {error}")
            return
        self._watch(self._listening.fileno(), self._on_caller)

    def _place(self) -> str:
        """Where callers come to; of a carried run in the container, into which they are brought (``ui.carry.join``)."""
        return registry.CARRIED_DOOR if self.options.container else registry.door_of(self.state, self.id)

    def _on_caller(self) -> None:
        if self._door is None:
            from .joined import Door

            assert self._listening is not None
            tools = (self._watch, self._unwatch, self._on_cell)
            self._door = Door(self._listening, self.cell, self._tracer, self.plan, *tools, self._write_last)
        self._door.on_caller()

    def _write_last(self) -> None:
        """With commands of ``membrane exec`` there are processes that are not below pid 1; they end before it does."""
        if self.prepared.changes is not None:
            self.prepared.changes.keep_until(self.cell.last())

    def _turn(self) -> None:
        """Nothing is held back."""

    def _over(self) -> bool:
        return self.wait_status is not None

    def _due(self) -> float:
        return self._kill_at

    def _on_due(self) -> None:
        self.cell.kill()
        self.wait_status = SIGKILL

    def _launcher_ended(self) -> None:
        if self.wait_status is None:
            # It ends after the command does; if that sent its status first, the news is already waiting, behind what
            # was refused to the command.
            while (
                self.wait_status is None
                and not self.failure
                and ready((self.cell.command.fileno(),), seconds=LAST_NEWS)[0]
            ):
                self._on_command()
            if self.wait_status is None and not self.failure:
                self.failure = "the launcher died; the command was killed"

    def _after_processes(self) -> None:
        if self._door is not None:
            self._door.close()
        if self._listening is not None:
            self._listening.close()
            try:
                os.unlink(self._place())
            except OSError:
                pass
        if self._prompts is not None:
            self._prompts.clear()
        if self._relay is not None:
            while self._relay.to_screen():
                pass
            self._relay.restore()

    def _write_session_id(self) -> None:
        if not self.options.session_id_file:
            return
        path = self.options.session_id_file
        try:
            fd = open_for_caller(path, os.O_TRUNC, 0o644)
            write_all(fd, self.id.encode())
            os.close(fd)
        except OSError as error:
            raise HostError("write the session id file", error.strerror or "", target=path) from None

    def _install_signals(self) -> int:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*FORWARDED, *PASSED_ON, SIGWINCH, SIGTSTP, SIGCONT):
            if number in (SIGHUP, SIGINT, SIGQUIT) and _signal.getsignal(number) == _signal.SIG_IGN:
                continue  # nohup(1), or a background job of a shell without job control
            _signal.signal(number, lambda _number, _frame: None)
        _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        return read

    # ------------------------------------------------------------ start

    def _asks(self) -> tuple[float, tuple[str, ...]] | None:
        """Without a terminal of our own job there is no one to ask."""
        if not self.options.ask:
            return None
        from .questions import KINDS, SECONDS

        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        os.close(terminal)
        return SECONDS, KINDS

    def _answer_questions(self, gateway: Gateway) -> None:
        from .prompt import Prompts
        from .questions import Questions

        prompts = self._prompts = Prompts(self._watch, self._unwatch, self._pause_relay, self._resume_relay)
        questions = Questions(
            prompts.show,
            prompts.withdraw,
            gateway.answer,
            who=self.cell.owner,
        )
        gateway.on_question, gateway.on_withdrawn = questions.take, questions.withdraw

    def _let_go_of_streams(self, own: tuple[bool, bool, bool]) -> None:
        """Close our copies of pipes, so that their other ends see the command's end and not ours."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1):
            if not own[fd] and not (self._relay and fd in (self._relay.screen, self._relay.keyboard)):
                os.dup2(null, fd)
        os.close(null)

    # ------------------------------------------------------------ signals and messages

    def _on_signals(self) -> None:
        try:
            numbers = os.read(self._wake, 512)
        except BlockingIOError:
            return
        for number in numbers:
            if number == SIGWINCH:
                if self._relay:
                    self._relay.resize()
            elif number == SIGTSTP:
                self._signal_command(SIGSTOP)
                self._suspend()
                self._signal_command(SIGCONT)
            elif number == SIGCONT:
                if self._relay:
                    self._resume_terminal()
            elif number in FORWARDED:
                self._ask_to_end(number)
            elif number in PASSED_ON:
                self._signal_command(number)

    def _ask_to_end(self, number: int) -> None:
        self.asked_to_end = number
        # As ``docker stop`` does: an image says by which signal it ends in order.
        self._signal_command(self.prepared.plan.stop_signal if number == SIGTERM else number)
        now_ = time.monotonic()
        if number in (SIGTERM, SIGHUP):
            self._kill_at = self._kill_at or now_ + GRACE
        elif number == SIGINT:
            self._interrupts = [at for at in self._interrupts if now_ - at < IMPATIENT[1]] + [now_]
            if len(self._interrupts) >= IMPATIENT[0]:
                self._kill_at = now_

    def _signal_command(self, number: int) -> None:
        self.cell.command.signal(number)

    def _on_command(self) -> None:
        news = self.cell.command.read()
        if isinstance(news, Exited):
            self.wait_status = news.status
        elif isinstance(news, Stopped):
            self._suspend()
            self.cell.command.resume()
        elif isinstance(news, Failed):
            self.failure = HostError(news.step, news.cause, target=news.target).headline()
        elif isinstance(news, Ended) and self.wait_status is None:
            # What keeps it was killed (out of memory, or by a process outside), and everything else with it.
            self.wait_status = SIGKILL
        elif isinstance(news, Broken) and self.wait_status is None:
            self.failure = news.why
        elif isinstance(news, Refused):
            self._report_refusal(news)

    def _report_refusal(self, news: Refused) -> None:
        from ..events import access_as_data
        from ..policy.decide import Decider
        from ..policy.model import PathAccess, SocketAccess
        from ..policy.reasons import REASONS, SOCKET_NOT_ALLOWED

        shown = news.path.removeprefix(self.prepared.facts.workspace.rstrip("/") + "/")
        socket = news.reason == SOCKET_NOT_ALLOWED
        access = (
            SocketAccess(news.path) if socket else PathAccess(shown, "read" if news.operation == "read" else "write")
        )
        verdict = Decider(self.policy).decide(access)
        rule, hint = getattr(verdict, "rule", None), getattr(verdict, "hint", "") or None
        where = None if rule is None else str(rule.origin)
        reason = REASONS.get(news.reason, news.reason)
        self.log.add(
            AccessDenied(access_as_data(access), reason, where, news.hint or (hint if socket else None), source="mount")
        )

    def _on_hook(self) -> None:
        self.hooks.readable(self)
        if self.hooks.fd < 0:
            for fd in [fd for fd, handler in self._handlers.items() if handler == self._on_hook]:
                self._unwatch(fd)

    def end(self, number: int) -> None:
        """Ask the command to end, as if the signal ``number`` had come from outside."""
        self._ask_to_end(number)

    # ------------------------------------------------------------ terminal

    def _on_terminal(self) -> None:
        assert self._relay is not None
        self._relay.flush()
        if not self._relay.to_screen():
            self._unwatch(self._relay.master)
        self._watch_terminal()

    def _on_keyboard(self) -> None:
        assert self._relay is not None
        if not self._relay.from_keyboard():
            self._unwatch(self._relay.keyboard)
            self._ask_to_end(SIGHUP)
        else:
            self._watch_terminal()

    def _watch_terminal(self) -> None:
        """Wait for the pty to take what is pending; read no more keys than it can hold."""
        relay = self._relay
        assert relay is not None
        if self._prompts is not None and self._prompts.busy:
            return  # the terminal is the question's
        if relay.master in self._handlers:
            self._epoll.modify(relay.master, select.EPOLLIN | (select.EPOLLOUT if relay.pending else 0))
        if relay.reads_keyboard and relay.keyboard not in self._handlers:
            self._watch(relay.keyboard, self._on_keyboard)
        elif not relay.reads_keyboard:
            self._unwatch(relay.keyboard)

    def _suspend(self) -> None:
        """Stop like any job; what follows runs when the shell continues us."""
        if self._prompts is not None:
            self._prompts.clear("this job was stopped: no answer can come")
        if self._relay:
            self._unwatch(self._relay.keyboard)
            self._relay.restore()
        os.kill(os.getpid(), SIGSTOP)
        if self._relay:
            self._resume_terminal()

    def _resume_terminal(self) -> None:
        assert self._relay is not None
        self._relay.enter_raw_mode()
        self._relay.resize()
        self._watch_terminal()

    # ------------------------------------------------------------ questions

    def _pause_relay(self) -> None:
        """Copy neither output nor keys: the terminal is a question's.  What was printed before is above it."""
        if self._relay is not None:
            self._relay.flush()
            for _ in range(PRINTED_BEFORE):
                self._relay.to_screen()
            self._unwatch(self._relay.keyboard)
            self._unwatch(self._relay.master)

    def _resume_relay(self) -> None:
        if self._relay is not None:
            if self._relay.master not in self._handlers:
                self._watch(self._relay.master, self._on_terminal)
            self._watch_terminal()

    # ------------------------------------------------------------ end

    def _report(self) -> None:
        for line in self._prompts.finish() if self._prompts is not None else ():
            say(line)
        if self.failure:
            from ..host.inherited import name_limit

            for line in name_limit([escape(self.failure)]):
                say(line)
        if self.timed_out:
            say(f"the time limit of {self.policy.limits.time} s ended the command")
        for path in (path for guard in self.guards for path in guard.left):
            say(f"{escape(path)} is a protected name that the command made and that could not be taken away")
        self._report_changes()
        if not self.options.quiet:
            self._report_refusals()
            self._report_failures()
        pairs = [pair for guard in self.guards for pair in guard.moved]
        if pairs:  # said also to who wants to hear nothing: what a program saw exist is gone
            from ..record.summary import moved

            for line in moved(pairs, os.path.join(self.state, "quarantine")):
                say(line)
        if not self.options.quiet:
            kept = [path for guard in self.guards for path in guard.kept]
            if kept:
                more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
                say(f"{escape(kept[0])}{more}: a new repository brought it, and programs outside may obey it")

    def _exit_status(self) -> tuple[int, int]:
        if self.failure:
            return 125, 0
        if self.timed_out:
            return TIMED_OUT, SIGKILL
        assert self.wait_status is not None
        code = os.waitstatus_to_exitcode(self.wait_status)
        if code < 0:
            return 128 - code, -code
        # Asked to end and gone without a complaint: the caller must still see that it did not finish.
        if code == 0 and self.asked_to_end in (SIGTERM, SIGHUP):
            return 128 + self.asked_to_end, self.asked_to_end
        return code, 0

    def _where_the_record_is(self) -> str:
        if self.log.record is not None:
            return "membrane trace show @last --denied"
        return self.options.events if self.options.events != "stderr" else ""

    def _report_changes(self) -> None:
        changes = self.prepared.changes
        if changes is None:
            return
        quiet = self.options.quiet
        if changes.is_empty:  # most runs of a look around: what judges changes is not loaded
            if not quiet:
                say("nothing was changed")
            return
        from ..changes import review, terminal

        try:
            outcome = review.finish(
                changes,
                "never" if quiet and self.policy.apply == "ask" else self.policy.apply,
                say=(lambda _line: None) if quiet else say,
                ask=terminal.asker(),
                look=terminal.look,
                paths=self.policy.paths,
                colour=os.isatty(2) and not os.environ.get("NO_COLOR"),
            )
        except (MembraneError, OSError) as error:
            say(f"the changes are kept, and could not be looked at: {escape(str(error))}")
            return
        if outcome == "kept" and quiet and self.policy.apply in ("safe", "all"):
            say(f"the changes were not put in place; membrane apply {changes.name} says why")
        if outcome == "nothing" and not quiet:
            say("nothing was changed")
        if outcome == "discarded":
            self.prepared.changes = None
            changes.close()

    def _report_refusals(self) -> None:
        if not self.log.denied:
            return
        from ..record.summary import refusals

        colour = os.isatty(2) and not os.environ.get("NO_COLOR")
        for line in refusals(
            self.log.denied.values(),
            record=self._where_the_record_is(),
            home=os.environ.get("HOME", ""),
            colour=colour,
        ):
            show(line)

    def _report_failures(self) -> None:
        if not self.log.failed:
            return
        from ..record.summary import failures

        record = "membrane trace show @last --kind conn" if self.log.record is not None else ""
        for line in failures(self.log.failed, more=self.log.more_failed, record=record):
            show(line)


def run(prepared: PreparedRun, hooks: Hooks | None = None) -> int:
    """Run the command of ``prepared`` and return its exit status (see ``Boundary.run``)."""
    return Session(prepared, hooks).run()
