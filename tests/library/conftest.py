"""Fixtures of the library's tests: a server on loopback, a workspace, an environment, and a look at what is left."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from library_support import descendants, describe, gone, until


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """Of a server on the host's loopback, inside at ``host.internal``."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {**os.environ, "HOME": str(home), "MEMBRANE_HOME": str(tmp_path / "state")}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """At the end no process of the test may be left, and no descriptor open, and no mount made."""
    before, files, mounts = descendants(os.getpid()), _files(), _mounts()
    yield
    until(lambda: not _left(before), lambda: f"the end of every process: {[describe(p) for p in _left(before)]}")
    until(lambda: _files() <= files, lambda: f"closed descriptors: {_files() - files}")
    # Beyond those before: what another process of the machine mounts for a moment goes away again.
    until(lambda: set(_mounts()) <= set(mounts), lambda: f"the end of mounts: {set(_mounts()) - set(mounts)}")


def _left(before: set[int]) -> list[int]:
    return [pid for pid in descendants(os.getpid()) - before if not gone(pid)]


def _files() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}").partition(":")[0]))
        except OSError:
            continue
    return found


def _mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # Any run of root may have made the place of the tracing programs, which stays (docs/trace-ebpf.md).
    return [line.split(" ", 4)[4] for line in lines if " - bpf " not in line]
