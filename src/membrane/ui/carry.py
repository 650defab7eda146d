"""``--backend docker`` and ``podman``: a run in a container that carries it, from outside.

Theory of operation
-------------------
Everything that belongs to the caller's machine is resolved here: the policy with its files and its trust, the values
of secrets, the trees that the container may show.  Then this process becomes ``docker run``, so signals, the terminal,
its size, job control and the exit status are docker's own matter.  A child of it, the *holder*, waits until the
container listens, hands the resolved run over by ``docker exec`` (``ui.carried``: a pipe, no argument, variable or
file), and keeps that pipe open as long as ``docker run`` lives, which it knows by another pipe.  When that ends,
by whatever signal, the one inside sees the end of its pipe and ends the container; the holder removes what is left,
and ``membrane gc`` what is left when the holder was killed as well.

Over the same pipe the holder serves what the container cannot have (``ui.pipe``): unix sockets and ports of the
loopback that the policy names, looked at here as the native backend does, and the files of ``--events``,
``--session-id-file`` and ``--trace-log``, opened here.  Exposed ports listen here, on the loopback only.

This module and what it imports run on macOS: no Linux call, no ctypes.  What was not run there is a Mac itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import subprocess
import sys

from ..errors import HostError, PolicyError
from ..host.private import is_held
from ..plan import carrier
from ..policy import codec
from ..policy.model import CARRIERS, Policy
from .carried import DOOR, TAKEN, Frame, ready
from .cli import ON_SETS
from .pipe import Pipe, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from ..policy.model import MaskRule, MountRule, SocketRule
    from ..run.registry import SessionRecord
    from .doctor import Row
    from .options import Invocation

_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PATIENCE = 30.0  # seconds for one answer of the engine
_PROFILE = "seccomp.json"
TRIES = 16  # to hand a run over, each after a longer wait
LOOK = 20  # milliseconds between two looks at whether the container listens
# Files of the caller: how each is opened, and its mode.
_FILES: dict[str, tuple[int, int]] = {
    "events": (os.O_APPEND | os.O_NONBLOCK, 0o600),
    "session-id-file": (os.O_TRUNC, 0o644),
    "trace-log": (os.O_TRUNC, 0o600),
    "output": (os.O_TRUNC, 0o600),  # of ``learn``
}
_GIT = (".gitconfig", ".config/git")  # what git outside obeys is judged inside
_BUILD = f"membrane setup container dockerfile | {{}} build -t {carrier.IMAGE} -"
_REMOTE = {"docker": "docker context use default, unset DOCKER_HOST", "podman": "unset CONTAINER_HOST"}
COLIMA = (
    "brew install colima docker",
    "colima start --mount $HOME:w --mount /Volumes/src:w   (where the workspaces are, as well)",
    _BUILD.format("docker"),
)


def run(invocation: Invocation, policy: Policy, workspace: str, state: str) -> int:
    """Become ``docker run`` of this run; it returns only by an exception.

    Args:
        policy: as it was read; ``backend: native`` where no native one can be is meant as this.
        workspace: absolute, without links, as ``state``.

    Raises:
        PolicyError: a rule cannot be carried.
        HostError: no engine, no image, or the state cannot be written.
    """
    if policy.backend == "landlock":
        raise PolicyError("make a sandbox", "backend landlock needs Linux", fix=("membrane --backend docker -- ...",))
    if policy.backend not in CARRIERS:
        policy = policy.replace(backend="docker")
    more: list[str] = []
    if invocation.command.name in ON_SETS:  # its policy is read where it works
        policy = Policy(backend=policy.backend)
        more = _of_sets(invocation.words, workspace, state)
    carrier.refuse(policy)
    from ..run import installed, secrets, sources

    mounted = [_source(rule, workspace) for rule in policy.mounts if rule.mode == "rw"]
    engine, path = _engine(policy.backend, [workspace, state, *mounted])
    sockets_of_engines = _sockets(_endpoint(engine))
    trees = _trees(policy, workspace, state, sockets_of_engines)
    for tree in more:
        _check(policy.backend, tree, tree, "", sockets_of_engines)
        trees.append(carrier.Tree(tree, "rw"))
    writable = [workspace, *(tree.path for tree in trees if tree.mode == "rw")]
    installed.refuse(writable)
    _check_case(writable)
    of_agents = _of_agents(policy, sockets_of_engines)
    trees += of_agents
    shown = {tree.path for tree in of_agents}
    masks = tuple(mask for mask in policy.masks if not mask.login or os.path.dirname(_file(mask)) in shown)
    policy = policy.replace(masks=masks)
    values = secrets.values(policy, os.environ, [*writable, *sources.kept(state)])
    sockets = _sockets_that_open(policy, workspace, [*writable, state], sockets_of_engines)
    policy = policy.replace(unix_sockets=tuple(rule for rule, _service in sockets))
    name = f"membrane-{os.urandom(8).hex()}"
    place = f"{state}/carried"
    around = carrier.Surroundings(
        workspace,
        state,
        os.path.realpath(os.environ.get("HOME") or "/"),
        os.geteuid(),
        os.getegid(),
        policy.backend,
        name,
        f"{place}/{_PROFILE}",
        tuple(trees),
        tuple(os.path.join(workspace, rule.path) for rule, _service in sockets),
        all(os.isatty(fd) for fd in (0, 1, 2)),
        _outside_of([*writable, state], path),
    )
    words = [policy.backend, "run", *carrier.options(policy, around)]
    listeners = _exposed(policy) if invocation.command.name in ("run", "learn") else []
    reported, files = _reported(invocation, workspace, state, policy.backend, name)
    ports = carrier.loopback(policy)
    services = [service for _rule, service in sockets]
    services += [Service("port", port=port) for port in ports]
    services += [Service("file", fd=fd) for _path, fd in files]
    inside = [("socket", path) for path in around.sockets]
    inside += [("port", str(port)) for port in ports]
    inside += [("file", path) for path, _fd in files]
    lock = _claim(place, name)
    _profile(place)
    frame = Frame(
        installed.VERSION,
        invocation.command.name,
        workspace,
        invocation.words,
        tuple(reported.items()),
        (*carrier.environment(policy, os.environ).items(), *((("PATH", path),) if path else ())),
        codec.dump(carrier.carried(policy)),
        tuple(values),
        tuple((path, os.stat(path).st_ino) for path in (*writable, *_inside(trees, writable))),
        tuple(inside),
        sys.platform != "linux",
        tuple(rule.outside for rule in policy.expose),
    )
    alive, lives = os.pipe()
    if not os.fork():
        os.close(lives)
        _hold(engine, frame, name, state, alive, services, listeners)
    os.close(alive)
    for fd in (lives, lock):
        os.set_inheritable(fd, True)
    os.execve(engine, words, _environment(engine))


def join(found: SessionRecord, command: Sequence[str], state: str) -> int:
    """A command in a session that a container carries (``membrane exec``); its exit status.

    Raises:
        HostError: the container is not there, or the engine has no answer.
    """
    import signal

    kind, _, name = found.container.partition(":")
    engine = _client(kind, [state, found.workspace]) if kind in CARRIERS else ""
    cause = f"there is no {kind or 'engine'} outside of what commands can write"
    if not engine or not name.removeprefix("membrane-").isalnum():
        raise HostError("join the session", cause, target=found.id)
    token = os.urandom(8).hex()
    inside = ["python3", "-I", "-m", carrier.MODULE]
    steering = subprocess.Popen(
        [engine, "exec", "--interactive", name, *inside, "steer", token],
        bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        env=_environment(engine),
    )  # fmt: skip
    assert steering.stdin is not None and steering.stdout is not None
    answers = select.poll()
    answers.register(steering.stdout, select.POLLIN)
    if not answers.poll(PATIENCE * 1000) or not steering.stdout.read(1):
        steering.kill()
        steering.communicate()
        cause = "its container takes no command: it is beginning or ending, or the engine has no answer"
        raise HostError("join the session", cause, target=found.id)
    pipe = steering.stdin.fileno()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _frame: _steer(pipe, number))
    terminal = all(os.isatty(fd) for fd in (0, 1, 2))
    here = os.getcwd()
    place = here if f"{here}/".startswith(f"{found.workspace}/") else found.workspace
    words = [engine, "exec", "--interactive", *(carrier.terminal(kind) if terminal else ()), name]
    # Not in our process group, where it would get the signals that go to the one inside; but a terminal is read
    # by the group that has it, and passes the keys on.
    client = subprocess.Popen(
        [*words, *inside, "join", token, found.id, place, *command],
        process_group=None if os.isatty(0) else 0,
        env=_environment(engine),
    )
    code = client.wait()
    steering.stdin.close()
    try:
        steering.wait(PATIENCE)
    except subprocess.TimeoutExpired:  # the command has ended, whatever the engine does
        steering.kill()
        steering.wait()
    return code if code >= 0 else 128 - code


def _steer(pipe: int, number: int) -> None:
    try:
        os.write(pipe, bytes((number,)))
    except OSError:
        pass  # it has ended


def _reported(
    invocation: Invocation, workspace: str, state: str, engine: str, name: str
) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Arguments of ``prepare.RunOptions``, and for each file of the caller where the run writes it and our descriptor.

    Of another subcommand the options that were typed; only what runs a command writes files.

    Raises:
        HostError: a file cannot be opened.
    """
    from ..run.event_log import open_for_caller
    from .cli import events_place

    runs = invocation.command.name == "run"
    fields: dict[str, Any] = dict(invocation.given)
    if runs:
        fields = {**invocation.fields("run"), "debug": invocation.has("debug"), "container": f"{engine}:{name}"}
    elif invocation.command.name != "learn":
        return fields, []
    files: list[tuple[str, int]] = []
    for option, (flags, mode) in _FILES.items():
        value = invocation.last(option)
        if option == "events":
            value = events_place(value)
        if not value or value in ("-", "stderr"):
            continue
        if value.startswith("fd:") and option == "events":
            fd = int(value[3:])
        else:
            try:
                fd = open_for_caller(os.path.join(workspace, value), flags, mode)
            except OSError as error:
                raise HostError(f"write --{option}", error.strerror or "", target=value) from None
        path = f"{DOOR}-{option}"
        if option == "trace-log":  # it is made from the record, at the end
            path = f"{state}/carried/{name}.log{'.gz' if value.endswith('.gz') else ''}"
        if runs:
            fields[option.replace("-", "_")] = path
        else:
            fields[option] = (path,)
        files.append((path, fd))
    return fields, files


def _of_sets(words: tuple[str, ...], workspace: str, state: str) -> list[str]:
    """The workspaces of the change sets that may be meant: the one that is named, and those that hold ``workspace``."""
    from ..changes import store

    return [
        each.workspace
        for each in store.list_sets(state)
        if (each.name in words[:1] or f"{workspace}/".startswith(f"{each.workspace.rstrip('/')}/"))
        and os.path.isdir(each.workspace)
        and os.path.realpath(each.workspace) == each.workspace
    ]


def _exposed(policy: Policy) -> list[tuple[socket.socket, int]]:
    """Listeners on our loopback, with the number of the port.

    Raises:
        PolicyError: a port is in use, or may not be bound.
    """
    if not policy.expose:
        return []
    from ..run import ports

    return [
        (socket.socket(fileno=fd), number)
        for number, rule in enumerate(policy.expose)
        for _role, fd in ports.listen((rule,))
    ]


def _sockets_that_open(
    policy: Policy, workspace: str, owned: list[str], of_engines: list[str]
) -> list[tuple[SocketRule, Service]]:
    """The rules of unix sockets with what they lead to; optional ones that cannot be opened are left out.

    Args:
        owned: trees that a command can write, and our state.
        of_engines: where sockets of engines are.

    Raises:
        PolicyError: what a rule names is no socket that may be opened.
    """
    out: dict[str, tuple[SocketRule, Service]] = {}
    engines = set()
    for path in of_engines if policy.unix_sockets else ():
        try:
            engines.add(_identity(os.stat(path)))
        except OSError:
            continue
    for rule in policy.unix_sockets:
        written = os.path.join(workspace, rule.path)
        path = os.path.realpath(written)
        cause, fix = _flaw(path, owned, engines)
        if not cause:
            out.setdefault(written, (rule, Service("socket", path, os.lstat(path).st_uid)))
        elif not rule.optional:
            cause = f"unix_sockets: {rule.path} {cause}"
            raise PolicyError("bind a rule", cause, where=str(rule.origin), fix=(fix,))
    return list(out.values())


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _flaw(path: str, owned: list[str], engines: set[tuple[int, int]]) -> tuple[str, str]:
    """Why a path is no socket that may be opened, and what to do; empty: it is one."""
    name_one = "name one socket"
    try:
        found = os.lstat(path)
    except OSError as error:
        return error.strerror or "", "start the service it belongs to"
    if not stat.S_ISSOCK(found.st_mode):
        return "is not a socket", name_one
    if _identity(found) in engines:
        return "is an engine's, which is outside of every rule", "use the native backend for that"
    if any(path.startswith(f"{tree.rstrip('/')}/") for tree in owned):
        return "is where the command can make one", name_one
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:  # a stream service does not notice (unix(7))
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return "", ""
            if error.errno == errno.ECONNREFUSED:
                return "has no program that listens", "start the service it belongs to"
            return error.strerror or str(error), "ask its owner for the right"
    return "is not a stream socket", name_one


def _client(name: str, writable: list[str]) -> str:
    """Path of the client of this name, in an entry of PATH that no command could have filled; empty: there is none.

    Args:
        writable: trees that a command can write, without links; a name in one is not executed outside.
    """
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(entry, name)
        if entry.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path):
            places = (os.path.realpath(entry), os.path.realpath(path))
            if not any(place == tree or place.startswith(f"{tree}/") for place in places for tree in writable):
                return path
    return ""


def _environment(engine: str) -> dict[str, str]:
    """For a client of an engine, which starts others by name (podman newuidmap and conmon, docker its plugins): none
    of a directory of PATH that a command may have filled."""
    return {**os.environ, "PATH": os.pathsep.join(dict.fromkeys((os.path.dirname(engine), *_SYSTEM)))}


def _engine(name: str, writable: list[str]) -> tuple[str, str]:
    """Path of the client, whose engine answers, is on this machine and has the image; and PATH of the image, empty
    where it names none.

    Args:
        name: docker or podman.
        writable: as of ``_client``.

    Raises:
        HostError: with what to do.
    """
    path = _client(name, writable)
    fix: tuple[str, ...] = ("start Docker, or join the group docker",) if name == "docker" else (f"install {name}",)
    if sys.platform == "darwin" and name == "docker":
        fix = COLIMA
    if not path:
        cause = f"PATH has no {name} command outside of what commands can write"
        raise HostError("carry the run", cause, fix=fix)
    if (endpoint := _endpoint(path)) and not endpoint.startswith("unix://"):
        cause = f"{name} speaks with an engine on another machine ({endpoint}), which has not your files"
        raise HostError("carry the run", cause, fix=(f"use an engine of this machine: {_REMOTE[name]}",))
    try:
        done = _ask(path, "image", "inspect", "--format={{with .Config}}{{json .Env}}{{end}}", carrier.IMAGE)
    except subprocess.TimeoutExpired:
        raise HostError("carry the run", f"{name} gives no answer in {PATIENCE:.0f} s", fix=fix) from None
    said = done.stderr.strip()
    if done.returncode and ("no such image" in said.lower() or "image not known" in said):
        raise HostError("carry the run", f"{name} has no image {carrier.IMAGE}", fix=(_BUILD.format(name),))
    if done.returncode:
        raise HostError("carry the run", said.partition("\n")[0] or f"{name} refused", fix=fix)
    return path, _path_of(done.stdout)


def _path_of(said: str) -> str:
    """PATH among the variables of an image, which are a list in JSON, null or nothing."""
    import json

    try:
        variables = json.loads(said) or []
    except ValueError:
        return ""
    return next((each[5:] for each in variables if each.startswith("PATH=")), "")


def _outside_of(writable: list[str], path: str) -> str:
    """The entries of PATH in which no command can put a program: ``python3`` is looked up there for the supervisor."""
    if not path:
        return ""  # the engine's own
    trees = tuple(f"{tree.rstrip('/')}/" for tree in writable)
    entries = [each for each in path.split(":") if each.startswith("/")]
    return ":".join([each for each in entries if not f"{os.path.normpath(each)}/".startswith(trees)] or _SYSTEM)


def _endpoint(engine: str) -> str:
    """Where a client finds its engine, as a URL; empty: it is not known, or podman's own, which needs none.

    Docker: DOCKER_HOST, or that of the context in force.  Podman: CONTAINER_HOST (podman(1)); on macOS its machine
    shares the home, and is none of another place.
    """
    if os.path.basename(engine) == "podman":
        return os.environ.get("CONTAINER_HOST", "")
    given = os.environ.get("DOCKER_HOST", "")
    if given and not os.environ.get("DOCKER_CONTEXT"):
        return given
    try:
        return _ask(engine, "context", "inspect", "--format={{.Endpoints.docker.Host}}").stdout.strip()
    except subprocess.TimeoutExpired:
        return ""


def features() -> list[Row]:
    """What carries a run here, for ``membrane doctor`` where the kernel is not Linux."""
    from ..plan.model import Support

    support = Support("yes")
    try:
        _engine("docker", [os.getcwd()])
    except HostError as error:
        support = Support("no", error.cause, "; ".join(error.fix))
    return [("docker", f"a daemon with the image {carrier.IMAGE}", support)]


def _ask(engine: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [engine, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=_environment(engine),
    )  # fmt: skip


def _trees(policy: Policy, workspace: str, state: str, of_engines: list[str]) -> list[carrier.Tree]:
    """What the container shows beside the workspace and the state.

    Raises:
        PolicyError: a mount is no file or directory, or holds an engine's socket.
    """
    from ..workspace import gitdirs

    out = [carrier.Tree(path, mode) for path, mode in gitdirs.find(workspace).shown]
    for rule in policy.mounts:
        path = _source(rule, workspace)
        if os.path.exists(path):
            _check(policy.backend, path, rule.path or path, str(rule.origin), of_engines)
            out.append(carrier.Tree(path, rule.mode))
    _check(policy.backend, workspace, workspace, "", of_engines)
    for path in (*policy.extra_ca, *policy.authority):
        if os.path.isfile(path):
            out.append(carrier.Tree(os.path.realpath(path), "ro"))
    home = os.environ.get("HOME", "")
    for path in (*(f"{home}/{name}" for name in _GIT), "/etc/gitconfig"):
        if path.startswith("/") and os.path.exists(path) and os.path.realpath(path) == path:
            out.append(carrier.Tree(path, "ro"))
    return [tree for tree in out if tree.path not in (workspace, state)]


def _inside(trees: Sequence[carrier.Tree], writable: Sequence[str]) -> list[str]:
    """The trees that may be read only and are below one that may be written: a command may turn a name on the way."""
    return [
        tree.path
        for tree in trees
        if tree.mode == "ro" and any(tree.path.startswith(f"{each.rstrip('/')}/") for each in writable)
    ]


def _source(rule: MountRule, workspace: str) -> str:
    """What a rule mounts, without links; where there is no repository the run inside says so."""
    if not rule.git_root:
        return os.path.realpath(rule.path)
    from ..host.facts import git_root

    return git_root(workspace) or workspace


def _file(mask: MaskRule) -> str:
    return mask.source.removeprefix("file:")


def _of_agents(policy: Policy, of_engines: list[str]) -> list[carrier.Tree]:
    """What the supervisor needs of an agent outside: its log-in, and what its profile shows.

    The directory and not the file of a log-in, as programs outside rename a new one over it, and the supervisor
    writes what was renewed to the one that has the name (``run.logins``).  The command sees neither.

    Raises:
        PolicyError: the socket of an engine is beside it.
    """
    home = os.environ.get("HOME", "").rstrip("/")
    if not home or os.path.realpath(home) != home:
        return []
    logins = {os.path.dirname(_file(mask)) for mask in policy.masks if mask.login and os.path.isfile(_file(mask))}
    out = [
        carrier.Tree(path, "rw")
        for path in sorted(logins)
        if path.startswith(f"{home}/") and os.path.realpath(path) == path
    ]
    for tree in out:
        _check(policy.backend, tree.path, tree.path, "", of_engines)
    for name in policy.state_shown:
        path = f"{home}/{name}"
        if os.path.exists(path) and os.path.realpath(path) == path:
            out.append(carrier.Tree(path, "ro"))
    return out


def _check(backend: str, path: str, written: str, where: str, of_engines: list[str]) -> None:
    what = f"backend {backend} does not carry {written}"
    if not (os.path.isdir(path) or os.path.isfile(path)):
        raise PolicyError("bind a rule", f"{what}: no file or directory", where=where)
    for known in of_engines:
        if path == "/" or known.startswith(f"{path}/"):
            cause = f"{what}: the socket of an engine is in it"
            raise PolicyError("bind a rule", cause, where=where, fix=("name the tree that the command needs",))


def folds(directory: str, status: Callable[[str], os.stat_result] = os.lstat) -> bool:
    """Whether a name there is found by another case as well: true of most volumes of macOS.

    A hidden name is a mount over one spelling of it.  The container's kernel keeps each spelling apart, and the
    file system of the host behind it does not: another one would show what is hidden.

    Args:
        directory: absolute; its own name is tried, and of its names the first with a letter.
        status: lstat(2), for the test.
    """
    names = sorted(os.listdir(directory))
    tried = [name for name in names if name.swapcase() != name and name.swapcase() not in names][:1]
    for path in (directory, *(f"{directory}/{name}" for name in tried)):
        head, _, name = path.rpartition("/")
        try:
            if name.swapcase() != name and os.path.samestat(status(path), status(f"{head}/{name.swapcase()}")):
                return True
        except OSError:
            pass
    return False


def _check_case(trees: list[str]) -> None:
    for path in trees:
        if os.path.isdir(path) and folds(path):
            cause = f"the file system of {path} takes A for a: another spelling would show what a rule hides"
            fix = ("work on a case-sensitive volume: docs/containers.md says how to make one",)
            raise PolicyError("bind a rule", cause, fix=fix)


def _sockets(endpoint: str) -> list[str]:
    """Where sockets of engines are: the usual places, and the one that this client uses."""
    home, runtime = os.environ.get("HOME", ""), os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    known = ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"]
    known += [f"{runtime}/{name}" for name in ("docker.sock", "podman/podman.sock")]
    known += [f"{home}/{name}" for name in (".colima/default/docker.sock", ".docker/run/docker.sock")]
    if endpoint.startswith("unix://"):
        known.append(endpoint.removeprefix("unix://"))
    return [path for each in known for path in dict.fromkeys((each, os.path.realpath(each)))]


def _claim(place: str, name: str) -> int:
    """Say that the container of this name belongs to a living process, as long as the descriptor is open in one."""
    try:
        os.makedirs(place, 0o700, exist_ok=True)
        fd = os.open(f"{place}/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        raise HostError("carry the run", error.strerror or "", target=place) from None
    return fd


def _profile(place: str) -> None:
    """The seccomp profile as a file: the client reads it."""
    from . import containers

    path, text = f"{place}/{_PROFILE}", containers.text("seccomp")
    try:
        with open(path) as file:
            if file.read() == text:
                return
    except OSError:
        pass
    try:
        with open(f"{path}.{os.getpid()}", "w") as file:
            file.write(text)
        os.rename(f"{path}.{os.getpid()}", path)
    except OSError as error:
        raise HostError("write the seccomp profile", error.strerror or "", target=path) from None


# ---------------------------------------------------------------- the holder


def _hold(
    engine: str,
    frame: Frame,
    name: str,
    state: str,
    alive: int,
    services: list[Service],
    listeners: list[tuple[socket.socket, int]],
) -> NoReturn:
    """Hand the run over, serve it until ``docker run`` has ended, and leave nothing."""
    try:
        os.setsid()  # signals of the terminal are for docker
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)  # who reads the command's output waits for its end and not for ours
        line = _hand_over(engine, frame, name, state, alive)
        os.dup2(null, 2)
        if line is not None:
            assert line.stdin is not None and line.stdout is not None
            pipe = Pipe(line.stdout.fileno(), line.stdin.fileno(), 0, services)
            for listener, number in listeners:
                pipe.listen(listener, number)
            _serve(pipe, alive)
            pipe.close()
            line.stdin.close()
        _remove(engine, name)
        for path in _own(state, name):
            if os.path.exists(path):
                os.unlink(path)
    finally:
        os._exit(0)


def _serve(pipe: Pipe, alive: int) -> None:
    """Until ``docker run`` has ended; what speaks otherwise than it may is served no more, and so ended.

    A run whose pipe has ended has ``PATIENCE`` seconds to end.
    """
    while True:
        poll = select.poll()
        poll.register(alive, select.POLLIN)
        for fd, events in pipe.waits().items():
            poll.register(fd, events)
        found = poll.poll(PATIENCE * 1000 if pipe.ended else None)
        if not found or any(fd == alive for fd, _events in found):
            return
        try:
            pipe.turn(found)
        except HostError:
            return


def _own(state: str, name: str) -> tuple[str, ...]:
    """What a run has in the state."""
    place = f"{state}/carried/{name}"
    return place, ready(state, name), f"{place}.log", f"{place}.log.gz"


def _hand_over(engine: str, frame: Frame, name: str, state: str, alive: int) -> subprocess.Popen[bytes] | None:
    """Give the frame to pid 1 of the container; None: there is none."""
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    while not os.path.exists(ready(state, name)):
        if poll.poll(LOOK):
            return None  # docker ended, and said why
    for number in range(1, TRIES + 1):
        line = _try(engine, frame, name, alive)
        if line is not None:
            return line
        # Pid 1 runs a moment before docker takes its container for running, and refuses the exec until then.
        if poll.poll(LOOK * number):
            return None
    os.write(2, f"membrane: cannot hand the run to its container: {os.path.basename(engine)} exec failed\n".encode())
    _remove_now(engine, name)
    return None


def _try(engine: str, frame: Frame, name: str, alive: int) -> subprocess.Popen[bytes] | None:
    """Hand the frame over once; None: nobody took it, or ``docker run`` has ended."""
    words = [engine, "exec", "--interactive", name, "python3", "-I", "-m", carrier.MODULE, "hand"]
    line = subprocess.Popen(
        words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=_environment(engine),
    )  # fmt: skip
    assert line.stdin is not None and line.stdout is not None
    data, to = frame.dump(), line.stdin.fileno()
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    poll.register(to, select.POLLOUT)
    os.set_blocking(to, False)
    try:
        while data and [fd for fd, _events in poll.poll(PATIENCE * 1000)] == [to]:
            data = data[os.write(to, data) :]
    except OSError:
        pass  # it has ended, as its other end says
    os.set_blocking(to, True)
    poll.unregister(to)
    poll.register(line.stdout, select.POLLIN)
    found = [fd for fd, _events in poll.poll(PATIENCE * 1000)]
    if alive not in found and line.stdout.fileno() in found and line.stdout.read(1) == TAKEN:
        return line
    line.kill()
    line.communicate()
    return None


def _remove(engine: str, name: str) -> None:
    """Give the run time to end by itself, then make sure."""
    for words in (("wait", name), ("rm", "--force", name)):
        try:
            _ask(engine, *words)
        except subprocess.TimeoutExpired:
            pass


def collect(state: str) -> list[str]:
    """Remove containers whose run is dead: a line for each (``membrane gc``).  Without an engine there are none."""
    place = f"{state}/carried"
    if not os.path.isdir(place):
        return []
    out: list[str] = []
    for name in CARRIERS:
        if engine := _client(name, [state, os.getcwd()]):
            out += _collect(engine, state, place)
    for entry in os.listdir(place):
        name = entry.partition(".")[0]
        if name.startswith("membrane-") and _is_dead(f"{place}/{name}"):
            os.unlink(f"{place}/{entry}")
    return [f"container {name}" for name in out]


def _collect(engine: str, state: str, place: str) -> list[str]:
    try:
        found = _ask(engine, "ps", "--all", f"--filter=label={carrier.LABEL}={state}", "--format={{.Names}}")
    except subprocess.TimeoutExpired:
        return []
    names = found.stdout.split() if found.returncode == 0 else []
    dead = [name for name in names if _is_dead(f"{place}/{name}")]
    for name in dead:
        _remove_now(engine, name)
    return dead


def _remove_now(engine: str, name: str) -> None:
    try:
        _ask(engine, "rm", "--force", name)
    except subprocess.TimeoutExpired:
        pass


def _is_dead(path: str) -> bool:
    """Can the lock of a run be taken?  One that has no lock any more has ended."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        return not is_held(fd)
    finally:
        os.close(fd)
