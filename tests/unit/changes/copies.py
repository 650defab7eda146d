"""A workspace with layers upon it, made by hand or by a real overlayfs; and trees compared as what they hold."""

from __future__ import annotations

import os
import stat
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from membrane.changes.apply import Engine
from membrane.changes.base import MARGIN
from membrane.changes.grafted import Grafted
from membrane.changes.model import Change
from membrane.changes.red import Judge
from membrane.changes.tree import Copy, paired
from membrane.host import syscalls


def _inside(base: str, layers: list[str], script: str, repository: str = "") -> None:
    """In a child: the layers over ``base``, and over a repository elsewhere, in namespaces of its own; ``script``."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for name, row in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path("/proc/self", name).write_text(row)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for tree, part in ((base, ""), (repository, "/git")):
        if tree:
            lower = ":".join([*(f"{layer}{part}/upper" for layer in layers[-2::-1]), tree])
            last = f"{layers[-1]}{part}"
            options = f"lowerdir={lower},upperdir={last}/upper,workdir={last}/work,userxattr,index=off,xino=off"
            syscalls.mount("overlay", tree, "overlay", 0, options)
    os.chdir(base)
    exec(script, {"__name__": "__main__"})


def _in_a_fork(work: Callable[[], object]) -> None:
    """A child of this interpreter, which costs a tenth of another one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            warnings.simplefilter("ignore")  # of the script's open files
            work()
            os._exit(0)
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4096:])
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        problem = said.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, problem


def run_in(where: Path, script: str) -> None:
    """Run Python in a directory."""

    def work() -> None:
        os.chdir(where)
        exec(script, {"__name__": "__main__"})

    _in_a_fork(work)


class Workspace:
    """``base`` with layers; ``layer`` is the newest one's upper directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.base = place / "base"
        self.base.mkdir(parents=True)
        self.layers: list[Path] = []
        self.begun = time.time_ns() + 10**12  # later than all that the test makes; ``begin`` sets it
        self.add_layer()

    def begin(self) -> None:
        """What is in the workspace now is what it holds at the start; what comes later is the host's doing."""
        latest = max(os.lstat(path).st_ctime_ns for top in self.trees for path in (top, *top.rglob("*")))
        self.begun = latest + MARGIN + 1
        while time.time_ns() < self.begun:
            os.sched_yield()
        probe = self.place / "probe"
        while True:  # until a file that is made now is later by the clock of the file system, too
            probe.write_text("x")
            late = probe.stat().st_ctime_ns >= self.begun
            probe.unlink()
            if late:
                return

    @property
    def trees(self) -> list[Path]:
        return [self.base]

    @property
    def layer(self) -> Path:
        return self.layers[-1] / "upper"

    def add_layer(self) -> None:
        layer = self.place / "layers" / f"{len(self.layers) + 1:04}"
        (layer / "upper").mkdir(parents=True)
        (layer / "work").mkdir()
        self.layers.append(layer)

    def delete(self, path: str) -> None:
        """A whiteout, as overlayfs makes it."""
        place = self.layer / path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(place, stat.S_IFCHR, 0)

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> Path:
        place = self.layer / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        place.chmod(mode)
        return place

    def run(self, script: str) -> None:
        """Run Python in the merged view: a mount of overlayfs over the workspace, in a user namespace, the newest layer
        on top.
        """
        _in_a_fork(lambda: _inside(str(self.base), [str(layer) for layer in self.layers], script))

    @contextmanager
    def copy(self, hidden: Callable[[str], bool] | None = None) -> Iterator[Copy]:
        opened = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in self._places()]
        try:
            trees = self._trees(opened)
            copy = Copy(trees[0], trees[1:], hidden)
            try:
                yield copy
            finally:
                copy.close()
        finally:
            for fd in opened:
                os.close(fd)

    def _places(self) -> tuple[Path, ...]:
        """What a copy is read from: the workspace, then its layers."""
        return (self.base, *self.uppers)

    def _trees(self, opened: list[int]) -> list[int]:
        """The same, of these descriptors of ``_places``."""
        return opened

    @property
    def uppers(self) -> list[Path]:
        return [layer / "upper" for layer in self.layers]

    def changes(self, hidden: Callable[[str], bool] | None = None, *, pair: bool = True) -> list[Change]:
        with self.copy(hidden) as copy:
            found = copy.changes()
            return Judge(copy, str(self.base)).all(paired(copy, found) if pair else found)


class Elsewhere(Workspace):
    """A workspace, ``base``, that has its repository in ``git``, made by ``make``."""

    def __init__(self, place: Path, git: Path, seat: str, make: Callable[[], object]) -> None:
        self.git, self.seat = git, seat
        super().__init__(place)
        self.base.rmdir()
        make()

    @property
    def trees(self) -> list[Path]:
        return [self.base, self.git]

    def add_layer(self) -> None:
        super().add_layer()
        for name in ("upper", "work"):
            (self.layers[-1] / "git" / name).mkdir(parents=True)

    def run(self, script: str) -> None:
        _in_a_fork(lambda: _inside(str(self.base), [str(layer) for layer in self.layers], script, str(self.git)))

    def _places(self) -> tuple[Path, ...]:
        return (*super()._places(), self.git, *(layer / "git/upper" for layer in self.layers))

    def _trees(self, opened: list[int]) -> list[int]:
        half = len(opened) // 2
        return [Grafted(*both, self.seat) for both in zip(opened[:half], opened[half:], strict=True)]


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in changes]


def tree(root: Path | str | bytes) -> dict[bytes, tuple[object, ...]]:
    """What stands below a directory: kind, mode, and content or target."""
    out: dict[bytes, tuple[object, ...]] = {}
    top = os.fsencode(root)
    for place, directories, files in os.walk(top):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            key = os.path.relpath(path, top)
            if stat.S_ISLNK(status.st_mode):
                out[key] = ("link", os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    out[key] = ("file", mode, file.read())
            else:
                out[key] = (stat.S_IFMT(status.st_mode), mode)
    return out


@contextmanager
def engine(
    workspace: Workspace,
    step: Callable[[str], None] = lambda _step: None,
    hidden: Callable[[str], bool] | None = None,
    state: Path | None = None,
) -> Iterator[Engine]:
    """The engine of a change set that was made before anything, so that what the host does later is a conflict.

    Args:
        state: the place of the set, in ``changes`` of a state directory: apply writes beside that too.
    """
    place = state or workspace.place / "changes/set"
    place.mkdir(parents=True, exist_ok=True)
    with workspace.copy(hidden) as copy:
        yield Engine(str(place), copy, str(workspace.base), workspace.begun, step)
