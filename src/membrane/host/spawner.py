"""Many commands in one sandbox: a process outside of its pid namespace that forks each of them.

Theory of operation
-------------------
The launcher makes the sandbox as for one command; pid 1 then only keeps the view and the namespaces.  The spawner is
forked by the launcher, enters the namespaces, installs the filter whose notifications the tracer reads (every command
inherits it, so one listener serves all), and waits for jobs::

    supervisor   the caller's process of this sandbox
    launcher     as ever: mounts masks
    init         pid 1 of the sandbox
    spawner      in the sandbox's user and mount namespace, in the host's pid namespace
    keeper       one for each command: ``fresh``: pid 1 of its own pid and mount namespace; ``kept``: in the sandbox's
    command      confines itself, waits for the word, calls execve(2)

``fresh``: a command sees the sandbox's view with new private scratch directories (``view.refresh``), and whatever it
leaves running ends with it.  Its mounts are slaves of the sandbox's: a mask that the launcher mounts later appears in
every command's view.  ``kept``: scratch directories and processes stay for the next command; orphans belong to pid 1.

Rules
-----
1. The capabilities of the spawner and of a keeper count in the sandbox's user namespace only.  No command can see the
   spawner, and none can trace a keeper: it has capabilities until it has given them up for good, and is not dumpable
   from then on (ptrace(2)).
2. The commands of a ``kept`` sandbox are one principal: they may signal and trace each other.  But none can trace one
   that is not confined yet: that one has capabilities until then.
3. A command confines itself before it knows what it is to run, so one can wait ready for the next job.
4. Keepers and commands die with their parent (prctl(2), PR_SET_PDEATHSIG); the spawner ends with its channel, which the
   supervisor holds, and waits for its keepers before.
5. No descriptor of one job reaches another.

What they say to each other is in ``host.messages``; a keeper says what pid 1 says of one command.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from . import landlock, view
from . import messages as m
from . import syscalls as sc
from .channel import SIGCHLD, SIGKILL, LaunchFailed, Step, passed, run_child
from .init import (
    assemble,
    confine_unwatched,
    make_terminal,
    notifying,
    reap_ended,
    replace_streams,
    run_command,
    waiting_for,
)
from .ready import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence

    from .channel import Channel
    from .init import Filters
    from .start import Start
else:
    import _signal

LAST = 10.0  # seconds for the keepers to end; then they are killed
KINDS = ("user", "mnt", "ipc", "uts", "cgroup")  # of the namespaces that it enters, besides that of the network
_FLAGS = {
    "user": sc.CLONE_NEWUSER,
    "mnt": sc.CLONE_NEWNS,
    "pid": sc.CLONE_NEWPID,
    "ipc": sc.CLONE_NEWIPC,
    "uts": sc.CLONE_NEWUTS,
    "cgroup": sc.CLONE_NEWCGROUP,
}


def spawner(start: Start, channel: Channel, namespaces: dict[str, int]) -> None:
    """In a child of the launcher: enter the namespaces and serve until the channel ends.

    It asks for no signal when the launcher dies: its keepers would be orphans (``_wait_for_all``).
    """
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    replace_streams(os.dup(null))
    sys.meta_path.clear()  # as in ``init``: files have names in the view from here on
    with Step(channel, "enter the sandbox"):
        for kind in KINDS:
            sc.setns(namespaces[kind], _FLAGS[kind])
        if start.commands == "kept":
            sc.setns(namespaces["pid"], _FLAGS["pid"])
        else:
            sc.mount(None, "/", None, sc.MS_REC | sc.MS_SHARED)
        os.chdir("/")
    for fd in namespaces.values():
        os.close(fd)
    sc.drop_bounding_set()  # once for all: a process in it can only lose capabilities
    if start.commands == "kept" and start.plan.hardening.landlock:
        # One domain for all: they may signal each other, and talk over abstract sockets (landlock(7), scopes).
        with Step(channel, "apply Landlock"):
            hardening = start.plan.hardening
            landlock.restrict(("/",), hardening.landlock_writable, other_sockets=hardening.other_sockets)
    listener, error = -1, 0
    if start.notify:
        try:
            listener = sc.seccomp_listen(notifying(start))
        except OSError as failed:
            error = failed.errno or 0  # the supervisor decides whether the run needs it
    if listener < 0:
        confine_unwatched(start)
    channel.send(m.Ready(error, None if listener < 0 else listener))
    if listener >= 0:
        os.close(listener)  # who holds it can answer for everybody
    with Step(channel, "assemble the seccomp filter"):
        filters = assemble(start)
    gc.freeze()  # a collection would write to every page that is shared with the process that forked us
    poll, wake_read, wake_write = waiting_for(channel)
    while True:
        for fd, _event in poll.poll():
            if fd == wake_read:
                reap_ended(wake_read)
                continue
            message = channel.receive()
            if not isinstance(message, m.ForkCommand):
                _wait_for_all(wake_read)
                return
            _fork(start, filters, message, null, (wake_read, wake_write, channel.fileno()))
            os.close(message.channel)


def _wait_for_all(wake: int) -> None:
    """Until every keeper has ended, which they do with the supervisor or with pid 1; at most ``LAST`` seconds.

    Pid 1 cannot end before they are reaped (pid_namespaces(7)).  An orphan of ours would be left to the process that
    adopts
    it: a container's first process, or a subreaper, which may not wait for it.
    """
    deadline = time.monotonic() + LAST
    try:
        while (left := deadline - time.monotonic()) > 0:
            if not os.waitpid(-1, os.WNOHANG)[0] and ready((wake,), seconds=left)[0]:
                os.read(wake, 512)
    except ChildProcessError:
        pass


def _fork(start: Start, filters: Filters, asked: m.ForkCommand, null: int, ours: Sequence[int]) -> None:
    end = asked.channel
    channel = passed(os.dup(end), m.FROM_INSIDE, m.TO_INSIDE)
    spawner_pid = os.getpid()
    flags = 0 if start.commands == "kept" else sc.CLONE_NEWPID | sc.CLONE_NEWNS | sc.CLONE_NEWIPC
    try:
        with Step(channel, "make the namespaces of a command"):
            pid = sc.clone(flags)
    except LaunchFailed:
        channel.close()
        return
    if pid:
        channel.close()
        return

    def body() -> None:
        sc.set_parent_death_signal(SIGKILL)
        # In a pid namespace of its own the parent has no number.
        if os.getppid() not in (0, spawner_pid):
            os._exit(1)
        _signal.set_wakeup_fd(-1)
        _signal.signal(SIGCHLD, _signal.SIG_DFL)
        for fd in (*ours, end):
            os.close(fd)
        if flags:
            with Step(channel, "make a view of its own"):
                view.refresh(start.plan.mounts)
        slave = -1
        if asked.terminal:
            with Step(channel, "make a terminal"):
                slave = make_terminal(channel)
        own = (0 in asked.terminal, 1 in asked.terminal, 2 in asked.terminal)
        run_command(start.replace(terminal=own), filters, channel, null, slave)

    run_child(body, channel)
