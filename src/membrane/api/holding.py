"""A sandbox whose processes are stopped while its caller looks at what they changed.

Theory of operation
-------------------
The supervisor holds the lock of the change set, and the overlay is mounted.  When the caller asks, everything in the
sandbox is stopped (``backend.Still``) and no command is given its job; then the caller gets the lock's descriptor and
works on the set as its holder.  ``Confirm`` says whether anything has run since: a copy of what is being written
is worth something only then.  With ``LetGo`` everything goes on.  When the caller ends, the sandbox does.

Nothing here waits: the loop of the supervisor goes on, with questions, limits and masks.
"""

from __future__ import annotations

import time

from ..errors import HostError, InternalError, MembraneError, PolicyError
from ..events import CheckpointRestored
from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..backend import Cell, Still
    from ..changes.marks import Marks
    from ..messages import Message
    from ..run.event_log import EventLog
    from ..run.prepare import PreparedRun

    class Sandbox(Protocol):
        """What is asked of a supervisor."""

        cell: Cell
        prepared: PreparedRun
        log: EventLog
        marks: Marks | None

        @property
        def making(self) -> int: ...

        def answer(self, message: Message) -> None: ...
        def go_on(self) -> None: ...


STEP = 0.002  # seconds between two looks at processes that are being stopped: the kernel reports that to parents only


class Holding:
    """Of one supervisor; true while everything is stopped, or is being stopped.

    Attributes:
        due: when ``step`` wants to be called, by time.monotonic; 0.0: there is no need.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._still: Still | None = None
        self._asked = 0  # the request that is not answered yet
        self.due = 0.0

    def __bool__(self) -> bool:
        return self._still is not None

    def obey(self, message: wire.Hold | wire.Confirm | wire.LetGo | wire.Restored) -> None:
        """Do what the caller asks."""
        try:
            if isinstance(message, wire.Restored):
                self._sandbox.log.add(CheckpointRestored(self._change_set(), message.checkpoint))
                self._sandbox.answer(wire.Done(message.number))
            elif isinstance(message, wire.Hold):
                self._hold(message.number)
            elif isinstance(message, wire.Confirm):
                self._held().confirm()
                self._sandbox.answer(wire.Done(message.number))
            else:
                self._let_go(message)
        except MembraneError as error:
            self._sandbox.answer(wire.NotDone(message.number, wire.error_as_data(error)))

    def step(self) -> None:
        """Go on stopping everything; the caller gets word when that is done, or fails."""
        assert self._still is not None and self._sandbox.prepared.changes is not None
        self.due = 0.0
        number = self._asked
        try:
            # A process that is being made would appear in the middle of the look.
            if self._sandbox.making or not self._still.step():
                self.due = time.monotonic() + STEP
                return
        except MembraneError as error:
            self._still, self._asked = None, 0
            self._sandbox.answer(wire.NotDone(number, wire.error_as_data(error)))
            self._sandbox.go_on()
            return
        self._asked = 0
        self._sandbox.answer(wire.Holding(number, self._sandbox.prepared.changes.fd))

    def end(self) -> None:
        """Let everything go on, in whatever state this is."""
        still, self._still, self._asked, self.due = self._still, None, 0, 0.0
        if still is not None:
            still.end()

    def _change_set(self) -> str:
        changes = self._sandbox.prepared.changes
        if changes is None:
            raise PolicyError("look at the changes", "the workspace is live", fix=("Sandbox(..., review=True)",))
        return changes.name

    def _hold(self, number: int) -> None:
        self._change_set()
        if self._still is not None:
            raise HostError("look at the changes", "somebody looks at them already")
        self._still, self._asked = self._sandbox.cell.stand_still(), number
        self.step()

    def _held(self) -> Still:
        if self._still is None or self._asked:
            raise InternalError("hold the processes of the sandbox", "they are not held")
        return self._still

    def _let_go(self, message: wire.LetGo) -> None:
        self._held()
        try:
            if self._sandbox.marks is not None:
                self._sandbox.marks.look()  # the record has a checkpoint before anything goes on
        finally:
            self.end()
        self._sandbox.answer(wire.Done(message.number))
        self._sandbox.go_on()
