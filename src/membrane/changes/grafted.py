"""A workspace whose repository is elsewhere, read and written as one tree.

Theory of operation
-------------------
The ``.git`` of a linked work tree, of a submodule and of a ``git init --separate-git-dir`` is a file that names a
directory outside of the workspace (gitrepository-layout(5)).  For the rest of a change set there is no such file: the
descriptor of the workspace, and that of each of its layers, is a ``Grafted`` one, below which ``.git`` is that
directory, or the layer of it.  So what is said of a repository in the workspace is said of this one as well: its paths
are ``.git/...``, and one transaction with one journal puts both in place.

The file itself is in no change set: in the view it is a mount, and whatever a layer has under its name is not looked
at.  What is of one work tree only is below its *seat*, ``worktrees/NAME`` in the common directory; without one the
directory is the work tree's alone.
"""

from __future__ import annotations

import os

from ..workspace.judge import pointer_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

APART = "the repository of the workspace is on another file system, or mount, than its files"
GIT = ".git"


class Grafted(int):
    """A descriptor of a directory, below which ``.git`` is another one; both stay the caller's.

    Args:
        fd: of the workspace, or of a layer of it.
        git: of the git directory, or of the layer of that.
        seat: the part of it that is this work tree's, relative to it; empty: all.
    """

    git: int
    seat: str

    def __new__(cls, fd: int, git: int, seat: str = "") -> Self:
        made = super().__new__(cls, fd)
        made.git, made.seat = git, seat
        return made


def below(root_fd: int, path: str) -> tuple[int, str]:
    """(the descriptor of the tree that ``path`` is in, the path in there)."""
    if isinstance(root_fd, Grafted) and (path == GIT or path.startswith(f"{GIT}/")):
        return root_fd.git, path[len(GIT) + 1 :]
    return root_fd, path


def is_graft(root_fd: int, path: str) -> bool:
    """Is it the name of the git directory itself, so that what the workspace has under it is not looked at?"""
    return path == GIT and isinstance(root_fd, Grafted)


def seat_of(root_fd: int) -> str:
    """The seat in the repository ``.git``, with a slash at its end; empty: there is none."""
    return f"{root_fd.seat}/" if isinstance(root_fd, Grafted) and root_fd.seat else ""


def place_of(root_fd: int, path: str) -> str:
    """The absolute path of what is at ``path`` below a descriptor (proc_pid_fd(5)), of a graft in its repository."""
    root_fd, path = below(root_fd, path)
    root = os.readlink(f"/proc/self/fd/{root_fd}")
    return f"{root.rstrip('/')}/{path}" if path else root


def pointed(root_fd: int, path: str, text: str) -> str:
    """Where a ``.git`` file in the workspace leads, as ``judge.pointer_target``; also into a graft."""
    place = pointer_target(root_fd, path, text)
    if place or not isinstance(root_fd, Grafted) or not text.startswith("gitdir: "):
        return place
    named = text.removeprefix("gitdir: ").removesuffix("\n")
    whole = os.path.normpath(os.path.join(place_of(root_fd, ""), os.path.dirname(path), named))
    inner = pointer_target(root_fd.git, "", f"gitdir: {whole}")
    return f"{GIT}/{inner}" if inner else ""


def is_others(root_fd: int, place: str) -> bool:
    """Is it a part of a graft that is no submodule's of this work tree, so that no ``.git`` file may lead there?"""
    return below(root_fd, place)[0] != root_fd and not place.startswith(f"{GIT}/{seat_of(root_fd)}modules/")
