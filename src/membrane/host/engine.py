"""Docker's daemon inside the sandbox, started by the first connection to its socket.

Theory of operation
-------------------
A process of the sandbox, under the command's own confinement, listens on the socket where Docker's clients look by
default.  The first connection makes it execute dockerd with that socket (sd_listen_fds(3)); the client waits meanwhile
in the socket's queue.  Nothing is started for a command that uses no Docker.  The daemon is started as one in a user
namespace (``--rootless``, for which it wants a variable and a program of RootlessKit; the program is never run with
``--userland-proxy=false``), so it asks for nothing of the machine: no cgroups, no device rules, no settings.

It runs with the command's rights and belongs to it: what it says is in ``LOG``, inside.
"""

from __future__ import annotations

import _socket
import os
import select

from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

SOCKET, LOG = "/run/docker.sock", "/run/docker.log"
_STATE = "/run/docker"
_INIT = "docker-init"
_FIRST = 3  # SD_LISTEN_FDS_START
_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def offer(environment: Mapping[str, str]) -> None:
    """In the command's process, before exec: listen, where dockerd is installed and nothing is at its socket."""
    path = [place for place in (*environment.get("PATH", "").split(":"), *_SYSTEM) if place.startswith("/")]
    daemon = next((name for place in path if os.access(name := f"{place}/dockerd", os.X_OK)), "")
    if not daemon:
        return
    listening = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        listening.bind(SOCKET)
        listening.listen(128)
    except OSError:  # the policy opens Docker of the host there
        listening.close()
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        listening.close()
        return
    try:
        if os.fork() == 0:  # pid 1 reaps it: the command has no child that it did not make
            _wait(listening.fileno(), daemon, dict(environment), list(dict.fromkeys(path)))
    finally:
        os._exit(0)


def _offer_init(path: Sequence[str]) -> None:
    """A copy of the program of ``docker run --init``, found first, on a file system of the command's own.

    dockerd has it bound read-only without the flags of its mount, and those of the view are locked (nosuid, nodev):
    the kernel refuses to change them (mount_namespaces(7)).  Without a copy only ``--init`` does not work.
    """
    program = next((name for place in path if os.access(name := f"{place}/{_INIT}", os.X_OK)), "")
    if not program:
        return
    try:
        source = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
        sc.mount("tmpfs", f"{_STATE}/bin", "tmpfs", 0, "mode=755")
        target = os.open(f"{_STATE}/bin/{_INIT}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
        while os.sendfile(target, source, None, 1 << 20):
            pass
        os.close(target)
    except OSError:
        pass


def _wait(listening: int, daemon: str, environment: dict[str, str], path: Sequence[str]) -> NoReturn:
    """Until a process connects; then this process is dockerd."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if listening != _FIRST:
            os.dup2(listening, _FIRST, inheritable=False)
        sc.close_range(_FIRST + 1)  # the channel and the pipe that reports exec are the command's
        os.chdir("/")
        poll = select.poll()
        poll.register(_FIRST, select.POLLIN)
        poll.poll()
        os.set_inheritable(_FIRST, True)
        os.makedirs(f"{_STATE}/bin", exist_ok=True)
        _offer_init(path)
        os.symlink("/bin/true", f"{_STATE}/bin/rootlesskit-docker-proxy")
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for fd in (1, 2):
            os.dup2(log, fd)
        environment.update(
            PATH=":".join((f"{_STATE}/bin", *path)),
            XDG_RUNTIME_DIR="/run",
            ROOTLESSKIT_STATE_DIR=_STATE,
            ROOTLESSKIT_PARENT_EUID="0",
            LISTEN_PID=str(os.getpid()),
            LISTEN_FDS="1",
        )
        argv = [daemon, "--rootless", "--host=fd://", "--userland-proxy=false", "--data-root=/var/lib/docker"]
        argv += [f"--exec-root={_STATE}/exec", f"--pidfile={_STATE}/pid"]
        os.execve(daemon, argv, environment)
    finally:
        os._exit(1)
