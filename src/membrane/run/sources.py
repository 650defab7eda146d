"""Files and programs outside of the sandbox that the values of secrets come from: found so that no command chose them.

Theory of operation
-------------------
The supervisor opens such a file, or runs such a program, before the command runs and with the caller's rights.  What
is in a tree that a command can write was perhaps written by the command of an earlier run.  So a path is walked
component by component with O_PATH and O_NOFOLLOW, a link is followed by hand, and every directory on the way is
compared with those trees by device and inode: a name or a link that leads into one is refused.  Where it ends is
compared once more by its place in its file system, which a bind mount of a part of a tree does not change.  Because no
component can be changed by a command, the path still leads there when the program is executed.

A program is looked for in those entries of ``PATH`` that are absolute and outside of the trees, and gets only them; it
runs in ``/`` (many interpreters read code from their directory) and without variables that name such a tree
(``PYTHONPATH``, ``LD_LIBRARY_PATH``, ``VIRTUAL_ENV``).  The interpreter that its first line names, and paths among its
arguments, are walked as well.  What the program opens by itself is its own affair.

References: path_resolution(7), open(2) O_PATH, proc_pid_mountinfo(5), execve(2) "Interpreter scripts".
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import PolicyError
from ..plan.mounts import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LARGEST = 65536  # bytes of a file that holds a value
_LARGEST_PROGRAM = 512 << 20
_MOST_PARTS = 256  # components of a path
_MOST_LINKS = 40  # as the kernel
_MOST_INTERPRETERS = 4
_MOST_WORDS = 4096
_BREAKS = str.maketrans(dict.fromkeys("\t\n'\"`;|&<>(){}=:@,$!", " "))
_UNQUOTED = str.maketrans("", "", "'\"\\")
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib", "/opt/", "/nix/")  # hard links there are the system's own


def kept(state: str) -> list[str]:
    """What commands of earlier runs wrote below ``$MEMBRANE_HOME``."""
    return [f"{state}/{name}" for name in ("home", "homes", "agents", "quarantine")]


def _mounts() -> list[tuple[str, str, str]]:
    """Mount point, device and the directory of its file system that is seen there, of each mount; the latest first."""
    out = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            _id, _parent, device, root, point, *_rest = line.split(b" ")
            shown = [
                os.fsdecode(text.replace(b"\\040", b" ").replace(b"\\011", b"\t")) for text in (device, root, point)
            ]
            out.append((shown[2], shown[0], shown[1]))
    return out[::-1]


class Trees:
    """Trees of the host that a command can write, by identity.

    Args:
        paths: absolute; those that do not exist have nothing in them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._known: dict[tuple[int, int], str] = {}
        for path in paths:
            try:
                found = os.stat(path)
            except OSError:
                continue
            self._known[found.st_dev, found.st_ino] = path
        self._devices = {device for device, _ in self._known}
        self._mounts = _mounts() if self._known else []
        self._places = [(self._place(os.path.realpath(path)), path) for path in self._known.values()]

    def _place(self, path: str) -> tuple[str, str]:
        """The device, and the path within its file system."""
        most = max((point for point, _, _ in self._mounts if inside(path, point)), key=len, default="/")
        device, root = next(((dev, root) for point, dev, root in self._mounts if point == most), ("", "/"))
        return device, "/" + os.path.normpath(f"{root}/{path[len(most) :]}").lstrip("/")

    def holding(self, path: str) -> str:
        """The tree that a path without links is in, by whatever mount; empty: none."""
        if not self._places:
            return ""
        device, place = self._place(path)
        return next((tree for (dev, root), tree in self._places if dev == device and inside(place, root)), "")

    def at(self, found: os.stat_result) -> str:
        """The tree that begins there; empty: none."""
        return self._known.get((found.st_dev, found.st_ino), "")

    def may_link(self, found: os.stat_result) -> bool:
        """May a file have another name in one of them?"""
        return found.st_nlink > 1 and found.st_dev in self._devices


class Found:
    """Where a path leads.

    Attributes:
        path: absolute, without links.
        tree: the first tree on the way in which a command could have chosen where it leads; empty: none.
        link: the first symbolic link in such a tree; empty: none.
        error: why it ends before its last component; 0: it does not.
        status: of what is there, when it does not.
    """

    __slots__ = ("_fd", "error", "link", "path", "status", "tree")

    def __init__(self, path: str, trees: Trees) -> None:
        self.path, self.tree, self.link, self.error = "/", "", "", 0
        self._fd = -1
        opened: list[int] = []
        try:
            self._walk(path, trees, opened)
            self._fd = opened.pop()
        except OSError as error:
            self.error = error.errno or errno.EIO
        finally:
            for fd in opened:
                os.close(fd)

    def _walk(self, path: str, trees: Trees, opened: list[int]) -> None:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        names: list[str] = []
        inside: list[str] = []  # for each directory on the way, the tree that it is in
        rest = path.split("/")[::-1]
        if not path.startswith("/"):
            rest += os.getcwd().split("/")[::-1]
        links = steps = 0
        opened.append(os.open("/", flags))
        self.status = os.fstat(opened[0])
        inside.append(trees.at(self.status))
        self.tree = inside[0]
        while rest:
            part = rest.pop()
            if part in ("", "."):
                continue
            steps += 1
            if steps > _MOST_PARTS:
                raise OSError(errno.ENAMETOOLONG, "")
            if part == "..":
                if names:
                    os.close(opened.pop())
                    names.pop()
                    inside.pop()
                continue
            fd = os.open(part, flags, dir_fd=opened[-1])
            opened.append(fd)
            self.status = os.fstat(fd)
            tree = inside[-1] or trees.at(self.status)
            self.tree = self.tree or tree
            if stat.S_ISLNK(self.status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "")
                if tree:
                    self.link = self.link or "/".join(("", *names, part))
                target = os.readlink("", dir_fd=fd)
                os.close(opened.pop())
                if target.startswith("/"):
                    for each in opened[1:]:
                        os.close(each)
                    del opened[1:], names[:], inside[1:]
                rest += target.split("/")[::-1]
                continue
            names.append(part)
            inside.append(tree)
            self.path = "/" + "/".join(names)
        self.path = "/" + "/".join(names)
        self.status = os.fstat(opened[-1])
        self.tree = self.tree or trees.holding(self.path)

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, most: int) -> bytes:
        """The content, at most ``most`` bytes and one more; a regular file does not block.

        Raises:
            OSError: it cannot be read, or is no regular file (EINVAL).
        """
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if not stat.S_ISREG(self.status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            data = b""
            while len(data) <= most and (part := os.read(fd, min(1 << 20, most + 1 - len(data)))):
                data += part
            return data
        finally:
            os.close(fd)


def read_value(path: str, trees: Trees, what: str, where: str) -> bytes:
    """The content of a file that holds a secret, without the space around it.

    Args:
        what: the secret's name.
        where: the place of its rule, for errors.

    Raises:
        PolicyError: the command can write there, or chose where the path leads; it cannot be read.
    """
    found = Found(path, trees)
    try:
        cause = _chosen(found, path, trees)
        if cause:
            fix = (
                "move the file out of that tree and name its new place",
                "or show the command a copy with placeholders: masks: [{file: PATH, to: [HOST]}]",
            )
            raise PolicyError("read the secret", f"{what}: {cause}", where=where, fix=fix)
        try:
            data = found.read(LARGEST)
        except OSError as error:
            raise unreadable(what, where, f"{path}: {error.strerror}") from None
    finally:
        found.close()
    if len(data) > LARGEST:
        raise unreadable(what, where, f"{path}: it is larger than {LARGEST} bytes")
    return data.strip()


def unreadable(what: str, where: str, cause: str, *fix: str) -> PolicyError:
    """The rule of a secret cannot be bound, because its value is not there; arguments as of ``read_value``."""
    fix = fix or ("correct the place that the rule names, or take the rule out",)
    return PolicyError("read the secret", f"cannot read the secret {what}: {cause}", where=where, fix=fix)


def _chosen(found: Found, path: str, trees: Trees) -> str:
    """Why the command may have chosen what a path leads to; empty: it cannot have."""
    if found.link:
        return f"{path} leads over the symbolic link {found.link}, in {found.tree}, which the command can write"
    if found.tree:
        return f"{path} is in {found.tree}, which the command can write"
    regular = not found.error and stat.S_ISREG(found.status.st_mode)
    if regular and trees.may_link(found.status) and not found.path.startswith(_SYSTEM):
        return f"{path} has {found.status.st_nlink} hard links, of which the command may be able to write one"
    return ""


class Program:
    """A program that knows a secret, and how it may be run.

    Attributes:
        path: absolute, as it is to be executed.
        environ: for it.
        files: it and the files among its arguments; where they lead.

    Raises:
        PolicyError: the command can write one of them, or there is no such program.
    """

    __slots__ = ("_trees", "_what", "_where", "environ", "files", "path")

    def __init__(self, argv: Sequence[str], trees: Trees, environ: Mapping[str, str], what: str, where: str) -> None:
        self._trees, self._what, self._where = trees, what, where
        self.files: list[str] = []
        entries = [entry for entry in environ.get("PATH", os.defpath).split(":") if self._is_safe(entry)]
        self.environ = {name: value for name, value in environ.items() if not self._names_a_tree(value)}
        self.environ["PATH"] = ":".join(entries)
        self.path = self._find(argv[0], entries)
        self._check_program(self.path, _MOST_INTERPRETERS)
        for text in argv[1:]:
            # As it is, and as a shell reads it: with variables, without what quotes.
            for read in dict.fromkeys((text, os.path.expandvars(text), os.path.expandvars(text.translate(_UNQUOTED)))):
                self._check_words(read)

    def _check_words(self, text: str) -> None:
        for word in text.translate(_BREAKS).split()[:_MOST_WORDS]:
            if "/" in word:
                self._check_argument(os.path.expanduser(word))
                if word[0] == "-":  # -I/path
                    self._check_argument(word[word.index("/") :])

    def _is_safe(self, path: str) -> bool:
        if not path.startswith("/"):
            return False
        found = Found(path, self._trees)
        found.close()
        return not found.tree

    def _names_a_tree(self, value: str) -> bool:
        words = value.translate(_BREAKS).split()[:_MOST_WORDS]
        return any("/" in word and not self._is_safe(word[word.index("/") :]) for word in words)

    def _find(self, name: str, entries: Sequence[str]) -> str:
        if "/" in name:
            return os.path.abspath(os.path.expanduser(name))
        for entry in entries:
            path = f"{entry}/{name}"
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        cause = f"{name}: there is no such program in an entry of PATH that the command cannot write"
        raise unreadable(self._what, self._where, cause)

    def _refuse(self, cause: str) -> PolicyError:
        return PolicyError(
            "run the program of the secret",
            f"{self._what}: {cause}",
            where=self._where,
            fix=("keep the program, and what it reads, outside of what the command can write, and name it there",),
        )

    def _check_program(self, path: str, interpreters: int) -> None:
        found = Found(path, self._trees)
        try:
            if cause := _chosen(found, path, self._trees):
                raise self._refuse(cause)
            try:
                first = found.read(255)
            except OSError as error:
                cause = f"{path}: {error.strerror}"
                raise unreadable(self._what, self._where, cause) from None
            self.files.append(found.path)
        finally:
            found.close()
        line = os.fsdecode(first[:256].partition(b"\n")[0])
        if line.startswith("#!") and (words := line[2:].split(None, 1)):
            if not interpreters or not words[0].startswith("/"):
                raise self._refuse(f"{path} has an interpreter that is not named by an absolute path")
            self._check_program(words[0], interpreters - 1)
            self.files.pop()  # the system's; it is no part of what is approved
            for word in words[1].translate(_BREAKS).split() if len(words) > 1 else ():
                if "/" in word:
                    self._check_argument(word)

    def _check_argument(self, path: str) -> None:
        found = Found(path, self._trees)
        try:
            if cause := _chosen(found, path, self._trees):
                raise self._refuse(cause)
            regular = not found.error and stat.S_ISREG(found.status.st_mode)
            if regular and found.path not in self.files:
                self.files.append(found.path)
        finally:
            found.close()


def digest(path: str) -> str:
    """SHA-256 of a program, in hexadecimal; a word that is none when it cannot be read whole.

    Like every other file it may change until it is executed, but not by a command (``Found``).
    """
    import hashlib

    found = Found(path, Trees(()))
    try:
        data = found.read(_LARGEST_PROGRAM)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "unreadable")
    finally:
        found.close()
    return hashlib.sha256(data).hexdigest() if len(data) <= _LARGEST_PROGRAM else "too large"
