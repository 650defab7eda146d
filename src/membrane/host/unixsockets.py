"""Whose a unix socket is: the sandbox's, or the host's.

Theory of operation
-------------------
connect(2) to a path asks for the right to write the socket's inode and for nothing else: neither a read-only mount nor
a network namespace is in the way (net/unix/af_unix.c, unix_find_bsd).  A socket belongs to the network namespace in
which it was made, and the sandbox has one of its own.  So what is good is listed: ``Table`` asks the kernel, over a
socket of sock_diag(7) that was made in the sandbox's namespace, whether a socket there is bound to a given inode
(UDIAG_SHOW_VFS).  Every other socket that a process has bound is foreign.  Nothing of the answer is text, and nothing
in it but numbers that the kernel gives out: the inode is looked for as bytes, which costs the same for any number of
sockets that the command makes, up to ``MOST``; over that nothing is known to be the sandbox's own.

``bound`` asks the socket itself whether a process has it: one that was left behind by a dead program is no process's,
and a new one takes a new inode (unix_bind_bsd, mknod), so it stays without one for ever.
"""

from __future__ import annotations

import _socket
import errno
import os
import stat
import struct

from .facts import bound_sockets

_BY_FAMILY, _REQUEST_DUMP, _DONE, _ERROR = 20, 0x301, 3, 2  # linux/sock_diag.h, linux/netlink.h
# struct nlmsghdr; struct unix_diag_req (linux/unix_diag.h): family, protocol, states, inode, show, cookie
_QUESTION = struct.Struct("=IHHIIBBHIIIII")
_SHOW_VFS = 2
_WAITING = 1 << 7 | 1 << 10  # TCP_CLOSE, TCP_LISTEN (net/tcp_states.h): what is bound, and not connected
_CONNECTED = 1 << 1  # TCP_ESTABLISHED: datagram sockets with a peer are bound as well
_VFS = struct.Struct("=HHI")  # an attribute of 12 bytes, UNIX_DIAG_VFS: inode, then device
_END = struct.Struct("=IH")
MOST = 4 << 20  # bytes of an answer: about 80,000 sockets


class Table:
    """The unix sockets of one network namespace.

    Args:
        fd: a socket of NETLINK_SOCK_DIAG that was made in it; owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 4, fd)
        self._number = 0
        self.broken = False  # the kernel has no unix_diag

    def close(self) -> None:
        self._socket.close()

    def holds(self, place: int, process: int = 0) -> bool:
        """Whether a socket of the namespace is bound to this inode; false too when that is not known.

        Args:
            place: an O_PATH descriptor of the socket.
            process: in whose mount namespace it was opened; 0: in our own.
        """
        status = os.fstat(place)
        wanted = _VFS.pack(12, 1, status.st_ino & 0xFFFFFFFF)
        devices = {os.major(status.st_dev) << 20 | os.minor(status.st_dev)}  # linux/kdev_t.h, MKDEV
        for states in (_WAITING, _CONNECTED):
            try:
                found = self._devices(wanted, states)
            except OSError as error:
                self.broken = self.broken or error.errno == errno.ENOENT
                return False
            if found and not found & devices:
                devices.add(device_of_mount(place, process))  # of btrfs and overlayfs stat(2) reports another one
            if found & devices:
                return True
        return False

    def _devices(self, wanted: bytes, states: int) -> set[int]:
        """Of the sockets in these states with that inode number, the devices."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        number = self._number
        self._socket.send(
            _QUESTION.pack(
                _QUESTION.size, _BY_FAMILY, _REQUEST_DUMP, number, 0, _socket.AF_UNIX, 0, 0, states, 0, _SHOW_VFS, 0, 0
            )
        )
        found: set[int] = set()
        read = 0
        while True:
            data = self._socket.recv(1 << 17, _socket.MSG_DONTWAIT)
            _length, kind, _flags, answers = struct.unpack_from("=IHHI", data)
            if answers != number:
                continue  # the rest of an answer that was too long
            if kind == _ERROR:
                code = -struct.unpack_from("=i", data, 16)[0]
                raise OSError(code, os.strerror(code))
            read += len(data)
            if read > MOST:
                raise OSError(errno.E2BIG, "too many sockets")
            at = data.find(wanted)
            while at >= 0:
                if at % 4 == 0:
                    found.add(struct.unpack_from("=I", data, at + _VFS.size)[0])
                at = data.find(wanted, at + 1)
            if _END.unpack_from(data, len(data) - 20) == (20, _DONE):
                return found


def device_of_mount(fd: int, process: int) -> int:
    """The device of the superblock behind a descriptor, from proc_pid_mountinfo(5); -1: it is not known."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
            mount = next(line.split()[1] for line in info if line.startswith(b"mnt_id:"))
        with open(f"/proc/{process or 'self'}/mountinfo", "rb") as table:
            device = next(row.split()[2] for row in table if row.split(None, 1)[0] == mount)
        major, _, minor = device.partition(b":")
        return int(major) << 20 | int(minor)
    except (OSError, StopIteration, ValueError, IndexError):
        return -1


def bound(place: int) -> bool | None:
    """Whether a socket is bound to an inode: it listens, or takes datagrams, or will; None: we may not ask.

    A stream service does not notice: an attempt of another type ends with EPROTOTYPE (unix(7)).

    Args:
        place: an O_PATH descriptor of the socket.
    """
    probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    try:
        probe.connect(f"/proc/self/fd/{place}")
    except ConnectionRefusedError:
        return False
    except PermissionError:
        return None
    except OSError:
        return True
    finally:
        probe.close()
    return True


def _made_inside(place: int, process: int) -> bool:
    """Whether a socket lies in a file system that no process mounted outside.

    What a sandbox sees of the host are clones of mounts of our own mount namespace, so a superblock that is not there
    now was made inside, and no process outside can have bound a socket in it.
    """
    device = device_of_mount(place, process)
    if device < 0:
        return False
    number = f"{device >> 20}:{device & 0xFFFFF}".encode()
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            return all(row.split(None, 3)[2] != number for row in table)
    except OSError:
        return False


def is_foreign(place: int, table: Table, process: int = 0, *, nested: bool = False) -> bool:
    """Whether a socket belongs to a process outside of the sandbox.

    Args:
        place: an O_PATH descriptor; what is no socket is not foreign.
        table: of the sandbox.
        process: as for ``Table.holds``.
        nested: processes may have network namespaces of their own, whose sockets are in no table that we have.
    """
    if not stat.S_ISSOCK(os.fstat(place).st_mode):
        return False
    somebodys = bound(place)
    if somebodys is False or table.holds(place, process) or (nested and _made_inside(place, process)):
        return False
    if table.broken:  # a kernel without unix_diag gives the names of the host's sockets only
        return os.readlink(f"/proc/self/fd/{place}") in bound_sockets()
    # The tracer of a root caller has no right to what the sandbox's own range of uids has: it asks by whom it is.
    return somebodys or _ours().holds(place, process)


_host: list[Table] = []


def _ours() -> Table:
    """The sockets of this process's own network namespace."""
    if not _host:
        made = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, 4)
        _host.append(Table(made.detach()))
    return _host[0]
