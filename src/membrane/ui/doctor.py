"""What this machine can do, what is missing, and the exact fix.

Theory of operation
-------------------
``host.probe.features`` tries each feature in a throw-away child and answers yes, no or unknown.  Here the answers
are grouped into one finding per capability of the product.  The native backend can run when every feature of its
group that has no substitute is ``yes``; unknown is never taken for yes, and a feature that is not known here has no
substitute.  Where the kernel is not Linux the only group is ``docker`` (``carry.features``).
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal

    from ..plan.model import Support

    Row = tuple[str, str, Support]  # group, feature, answer
    State = Literal["ok", "partly", "missing"]

GROUPS = ("native", "tracing")


class Finding(Value):
    """One capability: ``ok``, ``partly`` (it works without some features) or ``missing``."""

    group: str
    state: State
    text: str
    fixes: tuple[str, ...] = ()
    works: tuple[str, ...] = ()  # what is there although something is missing


# What a run does without a feature, by group and start of the feature's name.  A feature that is not here is needed.
SUBSTITUTES = {
    ("native", "TPROXY"): "connections are redirected by DNAT or taken by address",
    ("native", "DNAT"): "connections are redirected by TPROXY or taken by address",
    ("native", "nftables"): "connections are taken by address",
    ("native", "overlayfs"): "workspaces are live, and cannot be reviewed; no --image",
    ("native", "Landlock"): "the mount namespace is the only barrier for files",
    ("native", "seccomp notify"): "no record of files and processes without eBPF",
    ("native", "private kuid range"): "the command runs as uid 0 itself",
    ("native", "idmapped mounts"): "the command runs as uid 0 itself",
    ("native", "subordinate ids"): "no containers run inside",
    ("native", "cgroup v2 delegation"): "limits hold for each process, not for the whole sandbox",
}
# What takes the place of a whole group: another group's feature.
STANDS_IN = {"tracing": ("native", "seccomp notify")}


def substitute(group: str, feature: str, rows: Sequence[Row]) -> str | None:
    """What happens without the feature; ``None``: nothing does."""
    for (of, start), instead in SUBSTITUTES.items():
        if of == group and feature.startswith(start):
            return instead
    if group in STANDS_IN:
        for other, name, support in rows:
            if (other, name) == STANDS_IN[group] and support.state == "yes":
                return f"{name} works"
    return None


def findings(rows: Iterable[Row]) -> list[Finding]:
    """One finding per group, in the order of ``GROUPS``, then any other group.

    ``ok`` needs every feature; ``partly`` needs every feature without a substitute.
    """
    rows = list(rows)
    groups = dict.fromkeys([*GROUPS, *(group for group, _, _ in rows)])
    return [_finding(group, rows) for group in groups if any(row[0] == group for row in rows)]


# What can only be tried in a user namespace: without those, what is said of them would be wrong advice.
NAMESPACES = ("native", "user namespaces")
WITHIN = (
    "network namespaces",
    "TPROXY",
    "nftables",
    "DNAT",
    "AnyIP",
    "mount_setattr",
    "overlayfs",
    "private kuid range",
    "idmapped mounts",
    "cgroup v2",
    "no AppArmor",
)


def _finding(group: str, rows: Sequence[Row]) -> Finding:
    works = tuple(name for of, name, support in rows if of == group and support.state == "yes")
    lacks = [(name, support) for of, name, support in rows if of == group and support.state != "yes"]
    if any((of, name) == NAMESPACES and support.state == "no" for of, name, support in rows) and group == NAMESPACES[0]:
        lacks = [(name, support) for name, support in lacks if not name.startswith(WITHIN)]
    if not lacks:
        return Finding(group, "ok", ", ".join(works))
    instead = [substitute(group, name, rows) for name, _ in lacks]
    causes = [_cause(name, support) for name, support in lacks]
    fixes = tuple(dict.fromkeys(support.fix for _, support in lacks if support.fix))
    state: State = "missing" if None in instead else "partly"
    text = "; ".join([*causes, *dict.fromkeys(filter(None, instead))])
    return Finding(group, state, text, fixes, works)


def _cause(name: str, support: Support) -> str:
    if support.state == "unknown":
        return f"{name}: could not be tried ({support.why or 'no cause given'})"
    return f"{name}: {support.why}" if support.why else name


SETUP = "sudo membrane setup tracing"  # for members of the group membrane; ui.setup says how to become one
_AGAIN = "pip install --force-reinstall --no-binary membrane-sandbox membrane-sandbox"
BUILD = f"install clang and build membrane again: {_AGAIN}"
_BPF_PARTS = (
    "eBPF programs",
    "ring buffer",
)  # what a caller can do to whom root gave tracing, without the right to load


def with_sources(rows: Iterable[Row], why: str, *, permitted: bool, built: bool) -> list[Row]:
    """``rows`` with the sources of the record, as a run of this caller would have them, in the group ``tracing``.

    Args:
        rows: what the machine can do.
        why: as ``tracer.ebpf.best_source`` gives it: why there is no eBPF; empty when there is.
        permitted: this caller may load programs, or root gave him some.
        built: this installation has the programs.
    """
    from ..plan.model import Support

    rows = list(rows)
    notify = [support for group, name, support in rows if (group, name) == STANDS_IN["tracing"]]
    kernel = (
        Support("no", why.removeprefix("eBPF tracing "), BUILD if not built else "" if permitted else SETUP)
        if why
        else Support("yes")
    )
    kept = [row for row in rows if row[0] != "tracing" or not row[1].startswith(_BPF_PARTS) or (why and permitted)]
    at = next((index for index, row in enumerate(kept) if row[0] == "tracing"), len(kept))
    sources: list[Row] = [("tracing", "eBPF", kernel)]
    sources += [("tracing", "seccomp notification", support) for support in notify if support.state == "yes"]
    return kept[:at] + sources + kept[at:]


def ready(rows: Iterable[Row]) -> bool:
    """Can a backend run?  Needs an answer for the one of this system, and every feature without a substitute."""
    return any(finding.group in ("native", "docker") and finding.state != "missing" for finding in findings(rows))


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
