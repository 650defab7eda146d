"""What a process was started with, made into what this program is written for.

Theory of operation
-------------------
execve(2) keeps descriptors, ignored signals and the signal mask, and each program chooses them for the next: a daemon
closes its streams, a service manager ignores SIGCHLD, a runtime blocks signals in the thread that starts a child.  What
would be wrong with us is undone once, before anything else is opened or forked:

* a closed standard stream becomes ``/dev/null``: a later descriptor would take its number, and be the command's;
* SIGCHLD is not ignored: the kernel would reap our children by itself, and wait4(2) would say ECHILD for a status;
* no signal is blocked: the supervisor would not be ended by SIGTERM, nor the command by what is forwarded to it;
* ``/proc`` is that of our pid namespace (``unshare --pid`` without ``--mount-proc``): a number of ours would name
  another process there, whose maps would be written, and whose confinement would be read back for the command's.

Ignored SIGHUP, SIGINT and SIGQUIT stay: they are the wish of nohup(1), or of a shell that has no job control.

Limits (getrlimit(2)) are kept as well, and hold for us and the command.  What fails for one of them says so
(``name_limit``).
"""

from __future__ import annotations

import errno
import os
import sys

from ..errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

_SIGCHLD = 17
# Errno, limit, what it allows, what raises it in the shell that started us.
_LIMITS = (
    (errno.EMFILE, "RLIMIT_NOFILE", "{} open files in each process", "ulimit -n 1024"),
    (errno.EFBIG, "RLIMIT_FSIZE", "files of at most {} bytes", "ulimit -f unlimited"),
    (errno.EAGAIN, "RLIMIT_NPROC", "this user {} processes and threads", "ulimit -u 1000"),
)

_RUN = 20  # processes and threads of a run, and some more


def settle() -> None:
    """Undo what the caller of this program left in it; at the start of the main thread.

    Raises:
        HostError: ``/proc`` is not that of this process.
        OSError: there is no ``/dev/null``, or no descriptor left.
    """
    ensure_streams()
    if _signal.getsignal(_SIGCHLD) == _signal.SIG_IGN:
        _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    check_proc()


def ensure_streams() -> None:
    """Open ``/dev/null`` for every closed standard stream."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open("/dev/null", os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
    # The interpreter found them closed, and has None.
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def check_proc() -> None:
    """Is ``/proc`` that of this process (proc(5), ``/proc/self``: by the pid namespace of the mount)?

    Raises:
        HostError: it is another pid namespace's, or there is none.
    """
    try:
        shown = os.readlink("/proc/self")
    except OSError as error:
        there = os.path.isdir("/proc/1")
        cause = "it shows another pid namespace, without this process" if there else error.strerror or ""
    else:
        if shown == str(os.getpid()):
            return
        cause = f"it shows another pid namespace, in which this process is {shown} and not {os.getpid()}"
    raise HostError("use /proc", cause, fix=("mount -t proc proc /proc", "unshare --pid --fork --mount-proc ..."))


def name_limit(lines: list[str]) -> list[str]:
    """The lines of an error; where a limit of the caller's explains it, that limit and what raises it are the advice.

    By the text of the errno: some errors come from another process of ours.
    """
    said = "\n".join(lines).casefold()
    for number, name, allows, remedy in _LIMITS:
        if os.strerror(number).casefold() in said and (limit := _limit(number)) >= 0:
            kept = [line for line in lines if not line.startswith(("  try: ", "  or:  "))]
            return [*kept, f"  limit: {name} allows {allows.format(limit)}", f"  try: {remedy}"]
    return lines


def _limit(number: int) -> int:
    """-1: there is none."""
    if number == errno.EMFILE:
        return os.sysconf("SC_OPEN_MAX")  # no module is found any more
    import resource

    if number == errno.EFBIG:
        return resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    # EAGAIN has other causes: it is this one where a run does not fit in.
    return allowed if allowed - _threads() < _RUN else -1


def _threads() -> int:
    """How many processes and threads this user has, as RLIMIT_NPROC counts them."""
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended
    return found
