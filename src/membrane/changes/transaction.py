"""Changes put in place so that the workspace is wholly as before or wholly as after, whatever ends us.

Theory of operation
-------------------
Everything that is put in place is first made ready in a *stage*, a private directory on the file system of the
workspace: each file as the copy that was judged, with its mode, times and attributes, each link, each empty directory.
Then the *journal* is written, which lists the operations, and is given its name by rename(2): up to there nothing of
the workspace has been touched, from there on everything can be done or undone by it.  There are four operations:

    new     the staged thing gets a name that is not there (renameat2(2) RENAME_NOREPLACE)
    put     the staged thing and what is there change places (RENAME_EXCHANGE)
    remove  what is there goes to the stage (RENAME_NOREPLACE)
    mode    permission bits

A directory that is wholly new is made ready with all that is in it, and gets its name as one (``ops``): it is seen with
everything in it, or not at all.  It goes back as one as well, where nobody has changed anything in it since.

Each of the first three is one step of the kernel that loses nothing: what was there is in the stage afterwards, as it
was, with its inode.  So the stage itself says which operations were done, by which inode is where; nothing is written
in between, and after a kill both directions are open (``resume``): forward, or back by the same steps reversed.

All other processes may change the workspace meanwhile.  Each parent directory is opened anew without following any link
(``tree.open_directory``); what is there must be what was seen when the journal was made; and what an exchange or a
removal has brought into the stage is looked at once more, and given back if it is something else: so also when it is
undone.  Then, as with any error, everything that was done is undone.

When all is done the journal and the stage are kept as ``undo``, until the next apply is done or a discard.  Where the
state directory is on another file system the stage is a directory ``.membrane-apply-*`` of mode 0700 in the
workspace; its name is written down before it is made, and it is gone at the end: what it holds is then copied to the
state.  As long as it is there no sandbox may write the workspace (``writers``): it could change what was judged.

One file of over 800 lines: what is made ready, done, undone and brought to an end is one protocol over one stage.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

from ..errors import Conflict, HostError, MembraneError
from ..host import syscalls
from ..host.writing import write_all
from .grafted import APART, Grafted
from .ops import GitLock, Op, conflict, is_as_made, is_empty, is_ours, mark_of, status_at
from .stagefiles import copy_small, copy_tree, read, remove_path, remove_tree, write
from .store import APPLYING, JOURNAL
from .tree import Parents, copy_file, digest, look_at, open_below, open_directory
from .writers import Claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from threading import Thread
    from typing import Any

    from .model import Side

STAGE_NAME = ".membrane-apply-"  # in a workspace, where the state is on another file system
MOST_SYNCED = 256  # files and directories that are written to the disk one by one; of more, everything at once
_FORMAT = 2
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNDO, _PLACE = "undo", "place.json"


class Unfinished(HostError):
    """An apply ended in its middle; ``--continue`` or ``--abort`` brings it to an end."""


def nothing(_step: str) -> None:
    """What a transaction calls before each of its steps; tests give something else."""


def _write_back(fd: int) -> None:
    try:
        syscalls.write_back(fd)
    finally:
        os.close(fd)


class Stage:
    """Where things are made ready; and the operations with them.

    Args:
        place: the directory of the change set.
        root_fd: the workspace.
        root: its path, resolved.
        step: called before each step with its name.
    """

    def __init__(self, place: str, root_fd: int, root: str, step: Callable[[str], None] = nothing) -> None:
        self._changes, _, self._name = place.rpartition("/")
        self._claim: Claim | None = None  # while the stage is in the workspace
        self._home = f"{place}/{APPLYING}"
        self._undo = f"{place}/{_UNDO}"
        self._root_fd, self._root, self._step = root_fd, root, step
        self.inside = ""  # the name of the stage in the workspace
        self.fd = -1
        self.rows: list[list[Any]] = []  # those that ``commit`` was given, from ``open`` on
        self.rows_after: list[list[Any]] = []  # the same
        self._count = 0
        self._modes: dict[str, int] = {}  # of the files in slots, which have 0600 until all is ready
        self._marks: dict[str, tuple[int, int, int, int]] = {}  # of the files that are copied into slots
        self._writing: Thread | None = None
        self._olds: dict[str, list[tuple[int, ...]]] = {}  # where the stage was copied: marks of what was replaced
        self._inner: Parents | None = None  # the directory in the stage in which something was made last
        self._is_root = os.geteuid() == 0

    # ------------------------------------------------------------ beginning and end

    def check(self) -> None:
        """While an apply is to be brought to an end the workspace says nothing about its base.

        Raises:
            Unfinished: it is so.
        """
        if os.path.exists(f"{self._home}/{JOURNAL}"):
            raise Unfinished(
                "look at the changes",
                "an apply ended in its middle",
                fix=(f"membrane apply --continue {self._name}", f"membrane apply --abort {self._name}"),
            )

    def begin(self) -> None:
        """Make an empty stage; the undo copy of the apply before stays until this one is done.

        Raises:
            Unfinished: an apply has to be brought to an end first.
            InUse: it has to be in the workspace, and a sandbox may write that.
            HostError: the workspace cannot be written (a read-only mount, its mode).
            OSError: it cannot be made.
        """
        self.check()
        self._count, self._modes, self._marks, self._olds = 0, {}, {}, {}
        self._remove_leftovers()
        self._step("begin")
        os.mkdir(self._home, 0o700)
        same = os.stat(self._home).st_dev == os.fstat(self._root_fd).st_dev
        self.inside = "" if same and self._can_move() else STAGE_NAME + os.urandom(4).hex()
        try:
            self._exclude()
        except BaseException:
            remove_path(self._home)
            raise
        try:
            self._write_place()
            self._make()
            self._check_graft()
        except BaseException:
            self.close()
            raise

    def _write_place(self) -> None:
        place = {"format": _FORMAT, "workspace": self._root, "inside": self.inside, "olds": self._olds}
        write(f"{self._home}/{_PLACE}", place)

    def _exclude(self) -> None:
        """Nothing else may write the workspace while the stage is in it.

        Raises:
            InUse: a sandbox may.
        """
        if self.inside and self._claim is None:
            self._claim = Claim(self._changes, "apply", self._name, (self._root,), self.path)

    def _admit(self) -> None:
        if self._claim is not None:
            claim, self._claim = self._claim, None
            claim.close()

    def _make(self) -> None:
        self._step("make stage")
        if self.inside:
            try:
                os.mkdir(self.inside, 0o700, dir_fd=self._root_fd)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                raise HostError(
                    "put changes in place in",
                    f"it cannot be written: {error.strerror}",
                    target=self._root,
                    fix=("make it writable and apply again: the changes are kept",),
                ) from None
            self.fd = open_directory(self._root_fd, self.inside)
        else:
            os.makedirs(f"{self._home}/stage", 0o700, exist_ok=True)
            self.fd = os.open(f"{self._home}/stage", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        """The path of the stage."""
        return f"{self._root}/{self.inside}" if self.inside else f"{self._home}/stage"

    def _can_move(self) -> bool:
        """Does rename(2) lead from the state to the workspace?  Not between two mounts of one file system.

        Asked without leaving anything: to a name that is taken, so it is refused either way, but with another errno.
        """
        os.mkdir(f"{self._home}/try", 0o700)
        home = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syscalls.rename_new(home, "try", self._root_fd, ".")
        except OSError as error:
            return error.errno != errno.EXDEV
        finally:
            os.close(home)
            os.rmdir(f"{self._home}/try")
        return False

    def _check_graft(self) -> None:
        """One stage, from which rename(2) leads to the workspace, has to lead to its repository as well.

        Raises:
            HostError: it does not.
        """
        if isinstance(self._root_fd, Grafted) and not syscalls.one_mount(self.fd, self._root_fd.git):
            self.drop()
            raise HostError("put changes in place in one transaction", APART, target=self._root)

    def _remove_leftovers(self) -> None:
        """Remove what an apply left that ended before its journal was written."""
        inside = read(f"{self._home}/{_PLACE}").get("inside", "")
        if inside.startswith(STAGE_NAME) and "/" not in inside:
            remove_tree(self._root_fd, inside)
        remove_path(self._home)

    def drop(self) -> None:
        """Remove the stage with what is in it; nothing was put in place."""
        self._close_stage()
        self._step("drop")
        try:
            os.unlink(f"{self._home}/{JOURNAL}")  # first: without its stage it would say that everything was done
        except FileNotFoundError:
            pass
        self._step("remove stage")
        self._remove_leftovers()
        self._admit()

    def close(self) -> None:
        """Let go of the stage; where it is still in the workspace, no sandbox is started there until it has gone."""
        self._close_stage()
        if self._claim is not None:
            claim, self._claim = self._claim, None
            claim.leave()

    def _close_stage(self) -> None:
        self._wait()
        if self._inner is not None:
            self._inner.close()
            self._inner = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # ------------------------------------------------------------ making ready

    def slot(self) -> str:
        """A new name in the stage."""
        self._count += 1
        return str(self._count)

    def _at(self, slot: str) -> tuple[int, str]:
        """(the open directory of the stage that holds a slot, its name in there); a slot may be in a directory's."""
        if "/" not in slot:
            return self.fd, slot
        if self._inner is None:
            self._inner = Parents(self.fd)
        return self._inner.of(slot)

    def file(self, slot: str, source: int, side: Side, attributes: dict[str, bytes]) -> bytes:
        """Copy an open file into a slot; return the hash of the copy (``tree.digest``).

        It has its mode, without the set-id bits; one that its owner may not read gets it when the journal is written.
        """
        self._step("stage file")
        mode = side.mode & 0o1777
        if not mode & stat.S_IRUSR:
            self._modes[slot], mode = mode, 0o600
        directory, name = self._at(slot)
        fd = os.open(name, _CREATE, mode, dir_fd=directory)
        try:
            made = copy_small(source, fd, side.size) or copy_file(source, fd)
            self._finish(fd, side, attributes)
            status = os.fstat(fd)
            if status.st_mode & 0o7777 != mode:  # by the umask, or an ACL of the directory
                os.fchmod(fd, mode)
            self._marks[slot] = mark_of(status)
            return made or digest(fd)
        finally:
            os.close(fd)

    def read(self, slot: str) -> int:
        """The file in a slot, open for reading."""
        return os.open(slot, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def replaced(self, slot: str, side: Side) -> None:
        """Another file of ours has taken the place of what ``file`` made in a slot; it gets the mode of that."""
        self._marks.pop(slot, None)
        self._modes[slot] = side.mode & 0o1777

    def refuse(self, slot: str) -> None:
        """What is in a slot is not put in place."""
        self._marks.pop(slot, None)
        self._modes.pop(slot, None)
        if stat.S_ISDIR(os.stat(slot, dir_fd=self.fd, follow_symlinks=False).st_mode):
            os.rmdir(slot, dir_fd=self.fd)
        else:
            os.unlink(slot, dir_fd=self.fd)

    def data(self, slot: str, content: bytes, mode: int = 0o644) -> None:
        """A file of our own making in a slot."""
        self._step("stage file")
        fd = os.open(slot, _CREATE, 0o600, dir_fd=self.fd)
        try:
            write_all(fd, content)
            if self._is_root:
                details = os.fstat(self._root_fd)
                os.fchown(fd, details.st_uid, details.st_gid)
            self._modes[slot] = mode & 0o777
        finally:
            os.close(fd)

    def text(self, slot: str, content: bytes, side: Side, attributes: Mapping[str, bytes]) -> None:
        """A file that replaces another one in part, in a slot; as ``file``."""
        self.data(slot, content, side.mode)
        fd = os.open(slot, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            self._finish(fd, side, attributes)
            self._modes[slot] = side.mode & 0o1777
        finally:
            os.close(fd)

    def link(self, slot: str, side: Side) -> None:
        self._step("stage link")
        directory, name = self._at(slot)
        os.symlink(side.target, name, dir_fd=directory)
        if self._is_root:
            os.chown(name, side.uid, side.gid, dir_fd=directory, follow_symlinks=False)
        os.utime(name, ns=(side.mtime, side.mtime), dir_fd=directory, follow_symlinks=False)

    def directory(self, slot: str, side: Side, *, whole: bool = False) -> None:
        """A directory, into whose slot others may follow.

        It gets its mode when everything is in it: with ``whole``, and where its owner may still do everything in it,
        that is when the journal is written; else by an operation (``is_open``).
        """
        self._step("stage directory")
        directory, name = self._at(slot)
        os.mkdir(name, 0o700, dir_fd=directory)
        if self._is_root:
            os.chown(name, side.uid, side.gid, dir_fd=directory, follow_symlinks=False)
        if whole and side.mode & stat.S_IRWXU == stat.S_IRWXU:
            self._modes[slot] = side.mode & 0o3777

    def is_open(self, slot: str) -> bool:
        """Has the directory in a slot mode 0700 until an operation gives it its own?"""
        return slot not in self._modes

    def _finish(self, fd: int, side: Side, attributes: Mapping[str, bytes]) -> None:
        if self._is_root:
            os.fchown(fd, side.uid, side.gid)
        for name, value in attributes.items():
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
        os.utime(fd, ns=(side.mtime, side.mtime))

    def mark(self, slot: str) -> tuple[int, int, int, int]:
        """The mark of what is in a slot."""
        return self._marks.get(slot) or self._mark_now(slot)

    def _mark_now(self, slot: str) -> tuple[int, int, int, int]:
        return mark_of(os.stat(slot, dir_fd=self.fd, follow_symlinks=False))

    def is_made(self) -> None:
        """Most of it is: the kernel begins to write it to the disk, while it is judged."""
        if len(self._marks) > MOST_SYNCED and self._writing is None:
            import threading

            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)  # see ``write_back``
            self._writing = threading.Thread(target=_write_back, args=(fd,), name="write-back")
            self._writing.start()

    def _wait(self) -> None:
        if self._writing is not None:
            thread, self._writing = self._writing, None
            thread.join()

    # ------------------------------------------------------------ the journal

    def commit(self, ops: list[Op], rows: list[list[Any]], rows_after: list[list[Any]]) -> None:
        """Write the journal; from now on the operations are done, or undone, by it.

        Args:
            rows: what was written down of the base so far (``base.Base.stored``), for an undo.
            rows_after: what is to be written down when all is done, for who brings it to its end.
        """
        made = [op for op in ops if op.do in ("new", "put")]
        self._step("sync")
        self._wait()
        if len(made) > MOST_SYNCED:
            syscalls.syncfs(self.fd)
        else:
            tops = {op.slot: op.path for op in made}
            for op in made:
                self._sync(f"{op.tree}{op.path[len(tops[op.tree]) :]}" if op.tree else op.slot)
            os.fsync(self.fd)
        for slot, mode in self._modes.items():
            os.chmod(slot, mode, dir_fd=self.fd)  # ours: made in this stage, and no link
        self._step("journal")
        journal = {
            "format": _FORMAT,
            "workspace": self._root,
            "ops": [list(op._key()) for op in ops],
            "rows": rows,
            "rows_after": rows_after,
        }
        write(f"{self._home}/{JOURNAL}", journal)

    def _sync(self, slot: str) -> None:
        try:
            fd = os.open(slot, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return  # a link, or a file that even its owner may not read: written with the directory, or at the end
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def carry_out(self, ops: list[Op], done: Callable[[], None]) -> None:
        """Do all operations, or none.

        Args:
            done: is called when all are done, before the journal is given up.

        Raises:
            Conflict: the workspace was changed where an operation was to be done; it is as before.
            HostError: an operation failed; the workspace is as before, as after an interrupt.
            Unfinished: and what was done could not be undone; or all is done, and the undo copy could not be kept.
        """
        parents = Parents(self._root_fd)
        try:
            try:
                before = ""
                for op in ops:
                    if op.tree:
                        continue  # it has come with its tree
                    parent = op.path.rpartition("/")[0]
                    if parent != before:
                        self._check_place(parents, before)
                        before = parent
                    self._carry(op, parents)  # none was done yet
                self._check_place(parents, before)
            finally:
                parents.close()
        except BaseException as error:
            left = self.back(ops)
            if left:
                self.close()
                raise self._unfinished(error, left) from error
            self.drop()
            if not isinstance(error, OSError):
                raise
            raise HostError(
                "apply the changes",
                f"{os.strerror(error.errno or 0)}; everything is as before",
                target=ascii(error.filename or "")[1:-1],
            ) from error
        try:
            done()
            self.finish(ops)
        except OSError as error:
            self.close()
            raise Unfinished(
                "keep what was replaced",
                f"{os.strerror(error.errno or 0)}; everything is in place",
                fix=(f"membrane apply --continue {self._name}   # ends it",),
            ) from error

    @staticmethod
    def _check_place(parents: Parents, path: str) -> None:
        """What was done in the directory ``path``, which stayed open meanwhile, was done where it was to be.

        Raises:
            Conflict, OSError: the workspace has it somewhere else by now.
        """
        if not parents.is_there():
            raise conflict(path, "it was moved or replaced in the workspace meanwhile")

    def finish(self, ops: list[Op]) -> None:
        """All is done: keep what was replaced as the undo copy."""
        self._step("finish")
        parents = {op.path.rpartition("/")[0] for op in ops if not op.tree}
        if len(parents) > MOST_SYNCED:
            syscalls.syncfs(self._root_fd)
        else:
            for path in sorted(parents):
                try:
                    fd = open_directory(self._root_fd, path)
                except OSError:
                    continue  # moved or removed by others since
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        if self.inside:
            self._bring_home(ops)
        self.close()
        self._step("keep undo")
        remove_path(self._undo)  # that of the apply before
        os.rename(self._home, self._undo)

    def _bring_home(self, ops: list[Op]) -> None:
        """Copy what the stage in the workspace holds to the state, and remove it."""
        saved = f"{self._home}/stage"
        shutil.rmtree(f"{saved}.new", ignore_errors=True)
        self._step("save")
        copy_tree(self.fd, f"{saved}.new")
        replaced = [op for op in ops if op.old]
        done = {op.slot for op in replaced if op.do == "remove" or self._holds_old(op, status_at(self.fd, op.slot))}
        self._olds = {op.slot: self._olds_of(op) if op.slot in done else [] for op in replaced}
        self._mark_copies(f"{saved}.new")
        os.rename(f"{saved}.new", saved)
        self._step("remove stage")
        remove_tree(self._root_fd, self.inside)
        self._admit()

    def _olds_of(self, op: Op) -> list[tuple[int, ...]]:
        """Marks of what the operation has replaced, by which it is known in the workspace and in its slot.

        A copy of the stage has other inodes, and one of these may be that of a file which is gone since: so what holds
        for it is written down beside.  None: the slot of the copy holds what was to be put in place.
        """
        return self._olds.get(op.slot, [op.old])

    def _holds_old(self, op: Op, held: os.stat_result | None) -> bool:
        """Is it what the operation has replaced?  It may be written still, by who has it open."""
        return held is not None and (held.st_dev, held.st_ino) in [each[:2] for each in self._olds_of(op)]

    def _mark_copies(self, stage: str, *, only: bool = False) -> None:
        """Write down what is known of the slots in a copy of the stage; ``only``: the stage itself is gone."""
        for slot, marks in self._olds.items():
            try:
                copy = mark_of(os.lstat(f"{stage}/{slot}"))
            except FileNotFoundError:
                continue  # it cannot be read, and was left out
            if marks:
                self._olds[slot] = [copy] if only else [*marks, copy]
        self._write_place()

    def open(self) -> list[Op]:
        """Open the stage of an apply that ended in its middle.

        Raises:
            HostError: there is none, or it cannot be read.
        """
        stored = read(f"{self._home}/{JOURNAL}")
        if not stored:
            self._remove_leftovers()
            raise HostError("bring the apply to an end", "none ended in its middle", fix=("membrane changes",))
        try:
            if stored["format"] != _FORMAT or stored["workspace"] != self._root:
                raise ValueError("it is another workspace's, or of another version")
            ops = [
                Op(do, path, slot, tuple(old), tuple(new), was, mode, lock, listed, tree)
                for do, path, slot, old, new, was, mode, lock, listed, tree in stored["ops"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise HostError("read the journal", str(error), target=f"{self._home}/{JOURNAL}") from None
        self.rows, self.rows_after = stored.get("rows", []), stored.get("rows_after", [])
        place = read(f"{self._home}/{_PLACE}")
        self.inside = place.get("inside", "")
        self._olds = {slot: [tuple(each) for each in marks] for slot, marks in place.get("olds", {}).items()}
        if self.inside:
            self._exclude()
            self._restage(ops)
        else:
            self.fd = os.open(f"{self._home}/stage", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._unlock(ops)
        return ops

    def _unlock(self, ops: Iterable[Op]) -> None:
        """Remove the lock of git that we held when we were killed: nobody else would."""
        ours = GitLock.left(self.fd)
        if ours is None:
            return
        parents = Parents(self._root_fd)
        try:
            for op in ops:
                if op.lock:
                    try:
                        GitLock.remove(ours, parents.of(op.path)[0], op.lock)
                    except OSError:
                        continue  # what holds it has not come yet, or is somewhere else by now
        finally:
            parents.close()

    def _restage(self, ops: list[Op]) -> None:
        """Open the stage in the workspace; where only the copy in the state is left, make it anew."""
        saved = f"{self._home}/stage"
        if os.path.exists(saved):
            self._step("restage")
            remove_tree(self._root_fd, self.inside)
            fd = os.open(saved, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                root = f"/proc/self/fd/{self._root_fd}"
                copy_tree(fd, f"{root}/{self.inside}")
            finally:
                os.close(fd)
            self._olds = {op.slot: self._olds_of(op) for op in ops if op.old}
            self._mark_copies(f"{root}/{self.inside}", only=True)
            shutil.rmtree(f"{saved}.old", ignore_errors=True)
            os.rename(saved, f"{saved}.old")  # in one step: half of it would be taken for the whole
            shutil.rmtree(f"{saved}.old", ignore_errors=True)
        self.fd = open_directory(self._root_fd, self.inside)

    def reopen_undo(self) -> list[Op]:
        """Take the undo copy as an apply that is to be brought back.

        Raises:
            HostError: there is none.
        """
        self.check()
        if not os.path.exists(f"{self._undo}/{JOURNAL}"):
            raise HostError(
                "undo the last apply of",
                "there is none that can be undone",
                target=self._name,
                fix=("membrane undo NAME   # of another change set: membrane changes lists them",),
            )
        self._remove_leftovers()
        self.inside = read(f"{self._undo}/{_PLACE}").get("inside", "")
        self._exclude()
        self._step("take undo")
        os.rename(self._undo, self._home)
        return self.open()

    # ------------------------------------------------------------ forward and back

    def forward(self, ops: list[Op]) -> list[tuple[str, str]]:
        """Do what is not done yet; (path, why) of what cannot be done."""

        def work(op: Op, parents: Parents, staged: Collection[str]) -> None:
            if op.tree and op.slot not in staged:
                return  # it comes, or has come, with its tree
            if not self.is_done(op, parents, staged):
                self._carry(op, parents)
            parents.close()  # each directory anew: the host may have moved it

        return self._through(ops, work)

    def back(self, ops: list[Op]) -> list[tuple[str, str]]:
        """Undo what was done; (path, why) of what cannot be undone."""
        members: dict[str, list[Op]] = {}
        for op in ops:
            if op.tree:
                members.setdefault(op.tree, []).append(op)
        roots = {op.slot: op for op in ops if op.slot in members}
        gone: set[str] = set()

        def work(op: Op, parents: Parents, staged: Collection[str]) -> None:
            root = roots.pop(op.tree, None)  # once: at the last name of the tree, which comes first
            if root is not None and root.slot not in staged and self._tree_back(root, members[op.tree]):
                gone.add(root.slot)
            if (op.tree or op.slot) not in gone:
                self._undo_one(op, parents, staged)

        return self._through(ops[::-1], work)

    def _tree_back(self, root: Op, members: list[Op]) -> bool:
        """Take a tree back in one step; false: not all of it is there as it was put in place, and nothing was done.

        Raises:
            Conflict: the host changed it in this moment, and made something else at its name: it is in the stage.
            OSError: it cannot be looked at, or moved.
        """
        parents = Parents(self._root_fd)
        try:
            parent, name = parents.of(root.path)
            if not is_as_made(root, members, parent, name):
                return False
            self._step("undo new")
            syscalls.rename_new(parent, name, self.fd, root.slot)
            if is_as_made(root, members, self.fd, root.slot):
                return True
            try:
                syscalls.rename_new(self.fd, root.slot, parent, name)
            except FileExistsError:
                raise conflict(root.path, "it was changed, and something else made there, meanwhile") from None
            return False
        except (FileNotFoundError, NotADirectoryError):
            return False  # deleted or replaced in the workspace: each name says so by itself
        finally:
            parents.close()

    def _through(
        self, ops: Iterable[Op], work: Callable[[Op, Parents, Collection[str]], None]
    ) -> list[tuple[str, str]]:
        left = []
        parents = Parents(self._root_fd)
        try:
            staged = frozenset(os.listdir(self.fd))  # an operation changes the name of its own slot only
        except OSError as error:
            return [(op.path, os.strerror(error.errno or 0)) for op in ops]
        try:
            for op in ops:
                try:
                    work(op, parents, staged)
                except MembraneError as error:
                    left.append((op.path, error.cause))
                except OSError as error:
                    left.append((op.path, os.strerror(error.errno or 0)))
        finally:
            parents.close()
        return left

    def _unfinished(self, error: BaseException, left: list[tuple[str, str]]) -> Unfinished:
        path, why = left[0]
        return Unfinished(
            "apply the changes",
            f"{error}; and {len(left)} of them could not be undone: {ascii(path)[1:-1]} ({why})",
            fix=(f"membrane apply --abort {self._name}   # tries again", f"membrane apply --continue {self._name}"),
        )

    def is_done(self, op: Op, parents: Parents, staged: Collection[str]) -> bool:
        """Was it done?  By what is in its slot; ``staged``: the names in the stage."""
        if op.do == "mode":
            try:
                there = look_at(*parents.of(op.path))
            except (FileNotFoundError, NotADirectoryError):
                return False  # what is to hold it is not in place
            return there is not None and there.mode == op.mode
        if op.do == "new":
            return op.slot not in staged and op.tree not in staged
        if op.do == "remove":
            return op.slot in staged
        held = status_at(self.fd, op.slot)
        return held is None or self._holds_old(op, held)

    def _carry(self, op: Op, parents: Parents) -> None:
        """Do an operation that is not done."""
        self._step(op.do)
        parent, name = parents.of(op.path)
        with GitLock(parent, op.lock, self.fd):
            if op.do == "mode":
                self._mode(parent, name, op.new, op.was, op.mode)
                return
            if op.do == "new":
                try:
                    syscalls.rename_new(self.fd, op.slot, parent, name)
                except FileExistsError:
                    raise conflict(op.path, "it was made in the workspace meanwhile") from None
                return
            there = status_at(parent, name)
            if there is None or mark_of(there) not in self._olds_of(op):
                raise conflict(op.path, "it was changed in the workspace meanwhile")
            if op.do == "put":
                if stat.S_ISDIR(there.st_mode) and not is_empty(parent, name):
                    raise conflict(op.path, "something was made in it in the workspace meanwhile")
                syscalls.exchange(self.fd, op.slot, parent, name)
                filled = stat.S_ISDIR(there.st_mode) and not is_empty(self.fd, op.slot)
                if filled or self._mark_now(op.slot) not in self._olds_of(op):
                    syscalls.exchange(self.fd, op.slot, parent, name)
                    raise conflict(op.path, "it was changed in the workspace meanwhile")
            else:
                self._remove(op, parent, name, stat.S_ISDIR(there.st_mode))

    def _remove(self, op: Op, parent: int, name: str, directory: bool) -> None:
        if directory and not is_empty(parent, name):
            raise conflict(op.path, "something was made in it in the workspace meanwhile")
        syscalls.rename_new(parent, name, self.fd, op.slot)
        if self._mark_now(op.slot) not in self._olds_of(op) or (directory and not is_empty(self.fd, op.slot)):
            syscalls.rename_new(self.fd, op.slot, parent, name)
            raise conflict(op.path, "it was changed in the workspace meanwhile")

    def _undo_one(self, op: Op, parents: Parents, staged: Collection[str]) -> None:
        if not self.is_done(op, parents, staged):
            return
        self._step(f"undo {op.do}")
        parent, name = parents.of(op.path)
        with GitLock(parent, op.lock, self.fd):
            there = status_at(parent, name)
            directory = there is not None and stat.S_ISDIR(there.st_mode)
            if op.do == "remove":
                try:
                    syscalls.rename_new(self.fd, op.slot, parent, name)
                except FileExistsError:
                    raise conflict(op.path, "something else was made there since") from None
            elif op.do == "mode":
                self._mode(parent, name, op.new, op.mode, op.was)
            elif not is_ours(op, parent, name, there):
                raise conflict(op.path, "it was changed in the workspace since")
            elif there is None:
                raise conflict(op.path, "it was deleted in the workspace since")
            elif directory and not is_empty(parent, name):
                raise conflict(op.path, "something was made in it since")
            else:
                self._take_back(op, parent, name)

    def _take_back(self, op: Op, parent: int, name: str) -> None:
        """Bring what was put in place to the stage again.

        Raises:
            Conflict: it is something else by now, which is back in its place.
        """
        move = syscalls.exchange if op.do == "put" else syscalls.rename_new
        move(parent, name, self.fd, op.slot)
        taken = status_at(self.fd, op.slot)
        filled = taken is not None and stat.S_ISDIR(taken.st_mode) and not is_empty(self.fd, op.slot)
        if filled or not is_ours(op, self.fd, op.slot, taken):
            move(self.fd, op.slot, parent, name)
            raise conflict(op.path, "it was changed in the workspace meanwhile")

    def hindrances(self, ops: Iterable[Op]) -> list[tuple[str, str]]:
        """(path, why) of what cannot be undone as the workspace is now."""
        left = []
        made = {op.path for op in ops if op.do in ("new", "put")}
        staged = frozenset(os.listdir(self.fd))
        parents = Parents(self._root_fd)
        try:
            for op in ops:
                why = "" if op.do == "mode" else self._hindrance(op, parents, staged, made)
                if why:
                    left.append((op.path, why))
        finally:
            parents.close()
        return left

    def _hindrance(self, op: Op, parents: Parents, staged: Collection[str], made: Collection[str]) -> str:
        try:
            if not self.is_done(op, parents, staged):
                return ""
            parent, name = parents.of(op.path)
            there = status_at(parent, name)
            if op.do == "remove":
                return "something else was made there since" if there is not None and op.path not in made else ""
            return "" if is_ours(op, parent, name, there) else "it was changed in the workspace since"
        except (FileNotFoundError, NotADirectoryError):
            return "" if op.do == "remove" else "it was deleted in the workspace since"
        except OSError as error:
            above = (op.path[:at] for at, char in enumerate(op.path) if char == "/")
            if op.do == "remove" and error.errno == errno.ELOOP and any(each in made for each in above):
                return ""  # a link of this apply is above it, which goes first; it is looked at by itself
            return os.strerror(error.errno or 0)

    @staticmethod
    def _mode(parent: int, name: str, marked: tuple[int, ...], was: int, mode: int) -> None:
        handle = open_below(parent, name, os.O_PATH)
        try:
            status = os.fstat(handle)
            if (status.st_dev, status.st_ino) != marked[:2] or stat.S_ISLNK(status.st_mode):
                raise Conflict("change the mode", "it is another file by now", target=ascii(name)[1:-1])
            if stat.S_IMODE(status.st_mode) not in (was, mode):
                raise Conflict("change the mode", "it was changed meanwhile", target=ascii(name)[1:-1])
            os.chmod(f"/proc/self/fd/{handle}", mode)
        finally:
            os.close(handle)
