"""A protected name that must go: out of the way where it is, or out of the workspace.

Theory of operation
-------------------
``put_aside`` takes its name from it where it is, ``quarantine`` moves it out when no process of the sandbox is left.
Both run outside of the sandbox, with the rights of the caller, on a tree that the command may be changing: names are
looked up by ``below``, and then below descriptors; nothing is copied without a bound, and nothing is overwritten.
"""

from __future__ import annotations

import errno
import os
import stat

from ..host.writing import write_all
from .below import open_below
from .gitdir import LONGEST_KEPT, REFUSED

LARGEST_COPY = 16 << 20  # bytes that quarantine copies across file systems
MOST_COPIED = 1_000  # names that quarantine copies across file systems
DEEPEST_COPY = 64  # directory levels that quarantine copies across file systems


def put_aside(root_fd: int, path: str) -> str:
    """Give a name that must go another one in its own directory, which no program obeys; return the new path.

    One rename(2) by descriptors: nothing is copied, no other file system and no room is needed, and it does not depend
    on what or how much it is.  Where not even that can be done a file or a link is removed, and "" returned.

    Raises:
        FileNotFoundError: it vanished.
        OSError: it is still there.
    """
    parent, _, name = path.rpartition("/")
    aside = os.fsdecode(os.fsencode(name)[:LONGEST_KEPT]) + REFUSED + os.urandom(6).hex()
    try:
        directory = open_below(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        open_up(root_fd, parent or ".")
        directory = open_below(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError:
            try:
                open_up(root_fd, parent or ".")  # the command took the right to write from us
                os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=directory)
            except FileNotFoundError:
                raise
            except OSError:
                os.unlink(name, dir_fd=directory)  # needs no room; a directory stays
                return ""
    finally:
        os.close(directory)
    return f"{parent}/{aside}" if parent else aside


def put_back(root_fd: int, path: str, data: bytes, mode: int) -> None:
    """Make a file that is not there, with this content.

    Raises:
        OSError: something is there, or it cannot be made.
    """
    parent, _, name = path.rpartition("/")
    directory = open_below(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode, dir_fd=directory)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
    finally:
        os.close(directory)


def quarantine(root_fd: int, path: str, quarantine_fd: int, called: str = "") -> str:
    """Move a name out of the workspace; return where it went, relative to the quarantine directory.

    ``called``: its name there; empty: the one that it has.

    Each name gets a new numbered directory, so nothing is ever overwritten.  Across file systems it is copied
    (regular files, directories, links as they are; nothing setuid, no devices) and then removed.

    Raises:
        FileNotFoundError: it vanished.
        OSError: it could not be moved, or is larger than may be copied (EFBIG); it is then still there.
    """
    parent, _, name = path.rpartition("/")
    try:
        source = open_below(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        open_up(root_fd, parent or ".")
        source = open_below(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.stat(name, dir_fd=source, follow_symlinks=False)
        number = os.stat(quarantine_fd).st_nlink - 1  # about the number of directories in it
        while True:
            try:
                os.mkdir(str(number), 0o700, dir_fd=quarantine_fd)
                break
            except FileExistsError:
                number += 1
        place = os.open(str(number), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=quarantine_fd)
        try:
            try:
                _move(source, name, place, called or name)
            except PermissionError:
                # rename(2) must write the directory it takes from and, for "..", a directory that it moves.
                open_up(root_fd, parent or ".")
                open_up(root_fd, path)
                _move(source, name, place, called or name)
        except OSError:
            _remove_children(place, 0)
            os.rmdir(str(number), dir_fd=quarantine_fd)
            raise
        finally:
            os.close(place)
        return f"{number}/{called or name}"
    finally:
        os.close(source)


def open_up(root_fd: int, path: str) -> None:
    """Give the owner his rights on a directory back, which the command took away to keep us out.

    Raises:
        OSError: it is not there, or not ours.
    """
    try:
        # The workspace itself, closed, cannot even be looked up as ".".
        fd = os.dup(root_fd) if path == "." else open_below(root_fd, path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:
        return
    try:
        mode = stat.S_IMODE(os.stat(fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:  # else ctime would change, and the next scan list everything again
            os.chmod(f"/proc/self/fd/{fd}", mode | stat.S_IRWXU)
    finally:
        os.close(fd)


def _move(source: int, name: str, place: int, called: str) -> None:
    try:
        os.rename(name, called, src_dir_fd=source, dst_dir_fd=place)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    _copy(source, name, place, [LARGEST_COPY, MOST_COPIED], 0, called)
    _remove(source, name, 0)


def _copy(source: int, name: str, place: int, left: list[int], depth: int, called: str = "") -> None:
    """Copy one name; ``left`` counts down bytes and names, ``called`` is the name of the copy if it is another."""
    called = called or name

    left[1] -= 1
    if left[1] < 0 or depth > DEEPEST_COPY:
        raise OSError(errno.EFBIG, "too much to copy into quarantine", name)
    mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=source), called, dir_fd=place)
    elif stat.S_ISREG(mode):
        _copy_file(source, name, place, left, called)
    elif stat.S_ISDIR(mode):
        os.mkdir(called, 0o700, dir_fd=place)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inner = os.open(name, flags, dir_fd=source)
        try:
            outer = os.open(called, flags, dir_fd=place)
            try:
                for child in os.listdir(inner):
                    _copy(inner, child, outer, left, depth + 1)
            finally:
                os.close(outer)
        finally:
            os.close(inner)


def _copy_file(source: int, name: str, place: int, left: list[int], called: str) -> None:
    reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(errno.EAGAIN, "it changed while it was copied", name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        writer = os.open(called, flags, 0o600, dir_fd=place)
        try:
            while piece := os.read(reader, 1 << 20):
                left[0] -= len(piece)
                if left[0] < 0:
                    raise OSError(errno.EFBIG, "too much to copy into quarantine", name)
                write_all(writer, piece)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _remove(parent: int, name: str, depth: int) -> None:
    """Remove one name and what is below it, by descriptors only."""
    try:
        os.unlink(name, dir_fd=parent)
        return
    except IsADirectoryError:
        pass
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _remove_children(fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _remove_children(fd: int, depth: int) -> None:
    if depth > DEEPEST_COPY + 1:
        raise OSError(errno.ELOOP, "directories nested too deeply to remove")
    for child in os.listdir(fd):
        _remove(fd, child, depth)
