"""The directories of ours below a layer over system trees: white-outs, and files that tools have to find.

Theory of operation
-------------------
``plan.system`` says what a tree hides and has; here it is made, anew for each run, in the uppermost lower directory of
the overlay.  Nothing in it comes from the layer that a command may have written; of the host it has the names of
passwd(5), which every user may read.
"""

from __future__ import annotations

import os
import stat

from ..errors import HostError
from ..host.private import make_private
from ..host.writing import write_all
from ..plan.mounts import VAR_TREES
from ..plan.system import OWN_FILES, SHADOW, VAR, VAR_DIRECTORIES, VAR_LINKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import Overlay

USERS = "/etc/passwd"
_LARGEST = 1 << 20  # bytes of it
_SHOWN = 0o755  # of directories: as the host's


def make_own(op: Overlay) -> None:
    """Make the uppermost lower directory of ``op``, an overlay of ``plan.system``.

    Raises:
        HostError: it cannot be made.
    """
    from ..changes.removal import remove_tree

    own = op.lowers[0]
    try:
        remove_tree(own)
        make_private(own)
        os.chmod(own, _SHOWN)
        for path in op.hidden:
            _directories(own, os.path.dirname(path))
            os.mknod(f"{own}/{path}", stat.S_IFCHR, 0)  # overlayfs.rst, "whiteouts and opaque directories"
        for path in op.names:
            _file(own, path, 0o444)
        if op.target == VAR:
            # Of an image they are its own: what is here is one with them.
            trees = [tree[len(VAR) + 1 :] for tree in VAR_TREES] if len(op.lowers) == 1 else []
            for path in (*VAR_DIRECTORIES, *trees):
                _directories(own, path)
            for name, to in VAR_LINKS:
                os.symlink(to, f"{own}/{name}")
        for path, content in op.contents:
            _file(own, path, 0o644, content)
        for path in OWN_FILES.get(op.target, ()) if op.closed else ():
            _file(own, path, 0o600, shadow() if os.path.basename(path) == SHADOW else b"")
    except OSError as error:
        raise HostError("make a layer over the system trees", error.strerror or "", target=own) from None


def shadow(users: str = USERS) -> bytes:
    """shadow(5) for the users of passwd(5), none of whom has a password or an age."""
    try:
        with open(users, "rb") as file:
            lines = file.read(_LARGEST).split(b"\n")
    except OSError:
        return b""
    names = [line.partition(b":")[0] for line in lines if b":" in line and not line.startswith((b"+", b"-", b"#"))]
    return b"".join(name + b":*:::::::\n" for name in names if name)


def _directories(own: str, path: str) -> None:
    """Make the directories of ``path`` below ``own``, whatever the caller's mask is."""
    place = own
    for part in filter(None, path.split("/")):
        place += f"/{part}"
        if not os.path.isdir(place):
            os.mkdir(place)
            os.chmod(place, _SHOWN)


def _file(own: str, path: str, mode: int, content: bytes = b"") -> None:
    _directories(own, os.path.dirname(path))
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    if os.path.lexists(f"{own}/{path}"):
        os.unlink(f"{own}/{path}")  # a white-out of the same name: ours is there instead
    fd = os.open(f"{own}/{path}", flags, mode)
    try:
        os.fchmod(fd, mode)
        write_all(fd, content)
    finally:
        os.close(fd)
