"""A sandbox inside a container that is not ours: no namespace, no mount; Landlock, a filter, and sockets that we make.

Theory of operation
-------------------
``keeper`` runs below the supervisor.  It computes what the command may see (``grants``), forks the command,
which confines itself and sends its listener here, and serves that (``supervised.Sockets``) until the command has ended.
It speaks with the supervisor as pid 1 of a native sandbox does (``messages.TO_INSIDE``).

No pid namespace ends what the command leaves behind: the keeper does (``ending``), from a Landlock domain of its own,
in which the command's is.  It may be killed itself.  So its parent is ``warden``, in a domain around that, which reads
nothing that comes from inside.  It waits for the end of the supervisor or of the keeper (pidfds), ends everything in
the same way, and removes the sandbox's directories.  When the warden is killed, the keeper does that.  The supervisor
is a subreaper as well: it walks (``end_orphans``) when both are killed.  Who kills all by a name that they share
(``pkill -9 membrane``) kills all three, and a signal for the death of a parent (prctl(2)) reaches the command and
nothing that it has started: so one more process, ``_stay``, has another name and waits in the warden's domain for that.

Landlock has no "except": where something in a tree is hidden or read-only, what is beside it on the way is listed
instead.  What happens by name in a directory that holds such a name the keeper does itself (``supervised_names``).
"""

from __future__ import annotations

import _socket
import _thread
import array
import os
import select
import struct

from ..errors import HostError
from ..plan.model import Bind, Copy, Keep, Mask, Overlay, ReadOnly
from ..plan.mounts import inside
from ..policy.reasons import HIDDEN, READ_ONLY
from . import landlock, pool, seccomp, streams
from . import messages as m
from . import syscalls as sc
from .channel import SIGCHLD, SIGCONT, SIGKILL, Step, default_signals, run_child
from .confine import give_up_privileges
from .ending import below, end_all, is_out_of_reach, remove
from .init import execute, set_limits
from .pool import Shared
from .ready import ready
from .writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from ..plan.model import HeldTree, MountOp
    from .channel import Channel
    from .start import Start
    from .supervised import Sockets
    from .supervised_names import Judge
else:
    import _signal

MOST_LISTED = 200_000  # names that are looked at to leave out those that a rule names
_LONGEST_PATH = 4096  # bytes: linux/limits.h PATH_MAX
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
_TIOCSCTTY, _TIOCSPTLCK, _TIOCGPTN = 0x540E, 0x40045431, 0x80045430


class Inside:
    """What the keeper needs beside the plan: the sandbox's private directory and its sockets.

    ``tcp``: port of the gateway's listener.  ``destinations``: the socket by which it gets them, of connections;
    ``datagrams``: the socket by which datagrams go there and come from there.
    ``exposed``: ports of the command's servers that are reached from outside, the address of loopback that these get,
    and by which the gateway asks for connections to them (None: there is none).
    ``judges``: makes what says which names may be made, given what is held in the writable trees, and the session;
    None: all may.
    """

    __slots__ = ("datagrams", "destinations", "directory", "doors", "exposed", "judges", "tcp")

    def __init__(
        self,
        directory: str,
        tcp: int,
        destinations: _socket.socket,
        datagrams: _socket.socket,
        doors: dict[str, str],
        exposed: tuple[Sequence[int], str, Channel | None],
        judges: Callable[[Sequence[HeldTree], str], Judge] | None = None,
    ) -> None:
        self.directory, self.tcp = directory, tcp
        self.destinations, self.datagrams = destinations, datagrams
        self.doors, self.exposed, self.judges = doors, exposed, judges


def grants(ops: Sequence[MountOp], directory: str) -> Shared:
    """Rules of Landlock for a view: every tree that is bound at its own place, less what is hidden in it.

    Args:
        ops: of the plan and of the workspace's rules.
        directory: the sandbox's own.

    Raises:
        HostError: more names are beside what is hidden than can be listed; the workspace has a link on the way by now,
            which a command of another run may have put there.
    """
    directory = os.path.realpath(directory)
    for op in ops:
        if isinstance(op, Bind) and op.direct and os.path.realpath(op.source) != op.source:
            cause, fix = "a link was put on the way to it meanwhile", "start it again; another command may change it"
            raise HostError("show", cause, target=op.source, fix=(fix,))
    copies = {
        os.path.realpath(op.target): (f"{directory}/copies/{number}", op.writable)
        for number, op in enumerate(op for op in ops if isinstance(op, Copy))
    }
    hidden = {os.path.realpath(op.target) for op in ops if isinstance(op, Mask)} | set(copies)
    frozen = {os.path.realpath(op.target) for op in ops if isinstance(op, ReadOnly)}
    trees: list[tuple[str, bool]] = []
    for op in ops:
        if isinstance(op, Bind):
            trees.append((op.source, op.writable))
        elif isinstance(op, Overlay):
            trees += [(lower, False) for lower in op.lowers]
    writes = [os.path.realpath(tree) for tree, writable in trees if writable]
    # Of two trees the inner one decides: a rule of Landlock for the outer one would open it.
    frozen.update(
        path
        for path in (os.path.realpath(tree) for tree, writable in trees if not writable)
        if any(path != tree and inside(path, tree) for tree in writes)
    )
    out: list[tuple[str, int]] = [(os.path.realpath(f"/dev/{name}"), landlock.DEVICE) for name in _DEVICES]
    out += [("/proc", landlock.READ), (f"{directory}/files", landlock.READ)]
    out += [(f"{directory}/{name}", landlock.WRITE) for name in ("tmp", "home", "logins")]
    walk = _Walk(hidden, frozen)
    for tree, writable in trees:
        walk.add(os.path.realpath(tree), writable=writable)
    denied: dict[str, str] = {path: str(READ_ONLY) for path in frozen}
    denied.update((path, str(HIDDEN)) for path in hidden)
    for op in ops:
        if isinstance(op, (Mask, ReadOnly)):  # the link itself, where the name is one
            above, _, name = op.target.rpartition("/")
            reason = str(HIDDEN if isinstance(op, Mask) else READ_ONLY)
            denied.setdefault(os.path.realpath(above or "/").rstrip("/") + "/" + name, reason)
    emptied = frozenset(os.path.realpath(op.target) for op in ops if isinstance(op, Mask) and op.empty)
    edited = (os.path.realpath(op.file) for op in ops if isinstance(op, Keep))
    editable = frozenset(path for path in edited if denied.get(path) == READ_ONLY)
    return Shared(out + walk.out, walk.shared, denied, emptied, copies, editable, f"{directory}/memory")


def write_copies(ops: Sequence[MountOp], directory: str) -> None:
    """Make the files that are shown instead of others, as ``grants`` numbers them; the command has no rule for them."""
    for number, op in enumerate(op for op in ops if isinstance(op, Copy)):
        fd = os.open(f"{directory}/copies/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, op.content)
        finally:
            os.close(fd)


class _Walk:
    """Trees without what is hidden in them, and read-only where that is."""

    def __init__(self, hidden: set[str], frozen: set[str]) -> None:
        self.out: list[tuple[str, int]] = []
        self.shared: dict[str, bool] = {}  # as of ``Shared``
        self._hidden, self._frozen = hidden, frozen
        self._above = {parent for path in hidden | frozen for parent in _parents(path)}
        self._above_hidden = {parent for path in hidden for parent in _parents(path)}
        self._listed = 0

    def add(self, tree: str, *, writable: bool) -> None:
        waiting = [(tree, writable)]
        while waiting:
            path, writes = waiting.pop()
            if path in self._hidden:
                continue
            writes = writes and path not in self._frozen
            if path not in (self._above if writes else self._above_hidden):
                self.out.append((path, landlock.WRITE if writes else landlock.READ))
                continue
            if writes:
                self.shared[path] = path not in self._above_hidden
            # Names of what is beside it may be listed; a rule holds for all below, so not where a directory is hidden.
            hides = any(parent == path for each in self._hidden if os.path.isdir(each) for parent in _parents(each))
            if path not in self._above_hidden:
                self.out.append((path, landlock.READ))
            elif not hides:
                self.out.append((path, landlock.LIST))
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        self._listed += 1
                        if not entry.is_symlink():  # where it leads is judged there
                            waiting.append((entry.path, writes))
            except OSError:
                continue
            if self._listed > MOST_LISTED:
                raise HostError(
                    "hide names without mounts",
                    f"more than {MOST_LISTED} names lie beside them",
                    target=tree,
                    fix=("name whole directories in ignore", "use the native backend"),
                )


def _parents(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/", *("/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1))]


# ---------------------------------------------------------------- the keeper


def warden(start: Start, channel: Channel, made: Inside, supervisor: int, orders: int) -> NoReturn:
    """Keep the keeper of ``start`` in a domain of ours, and end everything when it or the supervisor has ended, or when
    a byte comes from ``orders``, a pipe: the keeper did not do it.
    """
    os.setsid()
    _signal.set_wakeup_fd(-1)
    above, own = os.pidfd_open(supervisor), os.pidfd_open(os.getpid())
    sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
    apart = _keep_signals(channel, supervisor)
    made_there, makes = os.pipe2(os.O_CLOEXEC)
    me, pid = os.getpid(), os.fork()
    if pid == 0:
        for fd in (above, made_there, orders):
            os.close(fd)
        run_child(lambda: keeper(start, channel, made, me, own, makes), channel)
    beside = os.pidfd_open(pid)
    stays = _stay(own, beside) if apart else 0
    give_up_privileges()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(null, number, inheritable=False)
    first = 3
    for fd in sorted(
        (above, beside, made_there, orders)
    ):  # no socket nor pipe that has an end with the keeper's is held here
        if fd > first:
            sc.close_range(first, fd - 1)
        first = fd + 1
    sc.close_range(first)
    ended, _ = ready((above, beside, orders))
    if beside in ended and os.waitpid(pid, 0)[1] == 0 and stays:  # nothing else is left: no walk has to look for it
        os.kill(stays, SIGKILL)
        os.waitpid(stays, 0)
    os.set_blocking(made_there, False)
    try:
        pool_directory = os.fsdecode(os.read(made_there, _LONGEST_PATH))
    except BlockingIOError:
        pool_directory = ""
    _end([made.directory, *([pool_directory] if pool_directory else [])], apart)


STAYS = b"run-end"  # the name of who stays: no pattern that ends the others by theirs fits


def _stay(warden: int, keeper: int) -> int:
    """Fork who kills all that is in this domain, or in one below, once both pidfds say that their processes have ended;
    its pid.

    Neither reads what comes from inside, nor holds anything of ours but these two.  It needs no walk, so it is made
    only where signals are kept (``_keep_signals``).  The warden's own end takes it with it.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # as ``end_orphans`` knows the keeper by its session
        sc.set_name(STAYS)
        sc.erase_environment(STAYS)
        give_up_privileges()
        low, high = sorted((warden, keeper))
        for first, last in ((0, low - 1), (low + 1, high - 1), (high + 1, 0xFFFFFFFF)):
            if first <= last:
                sc.close_range(first, last)
        for ended in (warden, keeper):
            ready((ended,))
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        pass  # the keeper has ended all of it
    finally:
        os._exit(0)


def keeper(start: Start, channel: Channel, made: Inside, warden: int, parent: int, makes: int) -> NoReturn:
    """Keep the command of ``start``: wait for what is known late, run it, and end everything with it.

    Args:
        warden: its pid, and ``parent`` a pidfd of it.
        makes: a pipe, which takes the path of the directory that is made outside of ``made.directory``.
    """
    sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(SIGCHLD, lambda _number, _frame: None)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    fill = channel.receive()
    if not isinstance(fill, m.Fill):
        _end([made.directory], False)
    with Step(channel, "bind a file rule"):
        write_copies(fill.late.ops, made.directory)
        granted = grants((*start.plan.mounts, *fill.late.ops), made.directory)
        prepared = pool.make(granted, made.directory) if granted.shared else None
    rules, own = granted.rules, [made.directory, *([prepared.directory] if prepared else [])]
    os.write(makes, os.fsencode(prepared.directory) if prepared else b"")
    os.close(makes)
    start = start.replace(plan=start.plan.replace(environment=fill.late.environment))
    slave = _terminal(channel) if any(start.terminal) else -1
    if slave >= 0:  # and no other one: those beside it are terminals of the same user outside
        rules.append((os.readlink(f"/proc/self/fd/{slave}"), landlock.DEVICE))
    failed_exec, exec_status = os.pipe()
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    apart = _keep_signals(channel, warden)
    pid = os.fork()
    if pid == 0:
        os.close(failed_exec)
        run_child(lambda: _command(start, channel, theirs, granted, slave, exec_status), channel)
    os.close(exec_status)
    theirs.close()
    if slave >= 0:
        os.close(slave)
    give_up_privileges()  # with the command's rights, and no more, it does what that asks for
    listener = _take(ours)
    epoll = select.epoll()
    for fd in (parent, wake_read, failed_exec):
        epoll.register(fd, select.EPOLLIN | select.EPOLLHUP)
    sockets: Sockets | None = None
    if listener >= 0:
        from .supervised import Sockets
        from .supervised_servers import Servers

        sc.open_files(1 << 20)
        ports, address, asked = made.exposed
        sockets = Sockets(
            listener,
            epoll,
            tcp=made.tcp,
            destinations=made.destinations,
            datagrams=made.datagrams,
            udp_ports=start.plan.network.udp_ports,
            doors=made.doors,
            processes=lambda: below(os.getpid()),
            servers=Servers(ports, address),
            asked=asked,
            granted=granted,
            pool=prepared,
            judge=None if made.judges is None else made.judges(fill.late.trees, start.session),
            report=_Report(channel),
            empty=f"{made.directory}/none",
        )
    while True:
        for fd, events in epoll.poll():
            if sockets is not None and fd in sockets.on:
                if fd == listener and not events & select.EPOLLIN:
                    epoll.unregister(fd)  # no process has the filter any more
                else:
                    sockets.on[fd](events)
            elif fd == parent:
                _end(own, apart)
            elif fd == failed_exec:  # until now the channel was the command's own
                epoll.unregister(failed_exec)
                os.close(failed_exec)
                null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
                for number in (0, 1, 2):
                    os.dup2(null, number, inheritable=False)
                os.close(null)
                epoll.register(channel.fileno(), select.EPOLLIN | select.EPOLLHUP)
            elif fd == wake_read:
                os.read(wake_read, 512)
                status = _reap(pid)
                if status is not None:
                    try:
                        channel.send(m.CommandExited(status))
                    except OSError:
                        pass  # the supervisor has ended as well
                    _end(own, apart)
            elif fd == channel.fileno():
                message = channel.receive()
                if isinstance(message, m.SendSignal):
                    _to_group(pid, message.number)
                elif isinstance(message, m.Resume):
                    _to_group(pid, SIGCONT)
                else:
                    _end(own, apart)


MOST_REPORTED = 1024  # names that were refused


class _Report:
    """Tells the supervisor of each name that was refused once, so that a loop inside fills nothing outside."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told: set[tuple[str, str, str]] = set()

    def __call__(self, path: str, reason: str, operation: str = "write", hint: str = "") -> None:
        if len(self._told) >= MOST_REPORTED or (path, operation, hint) in self._told:
            return
        self._told.add((path, operation, hint))
        try:
            self._channel.send(m.NameRefused(path, str(reason), operation, hint))
        except OSError:
            pass  # the supervisor has ended, and we are about to


def _end(directories: Sequence[str], apart: bool) -> NoReturn:
    """End the descendants, then remove the sandbox's directories: a supervisor that was killed does not.

    The exit status is 0 when no process is left, and 1 else.
    """
    if not end_all(apart):
        os._exit(1)
    for directory in directories:
        remove(directory)
    os._exit(0)


def _keep_signals(channel: Channel, outside: int) -> bool:
    """Begin a domain; true: signals of this process reach what it will start and nothing else, not ``outside``."""
    sc.no_new_privs()
    with Step(channel, "keep signals to what is started here"):
        return landlock.restrict_scopes(signals_only=True) > 0 and is_out_of_reach(outside)


def _to_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def _reap(command: int) -> int | None:
    """Reap the processes that have ended; the status of the command when it has."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        if pid == command:
            found = status


def _take(channel: _socket.socket) -> int:
    """The listener that the command sends; -1: it failed before, which it has reported."""
    _data, ancillary, _flags, _address = channel.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
    channel.close()
    for _level, _kind, value in ancillary:
        return int(struct.unpack("i", value[:4])[0])
    return -1


def _terminal(channel: Channel) -> int:
    """A terminal for the command alone; its master goes to the supervisor."""
    import fcntl

    with Step(channel, "make a terminal"):
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        number = struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, b"\0" * 4))[0]
        slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        channel.send(m.TerminalMade(master))
        os.close(master)
    return slave


def _command(
    start: Start,
    channel: Channel,
    keeper_end: _socket.socket,
    granted: Shared,
    slave: int,
    exec_status: int,
) -> None:
    sc.set_parent_death_signal(SIGKILL)
    default_signals()
    os.setsid()
    if slave >= 0:
        import fcntl

        fcntl.ioctl(slave, _TIOCSCTTY, 0)
        for fd, own in enumerate(start.terminal):
            if own:
                os.dup2(slave, fd)
    plan = start.plan
    with Step(channel, "take standard input and output"):
        streams.refuse_sockets(connects=False)
    with Step(channel, "enter the workspace"):
        os.chdir(plan.cwd)
    with Step(channel, "close descriptors"):
        keep = sorted((channel.fileno(), keeper_end.fileno(), exec_status))
        first = 3
        for fd in keep:
            if fd > first:
                sc.close_range(first, fd - 1)
            first = fd + 1
        sc.close_range(first)
    with Step(channel, "set resource limits"):
        set_limits(plan.hardening.limits)
    sc.no_new_privs()
    with Step(channel, "apply Landlock"):
        landlock.confine(granted.rules)
        _try_network()
    with Step(channel, "install the seccomp filter"):
        hand_over = _handing_over(keeper_end)
        refusing = seccomp.program(ids=(plan.uid, plan.gid, 1), listens=True, machine=sc.MACHINE)
        asking = seccomp.supervised_program(sc.MACHINE, granted.asks, datagrams=bool(plan.network.udp_ports))
        listener = sc.seccomp_listen(asking)
        sc.seccomp_set_filter(seccomp.unwatched_program(sc.MACHINE))
        sc.seccomp_set_filter(refusing)
    with Step(channel, "drop capabilities"):
        sc.drop_capabilities()
    hand_over(listener)
    keeper_end.close()
    os.close(listener)
    channel.send(m.Ready(0, None))
    if not isinstance(channel.receive(), m.Go):
        os._exit(1)
    environment = dict(plan.environment)
    environment["MEMBRANE_SESSION"] = start.session
    os.umask(start.umask)
    execute(start.argv, environment, exec_status)


def _handing_over(keeper_end: _socket.socket) -> Callable[[int], None]:
    """A thread from before the filter, which sends its listener: the filter may ask that listener about sendmsg(2)."""
    given, sent = _thread.allocate_lock(), _thread.allocate_lock()
    listeners = array.array("i")

    def send() -> None:
        with given:
            try:
                keeper_end.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listeners)])
            finally:
                sent.release()

    def hand_over(listener: int) -> None:
        listeners.append(listener)
        given.release()
        sent.acquire()

    given.acquire()
    sent.acquire()
    _thread.start_new_thread(send, ())
    return hand_over


def _try_network() -> None:
    """The barrier behind the sockets is in force: neither connect(2) nor bind(2) of TCP is this process's own.

    Raises:
        HostError: one of them is.
    """
    for call, target in (("connect", ("127.0.0.1", 9)), ("bind", ("127.0.0.1", 0))):
        with_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            getattr(with_socket, call)(target)
        except PermissionError:
            continue
        except OSError:
            pass
        finally:
            with_socket.close()
        raise HostError("apply Landlock", f"{call} of TCP is not refused", fix=("membrane doctor",))
