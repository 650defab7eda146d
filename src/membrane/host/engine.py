"""Docker's daemon inside the sandbox, started by the first connection to its socket.

Theory of operation
-------------------
Two processes of the sandbox, under the command's own confinement, wait on the socket where Docker's clients look by
default.  At the first connection one of them, which only waits, writes a line to the other, a shell, and that executes
dockerd with the socket (sd_listen_fds(3)); the client waits meanwhile in the socket's queue.  Nothing else is started
for a command that uses no Docker.  The daemon is started as one in a user namespace (``--rootless``, for which it wants
a variable and a program of RootlessKit; the program is never run with ``--userland-proxy=false``), so it asks for
nothing of the machine: no cgroups, no device rules, no settings.

Why two: who waits is a copy of this process, and so of pid 1, the tracer and the supervisor, as the command may not see
it: where their memory is, what is in it of the plan.  It is not dumpable (prctl(2), PR_SET_DUMPABLE), so it could make
no call that the tracer has to read.  The shell has a memory of its own, from before the command runs.

It runs with the command's rights and belongs to it: what it says is in ``LOG``, inside.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import select

from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOCKET, LOG = "/run/docker.sock", "/run/docker.log"
_STATE = "/run/docker"
_FIRST, _LINE, _DONE = 3, 4, 5  # SD_LISTEN_FDS_START; the end of a pipe; another, which execve(2) closes
SHELL = "/bin/sh"
# Its arguments: dockerd, docker-init or nothing, options.  dockerd has docker-init bound read-only without the flags of
# its mount, and those of the view are locked (nosuid, nodev): the kernel refuses to change them (mount_namespaces(7)).
# So a copy of it is found first, on a file system of the command's own; without one only ``run --init`` does not work.
_SCRIPT = f"""\
read -r line <&{_LINE} || exit 0
exec {_LINE}<&-
(umask 077; : >> {LOG})
exec >> {LOG} 2>&1
init=$1
shift
mkdir -p {_STATE}/bin
test "$init" && mount -t tmpfs -o mode=755 tmpfs {_STATE}/bin && cp "$init" {_STATE}/bin/docker-init
ln -s /bin/true {_STATE}/bin/rootlesskit-docker-proxy
export LISTEN_PID=$$
exec "$0" "$@"
"""
_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def offer(environment: Mapping[str, str]) -> None:
    """In the command's process, before exec: listen, where dockerd is installed and nothing is at its socket."""
    path = [place for place in (*environment.get("PATH", "").split(":"), *_SYSTEM) if place.startswith("/")]
    daemon = _program("dockerd", path)
    if not daemon:
        return
    listening = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        listening.bind(SOCKET)
        listening.listen(128)
    except OSError:  # the policy opens Docker of the host there
        listening.close()
        return
    executed, executing = os.pipe()
    child = os.fork()
    if child:
        os.close(executing)
        os.waitpid(child, 0)
        os.read(executed, 1)  # until the shell is one: before, it is a copy of us that can be read
        os.close(executed)
        listening.close()
        return
    try:  # pid 1 reaps what is forked here: the command has no child that it did not make
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        read, line = os.pipe()
        if os.fork() == 0:
            _keep_only((null, null, null, listening.fileno(), read, executing))
            _execute(daemon, dict(environment), list(dict.fromkeys(path)))
        sc.set_dumpable(False)
        if os.fork() == 0:
            _keep_only((null, null, null, listening.fileno(), line))
            _wait()
    finally:
        os._exit(0)


def _program(name: str, path: Sequence[str]) -> str:
    return next((found for place in path if os.access(found := f"{place}/{name}", os.X_OK)), "")


def _execute(daemon: str, environment: dict[str, str], path: Sequence[str]) -> None:
    """Become the shell."""
    environment.update(
        PATH=":".join((f"{_STATE}/bin", *path)),
        XDG_RUNTIME_DIR="/run",
        ROOTLESSKIT_STATE_DIR=_STATE,
        ROOTLESSKIT_PARENT_EUID="0",
        LISTEN_FDS="1",
    )
    init = _program("docker-init", path)
    argv = ["sh", "-c", _SCRIPT, daemon, init, "--rootless", "--host=fd://", "--userland-proxy=false"]
    argv += ["--data-root=/var/lib/docker", f"--exec-root={_STATE}/exec", f"--pidfile={_STATE}/pid"]
    os.setsid()
    os.chdir("/")
    os.set_inheritable(_DONE, False)
    os.execve(SHELL, argv, environment)


def _wait() -> None:
    """Until a process connects."""
    os.setsid()
    poll = select.poll()
    poll.register(_FIRST, select.POLLIN)
    poll.poll()
    os.write(_LINE, b"\n")


def _keep_only(fds: Sequence[int]) -> None:
    """Make these the descriptors 0, 1, 2 and so on; all others are the command's and are closed."""
    for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(fds)) for fd in fds]):
        os.dup2(fd, place)
    sc.close_range(len(fds))
