"""Devices by name: which nodes each name stands for, and what shows them in the view.

Theory of operation
-------------------
The view's /dev has six nodes.  ``devices: [gpu]`` adds those of the kind that this machine has: each node by itself,
bound without ``nodev`` (the one kind of mount that is), with what sysfs says of a graphics card beside it, since Mesa
and ROCm find their device there.  A node that the caller may not open cannot be opened inside either.

A name of which the machine has no node stops the run: it was asked for, and nothing would bind it.
"""

from __future__ import annotations

from ..errors import PolicyError
from .model import Bind, Directory, Symlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import Policy
    from .model import HostFacts, MountOp

# By name, paths of nodes; the last component is a pattern of fnmatch(3).  Linux, Documentation/admin-guide/devices.txt;
# NVIDIA's open kernel modules, nvidia-modprobe-utils.h; /dev/dxg is the graphics card of WSL 2.
NODES = {
    "gpu": (
        "/dev/nvidia[0-9]*",
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-caps/nvidia-cap[0-9]*",
        "/dev/dri/card[0-9]*",
        "/dev/dri/renderD[0-9]*",
        "/dev/kfd",
        "/dev/dxg",
    ),
    "kvm": ("/dev/kvm",),
    "fuse": ("/dev/fuse",),
}
_FIX: dict[str, str] = {
    "gpu": "load the driver of the graphics card, or leave gpu out",
    "kvm": "switch virtualisation on in the firmware and load kvm_intel or kvm_amd, or leave kvm out",
    "fuse": "sudo modprobe fuse, or leave fuse out",
}
_CHAR = "/sys/dev/char"


def refuse(policy: Policy, facts: HostFacts) -> None:
    """Stop a run that names a device of which this machine has no node.

    Raises:
        PolicyError: with the paths that were looked at.
    """
    there = {device.name for device in facts.devices}
    for rule in policy.devices:
        if rule.name not in there:
            cause = f"devices: there is no {rule.name} here: none of {', '.join(NODES[rule.name])} exists"
            raise PolicyError("bind a rule", cause, where=str(rule.origin), fix=(_FIX[rule.name],))


def warnings(facts: HostFacts) -> list[str]:
    """What to say about nodes that the caller may not open."""
    return [
        f"devices: {device.path} is in the view, but this user may not open it; a group of its own often has the right"
        for device in facts.devices
        if not device.usable
    ]


def operations(policy: Policy, facts: HostFacts) -> list[MountOp]:
    """Binds of the nodes, and for a graphics card of its directories in sysfs, with the links that lead there."""
    origins: dict[str, str] = {rule.name: str(rule.origin) for rule in policy.devices}
    ops: dict[str, MountOp] = {}
    for device in facts.devices:
        origin = f"device {device.name}, {origins[device.name]}"
        ops[device.path] = Bind(device.path, device.path, writable=True, device=True, make=True, origin=origin)
        if device.sysfs and device.name == "gpu":
            card = _card(device.sysfs)
            ops.setdefault(card, Bind(card, card, optional=True, make=True, origin=origin))
            ops.setdefault(_CHAR, Directory(_CHAR))
            link = f"{_CHAR}/{device.number}"
            ops[link] = Symlink(link, device.sysfs)
    return list(ops.values())


def _card(sysfs: str) -> str:
    """The directory of the whole card: that of a DRM node is ``CARD/drm/NODE`` (drivers/gpu/drm/drm_sysfs.c)."""
    parent, _, _name = sysfs.rpartition("/")
    return parent.removesuffix("/drm") if parent.endswith("/drm") else sysfs
