"""What the supervisor, the launcher, pid 1, the spawner, keepers, commands and the gateway say to each other.

Theory of operation
-------------------
The supervisor trusts none of them: launcher, spawner, pid 1 and keepers are ours, but pid 1, a keeper and a command
that waits live where the command will, so what they send is bounded by a datagram and holds no record.  They trust
the supervisor, which made them: what it sends may be long (``channel``) and hold records.

One table for each direction.  A command that waits has the channel of what keeps it: pid 1, or its keeper.  What is
not expected at its time ends the one that got it, and with that the sandbox.
"""

from __future__ import annotations

from ..messages import Failure, Message, Table
from .start import JOB, LATE, START

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Fd, Fds
    from .start import Job, Late, Start

LONGEST = 1 << 30  # bytes of a message from the supervisor


# ---------------------------------------------------------------- to the launcher


class Begin(Message):
    """What to make."""

    start: Start


class MapsWritten(Message):
    """Of a root caller: the id maps of the outer user namespace stand, and every tree was sent (``Trees``)."""


class Trees(Message):
    """Of a root caller: clones of trees, by ``clones.tree_key``."""

    keys: tuple[int, ...]
    trees: Fds

    def __post_init__(self) -> None:
        self.match(self.keys, self.trees)


class HideNames(Message):
    """Mount masks, and read-only names, over what appeared."""

    late: Late


class FreezeFile(Message):
    """Make a file read-only inside; ``name``: in ``directory``, which pid 1 kept (``DirectoryKept``)."""

    name: str
    directory: Fd


class StartSpawner(Message):
    """Fork the spawner; ``channel``: its end."""

    channel: Fd


# ---------------------------------------------------------------- from the launcher


class UserNamespaceMade(Message):
    """Of a root caller: the outer user namespace waits for its id maps."""


class NetworkSockets(Message):
    """Sockets of the sandbox's network by their roles (``gateway.server``); ``mode``: how traffic is captured."""

    mode: str
    roles: tuple[str, ...]
    sockets: Fds

    def __post_init__(self) -> None:
        self.match(self.roles, self.sockets)


class InitStarted(Message):
    """The network is set up, and pid 1 was made."""

    pidfd: Fd


class NamesHidden(Message):
    """One ``HideNames`` is done; ``status``: 0, or how the process ended that could not (and perhaps sent why)."""

    status: int


class FileFrozen(Message):
    """One ``FreezeFile`` is done; ``errno``: 0, or why the file is as it was."""

    errno: int


# ---------------------------------------------------------------- from pid 1 to the launcher


class NetworkMade(Message):
    """The command's own network namespace (``host.containers``)."""

    namespace: Fd


# ---------------------------------------------------------------- to pid 1, to a keeper and to a command that waits


class Fill(Message):
    """What the view still lacks, and the environment of the one command."""

    late: Late


class Go(Message):
    """Call execve(2)."""


class RunJob(Message):
    """Call execve(2) with this, for one of many commands."""

    job: Job
    stdin: Fd
    stdout: Fd
    stderr: Fd


class SendSignal(Message):
    """Signal the command's process group; SIGSTOP stops the whole sandbox."""

    number: int


class Resume(Message):
    """Let the command go on after ``JobStopped``, in the foreground."""


# ---------------------------------------------------------------- from pid 1, a keeper or a command that waits


class Listening(Message):
    """A unix socket of the plan listens in the view; in the plan's order."""

    socket: Fd


class DirectoryKept(Message):
    """A directory below a cover, for the file that it is kept for (``plan.model.Keep``)."""

    file: str
    directory: Fd


class ReadsWatched(Message):
    """What reports first reads of hidden files (inotify(7)), with the number of the file for each watch."""

    watches: tuple[int, ...]
    files: tuple[int, ...]
    inotify: Fd

    def __post_init__(self) -> None:
        self.match(self.watches, self.files)


class TerminalMade(Message):
    """The sandbox has a terminal (pty(7))."""

    master: Fd


class Ready(Message):
    """The sender has confined itself and waits.

    ``listener``: of the notifications of its filter (seccomp_unotify(2)); None: there is none, and ``errno`` is why,
    or 0 where none was asked for.
    """

    errno: int
    listener: Fd | None


class NameRefused(Message):
    """What the command asked for was refused by its keeper; ``reason``: of the policy.

    ``path``: absolute; of a unix socket also an abstract name, with a leading ``@``.  ``operation``: read or write.
    ``hint``: what else is to be said of it.
    """

    path: str
    reason: str
    operation: str
    hint: str


class JobStopped(Message):
    """The command was stopped from its terminal, and everything in the sandbox with it."""


class CommandExited(Message):
    """``status``: as wait(2) reports it."""

    status: int


# ---------------------------------------------------------------- to the spawner


class ForkCommand(Message):
    """``channel``: of its keeper; ``terminal``: the streams, by number, that become a terminal of the sandbox."""

    channel: Fd
    terminal: tuple[int, ...]


# ---------------------------------------------------------------- between the gateway and the launcher


class MakeSocket(Message):
    """Make a TCP socket in the sandbox's network namespace; ``family``: as socket(2) takes it."""

    family: int


class DialServer(Message):
    """Connect a TCP socket to a server of the command, at this port of its loopback."""

    port: int


class SocketMade(Message):
    """The answers come in the order of the questions; None: there is none of this family, or no server.

    One that was asked for by ``DialServer`` may still be connecting.
    """

    socket: Fd | None


class FindSender(Message):
    """Which socket sent what came from ``client`` to ``server``?  ``protocol``: its number in IP."""

    number: int
    protocol: int
    client: str
    client_port: int
    server: str
    server_port: int


class SenderFound(Message):
    """The answer to the ``FindSender`` of that number: the socket's own port, and its inode; 0: not known."""

    number: int
    port: int
    inode: int


_RECORDS = {"Start": START, "Late": LATE, "Job": JOB}
TO_LAUNCHER = Table(
    "from the supervisor to the launcher",
    *(Begin, MapsWritten, Trees, HideNames, FreezeFile, StartSpawner),
    longest=LONGEST,
    **_RECORDS,
)
FROM_LAUNCHER = Table(
    "from the launcher to the supervisor",
    *(UserNamespaceMade, NetworkSockets, InitStarted, NamesHidden, FileFrozen, Failure),
)
TO_INSIDE = Table(
    "from the supervisor to pid 1 or a keeper",
    *(Fill, Go, RunJob, SendSignal, Resume),
    longest=LONGEST,
    **_RECORDS,
)
FROM_INSIDE = Table(
    "from pid 1 or a keeper to the supervisor",
    *(Listening, DirectoryKept, ReadsWatched, TerminalMade, Ready, JobStopped, CommandExited, Failure),
    NameRefused,
)
TO_FACTORY = Table("from the gateway to the launcher", MakeSocket)
TO_SERVERS = Table("from the gateway to the keeper", DialServer)
FROM_FACTORY = Table("from the launcher or the keeper to the gateway", SocketMade)
TO_SENDERS = Table("from the gateway to the launcher", FindSender)
FROM_SENDERS = Table("from the launcher to the gateway", SenderFound)
FROM_CONTAINERS = Table("from pid 1 to the launcher", NetworkMade)
TO_CONTAINERS = Table("from the launcher to pid 1")
TO_SPAWNER = Table("from the supervisor to the spawner", ForkCommand)
FROM_SPAWNER = Table("from the spawner to the supervisor", Ready, Failure)
