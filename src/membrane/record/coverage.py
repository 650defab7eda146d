"""Which refusals leave an event, by source of the record: the one table for receipt, summary, plan and documents.

Theory of operation
-------------------
A refusal happens whether or not it is seen.  Whether the record has an event of it depends on who watched:
``ebpf`` (the kernel's programs), ``notify`` (seccomp notifications; with ``reads`` where ``trace: {mode: full}`` asks
for opens for reading too) or ``network`` alone (no tracer).  ``REFUSALS`` says it for each kind; what is not in it is
not claimed.  Pure data, on the start-up path: plain tuples.
"""

from __future__ import annotations

DENIED = "AccessDenied"
ANY_OPEN = "FileOpened, with its errno"
FIRST_READS = "the first read of each of 32 hidden files that are empty"
READS_OUTSIDE = "reads of what is not in the view"
EITHER = "AccessDenied, or FileOpened with its errno"
CALL = "AccessDenied of the call"
SILENT = ""

# What is refused, what refuses it, and the event with eBPF, with notifications, with those and reads, and without a
# tracer.
REFUSALS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("names, connections, requests and sockets that no rule allows", "gateway", DENIED, DENIED, DENIED, DENIED),
    ("datagrams to a closed port, ICMP, broadcasts", "netfilter", DENIED, DENIED, DENIED, DENIED),
    ("protected and read-only names", "notifier, mounts", EITHER, DENIED, DENIED, SILENT),
    ("writes to what is not in the view", "mounts", EITHER, DENIED, DENIED, SILENT),
    ("raw sockets", "seccomp, capabilities", CALL, CALL, CALL, SILENT),
    ("unix sockets, where a policy with `files` opens none", "seccomp", CALL, CALL, CALL, SILENT),
    ("other socket families and system calls", "seccomp", CALL, SILENT, SILENT, SILENT),
    (FIRST_READS, "mounts", DENIED, DENIED, DENIED, DENIED),
    ("other reads of hidden files and directories", "mounts", ANY_OPEN, SILENT, DENIED, SILENT),
    (READS_OUTSIDE, "mounts", SILENT, SILENT, DENIED, SILENT),
    ("signals and tracing across the boundary", "namespaces, Landlock", SILENT, SILENT, SILENT, SILENT),
    ("limits: memory, processes, files, sizes", "rlimits", SILENT, SILENT, SILENT, SILENT),
    ("datagrams that find a full buffer", "kernel", SILENT, SILENT, SILENT, SILENT),
)
PACKETS = REFUSALS[1][0]
RULE = "refusals without an event"  # of the binding in ``SessionStarted``
COLUMNS = ("ebpf", "notify", "notify, reads", "network")


def columns(trace_source: str, reads: bool) -> tuple[int, ...]:
    """The columns of ``REFUSALS`` that hold for a session, by ``SessionStarted.trace_source``."""
    out: tuple[int, ...] = (2,) if "ebpf" in trace_source else ()
    if "notify" in trace_source:
        out += (4 if reads else 3,)
    return out or (5,)


def silent(trace_source: str, *, reads: bool = False, copies: bool = True) -> tuple[str, ...]:
    """The refusals that leave no event.

    Args:
        trace_source: of ``SessionStarted``.
        reads: opens for reading are reported as well.
        copies: the kernel copies refused packets to us.
    """
    seen = columns(trace_source, reads)
    return tuple(row[0] for row in REFUSALS if not any(row[at] for at in seen) or (row[0] == PACKETS and not copies))


def table() -> list[str]:
    """The table in Markdown, for the documents; a test compares."""
    out = ["| refused | by | " + " | ".join(f"`{name}`" for name in COLUMNS) + " |"]
    out.append("| --- " * (2 + len(COLUMNS)) + "|")
    out += ["| " + " | ".join(cell or "none" for cell in row) + " |" for row in REFUSALS]
    return out
