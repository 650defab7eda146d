"""Log-ins of agents: which files are shown with placeholders, and what is written to them when they are renewed.

Theory of operation
-------------------
A person who is logged in to an agent outside is logged in inside: a rule of ``masks`` with ``login`` (the agents'
profiles have them) shows a copy of the log-in file with placeholders.  It is shown only where it exists outside and the
sandbox has none of its own: who has logged in inside stays logged in as that.

A copy is bound over an empty file in the agent's state.  A mount point cannot be replaced by rename(2) (EBUSY): where
the program does that (``replaced``), its state has a link to ``mounts.LOGINS`` instead, a tmpfs of each run, and the
copy is a plain file there.  So no placeholder of one run is seen by another, and none is kept.  Where nothing is
mounted the link leads to the run's own directory (``mounts.INSIDE_LOGINS``): one such run at a time has the log-in.

The agent inside renews its tokens as always, through the gateway (``gateway.http.logins``), and writes placeholders to
its copy.  The new tokens come here, and go into the file outside in the place of the old ones, member by member: what
else is in it stays as it is, and if it does not hold the old refresh token any more, another program has renewed it,
and nothing is written.
"""

from __future__ import annotations

import os
import re
import stat
import time

from ..escaping import escape
from ..host.writing import write_all
from ..plan import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..gateway.messages import Renewed
    from ..plan.model import HostFacts
    from ..policy.model import Policy

LARGEST = 1 << 20  # bytes of a log-in file
_MEMBERS = {"access_token": "access_?token", "refresh_token": "refresh_?token", "id_token": "id_?token"}


def shown(policy: Policy, facts: HostFacts, *, tidy: bool = False) -> tuple[Policy, dict[str, str]]:
    """The policy without the log-ins that are not shown, and where the others stand in the view, by path.

    Args:
        tidy: remove the place of an earlier copy where there is none any more: Codex stops at an empty file.
    """
    kept = []
    places: dict[str, str] = {}
    home = dict(facts.environ).get("HOME", facts.home).rstrip("/")
    for mask in policy.masks:
        path = mask.source.removeprefix("file:")
        if mask.login:
            name = next((path[len(top) + 1 :] for top in (home, facts.home) if path.startswith(f"{top}/")), "")
            state = policy.view == "project" and any(
                name.startswith(f"{top.rstrip('/')}/") for top in policy.state_dirs
            )
            own = f"{facts.state}/agents/{policy.profiles[0]}/{name}" if state else ""
            place = f"{mounts.LOGINS}/{name.replace('/', '-')}" if mask.replaced else f"{facts.home}/{name}"
            if policy.backend == "landlock":
                # Nothing is bound over a name of the home.
                place = f"{mounts.INSIDE_LOGINS}/{name}" if mask.replaced else own
            kind = _kind(own, place) if own else ""
            # A link may have been made by a command that could write there once: it would choose what is shown.
            followed = state and os.path.realpath(path) != f"{facts.home}/{name}"
            if followed or not os.path.isfile(path) or not os.access(path, os.R_OK):
                if tidy and kind == "empty":
                    os.unlink(own)
                continue
            if kind == "own":
                continue
            if own:
                places[path] = place
        kept.append(mask)
    return policy.replace(masks=tuple(kept)), places


def _kind(path: str, place: str) -> str:
    """Of what is at ``path`` in an agent's state: ``empty``, where a copy is shown (or a link to its ``place``),
    ``own``, or nothing."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) and (os.readlink(path) == place or leads_to_copy(os.readlink(path))):
            return "empty"
    except OSError:
        return ""
    return "empty" if stat.S_ISREG(found.st_mode) and not found.st_size else "own"


def leads_to_copy(target: str) -> bool:
    """Is a link in an agent's state one that an earlier run has made to its copy?"""
    own = target.startswith("/tmp/.membrane-") and target.split("/")[3:4] == ["logins"]  # noqa: S108 - ``backend.landlock``
    return own or mounts.inside(target, mounts.LOGINS)


class Renewals:
    """Writes renewed tokens to the files that they came from.

    Args:
        tokens: name of a secret -> (path without links, value).
        warn: says that one was not written.
    """

    def __init__(self, tokens: dict[str, tuple[str, str]], warn: Callable[[str], None]) -> None:
        self._tokens, self._warn = tokens, warn

    def take(self, renewed: Renewed) -> None:
        """New tokens, from the gateway."""
        path, old = self._tokens.get(renewed.login, ("", ""))
        if not path:
            return
        new = {
            member: value for member, value in zip(renewed.members, renewed.values, strict=True) if member in _MEMBERS
        }
        for name, value in zip(renewed.names, renewed.values, strict=True):
            self._tokens[name] = path, value
        try:
            written = _write(path, old, new, renewed.expires_in)
        except OSError as error:
            self._warn(
                f"the renewed log-in could not be written to {escape(path)}: {error.strerror}; log in again there"
            )
            return
        if not written:
            self._warn(f"the renewed log-in was not written to {escape(path)}: it holds another one by now")


def _write(path: str, old: str, new: dict[str, str], lasts: int) -> bool:
    """Put the tokens of ``new`` in the place of those beside ``old``; False: that refresh token is not there."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            return False
        before = os.pread(fd, LARGEST, 0)
        renewed = _renewed(before.decode("utf-8", "surrogateescape"), old, new, lasts)
        if renewed is None:
            return False
        # In place: what covers the file in a sandbox's view stays over it, and its owner and mode stay.
        data = renewed.encode("utf-8", "surrogateescape")
        try:
            write_all(fd, data, 0)
        except OSError:  # a full file system: half of one and half of the other would be no log-in
            write_all(fd, before, 0)
            os.ftruncate(fd, len(before))
            raise
        os.ftruncate(fd, len(data))
        os.fsync(fd)
        return True
    finally:
        os.close(fd)


def _renewed(text: str, old: str, new: dict[str, str], lasts: int) -> str | None:
    """The text of a log-in file with other tokens; None: ``old`` is not its refresh token."""
    import json

    member = rf'"{_MEMBERS["refresh_token"]}"\s*:\s*{re.escape(json.dumps(old))}'
    if len(re.findall(member, text, re.IGNORECASE)) != 1:
        return None
    for name, value in new.items():
        pattern = rf'("{_MEMBERS[name]}"\s*:\s*)"(?:[^"\\]|\\.)*"'
        quoted = json.dumps(value)
        text = re.sub(pattern, lambda found, quoted=quoted: found[1] + quoted, text, count=1, flags=re.IGNORECASE)  # type: ignore[misc]
    if lasts > 0:
        text = re.sub(r'("expiresAt"\s*:\s*)\d+', rf"\g<1>{int((time.time() + lasts) * 1000)}", text, count=1)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return re.sub(r'("last_refresh"\s*:\s*)"[^"]*"', rf'\g<1>"{now}"', text, count=1)
