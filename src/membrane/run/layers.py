"""Where the sandbox's changes of the caller's toolchains and of system trees go, and what engines of containers keep;
who has that place now.

Theory of operation
-------------------
Toolchains of the home (``plan.toolchains``) are the caller's to read and the sandbox's to write: each is an
overlay, and what is written is in a *layer*, ``STATE/layers/KEY/NUMBER/NAME``, as long as the home that it belongs
to.  Nothing of it reaches the caller's directories, and no command reaches a layer but through its overlay.

The overlays are volatile: without that the end of each run would wait until everything on that file system is written
(fs/overlayfs/super.c, ovl_sync_fs).

Two overlays may not have one upper directory at a time: the kernel lets them, and what becomes of the files is not
defined (Documentation/filesystems/overlayfs.rst, "Sharing and copying layers").  So a run locks the directory NUMBER
(flock(2)) and notes which processes end last, as it may be killed before them; another one at the same time takes the
next number.  A home that is not kept has a layer for one run, which is removed at the end, or by the next such run if
this one is killed.

Changes of system trees (``plan.system``) go to ``STATE/system/KEY/NUMBER/NAME`` by the same rules: kept for the
workspace, or of one run.  Nothing of ours ever runs, loads or follows what is in them: pid 1 has loaded everything
before it builds the view, and what is written here for the next run is beside them, in ``NUMBER/own``.

Engines of containers (``plan.containers``) have ``STATE/containers/KEY/NUMBER`` by the same rules, kept for the
workspace.  Two of them with one storage do not see each other, as each sandbox has a /run and processes of its own: a
second dockerd waits for locks of the first and gives up, a second podman takes all that runs for ended.
"""

from __future__ import annotations

import os
import stat

from ..errors import HostError
from ..host.facts import NO_ID_MAPS, mount_points
from ..host.private import make_private
from ..plan import mounts, toolchains
from ..plan.model import Overlay, SystemLayer

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
    """``facts`` with the layers that a run has when there is no other; nothing is made or locked."""
    if policy.containers == "nested":
        facts = facts.replace(engines=f"{_above_engines(facts)}/0")
    wanted, layered = _wants(policy, facts), policy.system != "read-only"
    if not wanted and not layered:
        return facts
    below, state_kind = f"{facts.home}/", ""
    mounted, mounted_system = [], []
    for place, kind in mount_points():
        if place.startswith(below):
            mounted.append(place)
        if (
            layered
            and not policy.image
            and any(mounts.inside(place, tree) for tree in (*mounts.SYSTEM_TREES, *mounts.VAR_TREES))
        ):
            mounted_system.append(place)
        if mounts.inside(facts.state, place):
            state_kind = kind  # of those at one place the later covers
    if state_kind in NO_ID_MAPS or state_kind.startswith("fuse"):
        return facts  # no upper directory there
    if layered:
        inner = tuple(place for place in dict.fromkeys(mounted_system) if place not in mounts.SYSTEM_TREES)
        facts = facts.replace(system=SystemLayer(f"{_above_system(policy, facts)}/0", inner))
    if not wanted:
        return facts
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
        return bool(facts.image.volumes) and policy.system == "read-only"  # else they are below that layer
    return policy.view == "project" and bool(toolchains.present(facts))


def _above(policy: Policy, facts: HostFacts) -> str:
    store = mounts.home_store(policy, facts) if facts.image is None else ""  # volumes are of one run
    return f"{facts.state}/layers/{os.path.basename(store) or _ONCE}"


def _above_system(policy: Policy, facts: HostFacts) -> str:
    if policy.system != "persistent":
        return f"{facts.state}/system/{_ONCE}"
    image = f"-{facts.image.digest.rpartition(':')[2][:16]}" if facts.image is not None else ""
    return f"{facts.state}/system/{mounts.workspace_key(facts.workspace)}{image}"


def _above_engines(facts: HostFacts) -> str:
    return f"{facts.state}/containers/{mounts.workspace_key(facts.workspace)}"


class Layers:
    """The layers of one run.

    Attributes:
        facts: with them, or without where none can be had.
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
        self._places: list[_Place] = []
        try:
            if facts.layers:
                self._take_toolchains(_above(policy, facts))
            elif policy.view == "project" and toolchains.present(facts):  # of volumes of an image the receipt says it
                cause = f"toolchains of the home are read-only: {facts.state} is on a file system that takes no layers"
                self._note(f"{cause}; set MEMBRANE_HOME to a directory on a disk")
            if facts.system is not None:
                self._take_system(facts.system, _above_system(policy, facts))
            if facts.engines:
                self._take_engines(_above_engines(facts))
        except BaseException:
            self.end()
            raise

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, text)

    def _take_toolchains(self, above: str) -> None:
        place = _Place(above)
        if not place.path:
            what = "no layer could be locked" if place.once else f"{MOST} other runs have a layer"
            read_only = "toolchains of the home" if self.facts.image is None else "volumes of the image"
            self._note(f"{read_only} are read-only: {what} in {above}")
        elif place.number:
            self._note(
                f"another run has the layer over your toolchains in {above}/0: what commands of this one "
                f"install there is kept apart, in {place.path}"
            )
        self.facts = self.facts.replace(layers=place.path)
        self._places.append(place)

    def _take_system(self, system: SystemLayer, above: str) -> None:
        place = _Place(above)
        if not place.path:
            raise HostError("make a layer over the system trees", f"{MOST} other runs have one", target=above)
        if place.number:
            self._note(
                f"another run has the layer over the system trees in {above}/0: what commands of this one "
                f"install there is kept apart, in {place.path}"
            )
        self.facts = self.facts.replace(system=system.replace(place=place.path))
        self._places.append(place)

    def _take_engines(self, above: str) -> None:
        place = _Place(above)
        if not place.path:
            raise HostError("keep what containers have", f"{MOST} other runs of this workspace have them", target=above)
        if place.number:
            self._note(
                f"another run has the images and containers of this workspace in {above}/0: those of this one are kept "
                f"apart, in {place.path}"
            )
        self.facts = self.facts.replace(engines=place.path)
        self._places.append(place)

    def prepare(self, ops: Iterable[MountOp]) -> None:
        """Make the directories of the overlays of the plan.

        Raises:
            HostError: one cannot be made.
        """
        for op in ops:
            if isinstance(op, Overlay) and any(
                each.path and mounts.inside(op.layer, each.path) for each in self._places
            ):
                _remove(f"{op.layer}/work")  # the kernel takes none that was used by a volatile overlay
                make_private(f"{op.layer}/work")
                if not os.path.isdir(f"{op.layer}/upper"):  # for root it has the toolchain's owner, of the run before
                    make_private(f"{op.layer}/upper")
                if op.system:
                    from . import system

                    system.make_own(op)
                self._like(op.lowers[1 if op.system and len(op.lowers) > 1 else 0], f"{op.layer}/upper")

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
        """No run takes the layers before the end of ``processes``, also when this one is killed; without that they may
        still write."""
        last = tuple(processes)
        for place in self._places:
            place.keep_until(last)

    def end(self) -> None:
        """After the last process of the sandbox: let go of the layers, and remove one that is not kept."""
        for place in self._places:
            place.end()
        self._places = []


class _Place:
    """A directory for the layers of one run, locked.

    Attributes:
        path: empty: all are taken.
        number: of a kept one; 0: the first.
        once: it is removed at the end.

    Args:
        above: the directory that has them.

    Raises:
        HostError: our own state cannot be written.
    """

    def __init__(self, above: str) -> None:
        self.path = ""
        self.number = 0
        self.once = os.path.basename(above) == _ONCE
        self._lock = -1
        make_private(above)
        if self.once:
            self._begin_once(above)
            return
        for number in range(MOST):
            if self._take(f"{above}/{number}"):
                self.path, self.number = f"{above}/{number}", number
                return

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
                self.path = path
                return
            # Another run begins, and took what was not locked yet for what one that was killed has left.

    def keep_until(self, processes: Iterable[int]) -> None:
        if self._lock >= 0:
            from ..changes.store import started_at

            lines = [f"{pid} {started}\n" for pid in processes if (started := started_at(pid))]
            with open(f"{self.path}/{_LAST}", "w", opener=_opener) as file:
                file.write("".join(lines))

    def end(self) -> None:
        if self.once and self.path:
            _remove(self.path)
        elif self._lock >= 0 and os.path.lexists(f"{self.path}/{_LAST}"):
            os.unlink(f"{self.path}/{_LAST}")
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
