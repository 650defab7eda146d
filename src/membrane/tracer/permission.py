"""Whether this caller may have the kernel's events, found out without loading what reads them.

Theory of operation
-------------------
The tracer of every run asks.  Most callers may not, and for them loading ``ebpf`` would be the longest step of the
tracer's start, on processors that the launcher needs (5 ms).
"""

from __future__ import annotations

import os

from ..host.facts import CAP_SYS_ADMIN, effective_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

GRANTED: Final = "/run/membrane-tracing"  # sets of plain users: UID/SET-NUMBER/
CAP_PERFMON, CAP_BPF = 38, 39  # <linux/capability.h>


def missing_capabilities() -> list[str]:
    """What this process lacks of CAP_BPF and CAP_PERFMON; CAP_SYS_ADMIN implies both (capabilities(7))."""
    held = effective_capabilities()
    if held >> CAP_SYS_ADMIN & 1:
        return []
    return [name for name, bit in (("CAP_PERFMON", CAP_PERFMON), ("CAP_BPF", CAP_BPF)) if not held >> bit & 1]


def why_not() -> str:
    """Why this caller may not trace by eBPF; empty when it may try."""
    missing = missing_capabilities()
    if missing and not os.path.isdir(f"{GRANTED}/{os.geteuid()}"):
        return f"eBPF tracing needs {' and '.join(missing)}, or root's permission (membrane setup tracing)"
    return ""
