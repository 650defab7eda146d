"""Adds one ``allow`` entry to a policy file that people write: by text, so that comments and layout stay.

Theory of operation
-------------------
The entry goes into the existing top-level ``allow`` list, or a new one is put at the end.  The result is read again by
the ordinary reader, and is written only when it differs from what the file said by exactly the new rule; a layout
that the text edit does not understand is refused, never guessed.  The file is replaced atomically.
"""

from __future__ import annotations

import os

from ..errors import HostError, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..policy.model import HostRule, Policy


def with_entry(source: str, entry: str) -> str:
    """The text with ``entry``, a YAML value on one line, in its ``allow`` list."""
    lines = source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not line.startswith("allow:"):
            continue
        value = line[len("allow:") :].split(" #")[0].strip()
        if value.startswith("[") and value.endswith("]"):
            cut = line.index("]", len("allow:"))
            comma = ", " if value[1:-1].strip() else ""
            lines[number] = f"{line[:cut]}{comma}{entry}{line[cut:]}"
            return "".join(lines)
        if value:
            break
        following = next(
            (each for each in lines[number + 1 :] if each.strip() and not each.strip().startswith("#")), ""
        )
        indent = following[: len(following) - len(following.lstrip())] if following.lstrip().startswith("- ") else "  "
        lines[number] = line if line.endswith("\n") else line + "\n"
        lines.insert(number + 1, f"{indent}- {entry}\n")
        return "".join(lines)
    else:
        end = "" if not source or source.endswith("\n") else "\n"
        return f"{source}{end}allow:\n  - {entry}\n"
    raise PolicyError("add a rule", "the allow list of the file is written in a way that is not edited automatically")


def add(path: str, rule: str, read: Callable[[str], Policy]) -> None:
    """Add the entry to the file.

    Args:
        rule: the line that a refusal hints at: ``allow: [ENTRY]``.
        read: reads the text of a policy file into a policy of its own.

    Raises:
        PolicyError: the file cannot be understood, or the edit would change anything else.
        HostError: it cannot be written.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            before = file.read()
            mode = os.fstat(file.fileno()).st_mode & 0o777
    except FileNotFoundError:
        before, mode = "", 0o600
    except OSError as error:
        raise HostError("add a rule", error.strerror or "", target=path) from None
    if not rule.startswith("allow: [") or not rule.endswith("]") or "\n" in rule:
        raise PolicyError("add a rule", "it is not an entry of an allow list", where=path)
    after = with_entry(before, rule[len("allow: [") : -1])
    old, new = read(before), read(after)
    if _more(old, new) != _more(read(""), read(rule)) or _more(new, old) or _rest(old) != _rest(new):
        raise PolicyError("add a rule", "the file is laid out in a way that is not edited automatically", where=path)
    temporary = f"{path}.{os.urandom(6).hex()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            os.write(fd, after.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        raise HostError("add a rule", error.strerror or "", target=path) from None


def _more(old: Policy, new: Policy) -> list[str]:
    """The allow rules of ``new`` that ``old`` has not, without the places where they were written."""
    rules = [_said(rule) for rule in new.allow]
    for rule in old.allow:
        if _said(rule) in rules:
            rules.remove(_said(rule))
    return rules


def _said(rule: HostRule) -> str:
    return repr([getattr(rule, field) for field in rule.field_names if field != "origin"])


def _rest(policy: Policy) -> object:
    """Everything but the allow rules, without the places where it was written."""
    return [
        [tuple(getattr(rule, field) for field in rule.field_names if field != "origin") for rule in value]
        if isinstance(value, tuple) and value and hasattr(value[0], "origin")
        else value
        for name in policy.field_names
        if name not in ("allow", "digest", "levels")
        for value in (getattr(policy, name),)
    ]
