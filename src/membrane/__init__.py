"""A selectively permeable boundary for AI agents and any other command.

``from membrane import Sandbox, Policy``: the library (``docs/library.md``).  Nothing of it is loaded before it is used:
the command line needs none of it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .api.changesets import ChangeSet, Hunk, Report, ReviewedChange
    from .api.model import Allow, AllowOnce, AllowSession, Answer, Change, Denied, Deny, Event, Result, Stats
    from .api.policy import Decision, Policy
    from .api.sandbox import AsyncProcess, AsyncSandbox
    from .api.streams import DEVNULL, PIPE
    from .api.sync import Process, Sandbox
    from .errors import Conflict, HostError, InternalError, MembraneError, Poisoned, PolicyError
    from .run.questions import Question

__all__ = [
    "DEVNULL",
    "PIPE",
    "Allow",
    "AllowOnce",
    "AllowSession",
    "Answer",
    "AsyncProcess",
    "AsyncSandbox",
    "Change",
    "ChangeSet",
    "Conflict",
    "Decision",
    "Denied",
    "Deny",
    "Event",
    "HostError",
    "Hunk",
    "InternalError",
    "MembraneError",
    "Poisoned",
    "Policy",
    "PolicyError",
    "Process",
    "Question",
    "Report",
    "Result",
    "ReviewedChange",
    "Sandbox",
    "Stats",
]

_PLACES = {
    "errors": ("Conflict", "HostError", "InternalError", "MembraneError", "Poisoned", "PolicyError"),
    "api.changesets": ("ChangeSet", "Hunk", "Report", "ReviewedChange"),
    "run.questions": ("Question",),
    "api.policy": ("Decision", "Policy"),
    "api.sandbox": ("AsyncProcess", "AsyncSandbox"),
    "api.streams": ("DEVNULL", "PIPE"),
    "api.sync": ("Process", "Sandbox"),
    "api.model": (
        *("Allow", "AllowOnce", "AllowSession", "Answer", "Change", "Denied", "Deny", "Event", "Result"),
        "Stats",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            import importlib

            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
