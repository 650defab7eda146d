"""What of the caller's own git configuration is in force inside: who they are, and what cannot run or open anything.

Theory of operation
-------------------
The sandbox has a home of its own, so git inside would not know who commits.  ``settings`` reads the caller's files
(git-config(1), "FILES") outside, with the strict reader of ``gitconfig``, and takes the keys of ``HARMLESS`` and
aliases that are no shell commands.  They are written anew, as a system-level configuration, which the sandbox's own
home and the repository override.  Never credentials, programs, URLs or paths: a key that is not listed is left out.
``core.excludesFile`` is a path, so its content is taken, not its name.

``include.path`` is followed, ``includeIf`` where its condition is ``gitdir:`` of a directory, as people use it who
commit under two names.  Bounds: ``MOST_FILES`` files of ``protect.LARGEST_READ`` bytes; a larger one, and one that is
no plain configuration, says nothing.
"""

from __future__ import annotations

import os
import stat

from .protect import LARGEST_READ, read_bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_FILES = 16  # configuration files
MOST_PATTERNS = 1 << 16  # bytes of the caller's core.excludesFile
HARMLESS = frozenset(
    (
        *("user.name", "user.email", "author.name", "author.email", "committer.name", "committer.email"),
        *("user.useconfigonly", "init.defaultbranch", "init.defaultobjectformat"),
        *("pull.rebase", "pull.ff", "push.default", "push.autosetupremote", "push.followtags", "fetch.prune"),
        *("fetch.prunetags", "merge.ff", "merge.conflictstyle", "merge.renames", "rebase.autosquash"),
        *("rebase.autostash", "rebase.updaterefs", "rerere.enabled", "rerere.autoupdate", "commit.verbose"),
        *("commit.cleanup", "diff.algorithm", "diff.colormoved", "diff.mnemonicprefix", "diff.renames", "diff.context"),
        *("diff.noprefix", "log.date", "log.follow", "log.decorate", "log.abbrevcommit", "format.pretty"),
        *("branch.sort", "branch.autosetupmerge", "branch.autosetuprebase", "tag.sort", "status.short"),
        *("status.branch", "status.showuntrackedfiles", "status.submodulesummary", "column.ui", "help.autocorrect"),
        *("color.ui", "color.branch", "color.diff", "color.status", "core.abbrev", "core.quotepath"),
        *("core.autocrlf", "core.eol", "core.safecrlf", "core.whitespace", "advice.detachedhead", "stash.showpatch"),
    )
)  # lower case


def settings(environ: Mapping[str, str], workspace: str) -> tuple[str, bytes]:
    """The caller's harmless settings as a configuration file, and the patterns of their ``core.excludesFile``.

    Args:
        environ: the caller's.
        workspace: which ``includeIf`` counts depends on it.
    """
    from .programs import own_files

    home = environ.get("HOME", "")
    budget = [MOST_FILES]
    kept: dict[str, str | None] = {}
    excludes = f"{environ.get('XDG_CONFIG_HOME') or home + '/.config'}/git/ignore"
    for path in own_files(dict(environ))[1:]:  # the first is the system's, which the view has
        for key, value in _read(path, home, workspace, budget, 0):
            if key == "core.excludesfile":
                excludes = _home(value or "", home)
            elif key in HARMLESS or (key.startswith("alias.") and _is_plain(key, value)):
                kept.pop(key, None)
                kept[key] = value
    return "".join(_line(key, value) for key, value in kept.items()), _content(excludes, MOST_PATTERNS)


def _is_plain(key: str, value: str | None) -> bool:
    """An alias for other words of git, by a plain name."""
    name = key[len("alias.") :]
    return value is not None and not value.lstrip().startswith("!") and name.replace("-", "a").isalnum()


def _line(key: str, value: str | None) -> str:
    section, _, name = key.partition(".")
    if value is None:
        return f"[{section}]\n\t{name}\n"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'[{section}]\n\t{name} = "{quoted}"\n'


def _read(path: str, home: str, workspace: str, budget: list[int], depth: int) -> Iterator[tuple[str, str | None]]:
    from .gitconfig import ConfigError, parse

    if budget[0] <= 0:
        return
    budget[0] -= 1
    data = _content(path, LARGEST_READ)
    try:
        found = parse(data.decode("utf-8")) if data else []
    except (ConfigError, UnicodeDecodeError):
        return
    for key, value in found:
        conditional = key.startswith("includeif.") and key.endswith(".path")
        if key == "include.path" or (conditional and _holds(key[len("includeif.") : -len(".path")], home, workspace)):
            if value and depth < 4:
                place = os.path.join(os.path.dirname(path), _home(value, home))
                yield from _read(place, home, workspace, budget, depth + 1)
        else:
            yield key, value


def _holds(condition: str, home: str, workspace: str) -> bool:
    """``gitdir:`` and a directory (git-config(1), "Conditional includes"); of other conditions nothing is known."""
    kind, _, pattern = condition.partition(":")
    if kind.lower() not in ("gitdir", "gitdir/i") or not pattern.endswith("/") or any(c in pattern for c in "*?["):
        return False
    tree, prefix = f"{workspace}/", os.path.realpath(_home(pattern, home)) + "/"
    return tree.lower().startswith(prefix.lower()) if kind.endswith("i") else tree.startswith(prefix)


def _home(path: str, home: str) -> str:
    return f"{home}/{path[2:]}" if path.startswith("~/") else path


def _content(path: str, most: int) -> bytes:
    """Of a regular file that is no larger; else nothing."""
    if not path.startswith("/"):
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        data = read_bounded(fd, most)
        return data if len(data) <= most else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
