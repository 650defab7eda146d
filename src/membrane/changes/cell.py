"""A reviewed workspace as a cell sees it: which layers it is made of, and what is hidden in it by name.

Theory of operation
-------------------
The view shows an overlay in the place of the workspace (``plan.model.Overlay``): above, what is written now; below it
the frozen layers of the change set; then the *masks*, a layer of ours; the host's workspace at the bottom.  What the
masks have under a name hides what the workspace has there, whatever that is by then: also after an editor's atomic
save.  It is an empty file or directory, as in a live workspace, with which programs go on; under a name that nothing
has yet it is a whiteout.  The command may write a file of its own there; that is in the change set.

Which names are hidden so is known when the workspace was scanned, which goes on while the overlay is already mounted.
Nothing has looked up a name in it by then, and nothing can before the masks are made, so the kernel has nothing cached
of what they cover.  They are looked through at each start, since rules change, and so do files: what the run before
had and this one has as well stays, and a new set begins with those of the last one that is gone.  All empty files are
hard links of one, ``masks.empty`` beside them: nothing writes a lower layer, and ten thousand names cost as many
entries of directories and no inodes.

Not all that is hidden can be so.  Where git tracks a name, the emptiness would be committed, so such names are
covered by what cannot be opened, as in a live workspace (``workspace.emptied``), and so is what a hidden link leads
to.  Patterns for names that do not exist yet bind by name where they name one file at the top of the workspace;
what the host makes elsewhere later is hidden when it appears (``late``).
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice

from ..errors import HostError, PolicyError
from ..escaping import escape
from ..host.facts import file_system, mount_point
from ..host.private import make_private
from ..host.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, one_mount, openat2
from ..plan.model import Reviewed
from . import store
from .removal import EMPTY, remove_tree
from .writers import is_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Literal, TypeAlias

    from ..plan.model import HostFacts, ScanHit
    from ..policy.model import PathRule, Policy

    Kind: TypeAlias = Literal["", "file", "directory"]

NAME_DIGITS = 12  # of the session's id, in the name of a new set
_MOST_LOOKED = 1024  # names at the top of a workspace whose owner is looked at
MOST_FUTURE = 64  # names that get a whiteout though nothing has them
_OPAQUE = "user.overlay.opaque"
_GLOB = frozenset("*?[\\")


# ---------------------------------------------------------------- the layers


def begin(policy: Policy, facts: HostFacts, session: str) -> tuple[store.Held, HostFacts]:
    """Take the change set of a run, or make it; the facts with its layers.

    Raises:
        ChangeSetError: it is another workspace's, in use, or cannot be named so.
        PolicyError: something is mounted in the workspace, or the command could write it by another path.
        HostError: it cannot be made, or not where our state is.
    """
    repository, seat = _repository(facts)
    for tree in (facts.workspace, repository):
        if tree:
            refuse_mounts(tree)
            _refuse_aliases(policy, facts, tree)
    place = store.directory(facts.state)
    make_private(place)
    if file_system(place) == "overlay":  # where whiteouts cannot be made either
        from ..host.overlay import why

        raise why("", 0, facts.workspace, place)
    name = policy.change_set or session[:NAME_DIGITS]
    if repository:
        _refuse_apart(facts.workspace, repository)
    doing = f"a run (session {session})"
    held = store.begin(facts.state, name, facts.workspace, doing, session, repository, seat)
    try:
        if os.path.exists(f"{held.path}/{store.APPLIED}"):
            from .review import fresh  # loads what the start of most runs does not need

            fresh(held)
        if not os.path.isdir(f"{held.path}/{store.MASKS}"):
            held.make_masks()
        if not held.new:
            held.renew_work()
        held.forget_copies()
        return held, facts.replace(reviewed=_layers(held.meta, facts.state))
    except BaseException:
        held.close()
        raise


def shown(policy: Policy, facts: HostFacts) -> HostFacts:
    """The facts with the layers that a run would have, for who asks what it would do; nothing is made."""
    name = policy.change_set or "new"
    try:
        found = store.read(facts.state, name)
    except store.NotThere:
        path = store.directory(facts.state)
        layer = f"{path}/{store.POOL}/new"
        repository, _seat = _repository(facts)
        git = f"{layer}/{store.GIT}" if repository else ""
        new = Reviewed(name, (f"{path}/{name}/{store.MASKS}",), layer, repository, (), git)
        return facts.replace(reviewed=new)
    return facts.replace(reviewed=_layers(found, facts.state))


def _layers(found: store.ChangeSet, state: str) -> Reviewed:
    frozen = store.uppers(state, reversed(found.layers[:-1]))
    masks = f"{store.place(state, found.name)}/{store.MASKS}"
    layer = store.layer_root(state, found.layers[-1])
    if not found.repository:
        return Reviewed(found.name, (*frozen, masks), layer)
    gits = store.git_uppers(state, reversed(found.layers[:-1]))
    return Reviewed(found.name, (*frozen, masks), layer, found.repository, gits, f"{layer}/{store.GIT}")


def _repository(facts: HostFacts) -> tuple[str, str]:
    """(the git directory of the workspace that is elsewhere, the part of it that is the workspace's); empty: none."""
    found = facts.repository
    if not found.own:
        return "", ""
    common = found.shown[0][0]
    return common, found.own[len(common) + 1 :]


def _refuse_apart(workspace: str, repository: str) -> None:
    """Stop where one transaction cannot change both.

    Raises:
        PolicyError: with the reason.
    """
    fds = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in (workspace, repository)]
    try:
        if not one_mount(*fds):
            from .grafted import APART

            fix = (f"review a clone, and fetch from it: git clone {workspace} ELSEWHERE", "use it live: --live")
            raise PolicyError("review the workspace", f"{APART}: {repository}", fix=fix)
    finally:
        for fd in fds:
            os.close(fd)


def refuse_mounts(workspace: str) -> None:
    """Stop when something is mounted in the workspace, or in its repository: overlayfs shows what is below it.

    Raises:
        PolicyError: with the place.
    """
    prefix = workspace.rstrip("/") + "/"
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            place = mount_point(line.split(b" ", 5)[4])
            if place.startswith(prefix):
                raise PolicyError(
                    "review the workspace",
                    f"{place} is mounted in the workspace, and an overlay would show what the mount covers",
                    fix=(f"umount {place}", "use the workspace live: --live"),
                )


def unwritable(workspace: str, uid: int, gid: int) -> str:
    """What to say of files that a plain user's command cannot change in a copy; empty: none was seen.

    overlayfs gives a copy the owner and group of the original, and a user namespace has only the caller's
    (user_namespaces(7)), so writing to others fails with EOVERFLOW, which does not say what is wrong.  The
    workspace and the first names in it are looked at; what the caller cannot write either is no loss.
    """
    with os.scandir(workspace) as names:
        places = [workspace, *(each.path for each in islice(names, _MOST_LOOKED) if not each.is_symlink())]
    found = []
    for path in places:
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            continue  # it has just gone
        if (status.st_uid, status.st_gid) != (uid, gid) and os.access(path, os.W_OK):
            found.append(escape(path))
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"of another owner or group: {', '.join(found[:3])}{more}; a reviewed command cannot change what is not all "
        'yours (EOVERFLOW, "Value too large"). chgrp it to your own group, or run with --live'
    )


def _refuse_aliases(policy: Policy, facts: HostFacts, reviewed: str) -> None:
    """Stop when a tree that the command may write is one that is reviewed, or holds it, under another name.

    By identity: what one directory is called is a question of mounts and links.
    """
    from ..plan.mounts import places

    trees = [places(rule, facts)[0] for rule in policy.mounts if rule.mode == "rw"]
    what = "the workspace" if reviewed == facts.workspace else "the repository of the workspace"
    for tree in trees:
        if tree and (is_above(tree, reviewed) or is_above(reviewed, tree)):
            raise PolicyError(
                "review the workspace",
                f"mounts: {tree} leads to {what}, and what is written there would not be reviewed",
                fix=("mount it read-only", "use the workspace live: --live"),
            )


# ---------------------------------------------------------------- hidden names


def masked(hits: Iterable[ScanHit], empty: frozenset[str], shown: Iterable[str] = ()) -> tuple[ScanHit, ...]:
    """Hidden names that the masks hide: those that a live workspace would show as empty, but for links.

    Args:
        empty: as ``workspace.emptied`` found them.
        shown: those that show the names of their variables.
    """
    apart = frozenset(shown)
    return tuple(hit for hit in hits if hit.path in empty and not hit.link and hit.path not in apart)


def future(rules: Iterable[PathRule], workspace: str) -> list[str]:
    """Names at the top of the workspace that a rule hides and nothing has yet."""
    names: dict[str, None] = {}
    for rule in rules:
        if rule.effect != "hide":
            continue
        text = rule.text.rstrip("/")
        if text.startswith("!"):
            names.pop(text[1:].removeprefix("/"), None)
            continue
        name = text.removeprefix("**/").removeprefix("/")
        if name and "/" not in name and not _GLOB & set(name) and name not in (".", ".."):
            names[name] = None
    found = [name for name in names if not os.path.lexists(f"{workspace}/{name}")]
    return found[:MOST_FUTURE]


def confirm(root: int, workspace: str, names: Iterable[str], uppers: Sequence[str]) -> None:
    """Look through the view for names that are to be hidden, before a command can.

    Args:
        root: of the view (O_PATH).
        names: relative to ``workspace``.
        uppers: layers of the set: under a name that they have is what a command made.

    Raises:
        HostError: one of them is there.
    """
    by_parent: dict[str, list[str]] = {}
    for name in names:
        parent, _, last = name.rpartition("/")
        by_parent.setdefault(parent, []).append(last)
    flags = os.O_PATH | os.O_DIRECTORY
    for parent, inner in by_parent.items():
        try:
            place = openat2(root, f"{workspace}/{parent}", flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            for last in inner:
                name = f"{parent}/{last}" if parent else last
                if not _is_nothing(place, last) and not any(os.path.lexists(f"{upper}/{name}") for upper in uppers):
                    raise HostError("hide names of the workspace", "it is in the view", target=f"{workspace}/{name}")
        finally:
            os.close(place)


def _is_nothing(place: int, name: str) -> bool:
    """Is nothing there, or an empty file or directory?"""
    try:
        details = os.stat(name, dir_fd=place, follow_symlinks=False)
        if not stat.S_ISDIR(details.st_mode):
            return stat.S_ISREG(details.st_mode) and details.st_size == 0
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return True
    try:
        with os.scandir(f"/proc/self/fd/{found}") as entries:
            return next(entries, None) is None
    finally:
        os.close(found)


class Masks:
    """The layer between the changes and the workspace of one set.

    Args:
        path: its directory.
        workspace: the tree that it hides names of.
    """

    def __init__(self, path: str, workspace: str) -> None:
        self._path, self._workspace = path, workspace
        self.names: dict[str, None] = {}  # that are hidden

    def hide(self, wanted: Mapping[str, Kind]) -> None:
        """Hide these names, as ``add`` does, and no others; of what is there all stays that is to be there.

        Raises:
            OSError: it cannot be made; some of the names may not be hidden.
        """
        tree: dict[str, Any] = {}
        for name, kind in wanted.items():
            *way, last = name.split("/")
            node = tree
            for part in way:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    break  # it is hidden with what it is in
            else:
                node[last] = kind
        self._inode = self._link_source(make="file" in wanted.values())
        todo = [("", tree)]
        while todo:
            path, node = todo.pop()
            fd = self._walk(path)
            try:
                if path:
                    os.fchmod(fd, 0o700)
                self._level(fd, node)
                if path:
                    self._resemble(fd, path)
            finally:
                os.close(fd)
            todo += [(f"{path}/{name}", inner) for name, inner in node.items() if isinstance(inner, dict)]
        self.names = dict.fromkeys(wanted)

    def _walk(self, path: str) -> int:
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for part in path.split("/")[1:]:
            try:
                inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        try:
            if path:
                os.chmod(f"/proc/self/fd/{fd}", 0o700)  # until all is in it
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)

    def _level(self, directory: int, node: dict[str, Any]) -> None:
        """Make one directory hold what ``node`` says: by its name a kind, or a dictionary for one on the way."""
        stale, there = [], set()
        with os.scandir(directory) as listing:
            for entry in listing:
                if entry.name in node and self._fits(directory, entry, node[entry.name]):
                    there.add(entry.name)
                else:
                    stale.append((entry.name, entry.is_dir(follow_symlinks=False)))
        for name, is_directory in stale:
            if is_directory:
                remove_tree(f"/proc/self/fd/{directory}/{name}")
            else:
                os.unlink(name, dir_fd=directory)
        for name, kind in node.items():
            if name not in there:
                self._place(directory, name, kind)

    def _fits(self, directory: int, entry: os.DirEntry[str], kind: Any) -> bool:
        if kind == "file":
            return entry.inode() == self._inode and entry.is_file(follow_symlinks=False)
        if kind == "":
            details = entry.stat(follow_symlinks=False)
            return stat.S_ISCHR(details.st_mode) and details.st_rdev == 0
        if not entry.is_dir(follow_symlinks=False):
            return False
        place = f"/proc/self/fd/{directory}/{entry.name}"
        try:
            opaque = os.getxattr(place, _OPAQUE, follow_symlinks=False) == b"y"
            return not isinstance(kind, dict) and opaque and not os.listdir(place)
        except OSError as error:
            return error.errno == errno.ENODATA and isinstance(kind, dict)

    def _place(self, directory: int, name: str, kind: Any) -> None:
        if isinstance(kind, dict):
            os.mkdir(name, 0o700, dir_fd=directory)
        elif not kind:
            # What overlayfs takes for a whiteout: a character device 0/0, which anybody may make (vfs_mknod).
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
        elif kind == "directory":
            self._empty(directory, name, kind)
        else:
            try:
                os.link(f"{self._path}{EMPTY}", name, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                self._empty(directory, name, kind)

    def _link_source(self, *, make: bool) -> int:
        """The inode of the empty file of which all others are links, 0: there is none; ``make`` it, if it is needed."""
        place, like = f"{self._path}{EMPTY}", os.stat(self._workspace)
        try:
            there = os.lstat(place)
            plain = stat.S_ISREG(there.st_mode) and stat.S_IMODE(there.st_mode) == 0o644 and not there.st_size
            if plain and (there.st_uid, there.st_gid) == (like.st_uid, like.st_gid):
                return there.st_ino
        except FileNotFoundError:
            pass
        if not make:
            return 0
        above = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            name = os.path.basename(place)
            try:
                os.unlink(name, dir_fd=above)
            except FileNotFoundError:
                pass
            self._empty(above, name, "file")
            return os.stat(name, dir_fd=above, follow_symlinks=False).st_ino
        finally:
            os.close(above)

    def add(self, name: str, kind: Kind = "") -> None:
        """Hide ``name``, relative to the workspace: by an empty file or directory, or by a whiteout.

        The directories above it are made like those of the workspace: of a directory in several layers the uppermost
        one says who may do what.

        Raises:
            OSError: it cannot be made; the name is not hidden.
        """
        parent, _, last = name.rpartition("/")
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            path = ""
            for part in parent.split("/") if parent else ():
                path = f"{path}/{part}"
                inner = self._enter(directory, part, path)
                os.close(directory)
                directory = inner
            try:
                if kind:
                    self._empty(directory, last, kind)
                else:
                    # What overlayfs takes for a whiteout: a character device 0/0, which anybody may make (vfs_mknod).
                    os.mknod(last, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
            except FileExistsError:
                pass
            self.names[name] = None
        finally:
            os.close(directory)

    def _empty(self, directory: int, name: str, kind: str) -> None:
        if kind == "file":
            fd = os.open(
                name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=directory
            )
        else:
            os.mkdir(name, 0o755, dir_fd=directory)
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            self._own(fd, os.stat(self._workspace))
            os.fchmod(fd, 0o644 if kind == "file" else 0o755)  # whatever our mask is
            if kind == "directory":
                os.setxattr(fd, _OPAQUE, b"y")  # else what the workspace has in it would be there
        finally:
            os.close(fd)

    @staticmethod
    def _own(fd: int, like: os.stat_result) -> None:
        if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            try:
                os.fchown(fd, like.st_uid, like.st_gid)
            except PermissionError:
                pass  # a directory of another user: what is made in it is the caller's

    def _enter(self, directory: int, name: str, path: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            return os.open(name, flags, dir_fd=directory)
        fd = os.open(name, flags, dir_fd=directory)
        try:
            self._resemble(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _resemble(self, fd: int, path: str) -> None:
        """Give a directory the owner and mode of that of the workspace."""
        try:
            like = os.stat(f"{self._workspace}{path}", follow_symlinks=False)
        except FileNotFoundError:
            return  # it went away since the scan, with all in it
        self._own(fd, like)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
