"""Change sets on disk: what a reviewed workspace has under our state, who may use it, and its layers.

Theory of operation
-------------------
A *change set* is what commands changed in one workspace, until it is applied.  It is a name with a stack of
*layers*, and each layer is the upper directory of an overlay mount (Documentation/filesystems/overlayfs.rst)::

    STATE/changes/NAME/meta          what ``ChangeSet`` holds; replaced by rename
    STATE/changes/NAME/lock          fcntl(2), F_OFD_SETLK: a command that runs on the set, or an apply
    STATE/changes/.layers/ID/upper   one layer; the last of a set is the one that is written, the others are frozen
    STATE/changes/.layers/ID/work    overlayfs's own work directory
    STATE/changes/.layers/ID/git     of a workspace whose repository is elsewhere: ``upper`` and ``work`` of that

Layers are kept beside the sets since checkpoints and forks share them: a frozen layer is never written again, so it may
be below any number of overlays.  A checkpoint freezes the last layer and puts an empty one above it; a
fork begins with the frozen layers of another set.  Both take constant time, whatever the layers hold.  Of a set that
a sandbox is writing the last layer is copied for them (``duplicate``).  A layer that no set and no checkpoint names any
more is removed.

The lock is the proof that a set is in use: the kernel drops it whatever ends its holder.  Its file says who took it,
for people.  When that one is killed, what it ran ends after it: its last processes are in the file as well, and
the next holder waits for them.  What makes and removes layers holds the lock of ``.layers`` as well, so that a layer
that is about to be named is not taken for one that nothing names.

What hides names in a workspace (``masks``, with ten thousand names some tenths of a second) outlives a set that
nothing was changed in: it is kept in ``.masks`` for the next new set of the same workspace, which makes of it what it
needs, as of that of the run before.

The directories are the caller's alone (mode 0700) and out of the sandbox's reach: what a command writes reaches a layer
by the overlay only.  Names of layers are short, as mount(2) takes at most a page of options.

One file of over 800 lines: who may use a set and what it consists of change under the same locks.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import stat
import struct
import time

from ..errors import HostError, PolicyError
from ..host.private import make_private
from ..host.ready import ready
from ..host.writing import write_all
from ..value import Value
from .removal import EMPTY, link_tree, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self

FORMAT = 1
LONGEST_NAME = 64
MOST_LAYERS = 128  # of one set: overlayfs takes 500, and each costs a little at every look-up of a name
LARGEST_META = 1 << 20  # bytes
LARGEST_LOCK = 512  # bytes
LONGEST_WAIT = 60.0  # seconds for processes of a holder that was killed
MASKS = "masks"  # in the directory of a set: the names that its last run hid
APPLIED = "applied"  # there: a file; all that the set holds was put in place
APPLYING, JOURNAL = "applying", "journal.json"  # there: of an apply that goes on, or that has to be brought to its end
COPYING = "copying-"  # in the directory of a set: copies of its last layer that are being made begin so
SPARE = ".masks"  # beside the sets: masks of sets that are gone, one for each of the last ``MOST_SPARE`` workspaces
MOST_SPARE = 4
GIT = "git"  # in the directory of a layer
POOL = ".layers"  # no name of a set begins with a dot
_NAME_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_NAME = _NAME_FIRST | frozenset("._-")
BEFORE_RESTORE = "before-restore"  # the checkpoint that ``restore`` makes of what it takes away


class ChangeSetError(PolicyError):
    """The change set that was named is not there, is another workspace's, or is in use."""


class Checkpoint(Value):
    """A state of the set that can be gone back to: its frozen layers, oldest first; ``made`` in ns since the epoch."""

    label: str
    layers: tuple[str, ...]
    made: int


class ChangeSet(Value):
    """One change set as its meta has it.

    Raises:
        ValueError: no such set can be.
    """

    name: str
    workspace: str  # absolute, without links
    device: int  # of the workspace's directory when the set was made
    inode: int
    made: int  # ns since the epoch
    session: str  # id of the last session that ran on it; empty: none yet
    layers: tuple[str, ...]  # ids, oldest first; the last is the one that is written
    checkpoints: tuple[Checkpoint, ...] = ()
    fork_of: str = ""
    repository: str = ""  # the git directory of the workspace that is elsewhere (``gitdirs``): absolute, without links
    repository_inode: int = 0
    seat: str = ""  # the part of it that is the workspace's: "worktrees/NAME"; empty: all

    def __post_init__(self) -> None:
        texts = (self.name, self.workspace, self.session, self.fork_of, self.repository, self.seat)
        numbers = (self.device, self.inode, self.made, self.repository_inode)
        if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
            raise ValueError("a field has another type")
        if not valid_name(self.name) or not self.workspace.startswith("/"):
            raise ValueError("no name, or no absolute path")
        if self.repository[:1] not in ("", "/") or (self.seat and not self.seat.startswith("worktrees/")):
            raise ValueError("no absolute path of a repository, or no part of one")
        stacks = (self.layers, *(each.layers for each in self.checkpoints))
        for ids in stacks:
            if not 0 < len(ids) <= MOST_LAYERS or not all(_is_id(each) for each in ids):
                raise ValueError("no layers, too many, or one without an id")
        if not all(valid_name(each.label) and type(each.made) is int for each in self.checkpoints):
            raise ValueError("a checkpoint without a label")


def valid_name(name: object) -> bool:
    """Whether a set or a checkpoint may have this name: letters, digits and ``._-``, the first no sign, at most 64."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name[0] in _NAME_FIRST and set(name) <= _NAME


def _is_id(layer: object) -> bool:
    return isinstance(layer, str) and len(layer) == 8 and set(layer) <= frozenset("0123456789abcdef")


def _checked(name: str, what: str = "change set") -> str:
    if not valid_name(name):
        raise ChangeSetError(
            f"use the {what}",
            f"{name!r} cannot name a {what}",
            fix=(f"letters, digits, '.', '_' and '-', beginning with a letter or digit, at most {LONGEST_NAME}",),
        )
    return name


def directory(state: str) -> str:
    """Where the change sets of a state directory are."""
    return f"{state}/changes"


def place(state: str, name: str) -> str:
    """The directory of one set.

    Raises:
        ChangeSetError: no set can have that name.
    """
    return f"{directory(state)}/{_checked(name)}"


def layer_root(state: str, layer: str) -> str:
    """The directory of one layer: ``upper`` and ``work`` are in it."""
    return f"{directory(state)}/{POOL}/{layer}"


def uppers(state: str, layers: Iterable[str]) -> tuple[str, ...]:
    """The directories that hold what was changed, oldest first: of all layers that are not empty a later one wins."""
    return tuple(f"{layer_root(state, layer)}/upper" for layer in layers)


def git_uppers(state: str, layers: Iterable[str]) -> tuple[str, ...]:
    """As ``uppers``, of the repository of a workspace that is elsewhere."""
    return tuple(f"{layer_root(state, layer)}/{GIT}/upper" for layer in layers)


def all_uppers(state: str, found: ChangeSet) -> tuple[str, ...]:
    """All directories that hold what was changed."""
    return uppers(state, found.layers) + (git_uppers(state, found.layers) if found.repository else ())


# ---------------------------------------------------------------- the file


def encode(change_set: ChangeSet) -> bytes:
    """``change_set`` as its file holds it: ``marshal`` of plain values, since every run reads it (json takes 6 ms)."""
    fields: dict[str, Any] = {"format": FORMAT}
    for name in change_set.field_names:
        fields[name] = getattr(change_set, name)
    fields["checkpoints"] = tuple((each.label, each.layers, each.made) for each in change_set.checkpoints)
    return marshal.dumps(fields, 2)


def decode(data: bytes) -> ChangeSet:
    """What ``encode`` wrote; never foreign bytes.

    Raises:
        ValueError: it is something else.
    """
    try:
        fields = marshal.loads(data)  # noqa: S302 - our own file, in a directory of mode 0700
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        fields["checkpoints"] = tuple(Checkpoint(*each) for each in fields["checkpoints"])
        return ChangeSet(**fields)
    except (AttributeError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"not a change set: {error}") from None


def read(state: str, name: str) -> ChangeSet:
    """One set, as it is on disk now.

    Raises:
        ChangeSetError: there is none of that name, or it cannot be read.
    """
    path = f"{place(state, name)}/meta"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotThere(
            "read the change set", f"there is no change set {name!r}", fix=("membrane changes   # lists them",)
        ) from None
    except OSError as error:
        raise HostError("read the change set", error.strerror or "", target=path) from None
    try:
        data = b""
        while len(data) <= LARGEST_META and (part := os.read(fd, LARGEST_META)):
            data += part
        found = decode(data)
        if found.name != name:
            raise ValueError(f"it says that its name is {found.name!r}")
        return found
    except (OSError, ValueError) as error:
        raise ChangeSetError(
            "read the change set",
            f"{path} cannot be used: {error}",
            fix=(f"membrane discard {name}   # removes it",),
        ) from None
    finally:
        os.close(fd)


def _write(path: str, data: bytes, *, lasting: bool = True) -> None:
    """Replace a file of ours.  ``lasting``: it is on the disk before the old one goes."""
    temporary = f"{path}.new"  # under the set's lock: no other process writes it
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        if lasting:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)


# ---------------------------------------------------------------- the lock of a set


class Held:
    """A change set whose lock we hold; no other process runs, applies or removes it.  A context manager.

    ``meta`` is the set as it is on disk; ``new``: ``begin`` has made it.
    Descriptor ``fd`` is the lock: it goes when the last copy is closed.
    """

    def __init__(self, state: str, name: str, fd: int) -> None:
        self.state, self.name, self.fd = state, name, fd
        self.new = False
        self.path = place(state, name)
        self.meta = read(state, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keep_until(self, processes: Iterable[int]) -> None:
        """The process that gets the lock when we are killed waits for the end of ``processes``: they may still write.

        Raises:
            HostError: that cannot be written down.
        """
        lines = [_said(self.fd), *(f"{pid} {started}" for pid in processes if (started := started_at(pid)))]
        with _Reporting("lock the change set", self.path):
            write_all(self.fd, "\n".join(lines).encode(), 0)

    def last(self) -> tuple[int, ...]:
        """What ``keep_until`` has written, of processes that run."""
        return tuple(pid for pid, _started in _kept_until(self.fd))

    def leave(self) -> None:
        """Close our descriptor of the lock, which another process holds as well and goes on holding."""
        fd, self.fd = self.fd, -1
        os.close(fd)

    def look_again(self) -> None:
        """Read ``meta`` anew, after another process with a descriptor of the lock has changed it.

        Raises:
            ChangeSetError: it cannot be read.
        """
        self.meta = read(self.state, self.name)

    def close(self) -> None:
        """Give the lock back; nothing that worked on the set runs any more."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                os.ftruncate(fd, 0)
            finally:
                os.close(fd)

    def update(self, **changes: Any) -> ChangeSet:
        """Change fields of ``meta``, on disk first.

        Raises:
            HostError: it cannot be written; the set is as before.
        """
        changed = self.meta.replace(**changes)
        with _Reporting("write the change set", self.path):
            # Who ran last is no loss when the machine goes down.
            _write(f"{self.path}/meta", encode(changed), lasting=set(changes) != {"session"})
        self.meta = changed
        return changed

    @property
    def uppers(self) -> tuple[str, ...]:
        """The directories of what was changed, oldest first (``uppers``)."""
        return uppers(self.state, self.meta.layers)

    @property
    def git_uppers(self) -> tuple[str, ...]:
        """The same of the repository that is elsewhere; () where there is none."""
        return git_uppers(self.state, self.meta.layers) if self.meta.repository else ()

    @property
    def top(self) -> str:
        """The directory of the layer that is written: ``upper`` and ``work`` are in it."""
        return layer_root(self.state, self.meta.layers[-1])

    @property
    def _trees(self) -> tuple[str, ...]:
        """What a layer has of each tree: where its ``upper`` and ``work`` are."""
        return ("", f"/{GIT}") if self.meta.repository else ("",)

    def renew_work(self) -> None:
        """A new work directory for the layer that is written: an overlay leaves its marks there.

        Raises:
            HostError: it cannot be made.
        """
        with _Reporting("prepare the change set", self.top):
            for tree in self._trees:
                remove_tree(f"{self.top}{tree}/work")
                os.mkdir(f"{self.top}{tree}/work", 0o700)

    @property
    def is_empty(self) -> bool:
        """Whether the set holds no change and no checkpoint, also none that was made meanwhile (``beside``)."""
        self.look_again()
        return not self.meta.checkpoints and all(_is_empty(upper) for upper in (*self.uppers, *self.git_uppers))

    def checkpoint(self, label: str, *, replace: bool = False, mounted: Callable[[], None] | None = None) -> Checkpoint:
        """Freeze what was changed so far under ``label``, in constant time.

        Args:
            replace: an earlier checkpoint of that label is given up.
            mounted: the last layer is that of an overlay, whose writers are stopped; it is copied.  Called after the
                copy, before anything names it; raises where they did not.

        Raises:
            ChangeSetError: the label cannot be one, is taken, or there are too many layers.
            HostError: it cannot be written; the set is as before.
        """
        _checked(label, "checkpoint")
        self._refuse_label(label, replace)
        copied = self._copied(mounted) if mounted else ""
        with _Pool(self.state) as pool:
            frozen, stack = self._adopted(pool, copied) if mounted else self._freeze(pool)
            self._refuse_label(label, replace)
            made = Checkpoint(label, frozen, time.time_ns())
            kept = tuple(each for each in self.meta.checkpoints if each.label != label)
            self.update(layers=stack, checkpoints=(*kept, made))
            if len(kept) < len(self.meta.checkpoints) - 1:
                pool.collect()
        return made

    def restore(self, label: str) -> None:
        """Go back to the state of a checkpoint; what was changed since is kept as the checkpoint ``before-restore``.

        Raises:
            ChangeSetError: there is no such checkpoint.
            HostError: it cannot be written; the set is as before.
        """
        found = checkpoint_of(self.meta, label)
        self._refuse_layers(len(found.layers) + 1)
        self.mark_changed()
        with _Pool(self.state) as pool:
            frozen, _ = self._freeze(pool, above=False)
            before = Checkpoint(BEFORE_RESTORE, frozen, time.time_ns())
            others = tuple(each for each in self.meta.checkpoints if each.label != BEFORE_RESTORE)
            self.update(
                layers=(*found.layers, self._above(pool, layer_root(self.state, found.layers[-1]))),
                checkpoints=(*others, before),
            )
            pool.collect()

    def mark_changed(self) -> None:
        """It holds something else than what was put in place (``APPLIED``): the next run goes on from that.

        Raises:
            HostError: that cannot be written down.
        """
        with _Reporting("write the change set", self.path):
            try:
                os.unlink(f"{self.path}/{APPLIED}")
            except FileNotFoundError:
                pass

    def fork(self, name: str, *, mounted: Callable[[], None] | None = None) -> ChangeSet:
        """A new set that begins with what this one holds now, in constant time; neither sees the other's changes.

        Args:
            mounted: as of ``checkpoint``.

        Raises:
            ChangeSetError: the name cannot be one, or is taken.
            HostError: it cannot be made; nothing is left of it.
        """
        if os.path.lexists(place(self.state, name)):
            raise _taken(name)
        copied = self._copied(mounted) if mounted else ""
        with _Pool(self.state) as pool:
            frozen, stack = self._adopted(pool, copied) if mounted else self._freeze(pool)
            self._refuse_layers(len(frozen) + 1)
            self.update(layers=stack)  # first: what the other one has as frozen is not written any more
            meta = self.meta.replace(
                name=_checked(name),
                session="",  # ``made`` stays: what the host changed since then is a conflict of the fork as well
                layers=(*frozen, self._above(pool)),
                checkpoints=(),
                fork_of=self.name,
            )
            try:
                _make(self.state, meta, masks=f"{self.path}/{MASKS}").close()
            except BaseException:
                pool.collect()
                raise
        return meta

    def empty(self) -> None:
        """After an apply: the set has no changes any more, and its checkpoints are gone.

        Raises:
            HostError: it cannot be written; the set is as before.
        """
        with _Pool(self.state) as pool:
            self.update(layers=(pool.make(self.meta.workspace, self.meta.repository),), checkpoints=())
            pool.collect()

    def discard(self, *, spare: bool = False) -> None:
        """Remove the set and each layer that no other set has.  The set is gone for everybody else.

        Args:
            spare: keep its masks for the next new set of the workspace (``make_masks``).

        Raises:
            HostError: it cannot be removed.
        """
        _discard(self.state, self.name, self._spare if spare else "")

    @property
    def _spare(self) -> str:
        return f"{directory(self.state)}/{SPARE}/{self.meta.device:x}-{self.meta.inode:x}"

    def make_masks(self) -> None:
        """A directory for the masks: empty, or with those of a set of this workspace that is gone.

        Another process may take the two parts of these at the same time: what does not fit is made anew (``cell``).

        Raises:
            OSError: it cannot be made.
        """
        masks = f"{self.path}/{MASKS}"
        for ending in (EMPTY, ""):
            try:
                os.rename(f"{self._spare}/{MASKS}{ending}", f"{masks}{ending}")
            except FileNotFoundError:
                pass
        if not os.path.isdir(masks):
            os.mkdir(masks, 0o700)

    def _refuse_layers(self, count: int) -> None:
        if count > MOST_LAYERS:
            raise ChangeSetError(
                "add a layer",
                f"the change set {self.name} would have {count} layers, and {MOST_LAYERS} is the most",
                fix=(f"membrane apply {self.name}, or go on in a new change set",),
            )

    def _freeze(self, pool: _Pool, *, above: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The frozen layers of what is there now, and the stack that goes on from them.

        An empty last layer is not frozen: it holds nothing, and may be written as before.
        """
        stack = self.meta.layers
        if self._holds_nothing():
            if len(stack) > 1:
                return stack[:-1], stack
            # A set without changes: the checkpoint's layer is an empty one of its own.
            return (self._above(pool),), stack
        if above:
            self._refuse_layers(len(stack) + 1)
        return stack, (*stack, self._above(pool)) if above else stack

    def _holds_nothing(self) -> bool:
        """Has the layer that is written no change?"""
        return all(_is_empty(f"{self.top}{tree}/upper") for tree in self._trees)

    def _above(self, pool: _Pool, below: str = "") -> str:
        """An empty layer that goes on from the one in ``below``; empty: from the last one."""
        place = below or self.top
        return pool.make(*(f"{place}{tree}/upper" for tree in self._trees))

    def _refuse_label(self, label: str, replace: bool) -> None:
        if not replace and any(each.label == label for each in self.meta.checkpoints):
            raise ChangeSetError(
                "make a checkpoint",
                f"the change set {self.name} has a checkpoint {label!r} already",
                fix=("choose another label",),
            )

    def _copied(self, confirm: Callable[[], None]) -> str:
        """Copy the last layer to a place where it is not taken for one that nothing names; empty: it holds nothing.

        Raises:
            HostError: it cannot be copied, or is not confirmed; nothing is left of it.
        """
        from .duplicate import duplicate  # what most runs do not need

        if self._holds_nothing():
            confirm()
            return ""
        making = f"{self.path}/{COPYING}{os.urandom(4).hex()}"
        try:
            with _Reporting("copy the changes", self.path):
                for tree in self._trees:
                    for name in ("", "/upper", "/work"):
                        os.mkdir(making + tree + name, 0o700)
                    duplicate(f"{self.top}{tree}/upper", f"{making}{tree}/upper")
            confirm()
        except BaseException:
            remove_tree(making)
            raise
        return making

    def _adopted(self, pool: _Pool, copied: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As ``_freeze``, of a set whose last layer is mounted: the copy stands for it, and the stack stays.

        Raises:
            ChangeSetError: the set has other layers than when it was copied.
        """
        stack = self.meta.layers
        self.look_again()  # another process may have made a checkpoint
        if self.meta.layers != stack:
            if copied:
                remove_tree(copied)
            raise InUse("copy the changes", f"the change set {self.name} was changed meanwhile", fix=("try it again",))
        if not copied:
            return stack[:-1] or (self._above(pool),), stack
        return (*stack[:-1], pool.adopt(copied)), stack

    def forget_copies(self) -> None:
        """Remove what one that was killed has left of a copy; only the caller works on the set."""
        for name in os.listdir(self.path):
            if name.startswith(COPYING):
                remove_tree(f"{self.path}/{name}")


def beside(state: str, name: str) -> tuple[Held, tuple[int, ...]]:
    """A set on which a run goes on, for a copy of what it holds, and that run's processes (``Held.keep_until``).

    The lock is the run's: ``Held.leave`` ends this.

    Raises:
        NotThere: there is none of that name.
        InUse: something else works on it.
    """
    path = f"{place(state, name)}/lock"
    with _Reporting("use the change set", path):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        processes = tuple(pid for pid, _started in _kept_until(fd))
        if not processes or not _is_locked(fd):
            raise InUse("use the change set", f"the change set {name!r} is in use by {_said(fd) or 'another process'}")
        return Held(state, name, fd), processes
    except BaseException:
        os.close(fd)
        raise


def checkpoint_of(found: ChangeSet, label: str) -> Checkpoint:
    """The checkpoint of that label.

    Raises:
        ChangeSetError: there is none.
    """
    for each in found.checkpoints:
        if each.label == label:
            return each
    known = ", ".join(each.label for each in found.checkpoints)
    raise ChangeSetError(
        "find the checkpoint",
        f"the change set {found.name} has no checkpoint {label!r}",
        fix=(f"its checkpoints are: {known}",) if known else ("membrane checkpoint NAME LABEL makes one",),
    )


def _discard(state: str, name: str, spare: str = "") -> None:
    gone = f"{directory(state)}/.gone-{os.urandom(8).hex()}"
    path = place(state, name)
    _refuse_unfinished(state, name)
    with _Pool(state) as pool:
        with _Reporting("discard the change set", path):
            os.rename(path, gone)  # in one step: what is half removed cannot be continued
        if spare:
            _keep_masks(gone, spare)
        pool.collect()
    remove_tree(gone)


def _refuse_unfinished(state: str, name: str) -> None:
    """What an apply has replaced so far is in the set: without it the workspace stays half changed.

    Raises:
        HostError: an apply ended in its middle, and its workspace is there.
    """
    if not os.path.exists(f"{place(state, name)}/{APPLYING}/{JOURNAL}"):
        return
    try:
        found = read(state, name)
        trees = [(found.workspace, found.inode), (found.repository or found.workspace, found.repository_inode)]
        if any(os.stat(path).st_ino != inode for path, inode in trees[: 2 if found.repository else 1]):
            return
    except (ChangeSetError, HostError, OSError):
        return  # nothing can be brought back
    raise HostError(
        "discard the change set",
        f"an apply of {name} ended in its middle, and what it replaced in {found.workspace} is kept in the set",
        fix=(f"membrane apply --abort {name}", f"membrane apply --continue {name}"),
    )


def _keep_masks(gone: str, spare: str) -> None:
    """Keep the masks of a set that is gone, unless others are kept; and of other workspaces those of the last ones."""
    try:
        place = os.path.dirname(spare)
        make_private(place)
        make_private(spare)
        if os.path.lexists(f"{spare}/{MASKS}"):
            return
        for ending in (EMPTY, ""):
            try:
                os.rename(f"{gone}/{MASKS}{ending}", f"{spare}/{MASKS}{ending}")
            except FileNotFoundError:
                pass
        kept = sorted(os.scandir(place), key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in kept[:-MOST_SPARE]:
            remove_tree(entry.path)
    except (OSError, HostError):
        pass  # the next set makes its own


class _Pool:
    """The layers of all sets, while no other process makes or removes one."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.path = f"{directory(state)}/{POOL}"
        make_private(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # what is done under it takes no longer than a few files
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def make(self, like: str, git: str = "") -> str:
        """An empty layer; its id.  A set has to name it before the lock is given back.

        Args:
            like: the directory whose mode, owner and times the overlay's own root has from now on.
            git: the same for the overlay of a repository that is elsewhere; empty: there is none.
        """
        with _Reporting("make a layer", self.path):
            while True:
                layer = os.urandom(4).hex()
                try:
                    os.mkdir(f"{self.path}/{layer}", 0o700)
                    break
                except FileExistsError:
                    continue
            self._fill(f"{self.path}/{layer}", like)
            if git:
                os.mkdir(f"{self.path}/{layer}/{GIT}", 0o700)
                self._fill(f"{self.path}/{layer}/{GIT}", git)
        return layer

    @staticmethod
    def _fill(place: str, like: str) -> None:
        for name in ("upper", "work"):
            os.mkdir(f"{place}/{name}", 0o700)
        upper = f"{place}/upper"
        details = os.stat(like)
        if (details.st_uid, details.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.chown(upper, details.st_uid, details.st_gid)
            except PermissionError:
                pass  # a workspace of another user: what is made in it is the caller's
        os.chmod(upper, stat.S_IMODE(details.st_mode))
        os.utime(upper, ns=(details.st_atime_ns, details.st_mtime_ns))

    def adopt(self, path: str) -> str:
        """Make a layer of a directory with ``upper`` and ``work``; its id, which a set has to name, as of ``make``."""
        with _Reporting("make a layer", self.path):
            while True:
                layer = os.urandom(4).hex()
                if not os.path.lexists(f"{self.path}/{layer}"):
                    os.rename(path, f"{self.path}/{layer}")
                    return layer

    def collect(self) -> int:
        """Remove the layers that no set and no checkpoint names, and sets that are half made or half removed; how many.

        With a set that cannot be read no layer is removed: it may name any of them.
        """
        left = [name for name in os.listdir(directory(self.state)) if name.startswith((".new-", ".gone-"))]
        for name in left:
            remove_tree(f"{directory(self.state)}/{name}")
        named: set[str] = set()
        try:
            for name in _names(self.state):
                found = read(self.state, name)
                named.update(found.layers, *(each.layers for each in found.checkpoints))
        except (ChangeSetError, HostError):
            return len(left)
        unnamed = [layer for layer in os.listdir(self.path) if layer not in named]
        for layer in unnamed:
            remove_tree(f"{self.path}/{layer}")
        return len(left) + len(unnamed)


def _is_empty(upper: str) -> bool:
    with os.scandir(upper) as entries:
        return next(entries, None) is None


class _Reporting:
    """An OSError of the block becomes a HostError that says what was tried, and on what."""

    def __init__(self, tried: str, target: str) -> None:
        self._tried, self._target = tried, target

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            hint = ("free some space",) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ()
            raise HostError(self._tried, error.strerror or "", target=self._target, fix=hint) from None


# ---------------------------------------------------------------- all sets


def begin(
    state: str, name: str, workspace: str, doing: str, session: str = "", repository: str = "", seat: str = ""
) -> Held:
    """Take the change set ``name`` of ``workspace``, or make it.

    Args:
        workspace: absolute, without links; a set belongs to one directory.
        doing: what the lock is taken for, for people: "a run (session 1a2b3c)".
        session: the id of the session that will run on it.
        repository, seat: as of ``ChangeSet``.

    Raises:
        ChangeSetError: the name cannot be one, the set is another workspace's, or repository's, or it is in use.
        HostError: it cannot be made.
    """
    details = _workspace(workspace)
    git = (repository, _workspace(repository).st_ino if repository else 0, seat)
    place(state, name)  # a name that cannot be one is refused before anything is made
    while True:
        try:
            held = take(state, name, doing)
        except NotThere:
            with _Pool(state) as pool:
                layer = pool.make(workspace, repository)
                fields = (details.st_dev, details.st_ino, time.time_ns(), session, (layer,), (), "", *git)
                try:
                    held = _make(state, ChangeSet(name, workspace, *fields), doing, lasting=False)
                except NameTaken:
                    pool.collect()
                    continue  # it was made meanwhile
                held.new = True
                return held
        try:
            _same_workspace(held.meta, workspace, details)
            _same_repository(held.meta, git)
            if session:
                held.update(session=session)
        except BaseException:
            held.close()
            raise
        return held


def take(state: str, name: str, doing: str) -> Held:
    """Take the lock of a set that exists.

    Raises:
        NotThere: there is none of that name.
        InUse: something works on it.
        ChangeSetError: it cannot be read.
        HostError: its lock cannot be opened.
    """
    fd = _lock(state, name, doing)
    try:
        return Held(state, name, fd)
    except BaseException:
        os.close(fd)
        raise


def _lock(state: str, name: str, doing: str) -> int:
    """A descriptor that holds the lock of a set; errors as of ``take``."""
    path = f"{place(state, name)}/lock"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotThere(
                "use the change set", f"there is no change set {name!r}", fix=("membrane changes   # lists them",)
            ) from None
        except OSError as error:
            raise HostError("use the change set", error.strerror or "", target=path) from None
        try:
            if not _lock_file(fd):
                raise InUse(
                    "use the change set",
                    f"the change set {name!r} is in use by {_said(fd) or 'another process'}",
                    fix=("wait until it ends", "use another name: --review=NAME"),
                )
            # Discarded between our open and our lock, and perhaps made again: then the name leads to another file.
            if ours := _is_still(path, fd):
                _wait(fd, name)
                with _Reporting("use the change set", path):
                    os.ftruncate(fd, 0)
                    write_all(fd, doing.encode("utf-8", "surrogateescape"), 0)
        except BaseException:
            os.close(fd)
            raise
        if ours:
            return fd
        os.close(fd)


_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux (asm-generic/fcntl.h)


def _lock_file(fd: int) -> bool:
    """Take the lock of an open file description (fcntl(2), F_OFD_SETLK); False: another process has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
        return False
    return True


def started_at(pid: int) -> str:
    """When a process was started (proc_pid_stat(5), field 22); empty: there is none, or it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")


def _wait(fd: int, name: str) -> None:
    """Until the processes of a holder that was killed have ended.

    Raises:
        InUse: they have not in ``LONGEST_WAIT`` seconds.
    """
    until = time.monotonic() + LONGEST_WAIT
    for pid, started in _kept_until(fd):
        try:
            process = os.pidfd_open(pid)
        except OSError:
            continue  # it has ended meanwhile
        try:
            # The number may have gone to another process since; that one began later.
            if started_at(pid) == started and not ready((process,), seconds=max(0, until - time.monotonic()))[0]:
                cause = f"what ran on the change set {name!r} was killed, and its process {pid} has not ended"
                raise InUse("use the change set", cause, fix=("wait until it ends", "use another name: --review=NAME"))
        finally:
            os.close(process)


def _kept_until(fd: int) -> list[tuple[int, str]]:
    """Processes of the holder of a lock that run, each with when it was started."""
    found = []
    for line in os.pread(fd, LARGEST_LOCK, 0).decode("utf-8", "replace").splitlines()[1:]:
        pid, _, started = line.partition(" ")
        if pid.isdecimal() and started_at(int(pid)) == started:
            found.append((int(pid), started))
    return found


def _is_locked(fd: int) -> bool:
    """Whether a process has it.  It is not taken for that: who takes it at this moment would be refused."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


class NotThere(ChangeSetError):
    """No change set has this name."""


class InUse(ChangeSetError):
    """A command, an apply or a discard works on the set."""


class NameTaken(ChangeSetError):
    """A change set has this name already."""


def discard(state: str, name: str, doing: str) -> None:
    """Remove a set, also one that cannot be read.

    Raises:
        NotThere: there is none of that name.
        InUse: something works on it.
        HostError: it cannot be removed.
    """
    fd = _lock(state, name, doing)
    try:
        _discard(state, name)
    finally:
        os.close(fd)


def collect(state: str) -> int:
    """Remove what a process that was killed has left half made or half removed; how many things."""
    if not os.path.isdir(f"{directory(state)}/{POOL}"):
        return 0
    with _Pool(state) as pool:
        return pool.collect()


def in_use(state: str, name: str) -> str:
    """What works on a set now, for people; empty: nothing does."""
    try:
        fd = os.open(f"{place(state, name)}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return (_said(fd) or "another process") if _is_locked(fd) else ""
    finally:
        os.close(fd)


def list_sets(state: str) -> list[ChangeSet]:
    """All sets that can be read, oldest first."""
    found = []
    for name in _names(state):
        try:
            found.append(read(state, name))
        except (ChangeSetError, HostError):
            continue
    return sorted(found, key=lambda each: (each.made, each.name))


def _names(state: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory(state)) if valid_name(name))
    except FileNotFoundError:
        return []


def _said(fd: int) -> str:
    text = os.pread(fd, LARGEST_LOCK, 0).decode("utf-8", "replace").partition("\n")[0]
    return "".join(each if each.isprintable() else "?" for each in text)


def _is_still(path: str, fd: int) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _workspace(path: str) -> os.stat_result:
    with _Reporting("use the workspace", path):
        return os.stat(path)
    raise AssertionError  # for the type checker: the block returns or raises


def _same_workspace(found: ChangeSet, workspace: str, details: os.stat_result) -> None:
    """Refuse a set of another directory.

    By its path and inode: device numbers of btrfs, NFS or a removable disk change from one mount to the next.
    """
    if found.workspace != workspace:
        cause = f"the change set {found.name!r} belongs to {found.workspace}, not to {workspace}"
    elif found.inode != details.st_ino:
        cause = f"{workspace} is another directory than the one that the change set {found.name!r} was made for"
    else:
        return
    raise ChangeSetError("use the change set", cause, fix=("use another name: --review=NAME",))


def _same_repository(found: ChangeSet, git: tuple[str, int, str]) -> None:
    if (found.repository, found.repository_inode, found.seat) != git:
        cause = f"the workspace has another repository than when the change set {found.name!r} was made"
        raise ChangeSetError("use the change set", cause, fix=("use another name: --review=NAME",))


def _taken(name: str) -> NameTaken:
    return NameTaken("make the change set", f"there is a change set {name!r} already", fix=("use another name",))


def _make(state: str, meta: ChangeSet, doing: str = "its making", masks: str = "", *, lasting: bool = True) -> Held:
    """A new set, locked, with the ``masks`` of another.  It gets its name in one step, when all of it is there.

    ``lasting``: what describes it is on the disk then.  For a run, which has nothing in it yet and writes without
    fsync(2), that would be a wait for nothing: the kernel writes it with the first changes.

    Raises:
        NameTaken: the name is another set's.
        HostError: it cannot be made; nothing is left of it.
    """
    path = place(state, meta.name)
    making = f"{directory(state)}/.new-{os.urandom(8).hex()}"
    fd = -1
    try:
        with _Reporting("make the change set", path):
            os.mkdir(making, 0o700)
            fd = os.open(f"{making}/lock", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _lock_file(fd)
            write_all(fd, doing.encode("utf-8", "surrogateescape"))
            _write(f"{making}/meta", encode(meta), lasting=lasting)
            if os.path.isdir(masks):
                link_tree(masks, f"{making}/{MASKS}")
            try:
                os.rename(making, path)  # of a directory onto one that holds something: ENOTEMPTY
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise _taken(meta.name) from None
        return Held(state, meta.name, fd)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        remove_tree(making)
        raise
