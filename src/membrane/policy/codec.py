"""A policy as bytes, for the cache and for the network process.

Theory of operation
-------------------
``marshal`` of plain tuples behind a head that names the layout.  Origins and port lists repeat, so they are stored
once and referred to by number; records are rebuilt without running their constructors, which keeps ``restore`` of the
default policy far below a millisecond.  ``marshal`` trusts its input: only bytes that this user wrote in a private
file, or that came over a socket from the supervisor, may be given to ``restore``.

The layout number is bound to the field names of the records, so that a changed record can not be misread.
"""

from __future__ import annotations

import marshal

from .model import (
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..value import Value

# Order is the type number on the wire.
_TYPES: tuple[type[Value], ...] = (
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
    SecretRule,
    MaskRule,
    SigningRule,
    Limits,
    TraceRule,
    Policy,
)
_NUMBER = {kind: number for number, kind in enumerate(_TYPES)}
_FIELDS = [kind.field_names for kind in _TYPES]
LAYOUT = ("membrane policy 1", tuple(tuple(fields) for fields in _FIELDS))


def dump(policy: Policy) -> bytes:
    """Return ``policy`` as bytes for ``restore``."""
    records: list[tuple[Any, ...]] = []
    known: dict[Value, int] = {}

    def number(record: Value) -> int:
        if record not in known:
            kind = _NUMBER[type(record)]
            fields = tuple(plain(getattr(record, name)) for name in _FIELDS[kind])
            records.append((kind, fields))
            known[record] = len(records) - 1
        return known[record]

    def plain(value: Any) -> Any:
        """A record becomes ``(number,)`` in a list of its own; tuples of strings stay as they are."""
        if type(value) in _NUMBER:
            return [number(value)]
        if type(value) is tuple and value and type(value[0]) in _NUMBER:
            return [tuple(number(item) for item in value)]
        return value

    number(policy)
    return marshal.dumps((LAYOUT, records))


def restore(data: bytes) -> Policy:
    """Rebuild what ``dump`` wrote.

    Raises:
        ValueError: the bytes have another layout, or are no policy.
    """
    try:
        layout, records = marshal.loads(data)  # noqa: S302  (see the head: never foreign bytes)
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"not a stored policy: {error}") from None
    if layout != LAYOUT:
        raise ValueError("a stored policy of another version")
    built: list[Value] = []
    for kind, values in records:
        record = object.__new__(_TYPES[kind])
        fields = record.__dict__
        for name, value in zip(_FIELDS[kind], values, strict=True):
            if type(value) is list:
                reference = value[0]
                fields[name] = (
                    tuple([built[number] for number in reference]) if type(reference) is tuple else built[reference]
                )
            else:
                fields[name] = value
        built.append(record)
    policy = built[-1]
    if not isinstance(policy, Policy):
        raise ValueError("not a stored policy")
    return policy
