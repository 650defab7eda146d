"""The caller's subordinate ids: which there are, and a user namespace that maps them.

Theory of operation
-------------------
Root lists in subuid(5) and subgid(5) which further ids a user may give to namespaces of his; newuidmap(1) and
newgidmap(1), which are set-user-ID, write the maps (shadow-utils).  They are asked from outside of the sandbox, where
no_new_privs does not hold, and decide by those files again, so a wrong answer of ``find`` maps nothing more.
"""

from __future__ import annotations

import os

from ..errors import HostError
from ..plan.model import RANGE, Subordinate
from . import syscalls
from .channel import SIGKILL
from .ready import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILES = ("/etc/subuid", "/etc/subgid")
PROGRAMS = ("newuidmap", "newgidmap")
SECONDS = 60  # for one of the programs, on a busy machine
LEAST = 1_000  # ids: what system users of common images take
_LARGEST = 1 << 20  # bytes of a file
_PLACES = ("/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin")  # of set-user-ID programs, not of the PATH


def program(name: str) -> str:
    """Where the system has this program; empty: nowhere."""
    for place in _PLACES:
        path = f"{place}/{name}"
        if os.access(path, os.X_OK):
            return path
    return ""


def find(uid: int, *, files: Sequence[str] = FILES) -> Subordinate:
    """The largest range of each kind that a line gives to the login name of ``uid`` or to the number (subuid(5)); with
    ``lacking`` where one is missing."""
    import pwd  # not from the environment, which may name anybody or be empty

    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    ranges = [_largest(path, (user, str(uid))) for path in files]
    if not all(count >= LEAST for _first, count in ranges):
        name = user or str(uid)
        fix = f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
        return Subordinate(lacking=f"{' and '.join(files)} give {name} no ids", fix=fix)
    missing = [name for name in PROGRAMS if not program(name)]
    if missing:
        return Subordinate(lacking=f"{' and '.join(missing)} are not installed", fix="sudo apt install uidmap")
    uids, gids = ((first, min(count, RANGE)) for first, count in ranges)
    return Subordinate(uids, gids)


def _largest(path: str, names: Sequence[str]) -> tuple[int, int]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return 0, 0
    found = [(0, 0)]
    for line in lines:
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[0] in names and fields[1].isdecimal() and fields[2].isdecimal():
            found.append((int(fields[1]), int(fields[2])))
    return max(found, key=lambda each: each[1])


def write_maps(pid: int, maps: Sequence[Sequence[tuple[int, int, int]]]) -> None:
    """Have the id maps of the user namespace of ``pid`` written: uids, then gids, as (inside, outside, count).

    Without the package subprocess, whose import takes longer than both programs, which run beside each other.

    Raises:
        HostError: a program refuses, cannot be started, or does not end within ``SECONDS``.
    """
    running = []
    try:
        for name, rows in zip(PROGRAMS, maps, strict=True):
            running.append((name, *_start(name, [str(pid), *(str(number) for row in rows for number in row)])))
    finally:
        said = [(name, *_end(child, errors)) for name, child, errors in running]
    for name, status, text in said:
        if status:
            cause = " ".join(text.split())[:200] or f"it ended with status {status}"
            raise HostError("map subordinate ids", cause, target=name, fix=("membrane doctor",))


def _start(name: str, words: Sequence[str]) -> tuple[int, int]:
    """The pid of the program, and what it says on stderr."""
    path = program(name) or name
    errors, theirs = os.pipe()
    actions = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
    try:
        child = os.posix_spawn(path, [path, *words], {}, file_actions=[*actions, (os.POSIX_SPAWN_DUP2, theirs, 2)])
    except OSError as error:
        os.close(errors)
        raise HostError("map subordinate ids", error.strerror or "", target=name, fix=("membrane doctor",)) from None
    finally:
        os.close(theirs)
    return child, errors


def _end(child: int, errors: int) -> tuple[int, str]:
    """Its exit status, as waitpid(2) has it, and what it said; killed when it takes too long."""
    pidfd = os.pidfd_open(child)
    try:
        if not ready((pidfd,), seconds=SECONDS)[0]:
            os.kill(child, SIGKILL)
        _, status = os.waitpid(child, 0)
        os.set_blocking(errors, False)
        try:
            text = os.read(errors, 4096)
        except BlockingIOError:
            text = b""
        return status, text.decode("utf-8", "replace")
    finally:
        os.close(pidfd)
        os.close(errors)


def as_root_of_them(action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that is root over the caller and his subordinate ids, and over nothing else; whether
    that could be done at all.

    For what an engine of containers left: files of ids that no process of the caller has.
    """
    found = find(os.geteuid())
    if found.lacking:
        return False
    ready, made = os.pipe()
    mapped, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.write(made, b"x")
            if os.read(mapped, 1) == b"x":
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                action()
        finally:
            os._exit(0)
    try:
        os.close(made)
        os.close(mapped)
        if os.read(ready, 1) == b"x":
            owners = ((os.geteuid(), found.uids), (os.getegid(), found.gids))
            write_maps(pid, [((0, own, 1), (1, *given)) for own, given in owners])
            os.write(go, b"x")
            return True
        return False
    except HostError:
        return False
    finally:
        os.close(go)
        os.close(ready)
        os.waitpid(pid, 0)
