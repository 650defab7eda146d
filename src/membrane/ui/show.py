"""Records as text and as JSON for a person at a terminal or a script.

Theory of operation
-------------------
Every function takes values and returns lines; nothing is read or printed here.  Text that may come from a
repository or from inside a sandbox is escaped.  JSON is one object whose field names are stable.
"""

from __future__ import annotations

from .. import clock
from ..escaping import escape
from ..events import access_as_data, plain
from ..policy import reasons
from ..policy.keys import EFFECTS, FIELDS, items, ports_text, rule_text, show_limit
from ..policy.model import (
    Allow,
    Ask,
    Deny,
    EnvRule,
    HostRule,
    HttpRequest,
    NameQuery,
    PathAccess,
)
from ..record.summary import shorten, target_of, tilde

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..plan.model import SandboxPlan
    from ..policy.keys import Field
    from ..policy.model import Origin, Policy, Verdict
    from ..run.check import Answer
    from ..run.registry import SessionRecord
    from .doctor import Finding

# Said by the rule itself, so not repeated in a line of its own.
_PLAIN_REASONS = (reasons.HIDDEN, reasons.READ_ONLY, reasons.DENIED_BY_RULE)


def as_json(value: Any) -> str:
    """One JSON document, every string escaped as in events."""
    import json

    return json.dumps(plain(value), indent=2)


# ---------------------------------------------------------------- rules


def place(origin: Origin, home: str = "") -> str:
    """``~/.membrane/config.yaml:31``, ``built-in default:12``, ``command line``."""
    file = origin.file.removeprefix("preset ")
    line = f":{origin.line}" if origin.line else ""
    prefix = "built-in " if origin.level == "built-in" else ""
    return escape(f"{prefix}{tilde(file, home)}{line}")


# ---------------------------------------------------------------- check


def access_text(access: Any, home: str = "") -> str:
    """``POST https://h/p``, ``read .env``, ``connect h:443``, ``resolve h``."""
    target = shorten(target_of(access_as_data(access), home), 200)
    if isinstance(access, HttpRequest):
        return target
    if isinstance(access, PathAccess):
        return f"{access.operation} {target}"
    return f"{'resolve' if isinstance(access, NameQuery) else 'connect'} {target}"


def verdict_name(verdict: Verdict) -> str:
    return {Allow: "allow", Deny: "deny", Ask: "ask"}[type(verdict)]


def answer(found: Answer, home: str) -> list[str]:
    """The text of ``membrane check``."""
    verdict = found.verdict
    lines = [f"{verdict_name(verdict):<7} {access_text(found.access, home)}"]
    rule = getattr(verdict, "rule", None)
    if rule is not None:
        denies = "deny " if isinstance(verdict, Deny) and isinstance(rule, HostRule) else ""
        lines.append(f"  rule   {place(rule.origin, home)}  {denies}{rule_text(rule)}")
    if not isinstance(verdict, Allow):
        if rule is None or verdict.reason not in _PLAIN_REASONS:
            floor = verdict.reason.floor
            lines.append(f"  reason {verdict.reason}{f': {floor}' if floor else ''}")
        if verdict.hint and not verdict.reason.floor:
            lines.append(f"  add    {escape(verdict.hint)}")
    lines.append(f"  bound  by: {', '.join(found.bound_by)}")
    if found.write is not None:
        lines += answer(found.write, home)
    return lines


def answer_data(found: Answer) -> dict[str, Any]:
    """The JSON object of ``membrane check --json``; ``write`` is there only where it differs from reading."""
    verdict = found.verdict
    rule = getattr(verdict, "rule", None)
    data: dict[str, Any] = {
        "target": found.target,
        "access": access_as_data(found.access),
        "verdict": verdict_name(verdict),
        "rule": None
        if rule is None
        else {
            "text": rule_text(rule),
            "file": rule.origin.file,
            "line": rule.origin.line,
            "level": rule.origin.level,
        },
        "reason": verdict.reason,
        "hint": getattr(verdict, "hint", "") or None,
        "bound_by": list(found.bound_by),
    }
    if found.write is not None:
        data["write"] = answer_data(found.write)
    return data


# ---------------------------------------------------------------- plan


def _mount_line(op: Any) -> tuple[str, str, str]:
    kind = type(op).__name__
    if kind == "Bind":
        words = "read-write" if op.writable else "read-only"
        source = "" if op.source == op.target else f"from {escape(op.source)}"
        return words, escape(op.target), "  ".join(filter(None, (source, escape(op.origin))))
    if kind == "Overlay":
        changes = f"changes go to {escape(op.layer)}" if op.layer else "read-only"
        word = "read-only" if not op.layer else "layer" if op.origin in ("toolchain", "system") else "reviewed"
        return word, escape(op.target), f"{changes}  {escape(op.origin)}".rstrip()
    if kind == "Mask":
        return "hidden", escape(op.target), escape(op.origin) or ("reads as empty" if op.empty else "")
    if kind == "ReadOnly":
        return "read-only", escape(op.target), escape(op.origin)
    if kind == "Symlink":
        return "link", escape(op.target), f"to {escape(op.to)}"
    if kind == "Layer":
        return "beside", escape(op.target), f"{' '.join(op.names)} (for agents)"
    if kind == "Listen":
        return "socket", escape(op.target), f"carried to {escape(op.source)}  {escape(op.origin)}"
    if kind == "Pin":
        return "pinned", escape(op.target), "cannot be renamed or removed"
    made = {"Tmpfs": "private", "Proc": "private", "Devices": "private"}
    return made.get(kind, "made"), escape(op.target), ""


def table(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Left-aligned columns; a very long cell does not push the others away."""
    if not rows:
        return []
    widths = [min(max(len(row[column]) for row in rows), 60) for column in range(len(rows[0]))]
    return [
        indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def interception(rule: HostRule) -> str:
    """Why a host's TLS is read, or empty where bytes pass through."""
    if rule.http is not None:
        return "a rule names methods or paths"
    if rule.budget is not None and rule.budget.counts_requests:
        return "a budget counts requests"
    return "the rule asks for it" if rule.inspect else ""


def limits_data(plan: SandboxPlan) -> dict[str, int]:
    limits = plan.hardening.limits
    return {name: getattr(limits, name) for name in limits.field_names if getattr(limits, name)}


def plan_data(plan: SandboxPlan, policy: Policy, record: dict[str, Any], seccomp: int, home: str) -> dict[str, Any]:
    """The JSON object of ``membrane plan --json``; no value of an environment variable is in it.

    Args:
        record: how the run will be recorded, by name.
        seccomp: length of the filter in BPF instructions.
        home: the caller's home directory, shown as ``~``.
    """
    rules = [rule for rule in policy.allow if rule.kind in ("host", "wildcard", "any")]
    return {
        "policy": {"levels": list(policy.levels), "digest": policy.digest, "profiles": list(policy.profiles)},
        "files": {
            "workspace": plan.workspace,
            "cwd": plan.cwd,
            "mounts": [
                {
                    "kind": type(op).__name__,
                    **{name: getattr(op, name) for name in op.field_names if name not in ("content", "contents")},
                }
                for op in plan.mounts
            ],
            "patterns": [
                {"effect": EFFECTS[rule.effect], "pattern": rule.text, "rule": place(rule.origin, home)}
                for rule in policy.paths
            ],
        },
        "network": {
            "mode": plan.network.mode,
            "ipv6": plan.network.ipv6,
            "udp_ports": [53, *plan.network.udp_ports],
            "tcp_ports": list(plan.network.tcp_ports) if plan.network.mode == "anyip" else "all",
            "names": [
                {
                    "name": rule.text,
                    "ports": ports_text(rule.ports) or "any tcp",
                    "intercepted": interception(rule) or None,
                    "rule": place(rule.origin, home),
                }
                for rule in rules
            ],
            "networks": [
                {
                    "network": rule.text,
                    "ports": ports_text(rule.ports) or "any tcp",
                    "intercepted": interception(rule) or None,
                    "rule": place(rule.origin, home),
                }
                for rule in policy.allow
                if rule.kind == "network"
            ],
            "deny": [
                {"text": rule.text, "intercepted": interception(rule) or None, "rule": place(rule.origin, home)}
                for rule in policy.deny
            ],
            "secrets": [
                {"name": rule.name, "to": list(rule.to), "rule": place(rule.origin, home)} for rule in policy.secrets
            ],
            "trust": [*plan.trust, *plan.java_trust],
        },
        "process": {
            "uid": plan.ids[0],
            "gid": plan.ids[1],
            "base_kuid": plan.base_kuid,
            "seccomp_instructions": seccomp,
            "capabilities": f"{plan.hardening.capabilities:#x}",
            "landlock": plan.hardening.landlock,
            "landlock_writable": list(plan.hardening.landlock_writable),
            "limits": limits_data(plan),
            "environment": [name for name, _ in plan.environment],
        },
        "record": record,
        "bindings": [
            {
                "rule": binding.rule,
                "origin": binding.origin,
                "mechanisms": list(binding.mechanisms),
                "status": binding.status,
            }
            for binding in plan.bindings
        ],
    }


def plan(plan: SandboxPlan, policy: Policy, record: dict[str, Any], seccomp: int, home: str) -> list[str]:
    """The text of ``membrane plan``: everything that will be done, in order."""
    data = plan_data(plan, policy, record, seccomp, home)
    network, process = data["network"], data["process"]
    lines = ["policy"]
    lines += [f"  level     {escape(tilde(level, home))}" for level in policy.levels] or ["  level     none read"]
    lines += [f"  profile   {escape(name)}" for name in policy.profiles]
    lines += [f"  digest    {policy.digest}", "files", f"  workspace {escape(plan.workspace)}"]
    lines += table([_mount_line(op) for op in plan.mounts])
    if policy.paths:
        later = ", also for names that appear later" if policy.backend != "landlock" else ""
        lines.append(f"  patterns, in the workspace{later}:")
        lines += table(
            [(entry["effect"], escape(entry["pattern"]), entry["rule"]) for entry in data["files"]["patterns"]], "    "
        )
    lines.append("network")
    listeners = "every TCP port" if network["tcp_ports"] == "all" else f"TCP {_numbers(network['tcp_ports'])}"
    families = "IPv4 and IPv6" if network["ipv6"] else "IPv4"
    lines.append(f"  listeners {listeners}, UDP {_numbers(network['udp_ports'])} over {families} ({network['mode']})")
    rows = [
        (
            escape(entry["name"]),
            entry["ports"],
            f"intercepted: {entry['intercepted']}" if entry["intercepted"] else "passed through",
            entry["rule"],
        )
        for entry in network["names"]
    ]
    rows += [
        (
            escape(entry["network"]),
            entry["ports"],
            f"by address, intercepted: {entry['intercepted']}" if entry["intercepted"] else "by address",
            entry["rule"],
        )
        for entry in network["networks"]
    ]
    rows += [
        (
            escape(entry["text"]),
            "",
            f"denied, others intercepted: {entry['intercepted']}" if entry["intercepted"] else "denied",
            entry["rule"],
        )
        for entry in network["deny"]
    ]
    rows += [
        (
            escape(" ".join(entry["to"])),
            "",
            f"intercepted: the secret {escape(entry['name'])} goes there",
            entry["rule"],
        )
        for entry in network["secrets"]
    ]
    lines += table(rows) if rows else ["  nothing is reachable: no allow rule"]
    if plan.trust:
        whose = "the session's authority" if plan.inspect else "the authorities of extra_ca"
        lines.append(f"  trust     {whose} beside the system's, in {' '.join(map(escape, network['trust']))}")
    lines += ["process", f"  user      uid {plan.ids[0]} gid {plan.ids[1]} inside, {_identity(plan)}"]
    lines.append(f"  seccomp   {seccomp} instructions{', nested namespaces allowed' if plan.hardening.nested else ''}")
    if plan.hardening.capabilities:
        lines.append(
            "  root      over owners, modes and ids in the layer of the system trees and in scratch, nowhere else"
        )
    writable = " ".join(map(escape, process["landlock_writable"]))
    lines.append(f"  landlock  writable: {writable}" if process["landlock"] else "  landlock  off")
    limits = ", ".join(show_limit(limit) for limit in process["limits"].items())
    lines.append(f"  limits    {limits or 'none named by the policy'}")
    lines.append(f"  env       {' '.join(map(escape, process['environment']))}")
    lines.append("record")
    lines += [f"  {name:<9} {escape(tilde(str(value), home))}" for name, value in record.items() if value]
    lines.append("rules and what binds them")
    lines += table(
        [
            (
                escape(binding.rule),
                escape(tilde(binding.origin, home)),
                escape(", ".join(binding.mechanisms)) + (" (partial)" if binding.status == "partial" else ""),
            )
            for binding in plan.bindings
        ]
    ) or ["  no rules"]
    return lines


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _identity(plan: SandboxPlan) -> str:
    if plan.base_kuid:
        return f"kernel ids from {plan.base_kuid} (private range)"
    return "your own ids outside"


# ---------------------------------------------------------------- config


HOST_FIELDS = ("allow", "deny")  # of the policy: what ``membrane check --list`` prints


def policy_data(policy: Policy, fields: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON object of ``membrane config show --json``: the policy, field by field, without values of variables.

    Args:
        fields: only these; empty: all.
    """

    def data(value: Any) -> Any:
        if isinstance(value, tuple):
            return [data(item) for item in value]
        if isinstance(value, EnvRule):
            return {"name": value.name, "set": value.value is not None, "origin": data(value.origin)}
        if hasattr(value, "field_names"):
            return {name: data(getattr(value, name)) for name in value.field_names}
        return value

    return {name: data(getattr(policy, name)) for name in fields or policy.field_names}


def policy(policy: Policy, home: str) -> list[str]:
    """The text of ``membrane config show``: each rule in force and where it was written."""
    rows = _rules(policy, FIELDS, home)
    rows += [("level", escape(tilde(level, home)), "") for level in policy.levels]
    rows.append(("digest", policy.digest, ""))
    return table(rows, "")


def host_rules(policy: Policy, home: str) -> list[str]:
    """The text of ``membrane check --list``: the hosts of the policy, the built-in ones too, and their source."""
    return table(_rules(policy, [field for field in FIELDS if field.name in HOST_FIELDS], home), "")


def _rules(policy: Policy, fields: Iterable[Field], home: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for field in fields:
        for item in items(policy, field) if field.label else ():
            words = escape(tilde(item, home)) if isinstance(item, str) else field.shown(item)
            origin = getattr(item, "origin", None)
            rows.append((field.label, words, "" if origin is None else place(origin, home)))
    return rows


# ---------------------------------------------------------------- doctor, ps


def doctor(findings: Sequence[Finding]) -> list[str]:
    """The text of ``membrane doctor``."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.group:<11} {finding.state:<7} {escape(finding.text)}".rstrip())
        if finding.works:
            lines.append(f"              works: {escape(', '.join(finding.works))}")
        lines += [f"              fix: {escape(fix)}" for fix in finding.fixes]
    return lines


def age(seconds: float) -> str:
    """``42s``, ``7m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def sessions(records: Sequence[SessionRecord], now: float, home: str) -> list[str]:
    """The text of ``membrane ps``: the living sessions, newest last."""
    if not records:
        return ["no session is running"]
    rows: list[tuple[str, ...]] = [
        ("SESSION", "AGE", "WORKSPACE", "COMMAND", "TRACE", "REFUSED", "UP MB", "DOWN MB"),
    ]
    for record in records:
        rows.append(
            (
                escape(record.id),
                age(now - record.started),
                shorten(tilde(record.workspace, home), 40),
                shorten(" ".join(record.command), 40),
                escape(record.trace_source),
                str(record.refused),
                f"{record.bytes_up / 1e6:.1f}",
                f"{record.bytes_down / 1e6:.1f}",
            )
        )
    if any(record.ports for record in records):
        ports = ["PORTS", *(" ".join(map(escape, record.ports)) for record in records)]
        rows = [(*row, cell) for row, cell in zip(rows, ports, strict=True)]
    return table(rows, "")


def sessions_data(records: Sequence[SessionRecord]) -> dict[str, Any]:
    """The JSON object of ``membrane ps --json``."""
    return {
        "sessions": [
            {
                "id": record.id,
                "pid": record.pid,
                "started": clock.iso(clock.nanoseconds(record.started), 3),
                "workspace": record.workspace,
                "command": list(record.command),
                "trace_source": record.trace_source,
                "refused": record.refused,
                "bytes_up": record.bytes_up,
                "bytes_down": record.bytes_down,
                "ports": list(record.ports),
            }
            for record in records
        ]
    }
