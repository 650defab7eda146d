"""Inside: pid 1 of the sandbox, and the command process until it calls execve(2).

Theory of operation
-------------------
Pid 1 builds the view, forks the command, gives up every capability and then only reaps, forwards signals that the
supervisor sends and notifies it when the job in the terminal stops.  A stopped job is a stopped sandbox: the supervisor
stops as well and guards nothing, so no process that the command left in the background may run on.  With a terminal,
pid 1 is the session leader and the command is a process group of its own in that session, so that it is not orphaned
and SIGTSTP stops it.

The command confines itself step by step (limits, capabilities, no_new_privs, Landlock, seccomp) and waits for the
word of the supervisor, which reads back from /proc what was set.

Everything is imported before the fork: after the pivot the interpreter's own files may not be in the view.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import sys

from ..escaping import escape
from ..plan.model import RANGE, Keep
from ..value import Value
from . import landlock, seccomp, streams, view
from . import messages as m
from . import syscalls as sc
from .channel import SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGTTOU, Step, run_child
from .confine import give_up_privileges
from .start import operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
    from typing import NoReturn

    from ..plan.model import SandboxPlan
    from ..policy.model import Limits
    from .channel import Channel
    from .containers import Inner
    from .start import Start
else:
    import _signal

TIOCSCTTY, TIOCGPTN, TIOCSPTLCK = 0x540E, 0x80045430, 0x40045431  # ioctl_tty(2)


def init(
    start: Start, channel: Channel, trees: dict[int, int], started: int, network: Channel | None = None
) -> NoReturn:
    """Pid 1.

    Args:
        started: becomes readable when the id maps of its user namespace are written; the launcher keeps its other end
            as long as it lives.
        network: where the launcher waits for the command's own network namespace, with ``containers: nested``.
    """
    sc.set_parent_death_signal(SIGKILL)
    if os.read(started, 1) != b"x":  # the launcher died before the maps were written
        os._exit(1)
    # It may have died before the signal was armed, and getppid(2) is 0 in a pid namespace of its own either way.  An
    # ending process closes its files before it signals its children (kernel/exit.c, do_exit).
    end = select.poll()
    end.register(started, 0)
    if end.poll(0):
        os._exit(1)
    os.close(started)
    plan = start.plan
    forbidden = forbid_namespaces(start)
    if network is not None:
        # Here, as other runs do without: after the pivot the interpreter's own files may not be in the view.
        from . import containers, engine  # noqa: F401
    # From here on files have names in the view, where earlier commands may have written what Python would load (a layer
    # over a toolchain, or over /usr): nothing is imported any more, by the command before execve(2) neither.
    sys.meta_path.clear()
    with Step(channel, "build the view"):
        listening = view.build(plan.mounts, trees, clone=not plan.base_kuid)
    for sock in listening:
        channel.send(m.Listening(sock.fileno()))
        sock.close()
    inner = None
    if network is not None:
        with Step(channel, "make the namespaces of the containers"):
            inner = containers.make(plan)
            network.send(m.NetworkMade(inner.network))
            network.close()
    with Step(channel, "assemble the seccomp filter"):
        filters = assemble(start, forbidden=forbidden)  # while the supervisor looks through the workspace
    fill = channel.receive()
    if not isinstance(fill, m.Fill):
        os._exit(1)
    with Step(channel, "bind a file rule"):
        start = start.replace(plan=plan.replace(environment=fill.late.environment))
        masks = view.Masks()
        for op in fill.late.ops:
            if isinstance(op, Keep):
                fd = view.keep(op.target)
                if fd >= 0:
                    channel.send(m.DirectoryKept(op.file, fd))
                    os.close(fd)
            else:
                view.workspace_operation(masks, *operation(op))
        watch = masks.take_watch()
        if watch >= 0:
            channel.send(m.ReadsWatched(tuple(masks.watched), tuple(masks.watched.values()), watch))
            os.close(watch)
        masks.close()
        view.seal(plan.mounts)
        if inner is not None:  # what is hidden later arrives in the command's copy of the view
            sc.mount(None, "/", None, sc.MS_REC | sc.MS_SHARED)

    if start.commands != "one":
        channel.send(m.Ready(0, None))
        _keep(channel)
    slave = -1
    if any(start.terminal):
        with Step(channel, "make a terminal"):
            slave = make_terminal(channel)
    run_command(start, filters, channel, -1, slave, inner)


class Filters(Value):
    """The programs for seccomp(2).  ``notifying``: empty when the command is not to install it."""

    refusing: bytes
    notifying: bytes


def forbid_namespaces(start: Start) -> bool:
    """Have the kernel refuse user namespaces to the command (namespaces(7), max_user_namespaces), and so, as it has no
    capability, all others; false: it was not done.

    The setting is the user namespace's own.  Behind it the reader of notifications can refuse them, and report it.
    """
    hardening = start.plan.hardening
    if not start.notify or start.commands != "one" or hardening.nested or hardening.user_namespaces:
        return False
    try:
        fd = os.open("/proc/sys/user/max_user_namespaces", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # read-only, in some containers
    try:
        os.write(fd, b"0")
        return os.pread(fd, 16, 0).strip() == b"0"
    except OSError:
        return False
    finally:
        os.close(fd)


def assemble(start: Start, *, forbidden: bool = False) -> Filters:
    """The filters of each command of ``start``; ``forbidden``: as ``forbid_namespaces`` said."""
    plan = start.plan
    hardening = plan.hardening
    refusing = seccomp.program(
        nested=hardening.nested,
        user_namespaces=hardening.user_namespaces,
        unix=hardening.unix,
        raw_is_notified=notifies_raw(start),
        unix_is_notified=_notifies_unix(start),
        listens=bool(start.notify),
        namespaces_are_notified=forbidden,
        ids=_ids(plan),
        set_ids=hardening.set_ids,
        ids_are_notified=hardening.strips and bool(start.notify) and start.commands == "one",
        attributes=not (hardening.nested and plan.base_kuid) or hardening.set_ids,
        machine=sc.MACHINE,
    )
    if not start.notify or start.commands != "one":  # the spawner has the second one
        return Filters(refusing, b"")
    return Filters(refusing, notifying(start, forbidden=forbidden))


def _ids(plan: SandboxPlan) -> tuple[int, int, int]:
    """First uid, first gid, how many of each the command may give to files."""
    if plan.image_user:  # no root, whose programs give files away and expect that it succeeds (``tracer.owners``)
        return *plan.image_user, 1
    if plan.mapped:
        return 0, 0, 1 + min(RANGE - 1, *(count for _first, count in plan.subordinate))
    return (0, 0, RANGE) if plan.base_kuid else (plan.uid, plan.gid, 1)


def notifies_raw(start: Start) -> bool:
    """Are raw sockets refused by the reader of notifications?  Only where the kernel would refuse them as well."""
    hardening = start.plan.hardening
    return bool(start.notify) and not hardening.nested and not hardening.user_namespaces


def _notifies_unix(start: Start) -> bool:
    """Are sockets of AF_UNIX refused by the reader of notifications?  Without one it is ``confine_unwatched``."""
    return bool(start.notify) and not start.plan.hardening.unix


def confine_unwatched(start: Start) -> None:
    """In the place of ``notifying``, which the kernel did not take: what is left to its reader is refused."""
    hardening = start.plan.hardening
    sc.seccomp_set_filter(
        seccomp.unwatched_program(sc.MACHINE, ids=not hardening.set_ids, unix=not _notifies_unix(start))
    )


def notifying(start: Start, *, forbidden: bool = False) -> bytes:
    """The second filter."""
    reads = start.notify == "reads"
    raw, unix = notifies_raw(start), _notifies_unix(start)
    return seccomp.notify_program(reads=reads, raw=raw, unix=unix, namespaces=forbidden, machine=sc.MACHINE)


def run_command(
    start: Start, filters: Filters, channel: Channel, null: int, slave: int = -1, inner: Inner | None = None
) -> NoReturn:
    """Fork the command and keep it: reap, forward signals, report its status.

    Args:
        filters: as ``assemble`` made them.
        null: an open /dev/null; -1: it is opened here.
        slave: the terminal of the command; -1: none.
        inner: the namespaces in which it is root; None: there are none.
    """
    failed_exec, exec_status = os.pipe()  # closed by a successful execve(2)
    pid = os.fork()
    if pid == 0:
        os.close(failed_exec)
        run_child(lambda: _command(start, filters, channel, slave, exec_status, inner), channel)
    os.close(exec_status)
    give_up_privileges(bounding=start.commands == "one")
    _reap(channel, pid, slave, failed_exec, null, whole=start.commands != "kept")


def make_terminal(channel: Channel) -> int:
    """Make a pty of the sandbox's own devpts the controlling terminal; pass the master out."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    number = struct.unpack("I", fcntl.ioctl(master, TIOCGPTN, b"\0" * 4))[0]
    os.setsid()
    slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(slave, TIOCSCTTY, 0)
    channel.send(m.TerminalMade(master))
    os.close(master)
    return slave


def replace_streams(null: int = -1) -> None:
    """Let go of the caller's streams, so that their other ends see the command's end, not ours."""
    if null < 0:
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _reap(channel: Channel, command: int, slave: int, failed_exec: int, null: int, *, whole: bool) -> NoReturn:
    """Pid 1: wait for the command, reap orphans, forward signals, carry stops of the terminal's job.

    ``whole``: with the job everything else stops; it does not where other commands are beside it.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(SIGCHLD, lambda _number, _frame: None)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Not select(2), which takes no descriptor above 1023: the caller may have left us more than that.  Nor poll(2):
    # that fails where fewer descriptors are allowed than it is asked about, and another command of a persistent
    # sandbox may set the limit of this process (prlimit(2)).
    poll = select.epoll()
    poll.register(failed_exec, select.EPOLLIN)
    poll.register(wake_read, select.EPOLLIN)
    if slave >= 0:
        _signal.signal(SIGTTOU, _signal.SIG_IGN)
    freezer = _Freezer(whole=whole)
    # Until the command has called execve the channel is its own: it waits on it for the word.
    while True:
        if any(fd == failed_exec for fd, _event in poll.poll()):
            break
        _drain(wake_read)
        _collect(channel, command, slave, freezer)
    poll.unregister(failed_exec)
    os.close(failed_exec)
    replace_streams(null)
    poll.register(channel.fileno(), select.EPOLLIN)
    while True:
        _collect(channel, command, slave, freezer)
        for fd, _event in poll.poll():
            if fd == wake_read:
                _drain(wake_read)
                continue
            message = channel.receive()
            if isinstance(message, m.SendSignal):
                if message.number == SIGSTOP:
                    freezer.freeze()
                    continue
                _kill_group(command, message.number)
                if message.number == SIGCONT:
                    freezer.thaw()
            elif isinstance(message, m.Resume):
                if slave >= 0:
                    os.tcsetpgrp(slave, command)
                _kill_group(command, SIGCONT)
                freezer.thaw()
            else:
                os._exit(1)  # the supervisor is gone: with pid 1 the whole namespace goes


def _keep(channel: Channel) -> None:
    """Pid 1 of a sandbox without a command: reap what is orphaned, until the supervisor is gone."""
    give_up_privileges()
    poll, wake_read, _wake_write = waiting_for(channel)
    while True:
        for fd, _event in poll.poll():
            if fd != wake_read:
                os._exit(0)
            reap_ended(wake_read)


def waiting_for(channel: Channel) -> tuple[select.poll, int, int]:
    """Waits for a message or the end of a child; the ends of the pipe that reports the latter."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(SIGCHLD, lambda _number, _frame: None)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    return poll, wake_read, wake_write


def reap_ended(wake: int) -> None:
    """Reap every child that has ended: what there was to report of it was reported."""
    _drain(wake)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class _Freezer:
    """Stops every process of the sandbox but pid 1 while the supervisor is stopped; without ``whole`` none."""

    def __init__(self, *, whole: bool) -> None:
        self.frozen = False
        self._whole = whole
        self._before: set[int] = set()  # stopped by a process inside: they stay stopped

    def freeze(self) -> None:
        if self.frozen or not self._whole:
            return
        self.frozen = True
        self._before = {pid for pid, state in _processes() if state == b"T"}
        try:
            os.kill(-1, SIGSTOP)  # all at once: kill(2) takes the task list lock, and no fork is half done
        except ProcessLookupError:
            pass

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        for pid, _state in _processes():
            if pid != 1 and pid not in self._before:
                try:
                    os.kill(pid, SIGCONT)
                except ProcessLookupError:
                    pass


def _processes() -> list[tuple[int, bytes]]:
    """(pid, state letter) of each process of the namespace (proc(5), /proc/PID/stat)."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it ended
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(fd)
        found.append((int(name), fields[0]))
    return found


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass


def _kill_group(command: int, number: int) -> None:
    try:
        os.killpg(command, number)
    except ProcessLookupError:
        pass


def _collect(channel: Channel, command: int, slave: int, freezer: _Freezer) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid != command:
            continue
        if os.WIFSTOPPED(status):
            if slave >= 0 and not freezer.frozen:
                freezer.freeze()
                channel.send(m.JobStopped())
        else:
            channel.send(m.CommandExited(status))
            os._exit(0)


def _command(
    start: Start, filters: Filters, channel: Channel, slave: int, exec_status: int, inner: Inner | None
) -> None:
    sc.set_parent_death_signal(SIGKILL)
    plan = start.plan
    if slave >= 0:
        os.setpgid(0, 0)
        _signal.signal(SIGTTOU, _signal.SIG_IGN)
        os.tcsetpgrp(slave, os.getpid())
        for fd, own in enumerate(start.terminal):
            if own:
                os.dup2(slave, fd)
        _signal.signal(SIGTTOU, _signal.SIG_DFL)
    else:
        os.setsid()
    if inner is not None:
        from . import containers

        with Step(channel, "enter the namespaces of the containers"):
            containers.enter(inner)
        sc.set_parent_death_signal(SIGKILL)
    if start.commands == "one":
        with Step(channel, "enter the workspace"):
            os.chdir(plan.cwd)
    with Step(channel, "set resource limits"):
        set_limits(plan.hardening.limits)
    hardening = plan.hardening
    sc.no_new_privs()
    if hardening.landlock and start.commands != "kept":  # else the spawner has done it for all
        with Step(channel, "apply Landlock"):
            if inner is not None:
                landlock.restrict_scopes()
            else:
                landlock.restrict(("/",), hardening.landlock_writable, other_sockets=hardening.other_sockets)
    if start.commands == "one":
        with Step(channel, "keep files that are streams to the view"):
            streams.keep_to_view()
    with Step(channel, "install the seccomp filter"):
        listener, error = -1, 0
        if filters.notifying:
            try:
                listener = sc.seccomp_listen(filters.notifying)
            except OSError as failed:
                error = failed.errno or 0  # the supervisor decides whether the run needs it
        if listener < 0 and start.commands == "one":  # else the spawner has done it for all
            confine_unwatched(start)
        if listener < 0 and hardening.strips:  # no tracer judges set-user-ID files
            sc.seccomp_set_filter(seccomp.program(nested=hardening.nested, machine=sc.MACHINE))
        sc.seccomp_set_filter(filters.refusing)
    # Last: while it has more capabilities than they, no other command of the sandbox may trace it (ptrace(2)).
    with Step(channel, "drop capabilities"):
        if hardening.capabilities:  # in the bounding set as well: execve(2) of root gives what is there
            sc.drop_bounding_set(hardening.capabilities)
            sc.drop_capabilities(hardening.capabilities, bounding=False)
        elif inner is None:
            sc.drop_capabilities(bounding=start.commands == "one")
    channel.send(m.Ready(error, None if listener < 0 else listener))
    if listener >= 0:
        os.close(listener)  # who holds it can answer for everybody
    if start.commands != "one":
        start = _take_job(start, channel)
    elif not isinstance(channel.receive(), m.Go):
        os._exit(1)
    environment = dict(start.plan.environment)
    environment["MEMBRANE_SESSION"] = start.session
    if inner is not None:
        from . import engine

        if not leads_outside(engine.SHELL):  # that of an image can be a script
            engine.offer(environment)
    os.umask(start.umask)
    execute(start.argv, environment, exec_status, walled=hardening.landlock and inner is None)


_MOST_SCRIPTS = 6  # one that is the interpreter of another: the kernel takes five (fs/exec.c, exec_binprm)
_LONGEST_LINE = 256  # bytes of its first line that the kernel reads (BINPRM_BUF_SIZE)


def leads_outside(path: str) -> bool:
    """Would execve(2) of ``path`` execute our own program, which is in no view?

    /proc/self/exe leads there until the first execve(2), also from the first line of a script, which an earlier command
    or an image may have made.  What runs it could give it away by /proc/self/exe where it belongs to the caller.
    """
    ours = "/proc/self/exe"
    try:
        own = os.stat(ours)
        for _ in range(_MOST_SCRIPTS):
            found = os.stat(path)
            if os.path.samestat(found, own) and _mount_of(path) == _mount_of(ours):
                return True
            if not stat.S_ISREG(found.st_mode):
                return False
            with open(path, "rb", buffering=0) as file:
                head = file.read(_LONGEST_LINE)
            if head[:2] != b"#!":
                return False
            line = head[2:].partition(b"\n")[0].partition(b"\0")[0].replace(b"\t", b" ").strip(b" ")
            path = os.fsdecode(line.partition(b" ")[0])
    except OSError:
        pass  # it is not executed either, or is no file of the caller's
    return False


def _mount_of(path: str) -> bytes:
    """The number of the mount that a path leads to (proc_pid_fdinfo(5))."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as file:
            return file.read().partition(b"mnt_id:")[2].split()[0]
    finally:
        os.close(fd)


def _take_job(start: Start, channel: Channel) -> Start:
    """Wait for what to run (``host.spawner``); its streams become ours."""
    message = channel.receive()
    if not isinstance(message, m.RunJob):
        os._exit(1)
    for number, fd in enumerate((message.stdin, message.stdout, message.stderr)):
        if not start.terminal[number]:
            os.dup2(fd, number)
    with Step(channel, "keep files that are streams to the view"):
        streams.keep_to_view()
    job = message.job
    with Step(channel, "enter the directory"):
        os.chdir(job.cwd)
    return start.replace(plan=start.plan.replace(environment=job.environment), argv=job.argv, umask=job.umask)


def set_limits(limits: Limits) -> None:
    """Limit this process and its children (getrlimit(2)); no core dumps."""
    sc.limit(sc.RLIMIT_CORE, 0)
    for kind, value in (
        (sc.RLIMIT_DATA, limits.memory),
        (sc.RLIMIT_NPROC, limits.pids),
        (sc.RLIMIT_CPU, limits.cpu),
        (sc.RLIMIT_NOFILE, limits.files),
        (sc.RLIMIT_FSIZE, limits.disk),
    ):
        if value:
            sc.limit(kind, value)


def execute(argv: Sequence[str], environment: dict[str, str], exec_status: int, *, walled: bool = True) -> NoReturn:
    """execve(2) with the PATH search and the exit statuses of a shell (POSIX XCU 2.8.2).

    ``walled``: Landlock refuses programs outside of the view; else ``leads_outside`` is asked.
    """
    name = argv[0]
    paths = [name] if "/" in name else [f"{d or '.'}/{name}" for d in environment.get("PATH", "").split(":")]
    denied = interpreter = False
    for path in paths if name else ():
        if path != paths[-1] and not os.path.lexists(path):
            continue  # as good as ENOENT, and without a question to the tracer
        try:
            if not walled and leads_outside(path):
                raise PermissionError(errno.EACCES, "it leads to a program outside of the sandbox")
            os.execve(path, list(argv), environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC and (walled or not leads_outside("/bin/sh")):
                os.execve("/bin/sh", ["sh", path, *argv[1:]], environment)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                denied = True
                cause = error.strerror
            elif os.path.isfile(path):
                interpreter = True
    shown = escape(name) or "''"
    if denied:
        text = f"{shown}: {cause}"
    elif interpreter:  # of a script in its first line, of a program in its header (execve(2))
        text = f"{shown}: it is there, and the interpreter that it names is not"
    else:
        text = f"{shown}: {'no such file' if '/' in name else 'command not found'}"
    os.write(2, f"membrane: {text}\n".encode())
    os.close(exec_status)
    os._exit(126 if denied else 127)
