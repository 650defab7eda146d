"""Changes chosen, judged and put in place; and what is said of those that are not.

Theory of operation
-------------------
``listed`` reads the changes of a frozen copy and says of each whether it is red, whether it can never be put in place,
and whether the host changed the same name meanwhile.  ``apply`` chooses among them, copies what is chosen into the
stage of a transaction, judges *those* bytes, and only then writes the journal (``transaction``).  A file whose bytes
turn out red on this second look is treated as any other that is red.  A file of which only some hunks are chosen is
made first (``parts``), and is judged and goes on as any other.

What depends on each other is chosen together: nothing is put into a directory that is refused, a directory goes only
when all that is listed below it goes, and a name that is asked for brings the new directories that it needs.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager

from ..errors import Conflict, HostError, Poisoned, PolicyError
from ..escaping import escape
from ..value import Value
from ..workspace import origins
from .base import LARGEST_COPY, Base, Row
from .gitdata import Arrived, Repositories, index_pack, lock_of, pack_name, rank
from .grafted import GIT, place_of
from .model import SET_ID, Change, covers, is_asked
from .ops import Op, mark, may_be_directory
from .parts import Part, Whole, made, texts
from .red import Judge
from .transaction import Stage, nothing
from .tree import CAPABILITY, Copy, attributes, digest, in_order, look, open_below, paired, pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from .hunks import Hunk

    Accepted: TypeAlias = bool | Mapping[str, Collection[str]]

_OWNER = 0o300  # write and search: what it takes to change the names of a directory


class Report(Value):
    """What an apply did, or would do.

    ``applied``: put in place; ``refused``: (change, why); ``conflicts``: those of the chosen that the host changed
    meanwhile, each with its ``conflict``; ``arrived``: commits under a name of their own; ``partly``: names of which
    only some hunks were chosen.
    """

    applied: tuple[Change, ...]
    refused: tuple[tuple[Change, str], ...] = ()
    conflicts: tuple[Change, ...] = ()
    arrived: tuple[Arrived, ...] = ()
    partly: tuple[str, ...] = ()


def listed(copy: Copy, base: Base, root: str, gits: Repositories) -> list[Change]:
    """All changes, sorted by path, with what is said of them; the base of those that are new to it is kept.

    Raises:
        OSError, HostError: the layers cannot be read, or hold more than is looked at.
    """
    raw = copy.changes()
    base.keep(copy, raw)
    judge = Judge(copy, root)
    in_git = [judge.one(change) for change in raw if gits.repository(change.path)]
    rows = len(base.rows)
    # An object that came once, and that the host's git pruned since, comes again: a ref may lead to it by now.
    in_git = gits.rewritten(
        change for change in in_git if gits.is_object(change.path) or not base.is_same(copy, change)
    )
    if len(base.rows) > rows:
        base.save()
    found = [
        gits.made_inside(change)
        for change in raw
        if not gits.repository(change.path) and not base.is_same(copy, change)
    ]
    judged = judge.all(paired(copy, found))
    result = []
    for change in judged:
        why = base.conflict(copy, change)
        result.append(change.replace(conflict=why) if why else change)
    return in_order([*result, *in_git])


def choose(
    changes: Sequence[Change], only: Iterable[str] = (), *, red: Accepted = False, exact: bool = False
) -> tuple[list[Change], list[tuple[Change, str]]]:
    """(those to put in place, those refused with the reason).

    Args:
        only: names below which is chosen, relative to the workspace; empty: everything.
        red: red ones as well; or, by path, the reasons that were accepted: with another one it is refused.
        exact: these names and not what is below them; empty is then nothing.
    """
    only = tuple(only)
    names = frozenset(only)
    chosen: dict[str, Change] = {}
    for change in changes:
        if change.path in names or (not exact and is_asked(change, only)):
            chosen[change.path] = change
    by_path = {change.path: change for change in changes}
    for path in list(chosen) if only else ():
        for parent in above(path):
            needed = by_path.get(parent)
            is_made = needed is not None and needed.kind in ("added", "type")  # another mode is no need
            if needed is not None and is_made and needed.after is not None and needed.after.what == "directory":
                chosen[parent] = needed
    refused: dict[str, str] = {}
    for path, change in chosen.items():
        if change.never:
            refused[path] = change.never[0]
        else:
            against = _unaccepted(change, red)
            if against:
                refused[path] = against[0]
    for path in chosen if refused else ():
        if path not in refused and any(
            parent in refused and by_path[parent].kind in ("added", "type") for parent in above(path)
        ):
            refused[path] = "the directory that holds it is not put in place"
    # A directory goes when all that is listed below it goes.
    staying: set[str] = set()
    for change in changes:
        if (change.source or change.after is None) and (change.path not in chosen or change.path in refused):
            staying.update(above(change.source or change.path))
    for path in chosen if staying else ():
        change = by_path[path]
        goes = change.after is None or (change.kind == "type" and change.before is not None)
        if path not in refused and goes and path in staying:
            refused[path] = "something in it stays"
    return (
        in_order([change for path, change in chosen.items() if path not in refused]),
        [(by_path[path], refused[path]) for path in sorted(refused, key=os.fsencode)],
    )


def _unaccepted(change: Change, red: Accepted) -> list[str]:
    """What is said against it that was not accepted."""
    if red is True:
        return []
    accepted = red.get(change.path, ()) if red else ()
    return [why for why in change.red if why not in accepted]


def above(path: str) -> list[str]:
    """The names on the way to ``path``, the innermost first."""
    out = []
    at = path.rfind("/")
    while at > 0:
        out.append(path[:at])
        at = path.rfind("/", 0, at)
    return out


class Engine:
    """Puts changes of one frozen copy in place.

    Args:
        place: the directory of the change set; the caller holds its lock.
        copy: the copy.
        root: the workspace, resolved.
        begun: when the change set was made, ns since the epoch.
        step: called before each step of a transaction with its name.
        locked: does a rule keep this name as it is?
    """

    def __init__(
        self,
        place: str,
        copy: Copy,
        root: str,
        begun: int,
        step: Callable[[str], None] = nothing,
        locked: Callable[[str], bool] | None = None,
    ) -> None:
        self._copy, self._root = copy, root
        self.base = Base(place, begun)
        self._locked = locked
        self._name = place.rpartition("/")[2]
        self._state = place.rsplit("/", 2)[0]
        self._gits = Repositories(copy, self.base, self._name)
        self._merged: dict[str, tuple[bytes, bytes]] = {}  # what is put in place and what the command made, by path
        self._parts: dict[str, Part] = {}  # of which not all is put in place, by path
        self._digests: dict[str, bytes] = {}  # of the files in the stage, by path
        self._stage = Stage(place, copy.base_fd, root, step)

    def asked(self, found: Iterable[Change], only: Collection[str]) -> list[Change]:
        """Those of ``found`` at or below the names that are asked for, relative to the workspace; without any, all.

        Raises:
            PolicyError: neither the set nor the workspace has one of the names.
        """
        changes = [change for change in found if is_asked(change, only)]
        for name in only:
            if any(covers(name, path) for change in changes for path in change.paths):
                continue
            if not os.path.lexists(os.path.join(self._root, name)):
                place = escape(self._name)
                cause = f"neither the change set {place} nor its workspace has {escape(name)}"
                fix = (
                    f"membrane diff {place} --name-status   # lists its changes",
                    "membrane changes   # lists change sets",
                )
                raise PolicyError("choose the changes", cause, fix=fix)
        return changes

    def changes(self) -> list[Change]:
        """As ``listed``.

        Raises:
            Unfinished: an apply has to be brought to an end first.
        """
        self._stage.check()
        self._gits = Repositories(self._copy, self.base, self._name)
        found = listed(self._copy, self.base, self._root, self._gits)
        if self._locked is None:
            return found
        why = "a rule of the policy keeps it as it is"
        locked = self._locked
        return [
            change.replace(never=(*change.never, why)) if any(locked(path) for path in change.paths) else change
            for change in found
        ]

    def texts(self, change: Change) -> tuple[bytes, bytes]:
        """The workspace's text and the command's, of a change that can be put in place in part.

        Raises:
            Whole: it cannot.
            Conflict, OSError: as ``parts.texts``.
        """
        self._check_cut(change)
        base, changed, _attributes = texts(self._copy, change)
        return base, changed

    def _check_cut(self, change: Change) -> None:
        if self._gits.repository(change.path):
            cause = f"{ascii(change.path)[1:-1]} comes only as a whole: it is git's"
            raise Whole("cut the change into hunks", cause)

    def parted(self, changes: Iterable[Change], hunks: Mapping[str, Iterable[Hunk]]) -> list[Change]:
        """``changes``, where of those in ``hunks`` only these are left, judged by what is then put in place.

        One of which no hunk is left is not among them.

        Raises:
            Whole: one has no hunks.
            Conflict: a name or a hunk is not, or not any more, among the changes.
            HostError: one cannot be read.
        """
        by_path = {change.path: change for change in changes}
        for path in hunks:
            if path not in by_path:
                raise _conflicts([_lost(path)], self._name)
            self._check_cut(by_path[path])
        try:
            self._parts = made(self._copy, self._root, [(by_path[path], each) for path, each in hunks.items()])
        except OSError as error:
            cause = os.strerror(error.errno or 0)
            raise HostError("read the hunks", cause, target=ascii(error.filename or "")[1:-1]) from error
        parts = {path: self._parts[path].change if path in self._parts else None for path in hunks}
        return [each for change in by_path.values() if (each := parts.get(change.path, change)) is not None]

    def apply(
        self,
        only: Iterable[str] = (),
        *,
        red: Accepted = False,
        rest: bool = False,
        merge: bool = False,
        dry_run: bool = False,
        found: list[Change] | None = None,
        hunks: Mapping[str, Iterable[Hunk]] | None = None,
        exact: bool = False,
        strict: bool = False,
    ) -> Report:
        """Put changes in place, all that are chosen or none.

        Args:
            only, red, exact: as of ``choose``.
            hunks: of these files only these; the rest of them stays in the set.
            rest: where the host changed some names meanwhile, the others all the same.
            merge: a file that both sides changed is merged in three ways, where that is possible without conflicts.
            dry_run: only say what would be done.
            found: what ``changes`` has given under the same lock.
            strict: when what is made ready turns out to be red, as a merge may, nothing is put in place.

        Raises:
            Conflict: the host changed a chosen name meanwhile, and ``rest`` is false; nothing was put in place.
            Whole, Conflict: as ``parted``.
            Poisoned: with ``strict``.
            HostError: nothing was put in place, because of an error.
            Unfinished: and what was done could not be undone; or an apply before this one has to be ended first.
        """
        changes = self.changes() if found is None else found
        only = tuple(only)
        self._merged.clear()
        self._parts.clear()
        if hunks:
            changes = self.parted(changes, hunks)
        if merge:
            changes = [
                self._merge(change) if change.conflict and change.path not in self._parts else change
                for change in changes
            ]
        chosen, refused = choose(changes, only, red=red, exact=exact)
        conflicts = [change for change in chosen if change.conflict]
        if conflicts and not rest and not dry_run:
            raise _conflicts(conflicts, self._name, merged=merge)

        def without(marked: Iterable[Change]) -> tuple[list[Change], list[tuple[Change, str]]]:
            """As ``choose``, where conflicts are refused."""
            whys = {change.path: change.conflict for change in conflicts}
            left = [
                change.replace(never=(*change.never, whys[change.path])) if change.path in whys else change
                for change in marked
            ]
            return choose(left, only, red=red, exact=exact)

        if conflicts:
            chosen, refused = without(changes)
        if dry_run:
            return self._report(chosen, refused, conflicts)
        if not chosen:
            return self._report([], refused, conflicts)
        try:
            self._stage.begin()
        except OSError as failure:
            raise _not_ready(failure) from failure
        commands = ExitStack()
        try:
            slots = self._staged(chosen)
            self._stage.is_made()
            worse = self._judged(chosen, slots)
            if worse:
                bad = [(path, each.red[0]) for path, each in worse.items() if each.red]
                if bad and strict:
                    error = Poisoned("apply the changes", bad[0][1], target=ascii(bad[0][0])[1:-1])
                    error.paths = tuple(bad)
                    raise error
                chosen, refused = without(worse.get(change.path, change) for change in changes)
            lacking = self._gits.lacking(chosen, slots, self._stage.path)
            if lacking:
                known = {change.path: change for change in changes} | worse
                chosen, refused = without(
                    change.replace(never=(*change.never, lacking[path])) if path in lacking else change
                    for path, change in known.items()
                )
            kept = {change.path for change in chosen}
            for path, slot in reversed(slots.items()):  # what is in a directory before it
                if path not in kept:
                    self._stage.refuse(slot)
            ops = self._ops(chosen, {path: slot for path, slot in slots.items() if path in kept})
            rows = self._rows(chosen, slots)
            occupied = self._gits.occupied((op.do, op.path) for op in ops)
            if occupied:  # since ``changes``: a person may have taken their time for an answer
                raise _conflicts(
                    [Change(path, "changed", None, None, conflict=why) for path, why in occupied], self._name
                )
            commands.enter_context(self._as_commands())
            self._stage.commit(ops, self.base.stored(rows), self.base.to_store(rows))
        except OSError as error:
            commands.close()
            self._stage.drop()
            raise _not_ready(error) from error
        except BaseException:
            commands.close()
            self._stage.drop()
            raise
        with commands:
            self._stage.carry_out(ops, lambda: self.base.put(rows))
        return self._report(chosen, refused, conflicts)

    def _report(
        self, chosen: Sequence[Change], refused: Sequence[tuple[Change, str]], conflicts: Sequence[Change]
    ) -> Report:
        paths = {change.path for change in chosen}
        arrived = [each for path, each in self._gits.arrived.items() if path in paths]
        partly = tuple(change.path for change in chosen if change.path in self._parts)
        return Report(tuple(chosen), tuple(refused), tuple(conflicts), tuple(arrived), partly)

    @contextmanager
    def _as_commands(self) -> Iterator[None]:
        """Commits that come meanwhile are a command's to later runs, also when we are killed."""
        root, _, name = place_of(self._copy.base_fd, GIT).rpartition("/")  # of a linked work tree it is elsewhere
        # The workspace in any case: what is written down of it counts for the repositories that come below it.
        roots = dict.fromkeys([place_of(self._copy.base_fd, ""), *([root] if name == GIT else [])])
        doing = f"apply {self._name}"
        for each in roots:
            origins.begin(self._state, each, doing)
        try:
            yield
        finally:
            for each in roots:
                try:
                    origins.note(self._state, each, doing)
                except (HostError, OSError):
                    pass  # they count as a command's at the next beginning then

    def resume(self, *, forward: bool, rest: bool = False) -> list[tuple[str, str]]:
        """Bring an apply that ended in its middle to its end, or back to its beginning, but for objects of git.

        Args:
            rest: end it, though some of it cannot be done; what was replaced there stays as the undo copy.

        Returns: (path, why) of what could not be done; without ``rest`` it can be asked again.

        Raises:
            HostError: there is none.
        """
        ops = self._stage.open()
        try:
            new = {op.path for op in ops if op.do == "new"}
            # What was put in place may be in use since, as for an ``undo``.
            taken = [op for op in ops if not self._gits.keeps(op.path, new)]
            with self._as_commands():
                left = self._stage.forward(ops) if forward else self._stage.back(taken)
            # What is not as it is to be, nobody knows for the host's or the command's.
            self.base.restore(self._stage.rows_after if forward else self._stage.rows, {path for path, _ in left})
            if (left and rest) or (forward and not left):
                self._stage.finish(ops)
            elif not left:
                self._stage.drop()
        finally:
            self._stage.close()
        return left

    def undo(self, *, rest: bool = False) -> list[tuple[str, str]]:
        """Bring the workspace back to what it was before the last apply, but for objects of git.

        These stay, as git itself leaves what no ref leads to: by now one of the host's may lead to them.

        Args:
            rest: where the host changed some of it since, all else.

        Returns: (path, why) of what was not undone.

        Raises:
            Conflict: the host changed some of it since, and ``rest`` is false; nothing was undone.
            HostError: there is nothing to undo.
        """
        ops = self._stage.reopen_undo()
        new = {op.path for op in ops if op.do == "new"}
        try:
            taken = [op for op in ops if not self._gits.keeps(op.path, new)]
            occupied = self._gits.occupied((op.do, op.path) for op in taken)
            left = [*self._stage.hindrances(taken), *self._filled(taken, new), *occupied]
            if left and not rest:
                self._stage.finish(ops)
                path, why = left[0]
                fix = (f"membrane undo --rest {self._name}   # all others",)
                error = Conflict("undo the apply", why, target=ascii(path)[1:-1], fix=fix)
                error.paths = tuple(left)
                raise error
            # A repository that came with the apply goes as a whole, or not at all.
            worked = {place for path, _why in left if f"{(place := self._gits.repository(f'{path}/'))}/HEAD" in new}
            others = [op for op in taken if self._gits.repository(f"{op.path}/") not in worked]
            stay = [(place, "the repository was worked in since") for place in sorted(worked)]
            stay += occupied
            others = [op for op in others if op.path not in dict(occupied)]
            with self._as_commands():  # a ref may go back to a commit of a command's that it had left
                left = [*self._stage.back(others), *stay]
            lost = {op.path for op in taken} - {op.path for op in others}
            self.base.restore(self._stage.rows, {path for path, _ in left} | lost)
            if left:
                self._stage.finish(ops)
            else:
                self._stage.drop()
        finally:
            self._stage.close()
        return left

    def _filled(self, ops: Iterable[Op], new: Collection[str]) -> list[tuple[str, str]]:
        """Directories of an apply in which the host made something since, with that as the reason."""
        out = []
        for op in ops:
            if op.do != "new" or not may_be_directory(op):
                continue
            try:
                fd = open_below(self._copy.base_fd, op.path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue  # no directory, or not to be read: then nothing in it is undone either
            try:
                names = os.listdir(fd)
            finally:
                os.close(fd)
            if any(f"{op.path}/{name}" not in new for name in names):
                out.append((op.path, "something was made in it since"))
        return out

    # ------------------------------------------------------------ the parts of an apply

    def _merge(self, change: Change) -> Change:
        """A conflict that is none any more, or as it was."""
        from .merge import LARGEST, merged

        place = self.base.copy_of(change.path)
        before, after = change.before, change.after
        if not place or before is None or after is None or {before.what, after.what} != {"file"} or change.source:
            return change
        if max(before.size, after.size) > LARGEST:
            return change
        try:
            with open(place, "rb") as file:
                base = file.read()
            sides = []
            for layer in (-1, change.layer):
                fd = self._copy.open(layer, change.path)
                try:
                    sides.append(b"".join(pieces(fd)))
                finally:
                    os.close(fd)
        except OSError:
            return change
        data = merged(base, *sides, root=self._root)
        if data is None:
            return change.replace(conflict=f"{change.conflict}; it does not merge by itself")
        self._merged[change.path] = data, sides[1]
        return change.replace(conflict="", after=after.replace(size=len(data)), content=True, kind="changed")

    def _staged(self, chosen: Sequence[Change]) -> dict[str, str]:
        """Make everything ready that is to be in the workspace; its slot by its path."""
        slots: dict[str, str] = {}
        trees: dict[str, str] = {}  # the slots of new directories, into which goes what is new in them
        self._digests.clear()
        for change in chosen:
            after = change.after
            if after is None or (change.kind == "mode" and not change.attributes):
                continue
            if after.what == "directory" and change.kind not in ("added", "type"):
                continue
            parent, _, name = change.path.rpartition("/")
            slot = slots[change.path] = f"{trees[parent]}/{name}" if parent in trees else self._stage.slot()
            if after.what == "directory":
                # In a repository that is there it has to come in git's order (``gitdata.rank``).
                whole = change.kind == "added" and change.path not in self._gits.owner
                self._stage.directory(slot, after, whole=whole)
                if whole:
                    trees[change.path] = slot
            elif after.what == "link":
                self._stage.link(slot, after)
            elif change.path in self._parts:
                part = self._parts[change.path]
                self._stage.text(slot, part.data, after, part.attributes)
            elif change.path in self._merged:
                self._stage.data(slot, self._merged[change.path][0], after.mode)
            elif change.path in self._gits.data:
                self._stage.data(slot, self._gits.data[change.path], after.mode)
            else:
                fd = self._copy.open(change.layer, change.path)
                try:
                    kept: dict[str, bytes] = {}
                    if change.attributes or change.kind not in ("added", "renamed"):  # of a new one these are all
                        kept = {name: value for name, value in attributes(fd).items() if name != CAPABILITY}
                    self._digests[change.path] = self._stage.file(slot, fd, after, kept)
                finally:
                    os.close(fd)
        return slots

    def _judged(self, chosen: Sequence[Change], slots: dict[str, str]) -> dict[str, Change]:
        """Judge the bytes in the stage; the changes that are red by them and were not before."""
        judge = Judge(self._copy, self._root, lambda change: self._stage.read(slots[change.path]))
        found = {}
        packs: dict[str, dict[str, Change]] = {}
        for change in chosen:
            if change.path not in slots:
                continue
            slot = slots[change.path]
            why = self._gits.objection(change, lambda slot=slot: self._stage.read(slot))  # type: ignore[misc]
            judged = change.replace(never=(*change.never, why)) if why else change
            place = self._gits.owner.get(change.path, "")
            if place and pack_name(change.path[len(place) + 1 :]):
                stem, _, ending = change.path.rpartition(".")
                packs.setdefault(stem, {})[ending] = change
            elif change.path not in self._gits.data:
                judged = judge.again(judged)
            if judged.never != change.never or set(judged.red) - set(change.red):
                found[change.path] = judged
        for pair in packs.values():
            why = self._pack(pair, slots)
            if why:
                found |= {change.path: change.replace(never=(*change.never, why)) for change in pair.values()}
        return found

    def _pack(self, pair: dict[str, Change], slots: dict[str, str]) -> str:
        """Give a pack an index of our own making; why it cannot be put in place, or empty."""
        if set(pair) != {"pack", "idx"}:
            return "a pack comes with its index only"
        width = 32 if len(pair["pack"].path.rpartition("-")[2]) == 69 else 20
        idx = pair["idx"]
        why = index_pack(self._stage.path, slots[pair["pack"].path], slots[idx.path], width, root=self._root)
        if not why and idx.after is not None:
            self._stage.replaced(slots[idx.path], idx.after)
            self._digests.pop(idx.path, None)
        return why

    def _ops(self, chosen: Sequence[Change], slots: dict[str, str]) -> list[Op]:
        """In this order: what goes (the deepest first), what comes (the highest first), modes of directories."""
        removes, comes, modes = [], [], []
        by_path = {change.path: change for change in chosen}
        trees = frozenset(slot.rpartition("/")[0] for slot in slots.values())  # slots of directories that hold others
        for change in chosen:
            path, before, after = change.path, change.before, change.after
            if change.source:
                assert before is not None
                removes.append(Op("remove", change.source, self._stage.slot(), old=mark(before)))
                before = None
            slot = slots.get(path, "")
            if after is None:
                assert before is not None
                removes.append(Op("remove", path, self._stage.slot(), old=mark(before), lock=self._lock(path)))
            elif slot:
                new = self._stage.mark(slot)
                old = mark(before) if before is not None else ()
                listed = (
                    self._gits.values[path].content if path.endswith("/index") and path in self._gits.values else ""
                )
                tree, inner, _name = slot.partition("/")
                if inner:
                    comes.append(Op("new", path, self._stage.slot(), (), new, 0, 0, "", "", tree))
                else:
                    comes.append(Op("put" if old else "new", path, slot, old, new, 0, 0, self._lock(path), listed))
                if after.what == "directory" and self._stage.is_open(slot):
                    modes.append(Op("mode", path, "", new=new, was=0o700, mode=after.mode & 0o3777))
            elif before is not None and before.mode != after.mode:
                mode = after.mode & 0o3777 if after.what == "directory" else after.mode & ~(SET_ID & ~before.mode)
                modes.append(Op("mode", path, "", new=mark(before), was=before.mode, mode=mode))
        # Of one rank by path, as ``chosen``: so a tree is before what comes with it.
        comes.sort(key=lambda op: 3 if op.tree or op.slot in trees else self._rank(by_path[op.path]))
        removes.sort(key=lambda op: os.fsencode(op.path), reverse=True)
        modes.sort(key=lambda op: os.fsencode(op.path), reverse=True)
        opened, closed = self._opened([*removes, *comes], {op.path: op for op in modes})
        modes = [op for op in modes if op.path not in {each.path for each in opened}]
        return [*opened, *removes, *comes, *sorted((*modes, *closed), key=lambda op: os.fsencode(op.path))[::-1]]

    def _lock(self, path: str) -> str:
        place = self._gits.owner.get(path, "")
        return lock_of(place, path) if place else ""

    def _rank(self, change: Change) -> int:
        """Directories, objects, the work tree, refs, and at last what says where HEAD is."""
        place = self._gits.owner.get(change.path, "")
        if place:
            return rank(place, change)
        return 0 if change.after is not None and change.after.what == "directory" else 3

    def _opened(self, ops: list[Op], modes: dict[str, Op]) -> tuple[list[Op], list[Op]]:
        """Directories in which the owner may change nothing: opened at first, and given their mode at the end."""
        if os.geteuid() == 0:
            return [], []
        opened, closed = [], []
        made = {op.path for op in ops if op.do in ("new", "put")}
        for path in sorted({op.path.rpartition("/")[0] for op in ops}, key=os.fsencode):
            if not path or path in made:
                continue
            there = look(self._copy.base_fd, path)
            if there is None or there.uid != os.geteuid() or there.mode & _OWNER == _OWNER:
                continue
            last = modes[path].mode if path in modes else there.mode
            opened.append(Op("mode", path, "", new=mark(there), was=there.mode, mode=there.mode | 0o700))
            closed.append(Op("mode", path, "", new=mark(there), was=there.mode | 0o700, mode=last))
        return opened, closed

    def _rows(self, chosen: Sequence[Change], slots: dict[str, str]) -> dict[str, Row]:
        """What the workspace holds afterwards, for the conflicts of a later apply."""
        rows = self._gits.rows_of(change.path for change in chosen)
        for change in chosen:
            if change.source:
                rows[change.source] = Row("", 0, "")
            if change.after is None:
                rows[change.path] = Row("", 0, "")
            elif change.after.what == "link":
                rows[change.path] = Row("link", 0, change.after.target)
            elif change.after.what == "file":
                if change.path in self._merged:
                    # The command's own version: what the host added to it is no change of the command's.
                    content = self.base.copied(self._merged[change.path][1])
                    rows[change.path] = Row("file", change.after.mode & 0o1777, content)
                    continue
                part = self._parts.get(change.path)
                if part is not None and len(part.data) <= LARGEST_COPY:
                    # A base of later merges: the rest of the file is still to come.
                    rows[change.path] = Row("file", change.after.mode & 0o1777, self.base.copied(part.data))
                    continue
                known = self._digests.get(change.path)
                if known is not None:
                    rows[change.path] = Row("file", change.after.mode & 0o1777, known.hex(), ())
                    continue
                slot = slots.get(change.path)
                fd = self._stage.read(slot) if slot else open_below(self._copy.base_fd, change.path, os.O_RDONLY)
                try:
                    rows[change.path] = Row("file", change.after.mode & 0o1777, digest(fd).hex())
                finally:
                    os.close(fd)
            else:
                rows[change.path] = Row("directory", 0, "")
        return rows


def _not_ready(error: OSError) -> HostError:
    cause = f"{os.strerror(error.errno or 0)}; everything is as before"
    return HostError("make the changes ready", cause, target=ascii(error.filename or "")[1:-1])


def _lost(path: str) -> Change:
    return Change(path, "changed", None, None, conflict="there is no such change, or not any more")


def _conflicts(changes: Sequence[Change], name: str, *, merged: bool = False) -> Conflict:
    """Of the set ``name``; ``merged``: where they could be merged, they were."""
    first = changes[0]
    more = f"; and {len(changes) - 1} more" if len(changes) > 1 else ""
    fix = [f"membrane apply --merge {name}   # in three ways, by git", f"membrane apply --rest {name}   # all others"]
    if merged:
        fix = [f"membrane apply --merge --rest {name}   # all others"]
    if more:
        fix.append(f"membrane apply --dry-run {name}   # says which")
    error = Conflict("apply the changes", f"{first.conflict}{more}", target=ascii(first.path)[1:-1], fix=tuple(fix))
    error.paths = tuple((change.path, change.conflict) for change in changes)
    return error
