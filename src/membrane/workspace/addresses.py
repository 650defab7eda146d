"""Addresses of git on this machine: may they stand in a configuration that the command has written?

Theory of operation
-------------------
git takes a path, or ``file://``, for a repository here.  ``git push`` to it runs ``git-receive-pack`` in that one, and
so its hooks (githooks(5), pre-receive).  In the workspace and other guarded trees no hook can be made; but the
command also writes where nobody looks, such as the sandbox's home, which is a directory of our state on the host.  So
an address that the command sets leads neither there nor, in a guarded tree, through a link, which could lead there.

A relative address counts from the top of a work tree (git-push(1), GIT URLS), which a submodule's configuration does
not tell: it is looked at from each directory between the configuration and the tree's top.

Reference: git, connect.c ``parse_connect_url``, path.c ``enter_repo`` (``~``, and names without their ``.git``).
"""

from __future__ import annotations

import errno
import os

from ..host import syscalls
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEYS = frozenset({"url", "pushurl", "remote", "pushremote", "pushdefault", "defaultremote"})
_SUFFIXES = ("", ".git", "/.git", ".git/.git")  # with which git looks for a repository as well
_MOST_PARTS = 128  # components of a path that is looked at
_MOST_BASES = 16  # directories from which a relative one is looked at
MOST_LOCAL = 256  # different addresses of this machine, and names of remotes, in one configuration


class Trees(Value):
    """Where an address may lead; all are absolute and without links, and the deepest one decides."""

    guarded: tuple[str, ...] = ()  # trees in which no hook can be made
    open: tuple[str, ...] = ()  # what commands can write, and nobody looks at


class Judge:
    """Says why a setting of one configuration must not be set: it is an address of this machine that leads astray.

    Args:
        directory: that the configuration is in, absolute.
    """

    def __init__(self, directory: str, places: Trees) -> None:
        self._directory, self._places = directory, places
        self._said: dict[str, str] = {}

    def __call__(self, key: str, value: str | None) -> str:
        """What is said against a setting, with the key that ``gitconfig.parse`` gives; empty: nothing."""
        for path in _local_paths(key, value) if self._places.open else ():
            why = self._said.get(path)
            if why is None:
                if len(self._said) >= MOST_LOCAL:
                    return f"{key[:100]} is one of too many addresses of this machine"
                why = self._said[path] = _said_of(path, self._directory, self._places)
            if why:
                return f"{key[:100]} {why}"
        return ""


def _said_of(path: str, directory: str, places: Trees) -> str:
    for tree, whole in _leads(path, directory, places):
        if tree in places.open:
            return "leads to what commands can write and nobody looks at: git would run its hooks"
        if _link_on(whole, tree):
            return "leads through a link, to a repository whose hooks git would run"
    return ""


def links(settings: Iterable[tuple[str, str | None]], directory: str, places: Trees) -> Iterator[str]:
    """Links on the way to where addresses of a configuration lead in guarded trees, absolute."""
    paths = dict.fromkeys(path for key, value in settings for path in _local_paths(key, value))
    for path in tuple(paths)[:MOST_LOCAL]:
        for tree, whole in _leads(path, directory, places):
            if tree in places.guarded and _link_on(whole, tree) and (link := _link_on(whole, tree, which=True)):
                yield link


def _local_paths(key: str, value: str | None) -> list[str]:
    """What a setting has as addresses of this machine."""
    section, _, rest = key.partition(".")
    sub, _, name = rest.rpartition(".")
    if section not in ("remote", "branch", "checkout", "submodule"):
        return []
    if section == "submodule" and (value or "").startswith(("./", "../")):
        return []  # counts from the address of a remote (gitmodules(5))
    found = [value] if value and name in _KEYS else []
    found += [sub] if section == "remote" and sub else []
    return [path for path in map(local, found) if path]


def local(address: str) -> str:
    """The path of an address that is one of this machine to git; empty for any other."""
    scheme, mark, rest = address.partition("://")
    if mark and "/" not in scheme and ":" not in scheme:
        if scheme.lower() != "file":
            return ""
        from urllib.parse import unquote

        return "/" + unquote(rest, errors="surrogateescape")
    colon, slash = address.find(":"), address.find("/")
    if colon >= 0 and not 0 <= slash < colon:
        return ""  # of ssh
    return address


def _leads(path: str, directory: str, places: Trees) -> Iterator[tuple[str, str]]:
    """(tree, path in it) of each place that git may take the path for."""
    if path.startswith("~"):
        path = os.path.expanduser(path)
    above = [directory]
    if os.path.basename(directory) == ".git":
        above = [os.path.dirname(directory)]
    elif not path.startswith("/"):
        while above[-1] not in places.guarded and above[-1] != "/" and len(above) < _MOST_BASES:
            above.append(os.path.dirname(above[-1]))
        if len(above) == _MOST_BASES:
            yield places.open[0], path  # what is not looked at counts as bad
    for base in above:  # an absolute path is the same from each
        # What git opens is not known to be there yet; of ".." behind a link the link itself is found.
        written = f"{base}/{path}" if not path.startswith("/") else path
        whole = "/" + os.path.normpath(written).lstrip("/")
        for each in dict.fromkeys((whole, "/" + written.strip("/"))):
            tree = max((tree for tree in (*places.open, *places.guarded) if _inside(each, tree)), key=len, default="")
            if tree:
                yield from ((tree, each + suffix) for suffix in _SUFFIXES)


def _inside(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def _link_on(path: str, tree: str, *, which: bool = False) -> str:
    """Something when there is a link on the way to ``path`` (as far as it is there), or it cannot be looked at.

    Args:
        which: the path of the link itself is wanted.
    """
    parts = [part for part in path[len(tree.rstrip("/")) :].split("/") if part not in ("", ".")]
    if len(parts) > _MOST_PARTS:
        return path
    root = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The kernel goes from left to right: what is missing before a link is ENOENT, and a link before that ELOOP.
        for count in range(1, len(parts) + 1) if which else [len(parts)] * bool(parts):
            below = "/".join(parts[:count])
            try:
                os.close(syscalls.openat2(root, below, os.O_PATH, 0, syscalls.RESOLVE_NO_SYMLINKS))
            except OSError as error:
                return "" if error.errno in (errno.ENOENT, errno.ENOTDIR) else f"{tree.rstrip('/')}/{below}"
        return ""
    finally:
        os.close(root)
