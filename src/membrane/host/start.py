"""What the supervisor has its processes know, as records, and the layouts in which those travel."""

from __future__ import annotations

from ..plan import model
from ..plan.model import HardeningPlan, HeldTree, NetworkPlan, SandboxPlan
from ..policy.model import Limits
from ..value import Layout, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..plan.model import MountOp


class Start(Value):
    """What every process of one launch knows.

    ``terminal``: for stdin, stdout and stderr, whether it becomes the sandbox's own terminal.
    ``notify``: whether the tracer asks for notification, of opens for reading as well with "reads".
    ``commands``: one, or any number in views and processes of their own (``fresh``) or shared (``kept``;
    ``host.spawner``).
    """

    plan: SandboxPlan
    argv: tuple[str, ...]
    terminal: tuple[bool, bool, bool]
    session: str
    umask: int
    notify: Literal["", "writes", "reads"] = ""
    commands: Literal["one", "fresh", "kept"] = "one"


class Late(Value):
    """What is known only when the view is being built already.

    ``ops``: over what the workspace's rules name; nothing in them is a link that was followed.
    ``trees``: of a backend that makes names itself.
    """

    ops: tuple[MountOp, ...]
    environment: tuple[tuple[str, str], ...] = ()
    trees: tuple[HeldTree, ...] = ()


class Job(Value):
    """What one of many commands runs: its arguments, all of its environment, the directory in the view, the umask."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    umask: int


_OPS = (
    model.Bind,
    model.Overlay,
    model.Tmpfs,
    model.Directory,
    model.File,
    model.Copy,
    model.Seed,
    model.Symlink,
    model.Layer,
    model.Listen,
    model.Proc,
    model.Devices,
    model.Mask,
    model.ReadOnly,
    model.Pin,
    model.Keep,
)
START = Layout("start", *_OPS, NetworkPlan, Limits, HardeningPlan, SandboxPlan, Start)
LATE = Layout("late", *_OPS, HeldTree, Late)
JOB = Layout("job", Job)


def operation(op: MountOp) -> tuple[str, str, bytes]:
    """What ``view.workspace_operation`` takes."""
    if isinstance(op, model.Mask):
        kind = "Empty" if op.empty else "Mask"
        if not op.link:
            kind += "File" if op.empty and not op.directory else "Name"
        return kind, op.target, b""
    if isinstance(op, model.Copy) and op.writable:
        return "OwnCopy", op.target, op.content
    return type(op).__name__, op.target, op.content if isinstance(op, (model.Copy, model.File, model.Seed)) else b""
