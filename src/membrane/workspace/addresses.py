"""Addresses of git on this machine: may they stand in a configuration that the command has written?

Theory of operation
-------------------
git takes a path, or ``file://``, for a repository here.  ``git push`` to it runs ``git-receive-pack`` in that one, and
so its hooks (githooks(5), pre-receive).  In the workspace and other guarded trees no hook can be made; but the
command also writes where nobody looks, such as the sandbox's home, which is a directory of our state on the host.  So
an address that the command sets leads neither there nor, in a guarded tree, through a link, which could lead there, nor
to a file that git takes for one: of any name, it says where the repository is (gitrepository-layout(5), ``gitfile``).

A relative address counts from the top of a work tree (git-push(1), GIT URLS), which a submodule's configuration does
not tell: it is looked at from each directory between the configuration and the tree's top.

Reference: git, connect.c ``parse_connect_url``, url.c ``url_decode``, path.c ``enter_repo`` (``~``, names without
their ``.git``), setup.c ``read_gitfile_gently``.
"""

from __future__ import annotations

import errno
import os
import stat

from ..host import syscalls
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEYS = frozenset({"url", "pushurl", "remote", "pushremote", "pushdefault", "defaultremote"})
_SUFFIXES = ("", ".git", "/.git", ".git/.git")  # with which git looks for a repository as well
_OPEN = "leads to what commands can write and nobody looks at: git would run its hooks"
_POINTER = b"gitdir: "  # how such a file begins
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
        if (
            self._places.open
            and _is_beside_remote(key, value)
            and _may_be_open(value or "", self._directory, self._places)
        ):
            return f"{key[:100]} {_OPEN}"
        return ""


def _said_of(path: str, directory: str, places: Trees) -> str:
    for tree, whole in _leads(path, directory, places):
        if tree in places.open:
            return _OPEN
        if _link_on(whole, tree):
            return "leads through a link, or a file that names a repository, whose hooks git would run"
    return ""


def links(settings: Iterable[tuple[str, str | None]], directory: str, places: Trees) -> Iterator[str]:
    """Links, and files that name a repository, on the way to where addresses of a configuration lead in guarded trees;
    absolute."""
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
    if _is_beside_remote(key, value):
        return []
    found = [value] if value and name in _KEYS else []
    found += [sub] if section == "remote" and sub else []
    return [path for path in map(local, found) if path]


def _is_beside_remote(key: str, value: str | None) -> bool:
    """Does it count from the address of a remote, or without one from the work tree (gitmodules(5), url)?"""
    return key.startswith("submodule.") and key.endswith(".url") and (value or "").startswith(("./", "../"))


def _may_be_open(path: str, directory: str, places: Trees) -> bool:
    """Could such a path lead where no guard looks?

    A remote on this machine may be anywhere but there, so what is left of its path by each ``../`` may be any directory
    above such a tree; without a remote it is one above the configuration.
    """
    while path.startswith(("./", "../")):
        path = path.partition("/")[2].lstrip("/")
    for tree in places.open:
        if tree == "/":  # of a change set, which tells addresses that leave the workspace: these mostly do
            continue
        above = {directory}
        for each in (directory, tree):
            while (each := os.path.dirname(each)) not in above:
                above.add(each)
        if any(_inside(os.path.normpath(f"{each}/{path}") + end, tree) for each in above for end in _SUFFIXES):
            return True
    return False


def local(address: str) -> str:
    """The path of an address that is one of this machine to git; empty for any other."""
    scheme, mark, rest = address.partition("://")
    if mark and "/" not in scheme and ":" not in scheme:
        if scheme != "file":  # of another spelling it is the name of a program (transport.c, transport_get)
            return ""
        from urllib.parse import unquote

        # git passes a host over, whatever it is, and takes no NUL for one.
        whole = unquote(rest.replace("%00", "%2500"), errors="surrogateescape")
        return whole[whole.find("/") :] if "/" in whole else ""
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
    """Something when there is a link on the way to ``path`` (as far as it is there), or a file there that names a
    repository, or it cannot be looked at.

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
                found = syscalls.openat2(root, below, os.O_PATH, 0, syscalls.RESOLVE_NO_SYMLINKS)
            except OSError as error:
                return "" if error.errno in (errno.ENOENT, errno.ENOTDIR) else f"{tree.rstrip('/')}/{below}"
            try:
                if count == len(parts) and parts[-1] != ".git" and _is_pointer(found):
                    return f"{tree.rstrip('/')}/{below}"
            finally:
                os.close(found)
        return ""
    finally:
        os.close(root)


def _is_pointer(place: int) -> bool:
    """Is it a regular file that git takes for the name of a repository, or one that cannot be read?

    A ``.git`` is judged by its own rules, wherever it is (``judge``).
    """
    if not stat.S_ISREG(os.fstat(place).st_mode):
        return False
    try:
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return os.read(fd, len(_POINTER)) == _POINTER
    finally:
        os.close(fd)
