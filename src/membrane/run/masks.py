"""Credentials in files and variables: the copies with placeholders that the command sees, and which placeholder is for
which value.

Theory of operation
-------------------
Read once, by the supervisor, before the launch.  Each credential that a rule finds gets one placeholder for the
session, whatever finds it; the value goes to the gateway only, as a secret that may be in any header field
that carries credentials (``gateway.http.credentials``).  A copy is bound over its file, read-only, before the command
is released.

A file may be replaced outside while the command runs: ``workspace.held`` then hides the new one.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PolicyError
from ..escaping import escape
from ..plan.model import Copy, Mask, Seed
from ..plan.mounts import INSIDE_LOGINS, LOGINS, inside, pins
from ..policy.model import Malformed
from .event_log import say
from .sources import Found, Trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..plan.model import MountOp
    from ..policy.model import MaskRule, Policy

_LARGEST = 1 << 20  # bytes of a file


class Masked:
    """What became of the rules."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self.copies: dict[str, bytes] = {}  # path without links -> content
        self.hidden: list[str] = []  # paths without links
        self.paths: list[str] = []  # of every rule about a file, whether it exists or not
        self.environment: dict[str, str] = {}
        self.own: dict[str, str] = {}  # log-ins: path -> where the command has a copy that it can write
        self.logins: dict[str, dict[str, Any]] = {}  # path -> what the network process is to know of it
        self.tokens: dict[str, tuple[str, str]] = {}  # name of a secret -> (path, value)

    def operations(self) -> list[MountOp]:
        """The mounts in the view.

        Where the command could move what is above a file, it would choose what the next run finds at its path.
        """
        ops = pins(self._roots, (*self.copies, *self.hidden))
        for path, content in self.copies.items():
            place = self.own.get(path, path)
            if path not in self.hidden:
                plain = inside(place, LOGINS) or inside(place, INSIDE_LOGINS)
                ops.append(Seed(place, content) if plain else Copy(place, content, path in self.own))
        ops += [Mask(path, False, "mask") for path in self.hidden]
        return ops


def gather(
    policy: Policy,
    environ: Mapping[str, str],
    rows: list[list[Any]],
    roots: Sequence[str] = (),
    places: Mapping[str, str] | None = None,
) -> Masked:
    """Find the credentials.

    Args:
        rows: of ``secrets.gather``; a row for each credential is added.
        roots: trees that the command can write.
        places: where log-in files stand in the view (``logins.places``).

    Raises:
        PolicyError: a credential cannot be replaced, or there is none and the rule says that there must be one; a file
            cannot be read, or is too large.
    """
    out = Masked(roots)
    placeholders = _Placeholders(rows)
    trees = Trees(roots)
    for rule in policy.masks:
        kind, _, where = rule.source.partition(":")
        if kind == "env":
            text = environ.get(where, "")
            if text and (shown := _masked(rule, text, placeholders)) is not None:
                out.environment[where] = shown
            continue
        found = Found(where, trees)
        try:
            if found.link:
                # The command, in an earlier run, would choose which file is read here, and so where its content goes.
                cause = f"{where} leads over the symbolic link {found.link}, which the command can make"
                raise PolicyError("mask a credential", cause, where=str(rule.origin), fix=("name its target",))
            path = os.path.realpath(where) if found.error else found.path
            if rule.login:
                out.own[path] = (places or {}).get(where, path)
            if out.own.get(path, path) == path:
                out.paths.append(path)
            content = _read(found, path, rule)
        finally:
            found.close()
        if content is None:
            continue  # there is nothing to protect yet
        before = out.copies.get(path, content).decode("utf-8", "surrogateescape")
        if rule.login:
            rule = rule.replace(unmatched="deny")
        shown = _masked(rule, before, placeholders)
        if shown is None and rule.login:
            continue  # no one is logged in with it
        if shown is None:
            out.hidden.append(path)
        elif shown != before:
            out.copies[path] = shown.encode("utf-8", "surrogateescape")
            if rule.renew:
                _note_login(out, rule, path, shown, rows)
    return out


def _note_login(out: Masked, rule: MaskRule, path: str, shown: str, rows: list[list[Any]]) -> None:
    """The tokens of a log-in, for who renews it and for who writes it down."""
    from ..policy.grammar import destinations

    login = out.logins.setdefault(path, {"endpoints": [], "to": [], "place": rule.header, "names": []})
    for key, texts in (("endpoints", rule.renew), ("to", rule.to)):
        login[key] += [list(each) for each in destinations(texts, wildcards=True) if list(each) not in login[key]]
    for row in rows:
        if str(row[2], "ascii") in shown and row[0] not in login["names"]:
            login["names"].append(row[0])
            out.tokens[row[0]] = path, row[1].decode("utf-8", "surrogateescape")


def _read(found: Found, path: str, rule: MaskRule) -> bytes | None:
    """The content of a file; None: there is none that this user can read."""
    if found.error in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
        return None
    if not found.error and not stat.S_ISREG(found.status.st_mode):
        raise PolicyError("mask a credential", f"{path} is not a file", where=str(rule.origin), fix=("hide it",))
    try:
        data = found.read(_LARGEST)
    except PermissionError:
        return None
    except OSError as error:
        cause = f"{path} cannot be read: {error.strerror}"
        raise PolicyError("mask a credential", cause, where=str(rule.origin), fix=("hide it",)) from None
    if len(data) > _LARGEST:
        cause = f"{path} is larger than {_LARGEST} bytes"
        raise PolicyError("mask a credential", cause, where=str(rule.origin), fix=("hide it",))
    return data


def _masked(rule: MaskRule, text: str, placeholders: _Placeholders) -> str | None:
    """The text as the command sees it; None: not at all.

    Raises:
        PolicyError: see ``gather``.
    """
    from ..policy import masking

    def stand(value: str) -> str | None:
        if not rule.decode:
            return placeholders.of(value, rule)
        if masking.payload_of(value) is None:
            return None
        if not rule.claims:
            return placeholders.of(value, rule, masking.fake_token(value, placeholders.noise))
        found = masking.mask_claims(value, rule.claims, lambda claim: placeholders.of(claim, rule), placeholders.noise)
        if found is None:
            return None
        return placeholders.of(value, rule, found[0])

    tried = "mask a credential"
    try:
        if rule.extract or rule.decode:
            pattern = masking.compiled(rule.extract or masking.JWT)
            shown = masking.substitute(text, pattern, stand, duplicates=rule.duplicates)
        else:
            core = text.strip()
            shown = text.replace(core, placeholders.of(core, rule), 1) if core else text
    except (ValueError, Malformed) as error:
        cause = f"{rule.source}: {error}"
        raise PolicyError(tried, cause, where=str(rule.origin), fix=("hide it instead",)) from None
    if shown is not None:
        return shown
    cause = f"{rule.source}: nothing in it is found"
    if rule.unmatched == "error":
        raise PolicyError(tried, cause, where=str(rule.origin), fix=("correct extract, or say what unmatched means",))
    if rule.unmatched == "warn":
        say(f"warning: {escape(cause)}: the command sees it as it is")
        return text
    return None


class _Placeholders:
    """One placeholder for each credential."""

    def __init__(self, rows: list[list[Any]]) -> None:
        self._rows = rows
        self._known: dict[bytes, list[Any]] = {row[1]: row for row in rows if row[3][0] == "*"}

    @staticmethod
    def noise(value: str) -> str:
        """Random text of the same length and shape.

        Raises:
            ValueError: it is too short, or is not visible ASCII.
        """
        from ..gateway.http.credentials import placeholder_for

        return placeholder_for(value.encode("utf-8", "surrogateescape"), os.urandom).decode("ascii")

    def of(self, value: str, rule: MaskRule, shown: str = "") -> str:
        """The placeholder of ``value``; ``shown`` becomes it when it has none.

        Raises:
            ValueError: see ``noise``.
            Malformed: a destination is not one.
        """
        from ..policy.grammar import destinations

        data = value.encode("utf-8", "surrogateescape")
        to = [list(each) for each in destinations(rule.to, wildcards=True)]
        row = self._known.get(data)
        if row is None:
            placeholder = (shown or self.noise(value)).encode("ascii")
            row = [f"{rule.source}#{len(self._known)}", data, placeholder, "*", []]
            self._known[data] = row
            self._rows.append(row)
        row[3] = " ".join(dict.fromkeys((*row[3].split(), *rule.header.split())))
        row[4] += [each for each in to if each not in row[4]]
        return str(row[2], "ascii")
