"""A backend that makes nothing: ``membrane.run`` can be run from end to end without a namespace, a mount or a filter.

``FakeBackend`` is given a script, which is the command: it is called with the cell when the word is given, may say
news and write into the workspace, and returns.  What the run asked of the backend is in ``asked``, in order.
``session`` runs one in a child of the test, because a run takes the signals and the streams of its process.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from membrane.backend import (
    Backend,
    Broken,
    Cell,
    Command,
    Ended,
    Exited,
    Hidden,
    News,
    SharedCommand,
    TraceHandle,
)
from membrane.errors import HostError, PolicyError
from membrane.events import Binding, Process
from membrane.plan.build import build
from membrane.plan.model import HostFacts, Mask, SandboxPlan
from membrane.policy.model import Policy
from membrane.run.begin import begin
from membrane.run.prepare import RunOptions, RunRequest
from membrane.run.session import Session

if TYPE_CHECKING:
    from membrane.backend import Commands
    from membrane.plan.model import MountOp

Script = Callable[["FakeCell"], None]


class Line:
    """News that wait to be read, and a descriptor that says so."""

    def __init__(self) -> None:
        self._theirs, self._ours = socket.socketpair()
        self._news: list[News] = []

    def say(self, news: News) -> None:
        self._news.append(news)
        self._theirs.send(b"\0")

    def end(self) -> None:
        self._theirs.close()

    def fileno(self) -> int:
        return self._ours.fileno()

    def read(self) -> News:
        return self._news.pop(0) if self._ours.recv(1) else Ended()


class FakeCommand(Command):
    """The script; ``said``: what it and the test let it tell."""

    def __init__(self, cell: FakeCell) -> None:
        self._cell = cell
        self.said = Line()

    def exit(self, status: int) -> None:
        """It ends with an exit status, and with it what tells of it: a reader never waits for more."""
        self.said.say(Exited(status << 8))
        self.said.end()

    def fileno(self) -> int:
        return self.said.fileno()

    def read(self) -> News:
        return self.said.read()

    def release(self) -> None:
        self._cell.asked.append("release")
        self._cell.script(self._cell)

    def signal(self, number: int) -> bool:
        self._cell.asked.append(f"signal {number}")
        self.said.say(Exited(number))
        self.said.end()
        return True

    def resume(self) -> None:
        self._cell.asked.append("resume")


class FakeCell(Cell):
    """A sandbox of which there is only what it tells.

    Attributes:
        confined: whether ``ready`` finds that it is.
        hidden: the names that were asked to be hidden, once the view stood.
        on_hide: called after each of these.
    """

    traces = False

    def __init__(self, asked: list[str], script: Script, confined: bool, plan: SandboxPlan) -> None:
        self.asked, self.script, self.confined, self.plan = asked, script, confined, plan
        self.terminal, self.kept, self.reads = -1, {}, None
        self.said = Line()
        self.command: FakeCommand = FakeCommand(self)
        self.hidden: list[str] = []
        self.on_hide: Callable[[], None] = lambda: None
        self._hiding = 0

    def grant(self) -> None:
        self.asked.append("grant")

    def fill(self, ops: Sequence[MountOp], environment: Sequence[tuple[str, str]]) -> None:
        self.asked.append("fill " + " ".join(sorted(op.target for op in ops if isinstance(op, Mask))))

    def sockets(self) -> tuple[str, list[tuple[str, int]]]:
        self.asked.append("sockets")
        return "nothing", []

    def listeners(self, count: int) -> list[int]:
        assert count == 0
        return []

    def built(self) -> None:
        self.asked.append("built")

    def ready(self) -> tuple[Binding, ...]:
        self.asked.append("ready")
        if not self.confined:
            raise HostError("confirm the confinement", "it is not in force")
        return (Binding("everything", "read back", "bound", True),)

    def trace_handle(self) -> TraceHandle:
        raise AssertionError("it has none")

    def fork(self) -> SharedCommand:
        raise AssertionError("it has one command")

    def hide(self, ops: Sequence[MountOp]) -> None:
        self.hidden += [op.target for op in ops if isinstance(op, Mask)]
        self._hiding += 1
        self.said.say(Hidden())
        self.on_hide()

    @property
    def hiding(self) -> bool:
        return self._hiding > 0

    def freeze(self, directory: int, name: str) -> bool:
        raise AssertionError("nothing is kept")

    def descriptors(self) -> tuple[int, ...]:
        return (self.said.fileno(),)

    def read(self, descriptor: int) -> News:
        assert descriptor == self.said.fileno()
        news = self.said.read()
        self._hiding -= isinstance(news, Hidden)
        return news

    def owner(self, client: Mapping[str, Any] | None) -> Process | None:
        return None

    def kill(self) -> None:
        self.asked.append("kill")

    def reap(self) -> None:
        self.asked.append("reap")

    def breaks(self, why: str) -> None:
        """It cannot keep its promise any more."""
        self.said.say(Broken(why))


class FakeBackend(Backend):
    """A machine that is as the test says.

    Args:
        place: an empty directory for the workspace, the home and our state.
        script: the command.
        confined: whether the confinement can be confirmed.
        refuses: a cause for which no plan can be made.
    """

    def __init__(self, place: Path, script: Script, *, confined: bool = True, refuses: str = "") -> None:
        self.place, self.script, self.confined, self.refuses = place, script, confined, refuses
        self.asked: list[str] = []
        self.cell: FakeCell | None = None

    @property
    def workspace(self) -> Path:
        return self.place / "home" / "work"

    @property
    def state(self) -> str:
        return str(self.place / "state")

    def begin(self) -> None:
        self.asked.append("begin")

    def give_up(self) -> None:
        self.asked.append("give up")

    def facts(self, policy: Policy, workspace: str = "") -> HostFacts:
        self.asked.append("facts")
        self.workspace.mkdir(parents=True, exist_ok=True)
        home = str(self.place / "home")
        return HostFacts(
            os.geteuid() or 1000, 1000, "dev", False, home, self.state, str(self.workspace), "box", (("HOME", home),)
        )

    def plan(self, policy: Policy, facts: HostFacts) -> SandboxPlan:
        self.asked.append("plan")
        if self.refuses:
            raise PolicyError("bind the policy", self.refuses)
        return build(policy, facts)

    def start(
        self,
        plan: SandboxPlan,
        argv: tuple[str, ...],
        *,
        terminal: tuple[bool, bool, bool],
        session: str,
        umask: int,
        notify: Literal["", "writes", "reads"],
        commands: Commands,
    ) -> FakeCell:
        assert commands == "one"
        self.asked.append("start " + " ".join(argv))
        self.cell = FakeCell(self.asked, self.script, self.confined, plan)
        return self.cell


class Outcome(NamedTuple):
    """What a run was: its exit status, what it asked of the backend, what was hidden late, and what it said."""

    status: int | None  # None: it raised
    raised: str
    asked: list[str]
    hidden: list[str]
    said: str
    session: str


def session(backend: FakeBackend, policy: Policy, *command: str) -> Outcome:
    """Run ``command`` under ``policy``, in a child of this process."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(60)  # a run that waits for what never comes fails its test
                os.setsid()
                os.dup2(stderr.fileno(), 2)
                status, raised, name = None, "", ""
                try:
                    prepared = begin(lambda: RunRequest(command, policy, RunOptions()), backend=backend)
                    name = prepared.id
                    status = Session(prepared).run()
                except BaseException as error:
                    raised = f"{type(error).__name__}: {error}"
                hidden = backend.cell.hidden if backend.cell is not None else []
                with open(write, "wb") as pipe:
                    pipe.write(pickle.dumps((status, raised, backend.asked, hidden, name)))
            finally:
                os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            data = pipe.read()
        os.waitpid(pid, 0)
        stderr.seek(0)
        said = stderr.read().decode()
    assert data, said
    done, raised, asked, hidden, name = pickle.loads(data)
    return Outcome(done, raised, asked, hidden, said, name)


def in_a_child(body: Callable[[], object]) -> Any:
    """What ``body`` returns in a child of this process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            os.setsid()
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), 2)
            answer = pickle.dumps(body())
            with open(write, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "it has no answer"
    return pickle.loads(data)
