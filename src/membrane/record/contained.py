"""Which container is a process in?  By the programs that engines run for one container each.

Theory of operation
-------------------
No cgroup names a container here (``host.containers``).  But an engine has a process for each: containerd's shim,
conmon, and the runtimes (runc, crun) that they call, all with the container's id among their arguments.  What such a
process starts, and what comes of that, is in the container; they themselves are the engine's.  The arguments are the
sandbox's word, as every other argument in the record: a command can call itself so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SHORT = 12  # digits of an id, as engines print it
_DIGITS = frozenset("0123456789abcdef")
_LONG = 64
_ENGINES = frozenset({"conmon", "crun", "runc"})


def is_id(text: str) -> bool:
    """Is this the id of a container (of Docker and of podman: 32 bytes in hexadecimal)?"""
    return len(text) == _LONG and _DIGITS.issuperset(text)


def served(arguments: Sequence[str]) -> str:
    """The short id of the container that a program with these arguments is the engine's process for; empty: of none."""
    name = arguments[0].rpartition("/")[2] if arguments else ""
    if name not in _ENGINES and not name.startswith("containerd-shim"):
        return ""
    return next((each[:SHORT] for each in arguments if is_id(each)), "")
