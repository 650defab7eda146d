"""One sandbox: acquire in order, release in reverse, report what happened.

Theory of operation
-------------------
``begin`` has made the plan and started a cell (``backend``).  While that is made, ``run`` begins the record and the
tracer (``tracer.process``), reads the secrets and scans the workspace.  What runs in the sandbox is read back and
traced before it is released.  Then ``run`` sits in one epoll loop over the cell's news, the network sockets, the
workspace watcher and whatever the subclass watches: ``session.Session`` runs one command, ``api.supervisor.Supervisor``
many.  The gateway is started when the first of its sockets becomes readable: a run without network pays
nothing for it.

Rules
-----
1. No partial start: everything that can fail has been done before a command is released.
2. If the gateway, the tracer or the launcher dies, every command is killed: fail closed, non-zero, said.
3. Each source of events says at the end that it has sent them all.  Without that the record is incomplete: one
   ``EventsLost`` says whose word is missing and why, and with ``trace: {mode: required}`` the exit status is 125.

One file of over 800 lines: one lifetime, in the order in which it is acquired and released.
"""

from __future__ import annotations

import errno
import os
import select
import time
from abc import ABC, abstractmethod

from .. import clock
from ..backend import Broken, Ended, Frozen, Hidden
from ..errors import HostError, MembraneError, PolicyError
from ..escaping import escape
from ..events import Binding, EventsLost, SessionEnded, SessionStarted
from ..host.facts import CAP_SYS_ADMIN, effective_capabilities, git_root, in_initial_user_namespace
from ..host.private import make_private
from ..host.ready import ready
from ..plan import mounts
from ..plan.build import identity, receipt
from ..plan.model import Bind, File, HeldTree, Layer, Listen, Overlay, ReadOnly
from ..record import coverage
from ..record import writer as record
from ..tracer.process import Scope, Tracer
from . import homes, installed, ports, registry
from .event_log import AGAIN, EventLog, now, place_for_caller, say
from .installed import VERSION
from .layers import without_layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..backend import TraceHandle
    from ..changes.cell import Masks
    from ..changes.late import Late
    from ..changes.marks import Marks
    from ..changes.writers import Claim
    from ..host.usage import Usage
    from ..plan.model import HostFacts, MountOp, ScanHit
    from ..policy.model import PathRule, Policy
    from ..record.live import LiveLog
    from ..workspace.addresses import Trees
    from ..workspace.gitedit import Editor
    from ..workspace.guard import Guard
    from ..workspace.held import Held
    from ..workspace.reads import Reads
    from ..workspace.scan import ScanResult
    from .containers import Containers
    from .gateway import Gateway
    from .masks import Masked
    from .places import Places
    from .prepare import PreparedRun

RECORD_EVERY = 0.5  # seconds between two updates of what ``membrane ps`` shows
MOST_AWAITED = 64  # names that git's configuration names and that may not be made; the guard knows all
WATCH_DELAY = 0.01  # seconds after the start when the workspace begins to be watched


class Boundary(ABC):
    """One sandbox; ``run`` may be called once.

    Class attributes:
        shared: several commands run in it.

    Args:
        prepared: what was begun.
    """

    shared = False

    def __init__(self, prepared: PreparedRun) -> None:
        self.prepared = prepared
        self.policy = prepared.request.policy
        self.options = prepared.request.options
        self.command = prepared.request.command
        self.id = prepared.id
        self.plan = prepared.plan
        self.cell = prepared.cell
        self.state = prepared.facts.state
        self.started = time.monotonic()
        self.failure: str = ""
        self.timed_out = False
        self._recorded_at = 0.0
        self._handlers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._gateway: Gateway | None = None
        self._exposed: list[tuple[str, int]] = []  # until the gateway has them
        self._entry: registry.Run | None = None
        self._claim: Claim | None = None  # of the trees that the command writes
        self.guards: list[Guard | Late] = []
        self._secrets: list[list[Any]] = []  # until the gateway has them, and
        self._authority: tuple[bytes, bytes] | None = None  # the same
        self._masked: Masked | None = None
        self._held: Held | None = None
        self._tracer: Tracer | None = None
        self._contained: Containers | None = None  # names of the containers inside
        self._mount_points: Places | None = None  # mount points that other runs have in their view as well
        self._usage: Usage | None = None  # of what is kept for the command, where ``limits.disk`` bounds it
        self._addresses: Trees | None = None  # where git outside may be led to
        self._written: tuple[str, ...] = ()  # trees whose commits are told apart (``workspace.origins``)
        self._editor: Editor | None = None  # of repositories' configuration, where the tracer can hold a call
        self._live_log: LiveLog | None = None
        self._log_place: int | None = None  # the directory of the trace log, before a command runs
        self._lacking: list[str] = []  # why the record may lack events that were not counted
        self.marks: Marks | None = None  # checkpoints of a reviewed workspace
        self._marks_at_end = False
        self._reads: Reads | None = None  # of hidden files that are empty
        self._beside: list[MountOp] = []  # files for git about what is hidden, and names in it
        self._unheld: list[Binding] = []  # rules that do not hold for every name of a file
        self._tables: list[int] = []  # sockets of sock_diag(7) in the sandbox, until another process has them
        self._recording = False  # from when the log of events is opened to the end of the run
        self._on_line: Callable[[bytes, dict[str, Any]], None] | None = None  # takes every event, as line and as data

    def run(self) -> int:
        """Run to the end; return the exit status.

        Raises:
            PolicyError: a rule cannot be bound.
            HostError: the machine refused a step; nothing is left running.
        """
        try:
            return self._run()
        except BaseException:
            if self._recording:
                self.log.give_up()
                if self._live_log is not None:
                    self._live_log.wait()
            raise
        finally:
            if self._tracer is not None and not self._tracer.stop():
                registry.collect_traces()
            if self._usage is not None:
                self._usage.close()
            if self._contained is not None:
                self._contained.close()
            if self.marks is not None:
                self.marks.close()
            if self._entry is not None:  # closed: who is still in there is another one
                registry.collect_dead(self.state)
            self.prepared.let_go()

    # ------------------------------------------------------------ what a subclass has of its own

    @abstractmethod
    def _prepare(self) -> None:
        """Take what can fail, before anything is released."""

    @abstractmethod
    def _begin(self) -> None:
        """Watch what is its own, and release what waits."""

    @abstractmethod
    def _due(self) -> float:
        """When ``_on_due`` is to be called (time.monotonic()); 0: never."""

    @abstractmethod
    def _on_due(self) -> None:
        """It is the time that ``_due`` named."""

    @abstractmethod
    def _turn(self) -> None:
        """After each turn of the loop."""

    @abstractmethod
    def _over(self) -> bool:
        """Has it come to its end?"""

    @abstractmethod
    def _after_processes(self) -> None:
        """No process of the sandbox is left."""

    @abstractmethod
    def _exit_status(self) -> tuple[int, int]:
        """(exit status, signal) of ``SessionEnded``."""

    @abstractmethod
    def _report(self) -> None:
        """The record is closed: say what is to be said."""

    @abstractmethod
    def _asks(self) -> tuple[float, tuple[str, ...]] | None:
        """For how many seconds and about which kinds the gateway asks (``gateway.approvals``); None: not at all."""

    @abstractmethod
    def _answer_questions(self, gateway: Gateway) -> None:
        """Questions come from ``gateway`` from now on."""

    def _limit(self) -> float:
        """Seconds until everything is ended; 0: never."""
        return self.policy.limits.time

    def _launcher_ended(self) -> None:
        self.failure = self.failure or "the launcher died; every command was killed"

    # ------------------------------------------------------------ start

    def _run(self) -> int:
        try:
            try:
                self._make_ready()
                try:
                    self._loop()
                except Exception as error:
                    # Something ran: it is killed like after any failure, and what it left is looked at.
                    self.failure = _cause(error)
                    if self.options.debug:
                        raise
            finally:
                self.cell.kill()
                self.cell.reap()
                self._note_commits()
                if self._mount_points is not None:
                    self._mount_points.close()
                if self._editor is not None:
                    self._editor.close()
                if self._held is not None:
                    self._held.close()
                if self._reads is not None:
                    self._reads.close()
                self._after_processes()
            self._stop_tracer()
        finally:
            if self._entry is not None:
                self._entry.close()
            if self._claim is not None:
                self._claim.close()
        return self._end()

    def _make_ready(self) -> None:
        try:
            self._acquire()
            self._start(self.prepared.facts)
        except BaseException:
            if self._gateway is not None:
                self._gateway.stop()
            raise
        finally:
            for _role, fd in self._exposed:
                os.close(fd)

    def _acquire(self) -> None:
        """The record, the tracer, the secrets, the entry of this session and the ports of the host."""
        facts, recorded = self.prepared.facts, self.prepared.recorded
        directory = record.make(facts.state, self.id) if recorded else ""
        self.log = EventLog(self.id, self.options.events, self._writer(directory, "session") if recorded else None)
        self.log.on_line = self._on_line
        self._recording = True
        self._start_tracer(facts, directory)  # before there is a secret in this process
        if self.policy.limits.disk and (kept := mounts.kept(self.plan.mounts, facts.state)):
            from ..host.usage import Usage

            # Of containers, and of other users of a layer over system trees.
            subordinate = self.policy.containers == "nested" or self.policy.system != "read-only"
            self._usage = Usage(facts.state, kept, self.policy.limits.disk, subordinate=subordinate)
        if self.policy.secrets or self.policy.masks:
            from . import secrets, sources

            trees = mounts.writable(self.policy, facts)
            self._secrets = secrets.gather(self.policy, dict(facts.environ), [*trees, *sources.kept(facts.state)])
            inside = {name: placeholder.decode("ascii") for name, _value, placeholder, *_rest in self._secrets}
            if self.policy.masks:
                from . import masks

                places = self.prepared.logins
                self._masked = masks.gather(self.policy, dict(facts.environ), self._secrets, trees, places)
                inside |= self._masked.environment
            environment = tuple({**dict(self.plan.environment), **inside}.items())
            self.plan = self.plan.replace(environment=environment)
        if self.options.trace_log:
            try:
                self._log_place = place_for_caller(self.options.trace_log)
            except OSError:
                self._log_place = -1  # the end says that it cannot be written, whatever has that name then
        if self.options.trace_log and not self.options.trace_log.endswith(".gz"):
            self._live_log = self._begin_log(facts.state)
        self.record = registry.SessionRecord(
            self.id,
            os.getpid(),
            time.time(),
            facts.workspace,
            self.command,
            "network",
            0,
            0,
            0,
            ports=ports.shown(self.policy.expose),
            container=self.options.container,
        )
        self._entry = registry.Run(facts.state, self.record)
        self._claim = self._claimed(facts)
        self._prepare()
        self._exposed = ports.listen(self.policy.expose)

    def _claimed(self, facts: HostFacts) -> Claim:
        """No apply has its stage in a tree that the command writes, as long as this is held."""
        from ..changes import store, writers  # while the view is made

        trees = [op.source for op in self.plan.mounts if isinstance(op, Bind) and op.writable]
        return writers.Claim(store.directory(facts.state), "session", self.id, trees)

    def _begin_log(self, state: str) -> LiveLog | None:
        """Write the trace log as the record grows; None where its file cannot be made, which the end says."""
        from ..record.live import LiveLog

        if self.options.trace_log == "-":
            return LiveLog(state, self.id, 2)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self.options.trace_log, flags, 0o600)
        except OSError:
            return None
        try:
            return LiveLog(state, self.id, fd)
        finally:
            os.close(fd)

    def _show(self, shown: registry.SessionRecord) -> None:
        """What ``membrane ps`` says of this session from now on."""
        assert self._entry is not None
        self.record = shown
        self._entry.update(shown)

    def _writer(self, directory: str, source: str, suffix: str = "jsonl") -> record.Writer:
        return record.Writer(directory, source, suffix, limit=record.share(self.policy.trace.max_size, source))

    def _start(self, facts: HostFacts) -> None:
        cell = self.cell
        cell.grant()
        if self._tracer is not None:
            self._tracer.prepare()
        operations: list[MountOp] = []
        if self.plan.trust:
            operations += self._trust(facts)
        self._say_what_was_found(facts)
        roots = self._writable_roots(facts)
        from ..workspace import origins  # while the view is made

        changes = self.prepared.changes
        reviewed = facts.workspace if changes is not None else ""
        installed.refuse([root for root, _rules in roots if root != reviewed])
        scans: list[tuple[str, ScanResult]] = []
        empties: list[frozenset[str]] = []
        self._addresses = self._git_places(facts, [root for root, _rules in roots])
        written = [root for root in (*self._addresses.guarded, *self._addresses.open[1:]) if root != reviewed]
        written += [os.path.dirname(root) for root in written if os.path.basename(root) == ".git"]
        tips = {root: origins.begin(facts.state, root, self.id, self._alive) for root in dict.fromkeys(written)}
        self._written = tuple(tips)
        masks: Masks | None = None
        some_empty = False
        for root, rules in roots:
            found = self._scan(facts, root, rules)
            scans.append((root, found))
            empty = self._emptied(root, rules, found) if root == facts.workspace else frozenset()
            empties.append(empty)
            some_empty = some_empty or bool(empty)
            if root == reviewed:
                masks, hits = self._white_out(root, rules, found, empty)
                empties[-1] = empty = frozenset(hit.path for hit in hits if hit.path in empty)
                operations += mounts.workspace(root, *mounts.reviewed(hits, found.pins), (), empty)
            else:
                operations += mounts.workspace(root, found.hits, found.pins, self._editable(found), empty)
            own = mounts.frozen(root, installed.trees())
            operations += own
            for op in own:
                if isinstance(op, ReadOnly):
                    self._warn_once(
                        f"membrane itself is installed in {op.target}, which the command cannot change; what has to "
                        "write there needs an installation elsewhere, such as by pipx (this is said once)"
                    )
        elsewhere = None
        if facts.reviewed is not None and facts.reviewed.repository:
            elsewhere, more = self._hidden_in(facts, facts.reviewed.repository)
            operations += more
        if self.policy.open_files:
            operations += mounts.frozen("/", installed.running())
        operations += self._beside
        operations += self._instructions(facts)
        operations += self._hold(facts, [root for root, _rules in roots])
        if not cell.traces:  # no tracer refuses names before they are made
            cell.hold(
                [
                    _held(root, rules, found, tips[root], self._addresses)
                    for (root, rules), (_root, found) in zip(roots, scans, strict=True)
                ]
            )
        from .places import Places

        self._mount_points = Places(facts.state, self.id, self.plan, operations)
        cell.fill(operations, self.plan.environment)
        if not self.plan.trust:
            self._take_sockets(facts, b"")
        self._make_guards(facts, scans, empties, tips, masks, elsewhere)
        cell.built()
        if self._held is not None:
            self._held.on_change()
        for guard in self.guards:
            guard.look()  # what moved since the scan, by another session here
        assurance = cell.ready()
        self._mount_points.hold(cell)
        if without := without_layer(assurance):
            self._warn_once(without)
        for binding in assurance:
            if binding.status == "partial" and binding.rule != "toolchain":  # less than the plan says
                self._warn(binding.mechanism)
        self.prepared.layers.keep_until(cell.last())
        assert self._claim is not None
        self._claim.keep_until(cell.last())
        handle = cell.trace_handle() if self._tracer is not None or masks is not None else None
        if changes is not None and masks is not None and handle is not None:
            from ..changes.cell import confirm

            changes.keep_until(cell.last())
            confirm(handle.root, facts.workspace, masks.names, changes.uppers)
            if self._tracer is None:
                os.close(handle.root)
                handle = None
        self._begin_edits(handle)
        if self._tracer is not None:
            self._tell_tracer(self._tracer, [(root, found) for root, found in scans if root != reviewed], tips)
        source, why_not = self._attach_tracer(handle, roots, reviewed)
        if reviewed and "notify" not in source and any(rule.effect == "readonly" for rule in self.policy.paths):
            said = "new names are not refused, as nothing here reports that they are made; they are held back by apply"
            self._unheld.append(Binding("readonly", said, "partial", False))
        reads = "notify" in source and self.policy.trace.mode == "full"
        untold = self._watch_reads(facts.workspace, some_empty) if not reads else ()
        self._record_start(
            facts, (*assurance, Binding("capture", self._capture, "bound", False)), source, why_not, untold
        )
        if changes is not None:
            from ..changes.marks import Marks

            self.marks = Marks(changes, self.log.add)

    def _say_what_was_found(self, facts: HostFacts) -> None:
        """Warnings and notes: of the policy, of the machine, and of where the command is started."""
        for warning in (*facts.file_warnings, *self.prepared.warnings):
            say(f"warning: {escape(warning)}")
        for note in self.prepared.layers.notes:
            self._warn_once(note)
        if not self.options.quiet:
            for note in self.prepared.notes:
                say(escape(note))
        able = in_initial_user_namespace() and effective_capabilities() >> CAP_SYS_ADMIN & 1
        if not facts.uid and not facts.root and able:
            self._warn(
                "the command runs as uid 0 itself: the file system of the workspace or of membrane's own state "
                "(overlayfs, a network's) takes no id maps, so files that only root may read are open to it"
            )
        above = git_root(facts.workspace)
        if above not in ("", facts.workspace, facts.home) and not self._sees(above, facts):
            helps = f"cd {above}"
            if os.path.isdir(f"{above}/.git"):
                rows = f"mounts: [{{path: {above}}}, {{path: {above}/.git, mode: rw}}]"
                helps += f", or with its other files, none hidden, read-only: {rows}"
            self._warn_once(
                f"{facts.workspace} is a directory of the repository {above}, which is not in the view: git does not "
                f"work in it. {helps} (this is said once)"
            )

    def _make_guards(
        self,
        facts: HostFacts,
        scans: list[tuple[str, ScanResult]],
        empties: list[frozenset[str]],
        tips: dict[str, bytes],
        masks: Masks | None,
        elsewhere: ScanResult | None,
    ) -> None:
        """One for each tree of ``scans``; ``masks``: of a reviewed workspace, ``elsewhere``: its repository's tree."""
        cell, changes = self.cell, self.prepared.changes
        from ..host.unixsockets import Table
        from ..workspace.guard import Guard  # while the view is made

        table = Table(self._tables.pop()) if self._tables else None
        for (root, found), empty in zip(scans, empties, strict=True):
            if masks is not None and changes is not None and root == facts.workspace:
                from ..changes.late import Late

                self.guards.append(Late(root, found, masks, changes.uppers, mask=cell.hide, table=table))
                continue
            self.guards.append(
                Guard(
                    root,
                    found,
                    shown="" if root == facts.workspace else root + "/",
                    store=os.path.join(facts.state, "quarantine", self.id),
                    mask=cell.hide,
                    mounted=self._mounted,
                    report=self.log.add,
                    table=table,
                    empty=empty,
                    tips=tips[root],
                    places=self._addresses,
                )
            )
        if elsewhere is not None and changes is not None:
            from ..changes.late import Late

            tree = changes.meta.repository
            self.guards.append(Late(tree, elsewhere, None, changes.git_uppers, mask=cell.hide, table=table))

    def _mounted(self) -> frozenset[str]:
        """The mount points in the sandbox, as far as they can be known now."""
        try:
            return self.cell.mount_points() or frozenset()
        except (ProcessLookupError, HostError):
            return frozenset()

    def _tell_tracer(self, tracer: Tracer, scans: list[tuple[str, ScanResult]], tips: dict[str, bytes]) -> None:
        """What it has to know of the trees that the command writes, before it has its first call."""
        awaited = (f"{root}/{path}" for root, found in scans for path in found.index.missing)
        tracer.awaited = tuple(path for path, _ in zip(awaited, range(MOST_AWAITED), strict=False))
        tracer.tips = tuple(tips.items())
        named = ((root, found.index.beside) for root, found in scans)
        tracer.beside = tuple((root, one.names, one.linked, tuple(one.trees)) for root, one in named if one is not None)

    def _record_start(
        self, facts: HostFacts, confirmed: tuple[Binding, ...], source: str, why_not: str, untold: tuple[str, ...]
    ) -> None:
        """``SessionStarted``: what is in force, and what will not be told."""
        changes = self.prepared.changes
        events = [Binding("trace", f"not by eBPF: {why_not}", "bound", False)] if why_not else []
        copies = self._gateway is not None and self._gateway.copies
        quiet = (*coverage.silent(source, reads=self.policy.trace.mode == "full", copies=copies), *untold)
        events.append(Binding(coverage.RULE, "; ".join(quiet), "partial", False))
        self.log.add(
            SessionStarted(
                VERSION,
                self.command,
                facts.workspace,
                self.policy.digest,
                self.policy.levels,
                (*confirmed, *events, *self._unheld, *receipt(self.plan)),
                source,
                identity(self.plan),
                change_set=changes.name if changes is not None else "",
            )
        )

    def _instructions(self, facts: HostFacts) -> list[MountOp]:
        """Files for agents, where the plan has a place for them."""
        layer = next(
            (op for op in self.plan.mounts if isinstance(op, Layer) or (isinstance(op, Overlay) and op.names)), None
        )
        if layer is None:
            return []
        from . import brief

        files, warnings = brief.files(self.policy, facts, layer)
        for warning in warnings:
            self._warn(warning)
        return files

    def _hidden_in(self, facts: HostFacts, repository: str) -> tuple[ScanResult, list[MountOp]]:
        """Masks over what rules hide, and over sockets, in the repository of a reviewed workspace that is elsewhere.

        Returns: the scan, for what appears later, and the operations.
        """
        from ..workspace import gitdirs

        found = self._scan(facts, repository, gitdirs.rules(self.policy.paths, facts.repository, repository))
        return found, list(mounts.workspace(repository, *mounts.reviewed(found.hits, found.pins)))

    def _white_out(
        self, root: str, rules: tuple[PathRule, ...], found: ScanResult, empty: frozenset[str]
    ) -> tuple[Masks, tuple[ScanHit, ...]]:
        """Hide names of a reviewed workspace in its layers, as far as they can be hidden so; what is bound else."""
        from ..changes import cell, store

        assert self.prepared.changes is not None
        masks = cell.Masks(f"{self.prepared.changes.path}/{store.MASKS}", root)
        shown = [op.target[len(root) + 1 :] for op in self._beside if mounts.inside(op.target, root)]
        hidden = cell.masked(found.hits, empty, shown)
        try:
            wanted: dict[str, cell.Kind] = dict.fromkeys(cell.future(rules, root), "")
            masks.hide(wanted | {hit.path: "directory" if hit.directory else "file" for hit in hidden})
        except OSError as error:
            raise HostError("hide names of the workspace", error.strerror or "", target=root) from None
        apart = {hit.path for hit in hidden}
        return masks, tuple(hit for hit in found.hits if hit.path not in apart)

    def _editable(self, found: ScanResult) -> tuple[tuple[str, str], ...]:
        """Files that ``Editor`` can change, each with the directory of which it needs a descriptor."""
        if (self._tracer is None and not self.cell.edits) or self.policy.file_rules is not None:
            return ()  # under file rules a configuration is what the rules say: read-only, or allowGitConfig
        from ..workspace.gitedit import editable

        return editable(found.hits, found.pins)

    def _emptied(self, root: str, rules: tuple[PathRule, ...], found: ScanResult) -> frozenset[str]:
        """Hidden names that are empty and can be read; git's excludes list them.

        Rules over the host's tree (``files``) promise that what they hide cannot be opened.
        """
        if not found.named or self.policy.file_rules is not None:
            self._configure_git(root, ())
            return frozenset()
        from ..workspace import emptied

        finder = emptied.Finder(root, self.prepared.home, dict(self.plan.environment))
        made = finder.find(found.hits, found.named, [rule.text for rule in rules if rule.effect == "hide"])
        self._configure_git(root, made.lines if made.paths else ())
        if made.paths and any(rule.show_names for rule in rules):
            shown, warnings = emptied.shown_names(root, self.policy, made.paths)
            self._beside += [File(f"{root}/{path}", content) for path, content in shown]
            for warning in warnings:
                self._warn(warning)
        return made.paths

    def _configure_git(self, root: str, lines: Iterable[bytes]) -> None:
        """Have git inside know who the caller is, and what is hidden and empty."""
        from ..workspace import callers, emptied

        settings, patterns = "", b""
        if self.policy.view == "project":
            settings, patterns = callers.settings(dict(self.prepared.facts.environ), root)
        if not settings and not patterns and not lines:
            return
        files = emptied.configuration(lines, self.prepared.home, mounts.MASK_SOURCE, settings, patterns)
        self._beside += [File(f"{mounts.MASK_SOURCE}/{name}", content) for name, content in files]
        environment = (*self.plan.environment, ("GIT_CONFIG_SYSTEM", f"{mounts.MASK_SOURCE}/{emptied.CONFIG}"))
        self.plan = self.plan.replace(environment=environment)

    def _watch_reads(self, workspace: str, needed: bool) -> tuple[str, ...]:
        """First reads of hidden files that are empty are reported from now on; what is not, though it should be."""
        if self.cell.reads is None:
            return (coverage.FIRST_READS,) if needed else ()
        from ..workspace.reads import Reads

        fd, paths = self.cell.reads
        shown = {watch: path[len(workspace.rstrip("/")) + 1 :] for watch, path in paths.items()}
        self._reads = Reads(fd, shown, self.policy, self.log.add)
        return ()

    def _begin_edits(self, handle: TraceHandle | None) -> None:
        """Everyday changes of ``.git/config`` are possible from now on."""
        tracer, kept = self._tracer, self.cell.kept
        if tracer is None or handle is None or handle.listener < 0 or not kept:
            return
        from ..workspace.gitedit import Editor

        editor = self._editor = Editor(
            kept,
            freeze=self.cell.freeze,
            busy=lambda: self.cell.hiding,
            shared=self._is_shared,
            answer=tracer.decide,
            places=self._addresses,
        )
        tracer.on_edit = lambda call: editor.ask(call.number, os.fsdecode(call.path), call.deadline / 1e6, call.mode)

    def _note_commits(self) -> None:
        """No process is left, or none was released: what the refs have got meanwhile is the command's."""
        from ..workspace import origins

        for root in self._written:
            try:
                origins.note(self.state, root, self.id)
            except (MembraneError, OSError):
                pass  # then it is at the next beginning

    def _alive(self) -> list[str]:
        return [each.id for each in registry.list_sessions(self.state) if each.alive]

    def _is_shared(self, path: str) -> bool:
        """Does the workspace of another session hold this path?"""
        sessions = registry.list_sessions(self.state)
        return any(each.alive and each.id != self.id and mounts.inside(path, each.workspace) for each in sessions)

    def _hold(self, facts: HostFacts, roots: list[str]) -> list[MountOp]:
        """Copies with placeholders; from now on hidden files outside of the guarded trees are held."""
        hidden = [each.path for each in facts.files if each.effect == "deny-read" and not each.directory]
        held = [path for path in hidden if not any(mounts.inside(path, root) for root in roots)]
        operations = self._masked.operations() if self._masked is not None else []
        held += self._masked.paths if self._masked is not None else []
        if held:
            from ..workspace.held import Held

            try:
                self._held = Held(held, self.cell.hide)
            except OSError as error:
                say(f"warning: hidden files that are replaced outside are not hidden again: {error.strerror}")
            else:
                for directory, why in list(self._held.unwatched.items())[:1]:
                    more = f" (and in {len(self._held.unwatched) - 1} more)" if len(self._held.unwatched) > 1 else ""
                    say(f"warning: hidden files that are replaced in {directory}{more} are not hidden again: {why}")
        return operations

    def _start_tracer(self, facts: HostFacts, directory: str) -> None:
        """``directory``: of the record; empty: none is kept, and nothing is traced."""
        if not directory:
            return
        if not self.cell.traces:
            why = "nothing here reports what the command does"
            if self.policy.trace.mode != "auto":
                raise PolicyError(
                    "bind the policy",
                    f"trace.mode {self.policy.trace.mode} needs a tracer: {why}",
                    fix=("use trace.mode auto or off",),
                )
            self._warn(f"what the command does is not traced: {why}")
            return
        plan = self.plan
        scope = Scope(
            self.id,
            self.policy,
            facts.workspace,
            (),
            plan.base_kuid + plan.uid,
            plan.base_kuid + plan.gid,
            () if plan.base_kuid else tuple(os.getgroups()),
            plan.hardening.nested or plan.hardening.user_namespaces,
            self.shared,
            self.policy.trace.mode == "full",
            set_ids=plan.hardening.set_ids,
            strips=plan.hardening.strips,
            owned=plan.owned,
            ids=plan.ids,
        )
        live = bool(self.options.events) or self._on_line is not None

        def store(source: str) -> record.Writer:
            return self._writer(directory, source, "spans" if source == "ebpf" else "jsonl")

        self._tracer = Tracer(scope, live=live, store=store, take=self._take_line)

    def _take_line(self, line: bytes) -> None:
        self.log.add_line(line, "tracer", recorded=True)

    def _attach_tracer(
        self, handle: TraceHandle | None, trees: list[tuple[str, tuple[PathRule, ...]]], reviewed: str
    ) -> tuple[str, str]:
        """Hand the command to the tracer; the sources of events, best first, and why eBPF is not among them.

        In the tree ``reviewed`` the command may make what is hidden: it is a file of its own.
        """
        tracer = self._tracer
        if tracer is None or handle is None:
            return "network", ""
        listener, error = handle.listener, handle.error
        table = self._tables.pop() if self._tables else -1
        roots = tuple(
            (root, tuple((rule.effect, rule.text) for rule in rules if root != reviewed or rule.effect != "hide"))
            for root, rules in trees
        )
        sources, why_not = tracer.attach(handle.process, listener, handle.root, roots, table)
        why = "a tracer around this run has the notifications (EBUSY)" if error == errno.EBUSY else os.strerror(error)
        if sources:
            if listener < 0:
                what = "new protected names are taken away, not refused, a rule's name can be made once"
                self._warn(f"{what}, and git configuration is read-only: {why}")
            source = ", ".join((*sources, "network"))
            self._show(self.record.replace(trace_source=source))
            return source, why_not
        if self.policy.trace.mode != "auto":
            raise PolicyError(
                "bind the policy",
                f"trace.mode {self.policy.trace.mode} needs seccomp user notification: {why}; or eBPF: {why_not}",
                fix=("use trace.mode auto or off",),
            )
        self._warn(f"what the command does is not traced: {why}")
        tracer.stop()
        self._tracer = None
        return "network", why_not

    @property
    def gateway(self) -> Gateway:
        """The gateway; there is one once the launcher has handed its sockets over."""
        assert self._gateway is not None
        return self._gateway

    def _take_sockets(self, facts: HostFacts, authorities: bytes) -> None:
        """Take the sockets of the sandbox's network; the process that serves them is started when it is needed."""
        self._capture, sockets = self.cell.sockets()
        self._tables = [fd for role, fd in sockets if role == "table"]
        if self.policy.open_sockets:  # none are out of reach
            while self._tables:
                os.close(self._tables.pop())
        sockets = [pair for pair in sockets if pair[0] != "table"]
        from .gateway import Gateway

        doors = [op for op in self.plan.mounts if isinstance(op, Listen)]
        for door, fd in zip(doors, self.cell.listeners(len(doors)), strict=True):
            sockets.append((f"unix:{door.number}", fd))
        sockets += self._exposed
        self._exposed = []
        config = {
            "policy": self.policy,
            "session": self.id,
            "clock": clock.offset(),
            "environ": facts.environ if self.policy.upstream_proxy == "env" else (),
            "verbose": self.log.wants_all,
            "totals": True,  # for ps
            "inspect": self.plan.inspect,
            "authorities": authorities,
            "authority": self._authority,
            "ask": self._asks(),
            "doors": tuple((door.number, door.source, door.owner) for door in doors),
        }
        logins = list(self._masked.logins.values()) if self._masked is not None else []
        self._gateway = Gateway(sockets, config, self.log, self._secrets, logins)
        self._secrets = []
        self._authority = None
        if self._masked is not None and self._masked.tokens:
            from .logins import Renewals

            self._gateway.on_login = Renewals(self._masked.tokens, self._warn).take
        if config["ask"]:
            self._answer_questions(self._gateway)

    def _trust(self, facts: HostFacts) -> list[MountOp]:
        """Certificates for the view; one that the gateway makes now is among them."""
        from . import trust

        authorities = trust.read_authorities(self.policy.extra_ca)
        self._authority = trust.read_authority(self.policy.authority) if self.plan.inspect else None
        self._take_sockets(facts, authorities)
        certificate = b""
        if self.plan.inspect:
            self.gateway.start()
            certificate = self.gateway.wait_for_certificate()
        return trust.operations(self.plan, authorities, certificate)

    def _git_places(self, facts: HostFacts, roots: list[str]) -> Trees:
        """Where git outside may be led to: not to what the command writes that no guard looks at."""
        from ..workspace.addresses import Trees

        sources = [mounts.places(rule, facts)[0] for rule in self.policy.mounts if rule.mode == "rw"]
        return Trees(tuple(roots), (facts.state, *(each for each in sources if each not in roots)))

    def _writable_roots(self, facts: HostFacts) -> list[tuple[str, tuple[PathRule, ...]]]:
        """The trees that the command can write on the host; path rules speak of the workspace and its repository."""
        if self.policy.file_rules is not None:
            from ..plan.hosttree import guarded

            return guarded(self.policy, facts)
        rules = self.policy.paths
        if self.policy.open_git_config:
            from ..plan.hosttree import git_config

            rules = (*rules, git_config())
        roots: list[tuple[str, tuple[PathRule, ...]]] = [(facts.workspace, rules)]
        for rule in self.policy.mounts:
            source, target = mounts.places(rule, facts)
            # Elsewhere than at its own path the tree's names mean nothing to the tools of the host.
            if rule.mode == "rw" and source == target and os.path.isdir(source):
                own: tuple[PathRule, ...] = ()
                if facts.repository.shown:
                    from ..workspace import gitdirs

                    own = gitdirs.rules(self.policy.paths, facts.repository, source)
                roots.append((source, (*own, *rules[len(self.policy.paths) :])))
        return roots

    def _scan(self, facts: HostFacts, root: str, rules: tuple[PathRule, ...]) -> ScanResult:
        from ..workspace.scan import scan

        caches = os.path.join(facts.state, "cache")
        make_private(caches)
        cache_file = os.path.join(caches, "scan-" + mounts.workspace_key(root))
        found = scan(
            root,
            rules,
            cache_file,
            progress=_say_progress,
            open_sockets=self.policy.open_sockets,
            subordinate=self.policy.containers == "nested" and bool(facts.uid),
        )
        for warning in found.warnings:
            self._warn(warning)
        if found.linked and self.policy.hard_links == "refuse":
            raise PolicyError(
                "bind the policy",
                found.linked[0],
                fix=("remove the other names of the file (find DIR -samefile FILE)", "hard_links: warn"),
            )
        for warning in found.linked:  # a rule that does not hold: said also with --quiet
            self._unheld.append(Binding("hard links", warning, "partial", False))
            say(f"warning: {escape(warning)}")
        return found

    def _warn(self, text: str) -> None:
        if not self.options.quiet:
            say(f"warning: {escape(text)}")

    def _sees(self, path: str, facts: HostFacts) -> bool:
        """Is ``path`` in the view, at its own place?"""
        shown = [mounts.places(rule, facts) for rule in self.policy.mounts]
        return self.policy.view == "host" or any(one == to and mounts.inside(path, to) for one, to in shown)

    def _warn_once(self, text: str) -> None:
        if not self.options.quiet and registry.first_time(self.state, text):
            self._warn(text)

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None):
            self._epoll.unregister(fd)

    def _loop(self) -> None:
        from .gateway import SILENT

        for descriptor in self.cell.descriptors():
            self._watch(descriptor, lambda descriptor=descriptor: self._on_cell(descriptor))  # type: ignore[misc]
        for role, fd in self.gateway.sockets:
            if role not in SILENT:
                self._watch(fd, self._on_first_packet)
        if self.gateway.pid:
            self._watch_gateway()
        if self._tracer is not None:
            self._watch(self._tracer.control, self._on_tracer)
            self._watch(self._tracer.pidfd, self._on_tracer_end)
        limit = self._limit()
        time_out_at = time.monotonic() + limit if limit else 0.0
        for guard in self.guards:
            self._watch(guard.fileno(), guard.on_change)
        if self._mount_points is not None:
            self._mount_points.watch(self._watch, self._unwatch)
        if self._held is not None:
            self._watch(self._held.fileno(), self._held.on_change)
        if self._reads is not None:
            self._watch(self._reads.fileno(), self._reads.on_change)
        if self._usage is not None:
            self._watch(self._usage.fd, self._on_usage)
        watch_at = time.monotonic() + WATCH_DELAY  # the end of a short command is not slowed by a watch
        self._begin()
        while not self._over() and not self.failure:
            due = self._due()
            wait_until = min((at for at in (due, time_out_at, watch_at) if at), default=0.0)
            timeout = max(0.0, wait_until - time.monotonic()) if wait_until else -1.0
            for guard in self.guards:
                wanted = guard.timeout()
                if wanted is not None:
                    timeout = wanted if timeout < 0 else min(timeout, wanted)
            if self.log.waits:
                timeout = AGAIN if timeout < 0 else min(timeout, AGAIN)
            if self._editor is not None and (wanted := self._editor.timeout()) is not None:
                timeout = wanted if timeout < 0 else min(timeout, wanted)
            if self._contained is not None and self._contained.waits:
                timeout = 0.0
            for fd, _event in self._epoll.poll(timeout):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()
            if self._contained is not None:
                self._contained.step()
                if self._contained.lacks:
                    self._name_no_more()
            self._guard_files()
            if self.log.waits:
                self.log.flush()
            if self._editor is not None:
                self._editor.step()
            self._turn()
            if watch_at and time.monotonic() >= watch_at and self._watch_more():
                watch_at = 0.0
                self._watch_containers()
                for guard in self.guards:
                    for warning in guard.warnings():
                        self._warn(warning)
            if time_out_at and time.monotonic() >= time_out_at:
                self.timed_out = True
                return
            if due and time.monotonic() >= due:
                self._on_due()

    def _watch_more(self) -> bool:
        """Watch for checkpoints of the change set, and more of the workspace; true: all of it is watched."""
        if self.marks is not None and self.marks.fd < 0 and not self._marks_at_end:
            try:
                self.marks.watch()
                self._watch(self.marks.fd, self.marks.look)
            except OSError as error:  # inotify(7): the user's share is used up
                self._marks_at_end = True
                self._warn(f"the record names checkpoints at the end of the run: {error.strerror}")
        return all(guard.step() for guard in self.guards)

    def _watch_containers(self) -> None:
        if self.policy.containers != "nested":
            return
        from .containers import Containers

        places = {op.target: op.source for op in self.plan.mounts if isinstance(op, Bind)}
        try:
            self._contained = Containers((places["/var/lib/docker"], places["/var/lib/containers"]), self.log.add)
        except OSError as error:  # inotify(7): the user's share is used up
            self._warn(f"the record does not name containers: {error.strerror}")
            return
        self._watch(self._contained.fileno(), self._contained.on_change)

    def _name_no_more(self) -> None:
        """The bounds of what names containers are reached: it ends, and the record says so."""
        assert self._contained is not None
        self._unwatch(self._contained.fileno())
        self._contained.close()
        why, self._contained = self._contained.lacks, None
        self._lacks("names of containers", why)

    def _guard_files(self) -> None:
        for guard in self.guards:
            if guard.timeout() == 0:
                guard.on_change()
            if guard.overrun:
                self.failure = f"the command was killed: {guard.overrun}"

    def _on_cell(self, descriptor: int) -> None:
        news = self.cell.read(descriptor)
        if isinstance(news, Ended):
            self._unwatch(descriptor)
            self._launcher_ended()
        elif isinstance(news, Broken):
            self.failure = news.why
        elif isinstance(news, Hidden) and self._mount_points is not None:
            self._mount_points.on_mounted()
        elif isinstance(news, Frozen) and self._editor is not None:
            self._editor.frozen(news.made)

    def update_network(self, policy: Policy) -> None:
        """Decide by the network rules of ``policy`` from now on; connections that are open stay.

        Raises:
            PolicyError: it needs what the sandbox was not started with: inspection, or listeners for UDP.
        """
        from ..plan import network

        plan = network.plan_network(policy)
        if network.inspects(policy) != self.plan.inspect or set(plan.udp_ports) - set(self.plan.network.udp_ports):
            raise PolicyError("change the network rules", "inspection and UDP ports are fixed when a run starts")
        self.policy = self.policy.replace(allow=policy.allow, deny=policy.deny)
        self.gateway.update(self.policy)

    def _on_first_packet(self) -> None:
        for _role, fd in self.gateway.sockets:
            self._unwatch(fd)
        try:
            self.gateway.start()
        except MembraneError as error:
            self.failure = str(error)
            return
        self._watch_gateway()

    def _watch_gateway(self) -> None:
        self._watch(self.gateway.control, self._on_gateway)
        self._watch(self.gateway.pidfd, self._on_gateway_end)

    def _on_gateway(self) -> None:
        if not self.gateway.read():
            self._on_gateway_end()
        elif self.log.refused != self.record.refused or self.log.bytes_down != self.record.bytes_down:
            if time.monotonic() - self._recorded_at < RECORD_EVERY:
                return
            self._recorded_at = time.monotonic()
            self._show(
                self.record.replace(
                    refused=self.log.refused, bytes_up=self.log.bytes_up, bytes_down=self.log.bytes_down
                )
            )

    def _on_gateway_end(self) -> None:
        self._unwatch(self.gateway.control)
        self._unwatch(self.gateway.pidfd)
        while self.gateway.read():
            if not ready((self.gateway.control,), seconds=0.1)[0]:
                break
        cause = f": {self.gateway.error}" if self.gateway.error else ""
        self.failure = f"the gateway died; the command was killed{cause}"

    def _on_usage(self) -> None:
        assert self._usage is not None
        self._unwatch(self._usage.fd)
        self.failure = self.failure or self._usage.cause()

    def _on_tracer(self) -> None:
        assert self._tracer is not None
        running = self._tracer.read()
        self.log.flush()
        if not running:
            self._on_tracer_end()

    def _on_tracer_end(self) -> None:
        """Without an answer to its notifications the command can do nothing, and nothing may be done unseen."""
        assert self._tracer is not None
        self._unwatch(self._tracer.control)
        self._unwatch(self._tracer.pidfd)
        cause = f": {self._tracer.error}" if self._tracer.error else ""
        self.failure = self.failure or f"the tracer died; the command was killed{cause}"

    def _stop_tracer(self) -> None:
        if self._tracer is None:
            return
        try:
            finished = self._tracer.finish()
        except MembraneError as error:
            finished, self._tracer.error = False, str(error)
        if not finished:
            cause = f": {self._tracer.error}" if self._tracer.error else ""
            self.failure = self.failure or f"the end of the record could not be written{cause}"
            self._lacks(", ".join(self._tracer.sources) or "tracer", f"the tracer ended without its last word{cause}")

    def _lacks(self, source: str, why: str) -> None:
        """It is not known whether ``source`` has sent everything: one event, one line, and the record is incomplete."""
        self._lacking.append(f"{source}: {why}")
        self.log.add(EventsLost(source, 0, now(), now(), "session", why))
        what = "the record is incomplete" if self.log.wants_all else "refusals may be missing"
        say(f"{what}: {source}: {escape(why)}")

    def _end(self) -> int:
        self._recording = False
        if self.marks is not None:
            self.marks.look()
        self.gateway.on_question = self.gateway.on_withdrawn = None  # no answer is of use any more
        why = self.gateway.stop()
        if why:
            self._lacks("network", why)
        for guard in self.guards:
            try:
                guard.finish()
            except (MembraneError, OSError) as error:
                self.failure = self.failure or f"what the command left could not be looked at: {error}"
            else:
                self.failure = self.failure or _unguarded(guard)
        homes.keep(self.prepared.home, self.prepared.agent, self.policy.state_files)
        if self.log.lost:
            self.log.add(EventsLost("network", self.log.lost, now(), now()))
        if self.log.defects:
            self._lacking.append(f"network: {self.log.defects} failures by a defect, whose events may be missing")
        writer = self.log.record
        unwritten = (writer.lost if writer else 0) + (self._tracer.unwritten if self._tracer is not None else 0)
        if self.policy.trace.mode == "required" and (self._lacking or unwritten) and not self.failure:
            ended = self._exit_status()[0]
            self.failure = f"trace.mode is required and the record is incomplete; the command's status was {ended}"
        status, number = self._exit_status()
        self.log.add(
            SessionEnded(
                status,
                number,
                round((time.monotonic() - self.started) * 1000, 3),
                dict(self.log.counts),
                self.log.refused,
                self.log.lost + unwritten,
                tuple(self._left_behind()),
                incomplete=tuple(self._lacking),
            )
        )
        self.log.close()
        if writer is not None:
            self._after_record(writer, unwritten)
        self._report()
        return status

    def _after_record(self, writer: record.Writer, unwritten: int) -> None:
        """The trace log, made from the record, and room for the next one.

        Args:
            unwritten: events of any source that are not in the record.
        """
        if unwritten:  # said also with --quiet
            say(
                f"warning: the record is incomplete: {unwritten} events could not be written to "
                f"{escape(writer.directory)}: no room there, or more than a file may have (ulimit -f)"
            )
        if self._live_log is not None:
            why = self._live_log.wait()
            if why:
                self._warn(f"the trace log is cut off: {why}; the record is kept")
        if self.options.trace_log not in ("", "-"):  # what came late is joined to what it belongs to
            from ..record import export

            try:
                export.write_log(writer.directory, self.options.trace_log, self._log_place)
            except OSError as error:
                self._warn(f"cannot write {self.options.trace_log}: {error.strerror}; the record is kept")
        # A short run looks at the number of sessions only; now and then one looks at the sizes too.
        everything = writer.stored > record.WORTH_COMPRESSING or self.id.startswith("0")
        trace = self.policy.trace
        record.prune(self.state, keep=trace.keep, max_size=trace.max_size, everything=everything)

    def _left_behind(self) -> list[str]:
        """Protected names that the command made and that are still there."""
        return [path for guard in self.guards for path in (*guard.left, *guard.kept)]


def _cause(error: Exception) -> str:
    """Why the loop of a lifetime ended, as one line."""
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"the system refused: {error.strerror or error}{where}"
    return str(error) if isinstance(error, MembraneError) else f"internal error: {type(error).__name__}: {error}"


def _held(root: str, rules: Iterable[PathRule], found: ScanResult, tips: bytes, places: Trees) -> HeldTree:
    awaited = (f"{root}/{path}" for path, _ in zip(found.index.missing, range(MOST_AWAITED), strict=False))
    return HeldTree(root, tuple((rule.effect, rule.text) for rule in rules), tuple(awaited), tips, places.open)


def _unguarded(guard: Guard | Late) -> str:
    """Why a run fails whose command left what programs outside may execute; empty: it did not."""
    if guard.left:
        more = f" and {len(guard.left) - 1} more" if len(guard.left) > 1 else ""
        return f"{guard.left[0]}{more}: a protected name that the command made and that could not be taken away"
    return guard.unfinished


def _say_progress(count: int) -> None:
    say(f"looking at the workspace for the first time: {count} names so far")
