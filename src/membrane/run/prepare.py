"""The first part of every run: the plan, and the cell that begins to be made of it.

Theory of operation
-------------------
Making namespaces and a view takes about as long as loading the rest of the program.  So the launcher was forked before
anything else was loaded (``begin``), and this module imports only what the plan needs; ``session`` or
``api.supervisor`` are loaded while it is carried out and go on with a ``PreparedRun``.  The launcher inherits no
record, no tracer and no secret that is read from elsewhere; the variables of the caller, which it erases, are all that
it has seen.
"""

from __future__ import annotations

import os

from .. import backend as backends
from ..errors import PolicyError
from ..escaping import visible
from ..host.facts import state_dir
from ..plan import mounts
from ..value import Value
from . import homes, layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ..backend import Backend, Commands
    from ..changes.store import Held
    from ..plan.model import HostFacts, MountOp, SandboxPlan
    from ..policy.model import Policy
    from .images import Kept, Use


class RunOptions(Value):
    """How a run is reported."""

    events: str = ""  # path of a JSON lines file; "fd:N": a descriptor of ours; "stderr": the command's as well
    session_id_file: str = ""
    quiet: bool = False
    ask: bool = False
    trace_log: str = ""
    no_trace: bool = False
    debug: bool = False
    container: str = ""  # "ENGINE:NAME" of the one that carries the run


class RunRequest(Value):
    """What is to be run.  ``command``: what the record names as well."""

    command: tuple[str, ...]
    policy: Policy
    options: RunOptions = RunOptions()


class PreparedRun:
    """A sandbox that is being made.

    Attributes:
        id: of the session.
        recorded: whether its record is kept.
        plan: what the launcher makes.
        warnings: what of the policy this machine lets be otherwise than it says.
        home: the store that is bound over $HOME; empty when there is none that is kept.
        agent: ``$MEMBRANE_HOME/agents/NAME``.
        layers: where changes of toolchains go.
        notes: what to say of a first run.
        logins: files with log-ins that the command gets a copy of, and where that is in the view.
        image: that is held for the run; None: the system trees are the host's.
        changes: the change set of a reviewed workspace, locked; None: the workspace is live.
        terminal: for stdin, stdout and stderr, whether it is the caller's terminal.
        cell: what is being made; it dies with this process, and is killed by ``boundary.Boundary.run``.

    Args:
        backend: that has begun; on an error its user gives it up.
        request: what is to be run.
        commands: that one command, or any number in views of their own or shared.

    Raises:
        PolicyError: a rule cannot be bound.
        HostError: the machine refused a step.
    """

    def __init__(self, backend: Backend, request: RunRequest, commands: Commands) -> None:
        policy, options = request.policy, request.options
        self.recorded = policy.trace.mode != "off" and not options.no_trace
        if options.trace_log and not self.recorded:
            raise PolicyError(
                "write the trace log",
                "it is made from the record, which --no-trace or trace.mode off switched off",
                fix=("leave --trace-log or --no-trace away",),
            )
        self.id = os.urandom(8).hex()
        self.image: Use | None = None
        if policy.image:
            self.image = _image(policy, speaks=commands == "one" and not options.quiet)
        self.facts = facts_for(policy, backend=backend, held=self.image.digest if self.image is not None else "")
        policy, self.logins = _with_logins(policy, self.facts, tidy=True)
        policy, self.warnings = mounts.as_found(policy, self.facts)
        self.layers = layers.Layers(policy, self.facts)
        self.facts = self.layers.facts
        command = request.command
        if self.facts.image is not None:
            from ..plan import image

            command = image.argv(self.facts.image, command)
        self.request = request.replace(policy=policy, command=command)
        self.changes: Held | None = None
        try:
            if policy.workspace == "review":
                from ..changes import cell

                # What cannot be bound is refused before anything is made; of a set that goes on it is the plan already.
                self.plan, would = backend.plan(policy, self.facts), self.facts.reviewed
                self.changes, self.facts = cell.begin(policy, self.facts, self.id)
                if self.facts.reviewed != would:
                    self.plan = backend.plan(policy, self.facts)
                trees = [
                    self.facts.workspace,
                    *([self.changes.meta.repository] if self.changes.meta.repository else []),
                ]
                for tree in trees if not self.facts.root else ():
                    if said := cell.unwritable(tree, self.facts.uid, self.facts.gid):
                        self.warnings = (*self.warnings, said)
            else:
                self.plan = backend.plan(policy, self.facts)
            if self.facts.image is not None and not request.command:
                self.plan = image.begun(self.plan, self.facts.image)
            self._begin(backend, policy, commands)
        except BaseException:
            self.let_go()
            raise

    def let_go(self) -> None:
        """Give the layer and the change set back; a new set that the run did not need is removed."""
        self.layers.end()
        if self.image is not None:
            self.image.end()
        if self.changes is not None:
            held, self.changes = self.changes, None
            try:
                if held.new and held.is_empty:
                    held.discard(spare=True)
            finally:
                held.close()

    def _begin(self, backend: Backend, policy: Policy, commands: Commands) -> None:
        request = self.request
        self.home = mounts.home_store(policy, self.facts)
        self.agent = os.path.join(self.facts.state, "agents", *policy.profiles[:1])
        self.layers.prepare(self.plan.mounts)
        homes.prepare(self.plan.stores, self.home, self.agent, policy.state_files)
        new = [path for path, place in self.logins.items() if self._make_place(path, place)]
        self.notes = tuple(f"your log-in in {path} is used from now on; the command sees placeholders" for path in new)
        one = commands == "one"
        self.terminal = (os.isatty(0), os.isatty(1), os.isatty(2)) if one else (False, False, False)
        notify: Literal["", "writes", "reads"] = ""
        if self.recorded:
            notify = "reads" if policy.trace.mode == "full" else "writes"
        umask = os.umask(0o077)
        os.umask(umask)
        argv = request.command if one else ()
        self.cell = backend.start(
            self.plan,
            argv,
            terminal=self.terminal,
            session=self.id,
            umask=umask,
            notify=notify,
            commands=commands,
        )

    def _make_place(self, path: str, place: str) -> bool:
        """What leads to the copy of a log-in in the agent's state; false: it is there."""
        if mounts.inside(place, mounts.INSIDE_LOGINS):  # the backend makes the link
            return not os.path.lexists(f"{self.agent}/{place[len(mounts.INSIDE_LOGINS) + 1 :]}")
        if mounts.inside(place, mounts.LOGINS):
            # One of the two, as ``logins.shown`` found it below the home that the caller names, or the account's.
            tops = (dict(self.facts.environ).get("HOME", self.facts.home).rstrip("/"), self.facts.home)
            name = next(path[len(top) + 1 :] for top in tops if path.startswith(f"{top}/"))
            return homes.make_link(self.agent, name, place)
        top = self.agent if mounts.inside(place, self.agent) else self.facts.home
        return homes.make_place(self.agent, place[len(top) + 1 :])


def _image(policy: Policy, *, speaks: bool) -> Use:
    """Hold the image for a run, which fetches it where it is not here yet."""
    from . import images

    state = state_dir(os.environ)

    def fetch() -> Kept:
        from . import imagestore

        say = _say if speaks else imagestore.quiet
        workspace = os.getcwd()
        mounted = [mounts.absolute(rule.path, workspace) for rule in policy.mounts if rule.mode == "rw" and rule.path]
        writable = [os.path.realpath(path) for path in mounted]
        return imagestore.pull(state, policy.image, say, again=False, platform=policy.platform, writable=writable)

    return images.need(state, policy.image, fetch, policy.platform)


def _say(text: str) -> None:
    """To the caller, before there is a command that could write as well."""
    import sys

    print(f"membrane: {visible(text)}", file=sys.stderr)


def facts_for(policy: Policy, workspace: str = "", *, backend: Backend | None = None, held: str = "") -> HostFacts:
    """What a plan for ``policy`` has to know: of the machine, and of the trees that it speaks of.

    Args:
        workspace: absolute; empty: the current directory.
        backend: None: the one for this machine.
        held: as of ``images.shown``.
    """
    facts = (backend or backends.default()).facts(policy, workspace)
    if policy.file_rules is None:
        if os.path.isfile(f"{facts.workspace}/.git"):
            from ..workspace import gitdirs

            elsewhere, live = gitdirs.find(facts.workspace), policy.workspace != "review"
            facts = facts.replace(repository=gitdirs.under(policy.paths, elsewhere, live=live))
        if policy.image:
            from . import images

            facts = images.shown(policy, facts, held)
        facts = layers.planned(policy, facts)
        if policy.workspace == "review":
            from ..changes import cell

            facts = cell.shown(policy, facts)
        return facts
    from ..workspace import hostfiles

    masked = [mask.source.removeprefix("file:") for mask in policy.masks if mask.source.startswith("file:")]
    found, warnings = hostfiles.find(policy.file_rules, masked, (facts.workspace, facts.home))
    return facts.replace(files=found, file_warnings=warnings)


def _with_logins(policy: Policy, facts: HostFacts, *, tidy: bool = False) -> tuple[Policy, dict[str, str]]:
    """The policy with what of an agent's files is there to be shown, and where its log-ins stand in the view."""
    if policy.state_shown:  # as for log-ins, no link is followed
        there = [name for name in policy.state_shown if os.path.exists(f"{facts.home}/{name}")]
        real = tuple(name for name in there if os.path.realpath(f"{facts.home}/{name}") == f"{facts.home}/{name}")
        policy = policy.replace(state_shown=real)
    if not any(mask.login for mask in policy.masks):
        return policy, {}
    from . import logins

    return logins.shown(policy, facts, tidy=tidy)


def make_plan(policy: Policy, command: tuple[str, ...] = (), *, backend: Backend | None = None) -> SandboxPlan:
    """The complete plan, the workspace scanned, for ``membrane plan``.

    Args:
        backend: None: the one that the policy names.

    Raises:
        PolicyError: a rule cannot be bound.
        HostError: the workspace cannot be read.
    """
    del command  # the plan does not depend on it: no decision by command text
    from ..workspace.scan import scan

    if backend is None:
        policy = policy.replace(backend=backends.chosen(policy.backend)[0])
        backend = backends.named(policy.backend)
    facts = facts_for(policy, backend=backend)
    policy, _logins = _with_logins(policy, facts)
    policy, _warnings = mounts.as_found(policy, facts)
    plan = backend.plan(policy, facts)
    if policy.file_rules is not None:
        from ..plan.hosttree import guarded

        operations: list[MountOp] = []
        for root, rules in guarded(policy, facts):
            found = scan(root, rules)
            operations += mounts.workspace(root, found.hits, found.pins)
        return plan.replace(mounts=(*plan.mounts, *operations))
    from ..workspace.emptied import Finder

    found = scan(facts.workspace, policy.paths)
    hits, pins = found.hits, found.pins
    if policy.workspace == "review":
        hits, pins = mounts.reviewed(found.hits, found.pins)
    patterns = [rule.text for rule in policy.paths if rule.effect == "hide"]
    finder = Finder(facts.workspace, mounts.home_store(policy, facts), dict(plan.environment))
    empty = finder.find(found.hits, found.named, patterns).paths
    operations = list(mounts.workspace(facts.workspace, hits, pins, empty=empty))
    from ..workspace import gitdirs

    for tree, _mode in facts.repository.shown:
        found = scan(tree, gitdirs.rules(policy.paths, facts.repository, tree))
        operations += mounts.workspace(tree, *mounts.reviewed(found.hits, found.pins))
    return plan.replace(mounts=(*plan.mounts, *operations))
