"""One caller of membrane in the end-to-end world, and what an attacker carries inside.

Theory of operation
-------------------
The world of ``tests/e2e/world`` has a host and an Internet without an uplink.  ``Net.attack`` runs a Python script
inside the sandbox, ``Net.control`` runs the same script on the host of that world: an attack that would fail anyway
proves nothing.  Both give back what each attempt came to.  Every run writes its events, so that a test can ask what
was put on the record.

``TOOLS`` is what such a script finds; ``net_wire`` (packets and hellos, byte by byte) is put before it as source.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

import pytest
from world import World, journal, names
from world.box import Box

WIRE = (Path(__file__).parent / "net_wire.py").read_text()
QUICK = 50.0  # seconds within which a refusal must be felt, on whatever machine: nobody has waited to the end

TOOLS = r"""
import errno, json, os, select, socket, sys, time
_results = {}

def attempt(name, action):
    "What ``action`` came to: ``ok``, its text or number, or the name of the errno."
    try:
        value = action()
    except socket.gaierror as error:
        value = {getattr(socket, n): n for n in dir(socket) if n.startswith("EAI_")}.get(error.errno, str(error))
    except UnicodeError:
        value = "UnicodeError"
    except TimeoutError as error:
        value = "timeout" if error.errno is None else "ETIMEDOUT"
    except OSError as error:
        value = errno.errorcode.get(error.errno, repr(error))
    else:
        value = "ok" if value is None else value.decode("latin-1") if isinstance(value, bytes) else value
    _results[name] = value
    return value

def say(name, value):
    _results[name] = value

def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET

def dial(host, port, seconds=60):
    return socket.create_connection((host, port), seconds)

def receive(sock, most=1 << 16):
    "Everything until the other end closes, at most ``most`` bytes; a reset is an OSError."
    out = b""
    while len(out) < most:
        data = sock.recv(most - len(out))
        if not data:
            break
        out += data
    return out

def talk(host, port, data, seconds=60, wait=True):
    "Connect, send, and read until the other end closes."
    with dial(host, port, seconds) as sock:
        sock.sendall(data)
        return receive(sock)

def first(host, port, data=b"", seconds=60):
    "Connect, send, and read once."
    with dial(host, port, seconds) as sock:
        if data:
            sock.sendall(data)
        return sock.recv(1 << 16)

def get(host, port=80, name=None, seconds=60):
    "The status of a plain HTTP request, as text."
    shown = name or (f"[{host}]" if ":" in host else host)
    head = f"GET / HTTP/1.1\r\nHost: {shown}\r\nConnection: close\r\n\r\n".encode()
    answer = talk(host, port, head, seconds)
    return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/") else "no answer"

def echo(host, port=7, seconds=60):
    with dial(host, port, seconds) as sock:
        sock.sendall(b"echo me")
        return sock.recv(100)

def ask(packet, server="9.9.9.9", seconds=60):
    "One datagram to a resolver; its answer."
    with socket.socket(family(server), socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        sock.sendto(packet, (server, 53))
        return sock.recv(65535)

def ask_tcp(packet, server="9.9.9.9", seconds=60):
    with socket.create_connection((server, 53), seconds) as sock:
        sock.sendall(len(packet).to_bytes(2, "big") + packet)
        head = sock.recv(2)
        if len(head) < 2:
            return b""
        size = int.from_bytes(head, "big")
        out = b""
        while len(out) < size and (data := sock.recv(size - len(out))):
            out += data
        return out

def udp(host, port, data=b"hello", seconds=60):
    with socket.socket(family(host), socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        sock.sendto(data, (host, port))
        return sock.recv(65535)
"""
REPORT = "\nsys.stdout.write('\\n' + json.dumps(_results) + '\\n')\n"


# The rows that hold without namespaces in the same words; each kind of way out has some.
BACKENDS = pytest.mark.parametrize(
    "net",
    ["native", pytest.param("landlock", marks=pytest.mark.needs_kernel("landlock without TCP"))],
    indirect=True,
)


class Net(Box):
    """A caller in the world whose runs are on the record; what servers saw is counted from its beginning."""

    def __init__(self, world: World, directory: Path, backend: str = "native") -> None:
        super().__init__(world, directory)
        self._backend = f"--backend={backend}"
        files = ("dns.jsonl", "requests.jsonl", "connections.jsonl", "proxy.jsonl")
        self._before = {file: len(journal.read(world.directory / file)) for file in files}

    def _seen(self, file: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        entries = journal.read(self.world.directory / file)[self._before[file] :]
        return [entry for entry in entries if all(entry.get(name) == value for name, value in wanted.items())]

    def questions(self, name: str) -> list[dict[str, Any]]:
        """The queries for a name that reached any resolver of the world."""
        return self._seen("dns.jsonl", {"name": name.lower()})

    def requests(self, **wanted: Any) -> list[dict[str, Any]]:
        """The HTTP requests that reached an origin."""
        return self._seen("requests.jsonl", wanted)

    def connections(self, **wanted: Any) -> list[dict[str, Any]]:
        """The echo, banner and datagram contacts that an origin had."""
        return self._seen("connections.jsonl", wanted)

    def proxied(self, **wanted: Any) -> list[dict[str, Any]]:
        """What the upstream proxies were asked for."""
        return self._seen("proxy.jsonl", wanted)

    def attack(self, script: str, *options: str, **more: Any) -> dict[str, Any]:
        """Run an attack script inside; what each attempt came to."""
        done = self.inside(script, *options, **more)
        assert done.returncode == 0, done
        return self._results(done.stdout)

    def inside(self, script: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run an attack script inside; how it ended."""
        return self.run(
            self._backend, f"--events={self.events_path}", "-q", *options, "--", *self._python(script), **more
        )

    def control(self, script: str, **more: Any) -> dict[str, Any]:
        """Run the same kind of script on the host of the world."""
        done = self.outside(*self._python(script), **more)
        assert done.returncode == 0, done
        return self._results(done.stdout)

    @contextlib.contextmanager
    def talking(
        self, script: str, *options: str, before: tuple[str, ...] = (), **more: Any
    ) -> Iterator[tuple[Any, Callable[[str], str]]]:
        """A script inside that is talked to by lines: the process, and ``ask(line)`` for its ``answer(line)``.

        ``before`` is a command that runs membrane, such as prlimit(1).
        """
        loop = "\nprint('up', flush=True)\nfor line in sys.stdin:\n    print(answer(line.strip()), flush=True)\n"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = self._python(script, loop)
        argv = self.argv(self._backend, f"--events={self.events_path}", "-q", *options, "--", *command)
        process = self.world.popen([*before, *argv], cwd=self.workspace, env=self.environment(), **pipes, **more)
        assert process.stdin and process.stdout

        def ask(line: str) -> str:
            assert process.stdin and process.stdout
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            return process.stdout.readline().decode().strip()

        try:
            assert process.stdout.readline() == b"up\n"
            yield process, ask
        finally:
            try:
                process.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise

    def denied(self, reason: str = "", **access: Any) -> list[dict[str, Any]]:
        """The refusals on the record, of one reason and with these fields of what was asked."""
        return [
            event
            for event in self.events("AccessDenied")
            if reason in ("", event["reason"])
            and all(event["access"].get(name) == value for name, value in access.items())
        ]

    def network_pid(self, supervisor: int) -> int:
        """The gateway among the children of a running membrane; 0 when there is none."""
        for task in Path(f"/proc/{supervisor}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if b"membrane.gateway.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return 0

    @staticmethod
    def _python(script: str, after: str = REPORT) -> list[str]:
        return ["python3", "-S", "-c", f"{WIRE}\n{TOOLS}\n{script}\n{after}"]

    @staticmethod
    def _results(stdout: str) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
        return results


__all__ = ["QUICK", "Net", "names"]
