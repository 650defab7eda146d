"""Where the sandbox's changes of the caller's toolchains go, and who has that place now.

Theory of operation
-------------------
Toolchains of the home (``plan.mounts.TOOLCHAINS``) are the caller's to read and the sandbox's to write: each is an
overlay, and what is written is in a *layer*, ``STATE/layers/KEY/NUMBER/NAME``, as long as the home that it belongs
to.  Nothing of it reaches the caller's directories, and no command reaches a layer but through its overlay.

The overlays are volatile: without that the end of each run would wait until everything on that file system is written
(fs/overlayfs/super.c, ovl_sync_fs).

Two overlays may not have one upper directory at a time: the kernel lets them, and what becomes of the files is not
defined (Documentation/filesystems/overlayfs.rst, "Sharing and copying layers").  So a run locks the directory NUMBER
(flock(2)) and notes which processes end last, as it may be killed before them; another one at the same time takes the
next number.  A home that is not kept has a layer for one run, which is removed at the end, or by the next such run if
this one is killed.
"""

from __future__ import annotations

import os
import stat

from ..host.facts import NO_ID_MAPS, mount_points
from ..host.private import make_private
from ..plan import mounts
from ..plan.model import Overlay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..events import Binding
    from ..plan.model import HostFacts, MountOp
    from ..policy.model import Policy

MOST = 64  # runs at a time that have a layer each
MOST_SAID = 4  # toolchains that one line names
_ONCE = ".once"  # of homes that are not kept
_LAST = ".last"  # beside the layers of a run: its processes outside, that end when nothing runs in the sandbox any more


def planned(policy: Policy, facts: HostFacts) -> HostFacts:
    """``facts`` with the layer that a run has when there is no other; nothing is made or locked."""
    if not _wants(policy, facts):
        return facts
    below, state_kind = f"{facts.home}/", ""
    mounted = []
    for place, kind in mount_points():
        if place.startswith(below):
            mounted.append(place)
        if mounts.inside(facts.state, place):
            state_kind = kind  # of those at one place the later covers
    if state_kind in NO_ID_MAPS or state_kind.startswith("fuse"):
        return facts  # no upper directory there
    return facts.replace(layers=f"{_above(policy, facts)}/0", mounted=frozenset(mounted))


def without_layer(assurance: Iterable[Binding]) -> str:
    """What to say of toolchains that could get no layer (``host.readback``); empty: each got one.

    Args:
        assurance: what was read back.
    """
    # A toolchain can be a rule of nobody's, so nothing else is "partial" under this name.
    said = [each.mechanism for each in assurance if each.rule == "toolchain" and each.status == "partial"]
    if not said:
        return ""
    more = f" (and {len(said) - MOST_SAID} more)" if len(said) > MOST_SAID else ""
    fix = "membrane doctor says what an overlay needs; a command can remove what is in the sandbox's home"
    return f"toolchains of the home without a layer: {'; '.join(said[:MOST_SAID])}{more}. {fix}"


def _wants(policy: Policy, facts: HostFacts) -> bool:
    """Are there overlays that need a layer: over toolchains, or for volumes of an image, which has none of those?"""
    if facts.image is not None:
        return bool(facts.image.volumes)
    return policy.view == "project" and bool(mounts.toolchains(facts))


def _above(policy: Policy, facts: HostFacts) -> str:
    store = mounts.home_store(policy, facts) if facts.image is None else ""  # volumes are of one run
    return f"{facts.state}/layers/{os.path.basename(store) or _ONCE}"


class Layers:
    """The layer of one run.

    Attributes:
        facts: with it, or without one where none can be had.
        notes: what to say, once for each place.

    Args:
        policy: that is in force.
        facts: as ``planned`` made them.

    Raises:
        HostError: our own state cannot be written.
    """

    def __init__(self, policy: Policy, facts: HostFacts) -> None:
        self.facts = facts
        self.notes: tuple[str, ...] = ()
        self._lock = -1
        self._once = ""
        if not facts.layers:
            if policy.view == "project" and mounts.toolchains(facts):  # of volumes of an image the receipt says it
                cause = f"toolchains of the home are read-only: {facts.state} is on a file system that takes no layers"
                self._note(f"{cause}; set MEMBRANE_HOME to a directory on a disk")
            return
        above = _above(policy, facts)
        make_private(above)
        if os.path.basename(above) == _ONCE:
            self._begin_once(above)
            return
        for number in range(MOST):
            if self._take(f"{above}/{number}"):
                self.facts = facts.replace(layers=f"{above}/{number}")
                if number:
                    self._note(
                        f"another run has the layer over your toolchains in {above}/0: what commands of this one "
                        f"install there is kept apart, in {above}/{number}"
                    )
                return
        self.facts = facts.replace(layers="")
        self._note(f"toolchains of the home are read-only: {MOST} other runs have a layer in {above}")

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, text)

    def _take(self, path: str) -> bool:
        """Make and lock ``path``; False when another run has it."""
        import fcntl

        make_private(path)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(path)) or _still_runs(path):
                raise BlockingIOError  # removed and made again meanwhile; or of a run that was killed a moment ago
        except (BlockingIOError, FileNotFoundError):
            os.close(lock)
            return False
        self._lock = lock
        return True

    def _begin_once(self, above: str) -> None:
        for name in os.listdir(above):
            if self._take(f"{above}/{name}"):  # of a run that was killed
                _remove(f"{above}/{name}")
                self._let_go()
        for _ in range(MOST):
            path = f"{above}/{os.urandom(8).hex()}"
            if self._take(path):
                self._once = path
                self.facts = self.facts.replace(layers=path)
                return
            # Another run begins, and took what was not locked yet for what one that was killed has left.
        self.facts = self.facts.replace(layers="")
        what = "toolchains of the home" if self.facts.image is None else "volumes of the image"
        self._note(f"{what} are read-only: no layer could be locked in {above}")

    def prepare(self, ops: Iterable[MountOp]) -> None:
        """Make the directories of the overlays of the plan.

        Raises:
            HostError: one cannot be made.
        """
        for op in ops:
            if isinstance(op, Overlay) and op.layer and mounts.inside(op.layer, self.facts.layers):
                _remove(f"{op.layer}/work")  # the kernel takes none that was used by a volatile overlay
                make_private(f"{op.layer}/work")
                if not os.path.isdir(f"{op.layer}/upper"):  # for root it has the toolchain's owner, of the run before
                    make_private(f"{op.layer}/upper")
                self._like(op.lowers[0], f"{op.layer}/upper")

    @staticmethod
    def _like(tree: str, upper: str) -> None:
        """Give ``upper``, which the overlay's own root looks like, the mode and owner of ``tree``."""
        try:
            wanted, own = os.stat(tree), os.stat(upper)
            if (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid) and os.geteuid() == 0:
                os.chown(upper, wanted.st_uid, wanted.st_gid)
            if stat.S_IMODE(own.st_mode) == 0o700:  # new
                os.chmod(upper, stat.S_IMODE(wanted.st_mode) & 0o777)
        except OSError:
            pass  # the tree is gone, or another's: the kernel says what that means

    def keep_until(self, processes: Iterable[int]) -> None:
        """No run takes the layer before the end of ``processes``, also when this one is killed; without that they may
        still write."""
        if self._lock >= 0:
            from ..changes.store import started_at

            lines = [f"{pid} {started}\n" for pid in processes if (started := started_at(pid))]
            with open(f"{self.facts.layers}/{_LAST}", "w", opener=_opener) as file:
                file.write("".join(lines))

    def end(self) -> None:
        """After the last process of the sandbox: let go of the layer, and remove one that is not kept."""
        if self._once:
            _remove(self._once)
            self._once = ""
        elif self._lock >= 0 and os.path.lexists(f"{self.facts.layers}/{_LAST}"):
            os.unlink(f"{self.facts.layers}/{_LAST}")
        self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _still_runs(path: str) -> bool:
    """Does a process run that the last holder of the layer ``path`` noted?  A number that went to another one does not
    count: that began later."""
    from ..changes.store import started_at

    try:
        with open(f"{path}/{_LAST}", opener=_opener) as file:
            rows = [line.partition(" ") for line in file.read(4096).splitlines()]
    except FileNotFoundError:
        return False
    return any(pid.isdecimal() and started_at(int(pid)) == started for pid, _, started in rows)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> None:
    from ..changes.removal import remove_tree

    remove_tree(path)
