"""A policy as bytes, for the cache and for the gateway (``value.Layout``)."""

from __future__ import annotations

from ..value import Layout, Value
from . import model
from .model import Policy

_DEFINED = [
    kind
    for kind in vars(model).values()
    if isinstance(kind, type) and issubclass(kind, Value) and kind.__module__ == model.__name__
]
# The types of a policy stand in ``model`` before it, the questions and answers behind it.
KINDS = tuple(_DEFINED[: _DEFINED.index(Policy) + 1])
_POLICY = Layout("policy", *KINDS)
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
