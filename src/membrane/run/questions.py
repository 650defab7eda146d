"""Questions of the gateway, seen from the session: each is answered exactly once.

Theory of operation
-------------------
The gateway sends ``Asked`` and holds the access (``gateway.approvals``).
``Questions`` hands one question after another, or ``at_once`` of them, to ``begin``, which calls back whenever it
likes.  An answer that comes after the gateway has withdrawn the question, a second answer, and an exception all
count as "no": the one that answers can be slow or broken, and nothing opens for that.
"""

from __future__ import annotations

from ..events import Process
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, TypeAlias

    from ..gateway.messages import Asked

    Answer: TypeAlias = Literal["once", "session", "no"]
    Kind: TypeAlias = Literal["name", "connection", "datagram", "request", "socket"]

SECONDS = 120.0  # until a question is answered with "no"
# A look-up is no question of its own on the terminal: what comes of it is (``gateway.approvals``).
KINDS: tuple[Kind, ...] = ("connection", "datagram", "request", "socket")
_MOST = 32  # questions in the queue


class Question(Value):
    """What a person is asked.  All text is from inside the sandbox: ``escape`` it before it is shown.

    ``host`` is a canonical name or a literal address, ``port`` 0..65535 (0 where there is none), ``path`` the canonical
    path of a request without its query, ``socket`` the host's path of a unix socket, ``operation`` what is asked of the
    service behind it and ``names`` of which key.  ``process``: who asks, or None where that is not known for certain.
    """

    number: int
    kind: Kind
    access: dict[str, Any]  # the same as data (``events.access_as_data``)
    rule: str  # the YAML that would allow it
    lasting: bool = True  # the rule can be an entry of a policy file
    seconds: float = SECONDS  # until it is answered with "no"
    process: Process | None = None
    host: str = ""
    port: int = 0
    protocol: str = ""  # tcp, udp
    scheme: str = ""
    method: str = ""
    path: str = ""
    socket: str = ""
    operation: str = ""
    names: tuple[str, ...] = ()


def read_question(asked: Mapping[str, Any], process: Process | None = None) -> Question:
    """The question that the fields of ``gateway.messages.Asked`` are.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    access = dict(asked["access"])
    kind = asked["kind"]
    socket = kind == "socket"
    return Question(
        int(asked["number"]),
        kind,
        access,
        str(asked["rule"]),
        bool(asked.get("lasting", True)),
        float(asked.get("seconds", SECONDS)),
        process,
        host=str(access.get("host") or access.get("address") or (access.get("name", "") if kind == "name" else "")),
        port=int(access.get("port", 0)),
        protocol=str(access.get("protocol", "tcp" if kind == "request" else "")),
        scheme=str(access.get("scheme", "")),
        method=str(access.get("method", "")),
        path="" if socket else str(access.get("path", "")),
        socket=str(access.get("path", "")) if socket else "",
        operation=str(access.get("operation", "")),
        names=tuple(str(name) for name in access.get("names", ())),
    )


class Questions:
    """The queue.

    Args:
        begin: shows a question, and calls its second argument with the answer, at once or later.
        end: takes a question from view that is withdrawn.
        send: takes (number, answer) for the gateway.
        who: the process behind the ``client`` of a question.
        at_once: how many questions ``begin`` may have at a time.
    """

    def __init__(
        self,
        begin: Callable[[Question, Callable[[Answer], None]], None],
        end: Callable[[Question], None],
        send: Callable[[int, Answer], None],
        who: Callable[[Mapping[str, Any] | None], Process | None] = lambda _client: None,
        at_once: int = 1,
    ) -> None:
        self._begin, self._end, self._send, self._who = begin, end, send, who
        self._at_once = at_once
        self._queue: list[Asked] = []
        self.current: dict[int, Question] = {}

    def take(self, asked: Asked) -> None:
        """A question of the gateway."""
        if len(self._queue) >= _MOST:
            self._send(asked.number, "no")
            return
        self._queue.append(asked)
        self._next()

    def withdraw(self, number: int) -> None:
        """The gateway does not wait for this answer any more."""
        self._queue = [each for each in self._queue if each.number != number]
        question = self.current.pop(number, None)
        if question is not None:
            self._end(question)
            self._next()

    def _next(self) -> None:
        while len(self.current) < self._at_once and self._queue:
            asked = self._queue.pop(0)
            # Not earlier: who holds the connection is who holds it when the question is read.
            question = read_question(vars(asked), self._who(asked.client))
            self.current[question.number] = question
            try:
                self._begin(question, lambda answer, asked=question: self._answered(asked, answer))  # type: ignore[misc]
            except Exception:
                self._answered(question, "no")

    def _answered(self, question: Question, answer: Answer) -> None:
        if self.current.get(question.number) is not question:
            return  # withdrawn, or answered before
        del self.current[question.number]
        self._send(question.number, answer if answer in ("once", "session") else "no")
        self._next()
