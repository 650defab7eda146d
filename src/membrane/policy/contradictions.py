"""Two entries of which one takes back the other.

Theory of operation
-------------------
Of one file such a pair is a mistake, and ``load`` refuses it.  Of two files it is an answer of the later one, and of
the merged policy ``written`` leaves out the entry that has no effect.  Both ask here, so that what is written is what
can be read.
"""

from __future__ import annotations

from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NoReturn

    from .document import Scalar
    from .model import HostRule, MountRule, PathRule


def named(rule: HostRule) -> tuple[object, ...]:
    """What a rule is about; rules that differ in it are about different hosts."""
    return rule.kind, rule.host, rule.network


def refused(rules: Iterable[HostRule]) -> dict[tuple[object, ...], HostRule]:
    """Those of the rules of ``deny`` that hold for whole ports, for ``takes_back``."""
    return {(*named(rule), rule.ports): rule for rule in rules if rule.http is None}


def takes_back(denied: Mapping[tuple[object, ...], HostRule], allow: HostRule) -> HostRule | None:
    """The rule of ``refused`` that leaves nothing of what ``allow`` admits: of every port, or of the same ones."""
    return denied.get((*named(allow), ())) or denied.get((*named(allow), allow.ports))


def hidden_anyway(paths: Iterable[PathRule]) -> dict[str, PathRule]:
    """Patterns that are hidden whatever else is said of them, by their text: to make them read-only says nothing.

    A pattern with ``!`` shows what others hide, and then it counts what is read-only.
    """
    hidden = [rule for rule in paths if rule.effect == "hide"]
    if any(rule.text.startswith("!") for rule in hidden):
        return {}
    return {rule.text: rule for rule in hidden}


def mounted_at(mount: MountRule) -> tuple[str, str, bool]:
    """What is mounted where; of two rules of one place the later one holds."""
    return mount.path, mount.target or mount.path, mount.git_root


def check(level: Mapping[str, Sequence[Any]], file: str) -> None:
    """Refuse two entries of one file of which one takes back the other.

    Args:
        level: the rules of the file's level, by field of ``Policy``.

    Raises:
        PolicyError: with the place.
    """

    def here(rules: Sequence[Any]) -> list[Any]:
        return [rule for rule in rules if rule.origin.file == file]

    def refuse(rule: Any, cause: str) -> NoReturn:
        raise PolicyError("read the policy", cause, where=f"{file}:{rule.origin.line}:1")

    allowed = {named(rule): rule for rule in here(level["allow"])}
    for rule in here(level["deny"]):
        other = allowed.get(named(rule))
        if other is not None and takes_back(refused([rule]), other):
            refuse(rule, f'deny "{rule.text}" takes back all of allow "{other.text}" in line {other.origin.line}')
    hidden = hidden_anyway(here(level["paths"]))
    for path in here(level["paths"]):
        if path.effect == "readonly" and path.text in hidden:
            refuse(path, f'the pattern "{path.text}" is readonly, and ignored in line {hidden[path.text].origin.line}')
    passed = {rule.name: rule.origin.line for rule in here(level["env"]) if rule.value is None}
    for env in here(level["env"]):
        if env.value is not None and env.name in passed:
            refuse(env, f"{env.name} is set, and passed in line {passed[env.name]}")
    check_mounts(level["mounts"], file)


def check_review(said: Mapping[str, Scalar]) -> None:
    """Refuse a file that says what is done with changes, and that there are none to be kept.

    Args:
        said: the choices of the file, by key.

    Raises:
        PolicyError: with the place.
    """
    workspace, apply = said.get("workspace"), said.get("apply")
    if workspace is not None and apply is not None and workspace.text == "live":
        apply.refuse(f"apply is about a reviewed workspace, and it is live in line {workspace.line}")


def check_mounts(mounts: Iterable[MountRule], file: str) -> None:
    """Refuse two mounts of one file, or of the command line, that differ in their mode only.

    Raises:
        PolicyError: with the place of the second.
    """
    seen: dict[tuple[str, str, bool], MountRule] = {}
    for mount in mounts:
        if mount.origin.file != file:
            continue
        first = seen.setdefault(mounted_at(mount), mount)
        if first.mode != mount.mode:
            what = mount.path or "git-root"
            before = f"{first.mode} in line {first.origin.line}" if first.origin.line else f"{first.mode} as well"
            where = f"{file}:{mount.origin.line}:1" if mount.origin.line else file
            raise PolicyError("read the policy", f'"{what}" is mounted {mount.mode}, and {before}', where=where)
