"""The owner of a file, which a root caller's command wants to give to another user.

Theory of operation
-------------------
tar, cp -a, rsync -a and install of uid 0 give files the owners of what they copy, and fail where they cannot.  Root
inside has no capability: what it gave away it could neither write nor remove, and with CAP_CHOWN and CAP_DAC_OVERRIDE
it could reach what others own in the workspace.  So for a file of its own, on a mount that it may write, chown(2) to
other ids of the sandbox succeeds and changes nothing, and that is reported (``reasons.OWNER_KEPT``).  Nothing is done
with the object, so that it does not matter whether the name means something else a moment later.  Everything else is
the kernel's: a file of another owner is EPERM, a read-only mount EROFS; ids that the sandbox does not have are EPERM by
the first filter (``host.seccomp``).

With ``system: writable`` it has those capabilities, and they hold where all ids are mapped: what is said here is about
the trees of the host then, where they do not.
"""

from __future__ import annotations

import os

from ..plan.build import BASE_KUID
from ..plan.mounts import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.notify import Place
    from .process import Scope

UNCHANGED = 0xFFFFFFFF  # chown(2): -1


def keeps_owner(scope: Scope, place: Place, uid: int, gid: int) -> bool:
    """Is this a chown(2) that succeeds without effect?

    Args:
        scope: the session.
        place: what is there, on a mount that may be written.
        uid: the arguments of the call; only their low 32 bits count.
        gid: the same.
    """
    if (
        (scope.uid != BASE_KUID and scope.owned is None)
        or scope.nested
        or place.status is None
        or place.status.st_uid != scope.uid
    ):
        return False
    if scope.owned is not None and not any(inside(os.fsdecode(place.path), tree) for tree in scope.owned):
        return False  # the kernel changes it
    own_uid, own_gid = scope.ids  # the kernel's affair
    return uid & UNCHANGED not in (own_uid, UNCHANGED) or gid & UNCHANGED not in (own_gid, UNCHANGED)
