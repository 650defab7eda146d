"""Questions of the network process, seen from the supervisor: one at a time, each answered exactly once.

Theory of operation
-------------------
The network process tells ``{"ask": {number, access, rule}}`` and holds the connection.  ``Questions`` puts one
question after another to ``begin``, which shows it and calls back whenever it likes.  An answer that comes after the
network process has withdrawn the question, a second answer, and an exception all count as "no": whoever answers can
be slow or broken, and nothing opens for that.
"""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    Answer: TypeAlias = Literal["once", "session", "no"]

SECONDS = 120.0  # until a question is answered with "no"
_MOST = 32  # questions in the queue


class Question(Value):
    """``access`` is the question as data (``events.access_as_data``); ``rule`` is the YAML that would allow it."""

    number: int
    access: dict[str, Any]
    rule: str


class Questions:
    """The queue.

    Args:
        begin: shows a question, and calls its second argument with the answer, at once or later.
        end: takes a question from view that is withdrawn.
        send: takes (number, answer) for the network process.
    """

    def __init__(
        self,
        begin: Callable[[Question, Callable[[Answer], None]], None],
        end: Callable[[], None],
        send: Callable[[int, Answer], None],
    ) -> None:
        self._begin, self._end, self._send = begin, end, send
        self._queue: list[Question] = []
        self.current: Question | None = None

    def take(self, record: dict[str, Any]) -> None:
        """A line of the network process."""
        if "withdrawn" in record:
            self._withdraw(int(record["withdrawn"]))
            return
        asked = record["ask"]
        question = Question(int(asked["number"]), dict(asked["access"]), str(asked["rule"]))
        if len(self._queue) >= _MOST:
            self._send(question.number, "no")
            return
        self._queue.append(question)
        self._next()

    def _withdraw(self, number: int) -> None:
        self._queue = [each for each in self._queue if each.number != number]
        if self.current is not None and self.current.number == number:
            self.current = None
            self._end()
            self._next()

    def _next(self) -> None:
        while self.current is None and self._queue:
            question = self.current = self._queue.pop(0)
            try:
                self._begin(question, lambda answer, asked=question: self._answered(asked, answer))  # type: ignore[misc]
            except Exception:
                self._answered(question, "no")

    def _answered(self, question: Question, answer: Answer) -> None:
        if self.current is not question:
            return  # withdrawn, or answered before
        self.current = None
        self._send(question.number, answer if answer in ("once", "session") else "no")
        self._next()
