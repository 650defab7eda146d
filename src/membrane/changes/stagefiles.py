"""The files of an apply beside the workspace: a stage copied or removed, a journal written or read.

Theory of operation
-------------------
A stage is one directory of files, links, fifos and directories, of which some hold what comes with them.  What is
removed here is ours, and is removed by descriptors, so that no link leads out of it.  A journal is JSON and gets its
name by rename(2) when it is on the disk, so there is never half of one.
"""

from __future__ import annotations

import os
import shutil
import stat

from ..errors import HostError
from ..host.writing import write_all
from .tree import LARGEST_READ, open_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def copy_small(source: int, target: int, size: int) -> bytes:
    """The content of an open file of ``size`` bytes into an empty one, in two calls; its hash (``digest``).

    Returns: nothing, and nothing was copied, where it is larger than ``LARGEST_READ`` or has another size.

    Raises:
        OSError: it cannot be read, or not be written in full.
    """
    from hashlib import blake2b

    if size > LARGEST_READ:
        return b""
    content = os.pread(source, size + 1, 0)
    if len(content) != size:
        return b""
    if size:
        written = os.pwrite(target, content, 0)
        if written < size:
            write_all(target, content[written:], written)
    return blake2b(content, digest_size=32).digest()


def copy_tree(source: int, target: str) -> None:
    """A stage, copied: files, links, fifos and directories, as they are; what cannot be read is left out."""
    os.mkdir(target, 0o700)
    todo = [""]
    while todo:
        inner = todo.pop()
        directory = open_below(source, inner, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(directory):
                if _copy_one(directory, name, f"{target}/{inner}{name}"):
                    todo.append(f"{inner}{name}/")
        finally:
            os.close(directory)


def _copy_one(source: int, name: str, place: str) -> bool:
    """One name of a stage; true: it is a directory, and what is in it is to be copied."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), place)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(place, 0o700)
        os.chmod(place, mode)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(place, mode)
    elif stat.S_ISREG(status.st_mode):
        try:
            shutil.copy2(f"/proc/self/fd/{source}/{name}", place, follow_symlinks=False)
        except PermissionError:
            return False
    else:
        return False
    if os.geteuid() == 0:
        os.chown(place, status.st_uid, status.st_gid, follow_symlinks=False)
    return stat.S_ISDIR(status.st_mode) and (os.geteuid() == 0 or mode & stat.S_IRWXU == stat.S_IRWXU)


def remove_path(path: str) -> None:
    """``remove_tree`` by a path of ours."""
    home = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(home, os.path.basename(path))
    finally:
        os.close(home)


def remove_tree(parent: int, name: str) -> None:
    """A stage of ours, removed by descriptors; what cannot be removed stays."""
    try:
        _open_up(parent, name)
    except OSError:
        return
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    if not os.path.lexists(f"/proc/self/fd/{int(parent)}/{name}"):
        return
    # What was taken back may hold directories that are closed: by what was applied, or by the host since.
    todo = [name]
    while todo:
        place = todo.pop()
        try:
            _open_up(parent, place)
            fd = open_below(parent, place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            with os.scandir(fd) as listing:
                todo += [f"{place}/{entry.name}" for entry in listing if entry.is_dir(follow_symlinks=False)]
        finally:
            os.close(fd)
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


def _open_up(parent: int, path: str) -> None:
    """Mode 0700 for a directory of a stage.

    Raises:
        OSError: it is none, or not ours.
    """
    handle = open_below(parent, path, os.O_PATH | os.O_DIRECTORY)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)


def write(path: str, stored: dict[str, Any]) -> None:
    """Write a file of JSON, in one step and to the disk."""
    import json

    with open(f"{path}.new", "wb") as file:
        file.write(json.dumps(stored, ensure_ascii=True).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(path: str) -> dict[str, Any]:
    """What ``write`` wrote; {}: nothing is there.

    Raises:
        HostError: it cannot be read.
    """
    import json

    try:
        with open(path, "rb") as file:
            stored = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HostError("read the journal", str(error), target=path) from None
    if not isinstance(stored, dict):
        raise HostError("read the journal", "it is something else", target=path)
    return stored
