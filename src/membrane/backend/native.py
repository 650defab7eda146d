"""The native backend: Linux, by the kernel's own calls.

Theory of operation
-------------------
``Native.begin`` forks the launcher (``host.launch``), before the policy is loaded: it makes the outer namespaces beside
the reading.  ``NativeCell`` turns its messages, and those of pid 1, into what ``backend.Cell`` promises; with many
commands it starts the spawner (``host.spawner``) once the view stands.  What a command has set on itself is read back
from proc(5) before it may run (``host.readback``).

Loaded before the launcher is forked, so it imports what the fork needs; the rest is imported where it is used.
"""

from __future__ import annotations

import _socket
import errno
import os

from ..errors import HostError, InternalError, MembraneError, PolicyError
from ..host import messages as m
from ..host.channel import SIGKILL
from ..host.launch import Launch, Spawner
from ..messages import Failure
from . import (
    Backend,
    Broken,
    Cell,
    Command,
    Ended,
    Exited,
    Failed,
    Frozen,
    HasTerminal,
    Hidden,
    SharedCommand,
    Still,
    Stopped,
    TraceHandle,
    Waiting,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from ..events import Binding, Process
    from ..host.channel import Channel
    from ..messages import Message
    from ..plan.model import HostFacts, MountOp, SandboxPlan
    from ..policy.model import Policy
    from . import Commands, Job, News
else:
    import _signal


class Native(Backend):
    """This machine's kernel; see ``Backend``."""

    def __init__(self) -> None:
        self._launch: Launch | None = None

    def begin(self) -> None:
        self._launch = Launch()

    def give_up(self) -> None:
        if self._launch is not None:
            self._launch.give_up()

    def facts(self, policy: Policy, workspace: str = "") -> HostFacts:
        from ..host.facts import gather

        facts = gather(
            os.environ,
            named=[rule.path for rule in policy.mounts],
            sockets=[rule.path for rule in policy.unix_sockets],
            want_git_root=any(rule.git_root or rule.path.rstrip("/").endswith(".git") for rule in policy.mounts),
            want_bound="all" if policy.view == "host" else "lasting",
            want_runtime=policy.open_files,
            devices=[rule.name for rule in policy.devices],
            workspace=workspace,
        )
        if (policy.containers == "nested" or policy.system != "read-only") and not facts.root:
            from ..host.subordinate import find

            facts = facts.replace(subordinate=find(facts.uid))
        if policy.containers == "nested" and not facts.root:
            from ..host.facts import open_cgroup

            facts = facts.replace(open_cgroup=open_cgroup())
        return facts

    def plan(self, policy: Policy, facts: HostFacts) -> SandboxPlan:
        from ..plan.build import build

        return build(policy, facts)

    def stand_still(self, last: tuple[int, ...]) -> Still:
        return _stillness(last)

    def start(
        self,
        plan: SandboxPlan,
        argv: tuple[str, ...],
        *,
        terminal: tuple[bool, bool, bool],
        session: str,
        umask: int,
        notify: Literal["", "writes", "reads"],
        commands: Commands,
    ) -> NativeCell:
        from ..host.start import Start

        launch = self._launch
        if launch is None:
            raise InternalError("start the sandbox", "its launcher was not forked")
        if plan.hardening.nested and commands != "one":
            raise PolicyError(
                "bind a rule",
                "containers: nested holds for a sandbox of one command only",
                where="policy",
                fix=("run one command that starts the others",),
            )
        if plan.hardening.capabilities and commands != "one":
            raise PolicyError(
                "bind a rule",
                "system: writable holds for a sandbox of one command only",
                where="policy",
                fix=("run one command that starts the others",),
            )
        launch.begin(Start(plan, argv, terminal, session, umask, notify, commands))
        return NativeCell(launch, commands)


def _stillness(last: tuple[int, ...]) -> Still:
    from .still import Stillness

    return Stillness(last[:1], last[1:])


class NativeCell(Cell):
    """The launcher, pid 1 and, with many commands, the spawner.

    Args:
        launch: that has the plan.
    """

    traces = True

    def __init__(self, launch: Launch, commands: Commands) -> None:
        self._launch = launch
        self._many = commands != "one"
        self._spawner: Spawner | None = None
        self.command = NativeCommand(launch.init)
        self.terminal, self.kept, self.reads = -1, {}, None

    def grant(self) -> None:
        self._launch.grant()

    def fill(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        self._launch.send_late(ops, environment)

    def sockets(self) -> tuple[str, list[tuple[str, int]]]:
        return self._launch.network_sockets()

    def listeners(self, count: int) -> list[int]:
        return self._launch.listening_sockets(count)

    def built(self) -> None:
        launch = self._launch
        launch.wait_ready()
        self.terminal, self.kept, self.reads = launch.terminal, launch.kept, launch.reads

    def ready(self) -> tuple[Binding, ...]:
        self._launch.wait_masks()
        if self._many:
            self._spawner = Spawner(self._launch)
            return ()
        from ..host.readback import read_back

        return read_back(self._launch.command_pid, self._launch.plan)[1]

    def trace_handle(self) -> TraceHandle:
        of = self._spawner or self._launch
        process = self._member()
        try:
            root = os.open(f"/proc/{process}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError("attach the tracer", error.strerror or "", target=f"pid {process}") from None
        return TraceHandle(process, of.listener, of.listener_error, root)

    def join(self) -> tuple[int, int]:
        if self._launch.plan.hardening.nested:
            # A further command would be in the namespaces below the first one's, which ``read_back`` refuses.
            cause = "with --containers the command has namespaces of its own; start what you need from its shell"
            raise HostError("join the session", f"{cause}, or by docker exec")
        if self._launch.plan.hardening.capabilities:
            # Each command would be root with the others' capabilities, over the same layer.
            raise HostError("join the session", "with --system it is one command's; start what you need from its shell")
        spawner = self._spawner = Spawner(self._launch)
        return spawner.listener, spawner.listener_error

    def fork(self, terminal: tuple[int, ...] = ()) -> NativeSharedCommand:
        assert self._spawner is not None
        return NativeSharedCommand(self._spawner.fork(terminal), self._launch.plan)

    def hide(self, ops: Sequence[MountOp]) -> None:
        self._launch.mask(ops)

    @property
    def hiding(self) -> bool:
        return self._launch.masks_pending > 0

    def freeze(self, directory: int, name: str) -> bool:
        return self._launch.freeze(directory, name)

    def descriptors(self) -> tuple[int, ...]:
        launcher = self._launch.launcher.fileno()
        return (launcher,) if self._spawner is None else (launcher, self._spawner.channel.fileno())

    def read(self, descriptor: int) -> News:
        if descriptor != self._launch.launcher.fileno():
            return Broken("the process that runs the commands has died")  # it has nothing else to tell
        message = self._launch.launcher.receive()
        if message is None:
            return Ended()
        if isinstance(message, m.NamesHidden):
            self._launch.masks_pending -= 1
            if message.status:  # it was killed: nothing is known of the mask
                return Broken(f"cannot mask a name that appeared: its process ended with status {message.status}")
            return Hidden()
        if isinstance(message, m.FileFrozen):
            return Frozen(message.errno == 0)
        if isinstance(message, Failure):
            return Broken(f"cannot mask a name that appeared: {message.cause}")
        raise InternalError("keep the sandbox", f"unexpected message {type(message).__name__}")

    def owner(self, client: Mapping[str, Any] | None) -> Process | None:
        from ..host import owner

        return owner.of(client, self._member())

    def last(self) -> tuple[int, ...]:
        first = self._launch.init_pid()
        return (first,) if self._spawner is None else (first, self._spawner.pid)

    def mount_points(self) -> frozenset[str]:
        from ..host.facts import mount_points_of

        process = self._launch.init_pid()
        try:
            return mount_points_of(process)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH, errno.EINVAL):  # EINVAL: it has left its mount namespace
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
            raise HostError("read the mounts of the sandbox", error.strerror or "", target=f"pid {process}") from None

    def stand_still(self) -> Still:
        return _stillness(self.last())

    def kill(self) -> None:
        self._launch.kill()

    def reap(self) -> None:
        self._launch.reap()

    def _member(self) -> int:
        """A process in the sandbox's namespaces."""
        return self._spawner.pid if self._many and self._spawner is not None else self._launch.command_pid


class NativeCommand(Command):
    """The one command, by the channel of pid 1 (``host.init``)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def fileno(self) -> int:
        return self._channel.fileno()

    def read(self) -> News:
        return told(self._channel.receive())

    def release(self) -> None:
        self._channel.send(m.Go())

    def signal(self, number: int) -> bool:
        return _signal_by(self._channel, number)

    def resume(self) -> None:
        _resume(self._channel)


class NativeSharedCommand(SharedCommand):
    """One of many, by the channel of its keeper (``host.spawner``)."""

    def __init__(self, channel: Channel, plan: SandboxPlan) -> None:
        self._channel, self._plan = channel, plan
        self._sender = 0
        self.pid, self.ended = 0, -1

    def fileno(self) -> int:
        return self._channel.fileno()

    def read(self) -> News:
        message = self._channel.receive()
        if isinstance(message, m.TerminalMade) and self.terminal < 0:
            self.terminal = message.master
            return HasTerminal()
        if isinstance(message, m.Ready) and self.ended < 0:
            self._sender = self._channel.sender  # the kernel's word: it is what will be read back
            return Waiting()
        return told(message)

    def ready(self) -> tuple[Binding, ...]:
        from ..host.readback import read_back

        keeper, bindings = read_back(self._sender, self._plan)
        self.ended = os.pidfd_open(keeper)
        self.pid = self._sender
        return bindings

    def refuse(self) -> None:
        self._channel.socket.shutdown(_socket.SHUT_RDWR)

    def release(self, job: Job, streams: Sequence[int]) -> None:
        from ..host.start import Job

        self._channel.send(m.RunJob(Job(job.argv, job.environment, job.cwd, job.umask), *streams))

    def signal(self, number: int) -> bool:
        return _signal_by(self._channel, number)

    def resume(self) -> None:
        _resume(self._channel)

    def kill(self) -> None:
        """With pid 1 its namespace ends; elsewhere the command ends with its keeper (PR_SET_PDEATHSIG)."""
        if self.ended >= 0:
            _signal.pidfd_send_signal(self.ended, SIGKILL)

    def last_status(self) -> int | None:
        self._channel.setblocking(False)
        try:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, m.CommandExited):
                    return message.status
        except (OSError, MembraneError):
            pass
        return None

    def let_go(self) -> None:
        if self.ended >= 0:
            os.close(self.ended)
            self.ended = -1

    def close(self) -> None:
        self.let_go()
        self._channel.close()


def told(message: Message | None) -> News:
    """What pid 1, or a keeper, says about its command."""
    if isinstance(message, m.CommandExited):
        return Exited(message.status)
    if isinstance(message, m.JobStopped):
        return Stopped()
    if isinstance(message, Failure):
        return Failed(message.errno, message.step, message.cause, message.target)
    if message is None:
        return Ended()
    raise InternalError("run a command", f"unexpected message {type(message).__name__}")


def _resume(channel: Channel) -> None:
    try:
        channel.send(m.Resume())
    except OSError:
        pass  # what keeps it is gone: its end is on the way


def _signal_by(channel: Channel, number: int) -> bool:
    try:
        channel.send(m.SendSignal(number))
    except OSError:
        return False  # it is gone: its end is on the way
    return True


class Carried(Native):
    """The same in a container that carries it; the receipt says so."""

    def plan(self, policy: Policy, facts: HostFacts) -> SandboxPlan:
        from ..plan.model import RuleBinding

        plan = super().plan(policy, facts)
        what = f"a container of {policy.backend} without a capability, with our seccomp profile, carries the run"
        if facts.uid == 0:
            what = what.replace("without a capability", "with the capability SETFCAP only")
        return plan.replace(bindings=(*plan.bindings, RuleBinding("backend", f"backend: {policy.backend}", (what,))))
