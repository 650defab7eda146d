"""What this machine can do, what is missing, and the exact fix.

Theory of operation
-------------------
``host.probe.features`` tries each feature in a throw-away child and answers yes, no or unknown.  Here the answers
are grouped into one finding per capability of the product.  The native backend can run when every feature of its
group that has no substitute is ``yes``; unknown is never taken for yes, and a feature that is not known here has no
substitute.
"""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal

    from .plan.model import Support

    Row = tuple[str, str, Support]  # group, feature, answer
    State = Literal["ok", "partly", "missing"]

GROUPS = ("native", "tracing", "docker")


class Finding(Value):
    """One capability: ``ok``, ``partly`` (it works without some features) or ``missing``."""

    group: str
    state: State
    text: str
    fixes: tuple[str, ...]


# Features of the native backend that a run can do without, by the start of their name, and what it does instead.
SUBSTITUTES = {
    "TPROXY": "connections are redirected by DNAT or taken by address",
    "DNAT": "connections are taken by address",
    "nftables": "connections are taken by address",
    "overlayfs": "workspace: cow is refused",
    "Landlock": "the mount namespace is the only wall for files",
    "seccomp notif": "plain runs are recorded without files",
    "IPv6": "the sandbox has IPv4 only",
}


def _substitute(feature: str) -> str | None:
    for start, instead in SUBSTITUTES.items():
        if feature.lower().startswith(start.lower()):
            return instead
    return None


def findings(rows: Iterable[Row]) -> list[Finding]:
    """One finding per group, in the order of ``GROUPS``, then any other group.

    ``ok`` needs every feature; ``partly`` for the native backend needs every feature without a substitute, for any
    other capability at least one feature.
    """
    rows = list(rows)
    groups = [*GROUPS, *dict.fromkeys(group for group, _, _ in rows if group not in GROUPS)]
    return [_finding(group, [row for row in rows if row[0] == group]) for group in groups if _has(rows, group)]


def _has(rows: Sequence[Row], group: str) -> bool:
    return any(row[0] == group for row in rows)


def _finding(group: str, rows: Sequence[Row]) -> Finding:
    works = [name for _, name, support in rows if support.state == "yes"]
    lacks = [(name, support) for _, name, support in rows if support.state != "yes"]
    if not lacks:
        return Finding(group, "ok", ", ".join(works), ())
    usable = bool(works)
    if group == "native":
        usable = all(_substitute(name) is not None for name, _ in lacks)
    causes = [_cause(name, support) for name, support in lacks]
    if usable:
        causes += [instead for name, _ in lacks if group == "native" and (instead := _substitute(name))]
        causes += [f"works: {', '.join(works)}"] if works else []
    fixes = tuple(dict.fromkeys(support.fix for _, support in lacks if support.fix))
    return Finding(group, "partly" if usable else "missing", "; ".join(causes), fixes)


def _cause(name: str, support: Support) -> str:
    if support.state == "unknown":
        return f"{name}: could not be tried ({support.why or 'no cause given'})"
    return f"{name}: {support.why}" if support.why else name


def ready(rows: Iterable[Row]) -> bool:
    """Can the native backend run?  Needs an answer for it, and every feature without a substitute."""
    native = [row for row in rows if row[0] == "native"]
    return bool(native) and _finding("native", native).state != "missing"


def as_data(rows: Iterable[Row]) -> dict[str, Any]:
    """The JSON object of ``membrane doctor --json``."""
    rows = list(rows)
    return {
        "ready": ready(rows),
        "features": [
            {
                "feature": name,
                "group": group,
                "support": support.state,
                "why": support.why,
                "fix": support.fix,
            }
            for group, name, support in rows
        ],
    }
