"""Our own directories that a sandbox sees as its home, and the agent state that workspaces share.

Theory of operation
-------------------
Each workspace has a home of its own under ``$MEMBRANE_HOME/homes``, so that nothing that one project's agent leaves
(shell files, hooks, caches) is read by another.  What an agent must find everywhere, its log-in and settings, is
kept under ``$MEMBRANE_HOME/agents/NAME``: directories are bound into the home by the plan; single files cannot be
(programs replace them by rename, which a mount point refuses), so each home has a copy.

The shared file is the owner of its content.  Before and after each run the home's copy is brought together with it,
and what both were the last time (``.base/HOME``) says which of them has changed since.  One changed: the other takes
it.  Both changed: of JSON objects each key is taken from where it changed; a key that both changed, and a file that
is no JSON object, is the later writer's, and the earlier file is kept in ``.replaced``.  So a run that only reads
changes nothing, a run that is killed is brought together by the next one, and nothing is ever lost.

The home was written by a command of an earlier run: its paths are opened with RESOLVE_BENEATH and
RESOLVE_NO_SYMLINKS, so that a link in it cannot make us read or write a file of the host.
"""

from __future__ import annotations

import os
import stat
import time

from ..errors import HostError
from ..host.private import make_private, take_back
from ..host.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from ..host.writing import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LARGEST = 16 << 20  # bytes of one state file
LARGEST_MERGED = 4 << 20  # bytes of one whose keys are merged; of larger ones the later writer's is taken
DEEPEST_MERGED = 16  # objects within each other whose keys are merged: each level compares all below
LARGEST_INDENTED = 8 << 20  # characters; blanks before each line can be a thousand times what they are put before
MOST_REPLACED = 32  # files in ``.replaced``; the oldest go first
LOCK_WAIT = 10.0  # seconds for another run that brings files together; after that the next run does it
_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS
_NOT_THERE = object()


def prepare(stores: Iterable[str], home: str, agent: str, files: Iterable[str]) -> None:
    """Make the directories of the plan and bring the home's state files up to date.

    Args:
        stores: directories to make, mode 0700.
        home: the store that is bound over $HOME; empty when there is none that is kept.
        agent: ``$MEMBRANE_HOME/agents/NAME``.
        files: names below both, of single files.

    Raises:
        HostError: a directory cannot be made.
    """
    for path in stores:
        take_back(path)
        make_private(path)
    keep(home, agent, files)


def keep(home: str, agent: str, files: Iterable[str]) -> None:
    """Bring the state files of ``home`` and ``agent`` together; a file that cannot be read or written stays as it is.

    Raises:
        HostError: the directory of the agent cannot be made.
    """
    names = tuple(files) if home else ()
    if not names or not any(_is_there(f"{place}/{name}") for place in (home, agent) for name in names):
        return
    base = f"{agent}/.base/{os.path.basename(home)}"
    make_private(base)
    lock = os.open(agent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _locked(lock):
            for name in names:
                try:
                    _bring_together(home, agent, base, name)
                except OSError:
                    continue  # nothing was replaced; nothing of this run depends on it
    finally:
        os.close(lock)


def make_place(agent: str, name: str) -> bool:
    """An empty file in a directory of the agent, where something is mounted; false: something is there, and stays.

    Raises:
        HostError: it cannot be made.
    """
    if _is_there(f"{agent}/{name}"):
        return False
    try:
        _write(agent, name, b"")
        return True
    except OSError as error:
        raise HostError("make a place for the log-in", error.strerror or "", target=f"{agent}/{name}") from None


def make_link(agent: str, name: str, to: str) -> bool:
    """A link in a directory of the agent; false: something is there, and stays but for an empty file, and a link of
    another backend's.

    Raises:
        HostError: it cannot be made.
    """
    from ..host import syscalls
    from . import logins

    above, _, last = name.rpartition("/")
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY
        top = os.open(agent, flags | os.O_CLOEXEC)
        try:  # a command can make links there
            limits = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
            directory = syscalls.openat2(top, above or ".", flags, 0, limits)
        finally:
            os.close(top)
        try:
            found = os.stat(last, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        try:
            if found is not None:
                link = os.readlink(last, dir_fd=directory) if stat.S_ISLNK(found.st_mode) else ""
                other = link != to and logins.leads_to_copy(link)
                if not other and (not stat.S_ISREG(found.st_mode) or found.st_size):
                    return False
                os.unlink(last, dir_fd=directory)  # where an earlier version has mounted a copy
            os.symlink(to, last, dir_fd=directory)
            return found is None
        except FileExistsError:
            return False  # another run made it in this moment
        finally:
            os.close(directory)
    except OSError as error:
        raise HostError("make a place for the log-in", error.strerror or "", target=f"{agent}/{name}") from None


def _is_there(path: str) -> bool:
    return os.path.lexists(path)


def _locked(fd: int) -> bool:
    import fcntl

    until = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.005)  # the other holds it for the time of a few small files


def _bring_together(home: str, agent: str, base: str, name: str) -> None:
    own, own_at = _read(home, name)
    shared, shared_at = _read(agent, name)
    before, _ = _read(base, name)
    if own is None and shared is None:
        return
    if own == shared:
        result = own
    elif own is None or own == before:
        result = shared if shared is not None else own
    elif shared is None or shared == before:
        result = own
    else:
        older, newer = (own, shared) if own_at < shared_at else (shared, own)
        merged = _merge(before, older, newer)
        result, whole = merged if merged is not None else (newer, False)
        if not whole:
            _set_aside(agent, name, older)
    assert result is not None
    # The base last: a run that is killed before finds two equal files, or does the same again.
    if result != shared:
        _write(agent, name, result)
    if result != own:
        _write(home, name, result)
    if result != before:
        _write(base, name, result)


def _merge(before: bytes | None, older: bytes, newer: bytes) -> tuple[bytes, bool] | None:
    """(text, whether nothing was overruled) of two JSON objects; None when one of them is none."""
    import json

    if max(len(older), len(newer), len(before or b"")) > LARGEST_MERGED:
        return None
    try:
        one, two = json.loads(older), json.loads(newer)
        base = json.loads(before) if before else {}
        if not isinstance(one, dict) or not isinstance(two, dict):
            return None
        result, whole = _merged(base if isinstance(base, dict) else {}, one, two, DEEPEST_MERGED)
        return _text(result).encode("utf-8", "surrogatepass"), whole
    except (ValueError, RecursionError):
        return None


def _text(value: dict[str, Any]) -> str:
    import json

    out: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
        out.append(piece)
        size += len(piece)
        if size > LARGEST_INDENTED:
            return json.dumps(value, ensure_ascii=False)
    return "".join(out)


def _merged(
    base: dict[str, Any], older: dict[str, Any], newer: dict[str, Any], depth: int
) -> tuple[dict[str, Any], bool]:
    out: dict[str, Any] = {}
    whole = True
    for key in (*newer, *(key for key in older if key not in newer)):
        was, one, two = (values.get(key, _NOT_THERE) for values in (base, older, newer))
        if one in (two, was):
            value = two
        elif two == was:
            value = one
        elif depth > 0 and isinstance(one, dict) and isinstance(two, dict):
            value, inner = _merged(was if isinstance(was, dict) else {}, one, two, depth - 1)
            whole = whole and inner
        else:
            value, whole = two, False
        if value is not _NOT_THERE:
            out[key] = value
    return out, whole


def _set_aside(agent: str, name: str, data: bytes) -> None:
    directory = f"{agent}/.replaced"
    make_private(directory)
    kept = sorted(
        (f"{directory}/{entry}" for entry in os.listdir(directory)), key=lambda path: os.stat(path).st_ctime_ns
    )
    for path in kept[: max(0, len(kept) - MOST_REPLACED + 1)]:
        os.unlink(path)
    _write(directory, f"{name.replace('/', '_')}.{os.urandom(8).hex()}", data)


def _read(root: str, name: str) -> tuple[bytes | None, int]:
    """(content, modification time in ns) of one regular file; None for anything else: a link, a device, too large."""
    try:
        directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None, 0
    try:
        fd = openat2(directory, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0, _BENEATH)
    except OSError:
        return None, 0
    finally:
        os.close(directory)
    try:
        details = os.fstat(fd)
        if not stat.S_ISREG(details.st_mode) or details.st_size > LARGEST:
            return None, 0
        data = b""
        while part := os.read(fd, LARGEST):
            data += part
            if len(data) > LARGEST:
                return None, 0
        return data, details.st_mtime_ns
    finally:
        os.close(fd)


def _write(root: str, name: str, data: bytes) -> None:
    """Replace one file, or make it: the whole of it or nothing."""
    parent, _, leaf = name.rpartition("/")
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parent.split("/") if parent else ():
            try:
                os.mkdir(part, 0o700, dir_fd=directory)
            except FileExistsError:
                pass
            inner = openat2(directory, part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, 0, _BENEATH)
            os.close(directory)
            directory = inner
        temporary = f".{leaf}.{os.urandom(8).hex()}"  # a command that runs in this home cannot have made it before
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600, dir_fd=directory)
        try:
            write_all(fd, data)
            os.close(fd)
            os.rename(temporary, leaf, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise
    finally:
        os.close(directory)
