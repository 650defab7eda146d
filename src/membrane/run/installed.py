"""What membrane itself is made of on this machine: the next run executes it outside, so no command may change it."""

from __future__ import annotations

import os
import sys

from ..errors import PolicyError
from ..plan.mounts import inside

VERSION = "0.1.0"
_SYSTEM = frozenset(("/", "/usr", "/usr/local", "/opt"))  # more than an interpreter


def trees() -> tuple[str, ...]:
    """This package, its environment, the interpreter's installation; resolved."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return tuple(sorted({os.path.realpath(path) for path in (package, sys.prefix, sys.base_prefix)}))


def running() -> tuple[str, ...]:
    """What of them runs: nothing that is merely installed beside it, such as the rest of /usr."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = [path for path in sys.path if path.rpartition("/")[2] in ("site-packages", "dist-packages")]
    found = {package, os.path.dirname(os.__file__), sys.executable, *places, *trees()}
    return tuple(sorted({os.path.realpath(path) for path in found if path.startswith("/")} - _SYSTEM))


def refuse(roots: list[str]) -> None:
    """Stop a run in which the command could write there.

    Raises:
        PolicyError: with the tree.
    """
    for path in trees():
        if any(inside(root, path) and path not in ("/usr", "/usr/local") for root in roots):
            raise PolicyError(
                "use the workspace",
                f"membrane itself is installed in {path}, which holds it: the command could change what confines it",
                fix=("install membrane elsewhere: pipx install membrane-sandbox", "run membrane in another directory"),
            )
