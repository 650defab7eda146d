"""What makes a sandbox: the seam between one run and the machine that it runs on.

Theory of operation
-------------------
A ``Backend`` knows a machine: it finds facts, makes a plan of them, and starts a ``Cell``, the sandbox as its
supervisor sees it.  ``run`` and what stands above it know these types and no other: they ask for names to be hidden,
for the word to the command, for what became of it, and never for a namespace, a message or a path below /proc.  What
was there before the plan (secrets, the record, the guard, the gateway, the tracer) is the supervisor's and the same
for every backend.

``native`` is Linux with the kernel's own calls, ``landlock`` the same without a namespace, inside somebody else's
container; ``docker`` is the native one again, with its supervisor inside a container of ours.  What a backend cannot
do it says before anything runs: ``plan`` raises for a rule that it cannot bind, ``Cell.traces`` says whether there is
something to trace.  It promises nothing that ``Cell.ready`` has not read back.

Order of a run: ``with backend`` · ``facts`` · ``plan`` · ``start`` · ``grant`` · ``fill``, ``sockets``, ``listeners``
· ``built`` · ``hide`` · ``ready`` · ``trace_handle`` · ``Command.release``, or ``fork`` and ``SharedCommand.release`` ·
``read`` until it ends · ``kill`` · ``reap``.

Times are seconds, descriptors belong to who is given them unless something else is said, and every HostError names
the step, the cause and the object.  Abstract classes, and not protocols: a backend that lacks a method fails when it
is made, not when the method is needed.  This module is loaded before the launcher is forked and imports nothing that
``value`` and ``errors`` do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..errors import HostError
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal, Self

    from ..events import Binding, Process
    from ..host.supervised_names import Judge
    from ..plan.model import HeldTree, HostFacts, MountOp, SandboxPlan
    from ..policy.model import Policy

    # One command; any number, each in a view and processes of its own; any number that share both.
    Commands = Literal["one", "fresh", "kept"]


# ---------------------------------------------------------------- what a cell tells


class News(Value):
    """Something that a cell or a command tells its supervisor; always one of the types below."""


class Hidden(News):
    """What one ``Cell.hide`` asked for is done."""


class Frozen(News):
    """The answer to one ``Cell.freeze``: whether the file can be changed from inside no more."""

    made: bool


class Broken(News):
    """The cell cannot keep its promise any more, and the run has to end.  ``why``: a sentence for the caller."""

    why: str


class Refused(News):
    """The command may not read, make, change or remove a name, or connect to a unix socket.

    ``reason``: of the policy.  ``operation``: "read", else "write".  ``hint``: what else is to be said of it.
    """

    path: str
    reason: str
    operation: str
    hint: str = ""


class Waiting(News):
    """A command has confined itself and waits for its job."""


class Stopped(News):
    """The command's job was stopped from its terminal; it goes on with ``Command.resume``."""


class HasTerminal(News):
    """One of many commands has a terminal of its own, of which ``SharedCommand.terminal`` is the master."""


class Exited(News):
    """The command has ended.  ``status``: as wait(2) tells it."""

    status: int


class Failed(News):
    """A step before the command's program failed.  ``errno``: 0 where the system did not refuse it."""

    errno: int
    step: str
    cause: str
    target: str


class Ended(News):
    """Nothing more comes from there: the process that reports it has ended."""


class Job(Value):
    """What one of many commands runs.

    ``environment``: all of it.  ``cwd``: absolute, in the view.  ``umask``: as umask(2) takes it.
    """

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    umask: int


class TraceHandle(Value):
    """What the tracer needs of a cell; the descriptors belong to the caller.

    ``process``: whose descendants are traced, by our pid namespace.  ``listener``: of its notifications
    (seccomp_unotify(2)); -1: there is none, and ``error`` is the errno that says why.  ``root``: its root directory
    (O_PATH).
    """

    process: int
    listener: int
    error: int
    root: int


# ---------------------------------------------------------------- what makes and keeps one


class Backend(ABC):
    """One machine on which cells can be made.  Making the object begins nothing.

    ``with backend:`` begins what needs no policy, before that is read; an exception that leaves it gives everything up
    that was begun.  ``facts`` and ``plan`` can be asked for without.
    """

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is not None:
            self.give_up()

    @abstractmethod
    def begin(self) -> None:
        """Begin what needs no policy; it goes on beside the caller.

        Raises:
            OSError: there is no memory, process or descriptor left for it.
        """

    @abstractmethod
    def give_up(self) -> None:
        """End what ``begin`` and ``start`` began, and wait for its end."""

    @abstractmethod
    def facts(self, policy: Policy, workspace: str = "") -> HostFacts:
        """What a plan for ``policy`` has to know about this machine; nothing is changed.

        Args:
            workspace: absolute; empty: the current directory.

        Raises:
            PolicyError: the policy or the environment names something that cannot be.
            HostError: the machine cannot be looked at.
        """

    @abstractmethod
    def plan(self, policy: Policy, facts: HostFacts) -> SandboxPlan:
        """Everything that the cell will be, as data: a pure function of its arguments.

        Raises:
            PolicyError: this backend cannot bind a rule.
        """

    @abstractmethod
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
    ) -> Cell:
        """Begin to make what ``plan`` says; it goes on beside the caller.  Once for each ``with``.

        Args:
            argv: of the one command; empty with many.
            terminal: for stdin, stdout and stderr, whether it becomes the sandbox's own terminal.
            session: its id.
            umask: of the command, as umask(2) takes it.
            notify: which calls the tracer is to be asked about; empty: there will be no tracer.
            commands: how many there will be.

        Raises:
            HostError: what was begun has ended.
        """

    def stand_still(self, last: tuple[int, ...]) -> Still:
        """As ``Cell.stand_still``, of a cell of another supervisor on this machine, by its ``Cell.last``."""
        raise HostError("stop the processes of the sandbox", "this kind of sandbox cannot")


class Cell(ABC):
    """One sandbox, as its supervisor sees it; the methods up to ``ready`` are called in the order in which they stand.

    If this object's process ends, so does everything in the cell.

    Attributes:
        edits: whether it makes git's everyday changes of a configuration itself (``plan.model.Keep``).
        traces: whether ``trace_handle`` will give one.  Known from the start, because the tracer is forked before
            there is a secret.
        terminal: the master of the sandbox's terminal (pty(7)), from ``built`` on; -1: there is none.
        kept: from ``built`` on, directories below covers, by the path of the file that they are kept for (``Keep``).
        reads: from ``built`` on, what tells first reads of hidden files: an inotify(7) descriptor and the path of each
            watch; None: there is nothing to tell, or no descriptor was left.
        command: the one command, from ``built`` on.
    """

    traces: bool
    edits = False
    terminal: int
    kept: dict[str, int]
    reads: tuple[int, dict[int, str]] | None
    command: Command

    @abstractmethod
    def grant(self) -> None:
        """Do what takes the caller's own rights, and what the makers of the cell wait for.

        Raises:
            HostError: the machine refuses it.
        """

    @abstractmethod
    def fill(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        """Hand over what is known only now: what the workspace's rules bind, late files, the command's environment.

        Raises:
            HostError: what was begun has ended.
        """

    def hold(self, trees: Sequence[HeldTree]) -> None:
        """Hand over, before ``fill``, what is held in writable trees; of use where the backend makes names itself."""
        del trees  # natively the tracer is asked

    @abstractmethod
    def sockets(self) -> tuple[str, list[tuple[str, int]]]:
        """The way in which traffic is captured, and the sockets of the sandbox's network as (role, descriptor).

        ``gateway.server`` lists the roles.

        Raises:
            HostError: a step failed.
        """

    @abstractmethod
    def listeners(self, count: int) -> list[int]:
        """The unix sockets that listen in the view, in the order of the plan's ``Listen`` operations.

        Raises:
            HostError: a step failed.
        """

    @abstractmethod
    def built(self) -> None:
        """Wait until the view stands as planned; the one command has confined itself and waits.

        Raises:
            HostError: a step failed.
        """

    @abstractmethod
    def ready(self) -> tuple[Binding, ...]:
        """Wait for what ``hide`` was asked for, and confirm the confinement.

        Returns:
            What was read back from the system, not what was asked of it.  With many commands it is empty: each is read
            back for itself (``SharedCommand.ready``).

        Raises:
            HostError: something that was set is not in force; the cell may not be released.
        """

    @abstractmethod
    def trace_handle(self) -> TraceHandle:
        """After ``ready``, if ``traces``; once.

        Raises:
            HostError: the command's process cannot be looked at.
        """

    def join(self) -> tuple[int, int]:
        """In a cell of one command: let there be more beside it, by ``fork``; they end with the cell.

        ``descriptors`` has one more from then on.

        Returns:
            The listener of their notifications, the caller's from now on; -1: there is none, and the errno why.

        Raises:
            HostError: it cannot be; the cell is as before.
        """
        from ..errors import HostError

        raise HostError("join the session", "this backend runs one command; start what you need from its shell")

    @abstractmethod
    def fork(self, terminal: tuple[int, ...] = ()) -> SharedCommand:
        """One of many commands, after ``ready`` or ``join``: it confines itself and tells ``Waiting``.

        Args:
            terminal: the streams, by number, that become a terminal of its own, which ``HasTerminal`` tells first.

        Raises:
            HostError: what makes commands has ended.
            OSError: there is no descriptor left for it.
        """

    @abstractmethod
    def hide(self, ops: Sequence[MountOp]) -> None:
        """Ask for masks, and read-only names, over what appeared; ``Hidden`` or ``Broken`` answers.

        One call may have several answers.  A cell that is gone needs none.
        """

    @property
    @abstractmethod
    def hiding(self) -> bool:
        """Whether something that ``hide`` was asked for is still to be done."""

    @abstractmethod
    def freeze(self, directory: int, name: str) -> bool:
        """Ask that the file ``name`` in a directory of ``kept`` becomes read-only inside; ``Frozen`` answers, after
        the answers to what was asked for before.  False: the cell is gone.
        """

    @abstractmethod
    def descriptors(self) -> tuple[int, ...]:
        """After ``ready``: what becomes readable when the cell has news."""

    @abstractmethod
    def read(self, descriptor: int) -> News:
        """One piece of news from one of ``descriptors``; waits for it.

        ``Ended``: the makers of the cell are gone, and every command with them.
        """

    @abstractmethod
    def owner(self, client: Mapping[str, Any] | None) -> Process | None:
        """The process of the cell behind a question's ``client`` (``gateway.approvals``); None: that is not known."""

    def last(self) -> tuple[int, ...]:
        """After ``ready``: processes of this machine, as this pid namespace numbers them; when they have ended nothing
        of the cell runs any more, also without ``reap``.  Empty: there are none that show it.
        """
        return ()

    def mount_points(self) -> frozenset[str] | None:
        """Once the view stands: every mount point in it; None: a cell of this kind mounts nothing.

        Raises:
            ProcessLookupError: it has ended, and every command with it.
            HostError: they cannot be read.
        """
        return None

    def stand_still(self) -> Still:
        """Begin to stop every process of the cell, for a consistent look at what they write.

        Raises:
            HostError: this backend cannot.
        """
        raise HostError("stop the processes of the sandbox", "this kind of sandbox cannot")

    @abstractmethod
    def kill(self) -> None:
        """End everything in it, at once; it may be called at any time and again."""

    @abstractmethod
    def reap(self) -> None:
        """After ``kill``: wait until no process of it is left."""


class Still(ABC):
    """The processes of a cell while they stand still.  What has ``end`` is ended whatever happens."""

    @abstractmethod
    def step(self) -> bool:
        """Go on stopping them; True: all stand still.  Never waits.

        Raises:
            HostError: they do not in the time that there is for it; ``end`` has been called.
        """

    @abstractmethod
    def confirm(self) -> None:
        """Make sure that none of them has run since ``step`` was true.

        Raises:
            HostError: one has.
        """

    @abstractmethod
    def end(self) -> None:
        """Let go on what was stopped by us; it may be called again."""

    @abstractmethod
    def release(self) -> None:
        """Let everything go on, for who takes over from a process that was killed: whoever stopped it."""


class Command(ABC):
    """The one command of a cell."""

    @abstractmethod
    def fileno(self) -> int:
        """What becomes readable when there is news."""

    @abstractmethod
    def read(self) -> News:
        """One piece of news; waits for it."""

    @abstractmethod
    def release(self) -> None:
        """Give the word: it runs its program.

        Raises:
            OSError: it has ended.
        """

    @abstractmethod
    def signal(self, number: int) -> bool:
        """Send a signal to its process group; False: it has ended, which ``read`` tells."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after ``Stopped``."""


class SharedCommand(ABC):
    """One of many commands of a cell.

    Attributes:
        pid: of the command by our pid namespace, from ``ready`` on.
        ended: a descriptor that becomes readable when what keeps the command has ended, and in a cell of ``fresh``
            commands everything that it started (pidfd_open(2)); -1 before ``ready``.
        terminal: the master of its terminal (pty(7)), the caller's after ``HasTerminal``; -1: it has none.
    """

    pid: int
    ended: int
    terminal: int = -1

    @abstractmethod
    def fileno(self) -> int:
        """What becomes readable when there is news; it does not change until ``close``."""

    @abstractmethod
    def read(self) -> News:
        """One piece of news; waits for it.

        Raises:
            InternalError: it sent what it may not.
        """

    @abstractmethod
    def ready(self) -> tuple[Binding, ...]:
        """After ``Waiting``: confirm its confinement.

        Returns:
            What was read back.

        Raises:
            MembraneError: something that was set is not in force; it may not have a job.
            OSError: it has ended.
        """

    @abstractmethod
    def refuse(self) -> None:
        """Instead of a job: it ends, which ``read`` tells."""

    @abstractmethod
    def release(self, job: Job, streams: Sequence[int]) -> None:
        """Give it its job, with stdin, stdout and stderr, which stay the caller's.

        Raises:
            OSError: it has ended.
        """

    @abstractmethod
    def signal(self, number: int) -> bool:
        """Send a signal to its process group; False: it has ended, which ``read`` tells."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after ``Stopped``, which only one with a terminal reports."""

    @abstractmethod
    def kill(self) -> None:
        """End what keeps it, and the command with that; nothing before ``ready``.

        Raises:
            OSError: it has ended.
        """

    @abstractmethod
    def last_status(self) -> int | None:
        """After its end: its status, if it was sent and not read yet (wait(2)); None: it was not sent.  Never waits."""

    @abstractmethod
    def let_go(self) -> None:
        """Close ``ended``, of which nothing more is awaited."""

    @abstractmethod
    def close(self) -> None:
        """Close its channel, and ``ended``."""


def default() -> Backend:
    """The backend for this machine, if no other was asked for."""
    from .native import Native

    return Native()


def chosen(name: str) -> tuple[str, str]:
    """The backend that ``name`` stands for on this machine, and why it is not the native one (of "auto").

    "auto" is "native" but where the machine forbids the namespaces that it is made of; never because a run failed.
    """
    if name != "auto":
        return name, ""
    from ..host.probe import refused_view

    why = refused_view()
    return ("landlock", why) if why else ("native", "")


def named(name: str, judges: Callable[[Sequence[HeldTree], str], Judge] | None = None) -> Backend:
    """The backend that a policy names (key ``backend``); it is never taken instead of another one.

    ``judges``: makes what says which names may be made, for a backend that makes them itself.

    Raises:
        PolicyError: a container carries a whole run of the command line, and this is something else.
    """
    if name in ("docker", "podman"):
        from ..errors import PolicyError

        cause = f"backend {name} carries runs of the command line: membrane --backend {name} -- COMMAND"
        raise PolicyError("make a sandbox", cause, fix=("use the native backend for this",))
    if name == "landlock":
        from .landlock import Inside

        return Inside(judges)
    return default()


def carried() -> Backend:
    """The native backend in a container that this Membrane started outside of it (``plan.carrier``)."""
    from .native import Carried

    return Carried()
