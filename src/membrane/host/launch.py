"""The supervisor's side of a launch: fork the launcher, tell it what to make, hear what it made.

Theory of operation
-------------------
A launch begins before the policy is loaded: ``Launch`` forks at once, and while the supervisor reads policy and
machine the launcher loads its own modules and makes the outer namespaces (``host.launcher``, which lists the
messages).  ``begin`` then tells it the plan.  A supervisor that gets no plan gives the launch up; its end alone ends
the launcher as well.  So this module imports what both of them need, and no more.
"""

from __future__ import annotations

import _socket
import errno
import marshal
import os
import select

from ..errors import HostError, InternalError
from ..plan.model import Copy, File, Keep, Mask, Overlay, Seed
from .channel import (
    HELD_DURING_FORK,
    MESSAGE,
    OVERLAY,
    SIGKILL,
    pair,
    receive,
    receive_with_sender,
    run_child,
    send,
    send_data,
)
from .start import dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
    from typing import NoReturn, Self

    from ..plan.model import MountOp, SandboxPlan
    from .start import Start
else:
    import _signal


class Launch:
    """The supervisor's view of one launch; the methods are called in the order in which they stand.

    An exception that leaves ``with Launch() as launch:`` gives it up.

    Raises:
        OSError: there is no memory, process or descriptor left for it.
    """

    def __init__(self) -> None:
        """Fork the launcher."""
        ensure_streams()  # before anything is opened: it would take the number of a closed stream
        self.launcher, launcher_end = pair()
        self.init, init_end = pair()
        self.init.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        self.plan: SandboxPlan
        self.command_pid = 0
        self.init_pidfd = -1
        self.masks_pending = 0  # requests without their answer
        self.terminal = -1  # pty master
        self.listener = -1  # of the command's notifications
        self.listener_error = 0  # why there is none
        self._empty_files: list[str] = []
        self.reads: tuple[int, dict[int, str]] | None = None  # what tells first reads, and of what by watch
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
        """Tell the launcher what it is to make.

        Raises:
            HostError: it has ended.
        """
        self.plan = start.plan
        try:
            send_data(self.launcher, b"B", dump(start))
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
            return
        self._expect(self.launcher, b"U")
        from . import trees

        try:
            userns = trees.map_range(self.pid, base)
        except OSError as error:
            raise HostError("map the private kuid range", error.strerror or "", target=str(base)) from None
        try:
            trees.pass_in(self.launcher, self.plan, userns)
        except OSError as error:
            step = getattr(error, "step", "show a tree in the sandbox")
            raise self._error(error.errno or 0, step, error.strerror or "", str(error.filename or "")) from None

    def send_late(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        """Pass what is known only now: operations inside the workspace, late files, the command's environment."""
        rows = [_row(op) for op in ops]
        self._empty_files = [row[1] for row in rows if row[0] == "EmptyFile"]
        try:
            send_data(self.init, b"W", marshal.dumps((rows, tuple(environment))))
        except ConnectionError:
            self._raise_early_end()

    def network_sockets(self) -> tuple[str, list[tuple[str, int]]]:
        """The capture mode that the kernel offered, and the sockets as (role, descriptor)."""
        sockets: list[tuple[str, int]] = []
        mode = ""
        while True:
            kind, payload, fds = self._receive(self.launcher)
            if kind == b"P":
                self.init_pidfd = fds[0]
                return mode, sockets
            if kind != b"N":
                raise InternalError("launch", f"unexpected message {kind!r}")
            words = payload.decode().split()
            mode = words[0]
            sockets += zip(words[1:], fds, strict=True)

    def listening_sockets(self, count: int) -> list[int]:
        """The unix sockets that listen in the view, in the order of the plan's operations."""
        out: list[int] = []
        while len(out) < count:
            kind, _payload, fds = self._receive(self.init)
            if kind != b"L":
                raise InternalError("launch", f"expected message b'L', got {kind!r}")
            out += fds
        return out

    def wait_ready(self) -> None:
        """Wait until the command process has confined itself and waits for the word.

        Raises:
            HostError: a step failed in a child.
        """
        while True:
            kind, payload, fds, sender = receive_with_sender(self.init)
            if kind == b"R":
                self.command_pid = sender
                self.listener = fds[0] if fds else -1
                self.listener_error = int(payload)
                return
            if kind == b"T":
                self.terminal = fds[0]
                continue
            if kind == b"O":
                if fds:  # else no descriptor was left for it
                    self.kept[os.fsdecode(payload)] = fds[0]
                continue
            if kind == b"I":
                if fds:  # as above
                    told = marshal.loads(payload)  # noqa: S302 - from our own pid 1
                    self.reads = fds[0], {watch: self._empty_files[number] for watch, number in told.items()}
                continue
            if kind == b"E":
                raise self._failed(payload)
            if kind == b"":
                self._raise_early_end()
            raise InternalError("launch", f"unexpected message {kind!r}")

    def wait_masks(self) -> None:
        """Wait for the masks that were asked for so far."""
        while self.masks_pending:
            kind, _payload, _fds = self._receive(self.launcher)
            if kind == b"k":
                self.masks_pending -= 1

    def init_pid(self) -> int:
        """Pid 1 of the sandbox, as this pid namespace numbers it (proc_pid_fdinfo(5)); -1: it was reaped."""
        with open(f"/proc/self/fdinfo/{self.init_pidfd}", encoding="ascii") as fields:
            return next(int(line.split()[1]) for line in fields if line.startswith("Pid:"))

    def release(self) -> None:
        """Let the command call execve(2)."""
        send(self.init, b"G")

    def _expect(self, channel: _socket.socket, wanted: bytes) -> None:
        kind, _payload, _fds = self._receive(channel)
        if kind != wanted:
            raise InternalError("launch", f"expected message {wanted!r}, got {kind!r}")

    def _receive(self, channel: _socket.socket) -> tuple[bytes, bytes, list[int]]:
        try:
            kind, payload, fds = receive(channel)
        except ConnectionError:
            kind, payload, fds = b"", b"", []
        if kind == b"E":
            raise self._failed(payload)
        if kind == b"":
            self._raise_early_end()
        return kind, payload, fds

    def _raise_early_end(self) -> NoReturn:
        # The reason may wait on the other channel; and behind a reset, which is told once (``channel.receive``).
        for channel in (self.launcher, self.launcher, self.init, self.init):
            try:
                while True:
                    data = channel.recv(MESSAGE, _socket.MSG_DONTWAIT)
                    if not data:
                        break
                    if data[:1] == b"E":
                        raise self._failed(data[1:])
            except BlockingIOError:
                pass
            except ConnectionError:
                pass
        raise HostError("start the sandbox", "the launcher ended before the command was ready")

    def _failed(self, payload: bytes) -> HostError:
        number, step, cause, target = payload.decode("utf-8", "surrogateescape").split("\0", 3)
        return self._error(int(number), step, cause, target)

    def _error(self, number: int, step: str, cause: str, target: str) -> HostError:
        overlays = [op for op in self.plan.mounts if isinstance(op, Overlay)] if step == OVERLAY else []
        if overlays:
            from .overlay import why

            said = f"{errno.errorcode.get(number, number)}: {cause}"
            op = next((each for each in overlays if target in (each.target, *each.lowers)), overlays[0])
            return why(said, number, op.target, op.layer)
        return _host_error(number, step, cause, target)

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
            select.select([self.init_pidfd], [], [], 10)
            os.close(self.init_pidfd)
            self.init_pidfd = -1

    def mask(self, ops: Sequence[MountOp]) -> None:
        """Ask for masks over names that appeared; the answer is a ``k`` message on the launcher channel."""
        rows = [_row(op) for op in ops]
        data = marshal.dumps(rows)
        if len(data) > MESSAGE - 1 and len(rows) > 1:
            half = len(rows) // 2
            self.mask(ops[:half])
            self.mask(ops[half:])
            return
        try:
            send(self.launcher, b"K", data)
            self.masks_pending += 1
        except ConnectionError:
            pass  # the sandbox is gone

    def freeze(self, directory: int, name: str) -> bool:
        """Ask that a file in a directory of ``kept`` becomes read-only in the sandbox; the answer is an ``f`` message
        on the launcher channel, after those to the masks that were asked for before.  False: the sandbox is gone.
        """
        try:
            send(self.launcher, b"F", os.fsencode(name), (directory,))
        except OSError:
            return False
        return True


def _row(op: MountOp) -> tuple[str, str, bytes]:
    """What ``view.workspace_operation`` takes."""
    if isinstance(op, Mask):
        kind = "Empty" if op.empty else "Mask"
        if not op.link:
            kind += "File" if op.empty and not op.directory else "Name"
        return kind, op.target, b""
    if isinstance(op, Keep):
        return "Keep", op.target, os.fsencode(op.file)
    return type(op).__name__, op.target, op.content if isinstance(op, (Copy, File, Seed)) else b""


def _launch(channel: _socket.socket, init_channel: _socket.socket, supervisor: int) -> None:
    os.setsid()  # first: signals of the caller's terminal go to the supervisor, which decides what to forward
    from .launcher import launcher  # here: beside the supervisor, which does not need it

    launcher(channel, init_channel, supervisor)


def _host_error(number: int, step: str, cause: str, target: str) -> HostError:
    name = errno.errorcode.get(number, "")
    fix: tuple[str, ...] = ()
    if step == "make a user namespace":
        from .facts import CAP_SETFCAP, effective_capabilities

        if number in (errno.EPERM, errno.EACCES):
            restricted = _setting("kernel/apparmor_restrict_unprivileged_userns")
            if restricted == "1":
                cause += " (kernel.apparmor_restrict_unprivileged_userns = 1)"
                fix = ("allow this interpreter in an AppArmor profile: see docs/threat-model.md, Ubuntu",)
            elif _setting("kernel/unprivileged_userns_clone") == "0":
                cause += " (kernel.unprivileged_userns_clone = 0)"
                fix = ("sudo sysctl kernel.unprivileged_userns_clone=1",)
            elif os.geteuid() == 0 and not effective_capabilities() >> CAP_SETFCAP & 1:
                cause += " (this root lacks CAP_SETFCAP, without which it may not map uid 0)"
                fix = ("run membrane as an ordinary user", "in a container, keep the capability SETFCAP")
            else:
                from .surroundings import confined

                seen, advice = confined()
                cause, fix = (f"{cause} ({seen})", (advice,)) if seen else (cause, ())
        elif number in (errno.ENOSPC, errno.EUSERS):
            cause += f" (user.max_user_namespaces = {_setting('user/max_user_namespaces') or 'unknown'})"
            fix = ("sudo sysctl user.max_user_namespaces=63000",)
    elif step == "build the view" and cause.startswith("mount proc"):
        fix = (
            "in a container, uncover /proc (--security-opt systempaths=unconfined): membrane setup container docker",
        )
    elif step == "show a tree in the sandbox" and number in (errno.EINVAL, errno.EPERM):
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


def stream_is_open(fd: int) -> bool:
    """Whether a standard stream exists; a closed one is replaced by /dev/null before anything else is opened."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def ensure_streams() -> None:
    """Open /dev/null for every closed standard stream: a later descriptor must not take its number."""
    for fd in (0, 1, 2):
        if not stream_is_open(fd):
            opened = os.open("/dev/null", os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
