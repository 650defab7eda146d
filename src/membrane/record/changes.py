"""Calls that change what a file may do or whose it is, and not what it holds: chmod(2), chown(2), setxattr(2).

Theory of operation
-------------------
One table for both sources of events: where the arguments of each call are, and what the new value is as text.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

NO: Final = 9  # no such argument
AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = 0x100, 0x1000
_UNCHANGED = 0xFFFFFFFF  # chown(2): -1


class Change(Value):
    """Places of arguments of one call; ``NO`` where it has none.

    ``what``: as in ``FileChanged.change``.  Without ``path`` it is the file behind ``directory``.  ``first`` and
    ``second``: of the new value; for an extended attribute ``first`` is its name.  ``follow``: a link at the end, where
    no flags say so.
    """

    what: str
    directory: int
    path: int
    first: int
    second: int = NO
    flags: int = NO
    follow: bool = True


CHANGES: Final = {
    "chmod": Change("mode", NO, 0, 1),
    "fchmod": Change("mode", 0, NO, 1),
    "fchmodat": Change("mode", 0, 1, 2),
    "fchmodat2": Change("mode", 0, 1, 2, NO, 3),
    "chown": Change("owner", NO, 0, 1, 2),
    "lchown": Change("owner", NO, 0, 1, 2, follow=False),
    "fchown": Change("owner", 0, NO, 1, 2),
    "fchownat": Change("owner", 0, 1, 2, 3, 4),
    "setxattr": Change("attribute", NO, 0, 1),
    "lsetxattr": Change("attribute", NO, 0, 1, follow=False),
    "fsetxattr": Change("attribute", 0, NO, 1),
    "setxattrat": Change("attribute", 0, 1, 3, NO, 2),
    "removexattr": Change("attribute removed", NO, 0, 1),
    "lremovexattr": Change("attribute removed", NO, 0, 1, follow=False),
    "fremovexattr": Change("attribute removed", 0, NO, 1),
    "removexattrat": Change("attribute removed", 0, 1, 3, NO, 2),
}


def new_value(what: str, first: int, second: int) -> str:
    """The new mode in octal, or ``uid:gid`` as the command counts them, with nothing for one that stays."""
    if what == "mode":
        return f"{first & 0o7777:04o}"
    numbers = (first & _UNCHANGED, second & _UNCHANGED)
    return ":".join("" if number == _UNCHANGED else str(number) for number in numbers)
