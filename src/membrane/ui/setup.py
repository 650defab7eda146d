"""``membrane setup tracing``: root lets the members of the group ``membrane`` trace their own sandboxes by eBPF.

Theory of operation
-------------------
The work is ``tracer.grant``'s; this says for whom, and has it done again at boot by a oneshot unit.  The unit makes
root run this program, so it is only written when no other user can change the program or a directory above it.
"""

from __future__ import annotations

import os
import stat

from ..errors import HostError
from ..tracer import grant, permission, pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

GROUP: Final = "membrane"
UNIT: Final = "membrane-tracing.service"
UNITS: Final = "/etc/systemd/system"
_TEXT: Final = """\
[Unit]
Description=eBPF programs with which the members of the group membrane trace their own sandboxes

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} setup tracing

[Install]
WantedBy=multi-user.target
"""


def members(group: str = GROUP) -> dict[str, int]:
    """Name and uid of each user who is in the group, root left out.

    Raises:
        HostError: there is no such group, or it has no member.
    """
    import grp
    import pwd

    fix = (f"groupadd --system {group}; usermod --append --groups {group} NAME",)
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        raise HostError("set tracing up", f"there is no group {group}", fix=fix) from None
    users = {}
    for user in pwd.getpwall():
        if user.pw_uid and (user.pw_gid == entry.gr_gid or user.pw_name in entry.gr_mem):
            users[user.pw_name] = user.pw_uid
    if not users:
        raise HostError("set tracing up", f"the group {group} has no member", fix=fix)
    return users


def tracing(
    program: str, say: Callable[[str], object], *, units: str = UNITS, granted: str = permission.GRANTED
) -> None:
    """Give each member his sets, take those of others away, and write the unit where systemd runs.

    Raises:
        HostError: this is not root, the group has no member, or the kernel refused.
    """
    _only_root()
    users = members()
    try:
        for name in os.listdir(granted) if pins.is_bpffs(granted) else ():
            if name.isdigit() and int(name) not in users.values():
                grant.revoke(int(name), directory=granted)
                say(f"uid {name} is no member of the group {GROUP} any more: tracing taken away")
        for name, uid in users.items():
            made = grant.grant(uid, directory=granted)
            say(f"{name}: {'can trace' if made else 'could trace already'}, up to {grant.EACH} sandboxes at a time")
    except OSError as error:
        raise HostError("set tracing up", error.strerror or "", target=error.filename or granted) from None
    if not os.path.isdir("/run/systemd/system"):
        say("there is no systemd here: do this again after each boot")
        return
    changeable = others_can_change(program)
    if changeable:
        say(f"not restored at boot: root would run {program}, and others can change {changeable}")
        return
    path = os.path.join(units, UNIT)
    wants = os.path.join(units, "multi-user.target.wants")
    try:
        with open(path, "w") as file:
            file.write(_TEXT.format(program=program))
        os.makedirs(wants, exist_ok=True)
        if not os.path.lexists(os.path.join(wants, UNIT)):
            os.symlink(path, os.path.join(wants, UNIT))
    except OSError as error:
        raise HostError("write the unit", error.strerror or "", target=path) from None
    say(f"restored at boot by {path}")


def no_tracing(
    say: Callable[[str], object], *, units: str = UNITS, granted: str = permission.GRANTED, state: str = pins.STATE
) -> None:
    """Take everything of ``tracing`` away, and root's own pinned programs with their file system.

    Raises:
        HostError: this is not root, or something cannot be removed.
    """
    _only_root()
    try:
        for path in (os.path.join(units, "multi-user.target.wants", UNIT), os.path.join(units, UNIT)):
            if os.path.lexists(path):
                os.unlink(path)
        grant.revoke(directory=granted)
        if os.path.isdir(state):
            pins.remove(state)
    except OSError as error:
        raise HostError("take tracing away", error.strerror or "", target=error.filename or granted) from None
    say("plain users cannot trace by eBPF any more; root's next run loads the programs anew")


def others_can_change(program: str) -> str:
    """The first of the program and the directories above it that another user than root can change; empty: none."""
    path = os.path.realpath(program)
    while True:
        status = os.stat(path)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & 0o022 and not sticky):
            return path
        if path == "/":
            return ""
        path = os.path.dirname(path)


def _only_root() -> None:
    if os.geteuid() != 0:
        raise HostError("set tracing up", "only root can load the programs", fix=("sudo membrane setup tracing",))
