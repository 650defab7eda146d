"""From a SandboxPlan to a confined process: the launcher and what runs inside before exec.

Theory of operation
-------------------
Four processes take part, each forked from the one before it::

    supervisor   the caller's process (``run.boundary``): keeps the plan, the policy and the terminal
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
4. Paths inside the workspace are opened with RESOLVE_NO_SYMLINKS: a link made by another process moves no mask.
5. The command is released by the supervisor, after it has read back what was set.

What they say to each other is in ``host.messages``.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import sys

from ..errors import MembraneError
from ..plan.mounts import MASK_SOURCE
from . import messages as m
from . import syscalls as sc
from .channel import (
    FDS_PER_MESSAGE,
    SIGKILL,
    USER_NAMESPACE,
    LaunchFailed,
    Step,
    default_signals,
    die_with,
    pair,
    passed,
    run_child,
    write_file,
)
from .init import init, replace_streams
from .netns import configure, inside
from .sockdiag import SOCK_DIAG
from .start import operation
from .view import Masks, freeze, workspace_operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn, TypeVar

    from .channel import Channel
    from .senders import Senders
    from .start import Late, Start

    T = TypeVar("T")

OURS = 8  # processes beside the command's in the count of the inner user namespace: this one, pid 1, those that mask
MOST_TRIES = 100  # of one mount over a name that is replaced all the time
INNER = sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP


def launcher(channel: Channel, init_channel: Channel, supervisor: int) -> None:
    """The process; it ends when the sandbox has ended, or when no plan comes."""
    default_signals()
    die_with(supervisor)
    keep = (channel.fileno(), init_channel.fileno())
    _close_all_but(keep)
    sc.erase_environment()
    os.umask(0o022)  # modes of our own files are exact; the command gets the caller's mask back
    with Step(channel, USER_NAMESPACE):
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNET)
    begin = channel.receive()
    if not isinstance(begin, m.Begin):
        raise LaunchFailed
    start = begin.start
    plan = start.plan
    root, nested = bool(plan.base_kuid), plan.hardening.nested
    further = nested or plan.mapped  # ids, whose maps only another program may write
    trees: dict[int, int] = {}
    with Step(channel, USER_NAMESPACE):
        if not root and not further:
            write_file("/proc/self/setgroups", "deny")
            write_file("/proc/self/uid_map", f"{plan.uid} {plan.uid} 1\n")
            write_file("/proc/self/gid_map", f"{plan.gid} {plan.gid} 1\n")
    if root or further:
        channel.send(m.UserNamespaceMade())
        while isinstance(message := channel.receive(), m.Trees):
            trees.update(zip(message.keys, message.trees, strict=True))
        if not isinstance(message, m.MapsWritten):
            raise LaunchFailed
    if root:
        with Step(channel, "enter the private kuid range"):
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            sc.set_dumpable(True)  # cleared by the change of ids; /proc/PID/uid_map must stay writable
            die_with(supervisor)

    started, release = os.pipe()
    own, theirs = pair(m.TO_CONTAINERS, m.FROM_CONTAINERS) if nested else (None, None)
    processes = plan.hardening.limits.pids if plan.hardening.capabilities else 0
    with Step(channel, "make the inner namespaces"):
        # RLIMIT_NPROC counts for each user, and root inside may become any; what its maker has of it when a user
        # namespace is made holds for all processes in that (kernel/ucount.c, is_rlimit_overlimit).
        before = sc.soft_limit(sc.RLIMIT_NPROC, processes + OURS) if processes else 0
        pid = sc.clone(INNER)
        if processes and pid:
            sc.soft_limit(sc.RLIMIT_NPROC, before)
    if pid == 0:
        os.close(release)
        if own is not None:
            own.close()
        channel.close()  # else the supervisor would not see the launcher's end
        run_child(lambda: init(start, init_channel, trees, started, theirs), init_channel)
    with Step(channel, "map the inner user namespace"):
        if plan.image_user:
            from .trees import id_map

            # What is 0 in the outer namespace has the image's number, and gives it its own; a plain caller is alone.
            shows = (("uid_map", plan.image_user[0], plan.uid), ("gid_map", plan.image_user[1], plan.gid))
            for name, shown, number in shows:
                write_file(f"/proc/{pid}/{name}", id_map(shown, 0) if root else f"{shown} {number} 1\n")
        elif root:
            for name in ("uid_map", "gid_map"):
                write_file(f"/proc/{pid}/{name}", "0 0 65536\n")
        elif further:
            from .containers import inner_maps

            for name, rows in zip(("uid_map", "gid_map"), inner_maps(plan), strict=True):
                write_file(f"/proc/{pid}/{name}", "".join("{} {} {}\n".format(*row) for row in rows))
        else:
            write_file(f"/proc/{pid}/uid_map", f"{plan.uid} {plan.uid} 1\n")
            write_file(f"/proc/{pid}/gid_map", f"{plan.gid} {plan.gid} 1\n")
        # Now: pid 1 may not be looked at any more when it has built the view.
        kinds = ("user", "mnt", "pid", "ipc", "uts", "cgroup")
        namespaces = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds}
        pidfd = os.pidfd_open(pid)
    os.write(release, b"x")  # and it stays open: its end is the launcher's (``init``)
    os.close(started)
    init_channel.close()
    for fd in trees.values():
        os.close(fd)

    inner = -1
    if own is not None and theirs is not None:
        theirs.close()
        message = own.receive()
        own.close()
        if not isinstance(message, m.NetworkMade):
            raise LaunchFailed  # pid 1 has sent why
        inner = message.namespace
    with Step(channel, "set up the network namespace"):
        mode, sockets = configure(plan.network, inner=inner)
        if start.notify:
            sockets += _diagnosing("diag", inner)
        if plan.hardening.unix and not plan.hardening.other_sockets:
            for role in ("table", "table")[: 2 if start.notify else 1]:  # of the supervisor, and of the tracer
                sockets += _diagnosing(role, inner)
    for first in range(0, len(sockets), FDS_PER_MESSAGE):
        part = sockets[first : first + FDS_PER_MESSAGE]
        _send_sockets(channel, mode, part)
    factory: Channel | None = None
    if plan.network.exposed:
        factory, theirs = pair(m.FROM_FACTORY, m.TO_FACTORY)
        factory.setblocking(False)
        _send_sockets(channel, mode, [("factory", theirs.socket)])
        theirs.close()
    asking = _offer_senders(channel, mode) if inner >= 0 and start.notify else None
    channel.send(m.InitStarted(pidfd))
    for _role, sock in sockets:
        sock.close()
    replace_streams()
    _serve(start, channel, namespaces, pid, pidfd, factory, inner, asking)


def _in_network(inner: int, action: Callable[[], T]) -> T:
    """The result of ``action`` in the network namespace that the command is in."""
    return action() if inner < 0 else inside(inner, action)


def _send_sockets(channel: Channel, mode: str, sockets: Sequence[tuple[str, _socket.socket]]) -> None:
    roles = tuple([role for role, _sock in sockets])
    channel.send(m.NetworkSockets(mode, roles, tuple([sock.fileno() for _role, sock in sockets])))


def _close_all_but(keep: Sequence[int]) -> None:
    """close_range(2) around the descriptors that are still needed."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            sc.close_range(first, fd - 1)
        first = fd + 1
    sc.close_range(first)


def _diagnosing(role: str, inner: int) -> list[tuple[str, _socket.socket]]:
    """A socket of sock_diag(7) where the command's sockets are, for ``gateway.clients`` or ``host.unixsockets``; none
    where the kernel has no such family."""
    kind = _socket.SOCK_RAW | _socket.SOCK_CLOEXEC
    try:
        made = _in_network(inner, lambda: _socket.socket(_socket.AF_NETLINK, kind, SOCK_DIAG))
    except OSError:
        return []
    made.connect((0, 0))  # none but the kernel answers: who has CAP_NET_ADMIN there could send to it (``senders``)
    return [(role, made)]


def _make_socket(channel: Channel, inner: int) -> bool:
    """Answer one request of the gateway with a TCP socket of this network namespace; false at its end.

    A socket belongs to the namespace in which it was made, whichever process connects it: so the gateway reaches the
    sandbox's loopback without entering the namespace.
    The channel does not block: who does not read the answers must not keep masks from being mounted.
    """
    try:
        asked = channel.receive()
        if not isinstance(asked, m.MakeSocket) or asked.family not in (_socket.AF_INET, _socket.AF_INET6):
            return False
        try:
            family = asked.family
            made = _in_network(inner, lambda: _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC))
        except OSError:
            channel.send(m.SocketMade(None))
            return True
        try:
            channel.send(m.SocketMade(made.fileno()))
        finally:
            made.close()
    except (OSError, MembraneError):
        return False
    return True


def _offer_senders(channel: Channel, mode: str) -> Channel:
    """Our end of the questions of the gateway about clients behind a NAT of the command's."""
    own, theirs = pair(m.FROM_SENDERS, m.TO_SENDERS)
    own.setblocking(False)
    _send_sockets(channel, mode, [("senders", theirs.socket)])
    theirs.close()
    return own


def _answer(channel: Channel, senders: Senders) -> bool:
    """Answer one question of the gateway; false at its end.  As ``_make_socket`` it waits for nobody."""
    try:
        asked = channel.receive()
        if not isinstance(asked, m.FindSender):
            return False
        client, server = (asked.client, asked.client_port), (asked.server, asked.server_port)
        channel.send(m.SenderFound(asked.number, *senders.find(asked.protocol, client, server)))
    except (OSError, MembraneError):
        return False
    return True


def _begin_to_answer(inner: int) -> Senders | None:
    """None where the kernel cannot say."""
    from .senders import Senders  # here: most runs have no container

    try:
        return Senders(inner)
    except OSError:
        return None


def _serve(
    start: Start,
    channel: Channel,
    namespaces: dict[str, int],
    pid: int,
    pidfd: int,
    factory: Channel | None,
    inner: int,
    asking: Channel | None,
) -> None:
    """Mount masks, make sockets and find senders, on request until pid 1 of the sandbox has ended."""
    poll = select.poll()
    senders: Senders | None = None
    if asking is not None:
        poll.register(asking.fileno(), select.POLLIN)
    if factory is not None:
        poll.register(factory.fileno(), select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    poll.register(channel.fileno(), select.POLLIN)
    while True:
        ready = [fd for fd, _event in poll.poll()]
        if pidfd in ready:
            os.waitpid(pid, 0)
            return
        if factory is not None and factory.fileno() in ready:
            if not _make_socket(factory, inner):
                poll.unregister(factory.fileno())
                factory.close()
                factory = None
            continue
        if asking is not None and asking.fileno() in ready:
            senders = senders or _begin_to_answer(inner)
            if senders is None or not _answer(asking, senders):
                poll.unregister(asking.fileno())
                asking.close()
                asking = None
            continue
        message = channel.receive()
        if isinstance(message, m.StartSpawner):
            _spawn(start, message.channel, namespaces, (channel, factory, asking))
        elif isinstance(message, m.FreezeFile):
            child = os.fork()
            if child == 0:
                _freeze_inside(message, namespaces)
            os.close(message.directory)
            channel.send(m.FileFrozen(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        elif isinstance(message, m.HideNames):
            child = os.fork()
            if child == 0:
                _mask_inside(channel, message.late, namespaces)
            channel.send(m.NamesHidden(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        else:
            os.kill(pid, SIGKILL)
            os.waitpid(pid, 0)
            return


def _spawn(start: Start, end: int, namespaces: dict[str, int], ours: Sequence[Channel | None]) -> None:
    """Fork the process that forks the commands; when it ends the supervisor sees it on its channel.

    Beside one command, with which the sandbox ends, further ones are as those of a sandbox that is kept.
    """
    from .spawner import spawner

    if os.fork():
        os.close(end)
        return
    for each in ours:
        if each is not None:
            each.close()
    channel = passed(end, m.FROM_SPAWNER, m.TO_SPAWNER)
    if start.commands == "one":
        start = start.replace(commands="kept")
    run_child(lambda: spawner(start, channel, namespaces), channel)


def _enter(namespaces: dict[str, int]) -> None:
    sys.meta_path.clear()  # as in ``init``: files have names in the view now
    sc.setns(namespaces["user"], sc.CLONE_NEWUSER)
    sc.setns(namespaces["mnt"], sc.CLONE_NEWNS)
    # A directory that is bound onto itself now is a second mount above the first, in which a command may have its
    # working directory.  As peers (mount_namespaces(7)) both get what is mounted in either.
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_SHARED)
    # Not so the masks: as peers of each other all would get what covers one of them again, twice as many each time.
    sc.mount(None, MASK_SOURCE, None, sc.MS_REC | sc.MS_PRIVATE)


def _freeze_inside(asked: m.FreezeFile, namespaces: dict[str, int]) -> NoReturn:
    """Exits with 0, or with the errno: the supervisor then leaves the file as it is."""
    status = 255
    try:
        _enter(namespaces)
        freeze(asked.directory, asked.name)
        status = 0
    except OSError as error:
        status = error.errno or 255
    finally:
        os._exit(status)


def mask_name(masks: Masks, kind: str, target: str, content: bytes = b"") -> None:
    """One operation on a name that a process outside may replace meanwhile; nothing where it went away again.

    The kernel takes away the mount over a file that is replaced (fs/namei.c vfs_rename, ``detach_mounts``); who has
    found it through that mount gets EINVAL then, and looks again.

    Raises:
        OSError: it cannot be done, also after ``MOST_TRIES``.
    """
    for tried in range(1, MOST_TRIES + 1):
        try:
            workspace_operation(masks, kind, target, content)
            return
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return
            if error.errno != errno.EINVAL or tried == MOST_TRIES:
                raise


def _mask_inside(channel: Channel, late: Late, namespaces: dict[str, int]) -> NoReturn:
    def mask() -> None:
        _enter(namespaces)
        masks = Masks(late=True)
        for op in late.ops:
            mask_name(masks, *operation(op))

    run_child(mask, channel)
