"""The paths that file rules name on this machine, found before the start.

Theory of operation
-------------------
A literal is resolved through its links: what a rule denies is denied where it is.  A link that an ``allow-write``
names must stay within its own name: an agent of an earlier run may have made it, and it would choose what this run
opens.  Globs are matched by a walk that follows no link and is bounded; inside writable trees the guard holds denied
globs by pattern, at any time, so the walk leaves those trees out.
"""

from __future__ import annotations

import os
import stat

from ..errors import PolicyError
from ..plan.hosttree import OWN_TREES, inside
from ..plan.model import FoundFile
from ..policy.files import pattern_components
from ..policy.globs import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..policy.model import FileRule

MOST_ENTRIES = 500_000  # names that the walk of one rule looks at


def stays_inside(path: str, resolved: str) -> bool:
    """Whether a link named ``path`` that leads to ``resolved`` opens no other tree.

    The boundary of sandbox-runtime: the same path, one below it, or the same path below ``/private`` (macOS).
    """
    path = path.rstrip("/") or "/"
    return resolved == path or resolved == "/private" + path or resolved.startswith(path + "/")


def find(rules: Sequence[FileRule], masked: Sequence[str] = ()) -> tuple[tuple[FoundFile, ...], tuple[str, ...]]:
    """What exists of the rules' paths, and warnings about those that open nothing.

    Args:
        masked: further files that are not shown as they are.

    Raises:
        PolicyError: a link leads out of its tree, or a glob is too wide to be looked for.
    """
    found: list[FoundFile] = []
    warnings: list[str] = []
    for rule in rules:
        if rule.effect.startswith("allow"):
            matches = [*_literal(rule), *(_walk(rule, ()) if rule.glob else ())]
            found += matches
            if not matches and rule.origin.level != "built-in":
                verb = "writable" if rule.effect == "allow-write" else "opened"
                warnings.append(f"{rule.text} ({rule.origin}) does not exist: nothing is {verb} there")
    roots = [each.path for each in found if each.effect == "allow-write" and each.directory]
    for rule in rules:
        if not rule.effect.startswith("allow"):
            found += _literal(rule)
            if rule.glob:
                found += _walk(rule, roots)
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


def _walk(rule: FileRule, without: Sequence[str]) -> Iterator[FoundFile]:
    """What a glob matches now, outside of the trees ``without``."""
    parts = pattern_components(rule)
    looked_at = 0
    pending: list[tuple[str, tuple[str, ...]]] = [("", tuple(parts))]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while pending:
        base, left = pending.pop()
        if (base, left) in seen or not left or any(inside(base, tree) for tree in (*without, *OWN_TREES)):
            continue
        seen.add((base, left))
        if left[0] == "**":
            pending.append((base, left[1:]))
        try:
            with os.scandir(base or "/") as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        looked_at += len(names)
        if looked_at > MOST_ENTRIES:
            raise PolicyError(
                "look for a glob",
                f"{rule.text!r} covers more than {MOST_ENTRIES} names",
                where=str(rule.origin),
                fix=("begin it with the directory that is meant",),
            )
        pattern = None if left[0] == "**" else Pattern("/" + left[0])
        for name, directory in names:
            path = f"{base}/{name}"
            if pattern is None:
                if directory:
                    pending.append((path, left))
            elif pattern.matches(name, name, directory):
                if len(left) > 1:
                    if directory:
                        pending.append((path, left[1:]))
                    continue
                try:
                    resolved = os.path.realpath(path)
                    mode = os.stat(resolved).st_mode
                except OSError:
                    continue
                if resolved != path and rule.effect.startswith("allow"):
                    continue  # a glob opens no link
                yield FoundFile(rule.effect, resolved, resolved, stat.S_ISDIR(mode))
