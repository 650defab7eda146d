"""The paths that file rules name on this machine, found before the start.

Theory of operation
-------------------
A literal is resolved through its links: what a rule denies is denied where it is.  A link that an ``allow-write``
names must stay within its own name: an agent of an earlier run may have made it, and it would choose what this run
opens.  Globs are matched by a walk that follows no link and is bounded; inside writable trees the guard holds denied
globs by pattern, at any time, so the walk leaves those trees out.  A component without a wildcard is looked up and
not listed: this user may be allowed to search a directory and not to list it (mode 0711, as many a ``/home``).  Where a
wildcard meets such a directory, the names that the caller is known to use are tried, and the rest is a warning.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PolicyError
from ..plan.hosttree import OWN_TREES, inside
from ..plan.model import FoundFile
from ..policy.files import components, is_glob, pattern_components
from ..policy.globs import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..policy.model import FileRule

MOST_ENTRIES = 500_000  # names that the walk of one rule looks at


def stays_inside(path: str, resolved: str) -> bool:
    """Whether a link named ``path`` that leads to ``resolved`` opens no other tree.

    The boundary of sandbox-runtime: the same path, one below it, or the same path below ``/private`` (macOS).
    """
    path = path.rstrip("/") or "/"
    return resolved == path or resolved == "/private" + path or resolved.startswith(path + "/")


def find(
    rules: Sequence[FileRule], masked: Sequence[str] = (), known: Sequence[str] = ()
) -> tuple[tuple[FoundFile, ...], tuple[str, ...]]:
    """What exists of the rules' paths, and warnings about those that open nothing.

    Args:
        masked: further files that are not shown as they are.
        known: absolute paths that the caller uses, as the home and the workspace.

    Raises:
        PolicyError: a link leads out of its tree, or a glob is too wide to be looked for.
    """
    found: list[FoundFile] = []
    warnings: list[str] = []
    on_the_way = _names_on_the_way([*known, *masked, *(rule.path for rule in rules)])
    for rule in rules:
        if rule.effect.startswith("allow"):
            matches = [*_literal(rule), *(_walk(rule, (), on_the_way, []) if rule.glob else ())]
            found += matches
            if not matches and rule.origin.level != "built-in":
                verb = "writable" if rule.effect == "allow-write" else "opened"
                warnings.append(f"{rule.text} ({rule.origin}) does not exist: nothing is {verb} there")
    roots = [each.path for each in found if each.effect == "allow-write" and each.directory]
    for rule in rules:
        if not rule.effect.startswith("allow"):
            found += _literal(rule)
            if rule.glob:
                unlisted: list[str] = []
                found += _walk(rule, roots, on_the_way, unlisted)
                if unlisted:
                    more = f" and {len(unlisted) - 1} more directories" if len(unlisted) > 1 else ""
                    warnings.append(
                        f"{rule.text} ({rule.origin}): {unlisted[0]}{more} cannot be listed: "
                        "what it matches there is hidden only where its name is known"
                    )
    hidden = [each.path for each in found if each.effect == "deny-read"] + [os.path.realpath(path) for path in masked]
    for each in [each for each in found if each.path != each.source]:
        # At a second path nothing would be hidden.
        if any(inside(path, each.source) for path in hidden):
            found.remove(each)
            warnings.append(f"{each.path} is not opened: it leads to {each.source}, where something is hidden")
    return tuple(dict.fromkeys(found)), tuple(warnings)


def _literal(rule: FileRule) -> list[FoundFile]:
    if not os.path.lexists(rule.path):
        return []
    resolved = os.path.realpath(rule.path)
    if not os.path.exists(resolved):
        return []
    if rule.effect == "allow-write" and not stays_inside(rule.path, resolved):
        raise PolicyError(
            "bind a rule",
            f"{rule.text!r} is a link that leads to {resolved}, outside of its own tree",
            where=str(rule.origin),
            fix=(f"name {resolved} itself if that is meant",),
        )
    directory = os.path.isdir(resolved)
    if rule.effect == "allow-read":
        # Opened at its own name only, from where it leads.
        parent = os.path.realpath(os.path.dirname(rule.path))
        return [FoundFile(rule.effect, os.path.join(parent, os.path.basename(rule.path)), resolved, directory)]
    return [FoundFile(rule.effect, resolved, resolved, directory)]


def _names_on_the_way(paths: Sequence[str]) -> dict[str, set[str]]:
    """Directory -> the names in it that lead to one of ``paths``; the root is the empty string."""
    names: dict[str, set[str]] = {}
    for path in paths:
        base = ""
        for part in components(path):
            names.setdefault(base, set()).add(part)
            base += f"/{part}"
    return names


def _looked_up(base: str, names: Iterable[str]) -> list[tuple[str, bool]]:
    """Those of ``names`` that exist in ``base``, and whether each is a directory."""
    there: list[tuple[str, bool]] = []
    for name in names:
        try:
            there.append((name, stat.S_ISDIR(os.lstat(f"{base}/{name}").st_mode)))
        except OSError:
            continue
    return there


def _walk(
    rule: FileRule, without: Sequence[str], known: dict[str, set[str]], unlisted: list[str]
) -> Iterator[FoundFile]:
    """What a glob matches now, outside of the trees ``without``.

    Args:
        known: what to try in a directory that can be searched but not listed.
        unlisted: such directories are added to it.
    """
    literal = ["" if is_glob(part) or part in (".", "..") else part for part in components(rule.path)]
    parts = [*zip(pattern_components(rule), literal, strict=True)]
    looked_at = 0
    pending: list[tuple[str, int]] = [("", 0)]
    seen: set[tuple[str, int]] = set()
    while pending:
        base, at = pending.pop()
        if (base, at) in seen or at == len(parts) or any(inside(base, tree) for tree in (*without, *OWN_TREES)):
            continue
        seen.add((base, at))
        segment, name = parts[at]
        if segment == "**":
            pending.append((base, at + 1))
        if name:
            names = _looked_up(base, (name,))
        else:
            try:
                with os.scandir(base or "/") as entries:
                    names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            except OSError as error:
                if error.errno != errno.EACCES or not os.access(base, os.X_OK):
                    continue
                if base not in unlisted:
                    unlisted.append(base)
                names = _looked_up(base, sorted(known.get(base, ())))
        looked_at += len(names)
        if looked_at > MOST_ENTRIES:
            raise PolicyError(
                "look for a glob",
                f"{rule.text!r} covers more than {MOST_ENTRIES} names",
                where=str(rule.origin),
                fix=("begin it with the directory that is meant",),
            )
        pattern = None if segment == "**" else Pattern("/" + segment)
        for name, directory in names:
            path = f"{base}/{name}"
            if pattern is None:
                if directory:
                    pending.append((path, at))
            elif pattern.matches(name, name, directory):
                if at + 1 < len(parts):
                    if directory:
                        pending.append((path, at + 1))
                    continue
                try:
                    resolved = os.path.realpath(path)
                    mode = os.stat(resolved).st_mode
                except OSError:
                    continue
                if resolved != path and rule.effect.startswith("allow"):
                    continue  # a glob opens no link
                yield FoundFile(rule.effect, resolved, resolved, stat.S_ISDIR(mode))
