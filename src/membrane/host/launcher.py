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
capability over links, routes and rules.  The supervisor forks the launcher (``host.launch``) before it loads the
policy, so before it holds any secret; the launcher erases its environment and closes every descriptor that it does
not need.

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
    launcher -> supervisor: U user namespace is there · N mode + roles (+ sockets; see ``_mint``, ``_diagnosing``)
    launcher -> supervisor: P pidfd of init · k masks mounted · f a file is frozen, or why not (errno)
    init -> supervisor:     L listening unix socket of the plan (in its order) · O directory below a cover (``Keep``)
    init -> supervisor:     T terminal (+ pty master) · R command is ready (+ listener)
    init -> supervisor:     Z stopped · X wait status
    supervisor -> launcher: B plan (+ memfd, ``host.start``) · M maps are written (+ trees) · K masks to mount
    supervisor -> launcher: Z fork a spawner (+ channel) · F freeze a file (+ directory that was kept)
    supervisor -> init:     W what is known late (+ memfd) · G go · S signal · C continue
    any -> supervisor:      E errno, step, object
"""

from __future__ import annotations

import _socket
import errno
import marshal
import os
import select

from . import syscalls as sc
from .channel import (
    FDS_PER_MESSAGE,
    SIGKILL,
    LaunchFailed,
    Step,
    default_signals,
    die_with,
    pair,
    receive,
    run_child,
    send,
    take_data,
    write_file,
)
from .init import init, replace_streams
from .netns import configure
from .start import restore
from .view import Masks, freeze, workspace_operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from .start import Start

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
INNER = sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP


def launcher(channel: _socket.socket, init_channel: _socket.socket, supervisor: int) -> None:
    """The process; it ends when the sandbox has ended, or when no plan comes."""
    default_signals()
    die_with(supervisor)
    keep = (channel.fileno(), init_channel.fileno())
    _close_all_but(keep)
    sc.erase_environment()
    os.umask(0o022)  # modes of our own files are exact; the command gets the caller's mask back
    with Step(channel, "make a user namespace"):
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNET)
    kind, _payload, fds = receive(channel)
    if kind != b"B":
        raise LaunchFailed
    start = restore(take_data(fds[0]))
    plan = start.plan
    root = bool(plan.base_kuid)
    trees: dict[int, int] = {}
    with Step(channel, "make a user namespace"):
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

    if start.commands != "one":
        from . import spawner  # noqa: F401 - loaded before the clone: pid 1 may not find our files in its view

    started, release = os.pipe()
    with Step(channel, "make the inner namespaces"):
        pid = sc.clone(INNER)
    if pid == 0:
        os.close(release)
        channel.close()  # else the supervisor would not see the launcher's end
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
    os.write(release, b"x")  # and it stays open: its end is the launcher's (``init``)
    os.close(started)
    init_channel.close()
    for fd in trees.values():
        os.close(fd)

    with Step(channel, "set up the network namespace"):
        mode, sockets = configure(plan.network)
        if start.notify:
            sockets += _diagnosing("diag")
        if plan.hardening.unix and not plan.hardening.other_sockets:
            for role in ("table", "table")[: 2 if start.notify else 1]:  # of the supervisor, and of the tracer
                sockets += _diagnosing(role)
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


def _diagnosing(role: str) -> list[tuple[str, _socket.socket]]:
    """A socket of sock_diag(7), for ``gateway.clients`` or ``host.unixsockets``; none where the kernel has no such
    family."""
    try:
        return [(role, _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _SOCK_DIAG))]
    except OSError:
        return []


def _mint(channel: _socket.socket) -> bool:
    """Answer one request of the gateway with a TCP socket of this network namespace; false at its end.

    A socket belongs to the namespace in which it was made, whoever connects it: so the gateway reaches the
    sandbox's loopback without entering the namespace.  The request is one byte, ``4`` or ``6``; the answer is the
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
        if kind == b"F":
            child = os.fork()
            if child == 0:
                _freeze_inside(os.fsdecode(payload), fds, namespaces)
            for fd in fds:
                os.close(fd)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            send(channel, b"f", str(status).encode())
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


def _enter(namespaces: dict[str, int]) -> None:
    sc.setns(namespaces["user"], sc.CLONE_NEWUSER)
    sc.setns(namespaces["mnt"], sc.CLONE_NEWNS)
    # A directory that is bound onto itself now is a second mount above the first, in which a command may have its
    # working directory.  As peers (mount_namespaces(7)) both get what is mounted in either.
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_SHARED)


def _freeze_inside(name: str, fds: Sequence[int], namespaces: dict[str, int]) -> NoReturn:
    """Exits with 0, or with the errno: the supervisor then leaves the file as it is."""
    status = 255
    try:
        _enter(namespaces)
        freeze(fds[0], name)
        status = 0
    except OSError as error:
        status = error.errno or 255
    finally:
        os._exit(status)


def _mask_inside(channel: _socket.socket, payload: bytes, namespaces: dict[str, int]) -> NoReturn:
    rows = marshal.loads(payload)  # noqa: S302 - from our own supervisor

    def mask() -> None:
        _enter(namespaces)
        masks = Masks(late=True)
        for row in rows:
            try:
                workspace_operation(masks, *row)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # it went away again
                    raise

    run_child(mask, channel)
