"""How every run begins: a backend first, the policy after it.

Theory of operation
-------------------
A backend begins what needs no policy at once, so that it goes on beside the reading of policy files
(``backend.Backend.begin``; natively it forks the launcher, which so never holds a policy or a secret).  Then what is to
be run is asked for, planned and started (``prepare``).  If any of it fails, what was begun is given up.  A policy that
names another backend gets that one, and what was begun of the default is given up; none is ever taken because another
one failed.  One that leaves it open (``backend: auto``) is asked about the machine first, and the run says what it got.

This module is loaded before the backend begins and imports nothing of a policy.
"""

from __future__ import annotations

from .. import backend as backends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backend import Backend, Commands
    from ..host.supervised_names import Judge
    from ..plan.model import HeldTree
    from .prepare import PreparedRun, RunRequest


def begin(
    request: Callable[[], RunRequest], commands: Commands = "one", *, backend: Backend | None = None
) -> PreparedRun:
    """Plan the sandbox for a request and begin to make it.

    Args:
        request: reads what is to be run; it is called once, when the backend has begun.
        commands: that one command, or any number in views of their own or shared.
        backend: None: the one for this machine.

    Raises:
        PolicyError: a rule cannot be bound.
        HostError: the machine refused a step.
        OSError: there is no memory, process or descriptor left for it.
    """
    with backend or backends.default() as begun:
        wanted = request()
        from .prepare import PreparedRun  # beside the launcher

        name, why = ("native", "") if backend is not None else backends.chosen(wanted.policy.backend)
        if backend is None and wanted.policy.backend != name:
            wanted = wanted.replace(policy=wanted.policy.replace(backend=name))
        if name == "native":
            return PreparedRun(begun, wanted, commands)
        begun.give_up()
    with backends.named(name, _judge) as other:
        prepared = PreparedRun(other, wanted, commands)
    if why:
        said = f"backend: auto took landlock, as the native one gets no namespaces here ({why}); see the receipt"
        prepared.warnings = (*prepared.warnings, said)
    return prepared


def _judge(trees: Sequence[HeldTree], session: str) -> Judge:
    import os

    from ..host.facts import state_dir
    from ..workspace.making import Making

    state = state_dir(os.environ)

    def shared(path: str) -> bool:
        from ..plan.mounts import inside
        from . import registry

        sessions = registry.list_sessions(state)
        return any(each.alive and each.id != session and inside(path, each.workspace) for each in sessions)

    return Making(trees, shared)
