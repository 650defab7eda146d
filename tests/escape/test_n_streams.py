"""A socket that the caller gives the command as a stream: no way to others than it is connected with (row N63).

It was made in the host's network namespace and stays there; connect(2) with AF_UNSPEC takes it off its peer.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from escape_box import PYTHON, Box

from membrane import Sandbox
from membrane.errors import HostError

KINDS = ("tcp", "udp", "unix", "unix datagrams")
AWAY = """
import ctypes, socket, sys
stream = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == "tcp":
    ctypes.CDLL(None).connect(stream.fileno(), bytes(16), 16)  # AF_UNSPEC
where = ("127.0.0.1", int(sys.argv[3])) if sys.argv[2] in ("tcp", "udp") else "\\0" + sys.argv[3]
if stream.type == socket.SOCK_DGRAM:
    stream.sendto(b"out", where)
else:
    stream.connect(where)
"""


class Outside:
    """What nobody opened to the command, and a socket that leads there without being connected with it."""

    def __init__(self, kind: str, place: Path) -> None:
        family = socket.AF_INET if kind in ("tcp", "udp") else socket.AF_UNIX
        datagrams = kind in ("udp", "unix datagrams")
        style = socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM
        self.kind, self.server = kind, socket.socket(family, style)
        self.server.bind(("127.0.0.1", 0) if family == socket.AF_INET else f"\0{place}")
        self.stream, self.friend = socket.socket(family, style), socket.socket(family, style)
        if not datagrams:
            self.server.listen()
        if kind == "tcp":  # as inetd(8) and systemd (StandardInput=socket) start a program
            self.friend.bind(("127.0.0.1", 0))
            self.friend.listen()
            self.stream.connect(self.friend.getsockname())
        self.server.setblocking(False)
        name = self.server.getsockname()
        self.arguments = (kind, str(name[1]) if family == socket.AF_INET else name[1:].decode())

    def met(self) -> bool:
        """Has something come?  A connection is there when connect(2) has returned, a datagram when it was sent."""
        try:
            if self.server.type == socket.SOCK_DGRAM:
                self.server.recv(16)
            else:
                self.server.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        for each in (self.server, self.stream, self.friend):
            each.close()


@pytest.mark.parametrize(
    ("kind", "number", "options"),
    [
        *(("tcp", number, ()) for number in (0, 1, 2)),
        *((kind, 0, ()) for kind in KINDS[1:]),
        *(("tcp", 0, (option,)) for option in ("--containers", "--no-trace", "--review=one")),
        *((kind, 0, ("--backend=landlock",)) for kind in KINDS),
    ],
)
def test_N63_a_socket_that_is_a_stream_leads_to_nobody_else(
    box: Box, tmp_path: Path, kind: str, number: int, options: tuple[str, ...]
) -> None:
    outside = Outside(kind, tmp_path)
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    streams[list(streams)[number]] = outside.stream
    command = (PYTHON, "-S", "-c", AWAY, str(number), *outside.arguments)
    try:
        box.policy(allow=[])
        done = subprocess.run(
            box.arguments(command, options),
            cwd=box.workspace,
            env=box.environment,
            **streams,
            check=False,
        )
        assert not outside.met()
        if options == ("--backend=landlock",) and kind in ("tcp", "unix"):
            assert done.returncode == 1  # connect(2) is supervised there: EACCES
        else:
            assert done.returncode == 125
        # The control: the same program, and the same socket.
        subprocess.run(command, **streams, check=True)
        assert outside.met()
    finally:
        outside.close()


def test_N63_in_a_sandbox_of_the_library(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command gets streams of its own; one that cannot have them is not the others' end."""
    monkeypatch.setenv("MEMBRANE_HOME", str(box.state))
    outside = Outside("tcp", tmp_path)
    ours, theirs = socket.socketpair()
    try:
        with Sandbox(workspace=box.workspace) as sandbox:
            with pytest.raises(HostError, match="standard input: it is a socket of the host's network"):
                sandbox.popen([PYTHON, "-S", "-c", AWAY, "0", *outside.arguments], stdin=outside.stream.fileno()).wait()
            assert not outside.met()
            # A stream that has one peer for ever is what pipes of other programs are.
            running = sandbox.popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.PIPE)
            theirs.close()
            ours.sendall(b"in")
            ours.close()
            assert running.stdout is not None
            with running.stdout:
                assert running.stdout.read() == b"in"
            assert running.wait().exit_code == 0
    finally:
        ours.close()
        theirs.close()
        outside.close()
