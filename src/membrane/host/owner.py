"""Which process of the sandbox holds the end of a connection: read from /proc, for a question that a person answers.

Theory of operation
-------------------
A TCP or UDP socket is found by its local port in the table of the sandbox's network namespace (proc(5),
/proc/PID/net), which names its inode; its holder is the process that has a descriptor of that inode.  A unix socket's
peer is known from the kernel (SO_PEERCRED).  Only processes of the sandbox's network namespace count.

What is not plain is not reported: two sockets with the port, two processes that hold it, a process that is gone or may
not be looked at give no answer.  It is for a person to read; nothing is decided by it: the command chooses its names.
"""

from __future__ import annotations

import os

from ..events import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_PROCESSES = 4096  # that are looked at
MOST_SOCKETS = 65536  # lines of a table
MOST_DESCRIPTORS = 65536  # of all of them; the command chooses how many there are, and the session waits meanwhile
_LISTEN = "0A"  # include/net/tcp_states.h


def of(client: Mapping[str, Any] | None, member: int) -> Process | None:
    """The process behind a question's ``client`` (``gateway.approvals``).

    Args:
        member: a process of the sandbox's network namespace, as this pid namespace numbers it.
    """
    if not client:
        return None
    try:
        namespace = os.stat(f"/proc/{member}/ns/net").st_ino
        if client.get("protocol") == "unix":
            return _describe(int(client.get("pid") or 0), namespace)
        inode = _inode(member, str(client.get("protocol")), int(client.get("port") or 0))
        holder = _holder(inode, namespace) if inode else 0
        return _describe(holder, namespace) if holder else None
    except (OSError, ValueError):
        return None


def _inode(member: int, protocol: str, port: int) -> int:
    """Of the one socket that has the local port and is not a listener; 0: there is none, or more than one."""
    found = set()
    for table in ("tcp", "tcp6") if protocol == "tcp" else ("udp", "udp6"):
        try:
            with open(f"/proc/{member}/net/{table}", encoding="ascii") as lines:
                next(lines, None)
                for number, line in enumerate(lines):
                    fields = line.split()
                    if number >= MOST_SOCKETS:
                        return 0
                    listens = protocol == "tcp" and fields[3] == _LISTEN
                    if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0" and not listens:
                        found.add(int(fields[9]))
        except FileNotFoundError:
            continue  # no IPv6
    return found.pop() if len(found) == 1 else 0


def _holder(inode: int, namespace: int) -> int:
    """The one process of the namespace that has a descriptor of the socket, or 0."""
    wanted = f"socket:[{inode}]"
    found = seen = looked = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}/ns/net").st_ino != namespace:
                continue
            seen += 1
            if seen > MOST_PROCESSES:
                return 0
            descriptors = os.listdir(f"/proc/{name}/fd")
            looked += len(descriptors)
            if looked > MOST_DESCRIPTORS:
                return 0
            if not any(_leads_to(f"/proc/{name}/fd/{fd}", wanted) for fd in descriptors):
                continue
        except OSError:
            continue  # gone, or not ours to look at
        if found:
            return 0
        found = int(name)
    return found


def _leads_to(link: str, wanted: str) -> bool:
    try:
        return os.readlink(link) == wanted
    except OSError:
        return False


def _describe(pid: int, namespace: int) -> Process | None:
    """Name and program of a process of the namespace."""
    if pid <= 0 or os.stat(f"/proc/{pid}/ns/net").st_ino != namespace:
        return None
    before = _stat(pid)
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        program = ""
    if _stat(pid) != before:
        return None  # another process has the number now
    return Process(pid, before[1], before[0], program)


def _stat(pid: int) -> tuple[str, int]:
    """Name and start time in clock ticks since boot (proc(5), /proc/PID/stat fields 2 and 22)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="surrogateescape") as file:
        text = file.read(4096)
    end = text.rindex(")")
    return text[text.index("(") + 1 : end], int(text[end + 2 :].split()[19])
