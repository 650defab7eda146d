"""The backend for a container that is not ours: no namespace, no mount, no capability.

Theory of operation
-------------------
A CI job or a pod gives none of what the native backend is made of.  What every default profile allows is Landlock and
seccomp with user notification.  ``Inside.start`` makes the sandbox's own directory and a listener for the
gateway on loopback, and forks the warden, whose child is the keeper (``host.inside``): that runs the command and makes
its sockets (``host.supervised``).  What of the policy this binds, and what is weaker, ``plan.inside`` says.

It is taken only when it is named (``backend: landlock``).  It has one command at a time, and nothing is traced: the
listener of the command's notifications is the keeper's, and there is one for each process (EBUSY).

If this object's process or the keeper ends, the warden ends everything; if the warden is killed, the keeper does; if
both are, this process inherits what they kept (PR_SET_CHILD_SUBREAPER) and ends that in ``reap``; if all three are, who
stays below the warden for that ends the command (``inside._stay``).
"""

from __future__ import annotations

import _socket
import os
import stat

from ..errors import HostError, InternalError, PolicyError
from ..events import Binding
from ..host import ending, inside, landlock, statelinks
from ..host import messages as m
from ..host import syscalls as sc
from ..host.channel import HELD_DURING_FORK, SIGKILL, Channel, named_pair, pair, run_child
from ..host.ready import ready
from ..host.start import Late
from ..messages import Failure
from ..plan.model import File, Listen, Seed, Symlink
from ..plan.mounts import INSIDE_LOGINS, MASK_SOURCE
from . import Backend, Broken, Cell, Ended, Refused
from .native import Native, NativeCommand, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from ..events import Process
    from ..host.start import Start
    from ..host.supervised_names import Judge
    from ..messages import Message
    from ..plan.model import HeldTree, HostFacts, MountOp, SandboxPlan
    from ..policy.model import Policy
    from . import Commands, News, SharedCommand, TraceHandle
else:
    import _signal

BACKLOG = 4096
REAP = 10.0  # seconds for the keeper to end everything, before the warden does, and for that, before we do


def _directory(session: str) -> str:
    return f"/tmp/.membrane-{session}"  # noqa: S108 - the name is 64 bits of chance


def collect(session: str, workspace: str) -> list[str]:
    """Remove what a session has left whose supervisor, warden and keeper were killed.

    Args:
        session: one that is dead.
        workspace: it ran there.

    Returns:
        The directories that were removed.
    """
    places = [_directory(session)]
    if workspace:
        places.append(f"{os.path.realpath(workspace)}/.git/objects/membrane-{session}")
    out = []
    for place in places:
        try:
            status = os.lstat(place)
        except OSError:
            continue
        if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode) and ending.remove(place):
            out.append(place)
    return out


class Inside(Backend):
    """The same kernel, as a container's process may use it; see ``Backend``.

    Args:
        judges: makes, in the keeper, what says which names may be made; None: all may be.
    """

    def __init__(self, judges: Callable[[Sequence[HeldTree], str], Judge] | None = None) -> None:
        self._judges = judges
        self._cell: InsideCell | None = None

    def begin(self) -> None:
        pass  # there is nothing to make before the plan

    def give_up(self) -> None:
        if self._cell is not None:
            self._cell.kill()
            self._cell.reap()

    def facts(self, policy: Policy, workspace: str = "") -> HostFacts:
        return Native().facts(policy, workspace)

    def plan(self, policy: Policy, facts: HostFacts) -> SandboxPlan:
        from ..plan.inside import build

        return build(policy, facts)

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
    ) -> InsideCell:
        from ..host.start import Start

        if commands != "one":
            raise PolicyError(
                "bind the policy",
                "backend landlock runs one command in a sandbox, not several",
                fix=("membrane --backend landlock -- COMMAND for each", "use the native backend"),
            )
        version = landlock.abi()
        if version < landlock.SUPERVISED:
            raise HostError(
                "use the backend landlock",
                f"the kernel's Landlock has ABI {version}, and TCP is refused from ABI {landlock.SUPERVISED} on",
                fix=("run on Linux 6.7 or newer, with landlock in lsm=",),
            )
        self._cell = InsideCell(Start(plan, argv, terminal, session, umask, "", commands), self._judges)
        return self._cell


class InsideCommand(NativeCommand):
    """The one command, by the channel of its keeper.

    No pid namespace ends the command with its keeper: what is left is ended by ``InsideCell.reap``, so this is no end
    by a signal that the command got, but a failure of ours.
    """

    def read(self) -> News:
        message = self._channel.receive()
        if isinstance(message, m.NameRefused):
            return Refused(message.path, message.reason, message.operation, message.hint)
        if message is None:
            return Broken("the keeper of the command was killed; the command was ended")
        return told(message)


class InsideCell(Cell):
    """The warden and the keeper of one command.

    Args:
        start: what it is to run.
        judges: as of ``Inside``.
    """

    traces = False
    edits = True

    def __init__(self, start: Start, judges: Callable[[Sequence[HeldTree], str], Judge] | None) -> None:
        self._start = start
        self._trees: tuple[HeldTree, ...] = ()
        self.terminal, self.kept, self.reads = -1, {}, None
        self.directory = _directory(start.session)
        os.mkdir(self.directory, 0o700)
        for name in ("tmp", "home", "files", "logins", "doors", "copies", "none", "memory"):
            os.mkdir(f"{self.directory}/{name}", 0o700)
        home = dict(start.plan.environment)["HOME"]
        try:
            for link in (op for op in start.plan.mounts if isinstance(op, Symlink)):
                statelinks.put(self._own(home), link.target[len(home) + 1 :], link.to)
        except BaseException:
            ending.remove(self.directory)  # nobody has this object yet
            raise
        self._listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(BACKLOG)
        kind = _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC
        self._destinations, sender = _socket.socketpair(_socket.AF_UNIX, kind)
        self._datagrams, carrier = _socket.socketpair(_socket.AF_UNIX, kind)
        inside_ports = [port for port, _outside in start.plan.network.exposed]
        # Drawn by chance, so that two sandboxes of a container have no address in common.
        address = "127." + ".".join(str(1 + byte % 254) for byte in os.urandom(3))
        self._servers: Channel | None = None
        asked: Channel | None = None
        if inside_ports:
            self._servers, asked = pair(m.TO_SERVERS, m.FROM_FACTORY)
        self._doors: list[int] = []
        doors = {}
        for number, op in enumerate(op for op in start.plan.mounts if isinstance(op, Listen)):
            doors[op.target] = f"{self.directory}/doors/{number}"
            door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            sc.take_no_descriptors(door)
            door.bind(doors[op.target])
            door.listen(128)
            self._doors.append(door.detach())
        orders, self._orders = os.pipe2(os.O_CLOEXEC)
        ours, theirs = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        self._channel = ours
        self.command = InsideCommand(ours)
        self._command_pid = 0
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
        supervisor = os.getpid()
        port = self._listener.getsockname()[1]
        exposed = (inside_ports, address, asked)
        made = inside.Inside(self.directory, port, sender, carrier, doors, exposed, judges)
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, HELD_DURING_FORK)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self._become_warden(theirs, made, supervisor, orders)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        theirs.close()
        os.close(orders)
        for end in (sender, carrier, asked):
            if end is not None:
                end.close()
        self._handle = os.pidfd_open(self.pid)

    def _become_warden(self, channel: Channel, made: inside.Inside, supervisor: int, orders: int) -> None:
        for fd in (self._listener, self._destinations, self._datagrams):
            fd.close()
        for door in self._doors:
            os.close(door)
        self._channel.close()
        os.close(self._orders)
        if self._servers is not None:
            self._servers.close()
        run_child(lambda: inside.warden(self._start, channel, made, supervisor, orders), channel)

    def grant(self) -> None:
        pass  # there is nothing that takes more rights than the keeper has

    def hold(self, trees: Sequence[HeldTree]) -> None:
        self._trees = tuple(trees)

    def fill(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        for op in ops:
            place = self._own(op.target)
            if isinstance(op, File) and place != op.target:
                os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
                with open(place, "xb") as file:
                    file.write(op.content.replace(f"{MASK_SOURCE}/".encode(), f"{self.directory}/files/".encode()))
            elif isinstance(op, Seed):
                self._lead_to_log_in(op.target.removeprefix(f"{INSIDE_LOGINS}/"), op.content)
        own = [(name, self._own(value)) for name, value in environment]
        try:
            self._channel.send(
                m.Fill(Late(tuple(op for op in ops if not isinstance(op, (File, Seed))), tuple(own), self._trees))
            )
        except OSError:
            self._raise_early_end()

    def _lead_to_log_in(self, name: str, content: bytes) -> None:
        """Make a copy of a log-in in a directory of the run's own, and lead to it in the agent's state.

        Raises:
            HostError: a run that has not ended has led to its own.
        """
        copy = f"{self.directory}/logins/{name.replace('/', '-')}"
        with open(copy, "xb") as file:
            file.write(content)
        home = dict(self._start.plan.environment)["HOME"].rstrip("/") + "/"
        for link in (op for op in self._start.plan.mounts if isinstance(op, Symlink)):
            kept, _, rest = name.partition(link.target.removeprefix(home) + "/")
            if kept or not rest:
                continue
            try:
                other = os.readlink(f"{link.to}/{rest}")
            except OSError:
                other = ""
            if other.startswith("/tmp/.membrane-") and os.path.isdir(os.path.dirname(other)):  # noqa: S108 - ours
                raise HostError(
                    "show the log-in",
                    "another run of the agent has it; with backend landlock there is one at a time",
                    target=name,
                    fix=("wait for its end", "use another MEMBRANE_HOME"),
                )
            statelinks.put(link.to, rest, copy)

    def _own(self, path: str) -> str:
        """A path of the plan's own directory as it is here; in a variable of Java it is the end of an option."""
        before, mark, rest = path.partition(f"{MASK_SOURCE}/")
        if not mark:
            return path
        below = "" if rest.partition("/")[0] in ("home", "tmp") else "files/"
        return f"{before}{self.directory}/{below}{rest}"

    def sockets(self) -> tuple[str, list[tuple[str, int]]]:
        pairs = (
            ("tcp4-named", self._listener),
            ("destinations", self._destinations),
            ("datagrams", self._datagrams),
        )
        out = [(role, socket.detach()) for role, socket in pairs]
        if self._servers is not None:
            out.append(("servers", self._servers.socket.detach()))
        return "sockets made by the supervisor", out

    def listeners(self, count: int) -> list[int]:
        doors, self._doors = self._doors[:count], self._doors[count:]
        return doors

    def built(self) -> None:
        while True:
            message = self._channel.receive()
            if isinstance(message, m.TerminalMade):
                self.terminal = message.master
            elif isinstance(message, m.Ready):
                self._command_pid = self._channel.sender
                return
            else:
                self._raise(message)

    def ready(self) -> tuple[Binding, ...]:
        from ..host.readback import confined

        said = f"ABI {landlock.abi()}: files, and no TCP right, which the command has tried"
        return confined(self._command_pid, self._start.plan.uid, said)

    def trace_handle(self) -> TraceHandle:
        raise InternalError("attach the tracer", "backend landlock has nothing to trace")

    def fork(self, terminal: tuple[int, ...] = ()) -> SharedCommand:
        raise InternalError("start a command", "backend landlock has one command")

    def hide(self, ops: Sequence[MountOp]) -> None:
        pass  # Landlock takes no right away from who runs: the receipt says so of each rule

    @property
    def hiding(self) -> bool:
        return False

    def freeze(self, directory: int, name: str) -> bool:
        return False

    def descriptors(self) -> tuple[int, ...]:
        return (self._handle,)

    def read(self, descriptor: int) -> News:
        return Ended()

    def owner(self, client: Mapping[str, Any] | None) -> Process | None:
        return None

    def last(self) -> tuple[int, ...]:
        return (self.pid,)

    def kill(self) -> None:
        try:
            self._channel.socket.shutdown(_socket.SHUT_RDWR)  # the keeper ends everything, then itself
        except OSError:
            pass

    def reap(self) -> None:
        if self._handle < 0:
            return
        if not ready((self._handle,), seconds=REAP)[0]:  # the keeper is stopped, or waits in the kernel
            os.write(self._orders, b"!")
            if not ready((self._handle,), seconds=REAP)[0]:
                _signal.pidfd_send_signal(self._handle, SIGKILL)
        ended_all = os.waitpid(self.pid, 0)[1] == 0  # the warden has no child left, and so this process none by it
        for fd in (self._handle, self._orders):
            os.close(fd)
        self._handle = -1
        self._channel.close()
        ended_all = ended_all or ending.end_orphans(self.pid)
        ending.remove(self.directory)
        if not ended_all:
            raise HostError("end the command", "it starts processes faster than they can be killed")

    def _raise(self, message: Message | None) -> None:
        if isinstance(message, Failure):
            raise HostError(message.step, message.cause, target=message.target)
        raise HostError("start the sandbox", "the keeper ended before the command was ready")

    def _raise_early_end(self) -> None:
        self._raise(self._channel.receive())
