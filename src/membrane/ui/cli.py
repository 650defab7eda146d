"""The command line: arguments in, exit status out.

Theory of operation
-------------------
``main`` parses, hands the run to ``run.begin`` and ``session.run``, and turns errors into lines and exit statuses.  It
decides nothing about the sandbox.  A run imports only this module, ``options``, ``run.begin`` with the backend, and
then ``settings``, ``prepare`` and ``session``; each subcommand imports what it needs when it is called.

Exit status: the command's own, 128+N for signal N, 2 usage, 78 policy, 125 membrane failed, 126/127 as a shell,
130 interrupted before the command ran.
"""

from __future__ import annotations

import errno
import os
import sys

from ..errors import EX_WRAPPER, HostError, MembraneError, PolicyError
from ..escaping import escape, visible
from ..host.inherited import name_limit, settle
from . import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..backend import Backend
    from ..run.prepare import RunRequest
    from ..run.session import Hooks
    from ..run.settings import Loaded
    from .doctor import Row
    from .options import Invocation

INTERRUPTED = 130  # 128 + SIGINT
NOT_FOUND = 127  # exit status of a shell for a program that is not there
BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell shows a program that died of it
# What there is where the kernel is not Linux.
ELSEWHERE = ("run", "doctor", "gc", "config", "trace", "trust", "setup", "completion")
# What a container does where the kernel is not Linux: what needs a policy, and what works on change sets.
CARRIED = ("check", "plan", "learn", "ps")
ON_SETS = ("changes", "discard", "checkpoint", "restore", "fork", "diff", "review", "apply", "undo")
NO_SHELLS = ("nologin", "false", "true", "sync", "shutdown", "halt")  # login shells that are none


def main(argv: list[str]) -> int:
    """Run one command line without the program's name; return the exit status."""
    debug = False

    def work() -> int:
        nonlocal debug
        invocation = options.parse(argv)
        debug = invocation.has("debug")
        return _dispatch(invocation)

    return _reported(work, lambda: debug)


def run_carried(command: tuple[str, ...], policy: bytes, reported: dict[str, Any]) -> int:
    """A run that was resolved outside of this container (``ui.carried``); the exit status, as of ``main``."""
    from ..run import begin

    def request() -> RunRequest:
        from ..policy import codec
        from ..run import prepare

        chosen = prepare.RunOptions(**reported)
        words = command or shell({**os.environ, "SHELL": ""}, os.isatty(0))
        return prepare.RunRequest(words, codec.restore(policy), chosen)

    def work() -> int:
        from .. import backend

        begun = begin.begin(request, backend=backend.carried())
        from ..run import session  # beside the launcher

        return session.run(begun)

    return _reported(work, lambda: bool(reported.get("debug")))


_resolved: list[Loaded] = []  # in the container that carries a subcommand: its policy


def do_carried(subcommand: str, words: tuple[str, ...], given: dict[str, tuple[str, ...]], policy: bytes) -> int:
    """Another subcommand that was resolved outside of this container; the exit status, as of ``main``."""

    def work() -> int:
        from ..policy import codec
        from ..run import settings

        (command,) = (each for each in options.COMMANDS if each.name == subcommand)
        if command.name not in ON_SETS:
            _resolved.append(settings.Loaded(codec.restore(policy)))
        return _SUBCOMMANDS[subcommand](options.Invocation(command, given, words))

    return _reported(work, lambda: "debug" in given)


def _reported(work: Callable[[], int], is_debug: Callable[[], bool]) -> int:
    """The exit status of ``work``, or of its error, which is said."""
    debug = False
    try:
        try:
            status = work()
        finally:
            debug = is_debug()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except MembraneError as error:
        _traceback(debug)
        _say(name_limit(error.lines()))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _traceback(debug)
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _traceback(debug)
        where = f": {error.filename}" if error.filename else ""
        refused = f"the system refused: {error.strerror or error}{where}"
        if not where and _is_of_stdout(error):
            refused = f"cannot write to standard output: {error.strerror}; what was printed is not whole"
        _silence_stdout()
        _say([*name_limit([refused]), *_more(debug)])
        return EX_WRAPPER
    except Exception as error:
        _traceback(debug)
        _say([f"internal error: {type(error).__name__}: {error}", *_more(debug)])
        return EX_WRAPPER


def _more(debug: bool) -> tuple[str, ...]:
    return () if debug else ("  more: membrane --debug ...",)


def _say(lines: Iterable[str]) -> None:
    """Print lines on stderr, the first one with our name; a closed stderr is not an error."""
    if sys.stderr is None:  # print() would take stdout, which belongs to the command
        return
    try:
        for number, line in enumerate(lines):
            # A cause may quote a file of the workspace; it is one line and steers no terminal.
            print(("membrane: " if number == 0 else "") + visible(line), file=sys.stderr)
    except (OSError, ValueError):
        pass


def _note(line: str) -> None:
    _say([line])


def _traceback(wanted: bool) -> None:
    if wanted:
        import traceback

        traceback.print_exc()


def _is_of_stdout(error: OSError) -> bool:
    """Did writing to it fail?  Then a line more fails as well; what was larger than its buffer is in it no more."""
    if sys.stdout is None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return False
    try:
        print(flush=True)
    except OSError as again:
        return again.errno == error.errno
    return False


def _silence_stdout() -> None:
    """Point stdout at /dev/null, so that the flush at exit does not fail again on what could not be written."""
    try:
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return  # then the flush fails again, and is reported again
    try:
        os.dup2(fd, 1)
    finally:
        os.close(fd)


def _dispatch(invocation: Invocation) -> int:
    if invocation.has("help"):
        print(options.help_text(invocation.command))
        return 0
    if invocation.has("version"):
        from ..run.installed import VERSION

        print(f"membrane {VERSION}")
        return 0
    if sys.platform != "linux" and (name := invocation.command.name) not in ELSEWHERE:
        if name in (*CARRIED, *ON_SETS):
            return _carry(invocation, _load(invocation, invocation.words if name in ("plan", "learn") else ()))
        cause = f"membrane {name} needs Linux; here a container carries runs, and their records can be read"
        raise PolicyError("do that on this system", cause, fix=("membrane -- COMMAND", "membrane trace show @last"))
    if sys.platform == "linux":
        settle()
    if invocation.command is options.RUN:
        return _reset(invocation) if invocation.has("reset") else _run(invocation)
    return _SUBCOMMANDS[invocation.command.name](invocation)


# ---------------------------------------------------------------- a run


def shell(environ: dict[str, str], terminal: bool) -> tuple[str, ...]:
    """The command of a run without a command: the caller's shell, else bash, else sh."""
    chosen = environ.get("SHELL", "")
    for path in (chosen, "/bin/bash", "/bin/sh"):
        if path.startswith("/") and os.path.basename(path) not in NO_SHELLS and os.access(path, os.X_OK):
            return (path, "-i") if terminal else (path,)
    raise HostError("find a shell", "neither $SHELL nor /bin/bash nor /bin/sh can be executed")


def _current() -> str:
    from ..run.project import current

    return current()


def _load(invocation: Invocation, command: tuple[str, ...]) -> Loaded:
    from ..run import settings

    if _resolved:
        return _resolved[0]
    environ = dict(os.environ)
    given = invocation.fields("policy")
    if invocation.has("no-trace"):
        given["trace"] = "off"
    home = settings.state_home(environ)
    loaded = settings.load_policy(given, environ, _current(), home, command=command)
    if not invocation.has("quiet"):
        for warning in loaded.warnings:
            _note(f"warning: {warning}")
    if loaded.policy.file_rules is not None:
        from ..policy.files import anchored

        return loaded.replace(policy=anchored(loaded.policy, _current()))
    return loaded


def _run(invocation: Invocation) -> int:
    if invocation.has("yes"):
        raise options.UsageError("parse the command line", "--yes goes with --reset")
    command = invocation.words or shell(dict(os.environ), os.isatty(0))
    if sys.platform != "linux" or _is_carried(invocation.last("backend")):
        return _carry(invocation, _load(invocation, command))
    events = events_place(invocation.last("events"))  # before a descriptor of ours could have its number

    def policy() -> Loaded:
        loaded = _load(invocation, command)
        if _is_carried(loaded.policy.backend):
            raise _Carried(loaded)
        return loaded

    try:
        return _run_with(invocation, command, events, policy)
    except _Carried as carried:
        return _carry(invocation, carried.loaded)


def _is_carried(backend: str) -> bool:
    if not backend:
        return False
    from ..policy.model import CARRIERS

    return backend in CARRIERS


class _Carried(Exception):
    """The policy says that a container carries the run; what was begun natively is given up on the way."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded


def _carry(invocation: Invocation, loaded: Loaded) -> int:
    from . import carry

    return carry.run(invocation, loaded.policy, _current(), _state())


def _run_with(
    invocation: Invocation,
    command: tuple[str, ...],
    events: str,
    policy: Callable[[], Loaded],
    hooks: Hooks | None = None,
) -> int:
    def request() -> RunRequest:
        loaded = policy()
        if invocation.has("apply") and loaded.policy.workspace != "review":
            cause = "--apply is about changes that are kept apart, and the workspace is live"
            raise PolicyError("read the options", cause, fix=("--review",))
        from ..run import prepare

        # A shell of this machine may not be in the image, which says what it runs without a command.
        words = command if invocation.words or not loaded.policy.image else ()
        fields: dict[str, Any] = {**invocation.fields("run"), "events": events}
        reported = prepare.RunOptions(debug=invocation.has("debug"), **fields)
        return prepare.RunRequest(words, loaded.policy, reported)

    from ..run import begin

    begun = begin.begin(request)
    try:
        from ..run import session  # beside the launcher

        status = session.run(begun, hooks)
    except BrokenPipeError as error:
        # Not our stdout, which a run never writes to: the other end is a process of the sandbox.
        raise HostError("talk to the sandbox", "a process of it has died", fix=("membrane --debug ...",)) from error
    if status == NOT_FOUND and (guess := _meant(command)) and not invocation.has("quiet"):
        behind = guess == command[0]
        _note(
            f"{command[0]}: no such program; "
            + (
                f"the subcommand is the first word: membrane {guess} ..."
                if behind
                else f"did you mean membrane {guess}?"
            )
        )
    return status


def _start(invocation: Invocation) -> int:
    from . import detached

    name, command = detached.split(invocation.words)
    command = command or shell(dict(os.environ), terminal=True)
    events = events_place(invocation.last("events"))
    loaded = _load(invocation, command)  # a project file is asked about on the terminal that is here
    kept = int(events.removeprefix("fd:")) if events.startswith("fd:") else -1
    begun, status, said = detached.begin(_state(), name, _current(), kept=kept)
    if begun is not None:  # this process is the run now
        return _run_with(invocation, command, events, lambda: loaded, begun)
    if said and not invocation.has("quiet"):
        _note(said)
    return status


def _attach(invocation: Invocation) -> int:
    from . import detached

    return detached.attach(_state(), "".join(invocation.words), _note)


def _stop(invocation: Invocation) -> int:
    from . import detached

    return detached.stop(_state(), "".join(invocation.words))


# What is looked for under a name that no command has.
_ELSEWHERE = {"policy": "config show", "help": "--help", "version": "--version", "sessions": "ps", "status": "ps"}


def _meant(command: tuple[str, ...]) -> str:
    """The subcommand that a program which is nowhere most likely stands for; empty if none or if it exists."""
    import shutil

    names = [known.name for known in options.COMMANDS[1:]]
    if "/" in command[0] or shutil.which(command[0]):
        return ""
    return _ELSEWHERE.get(command[0]) or options.closest(command[0], names)


def events_place(given: str) -> str:
    """Where ``--events`` writes, as ``event_log.EventLog`` takes it; a descriptor of the caller's is ours from now on.

    Raises:
        UsageError: ``-``, which would be read as stderr; no number of a descriptor.
        HostError: nothing that can be written to is open there.
    """
    if given == "-":
        raise options.UsageError(
            "parse the command line",
            "--events - would mix the events with what the command writes to stderr, which may look like events",
            fix=(
                "--events FILE",
                "--events fd:3 3>FILE",
                "--events stderr, for both in one stream all the same",
            ),
        )
    if not given.startswith("fd:"):
        return given
    import fcntl

    if not given[3:].isdecimal() or len(given) > 9 or int(given[3:]) < 3:
        raise options.UsageError("parse the command line", f"--events fd:N takes a descriptor from 3 on, not {given!r}")
    number = int(given[3:])
    try:
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise HostError("write events", "it is open for reading only", target=given)
        own = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        raise HostError("write events", error.strerror or "", target=given, fix=("--events fd:3 3>FILE",)) from None
    os.close(number)
    return f"fd:{own}"


def _reset(invocation: Invocation) -> int:
    if invocation.words:
        raise options.UsageError("parse the command line", "--reset runs no command", fix=("membrane --reset=c",))
    from ..run import registry, settings
    from . import reset

    letters = reset.check_letters(invocation.last("reset"))
    state = os.path.realpath(settings.state_home(os.environ))
    return reset.reset(
        letters,
        state,
        yes=invocation.has("yes"),
        alive=[record.id for record in registry.list_sessions(state) if record.alive],
        collect=lambda: registry.collect_garbage(state),
        ask=reset.confirm,
        say=_note,
    )


# ---------------------------------------------------------------- subcommands


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _home() -> str:
    return os.environ.get("HOME", "")


def _state() -> str:
    from ..run import settings

    return os.path.realpath(settings.state_home(os.environ))


def _check(invocation: Invocation) -> int:
    from ..plan import build, mounts
    from ..policy.model import Allow, Deny
    from ..run import check
    from ..run.prepare import facts_for
    from . import show

    policy = _load(invocation, ()).policy
    if invocation.has("list"):
        if invocation.has("json"):
            print(show.as_json(show.policy_data(policy, show.HOST_FIELDS)))
        else:
            _print(show.host_rules(policy, _home()))
        return 0
    host = facts_for(policy)
    found = check.check(invocation.words[0], invocation.last("method"), policy, host)
    try:
        build.refuse(mounts.as_found(policy, host)[0], host)
    except PolicyError as error:
        _note(f"warning: a run would stop: {error.headline()}")
    if invocation.has("json"):
        print(show.as_json(show.answer_data(found)))
    else:
        _print(show.answer(found, _home()))
    if isinstance(found.verdict, Allow):
        return 0
    return 1 if isinstance(found.verdict, Deny) else 2


def _plan(invocation: Invocation) -> int:
    from ..host.seccomp import program
    from ..record import coverage
    from ..run import prepare
    from . import show

    command = invocation.words or shell(dict(os.environ), os.isatty(0))
    loaded = _load(invocation, command)
    if not _resolved and _is_carried(loaded.policy.backend):
        return _carry(invocation, loaded)
    policy = loaded.policy
    made = prepare.make_plan(policy, command, backend=_backend())
    full = policy.trace.mode == "full"
    sources = ("network",) if policy.trace.mode == "off" else ("ebpf, notify", "notify")
    seccomp = len(program(nested=made.hardening.nested, machine=os.uname().machine)) // 8
    record = {
        "command": " ".join(command),
        "trace": policy.trace.mode,
        "file": invocation.last("trace-log"),
        "events": invocation.last("events"),
        "max_size": policy.trace.max_size,
        "keep": policy.trace.keep,
        # Which source it will be is known when the run begins; ``SessionStarted`` says it then.
        **{
            f"no event of a refusal with {source}": "; ".join(coverage.silent(source, reads=full)) for source in sources
        },
    }
    if invocation.has("json"):
        print(show.as_json(show.plan_data(made, policy, record, seccomp, _home())))
    else:
        _print(show.plan(made, policy, record, seccomp, _home()))
    return 0


def _backend() -> Backend | None:
    """What makes a sandbox in the container that carries us; None: what the policy says."""
    from .. import backend

    return backend.carried() if _resolved else None


def _features() -> list[Row]:
    from . import doctor

    if sys.platform != "linux":
        from . import carry

        return carry.features()
    from ..host import probe
    from ..tracer import ebpf, permission

    source = ebpf.best_source()
    if not isinstance(source, str):
        source.close()
    why = source if isinstance(source, str) else ""
    return doctor.with_sources(
        probe.features(), why, permitted=not permission.why_not(), built=os.path.exists(ebpf.OBJECT)
    )


def _doctor(invocation: Invocation) -> int:
    from . import doctor, show

    rows = _features()
    if invocation.has("json"):
        print(show.as_json(doctor.as_data(rows)))
    else:
        _print(show.doctor(doctor.findings(rows)))
    return 0 if doctor.ready(rows) else 1


def _trust(invocation: Invocation) -> int:
    from ..run import settings

    workspace = _current()
    if invocation.words:
        workspace = os.path.realpath(invocation.words[0])
        if not os.path.isdir(workspace):
            raise HostError("trust", "not a directory", target=invocation.words[0])
    state = _state()
    review = settings.review_project(workspace, state)
    if review is not None:
        file = escape(review.path)
        print(f"{file} widens:" if review.widening else f"{file} widens nothing")
        print("".join(f"{line}\n" for line in settings.shown(review)), end="")
        sys.stdout.flush()  # what is approved was shown
    settings.trust_project(workspace, state, review)
    print("trusted as it is now; a change needs a new approval")
    return 0


def _ps(invocation: Invocation) -> int:
    import time

    from ..run import registry
    from . import show

    records = [record for record in registry.list_sessions(_state()) if record.alive]
    if invocation.has("json"):
        print(show.as_json(show.sessions_data(records)))
    else:
        _print(show.sessions(records, time.time(), _home()))
        from . import detached

        names = detached.names(_state())
        alive = [record.id for record in records if record.id in names]
        _print(f"{session} was started: membrane attach {names[session]}" for session in alive)
    return 0


def _exec(invocation: Invocation) -> int:
    from . import exec as joining

    words = invocation.words
    return joining.main(words[0], words[1:] or shell(dict(os.environ), os.isatty(0)), _state())


def _gc(invocation: Invocation) -> int:
    from ..changes import store
    from ..run import registry
    from . import carry, show

    removed = carry.collect(_state())
    if sys.platform != "linux":  # the sessions hold their locks in the machine of the containers, not here
        _print([f"removed {escape(path)}" for path in removed] or ["nothing to remove"])
        return 0
    removed += registry.collect_garbage(_state())
    if pieces := store.collect(_state()):
        removed.append(f"{pieces} unfinished pieces of change sets")
    if slots := registry.collect_traces():
        removed.append(f"tracing slots of {slots} killed tracers")
    if invocation.has("json"):
        print(show.as_json({"removed": removed}))
    else:
        _print([f"removed {escape(path)}" for path in removed] or ["nothing to remove"])
    return 0


def _review(invocation: Invocation) -> int:
    from . import review

    return review.main(invocation, _state())


def _changes(invocation: Invocation) -> int:
    from . import changes

    return changes.main(invocation, _state(), _home())


def _image(invocation: Invocation) -> int:
    from . import images

    return images.main(invocation, _state(), _note)


def _config(invocation: Invocation) -> int:
    from ..run import settings
    from . import show

    state = _state()
    user = settings.config_path(state)
    action = invocation.words[0]
    if action == "import":
        from . import importer

        sys.stdout.write(importer.convert_file(invocation.words[1], invocation.words[2], dict(os.environ)))
        return 0
    if action == "show":
        policy = _load(invocation, ()).policy
        if invocation.has("json"):
            print(show.as_json(show.policy_data(policy)))
        else:
            _print(show.policy(policy, _home()))
        return 0
    if action == "path":
        project = settings.project_file()
        paths = {"user": user, "project": project, "trust": os.path.join(state, "trusted.yaml")}
        if invocation.has("json"):
            print(show.as_json({name: {"path": path, "exists": os.path.exists(path)} for name, path in paths.items()}))
        else:
            for name, path in paths.items():
                print(f"{name:<8} {'' if os.path.exists(path) else '(absent) '}{escape(path)}")
        return 0
    if settings.write_config(state):
        print(f"wrote {escape(user)}")
        return 0
    cause = f"{user} exists and is never overwritten"
    raise options.UsageError("write the commented template", cause, fix=("edit it, or move it away first",))


def _trace(invocation: Invocation) -> int:
    from . import trace

    return trace.main(invocation, _state(), _home())


def _learn(invocation: Invocation) -> int:
    from . import learn

    if invocation.has("from"):
        return learn.from_records(invocation, _state())
    loaded = _load(invocation, invocation.words) if invocation.words else None
    if loaded is not None and not _resolved and _is_carried(loaded.policy.backend):
        return _carry(invocation, loaded)
    return learn.from_run(invocation, loaded, _state(), _backend())


def _mcp(invocation: Invocation) -> int:
    from . import mcp

    if invocation.words[0] == "serve":
        return mcp.serve()
    for line in mcp.wrap(invocation.words[1]):
        print(line)
    import shutil

    if shutil.which("membrane") is None:
        where = os.path.dirname(os.path.abspath(sys.argv[0]))
        _note(f"warning: a client starts these servers by the name membrane, which is not in PATH; add {where} to it")
    return 0


def _completion(invocation: Invocation) -> int:
    from . import completion

    sys.stdout.write(completion.script(invocation.words[0]))
    return 0


def _setup(invocation: Invocation) -> int:
    if invocation.words[0] == "container":
        from . import containers

        if invocation.words[1] not in containers.KINDS:
            known = ", ".join(containers.KINDS)
            raise options.UsageError("parse the command line", f"setup container needs one of: {known}")
        sys.stdout.write(containers.text(invocation.words[1]))
        return 0
    from . import setup

    if invocation.words[0] == "tracing":
        setup.tracing(os.path.abspath(sys.argv[0]), print)
    elif invocation.words[0] == "userns":
        from . import apparmor

        apparmor.userns(os.path.abspath(sys.argv[0]), print)
    elif invocation.words[0] == "no-userns":
        from . import apparmor

        apparmor.no_userns(print)
    else:
        setup.no_tracing(print)
    return 0


_SUBCOMMANDS: dict[str, Callable[[Invocation], int]] = {
    "check": _check,
    "plan": _plan,
    "doctor": _doctor,
    "trust": _trust,
    "trace": _trace,
    "learn": _learn,
    "exec": _exec,
    "start": _start,
    "attach": _attach,
    "stop": _stop,
    "ps": _ps,
    "gc": _gc,
    **dict.fromkeys(("changes", "discard", "checkpoint", "restore", "fork"), _changes),
    **dict.fromkeys(("diff", "review", "apply", "undo"), _review),
    "image": _image,
    "config": _config,
    "mcp": _mcp,
    "setup": _setup,
    "completion": _completion,
}
