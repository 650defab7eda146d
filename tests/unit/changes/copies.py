"""A workspace with layers upon it, made by hand or by a real overlayfs; and trees compared as what they hold."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from membrane.changes.apply import Engine
from membrane.changes.base import MARGIN
from membrane.changes.model import Change
from membrane.changes.red import Judge
from membrane.changes.tree import Copy, paired

_INSIDE = """
import ctypes, os, sys
base, layers, merged, script = sys.argv[1], sys.argv[2].split("|"), sys.argv[3], sys.argv[4]
lower = ":".join([*(f"{layer}/upper" for layer in layers[-2::-1]), base])
options = f"lowerdir={lower},upperdir={layers[-1]}/upper,workdir={layers[-1]}/work,userxattr"
options += ",index=off,xino=off"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"overlay", merged.encode(), b"overlay", 0, options.encode()):
    raise OSError(ctypes.get_errno(), "mount " + options)
os.chdir(merged)
exec(script)
"""


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
        latest = max(os.lstat(path).st_ctime_ns for path in (self.base, *self.base.rglob("*")))
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
        """Run Python in the merged view: a mount of overlayfs in a user namespace, the newest layer on top."""
        merged = self.base  # over the workspace itself, as a command sees it
        layers = "|".join(map(str, self.layers))
        command = [sys.executable, "-c", _INSIDE, str(self.base), layers, str(merged), script]
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", *command], capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr.decode()

    @contextmanager
    def copy(self, hidden: Callable[[str], bool] | None = None) -> Iterator[Copy]:
        opened = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in (self.base, *self.uppers)]
        try:
            copy = Copy(opened[0], opened[1:], hidden)
            try:
                yield copy
            finally:
                copy.close()
        finally:
            for fd in opened:
                os.close(fd)

    @property
    def uppers(self) -> list[Path]:
        return [layer / "upper" for layer in self.layers]

    def changes(self, hidden: Callable[[str], bool] | None = None, *, pair: bool = True) -> list[Change]:
        with self.copy(hidden) as copy:
            found = copy.changes()
            return Judge(copy, str(self.base)).all(paired(copy, found) if pair else found)


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
    """The engine of a change set that was made before anything, so that what the host does later is a conflict."""
    place = state or workspace.place / "set"
    place.mkdir(exist_ok=True)
    with workspace.copy(hidden) as copy:
        yield Engine(str(place), copy, str(workspace.base), workspace.begun, step)
