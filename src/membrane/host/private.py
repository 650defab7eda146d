"""Directories of our state: made where they are missing, and the caller's alone; locks of what is in them."""

from __future__ import annotations

import os

from ..errors import HostError


def make_private(path: str) -> None:
    """Make a directory of our state and what is missing above it, mode 0700.

    Raises:
        HostError: it cannot be made or belongs to another user.
    """
    try:
        _make_missing(path)
        details = os.stat(path)
    except OSError as error:
        raise HostError(
            "make membrane's state directory",
            error.strerror or "",
            target=path,
            fix=("set MEMBRANE_HOME to a directory that you can write",),
        ) from None
    if details.st_uid != os.geteuid():
        raise HostError(
            "use membrane's state directory",
            f"it belongs to uid {details.st_uid}",
            target=path,
            fix=("set MEMBRANE_HOME to a directory of your own",),
        )


def is_held(fd: int) -> bool:
    """Does a process hold the lock of a file, as it does for as long as it lives (flock(2), LOCK_EX)?

    Asked for by a shared lock, so that two who look do not take each other for the holder.  Where nobody held it, it is
    the caller's until ``fd`` is closed: who wants it meanwhile waits, and finds out what became of the file.
    """
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def take_back(path: str) -> None:
    """A directory of ours that a command gave to another id is ours again, mode 0700; what is in it stays as it is.

    A command with ``containers: nested`` is root over what it writes, and the tops of its home and of its storage are
    among that.  Only where the directory above is ours, so that nobody else's is meant; what cannot be done
    ``make_private`` reports.
    """
    above, name = os.path.split(path)
    try:
        parent = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return

    def take() -> None:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fchown(fd, 0, 0)  # root over the caller's ids: the caller
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    try:
        given = os.stat(name, dir_fd=parent, follow_symlinks=False).st_uid != os.geteuid()
        if not given or os.fstat(parent).st_uid != os.geteuid():
            return
        if os.geteuid():
            from .subordinate import as_root_of_them

            as_root_of_them(take)
        else:
            take()
    except OSError:
        pass
    finally:
        os.close(parent)


def _make_missing(path: str) -> None:
    # Not os.makedirs: its mode is for the last directory only.
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_missing(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
