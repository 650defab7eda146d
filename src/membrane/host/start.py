"""What every process of one launch knows, and how it travels from the supervisor to the launcher."""

from __future__ import annotations

from ..plan import model
from ..plan.model import HardeningPlan, NetworkPlan, SandboxPlan
from ..policy.model import Limits
from ..value import Layout, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


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


_LAYOUT = Layout(
    "start",
    model.Bind,
    model.Overlay,
    model.Tmpfs,
    model.Directory,
    model.File,
    model.Copy,
    model.Seed,
    model.Symlink,
    model.Listen,
    model.Proc,
    model.Devices,
    model.Mask,
    model.ReadOnly,
    model.Pin,
    model.Keep,
    NetworkPlan,
    Limits,
    HardeningPlan,
    SandboxPlan,
    Start,
)


def dump(start: Start) -> bytes:
    """``start`` as bytes, without the bindings of its plan: nothing is made of them."""
    return _LAYOUT.dump(start.replace(plan=start.plan.replace(bindings=())))


def restore(data: bytes) -> Start:
    """What ``dump`` made."""
    start = _LAYOUT.restore(data)
    assert isinstance(start, Start)
    return start
