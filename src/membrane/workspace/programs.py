"""Programs and files of the workspace that git's configuration names: what git outside would run or obey.

Theory of operation
-------------------
``named`` reads the configuration of each repository below the workspace and the caller's own, of files with what they
include (git-config(1), "FILES") and of the environment (the same, "ENVIRONMENT"; git(1), "ENVIRONMENT VARIABLES"), and
gives the words of each value that git runs as a program, hands to a shell or looks into for hooks.
``protect.existing`` binds read-only what they lead to below the workspace, as it does with hooks; what is
not there yet must not appear.  git itself is never run.

A value is cut as a shell cuts it, and more (``words``): at blanks, at operators, and after the ``=`` of an assignment;
with quotes and without.  Every word counts that names a file, for whichever of them is a script its interpreter says,
not we.  What does not exist counts only where a command or an interpreter's script is: ``!rm -rf build/x`` must not
keep ``build/x`` from being made.  A command without a slash is looked up in PATH.  A directory counts only where a key
takes one: ``!make -C sub`` must not make ``sub`` read-only.

Where a relative name begins depends on the program; git starts most of them at the top of the work tree, of which one
configuration may have several (``work_trees``).

Conditions of ``includeIf`` are taken to hold.  Bounds: ``MOST_FILES`` files, each of ``LARGEST`` bytes;
what is longer, or is no configuration by ``gitconfig.parse``, names nothing, as before.
"""

from __future__ import annotations

import os
import stat

from .protect import GIT_NAMES, fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST = 256 << 10  # bytes of one configuration file
MOST_FILES = 512  # configuration files of one workspace
MOST_LINKED = 1_000  # work trees that are linked to one repository
MOST_WORDS = 64  # of one value, read in one of two ways
LONGEST = 4096  # characters of a value that are looked at
DEEPEST = 10  # files that include each other, as git (config.c MAX_INCLUDE_DEPTH)

# Last parts of the keys, in lower case.  Values that are commands or names of programs:
_COMMANDS = frozenset(
    (
        "fsmonitor",
        "sshcommand",
        "editor",
        "pager",
        "gitproxy",
        "askpass",
        "alternaterefscommand",
        "clean",
        "smudge",
        "process",
        "textconv",
        "command",
        "external",
        "driver",
        "cmd",
        "program",
        "helper",
        "uploadpack",
        "receivepack",
        "packobjectshook",
        "difffilter",
        "tunnel",
    )
)
_SECTIONS = frozenset({"alias", "pager"})  # each key of these; an alias is a command only after "!"
_DIRECTORIES = frozenset({"core.hookspath", "init.templatedir"})
_FILES = frozenset({"core.attributesfile"})
_TOOLS = frozenset({"mergetool", "difftool", "man", "browser"})  # ``path`` of these
_INTERPRETERS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "python", "node", "perl", "ruby", "php", "deno", "bun"))
_OPERATORS = "\n;&|(){}`"  # after these a shell looks for a command
_BREAKS = " \t<>" + _OPERATORS
# Variables that say the same as a setting, and those that git takes where that and it are missing (git-var(1)).
_VARIABLES = {
    "GIT_EDITOR": "core.editor",
    "GIT_SEQUENCE_EDITOR": "sequence.editor",
    "VISUAL": "core.editor",
    "EDITOR": "core.editor",
    "GIT_PAGER": "core.pager",
    "PAGER": "core.pager",
    "GIT_SSH_COMMAND": "core.sshcommand",
    "GIT_SSH": "core.sshcommand",
    "GIT_ASKPASS": "core.askpass",
    "SSH_ASKPASS": "core.askpass",
    "GIT_EXTERNAL_DIFF": "diff.external",
    "GIT_PROXY_COMMAND": "core.gitproxy",
    "GIT_TEMPLATE_DIR": "init.templatedir",
    "GIT_EXEC_PATH": "core.hookspath",  # a directory of programs as well
}
MOST_SETTINGS = 256  # of GIT_CONFIG_COUNT
# In a file that holds none of these there is nothing to find: the parser is not loaded on the start-up path.
_SIGNS = tuple(
    word.encode()
    for word in (*_COMMANDS, *_SECTIONS, "hookspath", "templatedir", "attributesfile", "path", "update", "worktree")
)


def named(root: str, gits: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(directory, target, kind) of each name that may lead into the workspace.

    Args:
        root: the workspace, resolved.
        gits: git directories inside it, relative; absolute: that of the workspace itself, which is elsewhere.

    ``directory`` is relative to the workspace, ``target`` relative to it or absolute.  ``kind``: "any", "file", or
    "there" for a file that counts only where it is.
    """
    gits = tuple(gits)
    budget = [MOST_FILES]
    trees = {"": None}
    for git in gits:
        place = os.path.join(root, git) if git else root
        rows = [row for name in ("config", "config.worktree") for row in _read(place, name, budget, 0)]
        own = work_trees(root, git, rows)
        trees |= dict.fromkeys(own)
        for base, key, value in rows:
            for tree in own:
                yield from _targets(tree, base, key, value)
    for base, key, value in _callers(budget):
        for tree in trees if gits else ("",):
            for row in _targets(tree, base, key, value):
                if gits or row[1].startswith("/"):  # else there is no work tree in which it begins
                    yield row


def _callers(budget: list[int]) -> Iterator[tuple[str, str, str]]:
    """The caller's own settings, as ``_read`` gives them: of files, and of the environment."""
    for place in own_files(os.environ):
        yield from _read("/", place, budget, 0)
    environ = os.environ
    for name, key in _VARIABLES.items():
        if value := environ.get(name, ""):
            yield "/", key, value
    count = environ.get("GIT_CONFIG_COUNT", "")
    for number in range(min(int(count), MOST_SETTINGS) if count.isascii() and count.isdigit() else 0):
        key, value = environ.get(f"GIT_CONFIG_KEY_{number}", ""), environ.get(f"GIT_CONFIG_VALUE_{number}", "")
        first, _, rest = key.partition(".")
        middle, dot, last = rest.rpartition(".")
        key = f"{first.lower()}.{middle}{dot}{last.lower()}"
        yield "/", key, value
        if value and (key == "include.path" or (key.startswith("includeif.") and key.endswith(".path"))):
            yield from _read("/", _home(value), budget, 1)


def relative(root: str, gits: Iterable[str]) -> frozenset[str]:
    """The names of ``named`` that begin in whatever work tree git is in: so also in one that is made later."""
    return _plain(target for _tree, target, _kind in named(root, gits))


def _plain(targets: Iterable[str]) -> frozenset[str]:
    found = {os.path.normpath(target) for target in targets if target[:1] not in ("", "/", "~")}
    return frozenset(each for each in found if each != "." and not each.startswith(".."))


def beside(root: str, gits: Iterable[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(the caller's names as of ``relative``, those of the repositories, what is a work tree now), for ``Beside``.

    The names are those that count where they are not there yet: any word of a command is too much to keep from being
    made.
    """
    gits = tuple(gits)
    budget = [MOST_FILES]
    rows: list[tuple[str, str, str]] = []
    trees = {""} if gits else set()
    for git in gits:
        place = f"{root}/{git}" if git else root
        own = [row for name in ("config", "config.worktree") for row in _read(place, name, budget, 0)]
        rows += own
        trees.update(work_trees(root, git, own))
    mine, theirs = (
        _plain(target for row in each for _tree, target, kind in _targets("", *row) if kind != "there")
        for each in (_callers(budget), rows)
    )
    return mine, theirs, frozenset(tree for tree in trees if os.path.isdir(f"{root}/{tree}"))


def own_files(environ: os._Environ[str] | dict[str, str]) -> tuple[str, ...]:
    """The caller's and the system's configuration files, whether they are there or not."""
    home = environ.get("HOME", "")
    mine = environ.get("GIT_CONFIG_GLOBAL")
    files = [environ.get("GIT_CONFIG_SYSTEM") or "/etc/gitconfig"]
    if mine is not None:
        files.append(mine)
    else:
        files.append(f"{environ.get('XDG_CONFIG_HOME') or home + '/.config'}/git/config")
        files.append(f"{home}/.gitconfig")
    return tuple(file for file in files if file.startswith("/"))


def work_trees(root: str, git: str, rows: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """Where git runs hooks of a repository (githooks(5)), so far as it is in the workspace; relative to that.

    Above ``.git``, else (bare) the directory itself; what ``core.worktree`` names, as a submodule's does; and the trees
    that are linked to it (git-worktree(1)), for which the same configuration holds.

    Args:
        rows: the settings of its configuration, as ``_read`` gives them.
    """
    parent, _, name = git.rpartition("/")
    # Of a repository elsewhere the workspace is one of the trees (``gitdirs.find``), whatever it says of others.
    found = {"" if git.startswith("/") else parent if fold(name) in GIT_NAMES else git: None}
    place = os.path.join(root, git) if git else root
    named = [os.path.join(base, _home(value)) for base, key, value in rows if key == "core.worktree" and value]
    for each in (*named, *_linked(place)):
        path = os.path.normpath(each)
        if path == root:
            found[""] = None
        elif path.startswith(root.rstrip("/") + "/"):
            found[path[len(root.rstrip("/")) + 1 :]] = None
    return tuple(found)


def _linked(place: str) -> Iterator[str]:
    """The work trees that are linked to the git directory ``place``; absolute."""
    try:
        with os.scandir(f"{place}/worktrees") as listing:
            names = [entry.name for _, entry in zip(range(MOST_LINKED), listing, strict=False)]
    except OSError:
        return
    for name in names:
        try:
            fd = os.open(f"{place}/worktrees/{name}/gitdir", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            text = os.read(fd, LONGEST).decode("utf-8", "surrogateescape").rstrip("\n")
        except OSError:
            continue
        finally:
            os.close(fd)
        yield os.path.dirname(os.path.join(f"{place}/worktrees/{name}", text))


def words(value: str) -> list[tuple[str, bool]]:
    """The words of a command, and whether each is where a shell would look for a command.

    Lexical, for any shell: what it makes of them at run time is not followed.  Read twice: with quotes that hold a
    word together, and as if there were none, for ``sh -c './x'`` quotes a command.
    """
    whole, loose = (_cut(value[:LONGEST], quotes=quotes) for quotes in (True, False))
    return whole if whole == loose else whole + loose


def _cut(value: str, *, quotes: bool) -> list[tuple[str, bool]]:
    out: list[tuple[str, bool]] = []
    word, quote = "", ""
    command, escaped = True, False

    def end() -> None:
        nonlocal word, command
        name, assigned, rest = word.partition("=")
        assigns = bool(assigned) and name.lstrip("-").replace("_", "").isalnum()
        text = rest if assigns else word
        if text and len(out) < MOST_WORDS:
            out.append((text, command and not assigns))
        if word:
            command = command and assigns
        word = ""

    for char in value:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'" and quotes:
            quote = char
        elif char in _BREAKS or char in "\"'":
            end()
            command = command or char in _OPERATORS
        else:
            word += char
    end()
    return out


def _targets(tree: str, base: str, key: str, value: str) -> Iterator[tuple[str, str, str]]:
    """``base``: the directory of the file that says so, absolute."""
    section, _, rest = key.partition(".")
    name = rest.rpartition(".")[2]
    if key == "include.path" or (section == "includeif" and name == "path"):
        yield tree, os.path.join(base, _home(value)), "any"
    elif key in _DIRECTORIES or key in _FILES:
        yield tree, _home(value), "any"
    elif section in _TOOLS and name == "path":
        yield tree, _home(value), "file"
    elif name in _COMMANDS or section in _SECTIONS or (section == "submodule" and name == "update"):
        if section == "alias" or name in ("update", "helper"):
            # Another alias, a way to update, or the name of a helper, unless it begins so.
            if not value.startswith("!") and not (name == "helper" and value.startswith(("/", "~"))):
                return
            value = value.removeprefix("!")
        script = False  # the next word that is no option is what an interpreter runs
        for word, command in words(value):
            if command:
                script = word.rpartition("/")[2].rstrip("0123456789.") in _INTERPRETERS
                if "/" in word:
                    yield tree, _home(word), "file"
                continue
            runs = script and not word.startswith("-")
            script = script and not runs
            yield tree, _home(word), "file" if runs and "/" in word else "there"


def _home(path: str) -> str:
    home = os.environ.get("HOME", "")
    return home + path[1:] if path.startswith("~/") and home.startswith("/") else path


def _read(directory: str, name: str, budget: list[int], depth: int) -> Iterator[tuple[str, str, str]]:
    """(directory of the file, key, value) of a configuration file and what it includes."""
    place = os.path.join(directory, name)
    base = os.path.dirname(place)
    for key, value in _settings(place, budget, follow=depth > 0):
        yield base, key, value
        includes = key == "include.path" or (key.startswith("includeif.") and key.endswith(".path"))
        if includes and value and depth < DEEPEST:
            yield from _read(base, _home(value), budget, depth + 1)


def _settings(path: str, budget: list[int], *, follow: bool) -> list[tuple[str, str]]:
    """The settings of a file; [] when there are none that name anything (the common case)."""
    if budget[0] <= 0:
        return []
    budget[0] -= 1
    links = 0 if follow or not path.endswith(("/config", "/config.worktree")) else os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDONLY | links | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return []
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        with open(fd, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    except OSError:
        return []
    finally:
        os.close(fd)
    lower = data.lower()
    if len(data) > LARGEST or not any(sign in lower for sign in _SIGNS):
        return []
    from .gitconfig import ConfigError, parse

    try:
        return [(key, value or "") for key, value in parse(data.decode("utf-8", "surrogateescape"))]
    except ConfigError:
        return []
