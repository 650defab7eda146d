"""Names that appeared during a session: benign, or moved out of the workspace.

Theory of operation
-------------------
``judge`` says why a protected name must go.  Benign is only what git itself writes for a new clone, worktree or
submodule; editor, agent and shell configuration never is.  ``quarantine`` moves a name out.

Both run outside of the sandbox, with the rights of the caller, on a tree that the agent may be changing: nothing is
opened by a path that a link could redirect (``openat2`` with ``RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS``, then names
below descriptors), nothing is read without a bound, and nothing is overwritten.
"""

from __future__ import annotations

import os
import stat

from ..host import syscalls
from .protect import (
    DATA,
    GIT,
    GIT_NAMES,
    HOOK,
    KIND,
    LARGEST_READ,
    LAYOUT,
    MOST_HOOKS,
    PROTECTED,
    REDIRECT,
    TREE,
    classify,
    fold,
    read_bounded,
    settled,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_COPY = 256 << 20  # bytes that quarantine copies across file systems
LONGEST_TARGET = 4096  # characters of a path that a pointer names: PATH_MAX (limits.h)
LONGEST_PART = 255  # characters of one component of it: NAME_MAX (limits.h)
DEEPEST_TARGET = 128  # components of it, as seen from the workspace
MOST_LISTED = 65_536  # names in the directories on the way to it
MOST_COPIED = 20_000  # names that quarantine copies across file systems
DEEPEST_COPY = 64  # directory levels that quarantine copies across file systems


def judge(root_fd: int, path: str) -> str:
    """Why a protected name that appeared during the session must go; empty when it is benign.

    Args:
        root_fd: the workspace.
        path: relative to it, as the scan or the watcher reported it.

    Benign is only what git itself writes for new clones, worktrees and submodules.  A name that vanished is benign.
    Whatever can not be read is not.  Never follows a symbolic link, never blocks on a fifo.
    """
    parent, _, name = path.rpartition("/")
    key, above = fold(name), fold(parent.rpartition("/")[2])
    try:
        mode = _stat(root_fd, path).st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it can not be looked at ({error.strerror})"
    if stat.S_ISLNK(mode):
        return "it is a symbolic link"
    if key == "hooks" and stat.S_ISDIR(mode) and above != ".claude":
        return _judge_hooks(root_fd, path)
    if not judged_by_content(key, above):
        return reason(key, above)
    validator = _VALIDATORS[key]
    if stat.S_ISDIR(mode) and key in GIT_NAMES:
        return ""  # its contents are judged name by name
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    try:
        fd = _open(root_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it can not be read ({error.strerror})"
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        if status.st_size > LARGEST_READ:
            return f"it is larger than {LARGEST_READ} bytes"
        data = read_bounded(fd)
    except OSError as error:
        return f"it can not be read ({error.strerror})"
    finally:
        os.close(fd)
    if not data:
        return ""  # created and not written yet: the write is reported again
    return validator(root_fd, path, data.decode("utf-8", "surrogateescape"))


def judged_by_content(key: str, above: str) -> bool:
    """Whether a regular file of this folded name, in a directory of the folded name ``above``, can be benign."""
    return key in _VALIDATORS and (key != "attributes" or above == "info")


def reason(key: str, above: str) -> str:
    """Why a protected name must go that is never benign."""
    for row in PROTECTED:
        parent, slash, name = row.name.rpartition("/")
        if row.where == "tree" and (not slash or parent == above):
            before, star, after = name.partition("*")
            if key == name or (star and key.startswith(before) and key.endswith(after)):
                return row.reason
    return "something outside of the sandbox uses it, or it can not be looked into"


def _judge_hooks(root_fd: int, path: str) -> str:
    try:
        fd = _open(root_fd, path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it can not be read ({error.strerror})"
    try:
        with os.scandir(fd) as listing:
            for number, entry in enumerate(listing):
                if number >= MOST_HOOKS:
                    return "it holds too many names"
                if not (entry.name.endswith(".sample") and entry.is_file(follow_symlinks=False)):
                    return f"{HOOK}: {entry.name}"
    finally:
        os.close(fd)
    return ""


def _judge_config(root_fd: int, path: str, text: str) -> str:
    from .gitconfig import ConfigError, objection, parse

    try:
        settings = parse(text)
    except ConfigError as error:
        return f"it is not plain git configuration ({error})"
    for key, value in settings:
        if key == "core.worktree":
            # A submodule's configuration points from .git/modules/NAME back to its work tree.
            place = _normal(_parent(path), value or "", _own_path(root_fd))
            if "modules" not in map(fold, path.split("/")) or not place or not _is_tree(place):
                return f"core.worktree = {value} leads out of its submodule"
            continue
        why = objection(key, value)
        if why:
            return why
    return ""


def _judge_modules(root_fd: int, path: str, text: str) -> str:
    from .gitconfig import ConfigError, module_objection, parse

    try:
        settings = parse(text)
    except ConfigError as error:
        return f"it is not plain git configuration ({error})"
    return next((why for why in (module_objection(key, value) for key, value in settings) if why), "")


def _judge_layout(root_fd: int, path: str, text: str) -> str:
    """``HEAD`` of a directory that became a repository by its layout: taking it away unmakes the repository.

    What else is in the directory may be somebody's files with the same names, so they are judged but not moved.
    """
    place = _parent(path)
    base = f"{place}/" if place else ""
    for name in ("config", "config.worktree", "commondir", "gitdir", "hooks", "info/attributes"):
        try:
            mode = _stat(root_fd, base + name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{name} can not be looked at ({error.strerror})"
        if name == "hooks" and not stat.S_ISDIR(mode):
            return f"{name} is not a directory"
        why = judge(root_fd, base + name)
        if why:
            return f"it makes this directory a git repository, and in its {name}: {why}"
    return ""


def _judge_commondir(root_fd: int, path: str, text: str) -> str:
    parts = path.split("/")
    if len(parts) >= 4 and fold(parts[-3]) == "worktrees" and text in ("../..", "../..\n"):
        return "" if _context_at(root_fd, parts[:-1]) & KIND == GIT else REDIRECT
    return REDIRECT


def _judge_backlink(root_fd: int, path: str, text: str) -> str:
    """``worktrees/NAME/gitdir``: the ``.git`` file of the worktree, in this workspace."""
    parts = path.split("/")
    place = _normal(_parent(path), text.removesuffix("\n"), _own_path(root_fd))
    if len(parts) < 4 or fold(parts[-3]) != "worktrees" or not place or place.rpartition("/")[2] != ".git":
        return "it leads to something else than a worktree of this workspace"
    return "" if _is_tree(_parent(place)) else "it leads into a git directory"


def _judge_pointer(root_fd: int, path: str, text: str) -> str:
    """A ``.git`` file: "gitdir: PATH" (gitrepository-layout(5)) to a git directory that the scan reaches."""
    line = text.removesuffix("\n")
    if not line.startswith("gitdir: ") or "\n" in line:
        return "it is not a pointer to a git directory"
    place = _normal(_parent(path), line[len("gitdir: ") :], _own_path(root_fd))
    if not place:
        return "it points out of the workspace"
    if _context_at(root_fd, place.split("/")) & KIND != GIT:
        return "it points to something else than a git directory of this workspace"
    return ""


def _judge_attributes(root_fd: int, path: str, text: str) -> str:
    return "" if not text.strip() else "it puts files under filter, diff and merge programs"


def _judge_todo(root_fd: int, path: str, text: str) -> str:
    for line in text.splitlines():
        word = line.split(None, 1)[:1]
        if word and word[0] in ("x", "exec"):
            return "git rebase --continue runs its exec lines"
    return ""


_VALIDATORS: dict[str, Callable[[int, str, str], str]] = {
    ".git": _judge_pointer,
    "git~1": _judge_pointer,
    "config": _judge_config,
    "config.worktree": _judge_config,
    "head": _judge_layout,
    ".gitmodules": _judge_modules,
    "commondir": _judge_commondir,
    "gitdir": _judge_backlink,
    "attributes": _judge_attributes,
    "git-rebase-todo": _judge_todo,
}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _normal(base: str, target: str, root: str) -> str:
    """``target`` seen from the directory ``base``, without "." and "..", relative to ``root``; empty: outside.

    Lexical: the caller opens the result without following links, so a link on the way is refused, not resolved.
    """
    if not target or len(target) > LONGEST_TARGET or any(ord(char) < 0x20 or char == "\x7f" for char in target):
        return ""
    if target.startswith("/"):
        if not target.startswith(root.rstrip("/") + "/"):
            return ""
        parts: list[str] = []
        target = target[len(root.rstrip("/")) :]
    else:
        parts = base.split("/") if base else []
    for part in target.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif len(part) > LONGEST_PART:
            return ""  # it is not there, and folding it costs the square of its length
        else:
            parts.append(part)
    return "/".join(parts) if len(parts) <= DEEPEST_TARGET else ""


def _is_tree(path: str) -> bool:
    """No component names a git directory."""
    return not any(fold(part) in GIT_NAMES for part in path.split("/"))


def _own_path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _context_at(root_fd: int, parts: list[str]) -> int:
    """The context in which the scan meets the directory ``parts``; ``DATA`` when it does not go there.

    Goes no further than to the first component that is not a directory, and reads at most ``MOST_LISTED`` names.
    """
    context, at, left = TREE, os.dup(root_fd), MOST_LISTED
    try:
        for part in parts:
            keys, left = _layout_keys(at, left)
            context = classify(settled(context, keys), fold(part), True, False)
            if context < 0:
                return DATA
            inner = _open(at, part, os.O_PATH | os.O_DIRECTORY)
            os.close(at)
            at = inner
        return settled(context, _layout_keys(at, left)[0])
    except OSError:
        return DATA
    finally:
        os.close(at)


def _layout_keys(directory: int, left: int) -> tuple[set[str], int]:
    """Which names of ``LAYOUT`` a directory holds, and how many more names may be read.

    Raises:
        OSError: it can not be read, or holds more than ``left`` names (E2BIG).
    """
    import errno

    found: set[str] = set()
    fd = _open(directory, ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(fd) as listing:
            for entry in listing:
                left -= 1
                if left < 0:
                    raise OSError(errno.E2BIG, "too many names on the way to what a pointer names")
                if 4 <= len(entry.name) <= 12:
                    found.add(fold(entry.name))
    finally:
        os.close(fd)
    return found & LAYOUT, left


# ---------------------------------------------------------------- access by descriptor


def _open(root_fd: int, path: str, flags: int) -> int:
    """open(2) below ``root_fd`` without following any symbolic link."""
    return syscalls.openat2(
        root_fd, path, flags | os.O_NOFOLLOW, 0, syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    )


def _stat(root_fd: int, path: str) -> os.stat_result:
    """lstat(2) below ``root_fd`` without following any symbolic link on the way."""
    parent, _, name = path.rpartition("/")
    fd = _open(root_fd, parent or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- quarantine


def quarantine(root_fd: int, path: str, quarantine_fd: int) -> str:
    """Move a name out of the workspace; return where it went, relative to the quarantine directory.

    Each name gets a new numbered directory, so nothing is ever overwritten.  Across file systems it is copied
    (regular files, directories, links as they are; nothing setuid, no devices) and then removed.

    Raises:
        FileNotFoundError: it vanished.
        OSError: it could not be moved, or is larger than may be copied (EFBIG); it is then still there.
    """
    parent, _, name = path.rpartition("/")
    try:
        source = _open(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        open_up(root_fd, parent or ".")
        source = _open(root_fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
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
                _move(source, name, place)
            except PermissionError:
                # rename(2) must write the directory it takes from and, for "..", a directory that it moves.
                open_up(root_fd, parent or ".")
                open_up(root_fd, path)
                _move(source, name, place)
        except OSError:
            _remove_children(place, 0)
            os.rmdir(str(number), dir_fd=quarantine_fd)
            raise
        finally:
            os.close(place)
        return f"{number}/{name}"
    finally:
        os.close(source)


def open_up(root_fd: int, path: str) -> None:
    """Give the owner his rights on a directory back, which the command took away to keep us out.

    Raises:
        OSError: it is not there, or not ours.
    """
    try:
        # The workspace itself, closed, can not even be looked up as ".".
        fd = os.dup(root_fd) if path == "." else _open(root_fd, path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:
        return
    try:
        mode = stat.S_IMODE(os.stat(fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:  # else ctime would change, and the next scan list everything again
            os.chmod(f"/proc/self/fd/{fd}", mode | stat.S_IRWXU)
    finally:
        os.close(fd)


def _move(source: int, name: str, place: int) -> None:
    import errno

    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=place)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    _copy(source, name, place, [LARGEST_COPY, MOST_COPIED], 0)
    _remove(source, name, 0)


def _copy(source: int, name: str, place: int, left: list[int], depth: int) -> None:
    """Copy one name; ``left`` counts down bytes and names."""
    import errno

    left[1] -= 1
    if left[1] < 0 or depth > DEEPEST_COPY:
        raise OSError(errno.EFBIG, "too much to copy into quarantine", name)
    mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=place)
    elif stat.S_ISREG(mode):
        _copy_file(source, name, place, left)
    elif stat.S_ISDIR(mode):
        os.mkdir(name, 0o700, dir_fd=place)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inner = os.open(name, flags, dir_fd=source)
        try:
            outer = os.open(name, flags, dir_fd=place)
            try:
                for child in os.listdir(inner):
                    _copy(inner, child, outer, left, depth + 1)
            finally:
                os.close(outer)
        finally:
            os.close(inner)


def _copy_file(source: int, name: str, place: int, left: list[int]) -> None:
    import errno

    reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(errno.EAGAIN, "it changed while it was copied", name)
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
        try:
            while piece := os.read(reader, 1 << 20):
                left[0] -= len(piece)
                if left[0] < 0:
                    raise OSError(errno.EFBIG, "too much to copy into quarantine", name)
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
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
    import errno

    if depth > DEEPEST_COPY + 1:
        raise OSError(errno.ELOOP, "directories nested too deeply to remove")
    for child in os.listdir(fd):
        _remove(fd, child, depth)
