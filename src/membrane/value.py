"""Frozen records for the start-up path.

Theory of operation
-------------------
Every type that crosses a module border is a frozen record.  ``dataclasses`` would be the plain way to
write them, but importing it loads ``inspect`` and costs 10-20 ms, which is half of a whole sandboxed run.
``Value`` gives the same declaration syntax (annotated fields, defaults, ``__post_init__``) by storing the
fields in the instance dictionary.  ``typing.dataclass_transform`` (PEP 681) tells type checkers that the
subclasses behave as frozen dataclasses, so constructor calls are checked in full.

Rules
-----
1. A field default is a class attribute; it must be immutable.
2. ``__post_init__`` may refuse the value by raising; it must not change it.
3. Equality and hashing are by exact type and fields, never by identity.

Records become bytes by a ``Layout``: ``marshal`` of plain tuples behind a head that names the layout.  Equal records
are stored once and referred to by number, and are rebuilt without running their constructors, which keeps the default
policy far below a millisecond.  ``marshal`` trusts its input: only bytes that this user wrote in a private file, or
that came over a socket from a process of ours, may be restored.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_options):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class Value:
    """Base of all frozen records.

    Raises:
        TypeError: a field is missing, unknown or given twice.
        AttributeError: a field is assigned or deleted after construction.
    """

    field_names: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        names = list(cls.field_names)
        # Not inspect.get_annotations: inspect is what this module exists to avoid.
        for name in cls.__dict__.get("__annotations__", ()):  # noqa: RUF063
            if name not in names:
                names.append(name)
        cls.field_names = tuple(names)
        cls._defaults = {name: getattr(cls, name) for name in names if hasattr(cls, name)}

    def __init__(self, *args: Any, **fields: Any) -> None:
        names = self.field_names
        own = self.__dict__
        if len(args) == len(names) and not fields:  # the common case by far, and made by the ten thousand
            own.update(zip(names, args, strict=False))
            self.__post_init__()
            return
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} fields, got {len(args)}")
        own.update(self._defaults)
        own.update(zip(names, args, strict=False))
        if fields:
            free = names[len(args) :]
            for name in fields:
                if name not in free:
                    raise TypeError(f"{type(self).__name__}: unexpected or repeated field {name!r}")
            own.update(fields)
        if len(own) < len(names):
            missing = next(name for name in names if name not in own)
            raise TypeError(f"{type(self).__name__}: field {missing!r} is missing")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Refuse an impossible value; overridden where a type has an invariant."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot assign {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: cannot delete {name!r}")

    def _key(self) -> tuple[Any, ...]:
        return tuple(map(self.__dict__.__getitem__, self.field_names))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __repr__(self) -> str:
        fields = self.__dict__
        return f"{type(self).__name__}({', '.join(f'{n}={fields[n]!r}' for n in self.field_names)})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the named fields changed; the invariants are checked again."""
        fields = dict(self.__dict__)
        for name in changes:
            if name not in fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
        fields.update(changes)
        return type(self)(**fields)


class Layout:
    """How records of certain types become bytes.

    The head of the bytes holds the names of all fields, so that a changed record cannot be misread.

    Args:
        name: what is stored.
        kinds: the types of the records, that of the whole last; their order is the number on the wire.
    """

    def __init__(self, name: str, *kinds: type[Value]) -> None:
        self._kinds = kinds
        self._number = {kind: number for number, kind in enumerate(kinds)}
        self.name = name
        self.head = (name, tuple(kind.field_names for kind in kinds))

    def dump(self, record: Value) -> bytes:
        """``record`` as bytes for ``restore``."""
        records: list[tuple[Any, ...]] = []
        known: dict[bytes, int] = {}  # by what a record becomes: hashing the record itself takes three times as long
        numbers = self._number

        def number(record: Value) -> int:
            fields = record.__dict__
            row = numbers[type(record)], tuple([plain(fields[name]) for name in record.field_names])
            at = known.setdefault(marshal.dumps(row, 2), len(records))
            if at == len(records):
                records.append(row)
            return at

        def plain(value: Any) -> Any:
            """A record becomes ``[number]``, and so does a tuple of them; tuples of strings stay as they are."""
            if type(value) in numbers:
                return [number(value)]
            if type(value) is tuple and value and type(value[0]) in numbers:
                return [tuple([number(item) for item in value])]
            return value

        number(record)
        return marshal.dumps((self.head, records))

    def restore(self, data: bytes | memoryview) -> Value:
        """Rebuild what ``dump`` wrote.

        Raises:
            ValueError: the bytes have another layout, or hold no such record.
        """
        try:
            head, records = marshal.loads(data)  # noqa: S302  (see the head: never foreign bytes)
        except (EOFError, TypeError, ValueError) as error:
            raise ValueError(f"not a stored {self.name}: {error}") from None
        if head != self.head:
            raise ValueError(f"a stored {self.name} of another version")
        kinds = self._kinds
        built: list[Value] = []
        for kind, values in records:
            record = object.__new__(kinds[kind])
            fields = record.__dict__
            for name, value in zip(record.field_names, values, strict=True):
                if type(value) is list:
                    reference = value[0]
                    fields[name] = (
                        tuple([built[number] for number in reference]) if type(reference) is tuple else built[reference]
                    )
                else:
                    fields[name] = value
            built.append(record)
        if not built or type(built[-1]) is not kinds[-1]:
            raise ValueError(f"not a stored {self.name}")
        return built[-1]
