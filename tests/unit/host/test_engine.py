"""host.engine: dockerd is started by the first connection to its socket, outside of the command's children."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import forked

from membrane.host import engine
from membrane.host import syscalls as sc

pytestmark = pytest.mark.needs_kernel("user namespaces")

# It says what it was started with, answers one client on the socket that it was given, and ends.
DAEMON = """#!/bin/sh
exec python3 - "$@" <<'END'
import os, socket, sys
listening = socket.socket(fileno=3)
client = listening.accept()[0]
names = ("LISTEN_FDS", "XDG_RUNTIME_DIR", "ROOTLESSKIT_STATE_DIR", "PATH")
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4]
mine = os.environ["LISTEN_PID"] == str(os.getppid()) or os.environ["LISTEN_PID"] == str(os.getpid())
client.sendall(repr((sys.argv[1:], [os.environ[name] for name in names], mine, os.getsid(0) != 0)).encode())
END
"""


def with_docker(tmp_path: Path, body: Callable[[dict[str, str]], Any], *, installed: bool = True) -> Any:
    """What ``body`` returns where ``/run`` is empty; it is given an environment in which dockerd is found."""
    place = tmp_path / "bin"
    place.mkdir()
    if installed:
        (place / "dockerd").write_text(DAEMON)
        (place / "dockerd").chmod(0o755)

    def child() -> Any:
        sc.mount("tmpfs", "/run", "tmpfs", 0)
        engine._SYSTEM = ()  # type: ignore[misc]  # what this machine has installed
        return body({"PATH": f"relative:{place}:/usr/bin:/bin", "X": "y"})

    return forked(child, sc.CLONE_NEWNS)


def test_the_first_client_gets_its_answer_from_the_daemon(tmp_path: Path) -> None:
    def body(environment: dict[str, str]) -> tuple[bool, str, bool]:
        engine.offer(environment)
        begun = os.path.exists(engine.LOG)
        client = socket.socket(socket.AF_UNIX)
        client.connect(engine.SOCKET)
        said = b""
        while part := client.recv(4096):
            said += part
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return begun, said.decode(), True
        return begun, said.decode(), False

    begun, said, childless = with_docker(tmp_path, body)
    assert not begun, "nothing runs before"
    argv, (fds, runtime, state, path), mine, _ = eval(said)
    assert argv[:3] == ["--rootless", "--host=fd://", "--userland-proxy=false"]
    assert (fds, runtime, state) == ("1", "/run", "/run/docker") and mine
    assert path == f"/run/docker/bin:{tmp_path}/bin:/usr/bin:/bin", "no relative place"
    assert childless, "the command has no child that it did not make"


@pytest.mark.parametrize("why", ["dockerd is not installed", "the policy opens Docker of the host there"])
def test_nothing_is_offered(tmp_path: Path, why: str) -> None:
    def body(environment: dict[str, str]) -> tuple[list[str], int]:
        if why.startswith("the policy"):
            Path(engine.SOCKET).write_text("")
        engine.offer(environment)
        return os.listdir("/run"), len(os.listdir("/proc/self/fd"))

    before = forked(lambda: len(os.listdir("/proc/self/fd")))
    found, descriptors = with_docker(tmp_path, body, installed=why.startswith("the policy"))
    assert found == (["docker.sock"] if why.startswith("the policy") else []) and descriptors == before
