"""What a process of ours gives up before it reads hostile input.

Pid 1 of the sandbox, the gateway and the tracer stay alive beside the command.  None needs a new privilege or
to be looked into, and only the tracer of a root caller a capability; the gateway writes no file either.  It
keeps the caller's network and the right to read files (name service, certificates): that is what it is there for.
"""

from __future__ import annotations

from . import syscalls as sc


def give_up_privileges(keep: int = 0, *, bounding: bool = True) -> None:
    """No capability, no_new_privs for ever, not dumpable: /proc/PID/mem and ptrace(2) are closed to equals.

    ``keep``: a mask of capabilities that stay permitted and effective.  ``bounding``: as of ``drop_capabilities``.
    """
    sc.set_dumpable(False)
    sc.drop_capabilities(keep, bounding=bounding)
    sc.no_new_privs()


def read_only_files() -> None:
    """Landlock: files may be read, nothing may be written, and no process outside can be signalled."""
    from . import landlock

    landlock.restrict(("/",), ("/dev/null",), other_sockets=True)
