"""Where the policy of a run comes from: files, trust, and the cache in front of them.

Theory of operation
-------------------
``load_policy`` reads ``$MEMBRANE_HOME/config.yaml`` and the workspace's ``.membrane.yaml``, lets ``policy.load`` make
the policy, and asks for approval when the project file widens it.  A project file may be hostile: it is opened below
the workspace's directory without following a symbolic link, must be a regular file, and is bounded in size.  What was
approved is remembered as SHA-256 of workspace path and content, and of the programs that its secrets come from, so a
changed or moved file is asked about again, and a changed program.

Which file is the project's, ``run.project`` says; its approval is that file's, wherever one stands.

The result is cached under ``$MEMBRANE_HOME/cache``.  A hit must match everything the policy was made from: the options,
the variables, the interpreter's version, and device, inode, size, mtime and ctime of every file (also of absent ones,
and of all code that was loaded when it was made).  A cache file counts only if it is ours alone (owner, mode 0600,
regular, one link); a hit imports neither ``yaml`` nor ``re`` nor ``ipaddress``.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
import sys
import time

from ..errors import HostError, PolicyError
from ..host.writing import write_all
from ..policy import codec
from ..policy.model import Policy
from ..value import Value
from .project import PROJECT_FILE, current, in_workspace, project_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeAlias

    from ..policy.load import Result
    from ..policy.model import Level
    from ..policy.reading import Widening

    Stamp: TypeAlias = tuple[int, ...] | None  # None: there is no such file
    # The options of one run that speak about the policy, as typed: ``key`` of ``policy.keys.OPTIONS`` to its value,
    # its values in order where it may be repeated, or True for a flag.  One that is empty was not given.
    Given: TypeAlias = Mapping[str, str | bool | tuple[str, ...]]

# What Membrane's articles and its first versions had beside it, and where that belongs now.
_NOT_READ = {
    ".membraneignore": "ignore",
    ".membrane/.membraneignore": "ignore",
    ".membrane/config.yml": "",
}
_MOST_LINES = 60  # of a question about a project file
_PLACE = getattr(os, "O_PATH", os.O_RDONLY)  # only Linux has it (the start-up path imports on macOS as well)
_LARGEST = 1 << 20  # bytes of a policy file
_LARGEST_CACHED = 16 << 20
_MOST_CACHED = 256  # files of a kind
# The kernel's timestamps advance in ticks (4 or 10 ms): a file younger than this could change again unseen.
_SETTLED_NS = 100_000_000
_PRESETS = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/policy/presets"
_PACKAGE = __name__.partition(".")[0]
_LOADED = time.time_ns()  # code that is newer was installed beside a process that still runs the old one


# Options that say which files count; what they say is in no file's level.
_NOT_LOADED = ("no_project", "trust_workspace")


class Loaded(Value):
    """The policy of one run and what has to be said about it."""

    policy: Policy
    warnings: tuple[str, ...] = ()
    widening: tuple[Widening, ...] = ()  # of the project file, approved
    cached: bool = False


class Review(Value):
    """A project file as it was read: what is approved is exactly this."""

    path: str
    digest: str  # SHA-256 of the workspace's path, NUL, the content; with programs of secrets, of that and of them
    widening: tuple[Widening, ...]


def state_home(environ: Mapping[str, str]) -> str:
    """``$MEMBRANE_HOME``, or ``~/.membrane``; absolute."""
    given = environ.get("MEMBRANE_HOME")
    return os.path.abspath(given) if given else f"{_user_home(environ).rstrip('/')}/.membrane"


def _user_home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    if home.startswith("/"):
        return home.rstrip("/") or "/"
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        cause = "HOME is not set and the user is not in the password database"
        raise HostError("find the home directory", cause, fix=("export HOME=DIR, a directory of yours",)) from None


def load_policy(
    given: Given,
    environ: Mapping[str, str],
    workspace: str,
    home: str,
    *,
    command: Sequence[str] = (),
    interactive: bool = True,
) -> Loaded:
    """Read, check and merge everything that makes this run's policy.

    Args:
        given: what the command line says.
        environ: the caller's environment.
        workspace: absolute path, symlinks resolved.
        home: $MEMBRANE_HOME, absolute (``state_home``); made when absent.
        command: what is run; its basename chooses an agent profile.
        interactive: it may ask through /dev/tty.

    Raises:
        PolicyError: a file or an option is wrong, or a project file widens and is not approved.
        HostError: a file or the state directory cannot be read or written.
    """
    user_home = _user_home(environ)
    given = {name: value for name, value in given.items() if value}
    program = os.path.basename(command[0]) if command else ""
    place, warning = project_place(workspace)
    warned = (warning,) if warning and "no_project" not in given else ()
    key = _cache_key(given, program, workspace, home, user_home, place)
    name = _cache_name(key)
    found = _recall(f"{home}/cache/{name}", key, environ)
    if found is not None:
        return found.replace(warnings=(*found.warnings, *warned))
    _make_home(home, workspace, user_home)
    if "no_global_config" not in given:
        write_config(home)
    files = _Files()
    result, review = _read_all(files, given, program, environ, workspace, home, user_home, place)
    remember = True
    if (
        review is not None
        and result.widening
        and "trust_workspace" not in given
        and review.digest not in [digest for _, digest in _read_trust(files, home)]
    ):
        remember = _ask(review, place, home, interactive)
        files.stamp(_trust_path(home))
    loaded = Loaded(result.policy, result.warnings, result.widening)
    if remember and files.settled():
        _remember(f"{home}/cache", name, key, files.stamps, result, loaded)
    return loaded.replace(warnings=(*loaded.warnings, *warned))


def _read_all(
    files: _Files,
    given: Given,
    program: str,
    environ: Mapping[str, str],
    workspace: str,
    home: str,
    user_home: str,
    place: str,
) -> tuple[Result, Review | None]:
    from ..policy.load import Source, load

    sources = []
    review_digest = ""
    if "no_global_config" not in given:
        path = config_path(home)
        data = files.read(path)
        sources.append(Source("user", path, _text(path, data), home))
    if "no_project" not in given:
        path = f"{place}/{PROJECT_FILE}"
        content = files.read_project(place)
        if content is not None:
            sources.append(Source("project", path, _text(path, content), place))
            review_digest = _digest(place, content)
    options = {name: value for name, value in given.items() if name not in _NOT_LOADED}
    result = load(
        sources,
        presets=files.presets(),
        options={**options, "directory": workspace} if options else {},
        environ=environ,
        home=user_home,
        command=program,
    )
    policy = in_workspace(result.policy, workspace, place)
    if "no_project" not in given:
        result = result.replace(warnings=(*result.warnings, *_not_read(files, workspace)))
    if review_digest and (programs := _programs(files, policy, environ, workspace, home)):
        review_digest = _digest(place, f"{review_digest}\0{programs}".encode())
        result = result.replace(variables=(*result.variables, ("PATH", environ.get("PATH"))))
    review = Review(f"{place}/{PROJECT_FILE}", review_digest, result.widening) if review_digest else None
    files.stamp_code()
    return result.replace(policy=policy), review


def _programs(files: _Files, policy: Policy, environ: Mapping[str, str], workspace: str, home: str) -> str:
    """What the programs are that the project file's secrets come from; empty when it names none.

    Approved with the file, so that another program needs another approval.  One that cannot be used has no digest:
    the run says why.
    """
    rules = [rule for rule in policy.secrets if rule.origin.level == "project" and rule.source.startswith("command:")]
    if not rules:
        return ""
    from . import sources

    shared = [rule.path for rule in policy.mounts if rule.mode == "rw" and not rule.git_root]
    trees = sources.Trees([workspace, *shared, *sources.kept(home)])
    lines = []
    for rule in rules:
        argv = rule.source.removeprefix("command:").split("\0")
        try:
            program = sources.Program(argv, trees, environ, rule.name, str(rule.origin))
        except (PolicyError, HostError) as error:
            lines.append(f"{rule.name}\0{error.cause}")
            continue
        for path in program.files:
            files.stamp(path)
            lines.append(f"{rule.name}\0{path}\0{sources.digest(path)}")
    return "\n".join(lines)


def _not_read(files: _Files, workspace: str) -> list[str]:
    """A warning for each file of another version in the workspace: what it hides is not hidden here."""
    out = []
    for name, key in _NOT_READ.items():
        path = f"{workspace}/{name}"
        files.stamp(path)
        if files.stamps[path] is not None:
            what = f'its patterns under "{key}:"' if key else "what it says"
            out.append(f"{path} is not read; write {what} in {workspace}/{PROJECT_FILE}")
    return out


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError("read the policy", "it is not UTF-8", where=f"{path}:{line}:1") from None


# ---------------------------------------------------------------- files


class _Files:
    """Reads files and keeps the stamp of each, taken from the open file itself."""

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp] = {}
        self.replaced = False  # what is loaded is not what is installed now

    def read(self, path: str) -> bytes:
        """A file of the user or of the package."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise HostError("read the policy file", _name(error), target=path) from None
        return self._take(fd, path)

    def read_project(self, workspace: str) -> bytes | None:
        """The project file, which may be absent but nothing else than a regular file."""
        path = f"{workspace}/{PROJECT_FILE}"
        try:
            directory = os.open(workspace, _PLACE | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HostError("open the workspace", _name(error), target=workspace) from None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            fd = os.open(PROJECT_FILE, flags, dir_fd=directory)
        except FileNotFoundError:
            self.stamps[path] = None
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PolicyError(
                    "read the policy", "it is a symbolic link; a project file is a regular file", where=path
                ) from None
            fix = _reopening(workspace) if error.errno == errno.EACCES else ()
            raise HostError("read the project file", _name(error), target=path, fix=fix) from None
        finally:
            os.close(directory)
        return self._take(fd, path)

    def _take(self, fd: int, path: str) -> bytes:
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise PolicyError("read the policy", "it is not a regular file", where=path)
            # An installer may link the package's own files; the project's file counts by what is in it.
            ours = not path.startswith(_PRESETS) and not path.endswith(f"/{PROJECT_FILE}")
            if ours and status.st_nlink > 1 and status.st_uid == os.geteuid():
                raise PolicyError(
                    "read the policy",
                    f"it has {status.st_nlink} names (hard links): who may write another one decides what is allowed",
                    where=path,
                    fix=(f"cp -p {path} {path}.new && mv {path}.new {path}",),
                )
            data = b""
            while len(data) <= _LARGEST:
                part = os.read(fd, _LARGEST + 1 - len(data))
                if not part:
                    break
                data += part
            if len(data) > _LARGEST:
                raise PolicyError("read the policy", f"it is larger than {_LARGEST >> 20} MiB", where=path)
        except OSError as error:
            raise HostError("read the policy file", _name(error), target=path) from None
        finally:
            os.close(fd)
        self.stamps[path] = _stamp_of(status)
        return data

    def stamp(self, path: str) -> None:
        """Note a file that the result depends on."""
        self.stamps[path] = _stamp(path)

    def stamp_code(self) -> None:
        """Note the code that made the result: what is loaded of this package, and the packages of others.

        Nothing that is not loaded had a say in it.  Of a package of others its first file is enough: an installer
        writes it again with the rest.
        """
        for name, module in [*sys.modules.items()]:
            package, _, member = name.partition(".")
            if package != _PACKAGE and (member or name == "__main__" or name in sys.stdlib_module_names):
                continue
            path = module.__dict__.get("__file__") if isinstance(module, type(sys)) else None
            if path:
                self.stamp(path)
                status = self.stamps[path]
                self.replaced = self.replaced or status is None or max(status[3:5]) >= _LOADED - _SETTLED_NS

    def presets(self) -> dict[str, str]:
        """Every preset file by name; profiles are called ``profiles/NAME``."""
        out = {}
        for prefix in ("", "profiles/"):
            directory = f"{_PRESETS}/{prefix}".rstrip("/")
            self.stamp(directory)
            for name in sorted(os.listdir(directory)):
                if name.endswith(".yaml"):
                    out[prefix + name[:-5]] = self.read(f"{directory}/{name}").decode("utf-8")
        return out

    def settled(self) -> bool:
        """Is every file old enough that a later change must show in its stamp, and the code what made the result?"""
        if self.replaced:
            return False
        newest = max((max(stamp[3:5]) for stamp in self.stamps.values() if stamp), default=0)
        return newest < time.time_ns() - _SETTLED_NS


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def _stamp(path: str) -> Stamp:
    try:
        # The project file and the trust store are never followed; the user may link config.yaml.
        return _stamp_of(os.lstat(path) if path.endswith((PROJECT_FILE, "/trusted.yaml")) else os.stat(path))
    except OSError:
        return None


def _name(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, 'error')} ({error.strerror})"


def _reopening(workspace: str) -> tuple[str, ...]:
    """What opens a workspace that cannot be read: a killed run with containers may have left it closed, perhaps as a
    subordinate id's; another user's is none of ours.
    """
    import shlex

    from ..host import subordinate

    place = shlex.quote(workspace)
    try:
        owner = os.stat(workspace).st_uid
    except OSError:
        return ()
    if owner == os.geteuid():
        return (f"chmod u+rwx {place}",)
    first, count = subordinate.find(os.geteuid()).uids
    if first <= owner < first + count:
        return (f'unshare --map-root-user --map-auto sh -c \'chown 0 "$0" && chmod u+rwx "$0"\' {place}',)
    return ("cd into a directory that you can read",)


def _make_home(home: str, workspace: str = "", user_home: str = "") -> None:
    """Make our state directory; not in ``workspace``, where the run is refused and would leave it behind.

    Raises:
        HostError: it cannot be made, or is another user's: root with the HOME of who called it (sudo that keeps it)
            would leave files of root's there, at which every later run of that user stops.
    """
    if workspace and not os.path.lexists(home):
        from ..plan import build, mounts

        # Of the home directory as a workspace the plan says more.
        if mounts.inside(home, workspace) and not mounts.inside(user_home, workspace):
            build.refuse_overlap(workspace, home)
    try:
        os.mkdir(home, 0o700)
    except FileExistsError:
        if not os.path.isdir(home):
            raise HostError("use the state directory", "it is not a directory", target=home, fix=_HOME_FIX) from None
        if (owner := os.stat(home).st_uid) != os.geteuid():
            fix = ("sudo -H membrane ...", *_HOME_FIX) if os.geteuid() == 0 else _HOME_FIX
            raise HostError("use the state directory", f"it belongs to uid {owner}", target=home, fix=fix) from None
    except OSError as error:
        raise HostError("make the state directory", _name(error), target=home, fix=_HOME_FIX) from None


_HOME_FIX = ("export MEMBRANE_HOME=DIR, a directory of yours that can be written",)


def config_path(home: str) -> str:
    """The user's policy file."""
    return f"{home}/config.yaml"


def project_file() -> str:
    """The project file that counts in the current directory.

    Raises:
        HostError: that is gone.
    """
    return f"{project_place(current())[0]}/{PROJECT_FILE}"


def read_alone(level: Level, path: str, text: str) -> Policy:
    """The policy that one file would make with the built-in presets and nothing else.

    Raises:
        PolicyError: it is wrong.
    """
    from ..policy.load import Source, load

    source = Source(level, path, text, os.path.dirname(path))
    return load([source], presets=_Files().presets(), environ=os.environ, home=_user_home(os.environ)).policy


def read_data(text: str, workspace: str, environ: Mapping[str, str]) -> Loaded:
    """The policy of a program's own data, as YAML text, with the presets that it names and nothing else.

    Raises:
        PolicyError: it is wrong.
    """
    from ..policy.load import Source, load

    source = Source("user", "from_dict", text, workspace)
    result = load(
        [source],
        presets=_Files().presets(),
        options={"no_profile": True, "directory": workspace},
        environ=environ,
        home=_user_home(environ),
    )
    return Loaded(in_workspace(result.policy, workspace), result.warnings)


def write_config(home: str) -> bool:
    """Write the commented template unless the file exists; return whether it was written.

    Raises:
        HostError: the state directory cannot be written.
    """
    path = config_path(home)
    if os.path.lexists(path):
        return False
    _make_home(home)
    from ..policy.keys import template

    try:
        # A name of our own first: a reader never sees half of the file, and nothing is overwritten.
        temporary = _temporary(path)
        _write_new(temporary, template().encode())
        try:
            _name_new(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except FileExistsError:
        return False
    except OSError as error:
        raise HostError("write the first configuration", _name(error), target=path, fix=_HOME_FIX) from None
    return True


def _name_new(temporary: str, path: str) -> None:
    """Give a file its name, which nothing may have yet, by rename: by link(2) it would have two for a moment, or for
    good where we are killed, and a file of two names is refused by the runs beside us.

    Raises:
        OSError: EEXIST, or it cannot be made.
    """
    if sys.platform == "linux":
        from ..host.syscalls import AT_FDCWD, rename_new

        try:
            rename_new(AT_FDCWD, temporary, AT_FDCWD, path)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that knows no RENAME_NOREPLACE (rename(2))
                raise
    os.link(temporary, path)
    os.unlink(temporary)


def _temporary(path: str) -> str:
    return f"{path}.{os.urandom(6).hex()}"


def _write_new(path: str, data: bytes) -> None:
    """Make a private file that must not exist; nothing is left when it fails."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


# ---------------------------------------------------------------- trust


def _trust_path(home: str) -> str:
    return f"{home}/trusted.yaml"


def _digest(workspace: str, data: bytes) -> str:
    import hashlib

    return hashlib.sha256(os.fsencode(workspace) + b"\0" + data).hexdigest()


def _read_trust(files: _Files, home: str) -> list[tuple[str, str]]:
    """Path and digest of each approved project file; whatever is wrong with the store refuses all of it."""
    from ..policy import document

    path = _trust_path(home)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        files.stamps[path] = None
        return []
    except OSError as error:
        raise HostError("read the trust store", _name(error), target=path) from None
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(fd)
        raise PolicyError(
            "read the trust store",
            "it belongs to or can be used by another user, so nothing in it counts",
            where=path,
            fix=(f"chmod 600 {path}, as its owner, after reading it", f"rm {path}, and approve again"),
        )
    data = files._take(fd, path)
    out = []
    tree = document.parse(_text(path, data), path)
    for item in tree.sequence("the trust store").items if tree is not None else ():
        entry = item.mapping("an approval")
        found = [entry.take(name) for name in ("path", "sha256")]
        entry.finish("an approval")
        texts = [taken[1].scalar("an approval").string("an approval") for taken in found if taken]
        if len(texts) != 2 or len(texts[1]) != 64 or not set(texts[1]) <= set("0123456789abcdef"):
            item.refuse("an approval is {path: ..., sha256: 64 hexadecimal digits}")
        out.append((texts[0], texts[1]))
    return out


def _write_trust(home: str, workspace: str, digest: str) -> None:
    """Remember one approval, in place of an earlier one for the same workspace."""
    from ..escaping import escape

    shown = escape(workspace)
    kept = [(path, known) for path, known in _read_trust(_Files(), home) if path != shown]
    lines = ["# Project files that were approved, by SHA-256 of the workspace's path, NUL, and the file."]
    for path, known in [*kept, (shown, digest)]:
        quoted = path.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'- {{ path: "{quoted}", sha256: {known} }}')
    target = _trust_path(home)
    temporary = _temporary(target)
    try:
        _write_new(temporary, "\n".join([*lines, ""]).encode("utf-8"))
        try:
            os.rename(temporary, target)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise HostError("write the trust store", _name(error), target=target, fix=_HOME_FIX) from None


def review_project(workspace: str, home: str, environ: Mapping[str, str] | None = None) -> Review | None:
    """Read the project file and say what it widens; ``None`` when there is none.

    Raises:
        PolicyError, HostError: as ``load_policy``.
    """
    variables = os.environ if environ is None else environ
    _make_home(home)
    write_config(home)
    place, _ = project_place(workspace)
    return _read_all(_Files(), {}, "", variables, workspace, home, _user_home(variables), place)[1]


def trust_project(workspace: str, home: str, review: Review | None = None) -> tuple[Widening, ...]:
    """Approve the project file for ``membrane trust``; return what it widens.

    Args:
        review: what was shown to the user, when it was; else the file as it is now.

    Raises:
        PolicyError: there is no project file, or it is wrong.
        HostError: the trust store cannot be written.
    """
    review = review or review_project(workspace, home)
    if review is None:
        raise PolicyError("approve the project file", "there is no such file", where=f"{workspace}/{PROJECT_FILE}")
    _write_trust(home, os.path.dirname(review.path), review.digest)
    return review.widening


def shown(review: Review) -> list[str]:
    """What a project file widens, all of it, in lines that fit a window."""
    from ..escaping import folded

    lines = []
    for each in review.widening:
        number = each.line
        for text in each.text.split("\n"):
            first, *more = folded(text)
            key = f"{each.key}:" if number == each.line else ""
            lines.append(f"  {number:>5}  {key:<14} {first}")
            lines += [f"  {'':>5}  {'':<14} {rest}" for rest in more]
            number += 1
    return lines


def _ask(review: Review, workspace: str, home: str, interactive: bool) -> bool:
    """Ask on the terminal whether the project file may widen; return whether that is remembered.

    Raises:
        PolicyError: no terminal, or the answer is no.
    """
    from ..escaping import escape

    lines = shown(review)
    question = f"membrane: {escape(review.path)} asks for more than the policy gives:\n" + "\n".join(lines)
    if len(lines) > _MOST_LINES:
        raise PolicyError(
            "use the project file",
            f"what it asks for takes {len(lines)} lines, more than a question can show, and it is not approved",
            where=f"{review.path}:{review.widening[0].line}:1",
            fix=("membrane trust                   (shows all of it)",),
        )
    terminal = _terminal() if interactive else None
    if terminal is None:
        raise PolicyError(
            "use the project file",
            f"it widens the policy ({', '.join(sorted({each.key for each in review.widening}))}) and is not approved",
            where=f"{review.path}:{review.widening[0].line}:1",
            fix=(
                "membrane --trust-workspace ...   (this run only)",
                "membrane trust                   (until the file changes)",
            ),
        )
    try:
        answer = _answer(terminal, f"{question}\nApply it? [o]nce, [a]lways, [N]o: ")
    finally:
        os.close(terminal)
    if answer in ("a", "always"):
        _write_trust(home, workspace, review.digest)
        return True
    if answer in ("o", "once"):
        return False
    raise PolicyError(
        "use the project file",
        "it widens the policy and was not approved",
        where=f"{review.path}:{review.widening[0].line}:1",
        fix=("membrane --no-project ...   (leaves the whole file out)",),
    )


def _terminal() -> int | None:
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _answer(terminal: int, question: str) -> str:
    """Write the question, read one line; what was typed before the question does not answer it."""
    import termios

    try:
        termios.tcflush(terminal, termios.TCIFLUSH)
        os.write(terminal, question.encode("utf-8", "backslashreplace"))
        line = b""
        while len(line) < 256 and not line.endswith(b"\n"):
            part = os.read(terminal, 256)
            if not part:
                break
            line += part
    except (OSError, termios.error):
        return ""
    return line.decode("ascii", "replace").strip().lower()


# ---------------------------------------------------------------- cache


def _cache_key(given: Given, program: str, workspace: str, home: str, user_home: str, place: str) -> bytes:
    # Not marshal: what it writes depends on how often an object is referred to.
    return ascii(
        (codec.LAYOUT, sys.hexversion, workspace, place, home, user_home, os.geteuid(), program, sorted(given.items()))
    ).encode()


def _cache_name(key: bytes) -> str:
    """A collision is a miss: the file holds the whole key."""
    import zlib

    return f"policy-{zlib.crc32(key):08x}"


def _recall(path: str, key: bytes, environ: Mapping[str, str]) -> Loaded | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o177
            or status.st_nlink != 1
            or status.st_size > _LARGEST_CACHED
        ):
            return None
        data = os.read(fd, status.st_size)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        stored, stamps, variables, warnings, widening, policy = marshal.loads(data)  # noqa: S302  (ours alone, see above)
        if stored != key:
            return None
        if any(environ.get(name) != value for name, value in variables):
            return None
        if any(_stamp(name) != stamp for name, stamp in stamps):
            return None
        restored = codec.restore(policy)
    except (EOFError, TypeError, ValueError):
        return None  # cut short, or of another version: read the files
    found: tuple[Widening, ...] = ()
    if widening:
        from ..policy.reading import Widening

        found = tuple(Widening(*fields) for fields in widening)
    return Loaded(restored, warnings, found, True)


def _forget_old(directory: str, kind: str) -> None:
    """Keep the newer half of the cache files of a kind when there are too many.

    Raises:
        OSError: one cannot be removed.
    """
    paths = [f"{directory}/{name}" for name in os.listdir(directory) if name.startswith(kind)]
    if len(paths) < _MOST_CACHED:
        return
    paths.sort(key=lambda path: os.stat(path, follow_symlinks=False).st_mtime_ns)
    for path in paths[: len(paths) - _MOST_CACHED // 2]:
        os.unlink(path)


def _remember(
    directory: str, name: str, key: bytes, stamps: Mapping[str, Stamp], result: Result, loaded: Loaded
) -> None:
    """Write the cache file; a cache that cannot be written is no error."""
    widening = tuple((each.key, each.line, each.text) for each in loaded.widening)
    record: Any = (
        key,
        tuple(stamps.items()),
        result.variables,
        loaded.warnings,
        widening,
        codec.dump(loaded.policy),
    )
    temporary = _temporary(f"{directory}/{name}")
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        for kind in ("policy-", "scan-"):  # a new workspace has one of each, and always comes by here
            _forget_old(directory, kind)
        _write_new(temporary, marshal.dumps(record))
        os.rename(temporary, f"{directory}/{name}")
    except OSError:
        return
