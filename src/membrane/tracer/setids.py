"""Files that would be set-user-ID, made without the bit in the place of the command (``containers: nested``).

Theory of operation
-------------------
Images hold set-user-ID files.  Inside no process can use one (no_new_privs), and in a live workspace one would be a
door for others on the host.  So the bits are left out, and the call succeeds: the modes of openat(2) and chmod(2) are
arguments of the call, which no other thread can change (seccomp_unotify(2)), and a call that has them is never let
through.  It is done here instead: the tracer finds the directory, or the file, in the caller's view and holds it by a
descriptor; a child enters the caller's user namespace, whose owner the tracer's user is (user_namespaces(7)), and makes
the file below that descriptor, following nothing.  It has no right that the caller lacks: only root of the namespace
with the capabilities of one is served, everybody else gets EPERM.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from ..host import syscalls
from ..host.notify import DONE, SENT
from ..host.ready import ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BITS = stat.S_ISUID | stat.S_ISGID
_SECONDS = 30.0  # for a child that makes one file; nothing that it does waits for anybody
_ADDFD, _ADDFD_SEND = 0x40182103, 2  # SECCOMP_IOCTL_NOTIF_ADDFD, struct seccomp_notif_addfd
_WANTED = 1 << 0 | 1 << 1 | 1 << 3  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER


def make(listener: int, number: int, thread: int, uid: int, place: tuple[int, bytes], flags: int, mode: int) -> int:
    """Open or make a regular file and give the caller its descriptor: ``SENT``, or the errno.

    Args:
        number: of the notification.
        uid: the kernel's, of root in the sandbox.
        place: a directory of the caller's view (O_PATH) and a name in it; closed here.
        flags, mode: of the call.
    """
    above, name = place

    def action() -> None:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode & 0o7777 & ~BITS, dir_fd=above)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EPERM, "not a regular file")
        if not flags & os.O_NONBLOCK:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        fcntl.ioctl(listener, _ADDFD, struct.pack("=QIIII", number, _ADDFD_SEND, fd, 0, flags & os.O_CLOEXEC))

    try:
        return _as_root(thread, uid, action) or SENT
    finally:
        os.close(above)


def change(thread: int, uid: int, opened: int, mode: int) -> int:
    """Set the mode of a file without the bits, or of a directory without set-user-ID: ``DONE``, or the errno.

    Args:
        opened: of it, in the caller's view (O_PATH); closed here.
    """

    def action() -> None:
        kept = stat.S_ISGID if stat.S_ISDIR(os.fstat(opened).st_mode) else 0
        os.chmod(f"/proc/self/fd/{opened}", mode & 0o7777 & ~BITS | mode & kept)

    try:
        return _as_root(thread, uid, action) or DONE
    finally:
        os.close(opened)


def _as_root(thread: int, uid: int, action: Callable[[], None]) -> int:
    """The errno of ``action`` in the user namespace of ``thread``; 0: it was done."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            fields = dict(line.split(b":\t", 1) for line in file if b":\t" in line)
        owner, capabilities = int(fields[b"Uid"].split()[3]), int(fields[b"CapEff"], 16)
        if owner != uid or capabilities & _WANTED != _WANTED:
            return errno.EPERM
        namespace = os.open(f"/proc/{thread}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, KeyError, ValueError):
        return errno.EPERM
    answers, answering = os.pipe()
    pid = os.fork()
    if pid == 0:
        error = errno.EPERM
        try:
            syscalls.setns(namespace, syscalls.CLONE_NEWUSER)
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.umask(int(fields[b"Umask"], 8))
            action()
            error = 0
        except OSError as failed:
            error = failed.errno or errno.EPERM
        finally:
            os.write(answering, bytes((error & 0xFF,)))
            os._exit(0)
    os.close(answering)
    os.close(namespace)
    try:
        if not ready((answers,), seconds=_SECONDS)[0]:
            os.kill(pid, 9)
            return errno.EPERM
        answer = os.read(answers, 1)
        return answer[0] if answer else errno.EPERM
    finally:
        os.close(answers)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
