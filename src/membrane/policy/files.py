"""File rules over absolute paths: what may be read, what may be written.

Theory of operation
-------------------
A policy with ``file_rules`` speaks of the whole host tree: reads are open unless denied, writes are closed unless
allowed.  A rule covers its path and everything below it.  ``access`` is the one answer: the deepest covering rule
decides about reading (at the same path ``allow-read`` beats ``deny-read``, which beats ``allow-write``); a path may be
written when an ``allow-write`` covers it, no ``deny-write`` does, and no deeper ``deny-read`` hides it.

The glob grammar is sandbox-runtime's: ``*`` and ``?`` within a name, ``**`` for whole directories, ``[set]`` without
negation, no escapes; a bracket that spells no set is text.  A trailing ``/**`` means the directory itself.  Globs are
translated to the patterns of ``globs`` (gitignore), so that the workspace guard can hold them while the command runs.
"""

from __future__ import annotations

from ..errors import PolicyError
from .globs import Pattern, compile_patterns, split_pattern
from .model import FileRule, Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .model import FileEffect, Origin, PathRule, Policy

GLOB_CHARACTERS = "*?["
_QUOTED = frozenset("\\*?[] !#")


def is_glob(path: str) -> bool:
    """Whether the text has a wildcard of the grammar."""
    return any(char in path for char in GLOB_CHARACTERS)


def trimmed(path: str) -> str:
    """``path`` without a trailing ``/**`` (the tree is meant) and without trailing slashes."""
    while True:
        bare = path.rstrip("/")
        if bare.endswith("/**"):
            path = bare[:-3]
            continue
        return bare or "/"


def quoted(name: str) -> str:
    """One path component as a pattern that matches it alone."""
    return "".join("\\" + char if char in _QUOTED else char for char in name)


def _set_end(text: str, at: int) -> int:
    """Index of the ``]`` that closes the set opened at ``at``; -1 where the bracket is text."""
    end = text.find("]", at + 1)
    body = text[at + 1 : end] if end > 0 else ""
    if not body:
        return -1
    backward = any(body[i + 1] == "-" and body[i + 2] < body[i] for i in range(len(body) - 2))
    return -1 if backward else end


def pattern_segment(segment: str) -> str:
    """One component of a glob as a component of a gitignore pattern.

    Raises:
        Malformed: ``**`` that is not a whole component, which no rule of the engine can hold.
    """
    if segment == "**":
        return segment
    out: list[str] = []
    index = 0
    while index < len(segment):
        char = segment[index]
        if segment.startswith("**", index):
            raise Malformed('"**" matches whole directories only: write "/**/"')
        if char in "*?":
            out.append(char)
        elif char == "[" and (end := _set_end(segment, index)) > 0:
            body = segment[index + 1 : end]
            out.append("[" + "".join("\\" + c if c in "\\[]!^" else c for c in body) + "]")
            index = end
        else:
            out.append("\\" + char if char in _QUOTED else char)
        index += 1
    return "".join(out)


def components(path: str) -> list[str]:
    """The names of an absolute path."""
    return [part for part in path.split("/") if part]


def pattern_components(rule: FileRule) -> list[str]:
    """The rule's path as components of a gitignore pattern.

    Raises:
        Malformed: see ``pattern_segment``.
    """
    parts = components(rule.path)
    if rule.glob:
        return [pattern_segment(part) for part in parts]
    return [quoted(part) for part in parts]


def residues(rule: FileRule, root: str) -> tuple[list[str], bool]:
    """What is left of a rule inside ``root``.

    Returns:
        Patterns anchored at ``root``, and whether the rule matches ``root`` itself or a directory above it.
    """
    parts = pattern_components(rule)
    states = _closure({0}, parts)
    covers = len(parts) in states
    for name in components(root):
        following: set[int] = set()
        for state in states:
            if state == len(parts):
                continue
            if parts[state] == "**":
                following.add(state)
            elif Pattern("/" + parts[state]).matches(name, name, True):
                following.add(state + 1)
        states = _closure(following, parts)
        covers = covers or len(parts) in states
    found = ["/" + "/".join(parts[state:]) for state in sorted(states) if state < len(parts)]
    return found, covers


def moved(rules: Sequence[PathRule], names: Sequence[str]) -> list[PathRule]:
    """Patterns of ``ignore`` and ``readonly`` that start from one directory, as they start from one further down.

    A rule about that further directory itself, or about one on the way to it, makes all in it read-only.

    Args:
        rules: in their order.
        names: of the directories on the way, the last one is the further one.

    Raises:
        PolicyError: the further directory is hidden.
    """
    out: list[PathRule] = []
    for rule in rules:
        out += [rule.replace(text=text) for text in _left_of(rule.text, names)]
    for effect in ("hide", "readonly"):
        of_effect = [rule for rule in rules if rule.effect == effect]
        covered = compile_patterns([rule.text for rule in of_effect])
        if not any(covered.match(name, "/".join(names[:count]), True) for count, name in enumerate(names, 1)):
            continue
        # The last one that matches may stand before one that shows it again; which of them does not matter.
        rule = next(rule for rule in of_effect if _covers(rule.text, names))
        if effect == "hide":
            cause = f"{rule.text!r} hides the directory that is to be the workspace"
            raise PolicyError("bind a rule", cause, where=str(rule.origin), fix=("membrane --no-project ...",))
        out = [other for other in out if other.effect != effect] + [rule.replace(text="/*")]
    return out


def _covers(text: str, names: Sequence[str]) -> bool:
    pattern = Pattern(text)
    on_the_way = (pattern.matches(name, "/".join(names[:count]), True) for count, name in enumerate(names, 1))
    return not pattern.negated and any(on_the_way)


def _left_of(text: str, names: Sequence[str]) -> list[str]:
    """What is left of one pattern (gitignore(5)) in the directory ``names``; none: it is about other places."""
    pattern = Pattern(text)
    if pattern.by_name:
        return [text]  # at any depth
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    body = text.removeprefix("!")
    parts = split_pattern(body.removesuffix("/").removeprefix("/"))
    states = _closure({0}, parts)
    for name in names:
        following = set()
        for state in states:
            if state < len(parts) and parts[state] == "**":
                following.add(state)
            elif state < len(parts) and Pattern("/" + parts[state]).matches(name, name, True):
                following.add(state + 1)
        states = _closure(following, parts)
    before, after = "!" * pattern.negated + "/", "/" * pattern.directories_only
    return [before + "/".join(parts[state:]) + after for state in sorted(states) if state < len(parts)]


def _closure(states: set[int], parts: Sequence[str]) -> set[int]:
    """``**`` matches no directory as well."""
    out = set(states)
    for state in sorted(states):
        while state < len(parts) and parts[state] == "**":
            state += 1
            out.add(state)
    return out


class Covering:
    """File rules, compiled for questions.

    Args:
        rules: absolute paths, without a trailing slash.
    """

    def __init__(self, rules: Iterable[FileRule]) -> None:
        self._rules = [
            (rule, Pattern("/" + "/".join(pattern_components(rule))) if rule.glob else None) for rule in rules
        ]

    def _depth(self, effect: str, parts: Sequence[str]) -> tuple[int, FileRule | None]:
        """How deep the deepest covering rule of an effect is; -1 without one."""
        best: tuple[int, FileRule | None] = (-1, None)
        for rule, pattern in self._rules:
            if rule.effect != effect:
                continue
            if pattern is None:
                own = components(rule.path)
                if len(own) > best[0] and list(parts[: len(own)]) == own:
                    best = (len(own), rule)
                continue
            for depth in range(len(parts), max(best[0], 0), -1):
                if pattern.matches(parts[depth - 1], "/".join(parts[:depth]), True):
                    best = (depth, rule)
                    break
        return best

    def access(self, path: str) -> tuple[bool, bool, FileRule | None]:
        """Whether an absolute path may be read and written, and the rule that decided."""
        parts = components(path)
        denied, hiding = self._depth("deny-read", parts)
        opened, opening = self._depth("allow-read", parts)
        writable, writing = self._depth("allow-write", parts)
        fixed, fixing = self._depth("deny-write", parts)
        read = denied < 0 or opened >= denied or writable > denied
        write = read and writable >= 0 and fixed < 0 and (denied < 0 or writable > denied)
        if not read:
            return False, False, hiding
        if fixed >= 0 and writable >= 0:
            return True, False, fixing
        return read, write, writing or opening


def place(effect: FileEffect, entry: Any, home: str, base: str, origin: Origin) -> FileRule:
    """One entry: a path, or ``{path, literal}``; ``~`` is ``home``, relative paths start from ``base``.

    Without a base a relative path stays relative, until ``anchored``.
    """
    text, literal = (entry["path"], bool(entry.get("literal"))) if isinstance(entry, dict) else (entry, False)
    path = text
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    elif not path.startswith("/") and base:
        path = f"{base}/{path}"
    path = trimmed(path) if not literal else path.rstrip("/") or "/"
    return FileRule(effect, _plain(path), text, origin, not literal and is_glob(path))


def _plain(path: str) -> str:
    """Without ``.``, ``..`` and doubled slashes; a relative path keeps what leads above its start."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif (part == ".." and not path.startswith("/")) or part not in ("", ".", ".."):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def file_rule(effect: FileEffect, entry: Any, home: str, base: str, origin: Origin) -> FileRule:
    """As ``place``.

    Raises:
        Malformed: a glob that no rule of the engine can hold.
    """
    rule = place(effect, entry, home, base, origin)
    pattern_components(rule)
    return rule


def every_file(origin: Origin) -> FileRule:
    """The rule of a policy with open files: everything may be read and written."""
    return FileRule("allow-write", "/", "every file", origin)


def anchored(policy: Policy, base: str) -> Policy:
    """The policy with its file rules made absolute: relative ones start from ``base``."""
    if policy.file_rules is None or policy.file_base:
        return policy
    rules = tuple(
        rule if rule.path.startswith("/") else rule.replace(path=_plain(f"{base}/{rule.path}"))
        for rule in policy.file_rules
    )
    return policy.replace(file_rules=rules, file_base=base)
