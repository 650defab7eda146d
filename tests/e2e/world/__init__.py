"""A small world for end-to-end tests: a host, an Internet, no uplink.

``World`` starts ``holder.py`` (which explains the network), runs commands in there with bounded time, and reads what
its servers saw.  Nothing outlives the process that made the world: see ``holder.py``.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from started import Started

from . import journal, names

HERE = Path(__file__).parent
PATIENCE = 180.0  # seconds a command may take before the test fails: a bound, not a measurement


class World:
    """A running world; ``close`` ends it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = (directory / "holder.stderr").open("wb")
        self._holder = subprocess.Popen(
            [sys.executable, str(HERE / "holder.py"), str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )
        assert self._holder.stdout
        line = self._holder.stdout.readline().split()
        if line[:1] != [b"ready"]:
            self.close()
            raise RuntimeError(f"the world did not start:\n{(directory / 'holder.stderr').read_text()}")
        self.pid = int(line[1])
        self.ca = directory / "ca.pem"
        self.host_socket = directory / "host.sock"

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()
        self._errors.close()

    def argv(self, command: list[str], *options: str) -> list[str]:
        """The argument vector that runs ``command`` in the world."""
        return [sys.executable, "-S", "-E", str(HERE / "enter.py"), str(self.pid), *options, "--", *command]

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in its own session; the caller waits for it."""
        return Started(self.argv(command), start_new_session=True, **options)

    def run(
        self,
        command: list[str],
        *,
        input: str | bytes | None = None,
        timeout: float = PATIENCE,
        check: bool = False,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; text in and out, undecodable bytes as surrogates.

        Raises: AssertionError with the output so far when ``timeout`` seconds pass, or with ``check`` on failure.
        """
        data = input.encode() if isinstance(input, str) else input
        stdin = {"stdin": subprocess.DEVNULL} if data is None and "stdin" not in options else {}
        if data is not None:
            stdin = {"stdin": subprocess.PIPE}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.popen(command, **{**pipes, **stdin, **options})
        try:
            out, err = process.communicate(data, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                out, err = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            raise AssertionError(f"{command} still ran after {timeout} s\nstdout: {out!r}\nstderr: {err!r}") from None
        texts = [(stream or b"").decode("utf-8", "surrogateescape") for stream in (out, err)]
        done = subprocess.CompletedProcess(command, process.returncode, *texts)
        assert not check or done.returncode == 0, f"{command}: {done}"
        return done

    def terminal(self, command: list[str], **options: Any) -> Terminal:
        """Start a command on a new terminal, which is its controlling terminal."""
        return Terminal(self, command, **options)

    def questions(self, name: str) -> list[dict[str, Any]]:
        """The DNS queries for ``name`` that reached any resolver of the world."""
        return [entry for entry in journal.read(self.directory / "dns.jsonl") if entry["name"] == name.lower()]

    def requests(self, **wanted: Any) -> list[dict[str, Any]]:
        """The HTTP requests that reached an origin."""
        return self._seen("requests.jsonl", wanted)

    def connections(self, **wanted: Any) -> list[dict[str, Any]]:
        """The echo, banner and datagram contacts an origin had."""
        return self._seen("connections.jsonl", wanted)

    def proxied(self, **wanted: Any) -> list[dict[str, Any]]:
        """What the upstream proxies were asked for."""
        return self._seen("proxy.jsonl", wanted)

    def model_calls(self, **wanted: Any) -> list[dict[str, Any]]:
        """The calls of the two model APIs."""
        return self._seen("model.jsonl", wanted)

    def _seen(self, file: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        return [e for e in journal.read(self.directory / file) if all(e.get(k) == v for k, v in wanted.items())]


class Terminal:
    """The other end of a terminal that a command runs on."""

    def __init__(self, world: World, command: list[str], *, rows: int = 24, columns: int = 80, **options: Any) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.original = self.attributes()  # as a caller's are before anything runs
        argv = world.argv(command, "--tty", os.ttyname(self.slave))
        null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(argv, **{**null, **options})
        self.seen = b""
        self._from = 0

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def expect(self, pattern: str, timeout: float = PATIENCE) -> re.Match[bytes]:
        """The next match of ``pattern`` in what the terminal shows; what precedes it is consumed."""
        deadline = time.monotonic() + timeout
        compiled = re.compile(pattern.encode(), re.S)
        while True:
            if match := compiled.search(self.seen, self._from):
                self._from = match.end()
                return match
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.master], [], [], left)[0]
            assert ready, f"no {pattern!r} within {timeout} s; seen:\n{self.seen.decode(errors='replace')}"
            self.seen += os.read(self.master, 65536)

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit status of the command; what it still prints is read meanwhile."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running; seen:\n{self.seen.decode(errors='replace')}"
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["PATIENCE", "Terminal", "World", "names"]
