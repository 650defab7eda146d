"""The mode of a directory, set in the place of the command.

Theory of operation
-------------------
A set-group-ID bit is harmless on a directory, where tools set it every day, and not on a file: outside, everybody who
executes it becomes a member of the caller's group.  chmod(2) names a path or a descriptor, and both may mean something
else by the time the kernel looks.  So the call is never let through: here the object is held by a descriptor, judged,
and changed through the same one, with the rights of the caller, who owns what the command owns.
"""

from __future__ import annotations

import errno
import os
import stat

from ..host import syscalls
from ..host.notify import DONE


def set_mode(opened: int, mode: int, path: str, roots: list[str]) -> int:
    """``DONE``, or the errno: EPERM for anything but a directory, and what chmod(2) says.

    Args:
        opened: an O_PATH descriptor of it in the sandbox's view; closed here.
        mode: permission bits.
        path: its name in the view.
        roots: trees that have the same names outside.
    """
    try:
        status = os.fstat(opened)
        if not stat.S_ISDIR(status.st_mode):
            return errno.EPERM
        try:
            os.chmod(f"/proc/self/fd/{opened}", mode)
            return DONE
        except PermissionError:
            # A root caller's tree is idmapped: through that mount the files are those of the sandbox's range.
            if os.fstatvfs(opened).f_flag & os.ST_RDONLY or not any(f"{path}/".startswith(f"{r}/") for r in roots):
                raise
        outside = syscalls.openat2(syscalls.AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY, 0, syscalls.RESOLVE_NO_SYMLINKS)
        try:
            if not os.path.samestat(os.fstat(outside), status):
                return errno.EPERM
            os.chmod(f"/proc/self/fd/{outside}", mode)
        finally:
            os.close(outside)
    except OSError as error:
        return error.errno or errno.EPERM
    finally:
        os.close(opened)
    return DONE
