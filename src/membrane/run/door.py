"""The socket at which a running session takes callers: made, reached, and who is admitted.

By descriptor of its directory, since the path itself may be longer than the 107 bytes of a socket's address (unix(7)).
"""

from __future__ import annotations

import _socket
import os
import sys

from ..host.private import make_private


def listen(path: str, backlog: int) -> _socket.socket:
    """A socket that listens at ``path``, which only this user can connect to.

    Raises:
        OSError, HostError: it cannot be made.
    """
    directory, _, name = path.rpartition("/")
    make_private(directory)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    try:
        short = f"/proc/self/fd/{place}/{name}"
        mask = os.umask(0o177)  # from its first moment
        try:
            door.bind(short)
        finally:
            os.umask(mask)
        door.listen(backlog)
        door.setblocking(False)
    except OSError:
        door.close()
        raise
    finally:
        os.close(place)
    return door


def accept(door: _socket.socket) -> _socket.socket | None:
    """A caller of our own; None: there is none."""
    try:
        fd, _address = door._accept()  # type: ignore[attr-defined]
    except OSError:
        return None
    channel = _socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    if is_admitted(channel):
        return channel
    channel.close()
    return None


def is_admitted(channel: _socket.socket) -> bool:
    """Is the peer of this user, and in our own user namespace: in no sandbox?"""
    credentials = channel.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(credentials[at : at + 4], sys.byteorder) for at in (0, 4))
    try:
        return uid == os.geteuid() and os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
    except OSError:
        return False  # it has ended, or may not be looked at


def reach(path: str) -> _socket.socket:
    """A connection to the socket at ``path``.

    Raises:
        OSError: nothing listens there.
    """
    directory, _, name = path.rpartition("/")
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    try:
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            channel.connect(f"/proc/self/fd/{place}/{name}")
        finally:
            os.close(place)
    except OSError:
        channel.close()
        raise
    return channel
