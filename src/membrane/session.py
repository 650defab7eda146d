"""The lifetime of one run: acquire in order, release in reverse, tell what happened.

Theory of operation
-------------------
``run`` makes the plan, forks the launcher, scans the workspace while the launcher builds the namespaces, reads back
what the command process has set on itself, releases it, and then sits in one epoll loop over the sandbox's
messages, signals, the terminal, the network sockets and the workspace watcher.  The network process is started
when the first of its sockets becomes readable: a run without network pays nothing for it.

Rules
-----
1. No partial start: everything that can fail has been done before the command is released.
2. If the network process or the launcher dies, the command is killed: fail closed, non-zero, said on stderr.
3. The exit status is the command's; 128+n for a signal; 124 when the time limit ended it; 125 when we failed.
4. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the command's process group, then escalated.
"""

from __future__ import annotations

import _socket
import gc
import os
import select
import sys
import time

from . import homes, runs
from .dataplane import Network
from .errors import HostError, MembraneError, PolicyError
from .events import Binding, EventsLost, SessionEnded, SessionStarted, escape
from .host.channel import (
    HELD_DURING_FORK,
    MESSAGE,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGQUIT,
    SIGSTOP,
    SIGTERM,
    SIGTSTP,
    SIGWINCH,
    Start,
    receive,
    send,
)
from .host.facts import gather
from .host.launcher import Launch, ensure_streams
from .journal import Journal, now, say
from .plan import mounts
from .plan.build import build
from .plan.model import ReadOnly
from .trace import record
from .value import Value
from .workspace.guard import MOST_MOVED, Guard
from .workspace.scan import scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import Any

    from .host.terminal import Relay
    from .plan.model import HostFacts, MountOp, SandboxPlan
    from .policy.model import PathRule, Policy
    from .trace.live import LiveLog
    from .workspace.scan import ScanResult
else:
    import _signal

VERSION = "0.1.0"
FORWARDED = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
GRACE = 5.0  # seconds between a forwarded SIGTERM or SIGHUP and SIGKILL
IMPATIENT = (3, 2.0)  # so many SIGINTs within so many seconds kill
RECORD_EVERY = 0.5  # seconds between two updates of what ``membrane ps`` shows
WATCH_DELAY = 0.02  # seconds after the start when the whole workspace begins to be watched
TIMED_OUT = 124  # exit status, as timeout(1)


class RunOptions(Value):
    """How a run is reported."""

    events: str = ""  # path of a JSON lines file; "-": stderr
    session_id_file: str = ""
    quiet: bool = False
    trace_log: str = ""
    no_trace: bool = False
    launcher: str = "native"
    debug: bool = False


class RunRequest(Value):
    command: tuple[str, ...]
    policy: Policy
    options: RunOptions = RunOptions()


def facts_for(policy: Policy) -> HostFacts:
    """Host facts for a run of ``policy`` in the current directory."""
    return gather(
        os.environ,
        named=[*(rule.path for rule in policy.mounts), *(rule.path for rule in policy.unix_sockets)],
        want_git_root=any(rule.git_root for rule in policy.mounts),
    )


def make_plan(policy: Policy, command: tuple[str, ...] = ()) -> SandboxPlan:
    """The complete plan, the workspace scanned, for ``membrane plan``.

    Raises:
        PolicyError: a rule can not be bound.
        HostError: the workspace can not be read.
    """
    del command  # the plan does not depend on it: no decision by command text
    facts = facts_for(policy)
    plan = build(policy, facts)
    found = scan(facts.workspace, policy.paths)
    return plan.replace(mounts=(*plan.mounts, *mounts.workspace(facts.workspace, found.hits, found.pins)))


class Session:
    """One run; ``run`` may be called once."""

    def __init__(self, request: RunRequest) -> None:
        ensure_streams()  # before anything is opened: it would take the number of a closed stream
        self.request = request
        self.options = request.options
        self.policy = request.policy
        self.id = os.urandom(8).hex()
        self.started = time.monotonic()
        self.told: int = 0  # the last signal that asked us to end
        self.wait_status: int | None = None
        self.failure: str = ""
        self.timed_out = False
        self._interrupts: list[float] = []
        self._kill_at = 0.0
        self._recorded_at = 0.0
        self._handlers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._network: Network | None = None
        self._relay: Relay | None = None
        self._live_log: LiveLog | None = None

    def run(self) -> int:
        """Run the command; return the exit status.

        Raises:
            PolicyError: a rule can not be bound.
            HostError: the machine refused a step; nothing is left running.
        """
        if self.options.launcher != "native":
            raise PolicyError(
                "choose a launcher",
                f"--launcher {self.options.launcher} is not available in this version",
                fix=("leave --launcher away: the native launcher needs no other program",),
            )
        recorded = self.policy.trace.mode != "off"
        if self.options.trace_log and not recorded:
            raise PolicyError(
                "write the trace log",
                "it is made from the record, which --no-trace or trace.mode off switched off",
                fix=("leave --trace-log or --no-trace away",),
            )
        facts = facts_for(self.policy)
        self.plan = plan = build(self.policy, facts)
        self._secrets: list[list[Any]] = []
        if self.policy.secrets:
            from . import secrets

            self._secrets = secrets.gather(self.policy, dict(facts.environ))
            inside = {name: placeholder.decode("ascii") for name, _value, placeholder, *_rest in self._secrets}
            environment = tuple({**dict(plan.environment), **inside}.items())
            self.plan = plan = plan.replace(environment=environment)
        self.home = mounts.home_store(self.policy, facts)
        self.agent = os.path.join(facts.state, "agents", *self.policy.profiles[:1])
        homes.prepare(plan.stores, self.home, self.agent, self.policy.state_files)
        self.journal = Journal(self.id, self.options.events, self._open_record(facts) if recorded else None)
        if self.options.trace_log == "-":
            from .trace.live import LiveLog

            self._live_log = LiveLog(facts.state, self.id)
        self.record = runs.SessionRecord(
            self.id, os.getpid(), time.time(), facts.workspace, self.request.command, "network", 0, 0, 0
        )
        self.entry = entry = runs.Run(facts.state, self.record)
        try:
            self._write_session_id()
            own = _terminals()
            wake = self._install_signals()
            umask = os.umask(0o077)
            os.umask(umask)
            mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, HELD_DURING_FORK)
            try:
                self.launch = Launch(Start(plan, self.request.command, own, self.id, umask))
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
            try:
                try:
                    self._start(facts)
                except BaseException:
                    if self._network is not None:
                        self._network.stop()
                    raise
                try:
                    self._loop(wake, own)
                except Exception as error:
                    # The command ran: it is killed like after any failure, and what it left is looked at.
                    known = isinstance(error, (MembraneError, OSError))
                    self.failure = str(error) if known else f"internal error: {type(error).__name__}: {error}"
                    if self.options.debug:
                        raise
            finally:
                self.launch.kill()
                self.launch.reap()
                if self._relay is not None:
                    while self._relay.to_screen():
                        pass
                    self._relay.restore()
        except BaseException:
            self.journal.give_up()
            if self._live_log is not None:
                self._live_log.wait()
            raise
        finally:
            entry.close()
        return self._end(facts)

    # ------------------------------------------------------------ start

    def _open_record(self, facts: HostFacts) -> record.Writer:
        limit = record.share(self.policy.trace.max_size, "session")
        return record.Writer(record.make(facts.state, self.id), "session", limit=limit)

    def _write_session_id(self) -> None:
        if not self.options.session_id_file:
            return
        path = self.options.session_id_file
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            os.write(fd, self.id.encode())
            os.close(fd)
        except OSError as error:
            raise HostError("write the session id file", error.strerror or "", target=path) from None

    def _install_signals(self) -> int:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*FORWARDED, SIGWINCH, SIGTSTP, SIGCONT):
            if number in (SIGHUP, SIGINT, SIGQUIT) and _signal.getsignal(number) == _signal.SIG_IGN:
                continue  # nohup(1), or a background job of a shell without job control
            _signal.signal(number, lambda _number, _frame: None)
        _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        return read

    def _start(self, facts: HostFacts) -> None:
        launch = self.launch
        launch.grant()
        operations: list[MountOp] = []
        if self.plan.trust:
            operations += self._trust(facts)
        self.guards: list[Guard] = []
        roots = self._writable_roots(facts)
        _refuse_own_files([root for root, _rules in roots])
        for root, rules in roots:
            found = self._scan(facts, root, rules)
            operations += mounts.workspace(root, found.hits, found.pins)
            self.guards.append(
                Guard(
                    root,
                    found,
                    shown="" if root == facts.workspace else root + "/",
                    store=os.path.join(facts.state, "quarantine", self.id),
                    mask=launch.mask,
                    report=self.journal.add,
                )
            )
            own = mounts.frozen(root, own_files())
            operations += own
            for op in own:
                if isinstance(op, ReadOnly):
                    self._warn(f"membrane itself is installed in {op.target}: the command can not change that")
        launch.send_workspace_operations(operations)
        for guard in self.guards:
            guard.prime()
        if not self.plan.trust:
            self._take_network(facts, b"")
        launch.wait_ready()
        for guard in self.guards:
            guard.on_change()  # what moved since the scan, by another session here
        launch.wait_masks()
        assurance = read_back(launch.command_pid, self.plan)
        self.journal.add(
            SessionStarted(
                VERSION,
                self.request.command,
                facts.workspace,
                self.policy.digest,
                self.policy.levels,
                (*assurance, Binding("capture", self._capture, "bound", False), *_rule_bindings(self.plan)),
                "network",
                f"uid {self.plan.uid}" + (f" as kuid {self.plan.base_kuid}" if self.plan.base_kuid else ""),
            )
        )

    @property
    def network(self) -> Network:
        """The network process; there is one once the launcher has handed its sockets over."""
        assert self._network is not None
        return self._network

    def _take_network(self, facts: HostFacts, authorities: bytes) -> None:
        """Take the sockets of the sandbox's network; the process that serves them is started when it is needed."""
        self._capture, sockets = self.launch.network_sockets()
        from .policy.codec import dump

        config = {
            "policy": dump(self.policy),
            "session": self.id,
            "limits": {"upload": self.policy.limits.upload},
            "environ": dict(facts.environ) if self.policy.upstream_proxy == "env" else {},
            "verbose": self.journal.wants_all,
            "totals": True,  # for ps
            "inspect": self.plan.inspect,
            "authorities": authorities,
            "secrets": self._secrets,
        }
        self._secrets = []
        self._network = Network(sockets, config, self.journal)

    def _trust(self, facts: HostFacts) -> list[MountOp]:
        """Certificates for the view; one that the network process makes now is among them."""
        from . import trust

        authorities = trust.read_authorities(self.policy.extra_ca)
        self._take_network(facts, authorities)
        certificate = b""
        if self.plan.inspect:
            self.network.start()
            certificate = self.network.wait_for_certificate()
        return trust.operations(self.plan, authorities, certificate)

    def _writable_roots(self, facts: HostFacts) -> list[tuple[str, tuple[PathRule, ...]]]:
        """The trees that the command can write on the host; path rules speak of the workspace only."""
        roots: list[tuple[str, tuple[PathRule, ...]]] = [(facts.workspace, self.policy.paths)]
        for rule in self.policy.mounts:
            source, target = mounts.places(rule, facts)
            # Elsewhere than at its own path the tree's names mean nothing to the tools of the host.
            if rule.mode == "rw" and source == target and os.path.isdir(source):
                roots.append((source, ()))
        return roots

    def _scan(self, facts: HostFacts, root: str, rules: tuple[PathRule, ...]) -> ScanResult:
        caches = os.path.join(facts.state, "cache")
        runs.make_private(caches)
        cache_file = os.path.join(caches, "scan-" + mounts.workspace_key(root))
        found = scan(root, rules, cache_file, progress=_say_progress)
        for warning in found.warnings:
            self._warn(warning)
        return found

    def _warn(self, text: str) -> None:
        if not self.options.quiet:
            say(f"warning: {escape(text)}")

    # ------------------------------------------------------------ loop

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None):
            self._epoll.unregister(fd)

    def _loop(self, wake: int, own: tuple[bool, bool, bool]) -> None:
        launch = self.launch
        self._wake = wake
        self._watch(wake, self._on_signals)
        self._watch(launch.init.fileno(), self._on_init)
        self._watch(launch.launcher.fileno(), self._on_launcher)
        for _role, fd in self.network.sockets:
            self._watch(fd, self._on_first_packet)
        if self.network.pid:
            self._watch_network()
        limit = self.policy.limits.time
        time_out_at = time.monotonic() + limit if limit else 0.0
        if launch.terminal >= 0:
            from .host.terminal import Relay

            self._relay = Relay(launch.terminal, own)
            self._watch(launch.terminal, self._on_terminal)
            self._watch_terminal()
        for guard in self.guards:
            self._watch(guard.fileno(), guard.on_change)
        watch_at = time.monotonic() + WATCH_DELAY  # a short command is not slowed by a watch that it does not need
        launch.release()
        gc.enable()  # the script switched it off for the start
        self._let_go_of_streams(own)
        while self.wait_status is None and not self.failure:
            deadline = min((at for at in (self._kill_at, time_out_at) if at), default=0.0)
            wait_until = min((at for at in (deadline, watch_at) if at), default=0.0)
            timeout = max(0.0, wait_until - time.monotonic()) if wait_until else -1.0
            for guard in self.guards:
                due = guard.timeout()
                if due is not None:
                    timeout = due if timeout < 0 else min(timeout, due)
            for fd, _event in self._epoll.poll(timeout):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            for guard in self.guards:
                if guard.timeout() == 0:
                    guard.on_change()
                if len(guard.moved) > MOST_MOVED:
                    self.failure = f"the command made more than {MOST_MOVED} protected names; it was killed"
            if watch_at and time.monotonic() >= watch_at and all(guard.step() for guard in self.guards):
                watch_at = 0.0
                for guard in self.guards:
                    for warning in guard.warnings():
                        self._warn(warning)
            if deadline and time.monotonic() >= deadline:
                if deadline == time_out_at:
                    self.timed_out = True
                launch.kill()
                self.wait_status = SIGKILL

    def _let_go_of_streams(self, own: tuple[bool, bool, bool]) -> None:
        """Close our copies of pipes, so that their other ends see the command's end and not ours."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1):
            if not own[fd] and not (self._relay and fd in (self._relay.screen, self._relay.keyboard)):
                os.dup2(null, fd)
        os.close(null)

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
                self._told_to_end(number)

    def _told_to_end(self, number: int) -> None:
        self.told = number
        self._signal_command(number)
        now_ = time.monotonic()
        if number in (SIGTERM, SIGHUP):
            self._kill_at = self._kill_at or now_ + GRACE
        elif number == SIGINT:
            self._interrupts = [at for at in self._interrupts if now_ - at < IMPATIENT[1]] + [now_]
            if len(self._interrupts) >= IMPATIENT[0]:
                self._kill_at = now_

    def _signal_command(self, number: int) -> None:
        try:
            send(self.launch.init, b"S", str(int(number)).encode())
        except OSError:
            pass  # pid 1 is gone: its end is on the way

    def _on_init(self) -> None:
        kind, payload, _fds = self._message(self.launch.init)
        if kind == b"X":
            self.wait_status = int(payload)
        elif kind == b"Z":
            self._suspend()
            try:
                send(self.launch.init, b"C")
            except OSError:
                pass
        elif kind == b"E":
            self.failure = payload.decode("utf-8", "replace").replace("\0", ": ")
        elif kind == b"":
            # Pid 1 was killed (out of memory, or by somebody outside): with it the whole namespace.
            self.wait_status = SIGKILL

    def _on_launcher(self) -> None:
        kind, payload, _fds = self._message(self.launch.launcher)
        if kind == b"":
            self._unwatch(self.launch.launcher.fileno())
            if self.wait_status is None:
                # It ends after pid 1 does; if pid 1 told its status first, that message is already waiting.
                ready = select.select([self.launch.init], [], [], 1)[0]
                if ready:
                    self._on_init()
                if self.wait_status is None:
                    self.failure = "the launcher died; the command was killed"
        elif kind == b"k":
            self.launch.masks_pending -= 1
        elif kind == b"E":
            self.failure = "cannot mask a name that appeared: " + payload.decode("utf-8", "replace").split("\0")[2]

    @staticmethod
    def _message(channel: _socket.socket) -> tuple[bytes, bytes, list[int]]:
        try:
            return receive(channel)
        except ConnectionError:
            return b"", b"", []

    def _on_first_packet(self) -> None:
        for _role, fd in self.network.sockets:
            self._unwatch(fd)
        try:
            self.network.start()
        except MembraneError as error:
            self.failure = str(error)
            return
        self._watch_network()

    def _watch_network(self) -> None:
        self._watch(self.network.control, self._on_network)
        self._watch(self.network.pidfd, self._on_network_end)

    def _on_network(self) -> None:
        if not self.network.read():
            self._on_network_end()
        elif self.journal.refused != self.record.refused or self.journal.bytes_down != self.record.bytes_down:
            if time.monotonic() - self._recorded_at < RECORD_EVERY:
                return
            self._recorded_at = time.monotonic()
            self.record = self.record.replace(
                refused=self.journal.refused, bytes_up=self.journal.bytes_up, bytes_down=self.journal.bytes_down
            )
            self.entry.update(self.record)

    def _on_network_end(self) -> None:
        self._unwatch(self.network.control)
        self._unwatch(self.network.pidfd)
        while self.network.read():
            if not select.select([self.network.control], [], [], 0.1)[0]:
                break
        cause = f": {self.network.error}" if self.network.error else ""
        self.failure = f"the network process died; the command was killed{cause}"

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
            self._told_to_end(SIGHUP)
        else:
            self._watch_terminal()

    def _watch_terminal(self) -> None:
        """Wait for the pty to take what is pending; read no more keys than it can hold."""
        relay = self._relay
        assert relay is not None
        if relay.master in self._handlers:
            self._epoll.modify(relay.master, select.EPOLLIN | (select.EPOLLOUT if relay.pending else 0))
        if relay.reads_keyboard and relay.keyboard not in self._handlers:
            self._watch(relay.keyboard, self._on_keyboard)
        elif not relay.reads_keyboard:
            self._unwatch(relay.keyboard)

    def _suspend(self) -> None:
        """Stop like any job; what follows runs when the shell continues us."""
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

    # ------------------------------------------------------------ end

    def _end(self, facts: HostFacts) -> int:
        self.network.stop()
        for guard in self.guards:
            try:
                guard.finish()
            except (MembraneError, OSError) as error:
                self.failure = self.failure or f"what the command left could not be looked at: {error}"
        homes.keep(self.home, self.agent, self.policy.state_files)
        status, number = self._exit_status()
        if self.journal.lost:
            self.journal.add(EventsLost("network", self.journal.lost, now(), now()))
        writer = self.journal.record
        self.journal.add(
            SessionEnded(
                status,
                number,
                round((time.monotonic() - self.started) * 1000, 3),
                dict(self.journal.counts),
                self.journal.refused,
                self.journal.lost + (writer.lost if writer else 0),
                tuple(self._left_behind()),
            )
        )
        self.journal.close()
        if writer is not None:
            self._after_record(facts.state, writer)
        if self.failure:
            say(escape(self.failure))
        if self.timed_out:
            say(f"the time limit of {self.policy.limits.time} s ended the command")
        for path in self._left_behind():
            say(f"{escape(path)} is a protected name that the command made and that could not be moved away")
        if not self.options.quiet:
            self._tell_refusals()
            moved = sum(len(guard.moved) for guard in self.guards)
            if moved:
                where = os.path.dirname(next(guard.moved[0][1] for guard in self.guards if guard.moved))
                what = "a protected name was" if moved == 1 else f"{moved} protected names were"
                say(f"{what} moved out of the workspace, to {escape(os.path.dirname(where))}")
        return status

    def _after_record(self, state: str, writer: record.Writer) -> None:
        """The trace log, made from the record, and room for the next one."""
        if writer.lost:
            self._warn(f"the record is incomplete: {writer.lost} events could not be written to {writer.directory}")
        if self._live_log is not None:
            self._live_log.wait()
        elif self.options.trace_log:
            from .trace import export

            try:
                export.write_log(writer.directory, self.options.trace_log)
            except OSError as error:
                self._warn(f"cannot write {self.options.trace_log}: {error.strerror}; the record is kept")
        # A short run looks at the number of sessions only; now and then one looks at the sizes too.
        everything = writer.stored > record.WORTH_COMPRESSING or self.id.startswith("0")
        record.prune(state, keep=self.policy.trace.keep, max_size=self.policy.trace.max_size, everything=everything)

    def _left_behind(self) -> list[str]:
        """Protected names that the command made and that are still there."""
        return [path for guard in self.guards for path in guard.left]

    def _exit_status(self) -> tuple[int, int]:
        if self.failure:
            return 125, 0
        if self.timed_out:
            return TIMED_OUT, SIGKILL
        assert self.wait_status is not None
        code = os.waitstatus_to_exitcode(self.wait_status)
        if code < 0:
            return 128 - code, -code
        # Told to end and gone without a complaint: the caller must still see that it did not finish.
        if code == 0 and self.told in (SIGTERM, SIGHUP):
            return 128 + self.told, self.told
        return code, 0

    def _where_the_record_is(self) -> str:
        if self.journal.record is not None:
            return "membrane trace show @last --denied"
        return self.options.events if self.options.events not in ("", "-") else ""

    def _tell_refusals(self) -> None:
        if not self.journal.denied:
            return
        from .summary import refusals

        colour = os.isatty(2) and not os.environ.get("NO_COLOR")
        for line in refusals(
            self.journal.denied.values(),
            record=self._where_the_record_is(),
            home=os.environ.get("HOME", ""),
            colour=colour,
        ):
            os.write(2, (line + "\n").encode("utf-8", "backslashreplace"))


def own_files() -> tuple[str, ...]:
    """Trees that the next run of membrane executes outside: this package, its environment, the interpreter."""
    package = os.path.dirname(os.path.abspath(__file__))
    return tuple(sorted({os.path.realpath(path) for path in (package, sys.prefix, sys.base_prefix)}))


def _refuse_own_files(roots: list[str]) -> None:
    for path in own_files():
        if any(mounts.inside(root, path) and path not in ("/usr", "/usr/local") for root in roots):
            raise PolicyError(
                "use the workspace",
                f"membrane itself is installed in {path}, which holds it: the command could change what confines it",
                fix=("install membrane elsewhere: pipx install membrane", "run membrane in another directory"),
            )


def _say_progress(count: int) -> None:
    say(f"looking at the workspace for the first time: {count} names so far")


def _terminals() -> tuple[bool, bool, bool]:
    return os.isatty(0), os.isatty(1), os.isatty(2)


def _rule_bindings(plan: SandboxPlan) -> tuple[Binding, ...]:
    return tuple(
        Binding(binding.rule, ", ".join(binding.mechanisms), binding.status, False) for binding in plan.bindings
    )


def read_back(pid: int, plan: SandboxPlan) -> tuple[Binding, ...]:
    """Read from /proc what the command process has set on itself; it waits to be released.

    Raises:
        HostError: something that was set is not in force.
    """
    fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, MESSAGE).decode("ascii", "replace")
    finally:
        os.close(fd)
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    wanted = [("NoNewPrivs", "1"), ("Seccomp", "2")]
    wanted += [(name, "0" * 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    out = []
    for name, value in wanted:
        if status.get(name, "").strip() != value:
            raise HostError(
                "confirm the confinement", f"{name} is {status.get(name)!r}, not {value}", target=f"pid {pid}"
            )
        out.append(Binding(name, f"/proc/PID/status {name} = {value}", "bound", True))
    uids = {int(word) for word in status["Uid"].split()}
    if uids != {plan.base_kuid + plan.uid}:
        raise HostError("confirm the confinement", f"uids are {sorted(uids)}", target=f"pid {pid}")
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            raise HostError("confirm the confinement", f"the {name} namespace is the host's", target=f"pid {pid}")
        out.append(Binding(f"{name} namespace", f"/proc/PID/ns/{name} differs from the host's", "bound", True))
    return tuple(out)


def run(request: RunRequest) -> int:
    """Run one command behind the boundary and return its exit status (see ``Session.run``)."""
    return Session(request).run()


list_sessions = runs.list_sessions
collect_garbage = runs.collect_garbage
