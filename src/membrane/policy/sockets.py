"""Services behind unix sockets whose messages are judged: one row for each value of ``as``.

Theory of operation
-------------------
A row says what a rule's ``allow`` may hold and which operations it admits.  Its protocol is in one file,
``gateway/adapters/NAME.py`` (``-`` written as ``_``), whose ``protocol`` makes what reads the messages.  There is
nothing else to add for another service: the parser offers the names below, the plan runs ``check``, the decision asks
``admits``, the gateway imports the file.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from .model import SocketRule

    Flaw: TypeAlias = tuple[str, str]  # what is wrong, and what to do


class Service(Value):
    """One row.

    Attributes:
        name: of ``as``.
        check: what is wrong with ``allow``; ``None``: nothing.
        admits: may the operation be asked of the service, under ``allow``, by any of the names of what it uses?
        is_listed: would the operation itself, as a line of ``allow``, admit it?
    """

    name: str
    check: Callable[[Sequence[str]], Flaw | None]
    admits: Callable[[Sequence[str], str, Sequence[str]], bool]
    is_listed: Callable[[str], bool]


def _check_nothing(allow: Sequence[str]) -> Flaw | None:
    return None


def _lists_nothing(operation: str) -> bool:
    return False


def _ssh_admits(allow: Sequence[str], operation: str, names: Sequence[str]) -> bool:
    """Without ``allow``: with every key."""
    if operation == "list":
        return True
    return operation in ("sign", "offer") and (not allow or any(name in allow for name in names))


def _gpg_check(allow: Sequence[str]) -> Flaw | None:
    for text in allow:
        grip = text.removeprefix("decrypt ").removeprefix("sign ")
        if text not in ("sign", "decrypt") and not (len(grip) == 40 and not grip.strip("0123456789ABCDEF")):
            return f"{text!r} is neither sign nor decrypt nor a keygrip", "gpg --list-secret-keys --with-keygrip"
    return None


def _gpg_admits(allow: Sequence[str], operation: str, names: Sequence[str]) -> bool:
    if not allow:
        return operation == "sign"
    named = [operation, *(f"{operation} {name}" for name in names), *(names if operation == "sign" else ())]
    return operation in ("sign", "decrypt") and any(each in allow for each in named)


def _docker_check(allow: Sequence[str]) -> Flaw | None:
    from .model import Malformed
    from .url_paths import canonical_path_pattern  # a start without such a service does without it

    for text in allow:
        method, _, path = text.partition(" ")
        try:
            if not method.isupper() or not method.isalpha() or canonical_path_pattern(path) != path:
                raise Malformed("it is not METHOD /PATH")
        except Malformed as error:
            cause = f"{text!r} is not an operation of the Docker API: {error}"
            return cause, "allow: [GET /containers/json, POST /containers/create]"
    if not allow:
        return "as: docker opens nothing without allow", "allow: [GET /containers/json]"
    return None


def _docker_admits(allow: Sequence[str], operation: str, names: Sequence[str]) -> bool:
    method, _, path = operation.partition(" ")
    if " " in path:
        return False  # something that no rule opens
    if operation in ("GET /_ping", "HEAD /_ping", "GET /version"):
        return True
    from .url_paths import path_matcher

    return any(
        method == allowed.partition(" ")[0] and path_matcher(allowed.partition(" ")[2])(path) for allowed in allow
    )


def _docker_lists(operation: str) -> bool:
    return operation.count(" ") == 1


SERVICES: dict[str, Service] = {
    row.name: row
    for row in (
        Service("ssh-agent", _check_nothing, _ssh_admits, _lists_nothing),
        Service("gpg-agent", _gpg_check, _gpg_admits, _lists_nothing),
        Service("docker", _docker_check, _docker_admits, _docker_lists),
    )
}


def admits_operation(rule: SocketRule, operation: str, names: Sequence[str]) -> bool:
    """May ``operation`` be asked of the service behind the rule's socket?  Never where no row reads its messages."""
    row = SERVICES.get(rule.adapter)
    return row is not None and row.admits(rule.allow, operation, names)


def line_for(rule: SocketRule, operation: str, names: Sequence[str]) -> str:
    """The line of ``allow`` that would admit the operation; empty: there is none."""
    if operation == "sign":
        return names[0]
    row = SERVICES.get(rule.adapter)
    return operation if row is not None and row.is_listed(operation) else ""
