"""Messages between a program that uses the library and the supervisor of one of its sandboxes.

The caller is a program of the user, and so is what comes through the door (``wrap``).  What a message holds besides
numbers, texts and descriptors is JSON, which is safe to read from any sender; only ``Open`` and ``Update`` have a
policy in the form of ``policy.codec``, and only the caller that started the supervisor may send them.

A ``number`` is the caller's: of a command, or of a request that is answered with the same one.  The end of the
caller's side of the stream ends the sandbox, however the caller ends.
"""

from __future__ import annotations

from ..messages import Message, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..errors import MembraneError
    from ..messages import Fd, Fds, Json

LONGEST = 64 << 20  # bytes of a message


# ---------------------------------------------------------------- to the supervisor


class Open(Message):
    """Make the sandbox.

    ``ask``: seconds that a question waits; 0: there are none.  ``pid``: of the caller; ``program``: its name, for
    ``ps`` and the record.
    """

    policy: bytes
    workspace: str
    persistent: bool
    record: bool
    ask: float
    pid: int
    program: str


class Run(Message):
    """Run a command.

    ``cwd``: in the view, relative to the workspace.  ``environment``: further variables, name and value.
    ``streams``: stdin, stdout and stderr.
    """

    number: int
    argv: tuple[str, ...]
    cwd: str
    environment: Json
    umask: int
    streams: Fds


class Signal(Message):
    """Signal the process group of a command."""

    number: int
    signal: int


class Kill(Message):
    """Kill a command and what it started."""

    number: int


class Update(Message):
    """Decide by other network rules."""

    number: int
    policy: bytes


class Reply(Message):
    """The answer to ``Question``: a word of ``api.model.Answer``."""

    number: int
    answer: str


class Count(Message):
    """Ask for statistics."""

    number: int


class Listen(Message):
    """Listen for callers of ``wrap``."""

    number: int


class WantEvents(Message):
    """Send ``EventLines`` from now on."""


class Hold(Message):
    """Stop every process of the sandbox, and give the lock of its change set."""

    number: int


class Confirm(Message):
    """Has nothing run since ``Holding``?"""

    number: int


class LetGo(Message):
    """Let everything go on."""

    number: int


class Restored(Message):
    """Write down that the sandbox begins with what a checkpoint holds."""

    number: int
    checkpoint: str


# ---------------------------------------------------------------- from the supervisor


class Opened(Message):
    """The sandbox is made; ``id``: of the session."""

    id: str
    workspace: str
    source: str


class Started(Message):
    """A command runs; ``assurance``: rule and mechanism of each thing that was read back."""

    number: int
    pid: int
    assurance: Json


class CommandEnded(Message):
    """A command has ended, or was not started.

    ``status``: as wait(2) reports it.  ``duration``: seconds.  ``denied``, ``changes``: of which ``lost`` found no
    room.  ``failure``: an error (``error_of``), or None.
    """

    number: int
    status: int = 0
    duration: float = 0.0
    timed_out: bool = False
    lost: int = 0
    denied: Json = ()
    changes: Json = None
    failure: Json = None


class Updated(Message):
    """``Update`` is done."""

    number: int


class Counted(Message):
    """The fields of ``api.model.Stats``."""

    number: int
    stats: Json


class Listens(Message):
    """The socket for callers of ``wrap``."""

    number: int
    path: str


class Holding(Message):
    """Everything is stopped; ``lock``: that of the change set, whose holder goes on holding it."""

    number: int
    lock: Fd


class Done(Message):
    """``Confirm``: nothing has run; ``LetGo``: everything goes on; ``Restored``: it is written."""

    number: int


class NotDone(Message):
    """A request was refused; ``error`` for ``error_of``."""

    number: int
    error: Json


class EventLines(Message):
    """Events, each a line of JSON."""

    lines: tuple[str, ...]


class Question(Message):
    """May this be allowed?  ``asked``: as the gateway asks it, with the process of the cell that it is about."""

    number: int
    asked: Json


class Withdrawn(Message):
    """A question is not waited for any more."""

    number: int


class Failed(Message):
    """The sandbox cannot be made, or has failed; ``error`` for ``error_of``."""

    error: Json


class Closed(Message):
    """The last one; ``left``: what could not be removed."""

    left: tuple[str, ...]


TO_SUPERVISOR = Table(
    "from a program to its sandbox",
    *(Open, Run, Signal, Kill, Update, Reply, Count, Listen, WantEvents, Hold, Confirm, LetGo, Restored),
    longest=LONGEST,
)
FROM_SUPERVISOR = Table(
    "from a sandbox to its program",
    *(Opened, Started, CommandEnded, Updated, Counted, Listens, Holding, Done, NotDone),
    *(EventLines, Question, Withdrawn, Failed, Closed),
    longest=LONGEST,
)


def error_as_data(error: MembraneError) -> dict[str, Any]:
    """An error for the other side."""
    from .. import errors

    kinds = (errors.PolicyError, errors.HostError)
    return {
        "type": next((each.__name__ for each in kinds if isinstance(error, each)), type(error).__name__),
        "tried": error.tried,
        "cause": error.cause,
        "target": error.target,
        "fix": list(error.fix),
        "where": error.where,
    }


def error_of(data: dict[str, Any]) -> MembraneError:
    """The error that the other side sent."""
    from .. import errors

    kind = {each.__name__: each for each in (errors.PolicyError, errors.HostError)}
    made = kind.get(str(data.get("type")), errors.InternalError)
    return made(
        str(data["tried"]),
        str(data["cause"]),
        target=str(data["target"]),
        fix=tuple(str(each) for each in data["fix"]),
        where=str(data["where"]),
    )
