"""An exception of one connection ends that connection, and nothing else."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Concatenate, ParamSpec, TypeVar

    from .relay import Connection

    P = ParamSpec("P")
    C = TypeVar("C", bound=Connection)


def guarded(call: Callable[Concatenate[C, P], None]) -> Callable[Concatenate[C, P], None]:
    """Whatever goes wrong in ``call`` ends its connection, and nothing else."""

    def guard(self: C, /, *args: P.args, **named: P.kwargs) -> None:
        try:
            call(self, *args, **named)
        except Exception as error:
            self.failed(error)

    return guard
