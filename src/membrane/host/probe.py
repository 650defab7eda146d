"""What this machine can do, for ``membrane doctor``: every feature is tried, nothing is inferred from a version.

Theory of operation
-------------------
Each probe runs in a forked child with a deadline, in namespaces of its own where it changes anything.  It returns
when the feature works, with a word of detail; it raises ``OSError`` when the kernel refuses, ``Absent`` when the
feature is there but does not do what is needed.  A child that dies, hangs or raises anything else proves nothing:
the answer is "unknown", never "no".

Not on the start-up path: what a run needs and does not get is an error of the launcher, with the errno.
"""

from __future__ import annotations

import errno
import marshal
import os
import signal
import struct
import sys

from ..plan.build import BASE_KUID
from ..plan.model import NetworkPlan, Support
from . import landlock, netlink, netns, overlay, seccomp
from . import syscalls as sc
from .ready import ready
from .surroundings import INSIDE_FIX, another, confined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Probe: TypeAlias = Callable[[], str]

_DEADLINE = 30.0  # seconds, on a busy machine
_FOREIGN = ("203.0.113.1", "2001:db8::1")  # documentation addresses (RFC 5737, RFC 3849)


class Absent(Exception):
    """The feature cannot be used: why, and the exact fix ("" when there is none)."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


def features() -> list[tuple[str, str, Support]]:
    """Try every feature.

    Returns:
        (group, name, answer): the group is ``native`` or ``tracing``.  Features that only root callers
        use are left out for others.
    """
    root = os.geteuid() == 0
    found = []
    for group, name, probe, for_root_only, fix in _PROBES:
        if root or not for_root_only:
            support, detail = _try(probe, fix)
            found.append((group, f"{name} {detail}" if detail else name, support))
    return found


def _try(probe: Probe, fix: str) -> tuple[Support, str]:
    """Run ``probe`` in a child: its answer, and the detail for the name."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(receive)
            with open(os.devnull, "r+b") as null:
                for fd in range(3):
                    os.dup2(null.fileno(), fd)
            os.write(send, marshal.dumps(_answer(probe, fix)))
        finally:
            os._exit(0)
    os.close(send)
    try:
        readable, _ = ready((receive,), seconds=_DEADLINE)
        data = os.read(receive, 65536) if readable else b""
    finally:
        os.close(receive)
        try:
            os.killpg(pid, signal.SIGKILL)  # it and the children that it left
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)  # it has not reached setsid
        _, status = os.waitpid(pid, 0)
    if data:
        state, why, advice, detail = marshal.loads(data)  # noqa: S302 - from our own child
        return Support(state, why, advice), detail
    if not readable:
        return Support("unknown", f"no answer in {_DEADLINE:g} s"), ""
    return Support("unknown", f"the probe ended without an answer (wait status {status:#x})"), ""


def _answer(probe: Probe, fix: str) -> tuple[str, str, str, str]:
    try:
        return "yes", "", "", probe()
    except Absent as absent:
        return "no", absent.why, absent.fix or fix, ""
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        return "no", f"{name}: {error.strerror}" if name else str(error), fix or _namespace_fix(error), ""
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, OSError):  # a HostError of the code that the run itself uses
            return "no", str(error), fix, ""
        return "unknown", f"{type(error).__name__}: {error}", "", ""


# ---------------------------------------------------------------- namespaces


def _setting(name: str) -> str:
    """A file of /proc/sys, "" when it is not there."""
    try:
        with open(f"/proc/sys/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace_fix(error: OSError) -> str:
    """Which setting forbids user namespaces, as the command that allows them, or what else to do."""
    if another() is not None:  # whose setting is none that could be changed here
        return INSIDE_FIX
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sudo membrane setup userns"
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0" or error.errno in (errno.ENOSPC, errno.EUSERS):
        return "sudo sysctl user.max_user_namespaces=63000"
    return confined((error.strerror or "").partition(":")[0])[1] if error.errno == errno.EPERM else ""


def _enter(kinds: int) -> None:
    """New namespaces below a new user namespace that maps the caller to itself."""
    uid, gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER | kinds)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _private_tmpfs() -> str:
    """A tmpfs that only this child sees: its path."""
    _enter(sc.CLONE_NEWNS)
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", "/tmp", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV)  # noqa: S108 - a mount point, nothing is shared
    return "/tmp"  # noqa: S108


def refused_view() -> str:
    """Why this process may not make what the native backend is made of; empty: it may, or that could not be told.

    For ``backend: auto``.  Only what the machine forbids outright is looked at: what else a run does not get is its
    error, and no reason for another backend.
    """
    support, _detail = _try(_view, "")
    return support.why if support.state == "no" else ""


def _view() -> str:
    """A new proc(5) in namespaces of its own: the kernel refuses one where that of a container is partly covered."""
    _enter(sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWNET)
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV)
        except OSError as error:
            number = error.errno or errno.EPERM
        os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(number, f"mount proc: {os.strerror(number)}")
    return ""


def _user_namespaces() -> str:
    _private_tmpfs()
    return ""


def _network_namespaces() -> str:
    _enter(sc.CLONE_NEWNET)
    netlink.Connection(netlink.NETLINK_ROUTE).transact([netlink.link_up(1)])
    return ""


def _mount_setattr() -> str:
    root = _private_tmpfs()
    os.mkdir(f"{root}/writable")
    tree = sc.open_tree(f"{root}/writable", sc.OPEN_TREE_CLONE | sc.AT_RECURSIVE)
    sc.mount_setattr(tree, sc.MOUNT_ATTR_RDONLY)
    sc.move_mount(tree, f"{root}/writable")
    try:
        os.mkdir(f"{root}/writable/x")
    except OSError as error:
        if error.errno == errno.EROFS:
            return ""
        raise
    raise Absent("a read-only mount was written to")


def _overlay() -> str:
    """Reviewed workspaces; whether the file system of our state can hold the changes is said when a run begins."""
    root = _private_tmpfs()
    for name in ("upper", "lower", "merged"):
        os.mkdir(f"{root}/{name}")
    os.mkdir(f"{root}/lower/seen")
    lowers = f"lowerdir={root}/upper:{root}/lower,{overlay.OPTIONS}"
    sc.mount("overlay", f"{root}/merged", "overlay", sc.MS_RDONLY, lowers)
    if os.listdir(f"{root}/merged") != ["seen"]:
        raise Absent("an overlay does not show its layers")
    return ""


def _apparmor() -> str:
    try:
        _user_namespaces()
    except OSError:
        if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
            raise Absent("kernel.apparmor_restrict_unprivileged_userns = 1 and no profile allows this interpreter")
    return ""


def _map_private_range() -> tuple[int, int, int]:
    """A child in a user namespace whose ids are the private range: its pid, a pipe from it and one to it."""
    news, report = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
            os.write(report, b"x")
            os.read(wait, 1)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.write(report, b"y")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(report)
    if os.read(news, 1) != b"x":
        raise Absent("the kernel refuses a user namespace")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(f"0 {BASE_KUID} 65536\n")
    return pid, news, go


def _private_kuid_range() -> str:
    pid, news, go = _map_private_range()
    os.write(go, b"x")
    if os.read(news, 1) != b"y":
        raise Absent("a process cannot take the ids of the range")
    if os.stat(f"/proc/{pid}").st_uid != BASE_KUID:
        raise Absent("the process has not the first id of the range")
    return ""


def _idmapped_mounts() -> str:
    pid, _, _ = _map_private_range()
    userns = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    tree = sc.open_tree(".", sc.OPEN_TREE_CLONE | sc.AT_RECURSIVE)
    sc.mount_setattr(tree, sc.MOUNT_ATTR_IDMAP, userns_fd=userns)
    if os.fstat(tree).st_uid == os.stat(".").st_uid:
        raise Absent("the owner of an idmapped directory was not mapped")
    return ""


# ---------------------------------------------------------------- network


def _network(mode: str) -> None:
    """Set up a namespace in this mode and catch a connection to a foreign address, over each family."""
    import socket

    _enter(sc.CLONE_NEWNET)
    notes: list[str] = []
    got, sockets = netns.configure(NetworkPlan(mode=mode), notes=notes)  # type: ignore[arg-type]
    if got != mode:
        raise Absent(notes[-1])
    for role, opened in sockets:
        if not role.startswith("tcp"):
            continue
        listener = socket.socket(fileno=os.dup(opened.fileno()))
        listener.settimeout(_DEADLINE / 2)
        address = _FOREIGN[listener.family != socket.AF_INET]
        with socket.socket(listener.family, socket.SOCK_STREAM) as client:
            client.settimeout(_DEADLINE / 2)
            client.connect((address, 53))
            accepted, _ = listener.accept()
        if mode != "dnat" and accepted.getsockname()[:2] != (address, 53):
            raise Absent(f"a connection to {address} arrived as {accepted.getsockname()[0]}")


def _tproxy() -> str:
    _network("tproxy")
    return ""


def _nftables() -> str:
    """Refuse a datagram by a rule of the output hook."""
    import socket

    _enter(sc.CLONE_NEWNET)
    chain = netlink.add_chain(
        "probe", "out", kind="filter", hook=netlink.NF_INET_LOCAL_OUT, priority=0, policy=netlink.NF_ACCEPT
    )
    rules = netlink.add_rules("probe", "out", [(netlink.reject_prohibited(), "everything")])
    netlink.Connection(netlink.NETLINK_ROUTE).transact([netlink.link_up(1)])
    netlink.Connection(netlink.NETLINK_NETFILTER).transact([netlink.add_table("probe"), chain, *rules], batch=True)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    except PermissionError:
        return ""
    raise Absent("a forbidden datagram was sent")


def _dnat() -> str:
    _network("dnat")
    return ""


def _anyip() -> str:
    _network("anyip")
    return ""


# ---------------------------------------------------------------- process


def _landlock() -> str:
    sc.no_new_privs()
    version = landlock.restrict(("/",), ())
    if version == 0:
        raise Absent(
            "not built into this kernel, or not in its list of security modules", "add lsm=landlock,... at boot"
        )
    try:
        os.close(os.open(os.devnull, os.O_WRONLY))
    except PermissionError:
        return f"ABI {version}" + (", enough for --backend landlock" if version >= landlock.SUPERVISED else "")
    raise Absent("a forbidden file was opened for writing")


def _seccomp_filter() -> str:
    sc.no_new_privs()
    sc.seccomp_set_filter(seccomp.program(machine=sc.MACHINE))
    try:
        sc.unshare(sc.CLONE_NEWUSER)
    except PermissionError:
        return ""
    raise Absent("a forbidden call was made")


def _seccomp_notify() -> str:
    """Answer one call of a child: getppid(2), which every container's profile allows and nothing else answers."""
    import fcntl

    number, parent = (110 if sc.MACHINE == "x86_64" else 173), 0x6D656D62
    # load the number; when it is getppid: SECCOMP_RET_USER_NOTIF, else SECCOMP_RET_ALLOW
    code = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x7FC00000), (0x06, 0, 0, 0x7FFF0000))
    sc.no_new_privs()
    listener = sc.seccomp_set_filter(b"".join(struct.pack("<HBBI", *line) for line in code), 8)  # NEW_LISTENER
    pid = os.fork()
    if pid == 0:
        os._exit(os.getppid() != parent)
    notification = bytearray(80)  # struct seccomp_notif
    fcntl.ioctl(listener, 0xC0502100, notification)  # SECCOMP_IOCTL_NOTIF_RECV
    [identity] = struct.unpack_from("=Q", notification)
    response = struct.pack("=QqiI", identity, parent, 0, 0)
    fcntl.ioctl(listener, 0xC0182101, response)  # SECCOMP_IOCTL_NOTIF_SEND
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise Absent("the answer did not reach the caller")
    return ""


def _pidfd() -> str:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if not ready((pidfd,), seconds=_DEADLINE / 2)[0]:
        raise Absent("the end of a process was not reported")
    return ""


def _openat2() -> str:
    root = os.open("/usr", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.close(sc.openat2(root, ".", os.O_PATH, resolve=sc.RESOLVE_BENEATH))
    try:
        sc.openat2(root, "..", os.O_PATH, resolve=sc.RESOLVE_BENEATH)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return ""
        raise
    raise Absent("a path left its directory")


def _cgroup_delegation() -> str:
    """Make a cgroup below the own one, move a process in, look for the controllers, remove it."""
    fix = "run in a delegated scope: systemd-run --user --scope -p Delegate=yes membrane ..."
    own = mount = ""
    with open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                own = line[3:].strip()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                mount = before.split()[4]
    if not mount or not own:
        raise Absent("no cgroup v2 hierarchy is mounted", "boot with systemd.unified_cgroup_hierarchy=1")
    path = f"{mount}{own.rstrip('/')}/membrane-probe-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as error:
        raise Absent(f"mkdir {path}: {error.strerror}", fix)
    try:
        with open(f"{path}/cgroup.controllers") as file:
            missing = {"memory", "pids"} - set(file.read().split())
        if missing:
            raise Absent(f"the controllers {', '.join(sorted(missing))} are not delegated", fix)
        pid = os.fork()
        if pid == 0:
            try:
                with open(f"{path}/cgroup.procs", "w") as file:
                    file.write(str(os.getpid()))
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise Absent("a process could not be moved into an own cgroup", fix)
    finally:
        os.rmdir(path)
    return ""


def _python() -> str:
    return sys.version.partition(" ")[0]


# ---------------------------------------------------------------- tracing


def _bpf_program() -> str:
    """Load a program that returns 0 and attach it to the raw tracepoint sys_exit."""
    import ctypes

    code = ctypes.create_string_buffer(b"\xb7" + bytes(7) + b"\x95" + bytes(7), 16)  # r0 = 0; exit
    name = ctypes.create_string_buffer(b"sys_exit")
    license_text = ctypes.create_string_buffer(b"GPL")
    # BPF_PROG_LOAD of BPF_PROG_TYPE_RAW_TRACEPOINT; BPF_RAW_TRACEPOINT_OPEN
    program = sc.bpf(5, struct.pack("=IIQQ", 17, 2, ctypes.addressof(code), ctypes.addressof(license_text)) + bytes(96))
    sc.bpf(17, struct.pack("=QI", ctypes.addressof(name), program) + bytes(4))
    return ""


def _btf() -> str:
    with open("/sys/kernel/btf/vmlinux", "rb") as file:
        if file.read(2) != b"\x9f\xeb":
            raise Absent("/sys/kernel/btf/vmlinux is not BTF")
    return ""


def _ring_buffer() -> str:
    sc.bpf(0, struct.pack("=IIII", 27, 0, 0, 4096) + bytes(56))  # BPF_MAP_CREATE of BPF_MAP_TYPE_RINGBUF
    return ""


def _subordinate_ids() -> str:
    """For ``containers: nested``: have the maps of a user namespace written with the caller's further ids."""
    from .facts import in_initial_user_namespace
    from .subordinate import find, write_maps

    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and in_initial_user_namespace():
        return ""  # root has a range of his own
    found = find(uid)
    if found.lacking:
        raise Absent(found.lacking, found.fix)
    ready, made = os.pipe()
    pid = os.fork()
    if pid == 0:
        sc.unshare(sc.CLONE_NEWUSER)
        os.write(made, b"x")
        signal.pause()
    os.close(made)
    if os.read(ready, 1) != b"x":
        raise Absent("no user namespace was made")
    maps = [((0, own, 1), (1, *given)) for own, given in ((uid, found.uids), (gid, found.gids))]
    write_maps(pid, maps)
    return ""


_BPF_FIX = "run as root, or with CAP_BPF and CAP_PERFMON"

# group, name, probe, only for root callers, what to do where the probe does not know better
_PROBES: tuple[tuple[str, str, Probe, bool, str], ...] = (
    ("native", "Python", _python, False, ""),
    ("native", "user namespaces", _user_namespaces, False, ""),
    ("native", "no AppArmor restriction of user namespaces", _apparmor, False, ""),
    ("native", "network namespaces", _network_namespaces, False, ""),
    ("native", "TPROXY", _tproxy, False, "sudo modprobe nft_tproxy"),
    ("native", "nftables", _nftables, False, "sudo modprobe -a nf_tables nft_reject_inet"),
    ("native", "DNAT", _dnat, False, "sudo modprobe nft_chain_nat"),
    ("native", "AnyIP", _anyip, False, ""),
    ("native", "mount_setattr", _mount_setattr, False, ""),
    ("native", "overlayfs", _overlay, False, "sudo modprobe overlay; Linux 5.11 and later"),
    ("native", "Landlock", _landlock, False, ""),
    ("native", "seccomp filter", _seccomp_filter, False, ""),
    ("native", "seccomp notify", _seccomp_notify, False, ""),
    ("native", "pidfd", _pidfd, False, ""),
    ("native", "openat2", _openat2, False, ""),
    ("native", "private kuid range", _private_kuid_range, True, "run as an ordinary user"),
    ("native", "idmapped mounts", _idmapped_mounts, True, "run as an ordinary user, or on ext4, xfs or btrfs"),
    ("native", "subordinate ids", _subordinate_ids, False, ""),
    ("native", "cgroup v2 delegation", _cgroup_delegation, False, ""),
    ("tracing", "eBPF programs (CAP_BPF, CAP_PERFMON)", _bpf_program, False, _BPF_FIX),
    ("tracing", "BTF", _btf, False, "a kernel with CONFIG_DEBUG_INFO_BTF"),
    ("tracing", "ring buffer", _ring_buffer, False, _BPF_FIX),
)
