"""Whose fault it is, as a type.

Each error says what was tried, on what, why it failed and what to do next.  A refusal by the policy is not
an error: it is a ``Verdict`` and an ``AccessDenied`` event.  Only ``ui/cli.py`` turns an error into an exit
status (sysexits.h: 78 is EX_CONFIG; 125 is the "wrapper itself failed" status of env(1) and timeout(1)).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EX_CONFIG = 78
EX_WRAPPER = 125


class MembraneError(Exception):
    """Base of all errors.

    Args:
        tried: what was being done, as the rest of "cannot ...": ``"make a user namespace"``.
        cause: why it failed: an errno name, a kernel setting, a sentence.
        target: the object it was done to: a path, a host, a rule; empty if the verb names it.
        fix: lines of advice, each printed after ``try:``.
        where: ``file:line:column`` for an error in a file, else empty.
    """

    exit_code = EX_WRAPPER

    def __init__(self, tried: str, cause: str, *, target: str = "", fix: tuple[str, ...] = (), where: str = "") -> None:
        self.tried, self.cause, self.target, self.fix, self.where = tried, cause, target, fix, where
        super().__init__(self.headline())

    def __reduce__(self) -> tuple[Any, ...]:
        """Whole on its way through pickle and ``copy``: what an exception does by itself is a call with the headline.

        A pool of processes ends when an error that a worker sends back cannot be made there.
        """
        return _remade, (type(self), self.args), self.__dict__

    def headline(self) -> str:
        """One line without the advice."""
        target = f" {self.target}" if self.target else ""
        return f"cannot {self.tried}{target}: {self.cause}"

    def lines(self) -> list[str]:
        """The headline and the advice, one string per output line."""
        out = [self.headline()]
        for number, advice in enumerate(self.fix):
            out.append(f"  {'try: ' if number == 0 else 'or:  '}{advice}")
        return out


def _remade(kind: type[MembraneError], arguments: tuple[object, ...]) -> MembraneError:
    """An error whose attributes come next (``object.__reduce__``)."""
    return kind.__new__(kind, *arguments)


class PolicyError(MembraneError):
    """Your file or option is wrong; nothing was started."""

    exit_code = EX_CONFIG

    def headline(self) -> str:
        """``file:line:column: cause`` as compilers print it."""
        return f"{self.where}: {self.cause}" if self.where else self.cause


class HostError(MembraneError):
    """This machine refused or lacks something."""


class Conflict(MembraneError):
    """The workspace was changed meanwhile where a change was to be put in place; nothing of that file was touched.

    ``paths`` are the names, relative to the workspace, each with what is said of it.
    """

    paths: tuple[tuple[str, str], ...] = ()


class Poisoned(MembraneError):
    """What was to be put in place holds what outside programs would execute or obey; nothing was put in place.

    ``paths`` are the names, relative to the workspace, each with what is said against it.
    """

    paths: tuple[tuple[str, str], ...] = ()


class InternalError(MembraneError):
    """A defect in membrane."""
