"""run.door: the socket of a session, and who is admitted at it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from membrane.host import syscalls
from membrane.run import door

LONG = "d" * 100  # with a name the path is longer than a socket's address may be


def knock(path: str, *, sandboxed: bool) -> int:
    """A process that connects and waits for a byte; status 0: it got one, 1: the end came."""
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            if sandboxed:
                syscalls.unshare(syscalls.CLONE_NEWUSER)
            channel = door.reach(path)
            channel.settimeout(60)
            status = 0 if channel.recv(1) else 1
        finally:
            os._exit(status)
    return pid


@pytest.mark.parametrize("sandboxed", [False, True])
def test_only_who_is_in_no_sandbox_is_admitted(tmp_path: Path, sandboxed: bool) -> None:
    path = f"{tmp_path}/{LONG}/door"
    listening = door.listen(path, 4)
    try:
        assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(tmp_path / LONG).st_mode & 0o777 == 0o700
        assert door.accept(listening) is None  # nobody is there
        pid = knock(path, sandboxed=sandboxed)
        listening.setblocking(True)
        channel = door.accept(listening)
        assert (channel is None) == sandboxed
        if channel is not None:
            channel.send(b"x")
            channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (1 if sandboxed else 0)
    finally:
        listening.close()


@pytest.mark.as_root
def test_another_user_is_not_admitted(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert door.is_admitted(ours)  # the control: it is ourselves
    listening = door.listen(f"{tmp_path}/door", 4)
    tmp_path.chmod(0o711)
    os.chmod(tmp_path / "door", 0o666)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)  # the directories above keep their modes: other tests of this run need them
            os.setresuid(65534, 65534, 65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.connect("door")
                os._exit(0 if channel.recv(1) == b"" else 1)
        finally:
            os._exit(2)
    listening.setblocking(True)
    assert door.accept(listening) is None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    listening.close()
