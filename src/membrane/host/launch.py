"""The supervisor's side of a launch: fork the launcher, send it what to make, receive what it made.

Theory of operation
-------------------
A launch begins before the policy is loaded: ``Launch`` forks at once, and while the supervisor reads policy and
machine the launcher loads its own modules and makes the outer namespaces (``host.launcher``).  ``begin`` then sends
it the plan.  A supervisor that gets no plan gives the launch up; its end alone ends the launcher as well.  So
this module imports what both of them need, and no more.
"""

from __future__ import annotations

import errno
import os

from ..errors import HostError, InternalError
from ..messages import Failure
from ..plan.model import Overlay
from . import messages as m
from .channel import (
    HELD_DURING_FORK,
    OVERLAY,
    PROC,
    SIGKILL,
    TREE,
    USER_NAMESPACE,
    failure,
    named_pair,
    pair,
    run_child,
)
from .inherited import ensure_streams
from .ready import ready
from .start import Late, operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
    from typing import NoReturn, Self

    from ..messages import Message
    from ..plan.model import MountOp, SandboxPlan
    from .channel import Channel
    from .start import Start
else:
    import _signal

DEATH = 120.0  # seconds for the kernel to end every process of the sandbox, on a busy machine
SPAWN = 60.0  # seconds for the spawner to enter the namespaces, on a busy machine


class Launch:
    """The supervisor's view of one launch; the methods are called in the order in which they stand.

    An exception that leaves ``with Launch() as launch:`` gives it up.

    Raises:
        OSError: there is no memory, process or descriptor left for it.
    """

    def __init__(self) -> None:
        """Fork the launcher."""
        ensure_streams()  # before anything is opened: it would take the number of a closed stream
        self.launcher, launcher_end = pair(m.TO_LAUNCHER, m.FROM_LAUNCHER)
        self.init, init_end = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        self.plan: SandboxPlan
        self.command_pid = 0
        self.init_pidfd = -1
        self.masks_pending = 0  # requests without their answer
        self.terminal = -1  # pty master
        self.listener = -1  # of the command's notifications
        self.listener_error = 0  # why there is none
        self._empty_files: list[str] = []
        self.reads: tuple[int, dict[int, str]] | None = None  # what reports first reads, and of what by watch
        self.kept: dict[str, int] = {}  # directories below covers, by what they are for (``Keep``)
        supervisor = os.getpid()
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, HELD_DURING_FORK)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                run_child(lambda: _launch(launcher_end, init_end, supervisor), launcher_end)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        launcher_end.close()
        init_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is not None:
            self.give_up()

    def begin(self, start: Start) -> None:
        """Send the launcher what it is to make.

        Raises:
            HostError: it has ended.
        """
        self.plan = start.plan
        try:
            # Without the bindings of the plan: nothing is made of them.
            self.launcher.send(m.Begin(start.replace(plan=start.plan.replace(bindings=()))))
        except ConnectionError:
            self._raise_early_end()

    def give_up(self) -> None:
        """End a launcher that is not needed, and wait for it."""
        self.kill()
        self.reap()
        self.launcher.close()
        self.init.close()

    def grant(self) -> None:
        """For root callers: write the id maps of the outer namespace and pass the trees in.

        Raises:
            HostError: the kernel refuses idmapped mounts of a tree, or a tree of the plan does not exist.
        """
        base = self.plan.base_kuid
        if not base:
            if self.plan.hardening.nested or self.plan.mapped:
                self._map_subordinate()
            return
        self._receive(self.launcher, m.UserNamespaceMade)
        from . import trees

        try:
            userns = trees.map_range(self.pid, base)
        except OSError as error:
            raise HostError("map the private kuid range", error.strerror or "", target=str(base)) from None
        try:
            trees.pass_in(self.launcher, self.plan, userns)
        except OSError as error:
            step = getattr(error, "step", TREE)
            raise self._error(failure(step, error)) from None

    def _map_subordinate(self) -> None:
        """For plain callers of containers or of a layer over an image: have the id maps of the outer namespace written,
        with subordinate ids."""
        self._receive(self.launcher, m.UserNamespaceMade)
        from .containers import outer_maps
        from .subordinate import write_maps

        write_maps(self.pid, outer_maps(self.plan.uid, self.plan.gid, self.plan))
        try:
            self.launcher.send(m.MapsWritten())
        except ConnectionError:
            self._raise_early_end()

    def send_late(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        """Pass what is known only now: operations inside the workspace, late files, the command's environment."""
        self._empty_files = [op.target for op in ops if operation(op)[0] == "EmptyFile"]
        try:
            self.init.send(m.Fill(Late(tuple(ops), tuple(environment))))
        except ConnectionError:
            self._raise_early_end()

    def network_sockets(self) -> tuple[str, list[tuple[str, int]]]:
        """The capture mode that the kernel offered, and the sockets as (role, descriptor)."""
        sockets: list[tuple[str, int]] = []
        mode = ""
        while True:
            message = self._receive(self.launcher, m.NetworkSockets, m.InitStarted)
            if isinstance(message, m.InitStarted):
                self.init_pidfd = message.pidfd
                return mode, sockets
            assert isinstance(message, m.NetworkSockets)
            mode = message.mode
            sockets += zip(message.roles, message.sockets, strict=True)

    def listening_sockets(self, count: int) -> list[int]:
        """The unix sockets that listen in the view, in the order of the plan's operations."""
        out: list[int] = []
        while len(out) < count:
            message = self._receive(self.init, m.Listening)
            assert isinstance(message, m.Listening)
            out.append(message.socket)
        return out

    def wait_ready(self) -> None:
        """Wait until the command process has confined itself and waits for the word.

        Raises:
            HostError: a step failed in a child.
        """
        while True:
            message = self._receive(self.init, m.Ready, m.TerminalMade, m.DirectoryKept, m.ReadsWatched)
            if isinstance(message, m.TerminalMade):
                self.terminal = message.master
            elif isinstance(message, m.DirectoryKept):
                self.kept[message.file] = message.directory
            elif isinstance(message, m.ReadsWatched):
                watched = zip(message.watches, message.files, strict=True)
                self.reads = message.inotify, {watch: self._empty_files[number] for watch, number in watched}
            else:
                assert isinstance(message, m.Ready)
                self.command_pid = self.init.sender
                self.listener = -1 if message.listener is None else message.listener
                self.listener_error = message.errno
                return

    def wait_masks(self) -> None:
        """Wait for the masks that were asked for so far.

        Raises:
            HostError: one could not be mounted.
        """
        while self.masks_pending:
            message = self._receive(self.launcher, m.NamesHidden, m.FileFrozen)
            if isinstance(message, m.NamesHidden):
                self.masks_pending -= 1
                if message.status:  # it was killed, or has reported why
                    raise HostError("mask a name that appeared", f"its process ended with status {message.status}")

    def init_pid(self) -> int:
        """Pid 1 of the sandbox, as this pid namespace numbers it (proc_pid_fdinfo(5)); -1: it was reaped."""
        with open(f"/proc/self/fdinfo/{self.init_pidfd}", encoding="ascii") as fields:
            return next(int(line.split()[1]) for line in fields if line.startswith("Pid:"))

    def _receive(self, channel: Channel, *wanted: type[Message]) -> Message:
        """The next message, which is one of ``wanted``."""
        message = channel.receive()
        if isinstance(message, Failure):
            raise self._error(message)
        if message is None:
            self._raise_early_end()
        if type(message) not in wanted:
            raise InternalError("launch", f"unexpected message {type(message).__name__}")
        return message

    def _raise_early_end(self) -> NoReturn:
        # The reason may wait on the other channel.
        for channel in (self.launcher, self.init):
            channel.setblocking(False)
            try:
                while (message := channel.receive()) is not None:
                    if isinstance(message, Failure):
                        raise self._error(message)
            except BlockingIOError:
                pass
        raise HostError("start the sandbox", "the launcher ended before the command was ready")

    def _error(self, failed: Failure) -> HostError:
        overlays = [op for op in self.plan.mounts if isinstance(op, Overlay)] if failed.step == OVERLAY else []
        if not overlays:
            return _host_error(failed)
        from .overlay import why

        said = f"{errno.errorcode.get(failed.errno, failed.errno)}: {failed.cause}"
        op = next((each for each in overlays if failed.target in (each.target, *each.lowers)), overlays[0])
        return why(said, failed.errno, op.target, op.layer, system=op.system)

    def kill(self) -> None:
        """End everything: the launcher's death kills pid 1, and that kills its pid namespace."""
        try:
            os.kill(self.pid, SIGKILL)  # our child and not reaped: the pid is still its own
        except ProcessLookupError:
            pass

    def reap(self) -> None:
        """Wait for the launcher, then until no process of the sandbox is left."""
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass
        if self.init_pidfd >= 0:
            ready((self.init_pidfd,), seconds=DEATH)
            os.close(self.init_pidfd)
            self.init_pidfd = -1

    def mask(self, ops: Sequence[MountOp]) -> None:
        """Ask for masks over names that appeared; ``NamesHidden`` answers."""
        try:
            self.launcher.send(m.HideNames(Late(tuple(ops))))
            self.masks_pending += 1
        except ConnectionError:
            pass  # the sandbox is gone

    def freeze(self, directory: int, name: str) -> bool:
        """Ask that a file in a directory of ``kept`` becomes read-only in the sandbox; ``FileFrozen`` answers, after
        the answers to the masks that were asked for before.  False: the sandbox is gone.
        """
        try:
            self.launcher.send(m.FreezeFile(name, directory))
        except OSError:
            return False
        return True


class Spawner:
    """The supervisor's view of the process that forks the commands (``host.spawner``).

    Args:
        launch: whose view is ready.

    Raises:
        HostError: it cannot enter the namespaces.
    """

    def __init__(self, launch: Launch) -> None:
        self.channel, theirs = named_pair(m.TO_SPAWNER, m.FROM_SPAWNER)
        try:
            launch.launcher.send(m.StartSpawner(theirs.fileno()))
        except ConnectionError:
            pass  # reported below
        finally:
            theirs.close()
        message = self.channel.receive() if ready((self.channel.fileno(),), seconds=SPAWN)[0] else None
        if not isinstance(message, m.Ready):
            cause = f"{message.step}: {message.cause}" if isinstance(message, Failure) else "it ended early"
            raise HostError("start the process that runs the commands", cause, fix=("membrane doctor",))
        self.pid = self.channel.sender
        self.listener = -1 if message.listener is None else message.listener
        self.listener_error = message.errno

    def fork(self, terminal: tuple[int, ...] = ()) -> Channel:
        """Fork a command that confines itself and waits for its job; the channel on which it and its keeper report.

        Args:
            terminal: the streams, by number, that become a terminal of the sandbox, which comes first.

        Raises:
            HostError: the spawner has ended.
        """
        ours, theirs = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        try:
            self.channel.send(m.ForkCommand(theirs.fileno(), terminal))
        except OSError as error:
            ours.close()
            raise HostError("start a command", error.strerror or "the spawner has ended") from None
        finally:
            theirs.close()
        return ours


def _launch(channel: Channel, init_channel: Channel, supervisor: int) -> None:
    os.setsid()  # first: signals of the caller's terminal go to the supervisor, which decides what to forward
    from .launcher import launcher  # here: beside the supervisor, which does not need it

    launcher(channel, init_channel, supervisor)


def _host_error(failed: Failure) -> HostError:
    """What a failure means for the caller, and what to do about it."""
    number, step, cause, target = failed.errno, failed.step, failed.cause, failed.target
    name = errno.errorcode.get(number, "")
    fix: tuple[str, ...] = ()
    from .surroundings import another, confined

    if another() is not None:  # whatever else is in the way as well
        seen, advice = confined()
        cause, fix = f"{cause} ({seen})", (advice,)
    elif step == USER_NAMESPACE:
        from .facts import CAP_SETFCAP, effective_capabilities

        if number in (errno.EPERM, errno.EACCES):
            restricted = _setting("kernel/apparmor_restrict_unprivileged_userns")
            if restricted == "1":
                cause += " (kernel.apparmor_restrict_unprivileged_userns = 1)"
                fix = ("sudo membrane setup userns",)
            elif _setting("kernel/unprivileged_userns_clone") == "0":
                cause += " (kernel.unprivileged_userns_clone = 0)"
                fix = ("sudo sysctl kernel.unprivileged_userns_clone=1",)
            elif os.geteuid() == 0 and not effective_capabilities() >> CAP_SETFCAP & 1:
                cause += " (this root lacks CAP_SETFCAP, without which it may not map uid 0)"
                fix = ("run membrane as an ordinary user", "in a container, keep the capability SETFCAP")
            else:
                seen, advice = confined()
                cause, fix = (f"{cause} ({seen})", (advice,)) if seen else (cause, ())
        elif number in (errno.ENOSPC, errno.EUSERS):
            cause += f" (user.max_user_namespaces = {_setting('user/max_user_namespaces') or 'unknown'})"
            fix = ("sudo sysctl user.max_user_namespaces=63000",)
    elif number == errno.ELOOP:  # where the plan has a place: in a kept home, or a layer over system trees
        fix = ("membrane --reset=d   # asks before it removes what earlier commands have left there",)
    elif number == errno.ESTALE:  # ``clones``
        fix = ("start it again; what another command may write there can change it",)
    elif step == PROC:
        fix = (
            "in a container, uncover /proc (--security-opt systempaths=unconfined): membrane setup container docker",
        )
    elif step == TREE and number in (errno.EINVAL, errno.EPERM):
        fix = (
            "run membrane as an ordinary user",
            "as root, use a workspace on a filesystem with idmapped mounts (ext4, xfs, btrfs; tmpfs on Linux 6.3+)",
        )
    shown = f"{name}: {cause}" if name and not cause.startswith(name) else cause
    return HostError(step, shown, target=target, fix=(*fix, "membrane doctor"))


def _setting(name: str) -> str:
    try:
        fd = os.open("/proc/sys/" + name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
