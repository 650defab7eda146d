"""A policy as bytes, for the cache and for the network process (``value.Layout``)."""

from __future__ import annotations

from ..value import Layout
from .model import (
    DeviceRule,
    EnvRule,
    FileRule,
    HostRule,
    HttpRule,
    Limits,
    MaskRule,
    MountRule,
    Network,
    Origin,
    PathRule,
    Policy,
    PortRange,
    PortRule,
    RuleBudget,
    SecretRule,
    SigningRule,
    SocketRule,
    TraceRule,
)

_POLICY = Layout(
    "policy",
    Origin,
    PortRange,
    Network,
    HttpRule,
    RuleBudget,
    HostRule,
    PathRule,
    FileRule,
    MountRule,
    SocketRule,
    PortRule,
    EnvRule,
    DeviceRule,
    SecretRule,
    MaskRule,
    SigningRule,
    Limits,
    TraceRule,
    Policy,
)
LAYOUT = _POLICY.head


def dump(policy: Policy) -> bytes:
    """Return ``policy`` as bytes for ``restore``."""
    return _POLICY.dump(policy)


def restore(data: bytes) -> Policy:
    """Rebuild what ``dump`` wrote.

    Raises:
        ValueError: the bytes have another layout, or are no policy.
    """
    policy = _POLICY.restore(data)
    assert isinstance(policy, Policy)
    return policy
