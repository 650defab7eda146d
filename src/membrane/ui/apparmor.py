"""``membrane setup userns``: an AppArmor profile that lets this installation make user namespaces, and its end.

Theory of operation
-------------------
Since Ubuntu 23.10 AppArmor takes all capabilities from a user namespace that an unconfined program makes
(kernel.apparmor_restrict_unprivileged_userns), but for programs whose profile has ``userns,``.  A profile is attached
by the resolved path of the file that execve(2) names, a script before its interpreter (fs/exec.c,
security_bprm_creds_for_exec), and with ``flags=(unconfined)`` children keep it (security/apparmor/domain.c).  So the
profile names the command ``membrane``, not the Python of the system, which would lift the restriction for every
program written in it.  An interpreter that a virtual environment has copied is named as well: programs that use the
library are started by it.

A user who can change a file that the profile names has what the restriction takes, so that must be root alone.  What is
named otherwise than by plain characters is refused, since a profile reads paths as patterns (apparmor.d(5)).
"""

from __future__ import annotations

import os
import sys

from ..errors import HostError
from .setup import others_can_change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

PROFILE: Final = "/etc/apparmor.d/membrane"
SETTING: Final = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
PARSER: Final = "apparmor_parser"
_HEAD: Final = "# Written by: membrane setup userns.  Taken away by: membrane setup no-userns.\n"
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-")
_TRIED: Final = "let membrane make user namespaces"
_AS_ROOT: Final = (
    "sudo python3 -m venv --copies /opt/membrane",
    "sudo /opt/membrane/bin/pip install membrane-sandbox",
    "sudo /opt/membrane/bin/membrane setup userns",
)


def text(programs: Sequence[str]) -> str:
    """The profiles of ``programs``: resolved paths of plain characters.

    Raises:
        HostError: a path that AppArmor would read as a pattern.
    """
    parts = [f"{_HEAD}abi <abi/4.0>,\ninclude <tunables/global>\n"]
    for number, path in enumerate(programs):
        if not path.startswith("/") or not _PLAIN.issuperset(path):
            cause = "the path has other characters than letters, digits and /._+-, which AppArmor may read as a pattern"
            raise HostError(_TRIED, cause, target=path, fix=_AS_ROOT)
        name = "membrane" if number == 0 else f"membrane-{number}"
        parts.append(f"profile {name} {path} flags=(unconfined) {{\n  userns,\n}}\n")
    return "\n".join(parts)


def programs(command: str) -> tuple[str, ...]:
    """What the profile names: ``command``, resolved, and the interpreter where it is this installation's own.

    Raises:
        HostError: it is no program, or others than root can change it.
    """
    found = [os.path.realpath(command)]
    python = os.path.realpath(sys.executable)
    if sys.prefix != sys.base_prefix and python.startswith(os.path.realpath(sys.prefix) + "/"):
        found.append(python)
    for path in found:
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise HostError(_TRIED, "it is no program that can be executed", target=path, fix=_AS_ROOT)
        changeable = others_can_change(path)
        if changeable:
            cause = f"others than root can change {changeable}: whatever they put there could make user namespaces"
            lifted = "or, for every program: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            raise HostError(_TRIED, cause, target=path, fix=(*_AS_ROOT, lifted))
    return tuple(found)


def userns(
    command: str, say: Callable[[str], object], *, profile: str = PROFILE, setting: str = SETTING, parser: str = PARSER
) -> None:
    """Write the profile and load it.

    Raises:
        HostError: this is not root, a program is not root's alone, or the profile cannot be written or loaded.
    """
    _only_root()
    if _read(setting).strip() != "1":
        say("AppArmor does not restrict user namespaces here: there is nothing to set up")
        return
    wanted = programs(command)
    content = text(wanted)
    if os.path.lexists(profile) and not _read(profile).startswith(_HEAD):
        fix = ("look at it, and move it away if it is not needed",)
        raise HostError(_TRIED, "the file was not written by this command", target=profile, fix=fix)
    directory, name = os.path.split(profile)
    passing = os.path.join(directory, f".{name}.{os.getpid()}")  # a name that the parser passes by (dirent filter)
    try:
        try:
            with open(passing, "x") as file:
                file.write(content)
            _parse(parser, "--skip-kernel-load", "--skip-cache", passing)
            os.rename(passing, profile)
        finally:
            if os.path.lexists(passing):
                os.unlink(passing)
    except OSError as error:
        raise HostError("write the AppArmor profile", error.strerror or "", target=profile) from None
    try:
        _parse(parser, "--replace", profile)
    except HostError:
        os.unlink(profile)  # else the next boot would load what this machine has just refused
        raise
    for path in wanted:
        say(f"{path} may make user namespaces now, and after each boot ({profile})")


def no_userns(say: Callable[[str], object], *, profile: str = PROFILE, parser: str = PARSER) -> None:
    """Unload the profile and remove it.

    Raises:
        HostError: this is not root, or the file is not ours.
    """
    _only_root()
    if not os.path.lexists(profile):
        say(f"there is no {profile}: nothing to take away")
        return
    if not _read(profile).startswith(_HEAD):
        raise HostError("take the AppArmor profile away", "it was not written by this command", target=profile)
    try:
        _parse(parser, "--remove", profile)
    except HostError as error:
        say(f"it was not loaded: {error.cause}")  # by a reboot without it, or where AppArmor is off
    try:
        os.unlink(profile)
    except OSError as error:
        raise HostError("take the AppArmor profile away", error.strerror or "", target=profile) from None
    say(f"{profile} is removed: new runs are restricted again")


def _parse(parser: str, *arguments: str) -> None:
    """Run apparmor_parser(8)."""
    import subprocess

    try:
        done = subprocess.run(
            [parser, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        fix = ("sudo apt install apparmor",)
        raise HostError(f"run {parser}", error.strerror or "", target=parser, fix=fix) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        cause = lines[-1] if lines else f"exit status {done.returncode}"
        raise HostError("load the AppArmor profile", cause, target=arguments[-1])


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""


def _only_root() -> None:
    if os.geteuid() != 0:
        raise HostError(_TRIED, "only root can load profiles", fix=("sudo membrane setup userns",))
