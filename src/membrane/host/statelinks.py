"""Links in a sandbox's home to the kept state of an agent, where nothing can be mounted over a name of it.

Theory of operation
-------------------
The home was written by commands of earlier runs, so nothing in it is followed: the directories above the name are
opened one in the other with O_NOFOLLOW, and made where they are missing.  What has the name already is a link of ours
from an earlier run, an empty directory, or something that a command without the agent's profile has left: that is
moved beside it, as natively it would be covered.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import HostError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def put(home: str, name: str, to: str) -> None:
    """Make ``name`` a symbolic link to ``to``.

    Args:
        home: a home of ours, which exists.
        name: relative to it, of one component or more.

    Raises:
        HostError: it cannot be made; also where a link is on the way to it, which a command may have made.
    """
    try:
        _put(home, name.split("/"), to)
    except OSError as error:
        followed = error.errno in (errno.ELOOP, errno.ENOTDIR)
        fix = ("remove it, or use --reset",) if followed else ()
        cause = "a link or a file that may have been made inside is on the way" if followed else error.strerror or ""
        raise HostError("lead to an agent's state", cause, target=f"{home}/{name}", fix=fix) from None


def _put(home: str, parts: list[str], to: str) -> None:
    place = os.open(home, _DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                os.mkdir(part, 0o700, dir_fd=place)
            except FileExistsError:
                pass
            inner = os.open(part, _DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
        if _is_free(place, parts[-1], to):
            os.symlink(to, parts[-1], dir_fd=place)
    finally:
        os.close(place)


def _is_free(place: int, name: str, to: str) -> bool:
    """Make the name free; false: the link is there."""
    try:
        found = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return True
    if stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=place) == to:
        return False
    if stat.S_ISLNK(found.st_mode):
        os.unlink(name, dir_fd=place)
        return True
    try:
        os.rmdir(name, dir_fd=place)
    except OSError:
        os.rename(name, f"{name}.{os.urandom(4).hex()}", src_dir_fd=place, dst_dir_fd=place)
    return True
