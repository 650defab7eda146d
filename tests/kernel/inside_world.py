"""Attacks on a sandbox without namespaces (``--backend landlock``): what they share, and the machine around it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What the attacks share; each is a function whose outcome is told: "ok", what it returns, or the name of its errno.
PRELUDE = """
import array, ctypes, errno, json, os, random, socket, struct, sys, threading
L = ctypes.CDLL(None, use_errno=True)
W = json.loads(os.environ["W"])
def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
def outcome(action):
    try:
        return action() or "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def http(s):
    s.settimeout(60)
    s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    data = b""
    try:
        while part := s.recv(4096):
            data += part
    except OSError:
        pass
    return data.rpartition(b"\\r\\n\\r\\n")[2].decode()
def address(port, ip="127.0.0.1"):
    return struct.pack("=H", 2) + struct.pack(">H", port) + socket.inet_aton(ip) + bytes(8)
"""


class Service:
    """An HTTP server of this machine that says one word, and what else listens beside it."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _peer = self.socket.accept()
            except OSError:
                return
            with client:
                client.settimeout(60)
                try:
                    client.recv(4096)
                    client.sendall(f"HTTP/1.0 200 OK\r\nContent-Length: {len(self.word)}\r\n\r\n{self.word}".encode())
                except OSError:
                    continue


class World:
    """A workspace, a home, two services, and sockets of the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workspace = path / "w"
        self.home = path / "h"
        for each in (self.workspace, self.home):
            each.mkdir()
        self.good, self.evil = Service("good"), Service("EVIL")
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.setblocking(False)
        self.named = socket.socket(socket.AF_UNIX)
        self.named.bind(str(path / "s"))
        self.named.listen(8)
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0membrane-{path.name}-{os.getpid()}")
        self.abstract.listen(8)
        self.datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagram.bind(str(path / "d"))
        self.datagram.setblocking(False)
        (path / "outside.txt").write_text("outside")
        self.facts = {
            "good": self.good.port,
            "evil": self.evil.port,
            "udp": self.udp.getsockname()[1],
            "named": str(path / "s"),
            "datagram": str(path / "d"),
            "abstract": self.abstract.getsockname().decode(),
            "outside": str(path / "outside.txt"),
            "pid": os.getpid(),
        }

    def close(self) -> None:
        for each in (self.good.socket, self.evil.socket, self.udp, self.named, self.abstract, self.datagram):
            each.close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "W": json.dumps(self.facts),
            "LANG": "C.UTF-8",
        }

    def membrane(
        self, *command: str, options: Sequence[str] = (), stdin: Any = None, before: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        allow = f"host.internal:{self.good.port}"
        argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "-a", allow, "--env", "W"]
        return subprocess.run(  # noqa: PLW1510
            [*before, *argv, *options, "--", *command],
            cwd=self.workspace,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=stdin,
        )

    def python(self, body: str, *, outside: bool = False, options: Sequence[str] = ()) -> Any:
        """What a program prints as JSON, inside or, as a control, outside."""
        command = ["/usr/bin/python3", "-c", PRELUDE + body]
        if outside:
            done = subprocess.run(  # noqa: PLW1510
                command, cwd=self.workspace, env=self.environment, capture_output=True, text=True, timeout=120
            )
        else:
            done = self.membrane(*command, options=options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def both(self, body: str, *, options: Sequence[str] = ()) -> tuple[Any, Any]:
        return self.python(body, outside=True), self.python(body, options=options)
