"""The ``srt`` command: sandbox-runtime's command line and settings, run by our own session.

Theory of operation
-------------------
Options stop at the first word that is no option, so none of the wrapped command is ever read (the original takes
``-c``, ``-d`` and ``-s`` from anywhere).  ``srt.settings`` turns the settings into a policy, ``run.session`` runs it.
A sole argument with white space, and ``-c``, are lines for ``bash -c``; other arguments are executed as they are.

Exit status: the command's own, 128+N for signal N; 1 as sandbox-runtime has it for settings it does not take and for
a command line without a command; 78 for a setting that this engine cannot bind; 125 when we failed.

``--control-fd`` takes whole settings as JSON lines; the network part of the last valid one holds.  ``--violations``
gets one JSON object for each refusal, as the original's violation store has them: ``line``, ``command``,
``encodedCommand``, ``timestamp``; what only the record of the run holds (reads and writes that the kernel refused) is
added at its end.
"""

from __future__ import annotations

import os
import sys

from ..errors import EX_WRAPPER, HostError, MembraneError, PolicyError
from ..escaping import escape, unescape, visible
from ..host.inherited import name_limit, settle
from ..host.writing import write_all
from ..run.session import Hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..events import AccessDenied
    from ..run.prepare import RunRequest
    from ..run.session import Session
    from .settings import Converted, Settings

USAGE = """usage: srt [OPTIONS] [--] COMMAND ...
       srt [OPTIONS] -c LINE

  -s, --settings FILE   settings of sandbox-runtime (default: ~/.srt-settings.json)
  -c LINE               run a line of shell
  -d, --debug           say what is done, on stderr (also SRT_DEBUG=1)
  --control-fd N        settings as JSON lines; the network part changes while the command runs
  --violations FILE     write each refusal as a JSON line
  -V, --version         print the version
  -h, --help            print this help

A single argument with white space is a line of shell: srt "curl example.com | head".
Options end at the first word that is none, so flags of the command stay its own.
"""
INTERRUPTED = 130
INVALID = 1
_LONGEST_SETTINGS = 4 << 20  # bytes
_VALUES = {"-s": "settings", "--settings": "settings", "-c": "line", "--control-fd": "control", "--violations": "log"}
_FLAGS = {"-d": "debug", "--debug": "debug", "-V": "version", "--version": "version", "-h": "help", "--help": "help"}
SIGTERM = 15
_F_SETPIPE_SZ = 1031  # fcntl(2)


class _Usage(MembraneError):
    """The command line cannot be understood; exit status 1, as sandbox-runtime's."""

    exit_code = INVALID

    def headline(self) -> str:
        return self.cause


class Arguments:
    """A parsed command line."""

    def __init__(self) -> None:
        self.settings: str | None = None
        self.line: str | None = None
        self.control = -1
        self.log = ""
        self.debug = self.version = self.help = False
        self.words: tuple[str, ...] = ()


def parse(argv: Sequence[str]) -> Arguments:
    """Read the options in front of the command.

    Raises:
        MembraneError: an unknown option, or one without its value; status 1.
    """
    out = Arguments()
    argv, index = list(argv), 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            index += 1
            break
        if len(word) > 2 and word[1] != "-" and word[:2] in _FLAGS:  # several in one word: -dc LINE
            setattr(out, _FLAGS[word[:2]], True)
            argv[index] = f"-{word[2:]}"
            continue
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("--") and len(word) > 2 and word[:2] in _VALUES:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if name in _FLAGS and not equals:
            setattr(out, _FLAGS[name], True)
        elif name in _VALUES:
            if not equals:
                index += 1
                if index >= len(argv):
                    raise _Usage("parse the command line", f"option {name} needs a value", fix=("srt --help",))
                value = argv[index]
            _take(out, name, value)
        else:
            raise _Usage(
                "parse the command line", f"unknown option {word}", fix=(f"srt -- {word} ... if it is the command",)
            )
        index += 1
    out.words = tuple(argv[index:])
    return out


def _take(out: Arguments, name: str, value: str) -> None:
    if name == "--control-fd":
        if not (value.isascii() and value.isdigit()) or int(value) < 3 or len(value) > 6:
            raise _Usage("parse the command line", f"--control-fd takes a whole number from 3 up, not {value!r}")
        out.control = int(value)
    else:
        setattr(out, _VALUES[name], value)


def command(arguments: Arguments, search: str) -> tuple[str, ...]:
    """The argument vector to run.

    Args:
        search: PATH; a word that is not found in it may be a builtin of the shell.

    Raises:
        MembraneError: there is none.
    """
    if arguments.line is not None:
        if not arguments.line.strip() or arguments.words:
            cause = "-c and a command exclude each other" if arguments.words else "No command specified"
            raise _Usage("run", cause, fix=("srt --help",))
        return ("bash", "-c", arguments.line)
    words = arguments.words
    if not words:
        raise _Usage("run", "No command specified", fix=("srt --help",))
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        return ("bash", "-c", words[0])
    if "/" in words[0] or any(os.access(f"{d or '.'}/{words[0]}", os.X_OK) for d in search.split(":")):
        return words
    if words[0] == "proxy":
        raise _Usage(
            "run",
            "srt proxy, the proxy without a sandbox, is not part of this srt: here each run has its own proxy",
            fix=("srt -s FILE COMMAND ...", "a proxy of your own: httpProxyPort or parentProxy in the settings"),
        )
    if words[0] in ("windows-install", "windows-uninstall"):
        raise _Usage("run", f"srt {words[0]} prepares Windows; nothing is installed here", fix=("membrane doctor",))
    return ("bash", "-c", '"$@"', "bash", *words)


# ---------------------------------------------------------------- settings


def load(path: str | None, home: str) -> Settings:
    """Read the settings: those named, else the user's, else the built-in ones.

    Raises:
        PolicyError: a file that is named does not exist, or one is not usable.
    """
    from . import settings as srt

    file = path if path is not None else os.path.join(home, ".srt-settings.json")
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if path is None:
            return srt.check(srt.DEFAULTS, "built-in settings of srt")
        raise _Usage(
            "read the settings",
            f"settings file {escape(path)} does not exist. Refusing to run with the built-in defaults",
        ) from None
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        data = b""
        while len(data) <= _LONGEST_SETTINGS and (part := os.read(fd, 1 << 18)):
            data += part
    except OSError as error:
        raise _unreadable(file, error) from None
    finally:
        os.close(fd)
    if len(data) > _LONGEST_SETTINGS:
        raise srt.SettingsError("read the settings", f"it is longer than {_LONGEST_SETTINGS} bytes", where=file)
    try:
        return srt.read(data.decode(), file)
    except UnicodeDecodeError:
        raise srt.SettingsError("read the settings", "it is not UTF-8", where=file) from None


def _unreadable(file: str, error: OSError) -> PolicyError:
    from . import settings as srt

    return srt.SettingsError("read the settings", f"it cannot be read: {error.strerror}", where=file)


def temporary(converted: Converted, uid: int) -> str:
    """TMPDIR inside: sandbox-runtime's directory where there is one that is ours, else a private one."""
    path = converted.temporary
    try:
        status = os.stat(path)
    except OSError:
        return f"/run/user/{uid}"
    return path if status.st_uid == uid and os.path.isdir(path) else f"/run/user/{uid}"


# ---------------------------------------------------------------- while it runs


class Control(Hooks):
    """Live settings, and the record of refusals."""

    def __init__(self, arguments: Arguments, argv: Sequence[str], converted: Converted, home: str, base: str) -> None:
        self._home, self._base = home, base
        self._command = arguments.line if arguments.line is not None else " ".join(argv)
        self._reasons, self._policy = dict(converted.reasons), converted.policy
        self._ignored = [texts for pattern, texts in converted.ignored if pattern == "*" or pattern in self._command]
        self._log = -1
        self._written: set[str] = set()  # the lines, once each
        self._buffer = b""
        self._delivered = False
        self._skip = False
        if arguments.log:
            from ..run.event_log import open_for_caller

            try:
                self._log = open_for_caller(arguments.log, os.O_TRUNC, 0o600)
            except OSError as error:
                raise _Usage(
                    "run", f"--violations: {escape(arguments.log)} cannot be written: {error.strerror}"
                ) from None
        if arguments.control >= 0:
            self.fd = _control(arguments.control)

    def refused(self, event: AccessDenied) -> None:
        """One line of the violations file."""
        if self._log >= 0:
            self._write(violation(event, self._reasons))

    def finish(self, record: str) -> None:
        """Write what only the record holds: what the kernel refused, which is known afterwards.

        Args:
            record: its directory.
        """
        if self._log < 0:
            return
        from ..events import AccessDenied, FileOpened
        from ..policy.decide import decide
        from ..policy.model import Deny, PathAccess
        from ..record import query, reader

        written = {line.partition(" (")[0] for line in self._written}
        for event in query.chosen(reader.Record(record).events(), query.Filter(denied=True)):
            if isinstance(event.event, AccessDenied):
                line = violation(event.event, self._reasons)
            elif path := query.path_of(event):
                opened = event.event
                reads = isinstance(opened, FileOpened) and "rdonly" in opened.flags
                why = event.result or "protected name, moved away"
                access = PathAccess(unescape(path), "read" if reads else "write")
                if why in ("EACCES", "EPERM") and not isinstance(decide(self._policy, access), Deny):
                    continue  # refused to the caller outside as well
                line = f"deny file-{'read' if reads else 'write'} {path} ({why})"
            else:
                continue
            what = line.partition(" (")[0]
            if what not in written and what.replace(f"{self._base}/", "") not in written:
                written.add(what)
                self._write(line)

    def _write(self, line: str) -> None:
        self._written.add(line)
        if any(text in line for texts in self._ignored for text in texts):
            return
        import base64
        import json

        from ..run.event_log import now

        record = {
            "line": line,
            "command": visible(self._command),
            "encodedCommand": base64.b64encode(self._command[:100].encode("utf-8", "surrogateescape")).decode(),
            "timestamp": now(),
        }
        data = json.dumps(record).encode() + b"\n"
        try:
            write_all(self._log, data)
        except OSError as error:
            _note(f"--violations: {error.strerror}; further refusals are not written")
            os.close(self._log)
            self._log = -1

    def readable(self, session: Session) -> None:
        """A part of a line of settings, or the end of them."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            _note(f"--control-fd: {error.strerror}")
            if not self._delivered:
                session.failure = "the control channel failed before it delivered settings"
                session.end(SIGTERM)
            self.fd = -1
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data:
            lines, self._buffer, self.fd = [self._buffer], b"", -1
        if len(self._buffer) > _LONGEST_SETTINGS:
            self._buffer, self._skip = b"", True
        for line in lines:
            if self._skip:
                self._skip = False
                _note("--control-fd: a line is too long; the settings stay as they are")
            elif line.strip():
                self._update(line, session)

    def _update(self, line: bytes, session: Session) -> None:
        """Take one line; what it holds is not repeated in a message, it may be a secret."""
        from . import settings as srt

        self._delivered = True
        try:
            settings = srt.read(line.decode(), "--control-fd")
            converted = srt.convert(settings, environ=dict(os.environ), home=self._home, base=self._base)
        except (UnicodeDecodeError, PolicyError, HostError):
            _note("--control-fd: a line was left out: it is not valid; the settings stay as they are")
            return
        try:
            session.update_network(converted.policy)
        except (PolicyError, HostError):
            cause = "it cannot be applied while the command runs"
            _note(f"--control-fd: a line was left out: {cause}; the settings stay as they are")
            return
        self._reasons = dict(converted.reasons)
        if session.options.debug:
            _debug("settings of the control channel hold now")


def _control(fd: int) -> int:
    """The control descriptor, readable, not blocking, and not the command's."""
    import fcntl

    try:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            raise _Usage("run", f"--control-fd {fd} cannot be read")
        mine = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    except OSError as error:
        raise _Usage("run", f"--control-fd {fd}: {error.strerror}") from None
    import select

    try:
        with select.epoll() as probe:
            probe.register(mine, select.EPOLLIN)
    except PermissionError:  # a file or a device such as /dev/null: what it holds goes through a pipe, whose end is its
        data = b""
        while len(data) < _LONGEST_SETTINGS and (part := os.read(mine, 1 << 16)):
            data += part
        os.close(mine)
        mine, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(write, _F_SETPIPE_SZ, max(65536, len(data)))
            if os.write(write, data) != len(data):
                os.close(mine)
                raise _Usage("run", f"--control-fd {fd}: a file of {len(data)} bytes is too long")
        finally:
            os.close(write)
    os.set_blocking(mine, False)
    os.close(fd)
    return mine


def violation(event: AccessDenied, reasons: dict[str, str]) -> str:
    """A refusal in the words of sandbox-runtime's violation store."""
    access = event.access
    entry = (event.rule or "").partition(" (")[0]
    reason = reasons.get(entry) or event.reason
    kind = access.get("kind")
    if kind == "HttpRequest":
        scheme, host, port = access.get("scheme"), access.get("host"), access.get("port")
        return f"deny http-request {access.get('method')} {scheme}://{host}:{port}{access.get('path')} ({reason})"
    if kind == "PathAccess":
        return f"deny file-{access.get('operation')} {access.get('path')} ({reason})"
    if kind == "SocketAccess":
        return f"deny unix-socket {access.get('path')} ({reason})"
    if kind == "SystemCall":
        return f"deny {access.get('name')} ({reason})"
    if kind == "NameQuery":
        return f"deny network-outbound {access.get('name')} ({reason})"
    return f"deny network-outbound {access.get('host') or access.get('address')}:{access.get('port')} ({reason})"


# ---------------------------------------------------------------- the program


def main(argv: list[str]) -> int:
    """Run one command line without the program's name; return the exit status."""
    debug = os.environ.get("SRT_DEBUG", "") not in ("", "0")
    try:
        arguments = parse(argv)
        debug = debug or arguments.debug
        if arguments.help:
            sys.stdout.write(USAGE)
            return 0
        if arguments.version:
            from ..run.installed import VERSION

            print(f"srt (membrane {VERSION})")
            return 0
        settle()
        return _run(arguments, debug)
    except MembraneError as error:
        _say(name_limit(error.lines()))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _say(name_limit([f"the system refused: {error.strerror or error}{where}"]))
        return EX_WRAPPER
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        _say([f"internal error: {type(error).__name__}: {error}"])
        return EX_WRAPPER


def _run(arguments: Arguments, debug: bool) -> int:
    from ..run import begin

    controls: list[Control] = []

    def request() -> RunRequest:
        wanted, control = _request(arguments, debug)
        controls.append(control)
        return wanted

    begun = begin.begin(request)
    from ..run import session  # beside the launcher

    status = session.run(begun, controls[0])
    controls[0].finish(os.path.join(begun.facts.state, "trace", begun.id))
    return status


def _request(arguments: Arguments, debug: bool) -> tuple[RunRequest, Control]:
    from ..host.facts import home_dir
    from ..policy.model import EnvRule, Origin
    from ..run import prepare
    from . import settings as srt

    argv = command(arguments, os.environ.get("PATH", "/usr/bin:/bin"))
    home = home_dir(os.environ)
    try:
        base = os.getcwd()
    except OSError as error:
        raise HostError("use the current directory", error.strerror or "") from None
    settings = load(arguments.settings, home)
    converted = srt.convert(settings, environ=dict(os.environ), home=home, base=base)
    if debug:
        mode = "Command string mode" if arguments.line is not None else "Original command"
        _debug(f"{mode}: {visible(' '.join(argv))}")
        _debug(f"settings: {visible(settings.file)}")
    for warning in converted.warnings:
        _note(f"warning: {warning}")
    for name, value in converted.proxies:
        os.environ.pop(name.lower(), None)
        os.environ[name] = value
    policy = converted.policy
    if converted.temporary:
        directory = temporary(converted, os.getuid())
        origin = Origin("built-in", "sandbox-runtime")
        policy = policy.replace(env=(*policy.env, EnvRule("TMPDIR", directory, origin)))
    if policy.socket_proxy:
        policy = policy.replace(socket_proxy=_proxy_socket(policy.socket_proxy))
    if arguments.log:  # reads are reported as well
        policy = policy.replace(trace=policy.trace.replace(mode="full"))
    control = Control(arguments, argv, converted, home, base)
    options = prepare.RunOptions(debug=debug, quiet=not debug)
    return prepare.RunRequest(argv, policy, options), control


def _proxy_socket(path: str) -> str:
    """The socket of ``mitmProxy`` without links, as it is before the command runs.

    Raises:
        PolicyError: it is none.
    """
    import stat

    resolved = os.path.realpath(path)
    try:
        found = stat.S_ISSOCK(os.lstat(resolved).st_mode)
    except OSError:
        found = False
    if not found:
        raise PolicyError(
            "bind a setting", "network.mitmProxy: there is no socket", where=path, fix=("start the proxy",)
        )
    return resolved


def _say(lines: Iterable[str]) -> None:
    """Print lines on stderr, the first one with our name; a closed stderr is not an error."""
    if sys.stderr is None:
        return
    try:
        for number, line in enumerate(lines):
            print(("srt: " if number == 0 else "") + visible(line), file=sys.stderr)
    except (OSError, ValueError):
        pass


def _note(line: str) -> None:
    _say([line])


def _debug(line: str) -> None:
    if sys.stderr is not None:
        print(f"[SandboxDebug] {line}", file=sys.stderr)
