"""From a SandboxPlan to a confined process: the launcher and what runs inside before exec.

Theory of operation
-------------------
Four processes take part, each forked from the one before it::

    supervisor   the caller's process (``session``): keeps the plan, the policy and the terminal
    launcher     outer user namespace + network namespace; makes the listening sockets and passes them out; stays,
                 because it alone may enter the inner namespaces later to mount a mask
    init         pid 1: inner user, mount, pid, ipc, uts and cgroup namespace; builds the view, reaps orphans
    command      limits, capabilities, no_new_privs, Landlock, seccomp, then waits for the word and calls execve(2)

The network namespace belongs to the OUTER user namespace: whatever the command does in the inner one, it has no
capability over links, routes and rules.  The supervisor forks the launcher before it holds any secret; the
launcher erases its environment and closes every descriptor that it does not need.

Root callers live in a private kuid range, because kuid 0 can write /proc/sys whatever its capabilities.  The
supervisor (real root) then writes the id maps, clones the trees of the plan, makes the writable ones idmapped
mounts, and passes them in; nothing on a disk ever gets a kuid of the range.

Rules
-----
1. Nothing here decides; a call that fails ends the launch with the errno, the call and its object.
2. Each process asks for SIGKILL when its parent dies, after its last change of credentials (prctl(2)); only the
   spawner waits for the end of its channel, and then for its children.
3. No descriptor but stdin, stdout and stderr reaches the command.
4. Paths inside the workspace are opened with RESOLVE_NO_SYMLINKS: a link made by somebody else moves no mask.
5. The command is released by the supervisor, after it has read back what was set.

Messages (SOCK_SEQPACKET, first byte is the kind)
    launcher -> supervisor: U user namespace is there · N mode + roles (+ sockets; role ``mint``: see ``_mint``)
    launcher -> supervisor: P pidfd of init · k masks mounted
    init -> supervisor:     L listening unix socket of the plan (in its order)
    init -> supervisor:     T terminal (+ pty master) · R command is ready (+ listener) · G command runs
    init -> supervisor:     Z stopped · X wait status
    supervisor -> launcher: M maps are written (+ trees) · K masks to mount · Z (+ channel) fork a spawner
    supervisor -> init:     W what is known late (+ memfd) · G go · S signal · C continue
    any -> supervisor:      E errno, step, object
"""

from __future__ import annotations

import _socket
import errno
import marshal
import os
import select

from ..errors import HostError, InternalError
from ..plan.build import RANGE
from ..plan.model import Bind, Copy, File, Mask, Seed
from . import syscalls as sc
from .channel import (
    FDS_PER_MESSAGE,
    MESSAGE,
    SIGKILL,
    LaunchFailed,
    Start,
    Step,
    default_signals,
    die_with,
    pair,
    receive,
    receive_with_sender,
    run_child,
    send,
    write_file,
)
from .init import init, replace_streams
from .netns import configure
from .view import Masks, clone_tree, workspace_operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from ..plan.model import MountOp

INNER = sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP


class Launch:
    """The supervisor's view of one launch; the methods are called in the order in which they stand."""

    def __init__(self, start: Start) -> None:
        """Fork the launcher."""
        self.plan = start.plan
        self.launcher, launcher_end = pair()
        self.init, init_end = pair()
        self.init.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
        self.command_pid = 0
        self.init_pidfd = -1
        self.masks_pending = 0  # requests without their answer
        self.terminal = -1  # pty master
        self.listener = -1  # of the command's notifications
        self.listener_error = 0  # why there is none
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            run_child(lambda: _launcher(start, launcher_end, init_end, supervisor), launcher_end)
        launcher_end.close()
        init_end.close()

    def grant(self) -> None:
        """For root callers: write the id maps of the outer namespace and pass the trees in.

        Raises:
            HostError: the kernel refuses idmapped mounts of a tree, or a tree of the plan does not exist.
        """
        base = self.plan.base_kuid
        if not base:
            return
        self._expect(self.launcher, b"U")
        try:
            for name in ("uid_map", "gid_map"):
                write_file(f"/proc/{self.pid}/{name}", f"0 {base} 65536\n")
            userns = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError("map the private kuid range", error.strerror or "", target=str(base)) from None
        trees: list[int] = []
        owners = {(0, 0): userns}
        try:
            indices = []
            for index, op in enumerate(self.plan.mounts):
                if isinstance(op, Bind):
                    fd = clone_tree(op, _owner_namespace(op, base, owners) if op.own else 0)
                    if fd is not None:
                        trees.append(fd)
                        indices.append(index)
            for start in range(0, len(trees), FDS_PER_MESSAGE):
                part = slice(start, start + FDS_PER_MESSAGE)
                send(self.launcher, b"M", marshal.dumps(indices[part]), trees[part])
            send(self.launcher, b"M")
        except OSError as error:
            raise _host_error(
                error.errno or 0, "show a tree in the sandbox", error.strerror or "", str(error.filename or "")
            )
        finally:
            for fd in (*trees, *owners.values()):
                os.close(fd)

    def send_late(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        """Pass what is known only now: operations inside the workspace, late files, the command's environment."""
        rows = [_row(op) for op in ops]
        fd = os.memfd_create("late", os.MFD_CLOEXEC)
        try:
            data = memoryview(marshal.dumps((rows, tuple(environment))))
            while data:
                data = data[os.write(fd, data) :]
            send(self.init, b"W", b"", (fd,))
        except ConnectionError:
            self._raise_early_end()
        finally:
            os.close(fd)

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
            if kind == b"E":
                raise _from_message(payload)
            if kind == b"":
                self._raise_early_end()
            raise InternalError("launch", f"unexpected message {kind!r}")

    def wait_masks(self) -> None:
        """Wait for the masks that were asked for so far."""
        while self.masks_pending:
            kind, _payload, _fds = self._receive(self.launcher)
            if kind == b"k":
                self.masks_pending -= 1

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
            raise _from_message(payload)
        if kind == b"":
            self._raise_early_end()
        return kind, payload, fds

    def _raise_early_end(self) -> NoReturn:
        # The reason may wait on the other channel.
        for channel in (self.launcher, self.init):
            try:
                while True:
                    data = channel.recv(MESSAGE, _socket.MSG_DONTWAIT)
                    if not data:
                        break
                    if data[:1] == b"E":
                        raise _from_message(data[1:])
            except BlockingIOError:
                pass
            except ConnectionError:
                pass
        raise HostError("start the sandbox", "the launcher ended before the command was ready")

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


def _row(op: MountOp) -> tuple[str, str, bytes]:
    """What ``view.workspace_operation`` takes."""
    if isinstance(op, Mask):
        return "Mask" if op.link else "MaskName", op.target, b""
    return type(op).__name__, op.target, op.content if isinstance(op, (Copy, File, Seed)) else b""


def id_map(owner: int, base: int) -> str:
    """The id map (user_namespaces(7)) of an idmapped mount whose files of ``owner`` are root's inside.

    Root inside has no capability: in a tree that belongs to somebody else (a checkout that a CI runner mounts) it
    could write nothing.  Root's own files take the owner's place there; an id outside of the range just replaces 0.
    """
    if owner == 0:
        return f"0 {base} {RANGE}\n"
    if owner >= RANGE:
        return f"{owner} {base} 1\n1 {base + 1} {RANGE - 1}\n"
    rows = [(owner, base, 1), (0, base + owner, 1)]
    if owner > 1:
        rows.append((1, base + 1, owner - 1))
    if owner < RANGE - 1:
        rows.append((owner + 1, base + owner + 1, RANGE - 1 - owner))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in rows)


def _owner_namespace(op: Bind, base: int, known: dict[tuple[int, int], int]) -> int:
    """A user namespace that carries the id map for ``op``'s owner; it holds no process."""
    if not op.writable:
        return known[0, 0]
    try:
        details = os.stat(op.source)
    except OSError:
        return known[0, 0]  # clone_tree tells
    owner = details.st_uid, details.st_gid
    if owner not in known:
        ready, done = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sc.unshare(sc.CLONE_NEWUSER)
                os.write(ready[1], b"x")
                os.close(done[1])
                os.read(done[0], 1)
            finally:
                os._exit(0)
        for fd in (ready[1], done[0]):
            os.close(fd)
        try:
            os.read(ready[0], 1)
            for name, number in zip(("uid_map", "gid_map"), owner, strict=True):
                write_file(f"/proc/{pid}/{name}", id_map(number, base))
            known[owner] = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            for fd in (ready[0], done[1]):
                os.close(fd)
            os.waitpid(pid, 0)
    return known[owner]


def _from_message(payload: bytes) -> HostError:
    number, step, cause, target = payload.decode("utf-8", "surrogateescape").split("\0", 3)
    return _host_error(int(number), step, cause, target)


def _host_error(number: int, step: str, cause: str, target: str) -> HostError:
    name = errno.errorcode.get(number, "")
    fix: tuple[str, ...] = ()
    if step == "make a user namespace":
        if number in (errno.EPERM, errno.EACCES):
            restricted = _setting("kernel/apparmor_restrict_unprivileged_userns")
            if restricted == "1":
                cause += " (kernel.apparmor_restrict_unprivileged_userns = 1)"
                fix = ("allow this interpreter in an AppArmor profile: see docs/threat-model.md, Ubuntu",)
            elif _setting("kernel/unprivileged_userns_clone") == "0":
                cause += " (kernel.unprivileged_userns_clone = 0)"
                fix = ("sudo sysctl kernel.unprivileged_userns_clone=1",)
        elif number in (errno.ENOSPC, errno.EUSERS):
            cause += f" (user.max_user_namespaces = {_setting('user/max_user_namespaces') or 'unknown'})"
            fix = ("sudo sysctl user.max_user_namespaces=63000",)
    elif step == "build the view" and cause.startswith("mount proc"):
        fix = ("in a container, run it with an unmasked /proc (docker: --security-opt systempaths=unconfined)",)
    elif step == "show a tree in the sandbox" and number in (errno.EINVAL, errno.EPERM):
        fix = (
            "as root, use a workspace on a filesystem with idmapped mounts (ext4, xfs, btrfs; tmpfs on Linux 6.3+)",
            "run membrane as an ordinary user",
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


def _launcher(start: Start, channel: _socket.socket, init_channel: _socket.socket, supervisor: int) -> None:
    os.setsid()  # signals of the caller's terminal go to the supervisor, which decides what to forward
    default_signals()
    die_with(supervisor)
    keep = (channel.fileno(), init_channel.fileno())
    _close_all_but(keep)
    sc.erase_environment()
    os.umask(0o022)  # modes of our own files are exact; the command gets the caller's mask back
    plan = start.plan
    root = bool(plan.base_kuid)
    trees: dict[int, int] = {}

    with Step(channel, "make a user namespace"):
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNET)
        if not root:
            write_file("/proc/self/setgroups", "deny")
            write_file("/proc/self/uid_map", f"{plan.uid} {plan.uid} 1\n")
            write_file("/proc/self/gid_map", f"{plan.gid} {plan.gid} 1\n")
    if root:
        send(channel, b"U")
        while True:
            kind, payload, fds = receive(channel)
            if kind != b"M":
                raise LaunchFailed
            if not payload:
                break
            trees.update(zip(marshal.loads(payload), fds, strict=True))  # noqa: S302 - from our own supervisor
        with Step(channel, "enter the private kuid range"):
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            sc.set_dumpable(True)  # cleared by the change of ids; /proc/PID/uid_map must stay writable
            die_with(supervisor)

    started, release = os.pipe()
    with Step(channel, "make the inner namespaces"):
        pid = sc.clone(INNER)
    if pid == 0:
        os.close(release)
        run_child(lambda: init(start, init_channel, trees, started), init_channel)
    with Step(channel, "map the inner user namespace"):
        if root:
            for name in ("uid_map", "gid_map"):
                write_file(f"/proc/{pid}/{name}", "0 0 65536\n")
        else:
            write_file(f"/proc/{pid}/uid_map", f"{plan.uid} {plan.uid} 1\n")
            write_file(f"/proc/{pid}/gid_map", f"{plan.gid} {plan.gid} 1\n")
        kinds = ("user", "mnt") if start.commands == "one" else ("user", "mnt", "pid", "ipc", "uts", "cgroup")
        namespaces = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds}
        pidfd = os.pidfd_open(pid)
    os.write(release, b"x")
    os.close(release)
    os.close(started)
    init_channel.close()
    for fd in trees.values():
        os.close(fd)

    with Step(channel, "set up the network namespace"):
        mode, sockets = configure(plan.network)
    for first in range(0, len(sockets), FDS_PER_MESSAGE):
        part = sockets[first : first + FDS_PER_MESSAGE]
        words = " ".join((mode, *(role for role, _sock in part)))
        send(channel, b"N", words.encode(), [sock.fileno() for _role, sock in part])
    mint: _socket.socket | None = None
    if plan.network.exposed:
        mint, theirs = pair()
        mint.setblocking(False)
        send(channel, b"N", f"{mode} mint".encode(), (theirs.fileno(),))
        theirs.close()
    send(channel, b"P", b"", (pidfd,))
    for _role, sock in sockets:
        sock.close()
    replace_streams()
    _serve(start, channel, namespaces, pid, pidfd, mint)


def _close_all_but(keep: Sequence[int]) -> None:
    """close_range(2) around the descriptors that are still needed."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            sc.close_range(first, fd - 1)
        first = fd + 1
    sc.close_range(first)


def _mint(channel: _socket.socket) -> bool:
    """Answer one request of the network process with a TCP socket of this network namespace; false at its end.

    A socket belongs to the namespace in which it was made, whoever connects it: so the network process reaches the
    sandbox's loopback without entering the namespace.  The request is one octet, ``4`` or ``6``; the answer is the
    same with the socket, or without one where it could not be made.
    The channel does not block: whoever does not read the answers must not keep masks from being mounted.
    """
    try:
        kind = channel.recv(2)
        if kind not in (b"4", b"6"):
            return False
        family = _socket.AF_INET if kind == b"4" else _socket.AF_INET6
        try:
            made = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        except OSError:
            send(channel, kind)
            return True
        try:
            send(channel, kind, b"", (made.fileno(),))
        finally:
            made.close()
    except OSError:
        return False
    return True


def _serve(
    start: Start,
    channel: _socket.socket,
    namespaces: dict[str, int],
    pid: int,
    pidfd: int,
    mint: _socket.socket | None,
) -> None:
    """Mount masks, and make sockets, on request until pid 1 of the sandbox has ended."""
    poll = select.poll()
    if mint is not None:
        poll.register(mint.fileno(), select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        ready = [fd for fd, _event in poll.poll()]
        if pidfd in ready:
            os.waitpid(pid, 0)
            return
        if mint is not None and mint.fileno() in ready:
            if not _mint(mint):
                poll.unregister(mint.fileno())
                mint.close()
                mint = None
            continue
        kind, payload, fds = receive(channel)
        if kind == b"Z":
            _spawn(start, fds[0], namespaces, (channel, mint))
            continue
        if kind != b"K":
            os.kill(pid, SIGKILL)
            os.waitpid(pid, 0)
            return
        child = os.fork()
        if child == 0:
            _mask_inside(channel, payload, namespaces)
        status = os.waitpid(child, 0)[1]
        send(channel, b"k", str(os.waitstatus_to_exitcode(status)).encode())


def _spawn(start: Start, end: int, namespaces: dict[str, int], ours: Sequence[_socket.socket | None]) -> None:
    """Fork the process that forks the commands; when it ends the supervisor sees it on its channel."""
    from .spawner import spawner

    if os.fork():
        os.close(end)
        return
    for each in ours:
        if each is not None:
            each.close()
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, end)
    run_child(lambda: spawner(start, channel, namespaces), channel)


def _mask_inside(channel: _socket.socket, payload: bytes, namespaces: dict[str, int]) -> NoReturn:
    rows = marshal.loads(payload)  # noqa: S302 - from our own supervisor

    def mask() -> None:
        sc.setns(namespaces["user"], sc.CLONE_NEWUSER)
        sc.setns(namespaces["mnt"], sc.CLONE_NEWNS)
        # A directory that is bound onto itself now is a second mount above the first, in which a command may have its
        # working directory.  As peers (mount_namespaces(7)) both get what is mounted in either.
        sc.mount(None, "/", None, sc.MS_REC | sc.MS_SHARED)
        masks = Masks(late=True)
        for row in rows:
            try:
                workspace_operation(masks, *row)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # it went away again
                    raise

    run_child(mask, channel)


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
