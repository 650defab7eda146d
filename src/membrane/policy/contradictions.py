"""Two entries of which one takes back the other.

Theory of operation
-------------------
Of one file such a pair is a mistake, and ``load`` refuses it.  Of two files it is an answer of the later one, and of
the merged policy ``written`` leaves out the entry that has no effect.  Both ask here, so that what is written is what
can be read.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
