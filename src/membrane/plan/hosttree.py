"""File rules over the host's tree -> mounts, and what the guard holds in the writable trees.

Theory of operation
-------------------
The host's tree is bound read-only.  ``layout`` walks the paths that the rules name on this machine, the outer ones
first, and makes an operation wherever the answer of ``policy.files`` for a path differs from that for its parent: a
writable bind, a mask, or, for a hidden directory with something open below it, an empty sealed tmpfs that holds only
what is open.  Inside a writable tree a denied name may come and go, so there the workspace guard holds it by pattern
(``guarded``), at the start and while the command runs.

Equal rules make equal plans, whatever their order.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..policy.files import Covering, components, residues
from ..policy.model import FileRule, Origin, PathRule
from ..value import Value
from .model import Bind, Mask, Pin, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import PathEffect, Policy
    from .model import FoundFile, HostFacts, MountOp

# Made by the sandbox itself: no rule reaches into them.
OWN_TREES = ("/proc", "/sys", "/dev")
MASK_SOURCE = "/run/.membrane"


class Layout(Value):
    """What the file rules make of this machine."""

    ops: tuple[MountOp, ...]
    roots: tuple[str, ...]  # writable directories, guarded
    files: tuple[str, ...]  # writable single files
    opened: tuple[str, ...]  # hidden directories inside writable ones that the plan covers itself
    root_hidden: bool = False


def inside(path: str, tree: str) -> bool:
    """Whether ``path`` is ``tree`` or below it."""
    return path == tree or path.startswith("/" if tree == "/" else tree + "/")


def layout(found: tuple[FoundFile, ...]) -> Layout:
    """The mounts of the paths that exist."""
    here = Origin("built-in", "file rules")
    taken = [each for each in found if not any(inside(each.path, tree) for tree in OWN_TREES)]
    covering = Covering([FileRule(each.effect, each.path, each.path, here) for each in taken])
    directories = {each.path: each.directory for each in taken}
    sources = {each.path: each.source for each in taken}
    access = {path: covering.access(path)[:2] for path in directories}
    ops: list[MountOp] = []
    roots: list[str] = []
    files: list[str] = []
    opened: list[str] = []
    root_hidden = "/" in access and not access["/"][0]
    open_root = "/" in access and access["/"][1]  # no guard holds the whole machine
    for path in sorted(directories, key=lambda path: (len(components(path)), path)):
        if path == "/":
            continue
        read, write = access[path]
        parent = path.rpartition("/")[0] or "/"
        parent_read, parent_write, _rule = covering.access(parent)
        carved = any(other != path and inside(other, path) and access[other][0] for other in directories)
        root = next((root for root in reversed(roots) if inside(path, root)), "/" if open_root else "")
        if root and not open_root and parent_read and (read or not carved):
            continue  # held by the guard of that tree
        if root:
            ops += _pins(root, path)
        if write and not parent_write:
            ops.append(Bind(sources[path], path, writable=True, own=True, make=True, origin="allow_write"))
            if directories[path]:
                roots.append(path)
            else:
                files.append(path)
        elif read and not parent_read:
            ops.append(Bind(sources[path], path, own=True, make=True, origin="allow_read"))
        elif not read and parent_read:
            if carved and directories[path]:
                ops.append(Tmpfs(path, 0o755, 0, sealed=True))
                if root:
                    opened.append(path)
            else:
                ops.append(Mask(path, directories[path], "deny_read"))
    return Layout(tuple(ops), tuple(roots), tuple(files), tuple(opened), root_hidden)


def _pins(root: str, path: str) -> list[MountOp]:
    """Pins over the directories between a writable root and a mount inside it, which could be renamed."""
    names = components(path)
    above = len(components(root))
    return [Pin("/" + "/".join(names[:count])) for count in range(above + 1, len(names))]


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run whose file rules would cover what the sandbox makes itself.

    Raises:
        PolicyError: with the rule.
    """
    if policy.mounts:
        raise PolicyError(
            "bind a rule",
            "mounts: with files the host's tree is in the view already",
            where=str(policy.mounts[0].origin),
            fix=("name the tree in files: allow_write",),
        )
    if policy.open_files:
        _refuse_beside_open_files(policy)
    roots = [each.path for each in facts.files if each.effect == "allow-write" and each.directory]
    hidden = next((rule for rule in policy.paths if rule.effect == "hide"), None)
    if hidden is not None and not any(inside(facts.workspace, root) for root in roots):
        raise PolicyError(
            "bind a rule",
            f"{hidden.text!r} hides names of the workspace, which files do not open for writing",
            where=str(hidden.origin),
            fix=("use files: deny_read instead, and presets: []",),
        )
    for rule in policy.file_rules or ():
        if rule.effect in ("allow-write", "allow-read") and not rule.glob and not policy.open_files:
            made = next((made for made in (MASK_SOURCE, *OWN_TREES[:2]) if inside(made, rule.path)), "")
            if made and rule.path != "/":
                raise PolicyError(
                    "bind a rule",
                    f"{rule.text!r} would cover {made}, which the sandbox makes itself",
                    where=str(rule.origin),
                    fix=("name the directories that are needed",),
                )
        if rule.effect == "allow-write" and inside(rule.path, facts.state):
            raise PolicyError(
                "bind a rule",
                f"{rule.text!r} is in membrane's own state {facts.state}",
                where=str(rule.origin),
            )
    for each in facts.files:
        whole = each.path == "/" and not policy.open_files
        if each.effect == "allow-write" and (whole or inside(each.path, facts.state)):
            raise PolicyError("bind a rule", f"{each.path} cannot be opened for writing", fix=("name a tree in it",))


def _refuse_beside_open_files(policy: Policy) -> None:
    """Nothing holds a pattern, or a name that is fixed, in the whole machine; only files that exist are hidden."""
    others = [
        rule for rule in policy.file_rules or () if rule.path != "/" and (rule.effect != "deny-read" or rule.glob)
    ]
    unbound = [(rule.text, rule.origin) for rule in others] + [(rule.text, rule.origin) for rule in policy.paths]
    for text, origin in unbound:
        raise PolicyError(
            "bind a rule",
            f"{text!r}: with files: unconfined no rule about files is held",
            where=str(origin),
            fix=("name the trees in files: allow_write instead, or write presets: []",),
        )


def guarded(policy: Policy, facts: HostFacts) -> list[tuple[str, tuple[PathRule, ...]]]:
    """The writable directories, each with the patterns that are held inside it."""
    made = layout(facts.files)
    rules = list(policy.file_rules or ())
    rules += [
        FileRule(each.effect, each.path, each.path, Origin("built-in", "file rules"))
        for each in facts.files
        if each.effect in ("deny-read", "deny-write")
    ]
    out: list[tuple[str, tuple[PathRule, ...]]] = []
    for root in made.roots:
        patterns: list[PathRule] = []
        for rule in rules:
            effect: PathEffect = "hide" if rule.effect == "deny-read" else "readonly"
            if rule.effect not in ("deny-read", "deny-write") or (
                effect == "hide" and not rule.glob and rule.path in made.opened
            ):
                continue
            left, covers = residues(rule, root)
            if covers and effect == "readonly":
                left = ["/*"]
            patterns += [PathRule(text, rule.origin, effect) for text in left]
        for rule in rules:
            if rule.effect == "allow-read" and patterns:
                patterns += [
                    PathRule("!" + text, rule.origin, "hide") for text in residues(rule, root)[0] if text != "/**"
                ]
        if inside(facts.state, root):
            name = facts.state[len(root.rstrip("/")) :]
            patterns.append(PathRule(name, Origin("built-in", "membrane's own state"), "hide"))
        if policy.open_git_config:
            patterns.append(git_config())
        out.append((root, tuple(dict.fromkeys(patterns))))
    if policy.paths and any(inside(facts.workspace, root) for root in made.roots):
        out.append((facts.workspace, policy.paths))
    return out


def git_config() -> PathRule:
    """What takes the ``config`` of each ``.git`` out of the protected names."""
    return PathRule(".git/config", Origin("built-in", "open_git_config"), "git-config")


def state_pins(facts: HostFacts, roots: tuple[str, ...]) -> list[MountOp]:
    """Pins over what is between a writable tree and our own state."""
    return [pin for root in roots if inside(facts.state, root) for pin in _pins(root, facts.state)]
