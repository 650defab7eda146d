"""Our own directories that a sandbox sees as its home, and the agent state that workspaces share.

Theory of operation
-------------------
Each workspace has a home of its own under ``$MEMBRANE_HOME/homes``, so that nothing that one project's agent leaves
(shell files, hooks, caches) is read by another.  What an agent must find everywhere, its log-in and settings, is
kept under ``$MEMBRANE_HOME/agents/NAME``: directories are bound into the home by the plan; single files can not be
(programs replace them by rename, which a mount point refuses), so they are copied in when the home has none yet, and
copied back after the run when they changed.

The home was written by a command of an earlier run: its paths are opened with RESOLVE_BENEATH and
RESOLVE_NO_SYMLINKS, so that a link in it can not make us read or write a file of the host.
"""

from __future__ import annotations

import os
import stat

from .host.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from .runs import make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST = 16 << 20  # bytes of one state file
_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS


def prepare(stores: Iterable[str], home: str, agent: str, files: Iterable[str]) -> None:
    """Make the directories of the plan and seed a new home.

    Args:
        stores: directories to make, mode 0700.
        home: the store that is bound over $HOME; empty when there is none that is kept.
        agent: ``$MEMBRANE_HOME/agents/NAME``.
        files: names below both, of single files.

    Raises:
        HostError: a directory can not be made.
    """
    for path in stores:
        make_private(path)
    for name in files if home else ():
        _copy(agent, home, name, replace=False)


def keep(home: str, agent: str, files: Iterable[str]) -> None:
    """Copy state files that the run changed back to ``agent``."""
    for name in files if home else ():
        _copy(home, agent, name, replace=True)


def _copy(source: str, target: str, name: str, *, replace: bool) -> None:
    """Copy one regular file; anything unexpected (a link, a device, too large, gone) is left alone."""
    try:
        source_root = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fd = openat2(source_root, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0, _BENEATH)
    except OSError:
        return
    finally:
        os.close(source_root)
    try:
        details = os.fstat(fd)
        if not stat.S_ISREG(details.st_mode) or details.st_size > LARGEST:
            return
        data = b""
        while part := os.read(fd, LARGEST):
            data += part
            if len(data) > LARGEST:
                return
    finally:
        os.close(fd)
    make_private(target)
    target_root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _write(target_root, name, data, replace=replace)
    except OSError:
        pass  # the next run starts without it; nothing of this run depends on it
    finally:
        os.close(target_root)


def _write(root: int, name: str, data: bytes, *, replace: bool) -> None:
    parent, _, leaf = name.rpartition("/")
    directory = os.dup(root)
    for part in parent.split("/") if parent else ():
        try:
            os.mkdir(part, 0o700, dir_fd=directory)
        except FileExistsError:
            pass
        inner = openat2(directory, part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, 0, _BENEATH)
        os.close(directory)
        directory = inner
    try:
        temporary = f".{leaf}.membrane" if replace else leaf
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
        fd = os.open(temporary, flags, 0o600, dir_fd=directory)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        if replace:
            os.rename(temporary, leaf, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
