"""Everyday changes of a repository's ``config`` from inside: judged, and our own copy put in place.

Theory of operation
-------------------
``config`` is bound read-only in the sandbox.  git changes it by writing ``config.lock`` and renaming it over ``config``
(lockfile.c, config.c ``git_config_set_multivar_in_file_gently``).  The tracer sees that call before the kernel does,
lets the caller sleep and passes the path on (``tracer.edits``); ``Editor`` does the work with the supervisor's rights,
and the tracer answers the call, which the kernel never carries out.

1. The lock file is read once, and what was read is judged (``objection``): against what is there now only everyday
   settings may differ.  A setting that could run something stays as it is, whatever has made it.
2. These bytes are written to a new file in ``hooks``.  In the sandbox that directory is bound read-only, so no process
   there can open the file for writing or put another in its place.
3. The launcher binds it read-only at its own name, *below* the cover of ``hooks``, where only a descriptor leads that
   was opened before the directory was covered (``plan.model.Keep``).
4. renameat2(2) RENAME_EXCHANGE lets the two names change places.  Neither file loses its name, so no mount is taken
   away, as a plain rename over a mount point of another namespace does (fs/namei.c vfs_rename: ``detach_mounts``); each
   cover moves with its file (fs/dcache.c d_exchange).  There is no moment at which ``config`` can be opened for writing
   inside, and for readers outside it is the whole old or the whole new file.
5. The old file, now in ``hooks``, and the lock file are removed.

``.gitmodules`` (``git submodule add``) is changed in the same way, beside a ``.git`` with ``hooks``.  The mount that
covers a file belongs to the mount in which the file's name is, so each file has a descriptor of its own.

Another sandbox in the same tree has its own cover over the old file, and none over the new one until its guard has seen
it; so nothing is changed while one is there.

A repository without a ``hooks`` directory, or on a file system without RENAME_EXCHANGE, keeps its ``config`` as it is.

The execute bit of such a file may be switched, on the file itself: it means nothing (``tracer.edits`` says who asks).

Bounds: ``LARGEST`` bytes, ``MOST_WAITING`` requests, a deadline for each that the tracer set; after a request that took
a while, the next one waits ``REST`` times as long, so that the loop of the supervisor stays free, and ``LONGEST_REST``
at most: on a machine that is busy with something else one may take seconds, and the next is not refused for it.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from ..host import syscalls
from ..host.writing import write_all
from ..value import Value
from .addresses import Judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from ..plan.model import ScanHit
    from .addresses import Trees

    Local: TypeAlias = Callable[[str, str | None], str]

LARGEST = 64 << 10  # bytes of a configuration
MOST_WAITING = 16  # requests; the tracer holds as many calls (``tracer.edits``)
MOST_EDITABLE = 64  # repositories whose configuration can be changed; each costs a descriptor
REST = 4
LONGEST_REST = 1.0  # seconds
MARGIN = 5.0  # seconds before the tracer gives a request up, after which nothing is put in place any more
GO_ON = -1  # answer: let the kernel decide
_NO_LINKS = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
# Settings that git writes for a new repository and that an agent has no reason to change in one that is there:
# objects that git writes outside would become writable for others, or go away; what is signed would be signed no more.
_STAY = frozenset(
    {
        *("core.sharedrepository", "gc.pruneexpire", "gc.reflogexpire", "commit.gpgsign", "tag.gpgsign"),
        "fetch.prunetags",
    }
)
# What a plain ``git push`` overwrites or deletes, and a plain ``git fetch``.
_STAY_IN = frozenset({("remote", "mirror"), ("remote", "push"), ("remote", "prunetags")})

_HOOKS = {"config": "hooks", ".gitmodules": ".git/hooks"}  # where a new file of this name is prepared


# ---------------------------------------------------------------- the judgement


def objection(
    old: bytes, new: bytes, path: str = ".git/config", *, made: bool = False, local: Local | None = None
) -> str:
    """Why ``new`` may not take the place of ``old``; empty when only everyday settings differ.

    Everyday is what ``gitconfig.objection`` finds harmless: a list of what is good.  All other settings must be the
    same, in the same order.  The values are not reported: an address can hold a password.

    Args:
        path: of the file; a ``.gitmodules`` has rules of its own, and git sets ``core.worktree`` of a submodule.
        made: the repository has been made inside.
        local: what is said against an address of this machine (``addresses.Judge``).
    """
    from .gitconfig import ConfigError, module_objection, parse

    if len(new) > LARGEST or len(old) > LARGEST:
        return f"a configuration of more than {LARGEST >> 10} KiB is not judged"
    settings = []
    for which, data in (("present", old), ("new", new)):
        try:
            parsed = parse(data.decode("utf-8", "surrogateescape"))
        except ConfigError as error:
            return f"the {which} configuration is not plain git configuration ({error})"
        settings.append(
            [
                (key, value)
                for key, value in parsed
                if (
                    module_objection(key, value) or (local is not None and local(key, value))
                    if path.endswith(".gitmodules")
                    else _harm(key, value, path, made, local)
                )
            ]
        )
    before, after = settings
    if before == after:
        return ""
    known, kept = set(before), set(after)
    for key, value in after:
        if (key, value) not in known:
            return (local(key, value) if local is not None else "") or f"{key[:100]} is no everyday setting"
    for key, value in before:
        if (key, value) not in kept:
            return f"{key[:100]} is no everyday setting and must stay"
    return f"{after[0][0][:100] if after else before[0][0][:100]} is no everyday setting and must stay in its place"


def _harm(key: str, value: str | None, path: str, made: bool, local: Local | None) -> bool:
    """May a command not change this setting?"""
    from .gitconfig import objection as harm

    if key == "core.worktree":
        return not _is_own_tree(value or "", path)
    kept = not made and stays(key, value)
    return kept or bool(harm(key, value)) or (local is not None and bool(local(key, value)))


def stays(key: str, value: str | None) -> bool:
    """Is it a setting that has to stay in a repository that is there, whatever git would run by it?"""
    section, _, rest = key.partition(".")
    name = rest.rpartition(".")[2]
    if (section, name) == ("remote", "fetch"):
        return not _is_fetched_beside(value or "")
    return key in _STAY or (section, name) in _STAY_IN


def _is_fetched_beside(value: str) -> bool:
    """Does a refspec of ``git fetch`` leave branches and tags alone (git-fetch(1), <refspec>)?

    Else what a plain ``git fetch`` brings takes their place, and with ``prune`` it deletes those that are not there.
    """
    to = value.partition(":")[2]
    return not to or to.startswith(("refs/remotes/", "refs/pull/"))


def _is_own_tree(value: str, path: str) -> bool:
    """Does ``core.worktree`` lead from ``TOP/.git/modules/NAME/config`` to a directory of the work tree ``TOP``?

    Relative, as git writes it (submodule.c ``connect_work_tree_and_git_dir``); lexical, and through no git directory.
    """
    top, found, below = path.partition(".git/modules/")
    above = (below.count("/") + 2) * "../"  # from the directory of ``config``
    inside = value.removeprefix(above)
    parts = inside.split("/")
    return bool(
        found
        and (not top or top.endswith("/"))
        and inside != value
        and all(part not in ("", ".", "..") and part.isprintable() for part in parts)
        and not any(part.lower().partition(":")[0].rstrip(". ") in (".git", "git~1") for part in parts)
    )


# ---------------------------------------------------------------- which repositories


def editable(hits: Iterable[ScanHit], pins: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Files that can be changed, and the ``hooks`` directory of each; shallow first, relative as the hits are.

    Both must be there, under these names and not as links, and be bound as protected names; the directory that a file
    is in is the workspace or pinned.
    """
    files: set[str] = set()
    hooks: set[str] = set()
    places = {"", *pins}
    for hit in hits:
        if hit.effect == "protect" and not hit.link:
            parent, _, name = hit.path.rpartition("/")
            if name in ("config", ".gitmodules") and not hit.directory and parent in places:
                files.add(hit.path)
            elif name == "hooks" and hit.directory:
                hooks.add(hit.path)
    found = []
    for file in sorted(files, key=lambda path: (path.count("/"), path)):
        parent, slash, name = file.rpartition("/")
        directory = f"{parent}{slash}{_HOOKS[name]}"
        if directory in hooks:
            found.append((file, directory))
    return tuple(found[:MOST_EDITABLE])


class _Refused(Exception):
    """The request is refused; the message says why."""


class _Request(Value):
    number: int  # of the call that waits
    path: str  # of the file, absolute
    deadline: float  # time.monotonic()


class _Edit(Value):
    """What is being put in place; the descriptors are closed with it."""

    request: _Request
    parent: int  # the directory that the file is in
    hooks: int
    name: str  # of the new file in ``hooks``
    file: int  # the new file, open for reading
    content: bytes
    old: os.stat_result
    lock: os.stat_result


class Editor:
    """Carries out what the tracer asks for; part of the supervisor's loop.

    Args:
        kept: by the absolute path of a file, the descriptor of its ``hooks`` directory below the cover; closed here.
        freeze: ``backend.Cell.freeze``.
        busy: are there mounts that the launcher has not made yet?
        shared: does another sandbox show this file?
        answer: takes the number of a call, what to do (0: it is done; ``GO_ON``; an errno) and why.
        places: where addresses of this machine may lead.
    """

    def __init__(
        self,
        kept: dict[str, int],
        *,
        freeze: Callable[[int, str], bool],
        busy: Callable[[], bool],
        shared: Callable[[str], bool],
        answer: Callable[[int, int, str], None],
        places: Trees | None = None,
    ) -> None:
        self._kept = kept
        self._places = places
        self._freeze = freeze
        self._busy = busy
        self._shared = shared
        self._answer = answer
        self._waiting: list[_Request] = []
        self._edit: _Edit | None = None
        self._frozen = False
        self._rest_until = 0.0

    def close(self) -> None:
        """The sandbox has ended: nothing more is put in place."""
        if self._edit is not None:
            self._drop(self._edit)
        self._waiting.clear()
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()

    def ask(self, number: int, path: str, deadline: float, mode: int = -1) -> None:
        """A call waits that would rename ``path.lock`` over ``path``, or give ``path`` a mode.

        Args:
            deadline: time.monotonic(), after which the call is refused.
            mode: permission bits; -1: it is the rename.
        """
        if path not in self._kept:
            self._answer(number, GO_ON, "")
        elif mode >= 0:
            self._answer(number, 0 if _switched(path, mode) else GO_ON, "")
        elif len(self._waiting) >= MOST_WAITING:
            self._answer(number, errno.EACCES, "too many changes at once")
        else:
            self._waiting.append(_Request(number, path, deadline))

    def timeout(self) -> float | None:
        """Seconds after which ``step`` must be called; None: something else will call it."""
        if self._edit is not None or not self._waiting:
            return None  # it waits for the launcher
        return max(0.0, self._rest_until - time.monotonic())

    def frozen(self, made: bool) -> None:
        """The launcher's answer to ``freeze``."""
        edit = self._edit
        if edit is None:
            return
        self._frozen = made
        if not made:
            self._drop(edit)
            self._answer(edit.request.number, errno.EACCES, "the new file could not be made read-only inside")

    def step(self) -> None:
        """Do what can be done now."""
        begun = time.monotonic()
        if self._edit is None:
            if not self._waiting or begun < self._rest_until:
                return
            request = self._waiting.pop(0)
            self._carry(request, lambda: self._prepare(request))
        elif self._frozen and not self._busy():
            edit, self._edit = self._edit, None
            self._carry(edit.request, lambda: self._commit(edit))
        else:
            return
        now = time.monotonic()
        self._rest_until = now + min(REST * (now - begun), LONGEST_REST)

    def _carry(self, request: _Request, work: Callable[[], bool]) -> None:
        """``work`` answers by true: it is done, false: not yet, or by an exception."""
        try:
            if work():
                self._answer(request.number, 0, "")
        except _Refused as refused:
            self._answer(request.number, errno.EACCES, str(refused))
        except OSError as error:
            self._answer(request.number, errno.EACCES, f"it could not be put in place ({error.strerror})")

    # ------------------------------------------------------------ the steps

    def _prepare(self, request: _Request) -> bool:
        kept = self._kept[request.path]
        _in_time(request)
        above, _, file = request.path.rpartition("/")
        directory = os.O_RDONLY | os.O_DIRECTORY
        parent = syscalls.openat2(syscalls.AT_FDCWD, above or "/", directory, 0, syscalls.RESOLVE_NO_SYMLINKS)
        opened = [parent]
        name = ""
        try:
            hooks = syscalls.openat2(parent, _HOOKS[file], directory, 0, _NO_LINKS)
            opened.append(hooks)
            if not os.path.samestat(os.fstat(hooks), os.fstat(kept)):
                raise _Refused("its hooks directory was replaced since the start")
            old, before = _read(parent, file)
            new, lock = _read(parent, f"{file}.lock")
            local = Judge(above, self._places) if self._places is not None else None
            why = objection(old, new, request.path, local=local)
            if why:
                raise _Refused(why)
            name = f"config.{os.urandom(8).hex()}.lock"
            opened.append(self._write(hooks, name, new, before))
            self._edit = _Edit(request, parent, hooks, name, opened[-1], new, before, lock)
            self._frozen = False
            if not self._freeze(kept, name):
                raise _Refused("the sandbox has ended")
        except BaseException:
            self._edit = None
            if len(opened) > 2:
                _remove(hooks, name)
            for fd in opened:
                os.close(fd)
            raise
        return False

    @staticmethod
    def _write(hooks: int, name: str, content: bytes, like: os.stat_result) -> int:
        """The new file on the disk, with mode and owner of the present one; open for reading only."""
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags | os.O_WRONLY, 0o600, dir_fd=hooks)
        try:
            write_all(fd, content)
            if os.geteuid() == 0:
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode) & 0o777)
            os.fdatasync(fd)  # no crash leaves an empty configuration
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=hooks)
        except BaseException:
            _remove(hooks, name)
            raise
        finally:
            os.close(fd)

    def _commit(self, edit: _Edit) -> bool:
        try:
            _in_time(edit.request)
            if _has_writer(edit.file) or os.pread(edit.file, LARGEST + 1, 0) != edit.content:
                raise _Refused("another process has the new file open")
            file = edit.request.path.rpartition("/")[2]
            if not _same(os.stat(file, dir_fd=edit.parent, follow_symlinks=False), edit.old):
                raise _Refused("it was changed meanwhile")
            if self._shared(edit.request.path):
                raise _Refused("another session shows this repository")
            syscalls.exchange(edit.hooks, edit.name, edit.parent, file)
            if os.stat(edit.name, dir_fd=edit.hooks, follow_symlinks=False).st_ino != edit.old.st_ino:
                syscalls.exchange(edit.hooks, edit.name, edit.parent, file)  # replaced in this moment, from outside
                raise _Refused("it was changed meanwhile")
            if _is(edit.parent, f"{file}.lock", edit.lock):
                _remove(edit.parent, f"{file}.lock")
            return True
        finally:
            self._drop(edit)

    def _drop(self, edit: _Edit) -> None:
        """Whatever is at the temporary name is removed: the new file, or the old one after the exchange."""
        self._edit, self._frozen = None, False
        _remove(edit.hooks, edit.name)
        for fd in (edit.file, edit.hooks, edit.parent):
            os.close(fd)


def _switched(path: str, mode: int) -> bool:
    """Give the file a mode that differs in execute bits only."""
    try:
        fd = syscalls.openat2(
            syscalls.AT_FDCWD, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, 0, syscalls.RESOLVE_NO_SYMLINKS
        )
        try:
            before = stat.S_IMODE(os.fstat(fd).st_mode)
            if (before ^ mode) & ~0o111:
                return False
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def _in_time(request: _Request) -> None:
    if time.monotonic() > request.deadline - MARGIN:
        raise _Refused("it took too long")


def _read(directory: int, name: str) -> tuple[bytes, os.stat_result]:
    """A regular file, read once."""
    fd = syscalls.openat2(directory, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW, 0, _NO_LINKS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _Refused(f"{name} is not a regular file")
        if status.st_size > LARGEST:
            raise _Refused(f"a configuration of more than {LARGEST >> 10} KiB is not judged")
        data = b""
        while len(data) <= LARGEST:
            piece = os.read(fd, LARGEST + 1 - len(data))
            if not piece:
                break
            data += piece
        return data, status
    finally:
        os.close(fd)


def _same(a: os.stat_result, b: os.stat_result) -> bool:
    return (a.st_dev, a.st_ino, a.st_size, a.st_mtime_ns, a.st_ctime_ns) == (
        b.st_dev,
        b.st_ino,
        b.st_size,
        b.st_mtime_ns,
        b.st_ctime_ns,
    )


def _is(directory: int, name: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), status)
    except OSError:
        return False


def _has_writer(fd: int) -> bool:
    """Has any process the file open for writing?  A read lease is given only when none has (fcntl(2), F_SETLEASE).

    The second barrier, should ``hooks`` not be covered.  An open(2) that the cover is about to refuse counts as a
    writer for a moment (fs/open.c do_dentry_open), so it is asked a few times.
    """
    import fcntl

    for _again in range(20):
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                continue
        return False  # with another errno this file system has no leases
    return True


def _remove(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass
