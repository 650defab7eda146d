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

from . import runs
from .errors import HostError, InternalError, MembraneError, PolicyError
from .events import AccessDenied, Binding, EventsLost, SessionEnded, SessionStarted, encode, escape
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
from .plan import mounts
from .plan.build import build
from .value import Value
from .workspace.guard import Guard
from .workspace.scan import scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import Any

    from .events import Event
    from .host.terminal import Relay
    from .plan.model import HostFacts, SandboxPlan
    from .policy.model import Policy
    from .workspace.scan import ScanResult
else:
    import _signal

VERSION = "0.1.0"
FORWARDED = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
GRACE = 5.0  # seconds between a forwarded SIGTERM or SIGHUP and SIGKILL
IMPATIENT = (3, 2.0)  # so many SIGINTs within so many seconds kill
MOST_KEPT = 256  # distinct refusals kept for the summary
WATCH_DELAY = 0.02  # seconds after the start when the whole workspace begins to be watched
NETWORK_END = 2.0  # seconds for the network process to send its last events
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
        named=[rule.path for rule in (*policy.mounts, *policy.unix_sockets)],
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


def now() -> str:
    """The time as ISO 8601 with microseconds, UTC."""
    nanoseconds = time.time_ns()
    parts = time.gmtime(nanoseconds // 1_000_000_000)
    return (
        f"{parts.tm_year:04}-{parts.tm_mon:02}-{parts.tm_mday:02}T{parts.tm_hour:02}:{parts.tm_min:02}:"
        f"{parts.tm_sec:02}.{nanoseconds // 1000 % 1_000_000:06}Z"
    )


class Journal:
    """Numbers the events of one session, writes them where asked, keeps the refusals for the summary."""

    def __init__(self, session: str, destination: str) -> None:
        self.session = session
        self.sequence = 0
        self.counts: dict[str, int] = {}
        self.denied: dict[tuple[str, str], AccessDenied] = {}
        self.refused = 0
        self.lost = 0
        self._fd = -1
        if destination == "-":
            self._fd = 2
        elif destination:
            try:
                self._fd = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise HostError("open the events file", error.strerror or "", target=destination) from None

    def add(self, event: Event) -> None:
        """An event of the session itself."""
        if isinstance(event, AccessDenied):
            self._keep(event)
        self._count(type(event).__name__)
        if self._fd >= 0:
            self._write(encode(event, time=now(), session=self.session, seq=self.sequence))

    def add_line(self, line: bytes) -> dict[str, Any] | None:
        """One JSON line of the network process; returns it when it is not an event."""
        # Most lines of a quiet run are of no interest: they are counted without being parsed.
        kept = (b'"event": "AccessDenied"', b'"event": "EventsLost"')
        if self._fd < 0 and b'"event"' in line[:200] and not any(kind in line for kind in kept):
            self.sequence += 1
            return None
        import json

        record = json.loads(line)
        kind = record.get("event")
        if kind is None:
            return record if isinstance(record, dict) else None
        if kind == "AccessDenied":
            self._keep(AccessDenied(record["access"], record["reason"], record["rule"], record["hint"]))
            self.refused += max(0, int(record.get("count", 1)) - 1)
        elif kind == "EventsLost":
            self.lost += int(record["count"])
        self._count(kind)
        if self._fd >= 0:
            record.update(session=self.session, seq=self.sequence)
            self._write(record)
        return None

    def _count(self, kind: str) -> None:
        self.sequence += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _keep(self, event: AccessDenied) -> None:
        self.refused += 1
        # The A and the AAAA query of one look-up are one refusal to a person.
        key = (repr(sorted(item for item in event.access.items() if item[0] != "type")), event.reason)
        if len(self.denied) < MOST_KEPT:
            self.denied.setdefault(key, event)

    def _write(self, record: dict[str, Any]) -> None:
        import json

        data = json.dumps(record, ensure_ascii=True).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.lost += 1
            if self._fd > 2:
                os.close(self._fd)
            self._fd = -1
            say(f"cannot write an event: {error.strerror}; further events are not written")

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)
        self._fd = -1


def say(text: str) -> None:
    """One line on stderr in our name; lines of several are separate calls."""
    try:
        os.write(2, f"membrane: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


class Network:
    """The network process of one session, started when it is first needed."""

    def __init__(self, sockets: list[tuple[str, int]], config: dict[str, Any], journal: Journal) -> None:
        self.sockets = sockets
        self.pid = 0
        self.pidfd = -1
        self.control = -1
        self.stats: dict[str, Any] = {}
        self.error = ""
        self._config = config
        self._journal = journal
        self._socket: _socket.socket | None = None
        self._buffer = b""

    def start(self) -> None:
        """Spawn the process with the sockets; our copies are closed.

        Raises:
            HostError: it can not be started.
        """
        import marshal

        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        highest = max(theirs.fileno(), *(fd for _role, fd in self.sockets)) + 1
        moves: list[Any] = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), highest)]
        numbered = []
        for offset, (role, fd) in enumerate(self.sockets, 1):
            moves.append((os.POSIX_SPAWN_DUP2, fd, highest + offset))
            numbered.append([role, highest + offset])
        moves += [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
        # The package is found where this one was found, also when it is not installed; -I keeps everything of the
        # caller's environment and directory out of the process.
        source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        program = (
            "import sys; sys.path.append(sys.argv.pop(1)); "
            "from membrane.network.server import main; sys.exit(main(sys.argv))"
        )
        argv = [sys.executable, "-I", "-c", program, source, str(highest)]
        try:
            self.pid = os.posix_spawn(sys.executable, argv, {"LC_ALL": "C.UTF-8"}, file_actions=moves, setsid=True)
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise HostError("start the network process", error.strerror or "", target=sys.executable) from None
        finally:
            theirs.close()
            for _role, fd in self.sockets:
                os.close(fd)
            self.sockets = []
        data = marshal.dumps({**self._config, "sockets": numbered})
        ours.sendall(len(data).to_bytes(4, "big") + data)
        ours.setblocking(False)
        self._socket, self.control = ours, ours.fileno()

    def read(self) -> bool:
        """Take events; False at the end of the stream."""
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > 1 << 20:
            raise InternalError("read the network process", "a line of over 1 MiB")
        for line in lines:
            record = self._journal.add_line(line)
            if record and isinstance(record.get("stats"), dict):
                self.stats = record["stats"]
            if record and "error" in record:
                self.error = str(record["error"])
        return True

    def stop(self) -> None:
        """Let it send its last events, then end it."""
        for _role, fd in self.sockets:
            os.close(fd)
        self.sockets = []
        if not self.pid:
            return
        deadline = time.monotonic() + NETWORK_END
        assert self._socket is not None
        try:
            self._socket.shutdown(_socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([self._socket], [], [], left)[0] or not self.read():
                    break
        except OSError:
            pass
        if not select.select([self.pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(self.pid, SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self._socket.close()
        self.pid, self.pidfd, self.control = 0, -1, -1


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
        self._handlers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._relay: Relay | None = None

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
        if self.options.trace_log:
            say(f"warning: this version has no tracer: {escape(self.options.trace_log)} is not written (see --events)")
        facts = facts_for(self.policy)
        self.plan = plan = build(self.policy, facts)
        self._make_stores()
        self.journal = Journal(self.id, self.options.events)
        self.record = runs.SessionRecord(
            self.id, os.getpid(), time.time(), facts.workspace, self.request.command, "network", 0, 0, 0
        )
        entry = runs.Run(facts.state, self.record)
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
                self._start(facts)
                self._loop(wake, own)
            finally:
                self.launch.kill()
                self.launch.reap()
                if self._relay is not None:
                    while self._relay.to_screen():
                        pass
                    self._relay.restore()
        finally:
            entry.close()
        return self._end()

    # ------------------------------------------------------------ start

    def _make_stores(self) -> None:
        for path in self.plan.stores:
            runs.make_private(path)

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
        found = self._scan(facts)
        launch.send_workspace_operations(mounts.workspace(facts.workspace, found.hits, found.pins))
        self.guard = Guard(
            facts.workspace,
            found,
            store=os.path.join(facts.state, "quarantine", self.id),
            mask=launch.mask,
            report=self.journal.add,
        )
        self.guard.prime()
        mode, sockets = launch.network_sockets()
        from .policy.codec import dump

        config = {
            "policy": dump(self.policy),
            "session": self.id,
            "limits": {"upload": self.policy.limits.upload},
            "environ": dict(facts.environ) if self.policy.upstream_proxy == "env" else {},
        }
        self.network = Network(sockets, config, self.journal)
        launch.wait_ready()
        assurance = read_back(launch.command_pid, self.plan)
        self.journal.add(
            SessionStarted(
                VERSION,
                self.request.command,
                facts.workspace,
                self.policy.digest,
                self.policy.levels,
                (*assurance, Binding("capture", mode, "bound", False), *_rule_bindings(self.plan)),
                "network",
                f"uid {self.plan.uid}" + (f" as kuid {self.plan.base_kuid}" if self.plan.base_kuid else ""),
            )
        )

    def _scan(self, facts: HostFacts) -> ScanResult:
        caches = os.path.join(facts.state, "cache")
        runs.make_private(caches)
        cache_file = os.path.join(caches, "scan-" + mounts.workspace_key(facts.workspace))
        found = scan(facts.workspace, self.policy.paths, cache_file, progress=_say_progress)
        for warning in found.warnings:
            if not self.options.quiet:
                say(warning)
        return found

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
        limit = self.policy.limits.time
        time_out_at = time.monotonic() + limit if limit else 0.0
        if launch.terminal >= 0:
            from .host.terminal import Relay

            self._relay = Relay(launch.terminal, own)
            self._watch(launch.terminal, self._on_output)
            if self._relay.reads_keyboard:
                self._watch(self._relay.keyboard, self._on_keyboard)
        self._watch(self.guard.fileno(), self.guard.on_change)
        watch_at = time.monotonic() + WATCH_DELAY  # a short command is not slowed by a watch that it does not need
        launch.release()
        gc.enable()  # the script switched it off for the start
        self._let_go_of_streams(own)
        while self.wait_status is None and not self.failure:
            deadline = min((at for at in (self._kill_at, time_out_at) if at), default=0.0)
            wait_until = min((at for at in (deadline, watch_at) if at), default=0.0)
            timeout = max(0.0, wait_until - time.monotonic()) if wait_until else -1.0
            guard_timeout = self.guard.timeout()
            if guard_timeout is not None:
                timeout = guard_timeout if timeout < 0 else min(timeout, guard_timeout)
            for fd, _event in self._epoll.poll(timeout):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            if self.guard.timeout() == 0:
                self.guard.on_change()
            if watch_at and time.monotonic() >= watch_at and self.guard.step():
                watch_at = 0.0
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
        self._watch(self.network.control, self._on_network)
        self._watch(self.network.pidfd, self._on_network_end)

    def _on_network(self) -> None:
        if not self.network.read():
            self._on_network_end()

    def _on_network_end(self) -> None:
        self._unwatch(self.network.control)
        self._unwatch(self.network.pidfd)
        while self.network.read():
            if not select.select([self.network.control], [], [], 0.1)[0]:
                break
        cause = f": {self.network.error}" if self.network.error else ""
        self.failure = f"the network process died; the command was killed{cause}"

    def _on_output(self) -> None:
        assert self._relay is not None
        if not self._relay.to_screen():
            self._unwatch(self._relay.master)

    def _on_keyboard(self) -> None:
        assert self._relay is not None
        if not self._relay.from_keyboard():
            self._unwatch(self._relay.keyboard)
            self._told_to_end(SIGHUP)

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
        if self._relay.reads_keyboard and self._relay.keyboard not in self._handlers:
            self._watch(self._relay.keyboard, self._on_keyboard)

    # ------------------------------------------------------------ end

    def _end(self) -> int:
        self.network.stop()
        self.guard.finish()
        status, number = self._exit_status()
        if self.journal.lost:
            self.journal.add(EventsLost("network", self.journal.lost, now(), now()))
        self.journal.add(
            SessionEnded(
                status,
                number,
                round((time.monotonic() - self.started) * 1000, 3),
                dict(self.journal.counts),
                self.journal.refused,
                self.journal.lost,
                tuple(self.guard.left),
            )
        )
        self.journal.close()
        if self.failure:
            say(escape(self.failure))
        if self.timed_out:
            say(f"the time limit of {self.policy.limits.time} s ended the command")
        for path in self.guard.left:
            say(f"{escape(path)} is a protected name that the command made and that could not be moved away")
        if not self.options.quiet:
            self._tell_refusals()
        return status

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

    def _tell_refusals(self) -> None:
        if not self.journal.denied:
            return
        from .summary import refusals

        colour = os.isatty(2) and not os.environ.get("NO_COLOR")
        for line in refusals(
            self.journal.denied.values(),
            record=self.options.events if self.options.events not in ("", "-") else "",
            home=os.environ.get("HOME", ""),
            colour=colour,
        ):
            os.write(2, (line + "\n").encode("utf-8", "backslashreplace"))


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
