"""The one table of options and subcommands, and the parser of the run path.

Theory of operation
-------------------
``OPTIONS`` and ``COMMANDS`` hold everything that can be typed; the options that make up a policy are those of
``policy.keys``.  The parser below, ``--help``, the shell completions, the man page and the README table
(``completion.py``) are made from them, so they cannot disagree.

Rules
-----
1. A run's options stop at ``--`` or at the first word that is not an option: nothing that belongs to the wrapped
   command is ever read.
2. ``-a V``, ``-aV``, ``-a=V``, ``--allow V`` and ``--allow=V`` mean the same.  A value that starts with ``-`` must be
   joined with ``=``, so that a forgotten value never swallows the next option or the ``--``; but that of ``--arg``,
   which is a word for ``docker run``: one that is none of its options is refused there.
3. A subcommand is the very first word or nothing: ``membrane -- ps`` and ``membrane -q ps`` run the program ``ps``.
4. Names are exact: an abbreviation would change its meaning when an option is added.
"""

from __future__ import annotations

from ..errors import PolicyError
from ..policy import keys
from ..policy.keys import Option
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, TypeAlias

    from ..policy.keys import Scope

    Words: TypeAlias = Literal["command", "file", "directory", "target", "session", "changes", "joins", "name", "none"]


class UsageError(PolicyError):
    """The command line cannot be understood; exit status 2 as getopt programs use it."""

    exit_code = 2


class Command(Value):
    """One subcommand."""

    name: str
    usage: str
    help: str
    example: tuple[str, ...]
    scopes: tuple[Scope, ...] = ("own",)
    options: tuple[str, ...] = ()  # of scope "command", and single ones of others
    words: Words = "none"
    choices: tuple[str, ...] = ()  # closed choice of its first word
    further: tuple[tuple[str, int], ...] = ()  # how many words follow a choice; none if it is not named
    names: tuple[str, ...] = ()  # the words that it needs, one each
    rare: bool = False  # as of ``Option``


OPTIONS: tuple[Option, ...] = (
    *(option for option in keys.OPTIONS if option.scope == "policy"),
    # ------------------------------------------------------------ record
    Option(
        "events",
        "record",
        "every event as a JSON line; or fd:N, stderr",
        "run",
        metavar="FILE",
        completes="file",
        example="membrane --events run.jsonl -- make",
    ),
    Option(
        "trace-log",
        "record",
        "the record as Tracee's JSON lines; -: stderr, live",
        "run",
        metavar="FILE",
        completes="file",
        example="membrane --trace-log run.jsonl.gz -- make",
    ),
    Option("no-trace", "record", "keep no record of the run", "run", example="membrane --no-trace -- make"),
    Option(
        "session-id-file",
        "record",
        "write the session id here before the start",
        "run",
        metavar="FILE",
        completes="file",
        example="membrane --session-id-file id -- make",
    ),
    Option(
        "quiet",
        "record",
        "no summary of refusals, no progress",
        "run",
        short="q",
        example="membrane --quiet -- make",
    ),
    Option(
        "ask",
        "network",
        "ask on the terminal about what no rule decides",
        "run",
        example="membrane --ask -- claude",
    ),
    # ------------------------------------------------------------ membrane
    Option(
        "reset",
        "membrane",
        "remove c dead sessions, i caches, d all else",
        "own",
        metavar="cid",
        optional=True,
        default="cid",
        example="membrane --reset=ci",
    ),
    Option("yes", "membrane", "do not ask before --reset", "own", rare=True, example="membrane --reset=c --yes"),
    Option("debug", "membrane", "show tracebacks and internal detail", "own", example="membrane --debug -- true"),
    Option("version", "membrane", "print the version", "own", example="membrane --version"),
    Option("help", "membrane", "print this help", "own", short="h", example="membrane check --help"),
    # ------------------------------------------------------------ of subcommands
    Option("json", "output", "one JSON object on stdout", "command", example="membrane plan --json"),
    Option("stat", "output", "lines added and deleted, by file", "command", example="membrane diff --stat"),
    Option("name-status", "output", "names with the kind of change", "command", example="membrane diff --name-status"),
    Option("html", "output", "one page that loads and runs nothing", "command", example="membrane diff --html"),
    Option(
        "all", "apply", "also what outside programs would execute or obey", "command", example="membrane apply --all"
    ),
    Option(
        "rest", "apply", "where the host changed some names, all others", "command", example="membrane apply --rest"
    ),
    Option(
        "merge", "apply", "merge what both sides changed, where it merges", "command", example="membrane apply --merge"
    ),
    Option("patch", "apply", "ask about each hunk", "command", rare=True, short="p", example="membrane apply --patch"),
    Option("dry-run", "apply", "only say what would be done", "command", example="membrane apply --dry-run"),
    Option("continue", "apply", "finish an apply that was cut off", "command", example="membrane apply --continue"),
    Option("abort", "apply", "take back an apply that was cut off", "command", example="membrane apply --abort"),
    Option(
        "method",
        "question",
        "of a URL (default GET); read or write for a path",
        "command",
        short="X",
        metavar="METHOD",
        values=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "read", "write"),
        example="membrane check https://api.example.com/v1/messages -X POST",
    ),
    Option(
        "list",
        "question",
        "instead of a target: every host rule, and its source",
        "command",
        rare=True,
        example="membrane check --list",
    ),
    Option(
        "kind",
        "choose",
        "events of this kind: process, file, conn, access, ...",
        "command",
        metavar="KIND",
        repeatable=True,
        example="membrane trace show @last --kind file --kind process",
    ),
    Option("denied", "choose", "refusals only", "command", example="membrane trace show @last --denied"),
    Option(
        "pid",
        "choose",
        "a process and what it started",
        "command",
        metavar="PID",
        example="membrane trace show --pid 42",
    ),
    Option(
        "program",
        "choose",
        "processes of this name",
        "command",
        metavar="NAME",
        example="membrane trace show @last --program curl",
    ),
    Option(
        "path",
        "choose",
        "paths like this; ** spans directories",
        "command",
        metavar="GLOB",
        example="membrane trace show @last --path 'src/**'",
    ),
    Option(
        "host",
        "choose",
        "a name, *.name or address",
        "command",
        metavar="HOST",
        completes="host",
        example="membrane trace show @last --host pypi.org",
    ),
    Option(
        "since",
        "choose",
        "from this time (ISO 8601, UTC), or checkpoint, on",
        "command",
        metavar="TIME",
        example="membrane trace show @last --since 2026-01-02T03:04",
    ),
    Option(
        "until",
        "choose",
        "up to this time, or checkpoint",
        "command",
        metavar="TIME",
        example="membrane trace show @last --until 2026-01-02T03:05",
    ),
    Option(
        "format",
        "output",
        "of export: tracee (default), events, ocsf or otlp",
        "command",
        metavar="FORMAT",
        values=("tracee", "events", "ocsf", "otlp"),
        example="membrane trace export @last --format ocsf",
    ),
    Option(
        "follow", "output", "go on until the session ends", "command", example="membrane trace export @last --follow"
    ),
    Option(
        "output",
        "output",
        "write to FILE; - is stdout",
        "command",
        short="o",
        metavar="FILE",
        completes="file",
        example="membrane trace report @last -o run.html",
    ),
    Option(
        "from",
        "learn",
        "learn from a recorded session instead of a run",
        "command",
        metavar="SESSION",
        repeatable=True,
        example="membrane learn --from @last --from @2",
    ),
    Option(
        "observe",
        "learn",
        "let it reach every host while it is watched",
        "command",
        example="membrane learn --observe -- npm install",
    ),
)

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "[OPTIONS] [--] [COMMAND ...]",
        "run a command (the same as without the word run)",
        ("membrane run -a pypi.org -- pip download six",),
        scopes=("policy", "run", "own"),
        words="command",
    ),
    Command(
        "check",
        "TARGET|--list [-X METHOD] [--json] [OPTIONS]",
        "ask whether a host, port, URL, address, path or socket is allowed, and by which rule",
        ("membrane check https://api.example.com/v1/messages -X POST", "membrane check .env"),
        scopes=("policy", "own"),
        options=("method", "list", "json"),
        words="target",
    ),
    Command(
        "plan",
        "[--json] [OPTIONS] [--] [COMMAND ...]",
        "print everything a run would do: mounts, listeners, limits, and what binds each rule",
        ("membrane plan -a pypi.org -- pip download six",),
        scopes=("policy", "run", "own"),
        options=("json",),
        words="command",
    ),
    Command(
        "doctor",
        "[--json]",
        "try what this machine can do; cause and fix of what it cannot",
        ("membrane doctor",),
        options=("json",),
    ),
    Command(
        "trust",
        "[DIRECTORY]",
        "approve the .membrane.yaml of a workspace as it is now, and show what it widens",
        ("membrane trust ~/src/project",),
        words="directory",
    ),
    Command(
        "exec",
        "NAME|SESSION|DIRECTORY [--] [COMMAND ...]",
        "run a command, or a shell, in the sandbox of a running session",
        ("membrane exec @last -- sh", "membrane exec fix-login -- git log"),
        words="joins",
        rare=True,
    ),
    Command(
        "start",
        "[OPTIONS] [NAME --] [COMMAND ...]",
        "run a command on a terminal of its own, which attach shows and stop ends",
        ("membrane start api -- npm run dev", "membrane attach api"),
        scopes=("policy", "run", "own"),
        words="command",
        rare=True,
    ),
    Command(
        "attach",
        "[NAME]",
        "be the terminal of a started session; Ctrl-\\ d lets go of it",
        ("membrane attach api",),
        words="name",
        rare=True,
    ),
    Command(
        "stop",
        "[NAME]",
        "end a started session, and wait for its end",
        ("membrane stop api",),
        words="name",
        rare=True,
    ),
    Command(
        "ps",
        "[--json]",
        "list the running sessions; also start (without this terminal), attach, stop, exec",
        ("membrane ps",),
        options=("json",),
    ),
    Command("gc", "[--json]", "remove what dead sessions left behind", ("membrane gc",), options=("json",)),
    Command(
        "changes",
        "[--json]",
        "list change sets; also diff, review, apply, undo, discard, checkpoint, restore, fork",
        ("membrane changes",),
        options=("json",),
    ),
    Command(
        "diff",
        "[NAME] [PATH ...] [--stat|--name-status|--html|--json]",
        "what a reviewed command changed, as a patch that git applies",
        ("membrane diff fix-login", "membrane diff src --stat"),
        options=("stat", "name-status", "html", "json"),
        words="changes",
        rare=True,
    ),
    Command(
        "review",
        "[NAME] [PATH ...]",
        "choose files and hunks of a change set on a full screen, and put them in place",
        ("membrane review fix-login", "membrane review src"),
        words="changes",
        rare=True,
    ),
    Command(
        "apply",
        "[NAME] [PATH ...] [--all] [--rest] [--patch] [--dry-run]",
        "put in place what a reviewed command changed, wholly or not at all",
        ("membrane apply fix-login", "membrane apply fix-login src --dry-run", "membrane apply --abort fix-login"),
        options=("all", "rest", "merge", "patch", "dry-run", "continue", "abort", "json"),
        words="changes",
        rare=True,
    ),
    Command(
        "undo",
        "[NAME] [--rest]",
        "bring the workspace back to what it was before the last apply",
        ("membrane undo fix-login",),
        options=("rest",),
        words="changes",
        rare=True,
    ),
    Command(
        "discard",
        "NAME",
        "remove a change set with all that was changed in it",
        ("membrane discard fix-login",),
        names=("NAME",),
        rare=True,
    ),
    Command(
        "checkpoint",
        "NAME LABEL",
        "keep what a change set holds now, to go back to",
        ("membrane checkpoint fix-login before-refactoring",),
        names=("NAME", "LABEL"),
        rare=True,
    ),
    Command(
        "restore",
        "NAME LABEL",
        "put a change set back to a checkpoint",
        ("membrane restore fix-login before-refactoring",),
        names=("NAME", "LABEL"),
        rare=True,
    ),
    Command(
        "fork",
        "NAME NEW",
        "begin a new change set with what another one holds",
        ("membrane fork fix-login other-way",),
        names=("NAME", "NEW"),
        rare=True,
    ),
    Command(
        "config",
        "show|path|init|import srt|claude|codex|membrane|cagent FILE [OPTIONS]",
        "show the policy in force and its files, write a commented one, import settings",
        ("membrane config show", "membrane config import srt ~/.srt-settings.json > .membrane.yaml"),
        scopes=("policy", "own"),
        options=("json",),
        choices=("show", "path", "init", "import"),
        further=(("import", 2),),
    ),
    Command(
        "image",
        "ls [--json] | pull [--platform OS/ARCH] REF | rm REF | prune | init FILE",
        "images that --image uses: list, fetch, remove one or all unused; write a Dockerfile",
        ("membrane image pull python:3.12", "membrane image init Dockerfile"),
        options=("json", "platform"),
        choices=("ls", "pull", "rm", "prune", "init"),
        further=(("pull", 1), ("rm", 1), ("init", 1)),
        rare=True,
    ),
    Command(
        "mcp",
        "wrap FILE | serve",
        "put the servers of an .mcp.json behind the boundary; serve our own tools",
        ("membrane mcp wrap .mcp.json", "membrane mcp serve"),
        choices=("wrap", "serve"),
        further=(("wrap", 1),),
    ),
    Command(
        "trace",
        "ACTION [SESSION] [--json] ...",
        "the record of a run: list, show, summary, report, watch, verify, export",
        ("membrane trace summary @last", "membrane trace show @last --denied", "membrane trace report @2 -o run.html"),
        options=(
            "kind",
            "denied",
            "pid",
            "program",
            "path",
            "host",
            "since",
            "until",
            "format",
            "follow",
            "output",
            "json",
        ),
        words="session",
        choices=("list", "show", "summary", "report", "watch", "verify", "export"),
    ),
    Command(
        "learn",
        "[--observe] [OPTIONS] [--] COMMAND ... | --from SESSION ...",
        "run a command and print the smallest policy that admits what it tried",
        ("membrane learn -- npm test", "membrane learn --from @last"),
        scopes=("policy", "run", "own"),
        options=("from", "observe", "output"),
        words="command",
    ),
    Command(
        "setup",
        "tracing|no-tracing|userns|no-userns|container KIND",
        "as root: eBPF for the group membrane, Ubuntu's AppArmor; what a container needs",
        ("membrane setup tracing", "membrane setup userns", "membrane setup container docker"),
        choices=("tracing", "no-tracing", "userns", "no-userns", "container"),
        further=(("container", 1),),
    ),
    Command(
        "completion",
        "bash|zsh|fish|man",
        "print a completion script or the man page",
        ("source <(membrane completion bash)", "membrane completion man > membrane.1"),
        choices=("bash", "zsh", "fish", "man"),
    ),
)

RUN = COMMANDS[0]
_BY_NAME = {command.name: command for command in COMMANDS}
_DEFAULT_OWN = ("debug", "help", "version")  # the options of scope "own" that a subcommand other than run has


def options_of(command: Command) -> tuple[Option, ...]:
    """The rows that ``command`` accepts, in table order."""
    return tuple(
        option
        for option in OPTIONS
        if option.name in command.options
        or (
            option.scope in command.scopes
            and option.scope != "command"
            and (option.scope != "own" or command is RUN or option.name in _DEFAULT_OWN)
        )
    )


# ---------------------------------------------------------------- parser


class Invocation(Value):
    """A command line that was understood.

    ``given`` holds every option that was typed, by name, with its values in order; a flag has one empty value.
    """

    command: Command
    given: dict[str, tuple[str, ...]]
    words: tuple[str, ...]  # of the wrapped command or of the subcommand

    def has(self, name: str) -> bool:
        """Was the option typed?"""
        return name in self.given

    def last(self, name: str, default: str = "") -> str:
        """The value of an option that counts once: the last one typed."""
        return self.given[name][-1] if name in self.given else default

    def fields(self, scope: Scope) -> dict[str, str | bool | tuple[str, ...]]:
        """The typed options of ``scope`` as ``settings.Given`` or arguments of ``prepare.RunOptions``."""
        out: dict[str, str | bool | tuple[str, ...]] = {}
        for option in OPTIONS:
            if option.scope == scope and option.name in self.given:
                values = self.given[option.name]
                out[option.key] = values if option.repeatable else values[-1] if option.metavar else True
        return out


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that ``word`` begins or most likely stands for, or an empty string."""
    import difflib

    known = tuple(known)
    begun = [name for name in known if name.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    if turned := [name for name in known if sorted(name) == sorted(word)]:
        return turned[0]  # "exce"
    # Of a short word two letters are half: "sudo" is no misspelled "undo".
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.8 if len(word) < 5 else 0.7)
    return found[0] if found else ""


# Options of the Go program of this name, and of ``docker run``, that have nothing to do here.
_ELSEWHERE = {
    "--no-update": "nothing here updates itself",
    "--trace": "every session is recorded",
    "--rm": "nothing of a run is left",
    **dict.fromkeys(("-t", "--tty", "--interactive"), "on a terminal the command gets one of its own"),
}
# What is typed for them by who comes from ``docker run`` (docs/coming-from.md), and what is meant.
_INSTEAD = {
    **dict.fromkeys(("-v", "--volume"), "--mount SOURCE:TARGET, or SOURCE:TARGET:rw"),
    **dict.fromkeys(("-e",), "--env NAME=VALUE"),
    **dict.fromkeys(("-p", "--publish"), "--expose INSIDE:OUTSIDE"),
    **dict.fromkeys(("-w", "--workdir"), "cd DIRECTORY   # the workspace is where you stand"),
    **dict.fromkeys(("-d", "--detach", "--name"), "membrane start NAME -- COMMAND"),
    **dict.fromkeys(("-m", "--memory", "--cpus", "--pids-limit"), "--limit memory=4G, --limit pids=500"),
    **dict.fromkeys(("--network", "--net"), "--no-presets, and -a HOST for what is to be open"),
    **dict.fromkeys(("--gpus",), "--device gpu"),
    **dict.fromkeys(("--add-host",), "--connect PORT   # inside: host.internal:PORT"),
    **dict.fromkeys(
        ("-u", "--user", "--privileged", "--cap-add"), "leave it out: the command is you, without capabilities"
    ),
    **dict.fromkeys(("--entrypoint",), "membrane -- COMMAND"),
    **dict.fromkeys(("-V", "--v"), "membrane --version"),
}
# ``-i`` is another option there, which takes no value: what follows would hide files.
_DOCKER_BUNDLES = frozenset({"-it", "-ti", "-id", "-di", "-itd", "-idt", "-tid", "-dit", "-td", "-dt"})


def _unknown(typed: str, command: Command) -> UsageError:
    if command.words == "command" and typed in _DOCKER_BUNDLES:
        cause = f"{typed} is an option of docker run: on a terminal the command gets one of its own, so leave it out"
        pattern = (f"-i={typed[2:]}   # to hide what is called {typed[2:]}",) if typed[1] == "i" else ()
        return UsageError("parse the command line", cause, fix=("membrane -- COMMAND", *pattern))
    if command.words == "command" and typed in _INSTEAD:
        return UsageError("parse the command line", f"unknown option {typed}", fix=(_INSTEAD[typed], "membrane --help"))
    guess = closest(typed, [f"--{option.name}" for option in options_of(command)]) if len(typed) > 4 else ""
    elsewhere = [
        other.name
        for other in COMMANDS
        for option in options_of(other)
        if typed in (f"--{option.name}", f"-{option.short}")
    ]
    hint = f"; did you mean {guess}?" if guess else ""
    if typed in _ELSEWHERE:
        hint = f"; {_ELSEWHERE[typed]}: leave it out"
    if elsewhere:
        hint = f"; it is an option of membrane {', '.join(elsewhere)}"
    of = "" if command is RUN else f" {command.name}"
    return UsageError("parse the command line", f"unknown option {typed}{hint}", fix=(f"membrane{of} --help",))


def _values(option: Option) -> str:
    return "|".join(option.values) if option.values and option.name != "method" else option.metavar


def _check_value(option: Option, typed: str, value: str) -> str:
    if not value:
        raise UsageError("parse the command line", f"option {typed} needs a value: {typed}={_values(option)}")
    if option.values and value not in option.values and option.name != "method":
        guess = closest(value, option.values)
        hint = f"; did you mean {guess}?" if guess else ""
        raise UsageError(
            "parse the command line", f"option {typed} is one of {', '.join(option.values)}, not {value!r}{hint}"
        )
    return value


def parse(argv: list[str]) -> Invocation:
    """Understand a command line without the program's name.

    Raises:
        UsageError: an unknown option or choice, a missing value, a value for a flag.
    """
    command = _BY_NAME.get(argv[0], RUN) if argv else RUN
    index = 1 if argv and argv[0] in _BY_NAME else 0
    wraps = command.words in ("command", "joins")
    known = options_of(command)
    long = {option.name: option for option in known}
    short = {option.short: option for option in known if option.short}
    given: dict[str, tuple[str, ...]] = {}
    words: list[str] = []
    while index < len(argv):
        word = argv[index]
        index += 1
        if word == "--":
            words += argv[index:]
            break
        if len(word) < 2 or word[0] != "-":
            if wraps:
                rest = argv[index - 1 :]
                words += [rest[0], *rest[2:]] if command.words == "joins" and rest[1:2] == ["--"] else rest
                break
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        option = long.get(name[2:]) if word[1] == "-" else short.get(word[1])
        if option is None or (wraps and word in _DOCKER_BUNDLES):
            raise _unknown(name, command)
        if word[1] != "-":
            name = word[:2]
            value = word[2:]
            equals = "="[: len(value)]
            value = value.removeprefix("=")
        if not option.metavar:
            if equals:
                raise UsageError("parse the command line", f"option {name} takes no value (found {word!r})")
        elif equals:
            value = _check_value(option, name, value)
        elif option.optional:
            value = option.default
        else:
            # A word for docker run begins with a dash more often than not, and the Go program took it so.
            verbatim = option.name == "arg" and argv[index : index + 1] != ["--"]
            if index == len(argv) or (argv[index][:1] == "-" and argv[index] != "-" and not verbatim):
                found = (
                    f"; write {name}={argv[index]} if that is it" if index < len(argv) and argv[index] != "--" else ""
                )
                raise UsageError("parse the command line", f"option {name} needs a value ({_values(option)}){found}")
            value = _check_value(option, name, argv[index])
            index += 1
        given[option.name] = (*given.get(option.name, ()), value)
    _check_words(command, words, given)
    return Invocation(command=command, given=given, words=tuple(words))


def _check_words(command: Command, words: list[str], given: dict[str, tuple[str, ...]]) -> None:
    if "help" in given or "version" in given or command.words == "command":
        return
    of = f"membrane {command.name}"
    if command.words == "joins":
        if not words:
            raise UsageError("parse the command line", f"{of} needs a session: {command.usage}", fix=command.example)
        return
    if command.words == "session":
        if not words or words[0] not in command.choices:
            guess = closest(words[0], command.choices) if words else ""
            hint = f"; did you mean {guess}?" if guess else ""
            raise UsageError("parse the command line", f"{of} needs one of: {', '.join(command.choices)}{hint}")
        if len(words) > 2:
            raise UsageError("parse the command line", f"{of} does not take {words[2]!r}", fix=(f"{of} --help",))
        return
    if command.choices:
        if not words or words[0] not in command.choices:
            raise UsageError("parse the command line", f"{of} needs one of: {', '.join(command.choices)}")
        if len(words) != 1 + dict(command.further).get(words[0], 0):
            raise UsageError("parse the command line", f"usage: {of} {command.usage}", fix=command.example)
        return
    if command.names:
        if len(words) != len(command.names):
            # The names of an example would be nobody's.
            cause = f"usage: {of} {command.usage}"
            raise UsageError("parse the command line", cause, fix=("membrane changes   # lists the names",))
        return
    if command.words == "changes":
        return
    if command.words == "target" and "list" in given:
        if words or "method" in given:
            raise UsageError("parse the command line", f"{of} --list takes no target and no method")
        return
    if command.words == "target" and not words:
        raise UsageError("parse the command line", f"{of} needs a target", fix=command.example)
    most = 0 if command.words == "none" else 1
    if len(words) > most:
        raise UsageError("parse the command line", f"{of} does not take {words[most]!r}", fix=(f"{of} --help",))


# ---------------------------------------------------------------- help

WIDTH = 100  # columns of --help


def synopsis(option: Option) -> str:
    """``-a, --allow HOST`` as --help, the man page and the README print it."""
    value = f"[={option.metavar}]" if option.optional else f" {option.metavar}" if option.metavar else ""
    return f"{f'-{option.short}, ' if option.short else ''}--{option.name}{value}"


def help_text(command: Command) -> str:
    """The text of ``--help``: at most 100 columns and 50 lines, an example first."""
    if command is RUN:
        lines = [
            "usage: membrane [OPTIONS] [--] [COMMAND ...]        run COMMAND, or a shell, behind the boundary",
            "       membrane SUBCOMMAND ...                      only as the first word",
            "  membrane -a pypi.org -a files.pythonhosted.org -- pip download six",
        ]
        rows = options_of(command)
    else:
        lines = [f"  {example}" for example in command.example]
        lines = [f"usage: membrane {command.name} {command.usage}", *lines, command.help]
        rows = tuple(option for option in options_of(command) if option.scope in ("command", "own"))
    groups: dict[str, list[Option]] = {}
    for option in rows:
        if not (option.rare and command is RUN):  # there is room for all of a subcommand's
            groups.setdefault(option.group, []).append(option)
    for group in sorted(groups, key=lambda group: group == "membrane"):  # ours last
        for heading, option in zip((group, *[""] * len(groups[group])), groups[group], strict=False):
            name = synopsis(option)
            name = name if option.short else f"    {name}"
            lines.append(f"{heading:<9} {name:<31} {option.help}")
    if command is RUN:
        lines.append("subcommands (each has --help)")
        lines += [f"  {other.name:<11} {other.help}" for other in COMMANDS[1:] if not other.rare]
        lines.append("HOST, PATTERN, --mount, --env, --limit and ports may be given several times.")
        lines.append("every option: membrane completion man | man -l -")
    elif "policy" in command.scopes:
        lines.append("OPTIONS that make up the policy, such as -a HOST: membrane --help")
    return "\n".join(lines)
