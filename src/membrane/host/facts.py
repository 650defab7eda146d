"""What the plan depends on, read from this machine.

Only what the start-up path needs, a few dozen lstat(2) calls; ``host.probe`` tries features one by one for
``membrane doctor``.  A feature that the plan needs and the kernel refuses is an error of the launcher, with the
errno, never a guess made here.
"""

from __future__ import annotations

import _socket
import errno
import os
import stat

from ..errors import HostError
from ..plan.model import DeviceFact, HostFacts, SocketFact
from ..plan.mounts import MASK_SOURCE, absolute, candidates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal


CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, CAP_SETFCAP = 6, 7, 21, 31  # <linux/capability.h>
NO_ID_MAPS = frozenset(("overlay", "nfs", "nfs4", "cifs", "smb3", "9p", "vboxsf"))  # fs/*/: no FS_ALLOW_IDMAP
_PRIVATE = ("/run/", "/var/run/", "/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/")  # noqa: S108


def state_dir(environ: Mapping[str, str]) -> str:
    """``$MEMBRANE_HOME``, default ``~/.membrane``, absolute and resolved."""
    path = environ.get("MEMBRANE_HOME") or os.path.join(home_dir(environ), ".membrane")
    return os.path.realpath(path)


def home_dir(environ: Mapping[str, str]) -> str:
    """``$HOME``, or the home of passwd(5); resolved."""
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = "/"
    return os.path.realpath(home)


def in_initial_user_namespace() -> bool:
    """Whether uids are mapped one to one over the whole range (user_namespaces(7))."""
    fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 256).split() == [b"0", b"0", b"4294967295"]
    finally:
        os.close(fd)


def effective_capabilities() -> int:
    """The effective capabilities of this process, as a mask (capabilities(7), proc_pid_status(5))."""
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 1 << 16)
    finally:
        os.close(fd)
    return int(text.partition(b"\nCapEff:")[2].split(None, 1)[0], 16)


def mount_points() -> list[tuple[str, str]]:
    """Mount point and type of each mount of this mount namespace, in order (proc_pid_mountinfo(5))."""
    out = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            fields = line.split()
            if b"-" in fields:
                place = fields[4]
                if b"\\" in place:
                    for escaped, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                        place = place.replace(escaped, byte)
                out.append((os.fsdecode(place), fields[fields.index(b"-") + 1].decode("ascii", "replace")))
    return out


def mount_points_of(process: int) -> frozenset[str]:
    """Every mount point of the mount namespace of ``process``, by its path below the root of that process.

    Raises:
        OSError: it has ended.
    """
    with open(f"/proc/{process}/mountinfo", "rb") as table:
        return frozenset(mount_point(line.split(b" ", 5)[4]) for line in table)


def file_system(path: str) -> str:
    """The type of the file system of ``path`` as proc_pid_mountinfo(5) calls it; empty if it is not found."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode("ascii")
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            fields = line.split()
            if fields[2] == number and b"-" in fields:
                return fields[fields.index(b"-") + 1].decode("ascii", "replace")
    return ""


MOST_GROUPS = 4096  # control groups that are looked at


def open_cgroup(proc: str = "/proc/self") -> str:
    """The directory of a control group, of this process or below that, where root of a user namespace of the caller's
    could stop or kill what is in it, this process or others of the caller; empty: there is none.

    A cgroup namespace begins at the group of who makes it, and the files there stay the caller's
    (cgroup_namespaces(7)).  With ``nsdelegate`` the kernel takes no write to that group from inside, but of what is
    delegated (cgroup-v2.rst, "Delegation"); to those below it does, and version 1 knows no such thing.  A hierarchy
    that is mounted nowhere here is not looked at.
    """
    with open(f"{proc}/cgroup", "rb") as own, open(f"{proc}/mountinfo", "rb") as table:
        groups, mounts = own.read().splitlines(), [line.split() for line in table]
    for line in groups:
        _number, controllers, path = line.split(b":", 2)
        if controllers.startswith(b"name="):  # it has processes, and no control over them
            continue
        wanted = set(controllers.split(b",")) if controllers else set()
        for fields in mounts:
            kind, _source, options = fields[fields.index(b"-") + 1 :]
            said = set(options.split(b","))
            root, group = mount_point(fields[3]).rstrip("/"), os.fsdecode(path).rstrip("/")
            if kind != (b"cgroup" if wanted else b"cgroup2") or not wanted <= said:
                continue
            if f"{group}/".startswith(f"{root}/"):
                place = mount_point(fields[4]) + group.removeprefix(root)
                if found := _writable(place, delegated=b"nsdelegate" in said):
                    return found
                break
    return ""


def _writable(group: str, *, delegated: bool) -> str:
    """The first of a group and those below it that has a name which the caller may write."""
    for number, (place, _below, files) in enumerate(os.walk(group)):
        if number >= MOST_GROUPS or (
            not (delegated and place == group)
            and any(os.access(each, os.W_OK) for each in (place, *(f"{place}/{name}" for name in files)))
        ):
            return place
    return ""


def mount_point(field: bytes) -> str:
    """A path of proc_pid_mountinfo(5), in which blanks, newlines and backslashes are octal."""
    head, *rest = field.split(b"\\")
    return os.fsdecode(head + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest))


def mount_point_field(path: str) -> bytes:
    """The reverse of ``mount_point``: what fs/proc_namespace.c (show_mountinfo) writes for a path."""
    field = os.fsencode(path).replace(b"\\", b"\\134")
    for char in b" \t\n":
        field = field.replace(bytes([char]), b"\\%03o" % char)
    return field


def can_shift_ids(trees: Iterable[str]) -> bool:
    """Can a root caller's sandbox have a private range of kernel ids, with ``trees`` mounted by an id map?

    That needs capabilities, which a container's root does not have, and a file system that takes id maps
    (mount_setattr(2), "ID-mapped mounts"), which overlayfs, the root of every container, is not.
    """
    wanted = 1 << CAP_SYS_ADMIN | 1 << CAP_SETUID | 1 << CAP_SETGID
    if effective_capabilities() & wanted != wanted:
        return False
    return not any(file_system(tree) in NO_ID_MAPS for tree in trees if os.path.exists(tree))


def git_root(workspace: str) -> str:
    """The nearest directory at or above ``workspace`` that holds ``.git``; empty if none."""
    path = workspace
    while True:
        if os.path.lexists(os.path.join(path, ".git")):
            return path
        parent = os.path.dirname(path)
        if parent == path:
            return ""
        path = parent


def links_on(path: str) -> list[str]:
    """The symbolic links among ``path`` and its ancestors."""
    parts = path.strip("/").split("/")
    prefixes = ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return [prefix for prefix in prefixes if os.path.islink(prefix)]


def socket_fact(path: str, *, bare: bool = False) -> SocketFact | None:
    """What is at ``path``; None: nothing that can be looked at.

    ``bare``: the sandbox's root will have no capability over other users' files.
    """
    resolved = os.path.realpath(path)
    try:
        details = os.lstat(resolved)
    except OSError:
        return None
    if not stat.S_ISSOCK(details.st_mode):
        return SocketFact(path, resolved, "not a socket", details.st_uid)
    kind = _kind(resolved)
    far = kind == "stream" and bare and not _may_search(os.path.dirname(resolved))
    return SocketFact(path, resolved, "far" if far else kind, details.st_uid)


def _may_search(directory: str) -> bool:
    """By owner and mode alone: may we reach what is in it?"""
    groups = (os.getegid(), *os.getgroups())
    while True:
        try:
            status = os.stat(directory)
        except OSError:
            return True  # it is gone, or is asked for by who makes the view
        shift = 6 if status.st_uid == os.geteuid() else 3 if status.st_gid in groups else 0
        if not status.st_mode >> shift & 1:
            return False
        if directory == "/":
            return True
        directory = os.path.dirname(directory)


def bound_sockets(*, lasting: bool = False, named: Iterable[str] = ()) -> tuple[str, ...]:
    """The unix sockets of the file system that this network namespace's services listen on, as far as they are found.

    The kernel gives the name that a socket was bound to (proc_net_unix(5)).  Servers bind a passing name and rename it
    (ssh's control sockets), or a name relative to their directory; so all sockets beside a bound one are taken, and a
    relative name is looked for in the current directories of the processes that may be looked at.  What no process has
    any more is left out.

    Args:
        lasting: without those in the places that every view has a private one of,
        named: but for those trees in them.

    Returns:
        Absolute paths without links, sorted.
    """
    places: set[str] = set()
    relative: set[str] = set()
    try:
        with open("/proc/net/unix", "rb") as table:
            for line in table:
                fields = line.rstrip(b"\n").split(maxsplit=7)
                if len(fields) < 8 or fields[7].startswith(b"@"):
                    continue
                directory = os.path.dirname(os.fsdecode(fields[7]))
                (places if directory.startswith("/") else relative).add(directory)
    except OSError:
        return ()
    if relative:
        for base in _current_directories():
            places.update(os.path.join(base, directory) for directory in relative)
    out: set[str] = set()
    kept = tuple(f"{path.rstrip('/')}/" for path in named)
    if lasting:
        places = {place for place in places if not f"{place}/".startswith(_PRIVATE) or f"{place}/".startswith(kept)}
    for place in {os.path.realpath(place) for place in places}:
        try:
            with os.scandir(place) as entries:
                out.update(entry.path for entry in entries if stat.S_ISSOCK(_type(entry)))
        except OSError:
            continue
    return tuple(sorted(path for path in out if _kind(path) != "dead"))


def runtime_entries() -> tuple[tuple[str, str], ...]:
    """(path, target of the link or "") of everything directly below /run, sorted; without what is ours."""
    try:
        with os.scandir("/run") as entries:
            found = [(entry.path, os.readlink(entry.path) if entry.is_symlink() else "") for entry in entries]
    except OSError:
        return ()
    return tuple(sorted(row for row in found if not row[0].startswith((MASK_SOURCE, "/run/membrane"))))


def _type(entry: os.DirEntry[str]) -> int:
    """The mode of what is neither file, directory nor link; the others cost no system call."""
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return 0
    try:
        return entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return 0


def _current_directories() -> set[str]:
    out = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                out.add(os.readlink(f"/proc/{name}/cwd"))
            except OSError:
                continue
    return {path for path in out if path.startswith("/")}


def _kind(path: str) -> Literal["stream", "datagram", "dead", "forbidden"]:
    """Of a socket.  A stream service does not notice: an attempt of another type ends with EPROTOTYPE (unix(7))."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return "forbidden"
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        probe.connect(f"/proc/self/fd/{fd}")
    except OSError as error:
        kinds: dict[int | None, Literal["dead", "forbidden"]]
        kinds = {errno.ECONNREFUSED: "dead", errno.EACCES: "forbidden", errno.EPERM: "forbidden"}
        return kinds.get(error.errno, "stream")
    finally:
        probe.close()
        os.close(fd)
    return "datagram"


def device_nodes(names: Iterable[str]) -> tuple[DeviceFact, ...]:
    """The character devices that ``names`` of ``plan.devices`` stand for, and that exist; no link is followed."""
    wanted = tuple(names)
    if not wanted:
        return ()
    from fnmatch import fnmatchcase  # loads re: only where a policy names a device

    from ..plan.devices import NODES

    found: list[DeviceFact] = []
    for name in wanted:
        for pattern in NODES[name]:
            directory, _, last = pattern.rpartition("/")
            try:
                entries = sorted(entry for entry in os.listdir(directory) if fnmatchcase(entry, last))
            except OSError:
                continue
            for entry in entries:
                path = f"{directory}/{entry}"
                try:
                    details = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISCHR(details.st_mode):
                    number = f"{os.major(details.st_rdev)}:{os.minor(details.st_rdev)}"
                    link = f"/sys/dev/char/{number}"
                    sysfs = os.path.realpath(link) if os.path.lexists(link) else ""
                    usable = os.access(path, os.R_OK | os.W_OK, effective_ids=True)
                    found.append(DeviceFact(name, path, number, sysfs, usable))
    return tuple(found)


def gather(
    environ: Mapping[str, str],
    *,
    named: Iterable[str] = (),
    sockets: Iterable[str] = (),
    want_git_root: bool = False,
    want_bound: Literal["no", "lasting", "all"] = "no",
    want_runtime: bool = False,
    devices: Iterable[str] = (),
    workspace: str = "",
) -> HostFacts:
    """The facts for a run in ``workspace``, the current directory by default.

    Args:
        environ: the caller's environment.
        named: further host paths that the policy names.
        sockets: unix sockets that it names.
        want_bound: list the bound unix sockets of this network namespace, or those of ``bound_sockets(lasting=True)``.
        want_runtime: list what /run holds.
        want_git_root: look for the enclosing repository.
        devices: names of ``plan.devices`` whose nodes are looked for.

    Raises:
        HostError: the current directory is gone or unreadable.
    """
    try:
        workspace = os.path.realpath(workspace) if workspace else os.getcwd()  # which has no link (getcwd(2))
        details = os.stat(workspace)
    except OSError as error:
        tried = "use the workspace" if workspace else "use the current directory as the workspace"
        fix = () if workspace else ("cd into a directory that exists",)
        raise HostError(tried, error.strerror or "", target=workspace, fix=fix) from None
    if not stat.S_ISDIR(details.st_mode):
        raise HostError("use the workspace", "not a directory", target=workspace)
    home = home_dir(environ)
    if home == "/":
        home = "/tmp/home"  # noqa: S108 - users without a home (nobody) get a private one
    existing: list[str] = []
    links: list[tuple[str, str]] = []
    for path in candidates(home, environ.get("PATH", "")):
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISLNK(mode):
            leads_to = os.path.realpath(path)
            if os.path.islink(leads_to):
                continue  # in a circle: nothing can be opened there
            links.append((path, leads_to))
        existing.append(path)
    doors = [absolute(path, workspace) for path in sockets]
    places = [*(absolute(path, workspace) for path in named), *doors]
    uid = os.geteuid()
    state = state_dir(environ)
    user = environ.get("USER", "") or environ.get("LOGNAME", "")
    root = uid == 0 and in_initial_user_namespace() and can_shift_ids((workspace, state, os.path.dirname(state)))
    bare = uid == 0 and not root
    bound = () if want_bound == "no" else bound_sockets(lasting=want_bound == "lasting", named=places)
    if bare:  # nobody inside reaches the others, and who makes the view does not either
        bound = tuple(path for path in bound if _may_search(os.path.dirname(path)))
    return HostFacts(
        uid=uid,
        gid=os.getegid(),
        user=user,
        root=root,
        home=home,
        state=state,
        workspace=workspace,
        hostname=os.uname().nodename,
        environ=tuple(environ.items()),
        existing=frozenset(existing),
        absent=frozenset(path for path in places if not os.path.exists(path)),
        pointers=frozenset(path for path in places if path.endswith("/.git") and os.path.isfile(path)),
        linked=tuple((path, link) for path in places for link in links_on(path)),
        links=tuple(links),
        git_root=git_root(workspace) if want_git_root else "",
        sockets=tuple(fact for door in doors if (fact := socket_fact(door, bare=bare)) is not None),
        bound=bound,
        runtime=runtime_entries() if want_runtime else (),
        devices=device_nodes(devices),
    )
