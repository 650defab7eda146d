"""Removing what a command left: trees with any names, modes and depth, without following a link."""

from __future__ import annotations

import errno
import os
import stat

EMPTY = ".empty"  # after the name of a layer of masks: the file of which its empty ones are links
_OPAQUE = "user.overlay.opaque"


def remove_tree(path: str) -> None:
    """Remove a directory of ours and all below it; links in it are removed, not followed.

    A command chose the modes of what is in a layer, and the kernel leaves ``work/work`` with mode 000: each directory
    is made readable before it is listed.  What cannot be removed (files of uids that are not the caller's, nor his
    subordinate ones) stays; it is no error, as the name that people know is gone already.
    """
    try:
        parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    # A stack of our own and one open directory for each level: a command can nest deeper than Python recurses, so what
    # is deep is moved up to ``path`` first.
    name = os.path.basename(path)
    try:
        left = _remove_at(parent, name)
        if left and os.geteuid():  # perhaps of subordinate ids: of containers (``containers: nested``)
            from ..host.subordinate import as_root_of_them

            # ``name`` last: it would give what is below it names that are in ``left``.
            as_root_of_them(lambda: [_remove_at(parent, each) for each in sorted(left, key=len, reverse=True)])
    finally:
        os.close(parent)


def _remove_at(parent: int, name: str) -> list[str]:
    """Remove ``name`` with all below it, without recursion: a directory that holds others gives them to its parent.

    Returns:
        Names in ``parent`` that are still there.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    waiting, left = [name], list[str]()
    count = 0
    while waiting:
        each = waiting.pop()
        try:
            details = os.stat(each, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(details.st_mode):
                os.unlink(each, dir_fd=parent)
                continue
            if stat.S_IMODE(details.st_mode) & 0o700 != 0o700:
                _open_up(parent, each)
            fd = os.open(each, flags, dir_fd=parent)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(each)
            continue
        try:
            for inner in os.listdir(fd):
                try:
                    os.unlink(inner, dir_fd=fd)
                    continue
                except OSError as error:
                    if error.errno not in (errno.EISDIR, errno.EPERM):
                        continue
                try:
                    os.rmdir(inner, dir_fd=fd)
                    continue
                except OSError:
                    pass
                count += 1
                moved = f"{name}.{count}"
                try:
                    _open_up(fd, inner)  # of a directory that is moved ".." is written
                    os.rename(inner, moved, src_dir_fd=fd, dst_dir_fd=parent)
                except OSError:
                    continue
                waiting.append(moved)
        finally:
            os.close(fd)
        try:
            os.rmdir(each, dir_fd=parent)
        except OSError:
            left.append(each)
    return left


def _open_up(parent: int, name: str) -> None:
    """Mode 0700 for a directory of ours; it is one, and no other user can put a link in its place."""
    os.chmod(name, 0o700, dir_fd=parent)


def link_tree(source: str, target: str) -> None:
    """A second tree of the same files, for a layer of masks, which nothing writes: hard links, and directories anew.

    Where a file has as many links as its file system lets it have, an empty one takes its place: it is one, or a
    whiteout.

    Raises:
        OSError: a part of it cannot be made.
    """
    if os.path.exists(f"{source}{EMPTY}"):
        _link(f"{source}{EMPTY}", f"{target}{EMPTY}")
    todo = [("", source)]
    while todo:
        place, directory = todo.pop()
        os.mkdir(f"{target}{place}", 0o700)
        try:
            os.setxattr(f"{target}{place}", _OPAQUE, os.getxattr(directory, _OPAQUE))
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
        with os.scandir(directory) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    todo.append((f"{place}/{entry.name}", entry.path))
                else:
                    _link(entry.path, f"{target}{place}/{entry.name}")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        details = os.lstat(source)
        os.mknod(target, stat.S_IFMT(details.st_mode) | 0o600, 0)
        os.chown(target, details.st_uid, details.st_gid, follow_symlinks=False)
        os.chmod(target, stat.S_IMODE(details.st_mode))
